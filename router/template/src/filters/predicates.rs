//! Jinja2's tests: what stands after `is`.

use std::rc::Rc;

use crate::arguments::Given;
use crate::ast::{Binary, Comparison};
use crate::budget::Budget;
use crate::methods::is_cased;
use crate::operators::{binary, comparison, contains};
use crate::value::{Text, Value, equal};
use crate::{Error, ErrorKind};

pub fn test(name: &str, value: &Value, given: &Given, budget: &Budget) -> Result<bool, Error> {
    let other = || -> Result<Value, Error> {
        let [other] = given.bind(["other"])?;
        other.ok_or_else(|| Error::new(ErrorKind::Type, format!("the test `{name}` needs a value")))
    };
    let compared = |operator: Comparison| comparison(operator, value, &other()?, budget);
    let holds = match name {
        "==" | "eq" | "equalto" => return compared(Comparison::Equal),
        "!=" | "ne" => return compared(Comparison::NotEqual),
        ">" | "gt" | "greaterthan" => return compared(Comparison::Greater),
        ">=" | "ge" => return compared(Comparison::GreaterOrEqual),
        "<" | "lt" | "lessthan" => return compared(Comparison::Less),
        "<=" | "le" => return compared(Comparison::LessOrEqual),
        "in" => return contains(&other()?, value, budget),
        "sameas" => {
            budget.read(value.as_str().unwrap_or_default())?;
            return Ok(is_same(value, &other()?));
        }
        "divisibleby" => {
            let [number] = given.bind(["num"])?;
            let number = number.ok_or_else(|| Error::new(ErrorKind::Type, "a number is missing"))?;
            return equal(&binary(Binary::Modulo, value, &number, budget)?, &Value::Int(0), budget);
        }
        "odd" | "even" => {
            let rest = binary(Binary::Modulo, value, &Value::Int(2), budget)?;
            equal(&rest, &Value::Int(i128::from(name == "odd")), budget)?
        }
        "defined" => !value.is_undefined(),
        "undefined" => value.is_undefined(),
        "none" => value.is_none(),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => value.as_number().is_some(),
        "string" => matches!(value, Value::Str(_)),
        "mapping" => matches!(value, Value::Dict(_)),
        // What has a length and can be subscripted.
        "sequence" => !matches!(value, Value::View(_) | Value::Loop(_)) && value.has_len(),
        "iterable" => value.is_iterable(),
        "callable" => matches!(value, Value::Callable(_) | Value::Loop(_) | Value::Undefined(_)),
        "escaped" => matches!(value, Value::Str(Text { safe: true, .. })),
        "lower" => is_cased(&read(value, budget)?, char::is_lowercase, char::is_uppercase),
        "upper" => is_cased(&read(value, budget)?, char::is_uppercase, char::is_lowercase),
        "filter" => value.as_str().is_some_and(|name| super::is_known(name, budget)),
        "test" => value.as_str().is_some_and(|name| is_known(name, budget)),
        _ => return Err(Error::new(ErrorKind::Unknown, format!("the test `{name}`"))),
    };
    given.bind([])?;
    Ok(holds)
}

/// The text of a value that is about to be read.
fn read(value: &Value, budget: &Budget) -> Result<std::sync::Arc<str>, Error> {
    let text = value.to_str(budget)?;
    budget.read(&text)?;
    Ok(text)
}

fn is_known(name: &str, budget: &Budget) -> bool {
    !matches!(test(name, &Value::None, &Given::default(), budget), Err(error) if error.kind == ErrorKind::Unknown)
}

/// Python's `is`, as far as a template can tell: small values are one object each.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::None, Value::None) => true,
        (Value::Int(a), Value::Int(b)) => a == b,
        (Value::Str(a), Value::Str(b)) => a.text == b.text,
        (Value::List(a), Value::List(b)) => Rc::ptr_eq(a, b),
        (Value::Tuple(a), Value::Tuple(b)) => Rc::ptr_eq(a, b),
        (Value::Dict(a), Value::Dict(b)) => Rc::ptr_eq(a, b),
        (Value::Namespace(a), Value::Namespace(b)) => std::rc::Weak::ptr_eq(a, b),
        _ => false,
    }
}
