// The little Markdown that models write most: code blocks, headings, lists, code, bold, emphasis. No links, no
// images, no HTML: what is not known stays text. A parsed piece names its place in the source instead of holding
// text, so that whoever draws it can cut it where tokens begin.
//
// Blocks: {kind: "paragraph" | "heading" | "code" | "list", start, end, ...}
//   paragraph, heading (level): lines, each a list of inline pieces
//   code: language, start and end of the content
//   list: items {depth, ordered, number, lines}
// Inline pieces: {kind: "text" | "code" | "strong" | "em", start, end, children?}

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6}) +(?=\S)/;
const ITEM = /^( *)(?:([-*+])|(\d{1,9})[.)])(?: +(?=\S)|$)/;
const BLANK = /^\s*$/;

export function parse(source) {
  const lines = [];
  for (let start = 0; start <= source.length; ) {
    const found = source.indexOf("\n", start);
    const end = found < 0 ? source.length : found;
    lines.push({ start, end, text: source.slice(start, end) });
    start = end + 1;
  }
  const blocks = [];
  for (let at = 0; at < lines.length; ) {
    if (BLANK.test(lines[at].text)) {
      at += 1;
      continue;
    }
    const [block, next] = code(lines, at) ?? heading(source, lines, at) ?? list(source, lines, at) ?? paragraph(source, lines, at);
    blocks.push(block);
    at = next;
  }
  return blocks;
}

function code(lines, at) {
  const opened = FENCE.exec(lines[at].text);
  if (!opened) return null;
  const [, fence, language] = opened;
  let last = at + 1;
  const closes = (text) => {
    const mark = text.trim();
    return mark.length >= fence.length && mark === fence[0].repeat(mark.length);
  };
  while (last < lines.length && !closes(lines[last].text)) last += 1;
  // Not closed yet while it is being written: all that follows belongs to it.
  const start = Math.min(lines[at].end + 1, lines.at(-1).end);
  const end = Math.max(start, last > at + 1 ? lines[last - 1].end : start);
  return [{ kind: "code", language, start, end }, last + 1];
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

function paragraph(source, lines, at) {
  let next = at + 1;
  const ends = (text) => BLANK.test(text) || FENCE.test(text) || HEADING.test(text) || ITEM.test(text);
  while (next < lines.length && !ends(lines[next].text)) next += 1;
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
function inline(source, start, end) {
  const pieces = [];
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
        take({ kind, start: inside, end: close, children: inline(source, inside, close) }, close + mark.length);
      }
    } else {
      at += 1;
    }
  }
  before();
  return pieces;
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
