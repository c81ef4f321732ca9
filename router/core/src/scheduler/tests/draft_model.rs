//! Drafts that a model in the workers makes: what rows ask for, when, and that no text changes.

use bytes::Bytes;
use penstock_proto::{CostModel, RowFlag, StepPlan};

use super::harness::{Harness, STEP, check_refused, every, spec, tiny, u32s};
use crate::scheduler::policy::Drafting;
use crate::scheduler::submission::{Sampling, SequenceSpec};
use crate::worker::mock::MockConfig;

/// Its draft model is wrong about one of so many tokens; its text does not repeat itself.
fn drafting(wrong_draft_one_in: u64) -> MockConfig {
    let cost = CostModel { fixed_ns: 5e3, per_token_ns: 1e2, per_context_token_ns: 0.0 };
    MockConfig { pages: 400, max_positions: 600, wrong_draft_one_in, draft_cost: cost, ..tiny() }
}

fn harness(config: MockConfig, drafting: Drafting) -> Harness {
    Harness::new(config, 4, 64).speculating(drafting)
}

/// The rows of a plan whose drafts the workers make, with their number.
fn own(plan: &StepPlan) -> Vec<u32> {
    let rows = plan.flags.iter().zip(u32s(&plan.drafts));
    rows.filter(|(flags, _)| *flags & RowFlag::OwnDrafts as u8 != 0).map(|(_, drafts)| drafts).collect()
}

#[test]
fn drafts_of_a_model_that_is_mostly_right_save_steps_and_change_nothing() {
    for drafting_ in [Drafting::Always(4), Drafting::Adaptive(4)] {
        let mut harness = harness(drafting(20), drafting_);
        let sampled = Sampling { temperature: 0.8, seed: 5, repetition_penalty: 1.1, ..Sampling::default() };
        harness.submit(spec(&[3, 4, 5], 400));
        harness.submit(SequenceSpec { sampling: sampled, top_tokens: 2, ..spec(&[9, 8], 300) });
        let steps = harness.count_steps();
        assert!(steps < 170, "{steps} steps for 400 tokens with {drafting_:?}");
        let counters = harness.core.counters;
        assert!(counters.accepted_model_drafts > 400, "{counters:?}");
        assert!(counters.accepted_model_drafts <= counters.accepted_drafts, "{counters:?}");
        assert!(counters.model_drafts <= counters.drafts, "{counters:?}");
        assert_eq!(counters.generated_tokens, 700);
        harness.check_against_reference();
    }
}

#[test]
fn a_plan_with_drafts_of_the_workers_never_waits_for_the_one_before() {
    let mut harness = harness(drafting(4), Drafting::Adaptive(3));
    harness.submit(spec(&[3, 4, 5], 400));
    let (mut both, mut behind) = (0, 0);
    for _ in 0..150 {
        harness.plan();
        if harness.plans.len() == 2 && harness.plans.iter().all(|plan| !own(plan).is_empty()) {
            both += 1;
            let [first, second] = [&harness.plans[0], &harness.plans[1]];
            let end = u32s(&first.positions)[0] + u32s(&first.counts)[0];
            assert!(u32s(&second.positions)[0] <= end);
            behind += u32::from(u32s(&second.positions)[0] == end);
            assert!(u32s(&second.tokens).is_empty(), "the workers make them");
        }
        harness.step();
    }
    assert!(both > 50 && behind > 20, "{both} times, {behind} behind all drafts");
    harness.run_to_end();
    harness.check_against_reference();
}

#[test]
fn a_model_that_is_never_right_is_tried_now_and_then() {
    let mut config = drafting(1);
    config.draft_cost.fixed_ns = 3e4;
    let mut harness = harness(config, Drafting::Adaptive(5));
    for salt in 0..4 {
        harness.submit(spec(&[3, 4, 5 + salt], 400));
    }
    let steps = harness.count_steps();
    let drafts = harness.core.counters.model_drafts;
    assert!((1..160).contains(&drafts), "{drafts} drafts in {steps} steps for 1600 tokens");
    harness.check_against_reference();
}

#[test]
fn where_a_draft_costs_as_much_as_a_step_there_are_few() {
    let mut config = drafting(50);
    config.draft_cost.fixed_ns = 2e6;
    let mut harness = harness(config, Drafting::Adaptive(5));
    harness.submit(spec(&[3, 4, 5], 400));
    let steps = harness.count_steps();
    let drafts = harness.core.counters.model_drafts;
    assert!(drafts < 10, "{drafts} drafts in {steps} steps only measure");
}

#[test]
fn a_draft_model_that_was_measured_as_too_slow_is_found_out() {
    let mut harness = harness(drafting(50), Drafting::Adaptive(5));
    let wrong = CostModel { fixed_ns: 1.5e5, per_token_ns: 1e2, per_context_token_ns: 0.0 };
    harness.core.cost = harness.core.cost.clone().with_draft_model(Some(wrong));
    harness.submit(spec(&[3, 4, 5], 500));
    let steps = harness.count_steps();
    assert!(steps < 350, "{steps} steps for 500 tokens");
    harness.check_against_reference();
}

#[test]
fn where_a_token_costs_as_much_as_a_step_there_are_few() {
    let mut config = drafting(50);
    config.cost.fixed_ns = 1.0;
    config.cost.per_token_ns = 1e5;
    let mut harness = harness(config, Drafting::Adaptive(6));
    harness.token_time = STEP * 50;
    harness.submit(spec(&[3, 4, 5], 500));
    let steps = harness.count_steps();
    let drafts = harness.core.counters.drafts;
    assert!(drafts < 250, "{drafts} drafts in {steps} steps");
}

#[test]
fn who_is_right_more_often_drafts() {
    let repeating = MockConfig { surprise_one_in: 1_000_000, ..drafting(2) };
    let mut text = harness(repeating, Drafting::Adaptive(4));
    text.submit(spec(&[3, 4, 5], 500));
    text.run_to_end();
    let counters = text.core.counters;
    let of_text = counters.accepted_drafts - counters.accepted_model_drafts;
    assert!(of_text > 200 && counters.accepted_model_drafts < of_text / 3, "{counters:?}");

    let mut model = harness(MockConfig { surprise_one_in: 2, ..drafting(50) }, Drafting::Adaptive(4));
    model.submit(spec(&[3, 4, 5], 500));
    model.run_to_end();
    let counters = model.core.counters;
    let of_text = counters.accepted_drafts - counters.accepted_model_drafts;
    assert!(counters.accepted_model_drafts > 200 && of_text < 50, "{counters:?}");
}

#[test]
fn constrained_rows_ask_for_none_and_go_on_beside_those_that_do() {
    let mut harness = harness(drafting(10), Drafting::Always(4));
    harness.submit(SequenceSpec { constraint: every(4, 60, None), ..spec(&[3, 4], 60) });
    harness.submit(spec(&[3, 4, 5], 200));
    let mut seen = 0;
    while harness.plan() > 0 {
        for plan in &harness.plans {
            let flags = plan.flags.iter();
            let both = RowFlag::OwnDrafts as u8 | RowFlag::Masked as u8;
            assert!(flags.clone().all(|flags| flags & both != both));
            seen += own(plan).len();
        }
        harness.step();
    }
    assert!(seen > 20);
    harness.check_against_reference();
}

#[test]
fn crashes_between_any_two_plans_change_no_text() {
    let mut harness = harness(drafting(6), Drafting::Always(5));
    for salt in 0..3 {
        let sampling = Sampling { temperature: 1.0, seed: u64::from(salt), ..Sampling::default() };
        harness.submit(SequenceSpec { sampling, ..spec(&[3, salt, 5], 250) });
    }
    harness.crash_now_and_then();
    harness.check_against_reference();
    let accepted = harness.core.counters.accepted_model_drafts;
    assert!(accepted > 100, "{accepted} accepted drafts");
}

#[test]
fn the_mock_refuses_rows_that_cannot_ask_for_drafts() {
    let mut harness = harness(drafting(10), Drafting::Always(4));
    harness.submit(spec(&[3, 4, 5], 400));
    let (past, plan) = harness.run_until(|plan| !own(plan).is_empty());
    let flags = |flags: RowFlag| plan.flags[0] & !(flags as u8);
    let masked = plan.flags[0] | RowFlag::Masked as u8;
    let none = MockConfig { wrong_draft_one_in: 0, ..harness.config.clone() };
    let changed = |flags: u8| StepPlan { flags: Bytes::copy_from_slice(&[flags]), ..plan.clone() };
    let cases = [
        (changed(flags(RowFlag::Continue)), harness.config.clone(), "asks for drafts"),
        (changed(masked), harness.config.clone(), "asks for drafts"),
        (StepPlan { drafts: Bytes::new(), ..plan.clone() }, harness.config.clone(), "asks for drafts"),
        (plan.clone(), none, "without a draft model"),
    ];
    for (wrong, config, why) in cases {
        check_refused(config, &past, wrong, why);
    }
}
