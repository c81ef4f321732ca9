//! The router: HTTP in, step plans out. `run` wires the rooms:
//!
//! - `http` speaks to clients, in TGI's and OpenAI's dialects;
//! - `address` knows where clients come from, `limits` what this server can take, `images` what of its model is left out,
//!   `telemetry` what operators see;
//! - `grammars` compiles what a text has to be;
//! - below them `penstock-core` makes tokens of texts, batches of tokens, and texts of tokens.

pub mod address;
mod allowed_host;
pub mod config;
mod grammars;
pub mod http;
mod images;
pub mod limits;
pub mod telemetry;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::HeaderValue;
use penstock_core::generation::{Grammars, PromptLimits, Serving};
use penstock_core::health::{Health, HealthSender};
use penstock_core::prompt::{LoadError, Prompt};
use penstock_core::scheduler::{Handle, Namespace, Settings, Watermark};
use penstock_core::worker::recording::Recorder;
use penstock_core::worker::{Group, PrepareLimits, StartError, WorkerSource};
use penstock_proto::ModelDescription;
use penstock_proto::ids::TokenId;
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use crate::config::{Config, ModelFiles, RouterArgs};
use crate::http::chats::formats::ChatFormats;
use crate::http::state::{Loaded, Server};
use crate::limits::{FlagError, Limits};
use crate::telemetry::metrics;

/// Steps of this many tokens keep a GPU busy; more only makes running streams wait.
const STEP_TOKENS: u32 = 2048;
/// Each takes a row of logits in the workers' memory.
const STEP_DRAFTS: u32 = 64;
/// Of a model with recurrent layers each takes memory for a state as well: without speculation it has so many.
const FORCED_DRAFTS: u32 = 16;
/// Drafts of a sequence in a step where there is a draft model and nobody says how many.
const MODEL_DRAFTS: u32 = 5;
/// How often idle workers are asked whether they live.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// For streams to send their error when the server has failed, and for the scheduler to end.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Connections that the system holds until they are accepted.
const BACKLOG: u32 = 1024;

/// Why the router does not run. One line each, for the operator.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Flag(#[from] FlagError),
    /// The model cannot be had.
    #[error("{0}")]
    Model(String),
    #[error(transparent)]
    Prompt(#[from] LoadError),
    /// Loading it panicked.
    #[error("the tokenizer cannot be loaded: {0}")]
    Tokenizer(String),
    #[error(transparent)]
    Workers(#[from] StartError),
    /// The workers were lost and cannot be replaced, or the router is broken.
    #[error("{0}")]
    Failed(String),
    #[error("the HTTP server ended: {0}")]
    Http(String),
}

/// Ports below it may be root's alone (`net.ipv4.ip_unprivileged_port_start`).
const FIRST_FREE_PORT: u16 = 1024;

/// Checks the flags, and whether a record can be made, and takes the address of `--hostname` and `--port`, so that flags that contradict
/// each other and a taken port are errors before anything is downloaded or loaded. Connections are refused
/// until `run`.
pub fn bind(args: &RouterArgs) -> Result<TcpSocket, FlagError> {
    limits::check_flags(args)?;
    http::check_flags(args)?;
    check_record(args)?;
    let address = SocketAddr::new(args.hostname, args.port);
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    socket
        .and_then(|socket| {
            socket.set_reuseaddr(true)?;
            // Every connection has it from here. What a client does not take waits where its request is counted, and not
            // in megabytes of the kernel's; what is on its way to a client far away is not limited.
            socket2::SockRef::from(&socket).set_tcp_notsent_lowat(http::MAX_UNSENT)?;
            socket.bind(address)?;
            Ok(socket)
        })
        .map_err(|error| refused(address, &error))
}

fn refused(address: SocketAddr, error: &std::io::Error) -> FlagError {
    let port = address.port();
    FlagError(match error.kind() {
        std::io::ErrorKind::AddrInUse => format!("--port {port}: another program listens on it"),
        std::io::ErrorKind::PermissionDenied if port < FIRST_FREE_PORT => {
            format!(
                "--port {port}: not allowed for this user, who may have a port of {FIRST_FREE_PORT} or above: \
                 name one with --port or the variable PORT"
            )
        }
        std::io::ErrorKind::PermissionDenied => format!("--port {port}: not allowed for this user"),
        std::io::ErrorKind::AddrNotAvailable => {
            format!("--hostname {}: not an address of this machine", address.ip())
        }
        _ => format!("--hostname {}, --port {port}: {error}", address.ip()),
    })
}

/// Serves on `socket`, which `bind` gave, until `drain`, then lets running requests finish within `--shutdown-timeout`.
/// Answers from the first moment on: 503 with the reason until `health` is `Ready`; with `--listen-when-ready` connections are refused
/// until then. `model` may take hours, where it is a download; then there are workers that load it. Dropped, it ends at once.
pub async fn run(
    socket: TcpSocket,
    config: Config,
    model: impl Future<Output = Result<(ModelFiles, Arc<dyn WorkerSource>), String>>,
    health: HealthSender,
    drain: CancellationToken,
) -> Result<(), RunError> {
    let configured = SocketAddr::new(config.args.hostname, config.args.port);
    let address = socket.local_addr().map_err(|error| RunError::Http(error.to_string()))?;
    let listen = || socket.listen(BACKLOG).map_err(|error| refused(configured, &error));
    let shutdown_timeout = config.shutdown_timeout();
    let server = Server::new(config, health.subscribe())?;
    let stop = CancellationToken::new();
    let tls = http::tls(&server.config.args)?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let limits = http::ConnectionLimits::of(&server.config.args, drain.clone());
    let limiter = http::ConnectionLimiter::of(&server.config.args);
    let app = http::router(server.clone())?;
    let accept = |listener: TcpListener| {
        let accepting = http::serve(listener, tls, limits, limiter, app, stop.clone());
        AbortOnDropHandle::new(tokio::spawn(accepting))
    };
    // They end with the server; before, only by a panic.
    let mut telemetry = JoinSet::new();
    telemetry.spawn(metrics::upkeep());
    telemetry.spawn(metrics::follow(health.subscribe()));

    let loading = async {
        tokio::select! {
            scheduler = load(&server, model, &health) => scheduler.map(Some),
            () = drain.cancelled() => Ok(None),
        }
    };
    let (scheduler, mut accepting) = if server.config.args.listen_when_ready {
        let Some(scheduler) = loading.await? else {
            health.send_replace(Health::Draining);
            return Ok(());
        };
        (Some(scheduler), accept(listen()?))
    } else {
        let accepting = accept(listen()?);
        (loading.await?, accepting)
    };
    if scheduler.is_some() {
        info!("serving on {scheme}://{address}");
    }
    let mut seen = health.subscribe();
    let failure = tokio::select! {
        () = drain.cancelled() => None,
        failed = seen.wait_for(|health| matches!(health, Health::Failed(_))) => {
            failed.ok().and_then(|health| failure_of(&health))
        }
        Some(Err(panic)) = telemetry.join_next() => {
            let why = format!("the telemetry broke: {panic}");
            health.send_replace(Health::Failed(why.clone()));
            Some(why)
        }
        ended = &mut accepting => {
            return Err(RunError::Http(ended.map_or_else(|error| error.to_string(), |()| "no reason".into())));
        }
    };

    server.in_flight.close();
    let grace_period = match failure {
        None => {
            health.send_replace(Health::Draining);
            info!("draining: {} requests are in flight", server.in_flight.len());
            shutdown_timeout
        }
        Some(_) => LAST_WORDS,
    };
    if timeout(grace_period, server.in_flight.wait()).await.is_err() {
        warn!("{} requests did not finish in time", server.in_flight.len());
    }
    let failure = failure.or_else(|| failure_of(&health.borrow()));
    if let Some(scheduler) = scheduler {
        // What it still has is failed with a reason, so that those streams end with one.
        let _ = timeout(LAST_WORDS, scheduler.stop()).await;
    }
    stop.cancel();
    let _ = accepting.await;
    if let Some(tracing) = &server.tracing {
        tracing.stop().await;
    }
    match failure {
        None => Ok(()),
        Some(reason) => Err(RunError::Failed(reason)),
    }
}

/// Loads tokenizer and model side by side once their files are there, and starts the scheduler. Sets health to ready.
async fn load(
    server: &Server,
    model: impl Future<Output = Result<(ModelFiles, Arc<dyn WorkerSource>), String>>,
    health: &HealthSender,
) -> Result<Handle, RunError> {
    let (config, args) = (&server.config, &server.config.args);
    let (files, source) = model.await.map_err(RunError::Model)?;
    let began = Instant::now();
    let seconds = || began.elapsed().as_secs_f64();
    starting(health, "loading the model");

    let ModelFiles { dir, sha: model_sha, pipeline_tag, tokenizer } = files;
    let tokenizer_config = args.tokenizer_config_path.clone();
    let defaults = args.default_chat_template_kwargs.clone().unwrap_or_default();
    let workers = args.validation_workers;
    let prompt = async {
        let loading = move || {
            let (tokenizer, config) = (tokenizer.as_deref(), tokenizer_config.as_deref());
            let prompt = Prompt::load_with(&dir, tokenizer, config, &defaults, workers)?;
            Ok::<_, RunError>((prompt, images::are_left_out(&dir)))
        };
        let loaded = tokio::task::spawn_blocking(loading).await;
        let (prompt, images_left_out) = loaded.map_err(|error| RunError::Tokenizer(error.to_string()))??;
        info!("loaded the tokenizer in {:.1} s", seconds());
        Ok::<_, RunError>((Arc::new(prompt), images_left_out))
    };
    let group = async {
        let group = Group::start(source.as_ref(), |model| {
            info!(
                "the model is {}, served by {}: {} parameters, {} on {} ({})",
                model.model_type,
                model.recipe,
                model.parameters,
                model.dtype,
                model.device,
                model.device_name
            );
            starting(health, "warming up");
            if model.adapters.iter().any(|adapter| adapter.name == config.model_id) {
                let name = &config.model_id;
                return Err(format!(
                    "--lora-adapters: {name} is the served model's name: load the adapter as NAME=FOLDER"
                ));
            }
            prepare_limits(args, model).map_err(|error| error.0)
        });
        Ok::<_, RunError>(group.await?)
    };
    let ((prompt, images_left_out), group) = tokio::try_join!(prompt, group)?;

    let model = group.description().clone();
    let (max_step_tokens, max_slots) = (group.limits().max_step_tokens, group.limits().max_slots);
    let cache_tokens = group.cache_tokens();
    let limits = Limits::derive(args, &model, group.max_sequence_tokens())?;
    let limits = Limits { images_left_out, ..limits };
    info!(
        "warmed up in {:.1} s: {cache_tokens} tokens of KV cache, at most {} of prompt and {} in all per request",
        seconds(),
        limits.max_input_tokens,
        limits.max_total_tokens
    );
    let keeps_drafts = !model.has_state() || group.prepared().draft_states > 0;
    if speculate(args, &model) > 0 && !keeps_drafts {
        warn!(
            "--speculate has no effect: {} has recurrent layers, and memory has no room for their states in front of drafts; \
             lower --max-batch-size",
            model.model_type
        );
    }
    if limits.max_total_tokens > model.max_positions {
        warn!(
            "--max-total-tokens {}: this model was made for {} positions; its answers may get worse beyond them",
            limits.max_total_tokens, model.max_positions
        );
    }
    let chats = ChatFormats::of(&prompt, &args.tool_call_parser, &args.reasoning_parser);
    let eos = end_tokens(&model, &prompt, chats.stop_tokens);
    let (described, ends, vocabulary) = (model.clone(), eos.clone(), prompt.vocabulary().clone());
    let arguments = args.clone();
    // Takes a second for the largest vocabularies. Only requests with a grammar wait for it.
    let indexing = move || grammars::compiler(&arguments, &vocabulary, &described, &ends);
    let indexing = tokio::task::spawn_blocking(indexing);
    let grammars = async { indexing.await.unwrap_or_else(|panic| Err(panic.to_string())) };
    metrics::install(
        limits.max_input_tokens,
        limits.max_total_tokens,
        args.max_concurrent_requests,
        config.num_shard * config.pipeline_parallel,
    );

    let settings = Settings {
        max_live: args.max_concurrent_requests,
        target_itl: args.target_itl_ms.map(Duration::from_millis),
        eos,
        step_timeout: Duration::from_secs_f64(args.step_timeout),
        check_interval: CHECK_INTERVAL,
        speculate: if keeps_drafts { speculate(args, &model) } else { 0 },
        speculate_corpus_tokens: args.speculate_corpus_tokens,
        block_events: args.block_events,
        recorder: recorder(args)?,
    };
    let speculate = settings.speculate;
    let cache_groups = group.prepared().groups.clone();
    let scheduler = penstock_core::scheduler::spawn(group, source.clone(), settings, health.clone()).await;
    let cache_namespace = cache_namespace(config, model_sha.as_deref());
    server.load(Loaded {
        chats,
        openapi: Default::default(),
        model_sha,
        pipeline_tag,
        serving: Serving {
            prompt,
            scheduler: scheduler.clone(),
            limits: PromptLimits {
                max_input_tokens: limits.max_input_tokens,
                max_total_tokens: limits.max_total_tokens,
                max_new_tokens: limits.max_new_tokens,
                vocab_size: model.vocab_size,
            },
            decoder_start: model.decoder_start_ids.iter().copied().map(TokenId).collect(),
            grammars: Arc::new(Grammars::new(grammars, args.validation_workers)),
            cache_namespace,
            watermark: watermark(args, model.vocab_size),
            shared_cache: args.shared_prefix_cache,
            digests: Default::default(),
        },
        compute_type: args
            .compute_type
            .clone()
            .unwrap_or_else(|| compute_type(config.num_shard * config.pipeline_parallel, &model.device_name)),
        limits,
        model,
        cache_groups,
        cache_tokens,
        speculate,
        max_step_tokens,
        max_slots,
    });
    health.send_if_modified(|health| {
        let first = matches!(health, Health::Starting(_));
        if first {
            *health = Health::Ready;
        }
        first
    });
    Ok(scheduler)
}

fn failure_of(health: &Health) -> Option<String> {
    match health {
        Health::Failed(why) => Some(why.clone()),
        _ => None,
    }
}

fn starting(health: &HealthSender, what: &str) {
    health.send_if_modified(|health| {
        let still = matches!(health, Health::Starting(_));
        if still {
            *health = Health::Starting(what.into());
        }
        still
    });
}

fn prepare_limits(args: &RouterArgs, model: &ModelDescription) -> Result<PrepareLimits, FlagError> {
    let max_sequence_tokens = limits::asked_sequence_tokens(args, model)?;
    let max_slots = args.max_slots();
    let max_step_tokens = limits::max_step_tokens(args, model, max_slots, STEP_TOKENS)?;
    // Each of them feeds a token in a step.
    let max_slots = max_slots.min(max_step_tokens);
    Ok(PrepareLimits {
        max_slots,
        max_step_tokens,
        max_sequence_tokens,
        max_cache_tokens: args.max_batch_total_tokens.unwrap_or(0),
        memory_fraction: args.memory_fraction,
        max_step_drafts: (speculate(args, model) * max_slots)
            .max(forced_drafts(args, model))
            .min(STEP_DRAFTS),
    })
}

/// What a grammar forces is fed as drafts, too.
fn forced_drafts(args: &RouterArgs, model: &ModelDescription) -> u32 {
    match (args.disable_grammar_support, model.has_state()) {
        (true, _) => 0,
        (false, true) => FORCED_DRAFTS,
        (false, false) => STEP_DRAFTS,
    }
}

/// The most drafts of a sequence in a step.
fn speculate(args: &RouterArgs, model: &ModelDescription) -> u32 {
    args.speculate.unwrap_or(if model.draft_model.is_some() { MODEL_DRAFTS } else { 0 })
}

/// What ends a text, of the vocabulary. A worker takes no other token in a plan, and samples none. `stop_tokens` are those that the
/// model is known to end its answers with.
fn end_tokens(model: &ModelDescription, prompt: &Prompt, stop_tokens: &[&str]) -> Vec<TokenId> {
    let mut eos: Vec<_> = model.eos_ids.iter().copied().map(TokenId).chain(prompt.eos()).collect();
    for name in stop_tokens {
        let token = prompt.vocabulary().tokenizer().token_to_id(name).map(TokenId);
        if let Some(token) = token.filter(|token| !eos.contains(token)) {
            info!("{name} ends texts, too, which this model's files do not say");
            eos.push(token);
        }
    }
    eos.sort_unstable();
    eos.dedup();
    let known = eos.partition_point(|token| token.0 < model.vocab_size);
    for TokenId(beyond) in eos.drain(known..) {
        warn!(
            "token {beyond} is to end texts, as config.json, generation_config.json or the tokenizer says, and the model's \
             vocabulary has {} tokens: it will never come",
            model.vocab_size
        );
    }
    eos
}

fn watermark(args: &RouterArgs, vocab_size: u32) -> Watermark {
    let greens = (args.watermark_gamma * f64::from(vocab_size)) as u32;
    Watermark { greens: greens.max(1), delta: args.watermark_delta }
}

/// The same on every server of this model; `docs/block-events.md` says how it is made.
fn cache_namespace(config: &Config, model_sha: Option<&str>) -> Namespace {
    let revision = config.revision.as_deref().unwrap_or_default();
    let parts = [config.model_id.as_str(), revision, model_sha.unwrap_or_default()];
    Namespace::of(parts.iter().map(|part| part.as_bytes()))
}

/// Whether the file of `--record` can be made, which is done when the model is loaded: a start that does not come so far leaves no
/// file, which would be in the way of the next one.
fn check_record(args: &RouterArgs) -> Result<(), FlagError> {
    let Some(path) = &args.record else { return Ok(()) };
    let made = std::fs::OpenOptions::new().write(true).create_new(true).open(path);
    made.and_then(|_| std::fs::remove_file(path)).map_err(|error| no_record(path, &error))
}

/// With `--record`.
fn recorder(args: &RouterArgs) -> Result<Option<Arc<Recorder>>, FlagError> {
    let Some(path) = &args.record else { return Ok(None) };
    let recorder = Recorder::create(path, args.record_limit).map_err(|error| no_record(path, &error))?;
    Ok(Some(Arc::new(recorder)))
}

fn no_record(path: &Path, error: &std::io::Error) -> FlagError {
    let path = path.display();
    FlagError(match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            format!("--record {path}: there is a file of this name, and each start needs a new one")
        }
        _ => format!("--record {path}: {error}"),
    })
}

/// Such as `1-nvidia-l4`.
fn compute_type(devices: u32, device_name: &str) -> HeaderValue {
    let words = device_name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let name = words.map(str::to_ascii_lowercase).collect::<Vec<_>>().join("-");
    HeaderValue::from_str(&format!("{devices}-{name}")).expect("digits, letters and dashes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_cannot_be_made_is_told_of_before_anything_is_loaded() {
        let folder = tempfile::tempdir().expect("a folder");
        let bound = |path: &Path| {
            let command = <RouterArgs as clap::Args>::augment_args(clap::Command::new("penstock"));
            let path = path.to_str().expect("UTF-8");
            let line = ["penstock", "--hostname", "127.0.0.1", "--port", "0", "--record", path];
            let args = clap::FromArgMatches::from_arg_matches(&command.get_matches_from(line));
            bind(&args.expect("flags")).map(|_| ()).map_err(|error| error.0)
        };
        let record = folder.path().join("record");
        assert_eq!(bound(&record), Ok(()));
        assert!(!record.exists(), "it is made when the model is loaded");
        std::fs::write(&record, "an earlier one").expect("written");
        let line = bound(&record).expect_err("it is there");
        assert!(line.ends_with("there is a file of this name, and each start needs a new one"), "{line}");
        assert_eq!(std::fs::read(&record).expect("read"), b"an earlier one");
        let line = bound(&folder.path().join("none").join("record")).expect_err("there is no folder");
        assert!(line.starts_with("--record ") && line.contains("No such file or directory"), "{line}");
    }

    #[test]
    fn a_port_that_is_roots_is_refused_with_those_that_are_not() {
        let denied = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        let line = refused(([0, 0, 0, 0], 80).into(), &denied).to_string();
        for part in ["--port 80: not allowed", "1024 or above", "--port or the variable PORT"] {
            assert!(line.contains(part), "{line}");
        }
        let line = refused(([0, 0, 0, 0], 8080).into(), &denied).to_string();
        assert_eq!(line, "--port 8080: not allowed for this user");
    }
}
