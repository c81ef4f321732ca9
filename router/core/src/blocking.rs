//! Blocking threads for work that takes time in proportion to what a client sent: reading a body, rendering a
//! chat, tokenizing, compiling a grammar. Such work never runs on the async threads, and what is large never keeps what is small
//! waiting: each class of sizes has threads of its own. Nor does one tenant's work keep another's waiting: they take turns. Used by `http`,
//! `prompt` and `generation`; knows none of them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::tenant::Tenant;

/// Bytes that are worked on in a millisecond or so.
pub const SHORT: usize = 16 << 10;

/// Bytes that are worked on in some ten milliseconds.
pub const MEDIUM: usize = 128 << 10;

/// So many threads for each class of sizes: up to `SHORT`, up to `MEDIUM`, and above.
pub struct BlockingPool {
    short: Arc<Threads>,
    medium: Arc<Threads>,
    long: Arc<Threads>,
}

/// Why work was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Undone {
    /// It panicked, or the server is stopping.
    #[error("the work did not end")]
    Lost,
    /// As much of its tenant's waits already as may.
    #[error("too many requests of this client wait to be read")]
    Crowded,
    /// Its turn did not come in time.
    #[error("no thread was free in time")]
    Late,
}

impl BlockingPool {
    pub fn new(threads: u32) -> Self {
        Self::refusing_beyond(usize::MAX, threads)
    }

    /// The same, where a tenant may have so much of each class waiting.
    pub fn refusing_beyond(most_waiting: usize, threads: u32) -> Self {
        let class = || Arc::new(Threads::new(threads.max(1) as usize, most_waiting));
        Self { short: class(), medium: class(), long: class() }
    }

    /// Runs a tenant's work on so many bytes when a thread of its class is free and it is the tenant's turn; of one tenant, who
    /// came first goes first. A caller that is dropped while it waits costs nothing. The work is given a token that is cancelled
    /// when its caller is dropped.
    pub async fn run<T: Send + 'static>(
        &self,
        tenant: Tenant,
        bytes: usize,
        work: impl FnOnce(&CancellationToken) -> T + Send + 'static,
    ) -> Result<T, Undone> {
        self.class(bytes).enter(tenant).await?.run(work).await
    }

    /// The turn alone; if it does not come within this time, it is given up.
    pub async fn turn_within(&self, wait: Duration, tenant: Tenant, bytes: usize) -> Result<Turn, Undone> {
        timeout(wait, self.class(bytes).enter(tenant)).await.map_err(|_| Undone::Late)?
    }

    fn class(&self, bytes: usize) -> &Arc<Threads> {
        if bytes <= SHORT {
            &self.short
        } else if bytes <= MEDIUM {
            &self.medium
        } else {
            &self.long
        }
    }
}

/// The threads of a class, and who waits for one.
struct Threads {
    line: Mutex<Line>,
    most_waiting: usize,
}

struct Line {
    free: usize,
    /// Of those with something waiting, whose turn is next comes first.
    turns: VecDeque<Tenant>,
    /// No list is empty.
    waiting: HashMap<Tenant, VecDeque<oneshot::Sender<Turn>>>,
}

/// A thread to work on. Dropped, it is the next one's.
pub struct Turn(Option<Arc<Threads>>);

impl Turn {
    /// Works on it, as `BlockingPool::run` does.
    pub async fn run<T: Send + 'static>(
        self,
        work: impl FnOnce(&CancellationToken) -> T + Send + 'static,
    ) -> Result<T, Undone> {
        let caller = CancellationToken::new();
        let _cancels = caller.clone().drop_guard();
        let done = tokio::task::spawn_blocking(move || {
            let _turn = self;
            work(&caller)
        });
        done.await.map_err(|_| Undone::Lost)
    }
}

impl Threads {
    fn new(threads: usize, most_waiting: usize) -> Self {
        let line = Line { free: threads, turns: VecDeque::new(), waiting: HashMap::new() };
        Self { line: Mutex::new(line), most_waiting }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().expect("nothing panics while it holds this lock")
    }

    async fn enter(self: &Arc<Self>, tenant: Tenant) -> Result<Turn, Undone> {
        let turn = {
            let mut line = self.line();
            if line.free > 0 {
                line.free -= 1;
                return Ok(Turn(Some(self.clone())));
            }
            line.wait(tenant, self.most_waiting)?
        };
        turn.await.map_err(|_| Undone::Lost)
    }
}

impl Line {
    fn wait(&mut self, tenant: Tenant, most: usize) -> Result<oneshot::Receiver<Turn>, Undone> {
        let of_it = self.waiting.entry(tenant).or_insert_with(|| {
            self.turns.push_back(tenant);
            VecDeque::new()
        });
        if of_it.len() >= most {
            // Some may have gone.
            of_it.retain(|waiting| !waiting.is_closed());
        }
        if !of_it.is_empty() && of_it.len() >= most {
            return Err(Undone::Crowded);
        }
        let (sender, turn) = oneshot::channel();
        of_it.push_back(sender);
        Ok(turn)
    }

    fn next(&mut self) -> Option<oneshot::Sender<Turn>> {
        let tenant = self.turns.pop_front()?;
        let of_it = self.waiting.get_mut(&tenant)?;
        let next = of_it.pop_front();
        match of_it.is_empty() {
            true => drop(self.waiting.remove(&tenant)),
            false => self.turns.push_back(tenant),
        }
        next
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(threads) = self.0.take() else { return };
        loop {
            let next = {
                let mut line = threads.line();
                let next = line.next();
                line.free += usize::from(next.is_none());
                next
            };
            match next.map(|next| next.send(Turn(Some(threads.clone())))) {
                None | Some(Ok(())) => return,
                // Nobody waits there any more. The turn is not given back a second time.
                Some(Err(mut turn)) => turn.0 = None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures::FutureExt;
    use futures::future::join_all;

    use super::*;

    const SOMEBODY: Tenant = Tenant::Key(0);
    const ANOTHER: Tenant = Tenant::Key(1);

    /// Work of this size that lasts until the barrier is met.
    async fn occupy(pool: &Arc<BlockingPool>, bytes: usize) -> (Arc<Barrier>, tokio::task::JoinHandle<()>) {
        let gate = Arc::new(Barrier::new(2));
        let (own, pool_of_task) = (gate.clone(), pool.clone());
        let busy = tokio::spawn(async move {
            pool_of_task.run(SOMEBODY, bytes, move |_| own.wait().is_leader()).await.expect("it ends");
        });
        while pool.class(bytes).line().free > 0 {
            tokio::task::yield_now().await;
        }
        (gate, busy)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn smaller_work_does_not_wait_for_larger() {
        let pool = Arc::new(BlockingPool::new(1));
        let (medium, one) = occupy(&pool, MEDIUM).await;
        let (long, other) = occupy(&pool, 100 * MEDIUM).await;
        assert!(pool.run(SOMEBODY, SHORT, |_| ()).await.is_ok());
        assert!(pool.run(SOMEBODY, SHORT + 1, |_| ()).now_or_never().is_none());
        medium.wait();
        one.await.expect("no panic");
        // 17 KB beside prompts of megabytes.
        assert!(pool.run(SOMEBODY, SHORT + 1, |_| ()).await.is_ok());
        assert!(pool.run(SOMEBODY, MEDIUM + 1, |_| ()).now_or_never().is_none());
        long.wait();
        other.await.expect("no panic");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_dropped_caller_that_waits_is_never_worked_for() {
        let pool = Arc::new(BlockingPool::new(1));
        let ran = Arc::new(AtomicU32::new(0));
        let (gate, busy) = occupy(&pool, 1).await;
        let count = ran.clone();
        let waiting = pool.run(SOMEBODY, 1, move |_| count.fetch_add(1, Ordering::SeqCst));
        // Polled once, so that it waits for its turn; then its client leaves.
        assert!(waiting.now_or_never().is_none());
        gate.wait();
        busy.await.expect("no panic");
        let count = ran.clone();
        pool.run(SOMEBODY, 1, move |_| count.fetch_add(10, Ordering::SeqCst)).await.expect("it ends");
        assert_eq!(ran.load(Ordering::SeqCst), 10);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn tenants_take_turns_whatever_one_has_waiting() {
        let pool = Arc::new(BlockingPool::new(1));
        let (gate, busy) = occupy(&pool, 1).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let work = |tenant, number: u32| {
            let order = order.clone();
            let mut work =
                Box::pin(pool.run(tenant, 1, move |_| order.lock().unwrap().push((tenant, number))));
            assert!(work.as_mut().now_or_never().is_none(), "it waits");
            work
        };
        let mut all: Vec<_> = (0..5).map(|number| work(SOMEBODY, number)).collect();
        all.extend((0..2).map(|number| work(ANOTHER, number)));
        // One of the first has gone.
        drop(all.remove(1));
        gate.wait();
        busy.await.expect("no panic");
        assert!(join_all(all).await.iter().all(Result::is_ok));
        let order: Vec<(bool, u32)> =
            order.lock().unwrap().iter().map(|&(tenant, number)| (tenant == ANOTHER, number)).collect();
        let (a, b) = (false, true);
        assert_eq!(order, [(a, 0), (b, 0), (b, 1), (a, 2), (a, 3), (a, 4)]);
        assert!(pool.class(1).line().waiting.is_empty());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_tenant_has_only_so_much_waiting() {
        let pool = Arc::new(BlockingPool::refusing_beyond(2, 1));
        let (gate, busy) = occupy(&pool, 1).await;
        let mut waiting: Vec<_> = (0..2).map(|_| Box::pin(pool.run(SOMEBODY, 1, |_| ()))).collect();
        assert!(waiting.iter_mut().all(|one| one.as_mut().now_or_never().is_none()));
        assert_eq!(pool.run(SOMEBODY, 1, |_| ()).now_or_never(), Some(Err(Undone::Crowded)));
        assert!(pool.run(ANOTHER, 1, |_| ()).now_or_never().is_none(), "another one's may wait");
        // Who has gone does not count.
        waiting.pop();
        assert!(pool.run(SOMEBODY, 1, |_| ()).now_or_never().is_none());
        gate.wait();
        busy.await.expect("no panic");
        assert!(join_all(waiting).await.iter().all(Result::is_ok));
        assert!(pool.run(SOMEBODY, 1, |_| ()).await.is_ok());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn work_whose_turn_does_not_come_is_given_up() {
        let pool = Arc::new(BlockingPool::new(1));
        let (gate, busy) = occupy(&pool, 1).await;
        let late = pool.turn_within(Duration::from_millis(1), SOMEBODY, 1).await;
        assert_eq!(late.err(), Some(Undone::Late));
        gate.wait();
        busy.await.expect("no panic");
        let turn = pool.turn_within(Duration::from_secs(60), SOMEBODY, 1).await.expect("it is free");
        assert!(turn.run(|_| ()).await.is_ok());
    }

    #[tokio::test]
    async fn work_that_panics_frees_its_thread() {
        let pool = BlockingPool::new(1);
        let bug: fn(&CancellationToken) = |_| panic!("on purpose");
        assert_eq!(pool.run(SOMEBODY, 1, bug).await, Err(Undone::Lost));
        assert!(pool.run(SOMEBODY, 1, |_| ()).await.is_ok());
    }
}
