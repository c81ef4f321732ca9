//! What is submitted to the scheduler, on whose behalf, and what comes out of it. Token ids only: text belongs to
//! `generation`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_proto::ids::{SequenceId, SpanRef, TokenId};

use super::cache_names::Namespace;
use crate::adapter::Adapter;
use crate::constraint::Grammar;
use crate::tenant::Tenant;

/// How tokens are chosen. The neutral value of every field switches it off.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 is greedy: the truncations below have no effect, penalties and bias do.
    pub temperature: f32,
    pub top_k: u32,
    pub top_p: f32,
    pub typical_p: f32,
    pub min_p: f32,
    pub repetition_penalty: f32,
    pub frequency_penalty: f32,
    pub presence_penalty: f32,
    pub logit_bias: Vec<(TokenId, f32)>,
    /// With the absolute position of a token, the key of its random numbers.
    pub seed: u64,
    /// No token that ends a sequence is chosen before so many others were.
    pub min_new_tokens: u32,
    pub watermark: Option<Watermark>,
}

/// Kirchenbauer et al., "A Watermark for Large Language Models", 2023: the token before says which part of
/// the vocabulary is green.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Watermark {
    /// Tokens that are green.
    pub greens: u32,
    /// Added to their logits.
    pub delta: f32,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            typical_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            min_new_tokens: 0,
            watermark: None,
        }
    }
}

/// Everything the scheduler needs to run a sequence to its end.
#[derive(Clone, Debug)]
pub struct SequenceSpec {
    /// What the encoder of an encoder-decoder reads; empty for a decoder.
    pub encoder: Vec<TokenId>,
    /// What the output follows.
    pub prompt: Vec<TokenId>,
    pub sampling: Sampling,
    /// Exact upper bound of generated tokens, at least 1.
    pub max_new_tokens: u32,
    /// An end-of-sequence token does not end it.
    pub ignore_eos: bool,
    /// More tokens that end it, whatever `ignore_eos` says.
    pub stop_token_ids: Vec<TokenId>,
    /// Alternatives reported for every generated token.
    pub top_tokens: u32,
    /// Report the log probability of each prompt token; such a prompt does not read the prefix cache.
    pub prompt_logprobs: bool,
    /// Every token is one that this grammar allows, and the sequence ends with it.
    pub constraint: Option<Arc<dyn Grammar>>,
    /// One of the model's; `None`: the model alone.
    pub adapter: Option<Adapter>,
    /// Sequences share cached blocks only within a namespace (model revision, caller's salt), and of each only with those that have the
    /// same adapter.
    pub cache_namespace: Namespace,
    pub tenant: Tenant,
    pub priority: Priority,
    /// Nobody wants it any more after this.
    pub deadline: Option<Instant>,
    /// It ends with the token that is in flight then, as if by length; at once if none is.
    pub stop_at: Option<Instant>,
    /// The request's span, which the workers' spans are to name. `None` unless it is recorded.
    pub trace: Option<SpanRef>,
}

/// How urgent a sequence is: the lowest number goes first, as in vLLM. Goes before fairness between tenants, and before age.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(pub i32);

/// What happens to a sequence, in order: `Admitted`, `PromptLogprobs` if asked for, a `Token` for every
/// token but the last, and one of `Finished`, `TimeUp` or `Failed` as the last. Preemption and recovery are
/// invisible but for the pause, unless `stop_at` comes in it.
#[derive(Clone, Debug)]
pub enum SequenceEvent {
    /// Left the queue for the first time. `cached_tokens` of the prompt came from the prefix cache.
    Admitted {
        cached_tokens: u32,
    },
    /// One entry per prompt token; the first is empty, since nothing precedes it.
    PromptLogprobs(Vec<PromptLogprob>),
    Token(SampledToken),
    /// The last token comes with the reason that it is the last, so that whoever streams it can close
    /// its text in the same event, without waiting to see whether another follows.
    Finished {
        last: SampledToken,
        finish: Finish,
    },
    /// Its `stop_at` passed while no token of it was in flight: it ends by length, with the tokens that it has,
    /// at least one. Comes only to a sequence with a `stop_at`.
    TimeUp,
    Failed(SequenceFailure),
}

/// What the model thought of a token of the prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PromptLogprob {
    pub logprob: Option<f32>,
    /// Most likely first, as many as `top_tokens` asked for.
    pub top: Vec<(TokenId, f32)>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SampledToken {
    pub id: TokenId,
    /// Of the model's own distribution.
    pub logprob: f32,
    /// Most likely first, as many as `top_tokens` asked for.
    pub top: Vec<(TokenId, f32)>,
    /// It was guessed, and took no step of its own.
    pub is_draft: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The last token is an end-of-sequence token.
    Eos,
    /// The last token completes the grammar: it is text, and nothing but the end may follow.
    Complete,
    /// `max_new_tokens` were generated, or all that workers that came back have room for, or its time was up.
    Length,
}

/// Why a sequence ended without finishing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SequenceFailure {
    /// The worker reported an error for this row, such as logits that are not numbers, in these words.
    #[error("{0}")]
    Row(String),
    /// Its matcher gave no mask, in the words of who made it.
    #[error("{0}")]
    Mask(String),
    /// The worker sampled a token that its mask does not allow.
    #[error("the grammar was not followed")]
    MaskIgnored,
    #[error("the workers crashed three times while running this request, the last time it was alone")]
    Poisonous,
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// It was not begun, and could not be, or was not, in the time that it has.
    #[error("too little time: {late:?}")]
    TooLate { late: Late, retry_after: Duration },
    /// Its deadline passed while it ran, after so many tokens.
    #[error("the deadline passed after {generated} tokens")]
    OutOfTime { generated: u32 },
}

/// How the time that a sequence has was too little to begin it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// It was over while the sequence waited in the queue.
    Waited,
    /// The first token is expected after longer than is left.
    Expected { after: Duration, left: Duration },
}

/// Why a sequence was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// As many requests are live as `--max-concurrent-requests` allows, or as one tenant may have.
    #[error("the queue is full")]
    Full { retry_after: Duration },
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

/// Why the server runs no sequence any more, or not this one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    #[error("the server is shutting down")]
    Stopping,
    /// It gave up on its workers; why.
    #[error("the server has failed: {0}")]
    Failed(String),
    /// Prompt and output are longer than fresh workers can take, which have less memory than those before.
    #[error("prompt and output together may have at most {limit} tokens now")]
    TotalTokens { limit: u32 },
    /// It has grown longer than the whole KV cache of fresh workers.
    #[error("the sequence does not fit into the KV cache any more, which now has {limit} tokens")]
    CacheTokens { limit: u64 },
}

/// What a `Ticket` tells the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// Nobody wants the rest: the client went away.
    Cancelled,
    /// Its text is complete: a stop string was found.
    Stopped,
}

/// The owner's hold on a sequence. Dropped, it cancels the sequence; that has no effect after its end.
pub struct Ticket {
    id: SequenceId,
    release: Option<ReleaseSender>,
}

type ReleaseSender = Box<dyn FnOnce(SequenceId, Release) + Send>;

impl Ticket {
    pub fn new(id: SequenceId, release: impl FnOnce(SequenceId, Release) + Send + 'static) -> Self {
        Self { id, release: Some(Box::new(release)) }
    }

    /// Ends the sequence because its text is complete.
    pub fn stop(mut self) {
        self.send(Release::Stopped);
    }

    fn send(&mut self, why: Release) {
        if let Some(release) = self.release.take() {
            release(self.id, why);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.send(Release::Cancelled);
    }
}
