//! The opposite of a schema, and whether two schemas share a value; both for `not`, `if` and `oneOf`.
//!
//! Both read the source's keywords. [`Translator::negation`] is exact or gives nothing (but for numbers that are no
//! integers, which it may leave out); [`Translator::disjoint`] may
//! miss that two schemas are disjoint, but never says so of two that are not.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{Place, Translator, format};
use crate::pattern;

/// References and schemas within schemas are followed so far.
const DEPTH: usize = 24;
/// As many opposites are written to hold together.
const MOST_PARTS: usize = 100;
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

/// A schema, and the resource that its references are relative to.
type Located<'v, 'a> = (&'v Value, &'a Value);

static ANYTHING: Value = Value::Bool(true);

/// Of which values it is asked whether two schemas are apart.
#[derive(Clone)]
struct Scope<'s> {
    kinds: BTreeSet<&'s str>,
    /// Properties that a schema around both demands.
    demanded: &'s [&'s str],
}

impl<'s> Scope<'s> {
    fn everything() -> Scope<'s> {
        Scope { kinds: KINDS.into_iter().collect(), demanded: &[] }
    }
}

/// The opposite of a schema: every value of `options` is refused by it, and whatever else it refuses is in `unwritten`.
#[derive(Clone, Debug, Default)]
pub(super) struct Opposite {
    options: Vec<Value>,
    unwritten: Vec<Value>,
}

impl Opposite {
    fn of_bool(accepts: bool) -> Opposite {
        let options = if accepts { Vec::new() } else { vec![Value::Bool(true)] };
        Opposite { options, unwritten: Vec::new() }
    }

    fn schema(self) -> Value {
        super::any_of(self.options)
    }
}

impl<'a> Translator<'a> {
    /// A schema for the values of `context` that `schema` refuses, in the source's keywords; None where there are such
    /// values that it cannot be written for.
    pub(super) fn negation(&self, schema: &Value, context: &Value, place: &Place<'a>) -> Option<Value> {
        self.negation_in(schema, context, &KINDS, &[], place)
    }

    /// The same, for values of some kinds, with some properties.
    pub(super) fn negation_in(
        &self,
        schema: &Value,
        context: &Value,
        kinds: &[&str],
        demanded: &[&str],
        place: &Place<'a>,
    ) -> Option<Value> {
        let opposite = self.opposite(schema, place, 0);
        let exact = opposite
            .unwritten
            .iter()
            .all(|unwritten| self.disjoint_in(unwritten, context, kinds, demanded, place));
        exact.then(|| opposite.schema())
    }

    fn opposite(&self, schema: &Value, place: &Place<'a>, depth: usize) -> Opposite {
        let mut found = Opposite::default();
        let members = match schema {
            Value::Bool(accepts) => return Opposite::of_bool(*accepts),
            Value::Object(members) if depth <= DEPTH && self.step() => members,
            _ => {
                found.unwritten.push(Value::Bool(true));
                return found;
            }
        };
        for (key, value) in members {
            if self.opposite_of(key, value, members, place, depth, &mut found).is_none() {
                found.unwritten.push(beyond(key));
            }
        }
        found.options.retain(|option| *option != Value::Bool(false));
        found
    }

    /// Adds what one keyword refuses; None where it cannot be written at all.
    fn opposite_of(
        &self,
        key: &str,
        value: &Value,
        members: &Map<String, Value>,
        place: &Place<'a>,
        depth: usize,
        found: &mut Opposite,
    ) -> Option<()> {
        let options = &mut found.options;
        let within = |schema: &Value| self.opposite(schema, place, depth + 1);
        match key {
            "type" => options.push(other_types(value)?),
            "const" => options.push(other_than(std::slice::from_ref(value))?),
            "enum" => options.push(other_than(value.as_array()?)?),
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => {
                if let Value::Number(_) = value {
                    let lower = key.ends_with("inimum");
                    let pair = if lower { "exclusiveMinimum" } else { "exclusiveMaximum" };
                    let is_exclusive = key == pair || members.get(pair) == Some(&Value::Bool(true));
                    let opposite = match (lower, is_exclusive) {
                        (true, true) => "maximum",
                        (true, false) => "exclusiveMaximum",
                        (false, true) => "minimum",
                        (false, false) => "exclusiveMinimum",
                    };
                    options.push(one_of_type("number", opposite, value.clone()));
                }
            }
            "minLength" => below("string", "maxLength", value, options)?,
            "maxLength" => options.push(one_of_type("string", "minLength", (value.as_u64()? + 1).into())),
            "minItems" => below("array", "maxItems", value, options)?,
            "maxItems" => options.push(one_of_type("array", "minItems", (value.as_u64()? + 1).into())),
            "minProperties" => below("object", "maxProperties", value, options)?,
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
                    let inner = within(property);
                    let with = |schema: Value| json!({"type": "object", "properties": {name: schema}, "required": [name]});
                    found.unwritten.extend(inner.unwritten.iter().cloned().map(with));
                    let negated = inner.schema();
                    if negated != Value::Bool(false) {
                        found.options.push(with(negated));
                    }
                }
            }
            "allOf" => {
                for part in value.as_array()? {
                    let inner = within(part);
                    found.options.extend(inner.options);
                    found.unwritten.extend(inner.unwritten);
                }
            }
            "anyOf" | "oneOf" => {
                let parts = value.as_array()?;
                // Of `oneOf`, none may match; or two, where two can.
                let apart = key == "anyOf"
                    || parts.iter().enumerate().all(|(index, one)| {
                        parts[index + 1..].iter().all(|other| self.disjoint(one, other, place))
                    });
                if !apart {
                    return None;
                }
                let lists: Option<Vec<_>> = parts.iter().map(only_values).collect();
                if let Some(lists) = lists {
                    options.push(other_than(&lists.concat())?);
                } else if parts.len() > MOST_PARTS {
                    return None;
                } else {
                    // None of them may hold.
                    let mut all = Vec::new();
                    for part in parts {
                        let inner = within(part);
                        found.unwritten.extend(inner.unwritten.iter().cloned());
                        all.push(inner.schema());
                    }
                    found.options.push(super::all_of(all));
                }
            }
            "not" => options.push(value.clone()),
            "$ref" => {
                let target = self.document.resolve(value.as_str()?, place).ok()?;
                // What is found there is read here, so its own references must mean the same.
                if !std::ptr::eq(target.base, place.base) {
                    return None;
                }
                let inner = self.opposite(target.value, place, depth + 1);
                found.options.extend(inner.options);
                found.unwritten.extend(inner.unwritten);
            }
            "if" if members.contains_key("then") || members.contains_key("else") => return None,
            "if" => {}
            "items" | "additionalProperties" | "additionalItems" if accepts_all(value) => {}
            "items" => return None,
            "uniqueItems" if value == &Value::Bool(false) => {}
            "format" if value.as_str().is_some_and(|name| format::expression(name).is_none()) => {}
            key if ASSERTING.contains(&key) => return None,
            _ => {}
        }
        Some(())
    }

    /// The values of a schema that lists them, or of one that must hold beside it, that it accepts as a whole; None
    /// where it lists none, or where it is not known of one of them.
    pub(super) fn listed(&self, schema: &Value, place: &Place<'a>) -> Option<Vec<Value>> {
        let values = self.values_within(schema, place.base, 0)?;
        let mut accepted = Vec::new();
        for value in values {
            if self.accepts(schema, &value, place.base, 0)? && !accepted.contains(&value) {
                accepted.push(value);
            }
        }
        Some(accepted)
    }

    fn values_within(&self, schema: &Value, base: &'a Value, depth: usize) -> Option<Vec<Value>> {
        let members = schema.as_object().filter(|_| depth < DEPTH)?;
        if let Some(values) = values_of(members) {
            return Some(values.into_iter().cloned().collect());
        }
        if let Some(Value::String(reference)) = members.get("$ref") {
            let target = self.document.find(reference, base)?;
            return self.values_within(target.value, target.base, depth + 1);
        }
        members.get("allOf")?.as_array()?.iter().find_map(|part| self.values_within(part, base, depth + 1))
    }

    /// Whether a schema accepts a value, by JSON schema's rules; None where it says something that is not known here.
    fn accepts(&self, schema: &Value, value: &Value, base: &'a Value, depth: usize) -> Option<bool> {
        let members = match schema {
            Value::Bool(accepts) => return Some(*accepts),
            Value::Object(members) if depth < DEPTH && self.step() => members,
            _ => return None,
        };
        let within = |schema: &Value, value: &Value| self.accepts(schema, value, base, depth + 1);
        for (key, assertion) in members {
            let all = |values: &mut dyn Iterator<Item = Option<bool>>| -> Option<bool> {
                let answers: Option<Vec<bool>> = values.collect();
                Some(answers?.into_iter().all(|accepted| accepted))
            };
            let holds = match (key.as_str(), value) {
                ("type" | "const" | "enum" | "minLength" | "maxLength" | "required", _) => {
                    let alone: Map<String, Value> = [(key.clone(), assertion.clone())].into_iter().collect();
                    if key == "type" && value.is_number() && type_names(assertion)?.contains(&"integer") {
                        value.as_f64()?.fract() == 0.0 || type_names(assertion)?.contains(&"number")
                    } else {
                        !is_refused(value, &alone)
                    }
                }
                ("minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum", Value::Number(number)) => {
                    let number = number.as_f64()?;
                    let lower = key.ends_with("inimum");
                    let strict = key.starts_with("exclusive")
                        || members.get(if lower { "exclusiveMinimum" } else { "exclusiveMaximum" })
                            == Some(&Value::Bool(true));
                    match assertion.as_f64() {
                        None => true,
                        Some(bound) if strict => {
                            if lower {
                                number > bound
                            } else {
                                number < bound
                            }
                        }
                        Some(bound) => {
                            if lower {
                                number >= bound
                            } else {
                                number <= bound
                            }
                        }
                    }
                }
                ("minItems", Value::Array(items)) => items.len() as u64 >= assertion.as_u64()?,
                ("maxItems", Value::Array(items)) => items.len() as u64 <= assertion.as_u64()?,
                ("minProperties", Value::Object(own)) => own.len() as u64 >= assertion.as_u64()?,
                ("maxProperties", Value::Object(own)) => own.len() as u64 <= assertion.as_u64()?,
                ("uniqueItems", Value::Array(items)) => {
                    let distinct =
                        |index: usize| !items[..index].iter().any(|other| same(other, &items[index]));
                    assertion != &Value::Bool(true) || (0..items.len()).all(distinct)
                }
                ("items", Value::Array(items))
                    if !members.contains_key("prefixItems") && !assertion.is_array() =>
                {
                    all(&mut items.iter().map(|item| within(assertion, item)))?
                }
                ("properties", Value::Object(own)) => all(&mut assertion
                    .as_object()?
                    .iter()
                    .filter_map(|(name, schema)| own.get(name).map(|value| within(schema, value))))?,
                ("additionalProperties", Value::Object(own))
                    if !members.contains_key("patternProperties") =>
                {
                    let named = members.get("properties").and_then(Value::as_object);
                    all(&mut own
                        .iter()
                        .filter(|(name, _)| named.is_none_or(|named| !named.contains_key(*name)))
                        .map(|(_, value)| within(assertion, value)))?
                }
                ("allOf", _) => all(&mut assertion.as_array()?.iter().map(|part| within(part, value)))?,
                ("anyOf" | "oneOf", _) => {
                    let answers: Option<Vec<bool>> =
                        assertion.as_array()?.iter().map(|part| within(part, value)).collect();
                    let accepting = answers?.into_iter().filter(|accepted| *accepted).count();
                    if key == "anyOf" { accepting > 0 } else { accepting == 1 }
                }
                ("not", _) => !within(assertion, value)?,
                ("if", _) => {
                    let then =
                        if within(assertion, value)? { members.get("then") } else { members.get("else") };
                    then.map_or(Some(true), |then| within(then, value))?
                }
                ("$ref", _) => {
                    let target = self.document.find(assertion.as_str()?, base)?;
                    self.accepts(target.value, value, target.base, depth + 1)?
                }
                ("format", Value::String(_)) => {
                    format::expression(assertion.as_str()?).is_none().then_some(true)?
                }
                ("pattern", Value::String(_)) => return None,
                (
                    "contains" | "prefixItems" | "items" | "additionalItems" | "unevaluatedItems",
                    Value::Array(_),
                ) => return None,
                ("multipleOf", Value::Number(_)) => return None,
                (
                    "patternProperties"
                    | "propertyNames"
                    | "dependencies"
                    | "dependentRequired"
                    | "dependentSchemas"
                    | "unevaluatedProperties"
                    | "additionalProperties",
                    Value::Object(_),
                ) => return None,
                ("$dynamicRef" | "$recursiveRef", _) => return None,
                _ => true,
            };
            if !holds {
                return Some(false);
            }
        }
        Some(true)
    }

    /// True only if no value matches both schemas.
    pub(super) fn disjoint(&self, one: &Value, other: &Value, place: &Place<'a>) -> bool {
        self.disjoint_in(one, other, &KINDS, &[], place)
    }

    /// True only if no value of these kinds, with these properties if it is an object, matches both schemas.
    pub(super) fn disjoint_in(
        &self,
        one: &Value,
        other: &Value,
        kinds: &[&str],
        demanded: &[&str],
        place: &Place<'a>,
    ) -> bool {
        let scope = Scope { kinds: kinds.iter().copied().collect(), demanded };
        self.apart((one, place.base), (other, place.base), &scope, 0)
    }

    fn apart(&self, one: Located<'_, 'a>, other: Located<'_, 'a>, scope: &Scope<'_>, depth: usize) -> bool {
        if depth > DEPTH || !self.step() {
            return false;
        }
        if *one.0 == Value::Bool(false) || *other.0 == Value::Bool(false) {
            return true;
        }
        let empty = Map::new();
        let (first, second) = (one.0.as_object().unwrap_or(&empty), other.0.as_object().unwrap_or(&empty));
        let (own_kinds, other_kinds) = (kinds_of(first), kinds_of(second));
        let in_both = |kind: &&str| own_kinds.contains(kind) && other_kinds.contains(kind);
        let shared: BTreeSet<&str> = scope.kinds.iter().copied().filter(in_both).collect();
        if shared.is_empty() {
            return true;
        }
        let shared = Scope { kinds: shared, demanded: scope.demanded };

        // What stands beside each other must hold together, so one part that is apart is enough.
        for (this, that) in [(one, other), (other, one)] {
            let Some(members) = this.0.as_object() else { continue };
            if let Some(reference) = members.get("$ref").and_then(Value::as_str)
                && let Some(target) = self.document.find(reference, this.1)
                && self.apart((target.value, target.base), that, &shared, depth + 1)
            {
                return true;
            }
            let part_is_apart = |part: &Value| self.apart((part, this.1), that, &shared, depth + 1);
            let parts =
                |key: &str| members.get(key).and_then(Value::as_array).filter(|parts| !parts.is_empty());
            if parts("allOf").is_some_and(|parts| parts.iter().any(part_is_apart)) {
                return true;
            }
            for key in ["anyOf", "oneOf"] {
                if parts(key).is_some_and(|parts| parts.iter().all(part_is_apart)) {
                    return true;
                }
            }
            if let (Some(Value::Object(not)), Some(theirs)) = (members.get("not"), that.0.as_object())
                && demands_all(theirs, not)
            {
                return true;
            }
        }

        if let (Some(values), Some(others)) = (values_of(first), values_of(second)) {
            return !values.iter().any(|value| others.iter().any(|other| same(value, other)));
        }
        for (schema, values) in [(other, values_of(first)), (one, values_of(second))] {
            let refused = |value: &&Value| self.accepts(schema.0, value, schema.1, 0) == Some(false);
            if values.is_some_and(|values| values.iter().all(refused)) {
                return true;
            }
        }
        shared.kinds.iter().all(|kind| match *kind {
            "number" => ranges_apart(first, second),
            "string" => lengths_apart(first, second, "minLength", "maxLength"),
            "array" => {
                lengths_apart(first, second, "minItems", "maxItems") || self.items_apart(one, other, depth)
            }
            "object" => {
                lengths_apart(first, second, "minProperties", "maxProperties")
                    || self.objects_apart(one, other, scope.demanded, depth)
            }
            _ => false,
        })
    }

    /// A property that one of them demands and that cannot be the same in both.
    fn objects_apart(
        &self,
        one: Located<'_, 'a>,
        other: Located<'_, 'a>,
        demanded: &[&str],
        depth: usize,
    ) -> bool {
        let (Some(first), Some(second)) = (one.0.as_object(), other.0.as_object()) else { return false };
        let required = |members: &'_ Map<String, Value>| -> BTreeSet<String> {
            let names = members.get("required").and_then(Value::as_array);
            names.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let mut names = required(first);
        names.extend(required(second));
        names.extend(demanded.iter().map(|name| name.to_string()));
        names.iter().any(|name| {
            let mine = (property_of(first, name), one.1);
            let theirs = (property_of(second, name), other.1);
            self.apart(mine, theirs, &Scope::everything(), depth + 1)
        })
    }

    /// Both have a first item, which cannot be the same.
    fn items_apart(&self, one: Located<'_, 'a>, other: Located<'_, 'a>, depth: usize) -> bool {
        let has_item =
            |schema: &Value| schema.get("minItems").and_then(Value::as_u64).is_some_and(|least| least > 0);
        let prefixed = |schema: &Value| schema.get("prefixItems").is_some();
        if !has_item(one.0) && !has_item(other.0) || prefixed(one.0) || prefixed(other.0) {
            return false;
        }
        let items =
            |schema: Located<'_, 'a>| schema.0.get("items").filter(|items| items.is_object()).is_some();
        if !items(one) || !items(other) {
            return false;
        }
        self.apart((&one.0["items"], one.1), (&other.0["items"], other.1), &Scope::everything(), depth + 1)
    }

    /// Takes one of the steps that are left.
    fn step(&self) -> bool {
        let left = self.steps.get();
        let late = left.is_multiple_of(1024) && self.stop.check(self.limits).is_err();
        self.steps.set(if late { 0 } else { left.saturating_sub(1) });
        left > 0
    }
}

/// What the values are in that a keyword refuses, where they cannot be written.
fn beyond(key: &str) -> Value {
    let kind = match key {
        "pattern" | "format" => "string",
        "multipleOf" => "number",
        "items" | "prefixItems" | "additionalItems" | "unevaluatedItems" | "uniqueItems" | "contains" => {
            "array"
        }
        "patternProperties"
        | "additionalProperties"
        | "propertyNames"
        | "unevaluatedProperties"
        | "dependencies"
        | "dependentRequired"
        | "dependentSchemas"
        | "properties"
        | "required" => "object",
        _ => return Value::Bool(true),
    };
    json!({"type": kind})
}

pub(super) fn accepts_all(schema: &Value) -> bool {
    schema == &Value::Bool(true) || schema.as_object().is_some_and(Map::is_empty)
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
    // Numbers that are no integers cannot be written; as the opposite of "integer" they are left out.
    let kept: Vec<&str> = KINDS
        .into_iter()
        .filter(|kind| !(names.contains(kind) || *kind == "number" && names.contains(&"integer")))
        .collect();
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
            Value::String(text) if text.chars().count() <= pattern::LONGEST_TEXT => texts.push(text.as_str()),
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

/// The values of a schema that does nothing but list them.
fn only_values(schema: &Value) -> Option<Vec<Value>> {
    let members = schema.as_object()?;
    let alone =
        members.keys().all(|key| matches!(key.as_str(), "const" | "enum") || SILENT.contains(&key.as_str()));
    let values = values_of(members)
        .filter(|_| alone && !(members.contains_key("const") && members.contains_key("enum")))?;
    Some(values.into_iter().cloned().collect())
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
fn property_of<'v>(members: &'v Map<String, Value>, name: &str) -> &'v Value {
    let property = members.get("properties").and_then(|properties| properties.get(name));
    match (property, members.get("patternProperties"), members.get("additionalProperties")) {
        (Some(property), _, _) => property,
        (None, None, Some(additional)) => additional,
        _ => &ANYTHING,
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
