//! Arguments in formats that do not write them as JSON, as parts of a text: elements, Python's keywords, objects with bare
//! keys. `argument_schemas` takes a schema apart as far as the format needs. `compose` calls it for each function. What cannot be
//! written in a format is told, with its place.

use std::borrow::Cow;
use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::argument_schemas::{
    ANYTHING, Budget, MAX_DEPTH, OF_A_NAME, OF_ONE, OF_STRINGS, OF_WHOLE_OBJECTS, Properties, Property,
    Result, Schemas, Split, any_string, asserting, is_nested, of_types, unbound,
};
use crate::formats::{self, Body, Closes, Parameters, ToolFormat, Unknown};
use crate::frames::{Elements, Frame, Writing};
use crate::parameters::MAX_HEAD;
use crate::part::{Callable, Part, Words};

/// Optional properties with a comma between them, where none has to be there: each may be the first.
const MOST_OPTIONAL: usize = 64;

/// Keys that each text is kept from having behind an element's marker, where these would end it; with more of them it does not have
/// the marker.
const MOST_KEYS: usize = 100;

const NO_VALUE: &str = "no value of it can be written";

/// Types that JSON knows.
const JSON_TYPES: usize = 7;

/// What stands between a call's name and its end. All functions of a request share a budget.
pub(crate) fn arguments(
    format: &ToolFormat,
    frame: &Frame,
    function: &Callable,
    budget: &Budget,
) -> Result<Vec<Part>> {
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
    let nothing = json!({"type": "object", "properties": {}, "additionalProperties": false});
    let schema = if function.schema.is_object() { &function.schema } else { &nothing };
    let writer = Writer { schemas: Schemas::new(schema, budget), around: around(format) };
    let at = &function.at;
    match frame.writing {
        Writing::Json => Ok(vec![Part::Json { schema: of_an_object(schema), at: at.clone() }]),
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
            writer.python_arguments(schema, at)
        }
        Writing::Braces(quote) => writer.braced_object(quote, schema, at, 0),
    }
}

/// A schema of a function's arguments, which are an object. As in other formats it has no properties but those that are named,
/// unless the schema speaks of others.
fn of_an_object(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Value::Object(members) = &mut schema {
        if names_all(members) {
            members.insert("additionalProperties".to_owned(), Value::Bool(false));
        }
        members.entry("type").or_insert_with(|| json!("object"));
    }
    schema
}

/// The schema of an object names properties, and says nothing of others.
fn names_all(members: &Map<String, Value>) -> bool {
    let Some(named) = members.get("properties").and_then(Value::as_object) else { return false };
    let required = members.get("required").and_then(Value::as_array).into_iter().flatten();
    !named.is_empty()
        && !members.contains_key("additionalProperties")
        && !OF_WHOLE_OBJECTS.iter().any(|keyword| members.contains_key(*keyword))
        && required.filter_map(Value::as_str).all(|key| named.contains_key(key))
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
    /// The function's.
    schemas: Schemas<'a>,
    /// Ends a value that was not closed.
    around: Vec<String>,
}

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
    fn elements(
        &self,
        elements: &Elements,
        parameters: Option<&'static Parameters>,
        at: &str,
    ) -> Result<Vec<Part>> {
        let Some(parameters) = parameters else { return unbound(at, "the format has no elements") };
        let properties = match self.schemas.properties(self.schemas.root, at)? {
            Properties::Named(properties) => properties,
            // What ends a value names its key, and a grammar cannot say that a name comes again: there are no arguments.
            Properties::Free(Value::Bool(true)) if elements.close.contains('%') => return Ok(Vec::new()),
            Properties::Free(_) if elements.close.contains('%') => {
                return unbound(at, "it has no `properties` to name");
            }
            Properties::Free(schema) => {
                let key = vec![
                    Part::Text(elements.before_key.to_owned()),
                    Part::Expression("[A-Za-z_][A-Za-z0-9_.-]*"),
                ];
                let part = self.element(elements, parameters, key, "", schema, at)?;
                return Ok(vec![Part::Repeat { part, between: Vec::new(), least: 0, most: None }]);
            }
        };
        let mut parts = Vec::new();
        for property in properties {
            // The head ends within what stands before the value.
            let before = elements.before_text.len().max(elements.before_json.len());
            if elements.before_key.len() + property.key.len() + before > MAX_HEAD {
                return unbound(&property.at, "its name is too long to be read in this format");
            }
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
        self.schemas.split(schema, at, 0, parameters, &mut split)?;
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
                without: self.ends(parameters, name, at)?,
                not_first: if parameters.kind.is_none() {
                    self.first_of(&others, at)?
                } else {
                    String::new()
                },
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
            let schema = match &others[..] {
                [schema] => Cow::Borrowed(schema.as_ref()),
                others => Cow::Owned(json!({"anyOf": others})),
            };
            choices.push(vec![
                Part::Text(elements.before_json.replace('%', &kind)),
                Part::Json { schema: self.schemas.document(&schema, at)?, at: at.to_owned() },
                Part::Text(format!("{close}{}", elements.after)),
            ]);
        }
        let mut parts = key;
        match choices.len() {
            0 => return unbound(at, NO_VALUE),
            1 => parts.append(&mut choices[0]),
            _ => parts.push(Part::OneOf(choices)),
        }
        parts.retain(|part| !matches!(part, Part::Text(text) if text.is_empty()));
        Ok(parts)
    }

    /// What a text must not hold, because the value would end there.
    fn ends(&self, parameters: &Parameters, key: &str, at: &str) -> Result<Vec<String>> {
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
            let keys = self.schemas.root.get("properties").and_then(Value::as_object);
            let head_end = parameters.head_ends.last().unwrap_or(&"");
            match keys {
                Some(keys) if keys.len() > MOST_KEYS => ends.push(format!("\n{}", parameters.open)),
                keys => {
                    for (key, _) in keys.into_iter().flatten() {
                        let end = format!("\n{}{key}{head_end}", parameters.open);
                        self.schemas.budget.take(end.len(), at)?;
                        ends.push(end);
                    }
                }
            }
            ends.extend(self.around.iter().cloned());
        }
        Ok(ends)
    }

    /// Characters that values of these schemas begin with, and what the parser reads as one.
    fn first_of(&self, others: &[Cow<'a, Value>], at: &str) -> Result<String> {
        let mut first = String::new();
        for other in others {
            let types = match other {
                Cow::Borrowed(schema) => self.schemas.types(schema, at),
                Cow::Owned(schema) => self.schemas.types_of(schema, at),
            };
            first.push_str(&types?.first_characters());
        }
        if !first.is_empty() {
            first.push_str(" \t\r\n");
        }
        Ok(first)
    }

    /// Properties with `between` after their keys and commas between them.
    fn members(
        &self,
        properties: Vec<Property<'a>>,
        at: &str,
        between: &str,
        comma: &str,
        value: &dyn Fn(&'a Value, &str) -> Result<Vec<Part>>,
    ) -> Result<Vec<Part>> {
        let comma = || Part::Text(comma.to_owned());
        let first_required = properties.iter().position(|property| property.is_required);
        if first_required.is_none() && properties.len() > MOST_OPTIONAL {
            return unbound(at, format!("it has more than {MOST_OPTIONAL} properties, all optional"));
        }
        let member = |property: &Property<'a>| {
            if property.key.contains(['$', '@', '/']) {
                return unbound(&property.at, "its name cannot be written without quotes");
            }
            let mut part = vec![Part::Text(format!("{}{between}", property.key))];
            part.extend(value(property.schema, &property.at)?);
            Ok(part)
        };
        if let Some(first) = first_required {
            let mut parts = Vec::new();
            for (index, property) in properties.iter().enumerate() {
                let mut part = member(property)?;
                match index.cmp(&first) {
                    std::cmp::Ordering::Less => part.push(comma()),
                    std::cmp::Ordering::Equal => {}
                    std::cmp::Ordering::Greater => part.insert(0, comma()),
                }
                match property.is_required {
                    true => parts.extend(part),
                    false => parts.push(optional(part)),
                }
            }
            return Ok(parts);
        }
        let members: Vec<_> = properties.iter().map(member).collect::<Result<_>>()?;
        Ok(match members.is_empty() {
            true => Vec::new(),
            false => vec![optional(vec![Part::SomeOf { members, between: vec![comma()] }])],
        })
    }

    fn python_arguments(&self, schema: &'a Value, at: &str) -> Result<Vec<Part>> {
        let value = |schema: &'a Value, at: &str| self.python(schema, at);
        match self.schemas.properties(schema, at)? {
            Properties::Named(properties) => self.members(properties, at, "=", ", ", &value),
            Properties::Free(schema) => {
                let key = Part::Expression("[A-Za-z_][A-Za-z0-9_]*");
                Ok(vec![any_members(key, "=", ", ", value(schema, at)?)])
            }
        }
    }

    /// JSON, which Python's reader takes; or as Python writes texts, `True` and `False`.
    fn python(&self, schema: &'a Value, at: &str) -> Result<Vec<Part>> {
        let json = Part::Json { schema: self.schemas.document(schema, at)?, at: at.to_owned() };
        let schema = self.schemas.meant(schema, at)?;
        let types = self.schemas.types(schema, at)?;
        if simple(schema) == Some(vec!["true|false"]) {
            let words = vec![Part::Choice(vec!["True".to_owned(), "False".to_owned()])];
            return Ok(vec![Part::OneOf(vec![vec![json], words])]);
        }
        let mut split = Split::default();
        if !types.only_text() || self.schemas.split(schema, at, 0, &PLAIN, &mut split).is_err() {
            return Ok(vec![json]);
        }
        let is_any = |words: &Words| matches!(words, Words::String { schema, .. } if schema.is_empty());
        let (words, without) = match split.words.iter().any(is_any) {
            // With escapes: the text is what the reader makes of them.
            true => (vec![Words::Expression(r"([^'\\]|\\(.|\n))*")], Vec::new()),
            // As it stands, because that is what is held to keywords.
            false => (split.words, vec!["'".to_owned(), "\\".to_owned()]),
        };
        let text = Part::Words { words, without, not_first: String::new(), close: "'".to_owned() };
        Ok(vec![Part::OneOf(vec![vec![json], vec![Part::Text("'".to_owned()), text]])])
    }

    fn braced_object(
        &self,
        quote: &'static str,
        schema: &'a Value,
        at: &str,
        depth: usize,
    ) -> Result<Vec<Part>> {
        let value = |schema: &'a Value, at: &str| self.braced(quote, schema, at, depth + 1);
        let mut parts = vec![Part::Text("{".to_owned())];
        match self.schemas.properties(schema, at)? {
            Properties::Named(mut properties) => {
                // As Jinja's `dictsort`, by which templates declare functions and write calls: the model knows no other order.
                properties.sort_by_cached_key(|property| property.key.to_lowercase());
                parts.extend(self.members(properties, at, ":", ",", &value)?);
            }
            Properties::Free(schema) => {
                parts.push(any_members(Part::BareKey(quote), ":", ",", value(schema, at)?));
            }
        }
        parts.push(Part::Text("}".to_owned()));
        Ok(parts)
    }

    /// A value with bare keys, and strings between `quote`s.
    fn braced(&self, quote: &'static str, schema: &'a Value, at: &str, depth: usize) -> Result<Vec<Part>> {
        if depth > MAX_DEPTH {
            return unbound(at, "it is nested too deeply, or without end");
        }
        let schema = self.schemas.meant(schema, at)?;
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
                Value::Bool(false) => unbound(at, NO_VALUE),
                Value::Bool(true) => Ok(vec![Part::Braced(quote)]),
                _ => unbound(at, "it is no schema"),
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
            if options.is_empty() {
                return unbound(at, NO_VALUE);
            }
            let choices: Result<Vec<_>> =
                options.iter().map(|option| self.braced(quote, option, at, depth + 1)).collect();
            return Ok(vec![Part::OneOf(choices?)]);
        }
        let listed = match (members.get("enum"), members.get("const")) {
            (Some(Value::Array(values)), _) => Some(("enum", values.as_slice())),
            (_, Some(value)) => Some(("const", std::slice::from_ref(value))),
            _ => None,
        };
        if let Some((key, values)) = listed {
            if let Some(keyword) = asserting(members).find(|keyword| ![key, "type"].contains(keyword)) {
                return unbound(at, format!("`{keyword}` stands beside a list of values"));
            }
            let names = members.get("type").and_then(Value::as_array).map_or(1, Vec::len);
            self.schemas.budget.take(OF_A_NAME * names, at)?;
            let is_of_type = of_types(members.get("type"));
            let values = values.iter().filter(|value| is_of_type(value));
            let (strings, others): (Vec<&Value>, Vec<&Value>) = values.partition(|value| value.is_string());
            if strings.is_empty() && others.is_empty() {
                return unbound(at, NO_VALUE);
            }
            let strings: Vec<&str> = strings.into_iter().filter_map(Value::as_str).collect();
            if strings.iter().any(|text| text.contains(quote)) || others.iter().any(|value| is_nested(value))
            {
                return unbound(at, "one of its values has objects, lists or the mark of strings in it");
            }
            let mut choices = Vec::new();
            let mut texts: Vec<String> = Vec::new();
            let mut seen = HashSet::new();
            for string in strings {
                self.schemas.budget.take(OF_ONE + string.len(), at)?;
                if seen.insert(string) {
                    texts.push(string.to_owned());
                }
            }
            if !texts.is_empty() {
                choices.push(text(Words::Exactly(texts)));
            }
            for other in others {
                let other = other.to_string();
                self.schemas.budget.take(OF_ONE + other.len(), at)?;
                choices.push(vec![Part::Text(other)]);
            }
            return Ok(vec![Part::OneOf(choices)]);
        }
        let types: Vec<&str> = match &members.get("type") {
            Some(Value::String(name)) => vec![name],
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            _ if asserting(members).next().is_none() => return self.braced(quote, &ANYTHING, at, depth),
            _ => return unbound(at, "it has no `type`"),
        };
        if types.is_empty() {
            return unbound(at, NO_VALUE);
        }
        self.schemas.budget.take((OF_ONE + at.len()) * types.len(), at)?;
        let is_known = |keyword: &str| types.iter().any(|name| keywords_of(name).contains(&keyword));
        if let Some(keyword) = asserting(members).find(|keyword| *keyword != "type" && !is_known(keyword)) {
            return unbound(at, format!("`{keyword}` cannot be held to in this format"));
        }
        let mut choices = Vec::new();
        for name in types {
            choices.push(match name {
                "string" => {
                    let words = members.iter().filter(|(key, _)| OF_STRINGS.contains(&key.as_str()));
                    let copied =
                        |(key, value): (&String, &Value)| Ok((key.clone(), self.schemas.copied(value, at)?));
                    let schema = words.map(copied).collect::<Result<_>>()?;
                    text(Words::String { schema, at: at.to_owned() })
                }
                "array" => {
                    let items = members.get("items").unwrap_or(&ANYTHING);
                    if items.is_array() {
                        return unbound(at, "`items` is a list");
                    }
                    let least = count(members, "minItems", at)?.unwrap_or(0);
                    let most = count(members, "maxItems", at)?;
                    if most.is_some_and(|most| most < least) || least == u32::MAX {
                        return unbound(at, NO_VALUE);
                    }
                    vec![
                        Part::Text("[".to_owned()),
                        Part::Repeat {
                            part: self.braced(quote, items, at, depth + 1)?,
                            between: vec![Part::Text(",".to_owned())],
                            least,
                            most: most.filter(|most| *most < u32::MAX),
                        },
                        Part::Text("]".to_owned()),
                    ]
                }
                "object" => self.braced_object(quote, schema, at, depth + 1)?,
                name => {
                    let mut other = self.schemas.copied(schema, at)?;
                    other["type"] = json!(name);
                    vec![Part::Json { schema: other, at: at.to_owned() }]
                }
            });
        }
        Ok(match choices.len() {
            1 => choices.remove(0),
            _ => vec![Part::OneOf(choices)],
        })
    }
}

/// Members of any keys.
fn any_members(key: Part, between: &str, comma: &str, value: Vec<Part>) -> Part {
    let mut part = vec![key, Part::Text(between.to_owned())];
    part.extend(value);
    Part::Repeat { part, between: vec![Part::Text(comma.to_owned())], least: 0, most: None }
}

fn optional(part: Vec<Part>) -> Part {
    Part::Repeat { part, between: Vec::new(), least: 0, most: Some(1) }
}

/// Keywords that values with bare keys are held to.
fn keywords_of(kind: &str) -> &'static [&'static str] {
    match kind {
        "string" => &OF_STRINGS,
        "array" => &["items", "minItems", "maxItems"],
        "object" => &["properties", "required", "additionalProperties"],
        // Of numbers a `format` asserts nothing.
        _ => &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "format"],
    }
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
        // Each type once.
        Value::Array(names) if names.len() <= JSON_TYPES => {
            names.iter().map(|name| expression(name.as_str()?)).collect()
        }
        _ => None,
    }
}

/// A count, of which the largest stands for all that nothing reaches.
fn count(members: &Map<String, Value>, key: &str, at: &str) -> Result<Option<u32>> {
    let Some(value) = members.get(key) else { return Ok(None) };
    match value.as_f64() {
        Some(count) if count >= 0.0 && count.fract() == 0.0 => {
            // Half of them is as far as JSON's grammars count.
            Ok(Some(if count < f64::from(i32::MAX) { count as u32 } else { u32::MAX }))
        }
        _ => unbound(at, format!("`{key}` is no count")),
    }
}
