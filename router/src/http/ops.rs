//! The routes for those who run the server: health, what it serves, metrics.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, Response, header};
use penstock_core::scheduler::Taken;
use penstock_proto::{CacheGroup, CacheKind};
use schemars::JsonSchema;
use serde::Serialize;

use crate::http::adapters;
use crate::http::error::{ApiError, Cause, Family};
use crate::http::response::json;
use crate::http::shortened::shortened;
use crate::http::state::{Loaded, Server};
use crate::http::unplaced;
use crate::telemetry;

/// Whether new requests are served now.
pub async fn health(State(server): State<Arc<Server>>) -> Response<Body> {
    match server.health.borrow().refusal() {
        None => Response::default(),
        Some(reason) => ApiError::unhealthy(reason).response(Family::Tgi),
    }
}

/// Whether the process is there, whatever the workers do.
pub async fn alive() -> Response<Body> {
    Response::default()
}

pub async fn metrics(request: Request) -> Response<Body> {
    let text = telemetry::metrics::render().await;
    if let Some(unplaced) = unplaced::of(request.extensions())
        && let Err(error) = unplaced.grow(text.len())
    {
        return error.response(Family::Tgi);
    }
    let mut response = Response::new(Body::from(text));
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

pub async fn models(State(server): State<Arc<Server>>, headers: HeaderMap) -> Response<Body> {
    let family = dialect(&headers);
    match server.loaded() {
        Ok(loaded) => json(&Models::served(&server, loaded, family)),
        Err(error) => error.response(family),
    }
}

pub async fn model(
    State(server): State<Arc<Server>>,
    headers: HeaderMap,
    Path(id): Path<String>,
) -> Response<Body> {
    let family = dialect(&headers);
    let loaded = match server.loaded() {
        Ok(loaded) => loaded,
        Err(error) => return error.response(family),
    };
    if id == server.config.model_id {
        return json(&Model::served(&server, loaded, family));
    }
    if let Some(name) = loaded.limits.adapters.names().find(|name| *name == id) {
        return json(&Model::adapter(name, &server, loaded, family));
    }
    let served = &server.config.model_id;
    let mut message = format!("there is no model {:?}; {served:?} is served", shortened(&id));
    if let Some(names) = adapters::listed(&loaded.limits.adapters) {
        message += &format!(", with the adapters {names}");
    }
    ApiError::new(Cause::NotFound, message).response(family)
}

/// In whose shape the models are asked for: the path is the same in both dialects, and only Anthropic's clients tell a version.
fn dialect(headers: &HeaderMap) -> Family {
    if headers.contains_key("anthropic-version") { Family::Anthropic } else { Family::OpenAi }
}

pub async fn info(State(server): State<Arc<Server>>) -> Response<Body> {
    let loaded = match server.loaded() {
        Ok(loaded) => loaded,
        Err(error) => return error.response(Family::Tgi),
    };
    let (config, args) = (&server.config, &server.config.args);
    let (limits, model) = (&loaded.limits, &loaded.model);
    let stats = loaded.serving.scheduler.stats();
    // Its name is known to the host that has it only.
    let drafts_elsewhere = model.draft_model.as_ref().map(|draft| draft.model_type.as_str());
    json(&Info {
        model_id: &config.model_id,
        model_sha: loaded.model_sha.as_deref(),
        adapters: limits.adapters.names().collect(),
        revision: config.revision.as_deref(),
        model_pipeline_tag: loaded.pipeline_tag.as_deref(),
        model_type: &model.model_type,
        recipe: &model.recipe,
        model_dtype: &model.dtype,
        model_device_type: model.device.split(':').next().unwrap_or_default(),
        device: &model.device,
        device_name: &model.device_name,
        parameters: model.parameters,
        vocab_size: model.vocab_size,
        num_shard: config.num_shard,
        pipeline_parallel: config.pipeline_parallel,
        max_concurrent_requests: args.max_concurrent_requests,
        max_best_of: limits.max_best_of,
        max_stop_sequences: limits.max_stop_sequences,
        max_top_n_tokens: limits.max_top_n_tokens,
        max_input_tokens: limits.max_input_tokens,
        max_input_length: limits.max_input_tokens,
        max_total_tokens: limits.max_total_tokens,
        max_batch_prefill_tokens: loaded.max_step_tokens,
        max_batch_total_tokens: loaded.cache_tokens,
        max_batch_size: loaded.max_slots,
        speculate: loaded.speculate,
        speculate_model: config.speculate_model.as_deref().or(drafts_elsewhere),
        max_client_batch_size: limits.max_client_batch_size,
        validation_workers: args.validation_workers,
        prefix_cache: if args.is_guarded() && !args.shared_prefix_cache { "api_key" } else { "shared" },
        kv_block_size: model.block_size,
        kv_blocks: stats.blocks,
        kv_blocks_used: stats.blocks_used,
        kv_blocks_cached: stats.blocks_cached,
        kv_blocks_free: stats.blocks_free,
        cache_groups: CacheGroupInfo::of_all(&loaded.cache_groups, &stats.pages),
        state_bytes: model.state_bytes,
        state_snapshots: stats.states.snapshots.total,
        state_snapshots_used: stats.states.snapshots.used,
        requests_running: stats.running,
        requests_waiting: stats.waiting,
        generated_tokens: stats.generated_tokens,
        worker_restarts: stats.worker_restarts,
        router: env!("CARGO_PKG_NAME"),
        version: env!("CARGO_PKG_VERSION"),
        sha: None,
        docker_label: None,
    })
}

#[derive(JsonSchema, Serialize)]
#[serde(untagged)]
pub enum Models<'a> {
    OpenAi { object: ListObject, data: Vec<Model<'a>> },
    Anthropic { data: Vec<Model<'a>>, has_more: bool, first_id: &'a str, last_id: &'a str },
}

#[derive(JsonSchema, Serialize)]
#[serde(untagged)]
pub enum Model<'a> {
    OpenAi {
        id: &'a str,
        object: ModelObject,
        created: u64,
        owned_by: &'a str,
        /// As vLLM and SGLang name it: of prompt and answer together.
        max_model_len: u32,
        /// As vLLM names them, of an adapter alone: its name, and the served model.
        #[serde(skip_serializing_if = "Option::is_none")]
        root: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        parent: Option<&'a str>,
    },
    Anthropic {
        #[serde(rename = "type")]
        kind: ModelObject,
        id: &'a str,
        display_name: &'a str,
        created_at: &'static str,
        max_input_tokens: u32,
        /// Of an answer: beside a prompt of one token.
        max_tokens: u32,
    },
}

/// What Anthropic says of models of which it does not know when they came.
const UNKNOWN_DATE: &str = "1970-01-01T00:00:00Z";

#[derive(JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum ListObject {
    List,
}

#[derive(JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum ModelObject {
    Model,
}

impl<'a> Models<'a> {
    /// The model, and its adapters behind it.
    fn served(server: &'a Server, loaded: &'a Loaded, family: Family) -> Self {
        let names = || loaded.limits.adapters.names();
        let adapters = names().map(|name| Model::adapter(name, server, loaded, family));
        let data = std::iter::once(Model::served(server, loaded, family)).chain(adapters).collect();
        let first_id = &server.config.model_id;
        let last_id = names().last().unwrap_or(first_id);
        match family {
            Family::Anthropic => Self::Anthropic { data, has_more: false, first_id, last_id },
            Family::OpenAi | Family::Tgi => Self::OpenAi { object: ListObject::List, data },
        }
    }
}

impl<'a> Model<'a> {
    fn served(server: &'a Server, loaded: &Loaded, family: Family) -> Self {
        Self::named(&server.config.model_id, None, loaded, family)
    }

    /// The served model with an adapter.
    fn adapter(name: &'a str, server: &'a Server, loaded: &Loaded, family: Family) -> Self {
        Self::named(name, Some(&server.config.model_id), loaded, family)
    }

    fn named(id: &'a str, parent: Option<&'a str>, loaded: &Loaded, family: Family) -> Self {
        let (limits, kind) = (&loaded.limits, ModelObject::Model);
        match family {
            Family::Anthropic => Self::Anthropic {
                kind,
                id,
                display_name: id,
                created_at: UNKNOWN_DATE,
                max_input_tokens: limits.max_input_tokens,
                max_tokens: limits.max_total_tokens - 1,
            },
            Family::OpenAi | Family::Tgi => Self::OpenAi {
                id,
                object: kind,
                created: 0,
                owned_by: parent.unwrap_or(id),
                max_model_len: limits.max_total_tokens,
                root: parent.map(|_| id),
                parent,
            },
        }
    }
}

/// Layers of which the model keeps the same of a sequence, for as long.
#[derive(JsonSchema, Serialize)]
#[schemars(inline)]
struct CacheGroupInfo {
    /// `full`: keys and values of all tokens; `window`, `chunk`: of those that a token sees through one; `state`: of recurrent layers;
    /// `index`: keys that choose others, in the pages of their layers.
    kind: &'static str,
    /// Of a window or chunk, in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    reach: Option<u32>,
    layers: u32,
    /// Of a token, or of a state, on all workers together.
    bytes: u64,
    /// That a block of tokens takes, and that are held or kept now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pages_per_block: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pages: Option<u32>,
}

impl CacheGroupInfo {
    /// Of all groups, in their order.
    fn of_all(groups: &[CacheGroup], taken: &Taken) -> Vec<Self> {
        let mut windows = taken.windows.iter();
        let of = |group: &CacheGroup| Self {
            kind: group.kind_name(),
            reach: (group.reach > 0).then_some(group.reach),
            layers: group.layers,
            bytes: group.bytes,
            pages_per_block: (group.tables > 0).then_some(group.tables),
            pages: match group.kind() {
                CacheKind::Full => Some(taken.full),
                CacheKind::Window | CacheKind::Chunk => windows.next().copied(),
                CacheKind::State | CacheKind::Index => None,
            },
        };
        groups.iter().map(of).collect()
    }
}

/// TGI's fields, and what it lacks: what the model runs on, the budgets, the KV cache.
#[derive(JsonSchema, Serialize)]
pub struct Info<'a> {
    model_id: &'a str,
    model_sha: Option<&'a str>,
    /// The LoRA adapters that are loaded, by the names that requests call them.
    adapters: Vec<&'a str>,
    /// As `--revision` says; null without it. `model_sha` is the commit.
    revision: Option<&'a str>,
    /// The task that the hub names for the model; null where that is not known.
    model_pipeline_tag: Option<&'a str>,
    model_type: &'a str,
    recipe: &'a str,
    model_dtype: &'a str,
    model_device_type: &'a str,
    device: &'a str,
    device_name: &'a str,
    parameters: u64,
    vocab_size: u32,
    num_shard: u32,
    pipeline_parallel: u32,
    max_concurrent_requests: u32,
    max_best_of: u32,
    max_stop_sequences: u32,
    max_top_n_tokens: u32,
    max_input_tokens: u32,
    /// The same by TGI's older name, by which Continue knows how long prompts may be.
    max_input_length: u32,
    max_total_tokens: u32,
    max_batch_prefill_tokens: u32,
    max_batch_total_tokens: u64,
    max_batch_size: u32,
    /// Most tokens of a sequence that are guessed and verified in one step.
    speculate: u32,
    /// The model that guesses some of them, beside the text itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    speculate_model: Option<&'a str>,
    max_client_batch_size: u32,
    validation_workers: u32,
    /// Who shares cached prefixes: `api_key`, each key's requests; `shared`, all.
    prefix_cache: &'static str,
    kv_block_size: u32,
    kv_blocks: u32,
    kv_blocks_used: u32,
    kv_blocks_cached: u32,
    kv_blocks_free: u32,
    /// What the model keeps of a sequence, by what its layers attend to.
    cache_groups: Vec<CacheGroupInfo>,
    /// What a sequence holds beside its blocks, on all workers together: the state of recurrent layers.
    state_bytes: u64,
    /// Places for copies of such states, from which prompts go on.
    state_snapshots: u32,
    state_snapshots_used: u32,
    requests_running: u32,
    requests_waiting: u32,
    generated_tokens: u64,
    worker_restarts: u64,
    router: &'static str,
    version: &'static str,
    sha: Option<&'static str>,
    docker_label: Option<&'static str>,
}
