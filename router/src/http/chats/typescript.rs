//! Tools as declarations in TypeScript, as the tokenizer of Kimi K2.5 and K2.6 makes them for its chat template: the form in which the
//! model was trained to read them (`tool_declaration_ts.py` in the model's repository). `tools` asks for them where a template reads them.

use std::collections::HashSet;
use std::collections::hash_map::{Entry, HashMap};

use penstock_output::dumps;
use serde_json::{Map, Value};

/// What templates call them.
pub const VARIABLE: &str = "tools_ts_str";

const INDENT: &str = "  ";

/// With the keys of all objects in alphabetical order: these templates get tools so, declared or not.
pub fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let mut members: Vec<(&String, &Value)> = members.iter().collect();
            members.sort_unstable_by_key(|(key, _)| key.as_str());
            let sorted: Map<String, Value> =
                members.into_iter().map(|(key, value)| (key.clone(), sorted(value))).collect();
            sorted.into()
        }
        Value::Array(items) => items.iter().map(sorted).collect(),
        other => other.clone(),
    }
}

/// Of tools that are `sorted`. None where a schema is one that the model's tokenizer does not declare: it leaves all tools as JSON then.
pub fn declared(tools: &[Value]) -> Option<String> {
    let functions: Vec<String> =
        tools.iter().map(|tool| function(&tool["function"])).collect::<Option<_>>()?;
    Some(format!("# Tools\n\n## functions\nnamespace functions {{\n{}\n}}\n", functions.join("\n")))
}

fn function(function: &Value) -> Option<String> {
    let nothing = Map::new();
    let parameters = match &function["parameters"] {
        Value::Null => &nothing,
        parameters => parameters.as_object()?,
    };
    let mut schemas = Schemas::default();
    let mut argument = schemas.object(parameters, "")?;
    let mut lines = Vec::new();
    if schemas.refers_to_all {
        let fields = schemas.fields(parameters, INDENT)?;
        lines.push(format!("interface {ALL} {}", braced(fields.into_iter().map(|field| field.text), "")));
        argument = ALL.to_owned();
    }
    for (name, schema) in schemas.definitions.clone() {
        let kind = schemas.kind(schema, "")?;
        lines.extend(commented(schema.get("description"), "")?);
        lines.push(format!("interface {name} {kind}"));
    }
    lines.extend(commented(function.get("description"), "")?);
    lines.push(format!("type {} = (_: {argument}) => any;", function["name"].as_str()?));
    Some(lines.join("\n"))
}

/// The name of a function's arguments where their schema refers to itself.
const ALL: &str = "parameters";

/// What was seen of a function's schema.
#[derive(Default)]
struct Schemas<'a> {
    /// Those of `$defs`.
    definitions: Vec<(&'a str, &'a Value)>,
    /// Where each of them is.
    places: HashMap<&'a str, usize>,
    refers_to_all: bool,
}

struct Field {
    is_optional: bool,
    text: String,
}

impl<'a> Schemas<'a> {
    fn kind(&mut self, schema: &'a Value, indent: &str) -> Option<String> {
        let members = match schema {
            Value::Bool(true) => return Some("any".to_owned()),
            Value::Bool(false) => return Some("null".to_owned()),
            other => other.as_object()?,
        };
        if let Some(reference) = members.get("$ref") {
            return self.reference(reference.as_str()?);
        }
        if let Some(choices) = members.get("anyOf") {
            let kinds: Option<Vec<String>> =
                choices.as_array()?.iter().map(|choice| self.kind(choice, indent)).collect();
            return Some(kinds?.join(" | "));
        }
        if let Some(values) = members.get("enum") {
            return enumerated(values.as_array()?, members.get("type"));
        }
        match members.get("type") {
            Some(Value::String(kind)) => match kind.as_str() {
                "object" => self.object(members, indent),
                "array" => self.array(members, indent),
                "integer" => Some("number".to_owned()),
                other => Some(other.to_owned()),
            },
            Some(Value::Array(kinds)) => {
                let kinds: Option<Vec<&str>> =
                    kinds.iter().map(|kind| one_of_several(kind.as_str()?)).collect();
                Some(kinds?.join(" | "))
            }
            None if members.is_empty() => Some("any".to_owned()),
            _ => None,
        }
    }

    fn reference(&mut self, reference: &str) -> Option<String> {
        if reference == "#" {
            self.refers_to_all = true;
            return Some(ALL.to_owned());
        }
        let name = reference.strip_prefix("#/$defs/")?.rsplit('/').next()?;
        self.places.contains_key(name).then(|| name.to_owned())
    }

    /// Required fields first.
    fn object(&mut self, schema: &'a Map<String, Value>, indent: &str) -> Option<String> {
        let inner = format!("{indent}{INDENT}");
        for (name, definition) in schema.get("$defs").and_then(Value::as_object).into_iter().flatten() {
            match self.places.entry(name) {
                Entry::Occupied(place) => self.definitions[*place.get()].1 = definition,
                Entry::Vacant(new) => {
                    new.insert(self.definitions.len());
                    self.definitions.push((name, definition));
                }
            }
        }
        let others = match schema.get("additionalProperties") {
            None | Some(Value::Null) => None,
            Some(Value::Bool(true)) => Some("any".to_owned()),
            Some(Value::Bool(false)) => Some("never".to_owned()),
            Some(schema) => Some(self.kind(schema, &inner)?),
        };
        let mut fields = self.fields(schema, &inner)?;
        fields.sort_by_key(|field| field.is_optional);
        let others = others.map(|kind| format!("{inner}[k: string]: {kind}"));
        Some(braced(fields.into_iter().map(|field| field.text).chain(others), indent))
    }

    fn fields(&mut self, schema: &'a Map<String, Value>, indent: &str) -> Option<Vec<Field>> {
        let Some(properties) = schema.get("properties") else { return Some(Vec::new()) };
        let required = match schema.get("required") {
            None => &[][..],
            Some(names) => names.as_array()?,
        };
        let required: HashSet<&str> = required.iter().filter_map(Value::as_str).collect();
        let one = |(name, schema): (&String, &'a Value)| {
            let is_optional = !required.contains(name.as_str());
            let mut lines: Vec<String> = comments(schema, indent)?;
            if let Some(default) = schema.get("default").filter(|default| !default.is_null()) {
                let default = if default.is_boolean() { bare(default) } else { dumps(default) };
                lines.push(format!("{indent}// Default: {default}"));
            }
            let mark = if is_optional { "?" } else { "" };
            lines.push(format!("{indent}{name}{mark}: {}", self.kind(schema, indent)?));
            Some(Field { is_optional, text: lines.join("\n") })
        };
        properties.as_object()?.iter().map(one).collect()
    }

    fn array(&mut self, schema: &'a Map<String, Value>, indent: &str) -> Option<String> {
        let items = schema.get("items").filter(|items| match items {
            Value::Object(members) => !members.is_empty(),
            other => **other == Value::Bool(true),
        });
        let Some(items) = items else { return Some("Array<any>".to_owned()) };
        let inner = format!("{indent}{INDENT}");
        let mut lines = comments(items, &inner)?;
        if lines.is_empty() {
            return Some(format!("Array<{}>", self.kind(items, indent)?));
        }
        lines.push(format!("{inner}{}", self.kind(items, &inner)?));
        Some(format!("Array<\n{}\n{indent}>", lines.join("\n")))
    }
}

fn braced(fields: impl Iterator<Item = String>, indent: &str) -> String {
    let fields: Vec<String> = fields.collect();
    match fields.is_empty() {
        true => "{}".to_owned(),
        false => format!("{{\n{}\n{indent}}}", fields.join(",\n")),
    }
}

/// What is said of a schema above it.
fn comments(schema: &Value, indent: &str) -> Option<Vec<String>> {
    let mut lines: Vec<String> = commented(schema.get("description"), indent)?.into_iter().collect();
    let is_plain = !["$ref", "anyOf", "enum"].iter().any(|keyword| schema.get(keyword).is_some());
    let told: &[&str] = match schema["type"].as_str().filter(|_| is_plain) {
        Some("string") => &["maxLength", "minLength", "pattern"],
        Some("number" | "integer") => &["maximum", "minimum"],
        Some("array") => &["maxItems", "minItems"],
        _ => &[],
    };
    let told = told.iter().filter_map(|keyword| Some(format!("{keyword}: {}", bare(schema.get(keyword)?))));
    let told: Vec<String> = told.collect();
    lines.extend((!told.is_empty()).then(|| format!("{indent}// {}", told.join(", "))));
    Some(lines)
}

/// None: it is no text.
fn commented(description: Option<&Value>, indent: &str) -> Option<Option<String>> {
    let text = match description {
        None | Some(Value::Null) => "",
        Some(other) => other.as_str()?,
    };
    let line = |line: &str| if line.is_empty() { String::new() } else { format!("{indent}// {line}") };
    let lines: Vec<String> = text.split('\n').map(line).collect();
    Some((!text.is_empty()).then(|| lines.join("\n")))
}

fn enumerated(values: &[Value], kind: Option<&Value>) -> Option<String> {
    let kind = match kind {
        Some(Value::Array(kinds)) => match &kinds[..] {
            [kind] => kind.as_str(),
            [null, kind] | [kind, null] if null == "null" => kind.as_str(),
            _ => return None,
        },
        other => other.and_then(Value::as_str),
    };
    // As Python sees them.
    let fits = |value: &Value| match kind {
        _ if value.is_null() => true,
        Some("string") => value.is_string(),
        Some("number") => value.is_number() || value.is_boolean(),
        Some("integer") => value.is_i64() || value.is_u64() || value.is_boolean(),
        Some("boolean") => value.is_boolean(),
        _ => true,
    };
    let one = |value: &Value| if value.is_string() { format!("\"{}\"", bare(value)) } else { bare(value) };
    values.iter().all(fits).then(|| values.iter().map(one).collect::<Vec<_>>().join(" | "))
}

fn one_of_several(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "string" => "string",
        "number" | "integer" => "number",
        "boolean" => "boolean",
        "null" => "null",
        "object" => "{}",
        "array" => "Array<any>",
        _ => return None,
    })
}

/// As Python prints it.
fn bare(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::String(text) => text.clone(),
        other => dumps(other),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TOOLS: &str = r##"[{"type": "function", "function": {"name": "add", "description": "Adds numbers.\n\nTwo lines, é.", "parameters": {"type": "object", "properties": {
  "mode": {"type": "string", "enum": ["x", "y"], "default": "x", "description": "how"},
  "b": {"type": ["integer", "null"], "default": 1.5},
  "a": {"type": "number", "description": "the first", "minimum": 0, "maximum": 9},
  "list": {"type": "array", "items": {"type": "string", "minLength": 1, "pattern": "^a\"b$"}, "maxItems": 3},
  "near": {"type": "array", "items": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"], "additionalProperties": false}},
  "flags": {"type": "object", "additionalProperties": {"type": "boolean"}},
  "any": {"anyOf": [{"type": "string"}, {"type": "array"}, {}], "default": ["é"]},
  "level": {"type": ["integer", "null"], "enum": [1, null]}, "deep": {"type": "boolean", "default": true}},
  "required": ["list", "a"]}}},
 {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
 {"type": "function", "function": {"name": "bare"}},
 {"type": "function", "function": {"name": "walk", "parameters": {"type": "object", "$defs": {"Node": {"type": "object", "description": "A node.", "properties": {"next": {"$ref": "#/$defs/Node"}}}},
  "properties": {"from": {"$ref": "#/$defs/Node", "description": "where"}, "again": {"type": "array", "items": {"$ref": "#"}}}, "required": ["from"]}}}]"##;

    /// What the model's own encoder makes of these tools.
    const DECLARED: &str = r##"# Tools

## functions
namespace functions {
// Adds numbers.

// Two lines, é.
type add = (_: {
  // the first
  // maximum: 9, minimum: 0
  a: number,
  // maxItems: 3
  list: Array<
    // minLength: 1, pattern: ^a"b$
    string
  >,
  // Default: ["é"]
  any?: string | Array<any> | any,
  // Default: 1.5
  b?: number | null,
  // Default: True
  deep?: boolean,
  flags?: {
    [k: string]: boolean
  },
  level?: 1 | None,
  // how
  // Default: "x"
  mode?: "x" | "y",
  near?: Array<{
    lat: number,
    [k: string]: never
  }>
}) => any;
type now = (_: {}) => any;
type bare = (_: {}) => any;
interface parameters {
  again?: Array<parameters>,
  // where
  from: Node
}
// A node.
interface Node {
  next?: Node
}
type walk = (_: parameters) => any;
}
"##;

    fn declared_of(tools: &Value) -> Option<String> {
        let sorted = sorted(tools);
        declared(sorted.as_array().expect("a list"))
    }

    #[test]
    fn tools_are_declared_as_the_models_own_encoder_does_it() {
        let tools: Value = serde_json::from_str(TOOLS).expect("JSON");
        assert_eq!(declared_of(&tools).as_deref(), Some(DECLARED));
    }

    /// As many as fit into a body: each is looked at once, not beside each other.
    #[test]
    fn many_properties_are_declared_in_a_moment() {
        const MANY: usize = 200_000;
        let named = |letter: char| (0..MANY).map(move |at| format!("{letter}{at:05}"));
        let properties: Map<String, Value> = named('a').map(|name| (name, json!({}))).collect();
        let definitions: Map<String, Value> = named('c').map(|name| (name, json!({}))).collect();
        let required: Vec<String> = named('b').collect();
        let tools = json!([{"function": {"name": "f", "parameters":
            {"properties": properties, "required": required, "$defs": definitions}}}]);
        let begun = std::time::Instant::now();
        let declared = declared_of(&tools).expect("they are declared");
        assert!(declared.contains("a59999?: any") && declared.contains("interface c59999 any"));
        assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
    }

    #[test]
    fn what_the_models_own_encoder_refuses_is_not_declared() {
        let with = |schema: Value| {
            declared_of(&json!([{"function": {"name": "f", "parameters": {"properties": {"a": schema}}}}]))
        };
        assert!(with(json!({"type": "string"})).is_some());
        for schema in [
            json!({"description": "of no type"}),
            json!({"$ref": "#/$defs/unknown"}),
            json!({"$ref": "https://example.com"}),
            json!({"type": "string", "enum": [1]}),
            json!({"type": ["string", "number"], "enum": [1]}),
            json!({"type": ["text"]}),
            json!({"type": "string", "description": 5}),
            json!(5),
        ] {
            assert_eq!(with(schema.clone()), None, "{schema}");
        }
    }
}
