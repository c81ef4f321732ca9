//! The memory for what texts of all grammars find out: what may still be taken of it, and how much one grammar may keep.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::limits::Limits;

/// The share of a matcher's bounds that states of earlier texts may take.
pub(crate) const SHARE: usize = 16;
/// The share of the memory for grammars that is for what is learned, beside it.
const SHARE_OF_CACHE: usize = 4;
/// The share of that which one grammar's automaton may take.
const SHARE_OF_AUTOMATON: usize = 8;

/// How much may still be learned, by all grammars of a vocabulary.
pub(crate) struct Budget {
    left: AtomicUsize,
    /// Of one grammar: of its lexer's states, of its bytes, and of its masks.
    pub(crate) most_states: usize,
    pub(crate) most_bytes: usize,
    /// Of one grammar's automaton.
    pub(crate) most_automaton: usize,
}

impl Budget {
    pub(crate) fn new(limits: &Limits) -> Budget {
        Budget {
            left: AtomicUsize::new(limits.cache_bytes / SHARE_OF_CACHE),
            most_states: limits.lexer_states / SHARE,
            most_bytes: limits.matcher_bytes / SHARE,
            most_automaton: limits.cache_bytes / SHARE_OF_CACHE / SHARE_OF_AUTOMATON,
        }
    }

    pub(crate) fn take(&self, bytes: usize) -> bool {
        let less = |left: usize| left.checked_sub(bytes);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        self.left.fetch_add(bytes, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }
}
