//! A function's schema taken apart, for formats that do not write arguments as JSON: into the properties of an object, and into
//! what is written as text and what as JSON. What cannot be taken apart is told, with its place.

use serde_json::{Map, Value, json};

use crate::formats::{Parameters, Unknown};
use crate::part::Words;
use crate::schema::Types;

/// References followed, and schemas within schemas where they are taken apart.
pub(crate) const MAX_DEPTH: usize = 16;

/// Keywords that say nothing of a value.
const ANNOTATIONS: [&str; 13] = [
    "title",
    "description",
    "default",
    "examples",
    "example",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$comment",
    "$schema",
    "$id",
    "$defs",
    "definitions",
];

/// Keywords of strings alone.
pub(crate) const OF_STRINGS: [&str; 4] = ["minLength", "maxLength", "pattern", "format"];

/// Keywords of objects that cannot be told from the names of properties one by one.
const OF_WHOLE_OBJECTS: [&str; 19] = [
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "enum",
    "const",
    "patternProperties",
    "propertyNames",
    "minProperties",
    "maxProperties",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
    "then",
    "else",
];

/// Keywords that say something of a value.
const ASSERTS: [&str; 34] = [
    "type",
    "enum",
    "const",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "items",
    "prefixItems",
    "additionalItems",
    "minItems",
    "maxItems",
    "uniqueItems",
    "contains",
    "properties",
    "required",
    "additionalProperties",
    "patternProperties",
    "propertyNames",
    "minProperties",
    "maxProperties",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "$ref",
    "$dynamicRef",
    "$recursiveRef",
];

/// Why a function's calls cannot be held to its schema in the model's own format.
#[derive(Clone, Debug, PartialEq)]
pub struct Unbound {
    /// Where the client gave it.
    pub at: String,
    pub why: String,
}

pub(crate) type Result<T> = std::result::Result<T, Unbound>;

pub(crate) fn unbound<T>(at: &str, why: impl Into<String>) -> Result<T> {
    Err(Unbound { at: at.to_owned(), why: why.into() })
}

/// A property of an object.
pub(crate) struct Property<'a> {
    pub(crate) key: &'a str,
    pub(crate) schema: &'a Value,
    pub(crate) is_required: bool,
    pub(crate) at: String,
}

/// The properties that may be written, or the schema of all those that have any name.
pub(crate) enum Properties<'a> {
    Named(Vec<Property<'a>>),
    Free(&'a Value),
}

/// A schema, by how its values are written.
#[derive(Default)]
pub(crate) struct Split {
    pub(crate) words: Vec<Words>,
    pub(crate) others: Vec<Value>,
}

pub(crate) static ANYTHING: Value = Value::Bool(true);

/// Schemas, and the one of the whole function, in which their references are looked up.
pub(crate) struct Schemas<'a> {
    pub(crate) root: &'a Value,
}

impl<'a> Schemas<'a> {
    /// What a lone reference means, or the schema itself.
    pub(crate) fn meant(&self, schema: &'a Value, at: &str) -> Result<&'a Value> {
        let mut schema = schema;
        for _ in 0..MAX_DEPTH {
            let Some(members) = schema.as_object() else { return Ok(schema) };
            let lone = |key: &str| asserting(members).all(|name| name == key);
            schema = match (members.get("$ref").and_then(Value::as_str), members.get("allOf")) {
                (Some(reference), _) if lone("$ref") => {
                    let target = reference.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer));
                    match target {
                        Some(target) => target,
                        None => {
                            return unbound(
                                at,
                                format!("the reference {reference:?} cannot be followed here"),
                            );
                        }
                    }
                }
                (_, Some(Value::Array(parts))) if parts.len() == 1 && lone("allOf") => &parts[0],
                _ => return Ok(schema),
            };
        }
        unbound(at, "its references are endless, or too many")
    }

    /// A schema that stands alone, with the definitions that it refers to.
    pub(crate) fn document(&self, schema: &Value, at: &str) -> Result<Value> {
        let text = schema.to_string();
        if !text.contains("Ref\"") && !text.contains("\"$ref\"") {
            return Ok(schema.clone());
        }
        let mut document = match schema {
            Value::Object(members) => members.clone(),
            other => return Ok(other.clone()),
        };
        for name in ["$schema", "$defs", "definitions"] {
            match self.root.get(name) {
                Some(value) => document.insert(name.to_owned(), value.clone()),
                None => document.remove(name),
            };
        }
        let document = Value::Object(document);
        match foreign_reference(&document) {
            Some(reference) => unbound(at, format!("the reference {reference:?} is not to `$defs`")),
            None => Ok(document),
        }
    }

    pub(crate) fn properties(&self, schema: &'a Value, at: &str) -> Result<Properties<'a>> {
        let Value::Object(members) = self.meant(schema, at)? else {
            return unbound(at, "it is not the schema of an object");
        };
        if let Some(keyword) = OF_WHOLE_OBJECTS.iter().find(|keyword| members.contains_key(**keyword)) {
            return unbound(at, format!("`{keyword}` is about the object as a whole"));
        }
        let additional = members.get("additionalProperties").unwrap_or(&ANYTHING);
        let named = members.get("properties").and_then(Value::as_object).into_iter().flatten();
        let named: Vec<(&'a str, &'a Value)> = named.map(|(key, value)| (key.as_str(), value)).collect();
        let required = members.get("required").and_then(Value::as_array);
        let required: Vec<&'a str> = required.into_iter().flatten().filter_map(Value::as_str).collect();
        if named.is_empty() && required.is_empty() {
            return Ok(match additional {
                Value::Bool(false) => Properties::Named(Vec::new()),
                schema => Properties::Free(schema),
            });
        }
        let more = required.iter().filter(|key| !named.iter().any(|(name, _)| name == *key));
        let all = named.iter().copied().chain(more.map(|key| (*key, additional)));
        let mut properties = Vec::new();
        for (key, schema) in all {
            let is_required = required.contains(&key);
            let at = format!("{at}/properties/{key}");
            match schema {
                Value::Bool(false) if is_required => return unbound(&at, "it is required and cannot be"),
                Value::Bool(false) => continue,
                _ if key.is_empty() || !key.chars().all(|c| c.is_alphanumeric() || "_-.$@/".contains(c)) => {
                    return unbound(&at, "its name has other characters than letters, digits and `_-.$@/`");
                }
                _ => properties.push(Property { key, schema, is_required, at }),
            }
        }
        Ok(Properties::Named(properties))
    }

    /// Takes a schema apart into strings and other values, as the parser will tell them.
    pub(crate) fn split(
        &self,
        schema: &'a Value,
        at: &str,
        depth: usize,
        parameters: &Parameters,
        into: &mut Split,
    ) -> Result<()> {
        if depth > MAX_DEPTH {
            return unbound(at, "its schemas are nested too deeply");
        }
        let schema = self.meant(schema, at)?;
        let members = match schema {
            Value::Bool(false) => return Ok(()),
            Value::Object(members) => members,
            _ => {
                into.words.push(any_string(at));
                if parameters.kind.is_some() {
                    into.others.push(json!({}));
                }
                return Ok(());
            }
        };
        let types = Types::of_schema(self.root, schema);
        if !types.unknown() && !types.has_text() {
            into.others.push(schema.clone());
            return Ok(());
        }
        for key in ["anyOf", "oneOf"] {
            let Some(options) = members.get(key).and_then(Value::as_array) else { continue };
            if asserting(members).any(|name| name != key) {
                return unbound(at, format!("`{key}` stands beside other keywords"));
            }
            let (words, others) = (into.words.len(), into.others.len());
            for option in options {
                self.split(option, at, depth + 1, parameters, into)?;
            }
            if key == "oneOf" && (into.words.len() > words + 1 || into.others.len() > others + 1) {
                return unbound(at, "`oneOf` of more than one kind of text or of other values");
            }
            return Ok(());
        }
        let listed = match (members.get("enum"), members.get("const")) {
            (Some(Value::Array(values)), None) => Some(values.clone()),
            (None, Some(value)) => Some(vec![value.clone()]),
            _ => None,
        };
        if let Some(values) = listed {
            if let Some(name) = asserting(members).find(|name| !["type", "enum", "const"].contains(name)) {
                return unbound(at, format!("`{name}` stands beside a list of values"));
            }
            let is_word =
                |value: &Value| value.is_string() || (parameters.kind.is_none() && !is_nested(value));
            let (words, others): (Vec<Value>, Vec<Value>) = values.into_iter().partition(is_word);
            let mut texts: Vec<String> = Vec::new();
            for word in words {
                let text = match &word {
                    // It would be read as a value of another type.
                    Value::String(text) if parameters.kind.is_none() && !types.is_text(text) => continue,
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                if !texts.contains(&text) {
                    texts.push(text);
                }
            }
            if !texts.is_empty() {
                into.words.push(Words::Exactly(texts));
            }
            if !others.is_empty() {
                into.others.push(json!({"enum": others}));
            }
            return Ok(());
        }
        let mut words = Map::new();
        for (name, value) in members {
            if OF_STRINGS.contains(&name.as_str()) {
                words.insert(name.clone(), value.clone());
            } else if types.unknown()
                && !ANNOTATIONS.contains(&name.as_str())
                && ASSERTS.contains(&name.as_str())
            {
                return unbound(at, format!("`{name}` without a `type`"));
            } else if ["allOf", "not", "if", "$ref", "$dynamicRef", "$recursiveRef"].contains(&name.as_str())
            {
                return unbound(at, format!("`{name}` is about a text and other values together"));
            }
        }
        if types.unknown() && !words.is_empty() && parameters.unknown == Unknown::Json {
            return unbound(at, "it says something of strings and has no `type`");
        }
        into.words.push(Words::String { schema: words, at: at.to_owned() });
        if types.unknown() && parameters.kind.is_some() {
            into.others.push(schema.clone());
        }
        if let Some(Value::Array(names)) = members.get("type") {
            let rest: Vec<Value> = names.iter().filter(|name| *name != "string").cloned().collect();
            for name in rest {
                let mut other = members.clone();
                other.retain(|key, _| !OF_STRINGS.contains(&key.as_str()));
                other.insert("type".to_owned(), name);
                into.others.push(Value::Object(other));
            }
        }
        Ok(())
    }
}

pub(crate) fn asserting(members: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let names = members.keys().map(String::as_str);
    names.filter(|name| !ANNOTATIONS.contains(name) && ASSERTS.contains(name))
}

pub(crate) fn any_string(at: &str) -> Words {
    Words::String { schema: Map::new(), at: at.to_owned() }
}

pub(crate) fn is_nested(value: &Value) -> bool {
    matches!(value, Value::Array(_) | Value::Object(_))
}

/// A reference that is not to a definition.
pub(crate) fn foreign_reference(value: &Value) -> Option<&str> {
    match value {
        Value::Object(members) => members.iter().find_map(|(key, value)| match (key.as_str(), value) {
            ("$ref", Value::String(reference)) => {
                let is_own = reference.starts_with("#/$defs/") || reference.starts_with("#/definitions/");
                (!is_own).then_some(reference.as_str())
            }
            ("$dynamicRef" | "$recursiveRef", Value::String(reference)) => Some(reference.as_str()),
            _ => foreign_reference(value),
        }),
        Value::Array(items) => items.iter().find_map(foreign_reference),
        _ => None,
    }
}
