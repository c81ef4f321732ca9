//! The hot path to a group: one bidirectional stream per rank. The same plan goes to every rank, the results of
//! one come back, and the other ranks' numbers are checked. Used by the scheduler's task alone.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt, join_all, try_join_all};
use penstock_proto::worker_client::WorkerClient;
use penstock_proto::{CheckRequest, Masks, StepPlan, StepResult, ToWorker};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use super::connection::{BLAME, CONNECT_TIMEOUT, connect, loss};
use super::endpoint::Endpoint;
use super::frames::Frames;
use super::group::Group;
use super::recording::Recorder;
use super::source::{Loss, LossKind};

/// How long a living rank may take to answer `Check` when it is asked who hangs.
pub const LIVELY: Duration = Duration::from_secs(2);

/// An open `Run` on every rank.
pub struct Run {
    ranks: Vec<WorkerClient<Channel>>,
    /// To each rank; the output rank that takes frames has no need of it.
    plans: Vec<mpsc::UnboundedSender<ToWorker>>,
    /// Whose results count.
    output_rank: u32,
    results: Results,
    /// The output rank's stream has ended.
    ended: bool,
    /// A rank that lost another one, and how long that one's own end is waited for.
    peer_lost: Option<(Loss, Instant)>,
    /// Read the other ranks' results; each ends with what went wrong on its rank, and all end with the run.
    others: JoinSet<Loss>,
    recorder: Option<Arc<Recorder>>,
}

/// The way to the output rank and back.
enum Results {
    Call(Box<Streaming<StepResult>>),
    Frames(Frames),
}

impl Results {
    async fn next(&mut self) -> Result<Option<StepResult>, Status> {
        match self {
            Self::Call(stream) => stream.message().await,
            Self::Frames(frames) => frames.next().await.map(Some),
        }
    }
}

impl Run {
    /// Connects anew, so that the connections live on the runtime of whoever runs the group.
    pub async fn open(group: &Group) -> Result<Self, Loss> {
        let mut ranks = connect(group.endpoints()).await?;
        if let Some(calls) = open_frames(group).await? {
            return Self::in_frames(ranks, calls, group);
        }
        let mut plans = Vec::new();
        let mut calls = Vec::new();
        for rank in &mut ranks {
            let (sender, receiver) = mpsc::unbounded_channel();
            plans.push(sender);
            calls.push(rank.run(UnboundedReceiverStream::new(receiver)));
        }
        let calls = (0..).zip(calls).map(|(rank, call)| async move {
            match timeout(CONNECT_TIMEOUT, call).await {
                Ok(opened) => opened.map_err(|status| loss(rank, &status)),
                Err(_) => Err(Loss::of(rank, LossKind::Hung, "Run was not opened in time")),
            }
        });
        let streams = try_join_all(calls).await?.into_iter().map(tonic::Response::into_inner);
        let mut others = JoinSet::new();
        let output_rank = group.output_rank();
        let mut results = None;
        for (rank, stream) in (0..).zip(streams) {
            if rank == output_rank {
                results = Some(Results::Call(Box::new(stream)));
            } else {
                others.spawn(watch(rank, stream));
            }
        }
        let results = results.ok_or_else(no_workers)?;
        Ok(Self::with(ranks, plans, group, results, others))
    }

    fn in_frames(ranks: Vec<WorkerClient<Channel>>, calls: Vec<Frames>, group: &Group) -> Result<Self, Loss> {
        let mut plans = Vec::new();
        let mut others = JoinSet::new();
        let mut results = None;
        for (rank, frames) in (0..).zip(calls) {
            let (sender, receiver) = mpsc::unbounded_channel();
            plans.push(sender);
            if rank == group.output_rank() {
                results = Some(Results::Frames(frames));
            } else {
                others.spawn(watch_frames(rank, frames, receiver));
            }
        }
        let results = results.ok_or_else(no_workers)?;
        Ok(Self::with(ranks, plans, group, results, others))
    }

    fn with(
        ranks: Vec<WorkerClient<Channel>>,
        plans: Vec<mpsc::UnboundedSender<ToWorker>>,
        group: &Group,
        results: Results,
        others: JoinSet<Loss>,
    ) -> Self {
        let output_rank = group.output_rank();
        Self { ranks, plans, output_rank, results, ended: false, peer_lost: None, others, recorder: None }
    }

    /// From now on all that goes to the rank that answers, and comes from it, is recorded.
    pub fn record(&mut self, recorder: Arc<Recorder>, group: &Group) {
        recorder.begin(group);
        self.recorder = Some(recorder);
    }

    /// The rank whose results `next` returns.
    pub fn output_rank(&self) -> u32 {
        self.output_rank
    }

    /// Never waits. A rank that is gone is noticed by `next`.
    pub fn send(&mut self, plan: Option<StepPlan>, masks: Option<Masks>) {
        if let Some(recorder) = &self.recorder {
            plan.iter().for_each(|plan| recorder.plan(plan));
            masks.iter().for_each(|masks| recorder.masks(masks));
        }
        let output = self.output_rank as usize;
        for rank in self.plans.iter().enumerate().filter(|(rank, _)| *rank != output).map(|(_, rank)| rank) {
            if let Some(plan) = &plan {
                let _ = rank.send(ToWorker { plan: Some(plan.clone()), masks: None });
            }
        }
        // Only the rank that samples needs masks.
        let message = ToWorker { plan, masks };
        match &mut self.results {
            Results::Frames(frames) => frames.send(&message),
            Results::Call(_) => drop(self.plans[output].send(message)),
        }
    }

    /// The output rank's next result, or the end of any rank. Loses nothing when dropped half-way.
    ///
    /// When a rank dies, those that were waiting for its part of a step fail, too, and may be heard first.
    pub async fn next(&mut self) -> Result<StepResult, Loss> {
        loop {
            let patience = self.peer_lost.as_ref().map(|(_, until)| *until);
            let loss = tokio::select! {
                biased;
                Some(ended) = self.others.join_next() => ended.unwrap_or_else(|panic| {
                    Loss::unnamed(LossKind::OutOfStep, format!("a reader of its results broke: {panic}"))
                }),
                result = self.results.next(), if !self.ended => match read(self.output_rank, result) {
                    Ok(result) => {
                        if let Some(recorder) = &self.recorder {
                            recorder.result(&result);
                        }
                        return Ok(result);
                    }
                    Err(loss) => {
                        self.ended = true;
                        loss
                    }
                },
                () = sleep_until(patience.unwrap_or_else(Instant::now)), if patience.is_some() => {
                    let (loss, _) = self.peer_lost.take().expect("there is no patience without it");
                    return Err(loss);
                }
                // Every rank has ended, and the last was not to blame; nothing more will come.
                else => std::future::pending().await,
            };
            if loss.kind != LossKind::PeerLost {
                return Err(loss);
            }
            self.peer_lost.get_or_insert((loss, Instant::now() + BLAME));
        }
    }

    /// Whether every rank still computes.
    pub fn check(&self, within: Duration) -> BoxFuture<'static, Result<(), Loss>> {
        let calls = self.checks(within);
        async move { try_join_all(calls).await.map(drop) }.boxed()
    }

    /// The rank because of which nothing comes back. Those that wait for it in a step still answer `Check`.
    pub async fn who_hangs(&self, why: String) -> Loss {
        if self.ranks.len() == 1 {
            return Loss::of(0, LossKind::Hung, why);
        }
        let answers = join_all(self.checks(LIVELY)).await;
        if let Some(silent) = answers.iter().find_map(|answer| answer.as_ref().err()) {
            let cause = format!("{why}, and {}", silent.cause);
            return Loss { cause, ..silent.clone() };
        }
        let steps: Vec<u64> = answers.into_iter().flatten().collect();
        let (least, most) = (steps.iter().min(), steps.iter().max());
        let cause = format!("{why}, and every worker answers Check; steps begun: {steps:?}");
        match (0..).zip(&steps).find(|(_, count)| least != most && Some(*count) == least) {
            Some((behind, _)) => Loss::of(behind, LossKind::Hung, cause),
            None => Loss::unnamed(LossKind::Hung, cause),
        }
    }

    /// For each rank, the steps it has begun, or that it does not answer.
    fn checks(&self, within: Duration) -> Vec<BoxFuture<'static, Result<u64, Loss>>> {
        let check = |(rank, mut client): (u32, WorkerClient<Channel>)| {
            async move {
                match timeout(within, client.check(CheckRequest {})).await {
                    Ok(Ok(reply)) => Ok(reply.into_inner().steps),
                    Ok(Err(status)) => Err(loss(rank, &status)),
                    Err(_) => {
                        Err(Loss::of(rank, LossKind::Hung, format!("no answer to Check in {within:.1?}")))
                    }
                }
            }
            .boxed()
        };
        (0..).zip(self.ranks.iter().cloned()).map(check).collect()
    }
}

/// The calls in frames, where every rank offers it and its socket can be reached; a worker in another container may have given away one
/// socket only.
async fn open_frames(group: &Group) -> Result<Option<Vec<Frames>>, Loss> {
    if !group.description().frames {
        return Ok(None);
    }
    let mut calls = Vec::new();
    for endpoint in group.endpoints() {
        let Endpoint::Unix(socket) = endpoint else { return Ok(None) };
        match Frames::connect(socket).await {
            Ok(frames) => calls.push(frames),
            Err(error) => {
                tracing::debug!("plans go through gRPC: {error}");
                return Ok(None);
            }
        }
    }
    for (rank, frames) in (0..).zip(&mut calls) {
        match timeout(CONNECT_TIMEOUT, frames.begun()).await {
            Ok(begun) => begun.map_err(|status| loss(rank, &status))?,
            Err(_) => return Err(Loss::of(rank, LossKind::Hung, "Run was not opened in time")),
        }
    }
    Ok(Some(calls))
}

fn no_workers() -> Loss {
    Loss::unnamed(LossKind::Died, "there are no workers")
}

/// Reads a rank whose results nobody needs: its numbers must be those of the plans, in order.
async fn watch(rank: u32, mut stream: Streaming<StepResult>) -> Loss {
    let mut expected = 1;
    loop {
        if let Err(loss) = check_number(rank, read(rank, stream.message().await), &mut expected) {
            return loss;
        }
    }
}

/// The same of a rank that takes frames, which is also sent its plans here.
async fn watch_frames(rank: u32, mut frames: Frames, mut plans: mpsc::UnboundedReceiver<ToWorker>) -> Loss {
    let mut expected = 1;
    loop {
        tokio::select! {
            biased;
            Some(plan) = plans.recv() => frames.send(&plan),
            result = frames.next() => {
                if let Err(loss) = check_number(rank, read(rank, result.map(Some)), &mut expected) {
                    return loss;
                }
            }
        }
    }
}

fn check_number(rank: u32, result: Result<StepResult, Loss>, expected: &mut u64) -> Result<(), Loss> {
    let got = result?.number;
    if got != *expected {
        let why = format!("it answered plan {got} instead of {expected}");
        return Err(Loss::of(rank, LossKind::OutOfStep, why));
    }
    *expected += 1;
    Ok(())
}

fn read(rank: u32, result: Result<Option<StepResult>, Status>) -> Result<StepResult, Loss> {
    match result {
        Ok(Some(result)) => Ok(result),
        Ok(None) => Err(Loss::of(rank, LossKind::Died, "it ended its stream")),
        Err(status) => Err(loss(rank, &status)),
    }
}
