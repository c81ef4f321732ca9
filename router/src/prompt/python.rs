//! Values as Python writes them: `str`, `repr` and `json.dumps`. Chat templates are written for Jinja on
//! Python, so what they print must look as it does there. Called by `template` only.

use std::fmt::Write;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Deeper values are refused rather than risking the stack; JSON from clients is never as deep.
const MAX_DEPTH: usize = 200;

/// `str(value)`, which is also what `{{ value }}` prints.
pub fn to_str(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(String::new()),
        ValueKind::String => Ok(value.to_string()),
        _ => repr(value),
    }
}

/// `repr(value)`. Lists and tuples are one type here, and are written as lists.
pub fn repr(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    write_repr(&mut out, value, 0)?;
    Ok(out)
}

fn write_repr(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    check_depth(depth)?;
    match value.kind() {
        ValueKind::String => write_quoted(out, value.as_str().unwrap_or_default()),
        ValueKind::Number if !value.is_integer() => out.push_str(&float(f64::try_from(value.clone())?)),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (at, item) in value.try_iter()?.enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                write_repr(out, &item, depth + 1)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (at, key) in value.try_iter()?.enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                write_repr(out, &key, depth + 1)?;
                out.push_str(": ");
                write_repr(out, &value.get_item(&key)?, depth + 1)?;
            }
            out.push('}');
        }
        // minijinja writes integers, True, False and None as Python does.
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

fn write_quoted(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote || c == '\\' => out.extend(['\\', c]),
            c if c.is_control() => drop(write!(out, "\\x{:02x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// The shortest digits that read back as the same number, with an exponent where Python uses one.
fn float(number: f64) -> String {
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

/// `json.dumps` with the arguments that transformers gives to its `tojson` filter.
pub struct JsonStyle {
    ensure_ascii: bool,
    /// What each level is indented by; on one line when `None`.
    indent: Option<String>,
    between_items: String,
    after_key: String,
    sort_keys: bool,
}

impl JsonStyle {
    /// From the filter's arguments: the first three by position or by name, `sort_keys` by name.
    pub fn new(positions: [Option<Value>; 3], named: &Kwargs) -> Result<Self, Error> {
        let [ensure_ascii, indent, separators] = positions;
        let given = |position: Option<Value>, name| -> Result<Option<Value>, Error> {
            let value = position.or(named.get::<Option<Value>>(name)?);
            Ok(value.filter(|value| !value.is_none() && !value.is_undefined()))
        };
        let ensure_ascii = given(ensure_ascii, "ensure_ascii")?;
        let indent = match given(indent, "indent")? {
            Some(text) if text.as_str().is_some() => text.as_str().map(str::to_owned),
            // Python indents by a bool as by a number.
            Some(width) => Some(" ".repeat(i64::try_from(width)?.clamp(0, 64) as usize)),
            None => None,
        };
        let (between_items, after_key) = match given(separators, "separators")? {
            Some(pair) => (to_str(&pair.get_item_by_index(0)?)?, to_str(&pair.get_item_by_index(1)?)?),
            None if indent.is_some() => (",".into(), ": ".into()),
            None => (", ".into(), ": ".into()),
        };
        let sort_keys = given(None, "sort_keys")?;
        named.assert_all_used()?;
        let is_true = |value: Option<Value>| value.is_some_and(|value| value.is_true());
        Ok(Self {
            ensure_ascii: is_true(ensure_ascii),
            indent,
            between_items,
            after_key,
            sort_keys: is_true(sort_keys),
        })
    }

    pub fn dumps(&self, value: &Value) -> Result<String, Error> {
        let mut out = String::new();
        self.write(&mut out, value, 0)?;
        Ok(out)
    }

    fn write(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        check_depth(depth)?;
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => out.push_str(&value.to_string()),
            ValueKind::Number => out.push_str(&self.number(f64::try_from(value.clone())?)),
            ValueKind::String => self.string(out, value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.group(out, ['[', ']'], depth, &items, |out, item| self.write(out, item, depth + 1))?;
            }
            ValueKind::Map => {
                let mut entries = Vec::new();
                for key in value.try_iter()? {
                    entries.push((self.key(&key)?, value.get_item(&key)?));
                }
                if self.sort_keys {
                    entries.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.group(out, ['{', '}'], depth, &entries, |out, (key, item)| {
                    self.string(out, key);
                    out.push_str(&self.after_key);
                    self.write(out, item, depth + 1)
                })?;
            }
            other => {
                return Err(Error::new(
                    ErrorKind::BadSerialization,
                    format!("tojson was given an {other} value"),
                ));
            }
        }
        Ok(())
    }

    fn group<T>(
        &self,
        out: &mut String,
        [open, close]: [char; 2],
        depth: usize,
        items: &[T],
        mut write: impl FnMut(&mut String, &T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let new_line = |out: &mut String, depth: usize| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                out.extend(std::iter::repeat_n(indent.as_str(), depth));
            }
        };
        out.push(open);
        for (at, item) in items.iter().enumerate() {
            out.push_str(if at > 0 { &self.between_items } else { "" });
            new_line(out, depth + 1);
            write(out, item)?;
        }
        if !items.is_empty() {
            new_line(out, depth);
        }
        out.push(close);
        Ok(())
    }

    fn key(&self, key: &Value) -> Result<String, Error> {
        match key.kind() {
            ValueKind::None => Ok("null".into()),
            ValueKind::Bool => Ok(key.is_true().to_string()),
            ValueKind::Number if !key.is_integer() => Ok(self.number(f64::try_from(key.clone())?)),
            _ => to_str(key),
        }
    }

    fn number(&self, number: f64) -> String {
        match float(number).as_str() {
            "nan" => "NaN".into(),
            "inf" => "Infinity".into(),
            "-inf" => "-Infinity".into(),
            text => text.into(),
        }
    }

    fn string(&self, out: &mut String, text: &str) {
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
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

fn check_depth(depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::new(ErrorKind::InvalidOperation, "a value is nested too deeply"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn dumps(value: serde_json::Value, named: &[(&str, Value)]) -> String {
        let named = Kwargs::from_iter(named.iter().map(|(name, value)| (*name, value.clone())));
        let style = JsonStyle::new([None, None, None], &named).unwrap();
        style.dumps(&Value::from_serialize(value)).unwrap()
    }

    #[test]
    fn json_is_written_as_python_writes_it() {
        let value =
            json!({"b": [1, 2.5, 1e-7, 1e16, true, null], "a": "<é & '\"\n\u{1}😀>", "c": {}, "d": []});
        assert_eq!(
            dumps(value.clone(), &[]),
            r#"{"b": [1, 2.5, 1e-07, 1e+16, true, null], "a": "<é & '\"\n\u0001😀>", "c": {}, "d": []}"#
        );
        assert_eq!(
            dumps(value, &[("ensure_ascii", true.into()), ("sort_keys", true.into())]),
            r#"{"a": "<\u00e9 & '\"\n\u0001\ud83d\ude00>", "b": [1, 2.5, 1e-07, 1e+16, true, null], "c": {}, "d": []}"#
        );
    }

    #[test]
    fn json_can_be_indented_and_separated() {
        let value = json!({"a": [1, {"b": 2}], "c": []});
        assert_eq!(
            dumps(value.clone(), &[("indent", 2.into())]),
            "{\n  \"a\": [\n    1,\n    {\n      \"b\": 2\n    }\n  ],\n  \"c\": []\n}"
        );
        assert_eq!(dumps(json!([1]), &[("indent", "\t".into())]), "[\n\t1\n]");
        assert_eq!(dumps(value, &[("separators", vec![",", ":"].into())]), r#"{"a":[1,{"b":2}],"c":[]}"#);
    }

    #[test]
    fn what_json_cannot_hold_is_an_error() {
        let style = JsonStyle::new([None, None, None], &Kwargs::from_iter([] as [(&str, Value); 0])).unwrap();
        assert!(style.dumps(&Value::UNDEFINED).is_err());
        let deep = (0..1000).fold(Value::from(1), |inner, _| Value::from(vec![inner]));
        assert!(style.dumps(&deep).is_err());
        assert!(repr(&deep).is_err());
    }

    #[test]
    fn values_are_printed_as_python_prints_them() {
        let value = |json| to_str(&Value::from_serialize::<serde_json::Value>(json)).unwrap();
        assert_eq!(
            value(json!(["a", "it's", "\"'", 1, 1.0, true, null, {"k": "é\n"}])),
            r#"['a', "it's", '"\'', 1, 1.0, True, None, {'k': 'é\n'}]"#
        );
        assert_eq!(value(json!("plain 'text'")), "plain 'text'");
        assert_eq!(value(json!(0.1)), "0.1");
        assert_eq!(value(json!(123456789012345680.0)), "1.2345678901234568e+17");
        assert_eq!(to_str(&Value::UNDEFINED).unwrap(), "");
    }
}
