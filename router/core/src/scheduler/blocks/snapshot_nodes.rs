//! Where snapshots of recurrent states hang in the prefix cache: at which node a state is kept, with which one a row begins,
//! and what becomes of one whose tokens are not all known yet. A part of `BlockPool`, which owns both.

use penstock_proto::ids::{SequenceId, TokenId};
use penstock_proto::tables::Table;

use super::{BlockPool, index};
use crate::scheduler::cache_names::Namespace;
use crate::scheduler::prefix_cache::{NodeId, Parent};
use crate::scheduler::snapshots::{Snapshot, Worth};

impl BlockPool {
    pub fn has_states(&self) -> bool {
        self.snapshots.is_some()
    }

    /// Places for snapshots, and how many of them have one.
    pub fn snapshot_places(&self) -> (u32, u32) {
        self.snapshots.as_ref().map_or((0, 0), |snapshots| (snapshots.total(), snapshots.used()))
    }

    /// The plan that was being built is finished: what it saves can be begun with.
    pub fn plan_finished(&mut self) {
        if let Some(snapshots) = &mut self.snapshots {
            snapshots.plan_finished();
        }
    }

    /// Whether a row can begin behind the first `blocks` of a table.
    pub fn may_begin(&self, table: &Table, blocks: u32) -> bool {
        self.usable(table, blocks).is_some()
    }

    /// The snapshot with which a row begins behind the first `blocks` of a table, at least 1.
    pub fn begin(&mut self, table: &Table, blocks: u32) -> Option<Snapshot> {
        let place = self.usable(table, blocks)?;
        self.snapshots.as_mut().map(|snapshots| snapshots.begin(place))
    }

    fn usable(&self, table: &Table, blocks: u32) -> Option<u32> {
        let last = *table.blocks.get(blocks.checked_sub(1)? as usize)?;
        let place = self.blocks[index(last)].node.and_then(|node| self.cache.snapshot(node))?;
        self.snapshots.as_ref().is_some_and(|snapshots| !snapshots.is_fresh(place)).then_some(place)
    }

    /// A place for the state behind the first `blocks` of `tokens`, which the plan being built saves. `table` is the
    /// writer's. `None` when that prefix is not in the cache, or has a snapshot, or when no place is worth less.
    pub fn save(
        &mut self,
        namespace: Namespace,
        tokens: &[TokenId],
        table: &Table,
        blocks: u32,
        worth: Worth,
        writer: SequenceId,
    ) -> Option<Snapshot> {
        let node = self.node_behind(namespace, tokens, table, blocks)?;
        if self.cache.snapshot(node).is_some() {
            return None;
        }
        let snapshot = self.take_place(worth, writer)?;
        self.attach(snapshot, node);
        Some(snapshot)
    }

    /// A place for the state behind the first `blocks` of a sequence that decodes, whose last tokens are not known yet;
    /// it is the sequence's until they are. `None` when it is off the tree, or when there is no place.
    pub fn reserve(&mut self, table: &Table, blocks: u32, writer: SequenceId) -> Option<Snapshot> {
        let before = blocks.checked_sub(2).map(|at| table.blocks[at as usize]);
        if before.is_some_and(|block| self.blocks[index(block)].node.is_none()) {
            return None;
        }
        self.take_place(Worth::Decoding, writer)
    }

    /// The tokens of a reserved snapshot are known and registered. Returns whether it has a node now; if not it is gone.
    pub fn settle(
        &mut self,
        namespace: Namespace,
        tokens: &[TokenId],
        table: &Table,
        blocks: u32,
        snapshot: Snapshot,
    ) -> bool {
        let node = self.node_behind(namespace, tokens, table, blocks);
        match node.filter(|&node| self.cache.snapshot(node).is_none()) {
            Some(node) => {
                self.attach(snapshot, node);
                true
            }
            None => {
                self.cancel(snapshot);
                false
            }
        }
    }

    /// Gives up what is reserved.
    pub fn cancel(&mut self, snapshot: Snapshot) {
        if let Some(snapshots) = &mut self.snapshots
            && snapshots.is_of_sequence(snapshot)
        {
            snapshots.release(snapshot.place);
        }
    }

    /// Gives up what a sequence saved while it decoded, unless somebody began with it.
    pub fn replace(&mut self, snapshot: Snapshot) {
        if let Some(node) = self.snapshots.as_ref().and_then(|snapshots| snapshots.replaceable(snapshot)) {
            self.drop_snapshot(node);
        }
    }

    /// A row whose state went through a snapshot has sampled.
    pub fn vouch_for_state(&mut self, snapshot: Snapshot) {
        if let Some(snapshots) = &mut self.snapshots {
            snapshots.vouch(snapshot);
        }
    }

    fn take_place(&mut self, worth: Worth, writer: SequenceId) -> Option<Snapshot> {
        let (snapshot, lost) = self.snapshots.as_mut()?.take(worth, writer)?;
        if let Some(node) = lost {
            self.cache.set_snapshot(node, None);
        }
        Some(snapshot)
    }

    fn attach(&mut self, snapshot: Snapshot, node: NodeId) {
        self.cache.set_snapshot(node, Some(snapshot.place));
        if let Some(snapshots) = &mut self.snapshots {
            snapshots.attach(snapshot, node);
        }
    }

    pub(super) fn drop_snapshot(&mut self, node: NodeId) {
        let snapshot = self.cache.snapshot(node);
        self.cache.set_snapshot(node, None);
        self.free_snapshot(snapshot);
    }

    pub(super) fn free_snapshot(&mut self, place: Option<u32>) {
        if let (Some(snapshots), Some(place)) = (&mut self.snapshots, place) {
            snapshots.release(place);
        }
    }

    /// The node behind the first `blocks` of `tokens`, at least 1. `table` has blocks of theirs, which need not be those
    /// that are registered.
    pub(super) fn node_behind(
        &self,
        namespace: Namespace,
        tokens: &[TokenId],
        table: &Table,
        blocks: u32,
    ) -> Option<NodeId> {
        let size = self.block_size() as usize;
        let held = self.registered(table, blocks as usize);
        let mut parent = self.parent(namespace, table, held)?;
        for at in held..blocks as usize {
            parent = Parent::Node(self.cache.find(parent, &tokens[at * size..(at + 1) * size])?);
        }
        match parent {
            Parent::Node(node) => Some(node),
            Parent::Root { .. } => None,
        }
    }
}
