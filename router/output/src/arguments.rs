//! Arguments in formats that do not write them as JSON, as parts of a text: elements, Python's keywords, objects with bare
//! keys. A schema is taken apart as far as the format needs: into properties, and into what is written as text and what
//! as JSON. `compose` calls it for each function. What cannot be written in a format is told, with its place.

use serde_json::{Map, Value, json};

use crate::formats::{self, Body, Closes, Parameters, ToolFormat, Unknown};
use crate::frames::{Elements, Frame, Writing};
use crate::part::{Callable, Part, Words};
use crate::schema::Types;

/// References followed, and schemas within schemas where they are taken apart.
const MAX_DEPTH: usize = 16;

/// Optional properties with a comma between them, where none has to be there: each may be the first.
const MOST_OPTIONAL: usize = 64;

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
const OF_STRINGS: [&str; 4] = ["minLength", "maxLength", "pattern", "format"];

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

/// Why a function's calls cannot be held to its schema in the model's own format.
#[derive(Clone, Debug, PartialEq)]
pub struct Unbound {
    /// Where the client gave it.
    pub at: String,
    pub why: String,
}

type Result<T> = std::result::Result<T, Unbound>;

/// What stands between a call's name and its end.
pub(crate) fn arguments(format: &ToolFormat, frame: &Frame, function: &Callable) -> Result<Vec<Part>> {
    if let Some(lark) = &function.lark {
        return match frame.writing {
            Writing::Json => Ok(vec![
                Part::Text("{\"input\": \"".to_owned()),
                Part::Quoted { lark: lark.clone(), at: function.at.clone() },
                Part::Text("\"}".to_owned()),
            ]),
            _ => unbound(&function.at, "a grammar in Lark's notation can be followed in JSON alone"),
        };
    }
    let schema = whole(&function.schema);
    let writer = Writer { root: &schema, around: around(format) };
    let at = &function.at;
    match frame.writing {
        Writing::Json => Ok(vec![Part::Json { schema, at: at.clone() }]),
        Writing::Elements(elements) => {
            let parameters = parameters(format, elements);
            writer.elements(&elements, parameters, at)
        }
        Writing::Python => {
            let starts_name = |character: char| character.is_alphabetic() || "_.".contains(character);
            let in_name =
                |character: char| starts_name(character) || character.is_numeric() || character == '-';
            if !function.name.starts_with(starts_name) || !function.name.chars().all(in_name) {
                return unbound(at, "the function's name is not one that Python could have");
            }
            let value = |schema, at: &str| writer.python(schema, at);
            writer.members(&schema, at, "=", ", ", &value)
        }
        Writing::Braces(quote) => writer.braced_object(quote, &schema, at, 0),
    }
}

fn unbound<T>(at: &str, why: impl Into<String>) -> Result<T> {
    Err(Unbound { at: at.to_owned(), why: why.into() })
}

/// The schema of a function's arguments, which are an object.
fn whole(schema: &Value) -> Value {
    match schema {
        Value::Object(members) if !members.contains_key("type") => {
            let mut members = members.clone();
            members.insert("type".to_owned(), json!("object"));
            Value::Object(members)
        }
        Value::Object(_) => schema.clone(),
        _ => json!({"type": "object", "properties": {}, "additionalProperties": false}),
    }
}

/// The format's own elements, as its parser knows them.
fn parameters(format: &ToolFormat, elements: Elements) -> Option<&'static Parameters> {
    format.calls.iter().find_map(|call| match &call.body {
        Body::Named(_, formats::Arguments::Parameters(parameters))
            if elements.before_key.starts_with(parameters.open) =>
        {
            Some(parameters)
        }
        _ => None,
    })
}

/// What closes a call and its section, line by line.
fn around(format: &ToolFormat) -> Vec<String> {
    let sections = format.section.iter().flat_map(|section| section.close);
    let closes = format.calls.iter().map(|call| call.close.concat());
    let closes: Vec<String> = closes.collect();
    sections.flat_map(|section| closes.iter().map(move |close| format!("\n{close}\n{section}"))).collect()
}

struct Writer<'a> {
    /// The function's schema, in which references are looked up.
    root: &'a Value,
    /// Ends a value that was not closed.
    around: Vec<String>,
}

/// A property of an object.
struct Property<'a> {
    key: &'a str,
    schema: &'a Value,
    is_required: bool,
    at: String,
}

/// The properties that may be written, or the schema of all those that have any name.
enum Properties<'a> {
    Named(Vec<Property<'a>>),
    Free(&'a Value),
}

/// A schema, by how its values are written.
#[derive(Default)]
struct Split {
    words: Vec<Words>,
    others: Vec<Value>,
}

static ANYTHING: Value = Value::Bool(true);

/// Texts without elements around them.
static PLAIN: Parameters = Parameters {
    open: "",
    head_ends: &[],
    key: None,
    kind: None,
    value_open: None,
    closes: Closes::Markers(&[]),
    may_stay_open: false,
    unknown: Unknown::Text,
};

impl<'a> Writer<'a> {
    /// What a lone reference means, or the schema itself.
    fn meant(&self, schema: &'a Value, at: &str) -> Result<&'a Value> {
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
    fn document(&self, schema: &Value, at: &str) -> Result<Value> {
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

    fn properties(&self, schema: &'a Value, at: &str) -> Result<Properties<'a>> {
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

    fn elements(
        &self,
        elements: &Elements,
        parameters: Option<&'static Parameters>,
        at: &str,
    ) -> Result<Vec<Part>> {
        let Some(parameters) = parameters else { return unbound(at, "the format has no elements") };
        let properties = match self.properties(self.root, at)? {
            Properties::Named(properties) => properties,
            Properties::Free(_) if elements.close.contains('%') => {
                return unbound(at, "it has no `properties` to name");
            }
            Properties::Free(schema) => {
                let key = vec![
                    Part::Text(elements.before_key.to_owned()),
                    Part::Regex("[A-Za-z_][A-Za-z0-9_.-]*".to_owned()),
                ];
                let part = self.element(elements, parameters, key, "", schema, at)?;
                return Ok(vec![Part::Repeat { part, between: Vec::new(), least: 0, most: None }]);
            }
        };
        let mut parts = Vec::new();
        for property in properties {
            let key = vec![Part::Text(format!("{}{}", elements.before_key, property.key))];
            let part =
                self.element(elements, parameters, key, property.key, property.schema, &property.at)?;
            match property.is_required {
                true => parts.extend(part),
                false => parts.push(optional(part)),
            }
        }
        Ok(parts)
    }

    /// `key` with its element's value and end.
    fn element(
        &self,
        elements: &Elements,
        parameters: &Parameters,
        key: Vec<Part>,
        name: &str,
        schema: &'a Value,
        at: &str,
    ) -> Result<Vec<Part>> {
        let mut split = Split::default();
        self.split(schema, at, 0, parameters, &mut split)?;
        let Split { mut words, mut others } = split;
        if parameters.kind.is_none() && !words.is_empty() {
            // Words of a few types are read as values of these types; they stand in one expression with the texts.
            let takes_all = words.contains(&any_string(at));
            others.retain(|other| match simple(other) {
                Some(expressions) => {
                    let expressions = expressions.into_iter().filter(|_| !takes_all);
                    words.extend(expressions.map(Words::Expression));
                    false
                }
                None => true,
            });
        }
        let close = elements.close.replace('%', name);
        let mut choices = Vec::new();
        if !words.is_empty() {
            let mut value = vec![Part::Text(elements.before_text.to_owned())];
            value.push(Part::Words {
                words,
                without: self.ends(parameters, name),
                not_first: if parameters.kind.is_none() { self.first_of(&others) } else { String::new() },
                close: close.clone(),
            });
            value.push(Part::Text(elements.after.to_owned()));
            choices.push(value);
        }
        if !others.is_empty() {
            let types: Vec<&str> = others.iter().filter_map(|other| other["type"].as_str()).collect();
            let kind = match types[..] {
                ["integer"] => "number",
                [kind] => kind,
                _ => "object",
            }
            .to_owned();
            let schema = if others.len() == 1 { others.remove(0) } else { json!({"anyOf": others}) };
            choices.push(vec![
                Part::Text(elements.before_json.replace('%', &kind)),
                Part::Json { schema: self.document(&schema, at)?, at: at.to_owned() },
                Part::Text(format!("{close}{}", elements.after)),
            ]);
        }
        let mut parts = key;
        match choices.len() {
            0 => return unbound(at, "no value of it can be written"),
            1 => parts.append(&mut choices[0]),
            _ => parts.push(Part::OneOf(choices)),
        }
        parts.retain(|part| !matches!(part, Part::Text(text) if text.is_empty()));
        Ok(parts)
    }

    /// What a text must not hold, because the value would end there.
    fn ends(&self, parameters: &Parameters, key: &str) -> Vec<String> {
        let mut ends: Vec<String> = match parameters.closes {
            // One that ends with another is found with it.
            Closes::Markers(markers) => {
                let shortest = markers.iter().filter(|marker| {
                    !markers.iter().any(|other| *marker != other && marker.ends_with(other))
                });
                shortest.map(|&marker| marker.to_owned()).collect()
            }
            Closes::Key(before, after) => vec![format!("{before}{key}{after}")],
        };
        if parameters.may_stay_open {
            let keys = self.root.get("properties").and_then(Value::as_object).into_iter().flatten();
            let head_end = parameters.head_ends.last().unwrap_or(&"");
            ends.extend(keys.map(|(key, _)| format!("\n{}{key}{head_end}", parameters.open)));
            ends.extend(self.around.iter().cloned());
        }
        ends
    }

    /// Characters that values of these schemas begin with, and what the parser reads as one.
    fn first_of(&self, others: &[Value]) -> String {
        let mut first = String::new();
        for other in others {
            first.push_str(&Types::of_schema(self.root, other).first_characters());
        }
        if !first.is_empty() {
            first.push_str(" \t\r\n");
        }
        first
    }

    /// Takes a schema apart into strings and other values, as the parser will tell them.
    fn split(
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

    /// Properties with `between` after their keys and commas between them.
    fn members(
        &self,
        schema: &'a Value,
        at: &str,
        between: &str,
        comma: &str,
        value: &dyn Fn(&'a Value, &str) -> Result<Vec<Part>>,
    ) -> Result<Vec<Part>> {
        let comma = || Part::Text(comma.to_owned());
        let properties = match self.properties(schema, at)? {
            Properties::Named(properties) => properties,
            Properties::Free(schema) => {
                let mut part =
                    vec![Part::Regex("[A-Za-z_][A-Za-z0-9_]*".to_owned()), Part::Text(between.to_owned())];
                part.extend(value(schema, at)?);
                return Ok(vec![Part::Repeat { part, between: vec![comma()], least: 0, most: None }]);
            }
        };
        let mut members = Vec::new();
        for property in &properties {
            if property.key.contains(['$', '@', '/']) {
                return unbound(&property.at, "its name cannot be written without quotes");
            }
            let mut part = vec![Part::Text(format!("{}{between}", property.key))];
            part.extend(value(property.schema, &property.at)?);
            members.push((part, property.is_required));
        }
        if let Some(first) = members.iter().position(|(_, is_required)| *is_required) {
            let mut parts = Vec::new();
            for (index, (mut part, is_required)) in members.into_iter().enumerate() {
                match index.cmp(&first) {
                    std::cmp::Ordering::Less => part.push(comma()),
                    std::cmp::Ordering::Equal => {}
                    std::cmp::Ordering::Greater => part.insert(0, comma()),
                }
                match is_required {
                    true => parts.extend(part),
                    false => parts.push(optional(part)),
                }
            }
            return Ok(parts);
        }
        if members.len() > MOST_OPTIONAL {
            return unbound(at, format!("it has more than {MOST_OPTIONAL} properties, all optional"));
        }
        // Each may be the first.
        let mut choices = Vec::new();
        for first in 0..members.len() {
            let mut choice = members[first].0.clone();
            for (part, _) in &members[first + 1..] {
                let mut next = vec![comma()];
                next.extend(part.iter().cloned());
                choice.push(optional(next));
            }
            choices.push(choice);
        }
        Ok(if choices.is_empty() { Vec::new() } else { vec![optional(vec![Part::OneOf(choices)])] })
    }

    /// JSON, which Python's reader takes; or as Python writes texts, `True` and `False`.
    fn python(&self, schema: &'a Value, at: &str) -> Result<Vec<Part>> {
        let json = Part::Json { schema: self.document(schema, at)?, at: at.to_owned() };
        let schema = self.meant(schema, at)?;
        let types = Types::of_schema(self.root, schema);
        if simple(schema) == Some(vec!["true|false"]) {
            let words = vec![Part::Choice(vec!["True".to_owned(), "False".to_owned()])];
            return Ok(vec![Part::OneOf(vec![vec![json], words])]);
        }
        let mut split = Split::default();
        if !types.only_text() || self.split(schema, at, 0, &PLAIN, &mut split).is_err() {
            return Ok(vec![json]);
        }
        let text = Part::Words {
            words: split.words,
            without: ["'", "\\", "\n"].map(str::to_owned).into(),
            not_first: String::new(),
            close: "'".to_owned(),
        };
        Ok(vec![Part::OneOf(vec![vec![json], vec![Part::Text("'".to_owned()), text]])])
    }

    fn braced_object(&self, quote: &str, schema: &'a Value, at: &str, depth: usize) -> Result<Vec<Part>> {
        let value = |schema: &'a Value, at: &str| self.braced(quote, schema, at, depth + 1);
        let mut parts = vec![Part::Text("{".to_owned())];
        parts.extend(self.members(schema, at, ":", ",", &value)?);
        parts.push(Part::Text("}".to_owned()));
        Ok(parts)
    }

    /// A value with bare keys, and strings between `quote`s.
    fn braced(&self, quote: &str, schema: &'a Value, at: &str, depth: usize) -> Result<Vec<Part>> {
        if depth > MAX_DEPTH {
            return unbound(at, "it is nested too deeply, or without end");
        }
        let schema = self.meant(schema, at)?;
        let text = |words: Words| {
            vec![
                Part::Text(quote.to_owned()),
                Part::Words {
                    words: vec![words],
                    without: vec![quote.to_owned()],
                    not_first: String::new(),
                    close: quote.to_owned(),
                },
            ]
        };
        let Value::Object(members) = schema else {
            return match schema {
                Value::Bool(false) => unbound(at, "no value of it can be written"),
                // Objects and lists of anything are left out.
                _ => Ok(vec![Part::OneOf(vec![
                    text(any_string(at)),
                    vec![Part::Json {
                        schema: json!({"type": ["number", "boolean", "null"]}),
                        at: at.to_owned(),
                    }],
                ])]),
            };
        };
        let options =
            ["anyOf", "oneOf"].into_iter().find_map(|key| Some((key, members.get(key)?.as_array()?)));
        if let Some((key, options)) = options {
            if asserting(members).any(|name| name != key) {
                return unbound(at, format!("`{key}` stands beside other keywords"));
            }
            if key == "oneOf" && options.len() > 1 {
                return unbound(at, "`oneOf`: use `anyOf`");
            }
            let choices: Result<Vec<_>> =
                options.iter().map(|option| self.braced(quote, option, at, depth + 1)).collect();
            return Ok(vec![Part::OneOf(choices?)]);
        }
        let listed = match (members.get("enum"), members.get("const")) {
            (Some(Value::Array(values)), _) => Some(values.iter().collect()),
            (_, Some(value)) => Some(vec![value]),
            _ => None,
        };
        if let Some(values) = listed {
            let texts: Option<Vec<String>> = values.iter().map(|value| braced_text(value, quote)).collect();
            return match texts {
                Some(texts) => {
                    Ok(vec![Part::OneOf(texts.into_iter().map(|text| vec![Part::Text(text)]).collect())])
                }
                None => unbound(at, "one of its values has objects, lists or the mark of strings in it"),
            };
        }
        let types: Vec<&str> = match &members.get("type") {
            Some(Value::String(name)) => vec![name],
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            _ if asserting(members).next().is_none() => return self.braced(quote, &ANYTHING, at, depth),
            _ => return unbound(at, "it has no `type`"),
        };
        let mut choices = Vec::new();
        for name in types {
            let known: &[&str] = match name {
                "string" => &OF_STRINGS,
                "array" => &["items", "minItems", "maxItems"],
                "object" => &["properties", "required", "additionalProperties"],
                _ => &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"],
            };
            let others = asserting(members).find(|key| {
                *key != "type" && !known.contains(key) && (members["type"].is_string() || *key == "not")
            });
            if let Some(keyword) = others {
                return unbound(at, format!("`{keyword}` cannot be held to in this format"));
            }
            choices.push(match name {
                "string" => {
                    let words = members.iter().filter(|(key, _)| OF_STRINGS.contains(&key.as_str()));
                    let schema = words.map(|(key, value)| (key.clone(), value.clone())).collect();
                    text(Words::String { schema, at: at.to_owned() })
                }
                "array" => {
                    let items = members.get("items").unwrap_or(&ANYTHING);
                    let count = |key: &str| members.get(key).and_then(Value::as_u64);
                    let count = |key: &str| count(key).map(|count| u32::try_from(count).unwrap_or(u32::MAX));
                    vec![
                        Part::Text("[".to_owned()),
                        Part::Repeat {
                            part: self.braced(quote, items, at, depth + 1)?,
                            between: vec![Part::Text(",".to_owned())],
                            least: count("minItems").unwrap_or(0),
                            most: count("maxItems"),
                        },
                        Part::Text("]".to_owned()),
                    ]
                }
                "object" => self.braced_object(quote, schema, at, depth + 1)?,
                name => {
                    let mut other = members.clone();
                    other.insert("type".to_owned(), json!(name));
                    vec![Part::Json { schema: Value::Object(other), at: at.to_owned() }]
                }
            });
        }
        Ok(match choices.len() {
            1 => choices.remove(0),
            _ => vec![Part::OneOf(choices)],
        })
    }
}

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

fn asserting(members: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let names = members.keys().map(String::as_str);
    names.filter(|name| !ANNOTATIONS.contains(name) && ASSERTS.contains(name))
}

fn optional(part: Vec<Part>) -> Part {
    Part::Repeat { part, between: Vec::new(), least: 0, most: Some(1) }
}

fn any_string(at: &str) -> Words {
    Words::String { schema: Map::new(), at: at.to_owned() }
}

/// Expressions for the values of a schema that names a type and says nothing more of it.
fn simple(schema: &Value) -> Option<Vec<&'static str>> {
    let members = schema.as_object()?;
    if asserting(members).any(|name| name != "type") {
        return None;
    }
    let expression = |name: &str| match name {
        "null" => Some("null"),
        "boolean" => Some("true|false"),
        "integer" => Some("-?(0|[1-9][0-9]*)"),
        "number" => Some(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?"),
        _ => None,
    };
    match members.get("type")? {
        Value::String(name) => Some(vec![expression(name)?]),
        Value::Array(names) => names.iter().map(|name| expression(name.as_str()?)).collect(),
        _ => None,
    }
}

fn is_nested(value: &Value) -> bool {
    matches!(value, Value::Array(_) | Value::Object(_))
}

/// One value as Gemma writes it.
fn braced_text(value: &Value, quote: &str) -> Option<String> {
    match value {
        Value::String(text) => (!text.contains(quote)).then(|| format!("{quote}{text}{quote}")),
        nested if is_nested(nested) => None,
        other => Some(other.to_string()),
    }
}

/// A reference that is not to a definition.
fn foreign_reference(value: &Value) -> Option<&str> {
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
