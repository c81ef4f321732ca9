// The chat page: wires what the other modules know to the elements of the page. Everything it shows comes from
// this server's public API, as any other client sees it.

import { Access } from "./access.js";
import { Answer, Turn } from "./conversation.js";
import { element } from "./draw.js";
import * as probabilities from "./probabilities.js";
import { curl, python } from "./recipe.js";
import { Watch } from "./server.js";
import { Settings } from "./settings.js";
import { Broken, Refused, chat, encode } from "./stream.js";

const byId = (id) => document.getElementById(id);
const [text, log, scroll, side] = ["text", "log", "scroll", "side"].map(byId);
const WORDS = {
  ready: "Ready",
  starting: "Starting",
  recovering: "Recovering",
  stopping: "Shutting down",
  failed: "Not ready",
  away: "No connection",
};
const PLACE = "penstock-page";
const precise = matchMedia("(pointer: fine)");
/** So long may a stream be silent before the page asks whether something is wrong, in ms. */
const SILENCE = 700;

const turns = [];
let underWay = null; // {turn, controller}
let editing = null; // the draft that was there before
let server = { state: "unknown", reason: "", info: null };
let bounds = null;

// --- What is remembered in this tab -----------------------------------------------------------------

function remember() {
  const kept = turns.map(({ said, results, answer }) => ({
    said,
    results,
    ...answer?.words,
    state: answer?.state ?? "none",
  }));
  try {
    const all = { turns: kept, draft: text.value, editing, settings: settings.values };
    sessionStorage.setItem(PLACE, JSON.stringify(all));
  } catch {
    // Storage is full or forbidden: the page works without.
  }
}

function recall() {
  let kept;
  try {
    kept = JSON.parse(sessionStorage.getItem(PLACE)) ?? {};
  } catch {
    kept = {};
  }
  settings.values = kept.settings ?? {};
  text.value = kept.draft ?? "";
  for (const one of kept.turns ?? []) {
    const turn = add(one.said, one.results);
    turn.answer = new Answer();
    turn.answer.words = one;
    // An answer that was under way when the page was left has ended with it.
    turn.answer.end(one.state === "done" ? "done" : "stopped");
  }
  if (turns.length && typeof kept.editing === "string") beginEditing(kept.editing);
  showAll();
}

// --- The conversation -------------------------------------------------------------------------------

function add(said, results = null) {
  const turn = new Turn(said, act, results);
  turns.push(turn);
  log.append(turn.element);
  return turn;
}

function drop() {
  turns.pop()?.element.remove();
}

/** The turns before `turn` that were answered, and `turn`. What failed is not part of the conversation. */
function messages(turn) {
  const before = turns.slice(0, turns.indexOf(turn)).filter(({ answer }) => answer?.said);
  return [
    ...(settings.system.trim() ? [{ role: "system", content: settings.system }] : []),
    ...before.flatMap((one) => [...asked(one), { role: "assistant", ...one.answer.message }]),
    ...asked(turn),
  ];
}

/** What the user said, or what the calls of the answer before gave. */
function asked({ said, results }) {
  if (!results) return [{ role: "user", content: said }];
  return results.map(({ id, content }) => ({ role: "tool", tool_call_id: id, content }));
}

/** Goes on with what was typed in as the results of an answer's calls. */
function sendResults(turn) {
  if (underWay || turn !== turns.at(-1)) return;
  const results = turn.answer.calls.map(({ id, result }) => ({ id, content: result }));
  const said = turn.answer.calls.map(({ name, result }) => `${name}: ${result}`).join("\n");
  answer(add(said, results));
}

function ask(said) {
  if (editing !== null) drop();
  text.value = "";
  stopEditing();
  const turn = add(said);
  answer(turn);
}

async function answer(turn) {
  const controller = new AbortController();
  const answer = new Answer();
  turn.answer = answer;
  settings.check();
  answer.sent = {
    model: settings.adapter || (server.info?.model_id ?? "tgi"),
    messages: messages(turn),
    stream: true,
    stream_options: { include_usage: true },
    ...settings.body(),
  };
  const schema = answer.sent.response_format?.json_schema?.schema;
  answer.schema = schema ? JSON.parse(encode(schema)) : null;
  underWay = { turn, controller, heard: performance.now() };
  const silence = setInterval(() => {
    watch.impatient = performance.now() - underWay.heard > SILENCE;
    show(turn);
  }, SILENCE / 2);
  const key = access.key;
  try {
    remember();
    showAll();
    toEnd();
    // The button that was pressed is gone now. On a touch screen the focus would bring up the keyboard.
    if (precise.matches) text.focus();
    say("Sent. Waiting for the answer.");
    for await (const chunk of chat(answer.sent, { key, signal: controller.signal })) {
      answer.take(chunk);
      underWay.heard = performance.now();
      soon(turn);
    }
    answer.end("done");
    say(`The answer is complete. ${answer.plain}`);
  } catch (error) {
    if (controller.signal.aborted) {
      answer.end("stopped");
      say("Stopped.");
    } else {
      answer.end("failed", explain(error));
    }
    if (error instanceof Refused && error.status === 401) {
      access.refused(key).then((another) => another && turns.at(-1) === turn && !underWay && retry(turn));
    } else if (!(error instanceof Refused) && !(error instanceof Broken) && !controller.signal.aborted) {
      console.error(error);
    }
  } finally {
    clearInterval(silence);
    watch.impatient = false;
    underWay = null;
    remember();
    watch.look();
    // The last, so that nothing that cannot be drawn keeps the page from the next message.
    showAll();
  }
}

function retry(turn) {
  if (!underWay) answer(turn);
}

function stop() {
  underWay?.controller.abort();
}

function beginEditing(draft) {
  editing = draft;
  byId("editing").hidden = false;
}

function startEditing(turn) {
  beginEditing(text.value);
  text.value = turn.said;
  showAll();
  fit();
  text.focus();
}

function stopEditing(draft = editing ?? "") {
  text.value = draft;
  editing = null;
  byId("editing").hidden = true;
  fit();
}

function renew() {
  stop();
  while (turns.length) drop();
  if (editing !== null) stopEditing();
  showAll();
  remember();
  text.focus();
}

/** What went wrong, in words for the place where it happened. */
function explain(error) {
  if (error instanceof Broken) {
    return { words: `${error.message} What had arrived is kept. Try again when the connection is back.` };
  }
  if (!(error instanceof Refused)) return { words: "Something went wrong in this page. Reload it and try again." };
  const words = error.message.replace(/\.?$/, ".");
  const wait = error.retryAfter ? ` Try again in ${error.retryAfter} s.` : "";
  switch (error.status) {
    case 401:
      return { words: `${sentence(words)} Nothing was sent to the model.` };
    case 422: {
      const field = settings.find(error.field);
      field?.refuse(sentence(words));
      return { words: `The server does not take this: ${words}`, field: field?.label, focus: field?.focus };
    }
    case 429:
      return { words: `The server has too much to do: ${words}${wait}` };
    case 503:
      return { words: `The server takes no requests now: ${words}${wait}` };
    default:
      return { words: `The server could not answer (${error.status}): ${words}${wait}` };
  }
}

const sentence = (words) => words.charAt(0).toUpperCase() + words.slice(1);

async function act(name, turn, button) {
  switch (name) {
    case "edit":
      return startEditing(turn);
    case "retry":
      return retry(turn);
    case "copy":
      return copy(turn.answer.plain, button);
    case "curl":
      return copy(curl(turn.answer.sent, Boolean(access.key)), button);
    case "python":
      return copy(python(turn.answer.sent, Boolean(access.key)), button);
    case "results":
      return sendResults(turn);
    case "field":
      openSide();
      return turn.answer.error.focus();
  }
}

async function copy(words, button) {
  const done = (await toClipboard(words)) ? "Copied" : "Copying is not allowed here";
  say(done);
  button.dataset.said ??= button.textContent;
  button.textContent = done;
  setTimeout(() => (button.textContent = button.dataset.said), 1500);
}

async function toClipboard(words) {
  try {
    await navigator.clipboard.writeText(words);
    return true;
  } catch {
    // Plain HTTP from another machine: browsers have only the old way there.
    const focused = document.activeElement;
    const area = element("textarea", { value: words, className: "unseen", readOnly: true });
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    focused?.focus();
    return done;
  }
}

// --- Showing ----------------------------------------------------------------------------------------

let frame = 0;

/** Draws a growing answer at most once a frame. */
function soon(turn) {
  frame ||= requestAnimationFrame(() => {
    frame = 0;
    show(turn);
  });
}

function show(turn) {
  const pinned = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 60;
  turn.show({ last: turn === turns.at(-1) && editing === null, note: note(turn) });
  probabilities.refresh();
  if (pinned && turn === turns.at(-1)) toEnd();
}

function note(turn) {
  if (underWay?.turn !== turn) return "";
  const silent = performance.now() - underWay.heard > SILENCE;
  if (!silent) return "";
  if (server.state === "recovering") {
    return "The server is replacing a worker that it has lost. This answer is not lost: it goes on in a moment.";
  }
  if (server.state === "away") return "The server cannot be reached. Waiting for it.";
  if (turn.answer.state === "waiting" && server.info?.requests_waiting > 0) return "Waiting in the server's queue.";
  return "";
}

function showAll() {
  byId("welcome").hidden = turns.length > 0;
  byId("new").disabled = turns.length === 0;
  byId("send").hidden = Boolean(underWay);
  byId("stop").hidden = !underWay;
  if (!underWay) byId("busy").hidden = true;
  document.body.dataset.underWay = Boolean(underWay);
  for (const turn of turns) show(turn);
}

function toEnd() {
  scroll.scrollTop = scroll.scrollHeight;
}

function say(words) {
  byId("said").textContent = words;
}

function fit() {
  text.style.height = "auto";
  text.style.height = `${Math.min(text.scrollHeight, innerHeight * 0.4)}px`;
}

// --- The server -------------------------------------------------------------------------------------

const number = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

function tell(seen) {
  const before = server;
  server = { ...seen, info: seen.info ?? before.info };
  byId("state").dataset.state = seen.state;
  const word = WORDS[seen.state];
  if (byId("state-word").textContent !== word) byId("state-word").textContent = word;
  byId("state").title = seen.reason;
  byId("state-reason").textContent = seen.reason && sentence(`${seen.reason}.`.replace(/\.\.$/, "."));
  byId("state-reason").hidden = !seen.reason;
  if (before.state !== seen.state && before.state !== "unknown") say(`Server: ${word}. ${seen.reason}`);
  showNumbers(seen);
  if (seen.info) settings.offer(seen.info.adapters ?? []);
  if (seen.info && !bounds) learnBounds();
  if (underWay) show(underWay.turn);
}

function showNumbers({ info, rate, rates }) {
  const put = (id, words) => (byId(id).textContent = words);
  if (!info) {
    for (const id of ["running", "waiting", "rate", "kv", "kv-kept", "restarts"]) put(id, "–");
    return;
  }
  byId("model").textContent = info.model_id.split("/").at(-1);
  byId("model").title = info.model_id;
  document.title = `Penstock: ${byId("model").textContent}`;
  const share = (blocks) => (100 * blocks) / Math.max(1, info.kv_blocks);
  put("running", number.format(info.requests_running));
  put("waiting", number.format(info.requests_waiting));
  put("rate", rate === null ? "–" : number.format(rate));
  put("kv", `${share(info.kv_blocks_used).toFixed(1)} %`);
  put("kv-kept", `${share(info.kv_blocks_cached).toFixed(1)} %`);
  put("restarts", number.format(info.worker_restarts));
  byId("kv-used").setAttribute("width", share(info.kv_blocks_used));
  byId("kv-cached").setAttribute("width", share(info.kv_blocks_used + info.kv_blocks_cached));
  const most = Math.max(1, ...rates);
  const points = rates.map((one, at) => `${240 - 4 * (rates.length - 1 - at)},${34 - (32 * one) / most}`);
  byId("trace-line").setAttribute("points", points.join(" "));
}

async function learnBounds() {
  bounds = {};
  try {
    const response = await fetch("api-doc/openapi.json");
    bounds = (await response.json()).components.schemas.ChatRequest.properties;
  } catch {
    bounds = null; // The next look tries again.
  }
  settings.bounds(bounds, server.info);
}

// --- The side panel ---------------------------------------------------------------------------------

const wide = matchMedia("(min-width: 62rem)");

function setSide(open) {
  side.hidden = !open;
  byId("toggle-side").setAttribute("aria-expanded", String(open));
}

function openSide() {
  setSide(true);
}

function closeSide() {
  const inside = side.contains(document.activeElement);
  setSide(false);
  if (inside) byId("toggle-side").focus();
}

// --- Wiring -----------------------------------------------------------------------------------------

const settings = new Settings(byId("settings"), remember);
const access = new Access(() => watch.look());
const watch = new Watch({
  tell,
  key: () => (access.wanted ? undefined : access.key),
  refused: (key) => access.refused(key),
});

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (underWay) {
    byId("busy").hidden = false;
    return say("The answer before is still being written. Escape stops it.");
  }
  if (text.value.trim()) ask(text.value);
});
text.addEventListener("keydown", (event) => {
  // 229: Safari ends the composition before the key that confirms it.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
  event.preventDefault();
  byId("composer").requestSubmit();
});
text.addEventListener("input", () => {
  fit();
  remember();
});
byId("stop").addEventListener("click", () => {
  stop();
  text.focus();
});
byId("new").addEventListener("click", renew);
byId("cancel-edit").addEventListener("click", () => {
  stopEditing();
  showAll();
  text.focus();
});
byId("reset").addEventListener("click", () => {
  settings.reset();
  remember();
});
byId("toggle-side").addEventListener("click", () => {
  if (!side.hidden) return closeSide();
  openSide();
  if (!wide.matches) byId("close-side").focus();
});
byId("close-side").addEventListener("click", closeSide);
wide.addEventListener("change", () => setSide(wide.matches));
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || byId("key-dialog").open || event.isComposing) return;
  if (underWay) stop();
  else if (probabilities.isOpen()) {
    const focused = document.activeElement;
    probabilities.hide();
    focused?.closest?.(".text")?.focus();
  } else if (!side.hidden && !wide.matches) closeSide();
  else if (editing !== null) byId("cancel-edit").click();
});
addEventListener("resize", fit);
// What was written since, and typed in as results: a page that is left runs nothing else, and one that a phone
// ends in the background is told no more than that it is hidden.
addEventListener("pagehide", remember);
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "hidden") remember();
});
probabilities.watch(log, (span) => turns.find((turn) => turn.element.contains(span))?.answer);

setSide(wide.matches);
recall();
fit();
if (turns.length) toEnd();
