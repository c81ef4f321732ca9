//! Values as Python's `str` and `repr` write them.

use std::fmt::Write;
use std::sync::Arc;

use super::{Dict, Value, too_deep};
use crate::Error;
use crate::budget::{Budget, MAX_NESTING};
use crate::text::is_printable;

impl Value {
    /// `str(value)`, which is also what `{{ value }}` prints.
    pub fn write_str(&self, out: &mut String, budget: &Budget) -> Result<(), Error> {
        match self {
            Self::Undefined(_) => Ok(()),
            Self::Str(text) => budget.push(out, &text.text),
            _ => self.write_repr(out, 0, budget),
        }
    }

    pub fn to_str(&self, budget: &Budget) -> Result<Arc<str>, Error> {
        match self {
            Self::Str(text) => Ok(text.text.clone()),
            _ => {
                let mut out = String::new();
                self.write_str(&mut out, budget)?;
                Ok(out.into())
            }
        }
    }

    pub fn repr(&self, budget: &Budget) -> Result<String, Error> {
        let mut out = String::new();
        self.write_repr(&mut out, 0, budget)?;
        Ok(out)
    }

    fn write_repr(&self, out: &mut String, depth: u32, budget: &Budget) -> Result<(), Error> {
        // Namespaces may hold themselves.
        if depth > MAX_NESTING {
            return Err(too_deep());
        }
        budget.step(1)?;
        budget.fits(out.len())?;
        let list = |out: &mut String, items: &[Value], open: &str, close: &str| -> Result<(), Error> {
            out.push_str(open);
            for (at, item) in items.iter().enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                item.write_repr(out, depth + 1, budget)?;
            }
            out.push_str(close);
            Ok(())
        };
        match self {
            Self::Undefined(_) => out.push_str("Undefined"),
            Self::None => out.push_str("None"),
            Self::Bool(true) => out.push_str("True"),
            Self::Bool(false) => out.push_str("False"),
            Self::Int(number) => drop(write!(out, "{number}")),
            Self::Float(number) => out.push_str(&float(*number)),
            Self::Str(text) if text.safe => {
                out.push_str("Markup(");
                quote(out, &text.text, budget)?;
                out.push(')');
            }
            Self::Str(text) => quote(out, &text.text, budget)?,
            Self::List(items) => list(out, items, "[", "]")?,
            Self::Tuple(tuple) => {
                list(out, &tuple.items, "(", if tuple.items.len() == 1 { ",)" } else { ")" })?;
            }
            Self::View(view) => {
                out.push_str(view.name);
                list(out, &view.items, "([", "])")?;
            }
            Self::Dict(items) => write_dict(out, items, depth, budget)?,
            Self::Range(range) if range.step == 1 => {
                let _ = write!(out, "range({}, {})", range.start, range.stop);
            }
            Self::Range(range) => {
                let _ = write!(out, "range({}, {}, {})", range.start, range.stop, range.step);
            }
            Self::Namespace(names) => {
                out.push_str("<Namespace ");
                if let Some(names) = names.upgrade() {
                    write_dict(out, &names.borrow(), depth, budget)?;
                }
                out.push('>');
            }
            Self::Loop(of) => drop(write!(out, "<LoopContext {}/{}>", of.index() + 1, of.len())),
            // Python prints an address here, which no template can want.
            Self::Iterator(_) | Self::Callable(_) => drop(write!(out, "<{}>", self.kind())),
        }
        Ok(())
    }
}

fn write_dict(out: &mut String, items: &Dict, depth: u32, budget: &Budget) -> Result<(), Error> {
    out.push('{');
    for (at, (key, value)) in items.iter().enumerate() {
        out.push_str(if at > 0 { ", " } else { "" });
        key.0.write_repr(out, depth + 1, budget)?;
        out.push_str(": ");
        value.write_repr(out, depth + 1, budget)?;
    }
    out.push('}');
    Ok(())
}

/// A string as Python's `repr` writes it.
fn quote(out: &mut String, text: &str, budget: &Budget) -> Result<(), Error> {
    budget.read(text)?;
    budget.fits(out.len().saturating_add(text.len()))?;
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote || c == '\\' => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            c => {
                budget.fits(out.len())?;
                let code = u32::from(c);
                let _ = match code {
                    0..=0xFF => write!(out, "\\x{code:02x}"),
                    0x100..=0xFFFF => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
    Ok(())
}

/// The shortest digits that read back as the same number, with an exponent where Python uses one.
pub fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..16).contains(&exponent) => {
            format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
        }
        _ => {
            let plain = number.to_string();
            if plain.contains('.') { plain } else { plain + ".0" }
        }
    }
}
