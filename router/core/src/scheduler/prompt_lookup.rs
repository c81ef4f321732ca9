//! Drafts from the text itself: what followed when its last tokens occurred before, in prompt or output (prompt lookup;
//! TGI's `--speculate`). O(1) a token, and hardly more than one cache miss where the text does not repeat itself: a run of tokens occurs again only
//! where its pairs do, so each token and its pair are indexed at once, and longer runs when enough pairs in a row have occurred before. A single token that occurred
//! before says little in most texts, and much in some: behind one there are guesses once some were right. It also keeps count of how often its next guess was
//! right, drafted or not, so that whoever asks for drafts knows beforehand what they are worth. Where the same tokens were followed by others
//! as well, those are *branches* beside the guess, and counted in the same way. Of an encoder-decoder the text is in two parts, what the
//! encoder reads and what the decoder says, with padding between them that nobody says. Used by `guesses`.

use std::ops::Range;

use penstock_proto::ids::TokenId;

use super::grams::GramIndex;

/// Lengths of the runs of tokens that are looked up, longest first.
pub(super) const GRAMS: [usize; 3] = [8, 4, 2];

/// Matches of a single token, of short runs, and from this length on of long ones: guesses behind long ones are mostly right, behind short ones often
/// not, and behind a single token hardly ever.
const SHORT: u32 = 2;
const LONG: u32 = 8;

/// Behind a single token there is no guess that is believed to be right less often: most texts are full of tokens that occurred before.
const LEAST_OF_ONE: f32 = 0.15;

/// Length of the runs of tokens behind which other continuations are looked for, how many occurrences are looked at, and how many
/// branches a guess has at most.
pub(super) const BRANCH_GRAM: usize = GRAMS[2];
const LOOKED_AT: usize = 12;
pub(super) const MOST_BRANCHES: usize = 3;

/// What is believed of the guesses of single, short and long matches before any was seen, and the weight of the newest one.
const PRIOR: [f32; 3] = [0.1, 0.3, 0.7];
const SMOOTHING: f32 = 0.125;

/// Lengths from which on matches are of one kind, for which is counted apart how often they go on: what is copied has its length, too, and
/// a match of six tokens that never goes on is no better for those of five that always did. What is known of
/// all matches of its class counts as so many guesses that were seen of a kind.
const KINDS: [u32; 11] = [0, SHORT, 3, 4, 5, 6, LONG, 12, 16, 20, 24];
const DOUBT: f32 = 2.0;

/// What is believed of a branch, where the guess is wrong, and the weight of the newest one.
const BRANCH_PRIOR: f32 = 0.2;
const BRANCH_SMOOTHING: f32 = 0.06;

pub(super) struct PromptLookup {
    /// Between what an encoder reads and what its decoder says; empty, and at the beginning, of a decoder alone. Nothing goes across.
    gap: Range<usize>,
    singles: GramIndex,
    pairs: GramIndex,
    /// Of the other lengths. They rest, and take in what they lack of the text when a run of their length may have occurred before.
    longer: [GramIndex; 2],
    /// For each token the index behind the occurrence, before its own, of the pair that it ends; 0, and where it ends: there is none.
    before: Vec<u32>,
    /// So many of the last pairs have occurred before.
    repeated_pairs: usize,
    /// Tokens that are in it.
    indexed: usize,
    found: Option<Match>,
    record: Record,
    /// How often each branch was right lately where the guess was wrong, smoothed.
    branches: [f32; MOST_BRANCHES],
}

/// How often guesses were right lately, smoothed: of single, short and long matches, and of each kind.
pub(super) struct Record {
    classes: [f32; 3],
    kinds: [Seen; KINDS.len()],
    /// What follows from these: asked for far more often than they change.
    accuracies: Accuracies,
}

/// Guesses, of which older ones count less and less.
#[derive(Clone, Copy, Default)]
struct Seen {
    all: f32,
    right: f32,
}

impl Default for Record {
    fn default() -> Self {
        let accuracies = Accuracies(KINDS.map(|from| PRIOR[class(from)]));
        Self { classes: PRIOR, kinds: [Seen::default(); KINDS.len()], accuracies }
    }
}

impl Record {
    /// Of guesses behind matches of each length.
    pub fn accuracies(&self) -> Accuracies {
        self.accuracies
    }

    pub fn add(&mut self, length: u32, is_right: bool) {
        let now = f32::from(u8::from(is_right));
        let accuracy = &mut self.classes[class(length)];
        *accuracy += SMOOTHING * (now - *accuracy);
        let Seen { all, right } = &mut self.kinds[kind(length)];
        *all += 1.0 - SMOOTHING * *all;
        *right += now - SMOOTHING * *right;
        let believed = self.classes[class(length)];
        let kinds = KINDS.iter().zip(&self.kinds).zip(&mut self.accuracies.0);
        for ((_, seen), accuracy) in kinds.filter(|((from, _), _)| class(**from) == class(length)) {
            *accuracy = (seen.right + DOUBT * believed) / (seen.all + DOUBT);
        }
    }
}

/// How likely the guess behind a match of each kind is right.
#[derive(Clone, Copy, Debug)]
pub(super) struct Accuracies([f32; KINDS.len()]);

impl Accuracies {
    /// Of guesses that are right as often behind any match.
    pub fn alike(accuracy: f32) -> Self {
        Self([accuracy; KINDS.len()])
    }

    pub fn behind(&self, length: u32) -> f32 {
        self.0[kind(length)]
    }
}

fn kind(length: u32) -> usize {
    KINDS.iter().filter(|&&from| from <= length).count() - 1
}

fn class(length: u32) -> usize {
    usize::from(length >= SHORT) + usize::from(length >= LONG)
}

/// What is expected to follow a text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guess<'a> {
    /// Tokens of the match that it follows; each of its own that is right makes it longer by one.
    pub length: u32,
    pub accuracies: Accuracies,
    pub rest: &'a [TokenId],
    /// Behind the last token it begins anew.
    pub goes_round: bool,
    /// It is from what others were answered, and not from the text itself.
    pub is_recalled: bool,
}

impl<'a> Guess<'a> {
    /// How likely its next token is right.
    pub fn accuracy(&self) -> f32 {
        self.accuracies.behind(self.length)
    }

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
    pub fn new(seed: u64, gap: Range<usize>) -> Self {
        let [longest, long, pair] = GRAMS.map(|length| GramIndex::new(seed, length, gap.clone()));
        Self {
            singles: GramIndex::new(seed, 1, gap.clone()),
            gap,
            pairs: pair,
            longer: [longest, long],
            before: Vec::new(),
            repeated_pairs: 0,
            indexed: 0,
            found: None,
            record: Record::default(),
            branches: [BRANCH_PRIOR; MOST_BRANCHES],
        }
    }

    /// Takes in what is new of a text, at most so many tokens of it. `prompt_len` of them were not guessed at.
    pub fn update(&mut self, tokens: &[TokenId], prompt_len: usize, most: usize) {
        let end = tokens.len().min(self.indexed.saturating_add(most));
        let mut left = most;
        for at in self.indexed..end {
            self.push(&tokens[..=at], at >= prompt_len, &mut left);
        }
        self.indexed = end;
        for index in self.longer.iter_mut().filter(|index| index.is_behind()) {
            left -= index.feed(&tokens[..end], left);
        }
    }

    /// The longer runs may take in so many tokens that they lack.
    fn push(&mut self, tokens: &[TokenId], is_output: bool, left: &mut usize) {
        let Some((token, earlier)) = tokens.split_last() else { return };
        if (self.gap.start..=self.gap.end).contains(&earlier.len()) {
            self.found = None;
        }
        if let Some(found) = self.found {
            let is_right = tokens[found.next as usize] == *token;
            if is_output {
                self.record.add(found.length, is_right);
            }
            // Behind a match of one token nothing else is known to have come: the pair that ends with it is new.
            if is_output && !is_right && found.length >= SHORT {
                let last = &earlier[earlier.len() - BRANCH_GRAM..];
                let others = self.others(earlier, last, tokens[found.next as usize]);
                for (chance, &next) in self.branches.iter_mut().zip(&others) {
                    let is_right = f32::from(u8::from(tokens[next as usize] == *token));
                    *chance += BRANCH_SMOOTHING * (is_right - *chance);
                }
            }
            let next = Match { next: found.next + 1, length: found.length + 1 };
            self.found = (is_right && self.goes_on(next.next)).then_some(next);
        }
        let single = self.singles.push(tokens);
        let before = self.pairs.push(tokens);
        if before == 0 {
            self.repeated_pairs = 0;
        } else {
            self.repeated_pairs += 1;
            self.before.resize(tokens.len() - 1, 0);
            self.before.push(before);
            self.found = self.find_longer(tokens, left).or(self.found);
            self.found = self.found.or_else(|| self.behind(before, BRANCH_GRAM, tokens));
        }
        self.found = self.found.or_else(|| self.behind(single, 1, tokens));
    }

    /// The match of a text's last tokens with those that end at `next`, of which an index knows by their hash; 0: of none.
    fn behind(&self, next: u32, length: usize, tokens: &[TokenId]) -> Option<Match> {
        let is_it = tokens[..next as usize].ends_with(&tokens[tokens.len() - length..]);
        (is_it && self.goes_on(next)).then_some(Match { next, length: length as u32 })
    }

    /// Where the last tokens of a text occurred before, if more of them did than of what is found.
    fn find_longer(&mut self, tokens: &[TokenId], left: &mut usize) -> Option<Match> {
        let found = self.found.map_or(0, |found| found.length as usize);
        let repeated = self.repeated_pairs + 1;
        let end = self.gap.start;
        self.longer.iter_mut().filter(|index| (found + 1..=repeated).contains(&index.length())).find_map(
            |index| {
                *left -= index.feed(&tokens[..tokens.len() - 1], *left);
                let gram = &tokens[tokens.len() - index.length()..];
                let next = index.find(gram);
                let is_it = next > 0 && next as usize != end && tokens[..next as usize].ends_with(gram);
                is_it.then_some(Match { next, length: gram.len() as u32 })
            },
        )
    }

    /// Whether something follows a place in the text at once: what an encoder reads ends.
    fn goes_on(&self, next: u32) -> bool {
        next as usize != self.gap.start
    }

    /// How the text has gone on behind the gram `last` but with `guess`, the latest first: indices of tokens of which no two are the
    /// same.
    fn others(&self, tokens: &[TokenId], last: &[TokenId], guess: TokenId) -> Vec<u32> {
        let mut others: Vec<u32> = Vec::new();
        let mut next = self.pairs.find(last) as usize;
        for _ in 0..LOOKED_AT {
            if next == 0 || others.len() == MOST_BRANCHES {
                break;
            }
            // Behind the end of the text nothing has come yet.
            let is_new = |token: &TokenId| {
                *token != guess && others.iter().all(|&other| tokens[other as usize] != *token)
            };
            let goes_on = self.goes_on(next as u32) && tokens.get(next).is_some_and(is_new);
            if goes_on && tokens[..next].ends_with(last) {
                others.push(next as u32);
            }
            next = self.before.get(next - 1).copied().unwrap_or(0) as usize;
        }
        others
    }

    /// What is expected to follow the text, which is all of `tokens`.
    pub fn guess<'a>(&self, tokens: &'a [TokenId]) -> Option<Guess<'a>> {
        let found = self.found.filter(|_| self.indexed == tokens.len())?;
        let is_believed = found.length >= SHORT || self.record.accuracies().behind(1) >= LEAST_OF_ONE;
        is_believed.then(|| self.guess_from(found, self.record.accuracies(), tokens))
    }

    /// That the text goes on as it did behind `found`.
    fn guess_from<'a>(&self, found: Match, accuracies: Accuracies, tokens: &'a [TokenId]) -> Guess<'a> {
        let next = found.next as usize;
        // What was found may overlap what follows: then the text is expected to go round and round. What an encoder reads does not.
        let goes_round = next >= self.gap.end;
        let rest = if goes_round { &tokens[next..] } else { &tokens[next..self.gap.start] };
        Guess { length: found.length, accuracies, rest, goes_round, is_recalled: false }
    }

    /// How likely the first token of each branch is right where that of the guess is wrong.
    pub fn branch_chances(&self) -> [f32; MOST_BRANCHES] {
        self.branches
    }

    /// What may follow the text, which is all of `tokens`, and the first `ahead` tokens of the guess in place of the next one: each begins
    /// with another token.
    pub fn branches<'a>(&'a self, tokens: &'a [TokenId], ahead: usize) -> impl Iterator<Item = Guess<'a>> {
        let others = self.guess(tokens).and_then(|guess| {
            let mut following = guess.tokens();
            let mut last = [tokens[tokens.len() - 2], tokens[tokens.len() - 1]];
            for token in following.by_ref().take(ahead) {
                last = [last[1], token];
            }
            Some(self.others(tokens, &last, following.next()?))
        });
        let accuracies = self.record.accuracies();
        let found = |next| Match { next, length: BRANCH_GRAM as u32 };
        others
            .unwrap_or_default()
            .into_iter()
            .map(move |next| self.guess_from(found(next), accuracies, tokens))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::scheduler::grams::hash_of;

    fn tokens(ids: &[u32]) -> Vec<TokenId> {
        ids.iter().copied().map(TokenId).collect()
    }

    fn lookup(tokens: &[TokenId]) -> PromptLookup {
        let mut lookup = PromptLookup::new(7, 0..0);
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
        let mut lookup = PromptLookup::new(1, 0..0);
        let mut text = tokens(&[1, 2, 30, 1, 2, 40]);
        for at in 0..200 {
            text.extend(tokens(&[1, 2, if hash_of(0, &tokens(&[at])).is_multiple_of(2) { 30 } else { 40 }]));
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
        let mut lookup = PromptLookup::new(1, 0..0);
        lookup.update(&text, 8, usize::MAX);
        assert!(lookup.guess(&text).is_some_and(|guess| guess.accuracy() > 0.9));
        let mut surprised = text.clone();
        for at in 0..40 {
            surprised.extend(tokens(&[1, 2, 100 + at]));
        }
        lookup.update(&surprised, 8, usize::MAX);
        surprised.extend(tokens(&[1, 2]));
        lookup.update(&surprised, 8, usize::MAX);
        assert!(lookup.guess(&surprised).is_some_and(|guess| guess.accuracy() < 0.1));
    }

    #[test]
    fn what_is_copied_six_tokens_at_a_time_is_trusted_up_to_there() {
        let source: Vec<u32> = (100..400).collect();
        let mut text = tokens(&source);
        let mut lookup = PromptLookup::new(1, 0..0);
        lookup.update(&text, 300, usize::MAX);
        for run in 0..12 {
            text.extend(tokens(&[900 + 4 * run, 901 + 4 * run, 902 + 4 * run, 903 + 4 * run]));
            text.extend((0..6).map(|at| TokenId(110 + 20 * run + at)));
            lookup.update(&text, 300, usize::MAX);
        }
        let accuracies = lookup.record.accuracies();
        for length in 2..6 {
            assert!(accuracies.behind(length) > 0.85, "{length}: {accuracies:?}");
        }
        assert!(accuracies.behind(6) < 0.25, "{accuracies:?}");
    }

    #[test]
    fn behind_a_single_token_is_guessed_once_such_guesses_were_right() {
        let source: Vec<u32> = (100..400).collect();
        let mut text = tokens(&source);
        let mut lookup = PromptLookup::new(1, 0..0);
        lookup.update(&text, 300, usize::MAX);
        let mut guessed = |continued: [u32; 2]| {
            text.extend(tokens(&[900 + text.len() as u32, continued[0]]));
            lookup.update(&text, 300, usize::MAX);
            let is_guess = lookup.guess(&text).map(|guess| guess.rest[0] == TokenId(continued[0] + 1));
            text.push(TokenId(continued[1]));
            lookup.update(&text, 300, usize::MAX);
            is_guess
        };
        assert_eq!(guessed([110, 111]), None, "one token says little");
        assert_eq!(guessed([130, 131]), Some(true), "but in this text");
        for at in 0..20 {
            guessed([140 + at, 2000 + at]);
        }
        assert_eq!(guessed([180, 181]), None, "and no more");
    }

    /// What is guessed behind an encoder's input, padded to blocks of four with zeros, and what its decoder has said.
    fn guess_across(read: &[u32], said: &[u32], count: usize) -> Vec<u32> {
        let gap = read.len()..read.len().next_multiple_of(4);
        let text = [read, &[0; 3][..gap.len()], said].concat();
        let text = tokens(&text);
        let mut lookup = PromptLookup::new(7, gap.clone());
        lookup.update(&text, gap.end + 1, usize::MAX);
        let guess = lookup.guess(&text).into_iter().flat_map(Guess::tokens);
        guess.take(count).map(|token| token.0).collect()
    }

    #[test]
    fn what_a_decoder_says_is_guessed_from_what_its_encoder_reads_and_from_what_it_said() {
        assert_eq!(guess_across(&[5, 6, 7, 8, 9], &[0, 6, 7], 9), [8, 9], "to the end of what is read");
        assert_eq!(guess_across(&[5, 6, 7, 8], &[0, 6, 7], 9), [8], "without padding");
        assert_eq!(guess_across(&[5, 6, 7, 8, 9], &[0, 6, 7, 1, 6, 7], 4), [1, 6, 7, 1], "the latest");
        assert!(guess_across(&[5, 6, 7, 8, 9], &[0, 8, 9], 4).is_empty(), "behind its end there is nothing");
        assert!(guess_across(&[5, 6, 7, 8], &[5, 7, 8], 4).is_empty(), "and no decoder either");
    }

    #[test]
    fn padding_is_no_text() {
        // The decoder's first token and what it says are what pads are.
        assert!(guess_across(&[5, 6, 7, 8, 0], &[0, 0], 4).is_empty());
        assert_eq!(guess_across(&[5, 0, 0, 7, 0], &[0, 0], 4), [7, 0]);
        assert_eq!(guess_across(&[1, 2, 3, 4, 5], &[0, 0, 0], 3), [0, 0, 0], "it says zeros itself");
        assert!(guess_across(&[1, 2, 3, 4, 0], &[0, 3], 4).is_empty());
    }

    /// Counts up, then has each of its runs of so many tokens between 200 and 300 go on in another way.
    fn misleading(length: u32, count: u32) -> Vec<TokenId> {
        let mut text: Vec<_> = (0..count).collect();
        for at in 200..300 {
            text.extend(at..at + length);
            text.push(10_000 + at);
        }
        tokens(&text)
    }

    #[test]
    fn longer_runs_rest_until_shorter_ones_mislead_and_are_found_then() {
        for (length, wakes) in [(1, [false; 2]), (2, [false, true]), (4, [true; 2])] {
            let mut text = misleading(length, 500);
            let mut lookup = lookup(&text);
            let rested = lookup.longer.each_ref().map(GramIndex::fed);
            let begins = text.len();
            for at in 200..220 {
                text.push(TokenId(at));
                lookup.update(&text, begins, usize::MAX);
            }
            let fed = lookup.longer.each_ref().map(GramIndex::fed);
            assert_eq!([fed[0] > rested[0], fed[1] > rested[1]], wakes, "{length}: {rested:?}, {fed:?}");
            assert!(lookup.longer.iter().all(|index| index.fed() < begins + 10), "and rests again");
            assert_eq!(lookup.guess(&text).map(|guess| guess.rest[0].0), Some(220));
        }
    }

    #[test]
    fn what_longer_runs_lack_they_take_in_piece_by_piece() {
        let mut text = misleading(4, 5_000);
        let mut lookup = lookup(&text);
        let fed = |lookup: &PromptLookup| lookup.longer.iter().map(GramIndex::fed).sum::<usize>();
        for at in 200..400 {
            text.push(TokenId(at));
            let before = fed(&lookup);
            lookup.update(&text, 5_000, 100);
            assert!(fed(&lookup) <= before + 100);
        }
        assert!(lookup.longer.iter().all(|index| index.fed() > 5_000 && !index.is_behind()));
    }

    /// What is found in a text by looking at all of it behind each token.
    fn searched(text: &[TokenId], gap: &Range<usize>) -> Option<Match> {
        let goes_on = |next: usize| next != gap.start;
        let is_whole = |from: usize, end: usize| end <= gap.start || from >= gap.end;
        let mut found: Option<Match> = None;
        for end in 1..=text.len() {
            let text = &text[..end];
            let is_said = is_whole(end - 1, end) && end - 1 != gap.end;
            found = found.filter(|found| is_said && text[found.next as usize] == text[end - 1]);
            found = found.map(|found| Match { next: found.next + 1, length: found.length + 1 });
            found = found.filter(|found| goes_on(found.next as usize));
            let lengths = GRAMS.into_iter().chain([1]);
            let whole = lengths.filter(|&length| length <= end && is_whole(end - length, end));
            let longest = whole.into_iter().find_map(|length| {
                let is_it = |next: &usize| {
                    is_whole(next - length, *next) && text[..*next].ends_with(&text[end - length..])
                };
                let latest = (length..end).rev().find(is_it).filter(|&next| goes_on(next));
                latest.map(|next| Match { next: next as u32, length: length as u32 })
            });
            let is_longer = |longest: &Match| found.is_none_or(|found| longest.length > found.length);
            found = longest.filter(is_longer).or(found);
        }
        found
    }

    proptest! {
        #[test]
        fn nothing_is_missed_by_what_rests(ids in prop::collection::vec(0u32..9, 0..120), copies in prop::collection::vec((0usize..200, 2usize..20), 0..6), pieces in 1usize..9) {
            let mut text = tokens(&ids);
            for (from, count) in copies {
                let copied: Vec<_> = text.iter().skip(from).take(count).copied().collect();
                text.extend(copied);
            }
            let mut lookup = PromptLookup::new(3, 0..0);
            while lookup.indexed < text.len() {
                let end = text.len().min(lookup.indexed + pieces);
                lookup.update(&text[..end], 20, usize::MAX);
                prop_assert_eq!(lookup.found, searched(&text[..end], &(0..0)));
            }
        }

        #[test]
        fn across_a_gap_nothing_is_found_and_in_it_nothing_is_guessed(
            read in prop::collection::vec(0u32..4, 1..60),
            said in prop::collection::vec(0u32..4, 1..60),
            padding in 0usize..8,
        ) {
            let gap = read.len()..read.len() + padding;
            let text = tokens(&[&read[..], &vec![0; padding], &said].concat());
            let mut lookup = PromptLookup::new(3, gap.clone());
            for end in gap.end..=text.len() {
                let text = &text[..end];
                lookup.update(text, gap.end + 1, usize::MAX);
                prop_assert_eq!(lookup.found, searched(text, &gap));
                for guess in lookup.guess(text).into_iter().chain(lookup.branches(text, 0)) {
                    let from = guess.rest.as_ptr() as usize - text.as_ptr() as usize;
                    let from = from / size_of::<TokenId>();
                    prop_assert!(!guess.rest.is_empty() && guess.goes_round == (from >= gap.end));
                    prop_assert!(from >= gap.end || from + guess.rest.len() == gap.start);
                }
            }
        }

        #[test]
        fn a_guess_is_what_followed_the_same_tokens(ids in prop::collection::vec(0u32..4, 0..200), pieces in 1usize..9) {
            let text = tokens(&ids);
            let mut lookup = PromptLookup::new(3, 0..0);
            while lookup.indexed < text.len() {
                lookup.update(&text, 20, pieces);
            }
            let Some(found) = lookup.found else {
                let repeats = text.split_last().is_some_and(|(last, earlier)| earlier.contains(last));
                prop_assert!(!repeats, "there is an earlier occurrence");
                return Ok(());
            };
            let (next, length) = (found.next as usize, found.length as usize);
            prop_assert!(next < text.len() && length >= 1);
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
