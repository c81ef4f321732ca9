//! The whole scheduler, with its task, its connections and its recovery, on mock workers behind real
//! sockets that die, freeze and lie.

mod losses;
mod serving;

use std::sync::Arc;
use std::time::Duration;

use penstock_proto::CostModel;
use penstock_proto::ids::{SequenceId, TokenId};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::harness::{every, spec};
use crate::health::Health;
use crate::scheduler::handle::{Arrival, Message};
use crate::scheduler::{
    Finish, Handle, Refused, SampledToken, SequenceEvent, SequenceFailure, SequenceSpec, Settings, Submitted,
    Unavailable,
};
use crate::worker::mock::{Fault, MockConfig, MockModel, MockSource, Script};
use crate::worker::{Endpoint, Group, Loss, LossKind, PrepareLimits, WorkerSource};

/// Nothing here should take longer.
pub(super) const DEADLINE: Duration = Duration::from_secs(30);

struct Served {
    handle: Handle,
    source: Arc<MockSource>,
    health: tokio::sync::watch::Sender<Health>,
    config: MockConfig,
    _dir: tempfile::TempDir,
}

pub(super) fn settings(config: &MockConfig) -> Settings {
    Settings {
        max_live: 1000,
        target_itl: None,
        eos: config.eos_ids.iter().copied().map(TokenId).collect(),
        step_timeout: Duration::from_secs(5),
        check_interval: Duration::from_secs(60),
        speculate: 0,
        speculate_corpus_tokens: 0,
        block_events: false,
        recorder: None,
    }
}

async fn serve(config: MockConfig, script: Script) -> Served {
    let settings = settings(&config);
    serve_with(config, script, settings).await
}

fn limits(max_sequence_tokens: u32) -> PrepareLimits {
    PrepareLimits {
        max_slots: 32,
        max_step_tokens: 256,
        max_sequence_tokens,
        max_cache_tokens: 0,
        memory_fraction: 0.9,
        max_step_drafts: 64,
    }
}

async fn serve_with(config: MockConfig, script: Script, settings: Settings) -> Served {
    let dir = tempfile::tempdir().unwrap();
    let source = Arc::new(MockSource::with_script(config.clone(), dir.path().into(), script));
    let group = Group::start(&*source, |_| Ok(limits(0))).await.unwrap();
    let health = tokio::sync::watch::Sender::new(Health::Ready);
    let handle = crate::scheduler::spawn(group, source.clone(), settings, health.clone()).await;
    Served { handle, source, health, config, _dir: dir }
}

impl Served {
    fn submit(&self, spec: &SequenceSpec) -> Submitted {
        self.handle.submit(spec.clone()).unwrap()
    }

    async fn finish(&self, spec: &SequenceSpec) -> Vec<u32> {
        let (tokens, end) = collect(self.submit(spec)).await;
        assert!(end.is_ok(), "{end:?}");
        tokens
    }

    fn reference(&self, spec: &SequenceSpec) -> Vec<u32> {
        MockModel::reference(&self.config, spec)
    }

    async fn health(&self, wanted: impl FnMut(&Health) -> bool) -> Health {
        let mut health = self.health.subscribe();
        let health = timeout(DEADLINE, health.wait_for(wanted)).await.expect("in time").unwrap();
        health.clone()
    }
}

/// Everything until the end.
pub(super) async fn collect(mut submitted: Submitted) -> (Vec<u32>, Result<Finish, SequenceFailure>) {
    let mut tokens = Vec::new();
    loop {
        match timeout(DEADLINE, submitted.events.recv()).await.expect("in time") {
            Some(SequenceEvent::Token(token)) => tokens.push(token.id.0),
            Some(SequenceEvent::Finished { last, finish }) => {
                tokens.push(last.id.0);
                return (tokens, Ok(finish));
            }
            Some(SequenceEvent::TimeUp) => return (tokens, Ok(Finish::Length)),
            Some(SequenceEvent::Failed(why)) => return (tokens, Err(why)),
            Some(_) => {}
            None => panic!("the events end without an end"),
        }
    }
}

pub(super) async fn next_token(submitted: &mut Submitted) -> u32 {
    next_sampled(submitted).await.id.0
}

async fn next_sampled(submitted: &mut Submitted) -> SampledToken {
    loop {
        match timeout(DEADLINE, submitted.events.recv()).await.expect("in time") {
            Some(SequenceEvent::Token(token)) => return token,
            Some(SequenceEvent::Admitted { .. }) => {}
            other => panic!("{other:?} instead of a token"),
        }
    }
}

fn never() -> Script {
    Box::new(|_| None)
}

pub(super) fn slow() -> MockConfig {
    MockConfig { step_fixed: Duration::from_millis(1), ..MockConfig::default() }
}

fn many(count: u32, new: u32) -> Vec<SequenceSpec> {
    (0..count)
        .map(|salt| {
            let prompt: Vec<u32> = (0..20 + salt * 3).map(|at| (at * 7 + salt * 31) % 1000).collect();
            let mut spec = spec(&prompt, new);
            spec.sampling.temperature = if salt % 2 == 0 { 0.0 } else { 1.0 };
            spec.sampling.seed = u64::from(salt);
            spec
        })
        .collect()
}
