//! The masks of constrained sequences. A plan with MASKED rows is sent before their masks are known; each follows when
//! the token before it is, computed by a job on a thread of `mask_threads` while the model runs. A token is handed on when
//! the job that advances the grammar by it has ended, so that a grammar that ends, ends the sequence with it.
//!
//! Where the grammar leaves one continuation, the job takes all of it: these tokens are *forced*. A row has them as drafts, each of which is
//! the only token that may be sampled in its place, and guesses behind them. They stay with the sequence until a result hands them on, so a
//! row that is lost costs none.
//!
//! Behind each guess the row needs a mask as well. A job *walks* the guesses: a copy of the matcher goes along them, up to the first that may
//! not follow. What it finds is of no use once another token is known.
//!
//! Where the grammar leaves everything open (free text in which a call may begin), rows are planned without a mask, and their
//! tokens are looked at when they come. They are handed on in order, each when its job has ended. One that may not follow
//! is dropped with all that came after it, and its sequence starts again, with a mask. So does what is not as it would have been, had
//! its row waited: a token in a place where others are forced, and a drawn one in a place that is not free, since a mask moves a draw.
//! For the same reason who draws gets a mask of all tokens in a free place, if its row has one, and its token is looked at as well:
//! with one seed there is one text, whatever was known when a row was sent.
//!
//! A mask that is late costs its row the step: it samples nothing, and neither does a row after it that is in flight. When
//! the mask is there the sequence starts again, mostly from the prefix cache. Others go on meanwhile. Where only masks behind guesses are
//! late, the row goes without those guesses.

use std::time::{Duration, Instant};

use bytes::{BufMut, BytesMut};
use penstock_proto::Masks;
use penstock_proto::ids::{SequenceId, TokenId};

use super::core::Core;
use super::in_flight::{InFlight, RowRecord, Yields};
use super::mask_job::{Asked, HeldToken, MaskJob, MaskResult, NextToken, RowMask, Sampled};
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

    /// Forced tokens that follow the next `ahead` ones, as far as a row that feeds them may still sample one.
    pub fn forced_behind(&self, ahead: u32) -> impl Iterator<Item = TokenId> {
        let first = ahead as usize;
        let constraint = self.constraint.iter();
        constraint.flat_map(move |constraint| {
            // The last token of a text is sampled, and not fed.
            let last = usize::from(matches!(constraint.next, NextToken::End));
            let fed = constraint.forced.len().saturating_sub(last);
            constraint.forced.range(first.min(fed)..fed).copied()
        })
    }

    /// Tokens that are sure to follow those that are known, and whether the text ends with them.
    pub fn forced(&self) -> (impl Iterator<Item = TokenId>, bool) {
        let constraint = self.constraint.as_deref();
        let ends = constraint.is_some_and(|constraint| matches!(constraint.next, NextToken::End));
        (constraint.into_iter().flat_map(|constraint| constraint.forced.iter().copied()), ends)
    }

    /// A token that waits for its grammar's job, which will take it.
    pub fn take_held(&mut self) -> Option<SampledToken> {
        let held = &mut self.constraint.as_mut()?.held;
        let is_sure = held.front()?.sampled == Sampled::Masked;
        if is_sure { held.pop_front().map(|held| held.token) } else { None }
    }

    /// Its tokens are drawn: a mask that forbids anything moves them.
    pub fn draws(&self) -> bool {
        self.sampling.temperature > 0.0
    }

    /// Tokens that its grammar has still to take.
    pub fn held(&self) -> u32 {
        self.constraint.as_ref().map_or(0, |constraint| constraint.held() as u32)
    }

    /// Tokens of which no grammar may say yet that they were never there.
    pub fn sure_tokens(&self) -> &[TokenId] {
        let held = self.constraint.iter().flat_map(|constraint| &constraint.held);
        let unsure = held.skip_while(|held| held.sampled == Sampled::Masked).count();
        &self.tokens[..self.tokens.len() - unsure]
    }

    /// How long a mask takes that one of its rows needs.
    pub fn mask_cost(&self) -> Duration {
        let masked = self.constraint.as_ref().filter(|constraint| !constraint.is_free());
        masked.map_or_else(Default::default, |constraint| constraint.habit.cost())
    }
}

impl Core {
    /// Computes the first mask of a sequence that has a grammar.
    pub(super) fn begin_grammar(&mut self, key: usize) {
        self.advance_grammar(key);
    }

    /// A constrained sequence has a token: holds it back until its grammar has taken it, unless it has already.
    pub(super) fn follow_grammar(&mut self, key: usize, token: SampledToken, sampled: Sampled, now: Instant) {
        let Sequence { id, constraint, .. } = &mut self.sequences[key];
        let Some(constraint) = constraint else { return };
        match constraint.forced.pop_front() {
            None => {
                let taken = (token.id, sampled);
                constraint.held.push_back(HeldToken { token, sampled });
                (constraint.next, constraint.walked) = (NextToken::NotYet, None);
                // What came with the token before goes into its job.
                match self.mask_jobs.last_mut().filter(|job| job.id == *id).map(|job| &mut job.asked) {
                    // Unless one between them was sampled without a mask.
                    Some(Asked::Next { tokens, .. })
                        if tokens.len() + 1 == constraint.held.len()
                            && [tokens.last(), Some(&taken)].iter().all(|taken| {
                                taken.is_some_and(|(_, sampled)| *sampled == Sampled::Masked)
                            }) =>
                    {
                        tokens.push(taken);
                    }
                    _ => self.advance_grammar(key),
                }
            }
            Some(forced) if forced != token.id => {
                tracing::error!(?forced, token = ?token.id, "a worker sampled another token than the only one allowed");
                self.fail(key, SequenceFailure::MaskIgnored, now);
            }
            Some(_) => {
                let is_last = constraint.forced.is_empty() && matches!(constraint.next, NextToken::End);
                self.counters.forced_tokens += 1;
                self.tell_or_end(key, token, is_last, now);
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

    /// Lets the matcher take what waits longest, unless it is at work: tokens under masks together, others one by one.
    fn advance_grammar(&mut self, key: usize) {
        let Some(constraint) = &self.sequences[key].constraint else { return };
        let held = constraint.held.iter().map(|held| (held.token.id, held.sampled));
        let mut tokens: Vec<_> =
            held.clone().take_while(|(_, sampled)| *sampled == Sampled::Masked).collect();
        if tokens.is_empty() {
            tokens.extend(held.take(1));
        }
        let may_force = constraint.held.len() == tokens.len();
        self.submit_job(key, Asked::Next { tokens, may_force }, 0, Vec::new());
    }

    /// Unless the matcher is at work.
    fn submit_job(&mut self, key: usize, asked: Asked, position: u32, drafts: Vec<TokenId>) {
        let words = self.mask_words();
        let sequence = &mut self.sequences[key];
        let (id, draws) = (sequence.id, sequence.draws());
        let Some(constraint) = &mut sequence.constraint else { return };
        let Some(matcher) = constraint.matcher.take() else { return };
        let habit = constraint.habit;
        self.mask_jobs.push(MaskJob { id, matcher, asked, position, drafts, draws, words, habit });
    }

    /// Has the guesses of the sequence's next row walked, if it is known what follows up to them, and the matcher is not at work.
    pub(super) fn walk_guesses(&mut self, key: usize) {
        let sequence = &self.sequences[key];
        let Some(constraint) = &sequence.constraint else { return };
        let position = (sequence.tokens.len() + constraint.forced.len()) as u32;
        if !matches!(constraint.next, NextToken::Masked(_) | NextToken::Open) || constraint.held() > 0 {
            return;
        }
        let Some(drafts) = self.guesses_behind(sequence, position) else { return };
        let walked = constraint.walked.as_ref();
        if walked.is_some_and(|walked| walked.position == position && walked.drafts == drafts) {
            return;
        }
        self.submit_job(key, Asked::Walk, position, drafts);
    }

    /// The drafts, from `position` on, of the row that verifies some there and awaits masks.
    fn guesses_behind(&self, sequence: &Sequence, position: u32) -> Option<Vec<TokenId>> {
        if sequence.drafts_in_flight == 0 {
            return None;
        }
        let steps = self.in_flight.iter().filter(|step| step.owes_masks());
        let mut rows = steps.flat_map(|step| &step.rows).filter(|row| row.id == sequence.id);
        let guesses = |row: &RowRecord| {
            let before = position.checked_sub(row.guessed_at).filter(|_| row.may_accept_guesses())?;
            Some(row.guesses.get(before as usize..)?.to_vec()).filter(|guesses| !guesses.is_empty())
        };
        rows.find_map(guesses)
    }

    /// What is to be computed for constrained sequences; each job's result is due at `take_mask`.
    pub fn take_mask_jobs(&mut self) -> Vec<MaskJob> {
        let mut jobs = std::mem::take(&mut self.mask_jobs);
        for job in &mut jobs {
            let Some(&key) = self.by_id.get(&job.id) else { continue };
            let sequence = &self.sequences[key];
            let Asked::Next { tokens, may_force } = &mut job.asked else { continue };
            if tokens.len() == sequence.held() as usize {
                job.position = sequence.tokens.len() as u32;
                job.drafts = self.guesses_behind(sequence, job.position).unwrap_or_default();
            } else {
                // Tokens of the same result came behind them.
                *may_force = false;
            }
        }
        jobs
    }

    /// How long the jobs are expected to take that were not handed out, if all are surely quick. `None`: that there are none, too.
    pub fn expected_mask_jobs(&self) -> Option<Duration> {
        let expected = self.mask_jobs.iter().map(MaskJob::expected).sum();
        if self.mask_jobs.is_empty() { None } else { expected }
    }

    fn mask_words(&self) -> usize {
        self.capacity.vocab_size.div_ceil(u32::BITS) as usize
    }

    /// A job has ended: hands on the tokens that waited for it, and ends the sequence if its grammar has.
    pub fn take_mask(&mut self, result: MaskResult, now: Instant) {
        let Some(&key) = self.by_id.get(&result.id) else { return };
        let draws = self.sequences[key].draws();
        let Some(constraint) = &mut self.sequences[key].constraint else { return };
        (constraint.matcher, constraint.habit) = (result.matcher, result.habit);
        let next = match result.outcome {
            Ok(next) => next,
            Err(why) => {
                self.fail(key, SequenceFailure::Mask(why), now);
                return;
            }
        };
        constraint.walked = result.walked;
        if let Some(next) = next {
            constraint.is_free = next.is_free;
            if next.refused {
                (constraint.forced, constraint.next) = (next.forced.into(), next.then);
                self.start_again(key, now);
                return;
            }
            let forces = !next.forced.is_empty();
            let moves = forces || (draws && !next.is_free);
            let is_last = next.forced.is_empty() && matches!(next.then, NextToken::End);
            if constraint.held.len() == result.taken || is_last || forces {
                (constraint.forced, constraint.next) = (next.forced.into(), next.then);
            }
            for left in (0..result.taken).rev() {
                let Some(constraint) = &mut self.sequences[key].constraint else { return };
                let Some(HeldToken { token, .. }) = constraint.held.pop_front() else { break };
                if self.stops(key, token.id) {
                    self.finish(key, SequenceEvent::Finished { last: token, finish: Finish::Eos }, now);
                } else {
                    self.tell_or_end(key, token, is_last && left == 0, now);
                }
                if !self.by_id.contains_key(&result.id) {
                    return;
                }
            }
            self.follow_text(key);
            let has_guessed = |row: &RowRecord| {
                row.id == result.id && row.sample && !row.masked && row.yields != Yields::Nothing
            };
            let mut rows = self.in_flight.iter().flat_map(|step| &step.rows);
            let sequence = &self.sequences[key];
            let waits = sequence.held() > 0;
            // Rows are many, and mostly none of them is one.
            let may_have_guessed = moves && !waits && sequence.unmasked_in_flight > 0;
            if (forces && waits) || (may_have_guessed && rows.any(has_guessed)) {
                self.start_again(key, now);
                return;
            }
        }
        match self.sequences[key].held() {
            0 => self.walk_guesses(key),
            _ => self.advance_grammar(key),
        }
    }

    /// What rows sampled without a mask behind the tokens that the grammar has taken may not stay: it was never there.
    fn start_again(&mut self, key: usize, now: Instant) {
        let sequence = &mut self.sequences[key];
        let Some(constraint) = &mut sequence.constraint else { return };
        let dropped = constraint.held.len();
        constraint.held.clear();
        constraint.walked = None;
        sequence.tokens.truncate(sequence.tokens.len() - dropped);
        sequence.looked_up = None;
        self.counters.refused_tokens += dropped as u64;
        let id = sequence.id;
        let rows = self.in_flight.iter_mut().flat_map(|step| &mut step.rows);
        rows.filter(|row| row.id == id).for_each(|row| row.yields = Yields::Nothing);
        if sequence.stop_at.is_some_and(|at| at <= now) && sequence.has_output() {
            self.finish(key, SequenceEvent::TimeUp, now);
        } else if sequence.slot.is_some() {
            self.send_back(key);
        } else {
            // It waits, and what its time was left to was never there.
            self.due.extend(sequence.stop_at.map(|at| (at, id)));
        }
    }

    /// The masks of the oldest plan that waits for some, once all are there.
    pub fn masks(&mut self, now: Instant) -> Option<Masks> {
        let at = self.in_flight.iter().position(InFlight::owes_masks)?;
        let (mut masks, mut open) = (Vec::new(), Vec::new());
        for (row_at, row) in self.in_flight[at].rows.iter().enumerate().filter(|(_, row)| row.masked) {
            for drafts in 0..=row.drafts {
                let mask = self.mask_of(row, drafts);
                match mask {
                    RowMask::NotYet => return None,
                    RowMask::Open => open.push((row_at, drafts)),
                    _ => {}
                }
                masks.push(mask);
            }
        }
        let listed = masks.iter().filter(|mask| matches!(mask, RowMask::Words(_) | RowMask::Open)).count();
        let mut only = BytesMut::with_capacity(size_of_val(&masks[..]));
        let mut words = BytesMut::with_capacity(listed * self.mask_words() * size_of::<u32>());
        for mask in masks {
            only.put_u32_le(match mask {
                RowMask::NotYet | RowMask::Nothing => Masks::NONE,
                RowMask::Only(TokenId(token)) => token,
                RowMask::Open => {
                    let vocab_size = self.capacity.vocab_size;
                    words.put_bytes(u8::MAX, vocab_size as usize / 32 * size_of::<u32>());
                    if !vocab_size.is_multiple_of(u32::BITS) {
                        words.put_u32_le((1 << (vocab_size % u32::BITS)) - 1);
                    }
                    Masks::OF_WORDS
                }
                RowMask::Words(mask) => {
                    words.extend_from_slice(bytemuck::cast_slice(&mask));
                    Masks::OF_WORDS
                }
            });
        }
        let step = &mut self.in_flight[at];
        step.masks_sent = Some(now);
        open.into_iter().for_each(|(row, drafts)| step.rows[row].open.push(drafts));
        Some(Masks { number: step.number, only: only.freeze(), words: words.freeze() })
    }

    /// Of the token that a row samples behind so many of its drafts.
    fn mask_of(&self, row: &RowRecord, drafts: u32) -> RowMask {
        if row.yields == Yields::Nothing {
            return RowMask::Nothing;
        }
        let Some(sequence) = self.sequences.get(row.key).filter(|sequence| sequence.id == row.id) else {
            return RowMask::Nothing;
        };
        let Some(constraint) = &sequence.constraint else { return RowMask::NotYet };
        // Of what is not known yet a row before it is in flight.
        let known = sequence.tokens.len();
        let Some(first) = ((row.end - row.drafts) as usize).checked_sub(known) else {
            return RowMask::Nothing;
        };
        if first > 0 && !self.is_certain(sequence, row) {
            return RowMask::NotYet;
        }
        if drafts == 0 {
            return constraint.mask_at(first);
        }
        if row.is_misled() {
            return RowMask::Nothing;
        }
        let (before, rest) =
            row.guesses.split_at(constraint.forced.len().saturating_sub(first).min(drafts as usize));
        let leads = before.iter().eq(constraint.forced.iter().skip(first).take(before.len()));
        if !leads {
            return RowMask::Nothing;
        }
        let walked = drafts as usize - before.len();
        let mask = match (&constraint.next, &constraint.walked) {
            _ if walked == 0 || first > constraint.forced.len() => {
                constraint.mask_at(first + drafts as usize)
            }
            (NextToken::End, _) => RowMask::Nothing,
            (NextToken::Masked(_) | NextToken::Open, Some(found))
                if found.position as usize == known + constraint.forced.len() && found.drafts == rest[..] =>
            {
                found.masks.get(walked - 1).cloned().unwrap_or(RowMask::Nothing)
            }
            _ => RowMask::NotYet,
        };
        match mask {
            RowMask::NotYet if row.yields == Yields::NoLateGuesses => RowMask::Nothing,
            mask => mask,
        }
    }

    /// Whether it is known where a row of the sequence begins: all drafts of its rows before that one are forced.
    fn is_certain(&self, sequence: &Sequence, row: &RowRecord) -> bool {
        let rows = self.in_flight.iter().flat_map(|step| &step.rows).filter(|other| other.id == row.id);
        let mut before = rows.take_while(|other| !std::ptr::eq(*other, row)).filter(|other| other.drafts > 0);
        before.all(|other| {
            let first = ((other.end - other.drafts) as usize).saturating_sub(sequence.tokens.len());
            let (forced, _) = sequence.forced();
            // Others are not accepted, though they be what is forced here.
            other.may_accept_guesses()
                && other.guesses.iter().copied().eq(forced.skip(first).take(other.guesses.len()))
        })
    }

    /// Until when plans behind the oldest step may wait for its masks, to be sent with them in one message: a message costs a
    /// worker in Python a tenth of a millisecond.
    pub fn plans_may_wait(&self, first_unsent: u64) -> Option<Instant> {
        let step = self.in_flight.front().filter(|step| step.owes_masks() && step.number < first_unsent)?;
        let began = self.last_result.map_or(step.built, |last| last.max(step.built));
        (step.expected >= LONG_STEP).then(|| began + step.expected / 4)
    }

    /// When the rows of the oldest step whose masks are not there are to be given up; where only guesses lack theirs, those are.
    pub fn masks_due(&self) -> Option<Instant> {
        let step = self.in_flight.front().filter(|step| step.owes_masks())?;
        let began = self.last_result.map_or(step.built, |last| last.max(step.built));
        let due = began + step.expected;
        let mut masked = step.rows.iter().filter(|row| row.masked);
        let lacks_any = masked.any(|row| matches!(self.mask_of(row, 0), RowMask::NotYet));
        Some(if lacks_any { due + MASK_BUDGET } else { due })
    }

    /// Rows whose masks are late sample nothing in this step, or verify no more drafts than those behind which there are masks.
    pub fn skip_late_rows(&mut self, now: Instant) {
        if self.masks_due().is_none_or(|due| due > now) {
            return;
        }
        let Some(step) = self.in_flight.front() else { return };
        let masked = step.rows.iter().filter(|row| row.masked && row.yields != Yields::Nothing);
        let late: Vec<(usize, SequenceId)> = masked
            .filter(|row| matches!(self.mask_of(row, 0), RowMask::NotYet))
            .map(|row| (row.key, row.id))
            .collect();
        let rows = self.in_flight.front_mut().into_iter().flat_map(|step| &mut step.rows);
        for row in rows.filter(|row| row.masked && row.yields == Yields::Everything) {
            row.yields = Yields::NoLateGuesses;
        }
        for (key, id) in late {
            self.counters.late_masks += 1;
            // Those behind it go on from what it would have sampled, with a mask or without.
            let rows = self.in_flight.iter_mut().flat_map(|step| &mut step.rows);
            rows.filter(|row| row.id == id).for_each(|row| row.yields = Yields::Nothing);
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
