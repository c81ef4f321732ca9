//! Connections to the ranks of a group, and what a failed call says of the rank that was called. Used by `group` for
//! the rare calls, by `stream` for the hot path, and by `remote` to find out whether a worker is there.

use std::error::Error;
use std::io;
use std::time::Duration;

use futures::future::try_join_all;
use hyper_util::rt::TokioIo;
use penstock_proto::worker_client::WorkerClient;
use penstock_proto::{CheckRequest, DescribeRequest, ModelDescription};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::rustls;
use tonic::transport::{Channel, Uri};
use tonic::{Code, Status};

use super::endpoint::{Endpoint, Wire};
use super::source::{Loss, LossKind, is_passing};

/// A worker that answers calls takes a connection at once; one that is frozen may do so without answering.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a rank that lost another one waits for that one's own failure to be seen, before it is blamed itself.
pub(super) const BLAME: Duration = Duration::from_secs(1);

/// How often a connection to another host is asked for a sign of life when it is silent, and how long one may take (HTTP/2's PING). A host
/// that vanishes closes nothing: while a step runs its deadline tells, and otherwise this does, whatever call is open.
const PING_INTERVAL: Duration = if cfg!(test) { Duration::from_millis(200) } else { Duration::from_secs(10) };
const PING_TIMEOUT: Duration = if cfg!(test) { Duration::from_millis(400) } else { Duration::from_secs(20) };

/// A client for every rank.
pub(super) async fn connect(endpoints: &[Endpoint]) -> Result<Vec<WorkerClient<Channel>>, Loss> {
    try_join_all(endpoints.iter().zip(0..).map(|(endpoint, rank)| open(rank, endpoint))).await
}

/// What is served at `endpoint`, once it is known that a worker lives there and computes.
pub(super) async fn probe(rank: u32, endpoint: &Endpoint) -> Result<ModelDescription, Loss> {
    let mut client = open(rank, endpoint).await?;
    let asking = async {
        client.check(CheckRequest {}).await?;
        client.describe(DescribeRequest {}).await
    };
    match timeout(CONNECT_TIMEOUT, asking).await {
        Ok(Ok(model)) => Ok(model.into_inner()),
        Ok(Err(status)) => {
            let loss = loss(rank, &status);
            let is_silent = loss.kind == LossKind::Died && status.source().is_some();
            // In TLS 1.3 a client's certificate is looked at when the handshake is over for the client, and gRPC's servers then say
            // nothing.
            let perhaps = match endpoint {
                Endpoint::Tcp(_) => Some("it speaks TLS only"),
                Endpoint::Tls(..) => Some("it does not take this server's certificate"),
                Endpoint::Unix(_) => None,
            };
            match perhaps.filter(|_| is_silent) {
                Some(why) => Err(Loss { cause: format!("{}; perhaps {why}", loss.cause), ..loss }),
                None => Err(loss),
            }
        }
        Err(_) => {
            Err(Loss::of(rank, LossKind::Hung, format!("no answer from {endpoint} in {CONNECT_TIMEOUT:.0?}")))
        }
    }
}

async fn open(rank: u32, endpoint: &Endpoint) -> Result<WorkerClient<Channel>, Loss> {
    // Before the time begins that a worker has: a descriptor may have to be waited for.
    let mut reached = Some(reach(endpoint).await.map_err(|error| unreached(rank, endpoint, &error))?);
    let again = endpoint.clone();
    let connector = tower::service_fn(move |_: Uri| {
        let (endpoint, reached) = (again.clone(), reached.take());
        async move {
            match reached {
                Some(reached) => Ok(reached),
                None => dial(&endpoint).await,
            }
            .map(TokioIo::new)
        }
    });
    // The address is not used: the connector knows it.
    let mut channel = tonic::transport::Endpoint::from_static("http://worker")
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW);
    if endpoint.is_remote() {
        channel = channel
            .http2_keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true);
    }
    match timeout(CONNECT_TIMEOUT, channel.connect_with_connector(connector)).await {
        Ok(Ok(channel)) => {
            let client = WorkerClient::new(channel);
            Ok(client.max_decoding_message_size(usize::MAX).max_encoding_message_size(usize::MAX))
        }
        Ok(Err(error)) => {
            Err(Loss::of(rank, LossKind::Died, format!("cannot connect to {endpoint}: {error}")))
        }
        Err(_) => Err(Loss::of(rank, LossKind::Hung, format!("{endpoint} takes no connection"))),
    }
}

/// A connection, once the system has a descriptor for it.
async fn reach(endpoint: &Endpoint) -> io::Result<Box<dyn Wire>> {
    loop {
        match dial(endpoint).await {
            Err(error) if is_passing(&error) => {
                tracing::warn!("cannot connect to {endpoint}: {error}; trying again");
                tokio::time::sleep(PASSING).await;
            }
            connected => return connected,
        }
    }
}

async fn dial(endpoint: &Endpoint) -> io::Result<Box<dyn Wire>> {
    let dialling = async {
        let at = match endpoint {
            #[cfg(test)]
            Endpoint::Unix(path) if super::mock::memory::listens(path) => {
                return Ok::<Box<dyn Wire>, io::Error>(Box::new(super::mock::memory::dial(path)?));
            }
            Endpoint::Unix(path) => {
                let stream = UnixStream::connect(path).await?;
                return Ok::<Box<dyn Wire>, io::Error>(Box::new(stream));
            }
            Endpoint::Tcp(at) | Endpoint::Tls(at, _) => at,
        };
        let stream = TcpStream::connect((at.host.as_str(), at.port)).await?;
        // A plan is small, and is waited for.
        stream.set_nodelay(true)?;
        match endpoint {
            Endpoint::Tls(at, tls) => Ok(Box::new(tls.handshake(&at.host, stream).await?)),
            _ => Ok(Box::new(stream)),
        }
    };
    // The system itself takes minutes to give up on a host that is not there.
    timeout(CONNECT_TIMEOUT, dialling).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Until a connection is tried again for which there was no descriptor.
const PASSING: Duration = Duration::from_millis(100);

/// Two plans and their results are under way at most, and are never to wait for HTTP/2's flow control.
const WINDOW: u32 = 16 << 20;

/// What keeps a connection from being made.
fn unreached(rank: u32, endpoint: &Endpoint, error: &io::Error) -> Loss {
    let (kind, why) = match tls_error(error) {
        Some(rustls::Error::InvalidCertificate(why)) => {
            (LossKind::Untrusted, format!("{endpoint} has another certificate than it should: {why}"))
        }
        Some(rustls::Error::AlertReceived(alert)) => {
            (LossKind::Untrusted, format!("{endpoint} does not take this server's certificate: {alert:?}"))
        }
        Some(rustls::Error::InvalidMessage(_)) => {
            (LossKind::Died, format!("{endpoint} does not speak TLS; is it a tcp: address?"))
        }
        _ if error.kind() == io::ErrorKind::TimedOut => {
            (LossKind::Hung, format!("{endpoint} takes no connection"))
        }
        _ => (LossKind::Died, format!("cannot connect to {endpoint}: {error}")),
    };
    Loss::of(rank, kind, why)
}

fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

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
    if status.source().is_some() {
        return "its connection broke".into();
    }
    match status.message() {
        "" => status.code().to_string(),
        message => message.to_string(),
    }
}
