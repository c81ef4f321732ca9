//! How many drafts the rows of a plan get (`--speculate`). Drafts are `guesses`; what they are worth is
//! known from how often its guesses were right, what they cost from the cost model's curve of a step's time over its tokens.
//! A step has drafts when more tokens a second are expected of it with them than without; so a full batch has none.
//!
//! A plan may follow a verify row before its result is known. Its drafts then go on behind those in flight, and are worth
//! something only if those are all accepted. Where it is worth more to know first, the plan waits for the result.
//!
//! What a grammar forces (`masks`) goes the same way, and comes first: it is accepted for certain, so nothing is weighed.

use super::core::Core;
use super::cost::Work;
use super::sequence::Sequence;

/// Who drafts, and at most how many tokens a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Drafting {
    #[default]
    Off,
    Adaptive(u32),
    /// As many as there can be, good or bad.
    #[cfg(test)]
    Always(u32),
}

impl Drafting {
    pub fn up_to(most: u32) -> Self {
        if most == 0 { Self::Off } else { Self::Adaptive(most) }
    }

    pub fn most(self) -> u32 {
        match self {
            Self::Off => 0,
            Self::Adaptive(most) => most,
            #[cfg(test)]
            Self::Always(most) => most,
        }
    }
}

/// Tokens of a text that an index takes in at a time, so that a long prompt holds up no step.
pub(super) const INDEXED_AT_ONCE: usize = 1024;

/// A draft has to be worth so much more than it costs, and a step with drafts so much more than one without: both are
/// estimates.
const MARGIN: f64 = 1.1;
const STEP_MARGIN: f64 = 1.02;

/// Waiting for a result has to promise more: it costs for certain, and the guess may be lost with the result.
const WAIT_MARGIN: f64 = 1.2;

/// A guess that is right so often is good enough to measure what drafts cost; then a row has so many, and all rows together
/// this part of their number.
const PROBE_ACCURACY: f64 = 0.5;
const PROBE_DRAFTS: u32 = 4;
const PROBE_PART: u32 = 8;

/// A row that may have drafts.
struct Candidate {
    key: usize,
    /// Chance that a guess is right, if all before it were.
    accuracy: f64,
    /// Tokens in flight, which the drafts come after.
    ahead: u32,
    most: u32,
    /// Tokens that are guessed, those in flight among them: behind them the guess sees the end of the text.
    guessed: u32,
}

/// What is expected of a step.
struct Expected {
    tokens: f64,
    nanoseconds: f64,
    /// How many drafts of which sequences.
    drafts: Vec<(usize, u32)>,
}

impl Expected {
    fn rate(&self) -> f64 {
        self.tokens / self.nanoseconds
    }
}

/// A few drafts, to measure a step with some.
fn probe(candidates: &[Candidate], work: Work, budget: u32) -> Vec<(usize, u32)> {
    let mut left = budget.min(PROBE_DRAFTS.max(work.tokens / PROBE_PART));
    let good = candidates.iter().filter(|row| row.accuracy >= PROBE_ACCURACY);
    let drafts = good.map(|row| {
        let drafts = row.most.min(left).min(PROBE_DRAFTS).min(row.guessed.saturating_sub(row.ahead));
        left -= drafts;
        (row.key, drafts)
    });
    drafts.collect()
}

impl Core {
    /// Drafts for the rows of `keys`, which decode and are `work`; at most `budget` in all.
    pub(super) fn allot_drafts(&self, keys: &[usize], work: Work, budget: u32) -> Vec<(usize, u32)> {
        let candidates = self.candidates(keys.iter().copied());
        match self.rules.drafting {
            Drafting::Off => Vec::new(),
            Drafting::Adaptive(_) if candidates.is_empty() => Vec::new(),
            Drafting::Adaptive(_) => {
                let step = self.expect(&candidates, work, budget, |row| row.ahead);
                match step.drafts.is_empty() && self.cost.is_due_a_probe() {
                    true => probe(&candidates, work, budget),
                    false => step.drafts,
                }
            }
            #[cfg(test)]
            Drafting::Always(_) => {
                let mut left = budget;
                let take = |row: &Candidate| {
                    let taken = row.most.min(left).min(row.guessed.saturating_sub(row.ahead));
                    left -= taken;
                    (row.key, taken)
                };
                candidates.iter().map(take).collect()
            }
        }
    }

    /// What their grammars force, for the rows of `keys`; at most `budget` in all.
    pub(super) fn allot_forced(&self, keys: &[usize], budget: u32) -> Vec<(usize, u32)> {
        let mut left = budget;
        let forced = |&key: &usize| {
            let sequence = &self.sequences[key];
            let most = left.min(sequence.max_drafts()) as usize;
            let forced = sequence.forced_behind(sequence.num_scheduled_tokens).take(most).count() as u32;
            left -= forced;
            (forced > 0).then_some((key, forced))
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
        let candidates = self.candidates(self.running.iter().copied());
        if candidates.is_empty() {
            return false;
        }
        let budget = self.capacity.max_step_drafts;
        let at_once = self.expect(&candidates, work, budget, |row| row.ahead);
        let mut later = self.expect(&candidates, work, budget, |_| 0);
        later.nanoseconds += self.cost.round_trip();
        later.rate() > at_once.rate() * WAIT_MARGIN
    }

    fn candidates(&self, keys: impl Iterator<Item = usize>) -> Vec<Candidate> {
        let most = self.rules.drafting.most();
        let candidate = |key| {
            let sequence = &self.sequences[key];
            let accuracy = self.guess_accuracy(key)?;
            let most = most.min(sequence.max_drafts());
            let ahead = sequence.samples_in_flight + sequence.drafts_in_flight;
            let guessed = self.guessed(key, 0).take((ahead + most) as usize).count() as u32;
            (most > 0).then(|| Candidate { key, accuracy: f64::from(accuracy), ahead, most, guessed })
        };
        if most == 0 { Vec::new() } else { keys.filter_map(candidate).collect() }
    }

    /// The best that a step of `work` with drafts can be, or the step without them.
    fn expect(
        &self,
        candidates: &[Candidate],
        work: Work,
        budget: u32,
        ahead: impl Fn(&Candidate) -> u32,
    ) -> Expected {
        let nanoseconds = |work: Work| self.cost.expect(work).as_nanos() as f64;
        let rows = f64::from(work.tokens);
        let plain = Expected { tokens: rows, nanoseconds: nanoseconds(work).max(1.0), drafts: Vec::new() };
        let mut one = work;
        one.add_drafts(1);
        let per_draft = nanoseconds(one) - plain.nanoseconds;
        let mut step = Expected { tokens: rows, nanoseconds: plain.nanoseconds, drafts: Vec::new() };
        let mut left = budget;
        for row in candidates {
            let ahead = ahead(row);
            let most = row.most.min(left).min(row.guessed.saturating_sub(ahead));
            let mut chance = row.accuracy.powi(ahead as i32 + 1);
            let mut drafts = 0;
            while drafts < most && chance * step.nanoseconds >= MARGIN * step.tokens * per_draft {
                step.tokens += chance;
                step.nanoseconds += per_draft;
                chance *= row.accuracy;
                drafts += 1;
            }
            left -= drafts;
            if drafts > 0 {
                step.drafts.push((row.key, drafts));
            }
        }
        let is_slow = |step: &Expected| {
            let target = self.rules.target_itl.map(|target| target.as_nanos() as f64);
            target.is_some_and(|target| step.nanoseconds > target)
        };
        match step.drafts.is_empty() || step.rate() < plain.rate() * STEP_MARGIN || is_slow(&step) {
            true => plain,
            false => step,
        }
    }

    /// Drafts for which a sequence has room, or finds it without taking any from others or holding them up.
    pub(super) fn make_room_for_drafts(&mut self, key: usize, wanted: u32) -> u32 {
        let block_size = self.pool.block_size();
        let sequence = &mut self.sequences[key];
        let next = sequence.num_scheduled_tokens + 1;
        let blocks = (next + wanted).div_ceil(block_size) as usize;
        // Everybody's next block.
        let reserve = (self.running.len() as u32).saturating_mul(self.pool.tables().count());
        while sequence.table.blocks.len() < blocks
            && self.pool.available() > reserve
            && self.pool.grow(&mut sequence.table)
        {}
        wanted.min(sequence.table.blocks.len() as u32 * block_size - next)
    }
}

impl Sequence {
    /// Its index takes in what is new of its tokens.
    pub fn look_up(&mut self) {
        if let Some(lookup) = &mut self.lookup {
            lookup.update(&self.tokens, self.prompt_len as usize, INDEXED_AT_ONCE);
        }
    }

    /// How many drafts its next row may have: with the token behind them they end with it at the latest.
    fn max_drafts(&self) -> u32 {
        self.final_len().saturating_sub(self.len() + 1)
    }
}
