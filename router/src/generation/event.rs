//! What a generation tells its dialect: one `Token` per generated token (at least one), then `Done`;
//! or `Failed` at any point.
//! The texts of the tokens that are not special, joined, are exactly `Done.text`.

use std::time::Duration;

use crate::ids::TokenId;

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

#[derive(Clone, Debug, PartialEq)]
pub struct PromptToken {
    pub token: TextToken,
    pub top: Vec<TextToken>,
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
    pub generated_tokens: u32,
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

/// Why a generation did not start or did not end well. The texts are for the client.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GenerationFailure {
    /// The request cannot be served as it is; names the field and the limit.
    #[error("{0}")]
    Invalid(String),
    /// The prompt fits, but not with as many new tokens as were asked for.
    #[error("{0}")]
    TooManyNew(String),
    #[error("Model is overloaded")]
    Overloaded { retry_after: Duration },
    /// It could not be begun in the time that the client gave it.
    #[error("{why}")]
    TooLate { why: String, retry_after: Duration },
    /// Its deadline passed while it ran.
    #[error("{0}")]
    OutOfTime(String),
    /// Loading, recovering, draining, failed.
    #[error("{0}")]
    Unavailable(String),
    /// The model or its worker failed this request.
    #[error("{0}")]
    Failed(String),
}
