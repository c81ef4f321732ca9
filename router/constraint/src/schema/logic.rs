//! The opposite of a schema, and whether two schemas share a value; both for `not`, `if` and `oneOf`.
//!
//! Both read the source's keywords. [`Translator::negation`] is exact or gives nothing; [`Translator::disjoint`] may
//! miss that two schemas are disjoint, but never says so of two that are not.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{Place, Translator, format};
use crate::pattern;

/// References and schemas within schemas are followed so far.
const DEPTH: usize = 24;
/// The longest text that an expression for "any other text" is made of.
const LONGEST_TEXT: usize = 60;
/// Steps that telling two schemas apart may take.
const STEPS: usize = 20_000;

const KINDS: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];
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
/// Keywords that every draft, or some, gives a meaning which is not written as an opposite here.
const ASSERTING: [&str; 17] = [
    "format",
    "multipleOf",
    "uniqueItems",
    "contains",
    "patternProperties",
    "additionalProperties",
    "propertyNames",
    "unevaluatedProperties",
    "unevaluatedItems",
    "additionalItems",
    "prefixItems",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "if",
    "$dynamicRef",
    "$recursiveRef",
];

/// A schema with its references followed, and the place that its own are relative to.
type Located<'a> = (Value, Place<'a>);

impl<'a> Translator<'a> {
    /// A schema for exactly the values that `schema` refuses, in the source's keywords.
    pub(super) fn negation(&self, schema: &Value, place: &Place<'a>) -> Option<Value> {
        self.negation_within(schema, place, 0)
    }

    fn negation_within(&self, schema: &Value, place: &Place<'a>, depth: usize) -> Option<Value> {
        if depth > DEPTH {
            return None;
        }
        let members = match schema {
            Value::Bool(accepts) => return Some(Value::Bool(!accepts)),
            Value::Object(members) => members,
            _ => return None,
        };
        let within = |schema: &Value| self.negation_within(schema, place, depth + 1);
        let mut options = Vec::new();
        for (key, value) in members {
            match key.as_str() {
                "type" => options.push(other_types(value)?),
                "const" => options.push(other_than(std::slice::from_ref(value))?),
                "enum" => options.push(other_than(value.as_array()?)?),
                "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => {
                    if let Value::Number(_) = value {
                        let pair =
                            if key.ends_with("inimum") { "exclusiveMinimum" } else { "exclusiveMaximum" };
                        let is_exclusive = key == pair || members.get(pair) == Some(&Value::Bool(true));
                        let opposite = match (key.ends_with("inimum"), is_exclusive) {
                            (true, true) => "maximum",
                            (true, false) => "exclusiveMaximum",
                            (false, true) => "minimum",
                            (false, false) => "exclusiveMinimum",
                        };
                        options.push(one_of_type("number", opposite, value.clone()));
                    }
                }
                "minLength" => below("string", "maxLength", value, &mut options)?,
                "maxLength" => options.push(one_of_type("string", "minLength", (value.as_u64()? + 1).into())),
                "minItems" => below("array", "maxItems", value, &mut options)?,
                "maxItems" => options.push(one_of_type("array", "minItems", (value.as_u64()? + 1).into())),
                "minProperties" => below("object", "maxProperties", value, &mut options)?,
                "maxProperties" => {
                    options.push(one_of_type("object", "minProperties", (value.as_u64()? + 1).into()))
                }
                "pattern" => {
                    let opposite = pattern::opposite(value.as_str()?)?;
                    options.push(one_of_type("string", "pattern", opposite.into()));
                }
                "required" => {
                    for name in value.as_array()? {
                        let absent: Map<String, Value> =
                            [(name.as_str()?.to_owned(), Value::Bool(false))].into_iter().collect();
                        options.push(one_of_type("object", "properties", Value::Object(absent)));
                    }
                }
                "properties" => {
                    for (name, property) in value.as_object()? {
                        let negated = within(property)?;
                        if negated != Value::Bool(false) {
                            let mut option = one_of_type("object", "properties", json!({ name: negated }));
                            option["required"] = json!([name]);
                            options.push(option);
                        }
                    }
                }
                // Only where no item can match; else the item that does not match may be any.
                "items" => match value {
                    Value::Bool(true) => {}
                    items if items.is_object() && items.as_object().is_some_and(Map::is_empty) => {}
                    _ => return None,
                },
                "allOf" => {
                    for part in value.as_array()? {
                        options.push(within(part)?);
                    }
                }
                "anyOf" => {
                    let parts: Option<Vec<Value>> = value.as_array()?.iter().map(within).collect();
                    options.push(json!({"allOf": parts?}));
                }
                "oneOf" => {
                    // Exact where at most one can match: then none of them does.
                    let parts = value.as_array()?;
                    let apart = parts.iter().enumerate().all(|(index, one)| {
                        parts[index + 1..].iter().all(|other| self.disjoint(one, other, place))
                    });
                    if !apart {
                        return None;
                    }
                    let parts: Option<Vec<Value>> = parts.iter().map(within).collect();
                    options.push(json!({"allOf": parts?}));
                }
                "not" => options.push(value.clone()),
                "$ref" => {
                    let target = self.document.resolve(value.as_str()?, place).ok()?;
                    let there = Place { path: place.path.clone(), base: target.base, depth: 0 };
                    // References within are relative to where they stand.
                    if !std::ptr::eq(target.base, place.base) {
                        return None;
                    }
                    options.push(self.negation_within(target.value, &there, depth + 1)?);
                }
                "if" if members.contains_key("then") || members.contains_key("else") => return None,
                "if" => {}
                "additionalProperties" if value == &Value::Bool(true) => {}
                "uniqueItems" if value == &Value::Bool(false) => {}
                "format" if value.as_str().is_some_and(|name| format::expression(name).is_none()) => {}
                key if ASSERTING.contains(&key) => return None,
                _ => {}
            }
        }
        options.retain(|option| *option != Value::Bool(false));
        Some(match options.len() {
            0 => Value::Bool(false),
            1 => options.remove(0),
            _ => json!({"anyOf": options}),
        })
    }

    /// True only if no value matches both schemas.
    pub(super) fn disjoint(&self, one: &Value, other: &Value, place: &Place<'a>) -> bool {
        let mut steps = STEPS;
        self.apart(&(one.clone(), place.clone()), &(other.clone(), place.clone()), 0, &mut steps)
    }

    fn apart(&self, one: &Located<'a>, other: &Located<'a>, depth: usize, steps: &mut usize) -> bool {
        if depth > DEPTH || *steps == 0 {
            return false;
        }
        *steps -= 1;
        if one.0 == Value::Bool(false) || other.0 == Value::Bool(false) {
            return true;
        }
        let (Some(first), Some(second)) = (one.0.as_object(), other.0.as_object()) else { return false };

        // What stands beside each other must hold together, so one part that is apart is enough.
        for (this, that) in [(one, other), (other, one)] {
            let Some(members) = this.0.as_object() else { continue };
            if let Some(reference) = members.get("$ref").and_then(Value::as_str) {
                if let Ok(target) = self.document.resolve(reference, &this.1) {
                    let place = Place { path: this.1.path.clone(), base: target.base, depth: 0 };
                    if self.apart(&(target.value.clone(), place), that, depth + 1, steps) {
                        return true;
                    }
                }
            }
            let parts =
                |key: &str| members.get(key).and_then(Value::as_array).filter(|parts| !parts.is_empty());
            if let Some(parts) = parts("allOf") {
                if parts
                    .iter()
                    .any(|part| self.apart(&(part.clone(), this.1.clone()), that, depth + 1, steps))
                {
                    return true;
                }
            }
            for key in ["anyOf", "oneOf"] {
                if let Some(parts) = parts(key) {
                    if parts
                        .iter()
                        .all(|part| self.apart(&(part.clone(), this.1.clone()), that, depth + 1, steps))
                    {
                        return true;
                    }
                }
            }
            if let (Some(Value::Object(not)), Some(theirs)) = (members.get("not"), that.0.as_object()) {
                if demands_all(theirs, not) {
                    return true;
                }
            }
        }

        let (kinds, other_kinds) = (kinds_of(first), kinds_of(second));
        let shared: BTreeSet<&str> = kinds.intersection(&other_kinds).copied().collect();
        // With two numbers of which one is an integer, the other may be one too.
        if shared.is_empty() {
            return true;
        }
        if let (Some(values), Some(others)) = (values_of(first), values_of(second)) {
            return !values.iter().any(|value| others.iter().any(|other| same(value, other)));
        }
        for (members, values) in [(second, values_of(first)), (first, values_of(second))] {
            if let Some(values) = values {
                if values.iter().all(|value| is_refused(value, members)) {
                    return true;
                }
            }
        }
        shared.iter().all(|kind| match *kind {
            "number" => ranges_apart(first, second),
            "string" => lengths_apart(first, second, "minLength", "maxLength"),
            "array" => {
                lengths_apart(first, second, "minItems", "maxItems")
                    || self.items_apart(one, other, depth, steps)
            }
            "object" => self.objects_apart(one, other, depth, steps),
            _ => false,
        })
    }

    /// A property that one of them demands and that cannot be the same in both.
    fn objects_apart(&self, one: &Located<'a>, other: &Located<'a>, depth: usize, steps: &mut usize) -> bool {
        let (Some(first), Some(second)) = (one.0.as_object(), other.0.as_object()) else { return false };
        let required = |members: &Map<String, Value>| -> Vec<String> {
            let names = members.get("required").and_then(Value::as_array);
            names.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let names: BTreeSet<String> = required(first).into_iter().chain(required(second)).collect();
        names.iter().any(|name| {
            let mine = (property_of(first, name), one.1.clone());
            let theirs = (property_of(second, name), other.1.clone());
            self.apart(&mine, &theirs, depth + 1, steps)
        })
    }

    /// Both have a first item, which cannot be the same.
    fn items_apart(&self, one: &Located<'a>, other: &Located<'a>, depth: usize, steps: &mut usize) -> bool {
        let has_item =
            |schema: &Value| schema.get("minItems").and_then(Value::as_u64).is_some_and(|least| least > 0);
        let items = |schema: &Value| schema.get("items").filter(|items| items.is_object()).cloned();
        let prefixed = |schema: &Value| schema.get("prefixItems").is_some();
        if !has_item(&one.0) && !has_item(&other.0) || prefixed(&one.0) || prefixed(&other.0) {
            return false;
        }
        match (items(&one.0), items(&other.0)) {
            (Some(mine), Some(theirs)) => {
                self.apart(&(mine, one.1.clone()), &(theirs, other.1.clone()), depth + 1, steps)
            }
            _ => false,
        }
    }
}

/// A schema of one type and one keyword.
fn one_of_type(kind: &str, key: &str, value: Value) -> Value {
    json!({"type": kind, key: value})
}

/// The opposite of a least count: at most one less, where there is one less.
fn below(kind: &str, key: &str, least: &Value, options: &mut Vec<Value>) -> Option<()> {
    let least = least.as_u64()?;
    if least > 0 {
        options.push(one_of_type(kind, key, (least - 1).into()));
    }
    Some(())
}

fn type_names(value: &Value) -> Option<Vec<&str>> {
    match value {
        Value::String(name) => Some(vec![name]),
        Value::Array(names) => names.iter().map(Value::as_str).collect(),
        _ => None,
    }
}

fn other_types(value: &Value) -> Option<Value> {
    let names = type_names(value)?;
    // A number that is no integer cannot be written; other kinds are told apart as a whole.
    let kept: Vec<&str> = KINDS
        .into_iter()
        .filter(|kind| !names.contains(kind) && !(*kind == "number" && names.contains(&"integer")))
        .collect();
    if names.contains(&"integer") && !names.contains(&"number") {
        return None;
    }
    Some(if kept.is_empty() { Value::Bool(false) } else { json!({"type": kept}) })
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

/// A schema for every value but these.
fn other_than(values: &[Value]) -> Option<Value> {
    let mut options = Vec::new();
    let mut kinds = KINDS.to_vec();
    let mut texts = Vec::new();
    let mut numbers = Vec::new();
    let mut booleans = Vec::new();
    for value in values {
        match value {
            Value::Null => {}
            Value::Bool(value) => booleans.push(*value),
            Value::Number(number) => {
                numbers.push(number.as_f64().filter(|float| float.abs() < super::EXACT_INTEGERS)?)
            }
            Value::String(text) if text.chars().count() <= LONGEST_TEXT => texts.push(text.as_str()),
            _ => return None,
        }
        kinds.retain(|kind| *kind != kind_of(value));
    }
    if !kinds.is_empty() {
        options.push(json!({"type": kinds}));
    }
    if !texts.is_empty() {
        options.push(one_of_type("string", "pattern", pattern::other_than(&texts).into()));
    }
    if let [only] = booleans[..] {
        options.push(json!({"const": !only}));
    }
    if !numbers.is_empty() {
        numbers.sort_by(f64::total_cmp);
        numbers.dedup();
        options.push(one_of_type("number", "exclusiveMaximum", numbers[0].into()));
        for pair in numbers.windows(2) {
            options.push(json!({"type": "number", "exclusiveMinimum": pair[0], "exclusiveMaximum": pair[1]}));
        }
        options.push(one_of_type("number", "exclusiveMinimum", numbers[numbers.len() - 1].into()));
    }
    Some(json!({"anyOf": options}))
}

/// The kinds of values that a schema's own keywords leave.
fn kinds_of(members: &Map<String, Value>) -> BTreeSet<&'static str> {
    let mut kinds: BTreeSet<&str> = KINDS.into_iter().collect();
    if let Some(names) = members.get("type").and_then(type_names) {
        kinds.retain(|kind| names.contains(kind) || *kind == "number" && names.contains(&"integer"));
    }
    if let Some(values) = values_of(members) {
        kinds.retain(|kind| values.iter().any(|value| kind_of(value) == *kind));
    }
    kinds
}

/// The values, where a schema lists them.
fn values_of(members: &Map<String, Value>) -> Option<Vec<&Value>> {
    match (members.get("const"), members.get("enum")) {
        (Some(value), _) => Some(vec![value]),
        (None, Some(Value::Array(values))) => Some(values.iter().collect()),
        _ => None,
    }
}

/// Equal as JSON schema has it: 1 and 1.0 are.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(key, value)| other.get(key).is_some_and(|other| same(value, other)))
        }
        _ => one == other,
    }
}

/// Whether a schema's simple keywords refuse a value.
fn is_refused(value: &Value, members: &Map<String, Value>) -> bool {
    if !kinds_of(members).contains(kind_of(value)) {
        return true;
    }
    if values_of(members).is_some_and(|values| !values.iter().any(|other| same(value, other))) {
        return true;
    }
    let count = |key: &str| members.get(key).and_then(Value::as_u64);
    match value {
        Value::Number(number) => {
            let (low, high) = range_of(members);
            let is_integer =
                members.get("type").and_then(type_names).is_some_and(|names| names == ["integer"]);
            number
                .as_f64()
                .is_some_and(|float| float < low || float > high || is_integer && float.fract() != 0.0)
        }
        Value::String(text) => {
            let length = text.chars().count() as u64;
            count("minLength").is_some_and(|least| length < least)
                || count("maxLength").is_some_and(|most| length > most)
        }
        Value::Object(own) => members
            .get("required")
            .and_then(Value::as_array)
            .is_some_and(|names| names.iter().filter_map(Value::as_str).any(|name| !own.contains_key(name))),
        _ => false,
    }
}

/// The bounds of a schema's numbers, both taken to be inclusive.
fn range_of(members: &Map<String, Value>) -> (f64, f64) {
    let number = |key: &str| members.get(key).and_then(Value::as_f64);
    let low = [number("minimum"), number("exclusiveMinimum")]
        .into_iter()
        .flatten()
        .fold(f64::NEG_INFINITY, f64::max);
    let high =
        [number("maximum"), number("exclusiveMaximum")].into_iter().flatten().fold(f64::INFINITY, f64::min);
    (low, high)
}

fn ranges_apart(one: &Map<String, Value>, other: &Map<String, Value>) -> bool {
    let ((low, high), (other_low, other_high)) = (range_of(one), range_of(other));
    // At a shared end, one of them must leave it out.
    let excludes = |members: &Map<String, Value>, key: &str, at: f64| {
        members.get(key).and_then(Value::as_f64) == Some(at) || members.get(key) == Some(&Value::Bool(true))
    };
    let meets = |high: f64, of: &Map<String, Value>, low: f64, with: &Map<String, Value>| {
        high < low
            || high == low
                && (excludes(of, "exclusiveMaximum", high) || excludes(with, "exclusiveMinimum", low))
    };
    meets(high, one, other_low, other) || meets(other_high, other, low, one)
}

fn lengths_apart(one: &Map<String, Value>, other: &Map<String, Value>, least: &str, most: &str) -> bool {
    let count = |members: &Map<String, Value>, key: &str| members.get(key).and_then(Value::as_u64);
    let over = |one, other| matches!((count(one, least), count(other, most)), (Some(least), Some(most)) if least > most);
    over(one, other) || over(other, one)
}

/// What a schema says of a property, as far as its own keywords do.
fn property_of(members: &Map<String, Value>, name: &str) -> Value {
    let property = members.get("properties").and_then(|properties| properties.get(name));
    match (property, members.get("patternProperties"), members.get("additionalProperties")) {
        (Some(property), _, _) => property.clone(),
        (None, None, Some(additional)) => additional.clone(),
        _ => Value::Bool(true),
    }
}

/// Whether `not`, which only demands properties, is met by whatever meets `members`.
fn demands_all(members: &Map<String, Value>, not: &Map<String, Value>) -> bool {
    let is_object = members.get("type").is_some_and(|kind| kind == "object");
    let only_demands = not.iter().all(|(key, value)| {
        // Anything but an object meets `required`, so the type matters only where `not` names it.
        key == "required" || key == "type" && value == "object" && is_object || SILENT.contains(&key.as_str())
    });
    let names = |members: &Map<String, Value>| members.get("required").and_then(Value::as_array).cloned();
    match (names(not), names(members)) {
        (Some(refused), Some(required)) => only_demands && refused.iter().all(|name| required.contains(name)),
        _ => false,
    }
}
