//! Computes masks, and takes whole slices of the vocabulary at once where the place allows it.
//!
//! A mask is made by walking the trie of all tokens, which takes a millisecond for 128,000 of them where most may follow: within
//! strings. There, whole sets of characters may follow for some length. The vocabulary is cut into slices by the classes of characters in
//! their tokens. For a class, the length that may follow is found from the structure of the lexer's state, or by looking ahead along all
//! of the class's characters. Tokens of these classes up to that length are allowed without a walk; longer ones and the other slices are walked.
//! The mask is the one that a walk of the whole trie gives: a byte that ends no terminal asks nothing of the parser but the lexer's state.

use std::{
    collections::HashMap,
    ops::Range,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use llguidance::{
    derivre::StateID,
    earley::{BiasComputer, ParserRecognizer},
    toktrie::{SimpleVob, TokEnv, TokTrie},
};

use crate::{places::End, trie::Trie};

/// A set of character classes: bits by class.
type Classes = u8;
/// Classes of ASCII characters by index, and last the characters beyond ASCII.
const CLASSES: usize = 6;
const LOWER: usize = 0;
const UPPER: usize = 1;
const SPACE: usize = 2;
const PUNCTUATION: usize = 3;
/// Quotes, backslashes and control characters: what JSON's strings escape.
const ESCAPED: usize = 4;
const BEYOND_ASCII: usize = 5;

const ALL: Classes = (1 << CLASSES) - 1;
/// What JSON's strings have unescaped.
const UNESCAPED: Classes = ALL & !(1 << ESCAPED);
const ALPHANUMERIC: Classes = 1 << LOWER | 1 << UPPER;

/// Lengths of text that every lexer can be asked for; see [`lexemes`].
const LENGTHS: [u8; 5] = [2, 4, 6, 10, 16];
/// Steps of the lexer to compare one of these with its state.
const STRUCTURE_FUEL: u64 = 1000;
/// Of this length the tokens beyond are few enough to be walked.
const LONG: u8 = 10;
/// How far to look ahead, in characters and in lexer states.
const MOST_AHEAD: u8 = 16;
const MOST_STATES: usize = 400;
/// The longest that looking ahead may take, as a part of what it may save: a walk of all tokens. Where it ends early, more is walked; the mask is
/// the same.
const PART: u32 = 4;
/// Of such a walk before it was measured.
const WALK: Duration = Duration::from_millis(1);
/// Unions of slices that are kept, of 16 kB each for 128,000 tokens.
const MOST_UNIONS: usize = 64;

fn class_of(byte: u8) -> usize {
    match byte {
        b'a'..=b'z' | b'0'..=b'9' => LOWER,
        b'A'..=b'Z' => UPPER,
        b' ' => SPACE,
        b'"' | b'\\' | 0..0x20 | 0x7f => ESCAPED,
        0x80.. => BEYOND_ASCII,
        _ => PUNCTUATION,
    }
}

/// Lexemes that every lexer has beside its grammar's, to compare with its states: texts of [`UNESCAPED`] up to each of [`LENGTHS`] and of any
/// length, then the same of [`ALPHANUMERIC`].
pub(crate) fn lexemes() -> Vec<String> {
    let of = |class: &str| {
        let up_to = LENGTHS.map(|most| format!("{class}{{1,{most}}}"));
        [up_to.to_vec(), vec![format!("{class}+")]].concat()
    };
    [of(r#"[^"\\\x00-\x1F\x7F]"#), of("[a-zA-Z0-9]")].concat()
}
const OF_UNESCAPED: usize = 0;
const OF_ALPHANUMERIC: usize = LENGTHS.len() + 1;

/// The longest of these lexemes that may follow, as far as the structure of the state's expressions shows it.
fn by_structure(recognizer: &mut ParserRecognizer<'_>, first: usize) -> u8 {
    let state = recognizer.lexer_state();
    let lexer = recognizer.lexer_mut();
    let mut may_follow =
        |index: usize| lexer.check_subsume(state, first + index, STRUCTURE_FUEL, None).unwrap_or(false);
    if may_follow(LENGTHS.len()) {
        return u8::MAX;
    }
    let (mut least, mut most) = (0, LENGTHS.len());
    while least < most {
        let middle = (least + most) / 2;
        if may_follow(middle) {
            least = middle + 1;
        } else {
            most = middle;
        }
    }
    if least == 0 { 0 } else { LENGTHS[least - 1] }
}

fn is_within_terminal(recognizer: &mut ParserRecognizer<'_>, state: StateID, byte: u8) -> bool {
    let next = recognizer.lexer_mut().transition_start_state(state, Some(byte), &None);
    !next.is_dead() && !next.has_lowest_match()
}

/// The vocabulary in slices.
pub(crate) struct Slicer {
    env: TokEnv,
    all: Trie,
    slices: Vec<Slice>,
    alphabet: Alphabet,
    /// By the length that is allowed of each slice.
    unions: Mutex<HashMap<Vec<u8>, SimpleVob>>,
    most_time: Duration,
}

/// Tokens whose characters are of the same classes.
struct Slice {
    /// None for tokens that begin or end within a character. Those with escaped characters count as of all classes.
    classes: Option<Classes>,
    /// By their length in characters.
    tokens: Vec<u32>,
    /// How many tokens have at most as many characters as the index.
    up_to: Vec<usize>,
    trie: Trie,
}

/// What may follow a state of the lexer.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Reach {
    /// Every text of these classes,
    classes: Classes,
    /// of at most so many characters,
    characters: u8,
    /// and no longer one.
    is_end: bool,
}

impl Slicer {
    pub(crate) fn new(env: TokEnv) -> Slicer {
        let trie = env.tok_trie();
        let mut by_classes: HashMap<Option<Classes>, Vec<(u8, u32)>> = HashMap::new();
        for token in 0..trie.vocab_size() as u32 {
            let bytes = trie.token(token);
            if bytes.is_empty() {
                continue;
            }
            let characters = bytes.iter().filter(|byte| !(0x80..0xc0).contains(*byte)).count();
            let classes = std::str::from_utf8(bytes).is_ok().then(|| {
                let classes = bytes.iter().fold(0, |classes, byte| classes | 1 << class_of(*byte));
                if classes >> ESCAPED & 1 == 1 { ALL } else { classes }
            });
            let length = u8::try_from(characters).unwrap_or(u8::MAX).max(1);
            by_classes.entry(classes).or_default().push((length, token));
        }
        let all: Vec<(u8, u32)> = by_classes.values().flatten().copied().collect();
        let all = Trie::new(&all, trie);
        let slices =
            by_classes.into_iter().map(|(classes, tokens)| Slice::new(classes, tokens, trie)).collect();
        Slicer {
            slices,
            all,
            alphabet: Alphabet::new(),
            unions: Mutex::default(),
            most_time: WALK / PART,
            env,
        }
    }

    /// Measures a walk of all tokens, where a parser is that takes any text.
    pub(crate) fn measure(&mut self, recognizer: &mut ParserRecognizer<'_>) {
        let walks = (0..3).map(|_| {
            let began = Instant::now();
            self.all.walk(recognizer, &mut self.env.tok_trie().alloc_token_set(), 0);
            began.elapsed()
        });
        // The first one has the lexer's states to make.
        self.most_time = walks.min().unwrap_or(WALK) / PART;
    }

    fn reaches(&self, recognizer: &mut ParserRecognizer<'_>) -> Vec<Reach> {
        let state = recognizer.lexer_state();
        let mut reaches = Vec::new();
        if recognizer.lexer_mut().subsume_possible(state) {
            for (classes, first) in [(UNESCAPED, OF_UNESCAPED), (ALPHANUMERIC, OF_ALPHANUMERIC)] {
                let characters = by_structure(recognizer, first);
                if characters > 0 {
                    reaches.push(Reach { classes, characters, is_end: false });
                }
                if classes == UNESCAPED && characters >= LONG {
                    return reaches;
                }
            }
        }
        let deadline = Instant::now() + self.most_time;
        let mut classes = 0;
        for class in 0..CLASSES {
            // Most often one character tells.
            let first = self.alphabet.ascii.get(class).map_or(0xc2, |bytes| bytes[0]);
            if !is_within_terminal(recognizer, state, first) {
                continue;
            }
            let mut ahead = LookAhead::new(state, 1 << class, deadline);
            ahead.step(recognizer, &self.alphabet, &[state]);
            if ahead.ended == 0 && !ahead.is_late {
                classes |= 1 << class;
            }
        }
        let is_known = |classes: Classes, reaches: &[Reach]| {
            reaches.iter().any(|reach| reach.has(classes) && reach.characters >= LONG)
        };
        while classes != 0 && !is_known(classes, &reaches) {
            let mut ahead = LookAhead::new(state, classes, deadline);
            let reach = ahead.reach(recognizer, &self.alphabet);
            if reach.characters == 0 {
                break;
            }
            reaches.push(reach);
            if reach.is_end {
                break;
            }
            let rest = classes & !ahead.ended;
            classes = if rest != 0 && rest != classes {
                rest
            } else {
                // What most often leads to where others end.
                let rare = [PUNCTUATION, BEYOND_ASCII, SPACE, UPPER];
                let rare = rare.into_iter().find(|class| classes >> class & 1 == 1);
                rare.map_or(0, |class| classes & !(1 << class))
            };
        }
        reaches
    }

    /// The tokens that stay within the terminal, and those that end it.
    pub(crate) fn within(&self, recognizer: &mut ParserRecognizer<'_>) -> (SimpleVob, Vec<End>) {
        let mut ends = Vec::new();
        let mask = self.compute(recognizer, |trie, recognizer, mask, known| {
            trie.walk_within(recognizer, mask, known, &mut ends);
        });
        (mask, ends)
    }

    /// Takes slices where it may, and has the others walked: those of their tokens that are longer than so many characters.
    fn compute(
        &self,
        recognizer: &mut ParserRecognizer<'_>,
        mut walk: impl FnMut(&Trie, &mut ParserRecognizer<'_>, &mut SimpleVob, u8),
    ) -> SimpleVob {
        let reaches = if recognizer.lexer_state().is_dead() { Vec::new() } else { self.reaches(recognizer) };
        if reaches.is_empty() {
            let mut mask = self.trie().alloc_token_set();
            walk(&self.all, recognizer, &mut mask, 0);
            return mask;
        }
        let lengths: Vec<u8> = self.slices.iter().map(|slice| slice.reached(&reaches)).collect();
        let mut mask = self.union(&lengths);
        for (slice, length) in self.slices.iter().zip(lengths) {
            if length < slice.longest() && !slice.ends(&reaches) {
                walk(&slice.trie, recognizer, &mut mask, length);
            }
        }
        mask
    }

    /// The tokens of each slice up to a length.
    fn union(&self, lengths: &[u8]) -> SimpleVob {
        let mut unions = self.unions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(union) = unions.get(lengths) {
            return union.clone();
        }
        let mut union = self.trie().alloc_token_set();
        for (slice, length) in self.slices.iter().zip(lengths) {
            slice.up_to(*length).iter().for_each(|token| union.allow_token(*token));
        }
        if unions.len() == MOST_UNIONS {
            unions.clear();
        }
        unions.insert(lengths.to_vec(), union.clone());
        union
    }
}

impl BiasComputer for Slicer {
    fn compute_bias(&self, recognizer: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
        if !start.is_empty() {
            let mut mask = self.trie().alloc_token_set();
            self.trie().add_bias(recognizer, &mut mask, start);
            return mask;
        }
        self.compute(recognizer, Trie::walk)
    }

    fn trie(&self) -> &TokTrie {
        self.env.tok_trie()
    }
}

impl Slice {
    fn new(classes: Option<Classes>, mut tokens: Vec<(u8, u32)>, trie: &TokTrie) -> Slice {
        tokens.sort_unstable();
        let longest = tokens.last().map_or(0, |(length, _)| *length);
        let up_to = (0..=longest).map(|most| tokens.partition_point(|(length, _)| *length <= most)).collect();
        Slice {
            classes,
            trie: Trie::new(&tokens, trie),
            tokens: tokens.into_iter().map(|(_, token)| token).collect(),
            up_to,
        }
    }

    fn longest(&self) -> u8 {
        (self.up_to.len() - 1) as u8
    }

    fn up_to(&self, length: u8) -> &[u32] {
        &self.tokens[..self.up_to[usize::from(length)]]
    }

    fn is_of(&self, reach: &Reach) -> bool {
        self.classes.is_some_and(|classes| reach.has(classes))
    }

    /// All of its tokens up to this length may follow.
    fn reached(&self, reaches: &[Reach]) -> u8 {
        let of_it = reaches.iter().filter(|reach| self.is_of(reach));
        of_it.map(|reach| reach.characters).max().unwrap_or(0).min(self.longest())
    }

    /// None that is longer may follow.
    fn ends(&self, reaches: &[Reach]) -> bool {
        reaches.iter().any(|reach| reach.is_end && self.is_of(reach))
    }
}

impl Reach {
    fn has(&self, classes: Classes) -> bool {
        classes & !self.classes == 0
    }
}

/// The characters of each class as bytes.
struct Alphabet {
    ascii: [Vec<u8>; BEYOND_ASCII],
}

/// First bytes of longer characters, and what follows them. Source: The Unicode Standard, table 3-7.
const FIRST_BYTES: [(Range<u8>, Rest); 8] = [
    (0xc2..0xe0, Rest::Any(1)),
    (0xe0..0xe1, Rest::From(0xa0..0xc0, 1)),
    (0xe1..0xed, Rest::Any(2)),
    (0xed..0xee, Rest::From(0x80..0xa0, 1)),
    (0xee..0xf0, Rest::Any(2)),
    (0xf0..0xf1, Rest::From(0x90..0xc0, 2)),
    (0xf1..0xf4, Rest::Any(3)),
    (0xf4..0xf5, Rest::From(0x80..0x90, 2)),
];

/// The bytes that are left of a character.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Rest {
    /// So many, each from 0x80 to 0xbf.
    Any(u8),
    /// One of these, and so many more.
    From(Range<u8>, u8),
}

impl Alphabet {
    fn new() -> Alphabet {
        let mut ascii: [Vec<u8>; BEYOND_ASCII] = std::array::from_fn(|_| Vec::new());
        for byte in (0..0x80).rev() {
            ascii[class_of(byte)].push(byte);
        }
        Alphabet { ascii }
    }
}

/// The lexer's states along all texts of some classes, breadth first, one character after the other.
struct LookAhead {
    classes: Classes,
    characters: u8,
    /// After these characters, without those that were met before.
    states: Vec<StateID>,
    /// After how many characters each state was met first, and what was left of the last one then.
    met: HashMap<(StateID, Rest), u8>,
    /// Classes of which some character may not follow.
    ended: Classes,
    /// A state was met again after more characters.
    is_cyclic: bool,
    /// With thousands of terminals one byte can take a millisecond.
    deadline: Instant,
    /// It has passed, so the last character was not looked at as a whole.
    is_late: bool,
}

impl LookAhead {
    fn new(state: StateID, classes: Classes, deadline: Instant) -> LookAhead {
        LookAhead {
            classes,
            characters: 0,
            states: vec![state],
            met: HashMap::from([((state, Rest::Any(0)), 0)]),
            ended: 0,
            is_cyclic: false,
            deadline,
            is_late: false,
        }
    }

    fn reach(&mut self, recognizer: &mut ParserRecognizer<'_>, alphabet: &Alphabet) -> Reach {
        let classes = self.classes;
        while self.characters < MOST_AHEAD && self.met.len() < MOST_STATES {
            let states = std::mem::take(&mut self.states);
            self.step(recognizer, alphabet, &states);
            if self.is_late {
                break;
            }
            if self.ended != 0 {
                let is_end = !self.is_cyclic && self.is_end(recognizer, alphabet, &states);
                return Reach { classes, characters: self.characters, is_end };
            }
            self.characters += 1;
            if self.states.is_empty() {
                return Reach { classes, characters: u8::MAX, is_end: false };
            }
        }
        Reach { classes, characters: self.characters, is_end: false }
    }

    /// Looks one character further than `states`; not to the end once every class has ended.
    fn step(&mut self, recognizer: &mut ParserRecognizer<'_>, alphabet: &Alphabet, states: &[StateID]) {
        for &state in states {
            for (class, bytes) in alphabet.ascii.iter().enumerate() {
                self.follow(recognizer, state, class, bytes.iter().copied(), Rest::Any(0));
            }
            let mut within = Vec::new();
            for (bytes, rest) in FIRST_BYTES {
                within.extend(self.follow(recognizer, state, BEYOND_ASCII, bytes, rest));
            }
            while let Some((state, rest)) = within.pop() {
                let (bytes, left) = match rest {
                    Rest::Any(left) => (0x80..0xc0, left - 1),
                    Rest::From(bytes, left) => (bytes, left),
                };
                within.extend(self.follow(recognizer, state, BEYOND_ASCII, bytes, Rest::Any(left)));
            }
            if self.ended == self.classes || self.is_late {
                return;
            }
        }
    }

    /// Takes bytes of a class that has not ended, and returns the new states within a character.
    fn follow(
        &mut self,
        recognizer: &mut ParserRecognizer<'_>,
        state: StateID,
        class: usize,
        bytes: impl Iterator<Item = u8>,
        rest: Rest,
    ) -> Vec<(StateID, Rest)> {
        let mut within = Vec::new();
        if self.classes & !self.ended & 1 << class == 0 {
            return within;
        }
        self.is_late = self.is_late || Instant::now() >= self.deadline;
        if self.is_late {
            return within;
        }
        let lexer = recognizer.lexer_mut();
        let is_whole = rest == Rest::Any(0);
        let characters = self.characters + u8::from(is_whole);
        let mut last = StateID::DEAD;
        for byte in bytes {
            let next = lexer.transition_start_state(state, Some(byte), &None);
            if next.is_dead() || next.has_lowest_match() {
                self.ended |= 1 << class;
                return Vec::new();
            }
            if next == last {
                continue;
            }
            last = next;
            if let Some(first) = self.met.get(&(next, rest.clone())) {
                self.is_cyclic |= *first < characters;
                continue;
            }
            self.met.insert((next, rest.clone()), characters);
            if is_whole {
                self.states.push(next);
            } else {
                within.push((next, rest.clone()));
            }
        }
        within
    }

    /// No character of the classes may follow any of these states, nor may a terminal end there.
    fn is_end(&self, recognizer: &mut ParserRecognizer<'_>, alphabet: &Alphabet, states: &[StateID]) -> bool {
        let lexer = recognizer.lexer_mut();
        let mut is_dead = |state: StateID, byte: u8| {
            lexer.try_lexeme_end(state).is_error()
                && lexer.transition_start_state(state, Some(byte), &None).is_dead()
        };
        states.iter().all(|&state| {
            (0..CLASSES).filter(|class| self.classes >> class & 1 == 1).all(|class| {
                match alphabet.ascii.get(class) {
                    Some(bytes) => bytes.iter().all(|byte| is_dead(state, *byte)),
                    None => (0xc2..0xf5).all(|byte| is_dead(state, byte)),
                }
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use llguidance::{TokenParser, api::TopLevelGrammar};
    use serde_json::json;

    use super::*;
    use crate::{Limits, Token, guidance::with_options, vocabulary::Vocabulary};

    const EOS: u32 = 0;
    const PIECES: [&str; 24] = [
        "a", "the", "Zeta", "9", "07", " ", "  ", "-", "/", "@", ".", "é", "д", "日本", "🙂", "\"", "\\",
        "\n", "n", ": ", "\", \"", "}", "{", "x",
    ];

    /// Every byte, every two or three of the pieces, and long tokens.
    fn vocabulary() -> Vocabulary {
        let mut texts: Vec<Vec<u8>> = (0..=254_u8).map(|byte| vec![byte]).collect();
        for one in PIECES {
            texts.push(one.into());
            for two in PIECES {
                texts.push([one, two].concat().into());
                texts.extend(PIECES.map(|three| [one, two, three].concat().into()));
            }
            texts.extend((5..40).map(|count| one.repeat(count).into()));
        }
        texts.extend(["日".as_bytes()[..2].to_vec(), [&b"a"[..], &"🙂".as_bytes()[..3]].concat()]);
        texts.sort();
        texts.dedup();
        // One of them twice.
        texts.push("the".into());
        let end = Token { bytes: b"<end>".into(), special: true };
        let tokens: Vec<Token> =
            [end].into_iter().chain(texts.into_iter().map(|bytes| Token { bytes, special: false })).collect();
        let size = tokens.len();
        Vocabulary::new(tokens, size, &[EOS], &Limits::default(), None).unwrap()
    }

    fn grammars() -> Vec<TopLevelGrammar> {
        let strings = [
            json!({}),
            json!({"maxLength": 3}),
            json!({"maxLength": 12}),
            json!({"minLength": 2, "maxLength": 40}),
            json!({"pattern": "^[^/]+/[^/]+$"}),
            json!({"pattern": "[a-zA-Z0-9_]{4}"}),
            json!({"pattern": "[a-zA-Z0-9_]{4}", "maxLength": 9}),
            json!({"pattern": "^[a-zA-Z0-9]{8}-[a-zA-Z0-9]{4}$"}),
            json!({"pattern": "^[^@]{1,6}@([^@]*|[0-9]{3})x?$"}),
            json!({"pattern": "^(a|the )*[A-Z]? [^\\x00-\\x7f]{2,5}"}),
            json!({"enum": ["the", "the x", "thea日本", "\"n\\"]}),
        ];
        let strings = strings.into_iter().map(|mut string| {
            string["type"] = "string".into();
            string
        });
        let values = strings.chain([
            json!({"type": "object", "properties": {"the": {"type": "integer"}, "thea": {"type": "string", "maxLength": 2}}}),
            json!({"type": "object", "patternProperties": {"^[a-z]{3,}$": {"type": "number"}}, "additionalProperties": false}),
            json!({"type": "object", "patternProperties": {"[0-9]{2}": {"type": "null"}}}),
            json!({"type": "array", "items": {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "number"}]}}),
        ]);
        let lark = [
            "start: /[^@]*/\n",
            "start: (A | B)+\nA: /[a-f]{2,7}/\nB: /[0-9]+;?/\n",
            "start: text \"{\" text\ntext[lazy]: /(?s:.*)\\//\n",
            "start: /.{0,11}/ \"\\n\" /[^ ]*x/\n",
        ];
        values
            .map(|schema| TopLevelGrammar::from_json_schema(with_options(schema)))
            .chain(lark.map(|text| TopLevelGrammar::from_lark(text.into())))
            .collect()
    }

    /// Computes each mask by a walk of all tokens too, and looks whether both are the same.
    struct Compared {
        slicer: Slicer,
        sliced: Mutex<usize>,
    }

    impl BiasComputer for Compared {
        fn compute_bias(&self, recognizer: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
            let is_sliced = !self.slicer.reaches(recognizer).is_empty();
            *self.sliced.lock().unwrap() += usize::from(is_sliced);
            let mask = self.slicer.compute_bias(recognizer, start);
            let mut walked = self.trie().alloc_token_set();
            self.trie().add_bias(recognizer, &mut walked, start);
            // The trie has one of the two tokens that are the same.
            let twins: Vec<u32> = (1..self.trie().vocab_size() as u32)
                .filter(|token| self.trie().token(*token) == b"the")
                .collect();
            assert_eq!(twins.len(), 2);
            if twins.iter().any(|token| walked.is_allowed(*token)) {
                twins.iter().for_each(|token| walked.allow_token(*token));
            }
            let differ: Vec<String> = (0..self.trie().vocab_size() as u32)
                .filter(|token| mask.is_allowed(*token) != walked.is_allowed(*token))
                .map(|token| self.trie().token_dbg(token))
                .collect();
            assert!(differ.is_empty(), "{:?} differ: {differ:?}", self.slicer.reaches(recognizer));
            mask
        }

        fn trie(&self) -> &TokTrie {
            self.slicer.trie()
        }
    }

    struct Random(u64);

    impl Random {
        fn below(&mut self, end: usize) -> usize {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((self.0 >> 33) as usize * end) >> 31
        }
    }

    /// Takes tokens at random, the short ones as often as all others.
    fn random_text(parser: &mut TokenParser, random: &mut Random) {
        for _ in 0..30 {
            let Ok(mask) = parser.compute_mask() else { return };
            let allowed: Vec<u32> = mask.iter().filter(|token| *token != EOS).collect();
            let env = parser.token_env.clone();
            let trie = env.tok_trie();
            let short: Vec<u32> =
                allowed.iter().copied().filter(|token| trie.token(*token).len() < 3).collect();
            let among = if random.below(2) == 0 && !short.is_empty() { &short } else { &allowed };
            if among.is_empty() || parser.consume_token(among[random.below(among.len())]).is_err() {
                return;
            }
        }
    }

    #[test]
    fn masks_are_those_of_a_walk_of_the_whole_vocabulary() {
        let vocabulary = vocabulary();
        for most_time in [Duration::ZERO, WALK / PART, Duration::from_secs(1)] {
            let mut random = Random(1);
            let mut sliced = 0;
            for grammar in grammars() {
                let mut parser = vocabulary.parser(grammar).unwrap();
                let mut slicer = Slicer::new(parser.token_env.clone());
                slicer.most_time = most_time;
                let compared = Arc::new(Compared { slicer, sliced: Mutex::new(0) });
                parser.bias_computer = compared.clone();
                parser.start_without_prompt();
                for _ in 0..6 {
                    random_text(&mut parser.deep_clone(), &mut random);
                }
                sliced += usize::from(*compared.sliced.lock().unwrap() > 0);
            }
            assert!(sliced >= 8, "{sliced} of the grammars");
        }
    }

    #[test]
    fn what_may_follow_is_found_by_structure_or_by_looking_ahead() {
        let vocabulary = vocabulary();
        let reaches_of = |schema: serde_json::Value, text: &str| {
            let grammar = TopLevelGrammar::from_json_schema(with_options(schema));
            let mut parser = vocabulary.parser(grammar).unwrap();
            let mut slicer = Slicer::new(parser.token_env.clone());
            slicer.most_time = Duration::from_secs(1);
            parser.start_without_prompt();
            for byte in text.bytes() {
                let token = parser.token_env.tok_trie().token_id_at_bytes(&[byte]).unwrap();
                parser.consume_token(token).unwrap();
            }
            parser.parser.with_recognizer(|recognizer| slicer.reaches(recognizer))
        };
        let any = Reach { classes: UNESCAPED, characters: u8::MAX, is_end: false };
        assert_eq!(reaches_of(json!({"type": "string"}), "\"a"), [any]);
        // Its structure says nothing behind a first letter of what is searched.
        let searched = json!({"type": "string", "pattern": "[a-z]{6}"});
        assert_eq!(reaches_of(searched, "\"a"), [any]);
        let short = reaches_of(json!({"type": "string", "maxLength": 5}), "\"ab");
        assert!(short.contains(&Reach { classes: UNESCAPED, characters: 3, is_end: true }), "{short:?}");
        let path = reaches_of(json!({"type": "string", "pattern": "^/[^/]*$"}), "\"/");
        let all_but_punctuation = UNESCAPED & !(1 << PUNCTUATION);
        assert!(path.contains(&Reach { classes: all_but_punctuation, ..any }), "{path:?}");
        assert_eq!(reaches_of(json!({"type": "integer"}), "1"), []);
    }
}
