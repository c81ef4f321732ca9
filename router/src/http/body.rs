//! Reads a request's body: JSON only, no larger than `--payload-limit`, not for ever, and within what requests without a place may
//! hold (`unplaced`); and its members, where they keep nobody waiting.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, Request, header};
use bytes::Bytes;
use http_body_util::BodyExt;
use penstock_core::blocking::{SHORT, Undone};
use penstock_core::tenant::Tenant;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::config::RouterArgs;
use crate::http::error::{ApiError, Cause};
use crate::http::fields::Fields;
use crate::http::state::Server;
use crate::http::unplaced::{self, Unplaced};

/// The longest pause within a body.
const IDLE: Duration = Duration::from_secs(30);

/// What a body may take.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    pub bytes: usize,
    pub time: Duration,
}

impl BodyLimits {
    pub fn of(args: &RouterArgs) -> Self {
        Self { bytes: args.payload_limit, time: Duration::from_secs_f64(args.body_timeout) }
    }
}

pub async fn read(request: Request<Body>, limits: BodyLimits) -> Result<Bytes, ApiError> {
    let BodyLimits { bytes: limit, time } = limits;
    let (head, mut body) = request.into_parts();
    check_type(&head.headers)?;
    let announced = announced(&head.headers);
    if announced.is_some_and(|length| length > limit as u64) {
        return Err(too_large(limit));
    }
    let deadline = Instant::now() + time;
    let mut collected = Collected::new(announced, limit, unplaced::of(&head.extensions));
    loop {
        let frame = match timeout_at(deadline.min(Instant::now() + IDLE), body.frame()).await {
            Ok(frame) => frame,
            Err(_) => return Err(too_slow(time)),
        };
        let data = match frame {
            None => break,
            Some(Err(_)) => {
                return Err(ApiError::new(Cause::MalformedBody, "the body broke off before its end"));
            }
            // Trailers carry nothing for us.
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => data,
                Err(_) => continue,
            },
        };
        collected.add(data)?;
    }
    Ok(collected.into_bytes())
}

/// What came of a body so far.
struct Collected<'a> {
    /// Most bodies are one frame, which is passed on as it is.
    first: Option<Bytes>,
    all: Vec<u8>,
    /// The longest that it may become.
    most: usize,
    limit: usize,
    unplaced: Option<&'a Unplaced>,
}

impl<'a> Collected<'a> {
    fn new(announced: Option<u64>, limit: usize, unplaced: Option<&'a Unplaced>) -> Self {
        let most = announced.map_or(limit, |length| usize::try_from(length).unwrap_or(limit).min(limit));
        Self { first: None, all: Vec::new(), most, limit, unplaced }
    }

    fn add(&mut self, data: Bytes) -> Result<(), ApiError> {
        let held = self.first.as_ref().map_or(self.all.len(), Bytes::len);
        if held + data.len() > self.limit {
            return Err(too_large(self.limit));
        }
        if held == 0 {
            self.take(data.len())?;
            self.first = Some(data);
            return Ok(());
        }
        let first = self.first.take();
        let (capacity, needed) = (self.all.capacity(), held + data.len());
        if needed > capacity {
            let larger = (2 * capacity).min(self.most).max(needed);
            // What the first frame took counts on.
            let taken = first.as_ref().map_or(capacity, Bytes::len);
            self.take(larger - taken)?;
            self.all.reserve_exact(larger - self.all.len());
        }
        if let Some(first) = first {
            self.all.extend_from_slice(&first);
        }
        self.all.extend_from_slice(&data);
        Ok(())
    }

    fn take(&self, bytes: usize) -> Result<(), ApiError> {
        self.unplaced.map_or(Ok(()), |unplaced| unplaced.grow(bytes))
    }

    fn into_bytes(self) -> Bytes {
        self.first.unwrap_or_else(|| self.all.into())
    }
}

/// Reads the members of a tenant's body with `read`: those of a short one at once, those of a long one on a blocking
/// thread, since nothing else would run on this one meanwhile.
pub async fn parse<T: Send + 'static>(
    server: &Arc<Server>,
    tenant: Tenant,
    body: Bytes,
    read: impl FnOnce(&Fields, &Server) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    if body.len() <= SHORT {
        parsed(server, &body, read)
    } else {
        parse_apart(server, tenant, body, |fields, server, _| read(fields, server)).await
    }
}

/// The same, always on a blocking thread, for a `read` that does more, such as rendering a chat. It is given a token
/// that is cancelled when the client has gone.
pub async fn parse_apart<T: Send + 'static>(
    server: &Arc<Server>,
    tenant: Tenant,
    body: Bytes,
    read: impl FnOnce(&Fields, &Server, &CancellationToken) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let (shared, work_bytes) = (server.clone(), body.len());
    let work = move |client: &_| parsed(&shared, &body, |fields, server| read(fields, server, client));
    server.reading.run(tenant, work_bytes, work).await.unwrap_or_else(|undone| {
        Err(match undone {
            Undone::Crowded | Undone::Late => ApiError::crowded(undone),
            // The panic hook has logged where it was.
            Undone::Lost => ApiError::internal(),
        })
    })
}

/// Which members a body has, by those of `K`; `None` where it is no object.
pub async fn keys<K: DeserializeOwned + Send + 'static>(
    server: &Server,
    tenant: Tenant,
    body: &Bytes,
) -> Option<K> {
    if body.len() <= SHORT {
        return serde_json::from_slice(body).ok();
    }
    let (length, body) = (body.len(), body.clone());
    let read = move |_: &CancellationToken| serde_json::from_slice(&body).ok();
    server.reading.run(tenant, length, read).await.unwrap_or_default()
}

fn parsed<T>(
    server: &Server,
    body: &[u8],
    read: impl FnOnce(&Fields, &Server) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    read(&Fields::parse(body, &server.loaded()?.limits)?, server)
}

fn too_slow(time: Duration) -> ApiError {
    let (idle, whole) = (IDLE.as_secs_f64(), time.as_secs_f64());
    let message = format!(
        "the body did not arrive in time: it may take {whole} s (--body-timeout), and pause for at most {idle} s"
    );
    ApiError::new(Cause::BodyTimeout, message)
}

fn too_large(limit: usize) -> ApiError {
    ApiError::new(Cause::BodyTooLarge, format!("the body is larger than {limit} bytes (--payload-limit)"))
}

fn announced(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// `application/json` or `application/...+json`, not compressed.
fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    if headers.get(header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        let message = "a body with `content-encoding` is not taken; send it uncompressed";
        return Err(ApiError::new(Cause::NotJson, message));
    }
    let is_json = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .map(|value| value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase())
        .is_some_and(|mime| {
            mime == "application/json" || (mime.starts_with("application/") && mime.ends_with("+json"))
        });
    if is_json {
        Ok(())
    } else {
        Err(ApiError::new(Cause::NotJson, "`content-type` must be application/json"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::connection::ClientAddress;
    use crate::http::shares::Shares;

    fn within(bytes: usize) -> BodyLimits {
        BodyLimits { bytes, time: Duration::from_secs(100) }
    }

    fn request(content_type: &str, body: impl Into<Body>) -> Request<Body> {
        Request::post("/generate")
            .header(header::CONTENT_TYPE, content_type)
            .body(body.into())
            .expect("valid")
    }

    fn chunks(parts: &[&'static str]) -> Body {
        let parts: Vec<_> =
            parts.iter().map(|part| Ok::<_, std::io::Error>(Bytes::from_static(part.as_bytes()))).collect();
        Body::from_stream(tokio_stream::iter(parts))
    }

    #[tokio::test]
    async fn a_body_in_pieces_is_put_together() {
        let body =
            read(request("application/json; charset=utf-8", chunks(&["{\"a\"", ":", "1}"])), within(100))
                .await;
        assert_eq!(body.as_deref(), Ok(b"{\"a\":1}".as_slice()));
    }

    #[tokio::test]
    async fn the_limit_holds_with_and_without_a_length() {
        let error = read(request("application/json", chunks(&["12345", "6"])), within(5))
            .await
            .expect_err("too large");
        assert_eq!(error.cause, Cause::BodyTooLarge);
        let announced = Request::post("/")
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::CONTENT_LENGTH, "6")
            .body(Body::empty())
            .expect("valid");
        assert_eq!(read(announced, within(5)).await.expect_err("too large").cause, Cause::BodyTooLarge);
        assert_eq!(
            read(request("application/json", chunks(&["12345"])), within(5)).await.as_deref(),
            Ok(b"12345".as_slice())
        );
    }

    /// A request as `connection` hands it on, whose body comes in so many parts of 10 KB.
    fn unplaced(memory: &Arc<Shares>, parts: usize) -> (Request<Body>, Unplaced) {
        let part = || Ok::<_, std::io::Error>(Bytes::from(vec![b' '; 10_000]));
        let parts = futures::stream::iter(std::iter::repeat_with(part).take(parts));
        let mut request = request("application/json", Body::from_stream(parts));
        let client = ClientAddress([192, 0, 2, 1].into());
        let unplaced = Unplaced::begin(memory, client, &HeaderMap::new()).expect("room for a request");
        request.extensions_mut().insert(unplaced.clone());
        (request, unplaced)
    }

    #[tokio::test]
    async fn bodies_hold_memory_together_until_their_requests_have_places() {
        let memory = Shares::new(1_000_000);
        let limits = within(2_000_000);
        let (request, one) = unplaced(&memory, 30);
        assert_eq!(read(request, limits).await.expect("room").len(), 300_000);
        let (request, other) = unplaced(&memory, 60);
        let error = read(request, limits).await.expect_err("more than there is for a client");
        assert_eq!(error.cause, Cause::Overloaded);
        one.has_place();
        drop(other);
        let (request, third) = unplaced(&memory, 30);
        assert_eq!(read(request, limits).await.expect("room again").len(), 300_000);
        drop((one, third));
        // What was announced is not reserved before it comes, and no more than that is.
        let (mut request, _last) = unplaced(&memory, 80);
        request.headers_mut().insert(header::CONTENT_LENGTH, 800_000.into());
        assert_eq!(read(request, limits).await.expect("all that there is for a client").len(), 800_000);
    }

    #[tokio::test]
    async fn only_json_is_taken() {
        for wrong in ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""] {
            assert_eq!(read(request(wrong, "{}"), within(100)).await.expect_err(wrong).cause, Cause::NotJson);
        }
        assert!(read(request("application/vnd.api+json", "{}"), within(100)).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stalls_is_given_up() {
        let stalled = Body::from_stream(tokio_stream::pending::<Result<Bytes, std::io::Error>>());
        let begun = Instant::now();
        let error = read(request("application/json", stalled), within(100)).await.expect_err("late");
        assert_eq!((error.cause, begun.elapsed().as_secs()), (Cause::BodyTimeout, 30));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_drips_is_given_up_at_the_limit_of_the_whole() {
        let drops = futures::stream::unfold((), async |()| {
            tokio::time::sleep(Duration::from_secs(9)).await;
            Some((Ok::<_, std::io::Error>(Bytes::from_static(b" ")), ()))
        });
        let begun = Instant::now();
        let dripping = request("application/json", Body::from_stream(drops));
        let error = read(dripping, within(1000)).await.expect_err("late");
        assert_eq!((error.cause, begun.elapsed().as_secs()), (Cause::BodyTimeout, 100));
        assert!(error.to_string().contains("100 s (--body-timeout)"), "{error}");
    }
}
