//! The masks of constrained sequences. A plan with MASKED rows is sent before their masks are known; each follows when
//! the token before it is, computed by a job on a thread of `mask_threads` while the model runs. A token is handed on when
//! the job that advances the grammar by it has ended, so that a grammar that ends, ends the sequence with it.
//!
//! Where the grammar leaves one continuation, the job takes all of it: these tokens are *forced*. One of them is sampled under
//! a mask of its own; the others go into the next row as drafts that its worker takes as they are, and the row samples what
//! follows them. They stay with the sequence until a result hands them on, so a row that is lost costs none.
//!
//! Where the grammar leaves everything open (free text in which a call may begin), rows are planned without a mask, and their
//! tokens are looked at when they come. They are handed on in order, each when its job has ended. One that may not follow
//! is dropped with all that came after it, and its sequence starts again, with a mask. What is drawn is as if under one.
//!
//! A mask that is late costs its row the step: it samples nothing, and neither does a row after it that is in flight. When
//! the mask is there the sequence starts again, mostly from the prefix cache. Others go on meanwhile.

use std::time::Instant;

use bytes::{BufMut, BytesMut};
use penstock_proto::Masks;
use penstock_proto::ids::{SequenceId, TokenId};

use super::core::Core;
use super::in_flight::{InFlight, RowRecord};
use super::mask_job::{HeldToken, MaskJob, MaskResult, NextToken, RowMask};
use super::policy::{LONG_STEP, MASK_BUDGET};
use super::sequence::Sequence;
use super::submission::{Finish, SampledToken, SequenceEvent, SequenceFailure};

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

    /// Forced tokens that follow the one at `position`, which a row is to feed, as far as the row may still sample one.
    pub fn forced_behind(&self, position: u32) -> impl Iterator<Item = TokenId> {
        let first = (position + 1).saturating_sub(self.tokens.len() as u32) as usize;
        let constraint = self.constraint.iter();
        constraint.flat_map(move |constraint| {
            // The last token of a text is sampled, and not fed.
            let last = usize::from(matches!(constraint.next, NextToken::End));
            let fed = constraint.forced.len().saturating_sub(last);
            constraint.forced.range(first.min(fed)..fed).copied()
        })
    }

    /// A token that waits for its grammar's job, which will take it.
    pub fn take_held(&mut self) -> Option<SampledToken> {
        let held = &mut self.constraint.as_mut()?.held;
        if held.front()?.masked { held.pop_front().map(|held| held.token) } else { None }
    }

    /// Tokens that its grammar has still to take.
    pub fn held(&self) -> u32 {
        self.constraint.as_ref().map_or(0, |constraint| constraint.held() as u32)
    }
}

impl Core {
    /// Computes the first mask of a sequence that has a grammar.
    pub(super) fn begin_grammar(&mut self, key: usize) {
        self.advance_grammar(key);
    }

    /// A constrained sequence has a token: holds it back until its grammar has taken it, unless it has already.
    pub(super) fn follow_grammar(&mut self, key: usize, sampled: SampledToken, masked: bool, now: Instant) {
        let token = sampled.id;
        let Some(constraint) = &mut self.sequences[key].constraint else { return };
        match constraint.forced.pop_front() {
            None => {
                constraint.held.push_back(HeldToken { token: sampled, masked });
                constraint.next = NextToken::NotYet;
                self.advance_grammar(key);
            }
            Some(forced) if forced != token => {
                tracing::error!(?forced, ?token, "a worker sampled another token than the only one allowed");
                self.fail(key, SequenceFailure::MaskIgnored);
            }
            Some(_) => {
                let is_last = constraint.forced.is_empty() && matches!(constraint.next, NextToken::End);
                self.counters.forced_tokens += 1;
                self.tell_or_end(key, sampled, is_last, now);
            }
        }
    }

    /// Hands on a token that the grammar has taken.
    fn tell_or_end(&mut self, key: usize, token: SampledToken, is_last: bool, now: Instant) {
        match is_last {
            true => self.finish(key, SequenceEvent::Finished { last: token, finish: Finish::Complete }, now),
            false => self.tell_token(key, token, now),
        }
    }

    /// Lets the matcher take the token that waits longest, unless it is at work.
    fn advance_grammar(&mut self, key: usize) {
        let words = self.mask_words();
        let sequence = &mut self.sequences[key];
        let Some(constraint) = &mut sequence.constraint else { return };
        let Some(matcher) = constraint.matcher.take() else { return };
        let token = constraint.held.front().map(|held| (held.token.id, held.masked));
        let mut rows = self.in_flight.iter().flat_map(|step| &step.rows);
        let is_ahead = rows.any(|row| row.id == sequence.id && row.sample && !row.masked && !row.is_skipped);
        let may_force = !constraint.is_free && constraint.held.len() <= 1 && !is_ahead;
        let habit = constraint.habit;
        self.mask_jobs.push(MaskJob { id: sequence.id, matcher, token, may_force, words, habit });
    }

    fn mask_words(&self) -> usize {
        self.capacity.vocab_size.div_ceil(u32::BITS) as usize
    }

    /// A job has ended: hands on the token that waited for it, and ends the sequence if its grammar has.
    pub fn take_mask(&mut self, result: MaskResult, now: Instant) {
        let Some(&key) = self.by_id.get(&result.id) else { return };
        let Some(constraint) = &mut self.sequences[key].constraint else { return };
        (constraint.matcher, constraint.habit) = (result.matcher, result.habit);
        let next = match result.outcome {
            Ok(next) => next,
            Err(why) => {
                self.fail(key, SequenceFailure::Mask(why));
                return;
            }
        };
        constraint.is_free = next.is_free;
        if next.refused {
            (constraint.forced, constraint.next) = (next.forced.into(), next.then);
            self.drop_held(key, now);
            return;
        }
        let held = constraint.held.pop_front();
        let is_last = next.forced.is_empty() && matches!(next.then, NextToken::End);
        if constraint.held.is_empty() || is_last {
            (constraint.forced, constraint.next) = (next.forced.into(), next.then);
        }
        if let Some(HeldToken { token, masked }) = held {
            if !masked && self.stops(key, token.id) {
                self.finish(key, SequenceEvent::Finished { last: token, finish: Finish::Eos }, now);
                return;
            }
            self.tell_or_end(key, token, is_last, now);
        }
        if self.by_id.contains_key(&result.id) && self.sequences[key].held() > 0 {
            self.advance_grammar(key);
        }
    }

    /// The first of the tokens that wait may not follow: it was never there, and nothing that came after it.
    fn drop_held(&mut self, key: usize, now: Instant) {
        let sequence = &mut self.sequences[key];
        let Some(constraint) = &mut sequence.constraint else { return };
        let dropped = constraint.held.len();
        constraint.held.clear();
        sequence.tokens.truncate(sequence.tokens.len() - dropped);
        self.counters.refused_tokens += dropped as u64;
        let id = sequence.id;
        let rows = self.in_flight.iter_mut().flat_map(|step| &mut step.rows);
        rows.filter(|row| row.id == id).for_each(|row| row.is_skipped = true);
        if sequence.stop_at.is_some_and(|at| at <= now) && sequence.has_output() {
            self.finish(key, SequenceEvent::TimeUp, now);
        } else if sequence.slot.is_some() {
            self.send_back(key);
        }
    }

    /// The masks of the oldest plan that waits for some, once all are there.
    pub fn masks(&mut self, now: Instant) -> Option<Masks> {
        let at = self.in_flight.iter().position(InFlight::owes_masks)?;
        let words = self.mask_words();
        let step = &self.in_flight[at];
        let masked = step.rows.iter().filter(|row| row.masked);
        if masked.clone().any(|row| matches!(self.mask_of(row), RowMask::NotYet)) {
            return None;
        }
        let mut column = BytesMut::with_capacity(masked.clone().count() * words * size_of::<u32>());
        for row in masked {
            match self.mask_of(row) {
                RowMask::NotYet => return None,
                RowMask::Nothing => column.put_bytes(0, words * size_of::<u32>()),
                RowMask::Words(mask) => column.extend_from_slice(bytemuck::cast_slice(&mask)),
                RowMask::Only(TokenId(token)) => {
                    let from = column.len() + (token / u32::BITS) as usize * size_of::<u32>();
                    column.put_bytes(0, words * size_of::<u32>());
                    let word = 1u32 << (token % u32::BITS);
                    column[from..from + size_of::<u32>()].copy_from_slice(&word.to_le_bytes());
                }
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
            // Of what is not known yet a row before it is in flight.
            Some(sequence) => {
                match (&sequence.constraint, (row.end as usize).checked_sub(sequence.tokens.len())) {
                    (Some(constraint), Some(place)) => constraint.mask_at(place),
                    (_, None) => RowMask::Nothing,
                    (None, _) => RowMask::NotYet,
                }
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
            // Those behind it go on from what it would have sampled, with a mask or without.
            let rows = self.in_flight.iter_mut().flat_map(|step| &mut step.rows);
            rows.filter(|row| row.id == id).for_each(|row| row.is_skipped = true);
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
            let constraint = sequence.constraint.as_ref();
            constraint.is_some_and(|constraint| !matches!(constraint.next, NextToken::NotYet))
        };
        let is_over = |sequence: &Sequence| {
            sequence.has_late_mask() && sequence.rows_in_flight == 0 && has_mask(sequence)
        };
        while let Some(&key) = self.running.iter().find(|&&key| is_over(&self.sequences[key])) {
            self.send_back(key);
        }
    }
}
