//! The id by which a request is known in answers and logs, and a layer around all routes that counts the answers, and counts
//! and logs those that are errors. tower-http sets and propagates the ids; what is here makes them, and takes away what a
//! client sent that is not fit for a line of the log, since tower-http keeps any.

use axum::body::Body;
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderValue, Response};
use axum::middleware::Next;
use tower_http::request_id::{MakeRequestId, RequestId};

use crate::http::error::{Cause, Family, Refusal};
use crate::http::shortened::shortened;
use crate::telemetry::metrics;

pub const REQUEST_ID: &str = "x-request-id";
/// The same id where Anthropic's clients look for it.
pub const ANTHROPIC_REQUEST_ID: &str = "request-id";
const LONGEST_ID: usize = 128;

/// Makes ids of 32 random digits.
#[derive(Clone, Copy)]
pub struct RandomIds;

impl MakeRequestId for RandomIds {
    fn make_request_id<B>(&mut self, _: &axum::http::Request<B>) -> Option<RequestId> {
        HeaderValue::try_from(format!("{:032x}", rand::random::<u128>())).ok().map(RequestId::new)
    }
}

/// Takes away an id that is not fit for a line of the log.
pub async fn without_unfit_id(mut request: Request) -> Request {
    let is_fit = |id: &HeaderValue| {
        (1..=LONGEST_ID).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    if request.headers().get(REQUEST_ID).is_some_and(|id| !is_fit(id)) {
        request.headers_mut().remove(REQUEST_ID);
    }
    request
}

/// As the log has it.
pub fn id_of(request: &Request) -> String {
    let id = request.extensions().get::<RequestId>().and_then(|id| id.header_value().to_str().ok());
    id.unwrap_or("none").to_owned()
}

pub async fn observe(request: Request, next: Next) -> Response<Body> {
    let id = id_of(&request);
    let path = request.uri().path().to_owned();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let told =
        request.extensions().get::<RequestId>().filter(|_| Family::of(&path) == Family::Anthropic).cloned();
    let mut response = next.run(request).await;
    if let Some(told) = told {
        response.headers_mut().insert(ANTHROPIC_REQUEST_ID, told.into_header_value());
    }
    metrics::answered(route.as_ref().map_or("unknown", MatchedPath::as_str), response.status());
    if let Some(Refusal { cause, message }) = response.extensions_mut().remove::<Refusal>() {
        metrics::error(cause.code());
        let (status, route, reason) = (cause.status().as_u16(), &*shortened(&path), &*message);
        // Probes ask again and again while the server loads.
        if matches!(cause, Cause::Unhealthy | Cause::Unavailable) {
            tracing::debug!(request_id = id, route, status, reason, "refused");
        } else {
            tracing::info!(request_id = id, route, status, reason, "refused");
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_id_is_taken_when_it_is_fit_for_a_log_line() {
        let kept = async |value: &str| {
            let value = HeaderValue::from_bytes(value.as_bytes()).expect("a header");
            let request = Request::get("/").header(REQUEST_ID, value).body(Body::empty()).expect("valid");
            without_unfit_id(request).await.headers().contains_key(REQUEST_ID)
        };
        assert!(kept("abc-123").await && kept(&"x".repeat(LONGEST_ID)).await);
        for bad in ["", "two words", "tab\tbed", &"x".repeat(LONGEST_ID + 1), "naïve"] {
            assert!(!kept(bad).await, "{bad}");
        }
    }

    #[test]
    fn ids_are_made_of_32_digits() {
        let request = Request::get("/").body(Body::empty()).expect("valid");
        let make = || RandomIds.make_request_id(&request).expect("an id").into_header_value();
        let (one, other) = (make(), make());
        assert_ne!(one, other);
        assert!(one.len() == 32 && one.as_bytes().iter().all(u8::is_ascii_hexdigit));
    }
}
