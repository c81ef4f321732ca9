//! Figure 3: the scheduler alone. How long it takes to plan a step, and to apply its result, with 256
//! sequences decoding and 10, 1,000 or 10,000 more in the queue. Sequences end and are replaced all the
//! time, as they are when a server is full; the mock model that answers is not measured.
//!
//!     cargo bench -p penstock-core --bench scheduler

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use penstock_core::scheduler::offline::Offline;
use penstock_core::scheduler::{
    Namespace, Priority, Sampling, SequenceEvent, SequenceSpec, Settings, Tenant,
};
use penstock_core::worker::PrepareLimits;
use penstock_core::worker::mock::{MockConfig, MockModel, Verify};
use penstock_proto::ids::TokenId;
use penstock_proto::{CostModel, ModelDescription, Prepared, StepPlan};
use tokio::sync::mpsc::UnboundedReceiver;

const RUNNING: u32 = 256;
const PROMPT: u32 = 96;
const OUTPUT: u32 = 400;

struct Load {
    scheduler: Offline,
    model: MockModel,
    plans: VecDeque<StepPlan>,
    /// In the order of their submission.
    clients: VecDeque<UnboundedReceiver<SequenceEvent>>,
    submitted: u32,
}

/// What a step took: planning it, and applying its result.
struct Took {
    plan: Duration,
    apply: Duration,
}

impl Load {
    /// 256 sequences decode, each somewhere else in its output, and `queued` wait.
    fn new(queued: u32) -> Self {
        let limits = PrepareLimits {
            max_slots: RUNNING,
            max_step_tokens: 2048,
            max_sequence_tokens: 0,
            max_cache_tokens: 0,
            memory_fraction: 0.9,
            max_step_drafts: 0,
        };
        let cost = CostModel { fixed_ns: 1e6, per_token_ns: 1e4, per_context_token_ns: 10.0 };
        let config = MockConfig {
            vocab_size: 32_000,
            pages: 16_384,
            max_positions: 8192,
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
            speculate: 0,
            speculate_corpus_tokens: 0,
            block_events: false,
            recorder: None,
        };
        let mut load = Self {
            scheduler: Offline::new(&settings, &model, &prepared, &limits),
            model: MockModel::new(config, limits.max_slots, limits.max_step_tokens),
            plans: VecDeque::new(),
            clients: VecDeque::new(),
            submitted: 0,
        };
        for _ in 0..RUNNING + queued {
            load.submit();
        }
        for _ in 0..2 * OUTPUT {
            load.step();
        }
        let stats = load.scheduler.stats();
        assert_eq!((stats.running, stats.waiting), (RUNNING, queued), "the load is what it says");
        load
    }

    fn submit(&mut self) {
        let salt = self.submitted;
        self.submitted += 1;
        let client = self.scheduler.submit(SequenceSpec {
            encoder: Vec::new(),
            // A system prompt in common, then something of its own.
            prompt: (0..PROMPT).map(|at| TokenId(if at < 32 { at } else { (at * salt) % 32_000 })).collect(),
            sampling: Sampling::default(),
            max_new_tokens: OUTPUT / 2 + salt.wrapping_mul(97) % OUTPUT,
            ignore_eos: true,
            stop_token_ids: Vec::new(),
            top_tokens: 0,
            prompt_logprobs: false,
            constraint: None,
            cache_namespace: Namespace::default(),
            tenant: Tenant::Key(salt % 7),
            priority: Priority::default(),
            deadline: None,
            stop_at: None,
            trace: None,
        });
        self.clients.push_back(client);
    }

    fn step(&mut self) -> Took {
        let mut took = Took { plan: Duration::ZERO, apply: Duration::ZERO };
        loop {
            let begun = Instant::now();
            let plan = black_box(self.scheduler.plan(begun));
            let elapsed = begun.elapsed();
            let Some(plan) = plan else { break };
            took.plan = elapsed;
            self.plans.push_back(plan);
        }
        let plan = self.plans.pop_front().expect("there is always something to do");
        let result = self.model.execute(&plan).expect("plans are right");
        let begun = Instant::now();
        self.scheduler.apply(result, begun).expect("results are right");
        took.apply = begun.elapsed();
        // Served in order, so only the oldest have events: looking at all would measure the caches of a
        // processor that reads 10,000 empty channels between two steps.
        let mut ended = 0;
        let mut at = 0;
        while at < self.clients.len().min(RUNNING as usize + 32) {
            let mut end = false;
            while let Ok(event) = self.clients[at].try_recv() {
                end |= matches!(event, SequenceEvent::Finished { .. });
            }
            match end {
                true => drop(self.clients.remove(at)),
                false => at += 1,
            }
            ended += u32::from(end);
        }
        for _ in 0..ended {
            self.submit();
        }
        took
    }
}

fn benchmark(criterion: &mut Criterion) {
    for queued in [10, 1_000, 10_000] {
        let mut load = Load::new(queued);
        let mut group = criterion.benchmark_group("256 running");
        group.bench_function(BenchmarkId::new("plan", queued), |bencher| {
            bencher.iter_custom(|steps| (0..steps).map(|_| load.step().plan).sum());
        });
        group.bench_function(BenchmarkId::new("apply", queued), |bencher| {
            bencher.iter_custom(|steps| (0..steps).map(|_| load.step().apply).sum());
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(50).warm_up_time(Duration::from_secs(1));
    targets = benchmark
}
criterion_main!(benches);
