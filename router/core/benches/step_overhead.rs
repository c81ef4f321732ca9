//! Figure 2: what router and gRPC cost per step beyond the model's own time, against a worker process that
//! computes nothing, the tests' null worker (`integration-tests/null_worker/`): `make bench` has the command.
//!
//! A step's cost is the time from the last result to its own, less what the worker says its model took.
//! With one plan in flight everything router and wire do is in it; with two, what the model's time does not
//! hide. A third line takes the whole way, to the channels of the clients of `scheduler::Handle`, less the
//! nominal model time: what the worker oversleeps counts against it.

use std::collections::VecDeque;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use penstock_core::health::Health;
use penstock_core::scheduler::offline::Offline;
use penstock_core::scheduler::{
    Namespace, Priority, Sampling, SequenceEvent, SequenceSpec, Settings, Submitted,
};
use penstock_core::worker::{Endpoint, GiveUp, Group, Loss, PrepareLimits, Run, WorkerSource};
use penstock_proto::ids::TokenId;

const STEPS: usize = 3000;
const WARM_UP: usize = 300;
const LIMITS: PrepareLimits = PrepareLimits {
    max_slots: 256,
    max_step_tokens: 2048,
    max_sequence_tokens: 16_384,
    max_cache_tokens: 256 * 16_384,
    memory_fraction: 0.9,
    max_step_drafts: 0,
};
use penstock_core::tenant::Tenant;

/// One worker process, started by hand.
struct Process {
    command: Vec<String>,
    step_us: u64,
    dir: tempfile::TempDir,
    running: Mutex<Option<Child>>,
}

#[async_trait]
impl WorkerSource for Process {
    async fn fresh(&self, lost: Option<&Loss>) -> Result<Vec<Endpoint>, GiveUp> {
        if let Some(loss) = lost {
            return Err(GiveUp(format!("the benchmark's worker was lost: {loss}")));
        }
        let socket = self.dir.path().join("worker.sock");
        let child = Command::new(&self.command[0])
            .args(&self.command[1..])
            .arg("--listen")
            .arg(format!("unix:{}", socket.display()))
            .env("PENSTOCK_NULL_STEP_US", self.step_us.to_string())
            .stdin(Stdio::null())
            .spawn()
            .map_err(|error| GiveUp(format!("cannot start {}: {error}", self.command[0])))?;
        *self.running.lock().expect("nothing panics with it") = Some(child);
        let deadline = Instant::now() + Duration::from_secs(60);
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            if Instant::now() > deadline {
                return Err(GiveUp("the worker does not listen".into()));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(vec![Endpoint::Unix(socket)])
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.running.lock().expect("nothing panics with it").take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn spec(salt: u32) -> SequenceSpec {
    SequenceSpec {
        encoder: Vec::new(),
        prompt: (0..32).map(|at| TokenId((at * 31 + salt * 97) % 32_000)).collect(),
        sampling: Sampling::default(),
        max_new_tokens: 16_000,
        ignore_eos: true,
        stop_token_ids: Vec::new(),
        top_tokens: 0,
        prompt_logprobs: false,
        constraint: None,
        adapter: None,
        cache_namespace: Namespace::default(),
        tenant: Tenant::Anonymous,
        priority: Priority::default(),
        deadline: None,
        stop_at: None,
        trace: None,
    }
}

fn settings() -> Settings {
    Settings {
        max_live: 1000,
        target_itl: None,
        eos: Vec::new(),
        step_timeout: Duration::from_secs(10),
        check_interval: Duration::from_secs(60),
        speculate: 0,
        speculate_corpus_tokens: 0,
        block_events: false,
        recorder: None,
    }
}

/// A runtime of its own for each measurement, as the scheduler has one. Its end ends its connections too,
/// so that the worker is free for the next one.
fn alone<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("the system has a timer and a poller").block_on(future)
}

/// Core and wire, with so many plans in flight.
async fn core_and_wire(group: &Group, rows: u32, in_flight: usize) -> Vec<Duration> {
    let mut run = Run::open(group).await.expect("the worker runs");
    let mut scheduler = Offline::new(&settings(), group.description(), group.prepared(), &LIMITS);
    let mut clients: Vec<_> = (0..rows).map(|salt| scheduler.submit(spec(salt))).collect();
    let mut sent = VecDeque::new();
    let mut last = Instant::now();
    let mut costs = Vec::new();
    for step in 0..WARM_UP + STEPS {
        while sent.len() < in_flight {
            let Some(plan) = scheduler.plan(Instant::now()) else { break };
            sent.push_back(plan.number);
            run.send(Some(plan), None);
        }
        let result = run.next().await.expect("the worker answers");
        sent.pop_front();
        let now = Instant::now();
        let model = Duration::from_nanos(result.forward_ns + result.sample_ns);
        if step >= WARM_UP {
            costs.push((now - last).saturating_sub(model));
        }
        last = now;
        scheduler.apply(result, now).expect("the result is right");
        for client in &mut clients {
            while client.try_recv().is_some() {}
        }
    }
    costs
}

/// The whole scheduler, as `http` uses it: time between tokens at one of the clients.
async fn whole(group: &Group, source: Arc<Process>, rows: u32, model: Duration) -> Vec<Duration> {
    let health = tokio::sync::watch::Sender::new(Health::Ready);
    let handle = penstock_core::scheduler::spawn(group.clone(), source, settings(), health).await;
    let mut clients: Vec<Submitted> =
        (0..rows).map(|salt| handle.submit(spec(salt)).expect("there is room")).collect();
    let mut watched = clients.pop().expect("there is a row");
    let others: Vec<_> = clients
        .into_iter()
        .map(|mut client| tokio::spawn(async move { while client.events.recv().await.is_some() {} }))
        .collect();
    let mut last = Instant::now();
    let mut costs = Vec::new();
    while costs.len() < WARM_UP + STEPS {
        match watched.events.recv().await {
            Some(SequenceEvent::Token(_)) => {
                let now = Instant::now();
                costs.push((now - last).saturating_sub(model));
                last = now;
            }
            Some(SequenceEvent::Admitted { .. }) => {}
            other => panic!("{other:?} instead of a token"),
        }
    }
    handle.stop().await;
    for other in others {
        let _ = other.await;
    }
    costs.split_off(WARM_UP)
}

fn report(label: &str, mut costs: Vec<Duration>) {
    costs.sort();
    let at = |share: f64| costs[((costs.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
    println!(
        "{label:<44} p10 {:7.1}  p50 {:7.1}  p90 {:7.1}  p99 {:7.1} us",
        at(0.1),
        at(0.5),
        at(0.9),
        at(0.99)
    );
}

fn main() {
    let command: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if command.is_empty() {
        println!("step_overhead: skipped, no worker was named (see `bench` in the Makefile)");
        return;
    }
    // `cargo bench` runs in the package; paths are meant from the workspace.
    let root =
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the package is in a workspace");
    std::env::set_current_dir(root).expect("the workspace is there");
    for step_us in [0u64, 2000] {
        println!("model time {step_us} us");
        for rows in [1, 32, 256] {
            let owners = Permissions::from_mode(0o700);
            let source = Arc::new(Process {
                command: command.clone(),
                step_us,
                dir: tempfile::Builder::new()
                    .permissions(owners)
                    .tempdir()
                    .expect("there is a temporary folder"),
                running: Mutex::new(None),
            });
            let group = alone(Group::start(&*source, |_| Ok(LIMITS))).expect("the null worker starts");
            for in_flight in [1, 2] {
                let costs = alone(core_and_wire(&group, rows, in_flight));
                report(&format!("  {rows:3} rows, {in_flight} in flight, core and wire"), costs);
            }
            let clients = tokio::runtime::Runtime::new().expect("a runtime");
            let model = Duration::from_micros(step_us);
            let costs = clients.block_on(whole(&group, source.clone(), rows, model));
            report(&format!("  {rows:3} rows, 2 in flight, to the clients"), costs);
        }
    }
}
