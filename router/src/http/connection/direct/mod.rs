//! The direct way of events to their sockets. An answer of events goes through hyper as far as its head and what is there with
//! it. From then on, while hyper has nothing to write on the connection, what the answer has to tell is written to the socket
//! by a task that does so for all answers of a step: no task of a connection is woken for it, and none of its layers is polled.
//!
//! Why the bytes of two never mix, and come in order:
//!
//! - In the midst of a chunked body hyper writes nothing but what the body gives. `EventBody` gives it under the lock of its
//!   answer, and a direct write holds the same lock.
//! - hyper flushes its connection (`poll_flush`) when it has written all that it was given. So when the body has just said that
//!   there is nothing (`Way::Asked`), the next flush means that nothing is buffered: the way is open. Whatever the body gives
//!   closes it before.
//! - What the socket does not take at once closes the way, and `DirectIo` writes it before anything that comes from hyper.
//!
//! So the rest is hyper's as it was: the end of an answer, what is too much for one write, silence, slow clients and their
//! timeouts, clients that leave, errors of the socket. Only plain connections and HTTP/1.1 have a direct way.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::task::{Context, Poll, Waker, ready};

use axum::http::{Extensions, Method, Request, Version};
use bytes::Bytes;
use futures::Stream;
use futures::task::{ArcWake, AtomicWaker, waker_ref};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::runtime::Handle;
use tokio::time::Instant;

/// So many answers are written without a break. The others of a step are tasks that other threads may take.
const PART: usize = 64;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics while it holds this lock")
}

/// What an answer tells.
pub trait Events: Send + Unpin + 'static {
    /// For hyper. Whoever has events is to wake `events`.
    fn poll_next(&mut self, context: &mut Context<'_>, events: &Waker) -> Poll<Option<Bytes>>;

    /// Gathers all that is there. False: more follows at once or nothing at all, and it is for `poll_next`.
    fn gather(&mut self, events: &Waker) -> bool;

    fn gathered(&self) -> &[u8];

    /// What was gathered is written, or is sure to be.
    fn written(&mut self, now: Instant);
}

/// The body of an answer that tells `events`, and what lets a connection write them directly (`Connection::offer`).
pub fn body<E: Events>(events: E) -> (EventBody<E>, AnyAnswer) {
    let answer = Arc::new(Answer {
        events: Mutex::new(Some(events)),
        task: AtomicWaker::new(),
        connection: OnceLock::new(),
        is_due: AtomicBool::new(false),
    });
    (EventBody(answer.clone()), AnyAnswer(answer))
}

/// An answer whose events may go either way.
struct Answer<E> {
    /// `None` when the body was dropped, or a panic was where they are made.
    events: Mutex<Option<E>>,
    /// Of the connection.
    task: AtomicWaker,
    connection: OnceLock<Connection>,
    is_due: AtomicBool,
}

/// The same, of any events: in the extensions of a response.
#[derive(Clone)]
pub struct AnyAnswer(Arc<dyn Due>);

trait Due: Send + Sync {
    fn connection(&self) -> &OnceLock<Connection>;
    /// `chunk` is memory to use.
    fn write(self: Arc<Self>, chunk: &mut Vec<u8>, now: Instant);
}

impl<E: Events> Answer<E> {
    /// False when it is left to the connection's task.
    fn try_write(self: &Arc<Self>, chunk: &mut Vec<u8>, now: Instant) -> bool {
        let mut told = lock(&self.events);
        let (Some(events), Some(connection)) = (&mut *told, self.connection.get()) else { return true };
        let mut socket = lock(&connection.socket);
        if socket.way != Way::Open {
            return false;
        }
        let waker = waker_ref(self);
        match catch_unwind(AssertUnwindSafe(|| events.gather(&waker))) {
            Ok(true) => {}
            Ok(false) => return false,
            // One connection's, and not the end of all answers of the step.
            Err(_) => {
                *told = None;
                return false;
            }
        }
        let gathered = events.gathered();
        if gathered.is_empty() {
            return true;
        }
        chunk.clear();
        // As hyper writes it.
        let _ = write!(chunk, "{:X}\r\n", gathered.len());
        chunk.extend_from_slice(gathered);
        chunk.extend_from_slice(b"\r\n");
        events.written(now);
        socket.write(chunk)
    }
}

impl<E: Events> Due for Answer<E> {
    fn connection(&self) -> &OnceLock<Connection> {
        &self.connection
    }

    fn write(self: Arc<Self>, chunk: &mut Vec<u8>, now: Instant) {
        self.is_due.store(false, Ordering::Release);
        if !self.try_write(chunk, now) {
            self.task.wake();
        }
    }
}

/// There are events.
impl<E: Events> ArcWake for Answer<E> {
    fn wake_by_ref(answer: &Arc<Self>) {
        Self::wake(answer.clone());
    }

    fn wake(self: Arc<Self>) {
        if !self.is_due.swap(true, Ordering::AcqRel)
            && let Some(connection) = self.connection.get()
        {
            let queue = connection.queue.clone();
            queue.push(self);
        }
    }
}

/// The answer cannot go on.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a panic where events are made")]
pub struct Broken;

/// The body of an answer, for hyper. Dropped, its events are.
pub struct EventBody<E: Events>(Arc<Answer<E>>);

impl<E: Events> Stream for EventBody<E> {
    type Item = Result<Bytes, Broken>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let answer = &self.0;
        let mut events = lock(&answer.events);
        let Some(events) = &mut *events else { return Poll::Ready(Some(Err(Broken))) };
        let polled = match answer.connection.get() {
            None => {
                let waker = context.waker().clone();
                events.poll_next(context, &waker)
            }
            Some(connection) => {
                answer.task.register(context.waker());
                let polled = events.poll_next(context, &waker_ref(answer));
                lock(&connection.socket).way = if polled.is_pending() { Way::Asked } else { Way::Closed };
                polled
            }
        };
        polled.map(|bytes| bytes.map(Ok))
    }
}

impl<E: Events> Drop for EventBody<E> {
    fn drop(&mut self) {
        // They hold wakers that hold the answer.
        let events = self.0.events.lock().map(|mut events| events.take());
        if let Some(connection) = self.0.connection.get() {
            lock(&connection.socket).way = Way::Closed;
        }
        drop(events);
    }
}

/// The answers that have something to tell.
pub struct Queue {
    due: Mutex<Vec<Arc<dyn Due>>>,
    runtime: Handle,
}

impl Queue {
    /// Written by this runtime.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { due: Mutex::default(), runtime: Handle::current() })
    }

    fn push(self: Arc<Self>, answer: Arc<dyn Due>) {
        let is_first = {
            let mut due = lock(&self.due);
            due.push(answer);
            due.len() == 1
        };
        if is_first {
            let runtime = self.runtime.clone();
            runtime.spawn(async move { self.write() });
        }
    }

    fn write(&self) {
        let mut due = {
            let mut due = lock(&self.due);
            let next = Vec::with_capacity(due.len());
            std::mem::replace(&mut *due, next)
        };
        while due.len() > PART {
            let part = due.split_off(due.len() - PART);
            self.runtime.spawn(async move { write(part) });
        }
        write(due);
    }
}

fn write(answers: Vec<Arc<dyn Due>>) {
    let (mut chunk, now) = (Vec::new(), Instant::now());
    for answer in answers {
        answer.write(&mut chunk, now);
    }
}

/// A connection that has a direct way.
#[derive(Clone)]
pub struct Connection {
    socket: Arc<Mutex<Socket>>,
    queue: Arc<Queue>,
}

impl Connection {
    /// Lets an answer to such a request use the way, if it is one of events.
    pub fn offer(&self, answers_whole_or_in_chunks: bool, extensions: &mut Extensions) {
        if let Some(AnyAnswer(answer)) = extensions.remove::<AnyAnswer>()
            && answers_whole_or_in_chunks
        {
            let _ = answer.connection().set(self.clone());
        }
    }
}

/// Whether the answer to a request is chunked, if its length is not known.
pub fn takes_chunks<B>(request: &Request<B>) -> bool {
    request.version() == Version::HTTP_11 && matches!(*request.method(), Method::GET | Method::POST)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Whatever is written comes from hyper.
    Closed,
    /// The body had nothing when it was asked, and hyper may still have something.
    Asked,
    Open,
}

struct Socket {
    half: OwnedWriteHalf,
    way: Way,
    /// Of a direct write.
    left: Vec<u8>,
}

impl Socket {
    /// False when not all of it was taken.
    fn write(&mut self, chunk: &[u8]) -> bool {
        // An error comes again where hyper sees it.
        let written = self.half.try_write(chunk).unwrap_or(0);
        if written < chunk.len() {
            self.left.extend_from_slice(&chunk[written..]);
            self.way = Way::Closed;
        }
        written == chunk.len()
    }
}

/// A socket whose other end of the way is a `Connection`.
pub struct SharedSocket {
    read: OwnedReadHalf,
    write: Arc<Mutex<Socket>>,
}

impl SharedSocket {
    pub fn new(stream: TcpStream, queue: Arc<Queue>) -> (Self, Connection) {
        let (read, half) = stream.into_split();
        let write = Arc::new(Mutex::new(Socket { half, way: Way::Closed, left: Vec::new() }));
        (Self { read, write: write.clone() }, Connection { socket: write, queue })
    }
}

impl AsyncRead for SharedSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.read).poll_read(context, buffer)
    }
}

impl AsyncWrite for SharedSocket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut lock(&self.write).half).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut lock(&self.write).half).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut lock(&self.write).half).poll_shutdown(context)
    }
}

/// What hyper writes to: `inner`, of which the last is the connection's `SharedSocket`.
pub struct DirectIo<T> {
    inner: T,
    connection: Connection,
    /// Left by a direct write.
    left: Vec<u8>,
    begun: usize,
}

impl<T: AsyncWrite + Unpin> DirectIo<T> {
    pub fn new(inner: T, connection: Connection) -> Self {
        Self { inner, connection, left: Vec::new(), begun: 0 }
    }

    fn poll_left(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.left.is_empty() {
            self.left = std::mem::take(&mut lock(&self.connection.socket).left);
        }
        while self.begun < self.left.len() {
            let written = Pin::new(&mut self.inner).poll_write(context, &self.left[self.begun..]);
            match ready!(written)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.begun += count,
            }
        }
        (self.left, self.begun) = (Vec::new(), 0);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for DirectIo<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for DirectIo<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_left(context))?;
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_left(context))?;
        ready!(Pin::new(&mut self.inner).poll_flush(context))?;
        let mut socket = lock(&self.connection.socket);
        if socket.way == Way::Asked {
            socket.way = Way::Open;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;
