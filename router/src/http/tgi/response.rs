//! What TGI's routes answer with: the JSON of a whole answer and of an event.

use std::sync::Arc;

use penstock_core::generation::{Done, FinishReason, PromptToken, TextToken, TokenEvent};
use penstock_core::prompt::Vocabulary;
use schemars::JsonSchema;
use serde::Serialize;

use crate::http::response::{Entries, List, entries, entry_of_each, write_entry};
use crate::http::warnings::Warnings;

/// Why a text ended.
#[derive(Clone, Copy, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Reason {
    Length,
    EosToken,
    StopSequence,
}

impl From<FinishReason> for Reason {
    fn from(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Length => Reason::Length,
            FinishReason::EosToken => Reason::EosToken,
            FinishReason::StopSequence => Reason::StopSequence,
        }
    }
}

pub fn token(event: &TokenEvent) -> Token<'_> {
    Token { id: event.id.0, text: &event.text, logprob: Some(event.logprob), special: event.special }
}

pub fn top_token(token: &TextToken) -> Token<'_> {
    Token { id: token.id.0, text: &token.text, logprob: token.logprob, special: token.special }
}

/// The prompt's tokens, made when they are written.
fn prefill_tokens(vocabulary: &Arc<Vocabulary>, tokens: Vec<PromptToken>) -> Entries {
    let vocabulary = vocabulary.clone();
    entries(tokens.into_iter().map(move |PromptToken { id, logprob, .. }| PrefillToken {
        id: id.0,
        text: vocabulary.text(id),
        logprob,
    }))
}

impl Told {
    /// Its lists are made when they are written: to `later` is added what writes them.
    pub fn of(
        done: &Done,
        mut tokens: Vec<TokenEvent>,
        vocabulary: &Arc<Vocabulary>,
        later: &mut Vec<Entries>,
    ) -> Self {
        let prefill = tokens.first_mut().map(|first| std::mem::take(&mut first.prefill)).unwrap_or_default();
        let has_prefill = !prefill.is_empty();
        later.extend(has_prefill.then(|| prefill_tokens(vocabulary, prefill)));
        let tokens: Arc<[TokenEvent]> = tokens.into();
        later.push(entry_of_each(tokens.clone(), |piece, event| write_entry(piece, &token(event))));
        let has_top = tokens.iter().any(|token| !token.top.is_empty());
        let top_tokens = |piece: &mut Vec<u8>, event: &TokenEvent| {
            write_entry(piece, &event.top.iter().map(top_token).collect::<Vec<_>>());
        };
        later.extend(has_top.then(|| entry_of_each(tokens, top_tokens)));
        Self {
            finish_reason: done.finish_reason.into(),
            generated_tokens: done.generated_tokens,
            seed: done.seed,
            prefill: List { begins_later: has_prefill, here: &[] },
            tokens: List::LATER,
            top_tokens: has_top.then_some(List::LATER),
        }
    }
}

#[derive(JsonSchema, Serialize)]
pub struct Generated<'a> {
    pub generated_text: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Details<'a>>,
    #[serde(skip_serializing_if = "Warnings::is_empty")]
    pub warnings: Warnings,
}

#[derive(JsonSchema, Serialize)]
pub struct Details<'a> {
    #[serde(flatten)]
    pub best: Told,
    /// The others of `best_of`
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub best_of_sequences: Vec<Candidate<'a>>,
}

#[derive(JsonSchema, Serialize)]
pub struct Candidate<'a> {
    pub generated_text: &'a str,
    #[serde(flatten)]
    pub told: Told,
}

/// What is told of a text.
#[derive(JsonSchema, Serialize)]
pub struct Told {
    pub finish_reason: Reason,
    pub generated_tokens: u32,
    /// Where it was sampled
    pub seed: Option<u64>,
    /// The prompt's tokens, with `decoder_input_details`
    #[schemars(with = "Vec<PrefillToken>")]
    pub prefill: List<'static, PrefillToken>,
    #[schemars(with = "Vec<Token<'static>>")]
    pub tokens: List<'static, Token<'static>>,
    /// For each token its alternatives, with `top_n_tokens`
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Vec<Vec<Token<'static>>>")]
    pub top_tokens: Option<List<'static, Vec<Token<'static>>>>,
}

#[derive(JsonSchema, Serialize)]
pub struct Token<'a> {
    pub id: u32,
    pub text: &'a str,
    pub logprob: Option<f32>,
    pub special: bool,
}

#[derive(JsonSchema, Serialize)]
pub struct PrefillToken {
    pub id: u32,
    pub text: String,
    pub logprob: Option<f32>,
}

#[derive(JsonSchema, Serialize)]
#[schemars(rename = "TokenEvent")]
pub struct StreamEvent<'a> {
    pub index: u32,
    pub token: Token<'a>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub top_tokens: Vec<Token<'a>>,
    /// The whole text, in the last event
    pub generated_text: Option<&'a str>,
    /// In the last event, with `details`
    pub details: Option<StreamDetails>,
    #[serde(skip_serializing_if = "Warnings::is_empty")]
    pub warnings: Warnings,
}

#[derive(JsonSchema, Serialize)]
pub struct StreamDetails {
    pub finish_reason: Reason,
    pub generated_tokens: u32,
    pub seed: Option<u64>,
    pub input_length: u32,
}
