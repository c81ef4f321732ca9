//! One request's life, from parsed request to text events. Knows text and tokens, no dialect.

mod detokenizer;
pub mod event;
pub mod progress;
pub mod request;
mod stop;
pub mod task;
#[cfg(test)]
mod tests;
mod writer;

pub use event::{
    Done, FinishReason, GenerationEvent, GenerationFailure, PromptToken, TextToken, Timings, TokenEvent,
};
pub use progress::{Course, Progress};
pub use request::{Caller, GenerationRequest, Input, StopText};
pub use task::{Generation, PromptLimits, Serving, collect, start};
