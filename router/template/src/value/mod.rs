//! The values of a template, which behave as Python's do: how they print, compare, and what they are when
//! they are asked for their truth. Nothing can be changed but namespaces, as in Jinja2's immutable sandbox,
//! so that copies are references.
//!
//! What can be changed, a namespace or the names of a scope, belongs to the rendering (`eval`), and a value only
//! refers to it: so no value can hold itself, whatever a template builds. A container knows how deeply it is
//! nested and is refused when it is made too deep.

mod compare;
mod json;
mod key;
mod print;
mod scope;

use std::cell::RefCell;
use std::ops::Deref;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use indexmap::IndexMap;

use crate::ast::Macro;
use crate::budget::{Budget, MAX_ITEMS, too_long};
use crate::{Error, ErrorKind};

pub use compare::{compare, equal, holds, sorted};
pub use json::JsonStyle;
pub use key::{Key, key, lookup};
pub use print::float;
pub use scope::{Loop, Scope, looked_at};

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

pub fn is_undefined(name: &str) -> Error {
    Error::new(ErrorKind::Undefined, format!("'{name}' is undefined"))
}

fn too_deep() -> Error {
    Error::new(ErrorKind::Other, "a value is nested too deeply")
}
