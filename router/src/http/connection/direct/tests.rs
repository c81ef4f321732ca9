//! Events over real sockets: by hand as hyper would write them, and with hyper through the whole listener.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::task::Wake;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::Response;
use axum::routing::get;
use clap::{Args, FromArgMatches};
use futures::future::join_all;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::config::RouterArgs;
use crate::http::connection::{ConnectionLimiter, ConnectionLimits, serve};

/// Longer than anything here takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(20);

async fn within<T>(future: impl Future<Output = T>) -> T {
    timeout(DEADLINE, future).await.expect("in time")
}

/// How many parts went which way.
#[derive(Default)]
struct Tally {
    by_hyper: AtomicUsize,
    direct: AtomicUsize,
}

/// Tells what comes, and panics at a NUL.
struct Said {
    parts: mpsc::UnboundedReceiver<Vec<u8>>,
    gathered: Vec<u8>,
    tally: Arc<Tally>,
}

impl Said {
    fn new(tally: &Arc<Tally>) -> (mpsc::UnboundedSender<Vec<u8>>, Self) {
        let (sender, parts) = mpsc::unbounded_channel();
        (sender, Self { parts, gathered: Vec::new(), tally: tally.clone() })
    }

    /// Whether more has to be waited for.
    fn waits(&mut self, events: &Waker) -> bool {
        let mut context = Context::from_waker(events);
        loop {
            match self.parts.poll_recv(&mut context) {
                Poll::Pending => return true,
                Poll::Ready(None) => return false,
                Poll::Ready(Some(part)) => {
                    assert_ne!(part, [0], "a bug in what tells events");
                    self.gathered.extend(part);
                }
            }
        }
    }
}

impl Events for Said {
    fn poll_next(&mut self, _: &mut Context<'_>, events: &Waker) -> Poll<Option<Bytes>> {
        match (self.waits(events), std::mem::take(&mut self.gathered)) {
            (waits, gathered) if gathered.is_empty() => {
                if waits {
                    Poll::Pending
                } else {
                    Poll::Ready(None)
                }
            }
            (_, gathered) => {
                self.tally.by_hyper.fetch_add(1, Ordering::Relaxed);
                Poll::Ready(Some(gathered.into()))
            }
        }
    }

    fn gather(&mut self, events: &Waker) -> bool {
        self.waits(events)
    }

    fn gathered(&self) -> &[u8] {
        &self.gathered
    }

    fn written(&mut self, _: Instant) {
        self.tally.direct.fetch_add(1, Ordering::Relaxed);
        self.gathered.clear();
    }
}

#[derive(Default)]
struct Task(AtomicU32);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn the_way_is_open_from_a_flush_behind_silence_until_the_body_gives_something() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let client = TcpStream::connect(listener.local_addr().expect("bound"));
    let (client, accepted) = tokio::join!(client, listener.accept());
    let (mut client, (stream, _)) = (client.expect("it listens"), accepted.expect("a client"));
    let (socket, connection) = SharedSocket::new(stream, Queue::new());
    let mut io = DirectIo::new(socket, connection.clone());
    let tally = Arc::<Tally>::default();
    let (sender, said) = Said::new(&tally);
    let (mut events, answer) = body(said);
    let mut extensions = Extensions::new();
    extensions.insert(answer);
    connection.offer(true, &mut extensions);
    assert!(extensions.is_empty());

    let task = Arc::<Task>::default();
    let waker = Waker::from(task.clone());
    let mut next =
        || Pin::new(&mut events).poll_next(&mut Context::from_waker(&waker)).map(Option::transpose);
    let woken = || task.0.load(Ordering::SeqCst);
    let say = async |text: &str| {
        let before = (woken(), tally.direct.load(Ordering::SeqCst));
        sender.send(text.into()).expect("it is read");
        while (woken(), tally.direct.load(Ordering::SeqCst)) == before {
            yield_now().await;
        }
    };

    // hyper may still have the head.
    assert!(next().is_pending());
    say("a").await;
    assert_eq!(woken(), 1);
    assert_eq!(next(), Poll::Ready(Ok(Some("a".into()))));
    io.flush().await.expect("open");
    say("b").await;
    assert_eq!(woken(), 2, "the body was not asked behind what it gave");
    assert_eq!(next(), Poll::Ready(Ok(Some("b".into()))));
    assert!(next().is_pending());
    io.write_all(b"by hyper, ").await.expect("open");
    io.flush().await.expect("open");
    say("0123456789abc").await;
    say("d").await;
    let mut read = [0; 32];
    let expected = b"by hyper, D\r\n0123456789abc\r\n1\r\nd\r\n";
    within(client.read_exact(&mut read)).await.expect("open");
    assert_eq!(read, expected[..32]);
    assert_eq!((woken(), tally.direct.load(Ordering::SeqCst)), (2, 2));
    // The end is hyper's.
    drop(sender);
    while woken() < 3 {
        yield_now().await;
    }
    assert_eq!(next(), Poll::Ready(Ok(None)));
}

/// A server whose `/SEED` tells parts that follow from the seed, and whose `/open` tells what the test says.
struct Server {
    address: SocketAddr,
    tally: Arc<Tally>,
    /// Of answers of `/open`.
    opened: mpsc::UnboundedReceiver<mpsc::UnboundedSender<Vec<u8>>>,
}

#[derive(Clone)]
struct App {
    tally: Arc<Tally>,
    opened: mpsc::UnboundedSender<mpsc::UnboundedSender<Vec<u8>>>,
}

impl Server {
    fn start(flags: &[&str], send_buffer: Option<u32>) -> Self {
        let command = RouterArgs::augment_args(clap::Command::new("penstock"));
        let matches = command.get_matches_from([&["penstock"], flags].concat());
        let args = RouterArgs::from_arg_matches(&matches).expect("flags");
        let socket = TcpSocket::new_v4().expect("a socket");
        if let Some(bytes) = send_buffer {
            socket.set_send_buffer_size(bytes).expect("of a listener, and so of what it accepts");
        }
        socket.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
        let listener = socket.listen(100).expect("bound");
        let address = listener.local_addr().expect("bound");
        let tally = Arc::<Tally>::default();
        let (sender, opened) = mpsc::unbounded_channel();
        let app = Router::new()
            .route("/{seed}", get(answer))
            .with_state(App { tally: tally.clone(), opened: sender });
        tokio::spawn(serve(
            listener,
            None,
            ConnectionLimits::of(&args, CancellationToken::new()),
            ConnectionLimiter::of(&args),
            app,
            CancellationToken::new(),
        ));
        Self { address, tally, opened }
    }

    async fn connect(&self, receive_buffer: Option<u32>) -> BufReader<TcpStream> {
        let socket = TcpSocket::new_v4().expect("a socket");
        if let Some(bytes) = receive_buffer {
            socket.set_recv_buffer_size(bytes).expect("before it connects");
        }
        BufReader::new(within(socket.connect(self.address)).await.expect("it listens"))
    }

    /// An answer whose events go directly, as the test says them.
    async fn open(&mut self) -> (BufReader<TcpStream>, mpsc::UnboundedSender<Vec<u8>>) {
        let mut client = self.connect(None).await;
        client.write_all(&request("open", "1.1")).await.expect("open");
        let said = within(self.opened.recv()).await.expect("it serves");
        said.send(b"first".to_vec()).expect("it is read");
        assert!(head(&mut client).await.contains("transfer-encoding: chunked"));
        assert_eq!(chunk(&mut client).await.as_deref(), Some(b"first".as_slice()));
        let directly = self.tally.direct.load(Ordering::Relaxed);
        while self.tally.direct.load(Ordering::Relaxed) == directly {
            said.send(b"more".to_vec()).expect("it is read");
            within(chunk(&mut client)).await.expect("more");
        }
        (client, said)
    }
}

async fn answer(State(app): State<App>, Path(seed): Path<String>) -> Response<Body> {
    let (sender, said) = Said::new(&app.tally);
    match seed.parse() {
        Err(_) => app.opened.send(sender).expect("the test goes on"),
        Ok(seed) => {
            tokio::spawn(async move {
                let mut random = StdRng::seed_from_u64(seed);
                for part in parts(seed) {
                    // Its client may be gone.
                    let _ = sender.send(part);
                    if random.random_ratio(1, 2) {
                        for _ in 0..random.random_range(0..20) {
                            yield_now().await;
                        }
                    }
                    if random.random_ratio(1, 10) {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                }
            });
        }
    }
    let (events, answer) = body(said);
    let mut response = Response::new(Body::from_stream(events));
    response.extensions_mut().insert(answer);
    response
}

fn parts(seed: u64) -> Vec<Vec<u8>> {
    let mut random = StdRng::seed_from_u64(seed + 1);
    let count = random.random_range(1..200);
    (0..count)
        .map(|number| {
            let most = if random.random_ratio(1, 10) { 20_000 } else { 300 };
            format!("{seed}.{number} {}\n", "x".repeat(random.random_range(0..most))).into_bytes()
        })
        .collect()
}

fn request(path: &str, version: &str) -> Vec<u8> {
    format!("GET /{path} HTTP/{version}\r\nHost: x\r\n\r\n").into_bytes()
}

async fn head(client: &mut BufReader<TcpStream>) -> String {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        let read = within(client.read_line(&mut head)).await.expect("lines");
        assert_ne!(read, 0, "it closed within a head");
    }
    assert!(head.starts_with("HTTP/1.1 200") || head.starts_with("HTTP/1.0 200"), "{head}");
    head
}

/// `None` is the last one.
async fn chunk(client: &mut BufReader<TcpStream>) -> Option<Vec<u8>> {
    let mut size = String::new();
    within(client.read_line(&mut size)).await.expect("a line");
    let size = size.strip_suffix("\r\n").and_then(|size| usize::from_str_radix(size, 16).ok());
    let size = size.unwrap_or_else(|| panic!("no size of a chunk"));
    let mut bytes = vec![0; size + 2];
    within(client.read_exact(&mut bytes)).await.expect("a whole chunk");
    assert!(bytes.ends_with(b"\r\n"));
    bytes.truncate(size);
    (size > 0).then_some(bytes)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn nothing_is_lost_or_mixed_however_slowly_clients_read_and_however_often_they_ask() {
    let server = Server::start(&[], Some(4_096));
    let clients = (0..24).map(|client| {
        let server = &server;
        async move {
            let is_slow = client % 3 == 0;
            let mut connection = server.connect((client % 2 == 0).then_some(2_048)).await;
            let seeds: Vec<u64> = (0..4).map(|round| client * 10 + round).collect();
            // Some ask for all at once.
            let requests: Vec<_> = seeds.iter().map(|seed| request(&seed.to_string(), "1.1")).collect();
            let is_pipelined = client % 4 == 1;
            if is_pipelined {
                connection.write_all(&requests.concat()).await.expect("open");
            }
            for (seed, request) in seeds.into_iter().zip(&requests) {
                if !is_pipelined {
                    connection.write_all(request).await.expect("open");
                }
                head(&mut connection).await;
                let mut all = Vec::new();
                while let Some(chunk) = chunk(&mut connection).await {
                    all.extend(chunk);
                    if is_slow {
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                }
                assert!(all == parts(seed).concat(), "the answer to {seed} came otherwise");
            }
        }
    });
    join_all(clients).await;
    let (direct, by_hyper) = (&server.tally.direct, &server.tally.by_hyper);
    let (direct, by_hyper) = (direct.load(Ordering::Relaxed), by_hyper.load(Ordering::Relaxed));
    assert!(direct > 200 && by_hyper > 200, "{direct} directly, {by_hyper} by hyper");
}

#[tokio::test]
async fn a_client_without_chunks_gets_its_events_from_hyper() {
    let server = Server::start(&[], None);
    let mut client = server.connect(None).await;
    client.write_all(&request("7", "1.0")).await.expect("open");
    assert!(!head(&mut client).await.contains("chunked"));
    let mut all = Vec::new();
    within(client.read_to_end(&mut all)).await.expect("it closes");
    assert!(all == parts(7).concat());
    assert_eq!(server.tally.direct.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_client_that_leaves_is_noticed_whether_events_come_or_not() {
    let mut server = Server::start(&[], None);
    let (silent, said) = server.open().await;
    drop(silent);
    within(said.closed()).await;
    let (told, said) = server.open().await;
    drop(told);
    while said.send(b"more".to_vec()).is_ok() {
        within(yield_now()).await;
    }
}

#[tokio::test]
async fn a_client_that_reads_no_more_is_given_up_and_bounded_until_then() {
    let mut server = Server::start(&["--write-timeout", "1"], Some(4_096));
    let (_client, said) = server.open().await;
    let began = Instant::now();
    let mut sent = 0u32;
    while said.send(vec![b'x'; 1_000]).is_ok() {
        sent += 1;
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(began.elapsed() < DEADLINE, "after {sent}");
    }
    assert!(began.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn a_panic_where_events_are_made_ends_one_connection() {
    let mut server = Server::start(&[], None);
    let ((mut broken, breaks), (mut other, said)) = (server.open().await, server.open().await);
    breaks.send(vec![0]).expect("it is read");
    said.send(b"on".to_vec()).expect("it is read");
    assert_eq!(chunk(&mut other).await.as_deref(), Some(b"on".as_slice()));
    let mut rest = Vec::new();
    let _ = within(broken.read_to_end(&mut rest)).await;
    assert!(rest.is_empty());
    said.send(b"still on".to_vec()).expect("it is read");
    assert_eq!(chunk(&mut other).await.as_deref(), Some(b"still on".as_slice()));
    drop(said);
    assert_eq!(chunk(&mut other).await, None);
    // And on.
    other.write_all(&request("3", "1.1")).await.expect("open");
    head(&mut other).await;
    let mut all = Vec::new();
    while let Some(chunk) = chunk(&mut other).await {
        all.extend(chunk);
    }
    assert!(all == parts(3).concat());
}
