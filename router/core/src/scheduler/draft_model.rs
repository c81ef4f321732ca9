//! What is known of the drafts that a model in the workers makes (`--speculate-model`): how often they are right, and how long
//! they take. Asked by `speculation`, taught by `results`.

use std::time::Duration;

use penstock_proto::CostModel;

/// How often a draft of a sequence is right, if all before it were.
#[derive(Clone, Copy, Debug)]
pub(super) struct DraftAccuracy {
    share: f64,
}

/// What is believed before a draft was seen, and the weight of the newest one.
const PRIOR: f64 = 0.6;
const SMOOTHING: f64 = 0.06;
/// What a sequence's text has taught is forgotten by tokens without such drafts, so that they are tried again.
const FORGETTING: f64 = 0.002;

impl DraftAccuracy {
    pub fn share(self) -> f64 {
        self.share
    }

    /// Of a row's drafts those that were accepted: the one behind them was wrong, and of the rest nothing is known.
    pub fn learn(&mut self, drafts: u32, accepted: u32) {
        for _ in 0..accepted {
            self.share += SMOOTHING * (1.0 - self.share);
        }
        if accepted < drafts {
            self.share -= SMOOTHING * self.share;
        }
    }

    /// A token that was sampled without drafts.
    pub fn forget(&mut self) {
        self.share += FORGETTING * (PRIOR - self.share);
    }
}

impl Default for DraftAccuracy {
    fn default() -> Self {
        Self { share: PRIOR }
    }
}

/// What the draft model does in a step: rounds, each of which makes one draft for some of the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Drafted {
    pub rounds: u32,
    pub drafts: u32,
}

impl Drafted {
    /// Adds a row's drafts: rows draft side by side.
    pub fn add(&mut self, drafts: u32) {
        self.rounds = self.rounds.max(drafts);
        self.drafts += drafts;
    }
}

/// How long that takes: what the workers measured, corrected by what steps were seen to take.
#[derive(Clone, Copy, Debug)]
pub(super) struct DraftCost {
    model: CostModel,
    scale: f64,
    /// Measurements in `scale`, with that of the workers' start.
    measured: f64,
}

/// Weight of the newest measurement, once there are so many that each counts for less.
const COST_SMOOTHING: f64 = 0.1;
/// Measurements that say what drafts cost. A model that rests has to read what it has missed to make one, so no more are made only to measure.
const ENOUGH: f64 = 8.0;
/// One measurement may say at most that it takes this many times as long as is thought. Nothing makes it look shorter than it is.
const OUTLIER: f64 = 4.0;

impl DraftCost {
    pub fn new(model: CostModel) -> Self {
        let sane = |x: f64, least: f64| if x.is_finite() && x > least { x } else { least };
        let (fixed_ns, per_token_ns) = (sane(model.fixed_ns, 1_000.0), sane(model.per_token_ns, 0.0));
        Self { model: CostModel { fixed_ns, per_token_ns, ..model }, scale: 1.0, measured: 1.0 }
    }

    /// In nanoseconds.
    pub fn expect(&self, drafted: Drafted) -> f64 {
        self.unscaled(drafted) * self.scale
    }

    pub fn learn(&mut self, drafted: Drafted, took: Duration) {
        let seen = took.as_nanos() as f64 / self.unscaled(drafted);
        self.measured += 1.0;
        let weight = COST_SMOOTHING.max(1.0 / self.measured);
        self.scale += weight * (seen.min(self.scale * OUTLIER) - self.scale);
    }

    pub fn is_known(&self) -> bool {
        self.measured >= ENOUGH
    }

    fn unscaled(&self, drafted: Drafted) -> f64 {
        self.model.fixed_ns * f64::from(drafted.rounds) + self.model.per_token_ns * f64::from(drafted.drafts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_right_drafts_is_found_and_forgotten() {
        for (accepted, low, high) in [(4, 0.99, 1.0), (3, 0.6, 0.85), (1, 0.35, 0.6), (0, 0.0, 0.01)] {
            let mut accuracy = DraftAccuracy::default();
            (0..100).for_each(|_| accuracy.learn(4, accepted));
            assert!((low..=high).contains(&accuracy.share()), "{accepted} of 4: {accuracy:?}");
            (0..3000).for_each(|_| accuracy.forget());
            assert!((accuracy.share() - PRIOR).abs() < 0.01);
        }
    }

    #[test]
    fn rows_draft_side_by_side_and_a_slower_machine_is_found_out() {
        let model = CostModel { fixed_ns: 1e5, per_token_ns: 1e4, per_context_token_ns: 0.0 };
        let mut cost = DraftCost::new(model);
        let mut drafted = Drafted::default();
        for drafts in [3, 1, 0] {
            drafted.add(drafts);
        }
        assert_eq!(drafted, Drafted { rounds: 3, drafts: 4 });
        assert_eq!(cost.expect(drafted), 3.4e5);
        (0..100).for_each(|_| cost.learn(drafted, Duration::from_micros(680)));
        assert!((cost.expect(drafted) - 6.8e5).abs() < 1e3);
        assert!(DraftCost::new(CostModel { fixed_ns: f64::NAN, ..model }).expect(drafted) > 0.0);
    }
}
