//! The router alone: requests and streamed tokens per second, its processor time for each, and its memory for
//! each stream. The router runs on one core; the mock worker, which computes nothing, and the clients, on another.
//! The clients' own ceiling is measured in the same run, against a server that only writes.
//!
//!     cargo bench -p penstock-router --bench streaming -- [--seconds 5] [--rounds 3] [--only FIGURE]
//!
//! FIGURE is `streams`, `paced`, `requests` or `prompts`. Each part is a process of its own, started by this one with
//! `taskset`. `paced` has a worker whose steps take 10 ms, so that every client waits when its token comes: each costs a
//! wakeup and a write of its own, as it does behind a model; beside it stand what a server takes that only writes, and one
//! that has hyper write the same bytes, both of whose clients' turns are in one step as well. The
//! last figure is what streams feel of prompts of 100,000 tokens that arrive beside them, with a worker whose steps last
//! as long as their tokens ask.

use std::alloc::{GlobalAlloc, Layout, System};
use std::convert::Infallible;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use axum::body::Body;
use bytes::Bytes;
use clap::{Args, FromArgMatches};
use futures::StreamExt;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use penstock_core::health::Health;
use penstock_core::worker::mock::{MockConfig, MockSource, Verify};
use penstock_core::worker::{Endpoint, GiveUp, Loss, WorkerSource};
use penstock_proto::CostModel;
use penstock_router::config::{Config, ModelFiles, RouterArgs};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;

const ROUTER_CORE: &str = "0";
const OTHER_CORE: &str = "1";
/// Of each stream; when it ends, its client begins another.
const STREAM_TOKENS: u32 = 1000;
const LONG_PROMPT: usize = 100_000;
/// A step of the worker that all clients wait for.
const PACE: Duration = Duration::from_millis(10);
/// What one token of the last figure's worker takes, and a step beside.
const TOKEN_TIME: Duration = Duration::from_micros(10);
const STEP_TIME: Duration = Duration::from_millis(2);

/// Counts.
struct Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: it passes everything on to the system's.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller has it.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller has it.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller has it.
        unsafe { System.realloc(memory, layout, size) }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).cloned()
    };
    let is = |name: &str| arguments.iter().any(|argument| argument == name);
    let path = |name: &str| PathBuf::from(value(name).expect("given by `child`"));
    if is("--worker") {
        return worker(&path("--worker"), is("--timed"), is("--paced"));
    }
    if is("--router") {
        return router(&path("--router"), &path("--model"), value("--target-itl-ms"));
    }
    if is("--hyper") {
        return hyper_paced();
    }
    if is("--trivial") {
        return if is("--paced") { trivial_paced() } else { trivial() };
    }
    if let Some(port) = value("--load") {
        let number = |name: &str| value(name).and_then(|value| value.parse().ok()).expect("given by `child`");
        let seconds = Duration::from_secs(number("--seconds"));
        return load(
            port.parse().expect("a port"),
            number("--streams"),
            seconds,
            &value("--kind").expect("given"),
        );
    }
    let number =
        |name: &str, otherwise| value(name).and_then(|value| value.parse().ok()).unwrap_or(otherwise);
    measure(number("--seconds", 5), number("--rounds", 3), value("--only").as_deref());
}

// The parts.

fn runtime() -> tokio::runtime::Runtime {
    // As the launcher does; it counts the cores that `taskset` leaves.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.expect("the system has threads")
}

fn ready(what: impl std::fmt::Display) {
    println!("{what}");
}

/// Ends with its parent: standard input is a pipe from there. To each line it answers how much has been allocated.
fn until_parent_ends() {
    std::thread::spawn(|| {
        let mut line = String::new();
        while std::io::stdin().read_line(&mut line).is_ok_and(|read| read > 0) {
            ready(ALLOCATIONS.load(Ordering::Relaxed));
        }
        std::process::exit(0);
    });
}

fn worker(dir: &Path, timed: bool, paced: bool) {
    until_parent_ends();
    let config = MockConfig {
        // The tokenizer's, so that all of its tokens are taken.
        vocab_size: 4_096,
        pages: 131_072,
        max_positions: 1 << 17,
        verify: Verify::Last,
        step_fixed: match (timed, paced) {
            (true, _) => STEP_TIME,
            (_, true) => PACE,
            _ => Duration::ZERO,
        },
        step_per_token: if timed { TOKEN_TIME } else { Duration::ZERO },
        cost: match (timed, paced) {
            (true, _) => CostModel { fixed_ns: 2e6, per_token_ns: 1e4, per_context_token_ns: 0.0 },
            (_, true) => CostModel { fixed_ns: 1e7, per_token_ns: 1e3, per_context_token_ns: 0.0 },
            _ => CostModel { fixed_ns: 1e5, per_token_ns: 1e3, per_context_token_ns: 0.0 },
        },
        ..MockConfig::default()
    };
    let source = MockSource::new(config, dir.into());
    runtime().block_on(async {
        let endpoints = source.fresh(None).await.expect("a mock worker starts");
        ready(&endpoints[0]);
        std::future::pending::<()>().await;
    });
}

/// A worker that runs already.
struct Running(PathBuf);

#[async_trait]
impl WorkerSource for Running {
    async fn fresh(&self, lost: Option<&Loss>) -> Result<Vec<Endpoint>, GiveUp> {
        match lost {
            None => Ok(vec![Endpoint::Unix(self.0.clone())]),
            Some(loss) => Err(GiveUp(format!("the benchmark's worker was lost: {loss}"))),
        }
    }
}

fn router(socket: &Path, model_dir: &Path, target: Option<String>) {
    until_parent_ends();
    let command = RouterArgs::augment_args(clap::Command::new("router"));
    let flags = "router --hostname 127.0.0.1 --port 0 --max-concurrent-requests 2048 --max-batch-size 1024";
    let target = target.into_iter().flat_map(|ms| ["--target-itl-ms".to_string(), ms]);
    let matches = command.get_matches_from(flags.split(' ').map(String::from).chain(target));
    let mut args = RouterArgs::from_arg_matches(&matches).expect("the flags parse");
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    args.port = free.expect("a port is free").port();
    let port = args.port;
    let config = Config {
        args,
        model_id: "mock".into(),
        revision: None,
        num_shard: 1,
        speculate_model: None,
        pipeline_parallel: 1,
    };
    let files = ModelFiles { dir: model_dir.into(), sha: None, pipeline_tag: None, tokenizer: None };
    let source: Arc<dyn WorkerSource> = Arc::new(Running(socket.into()));
    runtime().block_on(async {
        let bound = penstock_router::bind(&config.args).expect("the port is free");
        let health = tokio::sync::watch::Sender::new(Health::Starting("starting".into()));
        let mut seen = health.subscribe();
        let model = std::future::ready(Ok((files, source)));
        let running = penstock_router::run(bound, config, model, health, CancellationToken::new());
        tokio::spawn(async move {
            let _ = seen.wait_for(|health| matches!(health, Health::Ready)).await;
            ready(port);
        });
        running.await.expect("the router runs");
    });
}

const EVENT: &str = "data: {\"index\":1,\"token\":{\"id\":100,\"text\":\" token\",\"logprob\":-1.5,\"special\":false},\
                     \"generated_text\":null,\"details\":null}\n\n";

/// An event that was made before, as a chunk of HTTP.
fn made_before() -> String {
    format!("{:x}\r\n{EVENT}\r\n", EVENT.len())
}

const ANSWER_HEAD: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

/// Writes an event to each of its clients every `PACE`, and nothing else.
fn trivial_paced() {
    until_parent_ends();
    let chunk = made_before();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a poller");
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        ready(listener.local_addr().expect("it is bound").port());
        let mut tick = tokio::time::interval(PACE);
        let mut clients: Vec<TcpStream> = Vec::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    let Ok((mut stream, _)) = accepted else { continue };
                    let _ = stream.set_nodelay(true);
                    let _ = stream.read(&mut [0; 4096]).await;
                    let _ = stream.write_all(ANSWER_HEAD.as_bytes()).await;
                    clients.push(stream);
                }
                _ = tick.tick() => clients.retain(|client| client.try_write(chunk.as_bytes()).is_ok()),
            }
        }
    });
}

/// The same through hyper, from a body for each client that waits for the next step.
fn hyper_paced() {
    until_parent_ends();
    runtime().block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        ready(listener.local_addr().expect("it is bound").port());
        let (step, steps) = watch::channel(0u64);
        tokio::spawn(async move {
            let mut tick = tokio::time::interval(PACE);
            loop {
                tick.tick().await;
                step.send_modify(|number| *number += 1);
            }
        });
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            let steps = steps.clone();
            let answer = service_fn(move |_| {
                let events = WatchStream::from_changes(steps.clone());
                let events = events.map(|_| Ok::<_, Infallible>(Bytes::from_static(EVENT.as_bytes())));
                std::future::ready(Ok::<_, Infallible>(hyper::Response::new(Body::from_stream(events))))
            });
            let connection =
                http1::Builder::new().writev(false).serve_connection(TokioIo::new(stream), answer);
            tokio::spawn(connection);
        }
    });
}

/// Answers every request with `STREAM_TOKENS` events that were made before.
fn trivial() {
    until_parent_ends();
    let answer = format!("{ANSWER_HEAD}{}0\r\n\r\n", made_before().repeat(STREAM_TOKENS as usize));
    runtime().block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        ready(listener.local_addr().expect("it is bound").port());
        let answer: Arc<str> = answer.into();
        while let Ok((mut stream, _)) = listener.accept().await {
            let answer = answer.clone();
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                while stream.read(&mut buffer).await.is_ok_and(|read| read > 0) {
                    if stream.write_all(answer.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
}

// The clients.

/// What the clients saw, while it counted.
#[derive(Default)]
struct Seen {
    counts: AtomicBool,
    events: AtomicU64,
    answers: AtomicU64,
}

fn post(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn generate(path: &str, prompt: &str, tokens: u32, seed: u64) -> String {
    let parameters = format!("{{\"max_new_tokens\":{tokens},\"do_sample\":true,\"seed\":{seed}}}");
    post(path, &format!("{{\"inputs\":\"{prompt} {seed}\",\"parameters\":{parameters}}}"))
}

/// How a stream ends: with the last chunk. And how a whole answer does, which comes in one read.
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
const OBJECT: &[u8] = b"}";

/// Reads one answer to its `end`, and calls `event` for the events that each read brought.
async fn read_answer(
    stream: &mut TcpStream,
    buffer: &mut [u8],
    end: &[u8],
    mut event: impl FnMut(u64),
) -> bool {
    let mut tail = [0u8; 5];
    let mut head = true;
    loop {
        let Ok(read @ 1..) = stream.read(buffer).await else { return false };
        let part = &buffer[..read];
        if std::mem::take(&mut head) && !part.starts_with(b"HTTP/1.1 200") {
            panic!("{}", String::from_utf8_lossy(part));
        }
        // An event ends with an empty line, and nothing else here has one.
        let before = tail[4];
        let pairs = std::iter::once([before, part[0]]).chain(part.windows(2).map(|pair| [pair[0], pair[1]]));
        event(pairs.filter(|pair| *pair == [b'\n', b'\n']).count() as u64);
        for &byte in &part[part.len().saturating_sub(5)..] {
            tail.rotate_left(1);
            tail[4] = byte;
        }
        if tail.ends_with(end) {
            return true;
        }
    }
}

fn load(port: u16, streams: u64, seconds: Duration, kind: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a poller");
    let kind = kind.to_string();
    runtime.block_on(async move {
        if kind == "beside-prompts" || kind == "alone" {
            return pauses(port, streams, seconds, kind == "beside-prompts").await;
        }
        let seen = Arc::new(Seen::default());
        for client in 0..streams {
            let (seen, kind) = (seen.clone(), kind.clone());
            tokio::spawn(async move {
                let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("it listens");
                let _ = stream.set_nodelay(true);
                let mut buffer = vec![0; 16 << 10];
                for number in 0.. {
                    let seed = client * 1000 + number;
                    let (request, end) = match kind.as_str() {
                        "stream" => (generate("/generate_stream", "hello", STREAM_TOKENS, seed), LAST_CHUNK),
                        _ => (generate("/generate", "hello", 1, seed), OBJECT),
                    };
                    stream.write_all(request.as_bytes()).await.expect("it reads");
                    let event = |events| {
                        if seen.counts.load(Ordering::Relaxed) {
                            seen.events.fetch_add(events, Ordering::Relaxed);
                        }
                    };
                    assert!(read_answer(&mut stream, &mut buffer, end, event).await, "the server closed");
                    if seen.counts.load(Ordering::Relaxed) {
                        seen.answers.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        // Until all have begun.
        tokio::time::sleep(Duration::from_secs(1)).await;
        ready("begun");
        seen.counts.store(true, Ordering::Relaxed);
        let begun = Instant::now();
        tokio::time::sleep(seconds).await;
        let took = begun.elapsed().as_secs_f64();
        let rate = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64 / took;
        ready(format!("{} {}", rate(&seen.events), rate(&seen.answers)));
    });
}

/// The time between two reads of each stream, alone or while long prompts arrive one after the other.
async fn pauses(port: u16, streams: u64, seconds: Duration, prompts: bool) {
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    for client in 0..streams {
        let sender = sender.clone();
        tokio::spawn(async move {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("it listens");
            let _ = stream.set_nodelay(true);
            let request = generate("/generate_stream", "hello", 30_000, client);
            stream.write_all(request.as_bytes()).await.expect("it reads");
            let mut last: Option<Instant> = None;
            let event = |_| {
                let now = Instant::now();
                if let Some(last) = last.replace(now) {
                    let _ = sender.send((now, now - last));
                }
            };
            read_answer(&mut stream, &mut vec![0; 16 << 10], LAST_CHUNK, event).await;
        });
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    ready("begun");
    let begun = Instant::now();
    if prompts {
        tokio::spawn(async move {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("it listens");
            for number in 0.. {
                // Of a token each, and no two prompts alike.
                let ids: Vec<_> =
                    (0..LONG_PROMPT).map(|at| (100 + (at * 7 + number * 13) % 800).to_string()).collect();
                let body = format!("{{\"prompt\":[{}],\"max_tokens\":1}}", ids.join(","));
                stream.write_all(post("/v1/completions", &body).as_bytes()).await.expect("it reads");
                read_answer(&mut stream, &mut vec![0; 4096], OBJECT, |_| ()).await;
            }
        });
    }
    tokio::time::sleep(seconds).await;
    let mut all: Vec<Duration> = Vec::new();
    while let Ok((at, pause)) = receiver.try_recv() {
        if at >= begun {
            all.push(pause);
        }
    }
    all.sort();
    let at = |share: f64| all[((all.len() - 1) as f64 * share) as usize].as_secs_f64() * 1000.0;
    ready(format!("{} {} {} {}", at(0.5), at(0.99), at(0.999), at(1.0)));
    std::process::exit(0);
}

// The measurements.

struct Part {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Part {
    fn start(core: &str, arguments: &[&str]) -> Self {
        let own = std::env::current_exe().expect("this program has a file");
        let mut child = Command::new("taskset")
            .args(["-c", core])
            .arg(own)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("taskset (util-linux) is installed");
        let says = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, says }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.says.read_line(&mut line).expect("it speaks UTF-8");
        assert!(!line.is_empty(), "a part of the benchmark ended early");
        line.trim().to_string()
    }

    fn numbers(&mut self) -> Vec<f64> {
        self.line().split(' ').map(|number| number.parse().expect("a number")).collect()
    }

    /// How much it has allocated so far.
    fn allocations(&mut self) -> f64 {
        let mut to = self.child.stdin.as_ref().expect("piped");
        writeln!(to).expect("it reads");
        self.line().parse().expect("a number")
    }

    /// Processor time so far.
    fn cpu(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("it lives");
        let fields: Vec<_> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        // utime and stime, fields 14 and 15 of proc(5), in hundredths of a second.
        let ticks: u64 = fields[11..13].iter().map(|ticks| ticks.parse::<u64>().expect("a number")).sum();
        Duration::from_millis(ticks * 10)
    }

    /// The same to the nanosecond, of the scheduler's thread and of all others.
    fn cpu_of_threads(&self) -> (f64, f64) {
        let (mut scheduler, mut others) = (0.0, 0.0);
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("it lives");
        for task in tasks.flatten() {
            let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let nanoseconds = read("schedstat").split(' ').next().and_then(|first| first.parse::<f64>().ok());
            match read("comm").trim() {
                "scheduler" => scheduler += nanoseconds.unwrap_or_default() / 1e9,
                _ => others += nanoseconds.unwrap_or_default() / 1e9,
            }
        }
        (scheduler, others)
    }

    /// Of `cpu`, what the kernel took.
    fn kernel_cpu(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("it lives");
        let field = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(12));
        Duration::from_millis(field.and_then(|ticks| ticks.parse::<u64>().ok()).expect("a number") * 10)
    }

    fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it lives");
        let line = status.lines().find(|line| line.starts_with("VmRSS")).expect("Linux says it");
        line.split_whitespace().nth(1).and_then(|kilobytes| kilobytes.parse().ok()).expect("a number")
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Worker and router.
fn server(kind: Option<&str>, target: Option<&str>) -> (Part, Part, String, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("a folder for the socket");
    let mut worker = vec!["--worker", dir.path().to_str().expect("UTF-8")];
    worker.extend(kind);
    let mut worker = Part::start(OTHER_CORE, &worker);
    let socket = worker.line();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../server/penstock/tiny/model");
    let mut router = vec!["--router", &socket, "--model", model];
    router.extend(target.into_iter().flat_map(|ms| ["--target-itl-ms", ms]));
    let mut router = Part::start(ROUTER_CORE, &router);
    let port = router.line();
    (worker, router, port, dir)
}

fn clients(port: &str, streams: usize, seconds: u64, kind: &str) -> Part {
    let (streams, seconds) = (streams.to_string(), seconds.to_string());
    let arguments = ["--load", port, "--streams", &streams, "--seconds", &seconds, "--kind", kind];
    let mut clients = Part::start(OTHER_CORE, &arguments);
    assert_eq!(clients.line(), "begun");
    clients
}

fn measure(seconds: u64, rounds: u64, only: Option<&str>) {
    let is_wanted = |figure: &str| only.is_none_or(|only| only == figure);
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = processor.lines().find_map(|line| line.strip_prefix("model name"));
    println!("{}, router on one core", name.unwrap_or_default().trim_matches(['\t', ' ', ':']));
    let best = |values: &[f64]| {
        let (least, most) = values.iter().fold((f64::MAX, 0f64), |(a, b), &v| (a.min(v), b.max(v)));
        format!("{most:.0} ({least:.0}-{most:.0}, n={})", values.len())
    };

    let mut ceiling = Vec::new();
    for _ in 0..if is_wanted("streams") { rounds } else { 0 } {
        let mut trivial = Part::start(ROUTER_CORE, &["--trivial"]);
        let port = trivial.line();
        ceiling.push(clients(&port, 64, seconds, "stream").numbers()[0]);
    }
    if is_wanted("streams") {
        println!("clients' ceiling, events/s: {}", best(&ceiling));
    }

    for streams in [1, 64, 1000].into_iter().filter(|_| is_wanted("streams")) {
        let (mut rates, mut cpu, mut memory) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            let (_worker, router, port, _dir) = server(None, None);
            let empty = router.resident();
            let mut load = clients(&port, streams, seconds, "stream");
            let before = router.cpu();
            let rate = load.numbers()[0];
            let used = (router.cpu() - before).as_secs_f64();
            rates.push(rate);
            cpu.push(used / (rate * seconds as f64) * 1e6);
            memory.push((router.resident() - empty) as f64 / streams as f64);
        }
        let least = |values: &[f64]| values.iter().copied().fold(f64::MAX, f64::min);
        println!(
            "{streams} streams: tokens/s {}; router's processor time {:.2} us a token; {:.1} KiB a stream",
            best(&rates),
            least(&cpu),
            least(&memory),
        );
    }

    for streams in [1, 256].into_iter().filter(|_| is_wanted("paced")) {
        for round in 0..rounds {
            let floor = |flags: &[&str]| {
                let mut floor = Part::start(ROUTER_CORE, flags);
                let port = floor.line();
                paced(&mut floor, &port, streams, seconds)
            };
            let (writes, hyper) = (floor(&["--trivial", "--paced"]), floor(&["--hyper"]));
            let (_worker, mut router, port, _dir) = server(Some("--paced"), None);
            let found = paced(&mut router, &port, streams, seconds);
            println!(
                "{streams} streams, one token each in steps of 10 ms, round {round}: {:.0} tokens/s; router's processor time \
                 {:.2} us a token ({:.2} the scheduler, {:.2} the others; {:.2} in the kernel), {:.2} allocations; a server that \
                 only writes {:.2} us ({:.2} in the kernel) at {:.0}/s; hyper alone {:.2} us ({:.2} in the kernel) at {:.0}/s",
                found.rate,
                found.scheduler + found.others,
                found.scheduler,
                found.others,
                found.kernel,
                found.allocations,
                writes.scheduler + writes.others,
                writes.kernel,
                writes.rate,
                hyper.scheduler + hyper.others,
                hyper.kernel,
                hyper.rate,
            );
        }
    }

    for streams in [1, 64, 1000].into_iter().filter(|_| is_wanted("requests")) {
        let (mut rates, mut cpu) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let (_worker, router, port, _dir) = server(None, None);
            let mut load = clients(&port, streams, seconds, "whole");
            let before = router.cpu();
            let rate = load.numbers()[1];
            cpu.push((router.cpu() - before).as_secs_f64() / (rate * seconds as f64) * 1e6);
            rates.push(rate);
        }
        let cpu = cpu.iter().copied().fold(f64::MAX, f64::min);
        println!("{streams} clients, one token each: requests/s {}; {cpu:.0} us a request", best(&rates));
    }

    for target in [None, Some("20")].into_iter().filter(|_| is_wanted("prompts")) {
        for kind in ["alone", "beside-prompts"] {
            let (_worker, _router, port, _dir) = server(Some("--timed"), target);
            let times = clients(&port, 16, 2 * seconds, kind).numbers();
            let target = target.map_or("no target".into(), |ms| format!("--target-itl-ms {ms}"));
            println!(
                "16 streams {kind}, {target}: between tokens p50 {:.1}, p99 {:.1}, p99.9 {:.1}, most {:.1} ms",
                times[0], times[1], times[2], times[3]
            );
        }
    }
}

/// What a server takes for each token: processor time, in microseconds, and allocations.
struct Paced {
    rate: f64,
    scheduler: f64,
    others: f64,
    kernel: f64,
    allocations: f64,
}

fn paced(server: &mut Part, port: &str, streams: usize, seconds: u64) -> Paced {
    let mut load = clients(port, streams, seconds, "stream");
    let allocations = server.allocations();
    let (before, kernel_before) = (server.cpu_of_threads(), server.kernel_cpu());
    let rate = load.numbers()[0];
    let (after, kernel_after) = (server.cpu_of_threads(), server.kernel_cpu());
    let allocations = server.allocations() - allocations;
    let each = 1e6 / (rate * seconds as f64);
    Paced {
        rate,
        scheduler: (after.0 - before.0) * each,
        others: (after.1 - before.1) * each,
        kernel: (kernel_after - kernel_before).as_secs_f64() * each,
        allocations: allocations * each / 1e6,
    }
}
