//! Workers that are lost in every way, and what becomes of the sequences, of health, and of the limits.

use super::*;
use crate::constraint::{Grammar, Matcher};
use crate::scheduler::tests::harness::tiny;

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

/// Takes long over every third mask.
#[derive(Debug)]
struct Ponders(Arc<dyn Grammar>, Duration);

struct PonderingMatcher(Box<dyn Matcher>, Duration, u32);

impl Grammar for Ponders {
    fn matcher(&self) -> Box<dyn Matcher> {
        Box::new(PonderingMatcher(self.0.matcher(), self.1, 0))
    }
}

impl Matcher for PonderingMatcher {
    fn advance(&mut self, token: TokenId) -> Result<(), String> {
        self.0.advance(token)
    }

    fn mask(&mut self, words: &mut [u32]) -> Result<(), String> {
        self.2 += 1;
        if self.2.is_multiple_of(3) {
            std::thread::sleep(self.1);
        }
        self.0.mask(words)
    }

    fn take_forced(&mut self, most: usize) -> Result<Vec<TokenId>, String> {
        self.0.take_forced(most)
    }

    fn is_complete(&self) -> bool {
        self.0.is_complete()
    }

    fn fork(&mut self) -> Box<dyn Matcher> {
        Box::new(PonderingMatcher(self.0.fork(), self.1, self.2))
    }
}

#[tokio::test]
async fn a_mask_that_takes_longer_than_a_step_may_is_no_loss() {
    let config = MockConfig { step_fixed: Duration::from_millis(1), pages: 400, ..tiny() };
    // Longer than a worker's thread stands still on a busy machine.
    let step_timeout = Duration::from_secs(1);
    let served = serve_with(config.clone(), never(), Settings { step_timeout, ..settings(&config) }).await;
    let plain = SequenceSpec { constraint: every(3, 8, None), ..spec(&[3, 4, 5], 20) };
    let grammar = plain.constraint.clone().expect("one was given");
    let slow =
        SequenceSpec { constraint: Some(Arc::new(Ponders(grammar, step_timeout * 3 / 2))), ..plain.clone() };
    for beside in [None, Some(spec(&[9, 8], 80))] {
        let other = beside.as_ref().map(|spec| served.submit(spec));
        assert_eq!(served.finish(&slow).await, served.reference(&plain));
        if let (Some(other), Some(spec)) = (other, &beside) {
            assert_eq!(collect(other).await.0, served.reference(spec));
        }
    }
    assert!(served.source.losses().is_empty(), "{:?}", served.source.losses());
}

/// Says when its text is about to be complete, and waits for leave to take the last token.
#[derive(Debug)]
struct Asks {
    grammar: Arc<dyn Grammar>,
    last: u32,
    asked: mpsc::UnboundedSender<()>,
    leave: Arc<std::sync::Barrier>,
}

struct AskingMatcher {
    matcher: Box<dyn Matcher>,
    left: u32,
    asked: mpsc::UnboundedSender<()>,
    leave: Arc<std::sync::Barrier>,
}

impl Grammar for Asks {
    fn matcher(&self) -> Box<dyn Matcher> {
        let (asked, leave) = (self.asked.clone(), self.leave.clone());
        Box::new(AskingMatcher { matcher: self.grammar.matcher(), left: self.last, asked, leave })
    }
}

impl Matcher for AskingMatcher {
    fn advance(&mut self, token: TokenId) -> Result<(), String> {
        self.left -= 1;
        if self.left == 0 {
            let _ = self.asked.send(());
            self.leave.wait();
        }
        self.matcher.advance(token)
    }

    fn mask(&mut self, words: &mut [u32]) -> Result<(), String> {
        self.matcher.mask(words)
    }

    fn take_forced(&mut self, most: usize) -> Result<Vec<TokenId>, String> {
        self.matcher.take_forced(most)
    }

    fn is_complete(&self) -> bool {
        self.matcher.is_complete()
    }

    fn fork(&mut self) -> Box<dyn Matcher> {
        let (asked, leave) = (self.asked.clone(), self.leave.clone());
        Box::new(AskingMatcher { matcher: self.matcher.fork(), left: self.left, asked, leave })
    }
}

#[tokio::test]
async fn a_text_that_its_grammar_ends_needs_no_further_workers() {
    let config = MockConfig { pages: 400, ..tiny() };
    let served = serve(config, never()).await;
    let plain = SequenceSpec { constraint: every(3, 8, None), ..spec(&[3, 4, 5], 20) };
    let (asked, mut is_asked) = mpsc::unbounded_channel();
    let leave = Arc::new(std::sync::Barrier::new(2));
    let grammar = plain.constraint.clone().expect("one was given");
    let asks = Asks { grammar, last: 8, asked, leave: leave.clone() };
    let submitted = served.submit(&SequenceSpec { constraint: Some(Arc::new(asks)), ..plain.clone() });
    timeout(DEADLINE, is_asked.recv()).await.expect("in time").expect("it asks");
    served.source.hold();
    served.source.kill();
    served.health(|health| matches!(health, Health::Recovering(_))).await;
    leave.wait();
    // There are none yet.
    assert_eq!(collect(submitted).await, (served.reference(&plain), Ok(Finish::Complete)));
    assert!(matches!(&*served.health.borrow(), Health::Recovering(_)), "{:?}", served.health.borrow());
    served.source.release();
    served.health(|health| *health == Health::Ready).await;
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
    // Longer than a worker's thread stands still on a busy machine, since each loss is counted.
    let settings = Settings { step_timeout: Duration::from_secs(5), speculate, ..settings(&config) };
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
    assert!(matches!(end, Err(SequenceFailure::Poisonous)), "{end:?}");
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

/// What the dead one had may not be given back yet.
#[tokio::test]
async fn workers_that_find_too_little_memory_after_a_loss_are_tried_again() {
    let served = serve(slow(), never()).await;
    let spec = &many(1, 100)[0];
    let mut submitted = served.submit(spec);
    let mut tokens = vec![next_token(&mut submitted).await];
    served.source.refuse_room(4);
    served.source.kill();
    tokens.extend(collect(submitted).await.0);
    assert_eq!(tokens, served.reference(spec));
    let kinds: Vec<LossKind> = served.source.losses().iter().map(|loss| loss.kind).collect();
    assert_eq!(kinds[1..], [LossKind::NoRoom; 4]);

    served.source.refuse_room(u32::MAX);
    served.source.kill();
    let health = served.health(|health| matches!(health, Health::Failed(_))).await;
    let why = health.refusal().expect("failed");
    assert!(why.contains("5 times in a row: no memory is left for the KV cache"), "{why}");
    assert_eq!(served.source.losses().len(), 5 + 5, "the last refusal is not answered by a start");
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
async fn workers_with_room_for_shorter_sequences_are_lost_no_further_time() {
    let script: Script = Box::new(|step| ((step.incarnation, step.number) == (1, 30)).then_some(Fault::Die));
    let served = serve(slow(), script).await;
    served.source.set_fits(128);
    let spec = &many(1, 500)[0];
    let (tokens, end) = collect(served.submit(spec)).await;
    assert_eq!(tokens, served.reference(spec)[..128 - spec.prompt.len()]);
    assert!(matches!(end, Ok(Finish::Length)), "{end:?}");
    assert_eq!((served.handle.max_request_tokens(), served.source.losses().len()), (128, 1));
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
    let convicted = ends.iter().filter(|end| matches!(end, SequenceFailure::Poisonous)).count();
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
    let step_timeout = Duration::from_millis(200);
    // Step 1 is the prompt, step 2 the first decode; step 9 is as large as those before it.
    for first in [1, 2] {
        let (losses, _) = lost_in_step(first, Fault::Slow(step_timeout * 8), step_timeout).await;
        assert!(losses.is_empty(), "{losses:?}");
    }
    let (losses, _) = lost_in_step(9, Fault::Slow(step_timeout * 8), step_timeout).await;
    assert!(matches!(losses[..], [Loss { kind: LossKind::Hung, .. }]), "{losses:?}");
}

#[tokio::test]
async fn a_first_step_of_its_size_is_not_waited_for_when_its_worker_is_frozen_or_for_ever() {
    let step_timeout = Duration::from_secs(2);
    let (losses, took) = lost_in_step(1, Fault::Hang, step_timeout).await;
    assert!(matches!(losses[..], [Loss { kind: LossKind::Hung, .. }]), "{losses:?}");
    assert!(took < step_timeout * 15, "{took:?}, though it does not answer Check");
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
