//! How many drafts the rows of a plan get (`--speculate`), and from whom. Drafts are `guesses`, or made by a model in the workers
//! (`draft_model`); what they are worth is
//! known from how often its guesses were right, what they cost from the cost model's curve of a step's time over its tokens.
//! A step has drafts when more tokens a second are expected of it with them than without; so a full batch has none.
//!
//! A plan may follow a verify row before its result is known. Its drafts then go on behind those in flight, and are worth
//! something only if those are all accepted. Where it is worth more to know first, the plan waits for the result. Drafts of a model
//! are made when their row is computed, and so always follow what is known.
//!
//! Where workers verify trees, a row may have *branches* beside its guess: what else followed the same tokens
//! before. One draft after the other goes where it is most likely right, on the guess or on a branch. A step has such trees
//! only where it is better by that than the best one with chains: workers take longer over them.
//!
//! What a grammar forces (`masks`) goes the same way, and comes first: it is accepted for certain, so nothing is weighed. Guesses go on behind
//! it where they have foretold it, and cost a mask each.

use super::core::Core;
use super::cost::Work;
use super::draft_model::{DraftAccuracy, Drafted};
use super::policy::Drafting;
use super::prompt_lookup::{Accuracies, BRANCH_GRAM, MOST_BRANCHES};
use super::sequence::Sequence;

/// Tokens of a text that an index takes in at a time, so that a long prompt holds up no step.
pub(super) const INDEXED_AT_ONCE: usize = 1024;

/// A draft has to be worth so much more than it costs, and a step with drafts so much more than one without: both are
/// estimates.
const MARGIN: f64 = 1.1;
const STEP_MARGIN: f64 = 1.02;

/// Waiting for a result has to promise more: it costs for certain, and the guess may be lost with the result.
const WAIT_MARGIN: f64 = 1.05;

/// A guess that is right so often is good enough to measure what drafts cost; then a row has so many, and all rows together
/// this part of their number.
const PROBE_ACCURACY: f64 = 0.5;
const PROBE_DRAFTS: u32 = 4;
const PROBE_PART: u32 = 8;

/// Who makes a row's drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drafter {
    /// They are what its grammar forces.
    Grammar,
    /// They followed the same tokens before.
    Text,
    /// The workers' own model.
    Model,
}

/// Drafts for a row of a plan, at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Allotment {
    pub key: usize,
    pub drafts: u32,
    /// How many of them are on each branch beside the guess.
    pub branches: [u32; MOST_BRANCHES],
    pub drafter: Drafter,
}

impl Allotment {
    fn chain(key: usize, drafts: u32, drafter: Drafter) -> Self {
        Self { key, drafts, branches: [0; MOST_BRANCHES], drafter }
    }

    pub fn add_to(&self, work: &mut Work) {
        work.add_drafts(self.drafts);
        work.has_tree |= self.branches != [0; MOST_BRANCHES];
        if self.drafter == Drafter::Model {
            work.drafted.add(self.drafts);
        }
    }
}

/// A row that may have drafts.
#[derive(Clone, Copy)]
struct Candidate {
    key: usize,
    drafter: Drafter,
    /// Chances that guesses are right, if all before them were, and behind how many tokens that match the first comes.
    accuracies: Accuracies,
    length: u32,
    /// Chance that its first draft is right in the next plan, where it comes after the tokens in flight and what a grammar forces; and how
    /// many those are.
    first: f64,
    ahead: u32,
    /// Of those, what is forced.
    forced: u32,
    most: u32,
    /// Tokens that are guessed, those in flight among them: behind them the guess sees the end of the text.
    guessed: u32,
    /// Chances that the first drafts of branches are right.
    branches: [f64; MOST_BRANCHES],
    /// Of the mask behind a draft, in nanoseconds.
    mask_cost: f64,
}

/// Whether a plan goes ahead or waits for the results in flight.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Now,
    Later,
}

impl Candidate {
    /// Chance that its first draft is right.
    fn first(&self, when: When) -> f64 {
        if when == When::Now { self.first } else { self.accuracy(self.forced) }
    }

    /// Chance that a guess is right if so many before it were.
    fn accuracy(&self, behind: u32) -> f64 {
        f64::from(self.accuracies.behind(self.length.saturating_add(behind)))
    }

    /// Tokens of the guess before its first draft.
    fn before(&self, when: When) -> u32 {
        if when == When::Now { self.ahead } else { self.forced }
    }

    /// Most drafts that it can have.
    fn room(&self, when: When) -> u32 {
        self.most.min(self.guessed.saturating_sub(self.before(when)))
    }
}

/// Whether a step's drafts are all behind one another, or some beside others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Chains,
    Trees,
}

/// The guess of a row, then its branches: how many drafts each has so far, and how likely the next one is right.
struct Paths {
    lengths: [u32; 1 + MOST_BRANCHES],
    chances: [f64; 1 + MOST_BRANCHES],
    /// Most drafts of the guess.
    room: u32,
    /// Whether there are as many branches as have a chance.
    are_known: bool,
}

impl Paths {
    fn of(row: &Candidate, when: When) -> Self {
        let room = row.room(when);
        let guess = if room > 0 { row.first(when) } else { 0.0 };
        // They, too, follow tokens in flight, if those are the guess.
        let before = row.first(when) / row.accuracy(row.before(when)).max(f64::MIN_POSITIVE);
        let [first, second, third] = row.branches.map(|chance| chance * before);
        Self {
            lengths: [0; 1 + MOST_BRANCHES],
            chances: [guess, first, second, third],
            room,
            are_known: false,
        }
    }

    /// The one whose next draft is the most likely to be right; of equals the guess.
    fn best(&self) -> Option<(usize, f64)> {
        let likelier = |best: Option<(usize, f64)>, (path, &chance): (usize, &f64)| match best {
            Some((_, most)) if most >= chance => best,
            _ => (chance > 0.0).then_some((path, chance)),
        };
        self.chances.iter().enumerate().fold(None, likelier)
    }

    fn keep_branches(&mut self, count: usize) {
        self.chances.iter_mut().skip(1 + count).for_each(|chance| *chance = 0.0);
        self.are_known = true;
    }

    fn lengthen(&mut self, path: usize, row: &Candidate, when: When) {
        self.lengths[path] += 1;
        self.chances[path] *= match path {
            0 if self.lengths[0] == self.room => 0.0,
            0 => row.accuracy(row.before(when) + self.lengths[0]),
            _ => f64::from(row.accuracies.behind(BRANCH_GRAM as u32 + self.lengths[path])),
        };
    }
}

/// What is expected of a step.
struct Expected {
    tokens: f64,
    nanoseconds: f64,
    drafts: Vec<Allotment>,
}

impl Expected {
    fn rate(&self) -> f64 {
        self.tokens / self.nanoseconds
    }
}

/// A few drafts, to measure a step with some: of the workers' model one a row, each of which is a step of that model.
fn probe(candidates: &[Candidate], work: Work, budget: u32) -> Vec<Allotment> {
    let mut left = budget.min(PROBE_DRAFTS.max(work.tokens / PROBE_PART));
    let good = candidates.iter().filter(|row| row.first(When::Now) >= PROBE_ACCURACY);
    let drafts = good.map(|row| {
        let most = if row.drafter == Drafter::Model { 1 } else { PROBE_DRAFTS };
        let drafts = row.room(When::Now).min(left).min(most);
        left -= drafts;
        Allotment::chain(row.key, drafts, row.drafter)
    });
    drafts.filter(|allotted| allotted.drafts > 0).collect()
}

/// Where a row may have drafts from its text and from the model, those that are more likely to be right; of equals the text's, which
/// cost less.
fn better(text: &[Candidate], model: &[Candidate], when: When) -> Vec<Candidate> {
    let of = |key, rows: &[Candidate]| rows.iter().find(|row| row.key == key).map(|row| row.accuracy(0));
    let texts = text.iter().filter(|row| of(row.key, model).is_none_or(|other| row.first(when) >= other));
    let chosen: Vec<Candidate> = texts.copied().collect();
    let models = model.iter().filter(|row| chosen.iter().all(|text| text.key != row.key));
    chosen.iter().chain(models).copied().collect()
}

impl Core {
    /// Drafts for the rows of `keys`, which decode and are `work`; at most `budget` in all.
    pub(super) fn allot_drafts(&self, keys: &[usize], work: Work, budget: u32) -> Vec<Allotment> {
        let is_adaptive = matches!(self.rules.drafting, Drafting::Adaptive(_));
        let never_pay = is_adaptive && self.cost.drafts_never_pay(work);
        let is_due_a_probe = self.cost.is_due_a_probe();
        if never_pay && !is_due_a_probe {
            return Vec::new();
        }
        let text = self.text_candidates(keys.iter().copied());
        let model = self.model_candidates(keys.iter().copied());
        match self.rules.drafting {
            Drafting::Off => Vec::new(),
            Drafting::Adaptive(_) if text.is_empty() && model.is_empty() => Vec::new(),
            Drafting::Adaptive(_) => {
                let best = || self.expect_best(&text, &model, work, budget, When::Now).drafts;
                let drafts = if never_pay { Vec::new() } else { best() };
                match drafts.is_empty() && is_due_a_probe {
                    true if never_pay || self.cost.is_drafting_known() => probe(&text, work, budget),
                    true => probe(&better(&text, &model, When::Now), work, budget),
                    false => drafts,
                }
            }
            #[cfg(test)]
            Drafting::Always(_) => {
                let mut left = budget;
                let take = |row: &Candidate| {
                    let most = row.most.min(left);
                    let mut branches = [0; MOST_BRANCHES];
                    let count =
                        if row.branches[0] > 0.0 { self.branches(row.key, row.ahead).count() } else { 0 };
                    for length in branches.iter_mut().take(count.min(most as usize / 2)) {
                        *length = 1 + most % 2;
                    }
                    let beside: u32 = branches.iter().sum();
                    let drafts = row.room(When::Now).min(most.saturating_sub(beside)) + beside;
                    left -= drafts;
                    Allotment { key: row.key, drafts, branches, drafter: row.drafter }
                };
                // Each in turn, where a row may have both.
                let [first, second] =
                    if self.builder.number().is_multiple_of(2) { [text, model] } else { [model, text] };
                let rest = second.iter().filter(|row| first.iter().all(|other| other.key != row.key));
                first.iter().chain(rest).map(take).filter(|allotted| allotted.drafts > 0).collect()
            }
        }
    }

    /// What their grammars force, for the rows of `keys`; at most `budget` in all.
    pub(super) fn allot_forced(&self, keys: &[usize], budget: u32) -> Vec<Allotment> {
        let mut left = budget;
        let forced = |&key: &usize| {
            let sequence = &self.sequences[key];
            let most = left.min(sequence.max_drafts()) as usize;
            let forced = sequence.forced_behind(sequence.tokens_ahead()).take(most).count() as u32;
            left -= forced;
            (forced > 0).then_some(Allotment::chain(key, forced, Drafter::Grammar))
        };
        keys.iter().filter_map(forced).collect()
    }

    /// Whether the next plan had better wait for the results in flight, to have drafts that follow what is known.
    pub(super) fn waits_for_drafts(&self) -> bool {
        let goes_ahead = self.in_flight.is_empty() || self.capacity.stages > 1 || self.waiting.len() > 0;
        if !matches!(self.rules.drafting, Drafting::Adaptive(_)) || goes_ahead || !self.quarantined.is_empty()
        {
            return false;
        }
        let mut work = Work::default();
        for &key in &self.running {
            let sequence = &self.sequences[key];
            if !sequence.continues() {
                return false; // prompts need not wait
            }
            if !sequence.is_fully_scheduled() {
                work.add(sequence.num_scheduled_tokens, 1);
            }
        }
        if self.cost.drafts_never_pay(work) {
            return false;
        }
        let text = self.text_candidates(self.running.iter().copied());
        if text.is_empty() {
            return false; // those of a model always follow what is known
        }
        let model = self.model_candidates(self.running.iter().copied());
        let budget = self.capacity.most_drafts();
        let at_once = self.expect_best(&text, &model, work, budget, When::Now);
        let mut later = self.expect_best(&text, &model, work, budget, When::Later);
        later.nanoseconds += self.cost.round_trip();
        later.rate() > at_once.rate() * WAIT_MARGIN
    }

    /// Rows whose text has gone on before from where it is now.
    fn text_candidates(&self, keys: impl Iterator<Item = usize>) -> Vec<Candidate> {
        let most = self.rules.drafting.most();
        let candidate = |key| {
            let sequence = &self.sequences[key];
            let guess = sequence.may_have_guess.then(|| self.best_guess(sequence)).flatten()?;
            let (length, accuracies) = (guess.length, guess.accuracies);
            let forced = self.forced_as_guessed(sequence, guess)?;
            let ahead = sequence.tokens_ahead().max(forced);
            let most = most.min(sequence.max_drafts().saturating_sub(ahead - sequence.tokens_ahead()));
            let guessed = self.to_its_end(sequence, guess).take((ahead + most) as usize).count() as u32;
            // Of drafts of the model in flight nobody knows which tokens they are: they have to be what the text is expected to be.
            let model = sequence.draft_accuracy.map_or(1.0, DraftAccuracy::share);
            let chances =
                (forced..=ahead).map(|behind| f64::from(accuracies.behind(length.saturating_add(behind))));
            let first = chances.product::<f64>() * model.powi(sequence.model_drafts_in_flight as i32);
            let (drafter, branches) = (Drafter::Text, self.branch_chances(sequence, guess));
            let mask_cost = sequence.mask_cost().as_nanos() as f64;
            (most > 0).then_some(Candidate {
                key,
                drafter,
                accuracies,
                length,
                first,
                ahead,
                forced,
                most,
                guessed,
                branches,
                mask_cost,
            })
        };
        if most == 0 { Vec::new() } else { keys.filter_map(candidate).collect() }
    }

    /// Rows that the workers' draft model can draft for.
    fn model_candidates(&self, keys: impl Iterator<Item = usize>) -> Vec<Candidate> {
        let most = self.rules.drafting.most();
        let candidate = |key| {
            let sequence = &self.sequences[key];
            let accuracy = sequence.draft_accuracy?.share();
            let most = most.min(sequence.max_drafts());
            (most > 0).then_some(Candidate {
                key,
                drafter: Drafter::Model,
                accuracies: Accuracies::alike(accuracy as f32),
                length: 0,
                first: accuracy,
                ahead: 0,
                forced: 0,
                most,
                guessed: u32::MAX,
                branches: [0.0; MOST_BRANCHES],
                mask_cost: 0.0,
            })
        };
        match most == 0 || self.capacity.draft_cost.is_none() {
            true => Vec::new(),
            false => keys.filter_map(candidate).collect(),
        }
    }

    /// The best of a step without drafts, one with those of the texts, and one with those that are better, row by row.
    fn expect_best(
        &self,
        text: &[Candidate],
        model: &[Candidate],
        work: Work,
        budget: u32,
        when: When,
    ) -> Expected {
        let with_text = self.expect(text, work, budget, when);
        if model.is_empty() {
            return with_text;
        }
        let with_model = self.expect(&better(text, model, when), work, budget, when);
        if with_model.rate() > with_text.rate() * STEP_MARGIN { with_model } else { with_text }
    }

    /// The best that a step of `work` with drafts can be, or the step without them.
    fn expect(&self, candidates: &[Candidate], work: Work, budget: u32, when: When) -> Expected {
        let nanoseconds = self.cost.expect(work).as_nanos() as f64;
        let plain = Expected {
            tokens: f64::from(work.tokens),
            nanoseconds: nanoseconds.max(1.0),
            drafts: Vec::new(),
        };
        let is_slow = |step: &Expected| {
            let target = self.rules.target_itl.map(|target| target.as_nanos() as f64);
            target.is_some_and(|target| step.nanoseconds > target)
        };
        let mut best = plain;
        for shape in [Shape::Chains, Shape::Trees] {
            if shape == Shape::Trees && candidates.iter().all(|row| row.branches == [0.0; MOST_BRANCHES]) {
                break;
            }
            let step = self.fill(candidates, work, budget, when, shape);
            if !step.drafts.is_empty() && step.rate() >= best.rate() * STEP_MARGIN && !is_slow(&step) {
                best = step;
            }
        }
        best
    }

    /// A step of `work` with as many drafts as pay, once there are some.
    fn fill(
        &self,
        candidates: &[Candidate],
        mut work: Work,
        budget: u32,
        when: When,
        shape: Shape,
    ) -> Expected {
        let rows = f64::from(work.tokens);
        work.has_tree = shape == Shape::Trees;
        let with = |drafts| {
            let mut work = work;
            work.add_drafts(drafts);
            self.cost.expect(work).as_nanos() as f64
        };
        let one = with(1);
        let per_draft = with(2) - one;
        // What a step takes longer for having drafts at all is in it from the start.
        let mut step = Expected { tokens: rows, nanoseconds: one - per_draft, drafts: Vec::new() };
        let mut left = budget;
        for row in candidates.iter().filter(|row| row.drafter == Drafter::Text) {
            let mut paths = Paths::of(row, when);
            if shape == Shape::Chains {
                paths.keep_branches(0);
            }
            let mut drafts = 0;
            let per_draft = per_draft + row.mask_cost;
            while drafts < row.most.min(left)
                && let Some((path, chance)) = paths.best()
                && chance * step.nanoseconds >= MARGIN * step.tokens * per_draft
            {
                if path > 0 && !paths.are_known {
                    paths.keep_branches(self.branches(row.key, row.before(when)).count());
                    continue;
                }
                paths.lengthen(path, row, when);
                step.tokens += chance;
                step.nanoseconds += per_draft;
                drafts += 1;
            }
            left -= drafts;
            if drafts > 0 {
                let [_, branches @ ..] = paths.lengths;
                step.drafts.push(Allotment { key: row.key, drafts, branches, drafter: row.drafter });
            }
        }
        self.add_rounds(&mut step, candidates, per_draft, left);
        step
    }

    /// Adds drafts of the workers' model to a step: rounds, of which each costs something, however few rows it drafts for, and gives less than the
    /// one before, as long as one pays. `per_draft`: for verifying one.
    fn add_rounds(&self, step: &mut Expected, candidates: &[Candidate], per_draft: f64, budget: u32) {
        let mut left = budget as usize;
        let mut rows: Vec<&Candidate> =
            candidates.iter().filter(|row| row.drafter == Drafter::Model).collect();
        let own = step.drafts.len();
        let drafting = |drafts| self.cost.expect_drafting(Drafted { rounds: 1, drafts });
        let alone = (drafting(2) - drafting(1)).max(0.0);
        for round in 1.. {
            let chance = |row: &Candidate| row.accuracy(0).powi(round as i32);
            let cost = per_draft + alone;
            rows.retain(|row| {
                row.most >= round && chance(row) * step.nanoseconds >= MARGIN * step.tokens * cost
            });
            rows.truncate(left);
            let gained: f64 = rows.iter().map(|row| chance(row)).sum();
            let longer = drafting(rows.len() as u32) + per_draft * rows.len() as f64;
            if rows.is_empty() || gained * step.nanoseconds < MARGIN * step.tokens * longer {
                return;
            }
            left -= rows.len();
            step.tokens += gained;
            step.nanoseconds += longer;
            for row in &rows {
                match step.drafts[own..].iter_mut().find(|allotted| allotted.key == row.key) {
                    Some(allotted) => allotted.drafts += 1,
                    None => step.drafts.push(Allotment::chain(row.key, 1, Drafter::Model)),
                }
            }
        }
    }

    /// Drafts for which a sequence has room, or finds it without taking any from others or holding them up.
    pub(super) fn make_room_for_drafts(&mut self, key: usize, wanted: u32) -> u32 {
        let block_size = self.pool.block_size();
        let sequence = &mut self.sequences[key];
        let next = sequence.num_scheduled_tokens + 1;
        let blocks = (next + wanted).div_ceil(block_size) as usize;
        // Everybody's next block. One without pages has always room.
        let count = self.pool.tables().count();
        let reserve = (self.running.len() as u32).saturating_mul(count);
        while sequence.table.blocks.len() < blocks
            && (count == 0 || self.pool.available() > reserve)
            && self.pool.grow(&mut sequence.table)
        {}
        wanted.min(sequence.table.blocks.len() as u32 * block_size - next)
    }
}

impl Sequence {
    /// Its index takes in what is new of its tokens.
    pub fn look_up(&mut self) {
        let sure = self.sure_tokens().len();
        if let Some(lookup) = &mut self.lookup {
            lookup.update(&self.tokens[..sure], self.prompt_len as usize, INDEXED_AT_ONCE);
        }
    }

    /// How many drafts its next row may have: with the token behind them they end with it at the latest.
    pub fn max_drafts(&self) -> u32 {
        self.final_len().saturating_sub(self.len() + 1)
    }
}
