//! A table that never takes long to grow or to go: several small ones, of which each grows by itself. Of one with a hundred thousand
//! entries the moment in which it is made anew, twice as large, is longer than a step of a small model.

use std::{collections::HashMap, hash::Hash};

use ahash::RandomState;

const PARTS: usize = 32;

pub(crate) struct Spread<K, V> {
    /// None before the first entry.
    parts: Vec<HashMap<K, V, RandomState>>,
    which: RandomState,
}

impl<K: Hash + Eq, V> Spread<K, V> {
    pub(crate) fn new() -> Spread<K, V> {
        Spread { parts: Vec::new(), which: RandomState::new() }
    }

    fn part(&self, key: &K) -> usize {
        // Each part looks at the other bits of a hash of its own.
        (self.which.hash_one(key) >> 32) as usize % PARTS
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.parts.get(self.part(key))?.get(key)
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        if self.parts.is_empty() {
            self.parts.resize_with(PARTS, HashMap::default);
        }
        let part = self.part(&key);
        self.parts[part].insert(key, value);
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.parts.iter().map(HashMap::len).sum()
    }

    /// All that is in it, in parts.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = Box<dyn Send>> + use<K, V>
    where
        K: Send + 'static,
        V: Send + 'static,
    {
        std::mem::take(&mut self.parts).into_iter().map(|part| Box::new(part) as Box<dyn Send>)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_inserted_is_found_until_it_is_taken() {
        let mut spread = Spread::new();
        assert!(spread.get(&1).is_none());
        (0..10_000_u64).for_each(|number| spread.insert(number, number + 1));
        spread.insert(7, 0);
        assert!(
            (0..10_000).all(|number| spread.get(&number) == Some(&if number == 7 { 0 } else { number + 1 }))
        );
        assert!(spread.get(&10_000).is_none() && spread.len() == 10_000);
        let most = spread.parts.iter().map(HashMap::len).max();
        assert!(most.is_some_and(|most| most < 500), "{most:?} of 10,000 are in one of {PARTS} parts");
        assert_eq!(spread.take().count(), PARTS);
        assert!(spread.get(&1).is_none() && spread.len() == 0);
    }
}
