//! Accepts connections and speaks HTTP/1.1 and HTTP/2 (prior knowledge) on them. A connection that
//! sends nothing, or a head that never ends, is closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::Service;

/// Until the head of a request is complete, counted from the end of the last one: also how long an idle
/// connection is kept.
const HEAD: Duration = Duration::from_secs(75);
/// Until a new connection has sent its first request's head.
const FIRST_HEAD: Duration = Duration::from_secs(30);
/// Until a new connection has agreed on its encryption.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How often a silent HTTP/2 client is asked whether it is there, and how long it may take to answer.
const PING: Duration = Duration::from_secs(20);
/// How long connections may take to say goodbye once nothing is under way.
const GOODBYE: Duration = Duration::from_millis(500);

/// Serves until `stop`, then closes every connection after the answer that is under way on it. Dropped,
/// it closes them at once.
pub async fn serve(listener: TcpListener, tls: Option<TlsAcceptor>, app: Router, stop: CancellationToken) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING)
        .max_header_list_size(64 << 10);
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok((stream, _)) => {
                // Tokens are small and follow each other slowly: none may wait for the next.
                let _ = stream.set_nodelay(true);
                let (app, builder, stop) = (app.clone(), builder.clone(), stop.clone());
                match tls.clone() {
                    None => connections.spawn(converse(stream, app, builder, stop)),
                    Some(tls) => connections.spawn(async move {
                        match tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await {
                            Ok(Ok(stream)) => converse(stream, app, builder, stop).await,
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
    if tokio::time::timeout(GOODBYE, all_ended).await.is_err() {
        tracing::debug!("some connections were still open at the end");
    }
}

async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    app: Router,
    builder: auto::Builder<TokioExecutor>,
    stop: CancellationToken,
) {
    let spoke = Arc::new(AtomicBool::new(false));
    let heard = spoke.clone();
    let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
        heard.store(true, Ordering::Relaxed);
        app.clone().call(request)
    });
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    // The timeout for heads begins only when the protocol is known, which takes a few bytes.
    let first_head = tokio::time::sleep(FIRST_HEAD);
    tokio::pin!(first_head);
    let mut waiting = true;
    let mut stopping = false;
    let result = loop {
        tokio::select! {
            result = &mut connection => break result,
            () = &mut first_head, if waiting => {
                if !spoke.load(Ordering::Relaxed) {
                    return;
                }
                waiting = false;
            }
            () = stop.cancelled(), if !stopping => {
                connection.as_mut().graceful_shutdown();
                stopping = true;
            }
        }
    };
    if let Err(error) = result {
        // Clients leave; the request under way was dropped with the connection.
        tracing::debug!("a connection ended: {error}");
    }
}
