//! The answer to a path that no route has.

use std::borrow::Cow;

use axum::body::Body;
use axum::http::Response;

use crate::http::error::{ApiError, Cause, Family};
use crate::http::routes::ROUTES;
use crate::http::shortened::shortened;

pub fn unknown_route(path: &str) -> Response<Body> {
    let text = match instead_of(path) {
        Some(instead) => format!("there is no route {}: {instead}", shortened(path)),
        None => format!("there is no route {}; /docs has those that there are", shortened(path)),
    };
    ApiError::new(Cause::NotFound, text).response(Family::of(path))
}

/// What to ask in its place, if that can be told.
fn instead_of(path: &str) -> Option<Cow<'static, str>> {
    let path = path.trim_end_matches('/');
    if matches!(path, "/v1/embeddings" | "/v1/rerank" | "/embed" | "/rerank") {
        return Some("Penstock generates text; embeddings and ranks are for other servers".into());
    }
    // One that was served would not have come here.
    if ROUTES.iter().any(|route| route.matches(path)) && path.starts_with("/v2") {
        return Some("it is served with --kserve".into());
    }
    if path == "/block_events" {
        return Some("it is served with --block-events".into());
    }
    // llama.cpp's and Ollama's own.
    let known = match path {
        "/completion" | "/completions" | "/api/generate" => Some("/v1/completions"),
        "/api/chat" => Some("/v1/chat/completions"),
        "/api/tags" => Some("/v1/models"),
        _ => meant(path),
    };
    known.map(|route| format!("ask {route}").into())
}

/// The route that a path ends with, or is the end of: a client's address has `/v1` twice or not at all, or a slash at its end.
fn meant(path: &str) -> Option<&'static str> {
    let routes =
        ROUTES.iter().map(|route| route.path).filter(|route| route.len() > 1 && !route.contains('{'));
    let routes = routes.filter(|route| !route.starts_with("/v2"));
    let ends = |whole: &str, end: &str| end.len() > 1 && end.starts_with('/') && whole.ends_with(end);
    routes.filter(|route| ends(path, route) || ends(route, path)).max_by_key(|route| route.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_with_v1_twice_or_not_at_all_is_told_the_route_that_is_meant() {
        for (path, route) in [
            ("/chat/completions", "/v1/chat/completions"),
            ("/v1/v1/chat/completions", "/v1/chat/completions"),
            ("/v1/chat/completions/", "/v1/chat/completions"),
            ("/openai/v1/models", "/v1/models"),
            ("/messages", "/v1/messages"),
            ("/v1/generate", "/generate"),
            ("/metrics/", "/metrics"),
            ("/completion", "/v1/completions"),
            ("/api/chat", "/v1/chat/completions"),
        ] {
            assert_eq!(instead_of(path).as_deref(), Some(&*format!("ask {route}")), "{path}");
        }
        for path in [
            "/nope",
            "//",
            "/v1",
            "/v1/",
            "/docs2",
            "/v2/nope",
            "/live",
            "/generate/nope",
            "/v1/audio/speech",
        ] {
            assert_eq!(instead_of(path), None, "{path}");
        }
    }

    #[test]
    fn a_route_that_a_flag_opens_is_told_with_its_flag() {
        assert!(instead_of("/v2/models/any/infer").is_some_and(|text| text.contains("--kserve")));
        assert!(instead_of("/block_events").is_some_and(|text| text.contains("--block-events")));
    }
}
