//! Which full blocks hold which tokens: a tree whose edges are one block of tokens, with a root for each
//! namespace. Used by `blocks` alone, which owns the blocks; this knows contents and ages, no references.
//!
//! A node is found by its parent and its exact tokens, which are compared and not only hashed: two
//! requests can never share a block by an accident of hashing.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher};

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::ids::{BlockId, TokenId};

/// A node of the tree. Valid while its block is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeId(u32);

/// What a node hangs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parent {
    Root { namespace: u64 },
    Node(NodeId),
}

struct Node {
    block: BlockId,
    parent: Parent,
    hash: u64,
    /// When its block was last released; orders eviction.
    last_used: u64,
    /// Whether nobody holds its block.
    idle: bool,
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
    clock: u64,
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
            clock: 0,
        }
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
            last_used: 0,
            idle: false,
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
        id
    }

    pub fn block(&self, id: NodeId) -> BlockId {
        self.node(id).block
    }

    /// From now on `block` holds this node's tokens.
    pub fn replace_block(&mut self, id: NodeId, block: BlockId) {
        self.node_mut(id).block = block;
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

    /// Somebody holds the node's block again.
    pub fn set_busy(&mut self, id: NodeId) {
        let node = self.node_mut(id);
        node.idle = false;
        let entry = (node.last_used, id);
        self.idle_leaves.remove(&entry);
    }

    /// Forgets the least recently used idle leaf and returns its block.
    pub fn evict(&mut self) -> Option<BlockId> {
        let (_, id) = self.idle_leaves.pop_first()?;
        let block = self.node(id).block;
        self.remove_leaf(id);
        Some(block)
    }

    /// Forgets a node and all below it; `each` is told their blocks and whether they were idle.
    pub fn remove_subtree(&mut self, root: NodeId, mut each: impl FnMut(BlockId, bool)) {
        let mut at = root;
        loop {
            while let Some(child) = self.node(at).first_child {
                at = child;
            }
            let Node { block, idle, last_used, parent, .. } = *self.node(at);
            self.idle_leaves.remove(&(last_used, at));
            self.remove_leaf(at);
            each(block, idle);
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

    fn remove_leaf(&mut self, id: NodeId) {
        let Node { parent, hash, next_sibling, prev_sibling, .. } = *self.node(id);
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
    }

    fn hash(&self, parent: Parent, tokens: &[TokenId]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        match parent {
            Parent::Root { namespace } => hasher.write_u64(namespace),
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
