//! Polls a part of a task only when that part was woken. A connection's task is woken for each of its parts (the socket, the
//! body, timers), and hyper polls a body that waits several times each time: with a gate before it, one that has
//! nothing new costs a load of an atomic.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};

pub struct WakeGate {
    woken: Arc<Woken>,
    /// What the part is polled with.
    waker: Waker,
    /// The task around it, as `woken` has it.
    task: Option<Waker>,
    /// The part was ready when it was last polled, so that nobody is to wake it.
    was_ready: bool,
}

#[derive(Default)]
struct Woken {
    since_last_poll: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl Woken {
    fn task(&self) -> MutexGuard<'_, Option<Waker>> {
        self.task.lock().expect("nothing panics while it holds this lock")
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // If it was woken before, its task was, and has not come here since.
        if !self.since_last_poll.swap(true, Ordering::AcqRel)
            && let Some(task) = &*self.task()
        {
            task.wake_by_ref();
        }
    }
}

impl Default for WakeGate {
    fn default() -> Self {
        let woken = Arc::<Woken>::default();
        Self { waker: woken.clone().into(), woken, task: None, was_ready: false }
    }
}

impl WakeGate {
    /// What `poll` says of the part, or that it is pending, if it was not woken since it said so.
    pub fn poll<T>(
        &mut self,
        context: &mut Context<'_>,
        poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let is_known = self.task.as_ref().is_some_and(|task| task.will_wake(context.waker()));
        if !is_known {
            self.task = Some(context.waker().clone());
            self.woken.task().clone_from(&self.task);
        }
        let may_rest = is_known && !self.was_ready && !self.woken.since_last_poll.load(Ordering::Acquire);
        if may_rest {
            return Poll::Pending;
        }
        // A waker that is called from here on leads to another poll.
        self.woken.since_last_poll.swap(false, Ordering::AcqRel);
        let polled = poll(&mut Context::from_waker(&self.waker));
        self.was_ready = polled.is_ready();
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use futures::future::poll_fn;
    use tokio::sync::mpsc;

    use super::*;

    #[derive(Default)]
    struct Task(AtomicU32);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_part_that_waits_is_polled_only_when_it_was_woken() {
        let (task, other) = (Arc::<Task>::default(), Arc::<Task>::default());
        let mut gate = WakeGate::default();
        let (mut polls, mut waker) = (0, None);
        let mut poll = |task: &Arc<Task>, answer: Poll<()>| {
            let task = Waker::from(task.clone());
            let polled = gate.poll(&mut Context::from_waker(&task), |context| {
                polls += 1;
                waker = Some(context.waker().clone());
                answer
            });
            (polled, polls, waker.clone().expect("the first poll is made"))
        };
        assert!(poll(&task, Poll::Ready(())).0.is_ready());
        // It may have more to say.
        let (polled, polls, waker) = poll(&task, Poll::Pending);
        assert!((polled.is_pending(), polls) == (true, 2));
        assert_eq!(poll(&task, Poll::Ready(())).1, 2, "it was not woken");
        waker.wake_by_ref();
        waker.wake_by_ref();
        assert_eq!(task.0.load(Ordering::SeqCst), 1, "one poll is enough for both");
        assert_eq!(poll(&task, Poll::Pending).1, 3);
        assert_eq!(poll(&task, Poll::Pending).1, 3);
        // Another task has to be known to its waker.
        assert_eq!(poll(&other, Poll::Pending).1, 4);
        waker.wake();
        assert_eq!((task.0.load(Ordering::SeqCst), other.0.load(Ordering::SeqCst)), (1, 1));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nothing_that_is_said_meanwhile_is_missed() {
        for _ in 0..200 {
            let (sender, mut said) = mpsc::unbounded_channel();
            tokio::spawn(async move {
                for number in 0..100u32 {
                    let _ = sender.send(number);
                    if number % 10 == 0 {
                        tokio::task::yield_now().await;
                    }
                }
            });
            let mut gate = WakeGate::default();
            for expected in 0..100 {
                let next = poll_fn(|context| gate.poll(context, |context| said.poll_recv(context)));
                assert_eq!(next.await, Some(expected));
            }
        }
    }
}
