// `@huggingface/inference`: texts and chats, whole and streamed, its errors. It sends texts to `/v1/completions`.

import assert from "node:assert/strict";
import { test } from "node:test";

import { InferenceClient } from "@huggingface/inference";

import { ADD, ENDLESS, REPEAT, asText, busy, collect, golden, guarded, key, noticed, starting, url, user } from "./servers.mjs";

// By default it asks again after a 503, at once and for ever.
const NO_RETRY = { retry_on_error: false };
const connect = (base, apiKey) => new InferenceClient(apiKey).endpoint(base);

const OPTIONS = {
  best_of: 2,
  frequency_penalty: 0.5,
  max_new_tokens: 6,
  repetition_penalty: 1.2,
  seed: 11,
  stop: ["never", "seen"],
  temperature: 0.7,
  top_k: 5,
  top_p: 0.9,
};

golden("huggingface: a text", async (at) => {
  const answer = await connect(at).textGeneration({ inputs: asText(ADD), parameters: { max_new_tokens: 8 } });
  assert(answer.generated_text);
});

golden("huggingface: a text with every option", async (at) => {
  const ask = () => connect(at).textGeneration({ inputs: asText(ADD), parameters: OPTIONS });
  assert.equal((await ask()).generated_text, (await ask()).generated_text);
});

golden("huggingface: a stream", async (at) => {
  const asked = { inputs: asText(REPEAT), parameters: { max_new_tokens: 8, temperature: 0 } };
  const pieces = await collect(connect(at).textGenerationStream(asked));
  const whole = await connect(at).textGeneration(asked);
  assert.equal(pieces.map((piece) => piece.choices[0].text).join(""), whole.generated_text);
});

golden("huggingface: a wrong option", async (at) => {
  const asked = connect(at).textGeneration({ inputs: "x", parameters: { top_p: 2 } });
  await assert.rejects(asked, (error) => error.httpResponse.status === 422 && /top_p/.test(JSON.stringify(error.httpResponse.body)));
});

golden("huggingface: a chat", async (at) => {
  const answer = await connect(at).chatCompletion({ messages: user(ADD), max_tokens: 8, temperature: 0 });
  assert(answer.choices[0].message.content);
  assert(answer.usage.completion_tokens <= 8);
});

golden("huggingface: a chat with every option", async (at) => {
  const options = {
    frequency_penalty: 0.5,
    logprobs: true,
    max_tokens: 6,
    n: 1,
    presence_penalty: 0.5,
    seed: 11,
    stop: ["never", "seen"],
    temperature: 0.7,
    top_logprobs: 3,
    top_p: 0.9,
  };
  const ask = () => connect(at).chatCompletion({ model: "tgi", messages: user(ADD), ...options });
  const [first, second] = [await ask(), await ask()];
  assert.equal(first.choices[0].message.content, second.choices[0].message.content);
});

golden("huggingface: a chat stream", async (at) => {
  const options = { model: "tgi", messages: user(REPEAT), max_tokens: 8, temperature: 0 };
  const chunks = await collect(connect(at).chatCompletionStream(options));
  const whole = await connect(at).chatCompletion(options);
  const text = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
  assert.equal(text, whole.choices[0].message.content);
});

golden("huggingface: tools", async (at) => {
  const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
  const tools = [{ type: "function", function: { name: "get_weather", description: "Get the weather in a city", parameters } }];
  const messages = user("What is the weather in Paris?");
  const options = { model: "tgi", messages, tools, temperature: 0, max_tokens: 60 };
  const [{ message, finish_reason }] = (await connect(at).chatCompletion(options)).choices;
  assert.equal(finish_reason, "tool_calls");
  const [call] = message.tool_calls;
  assert.deepEqual(JSON.parse(call.function.arguments), { city: "Paris" });
  const parts = (await collect(connect(at).chatCompletionStream(options))).flatMap(
    (chunk) => chunk.choices[0]?.delta.tool_calls ?? [],
  );
  assert.equal(parts[0].function.name, "get_weather");
  assert.equal(parts.map((part) => part.function.arguments).join(""), call.function.arguments);
  const result = { role: "tool", tool_call_id: call.id, content: '{"temperature": 21, "condition": "sunny"}' };
  const again = { ...options, messages: [...messages, message, result] };
  const answer = (await connect(at).chatCompletion(again)).choices[0].message.content;
  assert.match(answer, /21/);
  const chunks = await collect(connect(at).chatCompletionStream(again));
  assert.equal(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join(""), answer);
});

test("huggingface: errors have status and message", async () => {
  // The message of a whole chat's error it leaves in the body.
  const is = (status, said) => (error) =>
    error.httpResponse.status === status && said.test(JSON.stringify(error.httpResponse.body));
  const text = (client) => client.textGeneration({ inputs: "x", parameters: { max_new_tokens: 1 } }, NO_RETRY);
  const chat = (client) => client.chatCompletion({ messages: user("x"), max_tokens: 1 }, NO_RETRY);
  const stream = (client) => collect(client.chatCompletionStream({ messages: user("x"), max_tokens: 1 }, NO_RETRY));
  for (const ask of [text, chat, stream]) {
    await assert.rejects(ask(connect(guarded, "wrong")), is(401, /not valid/));
    await assert.rejects(ask(connect(starting)), is(503, /starting/));
    await busy(() => assert.rejects(ask(connect(guarded, key)), is(429, /overloaded/)));
  }
});

test("huggingface: a stream that is aborted is noticed", async () => {
  // Leaving the loop is not enough: the client then keeps the connection.
  await noticed(async () => {
    const leaving = new AbortController();
    const stream = connect(url).textGenerationStream({ inputs: "x", parameters: ENDLESS }, { signal: leaving.signal });
    await assert.rejects(async () => {
      for await (const _ of stream) leaving.abort();
    });
  });
});
