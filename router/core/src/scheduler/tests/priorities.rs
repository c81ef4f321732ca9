//! Priorities: who waits for whom, who gives way, and that nobody loses a token by it.

use std::time::Duration;

use penstock_proto::CostModel;
use penstock_proto::ids::SequenceId;

use super::harness::{Harness, spec, tiny};
use crate::scheduler::submission::{Priority, SequenceSpec};
use crate::tenant::Tenant;
use crate::worker::mock::MockConfig;

/// No two with another salt share a prefix.
fn of(priority: i32, salt: u32, prompt: u32, new: u32) -> SequenceSpec {
    let tokens: Vec<u32> = (0..prompt).map(|at| (at * 7 + salt * 13 + 3) % 50).collect();
    SequenceSpec { priority: Priority(priority), ignore_eos: true, ..spec(&tokens, new) }
}

fn roomy() -> MockConfig {
    MockConfig { pages: 400, ..tiny() }
}

/// The order in which they ended.
fn ends(harness: &mut Harness, ids: &[SequenceId]) -> Vec<usize> {
    let mut order = Vec::new();
    while harness.step().is_some() {
        for (at, &id) in ids.iter().enumerate() {
            if harness.client(id).end.is_some() && !order.contains(&at) {
                order.push(at);
            }
        }
    }
    order
}

#[test]
fn the_queue_goes_by_priority_and_within_one_by_age() {
    let mut harness = Harness::new(roomy(), 1, 64);
    let ids: Vec<_> =
        (0u32..).zip([5, 0, -2, 0, -2]).map(|(salt, p)| harness.submit(of(p, salt, 6, 3))).collect();
    assert_eq!(ends(&mut harness, &ids), [2, 4, 1, 3, 0]);
    assert_eq!(harness.core.counters.preemptions, 0, "none of them ran before the others came");
    harness.check_against_reference();
}

#[test]
fn a_higher_priority_takes_the_slot_of_the_youngest_of_the_lowest() {
    let mut harness = Harness::new(roomy(), 3, 64);
    let runs: Vec<_> = (0u32..).zip([3, 3, 0]).map(|(salt, p)| harness.submit(of(p, salt, 6, 40))).collect();
    for _ in 0..10 {
        harness.step();
    }
    let equal = harness.submit(of(3, 7, 6, 40));
    let urgent = harness.submit(of(-1, 8, 6, 4));
    harness.step();
    harness.step();
    assert!(!harness.core.waits(urgent) && harness.core.waits(equal) && harness.core.waits(runs[1]));
    assert!(!harness.core.waits(runs[0]) && !harness.core.waits(runs[2]));
    harness.run_to_end();
    assert_eq!(harness.core.counters.priority_preemptions, 1);
    // Who gave way has no room to find beyond that of others.
    let preemptions = [runs[1], equal].map(|id| harness.client(id).tokens.len());
    assert_eq!(preemptions, [40, 40]);
    harness.check_against_reference();
}

#[test]
fn nobody_gives_way_to_an_equal_or_while_there_is_room() {
    let mut harness = Harness::new(roomy(), 4, 64);
    for salt in 0..3 {
        harness.submit(of(1, salt, 6, 30));
    }
    harness.step();
    harness.submit(of(0, 4, 6, 30));
    harness.submit(of(1, 5, 6, 30));
    harness.run_to_end();
    assert_eq!(harness.core.counters.preemptions, 0);
}

#[test]
fn a_higher_priority_takes_blocks_until_it_finds_room() {
    // Two of these fill the pool.
    let mut harness = Harness::new(tiny(), 8, 64);
    let low: Vec<_> = (0..2).map(|salt| harness.submit(of(2, salt, 40, 8))).collect();
    for _ in 0..4 {
        harness.step();
    }
    let urgent = harness.submit(of(0, 9, 60, 8));
    let order = ends(&mut harness, &[low[0], low[1], urgent]);
    assert_eq!(order[0], 2, "{order:?}");
    assert!((1..=2).contains(&harness.core.counters.priority_preemptions));
    harness.check_against_reference();
}

#[test]
fn blocks_are_taken_from_the_lowest_priority_though_it_is_the_oldest() {
    let mut harness = Harness::new(tiny(), 8, 64);
    let low = harness.submit(of(1, 0, 6, 80));
    let high = harness.submit(of(0, 1, 6, 80));
    let mut preempted = Vec::new();
    while harness.step().is_some() {
        preempted.extend([low, high].into_iter().filter(|&id| harness.core.waits(id)));
    }
    assert!(harness.core.counters.preemptions > 0, "both do not fit");
    assert!(preempted.contains(&low) && !preempted.contains(&high), "{preempted:?}");
    harness.check_against_reference();
}

#[test]
fn what_is_served_at_a_high_priority_counts_among_equals() {
    let mut harness = Harness::new(roomy(), 1, 64);
    let tenant = |key, spec| SequenceSpec { tenant: Tenant::Key(key), ..spec };
    let first = harness.submit(tenant(0, of(-1, 0, 40, 20)));
    let ids = [first, harness.submit(tenant(0, of(0, 1, 6, 3))), harness.submit(tenant(1, of(0, 2, 6, 3)))];
    assert_eq!(ends(&mut harness, &ids), [0, 2, 1]);
}

#[test]
fn what_a_higher_priority_has_to_wait_for_is_not_what_it_overtakes() {
    let cost = CostModel { fixed_ns: 1e6, per_token_ns: 1e5, per_context_token_ns: 0.0 };
    let mut harness = Harness::new(MockConfig { cost, pages: 4000, max_positions: 4096, ..tiny() }, 2, 256);
    for salt in 0..6 {
        harness.submit(of(0, salt, 1000, 4));
    }
    let deadline = Some(harness.now + Duration::from_millis(150));
    let usual = harness.submit(SequenceSpec { deadline, ..of(0, 10, 100, 4) });
    let urgent = harness.submit(SequenceSpec { deadline, ..of(-1, 11, 100, 4) });
    assert!(harness.client(usual).end.is_some(), "600 ms of prompts are before it");
    assert!(harness.client(urgent).end.is_none(), "nothing is before it");
}

#[test]
fn a_head_without_room_is_not_looked_up_whenever_somebody_leaves() {
    let config = MockConfig { pages: 64, ..tiny() };
    let mut harness = Harness::new(config, 8, 64);
    let long: Vec<u32> = (0..80).map(|at| at % 37 + 3).collect();
    let cached = harness.submit(spec(&long, 1));
    harness.run_to_end();
    assert!(harness.client(cached).end.is_some());
    let mut salt = 0;
    let mut running: Vec<SequenceId> = Vec::new();
    let mut refill = |harness: &mut Harness, running: &mut Vec<SequenceId>| {
        running.retain(|&id| harness.client(id).end.is_none());
        while running.len() < 6 {
            salt += 1;
            running.push(harness.submit(of(-1, salt, 8, 20 + salt % 13)));
        }
    };
    refill(&mut harness, &mut running);
    for _ in 0..6 {
        harness.step();
    }
    let head = harness.submit(SequenceSpec { ignore_eos: true, ..spec(&long, 12) });
    let departures = harness.core.departures;
    for _ in 0..400 {
        harness.step();
        refill(&mut harness, &mut running);
    }
    assert!(harness.core.waits(head), "there is room for it, and the test shows nothing");
    let (left, lookups) = (harness.core.departures - departures, harness.core.head_lookups);
    assert!(left > 60 && lookups < 7 + left + left / 4, "{lookups} look-ups of heads while {left} left");
    harness.run_to_end();
    // What waited was kept: only the last block of its prompt is computed.
    assert_eq!(harness.client(head).admitted, Some(76));
    harness.check_against_reference();
}
