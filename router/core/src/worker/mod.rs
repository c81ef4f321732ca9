//! The worker contract as the scheduler sees it: a group of ranks that execute the same numbered plans.

mod connection;
pub mod endpoint;
mod frames;
pub mod group;
pub mod mock;
pub mod recording;
pub mod remote;
pub mod replay;
pub mod source;
mod stream;

pub use endpoint::Endpoint;
pub use group::{Group, PrepareLimits, StartError};
pub use remote::RemoteWorkers;
pub use source::{GiveUp, Loss, LossKind, WorkerSource};
pub use stream::{LIVELY, Run};
