//! Rewrites a client's JSON schema, of any draft, into a core that llguidance turns into a grammar soundly.
//!
//! The core has `type`, `enum`, `const`, bounds, `pattern`, arrays, objects, `allOf`, `anyOf` and `$ref` to `$defs`. Every
//! other keyword is rewritten into these with the same meaning, dropped where it asserts nothing, or refused with its
//! place. Where a rewrite cannot be exact it may only accept less. [`logic`] negates and tells schemas apart,
//! [`reference`] finds what a `$ref` means, [`object`] and [`array`] treat the keywords of those. Of the core [`recursion`] refuses
//! references without an end, and [`load`] more in one place than llguidance can intersect.

mod array;
mod bounds;
mod choices;
mod format;
mod load;
mod logic;
mod object;
mod recursion;
mod reference;

use std::{cell::Cell, collections::HashMap};

use llguidance::derivre::{RegexAst, RegexBuilder};
use serde_json::{Map, Value, json};

use crate::{
    ecma::from_ecma,
    error::{CompileError, Kind, LONGEST_PATH},
    limits::Limits,
    pattern::{self, Strings},
    stop::Stop,
    weight::{self, Cases},
};
pub(crate) use format::expression as format_expression;
use reference::{Document, Target};

const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];
/// Schemas rewritten from schemas may nest deeper than the source does, by this factor.
const DEPTH_OF_REWRITES: usize = 4;
/// The bytes that a core may take beside those of its source, for what it has in several places: 12 MiB are those of the longest text
/// that `contains` may have.
const MOST_COPIED: usize = 16 << 20;
/// Of a divisor: as many zeros fit in 32 bits.
const MOST_DECIMALS: u32 = 9;
/// In so many steps llguidance has to find out that a text may match all expressions of a string.
const MOST_STEPS: u64 = 10_000;
/// Up to here an f64 holds every integer.
const EXACT_INTEGERS: f64 = 9_007_199_254_740_992.0;

/// A schema's place: where it is for the client, and the resource that its references are relative to.
#[derive(Clone)]
struct Place<'a> {
    path: String,
    base: &'a Value,
    depth: usize,
}

impl Place<'_> {
    fn member(&self, key: &str) -> Self {
        let mut path = self.path.clone();
        extend(&mut path, key);
        Place { path, base: self.base, depth: self.depth + 1 }
    }

    fn item(&self, key: &str, index: usize) -> Self {
        Place { depth: self.depth + 1, ..self.member(key).member(&index.to_string()) }
    }

    fn refuse(&self, kind: Kind, reason: impl Into<String>) -> CompileError {
        CompileError::at(kind, self.path.clone(), reason)
    }
}

/// Adds a key to a JSON pointer, as far as errors show it: each schema has a pointer, and a key may be most of the source.
pub(crate) fn extend(pointer: &mut String, key: &str) {
    if pointer.len() > LONGEST_PATH {
        return;
    }
    pointer.push('/');
    for character in key.chars().take(LONGEST_PATH) {
        match character {
            '~' => pointer.push_str("~0"),
            '/' => pointer.push_str("~1"),
            other => pointer.push(other),
        }
    }
}

/// Where the schema is that a reference at a place of `root` means, if that is a place within it.
pub(crate) fn target(root: &Value, at: &str, reference: &str) -> Option<String> {
    let document = Document::read(root).ok()?;
    Some(document.find(reference, document.resource_of(at)?)?.pointer)
}

type Result<T> = std::result::Result<T, CompileError>;

/// The core of a schema. One that is given up for its time says so, whatever was left undecided by then.
pub(crate) fn to_core(root: &Value, limits: &Limits, stop: &Stop) -> Result<Value> {
    translate(root, limits, stop).map_err(|error| stop.check(limits).err().unwrap_or(error))
}

fn translate(root: &Value, limits: &Limits, stop: &Stop) -> Result<Value> {
    let mut translator = Translator {
        document: Document::read(root)?,
        limits,
        stop,
        nodes: 0,
        definitions: Vec::new(),
        names: HashMap::new(),
        draft: Draft::of(root),
        steps: Cell::new(logic::STEPS),
        work: Cell::new(logic::WORK),
        weight: 0,
        room: logic::size(root).saturating_add(MOST_COPIED),
    };
    let place = Place { path: String::new(), base: root, depth: 0 };
    let mut core = match translator.schema(root, &place)? {
        Value::Bool(true) => Value::Object(Map::new()),
        Value::Bool(false) => {
            return Err(CompileError::new(Kind::Unsatisfiable, "the schema accepts nothing"));
        }
        core => core,
    };
    let mut bodies = Vec::new();
    // Translating a definition may add more of them.
    while bodies.len() < translator.definitions.len() {
        let Definition { target, demanded } = translator.definitions[bodies.len()].clone();
        let place = Place { path: target.pointer, base: target.base, depth: 0 };
        let known = translator.definitions.len();
        let body = translator.schema(target.value, &place)?;
        bodies.push(demanded.iter().fold(body, |body, name| translator.demanding(body, name, known)));
    }
    let paths: Vec<&str> =
        translator.definitions.iter().map(|definition| definition.target.pointer.as_str()).collect();
    recursion::check(&mut core, &mut bodies, &paths)?;
    load::check(&core, &bodies)?;
    let Value::Object(mut core) = core else {
        return Err(CompileError::new(Kind::Internal, "the core is no object"));
    };
    if !bodies.is_empty() {
        let named = bodies.into_iter().enumerate().map(|(index, body)| (index.to_string(), body));
        core.insert("$defs".into(), Value::Object(named.collect()));
    }
    Ok(Value::Object(core))
}

struct Translator<'a> {
    document: Document<'a>,
    limits: &'a Limits,
    stop: &'a Stop,
    nodes: usize,
    /// What is referred to; the index is the name in the core's `$defs`.
    definitions: Vec<Definition<'a>>,
    /// The index of a definition by the address of its value, and by what is demanded beside it.
    names: HashMap<(*const Value, Vec<String>), usize>,
    /// What is left for telling schemas apart.
    steps: Cell<usize>,
    /// What may still be done before the clock is asked.
    work: Cell<usize>,
    /// Of all expressions together.
    weight: usize,
    /// Bytes of names and values that may still be written.
    room: usize,
    draft: Draft,
}

/// A schema that is referred to, for objects that have some properties besides: beside a reference to it llguidance would have to merge
/// them into it, which recursion does not allow.
#[derive(Clone)]
struct Definition<'a> {
    target: Target<'a>,
    demanded: Vec<String>,
}

impl Definition<'_> {
    fn key(&self) -> (*const Value, Vec<String>) {
        (self.target.value, self.demanded.clone())
    }
}

/// Drafts that give a keyword another meaning, in their order.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Draft {
    /// Up to 7: what stands beside a `$ref` is ignored, and `minContains` and `maxContains` are unknown.
    Seven,
    /// 2019-09: `prefixItems` is unknown.
    Of2019,
    Of2020,
}

impl Draft {
    fn of(root: &Value) -> Draft {
        let uri = root.get("$schema").and_then(Value::as_str).unwrap_or_default();
        if ["draft-03", "draft-04", "draft-06", "draft-07"].iter().any(|draft| uri.contains(draft)) {
            Draft::Seven
        } else if uri.contains("2019-09") {
            Draft::Of2019
        } else {
            Draft::Of2020
        }
    }
}

/// The core of one schema's parts: its own assertions, and the schemas beside them that must hold as well.
#[derive(Default)]
struct Parts {
    own: Map<String, Value>,
    before: Vec<Value>,
    after: Vec<Value>,
    /// The source has `properties`, here or further on.
    has_properties: bool,
}

impl Parts {
    /// Adds a schema that must hold too. Its properties come after those of `own` once these are in.
    fn beside(&mut self, core: Value) {
        if core == Value::Bool(true) {
            return;
        }
        if self.own.contains_key("properties") || !self.has_properties {
            self.after.push(core);
        } else {
            self.before.push(core);
        }
    }

    fn join(self) -> Value {
        let Parts { mut own, before, after, .. } = self;
        if before.is_empty() && after.is_empty() {
            return Value::Object(own);
        }
        if before.is_empty() {
            own.insert("allOf".into(), Value::Array(after));
            return Value::Object(own);
        }
        let mut all = before;
        if !own.is_empty() {
            all.push(Value::Object(own));
        }
        all.extend(after);
        if all.len() == 1 { all.remove(0) } else { json!({"allOf": all}) }
    }
}

impl<'a> Translator<'a> {
    /// The core of `schema`; called for the source's schemas and for those made of them.
    fn schema(&mut self, schema: &Value, place: &Place<'a>) -> Result<Value> {
        self.add_nodes(1, place)?;
        if self.nodes.is_multiple_of(64) {
            self.stop.check(self.limits)?;
        }
        if place.depth > self.limits.depth * DEPTH_OF_REWRITES {
            return Err(place.refuse(Kind::TooDeep, "the schema is nested too deeply"));
        }
        let members = match schema {
            Value::Bool(_) => return Ok(schema.clone()),
            Value::Object(members) => members,
            _ => return Err(place.refuse(Kind::Invalid, "a schema is an object or a boolean")),
        };
        self.takes(own_bytes(members), place)?;
        let place = &self.document.enter(schema, place);
        if self.draft == Draft::Seven
            && let Some(reference) = members.get("$ref")
        {
            return self.reference("$ref", reference, &place.member("$ref"));
        }
        if ["not", "oneOf", "if"].iter().any(|key| members.contains_key(*key))
            || members.get("allOf").is_some_and(|parts| parts.to_string().contains("\"not\""))
        {
            // With the values listed, what else is said of them need not become a grammar.
            if let Some(values) = self.listed(schema, place) {
                if values.is_empty() {
                    return Ok(Value::Bool(false));
                }
                self.takes(values.iter().map(logic::size).sum(), place)?;
                return Ok(json!({"enum": written(&values, place)?}));
            }
        }
        let mut parts = Parts { has_properties: members.contains_key("properties"), ..Parts::default() };
        let mut arrays_done = false;
        let mut objects_done = false;
        for (key, value) in members {
            let here = || place.member(key);
            match key.as_str() {
                "type" => {
                    parts.own.insert(key.clone(), types(value, &here())?);
                }
                "enum" => {
                    let options = value.as_array().ok_or_else(|| invalid(&here(), "an array"))?;
                    if options.is_empty() {
                        return Err(here().refuse(Kind::Unsatisfiable, "`enum` is empty"));
                    }
                    self.nodes += options.len() / 8;
                    parts.own.insert(key.clone(), written(options, &here())?.into());
                }
                "const" => {
                    written(std::slice::from_ref(value), &here())?;
                    parts.own.insert(key.clone(), value.clone());
                }
                "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => {
                    bounds::bound(key, members, &here(), &mut parts.own)?;
                }
                "multipleOf" => {
                    let divisor = value.as_f64().filter(|divisor| *divisor > 0.0);
                    if divisor.is_none() {
                        return Err(invalid(&here(), "a number above 0"));
                    }
                    check_divisor(value, &here())?;
                    // Beyond these, whoever checks the text with floats may find another remainder.
                    let far = json!({"minimum": -EXACT_INTEGERS, "maximum": EXACT_INTEGERS});
                    parts.after.push(far);
                    parts.own.insert(key.clone(), value.clone());
                }
                "minLength" => {
                    parts.own.insert(key.clone(), least(value, &here())?.into());
                }
                "maxLength" => {
                    if let Some(length) = count(value, &here())? {
                        parts.own.insert(key.clone(), length.into());
                    }
                }
                "pattern" => {
                    let text = value.as_str().ok_or_else(|| invalid(&here(), "a string"))?;
                    let mut conjuncts = self.expressions(text, &here())?.into_iter();
                    parts.own.insert(key.clone(), conjuncts.next().unwrap_or_default().into());
                    parts.after.extend(conjuncts.map(|conjunct| json!({"pattern": conjunct})));
                }
                "format" => {
                    let name = value.as_str().ok_or_else(|| invalid(&here(), "a string"))?;
                    if let Some(expression) = format::expression(name) {
                        let mut expression = anchored(expression);
                        if let Some(narrow) = format::narrow(name)
                            && !self.can_stand_beside(&expression, members)
                        {
                            expression = anchored(narrow);
                        }
                        parts.after.push(json!({"pattern": expression}));
                    }
                }
                "items" | "prefixItems" | "additionalItems" | "minItems" | "maxItems" | "uniqueItems"
                | "contains" | "unevaluatedItems"
                    if !std::mem::replace(&mut arrays_done, true) =>
                {
                    self.array(members, place, &mut parts)?;
                }
                "properties"
                | "required"
                | "additionalProperties"
                | "patternProperties"
                | "propertyNames"
                | "minProperties"
                | "maxProperties"
                | "unevaluatedProperties" => {
                    // The position of `properties` among the keywords is the position of the properties.
                    let waits = key != "properties" && members.contains_key("properties");
                    if !waits && !std::mem::replace(&mut objects_done, true) {
                        self.object(members, place, &mut parts)?;
                    }
                }
                "dependencies" | "dependentRequired" | "dependentSchemas" => {
                    self.dependencies(value, members, &here(), &mut parts)?;
                }
                "$ref" | "$recursiveRef" | "$dynamicRef" => {
                    let core = self.reference(key, value, &here())?;
                    parts.beside(core);
                }
                "allOf" => {
                    for (index, part) in list(value, &here())?.iter().enumerate() {
                        let core = self.schema(part, &place.item(key, index))?;
                        parts.beside(core);
                    }
                }
                "anyOf" => {
                    let mut options = Vec::new();
                    for (index, option) in list(value, &here())?.iter().enumerate() {
                        options.push(self.schema(option, &place.item(key, index))?);
                    }
                    parts.beside(any_of(options));
                }
                "oneOf" => {
                    let core = self.one_of(list(value, &here())?, members, &here())?;
                    parts.beside(core);
                }
                "not" => {
                    let negated = self.negated(value, &without("not", members), &here())?;
                    let core = self.schema(&negated, &here())?;
                    parts.beside(core);
                }
                "if" => {
                    let core = self.conditional(members, place)?;
                    parts.beside(core);
                }
                // Annotations, definitions, and what no draft knows, assert nothing.
                _ => {}
            }
        }
        parts.after.extend(bounds::with_beginnings(&mut parts.own));
        Ok(parts.join())
    }

    fn add_nodes(&mut self, count: usize, place: &Place<'a>) -> Result<()> {
        self.nodes = self.nodes.saturating_add(count);
        if self.nodes > self.limits.schema_nodes {
            return Err(place.refuse(
                Kind::TooLarge,
                format!("the schema is made of more than {} schemas", self.limits.schema_nodes),
            ));
        }
        Ok(())
    }

    /// Takes the bytes of what is written, from those that are left for the core.
    fn takes(&mut self, bytes: usize, place: &Place<'a>) -> Result<()> {
        if bytes > self.room {
            let most = MOST_COPIED >> 20;
            return Err(place.refuse(
                Kind::TooLarge,
                format!(
                    "the schema has texts and values in so many places that they take more than {most} MiB"
                ),
            ));
        }
        self.room -= bytes;
        if !self.is_in_time(bytes) {
            self.stop.check(self.limits)?;
        }
        Ok(())
    }

    fn add_weight(&mut self, weight: usize, place: &Place<'a>) -> Result<()> {
        self.weight = self.weight.saturating_add(weight);
        weight::check(self.weight).map_err(|_| {
            place.refuse(Kind::TooLarge, "the schema's expressions have too many characters, sets or ranges")
        })
    }

    /// Whether llguidance finds out in time that a text may match an expression and what else a schema says of a text.
    fn can_stand_beside(&self, expression: &str, members: &Map<String, Value>) -> bool {
        let Some(Value::String(text)) = members.get("pattern") else { return true };
        let conjuncts = from_ecma(text, Strings::OfJson).unwrap_or_default();
        let all = conjuncts.into_iter().chain([expression.to_owned()]);
        let mut all: Vec<_> = all.map(RegexAst::SearchRegex).collect();
        let [least, most] = ["minLength", "maxLength"].map(|key| members.get(key).and_then(Value::as_u64));
        if least.is_some() || most.is_some() {
            let most = most.map_or(String::new(), |most| most.to_string());
            all.push(RegexAst::Regex(format!("(?s:.{{{},{most}}})", least.unwrap_or_default())));
        }
        if !self.is_in_time(logic::WORK) {
            return true;
        }
        let mut builder = RegexBuilder::new();
        let Ok(both) = builder.mk(&RegexAst::And(all)) else { return true };
        builder.exprset().is_positive(both) || builder.to_regex_limited(both, MOST_STEPS).is_ok()
    }

    /// An expression that may match anywhere, as some that must all match.
    fn expressions(&mut self, text: &str, place: &Place<'a>) -> Result<Vec<String>> {
        let refused = |reason| place.refuse(Kind::Unsupported, reason);
        let expressions = from_ecma(text, Strings::OfJson).map_err(refused)?;
        // Each is read again by llguidance.
        let weights = expressions.iter().map(|expression| weight::of_expression(expression, Cases::Own));
        let weight = weights.sum::<usize>() + weight::of_opposites(text);
        self.add_weight(weight, place)?;
        if !self.is_in_time(weight) {
            self.stop.check(self.limits)?;
        }
        Ok(expressions)
    }

    fn reference(&mut self, key: &str, value: &Value, place: &Place<'a>) -> Result<Value> {
        let text = value.as_str().ok_or_else(|| invalid(place, "a string"))?;
        if key != "$ref" && !self.document.is_static(key, text) {
            return Err(place.refuse(Kind::Unsupported, format!("`{key}` is not supported")));
        }
        let target = self.document.resolve(text, place)?;
        Ok(self.referring(Definition { target, demanded: Vec::new() }))
    }

    fn referring(&mut self, definition: Definition<'a>) -> Value {
        let next = self.definitions.len();
        let index = *self.names.entry(definition.key()).or_insert(next);
        if index == next {
            self.definitions.push(definition);
        }
        json!({"$ref": format!("#/$defs/{index}")})
    }

    /// The core of a schema, of whose objects only those are left that have a property. `known`: the definitions before it was translated.
    fn demanding(&mut self, core: Value, name: &str, known: usize) -> Value {
        let mut members = match core {
            Value::Bool(true) => Map::new(),
            Value::Object(members) => members,
            nothing => return nothing,
        };
        if members.len() == 1 {
            if let Some(Value::Array(parts)) = members.get_mut("allOf")
                && parts.len() == 1
            {
                return self.demanding(parts.remove(0), name, known);
            }
            if let Some(Value::Array(options)) = members.get_mut("anyOf") {
                let options = std::mem::take(options).into_iter();
                return any_of(options.map(|option| self.demanding(option, name, usize::MAX)).collect());
            }
        }
        let core = Value::Object(members);
        if let Some(index) = recursion::referred(&core) {
            let mut definition = self.definitions[index].clone();
            // One that nothing else refers to becomes the other.
            if index == known && self.definitions.len() == known + 1 {
                self.names.remove(&definition.key());
                self.definitions.pop();
            }
            if !definition.demanded.iter().any(|demanded| demanded == name) {
                definition.demanded.push(name.to_owned());
            }
            return self.referring(definition);
        }
        let Value::Object(mut members) = core else { return core };
        match members.get_mut("required") {
            Some(Value::Array(required)) if required.iter().any(|required| required == name) => {}
            Some(Value::Array(required)) => required.push(name.into()),
            _ => {
                members.insert("required".into(), json!([name]));
            }
        }
        Value::Object(members)
    }
}

/// Refuses a divisor that llguidance would not read as it is written: of a float it counts the decimals by multiplying it by ten until
/// there are none, which of some goes on to digits that the float has beside those that are written.
fn check_divisor(value: &Value, place: &Place<'_>) -> Result<()> {
    let refused = |reason: String| Err(place.refuse(Kind::Unsupported, reason));
    let Some(divisor) = decimal(value) else { return refused("`multipleOf` has too many digits".into()) };
    let mut float = value.as_f64().unwrap_or_default();
    let mut places = 0;
    while float.fract() != 0.0 {
        float *= 10.0;
        places += 1;
    }
    let is_exact = float <= f64::from(u32::MAX) && without_zeros(float as u64, places) == divisor;
    if is_exact {
        Ok(())
    } else {
        refused(format!("multiples of {value} are not supported: as a float it has more digits"))
    }
}

/// A positive number as its digits and the decimals among them; None for more than llguidance has bits for.
fn decimal(value: &Value) -> Option<(u64, u32)> {
    let text = value.to_string();
    let (text, exponent) = text.split_once(['e', 'E']).unwrap_or((&text, "0"));
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits: u64 = format!("{whole}{fraction}").parse().ok()?;
    let places = i64::try_from(fraction.len()).ok()? - exponent.parse::<i64>().ok()?;
    let zeros = 10_u64.checked_pow(u32::try_from(places.min(0).unsigned_abs()).ok()?)?;
    let (digits, places) = without_zeros(digits.checked_mul(zeros)?, u32::try_from(places.max(0)).ok()?);
    (digits <= u64::from(u32::MAX) && places <= MOST_DECIMALS).then_some((digits, places))
}

fn without_zeros(mut digits: u64, mut places: u32) -> (u64, u32) {
    while places > 0 && digits.is_multiple_of(10) {
        digits /= 10;
        places -= 1;
    }
    (digits, places)
}

fn anchored(expression: &str) -> String {
    format!("^(?:{expression})$")
}

fn invalid(place: &Place<'_>, expected: &str) -> CompileError {
    place.refuse(Kind::Invalid, format!("expected {expected}"))
}

fn list<'v>(value: &'v Value, place: &Place<'_>) -> Result<&'v [Value]> {
    match value.as_array() {
        Some(items) if !items.is_empty() => Ok(items),
        _ => Err(invalid(place, "an array of schemas that is not empty")),
    }
}

fn types(value: &Value, place: &Place<'_>) -> Result<Value> {
    let names: Vec<&str> = match value {
        Value::String(name) => vec![name],
        Value::Array(names) if !names.is_empty() => names
            .iter()
            .map(|name| name.as_str().ok_or_else(|| invalid(place, "names of types")))
            .collect::<Result<_>>()?,
        _ => return Err(invalid(place, "the name of a type, or several")),
    };
    if let Some(unknown) = names.iter().find(|name| !TYPES.contains(name)) {
        return Err(place.refuse(Kind::Invalid, format!("there is no type {unknown:?}")));
    }
    let has_numbers = names.contains(&"number");
    let mut kept: Vec<&str> = Vec::new();
    for name in &names {
        // A number may be an integer.
        if !(kept.contains(name) || *name == "integer" && has_numbers) {
            kept.push(name);
        }
    }
    Ok(if let [one] = kept[..] { one.into() } else { kept.into() })
}

/// What a value is that is to be a count.
pub(crate) enum Count {
    Of(u64),
    /// So large that nothing reaches it.
    Endless,
    Invalid,
}

impl Count {
    pub(crate) fn read(value: &Value) -> Count {
        let whole = value.as_u64().or_else(|| {
            let float = value.as_f64().filter(|float| *float >= 0.0 && float.fract() == 0.0)?;
            Some(float as u64)
        });
        match whole {
            None => Count::Invalid,
            Some(count) if count < u64::from(u32::MAX / 2) => Count::Of(count),
            Some(_) => Count::Endless,
        }
    }
}

/// A count that is not negative; None for one so large that nothing reaches it.
fn count(value: &Value, place: &Place<'_>) -> Result<Option<u64>> {
    match Count::read(value) {
        Count::Of(count) => Ok(Some(count)),
        Count::Endless => Ok(None),
        Count::Invalid => Err(invalid(place, "an integer that is not negative")),
    }
}

/// A count that has to be reached.
fn least(value: &Value, place: &Place<'_>) -> Result<u64> {
    count(value, place)?.ok_or_else(|| place.refuse(Kind::Unsatisfiable, "nothing is so long"))
}

/// How many there have to be at least, 0 where nothing is said, and at most.
fn bounds(members: &Map<String, Value>, names: [&str; 2], place: &Place<'_>) -> Result<(u64, Option<u64>)> {
    let [fewest, most] = names.map(|name| members.get(name).map(|value| (value, place.member(name))));
    Ok((
        fewest.map_or(Ok(0), |(value, place)| least(value, &place))?,
        most.map_or(Ok(None), |(value, place)| count(value, &place))?,
    ))
}

/// The listed values that a text can have: llguidance leaves a control character out of a text, but for those that have an escape of
/// their own.
fn written(values: &[Value], place: &Place<'_>) -> Result<Vec<Value>> {
    values.iter().try_for_each(|value| constant(value, place))?;
    let written: Vec<Value> = values.iter().filter(|value| can_be_written(value)).cloned().collect();
    if written.is_empty() {
        return Err(place.refuse(Kind::Unsatisfiable, "its control characters cannot be written"));
    }
    Ok(written)
}

/// Names of properties have every character.
fn can_be_written(value: &Value) -> bool {
    match value {
        Value::String(text) => text.chars().all(pattern::can_be_written),
        Value::Array(items) => items.iter().all(can_be_written),
        Value::Object(members) => members.values().all(can_be_written),
        _ => true,
    }
}

/// The bytes of a schema's own values and names, about, which its core has too.
fn own_bytes(members: &Map<String, Value>) -> usize {
    let of = |(key, value): (&String, &Value)| match (key.as_str(), value) {
        ("const" | "enum" | "required" | "dependentRequired" | "dependencies", value) => logic::size(value),
        ("pattern", Value::String(text)) => text.len(),
        ("properties" | "patternProperties" | "dependentSchemas", Value::Object(named)) => {
            named.keys().map(String::len).sum()
        }
        _ => 0,
    };
    members.iter().map(of).sum()
}

/// Refuses a number within a constant that an f64 would change.
fn constant(value: &Value, place: &Place<'_>) -> Result<()> {
    match value {
        Value::Number(number) if !number.is_f64() => {
            let exact = number.as_f64().is_some_and(|float| float.abs() <= EXACT_INTEGERS);
            if exact {
                Ok(())
            } else {
                Err(place.refuse(Kind::Unsupported, "an integer beyond 2^53 is not supported here"))
            }
        }
        Value::Array(items) => items.iter().try_for_each(|item| constant(item, place)),
        Value::Object(members) => members.values().try_for_each(|member| constant(member, place)),
        _ => Ok(()),
    }
}

/// A schema without one of its keywords.
fn without(key: &str, members: &Map<String, Value>) -> Value {
    Value::Object(
        members
            .iter()
            .filter(|(name, _)| *name != key)
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect(),
    )
}

fn any_of(mut options: Vec<Value>) -> Value {
    if options.contains(&Value::Bool(true)) {
        return Value::Bool(true);
    }
    options.retain(|option| *option != Value::Bool(false));
    match options.len() {
        0 => Value::Bool(false),
        1 => options.remove(0),
        _ => json!({"anyOf": options}),
    }
}

fn all_of(mut parts: Vec<Value>) -> Value {
    if parts.contains(&Value::Bool(false)) {
        return Value::Bool(false);
    }
    parts.retain(|part| *part != Value::Bool(true));
    match parts.len() {
        0 => Value::Bool(true),
        1 => parts.remove(0),
        _ => json!({"allOf": parts}),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::stop::Cancel;

    #[test]
    fn a_schema_given_up_for_its_time_says_so_and_nothing_of_its_options() {
        let options: Vec<Value> = (0..2_000)
            .map(|n| json!({"type": "integer", "minimum": n * 10, "maximum": n * 10 + 5}))
            .collect();
        let schema = json!({"oneOf": options});
        let limits = Limits::default();
        let late = Stop::begin(Cancel::new(), Duration::from_millis(5));
        assert_eq!(to_core(&schema, &limits, &late).unwrap_err().kind, Kind::TimedOut);
        let in_time = Stop::begin(Cancel::new(), Duration::from_secs(600));
        let error = to_core(&schema, &limits, &in_time).unwrap_err();
        assert_eq!(error.kind, Kind::Unsupported);
        assert!(error.to_string().contains("more than 1000000 comparisons"), "{error}");
    }

    /// Each schema five times in the one before it.
    fn fanned_out(depth: usize, extra: Value) -> Value {
        let next = |at: usize| vec![json!({"$ref": format!("#/$defs/{at}")}); 5];
        let mut schema = json!({"allOf": next(0)});
        for at in 0..depth {
            let mut definition = json!({"allOf": next(at + 1)});
            definition["properties"][format!("p{at}")] = true.into();
            schema["$defs"][at.to_string()] = definition;
        }
        schema["$defs"][depth.to_string()] = json!({"type": "object"});
        schema.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        schema
    }

    #[test]
    fn what_fans_out_is_followed_for_some_steps_and_until_its_request_is_gone() {
        let cases = [
            fanned_out(15, json!({"unevaluatedProperties": false})),
            fanned_out(22, json!({"not": {"type": "string"}})),
            fanned_out(22, json!({"not": {"$ref": "#/$defs/0"}})),
        ];
        let gone = Cancel::new();
        gone.cancel();
        for schema in cases {
            let limits = Limits::default();
            let stopped = Stop::begin(gone.clone(), Duration::from_secs(600));
            assert_eq!(to_core(&schema, &limits, &stopped).unwrap_err().kind, Kind::Cancelled, "{schema}");
        }
        let schema = fanned_out(15, json!({"unevaluatedProperties": false}));
        let patient = Stop::begin(Cancel::new(), Duration::from_secs(600));
        let error = to_core(&schema, &Limits::default(), &patient).unwrap_err();
        assert_eq!((error.kind, error.path.as_str()), (Kind::Unsupported, "/unevaluatedProperties"));
    }

    #[test]
    fn what_is_compared_for_one_schema_ends_with_its_request() {
        let texts = |name: &str| (0..20_000).map(|at| format!("{name}{at}")).collect::<Vec<_>>();
        let numbers: Vec<usize> = (0..60_000).collect();
        let gone = Cancel::new();
        gone.cancel();
        for schema in [
            json!({"oneOf": [{"enum": texts("a")}, {"enum": texts("b")}]}),
            json!({"enum": texts("a"), "not": {"enum": texts("b")}}),
            json!({"const": numbers, "uniqueItems": true, "not": {"const": 3}}),
        ] {
            let stopped = Stop::begin(gone.clone(), Duration::from_secs(600));
            assert_eq!(to_core(&schema, &Limits::default(), &stopped).unwrap_err().kind, Kind::Cancelled);
        }
    }

    #[test]
    fn opposites_that_grow_with_each_reference_are_given_up() {
        let next = |at: usize| vec![json!({"$ref": format!("#/$defs/{at}")}); 10];
        let schema = json!({"not": {"allOf": next(0)}, "$defs": {
            "0": {"allOf": next(1)}, "1": {"allOf": next(2)}, "2": {"not": {"const": "x".repeat(200_000)}},
        }});
        let patient = Stop::begin(Cancel::new(), Duration::from_secs(600));
        assert_eq!(to_core(&schema, &Limits::default(), &patient).unwrap_err().kind, Kind::Unsupported);
    }

    #[test]
    fn what_stands_in_several_places_counts_in_each() {
        let nested = |depth| {
            (0..depth)
                .fold(json!({"type": "integer"}), |inner, _| json!({"type": "array", "contains": inner}))
        };
        let core = |schema: &Value| {
            to_core(schema, &Limits::default(), &Stop::begin(Cancel::new(), Duration::from_secs(600)))
        };
        assert!(core(&nested(3)).is_ok());
        assert_eq!(core(&nested(30)).unwrap_err().kind, Kind::TooLarge);
    }

    /// Whatever is written in several places, or once for each place that refers to it.
    #[test]
    fn what_is_written_again_counts_with_its_texts() {
        let long = |letter: &str| letter.repeat(100_000);
        let everywhere = |schema: &Value| {
            let all: Value = (0..400).map(|at| (format!("p{at}"), schema.clone())).collect();
            json!({"type": "object", "properties": all, "required": ["p0"], "$defs": {
                "value": {"const": long("x")}, "names": {"enum": [long("x")]},
                "object": {"type": "object", "properties": {long("x"): {}}},
            }})
        };
        let names: Value =
            ["a", "b", "c", "d", "e", "f"].map(|name| (long(name), json!({}))).into_iter().collect();
        let contained = (0..4).fold(json!({"const": long("x")}), |inner, _| json!({"contains": inner}));
        let kinds = ["null", "boolean", "integer", "string", "array"];
        for (schema, is_refused) in [
            (contained, true),
            (json!({"contains": {"const": "x".repeat(1_000_000)}}), false),
            (json!({"items": {"enum": (["a", "b", "c", "d"].map(long))}, "uniqueItems": true}), true),
            (json!({"items": {"enum": (["a", "b"].map(long))}, "uniqueItems": true}), false),
            (json!({"properties": names, "minProperties": 3, "additionalProperties": false}), true),
            (everywhere(&json!({"$ref": "#/$defs/value", "not": {"const": 1}})), true),
            (everywhere(&json!({"$ref": "#/$defs/object", "unevaluatedProperties": false})), true),
            (everywhere(&json!({"propertyNames": {"$ref": "#/$defs/names"}})), true),
            (everywhere(&json!({"$ref": "#/$defs/value"})), false),
            (json!({"type": kinds, "enum": vec![0; 400_000], "const": long("x")}), false),
        ] {
            let patient = Stop::begin(Cancel::new(), Duration::from_secs(600));
            let limits = Limits { schema_nodes: 1_000_000, ..Limits::default() };
            let told = to_core(&schema, &limits, &patient).err().map(|error| error.kind);
            let start: String = schema.to_string().chars().take(200).collect();
            assert_eq!(told, is_refused.then_some(Kind::TooLarge), "{start}");
        }
    }

    #[test]
    fn a_list_of_types_may_be_long() {
        let mut kinds = vec!["integer"; 100_000];
        kinds.push("number");
        let place = Place { path: String::new(), base: &Value::Null, depth: 0 };
        assert_eq!(types(&kinds.into(), &place).unwrap(), json!("number"));
    }

    #[test]
    fn a_path_is_no_longer_than_an_error_shows() {
        let place = Place { path: String::new(), base: &Value::Null, depth: 0 };
        assert_eq!(place.member("a/b").item("~", 3).path, "/a~1b/~0/3");
        let deep = (0..100).fold(place, |place, _| place.member(&"k".repeat(100_000)));
        assert!((LONGEST_PATH + 1..500).contains(&deep.path.len()), "{}", deep.path.len());
    }
}
