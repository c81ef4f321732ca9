// Speaks to /v1/chat/completions: the request's bytes, its events as they come, and what can go wrong.

/** A number as the user typed it: seeds do not fit into JavaScript's numbers. */
export class Literal {
  constructor(text) {
    this.text = text;
  }
}

/**
 * A value from JSON whose numbers are Literals, since those of JavaScript have 53 bits. A browser that does not tell how a
 * number was written (Safari before 18.4, Firefox before 135) gives its own numbers.
 */
export function decode(text) {
  return JSON.parse(text, (_, value, told) =>
    typeof value === "number" && told?.source !== undefined ? new Literal(told.source) : value,
  );
}

/** The server said no, before its first token or in the middle. */
export class Refused extends Error {
  constructor(status, message, { field = null, retryAfter = null } = {}) {
    super(message);
    Object.assign(this, { status, field, retryAfter });
  }
}

/** Nothing came, or no more came. */
export class Broken extends Error {}

/** JSON, the members in their order, literals as they were typed. */
export function encode(value, indent = "", step = "") {
  if (value instanceof Literal) return value.text;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const list = Array.isArray(value);
  const inner = indent + step;
  const members = list
    ? value.map((one) => encode(one, inner, step))
    : Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}:${step && " "}${encode(one, inner, step)}`);
  const [open, close] = list ? "[]" : "{}";
  if (!step || members.length === 0) return open + members.join(",") + close;
  return `${open}\n${inner}${members.join(`,\n${inner}`)}\n${indent}${close}`;
}

export function authorization(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

/** The chunks of an answer. Ends well only when the server has said that it is complete. */
export async function* chat(body, { key, signal }) {
  let response;
  try {
    response = await fetch("v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json", ...authorization(key) },
      body: encode(body),
      cache: "no-store",
      signal,
    });
  } catch (error) {
    throw signal.aborted ? error : new Broken("The server cannot be reached.");
  }
  if (!response.ok) throw await refusal(response);
  try {
    for await (const data of events(response.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) {
        throw new Refused(chunk.error.http_status_code ?? 500, chunk.error.message, { field: chunk.error.param });
      }
      yield chunk;
    }
  } catch (error) {
    throw signal.aborted || error instanceof Refused ? error : new Broken("The connection broke off.");
  }
  throw new Broken("The connection ended before the answer did.");
}

async function refusal(response) {
  let said = {};
  try {
    said = (await response.json()).error ?? {};
  } catch {
    // Not this server's words: a proxy's, perhaps.
  }
  const message = typeof said === "string" ? said : (said.message ?? response.statusText);
  const after = Number.parseInt(response.headers.get("Retry-After"), 10);
  return new Refused(response.status, message, {
    field: said.param ?? null,
    retryAfter: Number.isNaN(after) ? null : after,
  });
}

/** The data of server-sent events. Comments, which keep the connection alive, are passed over. */
export async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data:")) {
          data.push(line.slice(line[5] === " " ? 6 : 5));
        } else if (line === "" && data.length) {
          yield data.join("\n");
          data = [];
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
