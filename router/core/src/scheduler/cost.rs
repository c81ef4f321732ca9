//! How long a step will take: the workers' cost model, corrected by what steps were seen to take. Asked by
//! the core to size prompt chunks and to decide when a worker hangs.

use std::time::Duration;

use penstock_proto::CostModel;

use super::draft_model::{DraftCost, Drafted};

/// What a step does, as far as its time depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Work {
    pub tokens: u32,
    /// Tokens of prompts of which log probabilities are told: each needs all its logits, and those are looked through.
    pub targets: u32,
    /// Cached tokens attended to, summed over the tokens fed.
    pub context: f64,
    /// Whether it has decode rows only: those steps are corrected apart, since a decode's attention is
    /// bound by memory and a chunk's by arithmetic.
    pub prompts: bool,
    /// Tokens of it that are drafts, which have no part in `context`.
    pub drafts: u32,
    /// Some of them are beside others. Workers take longer over such a tree than over a chain of as many.
    pub has_tree: bool,
    /// How long the masks behind guesses are expected to take, in nanoseconds: known apart from what drafts cost, so not learned as a part of it.
    pub masks_ns: f64,
    /// How those of them are made that the workers' draft model makes.
    pub drafted: Drafted,
}

impl Work {
    /// Adds a row that feeds `count` tokens from `position` on.
    pub fn add(&mut self, position: u32, count: u32) {
        self.tokens += count;
        self.context += context(position, count);
    }

    /// Adds drafts to rows that decode.
    pub fn add_drafts(&mut self, count: u32) {
        self.tokens += count;
        self.drafts += count;
    }
}

/// Tokens attended to by `count` tokens from `position` on, each with itself and all before it.
fn context(position: u32, count: u32) -> f64 {
    let (position, count) = (f64::from(position), f64::from(count));
    count * position + count * (count + 1.0) / 2.0
}

#[derive(Clone, Debug)]
pub(super) struct StepCost {
    model: CostModel,
    /// Measured over expected, smoothed: of steps with decodes only, and of steps with prompts.
    decode_scale: f64,
    prompt_scale: f64,
    /// With drafts, and by how much longer again where some are beside others.
    drafts: LongerByDrafts,
    trees: LongerByDrafts,
    /// How much longer a step takes for each token of a prompt whose log probability is told, before the scale.
    per_target_ns: f64,
    /// Decodes since a step with drafts was measured, and of how many the next one is that only measures.
    unverified_steps: u32,
    probe_every: u32,
    /// Of a step that had nothing before it in flight, what was neither reading, computing nor choosing, smoothed.
    round_trip_ns: f64,
    /// Of the workers' draft model, if they have one.
    draft_model: Option<DraftCost>,
}

/// Weight of the newest measurement.
const SMOOTHING: f64 = 0.1;
/// One measurement may say at most that the estimate is this many times wrong: a step that waited for the
/// machine must not shrink chunks for long.
const OUTLIER: f64 = 4.0;

/// What steps with drafts taught is forgotten slowly by steps without.
const FORGETTING: f64 = 0.002;

/// Decodes without drafts between two that have some to measure what they cost, where guesses are good. Each that is measured, and
/// after which none is expected to pay, doubles it.
const PROBE_EVERY: u32 = 8;
const LONGEST_PROBE_EVERY: u32 = 256;

/// Before a step with drafts was measured, which part of a step's fixed time it is thought to take longer whatever their number.
const FIRST_SHARE: f64 = 0.1;
/// How far what a step takes is from what it takes on average, as a part of it; and what a step with drafts may have changed of
/// what there is to learn, as a part of what was not known at first.
const NOISE: f64 = 0.2;
const CHANGE: f64 = 0.02;
/// A measurement that is so many times further off than measurements are counts as one that is so far off.
const FURTHEST: f64 = 2.0;

/// Weight of the newest measurement of what targets take. Steps with some may be rare, and the first of them go by a guess.
const TARGET_SMOOTHING: f64 = 0.25;

/// A target is thought to take this part of a token at least.
const LEAST_TARGET: f64 = 64.0;

/// By so much longer a step may take for its targets, however fast its other tokens are: what is measured of them is then mostly noise.
const UNMINDED_NS: f64 = 2e7;

/// Before one was measured: of workers on the same host. One that is thought too long stays so, since then no plan waits.
const ROUND_TRIP_NS: f64 = 100_000.0;
const MOST_ROUND_TRIP_NS: f64 = 1_000_000.0;

/// By how much longer a step takes with drafts: for having some, and for each; as far as the cost model is right about steps without.
/// Learned from single steps by a Kalman filter, since one with eight drafts says little of what one with a single draft takes.
#[derive(Clone, Copy, Debug)]
struct LongerByDrafts {
    first_ns: f64,
    each_ns: f64,
    /// What they were thought to be before one was measured.
    prior_ns: [f64; 2],
    /// Variances of the two, and their covariance.
    doubt: [f64; 3],
    /// The variances by which they are less certain from step to step.
    change: [f64; 2],
}

impl LongerByDrafts {
    fn new(model: CostModel) -> Self {
        let first = model.fixed_ns * FIRST_SHARE;
        let doubt =
            [2.0 * first, model.per_token_ns + model.fixed_ns / 8.0].map(|deviation| deviation.powi(2));
        Self {
            first_ns: first,
            each_ns: model.per_token_ns,
            prior_ns: [first, model.per_token_ns],
            doubt: [doubt[0], doubt[1], 0.0],
            change: doubt.map(|variance| variance * CHANGE),
        }
    }

    /// Thought to be nothing, with as much doubt.
    fn nothing(model: CostModel) -> Self {
        Self { first_ns: 0.0, each_ns: 0.0, prior_ns: [0.0; 2], ..Self::new(model) }
    }

    fn expect(&self, drafts: u32) -> f64 {
        if drafts == 0 { 0.0 } else { self.first_ns + self.each_ns * f64::from(drafts) }
    }

    /// A step with so many drafts took so much longer, which is so far off at times.
    fn learn(&mut self, drafts: u32, longer: f64, deviation: f64) {
        let count = f64::from(drafts);
        let [first, each, both] = self.doubt;
        let (first, each) = (first + self.change[0], each + self.change[1]);
        let along = [first + count * both, both + count * each];
        let variance = along[0] + count * along[1] + deviation * deviation;
        let most = FURTHEST * variance.sqrt();
        let wrong = (longer - self.expect(drafts)).clamp(-most, most);
        let gain = along.map(|part| part / variance);
        self.first_ns = (self.first_ns + gain[0] * wrong).max(0.0);
        self.each_ns = (self.each_ns + gain[1] * wrong).max(0.0);
        self.doubt = [first - gain[0] * along[0], each - gain[1] * along[1], both - gain[0] * along[1]];
    }

    /// Comes nearer to what was thought before.
    fn forget(&mut self) {
        let [first, each] = self.prior_ns;
        self.first_ns += FORGETTING * (first - self.first_ns);
        self.each_ns += FORGETTING * (each - self.each_ns);
    }
}

impl StepCost {
    pub fn new(model: CostModel) -> Self {
        // A worker that did not measure still gets a model under which more work takes longer.
        let sane = |x: f64, least: f64| if x.is_finite() && x > least { x } else { least };
        let model = CostModel {
            fixed_ns: sane(model.fixed_ns, 1_000.0),
            per_token_ns: sane(model.per_token_ns, 1.0),
            per_context_token_ns: sane(model.per_context_token_ns, 0.0),
        };
        Self {
            model,
            decode_scale: 1.0,
            prompt_scale: 1.0,
            drafts: LongerByDrafts::new(model),
            trees: LongerByDrafts::nothing(model),
            // Of small models with large vocabularies the logits are as much work as all layers.
            per_target_ns: model.per_token_ns,
            unverified_steps: 0,
            probe_every: PROBE_EVERY,
            round_trip_ns: ROUND_TRIP_NS,
            draft_model: None,
        }
    }

    pub fn with_draft_model(self, cost: Option<CostModel>) -> Self {
        Self { draft_model: cost.map(DraftCost::new), ..self }
    }

    /// How long a draft model takes in a step, in nanoseconds.
    pub fn expect_drafting(&self, drafted: Drafted) -> f64 {
        self.draft_model.map_or(0.0, |cost| cost.expect(drafted))
    }

    /// How long it took in one that had such drafts.
    pub fn learn_drafting(&mut self, drafted: Drafted, took: Duration) {
        if let Some(cost) = &mut self.draft_model
            && drafted.drafts > 0
        {
            cost.learn(drafted, took);
        }
    }

    /// Whether what its drafts cost was measured often enough.
    pub fn is_drafting_known(&self) -> bool {
        self.draft_model.is_none_or(|cost| cost.is_known())
    }

    pub fn expect(&self, work: Work) -> Duration {
        let drafts = self.longer_by_drafts(work) * self.scale(work);
        let drafting = self.expect_drafting(work.drafted);
        let all =
            (self.unscaled(work) + self.told(work)) * self.scale(work) + drafts + work.masks_ns + drafting;
        Duration::from_nanos(all as u64)
    }

    /// Whether a draft costs as much as a token of the step does without: then none pays, however likely it is right.
    pub fn drafts_never_pay(&self, work: Work) -> bool {
        let with = |drafts| {
            let mut work = work;
            work.add_drafts(drafts);
            self.expect(work).as_nanos() as f64
        };
        (with(2) - with(1)) * f64::from(work.tokens) >= with(0)
    }

    /// How long `tokens` of prompts, each of about `length`, take in chunks of `chunk` beside `decodes`.
    pub fn expect_prompts(&self, tokens: f64, length: f64, chunk: u32, decodes: Work) -> Duration {
        let steps = (tokens / f64::from(chunk.max(1))).ceil();
        let beside = self.unscaled(decodes) * steps;
        let own = self.model.per_token_ns * tokens + self.model.per_context_token_ns * tokens * length / 2.0;
        Duration::from_nanos(((beside + own) * self.prompt_scale) as u64)
    }

    /// What `took` so long is all of a step with prompts, and of others what is left without its draft model's part.
    pub fn learn(&mut self, work: Work, took: Duration) {
        let took = took.as_nanos() as f64;
        if work.targets > 0 {
            // All that is not as expected is their doing: they must not make plain prompts or drafts look slow.
            let (scale, drafts) = (self.scale(work), self.longer_by_drafts(work));
            let longer = (took - work.masks_ns) / scale - self.unscaled(work) - drafts;
            return self.learn_targets(longer / f64::from(work.targets));
        }
        if work.drafts > 0 {
            let (took, without) = ((took - work.masks_ns) / self.scale(work), self.unscaled(work));
            // Where short answers come and go there is a prompt in nearly every step. What drafts add to it is the less certain, the
            // more else there is.
            let share = if work.prompts { f64::from(work.drafts) / f64::from(work.tokens) } else { 1.0 };
            let deviation = NOISE * (without + self.longer_by_drafts(work)) / share;
            self.probe_every = match self.unverified_steps {
                0 => self.probe_every,
                steps if steps < PROBE_EVERY => PROBE_EVERY,
                _ => (self.probe_every * 2).min(LONGEST_PROBE_EVERY),
            };
            self.unverified_steps = 0;
            let longer = took - without;
            if work.has_tree {
                // What a chain of as many takes longer is learned from chains.
                return self.trees.learn(work.drafts, longer - self.drafts.expect(work.drafts), deviation);
            }
            self.trees.forget();
            return self.drafts.learn(work.drafts, longer, deviation);
        }
        let seen = took / self.unscaled(work);
        if work.prompts {
            return learn(&mut self.prompt_scale, seen, SMOOTHING);
        }
        learn(&mut self.decode_scale, seen, SMOOTHING);
        self.unverified_steps = self.unverified_steps.saturating_add(1);
        self.drafts.forget();
        self.trees.forget();
    }

    fn learn_targets(&mut self, seen: f64) {
        // From nothing it could not grow.
        let least = self.model.per_token_ns / LEAST_TARGET;
        let seen = seen.clamp(least, self.per_target_ns * OUTLIER);
        self.per_target_ns += TARGET_SMOOTHING * (seen - self.per_target_ns);
    }

    /// How many tokens without a target a token with one takes as long as.
    pub fn target_weight(&self) -> f64 {
        1.0 + self.per_target_ns / self.model.per_token_ns
    }

    /// How many tokens whose log probabilities are told may be fed in place of so many plain ones: they take as long, or so short a
    /// time that nobody minds.
    pub fn told_in_place_of(&self, tokens: u32) -> u32 {
        let as_long = f64::from(tokens) / self.target_weight();
        let unminded = UNMINDED_NS / (self.per_target_ns * self.prompt_scale);
        (as_long.max(unminded) as u32).min(tokens)
    }

    /// Whether it is time to measure a step with drafts, though none is expected to pay: the model may be wrong.
    pub fn is_due_a_probe(&self) -> bool {
        self.unverified_steps >= self.probe_every
    }

    /// The same of a step that had nothing before it in flight: its time has the way to the workers and back in it. They
    /// say what they `computed`, where that is done before they answer; an accelerator only begins with it then.
    pub fn learn_alone(&mut self, work: Work, took: Duration, computed: Duration) {
        let seen = (took.saturating_sub(computed).as_nanos() as f64).min(MOST_ROUND_TRIP_NS);
        self.round_trip_ns += SMOOTHING * (seen - self.round_trip_ns);
        self.learn(work, took.saturating_sub(Duration::from_nanos(self.round_trip_ns as u64)));
    }

    /// In nanoseconds: how long workers have nothing to do when a plan waits for the last result.
    pub fn round_trip(&self) -> f64 {
        self.round_trip_ns
    }

    /// The most tokens of a prompt, from `position` on, that may join `work` without the step lasting
    /// longer than `target`. `is_told`: its log probabilities are.
    pub fn chunk_within(&self, target: Duration, work: Work, position: u32, is_told: bool) -> u32 {
        let target = target.as_nanos() as f64 / self.prompt_scale;
        let left = target - self.unscaled(work) - self.told(work);
        if left <= 0.0 {
            return 0;
        }
        // per_token * n + per_context * (n * position + n * (n + 1) / 2) = left, solved for n.
        let a = self.model.per_context_token_ns / 2.0;
        let per_token = self.model.per_token_ns + if is_told { self.per_target_ns } else { 0.0 };
        let b = per_token + self.model.per_context_token_ns * (f64::from(position) + 0.5);
        let n = 2.0 * left / (b + (b * b + 4.0 * a * left).sqrt());
        n as u32
    }

    /// Without its drafts.
    fn unscaled(&self, work: Work) -> f64 {
        self.model.fixed_ns
            + self.model.per_token_ns * f64::from(work.tokens - work.drafts)
            + self.model.per_context_token_ns * work.context
    }

    fn told(&self, work: Work) -> f64 {
        self.per_target_ns * f64::from(work.targets)
    }

    fn longer_by_drafts(&self, work: Work) -> f64 {
        let tree = if work.has_tree { self.trees.expect(work.drafts) } else { 0.0 };
        self.drafts.expect(work.drafts) + tree
    }

    fn scale(&self, work: Work) -> f64 {
        if work.prompts { self.prompt_scale } else { self.decode_scale }
    }
}

fn learn(estimate: &mut f64, seen: f64, smoothing: f64) {
    let seen = seen.clamp(*estimate / OUTLIER, *estimate * OUTLIER);
    *estimate += smoothing * (seen - *estimate);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost() -> StepCost {
        StepCost::new(CostModel { fixed_ns: 1e6, per_token_ns: 2e4, per_context_token_ns: 50.0 })
    }

    #[test]
    fn the_largest_chunk_within_a_target_fits_it_and_one_more_does_not() {
        let cost = cost();
        for (position, is_told) in [(0, false), (100, false), (5000, false), (0, true), (5000, true)] {
            let mut work = Work { prompts: true, ..Work::default() };
            for decode in 0..32 {
                work.add(100 + decode, 1);
            }
            let target = Duration::from_millis(20);
            let n = cost.chunk_within(target, work, position, is_told);
            assert!(n > 0);
            let with = |n| {
                let mut work = work;
                work.add(position, n);
                work.targets += if is_told { n } else { 0 };
                cost.expect(work)
            };
            assert!(with(n) <= target, "{n} tokens at {position}: {:?}", with(n));
            assert!(with(n + 1) >= target, "{n} tokens at {position} is not the most");
        }
    }

    #[test]
    fn a_draft_that_costs_as_much_as_a_token_never_pays() {
        let decodes = |rows| {
            let mut work = Work::default();
            for _ in 0..rows {
                work.add(100, 1);
            }
            work
        };
        // A token of one row takes as long as the step, one of very many as long as itself and its context.
        let mut cost = cost();
        assert!(!cost.drafts_never_pay(decodes(1)) && !cost.drafts_never_pay(decodes(32)));
        let mut with_drafts = decodes(32);
        with_drafts.add_drafts(8);
        for _ in 0..50 {
            let plain = cost.expect(decodes(32));
            cost.learn(with_drafts, plain + Duration::from_nanos(8 * 80_000));
        }
        // Of 32 rows a token takes 56 us now, and a draft 80.
        assert!(cost.drafts_never_pay(decodes(32)) && !cost.drafts_never_pay(decodes(8)));
    }

    #[test]
    fn a_machine_slower_than_measured_gets_smaller_chunks() {
        let mut cost = cost();
        let mut work = Work { prompts: true, ..Work::default() };
        work.add(0, 512);
        let before = cost.chunk_within(Duration::from_millis(20), Work::default(), 0, false);
        for _ in 0..50 {
            cost.learn(work, cost_of(work) * 3);
        }
        let after = cost.chunk_within(Duration::from_millis(20), Work::default(), 0, false);
        assert!(after < before / 2, "{before} -> {after}");
    }

    #[test]
    fn many_steps_cost_as_much_as_each_of_them() {
        let cost = cost();
        let mut decodes = Work { prompts: true, ..Work::default() };
        decodes.add(100, 1);
        let mut whole = Duration::ZERO;
        for position in (0..4096).step_by(512) {
            let mut work = decodes;
            work.add(position, 512);
            whole += cost.expect(work);
        }
        let expected = cost.expect_prompts(4096.0, 4096.0, 512, decodes);
        let wrong = (expected.as_secs_f64() / whole.as_secs_f64() - 1.0).abs();
        assert!(wrong < 0.01, "{expected:?} for {whole:?}");
    }

    #[test]
    fn what_telling_a_prompt_costs_is_learned_apart_from_plain_prompts_and_drafts() {
        let mut cost = cost();
        let mut plain = Work { prompts: true, ..Work::default() };
        plain.add(0, 512);
        let told = Work { targets: 512, ..plain };
        let mut drafted = told;
        drafted.add_drafts(8);
        let (without, per_target) = (cost.expect(plain), Duration::from_millis(2));
        for _ in 0..50 {
            cost.learn(told, without + per_target * 512);
            cost.learn(drafted, cost.expect(drafted));
        }
        assert_eq!(cost.expect(plain), without);
        let learned = (cost.expect(told) - without) / 512;
        let wrong = (learned.as_secs_f64() / per_target.as_secs_f64() - 1.0).abs();
        assert!(wrong < 0.01, "{learned:?} for {per_target:?}");
        assert!((cost.target_weight() - 101.0).abs() < 1.0, "{}", cost.target_weight());
        assert_eq!([2048, 900, 4].map(|tokens| cost.told_in_place_of(tokens)), [20, 10, 4], "or 20 ms");
        // On workers that have them at once.
        (0..50).for_each(|_| cost.learn(told, without / 2));
        assert!(cost.target_weight() < 1.1, "{}", cost.target_weight());
        (0..50).for_each(|_| cost.learn(told, without + per_target * 512));
        assert!(cost.target_weight() > 100.0, "{}", cost.target_weight());
    }

    #[test]
    fn drafts_beside_prompts_teach_what_drafts_cost() {
        let mut cost = cost();
        let mut plain = Work { prompts: true, ..Work::default() };
        for row in 0..32 {
            plain.add(100 + row, 1);
        }
        let mut drafted = plain;
        drafted.add_drafts(32);
        let (per_draft, without) = (Duration::from_micros(200), cost.expect(plain));
        for _ in 0..50 {
            cost.learn(plain, without);
            cost.learn(drafted, without + per_draft * 32);
        }
        let learned = (cost.expect(drafted) - cost.expect(plain)) / 32;
        let wrong = (learned.as_secs_f64() / per_draft.as_secs_f64() - 1.0).abs();
        assert!(wrong < 0.1, "{learned:?} for {per_draft:?}");
        assert!(cost.expect(plain) < without * 11 / 10, "it is not the prompts that take so long");
    }

    /// The first draft of a step takes 150 us more, as far as it is known.
    #[test]
    fn what_some_drafts_cost_at_all_is_known_apart_from_what_each_costs() {
        let mut cost = cost();
        let mut plain = Work::default();
        for row in 0..8 {
            plain.add(100 + row, 1);
        }
        let with = |drafts: u32| {
            let mut work = plain;
            work.add_drafts(drafts);
            (work, Duration::from_micros(400 + 30 * u64::from(drafts)))
        };
        for turn in 0..100 {
            cost.learn(plain, Duration::from_micros(250));
            let (work, took) = with([1, 2, 20, 8, 30][turn % 5]);
            cost.learn(work, took);
        }
        for drafts in [1, 4, 16, 32] {
            let (work, took) = with(drafts);
            let wrong = (cost.expect(work).as_secs_f64() / took.as_secs_f64() - 1.0).abs();
            assert!(wrong < 0.1, "{drafts} drafts: {:?} for {took:?}", cost.expect(work));
        }
        let before = cost.expect(with(4).0);
        cost.learn(with(4).0, Duration::from_secs(5));
        assert!(cost.expect(with(4).0) < before * 2, "{:?}", cost.expect(with(4).0));
    }

    #[test]
    fn what_a_tree_takes_longer_than_a_chain_of_as_many_is_learned_apart_and_forgotten() {
        let mut cost = cost();
        let mut plain = Work::default();
        plain.add(100, 1);
        let with = |has_tree| {
            let mut work = Work { has_tree, ..plain };
            work.add_drafts(4);
            (work, Duration::from_micros(if has_tree { 400 } else { 250 }))
        };
        assert_eq!(cost.expect(with(true).0), cost.expect(with(false).0), "nobody has said otherwise");
        for _ in 0..50 {
            cost.learn(plain, Duration::from_micros(200));
            for (work, took) in [with(false), with(true)] {
                cost.learn(work, took);
            }
        }
        for (work, took) in [with(false), with(true)] {
            let wrong = (cost.expect(work).as_secs_f64() / took.as_secs_f64() - 1.0).abs();
            assert!(wrong < 0.1, "{:?} for {took:?}", cost.expect(work));
        }
        (0..2000).for_each(|_| cost.learn(with(false).0, with(false).1));
        assert!(cost.expect(with(true).0) < cost.expect(with(false).0) * 11 / 10, "it is tried again");
    }

    #[test]
    fn masks_behind_guesses_are_no_part_of_what_drafts_cost() {
        let (mut masked, mut free) = (cost(), cost());
        let mut plain = Work::default();
        plain.add(100, 1);
        let mut drafted = plain;
        drafted.add_drafts(4);
        for _ in 0..50 {
            free.learn(drafted, Duration::from_micros(1500));
            masked.learn(Work { masks_ns: 8e5, ..drafted }, Duration::from_micros(2300));
        }
        assert_eq!(masked.expect(drafted), free.expect(drafted));
        assert_eq!(
            masked.expect(Work { masks_ns: 8e5, ..drafted }),
            free.expect(drafted) + Duration::from_micros(800)
        );
    }

    #[test]
    fn what_never_pays_is_measured_less_and_less_often() {
        let mut cost = cost();
        let mut plain = Work::default();
        plain.add(100, 1);
        let mut drafted = plain;
        drafted.add_drafts(2);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let mut steps = 0;
            while !cost.is_due_a_probe() {
                cost.learn(plain, Duration::from_micros(200));
                steps += 1;
            }
            // Two were sent before the first was known.
            cost.learn(drafted, Duration::from_micros(900));
            cost.learn(drafted, Duration::from_micros(900));
            pauses.push(steps);
        }
        assert_eq!(pauses, [8, 16, 32, 64, 128, 256, 256, 256]);
        cost.learn(plain, Duration::from_micros(200));
        cost.learn(drafted, Duration::from_micros(300));
        (0..8).for_each(|_| cost.learn(plain, Duration::from_micros(200)));
        assert!(cost.is_due_a_probe(), "there are drafts again");
    }

    #[test]
    fn one_stalled_step_changes_little() {
        let mut cost = cost();
        let mut work = Work::default();
        work.add(10, 1);
        let before = cost.expect(work);
        cost.learn(work, Duration::from_secs(5));
        assert!(cost.expect(work) < before * 2);
    }

    #[test]
    fn a_cost_model_of_nonsense_is_survived() {
        let cost = StepCost::new(CostModel {
            fixed_ns: f64::NAN,
            per_token_ns: -5.0,
            per_context_token_ns: f64::INFINITY,
        });
        let mut work = Work::default();
        work.add(1_000_000, 2048);
        assert!(cost.expect(work) < Duration::from_secs(1));
        assert!(cost.chunk_within(Duration::from_millis(1), Work::default(), 0, false) > 0);
    }

    fn cost_of(work: Work) -> Duration {
        cost().expect(work)
    }
}
