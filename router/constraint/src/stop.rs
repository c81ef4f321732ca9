//! When work on a grammar is given up: its request is gone, or its time is over.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use crate::{
    error::{CompileError, Kind},
    limits::Limits,
};

/// Says that a request is gone. Clones are one.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    pub fn new() -> Cancel {
        Cancel::default()
    }

    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// When work on a grammar is to stop; asked from within its loops.
pub(crate) struct Stop {
    pub(crate) cancel: Cancel,
    pub(crate) deadline: Instant,
}

impl Stop {
    pub(crate) fn check(&self, limits: &Limits) -> Result<(), CompileError> {
        if self.cancel.is_cancelled() {
            Err(cancelled())
        } else if Instant::now() > self.deadline {
            Err(timed_out(limits))
        } else {
            Ok(())
        }
    }
}

pub(crate) fn cancelled() -> CompileError {
    CompileError::new(Kind::Cancelled, "the request was cancelled")
}

pub(crate) fn timed_out(limits: &Limits) -> CompileError {
    CompileError::new(
        Kind::TimedOut,
        format!("the grammar takes longer than {} ms to compile", limits.timeout.as_millis()),
    )
}
