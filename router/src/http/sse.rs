//! Server-sent events as TGI frames them: `data: ` + one line of JSON + a blank line, a comment when
//! nothing was said for a while. Items that are ready together go out with one write.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use bytes::Bytes;
use futures::Stream;
use serde::Serialize;
use tokio::time::{Instant, Sleep, sleep_until};

const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Builds the bytes of one item, in memory that is used again for the next.
#[derive(Default)]
pub struct Encoder {
    buffer: Vec<u8>,
}

impl Encoder {
    pub fn event(&mut self, data: &impl Serialize) {
        self.buffer.extend_from_slice(b"data: ");
        serde_json::to_writer(&mut self.buffer, data)
            .expect("the events are structs of strings and numbers, and memory takes all writes");
        self.buffer.extend_from_slice(b"\n\n");
    }

    /// An event with a name.
    pub fn named(&mut self, name: &str, data: &impl Serialize) {
        self.name(name);
        self.event(data);
    }

    pub fn named_raw(&mut self, name: &str, json: &[u8]) {
        self.name(name);
        self.raw(json);
    }

    fn name(&mut self, name: &str) {
        self.buffer.extend_from_slice(b"event: ");
        self.buffer.extend_from_slice(name.as_bytes());
        self.buffer.push(b'\n');
    }

    pub fn raw(&mut self, json: &[u8]) {
        self.buffer.extend_from_slice(b"data: ");
        self.buffer.extend_from_slice(json);
        self.buffer.extend_from_slice(b"\n\n");
    }

    /// How OpenAI's streams end.
    pub fn done(&mut self) {
        self.buffer.extend_from_slice(b"data: [DONE]\n\n");
    }

    /// What was encoded since the last call.
    pub fn take(&mut self) -> Bytes {
        let bytes = Bytes::copy_from_slice(&self.buffer);
        self.buffer.clear();
        bytes
    }
}

/// The answer whose body is `events`.
pub fn response<S>(events: S) -> Response<Body>
where
    S: Stream<Item = Bytes> + Send + 'static,
{
    let mut response = Response::new(Body::from_stream(KeepAlive::new(events)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Passes events on, and says a comment after every `KEEP_ALIVE` of silence.
struct KeepAlive<S> {
    events: Pin<Box<S>>,
    timer: Pin<Box<Sleep>>,
    /// The timer is set anew only when it fires, not for every event.
    last: Instant,
}

impl<S> KeepAlive<S> {
    fn new(events: S) -> Self {
        let last = Instant::now();
        Self { events: Box::pin(events), timer: Box::pin(sleep_until(last + KEEP_ALIVE)), last }
    }
}

impl<S: Stream<Item = Bytes>> Stream for KeepAlive<S> {
    type Item = Result<Bytes, std::convert::Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if let Poll::Ready(event) = this.events.as_mut().poll_next(context) {
            this.last = Instant::now();
            return Poll::Ready(event.map(Ok));
        }
        while this.timer.as_mut().poll(context).is_ready() {
            let now = Instant::now();
            let silent = now.duration_since(this.last) >= KEEP_ALIVE;
            if silent {
                this.last = now;
            }
            let next = this.last + KEEP_ALIVE;
            this.timer.as_mut().reset(next);
            if silent {
                return Poll::Ready(Some(Ok(Bytes::from_static(b":\n\n"))));
            }
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use tokio::sync::mpsc;
    use tokio_stream::wrappers::UnboundedReceiverStream;

    use super::*;

    #[test]
    fn an_event_is_one_line_of_json_after_data() {
        let mut encoder = Encoder::default();
        encoder.event(&serde_json::json!({"text": "a\nb"}));
        assert_eq!(encoder.take(), "data: {\"text\":\"a\\nb\"}\n\n");
        encoder.done();
        assert_eq!(encoder.take(), "data: [DONE]\n\n");
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_broken_by_a_comment_every_15_seconds() {
        let (sender, events) = mpsc::unbounded_channel();
        let mut stream = KeepAlive::new(UnboundedReceiverStream::new(events));
        let begin = Instant::now();
        let mut next = async || stream.next().await.map(|item| item.expect("infallible"));

        assert_eq!(next().await.as_deref(), Some(b":\n\n".as_slice()));
        assert_eq!(begin.elapsed().as_secs(), 15);
        tokio::time::advance(Duration::from_secs(10)).await;
        sender.send(Bytes::from_static(b"x")).expect("open");
        assert_eq!(next().await.as_deref(), Some(b"x".as_slice()));
        assert_eq!(next().await.as_deref(), Some(b":\n\n".as_slice()));
        assert_eq!(begin.elapsed().as_secs(), 40);
        assert_eq!(next().await.as_deref(), Some(b":\n\n".as_slice()));
        assert_eq!(begin.elapsed().as_secs(), 55);
        drop(sender);
        assert_eq!(next().await, None);
    }
}
