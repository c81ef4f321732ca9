//! Whole servers in virtual time: handles, generations, the scheduler with its task, recovery, connections and mock workers, on one
//! thread with a clock that jumps to whatever comes next. A seed makes a schedule of arrivals, cancellations, slow clients, late
//! masks, priorities, deadlines and what goes wrong with workers, and the same seed makes the same one again.
//!
//! What always holds: no client misses a token, gets one twice or out of order (a text is a pure function of its request); the
//! core's invariants between any two messages (no block leaked, see `Core::check`); the oldest of the highest priority comes on; no
//! text goes past the first of its stop strings; whoever reads what the prefix cache gains and loses, from whenever on, ends with what
//! it has; at the end nothing is left, and the accounts agree: what was submitted has ended, what was generated was received.
//!
//! `PENSTOCK_SIMULATIONS` says how many schedules are tried, `PENSTOCK_SIMULATION_SEED` which one alone, with all that happens in it.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::future::join_all;
use penstock_proto::CostModel;
use penstock_proto::ids::{SequenceId, TokenId};
use penstock_proto::tables::Window;
use tokio::sync::oneshot;
use tokio::time::{sleep, sleep_until, timeout};

use super::client::Client;
use super::harness::{adapter, every_forcing, with_adapters};
use super::random::of_family;
use crate::clock;
use crate::generation::{
    self, Caller, Detokenizer, GenerationEvent, GenerationFailure, GenerationRequest, PromptLimits, Serving,
    StopText,
};
use crate::health::Health;
use crate::prompt::{Input, Prompt, samples};
use crate::scheduler::cache_names::{BlockHash, Namespace};
use crate::scheduler::core::{Core, Counters};
use crate::scheduler::handle::Submitted;
use crate::scheduler::mask_threads::MaskThreads;
use crate::scheduler::submission::{Priority, Refused, Sampling, SequenceFailure, SequenceSpec, Watermark};
use crate::scheduler::{BlockChange, BlockEvent, Handle, Settings, assemble};
use crate::tenant::Tenant;
use crate::worker::mock::{Fault, MockConfig, MockModel, MockSource, Script};
use crate::worker::{Endpoint, GiveUp, Group, Loss, PrepareLimits, WorkerSource};

/// In `make test`; takes about a minute of processor time.
const SCHEDULES: u64 = 2000;

/// Of virtual time; no schedule has work for a minute.
const LONGEST: Duration = Duration::from_secs(3600);

/// The longest that nothing comes of the oldest of the highest priority: while a hung worker is noticed, and replaced.
const STANDSTILL: Duration = Duration::from_secs(180);

/// The longest sequence.
const POSITIONS: u32 = 96;

#[test]
fn in_every_schedule_nobody_loses_a_token_and_nothing_is_left() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let alone = number("PENSTOCK_SIMULATION_SEED");
    let seeds = alone.map_or(0..number("PENSTOCK_SIMULATIONS").unwrap_or(SCHEDULES), |seed| seed..seed + 1);
    let are_many = seeds.end - seeds.start >= SCHEDULES;
    let mut seen = [0; WAYS.len()];
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        let parts: Vec<_> = (0..threads)
            .map(|first| {
                scope.spawn({
                    let seeds = seeds.clone();
                    move || in_schedules(seeds.skip(first).step_by(threads), alone.is_some())
                })
            })
            .collect();
        for part in parts {
            let found = part.join().unwrap_or_else(|panic| resume_unwind(panic));
            seen.iter_mut().zip(found).for_each(|(seen, found)| *seen += found);
        }
    });
    for (seen, (way, _)) in seen.iter().zip(WAYS) {
        assert!(!are_many || *seen > 0, "no schedule has {way}");
    }
}

/// How many of these schedules come to each of the `WAYS`.
fn in_schedules(seeds: impl Iterator<Item = u64>, tells_all: bool) -> [u64; WAYS.len()] {
    let mut seen = [0; WAYS.len()];
    for seed in seeds {
        let happened = RefCell::default();
        let outcome = catch_unwind(AssertUnwindSafe(|| simulate(seed, &happened)));
        if tells_all || outcome.is_err() {
            happened.borrow().iter().for_each(|line| println!("{line}"));
        }
        let found = outcome.unwrap_or_else(|panic| {
            eprintln!("schedule {seed} failed; again with PENSTOCK_SIMULATION_SEED={seed}");
            resume_unwind(panic);
        });
        for (seen, (_, count)) in seen.iter_mut().zip(WAYS) {
            *seen += u64::from(count(&found) > 0);
        }
    }
    seen
}

/// What a schedule came to.
#[derive(Default)]
struct Seen {
    core: Counters,
    /// Texts that a stop string ended.
    stopped: u64,
    /// Changes that were told to those who read blocks.
    block_changes: u64,
    injected: Injected,
    /// Times that a client let tokens wait.
    slow_reads: u64,
    /// Of the server.
    stops: u64,
}

type Count = fn(&Seen) -> u64;

/// What some schedule has to come to, and how it is counted.
const WAYS: [(&str, Count); 22] = [
    ("a preemption", |seen| seen.core.preemptions),
    ("a preemption for a priority", |seen| seen.core.priority_preemptions),
    ("a prefix hit", |seen| seen.core.prefix_hit_tokens),
    ("a fork", |seen| seen.core.copied_tokens),
    ("a token after its client had left", |seen| seen.core.tokens_after_cancel),
    ("a row in vain", |seen| seen.core.wasted_rows),
    ("a late mask", |seen| seen.core.late_masks),
    ("a tree of drafts", |seen| seen.core.branch_drafts),
    ("an accepted draft", |seen| seen.core.accepted_drafts),
    ("an accepted draft of other answers", |seen| seen.core.accepted_corpus_drafts),
    ("an accepted draft of a model", |seen| seen.core.accepted_model_drafts),
    ("a forced token", |seen| seen.core.forced_tokens),
    ("a stop string", |seen| seen.stopped),
    ("a change of blocks that is read", |seen| seen.block_changes),
    ("a crash in a step", |seen| seen.injected.crashes),
    ("a kill between steps", |seen| seen.injected.kills),
    ("a hang", |seen| seen.injected.hangs),
    ("a freeze", |seen| seen.injected.freezes),
    ("a wrong answer", |seen| seen.injected.wrong_answers),
    ("a row that fails", |seen| seen.injected.row_errors.into()),
    ("a client that reads slowly", |seen| seen.slow_reads),
    ("a stop", |seen| seen.stops),
];

#[test]
fn a_seed_is_one_schedule() {
    for seed in 0..100 {
        let [first, again] = [(); 2].map(|()| {
            let happened = RefCell::default();
            simulate(seed, &happened);
            happened.into_inner()
        });
        let differ = first.iter().zip(&again).position(|(one, other)| one != other);
        assert_eq!(first.len(), again.len(), "schedule {seed}");
        assert_eq!(differ.map(|at| (&first[at], &again[at])), None, "schedule {seed}");
    }
}

/// splitmix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u32) -> u32 {
        (self.next() % u64::from(end.max(1))) as u32
    }

    fn one_in(&mut self, count: u32) -> bool {
        self.below(count) == 0
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u32) as usize]
    }

    fn ms(&mut self, end: u32) -> Duration {
        Duration::from_millis(self.below(end).into())
    }

    /// One of its own for somebody who asks at other times.
    fn split(&mut self) -> Self {
        Self(self.next())
    }
}

/// What was done to the workers so far.
#[derive(Clone, Copy, Default)]
struct Injected {
    losses: u32,
    row_errors: u32,
    crashes: u64,
    kills: u64,
    hangs: u64,
    freezes: u64,
    wrong_answers: u64,
}

/// More would make the server give up.
const MOST_LOSSES: u32 = 6;

/// Workers that take their time to start.
struct SlowSource {
    mock: MockSource,
    random: Mutex<Random>,
}

#[async_trait]
impl WorkerSource for SlowSource {
    async fn fresh(&self, lost: Option<&Loss>) -> Result<Vec<Endpoint>, GiveUp> {
        let time = self.random.lock().expect("one thread").ms(800);
        sleep(time).await;
        self.mock.fresh(lost).await
    }
}

/// How a client behaves.
#[derive(Clone, Copy, Debug)]
enum Habit {
    Reads,
    ReadsSlowly(Duration),
    LeavesAfter(usize),
    LeavesAt(Duration),
}

/// What became of a request, for the accounts.
#[derive(Default)]
struct Ending {
    submitted: bool,
    received: u64,
    /// Generated tokens that it may not have seen: it left, or a grammar held the last one.
    unseen: u64,
}

struct World<'a> {
    config: MockConfig,
    handle: Handle,
    serving: Serving,
    injected: Arc<Mutex<Injected>>,
    began: Instant,
    is_stopped: Cell<bool>,
    stopped: Cell<u64>,
    slow_reads: Cell<u64>,
    /// What happens, in words.
    happened: &'a RefCell<Vec<String>>,
}

impl World<'_> {
    fn note(&self, text: impl std::fmt::Display) {
        let at = clock::since(self.began).as_millis();
        self.happened.borrow_mut().push(format!("{at:>6} ms  {text}"));
    }

    /// Fails unless something was done that explains it.
    fn check_failure(&self, number: usize, failure: &SequenceFailure, has_time_limit: bool) {
        let injected = *self.injected.lock().expect("one thread");
        let is_explained = match failure {
            SequenceFailure::Row(_) => injected.row_errors > 0,
            SequenceFailure::Poisonous => injected.losses >= 3,
            SequenceFailure::Mask(_) | SequenceFailure::MaskIgnored => false,
            SequenceFailure::Unavailable(_) => self.is_stopped.get(),
            SequenceFailure::TooLate { .. } | SequenceFailure::OutOfTime { .. } => has_time_limit,
        };
        assert!(is_explained, "request {number} failed: {failure}");
    }

    /// A client of the scheduler itself.
    async fn ask(&self, number: usize, at: Duration, spec: SequenceSpec, habit: Habit) -> Ending {
        sleep_until((self.began + at).into()).await;
        let submitted = match self.handle.submit(spec.clone()) {
            Ok(submitted) => submitted,
            Err(refused) => {
                assert!(matches!(refused, Refused::Full { .. }) || self.is_stopped.get(), "{refused}");
                self.note(format_args!("request {number} is refused"));
                return Ending::default();
            }
        };
        let Submitted { id, events, ticket, permit } = submitted;
        self.note(format_args!("request {number} is {id:?}: {habit:?}, {:?}", spec.priority));
        let mut client = Client::new(id, spec, events);
        let mut ticket = Some(ticket);
        let leaves_at = match habit {
            Habit::LeavesAt(time) => time,
            _ => LONGEST,
        };
        let leaving = sleep(leaves_at);
        tokio::pin!(leaving);
        loop {
            let event = tokio::select! {
                biased;
                () = &mut leaving, if ticket.is_some() => {
                    self.note(format_args!("request {number} leaves"));
                    ticket = None;
                    continue;
                }
                event = client.events.recv() => event,
            };
            let Some(event) = event else {
                assert!(ticket.is_none(), "request {number}: its events end without an end");
                break;
            };
            client.take(event);
            self.note(format_args!("request {number} has {} tokens", client.tokens.len()));
            match habit {
                _ if client.end.is_some() => break,
                Habit::ReadsSlowly(time) => {
                    self.slow_reads.set(self.slow_reads.get() + 1);
                    sleep(time).await;
                }
                Habit::LeavesAfter(tokens) if client.tokens.len() >= tokens => ticket = None,
                _ => {}
            }
        }
        drop(permit);
        client.check_against_reference(&self.config);
        self.note(format_args!("request {number} ended: {:?}", client.end));
        let has_time_limit = client.spec.deadline.or(client.spec.stop_at).is_some();
        if let Some(Err(failure)) = &client.end {
            self.check_failure(number, failure, has_time_limit);
        }
        let is_whole = matches!(client.end, Some(Ok(_)));
        let unseen = u64::from(client.spec.constraint.is_some() && !is_whole);
        Ending { submitted: true, received: client.tokens.len() as u64, unseen }
    }

    /// A client of a generation, which gets text.
    async fn generate(
        &self,
        number: usize,
        at: Duration,
        spec: SequenceSpec,
        (stop, stop_text): (Vec<String>, StopText),
        habit: Habit,
    ) -> Ending {
        sleep_until((self.began + at).into()).await;
        let request = GenerationRequest {
            input: Input::Tokens(if spec.encoder.is_empty() { &spec.prompt } else { &spec.encoder }.clone()),
            sampling: spec.sampling.clone(),
            reported_seed: None,
            max_new_tokens: Some(spec.max_new_tokens),
            min_new_tokens: 0,
            watermark: false,
            truncate: None,
            stop: stop.clone(),
            stop_text,
            ignore_eos: spec.ignore_eos,
            stop_token_ids: spec.stop_token_ids.clone(),
            top_tokens: spec.top_tokens,
            prompt_logprobs: false,
            grammar: None,
            grammar_is_optional: false,
            adapter: spec.adapter,
            user: None,
            cache_salt: None,
            priority: Some(spec.priority),
            max_time: None,
        };
        let caller = Caller { key: Some(7), ..Caller::anonymous(clock::now()) };
        let Ok(permit) = self.serving.reserve(&caller, None) else {
            self.note(format_args!("request {number} is refused"));
            return Ending::default();
        };
        let mut generation = match generation::start(&self.serving, permit, request, &caller).await {
            Ok(generation) => generation,
            Err(failure) => {
                assert!(self.is_stopped.get(), "{failure:?}");
                return Ending::default();
            }
        };
        self.note(format_args!("request {number} is a generation: {habit:?}"));
        let leaving = sleep(if let Habit::LeavesAt(time) = habit { time } else { LONGEST });
        tokio::pin!(leaving);
        let (mut ids, mut text) = (Vec::new(), String::new());
        let unknown = || Ending { submitted: true, received: 0, unseen: u64::MAX };
        loop {
            let event = tokio::select! {
                biased;
                () = &mut leaving => return unknown(),
                event = generation.next() => event,
            };
            match event.expect("it has an end") {
                GenerationEvent::Token(token) => {
                    ids.push(token.id.0);
                    if !token.special {
                        text.push_str(&token.text);
                    }
                    self.note(format_args!("request {number} has {} tokens", ids.len()));
                }
                GenerationEvent::Done(done) => {
                    let expected = until_stop(&self.config, &spec, &stop, stop_text);
                    assert_eq!(ids, expected.ids, "request {number}, which {stop:?} stop");
                    assert_eq!(text, done.text, "request {number}");
                    assert_eq!(text, expected.text, "request {number}, which {stop:?} stop");
                    assert_eq!(done.stop, expected.ended_by, "request {number}");
                    let is_stopped = done.stop.is_some();
                    self.stopped.set(self.stopped.get() + u64::from(is_stopped));
                    // The workers may be ahead of who reads the text.
                    let unseen = if is_stopped { u64::MAX } else { 0 };
                    return Ending { submitted: true, received: ids.len() as u64, unseen };
                }
                GenerationEvent::Failed(failure) => {
                    let reference = MockModel::reference(&self.config, &spec);
                    assert!(reference.starts_with(&ids), "request {number} got {ids:?} of {reference:?}");
                    let is_explained = match &failure {
                        GenerationFailure::Sequence(failure) => {
                            self.check_failure(number, failure, false);
                            true
                        }
                        _ => self.is_stopped.get(),
                    };
                    assert!(is_explained, "request {number} failed: {failure:?}");
                    return Ending { submitted: true, received: ids.len() as u64, unseen: 0 };
                }
            }
            match habit {
                Habit::ReadsSlowly(time) => {
                    self.slow_reads.set(self.slow_reads.get() + 1);
                    sleep(time).await;
                }
                Habit::LeavesAfter(tokens) if ids.len() >= tokens => return unknown(),
                _ => {}
            }
        }
    }
}

/// A text with its tokens, up to where the first of its stop strings ends.
struct Text {
    ids: Vec<u32>,
    text: String,
    ended_by: Option<String>,
}

/// What becomes of a text by the words of the documentation: looked for in all of it after every token, from the last special
/// one on.
fn until_stop(config: &MockConfig, spec: &SequenceSpec, stop: &[String], stop_text: StopText) -> Text {
    let ids = MockModel::reference(config, spec);
    let vocabulary = PROMPT.vocabulary();
    let mut detokenizer = Detokenizer::new(vocabulary.clone(), &spec.prompt);
    let (mut text, mut from) = (String::new(), 0);
    for (at, &id) in ids.iter().enumerate() {
        let id = TokenId(id);
        let is_last = at + 1 == ids.len();
        let is_end = id.0 == VOCABULARY - 1 && !spec.ignore_eos || spec.stop_token_ids.contains(&id);
        let ends_it = is_last && is_end;
        if !vocabulary.is_special(id) && !ends_it {
            text.push_str(&detokenizer.push(id));
        } else if !ends_it {
            let name = vocabulary.name(id);
            text.push_str(&detokenizer.finish());
            from = text.len();
            if let Some(stop) = stop.iter().find(|stop| name == **stop) {
                return Text { ids: ids[..=at].to_vec(), text, ended_by: Some(stop.clone()) };
            }
        }
        if is_last {
            text.push_str(&detokenizer.finish());
        }
        let ends = stop.iter().filter_map(|stop| Some((from + text[from..].find(stop)? + stop.len(), stop)));
        // Of those that end at the same place the longest.
        let first = ends.min_by_key(|(end, stop)| (*end, std::cmp::Reverse(stop.len())));
        if let Some((end, stop)) = first {
            text.truncate(if stop_text == StopText::Omit { end - stop.len() } else { end });
            return Text { ids: ids[..=at].to_vec(), text, ended_by: Some(stop.clone()) };
        }
    }
    Text { ids, text, ended_by: None }
}

/// Parts of the text that is to be, and what may not come.
fn stop_of(random: &mut Random, config: &MockConfig, spec: &SequenceSpec) -> (Vec<String>, StopText) {
    let stop_text = random.of(&[StopText::Keep, StopText::Omit]);
    if random.one_in(2) {
        return (Vec::new(), stop_text);
    }
    let text: Vec<char> = until_stop(config, spec, &[], stop_text).text.chars().collect();
    let part = |random: &mut Random| -> String {
        let from = random.below(text.len() as u32) as usize;
        let length = 1 + random.below(5) as usize;
        text[from..].iter().take(length).collect()
    };
    let mut stop: Vec<String> = (0..=random.below(2)).map(|_| part(random)).collect();
    stop.push("what no mock says".to_owned());
    // What stands for a character that is not whole is no part of a stop string.
    stop.retain(|stop| !stop.is_empty() && !stop.contains('\u{fffd}'));
    (stop, stop_text)
}

/// Reads what the prefix cache gains and loses from some time on, as a router of several servers does, until the server ends.
async fn read_blocks(handle: Handle, from: Duration, pause: Duration) -> (HashSet<BlockHash>, u64) {
    sleep(from).await;
    let mut events = handle.read_blocks();
    drop(handle);
    let (mut known, mut told) = (HashSet::new(), 0);
    while let Some(event) = events.recv().await {
        let changes = match event {
            BlockEvent::Known(all) => {
                known.clear();
                all
            }
            BlockEvent::Changed(changes) => changes,
            BlockEvent::Lost => panic!("nobody is so slow here"),
        };
        told += changes.len() as u64;
        for change in changes.iter() {
            match *change {
                BlockChange::Stored { block, after } => {
                    assert!(after.is_none_or(|after| known.contains(&after)), "{block:?} follows nothing");
                    known.insert(block);
                }
                BlockChange::Evicted { block } => assert!(known.remove(&block), "{block:?} was not known"),
                BlockChange::Cleared => known.clear(),
            }
        }
        sleep(pause).await;
    }
    (known, told)
}

/// The tokenizer of all generations.
static PROMPT: LazyLock<Arc<Prompt>> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder");
    samples::byte_level().save(folder.path().join("tokenizer.json"), false).expect("written");
    Arc::new(Prompt::load(folder.path(), None, None, 1).expect("the sample is a tokenizer"))
});
const VOCABULARY: u32 = 264;

/// What the decoder of an encoder-decoder begins with.
const DECODER_START: [u32; 2] = [1, 3];

/// Of models of all kinds, with the tokens that a step may have.
fn config_of(random: &mut Random, slots: u32) -> (MockConfig, u32) {
    let mut budget = slots.max(1 + random.below(80));
    let plain = MockConfig {
        vocab_size: VOCABULARY,
        eos_ids: vec![VOCABULARY - 1],
        eos_one_in: random.of(&[0, 6, 30]),
        surprise_one_in: random.of(&[0, 0, 10, 100]),
        followers: random.of(&[1, 2, 3]),
        draft_trees: random.one_in(2),
        cost: CostModel { per_token_ns: random.of(&[1e3, 1e6]), ..MockConfig::default().cost },
        pages: 24 + random.below(36),
        block_size: 4,
        max_positions: POSITIONS,
        step_fixed: Duration::from_millis(1 + u64::from(random.below(4))),
        step_per_token: Duration::from_micros(random.below(50).into()),
        ..MockConfig::default()
    };
    let plain = if random.one_in(3) { with_adapters(plain) } else { plain };
    let mut config = match random.below(10) {
        0 => {
            let window =
                |random: &mut Random| Window { tables: 1, reach: 2 + random.below(38), chunked: false };
            let windows = (0..=random.below(2)).map(|_| window(random)).collect();
            MockConfig { windows, ..plain }
        }
        1 => {
            let ranks = random.of(&[1, 1, 2]);
            MockConfig {
                state_bytes: 8,
                snapshots: random.below(12),
                draft_states: random.of(&[0, 1, 5, 100]),
                wrong_draft_one_in: random.of(&[0, 0, 3]),
                draft_trees: false,
                world_size: ranks,
                stages: ranks,
                ..plain
            }
        }
        2 => MockConfig { world_size: 2, ..plain },
        3 => MockConfig { world_size: 2, stages: 2, ..plain },
        4 => MockConfig { wrong_draft_one_in: random.of(&[1, 3, 50]), ..plain },
        5 => {
            // What an encoder reads is fed whole.
            budget = budget.max(POSITIONS);
            MockConfig { decoder_start_ids: DECODER_START.to_vec(), ..plain }
        }
        _ => plain,
    };
    // The longest sequence fits, beside what a generation leaves for an encoder's last block and the decoder's start.
    let beside = if config.decoder_start_ids.is_empty() { 0 } else { 8 };
    let tables = config.tables();
    while tables.longest(config.pages, budget) < POSITIONS + beside {
        config.pages += 1;
    }
    (config, budget)
}

fn spec_of(random: &mut Random, config: &MockConfig, now: Instant) -> SequenceSpec {
    let prompt: Vec<_> = of_family(random.below(3), 1 + random.below(70)).into_iter().map(TokenId).collect();
    let (encoder, prompt) = match config.decoder_start_ids.is_empty() {
        true => (Vec::new(), prompt),
        false => (prompt, DECODER_START.map(TokenId).to_vec()),
    };
    let room =
        POSITIONS - encoder.len().next_multiple_of(config.block_size as usize) as u32 - prompt.len() as u32;
    let constraint = match random.below(4) {
        0 => {
            let end = random.one_in(2).then_some(2);
            every_forcing(2 + random.below(7), 1 + random.below(39), end, random.below(6))
        }
        _ => None,
    };
    let later = |random: &mut Random| Some(now + random.ms(3000));
    SequenceSpec {
        prompt_logprobs: random.one_in(8) && encoder.is_empty(),
        encoder,
        prompt,
        sampling: Sampling {
            temperature: random.of(&[0.0, 0.7]),
            seed: random.below(3).into(),
            repetition_penalty: random.of(&[1.0, 1.0, 1.3]),
            ..Sampling::default()
        },
        max_new_tokens: 1 + random.below(room),
        ignore_eos: random.one_in(2),
        stop_token_ids: if random.one_in(4) { vec![TokenId(11), TokenId(12)] } else { Vec::new() },
        top_tokens: random.below(3),
        constraint,
        adapter: (!config.adapters.is_empty())
            .then(|| random.of(&[None, Some(1), Some(2)]))
            .flatten()
            .map(adapter),
        cache_namespace: Namespace(random.below(2).into()),
        tenant: Tenant::Key(random.below(3)),
        priority: Priority(random.of(&[0, 0, 0, -1, 1, 2])),
        deadline: if random.one_in(10) { later(random) } else { None },
        stop_at: if random.one_in(10) { later(random) } else { None },
        trace: None,
    }
}

fn habit_of(random: &mut Random) -> Habit {
    match random.below(8) {
        0 => Habit::LeavesAfter(random.below(20) as usize),
        1 => Habit::LeavesAt(random.ms(400)),
        2 => Habit::ReadsSlowly(random.ms(60)),
        _ => Habit::Reads,
    }
}

/// Something goes wrong in about one of so many steps.
fn script_of(mut random: Random, one_in: u32, injected: Arc<Mutex<Injected>>) -> Script {
    Box::new(move |step| {
        if !random.one_in(one_in) {
            return None;
        }
        let mut injected = injected.lock().expect("one thread");
        let fault = match random.below(12) {
            0 | 1 => Fault::Slow(random.ms(300)),
            2 | 3 => {
                injected.row_errors += 1;
                return Some(Fault::RowError(random.below(step.rows)));
            }
            4 => Fault::Hang,
            5 => Fault::Wait,
            6 => Fault::LosePeer,
            7 => Fault::Refuse,
            8 => Fault::OutsideVocabulary,
            9 => Fault::WrongNumber,
            10 => Fault::ShortColumn,
            _ => Fault::Die,
        };
        if !matches!(fault, Fault::Slow(_)) {
            if injected.losses >= MOST_LOSSES {
                return None;
            }
            injected.losses += 1;
        }
        match fault {
            Fault::Die | Fault::LosePeer => injected.crashes += 1,
            Fault::Hang | Fault::Wait => injected.hangs += 1,
            Fault::OutsideVocabulary | Fault::WrongNumber | Fault::ShortColumn => injected.wrong_answers += 1,
            _ => {}
        }
        Some(fault)
    })
}

/// What the observer of the core has seen last.
struct Watch {
    counters: Arc<Mutex<Counters>>,
    /// What the prefix cache has.
    cached: Arc<Mutex<HashSet<BlockHash>>>,
    first: Option<(SequenceId, u32, usize)>,
    since: Instant,
}

impl Watch {
    fn look(&mut self, core: &Core) {
        // Between a loss and the new workers the pool is that of the old ones.
        let is_lost = core.running.is_empty() && core.stats().blocks_used > 0;
        if !is_lost {
            core.check();
        }
        *self.counters.lock().expect("one thread") = core.counters;
        if core.rules.block_events && core.is_empty() {
            let stored = core.pool.known().into_iter().map(|change| match change {
                BlockChange::Stored { block, .. } => block,
                other => panic!("{other:?} is known"),
            });
            *self.cached.lock().expect("one thread") = stored.collect();
        }
        let first = core.first().map(|id| {
            let sequence = &core.sequences[core.by_id[&id]];
            (id, sequence.answered, sequence.tokens.len())
        });
        if first != self.first {
            (self.first, self.since) = (first, clock::now());
        }
        assert!(first.is_none() || clock::since(self.since) < STANDSTILL, "{first:?} does not come on");
    }
}

fn simulate(seed: u64, happened: &RefCell<Vec<String>>) -> Seen {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let running =
        async { timeout(LONGEST * 2, live(Random(seed), happened)).await.expect("it comes to an end") };
    tokio::task::LocalSet::new().block_on(&runtime.expect("a timer needs nothing"), running)
}

async fn live(mut random: Random, happened: &RefCell<Vec<String>>) -> Seen {
    let slots = 1 + random.below(6);
    let (config, budget) = config_of(&mut random, slots);
    let injected = Arc::new(Mutex::new(Injected::default()));
    let one_in = random.of(&[15, 60, 300, u32::MAX]);
    let script = script_of(random.split(), one_in, injected.clone());
    let source = Arc::new(SlowSource {
        mock: MockSource::in_virtual_time(config.clone(), script),
        random: Mutex::new(random.split()),
    });
    let limits = PrepareLimits {
        max_slots: slots,
        max_step_tokens: budget,
        max_sequence_tokens: 0,
        max_cache_tokens: 0,
        memory_fraction: 0.9,
        max_step_drafts: 20,
    };
    let group = Group::start(&*source, |_| Ok(limits)).await.expect("nothing goes wrong yet");
    let settings = Settings {
        max_live: random.of(&[1000, 1000, 4]),
        target_itl: random.of(&[None, None, Some(Duration::from_millis(5))]),
        eos: config.eos_ids.iter().copied().map(TokenId).collect(),
        step_timeout: Duration::from_secs(2),
        check_interval: random.of(&[Duration::from_secs(1), Duration::from_secs(60)]),
        speculate: random.of(&[0, 0, 3, 6]),
        speculate_corpus_tokens: random.of(&[0, 500]),
        block_events: random.one_in(2),
        recorder: None,
    };
    let health = tokio::sync::watch::Sender::new(Health::Ready);
    let tells_blocks = settings.block_events;
    let (handle, mut task) = assemble(&group, source.clone(), settings, health.clone());
    let (mut delays, latest) = (random.split(), random.of(&[0, 5, 60]));
    task.mask_threads = MaskThreads::delayed(Box::new(move || delays.ms(latest)));
    let counters = Arc::new(Mutex::new(Counters::default()));
    let cached = Arc::new(Mutex::new(HashSet::new()));
    let mut watch =
        Watch { counters: counters.clone(), cached: cached.clone(), first: None, since: clock::now() };
    task.observer = Some(Box::new(move |core| watch.look(core)));
    let (opened, open) = oneshot::channel();
    let task = tokio::task::spawn_local(task.run(group, opened));
    open.await.expect("the task lives");

    let world = World {
        serving: serving(handle.clone(), config.decoder_start_ids.iter().copied().map(TokenId).collect()),
        config,
        handle: handle.clone(),
        injected: injected.clone(),
        began: clock::now(),
        is_stopped: Cell::new(false),
        stopped: Cell::new(0),
        slow_reads: Cell::new(0),
        happened,
    };
    let clients = (0..3 + random.below(20) as usize).map(|number| {
        let (at, spec, habit) =
            (random.ms(300), spec_of(&mut random, &world.config, world.began), habit_of(&mut random));
        let is_text = spec.constraint.is_none() && random.one_in(3);
        let spec = match is_text {
            true => SequenceSpec { deadline: None, stop_at: None, prompt_logprobs: false, ..spec },
            false => spec,
        };
        let stop = is_text.then(|| stop_of(&mut random, &world.config, &spec));
        let world = &world;
        async move {
            match stop {
                Some(stop) => world.generate(number, at, spec, stop, habit).await,
                None => world.ask(number, at, spec, habit).await,
            }
        }
    });
    let clients: Vec<_> = clients.collect();
    let readers = (0..random.below(3)).map(|_| {
        let (from, pause) = (random.ms(600), random.of(&[Duration::ZERO, Duration::from_millis(3)]));
        tokio::task::spawn_local(read_blocks(handle.clone(), from, pause))
    });
    let readers: Vec<_> = readers.collect();
    let disturb = disturb(&world, &source.mock, random.split());
    let (endings, ()) = futures::join!(join_all(clients), disturb);

    world.note("all clients have ended");
    handle.drain().await;
    if !world.is_stopped.get() {
        // They may have ended while workers were replaced.
        let is_there = |health: &Health| *health == Health::Ready;
        drop(health.subscribe().wait_for(is_there).await.expect("the sender is here"));
    }
    let stats = handle.stats();
    assert_eq!(stats.live, 0, "{stats:?}");
    let counters = *counters.lock().expect("one thread");
    let submitted = endings.iter().filter(|ending| ending.submitted).count() as u64;
    let ended = counters.finished + counters.failed + counters.cancelled;
    if !world.is_stopped.get() {
        assert_eq!((stats.waiting, stats.running, stats.blocks_used), (0, 0, 0), "{stats:?}");
        assert_eq!(ended, submitted, "{counters:?}");
        let received: u64 = endings.iter().map(|ending| ending.received).sum();
        let unseen = endings.iter().fold(0u64, |sum, ending| sum.saturating_add(ending.unseen));
        let generated = counters.generated_tokens;
        assert!(
            received <= generated && generated - received <= unseen,
            "{received} of {generated} were received"
        );
        assert_eq!(*health.borrow(), Health::Ready, "{:?}", source.mock.losses());
    }
    // Whoever begins to read when all is over is told as well.
    sleep(Duration::from_secs(1)).await;
    handle.stop().await;
    task.await.expect("the scheduler does not panic");
    let mut block_changes = 0;
    for reader in readers {
        let (known, told) = reader.await.expect("what it reads agrees");
        block_changes += told;
        if tells_blocks && !world.is_stopped.get() {
            assert_eq!(known, *cached.lock().expect("one thread"));
        }
    }
    Seen {
        core: counters,
        stopped: world.stopped.get(),
        block_changes,
        injected: *injected.lock().expect("one thread"),
        slow_reads: world.slow_reads.get(),
        stops: u64::from(world.is_stopped.get()),
    }
}

/// Kills, freezes and stops at times that have nothing to do with steps.
async fn disturb(world: &World<'_>, mock: &MockSource, mut random: Random) {
    if random.one_in(4) {
        for _ in 0..1 + random.below(3) {
            sleep(random.ms(400)).await;
            let freezes = random.one_in(3);
            let mut injected = world.injected.lock().expect("one thread");
            if injected.losses < MOST_LOSSES {
                injected.losses += 1;
                match freezes {
                    true => injected.freezes += 1,
                    false => injected.kills += 1,
                }
                drop(injected);
                world.note(if freezes { "the workers freeze" } else { "the workers are killed" });
                if freezes { mock.freeze() } else { mock.kill() }
            }
        }
    }
    if random.one_in(12) {
        sleep(random.ms(400)).await;
        world.note("the server stops");
        world.is_stopped.set(true);
        world.handle.stop().await;
    }
}

fn serving(scheduler: Handle, decoder_start: Vec<TokenId>) -> Serving {
    Serving {
        prompt: PROMPT.clone(),
        scheduler,
        limits: PromptLimits {
            max_input_tokens: POSITIONS,
            max_total_tokens: POSITIONS,
            max_new_tokens: POSITIONS,
            vocab_size: VOCABULARY,
        },
        decoder_start,
        grammars: Arc::new(crate::generation::Grammars::new(async { Err("none here".into()) }, 1)),
        cache_namespace: Namespace::default(),
        watermark: Watermark { greens: 100, delta: 2.0 },
        shared_cache: true,
        digests: Default::default(),
    }
}
