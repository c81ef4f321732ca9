//! The `penstock` command: parses flags, gets the model, starts the workers, runs the router in this
//! process, and supervises both. Read `serve` first.

mod adapters;
mod child;
mod child_spawner;
mod contradictions;
mod descriptors;
mod doctor;
mod environment;
mod flags;
mod gguf;
mod json_subprocess;
mod lines;
mod log;
mod log_writer;
mod merged;
mod model;
mod python;
mod remote;
mod replay;
mod report;
mod restart_policy;
mod shards;
mod sockets;
mod tgi_flags;
mod tokenizer;
mod usage_errors;
mod worker_group;
mod worker_host;
mod workers;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use penstock_core::health::Health;
use penstock_core::worker::{RemoteWorkers, WorkerSource};
use penstock_router::config::{Config, ModelFiles};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::adapters::Adapter;
use crate::child_spawner::ChildSpawner;
use crate::environment::Environment;
use crate::flags::{Cli, ModelArgs, WorkerArgs, of_draft_model};
use crate::log::LogArgs;
use crate::model::{Model, Named, Wanted, Weights};
use crate::shards::Rendezvous;
use crate::sockets::SocketFolder;
use crate::workers::{WorkerCommand, Workers};

/// Gives freed memory back within seconds, by a thread of its own. The C library's keeps it in each thread's arena: after
/// answers of 100 MB on several threads a router with nothing to do held up to 1.5 GB.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Options of jemalloc, which looks for this name. Each arena keeps the records of the most pages that it ever had, so that
/// one arena is flat from the first large request on, and four for each processor are not for a long time.
#[unsafe(export_name = "_rjem_malloc_conf")]
static ALLOCATOR_OPTIONS: Option<&'static u8> = Some(&b"narenas:1\0"[0]);

/// Beyond `--shutdown-timeout`, for what the router does after its last request.
const SHUTDOWN_SLACK: Duration = Duration::from_secs(2);
/// For an aborted task to let go of what it holds.
const LAST_MOMENT: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let began = Instant::now();
    let environment = Environment::read();
    if std::env::args_os().nth(1).is_some_and(|word| word == "doctor") {
        return doctor::run(std::env::args_os().skip(1), &environment);
    }
    if std::env::args_os().nth(1).is_some_and(|word| word == "replay") {
        return replay::run(std::env::args_os().skip(1));
    }
    if std::env::args_os().nth(1).is_some_and(|word| word == doctor::PROMPT_FILES) {
        return doctor::prompt_files(std::env::args_os().nth(2));
    }
    if std::env::args_os().nth(1).is_some_and(|word| word == worker_host::WORKER) {
        return worker_host::run(std::env::args_os().skip(1), &environment);
    }
    let (cli, warnings) = match flags::parse(std::env::args_os()) {
        Ok(parsed) => parsed,
        Err(refusal) => return ExitCode::from(refusal.report_in_log(&environment)),
    };
    logged(&cli.log, warnings, &environment, || {
        let runtime = runtime()?;
        let outcome = runtime.block_on(supervise(&cli, &environment, began));
        // Requests that outlived their time are not waited for.
        runtime.shutdown_background();
        outcome
    })
}

/// The command's work, with a log around it: of what was said against its flags first, and of why it failed at last.
fn logged(
    args: &LogArgs,
    warnings: Vec<String>,
    environment: &Environment,
    work: impl FnOnce() -> Result<(), String>,
) -> ExitCode {
    let log = match log::start(args, environment) {
        Ok(log) => log,
        Err(line) => {
            log::tell_error(&line);
            return ExitCode::FAILURE;
        }
    };
    for line in warnings {
        warn!("{line}");
    }
    match work() {
        Ok(()) => ExitCode::SUCCESS,
        Err(line) => log.fail(&line),
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, String> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("the system gives no threads: {error}"))
}

/// Serves until a signal says stop: the first drains, the second ends at once. A stop is no failure.
/// `serve` is a task of its own, so that whatever keeps it busy cannot keep a signal from being heard.
async fn supervise(cli: &Cli, environment: &Environment, began: Instant) -> Result<(), String> {
    let drain = CancellationToken::new();
    let mut signals = Signals::listen().map_err(|error| format!("signals cannot be watched: {error}"))?;
    let mut serving = tokio::spawn(serve(cli.clone(), environment.clone(), began, drain.clone()));
    let ended = |outcome: Result<Result<(), String>, JoinError>| {
        outcome.unwrap_or_else(|panic| Err(format!("a fault of Penstock's own: {panic}")))
    };
    tokio::select! {
        outcome = &mut serving => return ended(outcome),
        name = signals.next() => {
            info!("{name}: no new requests; running ones have {} s to finish", cli.router.shutdown_timeout);
            drain.cancel();
        }
    }
    let limit = Duration::from_secs(cli.router.shutdown_timeout) + SHUTDOWN_SLACK;
    tokio::select! {
        outcome = &mut serving => return ended(outcome),
        name = signals.next() => warn!("{name} again: stopping at once"),
        () = tokio::time::sleep(limit) => warn!("still busy after --shutdown-timeout: stopping now"),
    }
    // Dropping what it holds ends the workers.
    serving.abort();
    let _ = tokio::time::timeout(LAST_MOMENT, serving).await;
    Ok(())
}

/// The whole life of the server. Returns when it has drained, or why it cannot serve.
async fn serve(
    mut cli: Cli,
    environment: Environment,
    began: Instant,
    drain: CancellationToken,
) -> Result<(), String> {
    contradictions::check_device(cli.worker.device.as_deref(), Path::new("/dev"))?;
    let endpoints = cli.remote.tls.endpoints("--worker-address", &cli.remote.worker_address)?;
    let weights = if endpoints.is_empty() { Weights::Here } else { Weights::Elsewhere };
    let named = Named::read(&cli.model, weights)?;
    let draft = cli.model.of_draft_model();
    let named_draft =
        draft.as_ref().map(|draft| Named::read(draft, weights)).transpose().map_err(of_draft_model)?;
    let (named_adapters, _) = cli.model.adapters()?;
    adapters::check_names(&named_adapters, &named.id(&cli.model))?;
    let stages = cli.worker.pipeline_parallel;
    let (num_shard, counted) = match endpoints.len() as u32 {
        0 => shards::count(&cli.worker, &environment.devices, report::gpus()).await?,
        ranks => (ranks / stages, None),
    };
    let world_size = num_shard.saturating_mul(stages);
    if draft.is_some() && world_size > 1 {
        return Err(flags::no_shards(&format!("--num-shard {num_shard}")));
    }
    let connections = descriptors::for_connections(cli.router.max_connections, world_size)?;
    if connections < cli.router.max_connections {
        let wanted = std::mem::replace(&mut cli.router.max_connections, connections);
        warn!(
            "--max-connections {wanted}: {connections}, since the system allows no more open files (`ulimit -n`)"
        );
    }
    let port = penstock_router::bind(&cli.router).map_err(|error| error.to_string())?;
    let interpreter = python::find(cli.worker.python.as_deref(), &environment)?;
    let spawner = ChildSpawner::open().map_err(|error| format!("the system gives no threads: {error}"))?;
    info!("Penstock {}", env!("CARGO_PKG_VERSION"));
    if let Some(variable) = counted {
        info!("--num-shard {num_shard}, from the devices that {variable} shows");
    }
    if cli.env {
        report::environment(&interpreter).await;
    }
    let show_progress = environment.stderr_is_terminal && !cli.log.json_output;
    let wanted =
        Wanted { args: &cli.model, worker: &cli.worker, num_shard, router: Some(&cli.router), weights };
    let config = Config {
        args: cli.router.clone(),
        model_id: named.id(&cli.model),
        revision: cli.model.revision.clone(),
        speculate_model: named_draft.as_ref().zip(draft.as_ref()).map(|(named, draft)| named.id(draft)),
        num_shard,
        pipeline_parallel: stages,
    };
    let downloads = [Some(&named), named_draft.as_ref()].into_iter().flatten().find_map(Named::on_hub);
    let downloads = downloads.or(named_adapters.iter().find_map(adapters::Named::on_hub));
    let under_way = downloads.map_or("starting".into(), |id| format!("downloading {id}"));
    let (health, mut seen) = watch::channel(Health::Starting(under_way));
    let local = OnceLock::new();
    // The router answers from here on, so that nobody takes a long download for a dead process.
    let model = async {
        let model =
            model::obtain(named, &wanted, &interpreter, &spawner, &environment, show_progress).await?;
        let draft_model = match draft.as_ref().zip(named_draft) {
            Some((args, named)) => {
                let wanted = Wanted { args, ..wanted };
                let model =
                    model::obtain(named, &wanted, &interpreter, &spawner, &environment, show_progress);
                Some(model.await.map_err(of_draft_model)?)
            }
            None => None,
        };
        let adapters = adapters::obtain(
            &named_adapters,
            &cli.model,
            &interpreter,
            &spawner,
            &environment,
            show_progress,
        )
        .await?;
        contradictions::check_model(&model.folder, &cli, num_shard)?;
        let cache = cli.model.huggingface_hub_cache.as_deref();
        let tokenizer =
            tokenizer::obtain(&model.folder, cache, &interpreter, &spawner, &environment.secrets).await?;
        let load_timeout = Duration::from_secs(cli.worker.load_timeout);
        let source: Arc<dyn WorkerSource> = if endpoints.is_empty() {
            info!("loading {} from {}", model.id, model.folder.display());
            // Workers on one machine share its cores, or what a control group (`docker run --cpus`) leaves of them.
            let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u32;
            let traces = cli.router.otlp_endpoint.as_deref();
            let traces = traces.map(|collector| (collector, cli.router.otlp_service_name.as_str()));
            let share = (cores / world_size).max(1);
            let command = WorkerCommand {
                python: interpreter.clone(),
                arguments: worker_arguments(
                    &model.folder,
                    draft_model.as_ref().map(|model| model.folder.as_path()),
                    &adapters,
                    &cli.model,
                    &cli.worker,
                    share,
                    traces,
                ),
                world_size,
                stages,
                rendezvous: Rendezvous::of(&cli.worker),
                names_interface: environment.names_interface,
                secrets: environment.secrets.clone(),
                load_timeout,
                weight_bytes: model::weight_bytes(&model.folder)
                    + draft_model.as_ref().map_or(0, |model| model::weight_bytes(&model.folder))
                    + adapters.iter().map(|adapter| model::weight_bytes(&adapter.folder)).sum::<u64>(),
            };
            let sockets = SocketFolder::make(&environment.runtime_dir)?;
            let workers = Arc::new(Workers::start(command, spawner.clone(), sockets).await?);
            local.get_or_init(|| workers).clone()
        } else {
            let places = endpoints.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            info!("{} is computed by workers that are started by others, at {places}", model.id);
            Arc::new(RemoteWorkers::new(endpoints, load_timeout, contradictions::model_type(&model.folder)))
        };
        let Model { folder: dir, commit: sha, pipeline_tag, .. } = model;
        Ok((ModelFiles { dir, sha, pipeline_tag, tokenizer }, source))
    };
    let mut running = std::pin::pin!(penstock_router::run(port, config, model, health, drain));
    // What `wait_for` returns is a lock on the value, which must not outlive this line.
    let ready = async { drop(seen.wait_for(|health| *health == Health::Ready).await) };
    let outcome = tokio::select! {
        outcome = &mut running => outcome,
        () = ready => {
            info!("ready in {:.1} s, counted from the start of the command", began.elapsed().as_secs_f64());
            running.await
        }
    };
    if let Some(workers) = local.get() {
        workers.end().await;
    }
    outcome.map_err(|error| error.to_string())
}

/// What a worker is told, wherever it runs, but for its address and its rank. `cores` are its own; `traces` a collector, and what the
/// traces call the server.
fn worker_arguments(
    folder: &Path,
    draft_folder: Option<&Path>,
    adapters: &[Adapter],
    model: &ModelArgs,
    worker: &WorkerArgs,
    cores: u32,
    traces: Option<(&str, &str)>,
) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["--model-dir".into(), folder.into()];
    let optional = [
        ("--dtype", worker.dtype.map(|dtype| dtype.name().to_owned())),
        ("--quantize", worker.quantize.as_deref().and_then(flags::quantization_name).map(str::to_owned)),
        (
            "--kv-cache-dtype",
            worker.kv_cache_dtype.as_deref().and_then(flags::cache_dtype_name).map(str::to_owned),
        ),
        ("--packed-cache", worker.packed_cache.map(|kept| kept.name().to_owned())),
        ("--model-impl", worker.model_impl.map(|wanted| wanted.name().to_owned())),
        ("--device", worker.device.clone()),
        ("--threads", Some(worker.worker_threads.unwrap_or(cores).to_string())),
        ("--otlp-endpoint", traces.map(|(collector, _)| collector.to_owned())),
        ("--otlp-service-name", traces.map(|(_, name)| name.to_owned())),
    ];
    for (flag, value) in optional {
        if let Some(value) = value {
            arguments.extend([OsString::from(flag), OsString::from(value)]);
        }
    }
    let beside_downloads = model.huggingface_hub_cache.as_ref().map(|cache| cache.join("penstock-packed"));
    if let Some(folder) = worker.packed_cache_dir.clone().or(beside_downloads) {
        arguments.extend(["--packed-cache-dir".into(), folder.into()]);
    }
    if let Some(folder) = draft_folder {
        arguments.extend(["--draft-model-dir".into(), folder.into()]);
    }
    for Adapter { name, folder } in adapters {
        let mut pair = OsString::from(format!("{name}="));
        pair.push(folder);
        arguments.extend(["--lora-adapters".into(), pair]);
    }
    if worker.quantize_head {
        arguments.push("--quantize-head".into());
    }
    if worker.deterministic {
        arguments.push("--deterministic".into());
    }
    if model.trust_remote_code {
        arguments.push("--trust-remote-code".into());
    }
    arguments
}

/// The signals that ask to stop. SIGHUP is among them: the terminal is gone. Whoever started this process with SIGHUP ignored (`nohup`)
/// wants it to go on then.
struct Signals {
    term: Signal,
    interrupt: Signal,
    hangup: Option<Signal>,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        // Where /proc is not mounted nothing is known to be ignored.
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let hangup = SignalKind::hangup();
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: (!is_ignored(&status, hangup)).then(|| signal(hangup)).transpose()?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            () = heard(self.hangup.as_mut()) => "SIGHUP",
        }
    }
}

async fn heard(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Whether a process ignores a signal, by its `/proc/PID/status` (proc_pid_status(5)): bit n - 1 of `SigIgn` is signal n.
fn is_ignored(status: &str, kind: SignalKind) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (kind.as_raw_value() - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_were_ignored_at_the_start_are_known() {
        let nohup = "Name:\tpenstock\nSigBlk:\t0000000000000003\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000002\n";
        let ignored = |status: &str| {
            [SignalKind::hangup(), SignalKind::interrupt(), SignalKind::pipe()]
                .map(|kind| is_ignored(status, kind))
        };
        assert_eq!(ignored(nohup), [true, false, true]);
        assert_eq!(ignored("SigIgn:\t0000000000000002\n"), [false, true, false]);
        assert_eq!(ignored(""), [false; 3]);
    }
}
