// A request that was sent, as something to run elsewhere. The key is never part of it: both forms read it from
// the environment.

import { Literal, encode } from "./stream.js";

const KEY = "PENSTOCK_API_KEY";
// What OpenAI's client takes by name; the rest travels in its `extra_body`.
const KNOWN = new Set([
  "model",
  "messages",
  "stream",
  "stream_options",
  "temperature",
  "top_p",
  "max_tokens",
  "seed",
  "stop",
  "logprobs",
  "top_logprobs",
  "frequency_penalty",
  "presence_penalty",
]);

/** For a POSIX shell. */
export function curl(body, guarded) {
  const url = new URL("v1/chat/completions", document.baseURI).href;
  const lines = [`curl -N ${quoted(url)}`, "-H 'Content-Type: application/json'"];
  if (guarded) lines.push(`-H "Authorization: Bearer $${KEY}"`);
  lines.push(`--data-raw ${quoted(encode(body, "", "  "))}`);
  return `${lines.join(" \\\n  ")}\n`;
}

function quoted(text) {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

/** For Python, with OpenAI's client. */
export function python(body, guarded) {
  const url = new URL("v1", document.baseURI).href;
  const named = Object.entries(body).filter(([name]) => KNOWN.has(name));
  const extra = Object.entries(body).filter(([name]) => !KNOWN.has(name));
  if (extra.length) named.push(["extra_body", Object.fromEntries(extra)]);
  const members = named.map(([name, value]) => `    ${name}=${py(value, "    ")},\n`).join("");
  const key = guarded ? `os.environ["${KEY}"]` : `"unused"`;
  return `${guarded ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url=${py(url)}, api_key=${key})
stream = client.chat.completions.create(
${members})
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
`;
}

/** A value as Python writes it. The strings of JSON are strings of Python. */
function py(value, indent = "") {
  if (value instanceof Literal) return value.text;
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = `${indent}    `;
  if (Array.isArray(value)) {
    if (!value.some((one) => one !== null && typeof one === "object" && !(one instanceof Literal))) {
      return `[${value.map((one) => py(one)).join(", ")}]`;
    }
    return `[\n${value.map((one) => `${inner}${py(one, inner)},\n`).join("")}${indent}]`;
  }
  const members = Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${py(one, inner)}`);
  return `{${members.join(", ")}}`;
}
