//! Jinja2's filters, and the `tojson` of transformers. Those that print something random, an address or a
//! web page's markup are not known: no chat template can want them.

use std::cmp::Ordering;
use std::rc::Rc;
use std::sync::Arc;

use super::ast::Binary;
use super::budget::{Budget, MAX_ITEMS, too_long};
use super::format::percent;
use super::methods::{Given, call as call_method, method_of, pairs, replace, strip};
use super::operators::{binary, escaped, item, join, too_large};
use super::predicates;
use super::text::{capitalize, split_lines};
use super::value::{Dict, Items, JsonStyle, Text, Tuple, Value, compare, equal, is_undefined, key, sorted};
use super::{Error, ErrorKind};

fn type_error(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::Type, reason)
}

/// `value.name`, as `eval` looks it up, for the filters that take the name of an attribute.
pub fn attribute(value: &Value, name: &Arc<str>, budget: &Budget) -> Result<Value, Error> {
    if let Value::Undefined(of) = value {
        return Err(is_undefined(of));
    }
    if let Some(found) = own_attribute(value, name) {
        return Ok(found);
    }
    Ok(item(value, &Value::Str(Text { text: name.clone(), safe: false }), budget)?
        .unwrap_or_else(|| Value::Undefined(name.clone())))
}

/// `value[index]`.
pub fn subscript(value: &Value, index: &Value, budget: &Budget) -> Result<Value, Error> {
    if let Some(found) = item(value, index, budget)? {
        return Ok(found);
    }
    let name: Arc<str> = match index {
        Value::Str(name) => name.text.clone(),
        other => return Ok(Value::undefined(other.repr(budget)?)),
    };
    Ok(own_attribute(value, &name).unwrap_or(Value::Undefined(name)))
}

/// What is no item: methods, and the names of namespaces and loops.
fn own_attribute(value: &Value, name: &Arc<str>) -> Option<Value> {
    match value {
        Value::Namespace(names) => super::value::lookup(&names.upgrade()?.borrow(), name).cloned(),
        Value::Loop(of) => of.attribute(name).or_else(|| method_of(value, name)),
        Value::Tuple(tuple) if tuple.is_group && &**name == "grouper" => Some(tuple.items[0].clone()),
        Value::Tuple(tuple) if tuple.is_group && &**name == "list" => Some(tuple.items[1].clone()),
        _ => method_of(value, name),
    }
}

/// An attribute as filters name it: `a.b.0`, or a number.
fn path(value: &Value, of: &Value, default: Option<&Value>, budget: &Budget) -> Result<Value, Error> {
    let mut found = of.clone();
    match value {
        Value::Str(path) => {
            for part in path.text.split('.') {
                budget.step(1)?;
                budget.read(part)?;
                let index = match part.parse::<i128>() {
                    Ok(number) if part.bytes().all(|byte| byte.is_ascii_digit()) => Value::Int(number),
                    _ => Value::str(part),
                };
                found = subscript(&found, &index, budget)?;
                if let (Value::Undefined(_), Some(default)) = (&found, default) {
                    found = default.clone();
                }
            }
        }
        index => {
            found = subscript(&found, index, budget)?;
            if let (Value::Undefined(_), Some(default)) = (&found, default) {
                found = default.clone();
            }
        }
    }
    Ok(found)
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

fn tojson(value: &Value, given: &Given, budget: &Budget) -> Result<Value, Error> {
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

/// Items with what they are compared by. `sort` knows several attributes, with commas between.
fn keyed(
    items: Vec<Value>,
    attribute: Option<&Value>,
    case_sensitive: bool,
    several: bool,
    budget: &Budget,
) -> Result<Vec<(Value, Value)>, Error> {
    let attribute = attribute.filter(|attribute| !attribute.is_none());
    let of = |item: &Value| -> Result<Value, Error> {
        match attribute {
            None => folded(item.clone(), case_sensitive, budget),
            Some(Value::Str(names)) if several => {
                let name =
                    |name: &str| folded(path(&Value::str(name), item, None, budget)?, case_sensitive, budget);
                Value::list(names.text.split(',').map(name).collect::<Result<_, _>>()?, budget)
            }
            Some(attribute) => folded(path(attribute, item, None, budget)?, case_sensitive, budget),
        }
    };
    items.into_iter().map(|item| Ok((of(&item)?, item))).collect()
}

fn groupby(value: &Value, given: &Given, budget: &Budget) -> Result<Value, Error> {
    let [attribute, default, case_sensitive] = given.bind(["attribute", "default", "case_sensitive"])?;
    let attribute = attribute.ok_or_else(|| type_error("`attribute` is missing"))?;
    let case_sensitive = is_set(case_sensitive.as_ref());
    let mut items = Vec::new();
    for item in value.items(budget)? {
        items.push((
            folded(path(&attribute, &item, default.as_ref(), budget)?, case_sensitive, budget)?,
            item,
        ));
    }
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for (of, item) in sorted_by_keys(items, false, budget)? {
        match groups.last_mut() {
            Some((last, members)) if equal(last, &of, budget)? => members.push(item),
            _ => groups.push((of, vec![item])),
        }
    }
    let mut list = Vec::new();
    for (of, members) in groups {
        // Where case does not count, the group has the name that its first member has.
        let name = if case_sensitive { of } else { path(&attribute, &members[0], default.as_ref(), budget)? };
        let items = Items::new(vec![name, Value::list(members, budget)?], budget)?;
        list.push(Value::Tuple(Rc::new(Tuple { items, is_group: true })));
    }
    Value::list(list, budget)
}

/// What `map` and `select` go through: nothing of a value that is false, of whatever type, as in Jinja2.
fn items_if_true(value: &Value, budget: &Budget) -> Result<Vec<Value>, Error> {
    if value.is_true() { value.items(budget) } else { Ok(Vec::new()) }
}

fn map(value: &Value, given: &Given, budget: &Budget) -> Result<Value, Error> {
    let items = items_if_true(value, budget)?;
    let mapped: Result<Vec<Value>, Error> = if given.positional.is_empty() {
        let attribute = given.named.iter().find(|(name, _)| &**name == "attribute");
        let default = given.named.iter().find(|(name, _)| &**name == "default").map(|(_, value)| value);
        let Some((_, attribute)) = attribute else {
            return Err(type_error("`map` needs a filter or an attribute"));
        };
        if given.named.len() > 1 + usize::from(default.is_some()) {
            return Err(type_error("`map` takes `attribute` and `default`"));
        }
        items.iter().map(|item| path(attribute, item, default, budget)).collect()
    } else {
        let (name, rest) = given.without_first(budget)?;
        let name = name.to_str(budget)?;
        let apply = |item: Value| {
            budget.step(1)?;
            let value = apply(&name, item, &rest, budget)?;
            budget.make(value.as_str().map_or(0, str::len))?;
            Ok(value)
        };
        items.into_iter().map(apply).collect()
    };
    Value::iterator(mapped?, budget)
}

fn select(
    value: &Value,
    given: &Given,
    attribute: Option<&Value>,
    wanted: bool,
    budget: &Budget,
) -> Result<Value, Error> {
    let (test, rest) = if given.positional.is_empty() {
        (None, given.clone())
    } else {
        let (test, rest) = given.without_first(budget)?;
        (Some(test.to_str(budget)?), rest)
    };
    let mut selected = Vec::new();
    for item in items_if_true(value, budget)? {
        budget.step(1)?;
        let of = match attribute {
            Some(attribute) => path(attribute, &item, None, budget)?,
            None => item.clone(),
        };
        let holds = match &test {
            Some(test) => predicates::test(test, &of, &rest, budget)?,
            None => of.is_true(),
        };
        if holds == wanted {
            selected.push(item);
        }
    }
    Value::iterator(selected, budget)
}

fn parts(name: &str, value: &Value, given: &Given, budget: &Budget) -> Result<Value, Error> {
    let [count, fill] = given.bind([if name == "batch" { "linecount" } else { "slices" }, "fill_with"])?;
    let count = usize::try_from(integer(count, 0)?).unwrap_or(0);
    let items = value.items(budget)?;
    let fill = fill.filter(|fill| !fill.is_none());
    if count == 0 {
        return Err(Error::new(ErrorKind::Other, "the number of parts is not valid"));
    }
    if count > MAX_ITEMS {
        return Err(too_long());
    }
    let mut lists = Vec::new();
    if name == "batch" {
        for chunk in items.chunks(count) {
            let mut list = chunk.to_vec();
            if let Some(fill) = &fill {
                list.resize(count, fill.clone());
            }
            lists.push(Value::list(list, budget)?);
        }
    } else {
        let (each, more) = (items.len() / count, items.len() % count);
        let mut at = 0;
        for number in 0..count {
            let end = at + each + usize::from(number < more);
            let mut list = items[at..end].to_vec();
            if let Some(fill) = &fill
                && number >= more
            {
                list.push(fill.clone());
            }
            lists.push(Value::list(list, budget)?);
            at = end;
        }
    }
    Value::iterator(lists, budget)
}

/// `int(value)` where it works.
fn int(value: &Value, base: i128) -> Result<Option<Value>, Error> {
    let truncated = |number: f64| match number {
        number if !number.is_finite() => Ok(None),
        number if number.abs() < 1e38 => Ok(Some(Value::Int(number.trunc() as i128))),
        _ => Err(too_large()),
    };
    Ok(match value {
        Value::Undefined(name) => return Err(is_undefined(name)),
        Value::Str(text) => {
            let plain = super::text::trim(&text.text);
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
fn parse_float(text: &str) -> Option<f64> {
    let text = super::text::trim(text);
    let valid = !text.starts_with('_') && !text.ends_with('_') && !text.contains("__");
    let text: String = text.chars().filter(|c| *c != '_').collect();
    if valid { text.parse().ok() } else { None }
}

fn round(value: &Value, given: &Given, budget: &Budget) -> Result<Value, Error> {
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

fn indent(value: &Value, given: &Given, budget: &Budget) -> Result<Value, Error> {
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

fn truncate(text: &str, given: &Given, budget: &Budget) -> Result<Value, Error> {
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
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut begins = true;
    for c in text.chars() {
        let separates = super::text::is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
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

fn urlencode(value: &Value, budget: &Budget) -> Result<Value, Error> {
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
