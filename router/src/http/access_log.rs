//! The outermost layer: gives every request the id by which it is known in answers and logs, counts the answers, and
//! counts and logs those that are errors. (tower-http's layer for ids takes any that a client sends, so that each
//! would have to be checked here all the same.)

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderMap, HeaderValue, Response};
use axum::middleware::Next;

use crate::http::error::{Cause, Refusal};
use crate::http::fields::shortened;
use crate::telemetry::metrics;

pub const REQUEST_ID: &str = "x-request-id";
const LONGEST_ID: usize = 128;

/// `x-request-id` as the client sent it, where it is fit for a line of the log, or a random one.
#[derive(Clone, Debug)]
pub struct RequestId(pub Arc<str>);

impl RequestId {
    fn of(headers: &HeaderMap) -> Self {
        let given = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok()).filter(|id| {
            (1..=LONGEST_ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
        });
        Self(given.map_or_else(|| format!("{:032x}", rand::random::<u128>()).into(), Arc::from))
    }
}

pub async fn observe(mut request: Request, next: Next) -> Response<Body> {
    let id = RequestId::of(request.headers());
    let path = request.uri().path().to_owned();
    let route = request.extensions().get::<MatchedPath>().cloned();
    request.extensions_mut().insert(id.clone());
    let mut response = next.run(request).await;
    let value = HeaderValue::from_str(&id.0).expect("it was made of visible ASCII");
    response.headers_mut().insert(REQUEST_ID, value);
    metrics::answered(route.as_ref().map_or("unknown", MatchedPath::as_str), response.status());
    if let Some(Refusal { cause, message }) = response.extensions_mut().remove::<Refusal>() {
        metrics::error(cause.code());
        let (status, route, reason) = (cause.status().as_u16(), &*shortened(&path), &*message);
        // Probes ask again and again while the server loads.
        if matches!(cause, Cause::Unhealthy | Cause::Unavailable) {
            tracing::debug!(request_id = &*id.0, route, status, reason, "refused");
        } else {
            tracing::info!(request_id = &*id.0, route, status, reason, "refused");
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_taken_when_it_is_fit_for_a_log_line() {
        let of = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_bytes(value.as_bytes()).expect("a header"));
            RequestId::of(&headers).0.to_string()
        };
        assert_eq!(of("abc-123"), "abc-123");
        for bad in ["", "two words", "tab\tbed", &"x".repeat(129), "naïve"] {
            assert_ne!(of(bad), bad);
            assert_eq!(of(bad).len(), 32);
        }
    }
}
