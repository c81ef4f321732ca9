//! How a sequence leaves the queue: it gets a slot and blocks if both are there for it, and room for those who run to grow; what its
//! head found is remembered, so that it is not looked up again at every step. Asked by `planning`.
//!
//! A sequence that finds no slot or no blocks takes those of sequences that run with a lower priority, one in a
//! plan (`make_way`).

use penstock_proto::ids::SequenceId;

use super::core::{Blocked, Core};
use super::order::Turn;
use super::planning::{Draft, Room};
use super::policy::{DEPARTURES_PER_LOOKUP, growth, lookahead};
use super::sequence::{LookedUp, Sequence};
use super::submission::SequenceEvent;

impl Core {
    /// Preempts the last that runs if the head of the queue has a higher priority, and found no slot or no room. One at a
    /// time: what it leaves may be enough.
    pub(super) fn make_way(&mut self) {
        let Some((head, key)) = self.waiting.head() else { return };
        let is_stuck = !self.has_slot() || self.is_still_blocked(head.id);
        if let Some(&last) = self.running.last()
            && head.priority < self.sequences[last].priority
            && self.sequences[key].rows_in_flight == 0
            && is_stuck
        {
            self.give_way(last);
        }
    }

    /// Lets in the sequence whose turn it is, or finds that there is no room for it now.
    pub(super) fn admit(&mut self, draft: &mut Draft, room: &mut Room) {
        room.is_there = false;
        let Some((Turn { id, .. }, key)) = self.waiting.head() else { return };
        let block_size = self.pool.block_size();
        // Rows of a preempted sequence that are still in flight will bring tokens to start from.
        if !self.has_slot() || self.sequences[key].rows_in_flight > 0 || self.is_still_blocked(id) {
            return;
        }
        if self.is_still_unfed(key, draft) {
            return;
        }
        let ahead = lookahead(self.sequences[key].preemptions, block_size);
        let chunk = self.capacity.max_step_tokens;
        let tables = self.pool.tables();
        let others: u32 = match room.running_growth {
            Some(sum) if self.sequences[key].preemptions == 0 => sum,
            _ => self.running.iter().map(|&key| growth(&self.sequences[key], ahead, tables, chunk)).sum(),
        };
        if self.still_lacks_pages(key, others) {
            return;
        }
        #[cfg(test)]
        {
            self.head_lookups += 1;
        }
        let available = self.pool.available();
        let reuse = self.reuse_cached(key);
        let sequence = &self.sequences[key];
        let begins = sequence.num_scheduled_tokens;
        let node = self.pool.last_node(&sequence.table);
        let looked_up = LookedUp { begins, node, pages: None, departures: self.departures };
        let waits = self.waits_for_state(key, &reuse) || self.waits_for_copy(key, &draft.rows);
        if waits || self.chunk(key, 0, draft) == 0 {
            self.forget_cached(key);
            self.sequences[key].looked_up = Some(looked_up);
            return;
        }
        let sequence = &self.sequences[key];
        let own = growth(sequence, ahead, self.pool.tables(), chunk);
        let shared = available - self.pool.available();
        if own.saturating_add(others) > self.pool.available() && !self.running.is_empty() {
            let pages = Some(own.saturating_add(shared));
            self.sequences[key].looked_up = Some(LookedUp { pages, ..looked_up });
            self.forget_cached(key);
            self.blocked = Some(Blocked { id, room: self.pool.available(), departures: self.departures });
            return;
        }
        self.blocked = None;
        room.is_there = true;
        let cached_tokens = sequence.cached_tokens();
        let first_time = sequence.preemptions == 0;
        let again = (reuse.known * block_size).saturating_sub(sequence.num_scheduled_tokens);
        self.counters.recomputed_tokens += u64::from(again);
        self.assign_slot(key);
        self.count_hits(key, 0);
        let sequence = &mut self.sequences[key];
        if !sequence.was_admitted {
            sequence.was_admitted = true;
            sequence.tell(SequenceEvent::Admitted { cached_tokens });
        }
        let rows = draft.rows.len();
        self.plan_row(key, draft);
        draft.admitted += (draft.rows.len() - rows) as u32;
        room.running_growth = match self.sequences.get(key) {
            Some(sequence) if first_time => {
                Some(others + growth(sequence, ahead, self.pool.tables(), self.capacity.max_step_tokens))
            }
            _ => None,
        };
    }

    /// Whether the head of the queue would find no more room than when it was last tried: a long prompt
    /// must not be looked up in the cache at every step.
    fn is_still_blocked(&self, id: SequenceId) -> bool {
        let unchanged = |blocked: &Blocked| {
            blocked.id == id && blocked.departures == self.departures && self.pool.available() <= blocked.room
        };
        !self.running.is_empty() && self.blocked.as_ref().is_some_and(unchanged)
    }

    /// The same after something changed: the head would not find room for what it would have taken when it was last looked
    /// up, beside what `others` need. Now and then it is looked up all the same: the cache may have more of it by now.
    fn still_lacks_pages(&mut self, key: usize, others: u32) -> bool {
        let (available, departures) = (self.pool.available(), self.departures);
        let Sequence { id, looked_up, tokens, .. } = &self.sequences[key];
        let Some(LookedUp { begins, node, pages: Some(pages), departures: then }) = *looked_up else {
            return false;
        };
        let lacks = pages.saturating_add(others) > available;
        if self.running.is_empty() || !lacks || departures - then >= DEPARTURES_PER_LOOKUP {
            return false;
        }
        if let Some(node) = node {
            let block_size = self.pool.block_size() as usize;
            self.pool.touch(node, &tokens[begins as usize - block_size..begins as usize]);
        }
        self.blocked = Some(Blocked { id: *id, room: available, departures });
        true
    }

    /// Whether the head of the queue, beside prompts that are in the step already, may feed nothing from where it would have
    /// begun when it was last looked up.
    fn is_still_unfed(&self, key: usize, draft: &Draft) -> bool {
        let Sequence { looked_up, .. } = &self.sequences[key];
        let (begins, is_told) = (looked_up.map(|looked_up| looked_up.begins), self.sequences[key].is_told());
        let chunk = |at| draft.budget.chunk(&self.cost, at, self.pool.block_size(), is_told);
        draft.budget.work.prompts && begins.is_some_and(|at| chunk(at) == 0)
    }
}
