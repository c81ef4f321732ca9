//! Values out of JSON, and as `tojson` writes them.

use std::cmp::Ordering;
use std::fmt::Write;
use std::sync::Arc;

use serde_json::Value as Json;

use super::{Key, Value, compare, float, sorted};
use crate::budget::Budget;
use crate::{Error, ErrorKind};

impl Value {
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
