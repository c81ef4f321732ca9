//! A request after its dialect was parsed and checked, before its prompt is tokens.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use penstock_proto::ids::{SpanRef, TokenId};

use crate::adapter::Adapter;
use crate::constraint::GrammarRequest;
use crate::prompt::Input;
use crate::scheduler::{Priority, Sampling};
use crate::tenant::Tenant;

/// What any dialect asks for. All numbers were checked against `limits`, except those that depend on
/// the prompt's length.
#[derive(Clone, Debug)]
pub struct GenerationRequest {
    pub input: Input,
    pub sampling: Sampling,
    /// Reported back to the client when it sampled; `None` when it decodes greedily.
    pub reported_seed: Option<u64>,
    /// `None`: as many as fit under `max_total_tokens`.
    pub max_new_tokens: Option<u32>,
    /// The text goes on until it has so many, whatever would end it.
    pub min_new_tokens: u32,
    /// With the server's watermark.
    pub watermark: bool,
    /// Keep only the last so many tokens of the prompt.
    pub truncate: Option<u32>,
    pub stop: Vec<String>,
    pub stop_text: StopText,
    pub ignore_eos: bool,
    /// More tokens that end the text like an end-of-sequence token, whatever `ignore_eos` says.
    pub stop_token_ids: Vec<TokenId>,
    pub top_tokens: u32,
    pub prompt_logprobs: bool,
    pub grammar: Option<GrammarRequest>,
    /// The text is free where the grammar cannot be compiled.
    pub grammar_is_optional: bool,
    /// What it is computed with, of those that the model was loaded with.
    pub adapter: Option<Adapter>,
    /// Whom the client asks for, by its own name.
    pub user: Option<String>,
    /// Cached blocks are shared only with requests that have the same.
    pub cache_salt: Option<String>,
    /// `None`: that of its key.
    pub priority: Option<Priority>,
    /// From the request's arrival; the text ends with the token after it.
    pub max_time: Option<Duration>,
}

/// Who asks, and since when.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// When the request's first byte was there.
    pub arrival: Instant,
    /// The place of its API key among the server's; `None` where none is asked for.
    pub key: Option<u32>,
    /// SHA-256 of that key: the same on every server that has it.
    pub key_digest: Option<[u8; 32]>,
    /// Who may not be told apart from it by its address alone: one of IPv4, or the network of one of IPv6.
    pub address: Option<IpAddr>,
    /// That of its key: what its requests have, and the highest that they can ask for. `None`: there is no such limit.
    pub priority: Option<Priority>,
    /// Nobody wants the answer after this.
    pub deadline: Option<Instant>,
    /// The request's span, when it is recorded.
    pub trace: Option<SpanRef>,
}

impl Caller {
    /// What a request has that asks for this.
    pub fn priority(&self, asked: Option<Priority>) -> Priority {
        let own = self.priority.unwrap_or_default();
        match asked {
            // The lower number is the higher priority.
            Some(asked) => asked.max(self.priority.unwrap_or(asked)),
            None => own,
        }
    }

    /// Whose its work is before it is known whom the client names as its user: what cannot be made up.
    pub fn origin(&self) -> Tenant {
        match (self.key, self.address) {
            (Some(key), _) => Tenant::Key(key),
            (None, Some(address)) => Tenant::Address(address),
            (None, None) => Tenant::Anonymous,
        }
    }

    pub fn anonymous(arrival: Instant) -> Self {
        Self {
            arrival,
            key: None,
            key_digest: None,
            address: None,
            priority: None,
            deadline: None,
            trace: None,
        }
    }
}

/// What becomes of a stop string in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopText {
    /// Kept at the end (TGI's routes).
    Keep,
    /// Left out, and never streamed (OpenAI's routes).
    Omit,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_priority_of_a_key_is_the_usual_one_of_its_requests_and_the_highest() {
        let of = |key: Option<i32>, asked: Option<i32>| {
            let caller = Caller { priority: key.map(Priority), ..Caller::anonymous(Instant::now()) };
            caller.priority(asked.map(Priority)).0
        };
        assert_eq!([of(None, None), of(None, Some(7)), of(None, Some(-7))], [0, 7, -7]);
        assert_eq!([of(Some(5), None), of(Some(5), Some(7)), of(Some(5), Some(0))], [5, 7, 5]);
        assert_eq!([of(Some(-5), None), of(Some(-5), Some(0)), of(Some(-5), Some(-9))], [-5, 0, -5]);
    }
}
