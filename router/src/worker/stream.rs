//! The hot path to a group: one bidirectional stream per rank. The same plan goes to every rank, rank 0's
//! results come back, and the other ranks' numbers are checked. Used by the scheduler's task alone.

use std::time::Duration;

use futures::future::{BoxFuture, FutureExt, try_join_all};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use super::group::{CONNECT_TIMEOUT, Group, connect, describe_status};
use super::proto::worker_client::WorkerClient;
use super::proto::{CheckRequest, StepPlan, StepResult};
use super::source::Loss;

/// An open `Run` on every rank.
pub struct Run {
    ranks: Vec<WorkerClient<Channel>>,
    plans: Vec<mpsc::UnboundedSender<StepPlan>>,
    /// Of rank 0.
    results: Streaming<StepResult>,
    /// What went wrong on another rank.
    others: mpsc::UnboundedReceiver<Loss>,
    /// Reads the other ranks' results; ends with the run.
    _readers: tokio::task::JoinSet<()>,
}

impl Run {
    /// Connects anew, so that the connections live on the runtime of whoever runs the group.
    pub async fn open(group: &Group) -> Result<Self, Loss> {
        let mut ranks = connect(group.sockets()).await?;
        let mut plans = Vec::new();
        let mut calls = Vec::new();
        for rank in &mut ranks {
            let (sender, receiver) = mpsc::unbounded_channel();
            plans.push(sender);
            calls.push(rank.run(UnboundedReceiverStream::new(receiver)));
        }
        let opened = tokio::time::timeout(CONNECT_TIMEOUT, try_join_all(calls))
            .await
            .map_err(|_| Loss::Hung("Run was not opened in time".into()))?
            .map_err(|status| loss(0, &status))?;
        let mut streams = opened.into_iter().map(tonic::Response::into_inner);
        let results = streams.next().ok_or_else(|| Loss::Died("there are no workers".into()))?;
        let (report, others) = mpsc::unbounded_channel();
        let mut readers = tokio::task::JoinSet::new();
        for (rank, stream) in (1..).zip(streams) {
            readers.spawn(watch(rank, stream, report.clone()));
        }
        Ok(Self { ranks, plans, results, others, _readers: readers })
    }

    /// Never waits. A rank that is gone is noticed by `next`.
    pub fn send(&self, plan: StepPlan) {
        if let Some((last, first)) = self.plans.split_last() {
            for rank in first {
                let _ = rank.send(plan.clone());
            }
            let _ = last.send(plan);
        }
    }

    /// Rank 0's next result, or the end of any rank. Loses nothing when dropped half-way.
    pub async fn next(&mut self) -> Result<StepResult, Loss> {
        tokio::select! {
            biased;
            Some(loss) = self.others.recv() => Err(loss),
            result = self.results.message() => read(0, result),
        }
    }

    /// Whether every rank still computes.
    pub fn check(&self, within: Duration) -> BoxFuture<'static, Result<(), Loss>> {
        let ranks = self.ranks.clone();
        async move {
            let calls = ranks.into_iter().zip(0..).map(|(mut rank, number)| async move {
                rank.check(CheckRequest {}).await.map_err(|status| loss(number, &status))
            });
            match tokio::time::timeout(within, try_join_all(calls)).await {
                Ok(result) => result.map(drop),
                Err(_) => Err(Loss::Hung(format!("no answer to Check in {within:.1?}"))),
            }
        }
        .boxed()
    }
}

/// Reads a rank whose results nobody needs: its numbers must be those of the plans, in order.
async fn watch(rank: u32, mut stream: Streaming<StepResult>, report: mpsc::UnboundedSender<Loss>) {
    let mut expected = 1;
    let loss = loop {
        match read(rank, stream.message().await) {
            Ok(result) if result.number == expected => expected += 1,
            Ok(result) => {
                let got = result.number;
                break Loss::OutOfStep(format!("rank {rank} answered plan {got} instead of {expected}"));
            }
            Err(loss) => break loss,
        }
    };
    let _ = report.send(loss);
}

fn read(rank: u32, result: Result<Option<StepResult>, Status>) -> Result<StepResult, Loss> {
    match result {
        Ok(Some(result)) => Ok(result),
        Ok(None) => Err(Loss::Died(format!("rank {rank} ended its stream"))),
        Err(status) => Err(loss(rank, &status)),
    }
}

fn loss(rank: u32, status: &Status) -> Loss {
    let why = format!("rank {rank}: {}", describe_status(status));
    match status.code() {
        // Its answer to a plan that is not the one it expects, or not one at all.
        Code::FailedPrecondition | Code::InvalidArgument => Loss::OutOfStep(why),
        Code::DeadlineExceeded => Loss::Hung(why),
        _ => Loss::Died(why),
    }
}
