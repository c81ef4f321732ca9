//! An answer that is one JSON document. Streams are `sse`.

use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use serde::Serialize;

pub fn json(body: &impl Serialize) -> Response<Body> {
    let body = serde_json::to_vec(body).expect("the answers are structs of strings and numbers");
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
