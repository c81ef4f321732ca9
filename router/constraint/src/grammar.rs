//! From a source to a compiled grammar, step by step: each step may refuse.

use std::{collections::HashSet, sync::Arc};

use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};

use crate::{
    compiler::Stop,
    error::{CompileError, Kind},
    lark,
    limits::Limits,
    matcher::{Grammar, first_line},
    pattern, schema,
    source::Source,
    vocabulary::Vocabulary,
};

/// Space between JSON's tokens: none, one space, or a new line with an indent. It is bounded, because a model that
/// may emit space without end sometimes does.
const JSON_SPACE: &str = r"[ ]|\r?\n(?:[ ]{0,32}|\t{0,8})";
/// What may follow a backslash in JSON's strings. Without `u`: a name that can be spelled in two ways could be given
/// twice, once past what its property demands.
const JSON_ESCAPES: &str = "nrbtf\\\"";

pub(crate) fn compile(
    source: &Source,
    vocabulary: &Arc<Vocabulary>,
    limits: &Limits,
    stop: &Stop,
) -> Result<Grammar, CompileError> {
    let mut written = 0;
    let grammar = match source {
        Source::JsonObject => TopLevelGrammar::from_json_schema(with_options(json!({"type": "object"}))),
        Source::JsonSchema(value) => {
            let core = schema::to_core(value, limits, stop)?;
            written = core.to_string().len();
            TopLevelGrammar::from_json_schema(with_options(core))
        }
        Source::Regex(expression) => {
            let checked =
                pattern::whole_text(expression).map_err(|reason| CompileError::new(Kind::Invalid, reason))?;
            written = checked.len();
            TopLevelGrammar::from_lark(format!("start: TEXT\nTEXT: /{checked}/\n"))
        }
        Source::Choice(texts) => {
            let text = choice(texts)?;
            written = text.len();
            TopLevelGrammar::from_lark(text)
        }
        Source::Lark(text) => {
            lark::check(text)?;
            written = text.len();
            TopLevelGrammar::from_lark(text.clone())
        }
    };
    stop.check(limits)?;
    let parser = vocabulary.factory.create_parser(grammar).map_err(|cause| {
        // The innermost cause names the trouble; the outer ones repeat it with context.
        classify(&cause.to_string(), matches!(source, Source::Lark(_)))
    })?;
    stop.check(limits)?;
    let lexer = parser.parser.lexer_stats();
    // The rules of the grammar are about as many as what they were written from; 30 bytes for each of its bytes was
    // measured to be more than they take.
    let bytes = 2 * lexer.num_bytes + 64 * lexer.num_ast_nodes + 30 * written + (16 << 10);
    let matcher = llguidance::Matcher::new(Ok(parser));
    Grammar::new(vocabulary.clone(), matcher, bytes)
}

/// How llguidance is to write JSON. This is ours to say: a client's own options are not in `core`.
fn with_options(core: Value) -> Value {
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

fn choice(texts: &[String]) -> Result<String, CompileError> {
    if texts.is_empty() {
        return Err(CompileError::new(Kind::Invalid, "a choice needs at least one text"));
    }
    let mut seen = HashSet::new();
    let mut grammar = String::from("start: CHOICE\nCHOICE: ");
    for (index, text) in texts.iter().enumerate() {
        if !seen.insert(text) {
            return Err(CompileError::at(
                Kind::Invalid,
                format!("/{index}"),
                "the choice has this text twice",
            ));
        }
        if index > 0 {
            grammar.push_str(" | ");
        }
        grammar.push_str(&lark::quoted(text));
    }
    grammar.push('\n');
    Ok(grammar)
}

/// Sorts an error of llguidance by its text; it has no kinds of its own.
fn classify(text: &str, is_lark: bool) -> CompileError {
    let mut reason = first_line(text);
    let mut path = String::new();
    if is_lark {
        (path, reason) = lark::location(&reason);
    }
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    let kind = if says(&["panic:"]) {
        tracing::warn!(cause = reason, "llguidance panicked on a grammar");
        Kind::Internal
    } else if says(&[
        "too big",
        "too large",
        "fuel",
        "stack level exceeded",
        "Unable to determine",
        "too many",
    ]) {
        Kind::TooLarge
    } else if says(&["nsatisfiable", "Regex is empty"]) {
        Kind::Unsatisfiable
    } else if says(&["too deeply nested"]) {
        Kind::TooDeep
    } else if says(&["not supported", "can't determine", "not disjoint", "only supported", "Unimplemented"]) {
        Kind::Unsupported
    } else {
        Kind::Invalid
    };
    CompileError::at(kind, path, reason)
}
