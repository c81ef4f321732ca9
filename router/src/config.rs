//! The router's flags, named as in TGI, and what is known before the model is loaded. Parsed by the
//! launcher, read once; nothing below reads the environment. What depends on the loaded model is in
//! `limits`.

use std::fmt;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use axum::http::HeaderValue;
use clap::builder::BoolishValueParser;
use clap::{Args, ValueEnum};
use penstock_core::prompt::may_be_default;
use penstock_output::{ReasoningFormat, ToolFormat, reasoning_format, tool_format};
use serde_json::{Map, Value};

use crate::address::Network;
use crate::allowed_host::AllowedHost;

/// What `--max-batch-size` is where nobody says it.
const BATCH_SIZE: u32 = 256;

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Serving")]
pub struct RouterArgs {
    /// Address to listen on: an IP address, or a name that resolves to one
    #[arg(long, env, default_value = "0.0.0.0", value_parser = parse_host)]
    pub hostname: IpAddr,
    /// Port to listen on
    #[arg(long, short, env, default_value_t = 3000)]
    pub port: u16,
    /// Open the port when the model is ready, for platforms that probe by TCP, and not at once with status 503 until then
    #[arg(long, env, value_parser = BoolishValueParser::new())]
    pub listen_when_ready: bool,
    /// Sequences queued and running at once; more are refused with status 429
    #[arg(long, env, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_concurrent_requests: u32,
    /// Largest request body, in bytes
    #[arg(long, env, default_value_t = 2_000_000, value_parser = parse_payload_limit)]
    pub payload_limit: usize,
    /// Threads that tokenize prompts, for each of three classes of sizes
    #[arg(long, env, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    pub validation_workers: u32,
    /// Origins that browsers may call from; any, when not given
    #[arg(long, env, value_delimiter = ',', value_parser = parse_origin)]
    pub cors_allow_origin: Vec<String>,
    /// Refuse requests with fields that have no effect, which are otherwise named in `warnings`
    #[arg(long, env, value_parser = clap::builder::BoolishValueParser::new())]
    pub strict_requests: bool,
    /// Serve KServe's protocol as well, under /v2
    #[arg(long, env, value_parser = clap::builder::BoolishValueParser::new())]
    pub kserve: bool,
    /// A path at which /vertex is served as well, unless it has a route; Vertex AI sets the variable
    #[arg(long, env = "AIP_PREDICT_ROUTE", value_parser = parse_route)]
    pub vertex_predict_route: Option<String>,
    /// A path at which /health is served as well, unless it has a route; Vertex AI sets the variable
    #[arg(long, env = "AIP_HEALTH_ROUTE", value_parser = parse_route)]
    pub vertex_health_route: Option<String>,
    /// A key that clients have to send as `Authorization: Bearer KEY` or `x-api-key: KEY`; may be given several times.
    /// Other users of the machine see it in the list of processes, but not the variable or --api-key-file
    #[arg(long, env, hide_env_values = true, help_heading = "Access")]
    pub api_key: Vec<ApiKey>,
    /// A file of such keys, one on a line
    #[arg(long, env, help_heading = "Access")]
    pub api_key_file: Option<PathBuf>,
    /// The highest `priority` that a request may ask for, a number from -1000 to 0: the lower one goes first
    #[arg(long, env, default_value_t = 0, allow_negative_numbers = true, help_heading = "Access", value_parser = clap::value_parser!(i32).range(-1000..=0))]
    pub highest_priority: i32,
    /// Ask for a key at /metrics, too, which names the keys
    #[arg(long, env, help_heading = "Access", value_parser = BoolishValueParser::new())]
    pub guard_metrics: bool,
    /// Names by which browsers and clients may call this server (`Host`), such as models.example or *.example;
    /// repeated, or with commas; any, when not given
    #[arg(long, env, help_heading = "Access", value_delimiter = ',')]
    pub allowed_hosts: Vec<AllowedHost>,
    /// Let requests of all API keys share cached prefixes of prompts: each can then find out what others have asked
    #[arg(long, env, help_heading = "Access", value_parser = BoolishValueParser::new())]
    pub shared_prefix_cache: bool,
    /// Serve HTTPS with this certificate chain, a PEM file
    #[arg(long, env, help_heading = "Access")]
    pub tls_cert: Option<PathBuf>,
    /// The private key of --tls-cert, a PEM file
    #[arg(long, env, help_heading = "Access")]
    pub tls_key: Option<PathBuf>,
    /// What the answers' header x-compute-type says [default: shards and device, such as 1-nvidia-l4]
    #[arg(long, env, help_heading = "Telemetry", value_parser = parse_header)]
    pub compute_type: Option<HeaderValue>,
    /// Send traces of requests to this OpenTelemetry collector (OTLP over gRPC), such as http://localhost:4317
    #[arg(long, env, help_heading = "Telemetry", value_parser = parse_collector)]
    pub otlp_endpoint: Option<String>,
    /// What the traces call this server
    #[arg(long, env, help_heading = "Telemetry", default_value = "text-generation-inference.router")]
    pub otlp_service_name: String,
    /// Share of the requests that are traced, 0 to 1; a caller's own decision (`traceparent`) goes first
    #[arg(long, env, help_heading = "Telemetry", default_value_t = 1.0, value_parser = parse_ratio)]
    pub otlp_sample_ratio: f64,
    /// Tell at /block_events what the prefix cache gains and loses, for routers of several servers
    #[arg(long, env, help_heading = "Telemetry", value_parser = BoolishValueParser::new())]
    pub block_events: bool,
    /// Record what goes to the workers and comes from them in this new file, for `penstock replay`; prompts are in it
    #[arg(long, env, help_heading = "Telemetry")]
    pub record: Option<PathBuf>,
    /// Largest record, in bytes
    #[arg(long, env, help_heading = "Telemetry", default_value_t = 1 << 30, value_parser = clap::value_parser!(u64).range(65_536..))]
    pub record_limit: u64,
    /// Log the prompts of requests, too
    #[arg(long, env, help_heading = "Telemetry", value_parser = BoolishValueParser::new())]
    pub log_prompts: bool,
    /// A tokenizer_config.json to use instead of the model's own
    #[arg(long, env, help_heading = "Serving")]
    pub tokenizer_config_path: Option<PathBuf>,
    /// Variables for the chat template, a JSON object, of requests that do not give these in `chat_template_kwargs`
    /// [default: as generation_config.json says]
    #[arg(long, env, value_name = "JSON", help_heading = "Serving", value_parser = parse_template_defaults)]
    pub default_chat_template_kwargs: Option<Map<String, Value>>,
    /// How the model writes calls of tools: a format that docs/tool-calls.md lists, `none`, or as its chat template says
    #[arg(long, env, default_value = "auto", help_heading = "Serving", value_parser = parse_tool_format)]
    pub tool_call_parser: FormatFlag<ToolFormat>,
    /// How the model writes reasoning: a format that docs/tool-calls.md lists, `none`, or as its chat template says
    #[arg(long, env, default_value = "auto", help_heading = "Serving", value_parser = parse_reasoning_format)]
    pub reasoning_parser: FormatFlag<ReasoningFormat>,
    /// Under which names chats tell reasoning: clients that know both may show it twice, or fail
    #[arg(long, env, value_enum, default_value_t = ReasoningField::Both, help_heading = "Serving")]
    pub reasoning_field: ReasoningField,
    /// Most connections at once; more are told to come back, and closed
    #[arg(long, env, default_value_t = 8192, help_heading = "Connections", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_connections: u32,
    /// Most connections of one address at once (of IPv6, of one /64) [default: an eighth of --max-connections, at
    /// least 64]
    #[arg(long, env, help_heading = "Connections", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_connections_per_address: Option<u32>,
    /// A proxy in front of this server, an IP address or a network such as 10.0.0.0/8: its connections are those of
    /// many clients, whose addresses it says in X-Forwarded-For; may be given several times
    #[arg(long, env, help_heading = "Connections", value_delimiter = ',')]
    pub trusted_proxy: Vec<Network>,
    /// Largest head of a request, all its headers together, in bytes
    #[arg(long, env, default_value_t = 65_536, help_heading = "Connections", value_parser = parse_header_size)]
    pub max_header_size: u32,
    /// How long a connection without a request is kept, in seconds: longer than load balancers keep theirs, or a request meets a
    /// connection that closes (Google's: 600)
    #[arg(long, env, default_value_t = 620.0, help_heading = "Connections", value_parser = parse_seconds)]
    pub idle_timeout: f64,
    /// How long a new connection may take until its first request's head is there, in seconds
    #[arg(long, env, default_value_t = 30.0, help_heading = "Connections", value_parser = parse_seconds)]
    pub header_timeout: f64,
    /// How long a request's body may take, in seconds
    #[arg(long, env, default_value_t = 120.0, help_heading = "Connections", value_parser = parse_seconds)]
    pub body_timeout: f64,
    /// How long a client may leave a part of its answer unread, in seconds
    #[arg(long, env, default_value_t = 120.0, help_heading = "Connections", value_parser = parse_seconds)]
    pub write_timeout: f64,
    /// On SIGTERM, how long running requests may take to finish, in seconds
    #[arg(long, short = 'g', env, visible_alias = "graceful-termination-timeout", default_value_t = 90)]
    pub shutdown_timeout: u64,

    /// Share of the vocabulary that a watermark favours after each token
    #[arg(long, env, help_heading = "Watermark", default_value_t = 0.5, value_parser = parse_share)]
    pub watermark_gamma: f64,
    /// What a watermark adds to the logits of the favoured tokens
    #[arg(long, env, help_heading = "Watermark", default_value_t = 2.0, value_parser = parse_delta)]
    pub watermark_delta: f32,

    /// Most `best_of`, on the OpenAI routes where it is more than `n`
    #[arg(long, env, default_value_t = 2, help_heading = "Limits", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_best_of: u32,
    /// Most stop strings in one request
    #[arg(long, env, default_value_t = 4, help_heading = "Limits")]
    pub max_stop_sequences: u32,
    /// Most alternatives for each token (`top_n_tokens`, `top_logprobs`)
    #[arg(long, env, default_value_t = 20, help_heading = "Limits")]
    pub max_top_n_tokens: u32,
    /// Refuse requests that say what a text has to be (`grammar`, `response_format`)
    #[arg(long, env, help_heading = "Limits", value_parser = BoolishValueParser::new())]
    pub disable_grammar_support: bool,
    /// How long a grammar may take to compile, in milliseconds of a processor; while others want that, it may wait ten times as long
    #[arg(long, env, default_value_t = 1000, help_heading = "Limits", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub grammar_timeout_ms: u64,
    /// Longest prompt, in tokens [default: max-total-tokens - 1]
    #[arg(long, env, visible_alias = "max-input-length", help_heading = "Limits", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_input_tokens: Option<u32>,
    /// Longest prompt and output together, in tokens [default: the model's context, or what fits]
    #[arg(long, env, help_heading = "Limits", value_parser = clap::value_parser!(u32).range(2..))]
    pub max_total_tokens: Option<u32>,
    /// Most prompts in one request to /v1/completions, and tensors in one of KServe's
    #[arg(long, env, default_value_t = 4, help_heading = "Limits", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_client_batch_size: u32,

    /// Most tokens in one step, prompt chunks and decodes together [default: 2048, at most the context]
    #[arg(long, env, help_heading = "Batching", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_batch_prefill_tokens: Option<u32>,
    /// Size of the KV cache, in tokens [default: as much as is useful and fits]
    #[arg(long, env, help_heading = "Batching", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_batch_total_tokens: Option<u64>,
    /// Most sequences in one step [default: 256, at most max-concurrent-requests]
    #[arg(long, env, help_heading = "Batching", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub max_batch_size: Option<u32>,
    /// Keep the time of a step under this, by cutting prompts into smaller chunks, in milliseconds
    #[arg(long, env, help_heading = "Batching", value_parser = clap::value_parser!(u64).range(1..))]
    pub target_itl_ms: Option<u64>,
    /// Most tokens of a sequence that are guessed, from its own text or by --speculate-model, and verified in one step; 0: none
    /// [default: 0, or 5 with --speculate-model]
    #[arg(long, env, help_heading = "Batching", value_parser = clap::value_parser!(u32).range(0..=64))]
    pub speculate: Option<u32>,
    /// With --speculate: guess as well from so many tokens of what each tenant was answered lately; 0: from none
    #[arg(long, env, default_value_t = 0, help_heading = "Batching", value_parser = clap::value_parser!(u32).range(0..=16_777_216))]
    pub speculate_corpus_tokens: u32,
    /// A worker hangs when a step takes this many seconds more than 20 times its expected time
    #[arg(long, env, help_heading = "Batching", default_value_t = 10.0, value_parser = parse_seconds)]
    pub step_timeout: f64,
    /// Share of the device's memory that a worker may take
    #[arg(
        long,
        env = "CUDA_MEMORY_FRACTION",
        visible_alias = "cuda-memory-fraction",
        help_heading = "Batching",
        default_value_t = 0.9,
        value_parser = parse_fraction
    )]
    pub memory_fraction: f32,
}

/// Names of reasoning in chats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum ReasoningField {
    Both,
    /// DeepSeek's, which most clients know.
    ReasoningContent,
    /// Ollama's, OpenRouter's and the newer vLLM's.
    Reasoning,
}

/// What the router is to serve.
#[derive(Clone, Debug)]
pub struct Config {
    pub args: RouterArgs,
    /// As the user named it; `model` in every answer.
    pub model_id: String,
    pub revision: Option<String>,
    /// What makes drafts for it, as the user named it.
    pub speculate_model: Option<String>,
    /// Of each stage.
    pub num_shard: u32,
    /// Stages.
    pub pipeline_parallel: u32,
}

/// A model whose files are on this machine.
#[derive(Clone, Debug)]
pub struct ModelFiles {
    /// Holds config.json, tokenizer.json and the rest.
    pub dir: PathBuf,
    /// Commit of the hub snapshot, when known.
    pub sha: Option<String>,
    /// The task that the hub names for it, when known.
    pub pipeline_tag: Option<String>,
    /// A tokenizer.json that was made for a model without one.
    pub tokenizer: Option<PathBuf>,
}

impl Config {
    pub fn shutdown_timeout(&self) -> Duration {
        Duration::from_secs(self.args.shutdown_timeout)
    }
}

impl RouterArgs {
    /// The most sequences of a step, of whichever model.
    pub fn max_slots(&self) -> u32 {
        self.max_batch_size.unwrap_or(BATCH_SIZE).min(self.max_concurrent_requests)
    }

    /// Whether clients need a key.
    pub fn is_guarded(&self) -> bool {
        !self.api_key.is_empty() || self.api_key_file.is_some()
    }
}

/// A secret: it is in no log and no error.
#[derive(Clone)]
pub struct ApiKey(String);

impl ApiKey {
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(...)")
    }
}

impl FromStr for ApiKey {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "" => Err("must not be empty"),
            _ if text.len() > MOST_OF_A_KEY => Err("must be at most 1024 characters"),
            _ if !text.bytes().all(|byte| byte.is_ascii_graphic()) => {
                Err("must be visible ASCII characters, without spaces")
            }
            _ => Ok(Self(text.into())),
        }
    }
}

const MOST_OF_A_KEY: usize = 1024;

fn parse_host(text: &str) -> Result<IpAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let mut found = (text, 0).to_socket_addrs().map_err(|_| format!("no address is known for '{text}'"))?;
    found.next().map(|address| address.ip()).ok_or_else(|| format!("no address is known for '{text}'"))
}

fn parse_header(text: &str) -> Result<HeaderValue, &'static str> {
    HeaderValue::from_str(text)
        .ok()
        .filter(|value| !value.is_empty() && value.to_str().is_ok())
        .ok_or("must be visible ASCII characters")
}

fn parse_template_defaults(text: &str) -> Result<Map<String, Value>, String> {
    let Value::Object(given) = serde_json::from_str(text).map_err(|error| format!("is not JSON: {error}"))?
    else {
        return Err("must be a JSON object, such as {\"enable_thinking\": true}".into());
    };
    match given.keys().find(|name| !may_be_default(name)) {
        Some(name) => Err(format!("must not have `{name}`, which each chat says itself")),
        None => Ok(given),
    }
}

/// The word for a format in a flag.
pub enum FormatFlag<T: 'static> {
    Auto,
    Off,
    Named(&'static T),
}

impl<T> Clone for FormatFlag<T> {
    fn clone(&self) -> Self {
        match self {
            Self::Auto => Self::Auto,
            Self::Off => Self::Off,
            Self::Named(format) => Self::Named(format),
        }
    }
}

impl<T> fmt::Debug for FormatFlag<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Off => "none",
            Self::Named(_) => "named",
        })
    }
}

impl<T> FormatFlag<T> {
    fn parse(word: &str, of_name: impl Fn(&str) -> Option<&'static T>) -> Option<Self> {
        match word {
            "auto" => Some(Self::Auto),
            "none" => Some(Self::Off),
            name => of_name(name).map(Self::Named),
        }
    }

    pub fn or(&self, found: Option<&'static T>) -> Option<&'static T> {
        match self {
            Self::Auto => found,
            Self::Off => None,
            Self::Named(format) => Some(format),
        }
    }
}

pub const KNOWN_FORMATS: &str =
    "docs/tool-calls.md lists the formats; `auto` takes the chat template's, `none` leaves text as it is";

/// For `--tool-call-parser`.
fn parse_tool_format(word: &str) -> Result<FormatFlag<ToolFormat>, String> {
    FormatFlag::parse(word, tool_format).ok_or_else(|| {
        let names: Vec<&str> = penstock_output::tool_formats().map(|format| format.name).collect();
        format!("no such format of tool calls; known: {}. {KNOWN_FORMATS}", names.join(", "))
    })
}

/// For `--reasoning-parser`.
fn parse_reasoning_format(word: &str) -> Result<FormatFlag<ReasoningFormat>, String> {
    FormatFlag::parse(word, reasoning_format).ok_or_else(|| {
        let names: Vec<&str> = penstock_output::reasoning_formats().map(|format| format.name).collect();
        format!("no such format of reasoning; known: {}. {KNOWN_FORMATS}", names.join(", "))
    })
}

fn parse_origin(text: &str) -> Result<String, &'static str> {
    HeaderValue::from_str(text).map(|_| text.into()).map_err(|_| "is not an origin")
}

/// Of `--otlp-endpoint`, which `penstock worker` has as well.
pub fn parse_collector(text: &str) -> Result<String, &'static str> {
    let address =
        text.strip_prefix("http://").filter(|rest| !rest.starts_with(['/', ':']) && !rest.is_empty());
    match address.and_then(|_| text.parse::<axum::http::Uri>().ok()) {
        Some(_) => Ok(text.into()),
        None => Err("must be http://HOST:PORT"),
    }
}

fn parse_ratio(text: &str) -> Result<f64, &'static str> {
    match text.parse::<f64>() {
        Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(ratio),
        _ => Err("must be a number from 0 to 1"),
    }
}

fn parse_payload_limit(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".into()),
        Ok(bytes) => Ok(bytes),
        Err(_) => Err("must be a number of bytes".into()),
    }
}

fn parse_header_size(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(bytes) if (8192..=1 << 24).contains(&bytes) => Ok(bytes),
        _ => Err("must be a number of bytes, at least 8192 and at most 16777216".into()),
    }
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 86_400.0 => Ok(seconds),
        _ => Err("must be a number of seconds above 0, at most 86400".into()),
    }
}

fn parse_route(text: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_graphic() && !b"?#".contains(&byte);
    if text.starts_with('/') && text.bytes().all(plain) {
        Ok(text.into())
    } else {
        Err("must be a path that begins with /".into())
    }
}

fn parse_share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if share > 0.0 && share < 1.0 => Ok(share),
        _ => Err("must be above 0 and below 1".into()),
    }
}

fn parse_delta(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(delta) if delta > 0.0 && delta <= 100.0 => Ok(delta),
        _ => Err("must be above 0 and at most 100".into()),
    }
}

/// Of `--memory-fraction`, which the doctor has as well.
pub fn parse_fraction(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(fraction) if fraction > 0.0 && fraction <= 1.0 => Ok(fraction),
        _ => Err("must be above 0 and at most 1".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_connection_outlives_that_of_a_load_balancer() {
        let command = RouterArgs::augment_args(clap::Command::new("penstock"));
        let args = clap::FromArgMatches::from_arg_matches(&command.get_matches_from(["penstock"]));
        let args: RouterArgs = args.expect("the defaults");
        // Google's keep theirs for 600 s, Oracle's for 300, nginx and Amazon's for 60.
        assert!(args.idle_timeout > 600.0);
    }

    #[test]
    fn defaults_of_the_chat_template_are_an_object_of_variables() {
        let parse = |text: &str| {
            let command = RouterArgs::augment_args(clap::Command::new("penstock"));
            let matches = command.try_get_matches_from(["penstock", "--default-chat-template-kwargs", text]);
            let args: RouterArgs = clap::FromArgMatches::from_arg_matches(&matches?)?;
            Ok::<_, clap::Error>(args.default_chat_template_kwargs.map(Value::from))
        };
        let given = parse(r#"{"enable_thinking": true}"#).unwrap();
        assert_eq!(given, Some(serde_json::json!({"enable_thinking": true})));
        for (bad, why) in [
            ("{enable_thinking: true}", "is not JSON"),
            ("", "is not JSON"),
            ("[1]", "must be a JSON object"),
            (r#"{"messages": []}"#, "must not have `messages`"),
            (r#"{"chat_template": "rag"}"#, "must not have `chat_template`"),
        ] {
            let said = parse(bad).unwrap_err().to_string();
            assert!(said.contains("--default-chat-template-kwargs") && said.contains(why), "{bad}: {said}");
        }
    }

    #[test]
    fn a_host_is_an_address_or_a_name_that_resolves() {
        assert_eq!(parse_host("::1").unwrap(), "::1".parse::<IpAddr>().unwrap());
        assert!(parse_host("localhost").unwrap().is_loopback());
        assert!(parse_host("no such host").is_err());
    }

    #[test]
    fn a_key_is_visible_and_never_shown() {
        let key: ApiKey = "hf_secret".parse().unwrap();
        assert!(!format!("{key:?}").contains("secret"));
        for bad in ["", "two words", "naïve", "tab\t", &"x".repeat(1025)] {
            assert!(bad.parse::<ApiKey>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_compute_type_is_fit_for_a_header() {
        assert_eq!(parse_header("gpu+optimized").unwrap(), "gpu+optimized");
        for bad in ["", "two\nlines", "na\u{ef}ve"] {
            assert!(parse_header(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_collector_is_named_by_an_address_without_encryption() {
        assert!(parse_collector("http://localhost:4317").is_ok());
        for bad in ["", "localhost:4317", "https://localhost:4317", "http://", "http://:4317", "http://a b"] {
            assert!(parse_collector(bad).is_err(), "{bad}");
        }
        for bad in ["-0.1", "1.1", "nan", ""] {
            assert!(parse_ratio(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn fractions_and_seconds_refuse_what_is_no_number_in_range() {
        for bad in ["nan", "inf", "-1", "0", "", "a"] {
            assert!(parse_fraction(bad).is_err(), "{bad}");
            assert!(parse_seconds(bad).is_err(), "{bad}");
        }
        assert!(parse_fraction("1.5").is_err());
        assert_eq!(parse_fraction("1.0"), Ok(1.0));
        assert_eq!(parse_seconds("0.5"), Ok(0.5));
        for bad in ["nan", "inf", "-1", "0", "", "a", "1e3"] {
            assert!(parse_share(bad).is_err() && parse_delta(bad).is_err(), "{bad}");
        }
        for bad in ["", "predict", "/a b", "/a?b", "/a#b", "/é"] {
            assert!(parse_route(bad).is_err(), "{bad}");
        }
        assert!(parse_route("/v1/endpoints/1/deployedModels/2:predict").is_ok());
        assert_eq!((parse_share("0.25"), parse_delta("2")), (Ok(0.25), Ok(2.0)));
    }
}
