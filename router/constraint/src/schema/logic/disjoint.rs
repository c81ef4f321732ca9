//! Whether two schemas are apart: true only if no value matches both.

use std::collections::{BTreeSet, HashSet};

use serde_json::{Map, Value, json};

use super::values::{kinds_of, range_of, same, values_of};
use super::{DEPTH, KINDS, Place, SILENT, Translator, breadth, type_names};

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

impl<'a> Translator<'a> {
    /// True only if no value matches both schemas.
    pub(in crate::schema) fn disjoint(&self, one: &Value, other: &Value, place: &Place<'a>) -> bool {
        self.disjoint_in(one, other, &KINDS, &[], place)
    }

    /// True only if no value of these kinds, with these properties if it is an object, matches both schemas.
    pub(in crate::schema) fn disjoint_in(
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
        let (mine, theirs) = (self.meant(one.0), self.meant(other.0));
        let (one, other) = ((mine.as_ref(), one.1), (theirs.as_ref(), other.1));
        let empty = Map::new();
        let (first, second) = (one.0.as_object().unwrap_or(&empty), other.0.as_object().unwrap_or(&empty));
        if !self.works(breadth(first) + breadth(second)) {
            return false;
        }
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
            if shared.kinds.iter().all(|kind| *kind == "number")
                && members.get("not").is_some_and(|not| *not == json!({"type": "integer"}))
                && that.0.get("type").and_then(type_names).is_some_and(|names| !names.contains(&"number"))
            {
                return true;
            }
            if let (Some(Value::Object(not)), Some(theirs)) = (members.get("not"), that.0.as_object())
                && self.works(breadth(not))
                && demands_all(theirs, not)
            {
                return true;
            }
        }

        if let (Some(values), Some(others)) = (values_of(first), values_of(second)) {
            let may_be_there =
                |value: &&Value| !self.works(others.len()) || others.iter().any(|other| same(value, other));
            return !values.iter().any(may_be_there);
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
            let mine = (self.property_of(first, name), one.1);
            let theirs = (self.property_of(second, name), other.1);
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

    /// What a schema says of a property, as far as its own keywords do.
    fn property_of<'v>(&self, members: &'v Map<String, Value>, name: &str) -> &'v Value {
        let property = members.get("properties").and_then(|properties| properties.get(name));
        match (property, members.get("patternProperties"), members.get("additionalProperties")) {
            (Some(property), _, _) => property,
            (None, None, Some(additional)) => additional,
            (None, Some(patterns), Some(additional)) if self.no_pattern_matches(patterns, name) => additional,
            _ => &ANYTHING,
        }
    }
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

/// Whether `not`, which only demands properties, is met by whatever meets `members`.
fn demands_all(members: &Map<String, Value>, not: &Map<String, Value>) -> bool {
    let is_object = members.get("type").is_some_and(|kind| kind == "object");
    let only_demands = not.iter().all(|(key, value)| {
        // Anything but an object meets `required`, so the type matters only where `not` names it.
        key == "required" || key == "type" && value == "object" && is_object || SILENT.contains(&key.as_str())
    });
    match (required_by(not), required_by(members)) {
        (Some(refused), Some(required)) => only_demands && refused.is_subset(&required),
        _ => false,
    }
}

fn required_by(members: &Map<String, Value>) -> Option<HashSet<&str>> {
    members.get("required")?.as_array()?.iter().map(Value::as_str).collect()
}
