//! Drafts from what a tenant's other requests were answered lately (`--speculate-corpus-tokens`): one index for each tenant and each namespace
//! of the prefix cache, of a bounded number of tokens, so that nobody's answers are guessed from, or timed by, another's. Answers come in
//! when they end, and take part once they are indexed. Used by `guesses`, beside a sequence's own text.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use penstock_proto::ids::TokenId;

use super::grams::hash_of;
use super::prompt_lookup::{GRAMS, Guess, Record};

/// Whose answers: a digest of tenant and namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct CorpusId(pub u64);

/// So many corpora are kept; the one that was longest without an answer goes first.
const MOST_CORPORA: usize = 256;

/// Stands between two texts. No vocabulary has it, so that no match goes across.
const BETWEEN: TokenId = TokenId(u32::MAX);

/// Tokens of a guess, at most: far more than a plan takes, with those in flight and those that a grammar forces before them.
const MOST_GUESSED: usize = 1024;

/// Of all tenants.
pub(super) struct Corpora {
    seed: u64,
    /// Of a part, of which a corpus has two.
    part_tokens: usize,
    corpora: HashMap<CorpusId, Corpus>,
    /// Answers that are not indexed yet, and how much of the first is.
    pending: VecDeque<(CorpusId, Vec<TokenId>)>,
    indexed: usize,
    pending_tokens: usize,
    /// Counts parts and uses.
    clock: u64,
}

/// The newest answers: when the young part is full the old one is forgotten, and the young one becomes old.
struct Corpus {
    young: Part,
    old: Part,
    used: u64,
}

#[derive(Default)]
struct Part {
    id: u64,
    tokens: Vec<TokenId>,
    /// By a gram's hash, the index behind its latest occurrence.
    behind: HashMap<u64, u32, BuildHasherDefault<Hashed>>,
}

/// Where a sequence's last tokens occurred in its tenant's corpus, and how good such guesses were for it.
pub(super) struct Recall {
    corpus: CorpusId,
    /// Tokens of the sequence that were looked at.
    seen: usize,
    found: Option<Place>,
    record: Record,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    part: u64,
    /// Index of the token behind the match: the guess.
    next: u32,
    length: u32,
}

impl Corpora {
    /// Each corpus has at most so many tokens.
    pub fn new(tokens: u32, seed: u64) -> Self {
        Self {
            seed,
            part_tokens: (tokens as usize / 2).max(1),
            corpora: HashMap::new(),
            pending: VecDeque::new(),
            indexed: 0,
            pending_tokens: 0,
            clock: 0,
        }
    }

    /// Takes an answer, with the few tokens before it that lead to it. What comes faster than it is indexed is left out.
    pub fn add(&mut self, corpus: CorpusId, text: &[TokenId]) {
        let text = &text[text.len().saturating_sub(self.part_tokens - 1)..];
        if text.len() > GRAMS[GRAMS.len() - 1] && self.pending_tokens + text.len() <= 2 * self.part_tokens {
            self.pending_tokens += text.len();
            self.pending.push_back((corpus, text.to_vec()));
        }
    }

    /// Indexes at most `most` tokens of what was added.
    pub fn advance(&mut self, most: usize) {
        let mut left = most;
        while left > 0
            && let Some((id, text)) = self.pending.pop_front()
        {
            if self.indexed == 0 {
                self.begin(id, text.len());
            }
            let Some(corpus) = self.corpora.get_mut(&id) else {
                // Forgotten meanwhile.
                self.finish(text.len());
                continue;
            };
            let end = text.len().min(self.indexed + left);
            for (place, &token) in (self.indexed + 1..).zip(&text[self.indexed..end]) {
                corpus.young.push(token, place, self.seed);
            }
            left -= end - self.indexed;
            self.indexed = end;
            if end == text.len() {
                corpus.young.tokens.push(BETWEEN);
                self.finish(end);
            } else {
                self.pending.push_front((id, text));
            }
        }
    }

    fn finish(&mut self, length: usize) {
        self.pending_tokens -= length;
        self.indexed = 0;
    }

    /// Makes room for a text of so many tokens.
    fn begin(&mut self, id: CorpusId, length: usize) {
        self.clock += 2;
        let clock = self.clock;
        if !self.corpora.contains_key(&id) && self.corpora.len() >= MOST_CORPORA {
            let oldest = self.corpora.iter().min_by_key(|(_, corpus)| corpus.used).map(|(id, _)| *id);
            oldest.and_then(|oldest| self.corpora.remove(&oldest));
        }
        let new = || Corpus {
            young: Part { id: clock, ..Part::default() },
            old: Part { id: clock + 1, ..Part::default() },
            used: clock,
        };
        let corpus = self.corpora.entry(id).or_insert_with(new);
        corpus.used = clock;
        if corpus.young.tokens.len() + length + 1 > self.part_tokens && !corpus.young.tokens.is_empty() {
            corpus.old = std::mem::replace(&mut corpus.young, Part { id: clock, ..Part::default() });
        }
    }

    /// Follows what is new of a sequence's tokens, of which `prompt_len` were not guessed at.
    pub fn follow(&self, recall: &mut Recall, tokens: &[TokenId], prompt_len: usize) {
        let corpus = self.corpora.get(&recall.corpus);
        // Of a prompt the end is enough: what is found there is what the answer begins behind.
        let from = recall.seen.max(prompt_len.min(tokens.len()).saturating_sub(1));
        for at in from..tokens.len() {
            recall.push(corpus, &tokens[..=at], at >= prompt_len, self.seed);
        }
        recall.seen = tokens.len();
    }

    /// What is expected to follow the sequence that `recall` follows, of `length` tokens now.
    pub fn guess(&self, recall: &Recall, length: usize) -> Option<Guess<'_>> {
        let found = recall.found.filter(|_| recall.seen == length)?;
        let part = self.corpora.get(&recall.corpus)?.part(found.part)?;
        let rest = &part.tokens[found.next as usize..];
        let rest = &rest[..rest.len().min(MOST_GUESSED)];
        let end = rest.iter().position(|token| *token == BETWEEN).unwrap_or(rest.len());
        let accuracies = recall.record.accuracies();
        Some(Guess {
            length: found.length,
            accuracies,
            rest: &rest[..end],
            goes_round: false,
            is_recalled: true,
        })
        .filter(|guess| !guess.rest.is_empty())
    }
}

impl Corpus {
    fn part(&self, id: u64) -> Option<&Part> {
        [&self.young, &self.old].into_iter().find(|part| part.id == id)
    }
}

impl Part {
    /// Adds the token that is the `place`-th of its text.
    fn push(&mut self, token: TokenId, place: usize, seed: u64) {
        self.tokens.push(token);
        for length in GRAMS {
            if let Some(from) = self.tokens.len().checked_sub(length).filter(|_| length <= place) {
                self.behind.insert(hash_of(seed, &self.tokens[from..]), self.tokens.len() as u32);
            }
        }
    }

    fn find(&self, text: &[TokenId], longer_than: u32, seed: u64) -> Option<Place> {
        GRAMS.into_iter().filter(|&length| length as u32 > longer_than && length <= text.len()).find_map(
            |length| {
                let gram = &text[text.len() - length..];
                let next = *self.behind.get(&hash_of(seed, gram))?;
                let is_it = self.tokens[..next as usize].ends_with(gram);
                is_it.then_some(Place { part: self.id, next, length: length as u32 })
            },
        )
    }
}

impl Recall {
    pub fn new(corpus: CorpusId) -> Self {
        Self { corpus, seen: 0, found: None, record: Record::default() }
    }

    pub fn corpus(&self) -> CorpusId {
        self.corpus
    }

    fn push(&mut self, corpus: Option<&Corpus>, tokens: &[TokenId], is_output: bool, seed: u64) {
        let Some(token) = tokens.last() else { return };
        self.found = self.found.and_then(|found| {
            let guess = *corpus?.part(found.part)?.tokens.get(found.next as usize)?;
            if is_output && guess != BETWEEN {
                self.record.add(found.length, guess == *token);
            }
            (guess == *token).then_some(Place { next: found.next + 1, length: found.length + 1, ..found })
        });
        let Some(corpus) = corpus else { return };
        for part in [&corpus.young, &corpus.old] {
            let longest = self.found.map_or(0, |found| found.length);
            self.found = part.find(tokens, longest, seed).or(self.found);
        }
    }
}

/// Of keys that are hashes.
#[derive(Default)]
struct Hashed(u64);

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

    fn ids(ids: impl IntoIterator<Item = u32>) -> Vec<TokenId> {
        ids.into_iter().map(TokenId).collect()
    }

    const MINE: CorpusId = CorpusId(1);
    const ANOTHERS: CorpusId = CorpusId(2);

    fn guessed(corpora: &Corpora, whose: CorpusId, text: &[TokenId]) -> Vec<u32> {
        let mut recall = Recall::new(whose);
        corpora.follow(&mut recall, text, text.len());
        let guess = corpora.guess(&recall, text.len());
        guess.map_or_else(Vec::new, |guess| guess.tokens().map(|token| token.0).collect())
    }

    fn with(whose: CorpusId, text: &[TokenId], tokens: u32) -> Corpora {
        let mut corpora = Corpora::new(tokens, 7);
        corpora.add(whose, text);
        corpora.advance(usize::MAX);
        corpora
    }

    #[test]
    fn what_followed_in_an_earlier_answer_is_guessed_up_to_its_end() {
        let corpora = with(MINE, &ids([1, 2, 3, 4, 5, 6]), 100);
        assert_eq!(guessed(&corpora, MINE, &ids([9, 9, 2, 3])), [4, 5, 6]);
        assert!(guessed(&corpora, MINE, &ids([9, 9, 5, 6])).is_empty(), "nothing followed");
        assert!(guessed(&corpora, MINE, &ids([9, 9, 9, 3])).is_empty(), "one token is no match");
    }

    #[test]
    fn nobody_is_guessed_for_from_anothers_answers() {
        let corpora = with(ANOTHERS, &ids(1..60), 1000);
        assert!(guessed(&corpora, MINE, &ids(1..20)).is_empty());
        assert!(!guessed(&corpora, ANOTHERS, &ids(1..20)).is_empty());
    }

    #[test]
    fn a_match_is_followed_and_what_it_was_worth_is_remembered() {
        let corpora = with(MINE, &ids(1..60), 1000);
        let mut recall = Recall::new(MINE);
        let mut text = ids([100, 101, 10, 11]);
        corpora.follow(&mut recall, &text, 4);
        let first = corpora.guess(&recall, text.len()).unwrap();
        assert_eq!(first.tokens().next(), Some(TokenId(12)));
        let before = first.accuracy();
        for next in 12..30 {
            text.push(TokenId(next));
            corpora.follow(&mut recall, &text, 4);
        }
        assert!(corpora.guess(&recall, text.len()).unwrap().accuracy() > before);
        for surprise in 200..240 {
            text.extend(ids([20, 21, surprise]));
            corpora.follow(&mut recall, &text, 4);
        }
        text.extend(ids([20, 21]));
        corpora.follow(&mut recall, &text, 4);
        assert!(corpora.guess(&recall, text.len()).unwrap().accuracy() < 0.1);
    }

    #[test]
    fn the_oldest_answers_are_forgotten_and_no_more_is_kept_than_was_asked_for() {
        let mut corpora = Corpora::new(64, 7);
        for answer in 0..50 {
            corpora.add(MINE, &ids((0..20).map(|at| answer * 20 + at)));
            corpora.advance(usize::MAX);
            let corpus = &corpora.corpora[&MINE];
            assert!(corpus.young.tokens.len() + corpus.old.tokens.len() <= 64);
        }
        assert!(guessed(&corpora, MINE, &ids([3, 4])).is_empty(), "of the first answer");
        assert!(!guessed(&corpora, MINE, &ids([983, 984])).is_empty(), "of the last one");
        for tenant in 0..2 * MOST_CORPORA as u64 {
            corpora.add(CorpusId(tenant), &ids(1..20));
            corpora.advance(usize::MAX);
        }
        assert_eq!(corpora.corpora.len(), MOST_CORPORA);
    }

    #[test]
    fn a_look_at_a_long_answer_does_not_walk_to_its_end() {
        let corpora = with(MINE, &ids(0..40_000), 100_000);
        let guess = guessed(&corpora, MINE, &ids([9, 10, 11]));
        assert_eq!((guess.len(), guess[0]), (MOST_GUESSED, 12));
        let at_the_end = guessed(&corpora, MINE, &ids([39_995, 39_996]));
        assert_eq!(at_the_end, [39_997, 39_998, 39_999]);
    }

    #[test]
    fn a_long_answer_is_indexed_in_parts() {
        let mut corpora = Corpora::new(10_000, 7);
        corpora.add(MINE, &ids(0..4000));
        corpora.advance(1000);
        assert!(guessed(&corpora, MINE, &ids([3000, 3001])).is_empty());
        assert_eq!(guessed(&corpora, MINE, &ids([500, 501]))[0], 502);
        corpora.advance(5000);
        assert_eq!(guessed(&corpora, MINE, &ids([3000, 3001]))[0], 3002);
        assert!(corpora.pending.is_empty() && corpora.pending_tokens == 0);
    }

    proptest! {
        #[test]
        fn a_guess_is_what_followed_the_same_tokens_in_one_answer(
            answers in prop::collection::vec(prop::collection::vec(0u32..4, 0..40), 0..20),
            text in prop::collection::vec(0u32..4, 1..40),
            pieces in 1usize..20,
        ) {
            let mut corpora = Corpora::new(128, 5);
            let answers: Vec<Vec<TokenId>> = answers.into_iter().map(ids).collect();
            for answer in &answers {
                corpora.add(MINE, answer);
                corpora.advance(pieces);
            }
            let text = ids(text);
            let mut recall = Recall::new(MINE);
            for end in 1..=text.len() {
                corpora.follow(&mut recall, &text[..end], 1);
            }
            if let Some(guess) = corpora.guess(&recall, text.len()) {
                let rest: Vec<TokenId> = guess.tokens().collect();
                let known = recall.found.map_or(0, |found| found.length as usize).min(text.len());
                let joined: Vec<TokenId> = text[text.len() - known..].iter().copied().chain(rest).collect();
                let is_in_one = answers.iter().any(|answer| answer.windows(joined.len()).any(|part| part == joined));
                prop_assert!(is_in_one, "{joined:?}");
            }
        }
    }
}
