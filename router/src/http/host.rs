//! For which host a request is meant. A request that leaves doubt of it, or of where its body ends, is refused: another
//! server in front may read it differently. And with `--allowed-hosts` only those are answered for: a browser sends
//! the name that its page was loaded from, so that a page whose name was made to mean this server's address (DNS
//! rebinding) gets nothing.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, Version, header};
use axum::middleware::Next;

use crate::allowed_host::AllowedHost;
use crate::http::error::{ApiError, Cause, Family};
use crate::http::routes;
use crate::http::shortened::shortened;

/// The layer that refuses what `check` does.
pub async fn require_allowed(
    State(allowed): State<Arc<[AllowedHost]>>,
    request: Request<Body>,
    next: Next,
) -> Response<Body> {
    let Err(error) = check(&request, &allowed) else { return next.run(request).await };
    let (family, closes) = (Family::of(request.uri().path()), request.version() <= Version::HTTP_11);
    let mut response = error.response(family);
    if closes {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Refuses what leaves doubt, and a host that is not `allowed`; all are, where none is named.
fn check<B>(request: &Request<B>, allowed: &[AllowedHost]) -> Result<(), ApiError> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let (host, second) = (hosts.next(), hosts.next());
    if second.is_some() {
        return Err(malformed("a request must not have more than one `host` header"));
    }
    let parse = |value: &[u8]| {
        let parsed = Authority::try_from(value).ok().filter(|authority| !authority.as_str().contains('@'));
        parsed.ok_or_else(|| {
            malformed("the `host` header must be a host's name or address, with or without a port")
        })
    };
    let host = host.map(|value| parse(value.as_bytes())).transpose()?;
    let named = request.uri().authority();
    if request.version() >= Version::HTTP_2 {
        // RFC 9113, 8.3.1.
        if let (Some(host), Some(named)) = (&host, named)
            && host != named
        {
            return Err(malformed("the `host` header and `:authority` must be the same"));
        }
    }
    let is_old = request.version() <= Version::HTTP_10;
    if host.is_none() && !is_old && (named.is_none() || request.version() == Version::HTTP_11) {
        return Err(malformed("a request must have a `host` header"));
    }
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    // Probes come to an address that nobody has named, and learn nothing that others must not.
    let path = request.uri().path();
    let is_probe = reads && path != "/" && routes::probes().any(|probe| probe == path);
    if allowed.is_empty() || is_probe {
        return Ok(());
    }
    let mut meant = host.iter().chain(named).map(Authority::host).peekable();
    let none = meant.peek().is_none();
    match meant.find(|host| !allowed.iter().any(|one| one.is(host))) {
        None if !none => Ok(()),
        wrong => {
            let given = shortened(wrong.unwrap_or_default()).into_owned();
            let message = format!(
                "this server does not answer for the host it was asked as (--allowed-hosts): {given}"
            );
            Err(ApiError::new(Cause::WrongHost, message))
        }
    }
}

/// A body's end is said by its length or by chunks, and by nothing else.
pub fn check_framing(headers: &HeaderMap) -> Result<(), ApiError> {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => Ok(()),
        (Some(coding), None) if coding.as_bytes().eq_ignore_ascii_case(b"chunked") => Ok(()),
        _ => Err(malformed("`transfer-encoding` must be `chunked`, once")),
    }
}

fn malformed(message: &'static str) -> ApiError {
    ApiError::new(Cause::MalformedHead, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(version: Version, target: &str, headers: &[(&str, &str)]) -> Request<()> {
        let start = Request::get(target).version(version);
        let whole = headers.iter().fold(start, |request, (name, value)| request.header(*name, *value));
        whole.body(()).expect("a request")
    }

    fn allowed(names: &[&str]) -> Vec<AllowedHost> {
        names.iter().map(|name| name.parse().expect("a name")).collect()
    }

    #[test]
    fn exactly_one_host_is_meant() {
        use Version as V;
        let host = ("host", "a.example");
        for (version, target, headers, good) in [
            (V::HTTP_11, "/info", vec![host], true),
            (V::HTTP_11, "/info", vec![], false),
            (V::HTTP_11, "/info", vec![host, host], false),
            (V::HTTP_11, "http://a.example/info", vec![], false),
            (V::HTTP_11, "/info", vec![("host", "")], false),
            (V::HTTP_11, "/info", vec![("host", "a b")], false),
            (V::HTTP_11, "/info", vec![("host", "a/b")], false),
            (V::HTTP_11, "/info", vec![("host", "localhost@a.example")], false),
            (V::HTTP_11, "/info", vec![("host", "[::1]:3000")], true),
            (V::HTTP_10, "/info", vec![], true),
            (V::HTTP_10, "/info", vec![host, host], false),
            (V::HTTP_2, "http://a.example/info", vec![], true),
            (V::HTTP_2, "http://a.example/info", vec![host], true),
            (V::HTTP_2, "http://a.example/info", vec![("host", "b.example")], false),
            (V::HTTP_2, "/info", vec![host], true),
            (V::HTTP_2, "/info", vec![], false),
        ] {
            let result = check(&request(version, target, &headers), &[]);
            assert_eq!(result.is_ok(), good, "{version:?} {target} {headers:?}");
            assert!(result.is_ok() || result.is_err_and(|error| error.cause == Cause::MalformedHead));
        }
    }

    #[test]
    fn a_body_is_chunked_and_nothing_else() {
        for (codings, good) in [
            (vec!["chunked"], true),
            (vec!["Chunked"], true),
            (vec!["gzip, chunked"], false),
            (vec!["chunked, chunked"], false),
            (vec!["chunked", "chunked"], false),
            (vec!["gzip", "chunked"], false),
            (vec!["identity"], false),
        ] {
            let mut headers = vec![("host", "x")];
            headers.extend(codings.iter().map(|coding| ("transfer-encoding", *coding)));
            let result = check_framing(request(Version::HTTP_11, "/", &headers).headers());
            assert_eq!(result.is_ok(), good, "{codings:?}");
        }
    }

    #[test]
    fn only_allowed_hosts_are_answered_for_but_probes_always() {
        let allowed = allowed(&["localhost", "api.example", "*.models.example", "[::1]"]);
        for (host, good) in [
            ("localhost", true),
            ("LOCALHOST:3000", true),
            ("api.example.", true),
            ("a.models.example", true),
            ("a.b.models.example:443", true),
            ("[::1]:3000", true),
            ("models.example", false),
            (".models.example", false),
            ("xmodels.example", false),
            ("api.example.evil.example", false),
            ("127.0.0.1", false),
        ] {
            let result = check(&request(Version::HTTP_11, "/info", &[("host", host)]), &allowed);
            assert_eq!(result.is_ok(), good, "{host}");
            assert!(result.is_ok() || result.is_err_and(|error| error.cause == Cause::WrongHost));
            for path in ["/health", "/livez"] {
                assert!(check(&request(Version::HTTP_11, path, &[("host", host)]), &allowed).is_ok());
            }
        }
        let absolute = request(Version::HTTP_11, "http://evil.example/info", &[("host", "localhost")]);
        assert!(check(&absolute, &allowed).is_err());
        assert!(check(&request(Version::HTTP_10, "/info", &[]), &allowed).is_err());
        for bad in ["", "a:80", "*", "*.*.example", "a/b", "user@host", "http://a"] {
            assert!(bad.parse::<AllowedHost>().is_err(), "{bad}");
        }
    }
}
