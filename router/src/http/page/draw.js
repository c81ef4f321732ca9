// Draws a parsed answer as elements and text nodes. What a model wrote is never markup here: it only ever
// becomes the data of text nodes, cut where tokens begin, so that each token can be pointed at.

import { parse } from "./markdown.js";

export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [property, value] of Object.entries(properties)) {
    if (value === undefined) continue;
    if (property in made) made[property] = value;
    else made.setAttribute(property, value);
  }
  made.append(...children);
  return made;
}

/**
 * Draws `answer.text` into `place`. Blocks that are as they were stay as they are, so that a growing answer costs
 * its last block only. `answer.tokens`: {end, likely} in the order of the text, `end` their place in it.
 */
export function draw(place, answer) {
  const { text, tokens } = answer;
  const blocks = parse(text);
  const pen = new Pen(text, tokens);
  blocks.forEach((block, index) => {
    const shape = `${block.kind} ${block.start} ${block.end} ${block.closed} ${tokens.length > 0}`;
    const old = place.children[index];
    if (old?.dataset.shape === shape) return;
    const drawn = pen.block(block);
    drawn.dataset.shape = shape;
    if (old?.open) drawn.open = true; // thoughts that somebody reads while they are written
    if (old) old.replaceWith(drawn);
    else place.append(drawn);
  });
  while (place.children.length > blocks.length) place.lastElementChild.remove();
}

const SAFE = new Set(["http:", "https:", "mailto:"]);

/** Without `URL.canParse`, which Safari before 17 and Chrome before 120 do not have. */
function isSafe(address) {
  try {
    return SAFE.has(new URL(address).protocol);
  } catch {
    return false;
  }
}

/** Opens beside this page, which it learns nothing of. An address that is none of the web stays text. */
function link(address) {
  return isSafe(address) ? element("a", { href: address, target: "_blank", rel: "noopener noreferrer" }) : element("span");
}

class Pen {
  constructor(text, tokens) {
    this.text = text;
    this.tokens = tokens;
  }

  block(block) {
    switch (block.kind) {
      case "code":
        return this.code(block);
      case "heading":
        return this.lines(element(`h${Math.min(block.level + 2, 6)}`, { dir: "auto" }), block.lines);
      case "list":
        return this.list(block.items);
      case "table":
        return this.table(block);
      case "think":
        return this.think(block);
      default:
        return this.lines(element("p", { dir: "auto" }), block.lines);
    }
  }

  code({ language, start, end, indent }) {
    const code = element("code");
    for (let at = start; at < end; ) {
      const found = indent ? this.text.indexOf("\n", at) : -1;
      const next = found < 0 || found >= end ? end : found + 1;
      const own = Math.min(at + indent, next);
      while (at < own && (this.text[at] === " " || this.text[at] === "\t")) at += 1;
      this.write(code, at, next);
      at = next;
    }
    const block = element("pre", { dir: "ltr", tabIndex: 0 }, code);
    if (language) block.dataset.language = language;
    return block;
  }

  list(items) {
    const open = [];
    for (const item of items) {
      while (open.length > item.depth + 1) open.pop();
      const kind = item.ordered ? "ol" : "ul";
      if (open.length === item.depth + 1 && open[item.depth].localName !== kind && item.depth > 0) open.pop();
      while (open.length <= item.depth) {
        const level = element(kind, { dir: "auto" });
        (open.at(-1)?.lastElementChild ?? open.at(-1))?.append(level);
        open.push(level);
      }
      const drawn = this.lines(element("li", { dir: "auto" }), item.lines);
      if (item.number !== null) drawn.value = item.number;
      if (!item.ordered && open[item.depth].localName === "ol") drawn.classList.add("bullet");
      open[item.depth].append(drawn);
    }
    return open[0];
  }

  table({ rows, aligned }) {
    const drawn = rows.map((row, at) => {
      const cells = row.map((pieces, column) => {
        const cell = element(at === 0 ? "th" : "td", { dir: "auto" });
        if (aligned[column]) cell.classList.add(aligned[column]);
        this.pieces(cell, pieces);
        return cell;
      });
      return element("tr", {}, ...cells);
    });
    const [head, ...body] = drawn;
    const whole = element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
    return element("div", { className: "table", tabIndex: 0 }, whole);
  }

  /** Folded: it is not the answer. */
  think({ blocks, closed }) {
    const inside = blocks.map((block) => this.block(block));
    return element("details", { className: "think" }, element("summary", {}, closed ? "Thoughts" : "Thinking"), ...inside);
  }

  lines(place, lines) {
    lines.forEach((pieces, index) => {
      if (index > 0) place.append("\n");
      this.pieces(place, pieces);
    });
    return place;
  }

  pieces(place, pieces) {
    for (const piece of pieces) {
      if (piece.kind === "text") {
        this.write(place, piece.start, piece.end);
      } else {
        const inner = piece.kind === "link" ? link(piece.address) : element(piece.kind);
        if (piece.children) this.pieces(inner, piece.children);
        else this.write(inner, piece.start, piece.end);
        place.append(inner);
      }
    }
  }

  /** The source from `start` to `end`, a span for each token that has a part of it. */
  write(place, start, end) {
    let at = start;
    for (let index = this.tokenAt(start); at < end && index < this.tokens.length; index += 1) {
      const token = this.tokens[index];
      const until = Math.min(token.end, end);
      if (until <= at) continue;
      const span = element("span", { className: "token" }, this.text.slice(at, until));
      span.dataset.token = index;
      if (token.probability < 0.5) span.classList.add(token.probability < 0.2 ? "unlikely" : "unsure");
      place.append(span);
      at = until;
    }
    if (at < end) place.append(this.text.slice(at, end));
  }

  /** The first token that ends after `position`. */
  tokenAt(position) {
    let [low, high] = [0, this.tokens.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.tokens[middle].end > position) high = middle;
      else low = middle + 1;
    }
    return low;
  }
}
