//! Vertex AI's `/vertex`, which takes a list of requests and answers with a list of texts, and the paths at which it asks.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::uri::PathAndQuery;
use axum::http::{Method, Response, Uri};
use axum::middleware::{self, Next};
use bytes::Bytes;
use schemars::JsonSchema;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use tower::Layer;
use tracing::info;

use crate::config::RouterArgs;
use crate::http::body;
use crate::http::error::{ApiError, Family, Place};
use crate::http::fields::Fields;
use crate::http::openai::chat;
use crate::http::request_context::RequestContext;
use crate::http::request_fields;
use crate::http::response::json;
use crate::http::routes::{self, Handler, Verb};
use crate::http::state::{Loaded, Server};
use crate::http::text_request::{TextRequest, generate_texts};
use crate::http::tgi::request::text_request;
use crate::http::warnings::Warnings;

/// Whether a request to `path`, a route of its own, is one of `/vertex`. Where Vertex AI was given that path as the one to predict
/// at, its `predict` sends `instances` there, and its `rawPredict` what the route takes.
pub async fn has_instances(context: &RequestContext, path: &str, body: &Bytes) -> bool {
    #[derive(Deserialize)]
    struct Keys {
        instances: Option<IgnoredAny>,
    }
    context.server().config.args.vertex_predict_route.as_deref() == Some(path)
        && matches!(
            body::keys(context.server(), context.origin(), body).await,
            Some(Keys { instances: Some(_) })
        )
}

pub async fn predict(State(server): State<Arc<Server>>, request: Request) -> Response<Body> {
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
        text_request(instance)
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
