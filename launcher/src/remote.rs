//! The flags of workers on other hosts (`--worker-address`): what they say. What contradicts them `flags` says. Called by it, `main` and
//! `replay`; how such workers are watched is `penstock_core::worker::remote`'s to know.

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
    #[command(flatten)]
    pub tls: WorkerTlsArgs,
    /// Take tcp: addresses beyond the loopback, where whoever is on the way can read and change requests
    #[arg(long, env, value_parser = BoolishValueParser::new())]
    pub allow_plain_tcp: bool,
}

/// How this side proves who it is to workers at `tls:` addresses.
#[derive(Args, Clone, Debug)]
pub struct WorkerTlsArgs {
    /// The certificate chain that this server shows to workers at tls: addresses, a PEM file
    #[arg(long, env)]
    pub worker_tls_cert: Option<PathBuf>,
    /// The private key of --worker-tls-cert, a PEM file
    #[arg(long, env)]
    pub worker_tls_key: Option<PathBuf>,
    /// Who has signed the workers' certificates, a PEM file
    #[arg(long, env)]
    pub worker_tls_ca: Option<PathBuf>,
}

impl WorkerTlsArgs {
    /// Whether they are given: all of them, or none.
    pub fn given(&self) -> Result<bool, String> {
        match [&self.worker_tls_cert, &self.worker_tls_key, &self.worker_tls_ca].map(Option::is_some) {
            [true, true, true] => Ok(true),
            [false, false, false] => Ok(false),
            _ => Err("--worker-tls-cert, --worker-tls-key and --worker-tls-ca go together".into()),
        }
    }

    /// How each of `addresses`, which `flag` names, is reached. Reads the certificates.
    pub fn endpoints(&self, flag: &str, addresses: &[Address]) -> Result<Vec<Endpoint>, String> {
        self.given()?;
        let tls = match (&self.worker_tls_ca, &self.worker_tls_cert, &self.worker_tls_key) {
            (Some(authority), Some(certificate), Some(key)) => Some(MutualTls::read(
                PemFile { flag: "--worker-tls-ca", path: authority },
                PemFile { flag: "--worker-tls-cert", path: certificate },
                PemFile { flag: "--worker-tls-key", path: key },
            )?),
            _ => None,
        };
        let endpoint = |address: &Address| {
            Endpoint::of(address.clone(), tls.as_ref()).ok_or_else(|| needs_tls(flag, address))
        };
        addresses.iter().map(endpoint).collect()
    }
}

pub fn needs_tls(flag: &str, address: &Address) -> String {
    format!("{flag} {address} needs --worker-tls-cert, --worker-tls-key and --worker-tls-ca")
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
