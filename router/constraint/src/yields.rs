//! A thread that compiles yields its processor some thousands of times a second. Used by `compiler.rs` alone.
//!
//! Linux looks at its ticks, 4 ms apart, whether a running thread has to give way, and when a thread wakes. A thread of a
//! step that gave way to one that woke waits after that for the compiling one, to the tick, whatever their priorities
//! (EEVDF: who computes most is soonest behind its share). llguidance has no place to yield at, so a timer interrupts the
//! thread. Where nobody waits that costs some microseconds; whatever the system refuses is left out.
//!
//! The timer is set anew after each yield. One that went on by itself would run out while the thread waits for its turn, and
//! interrupt it as soon as it has it: beside others that take all processors it would do nothing but yield.

use std::{cell::Cell, mem, ptr, sync::OnceLock, time::Duration};

/// From the end of one yield to the next: how long a step waits for a compiler, at most.
const PERIOD: Duration = Duration::from_micros(200);
/// Of the thread's own turns (Linux from 6.12 on; 1.4 ms by default on two processors). Since 6.18 a yield forfeits the rest of the turn, so that
/// a long one would leave too little for grammars beside a model that takes all processors.
const SLICE: Duration = Duration::from_micros(100);
/// Ignored by default, so that one that comes late does no harm.
const SIGNAL: libc::c_int = libc::SIGURG;

thread_local! {
    /// What interrupts this thread; read where it is interrupted, so nothing that has to be made or dropped.
    static TIMER: Cell<Option<libc::timer_t>> = const { Cell::new(None) };
}

/// Yields of the thread that began them, until this is dropped on it.
pub struct Yields(libc::timer_t);

impl Yields {
    /// None where the system gives no timer.
    pub fn begin() -> Option<Yields> {
        shorten_turns();
        if !is_handled() {
            return None;
        }
        // SAFETY: a sigevent of zeros is one; what is not set is not read for this kind.
        let mut event: libc::sigevent = unsafe { mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = SIGNAL;
        // SAFETY: it has no arguments, and cannot fail.
        event.sigev_notify_thread_id = unsafe { libc::gettid() };
        let mut timer: libc::timer_t = ptr::null_mut();
        // SAFETY: both are of this frame.
        if unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) } != 0 {
            return None;
        }
        TIMER.set(Some(timer));
        let yields = Yields(timer);
        wake_after_period(timer).then_some(yields)
    }
}

/// Whether the timer could be set, to run out once.
fn wake_after_period(timer: libc::timer_t) -> bool {
    let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let once = libc::itimerspec {
        it_interval: never,
        it_value: libc::timespec { tv_nsec: PERIOD.subsec_nanos().into(), ..never },
    };
    // SAFETY: it is of this frame; a timer that is gone is an error, and the call is one that a signal's handler may make.
    unsafe { libc::timer_settime(timer, 0, &once, ptr::null_mut()) == 0 }
}

impl Drop for Yields {
    fn drop(&mut self) {
        TIMER.set(None);
        // SAFETY: it was made by `begin`, and is deleted once.
        unsafe { libc::timer_delete(self.0) };
    }
}

extern "C" fn give_way(_: libc::c_int) {
    #[cfg(test)]
    tests::yielded();
    // SAFETY: a system call without arguments, which cannot fail, so that `errno` stays as it was.
    unsafe { libc::sched_yield() };
    // Nor does the setting of a timer that is there.
    if let Some(timer) = TIMER.get() {
        wake_after_period(timer);
    }
}

/// Whether the signal's handler is there; it is set once for the process.
fn is_handled() -> bool {
    static HANDLED: OnceLock<bool> = OnceLock::new();
    *HANDLED.get_or_init(|| {
        // SAFETY: a sigaction of zeros is one; the handler only makes a system call.
        unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            action.sa_sigaction = give_way as *const () as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(SIGNAL, &action, ptr::null_mut()) == 0
        }
    })
}

/// Sets the thread's slice and leaves the rest as it is. Older kernels do not look at it.
fn shorten_turns() {
    if let Some(mut attributes) = attributes() {
        attributes.sched_runtime = SLICE.as_nanos() as u64;
        // SAFETY: of this frame; 0 is the calling thread.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }
}

/// How the calling thread is scheduled; None where the system does not say.
fn attributes() -> Option<libc::sched_attr> {
    let size = mem::size_of::<libc::sched_attr>();
    // SAFETY: numbers alone.
    let mut attributes: libc::sched_attr = unsafe { mem::zeroed() };
    // SAFETY: of this frame, and of this size.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    (got == 0).then_some(attributes)
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
        },
        thread,
        time::{Duration, Instant},
    };

    use super::*;

    thread_local! {
        pub static YIELDS: Cell<u32> = const { Cell::new(0) };
        /// What was computed, and how much of it at the last yield.
        static COMPUTED: Cell<[u64; 2]> = const { Cell::new([0; 2]) };
        /// Yields before which nothing was computed.
        static IDLE: Cell<u32> = const { Cell::new(0) };
    }

    pub fn yielded() {
        YIELDS.set(YIELDS.get() + 1);
        let [now, then] = COMPUTED.get();
        IDLE.set(IDLE.get() + u32::from(now == then));
        COMPUTED.set([now, now]);
    }

    /// Computes until the thread has yielded so often, or for so long. Returns how often it has.
    fn compute(times: u32, longest: Duration) -> u32 {
        let end = Instant::now() + longest;
        while YIELDS.get() < times && Instant::now() < end {
            let [now, then] = COMPUTED.get();
            COMPUTED.set([now + 1, then]);
        }
        YIELDS.get()
    }

    /// On a thread of its own, since the slice stays.
    fn on_a_thread(test: impl FnOnce() + Send + 'static) {
        thread::spawn(test).join().unwrap();
    }

    #[test]
    fn a_thread_yields_while_it_computes_and_not_afterwards() {
        on_a_thread(|| {
            let yields = Yields::begin().unwrap();
            assert!(compute(20, Duration::from_secs(60)) >= 20);
            drop(yields);
            // One may have been under way.
            let after = YIELDS.get() + 1;
            assert!(compute(after + 1, Duration::from_millis(5)) <= after);
        });
    }

    #[test]
    fn beside_others_that_take_all_processors_it_computes_from_yield_to_yield() {
        let is_over = Arc::new(AtomicBool::new(false));
        let others: Vec<_> = (0..4 * thread::available_parallelism().unwrap().get())
            .map(|_| {
                let is_over = is_over.clone();
                thread::spawn(move || while !is_over.load(Ordering::Relaxed) {})
            })
            .collect();
        let counted = thread::spawn(|| {
            let _yields = Yields::begin().unwrap();
            (compute(100, Duration::from_secs(60)), IDLE.get())
        })
        .join();
        is_over.store(true, Ordering::Relaxed);
        others.into_iter().for_each(|other| other.join().unwrap());
        let (yields, idle) = counted.unwrap();
        assert!(yields >= 100 && idle < yields / 4, "nothing was computed before {idle} of {yields}");
    }

    #[test]
    fn other_threads_are_not_interrupted() {
        on_a_thread(|| {
            let _yields = Yields::begin().unwrap();
            on_a_thread(|| assert_eq!(compute(1, Duration::from_millis(5)), 0));
        });
    }

    #[test]
    fn turns_are_short_where_the_kernel_has_slices() {
        on_a_thread(|| {
            let before = attributes().unwrap();
            let _yields = Yields::begin().unwrap();
            let after = attributes().unwrap();
            assert_eq!((after.sched_policy, after.sched_nice), (before.sched_policy, before.sched_nice));
            // Before 6.12 there is nothing to read, nor to set.
            if before.sched_runtime > 0 {
                assert_eq!(u128::from(after.sched_runtime), SLICE.as_nanos());
            }
        });
    }
}
