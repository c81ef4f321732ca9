//! The KV blocks: who holds how many references to which, what is free, what is kept for the prefix cache.
//! Called by the scheduler's core only; knows no sequences, only their block tables.
//!
//! Why a block may be handed out the moment its last holder lets go, although plans that use it may still
//! be in flight: every rank executes plans in the order they were built, and a block let go now can only be
//! named by plans built from now on. So no write of its new owner comes before a read of its old one. The
//! one thing that must not happen is to let go of the blocks of a row that is already in the plan being
//! built; the core never does (it only takes blocks from sequences that it has not reached yet).
//!
//! For the same reason a block may be shared as soon as the row that fills it is planned: later plans run
//! later, and within a plan every write of a layer comes before its reads.
//!
//! Whoever holds a registered block holds every block before it, up to the root: sequences only register
//! below blocks that they hold themselves, and a match holds all that it walked. So below an idle node all
//! nodes are idle, and every idle block can be taken, leaves first.

use super::prefix_cache::{NodeId, Parent, PrefixCache};
use crate::ids::{BlockId, TokenId};

pub(super) struct BlockPool {
    block_size: u32,
    references: Vec<u32>,
    /// The node of a registered block.
    nodes: Vec<Option<NodeId>>,
    free: Vec<BlockId>,
    cache: PrefixCache,
    /// Registered blocks that nobody holds.
    idle: u32,
}

impl BlockPool {
    pub fn new(blocks: u32, block_size: u32) -> Self {
        Self {
            block_size,
            references: vec![0; blocks as usize],
            nodes: vec![None; blocks as usize],
            // Popped from the end: low ids first.
            free: (0..blocks).rev().map(BlockId).collect(),
            cache: PrefixCache::new(block_size),
            idle: 0,
        }
    }

    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    pub fn total(&self) -> u32 {
        self.references.len() as u32
    }

    /// How many blocks `allocate` can still hand out.
    pub fn available(&self) -> u32 {
        self.free.len() as u32 + self.idle
    }

    pub fn free(&self) -> u32 {
        self.free.len() as u32
    }

    pub fn cached(&self) -> u32 {
        self.idle
    }

    /// A block of its own for the caller; evicts from the prefix cache when none is free.
    pub fn allocate(&mut self) -> Option<BlockId> {
        let block = match self.free.pop() {
            Some(block) => block,
            None => {
                let block = self.cache.evict()?;
                self.nodes[index(block)] = None;
                self.idle -= 1;
                block
            }
        };
        self.references[index(block)] = 1;
        Some(block)
    }

    /// Appends to `table`, which holds the blocks of the first tokens of `tokens`, those registered blocks
    /// that hold the next ones, until it has `limit` blocks or nothing more is known.
    pub fn extend_from_cache(
        &mut self,
        namespace: u64,
        tokens: &[TokenId],
        limit: u32,
        table: &mut Vec<BlockId>,
    ) {
        let size = self.block_size as usize;
        while (table.len() as u32) < limit {
            let Some(parent) = self.parent(namespace, table, table.len()) else { return };
            let from = table.len() * size;
            let Some(node) = self.cache.find(parent, &tokens[from..from + size]) else { return };
            let block = self.cache.block(node);
            if self.references[index(block)] == 0 {
                self.cache.set_busy(node);
                self.idle -= 1;
            }
            self.references[index(block)] += 1;
            table.push(block);
        }
    }

    /// Makes the block at `at` of `table`, which holds `tokens`, known to the cache. Does nothing when the
    /// chain before it is not registered, or when another sequence holds a block with the same content:
    /// then the rest of this sequence stays out of the cache.
    pub fn register(&mut self, namespace: u64, tokens: &[TokenId], table: &[BlockId], at: usize) {
        let block = table[at];
        if self.nodes[index(block)].is_some() {
            return;
        }
        let Some(parent) = self.parent(namespace, table, at) else { return };
        match self.cache.find(parent, tokens) {
            None => self.nodes[index(block)] = Some(self.cache.insert(parent, tokens, block)),
            Some(node) => {
                let known = self.cache.block(node);
                if self.references[index(known)] == 0 {
                    // The same content, idle: the node moves to the block in use, the old one is free.
                    self.cache.set_busy(node);
                    self.cache.replace_block(node, block);
                    self.nodes[index(block)] = Some(node);
                    self.nodes[index(known)] = None;
                    self.idle -= 1;
                    self.free.push(known);
                }
            }
        }
    }

    /// Lets go of a whole table, last block first.
    pub fn release(&mut self, table: &mut Vec<BlockId>) {
        while let Some(block) = table.pop() {
            let references = &mut self.references[index(block)];
            *references -= 1;
            if *references > 0 {
                continue;
            }
            match self.nodes[index(block)] {
                Some(node) => {
                    self.cache.set_idle(node);
                    self.idle += 1;
                }
                None => self.free.push(block),
            }
        }
    }

    /// Forgets the contents of a table's blocks and of all that was computed from them. Who holds such a
    /// block keeps it; nobody new will find it.
    pub fn purge(&mut self, table: &[BlockId]) {
        let Some(&Some(root)) = table.first().map(|&block| &self.nodes[index(block)]) else { return };
        self.cache.remove_subtree(root, |block, idle| {
            self.nodes[index(block)] = None;
            if idle {
                self.idle -= 1;
                self.free.push(block);
            }
        });
    }

    /// Blocks held more than once, for tests and invariants: references of one block.
    #[cfg(test)]
    pub fn references(&self, block: BlockId) -> u32 {
        self.references[index(block)]
    }

    /// What the block at `at` of `table` hangs on; `None` when the one before it is not registered.
    fn parent(&self, namespace: u64, table: &[BlockId], at: usize) -> Option<Parent> {
        match at.checked_sub(1) {
            None => Some(Parent::Root { namespace }),
            Some(before) => self.nodes[index(table[before])].map(Parent::Node),
        }
    }

    /// Checks the invariants in the head of this file against the tables that are held.
    #[cfg(test)]
    pub fn check(&self, tables: &[&[BlockId]]) {
        let mut held = vec![0u32; self.references.len()];
        for table in tables {
            for &block in *table {
                held[index(block)] += 1;
            }
        }
        assert_eq!(held, self.references, "references are exactly the tables' entries");
        let idle = (0..held.len()).filter(|&b| held[b] == 0 && self.nodes[b].is_some()).count();
        let unheld = held.iter().filter(|&&n| n == 0).count();
        assert_eq!(idle, self.idle as usize);
        assert_eq!(unheld, self.free.len() + idle, "a block is held, free or cached");
        let mut free: Vec<_> = self.free.clone();
        free.sort();
        free.dedup();
        assert_eq!(free.len(), self.free.len(), "no block is free twice");
        let registered = self.nodes.iter().flatten().count();
        assert_eq!(registered, self.cache.len());
    }
}

fn index(block: BlockId) -> usize {
    block.0 as usize
}
