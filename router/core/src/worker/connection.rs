//! Connections to the ranks of a group, and what a failed call says of the rank that was called. Used by `group` for
//! the rare calls and by `stream` for the hot path.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::future::try_join_all;
use hyper_util::rt::TokioIo;
use penstock_proto::worker_client::WorkerClient;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Status};

use super::source::{Loss, LossKind, is_passing};

/// A worker that answers calls takes a connection at once; one that is frozen may do so without answering.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a rank that lost another one waits for that one's own failure to be seen, before it is blamed itself.
pub(super) const BLAME: Duration = Duration::from_secs(1);

/// A client for every rank.
pub(super) async fn connect(sockets: &[PathBuf]) -> Result<Vec<WorkerClient<Channel>>, Loss> {
    let dial = sockets.iter().zip(0..).map(|(socket, rank)| async move {
        let path = socket.clone();
        // Before the time begins that a worker has: a descriptor may have to be waited for.
        let mut reached = Some(reach(&path).await);
        let connector = tower::service_fn(move |_: Uri| {
            let (path, reached) = (path.clone(), reached.take());
            async move {
                match reached {
                    Some(reached) => reached.map(TokioIo::new),
                    None => UnixStream::connect(path).await.map(TokioIo::new),
                }
            }
        });
        // The address is not used: the connector knows the socket.
        let endpoint = Endpoint::from_static("http://worker")
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW);
        let connecting = endpoint.connect_with_connector(connector);
        match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
            Ok(Ok(channel)) => {
                let client = WorkerClient::new(channel);
                Ok(client.max_decoding_message_size(usize::MAX).max_encoding_message_size(usize::MAX))
            }
            Ok(Err(error)) => Err(Loss::of(
                rank,
                LossKind::Died,
                format!("cannot connect to {}: {error}", socket.display()),
            )),
            Err(_) => {
                Err(Loss::of(rank, LossKind::Hung, format!("{} takes no connection", socket.display())))
            }
        }
    });
    try_join_all(dial).await
}

/// A connection, once the system has a descriptor for it.
async fn reach(socket: &Path) -> io::Result<UnixStream> {
    loop {
        match UnixStream::connect(socket).await {
            Err(error) if is_passing(&error) => {
                tracing::warn!("cannot connect to {}: {error}; trying again", socket.display());
                tokio::time::sleep(PASSING).await;
            }
            connected => return connected,
        }
    }
}

/// Until a connection is tried again for which there was no descriptor.
const PASSING: Duration = Duration::from_millis(100);

/// HTTP/2 flow control has no part in the speed of a local socket.
const WINDOW: u32 = 16 << 20;

/// What a call's failure says of the rank that was called.
pub(super) fn loss(rank: u32, status: &Status) -> Loss {
    let kind = match status.code() {
        // Its answer to a plan that is not the one it expects, or not one at all.
        Code::FailedPrecondition | Code::InvalidArgument => LossKind::OutOfStep,
        Code::DeadlineExceeded => LossKind::Hung,
        Code::Aborted => LossKind::PeerLost,
        _ => LossKind::Died,
    };
    Loss::of(rank, kind, describe_status(status))
}

/// For the operator. What a broken connection looks like from inside HTTP/2 helps neither.
fn describe_status(status: &Status) -> String {
    if std::error::Error::source(status).is_some() {
        return "its connection broke".into();
    }
    match status.message() {
        "" => status.code().to_string(),
        message => message.to_string(),
    }
}
