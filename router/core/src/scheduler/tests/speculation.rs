//! Verify rows: what they bring, what becomes of the plan behind them, and when there are none.

use bytes::Bytes;
use penstock_proto::ids::{SequenceId, TokenId};
use penstock_proto::{RowFlag, StepPlan};

use super::harness::{Harness, STEP, check_refused, every, spec, tiny, u32s};
use crate::scheduler::policy::Drafting;
use crate::scheduler::submission::{Finish, Sampling, SequenceSpec};
use crate::worker::LossKind;
use crate::worker::mock::MockConfig;

/// Its text goes round and round.
fn repeating() -> MockConfig {
    MockConfig { pages: 400, max_positions: 600, surprise_one_in: 1_000_000, ..tiny() }
}

fn harness(config: MockConfig, drafting: Drafting) -> Harness {
    Harness::new(config, 4, 64).speculating(drafting)
}

/// Those of the rows of a plan, with their drafts.
fn verified(plan: &StepPlan) -> Vec<u32> {
    u32s(&plan.drafts).into_iter().filter(|&drafts| drafts > 0).collect()
}

#[test]
fn accepted_drafts_save_steps_and_change_nothing() {
    for drafting in [Drafting::Always(4), Drafting::Adaptive(4)] {
        let mut harness = harness(repeating(), drafting);
        let sampled = Sampling { temperature: 0.8, seed: 5, repetition_penalty: 1.1, ..Sampling::default() };
        let ids = [
            harness.submit(spec(&[3, 4, 5], 400)),
            harness.submit(SequenceSpec { sampling: sampled, top_tokens: 2, ..spec(&[9, 8], 300) }),
        ];
        let steps = harness.count_steps();
        assert!(steps < 200, "{steps} steps for 400 tokens with {drafting:?}");
        let counters = harness.core.counters;
        assert!(counters.accepted_drafts > 400, "{counters:?}");
        assert_eq!(counters.generated_tokens, 700);
        assert_eq!(harness.client(ids[0]).end, Some(Ok(Finish::Length)));
        harness.check_against_reference();
        let client = harness.client(ids[1]);
        assert!(client.tokens.iter().all(|token| token.top.len() == 2));
        let drafted = client.tokens.iter().filter(|token| token.is_draft).count();
        assert!((100..300).contains(&drafted), "{drafted} of 300 tokens were drafts");
    }
}

#[test]
fn a_plan_follows_a_verify_row_before_its_result_is_known() {
    let mut harness = harness(repeating(), Drafting::Always(3));
    harness.submit(spec(&[3, 4, 5], 400));
    let mut both = 0;
    for _ in 0..150 {
        harness.plan();
        if harness.plans.len() == 2 && harness.plans.iter().all(|plan| !verified(plan).is_empty()) {
            let [first, second] = [&harness.plans[0], &harness.plans[1]];
            let end = u32s(&first.positions)[0] + u32s(&first.counts)[0];
            let position = u32s(&second.positions)[0];
            assert!(position <= end, "{position}, and not behind {end}");
            assert_ne!(second.flags[0] & RowFlag::Continue as u8, 0);
            both += u32::from(position == end);
        }
        harness.step();
    }
    assert!(both > 20, "{both} times");
    harness.run_to_end();
    harness.check_against_reference();
}

#[test]
fn a_text_that_surprises_has_no_drafts_and_one_that_repeats_has_many() {
    let mut random = harness(MockConfig { pages: 400, max_positions: 600, ..tiny() }, Drafting::Adaptive(6));
    for salt in 0..4 {
        random.submit(spec(&[3, 4, 5 + salt], 300));
    }
    random.run_to_end();
    let drafts = random.core.counters.drafts;
    assert!(drafts < 200, "{drafts} drafts for 1200 tokens that nobody can guess");

    let mut repeats = harness(repeating(), Drafting::Adaptive(6));
    repeats.submit(spec(&[3, 4, 5], 300));
    repeats.run_to_end();
    assert!(repeats.core.counters.accepted_drafts > 150, "{:?}", repeats.core.counters);
}

fn costly() -> MockConfig {
    let mut config = repeating();
    config.cost.fixed_ns = 1.0;
    config.cost.per_token_ns = 1e5;
    config
}

#[test]
fn where_a_token_costs_as_much_as_a_step_drafts_are_only_measured() {
    let mut harness = harness(costly(), Drafting::Adaptive(6));
    harness.token_time = STEP * 50;
    harness.submit(spec(&[3, 4, 5], 500));
    let steps = harness.count_steps();
    let drafts = harness.core.counters.drafts;
    assert!(drafts < 250, "{drafts} drafts in {steps} steps");
}

#[test]
fn a_cost_model_that_is_wrong_about_drafts_is_found_out() {
    let mut harness = harness(costly(), Drafting::Adaptive(6));
    harness.submit(spec(&[3, 4, 5], 500));
    let steps = harness.count_steps();
    assert!(steps < 350, "{steps} steps for 500 tokens");
    harness.check_against_reference();
}

/// Behind each token of its text come one or another, again and again.
fn forking() -> MockConfig {
    MockConfig { followers: 2, draft_trees: true, vocab_size: 16, ..repeating() }
}

#[test]
fn several_guesses_of_one_token_save_steps_and_change_nothing() {
    let [trees, chains] = [true, false].map(|draft_trees| {
        let mut harness = harness(MockConfig { draft_trees, ..forking() }, Drafting::Adaptive(6));
        for salt in 0..3 {
            let sampling =
                Sampling { temperature: 0.8, seed: salt, repetition_penalty: 1.1, ..Sampling::default() };
            harness.submit(SequenceSpec { sampling, top_tokens: 2, ..spec(&[3, 4, 5], 400) });
        }
        let steps = harness.count_steps();
        harness.check_against_reference();
        (steps, harness.core.counters)
    });
    assert!(trees.1.branch_drafts > 200, "{:?}", trees.1);
    assert_eq!(chains.1.branch_drafts, 0);
    assert!(trees.0 * 10 < chains.0 * 9, "{} steps with trees, {} with chains", trees.0, chains.0);
}

#[test]
fn where_a_tree_takes_much_longer_than_a_chain_there_are_chains() {
    let [trees, chains] = [0, 4].map(|longer| {
        let mut harness = harness(forking(), Drafting::Adaptive(6));
        harness.tree_time = STEP * longer;
        for salt in 0..3 {
            let sampling = Sampling { temperature: 0.8, seed: salt, ..Sampling::default() };
            harness.submit(SequenceSpec { sampling, ..spec(&[3, 4, 5], 400) });
        }
        harness.run_to_end();
        harness.check_against_reference();
        harness.core.counters
    });
    let few = chains.branch_drafts * 5 < trees.branch_drafts;
    assert!(few && chains.accepted_drafts > 100, "{chains:?}, and where trees cost nothing {trees:?}");
}

#[test]
fn drafts_behind_others_that_are_known_to_be_rejected_are_counted_on() {
    let mut harness = harness(MockConfig { surprise_one_in: 6, ..repeating() }, Drafting::Always(3));
    for salt in 0..3 {
        harness.submit(spec(&[3, 4, salt], 500));
    }
    let (mut behind, mut counted_on) = (0, 0);
    while harness.plan() > 0 {
        let steps = &harness.core.in_flight;
        let of = |step: usize, id| steps.get(step)?.rows.iter().find(|row| row.id == id && row.drafts > 0);
        let rows = steps.front().into_iter().flat_map(|step| &step.rows);
        let outdated = rows.filter(|row| row.stale_drafts && of(1, row.id).is_some()).map(|row| row.id);
        let outdated: Vec<_> = outdated.collect();
        harness.step();
        for row in harness.core.in_flight.front().into_iter().flat_map(|step| &step.rows) {
            behind += u32::from(outdated.contains(&row.id));
            counted_on += u32::from(outdated.contains(&row.id) && !row.stale_drafts);
        }
    }
    // Now and then one is right by chance.
    assert!(behind > 50 && counted_on * 10 > behind * 9, "{counted_on} of {behind}");
    harness.check_against_reference();
}

#[test]
fn who_is_first_since_another_left_waits_for_the_lengths_of_its_drafts() {
    let config = MockConfig { stages: 2, world_size: 2, surprise_one_in: 3, ..repeating() };
    let mut harness = harness(config, Drafting::Always(5));
    for salt in 0..3 {
        harness.submit(spec(&[3, 4, salt], 60));
    }
    for step in 0.. {
        if step % 3 == 0 {
            // Was first, found no blocks and was cancelled: whoever is first now is owed nothing.
            harness.core.first_is_due = Some(SequenceId(99));
        }
        if harness.step().is_none() {
            break;
        }
    }
    assert!(harness.core.counters.drafts > 100);
    harness.check_against_reference();
}

#[test]
fn a_text_that_goes_on_in_one_way_has_no_branches() {
    let mut harness = harness(MockConfig { draft_trees: true, ..repeating() }, Drafting::Adaptive(6));
    harness.submit(spec(&[3, 4, 5], 400));
    harness.run_to_end();
    assert_eq!(harness.core.counters.branch_drafts, 0);
    assert!(harness.core.counters.accepted_drafts > 150);
}

#[test]
fn a_tree_follows_a_tree_before_its_result_is_known() {
    let mut harness = harness(forking(), Drafting::Always(5));
    harness.submit(spec(&[3, 4, 5], 400));
    let (mut both, mut short) = (0, 0);
    while harness.plan() > 0 {
        if harness.plans.len() == 2 && harness.plans.iter().all(|plan| !plan.draft_parents.is_empty()) {
            let [first, second] = [&harness.plans[0], &harness.plans[1]];
            let end = u32s(&first.positions)[0] + u32s(&first.counts)[0];
            let position = u32s(&second.positions)[0];
            assert!(position <= end, "{position}, and not behind {end}");
            (both, short) = (both + 1, short + u32::from(position < end));
        }
        harness.step();
    }
    assert!(both > 20 && short > 10, "{both} times, {short} of them the longest path was not all drafts");
    harness.check_against_reference();
}

#[test]
fn the_mock_refuses_trees_that_make_no_sense() {
    let mut harness = harness(forking(), Drafting::Always(5));
    harness.submit(spec(&[3, 4, 5], 400));
    let (past, plan) = harness.run_until(|plan| !plan.draft_parents.is_empty());
    let column = |values: &[u32]| Bytes::copy_from_slice(bytemuck::cast_slice(values));
    let drafts = u32s(&plan.draft_parents).len() as u32;
    let parents = |first: u32, second: u32| {
        let rest = 2..drafts;
        let all: Vec<u32> = [first, second].into_iter().chain(rest).collect();
        StepPlan { draft_parents: column(&all), ..plan.clone() }
    };
    let same = StepPlan { tokens: column(&vec![7; drafts as usize]), ..parents(0, 0) };
    let masked = StepPlan { flags: Bytes::from_static(&[2 + 4 + 16]), ..parents(0, 0) };
    let cases = [
        (parents(1, 1), harness.config.clone(), "draft 1 follows draft 1"),
        (parents(0, 2), harness.config.clone(), "draft 2 follows draft 2"),
        (parents(0, u32::MAX), harness.config.clone(), "draft 2 follows draft 4294967295"),
        (
            StepPlan { draft_parents: column(&[0]), ..plan.clone() },
            harness.config.clone(),
            "entries in draft_parents",
        ),
        (same, harness.config.clone(), "the same draft twice"),
        (masked, harness.config.clone(), "has a tree and flags"),
        (plan.clone(), MockConfig { draft_trees: false, ..forking() }, "the worker verifies chains"),
    ];
    assert!(drafts > 2, "{drafts} drafts");
    for (wrong, config, why) in cases {
        check_refused(config, &past, wrong, why);
    }
}

#[test]
fn an_end_within_an_accepted_run_ends_the_text_there() {
    let config = MockConfig { eos_one_in: 40, ..repeating() };
    let mut harness = harness(config, Drafting::Always(8));
    for salt in 0..20 {
        harness.submit(spec(&[3, 4, salt], 200));
        let stop_token_ids = (0..25).map(|id| TokenId(2 * id)).collect();
        harness.submit(SequenceSpec { stop_token_ids, ..spec(&[salt, 4], 90) });
        harness.submit(spec(&[5, 6, 7, 5, 6, 7, 5, 6], 1 + salt));
    }
    harness.run_to_end();
    harness.check_against_reference();
}

#[test]
fn constrained_rows_go_on_beside_others_with_drafts_of_both() {
    for drafting in [Drafting::Always(4), Drafting::Adaptive(4)] {
        let mut harness = harness(repeating(), drafting);
        // Every token may follow, and one that is told from the others by its mask.
        let constrained = SequenceSpec { constraint: every(1, 300, None), ..spec(&[3, 4], 500) };
        let id = harness.submit(constrained);
        harness.submit(spec(&[3, 4, 5], 200));
        let mut under_masks = 0;
        let mut steps = 0;
        while harness.plan() > 0 {
            for plan in &harness.plans {
                let masked = plan.flags.iter().zip(u32s(&plan.drafts));
                under_masks += masked
                    .filter(|(flags, drafts)| *flags & RowFlag::Masked as u8 != 0 && *drafts > 0)
                    .count();
            }
            harness.step();
            steps += 1;
        }
        assert!(under_masks > 50 && steps < 150, "{under_masks} of {steps} steps");
        let counters = harness.core.counters;
        assert!(counters.accepted_drafts > 350, "{counters:?}");
        let client = harness.client(id);
        assert_eq!((client.tokens.len(), client.end.clone()), (300, Some(Ok(Finish::Complete))));
        let drafted = client.tokens.iter().filter(|token| token.is_draft).count();
        assert!((150..300).contains(&drafted), "{drafted} of 300 tokens were drafts");
        harness.check_against_reference();
    }
}

#[test]
fn crashes_between_any_two_plans_change_no_text() {
    let mut harness = harness(MockConfig { surprise_one_in: 12, ..repeating() }, Drafting::Always(5));
    for salt in 0..3 {
        let sampling = Sampling { temperature: 1.0, seed: u64::from(salt), ..Sampling::default() };
        harness.submit(SequenceSpec { sampling, ..spec(&[3, salt, 5], 250) });
    }
    harness.crash_now_and_then();
    harness.check_against_reference();
    let accepted = harness.core.counters.accepted_drafts;
    assert!(accepted > 100, "{accepted} accepted drafts");
}

#[test]
fn a_result_that_accepts_what_was_not_there_is_refused() {
    let mut harness = harness(repeating(), Drafting::Always(4));
    harness.submit(spec(&[3, 4, 5], 400));
    let (_, plan) = harness.run_until(|plan| !verified(plan).is_empty());
    let result = harness.model.execute(&plan).expect("the plan is right");
    let mut wrong = result.clone();
    wrong.accepted = Bytes::copy_from_slice(&9u32.to_le_bytes());
    let loss = harness.core.apply(wrong, harness.now).expect_err("9 of 4");
    assert_eq!(loss.kind, LossKind::OutOfStep);
    assert!(loss.to_string().contains("drafts"), "{loss}");
    let mut short = result.clone();
    short.accepted = Bytes::new();
    let loss = harness.core.apply(short, harness.now).expect_err("no column");
    assert!(loss.to_string().contains("accepted"), "{loss}");
    harness.core.apply(result, harness.now).expect("the result is right");
}

#[test]
fn the_mock_refuses_verify_rows_that_make_no_sense() {
    let mut harness = harness(repeating(), Drafting::Always(4));
    harness.submit(spec(&[3, 4, 5], 400));
    let (past, plan) = harness.run_until(|plan| !verified(plan).is_empty());
    let column = |values: &[u32]| Bytes::copy_from_slice(bytemuck::cast_slice(values));
    let drafts = verified(&plan)[0];
    let fed = drafts + 1;
    let outside = vec![harness.config.vocab_size; drafts as usize];
    let cases: [(StepPlan, &str); 5] = [
        (StepPlan { drafts: column(&[fed]), ..plan.clone() }, "of them drafts"),
        (StepPlan { drafts: column(&[1, 1]), ..plan.clone() }, "entries in drafts"),
        (StepPlan { tokens: column(&outside), ..plan.clone() }, "feeds token"),
        (StepPlan { counts: column(&[fed + 1]), ..plan.clone() }, "continues with"),
        (StepPlan { flags: Bytes::from_static(&[2]), ..plan.clone() }, "has drafts and flags"),
    ];
    for (wrong, why) in cases {
        check_refused(harness.config.clone(), &past, wrong, why);
    }
}

#[test]
fn the_mock_refuses_drafts_that_reach_beyond_the_blocks_of_their_slot() {
    let mut harness = harness(repeating(), Drafting::Always(4));
    harness.submit(spec(&[3, 4, 5], 400));
    let takes_a_block = |plan: &StepPlan| !verified(plan).is_empty() && u32s(&plan.new_block_counts) == [1];
    let (past, plan) = harness.run_until(takes_a_block);
    let end = u32s(&plan.positions)[0] + u32s(&plan.counts)[0];
    let none = Bytes::copy_from_slice(&0u32.to_le_bytes());
    let wrong = StepPlan { new_block_counts: none, new_pages: Bytes::new(), ..plan };
    check_refused(harness.config.clone(), &past, wrong, &format!("its tables do not reach {end}"));
}
