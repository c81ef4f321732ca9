//! The task around the core: takes messages from handles, sends plans, applies results, watches the time,
//! and replaces the workers when they are lost. It runs on a thread and a runtime of its own,
//! with the connections to the workers, so that HTTP load cannot come between a result and the next plan.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use futures::future::{BoxFuture, OptionFuture};
use penstock_proto::{StepPlan, StepResult};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep_until, timeout};

use super::block_events::Readers;
use super::core::{Capacity, Core, Rules};
use super::handle::{Message, Settings, Shared};
use super::mask_job::MaskResult;
use super::mask_threads::MaskThreads;
use super::metrics::Metrics;
use super::policy::Drafting;
use super::policy::SNAPSHOT_DISTANCES;
use super::recovery::{Fruitless, Outcome, Recovered};
use super::submission::{SequenceEvent, SequenceFailure, Unavailable};
use crate::clock;
use crate::health::{Health, HealthSender};
use crate::worker::{Group, LIVELY, Loss, Run, StartError, WorkerSource};

/// Most messages handled between two steps: a burst of submissions must not hold up those who run.
const MESSAGES_PER_TURN: usize = 256;

/// When a step is overdue, what already lies in the socket still counts: the router itself may have been
/// stopped for a while.
const LAST_LOOK: std::time::Duration = std::time::Duration::from_millis(100);

/// Sees the core after each turn.
#[cfg(test)]
pub(super) type Observer = Box<dyn FnMut(&Core) + Send>;

pub(super) struct Task {
    pub core: Core,
    pub inbox: mpsc::UnboundedReceiver<Message>,
    pub shared: Arc<Shared>,
    pub settings: Settings,
    pub health: HealthSender,
    pub source: Arc<dyn WorkerSource>,
    /// Where `source` is asked: it may start tasks of its own, which must not end up on the scheduler's thread.
    pub outside: tokio::runtime::Handle,
    pub metrics: Metrics,
    pub mask_threads: MaskThreads,
    pub worker_restarts: u64,
    /// Set after a recovery until the first token flows again.
    pub refilling: Option<Recovered>,
    /// Losses since the last token.
    pub fruitless: Fruitless,
    /// When the workers last answered anything.
    pub last_sign: Instant,
    /// Sees the core once a turn.
    #[cfg(test)]
    pub observer: Option<Observer>,
    drains: Vec<oneshot::Sender<()>>,
    block_readers: Readers,
}

/// Why serving ended.
pub(super) enum Left {
    Stopped,
    Lost(Loss),
}

/// What a message asks of the task beyond what was done at once.
enum Then {
    GoOn,
    Stop,
}

impl Task {
    #[allow(clippy::too_many_arguments)] // assembled in one place only
    pub fn new(
        group: &Group,
        inbox: mpsc::UnboundedReceiver<Message>,
        shared: Arc<Shared>,
        settings: Settings,
        health: HealthSender,
        source: Arc<dyn WorkerSource>,
        outside: tokio::runtime::Handle,
    ) -> Self {
        let rules = Rules {
            eos: settings.eos.clone(),
            target_itl: settings.target_itl,
            step_timeout: settings.step_timeout,
            drafting: Drafting::up_to(settings.speculate),
            corpus_tokens: settings.speculate_corpus_tokens,
            snapshots: SNAPSHOT_DISTANCES,
            has_adapters: !group.description().adapters.is_empty(),
            block_events: settings.block_events,
        };
        Self {
            core: Core::new(rules, Capacity::of(group)),
            inbox,
            shared,
            settings,
            health,
            source,
            outside,
            metrics: Metrics::new(&group.prepared().groups),
            mask_threads: MaskThreads::new(),
            worker_restarts: 0,
            refilling: None,
            fruitless: Fruitless::default(),
            last_sign: clock::now(),
            #[cfg(test)]
            observer: None,
            drains: Vec::new(),
            block_readers: Readers::default(),
        }
    }

    /// Tells `told` when the workers can be sent plans, or could not at the first attempt.
    pub async fn run(mut self, mut group: Group, told: oneshot::Sender<()>) {
        let mut opened = self.open(&group).await;
        let _ = told.send(());
        loop {
            let loss = match opened {
                Ok(run) => match self.serve(run).await {
                    Left::Stopped => return self.turn_away().await,
                    Left::Lost(loss) => loss,
                },
                Err(loss) => loss,
            };
            opened = match self.recover(&mut group, loss).await {
                Outcome::Again(run) => Ok(run),
                Outcome::Stopped => return self.turn_away().await,
                Outcome::GaveUp(why) => return self.refuse_everything(why).await,
            };
        }
    }

    pub async fn open(&self, group: &Group) -> Result<Box<Run>, Loss> {
        let mut run = Box::new(Run::open(group).await?);
        if let Some(recorder) = &self.settings.recorder {
            run.record(recorder.clone(), group);
        }
        Ok(run)
    }

    async fn serve(&mut self, mut run: Box<Run>) -> Left {
        let timer = sleep_until(clock::now().into());
        tokio::pin!(timer);
        let expiry = sleep_until(clock::now().into());
        tokio::pin!(expiry);
        let mut check: OptionFuture<BoxFuture<'static, Result<(), Loss>>> = None.into();
        let mut checking = false;
        // Plans that wait to be sent with the masks of a plan before them.
        let mut unsent: VecDeque<StepPlan> = VecDeque::new();
        self.last_sign = clock::now();
        loop {
            for _ in 0..MESSAGES_PER_TURN {
                let Ok(message) = self.inbox.try_recv() else { break };
                if let Then::Stop = self.handle(message) {
                    return Left::Stopped;
                }
            }
            while let Some(results) = self.mask_threads.try_next() {
                self.take_masks(results);
            }
            self.core.expire(clock::now());
            self.core.skip_late_rows(clock::now());
            // What is known at once the next plan goes by. Other jobs then have its drafts to walk as well.
            while self.mask_threads.is_at_once(self.core.expected_mask_jobs()) {
                self.compute_masks();
            }
            while let Some(plan) = self.core.plan(clock::now()) {
                if let Some(built) = self.core.last_plan() {
                    self.metrics.planned(built);
                }
                unsent.push_back(plan);
            }
            while self.compute_masks() {}
            while let Some(masks) = self.core.masks(clock::now()) {
                // Its plan goes before it, or with it.
                while unsent.get(1).is_some_and(|second| second.number <= masks.number) {
                    run.send(unsent.pop_front(), None);
                }
                run.send(unsent.pop_front(), Some(masks));
            }
            let wait = unsent.front().and_then(|plan| self.core.plans_may_wait(plan.number));
            let wait = wait.filter(|until| *until > clock::now());
            while wait.is_none() && !unsent.is_empty() {
                run.send(unsent.pop_front(), None);
            }
            self.publish();
            if self.core.is_empty() {
                // Whoever waited for the first token has left.
                self.settled();
            }

            let overdue = self.core.deadline();
            if overdue.is_some() && checking {
                // Steps tell whether the workers live, and a check may have to wait for one.
                checking = false;
                check = None.into();
            }
            let wake = overdue.unwrap_or(self.last_sign + self.settings.check_interval);
            timer.as_mut().reset(wake.into());
            let due = [self.core.next_due(), self.core.masks_due(), wait].into_iter().flatten().min();
            if let Some(due) = due {
                expiry.as_mut().reset(due.into());
            }
            tokio::select! {
                biased;
                result = run.next() => {
                    if let Err(loss) = self.take(result) {
                        return Left::Lost(loss.or_of(run.output_rank()));
                    }
                }
                message = self.inbox.recv() => match message.map(|message| self.handle(message)) {
                    Some(Then::GoOn) => {}
                    // Without handles and tickets nothing lives and nothing will come.
                    Some(Then::Stop) | None => return Left::Stopped,
                },
                results = self.mask_threads.next() => self.take_masks(results),
                Some(answer) = &mut check, if checking => {
                    checking = false;
                    if let Err(loss) = answer {
                        return Left::Lost(loss);
                    }
                    self.last_sign = clock::now();
                }
                () = &mut expiry, if due.is_some() => {}
                // A check has its own time limit.
                () = &mut timer, if !checking => match overdue {
                    Some(_) => match timeout(LAST_LOOK, run.next()).await {
                        Ok(result) => if let Err(loss) = self.take(result) {
                            return Left::Lost(loss.or_of(run.output_rank()));
                        },
                        Err(_) if self.core.may_grant() => {
                            let (steps, waited) = self.core.waiting_for(clock::now());
                            if let Err(loss) = run.check(LIVELY).await {
                                return Left::Lost(loss);
                            }
                            tracing::info!(
                                waited_s = waited.as_secs_f64(),
                                steps_in_flight = steps,
                                "the workers take long over their first step of its size, and live"
                            );
                            self.core.grant();
                        }
                        Err(_) => return Left::Lost(self.overdue(&run).await),
                    },
                    None => {
                        checking = true;
                        check = Some(run.check(self.settings.step_timeout)).into();
                    }
                },
            }
        }
    }

    /// Has what there is to be computed done. Whether something came of it already.
    fn compute_masks(&mut self) -> bool {
        let done = self.mask_threads.submit(self.core.take_mask_jobs());
        let is_some = !done.is_empty();
        if is_some {
            self.take_masks(done);
        }
        is_some
    }

    fn take_masks(&mut self, results: Vec<MaskResult>) {
        let now = clock::now();
        // Their tokens, until the masks are on their way.
        self.shared.dispatcher.collect(now);
        for result in results {
            self.core.take_mask(result, now);
        }
    }

    fn take(&mut self, result: Result<StepResult, Loss>) -> Result<(), Loss> {
        let result = result?;
        let now = clock::now();
        self.last_sign = now;
        // Until the next plan is on its way.
        self.shared.dispatcher.collect(now);
        let step = self.core.apply(result, now)?;
        self.metrics.stepped(&step, clock::since(now));
        if step.delivered > 0 {
            self.fruitless = Fruitless::default();
            self.settled();
        }
        Ok(())
    }

    /// After a recovery: tokens flow again, or nobody waits for one.
    fn settled(&mut self) {
        if let Some(recovered) = self.refilling.take() {
            recovered.report(clock::now(), &self.metrics);
            self.recovered();
        }
    }

    async fn overdue(&self, run: &Run) -> Loss {
        let (steps, waited) = self.core.waiting_for(clock::now());
        run.who_hangs(format!("no result for {waited:.1?}, with {steps} steps in flight")).await
    }

    fn handle(&mut self, message: Message) -> Then {
        match message {
            Message::Submit(arrival) => self.core.submit(*arrival, clock::now()),
            Message::Release(id, why) => self.core.release(id, why, clock::now()),
            Message::ReadBlocks(reader) => {
                // What changed before is in what is known.
                self.tell_block_changes();
                self.block_readers.add(reader, || self.core.pool.known());
            }
            Message::Drain(done) => self.drains.push(done),
            Message::Stop(done) => {
                self.drains.push(done);
                return Then::Stop;
            }
        }
        Then::GoOn
    }

    /// The end: fails what lives and what is still on its way here, each with the reason.
    async fn turn_away(mut self) {
        let failure = SequenceFailure::from(Unavailable::Stopping);
        self.core.fail_all(&failure, clock::now());
        self.inbox.close();
        while let Some(message) = self.inbox.recv().await {
            match message {
                Message::Submit(arrival) => {
                    arrival.events.send(SequenceEvent::Failed(failure.clone()));
                }
                Message::Release(..) | Message::ReadBlocks(_) => {}
                Message::Drain(done) | Message::Stop(done) => self.drains.push(done),
            }
        }
        // Whoever waits for the end finds the record ended.
        drop(self.settings.recorder.take());
        self.publish();
    }

    fn tell_block_changes(&mut self) {
        if self.settings.block_events {
            let changes = self.core.take_block_changes();
            self.block_readers.tell(changes, || self.core.pool.known());
        }
    }

    /// Tells the outside what happened and how things are.
    pub fn publish(&mut self) {
        self.tell_block_changes();
        #[cfg(test)]
        if let Some(observe) = &mut self.observer {
            observe(&self.core);
        }
        if self.core.is_empty() {
            for done in self.drains.drain(..) {
                let _ = done.send(());
            }
        }
        let mut stats = self.core.stats();
        stats.worker_restarts = self.worker_restarts;
        self.metrics.snapshot(&stats, &self.core.counters, self.core.max_running_tokens());
        let retry_after = self.core.retry_after(clock::now());
        self.shared.retry_after_ms.store(retry_after.as_millis() as u64, Ordering::Relaxed);
        *self.shared.stats.lock().expect("nothing panics while it holds this lock") = stats;
        // Whoever is woken may look at all that.
        self.shared.dispatcher.flush();
    }

    /// The workers will not come back. Whoever lives fails, and so does whoever still comes.
    async fn refuse_everything(mut self, why: String) {
        let failure = SequenceFailure::from(Unavailable::Failed(why));
        self.core.fail_all(&failure, clock::now());
        loop {
            self.publish();
            match self.inbox.recv().await {
                Some(Message::Submit(arrival)) => {
                    arrival.events.send(SequenceEvent::Failed(failure.clone()));
                }
                Some(message) => match self.handle(message) {
                    Then::GoOn => {}
                    Then::Stop => return self.turn_away().await,
                },
                None => return,
            }
        }
    }
}

impl Capacity {
    pub fn of(group: &Group) -> Self {
        let (model, prepared, limits) = (group.description(), group.prepared(), group.limits());
        Self {
            pages: prepared.pages,
            tables: group.tables(),
            max_slots: limits.max_slots,
            max_step_tokens: limits.max_step_tokens,
            max_step_drafts: limits.max_step_drafts,
            max_sequence_tokens: group.max_sequence_tokens(),
            prepared_tokens: prepared.max_sequence_tokens,
            stages: model.stages,
            vocab_size: model.vocab_size,
            cost: prepared.cost.unwrap_or_default(),
            draft_cost: prepared.draft_cost,
            draft_trees: prepared.draft_trees,
            snapshots: model.has_state().then_some(prepared.snapshots),
            draft_states: prepared.draft_states,
        }
    }
}

/// Recovery: from the loss of the workers to the next token. The sequences stay where they are, in the core; here the group is
/// replaced, while messages are still taken.
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
        self.core.lose(lost_at);
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
            // Tokens that their grammars have still to take need no workers.
            while self.compute_masks() {}
            self.core.expire(clock::now());
            self.publish();
            let due = self.core.next_due();
            let expiry = tokio::time::sleep_until(due.unwrap_or_else(clock::now).into());
            tokio::select! {
                replaced = &mut replacing => {
                    return Some(replaced.unwrap_or_else(|panic| {
                        Err(StartError::Refused(format!("starting workers failed: {panic}")))
                    }));
                }
                () = expiry, if due.is_some() => {}
                results = self.mask_threads.next() => self.take_masks(results),
                message = self.inbox.recv() => match message.map(|message| self.handle(message)) {
                    Some(Then::GoOn) => {}
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
