//! SageMaker's `/invocations`, which takes what any dialect takes.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::http::error::{ApiError, Family};
use crate::http::openai::{chat, completions};
use crate::http::request_context::RequestContext;
use crate::http::state::Server;
use crate::http::{body, tgi, vertex};

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
    if vertex::has_instances(&context, "/invocations", &body).await {
        return vertex::predictions(context, body).await.map_err(|error| (error, Family::Tgi));
    }
    let (answered, family) = match body::keys::<Keys>(context.server(), context.origin(), &body).await {
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
