// The turns of a conversation and how they are drawn. A turn is what the user said and what came of it; its text
// is never thrown away because something failed.

import { draw, element } from "./draw.js";
import { check } from "./schema.js";
import { decode, encode } from "./stream.js";

const clock = () => performance.now() / 1000;

/** An answer as it comes. */
export class Answer {
  /** As it is drawn: with its reasoning, in the marks by which `markdown.js` knows it, before what it says. */
  text = "";
  content = "";
  reasoning = "";
  /** {id, name, arguments}, and the result that was typed in */
  calls = [];
  /** {end, probability, likely}: tokens that spell a piece of the text together are one entry. */
  tokens = [];
  /** waiting, writing, done, stopped, failed */
  state = "waiting";
  /** The request's body. */
  sent = null;
  finish = null;
  usage = null;
  acceptedDrafts = 0;
  warnings = [];
  error = null;
  began = clock();
  firstAt = null;
  lastAt = null;
  #pending = [];

  get underWay() {
    return this.state === "waiting" || this.state === "writing";
  }

  take(chunk) {
    this.warnings.push(...(chunk.warnings ?? []));
    if (chunk.usage) this.usage = chunk.usage;
    this.acceptedDrafts = chunk.accepted_drafts ?? this.acceptedDrafts;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    if (choice.finish_reason) this.finish = choice.finish_reason;
    this.#pending.push(...(choice.logprobs?.content ?? []));
    const { content, reasoning, reasoning_content: thought = reasoning, tool_calls: calls } = choice.delta ?? {};
    for (const call of calls ?? []) this.#call(call);
    const text = this.#marked(thought, content);
    if (!text) return;
    this.firstAt ??= clock();
    this.lastAt = clock();
    this.state = "writing";
    this.text += text;
    if (this.#pending.length) {
      const likely = this.#pending.splice(0);
      const probability = Math.exp(likely.reduce((sum, one) => sum + one.logprob, 0));
      this.tokens.push({ end: this.text.length, probability, likely });
    }
  }

  /** What there is to remember of it. */
  get words() {
    return { text: this.text, content: this.content, reasoning: this.reasoning, calls: this.calls, schema: this.schema };
  }

  set words({ text = "", content = text, reasoning = "", calls = [], schema = null }) {
    Object.assign(this, { text, content, reasoning, calls, schema });
  }

  /** What the answer was asked to be. */
  schema = null;

  get said() {
    return Boolean(this.text || this.calls.length);
  }

  /** What it says; its reasoning where that is all there is. */
  get plain() {
    return this.content || this.reasoning;
  }

  #call({ index = 0, id, function: { name, arguments: more = "" } = {} }) {
    this.firstAt ??= clock();
    this.lastAt = clock();
    this.state = "writing";
    this.calls[index] ??= { id, name, arguments: "", result: "" };
    this.calls[index].arguments += more;
  }

  /** The answer as JSON, and whether it is what its schema says; null where none was asked for. */
  get checked() {
    if (!this.schema || this.underWay || !this.content) return null;
    let value;
    try {
      value = JSON.parse(this.content);
    } catch {
      return { words: "This is not whole JSON.", pretty: null };
    }
    return { words: verdict(this.schema, value), pretty: pretty(this.content) };
  }

  /** As a conversation has it. */
  get message() {
    const calls = this.calls.map(({ id, name, arguments: given }) => ({
      id,
      type: "function",
      function: { name, arguments: given },
    }));
    return {
      content: calls.length && !this.content ? null : this.content,
      ...(this.reasoning ? { reasoning_content: this.reasoning } : {}),
      ...(calls.length ? { tool_calls: calls } : {}),
    };
  }

  #marked(thought, content) {
    if (thought) {
      const opens = this.reasoning ? "" : "<think>";
      this.reasoning += thought;
      return opens + thought;
    }
    if (!content) return "";
    const closes = this.reasoning && !this.content ? "</think>" : "";
    this.content += content;
    return closes + content;
  }

  end(state, error = null) {
    this.state = state;
    this.error = error;
  }

  /** In a few words, when it is over. */
  get summary() {
    const parts = [];
    if (this.usage) {
      const count = this.usage.completion_tokens;
      const guessed = this.acceptedDrafts;
      parts.push(`${count} token${count === 1 ? "" : "s"}${guessed ? ` (${guessed} guessed)` : ""}`);
      const seconds = this.lastAt - this.firstAt;
      if (count > 1 && seconds > 0) parts.push(`${((count - 1) / seconds).toFixed(1)} per second`);
    }
    if (this.firstAt) parts.push(`first after ${(this.firstAt - this.began).toFixed(2)} s`);
    if (this.state === "stopped") parts.push("stopped");
    if (this.finish === "length") parts.push("cut at its length");
    return parts.join(" · ");
  }
}

/** JSON in lines; what is none stays as it is. */
function pretty(text) {
  try {
    return encode(decode(text), "", "  ");
  } catch {
    return text;
  }
}

/** Whether `value` is what `schema` says, in words. No schema is so odd that the page would end with it. */
function verdict(schema, value) {
  try {
    const { wrong, unseen } = check(schema, value);
    const not = unseen.length ? ` Not looked at: ${unseen.join(", ")}.` : "";
    return wrong ? `It is not what the schema says: ${wrong}.` : `It is what the schema says.${not}`;
  } catch (error) {
    return `It could not be checked: ${error.message}.`;
  }
}

/** One turn on the page. `act(name, turn, button)` is called for its buttons. */
export class Turn {
  #asked;
  #answered;
  #text;
  #note;
  #error;
  #summary;
  #calls;
  #check;
  #buttons = {};

  /** `results`: what calls of the answer before gave, {id, content}, instead of something that the user said. */
  constructor(said, act, results = null) {
    this.said = said;
    this.results = results;
    this.answer = null;
    this.act = act;
    this.#text = element("div", { className: "text", role: "group", tabIndex: -1, dir: "auto" });
    this.#note = element("p", { className: "note", role: "status" });
    this.#error = element("div", { className: "error", role: "alert" });
    this.#summary = element("span", { className: "summary" });
    this.#calls = element("div", { className: "calls" });
    this.#check = element("div", { className: "checked" });
    const button = (name, label) => {
      const made = element("button", { type: "button", className: "act" }, label);
      made.dataset.act = name;
      made.addEventListener("click", () => act(name, this, made));
      this.#buttons[name] = made;
      return made;
    };
    this.#asked = element(
      "article",
      { className: "asked", "aria-label": results ? "Results" : "You" },
      element("div", { className: "said", dir: "auto" }, said),
      element("div", { className: "acts" }, button("edit", "Edit")),
    );
    this.#answered = element(
      "article",
      { className: "answered", "aria-label": "Answer" },
      this.#text,
      this.#calls,
      this.#check,
      this.#note,
      this.#error,
      element(
        "div",
        { className: "acts" },
        button("copy", "Copy"),
        button("curl", "Copy as curl"),
        button("python", "Copy as Python"),
        button("retry", "Try again"),
        this.#summary,
      ),
    );
    this.element = element("div", { className: "turn" }, this.#asked, this.#answered);
  }

  /** `last`: it is the newest, which may be edited and tried again. `note`: what to say while nothing comes. */
  show({ last, note = "" }) {
    const { answer } = this;
    const underWay = answer?.underWay ?? false;
    this.#answered.setAttribute("aria-busy", String(underWay));
    this.#answered.dataset.state = answer?.state ?? "none";
    if (answer) draw(this.#text, answer);
    this.#showCalls(last && !underWay);
    this.#showCheck(underWay ? null : answer?.checked);
    const reachable = !underWay && (answer?.tokens.length ?? 0) > 0;
    this.#text.tabIndex = reachable ? 0 : -1;
    if (reachable) this.#text.setAttribute("aria-label", "Answer. The arrow keys go from token to token.");
    else this.#text.removeAttribute("aria-label");
    this.#write(this.#note, underWay ? note : (answer?.warnings ?? []).map((one) => `The server says: ${one}.`).join(" "));
    this.#explain(underWay ? null : answer?.error);
    this.#summary.textContent = answer && !underWay && answer.said ? answer.summary : "";
    const may = {
      edit: last && !this.results,
      copy: !underWay && answer?.text,
      curl: !underWay && answer?.sent,
      python: !underWay && answer?.sent,
      retry: last && !underWay,
    };
    for (const [name, allowed] of Object.entries(may)) this.#buttons[name].hidden = !allowed;
    // It keeps its place, so that nothing moves when the answer is complete.
    this.#buttons.edit.disabled = underWay;
  }

  /** Each call with a place for its result; `open`: it may be sent. */
  #showCalls(open) {
    const calls = this.answer?.calls ?? [];
    const shape = JSON.stringify([calls.map(({ name, arguments: given }) => [name, given]), open]);
    if (this.#calls.dataset.shape === shape) return;
    this.#calls.dataset.shape = shape;
    const drawn = calls.map((call, index) => {
      const id = `result-${call.id}-${index}`;
      const result = element("textarea", { id, rows: 2, dir: "auto", value: call.result ?? "", disabled: !open });
      result.addEventListener("input", () => (call.result = result.value));
      return element(
        "div",
        { className: "call" },
        element("p", {}, "Calls ", element("code", {}, call.name)),
        element("pre", { dir: "ltr", tabIndex: 0 }, element("code", {}, pretty(call.arguments))),
        element("label", { htmlFor: id }, `Result of ${call.name}`),
        result,
      );
    });
    if (calls.length && open) {
      const send = element("button", { type: "button", className: "act" }, calls.length > 1 ? "Send results" : "Send result");
      send.addEventListener("click", () => this.act("results", this, send));
      drawn.push(send);
    }
    this.#calls.replaceChildren(...drawn);
  }

  #showCheck(checked) {
    const words = checked?.words ?? "";
    if (this.#check.dataset.words === words) return;
    this.#check.dataset.words = words;
    this.#check.replaceChildren();
    if (!checked) return;
    this.#check.append(element("p", { role: "status" }, words));
    if (checked.pretty !== null) {
      const code = element("pre", { dir: "ltr", tabIndex: 0 }, element("code", {}, checked.pretty));
      this.#check.append(element("details", {}, element("summary", {}, "In lines"), code));
    }
  }

  #write(place, words) {
    if (place.textContent !== words) place.textContent = words;
    place.hidden = !words;
  }

  #explain(error) {
    this.#error.hidden = !error;
    const words = error?.words ?? "";
    if (this.#error.firstChild?.textContent === words) return;
    this.#error.replaceChildren();
    if (!error) return;
    this.#error.append(element("p", { dir: "auto" }, words));
    if (error.field) {
      const go = element("button", { type: "button", className: "act" }, `Go to ${error.field}`);
      go.addEventListener("click", () => this.act("field", this, go));
      this.#error.append(go);
    }
  }
}
