//! Figure 3: the scheduler alone. What planning a step and applying its result take of its thread's processor time: with 256
//! sequences that decode and 10, 1,000 or 10,000 more in the queue; with 1,024 whose clients wait for each token in
//! tasks of another runtime, without and with `--speculate 8`, whose lookups find next to nothing; and with a head of the queue for which there is no room, and whose 32k tokens are cached. Sequences
//! end and are replaced all the time, as they are when a server is full; the mock model that answers is not measured.
//!
//!     cargo bench -p penstock-core --bench scheduler

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::{Duration, Instant};

use futures::FutureExt;
use penstock_core::scheduler::offline::Offline;
use penstock_core::scheduler::{
    Namespace, Priority, Sampling, SequenceEvent, SequenceEvents, SequenceSpec, Settings,
};
use penstock_core::tenant::Tenant;
use penstock_core::worker::PrepareLimits;
use penstock_core::worker::mock::{MockConfig, MockModel, Verify};
use penstock_proto::ids::TokenId;
use penstock_proto::{CostModel, ModelDescription, Prepared, StepPlan};
use tokio::runtime::Runtime;

const PROMPT: u32 = 96;
const OUTPUT: u32 = 400;
const LONG_PROMPT: u32 = 32_768;
const BLOCK: u32 = 16;
const SAMPLES: usize = 50;

/// How clients read.
enum Clients {
    /// The oldest first, after each step.
    Polled(VecDeque<SequenceEvents>),
    /// Each in a task, which waits for its next event.
    Waiting(Runtime),
}

struct Load {
    scheduler: Offline,
    model: MockModel,
    plans: VecDeque<StepPlan>,
    clients: Clients,
    running: u32,
    /// That wait or run.
    live: u32,
    submitted: u32,
}

/// What a step took of this thread: planning it, and applying its result.
#[derive(Default)]
struct Took {
    plan: Duration,
    apply: Duration,
}

/// Processor time of this thread.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes to `time` alone.
    let done = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(done, 0, "Linux has this clock");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

impl Load {
    /// `running` sequences decode, each somewhere else in its output, and `queued` wait.
    fn new(running: u32, slots: u32, queued: u32, pages: u32, clients: Clients, speculate: u32) -> Self {
        let limits = PrepareLimits {
            max_slots: slots,
            max_step_tokens: 2048,
            max_sequence_tokens: 0,
            max_cache_tokens: 0,
            memory_fraction: 0.9,
            max_step_drafts: if speculate > 0 { 256 } else { 0 },
        };
        let cost = CostModel { fixed_ns: 1e6, per_token_ns: 1e4, per_context_token_ns: 10.0 };
        let config = MockConfig {
            vocab_size: 32_000,
            pages,
            block_size: BLOCK,
            max_positions: 1 << 16,
            verify: Verify::Last,
            cost,
            ..MockConfig::default()
        };
        let model = ModelDescription {
            vocab_size: config.vocab_size,
            block_size: config.block_size,
            max_positions: config.max_positions,
            ..ModelDescription::default()
        };
        let prepared = Prepared { cost: Some(cost), ..config.prepared() };
        let settings = Settings {
            max_live: u32::MAX,
            target_itl: None,
            eos: vec![TokenId(2)],
            step_timeout: Duration::from_secs(10),
            check_interval: Duration::from_secs(10),
            speculate,
            speculate_corpus_tokens: 0,
            block_events: false,
            recorder: None,
        };
        let scheduler = {
            let _inside = match &clients {
                Clients::Waiting(runtime) => Some(runtime.enter()),
                Clients::Polled(_) => None,
            };
            Offline::new(&settings, &model, &prepared, &limits)
        };
        let model = MockModel::new(config, limits.max_slots, limits.max_step_tokens)
            .with_drafts(limits.max_step_drafts);
        let (plans, live) = (VecDeque::new(), running + queued);
        let mut load = Self { scheduler, model, plans, clients, running, live, submitted: 0 };
        load.refill();
        load
    }

    /// In a state that lasts.
    fn steady(mut self, queued: u32) -> Self {
        for _ in 0..2 * OUTPUT {
            self.step();
        }
        let stats = self.scheduler.stats();
        // Those that have just ended are replaced in the next step.
        let just_ended = 1 + self.running / 128;
        let is_full = self.running - stats.running <= just_ended
            && stats.running + stats.waiting == self.running + queued;
        assert!(is_full, "the load is what it says: {} run and {} wait", stats.running, stats.waiting);
        self
    }

    fn polled(running: u32, queued: u32) -> Self {
        Self::new(running, running, queued, 16_384, Clients::Polled(VecDeque::new()), 0).steady(queued)
    }

    fn waiting(running: u32, speculate: u32) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let clients = Clients::Waiting(runtime.expect("the system has threads"));
        Self::new(running, running, 10, 65_536, clients, speculate).steady(10)
    }

    /// A sequence with a prompt of 32k tokens that are all cached waits behind 256 that run, and finds no room: what those
    /// hold and its prompt leave too little. They are replaced by others of a higher priority as they end.
    fn stuck() -> Self {
        let held = 256 * (PROMPT + OUTPUT / 2) / BLOCK;
        let pages = held + LONG_PROMPT / BLOCK + 200;
        let mut load = Self::new(256, 260, 0, pages, Clients::Polled(VecDeque::new()), 0);
        for _ in 0..2 * OUTPUT {
            load.step();
        }
        let prompt: Vec<_> = (0..LONG_PROMPT).map(|at| TokenId(7 + at % 31_000)).collect();
        // Once to its end, before all others.
        load.push(prompt.clone(), 1, Priority(-2));
        for _ in 0..LONG_PROMPT / BLOCK {
            load.step();
        }
        load.live += 1;
        load.push(prompt, 100, Priority(0));
        for _ in 0..OUTPUT {
            load.step();
        }
        let stats = load.scheduler.stats();
        assert_eq!((stats.running, stats.waiting), (256, 1), "it waits");
        load
    }

    fn submit(&mut self) {
        let salt = self.submitted;
        self.submitted += 1;
        // A system prompt in common, then something of its own.
        let prompt = (0..PROMPT).map(|at| TokenId(if at < 32 { at } else { (at * salt) % 32_000 })).collect();
        self.push(prompt, OUTPUT / 2 + salt.wrapping_mul(97) % OUTPUT, Priority(-1));
    }

    fn push(&mut self, prompt: Vec<TokenId>, max_new_tokens: u32, priority: Priority) {
        let mut client = self.scheduler.submit(SequenceSpec {
            encoder: Vec::new(),
            prompt,
            sampling: Sampling::default(),
            max_new_tokens,
            ignore_eos: true,
            stop_token_ids: Vec::new(),
            top_tokens: 0,
            prompt_logprobs: false,
            constraint: None,
            adapter: None,
            cache_namespace: Namespace::default(),
            tenant: Tenant::Key(self.submitted % 7),
            priority,
            deadline: None,
            stop_at: None,
            trace: None,
        });
        match &mut self.clients {
            Clients::Polled(clients) => clients.push_back(client),
            Clients::Waiting(runtime) => {
                runtime.spawn(async move { while client.recv().await.is_some() {} });
            }
        }
    }

    fn step(&mut self) -> Took {
        let mut took = Took::default();
        loop {
            let begun = processor_time();
            let plan = black_box(self.scheduler.plan(Instant::now()));
            let elapsed = processor_time() - begun;
            let Some(plan) = plan else { break };
            took.plan = elapsed;
            self.plans.push_back(plan);
        }
        let plan = self.plans.pop_front().expect("there is always something to do");
        let result = self.model.execute(&plan).expect("plans are right");
        let begun = processor_time();
        self.scheduler.apply(result, Instant::now()).expect("results are right");
        took.apply = processor_time() - begun;
        self.read();
        self.refill();
        took
    }

    fn refill(&mut self) {
        for _ in self.scheduler.stats().live..self.live {
            self.submit();
        }
    }

    fn read(&mut self) {
        let clients = match &mut self.clients {
            Clients::Polled(clients) => clients,
            // They wait again when the next step ends, as they do behind a model that takes its time.
            Clients::Waiting(_) => return std::thread::sleep(Duration::from_millis(3)),
        };
        // Served in order, so only the oldest have events: looking at all would measure the caches of a
        // processor that reads 10,000 empty channels between two steps.
        let mut at = 0;
        while at < clients.len().min(self.running as usize + 32) {
            let mut end = false;
            while let Some(Some(event)) = clients[at].recv().now_or_never() {
                end |= matches!(event, SequenceEvent::Finished { .. });
            }
            match end {
                true => drop(clients.remove(at)),
                false => at += 1,
            }
        }
    }
}

/// Whether a name has something of what was asked for on the command line, if anything was.
fn is_wanted(name: &str) -> bool {
    let mut wanted = std::env::args().skip(1).filter(|wanted| !wanted.starts_with("--")).peekable();
    wanted.peek().is_none() || wanted.any(|wanted| name.contains(&wanted))
}

/// Prints the median and the quartiles, over samples of a tenth of a second, of what a step took.
fn measure(name: &str, mut step: impl FnMut() -> Duration) {
    if !is_wanted(name) {
        return;
    }
    let mut sample = |length: Duration| {
        let (began, mut steps, mut took) = (Instant::now(), 0, Duration::ZERO);
        while began.elapsed() < length {
            took += step();
            steps += 1;
        }
        took / steps
    };
    sample(Duration::from_secs(1));
    let mut samples: Vec<_> = (0..SAMPLES).map(|_| sample(Duration::from_millis(100))).collect();
    samples.sort();
    let [low, median, high] = [1, 2, 3].map(|quarter| samples[quarter * SAMPLES / 4]);
    println!("{name}: {median:.1?} ({low:.1?} to {high:.1?})");
}

fn main() {
    for queued in [10, 1_000, 10_000] {
        if !is_wanted(&format!("256 running, {queued} queued: plan, apply")) {
            continue;
        }
        let mut load = Load::polled(256, queued);
        measure(&format!("256 running, {queued} queued: plan"), || load.step().plan);
        measure(&format!("256 running, {queued} queued: apply"), || load.step().apply);
    }
    for (speculate, name) in [(0, "1024 running, waiting clients"), (8, "the same, with --speculate 8")] {
        if !is_wanted(&format!("{name}: plan and apply")) {
            continue;
        }
        let mut load = Load::waiting(1024, speculate);
        measure(&format!("{name}: plan and apply"), || {
            let took = load.step();
            took.plan + took.apply
        });
    }
    let stuck = "256 running, a cached 32k head without room: plan";
    if is_wanted(stuck) {
        let mut load = Load::stuck();
        measure(stuck, || load.step().plan);
    }
}
