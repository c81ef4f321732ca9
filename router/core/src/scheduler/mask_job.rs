//! A sequence's grammar, and the job that advances it by a token, takes what it forces and computes the mask of what may follow. When a job
//! runs, and what becomes of its result, is `masks`.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_proto::ids::{SequenceId, TokenId};

use super::submission::SampledToken;
use crate::constraint::{Grammar, Matcher};

/// Tokens that a grammar forces and that are looked for at once: with more a row waits for its turn in vain.
pub(super) const MOST_FORCED: usize = 64;

/// A job that takes no longer holds up nobody.
const QUICK: Duration = Duration::from_micros(200);

/// The weight of the newest job in what is expected of the next.
const SMOOTHING: f32 = 0.125;

/// So many quick jobs one after the other are a habit; four times as many after each time that it was broken.
const HABIT: u32 = 16;
const MOST_STRIKES: u32 = 8;

/// How long a sequence's jobs take. A grammar that has been quick for long is expected to go on so, and one that is not keeps whoever
/// trusted it waiting once in a thousand tokens, then in thousands.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Habit {
    quick: u32,
    strikes: u32,
    mean: Duration,
}

impl Habit {
    /// How long the next job is expected to take, if it is surely quick.
    pub fn expected(self) -> Option<Duration> {
        (self.quick >= HABIT << (2 * self.strikes)).then_some(self.mean)
    }

    fn learn(&mut self, took: Duration) {
        if took <= QUICK {
            self.quick = self.quick.saturating_add(1);
            self.mean = self.mean.mul_f32(1.0 - SMOOTHING) + took.mul_f32(SMOOTHING);
            return;
        }
        if self.expected().is_some() {
            self.strikes = (self.strikes + 1).min(MOST_STRIKES);
        }
        self.quick = 0;
    }
}

/// A sequence's grammar, and what is known of its next token.
pub(super) struct Constraint {
    /// `None` while a job has it.
    pub matcher: Option<Box<dyn Matcher>>,
    /// What follows the tokens that are known, and was taken by the matcher.
    pub forced: VecDeque<TokenId>,
    /// Of the token behind them.
    pub next: NextToken,
    /// Were sampled, and are handed on when the grammar's job for each has ended. More than one: all but the first were sampled
    /// without a mask.
    pub held: VecDeque<HeldToken>,
    /// It was late for a row, which samples nothing: no row is planned until it is there.
    pub is_late: bool,
    /// Nothing was forbidden at the last token that was looked at.
    pub is_free: bool,
    pub habit: Habit,
}

pub(super) struct HeldToken {
    pub token: SampledToken,
    /// It was sampled under a mask.
    pub masked: bool,
}

/// Advances a matcher and computes its mask. Runs wherever it is put.
pub(super) struct MaskJob {
    pub id: SequenceId,
    pub matcher: Box<dyn Matcher>,
    /// And whether it was sampled under a mask. `None`: nothing was sampled yet.
    pub token: Option<(TokenId, bool)>,
    /// No row is in flight that samples without a mask: what is forced can be taken.
    pub may_force: bool,
    /// Length of a mask.
    pub words: usize,
    pub habit: Habit,
}

/// What became of a job.
pub(super) struct MaskResult {
    pub id: SequenceId,
    /// `None` after a panic.
    pub matcher: Option<Box<dyn Matcher>>,
    pub outcome: Result<Next, String>,
    pub habit: Habit,
}

/// What the grammar says of the tokens to come.
pub(super) struct Next {
    /// The job's token may not follow.
    pub refused: bool,
    pub forced: Vec<TokenId>,
    pub then: NextToken,
    pub is_free: bool,
}

#[derive(Clone)]
pub(super) enum NextToken {
    /// A job computes it.
    NotYet,
    /// There is none: the grammar is complete.
    End,
    Masked(Arc<[u32]>),
}

/// A row's mask, as it is to be sent.
pub(super) enum RowMask {
    NotYet,
    /// The row samples nothing, or nobody waits for its token.
    Nothing,
    Words(Arc<[u32]>),
    /// Of one token.
    Only(TokenId),
}

impl Constraint {
    pub fn new(grammar: &dyn Grammar) -> Self {
        Self {
            matcher: Some(grammar.matcher()),
            forced: VecDeque::new(),
            next: NextToken::NotYet,
            held: VecDeque::new(),
            is_late: false,
            is_free: false,
            habit: Habit::default(),
        }
    }

    /// Rows need no mask, as far as is known.
    pub fn is_free(&self) -> bool {
        self.is_free
    }

    /// Tokens that wait for their jobs.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Of the token that is so many places behind those that are known.
    pub fn mask_at(&self, place: usize) -> RowMask {
        match (self.forced.get(place), &self.next) {
            (Some(&token), _) => RowMask::Only(token),
            (None, NextToken::Masked(mask)) if place == self.forced.len() => RowMask::Words(mask.clone()),
            // Behind the end nobody waits for a token.
            (None, NextToken::End) => RowMask::Nothing,
            (None, _) => RowMask::NotYet,
        }
    }
}

impl MaskJob {
    pub fn run(self) -> MaskResult {
        let Self { id, mut matcher, token, may_force, words, mut habit } = self;
        let began = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let refused = match token {
                Some((token, true)) => {
                    matcher.advance(token)?;
                    false
                }
                Some((token, false)) => !matcher.try_advance(token)?,
                None => false,
            };
            let mut forced = Vec::new();
            // After a refusal all starts again.
            if !matcher.is_complete() && (may_force || refused) {
                forced = matcher.take_forced(MOST_FORCED)?;
            }
            if matcher.is_complete() && (token.is_some() || !forced.is_empty()) {
                return Ok(Next { refused, forced, then: NextToken::End, is_free: false });
            }
            let mut mask = vec![0; words];
            matcher.mask(&mut mask)?;
            if mask.iter().all(|&word| word == 0) {
                return Err("the grammar allows no token of the vocabulary here".to_string());
            }
            let is_free = matcher.is_free() && !refused;
            Ok(Next { refused, forced, then: NextToken::Masked(mask.into()), is_free })
        }));
        habit.learn(began.elapsed());
        match outcome {
            Ok(outcome) => MaskResult { id, matcher: Some(matcher), outcome, habit },
            Err(_) => {
                tracing::error!("a grammar's matcher panicked");
                MaskResult { id, matcher: None, outcome: Err("the grammar cannot be followed".into()), habit }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_slow_where_it_was_trusted_is_trusted_later() {
        let mut habit = Habit::default();
        let mut until_trusted = || {
            let mut jobs = 0;
            while habit.expected().is_none() {
                habit.learn(QUICK / 5);
                jobs += 1;
            }
            assert!(habit.expected() <= Some(QUICK / 5));
            habit.learn(QUICK * 100);
            assert_eq!(habit.expected(), None);
            jobs
        };
        assert_eq!([until_trusted(), until_trusted(), until_trusted()], [16, 64, 256]);
        // Slow before it was trusted costs nobody anything.
        let mut habit = Habit::default();
        for _ in 0..3 {
            (0..15).for_each(|_| habit.learn(QUICK));
            habit.learn(QUICK * 2);
        }
        (0..16).for_each(|_| habit.learn(QUICK));
        assert!(habit.expected().is_some());
    }
}
