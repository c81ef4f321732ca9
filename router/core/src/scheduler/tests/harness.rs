//! Drives a core and a mock model as the task and a worker would, step by step, and keeps each client's
//! view: what it was sent must be what an undisturbed run gives.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_proto::ids::{SequenceId, TokenId};
use penstock_proto::{Masks, ModelDescription, RowFlag, StepPlan};

use super::client::Client;
use super::pages::Pages;
use crate::adapter::{Adapter, Adapters};
use crate::constraint::{Grammar, Matcher};
use crate::scheduler::block_events::BlockChange;
use crate::scheduler::cache_names::{BlockHash, Namespace};
use crate::scheduler::core::{Capacity, Core, Rules};
use crate::scheduler::handle::Arrival;
use crate::scheduler::mailbox::{Dispatcher, mailbox};
use crate::scheduler::mask_job::MaskJob;
use crate::scheduler::policy::Drafting;
use crate::scheduler::results::Stepped;
use crate::scheduler::snapshots::SnapshotDistances;
use crate::scheduler::submission::{Priority, Release, Sampling, SequenceSpec};
use crate::tenant::Tenant;
use crate::worker::mock::{MockConfig, MockModel};

/// How long a step takes.
pub const STEP: Duration = Duration::from_micros(100);

const MAX_STEP_DRAFTS: u32 = 20;

/// Small enough that blocks, slots and budgets run out all the time.
pub fn tiny() -> MockConfig {
    MockConfig { vocab_size: 50, pages: 24, block_size: 4, max_positions: 96, ..MockConfig::default() }
}

/// The model was loaded with two.
pub fn with_adapters(config: MockConfig) -> MockConfig {
    MockConfig { adapters: ["one", "two"].map(str::to_owned).to_vec(), ..config }
}

/// One of those.
pub fn adapter(number: u32) -> Adapter {
    let model = ModelDescription {
        adapters: with_adapters(tiny()).described_adapters(),
        ..ModelDescription::default()
    };
    let adapters = Adapters::of(&model).expect("they have names");
    let name = adapters.names().nth(number as usize - 1).expect("one of two");
    adapters.named(name).expect("it has this name")
}

pub fn capacity(config: &MockConfig, max_slots: u32, max_step_tokens: u32) -> Capacity {
    let prepared_tokens = config.max_positions.min(config.fits);
    Capacity {
        pages: config.pages,
        tables: config.tables(),
        max_slots,
        max_step_tokens,
        max_step_drafts: MAX_STEP_DRAFTS,
        max_sequence_tokens: prepared_tokens.min(config.tables().longest(config.pages, max_step_tokens)),
        prepared_tokens,
        stages: config.stages,
        vocab_size: config.vocab_size,
        cost: config.cost,
        draft_cost: config.prepared().draft_cost,
        draft_trees: config.draft_trees,
        snapshots: (config.state_bytes > 0).then_some(config.snapshots),
        draft_states: config.draft_states,
    }
}

/// Small enough for `tiny`.
pub const SNAPSHOT_DISTANCES: SnapshotDistances = SnapshotDistances { prompt: 16, output: 8 };

pub fn spec(prompt: &[u32], max_new_tokens: u32) -> SequenceSpec {
    SequenceSpec {
        encoder: Vec::new(),
        prompt: prompt.iter().copied().map(TokenId).collect(),
        sampling: Sampling::default(),
        max_new_tokens,
        ignore_eos: false,
        stop_token_ids: Vec::new(),
        top_tokens: 0,
        prompt_logprobs: false,
        constraint: None,
        adapter: None,
        cache_namespace: Namespace::default(),
        tenant: Tenant::Anonymous,
        priority: Priority::default(),
        deadline: None,
        stop_at: None,
        trace: None,
    }
}

/// A grammar of `length` tokens, each of which says which may follow it.
#[derive(Clone, Debug)]
pub struct Every {
    pub modulus: u32,
    pub length: u32,
    /// If it may end after every token that is not the only one allowed, the token that ends it.
    pub end: Option<u32>,
    /// So many tokens of which there is only one in each place, then so many with a choice, and so on; 0: always a choice.
    pub forced: u32,
    pub vocab_size: u32,
}

#[derive(Clone)]
struct EveryMatcher {
    grammar: Every,
    count: u32,
    last: u32,
    ended: bool,
}

impl Grammar for Every {
    fn matcher(&self) -> Box<dyn Matcher> {
        Box::new(EveryMatcher { grammar: Every { ..*self }, count: 0, last: 0, ended: false })
    }
}

impl EveryMatcher {
    fn allows(&self, token: u32) -> bool {
        match (self.only(), self.grammar.end == Some(token)) {
            (Some(only), _) => token == only,
            (None, true) => self.count > 0,
            (None, false) => {
                token > 2 && token % self.grammar.modulus == (self.count + self.last) % self.grammar.modulus
            }
        }
    }

    fn only(&self) -> Option<u32> {
        let part = self.count.checked_div(self.grammar.forced)?;
        part.is_multiple_of(2).then(|| 3 + (7 * self.count + self.last) % (self.grammar.vocab_size - 3))
    }
}

impl Matcher for EveryMatcher {
    fn advance(&mut self, token: TokenId) -> Result<(), String> {
        if !self.allows(token.0) {
            return Err(format!("{} is not allowed", token.0));
        }
        self.ended |= self.grammar.end == Some(token.0);
        self.count += 1;
        self.last = token.0;
        Ok(())
    }

    fn mask(&mut self, words: &mut [u32]) -> Result<(), String> {
        words.fill(0);
        let allowed = (0..self.grammar.vocab_size).filter(|&token| self.allows(token));
        allowed.for_each(|token| words[(token / 32) as usize] |= 1 << (token % 32));
        Ok(())
    }

    fn take_forced(&mut self, most: usize) -> Result<Vec<TokenId>, String> {
        let mut taken = Vec::new();
        while let Some(only) = self.only()
            && taken.len() < most
            && !self.is_complete()
        {
            self.advance(TokenId(only))?;
            taken.push(TokenId(only));
        }
        Ok(taken)
    }

    fn is_complete(&self) -> bool {
        self.ended || self.count == self.grammar.length
    }

    fn fork(&mut self) -> Box<dyn Matcher> {
        Box::new(self.clone())
    }
}

/// Of the vocabulary of `tiny`.
pub fn every(modulus: u32, length: u32, end: Option<u32>) -> Option<Arc<dyn Grammar>> {
    every_forcing(modulus, length, end, 0)
}

/// The same, where so many tokens in a row, every other time, are the only ones that may follow.
pub fn every_forcing(modulus: u32, length: u32, end: Option<u32>, forced: u32) -> Option<Arc<dyn Grammar>> {
    Some(Arc::new(Every { modulus, length, end, forced, vocab_size: tiny().vocab_size }))
}

pub struct Harness {
    pub config: MockConfig,
    pub core: Core,
    pub model: MockModel,
    pub plans: VecDeque<StepPlan>,
    /// What each page and each state holds, where all layers have one table, or none.
    pages: Option<Pages>,
    /// The row of the next plan whose logits are not numbers.
    pub overflows: Option<usize>,
    /// For each of `plans`, the rows that sample from such logits.
    spoiled: VecDeque<Vec<u32>>,
    /// A plan with more rows kills the workers.
    pub most_rows: u32,
    pub crashes: u32,
    pub clients: BTreeMap<SequenceId, Client>,
    /// What is cached, as its changes say.
    blocks: BTreeSet<BlockHash>,
    /// Steps that pass before a mask is computed; 0: it is in time.
    pub mask_delay: u32,
    /// How long after its step began a mask is sent, if it is in time.
    pub mask_time: Duration,
    /// With the steps that passed since.
    jobs: VecDeque<(MaskJob, u32)>,
    /// Of the plans that have some.
    pub masks: VecDeque<Masks>,
    /// By so much longer a step takes for each token that it feeds.
    pub token_time: Duration,
    /// And for each of a prompt of which log probabilities are told.
    pub target_time: Duration,
    /// And by so much if there are trees of drafts in it.
    pub tree_time: Duration,
    pub now: Instant,
    next_id: u64,
}

impl Harness {
    pub fn new(config: MockConfig, max_slots: u32, max_step_tokens: u32) -> Self {
        Self::with_target(config, max_slots, max_step_tokens, None)
    }

    pub fn with_target(
        config: MockConfig,
        max_slots: u32,
        max_step_tokens: u32,
        target_itl: Option<Duration>,
    ) -> Self {
        let rules = Rules {
            eos: config.eos_ids.iter().copied().map(TokenId).collect(),
            target_itl,
            step_timeout: Duration::from_secs(10),
            drafting: Drafting::Off,
            corpus_tokens: 0,
            snapshots: SNAPSHOT_DISTANCES,
            has_adapters: !config.adapters.is_empty(),
            block_events: true,
        };
        let core = Core::new(rules, capacity(&config, max_slots, max_step_tokens));
        let model = MockModel::new(config.clone(), max_slots, max_step_tokens).with_drafts(MAX_STEP_DRAFTS);
        let pages = (config.full_tables <= 1 && config.windows.is_empty()).then(Pages::default);
        Self {
            config,
            core,
            model,
            plans: VecDeque::new(),
            pages,
            overflows: None,
            spoiled: VecDeque::new(),
            most_rows: u32::MAX,
            crashes: 0,
            clients: BTreeMap::new(),
            blocks: BTreeSet::new(),
            mask_delay: 0,
            mask_time: Duration::ZERO,
            jobs: VecDeque::new(),
            masks: VecDeque::new(),
            token_time: Duration::ZERO,
            target_time: Duration::ZERO,
            tree_time: Duration::ZERO,
            now: Instant::now(),
            next_id: 1,
        }
    }

    /// With speculation. What pages hold is not followed then: positions in plans are only bounds.
    pub fn speculating(mut self, drafting: Drafting) -> Self {
        self.core.rules.drafting = drafting;
        self.pages = self.pages.filter(|_| drafting == Drafting::Off);
        self
    }

    pub fn submit(&mut self, spec: SequenceSpec) -> SequenceId {
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        let (sender, events) = mailbox(&Dispatcher::new(None));
        self.core.submit(Arrival { id, spec: spec.clone(), events: sender, permit: None }, self.now);
        let client = Client::new(id, spec, events);
        self.clients.insert(id, client);
        id
    }

    pub fn release(&mut self, id: SequenceId, why: Release) {
        self.core.release(id, why, self.now);
        self.read_events();
        self.clients.get_mut(&id).expect("was submitted").released = true;
    }

    /// Sends what can be sent.
    pub fn plan(&mut self) -> usize {
        self.core.expire(self.now);
        self.core.check_due(self.now);
        loop {
            let unknown = self.of_unknown_length();
            let Some(plan) = self.core.plan(self.now) else { break };
            let step = self.core.in_flight.back().expect("was planned");
            for (row, flags) in step.rows.iter().zip(&plan.flags) {
                let continues = flags & RowFlag::Continue as u8 != 0;
                assert!(
                    !continues || !unknown.contains(&row.id),
                    "a first stage knows no length of {:?}",
                    row.id
                );
            }
            let overflows = self.overflows.take();
            let spoiled = self.pages.as_mut().map(|pages| pages.read(&plan, &self.core, overflows));
            self.spoiled.push_back(spoiled.unwrap_or_default());
            self.plans.push_back(plan);
            let many = self.core.running.len() as u32 > self.core.throttle.rows();
            assert!(!many || !self.core.quarantined.is_empty(), "more sequences run than may");
        }
        self.plans.len()
    }

    /// Those whose drafts only the last of several stages can judge, which has not done so.
    fn of_unknown_length(&self) -> BTreeSet<SequenceId> {
        let steps = self.core.in_flight.iter().filter(|_| self.config.stages > 1);
        let rows = steps.flat_map(|step| &step.rows);
        rows.filter(|row| row.drafts > 0).map(|row| row.id).collect()
    }

    /// Sends what can be sent, and answers the oldest plan, unless it kills the workers. `None` when there was nothing
    /// to do.
    pub fn step(&mut self) -> Option<Stepped> {
        self.plan();
        while self.plans.front().is_some_and(|plan| plan.flags.len() as u32 > self.most_rows) {
            self.now += STEP;
            self.crashes += 1;
            self.crash();
            self.plan();
        }
        self.step_with_errors(|_| Vec::new())
    }

    /// Runs the jobs whose time has come, and sends the masks that are there.
    pub fn compute_masks(&mut self) {
        self.jobs.extend(self.core.take_mask_jobs().into_iter().map(|job| (job, 0)));
        while self.jobs.front().is_some_and(|(_, age)| *age >= self.mask_delay)
            && let Some((job, _)) = self.jobs.pop_front()
        {
            self.core.take_mask(job.run(), self.now);
            self.jobs.extend(self.core.take_mask_jobs().into_iter().map(|job| (job, 0)));
        }
        while let Some(masks) = self.core.masks(self.now + self.mask_time) {
            self.masks.push_back(masks);
        }
    }

    /// The masks of the oldest plan, if it has masked rows: those that are not there by now are late.
    fn masks_of(&mut self, plan: &StepPlan) -> Option<Masks> {
        if plan.flags.iter().all(|flags| flags & RowFlag::Masked as u8 == 0) {
            return None;
        }
        self.compute_masks();
        if self.masks.is_empty() {
            assert!(self.mask_delay > 0, "masks are missing though all jobs have ended");
            assert!(self.core.deadline().is_none(), "the worker waits for the router");
            self.now = self.core.masks_due().expect("the router owes masks");
            self.core.skip_late_rows(self.now);
            self.compute_masks();
        }
        let masks = self.masks.pop_front().expect("late rows are skipped");
        assert_eq!(masks.number, plan.number);
        Some(masks)
    }

    pub fn step_with_errors(&mut self, errors: impl FnOnce(u32) -> Vec<u32>) -> Option<Stepped> {
        self.compute_masks();
        self.plan();
        self.jobs.iter_mut().for_each(|(_, age)| *age += 1);
        while self.plans.is_empty() && !self.jobs.is_empty() {
            // Everybody waits for masks.
            self.jobs.iter_mut().for_each(|(_, age)| *age += 1);
            self.compute_masks();
            self.plan();
        }
        let plan = self.plans.pop_front()?;
        let began = self.now;
        let masks = self.masks_of(&plan);
        let tokens: u32 = bytemuck::allocation::pod_collect_to_vec::<u8, u32>(&plan.counts).iter().sum();
        let tree_time = if plan.draft_parents.is_empty() { Duration::ZERO } else { self.tree_time };
        // The model runs while masks are awaited.
        let targets = (plan.prompt_targets.len() / size_of::<u32>()) as u32;
        let more_time = self.token_time * tokens + self.target_time * targets + tree_time;
        self.now = self.now.max(began + STEP + more_time);
        let mut errors = errors(plan.flags.len() as u32);
        errors.extend(self.spoiled.pop_front().unwrap_or_default());
        errors.sort_unstable();
        errors.dedup();
        let result = self.model.execute_with_errors(&plan, masks.as_ref(), &errors);
        let result = result.unwrap_or_else(|why| panic!("plan {} is wrong: {why}", plan.number));
        self.now += Duration::from_nanos(result.draft_ns);
        let stepped = self.core.apply(result, self.now).expect("the result is what the plan asked for");
        self.check();
        Some(stepped)
    }

    pub fn run_to_end(&mut self) {
        for _ in 0..100_000 {
            if self.step().is_none() {
                assert!(self.core.is_empty(), "sequences live and nothing is planned");
                return;
            }
        }
        panic!("does not come to an end");
    }

    /// How many steps there are to the end.
    pub fn count_steps(&mut self) -> u32 {
        let mut steps = 0;
        while self.step().is_some() {
            steps += 1;
        }
        steps
    }

    /// Runs to the first plan of which `is_it` is true, which is not answered. Returns those before it, and it.
    pub fn run_until(&mut self, is_it: impl Fn(&StepPlan) -> bool) -> (Vec<StepPlan>, StepPlan) {
        let mut past = Vec::new();
        loop {
            self.plan();
            let plan = self.plans.pop_front().expect("it goes on");
            if is_it(&plan) {
                return (past, plan);
            }
            let result = self.model.execute(&plan).expect("the plan is right");
            self.core.apply(result, self.now).expect("the result is right");
            past.push(plan);
        }
    }

    /// The workers die between any two plans, and get further each time: nobody is suspected of it.
    pub fn crash_now_and_then(&mut self) {
        for round in 0..12 {
            for _ in 0..round % 7 {
                self.step();
            }
            self.plan();
            self.crash();
            for _ in 0..12 {
                self.step();
            }
        }
        self.run_to_end();
    }

    /// The workers die with whatever is in flight, and come back.
    pub fn crash(&mut self) {
        self.crash_to(self.config.pages);
    }

    pub fn crash_to(&mut self, pages: u32) {
        self.plans.clear();
        self.masks.clear();
        self.spoiled.clear();
        self.pages = self.pages.take().map(|_| Pages::default());
        self.core.lose(self.now);
        self.config.pages = pages;
        let capacity =
            capacity(&self.config, self.core.capacity.max_slots, self.core.capacity.max_step_tokens);
        self.model = MockModel::new(self.config.clone(), capacity.max_slots, capacity.max_step_tokens)
            .with_drafts(MAX_STEP_DRAFTS);
        self.core.renew(capacity, self.now);
        self.check();
    }

    pub fn client(&mut self, id: SequenceId) -> &Client {
        self.read_events();
        &self.clients[&id]
    }

    /// Everything that must always hold.
    pub fn check(&mut self) {
        self.core.check();
        self.follow_blocks();
        self.read_events();
    }

    /// Whoever follows the changes knows what is cached, no more and no less.
    fn follow_blocks(&mut self) {
        for change in self.core.take_block_changes() {
            match change {
                BlockChange::Stored { block, after } => {
                    assert!(
                        after.is_none_or(|after| self.blocks.contains(&after)),
                        "{block} follows an unknown one"
                    );
                    assert!(self.blocks.insert(block), "{block} is stored twice");
                }
                BlockChange::Evicted { block } => {
                    assert!(self.blocks.remove(&block), "{block} is not stored")
                }
                BlockChange::Cleared => self.blocks.clear(),
            }
        }
        let known = self.core.pool.known().into_iter().map(|change| match change {
            BlockChange::Stored { block, .. } => block,
            change => panic!("{change:?} is not known"),
        });
        assert_eq!(known.collect::<BTreeSet<_>>(), self.blocks);
    }

    fn read_events(&mut self) {
        for client in self.clients.values_mut() {
            while let Some(event) = client.events.try_recv() {
                client.take(event);
            }
        }
    }

    /// What each client got is what it would have got alone and undisturbed: all of it if it finished, its
    /// beginning if it did not.
    pub fn check_against_reference(&mut self) {
        self.read_events();
        for client in self.clients.values() {
            client.check_against_reference(&self.config);
        }
    }
}

pub fn u32s(column: &[u8]) -> Vec<u32> {
    bytemuck::allocation::pod_collect_to_vec(column)
}

/// A worker that has executed `past` refuses this plan, and says why.
pub fn check_refused(config: MockConfig, past: &[StepPlan], wrong: StepPlan, why: &str) {
    let mut model = MockModel::new(config, 4, 64).with_drafts(MAX_STEP_DRAFTS);
    for plan in past {
        model.execute(plan).expect("as before");
    }
    let refusal = model.execute(&model.stamped(wrong)).expect_err(why);
    assert!(refusal.contains(why), "{refusal}");
}
