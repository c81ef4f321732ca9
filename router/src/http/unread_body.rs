//! What a request's handler leaves of its body. A client that is still sending when the connection closes sees a reset instead of
//! its answer, and one whose body comes a moment behind its head finds the connection closed under its next request. So what
//! was left is read before the answer goes out; and where that would take too long, the answer says that the connection closes.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Request, Response, Version, header};
use axum::middleware::Next;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Frame, SizeHint};
use tokio::time::timeout;

/// How much is read and thrown away, and for how long.
const DISCARDED_BYTES: u64 = 64 << 20;
const DISCARDED_TIME: Duration = Duration::from_secs(2);

/// The layer, around all that may answer without having read.
pub async fn read_to_its_end(request: Request<Body>, next: Next) -> Response<Body> {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    // A client that waits for leave to send has sent nothing.
    let is_coming = !request.headers().contains_key(header::EXPECT);
    let is_kept = request.version() == Version::HTTP_11;
    let left = Left::default();
    let request = request.map(|body| Body::new(Lent { body: Some(body), left: left.clone() }));
    let mut response = next.run(request).await;
    if let Some(body) = left.take()
        && !(is_coming && discard(body).await)
        && is_kept
    {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Whether it ended.
async fn discard(mut body: Body) -> bool {
    let read = async {
        let mut left = DISCARDED_BYTES;
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else { return false };
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len) as u64);
            if left == 0 {
                return false;
            }
        }
        true
    };
    timeout(DISCARDED_TIME, read).await.unwrap_or(false)
}

/// Where a body is put that was dropped before its end.
#[derive(Clone, Default)]
struct Left(Arc<Mutex<Option<Body>>>);

impl Left {
    fn put(&self, body: Body) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(body);
    }

    fn take(&self) -> Option<Body> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A body, until it has ended or broken off.
struct Lent {
    body: Option<Body>,
    left: Left,
}

impl hyper::body::Body for Lent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let polled = Pin::new(body).poll_frame(context);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            self.body = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(body) = self.body.take().filter(|body| !body.is_end_stream()) {
            self.left.put(body);
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::middleware;
    use futures::StreamExt;
    use tower::ServiceExt;

    use super::*;

    /// Answers without having read but a frame.
    async fn hasty(request: Request<Body>) -> &'static str {
        let _ = request.into_body().frame().await;
        "no"
    }

    async fn answer(request: Request<Body>) -> Option<HeaderValue> {
        let router = Router::new().fallback(hasty).layer(middleware::from_fn(read_to_its_end));
        let response = router.oneshot(request).await.expect("infallible");
        response.headers().get(header::CONNECTION).cloned()
    }

    fn post(parts: impl futures::Stream<Item = Bytes> + Send + 'static) -> Request<Body> {
        Request::post("/").body(Body::from_stream(parts.map(Ok::<_, std::io::Error>))).expect("valid")
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_left_is_read_for_a_while() {
        let part = || futures::stream::repeat(Bytes::from_static(b"part"));
        let slowly = |each: u64| {
            part().then(move |part| async move {
                tokio::time::sleep(Duration::from_millis(each)).await;
                part
            })
        };
        assert_eq!(answer(post(part().take(1))).await, None);
        assert_eq!(answer(post(slowly(300).take(5))).await, None);
        assert_eq!(answer(post(slowly(300).take(9))).await.expect("too slow"), "close");
        assert_eq!(
            answer(post(futures::stream::repeat(Bytes::from(vec![0; 1 << 20])))).await.expect("too long"),
            "close"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_leave_is_answered_at_once() {
        let parts =
            futures::stream::once(async { Bytes::from_static(b"part") }).chain(futures::stream::pending());
        let mut request = post(parts);
        request.headers_mut().insert(header::EXPECT, HeaderValue::from_static("100-continue"));
        let began = tokio::time::Instant::now();
        assert_eq!(answer(request).await.expect("it was not read"), "close");
        assert!(began.elapsed() < DISCARDED_TIME);
    }
}
