// Whether a value is what a JSON schema says, for the page's own check of an answer: the keywords in wide use. Of others it says
// that they were not looked at; the server refuses what it cannot hold to.

const KNOWN = new Set(
  ("$schema $id $defs definitions $ref title description default examples deprecated $comment type enum const minimum maximum " +
    "exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength pattern format items prefixItems minItems maxItems uniqueItems " +
    "properties required additionalProperties minProperties maxProperties anyOf oneOf allOf not").split(" "),
);
const DEPTH = 100;

const kind = (value) => (value === null ? "null" : Array.isArray(value) ? "array" : typeof value);
const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

/** {wrong: where and why, or ""; unseen: keywords that were not looked at}. */
export function check(schema, value) {
  const checker = new Checker(schema);
  return { wrong: checker.wrong(schema, value, "", 0), unseen: [...checker.unseen] };
}

class Checker {
  constructor(root) {
    this.root = root;
    this.unseen = new Set();
  }

  wrong(schema, value, at, depth) {
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
      if (value < minimum || value <= above) return `${place} is too small`;
      if (value > maximum || value >= below) return `${place} is too large`;
      const times = value / multipleOf;
      if (multipleOf && Math.abs(times - Math.round(times)) > 1e-9) return `${place} is no multiple of ${multipleOf}`;
    }
    if (typeof value === "string") {
      const length = [...value].length;
      if (length < schema.minLength) return `${place} is too short`;
      if (length > schema.maxLength) return `${place} is too long`;
      if (schema.pattern !== undefined && !this.#matches(schema.pattern, value)) return `${place} does not match ${schema.pattern}`;
    }
    return "";
  }

  #matches(pattern, value) {
    try {
      return new RegExp(pattern, "u").test(value);
    } catch {
      this.unseen.add("pattern");
      return true;
    }
  }

  #items(schema, value, at, place, depth) {
    if (value.length < schema.minItems) return `${place} has too few items`;
    if (value.length > schema.maxItems) return `${place} has too many items`;
    if (schema.uniqueItems && new Set(value.map((one) => JSON.stringify(one))).size < value.length) {
      return `${place} has an item twice`;
    }
    const first = schema.prefixItems ?? [];
    for (const [index, item] of value.entries()) {
      const found = this.wrong(first[index] ?? schema.items ?? true, item, `${at}/${index}`, depth + 1);
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
    const known = schema.properties ?? {};
    for (const name of names) {
      const own = Object.hasOwn(known, name) ? known[name] : (schema.additionalProperties ?? true);
      const found = this.wrong(own, value[name], `${at}/${name}`, depth + 1);
      if (found) return found;
    }
    return "";
  }

  #target(reference) {
    if (typeof reference !== "string" || !reference.startsWith("#")) return undefined;
    const parts = reference.slice(1).split("/").slice(1);
    const names = parts.map((part) => decodeURIComponent(part).replaceAll("~1", "/").replaceAll("~0", "~"));
    return names.reduce((found, name) => found?.[name], this.root);
  }
}
