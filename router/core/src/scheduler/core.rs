//! The scheduler as a state machine: sequences, queue, slots and blocks, and what happens to them on each
//! event. No clock, no channel to the workers, no async: `task` drives it, tests drive it directly.
//! `planning` builds plans, `results` applies what came back, `quarantine` starts over.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use penstock_proto::CostModel;
use penstock_proto::ids::{SequenceId, SlotId, TokenId};
use penstock_proto::tables::Tables;
use slab::Slab;

use super::block_events::BlockChange;
use super::blocks::BlockPool;
use super::corpus::{Corpora, CorpusId, Recall};
use super::cost::StepCost;
use super::draft_model::DraftAccuracy;
use super::fairness::FairQueue;
use super::handle::{Arrival, StatePlaces, States, Stats};
use super::in_flight::{InFlight, RowRecord, Shape};
use super::mask_job::MaskJob;
use super::order::Precedence;
use super::plan::PlanBuilder;
use super::policy::Drafting;
use super::policy::{FIRST_RUN_FACTOR, HUNG_FACTOR};
use super::prompt_lookup::PromptLookup;
use super::sequence::{PromptLogprobs, Sequence};
use super::snapshots::SnapshotDistances;
use super::submission::{Release, SequenceEvent, SequenceFailure, Unavailable};
use super::throttle::Throttle;
use super::wait_history::{Completions, Probes};

/// What a prepared group offers. May change when workers are replaced.
#[derive(Clone, Debug)]
pub(super) struct Capacity {
    pub pages: u32,
    pub tables: Tables,
    pub max_slots: u32,
    pub max_step_tokens: u32,
    pub max_step_drafts: u32,
    /// Of those for which the workers are prepared, and of which the KV cache holds one.
    pub max_sequence_tokens: u32,
    /// Longest sequence that the workers are prepared for: a plan that feeds more is refused.
    pub prepared_tokens: u32,
    /// Of a pipeline, each of which computes a plan of its own at a time.
    pub stages: u32,
    pub vocab_size: u32,
    pub cost: CostModel,
    /// Of the workers' draft model; `None`: they have none.
    pub draft_cost: Option<CostModel>,
    /// Whether they verify drafts that are a tree.
    pub draft_trees: bool,
    /// Places for copies of recurrent states; `None`: the model has none.
    pub snapshots: Option<u32>,
    /// Places for states in front of drafts, of a model that has states.
    pub draft_states: u32,
}

/// Most blocks without pages that are kept for the prefix cache alone: some 200 bytes each.
const MOST_ADDRESSES: u32 = 1 << 18;

impl Capacity {
    /// Most drafts in a plan.
    pub fn most_drafts(&self) -> u32 {
        self.snapshots.map_or(u32::MAX, |_| self.draft_states).min(self.max_step_drafts)
    }

    fn pool(&self) -> BlockPool {
        let longest = self.max_sequence_tokens.div_ceil(self.tables.block_size) + 1;
        // Those that run, and one that waits and is looked up.
        let held = longest.saturating_mul(self.max_slots + 1);
        // Without pages a block is kept only if it leads to a snapshot.
        let kept = match self.tables.count() {
            0 => longest.saturating_mul(self.snapshots.unwrap_or(0)).min(MOST_ADDRESSES),
            _ => 0,
        };
        BlockPool::new(self.pages, self.tables, held.saturating_add(kept), self.snapshots)
    }
}

/// What stays the same for the scheduler's life.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    pub eos: Vec<TokenId>,
    pub target_itl: Option<Duration>,
    pub step_timeout: Duration,
    pub drafting: Drafting,
    /// Tokens of each tenant's recent answers that drafts come from, too; 0: none.
    pub corpus_tokens: u32,
    pub snapshots: SnapshotDistances,
    /// The model was loaded with some: each START row says which one it is computed with.
    pub has_adapters: bool,
    /// What is cached has content hashes, and `take_block_changes` tells it.
    pub block_events: bool,
}

pub(super) struct Core {
    pub(super) rules: Rules,
    pub(super) capacity: Capacity,
    pub(super) pool: BlockPool,
    pub(super) cost: StepCost,
    pub(super) builder: PlanBuilder,

    pub(super) sequences: Slab<Sequence>,
    pub(super) by_id: HashMap<SequenceId, usize>,
    /// Preempted ones are among them.
    pub(super) waiting: FairQueue,
    /// Keys of the sequences that have a slot, in their order: the first gets what it needs, the last is preempted first.
    pub(super) running: Vec<usize>,
    /// Those that have to run alone; see `quarantine`.
    pub(super) quarantined: BTreeSet<Precedence>,
    /// The size of the step that crashed with those, while none of them has crashed alone.
    pub(super) suspected_step: Option<StepSize>,
    pub(super) throttle: Throttle,
    pub(super) free_slots: Vec<SlotId>,
    pub(super) in_flight: VecDeque<InFlight>,
    /// Not handed out yet.
    pub(super) mask_jobs: Vec<MaskJob>,
    /// Row lists of past plans, to be filled again.
    pub(super) spare_rows: Vec<Vec<RowRecord>>,
    /// Memory for a row's new pages.
    pub(super) named_pages: Vec<u32>,
    /// Memory for the list of prompts of a plan, and for that of its decodes.
    pub(super) spare_prompts: Vec<usize>,
    pub(super) spare_decodes: Vec<usize>,
    /// Memory for a row's drafts.
    pub(super) guesses: Vec<TokenId>,
    pub(super) guess_parents: Vec<u32>,
    /// Places for states in front of drafts that running sequences hold.
    pub(super) draft_states: u32,
    /// That one found no blocks in a plan as the first that runs, since those that could give some were in it already.
    pub(super) first_is_due: Option<SequenceId>,
    /// Of the workers' draft model lately, over all sequences.
    pub(super) draft_accuracy: DraftAccuracy,
    /// When something is to be done about a sequence's deadline.
    pub(super) due: BTreeSet<(Instant, SequenceId)>,
    /// The head of the queue, if it found no room.
    pub(super) blocked: Option<Blocked>,
    /// How often the head of the queue was looked up in the prefix cache.
    #[cfg(test)]
    pub(super) head_lookups: u64,
    /// How often a sequence gave up its slot.
    pub(super) departures: u64,

    pub(super) last_result: Option<Instant>,
    /// Of the steps that these workers have run.
    pub(super) shapes: HashSet<Shape>,
    pub(super) counters: Counters,
    pub(super) completions: Completions,
    pub(super) probes: Probes,
    /// What tenants were answered lately.
    pub(super) corpora: Option<Corpora>,
    /// Digests whose a corpus is; seeds the indexes of `prompt_lookup` and `corpus`.
    hashes: RandomState,
    /// The cache is another one since changes of it were last taken.
    is_cleared: bool,
}

/// How much a step had to do at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepSize {
    pub rows: u32,
    /// If there were prompts in it.
    pub tokens: Option<u32>,
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
    /// Those of them that made room for a higher priority in the queue.
    pub priority_preemptions: u64,
    pub prefix_hit_tokens: u64,
    /// Prompt tokens that came with a copy of a page, from another that ran.
    pub copied_tokens: u64,
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
    /// Rows that sampled nothing, since their masks were late.
    pub late_masks: u64,
    /// Drafts that were verified, and those of them that were accepted.
    pub drafts: u64,
    pub accepted_drafts: u64,
    /// Drafts on branches, where a row had several guesses of one token.
    pub branch_drafts: u64,
    /// Of both, what came from tenants' recent answers.
    pub corpus_drafts: u64,
    pub accepted_corpus_drafts: u64,
    /// Of both those that the workers' draft model made.
    pub model_drafts: u64,
    pub accepted_model_drafts: u64,
    /// Tokens that a grammar left no choice of.
    pub forced_tokens: u64,
    /// Sampled without a mask where a grammar left everything open until then, and dropped.
    pub refused_tokens: u64,
    /// Copies of recurrent states that were kept.
    pub state_saves: u64,
    /// Prompt tokens that are known to the prefix cache, and computed again since no copy of a state is behind them.
    pub recomputed_tokens: u64,
}

impl Core {
    pub fn new(rules: Rules, capacity: Capacity) -> Self {
        let mut pool = capacity.pool();
        if rules.block_events {
            pool.tell_changes();
        }
        let hashes = RandomState::new();
        let seed = hashes.hash_one("corpus");
        Self {
            corpora: (rules.corpus_tokens > 0).then(|| Corpora::new(rules.corpus_tokens, seed)),
            cost: StepCost::new(capacity.cost).with_draft_model(capacity.draft_cost),
            free_slots: slots(capacity.max_slots),
            throttle: Throttle::new(capacity.max_slots, capacity.max_step_tokens),
            builder: PlanBuilder::default(),
            rules,
            capacity,
            pool,
            sequences: Slab::new(),
            by_id: HashMap::new(),
            waiting: FairQueue::default(),
            running: Vec::new(),
            quarantined: BTreeSet::new(),
            suspected_step: None,
            in_flight: VecDeque::new(),
            mask_jobs: Vec::new(),
            spare_rows: Vec::new(),
            named_pages: Vec::new(),
            spare_prompts: Vec::new(),
            spare_decodes: Vec::new(),
            guesses: Vec::new(),
            guess_parents: Vec::new(),
            draft_states: 0,
            first_is_due: None,
            draft_accuracy: DraftAccuracy::default(),
            due: BTreeSet::new(),
            blocked: None,
            #[cfg(test)]
            head_lookups: 0,
            departures: 0,
            last_result: None,
            shapes: HashSet::new(),
            counters: Counters::default(),
            completions: Completions::default(),
            probes: Probes::default(),
            hashes,
            is_cleared: false,
        }
    }

    /// Fresh workers: nothing is cached, every slot is free, plans are numbered from 1.
    pub fn renew(&mut self, capacity: Capacity, now: Instant) {
        debug_assert!(self.in_flight.is_empty() && self.running.is_empty() && self.draft_states == 0);
        self.pool = capacity.pool();
        if self.rules.block_events {
            self.pool.tell_changes();
            self.is_cleared = true;
        }
        self.cost = StepCost::new(capacity.cost).with_draft_model(capacity.draft_cost);
        self.free_slots = slots(capacity.max_slots);
        self.builder = PlanBuilder::default();
        self.capacity = capacity;
        self.blocked = None;
        self.sequences.iter_mut().for_each(|(_, sequence)| sequence.looked_up = None);
        self.last_result = None;
        self.shapes.clear();
        self.completions.resume(now);
        self.fit_to_prepared(now);
    }

    /// Workers that have less memory than those before may be prepared for shorter sequences: live ones end by length where
    /// those do, and fail if they are that long already. One that the KV cache alone has no room for goes on until it is full.
    fn fit_to_prepared(&mut self, now: Instant) {
        let limit = self.capacity.prepared_tokens;
        let too_long = self.sequences.iter().filter(|(_, sequence)| sequence.final_len() > limit);
        for key in too_long.map(|(key, _)| key).collect::<Vec<_>>() {
            let sequence = &mut self.sequences[key];
            match sequence.tokens.len() < limit as usize {
                true => sequence.max_new_tokens = limit - sequence.prompt_len,
                false => self.fail(key, Unavailable::TotalTokens { limit }.into(), now),
            }
        }
    }

    pub fn submit(&mut self, arrival: Arrival, now: Instant) {
        let tenant = arrival.spec.tenant;
        let account = self.waiting.enter(tenant);
        let mut sequence = Sequence::new(arrival, account, self.pool.block_size());
        let corpus = CorpusId(self.hashes.hash_one((tenant, sequence.namespace)));
        if sequence.encoder.tokens > 0 {
            // What an encoder makes of a token depends on all the others: blocks are shared between sequences whose
            // encoders read the same, all of it.
            let read = &sequence.tokens[..sequence.encoder.tokens as usize];
            let read = read.iter().flat_map(|token| token.0.to_le_bytes()).collect::<Vec<u8>>();
            sequence.namespace = sequence.namespace.within([&b"encoder"[..], &read]);
        }
        if self.rules.drafting != Drafting::Off {
            let seed = self.hashes.hash_one(sequence.id);
            sequence.lookup = Some(PromptLookup::new(seed, sequence.encoder.padding()));
            sequence.recall = self.corpora.is_some().then(|| Recall::new(corpus));
            // What the workers draft themselves nobody can compute masks behind.
            let drafts = self.capacity.draft_cost.filter(|_| sequence.constraint.is_none());
            sequence.draft_accuracy = drafts.map(|_| self.draft_accuracy);
        }
        if let Some(why) = self.refusal(&sequence, now) {
            self.waiting.leave(account);
            sequence.tell(SequenceEvent::Failed(why));
            self.counters.failed += 1;
            return;
        }
        let id = sequence.id;
        if self.sequences.is_empty() {
            self.completions.resume(now);
        }
        self.due.extend(sequence.deadline.map(|at| (at, id)));
        let key = self.sequences.insert(sequence);
        self.by_id.insert(id, key);
        self.wait(key);
        self.begin_grammar(key);
    }

    fn refusal(&mut self, sequence: &Sequence, now: Instant) -> Option<SequenceFailure> {
        if sequence.final_len() > self.capacity.max_sequence_tokens || sequence.prompt_len == 0 {
            // The caller checks; the limit may have shrunk since.
            let limit = self.capacity.max_sequence_tokens;
            return Some(Unavailable::TotalTokens { limit }.into());
        }
        self.too_late(sequence, now)
    }

    /// Puts a sequence into the queue.
    pub(super) fn wait(&mut self, key: usize) {
        let sequence = &self.sequences[key];
        // If it has passed, the token that it was left to may not come any more.
        self.due.extend(sequence.stop_at.map(|at| (at, sequence.id)));
        self.waiting.push(sequence.account, sequence.precedence(), key, sequence.tokens.len() as u32);
    }

    /// Its owner wants no more of it.
    pub fn release(&mut self, id: SequenceId, why: Release, now: Instant) {
        let Some(&key) = self.by_id.get(&id) else { return };
        match why {
            Release::Cancelled => {
                self.counters.cancelled += 1;
                self.counters.tokens_after_cancel += u64::from(self.sequences[key].tokens_in_flight);
                self.forgo_verdict(key);
                self.remove(key, now);
            }
            Release::Stopped => {
                self.counters.finished += 1;
                let sequence = self.remove(key, now);
                self.remember(&sequence);
            }
        }
    }

    pub(super) fn finish(&mut self, key: usize, end: SequenceEvent, now: Instant) {
        self.counters.finished += 1;
        let sequence = self.remove(key, now);
        sequence.tell(end);
        self.remember(&sequence);
    }

    pub(super) fn fail(&mut self, key: usize, why: SequenceFailure, now: Instant) {
        self.counters.failed += 1;
        self.forgo_verdict(key);
        let mut sequence = self.remove(key, now);
        while let Some(held) = sequence.take_held() {
            sequence.tell(SequenceEvent::Token(held));
        }
        sequence.tell(SequenceEvent::Failed(why));
    }

    pub fn fail_all(&mut self, why: &SequenceFailure, now: Instant) {
        for key in self.sequences.iter().map(|(key, _)| key).collect::<Vec<_>>() {
            self.fail(key, why.clone(), now);
        }
    }

    /// What the prefix cache gained and lost since the last call.
    pub fn take_block_changes(&mut self) -> Vec<BlockChange> {
        let changes = self.pool.take_changes();
        match std::mem::take(&mut self.is_cleared) {
            true => std::iter::once(BlockChange::Cleared).chain(changes).collect(),
            false => changes,
        }
    }

    /// Takes a sequence out of wherever it is. Rows of it that are in flight will find nobody.
    fn remove(&mut self, key: usize, now: Instant) -> Sequence {
        let id = self.sequences[key].id;
        if self.sequences[key].slot.is_some() {
            self.completions.add(now);
            self.vacate(key);
        } else {
            self.leave_queue(id);
        }
        self.by_id.remove(&id);
        let sequence = self.sequences.remove(key);
        self.quarantined.remove(&sequence.precedence());
        self.waiting.leave(sequence.account);
        for at in sequence.deadline.into_iter().chain(sequence.stop_at) {
            self.due.remove(&(at, id));
        }
        sequence
    }

    /// Makes room: the sequence goes back to the queue, where its priority and its age put it, to be computed again later,
    /// mostly from the prefix cache.
    pub(super) fn preempt(&mut self, key: usize) {
        self.counters.preemptions += 1;
        self.sequences[key].preemptions += 1;
        self.vacate(key);
        self.wait(key);
    }

    /// Makes room for a higher priority. It is not that blocks were too few for those who run: when it comes back it need not
    /// find more room than before.
    pub(super) fn give_way(&mut self, key: usize) {
        self.counters.preemptions += 1;
        self.counters.priority_preemptions += 1;
        self.send_back(key);
    }

    /// A sequence that runs waits again, though there are blocks for it.
    pub(super) fn send_back(&mut self, key: usize) {
        self.vacate(key);
        self.wait(key);
    }

    /// A running sequence gives up slot and blocks. The workers hear of it with the next plan, before its
    /// rows, so the slot may be taken by one of them.
    fn vacate(&mut self, key: usize) {
        self.departures += 1;
        let at = self.running_index(key).expect("a sequence with a slot is running");
        self.running.remove(at);
        self.cancel_state(key);
        let sequence = &mut self.sequences[key];
        self.draft_states -= std::mem::take(&mut sequence.states.before_drafts);
        self.pool.release(&mut sequence.table);
        if let Some(slot) = sequence.slot {
            self.free_slots.push(slot);
            if sequence.started {
                self.builder.release(slot);
            }
        }
        sequence.reset();
    }

    /// Takes a sequence out of the queue. If it was the head that found no room, nobody is blocked now.
    fn leave_queue(&mut self, id: SequenceId) {
        self.waiting.remove(id);
        if self.blocked.as_ref().is_some_and(|blocked| blocked.id == id) {
            self.blocked = None;
        }
    }

    /// Whether another sequence may run.
    pub(super) fn has_slot(&self) -> bool {
        !self.free_slots.is_empty() && (self.running.len() as u32) < self.throttle.rows()
    }

    /// Gives a waiting sequence a slot; there is a free one.
    pub(super) fn assign_slot(&mut self, key: usize) {
        let id = self.sequences[key].id;
        self.leave_queue(id);
        let at = self.running_index(key).unwrap_or_else(|at| at);
        self.running.insert(at, key);
        let sequence = &mut self.sequences[key];
        sequence.slot = self.free_slots.pop();
        debug_assert!(sequence.slot.is_some());
        // What came back of an earlier, unfinished pass over the prompt is computed again.
        if let PromptLogprobs::Collecting(collected) = &mut sequence.prompt_logprobs {
            collected.clear();
        }
    }

    pub(super) fn running_index(&self, key: usize) -> Result<usize, usize> {
        let own = self.sequences[key].precedence();
        self.running.binary_search_by_key(&own, |&key| self.sequences[key].precedence())
    }

    /// When a worker that has not answered by then counts as hung; `None` while nothing is in flight, and while its
    /// oldest step waits for masks.
    pub fn deadline(&self) -> Option<Instant> {
        let oldest = self.in_flight.front()?;
        if oldest.owes_masks() {
            return None;
        }
        let since =
            self.last_result.max(oldest.masks_sent).map_or(oldest.built, |last| last.max(oldest.built));
        let expected: Duration = self.in_flight.iter().map(|step| step.expected).sum();
        let granted: Duration = self.in_flight.iter().map(|step| step.granted).sum();
        Some(since + self.rules.step_timeout + granted + expected * HUNG_FACTOR)
    }

    /// Whether a step that is overdue may be given more time, as long as its workers live: it is the first of its
    /// size, for which they may compile or tune.
    pub fn may_grant(&self) -> bool {
        self.first_run().is_some_and(|step| step.granted < self.rules.step_timeout * FIRST_RUN_FACTOR)
    }

    /// The workers live: gives that step more time.
    pub fn grant(&mut self) {
        let more = self.rules.step_timeout;
        if let Some(at) = self.first_run().map(|step| step.number)
            && let Some(step) = self.in_flight.iter_mut().find(|step| step.number == at)
        {
            step.granted += more;
        }
    }

    /// Of the steps that the workers have begun, the first of its size.
    fn first_run(&self) -> Option<&InFlight> {
        self.in_flight.iter().take(self.capacity.stages.max(1) as usize).find(|step| step.first_run)
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

    fn states_held(&self) -> States {
        if !self.pool.has_states() {
            return States::default();
        }
        let slots = self.capacity.max_slots;
        let (total, used) = self.pool.snapshot_places();
        States {
            slots: StatePlaces { total: slots, used: slots - self.free_slots.len() as u32 },
            drafts: StatePlaces { total: self.capacity.draft_states, used: self.draft_states },
            snapshots: StatePlaces { total, used },
        }
    }

    pub fn stats(&self) -> Stats {
        // In whole blocks of all tables.
        let tables = self.capacity.tables.count().max(1);
        let used = self.pool.total() - self.pool.free() - self.pool.cached();
        let [blocks, blocks_free, blocks_cached] =
            [self.pool.total(), self.pool.free(), self.pool.cached()].map(|pages| pages / tables);
        Stats {
            live: self.sequences.len() as u32,
            waiting: self.waiting.len() as u32,
            running: self.running.len() as u32,
            max_slots: self.capacity.max_slots,
            blocks,
            blocks_used: used.div_ceil(tables),
            blocks_cached,
            blocks_free,
            block_size: self.pool.block_size(),
            pages: self.pool.taken(),
            states: self.states_held(),
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
        let tables: Vec<&penstock_proto::tables::Table> =
            self.sequences.iter().map(|(_, sequence)| &sequence.table).collect();
        let reserved = self.sequences.iter().filter_map(|(_, sequence)| sequence.states.reserved());
        self.pool.check(&tables, &reserved.collect::<Vec<_>>());
        assert_eq!(self.sequences.len(), self.by_id.len());
        assert_eq!(self.sequences.len(), self.waiting.len() + self.running.len());
        assert!(self.running.is_sorted_by_key(|&key| self.sequences[key].precedence()));
        let mut slots: Vec<_> = self.running.iter().filter_map(|&key| self.sequences[key].slot).collect();
        assert_eq!(slots.len(), self.running.len());
        slots.extend(&self.free_slots);
        slots.sort();
        slots.dedup();
        assert_eq!(slots.len() as u32, self.capacity.max_slots, "a slot is free or has one sequence");
        let held: u32 = self.sequences.iter().map(|(_, sequence)| sequence.states.before_drafts).sum();
        assert_eq!(held, self.draft_states);
        assert!(held <= self.capacity.draft_states);
        assert!(self.in_flight.len() <= super::policy::plans_in_flight(self.capacity.stages));
        for (key, sequence) in &self.sequences {
            let rows = self.in_flight.iter().flat_map(|step| &step.rows);
            let own: Vec<_> = rows.filter(|row| row.key == key && row.id == sequence.id).collect();
            assert_eq!(own.len() as u32, sequence.rows_in_flight);
            assert_eq!(own.iter().map(|row| row.tokens).sum::<u32>(), sequence.tokens_in_flight);
            assert_eq!(own.iter().filter(|row| row.sample).count() as u32, sequence.samples_in_flight);
            let unmasked = own.iter().filter(|row| row.sample && !row.masked).count();
            assert_eq!(unmasked as u32, sequence.unmasked_in_flight);
            let drafts = |counts: fn(&RowRecord) -> bool| {
                own.iter().filter(|row| counts(row)).map(|row| row.drafts).sum::<u32>()
            };
            assert_eq!(drafts(|_| true), sequence.drafts_in_flight);
            assert_eq!(drafts(|row| row.own_drafts), sequence.model_drafts_in_flight);
            assert_eq!(drafts(|row| row.stale_drafts), sequence.stale_drafts_in_flight);
            assert!(
                sequence.num_scheduled_tokens <= sequence.table.blocks.len() as u32 * self.pool.block_size()
            );
            assert!(sequence.len() <= sequence.final_len());
            assert!(sequence.vouched <= sequence.table.blocks.len());
            if sequence.slot.is_none() {
                assert!(sequence.table.blocks.is_empty() && self.waiting.get(sequence.id) == Some(key));
            }
        }
        self.waiting.check(self.sequences.len());
        assert!(self.blocked.as_ref().is_none_or(|blocked| self.waits(blocked.id)), "who is blocked waits");
        let due =
            self.sequences.iter().flat_map(|(_, sequence)| [sequence.deadline, sequence.stop_at]).flatten();
        assert!(self.due.len() <= due.count());
    }

    /// Of those that wait or run.
    pub fn first(&self) -> Option<SequenceId> {
        self.sequences.iter().map(|(_, sequence)| sequence.precedence()).min().map(|first| first.id)
    }

    /// Nobody waits past the time at which it is to stop, but for a token in flight or at its grammar.
    pub fn check_due(&self, now: Instant) {
        for (_, sequence) in &self.sequences {
            let over = sequence.slot.is_none() && sequence.stop_at.is_some_and(|at| at <= now);
            let comes = sequence.samples_in_flight > 0 || sequence.held() > 0;
            assert!(!over || comes, "{:?} waits though its time is up", sequence.id);
        }
    }

    /// Tokens of its prompt that no plan has yet.
    pub fn prompt_left(&self, id: SequenceId) -> u64 {
        let sequence = self.by_id.get(&id).map(|&key| &self.sequences[key]);
        let left = sequence.map(|sequence| sequence.prompt_len.saturating_sub(sequence.num_scheduled_tokens));
        u64::from(left.unwrap_or(0))
    }

    pub fn waits(&self, id: SequenceId) -> bool {
        self.waiting.get(id).is_some()
    }

    /// For want of blocks.
    pub fn preemptions_of(&self, id: SequenceId) -> Option<u32> {
        self.by_id.get(&id).map(|&key| self.sequences[key].preemptions)
    }
}

fn slots(count: u32) -> Vec<SlotId> {
    // Popped from the end: low ids first.
    (0..count).rev().map(SlotId).collect()
}
