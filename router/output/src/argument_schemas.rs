//! A function's schema taken apart, for formats that do not write arguments as JSON: into the properties of an object, and into
//! what is written as text and what as JSON. What cannot be taken apart is told, with its place.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use crate::formats::{Parameters, Unknown};
use crate::part::Words;
use crate::schema::Types;

/// References followed, and schemas within schemas where they are taken apart.
pub(crate) const MAX_DEPTH: usize = 16;

/// What the functions of a request may take together as they are written for a grammar: bytes of their schemas, names and texts,
/// with a few for each part, and for each schema that is looked at. A grammar is refused at less.
const MOST_BYTES: usize = 2 << 20;

/// For a schema that is looked at, and for a part that is written.
pub(crate) const OF_ONE: usize = 16;

/// For a keyword or a name that is looked at.
pub(crate) const OF_A_NAME: usize = 8;

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

/// Where a schema has what it refers to.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// Keywords of strings alone.
pub(crate) const OF_STRINGS: [&str; 4] = ["minLength", "maxLength", "pattern", "format"];

/// Keywords of objects that cannot be told from the names of properties one by one.
pub(crate) const OF_WHOLE_OBJECTS: [&str; 20] = [
    "$ref",
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
const ASSERTS: [&str; 39] = [
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
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "unevaluatedProperties",
    "unevaluatedItems",
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

/// The section that a reference to a definition names, and what of that.
fn definition_of(reference: &str) -> Option<(&'static str, &str)> {
    DEFINITIONS.into_iter().find_map(|section| {
        let place = reference.strip_prefix("#/")?.strip_prefix(section)?.strip_prefix('/')?;
        Some((section, place))
    })
}

/// The section in which it is, its name, and itself.
type Definition<'a> = (&'static str, &'a str, &'a Value);

/// A schema, by how its values are written.
#[derive(Default)]
pub(crate) struct Split<'a> {
    pub(crate) words: Vec<Words>,
    pub(crate) others: Vec<Cow<'a, Value>>,
}

pub(crate) static ANYTHING: Value = Value::Bool(true);

/// What is left of `MOST_BYTES`. Without it a short schema could be written at any length: references fan out.
pub(crate) struct Budget {
    left: Cell<usize>,
}

impl Default for Budget {
    fn default() -> Self {
        Self { left: Cell::new(MOST_BYTES) }
    }
}

impl Budget {
    pub(crate) fn take(&self, bytes: usize, at: &str) -> Result<()> {
        match self.left.get().checked_sub(bytes) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => {
                self.left.set(0);
                let most = MOST_BYTES >> 20;
                unbound(
                    at,
                    format!("with it the functions take more than {most} MiB as they are written in it"),
                )
            }
        }
    }
}

/// Schemas, and the one of the whole function, in which their references are looked up.
pub(crate) struct Schemas<'a> {
    pub(crate) root: &'a Value,
    pub(crate) budget: &'a Budget,
    /// Of schemas that several properties may mean.
    types: RefCell<HashMap<*const Value, Types>>,
}

impl<'a> Schemas<'a> {
    pub(crate) fn new(root: &'a Value, budget: &'a Budget) -> Self {
        Self { root, budget, types: RefCell::default() }
    }

    pub(crate) fn types(&self, schema: &'a Value, at: &str) -> Result<Types> {
        let address = std::ptr::from_ref(schema);
        if let Some(&types) = self.types.borrow().get(&address) {
            return Ok(types);
        }
        let types = self.types_of(schema, at)?;
        self.types.borrow_mut().insert(address, types);
        Ok(types)
    }

    /// Of a schema that need not be the function's.
    pub(crate) fn types_of(&self, schema: &Value, at: &str) -> Result<Types> {
        let (types, looked_at) = Types::counted(self.root, schema);
        self.budget.take(OF_A_NAME * looked_at, at)?;
        types.map_or_else(|| unbound(at, "it has too many alternatives"), Ok)
    }

    /// What a lone reference means, or the schema itself.
    pub(crate) fn meant(&self, schema: &'a Value, at: &str) -> Result<&'a Value> {
        let mut schema = schema;
        self.budget.take(OF_ONE + at.len(), at)?;
        for _ in 0..MAX_DEPTH {
            let Some(members) = schema.as_object() else { return Ok(schema) };
            self.budget.take(OF_ONE + OF_A_NAME * members.len(), at)?;
            let lone = |key: &str| asserting(members).all(|name| name == key);
            schema = match (members.get("$ref").and_then(Value::as_str), members.get("allOf")) {
                (Some(reference), _) if lone("$ref") => {
                    self.budget.take(reference.len(), at)?;
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
        let mut references = Vec::new();
        self.weigh(schema, at, &mut references)?;
        let Value::Object(members) = schema else { return Ok(schema.clone()) };
        if references.is_empty() {
            return Ok(schema.clone());
        }
        let mut document = members.clone();
        match self.root.get("$schema") {
            Some(value) => document.insert("$schema".to_owned(), value.clone()),
            None => document.remove("$schema"),
        };
        for name in DEFINITIONS {
            document.remove(name);
        }
        let mut copied = HashSet::new();
        while let Some(reference) = references.pop() {
            for (section, name, definition) in self.definitions(reference, at)? {
                if !copied.insert((section, name)) {
                    continue;
                }
                self.budget.take(name.len(), at)?;
                self.weigh(definition, at, &mut references)?;
                let section = document.entry(section).or_insert_with(|| json!({}));
                section[name] = definition.clone();
            }
        }
        Ok(Value::Object(document))
    }

    /// The function's definitions that a reference is to, by their sections and names; all of a section if its name is not
    /// found as it is written.
    fn definitions(&self, reference: &str, at: &str) -> Result<Vec<Definition<'a>>> {
        let Some((section, place)) = definition_of(reference) else { return Ok(Vec::new()) };
        let Some(Value::Object(members)) = self.root.get(section) else { return Ok(Vec::new()) };
        let name = place.split('/').next().unwrap_or(place).replace("~1", "/").replace("~0", "~");
        match members.get_key_value(&name) {
            Some((name, definition)) => Ok(vec![(section, name, definition)]),
            None => {
                self.budget.take(OF_A_NAME * members.len(), at)?;
                Ok(members.iter().map(|(name, definition)| (section, name.as_str(), definition)).collect())
            }
        }
    }

    /// Takes a value's bytes, and finds the definitions that it refers to. What is no definition cannot be referred to.
    pub(crate) fn weigh<'v>(&self, value: &'v Value, at: &str, references: &mut Vec<&'v str>) -> Result<()> {
        match value {
            Value::Object(members) => {
                for (key, value) in members {
                    self.budget.take(key.len() + 4, at)?;
                    match (key.as_str(), value) {
                        ("$ref", Value::String(reference)) if definition_of(reference).is_some() => {
                            references.push(reference);
                        }
                        ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(reference)) => {
                            return unbound(at, format!("the reference {reference:?} is not to `$defs`"));
                        }
                        _ => {}
                    }
                    self.weigh(value, at, references)?;
                }
                Ok(())
            }
            Value::Array(items) => {
                self.budget.take(items.len(), at)?;
                items.iter().try_for_each(|item| self.weigh(item, at, references))
            }
            Value::String(text) => self.budget.take(text.len() + 2, at),
            _ => self.budget.take(4, at),
        }
    }

    /// `value`, which is written again.
    pub(crate) fn copied(&self, value: &Value, at: &str) -> Result<Value> {
        self.weigh(value, at, &mut Vec::new())?;
        Ok(value.clone())
    }

    pub(crate) fn properties(&self, schema: &'a Value, at: &str) -> Result<Properties<'a>> {
        let schema = self.meant(schema, at)?;
        let Value::Object(members) = schema else {
            return unbound(at, "it is not the schema of an object");
        };
        if let Some(keyword) = OF_WHOLE_OBJECTS.iter().find(|keyword| members.contains_key(**keyword)) {
            return unbound(at, format!("`{keyword}` is about the object as a whole"));
        }
        if !self.types(schema, at)?.may_be_object() {
            return unbound(at, "it is not the schema of an object");
        }
        let additional = members.get("additionalProperties").unwrap_or(&ANYTHING);
        let named = members.get("properties").and_then(Value::as_object);
        let keys = members.get("required").and_then(Value::as_array);
        let (names, keys) = (named.map_or(0, Map::len), keys.map(Vec::as_slice).unwrap_or_default());
        self.budget.take(OF_A_NAME * (names + keys.len()), at)?;
        let mut required = HashSet::new();
        let mut more = Vec::new();
        for key in keys.iter().filter_map(Value::as_str) {
            if required.insert(key) && named.is_none_or(|named| !named.contains_key(key)) {
                more.push((key, additional));
            }
        }
        if names == 0 && required.is_empty() {
            return Ok(match additional {
                Value::Bool(false) => Properties::Named(Vec::new()),
                schema => Properties::Free(schema),
            });
        }
        let named = named.into_iter().flatten().map(|(key, schema)| (key.as_str(), schema));
        let mut properties = Vec::new();
        for (key, schema) in named.chain(more) {
            let is_required = required.contains(key);
            self.budget.take(OF_ONE + at.len() + key.len(), at)?;
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
        into: &mut Split<'a>,
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
                    into.others.push(Cow::Owned(json!({})));
                }
                return Ok(());
            }
        };
        let types = self.types(schema, at)?;
        if !types.unknown() && !types.has_text() {
            into.others.push(Cow::Borrowed(schema));
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
            (Some(Value::Array(values)), None) => Some(values.as_slice()),
            (None, Some(value)) => Some(std::slice::from_ref(value)),
            _ => None,
        };
        if let Some(values) = listed {
            let names = members.get("type").and_then(Value::as_array).map_or(1, Vec::len);
            self.budget.take(OF_A_NAME * (names + values.len()), at)?;
            if let Some(name) = asserting(members).find(|name| !["type", "enum", "const"].contains(name)) {
                return unbound(at, format!("`{name}` stands beside a list of values"));
            }
            let is_of_type = of_types(members.get("type"));
            let values = values.iter().filter(|value| is_of_type(value));
            let is_word =
                |value: &&Value| value.is_string() || (parameters.kind.is_none() && !is_nested(value));
            let (words, others): (Vec<&Value>, Vec<&Value>) = values.partition(is_word);
            let mut texts: Vec<String> = Vec::new();
            let mut seen = HashSet::new();
            for word in words {
                let text = match word {
                    // It would be read as a value of another type.
                    Value::String(text) if parameters.kind.is_none() && !types.is_text(text) => continue,
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                if seen.insert(text.clone()) {
                    self.budget.take(text.len(), at)?;
                    texts.push(text);
                }
            }
            if !texts.is_empty() {
                into.words.push(Words::Exactly(texts));
            }
            if !others.is_empty() {
                let others: Result<Vec<_>> = others.into_iter().map(|value| self.copied(value, at)).collect();
                into.others.push(Cow::Owned(json!({"enum": others?})));
            }
            return Ok(());
        }
        let mut words = Map::new();
        for (name, value) in members {
            if OF_STRINGS.contains(&name.as_str()) {
                words.insert(name.clone(), self.copied(value, at)?);
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
            into.others.push(Cow::Borrowed(schema));
        }
        if let Some(Value::Array(names)) = members.get("type") {
            for name in names.iter().filter(|name| *name != "string") {
                let mut other = self.copied(schema, at)?;
                if let Value::Object(other) = &mut other {
                    other.retain(|key, _| !OF_STRINGS.contains(&key.as_str()));
                    other.insert("type".to_owned(), name.clone());
                }
                into.others.push(Cow::Owned(other));
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

/// Whether values are of the type, or of one of the types, that their schema has.
pub(crate) fn of_types(types: Option<&Value>) -> impl Fn(&Value) -> bool {
    let names = match types {
        Some(Value::Array(names)) => names.as_slice(),
        types => types.map_or(&[] as &[Value], std::slice::from_ref),
    };
    let has = |name: &str| names.iter().any(|other| other == name);
    let known = ["null", "boolean", "string", "array", "object", "number", "integer"].map(has);
    let is_any = types.is_none();
    move |value| {
        let [null, boolean, string, array, object, number, integer] = known;
        is_any
            || match value {
                Value::Null => null,
                Value::Bool(_) => boolean,
                Value::String(_) => string,
                Value::Array(_) => array,
                Value::Object(_) => object,
                Value::Number(value) => {
                    number || integer && value.as_f64().is_some_and(|value| value.fract() == 0.0)
                }
            }
    }
}

pub(crate) fn is_nested(value: &Value) -> bool {
    matches!(value, Value::Array(_) | Value::Object(_))
}
