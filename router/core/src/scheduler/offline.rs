//! The scheduler's core without its task: whoever holds it carries plans and results, and is the clock.
//! For benchmarks, which measure the core alone or the wire alone.

use std::sync::Arc;
use std::time::Instant;

use penstock_proto::ids::SequenceId;
use penstock_proto::tables::Tables;
use penstock_proto::{ModelDescription, Prepared, StepPlan, StepResult};

use super::core::{Capacity, Core, Rules};
use super::handle::{Arrival, Settings, Stats};
use super::mailbox::{Dispatcher, SequenceEvents, mailbox};
use super::policy::Drafting;
use super::policy::SNAPSHOT_DISTANCES;
use super::submission::SequenceSpec;
use crate::worker::{Loss, PrepareLimits};

pub struct Offline {
    core: Core,
    dispatcher: Arc<Dispatcher>,
    next_id: u64,
}

impl Offline {
    /// For a worker that answered `model` and `prepared`. Called in a runtime, it is that of those who wait for events.
    pub fn new(
        settings: &Settings,
        model: &ModelDescription,
        prepared: &Prepared,
        limits: &PrepareLimits,
    ) -> Self {
        let rules = Rules {
            eos: settings.eos.clone(),
            target_itl: settings.target_itl,
            step_timeout: settings.step_timeout,
            drafting: Drafting::up_to(settings.speculate),
            corpus_tokens: settings.speculate_corpus_tokens,
            snapshots: SNAPSHOT_DISTANCES,
            has_adapters: !model.adapters.is_empty(),
            block_events: false,
        };
        let capacity = Capacity {
            pages: prepared.pages,
            tables: Tables::of(&prepared.groups, model.block_size).expect("groups that are tables"),
            max_slots: limits.max_slots,
            max_step_tokens: limits.max_step_tokens,
            max_step_drafts: limits.max_step_drafts,
            max_sequence_tokens: model.max_positions,
            prepared_tokens: model.max_positions,
            stages: model.stages,
            vocab_size: model.vocab_size,
            cost: prepared.cost.unwrap_or_default(),
            draft_cost: prepared.draft_cost,
            draft_trees: prepared.draft_trees,
            snapshots: model.has_state().then_some(prepared.snapshots),
            draft_states: prepared.draft_states,
        };
        let dispatcher = Dispatcher::new(tokio::runtime::Handle::try_current().ok().as_ref());
        Self { core: Core::new(rules, capacity), dispatcher, next_id: 1 }
    }

    pub fn submit(&mut self, spec: SequenceSpec) -> SequenceEvents {
        let (sender, events) = mailbox(&self.dispatcher);
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        self.core.submit(Arrival { id, spec, events: sender, permit: None }, Instant::now());
        events
    }

    pub fn plan(&mut self, now: Instant) -> Option<StepPlan> {
        self.core.plan(now)
    }

    pub fn apply(&mut self, result: StepResult, now: Instant) -> Result<(), Loss> {
        self.dispatcher.collect(now);
        let applied = self.core.apply(result, now).map(drop);
        self.dispatcher.flush();
        applied
    }

    pub fn stats(&self) -> Stats {
        self.core.stats()
    }
}
