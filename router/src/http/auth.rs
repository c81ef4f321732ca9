//! Who may ask: those who send one of the server's `keys`. A layer around the whole router, so that a new route is
//! guarded unless the table of routes says that it is open.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, Response, header};
use axum::middleware::Next;

use crate::config::RouterArgs;
use crate::http::error::{ApiError, Cause, Family};
use crate::http::keys::{KeyIndex, Keys};
use crate::http::{routes, unplaced};
use crate::limits::FlagError;

/// The API keys of this server, and what is open without one.
pub struct Auth {
    keys: Keys,
    args: RouterArgs,
}

impl Auth {
    pub fn of(args: &RouterArgs) -> Result<Self, FlagError> {
        if args.guard_metrics && !args.is_guarded() {
            return Err(FlagError("--guard-metrics needs --api-key or --api-key-file".into()));
        }
        Ok(Self { keys: Keys::read(args)?, args: args.clone() })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    /// No key is asked for.
    Open,
    With(KeyIndex),
    Refused,
}

fn admit(keys: &Keys, headers: &HeaderMap) -> Admission {
    if keys.is_empty() {
        return Admission::Open;
    }
    match key(headers).and_then(|sent| keys.find(sent)) {
        Some(key) => Admission::With(key),
        None => Admission::Refused,
    }
}

/// Anthropic's header of a key.
pub const X_API_KEY: &str = "x-api-key";

/// The key of the one `Authorization: Bearer KEY`, or of the one `x-api-key` where there is none, as Anthropic's clients
/// send it.
fn key(headers: &HeaderMap) -> Option<&[u8]> {
    let one = |name: &str| {
        let mut values = headers.get_all(name).iter();
        values.next().filter(|_| values.next().is_none())
    };
    if !headers.contains_key(header::AUTHORIZATION) {
        return Some(one(X_API_KEY)?.as_bytes().trim_ascii());
    }
    let value = one(header::AUTHORIZATION.as_str())?;
    let (scheme, key) = value.as_bytes().split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| key.trim_ascii())
}

/// Lets a request pass that needs no key or has one, and notes which. Others are answered here.
pub async fn require_key(State(auth): State<Arc<Auth>>, mut request: Request, next: Next) -> Response<Body> {
    let Auth { keys, args } = &*auth;
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    match admit(keys, request.headers()) {
        Admission::Open => {}
        Admission::With(key) => {
            if let Some(unplaced) = unplaced::of(request.extensions())
                && let Err(error) = unplaced.belongs_to(key)
            {
                return error.response(Family::of(request.uri().path()));
            }
            request.extensions_mut().insert(key);
            request.extensions_mut().insert(keys.name(key));
            request.extensions_mut().insert(keys.facts(key));
        }
        Admission::Refused if reads && routes::is_open(args, request.uri().path()) => {}
        Admission::Refused => {
            let family = Family::of(request.uri().path());
            return refusal(request.headers()).response(family);
        }
    }
    next.run(request).await
}

fn refusal(headers: &HeaderMap) -> ApiError {
    let is_sent = headers.contains_key(header::AUTHORIZATION) || headers.contains_key(X_API_KEY);
    // The first three words are OpenAI's: LiteLLM looks for them.
    let text = match key(headers) {
        _ if !is_sent => "an API key is required: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`",
        None => {
            "Incorrect API key provided: it is sent once, as `Authorization: Bearer KEY` or `x-api-key: KEY`"
        }
        Some(_) => "Incorrect API key provided: it is not valid here",
    };
    ApiError::new(Cause::Unauthorized, text)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;
    use crate::http::keys::tests::keys;

    fn sent(values: &[&'static str]) -> HeaderMap {
        values.iter().map(|value| (header::AUTHORIZATION, HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn each_of_the_keys_opens_and_nothing_else_does() {
        let keys = keys(&["one", "Two"]);
        for (good, index) in [("Bearer one", 0), ("bearer Two", 1), ("BEARER  one ", 0)] {
            assert_eq!(admit(&keys, &sent(&[good])), Admission::With(KeyIndex(index)), "{good}");
        }
        let bad = ["", "one", "Bearer", "Bearer ", "Bearer on", "Bearer onee", "Bearer two", "Basic one"];
        for bad in bad {
            assert_eq!(admit(&keys, &sent(&[bad])), Admission::Refused, "{bad}");
        }
        assert_eq!(admit(&keys, &sent(&[])), Admission::Refused);
        let two = admit(&keys, &sent(&["Bearer one", "Bearer x"]));
        assert_eq!(two, Admission::Refused, "which of two is meant cannot be known");
    }

    #[test]
    fn a_wrong_key_is_told_from_one_that_is_missing() {
        let said = |headers: &HeaderMap| refusal(headers).to_string();
        let anthropic = [(X_API_KEY.parse().expect("a header"), HeaderValue::from_static("wrong"))];
        assert!(said(&sent(&[])).starts_with("an API key is required"));
        for headers in [sent(&["Bearer wrong"]), anthropic.into_iter().collect()] {
            assert!(said(&headers).starts_with("Incorrect API key provided: it is not valid"), "{headers:?}");
        }
        // Without its scheme, and twice.
        for headers in [sent(&["one"]), sent(&["Basic one"]), sent(&["Bearer one", "Bearer x"])] {
            let said = said(&headers);
            assert!(said.starts_with("Incorrect API key provided: it is sent once, as `Auth"), "{headers:?}");
        }
    }

    #[test]
    fn without_keys_everybody_may_ask() {
        assert_eq!(admit(&keys(&[]), &sent(&[])), Admission::Open);
    }
}
