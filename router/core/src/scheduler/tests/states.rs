//! Models with recurrent layers: where copies of states are kept, who begins with them, and who waits for one.

use bytes::Bytes;
use penstock_proto::ids::{SequenceId, TokenId};
use penstock_proto::tables::Table;
use penstock_proto::{RowFlag, Starts, StepPlan};

use super::harness::{Harness, check_refused, spec, tiny, u32s};
use crate::scheduler::cache_names::Namespace;
use crate::scheduler::policy::Drafting;
use crate::scheduler::policy::SNAPSHOT_DISTANCES;
use crate::scheduler::submission::{Finish, Release, SequenceEvent, SequenceSpec};
use crate::scheduler::{StatePlaces, States};
use crate::tenant::Tenant;
use crate::worker::mock::{MockConfig, MockModel};

const BLOCK: u32 = 16;

fn hybrid() -> MockConfig {
    MockConfig {
        vocab_size: 1000,
        pages: 2048,
        block_size: BLOCK,
        max_positions: 8192,
        state_bytes: 1 << 20,
        snapshots: 64,
        ..MockConfig::default()
    }
}

/// No layer keeps keys and values.
fn recurrent() -> MockConfig {
    MockConfig { full_tables: 0, pages: 0, ..hybrid() }
}

/// With the distances of a server.
fn harness(config: MockConfig, budget: u32) -> Harness {
    let mut harness = Harness::new(config, 16, budget);
    harness.core.rules.snapshots = SNAPSHOT_DISTANCES;
    harness
}

fn prompt(len: u32, salt: u32) -> Vec<u32> {
    (0..len).map(|i| (i * 7 + salt * 13 + 3) % 1000).collect()
}

fn joined(parts: &[Vec<u32>]) -> Vec<u32> {
    parts.concat()
}

fn computed(harness: &Harness) -> u64 {
    harness.core.counters.prompt_tokens
}

/// Runs one prompt to its end. Returns how much of it was computed.
fn run(harness: &mut Harness, spec: SequenceSpec) -> (SequenceId, u64) {
    let before = computed(harness);
    let id = harness.submit(spec);
    harness.run_to_end();
    (id, computed(harness) - before)
}

fn saved_along(harness: &Harness, tokens: &[u32]) -> Vec<u32> {
    let tokens: Vec<TokenId> = tokens.iter().copied().map(TokenId).collect();
    harness.core.pool.snapshots_along(Namespace::default(), &tokens).into_iter().map(|(at, _)| at).collect()
}

#[test]
fn the_same_prompt_again_begins_with_the_state_at_its_last_whole_block() {
    for config in [hybrid(), recurrent()] {
        let mut harness = harness(config, 256);
        assert_eq!(run(&mut harness, spec(&prompt(1000, 0), 5)).1, 1000);
        assert_eq!(saved_along(&harness, &prompt(1000, 0)), [512, 992]);
        let (id, again) = run(&mut harness, spec(&prompt(1000, 0), 5));
        assert_eq!((again, harness.client(id).admitted), (8, Some(992)));
        // A token is always left to feed.
        let (_, whole) = run(&mut harness, spec(&prompt(992, 0), 5));
        assert_eq!(whole, 992 - 512);
        assert_eq!(run(&mut harness, spec(&prompt(992, 0), 5)).1, 16);
        harness.check_against_reference();
    }
}

#[test]
fn identical_prompts_that_arrive_together_are_computed_once() {
    for config in [hybrid(), recurrent()] {
        let mut harness = harness(config, 256);
        for seed in 0..8 {
            let sampling = crate::scheduler::Sampling { temperature: 1.0, seed, ..Default::default() };
            harness.submit(SequenceSpec { sampling, ..spec(&prompt(1000, 1), 10) });
        }
        harness.run_to_end();
        assert_eq!(computed(&harness), 1000 + 7 * 8);
        harness.check_against_reference();
    }
}

#[test]
fn prompts_that_begin_alike_and_arrive_together_compute_what_they_share_once() {
    for config in [hybrid(), recurrent()] {
        let mut harness = harness(config, 256);
        for salt in 0..6 {
            harness.submit(spec(&joined(&[prompt(700, 9), prompt(100, salt)]), 10));
        }
        harness.run_to_end();
        // 43 whole blocks.
        assert_eq!(computed(&harness), 800 + 5 * (800 - 688));
        harness.check_against_reference();
    }
}

#[test]
fn where_prompts_part_the_second_one_keeps_a_copy_for_the_third() {
    for config in [hybrid(), recurrent()] {
        let mut harness = harness(config, 256);
        let of = |salt| spec(&joined(&[prompt(700, 9), prompt(100, salt)]), 10);
        assert_eq!(run(&mut harness, of(0)).1, 800);
        assert_eq!(run(&mut harness, of(1)).1, 800 - 512);
        assert_eq!(harness.core.counters.recomputed_tokens, 688 - 512);
        assert_eq!(run(&mut harness, of(2)).1, 800 - 688);
        assert_eq!(run(&mut harness, of(0)).1, 16);
        harness.check_against_reference();
    }
}

#[test]
fn a_prompt_that_parts_from_one_that_runs_comes_back_to_its_blocks() {
    let mut harness = harness(hybrid(), 256);
    let of = |salt| joined(&[prompt(700, 9), prompt(100, salt)]);
    harness.submit(spec(&of(0), 2000));
    for _ in 0..8 {
        harness.step();
    }
    let second = harness.submit(spec(&of(1), 2000));
    for _ in 0..8 {
        harness.step();
    }
    let tables: Vec<_> = harness.core.sequences.iter().map(|(_, sequence)| &sequence.table.blocks).collect();
    assert_eq!(tables[0][..43], tables[1][..43], "what they share is there once");
    assert_eq!(harness.client(second).admitted, Some(512));
    // What follows is known to others, though the first one still runs.
    harness.core.check();
    let before = computed(&harness);
    let third = harness.submit(spec(&of(1), 10));
    while harness.client(third).end.is_none() {
        harness.step();
    }
    assert_eq!(computed(&harness) - before, 16);
    harness.run_to_end();
    harness.check_against_reference();
}

#[test]
fn the_next_turn_of_a_chat_computes_little_of_the_last_answer() {
    for config in [hybrid(), recurrent()] {
        let mut harness = harness(config, 256);
        let mut chat = prompt(300, 2);
        for turn in 0..5 {
            let (id, fed) = run(&mut harness, spec(&chat, 200));
            if turn > 0 {
                assert!(fed <= 64 + 40, "turn {turn} computed {fed} tokens again");
            }
            chat.extend(harness.client(id).ids());
            chat.extend(prompt(40, turn));
            // For each turn the end of its prompt and one near the end of its answer; in passing, those at 512 and 1024.
            let (_, used) = harness.core.pool.snapshot_places();
            assert!(used <= 2 * (turn + 1) + 2, "{used} places for {} turns", turn + 1);
        }
        harness.check_against_reference();
    }
}

#[test]
fn an_answer_that_stops_leaves_the_state_of_its_own_tokens_only() {
    let mut harness = harness(hybrid(), 256);
    let mut saved = 0;
    for salt in 0..40 {
        let id = harness.submit(spec(&prompt(40, salt), 500));
        // A plan or two ahead of what is known, at any place.
        while harness.client(id).tokens.len() < 60 + salt as usize / 2 {
            harness.step();
        }
        harness.plan();
        harness.release(id, Release::Stopped);
        let text = joined(&[prompt(40, salt), harness.client(id).ids()]);
        saved += saved_along(&harness, &text).len();
        harness.step();
        harness.step();
        let follow = joined(&[text, prompt(10, salt)]);
        let (_, fed) = run(&mut harness, spec(&follow, 5));
        assert!(fed < 110, "{fed}");
    }
    assert!(saved > 60, "{saved} copies: the end of each prompt, and mostly one of its answer");
    harness.check_against_reference();
}

#[test]
fn without_places_everything_is_computed_again() {
    for config in [hybrid(), recurrent()] {
        let mut harness = harness(MockConfig { snapshots: 0, ..config }, 256);
        for _ in 0..3 {
            harness.submit(spec(&prompt(300, 0), 100));
        }
        harness.run_to_end();
        assert_eq!(run(&mut harness, spec(&prompt(300, 0), 5)).1, 300);
        assert_eq!(computed(&harness), 4 * 300);
        assert_eq!((harness.core.counters.state_saves, harness.core.counters.prefix_hit_tokens), (0, 0));
        harness.check_against_reference();
    }
}

#[test]
fn long_prompts_do_not_take_the_places_where_others_end() {
    let mut harness = harness(MockConfig { snapshots: 4, ..hybrid() }, 1024);
    for salt in 0..3 {
        run(&mut harness, spec(&prompt(100, salt), 5));
    }
    // It passes 512, 1024, 1536, 2048, and ends.
    run(&mut harness, spec(&prompt(2500, 7), 5));
    let ends: Vec<_> = (0..3).map(|salt| saved_along(&harness, &prompt(100, salt)).len()).collect();
    assert_eq!(ends, [1; 3]);
    assert_eq!(saved_along(&harness, &prompt(2500, 7)), [2496]);
    harness.check_against_reference();
}

#[test]
fn one_place_is_enough_for_any_work() {
    for config in [hybrid(), recurrent()] {
        let mut harness = harness(MockConfig { snapshots: 1, ..config }, 128);
        for salt in 0..12 {
            harness.submit(spec(&joined(&[prompt(200, 0), prompt(salt * 9, salt)]), 100 + salt));
        }
        harness.run_to_end();
        harness.check_against_reference();
        assert!(harness.core.counters.prefix_hit_tokens > 0);
    }
}

#[test]
fn after_a_crash_no_state_is_left_and_texts_go_on() {
    for config in [hybrid(), recurrent()] {
        let mut harness = harness(config, 256);
        for salt in 0..6 {
            harness.submit(spec(&prompt(300 + salt, salt / 2), 200));
        }
        for _ in 0..120 {
            harness.step();
        }
        harness.plan();
        let hits = harness.core.counters.prefix_hit_tokens;
        harness.crash();
        assert_eq!(harness.core.pool.snapshot_places(), (64, 0));
        harness.run_to_end();
        assert!(harness.core.counters.prefix_hit_tokens >= hits);
        harness.check_against_reference();
    }
}

#[test]
fn what_was_computed_from_nan_begins_nobody_twice() {
    for config in [hybrid(), recurrent()] {
        let mut harness = harness(config, 64);
        harness.overflows = Some(0);
        // It saves states behind what overflowed, and leaves before it samples.
        let id = harness.submit(spec(&prompt(600, 0), 5));
        for _ in 0..8 {
            harness.step();
        }
        harness.release(id, Release::Cancelled);
        while harness.step().is_some() {}
        assert_eq!(saved_along(&harness, &prompt(600, 0)), [512]);
        let (second, _) = run(&mut harness, spec(&prompt(600, 0), 5));
        assert!(matches!(harness.client(second).end, Some(Err(_))), "it begins with that state");
        let (third, fed) = run(&mut harness, spec(&prompt(600, 0), 5));
        assert_eq!((harness.client(third).end.clone(), fed), (Some(Ok(Finish::Length)), 600));
        harness.check_against_reference();
    }
}

#[test]
fn a_sample_vouches_for_no_state_behind_it() {
    let mut harness = harness(hybrid(), 64);
    let id = harness.submit(spec(&prompt(40, 0), 100));
    let scheduled = |harness: &Harness| {
        harness.core.sequences.iter().map(|(_, sequence)| sequence.num_scheduled_tokens).max()
    };
    // The row that saves its state behind 64 tokens computes NaN; that before it samples well.
    while harness.overflows.is_none() {
        harness.step();
        harness.overflows = (scheduled(&harness) == Some(63)).then_some(0);
    }
    harness.run_to_end();
    assert!(matches!(harness.client(id).end, Some(Err(_))));
    let text = joined(&[prompt(40, 0), harness.client(id).ids()]);
    assert_eq!((text.len(), saved_along(&harness, &text)), (64, vec![32]));
    let (next, fed) = run(&mut harness, spec(&joined(&[text, prompt(10, 1)]), 5));
    assert_eq!((harness.client(next).end.clone(), fed), (Some(Ok(Finish::Length)), 74 - 32));
    harness.check_against_reference();
}

#[test]
fn a_row_that_was_put_off_begins_with_what_is_left() {
    let mut harness = harness(MockConfig { snapshots: 2, ..hybrid() }, 1024);
    run(&mut harness, spec(&prompt(600, 0), 1));
    assert_eq!(saved_along(&harness, &prompt(600, 0)), [512, 592]);
    let id = harness.submit(spec(&prompt(600, 0), 5));
    // As when it leaves the queue and finds no blocks, and then others take the place of what it was to begin with.
    let core = &mut harness.core;
    let key = core.by_id[&id];
    core.assign_slot(key);
    let sequence = &mut core.sequences[key];
    let tokens = sequence.tokens.clone();
    assert!(core.pool.extend_from_cache(Namespace::default(), &tokens, 37, &mut sequence.table).changed);
    (sequence.num_scheduled_tokens, sequence.registered) = (592, 37);
    sequence.was_admitted = true;
    sequence.tell(SequenceEvent::Admitted { cached_tokens: 592 });
    let begun = core.pool.begin(&sequence.table, 32).expect("it is younger now");
    let other = core.pool.reserve(&Table::default(), 1, SequenceId(99)).expect("the older one goes");
    assert_ne!(begun.place, other.place);
    core.pool.cancel(other);
    core.pool.plan_finished();
    let before = computed(&harness);
    harness.run_to_end();
    assert_eq!(computed(&harness) - before, 600 - 512);
    harness.check_against_reference();
}

/// Its text repeats itself, but for one token in so many.
fn repeating(config: MockConfig, surprise_one_in: u64) -> MockConfig {
    MockConfig { surprise_one_in, vocab_size: 50, draft_states: 64, ..config }
}

fn short(len: u32, salt: u32) -> Vec<u32> {
    (0..len).map(|i| (i * 7 + salt * 13 + 3) % 50).collect()
}

#[test]
fn drafts_go_past_the_end_of_a_block_that_has_no_pages() {
    let mut steps = [hybrid(), recurrent()].map(|config| {
        let mut harness = harness(repeating(config, 1_000_000), 256).speculating(Drafting::Always(8));
        harness.submit(spec(&short(40, 0), 300));
        let steps = harness.count_steps();
        harness.check_against_reference();
        steps
    });
    steps.sort_unstable();
    assert_eq!(steps[0], steps[1], "with pages and without");
}

#[test]
fn without_places_for_states_in_front_of_drafts_there_are_none() {
    let config = MockConfig { draft_states: 0, ..repeating(hybrid(), 1_000_000) };
    let mut harness = harness(config, 256).speculating(Drafting::Always(4));
    harness.submit(spec(&short(40, 0), 300));
    harness.run_to_end();
    assert_eq!(harness.core.counters.drafts, 0);
    harness.check_against_reference();
}

#[test]
fn drafts_of_a_model_with_a_state_save_steps_and_change_nothing() {
    for config in [hybrid(), recurrent()] {
        for (drafting, surprise_one_in) in
            [(Drafting::Always(4), 20), (Drafting::Adaptive(4), 1_000_000), (Drafting::Always(7), 4)]
        {
            let mut harness = harness(repeating(config.clone(), surprise_one_in), 256).speculating(drafting);
            for salt in 0..3 {
                let sampling = crate::scheduler::Sampling {
                    temperature: 0.8,
                    seed: salt,
                    repetition_penalty: 1.1,
                    ..Default::default()
                };
                harness.submit(SequenceSpec { sampling, ..spec(&short(40, 0), 400) });
            }
            let steps = harness.count_steps();
            let counters = harness.core.counters;
            assert!(counters.accepted_drafts > 200, "{drafting:?}: {counters:?}");
            assert!(steps < 400, "{steps} steps for 400 tokens with {drafting:?}");
            assert!(counters.state_saves > 3, "{counters:?}");
            harness.check_against_reference();
        }
    }
}

#[test]
fn states_in_front_of_drafts_are_never_more_than_their_places() {
    for (draft_states, stages) in [(1, 1), (5, 1), (5, 2), (3, 3)] {
        let config = MockConfig { draft_states, stages, ..repeating(hybrid(), 10) };
        let mut harness = harness(config, 256).speculating(Drafting::Always(4));
        for salt in 0..8 {
            harness.submit(spec(&short(40, salt), 200 + salt));
        }
        let mut most = 0;
        while harness.plan() > 0 {
            let plan = harness.plans.front().expect("there is one");
            most = most.max(u32s(&plan.drafts).iter().sum());
            harness.step();
        }
        assert_eq!(most, draft_states, "of {stages} stages");
        assert_eq!(harness.core.draft_states, 0, "all are given back");
        assert!(harness.core.counters.accepted_drafts > 50);
        harness.check_against_reference();
    }
}

#[test]
fn the_next_turn_computes_little_of_an_answer_that_had_drafts() {
    for (drafting, surprise_one_in) in [(Drafting::Always(6), 5), (Drafting::Adaptive(6), 1_000_000)] {
        for config in [hybrid(), recurrent()] {
            let mut harness = harness(repeating(config, surprise_one_in), 256).speculating(drafting);
            let mut chat = short(300, 2);
            let mut again = Vec::new();
            for turn in 0..6 {
                let (id, fed) = run(&mut harness, spec(&chat, 200));
                again.push(fed);
                chat.extend(harness.client(id).ids());
                chat.extend(short(40, turn));
            }
            // A place may be passed while nobody knows where the row is: then the next block has the copy. Where there are drafts in
            // every row and each fifth is wrong, all blocks of an answer may be passed.
            let much = again[1..].iter().filter(|&&fed| fed > 64 + 16 + 48).count();
            let may = usize::from(drafting == Drafting::Always(6));
            assert!(much <= may, "turns computed {again:?} tokens again with {drafting:?}");
            assert!(harness.core.counters.accepted_drafts > 100);
            harness.check_against_reference();
        }
    }
}

#[test]
fn a_copy_behind_a_draft_that_was_wrong_is_nobodys() {
    let mut harness = harness(repeating(hybrid(), 3), 256).speculating(Drafting::Always(7));
    let (mut behind, mut dropped) = (0, 0);
    harness.submit(spec(&short(40, 0), 3000));
    while harness.plan() > 0 {
        let plan = harness.plans.front().expect("there is one").clone();
        for save in u32s(&plan.saves).chunks(3) {
            behind += u32::from(u32s(&plan.drafts).first().is_some_and(|_| save[1] > 1));
        }
        let reserved = |harness: &Harness| {
            harness.core.sequences.iter().find_map(|(_, sequence)| sequence.states.reserved())
        };
        let before = reserved(&harness);
        let used = harness.core.pool.snapshot_places().1;
        harness.step();
        let is_dropped = before.is_some() && reserved(&harness).is_none();
        dropped += u32::from(is_dropped && harness.core.pool.snapshot_places().1 < used);
    }
    assert!(behind > 5 && dropped > 3, "{behind} copies behind drafts, {dropped} were dropped");
    harness.check_against_reference();
}

#[test]
fn the_mock_refuses_drafts_for_whose_states_there_is_no_place() {
    let config = repeating(hybrid(), 1_000_000);
    let mut harness = Harness::new(config.clone(), 4, 64).speculating(Drafting::Always(4));
    harness.submit(spec(&short(40, 0), 200));
    let (past, plan) = harness.run_until(|plan| u32s(&plan.drafts).iter().sum::<u32>() > 2);
    check_refused(MockConfig { draft_states: 2, ..config }, &past, plan, "of 2 states are taken");
}

#[test]
fn who_waits_for_a_state_holds_up_nobody_for_ever() {
    let mut harness = harness(hybrid(), 64);
    let tenant = |tenant| Tenant::Key(tenant);
    let first = harness.submit(SequenceSpec { tenant: tenant(0), ..spec(&prompt(1000, 0), 5) });
    harness.step();
    let same = harness.submit(SequenceSpec { tenant: tenant(1), ..spec(&prompt(1000, 0), 5) });
    let other = harness.submit(SequenceSpec { tenant: tenant(1), ..spec(&prompt(50, 5), 5) });
    harness.step();
    assert!(harness.core.waits(same));
    // Who computes it leaves: nobody else will, so the next one does it itself.
    harness.release(first, Release::Cancelled);
    for _ in 0..3 {
        harness.step();
    }
    assert!(!harness.core.waits(same));
    harness.run_to_end();
    for id in [same, other] {
        assert_eq!(harness.client(id).end, Some(Ok(Finish::Length)));
    }
    harness.check_against_reference();
}

#[test]
fn states_are_counted_by_what_holds_them() {
    let config = MockConfig { draft_states: 6, ..repeating(hybrid(), 1_000_000) };
    let mut harness = Harness::new(config, 4, 64).speculating(Drafting::Always(4));
    for salt in 0..3 {
        harness.submit(spec(&short(40, salt), 200));
    }
    // The first copy is kept after 64 tokens, and a row that goes on without drafts gives back the places of the one before.
    let States { slots, drafts, snapshots } = loop {
        harness.step().expect("none has ended");
        let states = harness.core.stats().states;
        if states.drafts.used > 0 && states.snapshots.used > 0 {
            break states;
        }
    };
    assert_eq!(slots, StatePlaces { total: 4, used: 3 });
    assert!(drafts.total == 6 && drafts.used <= 6, "{drafts:?}");
    assert_eq!(snapshots.total, 64);
    harness.run_to_end();
    let States { slots, drafts, snapshots: kept } = harness.core.stats().states;
    assert_eq!((slots.used, drafts.used), (0, 0), "only the prefix cache keeps states");
    assert!(kept.used > 0);
    let stateless = Harness::new(MockConfig { state_bytes: 0, ..hybrid() }, 4, 64);
    assert_eq!(stateless.core.stats().states, States::default());
}

#[test]
fn addresses_without_pages_are_kept_for_snapshots_only() {
    let mut harness = harness(MockConfig { snapshots: 2, ..recurrent() }, 256);
    for salt in 0..50 {
        run(&mut harness, spec(&prompt(400, salt), 50));
    }
    let stats = harness.core.stats();
    assert_eq!((stats.blocks, stats.blocks_used), (0, 0));
    assert_eq!(stats.states.snapshots, StatePlaces { total: 2, used: 2 });
    let kept: usize = (0..50).map(|salt| saved_along(&harness, &prompt(400, salt)).len()).sum();
    assert!(kept <= 2);
    harness.check_against_reference();
}

#[test]
fn the_mock_refuses_states_that_are_not_those_of_the_tokens_before() {
    let mut harness = harness(hybrid(), 256);
    harness.submit(spec(&prompt(100, 0), 5));
    harness.submit(spec(&prompt(96, 1), 5));
    let mut past = Vec::new();
    let mut keep = |harness: &mut Harness| {
        while let Some(plan) = {
            harness.plan();
            harness.plans.pop_front()
        } {
            let result = harness.model.execute(&plan).expect("the plan is right");
            past.push(plan);
            harness.core.apply(result, harness.now).expect("the result is right");
        }
    };
    keep(&mut harness);
    harness.submit(spec(&prompt(100, 0), 5));
    harness.plan();
    let plan = harness.plans.pop_front().expect("there is one");
    let starts = plan.starts.clone().expect("it starts");
    let source = u32s(&starts.state_sources)[0];
    assert_eq!((u32s(&plan.positions)[0], plan.flags[0] & RowFlag::Start as u8), (96, 1));
    let column = |values: &[u32]| Bytes::copy_from_slice(bytemuck::cast_slice(values));
    let from = |source: &[u32]| StepPlan {
        starts: Some(Starts { state_sources: column(source), ..starts.clone() }),
        ..plan.clone()
    };
    let saves = |saves: &[u32]| StepPlan { saves: column(saves), ..plan.clone() };
    let used = harness.core.pool.snapshot_places().1;
    let count = u32s(&plan.counts)[0];
    let cases: [(StepPlan, &str); 10] = [
        (from(&[u32::MAX]), "starts at 96 with a state of 0 tokens"),
        (from(&[]), "0 rows begin with a state"),
        (from(&[(0..used).find(|place| *place != source).expect("another one")]), "state"),
        (from(&[used + 7]), "was not saved"),
        (from(&[64]), "was not saved"),
        (saves(&[0, count + 1, 9]), "in a row of"),
        (saves(&[0, 0, 9]), "in a row of"),
        (saves(&[0, 2, 64]), "into 64 places"),
        (saves(&[0, 2, 9, 0, 1, 10]), "comes after"),
        (saves(&[0, 1, 9, 0, 2, 9]), "written twice"),
    ];
    for (wrong, why) in cases {
        let mut model = MockModel::new(harness.config.clone(), 16, 256);
        for plan in &past {
            model.execute(plan).expect("as before");
        }
        let refusal = model.execute(&model.stamped(wrong)).expect_err(why);
        assert!(refusal.contains(why), "{refusal}, and not {why}");
    }
    let small = MockConfig { state_bytes: 0, ..tiny() };
    assert_eq!(small.prepared().snapshots, 0);
}
