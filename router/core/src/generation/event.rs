//! What a generation tells its dialect: one `Token` per generated token (at least one), then `Done`;
//! or `Failed` at any point.
//! The texts of the tokens that are not special, joined, are exactly `Done.text`.

use std::time::Duration;

use penstock_proto::ids::TokenId;

use crate::blocking::Undone;
use crate::constraint::GrammarError;
use crate::prompt::PromptError;
use crate::scheduler::{Refused, SequenceFailure};

#[derive(Clone, Debug)]
pub enum GenerationEvent {
    Token(TokenEvent),
    Done(Done),
    Failed(GenerationFailure),
}

#[derive(Clone, Debug, PartialEq)]
pub struct TokenEvent {
    /// 1 for the first generated token.
    pub index: u32,
    pub id: TokenId,
    /// What this token adds to the text; empty while a character or a possible stop string is not
    /// complete. A special token has its own name here and adds nothing.
    pub text: String,
    pub logprob: f32,
    pub special: bool,
    /// Each with the text of the token alone.
    pub top: Vec<TextToken>,
    /// `Done` follows at once: a dialect whose last chunk holds token and totals waits for it.
    pub last: bool,
    /// With the first token, when asked for: the prompt's tokens, of which the first has no log probability.
    pub prefill: Vec<PromptToken>,
}

/// Without texts, since a prompt may have many tokens and each many alternatives: they are made where they are written.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptToken {
    pub id: TokenId,
    pub logprob: Option<f32>,
    pub top: Vec<(TokenId, f32)>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TextToken {
    pub id: TokenId,
    pub text: String,
    pub logprob: Option<f32>,
    pub special: bool,
}

#[derive(Clone, Debug)]
pub struct Done {
    pub text: String,
    pub finish_reason: FinishReason,
    /// The stop string that ended it.
    pub stop: Option<String>,
    pub generated_tokens: u32,
    /// Those of them that were accepted drafts.
    pub skipped_tokens: u32,
    pub seed: Option<u64>,
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
    pub timings: Timings,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    Length,
    EosToken,
    StopSequence,
}

impl FinishReason {
    /// As TGI spells it.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Length => "length",
            FinishReason::EosToken => "eos_token",
            FinishReason::StopSequence => "stop_sequence",
        }
    }
}

/// Where a request's time went.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timings {
    /// Arrival to queued: parsing, template, tokenizer.
    pub validation: Duration,
    /// Queued to first scheduled.
    pub queue: Duration,
    /// First scheduled to done.
    pub inference: Duration,
    pub total: Duration,
}

/// What cannot be served of a request: what it gave, and the limit. Dialects name the fields, each in its own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRequest {
    #[error("a stop string is empty")]
    EmptyStop,
    #[error("the prompt has no token")]
    EmptyPrompt,
    #[error("the prompt has {given} tokens, more than {limit}")]
    PromptTokens { limit: u32, given: u32 },
    #[error("token {given} of the prompt is not below {limit}, the vocabulary's size")]
    TokenId { limit: u32, given: u32 },
    #[error("no new tokens are asked for")]
    NoNewTokens,
    /// More than the decoder beside an encoder has positions.
    #[error("{given} new tokens are asked for, more than {limit}")]
    NewTokens { limit: u32, given: u32 },
    /// Together they are too many. `blames` says which of the two is.
    #[error("{prompt} tokens of the prompt and {new} new ones are more than {limit}")]
    TotalTokens { limit: u32, prompt: u32, new: u32, blames: Part },
    #[error("at least {given} new tokens are asked for, and at most {limit} may be generated")]
    MinNewTokens { limit: u32, given: u32 },
}

/// Of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// It is longer than `most` by itself.
    Prompt { most: u32 },
    /// The prompt fits, but not with as many.
    NewTokens,
}

/// Why a generation did not start or did not end well. Dialects have the words.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GenerationFailure {
    /// The request cannot be served as it is.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// Its grammar was not compiled.
    #[error(transparent)]
    Grammar(#[from] GrammarError),
    /// Its prompt was not made.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// The scheduler did not take it.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The scheduler ended it.
    #[error(transparent)]
    Sequence(#[from] SequenceFailure),
    /// Work for it, on a thread of its own, was not done.
    #[error(transparent)]
    Undone(#[from] Undone),
    /// It ended without an end.
    #[error("the generation broke off")]
    BrokenOff,
}
