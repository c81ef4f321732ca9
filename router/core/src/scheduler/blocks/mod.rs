//! The blocks of the KV cache and the pages that they are kept in: who holds what, what is free, what is
//! kept for the prefix cache. Called by the scheduler's core only; knows no sequences, only their tables and ids.
//!
//! A block is `block_size` tokens of a sequence. It has a page in each full table, which are held for as long
//! as the block is, and one in each table of each window, which are given back when the sequence has left them
//! behind that window. Then they stay for the prefix cache, as idle blocks do, and are the first to be taken.
//! A block whose pages of a window were taken still says what comes before others, and is read in full tables. What is said
//! of windowed pages holds for each window by itself.
//!
//! Why a page may be handed out the moment its last holder lets go, although plans that use it may still
//! be in flight: every rank executes plans in the order they were built, and a page let go now can only be
//! named by plans built from now on. So no write of its new owner comes before a read of its old one. The
//! one thing that must not happen is to let go of the blocks of a row that is already in the plan being
//! built, unless they are behind what it reads; the core never does (it only takes blocks from sequences that it
//! has not reached yet).
//!
//! For the same reason a block may be shared as soon as the row that fills it is planned: later plans run
//! later, and within a plan every write of a layer comes before its reads.
//!
//! Whoever holds a registered block holds every block before it, up to the root: sequences only register
//! below blocks that they hold themselves, and a match holds all that it walked. So below an idle node all
//! nodes are idle, and every idle block can be taken, leaves first. Who holds a block's windowed pages holds
//! the block.
//!
//! Models with recurrent layers have a state beside their blocks, which cannot be rewound. Copies of it, *snapshots*, are
//! kept for nodes: the state behind exactly that node's prefix (see `snapshots`). Such a sequence takes from the cache
//! the longest prefix that ends at a node with a snapshot, since its state has to begin somewhere; what is known behind
//! it is computed again, into blocks of the sequence's own. While others hold what is known, those are not registered,
//! nor is what follows them: the sequence is *off the tree*, until it has saved its state where what is known ends. Then
//! it takes the known blocks in the place of its own, and goes on from there.
//!
//! A snapshot is not shared as soon as it is planned: sources are read before any row of a plan runs.
//!
//! Where no layer keeps keys and values a block has no pages. It is only an address in the tree then, and goes with its
//! last holder, unless it leads to a snapshot.
//!
//! A block may hold NaN: its keys and values were computed from an overflow, say. Whoever attends to it gets NaN,
//! so a block is *sound* once a row that attends to it has sampled. When a row's logits are not numbers, the
//! blocks that it may have got that from, or brought it into, are those that are not sound. It is the same with snapshots.
//!
//! `snapshot_nodes` says where snapshots hang.

#[cfg(test)]
mod checks;
mod snapshot_nodes;

use penstock_proto::ids::{BlockId, SequenceId, TokenId};
use penstock_proto::tables::{MOST_WINDOWS, Table, Tables};

use super::block_events::BlockChange;
use super::cache_names::Namespace;
use super::prefix_cache::{NodeId, Parent, PrefixCache};
use super::snapshots::Snapshots;

/// In the place of a page behind the window.
const NO_PAGE: u32 = u32::MAX;

#[derive(Clone, Default)]
struct Block {
    references: u32,
    /// Tables that hold its pages of each window.
    windowed_references: [u32; MOST_WINDOWS],
    /// Whether it has pages of each window.
    is_windowed: [bool; MOST_WINDOWS],
    /// Its node, if it is registered.
    node: Option<NodeId>,
    /// Who computed it, if it is registered.
    writer: SequenceId,
    /// A row that attends to it has sampled.
    sound: bool,
}

/// Pages by what their layers attend to: all earlier tokens, or those of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    pub full: u32,
    /// In the order of `Tables::windows`.
    pub windows: [u32; MOST_WINDOWS],
}

/// What a look into the prefix cache gave a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reuse {
    /// Whether its table is another one now.
    pub changed: bool,
    /// Blocks that are known of its tokens.
    pub known: u32,
    /// What it computes of them again is not registered: others hold them.
    pub off_tree: bool,
    /// Behind those, sequences went on with other tokens.
    pub branches: bool,
    /// Blocks before the farthest snapshot that the plan being built saves.
    pub fresh: u32,
}

pub(super) struct BlockPool {
    tables: Tables,
    blocks: Vec<Block>,
    /// `tables.count()` for each of `blocks`.
    pages: Vec<u32>,
    free_blocks: Vec<BlockId>,
    /// Blocks that there may be: as many as all pages and all sequences can need.
    most_blocks: usize,
    total: u32,
    free_pages: Vec<u32>,
    cache: PrefixCache,
    /// `None`: the model has no recurrent state.
    snapshots: Option<Snapshots>,
    /// Pages that nobody holds, of registered blocks.
    idle: u32,
    /// Blocks that have pages of each window.
    windowed: [u32; MOST_WINDOWS],
    /// Nodes of a match, kept for its memory.
    matched: Vec<NodeId>,
}

impl BlockPool {
    /// `held` blocks without pages may be in the tables of all sequences together, and in the prefix cache. `snapshots`:
    /// places for those, of a model that has a recurrent state.
    pub fn new(pages: u32, tables: Tables, held: u32, snapshots: Option<u32>) -> Self {
        Self {
            tables,
            blocks: Vec::new(),
            pages: Vec::new(),
            free_blocks: Vec::new(),
            most_blocks: (pages as usize).saturating_add(held as usize),
            total: pages,
            // Popped from the end: low ids first.
            free_pages: (0..pages).rev().collect(),
            cache: PrefixCache::new(tables.block_size),
            snapshots: snapshots.map(Snapshots::new),
            idle: 0,
            windowed: [0; MOST_WINDOWS],
            matched: Vec::new(),
        }
    }

    /// From now on what is cached is told by `take_changes`. Nothing is, before.
    pub fn tell_changes(&mut self) {
        self.cache.tell_changes();
    }

    /// Since the last call.
    pub fn take_changes(&mut self) -> Vec<BlockChange> {
        self.cache.take_changes()
    }

    /// All that is cached.
    pub fn known(&self) -> Vec<BlockChange> {
        self.cache.known()
    }

    pub fn block_size(&self) -> u32 {
        self.tables.block_size
    }

    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// All pages.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// How many pages can still be handed out.
    pub fn available(&self) -> u32 {
        self.free() + self.idle
    }

    pub fn free(&self) -> u32 {
        self.free_pages.len() as u32
    }

    /// Pages that are not free, in the full tables and in those of each window.
    pub fn taken(&self) -> Taken {
        let full = (self.blocks.len() - self.free_blocks.len()) as u32 * self.tables.full;
        let mut windows = self.windowed;
        for (blocks, window) in windows.iter_mut().zip(self.tables.windows()) {
            *blocks *= window.tables;
        }
        Taken { full, windows }
    }

    pub fn cached(&self) -> u32 {
        self.idle
    }

    /// One more block for a table; takes from the prefix cache when no pages are free. `false`, and nothing
    /// happens, when there are none.
    pub fn grow(&mut self, table: &mut Table) -> bool {
        if self.available() < self.tables.count() {
            return false;
        }
        while self.free() < self.tables.count() {
            self.evict_pages();
        }
        let Some(block) = self.new_block() else { return false };
        let count = self.tables.count() as usize;
        let from = self.free_pages.len() - count;
        let at = index(block);
        for (page, free) in self.pages[at * count..].iter_mut().zip(self.free_pages.drain(from..).rev()) {
            *page = free;
        }
        let made = &mut self.blocks[at];
        *made = Block { references: 1, ..Block::default() };
        for window in 0..self.tables.windows().len() {
            made.windowed_references[window] = 1;
            made.is_windowed[window] = true;
            self.windowed[window] += 1;
        }
        table.blocks.push(block);
        true
    }

    /// Gives back the windowed pages that no token of the sequence from `position` on reads.
    pub fn advance(&mut self, table: &mut Table, position: u32) {
        self.leave_behind(table, table.blocks.len() as u32, position);
    }

    /// The same of a table whose first `held` blocks it has so far.
    fn leave_behind(&mut self, table: &mut Table, held: u32, position: u32) {
        for number in 0..self.tables.windows().len() {
            let first = self.tables.first_read(&self.tables.windows()[number], position);
            for at in table.first_windowed[number]..first.min(held) {
                self.release_windowed(table.blocks[at as usize], number);
            }
            table.first_windowed[number] = table.first_windowed[number].max(first);
        }
    }

    /// Appends to `table`, which holds the blocks of the first tokens of `tokens`, those registered blocks
    /// that hold the next ones, until it has `limit` blocks or nothing more is known. It goes as far as
    /// everything is there that the token behind it reads, which may be a recurrent state. Then blocks that are not
    /// registered give way to those that are.
    pub fn extend_from_cache(
        &mut self,
        namespace: Namespace,
        tokens: &[TokenId],
        limit: u32,
        table: &mut Table,
    ) -> Reuse {
        let size = self.block_size() as usize;
        let mut matched = std::mem::take(&mut self.matched);
        let before = table.blocks.len();
        let held = if self.snapshots.is_some() { self.registered(table, before) } else { before };
        let mut parent = self.parent(namespace, table, held);
        let (mut usable, mut windowed_from) = (0, table.first_windowed.map(|first| first.min(held as u32)));
        let mut reuse = Reuse::default();
        while let Some(above) = parent
            && held + matched.len() < limit as usize
        {
            let from = (held + matched.len()) * size;
            let Some(node) = self.cache.find(above, &tokens[from..from + size]) else { break };
            matched.push(node);
            parent = Some(Parent::Node(node));
            let end = (held + matched.len()) as u32;
            let is_windowed = self.block_of(node).is_windowed;
            let mut lacks_window = false;
            for (number, window) in self.tables.windows().iter().enumerate() {
                if !is_windowed[number] {
                    windowed_from[number] = end;
                }
                lacks_window |=
                    windowed_from[number] > self.tables.first_read(window, end * self.block_size());
            }
            if lacks_window {
                continue;
            }
            match &self.snapshots {
                None => usable = matched.len(),
                Some(snapshots) => match self.cache.snapshot(node) {
                    Some(place) if snapshots.is_fresh(place) => reuse.fresh = end,
                    Some(_) => usable = matched.len(),
                    None => {}
                },
            }
        }
        reuse.known = (held + matched.len()) as u32;
        reuse.changed = usable > 0 && held + usable >= before;
        if reuse.changed {
            self.truncate(table, held);
            self.share(&matched[..usable], table);
        }
        if self.snapshots.is_some() && reuse.known as usize > table.blocks.len() {
            let next = matched[table.blocks.len() - held];
            let is_off = !reuse.changed && held < before;
            reuse.off_tree = is_off || self.block_of(next).references > 0;
            reuse.branches = matched.last().is_some_and(|&last| self.cache.has_children(last));
        }
        matched.clear();
        self.matched = matched;
        reuse
    }

    /// Appends the blocks of nodes, which follow those of the table.
    fn share(&mut self, nodes: &[NodeId], table: &mut Table) {
        let held = table.blocks.len() as u32;
        for &node in nodes {
            let block = self.cache.block(node);
            if self.block_of(node).references == 0 {
                self.cache.set_busy(node);
                self.idle -= self.tables.full;
            }
            self.blocks[index(block)].references += 1;
            table.blocks.push(block);
        }
        let end = table.blocks.len() as u32;
        self.leave_behind(table, held, end * self.block_size());
        for (number, window) in self.tables.windows().iter().enumerate() {
            for at in table.first_windowed[number].max(held)..end {
                let block = &mut self.blocks[index(table.blocks[at as usize])];
                if block.windowed_references[number] == 0 {
                    self.idle -= window.tables;
                    self.cache.set_window_busy(block.node.expect("what was matched is registered"), number);
                }
                block.windowed_references[number] += 1;
            }
        }
    }

    /// Makes the block at `at` of `table`, which `writer` filled with `tokens`, known to the cache. Does nothing
    /// when the chain before it is not registered, or when another sequence holds a block with the same content:
    /// then the rest of this sequence stays out of the cache.
    pub fn register(
        &mut self,
        namespace: Namespace,
        tokens: &[TokenId],
        table: &Table,
        at: usize,
        writer: SequenceId,
    ) {
        let block = table.blocks[at];
        if self.blocks[index(block)].node.is_some() {
            return;
        }
        let Some(parent) = self.parent(namespace, table, at) else { return };
        self.blocks[index(block)].writer = writer;
        match self.cache.find(parent, tokens) {
            None => self.blocks[index(block)].node = Some(self.cache.insert(parent, tokens, block)),
            Some(node) if self.block_of(node).references == 0 => {
                // The same content, idle: the node moves to the block in use, the old one is free.
                let known = self.cache.block(node);
                self.cache.set_busy(node);
                for window in 0..self.tables.windows().len() {
                    self.cache.set_window_busy(node, window);
                }
                self.cache.replace_block(node, block);
                self.blocks[index(block)].node = Some(node);
                self.idle -= self.free_block(known);
            }
            Some(_) => {}
        }
    }

    /// Of the last block of a table.
    pub fn last_node(&self, table: &Table) -> Option<NodeId> {
        table.blocks.last().and_then(|&block| self.blocks[index(block)].node)
    }

    /// Keeps what was found in the cache, and ends with this node and these tokens, from being evicted soon. With it all
    /// before it is kept, since leaves go first.
    pub fn touch(&mut self, node: NodeId, tokens: &[TokenId]) {
        self.cache.touch(node, tokens);
    }

    /// Lets go of a whole table.
    pub fn release(&mut self, table: &mut Table) {
        self.truncate(table, 0);
        table.first_windowed = Default::default();
    }

    /// Lets go of all blocks of a table but the first `left`, last block first.
    fn truncate(&mut self, table: &mut Table, left: usize) {
        while table.blocks.len() > left
            && let Some(block) = table.blocks.pop()
        {
            for window in 0..self.tables.windows().len() {
                if table.blocks.len() as u32 >= table.first_windowed[window] {
                    self.release_windowed(block, window);
                }
            }
            let held = &mut self.blocks[index(block)];
            held.references -= 1;
            let node = held.node;
            if held.references > 0 {
                continue;
            }
            match node {
                Some(node) if self.tables.count() == 0 && self.leads_nowhere(node) => {
                    self.cache.remove_leaf(node);
                    self.free_block(block);
                }
                Some(node) => {
                    self.cache.set_idle(node);
                    self.idle += self.tables.full;
                }
                None => drop(self.free_block(block)),
            }
        }
    }

    /// Neither a snapshot nor what follows keeps the node.
    fn leads_nowhere(&self, node: NodeId) -> bool {
        self.cache.snapshot(node).is_none() && !self.cache.has_children(node)
    }

    /// A row that attends to the blocks `which` of a table has sampled.
    pub fn vouch(&mut self, table: &Table, which: std::ops::Range<usize>) {
        for &block in &table.blocks[which] {
            self.blocks[index(block)].sound = true;
        }
    }

    /// The logits of a row of `writer`, which has `table`, were not numbers: forgets those blocks that it read or
    /// wrote and that nobody has vouched for, and all that was computed from them. `writer` may have left its
    /// blocks meanwhile, so those are looked for. Who holds such a block keeps it; nobody new will find it. The same of
    /// snapshots: those that it saved, and those along its tokens, with one of which it may have begun.
    pub fn purge(&mut self, table: &Table, writer: SequenceId) {
        let doubtful = table.blocks.iter().map(|&block| index(block)).find(|&at| !self.blocks[at].sound);
        if let Some(node) = doubtful.and_then(|at| self.blocks[at].node) {
            self.forget(node);
        }
        for at in 0..self.blocks.len() {
            let block = &self.blocks[at];
            if let Some(node) = block.node.filter(|_| block.writer == writer && !block.sound) {
                self.forget(node);
            }
        }
        let Some(snapshots) = &self.snapshots else { return };
        let mut nodes = snapshots.doubtful_of(writer);
        nodes.extend(table.blocks.iter().filter_map(|&block| self.blocks[index(block)].node));
        for node in nodes {
            if let Some(snapshots) = &self.snapshots
                && self.cache.snapshot(node).is_some_and(|place| !snapshots.is_sound(place))
            {
                self.drop_snapshot(node);
            }
        }
    }

    /// Takes a node, and all below it, out of the cache.
    fn forget(&mut self, root: NodeId) {
        let mut forgotten = Vec::new();
        self.cache.remove_subtree(root, |block, snapshot| forgotten.push((block, snapshot)));
        for (block, snapshot) in forgotten {
            self.free_snapshot(snapshot);
            let it = &mut self.blocks[index(block)];
            it.node = None;
            if it.references == 0 {
                self.idle -= self.free_block(block);
                continue;
            }
            for window in 0..self.tables.windows().len() {
                let it = &self.blocks[index(block)];
                if it.is_windowed[window] && it.windowed_references[window] == 0 {
                    self.idle -= self.free_windowed(block, window);
                }
            }
        }
    }

    /// Appends the pages of a table's blocks from `from` on, as plans name them.
    pub fn name_pages(&self, table: &Table, from: usize, into: &mut Vec<u32>) {
        let (full, count) = (self.tables.full as usize, self.tables.count() as usize);
        for (at, &block) in table.blocks.iter().enumerate().skip(from) {
            let (pages, mut rest) = self.pages[index(block) * count..][..count].split_at(full);
            into.extend_from_slice(pages);
            for (window, &first) in self.tables.windows().iter().zip(&table.first_windowed) {
                let (pages, others) = rest.split_at(window.tables as usize);
                match at as u32 >= first {
                    true => into.extend_from_slice(pages),
                    false => into.extend(std::iter::repeat_n(NO_PAGE, pages.len())),
                }
                rest = others;
            }
        }
    }

    /// Of a block, in each table.
    pub fn pages_in_tables(&self, block: BlockId) -> &[u32] {
        let count = self.tables.count() as usize;
        &self.pages[index(block) * count..][..count]
    }

    /// How many of the first `blocks` of a table, as far as it has them, are registered: none behind one that is not.
    fn registered(&self, table: &Table, blocks: usize) -> usize {
        let is_registered = |block: &BlockId| self.blocks[index(*block)].node.is_some();
        table.blocks[..blocks.min(table.blocks.len())].iter().rposition(is_registered).map_or(0, |at| at + 1)
    }

    /// What the block at `at` of `table` hangs on; `None` when the one before it is not registered.
    fn parent(&self, namespace: Namespace, table: &Table, at: usize) -> Option<Parent> {
        match at.checked_sub(1) {
            None => Some(Parent::Root { namespace }),
            Some(before) => self.blocks[index(table.blocks[before])].node.map(Parent::Node),
        }
    }

    fn block_of(&self, node: NodeId) -> &Block {
        &self.blocks[index(self.cache.block(node))]
    }

    /// An entry for a block. Where blocks need no page of their own they may run out before the pages do.
    fn new_block(&mut self) -> Option<BlockId> {
        if let Some(block) = self.free_blocks.pop() {
            return Some(block);
        }
        if self.blocks.len() < self.most_blocks {
            self.blocks.push(Block::default());
            self.pages.extend(std::iter::repeat_n(NO_PAGE, self.tables.count() as usize));
            return Some(BlockId(self.blocks.len() as u32 - 1));
        }
        self.evict_leaf();
        self.free_blocks.pop()
    }

    /// Frees what was used longest ago: a block, or what another has behind a window.
    fn evict_pages(&mut self) {
        let (leaf, oldest) = (self.cache.oldest_leaf(), self.cache.oldest_window());
        // Without full tables a block has no other pages, and stays for what hangs on it.
        match oldest {
            Some((window, oldest)) if self.tables.full == 0 || leaf.is_none_or(|leaf| oldest < leaf) => {
                let block = self.cache.block(oldest.1);
                self.cache.set_window_busy(oldest.1, window);
                self.idle -= self.free_windowed(block, window);
            }
            _ => self.evict_leaf(),
        }
    }

    fn evict_leaf(&mut self) {
        let Some((_, leaf)) = self.cache.oldest_leaf() else { return };
        let block = self.cache.block(leaf);
        let snapshot = self.cache.remove_leaf(leaf);
        self.free_snapshot(snapshot);
        self.idle -= self.free_block(block);
    }

    /// One table less holds a block's pages of a window.
    fn release_windowed(&mut self, block: BlockId, window: usize) {
        let held = &mut self.blocks[index(block)];
        held.windowed_references[window] -= 1;
        if held.windowed_references[window] > 0 {
            return;
        }
        match held.node {
            Some(node) => {
                self.cache.set_window_idle(node, window);
                self.idle += self.tables.windows()[window].tables;
            }
            None => drop(self.free_windowed(block, window)),
        }
    }

    /// Nobody knows the block any more. Returns how many pages it had.
    fn free_block(&mut self, block: BlockId) -> u32 {
        let mut freed = self.tables.full;
        for window in 0..self.tables.windows().len() {
            if self.blocks[index(block)].is_windowed[window] {
                freed += self.free_windowed(block, window);
            }
        }
        let from = index(block) * self.tables.count() as usize;
        self.free_pages.extend(self.pages[from..from + self.tables.full as usize].iter().rev());
        self.blocks[index(block)].node = None;
        self.free_blocks.push(block);
        freed
    }

    fn free_windowed(&mut self, block: BlockId, window: usize) -> u32 {
        let tables = self.tables.range_of(window);
        let from = index(block) * self.tables.count() as usize;
        self.free_pages.extend(self.pages[from..][tables.clone()].iter().rev());
        self.blocks[index(block)].is_windowed[window] = false;
        self.windowed[window] -= 1;
        tables.len() as u32
    }
}

fn index(block: BlockId) -> usize {
    block.0 as usize
}
