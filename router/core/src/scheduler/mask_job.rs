//! A sequence's grammar, and the job that advances it by a token, takes what it forces and computes the mask of what may follow. When a job
//! runs, and what becomes of its result, is `masks`.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use penstock_proto::ids::{SequenceId, TokenId};

use super::submission::SampledToken;
use crate::constraint::{Grammar, Matcher};

/// Tokens that a grammar forces and that are looked for at once: with more a row waits for its turn in vain.
pub(super) const MOST_FORCED: usize = 64;

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
}

/// What became of a job.
pub(super) struct MaskResult {
    pub id: SequenceId,
    /// `None` after a panic.
    pub matcher: Option<Box<dyn Matcher>>,
    pub outcome: Result<Next, String>,
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
        let Self { id, mut matcher, token, may_force, words } = self;
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
        match outcome {
            Ok(outcome) => MaskResult { id, matcher: Some(matcher), outcome },
            Err(_) => {
                tracing::error!("a grammar's matcher panicked");
                MaskResult { id, matcher: None, outcome: Err("the grammar cannot be followed".into()) }
            }
        }
    }
}
