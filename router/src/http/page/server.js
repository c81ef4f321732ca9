// What the server says of itself, asked every two seconds while the page can be seen: /readyz, which needs no key,
// and /info, which is a hundredth of /metrics and has all that is shown. A waiting stream asks more often.

import { authorization } from "./stream.js";

const EVERY = 2000;
const SOON = 400;
const KEPT = 60;

/** Calls `tell({state, reason, info, rate, rates})` after each look. States: ready, starting, recovering, stopping, away. */
export class Watch {
  #timer = 0;
  #last = null;
  #rates = [];
  #looking = false;
  #again = false;
  #impatient = false;

  /** `key` gives the API key, if there is one; `refused` is told when /info wants another. */
  constructor({ tell, key, refused }) {
    Object.assign(this, { tell, key, refused });
    document.addEventListener("visibilitychange", () => this.look());
    this.look();
  }

  /** Nothing has come for a while: find out soon whether something is wrong. */
  set impatient(impatient) {
    if (impatient && !this.#impatient) this.look();
    this.#impatient = impatient;
  }

  async look() {
    clearTimeout(this.#timer);
    if (document.visibilityState === "hidden") return;
    this.#again = this.#looking;
    if (this.#looking) return;
    this.#looking = true;
    try {
      const [health, info] = await Promise.all([this.#health(), this.#info()]);
      this.tell({ ...health, info, ...this.#rate(info) });
    } finally {
      this.#looking = false;
      if (document.visibilityState !== "hidden") {
        const pause = this.#again ? 0 : this.#impatient ? SOON : EVERY;
        this.#timer = setTimeout(() => this.look(), pause);
      }
    }
  }

  async #health() {
    try {
      const response = await fetch("readyz", { cache: "no-store" });
      if (response.ok) return { state: "ready", reason: "" };
      const reason = (await response.json()).error;
      return { state: stateOf(reason), reason };
    } catch {
      return { state: "away", reason: "The server cannot be reached." };
    }
  }

  async #info() {
    const key = this.key();
    if (key === undefined) return null;
    try {
      const response = await fetch("info", { cache: "no-store", headers: authorization(key) });
      if (response.status === 401) this.refused(key);
      return response.ok ? await response.json() : null;
    } catch {
      return null;
    }
  }

  /** Tokens of all requests per second, between this look and the one before. */
  #rate(info) {
    const now = info && { at: performance.now(), tokens: info.generated_tokens };
    const before = this.#last;
    this.#last = now;
    if (!now || !before || now.tokens < before.tokens) return { rate: null, rates: this.#rates };
    const rate = (now.tokens - before.tokens) / ((now.at - before.at) / 1000);
    this.#rates = [...this.#rates, rate].slice(-KEPT);
    return { rate, rates: this.#rates };
  }
}

function stateOf(reason) {
  if (reason?.includes("starting")) return "starting";
  if (reason?.includes("restarted")) return "recovering";
  if (reason?.includes("shutting down")) return "stopping";
  return "failed";
}
