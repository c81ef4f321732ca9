//! The opposite of a schema, in the source's keywords: exact, or none.

use serde_json::{Map, Value, json};

use super::values::only_values;
use super::{DEPTH, KINDS, Place, Translator, accepts_all, breadth, kind_of, size, type_names};
use crate::other_texts;
use crate::schema::{EXACT_INTEGERS, all_of, format};

/// As many opposites are written to hold together.
const MOST_PARTS: usize = 100;
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

/// The opposite of a schema: every value of `options` is refused by it, and whatever else it refuses is in `unwritten`.
#[derive(Clone, Debug, Default)]
struct Opposite {
    options: Vec<Value>,
    unwritten: Vec<Value>,
}

impl Opposite {
    fn of_bool(accepts: bool) -> Opposite {
        let options = if accepts { Vec::new() } else { vec![Value::Bool(true)] };
        Opposite { options, unwritten: Vec::new() }
    }

    fn schema(self) -> Value {
        crate::schema::any_of(self.options)
    }
}

impl<'a> Translator<'a> {
    /// A schema for the values of `context` that `schema` refuses, in the source's keywords; None where there are such
    /// values that it cannot be written for.
    pub(in crate::schema) fn negation(
        &self,
        schema: &Value,
        context: &Value,
        place: &Place<'a>,
    ) -> Option<Value> {
        self.negation_in(schema, context, &KINDS, &[], place)
    }

    /// The same, for values of some kinds, with some properties.
    pub(in crate::schema) fn negation_in(
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
        let schema = self.meant(schema);
        let members = match schema.as_ref() {
            Value::Bool(accepts) => return Opposite::of_bool(*accepts),
            Value::Object(members) if depth <= DEPTH && self.step() && self.works(breadth(members)) => {
                members
            }
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
            "const" => options.push(self.other_than(std::slice::from_ref(value))?),
            "enum" => options.push(self.other_than(value.as_array()?)?),
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
                let opposite = other_texts::opposite(value.as_str()?)?;
                options.push(one_of_type("string", "pattern", opposite.into()));
            }
            "required" => {
                for name in value.as_array()? {
                    let absent: Map<String, Value> =
                        [(name.as_str()?.to_owned(), Value::Bool(false))].into_iter().collect();
                    options.push(self.written(one_of_type("object", "properties", Value::Object(absent)))?);
                }
            }
            "properties" => {
                for (name, property) in value.as_object()? {
                    let mut inner = within(property);
                    let with = |schema: Value| json!({"type": "object", "properties": {name: schema}, "required": [name]});
                    found.unwritten.extend(inner.unwritten.drain(..).map(with));
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
                    options.push(self.other_than(&lists.concat())?);
                } else if parts.len() > MOST_PARTS {
                    return None;
                } else {
                    // None of them may hold.
                    let mut all = Vec::new();
                    for part in parts {
                        let mut inner = within(part);
                        found.unwritten.append(&mut inner.unwritten);
                        all.push(inner.schema());
                    }
                    found.options.push(all_of(all));
                }
            }
            "not" => options.push(self.written(value.clone())?),
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

    /// A schema for every value but these.
    fn other_than(&self, values: &[Value]) -> Option<Value> {
        if !self.works(values.len()) {
            return None;
        }
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
                    numbers.push(number.as_f64().filter(|float| float.abs() < EXACT_INTEGERS)?)
                }
                Value::String(text) if text.chars().count() <= other_texts::LONGEST_TEXT => {
                    texts.push(text.as_str())
                }
                _ => return None,
            }
            kinds.retain(|kind| *kind != kind_of(value));
        }
        if !kinds.is_empty() {
            options.push(json!({"type": kinds}));
        }
        if !texts.is_empty() {
            options.push(one_of_type("string", "pattern", other_texts::other_than(&texts).into()));
        }
        if let [only] = booleans[..] {
            options.push(json!({"const": !only}));
        }
        if !numbers.is_empty() {
            numbers.sort_by(f64::total_cmp);
            numbers.dedup();
            options.push(one_of_type("number", "exclusiveMaximum", numbers[0].into()));
            for pair in numbers.windows(2) {
                options.push(
                    json!({"type": "number", "exclusiveMinimum": pair[0], "exclusiveMaximum": pair[1]}),
                );
            }
            options.push(one_of_type("number", "exclusiveMinimum", numbers[numbers.len() - 1].into()));
        }
        self.written(json!({"anyOf": options}))
    }

    /// What is made for an opposite, within the steps that are left for it.
    fn written(&self, schema: Value) -> Option<Value> {
        self.writes(size(&schema)).then_some(schema)
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

fn other_types(value: &Value) -> Option<Value> {
    let names = type_names(value)?;
    // Numbers that are no integers cannot be written; as the opposite of "integer" they are left out.
    let kept: Vec<&str> = KINDS
        .into_iter()
        .filter(|kind| !(names.contains(kind) || *kind == "number" && names.contains(&"integer")))
        .collect();
    Some(if kept.is_empty() { Value::Bool(false) } else { json!({"type": kept}) })
}
