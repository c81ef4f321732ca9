//! Builds the next plan: a row for every running sequence that decodes, then prompts, running ones and new ones
//! from the queue, as far as slots, blocks and the step's budget go, in the `order` of priority, fairness and age.
//!
//! When blocks run out they are taken from the last in that order, lowest priority and youngest, if it has no row in the plan
//! yet: one that has a row never loses its blocks to a later one (see `blocks` for why that must not happen). The first
//! sequence that runs, the oldest of the highest priority, always gets what it needs: if all that could give blocks have rows
//! already, it comes first in the next plan. No sequence is longer than the pool, so it ends, and the next one is the first.
//! `admission` lets sequences in from the queue.

use std::time::{Duration, Instant};

use penstock_proto::StepPlan;
use penstock_proto::ids::{SequenceId, TokenId};

use super::blocks::Reuse;
use super::core::Core;
use super::cost::Work;
use super::fairness::cost;
use super::in_flight::{InFlight, RowRecord, Yields};
use super::order::Turn;
use super::plan::{Feed, PromptTargets, Row, Start};
use super::policy::{MicrobatchSchedule, PromptBudget, align, plans_in_flight};
use super::sequence::{PromptLogprobs, Sequence};
use super::snapshots::StateRecord;
use super::speculation::{Allotment, Drafter};
use super::submission::{SequenceEvent, Unavailable};

/// A plan being built.
pub(super) struct Draft {
    pub rows: Vec<RowRecord>,
    pub work: Work,
    pub prompt_rows: u32,
    pub admitted: u32,
    pub budget: PromptBudget,
    /// Sequences whose rows verify drafts, and how many at most.
    pub drafts: Vec<Allotment>,
    pub now: Instant,
}

/// What the queue finds, while a plan is built.
pub(super) struct Room {
    /// Pages by which those who run must be able to grow, if that is known.
    pub running_growth: Option<u32>,
    /// False once the head of the queue found none.
    pub is_there: bool,
}

impl Core {
    /// The next plan, to be sent at once; `None` when there is nothing to do, or enough in flight.
    pub fn plan(&mut self, now: Instant) -> Option<StepPlan> {
        self.lift_quarantine();
        self.resume_late();
        self.index_answers();
        if self.in_flight.len() >= plans_in_flight(self.capacity.stages) || self.waits_for_drafts() {
            return None;
        }
        let mut draft = Draft {
            rows: self.spare_rows.pop().unwrap_or_default(),
            work: Work::default(),
            prompt_rows: 0,
            admitted: 0,
            budget: PromptBudget { tokens: self.throttle.tokens(), work: Work::default(), target: None },
            drafts: Vec::new(),
            now,
        };
        match self.quarantined.first() {
            Some(&suspect) => self.plan_quarantined(suspect.id, &mut draft),
            None => {
                self.make_way();
                self.plan_decodes(&mut draft);
                self.plan_prompts(&mut draft);
            }
        }
        if draft.rows.is_empty() {
            self.spare_rows.push(draft.rows);
            return None;
        }
        let plan = self.builder.finish();
        self.pool.plan_finished();
        let mut step = InFlight {
            number: plan.number,
            rows: draft.rows,
            work: draft.work,
            prompt_rows: draft.prompt_rows,
            first_run: false,
            is_lone: self.in_flight.is_empty(),
            masks_sent: None,
            is_masked: false,
            granted: Duration::ZERO,
            admitted: draft.admitted,
            expected: self.cost.expect(draft.work),
            built: now,
        };
        step.first_run = !self.shapes.contains(&step.shape());
        step.is_masked = step.rows.iter().any(|row| row.masked);
        let guessed = step.rows.iter().filter(|row| row.guesses.len() as u32 > row.forced);
        let guessed: Vec<usize> = guessed.map(|row| row.key).collect();
        self.in_flight.push_back(step);
        for key in guessed {
            self.walk_guesses(key);
        }
        Some(plan)
    }

    fn plan_decodes(&mut self, draft: &mut Draft) {
        let decodes = |sequence: &Sequence| sequence.continues() && !sequence.is_fully_scheduled();
        let decoding = self.running.iter().filter(|&&key| decodes(&self.sequences[key])).count() as u32;
        let last = self.in_flight.back().map_or(0, |step| step.number);
        let microbatches = MicrobatchSchedule::new(self.capacity.stages, decoding, last);
        // Decodes come out of the budget first: a prompt must not keep them waiting.
        let budget = &mut draft.budget;
        let mut keys = std::mem::take(&mut self.spare_decodes);
        for &key in &self.running {
            let sequence = &self.sequences[key];
            if budget.work.tokens < microbatches.max_rows
                && decodes(sequence)
                && microbatches.may_decode(sequence)
            {
                budget.work.add(sequence.num_scheduled_tokens, 1);
                keys.push(key);
            }
        }
        budget.tokens = budget.tokens.saturating_sub(budget.work.tokens);
        budget.target = self.rules.target_itl.filter(|_| budget.work.tokens > 0);
        // Prompts have half of what is left at least, and what an encoder reads at once finds room for all of it.
        let room = self.capacity.max_step_tokens.saturating_sub(budget.work.tokens + self.next_whole());
        let most = self.capacity.most_drafts().min(budget.tokens / 2).min(room);
        draft.drafts = self.allot_forced(&keys, most);
        let forced: u32 = draft.drafts.iter().map(|allotted| allotted.drafts).sum();
        // Those come first in their rows, and what is guessed behind them.
        draft.drafts.extend(self.allot_drafts(&keys, budget.work, most - forced));
        for allotted in &draft.drafts {
            allotted.add_to(&mut budget.work);
            budget.tokens -= allotted.drafts;
        }
        keys.clear();
        self.spare_decodes = keys;
        // It may have left since, and whoever is first now has no such right.
        if let Some(due) = self.first_is_due.take()
            && let Some(&first) = self.running.first()
            && self.sequences[first].id == due
        {
            let sequence = &self.sequences[first];
            match sequence.continues() && !microbatches.may_decode(sequence) {
                true => self.first_is_due = Some(due),
                false => self.plan_row(first, draft),
            }
        }
        let mut at = 0;
        while let Some(&key) = self.running.get(at) {
            let sequence = &self.sequences[key];
            // The first may have its row already.
            let is_next = sequence.continues() && draft.rows.first().is_none_or(|row| row.key != key);
            if is_next
                && microbatches.may_decode(sequence)
                && (draft.rows.len() as u32) < microbatches.max_rows
            {
                self.plan_row(key, draft);
            }
            at += 1;
        }
    }

    /// Positions that have to be fed at once of whichever prompt may be next.
    fn next_whole(&mut self) -> u32 {
        let head = self.waiting.head().map(|(_, key)| key);
        let keys = self.running.iter().copied().chain(head);
        keys.map(|key| self.sequences[key].whole()).max().unwrap_or(0)
    }

    fn turn(&self, key: usize) -> Turn {
        let sequence = &self.sequences[key];
        Turn { priority: sequence.priority, served: self.waiting.served(sequence.account), id: sequence.id }
    }

    /// Prompts, in the order of their turns: those that run and those that wait
    /// compete for what is left of the step. The first in the queue that finds no room holds up those behind
    /// it: a large request cannot be overtaken for ever by small ones.
    fn plan_prompts(&mut self, draft: &mut Draft) {
        let has_row = |key: usize| draft.rows.first().is_some_and(|row| row.key == key);
        let mut prompts = std::mem::take(&mut self.spare_prompts);
        prompts.extend(self.running.iter().copied().filter(|&key| {
            let sequence = &self.sequences[key];
            !sequence.continues() && !sequence.is_fully_scheduled() && !has_row(key)
        }));
        // The one that is next comes last.
        prompts.sort_by_key(|&key| std::cmp::Reverse(self.turn(key)));
        let mut room = Room { running_growth: None, is_there: true };
        while draft.budget.chunk(&self.cost, 0, self.pool.block_size(), false) > 0 {
            let running = prompts.last().map(|&key| self.turn(key));
            let waiting = if room.is_there { self.waiting.head() } else { None };
            match (running, waiting) {
                (Some(running), Some((head, _))) if head.overtakes(running) => self.admit(draft, &mut room),
                (Some(_), _) => {
                    let Some(key) = prompts.pop() else { break };
                    // An earlier row may have taken its blocks, and with them its slot; it may even be back.
                    let mut planned = draft.rows.iter().rev().take(draft.prompt_rows as usize);
                    if self.sequences[key].slot.is_some() && planned.all(|row| row.key != key) {
                        self.plan_row(key, draft);
                        room.running_growth = None;
                    }
                }
                (None, Some(_)) => self.admit(draft, &mut room),
                (None, None) => break,
            }
        }
        prompts.clear();
        self.spare_prompts = prompts;
    }

    /// A plan for one sequence only, which is suspected of crashing workers. Others keep what they have, as
    /// long as it does not need it, and wait.
    fn plan_quarantined(&mut self, id: SequenceId, draft: &mut Draft) {
        if self.in_flight.iter().flat_map(|step| &step.rows).any(|row| row.id != id) {
            return;
        }
        let key = match self.waiting.get(id) {
            Some(key) => {
                if self.sequences[key].rows_in_flight > 0 {
                    return;
                }
                if self.free_slots.is_empty()
                    && let Some(&last) = self.running.last()
                {
                    self.preempt(last);
                }
                self.reuse_cached(key);
                self.assign_slot(key);
                self.count_hits(key, 0);
                let sequence = &mut self.sequences[key];
                if !sequence.was_admitted {
                    sequence.was_admitted = true;
                    sequence.tell(SequenceEvent::Admitted { cached_tokens: sequence.cached_tokens() });
                }
                key
            }
            None => match self.running.iter().find(|&&key| self.sequences[key].id == id) {
                Some(&key) => key,
                None => return,
            },
        };
        self.plan_row(key, draft);
    }

    /// Adds a sequence's next row to the plan, if it has one and the budget allows it.
    pub(super) fn plan_row(&mut self, key: usize, draft: &mut Draft) {
        if self.sequences[key].is_fully_scheduled() {
            return;
        }
        let continues = self.sequences[key].continues();
        let mut copied = None;
        let mut count = if continues {
            1
        } else {
            self.ensure_source(key);
            if self.chunk(key, 0, draft) == 0 {
                return;
            }
            let before = self.sequences[key].num_scheduled_tokens;
            // Someone with the same prompt may have come further meanwhile.
            let reuse = self.reuse_cached(key);
            self.count_hits(key, before);
            let sequence = &mut self.sequences[key];
            if reuse.changed {
                // A slot feeds its positions without a gap. Beyond one it is started anew, with its whole table.
                sequence.start_due = true;
                sequence.sent_blocks = 0;
            }
            copied = self.copy_source(key, &draft.rows).found;
            self.chunk(key, copied.map_or(0, |(_, tokens)| tokens), draft)
        };
        let held = self.sequences[key].table.blocks.len();
        let beside = copied.map_or(0, |(_, tokens)| tokens);
        if count == 0 || !self.take_blocks(key, beside + count, draft) {
            return;
        }
        if let Some(source) = copied {
            let before = self.sequences[key].num_scheduled_tokens;
            match self.copy_block(key, held, source) {
                // What has room is computed instead.
                0 => count = self.chunk(key, 0, draft).min(beside + count),
                tokens => self.sequences[key].num_scheduled_tokens += tokens,
            }
            self.count_hits(key, before);
            if count == 0 {
                return;
            }
        }
        let mut guesses = std::mem::take(&mut self.guesses);
        guesses.clear();
        let mut parents = std::mem::take(&mut self.guess_parents);
        parents.clear();
        let (mut own, mut forced, mut recalled, mut deepest) = (0, 0, false, 0);
        if continues && draft.drafts.iter().any(|allotted| allotted.key == key) {
            let allotted = draft.drafts.iter().filter(|allotted| allotted.key == key);
            let most = allotted.clone().map(|allotted| allotted.drafts).sum::<u32>();
            let most = most.min(self.free_draft_states(key));
            let drafts = self.make_room_for_drafts(key, most);
            for allotted in allotted {
                let sequence = &self.sequences[key];
                let room = drafts - guesses.len() as u32;
                match allotted.drafter {
                    Drafter::Model => own = room,
                    Drafter::Grammar => {
                        let of_it = sequence.forced_behind(sequence.tokens_ahead());
                        guesses.extend(of_it.take(room.min(allotted.drafts) as usize));
                        forced = guesses.len() as u32;
                    }
                    Drafter::Text => {
                        let beside = allotted.branches.iter().sum::<u32>();
                        let ahead = sequence.tokens_ahead().max(sequence.forced().0.count() as u32);
                        let guess = self.guessed(key, ahead);
                        guesses.extend(guess.take(room.min(allotted.drafts - beside) as usize));
                        recalled = guesses.len() as u32 > forced && self.recalls(key);
                        if beside > 0 {
                            deepest = self.add_branches(key, allotted, room, &mut guesses, &mut parents);
                        }
                    }
                }
            }
            if parents.is_empty() {
                deepest = guesses.len() as u32 + own;
            }
        }
        (self.guesses, self.guess_parents) = (guesses, parents);
        let drafts = self.guesses.len() as u32 + own;
        // Those that do not follow the one before them begin a branch: the rest of it, too, is beside the guess.
        let beside = self.guess_parents.iter().skip(1).position(|&parent| parent == 0);
        let beside = beside.map_or(0, |at| drafts - 1 - at as u32);
        let advance = count + deepest;
        count += drafts;
        self.charge(key, advance);

        let state_source = if self.sequences[key].start_due { self.state_source(key) } else { None };
        self.follow_text(key);
        let sequence = &mut self.sequences[key];
        let position = sequence.num_scheduled_tokens;
        let end = position + advance;
        let (known, ahead) = (sequence.tokens.len() as u32, sequence.tokens_ahead());
        let sample = continues || end == known;
        let masked = sample && sequence.constraint.as_ref().is_some_and(|constraint| !constraint.is_free());
        let tokens = &sequence.tokens;
        let targets = match &sequence.prompt_logprobs {
            PromptLogprobs::Collecting(_) if position + 1 < sequence.prompt_len => {
                let following = &tokens[position as usize + 1..(end + 1).min(sequence.prompt_len) as usize];
                Some(PromptTargets { following })
            }
            _ => None,
        };
        let is_told = targets.is_some();
        draft.rows.push(RowRecord {
            key,
            id: sequence.id,
            tokens: count,
            end,
            sample,
            drafts: deepest,
            forced,
            guessed_at: known + ahead,
            guesses: if masked { self.guesses.clone() } else { Vec::new() },
            recalled,
            own_drafts: own > 0,
            stale_drafts: false,
            top_tokens: sequence.top_tokens,
            prompt_targets: if is_told { count } else { 0 },
            masked,
            open: Vec::new(),
            yields: Yields::Everything,
            wanted_targets: targets.as_ref().map_or(0, |targets| targets.following.len() as u32),
        });
        self.named_pages.clear();
        self.pool.name_pages(&sequence.table, sequence.sent_blocks, &mut self.named_pages);
        let start = sequence.start_due.then_some(Start {
            sampling: &sequence.sampling,
            top_tokens: sequence.top_tokens,
            tokens,
            prompt_len: sequence.prompt_len,
            encoder: sequence.encoder,
            state_source,
            adapter: self
                .rules
                .has_adapters
                .then(|| sequence.adapter.map_or(0, |adapter| adapter.number.get())),
            ends: [&self.rules.eos, &sequence.stop_token_ids],
        });
        self.builder.row(Row {
            slot: sequence.slot.expect("only running sequences get rows"),
            position,
            feed: match continues {
                true => Feed::Continue { drafts: &self.guesses, parents: &self.guess_parents, own },
                false => Feed::Tokens(&tokens[position as usize..end as usize]),
            },
            new_blocks: (sequence.table.blocks.len() - sequence.sent_blocks) as u32,
            new_pages: &self.named_pages,
            sample,
            masked,
            prompt_targets: targets,
            start,
            trace: sequence.trace,
        });

        draft.work.add(position, count - drafts);
        draft.work.targets += if is_told { count } else { 0 };
        draft.work.add_drafts(drafts);
        draft.work.has_tree |= beside > 0;
        if masked {
            draft.work.masks_ns += sequence.mask_cost().as_nanos() as f64 * f64::from(drafts - forced);
        }
        draft.work.drafted.add(own);
        self.counters.drafts += u64::from(drafts - forced);
        self.counters.corpus_drafts += u64::from(if recalled { drafts - forced } else { 0 });
        self.counters.model_drafts += u64::from(own);
        self.counters.branch_drafts += u64::from(beside);
        if continues {
            self.counters.decode_tokens += u64::from(count);
        } else {
            self.counters.prompt_tokens += u64::from(count);
            draft.work.prompts = true;
            draft.prompt_rows += 1;
            draft.budget.take(&self.cost, position, count, is_told);
        }
        sequence.started = true;
        sequence.last_plan = self.builder.number();
        if sequence.start_due {
            sequence.start_plan = sequence.last_plan;
        }
        sequence.start_due = false;
        sequence.sent_blocks = sequence.table.blocks.len();
        sequence.num_scheduled_tokens = end;
        sequence.rows_in_flight += 1;
        sequence.tokens_in_flight += count;
        sequence.drafts_in_flight += deepest;
        sequence.model_drafts_in_flight += own;
        if sample {
            sequence.samples_in_flight += 1;
            sequence.unmasked_in_flight += u32::from(!masked);
            sequence.slot_sampled = Some(end);
        }
        self.hold_draft_states(key, drafts);
        self.register(key);
        self.save_states(key, position, continues);
    }

    /// Adds drafts on branches to those of a sequence's guess, and which each follows; at most `most` in all. Returns how many are on
    /// the longest path.
    fn add_branches(
        &self,
        key: usize,
        allotted: &Allotment,
        most: u32,
        guesses: &mut Vec<TokenId>,
        parents: &mut Vec<u32>,
    ) -> u32 {
        let mut deepest = guesses.len();
        parents.extend(0..guesses.len() as u32);
        let ahead = self.sequences[key].tokens_ahead();
        for (branch, &length) in self.branches(key, ahead).zip(&allotted.branches) {
            let room = (most as usize).saturating_sub(guesses.len());
            let from = guesses.len();
            guesses.extend(branch.take(room.min(length as usize)));
            let numbers = from as u32..guesses.len() as u32;
            parents.extend(numbers.map(|number| if number as usize == from { 0 } else { number }));
            deepest = deepest.max(guesses.len() - from);
        }
        if guesses.len() == deepest {
            parents.clear();
        }
        deepest as u32
    }

    /// Charges a sequence's tenant for its next `count` positions, as far as they are new.
    fn charge(&mut self, key: usize, count: u32) {
        let sequence = &mut self.sequences[key];
        let end = sequence.num_scheduled_tokens + count;
        let from = sequence.num_scheduled_tokens.max(sequence.charged);
        if from < end {
            sequence.charged = end;
            self.waiting.charge(sequence.account, cost(sequence.prompt_len, sequence.is_told(), from, end));
        }
    }

    /// Counts what the prefix cache gave a sequence beyond `before`. What it had computed itself, before it lost its
    /// blocks, is no hit.
    pub(super) fn count_hits(&mut self, key: usize, before: u32) {
        let sequence = &mut self.sequences[key];
        let before = before.max(sequence.charged);
        if sequence.num_scheduled_tokens > before {
            self.counters.prefix_hit_tokens += u64::from(sequence.num_scheduled_tokens - before);
            sequence.charged = sequence.num_scheduled_tokens;
        }
    }

    /// How many tokens of what it has to feed behind the next `copied` ones a sequence may feed now.
    pub(super) fn chunk(&self, key: usize, copied: u32, draft: &Draft) -> u32 {
        let block_size = self.pool.block_size();
        let sequence = &self.sequences[key];
        debug_assert_eq!(sequence.samples_in_flight, 0, "what a slot sampled is fed by continuing");
        let position = sequence.num_scheduled_tokens + copied;
        let remaining = sequence.tokens.len() as u32 - position;
        let (whole, budget) = (sequence.whole(), &draft.budget);
        let mut most = budget.chunk(&self.cost, position, block_size, sequence.is_told());
        if whole > most {
            // What cannot be cut may break the target, and the throttle, as the first of a step, or it would wait for
            // ever. The step's limit leaves room for it beside all decodes.
            let room = self.capacity.max_step_tokens.saturating_sub(budget.work.tokens);
            if budget.work.prompts || whole > room {
                return 0;
            }
            most = whole;
        }
        let count = align(position, most, remaining, block_size, draft.budget.work.prompts);
        sequence.states.cut(position, count)
    }

    /// Continues a block table with what the prefix cache knows of its next tokens. The last token is
    /// always left to compute, for its logits, and with it its whole block: a shared block is never
    /// written. Of what an encoder read all is there or nothing counts.
    pub(super) fn reuse_cached(&mut self, key: usize) -> Reuse {
        let block_size = self.pool.block_size();
        let sequence = &mut self.sequences[key];
        if !sequence.reads_cache()
            || sequence.num_scheduled_tokens != sequence.table.blocks.len() as u32 * block_size
        {
            return Reuse::default();
        }
        let limit = (sequence.tokens.len() as u32 - 1) / block_size;
        let namespace = sequence.namespace;
        let reuse = self.pool.extend_from_cache(namespace, &sequence.tokens, limit, &mut sequence.table);
        if (sequence.table.blocks.len() as u32 * block_size) < sequence.encoder.positions {
            self.pool.release(&mut sequence.table);
        }
        sequence.num_scheduled_tokens = sequence.table.blocks.len() as u32 * block_size;
        sequence.registered = sequence.registered.max(sequence.table.blocks.len());
        sequence.vouched = sequence.vouched.min(sequence.table.blocks.len());
        self.note_reuse(key, &reuse);
        reuse
    }

    /// Undoes `reuse_cached` of a sequence that stays in the queue.
    pub(super) fn forget_cached(&mut self, key: usize) {
        let sequence = &mut self.sequences[key];
        self.pool.release(&mut sequence.table);
        sequence.num_scheduled_tokens = 0;
        sequence.registered = 0;
        sequence.states = StateRecord::default();
    }

    /// Offers the blocks that are full by now, and whose tokens are known, to the prefix cache.
    pub(super) fn register(&mut self, key: usize) {
        let sequence = &mut self.sequences[key];
        let block_size = self.pool.block_size() as usize;
        let full = sequence.tokens.len().min(sequence.num_scheduled_tokens as usize) / block_size;
        while sequence.registered < full {
            let at = sequence.registered;
            let tokens = &sequence.tokens[at * block_size..(at + 1) * block_size];
            self.pool.register(sequence.namespace, tokens, &sequence.table, at, sequence.id);
            sequence.registered += 1;
        }
        self.settle_state(key);
    }

    /// Gets the blocks for the next `count` tokens, from later sequences if need be, and gives back what is behind
    /// their window. `false` when the sequence has to step back itself.
    fn take_blocks(&mut self, key: usize, count: u32, draft: &Draft) -> bool {
        let sequence = &mut self.sequences[key];
        let blocks = (sequence.num_scheduled_tokens + count).div_ceil(self.pool.block_size()) as usize;
        let missing = blocks.saturating_sub(sequence.table.blocks.len()) as u32 * self.pool.tables().count();
        if sequence.drafts_in_flight > 0 && missing > self.pool.available() {
            // It may be shorter than it was planned to be, and need no more: the results tell.
            return false;
        }
        let confirmed = sequence.confirmed();
        self.pool.advance(&mut sequence.table, confirmed);
        while self.sequences[key].table.blocks.len() < blocks {
            if self.pool.grow(&mut self.sequences[key].table) {
                continue;
            }
            match self.victim(key, draft) {
                Some(victim) => self.preempt(victim),
                None => {
                    self.step_back(key, draft.now);
                    return false;
                }
            }
        }
        true
    }

    /// The last running sequence, unless that is `key` or has a row in this plan.
    fn victim(&self, key: usize, draft: &Draft) -> Option<usize> {
        let other = |candidate: &&usize| **candidate != key;
        let last = match self.quarantined.is_empty() {
            true => self.running.last().filter(other),
            false => self.running.iter().rev().find(other),
        };
        last.copied().filter(|victim| draft.rows.iter().all(|row| row.key != *victim))
    }

    fn step_back(&mut self, key: usize, now: Instant) {
        if self.running.len() > 1 {
            match self.running.first() == Some(&key) && self.quarantined.is_empty() {
                true => self.first_is_due = Some(self.sequences[key].id),
                false => self.preempt(key),
            }
            return;
        }
        // Alone in the pool and still too large: possible only when fresh workers have less memory.
        let limit = self.pool.tables().tokens(self.pool.total());
        self.fail(key, Unavailable::CacheTokens { limit }.into(), now);
    }
}
