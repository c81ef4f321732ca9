//! What `deadlines` knows of the past when it says how long a request will wait: how fast sequences ended, and whether requests that
//! were expected to be late were late.

use std::time::{Duration, Instant};

use penstock_proto::ids::SequenceId;

/// The recent rate at which sequences that run end, whatever the reason, while there are any.
#[derive(Default)]
pub(super) struct Completions {
    /// The last end, or when there was something to do again.
    last: Option<Instant>,
    /// Between two ends, smoothed.
    interval: Option<Duration>,
}

impl Completions {
    /// No sequence could end before now.
    pub(super) fn resume(&mut self, now: Instant) {
        self.last = Some(now);
    }

    pub(super) fn add(&mut self, now: Instant) {
        if let Some(last) = self.last.replace(now) {
            let gap = now.saturating_duration_since(last);
            self.interval = Some(self.interval.map_or(gap, |smooth| (smooth * 7 + gap) / 8));
        }
    }

    /// Never shorter than the time since the last end: a stall shows at once. `None` before one has ended.
    pub(super) fn interval(&self, now: Instant) -> Option<Duration> {
        let stalled = self.last.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        self.interval.map(|interval| interval.max(stalled))
    }
}

/// Requests that are expected to be late and are begun all the same, since they hold up nobody: what they take corrects the
/// estimate. Without them one that is too high would stay so, as long as every request is refused for it.
#[derive(Default)]
pub(super) struct Probes {
    /// The last one, until it has a token.
    pub(super) last: Option<SequenceId>,
    /// So many requests are refused before the next one.
    pub(super) refusals: u32,
}

/// After a probe that was late: what is too long for its deadline keeps a server busy in vain a small part of the time.
const REFUSALS: u32 = 16;

impl Probes {
    pub(super) fn try_one(&mut self, id: SequenceId) -> bool {
        if self.refusals > 0 {
            self.refusals -= 1;
            return false;
        }
        // It is late until it has a token in time.
        *self = Self { last: Some(id), refusals: REFUSALS };
        true
    }
}
