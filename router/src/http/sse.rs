//! Server-sent events as TGI frames them: `data: ` + one line of JSON + a blank line, a comment or an event of the dialect's when
//! nothing was said for a while. Events that are there together go out with one write.

use std::ops::ControlFlow;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use bytes::{Bytes, BytesMut};
use serde::Serialize;
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use crate::http::connection::direct::{self, Events};
use crate::http::connection::wake_gate::WakeGate;

const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Events are gathered until they have this many bytes.
const FULL: usize = 16 << 10;

/// Builds the bytes of events, in memory that is used again for the next.
#[derive(Default)]
pub struct Encoder {
    buffer: Vec<u8>,
    /// What was handed out is written soon, and then its memory is used again, too.
    handed: BytesMut,
}

/// What many events have in common around what each of them says.
pub struct Frame {
    before: Vec<u8>,
    after: Vec<u8>,
}

impl Frame {
    /// `empty` is an event of which one list is empty; `list` names it. Its entries are what differs.
    pub fn around(list: &str, empty: &impl Serialize) -> Self {
        let mut encoder = Encoder::default();
        encoder.event(empty);
        let mark = format!("\"{list}\":[]");
        let mut before = encoder.buffer;
        // The quotes in a string are escaped, so that no text looks like this.
        let found = before.windows(mark.len()).position(|window| window == mark.as_bytes());
        let at = found.expect("the event has this list, and it is empty") + mark.len() - 1;
        let after = before.split_off(at);
        Self { before, after }
    }
}

impl Encoder {
    pub fn event(&mut self, data: &impl Serialize) {
        self.buffer.extend_from_slice(b"data: ");
        self.write(data);
        self.buffer.extend_from_slice(b"\n\n");
    }

    fn write(&mut self, data: &impl Serialize) {
        serde_json::to_writer(&mut self.buffer, data)
            .expect("the events are structs of strings and numbers, and memory takes all writes");
    }

    /// An event that has one entry in the list of `frame`.
    pub fn framed(&mut self, frame: &Frame, entry: &impl Serialize) {
        self.buffer.extend_from_slice(&frame.before);
        self.write(entry);
        self.buffer.extend_from_slice(&frame.after);
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

    /// What says nothing. It keeps proxies from giving up, and clients that count bytes.
    pub fn comment(&mut self) {
        self.buffer.extend_from_slice(b":\n\n");
    }

    /// How OpenAI's streams end.
    pub fn done(&mut self) {
        self.buffer.extend_from_slice(b"data: [DONE]\n\n");
    }

    /// What was encoded since the last call.
    pub fn take(&mut self) -> Bytes {
        self.handed.extend_from_slice(&self.buffer);
        self.buffer.clear();
        self.handed.split().freeze()
    }
}

/// Waits for `first`, what a stream begins with, so that a failure before it can be the status of the answer. But no longer than
/// a stream is silent: from then on its head and what breaks the silence keep proxies and clients from giving up. Whether it came.
pub async fn begun<E>(first: impl Future<Output = Result<(), E>>) -> Result<bool, E> {
    match timeout(KEEP_ALIVE, first).await {
        Ok(first) => first.map(|()| true),
        Err(_) => Ok(false),
    }
}

/// What an answer of events is made of. Dropped when it has told its last one.
pub trait EventSource: Send + Unpin + 'static {
    /// Encodes what comes next, which may come to no event. `Break`: nothing follows.
    fn poll_encode(&mut self, context: &mut Context<'_>, encoder: &mut Encoder) -> Poll<ControlFlow<()>>;

    /// Encodes what is told after every `KEEP_ALIVE` of silence. A comment is no event: for clients that count those a dialect has one.
    fn break_silence(&mut self, encoder: &mut Encoder) {
        encoder.comment();
    }
}

/// The answer that tells the events of `source`.
pub fn answer(source: impl EventSource) -> Response<Body> {
    let (body, answer) = direct::body(Telling::new(source));
    let mut response = Response::new(Body::from_stream(body));
    response.extensions_mut().insert(answer);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// What a source has to say at once, in one part. In one piece of memory with what is around it: between two tokens it
/// leaves the processor's caches.
struct Telling<S> {
    source: Option<S>,
    encoder: Encoder,
    silence: Silence,
}

impl<S: EventSource> Telling<S> {
    fn new(source: S) -> Self {
        Self { source: Some(source), encoder: Encoder::default(), silence: Silence::begin() }
    }

    /// Encodes what is there. Whether more has to be waited for.
    fn encode(&mut self, events: &Waker) -> bool {
        let mut context = Context::from_waker(events);
        while let Some(source) = &mut self.source
            && self.encoder.buffer.len() < FULL
        {
            match source.poll_encode(&mut context, &mut self.encoder) {
                Poll::Ready(ControlFlow::Continue(())) => {}
                Poll::Ready(ControlFlow::Break(())) => self.source = None,
                Poll::Pending => return true,
            }
        }
        false
    }
}

impl<S: EventSource> Events for Telling<S> {
    fn poll_next(&mut self, context: &mut Context<'_>, events: &Waker) -> Poll<Option<Bytes>> {
        let waits = self.encode(events);
        if !self.encoder.buffer.is_empty() {
            self.silence.last = Instant::now();
            return Poll::Ready(Some(self.encoder.take()));
        }
        let Some(source) = self.source.as_mut().filter(|_| waits) else { return Poll::Ready(None) };
        ready!(self.silence.poll(context));
        source.break_silence(&mut self.encoder);
        Poll::Ready(Some(self.encoder.take()))
    }

    fn gather(&mut self, events: &Waker) -> bool {
        self.encode(events)
    }

    fn gathered(&self) -> &[u8] {
        &self.encoder.buffer
    }

    fn written(&mut self, now: Instant) {
        self.encoder.buffer.clear();
        self.silence.last = now;
    }
}

/// Says when it has lasted for another `KEEP_ALIVE`.
struct Silence {
    /// Set anew only when it fires, not for every event.
    timer: Pin<Box<Sleep>>,
    gate: WakeGate,
    last: Instant,
}

impl Silence {
    fn begin() -> Self {
        let last = Instant::now();
        Self { timer: Box::pin(sleep_until(last + KEEP_ALIVE)), gate: WakeGate::default(), last }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Self { timer, gate, last } = self;
        while gate.poll(context, |context| timer.as_mut().poll(context)).is_ready() {
            let now = Instant::now();
            let is_silent = now.duration_since(*last) >= KEEP_ALIVE;
            if is_silent {
                *last = now;
            }
            timer.as_mut().reset(*last + KEEP_ALIVE);
            if is_silent {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }
}

#[cfg(test)]
pub mod tests {
    use futures::StreamExt;
    use futures::future::poll_fn;
    use tokio::sync::mpsc;

    use super::*;

    #[test]
    fn an_event_is_one_line_of_json_after_data() {
        let mut encoder = Encoder::default();
        encoder.event(&serde_json::json!({"text": "a\nb"}));
        assert_eq!(encoder.take(), "data: {\"text\":\"a\\nb\"}\n\n");
        encoder.done();
        assert_eq!(encoder.take(), "data: [DONE]\n\n");
    }

    #[test]
    fn a_frame_gives_the_same_bytes_as_the_whole_event() {
        let event = |entries: serde_json::Value| serde_json::json!({"model": "a \"choices\":[]", "choices": entries, "x": 1});
        let frame = Frame::around("choices", &event(serde_json::json!([])));
        let entry = serde_json::json!({"text": "\"choices\":[]"});
        let (mut framed, mut whole) = (Encoder::default(), Encoder::default());
        framed.framed(&frame, &entry);
        whole.event(&event(serde_json::json!([entry])));
        assert_eq!(framed.take(), whole.take());
    }

    /// Says numbers, and then nothing more or that nothing follows.
    struct Numbers {
        left: u32,
        ends: bool,
    }

    impl EventSource for Numbers {
        fn poll_encode(&mut self, _: &mut Context<'_>, encoder: &mut Encoder) -> Poll<ControlFlow<()>> {
            match (self.left, self.ends) {
                (0, true) => Poll::Ready(ControlFlow::Break(())),
                (0, false) => Poll::Pending,
                _ => {
                    encoder.event(&self.left);
                    self.left -= 1;
                    Poll::Ready(ControlFlow::Continue(()))
                }
            }
        }
    }

    #[tokio::test]
    async fn events_that_are_there_together_are_one_item_up_to_a_size() {
        let told = |left, ends| {
            direct::body(Telling::new(Numbers { left, ends })).0.map(|part| part.expect("no panic"))
        };
        let first = told(3, false).next().await;
        assert_eq!(first.as_deref(), Some(b"data: 3\n\ndata: 2\n\ndata: 1\n\n".as_slice()));
        let sizes: Vec<usize> = told(9, true).map(|bytes| bytes.len()).collect().await;
        assert_eq!(sizes, [9 * b"data: 1\n\n".len()]);
        let sizes: Vec<usize> = told(9999, true).map(|bytes| bytes.len()).collect().await;
        assert!(sizes.iter().all(|size| *size < FULL + 20) && sizes.len() < 10, "{sizes:?}");
    }

    struct Words(mpsc::UnboundedReceiver<&'static str>);

    impl EventSource for Words {
        fn poll_encode(&mut self, context: &mut Context<'_>, encoder: &mut Encoder) -> Poll<ControlFlow<()>> {
            Poll::Ready(match ready!(self.0.poll_recv(context)) {
                None => ControlFlow::Break(()),
                Some(word) => {
                    encoder.event(&word);
                    ControlFlow::Continue(())
                }
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_broken_by_a_comment_every_15_seconds() {
        let (sender, words) = mpsc::unbounded_channel();
        let (mut stream, _) = direct::body(Telling::new(Words(words)));
        let begin = Instant::now();
        let mut next = async || stream.next().await.map(|item| item.expect("no panic"));

        assert_eq!(next().await.as_deref(), Some(b":\n\n".as_slice()));
        assert_eq!(begin.elapsed().as_secs(), 15);
        tokio::time::advance(Duration::from_secs(10)).await;
        sender.send("x").expect("open");
        assert_eq!(next().await.as_deref(), Some(b"data: \"x\"\n\n".as_slice()));
        assert_eq!(next().await.as_deref(), Some(b":\n\n".as_slice()));
        assert_eq!(begin.elapsed().as_secs(), 40);
        assert_eq!(next().await.as_deref(), Some(b":\n\n".as_slice()));
        assert_eq!(begin.elapsed().as_secs(), 55);
        drop(sender);
        assert_eq!(next().await, None);
    }

    /// What `source`, which says nothing, is made to say within so many seconds.
    pub async fn told_in_silence(source: impl EventSource, seconds: u64) -> String {
        let (mut stream, _) = direct::body(Telling::new(source));
        let end = Instant::now() + Duration::from_secs(seconds);
        let mut told = Vec::new();
        while let Ok(Some(part)) = tokio::time::timeout_at(end, stream.next()).await {
            told.extend_from_slice(&part.expect("no panic"));
        }
        String::from_utf8(told).expect("UTF-8")
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_written_directly_broke_the_silence() {
        let (sender, words) = mpsc::unbounded_channel();
        let mut telling = Telling::new(Words(words));
        let begin = Instant::now();
        tokio::time::advance(Duration::from_secs(10)).await;
        sender.send("x").expect("open");
        assert!(telling.gather(Waker::noop()));
        assert_eq!(telling.gathered(), b"data: \"x\"\n\n");
        telling.written(Instant::now());
        assert!(telling.gather(Waker::noop()) && telling.gathered().is_empty());
        let next = poll_fn(|context| telling.poll_next(context, Waker::noop())).await;
        assert_eq!((next.as_deref(), begin.elapsed().as_secs()), (Some(b":\n\n".as_slice()), 25));
    }
}
