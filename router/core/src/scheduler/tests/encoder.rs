//! Sequences of an encoder-decoder: what an encoder reads is fed whole, and shared whole.

use std::time::Duration;

use penstock_proto::ids::TokenId;

use super::harness::{Harness, spec};
use crate::scheduler::submission::{Finish, SequenceSpec};
use crate::worker::mock::MockConfig;

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
