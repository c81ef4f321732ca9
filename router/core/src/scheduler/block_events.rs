//! What the prefix cache gained and lost, as it happens, for routers of several servers (`--block-events`): each reader gets all that
//! is known, and then every change. One that is too slow to take the changes loses some, is told so, and gets all that is known again.
//! Written by the scheduler's task between two steps.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::cache_names::BlockHash;

/// Batches of changes, one a step at most, that a reader may be behind.
const BEHIND: usize = 1024;

/// A change of what is cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockChange {
    /// From now on requests find it. `after`: the block before it, if it is not the first of its sequence.
    Stored { block: BlockHash, after: Option<BlockHash> },
    /// Its memory is another's now.
    Evicted { block: BlockHash },
    /// All blocks are gone: the workers were replaced.
    Cleared,
}

/// What a reader is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockEvent {
    /// All that is known now, each block behind the one that it follows.
    Known(Arc<[BlockChange]>),
    /// In the order in which they happened.
    Changed(Arc<[BlockChange]>),
    /// The reader was too slow, and changes were not told. What is known comes next.
    Lost,
}

/// Those who read.
#[derive(Default)]
pub(super) struct Readers {
    readers: Vec<Reader>,
    /// What is known, once somebody was told it and until it changes: a walk over the whole cache, which all share.
    known: Option<Arc<[BlockChange]>>,
}

struct Reader {
    events: mpsc::Sender<BlockEvent>,
    /// It has missed something.
    is_lost: bool,
}

/// Both ends for one more reader.
pub(super) fn channel() -> (mpsc::Sender<BlockEvent>, mpsc::Receiver<BlockEvent>) {
    mpsc::channel(BEHIND)
}

impl Readers {
    /// One more, which is told what is known. Everything that changed before has been told.
    pub fn add(&mut self, events: mpsc::Sender<BlockEvent>, known: impl FnOnce() -> Vec<BlockChange>) {
        let known = self.known.get_or_insert_with(|| known().into());
        if events.try_send(BlockEvent::Known(known.clone())).is_ok() {
            self.readers.push(Reader { events, is_lost: false });
        }
    }

    /// Tells what changed, if anything did. `known` is asked for those who missed something before.
    pub fn tell(&mut self, changed: Vec<BlockChange>, known: impl Fn() -> Vec<BlockChange>) {
        if !changed.is_empty() {
            self.known = None;
        }
        if self.readers.is_empty() {
            return;
        }
        let changed: Arc<[BlockChange]> = changed.into();
        let all = &mut self.known;
        self.readers.retain_mut(|reader| {
            if reader.is_lost {
                // Half of the room, so that it does not fall behind again at once.
                if reader.events.capacity() < BEHIND / 2 {
                    return !reader.events.is_closed();
                }
                reader.is_lost = false;
                let _ = reader.events.try_send(BlockEvent::Lost);
                let all = all.get_or_insert_with(|| known().into());
                let _ = reader.events.try_send(BlockEvent::Known(all.clone()));
            } else if !changed.is_empty() {
                reader.is_lost = reader.events.try_send(BlockEvent::Changed(changed.clone())).is_err();
            }
            !reader.events.is_closed()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evicted() -> BlockChange {
        BlockChange::Evicted { block: BlockHash::default() }
    }

    #[test]
    fn a_reader_that_is_too_slow_is_told_so_and_gets_all_again() {
        let mut readers = Readers::default();
        let (sender, mut events) = channel();
        readers.add(sender, || vec![evicted(); 3]);
        for _ in 0..BEHIND + 50 {
            readers.tell(vec![evicted()], Vec::new);
        }
        let mut taken = 0;
        while let Ok(event) = events.try_recv() {
            assert!(!matches!(event, BlockEvent::Lost));
            taken += 1;
        }
        assert_eq!(taken, BEHIND, "no more than it may be behind");
        readers.tell(vec![evicted()], || vec![evicted(); 7]);
        assert_eq!(events.try_recv(), Ok(BlockEvent::Lost));
        assert_eq!(events.try_recv(), Ok(BlockEvent::Known(vec![evicted(); 7].into())));
        readers.tell(vec![evicted()], Vec::new);
        assert_eq!(events.try_recv(), Ok(BlockEvent::Changed(vec![evicted()].into())));
    }

    #[test]
    fn readers_that_come_between_two_changes_share_what_is_known() {
        let mut readers = Readers::default();
        let walks = std::cell::Cell::new(0);
        let known = || {
            walks.set(walks.get() + 1);
            vec![evicted(); walks.get()]
        };
        let come = |readers: &mut Readers| {
            let (sender, mut events) = channel();
            readers.add(sender, known);
            match events.try_recv() {
                Ok(BlockEvent::Known(all)) => all.len(),
                other => panic!("{other:?}"),
            }
        };
        for _ in 0..1000 {
            assert_eq!(come(&mut readers), 1);
            readers.tell(Vec::new(), Vec::new);
        }
        // Nobody reads any more, and what changes is not forgotten.
        assert!(readers.readers.is_empty());
        readers.tell(vec![evicted()], Vec::new);
        assert_eq!((come(&mut readers), come(&mut readers)), (2, 2));
        assert_eq!(walks.get(), 2);
    }

    #[test]
    fn a_reader_that_left_costs_nothing() {
        let mut readers = Readers::default();
        let (sender, events) = channel();
        readers.add(sender, Vec::new);
        drop(events);
        readers.tell(Vec::new(), Vec::new);
        assert!(readers.readers.is_empty());
    }
}
