//! What a loss of the workers means for the sequences. All go back to the queue with what they have, to be started
//! again from their token ids. A sequence that was in the unfinished steps of two losses, with no progress between, is
//! suspected of causing them and quarantined: it runs alone until it is past the point of the crash. If the workers are
//! lost then too, it fails, and the others go on. If every quarantined sequence passes, the crash was the batch's, which
//! takes memory: steps are throttled. One that leaves before it has passed may have been guilty: they are not.

use std::time::Instant;

use super::core::{Core, StepSize};
use super::in_flight::InFlight;
use super::submission::SequenceFailure;

/// Crashes after which a sequence is quarantined.
const CRASHES: u32 = 2;

/// A sequence that got this much further than the unfinished steps would have taken it is past the point
/// of the crash.
const PAST: u32 = 4;

impl Core {
    /// The workers are gone. What they had not answered is forgotten, and will be computed again; what they
    /// had answered is in the sequences.
    pub fn lose(&mut self, now: Instant) {
        let size = |step: &InFlight| StepSize {
            rows: step.rows.len() as u32,
            tokens: step.work.prompts.then_some(step.work.tokens),
        };
        let largest = self.in_flight.iter().map(size).max_by_key(|size| size.rows);
        let unfinished: Vec<_> = self.in_flight.drain(..).flat_map(|step| step.rows).collect();
        for row in unfinished {
            let Some(sequence) = self.sequences.get_mut(row.key).filter(|sequence| sequence.id == row.id)
            else {
                continue;
            };
            if sequence.rows_in_flight == 0 {
                // Was in both unfinished steps, and is counted already.
                continue;
            }
            sequence.rows_in_flight = 0;
            sequence.samples_in_flight = 0;
            sequence.unmasked_in_flight = 0;
            sequence.drafts_in_flight = 0;
            sequence.model_drafts_in_flight = 0;
            sequence.stale_drafts_in_flight = 0;
            sequence.tokens_in_flight = 0;
            // It may have been left to the token that was in flight.
            self.due.extend(sequence.stop_at.map(|at| (at, row.id)));
            let history = &mut sequence.crash_history;
            if history.quarantined {
                self.fail(row.key, SequenceFailure::Poisonous, now);
                continue;
            }
            if sequence.answered >= history.cleared_at {
                history.count = 0;
            }
            history.count += 1;
            // One that was preempted meanwhile has nothing planned, and got as far as this row.
            history.cleared_at = sequence.num_scheduled_tokens.max(row.end) + PAST;
            if history.count >= CRASHES {
                history.quarantined = true;
                self.quarantined.insert(sequence.precedence());
                // A step of one row is no batch.
                self.suspected_step = largest.filter(|size| size.rows > 1);
            }
        }
        for key in std::mem::take(&mut self.running) {
            let sequence = &mut self.sequences[key];
            sequence.table.blocks.clear();
            self.draft_states -= std::mem::take(&mut sequence.states.before_drafts);
            sequence.reset();
            self.wait(key);
        }
    }

    /// A sequence leaves. One that is quarantined has not passed: whether its step was at fault is not known then.
    pub(super) fn forgo_verdict(&mut self, key: usize) {
        if self.sequences[key].crash_history.quarantined {
            self.suspected_step = None;
        }
    }

    /// When all quarantined sequences have passed alone, their step was too large: smaller ones from now on.
    pub(super) fn lift_quarantine(&mut self) {
        if !self.quarantined.is_empty() {
            return;
        }
        if let Some(StepSize { rows, tokens }) = self.suspected_step.take() {
            self.throttle.shrink(rows, tokens);
            tracing::warn!(
                rows,
                tokens,
                most_rows = self.throttle.rows(),
                most_tokens = self.throttle.tokens(),
                "no request crashes the workers alone: steps are kept smaller than the one that did"
            );
        }
        // Those that have passed keep running, beside as many as may.
        while self.running.len() as u32 > self.throttle.rows()
            && let Some(&last) = self.running.last()
        {
            self.send_back(last);
        }
    }
}
