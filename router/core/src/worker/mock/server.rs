//! One mock worker: a thread with a runtime of its own, so that it can die as a process dies, with every
//! connection cut at once and nothing answered.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use penstock_proto::worker_server::{Worker, WorkerServer};
use penstock_proto::{
    CheckReply, CheckRequest, DescribeRequest, DraftModel, Masks, ModelDescription, PrepareRequest, Prepared,
    RowFlag, StepPlan, StepResult, ToWorker,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::Stream;
use tokio_stream::wrappers::{UnboundedReceiverStream, UnixListenerStream};
use tonic::transport::server::Connected;
use tonic::{Request, Response, Status, Streaming};

use super::{Fault, MockConfig, MockModel, Script, Step};

/// Held by whoever may end the worker.
pub(super) struct Running {
    die: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
    frozen: Arc<AtomicBool>,
}

/// The calls of `Run`.
pub(super) struct Runs {
    /// They wait for their answer while this is `false`.
    pub open: watch::Sender<bool>,
    pub asked: watch::Sender<u64>,
}

/// What a worker is told at birth.
#[derive(Clone)]
pub(super) struct Birth {
    pub config: MockConfig,
    pub rank: u32,
    pub incarnation: u32,
    pub script: Arc<Mutex<Script>>,
    pub steps: Arc<AtomicU64>,
    pub runs: Arc<Runs>,
    /// So many calls of `Prepare` are yet refused.
    pub without_room: Arc<AtomicU32>,
    pub in_virtual_time: bool,
}

impl Running {
    /// A thread that listens at a unix socket.
    pub fn start(birth: Birth, socket: PathBuf) -> io::Result<Self> {
        // Bound here, so that a connection made from now on waits instead of failing.
        let listener = std::os::unix::net::UnixListener::bind(&socket)?;
        listener.set_nonblocking(true)?;
        let (die, told) = oneshot::channel::<()>();
        let frozen = Arc::new(AtomicBool::new(false));
        let service = MockService::new(birth, frozen.clone());
        let thread = std::thread::Builder::new().name("mock worker".into()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let Ok(runtime) = runtime else { return };
            runtime.block_on(async move {
                let Ok(listener) = tokio::net::UnixListener::from_std(listener) else { return };
                service.serve(UnixListenerStream::new(listener), told).await;
            });
            // Dropping the runtime drops every connection's task where it stands.
        })?;
        Ok(Self { die: Some(die), thread: Some(thread), frozen })
    }

    /// A task of this runtime, whose connections are pipes in memory: for virtual time.
    #[cfg(test)]
    pub fn start_here(birth: Birth, socket: PathBuf) -> Self {
        let mut dialled = super::memory::listen(socket);
        let (die, told) = oneshot::channel::<()>();
        let frozen = Arc::new(AtomicBool::new(false));
        let service = MockService::new(birth, frozen.clone());
        tokio::spawn(async move {
            let (accept, accepted) = mpsc::unbounded_channel();
            let serving = service.serve(UnboundedReceiverStream::new(accepted), told);
            tokio::pin!(serving);
            // With its death every connection is cut where it stands.
            let mut pipes = tokio::task::JoinSet::new();
            loop {
                tokio::select! {
                    biased;
                    () = &mut serving => return,
                    Some(mut far) = dialled.recv() => {
                        let (mut near, own) = tokio::io::duplex(1 << 20);
                        pipes.spawn(async move { tokio::io::copy_bidirectional(&mut far, &mut near).await });
                        let _ = accept.send(io::Result::Ok(own));
                    }
                }
            }
        });
        Self { die: Some(die), thread: None, frozen }
    }

    /// From now on it answers nothing.
    pub fn freeze(&self) {
        self.frozen.store(true, Ordering::SeqCst);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.die.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct MockService {
    birth: Birth,
    frozen: Arc<AtomicBool>,
    limits: Arc<Mutex<Option<PrepareRequest>>>,
    /// A script's `Die` goes through here.
    death: (mpsc::UnboundedSender<()>, mpsc::UnboundedReceiver<()>),
}

/// The part that handles calls.
struct Calls {
    birth: Birth,
    frozen: Arc<AtomicBool>,
    limits: Arc<Mutex<Option<PrepareRequest>>>,
    die: mpsc::UnboundedSender<()>,
}

impl MockService {
    fn new(birth: Birth, frozen: Arc<AtomicBool>) -> Self {
        Self { birth, frozen, limits: Arc::new(Mutex::new(None)), death: mpsc::unbounded_channel() }
    }

    async fn serve<C>(self, incoming: impl Stream<Item = io::Result<C>>, told: oneshot::Receiver<()>)
    where
        C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    {
        let (die, mut dying) = self.death;
        let calls = Calls { birth: self.birth, frozen: self.frozen, limits: self.limits, die };
        let service = WorkerServer::new(calls)
            .max_decoding_message_size(usize::MAX)
            .max_encoding_message_size(usize::MAX);
        let serving = tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming);
        tokio::select! {
            biased;
            _ = serving => {}
            _ = told => {}
            _ = dying.recv() => {}
        }
    }
}

#[tonic::async_trait]
impl Worker for Calls {
    type RunStream = Pin<Box<dyn Stream<Item = Result<StepResult, Status>> + Send>>;

    async fn describe(&self, _: Request<DescribeRequest>) -> Result<Response<ModelDescription>, Status> {
        self.answer().await;
        let config = &self.birth.config;
        Ok(Response::new(ModelDescription {
            model_type: "mock".into(),
            recipe: "mock".into(),
            vocab_size: config.vocab_size,
            eos_ids: config.eos_ids.clone(),
            dtype: "float32".into(),
            device: "cpu".into(),
            device_name: "mock".into(),
            block_size: config.block_size,
            max_positions: config.max_positions,
            parameters: 1,
            weight_bytes: 1,
            kv_bytes_per_token: 1,
            rank: self.birth.rank,
            world_size: config.world_size,
            stages: config.stages,
            max_top_tokens: 20,
            contract: config.contract,
            decoder_start_ids: config.decoder_start_ids.clone(),
            max_side_positions: 0,
            positions_go_on: false,
            state_bytes: config.state_bytes,
            draft_model: (config.wrong_draft_one_in > 0)
                .then(|| DraftModel { model_type: "mock".into(), parameters: 1 }),
            frames: false,
            adapters: config.described_adapters(),
        }))
    }

    async fn prepare(&self, request: Request<PrepareRequest>) -> Result<Response<Prepared>, Status> {
        self.answer().await;
        let request = request.into_inner();
        let refusal = |left: u32| left.checked_sub(1);
        if self.birth.without_room.fetch_update(Ordering::SeqCst, Ordering::SeqCst, refusal).is_ok() {
            return Err(Status::resource_exhausted("no memory is left for the KV cache"));
        }
        let before = self.limits.lock().ok().and_then(|mut limits| limits.replace(request));
        // A router that connects again; one with other limits would have the worker start anew.
        if before.is_some_and(|before| before != request) {
            return Err(Status::unavailable("it is prepared for other limits"));
        }
        let own = self.birth.config.prepared();
        let max_sequence_tokens = match request.max_sequence_tokens {
            0 => own.max_sequence_tokens,
            asked => asked,
        };
        Ok(Response::new(Prepared { max_sequence_tokens, ..own }))
    }

    async fn run(&self, request: Request<Streaming<ToWorker>>) -> Result<Response<Self::RunStream>, Status> {
        self.answer().await;
        self.birth.runs.asked.send_modify(|asked| *asked += 1);
        let mut open = self.birth.runs.open.subscribe();
        let _ = open.wait_for(|open| *open).await;
        let limits = self.limits.lock().ok().and_then(|limits| *limits);
        let limits = limits.ok_or_else(|| Status::failed_precondition("not prepared"))?;
        let model = MockModel::new(self.birth.config.clone(), limits.max_slots, limits.max_step_tokens)
            .with_drafts(limits.max_step_drafts);
        let (answers, results) = mpsc::unbounded_channel();
        let session = Session {
            birth: self.birth.clone(),
            frozen: self.frozen.clone(),
            die: self.die.clone(),
            model,
            answers,
            plans: VecDeque::new(),
            masks: VecDeque::new(),
        };
        tokio::spawn(session.run(request.into_inner()));
        Ok(Response::new(Box::pin(UnboundedReceiverStream::new(results))))
    }

    async fn check(&self, _: Request<CheckRequest>) -> Result<Response<CheckReply>, Status> {
        self.answer().await;
        Ok(Response::new(CheckReply { steps: self.birth.steps.load(Ordering::Relaxed) }))
    }
}

impl Calls {
    async fn answer(&self) {
        if self.frozen.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
    }
}

/// One `Run`.
struct Session {
    birth: Birth,
    frozen: Arc<AtomicBool>,
    die: mpsc::UnboundedSender<()>,
    model: MockModel,
    answers: mpsc::UnboundedSender<Result<StepResult, Status>>,
    /// Received, and not executed yet.
    plans: VecDeque<StepPlan>,
    masks: VecDeque<Masks>,
}

impl Session {
    async fn run(mut self, mut messages: Streaming<ToWorker>) {
        while let Some((plan, masks)) = self.next(&mut messages).await {
            match self.step(&plan, masks.as_ref()).await {
                Some(answer) => {
                    let last = answer.is_err();
                    if self.answers.send(answer).is_err() || last {
                        return;
                    }
                }
                // Dead or frozen: hold the stream open, and say nothing.
                None => std::future::pending().await,
            }
        }
    }

    /// The next plan, with its masks if it has rows that need some and this rank samples. `None`: the stream has ended.
    async fn next(&mut self, messages: &mut Streaming<ToWorker>) -> Option<(StepPlan, Option<Masks>)> {
        let samples = self.birth.rank == self.birth.config.output_rank();
        loop {
            let masked = |flags: &[u8]| flags.iter().any(|flags| flags & RowFlag::Masked as u8 != 0);
            let owed = self.plans.front().map(|plan| (plan.number, samples && masked(&plan.flags)));
            match owed {
                Some((_, true)) if self.masks.is_empty() => {}
                Some((number, owed)) => {
                    // Those of a plan that waits for none, or is gone, are for the model to refuse.
                    let is_wrong = self.masks.front().is_some_and(|masks| masks.number <= number);
                    let masks = if owed || is_wrong { self.masks.pop_front() } else { None };
                    return self.plans.pop_front().map(|plan| (plan, masks));
                }
                None => {}
            }
            let ToWorker { plan, masks } = messages.message().await.ok()??;
            self.plans.extend(plan);
            self.masks.extend(masks);
        }
    }

    async fn step(&mut self, plan: &StepPlan, masks: Option<&Masks>) -> Option<Result<StepResult, Status>> {
        let executed = self.model.execute_masked(plan, masks);
        let tokens = self.model.fed().len() as u32;
        self.compute(tokens).await;
        if self.frozen.load(Ordering::SeqCst) {
            return None;
        }
        let mut result = match executed {
            Ok(result) => result,
            Err(why) => return Some(Err(Status::failed_precondition(why))),
        };
        let rows = plan.flags.len() as u32;
        let Birth { incarnation, rank, .. } = self.birth;
        let step = Step { incarnation, rank, number: plan.number, rows, fed: self.model.fed() };
        let fault = self.birth.script.lock().ok().and_then(|mut script| script(step));
        match fault {
            None => {}
            Some(Fault::Die) => {
                let _ = self.die.send(());
                return None;
            }
            Some(Fault::Hang) => {
                self.frozen.store(true, Ordering::SeqCst);
                return None;
            }
            Some(Fault::Slow(time)) => tokio::time::sleep(time).await,
            Some(Fault::Wait) => return None,
            Some(Fault::LosePeer) => return Some(Err(Status::aborted("another rank closed its connection"))),
            Some(Fault::Refuse) => return Some(Err(Status::failed_precondition("out of step, as told"))),
            Some(Fault::RowError(row)) => result
                .errors
                .push(penstock_proto::RowError { row, message: "the model's output is not a number".into() }),
            Some(Fault::OutsideVocabulary) => {
                result.sampled = vec![0xff; result.sampled.len()].into();
            }
            Some(Fault::WrongNumber) => result.number += 1,
            Some(Fault::ShortColumn) => result.sampled.truncate(result.sampled.len() / 2),
        }
        self.birth.steps.fetch_add(1, Ordering::Relaxed);
        Some(Ok(result))
    }

    /// Lasts as long as the model would. The runtime's timer counts in milliseconds; shorter steps block
    /// this thread, which has nothing else to do.
    async fn compute(&self, tokens: u32) {
        let config = &self.birth.config;
        let time = config.step_fixed + config.step_per_token * tokens;
        if time >= Duration::from_millis(2) || self.birth.in_virtual_time {
            tokio::time::sleep(time).await;
        } else if !time.is_zero() {
            std::thread::sleep(time);
        }
    }
}
