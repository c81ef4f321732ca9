//! Sequences of an encoder-decoder: what an encoder reads is fed whole, shared whole, and guessed from.

use std::time::Duration;

use bytes::Bytes;
use penstock_proto::StepPlan;
use penstock_proto::ids::TokenId;

use super::harness::{Harness, check_refused, spec, u32s};
use crate::scheduler::corpus::Corpora;
use crate::scheduler::policy::Drafting;
use crate::scheduler::submission::{Finish, Sampling, SequenceSpec};
use crate::worker::mock::{MockConfig, MockModel};

const BLOCK: u32 = 16;

fn config() -> MockConfig {
    MockConfig { block_size: BLOCK, max_positions: 2048, decoder_start_ids: vec![2, 0], ..Default::default() }
}

fn input(len: u32, salt: u32) -> Vec<TokenId> {
    (0..len).map(|i| TokenId((i * 7 + salt * 13 + 3) % 1000)).collect()
}

fn reads(encoder: Vec<TokenId>, max_new_tokens: u32) -> SequenceSpec {
    SequenceSpec { encoder, ..spec(&[2, 0], max_new_tokens) }
}

#[test]
fn an_encoder_reads_its_input_in_one_step_and_decodes_beside_others() {
    let mut harness = Harness::new(config(), 8, 128);
    let first = harness.submit(reads(input(100, 0), 20));
    harness.step();
    // Too long for what the first leaves of a step with its decode, if it could not have nearly all of it.
    let second = harness.submit(reads(input(110, 1), 5));
    let third = harness.submit(reads(input(90, 2), 5));
    harness.run_to_end();
    for id in [first, second, third] {
        assert_eq!(harness.client(id).end, Some(Ok(Finish::Length)));
    }
    harness.check_against_reference();
}

#[test]
fn the_same_input_again_computes_only_the_start_of_the_decoder() {
    for len in [5, 96, 100] {
        let mut harness = Harness::new(config(), 8, 1024);
        harness.submit(reads(input(len, 2), 5));
        harness.run_to_end();
        let before = harness.core.counters.prompt_tokens;
        let again = harness.submit(reads(input(len, 2), 5));
        harness.run_to_end();
        assert_eq!(harness.core.counters.prompt_tokens - before, 2);
        assert_eq!(harness.client(again).admitted, Some(len));
        harness.check_against_reference();
    }
}

#[test]
fn identical_inputs_submitted_together_are_read_once() {
    let mut harness = Harness::new(config(), 16, 256);
    for _ in 0..8 {
        harness.submit(reads(input(200, 1), 4));
    }
    harness.run_to_end();
    harness.check_against_reference();
    assert_eq!(harness.core.counters.prompt_tokens, 208 + 8 * 2);
}

#[test]
fn inputs_that_only_begin_alike_share_nothing() {
    let mut harness = Harness::new(config(), 8, 1024);
    let whole = input(100, 3);
    let mut other = whole.clone();
    other[99] = TokenId(999);
    for encoder in [whole.clone(), whole[..64].to_vec(), other, [whole, input(1, 9)].concat()] {
        let id = harness.submit(reads(encoder, 5));
        harness.run_to_end();
        assert_eq!(harness.client(id).admitted, Some(0));
    }
    assert_eq!(harness.core.counters.prefix_hit_tokens, 0);
    harness.check_against_reference();
}

#[test]
fn a_target_for_decodes_does_not_keep_an_encoder_waiting_for_ever() {
    let target = Some(Duration::from_nanos(1));
    let mut harness = Harness::with_target(config(), 8, 256, target);
    let stream = harness.submit(reads(input(20, 0), 400));
    harness.step();
    let others = [1, 2].map(|salt| harness.submit(reads(input(200, salt), 5)));
    for _ in 0..20 {
        harness.step();
    }
    assert!(others.iter().all(|id| harness.clients[id].end.is_some()), "both had their turn");
    assert!(harness.client(stream).end.is_none());
    harness.run_to_end();
    harness.check_against_reference();
}

#[test]
fn a_crash_feeds_what_the_encoder_reads_and_the_output_so_far_again() {
    let mut harness = Harness::new(config(), 8, 128);
    let ids = [0, 1, 2].map(|salt| harness.submit(reads(input(70, salt), 120)));
    for _ in 0..80 {
        harness.step();
    }
    harness.crash();
    harness.run_to_end();
    for id in ids {
        assert_eq!(harness.client(id).tokens.len(), 120);
    }
    harness.check_against_reference();
}

/// What its decoder says follows from the token before, whatever its encoder reads, and does not come again for long.
fn certain() -> MockConfig {
    MockConfig { surprise_one_in: 1_000_000, vocab_size: 100_000, pages: 400, ..config() }
}

/// What the decoder of `certain` says.
fn text(len: u32) -> Vec<TokenId> {
    let said = MockModel::reference(&certain(), &reads(input(5, 0), len));
    let said: Vec<_> = said.into_iter().map(TokenId).collect();
    assert!(!said.contains(&TokenId(0)), "as pads are");
    assert!((1..said.len()).all(|at| !said[..at].contains(&said[at])), "a token comes again");
    said
}

#[test]
fn what_a_decoder_says_is_guessed_from_what_its_encoder_reads() {
    let said = text(200);
    // All of it, a part from its middle, and nothing.
    for (read, least, most) in
        [(said.clone(), 150, 200), (said[80..140].to_vec(), 35, 60), (input(50, 0), 0, 0)]
    {
        let mut harness = Harness::new(certain(), 8, 512).speculating(Drafting::Adaptive(6));
        let id = harness.submit(reads(read, 200));
        let steps = harness.count_steps();
        let accepted = harness.core.counters.accepted_drafts;
        assert!((least..=most).contains(&accepted), "{accepted} accepted drafts");
        assert!(u64::from(steps) <= 204 - accepted / 2, "{steps} steps with {accepted} accepted drafts");
        assert_eq!(harness.client(id).tokens.len(), 200);
        harness.check_against_reference();
    }
}

#[test]
fn no_pad_is_a_draft() {
    let said = text(150);
    for len in [60, 64, 65] {
        let mut harness = Harness::new(certain(), 8, 512).speculating(Drafting::Always(6));
        harness.submit(reads(said[..len].to_vec(), 150));
        let mut guessed = Vec::new();
        while harness.plan() > 0 {
            // Rows that go on bring their drafts and nothing else.
            let fresh = harness.plans.back().filter(|plan| plan.starts.is_none());
            guessed.extend(fresh.into_iter().flat_map(|plan| u32s(&plan.tokens)));
            harness.step();
        }
        assert!(guessed.len() > 40, "{} drafts", guessed.len());
        assert!(guessed.iter().all(|&token| said[..len].contains(&TokenId(token))), "{guessed:?}");
        harness.check_against_reference();
    }
}

#[test]
fn drafts_leave_a_step_room_for_what_an_encoder_reads_at_once() {
    // The longest input, padded, and a token of everybody's.
    let mut harness = Harness::new(certain(), 2, 208 + 2).speculating(Drafting::Always(8));
    let stream = harness.submit(reads(text(200), 400));
    while harness.core.counters.accepted_drafts < 16 {
        harness.step();
    }
    let other = harness.submit(reads(input(200, 1), 3));
    for _ in 0..8 {
        harness.step();
    }
    assert!(harness.client(other).end.is_some(), "it had its turn");
    assert!(harness.client(stream).end.is_none());
    harness.run_to_end();
    harness.check_against_reference();
}

#[test]
fn crashes_between_any_two_plans_change_no_text_with_drafts() {
    let config = MockConfig { surprise_one_in: 12, ..certain() };
    let mut harness = Harness::new(config, 4, 256).speculating(Drafting::Always(5));
    let said = text(250);
    for seed in 0..3 {
        let sampling = Sampling { temperature: 1.0, seed, repetition_penalty: 1.2, ..Sampling::default() };
        harness.submit(SequenceSpec { sampling, ..reads(said[seed as usize..200].to_vec(), 250) });
    }
    harness.crash_now_and_then();
    harness.check_against_reference();
    let accepted = harness.core.counters.accepted_drafts;
    assert!(accepted > 40, "{accepted} accepted drafts");
}

#[test]
fn an_answer_to_another_input_is_guessed_from_what_the_tenant_was_answered() {
    let mut harness = Harness::new(certain(), 4, 256).speculating(Drafting::Adaptive(6));
    harness.core.corpora = Some(Corpora::new(10_000, 3));
    for salt in [1, 2] {
        harness.submit(reads(input(50, salt), 100));
        harness.run_to_end();
    }
    harness.check_against_reference();
    let accepted = harness.core.counters.accepted_corpus_drafts;
    assert!(accepted > 80, "{accepted} of 100 tokens");
}

#[test]
fn the_mock_refuses_a_row_that_samples_before_its_decoder_says_anything() {
    let mut harness = Harness::new(config(), 8, 128).speculating(Drafting::Always(3));
    harness.submit(reads(input(20, 0), 5));
    let (past, plan) = harness.run_until(|plan| plan.starts.is_some());
    let drafts = |count: u32| Bytes::copy_from_slice(&count.to_le_bytes());
    let wrong = StepPlan { drafts: drafts(2), ..plan };
    check_refused(harness.config.clone(), &past, wrong, "feeds nothing of its decoder's");
}
