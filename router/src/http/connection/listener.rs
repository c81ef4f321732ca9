//! Accepts connections and serves HTTP/1.1 and HTTP/2 (prior knowledge) on them. Closes connections over a limit
//! (`limiter`), idle ones, those whose request head does not arrive in time, and those whose client does not read its
//! response (`write_timeout`).

use std::net::IpAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Method, Request, Response, Version, header};
use axum::middleware;
use futures::FutureExt;
use futures::future::poll_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::Service;

use crate::address::{self, Network};
use crate::config::RouterArgs;
use crate::http::connection::backpressure::{PacedBody, StreamExecutor};
use crate::http::connection::direct::{self, Connection, DirectIo, Queue, SharedSocket};
use crate::http::connection::header_guard::HeaderGuard;
use crate::http::connection::limiter::{Activity, Admission, ConnectionLimiter, InFlight, LimitReached};
use crate::http::connection::wake_gate::WakeGate;
use crate::http::connection::write_timeout::WriteTimeout;
use crate::http::error::{ApiError, Family};
use crate::http::shares::Shares;
use crate::http::unplaced::{self, Unplaced};
use crate::http::vertex::Aliases;
use crate::http::{host, routes};
use crate::telemetry::metrics;

/// For the TLS handshake of a new connection.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How often a silent HTTP/2 client is asked whether it is there, and how long it may take to answer.
const PING: Duration = Duration::from_secs(20);
/// How long a graceful shutdown of a connection may take once nothing is in flight. HTTP/2 asks the client for a last
/// word (RFC 9113, 6.8), and not every client gives it.
const GOODBYE: Duration = Duration::from_millis(500);
/// Headers of one request. HTTP/2 bounds only their size together.
const HEADERS: usize = 128;
/// Requests on one connection of HTTP/2 at once.
const STREAMS: u32 = 256;
/// Streams that a client of HTTP/2 began and took back before they were looked at, and streams that were
/// reset for its errors: more end the connection (CVE-2023-44487, CVE-2025-8671).
const RESETS: usize = 32;
/// What one stream of HTTP/2 may have waiting to be sent, and one connection in the kernel.
pub const MAX_UNSENT: u32 = 64 << 10;

/// Requests on a connection of HTTP/2 whose refusal has a body, where there is no memory for more of them.
const REFUSALS: u64 = 16;

/// How long a connection of the probes' reserve may last.
const PROBE: Duration = Duration::from_secs(5);

/// From which client a request comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientAddress(pub IpAddr);

/// Timeouts and sizes of one connection.
#[derive(Clone, Debug)]
pub struct ConnectionLimits {
    max_header_size: u32,
    idle: Duration,
    first_head: Duration,
    write: Duration,
    /// Paths that are answered in the reserve, too.
    probes: Arc<[String]>,
    proxies: Arc<[Network]>,
    /// For requests that have no place.
    memory: Arc<Shares>,
    /// The server is about to stop.
    draining: CancellationToken,
}

impl ConnectionLimits {
    pub fn of(args: &RouterArgs, draining: CancellationToken) -> Self {
        let alias = Aliases::of(args).health;
        Self {
            max_header_size: args.max_header_size,
            idle: Duration::from_secs_f64(args.idle_timeout),
            first_head: Duration::from_secs_f64(args.header_timeout),
            write: Duration::from_secs_f64(args.write_timeout),
            probes: routes::probes().map(String::from).chain(alias).collect(),
            proxies: args.trusted_proxy.iter().copied().collect(),
            memory: unplaced::memory(args),
            draining,
        }
    }

    fn is_probe(&self, request: &Request<hyper::body::Incoming>) -> bool {
        matches!(*request.method(), Method::GET | Method::HEAD)
            && self.probes.iter().any(|path| path == request.uri().path())
    }

    fn builder(&self) -> auto::Builder<StreamExecutor> {
        let mut builder = auto::Builder::new(StreamExecutor::new(self.write, self.draining.clone()));
        builder
            .http1()
            .timer(TokioTimer::new())
            // Counted from the end of the last answer: also how long an idle connection is kept.
            .header_read_timeout(self.idle)
            // Events are small: copied into one buffer they cost less than as a list of slices.
            .writev(false)
            .max_buf_size(self.max_header_size as usize)
            .max_headers(HEADERS);
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(PING)
            .keep_alive_timeout(PING)
            .max_header_list_size(self.max_header_size)
            .max_concurrent_streams(STREAMS)
            .max_pending_accept_reset_streams(RESETS)
            .max_local_error_reset_streams(RESETS)
            .max_send_buf_size(MAX_UNSENT as usize);
        builder
    }
}

/// Serves until `stop`, then closes every connection after the response in flight on it. Dropped,
/// it closes them at once.
pub async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    limits: ConnectionLimits,
    mut limiter: ConnectionLimiter,
    app: Router,
    stop: CancellationToken,
) {
    let (builder, queue) = (limits.builder(), Queue::new());
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(ended) = connections.join_next_with_id() => {
                limiter.release(id_of(&ended));
                continue;
            }
            () = stop.cancelled() => break,
        };
        let (stream, peer) = match accepted {
            Ok((stream, peer)) => (stream, peer.ip()),
            // The client is gone already, or this process has no file descriptors left: those come back
            // as connections end.
            Err(error) => {
                tracing::warn!("cannot accept a connection: {error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        // Connections that ended meanwhile do not count.
        while let Some(ended) = connections.join_next_with_id().now_or_never().flatten() {
            limiter.release(id_of(&ended));
        }
        let admission = loop {
            match limiter.admit(peer) {
                Ok(admission) => break Ok(admission),
                Err((reached, None)) => break Err(reached),
                Err((_, Some(waiting))) => {
                    tracing::debug!("an idle connection was closed for a new one");
                    waiting.abort();
                    // Its descriptor is given back with its task.
                    match connections.join_next_with_id().await {
                        Some(ended) => limiter.release(id_of(&ended)),
                        None => limiter.release(waiting.id()),
                    }
                }
            }
        };
        let admission = match admission {
            Ok(admission) => admission,
            Err(reached) => {
                refuse(stream, reached, tls.is_some());
                continue;
            }
        };
        // Tokens are small and follow each other slowly: none may wait for the next.
        let _ = stream.set_nodelay(true);
        let (write_timeout, draining) = (limits.write, limits.draining.clone());
        let activity = Activity::begin();
        let mut accepted =
            Accepted { activity: activity.clone(), peer, admission, limits: limits.clone(), direct: None };
        let (app, builder, stop) = (app.clone(), builder.clone(), stop.clone());
        let task = match tls.clone() {
            None => {
                let (stream, direct) = SharedSocket::new(stream, queue.clone());
                accepted.direct = Some(direct.clone());
                let stream = WriteTimeout::new(stream, write_timeout, draining);
                let stream = DirectIo::new(stream, direct);
                connections.spawn(serve_connection(stream, app, builder, accepted, stop))
            }
            Some(tls) => connections.spawn(async move {
                let stream = WriteTimeout::new(stream, write_timeout, draining);
                match timeout(HANDSHAKE, tls.accept(stream)).await {
                    Ok(Ok(stream)) => serve_connection(stream, app, builder, accepted, stop).await,
                    Ok(Err(error)) => tracing::debug!("no encryption was agreed on: {error}"),
                    Err(_) => tracing::debug!("a connection never agreed on its encryption"),
                }
            }),
        };
        limiter.register(task, activity, peer, admission);
    }
    drop(listener);
    let all_ended = async { while connections.join_next().await.is_some() {} };
    if timeout(GOODBYE, all_ended).await.is_err() {
        tracing::debug!("some connections were still open at the end");
    }
}

fn id_of(ended: &Result<(Id, ()), JoinError>) -> Id {
    match ended {
        Ok((id, ())) => *id,
        Err(error) => error.id(),
    }
}

/// Why a request is not taken, in the words of every other 503.
fn too_many_connections(reached: LimitReached) -> ApiError {
    ApiError::unavailable(match reached {
        LimitReached::PerAddress => "as many connections of this address are open as are allowed",
        LimitReached::Total => "as many connections are open as are allowed",
    })
}

/// All that is said to a client whose connection is one too many: an answer of HTTP/1.1, since nothing that
/// it sent was read.
fn refusal(reached: LimitReached) -> Vec<u8> {
    let error = too_many_connections(reached);
    let (head, body) = (error.response(Family::Tgi), error.body(Family::Tgi));
    let (status, length) = (head.status(), body.len());
    let mut text =
        format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n").into_bytes();
    for (name, value) in head.headers() {
        text.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    text.extend_from_slice(b"\r\n");
    text.extend(body);
    text
}

/// Says why, if that can be said at once, and closes.
fn refuse(mut stream: TcpStream, reached: LimitReached, is_encrypted: bool) {
    let (flag, limit) = match reached {
        LimitReached::PerAddress => ("--max-connections-per-address", "address"),
        LimitReached::Total => ("--max-connections", "total"),
    };
    tracing::debug!("a connection was refused: as many are open as {flag} allows");
    metrics::connection_refused(limit);
    if !is_encrypted && matches!(stream.write(&refusal(reached)).now_or_never(), Some(Ok(_))) {
        let cause = too_many_connections(reached).cause;
        metrics::error(cause.code());
        metrics::answered("unknown", cause.status());
    }
}

/// In the extensions of a request that is not taken: why.
#[derive(Clone)]
struct NotTaken(ApiError);

/// The layer that answers such a request: around all that would do something for it, and inside of what names, counts and logs answers.
pub async fn answer_not_taken(mut request: Request<Body>, next: middleware::Next) -> Response<Body> {
    match request.extensions_mut().remove() {
        Some(NotTaken(error)) => error.response(Family::of(request.uri().path())),
        None => next.run(request).await,
    }
}

/// What comes next on a connection.
enum Next<T> {
    Ended(T),
    /// One of its timeouts may be over.
    Timer,
    /// The server stops.
    Stop,
}

/// An accepted connection: its client, and what it may request.
struct Accepted {
    activity: Arc<Activity>,
    peer: IpAddr,
    admission: Admission,
    limits: ConnectionLimits,
    /// Where it has one.
    direct: Option<Connection>,
}

/// Without a body, which a client might not take: its status says enough.
fn bare(mut response: Response<Body>) -> Response<Body> {
    for of_body in [header::CONTENT_LENGTH, header::CONTENT_TYPE] {
        response.headers_mut().remove(of_body);
    }
    response.map(|_| Body::empty())
}

async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    app: Router,
    builder: auto::Builder<StreamExecutor>,
    accepted: Accepted,
    stop: CancellationToken,
) {
    let Accepted { activity, peer, admission, limits, direct } = accepted;
    let (heard, asked) = (activity.clone(), limits.clone());
    let service = hyper::service::service_fn(move |mut request: Request<hyper::body::Incoming>| {
        let in_flight = InFlight::begin(&heard);
        let forwarded = request.headers().get_all("x-forwarded-for").iter().map(HeaderValue::as_bytes);
        let client = ClientAddress(address::client(peer, &asked.proxies, forwarded));
        request.extensions_mut().insert(client);
        let is_probe = asked.is_probe(&request);
        let unplaced = Unplaced::begin(&asked.memory, client, request.headers());
        // Without memory for it, nothing is to be held for the answer of a probe, nor for many refusals.
        let is_bare = unplaced.is_err() && (is_probe || heard.in_flight() > REFUSALS);
        let mut refused = None;
        let unplaced = match unplaced {
            Ok(unplaced) => {
                request.extensions_mut().insert(unplaced.clone());
                Some(unplaced)
            }
            Err(error) => {
                tracing::debug!("there is no memory for a request: {error}");
                refused = Some(error).filter(|_| !is_probe);
                None
            }
        };
        if let Err(error) = host::check_framing(request.headers()) {
            refused = Some(error);
        } else if admission == Admission::ProbesOnly && !is_probe {
            refused = Some(too_many_connections(LimitReached::Total));
        }
        let last = refused.is_some() || admission == Admission::ProbesOnly;
        let closes = last && request.version() <= Version::HTTP_11;
        let takes_chunks = direct::takes_chunks(&request);
        let direct = direct.clone();
        if let Some(error) = refused {
            request.extensions_mut().insert(NotTaken(error));
        }
        app.clone().call(request).map(move |response| {
            response.map(|mut response: Response<Body>| {
                if closes {
                    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
                }
                if is_bare {
                    response = bare(response);
                }
                if let Some(direct) = direct {
                    direct.offer(takes_chunks, response.extensions_mut());
                }
                response.map(|body| PacedBody::new(body, (in_flight, unplaced)))
            })
        })
    });
    let connection = builder.serve_connection(TokioIo::new(HeaderGuard::new(stream)), service);
    tokio::pin!(connection);
    // The timeout for heads begins only when the protocol is known, which takes a few bytes; and HTTP/2 has
    // none, nor one for connections without a request.
    let first_head =
        if admission == Admission::ProbesOnly { PROBE.min(limits.first_head) } else { limits.first_head };
    let timer = tokio::time::sleep(first_head);
    tokio::pin!(timer);
    let stopped = stop.cancelled();
    tokio::pin!(stopped);
    let mut closing = false;
    // Neither is polled for every token.
    let mut aside = WakeGate::default();
    let result = loop {
        let next = poll_fn(|context| {
            if let Poll::Ready(result) = connection.as_mut().poll(context) {
                return Poll::Ready(Next::Ended(result));
            }
            aside.poll(context, |context| {
                if timer.as_mut().poll(context).is_ready() {
                    return Poll::Ready(Next::Timer);
                }
                match !closing && stopped.as_mut().poll(context).is_ready() {
                    true => Poll::Ready(Next::Stop),
                    false => Poll::Pending,
                }
            })
        });
        match next.await {
            Next::Ended(result) => break result,
            Next::Timer => {
                let Some(since) = activity.idle_since().filter(|_| admission == Admission::Normal) else {
                    return;
                };
                let due = since + limits.idle;
                if Instant::now() < due {
                    timer.as_mut().reset(due);
                } else if closing {
                    return;
                } else {
                    connection.as_mut().graceful_shutdown();
                    closing = true;
                    timer.as_mut().reset(Instant::now() + GOODBYE);
                }
            }
            Next::Stop => {
                connection.as_mut().graceful_shutdown();
                closing = true;
            }
        }
    };
    if let Err(error) = result {
        // Clients leave; the request in flight was dropped with the connection.
        tracing::debug!("a connection ended: {error}");
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args, FromArgMatches};
    use tokio::io::{AsyncReadExt, DuplexStream, duplex};
    use tokio_rustls::rustls;

    use super::*;

    #[test]
    fn the_refusal_is_a_whole_answer_with_the_error_of_every_other_503() {
        let refusal = String::from_utf8(refusal(LimitReached::Total)).expect("text");
        let (head, body) = refusal.split_once("\r\n\r\n").expect("a head and a body");
        let mut lines = head.split("\r\n");
        assert_eq!(lines.next(), Some("HTTP/1.1 503 Service Unavailable"));
        let mut lines: Vec<_> = lines.collect();
        lines.sort();
        let length = format!("content-length: {}", body.len());
        assert_eq!(lines, ["connection: close", &length, "content-type: application/json", "retry-after: 2"]);
        let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
        let expected = "as many connections are open as are allowed";
        assert_eq!(body, serde_json::json!({"error": expected, "error_type": null}));
    }

    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
    const HEADERS_FRAME: u8 = 1;
    const PING: u8 = 6;
    const GOAWAY: u8 = 7;
    const ACK: u8 = 1;

    /// `GET /`, whole, on this stream: three entries of HPACK's static table (RFC 7541, appendix A).
    fn get(stream: u8) -> [u8; 12] {
        [0, 0, 3, 1, 0x5, 0, 0, 0, stream, 0x82, 0x86, 0x84]
    }

    /// A connection to a server that answers after `work` and closes what is idle for 5 s.
    fn connect(work: Duration, memory: Arc<Shares>) -> DuplexStream {
        let answer = axum::routing::get(async move || {
            tokio::time::sleep(work).await;
            "answer"
        });
        let limits = ConnectionLimits {
            max_header_size: 16_384,
            idle: Duration::from_secs(5),
            first_head: Duration::from_secs(2),
            write: Duration::from_secs(10),
            probes: ["/probe".to_string()].into(),
            proxies: Arc::default(),
            memory,
            draining: CancellationToken::new(),
        };
        let (client, server) = duplex(1 << 16);
        let app = Router::new().route("/", answer.clone()).route("/probe", answer);
        let app = app.layer(middleware::from_fn(answer_not_taken));
        let builder = limits.builder();
        let peer = IpAddr::from([127, 0, 0, 1]);
        let accepted = Accepted {
            activity: Activity::begin(),
            peer,
            admission: Admission::Normal,
            limits,
            direct: None,
        };
        tokio::spawn(serve_connection(server, app, builder, accepted, CancellationToken::new()));
        client
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_never_begins_its_encryption_is_closed_in_time() {
        let config =
            rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .expect("known versions")
                .with_no_client_auth()
                .with_cert_resolver(Arc::new(rustls::server::ResolvesServerCertUsingSni::new()));
        let command = RouterArgs::augment_args(clap::Command::new("penstock"));
        let args = RouterArgs::from_arg_matches(&command.get_matches_from(["penstock"])).expect("flags");
        let stop = CancellationToken::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(serve(
            listener,
            Some(TlsAcceptor::from(Arc::new(config))),
            ConnectionLimits::of(&args, stop.clone()),
            ConnectionLimiter::of(&args),
            Router::new(),
            stop,
        ));
        let begun = Instant::now();
        let mut silent = TcpStream::connect(address).await.expect("open");
        let read = timeout(6 * HANDSHAKE, silent.read(&mut [0; 1])).await.expect("closed in time");
        assert_eq!((read.ok(), begun.elapsed().as_secs()), (Some(0), 10));
    }

    /// After what time the server closes, and the kinds of the frames that it sends until then. The client
    /// asks at the beginning, and `again` after some time.
    async fn lasts(work: u64, again: Option<u64>, answers_pings: bool) -> (Duration, Vec<u8>) {
        let memory = Shares::new(1 << 30);
        let (mut reader, mut writer) = tokio::io::split(connect(Duration::from_secs(work), memory));
        let begun = Instant::now();
        writer.write_all(&[PREFACE, SETTINGS, &get(1)].concat()).await.expect("open");
        let (sender, mut to_send) = tokio::sync::mpsc::unbounded_channel::<Vec<u8>>();
        let later = sender.clone();
        tokio::spawn(async move {
            while let Some(frame) = to_send.recv().await {
                let _ = writer.write_all(&frame).await;
            }
        });
        tokio::spawn(async move {
            if let Some(seconds) = again {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                let _ = later.send(get(3).to_vec());
            }
        });
        let (mut kinds, mut head) = (Vec::new(), [0; 9]);
        while reader.read_exact(&mut head).await.is_ok() {
            let [_, high, low, kind, flags, ..] = head;
            let mut payload = vec![0; usize::from(high) << 8 | usize::from(low)];
            reader.read_exact(&mut payload).await.expect("the rest of the frame");
            kinds.push(kind);
            if (kind, flags, answers_pings) == (PING, 0, true) {
                head[4] = ACK;
                let _ = sender.send([&head[..], &payload].concat());
            }
        }
        (begun.elapsed(), kinds)
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_of_http_2_is_closed_in_time() {
        for (work, again, answers_pings, seconds) in [
            (0, None, true, 5.0),
            // It is asked for a last word, and does not get long for it.
            (0, None, false, 5.5),
            (0, Some(4), true, 9.0),
            (0, Some(4), false, 9.5),
            (7, None, true, 12.0),
            (7, Some(4), false, 16.5),
        ] {
            let (took, kinds) = lasts(work, again, answers_pings).await;
            let case = format!("{work} {again:?} {answers_pings}: {took:?} {kinds:?}");
            let answers = kinds.iter().filter(|&&kind| kind == HEADERS_FRAME).count();
            assert_eq!(answers, 1 + usize::from(again.is_some()), "{case}");
            assert!(kinds.contains(&GOAWAY), "{case}");
            assert!((took.as_secs_f64() - seconds).abs() < 0.1, "{case}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_without_a_place_are_bounded_over_all_connections_and_probes_are_answered() {
        let memory = Shares::new(128 << 10);
        let ask = async |path: &str| {
            let mut client = connect(Duration::from_secs(3), memory.clone());
            let head = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
            client.write_all(head.as_bytes()).await.expect("open");
            client
        };
        let status = async |client: &mut DuplexStream| {
            let mut line = [0; 12];
            client.read_exact(&mut line).await.expect("an answer");
            String::from_utf8_lossy(&line[9..]).into_owned()
        };
        let mut held = Vec::new();
        for _ in 0..6 {
            held.push(ask("/").await);
            tokio::task::yield_now().await;
        }
        let mut refused = ask("/").await;
        let mut all = Vec::new();
        assert_eq!(status(&mut refused).await, "429");
        refused.read_to_end(&mut all).await.expect("it is closed");
        let text = String::from_utf8_lossy(&all);
        assert!(text.contains("retry-after: 2") && text.contains("--max-concurrent-requests"), "{text}");
        let mut probe = ask("/probe").await;
        assert_eq!(status(&mut probe).await, "200");
        let mut rest = [0; 200];
        let read = probe.read(&mut rest).await.expect("the rest of its head");
        let rest = String::from_utf8_lossy(&rest[..read]);
        assert!(rest.contains("content-length: 0\r\n") && rest.ends_with("\r\n\r\n"), "{rest}");
        for client in &mut held {
            assert_eq!(status(client).await, "200");
        }
        drop(held);
        assert_eq!(status(&mut ask("/").await).await, "200");
    }
}
