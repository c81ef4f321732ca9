// `@huggingface/inference`: chats, whole and streamed, its errors.

import assert from "node:assert/strict";
import { test } from "node:test";

import { InferenceClient } from "@huggingface/inference";

import { ADD, ENDLESS, REPEAT, busy, collect, golden, guarded, key, noticed, starting, url, user } from "./servers.mjs";

// By default it asks again after a 503, at once and for ever.
const NO_RETRY = { retry_on_error: false };
const connect = (base, apiKey) => new InferenceClient(apiKey).endpoint(base);

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
