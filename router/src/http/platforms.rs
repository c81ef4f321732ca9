//! The routes by which cloud platforms ask: SageMaker's `/invocations`, which takes what any dialect takes,
//! and Vertex AI's `/vertex`, which takes a list of requests and answers with a list of texts.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::uri::PathAndQuery;
use axum::http::{Method, Response, Uri};
use axum::middleware::{self, Next};
use bytes::Bytes;
use penstock_core::blocking::SHORT;
use schemars::JsonSchema;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use tower::Layer;
use tracing::info;

use crate::config::RouterArgs;
use crate::http::error::{ApiError, Family, Place};
use crate::http::fields::Fields;
use crate::http::openai::{chat, completions};
use crate::http::request_context::RequestContext;
use crate::http::request_fields;
use crate::http::response::json;
use crate::http::routes::{self, Handler, Verb};
use crate::http::state::{Loaded, Server};
use crate::http::text_request::{TextRequest, generate_texts};
use crate::http::warnings::Warnings;
use crate::http::{body, tgi};

/// Answered in the dialect that the body is written in.
pub async fn invocations(State(server): State<Arc<Server>>, request: Request) -> Response<Body> {
    RequestContext::answer_in_its_dialect(server, request, Family::Tgi, invoked).await
}

async fn invoked(context: Arc<RequestContext>, body: Bytes) -> Result<Response<Body>, (ApiError, Family)> {
    #[derive(Deserialize)]
    struct Keys {
        inputs: Option<IgnoredAny>,
        messages: Option<IgnoredAny>,
        prompt: Option<IgnoredAny>,
    }
    if has_instances(&context, "/invocations", &body).await {
        return predictions(context, body).await.map_err(|error| (error, Family::Tgi));
    }
    let (answered, family) = match keys::<Keys>(&context, &body).await {
        Some(Keys { inputs: None, messages: Some(_), .. }) => {
            (chat::answer(context, body).await, Family::OpenAi)
        }
        Some(Keys { inputs: None, messages: None, prompt: Some(_) }) => {
            (completions::answer(context, body).await, Family::OpenAi)
        }
        Some(Keys { inputs: None, messages: None, prompt: None }) => {
            let message = "one of `inputs`, `messages` and `prompt` is required";
            (Err(ApiError::together("inputs", message)), Family::Tgi)
        }
        // What is no JSON object is told so there.
        _ => (tgi::compat_answer(context, body).await, Family::Tgi),
    };
    answered.map_err(|error| (error, family))
}

/// Which members a body has, by those of `K`; `None` where it is no object.
async fn keys<K: DeserializeOwned + Send + 'static>(context: &RequestContext, body: &Bytes) -> Option<K> {
    if body.len() <= SHORT {
        return serde_json::from_slice(body).ok();
    }
    let (length, body) = (body.len(), body.clone());
    let read = move |_: &CancellationToken| serde_json::from_slice(&body).ok();
    context.server().reading.run(context.origin(), length, read).await.unwrap_or_default()
}

/// Whether a request to `path`, a route of its own, is one of `/vertex`. Where Vertex AI was given that path as the one to predict
/// at, its `predict` sends `instances` there, and its `rawPredict` what the route takes.
pub async fn has_instances(context: &RequestContext, path: &str, body: &Bytes) -> bool {
    #[derive(Deserialize)]
    struct Keys {
        instances: Option<IgnoredAny>,
    }
    context.server().config.args.vertex_predict_route.as_deref() == Some(path)
        && matches!(keys(context, body).await, Some(Keys { instances: Some(_) }))
}

pub async fn vertex(State(server): State<Arc<Server>>, request: Request) -> Response<Body> {
    RequestContext::answer(server, request, Family::Tgi, predictions).await
}

/// All instances run side by side; when one fails, the request fails.
pub async fn predictions(context: Arc<RequestContext>, body: Bytes) -> Result<Response<Body>, ApiError> {
    let (requests, warnings) =
        body::parse_apart(context.server(), context.origin(), body, |fields, server, client| {
            let limits = fields.limits();
            let instances =
                fields.required(&request_fields::INSTANCES, fields.list(&request_fields::INSTANCES)?)?;
            if instances.is_empty() {
                return Err(ApiError::invalid("instances", "must have at least one entry"));
            }
            let mut warnings = Warnings::default();
            warnings.unknown(fields, "", [request_fields::INSTANCES.name].into_iter());
            let loaded = server.loaded()?;
            let requests = instances.into_iter().enumerate().map(|(index, instance)| {
                let instance = fields.entry(&request_fields::INSTANCES, index, instance)?;
                let request = instance_request(&instance, &server.config.model_id, loaded, client);
                request.map_err(|error| error.within(Place::from("instances").entry(index)))
            });
            Ok((requests.collect::<Result<Vec<_>, _>>()?, warnings.settle(limits)?))
        })
        .await?;
    let (predictions, warnings) = generate_texts(&context, requests, warnings, "instances").await?;
    Ok(json(&Predictions { predictions, warnings }))
}

/// A chat, or a request of `/generate`.
fn instance_request(
    instance: &Fields,
    served: &str,
    loaded: &Loaded,
    client: &CancellationToken,
) -> Result<TextRequest, ApiError> {
    if instance.raw(&request_fields::MESSAGES).is_some() {
        chat::text_request(instance, served, loaded, client)
    } else {
        tgi::text_request(instance)
    }
}

/// The paths by which Vertex AI asks: it chooses them, or whoever uploads the model, and tells them in the environment. A
/// request to one becomes one to our own route before anything else looks at it, so that the same keys and limits hold.
/// The path of a route that is there without it, such as `/v1/chat/completions`, is no alias: the route stays what it is.
#[derive(Clone)]
pub struct Aliases {
    predict: Option<String>,
    pub health: Option<String>,
}

impl Aliases {
    pub fn of(args: &RouterArgs) -> Self {
        let alias = |path: &Option<String>, method| {
            path.clone().filter(|path| routes::route_of(args, method, path).is_none())
        };
        Self {
            predict: alias(&args.vertex_predict_route, Verb::Post),
            health: alias(&args.vertex_health_route, Verb::Get),
        }
    }

    /// Tells of paths that were given and are none, but of those where the route answers as the alias would.
    pub fn log_own_routes(args: &RouterArgs) {
        for (flag, path, method, alike) in [
            ("--vertex-predict-route", &args.vertex_predict_route, Verb::Post, Handler::Vertex),
            ("--vertex-health-route", &args.vertex_health_route, Verb::Get, Handler::Health),
        ] {
            if let Some(path) = path
                && routes::route_of(args, method, path).is_some_and(|route| route.handler != alike)
            {
                info!("{flag} {path}: this server has a route of that path, which answers there as ever");
            }
        }
    }

    pub fn around(self, router: Router) -> Router {
        if self.predict.is_none() && self.health.is_none() {
            return router;
        }
        let rename = async |State(aliases): State<Self>, request: Request, next: Next| {
            next.run(aliases.renamed(request)).await
        };
        Router::new().fallback_service(middleware::from_fn_with_state(self, rename).layer(router))
    }

    fn renamed(&self, mut request: Request) -> Request {
        let is = |alias: &Option<String>| alias.as_deref() == Some(request.uri().path());
        let own = match *request.method() {
            Method::POST if is(&self.predict) => "/vertex",
            Method::GET | Method::HEAD if is(&self.health) => "/health",
            _ => return request,
        };
        let mut parts = request.uri().clone().into_parts();
        parts.path_and_query = Some(PathAndQuery::from_static(own));
        *request.uri_mut() = Uri::from_parts(parts).expect("only the path was replaced, by another");
        request
    }
}

#[derive(JsonSchema, Serialize)]
pub struct Predictions {
    predictions: Vec<String>,
    #[serde(skip_serializing_if = "Warnings::is_empty")]
    warnings: Warnings,
}
