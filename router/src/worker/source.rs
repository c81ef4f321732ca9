//! Where workers come from. The launcher implements this over processes; tests and benchmarks over the
//! mock worker. The scheduler asks for a fresh group at start and after every loss.

use std::path::PathBuf;

use async_trait::async_trait;

/// Why a group of workers is not used any more.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Loss {
    /// A stream broke or a process ended.
    #[error("{kind}: {0}", kind = self.kind())]
    Died(String),
    /// Work was issued, or a check was asked for, and nothing came back in time.
    #[error("{kind}: {0}", kind = self.kind())]
    Hung(String),
    /// A rank refused a plan, or answered nonsense.
    #[error("{kind}: {0}", kind = self.kind())]
    OutOfStep(String),
}

impl Loss {
    /// For clients: without the worker's own words, which may be a library's.
    pub fn kind(&self) -> &'static str {
        match self {
            Loss::Died(_) => "a worker died",
            Loss::Hung(_) => "a worker stopped answering",
            Loss::OutOfStep(_) => "a worker is out of step",
        }
    }
}

/// The group cannot be started, now or later; the text is for the operator.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct GiveUp(pub String);

#[async_trait]
pub trait WorkerSource: Send + Sync + 'static {
    /// Ends what is left of the last group (also of one that hangs), starts a new one, and returns the
    /// unix socket of each rank, rank 0 first, once all of them answer. Backs off by itself between
    /// failures, and gives up by itself.
    async fn fresh(&self, lost: Option<&Loss>) -> Result<Vec<PathBuf>, GiveUp>;
}
