//! The scheduler as the rest of the router sees it: submit, cancel (by a ticket), look, drain. Everything
//! here is a message or an atomic; the state itself is owned by the scheduler's task.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use penstock_proto::ids::{SequenceId, TokenId};
use tokio::sync::{mpsc, oneshot};

use super::block_events::{self, BlockEvent};
use super::blocks::Taken;
use super::concurrency::ConcurrencyLimiter;
use super::mailbox::{Dispatcher, EventSender, SequenceEvents, mailbox};
use super::submission::{Refused, Release, SequenceSpec, Ticket, Unavailable};
use crate::clock;
use crate::tenant::Tenant;
use crate::worker::recording::Recorder;

/// What the scheduler is to keep to. Derived from flags and from what the workers answered.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Sequences queued, running and on their way to their clients at once; `submit` refuses more.
    pub max_live: u32,
    /// Keep a step that has decodes in it under this, by cutting prompts into smaller chunks.
    pub target_itl: Option<Duration>,
    /// End-of-sequence tokens, of the worker's description and of the tokenizer.
    pub eos: Vec<TokenId>,
    /// A worker hangs when no result came for this long, plus 20 times the expected time of what is in flight.
    pub step_timeout: Duration,
    /// How often idle workers are asked whether they are alive; each answer may take `step_timeout`.
    pub check_interval: Duration,
    /// Most drafts that a sequence has verified in one step; 0: it has none.
    pub speculate: u32,
    /// Most tokens of a tenant's recent answers that drafts come from as well; 0: none.
    pub speculate_corpus_tokens: u32,
    /// What is cached has content hashes, and `Handle::read_blocks` tells it.
    pub block_events: bool,
    /// Keeps what goes to the workers and comes from them.
    pub recorder: Option<Arc<Recorder>>,
}

/// A snapshot of the scheduler, as of its last step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Queued, running, and ended ones whose answers are not taken yet.
    pub live: u32,
    pub waiting: u32,
    pub running: u32,
    pub max_slots: u32,
    pub blocks: u32,
    /// Held by running sequences.
    pub blocks_used: u32,
    /// Kept for the prefix cache, and taken when needed.
    pub blocks_cached: u32,
    pub blocks_free: u32,
    pub block_size: u32,
    /// Pages that are not free.
    pub pages: Taken,
    pub states: States,
    pub steps: u64,
    /// Of all requests, since the start.
    pub generated_tokens: u64,
    pub worker_restarts: u64,
    pub preemptions: u64,
    /// Prompt tokens that came from the prefix cache.
    pub prefix_hit_tokens: u64,
    pub tokens_after_cancel: u64,
}

/// Recurrent states, by what holds them; nothing of a model that has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct States {
    /// Of running sequences, one each.
    pub slots: StatePlaces,
    /// In front of drafts.
    pub drafts: StatePlaces,
    /// Copies for the prefix cache.
    pub snapshots: StatePlaces,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatePlaces {
    pub total: u32,
    /// Those that hold a state.
    pub used: u32,
}

/// Speaks to the scheduler. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    pub(super) inbox: mpsc::UnboundedSender<Message>,
    pub(super) shared: Arc<Shared>,
}

impl Handle {
    /// Queues a sequence. Never waits. The caller has checked that prompt and `max_new_tokens` together
    /// are at most `max_request_tokens`, that the prompt is not empty, that `max_new_tokens` is not 0 and
    /// that every token is in the vocabulary.
    pub fn submit(&self, spec: SequenceSpec) -> Result<Submitted, Refused> {
        let permit = self.reserve(spec.tenant)?;
        self.submit_with(permit, spec)
    }

    /// A permit of `max_live` for what `tenant` is about to submit, or for other work that counts like a sequence.
    /// Given back when dropped.
    pub fn reserve(&self, tenant: Tenant) -> Result<Arc<Permit>, Refused> {
        Ok(Arc::new(Permit::acquire(&self.shared, tenant)?))
    }

    /// As `submit`, with a permit that was reserved for the same tenant.
    pub fn submit_with(&self, permit: Arc<Permit>, spec: SequenceSpec) -> Result<Submitted, Refused> {
        let id = SequenceId(self.shared.next_id.fetch_add(1, Ordering::Relaxed));
        let (sender, events) = mailbox(&self.shared.dispatcher);
        let inbox = self.inbox.clone();
        let ticket = Ticket::new(id, move |id, why| {
            // Fails only when the scheduler has ended, and every sequence with it.
            let _ = inbox.send(Message::Release(id, why));
        });
        let arrival = Arrival { id, spec, events: sender, permit: Some(permit.clone()) };
        match self.inbox.send(Message::Submit(Box::new(arrival))) {
            Ok(()) => Ok(Submitted { id, events, ticket, permit }),
            Err(_) => Err(Unavailable::Stopping.into()),
        }
    }

    /// Most tokens that a request's input and output may have together: of the model, the limits and the KV
    /// cache. May shrink when restarted workers have less memory.
    pub fn max_request_tokens(&self) -> u32 {
        self.shared.max_request_tokens.load(Ordering::Relaxed)
    }

    pub fn stats(&self) -> Stats {
        let mut stats = *self.shared.stats.lock().expect("nothing panics while it holds this lock");
        stats.live = self.shared.limiter.in_use();
        stats
    }

    /// What the prefix cache has, and then what it gains and loses. Ends with the scheduler; at once where it does not tell
    /// (`Settings::block_events`).
    pub fn read_blocks(&self) -> mpsc::Receiver<BlockEvent> {
        let (sender, events) = block_events::channel();
        // Fails only when the scheduler has ended.
        let _ = self.inbox.send(Message::ReadBlocks(sender));
        events
    }

    /// Refuses new sequences from now on, and returns when the last live one has ended.
    pub async fn drain(&self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        let (done, wait) = oneshot::channel();
        if self.inbox.send(Message::Drain(done)).is_ok() {
            let _ = wait.await;
        }
    }

    /// Fails what still lives with `Unavailable` and ends the scheduler.
    pub async fn stop(&self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        let (done, wait) = oneshot::channel();
        if self.inbox.send(Message::Stop(done)).is_ok() {
            let _ = wait.await;
        }
    }
}

/// A sequence that the scheduler accepted. Dropping `ticket` before the end cancels it.
pub struct Submitted {
    pub id: SequenceId,
    pub events: SequenceEvents,
    pub ticket: Ticket,
    pub permit: Arc<Permit>,
}

/// What reaches the scheduler's task.
pub(super) enum Message {
    Submit(Box<Arrival>),
    Release(SequenceId, Release),
    ReadBlocks(mpsc::Sender<BlockEvent>),
    Drain(oneshot::Sender<()>),
    Stop(oneshot::Sender<()>),
}

/// A sequence on its way into the queue.
pub(super) struct Arrival {
    pub id: SequenceId,
    pub spec: SequenceSpec,
    pub events: EventSender,
    /// Absent only in tests of the core.
    pub permit: Option<Arc<Permit>>,
}

/// What handles read without asking the task.
pub(super) struct Shared {
    pub limiter: ConcurrencyLimiter,
    pub next_id: AtomicU64,
    pub closed: AtomicBool,
    pub max_request_tokens: AtomicU32,
    /// Expected time until a refused client finds a free permit, in milliseconds.
    pub retry_after_ms: AtomicU64,
    /// Written once per step by the task; never held across anything but a copy.
    pub stats: std::sync::Mutex<Stats>,
    /// The way of the scheduler's events to who waits for them.
    pub dispatcher: Arc<Dispatcher>,
}

/// One of `max_live`; given back when the sequence has ended and whoever submitted it has let go, which is
/// when the client has its answer.
pub struct Permit {
    shared: Arc<Shared>,
    tenant: Tenant,
}

impl Permit {
    fn acquire(shared: &Arc<Shared>, tenant: Tenant) -> Result<Self, Refused> {
        if shared.closed.load(Ordering::SeqCst) {
            return Err(Unavailable::Stopping.into());
        }
        if shared.limiter.try_acquire(tenant, clock::now()) {
            return Ok(Self { shared: shared.clone(), tenant });
        }
        let wait = Duration::from_millis(shared.retry_after_ms.load(Ordering::Relaxed));
        Err(Refused::Full { retry_after: come_back_in(wait) })
    }
}

#[cfg(test)]
impl Permit {
    /// Of a scheduler of its own.
    pub fn alone() -> Arc<Self> {
        let shared = Arc::new(Shared {
            limiter: ConcurrencyLimiter::new(1),
            next_id: AtomicU64::default(),
            closed: AtomicBool::default(),
            max_request_tokens: AtomicU32::default(),
            retry_after_ms: AtomicU64::default(),
            stats: std::sync::Mutex::default(),
            dispatcher: Dispatcher::new(None),
        });
        Arc::new(Self::acquire(&shared, Tenant::Anonymous).expect("the only one"))
    }
}

/// What to tell a client that should wait: whole seconds, and not for ever, since things change.
pub(super) fn come_back_in(wait: Duration) -> Duration {
    Duration::from_secs(wait.as_millis().div_ceil(1000).clamp(1, 60) as u64)
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shared.limiter.release(self.tenant);
    }
}
