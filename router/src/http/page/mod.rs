//! The chat page: what a browser gets at `/`, and the files it loads from `/page/`. All of it is in the binary.
//! The page is a client of the public API like any other; nothing here knows a model, a request or a key.

use std::sync::{Arc, LazyLock};

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use sha2::{Digest, Sha256};

use crate::http::not_found::unknown_route;
use crate::http::ops;
use crate::http::state::Server;

struct File {
    name: &'static str,
    kind: &'static str,
    content: &'static [u8],
}

macro_rules! file {
    ($name:literal, $kind:literal) => {
        File { name: $name, kind: $kind, content: include_bytes!($name) }
    };
}

const INDEX: File = file!("index.html", "text/html; charset=utf-8");
/// Served at `/page/NAME`, without a key.
const FILES: [File; 14] = [
    file!("access.js", "text/javascript; charset=utf-8"),
    file!("conversation.js", "text/javascript; charset=utf-8"),
    file!("docs.css", "text/css; charset=utf-8"),
    file!("draw.js", "text/javascript; charset=utf-8"),
    file!("icon.svg", "image/svg+xml"),
    file!("main.js", "text/javascript; charset=utf-8"),
    file!("markdown.js", "text/javascript; charset=utf-8"),
    file!("probabilities.js", "text/javascript; charset=utf-8"),
    file!("recipe.js", "text/javascript; charset=utf-8"),
    file!("schema.js", "text/javascript; charset=utf-8"),
    file!("server.js", "text/javascript; charset=utf-8"),
    file!("settings.js", "text/javascript; charset=utf-8"),
    file!("stream.js", "text/javascript; charset=utf-8"),
    file!("style.css", "text/css; charset=utf-8"),
];

/// Only this server's own files run, and they speak to this server only. Trusted types make a browser refuse
/// what would turn a string into markup or code (`innerHTML`, `eval`), whatever a model wrote.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
     trusted-types 'none'";

/// `GET /`: the page for browsers, the health answer for all others.
pub async fn index(State(server): State<Arc<Server>>, request: Request) -> Response<Body> {
    if wants_html(request.headers()) {
        let mut response = send(&INDEX, request.headers());
        // The same address has another answer for other clients: no cache may mix them up.
        response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept"));
        return response;
    }
    ops::health(State(server)).await
}

/// `GET /page/NAME`.
pub async fn file(Path(name): Path<String>, headers: HeaderMap) -> Response<Body> {
    match FILES.iter().find(|file| file.name == name) {
        Some(file) => send(file, &headers),
        None => unknown_route(&format!("/page/{name}")),
    }
}

/// Whether `path` is that of a file.
pub fn is_file(path: &str) -> bool {
    path.strip_prefix("/page/").is_some_and(|name| FILES.iter().any(|file| file.name == name))
}

/// Whether HTML is asked for by name, at least as much as JSON: browsers do, and no client of the API does.
/// `*/*` alone is not enough (RFC 9110, section 12.5.1).
fn wants_html(headers: &HeaderMap) -> bool {
    let weight = |wanted: &str| {
        headers
            .get_all(header::ACCEPT)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .filter_map(|range| {
                let mut parts = range.split(';').map(str::trim);
                if !parts.next()?.eq_ignore_ascii_case(wanted) {
                    return None;
                }
                let quality =
                    parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
                Some(quality.map_or(1.0, |quality| quality.parse().unwrap_or(0.0)))
            })
            .fold(0.0_f32, f32::max)
    };
    let html = weight("text/html");
    html > 0.0 && html >= weight("application/json")
}

/// The file, or 304 when the client has it. A browser asks each time, so that a new server is never met by an old
/// page, and gets an answer without a body as long as nothing changed.
fn send(file: &'static File, headers: &HeaderMap) -> Response<Body> {
    let tag = tag(file);
    let known = headers
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|tag| tag.trim().trim_start_matches("W/"))
        .any(|known| known == "*" || known.as_bytes() == tag.as_bytes());
    let mut response = if known {
        let mut response = Response::default();
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        Response::new(Body::from(file.content))
    };
    let said = [
        (header::CONTENT_TYPE, HeaderValue::from_static(file.kind)),
        (header::ETAG, tag),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    response.headers_mut().extend(said);
    response.headers_mut().extend(protection());
    response
}

/// The headers by which a browser keeps a page of this server from what it has no use for.
pub fn protection() -> [(HeaderName, HeaderValue); 4] {
    [
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
    ]
}

fn tag(file: &'static File) -> HeaderValue {
    static TAGS: LazyLock<Vec<(&'static str, HeaderValue)>> = LazyLock::new(|| {
        let quoted = |content: &[u8]| {
            let hex: String =
                Sha256::digest(content)[..16].iter().map(|byte| format!("{byte:02x}")).collect();
            HeaderValue::from_str(&format!("\"{hex}\"")).expect("hexadecimal digits in quotes")
        };
        FILES.iter().chain([&INDEX]).map(|file| (file.name, quoted(file.content))).collect()
    });
    let (_, tag) = TAGS.iter().find(|(name, _)| *name == file.name).expect("every file has one");
    tag.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: HeaderName, values: &[&'static str]) -> HeaderMap {
        values.iter().map(|value| (name.clone(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn html_is_for_those_who_name_it() {
        let accept = |values: &[&'static str]| wants_html(&headers(header::ACCEPT, values));
        // Firefox, Chromium, Safari.
        assert!(accept(&["text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"]));
        assert!(accept(&["text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8,\
             application/signed-exchange;v=b3;q=0.7"]));
        assert!(accept(&["Text/HTML"]));
        assert!(accept(&["application/json;q=0.5", "text/html; charset=utf-8 ;q=0.5"]));
        let others: [&[&'static str]; 8] = [
            &[],
            &[""],
            &["*/*"],
            &["text/*"],
            &["application/json"],
            &["application/json, text/html;q=0.9"],
            &["text/html;q=0"],
            &["text/html;q=none"],
        ];
        for other in others {
            assert!(!accept(other), "{other:?}");
        }
    }

    #[test]
    fn who_has_a_file_gets_no_body() {
        let first = send(&INDEX, &HeaderMap::new());
        assert_eq!(first.status(), StatusCode::OK);
        let tag = first.headers()[header::ETAG].to_str().expect("ASCII").to_string();
        let again = |known: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::IF_NONE_MATCH, HeaderValue::from_str(known).expect("a header"));
            send(&INDEX, &headers)
        };
        for known in [tag.clone(), format!("W/{tag}"), format!("\"other\", {tag}"), "*".into()] {
            let response = again(&known);
            assert_eq!(response.status(), StatusCode::NOT_MODIFIED, "{known}");
            assert_eq!(response.headers()[header::ETAG].to_str().expect("ASCII"), tag);
        }
        assert_eq!(again("\"other\"").status(), StatusCode::OK);
    }

    #[test]
    fn every_file_has_a_tag_of_its_own() {
        let mut tags: Vec<_> = FILES.iter().chain([&INDEX]).map(tag).collect();
        tags.sort_by(|one, two| one.as_bytes().cmp(two.as_bytes()));
        tags.dedup();
        assert_eq!(tags.len(), FILES.len() + 1);
    }

    /// What the policy would forbid is not there to begin with.
    #[test]
    fn the_page_has_no_inline_code_and_no_address_of_others() {
        for file in FILES.iter().chain([&INDEX]) {
            let text = std::str::from_utf8(file.content).expect("UTF-8");
            let own = text.replace("http://www.w3.org/2000/svg", "");
            for bad in
                ["http://", "https://", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write"]
            {
                assert!(!own.contains(bad), "{}: {bad}", file.name);
            }
        }
        let index = std::str::from_utf8(INDEX.content).expect("UTF-8");
        for bad in ["<style", "style=", " onclick", " onload", "javascript:"] {
            assert!(!index.contains(bad), "{bad}");
        }
        assert_eq!(
            index.matches("<script").count(),
            index.matches("<script type=\"module\" src=\"page/").count()
        );
        for name in index.split("\"page/").skip(1).map(|rest| rest.split('"').next().unwrap_or_default()) {
            assert!(FILES.iter().any(|file| file.name == name), "{name}");
        }
    }
}
