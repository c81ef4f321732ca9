//! Walks the tree and writes the text. Every step is counted, and so is every value that is made, so that
//! a template cannot take more than its share of time and memory (`budget`).
//!
//! A rendering owns what its values only refer to: namespaces, the scopes that macros and recursive loops see, and
//! what loops remember. So what a template builds goes when its rendering does, even if it refers to itself.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use super::ast::{Arguments, Call, Comparison, Expr, For, Macro, Statement, StatementKind, Target, Unary};
use super::budget::{Budget, VALUE};
use super::filters::{self, attribute, subscript};
use super::format::now;
use super::methods::{self, Given};
use super::operators::{binary, comparison, join, slice, too_large};
use super::predicates;
use super::value::{Callable, Dict, Global, Key, Range, Value, equal, is_undefined, key};
use super::{Error, ErrorKind};

/// Python's limit for `range` in a sandbox.
const MAX_RANGE: usize = 100_000;
/// What a template raises is told to the client; characters of it.
const MAX_RAISED: usize = 2000;

/// Names of one block, and what is around it.
pub struct Scope {
    /// Those that the template sets, which it names itself: seldom many, so that they are searched one by one.
    names: RefCell<Vec<(Arc<str>, Value)>>,
    parent: Option<Rc<Scope>>,
    /// Whether the rendering keeps it.
    kept: Cell<bool>,
}

impl Scope {
    fn new(parent: Option<Rc<Self>>) -> Rc<Self> {
        Rc::new(Self { names: RefCell::default(), parent, kept: Cell::new(false) })
    }

    fn inside(parent: &Rc<Self>) -> Rc<Self> {
        Self::new(Some(parent.clone()))
    }

    fn set(&self, name: &Arc<str>, value: Value, budget: &Budget) -> Result<(), Error> {
        let mut names = self.names.borrow_mut();
        budget.step(looked_at(names.len(), name))?;
        match names.iter_mut().find(|(known, _)| *known == *name) {
            Some((_, old)) => *old = value,
            None => names.push((name.clone(), value)),
        }
        Ok(())
    }

    fn get(&self, name: &str, budget: &Budget) -> Result<Option<Value>, Error> {
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
fn looked_at(names: usize, name: &str) -> usize {
    names * (1 + name.len() / 64) / 64
}

/// The variable `loop`.
pub struct Loop {
    /// All of them, or those that came so far where the loop does not look ahead.
    items: RefCell<Vec<Value>>,
    at: Cell<usize>,
    depth: usize,
    /// Where the rendering has what `loop.changed` saw last.
    changed: Cell<Option<usize>>,
    /// For `loop(...)` in a recursive loop.
    recursive: Option<(Arc<For>, Weak<Scope>)>,
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
            if self.run(&of.body, &inner, out)? == Flow::Break {
                return Ok(Flow::On);
            }
        }
        if at == 0 {
            return self.run(&of.otherwise, &Scope::inside(scope), out);
        }
        Ok(Flow::On)
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

    fn call(&self, function: &Value, given: &Given) -> Result<Value, Error> {
        self.budget.holding(given.len(), || self.call_with(function, given))
    }

    fn call_with(&self, function: &Value, given: &Given) -> Result<Value, Error> {
        match function {
            Value::Callable(callable) => match &**callable {
                Callable::Macro { declared, scope } => {
                    self.call_macro(declared, &scope.upgrade().ok_or_else(gone)?, given)
                }
                Callable::Method { name, allowed: false, .. } => Err(Error::new(
                    ErrorKind::Other,
                    format!("`{name}` would change a value, which templates must not"),
                )),
                Callable::Method { on: Value::Loop(of), name, .. } if &**name == "changed" => {
                    self.changed(of, &given.positional)
                }
                Callable::Method { on, name, .. } => self.made(methods::call(on, name, given, &self.budget)?),
                Callable::Global(of) => self.call_global(*of, given),
                Callable::Joiner { separator, used, .. } => {
                    Ok(if used.replace(true) { separator.clone() } else { Value::str("") })
                }
            },
            Value::Loop(of) => {
                let [items] = given.bind(["iterable"])?;
                match (&of.recursive, items) {
                    (Some((body, scope)), Some(items)) => {
                        let scope = &scope.upgrade().ok_or_else(gone)?;
                        let mut out = String::new();
                        self.deeper(|| self.for_loop(body, &items, scope, of.depth + 1, &mut out))?;
                        self.made(Value::str(out))
                    }
                    _ => Err(Error::new(ErrorKind::Type, "the loop is not recursive")),
                }
            }
            Value::Undefined(name) => Err(is_undefined(name)),
            other => Err(Error::new(ErrorKind::Type, format!("'{}' cannot be called", other.kind()))),
        }
    }

    /// `loop.changed(...)`: whether the values differ from those of the last call.
    fn changed(&self, of: &Loop, values: &[Value]) -> Result<Value, Error> {
        self.budget.make_container(values.len(), 0)?;
        let mut known = self.changed.borrow_mut();
        let Some(before) = of.changed.get().and_then(|at| known.get_mut(at)) else {
            of.changed.set(Some(known.len()));
            known.push(values.to_vec());
            return Ok(Value::Bool(true));
        };
        let mut changed = before.len() != values.len();
        for (a, b) in before.iter().zip(values) {
            changed = changed || !equal(a, b, &self.budget)?;
        }
        *before = values.to_vec();
        Ok(Value::Bool(changed))
    }

    fn call_macro(&self, declared: &Macro, scope: &Rc<Scope>, given: &Given) -> Result<Value, Error> {
        let inner = Scope::inside(scope);
        self.step(given.named.len() + given.positional.len())?;
        let mut named = given.named.clone();
        let mut take = |name: &str| -> Result<Option<Value>, Error> {
            self.step(looked_at(named.len(), name))?;
            let at = named.iter().position(|(given, _)| **given == *name);
            Ok(at.map(|at| named.remove(at).1))
        };
        let mut caller_is_parameter = false;
        let mut bound = Vec::new();
        for (at, (name, _)) in declared.parameters.iter().enumerate() {
            caller_is_parameter |= &**name == "caller";
            bound.push(match given.positional.get(at) {
                Some(value) => Some(value.clone()),
                None => take(name)?,
            });
        }
        if declared.uses_caller && !caller_is_parameter {
            let caller = take("caller")?.unwrap_or_else(|| Value::undefined("caller"));
            inner.set(&"caller".into(), caller, &self.budget)?;
        }
        if declared.uses_kwargs {
            let rest = named.drain(..).map(|(name, value)| (Key(Value::str(name)), value)).collect();
            inner.set(&"kwargs".into(), Value::dict(rest, &self.budget)?, &self.budget)?;
        } else if let Some((name, _)) = named.first() {
            let reason = format!("the macro `{}` takes no argument `{name}`", declared.name);
            return Err(Error::new(ErrorKind::Type, reason));
        }
        let extra = given.positional.get(declared.parameters.len()..).unwrap_or_default();
        if declared.uses_varargs {
            inner.set(&"varargs".into(), Value::tuple(extra.to_vec(), &self.budget)?, &self.budget)?;
        } else if !extra.is_empty() {
            let reason =
                format!("the macro `{}` takes {} arguments", declared.name, declared.parameters.len());
            return Err(Error::new(ErrorKind::Type, reason));
        }
        for ((name, default), value) in declared.parameters.iter().zip(bound) {
            let value = match (value, default) {
                (Some(value), _) => value,
                (None, Some(default)) => self.eval(default, &inner)?,
                (None, None) => Value::Undefined(name.clone()),
            };
            inner.set(name, value, &self.budget)?;
        }
        self.captured(&declared.body, &inner)
    }

    fn call_global(&self, of: Global, given: &Given) -> Result<Value, Error> {
        match of {
            Global::Range => range(given),
            Global::Dict | Global::Namespace => {
                let mut items = Dict::new();
                match &given.positional[..] {
                    [] => {}
                    [Value::Dict(from)] => {
                        items.extend(from.iter().map(|(name, value)| (name.clone(), value.clone())))
                    }
                    [Value::Namespace(from)] if of == Global::Dict => {
                        items.extend(from.upgrade().ok_or_else(gone)?.borrow().clone());
                    }
                    [pairs] => {
                        for pair in pairs.items(&self.budget)? {
                            let [name, value] = &pair.items(&self.budget)?[..] else {
                                return Err(Error::new(ErrorKind::Type, "pairs are expected"));
                            };
                            items.insert(key(name.clone(), &self.budget)?, value.clone());
                        }
                    }
                    _ => return Err(Error::new(ErrorKind::Type, "one mapping at most")),
                }
                for (name, value) in &given.named {
                    items.insert(Key(Value::str(name.clone())), value.clone());
                }
                if of == Global::Dict {
                    return Value::dict(items, &self.budget);
                }
                if items.keys().any(|name| name.0.as_str().is_some_and(|name| name.starts_with('_'))) {
                    return Err(Error::new(ErrorKind::Other, "a namespace's name begins with `_`"));
                }
                self.namespace(items)
            }
            Global::Joiner => {
                let [separator] = given.bind(["sep"])?;
                let separator = separator.unwrap_or_else(|| Value::str(", "));
                Value::joiner(separator, &self.budget)
            }
            Global::RaiseException => {
                let [message] = given.bind(["message"])?;
                let message = message.ok_or_else(|| Error::new(ErrorKind::Type, "a message is missing"))?;
                let message = message.to_str(&self.budget)?;
                let shown: String = message.chars().take(MAX_RAISED).collect();
                let left_out = message.len() - shown.len();
                let more = if left_out > 0 { format!("... ({left_out} bytes more)") } else { String::new() };
                Err(Error::new(ErrorKind::Raised, shown + &more))
            }
            Global::StrftimeNow => {
                let [format] = given.bind(["format"])?;
                match format {
                    Some(Value::Str(format)) => Ok(Value::str(now(&format.text, &self.budget)?)),
                    _ => Err(Error::new(ErrorKind::Type, "a format is missing")),
                }
            }
        }
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

fn range(given: &Given) -> Result<Value, Error> {
    let int = |value: &Value| {
        value.as_int().ok_or_else(|| Error::new(ErrorKind::Type, format!("'{}' is no integer", value.kind())))
    };
    let (start, stop, step) = match &given.positional[..] {
        _ if !given.named.is_empty() => {
            return Err(Error::new(ErrorKind::Type, "range takes no named arguments"));
        }
        [stop] => (0, int(stop)?, 1),
        [start, stop] => (int(start)?, int(stop)?, 1),
        [start, stop, step] => (int(start)?, int(stop)?, int(step)?),
        _ => return Err(Error::new(ErrorKind::Type, "range takes one to three arguments")),
    };
    let small = |number: i128| number.unsigned_abs() < 1 << 64;
    if step == 0 || !small(start) || !small(stop) || !small(step) {
        return Err(Error::new(ErrorKind::Other, "the range is not valid"));
    }
    let range = Range { start, stop, step };
    if range.len() > MAX_RANGE {
        return Err(Error::new(ErrorKind::Other, "the range is too long"));
    }
    Ok(Value::Range(range))
}
