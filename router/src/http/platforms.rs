//! The routes by which cloud platforms ask: SageMaker's `/invocations`, which takes what any dialect takes,
//! and Vertex AI's `/vertex`, which takes a list of requests and answers with a list of texts.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use futures::future::try_join_all;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::generation::{GenerationRequest, collect};
use crate::http::error::{ApiError, Family};
use crate::http::fields::Fields;
use crate::http::openai::in_openai_words;
use crate::http::tgi::{self, json};
use crate::http::visit::Visit;
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
    let body = match body::read(whole, server.config.args.payload_limit).await {
        Ok(body) => body,
        Err(error) => return error.response(Family::Tgi),
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
            ApiError::invalid("inputs", message).response(Family::Tgi)
        }
        // What is no JSON object is told so there.
        _ => tgi::compat(State(server), request).await,
    }
}

/// All instances run side by side; when one fails, the request fails.
pub async fn vertex(State(server): State<Arc<Server>>, request: Request) -> Response<Body> {
    Visit::answer(server, request, Family::Tgi, async |visit, body| {
        let visit = visit.as_mut().expect("nothing here streams");
        let requests = {
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
            let requests =
                instances.iter().enumerate().map(|(place, instance)| parse(visit, place, instance));
            try_join_all(requests).await?
        };
        let started = try_join_all(requests.into_iter().map(|request| visit.start(request))).await?;
        let answers = try_join_all(started.into_iter().map(collect)).await?;
        for (_, done) in &answers {
            visit.succeeded(done);
        }
        let predictions = answers.iter().map(|(_, done)| done.text.as_str()).collect();
        Ok(json(&Predictions { predictions }))
    })
    .await
}

async fn parse(visit: &Visit, place: usize, instance: &Value) -> Result<GenerationRequest, ApiError> {
    let loaded = visit.loaded()?;
    let named = |error: ApiError| error.within(&format!("instances[{place}]"));
    let Value::Object(members) = instance else {
        return Err(ApiError::invalid("instances", format!("`instances[{place}]` must be an object")));
    };
    let text = instance.to_string();
    let fields = Fields::parse(text.as_bytes(), &loaded.limits).map_err(named)?;
    if members.contains_key(limits::MESSAGES.name) {
        let served = &visit.server().config.model_id;
        let request = chat::generation_request(&fields, served, &loaded.serving.prompt).await;
        return request.map_err(|error| named(in_openai_words(error, "messages")));
    }
    tgi::generation_request(&fields).map_err(named)
}

#[derive(Serialize)]
struct Predictions<'a> {
    predictions: Vec<&'a str>,
}
