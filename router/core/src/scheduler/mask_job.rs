//! A sequence's grammar, and the job that advances it by what was sampled, takes what it forces and computes the mask of what may follow, and
//! those behind the drafts of the next row. When a job runs, and what becomes of its result, is `masks`.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_proto::ids::{SequenceId, TokenId};

use super::submission::SampledToken;
use crate::clock;
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

/// How long a sequence's masks take. A grammar that has been quick for long is expected to go on so, and one that is not keeps whoever
/// trusted it waiting once in a thousand tokens, then in thousands.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Habit {
    quick: u32,
    strikes: u32,
    /// Of quick ones.
    mean: Duration,
    /// Of all.
    cost: Duration,
}

impl Habit {
    /// How long the next mask is expected to take, if it is surely quick.
    pub fn expected(self) -> Option<Duration> {
        (self.quick >= HABIT << (2 * self.strikes)).then_some(self.mean)
    }

    /// How long a mask takes, quick or not.
    pub fn cost(self) -> Duration {
        self.cost
    }

    fn learn(&mut self, took: Duration) {
        let learn = |mean: Duration| mean.mul_f32(1.0 - SMOOTHING) + took.mul_f32(SMOOTHING);
        self.cost = learn(self.cost);
        if took <= QUICK {
            self.quick = self.quick.saturating_add(1);
            self.mean = learn(self.mean);
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
    /// What may be sampled behind drafts of a row.
    pub walked: Option<Walked>,
    /// Were sampled, and are handed on when the grammar's job for them has ended. From the first of them on that was sampled without a
    /// mask they may have to be dropped.
    pub held: VecDeque<HeldToken>,
    /// It was late for a row, which samples nothing: no row is planned until it is there.
    pub is_late: bool,
    /// Nothing was forbidden at the last token that was looked at.
    pub is_free: bool,
    pub habit: Habit,
}

pub(super) struct HeldToken {
    pub token: SampledToken,
    pub sampled: Sampled,
}

/// How a token of a constrained sequence was sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sampled {
    Masked,
    /// The likeliest, without a mask: it stays if it may follow, where nothing is forced.
    Freely,
    /// Drawn without a mask, or with one that forbids nothing: it stays if it may follow and the place is free. Anywhere else a mask moves
    /// the draw, and the text would depend on what was known when its row was sent.
    Drawn,
}

/// Advances a matcher and computes masks. Runs wherever it is put.
pub(super) struct MaskJob {
    pub id: SequenceId,
    pub matcher: Box<dyn Matcher>,
    pub asked: Asked,
    /// Position of the token of which the mask is asked for; of a walk of the one before the drafts.
    pub position: u32,
    /// What the next row guesses from there on.
    pub drafts: Vec<TokenId>,
    /// The sequence's tokens are drawn.
    pub draws: bool,
    /// Length of a mask.
    pub words: usize,
    pub habit: Habit,
}

pub(super) enum Asked {
    /// What follows these tokens; none: nothing was sampled yet. More than one: all under masks.
    Next {
        tokens: Vec<(TokenId, Sampled)>,
        /// No other token waits behind them: what is forced can be taken.
        may_force: bool,
    },
    /// Nothing but what follows the drafts.
    Walk,
}

/// What became of a job.
pub(super) struct MaskResult {
    pub id: SequenceId,
    /// `None` after a panic.
    pub matcher: Option<Box<dyn Matcher>>,
    /// `None`: that was not asked for.
    pub outcome: Result<Option<Next>, String>,
    /// Tokens that the matcher took.
    pub taken: usize,
    pub walked: Option<Walked>,
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

/// Where a grammar would be behind drafts.
pub(super) struct Walked {
    /// Where the first of them would be.
    pub position: u32,
    pub drafts: Vec<TokenId>,
    /// Behind each of them, up to the first that may not follow, or that ends the text.
    pub masks: Vec<RowMask>,
}

#[derive(Clone)]
pub(super) enum NextToken {
    /// A job computes it.
    NotYet,
    /// There is none: the grammar is complete.
    End,
    Masked(Arc<[u32]>),
    /// Is drawn without a mask, and looked at.
    Open,
}

/// The mask of a token that a row samples, as it is to be sent.
#[derive(Clone)]
pub(super) enum RowMask {
    NotYet,
    /// Nobody waits for its token.
    Nothing,
    Words(Arc<[u32]>),
    /// Of all tokens.
    Open,
    /// Of one token.
    Only(TokenId),
}

impl Constraint {
    pub fn new(grammar: &dyn Grammar) -> Self {
        Self {
            matcher: Some(grammar.matcher()),
            forced: VecDeque::new(),
            next: NextToken::NotYet,
            walked: None,
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
            (None, NextToken::Open) if place == self.forced.len() => RowMask::Open,
            // Behind the end nobody waits for a token.
            (None, NextToken::End) => RowMask::Nothing,
            (None, _) => RowMask::NotYet,
        }
    }
}

impl MaskJob {
    /// How long it is expected to take, if it is surely quick.
    pub fn expected(&self) -> Option<Duration> {
        Some(self.habit.expected()? * (1 + self.drafts.len() as u32))
    }

    /// Whether it is expected to be quick, surely or not. Nothing is expected of the first.
    pub fn is_likely_quick(&self) -> bool {
        let cost = self.habit.cost();
        self.expected().is_some() || (cost > Duration::ZERO && cost <= QUICK)
    }

    pub fn run(self) -> MaskResult {
        self.run_since(clock::now())
    }

    /// As if it had been begun then.
    pub(super) fn run_since(self, began: Instant) -> MaskResult {
        let Self { id, mut matcher, asked, position, drafts, draws, words, mut habit } = self;
        let mut computed = 0;
        let taken = match &asked {
            Asked::Next { tokens, .. } => tokens.len(),
            Asked::Walk => 0,
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| match asked {
            Asked::Next { tokens, may_force } => {
                computed += 1;
                follow(&mut *matcher, &tokens, may_force, draws, words).map(Some)
            }
            Asked::Walk => Ok(None),
        }));
        let begins = match &outcome {
            Ok(Ok(None)) => Some(0),
            Ok(Ok(Some(Next { refused: false, forced, then, .. }))) if !matches!(then, NextToken::End) => {
                drafts.starts_with(forced).then_some(forced.len())
            }
            _ => None,
        };
        let mut walked = None;
        if let Some(begins) = begins
            && let Some(rest) = drafts.get(begins..)
            && !rest.is_empty()
        {
            // Guesses fail nobody.
            let walk = || walk(&mut *matcher.fork(), rest, draws, words);
            let masks = catch_unwind(AssertUnwindSafe(walk)).unwrap_or_default();
            computed += masks.len() as u32;
            walked = Some(Walked { position: position + begins as u32, drafts: rest.to_vec(), masks });
        }
        habit.learn(clock::since(began) / computed.max(1));
        match outcome {
            Ok(outcome) => MaskResult { id, matcher: Some(matcher), outcome, taken, walked, habit },
            Err(_) => {
                tracing::error!("a grammar's matcher panicked");
                let outcome = Err("the grammar cannot be followed".into());
                MaskResult { id, matcher: None, outcome, taken, walked: None, habit }
            }
        }
    }
}

/// Has a matcher take tokens, and says what follows.
fn follow(
    matcher: &mut dyn Matcher,
    tokens: &[(TokenId, Sampled)],
    may_force: bool,
    draws: bool,
    words: usize,
) -> Result<Next, String> {
    let (mut refused, mut forced) = (false, Vec::new());
    for &(token, sampled) in tokens {
        if sampled == Sampled::Masked {
            matcher.advance(token)?;
            continue;
        }
        // Spelled as whoever waits for a mask here is told to spell it.
        if !matcher.is_free() {
            forced = matcher.take_forced(MOST_FORCED)?;
        }
        let is_moved = sampled == Sampled::Drawn && !matcher.is_free();
        refused = is_moved || !forced.is_empty() || !matcher.try_advance(token)?;
    }
    // After a refusal all starts again.
    if !matcher.is_complete() && forced.is_empty() && (may_force || refused) {
        forced = matcher.take_forced(MOST_FORCED)?;
    }
    if matcher.is_complete() && !(tokens.is_empty() && forced.is_empty()) {
        return Ok(Next { refused, forced, then: NextToken::End, is_free: false });
    }
    let mask = mask_of(matcher, words)?;
    // What was refused here itself is drawn again under the mask.
    let is_open = matcher.is_free() && !(refused && forced.is_empty());
    let then = if is_open && draws { NextToken::Open } else { NextToken::Masked(mask) };
    let is_free = is_open && forced.is_empty();
    Ok(Next { refused, forced, then, is_free })
}

/// What may be sampled behind each of these drafts, as it would be known when they had been sampled: with what the grammar forces there.
fn walk(matcher: &mut dyn Matcher, drafts: &[TokenId], draws: bool, words: usize) -> Vec<RowMask> {
    let mut masks = Vec::new();
    let mut forced = VecDeque::new();
    for &draft in drafts {
        match forced.pop_front() {
            Some(only) if only != draft => break,
            Some(_) => {}
            None => match matcher.try_advance(draft) {
                Ok(true) if !matcher.is_complete() => match matcher.take_forced(MOST_FORCED) {
                    Ok(taken) => forced = taken.into(),
                    Err(_) => break,
                },
                _ => break,
            },
        }
        masks.push(match forced.front() {
            Some(&only) => RowMask::Only(only),
            None if matcher.is_complete() => break,
            None => match mask_of(matcher, words) {
                Ok(_) if draws && matcher.is_free() => RowMask::Open,
                Ok(mask) => RowMask::Words(mask),
                Err(_) => break,
            },
        });
    }
    masks
}

fn mask_of(matcher: &mut dyn Matcher, words: usize) -> Result<Arc<[u32]>, String> {
    let mut mask = vec![0; words];
    matcher.mask(&mut mask)?;
    match mask.iter().all(|&word| word == 0) {
        true => Err("the grammar allows no token of the vocabulary here".to_string()),
        false => Ok(mask.into()),
    }
}

#[cfg(test)]
impl Habit {
    /// After jobs that took so long each.
    pub fn after(jobs: u32, took: Duration) -> Self {
        let mut habit = Self::default();
        (0..jobs).for_each(|_| habit.learn(took));
        habit
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
