//! From a source to a compiled grammar, step by step: each step may refuse.

use std::sync::Arc;

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::json;

use crate::{
    error::{CompileError, Kind},
    free_text::FreeText,
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
    let mut markers = Vec::new();
    let mut unbound = Vec::new();
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
            let text = format!("start: CHOICE\nCHOICE: {}\n", lark::choices(texts)?);
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
            markers = composed.markers;
            unbound = composed.unbound;
            let mut grammar = TopLevelGrammar::from_lark(composed.lark);
            grammar.grammars.extend(composed.nested.into_iter().map(|(name, text)| GrammarWithLexer {
                name: Some(name),
                ..GrammarWithLexer::from_lark(text)
            }));
            grammar
        }
    };
    stop.check(limits)?;
    let parser = vocabulary.parser(grammar).map_err(|cause| classify(&cause, source))?;
    stop.check(limits)?;
    let is_terminal = matches!(source, Source::Regex(_) | Source::Choice(_));
    let may = vocabulary.text_and(&special);
    let free_text = FreeText::new(markers);
    let mut grammar = Grammar::new(vocabulary.clone(), may, free_text, parser, written, is_terminal)?;
    grammar.unbound = unbound;
    Ok(grammar)
}
