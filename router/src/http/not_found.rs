//! The answer to a path that no route has.

use axum::body::Body;
use axum::http::Response;

use crate::http::error::{ApiError, Cause, Family};
use crate::http::shortened::shortened;

pub fn unknown_route(path: &str) -> Response<Body> {
    let path = shortened(path);
    let text = match &*path {
        "/v1/embeddings" | "/v1/rerank" | "/embed" | "/rerank" => {
            format!(
                "there is no route {path}: Penstock generates text; embeddings and ranks are for other servers"
            )
        }
        _ => format!("there is no route {path}"),
    };
    ApiError::new(Cause::NotFound, text).response(Family::of(&path))
}
