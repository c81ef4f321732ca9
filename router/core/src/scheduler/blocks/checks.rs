//! What tests ask of a `BlockPool`, and what always holds of one.

use penstock_proto::ids::{BlockId, SequenceId, TokenId};
use penstock_proto::tables::{MOST_WINDOWS, Table};

use super::{BlockPool, Taken, index};
use crate::scheduler::cache_names::Namespace;
use crate::scheduler::prefix_cache::NodeId;
use crate::scheduler::snapshots::Snapshot;

impl BlockPool {
    /// The pages of a block that are there.
    pub fn pages_of(&self, block: BlockId) -> Vec<u32> {
        let (pages, is_windowed) = (self.pages_in_tables(block), self.blocks[index(block)].is_windowed);
        let has = |table: u32| self.tables.window_of(table).is_none_or(|window| is_windowed[window]);
        (0..).zip(pages).filter(|&(table, _)| has(table)).map(|(_, &page)| page).collect()
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
        let mut held = vec![0u32; self.blocks.len()];
        let mut windowed = vec![[0u32; MOST_WINDOWS]; self.blocks.len()];
        for table in tables {
            for (at, &block) in table.blocks.iter().enumerate() {
                held[index(block)] += 1;
                let windows = windowed[index(block)].iter_mut().zip(table.first_windowed);
                for (held, first) in windows.take(self.tables.windows().len()) {
                    *held += u32::from(at as u32 >= first);
                }
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
            assert_eq!(windowed[at], if is_free { [0; MOST_WINDOWS] } else { block.windowed_references });
            registered += usize::from(block.node.is_some());
            if is_free {
                assert!(block.node.is_none());
                continue;
            }
            assert!(held[at] > 0 || block.node.is_some(), "a block is held, cached or free");
            pages.extend(self.pages_of(BlockId(at as u32)));
            idle += if held[at] == 0 { self.tables.full } else { 0 };
            for (window, &has) in block.is_windowed.iter().enumerate() {
                assert!(windowed[at][window] == 0 || has, "who reads windowed pages has them");
                assert!(!has || windowed[at][window] > 0 || block.node.is_some());
                let is_idle = has && windowed[at][window] == 0;
                idle += if is_idle { self.tables.windows()[window].tables } else { 0 };
            }
        }
        assert_eq!(idle, self.idle);
        let Taken { full, windows } = self.taken();
        assert_eq!(
            self.total - self.free(),
            full + windows.iter().sum::<u32>(),
            "what is taken is in some table"
        );
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
