//! The time, as the scheduler and generations read it: tokio's clock, by which their timers run too. A test may pause it, and
//! then whole servers live in virtual time (`scheduler/tests/simulation.rs`).

use std::time::{Duration, Instant};

pub fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

pub fn since(then: Instant) -> Duration {
    now().saturating_duration_since(then)
}
