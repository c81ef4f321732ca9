// The turns of a conversation and how they are drawn. A turn is what the user said and what came of it; its text
// is never thrown away because something failed.

import { draw, element } from "./draw.js";

const clock = () => performance.now() / 1000;

/** An answer as it comes. */
export class Answer {
  /** As it is drawn: with its reasoning, in the marks by which `markdown.js` knows it, before what it says. */
  text = "";
  content = "";
  reasoning = "";
  /** {end, probability, likely}: tokens that spell a piece of the text together are one entry. */
  tokens = [];
  /** waiting, writing, done, stopped, failed */
  state = "waiting";
  /** The request's body. */
  sent = null;
  finish = null;
  usage = null;
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
    const choice = chunk.choices?.[0];
    if (!choice) return;
    if (choice.finish_reason) this.finish = choice.finish_reason;
    this.#pending.push(...(choice.logprobs?.content ?? []));
    const { content, reasoning_content: thought } = choice.delta ?? {};
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
    return { text: this.text, content: this.content, reasoning: this.reasoning };
  }

  set words({ text = "", content = text, reasoning = "" }) {
    Object.assign(this, { text, content, reasoning });
  }

  /** As a conversation has it. */
  get message() {
    return { content: this.content, ...(this.reasoning ? { reasoning_content: this.reasoning } : {}) };
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
      parts.push(`${count} token${count === 1 ? "" : "s"}`);
      const seconds = this.lastAt - this.firstAt;
      if (count > 1 && seconds > 0) parts.push(`${((count - 1) / seconds).toFixed(1)} per second`);
    }
    if (this.firstAt) parts.push(`first after ${(this.firstAt - this.began).toFixed(2)} s`);
    if (this.state === "stopped") parts.push("stopped");
    if (this.finish === "length") parts.push("cut at its length");
    return parts.join(" · ");
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
  #buttons = {};

  constructor(said, act) {
    this.said = said;
    this.answer = null;
    this.act = act;
    this.#text = element("div", { className: "text", role: "group", tabIndex: -1, dir: "auto" });
    this.#note = element("p", { className: "note", role: "status" });
    this.#error = element("div", { className: "error", role: "alert" });
    this.#summary = element("span", { className: "summary" });
    const button = (name, label) => {
      const made = element("button", { type: "button", className: "act" }, label);
      made.dataset.act = name;
      made.addEventListener("click", () => act(name, this, made));
      this.#buttons[name] = made;
      return made;
    };
    this.#asked = element(
      "article",
      { className: "asked", "aria-label": "You" },
      element("div", { className: "said", dir: "auto" }, said),
      element("div", { className: "acts" }, button("edit", "Edit")),
    );
    this.#answered = element(
      "article",
      { className: "answered", "aria-label": "Answer" },
      this.#text,
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
    const reachable = !underWay && (answer?.tokens.length ?? 0) > 0;
    this.#text.tabIndex = reachable ? 0 : -1;
    if (reachable) this.#text.setAttribute("aria-label", "Answer. The arrow keys go from token to token.");
    else this.#text.removeAttribute("aria-label");
    this.#write(this.#note, underWay ? note : (answer?.warnings ?? []).map((one) => `The server says: ${one}.`).join(" "));
    this.#explain(underWay ? null : answer?.error);
    this.#summary.textContent = answer && !underWay && answer.text ? answer.summary : "";
    const may = {
      edit: last,
      copy: !underWay && answer?.text,
      curl: !underWay && answer?.sent,
      python: !underWay && answer?.sent,
      retry: last && !underWay,
    };
    for (const [name, allowed] of Object.entries(may)) this.#buttons[name].hidden = !allowed;
    // It keeps its place, so that nothing moves when the answer is complete.
    this.#buttons.edit.disabled = underWay;
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
