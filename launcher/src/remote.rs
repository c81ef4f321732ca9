//! The flags of a server whose workers run on other hosts (`--worker-address`): what they say, and what contradicts them. Called by `flags`
//! and `main`; how such workers are watched is `penstock_core::worker::remote`'s to know.

use std::path::PathBuf;

use clap::Args;
use clap::builder::BoolishValueParser;
use penstock_core::worker::Endpoint;
use penstock_core::worker::endpoint::{Address, MutualTls, PemFile};

use crate::flags::WorkerArgs;

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
    /// What contradicts each other, in one line that names a flag.
    pub fn check(&self, worker: &WorkerArgs) -> Result<(), String> {
        let files = [&self.worker_tls_cert, &self.worker_tls_key, &self.worker_tls_ca];
        let given = files.iter().filter(|file| file.is_some()).count();
        if given % files.len() != 0 {
            return Err("--worker-tls-cert, --worker-tls-key and --worker-tls-ca go together".into());
        }
        if self.worker_address.is_empty() {
            return match given {
                0 => Ok(()),
                _ => Err("--worker-tls-cert needs --worker-address".into()),
            };
        }
        if given == 0 && self.worker_address.iter().any(|address| matches!(address, Address::Tls(_))) {
            return Err(
                "--worker-address tls:... needs --worker-tls-cert, --worker-tls-key and --worker-tls-ca"
                    .into(),
            );
        }
        if !self.allow_plain_tcp {
            check_exposure("--worker-address", &self.worker_address)?;
        }
        let of_the_worker = [
            ("--dtype", worker.dtype.is_some()),
            ("--quantize", worker.quantize.as_deref().is_some_and(|name| !name.is_empty())),
            ("--packed-cache", worker.packed_cache.is_some()),
            ("--packed-cache-dir", worker.packed_cache_dir.is_some()),
            ("--model-impl", worker.model_impl.is_some()),
            ("--device", worker.device.is_some()),
            ("--sharded", worker.sharded.is_some()),
            ("--master-addr", worker.master_addr.is_some()),
            ("--master-port", worker.master_port.is_some()),
            ("--deterministic", worker.deterministic),
            ("--worker-threads", worker.worker_threads.is_some()),
        ];
        if let Some((flag, _)) = of_the_worker.iter().find(|(_, given)| *given) {
            return Err(format!("{flag} is for `penstock worker`, beside --worker-address"));
        }
        let (ranks, stages) = (self.worker_address.len() as u32, worker.pipeline_parallel);
        match worker.num_shard {
            Some(shards) if shards.saturating_mul(stages) != ranks => Err(format!(
                "--num-shard {shards} and --pipeline-parallel {stages} need --worker-address {} times, and it is \
                 given {ranks} times",
                shards.saturating_mul(stages)
            )),
            None if !ranks.is_multiple_of(stages) => Err(format!(
                "--worker-address is given {ranks} times, which --pipeline-parallel {stages} does not divide"
            )),
            _ => Ok(()),
        }
    }

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
