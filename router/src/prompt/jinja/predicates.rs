//! Jinja2's tests: what stands after `is`.

use std::rc::Rc;

use super::ast::{Binary, Comparison};
use super::filters;
use super::methods::{Given, is_cased};
use super::operators::{binary, comparison, contains};
use super::value::{Text, Value, equal};
use super::{Error, Trouble};

pub fn test(name: &str, value: &Value, given: &Given) -> Result<bool, Error> {
    let other = || -> Result<Value, Error> {
        let [other] = given.bind(["other"])?;
        other.ok_or_else(|| Error::new(Trouble::Type, format!("the test `{name}` needs a value")))
    };
    let compared = |operator: Comparison| comparison(operator, value, &other()?);
    let holds = match name {
        "==" | "eq" | "equalto" => return compared(Comparison::Equal),
        "!=" | "ne" => return compared(Comparison::NotEqual),
        ">" | "gt" | "greaterthan" => return compared(Comparison::Greater),
        ">=" | "ge" => return compared(Comparison::GreaterOrEqual),
        "<" | "lt" | "lessthan" => return compared(Comparison::Less),
        "<=" | "le" => return compared(Comparison::LessOrEqual),
        "in" => return contains(&other()?, value),
        "sameas" => return Ok(is_same(value, &other()?)),
        "divisibleby" => {
            let [number] = given.bind(["num"])?;
            let number = number.ok_or_else(|| Error::new(Trouble::Type, "a number is missing"))?;
            return Ok(equal(&binary(Binary::Modulo, value, &number)?, &Value::Int(0)));
        }
        "odd" | "even" => {
            let rest = binary(Binary::Modulo, value, &Value::Int(2))?;
            equal(&rest, &Value::Int(i128::from(name == "odd")))
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
        "sequence" => !matches!(value, Value::View(_) | Value::Loop(_)) && value.len().is_some(),
        "iterable" => value.is_iterable(),
        "callable" => matches!(value, Value::Callable(_) | Value::Loop(_) | Value::Undefined(_)),
        "escaped" => matches!(value, Value::Str(Text { safe: true, .. })),
        "lower" => is_cased(&value.to_str()?, char::is_lowercase, char::is_uppercase),
        "upper" => is_cased(&value.to_str()?, char::is_uppercase, char::is_lowercase),
        "filter" => value.as_str().is_some_and(filters::is_known),
        "test" => value.as_str().is_some_and(is_known),
        _ => return Err(Error::new(Trouble::Unknown, format!("the test `{name}`"))),
    };
    given.bind([])?;
    Ok(holds)
}

fn is_known(name: &str) -> bool {
    !matches!(test(name, &Value::None, &Given::default()), Err(error) if error.trouble == Trouble::Unknown)
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
        (Value::Namespace(a), Value::Namespace(b)) => Rc::ptr_eq(a, b),
        _ => false,
    }
}
