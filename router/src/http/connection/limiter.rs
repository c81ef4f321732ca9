//! The limits on connections, in all and per client address, and which connection is closed for a new one. Only a
//! connection without a request in flight is closed, and the oldest without a complete first head before all others:
//! who holds connections open with incomplete heads loses them first. Decides only; `listener` accepts and closes.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::{AbortHandle, Id};
use tokio::time::Instant;

use crate::address::{Network, holder};
use crate::config::RouterArgs;

/// Connections beside those of `--max-connections`, for health probes only.
pub const RESERVE: usize = 16;

/// A connection that has just come may be about to ask.
const SETTLED: Duration = Duration::from_millis(100);

/// What happens on one connection.
pub struct Activity {
    accepted: Instant,
    /// Requests.
    in_flight: AtomicU64,
    /// When a request last began or ended, in nanoseconds after `accepted`; 0 before the first.
    changed: AtomicU64,
}

impl Activity {
    pub fn begin() -> Arc<Self> {
        Arc::new(Self { accepted: Instant::now(), in_flight: 0.into(), changed: 0.into() })
    }

    /// Requests.
    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    fn changes(&self) {
        let after = self.accepted.elapsed().as_nanos() as u64;
        self.changed.store(after.max(1), Ordering::Relaxed);
    }

    /// Since when no request has been in flight; `None` if there was none yet.
    pub fn idle_since(&self) -> Option<Instant> {
        match (self.in_flight.load(Ordering::Relaxed), self.changed.load(Ordering::Relaxed)) {
            (_, 0) => None,
            (0, changed) => Some(self.accepted + Duration::from_nanos(changed)),
            _ => Some(Instant::now()),
        }
    }

    /// Whether it has had a request, and since when it has waited for one; `None` while one is in flight.
    fn waiting(&self) -> Option<(bool, Instant)> {
        match self.idle_since() {
            None => Some((false, self.accepted)),
            Some(since) => (self.in_flight.load(Ordering::Relaxed) == 0).then_some((true, since)),
        }
    }
}

/// Held by a request until the last byte of its answer was handed over.
pub struct InFlight(Arc<Activity>);

impl InFlight {
    pub fn begin(activity: &Arc<Activity>) -> Self {
        activity.in_flight.fetch_add(1, Ordering::Relaxed);
        activity.changes();
        Self(activity.clone())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.changes();
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a connection may request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    Normal,
    /// Health probes only: the connection is one of the reserve.
    ProbesOnly,
}

/// Which limit a new connection would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitReached {
    /// `--max-connections-per-address`.
    PerAddress,
    /// `--max-connections`, and the reserve for probes.
    Total,
}

pub struct ConnectionLimiter {
    total: usize,
    per_address: usize,
    /// Trusted proxies, whose connections carry requests of many clients: the limit per address does not apply.
    proxies: Vec<Network>,
    connections: HashMap<Id, Connection>,
    by_client: HashMap<IpAddr, usize>,
    probes_only: usize,
}

struct Connection {
    activity: Arc<Activity>,
    task: AbortHandle,
    /// Whose it is, unless a proxy's.
    client: Option<IpAddr>,
    admission: Admission,
}

impl ConnectionLimiter {
    pub fn of(args: &RouterArgs) -> Self {
        let total = args.max_connections as usize;
        Self {
            total,
            per_address: args.max_connections_per_address.map_or((total / 8).max(64), |total| total as usize),
            proxies: args.trusted_proxy.clone(),
            connections: HashMap::new(),
            by_client: HashMap::new(),
            probes_only: 0,
        }
    }

    fn client(&self, peer: IpAddr) -> Option<IpAddr> {
        (!self.proxies.iter().any(|network| network.contains(peer))).then(|| holder(peer))
    }

    /// Whether a connection from `peer` is taken. An error holds the task of the idle connection to close first,
    /// after whose end the caller asks again; without one the new connection is refused.
    pub fn admit(&self, peer: IpAddr) -> Result<Admission, (LimitReached, Option<AbortHandle>)> {
        let client = self.client(peer);
        let count = client.and_then(|client| self.by_client.get(&client)).copied().unwrap_or(0);
        if count >= self.per_address && client.is_some() {
            return Err((
                LimitReached::PerAddress,
                self.longest_waiting(|connection| connection.client == client),
            ));
        }
        if self.connections.len() - self.probes_only < self.total {
            return Ok(Admission::Normal);
        }
        if let Some(task) = self.longest_waiting(|connection| connection.admission == Admission::Normal) {
            return Err((LimitReached::Total, Some(task)));
        }
        if self.probes_only < RESERVE {
            return Ok(Admission::ProbesOnly);
        }
        Err((
            LimitReached::Total,
            self.longest_waiting(|connection| connection.admission == Admission::ProbesOnly),
        ))
    }

    fn longest_waiting(&self, which: impl Fn(&Connection) -> bool) -> Option<AbortHandle> {
        let waiting = self.connections.values().filter(|connection| which(connection));
        let waiting = waiting.filter_map(|connection| Some((connection.activity.waiting()?, connection)));
        let ((_, since), connection) = waiting.min_by_key(|(waiting, _)| *waiting)?;
        (since.elapsed() >= SETTLED).then(|| connection.task.clone())
    }

    pub fn register(
        &mut self,
        task: AbortHandle,
        activity: Arc<Activity>,
        peer: IpAddr,
        admission: Admission,
    ) {
        let client = self.client(peer);
        if let Some(client) = client {
            *self.by_client.entry(client).or_default() += 1;
        }
        self.probes_only += usize::from(admission == Admission::ProbesOnly);
        self.connections.insert(task.id(), Connection { activity, task, client, admission });
    }

    pub fn release(&mut self, task: Id) {
        let Some(connection) = self.connections.remove(&task) else { return };
        self.probes_only -= usize::from(connection.admission == Admission::ProbesOnly);
        let Some(client) = connection.client else { return };
        if let Some(count) = self.by_client.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                self.by_client.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limiter(total: usize, per_address: usize) -> ConnectionLimiter {
        ConnectionLimiter {
            total,
            per_address,
            proxies: vec!["10.0.0.0/8".parse().expect("a network")],
            connections: HashMap::new(),
            by_client: HashMap::new(),
            probes_only: 0,
        }
    }

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    impl ConnectionLimiter {
        /// Admits a connection as `listener` does, closing the idle ones that it is told to close.
        fn accept(&mut self, peer: IpAddr) -> Result<(Admission, Arc<Activity>), LimitReached> {
            loop {
                match self.admit(peer) {
                    Ok(admission) => {
                        let activity = Activity::begin();
                        let task = tokio::spawn(std::future::pending::<()>()).abort_handle();
                        self.register(task, activity.clone(), peer, admission);
                        return Ok((admission, activity));
                    }
                    Err((_, Some(task))) => self.release(task.id()),
                    Err((reached, None)) => return Err(reached),
                }
            }
        }

        fn has(&self, activity: &Arc<Activity>) -> bool {
            self.connections.values().any(|connection| Arc::ptr_eq(&connection.activity, activity))
        }
    }

    async fn settle() {
        tokio::time::advance(SETTLED).await;
    }

    #[tokio::test(start_paused = true)]
    async fn incomplete_heads_are_closed_first_then_the_longest_idle_and_never_one_in_flight() {
        let mut limiter = limiter(4, 4);
        let mut all = Vec::new();
        for last in 0..4 {
            all.push(limiter.accept(address(last)).expect("room").1);
            settle().await;
        }
        let [idle, works, half, late] = <[_; 4]>::try_from(all).unwrap_or_else(|_| panic!("four"));
        drop(InFlight::begin(&idle));
        let _work = InFlight::begin(&works);
        settle().await;
        for gone in [&half, &late, &idle] {
            assert!(limiter.has(gone));
            let (admission, activity) = limiter.accept(address(9)).expect("somebody goes");
            assert!(admission == Admission::Normal && !limiter.has(gone) && limiter.has(&works));
            std::mem::forget(InFlight::begin(&activity));
            settle().await;
        }
        assert_eq!(limiter.accept(address(9)).map(|(admission, _)| admission), Ok(Admission::ProbesOnly));
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_connection_is_not_closed_for_another() {
        let mut limiter = limiter(1, 1);
        let (_, first) = limiter.accept(address(1)).expect("room");
        assert_eq!(limiter.accept(address(1)).err(), Some(LimitReached::PerAddress));
        assert!(limiter.has(&first));
        settle().await;
        assert!(limiter.accept(address(1)).is_ok() && !limiter.has(&first));
    }

    #[tokio::test(start_paused = true)]
    async fn the_reserve_is_bounded_and_its_incomplete_heads_are_closed_for_new_probes() {
        let mut limiter = limiter(1, 100);
        let (_, works) = limiter.accept(address(1)).expect("room");
        let _work = InFlight::begin(&works);
        for _ in 0..RESERVE {
            assert_eq!(limiter.accept(address(1)).map(|(admission, _)| admission), Ok(Admission::ProbesOnly));
        }
        assert_eq!(limiter.accept(address(1)).err(), Some(LimitReached::Total));
        settle().await;
        assert_eq!(limiter.accept(address(1)).map(|(admission, _)| admission), Ok(Admission::ProbesOnly));
        assert_eq!(limiter.connections.len(), 1 + RESERVE);
    }

    #[tokio::test(start_paused = true)]
    async fn the_limit_per_address_closes_only_that_clients_connections_and_spares_proxies() {
        let mut limiter = limiter(100, 2);
        let (_, other) = limiter.accept(address(2)).expect("room");
        settle().await;
        let (_, own) = limiter.accept(address(1)).expect("room");
        let (_, works) = limiter.accept(address(1)).expect("room");
        let _work = InFlight::begin(&works);
        settle().await;
        let (_, newer) = limiter.accept(address(1)).expect("its own oldest goes");
        assert!(!limiter.has(&own) && limiter.has(&other));
        let _work = InFlight::begin(&newer);
        settle().await;
        assert_eq!(limiter.accept(address(1)).err(), Some(LimitReached::PerAddress));
        for _ in 0..50 {
            assert!(limiter.accept([10, 1, 1, 1].into()).is_ok());
        }
        let ids: Vec<_> = limiter.connections.keys().copied().collect();
        for id in ids {
            limiter.release(id);
        }
        assert!(limiter.by_client.is_empty());
    }
}
