//! Blocking threads for work that takes time in proportion to what a client sent: reading a body, rendering a
//! chat, tokenizing. Such work never runs on the async threads, and what is large never keeps what is small
//! waiting: each class of sizes has threads of its own. Used by `http` and `prompt`; knows neither.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Bytes that are worked on in a millisecond or so.
pub const SHORT: usize = 16 << 10;

/// Bytes that are worked on in some ten milliseconds.
pub const MEDIUM: usize = 128 << 10;

/// So many threads for each class of sizes: up to `SHORT`, up to `MEDIUM`, and above.
pub struct BlockingPool {
    short: Arc<Semaphore>,
    medium: Arc<Semaphore>,
    long: Arc<Semaphore>,
}

/// The work panicked, or the server is stopping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the work did not end")]
pub struct Lost;

impl BlockingPool {
    pub fn new(threads: u32) -> Self {
        let permits = || Arc::new(Semaphore::new(threads.max(1) as usize));
        Self { short: permits(), medium: permits(), long: permits() }
    }

    /// Runs work on so many bytes when a thread of its class is free; who came first goes first. A caller that is
    /// dropped while it waits costs nothing. The work is given a token that is cancelled when its caller is dropped.
    pub async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce(&CancellationToken) -> T + Send + 'static,
    ) -> Result<T, Lost> {
        let threads = self.class(bytes).clone();
        let permit = threads.acquire_owned().await.expect("the semaphore is never closed");
        let caller = CancellationToken::new();
        let _cancels = caller.clone().drop_guard();
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work(&caller)
        });
        done.await.map_err(|_| Lost)
    }

    fn class(&self, bytes: usize) -> &Arc<Semaphore> {
        if bytes <= SHORT {
            &self.short
        } else if bytes <= MEDIUM {
            &self.medium
        } else {
            &self.long
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures::FutureExt;

    use super::*;

    /// Work of this size that lasts until the barrier is met.
    async fn occupy(pool: &Arc<BlockingPool>, bytes: usize) -> (Arc<Barrier>, tokio::task::JoinHandle<()>) {
        let gate = Arc::new(Barrier::new(2));
        let (own, pool_of_task) = (gate.clone(), pool.clone());
        let busy = tokio::spawn(async move {
            pool_of_task.run(bytes, move |_| own.wait().is_leader()).await.expect("it ends");
        });
        while pool.class(bytes).available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        (gate, busy)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn smaller_work_does_not_wait_for_larger() {
        let pool = Arc::new(BlockingPool::new(1));
        let (medium, one) = occupy(&pool, MEDIUM).await;
        let (long, other) = occupy(&pool, 100 * MEDIUM).await;
        assert!(pool.run(SHORT, |_| ()).await.is_ok());
        assert!(pool.run(SHORT + 1, |_| ()).now_or_never().is_none());
        medium.wait();
        one.await.expect("no panic");
        // 17 KB beside prompts of megabytes.
        assert!(pool.run(SHORT + 1, |_| ()).await.is_ok());
        assert!(pool.run(MEDIUM + 1, |_| ()).now_or_never().is_none());
        long.wait();
        other.await.expect("no panic");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_dropped_caller_that_waits_is_never_worked_for() {
        let pool = Arc::new(BlockingPool::new(1));
        let ran = Arc::new(AtomicU32::new(0));
        let (gate, busy) = occupy(&pool, 1).await;
        let count = ran.clone();
        let waiting = pool.run(1, move |_| count.fetch_add(1, Ordering::SeqCst));
        // Polled once, so that it waits for its turn; then its client leaves.
        assert!(waiting.now_or_never().is_none());
        gate.wait();
        busy.await.expect("no panic");
        let count = ran.clone();
        pool.run(1, move |_| count.fetch_add(10, Ordering::SeqCst)).await.expect("it ends");
        assert_eq!(ran.load(Ordering::SeqCst), 10);
    }

    #[tokio::test]
    async fn work_that_panics_frees_its_thread() {
        let pool = BlockingPool::new(1);
        let bug: fn(&CancellationToken) = |_| panic!("on purpose");
        assert!(pool.run(1, bug).await.is_err());
        assert!(pool.run(1, |_| ()).await.is_ok());
    }
}
