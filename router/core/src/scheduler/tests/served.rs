//! The whole scheduler, with its task, its connections and its recovery, on mock workers behind real
//! sockets that die, freeze and lie.

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
    }
}

async fn serve(config: MockConfig, script: Script) -> Served {
    let settings = settings(&config);
    serve_with(config, script, settings).await
}

async fn serve_with(config: MockConfig, script: Script, settings: Settings) -> Served {
    let dir = tempfile::tempdir().unwrap();
    let source = Arc::new(MockSource::with_script(config.clone(), dir.path().into(), script));
    let limits = PrepareLimits {
        max_slots: 32,
        max_step_tokens: 256,
        max_sequence_tokens: 0,
        max_cache_tokens: 0,
        memory_fraction: 0.9,
        max_step_drafts: 64,
    };
    let group = Group::start(&*source, |_| Ok(limits)).await.unwrap();
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

#[tokio::test]
async fn sequences_run_side_by_side_and_get_their_own_tokens() {
    let served = serve(MockConfig { eos_one_in: 40, ..MockConfig::default() }, never()).await;
    let specs = many(50, 60);
    let submitted: Vec<_> = specs.iter().map(|spec| served.submit(spec)).collect();
    for (spec, submitted) in specs.iter().zip(submitted) {
        let (tokens, end) = collect(submitted).await;
        assert_eq!(tokens, served.reference(spec));
        let finish = if tokens.last() == Some(&2) { Finish::Eos } else { Finish::Length };
        assert_eq!(end, Ok(finish));
    }
}

#[tokio::test]
async fn two_ranks_execute_the_same_plans() {
    for stages in [1, 2] {
        let served = serve(MockConfig { world_size: 2, stages, ..MockConfig::default() }, never()).await;
        for spec in many(3, 20) {
            assert_eq!(served.finish(&spec).await, served.reference(&spec));
        }
    }
}

#[tokio::test]
async fn a_fault_of_any_rank_is_a_loss_of_all() {
    for fault in [Fault::Die, Fault::Refuse, Fault::WrongNumber] {
        let mut wanted = Some(fault.clone());
        let script: Script =
            Box::new(move |step| if (step.rank, step.number) == (1, 9) { wanted.take() } else { None });
        let config = MockConfig { world_size: 2, ..slow() };
        let served = serve(config, script).await;
        let spec = &many(1, 60)[0];
        assert_eq!(served.finish(spec).await, served.reference(spec), "{fault:?}");
        let losses = served.source.losses();
        assert!(
            matches!(&losses[..], [loss] if loss.rank == Some(1) && loss.to_string().contains("worker 1")),
            "{losses:?}"
        );
    }
}

/// Serves one request with two ranks while `faults` happen, each once, and returns how the group was lost.
async fn lost_with_two_ranks(settings: Settings, mut faults: Vec<(u32, u64, Fault)>) -> Loss {
    let script: Script = Box::new(move |step| {
        let now = |(rank, number, _): &(u32, u64, Fault)| (*rank, *number) == (step.rank, step.number);
        faults.iter().position(now).map(|at| faults.swap_remove(at).2)
    });
    let served = serve_with(MockConfig { world_size: 2, ..slow() }, script, settings).await;
    let spec = &many(1, 60)[0];
    assert_eq!(served.finish(spec).await, served.reference(spec));
    let mut losses = served.source.losses();
    assert_eq!(losses.len(), 1, "{losses:?}");
    losses.remove(0)
}

#[tokio::test]
async fn the_last_stage_answers_plans_and_any_stage_may_be_lost() {
    for (rank, fault) in [(1, Fault::ShortColumn), (1, Fault::Die), (0, Fault::Die), (0, Fault::WrongNumber)]
    {
        let mut wanted = Some(fault.clone());
        let script: Script =
            Box::new(move |step| if (step.rank, step.number) == (rank, 9) { wanted.take() } else { None });
        let served = serve(MockConfig { world_size: 2, stages: 2, ..slow() }, script).await;
        let specs = many(5, 40);
        let submitted: Vec<_> = specs.iter().map(|spec| served.submit(spec)).collect();
        for (spec, submitted) in specs.iter().zip(submitted) {
            assert_eq!(collect(submitted).await.0, served.reference(spec), "{rank} {fault:?}");
        }
        let losses = served.source.losses();
        assert!(matches!(&losses[..], [loss] if loss.rank == Some(rank)), "{rank} {fault:?}: {losses:?}");
    }
}

#[tokio::test]
async fn a_rank_that_lost_another_one_is_blamed_only_when_there_is_no_other() {
    let loss =
        lost_with_two_ranks(settings(&slow()), vec![(0, 9, Fault::LosePeer), (1, 10, Fault::Die)]).await;
    assert_eq!((loss.kind, loss.rank), (LossKind::Died, Some(1)), "{loss}");
    let loss =
        lost_with_two_ranks(settings(&slow()), vec![(1, 9, Fault::LosePeer), (0, 10, Fault::Die)]).await;
    assert_eq!((loss.kind, loss.rank), (LossKind::Died, Some(0)), "{loss}");
    let loss = lost_with_two_ranks(settings(&slow()), vec![(0, 9, Fault::LosePeer)]).await;
    assert_eq!((loss.kind, loss.rank), (LossKind::PeerLost, Some(0)), "{loss}");
}

#[tokio::test]
async fn of_two_ranks_in_an_overdue_step_the_frozen_one_is_named() {
    let settings = Settings { step_timeout: Duration::from_millis(300), ..settings(&slow()) };
    let loss = lost_with_two_ranks(settings, vec![(0, 9, Fault::Wait), (1, 9, Fault::Hang)]).await;
    assert_eq!((loss.kind, loss.rank), (LossKind::Hung, Some(1)), "{loss}");
}

#[tokio::test]
async fn killed_again_and_again_every_stream_ends_complete() {
    end_complete(slow(), 0).await;
}

#[tokio::test]
async fn killed_again_and_again_every_stream_with_drafts_ends_complete() {
    let drafts = end_complete(MockConfig { surprise_one_in: 30, ..slow() }, 6).await;
    assert!(drafts > 100, "{drafts} accepted drafts");
}

/// Answers how many tokens were drafts.
async fn end_complete(config: MockConfig, speculate: u32) -> usize {
    let settings = Settings { step_timeout: Duration::from_secs(2), speculate, ..settings(&config) };
    let served = serve_with(config, never(), settings).await;
    let mut drafts = 0;
    // Drafts in flight take a sequence further, and it has to get past them.
    let progress = 10 + 5 * speculate;
    let specs = many(12, 300 + 50 * speculate);
    let mut submitted: Vec<_> = specs.iter().map(|spec| served.submit(spec)).collect();
    let mut tokens: Vec<Vec<u32>> = specs.iter().map(|_| Vec::new()).collect();
    for kill in 0..10 {
        // Some progress between kills, so that nobody looks guilty. On a busy machine tokens of before the last kill may
        // still be waiting to be read: until the workers are back there is nobody to kill.
        let mut rounds = 0;
        while rounds < progress || served.handle.stats().worker_restarts < kill {
            rounds += 1;
            for (submitted, tokens) in submitted.iter_mut().zip(&mut tokens) {
                let token = next_sampled(submitted).await;
                drafts += usize::from(token.is_draft);
                tokens.push(token.id.0);
            }
        }
        match kill % 5 {
            0 => served.source.freeze(),
            _ => served.source.kill(),
        }
    }
    for ((spec, submitted), mut tokens) in specs.iter().zip(submitted).zip(tokens) {
        tokens.extend(collect(submitted).await.0);
        assert_eq!(tokens, served.reference(spec));
    }
    assert_eq!(served.handle.stats().worker_restarts, 10);
    served.health(|health| *health == Health::Ready).await;
    drafts
}

#[tokio::test]
async fn every_kind_of_fault_is_survived() {
    for fault in [Fault::Die, Fault::Refuse, Fault::OutsideVocabulary, Fault::WrongNumber, Fault::ShortColumn]
    {
        let wanted = fault.clone();
        let mut wanted = Some(wanted);
        let script: Script = Box::new(move |step| if step.number == 7 { wanted.take() } else { None });
        let served = serve(MockConfig::default(), script).await;
        let specs = many(4, 30);
        let submitted: Vec<_> = specs.iter().map(|spec| served.submit(spec)).collect();
        for (spec, submitted) in specs.iter().zip(submitted) {
            assert_eq!(collect(submitted).await.0, served.reference(spec), "{fault:?}");
        }
        let losses = served.source.losses();
        assert_eq!(losses.len(), 1, "{fault:?}");
        assert_eq!(losses[0].kind == LossKind::Died, fault == Fault::Die, "{:?}", losses[0]);
    }
}

#[tokio::test]
async fn a_worker_that_hangs_in_a_step_is_replaced() {
    let mut fault = Some(Fault::Hang);
    let script: Script = Box::new(move |step| if step.number == 5 { fault.take() } else { None });
    let config = MockConfig::default();
    let settings = Settings { step_timeout: Duration::from_millis(300), ..settings(&config) };
    let served = serve_with(config, script, settings).await;
    let spec = &many(1, 30)[0];
    assert_eq!(served.finish(spec).await, served.reference(spec));
    assert!(matches!(served.source.losses()[..], [Loss { kind: LossKind::Hung, rank: Some(0), .. }]));
}

#[tokio::test]
async fn an_idle_worker_that_freezes_is_noticed() {
    let config = MockConfig::default();
    let settings = Settings {
        step_timeout: Duration::from_millis(200),
        check_interval: Duration::from_millis(50),
        ..settings(&config)
    };
    let served = serve_with(config, never(), settings).await;
    let mut incarnations = served.source.incarnations();
    served.source.freeze();
    timeout(DEADLINE, incarnations.wait_for(|&n| n == 2)).await.unwrap().unwrap();
    served.health(|health| *health == Health::Ready).await;
    let spec = &many(1, 5)[0];
    assert_eq!(served.finish(spec).await, served.reference(spec));
}

#[tokio::test]
async fn an_idle_worker_that_dies_is_noticed_at_once() {
    let served = serve(MockConfig::default(), never()).await;
    served.source.hold();
    served.source.kill();
    let health = served.health(|health| matches!(health, Health::Recovering(_))).await;
    // Without the worker's own words.
    assert_eq!(health.refusal().unwrap(), "the workers are being restarted: worker 0 died");
    served.source.release();
    served.health(|health| *health == Health::Ready).await;
}

#[tokio::test]
async fn what_is_submitted_or_cancelled_during_a_recovery_is_not_forgotten() {
    let served = serve(slow(), never()).await;
    let specs = many(3, 50);
    let mut stays = served.submit(&specs[0]);
    let mut goes = served.submit(&specs[1]);
    let first = next_token(&mut stays).await;
    next_token(&mut goes).await;
    served.source.hold();
    served.source.kill();
    served.health(|health| matches!(health, Health::Recovering(_))).await;
    let late = served.submit(&specs[2]);
    drop(goes);
    served.source.release();
    let mut tokens = vec![first];
    tokens.extend(collect(stays).await.0);
    assert_eq!(tokens, served.reference(&specs[0]));
    assert_eq!(collect(late).await.0, served.reference(&specs[2]));
    timeout(DEADLINE, served.handle.drain()).await.unwrap();
    assert_eq!(served.handle.stats().live, 0);
}

#[tokio::test]
async fn a_request_that_kills_its_workers_fails_alone() {
    let script: Script = Box::new(|step| step.fed.contains(&999).then_some(Fault::Die));
    let mut config = slow();
    config.vocab_size = 2000;
    config.eos_ids = vec![1999];
    let served = serve(config.clone(), script).await;
    let mut specs = many(4, 30);
    // What they generate must not hold the deadly token by accident.
    for spec in &mut specs {
        while served.reference(spec).contains(&999) {
            spec.prompt[0].0 += 1;
        }
    }
    let mut poison = specs[2].clone();
    poison.prompt[3] = TokenId(999);
    let good: Vec<_> = specs.iter().map(|spec| served.submit(spec)).collect();
    let bad = served.submit(&poison);
    let (_, end) = collect(bad).await;
    assert!(matches!(end, Err(SequenceFailure::Poisonous(_))), "{end:?}");
    for (spec, submitted) in specs.iter().zip(good) {
        assert_eq!(collect(submitted).await.0, served.reference(spec));
    }
    assert_eq!(served.handle.stats().worker_restarts, 3);
}

#[tokio::test]
async fn when_the_source_gives_up_everyone_is_told() {
    let served = serve(slow(), never()).await;
    let specs = many(2, 500);
    let mut first = served.submit(&specs[0]);
    next_token(&mut first).await;
    served.source.give_up();
    served.source.kill();
    let (_, end) = collect(first).await;
    assert!(matches!(end, Err(SequenceFailure::Unavailable(_))), "{end:?}");
    served.health(|health| matches!(health, Health::Failed(_))).await;
    let (_, end) = collect(served.submit(&specs[1])).await;
    assert!(matches!(end, Err(SequenceFailure::Unavailable(_))), "{end:?}");
    timeout(DEADLINE, served.handle.drain()).await.unwrap();
}

#[tokio::test]
async fn fewer_blocks_after_a_restart_lower_the_limit() {
    let served = serve(slow(), never()).await;
    assert_eq!(served.handle.max_request_tokens(), 4096);
    let spec = &many(1, 100)[0];
    let mut submitted = served.submit(spec);
    let first = next_token(&mut submitted).await;
    served.source.set_pages(16);
    served.source.kill();
    let mut tokens = vec![first];
    tokens.extend(collect(submitted).await.0);
    assert_eq!(tokens, served.reference(spec));
    assert_eq!(served.handle.max_request_tokens(), 256);
    assert_eq!(served.handle.stats().blocks, 16);
}

#[tokio::test]
async fn a_full_scheduler_refuses_and_says_when_to_come_back() {
    let config = slow();
    let served = serve_with(config.clone(), never(), Settings { max_live: 2, ..settings(&config) }).await;
    let spec = &many(1, 1000)[0];
    let mut first = served.submit(spec);
    let second = served.submit(spec);
    let refused = served.handle.submit(spec.clone()).err().expect("full");
    let Refused::Full { retry_after } = refused else { panic!("{refused:?}") };
    assert!((1..=60).contains(&retry_after.as_secs()));
    next_token(&mut first).await;
    drop(second);
    timeout(DEADLINE, async {
        while served.handle.stats().live > 1 {
            next_token(&mut first).await;
        }
    })
    .await
    .expect("a cancelled sequence gives its place back");
    served.submit(spec);
}

#[tokio::test]
async fn a_drain_lets_the_running_finish_and_refuses_the_rest() {
    let served = serve(slow(), never()).await;
    let spec = &many(1, 50)[0];
    let submitted = served.submit(spec);
    let handle = served.handle.clone();
    let drained = tokio::spawn(async move { handle.drain().await });
    let (tokens, _) = collect(submitted).await;
    assert_eq!(tokens, served.reference(spec));
    timeout(DEADLINE, drained).await.unwrap().unwrap();
    assert!(matches!(served.handle.submit(spec.clone()), Err(Refused::Unavailable(_))));
}

#[tokio::test]
async fn a_stop_ends_everything_at_once() {
    let served = serve(slow(), never()).await;
    let submitted = served.submit(&many(1, 3000)[0]);
    timeout(DEADLINE, served.handle.stop()).await.unwrap();
    let (_, end) = collect(submitted).await;
    assert!(matches!(end, Err(SequenceFailure::Unavailable(_))), "{end:?}");
    timeout(DEADLINE, served.handle.drain()).await.unwrap();
}

#[tokio::test]
async fn what_is_on_its_way_at_a_stop_is_told_why() {
    // Whether the scheduler has ended before the first arrives is chance.
    for _ in 0..50 {
        if told_at_a_stop().await > 0 {
            return;
        }
    }
    panic!("none was on its way");
}

/// How many requests were sent after the stop and before the scheduler's end.
async fn told_at_a_stop() -> usize {
    let served = serve(slow(), never()).await;
    let spec = &many(1, 10)[0];
    let (done, _stopped) = oneshot::channel();
    assert!(served.handle.inbox.send(Message::Stop(done)).is_ok());
    let mut told = 0;
    for number in 1000.. {
        let (events, mut received) = mpsc::unbounded_channel();
        let arrival = Arrival { id: SequenceId(number), spec: spec.clone(), events, permit: None };
        if served.handle.inbox.send(Message::Submit(Box::new(arrival))).is_err() {
            break;
        }
        let event = timeout(DEADLINE, received.recv()).await.expect("in time");
        let Some(SequenceEvent::Failed(SequenceFailure::Unavailable(why))) = event else {
            panic!("{event:?} of a request that was on its way")
        };
        assert_eq!(why, "the server is shutting down");
        told += 1;
    }
    told
}

#[tokio::test]
async fn a_scheduler_that_panics_is_a_failure_with_its_reason() {
    let served = serve(slow(), never()).await;
    let mut running = served.submit(&many(1, 3000)[0]);
    next_token(&mut running).await;
    // Longer than the caller may ask for, and than a length can be.
    let _broken = served.submit(&spec(&[1, 2, 3], u32::MAX));
    let health = served.health(|health| matches!(health, Health::Failed(_))).await;
    let why = health.refusal().expect("failed");
    assert!(why.contains("the scheduler panicked: attempt to add with overflow"), "{why}");
    assert!(matches!(served.handle.submit(spec(&[1], 1)), Err(Refused::Unavailable(_))));
}

#[tokio::test]
async fn workers_that_never_give_a_token_end_the_server() {
    let served = serve(slow(), Box::new(|_| Some(Fault::Die))).await;
    let submitted: Vec<_> = many(20, 30).iter().map(|spec| served.submit(spec)).collect();
    let mut ends = Vec::new();
    for submitted in submitted {
        ends.push(collect(submitted).await.1.expect_err("no worker works"));
    }
    let health = served.health(|health| matches!(health, Health::Failed(_))).await;
    let why = health.refusal().expect("failed");
    assert!(why.contains("12 times without giving a token in between"), "{why}");
    assert_eq!(served.source.losses().len(), 11, "the last loss is not answered by a start");
    // Two crashes make suspects, and each further one ends one of them. Who came after the first plan was made is a
    // suspect one crash later.
    let convicted = ends.iter().filter(|end| matches!(end, SequenceFailure::Poisonous(_))).count();
    assert!((6..=10).contains(&convicted), "{convicted} of 12 losses found somebody guilty");
    assert!(ends.iter().all(|end| !matches!(end, SequenceFailure::Row(_))));
}

#[tokio::test]
async fn workers_that_only_a_batch_kills_serve_it_in_parts() {
    let script: Script = Box::new(|step| (step.rows > 3).then_some(Fault::Die));
    let served = serve(slow(), script).await;
    let specs = many(8, 40);
    let submitted: Vec<_> = specs.iter().map(|spec| served.submit(spec)).collect();
    for (spec, submitted) in specs.iter().zip(submitted) {
        let (tokens, end) = collect(submitted).await;
        assert_eq!((tokens, end), (served.reference(spec), Ok(Finish::Length)));
    }
    let losses = served.source.losses().len();
    assert!((2..=8).contains(&losses), "{losses} losses");
    served.health(|health| *health == Health::Ready).await;
}

#[tokio::test]
async fn ready_means_that_tokens_flow() {
    let (seen, mut steps) = mpsc::unbounded_channel();
    let script: Script = Box::new(move |step| {
        let _ = seen.send(step.incarnation);
        (step.incarnation == 2).then_some(Fault::Wait)
    });
    let served = serve(slow(), script).await;
    let spec = &many(1, 60)[0];
    let mut submitted = served.submit(spec);
    let mut tokens = vec![next_token(&mut submitted).await];
    served.source.kill();
    while timeout(DEADLINE, steps.recv()).await.expect("in time") != Some(2) {}
    // They are prepared, and were sent a step.
    assert!(matches!(&*served.health.borrow(), Health::Recovering(_)), "{:?}", served.health.borrow());
    served.source.kill();
    served.health(|health| *health == Health::Ready).await;
    tokens.extend(collect(submitted).await.0);
    assert_eq!(tokens, served.reference(spec));
}

#[tokio::test]
async fn when_nobody_waits_for_a_token_prepared_workers_are_ready() {
    let script: Script = Box::new(|step| (step.incarnation == 2).then_some(Fault::Wait));
    let served = serve(slow(), script).await;
    let mut submitted = served.submit(&many(1, 3000)[0]);
    next_token(&mut submitted).await;
    served.source.kill();
    served.health(|health| matches!(health, Health::Recovering(_))).await;
    drop(submitted);
    served.health(|health| *health == Health::Ready).await;
}

/// Serves one request, whose step `number` goes wrong, and returns how the workers were lost and what it took.
async fn lost_in_step(number: u64, fault: Fault, step_timeout: Duration) -> (Vec<Loss>, Duration) {
    let mut fault = Some(fault);
    let script: Script = Box::new(move |step| if step.number == number { fault.take() } else { None });
    let config = MockConfig::default();
    let settings = Settings { step_timeout, ..settings(&config) };
    let served = serve_with(config, script, settings).await;
    let spec = &many(1, 30)[0];
    let begun = std::time::Instant::now();
    assert_eq!(served.finish(spec).await, served.reference(spec));
    (served.source.losses(), begun.elapsed())
}

#[tokio::test]
async fn a_first_step_of_its_size_may_take_long_while_the_workers_live() {
    let patience = Duration::from_millis(200);
    // Step 1 is the prompt, step 2 the first decode; step 9 is as large as those before it.
    for first in [1, 2] {
        let (losses, _) = lost_in_step(first, Fault::Slow(patience * 8), patience).await;
        assert!(losses.is_empty(), "{losses:?}");
    }
    let (losses, _) = lost_in_step(9, Fault::Slow(patience * 8), patience).await;
    assert!(matches!(losses[..], [Loss { kind: LossKind::Hung, .. }]), "{losses:?}");
}

#[tokio::test]
async fn a_first_step_of_its_size_is_not_waited_for_when_its_worker_is_frozen_or_for_ever() {
    let patience = Duration::from_secs(2);
    let (losses, took) = lost_in_step(1, Fault::Hang, patience).await;
    assert!(matches!(losses[..], [Loss { kind: LossKind::Hung, .. }]), "{losses:?}");
    assert!(took < patience * 15, "{took:?}, though it does not answer Check");
    let (losses, _) = lost_in_step(1, Fault::Wait, Duration::from_millis(50)).await;
    assert!(matches!(losses[..], [Loss { kind: LossKind::Hung, .. }]), "{losses:?}");
}

#[tokio::test]
async fn a_recovery_does_not_take_back_a_drain() {
    let served = serve(slow(), never()).await;
    let spec = &many(1, 100)[0];
    let mut submitted = served.submit(spec);
    let first = next_token(&mut submitted).await;
    served.health.send_replace(Health::Draining);
    served.source.kill();
    let mut tokens = vec![first];
    tokens.extend(collect(submitted).await.0);
    assert_eq!(tokens, served.reference(spec));
    assert_eq!(*served.health.borrow(), Health::Draining);
}

#[tokio::test]
async fn limits_that_do_not_suit_the_model_stop_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let source = MockSource::new(MockConfig::default(), dir.path().into());
    let error =
        Group::start(&source, |model| Err(format!("at most {}", model.max_positions))).await.unwrap_err();
    assert_eq!(error.to_string(), "at most 4096");
}

#[tokio::test]
async fn workers_of_another_version_stop_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let config = MockConfig { contract: MockConfig::default().contract ^ 1, ..MockConfig::default() };
    let source = MockSource::new(config, dir.path().into());
    let error = Group::start(&source, |_| unreachable!("it is not asked")).await.unwrap_err();
    assert!(error.to_string().contains("of another version than this router"), "{error}");
}

#[tokio::test]
async fn a_source_without_workers_stops_the_start() {
    struct Empty;
    #[async_trait::async_trait]
    impl WorkerSource for Empty {
        async fn fresh(&self, _: Option<&Loss>) -> Result<Vec<Endpoint>, crate::worker::GiveUp> {
            Ok(vec![Endpoint::Unix("/nowhere/at/all".into())])
        }
    }
    let error = Group::start(&Empty, |_| unreachable!("nothing was described")).await.unwrap_err();
    assert!(error.to_string().contains("3 times in a row"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn constrained_sequences_survive_the_loss_of_workers() {
    for world_size in [1, 2] {
        let config = MockConfig { world_size, vocab_size: 50, ..MockConfig::default() };
        let script: Script =
            Box::new(|step| (step.incarnation == 1 && step.number == 9).then_some(Fault::Die));
        let server = serve(config, script).await;
        let specs: Vec<_> = (0..6)
            .map(|salt| SequenceSpec {
                constraint: (salt % 2 == 0).then(|| every(3 + salt, 20, Some(2))).flatten(),
                ..spec(&[3 + salt, 4, 5], 30)
            })
            .collect();
        let running: Vec<_> = specs.iter().map(|spec| (spec, server.submit(spec))).collect();
        for (spec, submitted) in running {
            let (tokens, end) = collect(submitted).await;
            assert!(end.is_ok(), "{end:?}");
            assert_eq!(tokens, server.reference(spec));
        }
        assert!(*server.source.incarnations().borrow() > 1, "the workers died");
    }
}

/// Steps long enough for plans to wait for the masks of the step before them, with and without free rows beside.
#[tokio::test(flavor = "multi_thread")]
async fn plans_that_wait_for_masks_are_sent_in_order() {
    let config = MockConfig {
        vocab_size: 50,
        step_fixed: Duration::from_millis(3),
        cost: CostModel { fixed_ns: 3e6, per_token_ns: 1.0, per_context_token_ns: 0.0 },
        ..MockConfig::default()
    };
    let server = serve(config, Box::new(|_| None)).await;
    for free in [0, 2] {
        let constrained = (0..3).map(|salt| SequenceSpec {
            constraint: every(3 + salt, 25, Some(2)),
            ..spec(&[3 + salt, 4, 5], 30)
        });
        let specs: Vec<_> = constrained.chain((0..free).map(|salt| spec(&[9, 9, salt], 30))).collect();
        let running: Vec<_> = specs.iter().map(|spec| (spec, server.submit(spec))).collect();
        for (spec, submitted) in running {
            let (tokens, end) = collect(submitted).await;
            assert!(end.is_ok(), "{end:?}");
            assert_eq!(tokens, server.reference(spec));
        }
    }
    assert_eq!(*server.source.incarnations().borrow(), 1, "no worker found a plan out of order");
}
