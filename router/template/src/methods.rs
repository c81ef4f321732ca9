//! Methods of strings, dicts and sequences, as far as Jinja2's immutable sandbox lets templates call them.

use std::rc::Rc;
use std::sync::Arc;

use super::arguments::Given;
use super::budget::{Budget, MAX_ITEMS, too_long};
use super::format::braces;
use super::text::{capitalize, is_printable, is_space, split_lines, swap_case, title};
use super::value::{Callable, Dict, Key, Mapping, Text, Value, equal, is_undefined, key};
use super::{Error, ErrorKind};

const STRING: [&str; 44] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
];

/// A method of the value; `None` when it has none of this name.
pub fn method_of(value: &Value, name: &Arc<str>) -> Option<Value> {
    let name_text = &**name;
    let (known, allowed): (bool, bool) = match value {
        Value::Str(_) => (STRING.contains(&name_text) || name_text == "zfill", true),
        Value::Dict(_) => match name_text {
            "get" | "items" | "keys" | "values" | "copy" => (true, true),
            "pop" | "popitem" | "clear" | "update" | "setdefault" => (true, false),
            _ => (false, true),
        },
        Value::List(_) => match name_text {
            "count" | "index" | "copy" => (true, true),
            "append" | "extend" | "insert" | "pop" | "remove" | "reverse" | "sort" | "clear" => (true, false),
            _ => (false, true),
        },
        Value::Tuple(_) | Value::Range(_) => (matches!(name_text, "count" | "index"), true),
        Value::Loop(_) => (matches!(name_text, "cycle" | "changed"), true),
        Value::Float(_) => (name_text == "is_integer", true),
        _ => (false, true),
    };
    known.then(|| {
        Value::Callable(Rc::new(Callable::Method { on: value.clone(), name: name.clone(), allowed }))
    })
}

fn type_error(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::Type, reason)
}

pub fn call(on: &Value, name: &str, given: &Given, budget: &Budget) -> Result<Value, Error> {
    match on {
        Value::Str(text) => of_string(text, name, given, budget),
        Value::Dict(items) => of_dict(items, name, given, budget),
        Value::Loop(_) if given.positional.is_empty() => Err(type_error("no items to cycle through")),
        Value::Loop(of) => Ok(given.positional[of.index() % given.positional.len()].clone()),
        Value::Float(number) => Ok(Value::Bool(number.fract() == 0.0)),
        _ => {
            if name == "copy" {
                return Ok(on.clone());
            }
            let items = on.items(budget)?;
            let [wanted, from, to] = given.bind(["", "", ""])?;
            let wanted = wanted.ok_or_else(|| type_error("an argument is missing"))?;
            if name == "count" {
                let mut count = 0;
                for item in &items {
                    count += i128::from(equal(item, &wanted, budget)?);
                }
                return Ok(Value::Int(count));
            }
            let (from, to) = window(items.len(), from, to)?;
            for (at, item) in items.iter().enumerate().take(to).skip(from) {
                if equal(item, &wanted, budget)? {
                    return Ok(Value::Int(at as i128));
                }
            }
            Err(Error::new(ErrorKind::Other, "it is not in the list"))
        }
    }
}

/// Start and end as Python clamps them.
fn window(length: usize, from: Option<Value>, to: Option<Value>) -> Result<(usize, usize), Error> {
    let bound = |value: Option<Value>, default: usize| -> Result<usize, Error> {
        match value {
            None | Some(Value::None) => Ok(default),
            Some(value) => {
                let at = value.as_int().ok_or_else(|| type_error("an index is no integer"))?;
                let at = if at < 0 { at + length as i128 } else { at };
                Ok(usize::try_from(at.max(0)).unwrap_or(usize::MAX))
            }
        }
    };
    let (from, to) = (bound(from, 0)?, bound(to, length)?.min(length));
    Ok((from, to))
}

fn of_dict(items: &Rc<Mapping>, name: &str, given: &Given, budget: &Budget) -> Result<Value, Error> {
    if name == "get" {
        if !given.named.is_empty() {
            return Err(type_error("get() takes no named arguments"));
        }
        let [wanted, default] = given.bind(["", ""])?;
        let wanted = wanted.ok_or_else(|| type_error("an argument is missing"))?;
        let found = items.get(&key(wanted, budget)?).cloned();
        return Ok(found.or(default).unwrap_or(Value::None));
    }
    given.bind([])?;
    match name {
        "items" => Value::view("dict_items", pairs(items, budget)?, budget),
        "keys" => Value::view("dict_keys", items.keys().map(|key| key.0.clone()).collect(), budget),
        "values" => Value::view("dict_values", items.values().cloned().collect(), budget),
        _ => Ok(Value::Dict(items.clone())),
    }
}

pub fn pairs(items: &Dict, budget: &Budget) -> Result<Vec<Value>, Error> {
    let pair = |(Key(key), value): (&Key, &Value)| Value::tuple(vec![key.clone(), value.clone()], budget);
    items.iter().map(pair).collect()
}

fn of_string(on: &Text, name: &str, given: &Given, budget: &Budget) -> Result<Value, Error> {
    let text = &*on.text;
    budget.read(text)?;
    // What is looked for is read as well, however short the text is.
    given.read(budget)?;
    let made = |text: String| Ok(Value::Str(Text { text: text.into(), safe: on.safe }));
    let part = |text: &str| Value::Str(Text { text: text.into(), safe: on.safe });
    let list = |parts: Vec<&str>, part: &dyn Fn(&str) -> Value| {
        if parts.len() > MAX_ITEMS {
            return Err(too_long());
        }
        Value::list(parts.into_iter().map(part).collect(), budget)
    };
    let every = |check: fn(char) -> bool| Ok(Value::Bool(!text.is_empty() && text.chars().all(check)));
    let required = |value: Option<Value>| -> Result<Arc<str>, Error> {
        match value {
            Some(Value::Str(text)) => Ok(text.text),
            Some(Value::Undefined(name)) => Err(is_undefined(&name)),
            Some(other) => Err(type_error(format!("'{}' is no text", other.kind()))),
            None => Err(type_error("an argument is missing")),
        }
    };
    let count = |value: Option<Value>| -> Result<usize, Error> {
        match value {
            None => Ok(usize::MAX),
            Some(value) => {
                let count = value.as_int().ok_or_else(|| type_error("a count is no integer"))?;
                Ok(usize::try_from(count).unwrap_or(usize::MAX))
            }
        }
    };
    match name {
        "upper" | "lower" | "casefold" | "title" | "capitalize" | "swapcase" => {
            given.bind([])?;
            made(match name {
                "upper" => text.to_uppercase(),
                "lower" => text.to_lowercase(),
                "casefold" => text.to_lowercase().replace('ß', "ss").replace('ς', "σ"),
                "title" => title(text),
                "capitalize" => capitalize(text),
                _ => swap_case(text),
            })
        }
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = given.bind([""])?;
            let chars = match chars {
                None | Some(Value::None) => None,
                other => Some(required(other)?),
            };
            budget.step(chars.as_ref().map_or(0, |chars| chars.len()))?;
            Ok(part(strip(text, name, chars.as_deref())))
        }
        "split" | "rsplit" => {
            let [separator, most] = given.bind(["sep", "maxsplit"])?;
            let most = count(most)?;
            let separator = match separator {
                None | Some(Value::None) => None,
                other => Some(required(other)?),
            };
            budget.make(text.len())?;
            let parts = split(text, separator.as_deref(), most, name == "rsplit")?;
            list(parts, &part)
        }
        "splitlines" => {
            let [keep] = given.bind(["keepends"])?;
            let keep = keep.is_some_and(|keep| keep.is_true());
            budget.make(text.len())?;
            list(split_lines(text, keep)?, &part)
        }
        "partition" | "rpartition" => {
            let [separator] = given.bind([""])?;
            let separator = required(separator)?;
            if separator.is_empty() {
                return Err(Error::new(ErrorKind::Other, "an empty separator"));
            }
            let found = if name == "partition" { text.find(&*separator) } else { text.rfind(&*separator) };
            let parts = match found {
                Some(at) => [&text[..at], &separator, &text[at + separator.len()..]],
                None if name == "partition" => [text, "", ""],
                None => ["", "", text],
            };
            Value::tuple(parts.into_iter().map(part).collect(), budget)
        }
        "startswith" | "endswith" => {
            let [affixes, from, to] = given.bind(["", "", ""])?;
            let text = windowed(text, from, to)?;
            let matches = |affix: &str| {
                text.is_some_and(|text| {
                    if name == "startswith" { text.starts_with(affix) } else { text.ends_with(affix) }
                })
            };
            Ok(Value::Bool(match affixes {
                Some(Value::Tuple(affixes)) => {
                    let mut any = false;
                    for affix in affixes.items.iter() {
                        budget.step(1)?;
                        budget.read(affix.as_str().unwrap_or_default())?;
                        any |= matches(&required(Some(affix.clone()))?);
                    }
                    any
                }
                other => matches(&required(other)?),
            }))
        }
        "removeprefix" | "removesuffix" => {
            let [affix] = given.bind([""])?;
            let affix = required(affix)?;
            let rest =
                if name == "removeprefix" { text.strip_prefix(&*affix) } else { text.strip_suffix(&*affix) };
            Ok(part(rest.unwrap_or(text)))
        }
        "replace" => {
            let [old, new, most] = given.bind(["", "", "count"])?;
            made(replace(text, &required(old)?, &required(new)?, count(most)?, budget)?)
        }
        "find" | "rfind" | "index" | "rindex" | "count" => {
            let [wanted, from, to] = given.bind(["", "", ""])?;
            let wanted = required(wanted)?;
            let skipped = match &from {
                None | Some(Value::None) => 0,
                from => window(text.chars().count(), from.clone(), None)?.0,
            };
            let inside = windowed(text, from, to)?;
            if name == "count" {
                return Ok(Value::Int(inside.map_or(0, |text| {
                    if wanted.is_empty() { text.chars().count() + 1 } else { text.matches(&*wanted).count() }
                }) as i128));
            }
            let found = inside.and_then(|text| {
                let at = if name.starts_with('r') { text.rfind(&*wanted) } else { text.find(&*wanted) };
                at.map(|at| skipped + text[..at].chars().count())
            });
            match found {
                Some(at) => Ok(Value::Int(at as i128)),
                None if name.ends_with("find") => Ok(Value::Int(-1)),
                None => Err(Error::new(ErrorKind::Other, "the text is not found")),
            }
        }
        "join" => {
            let [items] = given.bind([""])?;
            let items = items.ok_or_else(|| type_error("an argument is missing"))?.items(budget)?;
            let mut out = String::new();
            for (at, item) in items.into_iter().enumerate() {
                budget.step(1)?;
                budget.push(&mut out, if at > 0 { text } else { "" })?;
                budget.push(&mut out, &required(Some(item))?)?;
            }
            made(out)
        }
        "center" | "ljust" | "rjust" | "zfill" => {
            let [width, fill] = given.bind(["", ""])?;
            let width =
                width.and_then(|width| width.as_int()).ok_or_else(|| type_error("a width is missing"))?;
            let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
            let fill = fill.map_or(Ok(" ".into()), |fill| required(Some(fill)))?;
            let mut fill = fill.chars();
            let (Some(fill), None) = (fill.next(), fill.next()) else {
                return Err(type_error("what fills is one character"));
            };
            let length = text.chars().count();
            let missing = width.saturating_sub(length);
            budget.fits(missing.saturating_mul(fill.len_utf8()).saturating_add(text.len()))?;
            let fill = |count: usize| fill.to_string().repeat(count);
            made(match name {
                "ljust" => format!("{text}{}", fill(missing)),
                "rjust" => format!("{}{text}", fill(missing)),
                // The extra one goes to the left where both the width and what is missing are odd.
                "center" => {
                    let left = missing / 2 + (missing & width & 1);
                    format!("{}{text}{}", fill(left), fill(missing - left))
                }
                _ => {
                    let sign = usize::from(text.starts_with(['+', '-']));
                    format!("{}{}{}", &text[..sign], "0".repeat(missing), &text[sign..])
                }
            })
        }
        "expandtabs" => {
            let [size] = given.bind(["tabsize"])?;
            let size = size.and_then(|size| size.as_int()).unwrap_or(8).clamp(0, 1000) as usize;
            let mut out = String::new();
            let mut column = 0;
            for c in text.chars() {
                match c {
                    '\t' => {
                        let missing = if size == 0 { 0 } else { size - column % size };
                        budget.push(&mut out, &" ".repeat(missing))?;
                        column += missing;
                    }
                    '\n' | '\r' => {
                        out.push(c);
                        column = 0;
                    }
                    c => {
                        out.push(c);
                        column += 1;
                    }
                }
            }
            made(out)
        }
        "format" => made(braces(text, given, budget)?),
        "format_map" => {
            let [mapping] = given.bind([""])?;
            let Some(Value::Dict(items)) = mapping else { return Err(type_error("a mapping is missing")) };
            budget.step(items.len())?;
            let named = items
                .iter()
                .filter_map(|(key, value)| Some((Arc::from(key.0.as_str()?), value.clone())))
                .collect();
            made(braces(text, &Given { positional: Vec::new(), named }, budget)?)
        }
        "isspace" => every(is_space),
        "isalpha" => every(char::is_alphabetic),
        "isalnum" => every(char::is_alphanumeric),
        "isnumeric" => every(char::is_numeric),
        "isdigit" | "isdecimal" => every(|c| c.is_ascii_digit() || (!c.is_ascii() && is_digit(c))),
        "isascii" => Ok(Value::Bool(text.is_ascii())),
        "isprintable" => Ok(Value::Bool(text.chars().all(is_printable))),
        "isidentifier" => Ok(Value::Bool(
            text.starts_with(|c: char| c == '_' || c.is_alphabetic())
                && text.chars().all(|c| c == '_' || c.is_alphanumeric()),
        )),
        "islower" => Ok(Value::Bool(is_cased(text, char::is_lowercase, char::is_uppercase))),
        "isupper" => Ok(Value::Bool(is_cased(text, char::is_uppercase, char::is_lowercase))),
        "istitle" => {
            Ok(Value::Bool(text.chars().any(|c| c.is_lowercase() || c.is_uppercase()) && title(text) == text))
        }
        _ => Err(Error::new(ErrorKind::Unknown, format!("the method `{name}` of strings"))),
    }
}

/// A decimal digit of any script: Unicode lays them out in runs of ten.
fn is_digit(c: char) -> bool {
    static DIGIT: std::sync::LazyLock<regex::Regex> =
        std::sync::LazyLock::new(|| regex::Regex::new(r"^\p{Nd}$").expect("the pattern is valid"));
    DIGIT.is_match(c.encode_utf8(&mut [0; 4]))
}

pub fn is_cased(text: &str, wanted: fn(char) -> bool, unwanted: fn(char) -> bool) -> bool {
    text.chars().any(wanted) && !text.chars().any(unwanted)
}

pub fn strip<'t>(text: &'t str, name: &str, chars: Option<&str>) -> &'t str {
    let sorted: Option<Vec<char>> = chars.map(|chars| {
        let mut sorted: Vec<char> = chars.chars().collect();
        sorted.sort_unstable();
        sorted
    });
    let goes =
        |c: char| sorted.as_ref().map_or_else(|| is_space(c), |sorted| sorted.binary_search(&c).is_ok());
    match name {
        "lstrip" => text.trim_start_matches(goes),
        "rstrip" => text.trim_end_matches(goes),
        _ => text.trim_matches(goes),
    }
}

pub fn replace(text: &str, old: &str, new: &str, most: usize, budget: &Budget) -> Result<String, Error> {
    budget.read(text)?;
    let found = if old.is_empty() { text.chars().count() + 1 } else { text.matches(old).count() };
    let found = found.min(most);
    budget.fits(text.len().saturating_add(found.saturating_mul(new.len())))?;
    budget.step(found)?;
    Ok(text.replacen(old, new, found))
}

fn windowed(text: &str, from: Option<Value>, to: Option<Value>) -> Result<Option<&str>, Error> {
    let is_given = |bound: &Option<Value>| bound.as_ref().is_some_and(|bound| !bound.is_none());
    if !is_given(&from) && !is_given(&to) {
        return Ok(Some(text));
    }
    let length = text.chars().count();
    let (from, to) = window(length, from, to)?;
    if from > to {
        return Ok(None);
    }
    let byte = |at: usize| text.char_indices().nth(at).map_or(text.len(), |(byte, _)| byte);
    Ok(Some(&text[byte(from)..byte(to)]))
}

/// No more than `MAX_ITEMS` and one, which the caller refuses.
fn split<'t>(
    text: &'t str,
    separator: Option<&str>,
    most: usize,
    from_right: bool,
) -> Result<Vec<&'t str>, Error> {
    let pieces = most.saturating_add(1);
    match separator {
        Some("") => Err(Error::new(ErrorKind::Other, "an empty separator")),
        Some(separator) if from_right => {
            let mut parts: Vec<&str> = text.rsplitn(pieces, separator).take(MAX_ITEMS + 1).collect();
            parts.reverse();
            Ok(parts)
        }
        Some(separator) => Ok(text.splitn(pieces, separator).take(MAX_ITEMS + 1).collect()),
        None => {
            let mut parts = Vec::new();
            let mut rest = strip(text, if from_right { "rstrip" } else { "lstrip" }, None);
            while !rest.is_empty() && parts.len() <= MAX_ITEMS {
                if parts.len() == most {
                    parts.push(strip(rest, if from_right { "rstrip" } else { "lstrip" }, None));
                    break;
                }
                let cut = if from_right {
                    rest.char_indices()
                        .rev()
                        .find(|(_, c)| is_space(*c))
                        .map(|(at, c)| (at + c.len_utf8(), at))
                } else {
                    rest.char_indices().find(|(_, c)| is_space(*c)).map(|(at, _)| (at, at))
                };
                match cut {
                    None => {
                        parts.push(rest);
                        break;
                    }
                    Some((after, before)) if from_right => {
                        parts.push(&rest[after..]);
                        rest = strip(&rest[..before], "rstrip", None);
                    }
                    Some((at, _)) => {
                        parts.push(&rest[..at]);
                        rest = strip(&rest[at..], "lstrip", None);
                    }
                }
            }
            if from_right {
                parts.reverse();
            }
            Ok(parts)
        }
    }
}
