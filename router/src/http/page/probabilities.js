// The small window beside a token: how likely it was, and what else could have stood there. Opens under the
// pointer, at a touch, and with the arrow keys inside an answer.

import { element } from "./draw.js";

const popover = document.getElementById("popover");
let shown = null;

/** `answerOf` finds the answer that an element is part of. */
export function watch(log, answerOf) {
  const open = (target) => {
    const span = target.closest?.(".token");
    if (span) show(span, answerOf(span));
    else hide();
  };
  log.addEventListener("pointerover", (event) => event.pointerType !== "touch" && open(event.target));
  log.addEventListener("pointerleave", () => shown !== document.activeElement && hide());
  log.addEventListener("click", (event) => open(event.target));
  log.addEventListener("focusin", (event) => open(event.target));
  log.addEventListener("focusout", hide);
  log.addEventListener("keydown", step);
  document.getElementById("scroll").addEventListener("scroll", () => shown && place(shown), { passive: true });
}

export function isOpen() {
  return shown !== null;
}

/** An answer was drawn anew: the token that was pointed at may be gone. */
export function refresh() {
  if (shown && !shown.isConnected) hide();
}

export function hide() {
  shown?.removeAttribute("aria-describedby");
  shown?.classList.remove("shown");
  shown = null;
  popover.hidden = true;
}

function step(event) {
  const text = event.target.closest?.(".text");
  if (!text || event.altKey || event.ctrlKey || event.metaKey) return;
  const tokens = [...text.querySelectorAll(".token")];
  if (!tokens.length) return;
  const at = tokens.indexOf(event.target);
  const rtl = at >= 0 && getComputedStyle(event.target).direction === "rtl";
  const to = {
    ArrowRight: rtl ? at - 1 : at + 1,
    ArrowLeft: rtl ? at + 1 : at - 1,
    Home: 0,
    End: tokens.length - 1,
  }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  const token = tokens[Math.max(0, Math.min(to, tokens.length - 1))];
  token.tabIndex = -1;
  token.focus();
}

function show(span, answer) {
  const token = answer?.tokens[Number(span.dataset.token)];
  if (!token) return;
  if (shown !== span) hide();
  shown = span;
  span.classList.add("shown");
  span.setAttribute("aria-describedby", "popover");
  popover.replaceChildren(...token.likely.map(chances));
  popover.hidden = false;
  place(span);
}

/** One token and its alternatives. Characters that several tokens spell together have a list for each of them. */
function chances({ token, logprob, top_logprobs: top }) {
  const all = top.some((one) => one.token === token && one.logprob === logprob) ? top : [...top, { token, logprob }];
  const rows = all.map((one) => {
    const chosen = one.token === token && one.logprob === logprob;
    const bar = element("span", { className: "bar" });
    bar.style.setProperty("--share", Math.exp(one.logprob));
    return element(
      "li",
      chosen ? { className: "chosen" } : {},
      element("bdi", { className: "spelling" }, visible(one.token)),
      element("span", { className: "unseen" }, chosen ? " chosen, " : ", "),
      element("span", { className: "chance" }, percent(one.logprob)),
      bar,
    );
  });
  return element("ol", {}, ...rows);
}

export function percent(logprob) {
  const chance = 100 * Math.exp(logprob);
  if (chance > 0 && chance < 0.01) return "< 0.01 %";
  if (chance > 99.99 && chance < 100) return "> 99.99 %";
  return `${chance >= 10 ? chance.toFixed(1) : chance.toFixed(2)} %`;
}

/** Spaces and line ends that can be seen. */
function visible(token) {
  if (token === "") return "(nothing)";
  return token.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll("\r", "␍");
}

/** Above the token's line or below it, never on it: where it has room, or else where more is, as much as fits. */
function place(span) {
  // A token that runs over two lines is pointed at where it begins.
  const at = span.getClientRects()[0] ?? span.getBoundingClientRect();
  const margin = 8;
  popover.style.maxHeight = "";
  const { offsetWidth: width, offsetHeight: height } = popover;
  const left = Math.max(margin, Math.min(at.left, innerWidth - width - margin));
  const [above, below] = [at.top - 2 * margin, innerHeight - at.bottom - 2 * margin];
  const isAbove = height <= above || (height > below && above > below);
  const shown = Math.max(0, Math.min(height, isAbove ? above : below));
  popover.style.maxHeight = `${shown}px`;
  popover.style.left = `${left}px`;
  popover.style.top = `${isAbove ? at.top - margin - shown : at.bottom + margin}px`;
}
