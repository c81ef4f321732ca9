//! What the scheduler tells of a sequence, on its way to the one who reads it: a mailbox for each sequence, which takes in
//! everything at once and never waits. Made by `handle`, filled through `Sequence::tell`, read by `generation`.
//!
//! Who waits at a mailbox is a task of another runtime: the mailbox is in the caches of another processor, and to wake its
//! reader from here costs several times what handing it a token does. So while a step's result is applied, events are only
//! collected; `Dispatcher::flush` hands them over in one vector, to a task of the readers' runtime that delivers them there.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use futures::future::poll_fn;
use penstock_proto::ids::TokenId;
use slab::Slab;
use tokio::sync::mpsc;

use super::submission::{SampledToken, SequenceEvent};
use crate::clock;

const NO_PANIC: &str = "nothing panics while it holds this lock";

/// So few events are delivered from here: a message would cost as much, and its receiver would have to be woken too.
const FEW: usize = 2;

/// A reader is behind when so many events are unread.
const BEHIND: usize = 2;

/// The way of events to their readers, of all sequences of one scheduler.
pub(crate) struct Dispatcher {
    collected: Mutex<Collected>,
    mailboxes: Arc<Mailboxes>,
    /// To the readers' runtime.
    over: Option<mpsc::UnboundedSender<Batch>>,
}

#[derive(Default)]
struct Collected {
    letters: Vec<Letter>,
    /// The time of the step whose events come; `None`: nothing is collected.
    step: Option<Instant>,
}

/// To one mailbox. Short, since a step writes one for each of its rows, to memory that the readers' processor had last.
struct Letter {
    to: u32,
    news: News,
}

enum News {
    /// Without alternatives.
    Token {
        id: TokenId,
        logprob: f32,
        is_draft: bool,
    },
    Other(Box<SequenceEvent>),
    /// Nothing more will come.
    End,
}

const _: () = assert!(size_of::<Letter>() <= 24);

impl From<SequenceEvent> for News {
    fn from(event: SequenceEvent) -> Self {
        match event {
            SequenceEvent::Token(SampledToken { id, logprob, top, is_draft }) if top.is_empty() => {
                News::Token { id, logprob, is_draft }
            }
            other => News::Other(Box::new(other)),
        }
    }
}

impl News {
    fn event(self) -> Option<SequenceEvent> {
        match self {
            News::Token { id, logprob, is_draft } => {
                Some(SequenceEvent::Token(SampledToken { id, logprob, top: Vec::new(), is_draft }))
            }
            News::Other(event) => Some(*event),
            News::End => None,
        }
    }
}

/// What happened at the same time, in order.
struct Batch {
    at: Instant,
    letters: Vec<Letter>,
}

#[derive(Default)]
struct Mailboxes {
    open: Mutex<Slab<Arc<Mailbox>>>,
    /// Batches that were handed over and are not delivered yet: what comes after them must not overtake them.
    in_transit: AtomicUsize,
    /// Empty, for the next batch.
    spare: Mutex<Vec<Letter>>,
}

impl Dispatcher {
    /// `readers` is the runtime of most of them.
    pub fn new(readers: Option<&tokio::runtime::Handle>) -> Arc<Self> {
        let mailboxes = Arc::<Mailboxes>::default();
        let over = readers.map(|runtime| {
            let (over, mut handed) = mpsc::unbounded_channel();
            let mailboxes = mailboxes.clone();
            runtime.spawn(async move {
                while let Some(batch) = handed.recv().await {
                    mailboxes.deliver(batch);
                    mailboxes.in_transit.fetch_sub(1, Ordering::Release);
                }
            });
            over
        });
        Arc::new(Self { collected: Mutex::default(), mailboxes, over })
    }

    /// Until `flush` nothing is delivered, and all events are of this time, or of that of an earlier call.
    pub fn collect(&self, now: Instant) {
        lock(&self.collected).step.get_or_insert(now);
    }

    pub fn flush(&self) {
        let batch = {
            let mut collected = lock(&self.collected);
            let Some(at) = collected.step.take() else { return };
            let spare = std::mem::take(&mut *lock(&self.mailboxes.spare));
            Batch { at, letters: std::mem::replace(&mut collected.letters, spare) }
        };
        self.dispatch(batch);
    }

    /// At the next `flush`, or now if nothing is collected.
    fn post(&self, letter: Letter) {
        let mut collected = lock(&self.collected);
        match collected.step {
            Some(_) => collected.letters.push(letter),
            None => {
                drop(collected);
                self.dispatch(Batch { at: clock::now(), letters: vec![letter] });
            }
        }
    }

    fn dispatch(&self, batch: Batch) {
        let in_transit = &self.mailboxes.in_transit;
        let left = match &self.over {
            Some(over) if batch.letters.len() > FEW || in_transit.load(Ordering::Acquire) > 0 => {
                in_transit.fetch_add(1, Ordering::Relaxed);
                over.send(batch).err().map(|unsent| unsent.0)
            }
            _ => Some(batch),
        };
        if let Some(batch) = left {
            self.mailboxes.deliver(batch);
        }
    }
}

impl Mailboxes {
    fn deliver(&self, Batch { at, mut letters }: Batch) {
        for Letter { to, news } in letters.drain(..) {
            let waiting = {
                let mut open = lock(&self.open);
                match news.event() {
                    Some(event) => open[to as usize].take_in(Told { at, event }),
                    None => open.remove(to as usize).close(),
                }
            };
            waiting.into_iter().flatten().for_each(Waker::wake);
        }
        let mut spare = lock(&self.spare);
        if spare.capacity() < letters.capacity() {
            *spare = letters;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect(NO_PANIC)
}

/// Both ends of a new mailbox.
pub(crate) fn mailbox(dispatcher: &Arc<Dispatcher>) -> (EventSender, SequenceEvents) {
    let mailbox = Arc::<Mailbox>::default();
    let number = lock(&dispatcher.mailboxes.open).insert(mailbox.clone());
    let number = u32::try_from(number).expect("so many requests are not live");
    (EventSender { number, dispatcher: dispatcher.clone() }, SequenceEvents { mailbox })
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
        lock(&self.0)
    }

    /// Returns who is to be woken.
    fn take_in(&self, told: Told) -> [Option<Waker>; 2] {
        let mut state = self.lock();
        if state.reader_is_gone {
            return [None, None];
        }
        state.unread.push(told);
        let attendant = if state.unread.len() >= BEHIND { state.attendant.take() } else { None };
        [state.reader.take(), attendant]
    }

    /// Whoever still waits was told no end.
    fn close(&self) -> [Option<Waker>; 2] {
        let mut state = self.lock();
        state.sender_is_gone = true;
        [state.reader.take(), state.attendant.take()]
    }
}

/// The scheduler's end.
pub(crate) struct EventSender {
    number: u32,
    dispatcher: Arc<Dispatcher>,
}

impl EventSender {
    /// The reader may be gone, which its ticket tells; nothing is lost then.
    pub fn send(&self, event: SequenceEvent) {
        self.dispatcher.post(Letter { to: self.number, news: event.into() });
    }
}

impl Drop for EventSender {
    fn drop(&mut self) {
        self.dispatcher.post(Letter { to: self.number, news: News::End });
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
    fn while_a_step_is_applied_nothing_is_delivered_and_then_each_reader_is_woken_once() {
        let dispatcher = Dispatcher::new(None);
        let mut boxes: Vec<_> = (0..5).map(|_| (mailbox(&dispatcher), Arc::new(Woken::default()))).collect();
        for ((_, events), woken) in &mut boxes {
            assert!(waits(events, woken));
        }
        let now = clock::now();
        dispatcher.collect(now);
        for ((sender, _), woken) in &boxes {
            sender.send(event(1));
            sender.send(event(2));
            assert_eq!(woken.times(), 0);
        }
        dispatcher.flush();
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
        let dispatcher = Dispatcher::new(Some(&tokio::runtime::Handle::current()));
        let (senders, readers): (Vec<_>, Vec<_>) = (0..100).map(|_| mailbox(&dispatcher)).unzip();
        let readers: Vec<_> =
            readers.into_iter().map(|mut events| tokio::spawn(async move { events.recv().await })).collect();
        tokio::task::yield_now().await;
        dispatcher.collect(clock::now());
        senders.iter().for_each(|sender| sender.send(event(7)));
        dispatcher.flush();
        for reader in readers {
            let event = reader.await.expect("no panic");
            assert!(matches!(event, Some(SequenceEvent::Admitted { cached_tokens: 7 })), "{event:?}");
        }
    }

    #[test]
    fn an_attendant_is_woken_only_when_the_reader_is_behind() {
        let dispatcher = Dispatcher::new(None);
        let (sender, mut events) = mailbox(&dispatcher);
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
        let dispatcher = Dispatcher::new(None);
        let (sender, mut events) = mailbox(&dispatcher);
        let woken = Arc::new(Woken::default());
        assert!(waits(&mut events, &woken));
        dispatcher.collect(clock::now());
        sender.send(event(1));
        drop(sender);
        assert_eq!(woken.times(), 0);
        dispatcher.flush();
        assert_eq!(woken.times(), 1);
        assert!(events.try_recv().is_some());
        assert!(!waits(&mut events, &woken) && events.try_recv().is_none());
    }

    #[test]
    fn what_nobody_reads_any_more_is_not_kept() {
        let dispatcher = Dispatcher::new(None);
        let (sender, events) = mailbox(&dispatcher);
        sender.send(event(1));
        let mailbox = events.mailbox.clone();
        drop(events);
        sender.send(event(2));
        assert_eq!(mailbox.lock().unread.len(), 0);
        drop(sender);
        assert!(lock(&dispatcher.mailboxes.open).is_empty());
    }

    /// Few events are delivered by who sends them, many by a task: they must not overtake each other.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn events_come_in_order_however_many_come_at_once() {
        const ROUNDS: u32 = 2_000;
        let dispatcher = Dispatcher::new(Some(&tokio::runtime::Handle::current()));
        let (mut senders, readers): (Vec<_>, Vec<_>) = (0..10).map(|_| mailbox(&dispatcher)).unzip();
        let readers: Vec<_> = readers
            .into_iter()
            .map(|mut events| {
                tokio::spawn(async move {
                    let mut read = Vec::new();
                    while let Some(event) = events.recv().await {
                        let SequenceEvent::Admitted { cached_tokens } = event else { panic!("{event:?}") };
                        read.push(cached_tokens);
                    }
                    read
                })
            })
            .collect();
        let sending = std::thread::spawn(move || {
            for round in 0..ROUNDS {
                // All in one step, the first alone in one, and the first outside of any.
                for count in [senders.len(), 1] {
                    dispatcher.collect(clock::now());
                    senders[..count]
                        .iter()
                        .for_each(|sender| sender.send(event(3 * round + u32::from(count == 1))));
                    dispatcher.flush();
                }
                senders[0].send(event(3 * round + 2));
            }
            dispatcher.collect(clock::now());
            senders.clear();
            dispatcher.flush();
        });
        for (at, reader) in readers.into_iter().enumerate() {
            let read = reader.await.expect("no panic");
            let expected: Vec<_> = (0..3 * ROUNDS).filter(|number| at == 0 || number % 3 == 0).collect();
            assert!(read == expected, "reader {at} read {} events", read.len());
        }
        sending.join().expect("no panic");
    }
}
