//! Backpressure of response bodies, on either version of HTTP. A body is handed to hyper in small parts, the next one
//! when the last was written to the connection, and its end only after all of them: so what the response holds is held
//! until it was written. On HTTP/2 a client can leave one stream unread while it reads the others (a window of 0), which
//! `write_timeout` of the connection cannot see: there each stream has a timeout of its own.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::{Buf, Bytes};
use futures::future::poll_fn;
use futures::task::AtomicWaker;
use hyper::body::{Frame, SizeHint};
use tokio_util::sync::CancellationToken;

use crate::http::connection::wake_gate::WakeGate;
use crate::http::connection::write_timeout::{Clock, MIN_PROGRESS};

/// Most of an answer that hyper has at once. A client that takes it in time has made progress.
const PART: usize = MIN_PROGRESS as usize;

tokio::task_local! {
    /// Of the stream of HTTP/2 that is being served.
    static PROGRESS: Arc<WriteProgress>;
}

/// What was handed over of one answer, and what of it was written.
#[derive(Default)]
struct WriteProgress {
    unwritten: AtomicUsize,
    written: AtomicU64,
    /// How often there was nothing that the client could have taken.
    rests: AtomicU64,
    /// Waits until nothing is unwritten.
    answer: AtomicWaker,
}

impl WriteProgress {
    fn handed(self: &Arc<Self>, bytes: Bytes) -> Part {
        self.unwritten.fetch_add(bytes.len(), Ordering::AcqRel);
        Part { bytes, progress: self.clone() }
    }

    fn wrote(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Ordering::AcqRel);
        if self.unwritten.fetch_sub(bytes, Ordering::AcqRel) == bytes {
            self.answer.wake();
        }
    }

    fn is_all_written(&self) -> bool {
        self.unwritten.load(Ordering::Acquire) == 0
    }

    fn poll_all_written(&self, context: &mut Context<'_>) -> Poll<()> {
        // Registered only where it is to be waited for: hyper copies small parts at once, within the poll that asked for
        // them, and a waker that is called then has the task polled a second time for each token.
        if self.is_all_written() {
            return Poll::Ready(());
        }
        self.answer.register(context.waker());
        if self.is_all_written() { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// A part of an answer on its way to the connection.
pub struct Part {
    bytes: Bytes,
    progress: Arc<WriteProgress>,
}

impl Buf for Part {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        self.progress.wrote(count);
    }
}

/// An answer's body, in parts. Dropped, its request is given up.
pub struct PacedBody<H> {
    body: Body,
    gate: WakeGate,
    progress: Arc<WriteProgress>,
    /// Said by the body, and not handed over yet.
    next: Bytes,
    /// The body had nothing to say when it was last asked.
    silent: bool,
    ended: bool,
    /// Until all was written.
    held: Option<H>,
}

impl<H> PacedBody<H> {
    /// `held` is dropped when the body has ended and was written.
    pub fn new(body: Body, held: H) -> Self {
        let progress = PROGRESS.try_with(Arc::clone).unwrap_or_default();
        let gate = WakeGate::default();
        Self { body, gate, progress, next: Bytes::new(), silent: false, ended: false, held: Some(held) }
    }
}

impl<H: Unpin> hyper::body::Body for PacedBody<H> {
    type Data = Part;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Part>, axum::Error>>> {
        let this = &mut *self;
        while this.next.is_empty() && !this.ended {
            let body = Pin::new(&mut this.body);
            match this.gate.poll(context, |context| body.poll_frame(context)) {
                Poll::Pending => {
                    this.silent = true;
                    return Poll::Pending;
                }
                // No answer of ours has trailers.
                Poll::Ready(Some(frame)) => this.next = frame?.into_data().unwrap_or_default(),
                Poll::Ready(None) => this.ended = true,
            }
            if std::mem::take(&mut this.silent) && this.progress.is_all_written() {
                this.progress.rests.fetch_add(1, Ordering::AcqRel);
            }
        }
        ready!(this.progress.poll_all_written(context));
        if this.next.is_empty() {
            // Before the client hears of the end: it may ask for the next answer at once.
            this.body = Body::empty();
            this.held = None;
            return Poll::Ready(None);
        }
        let part = this.next.split_to(this.next.len().min(PART));
        Poll::Ready(Some(Ok(Frame::data(this.progress.handed(part)))))
    }

    fn is_end_stream(&self) -> bool {
        self.next.is_empty() && self.progress.is_all_written() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A body that keeps `held` until `PacedBody` has written it.
pub fn hold_until_written(body: Body, held: impl Send + Unpin + 'static) -> Body {
    Body::new(Holding { body, _held: held })
}

struct Holding<H> {
    body: Body,
    _held: H,
}

impl<H: Unpin> hyper::body::Body for Holding<H> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Runs the streams of HTTP/2 connections, and ends one whose client does not take its answer: dropped, a stream
/// is reset, and the others of its connection go on.
#[derive(Clone)]
pub struct StreamExecutor {
    timeout: Duration,
    draining: CancellationToken,
}

impl StreamExecutor {
    pub fn new(timeout: Duration, draining: CancellationToken) -> Self {
        Self { timeout, draining }
    }
}

impl<S> hyper::rt::Executor<S> for StreamExecutor
where
    S: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: S) {
        let progress = Arc::<WriteProgress>::default();
        let mut watch = StreamTimeout { clock: Clock::new(self.timeout, self.draining.clone()), since: None };
        let watched = progress.clone();
        tokio::spawn(PROGRESS.scope(progress, async move {
            tokio::select! {
                biased;
                () = stream => {}
                () = poll_fn(|context| watch.poll(context, &watched)) => {
                    tracing::debug!("an answer was given up: its client does not take it");
                }
            }
        }));
    }
}

/// Looks at one answer whenever its stream was run.
struct StreamTimeout {
    clock: Clock,
    /// What `WriteProgress` said when the clock was started: bytes written, and rests.
    since: Option<(u64, u64)>,
}

impl StreamTimeout {
    /// Ready when the answer is to be given up.
    fn poll(&mut self, context: &mut Context<'_>, progress: &WriteProgress) -> Poll<()> {
        loop {
            if progress.is_all_written() {
                self.rest();
                return Poll::Pending;
            }
            let now = (progress.written.load(Ordering::Acquire), progress.rests.load(Ordering::Acquire));
            let (written, rests) = *self.since.get_or_insert(now);
            ready!(self.clock.poll(context));
            if now.1 == rests && now.0 - written < MIN_PROGRESS {
                return Poll::Ready(());
            }
            self.rest();
        }
    }

    fn rest(&mut self) {
        self.since = None;
        self.clock.stop();
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::AtomicBool;

    use hyper::body::Body as _;
    use tokio::time::{Instant, sleep};

    use super::*;

    /// Says whether it was dropped.
    struct Held(Arc<AtomicBool>);

    impl Drop for Held {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    async fn next(answer: &mut PacedBody<Held>) -> Option<Part> {
        let frame = poll_fn(|context| Pin::new(&mut *answer).poll_frame(context)).await?;
        Some(frame.expect("no error").into_data().unwrap_or_else(|_| panic!("no data")))
    }

    #[tokio::test]
    async fn an_answer_comes_in_parts_and_holds_until_the_last_was_written() {
        let dropped = Arc::new(AtomicBool::new(false));
        let text: Vec<u8> = (0..40_000u32).map(|number| number as u8).collect();
        let mut answer = PacedBody::new(Body::from(text.clone()), Held(dropped.clone()));
        assert_eq!(answer.size_hint().exact(), Some(40_000));
        let mut all = Vec::new();
        while all.len() < text.len() {
            let mut part = next(&mut answer).await.expect("more of it");
            assert!(part.remaining() <= PART && !answer.is_end_stream());
            let waiting =
                poll_fn(|context| Poll::Ready(Pin::new(&mut answer).poll_frame(context).is_pending()));
            assert!(waiting.await, "nothing more while a part is unwritten");
            all.extend_from_slice(part.chunk());
            assert!(!dropped.load(Ordering::SeqCst));
            part.advance(part.remaining());
        }
        assert_eq!(all, text);
        assert!(next(&mut answer).await.is_none() && dropped.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn an_empty_answer_ends_with_its_head() {
        let answer = PacedBody::new(Body::empty(), ());
        assert!(answer.is_end_stream());
    }

    /// After how many seconds a stream is given up whose client takes `bytes` of a part each `every` seconds; or
    /// else 1,000,000.
    async fn lasts(events: Option<u64>, every: u64, bytes: usize, drain_after: Option<u64>) -> u64 {
        let progress = Arc::<WriteProgress>::default();
        let draining = CancellationToken::new();
        let mut watch =
            StreamTimeout { clock: Clock::new(Duration::from_secs(100), draining.clone()), since: None };
        let watched = progress.clone();
        let begun = Instant::now();
        if let Some(seconds) = drain_after {
            tokio::spawn(async move {
                sleep(Duration::from_secs(seconds)).await;
                draining.cancel();
            });
        }
        let stream = async move {
            let body = match events {
                None => Body::from(vec![b'x'; 100 << 20]),
                Some(seconds) => Body::from_stream(futures::stream::unfold((), move |()| async move {
                    sleep(Duration::from_secs(seconds)).await;
                    Some((Ok::<_, Infallible>(Bytes::from_static(&[b'x'; 100])), ()))
                })),
            };
            let mut answer = PacedBody::new(body, ());
            while let Some(part) = poll_fn(|context| Pin::new(&mut answer).poll_frame(context)).await {
                let mut part = part.expect("no error").into_data().unwrap_or_else(|_| panic!("no data"));
                tokio::spawn(async move {
                    while part.has_remaining() {
                        sleep(Duration::from_secs(every)).await;
                        part.advance(bytes.min(part.remaining()));
                    }
                });
            }
        };
        let served = PROGRESS.scope(progress, async move {
            tokio::select! {
                biased;
                () = stream => {}
                () = poll_fn(|context| watch.poll(context, &watched)) => {}
                () = sleep(Duration::from_secs(1_000_000)) => {}
            }
        });
        served.await;
        begun.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_not_taken_is_given_up_and_sooner_while_draining() {
        assert_eq!(lasts(None, 10_000_000, 1, None).await, 100);
        assert_eq!(lasts(None, 10_000_000, 1, Some(7)).await, 17);
        assert_eq!(lasts(None, 10_000_000, 1, Some(95)).await, 100);
        // A byte now and then is no progress.
        assert_eq!(lasts(None, 10, 1, None).await, 100);
        let parts = (100 << 20) / PART as u64;
        assert_eq!(lasts(None, 50, PART, None).await, parts * 50, "it was taken");
    }

    #[tokio::test(start_paused = true)]
    async fn events_that_are_taken_as_they_come_are_progress_however_small() {
        assert_eq!(lasts(Some(30), 1, 100, None).await, 1_000_000);
        assert_eq!(lasts(Some(30), 29, 100, None).await, 1_000_000);
        assert_eq!(lasts(Some(30), 5, 100, Some(60)).await, 1_000_000);
        // A client that never catches up.
        assert_eq!(lasts(Some(1), 30, 100, None).await, 101);
    }
}
