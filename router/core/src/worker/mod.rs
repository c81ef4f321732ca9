//! The worker contract as the scheduler sees it: a group of ranks that execute the same numbered plans.

mod connection;
pub mod group;
#[cfg(any(test, feature = "mock"))]
pub mod mock;
pub mod source;
mod stream;

pub use group::{Group, PrepareLimits, StartError};
pub use source::{GiveUp, Loss, LossKind, WorkerSource};
pub use stream::{LIVELY, Run};
