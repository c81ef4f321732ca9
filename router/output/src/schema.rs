//! What a tool's JSON schema says of one argument, and with it an argument that was written as a text, as JSON.
//! For formats whose arguments are XML: there `5` is a number, or a text of one digit, only by the schema.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use crate::json;
use crate::python;

/// Schemas looked at for one argument and all that is within it, references followed and alternatives entered.
const MOST_SCHEMAS: usize = 10_000;

/// Values of an `enum`, or bytes of a reference, that count as one more schema.
const AS_ONE_SCHEMA: usize = 16;

/// The JSON types that an argument may have. None of them: nothing is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Types {
    text: bool,
    whole: bool,
    number: bool,
    truth: bool,
    null: bool,
    object: bool,
    array: bool,
}

impl Types {
    /// Of the argument `key` in a tool's `parameters`.
    pub(crate) fn of(parameters: &Value, key: &str) -> Self {
        let mut schemas = Lookups::new(parameters);
        schemas.property(parameters, key).map(|schema| schemas.types(schema)).unwrap_or_default()
    }

    /// With how many schemas were looked at; no types if these were too many.
    pub(crate) fn counted(root: &Value, schema: &Value) -> (Option<Self>, usize) {
        let mut walk = Walk { root, left: MOST_SCHEMAS };
        let types = Self::found(&mut walk, schema);
        (types, walk.looked_at())
    }

    fn found<'a>(walk: &mut Walk<'a>, schema: &'a Value) -> Option<Self> {
        let mut types = Self::default();
        let mut seen = HashSet::from([std::ptr::from_ref(schema)]);
        let mut todo = vec![schema];
        walk.take(1)?;
        while let Some(schema) = todo.pop() {
            types.add(walk, schema)?;
            let alternatives = walk.alternatives(schema)?;
            todo.extend(alternatives.into_iter().filter(|schema| seen.insert(std::ptr::from_ref(*schema))));
        }
        Some(types)
    }

    /// Its text can be passed on as it comes.
    pub(crate) fn only_text(self) -> bool {
        self == Self { text: true, ..Self::default() }
    }

    pub(crate) fn unknown(self) -> bool {
        self == Self::default()
    }

    pub(crate) fn has_text(self) -> bool {
        self.text
    }

    pub(crate) fn may_be_object(self) -> bool {
        self.object || self.unknown()
    }

    /// It is read as a text.
    pub(crate) fn is_text(self, text: &str) -> bool {
        self.json(text).starts_with('"')
    }

    /// What a value of these types begins with if it is no text.
    pub(crate) fn first_characters(self) -> String {
        let first = [
            (self.whole || self.number, "-+.0123456789"),
            (self.truth, "tTfF"),
            (self.null, "nN"),
            (self.object, "{("),
            (self.array, "[("),
        ];
        first.iter().filter(|(is_there, _)| *is_there).map(|(_, characters)| *characters).collect()
    }

    /// What the schema itself says.
    fn add(&mut self, walk: &mut Walk, schema: &Value) -> Option<()> {
        match schema.get("type") {
            Some(Value::String(name)) => self.add_name(name),
            Some(Value::Array(names)) => {
                walk.take(names.len() / AS_ONE_SCHEMA)?;
                names.iter().filter_map(Value::as_str).for_each(|name| self.add_name(name))
            }
            _ => {
                if let Some(values) = schema.get("enum").and_then(Value::as_array) {
                    walk.take(values.len() / AS_ONE_SCHEMA)?;
                    values.iter().for_each(|value| self.add_value(value));
                }
                if let Some(value) = schema.get("const") {
                    self.add_value(value);
                }
            }
        }
        Some(())
    }

    /// Names beside JSON Schema's are those that vLLM and SGLang take.
    fn add_name(&mut self, name: &str) {
        let is = |names: &[&str]| names.iter().any(|known| known.eq_ignore_ascii_case(name));
        self.text |= is(&["string", "str", "text", "enum"]);
        self.whole |= is(&["integer", "int"]);
        self.number |= is(&["number", "float", "double"]);
        self.truth |= is(&["boolean", "bool"]);
        self.null |= is(&["null", "none"]);
        self.object |= is(&["object", "dict", "map"]);
        self.array |= is(&["array", "list", "tuple"]);
    }

    fn add_value(&mut self, value: &Value) {
        match value {
            Value::Null => self.null = true,
            Value::Bool(_) => self.truth = true,
            Value::Number(_) => self.number = true,
            Value::String(_) => self.text = true,
            Value::Array(_) => self.array = true,
            Value::Object(_) => self.object = true,
        }
    }

    /// `text` as JSON of one of these types, a string when nothing else fits. Of a value that may be a text and
    /// something else, the other is tried first.
    pub(crate) fn json(self, text: &str) -> String {
        let trimmed = text.trim();
        let of_type = match trimmed {
            "null" | "None" if self.null || !self.text => Some("null".to_owned()),
            "true" | "True" | "TRUE" if self.truth => Some("true".to_owned()),
            "false" | "False" | "FALSE" if self.truth => Some("false".to_owned()),
            _ => json::value(trimmed).and_then(|value| self.takes(value).then(|| value.to_owned())),
        };
        if let Some(json) = of_type {
            return json;
        }
        if (self.object || self.array)
            && trimmed.starts_with(['{', '[', '('])
            && let Some(json) = python::literal(trimmed)
        {
            return json;
        }
        if !self.text && !self.unknown() {
            // The model was asked for another type, and wrote a text or something of a third type.
            if let Some(value) = json::value(trimmed) {
                return value.to_owned();
            }
        }
        let mut quoted = String::with_capacity(text.len() + 2);
        json::push_quoted(&mut quoted, text);
        quoted
    }

    fn takes(self, value: &str) -> bool {
        match value.as_bytes()[0] {
            b'{' => self.object,
            b'[' => self.array,
            b't' | b'f' => self.truth,
            b'n' => self.null,
            b'"' => false,
            _ => self.number || (self.whole && !value.contains(['.', 'e', 'E'])),
        }
    }
}

/// The schemas of what is within one argument. Each is looked up once, since a value has the same properties many times.
pub(crate) struct Lookups<'a> {
    walk: Walk<'a>,
    properties: HashMap<*const Value, HashMap<String, Option<&'a Value>>>,
    items: HashMap<*const Value, Option<&'a Value>>,
    types: HashMap<*const Value, Types>,
}

impl<'a> Lookups<'a> {
    /// Within a function's schema.
    pub(crate) fn new(root: &'a Value) -> Self {
        Self {
            walk: Walk { root, left: MOST_SCHEMAS },
            properties: HashMap::new(),
            items: HashMap::new(),
            types: HashMap::new(),
        }
    }

    pub(crate) fn property(&mut self, schema: &'a Value, key: &str) -> Option<&'a Value> {
        let known = self.properties.entry(std::ptr::from_ref(schema)).or_default();
        if let Some(&found) = known.get(key) {
            return found;
        }
        let found = self.walk.property(schema, key);
        known.insert(key.to_owned(), found);
        found
    }

    /// Of an array's items.
    pub(crate) fn items(&mut self, schema: &'a Value) -> Option<&'a Value> {
        let found = self.items.entry(std::ptr::from_ref(schema));
        *found.or_insert_with(|| self.walk.items(schema))
    }

    pub(crate) fn types(&mut self, schema: &'a Value) -> Types {
        let found = self.types.entry(std::ptr::from_ref(schema));
        *found.or_insert_with(|| Types::found(&mut self.walk, schema).unwrap_or_default())
    }

    #[cfg(test)]
    pub(crate) fn looked_at(&self) -> usize {
        self.walk.looked_at()
    }
}

/// Goes from schema to schema, for a bounded number of them.
struct Walk<'a> {
    root: &'a Value,
    left: usize,
}

impl<'a> Walk<'a> {
    fn looked_at(&self) -> usize {
        MOST_SCHEMAS - self.left
    }

    /// None: these are too many, and all that come after.
    fn take(&mut self, schemas: usize) -> Option<()> {
        let left = self.left.checked_sub(schemas);
        self.left = left.unwrap_or(0);
        left.map(|_| ())
    }

    /// Also where the schema refers to another place or offers alternatives.
    fn property(&mut self, schema: &'a Value, key: &str) -> Option<&'a Value> {
        enum Look<'a> {
            Into(&'a Value),
            /// At the schema of properties without one of their own; after all that the schema refers to and offers.
            Additional(&'a Value),
        }
        let mut seen = HashSet::new();
        let mut todo = vec![Look::Into(schema)];
        while let Some(look) = todo.pop() {
            let schema = match look {
                Look::Additional(schema) => return Some(schema),
                Look::Into(schema) if !seen.insert(std::ptr::from_ref(schema)) => continue,
                Look::Into(schema) => schema,
            };
            if let Some(found) = schema.get("properties").and_then(|properties| properties.get(key)) {
                return Some(found);
            }
            let additional = schema.get("additionalProperties").filter(|additional| additional.is_object());
            todo.extend(additional.map(Look::Additional));
            todo.extend(self.alternatives(schema)?.into_iter().rev().map(Look::Into));
        }
        None
    }

    /// As of a property.
    fn items(&mut self, schema: &'a Value) -> Option<&'a Value> {
        let mut seen = HashSet::new();
        let mut todo = vec![schema];
        while let Some(schema) = todo.pop() {
            if let Some(found) = schema.get("items") {
                return Some(found);
            }
            if seen.insert(std::ptr::from_ref(schema)) {
                todo.extend(self.alternatives(schema)?.into_iter().rev());
            }
        }
        None
    }

    /// What a schema refers to and offers, in the order in which it counts. None: there are too many.
    fn alternatives(&mut self, schema: &'a Value) -> Option<Vec<&'a Value>> {
        let reference = schema.get("$ref").and_then(Value::as_str).map_or(0, str::len);
        self.take(reference / AS_ONE_SCHEMA)?;
        let referred = referred(self.root, schema);
        let list = |name: &str| schema.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let choices = ["anyOf", "oneOf", "allOf"].map(list);
        self.take(usize::from(referred.is_some()) + choices.iter().map(|list| list.len()).sum::<usize>())?;
        Some(referred.into_iter().chain(choices.into_iter().flatten()).collect())
    }
}

fn referred<'a>(root: &'a Value, schema: &Value) -> Option<&'a Value> {
    root.pointer(schema.get("$ref")?.as_str()?.strip_prefix('#')?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_text_becomes_what_the_schema_says() {
        let parameters = json!({
            "properties": {
                "whole": {"type": "integer"},
                "number": {"type": "number"},
                "flag": {"type": "boolean"},
                "text": {"type": "string"},
                "list": {"type": "array"},
                "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                "either": {"type": ["string", "integer"]},
                "level": {"enum": ["low", "high"]},
                "there": {"$ref": "#/$defs/point"},
            },
            "$defs": {"point": {"type": "object"}},
        });
        for (key, text, expected) in [
            ("whole", "5", json!(5)),
            ("whole", " 5\n", json!(5)),
            ("whole", "five", json!("five")),
            (
                "whole",
                "123456789012345678901234567890",
                serde_json::from_str("123456789012345678901234567890").expect("JSON"),
            ),
            ("number", "-0.5", json!(-0.5)),
            ("flag", "True", json!(true)),
            ("flag", "maybe", json!("maybe")),
            ("text", "5", json!("5")),
            ("text", "null", json!("null")),
            ("list", "[1, \"a\"]", json!([1, "a"])),
            ("list", "['a', True, None]", json!(["a", true, null])),
            ("list", "one, two", json!("one, two")),
            ("maybe", "null", json!(null)),
            ("maybe", "7", json!(7)),
            ("either", "7", json!(7)),
            ("either", "seven", json!("seven")),
            ("level", "low", json!("low")),
            ("there", "{\"x\": 1}", json!({"x": 1})),
            ("not there", "7", json!("7")),
        ] {
            let json = Types::of(&parameters, key).json(text);
            assert_eq!(serde_json::from_str::<Value>(&json).expect("JSON"), expected, "{key}: {text}");
        }
    }

    #[test]
    fn schemas_that_refer_to_themselves_end() {
        let parameters = json!({
            "properties": {"a": {"$ref": "#/properties/a"}, "b": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}},
            "$ref": "#",
            "anyOf": [{"$ref": "#"}],
        });
        assert!(Types::of(&parameters, "a").unknown());
        assert!(Types::of(&parameters, "b").unknown());
        assert!(Types::of(&parameters, "c").unknown());
    }

    #[test]
    fn each_schema_is_looked_at_once() {
        let again: Vec<Value> = (0..30).map(|_| json!({"$ref": "#/properties/a"})).collect();
        let parameters = json!({
            "properties": {"a": {"anyOf": again, "type": "integer"}},
            "allOf": [{"$ref": "#/$defs/all"}, {"$ref": "#/$defs/all"}],
            "$defs": {"all": {"oneOf": [{"$ref": "#"}, {"$ref": "#/$defs/all"}, {"properties": {"b": {"type": "null"}}}]}},
        });
        let (types, looked_at) = Types::counted(&parameters, &parameters["properties"]["a"]);
        assert_eq!(types, Some(Types { whole: true, ..Types::default() }));
        // Itself, its alternatives, and what each of these refers to.
        assert_eq!(looked_at, 1 + 30 + 30 * (1 + "#/properties/a".len() / AS_ONE_SCHEMA));
        assert_eq!(Types::of(&parameters, "b").json("null"), "null");
        assert_eq!(Lookups::new(&parameters).property(&parameters, "c"), None);
    }

    #[test]
    fn what_is_within_an_argument_has_one_budget() {
        let many: Vec<Value> =
            (0..1000).map(|n| json!({"properties": {(format!("p{n}")): {"type": "integer"}}})).collect();
        let parameters = json!({"anyOf": many});
        let mut schemas = Lookups::new(&parameters);
        for _ in 0..100 {
            let last = schemas.property(&parameters, "p999").expect("it is there");
            assert_eq!(schemas.types(last).json("5"), "5");
        }
        // The alternatives and the property itself, once.
        assert_eq!(schemas.looked_at(), 1000 + 1);
        for n in 0..100 {
            assert_eq!(schemas.property(&parameters, &format!("x{n}")), None);
        }
        assert_eq!(schemas.looked_at(), MOST_SCHEMAS);
        // What was not looked up before is not known any more.
        assert!(schemas.property(&parameters, "p999").is_some());
        assert_eq!(schemas.property(&parameters, "p998"), None);
    }

    #[test]
    fn an_arrays_items_are_found_as_properties_are() {
        let array = json!({"type": "array", "items": {"type": "integer"}});
        let parameters = json!({"$defs": {"list": array, "maybe": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/list"}]}, "none": {"$ref": "#/$defs/none"}}});
        let mut schemas = Lookups::new(&parameters);
        for (name, is_there) in [("list", true), ("maybe", true), ("none", false)] {
            assert_eq!(schemas.items(&parameters["$defs"][name]).is_some(), is_there, "{name}");
        }
    }

    #[test]
    fn of_too_many_schemas_nothing_is_known() {
        let many: Vec<Value> = (0..MOST_SCHEMAS).map(|_| json!({"type": "integer"})).collect();
        let parameters = json!({"properties": {"a": {"anyOf": many}}, "anyOf": many});
        assert_eq!(Types::counted(&parameters, &parameters["properties"]["a"]).0, None);
        assert!(Types::of(&parameters, "a").unknown());
        assert_eq!(Lookups::new(&parameters).property(&parameters, "b"), None);
    }

    #[test]
    fn a_property_is_looked_for_in_order() {
        let parameters = json!({
            "$ref": "#/$defs/one",
            "anyOf": [{"additionalProperties": {"title": "of an alternative"}}, {"properties": {"a": {"title": "too late"}}}],
            "additionalProperties": {"title": "too late"},
            "$defs": {"one": {"properties": {"b": {"title": "referred"}}}},
        });
        let title =
            |key: &str| Lookups::new(&parameters).property(&parameters, key).map(|schema| &schema["title"]);
        assert_eq!(title("b"), Some(&json!("referred")));
        assert_eq!(title("a"), Some(&json!("of an alternative")));
    }
}
