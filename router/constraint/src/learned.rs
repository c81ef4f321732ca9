//! What the texts of a grammar found out, for the texts after them: states of its lexer and, where a state alone says what may
//! follow, masks. Grammars keep it, matchers begin from it and give it back when they are dropped.
//!
//! A text has a lexer of its own, which finds states as it needs them; to find one takes as long as to walk many tokens. When the
//! text ends, its lexer becomes the one that the next texts begin with, if it has more states and keeps within bounds. Now and
//! then a copy of it does while the text goes on, so that who comes later does not wait for a long text to end. So states
//! keep their numbers from text to text, and masks can be kept by them. Two texts that began together may have found other
//! states for the same numbers: only one of them is taken over.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use llguidance::{
    TokenParser,
    earley::{BiasComputer, ParserRecognizer},
    panic_utils,
    toktrie::{SimpleVob, TokTrie},
};

use crate::{
    automaton::{Automaton, Space},
    budget::Budget,
    places::Places,
};

/// Of one grammar.
pub(crate) struct Learned {
    budget: Arc<Budget>,
    /// Its text is one terminal: with a state of the lexer all is known.
    is_terminal: bool,
    known: Mutex<Known>,
    masks: Mutex<Masks>,
    places: Mutex<Places>,
    /// Taken from the budget for places.
    places_bytes: AtomicUsize,
    automaton: Mutex<Automaton>,
    /// Where there are no grammars within others.
    pub(crate) space: Option<Space>,
}

struct Known {
    /// At the start of a text.
    parser: Arc<TokenParser>,
    states: usize,
    /// Taken from the budget.
    bytes: usize,
    /// Lexers that were taken over.
    takeovers: u64,
}

#[derive(Default)]
struct Masks {
    by_state: HashMap<u32, SimpleVob>,
    bytes: usize,
}

/// What a text began with. Gives back what its parser found out when it is told to and when it is dropped.
pub(crate) struct Beginning {
    learned: Arc<Learned>,
    /// At the start; shares the lexer with the text's own parser.
    parser: TokenParser,
    /// As they were when it began, or when it was taken over itself.
    takeovers: u64,
    states: usize,
}

impl Beginning {
    pub(crate) fn learned(&self) -> &Arc<Learned> {
        &self.learned
    }

    /// Numbers of states below mean the same in other texts.
    pub(crate) fn states(&self) -> usize {
        self.states
    }

    /// What the text found out so far. It goes on with a lexer of its own, so a copy is taken over.
    pub(crate) fn teach(&mut self) {
        // What is hardly more is not worth the copy.
        let least = self.states + self.states / 8;
        if let Some(states) = self.learned.take_over(self, least, TokenParser::deep_clone) {
            self.takeovers += 1;
            self.states = states;
        }
    }
}

impl Learned {
    pub(crate) fn new(budget: Arc<Budget>, parser: TokenParser, is_terminal: bool) -> Arc<Learned> {
        let states = parser.parser.lexer_stats().num_states;
        let space = Space::of(parser.parser.grammar());
        let known = Known { parser: Arc::new(parser), states, bytes: 0, takeovers: 0 };
        Arc::new(Learned {
            automaton: Mutex::new(Automaton::new(budget.clone())),
            space,
            budget,
            is_terminal,
            known: Mutex::new(known),
            masks: Mutex::default(),
            places: Mutex::default(),
            places_bytes: AtomicUsize::new(0),
        })
    }

    /// Where texts are within terminals.
    pub(crate) fn places(&self) -> MutexGuard<'_, Places> {
        locked(&self.places)
    }

    /// Where texts have been.
    pub(crate) fn automaton(&self) -> MutexGuard<'_, Automaton> {
        locked(&self.automaton)
    }

    /// Whether so many bytes more may be kept with the places.
    pub(crate) fn pays(&self, bytes: usize) -> bool {
        let pays = self.places_bytes.load(Ordering::Relaxed) + bytes <= self.budget.most_bytes
            && self.budget.take(bytes);
        if pays {
            self.places_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        pays
    }

    pub(crate) fn is_paid_back(&self, bytes: usize) {
        self.places_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.budget.give_back(bytes);
    }

    /// A parser for a new text.
    pub(crate) fn begin(self: &Arc<Learned>) -> (TokenParser, Beginning) {
        let (start, takeovers, states) = {
            let known = locked(&self.known);
            (known.parser.clone(), known.takeovers, known.states)
        };
        let mut parser = start.deep_clone();
        let beginning = Beginning { learned: self.clone(), parser: parser.clone(), takeovers, states };
        if self.is_terminal {
            let computer = parser.bias_computer.clone();
            parser.bias_computer = Arc::new(ByState { computer, learned: self.clone(), states });
        }
        (parser, beginning)
    }

    /// If the parser's lexer has more states than `least` and no other was taken over meanwhile: how many.
    fn take_over(
        &self,
        beginning: &Beginning,
        least: usize,
        parser: impl FnOnce(&TokenParser) -> TokenParser,
    ) -> Option<usize> {
        // After a panic its lexer is gone, and asking for it panics.
        let stats = panic_utils::catch_unwind(std::panic::AssertUnwindSafe(|| {
            Ok(beginning.parser.parser.lexer_stats())
        }));
        let stats = stats.ok()?;
        // As the matcher's own bound counts them.
        let bytes = stats.num_bytes;
        let is_more = stats.num_states > least;
        let Budget { most_states, most_bytes, .. } = *self.budget;
        if stats.error || !is_more || stats.num_states > most_states || bytes > most_bytes {
            return None;
        }
        if locked(&self.known).takeovers != beginning.takeovers {
            return None;
        }
        // A copy takes long, and who begins a text must not wait for it.
        let parser = Arc::new(parser(&beginning.parser));
        let mut known = locked(&self.known);
        let more = bytes.saturating_sub(known.bytes);
        if known.takeovers != beginning.takeovers || !self.budget.take(more) {
            return None;
        }
        known.bytes += more;
        known.states = stats.num_states;
        known.takeovers += 1;
        let before = std::mem::replace(&mut known.parser, parser);
        drop(known);
        drop(before);
        Some(stats.num_states)
    }

    fn keep(&self, state: u32, mask: &SimpleVob) {
        let bytes = size_of_val(mask.as_slice());
        let mut masks = locked(&self.masks);
        if masks.bytes + bytes <= self.budget.most_bytes && self.budget.take(bytes) {
            masks.bytes += bytes;
            if masks.by_state.insert(state, mask.clone()).is_some() {
                masks.bytes -= bytes;
                self.budget.give_back(bytes);
            }
        }
    }
}

impl Drop for Learned {
    fn drop(&mut self) {
        let places = self.places_bytes.load(Ordering::Relaxed);
        self.budget.give_back(locked(&self.known).bytes + locked(&self.masks).bytes + places);
    }
}

impl Drop for Beginning {
    fn drop(&mut self) {
        self.learned.take_over(self, self.states, TokenParser::clone);
    }
}

/// Computes masks of a text that is one terminal, or finds them by the lexer's state.
struct ByState {
    computer: Arc<dyn BiasComputer>,
    learned: Arc<Learned>,
    /// Numbers of states below mean the same in other texts.
    states: usize,
}

impl BiasComputer for ByState {
    fn compute_bias(&self, recognizer: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
        let state = recognizer.lexer_state();
        if !start.is_empty() || state.is_dead() || state.as_usize() >= self.states {
            return self.computer.compute_bias(recognizer, start);
        }
        if let Some(known) = locked(&self.learned.masks).by_state.get(&state.as_u32()) {
            return known.clone();
        }
        let mask = self.computer.compute_bias(recognizer, start);
        // Of a state that is alive and of no lazy terminal it says whether the lexer has come to one of its limits.
        if recognizer.lexer_mut().subsume_possible(state) {
            self.learned.keep(state.as_u32(), &mask);
        }
        mask
    }

    fn trie(&self) -> &TokTrie {
        self.computer.trie()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What the mutexes guard is consistent after every statement that may panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::budget::SHARE;
    use crate::{Cancel, Compiler, Grammar, Limits, Matcher, Source, Token};

    const EOS: u32 = 300;

    /// Bytes and some words.
    fn compiler(limits: Limits) -> Compiler {
        let mut tokens: Vec<Token> =
            (0..=255_u8).map(|byte| Token { bytes: vec![byte], special: false }).collect();
        let words =
            ["ab", "abc", "\": ", "\", \"", "the", " th", "true", "12", "345", "0.", "{\"", "\"}", "city"];
        tokens.extend(words.map(|word| Token { bytes: word.into(), special: false }));
        Compiler::new(tokens, EOS as usize + 1, &[EOS], limits).unwrap()
    }

    fn sources() -> Vec<Source> {
        vec![
            Source::Regex("([a-z]{2,9} ){40}".into()),
            Source::Regex("(ab|cd)*[0-9]{3,30}(the| th)?".into()),
            Source::Regex("[ab]*a[ab]{6}c".into()),
            Source::Choice(["abcab", "abcity", "true", "truth", "12345", "the"].map(String::from).into()),
            Source::JsonSchema(
                json!({"type": "array", "minItems": 3, "items": {"type": "object", "properties": {
                "city": {"type": "string", "maxLength": 9}, "the": {"type": "integer", "maximum": 345},
                "ab": {"enum": ["true", "abc", "ab"]}}, "required": ["city"], "additionalProperties": false}}),
            ),
            Source::JsonSchema(
                json!({"anyOf": [{"type": "string", "pattern": "^(a|b{2,5})*$"}, {"type": "number"}]}),
            ),
            Source::Lark("start: (A | B)+\nA: /[a-f]{2,7}/\nB: /[0-9]+;/\n".into()),
        ]
    }

    struct Random(u64);

    impl Random {
        fn below(&mut self, end: usize) -> usize {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((self.0 >> 33) as usize * end) >> 31
        }
    }

    fn mask(matcher: &mut Matcher, words: usize) -> Vec<u32> {
        let mut mask = vec![0; words];
        matcher.mask(&mut mask).unwrap();
        mask
    }

    /// A token that the mask has; the end only if there is no other.
    fn chosen(mask: &[u32], random: &mut Random) -> Option<u32> {
        let allowed: Vec<u32> =
            (0..EOS).filter(|token| mask[*token as usize / 32] >> (token % 32) & 1 == 1).collect();
        (!allowed.is_empty()).then(|| allowed[random.below(allowed.len())])
    }

    fn known(grammar: &Grammar) -> (u64, usize, usize) {
        let learned = grammar.learned();
        let known = locked(&learned.known);
        (known.takeovers, known.states, locked(&learned.masks).by_state.len())
    }

    fn lexer(grammar: &Grammar) -> (u64, usize) {
        let (takeovers, states, _) = known(grammar);
        (takeovers, states)
    }

    #[test]
    fn texts_that_begin_with_what_others_learned_have_the_same_masks() {
        let limits = Limits::default();
        let forgetful = Limits { cache_bytes: 0, ..Limits::default() };
        let (learning, fresh) = (compiler(limits), compiler(forgetful));
        for source in sources() {
            let mut random = Random(7);
            let (grammar, other) = (
                learning.compile(source.clone(), &Cancel::new()).unwrap(),
                fresh.compile(source.clone(), &Cancel::new()).unwrap(),
            );
            let mut computed = (0, 0);
            for round in 0..8 {
                // Some begin together and end one after the other, some begin before others end.
                let mut texts: BTreeMap<usize, (Matcher, Matcher)> =
                    (0..3).map(|text| (text, (grammar.matcher(), other.matcher()))).collect();
                for step in 0..60 {
                    let text = random.below(4);
                    if step % 16 == 15 {
                        texts.insert(text, (grammar.matcher(), other.matcher()));
                    }
                    let Some((learned, plain)) = texts.get_mut(&text) else { continue };
                    let expected = mask(plain, grammar.mask_words());
                    assert_eq!(mask(learned, grammar.mask_words()), expected, "round {round} of {source:?}");
                    match chosen(&expected, &mut random) {
                        Some(token) => {
                            learned.advance(token).unwrap();
                            plain.advance(token).unwrap();
                        }
                        None => drop(texts.remove(&text)),
                    }
                }
                for (learned, plain) in texts.values() {
                    computed.0 += learned.masks_computed();
                    computed.1 += plain.masks_computed();
                }
            }
            assert!(grammar.learned().automaton().len() > 0, "no text knew where it was in {source:?}");
            let places = grammar.learned().places().len();
            let is_within = !matches!(source, Source::Choice(_));
            assert!(places > 0 || !is_within, "no text was within a terminal of {source:?}");
            assert!(!is_within || computed.0 < computed.1, "{computed:?} masks of {source:?}");
            let (takeovers, _, masks) = known(&grammar);
            // Of a list of texts the first mask finds every state.
            let has_all = matches!(source, Source::Choice(_));
            assert!(takeovers > 0 || has_all, "nothing was learned of {source:?}");
            assert_eq!(masks > 0, matches!(source, Source::Regex(_) | Source::Choice(_)), "{source:?}");
            assert_eq!((known(&other).0, known(&other).2), (0, 0), "there was no memory for it");
        }
    }

    #[test]
    fn of_texts_that_began_together_one_is_taken_over() {
        let grammar = compiler(Limits::default()).compile(sources()[0].clone(), &Cancel::new()).unwrap();
        let begun = lexer(&grammar);
        let mut texts: Vec<Matcher> = (0..2).map(|_| grammar.matcher()).collect();
        for (text, letter) in texts.iter_mut().zip(["abab the", "thethe ab"]) {
            for byte in letter.bytes() {
                mask(text, grammar.mask_words());
                text.advance(u32::from(byte)).unwrap();
            }
        }
        assert_eq!(lexer(&grammar), begun, "they teach nothing so soon");
        texts.pop();
        let first = lexer(&grammar);
        assert!(first.0 == 1 && first.1 > begun.1, "{first:?}");
        texts.pop();
        assert_eq!(lexer(&grammar), first, "its states have other numbers");
    }

    #[test]
    fn a_text_that_goes_on_teaches_those_that_begin_meanwhile() {
        let grammar = compiler(Limits::default()).compile(sources()[0].clone(), &Cancel::new()).unwrap();
        let begun = lexer(&grammar);
        let mut long = grammar.matcher();
        let take = |text: &mut Matcher, letters: &str| {
            for byte in letters.bytes() {
                mask(text, grammar.mask_words());
                text.advance(u32::from(byte)).unwrap();
            }
        };
        // It has a mask for each letter but the first, whose mask is the grammar's.
        take(&mut long, &"the ab ".repeat(4));
        assert_eq!(lexer(&grammar), begun);
        take(&mut long, &"cd ef ".repeat(2));
        let taught = lexer(&grammar);
        assert!(taught.0 == 1 && taught.1 > begun.1, "{taught:?} after {begun:?}");
        // What it finds then is its own: another's lexer stays as it is.
        let mut other = grammar.matcher();
        take(&mut long, "abcdefgh ");
        assert_eq!(lexer(&grammar), taught);
        take(&mut other, "the abcd ");
        // It ends first; so what the other found out under the same numbers is not taken over.
        take(&mut long, &"zz yyyyyyyyy ".repeat(3));
        let later = lexer(&grammar);
        assert!(later.0 == 2, "the same text again: {later:?}");
        take(&mut other, &"qqqqqq ".repeat(8));
        drop(other);
        assert_eq!(lexer(&grammar), later);
    }

    /// Two have found other states for the same numbers; those that the others go on from are not its own.
    #[test]
    fn a_text_knows_nothing_of_states_that_were_taken_over_while_it_goes_on() {
        let source = Source::Regex("x([ab]{2,9} |[cd]{3,7};|[ef]{5,9}!){60}".into());
        let forgetful = Limits { cache_bytes: 0, ..Limits::default() };
        let plain = compiler(forgetful).compile(source.clone(), &Cancel::new()).unwrap();
        let grammar = compiler(Limits::default()).compile(source, &Cancel::new()).unwrap();
        let take = |text: &mut Matcher, letters: &str| {
            for byte in letters.bytes() {
                mask(text, grammar.mask_words());
                text.advance(u32::from(byte)).unwrap();
            }
        };
        // It begins with the fewest states, and finds some that it numbers as it likes.
        let mut early = grammar.matcher();
        take(&mut early, "xefeffe!");
        for _ in 0..3 {
            take(&mut grammar.matcher(), "xababab cdcdcd;ababababb abab cdcd;ab ab cdcdcd;");
        }
        let mut expected = plain.matcher();
        take(&mut expected, "xefeffe!");
        for letter in "ababab cdcdcd;abababab abab cdcd;ababa cdcdc;efefef!".bytes() {
            assert_eq!(mask(&mut early, grammar.mask_words()), mask(&mut expected, grammar.mask_words()));
            early.advance(u32::from(letter)).unwrap();
            expected.advance(u32::from(letter)).unwrap();
        }
    }

    /// Each text of this one finds states that no other needs.
    #[test]
    fn what_is_learned_is_bounded_and_given_back() {
        let limits = Limits { cache_bytes: 4 << 20, lexer_states: 20_000, ..Limits::default() };
        let compiler = compiler(limits);
        let source = Source::Regex("[ab]*a[ab]{60}c".into());
        let grammar = compiler.compile(source, &Cancel::new()).unwrap();
        let budget = grammar.learned().budget.clone();
        let whole = budget.left() + locked(&grammar.learned().known).bytes;
        let mut random = Random(3);
        for length in [10, 100, 300, 3_000] {
            let mut matcher = grammar.matcher();
            for _ in 0..length {
                mask(&mut matcher, grammar.mask_words());
                matcher.advance(u32::from(b"ab"[random.below(2)])).unwrap();
            }
        }
        let (takeovers, states, _) = known(&grammar);
        assert!(takeovers > 0 && states <= 20_000 / SHARE, "{takeovers} {states}");
        assert!(budget.left() < whole);
        drop(grammar);
        drop(compiler);
        assert_eq!(budget.left(), whole);
    }
}
