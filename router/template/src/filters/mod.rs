//! Jinja2's filters and tests (`predicates`), and the `tojson` of transformers. Those that print something random, an address or a
//! web page's markup are not known: no chat template can want them.

mod attributes;
mod items;
pub mod predicates;
mod texts;

use std::cmp::Ordering;

use crate::arguments::Given;
use crate::ast::Binary;
use crate::budget::{Budget, too_large};
use crate::format::percent;
use crate::methods::{call as call_method, pairs, replace, strip};
use crate::operators::{binary, escaped, join};
use crate::text::capitalize;
use crate::value::{Dict, Text, Value, compare, is_undefined, key, sorted};
use crate::{Error, ErrorKind};

pub use attributes::{attribute, subscript};
use attributes::{own_attribute, path};
use items::{groupby, keyed, map, parts, select};
use texts::{indent, int, parse_float, round, title, tojson, truncate, urlencode};

fn type_error(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::Type, reason)
}

fn is_set(value: Option<&Value>) -> bool {
    value.is_some_and(Value::is_true)
}

fn integer(value: Option<Value>, default: i128) -> Result<i128, Error> {
    match value {
        None => Ok(default),
        Some(value) => value.as_int().ok_or_else(|| type_error(format!("'{}' is no integer", value.kind()))),
    }
}

/// A number of characters or items: none for one below zero.
fn count_of(value: &Value) -> Result<usize, Error> {
    let count = value.as_int().ok_or_else(|| type_error(format!("'{}' is no integer", value.kind())))?;
    Ok(usize::try_from(count.max(0)).unwrap_or(usize::MAX))
}

/// What two values are compared by where case does not count.
fn folded(value: Value, case_sensitive: bool, budget: &Budget) -> Result<Value, Error> {
    match &value {
        Value::Str(text) if !case_sensitive => {
            budget.make(text.text.len())?;
            Ok(Value::str(text.text.to_lowercase()))
        }
        _ => Ok(value),
    }
}

fn sorted_by_keys<T>(
    items: Vec<(Value, T)>,
    reverse: bool,
    budget: &Budget,
) -> Result<Vec<(Value, T)>, Error> {
    let first = if reverse { Ordering::Greater } else { Ordering::Less };
    sorted(items, &mut |a, b| Ok(compare(&a.0, &b.0, budget)? == Some(first)))
}

pub fn apply(name: &str, value: Value, given: &Given, budget: &Budget) -> Result<Value, Error> {
    // `map` applies the filter that it is given, which may be `map`.
    budget.deeper(|| budget.holding(given.len(), || apply_one(name, value, given, budget)))
}

fn apply_one(name: &str, value: Value, given: &Given, budget: &Budget) -> Result<Value, Error> {
    budget.read(value.as_str().unwrap_or_default())?;
    given.read(budget)?;
    let text = || value.to_str(budget);
    let made = |text: String| Ok(Value::str(text));
    match name {
        "tojson" => tojson(&value, given, budget),
        "trim" => {
            let [chars] = given.bind(["chars"])?;
            let chars = match chars {
                None | Some(Value::None) => None,
                Some(Value::Str(chars)) => Some(chars.text),
                Some(other) => return Err(type_error(format!("'{}' is no text", other.kind()))),
            };
            budget.step(chars.as_ref().map_or(0, |chars| chars.len()))?;
            made(strip(&text()?, "strip", chars.as_deref()).to_owned())
        }
        "length" | "count" => {
            given.bind([])?;
            let length =
                value.len(budget)?.ok_or_else(|| type_error(format!("'{}' has no length", value.kind())))?;
            Ok(Value::Int(length as i128))
        }
        "default" | "d" => {
            let [default, boolean] = given.bind(["default_value", "boolean"])?;
            if value.is_undefined() || (is_set(boolean.as_ref()) && !value.is_true()) {
                return Ok(default.unwrap_or_else(|| Value::str("")));
            }
            Ok(value)
        }
        "string" => {
            given.bind([])?;
            Ok(if value.as_str().is_some() { value } else { Value::str(text()?) })
        }
        "list" => {
            given.bind([])?;
            Value::list(value.items(budget)?, budget)
        }
        "items" => {
            given.bind([])?;
            match &value {
                Value::Undefined(_) => Value::iterator(Vec::new(), budget),
                Value::Dict(items) => Value::iterator(pairs(items, budget)?, budget),
                other => Err(type_error(format!("'{}' is no mapping", other.kind()))),
            }
        }
        "upper" | "lower" | "capitalize" => {
            given.bind([])?;
            let text = text()?;
            made(match name {
                "upper" => text.to_uppercase(),
                "lower" => text.to_lowercase(),
                _ => capitalize(&text),
            })
        }
        "title" => {
            given.bind([])?;
            made(title(&text()?))
        }
        "replace" => {
            let [old, new, count] = given.bind(["old", "new", "count"])?;
            let (Some(old), Some(new)) = (old, new) else { return Err(type_error("an argument is missing")) };
            let count = match count {
                None | Some(Value::None) => usize::MAX,
                Some(count) => usize::try_from(integer(Some(count), 0)?).unwrap_or(usize::MAX),
            };
            made(replace(&text()?, &old.to_str(budget)?, &new.to_str(budget)?, count, budget)?)
        }
        "join" => {
            let [separator, attribute] = given.bind(["d", "attribute"])?;
            let mut items = value.items(budget)?;
            if let Some(attribute) = attribute.filter(|attribute| !attribute.is_none()) {
                items = items
                    .iter()
                    .map(|item| path(&attribute, item, None, budget))
                    .collect::<Result<_, _>>()?;
            }
            let separator = separator.map_or(Ok("".into()), |separator| separator.to_str(budget))?;
            join(&items, &separator, budget)
        }
        "first" => {
            given.bind([])?;
            let first = match &value {
                Value::Iterator(iterator) => iterator.rest.borrow_mut().next(),
                Value::List(items) => items.first().cloned(),
                Value::Tuple(tuple) => tuple.items.first().cloned(),
                Value::View(view) => view.items.first().cloned(),
                Value::Dict(items) => items.first().map(|(key, _)| key.0.clone()),
                Value::Str(text) => {
                    text.text.chars().next().map(|c| Value::str(&*c.encode_utf8(&mut [0; 4])))
                }
                other => other.items(budget)?.into_iter().next(),
            };
            Ok(first.unwrap_or_else(|| Value::undefined("first")))
        }
        "last" => {
            given.bind([])?;
            let last = match &value {
                Value::List(items) => items.last().cloned(),
                Value::Tuple(tuple) => tuple.items.last().cloned(),
                Value::View(view) => view.items.last().cloned(),
                Value::Dict(items) => items.last().map(|(key, _)| key.0.clone()),
                Value::Str(text) => {
                    text.text.chars().next_back().map(|c| Value::str(&*c.encode_utf8(&mut [0; 4])))
                }
                Value::Iterator(_) => return Err(type_error("a generator cannot be read backwards")),
                other => other.items(budget)?.pop(),
            };
            Ok(last.unwrap_or_else(|| Value::undefined("last")))
        }
        "reverse" => {
            given.bind([])?;
            if let Value::Str(text) = &value {
                budget.read(&text.text)?;
                return made(text.text.chars().rev().collect());
            }
            let mut items = value.items(budget)?;
            items.reverse();
            Value::iterator(items, budget)
        }
        "sort" => {
            let [reverse, case_sensitive, attribute] =
                given.bind(["reverse", "case_sensitive", "attribute"])?;
            let case_sensitive = is_set(case_sensitive.as_ref());
            let items = keyed(value.items(budget)?, attribute.as_ref(), case_sensitive, true, budget)?;
            let items = sorted_by_keys(items, is_set(reverse.as_ref()), budget)?;
            Value::list(items.into_iter().map(|(_, item)| item).collect(), budget)
        }
        "unique" => {
            let [case_sensitive, attribute] = given.bind(["case_sensitive", "attribute"])?;
            let mut seen = Dict::new();
            let mut unique = Vec::new();
            for (of, item) in keyed(
                value.items(budget)?,
                attribute.as_ref(),
                is_set(case_sensitive.as_ref()),
                false,
                budget,
            )? {
                if seen.insert(key(of, budget)?, Value::None).is_none() {
                    unique.push(item);
                }
            }
            Value::iterator(unique, budget)
        }
        "min" | "max" => {
            let [case_sensitive, attribute] = given.bind(["case_sensitive", "attribute"])?;
            let mut best: Option<(Value, Value)> = None;
            for (of, item) in keyed(
                value.items(budget)?,
                attribute.as_ref(),
                is_set(case_sensitive.as_ref()),
                false,
                budget,
            )? {
                let wanted = if name == "min" { Ordering::Less } else { Ordering::Greater };
                let better = match &best {
                    None => true,
                    Some((best, _)) => compare(&of, best, budget)? == Some(wanted),
                };
                if better {
                    best = Some((of, item));
                }
            }
            Ok(best.map_or_else(|| Value::undefined(name), |(_, item)| item))
        }
        "dictsort" => {
            let [case_sensitive, by, reverse] = given.bind(["case_sensitive", "by", "reverse"])?;
            let by = match by.as_ref().and_then(Value::as_str) {
                None | Some("key") => 0,
                Some("value") => 1,
                Some(_) => return Err(type_error("`by` is `key` or `value`")),
            };
            let Value::Dict(entries) = &value else { return Err(type_error("it is no mapping")) };
            let case_sensitive = is_set(case_sensitive.as_ref());
            let mut items = Vec::with_capacity(entries.len());
            for (key, item) in entries.iter() {
                let of = if by == 0 { key.0.clone() } else { item.clone() };
                let pair = Value::tuple(vec![key.0.clone(), item.clone()], budget)?;
                items.push((folded(of, case_sensitive, budget)?, pair));
            }
            let items = sorted_by_keys(items, is_set(reverse.as_ref()), budget)?;
            Value::list(items.into_iter().map(|(_, item)| item).collect(), budget)
        }
        "groupby" => groupby(&value, given, budget),
        "map" => map(&value, given, budget),
        "select" | "reject" => select(&value, given, None, name == "select", budget),
        "selectattr" | "rejectattr" => {
            if given.positional.is_empty() {
                return Err(type_error("the name of an attribute is missing"));
            }
            let (attribute, rest) = given.without_first(budget)?;
            select(&value, &rest, Some(&attribute), name == "selectattr", budget)
        }
        "batch" | "slice" => parts(name, &value, given, budget),
        "sum" => {
            let [attribute, start] = given.bind(["attribute", "start"])?;
            let mut total = start.unwrap_or(Value::Int(0));
            for item in value.items(budget)? {
                budget.step(1)?;
                let item = match attribute.as_ref().filter(|attribute| !attribute.is_none()) {
                    Some(attribute) => path(attribute, &item, None, budget)?,
                    None => item,
                };
                total = binary(Binary::Add, &total, &item, budget)?;
                // A sum of texts makes each one on its way.
                budget.make(total.as_str().map_or(0, str::len))?;
            }
            Ok(total)
        }
        "abs" => {
            given.bind([])?;
            match (value.as_int(), value.as_number()) {
                (Some(number), _) => number.checked_abs().map(Value::Int).ok_or_else(too_large),
                (_, Some(number)) => Ok(Value::Float(number.abs())),
                _ => Err(type_error(format!("'{}' is no number", value.kind()))),
            }
        }
        "int" => {
            let [default, base] = given.bind(["default", "base"])?;
            let base = integer(base, 10)?;
            Ok(int(&value, base)?.or(default).unwrap_or(Value::Int(0)))
        }
        "float" => {
            let [default] = given.bind(["default"])?;
            if let Value::Undefined(name) = &value {
                return Err(is_undefined(name));
            }
            let number = match &value {
                Value::Str(text) => parse_float(&text.text),
                other => other.as_number(),
            };
            Ok(number.map(Value::Float).or(default).unwrap_or(Value::Float(0.0)))
        }
        "round" => round(&value, given, budget),
        "format" => {
            if !given.positional.is_empty() && !given.named.is_empty() {
                return Err(type_error("positional and named arguments together"));
            }
            let arguments = if given.named.is_empty() {
                Value::tuple(given.positional.clone(), budget)?
            } else {
                Value::dict(
                    given
                        .named
                        .iter()
                        .map(|(name, value)| (super::value::Key(Value::str(name.clone())), value.clone()))
                        .collect(),
                    budget,
                )?
            };
            made(percent(&text()?, &arguments, budget)?)
        }
        "center" => {
            let [width] = given.bind(["width"])?;
            let given = Given { positional: vec![width.unwrap_or(Value::Int(80))], named: Vec::new() };
            call_method(&Value::str(text()?), "center", &given, budget)
        }
        "indent" => indent(&value, given, budget),
        "truncate" => truncate(&text()?, given, budget),
        "wordcount" => {
            static WORD: std::sync::LazyLock<regex::Regex> =
                std::sync::LazyLock::new(|| regex::Regex::new(r"\w+").expect("the pattern is valid"));
            Ok(Value::Int(WORD.find_iter(&text()?).count() as i128))
        }
        "safe" => Ok(Value::Str(Text { text: text()?, safe: true })),
        "escape" | "e" => Ok(Value::Str(Text { text: escaped(&value, budget)?, safe: true })),
        "forceescape" => Ok(Value::Str(Text { text: escaped(&Value::str(text()?), budget)?, safe: true })),
        "attr" => {
            let [name] = given.bind(["name"])?;
            let name = name.ok_or_else(|| type_error("a name is missing"))?.to_str(budget)?;
            if let Value::Undefined(of) = &value {
                return Err(is_undefined(of));
            }
            Ok(own_attribute(&value, &name).unwrap_or(Value::Undefined(name)))
        }
        "pprint" => made(value.repr(budget)?),
        "urlencode" => {
            given.bind([])?;
            urlencode(&value, budget)
        }
        _ => Err(Error::new(ErrorKind::Unknown, format!("the filter `{name}`"))),
    }
}

/// Whether there is a filter of this name, for the test `is filter`.
pub fn is_known(name: &str, budget: &Budget) -> bool {
    !matches!(apply(name, Value::undefined(""), &Given::default(), budget), Err(error) if error.kind == ErrorKind::Unknown)
}
