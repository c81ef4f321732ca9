//! Which part of a schema it is that llguidance refuses, since its errors do not say where. Parts are taken out of the schema, half
//! of them at a time, and what is left is compiled: a part without which nothing is refused is the one, and is looked into.
//! Used by `compiler` once a grammar is refused; what it finds is only told, and finding nothing changes no answer.

use std::{collections::HashSet, sync::Arc};

use penstock_output::Part as OutputPart;
use serde_json::{Value, json};
use tracing::subscriber::{NoSubscriber, with_default};

use crate::{
    error::{CompileError, Kind},
    grammar,
    guidance::NONE_POSSIBLE,
    limits::Limits,
    schema::{self, extend},
    source::Source,
    stop::Stop,
    vocabulary::Vocabulary,
};

/// Compiles for one search.
const MOST_TRIES: usize = 200;

/// It was refused without a place in its schema, and may have one.
pub(crate) fn may_have_place(error: &CompileError, source: &Source) -> bool {
    error.kind.is_of_the_source()
        && match source {
            Source::JsonSchema(_) => error.path.is_empty(),
            Source::Parts(parts) => error.path.is_empty() || has_schema_at(parts, &error.path),
            _ => false,
        }
}

fn has_schema_at(parts: &[OutputPart], path: &str) -> bool {
    parts.iter().any(|part| match part {
        OutputPart::Json { at, .. } => at == path,
        OutputPart::OneOf(all) | OutputPart::SomeOf { members: all, .. } => {
            all.iter().any(|parts| has_schema_at(parts, path))
        }
        OutputPart::Repeat { part, .. } => has_schema_at(part, path),
        _ => false,
    })
}

/// For the place of what is refused without one.
pub(crate) struct Search<'a> {
    vocabulary: &'a Arc<Vocabulary>,
    limits: &'a Limits,
    stop: &'a Stop,
    is_over: &'a dyn Fn() -> bool,
    tries: usize,
}

impl<'a> Search<'a> {
    /// Nothing more is compiled once `is_over` is true; `stop` is for what is being compiled.
    pub(crate) fn new(
        vocabulary: &'a Arc<Vocabulary>,
        limits: &'a Limits,
        stop: &'a Stop,
        is_over: &'a dyn Fn() -> bool,
    ) -> Self {
        Search { vocabulary, limits, stop, is_over, tries: MOST_TRIES }
    }

    /// The error with which `source` was refused, with its place as far as that is found.
    pub(crate) fn placed(&mut self, error: &CompileError, source: &Source) -> CompileError {
        let path = match source {
            Source::JsonSchema(schema) => self.place(error, schema),
            Source::Parts(parts) => self.place_in(error, parts).unwrap_or_else(|| error.path.clone()),
            _ => String::new(),
        };
        match error.kind {
            // The property that its reason names may lie around that place.
            Kind::Unsatisfiable if !path.is_empty() && error.reason.starts_with(NONE_POSSIBLE) => {
                CompileError::at(error.kind, path, "no value matches the schema")
            }
            kind => CompileError::at(kind, path, &*error.reason),
        }
    }

    fn place(&mut self, error: &CompileError, schema: &Value) -> String {
        place(schema, |less| self.is_refused(error, less))
    }

    /// The schema that is refused alone as all parts are.
    fn place_in(&mut self, error: &CompileError, parts: &[OutputPart]) -> Option<String> {
        parts.iter().find_map(|part| match part {
            OutputPart::Json { schema, at } if error.path.is_empty() || error.path == *at => {
                let is_refused = self.is_refused(error, schema) == Some(true);
                is_refused.then(|| format!("{at}{}", self.place(error, schema)))
            }
            OutputPart::OneOf(all) | OutputPart::SomeOf { members: all, .. } => {
                all.iter().find_map(|parts| self.place_in(error, parts))
            }
            OutputPart::Repeat { part, .. } => self.place_in(error, part),
            _ => None,
        })
    }

    /// Whether a schema is refused for the same reason. None when no more is tried.
    fn is_refused(&mut self, error: &CompileError, schema: &Value) -> Option<bool> {
        if self.tries == 0 || (self.is_over)() {
            return None;
        }
        self.tries -= 1;
        let source = Source::JsonSchema(schema.clone());
        // The log has told of the whole.
        let compile = || grammar::compile(&source, self.vocabulary, self.limits, self.stop);
        match with_default(NoSubscriber::default(), compile) {
            Ok(_) => Some(false),
            Err(other) if other.kind.is_of_the_source() => {
                let is_same = other.kind == Kind::Unsatisfiable || other.reason == error.reason;
                Some(other.kind == error.kind && other.path.is_empty() && is_same)
            }
            Err(_) => None,
        }
    }
}

/// Something within a schema that can be taken out.
struct Part {
    key: String,
    /// Its name or number, where the keyword has several.
    name: Option<String>,
    /// Where it stands, or the target of a reference.
    place: String,
}

impl Part {
    /// It says more of the same value as the schema that has it.
    fn is_in_place(&self) -> bool {
        let keys = ["$ref", "allOf", "anyOf", "oneOf", "dependentSchemas", "dependencies"];
        keys.contains(&self.key.as_str())
    }
}

/// A JSON pointer to the smallest part that is refused, as far as that can be found. `is_refused` compiles a schema that lacks parts:
/// whether it is refused as the whole is; None once no more can be tried.
pub(crate) fn place(source: &Value, mut is_refused: impl FnMut(&Value) -> Option<bool>) -> String {
    let mut left = source.clone();
    let mut at = String::new();
    let mut seen = HashSet::from([at.clone()]);
    loop {
        let mut parts = parts_of(source, &left, &at, &seen);
        if parts.is_empty() || is_refused(&without(&left, &at, &parts)) != Some(false) {
            return at;
        }
        while parts.len() > 1 {
            let mut others = parts.split_off(parts.len() / 2);
            let mut is_found = false;
            for _ in 0..2 {
                let less = without(&left, &at, &others);
                match is_refused(&less) {
                    Some(true) => {
                        (left, is_found) = (less, true);
                        break;
                    }
                    Some(false) => std::mem::swap(&mut parts, &mut others),
                    None => return at,
                }
            }
            // They are refused together.
            if !is_found {
                return at;
            }
        }
        let part = parts.remove(0);
        // It may be refused only beside the schema's own keywords. Long pointers are cut.
        if part.is_in_place() && is_refused(&alone(&left, &at, &part)) != Some(true)
            || !seen.insert(part.place.clone())
        {
            return at;
        }
        at = part.place;
    }
}

/// The schemas directly within the one at `at`, and what it refers to unless that was `seen`.
fn parts_of(source: &Value, left: &Value, at: &str, seen: &HashSet<String>) -> Vec<Part> {
    let Some(Value::Object(members)) = left.pointer(at) else { return Vec::new() };
    let mut parts = Vec::new();
    for (key, value) in members {
        let mut push = |name: Option<String>, value: &Value| {
            // What refuses every other item or property is no fault.
            let is_impossible = name.is_some() && *value == Value::Bool(false);
            if is_impossible || matches!(value, Value::Object(members) if !members.is_empty()) {
                let mut place = at.to_owned();
                extend(&mut place, key);
                name.iter().for_each(|name| extend(&mut place, name));
                parts.push(Part { key: key.clone(), name, place });
            }
        };
        match (key.as_str(), value) {
            ("$ref", Value::String(reference)) => {
                let target = schema::target(source, at, reference).filter(|target| !seen.contains(target));
                parts.extend(target.map(|place| Part { key: key.clone(), name: None, place }));
            }
            (
                "properties" | "patternProperties" | "dependentSchemas" | "dependencies",
                Value::Object(named),
            ) => named.iter().for_each(|(name, value)| push(Some(name.clone()), value)),
            ("items" | "prefixItems" | "allOf" | "anyOf" | "oneOf", Value::Array(all)) => {
                all.iter().enumerate().for_each(|(index, value)| push(Some(index.to_string()), value));
            }
            (
                "items"
                | "additionalItems"
                | "contains"
                | "additionalProperties"
                | "propertyNames"
                | "unevaluatedItems"
                | "unevaluatedProperties",
                value,
            ) => push(None, value),
            _ => {}
        }
    }
    parts
}

/// The schema with `true` in place of some parts of the one at `at`; of options, with values of their own.
fn without(schema: &Value, at: &str, parts: &[Part]) -> Value {
    let mut less = schema.clone();
    let Some(Value::Object(members)) = less.pointer_mut(at) else { return less };
    for Part { key, name, .. } in parts {
        if key == "$ref" {
            members.remove(key);
            continue;
        }
        let Some(value) = members.get_mut(key) else { continue };
        let is_option = key == "anyOf" || key == "oneOf";
        let place = match (value, name) {
            (Value::Object(named), Some(name)) => named.get_mut(name),
            (Value::Array(all), Some(index)) => {
                index.parse().ok().and_then(|index: usize| all.get_mut(index))
            }
            (value, _) => Some(value),
        };
        if let Some(place) = place {
            *place = match name {
                Some(index) if is_option => json!({"const": format!("option {index}")}),
                _ => Value::Bool(true),
            };
        }
    }
    less
}

/// The schema with nothing but the part's keyword at `at`, and what is referred to.
fn alone(schema: &Value, at: &str, part: &Part) -> Value {
    let mut alone = schema.clone();
    if let Some(Value::Object(members)) = alone.pointer_mut(at) {
        let is_kept = |key: &str| match key {
            "$ref" | "$dynamicRef" | "$recursiveRef" => false,
            "definitions" | "id" => true,
            key => key.starts_with('$'),
        };
        members.retain(|key, _| *key == part.key || is_kept(key));
    }
    alone
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where it is that has the type `bad`, and how many were tried.
    fn bad(source: &Value, most: usize) -> (String, usize) {
        let mut tried = 0;
        let place = place(source, |schema| {
            tried += 1;
            (tried <= most).then(|| schema.to_string().contains("bad"))
        });
        (place, tried)
    }

    #[test]
    fn one_of_many_is_found_in_few_steps() {
        let mut all: Value = (0..1_000).map(|at| (format!("p{at}"), json!({"type": "string"}))).collect();
        all["p700"] = json!({"items": {"anyOf": [{"type": "null"}, {"type": "bad"}]}});
        let (place, tried) = bad(&json!({"properties": all}), 100);
        assert_eq!(place, "/properties/p700/items/anyOf/1");
        assert!(tried < 30, "{tried}");
    }

    #[test]
    fn what_is_refused_together_or_not_found_in_time_is_the_part_around_it() {
        let source = json!({"items": {"allOf": [{"type": "b"}, {"type": "a"}, {"type": "c"}]}});
        let both = place(&source, |schema| {
            let text = schema.to_string();
            Some(text.contains(r#""b""#) && text.contains(r#""c""#))
        });
        assert_eq!(both, "/items");
        let beside = json!({"items": {"title": "b", "allOf": [{"type": "c"}]}});
        let both = place(&beside, |schema| {
            let text = schema.to_string();
            Some(text.contains(r#""b""#) && text.contains(r#""c""#))
        });
        assert_eq!(both, "/items");
        let deep = json!({"items": {"items": {"items": {"type": "bad"}}}});
        assert_eq!(bad(&deep, 2).0, "/items/items");
        assert_eq!(bad(&deep, 0), (String::new(), 1));
    }

    #[test]
    fn what_lies_deeper_than_errors_show_is_not_looked_for() {
        let nested = |key: &str, depth| {
            (0..depth).fold(json!({"type": "bad"}), |inner, _| json!({"properties": {key: inner}}))
        };
        for (source, shown) in [(nested(&"k".repeat(300), 2), 175), (nested("k", 100), 170)] {
            let (place, tried) = bad(&source, 1_000);
            assert!(place.len() < shown && tried < 30, "{} after {tried}", place.len());
        }
    }
}
