//! What TGI's routes answer with: the JSON of a whole answer and of an event.

use std::sync::Arc;

use penstock_core::generation::{FinishReason, PromptToken, TextToken, TokenEvent};
use penstock_core::prompt::Vocabulary;
use schemars::JsonSchema;
use serde::Serialize;

use crate::http::response::{Entries, List, entries};
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
pub fn prefill_tokens(vocabulary: &Arc<Vocabulary>, tokens: Vec<PromptToken>) -> Entries {
    let vocabulary = vocabulary.clone();
    entries(tokens.into_iter().map(move |PromptToken { id, logprob, .. }| PrefillToken {
        id: id.0,
        text: vocabulary.text(id),
        logprob,
    }))
}

pub fn top_tokens(tokens: &[TokenEvent]) -> Vec<Vec<Token<'_>>> {
    if tokens.iter().all(|token| token.top.is_empty()) {
        return Vec::new();
    }
    tokens.iter().map(|token| token.top.iter().map(top_token).collect()).collect()
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
    pub best: Told<'a>,
    /// The others of `best_of`
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub best_of_sequences: Vec<Candidate<'a>>,
}

#[derive(JsonSchema, Serialize)]
pub struct Candidate<'a> {
    pub generated_text: &'a str,
    #[serde(flatten)]
    pub told: Told<'a>,
}

/// What is told of a text.
#[derive(JsonSchema, Serialize)]
pub struct Told<'a> {
    pub finish_reason: Reason,
    pub generated_tokens: u32,
    /// Where it was sampled
    pub seed: Option<u64>,
    /// The prompt's tokens, with `decoder_input_details`
    #[schemars(with = "Vec<PrefillToken>")]
    pub prefill: List<'static, PrefillToken>,
    pub tokens: Vec<Token<'a>>,
    /// For each token its alternatives, with `top_n_tokens`
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub top_tokens: Vec<Vec<Token<'a>>>,
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
