//! The keywords of objects.

use std::collections::HashSet;

use llguidance::derivre::{Regex, RegexAst, RegexBuilder};
use serde_json::{Map, Value, json};

use super::logic::{WORK, size};
use super::{Parts, Place, Result, Translator, any_of, bounds, invalid, types};
use crate::{
    ecma::from_ecma,
    error::Kind,
    other_texts,
    pattern::{self, Strings},
    weight,
};

/// Which optional properties are there is written out for at most so many combinations.
const MOST_COMBINATIONS: usize = 64;
/// As many optional properties may have at least one of them demanded.
const MOST_ALTERNATIVES: usize = 100;
/// Parser items that an optional property takes wherever one may follow, and those beside all of them.
const ITEMS_OF_OPTIONAL: usize = 4;
const ITEMS_BESIDE: usize = 200;
/// Steps for a name to be matched by a pattern.
const MATCH_FUEL: u64 = 10_000;
/// Steps for an expression to be told to imply another one.
const IMPLIES_FUEL: u64 = 100_000;
/// What no name matches.
const NO_NAME: &str = r"^[^\x00-\u{10FFFF}]$";
/// Keywords that say something of a string, beside `$ref`.
const ASSERTING_OF_NAMES: [&str; 14] = [
    "type",
    "enum",
    "const",
    "pattern",
    "format",
    "minLength",
    "maxLength",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "$dynamicRef",
    "$recursiveRef",
];
/// Bytes of a name that are matched between two looks at what is left, and the work that they are: each may be a new state.
const MATCHED_AT_ONCE: usize = 16;
const WORK_OF_MATCH: usize = 4_096;
/// So much of a pattern weighs one where a name stands beside it.
const PATTERN_OF_WEIGHT: usize = 16;
/// The work of an expression beside its length.
const WORK_OF_PATTERN: usize = 64;

/// The keywords as they were read, before they are written.
struct Object {
    properties: Map<String, Value>,
    patterns: Map<String, Value>,
    /// Names that no property may have.
    excluded: Vec<String>,
    additional: Option<Value>,
    required: Vec<String>,
}

impl<'a> Translator<'a> {
    pub(super) fn object(
        &mut self,
        members: &Map<String, Value>,
        place: &Place<'a>,
        parts: &mut Parts,
    ) -> Result<()> {
        let mut object = Object {
            properties: self.properties(members, place)?,
            patterns: Map::new(),
            excluded: Vec::new(),
            additional: self.additional(members, place, parts)?,
            required: names(members.get("required"), &place.member("required"))?,
        };
        self.patterns(members, place, &mut object)?;
        if let Some(named) = members.get("propertyNames") {
            self.property_names(named, &mut object, &place.member("propertyNames"))?;
        }

        // llguidance reads the patterns again for each name.
        let read: usize = object.patterns.keys().map(String::len).sum();
        self.add_weight(read.saturating_mul(object.properties.len()) / PATTERN_OF_WEIGHT, place)?;
        for name in std::mem::take(&mut object.excluded) {
            object.properties.insert(name, Value::Bool(false));
        }
        let (fewest, most) = bounds(members, ["minProperties", "maxProperties"], place)?;
        let counts = self.counts(&object, fewest as usize, most.map(|most| most as usize), place)?;

        self.check_optional(&object, place)?;
        if members.contains_key("properties") || !object.properties.is_empty() {
            parts.own.insert("properties".into(), Value::Object(object.properties));
        }
        if !object.patterns.is_empty() {
            parts.own.insert("patternProperties".into(), Value::Object(object.patterns));
        }
        if let Some(additional) = object.additional {
            parts.own.insert("additionalProperties".into(), additional);
        }
        if !object.required.is_empty() {
            parts.own.insert("required".into(), object.required.into());
        }
        match counts {
            Counts::Kept { least, most } => {
                if least > 0 {
                    parts.own.insert("minProperties".into(), least.into());
                }
                if let Some(most) = most {
                    parts.own.insert("maxProperties".into(), most.into());
                }
            }
            Counts::Written(options) => {
                self.nodes += options.len();
                let mut options = options;
                options.push(json!({"type": ["null", "boolean", "number", "string", "array"]}));
                parts.after.push(any_of(options));
            }
        }
        Ok(())
    }

    /// Up to the next property that has to be there, each of the optional ones may follow: more than the parser can hold would end
    /// every text with an error.
    fn check_optional(&self, object: &Object, place: &Place<'a>) -> Result<()> {
        let most = self.limits.row_items.saturating_sub(ITEMS_BESIDE) / ITEMS_OF_OPTIONAL;
        if object.properties.len() <= most {
            return Ok(());
        }
        let required: HashSet<&String> = object.required.iter().collect();
        let mut run = 0;
        for (name, schema) in &object.properties {
            if required.contains(name) {
                run = 0;
            } else if *schema != Value::Bool(false) {
                run += 1;
            }
            if run > most {
                let why = format!("more than {most} optional properties without a required one between them");
                return Err(place.member("properties").refuse(Kind::TooLarge, why));
            }
        }
        Ok(())
    }

    fn properties(&mut self, members: &Map<String, Value>, place: &Place<'a>) -> Result<Map<String, Value>> {
        let place = place.member("properties");
        let Some(properties) = members.get("properties") else { return Ok(Map::new()) };
        let properties = properties.as_object().ok_or_else(|| invalid(&place, "an object of schemas"))?;
        if properties.len() > self.limits.properties {
            return Err(
                place.refuse(Kind::TooLarge, format!("more than {} properties", self.limits.properties))
            );
        }
        properties
            .iter()
            .map(|(name, schema)| Ok((name.clone(), self.schema(schema, &place.member(name))?)))
            .collect()
    }

    fn patterns(
        &mut self,
        members: &Map<String, Value>,
        place: &Place<'a>,
        object: &mut Object,
    ) -> Result<()> {
        let place = place.member("patternProperties");
        let Some(patterns) = members.get("patternProperties") else { return Ok(()) };
        let patterns = patterns.as_object().ok_or_else(|| invalid(&place, "an object of schemas"))?;
        let mut cores = Map::new();
        for (expression, schema) in patterns {
            let here = place.member(expression);
            let core = self.schema(schema, &here)?;
            let expression = match other_texts::without_texts(expression) {
                // Then nothing else lets these names through.
                Some((texts, rest))
                    if patterns.len() == 1
                        && members.get("additionalProperties") == Some(&Value::Bool(false))
                        && !texts.iter().any(|text| object.properties.contains_key(*text)) =>
                {
                    object.excluded.extend(texts.into_iter().map(str::to_owned));
                    self.single(&rest, &here)?
                }
                _ => self.single(expression, &here)?,
            };
            let core = match cores.remove(&expression) {
                Some(other) => super::all_of(vec![other, core]),
                None => core,
            };
            cores.insert(expression, core);
        }
        // Patterns that say nothing need not be told apart from others; but they let names past `additionalProperties`.
        let open = |key: &str| members.get(key).is_none_or(|schema| schema == &Value::Bool(true));
        if open("additionalProperties") && open("unevaluatedProperties") {
            cores.retain(|_, core| *core != Value::Bool(true) && *core != json!({}));
        }
        object.patterns = cores;
        Ok(())
    }

    /// `additionalProperties`, or `unevaluatedProperties` where that means the same.
    fn additional(
        &mut self,
        members: &Map<String, Value>,
        place: &Place<'a>,
        parts: &mut Parts,
    ) -> Result<Option<Value>> {
        if let Some(additional) = members.get("additionalProperties") {
            return Ok(Some(self.schema(additional, &place.member("additionalProperties"))?));
        }
        let Some(unevaluated) =
            members.get("unevaluatedProperties").filter(|schema| **schema != Value::Bool(true))
        else {
            return Ok(None);
        };
        let here = place.member("unevaluatedProperties");
        let mut names = Map::new();
        if !self.evaluated(members, &mut names, place, 0) {
            return Err(here.refuse(
                Kind::Unsupported,
                "`unevaluatedProperties` is only supported where the other properties are all named",
            ));
        }
        let core = self.schema(unevaluated, &here)?;
        let own = members.get("properties").and_then(Value::as_object);
        // Beside, so that the order of the properties stays that of the schemas which define them.
        let is_other = |(name, _): &(String, Value)| own.is_none_or(|own| !own.contains_key(name));
        let mut all: Map<String, Value> = names.into_iter().filter(is_other).collect();
        if all.is_empty() {
            return Ok(Some(core));
        }
        all.extend(own.into_iter().flatten().map(|(name, _)| (name.clone(), Value::Bool(true))));
        self.takes(all.keys().map(String::len).sum(), &here)?;
        let mut closed = json!({"properties": all, "additionalProperties": core});
        if let Some(patterns) = members.get("patternProperties").and_then(Value::as_object) {
            let open: Result<Map<String, Value>> = patterns
                .keys()
                .map(|expression| Ok((self.single(expression, &here)?, Value::Bool(true))))
                .collect();
            closed["patternProperties"] = Value::Object(open?);
        }
        parts.after.push(closed);
        Ok(None)
    }

    /// Collects the names that `properties` here and in schemas that always apply evaluate; false where others may.
    fn evaluated(
        &self,
        members: &Map<String, Value>,
        names: &mut Map<String, Value>,
        place: &Place<'a>,
        depth: usize,
    ) -> bool {
        if depth > 16
            || !self.step()
            || [
                "anyOf",
                "oneOf",
                "if",
                "dependentSchemas",
                "dependencies",
                "$dynamicRef",
                "$recursiveRef",
                "not",
            ]
            .iter()
            .any(|key| members.contains_key(*key))
            || depth > 0
                && ["patternProperties", "additionalProperties", "unevaluatedProperties"]
                    .iter()
                    .any(|key| members.contains_key(*key))
        {
            return false;
        }
        if let Some(properties) = members.get("properties").and_then(Value::as_object) {
            if !self.works(properties.len()) {
                return false;
            }
            for name in properties.keys() {
                if !names.contains_key(name) {
                    names.insert(name.clone(), Value::Bool(true));
                }
            }
        }
        let mut within = |schema: &Value, place: &Place<'a>| {
            let schema = self.meant(schema);
            schema.as_object().is_none_or(|members| self.evaluated(members, names, place, depth + 1))
        };
        let parts = members.get("allOf").and_then(Value::as_array);
        if !parts.into_iter().flatten().all(|part| within(part, place)) {
            return false;
        }
        match members.get("$ref").and_then(Value::as_str) {
            None => true,
            Some(reference) => self.document.resolve(reference, place).is_ok_and(|target| {
                let place = Place { path: target.pointer, base: target.base, depth: 0 };
                within(target.value, &place)
            }),
        }
    }

    /// `propertyNames` as a pattern for the names that are not in `properties`.
    fn property_names(&mut self, named: &Value, object: &mut Object, place: &Place<'a>) -> Result<()> {
        let refused = |why: &str| place.refuse(Kind::Unsupported, format!("`propertyNames`: {why}"));
        let mut named = self.meant(named).into_owned();
        let mut base = place.clone();
        for _ in 0..16 {
            let Some(reference) = named.get("$ref").and_then(Value::as_str) else { break };
            let beside = |key: &String| ASSERTING_OF_NAMES.contains(&key.as_str());
            if named.as_object().is_some_and(|members| members.keys().any(beside)) {
                return Err(refused("`$ref` beside other keywords is not supported here"));
            }
            let target = self.document.resolve(reference, &base)?;
            base.base = target.base;
            named = self.meant(target.value).into_owned();
        }
        let mut expressions = Vec::new();
        match &named {
            Value::Bool(true) => return Ok(()),
            Value::Bool(false) => expressions.push(NO_NAME.to_owned()),
            Value::Object(members) => {
                let (fewest, most) = bounds(members, ["minLength", "maxLength"], place)?;
                if fewest > 0 || most.is_some() {
                    let most = most.map_or(String::new(), |most| most.to_string());
                    expressions.push(format!(r"^[\x00-\u{{10FFFF}}]{{{fewest},{most}}}$"));
                }
                for (key, value) in members {
                    match (key.as_str(), value) {
                        ("pattern", Value::String(text)) => expressions.push(self.single(text, place)?),
                        ("format", Value::String(name)) => {
                            expressions
                                .extend(super::format::expression(name).map(|text| format!("^(?:{text})$")));
                        }
                        ("enum", Value::Array(options)) => {
                            let texts = options.iter().filter_map(Value::as_str).map(pattern::text_of_json);
                            expressions.push(format!("^(?:{})$", texts.collect::<Vec<_>>().join("|")));
                        }
                        ("const", Value::String(text)) => {
                            expressions.push(format!("^{}$", pattern::text_of_json(text)))
                        }
                        ("type", kinds) => {
                            let kinds = types(kinds, &place.member("type"))?;
                            let is_string = |kind: &Value| kind == "string";
                            if !is_string(&kinds)
                                && !kinds.as_array().is_some_and(|all| all.iter().any(is_string))
                            {
                                expressions.push(NO_NAME.to_owned());
                            }
                        }
                        ("not", not) => {
                            self.takes(size(not), place)?;
                            let texts = listed_texts(not).ok_or_else(|| {
                                refused("`not` is only supported of `enum` and `const` here")
                            })?;
                            object.excluded.extend(texts.into_iter().map(str::to_owned));
                        }
                        ("minLength" | "maxLength", _) => {}
                        (other, _) if other == "$ref" || ASSERTING_OF_NAMES.contains(&other) => {
                            return Err(refused(&format!("`{other}` is not supported here")));
                        }
                        // What else there is asserts nothing of a string.
                        _ => {}
                    }
                }
            }
            _ => return Err(invalid(place, "a schema")),
        }
        self.drop_implied(&mut expressions)?;
        let [expression] = &expressions[..] else {
            return if expressions.is_empty() {
                Ok(())
            } else {
                Err(refused("more than one condition is not supported"))
            };
        };
        if !object.patterns.is_empty() {
            return Err(refused("not supported beside `patternProperties`"));
        }
        self.takes(expression.len(), place)?;
        let too_complex = || refused("the pattern is too complex");
        let mut matcher = NamePattern::new(expression).ok_or_else(too_complex)?;
        for (name, core) in &mut object.properties {
            let matches = matcher.matches(name, || self.is_in_time(WORK_OF_MATCH));
            if !matches.ok_or_else(too_complex)? {
                *core = Value::Bool(false);
            }
        }
        let additional = object.additional.replace(Value::Bool(false)).unwrap_or(Value::Bool(true));
        object.patterns.insert(expression.clone(), additional);
        Ok(())
    }

    /// Leaves out expressions that another one of them implies: clients write a `pattern` beside the `format` that it is of.
    fn drop_implied(&self, expressions: &mut Vec<String>) -> Result<()> {
        let mut at = 0;
        while expressions.len() > 1 && at < expressions.len() {
            if !self.is_in_time(WORK) {
                self.stop.check(self.limits)?;
            }
            let implies = |other: usize| other != at && implies(&expressions[other], &expressions[at]);
            if (0..expressions.len()).any(implies) {
                expressions.remove(at);
            } else {
                at += 1;
            }
        }
        Ok(())
    }

    /// How `minProperties` and `maxProperties` are met. llguidance takes them where every named property is required;
    /// else the combinations of the optional ones are written out.
    fn counts(
        &mut self,
        object: &Object,
        least: usize,
        most: Option<usize>,
        place: &Place<'a>,
    ) -> Result<Counts> {
        let required: HashSet<&str> = object.required.iter().map(String::as_str).collect();
        let optional: Vec<&str> = object
            .properties
            .iter()
            .filter(|(name, core)| !required.contains(name.as_str()) && **core != Value::Bool(false))
            .map(|(name, _)| name.as_str())
            .collect();
        let open = object.additional != Some(Value::Bool(false)) || !object.patterns.is_empty();
        let least = if least <= required.len() { 0 } else { least };
        let most = most.filter(|most| open || *most < required.len() + optional.len());
        if least == 0 && most.is_none() {
            return Ok(Counts::Kept { least, most });
        }
        // A name that no schema lists may be given twice and would be counted twice.
        let beyond = |named: usize| least.saturating_sub(named);
        if optional.is_empty() {
            return if open && beyond(required.len()) > 1 {
                Err(place
                    .member("minProperties")
                    .refuse(Kind::Unsupported, "more than one property that is not named cannot be counted"))
            } else {
                Ok(Counts::Kept { least, most })
            };
        }
        if most.is_none() && least == required.len() + 1 && optional.len() <= MOST_ALTERNATIVES {
            let absent = |names: &[&str]| -> Map<String, Value> {
                names.iter().map(|name| (name.to_string(), Value::Bool(false))).collect()
            };
            let mut options = Vec::new();
            for first in 0..optional.len() {
                self.takes(bytes_of(&optional[..=first]), place)?;
                let absent = absent(&optional[..first]);
                options.push(json!({"type": "object", "properties": absent, "required": [optional[first]]}));
            }
            if open {
                self.takes(bytes_of(&optional), place)?;
                let absent = absent(&optional);
                options.push(json!({"type": "object", "properties": absent, "minProperties": least}));
            }
            return Ok(Counts::Written(options));
        }
        let too_many = || {
            place.refuse(
                Kind::Unsupported,
                "`minProperties` and `maxProperties` beside so many optional properties are not supported",
            )
        };
        if optional.len() > 6 {
            return Err(too_many());
        }
        let mut options = Vec::new();
        for present in 0..1_usize << optional.len() {
            let named = required.len() + present.count_ones() as usize;
            if most.is_some_and(|most| named > most) || beyond(named) > usize::from(open) {
                continue;
            }
            self.takes(bytes_of(&optional), place)?;
            let is_present = |index: &usize| present >> index & 1 == 1;
            let there: Vec<&str> =
                (0..optional.len()).filter(is_present).map(|index| optional[index]).collect();
            let absent: Map<String, Value> = (0..optional.len())
                .filter(|index| !is_present(index))
                .map(|index| (optional[index].to_owned(), Value::Bool(false)))
                .collect();
            let mut option = json!({"type": "object", "properties": absent, "required": there});
            if beyond(named) > 0 {
                option["minProperties"] = least.into();
            }
            if let Some(most) = most {
                option["maxProperties"] = most.into();
            }
            options.push(option);
        }
        if options.len() > MOST_COMBINATIONS { Err(too_many()) } else { Ok(Counts::Written(options)) }
    }

    /// An expression for names; of several conditions only one can be a key of `patternProperties`.
    fn single(&mut self, expression: &str, place: &Place<'a>) -> Result<String> {
        let mut conjuncts = self.expressions(expression, place)?;
        match (conjuncts.pop(), conjuncts.is_empty()) {
            (Some(one), true) => Ok(one),
            _ => Err(place.refuse(Kind::Unsupported, "a look-ahead is not supported here")),
        }
    }

    /// Whether none of these `patternProperties` can apply to a name. What is not printable ASCII is left undecided: there the
    /// expressions match less than those of the source.
    pub(super) fn no_pattern_matches(&self, patterns: &Value, name: &str) -> bool {
        if !name.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            return false;
        }
        let misses = |pattern: &String| {
            if !self.works(WORK_OF_PATTERN + pattern.len() + weight::of_opposites(pattern)) {
                return false;
            }
            let conjuncts = from_ecma(pattern, Strings::OfJson).unwrap_or_default();
            conjuncts.iter().any(|conjunct| {
                let Some(mut conjunct) = NamePattern::new(conjunct) else { return false };
                conjunct.matches(name, || self.works(WORK_OF_MATCH)) == Some(false)
            })
        };
        patterns.as_object().is_some_and(|patterns| patterns.keys().all(misses))
    }

    /// A property that brings conditions with it: it is absent, or they hold.
    pub(super) fn dependencies(
        &mut self,
        value: &Value,
        members: &Map<String, Value>,
        place: &Place<'a>,
        parts: &mut Parts,
    ) -> Result<()> {
        let dependencies = value.as_object().ok_or_else(|| invalid(place, "an object"))?;
        let required = members.get("required").and_then(Value::as_array);
        let required: HashSet<&str> = required.into_iter().flatten().filter_map(Value::as_str).collect();
        let is_required = |name: &str| required.contains(name);
        for (name, dependency) in dependencies {
            let here = place.member(name);
            let then = match dependency {
                Value::Array(_) => {
                    let mut names = names(Some(dependency), &here)?;
                    names.retain(|other| other != name && !is_required(other));
                    if names.is_empty() {
                        continue;
                    }
                    json!({"required": names})
                }
                schema => self.schema(schema, &here)?,
            };
            let mut absent = Map::new();
            absent.insert(name.clone(), Value::Bool(false));
            let mut options = Vec::new();
            if !is_required(name) {
                options.push(json!({"type": "object", "properties": absent}));
            }
            options.push(super::all_of(vec![json!({"type": "object", "required": [name]}), then]));
            options.push(json!({"type": ["null", "boolean", "number", "string", "array"]}));
            self.nodes += 3;
            parts.after.push(any_of(options));
        }
        Ok(())
    }
}

enum Counts {
    Kept { least: usize, most: Option<usize> },
    Written(Vec<Value>),
}

/// The bytes of names as an object has them, about.
fn bytes_of(names: &[&str]) -> usize {
    names.iter().map(|name| name.len() + size_of::<Value>()).sum()
}

/// A list of names, as `required` has it.
fn names(value: Option<&Value>, place: &Place<'_>) -> Result<Vec<String>> {
    let Some(value) = value else { return Ok(Vec::new()) };
    // Draft 3 said it at the property; "not required" says nothing.
    if value == &Value::Bool(false) {
        return Ok(Vec::new());
    }
    let items = value.as_array().ok_or_else(|| invalid(place, "an array of names"))?;
    let mut names: Vec<String> = Vec::new();
    let mut seen = HashSet::new();
    for item in items {
        let name = item.as_str().ok_or_else(|| invalid(place, "an array of names"))?;
        if seen.insert(name) {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// The strings of a schema that is a list of values and nothing else.
fn listed_texts(schema: &Value) -> Option<Vec<&str>> {
    let members = schema.as_object().filter(|members| members.len() == 1)?;
    let values = match (members.get("enum"), members.get("const")) {
        (Some(Value::Array(values)), None) => values.as_slice(),
        (None, Some(value)) => std::slice::from_ref(value),
        _ => return None,
    };
    Some(values.iter().filter_map(Value::as_str).collect())
}

/// Whether every name that the one expression matches is matched by the other; false where that takes too long to find.
fn implies(one: &str, other: &str) -> bool {
    let mut builder = RegexBuilder::new();
    let (Ok(one), Ok(other)) = (builder.mk_regex_for_serach(one), builder.mk_regex_for_serach(other)) else {
        return false;
    };
    let not_other = RegexAst::Not(Box::new(RegexAst::ExprRef(other)));
    let apart = builder.mk(&RegexAst::And(vec![RegexAst::ExprRef(one), not_other]));
    apart
        .and_then(|apart| builder.into_regex_limited(apart, IMPLIES_FUEL))
        .is_ok_and(|mut apart| apart.always_empty())
}

/// A core's expression that names are matched by.
struct NamePattern(Regex);

impl NamePattern {
    /// None for one that takes too long.
    fn new(expression: &str) -> Option<NamePattern> {
        let mut builder = RegexBuilder::new();
        let expression = builder.mk_regex_for_serach(expression).ok()?;
        builder.into_regex_limited(expression, MATCH_FUEL).ok().map(NamePattern)
    }

    /// None where `goes_on`, which is asked now and then, says no.
    fn matches(&mut self, name: &str, mut goes_on: impl FnMut() -> bool) -> Option<bool> {
        let mut state = self.0.initial_state();
        for bytes in name.as_bytes().chunks(MATCHED_AT_ONCE) {
            if !goes_on() {
                return None;
            }
            state = self.0.transition_bytes(state, bytes);
            if state.is_dead() {
                return Some(false);
            }
        }
        Some(self.0.lookahead_len_for_state(state).is_some())
    }
}
