//! What a tool's JSON schema says of one argument, and with it an argument that was written as a text, as JSON.
//! For formats whose arguments are XML: there `5` is a number, or a text of one digit, only by the schema.

use serde_json::Value;

use crate::json;
use crate::python;

/// References followed and alternatives entered below one argument.
const MAX_DEPTH: usize = 16;

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
        let mut types = Self::default();
        if let Some(schema) = property(parameters, parameters, key, 0) {
            types.add(parameters, schema, 0);
        }
        types
    }

    pub(crate) fn of_schema(root: &Value, schema: &Value) -> Self {
        let mut types = Self::default();
        types.add(root, schema, 0);
        types
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

    fn add(&mut self, root: &Value, schema: &Value, depth: usize) {
        if depth > MAX_DEPTH {
            return;
        }
        match schema.get("type") {
            Some(Value::String(name)) => self.add_name(name),
            Some(Value::Array(names)) => {
                names.iter().filter_map(Value::as_str).for_each(|name| self.add_name(name))
            }
            _ => {
                if let Some(values) = schema.get("enum").and_then(Value::as_array) {
                    values.iter().for_each(|value| self.add_value(value));
                }
                if let Some(value) = schema.get("const") {
                    self.add_value(value);
                }
            }
        }
        for choice in ["anyOf", "oneOf", "allOf"] {
            let choices = schema.get(choice).and_then(Value::as_array);
            choices.into_iter().flatten().for_each(|schema| self.add(root, schema, depth + 1));
        }
        if let Some(schema) = referred(root, schema) {
            self.add(root, schema, depth + 1);
        }
    }

    /// Names beside JSON Schema's are those that vLLM and SGLang take.
    fn add_name(&mut self, name: &str) {
        match name.to_ascii_lowercase().as_str() {
            "string" | "str" | "text" | "enum" => self.text = true,
            "integer" | "int" => self.whole = true,
            "number" | "float" | "double" => self.number = true,
            "boolean" | "bool" => self.truth = true,
            "null" | "none" => self.null = true,
            "object" | "dict" | "map" => self.object = true,
            "array" | "list" | "tuple" => self.array = true,
            _ => {}
        }
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

/// The schema of a property, also where `parameters` refer to another place or offer alternatives.
pub(crate) fn property<'a>(root: &'a Value, schema: &'a Value, key: &str, depth: usize) -> Option<&'a Value> {
    if depth > MAX_DEPTH {
        return None;
    }
    if let Some(found) = schema.get("properties").and_then(|properties| properties.get(key)) {
        return Some(found);
    }
    let referred = referred(root, schema).and_then(|schema| property(root, schema, key, depth + 1));
    referred
        .or_else(|| {
            let choices =
                ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|choice| schema.get(choice)?.as_array());
            choices.flatten().find_map(|schema| property(root, schema, key, depth + 1))
        })
        .or_else(|| schema.get("additionalProperties").filter(|additional| additional.is_object()))
}

/// Of an array's items.
pub(crate) fn items<'a>(root: &'a Value, schema: &'a Value) -> Option<&'a Value> {
    schema.get("items").or_else(|| referred(root, schema)?.get("items"))
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
}
