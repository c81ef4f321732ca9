//! Accepts connections and speaks HTTP/1.1 and HTTP/2 (prior knowledge) on them. A connection costs what it is
//! worth: one that sends nothing, a head that never ends, a client that does not read, and connections beyond
//! `--max-connections` are closed.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use bytes::Bytes;
use futures::FutureExt;
use hyper::body::{Frame, SizeHint};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::Service;

use crate::config::RouterArgs;
use crate::http::error::{ApiError, Family};
use crate::http::stall::Stall;

/// Until a new connection has agreed on its encryption.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How often a silent HTTP/2 client is asked whether it is there, and how long it may take to answer.
const PING: Duration = Duration::from_secs(20);
/// How long connections may take to say goodbye once nothing is under way. HTTP/2 asks the client for a last
/// word (RFC 9113, 6.8), and not every client gives it.
const GOODBYE: Duration = Duration::from_millis(500);
/// Headers of one request. HTTP/2 bounds only their size together.
const HEADERS: usize = 128;
/// Requests on one connection of HTTP/2 at once.
const STREAMS: u32 = 256;
/// Streams that a client of HTTP/2 began and took back before they were looked at, and streams that were
/// reset for its errors: more end the connection (CVE-2023-44487, CVE-2025-8671).
const RESETS: usize = 32;
/// What one stream of HTTP/2 may have waiting to be sent.
const UNSENT: usize = 64 << 10;

/// What clients may take of a connection's time and memory.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    max_connections: usize,
    max_header_size: u32,
    idle: Duration,
    first_head: Duration,
    write: Duration,
}

impl Patience {
    pub fn of(args: &RouterArgs) -> Self {
        Self {
            max_connections: args.max_connections as usize,
            max_header_size: args.max_header_size,
            idle: Duration::from_secs_f64(args.idle_timeout),
            first_head: Duration::from_secs_f64(args.header_timeout),
            write: Duration::from_secs_f64(args.write_timeout),
        }
    }

    fn builder(&self) -> auto::Builder<TokioExecutor> {
        let mut builder = auto::Builder::new(TokioExecutor::new());
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
            .max_send_buf_size(UNSENT);
        builder
    }
}

/// Serves until `stop`, then closes every connection after the answer that is under way on it. Dropped,
/// it closes them at once.
pub async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    patience: Patience,
    app: Router,
    stop: CancellationToken,
) {
    let builder = patience.builder();
    let refusal = refusal();
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok((stream, _)) => {
                // Those that ended meanwhile do not count.
                while connections.join_next().now_or_never().flatten().is_some() {}
                if connections.len() >= patience.max_connections {
                    refuse(stream, &refusal, tls.is_some());
                    continue;
                }
                // Tokens are small and follow each other slowly: none may wait for the next.
                let _ = stream.set_nodelay(true);
                let stream = Stall::new(stream, patience.write);
                let (app, builder, stop) = (app.clone(), builder.clone(), stop.clone());
                match tls.clone() {
                    None => connections.spawn(converse(stream, app, builder, patience, stop)),
                    Some(tls) => connections.spawn(async move {
                        match timeout(HANDSHAKE, tls.accept(stream)).await {
                            Ok(Ok(stream)) => converse(stream, app, builder, patience, stop).await,
                            Ok(Err(error)) => tracing::debug!("no encryption was agreed on: {error}"),
                            Err(_) => tracing::debug!("a connection never agreed on its encryption"),
                        }
                    }),
                };
            }
            // The client is gone already, or this process has no file descriptors left: those come back
            // as connections end.
            Err(error) => {
                tracing::warn!("cannot accept a connection: {error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    let all_ended = async { while connections.join_next().await.is_some() {} };
    if timeout(GOODBYE, all_ended).await.is_err() {
        tracing::debug!("some connections were still open at the end");
    }
}

/// All that is said to a client whose connection is one too many: an answer of HTTP/1.1, since nothing that
/// it sent was read.
fn refusal() -> Vec<u8> {
    let error = ApiError::unavailable("as many connections are open as are allowed");
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
fn refuse(mut stream: TcpStream, refusal: &[u8], is_encrypted: bool) {
    tracing::debug!("a connection was refused: as many are open as --max-connections allows");
    if !is_encrypted {
        let _ = stream.write(refusal).now_or_never();
    }
}

/// What happens on one connection, for its idle timeout.
struct Activity {
    accepted: Instant,
    /// Requests.
    under_way: AtomicU64,
    /// When a request last began or ended, in nanoseconds after `accepted`; 0 before the first.
    changed: AtomicU64,
}

impl Activity {
    fn changes(&self) {
        let after = self.accepted.elapsed().as_nanos() as u64;
        self.changed.store(after.max(1), Ordering::Relaxed);
    }

    /// Since when no request has been under way; `None` if there was none yet.
    fn idle_since(&self) -> Option<Instant> {
        match (self.under_way.load(Ordering::Relaxed), self.changed.load(Ordering::Relaxed)) {
            (_, 0) => None,
            (0, changed) => Some(self.accepted + Duration::from_nanos(changed)),
            _ => Some(Instant::now()),
        }
    }
}

/// Held by a request until the last byte of its answer was handed over.
struct UnderWay(Arc<Activity>);

impl UnderWay {
    fn begin(activity: &Arc<Activity>) -> Self {
        activity.under_way.fetch_add(1, Ordering::Relaxed);
        activity.changes();
        Self(activity.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.changes();
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    app: Router,
    builder: auto::Builder<TokioExecutor>,
    patience: Patience,
    stop: CancellationToken,
) {
    let activity = Activity { accepted: Instant::now(), under_way: 0.into(), changed: 0.into() };
    let activity = Arc::new(activity);
    let heard = activity.clone();
    let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
        let under_way = UnderWay::begin(&heard);
        app.clone().call(request).map(|response| {
            response
                .map(|response: Response<Body>| response.map(|body| Answer { body, _under_way: under_way }))
        })
    });
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    // The timeout for heads begins only when the protocol is known, which takes a few bytes; and HTTP/2 has
    // none, nor one for connections without a request.
    let timer = tokio::time::sleep(patience.first_head);
    tokio::pin!(timer);
    let mut closing = false;
    let result = loop {
        tokio::select! {
            result = &mut connection => break result,
            () = &mut timer => {
                let Some(since) = activity.idle_since() else { return };
                let due = since + patience.idle;
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
            () = stop.cancelled(), if !closing => {
                connection.as_mut().graceful_shutdown();
                closing = true;
            }
        }
    };
    if let Err(error) = result {
        // Clients leave; the request under way was dropped with the connection.
        tracing::debug!("a connection ended: {error}");
    }
}

/// An answer's body that knows when it is over.
struct Answer {
    body: Body,
    _under_way: UnderWay,
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, DuplexStream, duplex};

    use super::*;

    #[test]
    fn the_refusal_is_a_whole_answer_with_the_error_of_every_other_503() {
        let refusal = String::from_utf8(refusal()).expect("text");
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
    fn connect(work: Duration) -> DuplexStream {
        let answer = axum::routing::get(async move || {
            tokio::time::sleep(work).await;
            "answer"
        });
        let patience = Patience {
            max_connections: 1,
            max_header_size: 16_384,
            idle: Duration::from_secs(5),
            first_head: Duration::from_secs(2),
            write: Duration::from_secs(10),
        };
        let (client, server) = duplex(1 << 16);
        let app = Router::new().route("/", answer);
        tokio::spawn(converse(server, app, patience.builder(), patience, CancellationToken::new()));
        client
    }

    /// After what time the server closes, and the kinds of the frames that it sends until then. The client
    /// asks at the beginning, and `again` after some time.
    async fn lasts(work: u64, again: Option<u64>, answers_pings: bool) -> (Duration, Vec<u8>) {
        let (mut reader, mut writer) = tokio::io::split(connect(Duration::from_secs(work)));
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
}
