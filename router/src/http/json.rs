//! JSON as bodies have it: strings, numbers and members that stay text until they are asked for, trees without a name
//! twice, and what is wrong with a body that is none. Called by `fields`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::http::error::{ApiError, Cause};
use crate::http::request_fields::DEPTH;
use crate::http::shortened::shortened;

/// A string of JSON, borrowed when it has no escapes.
pub fn text_of(raw: &RawValue) -> Option<Cow<'_, str>> {
    let text = raw.get();
    let inner = text.strip_prefix('"')?.strip_suffix('"')?;
    // The parser has refused control characters and stray quotes: without escapes, this is the string.
    if inner.contains('\\') {
        serde_json::from_str(text).ok().map(Cow::Owned)
    } else {
        Some(Cow::Borrowed(inner))
    }
}

/// A JSON number without a fractional part. `10.0` and `1e3` are not taken, as in TGI.
pub fn whole_number(text: &str) -> Option<i128> {
    text.parse().ok()
}

/// A JSON number that a double can hold.
pub fn finite(text: &str) -> Option<f64> {
    let numeric = text.starts_with(|first: char| first == '-' || first.is_ascii_digit());
    text.parse().ok().filter(|value: &f64| numeric && value.is_finite())
}

/// A body that is no JSON. NaN and Infinity are what clients in Python really send: they get the name of
/// the field rather than a position.
pub fn malformed(body: &[u8], error: &serde_json::Error) -> ApiError {
    if body.iter().all(u8::is_ascii_whitespace) {
        return ApiError::new(Cause::MalformedBody, "the body is empty; a JSON object is expected");
    }
    let Ok(text) = std::str::from_utf8(body) else {
        return ApiError::new(Cause::MalformedBody, "the body is not valid UTF-8");
    };
    let before_line: usize =
        text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
    let at = (before_line + error.column().saturating_sub(1)).min(text.len());
    if let Some((name, literal)) = not_a_number(text, at) {
        let name = shortened(&name).into_owned();
        return ApiError::invalid(name, "must be a finite number").given(literal);
    }
    if error.is_eof() {
        return ApiError::new(Cause::MalformedBody, "the body is not valid JSON: it ends too early");
    }
    let message = format!("the body is not valid JSON at line {}, column {}", error.line(), error.column());
    ApiError::new(Cause::MalformedBody, message)
}

/// The field whose value, around byte `at`, is a literal that JSON does not have.
fn not_a_number(text: &str, at: usize) -> Option<(String, &'static str)> {
    const LITERALS: [&str; 5] = ["NaN", "Infinity", "-Infinity", "-NaN", "+Infinity"];
    let (before, literal) = (at.saturating_sub(1)..=at).find_map(|start| {
        let rest = text.get(start..)?;
        let literal = LITERALS.into_iter().find(|literal| rest.starts_with(literal))?;
        Some((&text[..start], literal))
    })?;
    let key = before.trim_end().strip_suffix(':')?.trim_end().strip_suffix('"')?;
    Some((key[key.rfind('"')? + 1..].to_string(), literal))
}

/// A nested value that was text in order, but not as a tree.
pub fn unreadable(name: &'static str, error: &serde_json::Error) -> ApiError {
    let why = no_tree(error).unwrap_or_else(|| "holds a string that is not valid Unicode".into());
    ApiError::invalid(name, why)
}

/// Why text that is JSON is no tree of ours.
pub fn no_tree(error: &serde_json::Error) -> Option<String> {
    let text = error.to_string();
    if let Some(twice) = text.strip_prefix(TWICE) {
        let member = twice.rsplit_once(" at line ").map_or(twice, |(member, _)| member);
        Some(format!("has `{}` twice in one object", shortened(member)))
    } else if text.starts_with("recursion limit") {
        Some(format!("is nested too deeply: at most {DEPTH} levels"))
    } else if text.starts_with("number out of range") {
        Some("holds a number that is not finite".into())
    } else {
        None
    }
}

/// The tree that a string of a request holds, in which no object has a name twice.
pub fn tree_of(text: &str) -> Result<Value, serde_json::Error> {
    let mut read = serde_json::Deserializer::from_str(text);
    let tree = UniqueNames.deserialize(&mut read)?;
    read.end()?;
    Ok(tree)
}

/// An object's members, and the first name that is there twice.
pub struct Members<'a> {
    pub by_name: HashMap<Cow<'a, str>, &'a RawValue>,
    pub twice: Option<String>,
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Members { by_name: HashMap::new(), twice: None };
                while let Some(Name(name)) = map.next_key()? {
                    let value = map.next_value()?;
                    if members.twice.is_none() && members.by_name.contains_key(&name) {
                        members.twice = Some(name.clone().into_owned());
                    }
                    members.by_name.insert(name, value);
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(Read)
    }
}

/// A member's name, borrowed when it has no escapes.
struct Name<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a name")
            }

            fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Self::Value, E> {
                Ok(Name(Cow::Borrowed(name)))
            }

            fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
                Ok(Name(Cow::Owned(name.to_string())))
            }
        }
        deserializer.deserialize_str(Read)
    }
}

const TWICE: &str = "given twice: ";

/// Builds a tree as `serde_json::Value` does, but refuses an object with a name twice.
pub struct UniqueNames;

impl<'de> DeserializeSeed<'de> for UniqueNames {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for UniqueNames {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_string()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = seq.next_element_seed(UniqueNames)? {
            list.push(value);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = serde_json::Map::new();
        while let Some(name) = map.next_key::<String>()? {
            let value = map.next_value_seed(UniqueNames)?;
            if object.contains_key(&name) {
                return Err(A::Error::custom(format!("{TWICE}{name}")));
            }
            object.insert(name, value);
        }
        Ok(Value::Object(object))
    }
}
