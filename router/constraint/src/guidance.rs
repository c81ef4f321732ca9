//! What llguidance is told of JSON, and what its errors mean.

use serde_json::{Value, json};

use crate::{
    error::{CompileError, Kind, first_line},
    lark,
    source::Source,
};

/// Space between JSON's tokens: none, one space, or a new line with an indent. It is bounded, because a model that
/// may emit space without end sometimes does.
const JSON_SPACE: &str = r"[ ]|\r?\n(?:[ ]{0,32}|\t{0,8})";
/// What may follow a backslash in JSON's strings. Without `u`: a name that can be spelled in two ways could be given
/// twice, once past what its property demands.
const JSON_ESCAPES: &str = "nrbtf\\\"";

/// How llguidance is to write JSON. This is ours to say: a client's own options are not in `core`.
pub(crate) fn with_options(core: Value) -> Value {
    let mut schema = match core {
        Value::Object(members) => members,
        other => json!({"allOf": [other]}).as_object().cloned().unwrap_or_default(),
    };
    schema.insert(
        "x-guidance".into(),
        json!({
            "item_separator": ",",
            "key_separator": ":",
            "whitespace_flexible": true,
            "whitespace_pattern": JSON_SPACE,
            "json_allowed_escapes": JSON_ESCAPES,
        }),
    );
    Value::Object(schema)
}

/// Sorts an error of llguidance by its text, as it has no kinds of its own, and says it in our words. Only what is
/// wrong with a Lark grammar or an expression is in its: that is about the client's own text.
pub(crate) fn classify(text: &str, source: &Source) -> CompileError {
    const KNOWN: [(&str, Kind, &str); 10] = [
        (
            "Unable to determine",
            Kind::TooLarge,
            "the patterns and formats that must match together are too complex",
        ),
        (
            "circular references",
            Kind::Unsupported,
            "a recursive `$ref` beside other keywords is not supported",
        ),
        (
            "not disjoint",
            Kind::Unsupported,
            "two of the `patternProperties` match the same name, which is not supported",
        ),
        ("can't determine", Kind::Unsupported, "two of the `patternProperties` may match the same name"),
        (
            "all keys listed",
            Kind::Unsupported,
            "`minProperties` or `maxProperties` is not supported beside `allOf` here",
        ),
        ("stack level", Kind::TooLarge, "the schemas that `allOf` brings together are nested too deeply"),
        ("schema too large", Kind::TooLarge, "the schema is made of too many schemas"),
        ("too big", Kind::TooLarge, "the grammar is too large once it is compiled"),
        ("fuel", Kind::TooLarge, "the grammar's lexer is too large"),
        ("too large", Kind::TooLarge, "the grammar is too large once it is compiled"),
    ];
    // How llguidance says that its 16 bits for a symbol are too few.
    if text.contains("symbols.len() < u16::MAX") {
        return CompileError::new(
            Kind::TooLarge,
            "the grammar has more than 65525 symbols once it is compiled",
        );
    }
    if text.contains("panic:") {
        tracing::warn!(cause = first_line(text), "llguidance panicked on a grammar");
        return CompileError::new(Kind::Internal, "the compiler failed on this grammar");
    }
    if let Some((_, kind, reason)) = KNOWN.iter().find(|(words, ..)| text.contains(words)) {
        return CompileError::new(*kind, *reason);
    }
    if text.contains("nsatisfiable") || text.contains("Regex is empty") {
        let named = first_line(text).split_once("required property '").map(|(_, rest)| rest.to_owned());
        let name = named.as_deref().and_then(|rest| rest.split_once('\'')).map(|(name, _)| name);
        return CompileError::new(
            Kind::Unsatisfiable,
            name.map_or("no value matches the schema".into(), |name| {
                format!("no value matches the schema: none is possible for the required property {name:?}")
            }),
        );
    }
    let line = first_line(text);
    match source {
        Source::Lark(_) => {
            let (path, reason) = lark::location(&line);
            let kind = if text.contains("too deeply nested") { Kind::TooDeep } else { Kind::Invalid };
            CompileError::at(kind, path, reason)
        }
        Source::Regex(_) => CompileError::new(Kind::Invalid, line),
        Source::JsonObject | Source::JsonSchema(_) | Source::Choice(_) | Source::Parts(_) => {
            tracing::warn!(cause = line, "llguidance refused a grammar");
            CompileError::new(Kind::Unsupported, "the compiler cannot make a grammar of this")
        }
    }
}
