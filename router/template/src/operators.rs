//! Python's operators. What they make is counted by the caller, by length.

use std::sync::Arc;

use super::ast::{Binary, Comparison};
use super::budget::{Budget, MAX_ITEMS, MAX_TEXT, too_large, too_long};
use super::format::percent;
use super::value::{Text, Value, compare, equal, holds, is_undefined, key};
use super::{Error, ErrorKind};

fn unsupported(operator: &str, a: &Value, b: &Value) -> Error {
    Error::new(ErrorKind::Type, format!("`{operator}` of '{}' and '{}'", a.kind(), b.kind()))
}

/// What is joined to text that is marked as safe HTML is escaped, as `markupsafe` does.
pub fn escaped(value: &Value, budget: &Budget) -> Result<Arc<str>, Error> {
    let text = value.to_str(budget)?;
    if matches!(value, Value::Str(Text { safe: true, .. })) {
        return Ok(text);
    }
    budget.read(&text)?;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        let named = match c {
            '&' => "&amp;",
            '<' => "&lt;",
            '>' => "&gt;",
            '\'' => "&#39;",
            '"' => "&#34;",
            c => {
                out.push(c);
                continue;
            }
        };
        budget.push(&mut out, named)?;
    }
    Ok(out.into())
}

/// Joins texts. Nothing is escaped here, as transformers renders without autoescaping.
pub fn join(parts: &[Value], separator: &str, budget: &Budget) -> Result<Value, Error> {
    let mut out = String::new();
    for (at, part) in parts.iter().enumerate() {
        budget.step(1)?;
        budget.push(&mut out, if at > 0 { separator } else { "" })?;
        part.write_str(&mut out, budget)?;
    }
    Ok(Value::str(out))
}

pub fn binary(operator: Binary, a: &Value, b: &Value, budget: &Budget) -> Result<Value, Error> {
    if operator == Binary::Modulo
        && let Value::Str(format) = a
    {
        return Ok(Value::Str(Text { text: percent(&format.text, b, budget)?.into(), safe: format.safe }));
    }
    if let Value::Undefined(name) = a {
        return Err(is_undefined(name));
    }
    if let Value::Undefined(name) = b {
        return Err(is_undefined(name));
    }
    match operator {
        Binary::Add => add(a, b, budget),
        Binary::Multiply => multiply(a, b, budget),
        Binary::Subtract => arithmetic("-", a, b, i128::checked_sub, |a, b| Ok(a - b)),
        Binary::Divide => match (a.as_number(), b.as_number()) {
            (Some(_), Some(0.0)) => Err(by_zero()),
            (Some(a), Some(b)) => Ok(Value::Float(a / b)),
            _ => Err(unsupported("/", a, b)),
        },
        Binary::FloorDivide => match b.as_number() {
            Some(0.0) if a.as_number().is_some() => Err(by_zero()),
            _ => arithmetic("//", a, b, floor_divide, |a, b| Ok((a / b).floor())),
        },
        Binary::Modulo => match b.as_number() {
            Some(0.0) if a.as_number().is_some() => Err(by_zero()),
            _ => arithmetic("%", a, b, modulo, |a, b| {
                let rest = a % b;
                Ok(if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest })
            }),
        },
        Binary::Power => match (a.as_int(), b.as_int()) {
            (Some(base), Some(exponent)) if exponent >= 0 => u32::try_from(exponent)
                .ok()
                .and_then(|exponent| base.checked_pow(exponent))
                .map(Value::Int)
                .ok_or_else(too_large),
            _ => match (a.as_number(), b.as_number()) {
                (Some(0.0), Some(exponent)) if exponent < 0.0 => Err(by_zero()),
                (Some(a), Some(b)) => Ok(Value::Float(a.powf(b))),
                _ => Err(unsupported("**", a, b)),
            },
        },
    }
}

fn by_zero() -> Error {
    Error::new(ErrorKind::Other, "a division by zero")
}

fn floor_divide(a: i128, b: i128) -> Option<i128> {
    let quotient = a.checked_div(b)?;
    Some(if a % b != 0 && (a < 0) != (b < 0) { quotient - 1 } else { quotient })
}

fn modulo(a: i128, b: i128) -> Option<i128> {
    // The only one that overflows.
    if b == -1 {
        return Some(0);
    }
    let rest = a.checked_rem(b)?;
    Some(if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest })
}

fn arithmetic(
    operator: &str,
    a: &Value,
    b: &Value,
    whole: fn(i128, i128) -> Option<i128>,
    float: fn(f64, f64) -> Result<f64, Error>,
) -> Result<Value, Error> {
    match (a.as_int(), b.as_int(), a.as_number(), b.as_number()) {
        (Some(a), Some(b), ..) => whole(a, b).map(Value::Int).ok_or_else(too_large),
        (_, _, Some(a), Some(b)) => float(a, b).map(Value::Float),
        _ => Err(unsupported(operator, a, b)),
    }
}

fn add(a: &Value, b: &Value, budget: &Budget) -> Result<Value, Error> {
    let lists = |a: &[Value], b: &[Value]| -> Result<Vec<Value>, Error> {
        if a.len() + b.len() > MAX_ITEMS {
            return Err(too_long());
        }
        Ok(a.iter().chain(b).cloned().collect())
    };
    match (a, b) {
        (Value::Str(one), Value::Str(two)) => {
            let safe = one.safe || two.safe;
            let (one, two) = if safe {
                (escaped(a, budget)?, escaped(b, budget)?)
            } else {
                (one.text.clone(), two.text.clone())
            };
            budget.fits(one.len() + two.len())?;
            Ok(Value::Str(Text { text: format!("{one}{two}").into(), safe }))
        }
        (Value::List(a), Value::List(b)) => Value::list(lists(a, b)?, budget),
        (Value::Tuple(a), Value::Tuple(b)) => Value::tuple(lists(&a.items, &b.items)?, budget),
        _ => arithmetic("+", a, b, i128::checked_add, |a, b| Ok(a + b)),
    }
}

fn multiply(a: &Value, b: &Value, budget: &Budget) -> Result<Value, Error> {
    let (many, times) = match (a, b) {
        (Value::Str(_) | Value::List(_) | Value::Tuple(_), _) => (a, b),
        _ => (b, a),
    };
    let times = |length: usize, most: usize| -> Result<usize, Error> {
        let Some(times) = times.as_int() else { return Err(unsupported("*", a, b)) };
        let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
        match length.checked_mul(times) {
            Some(0) => Ok(0),
            Some(total) if total <= most => Ok(times),
            _ => Err(too_long()),
        }
    };
    let repeat = |items: &[Value]| -> Result<Vec<Value>, Error> {
        let times = times(items.len(), MAX_ITEMS)?;
        Ok(std::iter::repeat_n(items, times).flatten().cloned().collect())
    };
    match many {
        Value::Str(text) => {
            let repeated = budget.repeat(&text.text, times(text.text.len(), MAX_TEXT)?)?;
            Ok(Value::Str(Text { text: repeated.into(), safe: text.safe }))
        }
        Value::List(items) => Value::list(repeat(items)?, budget),
        Value::Tuple(tuple) => Value::tuple(repeat(&tuple.items)?, budget),
        _ => arithmetic("*", a, b, i128::checked_mul, |a, b| Ok(a * b)),
    }
}

pub fn comparison(operator: Comparison, a: &Value, b: &Value, budget: &Budget) -> Result<bool, Error> {
    use std::cmp::Ordering::{Equal, Greater, Less};
    Ok(match operator {
        Comparison::Equal => equal(a, b, budget)?,
        Comparison::NotEqual => !equal(a, b, budget)?,
        Comparison::Less => compare(a, b, budget)? == Some(Less),
        Comparison::LessOrEqual => matches!(compare(a, b, budget)?, Some(Less | Equal)),
        Comparison::Greater => compare(a, b, budget)? == Some(Greater),
        Comparison::GreaterOrEqual => matches!(compare(a, b, budget)?, Some(Greater | Equal)),
        Comparison::In => contains(b, a, budget)?,
        Comparison::NotIn => !contains(b, a, budget)?,
    })
}

/// `item in whole`.
pub fn contains(whole: &Value, item: &Value, budget: &Budget) -> Result<bool, Error> {
    match whole {
        Value::Str(text) => match item {
            Value::Str(part) => {
                budget.read(&text.text)?;
                budget.read(&part.text)?;
                Ok(text.text.contains(&*part.text))
            }
            _ => Err(unsupported("in", item, whole)),
        },
        Value::Dict(items) => Ok(items.contains_key(&key(item.clone(), budget)?)),
        Value::List(items) => holds(items, item, budget),
        Value::Tuple(tuple) => holds(&tuple.items, item, budget),
        Value::View(view) => holds(&view.items, item, budget),
        _ => holds(&whole.items(budget)?, item, budget),
    }
}
