//! What a filter finds in a value by a name or an index.

use std::sync::Arc;

use crate::Error;
use crate::budget::Budget;
use crate::methods::method_of;
use crate::subscripts::item;
use crate::value::{Text, Value, is_undefined};

/// `value.name`, as `eval` looks it up, for the filters that take the name of an attribute.
pub fn attribute(value: &Value, name: &Arc<str>, budget: &Budget) -> Result<Value, Error> {
    if let Value::Undefined(of) = value {
        return Err(is_undefined(of));
    }
    if let Some(found) = own_attribute(value, name) {
        return Ok(found);
    }
    Ok(item(value, &Value::Str(Text { text: name.clone(), safe: false }), budget)?
        .unwrap_or_else(|| Value::Undefined(name.clone())))
}

/// `value[index]`.
pub fn subscript(value: &Value, index: &Value, budget: &Budget) -> Result<Value, Error> {
    if let Some(found) = item(value, index, budget)? {
        return Ok(found);
    }
    let name: Arc<str> = match index {
        Value::Str(name) => name.text.clone(),
        other => return Ok(Value::undefined(other.repr(budget)?)),
    };
    Ok(own_attribute(value, &name).unwrap_or(Value::Undefined(name)))
}

/// What is no item: methods, and the names of namespaces and loops.
pub(super) fn own_attribute(value: &Value, name: &Arc<str>) -> Option<Value> {
    match value {
        Value::Namespace(names) => crate::value::lookup(&names.upgrade()?.borrow(), name).cloned(),
        Value::Loop(of) => of.attribute(name).or_else(|| method_of(value, name)),
        Value::Tuple(tuple) if tuple.is_group && &**name == "grouper" => Some(tuple.items[0].clone()),
        Value::Tuple(tuple) if tuple.is_group && &**name == "list" => Some(tuple.items[1].clone()),
        _ => method_of(value, name),
    }
}

/// An attribute as filters name it: `a.b.0`, or a number.
pub(super) fn path(
    value: &Value,
    of: &Value,
    default: Option<&Value>,
    budget: &Budget,
) -> Result<Value, Error> {
    let mut found = of.clone();
    match value {
        Value::Str(path) => {
            for part in path.text.split('.') {
                budget.step(1)?;
                budget.read(part)?;
                let index = match part.parse::<i128>() {
                    Ok(number) if part.bytes().all(|byte| byte.is_ascii_digit()) => Value::Int(number),
                    _ => Value::str(part),
                };
                found = subscript(&found, &index, budget)?;
                if let (Value::Undefined(_), Some(default)) = (&found, default) {
                    found = default.clone();
                }
            }
        }
        index => {
            found = subscript(&found, index, budget)?;
            if let (Value::Undefined(_), Some(default)) = (&found, default) {
                found = default.clone();
            }
        }
    }
    Ok(found)
}
