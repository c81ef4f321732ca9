//! Values as keys of dicts: which of them are the same key, and which can be none.

use std::hash::{Hash, Hasher};
use std::rc::{Rc, Weak};

use indexmap::Equivalent;

use super::{Callable, Dict, Value};
use crate::budget::Budget;
use crate::{Error, ErrorKind};

/// Elements of a tuple that is a key, with those of tuples in it: a key is hashed and compared uncounted.
const MAX_KEY: usize = 1000;

/// A value as the key of a dict: numbers that are equal are the same key.
#[derive(Clone)]
pub struct Key(pub Value);

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        hash(&self.0, state);
    }
}

/// Values that are equal have the same hash; few others may, or a dict of them takes quadratic time.
fn hash<H: Hasher>(value: &Value, state: &mut H) {
    match value {
        Value::Str(text) => text.text.hash(state),
        Value::Bool(value) => i128::from(*value).hash(state),
        Value::Int(number) => number.hash(state),
        Value::Float(number) => match *number as i128 {
            whole if whole as f64 == *number && whole != i128::MAX => whole.hash(state),
            _ => number.to_bits().hash(state),
        },
        Value::Tuple(tuple) => {
            tuple.items.len().hash(state);
            tuple.items.iter().for_each(|item| hash(item, state));
        }
        Value::Range(range) => range.same().hash(state),
        Value::Namespace(names) => names.as_ptr().hash(state),
        Value::Loop(of) => Rc::as_ptr(of).hash(state),
        Value::Iterator(rest) => Rc::as_ptr(rest).hash(state),
        Value::Callable(callable) => match &**callable {
            Callable::Global(of) => of.hash(state),
            _ => Rc::as_ptr(callable).hash(state),
        },
        // None and undefined ones, each equal to its like; the others are no keys.
        _ => 0.hash(state),
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        fn same(a: &Value, b: &Value) -> bool {
            match (a, b) {
                (Value::Tuple(a), Value::Tuple(b)) => {
                    a.items.len() == b.items.len()
                        && a.items.iter().zip(b.items.iter()).all(|(a, b)| same(a, b))
                }
                _ => is_same_leaf(a, b),
            }
        }
        same(&self.0, &other.0)
    }
}

impl Eq for Key {}

/// `==` of values that hold no others.
pub(super) fn is_same_leaf(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
        (Value::Str(a), Value::Str(b)) => a.text == b.text,
        (Value::Range(a), Value::Range(b)) => a.same() == b.same(),
        (Value::Namespace(a), Value::Namespace(b)) => Weak::ptr_eq(a, b),
        (Value::Loop(a), Value::Loop(b)) => Rc::ptr_eq(a, b),
        (Value::Iterator(a), Value::Iterator(b)) => Rc::ptr_eq(a, b),
        (Value::Callable(a), Value::Callable(b)) => match (&**a, &**b) {
            (Callable::Global(a), Callable::Global(b)) => a == b,
            _ => Rc::ptr_eq(a, b),
        },
        _ => match (a.as_int(), b.as_int()) {
            (Some(a), Some(b)) => a == b,
            _ => matches!((a.as_number(), b.as_number()), (Some(a), Some(b)) if a == b),
        },
    }
}

/// For looking a string up without making a value of it.
#[derive(Hash)]
struct Name<'a>(&'a str);

impl Equivalent<Key> for Name<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        matches!(&key.0, Value::Str(text) if &*text.text == self.0)
    }
}

pub fn lookup<'d>(dict: &'d Dict, name: &str) -> Option<&'d Value> {
    dict.get(&Name(name))
}

/// A value as a key, if Python can hash it. Whoever looks one up has counted it here.
pub fn key(value: Value, budget: &Budget) -> Result<Key, Error> {
    count_key(&value, budget)?;
    Ok(Key(value))
}

pub(super) fn count_key(value: &Value, budget: &Budget) -> Result<(), Error> {
    fn visit(value: &Value, left: &mut usize, budget: &Budget) -> Result<(), Error> {
        budget.step(1)?;
        *left = left.checked_sub(1).ok_or_else(|| Error::new(ErrorKind::Size, "a key is too large"))?;
        match value {
            Value::Str(text) => budget.read(&text.text),
            Value::Tuple(tuple) => tuple.items.iter().try_for_each(|item| visit(item, left, budget)),
            Value::List(_) | Value::Dict(_) | Value::View(_) => {
                Err(Error::new(ErrorKind::Type, format!("'{}' cannot be a key", value.kind())))
            }
            // Equal to nothing, so that a dict could hold any number of it in one place.
            Value::Float(number) if number.is_nan() => {
                Err(Error::new(ErrorKind::Other, "not-a-number cannot be a key"))
            }
            _ => Ok(()),
        }
    }
    let mut left = MAX_KEY;
    visit(value, &mut left, budget)
}
