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

/// How a reason begins that names a property.
pub(crate) const NONE_POSSIBLE: &str =
    "no value matches the schema: none is possible for the required property ";

/// Sorts an error of llguidance by its text, as it has no kinds of its own, and says it in our words. Only what is
/// wrong with a Lark grammar or an expression is in its: that is about the client's own text. Names and texts of the client may say anything,
/// so what is looked for is how an error begins, behind its place.
pub(crate) fn classify(text: &str, source: &Source) -> CompileError {
    const KNOWN: [(&str, Kind, &str); 12] = [
        (
            "Unable to determine if regex is empty",
            Kind::TooLarge,
            "the patterns and formats that must match together are too complex",
        ),
        (
            "circular references with sibling keys",
            Kind::Unsupported,
            "a recursive `$ref` beside other keywords is not supported",
        ),
        (
            "patternProperty regexes /",
            Kind::Unsupported,
            "two of the `patternProperties` match the same name, which is not supported",
        ),
        (
            "can't determine if patternProperty regexes",
            Kind::Unsupported,
            "two of the `patternProperties` may match the same name",
        ),
        (
            "min/maxProperties only supported when all keys listed",
            Kind::Unsupported,
            "`minProperties` or `maxProperties` is not supported beside `allOf` here",
        ),
        (
            "Schema intersection stack level exceeded",
            Kind::TooLarge,
            "the schemas that `allOf` brings together are nested too deeply",
        ),
        ("schema too large", Kind::TooLarge, "the schema is made of too many schemas"),
        ("initial lexer configuration (grammar) too big", Kind::TooLarge, TOO_LARGE),
        ("grammar size (number of symbols) too big", Kind::TooLarge, TOO_LARGE),
        ("DNF too large, fuel exhausted", Kind::TooLarge, LEXER_TOO_LARGE),
        ("fuel exhausted when checking relevance of lexemes", Kind::TooLarge, LEXER_TOO_LARGE),
        ("lexer precomputation failed", Kind::TooLarge, LEXER_TOO_LARGE),
    ];
    const TOO_LARGE: &str = "the grammar is too large once it is compiled";
    const LEXER_TOO_LARGE: &str = "the grammar's lexer is too large";
    if let Some(panic) = text.strip_prefix("panic: ") {
        // How llguidance says that its 16 bits for a symbol are too few.
        if panic.contains("symbols.len() < u16::MAX") {
            return CompileError::new(
                Kind::TooLarge,
                "the grammar has more than 65525 symbols once it is compiled",
            );
        }
        tracing::warn!(cause = first_line(text), "llguidance panicked on a grammar");
        return CompileError::new(Kind::Internal, "the compiler failed on this grammar");
    }
    let line = first_line(text);
    let (path, reason) = lark::location(&line);
    let cause = reason.strip_prefix("failed to compile JSON schema: ").unwrap_or(&reason);
    if let Some((_, kind, reason)) = KNOWN.iter().find(|(beginning, ..)| cause.starts_with(beginning)) {
        return CompileError::new(*kind, *reason);
    }
    if let Some(message) = cause.strip_prefix("Unsatisfiable schema: ") {
        // What follows the name is the last of it: the name may have quotes.
        let named = message.strip_prefix("required property '").and_then(|rest| rest.rsplit_once('\''));
        return CompileError::new(
            Kind::Unsatisfiable,
            named
                .map_or("no value matches the schema".into(), |(name, _)| format!("{NONE_POSSIBLE}{name:?}")),
        );
    }
    match source {
        Source::Lark(_) => {
            let is_deep = cause.starts_with("lark grammar too deeply nested");
            CompileError::at(if is_deep { Kind::TooDeep } else { Kind::Invalid }, path, reason)
        }
        Source::Regex(_) => CompileError::new(Kind::Invalid, line),
        Source::JsonObject | Source::JsonSchema(_) | Source::Choice(_) | Source::Parts(_) => {
            tracing::warn!(cause = line, "llguidance refused a grammar");
            CompileError::new(Kind::Unsupported, "the compiler cannot make a grammar of this")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_an_error_do_not_say_what_it_is() {
        let schema = Source::JsonSchema(json!({}));
        for name in ["fuel", "too big", "stack level", "panic: ", "it's too large"] {
            let error = classify(
                &format!("Unsatisfiable schema: required property '{name}' is unsatisfiable"),
                &schema,
            );
            assert_eq!(error.kind, Kind::Unsatisfiable, "{name}");
            assert!(error.reason.contains(&format!("{name:?}")), "{error}");
            let lark =
                classify(&format!("at 1(8): unknown name: {name:?}\nmore"), &Source::Lark(String::new()));
            assert_eq!((lark.kind, lark.path.as_str()), (Kind::Invalid, "1:8"), "{name}");
        }
        let lexer = classify("fuel exhausted when checking relevance of lexemes (7)", &schema);
        assert_eq!((lexer.kind, lexer.reason.as_str()), (Kind::TooLarge, "the grammar's lexer is too large"));
        let nested = classify("at 3(1): failed to compile JSON schema: schema too large\n", &schema);
        assert_eq!(nested.kind, Kind::TooLarge);
    }
}
