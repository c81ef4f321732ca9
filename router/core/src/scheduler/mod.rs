//! Owns every sequence that waits or runs and every KV block, as one task that the rest reaches by messages.
//!
//! `handle` is the outside, with the permits of `concurrency`; `submission` is what goes in and comes out, by a `mailbox`. `task` drives
//! `core`, a state machine that `planning`, `admission`, `results`, `deadlines` (with its `wait_history`) and `quarantine` implement over each `sequence`, the
//! queue of `fairness` in the `order` of priorities, `blocks` with the `prefix_cache` and `snapshots`, `policy`, `cost` and `throttle`; `plan` writes the wire's
//! columns, and `in_flight` is what was sent. `masks` are those of
//! constrained sequences, each a `mask_job` on `mask_threads`; `speculation` gives rows drafts, which are `guesses` of `prompt_lookup` (with an index of `grams`) and `corpus`,
//! or made by the workers' own model, of which `draft_model` knows what they are worth;
//! `states` are those of models with recurrent layers. `recovery` is what is known of how lost workers were replaced.

mod admission;
mod block_events;
mod blocks;
mod cache_names;
mod concurrency;
mod copies;
mod core;
mod corpus;
mod cost;
mod deadlines;
mod draft_model;
mod fairness;
mod grams;
mod guesses;
mod handle;
mod in_flight;
pub(crate) mod mailbox;
mod mask_job;
mod mask_threads;
mod masks;
mod metrics;
pub mod offline;
mod order;
mod plan;
mod planning;
mod policy;
mod prefix_cache;
mod prompt_lookup;
mod quarantine;
mod recovery;
mod results;
mod sequence;
mod snapshots;
mod speculation;
mod states;
mod submission;
mod task;
#[cfg(test)]
mod tests;
mod throttle;
mod wait_history;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};

use tokio::sync::{mpsc, oneshot};

pub use block_events::{BlockChange, BlockEvent};
pub use blocks::Taken;
pub use cache_names::{BlockHash, Namespace};
pub use handle::{Handle, Permit, Settings, StatePlaces, States, Stats, Submitted};
pub use mailbox::{SequenceEvents, Told};
pub use submission::{
    Finish, Late, Priority, PromptLogprob, Refused, Release, SampledToken, Sampling, SequenceEvent,
    SequenceFailure, SequenceSpec, Ticket, Unavailable, Watermark,
};

use crate::health::{Health, HealthSender};
use crate::worker::{Group, WorkerSource};

/// Starts the scheduler on a prepared group. From then on it owns the workers' fate: it asks `source` for
/// fresh ones after a loss. It sets `health` to `Recovering` at a loss, back to `Ready` after it, and to
/// `Failed` when `source` gives up, when the workers are lost again and again without giving a token, and when the
/// scheduler itself panics; nothing but `Failed` ever overwrites `Draining`. The first `Ready` is the caller's to
/// set, and only over `Starting`. Returns when plans can be sent to the workers, or when the first attempt to
/// open the way to them has failed. Must be called within a tokio runtime, on which `source` is asked.
pub async fn spawn(
    group: Group,
    source: Arc<dyn WorkerSource>,
    settings: Settings,
    health: HealthSender,
) -> Handle {
    let (handle, mut task) = assemble(&group, source, settings, health.clone());
    let (opened, open) = oneshot::channel();
    let dispatcher = handle.shared.dispatcher.clone();
    // So that whoever looks before the first step sees the empty cache.
    task.publish();
    std::thread::Builder::new()
        .name("scheduler".into())
        .spawn(move || {
            let running = move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .expect("the system has a timer and a poller for one more runtime");
                runtime.block_on(task.run(group, opened));
            };
            // Nobody joins this thread. What it owned is gone with it, and every sequence has ended.
            let ended = catch_unwind(AssertUnwindSafe(running));
            dispatcher.flush();
            if let Err(panic) = ended {
                let why = format!("the scheduler panicked: {}", message_of(&*panic));
                tracing::error!("{why}");
                health.send_replace(Health::Failed(why));
            }
        })
        .expect("the system has room for one more thread at start");
    // A failure is the task's own business.
    let _ = open.await;
    handle
}

/// The task, which the caller has to run, and what speaks to it.
fn assemble(
    group: &Group,
    source: Arc<dyn WorkerSource>,
    settings: Settings,
    health: HealthSender,
) -> (Handle, task::Task) {
    let (sender, inbox) = mpsc::unbounded_channel();
    let outside = tokio::runtime::Handle::current();
    let shared = Arc::new(handle::Shared {
        limiter: concurrency::ConcurrencyLimiter::new(settings.max_live),
        next_id: AtomicU64::new(1),
        closed: AtomicBool::new(false),
        max_request_tokens: AtomicU32::new(group.max_request_tokens()),
        retry_after_ms: AtomicU64::new(1000),
        stats: Mutex::new(Stats::default()),
        dispatcher: mailbox::Dispatcher::new(Some(&outside)),
    });
    let task = task::Task::new(group, inbox, shared.clone(), settings, health, source, outside);
    (Handle { inbox: sender, shared }, task)
}

/// What a panic was given to say.
fn message_of(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}
