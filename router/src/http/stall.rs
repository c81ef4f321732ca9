//! A connection whose client does not read: a write that stays pending for too long is an error, which ends
//! the connection and with it the request. Costs nothing while the client reads.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

pub struct Stall<T> {
    inner: T,
    most: Duration,
    /// Set while a write is pending.
    since: Option<Pin<Box<Sleep>>>,
}

impl<T> Stall<T> {
    pub fn new(inner: T, most: Duration) -> Self {
        Self { inner, most, since: None }
    }

    fn watch<R>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if written.is_ready() {
            self.since = None;
            return written;
        }
        let most = self.most;
        let timer = self.since.get_or_insert_with(|| Box::pin(sleep(most)));
        ready!(timer.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Stall<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Stall<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.watch(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(context, slices);
        self.watch(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(context);
        self.watch(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::{Instant, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_given_up() {
        let (near, _far) = duplex(64);
        let mut near = Stall::new(near, Duration::from_secs(10));
        let begun = Instant::now();
        let error = near.write_all(&[0; 1000]).await.expect_err("nobody reads");
        assert_eq!((error.kind(), begun.elapsed().as_secs()), (io::ErrorKind::TimedOut, 10));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_slowly_is_not() {
        let (near, mut far) = duplex(64);
        let mut near = Stall::new(near, Duration::from_secs(10));
        let reading = tokio::spawn(async move {
            let mut read = 0;
            while read < 1000 {
                tokio::time::sleep(Duration::from_secs(9)).await;
                read += far.read(&mut [0; 64]).await.expect("open");
            }
        });
        near.write_all(&[0; 1000]).await.expect("it reads on");
        timeout(Duration::from_secs(1000), reading).await.expect("in time").expect("no panic");
    }
}
