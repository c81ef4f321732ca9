//! Drafts from the text itself: what followed when its last tokens occurred before, in prompt or output (prompt lookup;
//! TGI's `--speculate`). One index for each sequence, O(1) a token. It also keeps count of how often its next guess was
//! right, drafted or not, so that whoever asks for drafts knows beforehand what they are worth. Where the same tokens were followed by others
//! as well, those are *branches* beside the guess, and counted in the same way. Used by `guesses`.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use penstock_proto::ids::TokenId;

/// Lengths of the runs of tokens that are looked up, longest first.
pub(super) const GRAMS: [usize; 3] = [8, 4, 2];

/// From this length on a match counts as long: its guesses are mostly right, those of shorter ones often are not.
const LONG: u32 = 8;

/// Length of the runs of tokens behind which other continuations are looked for, how many occurrences are looked at, and how many
/// branches a guess has at most.
const BRANCH_GRAM: usize = GRAMS[2];
const LOOKED_AT: usize = 12;
pub(super) const MOST_BRANCHES: usize = 3;

/// What is believed of the guesses of short and of long matches before any was seen, and the weight of the newest one.
const PRIOR: [f32; 2] = [0.3, 0.7];
const SMOOTHING: f32 = 0.125;

/// What is believed of a branch, where the guess is wrong, and the weight of the newest one.
const BRANCH_PRIOR: f32 = 0.2;
const BRANCH_SMOOTHING: f32 = 0.06;

pub(super) struct PromptLookup {
    /// Unknown to clients, who could otherwise make up tokens that collide.
    seed: u64,
    /// By a gram's hash, the index behind its latest occurrence.
    behind: HashMap<u64, u32, BuildHasherDefault<Hashed>>,
    /// For each token the index behind the occurrence, before its own, of the gram that it ends; 0: there is none.
    before: Vec<u32>,
    /// Tokens that are in it.
    indexed: usize,
    found: Option<Match>,
    record: Record,
    /// How often each branch was right lately where the guess was wrong, smoothed.
    branches: [f32; MOST_BRANCHES],
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
        Self {
            seed,
            behind: HashMap::default(),
            before: Vec::new(),
            indexed: 0,
            found: None,
            record: Record::default(),
            branches: [BRANCH_PRIOR; MOST_BRANCHES],
        }
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
        if let Some(found) = self.found {
            let is_right = tokens[found.next as usize] == *token;
            if is_output {
                self.record.add(found.length, is_right);
            }
            if is_output && !is_right {
                let before = &tokens[..tokens.len() - 1];
                let last = &before[before.len() - BRANCH_GRAM..];
                let others = self.others(before, last, tokens[found.next as usize]);
                for (chance, &next) in self.branches.iter_mut().zip(&others) {
                    let is_right = f32::from(u8::from(tokens[next as usize] == *token));
                    *chance += BRANCH_SMOOTHING * (is_right - *chance);
                }
            }
            self.found = is_right.then_some(Match { next: found.next + 1, length: found.length + 1 });
        }
        let mut before = 0;
        for length in GRAMS {
            let Some(from) = tokens.len().checked_sub(length) else { continue };
            let gram = &tokens[from..];
            let Some(next) = self.behind.insert(hash_of(self.seed, gram), tokens.len() as u32) else {
                continue;
            };
            if length == BRANCH_GRAM {
                before = next;
            }
            if self.found.is_none_or(|found| (found.length as usize) < length)
                && tokens[..next as usize].ends_with(gram)
            {
                self.found = Some(Match { next, length: length as u32 });
            }
        }
        self.before.push(before);
    }

    /// How the text has gone on behind the gram `last` but with `guess`, the latest first: indices of tokens of which no two are the
    /// same.
    fn others(&self, tokens: &[TokenId], last: &[TokenId], guess: TokenId) -> Vec<u32> {
        let mut others: Vec<u32> = Vec::new();
        let mut next = self.behind.get(&hash_of(self.seed, last)).copied().unwrap_or(0) as usize;
        for _ in 0..LOOKED_AT {
            if next == 0 || others.len() == MOST_BRANCHES {
                break;
            }
            // Behind the end of the text nothing has come yet.
            let is_new = |token: &TokenId| {
                *token != guess && others.iter().all(|&other| tokens[other as usize] != *token)
            };
            if tokens.get(next).is_some_and(is_new) && tokens[..next].ends_with(last) {
                others.push(next as u32);
            }
            next = self.before[next - 1] as usize;
        }
        others
    }

    /// What is expected to follow the text, which is all of `tokens`.
    pub fn guess<'a>(&self, tokens: &'a [TokenId]) -> Option<Guess<'a>> {
        let found = self.found.filter(|_| self.indexed == tokens.len())?;
        // What was found may overlap what follows: then the text is expected to go round and round.
        let rest = &tokens[found.next as usize..];
        Some(Guess { accuracy: self.record.accuracy(found.length), rest, goes_round: true })
    }

    /// How likely the first token of each branch is right where that of the guess is wrong.
    pub fn branch_chances(&self) -> [f32; MOST_BRANCHES] {
        self.branches
    }

    /// What may follow the text, which is all of `tokens`, and the first `ahead` tokens of the guess in place of the next one: each begins
    /// with another token.
    pub fn branches<'a>(&self, tokens: &'a [TokenId], ahead: usize) -> impl Iterator<Item = Guess<'a>> {
        let others = self.guess(tokens).and_then(|guess| {
            let mut following = guess.tokens();
            let mut last = [tokens[tokens.len() - 2], tokens[tokens.len() - 1]];
            for token in following.by_ref().take(ahead) {
                last = [last[1], token];
            }
            Some((guess.accuracy, self.others(tokens, &last, following.next()?)))
        });
        let (accuracy, others) = others.unwrap_or_default();
        others.into_iter().map(move |next| Guess {
            accuracy,
            rest: &tokens[next as usize..],
            goes_round: true,
        })
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
    fn what_else_followed_the_last_tokens_are_branches() {
        let text = tokens(&[1, 2, 3, 7, 1, 2, 4, 8, 1, 2, 3, 9, 1, 2, 5, 6, 1, 2, 6, 1, 2]);
        let lookup = lookup(&text);
        let guess = lookup.guess(&text).expect("it has been there");
        assert_eq!(guess.tokens().next(), Some(TokenId(6)));
        let branches = |ahead| {
            let two = |branch: Guess<'_>| branch.tokens().take(2).map(|token| token.0).collect::<Vec<_>>();
            lookup.branches(&text, ahead).map(two).collect::<Vec<_>>()
        };
        assert_eq!(branches(0), [[5, 6], [3, 9], [4, 8]], "the latest first, none twice");
        assert!(branches(1).is_empty(), "behind 2 and 6 there came nothing else");
        assert_eq!(branches(3).len(), 3, "behind 6, 1 and 2 there came the same as now");
    }

    #[test]
    fn branches_are_trusted_as_often_as_they_were_right() {
        let mut lookup = PromptLookup::new(1);
        let mut text = tokens(&[1, 2, 30, 1, 2, 40]);
        for at in 0..200 {
            text.extend(tokens(&[1, 2, if mix(at).is_multiple_of(2) { 30 } else { 40 }]));
            lookup.update(&text, 6, usize::MAX);
        }
        let [first, second, _] = lookup.branch_chances();
        assert!(first > 0.8, "{first}");
        for at in 100..300 {
            text.extend(tokens(&[1, 2, at]));
            lookup.update(&text, 6, usize::MAX);
        }
        let wrong = lookup.branch_chances();
        assert!(wrong[0] < 0.05 && wrong[1] < second, "{wrong:?}");
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
            let mut begins = vec![text[next]];
            for branch in lookup.branches(&text, 0) {
                let from = text.len() - branch.rest.len();
                prop_assert!(from < text.len() && text[..from].ends_with(&text[text.len() - BRANCH_GRAM..]));
                prop_assert!(!begins.contains(&branch.rest[0]), "no token is guessed twice");
                begins.push(branch.rest[0]);
            }
        }
    }
}
