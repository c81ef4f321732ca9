// The little Markdown that models write most: code blocks, headings, lists, tables, code, bold, emphasis, links, and the
// <think> in front of an answer. No images, no HTML: what is not known stays text. A parsed piece names its place in the
// source instead of holding text, so that whoever draws it can cut it where tokens begin.
//
// Blocks: {kind: "paragraph" | "heading" | "code" | "list" | "table" | "think", start, end, ...}
//   paragraph, heading (level): lines, each a list of inline pieces
//   code: language, start and end of the content, and how many spaces of each of its lines are the fence's
//   list: items {depth, ordered, number, lines}
//   table: rows of cells, each a list of inline pieces, the first is the head; aligned: one of "", left, right, center
//   think: blocks, and whether it is closed
// Inline pieces: {kind: "text" | "code" | "strong" | "em" | "link", start, end, children?}, link with its address

// At any indent: within an item of a list it begins where the item's text does.
const FENCE = /^([ \t]*)(`{3,}(?!`)|~{3,}(?!~))([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6}) +(?=\S)/;
const ITEM = /^( *)(?:([-*+])|(\d{1,9})[.)])(?: +(?=\S)|$)/;
const BLANK = /^\s*$/;
const DIVIDER = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?$/;
const THINK = /^\s*<think>/;
// Nothing but these is ever made a link. Round brackets in an address come in pairs.
const ADDRESS = /(?:https?:\/\/|mailto:)[^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)*/y;
const TITLE = /(?:[ \t]+"[^"\n]*")?\)/y;
const BARE = /https?:\/\/[^\s<>()[\]"'`*|\\]*[^\s<>()[\]"'`*|\\.,;:!?]/y;

export function parse(source) {
  const opened = THINK.exec(source);
  if (!opened) return blocks(source, 0, source.length);
  const inside = opened[0].length;
  const found = source.indexOf("</think>", inside);
  // Not closed yet while it is being written: all that follows belongs to it.
  const end = found < 0 ? source.length : found;
  const after = found < 0 ? end : end + "</think>".length;
  const think = { kind: "think", start: 0, end: after, closed: found >= 0, blocks: blocks(source, inside, end) };
  return [think, ...(found < 0 ? [] : blocks(source, after, source.length))];
}

function blocks(source, from, until) {
  const lines = [];
  for (let start = from; start <= until; ) {
    const found = source.indexOf("\n", start);
    const end = found < 0 || found > until ? until : found;
    lines.push({ start, end, text: source.slice(start, end) });
    start = end + 1;
  }
  const found = [];
  for (let at = 0; at < lines.length; ) {
    if (BLANK.test(lines[at].text)) {
      at += 1;
      continue;
    }
    const [block, next] =
      code(lines, at) ??
      heading(source, lines, at) ??
      table(source, lines, at) ??
      list(source, lines, at) ??
      paragraph(source, lines, at);
    found.push(block);
    at = next;
  }
  return found;
}

function code(lines, at) {
  const opened = FENCE.exec(lines[at].text);
  if (!opened) return null;
  const [, { length: indent }, fence, info] = opened;
  const language = info.trim().split(/\s/, 1)[0];
  let last = at + 1;
  const closes = (text) => {
    const mark = text.trim();
    return mark.length >= fence.length && mark === fence[0].repeat(mark.length);
  };
  while (last < lines.length && !closes(lines[last].text)) last += 1;
  // Not closed yet while it is being written: all that follows belongs to it.
  const start = Math.min(lines[at].end + 1, lines.at(-1).end);
  const end = Math.max(start, last > at + 1 ? lines[last - 1].end : start);
  return [{ kind: "code", language, start, end, indent }, last + 1];
}

function heading(source, lines, at) {
  const { start, end, text } = lines[at];
  const opened = HEADING.exec(text);
  if (!opened) return null;
  const from = start + opened[0].length;
  return [{ kind: "heading", level: opened[1].length, start, end, lines: [inline(source, from, end)] }, at + 1];
}

function list(source, lines, at) {
  if (!ITEM.test(lines[at].text)) return null;
  const items = [];
  const indents = [];
  let next = at;
  let last = at;
  while (next < lines.length) {
    const { start, end, text } = lines[next];
    const marked = ITEM.exec(text);
    if (marked) {
      const indent = marked[1].length;
      while (indents.length && indents.at(-1) > indent) indents.pop();
      if (!indents.length || indents.at(-1) < indent) indents.push(indent);
      const number = marked[3] === undefined ? null : Number(marked[3]);
      const words = inline(source, start + marked[0].length, end);
      items.push({ depth: indents.length - 1, ordered: number !== null, number, lines: [words] });
      last = next;
    } else if (!BLANK.test(text)) {
      // Text goes on with an item when it is indented, or follows at once.
      const indented = /^\s/.test(text);
      if (FENCE.test(text) || HEADING.test(text) || (!indented && last !== next - 1)) break;
      const from = start + text.length - text.trimStart().length;
      items.at(-1).lines.push(inline(source, from, end));
      last = next;
    }
    next += 1;
  }
  return [{ kind: "list", start: lines[at].start, end: lines[last].end, items }, last + 1];
}

const ends = (text) => BLANK.test(text) || FENCE.test(text) || HEADING.test(text) || ITEM.test(text);

/** A line with the line of dashes below it, as many cells in both. */
function isTable(lines, at) {
  const [head, divider] = [lines[at].text, lines[at + 1]?.text];
  if (!head.includes("|") || !divider?.includes("-") || !DIVIDER.test(divider.trimEnd())) return false;
  return cells(lines[at]).length === cells(lines[at + 1]).length;
}

function table(source, lines, at) {
  if (!isTable(lines, at)) return null;
  const aligned = cells(lines[at + 1]).map(([from, to]) => {
    const [left, right] = [source[from] === ":", source[to - 1] === ":"];
    return left && right ? "center" : right ? "right" : left ? "left" : "";
  });
  let next = at + 2;
  while (next < lines.length && !ends(lines[next].text)) next += 1;
  const rows = lines
    .slice(at, next)
    .filter((_, index) => index !== 1)
    .map((line) => {
      const row = cells(line).slice(0, aligned.length);
      while (row.length < aligned.length) row.push([line.end, line.end]);
      return row.map(([from, to]) => inline(source, from, to));
    });
  return [{ kind: "table", start: lines[at].start, end: lines[next - 1].end, aligned, rows }, next];
}

/** Where the cells of a line are in the source, without the spaces around them. */
function cells({ start, text }) {
  const found = [];
  let from = text.length - text.trimStart().length;
  const last = text.trimEnd().length;
  if (text[from] === "|") from += 1;
  for (let at = from; at <= last; at += 1) {
    if (at < last && text[at] === "\\") at += 1;
    else if (at === last || text[at] === "|") {
      if (at === last && from === last && found.length) break;
      const words = text.slice(from, at);
      const begin = from + words.length - words.trimStart().length;
      found.push([start + begin, start + Math.max(begin, from + words.trimEnd().length)]);
      from = at + 1;
    }
  }
  return found;
}

function paragraph(source, lines, at) {
  let next = at + 1;
  while (next < lines.length && !ends(lines[next].text) && !isTable(lines, next)) next += 1;
  const own = lines.slice(at, next);
  return [
    { kind: "paragraph", start: own[0].start, end: own.at(-1).end, lines: own.map((line) => inline(source, line.start, line.end)) },
    next,
  ];
}

const WORD = /[\p{L}\p{N}_]/u;
const SPACE = /\s/;
const ESCAPED = /[\\`*_#+\-.!()[\]{}<>|~]/;

/** The pieces of one line. Linear: a mark that was sought in vain once is not sought again. */
function inline(source, start, end, linked = false) {
  const pieces = [];
  let middle = -1; // of the next link, between its text and its address
  const missing = new Set();
  let text = start;
  let at = start;
  const before = () => at > text && pieces.push({ kind: "text", start: text, end: at });
  const take = (piece, after) => {
    before();
    pieces.push(piece);
    at = text = after;
  };
  while (at < end) {
    const character = source[at];
    if (character === "\\" && at + 1 < end && ESCAPED.test(source[at + 1])) {
      before();
      text = at + 1;
      at += 2;
    } else if (character === "`") {
      let ticks = 1;
      while (at + ticks < end && source[at + ticks] === "`") ticks += 1;
      const close = missing.has(ticks) ? -1 : closingTicks(source, at + ticks, end, ticks);
      if (close < 0) {
        missing.add(ticks);
        at += ticks;
      } else {
        take({ kind: "code", start: at + ticks, end: close }, close + ticks);
      }
    } else if (character === "*") {
      const mark = source.startsWith("**", at) ? "**" : "*";
      const inside = at + mark.length;
      const opens =
        inside < end && !SPACE.test(source[inside]) && (mark === "**" || at === start || !WORD.test(source[at - 1]));
      const close = opens && !missing.has(mark) ? closingMark(source, inside, end, mark) : -1;
      if (close < 0) {
        if (opens) missing.add(mark);
        at = inside;
      } else {
        const kind = mark === "**" ? "strong" : "em";
        take({ kind, start: inside, end: close, children: inline(source, inside, close, linked) }, close + mark.length);
      }
    } else if (character === "[" && !linked && !missing.has("[")) {
      if (middle < at) middle = source.indexOf("](", at);
      if (middle < 0 || middle >= end) {
        missing.add("[");
        at += 1;
        continue;
      }
      const inner = source.indexOf("[", at + 1);
      const address = inner < 0 || inner > middle ? match(ADDRESS, source, middle + 2, end) : null;
      const close = address && match(TITLE, source, middle + 2 + address.length, end);
      if (close) {
        const children = inline(source, at + 1, middle, true);
        take({ kind: "link", start: at + 1, end: middle, children, address }, middle + 2 + address.length + close.length);
      } else {
        at += 1;
      }
    } else if (character === "<" && !linked && source[at + 1] === "h") {
      const address = match(BARE, source, at + 1, end);
      const [from, to] = [at + 1, at + 1 + (address?.length ?? 0)];
      if (address && to < end && source[to] === ">") {
        take({ kind: "link", start: from, end: to, children: [{ kind: "text", start: from, end: to }], address }, to + 1);
      } else {
        at += 1;
      }
    } else if (character === "h" && !linked && (at === start || !WORD.test(source[at - 1]))) {
      const address = match(BARE, source, at, end);
      if (!address) {
        at += 1;
        continue;
      }
      const piece = { kind: "text", start: at, end: at + address.length };
      take({ ...piece, kind: "link", children: [piece], address }, piece.end);
    } else {
      at += 1;
    }
  }
  before();
  return pieces;
}

/** What a sticky expression finds at a place, if it ends before `end`. */
function match(expression, source, at, end) {
  expression.lastIndex = at;
  const found = expression.exec(source)?.[0];
  return found && at + found.length <= end ? found : null;
}

function closingTicks(source, from, end, ticks) {
  for (let at = source.indexOf("`", from); at >= 0 && at < end; ) {
    let run = 1;
    while (at + run < end && source[at + run] === "`") run += 1;
    if (run === ticks) return at;
    at = source.indexOf("`", at + run);
  }
  return -1;
}

function closingMark(source, from, end, mark) {
  for (let at = source.indexOf("*", from + 1); at >= 0 && at < end; at = source.indexOf("*", at + 1)) {
    const double = source[at + 1] === "*" && at + 1 < end;
    if (SPACE.test(source[at - 1])) {
      if (double) at += 1;
    } else if (mark === "**") {
      if (double) return at;
    } else if (double) {
      at += 1;
    } else if (at + 1 >= end || !WORD.test(source[at + 1])) {
      return at;
    }
  }
  return -1;
}
