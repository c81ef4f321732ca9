//! The scheduler with a worker on another host, which vanishes without a word, comes back, or is not there: a mock worker behind a port
//! through which everything goes, or nothing.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixStream};
use tokio::sync::watch;
use tokio::time::timeout;

use super::harness::spec;
use super::served::{DEADLINE, collect, next_token, settings, slow};
use crate::health::Health;
use crate::worker::endpoint::HostPort;
use crate::worker::mock::{MockConfig, MockModel, MockSource};
use crate::worker::{Endpoint, Group, LossKind, PrepareLimits, RemoteWorkers, Run, WorkerSource};

/// Another host: what is sent there goes to a worker's unix socket while it `is_there`, and otherwise nowhere, with no connection closed.
struct Host {
    port: u16,
    is_there: watch::Sender<bool>,
}

impl Host {
    async fn of(worker: PathBuf) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let is_there = watch::Sender::new(true);
        let there = is_there.subscribe();
        tokio::spawn(async move {
            while let Ok((router, _)) = listener.accept().await {
                let Ok(worker) = UnixStream::connect(&worker).await else { continue };
                let ((from_router, to_router), (from_worker, to_worker)) =
                    (router.into_split(), worker.into_split());
                tokio::spawn(carry(from_router, to_worker, there.clone()));
                tokio::spawn(carry(from_worker, to_router, there.clone()));
            }
        });
        Self { port, is_there }
    }

    fn endpoint(&self) -> Endpoint {
        at(self.port)
    }
}

async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut there: watch::Receiver<bool>,
) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        if there.wait_for(|there| *there).await.is_err() || to.write_all(&bytes[..count]).await.is_err() {
            break;
        }
    }
}

fn at(port: u16) -> Endpoint {
    Endpoint::Tcp(HostPort { host: "127.0.0.1".into(), port })
}

fn limits() -> PrepareLimits {
    PrepareLimits {
        max_slots: 32,
        max_step_tokens: 256,
        max_sequence_tokens: 0,
        max_cache_tokens: 0,
        memory_fraction: 0.9,
        max_step_drafts: 64,
    }
}

/// A worker that somebody has started, and the host that it is on.
async fn started(config: &MockConfig, dir: &tempfile::TempDir) -> (MockSource, Host) {
    let worker = MockSource::new(config.clone(), dir.path().into());
    let endpoints = worker.fresh(None).await.unwrap();
    let [Endpoint::Unix(socket)] = &endpoints[..] else { panic!("{endpoints:?}") };
    let host = Host::of(socket.clone()).await;
    (worker, host)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_vanishes_under_an_open_call_is_noticed_without_a_step() {
    let dir = tempfile::tempdir().unwrap();
    let (worker, host) = started(&MockConfig::default(), &dir).await;
    let source = RemoteWorkers::new(vec![host.endpoint()], DEADLINE, None);
    let group = Group::start(&source, |_| Ok(limits())).await.unwrap();
    worker.hold_runs();
    let mut asked = worker.runs_asked();
    let opening = tokio::spawn(async move { Run::open(&group).await.err() });
    timeout(DEADLINE, asked.wait_for(|asked| *asked > 0)).await.expect("in time").unwrap();
    let began = Instant::now();
    host.is_there.send_replace(false);
    let loss = opening.await.unwrap().expect("the host is gone");
    assert_eq!(loss.kind, LossKind::Died, "{loss}");
    assert!(began.elapsed() < Duration::from_secs(5), "after {:?}: {loss}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_host_was_away_goes_on_and_no_token_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let config = slow();
    let (worker, host) = started(&config, &dir).await;
    let source = Arc::new(RemoteWorkers::new(vec![host.endpoint()], DEADLINE, None));
    let group = Group::start(&*source, |_| Ok(limits())).await.unwrap();
    let health = watch::Sender::new(Health::Ready);
    let settings =
        crate::scheduler::Settings { step_timeout: Duration::from_millis(300), ..settings(&config) };
    let handle = crate::scheduler::spawn(group, source, settings, health.clone()).await;
    for _ in 0..2 {
        let spec = spec(&[3, 4, 5], 200);
        let mut submitted = handle.submit(spec.clone()).unwrap();
        let mut tokens = Vec::new();
        while tokens.len() < 20 {
            tokens.push(next_token(&mut submitted).await);
        }
        host.is_there.send_replace(false);
        let lost = |health: &Health| matches!(health, Health::Recovering(_));
        timeout(DEADLINE, health.subscribe().wait_for(lost)).await.expect("the loss is noticed").unwrap();
        host.is_there.send_replace(true);
        let (rest, end) = collect(submitted).await;
        assert!(end.is_ok(), "{end:?}");
        tokens.extend(rest);
        assert_eq!(tokens, MockModel::reference(&config, &spec));
    }
    assert_eq!(*worker.incarnations().borrow(), 1, "nobody has started it again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_is_waited_for_and_given_up_in_the_end_by_its_address() {
    let dir = tempfile::tempdir().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let source = RemoteWorkers::new(vec![at(port)], Duration::from_millis(500), None);
    let gave_up = source.fresh(None).await.unwrap_err().to_string();
    assert!(
        gave_up.contains("--load-timeout") && gave_up.contains(&format!("tcp:127.0.0.1:{port}")),
        "{gave_up}"
    );

    let (_worker, host) = started(&MockConfig::default(), &dir).await;
    host.is_there.send_replace(false);
    let source = Arc::new(RemoteWorkers::new(vec![host.endpoint()], DEADLINE, None));
    let waiting = tokio::spawn(async move { source.fresh(None).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!waiting.is_finished(), "it does not answer yet");
    host.is_there.send_replace(true);
    assert_eq!(waiting.await.unwrap().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_with_another_model_is_refused_and_one_with_other_limits_has_the_worker_start_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (_worker, host) = started(&MockConfig::default(), &dir).await;
    let source = RemoteWorkers::new(vec![host.endpoint()], DEADLINE, None);
    Group::start(&source, |_| Ok(limits())).await.unwrap();
    Group::start(&source, |_| Ok(limits())).await.expect("another router with the same limits");
    let source_of_another = RemoteWorkers::new(vec![host.endpoint()], DEADLINE, Some("llama".into()));
    let refused = source_of_another.fresh(None).await.unwrap_err().to_string();
    assert!(refused.contains("of type mock") && refused.contains("of type llama"), "{refused}");
    let other = PrepareLimits { max_slots: 8, ..limits() };
    let group = Group::start(&source, |_| Ok(other)).await.expect("lost once, and anew then");
    assert_eq!(group.limits().max_slots, 8);
}
