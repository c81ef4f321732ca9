//! The values that a schema lists, and whether it accepts a value.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{DEPTH, KINDS, SILENT, Translator, breadth, kind_of, type_names};
use crate::schema::{Place, format};

/// More values than this are not few.
const MOST_FEW: usize = 64;

impl<'a> Translator<'a> {
    /// The values of a schema that lists them, or of one that must hold beside it, that it accepts as a whole; None
    /// where it lists none, or where it is not known of one of them.
    pub(in crate::schema) fn listed(&self, schema: &Value, place: &Place<'a>) -> Option<Vec<Value>> {
        let values = self.values_within(schema, place.base, 0)?;
        let mut accepted = Vec::new();
        for value in values {
            if !self.works(accepted.len()) {
                return None;
            }
            if self.accepts(schema, &value, place.base, 0)? && !accepted.contains(&value) {
                accepted.push(value);
            }
        }
        Some(accepted)
    }

    fn values_within(&self, schema: &Value, base: &'a Value, depth: usize) -> Option<Vec<Value>> {
        let schema = self.meant(schema);
        let members = schema.as_object().filter(|_| depth < DEPTH && self.step())?;
        if let Some(values) = values_of(members) {
            return Some(values.into_iter().cloned().collect());
        }
        if let Some(Value::String(reference)) = members.get("$ref") {
            let target = self.document.find(reference, base)?;
            return self.values_within(target.value, target.base, depth + 1);
        }
        members.get("allOf")?.as_array()?.iter().find_map(|part| self.values_within(part, base, depth + 1))
    }

    /// The values of a schema that lists few, or of which the options do; without those that it is known to refuse.
    pub(in crate::schema) fn few_values(&self, schema: &Value, place: &Place<'a>) -> Option<Vec<Value>> {
        let mut found = Vec::new();
        self.collect_few(schema, place.base, 0, &mut found)?;
        let mut values: Vec<Value> = Vec::new();
        for value in found {
            if !values.iter().any(|other| same(other, &value))
                && self.accepts(schema, &value, place.base, 0) != Some(false)
            {
                values.push(value);
            }
        }
        Some(values)
    }

    fn collect_few(
        &self,
        schema: &Value,
        base: &'a Value,
        depth: usize,
        found: &mut Vec<Value>,
    ) -> Option<()> {
        let schema = self.meant(schema);
        let members = schema.as_object().filter(|_| depth < DEPTH && self.step())?;
        let kind = members.get("type").and_then(Value::as_str);
        let listed = match (values_of(members), kind) {
            (Some(values), _) => values.into_iter().take(MOST_FEW).cloned().collect(),
            (None, Some("boolean")) => vec![true.into(), false.into()],
            (None, Some("null")) => vec![Value::Null],
            _ => Vec::new(),
        };
        if !listed.is_empty() {
            found.extend(listed);
            return (found.len() < MOST_FEW).then_some(());
        }
        if let Some(Value::String(reference)) = members.get("$ref") {
            let target = self.document.find(reference, base)?;
            return self.collect_few(target.value, target.base, depth + 1, found);
        }
        if let Some(Value::Array(options)) = members.get("anyOf").or(members.get("oneOf")) {
            return options.iter().try_for_each(|option| self.collect_few(option, base, depth + 1, found));
        }
        let parts = members.get("allOf")?.as_array()?;
        let before = found.len();
        parts.iter().find_map(|part| {
            found.truncate(before);
            self.collect_few(part, base, depth + 1, found)
        })
    }

    /// Whether a schema accepts a value, by JSON schema's rules; None where it says something that is not known here.
    pub(super) fn accepts(
        &self,
        schema: &Value,
        value: &Value,
        base: &'a Value,
        depth: usize,
    ) -> Option<bool> {
        let schema = self.meant(schema);
        let members = match schema.as_ref() {
            Value::Bool(accepts) => return Some(*accepts),
            Value::Object(members) if depth < DEPTH && self.step() && self.works(breadth(members)) => members,
            _ => return None,
        };
        let within = |schema: &Value, value: &Value| self.accepts(schema, value, base, depth + 1);
        for (key, assertion) in members {
            let all = |values: &mut dyn Iterator<Item = Option<bool>>| -> Option<bool> {
                let answers: Option<Vec<bool>> = values.collect();
                Some(answers?.into_iter().all(|accepted| accepted))
            };
            let holds = match (key.as_str(), value) {
                ("const", _) => same(value, assertion),
                ("enum", _) => {
                    assertion.as_array().is_none_or(|values| values.iter().any(|other| same(value, other)))
                }
                ("minLength", Value::String(text)) => text.chars().count() as u64 >= assertion.as_u64()?,
                ("maxLength", Value::String(text)) => text.chars().count() as u64 <= assertion.as_u64()?,
                ("type", _) => {
                    let names = type_names(assertion)?;
                    names.contains(&kind_of(value))
                        || names.contains(&"integer")
                            && value.as_f64().is_some_and(|float| float.fract() == 0.0)
                }
                ("required", Value::Object(own)) => assertion.as_array().is_none_or(|names| {
                    names.iter().filter_map(Value::as_str).all(|name| own.contains_key(name))
                }),
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
                    let distinct = |index: usize| {
                        self.works(index)
                            .then(|| !items[..index].iter().any(|other| same(other, &items[index])))
                    };
                    assertion != &Value::Bool(true) || all(&mut (0..items.len()).map(distinct))?
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
}

/// The values, where a schema lists them.
pub(super) fn values_of(members: &Map<String, Value>) -> Option<Vec<&Value>> {
    match (members.get("const"), members.get("enum")) {
        (Some(value), _) => Some(vec![value]),
        (None, Some(Value::Array(values))) => Some(values.iter().collect()),
        _ => None,
    }
}

/// The values of a schema that does nothing but list them.
pub(super) fn only_values(schema: &Value) -> Option<Vec<Value>> {
    let members = schema.as_object()?;
    let alone =
        members.keys().all(|key| matches!(key.as_str(), "const" | "enum") || SILENT.contains(&key.as_str()));
    let values = values_of(members)
        .filter(|_| alone && !(members.contains_key("const") && members.contains_key("enum")))?;
    Some(values.into_iter().cloned().collect())
}

/// Equal as JSON schema has it: 1 and 1.0 are.
pub(super) fn same(one: &Value, other: &Value) -> bool {
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

/// The kinds of values that a schema's own keywords leave.
pub(super) fn kinds_of(members: &Map<String, Value>) -> BTreeSet<&'static str> {
    let mut kinds: BTreeSet<&str> = KINDS.into_iter().collect();
    if let Some(names) = members.get("type").and_then(type_names) {
        kinds.retain(|kind| names.contains(kind) || *kind == "number" && names.contains(&"integer"));
    }
    if let Some(values) = values_of(members) {
        kinds.retain(|kind| values.iter().any(|value| kind_of(value) == *kind));
    }
    kinds
}

/// The bounds of a schema's numbers, both taken to be inclusive.
pub(super) fn range_of(members: &Map<String, Value>) -> (f64, f64) {
    let number = |key: &str| members.get(key).and_then(Value::as_f64);
    let low = [number("minimum"), number("exclusiveMinimum")]
        .into_iter()
        .flatten()
        .fold(f64::NEG_INFINITY, f64::max);
    let high =
        [number("maximum"), number("exclusiveMaximum")].into_iter().flatten().fold(f64::INFINITY, f64::min);
    (low, high)
}
