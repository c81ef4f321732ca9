// `openai` for Node: every option of chats and completions, its exception classes.

import assert from "node:assert/strict";
import { test } from "node:test";

import OpenAI from "openai";

import { ADD, REPEAT, asText, busy, collect, golden, guarded, key, noticed, starting, url, user } from "./servers.mjs";

// No retries: a test must see the first answer.
const connect = (base, apiKey = "unused") =>
  new OpenAI({ baseURL: `${base}/v1`, apiKey, maxRetries: 0, timeout: 120_000 });

golden("openai: a chat", async (at) => {
  const answer = await connect(at).chat.completions.create({
    model: "tgi",
    messages: user(ADD),
    max_tokens: 8,
    temperature: 0,
  });
  assert(answer.choices[0].message.content);
  assert(answer.usage.completion_tokens <= 8);
});

golden("openai: a chat stream", async (at) => {
  const options = { model: "tgi", messages: user(REPEAT), max_tokens: 8, temperature: 0 };
  const whole = await connect(at).chat.completions.create(options);
  const stream = { ...options, stream: true, stream_options: { include_usage: true } };
  const chunks = await collect(await connect(at).chat.completions.create(stream));
  const text = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(chunks.at(-1).usage.total_tokens, whole.usage.total_tokens);
});

golden("openai: a chat with every option", async (at) => {
  const options = {
    frequency_penalty: 0.5,
    logit_bias: { 17: -100 },
    logprobs: true,
    max_completion_tokens: 6,
    n: 2,
    parallel_tool_calls: true,
    presence_penalty: 0.5,
    response_format: { type: "text" },
    seed: 11,
    stop: ["never", "seen"],
    temperature: 0.7,
    top_logprobs: 3,
    top_p: 0.9,
    user: "someone",
  };
  const ask = () => connect(at).chat.completions.create({ model: "tgi", messages: user(ADD), ...options });
  const [first, second] = [await ask(), await ask()];
  assert.equal(first.choices.length, 2);
  assert.deepEqual(first.choices.map((one) => one.message.content), second.choices.map((one) => one.message.content));
  assert.equal(first.choices[0].logprobs.content[0].top_logprobs.length, 3);
});

golden("openai: completions", async (at) => {
  const client = connect(at);
  const whole = await client.completions.create({ model: "tgi", prompt: asText(ADD), max_tokens: 6, logprobs: 2, seed: 1 });
  assert(whole.choices[0].logprobs.tokens.length > 0);
  const options = { model: "tgi", prompt: [asText(ADD), asText(REPEAT)], max_tokens: 6, temperature: 0, stream: true };
  const chunks = await collect(await client.completions.create(options));
  assert.deepEqual(new Set(chunks.flatMap((chunk) => chunk.choices.map((one) => one.index))), new Set([0, 1]));
});

golden("openai: models", async (at) => {
  const models = await collect(connect(at).models.list());
  assert.equal((await connect(at).models.retrieve(models[0].id)).id, models[0].id);
});

golden("openai: tools", async (at) => {
  const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
  const tools = [{ type: "function", function: { name: "get_weather", description: "Get the weather in a city", parameters } }];
  const messages = user("What is the weather in Paris?");
  const options = { model: "tgi", messages, tools, temperature: 0 };
  const [{ message, finish_reason }] = (await connect(at).chat.completions.create(options)).choices;
  assert.equal(finish_reason, "tool_calls");
  assert.deepEqual(JSON.parse(message.tool_calls[0].function.arguments), { city: "Paris" });
  const streamed = await connect(at).chat.completions.stream(options).finalChatCompletion();
  assert.equal(streamed.choices[0].message.tool_calls[0].function.arguments, message.tool_calls[0].function.arguments);
  const result = { role: "tool", tool_call_id: message.tool_calls[0].id, content: '{"temperature": 21, "condition": "sunny"}' };
  const answer = await connect(at).chat.completions.create({ ...options, messages: [...messages, message, result] });
  assert.match(answer.choices[0].message.content, /21/);
  const called = streamed.choices[0].message;
  const given = { ...result, tool_call_id: called.tool_calls[0].id };
  const chunks = await collect(
    await connect(at).chat.completions.create({ ...options, messages: [...messages, called, given], stream: true }),
  );
  const text = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
  assert.equal(text, answer.choices[0].message.content);
});

test("openai: errors have the class of their status", async () => {
  const ask = (client, options = {}) =>
    client.chat.completions.create({ model: "tgi", messages: user("x"), max_tokens: 1, ...options });
  const is = (kind, said) => (error) => error instanceof kind && said.test(error.message);
  await assert.rejects(ask(connect(url), { top_p: 2 }), is(OpenAI.UnprocessableEntityError, /top_p/));
  await assert.rejects(ask(connect(url), { top_p: 2, stream: true }), is(OpenAI.UnprocessableEntityError, /top_p/));
  await assert.rejects(ask(connect(guarded, "wrong")), is(OpenAI.AuthenticationError, /not valid/));
  await assert.rejects(ask(connect(starting)), is(OpenAI.InternalServerError, /starting/));
  await busy(() => assert.rejects(ask(connect(guarded, key)), is(OpenAI.RateLimitError, /overloaded/)));
});

test("openai: a stream that is left is noticed", async () => {
  await noticed(async () => {
    const options = { model: "tgi", prompt: "x", max_tokens: 1900, ignore_eos: true, stream: true };
    for await (const _ of await connect(url).completions.create(options)) break;
  });
});

test("openai: a request that is aborted is noticed", async () => {
  await noticed(async () => {
    const leaving = new AbortController();
    const options = { model: "tgi", prompt: "x", max_tokens: 1900, ignore_eos: true };
    const asked = connect(url).completions.create(options, { signal: leaving.signal });
    setTimeout(() => leaving.abort(), 100);
    await assert.rejects(asked, OpenAI.APIUserAbortError);
  });
});
