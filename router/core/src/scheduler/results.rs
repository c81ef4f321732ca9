//! Applies a step's result: checks that it answers the oldest plan in flight and has the columns that plan
//! asked for, then hands every row what is its own. A row whose sequence has ended is dropped: rows name
//! sequences, never slots, so a slot's next owner cannot get its last owner's token.

use std::time::{Duration, Instant};

use penstock_proto::StepResult;
use penstock_proto::ids::TokenId;
use penstock_proto::tables::Table;

use super::core::Core;
use super::in_flight::{InFlight, RowRecord, Yields};
use super::mask_job::Sampled;
use super::sequence::{CrashHistory, PromptLogprobs, Sequence};
use super::submission::{Finish, PromptLogprob, SampledToken, SequenceEvent, SequenceFailure};
use crate::worker::{Loss, LossKind};

/// What a step was, for the metrics.
#[derive(Clone, Debug)]
pub(super) struct Stepped {
    pub rows: u32,
    pub tokens: u32,
    pub prompts: bool,
    /// Rows that answered with an error.
    pub errors: u32,
    /// From when the workers could begin it to its result.
    pub took: Duration,
    /// Of the workers: reading the plan, the model, choosing tokens.
    pub prepare: Duration,
    pub forward: Duration,
    pub sample: Duration,
    /// Sequences that had left the queue joined others that ran.
    pub joined: bool,
    /// Tokens that went to clients, and those of them that were drafts.
    pub delivered: u32,
    pub accepted: u32,
}

/// A result's columns, as arrays.
struct Answers {
    /// Of each row, how many of its drafts were accepted.
    accepted: Vec<u32>,
    sampled: Vec<u32>,
    logprobs: Vec<f32>,
    top_tokens: Vec<u32>,
    top_logprobs: Vec<f32>,
    prompt_logprobs: Vec<f32>,
    prompt_top_tokens: Vec<u32>,
    prompt_top_logprobs: Vec<f32>,
}

/// What one row got.
struct Answer<'a> {
    accepted: u32,
    samples: Samples<'a>,
    prompt: PromptAnswer<'a>,
}

/// The tokens that a row sampled: the accepted drafts, and one more. Empty if it sampled none.
struct Samples<'a> {
    tokens: &'a [u32],
    logprobs: &'a [f32],
    /// Alternatives of each token.
    top: usize,
    top_tokens: &'a [u32],
    top_logprobs: &'a [f32],
    /// The first, which a grammar forced. The others, but for the last, were guesses.
    forced: usize,
}

/// The alternatives of all its prompt tokens, one after the other.
struct PromptAnswer<'a> {
    logprobs: &'a [f32],
    top_tokens: &'a [u32],
    top_logprobs: &'a [f32],
}

impl Core {
    pub fn apply(&mut self, result: StepResult, now: Instant) -> Result<Stepped, Loss> {
        let step = self
            .in_flight
            .pop_front()
            .ok_or_else(|| out_of_step(format!("it answered plan {}, and none was open", result.number)))?;
        let answers = match Answers::read(&step, &result, self.capacity.vocab_size) {
            Ok(answers) => answers,
            Err(loss) => {
                // Unfinished: who was in it must be restarted.
                self.in_flight.push_front(step);
                return Err(loss);
            }
        };
        let begun = self.last_result.map_or(step.built, |last| last.max(step.built));
        let took = now.saturating_duration_since(begun);
        self.last_result = Some(now);
        self.shapes.insert(step.shape());
        self.throttle.passed(step.rows.len() as u32, step.work.tokens);
        self.cost.learn_drafting(step.work.drafted, Duration::from_nanos(result.draft_ns));
        // The first step of its size may have compiled, and one that masks held up says how long those took.
        if !step.first_run && !step.was_held_up(begun, now) {
            self.learn_cost(&step, &result, took);
        }
        self.counters.steps += 1;

        let mut stepped = Stepped {
            rows: step.rows.len() as u32,
            tokens: step.work.tokens,
            prompts: step.work.prompts,
            errors: result.errors.len() as u32,
            took,
            prepare: Duration::from_nanos(result.prepare_ns),
            forward: Duration::from_nanos(result.forward_ns),
            sample: Duration::from_nanos(result.sample_ns),
            joined: step.joins(),
            delivered: 0,
            accepted: 0,
        };
        let mut rest = answers.rows();
        let mut rows = step.rows;
        for (at, row) in rows.drain(..).enumerate() {
            let answer = rest.next(&row);
            let error = result.errors.iter().find(|error| error.row as usize == at);
            let Some(sequence) = self.sequences.get_mut(row.key).filter(|sequence| sequence.id == row.id)
            else {
                self.counters.wasted_rows += 1;
                if error.is_some() {
                    self.pool.purge(&Table::default(), row.id);
                }
                continue;
            };
            sequence.rows_in_flight -= 1;
            sequence.tokens_in_flight -= row.tokens;
            sequence.samples_in_flight -= u32::from(row.sample);
            sequence.unmasked_in_flight -= u32::from(row.sample && !row.masked);
            sequence.drafts_in_flight -= row.drafts;
            if row.own_drafts {
                sequence.model_drafts_in_flight -= row.drafts;
            }
            if row.stale_drafts {
                sequence.stale_drafts_in_flight -= row.drafts;
            }
            if let Some(accuracy) = &mut sequence.draft_accuracy {
                match row.own_drafts {
                    true => {
                        accuracy.learn(row.drafts, answer.accepted);
                        self.draft_accuracy.learn(row.drafts, answer.accepted);
                    }
                    false => accuracy.forget(),
                }
            }
            let rejected = row.drafts - answer.accepted;
            let end = row.end - rejected;
            if rejected > 0 {
                sequence.shorten(rejected);
            }
            if row.drafts > 0 {
                let later = self.in_flight.iter_mut().flat_map(|step| &mut step.rows);
                // Drafts between it and a later row that are going to be rejected, as was known when that was planned.
                let mut lost = 0;
                for later in later.filter(|later| later.id == row.id) {
                    later.end -= rejected;
                    let is_misled = later.end - later.drafts - lost != later.guessed_at;
                    if is_misled && !(later.own_drafts || later.stale_drafts) {
                        later.stale_drafts = true;
                        sequence.stale_drafts_in_flight += later.drafts;
                    }
                    lost += if later.stale_drafts { later.drafts } else { 0 };
                }
            }
            sequence.answered = sequence.answered.max(end);
            if rejected > 0 {
                self.drop_rejected_state(row.key, end);
            }
            let sequence = &mut self.sequences[row.key];
            if let Some(error) = error {
                // What the row read or computed may be as bad as its logits.
                self.pool.purge(&sequence.table, row.id);
                self.fail(row.key, SequenceFailure::Row(error.message.clone()), now);
                continue;
            }
            if sequence.crash_history.quarantined && sequence.answered >= sequence.crash_history.cleared_at {
                sequence.crash_history = CrashHistory::default();
                self.quarantined.remove(&sequence.precedence());
            }
            sequence.collect(&answer.prompt, row.wanted_targets as usize);
            if row.yields == Yields::Nothing {
                // Its time was left to the token that would have come.
                let over = sequence.stop_at.filter(|_| sequence.slot.is_none());
                self.due.extend(over.map(|at| (at, row.id)));
                continue;
            }
            if row.sample {
                // One that was preempted since has no blocks.
                let read = (end / self.pool.block_size()) as usize;
                let read = read.min(sequence.table.blocks.len());
                if read > sequence.vouched {
                    self.pool.vouch(&sequence.table, sequence.vouched..read);
                    sequence.vouched = read;
                }
                self.vouch_for_states(row.key, end);
            }
            for (at, sampled) in answer.samples.tokens().enumerate() {
                // It may have ended with the one before.
                if self.sequences.get(row.key).is_none_or(|sequence| sequence.id != row.id) {
                    break;
                }
                stepped.delivered += 1;
                stepped.accepted += u32::from(sampled.is_draft);
                self.counters.accepted_corpus_drafts += u64::from(sampled.is_draft && row.recalled);
                self.counters.accepted_model_drafts += u64::from(sampled.is_draft && row.own_drafts);
                let how = match self.sequences[row.key].draws() {
                    _ if row.masked && !row.open.contains(&(at as u32)) => Sampled::Masked,
                    true => Sampled::Drawn,
                    false => Sampled::Freely,
                };
                self.deliver(row.key, sampled, how, now);
            }
            if rejected > 0 && self.sequences.get(row.key).is_some_and(|sequence| sequence.id == row.id) {
                // A row behind it that was to follow this much and no more has guesses whose masks nobody has asked for.
                self.walk_guesses(row.key);
            }
        }
        self.counters.accepted_drafts += u64::from(stepped.accepted);
        self.counters.generated_tokens += u64::from(stepped.delivered);
        self.spare_rows.push(rows);
        Ok(stepped)
    }

    /// `took`: from when the workers could begin the step to its result.
    fn learn_cost(&mut self, step: &InFlight, result: &StepResult, took: Duration) {
        let computed = Duration::from_nanos(result.prepare_ns + result.forward_ns + result.sample_ns);
        let drafting = Duration::from_nanos(result.draft_ns);
        // What the draft model takes in of prompts is a part of what prompts take.
        let apart = match step.work.prompts {
            true => Duration::from_nanos(self.cost.expect_drafting(step.work.drafted) as u64).min(drafting),
            false => drafting,
        };
        let (without, computed) = (took.saturating_sub(apart), computed + (drafting - apart));
        match step.is_lone {
            true => self.cost.learn_alone(step.work, without, computed),
            false => self.cost.learn(step.work, without),
        }
    }

    fn deliver(&mut self, key: usize, sampled: SampledToken, how: Sampled, now: Instant) {
        self.end_probe(key, now);
        let sequence = &mut self.sequences[key];
        let token = sampled.id;
        sequence.tokens.push(token);
        let is_sure = sequence.constraint.as_ref().is_none_or(|constraint| {
            let mut all = constraint.held.iter().map(|held| held.sampled).chain([how]);
            all.all(|sampled| sampled == Sampled::Masked)
        });
        if is_sure {
            self.follow_text(key);
        }
        self.register(key);
        let stops = self.stops(key, token);
        let sequence = &self.sequences[key];
        // Without a mask the grammar says whether the text may end here; and tokens before it may still wait for theirs.
        if stops && (sequence.constraint.is_none() || (how == Sampled::Masked && sequence.held() == 0)) {
            let end = SequenceEvent::Finished { last: sampled, finish: Finish::Eos };
            self.finish(key, end, now);
        } else if sequence.constraint.is_some() {
            self.follow_grammar(key, sampled, how, now);
        } else {
            self.tell_token(key, sampled, now);
        }
    }

    /// The token ends the sequence.
    pub(super) fn stops(&self, key: usize, token: TokenId) -> bool {
        let sequence = &self.sequences[key];
        // A grammar says itself when its text may end.
        let goes_on = sequence.ignore_eos && sequence.constraint.is_none();
        (!goes_on && self.rules.eos.contains(&token)) || sequence.stop_token_ids.contains(&token)
    }

    /// Hands a token on, and ends its sequence if that was its last.
    pub(super) fn tell_token(&mut self, key: usize, sampled: SampledToken, now: Instant) {
        let sequence = &self.sequences[key];
        let generated = sequence.tokens.len() as u32 - sequence.held() - sequence.prompt_len;
        if generated >= sequence.max_new_tokens || sequence.stop_at.is_some_and(|at| now >= at) {
            let end = SequenceEvent::Finished { last: sampled, finish: Finish::Length };
            self.finish(key, end, now);
        } else {
            sequence.tell(SequenceEvent::Token(sampled));
        }
    }
}

impl Sequence {
    /// Keeps the first `wanted` of a row's prompt log probabilities, and hands all on when they are complete.
    fn collect(&mut self, answered: &PromptAnswer, wanted: usize) {
        let PromptLogprobs::Collecting(collected) = &mut self.prompt_logprobs else { return };
        let top = self.top_tokens as usize;
        for (at, &logprob) in answered.logprobs.iter().enumerate().take(wanted) {
            let of_it = at * top..(at + 1) * top;
            collected.push(PromptLogprob {
                logprob: (!logprob.is_nan()).then_some(logprob),
                top: pairs(&answered.top_tokens[of_it.clone()], &answered.top_logprobs[of_it]),
            });
        }
        if collected.len() as u32 + 1 < self.prompt_len {
            return;
        }
        // Nothing precedes the first token.
        let mut all = Vec::with_capacity(self.prompt_len as usize);
        all.push(PromptLogprob::default());
        all.append(collected);
        self.prompt_logprobs = PromptLogprobs::Delivered;
        self.tell(SequenceEvent::PromptLogprobs(all));
    }
}

impl Answers {
    /// Everything that indexes into the columns later is checked here.
    fn read(step: &InFlight, result: &StepResult, vocab_size: u32) -> Result<Self, Loss> {
        if result.number != step.number {
            let (got, expected) = (result.number, step.number);
            return Err(out_of_step(format!("it answered plan {got} instead of {expected}")));
        }
        let sum =
            |count: fn(&RowRecord) -> u32| step.rows.iter().map(|row| count(row) as usize).sum::<usize>();
        let accepted = accepted(step, result)?;
        let sampled = |(row, accepted): (&RowRecord, &u32)| if row.sample { 1 + *accepted } else { 0 };
        let counts: Vec<u32> = step.rows.iter().zip(&accepted).map(sampled).collect();
        let samples = counts.iter().map(|&count| count as usize).sum();
        let tops = step.rows.iter().zip(&counts).map(|(row, count)| (row.top_tokens * count) as usize).sum();
        let targets = sum(|row| row.prompt_targets);
        let prompt_tops = sum(|row| row.prompt_targets * row.top_tokens);
        let answers = Self {
            accepted,
            sampled: column("sampled", &result.sampled, samples)?,
            logprobs: column("logprobs", &result.logprobs, samples)?,
            top_tokens: column("top_tokens", &result.top_tokens, tops)?,
            top_logprobs: column("top_logprobs", &result.top_logprobs, tops)?,
            prompt_logprobs: column("prompt_logprobs", &result.prompt_logprobs, targets)?,
            prompt_top_tokens: column("prompt_top_tokens", &result.prompt_top_tokens, prompt_tops)?,
            prompt_top_logprobs: column("prompt_top_logprobs", &result.prompt_top_logprobs, prompt_tops)?,
        };
        let rows = step.rows.len();
        if let Some(error) = result.errors.iter().find(|error| error.row as usize >= rows) {
            return Err(out_of_step(format!("it answered an error for row {} of {rows}", error.row)));
        }
        let rows = step.rows.iter().zip(&counts).enumerate();
        let rows = rows.flat_map(|(at, (row, count))| std::iter::repeat_n((at, row), *count as usize));
        for ((at, row), &token) in rows.zip(&answers.sampled) {
            let key = row.key;
            // What a row in error sampled is undefined, and what one without a mask did.
            let is_error = || {
                row.yields == Yields::Nothing || result.errors.iter().any(|error| error.row as usize == at)
            };
            if token >= vocab_size && !is_error() {
                tracing::error!(plan = step.number, row = at, key, token, "sampled outside the vocabulary");
                let why = format!("it sampled token {token}, and the vocabulary has {vocab_size}");
                return Err(out_of_step(why));
            }
        }
        Ok(answers)
    }

    fn rows(&self) -> Rest<'_> {
        Rest {
            accepted: &self.accepted,
            sampled: &self.sampled,
            logprobs: &self.logprobs,
            top_tokens: &self.top_tokens,
            top_logprobs: &self.top_logprobs,
            prompt: PromptAnswer {
                logprobs: &self.prompt_logprobs,
                top_tokens: &self.prompt_top_tokens,
                top_logprobs: &self.prompt_top_logprobs,
            },
        }
    }
}

/// What the rows to come will take, in row order.
struct Rest<'a> {
    accepted: &'a [u32],
    sampled: &'a [u32],
    logprobs: &'a [f32],
    top_tokens: &'a [u32],
    top_logprobs: &'a [f32],
    prompt: PromptAnswer<'a>,
}

impl<'a> Rest<'a> {
    fn next(&mut self, row: &RowRecord) -> Answer<'a> {
        let tops = row.prompt_targets * row.top_tokens;
        let prompt = PromptAnswer {
            logprobs: take(&mut self.prompt.logprobs, row.prompt_targets),
            top_tokens: take(&mut self.prompt.top_tokens, tops),
            top_logprobs: take(&mut self.prompt.top_logprobs, tops),
        };
        let accepted = take(&mut self.accepted, 1)[0];
        let count = if row.sample { 1 + accepted } else { 0 };
        let samples = Samples {
            tokens: take(&mut self.sampled, count),
            logprobs: take(&mut self.logprobs, count),
            top: row.top_tokens as usize,
            top_tokens: take(&mut self.top_tokens, count * row.top_tokens),
            top_logprobs: take(&mut self.top_logprobs, count * row.top_tokens),
            forced: row.forced as usize,
        };
        Answer { accepted, samples, prompt }
    }
}

impl Samples<'_> {
    fn tokens(&self) -> impl Iterator<Item = SampledToken> {
        self.tokens.iter().zip(self.logprobs).enumerate().map(|(at, (&id, &logprob))| {
            let top = at * self.top..(at + 1) * self.top;
            SampledToken {
                id: TokenId(id),
                logprob,
                top: pairs(&self.top_tokens[top.clone()], &self.top_logprobs[top]),
                is_draft: at >= self.forced && at + 1 < self.tokens.len(),
            }
        })
    }
}

/// How many of each row's drafts were accepted.
fn accepted(step: &InFlight, result: &StepResult) -> Result<Vec<u32>, Loss> {
    let verifying = step.rows.iter().filter(|row| row.drafts > 0).count();
    let mut told = column::<u32>("accepted", &result.accepted, verifying)?.into_iter();
    let of = |row: &RowRecord| match row.drafts {
        0 => Ok(0),
        drafts => match told.next() {
            Some(accepted) if accepted <= drafts => Ok(accepted),
            accepted => Err(out_of_step(format!("it accepted {accepted:?} of {drafts} drafts"))),
        },
    };
    step.rows.iter().map(of).collect()
}

fn pairs(ids: &[u32], logprobs: &[f32]) -> Vec<(TokenId, f32)> {
    ids.iter().zip(logprobs).map(|(&id, &logprob)| (TokenId(id), logprob)).collect()
}

fn take<'a, T>(from: &mut &'a [T], count: u32) -> &'a [T] {
    let (taken, rest) = from.split_at(count as usize);
    *from = rest;
    taken
}

/// Of the rank that returned the result, which the task knows.
fn out_of_step(why: String) -> Loss {
    Loss::unnamed(LossKind::OutOfStep, why)
}

/// Copied out, since a received column need not be aligned.
fn column<T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(
    name: &str,
    bytes: &[u8],
    count: usize,
) -> Result<Vec<T>, Loss> {
    let expected = count * size_of::<T>();
    if bytes.len() != expected {
        let got = bytes.len();
        return Err(out_of_step(format!("its column {name} has {got} bytes instead of {expected}")));
    }
    Ok(bytemuck::allocation::pod_collect_to_vec(bytes))
}
