//! The command line: every flag and its environment variable, named as in TGI where both have it, and
//! the combinations that make no sense. Read once by `main`, before anything is downloaded or started.
//! TGI's flags that Penstock lacks are in `tgi`.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use clap::builder::{BoolishValueParser, OsStr, Resettable};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches, Parser, ValueEnum};
use penstock_core::worker::endpoint::Address;
use penstock_router::config::RouterArgs;
use penstock_router::limits::check_flags;

use crate::environment::Environment;
use crate::log::{self, LogArgs};
use crate::remote::{self, RemoteArgs};
use crate::{adapters, tgi_flags, usage_errors};

#[derive(Parser, Clone, Debug)]
#[command(
    name = "penstock",
    version,
    about = "Penstock, a server for large language models",
    after_help = "`penstock doctor --model-id ...` says what would become of a model, and serves nothing. \
                  `penstock worker --listen ...` computes for a server on another host. \
                  `penstock replay FILE` executes again what --record has recorded.\n\n\
                  A flag's environment variable is named in [env: ...]; the flag wins. \
                  Without --model-id, Penstock serves the tiny model that ships with it.",
    next_help_heading = "Other"
)]
pub struct Cli {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub worker: WorkerArgs,
    #[command(flatten)]
    pub remote: RemoteArgs,
    #[command(flatten)]
    pub router: RouterArgs,
    #[command(flatten)]
    pub log: LogArgs,
    /// Log versions and devices at start
    #[arg(long, short)]
    pub env: bool,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// A model on the hub (`owner/name`), or a local folder [default: the tiny model that ships]
    #[arg(long, env)]
    pub model_id: Option<String>,
    /// Branch, tag or commit of the hub's model
    #[arg(long, env)]
    pub revision: Option<String>,
    /// Where downloads are kept [default: as HF_HUB_CACHE and HF_HOME say]
    #[arg(long, env)]
    pub huggingface_hub_cache: Option<PathBuf>,
    /// A folder that holds the model's files, to use instead of a download
    #[arg(long, env)]
    pub weights_cache_override: Option<PathBuf>,
    /// Use pickled weights (pytorch_model.bin) where the model has no safetensors files, and let
    /// transformers run code that comes with the model
    #[arg(long, env, value_parser = BoolishValueParser::new())]
    pub trust_remote_code: bool,
    /// A smaller model with the same tokenizer, on the hub or a local folder, which makes drafts in the same worker
    #[arg(long, env)]
    pub speculate_model: Option<String>,
    /// Branch, tag or commit of that model on the hub
    #[arg(long, env)]
    pub speculate_model_revision: Option<String>,
    /// LoRA adapters that requests may choose, as peft saves them: `owner/name` or `owner/name@revision` on the hub, or
    /// `NAME=FOLDER`, with commas between
    #[arg(long, env)]
    pub lora_adapters: Option<String>,
}

impl ModelArgs {
    /// What is asked for of the draft model, in the place of the model that is served; `None`: there is none.
    pub fn of_draft_model(&self) -> Option<Self> {
        let model_id = Some(self.speculate_model.clone()?);
        let revision = self.speculate_model_revision.clone();
        let nothing =
            Self { weights_cache_override: None, speculate_model: None, lora_adapters: None, ..self.clone() };
        Some(Self { model_id, revision, speculate_model_revision: None, ..nothing })
    }

    /// The adapters that are asked for, and a warning for what has no effect.
    pub fn adapters(&self) -> Result<(Vec<adapters::Named>, Vec<String>), String> {
        adapters::parse(self.lora_adapters.as_deref().unwrap_or_default())
    }
}

/// What was said of the model that is served, of the draft model.
pub fn of_draft_model(line: String) -> String {
    line.replace("--model-id", "--speculate-model")
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Workers")]
pub struct WorkerArgs {
    /// Type of weights and activations [default: the checkpoint's]
    #[arg(long, env)]
    pub dtype: Option<Dtype>,
    /// Quantize the weights while they are loaded: int8 (or eetq, TGI's name) or int4, with bf16 beside them.
    /// int4 has groups of 32 inputs, int4-g64 and int4-g128 larger ones, and int4-zp, int4-g64-zp and int4-g128-zp zero points.
    /// Checkpoints of 4 bits (GPTQ, AWQ, compressed-tensors, AutoRound, MXFP4) stay that without it; none serves them in bf16.
    /// awq, compressed-tensors, fp8 and gptq are taken and change nothing
    #[arg(long, env)]
    pub quantize: Option<String>,
    /// With --quantize, the matrix that makes logits as well
    #[arg(long, env, value_parser = BoolishValueParser::new())]
    pub quantize_head: bool,
    /// How the KV cache holds its numbers, on a CPU: int8, fp8_e4m3fn or fp8_e5m2 take half the memory of bf16 (auto)
    #[arg(long, env)]
    pub kv_cache_dtype: Option<String>,
    /// Keep what the CPU engine has packed for the next start, which maps it: quantized weights and small
    /// checkpoints (auto), all (on) or none (off) [default: auto]
    #[arg(long, env)]
    pub packed_cache: Option<PackedCache>,
    /// Where [default: penstock/packed in HF_HOME, or penstock-packed in --huggingface-hub-cache]
    #[arg(long, env)]
    pub packed_cache_dir: Option<PathBuf>,
    /// What runs the model: a recipe (penstock), or Hugging Face transformers with Penstock's cache
    /// [default: a recipe where there is one]
    #[arg(long, env)]
    pub model_impl: Option<ModelImpl>,
    /// Where the model runs: cpu, cuda or cuda:N [default: cuda if there is a GPU, else cpu]
    #[arg(long, env, value_parser = parse_device)]
    pub device: Option<String>,
    /// Shards of the model, each a process and a device [default: one for each device that CUDA_VISIBLE_DEVICES
    /// or NVIDIA_VISIBLE_DEVICES shows, else 1]
    #[arg(long, env, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub num_shard: Option<u32>,
    /// Stages that the layers are divided over, each of --num-shard processes
    #[arg(long, env, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub pipeline_parallel: u32,
    /// `true`: a shard for each visible device; `false`: one shard
    #[arg(long, env, value_parser = BoolishValueParser::new())]
    pub sharded: Option<bool>,
    /// Host at which the shards find each other [default: none is needed; localhost beside a port]
    #[arg(long, env, value_parser = parse_master_addr)]
    pub master_addr: Option<String>,
    /// Port at which the shards find each other [default: none is needed; 29500 beside a host]
    #[arg(long, env, value_parser = clap::value_parser!(u16).range(1..))]
    pub master_port: Option<u16>,
    /// What a token gets does not depend on what else is in the batch, in bf16 and fp16 too; slower
    #[arg(long, env, value_parser = BoolishValueParser::new())]
    pub deterministic: bool,
    /// CPU threads that compute, in each worker [default: the cores, divided among the workers]
    #[arg(long, env, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub worker_threads: Option<u32>,
    /// Seconds without progress after which workers that load the model are taken for hung, and replaced
    #[arg(long, env, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub load_timeout: u64,
    /// The Python that runs the workers [default: the one beside this program]
    #[arg(long, env = "PENSTOCK_PYTHON")]
    pub python: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModelImpl {
    Auto,
    Penstock,
    Transformers,
}

impl ModelImpl {
    pub fn name(self) -> &'static str {
        match self {
            ModelImpl::Auto => "auto",
            ModelImpl::Penstock => "penstock",
            ModelImpl::Transformers => "transformers",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PackedCache {
    Auto,
    On,
    Off,
}

impl PackedCache {
    pub fn name(self) -> &'static str {
        match self {
            PackedCache::Auto => "auto",
            PackedCache::On => "on",
            PackedCache::Off => "off",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Dtype {
    Float32,
    Bfloat16,
    Float16,
}

impl Dtype {
    pub fn name(self) -> &'static str {
        match self {
            Dtype::Float32 => "float32",
            Dtype::Bfloat16 => "bfloat16",
            Dtype::Float16 => "float16",
        }
    }
}

/// Values of --quantize, and what the worker calls them.
const QUANTIZATIONS: [(&str, &str); 11] = [
    ("int8", "int8"),
    ("eetq", "int8"),
    ("int4", "int4"),
    ("int4-g32", "int4"),
    ("int4-zp", "int4-zp"),
    ("int4-g32-zp", "int4-zp"),
    ("int4-g64", "int4-g64"),
    ("int4-g64-zp", "int4-g64-zp"),
    ("int4-g128", "int4-g128"),
    ("int4-g128-zp", "int4-g128-zp"),
    ("none", "none"),
];

/// TGI's names of how a checkpoint is quantized, which it says itself.
const AS_PUBLISHED: [&str; 4] = ["awq", "compressed-tensors", "fp8", "gptq"];

/// What the worker calls a value of --quantize. None: one that asks for nothing while weights are loaded, or an unknown one.
pub fn quantization_name(given: &str) -> Option<&'static str> {
    QUANTIZATIONS.iter().find(|(name, _)| *name == given).map(|(_, name)| *name)
}

/// Values of --kv-cache-dtype, and what the worker calls them.
const CACHE_DTYPES: [(&str, &str); 8] = [
    ("auto", "auto"),
    ("bfloat16", "auto"),
    ("bf16", "auto"),
    ("int8", "int8"),
    ("fp8", "fp8_e4m3fn"),
    ("fp8_e4m3", "fp8_e4m3fn"),
    ("fp8_e4m3fn", "fp8_e4m3fn"),
    ("fp8_e5m2", "fp8_e5m2"),
];

/// What the worker calls a value of --kv-cache-dtype. None: what it does by itself, or an unknown one.
pub fn cache_dtype_name(given: &str) -> Option<&'static str> {
    CACHE_DTYPES.iter().find(|(name, _)| *name == given).map(|(_, name)| *name).filter(|name| *name != "auto")
}

/// What stops the launcher before it starts.
#[derive(Debug)]
pub enum Refusal {
    /// For clap to print: help, version, or a flag that does not exist or parse (exit code 2).
    Clap(clap::Error),
    /// A flag that makes no sense here, in one line (exit code 1).
    Flag(String),
}

/// The word by which Amazon SageMaker runs an image, and where it calls what it has run
/// (https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-inference-code.html).
const SERVE: &str = "serve";
const SAGEMAKER_PORT: &str = "8080";

/// Parses and checks the command line and, through clap, the environment. Also returns one line for each
/// flag that was given and has no effect.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<(Cli, Vec<String>), Refusal> {
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    let mut command = lenient_environment(tgi_flags::declare(Cli::command()))?;
    // `--max-total-tokens -5` is a wrong value, and no flag -5.
    command = command.mut_args(|arg| {
        let takes_values = arg.get_action().takes_values();
        if takes_values { arg.allow_negative_numbers(true) } else { arg }
    });
    if arguments.get(1).is_some_and(|word| word == SERVE) {
        arguments.remove(1);
        // PORT may be the image's own default.
        command = command.mut_arg("port", |port| port.env(Resettable::Reset).default_value(SAGEMAKER_PORT));
    }
    let matches = matches(&command, &arguments)?;
    let mut warnings = tgi_flags::check(&matches).map_err(Refusal::Flag)?;
    let cli =
        Cli::from_arg_matches(&matches).map_err(|error| Refusal::Clap(error.format(&mut command.clone())))?;
    warnings.extend(check(&cli).map_err(Refusal::Flag)?);
    Ok((cli, warnings))
}

/// What `command` reads of these arguments and the environment.
pub fn matches(command: &clap::Command, arguments: &[OsString]) -> Result<clap::ArgMatches, Refusal> {
    let explained = |error| Refusal::Clap(usage_errors::explained(error, command, arguments));
    command.clone().try_get_matches_from(arguments).map_err(explained)
}

/// TGI's second names of variables, those of its SageMaker image among them, and what container platforms put into the environment by themselves.
pub fn lenient_environment(command: clap::Command) -> Result<clap::Command, Refusal> {
    const SECOND_NAMES: [(&str, &str, &str); 7] = [
        ("max_input_tokens", "MAX_INPUT_TOKENS", "MAX_INPUT_LENGTH"),
        ("shutdown_timeout", "SHUTDOWN_TIMEOUT", "GRACEFUL_TERMINATION_TIMEOUT"),
        ("model_id", "MODEL_ID", "HF_MODEL_ID"),
        ("revision", "REVISION", "HF_MODEL_REVISION"),
        ("num_shard", "NUM_SHARD", "SM_NUM_GPUS"),
        ("quantize", "QUANTIZE", "HF_MODEL_QUANTIZE"),
        ("trust_remote_code", "TRUST_REMOTE_CODE", "HF_MODEL_TRUST_REMOTE_CODE"),
    ];
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    for (_, first, second) in SECOND_NAMES {
        if set(first) && set(second) {
            return Err(Refusal::Flag(format!("{first} and {second} mean the same: set one of them")));
        }
    }
    Ok(command.mut_args(|arg| {
        let Some(variable) = arg.get_env().map(|name| name.to_string_lossy().into_owned()) else {
            return arg;
        };
        // Vertex AI's variable is about this container; PORT may be the image's own default.
        if arg.get_id() == "port" && set("AIP_HTTP_PORT") {
            return arg.env("AIP_HTTP_PORT");
        }
        if let Some((_, _, second)) =
            SECOND_NAMES.iter().find(|(id, _, second)| arg.get_id() == id && set(second))
        {
            return arg.env(OsStr::from(*second));
        }
        // The older of huggingface_hub's two names: where both are set, it takes the newer one, which is Python's to read.
        if variable == "HUGGINGFACE_HUB_CACHE" && set("HF_HUB_CACHE") {
            return arg.env(Resettable::Reset);
        }
        // Compose files and charts write `REVISION=` for "not given".
        let empty = std::env::var_os(&variable).is_some_and(|value| value.is_empty());
        // Docker and many shells set HOSTNAME to the machine's name, which says nothing about where to listen.
        let machine_name = variable == "HOSTNAME"
            && std::env::var("HOSTNAME").is_ok_and(|value| value.parse::<std::net::IpAddr>().is_err());
        if empty || machine_name { arg.env(Resettable::Reset) } else { arg }
    }))
}

/// Refuses combinations that cannot be meant; answers a warning for each flag that has no effect.
fn check(cli: &Cli) -> Result<Vec<String>, String> {
    let router = &cli.router;
    let warnings = check_model_and_workers(&cli.model, &cli.worker)?;
    check_remote_workers(&cli.remote, &cli.worker)?;
    if cli.model.speculate_model.is_some() && !cli.remote.worker_address.is_empty() {
        return Err("--speculate-model is said to `penstock worker`, which holds both models, and not beside --worker-address".into());
    }
    if cli.model.lora_adapters.as_deref().is_some_and(|list| !list.is_empty())
        && !cli.remote.worker_address.is_empty()
    {
        return Err("--lora-adapters is said to `penstock worker`, which holds the adapters, and not beside --worker-address".into());
    }
    check_flags(router).map_err(|error| error.to_string())?;
    let guesses = router.speculate.map_or(cli.model.speculate_model.is_some(), |most| most > 0);
    if router.speculate_corpus_tokens > 0 && !guesses {
        return Err(
            "--speculate-corpus-tokens needs --speculate, which says how many tokens are guessed".into()
        );
    }
    if let (Some(tokens), Some(rows)) = (router.max_batch_prefill_tokens, router.max_batch_size)
        && tokens < rows
    {
        return Err(format!(
            "--max-batch-prefill-tokens ({tokens}) must be at least --max-batch-size ({rows}): \
             each running sequence needs one token of every step"
        ));
    }

    if let Some(path) = &router.tokenizer_config_path
        && !path.is_file()
    {
        return Err(format!("--tokenizer-config-path: {} is not a file", path.display()));
    }
    Ok(warnings)
}

/// Of flags about workers on other hosts and those about workers that are started here.
fn check_remote_workers(remote: &RemoteArgs, worker: &WorkerArgs) -> Result<(), String> {
    let given = remote.tls.given()?;
    if remote.worker_address.is_empty() {
        return match given {
            false => Ok(()),
            true => Err("--worker-tls-cert needs --worker-address".into()),
        };
    }
    let by_tls = remote.worker_address.iter().find(|address| matches!(address, Address::Tls(_)));
    if let Some(address) = by_tls.filter(|_| !given) {
        return Err(remote::needs_tls("--worker-address", address));
    }
    if !remote.allow_plain_tcp {
        remote::check_exposure("--worker-address", &remote.worker_address)?;
    }
    let of_the_worker = [
        ("--dtype", worker.dtype.is_some()),
        ("--quantize", worker.quantize.as_deref().is_some_and(|name| !name.is_empty())),
        ("--kv-cache-dtype", worker.kv_cache_dtype.as_deref().is_some_and(|name| !name.is_empty())),
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
    let (ranks, stages) = (remote.worker_address.len() as u32, worker.pipeline_parallel);
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

/// Those flags of them that the doctor has, too.
pub fn check_model_and_workers(model: &ModelArgs, worker: &WorkerArgs) -> Result<Vec<String>, String> {
    let mut warnings = check_of_each_host(model, worker)?;
    let shards = worker.num_shard.unwrap_or(1);
    let (parts, asked) = match worker.pipeline_parallel {
        1 => (shards, format!("--num-shard {shards}")),
        stages => (shards.saturating_mul(stages), format!("--pipeline-parallel {stages}")),
    };
    if let Some(device) = worker.device.as_deref().filter(|device| device.starts_with("cuda:") && parts > 1) {
        return Err(format!("--device {device} is one device, and {asked} needs {parts}: say cuda"));
    }
    if worker.num_shard == Some(1) && parts == 1 {
        warnings.extend(no_other_to_find(worker));
    }
    if model.speculate_model.is_some() && parts > 1 {
        return Err(no_shards(&asked));
    }
    Ok(warnings)
}

/// What holds on every host of the model's, the ranks of others left out.
pub fn check_of_each_host(model: &ModelArgs, worker: &WorkerArgs) -> Result<Vec<String>, String> {
    let mut warnings = check_model(model)?;
    check_quantization(worker)?;
    if let Some(name) = worker.quantize.as_deref().filter(|name| AS_PUBLISHED.contains(name)) {
        warnings
            .push(format!("--quantize {name} changes nothing: a checkpoint says itself how it is quantized"));
    }
    check_cache_dtype(worker)?;
    check_python(worker)?;
    match (worker.sharded, worker.num_shard) {
        (Some(false), Some(shards)) if shards > 1 => {
            Err(format!("--sharded false contradicts --num-shard {shards}"))
        }
        (Some(true), Some(1)) => Err("--sharded true needs a --num-shard above 1".into()),
        _ => Ok(warnings),
    }
}

/// Of one worker alone: a warning for each flag by which it would meet others.
pub fn no_other_to_find(worker: &WorkerArgs) -> impl Iterator<Item = String> {
    let flags =
        [("--master-addr", worker.master_addr.is_some()), ("--master-port", worker.master_port.is_some())];
    let given = flags.into_iter().filter(|(_, given)| *given);
    given.map(|(flag, _)| format!("{flag} has no effect: one worker has no other to find"))
}

fn check_quantization(worker: &WorkerArgs) -> Result<(), String> {
    match worker.quantize.as_deref() {
        // TGI has many more names; a scheme that is not there is no wrong usage.
        Some(name)
            if !name.is_empty() && quantization_name(name).is_none() && !AS_PUBLISHED.contains(&name) =>
        {
            let names = AS_PUBLISHED.join(", ");
            Err(format!(
                "--quantize (QUANTIZE) must be int8, eetq, int4 (-g32, -g64 or -g128 for groups of so many inputs, then -zp for zero points) \
                 or none, or how the checkpoint is quantized: {names}. Given: {name}"
            ))
        }
        given
            if worker.quantize_head
                && given.and_then(quantization_name).is_none_or(|name| name == "none") =>
        {
            Err("--quantize-head needs --quantize int8, eetq or one of int4".into())
        }
        _ => Ok(()),
    }
}

fn check_cache_dtype(worker: &WorkerArgs) -> Result<(), String> {
    match worker.kv_cache_dtype.as_deref() {
        Some(given) if !given.is_empty() && CACHE_DTYPES.iter().all(|(name, _)| *name != given) => {
            Err(format!(
                "--kv-cache-dtype (KV_CACHE_DTYPE) must be auto, bfloat16, int8, fp8_e4m3fn or fp8_e5m2. Given: {given}"
            ))
        }
        _ => Ok(()),
    }
}

fn check_python(worker: &WorkerArgs) -> Result<(), String> {
    match &worker.python {
        Some(path) if !path.is_file() => Err(format!("--python: {} is not a file", path.display())),
        _ => Ok(()),
    }
}

/// Answers a warning for each flag that has no effect.
pub fn check_model(model: &ModelArgs) -> Result<Vec<String>, String> {
    let (_, mut warnings) = model.adapters()?;
    if model.speculate_model.is_none() && model.speculate_model_revision.is_some() {
        return Err("--speculate-model-revision needs --speculate-model".into());
    }
    if let Some(path) = &model.weights_cache_override
        && !path.is_dir()
    {
        return Err(format!("--weights-cache-override: {} is not a folder", path.display()));
    }
    if let Some(path) = &model.huggingface_hub_cache
        && path.exists()
        && !path.is_dir()
    {
        return Err(format!("--huggingface-hub-cache: {} is not a folder", path.display()));
    }
    if model.model_id.is_none() {
        if model.weights_cache_override.is_some() {
            return Err("--weights-cache-override needs --model-id".into());
        }
        if model.revision.is_some() {
            return Err("--revision needs --model-id".into());
        }
    } else if model.weights_cache_override.is_some() && model.revision.is_some() {
        warnings.push(
            "--revision only names the model: --weights-cache-override says which files are used".into(),
        );
    }
    Ok(warnings)
}

/// Why a draft model cannot be where the model is divided as `asked`.
pub fn no_shards(asked: &str) -> String {
    format!("--speculate-model is for a model in one worker, and {asked} divides it")
}

fn parse_device(text: &str) -> Result<String, String> {
    let index = text.strip_prefix("cuda:");
    let known = text == "cpu" || text == "cuda" || index.is_some_and(|index| index.parse::<u8>().is_ok());
    if known { Ok(text.to_owned()) } else { Err("must be cpu, cuda or cuda:N".into()) }
}

fn parse_master_addr(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains(['/', ' ']) { Err("is no host".into()) } else { Ok(text.to_owned()) }
}

impl Refusal {
    /// Where a log in JSON is asked for, a refusal is an event of it; else as `report` does.
    pub fn report_in_log(self, environment: &Environment) -> u8 {
        let variable = std::env::var("JSON_OUTPUT").ok();
        if let Refusal::Flag(line) = &self
            && asks_for_json(std::env::args_os(), variable.as_deref())
            && let Ok(_log) =
                log::start(&LogArgs { json_output: true, log_level: "info".into() }, environment)
        {
            tracing::error!("{line}");
            return 1;
        }
        self.report()
    }

    /// Prints it as the command's answer and returns the exit code.
    pub fn report(self) -> u8 {
        match self {
            Refusal::Clap(error) => {
                // Nothing is left to do when even the message cannot be printed.
                let _ = match usage_errors::plainer(&error) {
                    Some(text) => std::io::stderr().write_all(text.as_bytes()),
                    None => error.print(),
                };
                match error.kind() {
                    ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => 0,
                    _ => 2,
                }
            }
            Refusal::Flag(line) => {
                log::tell_error(&line);
                1
            }
        }
    }
}

/// Of a command line that is refused for something else. `variable`: JSON_OUTPUT.
fn asks_for_json(mut words: impl Iterator<Item = OsString>, variable: Option<&str>) -> bool {
    let is_on =
        |value: &str| ["y", "yes", "t", "true", "on", "1"].contains(&value.to_ascii_lowercase().as_str());
    words.any(|word| word == "--json-output") || variable.is_some_and(is_on)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_command_line_says_how_it_wants_to_be_told() {
        let asks = |line: &str, variable| asks_for_json(line.split(' ').map(OsString::from), variable);
        assert!(asks("penstock --json-output --quantize exl2", None));
        assert!(asks("penstock --quantize exl2", Some("True")));
        assert!(!asks("penstock --quantize exl2", Some("0")));
        assert!(!asks("penstock --quantize --json", None));
    }

    fn refused(arguments: &str) -> String {
        let arguments = std::iter::once("penstock").chain(arguments.split_whitespace()).map(OsString::from);
        match parse(arguments) {
            Err(Refusal::Flag(line)) => line,
            Err(Refusal::Clap(error)) => panic!("refused by clap: {error}"),
            Ok((cli, _)) => panic!("accepted: {cli:?}"),
        }
    }

    fn accepted(arguments: &str) -> (Cli, Vec<String>) {
        let arguments = std::iter::once("penstock").chain(arguments.split_whitespace()).map(OsString::from);
        parse(arguments).unwrap_or_else(|refusal| panic!("{arguments}: {refusal:?}", arguments = "refused"))
    }

    #[test]
    fn clap_finds_no_fault_in_the_declarations() {
        tgi_flags::declare(Cli::command()).debug_assert();
    }

    #[test]
    fn wrong_combinations_are_refused_with_the_name_of_the_flag() {
        for (arguments, names) in [
            ("--sharded false --num-shard 2", "--sharded"),
            ("--num-shard 2 --device cuda:1", "--device"),
            ("--pipeline-parallel 2 --device cuda:1", "--pipeline-parallel"),
            ("--sharded true --num-shard 1", "--num-shard"),
            ("--max-input-tokens 100 --max-total-tokens 100", "--max-input-tokens"),
            ("--max-input-length 100 --max-total-tokens 50", "--max-input-tokens"),
            ("--max-batch-total-tokens 10 --max-total-tokens 100", "--max-batch-total-tokens"),
            ("--max-batch-total-tokens 100 --max-input-tokens 100", "--max-batch-total-tokens"),
            ("--max-batch-size 64 --max-batch-prefill-tokens 32", "--max-batch-prefill-tokens"),
            ("--tokenizer-config-path /no/such.json", "--tokenizer-config-path"),
            ("--python /no/such/python", "--python"),
            ("--model-id a/b --weights-cache-override /no/such", "--weights-cache-override"),
            ("--weights-cache-override /tmp", "--weights-cache-override"),
            ("--revision main", "--revision"),
            ("--speculate-model-revision main", "--speculate-model-revision"),
            ("--speculate-model a/b --num-shard 2", "--num-shard"),
            ("--speculate-model a/b --pipeline-parallel 2", "--speculate-model"),
            ("--speculate-model a/b --worker-address tcp:localhost:9000", "--worker-address"),
            ("--lora-adapters a=b=c", "--lora-adapters"),
            ("--lora-adapters a/b,a/b", "--lora-adapters"),
            ("--lora-adapters a/b --worker-address tcp:localhost:9000", "--worker-address"),
            ("--quantize exl2", "--quantize"),
            ("--quantize int4-g16", "groups of so many inputs"),
            ("--quantize int8-zp", "--quantize"),
            ("--quantize-head", "--quantize-head"),
            ("--kv-cache-dtype fp4", "--kv-cache-dtype"),
            ("--worker-address tcp:localhost:9000 --kv-cache-dtype int8", "--kv-cache-dtype"),
            ("--speculate-corpus-tokens 1000", "--speculate"),
            ("--speculate-model a/b --speculate 0 --speculate-corpus-tokens 1000", "--speculate"),
            ("--worker-address tcp:10.0.0.1:9000", "--allow-plain-tcp"),
            ("--worker-address tls:10.0.0.1:9000", "--worker-tls-cert"),
            ("--worker-address tcp:localhost:9000 --worker-tls-cert c", "go together"),
            ("--worker-tls-cert c --worker-tls-key k --worker-tls-ca a", "--worker-address"),
            ("--worker-address tcp:localhost:9000 --dtype float16", "--dtype"),
            ("--worker-address tcp:localhost:9000 --num-shard 2", "--num-shard 2"),
            ("--worker-address tcp:localhost:9000 --pipeline-parallel 2", "--pipeline-parallel 2"),
        ] {
            let line = refused(arguments);
            assert!(line.contains(names), "{arguments}: {line}");
            assert!(!line.contains('\n'), "{arguments}: {line}");
        }
    }

    #[test]
    fn a_draft_model_is_named_like_a_model() {
        let flags = "--model-id a/b --revision x --speculate-model c/d --speculate-model-revision y";
        let draft = accepted(flags).0.model.of_draft_model().unwrap();
        assert_eq!((draft.model_id.as_deref(), draft.revision.as_deref()), (Some("c/d"), Some("y")));
        assert!(accepted("--model-id a/b").0.model.of_draft_model().is_none());
        accepted("--speculate-model c/d --speculate-corpus-tokens 1000");
        let line = of_draft_model("--model-id: there is no folder c".into());
        assert_eq!(line, "--speculate-model: there is no folder c");
    }

    #[test]
    fn flags_that_do_not_exist_or_parse_are_left_to_clap() {
        for arguments in [
            "--no-such-flag",
            "--port 70000",
            "--num-shard 0",
            "--pipeline-parallel 0",
            "--master-port 0",
            "--dtype int8",
            "--device tpu",
            "--master-addr a/b",
            "--log-level verbose",
            "--load-timeout 0",
            "--worker-address host:9000",
            "--worker-address tls:host",
            "--cors-allow-origin a\u{1}b",
            "--memory-fraction nan",
            "--memory-fraction 0",
            "--step-timeout -1",
            "--payload-limit 0",
            "--hostname 1.2.3.4.5.6",
            "word",
        ] {
            let words = std::iter::once("penstock").chain(arguments.split_whitespace()).map(OsString::from);
            assert!(matches!(parse(words), Err(Refusal::Clap(_))), "{arguments}");
        }
    }

    #[test]
    fn sagemakers_word_is_its_port_unless_another_is_named() {
        assert_eq!(accepted("serve").0.router.port, 8080);
        assert_eq!(accepted("serve --port 7 --model-id a/b").0.router.port, 7);
        assert_ne!(accepted("--model-id serve").0.router.port, 8080);
        assert!(matches!(parse(["penstock", "serve", "serve"].map(OsString::from)), Err(Refusal::Clap(_))));
    }

    #[test]
    fn tgi_names_are_understood() {
        let (cli, warnings) = accepted(
            "--model-id a/b --revision main --sharded false --num-shard 1 --dtype float16 --max-input-length 10 \
             --max-total-tokens 20 -p 80 -g 5 --cuda-memory-fraction 0.5 --json-output --max-client-batch-size 8 \
             --quantize eetq --kv-cache-dtype fp8_e4m3fn",
        );
        assert!(warnings.is_empty(), "{warnings:?}");
        assert_eq!(cli.router.max_input_tokens, Some(10));
        assert_eq!(cli.router.shutdown_timeout, 5);
        assert_eq!(cli.router.memory_fraction, 0.5);
        assert_eq!(cli.worker.dtype, Some(Dtype::Float16));
        assert_eq!(cli.worker.quantize.as_deref().and_then(quantization_name), Some("int8"));
        assert_eq!(cli.worker.kv_cache_dtype.as_deref().and_then(cache_dtype_name), Some("fp8_e4m3fn"));
        assert!(cli.log.json_output);
        for (given, name) in
            [("int4-g32", "int4"), ("int4-g32-zp", "int4-zp"), ("int4-g128-zp", "int4-g128-zp")]
        {
            let (cli, warnings) = accepted(&format!("--quantize {given} --quantize-head"));
            assert!(warnings.is_empty(), "{warnings:?}");
            assert_eq!(cli.worker.quantize.as_deref().and_then(quantization_name), Some(name));
        }
        let (cli, warnings) = accepted("--quantize gptq");
        assert_eq!(cli.worker.quantize.as_deref().and_then(quantization_name), None);
        assert!(warnings[0].starts_with("--quantize gptq changes nothing"), "{warnings:?}");
    }
}
