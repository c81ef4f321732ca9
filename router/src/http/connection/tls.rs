//! TLS in front of the listener: `--tls-cert` and `--tls-key`.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

use crate::config::RouterArgs;
use crate::limits::FlagError;

/// None when connections are plain.
pub fn acceptor(args: &RouterArgs) -> Result<Option<TlsAcceptor>, FlagError> {
    let (certificate, key) = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => (certificate, key),
        (None, None) => return Ok(None),
        (Some(_), None) => return Err(FlagError("--tls-cert needs --tls-key".into())),
        (None, Some(_)) => return Err(FlagError("--tls-key needs --tls-cert".into())),
    };
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| wrong("--tls-cert", certificate, &error.to_string()))?;
    if chain.is_empty() {
        return Err(wrong("--tls-cert", certificate, "it holds no certificate"));
    }
    let secret =
        PrivateKeyDer::from_pem_file(key).map_err(|error| wrong("--tls-key", key, &error.to_string()))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, secret))
        .map_err(|error: rustls::Error| wrong("--tls-key", key, &error.to_string()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Some(TlsAcceptor::from(Arc::new(config))))
}

fn wrong(flag: &str, path: &Path, why: &str) -> FlagError {
    FlagError(format!("{flag} {}: {why}", path.display()))
}
