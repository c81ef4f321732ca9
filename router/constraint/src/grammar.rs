//! From a source to a compiled grammar, step by step: each step may refuse.

use std::{borrow::Cow, sync::Arc};

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Value, json};

use crate::{
    error::{CompileError, Kind},
    guidance::{classify, with_options},
    lark,
    limits::Limits,
    matcher::Grammar,
    parts, pattern, schema,
    source::Source,
    stop::Stop,
    vocabulary::Vocabulary,
};

pub(crate) fn compile(
    source: &Source,
    vocabulary: &Arc<Vocabulary>,
    limits: &Limits,
    stop: &Stop,
) -> Result<Grammar, CompileError> {
    match (compiled(source, vocabulary, limits, stop, false), source) {
        // What fails may be a part that need not be as it was asked for.
        (Err(error), Source::Parts(parts)) if error.kind.is_of_the_source() && parts::has_choice(parts) => {
            compiled(source, vocabulary, limits, stop, true)
        }
        (compiled, _) => compiled,
    }
}

fn compiled(
    source: &Source,
    vocabulary: &Arc<Vocabulary>,
    limits: &Limits,
    stop: &Stop,
    apart: bool,
) -> Result<Grammar, CompileError> {
    let mut written = 0;
    let mut special = Vec::new();
    let mut free_text = None;
    let mut unbound = Vec::new();
    let mut missing = None;
    let grammar = match source {
        Source::JsonObject => TopLevelGrammar::from_json_schema(with_options(json!({"type": "object"}))),
        Source::JsonSchema(value) => {
            let core;
            (core, missing) = spelled(schema::to_core(value, limits, stop)?, vocabulary)?;
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
            let choices = lark::choices(&spellable(texts, vocabulary)?)?;
            let text = format!("start: CHOICE\nCHOICE: {choices}\n");
            written = text.len();
            TopLevelGrammar::from_lark(text)
        }
        Source::Lark(text) => {
            lark::check(text)?;
            written = text.len();
            TopLevelGrammar::from_lark(text.clone())
        }
        Source::Parts(parts) => {
            let composed = parts::compose(parts, vocabulary, limits, stop, apart)?;
            written = composed.lark.len();
            special = composed.special;
            free_text = composed.free_text;
            unbound = composed.unbound;
            missing = composed.missing;
            let mut grammar = TopLevelGrammar::from_lark(composed.lark);
            grammar.grammars.extend(composed.nested.into_iter().map(|(name, text)| GrammarWithLexer {
                name: Some(name),
                ..GrammarWithLexer::from_lark(text)
            }));
            grammar
        }
    };
    stop.check(limits)?;
    let parser = vocabulary.parser(grammar).map_err(|cause| match (classify(&cause, source), missing) {
        (CompileError { kind: Kind::Unsatisfiable, .. }, Some(missing)) => no_token(NO_VALUE, missing),
        (error, _) => error,
    })?;
    stop.check(limits)?;
    let is_terminal = matches!(source, Source::Regex(_) | Source::Choice(_));
    let may = vocabulary.text_and(&special);
    let mut grammar = Grammar::new(vocabulary.clone(), may, free_text, parser, written, is_terminal)?;
    grammar.unbound = unbound;
    Ok(grammar)
}

const NO_VALUE: &str = "no value matches the schema";

/// A core schema without what the vocabulary cannot spell, and a character of that.
pub(crate) fn spelled(
    mut core: Value,
    vocabulary: &Vocabulary,
) -> Result<(Value, Option<char>), CompileError> {
    let missing = vocabulary.spelling.as_ref().and_then(|spelling| spelling.restrict(&mut core));
    match missing {
        Some(missing) if core == Value::Bool(false) => Err(no_token(NO_VALUE, missing)),
        missing => Ok((core, missing)),
    }
}

/// The texts that the vocabulary can spell.
fn spellable<'a>(texts: &'a [String], vocabulary: &Vocabulary) -> Result<Cow<'a, [String]>, CompileError> {
    let Some(spelling) = &vocabulary.spelling else { return Ok(texts.into()) };
    let kept: Vec<String> = texts.iter().filter(|text| spelling.missing(text).is_none()).cloned().collect();
    match texts.iter().find_map(|text| spelling.missing(text)) {
        Some(missing) if kept.is_empty() => Err(no_token("no text of the choice can be written", missing)),
        _ => Ok(kept.into()),
    }
}

fn no_token(what: &str, missing: char) -> CompileError {
    CompileError::new(Kind::Unsatisfiable, format!("{what}: this model has no tokens for {missing:?}"))
}
