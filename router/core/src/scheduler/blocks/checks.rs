//! What tests ask of a `BlockPool`, and what always holds of one.

use penstock_proto::ids::{BlockId, SequenceId, TokenId};
use penstock_proto::tables::Table;

use super::{BlockPool, index};
use crate::scheduler::cache_names::Namespace;
use crate::scheduler::prefix_cache::NodeId;
use crate::scheduler::snapshots::Snapshot;

impl BlockPool {
    /// The pages of a block, and whether those of windowed tables are there.
    pub fn pages_of(&self, block: BlockId) -> (&[u32], bool) {
        let count = self.tables.count() as usize;
        (&self.pages[index(block) * count..][..count], self.blocks[index(block)].is_windowed)
    }

    pub fn is_of(&self, block: BlockId, writer: SequenceId) -> bool {
        self.blocks[index(block)].writer == writer
    }

    pub fn is_sound(&self, block: BlockId) -> bool {
        self.blocks[index(block)].sound
    }

    pub fn is_state_sound(&self, place: u32) -> bool {
        self.snapshots.as_ref().is_some_and(|snapshots| snapshots.is_sound(place))
    }

    /// Tables that hold a block.
    pub fn references(&self, block: BlockId) -> u32 {
        self.blocks[index(block)].references
    }

    /// All known places with a snapshot that a row of these tokens could begin with, and how many tokens before each.
    pub fn snapshots_along(&self, namespace: Namespace, tokens: &[TokenId]) -> Vec<(u32, u32)> {
        let blocks = 1..=tokens.len() as u32 / self.block_size();
        let nodes = blocks.map_while(|blocks| {
            Some((blocks, self.node_behind(namespace, tokens, &Table::default(), blocks)?))
        });
        nodes
            .filter_map(|(blocks, node)| Some((blocks * self.block_size(), self.cache.snapshot(node)?)))
            .collect()
    }

    /// Checks the invariants in the head of `blocks` against the tables that are held, and the snapshots that sequences
    /// have.
    pub fn check(&self, tables: &[&Table], reserved: &[Snapshot]) {
        let (mut held, mut windowed) = (vec![0u32; self.blocks.len()], vec![0u32; self.blocks.len()]);
        for table in tables {
            for (at, &block) in table.blocks.iter().enumerate() {
                held[index(block)] += 1;
                windowed[index(block)] +=
                    u32::from(self.tables.windowed > 0 && at as u32 >= table.first_windowed);
            }
        }
        let mut pages = self.free_pages.clone();
        let (mut idle, mut registered) = (0, 0);
        for (at, block) in self.blocks.iter().enumerate() {
            let is_free = self.free_blocks.contains(&BlockId(at as u32));
            assert_eq!(
                held[at],
                if is_free { 0 } else { block.references },
                "references are the tables' entries"
            );
            assert_eq!(windowed[at], if is_free { 0 } else { block.windowed_references });
            registered += usize::from(block.node.is_some());
            if is_free {
                assert!(block.node.is_none());
                continue;
            }
            assert!(held[at] > 0 || block.node.is_some(), "a block is held, cached or free");
            assert!(windowed[at] == 0 || block.is_windowed, "who reads windowed pages has them");
            assert!(!block.is_windowed || windowed[at] > 0 || block.node.is_some());
            let (own, has_window) = self.pages_of(BlockId(at as u32));
            let (full, behind) = own.split_at(self.tables.full as usize);
            pages.extend(full);
            idle += if held[at] == 0 { self.tables.full } else { 0 };
            if has_window {
                pages.extend(behind);
                idle += if windowed[at] == 0 { self.tables.windowed } else { 0 };
            }
        }
        assert_eq!(idle, self.idle);
        let nodes: Vec<NodeId> = self.blocks.iter().filter_map(|block| block.node).collect();
        let of_nodes = nodes.iter().filter_map(|&node| Some((self.cache.snapshot(node)?, node))).collect();
        match &self.snapshots {
            Some(snapshots) => snapshots.check(of_nodes, reserved),
            None => assert!(of_nodes.is_empty() && reserved.is_empty()),
        }
        for table in tables {
            let registered = self.registered(table, table.blocks.len());
            let mut before = table.blocks[..registered].iter();
            assert!(
                before.all(|&block| self.blocks[index(block)].node.is_some()),
                "none behind one that is not"
            );
        }
        assert_eq!(registered, self.cache.len());
        pages.sort_unstable();
        assert_eq!(pages, (0..self.total).collect::<Vec<_>>(), "every page is at one place");
    }
}
