//! Names and what they mean where a template is: scopes within each other, and the variable `loop`.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use super::Value;
use crate::Error;
use crate::ast::For;
use crate::budget::Budget;

/// Names of one block, and what is around it.
pub struct Scope {
    /// Those that the template sets, which it names itself: seldom many, so that they are searched one by one.
    names: RefCell<Vec<(Arc<str>, Value)>>,
    parent: Option<Rc<Scope>>,
    /// Whether the rendering keeps it.
    pub kept: Cell<bool>,
}

impl Scope {
    pub fn new(parent: Option<Rc<Self>>) -> Rc<Self> {
        Rc::new(Self { names: RefCell::default(), parent, kept: Cell::new(false) })
    }

    pub fn inside(parent: &Rc<Self>) -> Rc<Self> {
        Self::new(Some(parent.clone()))
    }

    pub fn set(&self, name: &Arc<str>, value: Value, budget: &Budget) -> Result<(), Error> {
        let mut names = self.names.borrow_mut();
        budget.step(looked_at(names.len(), name))?;
        match names.iter_mut().find(|(known, _)| *known == *name) {
            Some((_, old)) => *old = value,
            None => names.push((name.clone(), value)),
        }
        Ok(())
    }

    pub fn get(&self, name: &str, budget: &Budget) -> Result<Option<Value>, Error> {
        let mut scope = self;
        loop {
            let names = scope.names.borrow();
            budget.step(looked_at(names.len(), name))?;
            if let Some((_, value)) = names.iter().find(|(known, _)| **known == *name) {
                return Ok(Some(value.clone()));
            }
            drop(names);
            match scope.parent.as_deref() {
                Some(parent) => scope = parent,
                None => return Ok(None),
            }
        }
    }
}

/// Steps of comparing a name with so many: none where there are as few as in a template that is meant well.
pub fn looked_at(names: usize, name: &str) -> usize {
    names * (1 + name.len() / 64) / 64
}

/// The variable `loop`.
pub struct Loop {
    /// All of them, or those that came so far where the loop does not look ahead.
    pub items: RefCell<Vec<Value>>,
    pub at: Cell<usize>,
    pub depth: usize,
    /// Where the rendering has what `loop.changed` saw last.
    pub changed: Cell<Option<usize>>,
    /// For `loop(...)` in a recursive loop.
    pub recursive: Option<(Arc<For>, Weak<Scope>)>,
    pub nesting: u32,
}

impl Loop {
    pub fn index(&self) -> usize {
        self.at.get()
    }

    pub fn len(&self) -> usize {
        self.items.borrow().len()
    }

    pub fn attribute(&self, name: &str) -> Option<Value> {
        let items = self.items.borrow();
        let (at, length) = (self.at.get(), items.len());
        let int = |number: usize| Value::Int(number as i128);
        Some(match name {
            "index" => int(at + 1),
            "index0" => int(at),
            "revindex" => int(length - at),
            "revindex0" => int(length - at - 1),
            "first" => Value::Bool(at == 0),
            "last" => Value::Bool(at + 1 == length),
            "length" => int(length),
            "depth" => int(self.depth + 1),
            "depth0" => int(self.depth),
            "previtem" => {
                at.checked_sub(1).map_or_else(|| Value::undefined("previtem"), |at| items[at].clone())
            }
            "nextitem" => items.get(at + 1).cloned().unwrap_or_else(|| Value::undefined("nextitem")),
            _ => return None,
        })
    }
}
