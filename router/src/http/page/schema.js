// Whether a value is what a JSON schema says, for the page's own check of an answer: the keywords in wide use. Of others it says
// that they were not looked at; the server refuses what it cannot hold to.

const KNOWN = new Set(
  ("$schema $id $defs definitions $ref title description default examples deprecated $comment type enum const minimum maximum " +
    "exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength pattern format items prefixItems additionalItems minItems maxItems " +
    "uniqueItems properties patternProperties required additionalProperties minProperties maxProperties anyOf oneOf allOf not").split(" "),
);
const DEPTH = 100;
/** Schemas that name themselves in several places would take 2 ** DEPTH. */
const STEPS = 200_000;

const kind = (value) => (value === null ? "null" : Array.isArray(value) ? "array" : typeof value);
const byName = ([one], [other]) => (one < other ? -1 : 1);
const sorted = (_, value) => (kind(value) === "object" ? Object.fromEntries(Object.entries(value).sort(byName)) : value);
/** The same text for the same value, whatever the order of its members. */
const identity = (value) => JSON.stringify(value, sorted);
const same = (one, other) => identity(one) === identity(other);
/** What a number must not reach: in draft 4 `true` says that it is the bound beside it. */
const exclusive = (given, bound) => (given === true ? bound : given === false ? undefined : given);

/** {wrong: where and why, or ""; unseen: keywords that were not looked at}. Throws where that cannot be said. */
export function check(schema, value) {
  const checker = new Checker(schema);
  return { wrong: checker.wrong(schema, value, "", 0), unseen: [...checker.unseen] };
}

class Checker {
  constructor(root) {
    this.root = root;
    this.unseen = new Set();
    this.steps = 0;
  }

  wrong(schema, value, at, depth) {
    this.steps += 1;
    if (this.steps > STEPS) throw new Error("the schema asks for too many steps");
    if (schema === true || depth > DEPTH) return "";
    const place = at || "the whole";
    if (schema === false) return `${place} must not be there`;
    if (schema === null || typeof schema !== "object") return "";
    for (const name of Object.keys(schema)) if (!KNOWN.has(name)) this.unseen.add(name);
    const own = this.#own(schema, value, place);
    if (own) return own;
    if (schema.$ref !== undefined) {
      const target = this.#target(schema.$ref);
      if (target === undefined) this.unseen.add("$ref");
      else {
        const found = this.wrong(target, value, at, depth + 1);
        if (found) return found;
      }
    }
    const fits = (one) => !this.wrong(one, value, at, depth + 1);
    for (const one of schema.allOf ?? []) {
      const found = this.wrong(one, value, at, depth + 1);
      if (found) return found;
    }
    if (schema.anyOf && !schema.anyOf.some(fits)) return `${place} is none of what \`anyOf\` offers`;
    if (schema.oneOf && schema.oneOf.filter(fits).length !== 1) return `${place} is not just one of what \`oneOf\` offers`;
    if (schema.not !== undefined && fits(schema.not)) return `${place} is what \`not\` forbids`;
    if (kind(value) === "array") return this.#items(schema, value, at, place, depth);
    if (kind(value) === "object") return this.#members(schema, value, at, place, depth);
    return "";
  }

  #own(schema, value, place) {
    const types = schema.type === undefined ? [] : [schema.type].flat();
    const is = (type) => (type === "integer" ? Number.isInteger(value) : kind(value) === type);
    if (types.length && !types.some(is)) return `${place} is not ${types.join(" or ")}`;
    if (schema.enum && !schema.enum.some((one) => same(one, value))) return `${place} is none of \`enum\``;
    if ("const" in schema && !same(schema.const, value)) return `${place} is not \`const\``;
    if (typeof value === "number") {
      const { minimum, maximum, exclusiveMinimum: above, exclusiveMaximum: below, multipleOf } = schema;
      if (value < minimum || value <= exclusive(above, minimum)) return `${place} is too small`;
      if (value > maximum || value >= exclusive(below, maximum)) return `${place} is too large`;
      const times = value / multipleOf;
      if (multipleOf && Math.abs(times - Math.round(times)) > 1e-9) return `${place} is no multiple of ${multipleOf}`;
    }
    if (typeof value === "string") {
      const length = [...value].length;
      if (length < schema.minLength) return `${place} is too short`;
      if (length > schema.maxLength) return `${place} is too long`;
      const { pattern } = schema;
      if (pattern !== undefined && this.#matches(pattern, value, "pattern") === false) return `${place} does not match ${pattern}`;
    }
    return "";
  }

  /** undefined: the browser cannot read the pattern, which is not looked at. */
  #matches(pattern, value, keyword) {
    try {
      return new RegExp(pattern, "u").test(value);
    } catch {
      this.unseen.add(keyword);
      return undefined;
    }
  }

  #items(schema, value, at, place, depth) {
    if (value.length < schema.minItems) return `${place} has too few items`;
    if (value.length > schema.maxItems) return `${place} has too many items`;
    if (schema.uniqueItems && new Set(value.map(identity)).size < value.length) {
      return `${place} has an item twice`;
    }
    // Before `prefixItems` a list of `items` was what that is now.
    const listed = Array.isArray(schema.items);
    const first = schema.prefixItems ?? (listed ? schema.items : []);
    const rest = (listed ? schema.additionalItems : schema.items) ?? true;
    for (const [index, item] of value.entries()) {
      const found = this.wrong(first[index] ?? rest, item, `${at}/${index}`, depth + 1);
      if (found) return found;
    }
    return "";
  }

  #members(schema, value, at, place, depth) {
    const names = Object.keys(value);
    const missing = (schema.required ?? []).find((name) => !Object.hasOwn(value, name));
    if (missing !== undefined) return `${place} lacks ${JSON.stringify(missing)}`;
    if (names.length < schema.minProperties) return `${place} has too few members`;
    if (names.length > schema.maxProperties) return `${place} has too many members`;
    for (const name of names) {
      for (const one of this.#ofMember(schema, name)) {
        const found = this.wrong(one, value[name], `${at}/${name}`, depth + 1);
        if (found) return found;
      }
    }
    return "";
  }

  /** The schemas of the member `name`. */
  #ofMember({ properties = {}, patternProperties = {}, additionalProperties = true }, name) {
    const own = Object.hasOwn(properties, name) ? [properties[name]] : [];
    for (const [pattern, one] of Object.entries(patternProperties)) {
      const matches = this.#matches(pattern, name, "patternProperties");
      if (matches !== false) own.push(matches ? one : true);
    }
    return own.length ? own : [additionalProperties];
  }

  /** undefined: it is no pointer into this schema, or points at nothing. */
  #target(reference) {
    if (reference !== "#" && !`${reference}`.startsWith("#/")) return undefined;
    const parts = reference.slice(1).split("/").slice(1);
    const names = parts.map((part) => decoded(part).replaceAll("~1", "/").replaceAll("~0", "~"));
    return names.reduce((found, name) => found?.[name], this.root);
  }
}

/** A percent sign that begins no escape is itself. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
