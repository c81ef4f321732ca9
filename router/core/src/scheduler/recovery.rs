//! From the loss of the workers to the next token. The sequences stay where they are, in the core; here
//! the group is replaced, while messages are still taken, and every phase is timed and told.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::core::Capacity;
use super::metrics::Metrics;
use super::task::{Task, Then};
use crate::clock;
use crate::health::Health;
use crate::worker::group::StartupTimings;
use crate::worker::{Group, Loss, Run, StartError};

pub(super) enum Outcome {
    Again(Box<Run>),
    Stopped,
    /// The text is for the operator.
    GaveUp(String),
}

/// Losses with work in flight, or before any could be, since the last token.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fruitless(u32);

/// So many of them end the server: what restarts do not mend. Two quarantine a request, and each further one finds a request
/// guilty, so that some requests may be at fault together.
const FRUITLESS: u32 = 12;

impl Fruitless {
    /// One more. Returns why to give up, if it is time.
    fn add(&mut self, loss: &Loss) -> Option<String> {
        self.0 += 1;
        (self.0 >= FRUITLESS).then(|| {
            format!("the workers were lost {FRUITLESS} times without giving a token in between; the last time: {loss}")
        })
    }
}

/// A recovery that has everything but its first token.
pub(super) struct Recovered {
    loss: Loss,
    /// From the last sign of life to the loss: an upper bound, since the worker may have died at any time
    /// between.
    detection: Duration,
    lost_at: Instant,
    startup_timings: StartupTimings,
    ready_at: Instant,
    sequences: usize,
}

impl Task {
    pub async fn recover(&mut self, group: &mut Group, loss: Loss) -> Outcome {
        let lost_at = clock::now();
        let (steps, waited) = self.core.waiting_for(lost_at);
        let detection = waited.min(lost_at.saturating_duration_since(self.last_sign));
        self.set_health(Health::Recovering(loss.summary()));
        tracing::error!(
            loss = %loss,
            detection_s = detection.as_secs_f64(),
            steps_in_flight = steps,
            "lost the workers; asking for new ones"
        );
        for prompts in self.core.unfinished() {
            self.metrics.lost(prompts);
        }
        self.core.lose();
        self.refilling = None;
        self.publish();

        // Workers that are lost while they have nothing to do give no token, and are not asked for one.
        if steps > 0
            && let Some(why) = self.fruitless.add(&loss)
        {
            return self.give_up(why);
        }
        let mut cause = loss.clone();
        let run = loop {
            let replaced = match self.replace(group, cause).await {
                Some(replaced) => replaced,
                None => return Outcome::Stopped,
            };
            match replaced {
                Ok(fresh) => *group = fresh,
                Err(error) => return self.give_up(error.to_string()),
            }
            match self.open(group).await {
                Ok(run) => break run,
                Err(again) => {
                    tracing::warn!(loss = %again, "lost the workers again before they ran");
                    if let Some(why) = self.fruitless.add(&again) {
                        return self.give_up(why);
                    }
                    cause = again;
                }
            }
        };
        self.worker_restarts += 1;
        self.core.renew(Capacity::of(group), clock::now());
        self.shared.max_request_tokens.store(group.max_request_tokens(), Ordering::Relaxed);
        let recovered = Recovered {
            loss,
            detection,
            lost_at,
            startup_timings: group.startup_timings(),
            ready_at: clock::now(),
            sequences: self.core.live(),
        };
        // Ready means that tokens flow: with streams to go on with, when one of them has its next.
        self.refilling = Some(recovered);
        Outcome::Again(run)
    }

    /// Ready again.
    pub fn recovered(&self) {
        self.health.send_if_modified(|health| {
            let recovering = matches!(health, Health::Recovering(_));
            if recovering {
                *health = Health::Ready;
            }
            recovering
        });
    }

    fn give_up(&self, why: String) -> Outcome {
        tracing::error!(reason = why, "gave up on the workers");
        self.set_health(Health::Failed(why.clone()));
        Outcome::GaveUp(why)
    }

    /// Waits for a new group, and takes messages meanwhile. `None` when told to stop.
    async fn replace(&mut self, group: &Group, loss: Loss) -> Option<Result<Group, StartError>> {
        let (source, old) = (self.source.clone(), group.clone());
        let mut replacing = self.outside.spawn(async move { old.replace(&*source, loss).await });
        loop {
            self.core.expire(clock::now());
            let due = self.core.next_due();
            let expiry = tokio::time::sleep_until(due.unwrap_or_else(clock::now).into());
            tokio::select! {
                replaced = &mut replacing => {
                    return Some(replaced.unwrap_or_else(|panic| {
                        Err(StartError::Refused(format!("starting workers failed: {panic}")))
                    }));
                }
                () = expiry, if due.is_some() => {}
                message = self.inbox.recv() => match message.map(|message| self.handle(message)) {
                    Some(Then::GoOn) => self.publish(),
                    Some(Then::Stop) | None => {
                        replacing.abort();
                        return None;
                    }
                },
            }
        }
    }

    /// Draining and a final failure are not taken back by a recovery.
    fn set_health(&self, to: Health) {
        self.health.send_if_modified(|health| {
            let may =
                !matches!(health, Health::Draining | Health::Failed(_)) || matches!(to, Health::Failed(_));
            if may {
                *health = to;
            }
            may
        });
    }
}

impl Recovered {
    /// One line for the operator, with where the time went.
    pub fn report(&self, now: Instant, metrics: &Metrics) {
        let refill = now.saturating_duration_since(self.ready_at);
        metrics.recovered(self.detection, self.startup_timings, refill);
        tracing::info!(
            loss = %self.loss,
            sequences = self.sequences,
            detection_s = self.detection.as_secs_f64(),
            process_s = self.startup_timings.process.as_secs_f64(),
            load_s = self.startup_timings.load.as_secs_f64(),
            prepare_s = self.startup_timings.prepare.as_secs_f64(),
            refill_s = refill.as_secs_f64(),
            total_s = now.saturating_duration_since(self.lost_at).as_secs_f64(),
            "recovered: the workers are back, streams go on"
        );
    }
}
