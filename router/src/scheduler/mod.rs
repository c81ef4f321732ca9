//! Owns every live sequence and every KV block, as one task that the rest reaches by messages.
//!
//! `handle` is the outside, with the `places` that it gives away. `task` drives `core`, a state machine that
//! `planning`, `results`, `deadlines` and `loss` implement over `live` sequences, the queue of `fairness`,
//! `blocks` with the `prefix_cache`, `policy` and `cost`; `plan` writes the wire's columns. `recovery` replaces
//! lost workers.

mod blocks;
mod core;
mod cost;
mod deadlines;
mod fairness;
mod handle;
mod live;
mod loss;
mod metrics;
pub mod offline;
mod places;
mod plan;
mod planning;
mod policy;
mod prefix_cache;
mod recovery;
mod results;
pub mod sequence;
mod tables;
mod task;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};

use tokio::sync::{mpsc, oneshot};

pub use handle::{Handle, Settings, Stats};
pub use sequence::{
    Finish, Party, PromptLogprob, Refused, Release, SampledToken, Sampling, SequenceEvent, SequenceFailure,
    SequenceSpec, Submitted, Ticket, Watermark,
};
pub(crate) use tables::Tables;

use crate::health::HealthSender;
use crate::worker::{Group, WorkerSource};

/// Starts the scheduler on a prepared group. From then on it owns the workers' fate: it asks `source` for
/// fresh ones after a loss. It sets `health` to `Recovering` at a loss, back to `Ready` after it, and to
/// `Failed` when `source` gives up; it never overwrites `Draining`. The first `Ready` is the caller's to
/// set, and only over `Starting`. Returns when plans can be sent to the workers, or when the first attempt to
/// open the way to them has failed. Must be called within a tokio runtime, on which `source` is asked.
pub async fn spawn(
    group: Group,
    source: Arc<dyn WorkerSource>,
    settings: Settings,
    health: HealthSender,
) -> Handle {
    let (sender, inbox) = mpsc::unbounded_channel();
    let shared = Arc::new(handle::Shared {
        places: places::Places::new(settings.max_live),
        next_id: AtomicU64::new(1),
        closed: AtomicBool::new(false),
        max_request_tokens: AtomicU32::new(group.max_request_tokens()),
        retry_after_ms: AtomicU64::new(1000),
        stats: Mutex::new(Stats::default()),
    });
    let outside = tokio::runtime::Handle::current();
    let mut task = task::Task::new(&group, inbox, shared.clone(), settings, health, source, outside);
    let (opened, open) = oneshot::channel();
    // So that whoever looks before the first step sees the empty cache.
    task.publish();
    std::thread::Builder::new()
        .name("scheduler".into())
        .spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("the system has a timer and a poller for one more runtime");
            runtime.block_on(task.run(group, opened));
        })
        .expect("the system has room for one more thread at start");
    // A failure is the task's own business.
    let _ = open.await;
    Handle { inbox: sender, shared }
}
