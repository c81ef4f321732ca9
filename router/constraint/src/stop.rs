//! When work on a grammar is given up: its request is gone, or its time is over.
//!
//! Time is what its thread has computed. A machine with more to do than it can is no fault of a grammar, and its thread is the one
//! that gives way (`yields.rs`). Where that goes on, waiting has an end too.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    error::{CompileError, Kind},
    limits::Limits,
};

/// Says that a request is gone. Clones are one.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    pub fn new() -> Cancel {
        Cancel::default()
    }

    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Nobody waits for a grammar longer than so many times what it may compute.
const MOST_WAIT: u32 = 10;

/// When work on a grammar is to stop.
#[derive(Clone)]
pub(crate) struct Stop {
    cancel: Cancel,
    clock: ThreadClock,
    /// What the clock says then, at most.
    computed: Duration,
    /// However little was computed by then.
    deadline: Instant,
}

impl Stop {
    /// Of work that this thread begins now.
    pub(crate) fn begin(cancel: Cancel, timeout: Duration) -> Stop {
        let clock = ThreadClock::own();
        let deadline = latest(timeout);
        Stop { cancel, clock, computed: clock.now().unwrap_or_default() + timeout, deadline }
    }

    /// Asked by the thread from within its loops, or by who waits for it.
    pub(crate) fn check(&self, limits: &Limits) -> Result<(), CompileError> {
        if self.cancel.is_cancelled() {
            Err(cancelled())
        } else if self.clock.now().is_some_and(|now| now > self.computed) || Instant::now() > self.deadline {
            Err(timed_out(limits))
        } else {
            Ok(())
        }
    }
}

/// Until when one waits for what may compute so long and begins now.
pub(crate) fn latest(timeout: Duration) -> Instant {
    Instant::now() + timeout * MOST_WAIT
}

/// What a thread of this process has computed.
#[derive(Clone, Copy)]
struct ThreadClock(libc::clockid_t);

impl ThreadClock {
    fn own() -> ThreadClock {
        let mut clock = libc::CLOCK_THREAD_CPUTIME_ID;
        // SAFETY: the thread is there, and the clock of this frame. It tells others of this thread where CLOCK_THREAD_CPUTIME_ID would
        // tell of themselves.
        unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &mut clock) };
        ThreadClock(clock)
    }

    /// None where the thread has ended.
    fn now(self) -> Option<Duration> {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the time is of this frame; a clock that is gone is an error.
        let told = unsafe { libc::clock_gettime(self.0, &mut time) } == 0;
        told.then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
    }
}

pub(crate) fn cancelled() -> CompileError {
    CompileError::new(Kind::Cancelled, "the request was cancelled")
}

pub(crate) fn timed_out(limits: &Limits) -> CompileError {
    CompileError::new(
        Kind::TimedOut,
        format!("the grammar takes longer than {} ms to compile", limits.timeout.as_millis()),
    )
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;

    /// As long as its thread computes.
    fn compute(longest: Duration) {
        let clock = ThreadClock::own();
        let end = clock.now().unwrap() + longest;
        while clock.now().unwrap() < end {}
    }

    /// Of work that this thread begins now, and for which it may wait for a processor as long as it has to: it is computing that counts.
    fn begin(timeout: Duration) -> Stop {
        Stop { deadline: Instant::now() + Duration::from_secs(600), ..Stop::begin(Cancel::new(), timeout) }
    }

    #[test]
    fn who_waits_has_not_computed() {
        let limits = Limits { timeout: Duration::from_millis(20), ..Limits::default() };
        let stop = begin(limits.timeout);
        thread::sleep(Duration::from_millis(40));
        assert!(stop.check(&limits).is_ok());
        compute(Duration::from_millis(21));
        assert_eq!(stop.check(&limits).unwrap_err().kind, Kind::TimedOut);
    }

    #[test]
    fn nobody_waits_forever() {
        let limits = Limits { timeout: Duration::from_millis(2), ..Limits::default() };
        let stop = Stop::begin(Cancel::new(), limits.timeout);
        thread::sleep(Duration::from_millis(25));
        assert_eq!(stop.check(&limits).unwrap_err().kind, Kind::TimedOut);
    }

    #[test]
    fn another_thread_sees_what_this_one_has_computed() {
        let limits = Limits { timeout: Duration::from_millis(20), ..Limits::default() };
        let (send, stops) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let begun = limits.timeout;
        let working = thread::spawn(move || {
            send.send(begin(begun)).unwrap();
            ended.recv().unwrap();
            compute(begun + Duration::from_millis(1));
            send.send(begin(begun)).unwrap();
            ended.recv().unwrap();
        });
        let stop = stops.recv().unwrap();
        compute(Duration::from_millis(40));
        assert!(stop.check(&limits).is_ok());
        end.send(()).unwrap();
        stops.recv().unwrap();
        assert_eq!(stop.check(&limits).unwrap_err().kind, Kind::TimedOut);
        end.send(()).unwrap();
        working.join().unwrap();
    }
}
