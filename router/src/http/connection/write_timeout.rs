//! The write timeout of a connection: when its client reads too little of what waits in time, the next write is an
//! error, which ends the connection and with it the request. Costs nothing while the client reads.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// A client must take this many bytes within `--write-timeout`, or all that there is. One that takes a byte now and
/// then would otherwise keep its answer for ever.
pub const MIN_PROGRESS: u64 = 16 << 10;

/// How long it has for that while the server drains, which no client that does not read may hold up.
const DRAINING: Duration = Duration::from_secs(10);

/// Runs while written bytes wait for the client.
pub struct Clock {
    timeout: Duration,
    draining: CancellationToken,
    running: Option<Running>,
}

struct Running {
    end: Pin<Box<Sleep>>,
    /// Until the server drains.
    drained: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl Clock {
    pub fn new(timeout: Duration, draining: CancellationToken) -> Self {
        Self { timeout, draining, running: None }
    }

    pub fn stop(&mut self) {
        self.running = None;
    }

    /// Starts, if it does not run yet. Ready when the time is over.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Running { end, drained } = self.running.get_or_insert_with(|| Running {
            end: Box::pin(sleep(self.timeout)),
            drained: Some(Box::pin(self.draining.clone().cancelled_owned())),
        });
        if drained.as_mut().is_some_and(|drained| drained.as_mut().poll(context).is_ready()) {
            *drained = None;
            let sooner = end.deadline().min(Instant::now() + DRAINING);
            end.as_mut().reset(sooner);
        }
        end.as_mut().poll(context)
    }
}

pub struct WriteTimeout<T> {
    inner: T,
    clock: Clock,
    /// Written since the clock was started.
    written: u64,
}

impl<T> WriteTimeout<T> {
    pub fn new(inner: T, timeout: Duration, draining: CancellationToken) -> Self {
        Self { inner, clock: Clock::new(timeout, draining), written: 0 }
    }

    fn watch_write(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let Poll::Ready(written) = result else {
            ready!(self.clock.poll(context));
            return Poll::Ready(Err(does_not_read()));
        };
        self.written += written.as_ref().map_or(0, |&count| count as u64);
        if self.written >= MIN_PROGRESS {
            self.rest();
        }
        Poll::Ready(written)
    }

    fn rest(&mut self) {
        self.clock.stop();
        self.written = 0;
    }
}

fn does_not_read() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the client does not read")
}

impl<T: AsyncRead + Unpin> AsyncRead for WriteTimeout<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.watch_write(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(context, slices);
        self.watch_write(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Asked for when all that waited was written.
        if let Poll::Ready(flushed) = Pin::new(&mut self.inner).poll_flush(context) {
            self.rest();
            return Poll::Ready(flushed);
        }
        ready!(self.clock.poll(context));
        Poll::Ready(Err(does_not_read()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::timeout;

    use super::*;

    fn stalled<T>(inner: T) -> WriteTimeout<T> {
        WriteTimeout::new(inner, Duration::from_secs(10), CancellationToken::new())
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_given_up() {
        let (near, _far) = duplex(64);
        let begun = Instant::now();
        let error = stalled(near).write_all(&[0; 1000]).await.expect_err("nobody reads");
        assert_eq!((error.kind(), begun.elapsed().as_secs()), (io::ErrorKind::TimedOut, 10));
    }

    /// A client that reads `count` bytes every `seconds`, and at most `size` are on their way.
    async fn write_to_reader(size: usize, count: usize, seconds: u64, to_write: usize) -> io::Result<()> {
        let (near, mut far) = duplex(size);
        tokio::spawn(async move {
            let mut read = vec![0; count];
            loop {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                if !matches!(far.read(&mut read).await, Ok(1..)) {
                    return;
                }
            }
        });
        let mut near = stalled(near);
        near.write_all(&vec![0; to_write]).await?;
        near.flush().await
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_slowly_is_not_but_one_that_only_sips_is() {
        write_to_reader(MIN_PROGRESS as usize, MIN_PROGRESS as usize, 9, 1 << 20).await.expect("it reads on");
        let begun = Instant::now();
        let error = write_to_reader(64, 64, 1, 1 << 20).await.expect_err("for ever");
        assert_eq!((error.kind(), begun.elapsed().as_secs()), (io::ErrorKind::TimedOut, 10));
    }

    #[tokio::test(start_paused = true)]
    async fn little_is_enough_where_there_is_no_more() {
        let (near, mut far) = duplex(128);
        let mut near = stalled(near);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(9)).await;
                let _ = far.read(&mut [0; 200]).await;
            }
        });
        for _ in 0..20 {
            near.write_all(&[0; 100]).await.expect("it reads on");
            near.flush().await.expect("it reads on");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn while_the_server_drains_nobody_is_waited_for_that_long() {
        let (near, _far) = duplex(64);
        let draining = CancellationToken::new();
        let mut near = WriteTimeout::new(near, Duration::from_secs(1000), draining.clone());
        let begun = Instant::now();
        let writing = tokio::spawn(async move { near.write_all(&[0; 1000]).await });
        tokio::time::sleep(Duration::from_secs(5)).await;
        draining.cancel();
        timeout(Duration::from_secs(100), writing).await.expect("in time").expect("no panic").expect_err("");
        assert_eq!(begun.elapsed().as_secs(), 15);
    }
}
