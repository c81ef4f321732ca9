//! The bounds of numbers, in the way of every draft, as llguidance keeps them soundly.
//!
//! Its expression for a range of floats takes the bound that is nearer to zero as inclusive when it is a whole number and the
//! other bound has the same whole part: "3" of `3 < x <= 3.5`, "-0" of `-0.5 <= x < 0`. And of every exclusive bound nearer to
//! zero it refuses fractions that end with a zero, "0.50" of `x > 0`. So such a bound becomes an inclusive one that lies
//! inside by a hair. The exclusive bound farther from zero it keeps exactly, so it stays.
//!
//! Of the numbers whose digits begin those of the bound farther from zero it takes only texts with more zeros: "3.40" of `x <= 3.45`.
//! So these numbers stand beside the bounds as constants.
//!
//! And it has the whole part of a bound in 64 bits, with one digit more above it where there is no bound farther from zero. So no number
//! with a bound lies beyond [`FARTHEST`].

use serde_json::{Map, Value, json};

use super::{EXACT_INTEGERS, Place, Result, invalid};
use crate::error::Kind;

const KEYWORDS: [&str; 4] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
/// The f64 below 2^63.
const FARTHEST: f64 = 9_223_372_036_854_774_784.0;
/// Bounds from here on have as many digits as fit.
const MOST_DIGITS: f64 = 1e18;
/// What lies inside of an exclusive bound by this part of it is refused too. Four units in the last place of an f64: a parser of
/// JSON may read the inclusive bound, or the number, with an error of one.
const HAIR: f64 = 4.0 * f64::EPSILON;
/// The same inside of zero, of which there is no part. Every zero behind the point is a state of the lexer.
const HAIR_AT_ZERO: f64 = 1e-20;
/// The same where the other bound is nearer to zero than that: this part of it.
const HAIR_OF_OTHER: f64 = 1e-16;

/// Writes the bound that `key` is into the core.
pub(super) fn bound(
    key: &str,
    members: &Map<String, Value>,
    place: &Place<'_>,
    own: &mut Map<String, Value>,
) -> Result<()> {
    let lower = key.ends_with("inimum");
    let (inclusive, exclusive) =
        if lower { ("minimum", "exclusiveMinimum") } else { ("maximum", "exclusiveMaximum") };
    let value = &members[key];
    if value.is_boolean() && key == exclusive {
        return Ok(());
    }
    let number =
        value.as_f64().filter(|number| number.is_finite()).ok_or_else(|| invalid(place, "a number"))?;
    let mut float = number;
    let mut is_exclusive = key == exclusive || members.get(exclusive) == Some(&Value::Bool(true));
    let integer = value.as_i64().map(i128::from).or(value.as_u64().map(i128::from));
    let lies_outside = |integer| if lower { (number as i128) < integer } else { number as i128 > integer };
    if integer.is_some_and(lies_outside) || is_exclusive && number.abs() > EXACT_INTEGERS {
        // The nearest f64 is no bound, nor is what llguidance makes of an exclusive one so large. The next one inside is.
        float = if lower { number.next_up() } else { number.next_down() };
        is_exclusive = false;
    }
    let is_nearer_to_zero = if lower { float >= 0.0 } else { float <= 0.0 };
    if is_nearer_to_zero && float.abs() > FARTHEST {
        let reason = format!("a `{key}` beyond 2^63 is not supported here");
        return Err(place.refuse(Kind::Unsupported, reason));
    }
    if is_nearer_to_zero && float.abs() >= MOST_DIGITS {
        let (other, farthest) = if lower { ("maximum", FARTHEST) } else { ("minimum", -FARTHEST) };
        put(other, farthest, own);
    }
    if float.abs() > FARTHEST {
        float = FARTHEST.copysign(float);
        is_exclusive = false;
    }
    let name = match (is_exclusive, is_nearer_to_zero) {
        (true, false) => exclusive,
        (false, _) => inclusive,
        (true, true) => {
            float = inside(float, lower, members);
            inclusive
        }
    };
    put(name, float, own);
    Ok(())
}

/// Writes a bound where it is tighter than what is there.
fn put(name: &str, bound: f64, own: &mut Map<String, Value>) {
    let is_tighter = |other: f64| if name.ends_with("inimum") { bound > other } else { bound < other };
    if own.get(name).and_then(Value::as_f64).is_none_or(is_tighter) {
        // A parser of JSON may read the text of a float with an error, of an integer it does not. And a zero has no sign: the text of
        // -0.0 would be the only zero of `minimum` and `maximum` both 0.
        let value = if bound.fract() == 0.0 { Value::from(bound as i64) } else { Value::from(bound) };
        own.insert(name.into(), value);
    }
}

/// Moves the bounds of `own` into a schema that takes the beginnings of their digits too, if there are any.
pub(super) fn with_beginnings(own: &mut Map<String, Value>) -> Option<Value> {
    let types = own.get("type");
    if types.is_some_and(|types| {
        types != "number" && !types.as_array().is_some_and(|all| all.contains(&"number".into()))
    }) {
        return None;
    }
    let bound = |key: &str| own.get(key).and_then(Value::as_f64);
    let within = |number: f64| {
        bound("minimum").is_none_or(|least| number >= least)
            && bound("exclusiveMinimum").is_none_or(|least| number > least)
            && bound("maximum").is_none_or(|most| number <= most)
            && bound("exclusiveMaximum").is_none_or(|most| number < most)
    };
    let mut numbers: Vec<f64> = Vec::new();
    for key in KEYWORDS {
        numbers.extend(bound(key).into_iter().flat_map(beginnings).filter(|number| within(*number)));
    }
    if numbers.is_empty() {
        return None;
    }
    let bounds: Map<String, Value> = KEYWORDS.iter().filter_map(|key| own.remove_entry(*key)).collect();
    Some(json!({"anyOf": [bounds, {"enum": numbers}]}))
}

/// The numbers that the digits of `bound` begin with, down to one decimal and without those that end with a zero: 3.4 and 3.45 of 3.456.
fn beginnings(bound: f64) -> Vec<f64> {
    let text = bound.to_string();
    let Some((whole, fraction)) = text.split_once('.') else { return Vec::new() };
    let texts = (1..fraction.len()).map(|length| format!("{whole}.{}", &fraction[..length]));
    // What an f64 does not hold exactly as written would be written otherwise.
    texts.filter_map(|text| text.parse().ok().filter(|number: &f64| number.to_string() == text)).collect()
}

/// The nearest inclusive bound for an exclusive one.
fn inside(bound: f64, lower: bool, members: &Map<String, Value>) -> f64 {
    let hair = match bound.abs() {
        0.0 => {
            let bounds = KEYWORDS.iter().filter_map(|key| members.get(*key)?.as_f64());
            let other = bounds.map(f64::abs).filter(|other| *other > 0.0).fold(f64::INFINITY, f64::min);
            HAIR_AT_ZERO.min(other * HAIR_OF_OTHER).max(f64::from_bits(1))
        }
        // No whole number is refused for it.
        far => (far * HAIR).min(0.5),
    };
    if lower { (bound + hair).max(bound.next_up()) } else { (bound - hair).min(bound.next_down()) }
}
