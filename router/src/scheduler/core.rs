//! The scheduler as a state machine: sequences, queue, slots and blocks, and what happens to them on each
//! event. No clock, no channel to the workers, no async: `task` drives it, tests drive it directly.
//! `planning` builds plans, `results` applies what came back, `loss` starts over.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use slab::Slab;

use super::blocks::BlockPool;
use super::cost::StepCost;
use super::fairness::FairQueue;
use super::handle::{Arrival, Stats};
use super::live::{InFlight, Live, RowRecord};
use super::plan::PlanBuilder;
use super::policy::HUNG_FACTOR;
use super::sequence::{Release, SequenceEvent, SequenceFailure};
use super::tables::Tables;
use crate::ids::{SequenceId, SlotId, TokenId};
use crate::worker::proto::CostModel;

/// What a prepared group offers. May change when workers are replaced.
#[derive(Clone, Debug)]
pub(super) struct Capacity {
    pub pages: u32,
    pub tables: Tables,
    pub max_slots: u32,
    pub max_step_tokens: u32,
    pub max_sequence_tokens: u32,
    /// Of a pipeline, each of which computes a plan of its own at a time.
    pub stages: u32,
    pub vocab_size: u32,
    pub cost: CostModel,
}

impl Capacity {
    fn pool(&self) -> BlockPool {
        let longest = self.max_sequence_tokens.div_ceil(self.tables.block_size) + 1;
        // Those that run, and one that waits and is looked up.
        BlockPool::new(self.pages, self.tables, longest.saturating_mul(self.max_slots + 1))
    }
}

/// What stays the same for the scheduler's life.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    pub eos: Vec<TokenId>,
    pub target_itl: Option<Duration>,
    pub step_timeout: Duration,
}

pub(super) struct Core {
    pub(super) rules: Rules,
    pub(super) capacity: Capacity,
    pub(super) pool: BlockPool,
    pub(super) cost: StepCost,
    pub(super) builder: PlanBuilder,

    pub(super) sequences: Slab<Live>,
    pub(super) by_id: HashMap<SequenceId, usize>,
    /// Preempted ones are among them.
    pub(super) waiting: FairQueue,
    /// Keys of the sequences that have a slot, oldest first.
    pub(super) running: Vec<usize>,
    /// Those that have to run alone; see `loss`.
    pub(super) suspects: BTreeSet<SequenceId>,
    pub(super) free_slots: Vec<SlotId>,
    pub(super) in_flight: VecDeque<InFlight>,
    /// Row lists of past plans, to be filled again.
    pub(super) spare_rows: Vec<Vec<RowRecord>>,
    /// Memory for a row's new pages.
    pub(super) named_pages: Vec<u32>,
    /// Memory for the list of prompts of a plan.
    pub(super) spare_prompts: Vec<usize>,
    /// The oldest found no blocks in the last plan, since those that could give some were in it already.
    pub(super) oldest_is_due: bool,
    /// When something is to be done about a sequence's deadline.
    pub(super) due: BTreeSet<(Instant, SequenceId)>,
    /// The head of the queue, if it found no room.
    pub(super) blocked: Option<Blocked>,
    /// How often a sequence gave up its slot.
    pub(super) departures: u64,

    pub(super) last_result: Option<Instant>,
    pub(super) counters: Counters,
    pub(super) completions: Completions,
    /// Digests what encoders read.
    encoders: RandomState,
}

/// A head of the queue that found no room, and when: it is not tried again before something changed.
pub(super) struct Blocked {
    pub id: SequenceId,
    pub room: u32,
    pub departures: u64,
}

/// What is counted; only ever grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters {
    pub steps: u64,
    pub preemptions: u64,
    pub prefix_hit_tokens: u64,
    /// Tokens fed, of prompts and of decodes.
    pub prompt_tokens: u64,
    pub decode_tokens: u64,
    /// Tokens sampled and handed to their requests.
    pub generated_tokens: u64,
    pub finished: u64,
    pub failed: u64,
    pub cancelled: u64,
    pub tokens_after_cancel: u64,
    /// Rows whose sequence had ended when their result came.
    pub wasted_rows: u64,
}

impl Core {
    pub fn new(rules: Rules, capacity: Capacity) -> Self {
        let pool = capacity.pool();
        Self {
            cost: StepCost::new(capacity.cost),
            free_slots: slots(capacity.max_slots),
            builder: PlanBuilder::default(),
            rules,
            capacity,
            pool,
            sequences: Slab::new(),
            by_id: HashMap::new(),
            waiting: FairQueue::default(),
            running: Vec::new(),
            suspects: BTreeSet::new(),
            in_flight: VecDeque::new(),
            spare_rows: Vec::new(),
            named_pages: Vec::new(),
            spare_prompts: Vec::new(),
            oldest_is_due: false,
            due: BTreeSet::new(),
            blocked: None,
            departures: 0,
            last_result: None,
            counters: Counters::default(),
            completions: Completions::default(),
            encoders: RandomState::new(),
        }
    }

    /// Fresh workers: nothing is cached, every slot is free, plans are numbered from 1.
    pub fn renew(&mut self, capacity: Capacity) {
        debug_assert!(self.in_flight.is_empty() && self.running.is_empty());
        self.pool = capacity.pool();
        self.cost = StepCost::new(capacity.cost);
        self.free_slots = slots(capacity.max_slots);
        self.builder = PlanBuilder::default();
        self.capacity = capacity;
        self.blocked = None;
        self.last_result = None;
    }

    pub fn submit(&mut self, arrival: Arrival, now: Instant) {
        let account = self.waiting.enter(arrival.spec.party);
        let mut live = Live::new(arrival, account, self.pool.block_size());
        if live.encoder.tokens > 0 {
            // What an encoder makes of a token depends on all the others: blocks are shared between sequences whose
            // encoders read the same, all of it.
            let read = &live.tokens[..live.encoder.tokens as usize];
            live.namespace = self.encoders.hash_one((live.namespace, read));
        }
        if let Some(why) = self.refusal(&live, now) {
            self.waiting.leave(account);
            live.tell(SequenceEvent::Failed(why));
            self.counters.failed += 1;
            return;
        }
        let id = live.id;
        self.due.extend(live.deadline.into_iter().chain(live.stop_at).map(|at| (at, id)));
        let key = self.sequences.insert(live);
        self.by_id.insert(id, key);
        self.wait(key);
    }

    fn refusal(&mut self, live: &Live, now: Instant) -> Option<SequenceFailure> {
        if live.final_len() > self.capacity.max_sequence_tokens || live.prompt_len == 0 {
            // The caller checks; the limit may have shrunk since.
            let limit = self.capacity.max_sequence_tokens;
            let why = format!("prompt and output together may have at most {limit} tokens now");
            return Some(SequenceFailure::Unavailable(why));
        }
        self.too_late(live, now)
    }

    /// Puts a sequence into the queue.
    pub(super) fn wait(&mut self, key: usize) {
        let live = &self.sequences[key];
        self.waiting.push(live.account, live.id, key, live.tokens.len() as u32);
    }

    /// Its owner wants no more of it.
    pub fn release(&mut self, id: SequenceId, why: Release, now: Instant) {
        let Some(&key) = self.by_id.get(&id) else { return };
        match why {
            Release::Cancelled => {
                self.counters.cancelled += 1;
                self.counters.tokens_after_cancel += u64::from(self.sequences[key].tokens_in_flight);
                self.remove(key);
            }
            Release::Stopped => {
                self.counters.finished += 1;
                self.completions.add(now);
                self.remove(key);
            }
        }
    }

    pub(super) fn finish(&mut self, key: usize, end: SequenceEvent, now: Instant) {
        self.counters.finished += 1;
        self.completions.add(now);
        self.remove(key).tell(end);
    }

    pub(super) fn fail(&mut self, key: usize, why: SequenceFailure) {
        self.counters.failed += 1;
        self.remove(key).tell(SequenceEvent::Failed(why));
    }

    pub fn fail_all(&mut self, why: &SequenceFailure) {
        for key in self.sequences.iter().map(|(key, _)| key).collect::<Vec<_>>() {
            self.fail(key, why.clone());
        }
    }

    /// Takes a sequence out of wherever it is. Rows of it that are in flight will find nobody.
    fn remove(&mut self, key: usize) -> Live {
        let id = self.sequences[key].id;
        if self.sequences[key].slot.is_some() {
            self.vacate(key);
        } else {
            self.waiting.remove(id);
        }
        self.by_id.remove(&id);
        self.suspects.remove(&id);
        let live = self.sequences.remove(key);
        self.waiting.leave(live.account);
        for at in live.deadline.into_iter().chain(live.stop_at) {
            self.due.remove(&(at, id));
        }
        live
    }

    /// Makes room: the sequence goes back to its place in the queue, to be computed again later, mostly
    /// from the prefix cache.
    pub(super) fn preempt(&mut self, key: usize) {
        self.counters.preemptions += 1;
        self.sequences[key].preemptions += 1;
        self.vacate(key);
        self.wait(key);
    }

    /// A running sequence gives up slot and blocks. The workers hear of it with the next plan, before its
    /// rows, so the slot may be taken by one of them.
    fn vacate(&mut self, key: usize) {
        self.departures += 1;
        let id = self.sequences[key].id;
        let at = self.running_index(id).expect("a sequence with a slot is running");
        self.running.remove(at);
        let live = &mut self.sequences[key];
        self.pool.release(&mut live.table);
        if let Some(slot) = live.slot {
            self.free_slots.push(slot);
            if live.started {
                self.builder.release(slot);
            }
        }
        live.unplace();
    }

    /// Gives a waiting sequence a slot; there is a free one.
    pub(super) fn place(&mut self, key: usize) {
        let id = self.sequences[key].id;
        self.waiting.remove(id);
        let at = self.running_index(id).unwrap_or_else(|at| at);
        self.running.insert(at, key);
        let live = &mut self.sequences[key];
        live.slot = self.free_slots.pop();
        debug_assert!(live.slot.is_some());
        // What came back of an earlier, unfinished pass over the prompt is computed again.
        if let super::live::PromptLogprobs::Collecting(collected) = &mut live.prompt_logprobs {
            collected.clear();
        }
    }

    fn running_index(&self, id: SequenceId) -> Result<usize, usize> {
        self.running.binary_search_by_key(&id, |&key| self.sequences[key].id)
    }

    /// When a worker that has not answered by then counts as hung; `None` while nothing is in flight.
    pub fn deadline(&self) -> Option<Instant> {
        let oldest = self.in_flight.front()?;
        let since = self.last_result.map_or(oldest.built, |last| last.max(oldest.built));
        let expected: Duration = self.in_flight.iter().map(|step| step.expected).sum();
        Some(since + self.rules.step_timeout + expected * HUNG_FACTOR)
    }

    /// Steps in flight, and how long nothing was heard of them.
    pub fn waiting_for(&self, now: Instant) -> (usize, Duration) {
        let since = self.in_flight.front().map(|oldest| oldest.built).max(self.last_result);
        let waited = since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        (self.in_flight.len(), waited)
    }

    /// For each step in flight, whether it has prompts.
    pub fn unfinished(&self) -> impl Iterator<Item = bool> {
        self.in_flight.iter().map(|step| step.work.prompts)
    }

    pub fn last_plan(&self) -> Option<&InFlight> {
        self.in_flight.back()
    }

    /// Tokens that the running sequences may have at most.
    pub fn max_running_tokens(&self) -> u64 {
        self.running.iter().map(|&key| u64::from(self.sequences[key].final_len())).sum()
    }

    pub fn live(&self) -> usize {
        self.sequences.len()
    }

    pub fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }

    pub fn stats(&self) -> Stats {
        // In whole blocks of all tables.
        let tables = self.capacity.tables.count().max(1);
        let [blocks, blocks_free, blocks_cached] =
            [self.pool.total(), self.pool.free(), self.pool.cached()].map(|pages| pages / tables);
        Stats {
            live: self.sequences.len() as u32,
            waiting: self.waiting.len() as u32,
            running: self.running.len() as u32,
            max_slots: self.capacity.max_slots,
            blocks,
            blocks_used: blocks - blocks_cached - blocks_free,
            blocks_cached,
            blocks_free,
            block_size: self.pool.block_size(),
            steps: self.counters.steps,
            generated_tokens: self.counters.generated_tokens,
            worker_restarts: 0,
            preemptions: self.counters.preemptions,
            prefix_hit_tokens: self.counters.prefix_hit_tokens,
            tokens_after_cancel: self.counters.tokens_after_cancel,
        }
    }
}

#[cfg(test)]
impl Core {
    /// Everything that holds between two events.
    pub fn check(&self) {
        let tables: Vec<&super::tables::Table> = self.sequences.iter().map(|(_, live)| &live.table).collect();
        self.pool.check(&tables);
        assert_eq!(self.sequences.len(), self.by_id.len());
        assert_eq!(self.sequences.len(), self.waiting.len() + self.running.len());
        assert!(self.running.is_sorted_by_key(|&key| self.sequences[key].id));
        let mut slots: Vec<_> = self.running.iter().filter_map(|&key| self.sequences[key].slot).collect();
        assert_eq!(slots.len(), self.running.len());
        slots.extend(&self.free_slots);
        slots.sort();
        slots.dedup();
        assert_eq!(slots.len() as u32, self.capacity.max_slots, "a slot is free or has one sequence");
        assert!(self.in_flight.len() <= super::policy::plans_in_flight(self.capacity.stages));
        for (key, live) in &self.sequences {
            let rows = self.in_flight.iter().flat_map(|step| &step.rows);
            let own: Vec<_> = rows.filter(|row| row.key == key && row.id == live.id).collect();
            assert_eq!(own.len() as u32, live.rows_in_flight);
            assert_eq!(own.iter().map(|row| row.tokens).sum::<u32>(), live.tokens_in_flight);
            assert_eq!(own.iter().filter(|row| row.sample).count() as u32, live.samples_in_flight);
            assert!(live.planned <= live.table.blocks.len() as u32 * self.pool.block_size());
            assert!(live.len() <= live.final_len());
            if live.slot.is_none() {
                assert!(live.table.blocks.is_empty() && self.waiting.get(live.id) == Some(key));
            }
        }
        self.waiting.check(self.sequences.len());
        let due = self.sequences.iter().flat_map(|(_, live)| [live.deadline, live.stop_at]).flatten();
        assert!(self.due.len() <= due.count());
    }

    pub fn oldest(&self) -> Option<SequenceId> {
        self.by_id.keys().min().copied()
    }

    pub fn waits(&self, id: SequenceId) -> bool {
        self.waiting.get(id).is_some()
    }

    pub fn preemptions_of(&self, id: SequenceId) -> Option<u32> {
        self.by_id.get(&id).map(|&key| self.sequences[key].preemptions)
    }
}

fn slots(count: u32) -> Vec<SlotId> {
    // Popped from the end: low ids first.
    (0..count).rev().map(SlotId).collect()
}

/// The recent rate at which sequences end.
#[derive(Default)]
pub(super) struct Completions {
    last: Option<Instant>,
    /// Between two ends, smoothed.
    interval: Option<Duration>,
}

impl Completions {
    fn add(&mut self, now: Instant) {
        if let Some(last) = self.last.replace(now) {
            let gap = now.saturating_duration_since(last);
            self.interval = Some(self.interval.map_or(gap, |smooth| (smooth * 7 + gap) / 8));
        }
    }

    /// Never shorter than the time since the last end: a stall shows at once. `None` before two have ended.
    pub(super) fn interval(&self, now: Instant) -> Option<Duration> {
        let stalled = self.last.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        self.interval.map(|interval| interval.max(stalled))
    }
}
