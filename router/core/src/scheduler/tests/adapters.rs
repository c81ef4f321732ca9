//! Sequences with LoRA adapters: which one each START row names, and that nothing cached of one is another's.

use bytes::Bytes;
use penstock_proto::{Starts, StepPlan};

use super::harness::{Harness, adapter, check_refused, spec, tiny, u32s, with_adapters};
use crate::adapter::Adapter;
use crate::scheduler::submission::{Sampling, SequenceSpec};
use crate::worker::mock::{MockConfig, MockModel};

fn with(number: Option<u32>, prompt: &[u32], max_new_tokens: u32) -> SequenceSpec {
    SequenceSpec { adapter: number.map(adapter), ..spec(prompt, max_new_tokens) }
}

fn prompt() -> Vec<u32> {
    (3..43).collect()
}

fn roomy() -> MockConfig {
    with_adapters(MockConfig { pages: 100, ..tiny() })
}

/// The adapters that a plan's START rows name.
fn named(plan: &StepPlan) -> Vec<u32> {
    plan.starts.as_ref().map(|starts| u32s(&starts.adapters)).unwrap_or_default()
}

#[test]
fn every_adapter_gives_a_text_of_its_own() {
    let specs = [None, Some(1), Some(2)].map(|number| with(number, &prompt(), 20));
    let texts = specs.map(|spec| MockModel::reference(&roomy(), &spec));
    assert!(texts[0] != texts[1] && texts[0] != texts[2] && texts[1] != texts[2], "{texts:?}");
}

#[test]
fn adapters_do_not_share_blocks_and_one_shares_its_own() {
    let mut harness = Harness::new(roomy(), 8, 1024);
    for expected in [0, 40 / 4 * 4 - 4] {
        for number in [None, Some(1), Some(2)] {
            let id = harness.submit(with(number, &prompt(), 1));
            harness.run_to_end();
            assert_eq!(harness.client(id).admitted, Some(expected), "{number:?}");
        }
    }
    harness.check_against_reference();
}

#[test]
fn sequences_of_several_adapters_run_in_one_step() {
    let mut harness = Harness::new(roomy(), 8, 1024);
    for number in [Some(2), None, Some(1), Some(2)] {
        harness.submit(with(number, &prompt()[..7], 10));
    }
    let (_, first) = harness.run_until(|_| true);
    assert_eq!(named(&first), [2, 0, 1, 2]);
}

#[test]
fn choices_of_one_adapter_are_copied_from_and_those_of_others_are_not() {
    let mut harness = Harness::new(roomy(), 4, 64);
    let choice = |number, seed| {
        let sampling = Sampling { temperature: 0.7, seed, ..Sampling::default() };
        SequenceSpec { sampling, ..with(number, &prompt()[..14], 20) }
    };
    for (number, seed) in [(Some(1), 1), (Some(2), 2), (None, 3)] {
        harness.submit(choice(number, seed));
        harness.step();
    }
    assert_eq!(harness.core.counters.copied_tokens, 0);
    harness.submit(choice(Some(2), 4));
    harness.run_to_end();
    assert!(harness.core.counters.copied_tokens > 0, "a page of one with the same adapter");
    harness.check_against_reference();
}

#[test]
fn who_starts_again_names_its_adapter_again() {
    // So few pages that they preempt each other.
    let mut harness = Harness::new(with_adapters(tiny()), 8, 32);
    let submit = |harness: &mut Harness| {
        for number in [Some(1), Some(2), None, Some(2), Some(1), None, Some(1), Some(2)] {
            harness.submit(with(number, &prompt()[..8], 60));
        }
    };
    submit(&mut harness);
    harness.run_to_end();
    assert!(harness.core.counters.preemptions > 0);
    submit(&mut harness);
    harness.crash_now_and_then();
    harness.check_against_reference();
}

#[test]
fn a_model_without_adapters_gets_no_column() {
    let mut harness = Harness::new(tiny(), 4, 64);
    harness.submit(spec(&prompt(), 5));
    let (_, first) = harness.run_until(|_| true);
    assert!(first.starts.expect("it starts").adapters.is_empty());
}

#[test]
fn the_mock_refuses_adapters_that_the_model_does_not_have() {
    let mut harness = Harness::new(roomy(), 4, 64);
    harness.submit(with(Some(2), &prompt(), 5));
    let (past, plan) = harness.run_until(|_| true);
    let starts = plan.starts.clone().expect("it starts");
    let naming = |adapters: &[u32]| StepPlan {
        starts: Some(Starts {
            adapters: Bytes::copy_from_slice(bytemuck::cast_slice(adapters)),
            ..starts.clone()
        }),
        ..plan.clone()
    };
    let none = MockConfig { adapters: Vec::new(), ..roomy() };
    for (config, wrong, why) in [
        (roomy(), naming(&[3]), "starts.adapters names adapter 3 of 2"),
        (roomy(), naming(&[]), "starts.adapters is absent, of a model with 2 adapters"),
        (roomy(), naming(&[1, 2]), "starts.adapters has 2 entries instead of 1"),
        (none, naming(&[0]), "starts.adapters names some to a model without adapters"),
    ] {
        check_refused(config, &past, wrong, why);
    }
}

#[test]
fn the_namespace_is_that_of_the_docs() {
    let mut harness = Harness::new(roomy(), 4, 64);
    let spec = with(Some(2), &prompt(), 5);
    let Adapter { digest, .. } = spec.adapter.expect("it has one");
    let expected = spec.cache_namespace.within([&b"adapter"[..], &digest]);
    harness.submit(spec);
    let namespaces: Vec<_> = harness.core.sequences.iter().map(|(_, sequence)| sequence.namespace).collect();
    assert_eq!(namespaces, [expected]);
}
