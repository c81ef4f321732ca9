//! The flags of a server whose workers run on other hosts (`--worker-address`): what they say. What contradicts them `flags` says. Called by it
//! and `main`; how such workers are watched is `penstock_core::worker::remote`'s to know.

use std::path::PathBuf;

use clap::Args;
use clap::builder::BoolishValueParser;
use penstock_core::worker::Endpoint;
use penstock_core::worker::endpoint::{Address, MutualTls, PemFile};

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Workers on other hosts")]
pub struct RemoteArgs {
    /// Where a worker listens that is started by others (`penstock worker`): tls:HOST:PORT, tcp:HOST:PORT or
    /// unix:PATH; repeated, or with commas, for each rank, rank 0 first [default: workers are started here]
    #[arg(long, env, value_delimiter = ',')]
    pub worker_address: Vec<Address>,
    /// The certificate chain that this server shows to workers at tls: addresses, a PEM file
    #[arg(long, env)]
    pub worker_tls_cert: Option<PathBuf>,
    /// The private key of --worker-tls-cert, a PEM file
    #[arg(long, env)]
    pub worker_tls_key: Option<PathBuf>,
    /// Who has signed the workers' certificates, a PEM file
    #[arg(long, env)]
    pub worker_tls_ca: Option<PathBuf>,
    /// Take tcp: addresses beyond the loopback, where whoever is on the way can read and change requests
    #[arg(long, env, value_parser = BoolishValueParser::new())]
    pub allow_plain_tcp: bool,
}

impl RemoteArgs {
    /// Where the ranks are; none when workers are started here. Reads the certificates.
    pub fn endpoints(&self) -> Result<Vec<Endpoint>, String> {
        let files = (&self.worker_tls_ca, &self.worker_tls_cert, &self.worker_tls_key);
        let tls = match files {
            (Some(authority), Some(certificate), Some(key)) => Some(MutualTls::read(
                PemFile { flag: "--worker-tls-ca", path: authority },
                PemFile { flag: "--worker-tls-cert", path: certificate },
                PemFile { flag: "--worker-tls-key", path: key },
            )?),
            _ => None,
        };
        let endpoint = |address: &Address| {
            Endpoint::of(address.clone(), tls.as_ref())
                .ok_or_else(|| format!("--worker-address {address} needs --worker-tls-cert"))
        };
        self.worker_address.iter().map(endpoint).collect()
    }
}

/// Refuses ports that anybody could use.
pub fn check_exposure(flag: &str, addresses: &[Address]) -> Result<(), String> {
    match addresses.iter().find(|address| address.is_exposed()) {
        Some(address) => Err(format!(
            "{flag} {address}: a worker asks nobody who they are, and requests go there in plain; take tls:, or say \
             --allow-plain-tcp"
        )),
        None => Ok(()),
    }
}
