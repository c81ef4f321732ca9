//! Python's subscripts. What they make is counted by the caller, by length.

use std::rc::Rc;

use super::budget::Budget;
use super::value::{Dict, Text, Value, is_undefined, key, lookup};
use super::{Error, ErrorKind};

/// `value[index]` of the value itself; `None` where Python raises an error that Jinja forgives.
pub fn item(value: &Value, index: &Value, budget: &Budget) -> Result<Option<Value>, Error> {
    let at = |length: usize| {
        let index = index.as_int()?;
        let index = if index < 0 { index + length as i128 } else { index };
        usize::try_from(index).ok().filter(|index| *index < length)
    };
    Ok(match value {
        Value::Undefined(name) => return Err(is_undefined(name)),
        Value::Str(text) => {
            budget.read(&text.text)?;
            let c = match index.as_int() {
                Some(_) if text.text.is_ascii() => at(text.text.len()).map(|at| &text.text[at..=at]),
                Some(index) if index >= 0 => {
                    let mut chars = text.text.char_indices();
                    let found = usize::try_from(index).ok().and_then(|index| chars.nth(index));
                    found.map(|(at, c)| &text.text[at..at + c.len_utf8()])
                }
                Some(index) => {
                    let back = usize::try_from(!index).ok();
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
        Value::Dict(items) => get(items, index, budget)?,
        _ => None,
    })
}

/// `None` for what is not there or can be no key.
pub fn get(items: &Dict, index: &Value, budget: &Budget) -> Result<Option<Value>, Error> {
    match index {
        Value::Str(name) => {
            budget.read(&name.text)?;
            Ok(lookup(items, &name.text).cloned())
        }
        index => match key(index.clone(), budget) {
            Ok(key) => Ok(items.get(&key).cloned()),
            Err(error) if matches!(error.kind, ErrorKind::Type | ErrorKind::Other) => Ok(None),
            Err(error) => Err(error),
        },
    }
}

/// `value[start:stop:step]`.
pub fn slice(
    value: &Value,
    [start, stop, step]: [Option<Value>; 3],
    budget: &Budget,
) -> Result<Value, Error> {
    if let Value::Undefined(name) = value {
        return Err(is_undefined(name));
    }
    let mut bounds = [None; 3];
    for (bound, given) in bounds.iter_mut().zip([start, stop, step]) {
        match given {
            None | Some(Value::None) => {}
            Some(given) => match given.as_int() {
                Some(number) => *bound = Some(number),
                None => return Err(Error::new(ErrorKind::Type, "the bound of a slice is no integer")),
            },
        }
    }
    let pick = |length: usize| -> Result<(i128, i128, i128), Error> {
        let (length, step) = (length as i128, bounds[2].unwrap_or(1));
        if step == 0 {
            return Err(Error::new(ErrorKind::Other, "the step of a slice is zero"));
        }
        let (low, high) = if step > 0 { (0, length) } else { (-1, length - 1) };
        let clamp = |bound: i128| (if bound < 0 { bound + length } else { bound }).clamp(low, high);
        let start = bounds[0].map_or(if step > 0 { low } else { high }, clamp);
        let stop = bounds[1].map_or(if step > 0 { high } else { low }, clamp);
        Ok((start, stop, step))
    };
    let indices = |length: usize| -> Result<_, Error> {
        let (start, stop, step) = pick(length)?;
        let distance = if step > 0 { stop - start } else { start - stop };
        let count = if distance > 0 { (distance - 1).unsigned_abs() / step.unsigned_abs() + 1 } else { 0 };
        Ok((0..count as i128).map(move |number| (start + number * step) as usize))
    };
    Ok(match value {
        Value::Str(text) => {
            budget.read(&text.text)?;
            let sliced: String = if text.text.is_ascii() {
                let (start, stop, step) = pick(text.text.len())?;
                if step == 1 {
                    text.text[start as usize..stop.max(start) as usize].to_owned()
                } else {
                    indices(text.text.len())?.map(|at| char::from(text.text.as_bytes()[at])).collect()
                }
            } else {
                let chars: Vec<char> = text.text.chars().collect();
                indices(chars.len())?.map(|at| chars[at]).collect()
            };
            Value::Str(Text { text: sliced.into(), safe: text.safe })
        }
        Value::List(items) => {
            if bounds.iter().all(Option::is_none) {
                return Ok(Value::List(Rc::clone(items)));
            }
            Value::list(indices(items.len())?.map(|at| items[at].clone()).collect(), budget)?
        }
        Value::Tuple(tuple) => {
            let picked = indices(tuple.items.len())?.map(|at| tuple.items[at].clone());
            Value::tuple(picked.collect(), budget)?
        }
        Value::Range(range) => {
            let picked = indices(range.len())?.map(|at| Value::Int(range.start + range.step * at as i128));
            Value::list(picked.collect(), budget)?
        }
        _ => return Err(Error::new(ErrorKind::Type, format!("'{}' has no slices", value.kind()))),
    })
}
