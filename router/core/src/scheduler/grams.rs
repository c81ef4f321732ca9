//! Where runs of a fixed number of tokens, *grams*, occurred last in a text: an index of one length for one text. It takes the text in as
//! far as its owner has it do so; where it rests, it takes in later what it has missed, in one go. Used by `prompt_lookup`.

use std::ops::Range;

use penstock_proto::ids::TokenId;

/// Slots of an index with anything in it.
const LEAST_SLOTS: usize = 16;

pub(super) struct GramIndex {
    /// Unknown to clients, who could otherwise make up tokens that collide.
    seed: u64,
    length: usize,
    /// Of the text, what is none of it: grams do not touch it.
    gap: Range<usize>,
    /// A table with linear probing: half of a gram's hash, then the index behind its latest occurrence; 0 is a free slot. A power of two.
    slots: Vec<u64>,
    used: usize,
    /// The text that is in it: all grams that end in its first tokens.
    fed: usize,
    /// Was to take in more than it might.
    is_behind: bool,
}

impl GramIndex {
    pub fn new(seed: u64, length: usize, gap: Range<usize>) -> Self {
        Self { seed, length, gap, slots: Vec::new(), used: 0, fed: 0, is_behind: false }
    }

    pub fn length(&self) -> usize {
        self.length
    }

    /// Tokens of the text that are in it.
    #[cfg(test)]
    pub fn fed(&self) -> usize {
        self.fed
    }

    /// Had more to take in, when it last was to, than it might.
    pub fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Takes in what is new of a text, at most so many tokens. Returns how many those were.
    pub fn feed(&mut self, text: &[TokenId], most: usize) -> usize {
        let from = self.fed;
        self.fed = text.len().min(from.saturating_add(most)).max(from);
        self.is_behind = self.fed < text.len();
        for end in from + 1..=self.fed {
            self.insert_last(&text[..end]);
        }
        self.fed - from
    }

    /// Takes in the last token of a text of which it has all others. Returns what `find` does.
    pub fn push(&mut self, text: &[TokenId]) -> u32 {
        debug_assert_eq!(self.fed + 1, text.len());
        self.fed = text.len();
        self.insert_last(text)
    }

    /// The gram that a text ends with, if it has one. Returns the index behind the occurrence before.
    fn insert_last(&mut self, text: &[TokenId]) -> u32 {
        let is_whole = |from: &usize| *from >= self.gap.end || text.len() <= self.gap.start;
        let from = text.len().checked_sub(self.length).filter(is_whole);
        from.map_or(0, |from| self.insert(&text[from..], text.len()))
    }

    /// The index behind the latest occurrence of a gram in the text that is in it; 0: there is none. Of two grams with the same hash it
    /// knows one, so the caller compares.
    pub fn find(&self, gram: &[TokenId]) -> u32 {
        match self.slots.is_empty() {
            true => 0,
            false => self.slots[self.slot_of(self.hash(gram))] as u32,
        }
    }

    /// Returns the index behind the occurrence before.
    fn insert(&mut self, gram: &[TokenId], behind: usize) -> u32 {
        // Five eighths of the slots at most: beyond that probing takes long.
        if self.used * 8 >= self.slots.len() * 5 {
            self.grow();
        }
        let hash = self.hash(gram);
        let at = self.slot_of(hash);
        let before = std::mem::replace(&mut self.slots[at], u64::from(hash) << 32 | behind as u64);
        self.used += usize::from(before == 0);
        before as u32
    }

    fn grow(&mut self) {
        let more = (self.slots.len() * 2).max(LEAST_SLOTS);
        for slot in std::mem::replace(&mut self.slots, vec![0; more]) {
            if slot != 0 {
                let at = self.slot_of((slot >> 32) as u32);
                self.slots[at] = slot;
            }
        }
    }

    /// Where a hash is, or would be.
    fn slot_of(&self, hash: u32) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        while self.slots[at] != 0 && (self.slots[at] >> 32) as u32 != hash {
            at = (at + 1) & mask;
        }
        at
    }

    fn hash(&self, gram: &[TokenId]) -> u32 {
        (hash_of(self.seed, gram) >> 32) as u32
    }
}

/// Of a gram.
pub(super) fn hash_of(seed: u64, gram: &[TokenId]) -> u64 {
    gram.iter().fold(seed, |hash, token| mix(hash ^ u64::from(token.0)))
}

/// splitmix64's finalizer (Steele, Lea, Flood 2014).
fn mix(hash: u64) -> u64 {
    let mut z = hash.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_latest_occurrence_of_every_gram_is_found_however_the_text_came_in(
            ids in prop::collection::vec(0u32..6, 0..600),
            length in 1usize..5,
            pieces in prop::collection::vec((any::<bool>(), 1usize..60), 1..40),
            gap in prop_oneof![Just((0, 0)), (0usize..400, 1usize..40)],
        ) {
            let text: Vec<_> = ids.into_iter().map(TokenId).collect();
            let gap = gap.0..gap.0 + gap.1;
            let is_whole = |end: usize| end >= length && (end <= gap.start || end - length >= gap.end);
            let mut index = GramIndex::new(3, length, gap.clone());
            let mut latest = HashMap::new();
            for (alone, most) in pieces.into_iter().cycle() {
                let from = index.fed;
                if from == text.len() {
                    break;
                }
                let before = alone.then(|| index.push(&text[..=from]));
                let fed = if alone { 1 } else { index.feed(&text, most) };
                prop_assert_eq!(index.fed, from + fed);
                let mut last = 0;
                for end in from + 1..=from + fed {
                    last = match is_whole(end) {
                        true => latest.insert(&text[end - length..end], end as u32).unwrap_or(0),
                        false => 0,
                    };
                }
                prop_assert_eq!(before.unwrap_or(last), last);
            }
            for gram in text.windows(length) {
                prop_assert_eq!(index.find(gram), latest.get(gram).copied().unwrap_or(0));
            }
        }
    }
}
