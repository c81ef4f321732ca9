//! The core under random work, cancels, errors and crashes, in pools so small that everything runs out.

use std::sync::Arc;

use penstock_proto::CostModel;
use penstock_proto::ids::{SequenceId, TokenId};
use penstock_proto::tables::Window;
use proptest::prelude::*;

use super::harness::{Harness, STEP, adapter, every_forcing, spec, tiny, with_adapters};
use super::masks::lazily_forcing;
use crate::constraint::Grammar;
use crate::scheduler::cache_names::Namespace;
use crate::scheduler::core::Counters;
use crate::scheduler::policy::Drafting;
use crate::scheduler::submission::{Priority, Release, Sampling, SequenceSpec, Watermark};
use crate::tenant::Tenant;
use crate::worker::mock::{MockConfig, MockModel};

#[derive(Clone, Debug)]
enum Op {
    /// Perhaps with a time to stop at, in steps from now.
    Submit(Box<SequenceSpec>, Option<u32>),
    Release(prop::sample::Index, Release),
    Steps(u8),
    /// Sends plans and answers none, so that what comes next meets two in flight.
    Plan,
    RowError(prop::sample::Index),
    /// Masks come so many steps late from now on.
    DelayMasks(u32),
    /// A row of the next plan computes NaN.
    Overflow(prop::sample::Index),
    Crash,
}

const START: [TokenId; 2] = [TokenId(1), TokenId(3)];

/// Prompts are few and alike, so that prefixes are shared in all ways.
fn prompts() -> impl Strategy<Value = Vec<TokenId>> {
    (0u32..3, 1u32..70).prop_map(|(family, len)| of_family(family, len).into_iter().map(TokenId).collect())
}

pub(super) fn of_family(family: u32, len: u32) -> Vec<u32> {
    let token = |at: u32| match family {
        0 => 7,
        1 => at % 4,
        _ => (at * 5) % 50,
    };
    (0..len).map(token).collect()
}

/// Of an encoder-decoder, if it has an `encoder`: then its prompt is what the decoder begins with.
fn specs(encoder: bool) -> impl Strategy<Value = SequenceSpec> {
    let sampling = (0u64..3, any::<bool>(), any::<bool>(), any::<bool>());
    let options =
        (any::<bool>(), prop::bool::weighted(0.15), 0u32..3, 0u64..2, 0u32..40, any::<bool>(), 0u32..3);
    let grammar = prop::option::weighted(
        0.3,
        (1u32..9, 1u32..40, prop::option::of(Just(2u32)), 0u32..6, any::<bool>()),
    );
    let priority = prop_oneof![3 => Just(0), 1 => -1..3];
    let number = prop::option::weighted(0.3, 1u32..3);
    (prompts(), 1u32..96, sampling, options, grammar, priority, number).prop_map(
        move |(prompt, new, sampling, options, grammar, priority, number)| {
            let (seed, samples, penalty, bias) = sampling;
            let (ignore_eos, prompt_logprobs, top_tokens, cache_namespace, least, watermark, tenant) =
                options;
            let (encoder, prompt) = match encoder {
                true => (prompt, START.to_vec()),
                false => (Vec::new(), prompt),
            };
            let before = encoder.len().next_multiple_of(4) + prompt.len();
            let max_new_tokens = new.min(96 - before as u32);
            SequenceSpec {
                prompt_logprobs: prompt_logprobs && encoder.is_empty(),
                encoder,
                prompt,
                sampling: Sampling {
                    temperature: if samples { 0.7 } else { 0.0 },
                    seed,
                    repetition_penalty: if penalty { 1.3 } else { 1.0 },
                    logit_bias: if bias { vec![(TokenId(5), 1.5), (TokenId(6), -2.0)] } else { Vec::new() },
                    min_new_tokens: least.saturating_sub(20).min(max_new_tokens),
                    watermark: watermark.then_some(Watermark { greens: 25, delta: 2.0 }),
                    ..Sampling::default()
                },
                max_new_tokens,
                ignore_eos,
                stop_token_ids: if bias { vec![TokenId(11), TokenId(12)] } else { Vec::new() },
                top_tokens,
                constraint: grammar.and_then(|(modulus, length, end, forced, is_lazy)| match is_lazy {
                    true => lazily_forcing(modulus, forced.min(4), length),
                    false => every_forcing(modulus, length, end, forced),
                }),
                adapter: number.map(adapter),
                cache_namespace: Namespace(cache_namespace.into()),
                tenant: Tenant::Key(tenant),
                priority: Priority(priority),
                deadline: None,
                stop_at: None,
                trace: None,
            }
        },
    )
}

fn ops(encoder: bool) -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        6 => (specs(encoder), prop::option::weighted(0.2, 0u32..60))
            .prop_map(|(spec, steps)| Op::Submit(Box::new(spec), steps)),
        2 => any::<prop::sample::Index>().prop_map(|at| Op::Release(at, Release::Cancelled)),
        1 => any::<prop::sample::Index>().prop_map(|at| Op::Release(at, Release::Stopped)),
        6 => (1u8..20).prop_map(Op::Steps),
        2 => Just(Op::Plan),
        1 => any::<prop::sample::Index>().prop_map(Op::RowError),
        1 => any::<prop::sample::Index>().prop_map(Op::Overflow),
        1 => Just(Op::Crash),
        1 => prop_oneof![Just(0u32), 0u32..5].prop_map(Op::DelayMasks),
    ];
    prop::collection::vec(op, 1..60)
}

fn drafting() -> impl Strategy<Value = Drafting> {
    prop_oneof![
        3 => (1u32..9).prop_map(Drafting::Always),
        1 => (1u32..9).prop_map(Drafting::Adaptive),
    ]
}

/// Where a token costs more than a step, choices wait for copies of each other's blocks.
fn token_cost() -> impl Strategy<Value = f64> {
    prop_oneof![1 => Just(1e3), 1 => Just(1e6)]
}

/// An encoder that would read ever the same token reads what its decoder will say, mostly, in its place: drafts from there are right.
fn foretold(op: Op, config: &MockConfig) -> Op {
    let Op::Submit(mut spec, stop_at) = op else { return op };
    if spec.encoder[0] == TokenId(7) && spec.constraint.is_none() {
        let said = MockModel::reference(config, &SequenceSpec { max_new_tokens: 69, ..(*spec).clone() });
        let said = said.into_iter().map(TokenId).chain(spec.encoder.iter().copied());
        spec.encoder = said.take(spec.encoder.len()).collect();
    }
    Op::Submit(spec, stop_at)
}

/// Longer, and most of it is free text that calls stand in.
fn with_calls(op: Op, grammars: &[Option<Arc<dyn Grammar>>]) -> Op {
    let Op::Submit(spec, stop_at) = op else { return op };
    let which = (spec.prompt.len() + spec.max_new_tokens as usize) % grammars.len();
    let max_new_tokens = 2 * spec.max_new_tokens;
    Op::Submit(
        Box::new(SequenceSpec { constraint: grammars[which].clone(), max_new_tokens, ..*spec }),
        stop_at,
    )
}

fn run(ops: Vec<Op>, config: MockConfig, slots: u32, budget: u32, drafting: Drafting) {
    let pages = config.pages;
    let asks = |op: &Op| matches!(op, Op::Submit(spec, _) if spec.adapter.is_some());
    let config = if ops.iter().any(asks) { with_adapters(config) } else { config };
    let mut harness = Harness::new(config, slots, budget).speculating(drafting);
    let mut ids: Vec<SequenceId> = Vec::new();
    for op in ops {
        match op {
            Op::Submit(spec, steps) => {
                let stop_at = steps.map(|steps| harness.now + STEP * steps);
                ids.push(harness.submit(SequenceSpec { stop_at, ..*spec }));
            }
            Op::Release(at, why) => {
                if !ids.is_empty() {
                    harness.release(*at.get(&ids), why);
                }
            }
            Op::Steps(count) => {
                for _ in 0..count {
                    step_and_watch_the_first(&mut harness);
                }
            }
            Op::Plan => drop(harness.plan()),
            Op::RowError(at) => {
                harness.step_with_errors(|rows| vec![at.index(rows as usize) as u32]);
            }
            Op::Overflow(at) => harness.overflows = Some(at.index(slots as usize)),
            Op::DelayMasks(steps) => harness.mask_delay = steps,
            Op::Crash => harness.crash(),
        }
        harness.check();
    }
    for _ in 0..50_000 {
        if !step_and_watch_the_first(&mut harness) {
            break;
        }
    }
    assert!(harness.core.is_empty(), "sequences live and nothing is planned");
    assert_eq!(harness.core.pool.available(), pages, "every page came back");
    harness.check_against_reference();
    forgets_what_is_not_a_number(&mut harness);
    // Doubling the room that is asked for bounds the preemptions of each sequence, but for those by sequences of a higher
    // priority that came later.
    let priorities = harness.clients.values().map(|client| client.spec.priority);
    let (lowest, highest) = (priorities.clone().max(), priorities.min());
    let later = if lowest == highest { 0 } else { ids.len() as u64 };
    let most = ids.len() as u64 * (8 + later);
    let Counters { preemptions, priority_preemptions, .. } = harness.core.counters;
    assert!(preemptions - priority_preemptions <= most, "thrashes: {preemptions}");
    assert!(priority_preemptions <= ids.len() as u64 * later, "thrashes: {priority_preemptions}");
}

/// Nobody is served NaN of others twice: who meets it makes it forgotten.
fn forgets_what_is_not_a_number(harness: &mut Harness) {
    harness.overflows = None;
    for (family, cache_namespace) in [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)] {
        let mut failed = 0;
        loop {
            let spec = SequenceSpec {
                cache_namespace: Namespace(cache_namespace),
                ..spec(&of_family(family, 69), 1)
            };
            // What an encoder-decoder reads begins with what its encoder does.
            let spec = match harness.config.decoder_start_ids.is_empty() {
                true => spec,
                false => SequenceSpec { encoder: spec.prompt, prompt: START.to_vec(), ..spec },
            };
            let id = harness.submit(spec);
            harness.run_to_end();
            match &harness.client(id).end {
                Some(Ok(_)) => break,
                _ => failed += 1,
            }
            assert!(failed < 2, "what was not a number is found again and again");
        }
    }
}

/// Steps once. While anybody lives something is planned, and the oldest of the highest priority is never preempted.
fn step_and_watch_the_first(harness: &mut Harness) -> bool {
    let first = harness.core.first();
    let before = first.map(|id| harness.core.preemptions_of(id));
    // Who is suspected takes what it needs, and may have passed in the same step.
    let is_suspected = !harness.core.quarantined.is_empty();
    let stepped = harness.step().is_some();
    assert!(stepped || harness.core.is_empty(), "sequences live and nothing is planned");
    if let (Some(id), Some(before)) = (first, before)
        && !is_suspected
        && harness.core.quarantined.is_empty()
    {
        assert!(harness.core.preemptions_of(id).is_none_or(|after| before == Some(after)), "{id:?}");
    }
    stepped
}

/// `make test-all` asks for more.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(700)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn every_client_gets_what_it_would_have_got_alone(
        ops in ops(false),
        stages in prop_oneof![3 => Just(1u32), 1 => Just(2), 1 => Just(4)],
        pages in 24u32..60,
        slots in 1u32..7,
        budget in 1u32..80,
        eos_one_in in prop_oneof![Just(0u64), Just(6), Just(30)],
        per_token_ns in token_cost(),
    ) {
        // Every running sequence must be able to decode in one step.
        let cost = CostModel { per_token_ns, ..tiny().cost };
        run(ops, MockConfig { pages, eos_one_in, stages, cost, ..tiny() }, slots.min(budget), budget, Drafting::Off);
    }

    #[test]
    fn every_client_gets_with_drafts_what_it_would_have_got_without(
        ops in ops(false),
        stages in prop_oneof![4 => Just(1u32), 1 => Just(2), 1 => Just(4)],
        pages in 24u32..60,
        slots in 1u32..7,
        budget in 1u32..80,
        eos_one_in in prop_oneof![Just(0u64), Just(6), Just(30)],
        surprise_one_in in prop_oneof![Just(0u64), Just(2), Just(10), Just(1000)],
        wrong_draft_one_in in prop_oneof![2 => Just(0u64), 1 => Just(1), 2 => Just(3), 1 => Just(50)],
        (draft_trees, followers, per_token_ns) in (prop::bool::weighted(0.7), 1u64..4, token_cost()),
        drafting in drafting(),
    ) {
        let config = MockConfig { pages, eos_one_in, surprise_one_in, stages, wrong_draft_one_in, ..tiny() };
        let cost = CostModel { per_token_ns, ..tiny().cost };
        let config = MockConfig { draft_trees, followers, cost, ..config };
        run(ops, config, slots.min(budget), budget, drafting);
    }

    #[test]
    fn every_client_gets_free_text_and_calls_as_it_would_have_got_them_alone(
        ops in ops(false),
        calls in prop::collection::vec((0u32..9, 0u32..5, 20u32..190), 1..4),
        stages in prop_oneof![4 => Just(1u32), 1 => Just(2)],
        pages in 48u32..100,
        slots in 1u32..5,
        budget in 10u32..80,
        eos_one_in in prop_oneof![2 => Just(0u64), 1 => Just(30)],
        surprise_one_in in prop_oneof![1 => Just(6u64), 2 => Just(20), 1 => Just(1000)],
        (draft_trees, followers) in (prop::bool::weighted(0.3), 1u64..3),
        drafting in drafting(),
    ) {
        let grammars: Vec<_> =
            calls.into_iter().map(|(marker, forced, length)| lazily_forcing(marker, forced, length)).collect();
        let config = MockConfig { pages, max_positions: 192, eos_one_in, surprise_one_in, stages, ..tiny() };
        let config = MockConfig { draft_trees, followers, ..config };
        let ops = ops.into_iter().map(|op| with_calls(op, &grammars)).collect();
        run(ops, config, slots, budget, drafting);
    }

    /// As when a large step needs more memory than there is: no request is at fault.
    #[test]
    fn workers_that_only_many_rows_kill_serve_everybody_in_smaller_steps(
        specs in prop::collection::vec(specs(false), 2..12),
        most_rows in 1u32..6,
        slots in 2u32..9,
        budget in 9u32..80,
    ) {
        let mut harness = Harness::new(with_adapters(MockConfig { pages: 40, ..tiny() }), slots, budget);
        harness.most_rows = most_rows;
        let ids: Vec<_> = specs.into_iter().map(|spec| harness.submit(spec)).collect();
        let (mut since_token, mut seen) = (0, (0, 0));
        while harness.step().is_some() {
            let now = (harness.crashes, harness.core.counters.generated_tokens);
            since_token = if now.1 > seen.1 { 0 } else { since_token + now.0 - seen.0 };
            seen = now;
            // A long prompt makes progress without a token.
            prop_assert!(since_token <= 5, "crash after crash without a token");
        }
        for id in ids {
            prop_assert!(matches!(harness.client(id).end, Some(Ok(_))), "{:?}", harness.client(id).end);
        }
        harness.check_against_reference();
        // Two before each halving, and two for each of the ever rarer times that a step is tried which is too large.
        prop_assert!(harness.crashes <= 20, "{} crashes", harness.crashes);
    }

    #[test]
    fn every_client_of_a_model_with_windows_gets_what_it_would_have_got_alone(
        ops in ops(false),
        stages in prop_oneof![3 => Just(1u32), 1 => Just(2)],
        (full_tables, tables) in
            prop_oneof![Just((1u32, vec![1u32])), Just((0, vec![1])), Just((1, vec![3])), Just((2, vec![1, 2])), Just((0, vec![1, 1, 2]))],
        reaches in prop::collection::vec((2u32..40, any::<bool>()), 3),
        scarce in 0u32..40,
        slots in 1u32..7,
        budget in 1u32..80,
        eos_one_in in prop_oneof![Just(0u64), Just(6), Just(30)],
        (surprise_one_in, draft_trees, followers, per_token_ns) in
            (prop_oneof![Just(0u64), Just(10), Just(100)], any::<bool>(), 1u64..4, token_cost()),
        drafting in prop_oneof![Just(Drafting::Off), drafting()],
    ) {
        let budget = budget.max(slots);
        let window = |(tables, (reach, chunked))| Window { tables, reach, chunked: chunked && full_tables > 0 };
        let windows = tables.into_iter().zip(reaches).map(window).collect();
        let mut config = MockConfig { full_tables, windows, eos_one_in, surprise_one_in, stages, ..tiny() };
        let cost = CostModel { per_token_ns, ..tiny().cost };
        config = MockConfig { draft_trees, followers, cost, ..config };
        // The longest sequence fits, and little more.
        let tables = config.tables();
        let fits = |pages: &u32| tables.longest(*pages, budget) >= config.max_positions;
        config.pages = (1..).find(fits).expect("some number is enough") + scarce;
        run(ops, config, slots, budget, drafting);
    }

    #[test]
    fn every_client_of_a_model_with_recurrent_layers_gets_what_it_would_have_got_alone(
        ops in ops(false),
        stages in prop_oneof![3 => Just(1u32), 1 => Just(2)],
        (full_tables, tables) in
            prop_oneof![4 => Just((1u32, vec![])), 3 => Just((0, vec![])), 1 => Just((1, vec![1])), 1 => Just((0, vec![1])), 1 => Just((2, vec![1, 1]))],
        snapshots in prop_oneof![1 => Just(0u32), 1 => Just(1), 4 => 2u32..12, 2 => Just(100)],
        reaches in prop::collection::vec(2u32..40, 2),
        scarce in 0u32..40,
        slots in 1u32..7,
        budget in 1u32..80,
        eos_one_in in prop_oneof![Just(0u64), Just(6), Just(30)],
        surprise_one_in in prop_oneof![Just(0u64), Just(10), Just(100)],
        (draft_states, wrong_draft_one_in, drafting) in (
            prop_oneof![1 => Just(0u32), 2 => 1u32..8, 2 => Just(100)],
            prop_oneof![2 => Just(0u64), 1 => Just(1), 2 => Just(3)],
            prop_oneof![1 => Just(Drafting::Off), 2 => drafting()],
        ),
    ) {
        let budget = budget.max(slots);
        let recurrent = MockConfig { state_bytes: 8, snapshots, eos_one_in, surprise_one_in, stages, ..tiny() };
        let recurrent = MockConfig { draft_states, wrong_draft_one_in, ..recurrent };
        let windows = tables.into_iter().zip(reaches);
        let windows = windows.map(|(tables, reach)| Window { tables, reach, chunked: false }).collect();
        let mut config = MockConfig { full_tables, windows, ..recurrent };
        let tables = config.tables();
        let fits = |pages: &u32| tables.longest(*pages, budget) >= config.max_positions;
        config.pages = (0..).find(fits).expect("some number is enough") + scarce;
        run(ops, config, slots, budget, drafting);
    }

    #[test]
    fn every_client_of_an_encoder_decoder_gets_what_it_would_have_got_alone(
        ops in ops(true),
        pages in 24u32..60,
        slots in 1u32..7,
        over in 0u32..40,
        eos_one_in in prop_oneof![Just(0u64), Just(6), Just(30)],
        surprise_one_in in prop_oneof![Just(0u64), Just(2), Just(10), Just(1000)],
        (draft_trees, followers, per_token_ns) in (any::<bool>(), 1u64..4, token_cost()),
        drafting in prop_oneof![1 => Just(Drafting::Off), 3 => drafting()],
    ) {
        // The longest input, padded, and all decodes fit into one step.
        let budget = 72 + slots + over;
        let decoder_start_ids = START.map(|token| token.0).to_vec();
        let cost = CostModel { per_token_ns, ..tiny().cost };
        let config = MockConfig { pages, eos_one_in, surprise_one_in, decoder_start_ids, ..tiny() };
        let config = MockConfig { draft_trees, followers, cost, ..config };
        let ops = ops.into_iter().map(|op| foretold(op, &config)).collect();
        run(ops, config, slots, budget, drafting);
    }
}
