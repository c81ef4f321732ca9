//! The routes by which cloud platforms ask: SageMaker's `/invocations`, which takes what any dialect takes,
//! and Vertex AI's `/vertex`, which takes a list of requests and answers with a list of texts.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::uri::PathAndQuery;
use axum::http::{Method, Response, Uri};
use axum::middleware::{self, Next};
use futures::future::{select_all, try_join_all};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tower::Layer;

use crate::config::RouterArgs;
use crate::generation::collect;
use crate::http::error::{ApiError, Family};
use crate::http::fields::Fields;
use crate::http::openai::in_openai_words;
use crate::http::tgi::{self, TextRequest, json};
use crate::http::visit::Visit;
use crate::http::warnings::Warnings;
use crate::http::{Server, body, chat, completions};
use crate::limits::{self, Most};

/// Goes to the dialect that the body is written in, and is answered as there.
pub async fn invocations(State(server): State<Arc<Server>>, request: Request) -> Response<Body> {
    #[derive(Deserialize)]
    struct Keys {
        inputs: Option<IgnoredAny>,
        messages: Option<IgnoredAny>,
        prompt: Option<IgnoredAny>,
    }
    let (head, body) = request.into_parts();
    let whole = Request::from_parts(head.clone(), body);
    let body = match body::read(whole, server.body_limits()).await {
        Ok(body) => body,
        Err(error) => {
            let request = Request::from_parts(head, Body::empty());
            return Visit::refuse(server, &request, Family::Tgi, &error);
        }
    };
    let keys: Option<Keys> = serde_json::from_slice(&body).ok();
    let request = Request::from_parts(head, Body::from(body));
    match keys {
        Some(Keys { inputs: None, messages: Some(_), .. }) => {
            chat::chat_completions(State(server), request).await
        }
        Some(Keys { inputs: None, messages: None, prompt: Some(_) }) => {
            completions::completions(State(server), request).await
        }
        Some(Keys { inputs: None, messages: None, prompt: None }) => {
            let message = "one of `inputs`, `messages` and `prompt` is required";
            Visit::refuse(server, &request, Family::Tgi, &ApiError::invalid("inputs", message))
        }
        // What is no JSON object is told so there.
        _ => tgi::compat(State(server), request).await,
    }
}

/// All instances run side by side; when one fails, the request fails.
pub async fn vertex(State(server): State<Arc<Server>>, request: Request) -> Response<Body> {
    Visit::answer(server, request, Family::Tgi, async |visit, body| {
        let visit = visit.as_mut().expect("nothing here streams");
        let (requests, warnings) = {
            let loaded = visit.loaded()?;
            let fields = Fields::parse(&body, &loaded.limits)?;
            let instances = fields.required(&limits::INSTANCES, fields.tree(&limits::INSTANCES)?)?;
            let Value::Array(instances) = instances else { unreachable!("the table says that it is a list") };
            if instances.is_empty() {
                return Err(ApiError::invalid("instances", "`instances` must have at least one entry"));
            }
            if instances.len() > loaded.limits.max_client_batch_size as usize {
                return Err(fields.too_many("instances", Most::Prompts, instances.len()));
            }
            let mut warnings = Warnings::default();
            warnings.unknown(&fields, "", [limits::INSTANCES.name].into_iter());
            let requests =
                instances.iter().enumerate().map(|(place, instance)| parse(visit, place, instance));
            (try_join_all(requests).await?, warnings.settle(&loaded.limits)?)
        };
        let (predictions, warnings) = texts(visit, requests, warnings, "instances").await?;
        Ok(json(&Predictions { predictions, warnings }))
    })
    .await
}

/// Answers requests side by side, each with a text; `list` is the field that holds them.
pub async fn texts(
    visit: &mut Visit,
    requests: Vec<TextRequest>,
    mut warnings: Warnings,
    list: &str,
) -> Result<(Vec<String>, Warnings), ApiError> {
    let mut prefixes = Vec::with_capacity(requests.len());
    let mut started = Vec::with_capacity(requests.len());
    for (place, TextRequest { request, prefix, warnings: own }) in requests.into_iter().enumerate() {
        warnings.take_over(&format!("{list}[{place}]"), own);
        prefixes.push(prefix);
        started.push(request);
    }
    let mut started =
        try_join_all(started.into_iter().map(|request| async { visit.start(request).await })).await?;
    select_all(started.iter_mut().map(|one| Box::pin(one.first()))).await.0?;
    visit.began();
    let answers = try_join_all(started.into_iter().map(collect)).await?;
    for (_, done) in &answers {
        visit.succeeded(done);
    }
    let texts = prefixes.into_iter().zip(&answers).map(|(prefix, (_, done))| prefix + &done.text);
    Ok((texts.collect(), warnings))
}

async fn parse(visit: &Visit, place: usize, instance: &Value) -> Result<TextRequest, ApiError> {
    let loaded = visit.loaded()?;
    let named = |error: ApiError| error.within(&format!("instances[{place}]"));
    let Value::Object(members) = instance else {
        return Err(ApiError::invalid("instances", format!("`instances[{place}]` must be an object")));
    };
    let text = instance.to_string();
    let fields = Fields::parse(text.as_bytes(), &loaded.limits).map_err(named)?;
    if members.contains_key(limits::MESSAGES.name) {
        let served = &visit.server().config.model_id;
        let request = chat::text_request(&fields, served, &loaded.serving.prompt).await;
        return request.map_err(|error| named(in_openai_words(error, "messages")));
    }
    TextRequest::parse(&fields).map_err(named)
}

/// The paths by which Vertex AI asks: it chooses them, and tells them in the environment. A request to one
/// becomes one to our own route before anything else looks at it, so that the same keys and limits hold.
#[derive(Clone)]
pub struct Aliases {
    predict: Option<String>,
    health: Option<String>,
}

impl Aliases {
    pub fn of(args: &RouterArgs) -> Self {
        Self { predict: args.vertex_predict_route.clone(), health: args.vertex_health_route.clone() }
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

#[derive(Serialize)]
struct Predictions {
    predictions: Vec<String>,
    #[serde(skip_serializing_if = "Warnings::is_empty")]
    warnings: Warnings,
}
