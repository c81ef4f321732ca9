//! Plans that were sent and have no result yet, and what each row of them expects back. `planning` makes them,
//! `results` and `quarantine` take them off.

use std::time::{Duration, Instant};

use penstock_proto::ids::{SequenceId, TokenId};

use super::cost::Work;

/// One row of a plan in flight.
pub(super) struct RowRecord {
    pub key: usize,
    /// Whose row it was: by the time of the result another sequence may have its key and its slot.
    pub id: SequenceId,
    pub tokens: u32,
    /// Position after the last token fed, if all drafts up to there are accepted.
    pub end: u32,
    pub sample: bool,
    /// Drafts that may be accepted: of a tree those of its longest path.
    pub drafts: u32,
    /// Of those the first, which a grammar forced.
    pub forced: u32,
    /// All of them, where it is masked: each needs a mask behind it.
    pub guesses: Vec<TokenId>,
    /// Position behind the token before them, as it was thought to be when they were guessed.
    pub guessed_at: u32,
    /// They are from what its tenant was answered.
    pub recalled: bool,
    /// The workers' draft model makes them.
    pub own_drafts: bool,
    /// They are not, and followed drafts that were rejected.
    pub stale_drafts: bool,
    pub top_tokens: u32,
    /// Log probabilities that come back, and how many of them are of the prompt.
    pub prompt_targets: u32,
    pub wanted_targets: u32,
    /// Samples among the tokens of its masks only.
    pub masked: bool,
    /// Of its masks those, by the drafts before them, that forbid nothing: what is drawn there is looked at.
    pub open: Vec<u32>,
    pub yields: Yields,
}

/// What a row that samples may still give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Yields {
    Everything,
    /// Masks behind guesses were late: no guesses but those behind which there are masks.
    NoLateGuesses,
    /// Its first mask was late, or what it follows was dropped.
    Nothing,
}

impl RowRecord {
    /// It has masks behind its guesses, or will have them: without one a guess is not accepted, whatever is sampled in its place.
    pub fn may_accept_guesses(&self) -> bool {
        self.masked && self.yields == Yields::Everything && !self.is_misled()
    }

    /// What its drafts follow is not what they were guessed to follow.
    pub fn is_misled(&self) -> bool {
        self.end - self.drafts != self.guessed_at
    }
}

/// A plan that was built and has no result yet.
pub(super) struct InFlight {
    pub number: u64,
    pub rows: Vec<RowRecord>,
    pub work: Work,
    pub prompt_rows: u32,
    /// These workers had run no step of its size when it was planned: it may have to be compiled or tuned for.
    pub first_run: bool,
    /// How much longer it may take, since its workers were asked and live.
    pub granted: Duration,
    /// Nothing else was in flight when it was planned.
    pub is_lone: bool,
    /// Sequences that left the queue with it.
    pub admitted: u32,
    pub expected: Duration,
    pub built: Instant,
    /// It has masked rows.
    pub is_masked: bool,
    pub masks_sent: Option<Instant>,
}

/// How large a step is, in powers of two: rows and tokens. What workers compile, record or tune at first use is by
/// size, in buckets no finer than this.
pub(super) type Shape = (u32, u32);

impl InFlight {
    pub fn shape(&self) -> Shape {
        ((self.rows.len() as u32).next_power_of_two(), self.work.tokens.next_power_of_two())
    }

    /// It has masked rows whose masks were not sent yet: its model may run, and it cannot end.
    pub fn owes_masks(&self) -> bool {
        self.is_masked && self.masks_sent.is_none()
    }

    /// Its workers, which could begin it at `begun`, had to wait for its masks: those were sent after it was expected to end, and the
    /// result came soon after them. Else the step was only thought too short.
    pub fn was_held_up(&self, begun: Instant, now: Instant) -> bool {
        self.masks_sent.is_some_and(|sent| {
            sent > begun + self.expected && now.saturating_duration_since(sent) < self.expected / 2
        })
    }

    /// Sequences that left the queue with it joined others that ran.
    pub fn joins(&self) -> bool {
        self.admitted > 0 && self.rows.len() > self.admitted as usize
    }
}
