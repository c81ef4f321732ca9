//! Python's operators and subscripts. What they make is counted by the caller, by length.

use std::rc::Rc;
use std::sync::Arc;

use super::ast::{Binary, Comparison};
use super::format::percent;
use super::value::{Dict, Text, Value, compare, equal, is_undefined, key, lookup};
use super::{Error, MAX_TEXT, Trouble};

/// Most items of a list that `*` makes.
const MAX_ITEMS: usize = 1_000_000;

fn unsupported(operator: &str, a: &Value, b: &Value) -> Error {
    Error::new(Trouble::Type, format!("`{operator}` of '{}' and '{}'", a.kind(), b.kind()))
}

fn too_large() -> Error {
    Error::new(Trouble::Other, "a number is too large")
}

/// What is joined to text that is marked as safe HTML is escaped, as `markupsafe` does.
pub fn escaped(value: &Value) -> Result<Arc<str>, Error> {
    let text = value.to_str()?;
    if matches!(value, Value::Str(Text { safe: true, .. })) {
        return Ok(text);
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    Ok(out.into())
}

/// Joins texts. Nothing is escaped here, as transformers renders without autoescaping.
pub fn join(parts: &[Value], separator: &str) -> Result<Value, Error> {
    let mut out = String::new();
    for (at, part) in parts.iter().enumerate() {
        out.push_str(if at > 0 { separator } else { "" });
        part.write_str(&mut out)?;
        if out.len() > MAX_TEXT {
            return Err(Error::new(Trouble::Size, "a value is too long"));
        }
    }
    Ok(Value::str(out))
}

pub fn binary(operator: Binary, a: &Value, b: &Value) -> Result<Value, Error> {
    if operator == Binary::Modulo
        && let Value::Str(format) = a
    {
        return Ok(Value::Str(Text { text: percent(&format.text, b)?.into(), safe: format.safe }));
    }
    if let Value::Undefined(name) = a {
        return Err(is_undefined(name));
    }
    if let Value::Undefined(name) = b {
        return Err(is_undefined(name));
    }
    match operator {
        Binary::Add => add(a, b),
        Binary::Multiply => multiply(a, b),
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
    Error::new(Trouble::Other, "a division by zero")
}

fn floor_divide(a: i128, b: i128) -> Option<i128> {
    let quotient = a.checked_div(b)?;
    Some(if a % b != 0 && (a < 0) != (b < 0) { quotient - 1 } else { quotient })
}

fn modulo(a: i128, b: i128) -> Option<i128> {
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

fn add(a: &Value, b: &Value) -> Result<Value, Error> {
    match (a, b) {
        (Value::Str(one), Value::Str(two)) => {
            if one.safe || two.safe {
                let text = format!("{}{}", escaped(a)?, escaped(b)?);
                return Ok(Value::Str(Text { text: text.into(), safe: true }));
            }
            Ok(Value::str(format!("{}{}", one.text, two.text)))
        }
        (Value::List(a), Value::List(b)) => Ok(Value::list(a.iter().chain(b.iter()).cloned().collect())),
        (Value::Tuple(a), Value::Tuple(b)) => {
            Ok(Value::tuple(a.items.iter().chain(&b.items).cloned().collect()))
        }
        _ => arithmetic("+", a, b, i128::checked_add, |a, b| Ok(a + b)),
    }
}

fn multiply(a: &Value, b: &Value) -> Result<Value, Error> {
    let (many, times) = match (a, b) {
        (Value::Str(_) | Value::List(_) | Value::Tuple(_), _) => (a, b),
        _ => (b, a),
    };
    let times = |length: usize, most: usize| -> Result<usize, Error> {
        let Some(times) = times.as_int() else { return Err(unsupported("*", a, b)) };
        let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
        match length.checked_mul(times) {
            Some(total) if total <= most => Ok(times),
            _ => Err(Error::new(Trouble::Size, "a value is too long")),
        }
    };
    let repeat = |items: &[Value]| -> Result<Vec<Value>, Error> {
        let times = times(items.len(), MAX_ITEMS)?;
        Ok(std::iter::repeat_n(items, times).flatten().cloned().collect())
    };
    match many {
        Value::Str(text) => {
            let repeated = text.text.repeat(times(text.text.len(), MAX_TEXT)?);
            Ok(Value::Str(Text { text: repeated.into(), safe: text.safe }))
        }
        Value::List(items) => Ok(Value::list(repeat(items)?)),
        Value::Tuple(tuple) => Ok(Value::tuple(repeat(&tuple.items)?)),
        _ => arithmetic("*", a, b, i128::checked_mul, |a, b| Ok(a * b)),
    }
}

pub fn comparison(operator: Comparison, a: &Value, b: &Value) -> Result<bool, Error> {
    use std::cmp::Ordering::{Equal, Greater, Less};
    Ok(match operator {
        Comparison::Equal => equal(a, b),
        Comparison::NotEqual => !equal(a, b),
        Comparison::Less => compare(a, b)? == Some(Less),
        Comparison::LessOrEqual => matches!(compare(a, b)?, Some(Less | Equal)),
        Comparison::Greater => compare(a, b)? == Some(Greater),
        Comparison::GreaterOrEqual => matches!(compare(a, b)?, Some(Greater | Equal)),
        Comparison::In => contains(b, a)?,
        Comparison::NotIn => !contains(b, a)?,
    })
}

/// `item in whole`.
pub fn contains(whole: &Value, item: &Value) -> Result<bool, Error> {
    match whole {
        Value::Str(text) => match item {
            Value::Str(part) => Ok(text.text.contains(&*part.text)),
            _ => Err(unsupported("in", item, whole)),
        },
        Value::Dict(items) => Ok(items.contains_key(&key(item.clone())?)),
        _ => Ok(whole.items()?.iter().any(|other| equal(other, item))),
    }
}

/// `value[index]` of the value itself; `None` where Python raises an error that Jinja forgives.
pub fn item(value: &Value, index: &Value) -> Result<Option<Value>, Error> {
    let at = |length: usize| {
        let index = index.as_int()?;
        let index = if index < 0 { index + length as i128 } else { index };
        usize::try_from(index).ok().filter(|index| *index < length)
    };
    Ok(match value {
        Value::Undefined(name) => return Err(is_undefined(name)),
        Value::Str(text) => {
            let c = match index.as_int() {
                Some(_) if text.text.is_ascii() => at(text.text.len()).map(|at| &text.text[at..=at]),
                Some(index) if index >= 0 => {
                    let mut chars = text.text.char_indices();
                    let found = usize::try_from(index).ok().and_then(|index| chars.nth(index));
                    found.map(|(at, c)| &text.text[at..at + c.len_utf8()])
                }
                Some(index) => {
                    let back = usize::try_from(-index - 1).ok();
                    let found = back.and_then(|back| text.text.char_indices().nth_back(back));
                    found.map(|(at, c)| &text.text[at..at + c.len_utf8()])
                }
                None => None,
            };
            c.map(Value::str)
        }
        Value::List(items) => at(items.len()).map(|at| items[at].clone()),
        Value::Tuple(tuple) => at(tuple.items.len()).map(|at| tuple.items[at].clone()),
        Value::Range(range) => at(range.len()).map(|at| Value::Int(range.start + range.step * at as i128)),
        Value::Dict(items) => get(items, index),
        _ => None,
    })
}

pub fn get(items: &Dict, index: &Value) -> Option<Value> {
    match index {
        Value::Str(name) => lookup(items, &name.text).cloned(),
        index => items.get(&key(index.clone()).ok()?).cloned(),
    }
}

/// `value[start:stop:step]`.
pub fn slice(value: &Value, [start, stop, step]: [Option<Value>; 3]) -> Result<Value, Error> {
    if let Value::Undefined(name) = value {
        return Err(is_undefined(name));
    }
    let mut bounds = [None; 3];
    for (bound, given) in bounds.iter_mut().zip([start, stop, step]) {
        match given {
            None | Some(Value::None) => {}
            Some(given) => match given.as_int() {
                Some(number) => *bound = Some(number),
                None => return Err(Error::new(Trouble::Type, "the bound of a slice is no integer")),
            },
        }
    }
    let pick = |length: usize| -> Result<(i128, i128, i128), Error> {
        let (length, step) = (length as i128, bounds[2].unwrap_or(1));
        if step == 0 {
            return Err(Error::new(Trouble::Other, "the step of a slice is zero"));
        }
        let (low, high) = if step > 0 { (0, length) } else { (-1, length - 1) };
        let clamp = |bound: i128| (if bound < 0 { bound + length } else { bound }).clamp(low, high);
        let start = bounds[0].map_or(if step > 0 { low } else { high }, clamp);
        let stop = bounds[1].map_or(if step > 0 { high } else { low }, clamp);
        Ok((start, stop, step))
    };
    let indices = |length: usize| -> Result<Vec<usize>, Error> {
        let (start, stop, step) = pick(length)?;
        let mut at = start;
        let mut indices = Vec::new();
        while if step > 0 { at < stop } else { at > stop } {
            indices.push(at as usize);
            at = at.saturating_add(step);
        }
        Ok(indices)
    };
    Ok(match value {
        Value::Str(text) => {
            let sliced: String = if text.text.is_ascii() {
                let (start, stop, step) = pick(text.text.len())?;
                if step == 1 {
                    text.text[start as usize..stop.max(start) as usize].to_owned()
                } else {
                    indices(text.text.len())?
                        .into_iter()
                        .map(|at| char::from(text.text.as_bytes()[at]))
                        .collect()
                }
            } else {
                let chars: Vec<char> = text.text.chars().collect();
                indices(chars.len())?.into_iter().map(|at| chars[at]).collect()
            };
            Value::Str(Text { text: sliced.into(), safe: text.safe })
        }
        Value::List(items) => {
            if bounds.iter().all(Option::is_none) {
                return Ok(Value::List(Rc::clone(items)));
            }
            Value::list(indices(items.len())?.into_iter().map(|at| items[at].clone()).collect())
        }
        Value::Tuple(tuple) => {
            Value::tuple(indices(tuple.items.len())?.into_iter().map(|at| tuple.items[at].clone()).collect())
        }
        Value::Range(range) => {
            let picked =
                indices(range.len())?.into_iter().map(|at| Value::Int(range.start + range.step * at as i128));
            Value::list(picked.collect())
        }
        _ => return Err(Error::new(Trouble::Type, format!("'{}' has no slices", value.kind()))),
    })
}
