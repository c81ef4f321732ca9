//! Compiled grammars by their content, the least recently used dropped first, within a bound of estimated memory.

use std::{collections::HashMap, sync::Arc};

use crate::{matcher::Grammar, source::Content};

pub(crate) struct Cache {
    kept: HashMap<Content, Kept>,
    bytes: usize,
    most: usize,
    /// Counts uses; the entry with the smallest is dropped first.
    clock: u64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
}

struct Kept {
    grammar: Arc<Grammar>,
    bytes: usize,
    used: u64,
}

impl Cache {
    pub(crate) fn new(most: usize) -> Cache {
        Cache { kept: HashMap::new(), bytes: 0, most, clock: 0, hits: 0, misses: 0 }
    }

    pub(crate) fn get(&mut self, content: &Content) -> Option<Arc<Grammar>> {
        let found = self.find(content);
        self.misses += u64::from(found.is_none());
        found
    }

    /// The same, before `get` may be asked: what is not there is no miss yet.
    pub(crate) fn find(&mut self, content: &Content) -> Option<Arc<Grammar>> {
        self.clock += 1;
        let kept = self.kept.get_mut(content)?;
        kept.used = self.clock;
        self.hits += 1;
        Some(kept.grammar.clone())
    }

    /// Keeps a grammar, unless it alone is over the bound, and drops what was used longest ago to make room.
    pub(crate) fn insert(&mut self, content: Content, grammar: Arc<Grammar>) {
        let bytes = grammar.bytes();
        if bytes > self.most {
            return;
        }
        self.clock += 1;
        let kept = Kept { grammar, bytes, used: self.clock };
        self.bytes += bytes;
        if let Some(old) = self.kept.insert(content, kept) {
            self.bytes -= old.bytes;
        }
        while self.bytes > self.most {
            let Some(oldest) =
                self.kept.iter().min_by_key(|(_, kept)| kept.used).map(|(content, _)| content.clone())
            else {
                return;
            };
            if let Some(old) = self.kept.remove(&oldest) {
                self.bytes -= old.bytes;
            }
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.kept.len()
    }
}
