//! What a request asks for and does not get. Each such field is named in the answer's `warnings`; with
//! `--strict-requests` the request is refused instead. The dialects collect, and settle before anything runs.

use std::borrow::Cow;

use penstock_output::Unbound;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Serialize, Serializer};

use crate::http::error::{ApiError, Place};
use crate::http::fields::Fields;
use crate::http::request_fields::Field;
use crate::http::shortened::shortened;
use crate::limits::Limits;

/// One for each field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Warnings(Vec<Warning>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Warning {
    field: String,
    /// Names the field first, in backticks.
    line: String,
}

impl Serialize for Warnings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.lines())
    }
}

impl JsonSchema for Warnings {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Warnings".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut lines = <Vec<String>>::json_schema(generator);
        lines.insert("description".into(), "Fields of the request that have no effect".into());
        lines
    }
}

/// As many as help; a body of a thousand strange names is not answered with a thousand lines.
const MOST: usize = 16;

impl Warnings {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn lines(&self) -> Vec<&str> {
        self.0.iter().map(|warning| &*warning.line).collect()
    }

    /// `why` ends the sentence "`name` has no effect ...".
    pub fn no_effect(&mut self, name: &str, why: &str) {
        self.push(name.into(), format!("`{name}` has no effect {why}"));
    }

    /// Of a field that is not without effect as a whole.
    pub fn part_without_effect(&mut self, name: &str, part: &str, why: &str) {
        self.push(name.into(), format!("`{name}` has {part}, which has no effect {why}"));
    }

    /// Names what is given and in none of the route's tables. `path` goes before the names.
    pub fn unknown<'t>(&mut self, fields: &Fields, path: &str, known: impl Iterator<Item = &'t str> + Clone) {
        for name in fields.names() {
            if self.0.len() > MOST {
                return;
            }
            if !known.clone().any(|known| known == name) {
                let field = format!("{path}{}", shortened(name));
                let line = format!("`{field}` is not a field of this route and has no effect");
                self.push(field, line);
            }
        }
    }

    /// Functions of `field` whose calls the answer is not held to, though it was to be where it can.
    pub fn unbound(&mut self, field: &'static str, unbound: &[Unbound]) {
        for Unbound { at, why } in unbound {
            let place = Place::from(field).pointer(at);
            let of = match &**at {
                "" => "what calls are",
                _ => "calls of its function, nor has the rest of its schema",
            };
            self.no_effect(&place.to_string(), &format!("on {of}: {why}"));
        }
    }

    /// Those of a part of the request, which `path` names.
    pub fn take_over(&mut self, path: &str, part: Warnings) {
        for Warning { field, line } in part.0 {
            self.push(field, format!("{path}: {line}"));
        }
    }

    /// What the answer says; or, where the server is strict, the error.
    pub fn settle(self, limits: &Limits) -> Result<Self, ApiError> {
        match self.0.first() {
            Some(first) if limits.strict_requests => {
                let text = format!("{} (--strict-requests)", self.lines().join("; "));
                Err(ApiError::together(first.field.clone(), text))
            }
            _ => Ok(self),
        }
    }

    fn push(&mut self, field: String, line: String) {
        match self.0.len() {
            ..MOST => self.0.push(Warning { field, line }),
            MOST => self.0.push(Warning { field, line: "more fields have no effect".into() }),
            _ => {}
        }
    }
}

/// The names of a table's fields.
pub fn names(table: &'static [&'static Field]) -> impl Iterator<Item = &'static str> + Clone {
    table.iter().map(|field| field.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::fields::tests::limits;

    fn unknown(body: &str) -> Warnings {
        let limits = limits();
        let fields = Fields::parse(body.as_bytes(), &limits).expect("JSON");
        let mut warnings = Warnings::default();
        warnings.unknown(&fields, "", ["a", "b"].into_iter());
        warnings
    }

    #[test]
    fn what_is_in_no_table_is_named_in_order() {
        assert!(unknown(r#"{"a": 1, "b": null, "c": null}"#).is_empty());
        let lines = ["c", "d"].map(|name| format!("`{name}` is not a field of this route and has no effect"));
        assert_eq!(unknown(r#"{"d": [], "a": 1, "c": 0}"#).lines(), lines);
    }

    #[test]
    fn there_are_never_very_many() {
        let members: Vec<_> = (0..1000).map(|n| format!("\"field{n:04}\": 1")).collect();
        let warnings = unknown(&format!("{{{}}}", members.join(",")));
        assert_eq!(warnings.lines().len(), MOST + 1);
        assert_eq!(warnings.lines()[MOST], "more fields have no effect");
    }

    #[test]
    fn a_strict_server_refuses_by_name() {
        let lenient = limits();
        let strict = Limits { strict_requests: true, ..limits() };
        let mut warnings = Warnings::default();
        assert!(warnings.clone().settle(&strict).is_ok());
        warnings.no_effect("user", "here");
        warnings.no_effect("store", "here");
        assert_eq!(warnings.clone().settle(&lenient), Ok(warnings.clone()));
        let error = warnings.settle(&strict).expect_err("strict").to_string();
        assert_eq!(error, "`user` has no effect here; `store` has no effect here (--strict-requests)");
    }
}
