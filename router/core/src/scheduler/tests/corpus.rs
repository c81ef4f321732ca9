//! Drafts from what a tenant was answered lately: who gets some, and from whose answers; and drafts up to the end of a text.

use penstock_proto::ids::TokenId;

use super::harness::{Harness, spec, tiny};
use crate::scheduler::cache_names::Namespace;
use crate::scheduler::corpus::Corpora;
use crate::scheduler::policy::Drafting;
use crate::scheduler::submission::SequenceSpec;
use crate::tenant::Tenant;
use crate::worker::mock::MockConfig;

/// Its texts cannot be guessed from themselves.
fn surprising() -> MockConfig {
    MockConfig { pages: 400, max_positions: 600, ..tiny() }
}

fn remembering(config: MockConfig) -> Harness {
    let mut harness = Harness::new(config, 4, 64).speculating(Drafting::Adaptive(6));
    harness.core.corpora = Some(Corpora::new(10_000, 3));
    harness
}

/// How many drafts were accepted when `second` is answered after `first`.
fn accepted_after(first: SequenceSpec, second: SequenceSpec) -> u64 {
    let mut harness = remembering(surprising());
    harness.submit(first);
    harness.run_to_end();
    let before = harness.core.counters.accepted_corpus_drafts;
    harness.submit(second);
    harness.run_to_end();
    harness.check_against_reference();
    let counters = harness.core.counters;
    assert!(counters.accepted_corpus_drafts <= counters.accepted_drafts, "{counters:?}");
    assert!(counters.accepted_corpus_drafts <= counters.corpus_drafts, "{counters:?}");
    counters.accepted_corpus_drafts - before
}

#[test]
fn an_answer_like_an_earlier_one_takes_fewer_steps() {
    let asked = spec(&[3, 4, 5], 200);
    let accepted = accepted_after(asked.clone(), asked);
    assert!(accepted > 100, "{accepted} of 200 tokens");
}

#[test]
fn nobody_has_drafts_from_the_answers_of_another_tenant_or_namespace() {
    let asked = spec(&[3, 4, 5], 200);
    let of_key = |key| SequenceSpec { tenant: Tenant::Key(key), ..asked.clone() };
    let salted = |salt| SequenceSpec { cache_namespace: Namespace(salt), ..asked.clone() };
    assert!(accepted_after(of_key(1), of_key(1)) > 100);
    assert_eq!(accepted_after(of_key(1), of_key(2)), 0);
    assert_eq!(accepted_after(asked.clone(), of_key(1)), 0);
    assert_eq!(accepted_after(salted(7), salted(8)), 0);
    assert_eq!(accepted_after(asked.clone(), salted(8)), 0);
}

#[test]
fn without_the_flag_nothing_is_remembered() {
    let mut harness = Harness::new(surprising(), 4, 64).speculating(Drafting::Adaptive(6));
    for _ in 0..2 {
        harness.submit(spec(&[3, 4, 5], 200));
        harness.run_to_end();
    }
    assert_eq!(harness.core.counters.corpus_drafts, 0);
    assert!(harness.core.counters.accepted_drafts < 50, "{:?}", harness.core.counters);
}

#[test]
fn nothing_is_guessed_behind_a_token_that_ends_the_text() {
    let text = spec(&[10, 11, 12, 2, 13, 14, 10, 11], 50);
    let guessed = |spec: SequenceSpec| {
        let mut harness = Harness::new(surprising(), 4, 64).speculating(Drafting::Adaptive(6));
        let id = harness.submit(spec);
        harness.plan();
        let key = harness.core.by_id[&id];
        harness.core.guessed(key, 0).take(5).map(|token| token.0).collect::<Vec<_>>()
    };
    assert_eq!(guessed(text.clone()), [12, 2]);
    assert_eq!(guessed(SequenceSpec { ignore_eos: true, ..text.clone() }), [12, 2, 13, 14, 10]);
    assert_eq!(guessed(SequenceSpec { stop_token_ids: vec![TokenId(12)], ..text }), [12]);
}

#[test]
fn drafts_from_an_earlier_answer_end_with_it() {
    // Every answer ends by itself, and from the second time on it is known word for word.
    let config = MockConfig { eos_one_in: 25, ..surprising() };
    let [end] = config.eos_ids[..] else { panic!("{:?}", config.eos_ids) };
    let mut harness = remembering(config);
    let mut ends = 0;
    for salt in 0..20 {
        for _ in 0..3 {
            harness.submit(spec(&[3, salt, 5], 200));
            while harness.plan() > 0 {
                for plan in
                    harness.plans.iter().filter(|plan| plan.flags.len() == 1 && !plan.drafts.is_empty())
                {
                    let drafts: Vec<u32> = bytemuck::allocation::pod_collect_to_vec(&plan.tokens);
                    if let Some(at) = drafts.iter().position(|&token| token == end) {
                        assert_eq!(at + 1, drafts.len(), "{drafts:?}");
                        ends += 1;
                    }
                }
                harness.step();
            }
        }
    }
    harness.check_against_reference();
    assert!(ends > 10, "{ends} ends were foreseen");
}
