//! Between tenants: nobody's flood delays another for long, nobody starves, no capacity is left unused; and
//! deadlines are kept, by refusing early what cannot be begun in time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use penstock_proto::CostModel;
use penstock_proto::ids::SequenceId;
use proptest::prelude::*;

use super::harness::{Harness, STEP, spec, tiny};
use crate::scheduler::cost::Work;
use crate::scheduler::fairness::cost;
use crate::scheduler::submission::{Finish, Late, Release, SequenceFailure, SequenceSpec};
use crate::tenant::Tenant;
use crate::worker::mock::MockConfig;

fn roomy() -> MockConfig {
    MockConfig { vocab_size: 1000, pages: 512, block_size: 16, max_positions: 8192, ..MockConfig::default() }
}

/// No two share a prefix, so that every token counts.
fn of(tenant: u32, salt: u32, prompt: u32, new: u32) -> SequenceSpec {
    let tokens: Vec<u32> = (0..prompt).map(|at| (at * 7 + salt * 131 + tenant * 17 + 3) % 1000).collect();
    SequenceSpec { tenant: Tenant::Key(tenant), ignore_eos: true, ..spec(&tokens, new) }
}

/// What each tenant was served, as its clients saw it.
fn served(harness: &mut Harness, tenants: &[(SequenceId, u32)]) -> BTreeMap<u32, i64> {
    let mut sums = BTreeMap::new();
    for &(id, tenant) in tenants {
        let client = harness.client(id);
        if let (Some(cached), false) = (client.admitted, client.tokens.is_empty()) {
            let prompt = client.spec.prompt.len() as u32;
            let tokens = cost(prompt, false, cached, prompt + client.tokens.len() as u32);
            *sums.entry(tenant).or_insert(0) += tokens as i64;
        }
    }
    sums
}

/// Steps until `id` has its first token.
fn steps_to_first_token(harness: &mut Harness, id: SequenceId) -> u32 {
    for step in 0..100_000 {
        if !harness.client(id).tokens.is_empty() {
            return step;
        }
        harness.step().expect("something lives");
    }
    panic!("it never came");
}

#[test]
fn a_flood_delays_another_tenant_by_one_sequence_not_by_its_queue() {
    let mut harness = Harness::new(roomy(), 4, 512);
    for salt in 0..64 {
        harness.submit(of(0, salt, 40, 50));
    }
    for _ in 0..5 {
        harness.step();
    }
    let other = harness.submit(of(1, 99, 40, 5));
    let steps = steps_to_first_token(&mut harness, other);
    assert!(steps <= 50 + 10, "{steps} steps; all four slots are free after 50");
    harness.run_to_end();
    harness.check_against_reference();
}

#[test]
fn a_long_prompt_does_not_hold_up_another_partys_short_one() {
    let mut harness = Harness::new(MockConfig { pages: 1024, ..roomy() }, 8, 64);
    for salt in 0..3 {
        harness.submit(of(0, salt, 4000, 4));
    }
    for _ in 0..5 {
        harness.step();
    }
    let short = harness.submit(of(1, 9, 40, 4));
    let steps = steps_to_first_token(&mut harness, short);
    assert!(steps <= 6, "{steps} steps beside a prompt that takes 60 more");
    harness.run_to_end();
    harness.check_against_reference();
}

#[test]
fn a_tenant_alone_has_the_whole_server() {
    let run = |tenants: u32| {
        let mut harness = Harness::new(roomy(), 8, 256);
        for salt in 0..32 {
            harness.submit(of(salt % tenants, salt, 40, 20));
        }
        let mut steps = 0;
        while harness.step().is_some() {
            steps += 1;
        }
        steps
    };
    let alone = run(1);
    assert!(alone <= 32 / 8 * 22 + 4, "{alone} steps for four rounds of eight");
    assert!(run(4) <= alone + 4, "fairness costs no steps");
}

#[test]
fn a_tenant_that_was_preempted_is_not_charged_twice() {
    let mut harness = Harness::new(tiny(), 8, 32);
    let sequence = |tenant: u32, salt: u32| {
        let tokens: Vec<u32> = (0..8).map(|at| (at * 7 + salt * 5 + tenant) % 50).collect();
        SequenceSpec { tenant: Tenant::Key(tenant), ignore_eos: true, ..spec(&tokens, 60) }
    };
    for salt in 0..8 {
        harness.submit(sequence(salt % 2, salt));
    }
    while harness.core.counters.preemptions < 3 {
        harness.step().expect("the pool is too small for all");
    }
    for (_, sequence) in &harness.core.sequences {
        assert!(
            sequence.charged <= sequence.len(),
            "{} positions of {} charged",
            sequence.charged,
            sequence.len()
        );
    }
    harness.run_to_end();
    harness.check_against_reference();
}

#[test]
fn what_waits_past_its_deadline_is_refused_and_what_runs_past_it_ends() {
    let mut harness = Harness::new(roomy(), 1, 256);
    let soon = harness.now + Duration::from_millis(2);
    let runs = harness.submit(SequenceSpec { deadline: Some(soon), ..of(0, 0, 20, 500) });
    let waits = harness.submit(SequenceSpec { deadline: Some(soon), ..of(0, 1, 20, 500) });
    let other = harness.submit(of(0, 2, 20, 5));
    for _ in 0..10 {
        harness.step();
    }
    assert_eq!(harness.core.next_due(), Some(soon));
    harness.now = soon;
    harness.core.expire(harness.now);
    harness.check();
    assert!(matches!(harness.client(runs).end, Some(Err(SequenceFailure::OutOfTime { generated: 1.. }))));
    let Some(Err(SequenceFailure::TooLate { late: Late::Waited, retry_after })) =
        harness.client(waits).end.clone()
    else {
        panic!("{:?}", harness.client(waits).end)
    };
    assert!((1..=60).contains(&retry_after.as_secs()));
    assert_eq!(harness.core.next_due(), None);
    harness.run_to_end();
    assert_eq!(harness.client(other).end, Some(Ok(Finish::Length)));
    harness.check_against_reference();
}

#[test]
fn a_text_whose_time_is_up_ends_with_the_token_in_flight() {
    let mut harness = Harness::new(roomy(), 4, 256);
    let stop_at = Some(harness.now + Duration::from_millis(1));
    let id = harness.submit(SequenceSpec { stop_at, ..of(0, 0, 20, 500) });
    while harness.step().is_some() {
        let now = harness.now;
        harness.core.expire(now);
    }
    let client = harness.client(id);
    assert_eq!(client.end, Some(Ok(Finish::Length)));
    assert_eq!(client.tokens.len(), 10, "a step takes 100 us");
    assert_eq!(harness.core.next_due(), None);
}

#[test]
fn a_text_whose_time_is_up_in_a_recovery_ends_then() {
    let mut harness = Harness::new(roomy(), 4, 256);
    let stop_at = Some(harness.now + STEP * 12);
    let running = harness.submit(SequenceSpec { stop_at, ..of(0, 0, 20, 500) });
    // Of this one no token is there yet.
    let reading = harness.submit(SequenceSpec { stop_at, ..of(0, 1, 3000, 500) });
    for _ in 0..5 {
        harness.step();
    }
    harness.plan();
    harness.plans.clear();
    harness.core.lose(harness.now);
    harness.now += STEP * 20;
    assert_eq!(harness.core.next_due(), stop_at);
    let now = harness.now;
    harness.core.expire(now);
    let client = harness.client(running);
    assert_eq!((client.end.clone(), client.tokens.len()), (Some(Ok(Finish::Length)), 5));
    assert!(matches!(harness.client(reading).end, Some(Err(SequenceFailure::TooLate { .. }))));
    assert!(harness.core.is_empty());
    harness.check_against_reference();
}

#[test]
fn a_text_whose_time_is_up_while_it_is_preempted_ends_then() {
    // Room for one of them at its full length.
    let mut harness = Harness::new(MockConfig { eos_one_in: 0, ..tiny() }, 8, 32);
    let old = harness.submit(spec(&[1, 2, 3, 4], 90));
    let stop_at = Some(harness.now + STEP * 1000);
    let young = harness.submit(SequenceSpec { stop_at, ..spec(&[5, 6, 7, 8], 80) });
    while !harness.core.waits(young) || harness.client(young).tokens.is_empty() {
        assert!(harness.step().is_some(), "it is preempted once");
    }
    // What is under way of it comes first.
    harness.step();
    harness.step();
    assert!(harness.core.waits(young));
    harness.now += STEP * 1000;
    harness.plan();
    assert_eq!(harness.client(young).end, Some(Ok(Finish::Length)));
    assert_eq!(harness.client(old).end, None);
    harness.run_to_end();
    harness.check_against_reference();
}

#[test]
fn a_text_whose_time_is_up_while_it_is_preempted_with_a_row_in_flight_ends_when_the_workers_are_lost() {
    let mut harness = Harness::new(MockConfig { eos_one_in: 0, ..tiny() }, 8, 32);
    harness.submit(spec(&[1, 2, 3, 4], 90));
    let stop_at = Some(harness.now + STEP * 1000);
    let young = harness.submit(SequenceSpec { stop_at, ..spec(&[5, 6, 7, 8], 80) });
    let in_flight = |harness: &Harness| {
        let own = harness.core.sequences.iter().find(|(_, sequence)| sequence.id == young);
        own.map_or(0, |(_, sequence)| sequence.samples_in_flight)
    };
    loop {
        harness.plan();
        if harness.core.waits(young) && in_flight(&harness) > 0 && !harness.client(young).tokens.is_empty() {
            break;
        }
        assert!(harness.step().is_some(), "it is preempted once");
    }
    harness.now += STEP * 1000;
    harness.plan();
    assert_eq!(harness.client(young).end, None, "its time is left to that row");
    harness.crash();
    let now = harness.now;
    harness.core.expire(now);
    assert_eq!(harness.client(young).end, Some(Ok(Finish::Length)));
    harness.run_to_end();
    harness.check_against_reference();
}

#[test]
fn time_without_requests_says_nothing_of_the_next_ones() {
    let mut harness = Harness::new(MockConfig { eos_one_in: 0, ..tiny() }, 2, 64);
    let hour = Duration::from_secs(3600);
    let deadline = |harness: &Harness| Some(harness.now + Duration::from_secs(5));
    for salt in 0..4 {
        harness.submit(spec(&[salt, 2, 3], 4));
    }
    harness.run_to_end();
    // One fills the cache, so that the next is blocked; then all leave.
    let large = harness.submit(spec(&[7; 90], 5));
    harness.step();
    let blocked = harness.submit(spec(&[8; 60], 5));
    harness.step();
    assert!(harness.core.blocked.is_some(), "there is room for both");
    harness.release(blocked, Release::Cancelled);
    harness.release(large, Release::Cancelled);
    while harness.step().is_some() {}
    for _ in 0..2 {
        harness.now += hour;
        // Both slots are taken, so the third waits for an end.
        for salt in 0..3 {
            let id = harness.submit(SequenceSpec { deadline: deadline(&harness), ..spec(&[salt, 9], 3) });
            assert_eq!(harness.client(id).end, None, "refused after an hour in which nobody asked");
            harness.plan();
        }
        harness.run_to_end();
        assert!(harness.core.retry_after(harness.now) < Duration::from_secs(2));
    }
}

#[test]
fn a_slot_that_is_given_up_is_an_end_whatever_the_reason() {
    let mut harness = Harness::new(roomy(), 1, 256);
    harness.submit(of(0, 0, 20, 2));
    harness.run_to_end();
    let mut running = harness.submit(of(0, 1, 20, 4000));
    harness.step();
    harness.now += Duration::from_secs(3600);
    // No text has come to its end since, and a slot becomes free every millisecond.
    for salt in 2..102 {
        let next = harness.submit(of(0, salt, 20, 4000));
        for _ in 0..8 {
            harness.step();
        }
        match salt % 2 {
            0 => harness.release(running, Release::Cancelled),
            _ => {
                harness.step_with_errors(|_| vec![0]);
            }
        }
        while harness.core.waits(next) {
            harness.step();
        }
        running = next;
    }
    assert_eq!((harness.core.counters.cancelled, harness.core.counters.failed), (50, 50));
    let deadline = Some(harness.now + Duration::from_secs(5));
    let last = harness.submit(SequenceSpec { deadline, ..of(0, 200, 20, 4) });
    assert_eq!(harness.client(last).end, None, "it is refused");
    assert!(harness.core.retry_after(harness.now) < Duration::from_secs(5));
}

/// Prompts take 100 us a token, as the workers say.
fn honest() -> MockConfig {
    let cost = CostModel { fixed_ns: STEP.as_nanos() as f64, per_token_ns: 1e5, per_context_token_ns: 0.0 };
    MockConfig { cost, ..roomy() }
}

const TOKEN_TIME: Duration = Duration::from_micros(100);

/// A step with the prompt of a request that has 100 tokens.
fn prompt_step() -> Work {
    Work { tokens: 100, prompts: true, ..Work::default() }
}

/// The request with a deadline, or as a text that ends there.
fn until(time_up: Option<Instant>, is_text: bool, request: SequenceSpec) -> SequenceSpec {
    match is_text {
        true => SequenceSpec { stop_at: time_up, ..request },
        false => SequenceSpec { deadline: time_up, ..request },
    }
}

#[test]
fn an_idle_server_that_thinks_prompts_slower_than_they_are_learns_that_it_is_wrong() {
    for is_text in [false, true] {
        let mut harness = Harness::new(honest(), 4, 256);
        harness.token_time = TOKEN_TIME;
        let expected = harness.core.cost.expect(prompt_step());
        // The machine was busy with something else for a while.
        (0..4).for_each(|_| harness.core.cost.learn(prompt_step(), expected * 100));
        assert!(harness.core.cost.expect(prompt_step()) > expected * 5 / 2);
        for salt in 0..20 {
            let time_up = Some(harness.now + expected * 2);
            let request = of(0, salt, 100, 2);
            let id = harness.submit(until(time_up, is_text, request));
            harness.run_to_end();
            assert_eq!(harness.client(id).end, Some(Ok(Finish::Length)), "request {salt}");
        }
        assert!(harness.core.cost.expect(prompt_step()) < expected * 3 / 2);
    }
}

#[test]
fn an_idle_server_does_not_compute_in_vain_what_was_late_when_it_was_tried() {
    for is_text in [false, true] {
        let mut harness = Harness::new(honest(), 4, 16);
        harness.token_time = TOKEN_TIME;
        let mut tried = 0;
        for salt in 0..60 {
            let time_up = Some(harness.now + TOKEN_TIME * 50);
            let request = of(0, salt, 100, 2);
            let id = harness.submit(until(time_up, is_text, request));
            harness.run_to_end();
            let is_refused = matches!(harness.client(id).end, Some(Err(SequenceFailure::TooLate { .. })));
            tried += u32::from(!is_refused);
        }
        assert_eq!(tried, 60 / 17 + 1);
    }
}

#[test]
fn a_first_step_of_its_size_says_nothing_of_the_others() {
    let mut harness = Harness::new(honest(), 4, 256);
    let expected = harness.core.cost.expect(prompt_step());
    // They compile.
    harness.token_time = TOKEN_TIME * 1000;
    harness.submit(of(0, 0, 100, 1));
    harness.run_to_end();
    assert_eq!(harness.core.cost.expect(prompt_step()), expected);
    harness.submit(of(0, 1, 100, 1));
    harness.run_to_end();
    assert!(harness.core.cost.expect(prompt_step()) > expected, "they are as slow again");
}

#[test]
fn a_prompt_whose_log_probabilities_are_told_holds_nobody_up_longer_than_a_plain_one() {
    let full = STEP + TOKEN_TIME * 256;
    for target_itl in [None, Some(Duration::from_millis(10))] {
        let mut harness = Harness::with_target(honest(), 4, 256, target_itl);
        harness.token_time = TOKEN_TIME;
        // The logits of a token, and its alternatives, take ten times as long as all else of it.
        harness.target_time = TOKEN_TIME * 10;
        let stream = harness.submit(of(0, 0, 100, 1000));
        (0..20).for_each(|_| assert!(harness.step().is_some()));
        let expected = harness.core.cost.expect(prompt_step());
        let told = harness.submit(SequenceSpec { prompt_logprobs: true, top_tokens: 5, ..of(1, 1, 4000, 4) });
        let mut longest = [Duration::ZERO; 2];
        while harness.client(told).tokens.is_empty() {
            let (began, before) = (harness.now, harness.client(stream).tokens.len());
            assert!(harness.step().is_some());
            assert_eq!(harness.client(stream).tokens.len(), before + 1);
            // At first it is not known how long they take.
            let computed = harness.client(told).spec.prompt.len() as u64 - harness.core.prompt_left(told);
            let pause = &mut longest[usize::from(computed > 2000)];
            *pause = (*pause).max(harness.now - began);
        }
        let [learning, learned] = longest;
        assert!(learning < full * 9 && learned < full * 5 / 4, "{learning:?}, then {learned:?}");
        let expects = harness.core.cost.expect(prompt_step());
        assert_eq!(expects, expected, "plain prompts are as fast as they were");
        harness.run_to_end();
        harness.check_against_reference();
    }
}

#[test]
fn what_cannot_be_begun_in_time_is_refused_at_once() {
    let cost = CostModel { fixed_ns: 1e6, per_token_ns: 1e5, per_context_token_ns: 0.0 };
    let mut harness = Harness::new(MockConfig { cost, ..roomy() }, 4, 256);
    let within = |harness: &Harness, ms| Some(harness.now + Duration::from_millis(ms));
    // 4,000 tokens in the queue are 400 ms of work and more.
    for salt in 0..4 {
        harness.submit(of(0, salt, 1000, 4));
    }
    let tight = harness.submit(SequenceSpec { deadline: within(&harness, 300), ..of(0, 9, 100, 4) });
    let Some(Err(SequenceFailure::TooLate { late, retry_after })) = harness.client(tight).end.clone() else {
        panic!("{:?}", harness.client(tight).end)
    };
    let left = Duration::from_millis(300);
    assert!(matches!(late, Late::Expected { after, left: is_left } if is_left == left && after > left));
    assert_eq!(retry_after, Duration::from_secs(1));
    // There is time enough, or another tenant's turn comes sooner.
    let loose = harness.submit(SequenceSpec { deadline: within(&harness, 600), ..of(0, 9, 100, 4) });
    let other = harness.submit(SequenceSpec { deadline: within(&harness, 300), ..of(1, 9, 100, 4) });
    assert_eq!((harness.client(loose).end.clone(), harness.client(other).end.clone()), (None, None));
    // What is over already is refused, too.
    let over = harness.submit(SequenceSpec { deadline: Some(harness.now), ..of(2, 9, 10, 4) });
    assert!(matches!(harness.client(over).end, Some(Err(SequenceFailure::TooLate { .. }))));
}

#[test]
fn how_soon_to_come_back_grows_with_the_tokens_in_the_queue() {
    let cost = CostModel { fixed_ns: 1e6, per_token_ns: 1e6, per_context_token_ns: 0.0 };
    let mut harness = Harness::new(MockConfig { cost, ..roomy() }, 1, 256);
    let empty = harness.core.retry_after(harness.now);
    for salt in 0..8 {
        harness.submit(of(0, salt, 4000, 4));
    }
    let full = harness.core.retry_after(harness.now);
    assert_eq!(empty, Duration::from_secs(1));
    assert!(full >= Duration::from_secs(3), "{full:?} for 32 s of prompts, an eighth of which is 4 s");
}

#[derive(Clone, Debug)]
struct Arrivals {
    /// Tenant, prompt and new tokens of each.
    requests: Vec<(u32, u32, u32)>,
    slots: u32,
    budget: u32,
}

const LONGEST_PROMPT: u32 = 60;
const LONGEST_OUTPUT: u32 = 24;

fn arrivals() -> impl Strategy<Value = Arrivals> {
    let request = |tenant: u32| (Just(tenant), 1..=LONGEST_PROMPT, 1..=LONGEST_OUTPUT);
    let flood = prop::collection::vec(request(0), 60..120);
    let others = prop::collection::vec(prop_oneof![request(1), request(2)], 60..120);
    (flood, others, any::<prop::sample::Index>(), 1u32..8, 16u32..200).prop_map(
        |(mut requests, others, at, slots, budget)| {
            // The others come after some of the flood, all at once.
            let at = at.index(requests.len() / 2);
            requests.splice(at..at, others);
            Arrivals { requests, slots, budget: budget.max(slots) }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// The bound of the paper's theorem 4.4: of two tenants that both wait, neither gets more than two times
    /// what can be served before the account is looked at again.
    #[test]
    fn between_two_tenants_that_wait_the_difference_is_bounded(arrivals in arrivals()) {
        let mut harness = Harness::new(roomy(), arrivals.slots, arrivals.budget);
        let tenants: Vec<_> = arrivals
            .requests
            .iter()
            .zip(0u32..)
            .map(|(&(tenant, prompt, new), salt)| (harness.submit(of(tenant, salt, prompt, new)), tenant))
            .collect();
        let most = i64::from(LONGEST_PROMPT + 2 * LONGEST_OUTPUT);
        let bound = 2 * most * i64::from(arrivals.slots) + most;
        let mut steps = 0;
        while harness.step().is_some() {
            steps += 1;
            if steps % 5 != 0 {
                continue;
            }
            let waits = |tenant: u32, harness: &Harness| {
                tenants.iter().any(|&(id, whose)| whose == tenant && harness.core.waits(id))
            };
            let sums = served(&mut harness, &tenants);
            for (one, other) in [(0, 1), (0, 2), (1, 2)] {
                if waits(one, &harness) && waits(other, &harness) {
                    let sum = |tenant| sums.get(&tenant).copied().unwrap_or(0);
                    let difference: i64 = sum(one) - sum(other);
                    prop_assert!(difference.abs() <= bound, "{sums:?}, bound {bound}");
                }
            }
        }
        prop_assert!(harness.core.is_empty());
    }
}
