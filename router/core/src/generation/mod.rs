//! One request's life, from parsed request to text events. Knows text and tokens, no dialect.

mod detokenizer;
pub mod event;
mod grammars;
mod metrics;
mod output_processor;
pub mod progress;
mod prompt_limits;
pub mod request;
mod serving;
mod stop;
mod stream;
#[cfg(test)]
mod tests;

pub use crate::prompt::Input;
#[cfg(test)]
pub(crate) use detokenizer::Detokenizer;
pub use event::{
    Done, FinishReason, GenerationEvent, GenerationFailure, InvalidRequest, Part, PromptToken, TextToken,
    Timings, TokenEvent,
};
pub use grammars::Grammars;
pub use progress::{Progress, Timeline};
pub use prompt_limits::PromptLimits;
pub use request::{Caller, GenerationRequest, StopText};
pub use serving::{Serving, start};
pub use stream::{Generation, collect};
