// What the tests of the clients for Node share. Servers, and the recorder of golden requests, are started by
// `../../test_clients.py`, which copies these files to where the packages are installed.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

export const url = process.env.PENSTOCK_URL;
export const guarded = process.env.PENSTOCK_GUARDED_URL;
export const key = process.env.PENSTOCK_KEY;
export const starting = process.env.PENSTOCK_STARTING_URL;
export const thinking = process.env.PENSTOCK_THINKING_URL;
const recorder = process.env.PENSTOCK_RECORDER;

export const ADD = "What is 2 + 3?";
export const REPEAT = "Repeat: apple river stone";

export const user = (question) => [{ role: "user", content: question }];
export const asText = (question) => `<|im_start|>user\n${question}<|im_end|>\n<|im_start|>assistant\n`;

// For clients that know TGI's sampling and nothing more: at this temperature the end of the text is as unlikely as
// any other token, and this seed's random numbers do not fall on it (see conftest.py).
export const ENDLESS = { do_sample: true, seed: 500, temperature: 100, max_new_tokens: 1900 };

/** What makes the model of `thinking` give this answer: `prompts.echoed`. */
export async function echoed(answer) {
  const headers = { "content-type": "application/json" };
  const asked = await fetch(`${thinking}/tokenize`, { method: "POST", headers, body: JSON.stringify({ inputs: answer }) });
  return answer + "~".repeat(96 - (await asked.json()).length);
}

/** A test whose requests are recorded, and compared with `golden/node.json`. */
export function golden(name, body) {
  test(name, async () => {
    await fetch(`${recorder}/-/record`, { method: "POST", body: name });
    await body(recorder);
    await fetch(`${recorder}/-/stop`, { method: "POST", body: "" });
  });
}

/** How many sequences were given up, and how many requests were answered or dropped. */
async function ended() {
  const text = await (await fetch(`${url}/metrics`)).text();
  const ways = [/^penstock_cancelled_requests[ {]/, /^tgi_request_success[ {]/, /^tgi_request_failure{.*"dropped"/];
  return ways.map((name) =>
    text
      .split("\n")
      .filter((line) => name.test(line))
      .reduce((sum, line) => sum + Number(line.split(" ").at(-1)), 0),
  );
}

async function until(condition, what) {
  const deadline = Date.now() + 30_000;
  while (!(await condition())) {
    assert(Date.now() < deadline, `waited in vain for ${what}`);
    await sleep(20);
  }
}

/**
 * Fails unless the server sees the request be given up that `leave` makes and leaves. It is called again where that one
 * had all its tokens before its client left it, as it may on a busy machine.
 */
export async function noticed(leave) {
  const [cancelled] = await ended();
  for (let attempt = 0; attempt < 5; attempt++) {
    const before = await ended();
    await leave();
    let after;
    await until(async () => String((after = await ended())) !== String(before), "the server to notice that its client has left");
    if (after[0] > cancelled) return;
  }
  throw new Error("5 requests had all their tokens before their clients left");
}

/** Runs `body` while somebody else's request occupies the one place of the guarded server. */
export async function busy(body) {
  const occupied = new AbortController();
  const request = { prompt: "For ever", max_tokens: 1900, ignore_eos: true, stream: true, logprobs: 5 };
  await until(async () => {
    const answer = await fetch(`${guarded}/v1/completions`, {
      method: "POST",
      headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
      body: JSON.stringify(request),
      signal: occupied.signal,
    });
    return answer.ok;
  }, "the one place of the server");
  try {
    await body();
  } finally {
    occupied.abort();
  }
}

export async function collect(stream) {
  const all = [];
  for await (const one of stream) all.push(one);
  return all;
}
