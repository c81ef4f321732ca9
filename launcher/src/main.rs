//! The `penstock` command: parses flags, gets the model, starts the workers, runs the router in this
//! process, and supervises both. Read `serve` first.

mod backoff;
mod child;
mod doctor;
mod errand;
mod flags;
mod log;
mod model;
mod nursery;
mod python;
mod report;
mod shards;
mod sockets;
mod surroundings;
mod tgi;
mod tokenizer;
mod workers;

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_router::config::Config;
use penstock_router::health::Health;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::flags::Cli;
use crate::model::{Model, Named};
use crate::nursery::Nursery;
use crate::shards::Rendezvous;
use crate::sockets::SocketFolder;
use crate::surroundings::Surroundings;
use crate::workers::{WorkerCommand, Workers};

/// Beyond `--shutdown-timeout`, for what the router does after its last request.
const SHUTDOWN_SLACK: Duration = Duration::from_secs(2);
/// For an aborted task to let go of what it holds.
const LAST_MOMENT: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let began = Instant::now();
    let around = Surroundings::read();
    if std::env::args_os().nth(1).is_some_and(|word| word == "doctor") {
        return doctor::run(std::env::args_os().skip(1), &around);
    }
    let (cli, warnings) = match flags::parse(std::env::args_os()) {
        Ok(parsed) => parsed,
        Err(refusal) => return ExitCode::from(refusal.report()),
    };
    let outcome = log::start(&cli.log, &around).and_then(|()| {
        for line in warnings {
            warn!("{line}");
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(|error| format!("the system gives no threads: {error}"))?;
        let outcome = runtime.block_on(supervise(&cli, &around, began));
        // Requests that outlived their time are not waited for.
        runtime.shutdown_background();
        outcome
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(line) => {
            // Where people read, it stands out on its own; where a machine does, it is an event.
            if cli.log.json_output {
                error!("{line}")
            } else {
                eprintln!("error: {line}")
            }
            ExitCode::FAILURE
        }
    }
}

/// Serves until a signal says stop: the first drains, the second ends at once. A stop is no failure.
/// `serve` is a task of its own, so that whatever keeps it busy cannot keep a signal from being heard.
async fn supervise(cli: &Cli, around: &Surroundings, began: Instant) -> Result<(), String> {
    let drain = CancellationToken::new();
    let mut signals = Signals::listen().map_err(|error| format!("signals cannot be watched: {error}"))?;
    let mut serving = tokio::spawn(serve(cli.clone(), around.clone(), began, drain.clone()));
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

/// Every connection is a file: takes what the system allows of them. Many systems start programs with 1,024.
fn allow_open_files(connections: u32) {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    // Workers, sockets, models and logs need some, too.
    let wanted = u64::from(connections) + 256;
    if soft >= wanted {
        return;
    }
    let _ = setrlimit(Resource::RLIMIT_NOFILE, wanted.min(hard), hard);
    if hard < wanted {
        warn!("the system allows {hard} open files: fewer connections than --max-connections {connections}");
    }
}

/// The whole life of the server. Returns when it has drained, or why it cannot serve.
async fn serve(
    cli: Cli,
    around: Surroundings,
    began: Instant,
    drain: CancellationToken,
) -> Result<(), String> {
    let named = Named::read(&cli.model)?;
    let (num_shard, counted) = shards::count(&cli.worker, &around.devices, report::gpus()).await?;
    let stages = cli.worker.pipeline_parallel;
    let world_size = num_shard.saturating_mul(stages);
    allow_open_files(cli.router.max_connections);
    let port = penstock_router::bind(&cli.router).map_err(|error| error.to_string())?;
    let interpreter = python::find(cli.worker.python.as_deref(), &around)?;
    let nursery = Nursery::open().map_err(|error| format!("the system gives no threads: {error}"))?;
    info!("Penstock {}", env!("CARGO_PKG_VERSION"));
    if let Some(variable) = counted {
        info!("--num-shard {num_shard}, from the devices that {variable} shows");
    }
    if cli.env {
        report::environment(&interpreter).await;
    }
    let show_progress = around.stderr_is_terminal && !cli.log.json_output;
    let model = tokio::select! {
        model = model::obtain(named, &cli.model, &cli.worker, &interpreter, &nursery, &around, show_progress) => model?,
        () = drain.cancelled() => return Ok(()),
    };
    let cache = cli.model.huggingface_hub_cache.as_deref();
    let tokenizer = tokio::select! {
        tokenizer = tokenizer::obtain(&model.folder, cache, &interpreter, &nursery) => tokenizer?,
        () = drain.cancelled() => return Ok(()),
    };
    info!("loading {} from {}", model.id, model.folder.display());

    let sockets = SocketFolder::make(&around.runtime_dir)?;
    let command = WorkerCommand {
        python: interpreter,
        arguments: worker_arguments(&cli, &model, world_size),
        world_size,
        stages,
        rendezvous: Rendezvous::of(&cli.worker),
        names_interface: around.names_interface,
    };
    let workers = Arc::new(Workers::start(command, nursery, sockets).await?);

    let config = Config {
        args: cli.router.clone(),
        model_id: model.id,
        revision: cli.model.revision.clone(),
        model_sha: model.commit,
        model_dir: model.folder,
        tokenizer_file: tokenizer,
        num_shard,
        pipeline_parallel: stages,
    };
    let (health, mut seen) = watch::channel(Health::Starting("starting".into()));
    let mut running = std::pin::pin!(penstock_router::run(port, config, workers.clone(), health, drain));
    // What `wait_for` returns is a lock on the value, which must not outlive this line.
    let ready = async { drop(seen.wait_for(|health| *health == Health::Ready).await) };
    let outcome = tokio::select! {
        outcome = &mut running => outcome,
        () = ready => {
            info!("ready in {:.1} s, counted from the start of the command", began.elapsed().as_secs_f64());
            running.await
        }
    };
    workers.end().await;
    outcome.map_err(|error| error.to_string())
}

fn worker_arguments(cli: &Cli, model: &Model, world_size: u32) -> Vec<OsString> {
    // Workers on one machine share its cores, or what a control group (`docker run --cpus`) leaves of them.
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u32;
    let share = (cores / world_size).max(1);
    let mut arguments: Vec<OsString> = vec!["--model-dir".into(), model.folder.clone().into()];
    let optional = [
        ("--dtype", cli.worker.dtype.map(|dtype| dtype.name().to_owned())),
        ("--model-impl", cli.worker.model_impl.map(|wanted| wanted.name().to_owned())),
        ("--device", cli.worker.device.clone()),
        ("--threads", Some(cli.worker.worker_threads.unwrap_or(share).to_string())),
        ("--otlp-endpoint", cli.router.otlp_endpoint.clone()),
        (
            "--otlp-service-name",
            cli.router.otlp_endpoint.as_ref().map(|_| cli.router.otlp_service_name.clone()),
        ),
    ];
    for (flag, value) in optional {
        if let Some(value) = value {
            arguments.extend([OsString::from(flag), OsString::from(value)]);
        }
    }
    if cli.worker.deterministic {
        arguments.push("--deterministic".into());
    }
    if cli.model.trust_remote_code {
        arguments.push("--trust-remote-code".into());
    }
    arguments
}

/// The signals that ask to stop. SIGHUP is among them: the terminal is gone.
struct Signals {
    term: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.hangup.recv() => "SIGHUP",
        }
    }
}
