//! Serving without a loss: side by side, refused, drained, stopped; and starts that fail.

use super::*;
use crate::scheduler::mailbox::mailbox;

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
        let (events, mut received) = mailbox(&served.handle.shared.dispatcher);
        let arrival = Arrival { id: SequenceId(number), spec: spec.clone(), events, permit: None };
        if served.handle.inbox.send(Message::Submit(Box::new(arrival))).is_err() {
            break;
        }
        let event = timeout(DEADLINE, received.recv()).await.expect("in time");
        let Some(SequenceEvent::Failed(SequenceFailure::Unavailable(why))) = event else {
            panic!("{event:?} of a request that was on its way")
        };
        assert_eq!(why, Unavailable::Stopping);
        told += 1;
    }
    told
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
async fn too_little_memory_stops_the_start_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let source = MockSource::new(MockConfig::default(), dir.path().into());
    source.refuse_room(1);
    let error = Group::start(&source, |_| Ok(limits(0))).await.unwrap_err();
    assert_eq!(error.to_string(), "a worker cannot serve: no memory is left for the KV cache");
}

#[tokio::test]
async fn a_group_holds_no_longer_sequence_than_its_workers_were_prepared_for() {
    for (asked, fits, beside, expected) in [
        (0, 1000, 0, 1000),
        (0, u32::MAX, 0, 4096),
        (600, 1000, 0, 600),
        (0, u32::MAX, 1, 4096),
        (0, 1000, 1, 984),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let config =
            MockConfig { fits, decoder_start_ids: vec![1; beside], pages: 1024, ..MockConfig::default() };
        let source = MockSource::new(config, dir.path().into());
        let group = Group::start(&source, |_| Ok(limits(asked))).await.unwrap();
        assert_eq!(group.max_request_tokens(), expected, "{asked} {fits} {beside}");
    }
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
