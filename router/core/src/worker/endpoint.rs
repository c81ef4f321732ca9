//! Where a worker listens: at a unix socket of this machine, or at a port that is spoken to in plain or by mutual TLS. Read from flags by the
//! launcher, dialled by `connection`. Knows files of certificates, and no call of the contract.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// An address as people write it: `unix:PATH`, `tcp:HOST:PORT` or `tls:HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Unix(PathBuf),
    Tcp(HostPort),
    Tls(HostPort),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// A name, or an IP address without brackets.
    pub host: String,
    pub port: u16,
}

/// An address, and what it takes to be let in there.
#[derive(Clone, Debug)]
pub enum Endpoint {
    Unix(PathBuf),
    Tcp(HostPort),
    Tls(HostPort, MutualTls),
}

/// What both sides of a connection prove to each other who they are with: a certificate of our own, and that of the authority that has
/// signed both.
#[derive(Clone)]
pub struct MutualTls(Arc<ClientConfig>);

/// A PEM file, and the flag that names it.
#[derive(Clone, Copy, Debug)]
pub struct PemFile<'a> {
    pub flag: &'static str,
    pub path: &'a Path,
}

/// The bytes of a connection, however they travel.
pub(super) trait Wire: AsyncRead + AsyncWrite + Unpin + Send + 'static {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> Wire for T {}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || "must be unix:PATH, tcp:HOST:PORT or tls:HOST:PORT".to_owned();
        match text.split_once(':').ok_or_else(unknown)? {
            ("unix", "") => Err("unix: needs a path".into()),
            ("unix", path) => Ok(Self::Unix(path.into())),
            ("tcp", rest) => rest.parse().map(Self::Tcp),
            ("tls", rest) => rest.parse().map(Self::Tls),
            _ => Err(unknown()),
        }
    }
}

impl FromStr for HostPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (host, port) = text.rsplit_once(':').ok_or("needs HOST:PORT")?;
        let port = port.parse().ok().filter(|port| *port > 0).ok_or("needs a port from 1 to 65535")?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = match bare {
            Some(address) if address.parse::<std::net::Ipv6Addr>().is_err() => {
                return Err(format!("[{address}] is no IPv6 address"));
            }
            Some(address) => address,
            None if host.contains(':') => return Err("an IPv6 address stands in brackets: [::1]:PORT".into()),
            None if ServerName::try_from(host).is_err() => {
                return Err(format!("'{host}' is neither a name nor an IP address"));
            }
            None => host,
        };
        Ok(Self { host: host.into(), port })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(at) => write!(f, "tcp:{at}"),
            Self::Tls(at) => write!(f, "tls:{at}"),
        }
    }
}

impl Address {
    /// Whether others than the programs of this machine could listen to what is said there, or say it themselves: the contract asks nobody
    /// who they are.
    pub fn is_exposed(&self) -> bool {
        matches!(self, Self::Tcp(at) if !at.is_loopback())
    }
}

impl HostPort {
    fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
    }
}

/// Beside the unix socket of a worker, where it takes `Run` in frames.
pub fn frames_socket(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".run");
    path.into()
}

impl Endpoint {
    /// `None`: it speaks TLS, and there are no certificates for it.
    pub fn of(address: Address, tls: Option<&MutualTls>) -> Option<Self> {
        Some(match address {
            Address::Unix(path) => Self::Unix(path),
            Address::Tcp(at) => Self::Tcp(at),
            Address::Tls(at) => Self::Tls(at, tls?.clone()),
        })
    }

    /// On another host, perhaps: it may vanish without a word.
    pub fn is_remote(&self) -> bool {
        !matches!(self, Self::Unix(_))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Tcp(at) => write!(f, "tcp:{at}"),
            Self::Tls(at, _) => write!(f, "tls:{at}"),
        }
    }
}

impl MutualTls {
    /// Reads the authority that workers' certificates are signed by, our own certificate chain, and its key. The error is one line that
    /// names the flag.
    pub fn read(authority: PemFile, certificate: PemFile, key: PemFile) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        for root in authority.certificates()? {
            roots.add(root).map_err(|error| authority.wrong(&error))?;
        }
        let chain = certificate.certificates()?;
        let secret = PrivateKeyDer::from_pem_file(key.path).map_err(|error| key.wrong(&error))?;
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_root_certificates(roots).with_client_auth_cert(chain, secret))
            .map_err(|error| key.wrong(&error))?;
        // gRPC speaks HTTP/2 only, and its servers insist on hearing so.
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self(Arc::new(config)))
    }

    /// A handshake over `stream` with whoever has a certificate for `host`.
    pub(super) async fn handshake<S>(&self, host: &str, stream: S) -> io::Result<impl Wire>
    where
        S: Wire,
    {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        TlsConnector::from(self.0.clone()).connect(name, stream).await
    }
}

impl fmt::Debug for MutualTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MutualTls(...)")
    }
}

impl PemFile<'_> {
    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, String> {
        let read = CertificateDer::pem_file_iter(self.path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        match read {
            Ok(found) if found.is_empty() => Err(self.wrong(&"it holds no certificate")),
            Ok(found) => Ok(found),
            Err(error) => Err(self.wrong(&error)),
        }
    }

    fn wrong(&self, why: &dyn fmt::Display) -> String {
        format!("{} {}: {why}", self.flag, self.path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_says_how_a_worker_is_spoken_to() {
        for text in [
            "unix:/run/worker.sock",
            "tcp:localhost:1",
            "tls:10.0.0.5:65535",
            "tls:[::1]:9000",
            "tls:gpu-1.local:9000",
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
        for (text, says) in [
            ("", "must be unix:PATH"),
            ("/run/worker.sock", "must be unix:PATH"),
            ("http://host:80", "must be unix:PATH"),
            ("unix:", "needs a path"),
            ("tcp:host", "HOST:PORT"),
            ("tcp:host:0", "from 1 to 65535"),
            ("tls:host:65536", "from 1 to 65535"),
            ("tls:::1:9000", "in brackets"),
            ("tls:[::zz]:9000", "no IPv6 address"),
            ("tls:a b:9000", "neither a name"),
            ("tls::9000", "neither a name"),
        ] {
            let why = text.parse::<Address>().unwrap_err();
            assert!(why.contains(says), "{text}: {why}");
        }
    }

    #[test]
    fn only_plain_ports_beyond_the_loopback_are_exposed() {
        for (text, expected) in [
            ("unix:/s", false),
            ("tcp:127.0.0.1:1", false),
            ("tcp:[::1]:1", false),
            ("tcp:localhost:1", false),
            ("tcp:10.0.0.1:1", true),
            ("tcp:0.0.0.0:1", true),
            ("tcp:worker:1", true),
            ("tls:0.0.0.0:1", false),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().is_exposed(), expected, "{text}");
        }
    }

    #[test]
    fn a_file_that_holds_no_certificate_is_named_with_its_flag() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("empty.pem");
        let file = |flag| PemFile { flag, path: &path };
        let read =
            || MutualTls::read(file("--worker-tls-ca"), file("--worker-tls-cert"), file("--worker-tls-key"));
        assert!(read().unwrap_err().starts_with("--worker-tls-ca "), "it is missing");
        std::fs::write(&path, "no certificate").unwrap();
        let why = read().unwrap_err();
        assert!(why.contains("--worker-tls-ca") && why.contains("empty.pem"), "{why}");
    }
}
