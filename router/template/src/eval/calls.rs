//! Calls: of macros, of methods, and of the functions that every template has.

use std::rc::Rc;

use super::{Renderer, gone};
use crate::arguments::Given;
use crate::ast::Macro;
use crate::format::now;
use crate::methods;
use crate::value::{
    Callable, Dict, Global, Key, Loop, Range, Scope, Value, equal, is_undefined, key, looked_at,
};
use crate::{Error, ErrorKind};

/// Python's limit for `range` in a sandbox.
const MAX_RANGE: usize = 100_000;
/// What a template raises is told to the client; characters of it.
const MAX_RAISED: usize = 2000;

impl Renderer {
    pub(super) fn call(&self, function: &Value, given: &Given) -> Result<Value, Error> {
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
    pub(super) fn changed(&self, of: &Loop, values: &[Value]) -> Result<Value, Error> {
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
