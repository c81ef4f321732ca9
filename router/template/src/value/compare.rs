//! Python's `==`, `in`, `<` and `sorted`. Every element that is visited is a step: what is shared may be visited very often.

use std::cmp::Ordering;
use std::rc::Rc;

use super::key::{count_key, is_same_leaf};
use super::{Value, is_undefined};
use crate::budget::Budget;
use crate::{Error, ErrorKind};

/// Python's `==`. Every element that is visited is a step: what is shared may be visited very often.
pub fn equal(a: &Value, b: &Value, budget: &Budget) -> Result<bool, Error> {
    budget.step(1)?;
    let lists = |a: &[Value], b: &[Value]| -> Result<bool, Error> {
        if a.len() != b.len() {
            return Ok(false);
        }
        if std::ptr::eq(a, b) {
            return Ok(true);
        }
        for (a, b) in a.iter().zip(b) {
            if !equal(a, b, budget)? {
                return Ok(false);
            }
        }
        Ok(true)
    };
    match (a, b) {
        (Value::Str(a), Value::Str(b)) => {
            budget.read(if a.text.len() == b.text.len() { &a.text } else { "" })?;
            Ok(a.text == b.text)
        }
        (Value::List(a), Value::List(b)) => lists(a, b),
        (Value::Tuple(a), Value::Tuple(b)) => lists(&a.items, &b.items),
        (Value::Dict(a), Value::Dict(b)) => {
            if a.len() != b.len() {
                return Ok(false);
            }
            if Rc::ptr_eq(a, b) {
                return Ok(true);
            }
            for (name, value) in a.iter() {
                count_key(&name.0, budget)?;
                match b.get(name) {
                    Some(other) if equal(value, other, budget)? => {}
                    _ => return Ok(false),
                }
            }
            Ok(true)
        }
        (Value::View(a), Value::View(b)) => {
            // Keys and items are sets; values are equal to themselves only.
            if a.name != b.name || a.name == "dict_values" || a.items.len() != b.items.len() {
                return Ok(false);
            }
            for item in a.items.iter() {
                if !holds(&b.items, item, budget)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        _ => Ok(is_same_leaf(a, b)),
    }
}

/// Whether one of the items is equal to the value.
pub fn holds(items: &[Value], value: &Value, budget: &Budget) -> Result<bool, Error> {
    for item in items {
        if equal(item, value, budget)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Python's `<` and alike. An error for values that have no order.
pub fn compare(a: &Value, b: &Value, budget: &Budget) -> Result<Option<Ordering>, Error> {
    budget.step(1)?;
    let lists = |a: &[Value], b: &[Value]| -> Result<Option<Ordering>, Error> {
        for (a, b) in a.iter().zip(b) {
            if !equal(a, b, budget)? {
                return compare(a, b, budget);
            }
        }
        Ok(Some(a.len().cmp(&b.len())))
    };
    match (a, b) {
        (Value::Undefined(name), _) | (_, Value::Undefined(name)) => Err(is_undefined(name)),
        (Value::Str(a), Value::Str(b)) => {
            budget.read(if a.text.len() < b.text.len() { &a.text } else { &b.text })?;
            Ok(Some(a.text.cmp(&b.text)))
        }
        (Value::List(a), Value::List(b)) => lists(a, b),
        (Value::Tuple(a), Value::Tuple(b)) => lists(&a.items, &b.items),
        _ => match (a.as_int(), b.as_int(), a.as_number(), b.as_number()) {
            (Some(a), Some(b), ..) => Ok(Some(a.cmp(&b))),
            (_, _, Some(a), Some(b)) => Ok(a.partial_cmp(&b)),
            _ => Err(Error::new(ErrorKind::Type, format!("'{}' and '{}' have no order", a.kind(), b.kind()))),
        },
    }
}

/// Stable, like Python's, and asking only whether one goes before another. The first error ends it; an order
/// that contradicts itself (not-a-number has none) gives some order.
pub fn sorted<T>(
    mut items: Vec<T>,
    before: &mut dyn FnMut(&T, &T) -> Result<bool, Error>,
) -> Result<Vec<T>, Error> {
    if items.len() < 2 {
        return Ok(items);
    }
    let right = items.split_off(items.len() / 2);
    let mut sorted_items = Vec::with_capacity(items.len() + right.len());
    let mut left = sorted(items, before)?.into_iter().peekable();
    let mut right = sorted(right, before)?.into_iter().peekable();
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        sorted_items.extend(if before(b, a)? { right.next() } else { left.next() });
    }
    sorted_items.extend(left);
    sorted_items.extend(right);
    Ok(sorted_items)
}
