// What a request asks for beside its messages. The bounds are the server's own: they come from its OpenAPI
// document and /info, and the server has the last word. An empty field is not sent.

import { element } from "./draw.js";
import { Literal, decode } from "./stream.js";

const FIELDS = [
  { name: "adapter", label: "Adapter", kind: "choice" },
  { name: "system", label: "System prompt", kind: "text", rows: 3 },
  { name: "temperature", label: "Temperature", kind: "number" },
  { name: "top_p", label: "Top-p", kind: "number" },
  { name: "max_tokens", label: "Max tokens", kind: "whole" },
  { name: "seed", label: "Seed", kind: "whole" },
  { name: "stop", label: "Stop at", kind: "texts", rows: 2, hint: "one a line; \\n is a line end" },
  { name: "top_logprobs", label: "Token probabilities", kind: "whole", first: "5", hint: "alternatives; empty for none" },
  { name: "response_format", label: "Schema of the answer", kind: "schema", rows: 5, hint: "JSON schema; empty for any text" },
  { name: "tools", label: "Tools", kind: "tools", rows: 5, hint: "a JSON list of functions: name, description, parameters" },
  { name: "top_k", label: "Top-k", kind: "whole", more: true },
  { name: "min_p", label: "Min-p", kind: "number", more: true },
  { name: "typical_p", label: "Typical-p", kind: "number", more: true },
  { name: "repetition_penalty", label: "Repetition penalty", kind: "number", more: true },
  { name: "frequency_penalty", label: "Frequency penalty", kind: "number", more: true },
  { name: "presence_penalty", label: "Presence penalty", kind: "number", more: true },
];
const NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?$/;
const ESCAPES = { "\\n": "\n", "\\t": "\t", "\\r": "\r", "\\\\": "\\" };

export class Settings {
  constructor(form, changed) {
    this.form = form;
    this.inputs = {};
    this.schemas = {};
    this.refused = {}; // By name: what the server said of it in the newest request.
    const more = element("details", {}, element("summary", {}, "More"));
    for (const field of FIELDS) (field.more ? more : form).append(this.build(field));
    form.append(more);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", (event) => {
      const field = FIELDS.find((one) => this.inputs[one.name] === event.target);
      if (field) {
        delete this.refused[field.name];
        this.say(field, this.complaint(field));
      }
      changed();
    });
    this.reset();
  }

  build(field) {
    const id = `set-${field.name}`;
    const input = element(field.kind === "choice" ? "select" : field.rows ? "textarea" : "input", {
      id,
      rows: field.rows,
      dir: "auto",
      spellcheck: field.kind === "text",
      "aria-describedby": `${id}-bounds ${id}-wrong`,
    });
    if (field.kind === "number") input.inputMode = "decimal";
    if (field.kind === "whole") input.inputMode = "numeric";
    this.inputs[field.name] = input;
    return element(
      "div",
      { className: field.rows ? "field tall" : "field", hidden: field.kind === "choice" },
      element("label", { htmlFor: id }, field.label),
      element("span", { id: `${id}-bounds`, className: "bounds" }, field.hint ?? ""),
      input,
      element("span", { id: `${id}-wrong`, className: "wrong" }),
    );
  }

  /** Adapters that the server has loaded; without any nothing is to choose. What was chosen stays so where it is among them. */
  offer(adapters) {
    const input = this.inputs.adapter;
    const chosen = adapters.includes(input.value) ? input.value : "";
    const offered = [...input.options].slice(1).map((one) => one.value);
    if (offered.join() === adapters.join() && input.value === chosen) return;
    input.replaceChildren(new Option("none", ""), ...adapters.map((name) => new Option(name, name)));
    input.value = chosen;
    input.parentElement.hidden = !adapters.length;
  }

  /** `schema`: the properties of a chat request in the OpenAPI document; `info`: the answer of /info. */
  bounds(schema, info) {
    for (const field of FIELDS) {
      const own = { ...(schema?.[field.name] ?? this.schemas[field.name] ?? {}) };
      if (field.name === "max_tokens" && info) own.maximum = info.max_total_tokens - 1;
      this.schemas[field.name] = own;
      const [about, otherwise] = (own.description ?? "").split(". Default: ");
      const input = this.inputs[field.name];
      if (field.first && input.value === field.first) input.value = this.first(field);
      input.title = about;
      if (otherwise && field.kind !== "texts") input.placeholder = otherwise;
      const said = [within(field, own), field.hint].filter(Boolean).join("; ");
      document.getElementById(`set-${field.name}-bounds`).textContent = said;
      this.say(field, this.refused[field.name] ?? this.complaint(field));
    }
  }

  complaint(field) {
    const given = this.inputs[field.name].value.trim();
    const schema = this.schemas[field.name] ?? {};
    if (!given || field.kind === "text" || field.kind === "choice") return "";
    if (field.kind === "schema" || field.kind === "tools") return fault(given, field.kind === "tools");
    if (field.kind === "texts") {
      const most = schema.oneOf?.find((one) => one.maxItems !== undefined)?.maxItems;
      return stops(given).length > most ? `At most ${most}` : "";
    }
    const value = Number(given);
    if (!Number.isFinite(value)) return "Not a number";
    if (field.kind === "whole" && !Number.isInteger(value)) return "Not a whole number";
    const low = schema.exclusiveMinimum ? value <= schema.minimum : value < schema.minimum;
    return low || value > schema.maximum ? `Must be ${within(field, schema)}` : "";
  }

  /** Beside the field, in words; the server's words too. */
  say(field, words) {
    const input = this.inputs[field.name];
    document.getElementById(`set-${field.name}-wrong`).textContent = words;
    if (words) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
  }

  /** What the page itself can say of each field; forgets what the server said of an earlier request. */
  check() {
    this.refused = {};
    for (const field of FIELDS) this.say(field, this.complaint(field));
  }

  /** The field that a refusal is about, if it is one of these. */
  find(name) {
    const field = FIELDS.find((one) => one.name === (name === "max_completion_tokens" ? "max_tokens" : name));
    return field && { label: field.label, refuse: (words) => this.refuse(field, words), focus: () => this.focus(field) };
  }

  refuse(field, words) {
    this.refused[field.name] = words;
    this.say(field, words);
  }

  focus(field) {
    const input = this.inputs[field.name];
    const details = input.closest("details");
    if (details) details.open = true;
    input.focus();
  }

  /** What goes into a request, in the order of the form. */
  get adapter() {
    return this.inputs.adapter.value;
  }

  get system() {
    return this.inputs.system.value;
  }

  body() {
    const body = {};
    for (const { name, kind } of FIELDS) {
      const given = this.inputs[name].value;
      if (kind === "text" || kind === "choice" || !given.trim()) continue;
      if (kind === "texts") body[name] = stops(given);
      else if (kind === "schema") body[name] = format(given);
      else if (kind === "tools") body[name] = tools(given);
      else body[name] = literal(given.trim());
    }
    if (body.top_logprobs === undefined) return body;
    const { top_logprobs: top, ...rest } = body;
    return { ...rest, logprobs: true, top_logprobs: top };
  }

  get values() {
    return Object.fromEntries(Object.entries(this.inputs).map(([name, input]) => [name, input.value]));
  }

  set values(values) {
    for (const field of FIELDS) {
      const value = values[field.name];
      if (typeof value !== "string") continue;
      const input = this.inputs[field.name];
      // Which ones there are the server says later.
      if (field.kind === "choice" && value) input.append(new Option(value, value));
      input.value = value;
    }
    this.check();
  }

  reset() {
    this.values = Object.fromEntries(FIELDS.map((field) => [field.name, this.first(field)]));
  }

  /** What stands in a field at first: no more than the server takes. */
  first({ name, first = "" }) {
    const most = this.schemas[name]?.maximum;
    return Number(first) > most ? String(most || "") : first;
  }
}

/** As it was typed where JSON has such a number; what is no number at all is for the server to refuse. */
function literal(given) {
  if (NUMBER.test(given)) return new Literal(given);
  const value = Number(given);
  return Number.isFinite(value) ? new Literal(String(value)) : given;
}

/** What of a text keeps it from being JSON of this kind, in words. */
function fault(given, list) {
  try {
    const parsed = JSON.parse(given);
    if (list && !Array.isArray(parsed)) return "Not a list";
    return list || (parsed !== null && typeof parsed === "object") ? "" : "Not a schema";
  } catch (error) {
    return `Not JSON: ${error.message}`;
  }
}

/** What cannot be read is sent as it is, for the server to refuse. */
function format(given) {
  if (fault(given, false)) return given;
  return { type: "json_schema", json_schema: { name: "answer", schema: decode(given) } };
}

function tools(given) {
  if (fault(given, true)) return given;
  return decode(given).map((one) => (one?.type ? one : { type: "function", function: one }));
}

function stops(given) {
  return given
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => line.replace(/\\[ntr\\]/g, (escape) => ESCAPES[escape]));
}

function within({ kind }, { minimum, maximum, exclusiveMinimum }) {
  if (kind !== "number" && kind !== "whole") return "";
  const large = maximum === undefined || maximum >= 2 ** 31 - 1;
  if (minimum === undefined) return "";
  if (large) return exclusiveMinimum ? `above ${minimum}` : `${minimum} or more`;
  return exclusiveMinimum ? `above ${minimum}, up to ${maximum}` : `${minimum} to ${maximum}`;
}
