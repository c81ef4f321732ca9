//! What the scheduler tells of a sequence, on its way to the one who reads it: a mailbox for each sequence, which takes in
//! everything at once and never waits. Made by `handle`, filled through `Sequence::tell`, read by `generation`.
//!
//! Who waits at a mailbox is a task of another runtime, and to wake one from here costs several times what handing it a
//! token does. So while a step's result is applied, wakers are only collected; `Wakeups::flush` hands them over in one
//! vector, to a task of the readers' runtime that wakes them there.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use futures::future::poll_fn;
use tokio::sync::mpsc;

use super::submission::SequenceEvent;
use crate::clock;

const NO_PANIC: &str = "nothing panics while it holds this lock";

/// So few readers are woken from here: a message would cost as much, and its receiver would have to be woken too.
const FEW: usize = 2;

/// A reader is behind when so many events are unread.
const BEHIND: usize = 2;

/// Those who are to be woken, of all sequences of one scheduler.
pub(crate) struct Wakeups {
    collected: Mutex<Collected>,
    /// To the readers' runtime.
    over: Option<mpsc::UnboundedSender<Vec<Waker>>>,
}

#[derive(Default)]
struct Collected {
    wakers: Vec<Waker>,
    /// The time of the step whose events come; `None`: nothing is collected.
    step: Option<Instant>,
}

impl Wakeups {
    /// `readers` is the runtime of most of them.
    pub fn new(readers: Option<&tokio::runtime::Handle>) -> Arc<Self> {
        let over = readers.map(|runtime| {
            let (over, mut handed) = mpsc::unbounded_channel::<Vec<Waker>>();
            runtime.spawn(async move {
                while let Some(wakers) = handed.recv().await {
                    wakers.into_iter().for_each(Waker::wake);
                }
            });
            over
        });
        Arc::new(Self { collected: Mutex::default(), over })
    }

    /// Until `flush` nobody is woken, and all events are of this time.
    pub fn collect(&self, now: Instant) {
        self.lock().step = Some(now);
    }

    pub fn flush(&self) {
        let wakers = {
            let mut collected = self.lock();
            collected.step = None;
            let expected = collected.wakers.len();
            std::mem::replace(&mut collected.wakers, Vec::with_capacity(expected))
        };
        let left = match &self.over {
            Some(over) if wakers.len() > FEW => over.send(wakers).err().map(|unsent| unsent.0),
            _ => Some(wakers),
        };
        left.into_iter().flatten().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, Collected> {
        self.collected.lock().expect(NO_PANIC)
    }
}

/// Both ends of a new mailbox.
pub(crate) fn mailbox(wakeups: &Arc<Wakeups>) -> (EventSender, SequenceEvents) {
    let mailbox = Arc::<Mailbox>::default();
    (EventSender { mailbox: mailbox.clone(), wakeups: wakeups.clone() }, SequenceEvents { mailbox })
}

#[derive(Default)]
struct Mailbox(Mutex<State>);

#[derive(Default)]
struct State {
    unread: Unread,
    /// Of who reads, while there is nothing to read.
    reader: Option<Waker>,
    /// Of who reads in its place when it is behind.
    attendant: Option<Waker>,
    sender_is_gone: bool,
    reader_is_gone: bool,
}

/// Events that wait for their reader. A reader that keeps up leaves one at most, which then is in the mailbox itself: a ring
/// of its own would be somewhere else in memory for every token.
#[derive(Default)]
struct Unread {
    first: Option<Told>,
    later: VecDeque<Told>,
}

impl Unread {
    fn push(&mut self, told: Told) {
        match self.first.is_none() && self.later.is_empty() {
            true => self.first = Some(told),
            false => self.later.push_back(told),
        }
    }

    fn pop(&mut self) -> Option<Told> {
        self.first.take().or_else(|| self.later.pop_front())
    }

    fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.later.len()
    }
}

/// An event, and when it happened.
#[derive(Clone, Debug)]
pub struct Told {
    pub at: Instant,
    pub event: SequenceEvent,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect(NO_PANIC)
    }
}

/// The scheduler's end.
pub(crate) struct EventSender {
    mailbox: Arc<Mailbox>,
    wakeups: Arc<Wakeups>,
}

impl EventSender {
    /// The reader may be gone, which its ticket tells; nothing is lost then.
    pub fn send(&self, event: SequenceEvent) {
        let mut collected = self.wakeups.lock();
        let step = collected.step;
        let mut state = self.mailbox.lock();
        if state.reader_is_gone {
            return;
        }
        state.unread.push(Told { at: step.unwrap_or_else(clock::now), event });
        let reader = state.reader.take();
        let attendant = if state.unread.len() >= BEHIND { state.attendant.take() } else { None };
        drop(state);
        let wakers = reader.into_iter().chain(attendant);
        if step.is_some() {
            collected.wakers.extend(wakers);
            return;
        }
        drop(collected);
        wakers.for_each(Waker::wake);
    }
}

impl Drop for EventSender {
    /// Whoever still waits was told no end.
    fn drop(&mut self) {
        let mut state = self.mailbox.lock();
        state.sender_is_gone = true;
        let waiting = [state.reader.take(), state.attendant.take()];
        drop(state);
        waiting.into_iter().flatten().for_each(Waker::wake);
    }
}

/// What happens to a sequence, in order: the reader's end. Ends when the scheduler has let go of the sequence.
pub struct SequenceEvents {
    mailbox: Arc<Mailbox>,
}

impl SequenceEvents {
    pub async fn recv(&mut self) -> Option<SequenceEvent> {
        poll_fn(|context| self.poll_next(context)).await.map(|told| told.event)
    }

    /// What is there and was not read.
    pub fn try_recv(&mut self) -> Option<SequenceEvent> {
        self.try_next().map(|told| told.event)
    }

    pub fn try_next(&mut self) -> Option<Told> {
        self.mailbox.lock().unread.pop()
    }

    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Told>> {
        let mut state = self.mailbox.lock();
        match state.unread.pop() {
            Some(told) => Poll::Ready(Some(told)),
            None if state.sender_is_gone => Poll::Ready(None),
            None => {
                remember(&mut state.reader, context);
                Poll::Pending
            }
        }
    }

    /// Ready when the reader is behind, or nothing more will come.
    pub fn poll_behind(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.mailbox.lock();
        if state.unread.len() >= BEHIND || state.sender_is_gone {
            return Poll::Ready(());
        }
        remember(&mut state.attendant, context);
        Poll::Pending
    }
}

fn remember(waker: &mut Option<Waker>, context: &Context<'_>) {
    match waker {
        Some(waker) => waker.clone_from(context.waker()),
        None => *waker = Some(context.waker().clone()),
    }
}

impl Drop for SequenceEvents {
    fn drop(&mut self) {
        let mut state = self.mailbox.lock();
        state.reader_is_gone = true;
        let unread = (std::mem::take(&mut state.unread), state.reader.take(), state.attendant.take());
        drop(state);
        drop(unread);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures::task::{ArcWake, waker};

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicU32);

    impl ArcWake for Woken {
        fn wake_by_ref(woken: &Arc<Self>) {
            woken.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    impl Woken {
        fn times(&self) -> u32 {
            self.0.load(Ordering::SeqCst)
        }
    }

    fn event(cached_tokens: u32) -> SequenceEvent {
        SequenceEvent::Admitted { cached_tokens }
    }

    /// Whether it waits.
    fn waits(events: &mut SequenceEvents, woken: &Arc<Woken>) -> bool {
        events.poll_next(&mut Context::from_waker(&waker(woken.clone()))).is_pending()
    }

    #[test]
    fn while_a_step_is_applied_nobody_is_woken_and_then_each_once() {
        let wakeups = Wakeups::new(None);
        let mut boxes: Vec<_> = (0..5).map(|_| (mailbox(&wakeups), Arc::new(Woken::default()))).collect();
        for ((_, events), woken) in &mut boxes {
            assert!(waits(events, woken));
        }
        let now = clock::now();
        wakeups.collect(now);
        for ((sender, _), woken) in &boxes {
            sender.send(event(1));
            sender.send(event(2));
            assert_eq!(woken.times(), 0);
        }
        wakeups.flush();
        for ((_, events), woken) in &mut boxes {
            assert_eq!(woken.times(), 1);
            let told = events.try_next().expect("the first event");
            assert_eq!(told.at, now);
            assert!(events.try_next().is_some() && waits(events, woken));
        }
        // Outside of a step at once.
        let ((sender, _), woken) = &boxes[0];
        sender.send(event(3));
        assert_eq!(woken.times(), 2);
    }

    #[tokio::test]
    async fn many_readers_are_woken_by_a_task_of_their_own_runtime() {
        let wakeups = Wakeups::new(Some(&tokio::runtime::Handle::current()));
        let (senders, readers): (Vec<_>, Vec<_>) = (0..100).map(|_| mailbox(&wakeups)).unzip();
        let readers: Vec<_> =
            readers.into_iter().map(|mut events| tokio::spawn(async move { events.recv().await })).collect();
        tokio::task::yield_now().await;
        wakeups.collect(clock::now());
        senders.iter().for_each(|sender| sender.send(event(7)));
        wakeups.flush();
        for reader in readers {
            let event = reader.await.expect("no panic");
            assert!(matches!(event, Some(SequenceEvent::Admitted { cached_tokens: 7 })), "{event:?}");
        }
    }

    #[test]
    fn an_attendant_is_woken_only_when_the_reader_is_behind() {
        let wakeups = Wakeups::new(None);
        let (sender, mut events) = mailbox(&wakeups);
        let attendant = Arc::new(Woken::default());
        let waker = waker(attendant.clone());
        let behind =
            |events: &mut SequenceEvents| events.poll_behind(&mut Context::from_waker(&waker)).is_ready();
        assert!(!behind(&mut events));
        sender.send(event(1));
        assert_eq!((attendant.times(), behind(&mut events)), (0, false));
        sender.send(event(2));
        assert_eq!((attendant.times(), behind(&mut events)), (1, true));
        events.try_recv();
        events.try_recv();
        assert!(!behind(&mut events));
        drop(sender);
        assert_eq!((attendant.times(), behind(&mut events)), (2, true));
    }

    #[test]
    fn who_waits_is_told_that_nothing_more_will_come() {
        let wakeups = Wakeups::new(None);
        let (sender, mut events) = mailbox(&wakeups);
        let woken = Arc::new(Woken::default());
        assert!(waits(&mut events, &woken));
        wakeups.collect(clock::now());
        drop(sender);
        assert_eq!(woken.times(), 1);
        assert!(!waits(&mut events, &woken) && events.try_recv().is_none());
    }

    #[test]
    fn what_nobody_reads_any_more_is_not_kept() {
        let wakeups = Wakeups::new(None);
        let (sender, events) = mailbox(&wakeups);
        sender.send(event(1));
        drop(events);
        sender.send(event(2));
        assert_eq!(sender.mailbox.lock().unread.len(), 0);
    }
}
