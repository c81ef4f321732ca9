//! From the loss of the workers to the next token. The sequences stay where they are, in the core; here
//! the group is replaced, while messages are still taken, and every phase is timed and told.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::core::Capacity;
use super::metrics::Metrics;
use super::task::{Task, Then};
use crate::health::Health;
use crate::worker::group::BringUp;
use crate::worker::{Group, Loss, Run, StartError};

pub(super) enum Outcome {
    Again(Box<Run>),
    Stopped,
    /// The text is for the operator.
    GaveUp(String),
}

/// A recovery that has everything but its first token.
pub(super) struct Recovered {
    loss: Loss,
    /// From the last sign of life to the loss: an upper bound, since the worker may have died at any time
    /// between.
    detection: Duration,
    lost_at: Instant,
    bring_up: BringUp,
    ready_at: Instant,
    sequences: usize,
}

impl Task {
    pub async fn recover(&mut self, group: &mut Group, loss: Loss) -> Outcome {
        let lost_at = Instant::now();
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

        let mut cause = loss.clone();
        let run = loop {
            let replaced = match self.replace(group, cause).await {
                Some(replaced) => replaced,
                None => return Outcome::Stopped,
            };
            match replaced {
                Ok(fresh) => *group = fresh,
                Err(error) => {
                    let why = error.to_string();
                    tracing::error!(reason = why, "gave up on the workers");
                    self.set_health(Health::Failed(why.clone()));
                    return Outcome::GaveUp(why);
                }
            }
            match Run::open(group).await {
                Ok(run) => break run,
                Err(again) => {
                    tracing::warn!(loss = %again, "lost the workers again before they ran");
                    cause = again;
                }
            }
        };
        self.worker_restarts += 1;
        self.core.renew(Capacity::of(group));
        self.shared.max_request_tokens.store(group.max_request_tokens(), Ordering::Relaxed);
        self.health.send_if_modified(|health| {
            let recovering = matches!(health, Health::Recovering(_));
            if recovering {
                *health = Health::Ready;
            }
            recovering
        });
        let recovered = Recovered {
            loss,
            detection,
            lost_at,
            bring_up: group.bring_up(),
            ready_at: Instant::now(),
            sequences: self.core.live(),
        };
        if recovered.sequences == 0 {
            recovered.report(recovered.ready_at, &self.metrics);
        } else {
            self.refilling = Some(recovered);
        }
        Outcome::Again(Box::new(run))
    }

    /// Waits for a new group, and takes messages meanwhile. `None` when told to stop.
    async fn replace(&mut self, group: &Group, loss: Loss) -> Option<Result<Group, StartError>> {
        let (source, old) = (self.source.clone(), group.clone());
        let mut replacing = self.outside.spawn(async move { old.replace(&*source, loss).await });
        loop {
            self.core.expire(Instant::now());
            let due = self.core.next_due();
            let expiry = tokio::time::sleep_until(due.unwrap_or_else(Instant::now).into());
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
        metrics.recovered(self.detection, self.bring_up, refill);
        tracing::info!(
            loss = %self.loss,
            sequences = self.sequences,
            detection_s = self.detection.as_secs_f64(),
            process_s = self.bring_up.process.as_secs_f64(),
            load_s = self.bring_up.load.as_secs_f64(),
            prepare_s = self.bring_up.prepare.as_secs_f64(),
            refill_s = refill.as_secs_f64(),
            total_s = now.saturating_duration_since(self.lost_at).as_secs_f64(),
            "recovered: the workers are back, streams go on"
        );
    }
}
