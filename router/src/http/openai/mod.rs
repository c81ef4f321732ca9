//! OpenAI's dialects: chats and plain prompts. `params` reads what both take, `choices` runs the sequences of a request,
//! `stream` tells them as they go; here is the shape that all answers have.

pub mod chat;
pub mod choices;
pub mod completions;
pub mod params;
pub mod responses;
pub mod stream;
pub mod usage;

use std::time::{SystemTime, UNIX_EPOCH};

use penstock_core::generation::FinishReason;
use schemars::JsonSchema;
use serde::Serialize;

use crate::http::openai::usage::Usage;
use crate::http::sse::Frame;
use crate::http::warnings::Warnings;

const FINGERPRINT: &str = concat!(env!("CARGO_PKG_VERSION"), "-native");

/// What an answer says of itself, in each of its chunks.
pub struct AnswerHead {
    id: String,
    created: u64,
    model: String,
}

impl AnswerHead {
    /// `kind` begins the id.
    pub fn new(kind: &str, model: String) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self { id: format!("{kind}-{:032x}", rand::random::<u128>()), created, model }
    }

    pub fn answer<'a, O, C, U: Copy + Into<Option<Usage>>>(
        &'a self,
        object: O,
        choices: &'a [C],
        usage: U,
        warnings: &'a Warnings,
    ) -> Answer<'a, O, C, U> {
        let Self { id, created, model } = self;
        let counted: Option<Usage> = usage.into();
        Answer {
            object,
            id,
            created: *created,
            model,
            system_fingerprint: FINGERPRINT,
            choices,
            usage,
            accepted_drafts: counted.map(|usage| usage.accepted_drafts).filter(|drafts| *drafts > 0),
            warnings,
        }
    }

    /// What the chunks of an answer have around their one choice, where they have no usage and no warnings.
    pub fn frame<O: Serialize>(&self, object: O) -> Frame {
        let none: [(); 0] = [];
        Frame::around("choices", &self.answer(object, &none, None::<Usage>, &Warnings::default()))
    }
}

// `O` is its name, `C` a choice, `U` its usage or none: a whole answer and a chunk of one differ in these.
#[derive(JsonSchema, Serialize)]
pub struct Answer<'a, O, C, U> {
    object: O,
    id: &'a str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'static str,
    choices: &'a [C],
    usage: U,
    /// Of these tokens those that were guessed before the model came to them, where there are any: with `--speculate`
    #[serde(skip_serializing_if = "Option::is_none")]
    accepted_drafts: Option<u32>,
    #[serde(skip_serializing_if = "Warnings::is_empty")]
    warnings: &'a Warnings,
}

/// Why a choice ended.
#[derive(Clone, Copy, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Reason {
    Stop,
    Length,
    /// The answer is calls of tools.
    ToolCalls,
}

impl From<FinishReason> for Reason {
    fn from(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Length => Reason::Length,
            FinishReason::EosToken | FinishReason::StopSequence => Reason::Stop,
        }
    }
}
