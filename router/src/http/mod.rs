//! The wire: routes, and what each request needs before its dialect reads it. Dialects parse into one
//! `GenerationRequest` and encode its events; nothing below this room knows them.

mod answers;
mod body;
mod chat;
mod choices;
mod completions;
mod constraints;
mod error;
mod fields;
mod gate;
mod kserve;
mod listener;
mod openai;
mod ops;
mod page;
mod platforms;
mod reference;
mod sse;
mod stall;
mod tgi;
mod tls;
mod visit;
mod warnings;

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, Method, Response, StatusCode, header};
use axum::middleware::{self, Next};
use axum::routing::{get, post};
use futures::FutureExt;
use tokio_util::task::TaskTracker;
use tower_http::cors::{AllowOrigin, CorsLayer};

use crate::config::{Config, RouterArgs};
use crate::generation::Serving;
use crate::health::HealthReceiver;
use crate::limits::{FlagError, Limits};
use crate::telemetry::traces::Tracing;
use crate::worker::proto::ModelDescription;
use body::BodyLimits;
use error::{ApiError, Cause, Family};
use gate::{Keys, REQUEST_ID};
pub use listener::{Patience, serve};
pub use tls::acceptor as tls;
use visit::TRACE_RESPONSE;

/// What all routes share.
pub struct Server {
    pub config: Config,
    pub health: HealthReceiver,
    /// Every request that generates holds a token until its last byte is on its way.
    pub under_way: TaskTracker,
    /// With `--otlp-endpoint`.
    pub tracing: Option<Tracing>,
    loaded: OnceLock<Loaded>,
}

/// What there is once the model is loaded.
pub struct Loaded {
    pub serving: Serving,
    pub limits: Limits,
    pub model: ModelDescription,
    /// Tokens that the KV cache holds where nothing is behind a window.
    pub cache_tokens: u64,
    pub max_step_tokens: u32,
    pub max_slots: u32,
    /// Of the header `x-compute-type`, such as `1-nvidia-l4`.
    pub compute_type: HeaderValue,
}

impl Server {
    pub fn new(config: Config, health: HealthReceiver) -> Result<Arc<Self>, FlagError> {
        let tracing = Tracing::start(&config.args)?;
        Ok(Arc::new(Self { config, health, under_way: TaskTracker::new(), tracing, loaded: OnceLock::new() }))
    }

    /// The model is there. Only the first call counts.
    pub fn load(&self, loaded: Loaded) {
        let _ = self.loaded.set(loaded);
    }

    fn body_limits(&self) -> BodyLimits {
        BodyLimits::of(&self.config.args)
    }

    /// For routes that do new work: the model, or why there is none now.
    fn ready(&self) -> Result<&Loaded, ApiError> {
        match self.health.borrow().refusal() {
            Some(reason) => Err(ApiError::unavailable(reason)),
            None => self.loaded(),
        }
    }

    /// For routes that only tell about the model.
    fn loaded(&self) -> Result<&Loaded, ApiError> {
        self.loaded.get().ok_or_else(|| {
            let reason = self.health.borrow().refusal();
            ApiError::unavailable(reason.unwrap_or_else(|| "the model is not loaded yet".into()))
        })
    }
}

pub fn routes(server: Arc<Server>) -> Result<Router, FlagError> {
    let cors = cors(&server.config.args.cors_allow_origin)?;
    let keys = Arc::new(Keys::read(&server.config.args)?);
    let router = Router::new()
        .route("/", get(page::index).post(tgi::compat))
        .route("/page/{name}", get(page::file))
        .route("/generate", post(tgi::generate))
        .route("/generate_stream", post(tgi::generate_stream))
        .route("/tokenize", post(tgi::tokenize))
        .route("/chat_tokenize", post(chat::chat_tokenize))
        .route("/invocations", post(platforms::invocations))
        .route("/vertex", post(platforms::vertex))
        .route("/v1/chat/completions", post(chat::chat_completions))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/models", get(ops::models))
        .route("/v1/models/{*id}", get(ops::model))
        .route("/health", get(ops::health))
        .route("/ping", get(ops::health))
        .route("/readyz", get(ops::health))
        .route("/livez", get(ops::alive))
        .route("/info", get(ops::info))
        .route("/metrics", get(ops::metrics))
        .route("/docs", get(reference::page))
        .route("/api-doc/openapi.json", get(reference::openapi));
    let aliases = platforms::Aliases::of(&server.config.args);
    let router = if server.config.args.kserve { kserve::routes(router) } else { router };
    let router = router
        .fallback(unknown)
        .with_state(server)
        .layer(middleware::from_fn(frame))
        .layer(middleware::from_fn_with_state(keys, gate::guard))
        .layer(cors);
    Ok(aliases.around(router))
}

/// What can be said of this room's flags before anything is served.
pub fn check_flags(args: &RouterArgs) -> Result<(), FlagError> {
    cors(&args.cors_allow_origin).map(|_| ())?;
    Keys::read(args)?;
    tls(args)?;
    Ok(())
}

fn cors(origins: &[String]) -> Result<CorsLayer, FlagError> {
    let allowed = if origins.is_empty() || origins.iter().any(|origin| origin == "*") {
        AllowOrigin::any()
    } else {
        let parsed = origins.iter().map(|origin| {
            HeaderValue::from_str(origin)
                .map_err(|_| FlagError(format!("--cors-allow-origin {origin:?} is not an origin")))
        });
        AllowOrigin::list(parsed.collect::<Result<Vec<_>, _>>()?)
    };
    Ok(CorsLayer::new()
        .allow_origin(allowed)
        .allow_methods([Method::GET, Method::POST])
        .allow_headers([
            header::CONTENT_TYPE,
            header::AUTHORIZATION,
            HeaderName::from_static(REQUEST_ID),
            HeaderName::from_static(crate::limits::DEADLINE.name),
        ])
        .expose_headers([
            HeaderName::from_static(REQUEST_ID),
            header::RETRY_AFTER,
            HeaderName::from_static("server-timing"),
            HeaderName::from_static(TRACE_RESPONSE),
        ]))
}

async fn unknown(request: Request) -> Response<Body> {
    unknown_route(request.uri().path())
}

fn unknown_route(path: &str) -> Response<Body> {
    let path = fields::shortened(path);
    ApiError::new(Cause::NotFound, format!("there is no route {path}")).response(Family::of(&path))
}

/// Around every route: a 405 gets a body that says what the route takes, and a bug costs one request.
async fn frame(request: Request, next: Next) -> Response<Body> {
    let family = Family::of(request.uri().path());
    let method = request.method().clone();
    match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(response) if response.status() == StatusCode::METHOD_NOT_ALLOWED => {
            let allow = response.headers().get(header::ALLOW).cloned();
            ApiError::method_not_allowed(method.as_str(), allow).response(family)
        }
        // What is left of the framework's own words: a path that cannot be decoded.
        Ok(response) if response.status() == StatusCode::BAD_REQUEST && is_text(&response) => {
            ApiError::new(Cause::MalformedBody, "the path is not valid UTF-8 once decoded").response(family)
        }
        Ok(response) => response,
        // The panic hook has logged where it was.
        Err(_) => {
            let message = "an internal error; the server's log has more";
            ApiError::new(Cause::Internal, message).response(family)
        }
    }
}

fn is_text(response: &Response<Body>) -> bool {
    let kind = response.headers().get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/plain"))
}
