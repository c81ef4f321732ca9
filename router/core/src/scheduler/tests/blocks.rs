//! The block pool against a naive model: a list of who holds what, and a list of what every page holds.

use std::collections::HashMap;

use penstock_proto::ids::{BlockId, SequenceId, TokenId};
use penstock_proto::tables::{MOST_WINDOWS, Table, Tables, Window};
use proptest::prelude::*;

use crate::scheduler::blocks::BlockPool;
use crate::scheduler::cache_names::Namespace;
use crate::scheduler::snapshots::Worth;

const BLOCK_SIZE: u32 = 2;

#[derive(Clone, Debug)]
enum Op {
    /// Takes what the cache has of this sequence, then grows by the rest and registers it.
    Start { namespace: Namespace, tokens: Vec<u32> },
    /// Lets one go.
    End(prop::sample::Index),
    /// One more block for one.
    Grow(prop::sample::Index, u32),
    /// One has sampled, and so vouches for its blocks.
    Sample(prop::sample::Index),
    /// What one computed, or read, may be NaN.
    Purge(prop::sample::Index),
    /// One's state behind some of its blocks is copied, if that prefix is known.
    Save(prop::sample::Index, prop::sample::Index, Worth),
    /// A place is given to one that decodes. Its tokens are known at once, or never.
    Reserve(prop::sample::Index, bool),
    /// The plan that was being built is finished.
    Finish,
}

#[derive(Debug)]
struct Holder {
    id: SequenceId,
    namespace: Namespace,
    tokens: Vec<TokenId>,
    table: Table,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        5 => (0u128..2, prop::collection::vec(0u32..2, 2..12))
            .prop_map(|(namespace, tokens)| Op::Start { namespace: Namespace(namespace), tokens }),
        4 => any::<prop::sample::Index>().prop_map(Op::End),
        3 => (any::<prop::sample::Index>(), 0u32..2).prop_map(|(at, token)| Op::Grow(at, token)),
        1 => any::<prop::sample::Index>().prop_map(Op::Sample),
        1 => any::<prop::sample::Index>().prop_map(Op::Purge),
        4 => (any::<prop::sample::Index>(), any::<prop::sample::Index>(), worths())
            .prop_map(|(at, blocks, worth)| Op::Save(at, blocks, worth)),
        1 => (any::<prop::sample::Index>(), any::<bool>()).prop_map(|(at, known)| Op::Reserve(at, known)),
        3 => Just(Op::Finish),
    ];
    prop::collection::vec(op, 1..120)
}

fn worths() -> impl Strategy<Value = Worth> {
    prop_oneof![Just(Worth::Kept), Just(Worth::Passing)]
}

fn plain() -> Tables {
    Tables::new(BLOCK_SIZE, 1, &[])
}

/// A window of four tokens, in one table.
const SHORT: Window = Window { tables: 1, reach: 4, chunked: false };

fn shapes() -> impl Strategy<Value = Tables> {
    let window = (1u32..3, 1u32..7, any::<bool>()).prop_map(|(tables, reach, chunked)| Window {
        tables,
        reach,
        chunked,
    });
    let windowed = (0u32..3, prop::collection::vec(window, 1..=MOST_WINDOWS))
        .prop_map(|(full, windows)| Tables::new(BLOCK_SIZE, full, &windows));
    prop_oneof![1 => Just(plain()), 2 => windowed]
}

/// With a recurrent state, and perhaps nothing else.
fn shapes_and_snapshots() -> impl Strategy<Value = (Tables, Option<u32>)> {
    let stateless = shapes().prop_map(|tables| (tables, None));
    let none = Tables::new(BLOCK_SIZE, 0, &[]);
    let with_state = (prop_oneof![2 => shapes(), 1 => Just(none)], 0u32..8);
    prop_oneof![stateless, with_state.prop_map(|(tables, places)| (tables, Some(places)))]
}

/// What each page holds: its namespace, and all tokens up to its end, on which keys and values depend.
type Contents = HashMap<u32, (Namespace, Vec<TokenId>)>;

/// What a sequence that was just looked up begins with is the state behind exactly its tokens.
fn check_begins(pool: &mut BlockPool, saved: &Contents, holder: &Holder) -> Result<(), TestCaseError> {
    let blocks = holder.table.blocks.len();
    if pool.has_states() && blocks > 0 {
        let source = pool.begin(&holder.table, blocks as u32).expect("it is put behind a snapshot only");
        let expected = (holder.namespace, holder.tokens[..blocks * BLOCK_SIZE as usize].to_vec());
        prop_assert_eq!(&saved[&source.place], &expected, "a state of other tokens");
    }
    Ok(())
}

fn names(pool: &BlockPool, table: &Table) -> Vec<u32> {
    let mut pages = Vec::new();
    pool.name_pages(table, 0, &mut pages);
    pages
}

/// Adds a block to a holder, fills and registers it. `false` when there is none.
fn grow(pool: &mut BlockPool, contents: &mut Contents, holder: &mut Holder) -> bool {
    let position = holder.table.blocks.len() as u32 * BLOCK_SIZE;
    pool.advance(&mut holder.table, position);
    let (available, needed) = (pool.available(), pool.tables().count());
    if !pool.grow(&mut holder.table) {
        assert!(available < needed, "a pool with available pages gives them");
        return false;
    }
    assert_eq!(pool.available(), available - needed);
    let at = holder.table.blocks.len() - 1;
    let upto = (at + 1) * BLOCK_SIZE as usize;
    for &page in &names(pool, &holder.table)[at * needed as usize..] {
        contents.insert(page, (holder.namespace, holder.tokens[..upto].to_vec()));
    }
    let filled = &holder.tokens[at * BLOCK_SIZE as usize..upto];
    pool.register(holder.namespace, filled, &holder.table, at, holder.id);
    true
}

/// The blocks that a sequence of these tokens would find.
fn found_of(pool: &mut BlockPool, namespace: Namespace, tokens: &[TokenId]) -> Vec<BlockId> {
    let mut table = Table::default();
    pool.extend_from_cache(namespace, tokens, tokens.len() as u32 / BLOCK_SIZE, &mut table);
    let blocks = table.blocks.clone();
    pool.release(&mut table);
    blocks
}

/// Every page that a token behind the table's blocks reads is there, and holds this sequence.
fn check_readable(pool: &BlockPool, contents: &Contents, holder: &Holder) -> Result<(), TestCaseError> {
    let tables = *pool.tables();
    let end = holder.table.blocks.len() as u32;
    for (at, &page) in names(pool, &holder.table).iter().enumerate() {
        let (block, table) = (at as u32 / tables.count(), at as u32 % tables.count());
        let window = tables.window_of(table).map(|window| tables.windows()[window]);
        if window.is_none_or(|window| block >= tables.first_read(&window, end * BLOCK_SIZE)) {
            prop_assert_ne!(page, u32::MAX, "block {} is not there in table {}", block, table);
        }
        if page != u32::MAX {
            let upto = ((block + 1) * BLOCK_SIZE) as usize;
            let expected = (holder.namespace, holder.tokens[..upto].to_vec());
            prop_assert_eq!(&contents[&page], &expected, "page {} holds another sequence", page);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn the_pool_agrees_with_a_naive_model(
        ops in ops(),
        (tables, places) in shapes_and_snapshots(),
        pages in 1u32..30,
    ) {
        let mut pool = BlockPool::new(pages, tables, 1000, places);
        // What each place holds, and which were written since the last plan was finished.
        let (mut saved, mut written) = (Contents::new(), Vec::new());
        let mut holders: Vec<Holder> = Vec::new();
        let mut ended: Vec<(SequenceId, Namespace, Vec<TokenId>)> = Vec::new();
        let mut contents = Contents::new();
        for op in ops {
            match op {
                Op::Start { namespace, tokens } => {
                    let tokens: Vec<_> = tokens.into_iter().map(TokenId).collect();
                    let full = tokens.len() as u32 / BLOCK_SIZE;
                    let id = SequenceId(ended.len() as u64 + holders.len() as u64);
                    let mut holder = Holder { id, namespace, tokens, table: Table::default() };
                    pool.extend_from_cache(namespace, &holder.tokens, full, &mut holder.table);
                    check_readable(&pool, &contents, &holder)?;
                    check_begins(&mut pool, &saved, &holder)?;
                    while (holder.table.blocks.len() as u32) < full {
                        if !grow(&mut pool, &mut contents, &mut holder) {
                            break;
                        }
                    }
                    holders.push(holder);
                }
                Op::End(at) if !holders.is_empty() => {
                    let mut holder = holders.swap_remove(at.index(holders.len()));
                    pool.release(&mut holder.table);
                    ended.push((holder.id, holder.namespace, holder.tokens));
                }
                Op::Sample(at) if !holders.is_empty() => {
                    let table = &holders[at.index(holders.len())].table;
                    pool.vouch(table, 0..table.blocks.len());
                }
                Op::Grow(at, token) if !holders.is_empty() => {
                    let at = at.index(holders.len());
                    let holder = &mut holders[at];
                    holder.tokens.truncate(holder.table.blocks.len() * BLOCK_SIZE as usize);
                    holder.tokens.extend([TokenId(token), TokenId(1 - token)]);
                    // Another may have come further with the same tokens.
                    let limit = holder.table.blocks.len() as u32 + token;
                    let reuse =
                        pool.extend_from_cache(holder.namespace, &holder.tokens, limit, &mut holder.table);
                    if reuse.changed {
                        check_begins(&mut pool, &saved, holder)?;
                    }
                    if (holder.table.blocks.len() * BLOCK_SIZE as usize) < holder.tokens.len() {
                        grow(&mut pool, &mut contents, holder);
                    }
                }
                Op::Purge(at) if !holders.is_empty() => {
                    let holder = &holders[at.index(holders.len())];
                    let sound = holder.table.blocks.iter().take_while(|&&block| pool.is_sound(block)).count();
                    let before = found_of(&mut pool, holder.namespace, &holder.tokens);
                    pool.purge(&holder.table, holder.id);
                    let after = found_of(&mut pool, holder.namespace, &holder.tokens);
                    let doubtful = &holder.table.blocks[sound..];
                    prop_assert!(after.iter().all(|block| !doubtful.contains(block)), "a purged block was found");
                    let kept = before.iter().take_while(|block| holder.table.blocks[..sound].contains(block)).count();
                    // Behind a window, a shorter match may need what a longer one does not.
                    let whole = !tables.windows().is_empty() || places.is_some();
                    prop_assert!(whole || after.len() >= kept, "what somebody vouched for was forgotten");
                    for (tokens, place) in pool.snapshots_along(holder.namespace, &holder.tokens) {
                        let is_own = pool.may_begin(&holder.table, tokens / BLOCK_SIZE);
                        prop_assert!(!is_own || pool.is_state_sound(place), "a doubtful state was kept");
                    }
                }
                Op::Save(at, blocks, worth) if !holders.is_empty() => {
                    let holder = &holders[at.index(holders.len())];
                    if holder.table.blocks.is_empty() {
                        continue;
                    }
                    let blocks = 1 + blocks.index(holder.table.blocks.len());
                    let (namespace, tokens) = (holder.namespace, &holder.tokens);
                    let snapshot = pool.save(namespace, tokens, &holder.table, blocks as u32, worth, holder.id);
                    if let Some(snapshot) = snapshot {
                        let of = tokens[..blocks * BLOCK_SIZE as usize].to_vec();
                        saved.insert(snapshot.place, (namespace, of));
                        prop_assert!(!written.contains(&snapshot.place), "written twice in a plan");
                        written.push(snapshot.place);
                    }
                }
                Op::Reserve(at, known) if !holders.is_empty() => {
                    let Holder { id, namespace, tokens, table } = &holders[at.index(holders.len())];
                    let blocks = table.blocks.len() as u32;
                    if blocks == 0 {
                        continue;
                    }
                    if let Some(snapshot) = pool.reserve(table, blocks, *id) {
                        prop_assert!(!written.contains(&snapshot.place), "written twice in a plan");
                        written.push(snapshot.place);
                        let of = tokens[..(blocks * BLOCK_SIZE) as usize].to_vec();
                        saved.insert(snapshot.place, (*namespace, of));
                        match known {
                            true => drop(pool.settle(*namespace, tokens, table, blocks, snapshot)),
                            false => pool.cancel(snapshot),
                        }
                    }
                }
                Op::Finish => {
                    pool.plan_finished();
                    written.clear();
                }
                Op::Purge(at) if !ended.is_empty() => {
                    let (id, namespace, tokens) = &ended[at.index(ended.len())];
                    pool.purge(&Table::default(), *id);
                    let found = found_of(&mut pool, *namespace, tokens);
                    prop_assert!(found.iter().all(|&block| !pool.is_of(block, *id) || pool.is_sound(block)));
                }
                _ => {}
            }
            let tables: Vec<&Table> = holders.iter().map(|holder| &holder.table).collect();
            pool.check(&tables, &[]);
            for holder in &holders {
                check_readable(&pool, &contents, holder)?;
                for (tokens, place) in pool.snapshots_along(holder.namespace, &holder.tokens) {
                    let expected = (holder.namespace, holder.tokens[..tokens as usize].to_vec());
                    prop_assert_eq!(&saved[&place], &expected, "a state of other tokens");
                }
            }
        }
        for holder in &mut holders {
            pool.release(&mut holder.table);
        }
        prop_assert_eq!(pool.available(), pages, "every page can be taken again");
        let mut table = Table::default();
        for taken in 0..pages.checked_div(tables.count()).unwrap_or(0) {
            prop_assert!(pool.grow(&mut table), "only {} of {} pages could be taken", taken, pages);
        }
        prop_assert!(tables.count() == 0 || !pool.grow(&mut table));
    }
}

fn tokens(ids: &[u32]) -> Vec<TokenId> {
    ids.iter().copied().map(TokenId).collect()
}

fn hold(pool: &mut BlockPool, ids: &[u32]) -> Table {
    let tokens = tokens(ids);
    let full = ids.len() / BLOCK_SIZE as usize;
    let mut table = Table::default();
    pool.extend_from_cache(Namespace::default(), &tokens, full as u32, &mut table);
    for at in table.blocks.len()..full {
        pool.advance(&mut table, at as u32 * BLOCK_SIZE);
        assert!(pool.grow(&mut table), "there is room");
        pool.register(
            Namespace::default(),
            &tokens[at * 2..at * 2 + 2],
            &table,
            at,
            SequenceId(ids.len() as u64),
        );
    }
    table
}

/// Blocks of these tokens that the cache has.
fn found(pool: &mut BlockPool, ids: &[u32]) -> usize {
    let mut table = Table::default();
    pool.extend_from_cache(Namespace::default(), &tokens(ids), ids.len() as u32 / BLOCK_SIZE, &mut table);
    let found = table.blocks.len();
    pool.release(&mut table);
    found
}

#[test]
fn the_least_recently_used_leaf_is_evicted_first() {
    let mut pool = BlockPool::new(4, plain(), 8, None);
    let mut old = hold(&mut pool, &[1, 1, 2, 2]);
    let mut young = hold(&mut pool, &[3, 3, 4, 4]);
    pool.release(&mut old);
    pool.release(&mut young);
    let mut other = Table::default();
    pool.grow(&mut other);
    assert_eq!(found(&mut pool, &[1, 1, 2, 2]), 1, "the leaf of the older one went");
    assert_eq!(found(&mut pool, &[3, 3, 4, 4]), 2);
    // Looked up just now, [1, 1] is younger than before, and still older than the other chain.
    pool.grow(&mut other);
    assert_eq!(found(&mut pool, &[1, 1, 2, 2]), 0);
}

#[test]
fn a_block_in_use_is_never_evicted() {
    let mut pool = BlockPool::new(3, plain(), 8, None);
    let held = hold(&mut pool, &[1, 1, 2, 2]);
    let mut other = Table::default();
    assert!(pool.grow(&mut other));
    assert!(!pool.grow(&mut other));
    assert!(held.blocks.iter().all(|&block| pool.references(block) == 1));
}

const LONG: [u32; 20] = [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10];

#[test]
fn a_sequence_of_any_length_needs_the_pages_of_its_window_only() {
    let window = Tables::new(BLOCK_SIZE, 0, &[SHORT]);
    let mut pool = BlockPool::new(3, window, 40, None);
    let mut table = hold(&mut pool, &LONG);
    assert_eq!(table.blocks.len(), 10);
    // The cache knows its end, and what it needs to go on from there.
    pool.release(&mut table);
    assert_eq!(found(&mut pool, &LONG), 10);
    assert_eq!(found(&mut pool, &LONG[..8]), 0, "what those tokens read was taken");
}

#[test]
fn what_is_behind_a_window_serves_the_prefix_cache_until_it_is_needed() {
    let mixed = Tables::new(BLOCK_SIZE, 1, &[SHORT]);
    let mut pool = BlockPool::new(20, mixed, 40, None);
    let mut table = hold(&mut pool, &LONG);
    assert_eq!(pool.free(), 0);
    // Blocks 0 to 6 are behind the window of the last block's tokens.
    assert_eq!(pool.available(), 7);
    assert_eq!(found(&mut pool, &LONG[..8]), 4, "nothing was taken yet");
    let mut other = Table::default();
    assert!((0..3).all(|_| pool.grow(&mut other)), "three blocks have six pages");
    assert!(!pool.grow(&mut other));
    assert_eq!(found(&mut pool, &LONG[..8]), 0, "its windowed pages were taken");
    pool.release(&mut other);
    pool.release(&mut table);
    assert_eq!(found(&mut pool, &LONG), 10);
}

#[test]
fn each_window_gives_back_and_takes_up_its_own() {
    let far = Window { reach: 12, ..SHORT };
    let mut pool = BlockPool::new(30, Tables::new(BLOCK_SIZE, 1, &[SHORT, far]), 40, None);
    let mut table = hold(&mut pool, &LONG);
    assert_eq!((pool.free(), table.first_windowed), (0, [7, 3, 0, 0]));
    assert_eq!(pool.available(), 7 + 3);
    assert_eq!(found(&mut pool, &LONG[..8]), 4, "nothing was taken yet");
    // Of the three blocks of three pages that are taken, those that the near window left first are the first.
    let mut other = Table::default();
    assert!((0..2).all(|_| pool.grow(&mut other)));
    assert_eq!(found(&mut pool, &LONG[..8]), 0, "the near window's pages were taken");
    pool.release(&mut other);
    pool.release(&mut table);
    assert_eq!(found(&mut pool, &LONG), 10);
}
