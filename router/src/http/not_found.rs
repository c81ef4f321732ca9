//! The answer to a path that no route has.

use axum::body::Body;
use axum::http::Response;

use crate::http::error::{ApiError, Cause, Family};
use crate::http::routes::{self, ROUTES};
use crate::http::shortened::shortened;

/// What clients of Ollama's API ask first.
const OLLAMA: [&str; 6] = ["/api/tags", "/api/version", "/api/show", "/api/ps", "/api/chat", "/api/generate"];

pub fn unknown_route(path: &str) -> Response<Body> {
    let (meant, told) = (routes::meant(path).map(|route| route.path), shortened(path));
    let why = match (path, meant) {
        ("/v1/embeddings" | "/v1/rerank" | "/embed" | "/rerank", _) => {
            ": Penstock generates text; embeddings and ranks are for other servers".to_owned()
        }
        (path, _) if OLLAMA.contains(&path) => {
            ", which is one of Ollama's: choose OpenAI's API in the client, with an address that ends with /v1".to_owned()
        }
        // llama.cpp's own. Of its `/completions` the meaning is ours.
        ("/completion", _) => ", but there is /v1/completions".to_owned(),
        ("/block_events", _) => ": it is served with --block-events".to_owned(),
        // One that is served would not have come here.
        (path, _) if path.starts_with("/v2") && ROUTES.iter().any(|route| route.matches(path)) => {
            ": it is served with --kserve".to_owned()
        }
        (path, Some(route)) => format!(", but there is {route}{}", advice(path, route)),
        (_, None) => "; /docs has those that there are".to_owned(),
    };
    let error = ApiError::new(Cause::NotFound, format!("there is no route {told}{why}"));
    // In the shape that a client of the route reads.
    error.response(Family::of(meant.unwrap_or(path)))
}

/// What is to be done about the address that the client puts before the route.
fn advice(path: &str, route: &str) -> &'static str {
    if route.strip_prefix("/v1") == Some(path) {
        ": the client's address has to end with /v1"
    } else if path.strip_prefix("/v1") == Some(route) && route.starts_with("/v1/") {
        ": the client's address has to end before /v1, which the client adds"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use serde_json::Value;

    use super::*;

    async fn said(path: &str) -> Value {
        let body = unknown_route(path).into_body().collect().await.expect("a body").to_bytes();
        serde_json::from_slice(&body).expect("JSON")
    }

    /// Clients show what stands where they look for it.
    #[tokio::test]
    async fn a_client_with_another_address_is_told_which() {
        for (path, pointer, says) in [
            (
                "/chat/completions",
                "/error/message",
                "there is no route /chat/completions, but there is /v1/chat/completions: the client's address has to end with /v1",
            ),
            (
                "/v1/v1/messages",
                "/error/message",
                "there is no route /v1/v1/messages, but there is /v1/messages: the client's address has to end before /v1, \
                 which the client adds",
            ),
            (
                "/v1/chat/completions/models",
                "/error/message",
                "there is no route /v1/chat/completions/models, but there is /v1/models",
            ),
            ("/v1/generate", "/error", "there is no route /v1/generate, but there is /generate"),
            (
                "/api/generate",
                "/error",
                "there is no route /api/generate, which is one of Ollama's: choose OpenAI's API in the client, with an address \
                 that ends with /v1",
            ),
            ("/nothing", "/error", "there is no route /nothing; /docs has those that there are"),
            ("/completion", "/error", "there is no route /completion, but there is /v1/completions"),
            (
                "/v2/models/any/infer",
                "/error",
                "there is no route /v2/models/any/infer: it is served with --kserve",
            ),
            ("/block_events", "/error", "there is no route /block_events: it is served with --block-events"),
        ] {
            let body = said(path).await;
            assert_eq!(body.pointer(pointer).and_then(Value::as_str), Some(says), "{body}");
        }
        assert_eq!(said("/messages").await["type"], "error");
    }
}
