// The Vercel AI SDK: `@ai-sdk/openai-compatible`, and `@ai-sdk/openai` as chat and as completion.

import assert from "node:assert/strict";
import { test } from "node:test";

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateObject, generateText, jsonSchema, stepCountIs, streamObject, streamText, tool } from "ai";

import { ADD, REPEAT, asText, busy, collect, echoed, golden, guarded, key, noticed, starting, thinking, url } from "./servers.mjs";

const compatible = (base, apiKey = "unused") =>
  createOpenAICompatible({ name: "penstock", baseURL: `${base}/v1`, apiKey, includeUsage: true, supportsStructuredOutputs: true });
// Its default is OpenAI's responses API; `.chat` and `.completion` are the older ones.
const openai = (base, apiKey = "unused") => createOpenAI({ baseURL: `${base}/v1`, apiKey });

const MODELS = {
  compatible: (base, apiKey) => compatible(base, apiKey)("tgi"),
  "compatible completion": (base, apiKey) => compatible(base, apiKey).completionModel("tgi"),
  openai: (base, apiKey) => openai(base, apiKey).chat("tgi"),
  "openai responses": (base, apiKey) => openai(base, apiKey).responses("tgi"),
};
// Those that know tools.
const CHATS = ["compatible", "openai", "openai responses"].map((name) => MODELS[name]);

for (const [name, model] of Object.entries(MODELS)) {
  golden(`ai: a text of ${name}`, async (at) => {
    const answer = await generateText({ model: model(at), prompt: ADD, maxOutputTokens: 8, temperature: 0, maxRetries: 0 });
    assert.equal(typeof answer.text, "string");
    assert(answer.usage.outputTokens > 0 && answer.usage.outputTokens <= 8);
  });

  golden(`ai: a stream of ${name}`, async (at) => {
    const options = { model: model(at), prompt: REPEAT, maxOutputTokens: 8, temperature: 0, maxRetries: 0 };
    const streamed = streamText(options);
    const text = (await collect(streamed.textStream)).join("");
    assert.equal(text, (await generateText(options)).text);
    assert((await streamed.usage).outputTokens > 0);
  });

  golden(`ai: every option of ${name}`, async (at) => {
    const options = {
      frequencyPenalty: 0.5,
      maxOutputTokens: 6,
      presencePenalty: 0.5,
      seed: 11,
      stopSequences: ["never", "seen"],
      temperature: 0.7,
      topP: 0.9,
    };
    const ask = () => generateText({ model: model(at), system: "Answer briefly.", prompt: ADD, maxRetries: 0, ...options });
    assert.equal((await ask()).text, (await ask()).text);
  });

  test(`ai: errors of ${name} have status and message`, async () => {
    const ask = (at, apiKey, options = {}) =>
      generateText({ model: model(at, apiKey), prompt: "x", maxOutputTokens: 1, maxRetries: 0, ...options });
    const is = (status, said) => (error) =>
      APICallError.isInstance(error) && error.statusCode === status && said.test(error.message);
    await assert.rejects(ask(url, "unused", { topP: 2 }), is(422, /top_p/));
    await assert.rejects(ask(guarded, "wrong"), is(401, /not valid/));
    await assert.rejects(ask(starting), is(503, /starting/));
    await busy(() => assert.rejects(ask(guarded, key), is(429, /overloaded/)));
  });
}

golden("ai: tools", async (at) => {
  const schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
  const execute = async ({ city }) => ({ temperature: city === "Paris" ? 21 : 0, condition: "sunny" });
  const tools = { get_weather: tool({ description: "Get the weather in a city", inputSchema: jsonSchema(schema), execute }) };
  const options = { prompt: "What is the weather in Paris?", tools, temperature: 0, maxRetries: 0, stopWhen: stepCountIs(3) };
  for (const model of CHATS) {
    const whole = await generateText({ model: model(at), ...options });
    assert.match(whole.text, /21/);
    assert.deepEqual(whole.steps[0].toolCalls[0].input, { city: "Paris" });
    const streamed = streamText({ model: model(at), ...options });
    let text = "";
    for await (const part of streamed.textStream) text += part;
    assert.equal(text, whole.text);
  }
});

test("ai: a second turn of openai responses needs `store: false`", async () => {
  const ask = async (providerOptions) => {
    const options = { model: openai(url)("tgi"), temperature: 0, maxRetries: 0, maxOutputTokens: 8, providerOptions };
    const question = { role: "user", content: ADD };
    const first = await generateText({ ...options, messages: [question] });
    return generateText({ ...options, messages: [question, ...first.response.messages, question] });
  };
  const refused = (error) =>
    APICallError.isInstance(error) && error.statusCode === 422 && error.message.includes("told `store: false`");
  await assert.rejects(ask(undefined), refused);
  assert.equal(typeof (await ask({ openai: { store: false } })).text, "string");
});

test("ai: openai responses show reasoning as a summary and send it back", async () => {
  const [thought, said] = ["Is it raining there?", "It is sunny in Paris."];
  const question = { role: "user", content: await echoed(`<think>\n${thought}\n</think>\n\n${said}`) };
  const sent = [];
  // The SDK leaves out the temperature of models that reason.
  const recording = (to, init) => {
    sent.push({ ...JSON.parse(init.body), temperature: 0 });
    return fetch(to, { ...init, body: JSON.stringify(sent.at(-1)) });
  };
  const model = createOpenAI({ baseURL: `${thinking}/v1`, apiKey: "unused", fetch: recording })("tgi");
  const providerOptions = { openai: { store: false, forceReasoning: true, reasoningSummary: "auto" } };
  const options = { model, maxRetries: 0, maxOutputTokens: 2048, providerOptions };
  const whole = await generateText({ ...options, messages: [question] });
  assert.deepEqual([whole.reasoningText, whole.text], [thought, said]);
  const streamed = streamText({ ...options, messages: [question] });
  const parts = (await collect(streamed.fullStream)).filter((part) => part.type === "reasoning-delta");
  assert(parts.length > 1);
  assert.equal(parts.map((part) => part.text).join(""), thought);
  for (const { messages } of [whole.response, await streamed.response]) {
    const next = { role: "user", content: await echoed("Until the evening.") };
    const answer = await generateText({ ...options, messages: [question, ...messages, next] });
    assert.equal(answer.text, "Until the evening.");
    const items = sent.at(-1).input.filter((item) => item.type === "reasoning");
    assert.deepEqual(items.map((item) => item.summary), [[{ type: "summary_text", text: thought }]]);
  }
});

test("ai: openai responses search for tools on the client", async () => {
  const schema = (name) => ({ type: "object", properties: { [name]: { type: "string" } }, required: [name] });
  const calling = (name, input) => echoed(`<tool_call>\n{"name": "${name}", "arguments": ${input}}\n</tool_call>`);
  const search = openai(thinking).tools.toolSearch({ execution: "client", description: "Finds tools", parameters: schema("goal") });
  const weather = tool({
    description: "Get the weather in a city",
    inputSchema: jsonSchema(schema("city")),
    providerOptions: { openai: { deferLoading: true } },
  });
  const options = {
    model: openai(thinking)("tgi"),
    tools: { search, get_weather: weather },
    temperature: 0,
    maxRetries: 0,
    maxOutputTokens: 2048,
    providerOptions: { openai: { store: false } },
  };
  const question = { role: "user", content: await calling("tool_search", '{"goal": "weather"}') };
  const streamed = streamText({ ...options, messages: [question] });
  const parts = (await collect(streamed.fullStream)).filter((part) => part.type === "tool-call");
  const whole = await generateText({ ...options, messages: [question] });
  for (const [call] of [parts, whole.toolCalls]) {
    assert.equal(call.toolName, "search");
    assert.deepEqual(call.input, { arguments: { goal: "weather" }, call_id: call.toolCallId });
  }
  const [{ toolCallId }] = whole.toolCalls;
  const found = { type: "function", name: "get_weather", description: "Weather", defer_loading: true, parameters: schema("city") };
  const output = { type: "json", value: { tools: [found] } };
  const result = { role: "tool", content: [{ type: "tool-result", toolCallId, toolName: "search", output }] };
  const next = { role: "user", content: await calling("get_weather", '{"city": "Oslo"}') };
  const answer = await generateText({ ...options, messages: [question, ...whole.response.messages, result, next] });
  assert.deepEqual(answer.toolCalls.map((call) => [call.toolName, call.input]), [["get_weather", { city: "Oslo" }]]);
});

golden("ai: an object of a schema", async (at) => {
  const schema = jsonSchema({
    type: "object",
    properties: { mood: { enum: ["good", "bad"] } },
    required: ["mood"],
    additionalProperties: false,
  });
  for (const model of CHATS) {
    const options = { model: model(at), schema, prompt: "How are you?", temperature: 0, maxRetries: 0 };
    const { object } = await generateObject(options);
    assert(["good", "bad"].includes(object.mood));
    const streamed = streamObject(options);
    const parts = await collect(streamed.partialObjectStream);
    assert.deepEqual(parts.at(-1), object);
    assert.notDeepEqual(parts[0], object);
    assert.deepEqual(await streamed.object, object);
    assert((await streamed.usage).outputTokens > 0);
  }
});

test("ai: a stream that is aborted is noticed", async () => {
  await noticed(async () => {
    const leaving = new AbortController();
    const streamed = streamText({
      model: compatible(url)("tgi"),
      prompt: asText(ADD),
      maxOutputTokens: 1900,
      maxRetries: 0,
      providerOptions: { penstock: { ignore_eos: true } },
      abortSignal: leaving.signal,
    });
    for await (const _ of streamed.textStream) leaving.abort();
  });
});
