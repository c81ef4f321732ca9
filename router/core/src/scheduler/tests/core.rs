//! The core's promises, one by one.

use std::time::Duration;

use penstock_proto::ids::SequenceId;
use penstock_proto::{CostModel, RowError, StepResult};

use super::harness::{Harness, spec, tiny};
use crate::scheduler::cache_names::Namespace;
use crate::scheduler::submission::{Finish, Release, SequenceFailure, SequenceSpec, Unavailable};
use crate::worker::mock::MockConfig;

fn roomy() -> MockConfig {
    MockConfig { vocab_size: 1000, pages: 512, block_size: 16, max_positions: 2048, ..MockConfig::default() }
}

fn prompt(len: u32, salt: u32) -> Vec<u32> {
    (0..len).map(|i| (i * 7 + salt * 13 + 3) % 1000).collect()
}

/// In the vocabulary of `tiny`.
fn small_prompt(len: u32, salt: u32) -> Vec<u32> {
    prompt(len, salt).iter().map(|token| token % 50).collect()
}

#[test]
fn a_sequence_runs_to_its_length() {
    let mut harness = Harness::new(roomy(), 8, 256);
    let id = harness.submit(spec(&prompt(40, 0), 10));
    harness.run_to_end();
    assert_eq!(harness.client(id).tokens.len(), 10);
    assert_eq!(harness.client(id).end, Some(Ok(Finish::Length)));
    assert_eq!(harness.core.counters.wasted_rows, 0, "an end by length is known before");
    harness.check_against_reference();
}

#[test]
fn an_end_of_sequence_costs_one_wasted_row() {
    let config = MockConfig { eos_one_in: 10, ..roomy() };
    let mut harness = Harness::new(config, 8, 256);
    let id = harness.submit(spec(&prompt(40, 0), 500));
    harness.run_to_end();
    assert_eq!(harness.client(id).end, Some(Ok(Finish::Eos)));
    assert_eq!(harness.core.counters.wasted_rows, 1);
    harness.check_against_reference();
}

#[test]
fn an_ignored_end_of_sequence_goes_on_to_the_length() {
    let config = MockConfig { eos_one_in: 5, ..roomy() };
    let mut harness = Harness::new(config, 8, 256);
    let mut spec = spec(&prompt(40, 0), 60);
    spec.ignore_eos = true;
    let id = harness.submit(spec);
    harness.run_to_end();
    assert_eq!(harness.client(id).tokens.len(), 60);
    harness.check_against_reference();
}

#[test]
fn two_plans_are_in_flight_and_no_more() {
    let mut harness = Harness::new(roomy(), 8, 256);
    harness.submit(spec(&prompt(10, 0), 100));
    for _ in 0..50 {
        assert_eq!(harness.plan(), 2);
        harness.step();
    }
}

#[test]
fn sequences_take_turns_so_that_every_stage_has_a_plan() {
    for (stages, sequences) in [(2, 2), (2, 7), (3, 8), (4, 3), (3, 1)] {
        let config = MockConfig { stages, world_size: stages, ..roomy() };
        let mut harness = Harness::new(config, 16, 256);
        for salt in 0..sequences {
            harness.submit(spec(&prompt(10, salt), 60));
        }
        for step in 0..150 {
            harness.plan();
            let latest = harness.plans.iter().rev().take(stages.min(sequences) as usize);
            let rows: Vec<u32> =
                latest.flat_map(|plan| bytemuck::pod_collect_to_vec::<u8, u32>(&plan.slots)).collect();
            // At first all prompts are in one plan, and they have to be told apart.
            if (10..40).contains(&step) {
                let groups = stages.min(sequences);
                assert!(harness.plans.len() as u32 > groups.min(stages - 1), "{stages} {sequences}");
                assert_eq!(rows.len() as u32, sequences, "each once in {groups} plans: {rows:?}");
                assert_eq!(rows.iter().collect::<std::collections::BTreeSet<_>>().len(), rows.len());
            }
            if harness.step().is_none() {
                break;
            }
        }
        harness.run_to_end();
        harness.check_against_reference();
    }
}

#[test]
fn identical_prompts_submitted_together_compute_the_prompt_once() {
    for (len, budget) in [(200, 1024), (200, 64), (192, 1024), (193, 50)] {
        let mut harness = Harness::new(roomy(), 16, budget);
        for _ in 0..8 {
            let mut spec = spec(&prompt(len, 1), 4);
            spec.sampling.temperature = 1.0;
            spec.sampling.seed = harness.clients.len() as u64;
            harness.submit(spec);
        }
        harness.run_to_end();
        harness.check_against_reference();
        let computed = harness.core.counters.prompt_tokens;
        let most = u64::from(len) + 7 * 16;
        assert!(computed <= most, "{computed} prompt tokens computed for {len}, budget {budget}");
    }
}

#[test]
fn the_same_prompt_again_computes_at_most_one_block() {
    let mut harness = Harness::new(roomy(), 8, 1024);
    for len in [100, 160, 161] {
        harness.submit(spec(&prompt(len, 2), 5));
        harness.run_to_end();
        let before = harness.core.counters.prompt_tokens;
        let again = harness.submit(spec(&prompt(len, 2), 5));
        harness.run_to_end();
        let computed = harness.core.counters.prompt_tokens - before;
        assert!((1..=16).contains(&computed), "{computed} of {len} tokens computed again");
        assert_eq!(u64::from(harness.client(again).admitted.unwrap()), u64::from(len) - computed);
    }
    harness.check_against_reference();
}

#[test]
fn a_conversation_finds_its_own_answers_in_the_cache() {
    let mut harness = Harness::new(roomy(), 8, 1024);
    let mut conversation = prompt(64, 3);
    let first = harness.submit(spec(&conversation, 64));
    harness.run_to_end();
    conversation.extend(harness.client(first).ids());
    conversation.extend(prompt(8, 4));
    let second = harness.submit(spec(&conversation, 8));
    harness.run_to_end();
    // The last generated token was never fed, so the block it is in is not complete.
    assert_eq!(harness.client(second).admitted, Some(64 + 64 - 16));
    harness.check_against_reference();
}

#[test]
fn namespaces_do_not_share_blocks() {
    let mut harness = Harness::new(roomy(), 8, 1024);
    for namespace in [1, 2] {
        let mut spec = spec(&prompt(100, 5), 3);
        spec.cache_namespace = Namespace(namespace);
        let id = harness.submit(spec);
        harness.run_to_end();
        assert_eq!(harness.client(id).admitted, Some(0));
    }
}

#[test]
fn a_prompt_with_log_probabilities_does_not_read_the_cache() {
    let mut harness = Harness::new(roomy(), 8, 32);
    harness.submit(spec(&prompt(100, 6), 3));
    harness.run_to_end();
    for len in [1, 2, 16, 100] {
        let mut spec = spec(&prompt(len, 6), 3);
        spec.prompt_logprobs = true;
        spec.top_tokens = 3;
        let id = harness.submit(spec);
        harness.run_to_end();
        assert_eq!(harness.client(id).admitted, Some(0));
        assert_eq!(harness.client(id).tokens[0].top.len(), 3);
    }
    harness.check_against_reference();
}

#[test]
fn a_cancelled_sequence_frees_its_blocks_at_every_stage() {
    let mut harness = Harness::new(tiny(), 2, 8);
    let empty = harness.core.pool.available();
    for steps in 0..12 {
        let ids: Vec<_> = (0..4).map(|salt| harness.submit(spec(&small_prompt(30, salt), 20))).collect();
        for _ in 0..steps {
            harness.step();
        }
        harness.plan();
        for id in ids {
            harness.release(id, Release::Cancelled);
        }
        assert_eq!(harness.core.pool.available(), empty, "after {steps} steps");
        while harness.step().is_some() {}
        harness.check();
    }
    assert_eq!(harness.core.counters.cancelled, 48);
    harness.check_against_reference();
}

#[test]
fn a_cancelled_sequence_is_in_no_later_plan() {
    let mut harness = Harness::new(roomy(), 8, 256);
    let gone = harness.submit(spec(&prompt(20, 0), 100));
    let stays = harness.submit(spec(&prompt(20, 1), 100));
    for _ in 0..10 {
        harness.step();
    }
    harness.plan();
    harness.release(gone, Release::Cancelled);
    assert_eq!(harness.core.counters.tokens_after_cancel, 2, "one row in each plan in flight");
    let rows = [harness.step(), harness.step(), harness.step()].map(|step| step.unwrap().rows);
    assert_eq!(rows, [2, 2, 1]);
    harness.run_to_end();
    assert_eq!(harness.client(stays).tokens.len(), 100);
    harness.check_against_reference();
}

#[test]
fn the_slot_of_an_ended_sequence_never_gets_its_late_token_to_the_next_one() {
    // One slot: the next sequence takes it while a plan with the last one's wasted row is in flight.
    let config = MockConfig { eos_one_in: 4, ..roomy() };
    let mut harness = Harness::new(config, 1, 256);
    for salt in 0..30 {
        harness.submit(spec(&prompt(20, salt), 50));
    }
    harness.run_to_end();
    assert!(harness.core.counters.wasted_rows > 0);
    harness.check_against_reference();
}

#[test]
fn a_pool_too_small_for_all_preempts_the_youngest_and_finishes_all() {
    let mut harness = Harness::new(tiny(), 8, 32);
    let ids: Vec<_> = (0..8).map(|salt| harness.submit(spec(&small_prompt(8, salt), 60))).collect();
    harness.run_to_end();
    assert!(harness.core.counters.preemptions > 0);
    assert!(harness.core.counters.preemptions < 60, "thrashes: {}", harness.core.counters.preemptions);
    for id in ids {
        assert_eq!(harness.client(id).tokens.len(), 60);
    }
    harness.check_against_reference();
}

#[test]
fn a_row_in_error_fails_alone_and_leaves_nothing_in_the_cache() {
    let mut harness = Harness::new(roomy(), 8, 256);
    let bad = harness.submit(spec(&prompt(100, 0), 20));
    let good = harness.submit(spec(&prompt(100, 1), 20));
    harness.step_with_errors(|_| vec![0]);
    harness.run_to_end();
    let why = "the model's output is not a number".to_string();
    assert_eq!(harness.client(bad).end, Some(Err(SequenceFailure::Row(why))));
    assert_eq!(harness.client(good).tokens.len(), 20);
    let again = harness.submit(spec(&prompt(100, 0), 20));
    harness.run_to_end();
    assert_eq!(harness.client(again).admitted, Some(0));
    harness.check_against_reference();
}

#[test]
fn a_row_in_error_leaves_the_prefix_that_others_have_sampled_from() {
    let mut harness = Harness::new(roomy(), 8, 256);
    let with = |salt| [prompt(64, 0), prompt(40, salt)].concat();
    harness.submit(spec(&with(1), 20));
    harness.run_to_end();
    let bad = harness.submit(spec(&with(2), 20));
    harness.step_with_errors(|_| vec![0]);
    harness.run_to_end();
    assert!(matches!(harness.client(bad).end, Some(Err(SequenceFailure::Row(_)))));
    let found = |harness: &mut Harness, salt| {
        let id = harness.submit(spec(&with(salt), 20));
        harness.run_to_end();
        harness.client(id).admitted
    };
    assert_eq!(found(&mut harness, 1), Some(96), "its own blocks, and those it shared");
    assert_eq!(found(&mut harness, 2), Some(64), "what the bad row computed is gone");
    harness.check_against_reference();
}

#[test]
fn what_a_sequence_in_error_computed_is_forgotten_though_it_left() {
    for leaves in [Release::Cancelled, Release::Stopped] {
        let mut harness = Harness::new(roomy(), 8, 256);
        let gone = harness.submit(spec(&prompt(100, 0), 20));
        harness.plan();
        harness.release(gone, leaves);
        harness.step_with_errors(|_| vec![0]);
        let again = harness.submit(spec(&prompt(100, 0), 20));
        harness.run_to_end();
        assert_eq!(harness.client(again).admitted, Some(0), "{leaves:?}");
    }
}

#[test]
fn what_a_preempted_sequence_finds_of_its_own_is_no_hit() {
    let mut harness = Harness::new(tiny(), 8, 32);
    for salt in 0..8 {
        // Their first tokens differ: none has anything of another.
        let prompt: Vec<u32> = (0..8).map(|at| (at * 3 + salt) % 50).collect();
        harness.submit(spec(&prompt, 60));
    }
    harness.run_to_end();
    assert!(harness.core.counters.preemptions > 0);
    assert_eq!(harness.core.counters.prefix_hit_tokens, 0);
    harness.submit(spec(&(0..8).map(|at| at * 3 % 50).collect::<Vec<_>>(), 1));
    harness.run_to_end();
    assert!(harness.core.counters.prefix_hit_tokens <= 4, "one block of a former prompt");
}

#[test]
fn a_crash_loses_and_doubles_nothing() {
    for steps in 0..30 {
        let mut harness = Harness::new(roomy(), 4, 64);
        for salt in 0..6 {
            let mut spec = spec(&prompt(50, salt), 20);
            spec.sampling.temperature = 0.8;
            spec.sampling.seed = 99 + u64::from(salt);
            spec.sampling.repetition_penalty = if salt % 2 == 0 { 1.0 } else { 1.1 };
            spec.prompt_logprobs = salt == 3;
            harness.submit(spec);
        }
        for _ in 0..steps {
            harness.step();
        }
        harness.plan();
        harness.crash();
        harness.run_to_end();
        assert!(harness.clients.values().all(|client| client.end == Some(Ok(Finish::Length))));
        harness.check_against_reference();
    }
}

#[test]
fn who_crashes_the_workers_again_and_again_fails_alone() {
    let mut harness = Harness::new(roomy(), 8, 256);
    let poison = 777;
    let mut bad_prompt = small_prompt(30, 0);
    bad_prompt[20] = poison;
    let good: Vec<_> = (0..4).map(|salt| harness.submit(spec(&small_prompt(30, salt), 10))).collect();
    let bad = harness.submit(spec(&bad_prompt, 10));
    let more = harness.submit(spec(&small_prompt(30, 9), 10));
    let mut crashes = 0;
    loop {
        harness.plan();
        let Some(plan) = harness.plans.front() else { break };
        let fed: Vec<u32> = bytemuck::allocation::pod_collect_to_vec(&plan.tokens);
        if fed.contains(&poison) {
            crashes += 1;
            harness.crash();
        } else {
            harness.step();
        }
    }
    assert_eq!(crashes, 3);
    assert!(matches!(harness.client(bad).end, Some(Err(SequenceFailure::Poisonous))));
    for id in good.into_iter().chain([more]) {
        assert_eq!(harness.client(id).tokens.len(), 10);
    }
    harness.check_against_reference();
}

#[test]
fn steps_are_as_large_as_before_when_a_suspect_leaves_before_it_has_passed() {
    type Leave = fn(&mut Harness, SequenceId);
    let leaves: [Leave; 3] = [
        |harness, id| harness.release(id, Release::Cancelled),
        |harness, _| harness.now += Duration::from_secs(100),
        |harness, _| harness.now += Duration::from_secs(60),
    ];
    for (way, leave) in leaves.into_iter().enumerate() {
        let mut harness = Harness::new(roomy(), 8, 256);
        let good: Vec<_> = (0..4).map(|salt| harness.submit(spec(&prompt(30, salt), 50))).collect();
        let suspect = match way {
            0 => spec(&prompt(30, 4), 50),
            1 => SequenceSpec {
                deadline: Some(harness.now + Duration::from_secs(90)),
                ..spec(&prompt(30, 4), 50)
            },
            _ => SequenceSpec {
                stop_at: Some(harness.now + Duration::from_secs(50)),
                ..spec(&prompt(30, 4), 50)
            },
        };
        let suspect = harness.submit(suspect);
        for _ in 0..2 {
            harness.step();
            harness.plan();
            harness.crash();
        }
        assert_eq!(harness.core.quarantined.len(), 5);
        leave(&mut harness, suspect);
        harness.run_to_end();
        assert_eq!(harness.core.throttle.rows(), 8, "nobody knows whether it was guilty");
        for id in good {
            assert_eq!(harness.client(id).tokens.len(), 50);
        }
        harness.check_against_reference();
    }
}

#[test]
fn crashes_with_progress_between_them_make_no_suspects() {
    let mut harness = Harness::new(roomy(), 8, 256);
    let ids: Vec<_> = (0..4).map(|salt| harness.submit(spec(&prompt(30, salt), 200))).collect();
    for _ in 0..20 {
        for _ in 0..8 {
            harness.step();
        }
        harness.plan();
        harness.crash();
        assert!(harness.core.quarantined.is_empty());
    }
    harness.run_to_end();
    for id in ids {
        assert_eq!(harness.client(id).tokens.len(), 200);
    }
    harness.check_against_reference();
}

#[test]
fn innocent_suspects_run_alone_for_a_moment_and_then_together() {
    let mut harness = Harness::new(roomy(), 8, 256);
    let ids: Vec<_> = (0..4).map(|salt| harness.submit(spec(&prompt(30, salt), 50))).collect();
    for _ in 0..2 {
        harness.step();
        harness.plan();
        harness.crash();
    }
    assert_eq!(harness.core.quarantined.len(), 4);
    let late = harness.submit(spec(&prompt(30, 7), 5));
    while !harness.core.quarantined.is_empty() {
        let step = harness.step().expect("suspects run");
        assert_eq!(step.rows, 1);
    }
    assert_eq!(harness.client(late).admitted, None);
    harness.run_to_end();
    for id in ids {
        assert_eq!(harness.client(id).tokens.len(), 50);
    }
    harness.check_against_reference();
}

#[test]
fn workers_that_come_back_smaller_fail_only_what_does_not_fit() {
    let mut harness = Harness::new(tiny(), 4, 64);
    let long = harness.submit(spec(&(0..40).collect::<Vec<_>>(), 50));
    let short = harness.submit(spec(&(0..10).collect::<Vec<_>>(), 10));
    for _ in 0..3 {
        harness.step();
    }
    harness.crash_to(12);
    harness.run_to_end();
    assert!(matches!(harness.client(long).end, Some(Err(SequenceFailure::Unavailable(_)))));
    assert_eq!(harness.client(short).end, Some(Ok(Finish::Length)));
    harness.check_against_reference();
}

#[test]
fn sequences_end_where_those_of_workers_that_come_back_end() {
    let mut harness = Harness::new(roomy(), 3, 512);
    let going = harness.submit(spec(&prompt(40, 0), 900));
    let outgrown = harness.submit(spec(&prompt(200, 1), 900));
    let short = harness.submit(spec(&prompt(20, 2), 90));
    let waiting = harness.submit(spec(&prompt(100, 3), 900));
    let too_long = harness.submit(spec(&prompt(300, 4), 900));
    while harness.client(outgrown).tokens.len() < 60 {
        harness.step();
    }
    harness.plan();
    harness.config.fits = 256;
    harness.crash();
    harness.run_to_end();
    assert_eq!(harness.client(short).tokens.len(), 90);
    for (id, prompt) in [(going, 40), (waiting, 100)] {
        let client = harness.client(id);
        assert_eq!((client.tokens.len(), &client.end), (256 - prompt, &Some(Ok(Finish::Length))));
        harness.clients.get_mut(&id).expect("was submitted").spec.max_new_tokens = 256 - prompt as u32;
    }
    for id in [outgrown, too_long] {
        let limit = Unavailable::TotalTokens { limit: 256 };
        assert_eq!(harness.client(id).end, Some(Err(limit.into())));
    }
    harness.check_against_reference();
}

#[test]
fn a_step_keeps_to_its_token_budget_and_decodes_come_first() {
    let mut harness = Harness::new(roomy(), 16, 64);
    for salt in 0..4 {
        harness.submit(spec(&prompt(10, salt), 200));
    }
    for _ in 0..5 {
        harness.step();
    }
    harness.submit(spec(&prompt(1000, 9), 10));
    harness.step();
    harness.step();
    for _ in 0..10 {
        // The model refuses a step over the budget; here: every decode is in every step beside the prompt.
        let step = harness.step().unwrap();
        assert_eq!(step.rows, 5);
        assert!(step.tokens > 48, "the prompt takes what the decodes leave: {}", step.tokens);
    }
}

#[test]
fn chunks_shrink_to_keep_the_target_and_never_to_nothing() {
    let config = MockConfig {
        cost: CostModel { fixed_ns: 1e6, per_token_ns: 1e5, per_context_token_ns: 0.0 },
        ..roomy()
    };
    for (target_ms, most) in [(5, 40), (1, 18)] {
        let target = Some(Duration::from_millis(target_ms));
        let mut harness = Harness::with_target(config.clone(), 16, 512, target);
        harness.submit(spec(&prompt(10, 0), 300));
        harness.submit(spec(&prompt(10, 1), 300));
        harness.step();
        harness.step();
        harness.submit(spec(&prompt(600, 2), 4));
        harness.plan();
        harness.step();
        harness.step();
        // The harness answers in no time; what is tested is the sizing by the model as it was given.
        harness.core.cost = crate::scheduler::cost::StepCost::new(config.cost);
        harness.plan();
        harness.step();
        let step = harness.step().unwrap();
        assert!(step.prompts);
        assert!(step.tokens <= most, "{} tokens for a target of {target_ms} ms", step.tokens);
        assert!(step.tokens >= 2 + 16, "the prompt advances by a block at least");
    }
}

#[test]
fn with_nobody_decoding_a_prompt_takes_the_whole_step() {
    let target = Some(Duration::from_micros(1));
    let mut harness = Harness::with_target(roomy(), 16, 512, target);
    harness.submit(spec(&prompt(600, 2), 4));
    assert_eq!(harness.step().unwrap().tokens, 512);
}

#[test]
fn the_queue_is_served_in_order() {
    let mut harness = Harness::new(roomy(), 2, 512);
    let ids: Vec<_> = (0..6).map(|salt| harness.submit(spec(&prompt(10, salt), 20))).collect();
    let mut order = Vec::new();
    while harness.step().is_some() {
        for id in &ids {
            if harness.client(*id).admitted.is_some() && !order.contains(id) {
                order.push(*id);
            }
        }
    }
    assert_eq!(order, ids);
}

#[test]
fn a_sequence_over_the_limit_is_refused_with_the_limit() {
    let mut harness = Harness::new(tiny(), 2, 16);
    let id = harness.submit(spec(&[1; 90], 7));
    assert_eq!(harness.client(id).end, Some(Err(Unavailable::TotalTokens { limit: 96 }.into())));
}

#[test]
fn wrong_results_are_a_loss_and_leave_the_sequences_whole() {
    type Spoil = fn(&mut StepResult);
    let spoils: [Spoil; 6] = [
        |result| result.number += 1,
        |result| result.sampled.truncate(2),
        |result| result.sampled = vec![0xff; result.sampled.len()].into(),
        |result| result.logprobs = bytes::Bytes::new(),
        |result| result.top_tokens = vec![0; 4].into(),
        |result| result.errors = vec![RowError { row: 9, message: String::new() }],
    ];
    for spoil in spoils {
        let mut harness = Harness::new(roomy(), 4, 64);
        let id = harness.submit(spec(&prompt(20, 0), 10));
        harness.step();
        harness.plan();
        let plan = harness.plans.pop_front().unwrap();
        let mut result = harness.model.execute(&plan).unwrap();
        spoil(&mut result);
        let loss = harness.core.apply(result, harness.now).unwrap_err();
        assert!(loss.kind == crate::worker::LossKind::OutOfStep);
        harness.crash();
        harness.run_to_end();
        assert_eq!(harness.client(id).tokens.len(), 10);
        harness.check_against_reference();
    }
}
