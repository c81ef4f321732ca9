//! Filters that read or write a number or a text.

use std::sync::Arc;

use super::{count_of, integer, is_set, type_error};
use crate::arguments::Given;
use crate::budget::{Budget, too_large};
use crate::methods::pairs;
use crate::text::{self, split_lines};
use crate::value::{JsonStyle, Value, is_undefined};
use crate::{Error, ErrorKind};

pub(super) fn tojson(value: &Value, given: &Given, budget: &Budget) -> Result<Value, Error> {
    let [ensure_ascii, indent, separators, sort_keys] =
        given.bind(["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let not_none = |value: Option<Value>| value.filter(|value| !value.is_none());
    let indent = match not_none(indent) {
        None => None,
        Some(Value::Str(text)) => Some(text.text.to_string()),
        Some(width) => Some(budget.repeat(" ", count_of(&width)?)?),
    };
    let (between_items, after_key): (Arc<str>, Arc<str>) = match not_none(separators) {
        Some(pair) => match &pair.items(budget)?[..] {
            [Value::Str(a), Value::Str(b)] => (a.text.clone(), b.text.clone()),
            _ => return Err(type_error("`separators` are two strings")),
        },
        None if indent.is_some() => (",".into(), ": ".into()),
        None => (", ".into(), ": ".into()),
    };
    let style = JsonStyle {
        ensure_ascii: is_set(ensure_ascii.as_ref()),
        indent,
        between_items,
        after_key,
        sort_keys: is_set(sort_keys.as_ref()),
    };
    Ok(Value::str(style.dumps(value, budget)?))
}

/// `int(value)` where it works.
pub(super) fn int(value: &Value, base: i128) -> Result<Option<Value>, Error> {
    let truncated = |number: f64| match number {
        number if !number.is_finite() => Ok(None),
        number if number.abs() < 1e38 => Ok(Some(Value::Int(number.trunc() as i128))),
        _ => Err(too_large()),
    };
    Ok(match value {
        Value::Undefined(name) => return Err(is_undefined(name)),
        Value::Str(text) => {
            let plain = text::trim(&text.text);
            let (negative, digits) = match plain.strip_prefix('-') {
                Some(digits) => (true, digits),
                None => (false, plain.strip_prefix('+').unwrap_or(plain)),
            };
            let lower = digits.to_ascii_lowercase();
            let digits = match base {
                16 => lower.strip_prefix("0x").unwrap_or(&lower),
                8 => lower.strip_prefix("0o").unwrap_or(&lower),
                2 => lower.strip_prefix("0b").unwrap_or(&lower),
                _ => &lower,
            };
            let valid = !digits.starts_with('_') && !digits.ends_with('_') && !digits.contains("__");
            let digits: String = digits.chars().filter(|c| *c != '_').collect();
            let radix = u32::try_from(base).ok().filter(|base| (2..=36).contains(base)).unwrap_or(10);
            let number = if valid && !digits.starts_with(['+', '-']) {
                match i128::from_str_radix(&digits, radix) {
                    Err(error) if *error.kind() == std::num::IntErrorKind::PosOverflow => {
                        return Err(too_large());
                    }
                    number => number.ok(),
                }
            } else {
                None
            };
            match number {
                Some(number) => Some(Value::Int(if negative { -number } else { number })),
                None => parse_float(&text.text).map_or(Ok(None), truncated)?,
            }
        }
        Value::Float(number) => truncated(*number)?,
        other => other.as_int().map(Value::Int),
    })
}

/// `float(text)`.
pub(super) fn parse_float(text: &str) -> Option<f64> {
    let text = text::trim(text);
    let valid = !text.starts_with('_') && !text.ends_with('_') && !text.contains("__");
    let text: String = text.chars().filter(|c| *c != '_').collect();
    if valid { text.parse().ok() } else { None }
}

pub(super) fn round(value: &Value, given: &Given, budget: &Budget) -> Result<Value, Error> {
    let [precision, method] = given.bind(["precision", "method"])?;
    let precision = integer(precision, 0)?.clamp(-300, 300) as i32;
    let method = method.map_or(Ok("common".into()), |method| method.to_str(budget))?;
    let number = value.as_number().ok_or_else(|| type_error(format!("'{}' is no number", value.kind())))?;
    let scale = 10f64.powi(precision);
    Ok(match &*method {
        "common" => match value.as_int() {
            Some(whole) if precision >= 0 => Value::Int(whole),
            // To even where it is half way, by its decimal digits, as Python rounds.
            Some(_) => Value::Int(((number * scale).round_ties_even() / scale) as i128),
            None if precision >= 0 => {
                let digits = format!("{number:.*}", precision as usize);
                Value::Float(digits.parse().unwrap_or(number))
            }
            None => Value::Float((number * scale).round_ties_even() / scale),
        },
        "ceil" => Value::Float((number * scale).ceil() / scale),
        "floor" => Value::Float((number * scale).floor() / scale),
        _ => return Err(Error::new(ErrorKind::Other, "`method` is `common`, `ceil` or `floor`")),
    })
}

pub(super) fn indent(value: &Value, given: &Given, budget: &Budget) -> Result<Value, Error> {
    let [width, first, blank] = given.bind(["width", "first", "blank"])?;
    let indention: String = match width {
        None => " ".repeat(4),
        Some(Value::Str(text)) => text.text.to_string(),
        Some(width) => budget.repeat(" ", count_of(&width)?)?,
    };
    let Some(text) = value.as_str() else { return Err(type_error(format!("'{}' is no text", value.kind()))) };
    budget.fits(text.len())?;
    budget.read(text)?;
    let text = format!("{text}\n");
    let mut out = if is_set(first.as_ref()) { indention.clone() } else { String::new() };
    for (at, line) in split_lines(&text, false)?.into_iter().enumerate() {
        if at > 0 {
            out.push('\n');
            if !line.is_empty() || is_set(blank.as_ref()) {
                budget.push(&mut out, &indention)?;
            }
        }
        budget.push(&mut out, line)?;
    }
    Ok(Value::str(out))
}

pub(super) fn truncate(text: &str, given: &Given, budget: &Budget) -> Result<Value, Error> {
    let [length, kill_words, end, leeway] = given.bind(["length", "killwords", "end", "leeway"])?;
    let end = end.map_or(Ok("...".into()), |end| end.to_str(budget))?;
    let end_length = end.chars().count() as i128;
    let length = integer(length, 255)?;
    let leeway = integer(leeway.filter(|leeway| !leeway.is_none()), 5)?;
    if length < end_length || leeway < 0 {
        return Err(Error::new(ErrorKind::Other, "the length is not valid"));
    }
    if text.chars().count() as i128 <= length.saturating_add(leeway) {
        return Ok(Value::str(text));
    }
    let mut kept: String = text.chars().take((length - end_length) as usize).collect();
    if !is_set(kill_words.as_ref())
        && let Some(space) = kept.rfind(' ')
    {
        kept.truncate(space);
    }
    Ok(Value::str(kept + &end))
}

/// The filter's, which differs from the method: words begin after blanks, dashes and brackets only.
pub(super) fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut begins = true;
    for c in text.chars() {
        let separates = text::is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
        if separates {
            out.push(c);
        } else if begins {
            out.extend(c.to_uppercase());
        } else {
            out.extend(c.to_lowercase());
        }
        begins = separates;
    }
    out
}

pub(super) fn urlencode(value: &Value, budget: &Budget) -> Result<Value, Error> {
    let quoted = |text: &str, kept: &str| -> Result<String, Error> {
        budget.read(text)?;
        let mut out = String::new();
        for byte in text.bytes() {
            if byte.is_ascii_alphanumeric() || b"_.-~".contains(&byte) || kept.as_bytes().contains(&byte) {
                out.push(char::from(byte));
            } else {
                budget.fits(out.len())?;
                out.push_str(&format!("%{byte:02X}"));
            }
        }
        Ok(out)
    };
    let pairs = match value {
        Value::Dict(items) => pairs(items, budget)?,
        Value::List(items) => items.to_vec(),
        other => return Ok(Value::str(quoted(&other.to_str(budget)?, "/")?)),
    };
    let mut out = String::new();
    for (at, pair) in pairs.into_iter().enumerate() {
        match &pair.items(budget)?[..] {
            [name, value] => {
                budget.push(&mut out, if at > 0 { "&" } else { "" })?;
                let plus = |value: &Value| -> Result<String, Error> {
                    Ok(quoted(&value.to_str(budget)?, " ")?.replace(' ', "+"))
                };
                budget.push(&mut out, &plus(name)?)?;
                budget.push(&mut out, "=")?;
                budget.push(&mut out, &plus(value)?)?;
            }
            _ => return Err(type_error("pairs are expected")),
        }
    }
    Ok(Value::str(out))
}
