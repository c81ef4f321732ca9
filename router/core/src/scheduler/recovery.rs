//! What is known of a recovery: how it ended, how long each of its phases took, and how many losses in a row bore nothing.

use std::time::{Duration, Instant};

use super::metrics::Metrics;
use crate::worker::group::StartupTimings;
use crate::worker::{Loss, Run};

pub(super) enum Outcome {
    Again(Box<Run>),
    Stopped,
    /// The text is for the operator.
    GaveUp(String),
}

/// Losses with work in flight, or before any could be, since the last token.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fruitless(u32);

/// So many of them end the server: what restarts do not mend. Two quarantine a request, and each further one finds a request
/// guilty, so that some requests may be at fault together.
const FRUITLESS: u32 = 12;

impl Fruitless {
    /// One more. Returns why to give up, if it is time.
    pub fn add(&mut self, loss: &Loss) -> Option<String> {
        self.0 += 1;
        (self.0 >= FRUITLESS).then(|| {
            format!("the workers were lost {FRUITLESS} times without giving a token in between; the last time: {loss}")
        })
    }
}

/// A recovery that has everything but its first token.
pub(super) struct Recovered {
    pub loss: Loss,
    /// From the last sign of life to the loss: an upper bound, since the worker may have died at any time
    /// between.
    pub detection: Duration,
    pub lost_at: Instant,
    pub startup_timings: StartupTimings,
    pub ready_at: Instant,
    pub sequences: usize,
}

impl Recovered {
    /// One line for the operator, with where the time went.
    pub fn report(&self, now: Instant, metrics: &Metrics) {
        let refill = now.saturating_duration_since(self.ready_at);
        metrics.recovered(self.detection, self.startup_timings, refill);
        tracing::info!(
            loss = %self.loss,
            sequences = self.sequences,
            detection_s = self.detection.as_secs_f64(),
            process_s = self.startup_timings.process.as_secs_f64(),
            load_s = self.startup_timings.load.as_secs_f64(),
            prepare_s = self.startup_timings.prepare.as_secs_f64(),
            refill_s = refill.as_secs_f64(),
            total_s = now.saturating_duration_since(self.lost_at).as_secs_f64(),
            "recovered: the workers are back, streams go on"
        );
    }
}
