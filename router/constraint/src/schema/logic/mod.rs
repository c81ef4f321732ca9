//! The opposite of a schema, and whether two schemas share a value; both for `not`, `if` and `oneOf`.
//!
//! Both read the source's keywords. [`Translator::negation`] is exact or gives nothing (but for numbers that are no
//! integers, which it may leave out); [`Translator::disjoint`] may
//! miss that two schemas are disjoint, but never says so of two that are not.

mod disjoint;
mod opposite;
mod values;

use serde_json::{Map, Value};

use super::{Place, Translator};

/// References and schemas within schemas are followed so far.
const DEPTH: usize = 24;
/// Steps that all of this may take for one source; after them nothing is known.
pub(super) const STEPS: usize = 1_000_000;

/// The kinds of values that are told apart; an integer is a number.
pub(super) const KINDS: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];
/// Keywords that assert nothing by themselves, or are read together with another one.
const SILENT: [&str; 26] = [
    "$schema",
    "$id",
    "id",
    "$anchor",
    "$dynamicAnchor",
    "$recursiveAnchor",
    "$comment",
    "$defs",
    "definitions",
    "title",
    "description",
    "default",
    "examples",
    "example",
    "readOnly",
    "writeOnly",
    "deprecated",
    "contentMediaType",
    "contentEncoding",
    "contentSchema",
    "then",
    "else",
    "$vocabulary",
    "minContains",
    "maxContains",
    "nullable",
];

impl<'a> Translator<'a> {
    /// Takes one of the steps that are left.
    fn step(&self) -> bool {
        let left = self.steps.get();
        let late = left.is_multiple_of(1024) && self.stop.check(self.limits).is_err();
        self.steps.set(if late { 0 } else { left.saturating_sub(1) });
        left > 0
    }
}

pub(super) fn accepts_all(schema: &Value) -> bool {
    schema == &Value::Bool(true) || schema.as_object().is_some_and(Map::is_empty)
}

fn type_names(value: &Value) -> Option<Vec<&str>> {
    match value {
        Value::String(name) => Some(vec![name]),
        Value::Array(names) => names.iter().map(Value::as_str).collect(),
        _ => None,
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
