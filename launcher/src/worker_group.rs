//! The processes of one group, from their start to their end: whether they answer, for how long that may take, and why they
//! have ended. Called by `workers`, which starts groups and replaces them.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use penstock_core::worker::endpoint::frames_socket;
use tokio::net::UnixStream;
use tracing::{info, warn};

use crate::child::{Exit, Watched};

/// How often a starting worker's socket is tried. A try is one system call.
const SOCKET_POLL: Duration = Duration::from_millis(3);
/// A sign of life while a large model loads.
const STILL_LOADING: Duration = Duration::from_secs(15);
/// A load may take as long as if this many bytes came each second, of the weights and of the libraries that a worker
/// imports, and `load_timeout` more: a tenth of what a slow disk or a network gives.
const SLOWEST_READ: u64 = 4 << 20;
const LIBRARIES: u64 = 2 << 30;
/// Workers that load again may take this many times longer than the slowest start so far, if that is more. Less they may not be
/// given: earlier ones may have mapped packed weights, and have read nothing, and those may be gone.
const SLOWER: u32 = 10;
/// A worker whose stream has just broken may not have been reaped yet; nor the one that it has lost.
const REAPED: Duration = Duration::from_millis(30);
const OTHER_REAPED: Duration = Duration::from_millis(500);
/// A killed process ends at once, unless the kernel itself is stuck in it (a driver, a dead disk).
const KILL_DEADLINE: Duration = Duration::from_secs(10);

pub struct Group {
    pub ranks: Vec<Rank>,
    /// By which the ranks find each other.
    pub meeting: PathBuf,
    pub started: Instant,
    pub answered: Option<Instant>,
}

pub struct Rank {
    pub number: u32,
    pub socket: PathBuf,
    pub process: Watched,
}

/// What had become of a worker when its group was ended.
pub enum WorkerEnd {
    Ended(Exit),
    Stopped,
}

/// What became of a group that was started.
pub enum Start {
    Answers,
    /// A worker has ended.
    Ended,
    /// A worker shows no progress; why that is too long.
    Hangs {
        rank: u32,
        why: String,
    },
}

/// How long a start may take.
#[derive(Clone, Copy)]
pub struct StartTimeouts {
    /// Without a sign of progress.
    silence: Duration,
    /// In all.
    whole: Duration,
    /// Why no longer.
    measure: &'static str,
}

impl StartTimeouts {
    pub fn of(load_timeout: Duration, weight_bytes: u64, slowest_start: Option<Duration>) -> Self {
        let reading = Duration::from_secs(weight_bytes.saturating_add(LIBRARIES) / SLOWEST_READ);
        let (most, measure) = match slowest_start.map(|took| took.saturating_mul(SLOWER)) {
            Some(before) if before > reading => (before, "ten times longer than before"),
            _ => (reading, "longer than reading it takes at 4 MiB a second (--load-timeout adds to it)"),
        };
        Self { silence: load_timeout, whole: most.saturating_add(load_timeout), measure }
    }

    /// Why a start that began `started` ago, with the last sign of progress `quiet` ago, has taken too long.
    fn exceeded(&self, started: Duration, quiet: Duration) -> Option<String> {
        if quiet > self.silence {
            return Some(format!("showed no progress for {:.0} s (--load-timeout)", quiet.as_secs_f64()));
        }
        (started > self.whole)
            .then(|| format!("was not ready after {:.0} s, {}", self.whole.as_secs_f64(), self.measure))
    }
}

/// Why a group did not start.
pub struct Failure {
    pub rank: u32,
    /// Follows its name in a sentence.
    pub what: String,
    /// Stands alone.
    pub reason: String,
    pub explained: bool,
}

impl Failure {
    pub fn of(rank: u32, exit: &Exit) -> Self {
        Self { rank, what: exit.describe(), reason: exit.reason(), explained: exit.explained() }
    }

    pub fn unexplained(rank: u32, what: String) -> Self {
        Self { rank, reason: format!("it {what}"), what, explained: false }
    }
}

impl Group {
    /// Waits until every rank takes connections, which it does once its part of the model is loaded.
    pub async fn answers(&mut self, timeouts: StartTimeouts) -> Start {
        let mut next_sign = Instant::now() + STILL_LOADING;
        for rank in &self.ranks {
            while UnixStream::connect(&rank.socket).await.is_err() {
                if self.ranks.iter().any(|rank| rank.process.exited().is_some()) {
                    return Start::Ended;
                }
                // Of ranks that load at different speeds, or wait for a slow one, the liveliest counts.
                let quiet = self.ranks.iter().map(|rank| rank.process.last_progress().elapsed()).min();
                if let Some(why) = timeouts.exceeded(self.started.elapsed(), quiet.unwrap_or_default()) {
                    return Start::Hangs { rank: rank.number, why };
                }
                if Instant::now() >= next_sign {
                    info!("still loading after {:.0} s", self.started.elapsed().as_secs_f64());
                    next_sign += STILL_LOADING;
                }
                tokio::time::sleep(SOCKET_POLL).await;
            }
        }
        self.answered = Some(Instant::now());
        Start::Answers
    }

    /// The rank whose end explains that of the others, if any has ended.
    async fn culprit(&self) -> Option<(u32, Exit)> {
        let begun = Instant::now();
        loop {
            let ended = self.ranks.iter().filter_map(|rank| Some((rank.number, rank.process.exited()?)));
            let first = ended.min_by_key(|(_, exit)| (exit.is_consequence(), exit.at));
            let wait = match &first {
                Some((_, exit)) if !exit.is_consequence() => return first,
                Some(_) => OTHER_REAPED,
                None => REAPED,
            };
            if begun.elapsed() >= wait {
                return first;
            }
            tokio::time::sleep(SOCKET_POLL).await;
        }
    }

    /// Kills what is left and waits until it is gone. Returns what became of it before.
    pub async fn end(self) -> Option<(u32, WorkerEnd)> {
        let stopped = |rank: &Rank| rank.process.is_stopped().then_some((rank.number, WorkerEnd::Stopped));
        let end = match self.culprit().await {
            Some((rank, exit)) => Some((rank, WorkerEnd::Ended(exit))),
            None => self.ranks.iter().find_map(stopped),
        };
        for rank in &self.ranks {
            rank.process.kill();
        }
        for rank in &self.ranks {
            if tokio::time::timeout(KILL_DEADLINE, rank.process.exit()).await.is_err() {
                warn!(
                    "worker {} (pid {}) does not die; going on without it",
                    rank.number,
                    rank.process.pid()
                );
            }
            for socket in [&rank.socket, &frames_socket(&rank.socket)] {
                let _ = std::fs::remove_file(socket);
            }
        }
        let _ = std::fs::remove_file(&self.meeting);
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_alone_does_not_go_on_for_ever() {
        let [short, long] = [1, 1000].map(Duration::from_secs);
        let bytes = 1000 * SLOWEST_READ - LIBRARIES;
        let first = StartTimeouts::of(Duration::from_secs(5), bytes, None);
        assert_eq!(first.exceeded(long, short), None);
        assert!(first.exceeded(long, Duration::from_secs(6)).is_some());
        assert!(first.exceeded(Duration::from_secs(1006), short).is_some_and(|why| why.contains("4 MiB")));
        let later = StartTimeouts::of(Duration::from_secs(5), bytes, Some(Duration::from_secs(200)));
        assert_eq!(later.exceeded(Duration::from_secs(2004), short), None);
        assert!(
            later.exceeded(Duration::from_secs(2006), short).is_some_and(|why| why.contains("ten times"))
        );
    }

    #[test]
    fn workers_that_had_mapped_packed_weights_may_read_and_pack_them() {
        let mapped = Some(Duration::from_secs(1));
        let again = StartTimeouts::of(Duration::from_secs(300), 140_000_000_000, mapped);
        let [packing, short] = [7200, 1].map(Duration::from_secs);
        assert_eq!(again.exceeded(packing, short), None);
    }
}
