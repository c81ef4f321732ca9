//! Which full blocks hold which tokens: a tree whose edges are one block of tokens, with a root for each
//! namespace. Used by `blocks` alone, which owns the blocks; this knows contents and ages, no references and no pages.
//! A node may have a snapshot: the place with the recurrent state behind its prefix.
//!
//! A node is found by its parent and its exact tokens, which are compared and not only hashed: two
//! requests can never share a block by an accident of hashing.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher};

use hashbrown::{DefaultHashBuilder, HashTable};
use penstock_proto::ids::{BlockId, TokenId};
use penstock_proto::tables::MOST_WINDOWS;

use super::block_events::BlockChange;
use super::cache_names::{BlockHash, Namespace};

/// A node of the tree. Valid while its block is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeId(u32);

#[cfg(test)]
impl NodeId {
    /// Of no tree.
    pub fn test(id: u32) -> Self {
        Self(id)
    }
}

/// What a node hangs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parent {
    Root { namespace: Namespace },
    Node(NodeId),
}

struct Node {
    block: BlockId,
    parent: Parent,
    hash: u64,
    /// Of its tokens and all before them, where changes are told.
    content: BlockHash,
    /// When its block was last released; orders eviction.
    last_used: u64,
    /// Whether nobody holds its block.
    idle: bool,
    /// When its block's pages of each window were last released.
    window_used: [u64; MOST_WINDOWS],
    /// The place with the state behind its prefix.
    snapshot: Option<u32>,
    first_child: Option<NodeId>,
    next_sibling: Option<NodeId>,
    prev_sibling: Option<NodeId>,
}

pub(super) struct PrefixCache {
    block_size: usize,
    hasher: DefaultHashBuilder,
    table: HashTable<NodeId>,
    nodes: Vec<Node>,
    /// `block_size` tokens for each of `nodes`.
    tokens: Vec<TokenId>,
    unused: Vec<NodeId>,
    /// Idle nodes without children, least recently used first: what can be evicted next. The children of
    /// an idle node are idle (see `blocks`), so while any node is idle, this is not empty.
    idle_leaves: BTreeSet<(u64, NodeId)>,
    /// Nodes whose block has pages of a window that nobody holds, least recently used first, for each window.
    idle_windows: [BTreeSet<(u64, NodeId)>; MOST_WINDOWS],
    clock: u64,
    /// Since they were last taken; `None`: nobody is told.
    changes: Option<Vec<BlockChange>>,
}

impl PrefixCache {
    pub fn new(block_size: u32) -> Self {
        Self {
            block_size: block_size as usize,
            hasher: DefaultHashBuilder::default(),
            table: HashTable::new(),
            nodes: Vec::new(),
            tokens: Vec::new(),
            unused: Vec::new(),
            idle_leaves: BTreeSet::new(),
            idle_windows: Default::default(),
            clock: 0,
            changes: None,
        }
    }

    /// Nothing is cached yet.
    pub fn tell_changes(&mut self) {
        self.changes = Some(Vec::new());
    }

    pub fn take_changes(&mut self) -> Vec<BlockChange> {
        self.changes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Each block behind the one that it follows.
    pub fn known(&self) -> Vec<BlockChange> {
        let is_root = |id: &&NodeId| matches!(self.node(**id).parent, Parent::Root { .. });
        let mut open: Vec<NodeId> = self.table.iter().filter(is_root).copied().collect();
        let mut known = Vec::with_capacity(self.table.len());
        while let Some(id) = open.pop() {
            known.push(self.stored(id));
            let mut child = self.node(id).first_child;
            while let Some(next) = child {
                open.push(next);
                child = self.node(next).next_sibling;
            }
        }
        known
    }

    fn stored(&self, id: NodeId) -> BlockChange {
        let Node { content, parent, .. } = *self.node(id);
        let after = match parent {
            Parent::Root { .. } => None,
            Parent::Node(parent) => Some(self.node(parent).content),
        };
        BlockChange::Stored { block: content, after }
    }

    fn content(&self, parent: Parent, tokens: &[TokenId]) -> BlockHash {
        let before = match parent {
            _ if self.changes.is_none() => return BlockHash::default(),
            Parent::Root { namespace } => BlockHash::root(namespace),
            Parent::Node(parent) => self.node(parent).content,
        };
        before.then(tokens)
    }

    pub fn find(&self, parent: Parent, tokens: &[TokenId]) -> Option<NodeId> {
        let hash = self.hash(parent, tokens);
        self.table.find(hash, |&id| self.node(id).parent == parent && self.tokens_of(id) == tokens).copied()
    }

    /// Adds a node in use. There must be none with this parent and these tokens.
    pub fn insert(&mut self, parent: Parent, tokens: &[TokenId], block: BlockId) -> NodeId {
        debug_assert_eq!(tokens.len(), self.block_size);
        let hash = self.hash(parent, tokens);
        let next_sibling = match parent {
            Parent::Root { .. } => None,
            Parent::Node(parent) => self.node(parent).first_child,
        };
        let node = Node {
            block,
            parent,
            hash,
            content: self.content(parent, tokens),
            last_used: 0,
            idle: false,
            window_used: [0; MOST_WINDOWS],
            snapshot: None,
            first_child: None,
            next_sibling,
            prev_sibling: None,
        };
        let id = match self.unused.pop() {
            Some(id) => {
                self.nodes[id.0 as usize] = node;
                let from = id.0 as usize * self.block_size;
                self.tokens[from..from + self.block_size].copy_from_slice(tokens);
                id
            }
            None => {
                let id = NodeId(self.nodes.len() as u32);
                self.nodes.push(node);
                self.tokens.extend_from_slice(tokens);
                id
            }
        };
        if let Some(next) = next_sibling {
            self.node_mut(next).prev_sibling = Some(id);
        }
        if let Parent::Node(parent) = parent {
            self.node_mut(parent).first_child = Some(id);
            let entry = (self.node(parent).last_used, parent);
            self.idle_leaves.remove(&entry);
        }
        let nodes = &self.nodes;
        self.table.insert_unique(hash, id, |&id| nodes[id.0 as usize].hash);
        if self.changes.is_some() {
            let stored = self.stored(id);
            self.changes.iter_mut().for_each(|changes| changes.push(stored));
        }
        id
    }

    pub fn block(&self, id: NodeId) -> BlockId {
        self.node(id).block
    }

    /// From now on `block` holds this node's tokens.
    pub fn replace_block(&mut self, id: NodeId, block: BlockId) {
        self.node_mut(id).block = block;
    }

    pub fn snapshot(&self, id: NodeId) -> Option<u32> {
        self.node(id).snapshot
    }

    pub fn set_snapshot(&mut self, id: NodeId, snapshot: Option<u32>) {
        self.node_mut(id).snapshot = snapshot;
    }

    pub fn has_children(&self, id: NodeId) -> bool {
        self.node(id).first_child.is_some()
    }

    /// Nobody holds the node's block any more.
    pub fn set_idle(&mut self, id: NodeId) {
        self.clock += 1;
        let clock = self.clock;
        let node = self.node_mut(id);
        node.idle = true;
        node.last_used = clock;
        if node.first_child.is_none() {
            self.idle_leaves.insert((clock, id));
        }
    }

    /// Nobody took an idle node without children, and somebody will want it: it is evicted after those that were used before
    /// now. Does nothing when it has other tokens by now.
    pub fn touch(&mut self, id: NodeId, tokens: &[TokenId]) {
        let entry = (self.node(id).last_used, id);
        if self.tokens_of(id) == tokens && self.idle_leaves.remove(&entry) {
            self.clock += 1;
            let clock = self.clock;
            self.node_mut(id).last_used = clock;
            self.idle_leaves.insert((clock, id));
        }
    }

    /// Somebody holds the node's block again.
    pub fn set_busy(&mut self, id: NodeId) {
        let node = self.node_mut(id);
        node.idle = false;
        let entry = (node.last_used, id);
        self.idle_leaves.remove(&entry);
    }

    /// Nobody holds the pages that the node's block has of a window any more.
    pub fn set_window_idle(&mut self, id: NodeId, window: usize) {
        self.clock += 1;
        let clock = self.clock;
        self.node_mut(id).window_used[window] = clock;
        self.idle_windows[window].insert((clock, id));
    }

    /// Somebody holds them again, or they are gone.
    pub fn set_window_busy(&mut self, id: NodeId, window: usize) {
        let entry = (self.node(id).window_used[window], id);
        self.idle_windows[window].remove(&entry);
    }

    /// The idle node without children that was used longest ago, and when.
    pub fn oldest_leaf(&self) -> Option<(u64, NodeId)> {
        self.idle_leaves.first().copied()
    }

    /// The window and the node whose pages of it are idle and were used longest ago, and when.
    pub fn oldest_window(&self) -> Option<(usize, (u64, NodeId))> {
        let oldest = self.idle_windows.iter().enumerate();
        oldest.filter_map(|(window, idle)| Some((window, *idle.first()?))).min_by_key(|&(_, entry)| entry)
    }

    /// Forgets a node and all below it; `each` is told their blocks and snapshots.
    pub fn remove_subtree(&mut self, root: NodeId, mut each: impl FnMut(BlockId, Option<u32>)) {
        let mut at = root;
        loop {
            while let Some(child) = self.node(at).first_child {
                at = child;
            }
            let Node { block, parent, .. } = *self.node(at);
            let snapshot = self.remove_leaf(at);
            each(block, snapshot);
            match parent {
                Parent::Node(parent) if at != root => at = parent,
                _ => return,
            }
        }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Forgets a node without children. Returns its snapshot, which nobody knows any more.
    pub fn remove_leaf(&mut self, id: NodeId) -> Option<u32> {
        let Node {
            parent, hash, next_sibling, prev_sibling, last_used, window_used, snapshot, content, ..
        } = *self.node(id);
        if let Some(changes) = &mut self.changes {
            changes.push(BlockChange::Evicted { block: content });
        }
        self.idle_leaves.remove(&(last_used, id));
        for (idle, used) in self.idle_windows.iter_mut().zip(window_used) {
            idle.remove(&(used, id));
        }
        if let Some(next) = next_sibling {
            self.node_mut(next).prev_sibling = prev_sibling;
        }
        match (prev_sibling, parent) {
            (Some(prev), _) => self.node_mut(prev).next_sibling = next_sibling,
            (None, Parent::Node(parent)) => {
                let above = self.node_mut(parent);
                above.first_child = next_sibling;
                if next_sibling.is_none() && above.idle {
                    let entry = (above.last_used, parent);
                    self.idle_leaves.insert(entry);
                }
            }
            (None, Parent::Root { .. }) => {}
        }
        if let Ok(entry) = self.table.find_entry(hash, |&other| other == id) {
            entry.remove();
        }
        self.unused.push(id);
        snapshot
    }

    fn hash(&self, parent: Parent, tokens: &[TokenId]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        match parent {
            Parent::Root { namespace } => hasher.write_u128(namespace.0),
            Parent::Node(NodeId(id)) => hasher.write_u32(id),
        }
        hasher.write(bytemuck::cast_slice(tokens));
        hasher.finish()
    }

    fn tokens_of(&self, id: NodeId) -> &[TokenId] {
        let from = id.0 as usize * self.block_size;
        &self.tokens[from..from + self.block_size]
    }

    fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.0 as usize]
    }
}
