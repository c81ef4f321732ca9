//! The values of a template, which behave as Python's do: how they print, compare, and what they are when
//! they are asked for their truth. Nothing can be changed but namespaces, as in Jinja2's immutable sandbox,
//! so that copies are references.
//!
//! What can be changed, a namespace or the names of a scope, belongs to the rendering (`eval`), and a value only
//! refers to it: so no value can hold itself, whatever a template builds. A container knows how deeply it is
//! nested and is refused when it is made too deep.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::fmt::Write;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use indexmap::{Equivalent, IndexMap};
use serde_json::Value as Json;

use super::ast::Macro;
use super::budget::{Budget, MAX_ITEMS, MAX_NESTING, too_long};
use super::eval::{Loop, Scope};
use super::text::is_printable;
use super::{Error, ErrorKind};

/// Elements of a tuple that is a key, with those of tuples in it: a key is hashed and compared uncounted.
const MAX_KEY: usize = 1000;

#[derive(Clone)]
pub enum Value {
    /// With the name that was looked for.
    Undefined(Arc<str>),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Text),
    List(Rc<Items>),
    Tuple(Rc<Tuple>),
    Dict(Rc<Mapping>),
    /// `dict.keys()` and alike.
    View(Rc<View>),
    Range(Range),
    /// A generator: its items come once. It has no length and is always true.
    Iterator(Rc<Generator>),
    Namespace(Weak<RefCell<Dict>>),
    Loop(Rc<Loop>),
    Callable(Rc<Callable>),
}

#[derive(Clone)]
pub struct Text {
    pub text: Arc<str>,
    /// Marked as HTML that needs no escaping (`safe`): what is joined to it is escaped.
    pub safe: bool,
}

/// The elements of a container.
pub struct Items {
    items: Vec<Value>,
    nesting: u32,
}

impl Items {
    pub fn new(items: Vec<Value>, budget: &Budget) -> Result<Self, Error> {
        let nesting = 1 + items.iter().map(Value::nesting).max().unwrap_or(0);
        budget.make_container(items.len(), nesting)?;
        Ok(Self { items, nesting })
    }
}

impl Deref for Items {
    type Target = [Value];

    fn deref(&self) -> &[Value] {
        &self.items
    }
}

pub struct Mapping {
    entries: Dict,
    nesting: u32,
}

impl Deref for Mapping {
    type Target = Dict;

    fn deref(&self) -> &Dict {
        &self.entries
    }
}

pub struct Generator {
    pub rest: RefCell<std::vec::IntoIter<Value>>,
    nesting: u32,
}

pub struct Tuple {
    pub items: Items,
    /// What `groupby` gives has names: `grouper` and `list`.
    pub is_group: bool,
}

pub struct View {
    pub name: &'static str,
    pub items: Items,
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
        scope: Weak<Scope>,
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
        nesting: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

    pub fn list(items: Vec<Value>, budget: &Budget) -> Result<Self, Error> {
        Ok(Self::List(Rc::new(Items::new(items, budget)?)))
    }

    pub fn tuple(items: Vec<Value>, budget: &Budget) -> Result<Self, Error> {
        Ok(Self::Tuple(Rc::new(Tuple { items: Items::new(items, budget)?, is_group: false })))
    }

    pub fn dict(entries: Dict, budget: &Budget) -> Result<Self, Error> {
        let of = |(key, value): (&Key, &Value)| key.0.nesting().max(value.nesting());
        let nesting = 1 + entries.iter().map(of).max().unwrap_or(0);
        budget.make_container(entries.len(), nesting)?;
        // A key is a value too.
        budget.make(entries.len() * super::budget::VALUE)?;
        Ok(Self::Dict(Rc::new(Mapping { entries, nesting })))
    }

    pub fn view(name: &'static str, items: Vec<Value>, budget: &Budget) -> Result<Self, Error> {
        Ok(Self::View(Rc::new(View { name, items: Items::new(items, budget)? })))
    }

    pub fn iterator(items: Vec<Value>, budget: &Budget) -> Result<Self, Error> {
        let Items { items, nesting } = Items::new(items, budget)?;
        Ok(Self::Iterator(Rc::new(Generator { rest: RefCell::new(items.into_iter()), nesting })))
    }

    pub fn joiner(separator: Value, budget: &Budget) -> Result<Self, Error> {
        let nesting = 1 + separator.nesting();
        budget.make_container(1, nesting)?;
        Ok(Self::Callable(Rc::new(Callable::Joiner { separator, used: false.into(), nesting })))
    }

    /// Values within values that it holds.
    pub fn nesting(&self) -> u32 {
        match self {
            Self::List(items) => items.nesting,
            Self::Tuple(tuple) => tuple.items.nesting,
            Self::Dict(items) => items.nesting,
            Self::View(view) => view.items.nesting,
            Self::Iterator(rest) => rest.nesting,
            Self::Loop(of) => of.nesting,
            Self::Callable(callable) => match &**callable {
                Callable::Method { on, .. } => 1 + on.nesting(),
                Callable::Joiner { nesting, .. } => *nesting,
                Callable::Macro { .. } | Callable::Global(_) => 0,
            },
            _ => 0,
        }
    }

    pub fn undefined(name: impl Into<Arc<str>>) -> Self {
        Self::Undefined(name.into())
    }

    pub fn global(global: Global) -> Self {
        Self::Callable(Rc::new(Callable::Global(global)))
    }

    pub fn from_json(json: &Json, budget: &Budget) -> Result<Self, Error> {
        budget.step(1)?;
        Ok(match json {
            Json::Null => Self::None,
            Json::Bool(value) => Self::Bool(*value),
            Json::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(number), _) => Self::Int(number.into()),
                (_, Some(number)) => Self::Int(number.into()),
                _ => Self::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => Self::str(text.as_str()),
            Json::Array(items) => {
                let items = items.iter().map(|item| Self::from_json(item, budget));
                Self::list(items.collect::<Result<_, _>>()?, budget)?
            }
            Json::Object(fields) => {
                let entries = fields.iter().map(|(name, value)| {
                    Ok((Key(Self::str(name.as_str())), Self::from_json(value, budget)?))
                });
                Self::dict(entries.collect::<Result<_, Error>>()?, budget)?
            }
        })
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
    pub fn len(&self, budget: &Budget) -> Result<Option<usize>, Error> {
        Ok(Some(match self {
            Self::Undefined(_) => 0,
            Self::Str(text) => {
                budget.read(&text.text)?;
                text.text.chars().count()
            }
            Self::List(items) => items.len(),
            Self::Tuple(tuple) => tuple.items.len(),
            Self::Dict(items) => items.len(),
            Self::View(view) => view.items.len(),
            Self::Range(range) => range.len(),
            Self::Loop(of) => of.len(),
            _ => return Ok(None),
        }))
    }

    pub fn has_len(&self) -> bool {
        !matches!(
            self,
            Self::None
                | Self::Bool(_)
                | Self::Int(_)
                | Self::Float(_)
                | Self::Iterator(_)
                | Self::Namespace(_)
                | Self::Callable(_)
        )
    }

    pub fn is_iterable(&self) -> bool {
        matches!(self, Self::Iterator(_)) || self.has_len()
    }

    /// What a loop over the value sees.
    pub fn items(&self, budget: &Budget) -> Result<Vec<Value>, Error> {
        let copied = |items: &[Value]| -> Result<Vec<Value>, Error> {
            budget.step(items.len() / 8)?;
            Ok(items.to_vec())
        };
        match self {
            Self::Undefined(_) => Ok(Vec::new()),
            Self::Str(text) => {
                budget.read(&text.text)?;
                let length = text.text.chars().count();
                if length > MAX_ITEMS {
                    return Err(too_long());
                }
                budget.step(length)?;
                let mut buffer = [0; 4];
                Ok(text.text.chars().map(|c| Self::str(&*c.encode_utf8(&mut buffer))).collect())
            }
            Self::List(items) => copied(items),
            Self::Tuple(tuple) => copied(&tuple.items),
            Self::Dict(items) => {
                budget.step(items.len() / 8)?;
                Ok(items.keys().map(|key| key.0.clone()).collect())
            }
            Self::View(view) => copied(&view.items),
            Self::Range(range) => {
                budget.step(range.len() / 8)?;
                Ok(range.iter().map(Self::Int).collect())
            }
            Self::Iterator(iterator) => {
                let mut rest = iterator.rest.borrow_mut();
                budget.step(rest.len() / 8)?;
                Ok(rest.by_ref().collect())
            }
            _ => Err(Error::new(ErrorKind::Type, format!("'{}' is not iterable", self.kind()))),
        }
    }

    /// `str(value)`, which is also what `{{ value }}` prints.
    pub fn write_str(&self, out: &mut String, budget: &Budget) -> Result<(), Error> {
        match self {
            Self::Undefined(_) => Ok(()),
            Self::Str(text) => budget.push(out, &text.text),
            _ => self.write_repr(out, 0, budget),
        }
    }

    pub fn to_str(&self, budget: &Budget) -> Result<Arc<str>, Error> {
        match self {
            Self::Str(text) => Ok(text.text.clone()),
            _ => {
                let mut out = String::new();
                self.write_str(&mut out, budget)?;
                Ok(out.into())
            }
        }
    }

    pub fn repr(&self, budget: &Budget) -> Result<String, Error> {
        let mut out = String::new();
        self.write_repr(&mut out, 0, budget)?;
        Ok(out)
    }

    fn write_repr(&self, out: &mut String, depth: u32, budget: &Budget) -> Result<(), Error> {
        // Namespaces may hold themselves.
        if depth > MAX_NESTING {
            return Err(too_deep());
        }
        budget.step(1)?;
        budget.fits(out.len())?;
        let list = |out: &mut String, items: &[Value], open: &str, close: &str| -> Result<(), Error> {
            out.push_str(open);
            for (at, item) in items.iter().enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                item.write_repr(out, depth + 1, budget)?;
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
                quote(out, &text.text, budget)?;
                out.push(')');
            }
            Self::Str(text) => quote(out, &text.text, budget)?,
            Self::List(items) => list(out, items, "[", "]")?,
            Self::Tuple(tuple) => {
                list(out, &tuple.items, "(", if tuple.items.len() == 1 { ",)" } else { ")" })?;
            }
            Self::View(view) => {
                out.push_str(view.name);
                list(out, &view.items, "([", "])")?;
            }
            Self::Dict(items) => write_dict(out, items, depth, budget)?,
            Self::Range(range) if range.step == 1 => {
                let _ = write!(out, "range({}, {})", range.start, range.stop);
            }
            Self::Range(range) => {
                let _ = write!(out, "range({}, {}, {})", range.start, range.stop, range.step);
            }
            Self::Namespace(names) => {
                out.push_str("<Namespace ");
                if let Some(names) = names.upgrade() {
                    write_dict(out, &names.borrow(), depth, budget)?;
                }
                out.push('>');
            }
            Self::Loop(of) => drop(write!(out, "<LoopContext {}/{}>", of.index() + 1, of.len())),
            // Python prints an address here, which no template can want.
            Self::Iterator(_) | Self::Callable(_) => drop(write!(out, "<{}>", self.kind())),
        }
        Ok(())
    }
}

fn write_dict(out: &mut String, items: &Dict, depth: u32, budget: &Budget) -> Result<(), Error> {
    out.push('{');
    for (at, (key, value)) in items.iter().enumerate() {
        out.push_str(if at > 0 { ", " } else { "" });
        key.0.write_repr(out, depth + 1, budget)?;
        out.push_str(": ");
        value.write_repr(out, depth + 1, budget)?;
    }
    out.push('}');
    Ok(())
}

fn too_deep() -> Error {
    Error::new(ErrorKind::Other, "a value is nested too deeply")
}

/// A string as Python's `repr` writes it.
fn quote(out: &mut String, text: &str, budget: &Budget) -> Result<(), Error> {
    budget.read(text)?;
    budget.fits(out.len().saturating_add(text.len()))?;
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
                budget.fits(out.len())?;
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
    Ok(())
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

    /// What two ranges of the same numbers have in common.
    fn same(self) -> (usize, i128, i128) {
        match self.len() {
            0 => (0, 0, 0),
            1 => (1, self.start, 0),
            length => (length, self.start, self.step),
        }
    }

    pub fn iter(self) -> impl DoubleEndedIterator<Item = i128> {
        (0..self.len()).map(move |at| self.start + self.step * at as i128)
    }
}

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

/// `==` of values that hold no others.
fn is_same_leaf(a: &Value, b: &Value) -> bool {
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

pub fn is_undefined(name: &str) -> Error {
    Error::new(ErrorKind::Undefined, format!("'{name}' is undefined"))
}

/// A value as a key, if Python can hash it. Whoever looks one up has counted it here.
pub fn key(value: Value, budget: &Budget) -> Result<Key, Error> {
    count_key(&value, budget)?;
    Ok(Key(value))
}

fn count_key(value: &Value, budget: &Budget) -> Result<(), Error> {
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
    pub fn dumps(&self, value: &Value, budget: &Budget) -> Result<String, Error> {
        let mut out = String::new();
        self.write(&mut out, value, 0, budget)?;
        Ok(out)
    }

    fn write(&self, out: &mut String, value: &Value, depth: u32, budget: &Budget) -> Result<(), Error> {
        budget.step(1)?;
        match value {
            Value::None => out.push_str("null"),
            Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Value::Int(number) => drop(write!(out, "{number}")),
            Value::Float(number) => out.push_str(json_float(*number).as_str()),
            Value::Str(text) => self.string(out, &text.text, budget)?,
            Value::List(items) => self.list(out, items, depth, budget)?,
            Value::Tuple(tuple) => self.list(out, &tuple.items, depth, budget)?,
            Value::Dict(items) => {
                budget.step(items.len() / 8)?;
                let mut entries: Vec<(&Value, &Value)> =
                    items.iter().map(|(key, value)| (&key.0, value)).collect();
                if self.sort_keys {
                    entries =
                        sorted(entries, &mut |a, b| Ok(compare(a.0, b.0, budget)? == Some(Ordering::Less)))?;
                }
                self.group(out, ["{", "}"], depth, &entries, budget, |out, (key, item)| {
                    self.key(out, key, budget)?;
                    budget.push(out, &self.after_key)?;
                    self.write(out, item, depth + 1, budget)
                })?;
            }
            other => {
                return Err(Error::new(
                    ErrorKind::Type,
                    format!("'{}' cannot be written as JSON", other.kind()),
                ));
            }
        }
        budget.fits(out.len())
    }

    fn list(&self, out: &mut String, items: &[Value], depth: u32, budget: &Budget) -> Result<(), Error> {
        self.group(out, ["[", "]"], depth, items, budget, |out, item| {
            self.write(out, item, depth + 1, budget)
        })
    }

    fn group<T>(
        &self,
        out: &mut String,
        [open, close]: [&str; 2],
        depth: u32,
        items: &[T],
        budget: &Budget,
        mut write: impl FnMut(&mut String, &T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let new_line = |out: &mut String, depth: u32| -> Result<(), Error> {
            let Some(indent) = &self.indent else { return Ok(()) };
            out.push('\n');
            (0..depth).try_for_each(|_| budget.push(out, indent))
        };
        out.push_str(open);
        for (at, item) in items.iter().enumerate() {
            budget.push(out, if at > 0 { &self.between_items } else { "" })?;
            new_line(out, depth + 1)?;
            write(out, item)?;
        }
        if !items.is_empty() {
            new_line(out, depth)?;
        }
        out.push_str(close);
        Ok(())
    }

    fn key(&self, out: &mut String, key: &Value, budget: &Budget) -> Result<(), Error> {
        let text: Arc<str> = match key {
            Value::Str(text) => text.text.clone(),
            Value::None => "null".into(),
            Value::Bool(value) => value.to_string().into(),
            Value::Int(_) => key.to_str(budget)?,
            Value::Float(number) => json_float(*number).into(),
            other => {
                return Err(Error::new(
                    ErrorKind::Type,
                    format!("'{}' cannot be a key in JSON", other.kind()),
                ));
            }
        };
        self.string(out, &text, budget)
    }

    fn string(&self, out: &mut String, text: &str, budget: &Budget) -> Result<(), Error> {
        budget.read(text)?;
        budget.fits(out.len().saturating_add(text.len()))?;
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
                    budget.fits(out.len())?;
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
        Ok(())
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
