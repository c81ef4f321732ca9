//! A sequence while the scheduler has it: what it asked for, what is known of it, and how far plans have taken it. The
//! core moves it; this knows what follows from its numbers.

use std::sync::Arc;
use std::time::Instant;

use penstock_proto::ids::{SequenceId, SlotId, SpanRef, TokenId};
use penstock_proto::tables::Table;

use super::cache_names::Namespace;
use super::corpus::Recall;
use super::draft_model::DraftAccuracy;
use super::fairness::AccountId;
use super::handle::{Arrival, Permit};
use super::mailbox::EventSender;
use super::mask_job::Constraint;
use super::order::Precedence;
use super::plan::Encoder;
use super::prefix_cache::NodeId;
use super::prompt_lookup::PromptLookup;
use super::snapshots::StateRecord;
use super::submission::{Priority, PromptLogprob, Sampling, SequenceEvent};
use crate::adapter::Adapter;

/// In the order of memory: first what every step of a sequence that decodes reads or writes.
#[repr(C)]
pub(super) struct Sequence {
    pub id: SequenceId,
    /// What its encoder reads and the padding behind it, if it has one; the prompt; and every token that was
    /// sampled and delivered.
    pub tokens: Vec<TokenId>,
    /// Positions whose keys and values are in its blocks once all plans built so far have run, if all drafts in flight are
    /// accepted: an upper bound, and `confirmed` the lower one.
    pub num_scheduled_tokens: u32,
    /// Position of the token that its slot sampled last, once all plans built so far have run.
    pub slot_sampled: Option<u32>,
    /// Whether there was a guess for what comes behind its tokens when its indexes took them in: most steps need not look into those.
    pub may_have_guess: bool,

    /// What plans in flight hold of it: rows, those that sample, those of them that do so without a mask, drafts, and tokens fed.
    pub rows_in_flight: u32,
    pub samples_in_flight: u32,
    pub unmasked_in_flight: u32,
    pub drafts_in_flight: u32,
    /// Of those, the ones that the workers' draft model makes; and the ones that followed what turned out to be wrong, and will be
    /// rejected.
    pub model_drafts_in_flight: u32,
    pub stale_drafts_in_flight: u32,
    pub tokens_in_flight: u32,

    /// Of all before the output.
    pub prompt_len: u32,
    /// At most what was asked; less where workers that came back are prepared for shorter sequences.
    pub max_new_tokens: u32,
    /// Positions that a worker, whichever it was, has answered for.
    pub answered: u32,
    /// Positions that its tenant was charged for: what is computed again is free.
    pub charged: u32,
    /// Elsewhere, since few have one.
    pub constraint: Option<Box<Constraint>>,
    /// How often drafts of the workers' draft model are right; `None`: it makes none for it.
    pub draft_accuracy: Option<DraftAccuracy>,

    /// Its blocks.
    pub table: Table,
    /// How many of them plans have told the workers.
    pub sent_blocks: usize,
    /// How many full blocks at the head of its table were offered to the prefix cache.
    pub registered: usize,
    /// How many of them a sample of this sequence has vouched for.
    pub vouched: usize,
    /// Number of the plan that has its latest row, and of the one whose row started it in its slot.
    pub last_plan: u64,
    pub start_plan: u64,
    pub events: EventSender,
    pub stop_token_ids: Vec<TokenId>,
    pub top_tokens: u32,
    /// Its row in the workers' slot table while it runs; `None` while it waits.
    pub slot: Option<SlotId>,
    /// Of its tenant.
    pub account: AccountId,
    pub crash_history: CrashHistory,
    pub ignore_eos: bool,
    /// Whether the workers know it in that slot.
    pub started: bool,
    /// Whether its next row has to say everything: at first, and when its table jumped ahead.
    pub start_due: bool,
    pub was_admitted: bool,
    pub stop_at: Option<Instant>,
    pub prompt_logprobs: PromptLogprobs,
    pub priority: Priority,
    pub trace: Option<SpanRef>,
    /// Where else its drafts come from than `lookup`.
    pub recall: Option<Recall>,
    /// Where its drafts come from; `None`: it has none.
    pub lookup: Option<PromptLookup>,
    /// Of a model with recurrent layers.
    pub states: StateRecord,

    pub encoder: Encoder,
    pub sampling: Sampling,
    pub adapter: Option<Adapter>,
    pub namespace: Namespace,
    pub deadline: Option<Instant>,
    /// What its last look into the prefix cache found, if it could not be admitted then.
    pub looked_up: Option<LookedUp>,
    pub preemptions: u32,
    /// Counts it among `max_live` until the sequence is dropped.
    _permit: Option<Arc<Permit>>,
}

/// What the head of the queue found in the prefix cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct LookedUp {
    /// Where it would have begun, behind what was cached, and the node there.
    pub begins: u32,
    pub node: Option<NodeId>,
    /// Pages that it would have taken; `None`: that was not the question.
    pub pages: Option<u32>,
    /// How many had left the running ones by then.
    pub departures: u64,
}

pub(super) enum PromptLogprobs {
    NotWanted,
    /// Those of the second prompt token onwards, as far as they came back.
    Collecting(Vec<PromptLogprob>),
    Delivered,
}

/// The crashes of workers that a sequence was part of; see `quarantine`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CrashHistory {
    /// Crashes in a row, with no progress between, with this sequence in an unfinished step.
    pub count: u32,
    /// Once so many positions are answered, it is past the point of its last crash.
    pub cleared_at: u32,
    /// Runs alone until it is past that point.
    pub quarantined: bool,
}

impl Sequence {
    pub fn new(arrival: Arrival, account: AccountId, block_size: u32) -> Self {
        let Arrival { id, spec, events, permit } = arrival;
        let encoder = Encoder::new(spec.encoder.len() as u32, block_size);
        let mut tokens = spec.encoder;
        // The decoder's tokens begin with a block of their own, so that all of the encoder's can be shared.
        tokens.resize(encoder.positions as usize, TokenId(0));
        tokens.extend(spec.prompt);
        Self {
            id,
            events,
            _permit: permit,
            prompt_len: tokens.len() as u32,
            tokens,
            encoder,
            max_new_tokens: spec.max_new_tokens,
            sampling: spec.sampling,
            ignore_eos: spec.ignore_eos,
            stop_token_ids: spec.stop_token_ids,
            top_tokens: spec.top_tokens,
            adapter: spec.adapter,
            namespace: match spec.adapter {
                // What the same tokens are stored as depends on it.
                Some(Adapter { digest, .. }) => spec.cache_namespace.within([&b"adapter"[..], &digest]),
                None => spec.cache_namespace,
            },
            trace: spec.trace,
            prompt_logprobs: match spec.prompt_logprobs {
                true => PromptLogprobs::Collecting(Vec::new()),
                false => PromptLogprobs::NotWanted,
            },
            constraint: spec.constraint.as_deref().map(Constraint::new).map(Box::new),
            may_have_guess: false,
            lookup: None,
            recall: None,
            draft_accuracy: None,
            deadline: spec.deadline,
            stop_at: spec.stop_at,
            priority: spec.priority,
            account,
            charged: 0,
            slot: None,
            started: false,
            start_due: true,
            table: Table::default(),
            sent_blocks: 0,
            registered: 0,
            vouched: 0,
            states: StateRecord::default(),
            num_scheduled_tokens: 0,
            last_plan: 0,
            start_plan: 0,
            slot_sampled: None,
            looked_up: None,
            answered: 0,
            rows_in_flight: 0,
            samples_in_flight: 0,
            unmasked_in_flight: 0,
            drafts_in_flight: 0,
            model_drafts_in_flight: 0,
            stale_drafts_in_flight: 0,
            tokens_in_flight: 0,
            was_admitted: false,
            preemptions: 0,
            crash_history: CrashHistory::default(),
        }
    }

    /// Where it stands among those that run.
    pub fn precedence(&self) -> Precedence {
        Precedence { priority: self.priority, id: self.id }
    }

    /// How many tokens its prompt and output are, without what an encoder reads.
    pub fn said(&self) -> usize {
        self.tokens.len() - self.encoder.positions as usize
    }

    /// Tokens it has, with the most that plans in flight can bring.
    pub fn len(&self) -> u32 {
        self.tokens.len() as u32 + self.samples_in_flight + self.drafts_in_flight
    }

    /// Positions that are in its blocks once all plans built so far have run, whatever becomes of the drafts.
    pub fn confirmed(&self) -> u32 {
        self.num_scheduled_tokens.saturating_sub(self.drafts_in_flight)
    }

    /// Tokens that plans in flight are thought to bring.
    pub fn tokens_ahead(&self) -> u32 {
        self.samples_in_flight + self.drafts_in_flight - self.stale_drafts_in_flight
    }

    /// So many drafts of a row of it were rejected: it is shorter than it was planned to be.
    pub fn shorten(&mut self, rejected: u32) {
        // One that was preempted has nothing planned.
        if self.slot.is_some() {
            self.num_scheduled_tokens -= rejected;
            self.slot_sampled = self.slot_sampled.map(|at| at - rejected);
        }
    }

    /// Tokens it can have at most.
    pub fn final_len(&self) -> u32 {
        self.prompt_len + self.max_new_tokens
    }

    /// Nothing can be planned for it now: its last token is in flight, or its mask was late and is not there yet.
    pub fn is_fully_scheduled(&self) -> bool {
        self.len() >= self.final_len() || self.has_late_mask()
    }

    pub fn has_output(&self) -> bool {
        self.tokens.len() as u32 > self.prompt_len
    }

    /// Its next row feeds what its slot sampled last.
    pub fn continues(&self) -> bool {
        self.slot_sampled == Some(self.num_scheduled_tokens)
    }

    /// Tokens of its client's prompt that came from the prefix cache, when it gets its slot.
    pub fn cached_tokens(&self) -> u32 {
        match self.encoder.tokens {
            0 => self.num_scheduled_tokens,
            tokens => self.num_scheduled_tokens.min(tokens),
        }
    }

    /// Positions that its next row has to feed at least: an encoder reads all of its tokens at once.
    pub fn whole(&self) -> u32 {
        self.encoder.positions.saturating_sub(self.num_scheduled_tokens)
    }

    /// Log probabilities of its prompt are still to be told.
    pub fn is_told(&self) -> bool {
        matches!(self.prompt_logprobs, PromptLogprobs::Collecting(_))
    }

    /// Log probabilities need the logits of every prompt token, so those have to be computed.
    pub fn reads_cache(&self) -> bool {
        !self.is_told()
    }

    /// Leaves its slot; its blocks are let go by the caller before.
    pub fn reset(&mut self) {
        debug_assert!(self.table.blocks.is_empty());
        self.states = StateRecord::default();
        self.table.first_windowed = Default::default();
        self.slot = None;
        self.started = false;
        self.start_due = true;
        self.sent_blocks = 0;
        self.registered = 0;
        self.vouched = 0;
        self.num_scheduled_tokens = 0;
        self.slot_sampled = None;
        self.forget_late_mask();
    }

    pub fn tell(&self, event: SequenceEvent) {
        self.events.send(event);
    }
}
