//! The values of a template, which behave as Python's do: how they print, compare, and what they are when
//! they are asked for their truth. Nothing can be changed but namespaces, as in Jinja2's immutable sandbox,
//! so that copies are references.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::fmt::Write;
use std::hash::{Hash, Hasher};
use std::rc::Rc;
use std::sync::Arc;

use indexmap::{Equivalent, IndexMap};
use serde_json::Value as Json;

use super::ast::Macro;
use super::eval::{Loop, Scope};
use super::text::is_printable;
use super::{Error, Trouble};

/// Deeper values are refused rather than risking the stack; JSON from clients is never as deep.
const MAX_DEPTH: u32 = 200;

#[derive(Clone)]
pub enum Value {
    /// With the name that was looked for.
    Undefined(Arc<str>),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Text),
    List(Rc<Vec<Value>>),
    Tuple(Rc<Tuple>),
    Dict(Rc<Dict>),
    /// `dict.keys()` and alike.
    View(Rc<View>),
    Range(Range),
    /// A generator: its items come once. It has no length and is always true.
    Iterator(Rc<RefCell<std::vec::IntoIter<Value>>>),
    Namespace(Rc<RefCell<Dict>>),
    Loop(Rc<Loop>),
    Callable(Rc<Callable>),
}

#[derive(Clone)]
pub struct Text {
    pub text: Arc<str>,
    /// Marked as HTML that needs no escaping (`safe`): what is joined to it is escaped.
    pub safe: bool,
}

pub struct Tuple {
    pub items: Vec<Value>,
    /// What `groupby` gives has names: `grouper` and `list`.
    pub is_group: bool,
}

pub struct View {
    pub name: &'static str,
    pub items: Vec<Value>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub start: i128,
    pub stop: i128,
    pub step: i128,
}

pub type Dict = IndexMap<Key, Value>;

pub enum Callable {
    Macro {
        declared: Arc<Macro>,
        scope: Rc<Scope>,
    },
    /// A method of a value, or one that the sandbox does not let a template call.
    Method {
        on: Value,
        name: Arc<str>,
        allowed: bool,
    },
    Global(Global),
    /// Gives its separator from its second call on.
    Joiner {
        separator: Value,
        used: std::cell::Cell<bool>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Global {
    Range,
    Dict,
    Namespace,
    Joiner,
    RaiseException,
    StrftimeNow,
}

/// A value as the key of a dict: numbers that are equal are the same key.
#[derive(Clone)]
pub struct Key(pub Value);

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match &self.0 {
            Value::Str(text) => text.text.hash(state),
            Value::Float(number) if number.fract() == 0.0 => (*number as i128).hash(state),
            Value::Float(number) => number.to_bits().hash(state),
            Value::Bool(value) => i128::from(*value).hash(state),
            Value::Int(number) => number.hash(state),
            Value::Tuple(tuple) => tuple.items.iter().for_each(|item| Key(item.clone()).hash(state)),
            _ => 0.hash(state),
        }
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        equal(&self.0, &other.0)
    }
}

impl Eq for Key {}

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

impl Value {
    pub fn str(text: impl Into<Arc<str>>) -> Self {
        Self::Str(Text { text: text.into(), safe: false })
    }

    pub fn list(items: Vec<Value>) -> Self {
        Self::List(Rc::new(items))
    }

    pub fn tuple(items: Vec<Value>) -> Self {
        Self::Tuple(Rc::new(Tuple { items, is_group: false }))
    }

    pub fn dict(items: Dict) -> Self {
        Self::Dict(Rc::new(items))
    }

    pub fn iterator(items: Vec<Value>) -> Self {
        Self::Iterator(Rc::new(RefCell::new(items.into_iter())))
    }

    pub fn undefined(name: impl Into<Arc<str>>) -> Self {
        Self::Undefined(name.into())
    }

    pub fn global(global: Global) -> Self {
        Self::Callable(Rc::new(Callable::Global(global)))
    }

    pub fn from_json(json: &Json) -> Self {
        match json {
            Json::Null => Self::None,
            Json::Bool(value) => Self::Bool(*value),
            Json::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(number), _) => Self::Int(number.into()),
                (_, Some(number)) => Self::Int(number.into()),
                _ => Self::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => Self::str(text.as_str()),
            Json::Array(items) => Self::list(items.iter().map(Self::from_json).collect()),
            Json::Object(fields) => Self::dict(
                fields
                    .iter()
                    .map(|(name, value)| (Key(Self::str(name.as_str())), Self::from_json(value)))
                    .collect(),
            ),
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(text) => Some(&text.text),
            _ => None,
        }
    }

    pub fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    pub fn is_undefined(&self) -> bool {
        matches!(self, Self::Undefined(_))
    }

    /// As a Python `int`, which a bool is too.
    pub fn as_int(&self) -> Option<i128> {
        match self {
            Self::Bool(value) => Some((*value).into()),
            Self::Int(number) => Some(*number),
            _ => None,
        }
    }

    pub fn as_number(&self) -> Option<f64> {
        match self {
            Self::Float(number) => Some(*number),
            _ => self.as_int().map(|number| number as f64),
        }
    }

    /// Python's name of the type.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Undefined(_) => "Undefined",
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Str(_) => "str",
            Self::List(_) => "list",
            Self::Tuple(_) => "tuple",
            Self::Dict(_) => "dict",
            Self::View(view) => view.name,
            Self::Range(_) => "range",
            Self::Iterator(_) => "generator",
            Self::Namespace(_) => "Namespace",
            Self::Loop(_) => "LoopContext",
            Self::Callable(_) => "function",
        }
    }

    pub fn is_true(&self) -> bool {
        match self {
            Self::Undefined(_) | Self::None => false,
            Self::Bool(value) => *value,
            Self::Int(number) => *number != 0,
            Self::Float(number) => *number != 0.0,
            Self::Str(text) => !text.text.is_empty(),
            Self::List(items) => !items.is_empty(),
            Self::Tuple(tuple) => !tuple.items.is_empty(),
            Self::Dict(items) => !items.is_empty(),
            Self::View(view) => !view.items.is_empty(),
            Self::Range(range) => range.len() > 0,
            Self::Loop(_) | Self::Iterator(_) | Self::Namespace(_) | Self::Callable(_) => true,
        }
    }

    /// `len(value)`, where it has one.
    pub fn len(&self) -> Option<usize> {
        Some(match self {
            Self::Undefined(_) => 0,
            Self::Str(text) => text.text.chars().count(),
            Self::List(items) => items.len(),
            Self::Tuple(tuple) => tuple.items.len(),
            Self::Dict(items) => items.len(),
            Self::View(view) => view.items.len(),
            Self::Range(range) => range.len(),
            Self::Loop(of) => of.len(),
            _ => return None,
        })
    }

    pub fn is_iterable(&self) -> bool {
        matches!(self, Self::Iterator(_)) || self.len().is_some()
    }

    /// What a loop over the value sees.
    pub fn items(&self) -> Result<Vec<Value>, Error> {
        Ok(match self {
            Self::Undefined(_) => Vec::new(),
            Self::Str(text) => {
                let mut buffer = [0; 4];
                text.text.chars().map(|c| Self::str(&*c.encode_utf8(&mut buffer))).collect()
            }
            Self::List(items) => items.to_vec(),
            Self::Tuple(tuple) => tuple.items.clone(),
            Self::Dict(items) => items.keys().map(|key| key.0.clone()).collect(),
            Self::View(view) => view.items.clone(),
            Self::Range(range) => range.iter().map(Self::Int).collect(),
            Self::Iterator(rest) => rest.borrow_mut().by_ref().collect(),
            _ => return Err(Error::new(Trouble::Type, format!("'{}' is not iterable", self.kind()))),
        })
    }

    /// `str(value)`, which is also what `{{ value }}` prints.
    pub fn write_str(&self, out: &mut String) -> Result<(), Error> {
        match self {
            Self::Undefined(_) => Ok(()),
            Self::Str(text) => {
                out.push_str(&text.text);
                Ok(())
            }
            _ => self.write_repr(out, 0),
        }
    }

    pub fn to_str(&self) -> Result<Arc<str>, Error> {
        match self {
            Self::Str(text) => Ok(text.text.clone()),
            _ => {
                let mut out = String::new();
                self.write_str(&mut out)?;
                Ok(out.into())
            }
        }
    }

    pub fn repr(&self) -> Result<String, Error> {
        let mut out = String::new();
        self.write_repr(&mut out, 0)?;
        Ok(out)
    }

    fn write_repr(&self, out: &mut String, depth: u32) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(too_deep());
        }
        let list = |out: &mut String, items: &[Value], open: &str, close: &str| -> Result<(), Error> {
            out.push_str(open);
            for (at, item) in items.iter().enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                item.write_repr(out, depth + 1)?;
            }
            out.push_str(close);
            Ok(())
        };
        match self {
            Self::Undefined(_) => out.push_str("Undefined"),
            Self::None => out.push_str("None"),
            Self::Bool(true) => out.push_str("True"),
            Self::Bool(false) => out.push_str("False"),
            Self::Int(number) => drop(write!(out, "{number}")),
            Self::Float(number) => out.push_str(&float(*number)),
            Self::Str(text) if text.safe => {
                out.push_str("Markup(");
                quote(out, &text.text);
                out.push(')');
            }
            Self::Str(text) => quote(out, &text.text),
            Self::List(items) => list(out, items, "[", "]")?,
            Self::Tuple(tuple) => {
                list(out, &tuple.items, "(", if tuple.items.len() == 1 { ",)" } else { ")" })?;
            }
            Self::View(view) => {
                out.push_str(view.name);
                list(out, &view.items, "([", "])")?;
            }
            Self::Dict(items) => write_dict(out, items, depth)?,
            Self::Range(range) if range.step == 1 => {
                let _ = write!(out, "range({}, {})", range.start, range.stop);
            }
            Self::Range(range) => {
                let _ = write!(out, "range({}, {}, {})", range.start, range.stop, range.step);
            }
            Self::Namespace(names) => {
                out.push_str("<Namespace ");
                write_dict(out, &names.borrow(), depth)?;
                out.push('>');
            }
            Self::Loop(of) => drop(write!(out, "<LoopContext {}/{}>", of.index() + 1, of.len())),
            // Python prints an address here, which no template can want.
            Self::Iterator(_) | Self::Callable(_) => drop(write!(out, "<{}>", self.kind())),
        }
        Ok(())
    }
}

fn write_dict(out: &mut String, items: &Dict, depth: u32) -> Result<(), Error> {
    out.push('{');
    for (at, (key, value)) in items.iter().enumerate() {
        out.push_str(if at > 0 { ", " } else { "" });
        key.0.write_repr(out, depth + 1)?;
        out.push_str(": ");
        value.write_repr(out, depth + 1)?;
    }
    out.push('}');
    Ok(())
}

fn too_deep() -> Error {
    Error::new(Trouble::Other, "a value is nested too deeply")
}

/// A string as Python's `repr` writes it.
fn quote(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote || c == '\\' => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            c => {
                let code = u32::from(c);
                let _ = match code {
                    0..=0xFF => write!(out, "\\x{code:02x}"),
                    0x100..=0xFFFF => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// The shortest digits that read back as the same number, with an exponent where Python uses one.
pub fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..16).contains(&exponent) => {
            format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
        }
        _ => {
            let plain = number.to_string();
            if plain.contains('.') { plain } else { plain + ".0" }
        }
    }
}

impl Range {
    pub fn len(self) -> usize {
        let distance = if self.step > 0 { self.stop - self.start } else { self.start - self.stop };
        let step = self.step.abs();
        usize::try_from((distance + step - 1).div_euclid(step).max(0)).unwrap_or(usize::MAX)
    }

    pub fn iter(self) -> impl DoubleEndedIterator<Item = i128> {
        (0..self.len()).map(move |at| self.start + self.step * at as i128)
    }
}

/// Python's `==`.
pub fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
        (Value::Str(a), Value::Str(b)) => a.text == b.text,
        (Value::List(a), Value::List(b)) => {
            a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| equal(a, b))
        }
        (Value::Tuple(a), Value::Tuple(b)) => {
            a.items.len() == b.items.len() && a.items.iter().zip(&b.items).all(|(a, b)| equal(a, b))
        }
        (Value::Dict(a), Value::Dict(b)) => {
            a.len() == b.len()
                && a.iter().all(|(key, value)| b.get(key).is_some_and(|other| equal(value, other)))
        }
        (Value::Range(a), Value::Range(b)) => a.iter().eq(b.iter()),
        (Value::View(a), Value::View(b)) => {
            // Keys and items are sets; values are equal to themselves only.
            a.name == b.name
                && a.name != "dict_values"
                && a.items.len() == b.items.len()
                && a.items.iter().all(|item| b.items.iter().any(|other| equal(item, other)))
        }
        (Value::Namespace(a), Value::Namespace(b)) => Rc::ptr_eq(a, b),
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

/// Python's `<` and alike. An error for values that have no order.
pub fn compare(a: &Value, b: &Value) -> Result<Option<Ordering>, Error> {
    let lists = |a: &[Value], b: &[Value]| -> Result<Option<Ordering>, Error> {
        for (a, b) in a.iter().zip(b) {
            if !equal(a, b) {
                return compare(a, b);
            }
        }
        Ok(Some(a.len().cmp(&b.len())))
    };
    match (a, b) {
        (Value::Undefined(name), _) | (_, Value::Undefined(name)) => Err(is_undefined(name)),
        (Value::Str(a), Value::Str(b)) => Ok(Some(a.text.cmp(&b.text))),
        (Value::List(a), Value::List(b)) => lists(a, b),
        (Value::Tuple(a), Value::Tuple(b)) => lists(&a.items, &b.items),
        _ => match (a.as_int(), b.as_int(), a.as_number(), b.as_number()) {
            (Some(a), Some(b), ..) => Ok(Some(a.cmp(&b))),
            (_, _, Some(a), Some(b)) => Ok(a.partial_cmp(&b)),
            _ => Err(Error::new(Trouble::Type, format!("'{}' and '{}' have no order", a.kind(), b.kind()))),
        },
    }
}

pub fn is_undefined(name: &str) -> Error {
    Error::new(Trouble::Undefined, format!("'{name}' is undefined"))
}

/// A value as a key, if Python can hash it.
pub fn key(value: Value) -> Result<Key, Error> {
    fn is_hashable(value: &Value) -> bool {
        match value {
            Value::List(_) | Value::Dict(_) | Value::View(_) => false,
            Value::Tuple(tuple) => tuple.items.iter().all(is_hashable),
            _ => true,
        }
    }
    if is_hashable(&value) {
        return Ok(Key(value));
    }
    Err(Error::new(Trouble::Type, format!("'{}' cannot be a key", value.kind())))
}

/// `json.dumps` with the arguments that transformers gives to its `tojson` filter.
pub struct JsonStyle {
    pub ensure_ascii: bool,
    /// What each level is indented by; on one line when `None`.
    pub indent: Option<String>,
    pub between_items: Arc<str>,
    pub after_key: Arc<str>,
    pub sort_keys: bool,
}

impl JsonStyle {
    pub fn dumps(&self, value: &Value) -> Result<String, Error> {
        let mut out = String::new();
        self.write(&mut out, value, 0)?;
        Ok(out)
    }

    fn write(&self, out: &mut String, value: &Value, depth: u32) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(too_deep());
        }
        match value {
            Value::None => out.push_str("null"),
            Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Value::Int(number) => drop(write!(out, "{number}")),
            Value::Float(number) => out.push_str(json_float(*number).as_str()),
            Value::Str(text) => self.string(out, &text.text),
            Value::List(items) => self.list(out, items, depth)?,
            Value::Tuple(tuple) => self.list(out, &tuple.items, depth)?,
            Value::Dict(items) => {
                let mut entries: Vec<(&Value, &Value)> =
                    items.iter().map(|(key, value)| (&key.0, value)).collect();
                if self.sort_keys {
                    let mut failed = None;
                    entries.sort_by(|a, b| match compare(a.0, b.0) {
                        Ok(order) => order.unwrap_or(Ordering::Equal),
                        Err(error) => {
                            failed = Some(error);
                            Ordering::Equal
                        }
                    });
                    if let Some(error) = failed {
                        return Err(error);
                    }
                }
                self.group(out, ['{', '}'], depth, &entries, |out, (key, item)| {
                    self.key(out, key)?;
                    out.push_str(&self.after_key);
                    self.write(out, item, depth + 1)
                })?;
            }
            other => {
                return Err(Error::new(
                    Trouble::Type,
                    format!("'{}' cannot be written as JSON", other.kind()),
                ));
            }
        }
        Ok(())
    }

    fn list(&self, out: &mut String, items: &[Value], depth: u32) -> Result<(), Error> {
        self.group(out, ['[', ']'], depth, items, |out, item| self.write(out, item, depth + 1))
    }

    fn group<T>(
        &self,
        out: &mut String,
        [open, close]: [char; 2],
        depth: u32,
        items: &[T],
        mut write: impl FnMut(&mut String, &T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let new_line = |out: &mut String, depth: u32| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                out.extend(std::iter::repeat_n(indent.as_str(), depth as usize));
            }
        };
        out.push(open);
        for (at, item) in items.iter().enumerate() {
            out.push_str(if at > 0 { &self.between_items } else { "" });
            new_line(out, depth + 1);
            write(out, item)?;
        }
        if !items.is_empty() {
            new_line(out, depth);
        }
        out.push(close);
        Ok(())
    }

    fn key(&self, out: &mut String, key: &Value) -> Result<(), Error> {
        let text: Arc<str> = match key {
            Value::Str(text) => text.text.clone(),
            Value::None => "null".into(),
            Value::Bool(value) => value.to_string().into(),
            Value::Int(_) => key.to_str()?,
            Value::Float(number) => json_float(*number).into(),
            other => {
                return Err(Error::new(Trouble::Type, format!("'{}' cannot be a key in JSON", other.kind())));
            }
        };
        self.string(out, &text);
        Ok(())
    }

    fn string(&self, out: &mut String, text: &str) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && c > '~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

fn json_float(number: f64) -> String {
    match float(number).as_str() {
        "nan" => "NaN".into(),
        "inf" => "Infinity".into(),
        "-inf" => "-Infinity".into(),
        text => text.into(),
    }
}
