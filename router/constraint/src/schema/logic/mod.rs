//! The opposite of a schema, and whether two schemas share a value; both for `not`, `if` and `oneOf`.
//!
//! Both read the source's keywords. [`Translator::negation`] is exact or gives nothing (but for numbers that are no
//! integers, which it may leave out); [`Translator::disjoint`] may
//! miss that two schemas are disjoint, but never says so of two that are not.

mod disjoint;
mod opposite;
mod values;

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::{Draft, Place, Translator};

/// References and schemas within schemas are followed so far.
const DEPTH: usize = 24;
/// Steps that all of this may take for one source; after them nothing is known.
pub(super) const STEPS: usize = 1_000_000;
/// Of what a step writes, so many bytes take one more.
const BYTES_OF_STEP: usize = 64;
/// Work that a step is by itself, in values compared or read. What goes through a list is more.
const WORK_OF_STEP: usize = 64;
/// The clock is asked once in so much work: some milliseconds.
pub(super) const WORK: usize = 1024 * WORK_OF_STEP;

/// The kinds of values that are told apart; an integer is a number.
pub(super) const KINDS: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];
/// Keywords that assert nothing by themselves, or are read together with another one.
pub(super) const SILENT: [&str; 26] = [
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
    /// The schema as the draft has it: up to draft 7 a `$ref` is all that there is of it.
    pub(super) fn meant<'v>(&self, schema: &'v Value) -> Cow<'v, Value> {
        match schema.as_object().and_then(|members| members.get("$ref")) {
            Some(reference) if self.draft == Draft::Seven => Cow::Owned(json!({"$ref": reference})),
            _ => Cow::Borrowed(schema),
        }
    }

    /// Takes one of the steps that are left. False: none was left.
    pub(super) fn step(&self) -> bool {
        self.steps(1) && self.works(WORK_OF_STEP)
    }

    /// Takes the steps of writing something so large.
    fn writes(&self, bytes: usize) -> bool {
        self.steps(bytes / BYTES_OF_STEP) && self.works(bytes)
    }

    fn steps(&self, count: usize) -> bool {
        let left = self.steps.get();
        self.steps.set(left.saturating_sub(count));
        left > 0 && left >= count
    }

    /// Does work beside the steps. False: no step is left, which is so once the time is over.
    pub(super) fn works(&self, work: usize) -> bool {
        self.is_in_time(work) && self.steps.get() > 0
    }

    /// Counts work, and asks the clock where much was done since it was asked.
    pub(super) fn is_in_time(&self, work: usize) -> bool {
        let left = self.work.get().saturating_sub(work);
        let late = left == 0 && self.stop.check(self.limits).is_err();
        self.work.set(if left == 0 { WORK } else { left });
        if late {
            self.steps.set(0);
        }
        !late
    }
}

/// The values, names and types that a schema's own keywords list.
fn breadth(members: &Map<String, Value>) -> usize {
    let entries = |key: &str| match members.get(key) {
        Some(Value::Array(items)) => items.len(),
        Some(Value::Object(members)) => members.len(),
        _ => 0,
    };
    ["type", "enum", "required", "properties"].into_iter().map(entries).sum()
}

/// The bytes of a value, about.
pub(super) fn size(value: &Value) -> usize {
    let within = match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(size).sum(),
        Value::Object(members) => members.iter().map(|(key, value)| key.len() + size(value)).sum(),
        _ => 0,
    };
    size_of::<Value>() + within
}

/// The numbers that are no integers, which only [`Translator::disjoint`] knows.
pub(super) fn fractions() -> Value {
    json!({"type": "number", "not": {"type": "integer"}})
}

pub(super) fn accepts_all(schema: &Value) -> bool {
    schema == &Value::Bool(true) || schema.as_object().is_some_and(Map::is_empty)
}

pub(super) fn type_names(value: &Value) -> Option<Vec<&str>> {
    match value {
        Value::String(name) => Some(vec![name]),
        Value::Array(names) => names.iter().map(Value::as_str).collect(),
        _ => None,
    }
}

pub(super) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
