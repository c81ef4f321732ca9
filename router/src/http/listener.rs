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
use crate::http::stall::Stall;

/// Until a new connection has agreed on its encryption.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How often a silent HTTP/2 client is asked whether it is there, and how long it may take to answer.
const PING: Duration = Duration::from_secs(20);
/// How long connections may take to say goodbye once nothing is under way.
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

/// All that is said to a client whose connection is one too many.
const FULL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 2\r\n\
    connection: close\r\ncontent-length: 84\r\n\r\n\
    {\"error\":\"as many connections are open as are allowed\",\"error_type\":\"unavailable\"}\r\n";

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
                    refuse(stream, tls.is_some());
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

/// Says why, if that can be said at once, and closes.
fn refuse(mut stream: TcpStream, is_encrypted: bool) {
    tracing::debug!("a connection was refused: as many are open as --max-connections allows");
    if !is_encrypted {
        let _ = stream.write(FULL).now_or_never();
    }
}

/// What happens on one connection, for its idle timeout: requests under way, and how often one began or
/// ended.
#[derive(Default)]
struct Activity {
    under_way: AtomicU64,
    changes: AtomicU64,
}

/// Held by a request until the last byte of its answer was handed over.
struct UnderWay(Arc<Activity>);

impl UnderWay {
    fn begin(activity: &Arc<Activity>) -> Self {
        activity.under_way.fetch_add(1, Ordering::Relaxed);
        activity.changes.fetch_add(1, Ordering::Relaxed);
        Self(activity.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
        self.0.changes.fetch_add(1, Ordering::Relaxed);
    }
}

async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    app: Router,
    builder: auto::Builder<TokioExecutor>,
    patience: Patience,
    stop: CancellationToken,
) {
    let activity = Arc::new(Activity::default());
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
    let mut seen = 0;
    let mut closing = false;
    let result = loop {
        tokio::select! {
            result = &mut connection => break result,
            () = &mut timer, if !closing => {
                let changes = activity.changes.load(Ordering::Relaxed);
                if changes == 0 {
                    return;
                }
                let is_idle = activity.under_way.load(Ordering::Relaxed) == 0 && changes == seen;
                if is_idle {
                    connection.as_mut().graceful_shutdown();
                    closing = true;
                }
                seen = changes;
                timer.as_mut().reset(Instant::now() + patience.idle);
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
    use super::*;

    #[test]
    fn the_refusal_is_as_long_as_it_says() {
        let text = std::str::from_utf8(FULL).expect("ASCII");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.ends_with(&format!("content-length: {}", body.len())), "{}", body.len());
        serde_json::from_str::<serde_json::Value>(body).expect("JSON");
    }
}
