//! The masks of constrained sequences. A plan with MASKED rows is sent before their masks are known; each follows when
//! the token before it is, computed by a job on a thread of `mask_threads` while the model runs. A token is handed on when
//! the job that advances the grammar by it has ended, so that a grammar that ends, ends the sequence with it.
//!
//! A mask that is late costs its row the step: it samples nothing, and neither does a row after it that is in flight. When
//! the mask is there the sequence starts again, mostly from the prefix cache. Others go on meanwhile.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use bytes::{BufMut, BytesMut};
use penstock_proto::Masks;
use penstock_proto::ids::{SequenceId, TokenId};

use super::core::Core;
use super::in_flight::{InFlight, RowRecord};
use super::policy::{LONG_STEP, MASK_BUDGET};
use super::sequence::Sequence;
use super::submission::{Finish, SampledToken, SequenceEvent, SequenceFailure};
use crate::constraint::{Grammar, Matcher};

/// A sequence's grammar, and what is known of its next token.
pub(super) struct Constraint {
    /// `None` while a job has it.
    matcher: Option<Box<dyn Matcher>>,
    /// Of the next token; `None` while a job computes it.
    mask: Option<Arc<[u32]>>,
    /// Was sampled, and is handed on when the grammar's job has ended.
    pub held: Option<SampledToken>,
    /// It was late for a row, which samples nothing: no row is planned until it is there.
    is_late: bool,
}

/// Advances a matcher and computes its mask. Runs wherever it is put.
pub(super) struct MaskJob {
    id: SequenceId,
    matcher: Box<dyn Matcher>,
    /// `None`: nothing was sampled yet.
    token: Option<TokenId>,
    /// Length of a mask.
    words: usize,
}

/// What became of a job.
pub(super) struct MaskResult {
    id: SequenceId,
    /// `None` after a panic.
    matcher: Option<Box<dyn Matcher>>,
    outcome: Result<Next, String>,
}

enum Next {
    Complete,
    Mask(Arc<[u32]>),
}

/// A row's mask, as it is to be sent.
enum RowMask {
    NotYet,
    /// The row samples nothing, or nobody waits for its token.
    Nothing,
    Words(Arc<[u32]>),
}

impl Constraint {
    pub fn new(grammar: &dyn Grammar) -> Self {
        Self { matcher: Some(grammar.matcher()), mask: None, held: None, is_late: false }
    }
}

impl Sequence {
    /// Its mask was late for a row, and it has not started again.
    pub fn has_late_mask(&self) -> bool {
        self.constraint.as_ref().is_some_and(|constraint| constraint.is_late)
    }

    /// Whoever starts again is late no more.
    pub fn forget_late_mask(&mut self) {
        if let Some(constraint) = &mut self.constraint {
            constraint.is_late = false;
        }
    }

    /// A token that waits for its grammar's job.
    pub fn take_held(&mut self) -> Option<SampledToken> {
        self.constraint.as_mut()?.held.take()
    }
}

impl MaskJob {
    pub fn run(self) -> MaskResult {
        let Self { id, mut matcher, token, words } = self;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            if let Some(token) = token {
                matcher.advance(token)?;
                if matcher.is_complete() {
                    return Ok(Next::Complete);
                }
            }
            let mut mask = vec![0; words];
            matcher.mask(&mut mask)?;
            match mask.iter().all(|&word| word == 0) {
                true => Err("the grammar allows no token of the vocabulary here".to_string()),
                false => Ok(Next::Mask(mask.into())),
            }
        }));
        match outcome {
            Ok(outcome) => MaskResult { id, matcher: Some(matcher), outcome },
            Err(_) => {
                tracing::error!("a grammar's matcher panicked");
                MaskResult { id, matcher: None, outcome: Err("the grammar cannot be followed".into()) }
            }
        }
    }
}

impl Core {
    /// Computes the first mask of a sequence that has a grammar.
    pub(super) fn begin_grammar(&mut self, key: usize) {
        self.advance_grammar(key, None);
    }

    /// Holds a constrained sequence's token back until its grammar has taken it.
    pub(super) fn hold(&mut self, key: usize, sampled: SampledToken) {
        let token = sampled.id;
        if let Some(constraint) = &mut self.sequences[key].constraint {
            constraint.held = Some(sampled);
            constraint.mask = None;
        }
        self.advance_grammar(key, Some(token));
    }

    fn advance_grammar(&mut self, key: usize, token: Option<TokenId>) {
        let words = self.mask_words();
        let sequence = &mut self.sequences[key];
        let matcher = sequence.constraint.as_mut().and_then(|constraint| constraint.matcher.take());
        if let Some(matcher) = matcher {
            self.mask_jobs.push(MaskJob { id: sequence.id, matcher, token, words });
        }
    }

    fn mask_words(&self) -> usize {
        self.capacity.vocab_size.div_ceil(u32::BITS) as usize
    }

    /// A job has ended: hands on the token that waited for it, and ends the sequence if its grammar has.
    pub fn take_mask(&mut self, result: MaskResult, now: Instant) {
        let Some(&key) = self.by_id.get(&result.id) else { return };
        let sequence = &mut self.sequences[key];
        let held = sequence.take_held();
        let Some(constraint) = &mut sequence.constraint else { return };
        constraint.matcher = result.matcher;
        match (result.outcome, held) {
            (Ok(Next::Complete), Some(last)) => {
                self.finish(key, SequenceEvent::Finished { last, finish: Finish::Complete }, now);
            }
            (Ok(Next::Mask(mask)), held) => {
                constraint.mask = Some(mask);
                if let Some(token) = held {
                    self.tell_token(key, token, now);
                }
            }
            (Ok(Next::Complete), None) => unreachable!("a job without a token computes a mask"),
            (Err(why), held) => {
                constraint.held = held;
                self.fail(key, SequenceFailure::Row(why));
            }
        }
    }

    /// The masks of the oldest plan that waits for some, once all are there.
    pub fn masks(&mut self, now: Instant) -> Option<Masks> {
        let at = self.in_flight.iter().position(InFlight::owes_masks)?;
        let words = self.mask_words();
        let step = &self.in_flight[at];
        let mut column = BytesMut::new();
        for row in step.rows.iter().filter(|row| row.masked) {
            match self.mask_of(row) {
                RowMask::NotYet => return None,
                RowMask::Nothing => column.put_bytes(0, words * size_of::<u32>()),
                RowMask::Words(mask) => column.extend_from_slice(bytemuck::cast_slice(&mask)),
            }
        }
        let step = &mut self.in_flight[at];
        step.masks_sent = Some(now);
        Some(Masks { number: step.number, words: column.freeze() })
    }

    fn mask_of(&self, row: &RowRecord) -> RowMask {
        if row.is_skipped {
            return RowMask::Nothing;
        }
        match self.sequences.get(row.key).filter(|sequence| sequence.id == row.id) {
            None => RowMask::Nothing,
            // A row before it is in flight.
            Some(sequence) if sequence.tokens.len() < row.end as usize => RowMask::NotYet,
            Some(sequence) => {
                let mask = sequence.constraint.as_ref().and_then(|constraint| constraint.mask.clone());
                mask.map_or(RowMask::NotYet, RowMask::Words)
            }
        }
    }

    /// Until when plans behind the oldest step may wait for its masks, to be sent with them in one message: a message costs a
    /// worker in Python a tenth of a millisecond.
    pub fn plans_may_wait(&self, first_unsent: u64) -> Option<Instant> {
        let step = self.in_flight.front().filter(|step| step.owes_masks() && step.number < first_unsent)?;
        let began = self.last_result.map_or(step.built, |last| last.max(step.built));
        (step.expected >= LONG_STEP).then(|| began + step.expected / 4)
    }

    /// When the rows of the oldest step whose masks are not there are to be given up.
    pub fn masks_due(&self) -> Option<Instant> {
        let step = self.in_flight.front().filter(|step| step.owes_masks())?;
        let began = self.last_result.map_or(step.built, |last| last.max(step.built));
        Some(began + step.expected + MASK_BUDGET)
    }

    /// Rows whose masks are late sample nothing in this step.
    pub fn skip_late_rows(&mut self, now: Instant) {
        if self.masks_due().is_none_or(|due| due > now) {
            return;
        }
        let Some(step) = self.in_flight.front() else { return };
        let masked = step.rows.iter().filter(|row| row.masked && !row.is_skipped);
        let late: Vec<(usize, SequenceId)> = masked
            .filter(|row| matches!(self.mask_of(row), RowMask::NotYet))
            .map(|row| (row.key, row.id))
            .collect();
        for (key, id) in late {
            self.counters.late_masks += 1;
            let rows = self.in_flight.iter_mut().flat_map(|step| &mut step.rows);
            rows.filter(|row| row.id == id && row.masked).for_each(|row| row.is_skipped = true);
            // Who waits in the queue starts again anyhow.
            if let Some(sequence) = self.sequences.get_mut(key).filter(|sequence| sequence.slot.is_some())
                && let Some(constraint) = &mut sequence.constraint
            {
                constraint.is_late = true;
            }
        }
    }

    /// Sequences whose late masks are there by now start again.
    pub(super) fn resume_late(&mut self) {
        let has_mask = |sequence: &Sequence| {
            sequence.constraint.as_ref().is_some_and(|constraint| constraint.mask.is_some())
        };
        let is_over = |sequence: &Sequence| {
            sequence.has_late_mask() && sequence.rows_in_flight == 0 && has_mask(sequence)
        };
        while let Some(&key) = self.running.iter().find(|&&key| is_over(&self.sequences[key])) {
            self.send_back(key);
        }
    }
}
