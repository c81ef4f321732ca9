//! Drafts from the text itself: what followed when its last tokens occurred before, in prompt or output (prompt lookup;
//! TGI's `--speculate`). One index for each sequence, O(1) a token. It also keeps count of how often its next guess was
//! right, drafted or not, so that whoever asks for drafts knows beforehand what they are worth. Used by `guesses`.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use penstock_proto::ids::TokenId;

/// Lengths of the runs of tokens that are looked up, longest first.
pub(super) const GRAMS: [usize; 3] = [8, 4, 2];

/// From this length on a match counts as long: its guesses are mostly right, those of shorter ones often are not.
const LONG: u32 = 8;

/// What is believed of the guesses of short and of long matches before any was seen, and the weight of the newest one.
const PRIOR: [f32; 2] = [0.3, 0.7];
const SMOOTHING: f32 = 0.125;

pub(super) struct PromptLookup {
    /// Unknown to clients, who could otherwise make up tokens that collide.
    seed: u64,
    /// By a gram's hash, the index behind its latest occurrence.
    behind: HashMap<u64, u32, BuildHasherDefault<Hashed>>,
    /// Tokens that are in it.
    indexed: usize,
    found: Option<Match>,
    record: Record,
}

/// How often guesses were right lately: smoothed, of short and of long matches.
pub(super) struct Record([f32; 2]);

impl Default for Record {
    fn default() -> Self {
        Self(PRIOR)
    }
}

impl Record {
    /// Of guesses behind a match of so many tokens.
    pub fn accuracy(&self, length: u32) -> f32 {
        self.0[class(length)]
    }

    pub fn add(&mut self, length: u32, is_right: bool) {
        let accuracy = &mut self.0[class(length)];
        *accuracy += SMOOTHING * (f32::from(u8::from(is_right)) - *accuracy);
    }
}

fn class(length: u32) -> usize {
    usize::from(length >= LONG)
}

/// What is expected to follow a text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guess<'a> {
    /// How likely its next token is right, if all before it were.
    pub accuracy: f32,
    pub rest: &'a [TokenId],
    /// Behind the last token it begins anew.
    pub goes_round: bool,
}

impl<'a> Guess<'a> {
    pub fn tokens(self) -> impl Iterator<Item = TokenId> + 'a {
        let rounds = if self.goes_round { usize::MAX } else { 1 };
        std::iter::repeat_n(self.rest, rounds).flatten().copied()
    }
}

/// An earlier occurrence of the text's last tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Match {
    /// Index of the token behind it: the guess for the next token.
    next: u32,
    length: u32,
}

impl PromptLookup {
    pub fn new(seed: u64) -> Self {
        Self { seed, behind: HashMap::default(), indexed: 0, found: None, record: Record::default() }
    }

    /// Takes in what is new of a text, at most so many tokens of it. `prompt_len` of them were not guessed at.
    pub fn update(&mut self, tokens: &[TokenId], prompt_len: usize, most: usize) {
        let end = tokens.len().min(self.indexed.saturating_add(most));
        for at in self.indexed..end {
            self.push(&tokens[..=at], at >= prompt_len);
        }
        self.indexed = end;
    }

    fn push(&mut self, tokens: &[TokenId], is_output: bool) {
        let Some(token) = tokens.last() else { return };
        if let Some(found) = &mut self.found {
            let is_right = tokens[found.next as usize] == *token;
            if is_output {
                self.record.add(found.length, is_right);
            }
            match is_right {
                true => *found = Match { next: found.next + 1, length: found.length + 1 },
                false => self.found = None,
            }
        }
        for length in GRAMS {
            let Some(from) = tokens.len().checked_sub(length) else { continue };
            let gram = &tokens[from..];
            let Some(next) = self.behind.insert(hash_of(self.seed, gram), tokens.len() as u32) else {
                continue;
            };
            if self.found.is_none_or(|found| (found.length as usize) < length)
                && tokens[..next as usize].ends_with(gram)
            {
                self.found = Some(Match { next, length: length as u32 });
            }
        }
    }

    /// What is expected to follow the text, which is all of `tokens`.
    pub fn guess<'a>(&self, tokens: &'a [TokenId]) -> Option<Guess<'a>> {
        let found = self.found.filter(|_| self.indexed == tokens.len())?;
        // What was found may overlap what follows: then the text is expected to go round and round.
        let rest = &tokens[found.next as usize..];
        Some(Guess { accuracy: self.record.accuracy(found.length), rest, goes_round: true })
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

/// Of keys that are hashes.
#[derive(Default)]
pub(super) struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are u64");
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tokens(ids: &[u32]) -> Vec<TokenId> {
        ids.iter().copied().map(TokenId).collect()
    }

    fn lookup(tokens: &[TokenId]) -> PromptLookup {
        let mut lookup = PromptLookup::new(7);
        lookup.update(tokens, tokens.len(), usize::MAX);
        lookup
    }

    fn guess(text: &[u32], skip: usize, count: usize) -> Vec<u32> {
        let text = tokens(text);
        let lookup = lookup(&text);
        let tokens = lookup.guess(&text).into_iter().flat_map(Guess::tokens);
        tokens.skip(skip).take(count).map(|token| token.0).collect()
    }

    #[test]
    fn what_followed_the_last_tokens_before_is_guessed() {
        assert_eq!(guess(&[1, 2, 3, 4, 5, 9, 1, 2], 0, 3), [3, 4, 5]);
        assert_eq!(guess(&[1, 2, 3, 4, 5, 9, 1, 2], 2, 2), [5, 9], "behind tokens that are in flight");
        assert!(guess(&[1, 2, 3, 4, 5, 9, 8, 2], 0, 3).is_empty(), "one token is no match");
    }

    #[test]
    fn a_text_that_goes_round_is_guessed_to_go_on() {
        assert_eq!(guess(&[5, 1, 2, 3, 1, 2, 3], 0, 5), [1, 2, 3, 1, 2]);
        assert_eq!(guess(&[7, 7, 7], 1, 4), [7; 4]);
    }

    #[test]
    fn the_longer_match_goes_before_the_later_one() {
        assert_eq!(guess(&[1, 2, 3, 4, 50, 9, 3, 4, 60, 8, 1, 2, 3, 4], 0, 1), [50]);
    }

    #[test]
    fn a_guess_that_comes_true_again_and_again_is_trusted() {
        let text = tokens(&[1, 2, 3, 4, 5, 6].repeat(6));
        let mut lookup = PromptLookup::new(1);
        lookup.update(&text, 8, usize::MAX);
        assert!(lookup.guess(&text).is_some_and(|guess| guess.accuracy > 0.9));
        let mut surprised = text.clone();
        for at in 0..40 {
            surprised.extend(tokens(&[1, 2, 100 + at]));
        }
        lookup.update(&surprised, 8, usize::MAX);
        surprised.extend(tokens(&[1, 2]));
        lookup.update(&surprised, 8, usize::MAX);
        assert!(lookup.guess(&surprised).is_some_and(|guess| guess.accuracy < 0.1));
    }

    proptest! {
        #[test]
        fn a_guess_is_what_followed_the_same_tokens(ids in prop::collection::vec(0u32..4, 0..200), pieces in 1usize..9) {
            let text = tokens(&ids);
            let mut lookup = PromptLookup::new(3);
            while lookup.indexed < text.len() {
                lookup.update(&text, 20, pieces);
            }
            let Some(found) = lookup.found else {
                let repeats = text.windows(2).rev().skip(1).any(|pair| text.ends_with(pair));
                prop_assert!(!repeats, "there is an earlier occurrence");
                return Ok(());
            };
            let (next, length) = (found.next as usize, found.length as usize);
            prop_assert!(next < text.len() && length >= 2);
            prop_assert_eq!(&text[next - length..next], &text[text.len() - length..]);
        }
    }
}
