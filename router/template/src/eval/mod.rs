//! Walks the tree and writes the text. Every step is counted, and so is every value that is made, so that
//! a template cannot take more than its share of time and memory (`budget`).
//!
//! A rendering owns what its values only refer to: namespaces, the scopes that macros and recursive loops see, and
//! what loops remember. So what a template builds goes when its rendering does, even if it refers to itself.

mod calls;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use crate::arguments::Given;
use crate::ast::{Arguments, Call, Comparison, Expr, For, Statement, StatementKind, Target, Unary};
use crate::budget::{Budget, VALUE, too_large};
use crate::filters::{self, attribute, predicates, subscript};
use crate::operators::{binary, comparison, join};
use crate::subscripts::slice;
use crate::value::{Callable, Dict, Global, Key, Loop, Scope, Value, is_undefined, key};
use crate::{Error, ErrorKind};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    On,
    Break,
    Continue,
}

pub struct Renderer {
    budget: Budget,
    /// What the client and the model's configuration give. Clients choose the names of some.
    variables: HashMap<Arc<str>, Value>,
    namespaces: RefCell<Vec<Rc<RefCell<Dict>>>>,
    scopes: RefCell<Vec<Rc<Scope>>>,
    /// What `loop.changed` saw last, of each loop that asked.
    changed: RefCell<Vec<Vec<Value>>>,
}

impl Renderer {
    pub fn new(variables: HashMap<Arc<str>, Value>, budget: Budget) -> Self {
        Self {
            budget,
            variables,
            namespaces: RefCell::default(),
            scopes: RefCell::default(),
            changed: RefCell::default(),
        }
    }

    pub fn render(&self, body: &[Statement]) -> Result<String, Error> {
        let mut out = String::new();
        self.run(body, &Scope::new(None), &mut out)?;
        Ok(out)
    }

    fn step(&self, steps: usize) -> Result<(), Error> {
        self.budget.step(steps)
    }

    fn deeper<T>(&self, run: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        self.budget.deeper(run)
    }

    /// Counts a new text. Containers are counted where they are made.
    fn made(&self, value: Value) -> Result<Value, Error> {
        if let Value::Str(text) = &value {
            self.budget.make(text.text.len())?;
            self.budget.fits(text.text.len())?;
        }
        Ok(value)
    }

    /// A reference to a scope that holds until the rendering ends.
    fn keep(&self, scope: &Rc<Scope>) -> Result<Weak<Scope>, Error> {
        if !scope.kept.replace(true) {
            self.budget.make(3 * VALUE)?;
            self.scopes.borrow_mut().push(scope.clone());
        }
        Ok(Rc::downgrade(scope))
    }

    fn namespace(&self, items: Dict) -> Result<Value, Error> {
        self.budget.make((items.len() + 1) * 2 * VALUE)?;
        let names = Rc::new(RefCell::new(items));
        let value = Value::Namespace(Rc::downgrade(&names));
        self.namespaces.borrow_mut().push(names);
        Ok(value)
    }

    fn run(&self, body: &[Statement], scope: &Rc<Scope>, out: &mut String) -> Result<Flow, Error> {
        self.deeper(|| {
            for statement in body {
                let flow = self.statement(statement, scope, out).map_err(|error| error.at(statement.line))?;
                if flow != Flow::On {
                    return Ok(flow);
                }
            }
            Ok(Flow::On)
        })
    }

    /// A body as a value of its own.
    fn captured(&self, body: &[Statement], scope: &Rc<Scope>) -> Result<Value, Error> {
        let mut out = String::new();
        self.run(body, scope, &mut out)?;
        self.made(Value::str(out))
    }

    fn statement(&self, statement: &Statement, scope: &Rc<Scope>, out: &mut String) -> Result<Flow, Error> {
        self.step(1)?;
        match &statement.kind {
            StatementKind::Text(text) => self.write(out, text)?,
            StatementKind::Print(value) => {
                let value = self.eval(value, scope)?;
                self.print(out, &value)?;
            }
            StatementKind::If { branches, otherwise } => {
                for (condition, body) in branches {
                    if self.eval(condition, scope)?.is_true() {
                        return self.run(body, scope, out);
                    }
                }
                return self.run(otherwise, scope, out);
            }
            StatementKind::For(of) => {
                let items = self.eval(&of.items, scope)?;
                return self.for_loop(of, &items, scope, 0, out);
            }
            StatementKind::Set { target, value } => {
                let value = self.eval(value, scope)?;
                self.assign(target, value, scope)?;
            }
            StatementKind::SetBlock { target, filters, body } => {
                let value = self.captured(body, &Scope::inside(scope))?;
                let value = self.filtered(filters, value, scope)?;
                self.assign(target, value, scope)?;
            }
            StatementKind::Macro(declared) => {
                let value = Callable::Macro { declared: declared.clone(), scope: self.keep(scope)? };
                scope.set(&declared.name, Value::Callable(Rc::new(value)), &self.budget)?;
            }
            StatementKind::CallBlock { caller, call } => {
                let caller = Callable::Macro { declared: caller.clone(), scope: self.keep(scope)? };
                let Expr::Call(function, arguments) = call else { return Ok(Flow::On) };
                let function = self.eval(function, scope)?;
                let mut given = self.given(arguments, scope)?;
                given.named.push(("caller".into(), Value::Callable(Rc::new(caller))));
                let value = self.call(&function, &given)?;
                self.print(out, &value)?;
            }
            StatementKind::FilterBlock { filters, body } => {
                let value = self.captured(body, &Scope::inside(scope))?;
                let value = self.filtered(filters, value, scope)?;
                self.print(out, &value)?;
            }
            StatementKind::With { targets, body } => {
                let inner = Scope::inside(scope);
                for (target, value) in targets {
                    let value = self.eval(value, scope)?;
                    self.assign(target, value, &inner)?;
                }
                return self.run(body, &inner, out);
            }
            StatementKind::Scope(body) => return self.run(body, &Scope::inside(scope), out),
            StatementKind::Break => return Ok(Flow::Break),
            StatementKind::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::On)
    }

    fn write(&self, out: &mut String, text: &str) -> Result<(), Error> {
        self.budget.push(out, text)?;
        // Bodies within bodies each have a text of their own.
        self.budget.make(text.len())
    }

    fn print(&self, out: &mut String, value: &Value) -> Result<(), Error> {
        match value {
            Value::Str(text) => self.write(out, &text.text),
            other => self.write(out, &other.to_str(&self.budget)?),
        }
    }

    fn for_loop(
        &self,
        of: &Arc<For>,
        items: &Value,
        scope: &Rc<Scope>,
        depth: usize,
        out: &mut String,
    ) -> Result<Flow, Error> {
        // A loop holds its items.
        let nesting = items.nesting() + 1;
        self.budget.make_container(0, nesting)?;
        let items = items.items(&self.budget)?;
        self.budget.holding(items.len(), || self.iterate(of, items, nesting, scope, depth, out))
    }

    fn iterate(
        &self,
        of: &Arc<For>,
        mut items: Vec<Value>,
        nesting: u32,
        scope: &Rc<Scope>,
        depth: usize,
        out: &mut String,
    ) -> Result<Flow, Error> {
        // As in Jinja, the condition is asked when an item's turn has come, but where the body looks ahead.
        let mut condition = of.condition.as_ref();
        if of.looks_ahead
            && let Some(condition) = condition.take()
        {
            let mut kept = Vec::new();
            for item in items {
                if self.holds(condition, of, &item, scope)? {
                    kept.push(item);
                }
            }
            items = kept;
        }
        // The variable `loop` has them for as long as the template keeps it.
        let (known, coming) = if of.looks_ahead {
            self.budget.make(items.len() * VALUE)?;
            (items.clone(), items)
        } else {
            (Vec::new(), items)
        };
        let state = Rc::new(Loop {
            items: RefCell::new(known),
            at: Cell::new(0),
            depth,
            changed: Cell::new(None),
            recursive: if of.recursive { Some((of.clone(), self.keep(scope)?)) } else { None },
            nesting,
        });
        let name: Arc<str> = "loop".into();
        let mut at = 0;
        // As in Jinja, `else` is for a loop of which no pass got to the end of the body.
        let mut has_passed = false;
        for item in coming {
            // It makes a scope with two names in it.
            self.step(2)?;
            if let Some(condition) = condition
                && !self.holds(condition, of, &item, scope)?
            {
                continue;
            }
            if !of.looks_ahead {
                self.budget.make(VALUE)?;
                state.items.borrow_mut().push(item.clone());
            }
            state.at.set(at);
            at += 1;
            let inner = Scope::inside(scope);
            self.assign(&of.target, item, &inner)?;
            inner.set(&name, Value::Loop(state.clone()), &self.budget)?;
            match self.run(&of.body, &inner, out)? {
                Flow::On => has_passed = true,
                Flow::Continue => {}
                Flow::Break => break,
            }
        }
        if has_passed {
            return Ok(Flow::On);
        }
        self.run(&of.otherwise, &Scope::inside(scope), out)
    }

    /// A loop's condition for one of its items.
    fn holds(&self, condition: &Expr, of: &For, item: &Value, scope: &Rc<Scope>) -> Result<bool, Error> {
        self.step(1)?;
        let inner = Scope::inside(scope);
        self.assign(&of.target, item.clone(), &inner)?;
        Ok(self.eval(condition, &inner)?.is_true())
    }

    fn assign(&self, target: &Target, value: Value, scope: &Rc<Scope>) -> Result<(), Error> {
        match target {
            Target::Name(name) => scope.set(name, value, &self.budget)?,
            Target::Attribute(name, attribute) => match scope.get(name, &self.budget)? {
                Some(Value::Namespace(names)) => {
                    if attribute.starts_with('_') {
                        return Err(Error::new(ErrorKind::Other, "a namespace's name begins with `_`"));
                    }
                    let names = names.upgrade().ok_or_else(gone)?;
                    names.borrow_mut().insert(Key(Value::str(attribute.clone())), value);
                }
                _ => return Err(Error::new(ErrorKind::Other, format!("`{name}` is no namespace"))),
            },
            Target::Tuple(targets) => {
                let values = value.items(&self.budget)?;
                if values.len() != targets.len() {
                    let reason = format!("{} values for {} names", values.len(), targets.len());
                    return Err(Error::new(ErrorKind::Other, reason));
                }
                for (target, value) in targets.iter().zip(values) {
                    self.assign(target, value, scope)?;
                }
            }
        }
        Ok(())
    }

    fn filtered(&self, filters: &[Call], mut value: Value, scope: &Rc<Scope>) -> Result<Value, Error> {
        for filter in filters {
            let given = self.given(&filter.arguments, scope)?;
            value = self.made(filters::apply(&filter.name, value, &given, &self.budget)?)?;
        }
        Ok(value)
    }

    fn given(&self, arguments: &Arguments, scope: &Rc<Scope>) -> Result<Given, Error> {
        let mut given = Given {
            positional: arguments
                .positional
                .iter()
                .map(|value| self.eval(value, scope))
                .collect::<Result<_, _>>()?,
            named: Vec::with_capacity(arguments.named.len()),
        };
        for (name, value) in &arguments.named {
            given.named.push((name.clone(), self.eval(value, scope)?));
        }
        if let Some(more) = &arguments.more_positional {
            given.positional.extend(self.eval(more, scope)?.items(&self.budget)?);
        }
        if let Some(more) = &arguments.more_named {
            let Value::Dict(items) = self.eval(more, scope)? else {
                return Err(Error::new(ErrorKind::Type, "what follows `**` is no mapping"));
            };
            self.step(items.len())?;
            for (Key(name), value) in items.iter() {
                let Value::Str(name) = name else {
                    return Err(Error::new(ErrorKind::Type, "the name of an argument is no text"));
                };
                given.named.push((name.text.clone(), value.clone()));
            }
        }
        Ok(given)
    }

    fn eval(&self, expr: &Expr, scope: &Rc<Scope>) -> Result<Value, Error> {
        self.step(1)?;
        match expr {
            Expr::None => Ok(Value::None),
            Expr::Bool(value) => Ok(Value::Bool(*value)),
            Expr::Int(number) => Ok(Value::Int(*number)),
            Expr::Float(number) => Ok(Value::Float(*number)),
            Expr::Str(text) => Ok(Value::str(text.clone())),
            Expr::Name(name) => Ok(scope
                .get(name, &self.budget)?
                .or_else(|| self.variables.get(name).cloned())
                .unwrap_or_else(|| global(name))),
            _ => self.deeper(|| self.compound(expr, scope)),
        }
    }

    fn compound(&self, expr: &Expr, scope: &Rc<Scope>) -> Result<Value, Error> {
        match expr {
            Expr::Attribute(of, name) => attribute(&self.eval(of, scope)?, name, &self.budget),
            Expr::Item(of, index) => {
                let of = self.eval(of, scope)?;
                subscript(&of, &self.eval(index, scope)?, &self.budget)
            }
            Expr::Slice(of, bounds) => self.slice(of, bounds, scope),
            Expr::Call(function, arguments) => {
                let function = self.eval(function, scope)?;
                let given = self.given(arguments, scope)?;
                self.call(&function, &given)
            }
            Expr::Filter(of, call) => {
                let value = self.eval(of, scope)?;
                let given = self.given(&call.arguments, scope)?;
                self.made(filters::apply(&call.name, value, &given, &self.budget)?)
            }
            Expr::Test(of, call) => {
                let value = self.eval(of, scope)?;
                let given = self.given(&call.arguments, scope)?;
                predicates::test(&call.name, &value, &given, &self.budget).map(Value::Bool)
            }
            Expr::Unary(operator, of) => {
                let value = self.eval(of, scope)?;
                match (operator, &value) {
                    (Unary::Not, _) => Ok(Value::Bool(!value.is_true())),
                    (_, Value::Undefined(name)) => Err(is_undefined(name)),
                    (Unary::Minus, Value::Float(number)) => Ok(Value::Float(-number)),
                    (Unary::Plus, Value::Float(_)) => Ok(value),
                    _ => match (operator, value.as_int()) {
                        (Unary::Minus, Some(number)) => {
                            number.checked_neg().map(Value::Int).ok_or_else(too_large)
                        }
                        (_, Some(number)) => Ok(Value::Int(number)),
                        (_, None) => {
                            Err(Error::new(ErrorKind::Type, format!("a sign before '{}'", value.kind())))
                        }
                    },
                }
            }
            Expr::Binary(operator, a, b) => {
                let a = self.eval(a, scope)?;
                let b = self.eval(b, scope)?;
                self.made(binary(*operator, &a, &b, &self.budget)?)
            }
            Expr::Concat(parts) => {
                let parts: Vec<Value> = self.all(parts, scope)?;
                self.made(join(&parts, "", &self.budget)?)
            }
            Expr::Compare(first, rest) => self.compare(first, rest, scope),
            Expr::And(a, b) => {
                let a = self.eval(a, scope)?;
                if a.is_true() { self.eval(b, scope) } else { Ok(a) }
            }
            Expr::Or(a, b) => {
                let a = self.eval(a, scope)?;
                if a.is_true() { Ok(a) } else { self.eval(b, scope) }
            }
            Expr::Choice { value, condition, otherwise } => {
                if self.eval(condition, scope)?.is_true() {
                    return self.eval(value, scope);
                }
                match otherwise {
                    Some(otherwise) => self.eval(otherwise, scope),
                    None => Ok(Value::undefined("if")),
                }
            }
            Expr::List(items) => Value::list(self.all(items, scope)?, &self.budget),
            Expr::Tuple(items) => Value::tuple(self.all(items, scope)?, &self.budget),
            Expr::Dict(items) => {
                let mut dict = Dict::with_capacity(items.len());
                for (name, value) in items {
                    dict.insert(key(self.eval(name, scope)?, &self.budget)?, self.eval(value, scope)?);
                }
                Value::dict(dict, &self.budget)
            }
            _ => self.eval(expr, scope),
        }
    }

    fn all(&self, exprs: &[Expr], scope: &Rc<Scope>) -> Result<Vec<Value>, Error> {
        exprs.iter().map(|expr| self.eval(expr, scope)).collect()
    }

    fn compare(&self, first: &Expr, rest: &[(Comparison, Expr)], scope: &Rc<Scope>) -> Result<Value, Error> {
        let mut left = self.eval(first, scope)?;
        for (operator, right) in rest {
            let right = self.eval(right, scope)?;
            if !comparison(*operator, &left, &right, &self.budget)? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    fn slice(&self, of: &Expr, bounds: &[Option<Box<Expr>>; 3], scope: &Rc<Scope>) -> Result<Value, Error> {
        let of = self.eval(of, scope)?;
        let mut values = [None, None, None];
        for (value, bound) in values.iter_mut().zip(bounds) {
            if let Some(bound) = bound {
                *value = Some(self.eval(bound, scope)?);
            }
        }
        self.made(slice(&of, values, &self.budget)?)
    }
}

/// Of what the rendering owns: it never is while a value of the rendering is.
fn gone() -> Error {
    Error::new(ErrorKind::Other, "it belongs to another rendering")
}

fn global(name: &Arc<str>) -> Value {
    Value::global(match &**name {
        "range" => Global::Range,
        "dict" => Global::Dict,
        "namespace" => Global::Namespace,
        "joiner" => Global::Joiner,
        "raise_exception" => Global::RaiseException,
        "strftime_now" => Global::StrftimeNow,
        _ => return Value::Undefined(name.clone()),
    })
}
