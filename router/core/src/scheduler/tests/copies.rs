//! Sequences that begin within a block, with a copy of a page of one that runs.

use bytes::Bytes;
use penstock_proto::tables::Window;
use penstock_proto::{CostModel, RowFlag, StepPlan};

use super::harness::{Harness, spec, tiny, u32s};
use crate::scheduler::cache_names::Namespace;
use crate::scheduler::submission::{Sampling, SequenceSpec};
use crate::worker::mock::{MockConfig, MockModel};

/// Three whole blocks of four, and three tokens more.
const PROMPT: [u32; 15] = [7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21];

/// A token takes as long as a step.
const DEAR: CostModel = CostModel { fixed_ns: 1.0, per_token_ns: 1e5, per_context_token_ns: 0.0 };

fn choice(seed: u64) -> SequenceSpec {
    let sampling = Sampling { temperature: 0.7, seed, ..Sampling::default() };
    SequenceSpec { sampling, ..spec(&PROMPT, 20) }
}

fn starts(plan: &StepPlan) -> Vec<(u32, u32)> {
    let rows = u32s(&plan.positions).into_iter().zip(u32s(&plan.counts)).zip(&plan.flags);
    rows.filter(|(_, flags)| **flags & RowFlag::Start as u8 != 0).map(|(row, _)| row).collect()
}

#[test]
fn choices_that_arrive_together_compute_the_end_of_their_prompt_once() {
    let mut harness = Harness::new(MockConfig { cost: DEAR, pages: 60, ..tiny() }, 4, 64);
    for seed in 0..3 {
        harness.submit(choice(seed));
    }
    harness.plan();
    assert_eq!(
        starts(&harness.plans[0]),
        [(0, 15)],
        "the others wait for the plan that computes their prompt"
    );
    assert_eq!(starts(&harness.plans[1]), [(14, 1), (14, 1)]);
    assert_eq!(u32s(&harness.plans[1].copies).len(), 4);
    harness.run_to_end();
    harness.check_against_reference();
    assert_eq!(harness.core.counters.copied_tokens, 2 * 2);
}

#[test]
fn nobody_waits_for_tokens_that_take_less_than_a_step() {
    let mut harness = Harness::new(MockConfig { pages: 60, ..tiny() }, 4, 64);
    for seed in 0..3 {
        harness.submit(choice(seed));
    }
    harness.plan();
    assert_eq!(starts(&harness.plans[0]), [(0, 15), (12, 3), (12, 3)]);
    harness.run_to_end();
    assert_eq!(harness.core.counters.copied_tokens, 0);
}

#[test]
fn who_comes_later_copies_what_is_there_as_far_as_it_is_alike() {
    let mut harness = Harness::new(MockConfig { pages: 60, ..tiny() }, 4, 64);
    harness.submit(choice(1));
    harness.step();
    let other: Vec<u32> = PROMPT[..13].iter().copied().chain([40, 41, 42]).collect();
    harness.submit(spec(&other, 20));
    harness.submit(SequenceSpec { cache_namespace: Namespace(9), ..choice(2) });
    harness.submit(SequenceSpec { prompt_logprobs: true, ..choice(2) });
    harness.plan();
    let plan = harness.plans.iter().find(|plan| !starts(plan).is_empty()).expect("they begin");
    assert_eq!(
        starts(plan),
        [(13, 3), (0, 15), (0, 15)],
        "not another's, and not where all logits are wanted"
    );
    harness.run_to_end();
    harness.check_against_reference();
}

#[test]
fn windowed_layers_have_copies_of_their_pages_as_well() {
    let windows = MockConfig { windows: vec![Window { tables: 2, reach: 6, chunked: false }], ..tiny() };
    let mut harness = Harness::new(MockConfig { cost: DEAR, pages: 120, ..windows }, 4, 64);
    for seed in 0..3 {
        harness.submit(choice(seed));
    }
    harness.plan();
    assert_eq!(u32s(&harness.plans[1].copies).len(), 2 * 2 * 3, "of two choices, a page of each table");
    harness.run_to_end();
    harness.check_against_reference();
}

#[test]
fn the_mock_refuses_copies_that_make_no_sense() {
    let mut harness = Harness::new(MockConfig { pages: 60, ..tiny() }, 4, 64);
    harness.submit(choice(1));
    harness.plan();
    let first = harness.plans[0].clone();
    harness.step();
    harness.submit(choice(2));
    harness.plan();
    let at = harness.plans.iter().position(|plan| !plan.copies.is_empty()).expect("it copies");
    let plan = harness.plans[at].clone();
    let mut before = vec![first];
    before.extend(harness.plans.iter().take(at).cloned());
    let column = |values: &[u32]| Bytes::copy_from_slice(bytemuck::cast_slice(values));
    let [source, target] = u32s(&plan.copies)[..] else { panic!("one page is copied") };
    let shared = u32s(&before[0].new_pages)[0];
    let cases = [
        (vec![], "starts at 14, and not all before it is there"),
        (vec![source], "entries in copies"),
        (vec![60, target], "is copied, of 60"),
        (vec![source, target, shared, shared], "becomes a copy, and slot Some(0) has it"),
        (vec![source, target, source, 59], "is a copy, and no row that starts has it"),
        (vec![shared, target], "starts at 14, and not all before it is there"),
    ];
    for (copies, why) in cases {
        let mut model = MockModel::new(harness.config.clone(), 4, 64);
        before.iter().for_each(|plan| drop(model.execute(plan).expect("as before")));
        let wrong = StepPlan { copies: column(&copies), ..plan.clone() };
        let refusal = model.execute(&model.stamped(wrong)).expect_err(why);
        assert!(refusal.contains(why), "{refusal}");
    }
}
