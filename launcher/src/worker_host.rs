//! `penstock worker`: holds a model, or one rank's part of it, for a server on another host. Gets the model, starts the worker process and
//! starts it again when it ends; takes no requests of clients. The server's side is `--worker-address`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::builder::BoolishValueParser;
use clap::{CommandFactory, FromArgMatches, Parser};
use penstock_core::worker::endpoint::Address;
use penstock_router::config::parse_collector;
use tokio::process::Command;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::adapters::{self, Adapter};
use crate::child::Watched;
use crate::child_spawner::ChildSpawner;
use crate::environment::Environment;
use crate::flags::{self, ModelArgs, Refusal, WorkerArgs, of_draft_model};
use crate::model::{self, Named, Weights};
use crate::restart_policy::{End, RestartDecision, RestartPolicy};
use crate::shards::Rendezvous;
use crate::{
    SHUTDOWN_SLACK, Signals, contradictions, log, logged, python, remote, runtime, worker_arguments,
};

/// The word for `run`.
pub const WORKER: &str = "worker";

/// How often a worker that loads is looked at.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Parser, Clone, Debug)]
#[command(
    name = "penstock worker",
    bin_name = "penstock worker",
    about = "Holds a model, or a part of it, for a Penstock server on another host",
    after_help = "The server is told of it by --worker-address. A worker serves one server at a time.",
    next_help_heading = "Where it listens"
)]
struct WorkerHost {
    /// Where the server reaches it: tls:HOST:PORT, tcp:HOST:PORT or unix:PATH
    #[arg(long, env = "WORKER_LISTEN")]
    listen: Address,
    /// The certificate chain that it shows, a PEM file
    #[arg(long, env = "WORKER_TLS_CERT")]
    tls_cert: Option<PathBuf>,
    /// The private key of --tls-cert, a PEM file
    #[arg(long, env = "WORKER_TLS_KEY")]
    tls_key: Option<PathBuf>,
    /// Who has signed the certificates of servers that may come, a PEM file
    #[arg(long, env = "WORKER_TLS_CA")]
    tls_ca: Option<PathBuf>,
    /// Take a tcp: address beyond the loopback: whoever reaches it can use the worker, and read its requests
    #[arg(long, env, value_parser = BoolishValueParser::new())]
    allow_plain_tcp: bool,
    /// Which of --num-shard times --pipeline-parallel parts of the model this is, from 0
    #[arg(long, env = "WORKER_RANK", default_value_t = 0)]
    rank: u32,
    /// On SIGTERM, how long a server that uses the worker may go on, in seconds: as the server's own
    #[arg(long, env, help_heading = "Stopping", default_value_t = 90)]
    shutdown_timeout: u64,
    /// Send the spans of its steps to this OpenTelemetry collector (OTLP over gRPC), such as http://localhost:4317
    #[arg(long, env, help_heading = "Telemetry", value_parser = parse_collector)]
    otlp_endpoint: Option<String>,
    /// What the traces call the server, as there
    #[arg(long, env, help_heading = "Telemetry", default_value = "text-generation-inference.router")]
    otlp_service_name: String,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    worker: WorkerArgs,
    #[command(flatten)]
    log: log::LogArgs,
}

pub fn run(arguments: impl Iterator<Item = OsString>, environment: &Environment) -> ExitCode {
    let (host, warnings) = match parse(arguments) {
        Ok(parsed) => parsed,
        Err(refusal) => return ExitCode::from(refusal.report_in_log(environment)),
    };
    logged(&host.log, warnings, environment, || runtime()?.block_on(until_a_signal(&host, environment)))
}

/// The flags, and a warning for each that has no effect.
fn parse(arguments: impl Iterator<Item = OsString>) -> Result<(WorkerHost, Vec<String>), Refusal> {
    let command = flags::lenient_environment(WorkerHost::command())?;
    let matches = flags::matches(&command, &arguments.collect::<Vec<_>>())?;
    let host = WorkerHost::from_arg_matches(&matches)
        .map_err(|error| Refusal::Clap(error.format(&mut command.clone())))?;
    let warnings = host.check().map_err(Refusal::Flag)?;
    Ok((host, warnings))
}

impl WorkerHost {
    fn check(&self) -> Result<Vec<String>, String> {
        let mut warnings = flags::check_of_each_host(&self.model, &self.worker)?;
        // The devices that this host shows say nothing of those of others.
        if self.worker.sharded == Some(true) && self.worker.num_shard.is_none() {
            return Err("--sharded true counts no devices here: give --num-shard, on every host alike".into());
        }
        let files = [&self.tls_cert, &self.tls_key, &self.tls_ca];
        match files.iter().filter(|file| file.is_some()).count() {
            0 if matches!(self.listen, Address::Tls(_)) => {
                return Err("--listen tls:... needs --tls-cert, --tls-key and --tls-ca".into());
            }
            0 | 3 => {}
            _ => return Err("--tls-cert, --tls-key and --tls-ca go together".into()),
        }
        if !self.allow_plain_tcp {
            remote::check_exposure("--listen", std::slice::from_ref(&self.listen))?;
        }
        let ranks = self.world_size();
        if self.rank >= ranks {
            return Err(format!("--rank {} is none of {ranks}: give --num-shard", self.rank));
        }
        if ranks > 1 && self.model.speculate_model.is_some() {
            return Err(flags::no_shards(&format!("{ranks} ranks")));
        }
        if ranks > 1 && self.worker.master_addr.is_none() {
            return Err(format!("{ranks} ranks need --master-addr, the host of rank 0, to find each other"));
        }
        if ranks == 1 {
            warnings.extend(flags::no_other_to_find(&self.worker));
        }
        Ok(warnings)
    }

    fn world_size(&self) -> u32 {
        self.worker.num_shard.unwrap_or(1).saturating_mul(self.worker.pipeline_parallel)
    }

    /// Of the worker process.
    fn arguments(&self, folder: &Path, draft_folder: Option<&Path>, adapters: &[Adapter]) -> Vec<OsString> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u32;
        let traces =
            self.otlp_endpoint.as_deref().map(|collector| (collector, self.otlp_service_name.as_str()));
        let mut arguments =
            worker_arguments(folder, draft_folder, adapters, &self.model, &self.worker, cores, traces);
        arguments.extend(["--listen".into(), self.listen.to_string().into()]);
        for (flag, file) in
            [("--tls-cert", &self.tls_cert), ("--tls-key", &self.tls_key), ("--tls-ca", &self.tls_ca)]
        {
            if let Some(file) = file {
                arguments.extend([flag.into(), file.into()]);
            }
        }
        if self.allow_plain_tcp {
            arguments.push("--allow-plain-tcp".into());
        }
        let (rank, ranks) = (self.rank.to_string(), self.world_size());
        arguments.extend(["--rank".into(), rank.into(), "--world-size".into(), ranks.to_string().into()]);
        if ranks > 1
            && let Rendezvous::Address(address) = Rendezvous::of(&self.worker)
        {
            let stages = self.worker.pipeline_parallel.to_string();
            let meeting = format!("tcp://{address}/{WORKER}");
            arguments.extend(["--rendezvous".into(), meeting.into(), "--stages".into(), stages.into()]);
        }
        arguments
    }
}

/// A signal ends the worker when the server has left it: the same one may have told that to drain, since Slurm sends it to all hosts.
async fn until_a_signal(host: &WorkerHost, environment: &Environment) -> Result<(), String> {
    let mut signals = Signals::listen().map_err(|error| format!("signals cannot be watched: {error}"))?;
    let (in_use, mut used) = watch::channel(false);
    let stopping = CancellationToken::new();
    // Dropping what it holds ends the worker.
    let mut keeping = std::pin::pin!(keep(host, environment, &in_use, &stopping));
    let name = tokio::select! {
        outcome = &mut keeping => return outcome,
        name = signals.next() => name,
    };
    // A server may have come since the worker was looked at.
    tokio::select! {
        outcome = &mut keeping => return outcome,
        () = tokio::time::sleep(2 * LOOK) => (),
    }
    if !*used.borrow() {
        info!("{name}: the worker ends");
        return Ok(());
    }
    stopping.cancel();
    info!("{name}: the worker ends when its server has left; it has {} s for that", host.shutdown_timeout);
    let left = async { drop(used.wait_for(|used| !used).await) };
    let limit = Duration::from_secs(host.shutdown_timeout) + SHUTDOWN_SLACK;
    tokio::select! {
        outcome = &mut keeping => return outcome,
        () = left => info!("the server has left: the worker ends"),
        name = signals.next() => warn!("{name} again: stopping at once"),
        () = tokio::time::sleep(limit) => warn!("still used after --shutdown-timeout: stopping now"),
    }
    Ok(())
}

/// Starts the worker, and again whenever it has ended, but not while `stopping`. Returns why that is pointless. `in_use`: a server is
/// connected.
async fn keep(
    host: &WorkerHost,
    environment: &Environment,
    in_use: &watch::Sender<bool>,
    stopping: &CancellationToken,
) -> Result<(), String> {
    contradictions::check_device(host.worker.device.as_deref(), Path::new("/dev"))?;
    let named = Named::read(&host.model, Weights::Here)?;
    let draft = host.model.of_draft_model();
    let named_draft =
        draft.as_ref().map(|draft| Named::read(draft, Weights::Here)).transpose().map_err(of_draft_model)?;
    let (named_adapters, _) = host.model.adapters()?;
    let interpreter = python::find(host.worker.python.as_deref(), environment)?;
    let spawner = ChildSpawner::open().map_err(|error| format!("the system gives no threads: {error}"))?;
    info!("Penstock {}, a worker for {}", env!("CARGO_PKG_VERSION"), host.listen);
    let show_progress = environment.stderr_is_terminal && !host.log.json_output;
    let wanted = model::Wanted {
        args: &host.model,
        worker: &host.worker,
        num_shard: host.worker.num_shard.unwrap_or(1),
        router: None,
        weights: Weights::Here,
    };
    let model = model::obtain(named, &wanted, &interpreter, &spawner, environment, show_progress).await?;
    let draft_model = match draft.as_ref().zip(named_draft) {
        Some((args, named)) => {
            let wanted = model::Wanted { args, ..wanted };
            let model = model::obtain(named, &wanted, &interpreter, &spawner, environment, show_progress);
            Some(model.await.map_err(of_draft_model)?)
        }
        None => None,
    };
    let adapters =
        adapters::obtain(&named_adapters, &host.model, &interpreter, &spawner, environment, show_progress)
            .await?;
    info!("loading {} from {}", model.id, model.folder.display());
    let draft_folder = draft_model.as_ref().map(|model| model.folder.as_path());
    let arguments = host.arguments(&model.folder, draft_folder, &adapters);
    let load_timeout = Duration::from_secs(host.worker.load_timeout);
    let mut restarts = RestartPolicy::default();
    loop {
        let mut command = Command::from(python::module(&interpreter, "penstock.worker"));
        command.args(&arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        for secret in &environment.secrets {
            command.env_remove(secret);
        }
        let cannot = |error| format!("the worker {} cannot be started: {error}", interpreter.display());
        let worker = Watched::new(spawner.start(command).await.map_err(cannot)?, None).map_err(cannot)?;
        let (end, what, reason) = watch(&worker, &host.listen, load_timeout, in_use).await;
        in_use.send_replace(false);
        if stopping.is_cancelled() {
            info!("the worker {what}");
            return Ok(());
        }
        match restarts.on_end(end) {
            RestartDecision::StartAfter(delay) => {
                warn!("the worker {what}; starting it again in {:.1} s", delay.as_secs_f64());
                tokio::time::sleep(delay).await;
            }
            RestartDecision::GiveUp { starts: 1 } => return Err(reason),
            RestartDecision::GiveUp { starts } => {
                return Err(format!("the worker failed to start {starts} times in a row: {reason}"));
            }
        }
    }
}

/// Until the worker ends: how, what follows its name in a sentence, and what stands alone.
async fn watch(
    worker: &Watched,
    listen: &Address,
    load_timeout: Duration,
    in_use: &watch::Sender<bool>,
) -> (End, String, String) {
    let mut listens = None;
    loop {
        let exit = tokio::select! {
            exit = worker.exit() => Some(exit),
            () = tokio::time::sleep(LOOK) => None,
        };
        if let Some(exit) = exit {
            let end = match listens {
                Some(since) => End::After(exit.at.saturating_duration_since(since)),
                None => End::AtStart { explained: exit.explained() },
            };
            return (end, exit.describe(), exit.reason());
        }
        let serving = worker.is_serving();
        in_use.send_if_modified(|in_use| std::mem::replace(in_use, serving) != serving);
        if listens.is_none() && worker.listens() {
            info!("the worker is loaded, and listens at {listen}");
            listens = Some(Instant::now());
        }
        if listens.is_none() && worker.last_progress().elapsed() > load_timeout {
            worker.kill();
            worker.exit().await;
            let what = format!("showed no progress for {} s (--load-timeout)", load_timeout.as_secs());
            error!("the worker {what}, and was ended");
            return (End::AtStart { explained: false }, what.clone(), format!("it {what}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<(WorkerHost, Vec<String>), Refusal> {
        parse(std::iter::once("worker").chain(line.split_whitespace()).map(OsString::from))
    }

    #[test]
    fn what_was_asked_is_passed_on() {
        WorkerHost::command().debug_assert();
        let (host, warnings) = parsed(
            "--listen tls:0.0.0.0:9000 --tls-cert c --tls-key k --tls-ca a --num-shard 2 --rank 1 --master-addr gpu-0 \
             --dtype bfloat16 --worker-threads 3 --device cuda:1 --otlp-endpoint http://collector:4317",
        )
        .unwrap();
        assert!(warnings.is_empty(), "{warnings:?}");
        let words = host.arguments(Path::new("/model"), None, &[]);
        let words: Vec<_> = words.iter().map(|word| word.to_str().unwrap()).collect();
        assert_eq!(
            words.join(" "),
            "--model-dir /model --dtype bfloat16 --device cuda:1 --threads 3 --otlp-endpoint http://collector:4317 \
             --otlp-service-name text-generation-inference.router --listen tls:0.0.0.0:9000 --tls-cert c --tls-key k \
             --tls-ca a --rank 1 --world-size 2 --rendezvous tcp://gpu-0:29500/worker --stages 1"
        );
        let (host, _) = parsed("--listen unix:/socket --speculate-model small").unwrap();
        let words = host.arguments(Path::new("/model"), Some(Path::new("/small")), &[]);
        let at = words.iter().position(|word| word == "--draft-model-dir").unwrap();
        assert_eq!(words[at + 1], "/small");
        let adapter = |name: &str, folder: &str| Adapter { name: name.into(), folder: folder.into() };
        let adapters = [adapter("org/a", "/hub/a"), adapter("b", "/b")];
        let words = host.arguments(Path::new("/model"), None, &adapters);
        let given: Vec<_> =
            words.windows(2).filter(|pair| pair[0] == "--lora-adapters").map(|pair| &pair[1]).collect();
        assert_eq!(given, ["org/a=/hub/a", "b=/b"], "one flag for each, in their order");
    }

    #[test]
    fn what_has_no_effect_is_told() {
        for (line, names) in [
            ("--quantize awq", &["--quantize awq"][..]),
            ("--master-addr a --master-port 5", &["--master-addr", "--master-port"]),
            ("--model-id a/b --weights-cache-override . --revision main", &["--revision"]),
            ("--sharded true --num-shard 2 --master-addr a", &[]),
            ("--sharded false", &[]),
        ] {
            let (_, warnings) = parsed(&format!("--listen tcp:localhost:9000 {line}")).unwrap();
            assert_eq!(warnings.len(), names.len(), "{line}: {warnings:?}");
            assert!(
                warnings.iter().zip(names).all(|(warning, name)| warning.starts_with(name)),
                "{warnings:?}"
            );
        }
    }

    #[test]
    fn wrong_combinations_are_refused_with_the_name_of_the_flag() {
        for (line, names) in [
            ("--listen tls:0.0.0.0:9000", "--tls-cert"),
            ("--listen tls:0.0.0.0:9000 --tls-cert c", "go together"),
            ("--listen tcp:0.0.0.0:9000", "--allow-plain-tcp"),
            ("--listen tcp:localhost:9000 --rank 1", "--rank 1"),
            ("--listen tcp:localhost:9000 --num-shard 2", "--master-addr"),
            ("--listen tcp:localhost:9000 --revision main", "--revision"),
            ("--listen tcp:localhost:9000 --quantize exl2", "--quantize"),
            ("--listen tcp:localhost:9000 --kv-cache-dtype fp4", "--kv-cache-dtype"),
            ("--listen tcp:localhost:9000 --num-shard 2 --speculate-model small", "--speculate-model"),
            ("--listen tcp:localhost:9000 --sharded true", "give --num-shard, on every host alike"),
            ("--listen tcp:localhost:9000 --sharded true --num-shard 1", "--num-shard above 1"),
            ("--listen tcp:localhost:9000 --sharded false --num-shard 2 --master-addr a", "--sharded false"),
        ] {
            match parsed(line) {
                Err(Refusal::Flag(why)) => assert!(why.contains(names), "{line}: {why}"),
                other => panic!("{line}: {other:?}"),
            }
        }
        assert!(parsed("--listen tcp:0.0.0.0:9000 --allow-plain-tcp").is_ok());
        assert!(matches!(parsed(""), Err(Refusal::Clap(_))), "it has to listen somewhere");
        assert!(matches!(parsed("--listen tcp:localhost:9000 --port 80"), Err(Refusal::Clap(_))));
    }
}
