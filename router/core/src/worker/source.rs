//! Where workers come from. The launcher implements this over processes, `remote` over workers that are there already, tests and
//! benchmarks over the mock worker. The scheduler asks for a fresh group at start and after every loss.

use std::io;

use async_trait::async_trait;

use super::endpoint::Endpoint;

/// Why a group of workers is not used any more. The text is for the operator.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{kind}: {cause}", kind = self.summary())]
pub struct Loss {
    pub kind: LossKind,
    /// Whose fault it is, as far as that is known.
    pub rank: Option<u32>,
    pub cause: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossKind {
    /// A stream broke or a process ended.
    Died,
    /// Work was issued, or a check was asked for, and nothing came back in time.
    Hung,
    /// It refused a plan, or answered nonsense.
    OutOfStep,
    /// It lives, and found too little memory to be made ready.
    NoRoom,
    /// Its connection to another rank broke, which is the one to blame if it can be found.
    PeerLost,
    /// One side of the connection did not take the other's certificate.
    Untrusted,
}

impl Loss {
    pub fn of(rank: u32, kind: LossKind, cause: impl Into<String>) -> Self {
        Self { kind, rank: Some(rank), cause: cause.into() }
    }

    /// Nobody knows whose.
    pub fn unnamed(kind: LossKind, cause: impl Into<String>) -> Self {
        Self { kind, rank: None, cause: cause.into() }
    }

    /// This one's fault, unless somebody's already.
    pub fn or_of(self, rank: u32) -> Self {
        Self { rank: self.rank.or(Some(rank)), ..self }
    }

    /// For clients: without the worker's own words, which may be a library's.
    pub fn summary(&self) -> String {
        let who = self.rank.map_or_else(|| "a worker".into(), |rank| format!("worker {rank}"));
        let what = match self.kind {
            LossKind::Died => "died",
            LossKind::Hung => "stopped answering",
            LossKind::OutOfStep => "is out of step",
            LossKind::NoRoom => "has too little memory",
            LossKind::PeerLost => "lost its connection to another worker",
            LossKind::Untrusted => "and this server do not trust each other",
        };
        format!("{who} {what}")
    }
}

/// The group cannot be started, now or later; the text is for the operator.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct GiveUp(pub String);

/// Whether the system had too little of something that it gives back: file descriptors, memory. What failed for that
/// is tried again, and is no reason to end (errno(3)).
pub fn is_passing(error: &io::Error) -> bool {
    use libc::{EMFILE, ENFILE, ENOBUFS, ENOMEM};
    matches!(error.raw_os_error(), Some(EMFILE | ENFILE | ENOMEM | ENOBUFS))
}

#[async_trait]
pub trait WorkerSource: Send + Sync + 'static {
    /// Ends what is left of the last group (also of one that hangs), starts a new one, and returns where each rank listens, rank 0
    /// first, once all of them answer. A source whose workers are not its own to start waits until they answer again. Backs off by
    /// itself between failures, and gives up by itself.
    async fn fresh(&self, lost: Option<&Loss>) -> Result<Vec<Endpoint>, GiveUp>;
}
