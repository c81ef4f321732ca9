//! What the handlers of all routes share.

use std::sync::{Arc, OnceLock};

use axum::http::HeaderValue;
use bytes::Bytes;
use penstock_core::blocking::BlockingPool;
use penstock_core::generation::Serving;
use penstock_core::health::HealthReceiver;
use penstock_proto::{CacheGroup, ModelDescription};
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::http::chats::formats::ChatFormats;
use crate::http::error::ApiError;
use crate::http::shares::Shares;
use crate::limits::{FlagError, Limits};
use crate::telemetry::traces::Tracing;

/// Readers of `/block_events` at once. Each may have the scheduler walk over all that is cached, between two steps.
pub const BLOCK_READERS: usize = 16;

/// What all routes share.
pub struct Server {
    pub config: Config,
    pub health: HealthReceiver,
    /// Every request that generates holds a token until its last byte is on its way.
    pub in_flight: TaskTracker,
    /// With `--otlp-endpoint`.
    pub tracing: Option<Tracing>,
    /// For the members of long bodies, and for chats.
    pub reading: BlockingPool,
    /// Those of `/block_events`.
    pub block_readers: Arc<Shares>,
    loaded: OnceLock<Loaded>,
}

/// What there is once the model is loaded.
pub struct Loaded {
    pub serving: Serving,
    /// Commit of the hub snapshot, when known.
    pub model_sha: Option<String>,
    /// The task that the hub names for the model, when known.
    pub pipeline_tag: Option<String>,
    /// How the model writes calls and reasoning.
    pub chats: ChatFormats,
    pub limits: Limits,
    /// The OpenAPI document, once somebody has asked for it.
    pub openapi: OnceLock<Bytes>,
    pub model: ModelDescription,
    /// What the model keeps of a sequence, on all workers together.
    pub cache_groups: Vec<CacheGroup>,
    /// Tokens that the KV cache holds where nothing is behind a window.
    pub cache_tokens: u64,
    /// Most drafts of a sequence in a step.
    pub speculate: u32,
    pub max_step_tokens: u32,
    pub max_slots: u32,
    /// Of the header `x-compute-type`, such as `1-nvidia-l4`.
    pub compute_type: HeaderValue,
}

impl Loaded {
    /// Whether `POST /` puts the prompt before the text unless asked: as in TGI where the model's task is to continue texts, or
    /// is not known. What an encoder-decoder says does not continue its input.
    pub fn returns_full_text(&self) -> bool {
        match &self.pipeline_tag {
            Some(tag) => tag == "text-generation",
            None => !self.model.is_encoder_decoder(),
        }
    }
}

impl Server {
    pub fn new(config: Config, health: HealthReceiver) -> Result<Arc<Self>, FlagError> {
        let tracing = Tracing::start(&config.args)?;
        let reading = BlockingPool::refusing_beyond(
            // More would find no place behind it.
            config.args.max_concurrent_requests as usize,
            config.args.validation_workers,
        );
        let (in_flight, loaded) = (TaskTracker::new(), OnceLock::new());
        let block_readers = Shares::new(BLOCK_READERS);
        Ok(Arc::new(Self { config, health, in_flight, tracing, reading, block_readers, loaded }))
    }

    /// The model is there. Only the first call counts.
    pub fn load(&self, loaded: Loaded) {
        let _ = self.loaded.set(loaded);
    }

    /// For routes that do new work: the model, or why there is none now.
    pub fn ready(&self) -> Result<&Loaded, ApiError> {
        match self.health.borrow().refusal() {
            Some(reason) => Err(ApiError::unavailable(reason)),
            None => self.loaded(),
        }
    }

    /// For routes that only tell about the model.
    pub fn loaded(&self) -> Result<&Loaded, ApiError> {
        self.loaded.get().ok_or_else(|| {
            let reason = self.health.borrow().refusal();
            ApiError::unavailable(reason.unwrap_or_else(|| "the model is not loaded yet".into()))
        })
    }
}
