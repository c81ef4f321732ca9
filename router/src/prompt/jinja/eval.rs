//! Walks the tree and writes the text. Every step is counted, and so is every value that is made, so that
//! a template cannot take more than its share of time and memory.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::ast::{Arguments, Call, Comparison, Expr, For, Macro, Statement, StatementKind, Target, Unary};
use super::filters::{self, attribute, subscript};
use super::format::now;
use super::methods::{self, Given};
use super::operators::{binary, comparison, join, slice};
use super::predicates;
use super::value::{Callable, Dict, Global, Key, Range, Value, is_undefined, key};
use super::{Error, MAX_TEXT, Trouble};

/// Steps of one rendering: seconds at most, and thousands of messages.
const FUEL: u64 = 20_000_000;
/// Bytes of all values that one rendering makes, with those that it lets go.
const MAX_MADE: usize = 512 << 20;
/// Calls within calls, as far as a thread's stack of 2 MiB holds them.
const MAX_DEPTH: u32 = 300;
/// Python's limit for `range` in a sandbox.
const MAX_RANGE: usize = 100_000;
/// Rough bytes of a value beside its text.
const VALUE: usize = 48;

/// Names of one block, and what is around it.
pub struct Scope {
    names: RefCell<Vec<(Arc<str>, Value)>>,
    parent: Option<Rc<Scope>>,
}

impl Scope {
    pub fn root(names: Vec<(Arc<str>, Value)>) -> Rc<Self> {
        Rc::new(Self { names: RefCell::new(names), parent: None })
    }

    fn inside(parent: &Rc<Self>) -> Rc<Self> {
        Rc::new(Self { names: RefCell::default(), parent: Some(parent.clone()) })
    }

    fn set(&self, name: &Arc<str>, value: Value) {
        let mut names = self.names.borrow_mut();
        match names.iter_mut().find(|(known, _)| *known == *name) {
            Some((_, old)) => *old = value,
            None => names.push((name.clone(), value)),
        }
    }

    fn get(&self, name: &str) -> Option<Value> {
        let mut scope = self;
        loop {
            if let Some((_, value)) = scope.names.borrow().iter().find(|(known, _)| **known == *name) {
                return Some(value.clone());
            }
            scope = scope.parent.as_deref()?;
        }
    }
}

/// The variable `loop`.
pub struct Loop {
    /// All of them, or those that came so far where the loop does not look ahead.
    items: RefCell<Vec<Value>>,
    at: Cell<usize>,
    depth: usize,
    /// What `loop.changed` saw last.
    pub changed: RefCell<Option<Vec<Value>>>,
    /// For `loop(...)` in a recursive loop.
    recursive: Option<(Arc<For>, Rc<Scope>)>,
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

#[derive(Default)]
pub struct Renderer {
    steps: Cell<u64>,
    made: Cell<usize>,
    depth: Cell<u32>,
}

impl Renderer {
    pub fn render(&self, body: &[Statement], names: Vec<(Arc<str>, Value)>) -> Result<String, Error> {
        let mut out = String::new();
        self.run(body, &Scope::root(names), &mut out)?;
        Ok(out)
    }

    fn step(&self, steps: usize) -> Result<(), Error> {
        let total = self.steps.get() + steps as u64;
        self.steps.set(total);
        if total > FUEL { Err(Error::new(Trouble::Fuel, "too many steps")) } else { Ok(()) }
    }

    /// Counts a new value.
    fn made(&self, value: Value) -> Result<Value, Error> {
        let bytes = match &value {
            Value::Str(text) => text.text.len(),
            Value::List(items) => items.len() * VALUE,
            Value::Tuple(tuple) => tuple.items.len() * VALUE,
            Value::View(view) => view.items.len() * VALUE,
            Value::Iterator(rest) => rest.borrow().len() * VALUE,
            Value::Dict(items) => items.len() * 2 * VALUE,
            _ => return Ok(value),
        };
        self.count(bytes)?;
        if bytes > MAX_TEXT {
            return Err(Error::new(Trouble::Size, "a value is too long"));
        }
        Ok(value)
    }

    fn count(&self, bytes: usize) -> Result<(), Error> {
        self.step(bytes / 64)?;
        self.made.set(self.made.get() + bytes);
        if self.made.get() > MAX_MADE {
            return Err(Error::new(Trouble::Size, "the values are too many or too long"));
        }
        Ok(())
    }

    fn deeper<T>(&self, run: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        self.depth.set(self.depth.get() + 1);
        let result = if self.depth.get() > MAX_DEPTH {
            Err(Error::new(Trouble::Depth, "it calls itself too deeply"))
        } else {
            run()
        };
        self.depth.set(self.depth.get() - 1);
        result
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
                match &value {
                    Value::Str(text) => self.write(out, &text.text)?,
                    other => self.write(out, &other.to_str()?)?,
                }
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
                let value = Callable::Macro { declared: declared.clone(), scope: scope.clone() };
                scope.set(&declared.name, Value::Callable(Rc::new(value)));
            }
            StatementKind::CallBlock { caller, call } => {
                let caller = Callable::Macro { declared: caller.clone(), scope: scope.clone() };
                let Expr::Call(function, arguments) = call else { return Ok(Flow::On) };
                let function = self.eval(function, scope)?;
                let mut given = self.given(arguments, scope)?;
                given.named.push(("caller".into(), Value::Callable(Rc::new(caller))));
                let value = self.call(&function, &given)?;
                self.write(out, &value.to_str()?)?;
            }
            StatementKind::FilterBlock { filters, body } => {
                let value = self.captured(body, &Scope::inside(scope))?;
                let value = self.filtered(filters, value, scope)?;
                self.write(out, &value.to_str()?)?;
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
        if out.len() + text.len() > MAX_TEXT {
            return Err(Error::new(Trouble::Size, "the prompt is too long"));
        }
        out.push_str(text);
        self.step(text.len() / 64)
    }

    fn for_loop(
        &self,
        of: &Arc<For>,
        items: &Value,
        scope: &Rc<Scope>,
        depth: usize,
        out: &mut String,
    ) -> Result<Flow, Error> {
        let mut items = items.items()?;
        self.step(items.len() / 16)?;
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
        let (known, coming) = if of.looks_ahead { (items.clone(), items) } else { (Vec::new(), items) };
        let state = Rc::new(Loop {
            items: RefCell::new(known),
            at: Cell::new(0),
            depth,
            changed: RefCell::default(),
            recursive: of.recursive.then(|| (of.clone(), scope.clone())),
        });
        let name: Arc<str> = "loop".into();
        let mut at = 0;
        for item in coming {
            self.step(1)?;
            if let Some(condition) = condition
                && !self.holds(condition, of, &item, scope)?
            {
                continue;
            }
            if !of.looks_ahead {
                state.items.borrow_mut().push(item.clone());
            }
            state.at.set(at);
            at += 1;
            let inner = Scope::inside(scope);
            self.assign(&of.target, item, &inner)?;
            inner.set(&name, Value::Loop(state.clone()));
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
            Target::Name(name) => scope.set(name, value),
            Target::Attribute(name, attribute) => match scope.get(name) {
                Some(Value::Namespace(names)) => {
                    if attribute.starts_with('_') {
                        return Err(Error::new(Trouble::Other, "a namespace's name begins with `_`"));
                    }
                    names.borrow_mut().insert(Key(Value::str(attribute.clone())), value);
                }
                _ => return Err(Error::new(Trouble::Other, format!("`{name}` is no namespace"))),
            },
            Target::Tuple(targets) => {
                let values = value.items()?;
                if values.len() != targets.len() {
                    let reason = format!("{} values for {} names", values.len(), targets.len());
                    return Err(Error::new(Trouble::Other, reason));
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
            value = self.made(filters::apply(&filter.name, value, &given)?)?;
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
            given.positional.extend(self.eval(more, scope)?.items()?);
        }
        if let Some(more) = &arguments.more_named {
            let Value::Dict(items) = self.eval(more, scope)? else {
                return Err(Error::new(Trouble::Type, "what follows `**` is no mapping"));
            };
            for (Key(name), value) in items.iter() {
                let Value::Str(name) = name else {
                    return Err(Error::new(Trouble::Type, "the name of an argument is no text"));
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
            Expr::Name(name) => Ok(scope.get(name).unwrap_or_else(|| global(name))),
            _ => self.deeper(|| self.compound(expr, scope)),
        }
    }

    fn compound(&self, expr: &Expr, scope: &Rc<Scope>) -> Result<Value, Error> {
        match expr {
            Expr::Attribute(of, name) => attribute(&self.eval(of, scope)?, name),
            Expr::Item(of, index) => {
                let of = self.eval(of, scope)?;
                subscript(&of, &self.eval(index, scope)?)
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
                self.made(filters::apply(&call.name, value, &given)?)
            }
            Expr::Test(of, call) => {
                let value = self.eval(of, scope)?;
                let given = self.given(&call.arguments, scope)?;
                predicates::test(&call.name, &value, &given).map(Value::Bool)
            }
            Expr::Unary(operator, of) => {
                let value = self.eval(of, scope)?;
                match (operator, &value) {
                    (Unary::Not, _) => Ok(Value::Bool(!value.is_true())),
                    (_, Value::Undefined(name)) => Err(is_undefined(name)),
                    (Unary::Minus, Value::Float(number)) => Ok(Value::Float(-number)),
                    (Unary::Plus, Value::Float(_)) => Ok(value),
                    (Unary::Minus, _) if value.as_int().is_some() => {
                        Ok(Value::Int(-value.as_int().unwrap_or(0)))
                    }
                    (Unary::Plus, _) if value.as_int().is_some() => {
                        Ok(Value::Int(value.as_int().unwrap_or(0)))
                    }
                    _ => Err(Error::new(Trouble::Type, format!("a sign before '{}'", value.kind()))),
                }
            }
            Expr::Binary(operator, a, b) => {
                let a = self.eval(a, scope)?;
                let b = self.eval(b, scope)?;
                self.made(binary(*operator, &a, &b)?)
            }
            Expr::Concat(parts) => {
                let parts: Vec<Value> = self.all(parts, scope)?;
                self.made(join(&parts, "")?)
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
            Expr::List(items) => self.made(Value::list(self.all(items, scope)?)),
            Expr::Tuple(items) => self.made(Value::tuple(self.all(items, scope)?)),
            Expr::Dict(items) => {
                let mut dict = Dict::with_capacity(items.len());
                for (name, value) in items {
                    dict.insert(key(self.eval(name, scope)?)?, self.eval(value, scope)?);
                }
                self.made(Value::dict(dict))
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
            if matches!(operator, Comparison::In | Comparison::NotIn) {
                self.step(right.as_str().map_or(0, |text| text.len() / 64))?;
            }
            if !comparison(*operator, &left, &right)? {
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
        self.made(slice(&of, values)?)
    }

    fn call(&self, function: &Value, given: &Given) -> Result<Value, Error> {
        match function {
            Value::Callable(callable) => match &**callable {
                Callable::Macro { declared, scope } => self.call_macro(declared, scope, given),
                Callable::Method { name, allowed: false, .. } => Err(Error::new(
                    Trouble::Other,
                    format!("`{name}` would change a value, which templates must not"),
                )),
                Callable::Method { on, name, .. } => {
                    self.step(on.as_str().map_or(0, |text| text.len() / 64))?;
                    self.made(methods::call(on, name, given)?)
                }
                Callable::Global(of) => self.call_global(*of, given),
                Callable::Joiner { separator, used } => {
                    Ok(if used.replace(true) { separator.clone() } else { Value::str("") })
                }
            },
            Value::Loop(of) => {
                let [items] = given.bind(["iterable"])?;
                match (&of.recursive, items) {
                    (Some((body, scope)), Some(items)) => {
                        let mut out = String::new();
                        self.deeper(|| self.for_loop(body, &items, scope, of.depth + 1, &mut out))?;
                        self.made(Value::str(out))
                    }
                    _ => Err(Error::new(Trouble::Type, "the loop is not recursive")),
                }
            }
            Value::Undefined(name) => Err(is_undefined(name)),
            other => Err(Error::new(Trouble::Type, format!("'{}' cannot be called", other.kind()))),
        }
    }

    fn call_macro(&self, declared: &Macro, scope: &Rc<Scope>, given: &Given) -> Result<Value, Error> {
        let inner = Scope::inside(scope);
        let mut named = given.named.clone();
        let mut take = |name: &str| {
            let at = named.iter().position(|(given, _)| **given == *name)?;
            Some(named.remove(at).1)
        };
        let mut caller_is_parameter = false;
        let mut bound = Vec::new();
        for (at, (name, _)) in declared.parameters.iter().enumerate() {
            caller_is_parameter |= &**name == "caller";
            bound.push(match given.positional.get(at) {
                Some(value) => Some(value.clone()),
                None => take(name),
            });
        }
        if declared.uses_caller && !caller_is_parameter {
            let caller = take("caller").unwrap_or_else(|| Value::undefined("caller"));
            inner.set(&"caller".into(), caller);
        }
        if declared.uses_kwargs {
            let rest = named.drain(..).map(|(name, value)| (Key(Value::str(name)), value)).collect();
            inner.set(&"kwargs".into(), Value::dict(rest));
        } else if let Some((name, _)) = named.first() {
            let reason = format!("the macro `{}` takes no argument `{name}`", declared.name);
            return Err(Error::new(Trouble::Type, reason));
        }
        let extra = given.positional.get(declared.parameters.len()..).unwrap_or_default();
        if declared.uses_varargs {
            inner.set(&"varargs".into(), Value::tuple(extra.to_vec()));
        } else if !extra.is_empty() {
            let reason =
                format!("the macro `{}` takes {} arguments", declared.name, declared.parameters.len());
            return Err(Error::new(Trouble::Type, reason));
        }
        for ((name, default), value) in declared.parameters.iter().zip(bound) {
            let value = match (value, default) {
                (Some(value), _) => value,
                (None, Some(default)) => self.eval(default, &inner)?,
                (None, None) => Value::Undefined(name.clone()),
            };
            inner.set(name, value);
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
                    [Value::Namespace(from)] if of == Global::Dict => items.extend(from.borrow().clone()),
                    [pairs] => {
                        for pair in pairs.items()? {
                            let [name, value] = &pair.items()?[..] else {
                                return Err(Error::new(Trouble::Type, "pairs are expected"));
                            };
                            items.insert(key(name.clone())?, value.clone());
                        }
                    }
                    _ => return Err(Error::new(Trouble::Type, "one mapping at most")),
                }
                for (name, value) in &given.named {
                    items.insert(Key(Value::str(name.clone())), value.clone());
                }
                if of == Global::Dict {
                    return self.made(Value::dict(items));
                }
                if items.keys().any(|name| name.0.as_str().is_some_and(|name| name.starts_with('_'))) {
                    return Err(Error::new(Trouble::Other, "a namespace's name begins with `_`"));
                }
                Ok(Value::Namespace(Rc::new(RefCell::new(items))))
            }
            Global::Joiner => {
                let [separator] = given.bind(["sep"])?;
                let separator = separator.unwrap_or_else(|| Value::str(", "));
                Ok(Value::Callable(Rc::new(Callable::Joiner { separator, used: Cell::new(false) })))
            }
            Global::RaiseException => {
                let [message] = given.bind(["message"])?;
                let message = message.ok_or_else(|| Error::new(Trouble::Type, "a message is missing"))?;
                Err(Error::new(Trouble::Raised, message.to_str()?.to_string()))
            }
            Global::StrftimeNow => {
                let [format] = given.bind(["format"])?;
                match format {
                    Some(Value::Str(format)) => Ok(Value::str(now(&format.text))),
                    _ => Err(Error::new(Trouble::Type, "a format is missing")),
                }
            }
        }
    }
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
        value.as_int().ok_or_else(|| Error::new(Trouble::Type, format!("'{}' is no integer", value.kind())))
    };
    let (start, stop, step) = match &given.positional[..] {
        _ if !given.named.is_empty() => {
            return Err(Error::new(Trouble::Type, "range takes no named arguments"));
        }
        [stop] => (0, int(stop)?, 1),
        [start, stop] => (int(start)?, int(stop)?, 1),
        [start, stop, step] => (int(start)?, int(stop)?, int(step)?),
        _ => return Err(Error::new(Trouble::Type, "range takes one to three arguments")),
    };
    let small = |number: i128| number.unsigned_abs() < 1 << 64;
    if step == 0 || !small(start) || !small(stop) || !small(step) {
        return Err(Error::new(Trouble::Other, "the range is not valid"));
    }
    let range = Range { start, stop, step };
    if range.len() > MAX_RANGE {
        return Err(Error::new(Trouble::Other, "the range is too long"));
    }
    Ok(Value::Range(range))
}
