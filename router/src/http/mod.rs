//! The wire: routes, and what each request needs before its dialect reads it. Dialects parse into one
//! `GenerationRequest` and encode its events; nothing below this room knows them.

mod access_log;
mod adapters;
mod anthropic;
mod auth;
mod block_events;
mod body;
pub mod chats;
mod connection;
mod constraints;
mod docs;
mod error;
mod fields;
mod handlers;
mod host;
mod json;
mod keys;
mod kserve;
mod markdown_images;
mod not_found;
mod openai;
mod openapi;
mod ops;
mod page;
mod request_context;
mod request_fields;
mod response;
mod routes;
mod sagemaker;
mod sampling;
mod schemas;
mod shares;
mod shortened;
mod sse;
pub mod state;
mod text_request;
mod tgi;
mod tokenize;
mod unplaced;
mod unread_body;
mod vertex;
mod warnings;

use std::any::Any;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderName, HeaderValue, Method, Response, StatusCode, header};
use axum::middleware::{self, Next};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};
use tower_http::request_id::{PropagateRequestIdLayer, SetRequestIdLayer};

use crate::allowed_host::AllowedHost;
use crate::config::RouterArgs;
use crate::limits::FlagError;
use access_log::{ANTHROPIC_REQUEST_ID, REQUEST_ID, RandomIds};
use auth::Auth;
pub use connection::{ClientAddress, ConnectionLimiter, ConnectionLimits, MAX_UNSENT, RESERVE, serve, tls};
use error::{ApiError, Cause, Family};
use request_context::TRACE_RESPONSE;
use state::Server;

/// All routes, and the layers around them: the outermost is the last.
pub fn router(server: Arc<Server>) -> Result<Router, FlagError> {
    let args = &server.config.args;
    let cors = cors(&args.cors_allow_origin)?;
    let auth = Arc::new(Auth::of(args)?);
    for (flag, path) in keys::readable_by_others(args) {
        tracing::warn!(
            "{flag} {}: other users of this machine can read it; chmod 600 keeps it from them",
            path.display()
        );
    }
    let hosts: Arc<[AllowedHost]> = args.allowed_hosts.as_slice().into();
    let aliases = vertex::Aliases::of(args);
    vertex::Aliases::log_own_routes(args);
    let router = handlers::router(args)
        .fallback(unknown)
        .with_state(server)
        .layer(CatchPanicLayer::custom(panicked))
        .layer(middleware::from_fn(frame))
        .layer(middleware::from_fn_with_state(auth, auth::require_key))
        .layer(middleware::from_fn_with_state(hosts, host::require_allowed))
        .layer(middleware::from_fn(unread_body::read_to_its_end))
        .layer(middleware::from_fn(connection::answer_not_taken))
        .layer(middleware::from_fn(access_log::observe))
        .layer(PropagateRequestIdLayer::x_request_id())
        .layer(SetRequestIdLayer::x_request_id(RandomIds))
        .layer(middleware::map_request(access_log::without_unfit_id))
        .layer(cors);
    Ok(aliases.around(router))
}

/// What can be said of this room's flags before anything is served.
pub fn check_flags(args: &RouterArgs) -> Result<(), FlagError> {
    cors(&args.cors_allow_origin).map(|_| ())?;
    Auth::of(args)?;
    tls(args)?;
    Ok(())
}

fn cors(origins: &[String]) -> Result<CorsLayer, FlagError> {
    let (allowed, varies) = if origins.is_empty() || origins.iter().any(|origin| origin == "*") {
        (AllowOrigin::any(), Vec::new())
    } else {
        let parsed = origins.iter().map(|origin| {
            HeaderValue::from_str(origin)
                .map_err(|_| FlagError(format!("--cors-allow-origin {origin:?} is not an origin")))
        });
        (AllowOrigin::list(parsed.collect::<Result<Vec<_>, _>>()?), vec![header::ORIGIN])
    };
    Ok(CorsLayer::new()
        .allow_origin(allowed)
        .allow_methods([Method::GET, Method::POST])
        // Clients of OpenAI and Anthropic send a dozen of their own. Who may ask is a matter of origins and keys.
        .allow_headers(AllowHeaders::mirror_request())
        // Answers depend on no header that a preflight asks for, and preflights are in no cache that reads this.
        .vary(varies)
        .expose_headers([
            HeaderName::from_static(REQUEST_ID),
            HeaderName::from_static(ANTHROPIC_REQUEST_ID),
            header::RETRY_AFTER,
            HeaderName::from_static("server-timing"),
            HeaderName::from_static(TRACE_RESPONSE),
        ]))
}

async fn unknown(request: Request) -> Response<Body> {
    not_found::unknown_route(request.uri().path())
}

/// Marks the answer of a handler that panicked.
#[derive(Clone, Copy)]
struct Panicked;

/// A bug costs one request. The panic hook has logged where it was; `frame` knows the path, which says the error's shape.
fn panicked(_: Box<dyn Any + Send>) -> Response<Body> {
    let mut response = Response::default();
    response.extensions_mut().insert(Panicked);
    response
}

/// Around every route: what is left of the framework's own answers gets a body in the shape of the route's family, such as a 405
/// that says what the route takes.
async fn frame(request: Request, next: Next) -> Response<Body> {
    let family = Family::of(request.uri().path());
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let response = next.run(request).await;
    match response.status() {
        _ if response.extensions().get::<Panicked>().is_some() => ApiError::internal().response(family),
        StatusCode::METHOD_NOT_ALLOWED => {
            // The framework knows the methods too, but adds its header `Allow` outside of this layer.
            let allowed = route.map(|route| routes::methods(route.as_str())).unwrap_or_default();
            ApiError::method_not_allowed(&method, &allowed).response(family)
        }
        // A path that cannot be decoded.
        StatusCode::BAD_REQUEST if is_text(&response) => {
            ApiError::new(Cause::MalformedBody, "the path is not valid UTF-8 once decoded").response(family)
        }
        _ => response,
    }
}

fn is_text(response: &Response<Body>) -> bool {
    let kind = response.headers().get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/plain"))
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn a_panic_costs_one_request_and_has_the_shape_of_its_route() {
        async fn broken() -> Response<Body> {
            panic!("a bug")
        }
        let router = Router::new()
            .route("/generate", get(broken))
            .route("/v1/models", get(broken))
            .layer(CatchPanicLayer::custom(panicked))
            .layer(middleware::from_fn(frame));
        for (path, pointer) in [("/generate", "/error_type"), ("/v1/models", "/error/code")] {
            let request = Request::get(path).body(Body::empty()).expect("valid");
            let response = router.clone().oneshot(request).await.expect("an answer");
            assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
            let body = response.into_body().collect().await.expect("a body").to_bytes();
            let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
            assert_eq!(body.pointer(pointer).and_then(serde_json::Value::as_str), Some("internal"), "{body}");
        }
    }
}
