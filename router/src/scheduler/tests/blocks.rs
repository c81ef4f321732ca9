//! The block pool against a naive model: a list of who holds what, and a list of what every block holds.

use std::collections::HashMap;

use proptest::prelude::*;

use crate::ids::{BlockId, TokenId};
use crate::scheduler::blocks::BlockPool;

const BLOCK_SIZE: u32 = 2;

#[derive(Clone, Debug)]
enum Op {
    /// Takes what the cache has of this sequence, then allocates and registers the rest.
    Start {
        namespace: u64,
        tokens: Vec<u32>,
    },
    /// Lets one go.
    End(prop::sample::Index),
    /// One more block for one.
    Grow(prop::sample::Index, u32),
    Purge(prop::sample::Index),
}

#[derive(Debug)]
struct Holder {
    namespace: u64,
    tokens: Vec<TokenId>,
    table: Vec<BlockId>,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        5 => (0u64..2, prop::collection::vec(0u32..2, 2..12))
            .prop_map(|(namespace, tokens)| Op::Start { namespace, tokens }),
        4 => any::<prop::sample::Index>().prop_map(Op::End),
        3 => (any::<prop::sample::Index>(), 0u32..2).prop_map(|(at, token)| Op::Grow(at, token)),
        1 => any::<prop::sample::Index>().prop_map(Op::Purge),
    ];
    prop::collection::vec(op, 1..120)
}

/// Adds a block to a holder and registers it. `false` when there is none.
fn grow(pool: &mut BlockPool, contents: &mut HashMap<BlockId, Vec<TokenId>>, holder: &mut Holder) -> bool {
    let available = pool.available();
    let Some(block) = pool.allocate() else {
        assert_eq!(available, 0, "a pool with available blocks gives one");
        return false;
    };
    assert_eq!(pool.available(), available - 1);
    holder.table.push(block);
    let at = holder.table.len() - 1;
    let upto = (at + 1) * BLOCK_SIZE as usize;
    // What a block stands for is everything up to its end, as keys and values do.
    contents.insert(block, holder.tokens[..upto].to_vec());
    pool.register(holder.namespace, &holder.tokens[at * BLOCK_SIZE as usize..upto], &holder.table, at);
    true
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn the_pool_agrees_with_a_naive_model(ops in ops(), blocks in 1u32..14) {
        let mut pool = BlockPool::new(blocks, BLOCK_SIZE);
        let mut holders: Vec<Holder> = Vec::new();
        let mut contents: HashMap<BlockId, Vec<TokenId>> = HashMap::new();
        let mut namespaces: HashMap<BlockId, u64> = HashMap::new();
        for op in ops {
            match op {
                Op::Start { namespace, tokens } => {
                    let tokens: Vec<_> = tokens.into_iter().map(TokenId).collect();
                    let full = tokens.len() as u32 / BLOCK_SIZE;
                    let mut holder = Holder { namespace, tokens, table: Vec::new() };
                    pool.extend_from_cache(namespace, &holder.tokens, full, &mut holder.table);
                    for (at, block) in holder.table.iter().enumerate() {
                        let upto = (at + 1) * BLOCK_SIZE as usize;
                        prop_assert_eq!(&contents[block], &holder.tokens[..upto], "a hit holds other tokens");
                        prop_assert_eq!(namespaces[block], namespace, "a hit is of another namespace");
                    }
                    while (holder.table.len() as u32) < full {
                        if !grow(&mut pool, &mut contents, &mut holder) {
                            break;
                        }
                        namespaces.insert(*holder.table.last().unwrap(), namespace);
                    }
                    holders.push(holder);
                }
                Op::End(at) if !holders.is_empty() => {
                    let mut holder = holders.swap_remove(at.index(holders.len()));
                    pool.release(&mut holder.table);
                }
                Op::Grow(at, token) if !holders.is_empty() => {
                    let at = at.index(holders.len());
                    let holder = &mut holders[at];
                    holder.tokens.truncate(holder.table.len() * BLOCK_SIZE as usize);
                    holder.tokens.extend([TokenId(token), TokenId(1 - token)]);
                    if grow(&mut pool, &mut contents, holder) {
                        namespaces.insert(*holder.table.last().unwrap(), holder.namespace);
                    }
                }
                Op::Purge(at) if !holders.is_empty() => {
                    let holder = &holders[at.index(holders.len())];
                    pool.purge(&holder.table);
                    let mut again = Vec::new();
                    let full = holder.table.len() as u32;
                    pool.extend_from_cache(holder.namespace, &holder.tokens, full, &mut again);
                    let stale = again.iter().any(|block| holder.table.contains(block));
                    prop_assert!(!stale, "a purged block was found");
                    pool.release(&mut again);
                }
                _ => {}
            }
            let tables: Vec<&[BlockId]> = holders.iter().map(|holder| &holder.table[..]).collect();
            pool.check(&tables);
            // A block that somebody can write is held by nobody else.
            for holder in &holders {
                if let Some(&last) = holder.table.last() {
                    prop_assert!(pool.references(last) >= 1);
                }
            }
        }
        for holder in &mut holders {
            pool.release(&mut holder.table);
        }
        prop_assert_eq!(pool.available(), blocks, "every block can be taken again");
        for taken in 0..blocks {
            prop_assert!(pool.allocate().is_some(), "only {taken} of {blocks} could be taken");
        }
        prop_assert!(pool.allocate().is_none());
    }
}

fn tokens(ids: &[u32]) -> Vec<TokenId> {
    ids.iter().copied().map(TokenId).collect()
}

fn hold(pool: &mut BlockPool, ids: &[u32]) -> Vec<BlockId> {
    let tokens = tokens(ids);
    let full = ids.len() / BLOCK_SIZE as usize;
    let mut table = Vec::new();
    pool.extend_from_cache(0, &tokens, full as u32, &mut table);
    for at in table.len()..full {
        table.push(pool.allocate().expect("there is room"));
        pool.register(0, &tokens[at * 2..at * 2 + 2], &table, at);
    }
    table
}

#[test]
fn the_least_recently_used_leaf_is_evicted_first() {
    let mut pool = BlockPool::new(4, BLOCK_SIZE);
    let mut old = hold(&mut pool, &[1, 1, 2, 2]);
    let mut young = hold(&mut pool, &[3, 3, 4, 4]);
    pool.release(&mut old);
    pool.release(&mut young);
    pool.allocate().unwrap();
    let found = |pool: &mut BlockPool, ids: &[u32]| {
        let mut table = Vec::new();
        pool.extend_from_cache(0, &tokens(ids), 2, &mut table);
        let found = table.len();
        pool.release(&mut table);
        found
    };
    assert_eq!(found(&mut pool, &[1, 1, 2, 2]), 1, "the leaf of the older one went");
    assert_eq!(found(&mut pool, &[3, 3, 4, 4]), 2);
    // Looked up just now, [1, 1] is younger than before, and still older than the other chain.
    pool.allocate().unwrap();
    assert_eq!(found(&mut pool, &[1, 1, 2, 2]), 0);
}

#[test]
fn a_block_in_use_is_never_evicted() {
    let mut pool = BlockPool::new(3, BLOCK_SIZE);
    let held = hold(&mut pool, &[1, 1, 2, 2]);
    assert!(pool.allocate().is_some());
    assert!(pool.allocate().is_none());
    assert!(held.iter().all(|&block| pool.references(block) == 1));
}
