//! A grammar as the client sends it, and its size and depth, which are known before anything recurses into it.

use std::{
    borrow::Cow,
    collections::{HashMap, hash_map::Entry},
    fmt::Write,
};

use penstock_output::{Part, Words};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{
    error::{CompileError, Kind},
    limits::Limits,
};

/// What a client asks the text to be.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// Any JSON object.
    JsonObject,
    /// JSON that a schema accepts, with its properties in the schema's order.
    JsonSchema(Value),
    /// A text that the expression matches as a whole.
    Regex(String),
    /// Exactly one of these texts.
    Choice(Vec<String>),
    /// A text of the grammar, in the Lark dialect of llguidance.
    Lark(String),
    /// A text that the server composes; only its schemas and expressions are a client's.
    Parts(Vec<Part>),
}

/// The content of a source that is within the limits of size and depth, as a digest: by it its compiled grammar is found again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Content {
    /// SHA-256. Nobody finds another source with the same, so nobody is given another one's grammar.
    pub digest: [u8; 32],
    /// Bytes of schemas, expressions and texts of the source, about.
    pub bytes: usize,
}

impl Source {
    /// The content to look up, where the source is within the limits of size and depth. Takes as long as to read the source.
    pub fn content(&self, limits: &Limits) -> Result<Content, CompileError> {
        let (kind, bytes, text): (u8, usize, Cow<str>) = match self {
            Source::JsonObject => (0, 0, "".into()),
            Source::JsonSchema(schema) => (1, check_value(schema, limits)?, schema.to_string().into()),
            Source::Regex(text) => (2, text.len(), within(text, limits)?.into()),
            Source::Choice(texts) => {
                let bytes = texts.iter().map(|text| text.len() + 3).sum::<usize>();
                if bytes > limits.source_bytes {
                    return Err(too_large(limits));
                }
                (3, bytes, Value::from(texts.clone()).to_string().into())
            }
            Source::Lark(text) => (4, text.len(), within(text, limits)?.into()),
            Source::Parts(parts) => {
                let mut contents =
                    PartContents { limits, bytes: 0, known: HashMap::new(), text: String::new() };
                contents.sequence(parts)?;
                (5, contents.bytes, contents.text.into())
            }
        };
        if text.len() > limits.source_bytes.saturating_mul(2) {
            return Err(too_large(limits));
        }
        let digest = Sha256::new().chain_update([kind]).chain_update(text.as_bytes()).finalize().into();
        Ok(Content { digest, bytes })
    }
}

/// The content of parts, in which a part that stands in several places, as a function's arguments do, is written and counts once.
/// The grammar has it once, too.
struct PartContents<'a> {
    limits: &'a Limits,
    /// Of all schemas and expressions together.
    bytes: usize,
    /// Parts that hold no others, by what they are, with their numbers.
    known: HashMap<String, usize>,
    text: String,
}

impl PartContents<'_> {
    fn sequence(&mut self, parts: &[Part]) -> Result<(), CompileError> {
        self.text.push('[');
        parts.iter().try_for_each(|part| self.part(part))?;
        self.text.push(']');
        Ok(())
    }

    fn part(&mut self, part: &Part) -> Result<(), CompileError> {
        let bytes = match part {
            Part::OneOf(choices) => {
                self.text.push_str("OneOf");
                return choices.iter().try_for_each(|choice| self.sequence(choice)).map(|()| self.end());
            }
            Part::SomeOf { members, between } => {
                self.text.push_str("SomeOf");
                members.iter().try_for_each(|member| self.sequence(member))?;
                self.end();
                return self.sequence(between);
            }
            Part::Repeat { part, between, least, most } => {
                let _ = write!(self.text, "Repeat {least} {most:?}");
                self.sequence(part)?;
                return self.sequence(between);
            }
            Part::IfPossible { asked, instead, at } => {
                let _ = write!(self.text, "IfPossible {at:?}");
                self.sequence(asked)?;
                return self.sequence(instead);
            }
            // Before anything recurses into it.
            Part::Json { schema, at } => check_value(schema, self.limits)
                .map_err(|error| CompileError { path: format!("{at}{}", error.path), ..error })?,
            Part::Regex(text) | Part::Quoted { lark: text, .. } => text.len(),
            Part::Choice(texts) => texts.iter().map(|text| text.len() + 3).sum(),
            Part::Words { words, without, .. } => {
                words.iter().map(Words::bytes).sum::<usize>() + without.iter().map(String::len).sum::<usize>()
            }
            _ => 0,
        };
        let number = self.known.len();
        match self.known.entry(format!("{part:?}")) {
            Entry::Occupied(known) => {
                let _ = write!(self.text, "#{}", known.get());
            }
            Entry::Vacant(new) => {
                self.text.push_str(new.key());
                new.insert(number);
                self.bytes += bytes;
            }
        }
        self.end();
        if self.bytes > self.limits.source_bytes { Err(too_large(self.limits)) } else { Ok(()) }
    }

    fn end(&mut self) {
        self.text.push(',');
    }
}

fn within<'a>(text: &'a str, limits: &Limits) -> Result<&'a str, CompileError> {
    if text.len() > limits.source_bytes { Err(too_large(limits)) } else { Ok(text) }
}

fn too_large(limits: &Limits) -> CompileError {
    CompileError::new(Kind::TooLarge, format!("the grammar is longer than {} bytes", limits.source_bytes))
}

/// The size of a JSON value, about. Refuses one that is too deep or too large, without recursion: everything after it
/// may recurse.
fn check_value(schema: &Value, limits: &Limits) -> Result<usize, CompileError> {
    let mut bytes = 0;
    let mut todo = vec![(schema, 1)];
    while let Some((value, depth)) = todo.pop() {
        if depth > limits.depth {
            return Err(CompileError::new(
                Kind::TooDeep,
                format!("the schema is nested deeper than {} levels", limits.depth),
            ));
        }
        bytes += match value {
            Value::Null | Value::Bool(_) => 4,
            Value::Number(_) => 2,
            Value::String(text) => text.len() + 2,
            Value::Array(items) => {
                todo.extend(items.iter().map(|item| (item, depth + 1)));
                items.len() + 2
            }
            Value::Object(members) => {
                todo.extend(members.values().map(|value| (value, depth + 1)));
                members.keys().map(|key| key.len() + 4).sum::<usize>() + 2
            }
        };
        if bytes > limits.source_bytes {
            return Err(too_large(limits));
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_output::{Callable, Calls, Start, reasoning_format, tool_format};
    use serde_json::json;

    /// Takes a deep value apart; the drop of a `Value` recurses.
    fn dismantle(mut value: Value) {
        while let Value::Array(mut items) = value {
            value = items.pop().unwrap_or(Value::Null);
        }
    }

    #[test]
    fn a_value_too_deep_for_recursion_is_refused_without_it() {
        let mut value = json!([]);
        for _ in 0..1_000_000 {
            value = Value::Array(vec![value]);
        }
        let source = Source::JsonSchema(value);
        assert_eq!(source.content(&Limits::default()).unwrap_err().kind, Kind::TooDeep);
        let Source::JsonSchema(value) = source else { unreachable!() };
        dismantle(value);
    }

    #[test]
    fn the_order_of_properties_is_content() {
        let limits = Limits::default();
        let one = Source::JsonSchema(json!({"properties": {"a": {}, "b": {}}}));
        let other = Source::JsonSchema(json!({"properties": {"b": {}, "a": {}}}));
        assert_ne!(one.content(&limits).unwrap(), other.content(&limits).unwrap());
        assert_eq!(one.content(&limits).unwrap(), one.clone().content(&limits).unwrap());
    }

    #[test]
    fn kinds_do_not_share_content() {
        let limits = Limits::default();
        let regex = Source::Regex("a".into()).content(&limits).unwrap();
        assert_ne!(regex, Source::Lark("a".into()).content(&limits).unwrap());
    }

    /// A function's arguments stand behind reasoning, without it and within it.
    #[test]
    fn a_functions_schema_counts_once() {
        let function = |number: usize, bytes: usize, is_strict: bool| Callable {
            name: format!("f{number}"),
            schema: json!({"type": "object", "properties": {"a": {"type": "string", "description": "a".repeat(bytes)}}}),
            at: format!("tools[{number}].function.parameters"),
            lark: None,
            is_strict,
        };
        let content = |functions: &[Callable]| {
            let calls = Calls {
                format: tool_format("hermes").unwrap(),
                template: "",
                reasoning: reasoning_format("think"),
                start: Start::Content,
                functions,
                may_be_several: true,
            };
            Source::Parts(calls.possible().unwrap().parts).content(&Limits::default())
        };
        for is_strict in [false, true] {
            let functions =
                |count| (0..count).map(|number| function(number, 1500, is_strict)).collect::<Vec<_>>();
            let all = functions(600);
            let whole = content(&all).unwrap();
            assert_eq!(content(&functions(750)).unwrap_err().kind, Kind::TooLarge);
            assert_eq!(content(&all), Ok(whole.clone()));
            let mut other = all;
            other[300].schema["required"] = json!(["a"]);
            assert_ne!(content(&other).unwrap(), whole);
        }
    }

    #[test]
    fn parts_of_other_shapes_are_other_content() {
        let limits = Limits::default();
        let text = |text: &str| Part::Text(text.to_owned());
        let repeat = |part: Part, most| Part::Repeat { part: vec![part], between: vec![], least: 0, most };
        let all = [
            vec![text("a"), text("b")],
            vec![text("a"), text("a")],
            vec![text("b"), text("b")],
            vec![text("ab")],
            vec![Part::OneOf(vec![vec![text("a"), text("b")]])],
            vec![Part::OneOf(vec![vec![text("a")], vec![text("b")]])],
            vec![Part::OneOf(vec![vec![text("a")]]), text("b")],
            vec![repeat(text("a"), None)],
            vec![repeat(text("a"), Some(1))],
            vec![Part::SomeOf { members: vec![vec![text("a")]], between: vec![text("b")] }],
            vec![Part::SomeOf { members: vec![vec![text("a")], vec![text("b")]], between: vec![] }],
            vec![Part::IfPossible { asked: vec![text("a")], instead: vec![], at: String::new() }],
            vec![Part::IfPossible { asked: vec![], instead: vec![text("a")], at: String::new() }],
        ];
        let contents = all.map(|parts| Source::Parts(parts).content(&limits).unwrap());
        let different: std::collections::HashSet<_> = contents.iter().collect();
        assert_eq!(different.len(), contents.len());
    }

    #[test]
    fn a_source_over_the_limit_is_refused() {
        let limits = Limits { source_bytes: 100, ..Limits::default() };
        for source in [
            Source::Regex("a".repeat(101)),
            Source::Lark("a".repeat(101)),
            Source::Choice(vec!["a".repeat(60), "b".repeat(60)]),
            Source::JsonSchema(json!({"description": "a".repeat(101)})),
        ] {
            assert_eq!(source.content(&limits).unwrap_err().kind, Kind::TooLarge);
        }
    }
}
