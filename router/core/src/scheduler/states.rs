//! The recurrent states of sequences, of models that have such: which snapshot a row begins with, where copies are kept
//! for others, and who waits for one. `planning` asks; the places are those of `blocks` and `snapshots`.
//!
//! A copy is kept where it saves the most: at the last block boundary of a prompt that leaves a token to feed, for whoever
//! sends the same prompt or goes on with it; where prompts part, for the next one that begins like them; in passing, every
//! so many tokens of a long prompt; and every so many tokens of an output, for the next turn of a chat.
//!
//! A decoding row is planned before the token that it feeds is known, so its copy has no node yet. Its place is the
//! sequence's until the result of the row before it names that token, with which the block is registered; then the
//! copy is the node's. If the sequence leaves before, or samples nothing, its place is free again. So it is where the copy was
//! made behind a draft, of its row or of one in flight before it, that turns out to be wrong: then the next block has it. So what
//! is attached to a node is always the state behind exactly that node's tokens.
//!
//! Prompts that begin alike and arrive together are computed once: a sequence in the queue whose beginning is just being
//! computed by one that runs waits for the copy that this one will keep. It waits for a running prompt only, and only
//! until that has passed the place, has left its slot, or has ended. A running prompt does not wait for anybody in the
//! queue, and every step that has room gives the first of them a chunk, so the wait ends. Like a head of the queue that
//! finds no blocks, it holds up those behind it.

use super::blocks::Reuse;
use super::core::Core;
use super::sequence::Sequence;
use super::snapshots::Worth;

/// In the place of a snapshot, at position 0.
pub(super) const NO_SNAPSHOT: u32 = u32::MAX;

impl Sequence {
    /// How many tokens, in whole blocks, this one and another begin with alike, if both have one more to feed.
    fn begins_like(&self, other: &Sequence, block_size: u32) -> u32 {
        if self.namespace != other.namespace {
            return 0;
        }
        let most = self.tokens.len().min(other.tokens.len()) - 1;
        let pairs = self.tokens[..most].iter().zip(&other.tokens);
        pairs.take_while(|(one, other)| one == other).count() as u32 / block_size * block_size
    }

    /// What the copy of its state behind `at` of its known tokens is worth, if one is to be kept.
    fn worth(&self, at: u32, block_size: u32, distance: u32) -> Option<Worth> {
        let last = (self.tokens.len() as u32 - 1) / block_size * block_size;
        let states = &self.states;
        if at == last || states.rejoins == Some(at) || states.branch == Some(at) {
            return Some(Worth::Kept);
        }
        at.is_multiple_of(distance).then_some(Worth::Passing)
    }
}

impl Core {
    /// What a look into the prefix cache says of where the sequence's state is worth a copy.
    pub(super) fn note_reuse(&mut self, key: usize, reuse: &Reuse) {
        let position = reuse.known * self.pool.block_size();
        let sequence = &mut self.sequences[key];
        let is_ahead = position > sequence.num_scheduled_tokens;
        sequence.states.rejoins = (is_ahead && reuse.off_tree).then_some(position);
        if is_ahead && reuse.branches {
            sequence.states.branch = Some(position);
        }
    }

    /// A sequence whose first row in its slot was put off may have lost the snapshot that it was to begin with: then it
    /// begins with what is left.
    pub(super) fn ensure_source(&mut self, key: usize) {
        let sequence = &mut self.sequences[key];
        let blocks = sequence.num_scheduled_tokens / self.pool.block_size();
        if !self.pool.has_states() || !sequence.start_due || blocks == 0 {
            return;
        }
        if !self.pool.may_begin(&sequence.table, blocks) {
            self.pool.release(&mut sequence.table);
            sequence.num_scheduled_tokens = 0;
            sequence.registered = 0;
            sequence.vouched = 0;
            sequence.sent_blocks = 0;
        }
    }

    /// What the next row of a sequence, which starts it, says of its state.
    pub(super) fn state_source(&mut self, key: usize) -> Option<u32> {
        if !self.pool.has_states() {
            return None;
        }
        let sequence = &mut self.sequences[key];
        let blocks = sequence.num_scheduled_tokens / self.pool.block_size();
        if blocks == 0 {
            return Some(NO_SNAPSHOT);
        }
        let source = self.pool.begin(&sequence.table, blocks);
        let source =
            source.expect("a sequence is put behind a snapshot only, and `ensure_source` has looked again");
        sequence.states.unvouched.push((0, source));
        Some(source.place)
    }

    /// Whether to wait for the state of another sequence, which computes what this one, just looked up, begins with.
    pub(super) fn waits_for_state(&mut self, key: usize, reuse: &Reuse) -> bool {
        if self.pool.snapshot_places().0 == 0 {
            return false;
        }
        let block_size = self.pool.block_size();
        let sequence = &self.sequences[key];
        let begins = sequence.num_scheduled_tokens;
        if reuse.fresh * block_size > begins {
            return true;
        }
        if !sequence.reads_cache() {
            return false;
        }
        let distance = self.rules.snapshots.of_blocks(block_size).prompt;
        for &other in &self.running {
            let running = &self.sequences[other];
            if running.continues() || running.is_fully_scheduled() {
                continue;
            }
            let passed = begins.max(running.num_scheduled_tokens);
            let alike = running.begins_like(sequence, block_size);
            if alike <= passed {
                continue;
            }
            if running.states.wants_no_branch(running.num_scheduled_tokens) {
                self.sequences[other].states.branch = Some(alike);
                return true;
            }
            // It saves its state where another one wanted it.
            let mut places = (passed / block_size + 1..=alike / block_size).map(|blocks| blocks * block_size);
            if places.any(|at| running.worth(at, block_size, distance).is_some()) {
                return true;
            }
        }
        false
    }

    /// The first in the queue may begin like a prompt that is just planned, and find no room to say so itself: then that one
    /// keeps its state where they part.
    fn note_head(&mut self, key: usize, position: u32) {
        let Some((_, head)) = self.waiting.head() else { return };
        let (running, waiting) = (&self.sequences[key], &self.sequences[head]);
        if waiting.reads_cache() && running.states.wants_no_branch(position) {
            let alike = running.begins_like(waiting, self.pool.block_size());
            self.sequences[key].states.branch = Some(alike).filter(|&alike| alike > position);
        }
    }

    /// Keeps copies of the state of a sequence whose row, the plan's latest, feeds its tokens from `position` on to all that
    /// are scheduled now.
    pub(super) fn save_states(&mut self, key: usize, position: u32, continues: bool) {
        let (places, _) = self.pool.snapshot_places();
        if places == 0 {
            return;
        }
        let block_size = self.pool.block_size();
        let distances = self.rules.snapshots.of_blocks(block_size);
        let end = self.sequences[key].num_scheduled_tokens;
        if continues {
            self.save_decoding(key, position, distances.output);
            self.settle_state(key);
            return;
        }
        self.note_head(key, position);
        for blocks in position / block_size + 1..=end / block_size {
            let at = blocks * block_size;
            let sequence = &mut self.sequences[key];
            let Some(worth) = sequence.worth(at, block_size, distances.prompt) else { continue };
            let (namespace, tokens, table) = (sequence.namespace, &sequence.tokens, &sequence.table);
            let saved = self.pool.save(namespace, tokens, table, blocks, worth, sequence.id);
            if let Some(snapshot) = saved {
                sequence.states.unvouched.push((at, snapshot));
                self.builder.save(at - position, snapshot.place);
                self.counters.state_saves += 1;
            }
        }
    }

    /// Keeps a copy of the state of a sequence that decodes, if one is due where its row feeds tokens: as if all drafts up to there were
    /// accepted, its own and those in flight before it.
    fn save_decoding(&mut self, key: usize, position: u32, distance: u32) {
        let block_size = self.pool.block_size();
        let sequence = &mut self.sequences[key];
        let (end, states) = (sequence.num_scheduled_tokens, &mut sequence.states);
        let Some(at) = states.due(position, end, distance, block_size) else { return };
        if states.reserved.is_some() {
            states.owes_copy = true;
            return;
        }
        // Where there is no place, the next is tried as far on as ever.
        states.owes_copy = false;
        if let Some(snapshot) = self.pool.reserve(&sequence.table, at / block_size, sequence.id) {
            states.reserved = Some((at, snapshot));
            states.unvouched.push((at, snapshot));
            self.builder.save(at - position, snapshot.place);
            self.counters.state_saves += 1;
        }
    }

    /// Drafts of a row were rejected, and it ends at `end`: a copy that was made behind them, by it or by a row that followed, is of no text.
    pub(super) fn drop_rejected_state(&mut self, key: usize, end: u32) {
        let states = &mut self.sequences[key].states;
        if let Some((at, snapshot)) = states.reserved
            && at > end
        {
            (states.reserved, states.owes_copy) = (None, true);
            states.unvouched.retain(|&(of, _)| of != at);
            self.pool.cancel(snapshot);
        }
    }

    /// Places for states in front of drafts that a sequence's next row may take. It gives back those of its latest one.
    pub(super) fn free_draft_states(&self, key: usize) -> u32 {
        if !self.pool.has_states() {
            return u32::MAX;
        }
        self.capacity.draft_states - (self.draft_states - self.sequences[key].states.before_drafts)
    }

    /// A sequence's row, the plan's latest, has so many drafts.
    pub(super) fn hold_draft_states(&mut self, key: usize, drafts: u32) {
        if self.pool.has_states() {
            let held = &mut self.sequences[key].states.before_drafts;
            self.draft_states = self.draft_states - *held + drafts;
            *held = drafts;
        }
    }

    /// Gives the copy that a sequence saved while it decoded to its node, once that is known, in the place of the one
    /// before.
    pub(super) fn settle_state(&mut self, key: usize) {
        let sequence = &mut self.sequences[key];
        let Some((at, snapshot)) = sequence.states.reserved else { return };
        if (sequence.tokens.len() as u32) < at {
            return;
        }
        sequence.states.reserved = None;
        let blocks = at / self.pool.block_size();
        let (namespace, tokens, table) = (sequence.namespace, &sequence.tokens, &sequence.table);
        if self.pool.settle(namespace, tokens, table, blocks, snapshot)
            && let Some(before) = sequence.states.decoded.replace(snapshot)
        {
            self.pool.replace(before);
        }
    }

    /// A row of a sequence has sampled behind `end` tokens: its state was sound up to there.
    pub(super) fn vouch_for_states(&mut self, key: usize, end: u32) {
        let states = &mut self.sequences[key].states;
        states.unvouched.retain(|&(at, snapshot)| {
            let is_sound = at <= end;
            if is_sound {
                self.pool.vouch_for_state(snapshot);
            }
            !is_sound
        });
    }

    /// A sequence leaves its slot, with the tokens that its copy waits for.
    pub(super) fn cancel_state(&mut self, key: usize) {
        if let Some((_, snapshot)) = self.sequences[key].states.reserved.take() {
            self.pool.cancel(snapshot);
        }
    }
}
