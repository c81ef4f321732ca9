#![allow(dead_code, reason = "every test and example uses a part of it")]
//! Vocabularies made on the spot, for tests and measurements: like those of models in what their tokens look like, and of
//! any size. The same size gives the same vocabulary.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use penstock_constraint::Token;

/// A vocabulary and a greedy tokenizer for it.
pub struct Vocabulary {
    pub tokens: Vec<Token>,
    pub eos: u32,
    ids: HashMap<Vec<u8>, u32>,
    longest: usize,
}

const FRAGMENTS: &[&str] = &[
    "\":", "\": ", "\",", "\", \"", "{\"", "\"}", "\"]", "[\"", "},", "}, {", "],", "[]", "{}", "{}\n", "()",
    "();", "->", "=>", "==", "!=", "//", "/*", "*/", "::", "..", "...", "--", "++", "&&", "||", "</", "/>",
    "\\n", "\\\"", "\\u", "\r\n", "\n\n", "'s", "'t", " \"", " [", " {", " (", " -", " 0", " 1", "\"\"",
    ": ", ", ", "true", "false", "null", " true", " false", " null", "\":\"", "\":[", "\":{", "\",\"",
    "\"},{\"", "\"]}", "0.", ".0", "1.", "e-", "https://", "http://", ".com", ".org", "www.",
];
const WORDS: &str = "the of and to in is that for it as was with be by on not he his but at are this have from or had an they \
    which one you were all her she there would their we him been has when who will no more if out so up said what its about \
    than into them can only other time new some could these two may first then do any like my now over such our man me even \
    most made after also did many before must through back years where much your way well down should because each just those \
    people how too little state good very make world still see own men work long here get both between life being under never \
    day same another know while last might us great old year off come since against go came right used take three string number \
    object array type name value id title description properties required items enum format date email address user count index";
const SYLLABLES: &[&str] = &[
    "a", "al", "an", "ar", "ba", "be", "bi", "ca", "ce", "co", "con", "da", "de", "di", "do", "e", "el",
    "en", "er", "ex", "fa", "fi", "for", "ga", "ge", "go", "ha", "he", "hi", "i", "ic", "im", "in", "ing",
    "ion", "is", "it", "ja", "ka", "ke", "la", "le", "li", "lo", "ly", "ma", "me", "mi", "mo", "na", "ne",
    "ni", "no", "o", "on", "or", "pa", "pe", "pi", "po", "pre", "pro", "qu", "ra", "re", "ri", "ro", "sa",
    "se", "si", "so", "st", "ta", "te", "ter", "ti", "tion", "to", "tra", "u", "un", "ur", "va", "ve", "vi",
    "wa", "we", "x", "y", "za", "ze",
];

/// The time that this thread was running: on a machine with other work, what a wall clock shows is theirs too.
pub fn cpu_time() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock writes to `now`, which outlives the call.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut now) };
    assert_eq!(result, 0, "Linux has this clock");
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// A small, good enough generator of numbers (xorshift64*).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, end: usize) -> usize {
        ((self.next() >> 32) as usize * end) >> 32
    }
}

impl Vocabulary {
    /// 256 tokens of one byte, then pieces like those that byte-pair encoding finds, and the end of sequence at last.
    pub fn new(size: usize) -> Vocabulary {
        let mut texts: Vec<Vec<u8>> = (0..=255_u8).map(|byte| vec![byte]).collect();
        let mut seen: HashSet<Vec<u8>> = texts.iter().cloned().collect();
        let full = size - 1;
        let mut add = |text: String| {
            if texts.len() < full && seen.insert(text.clone().into_bytes()) {
                texts.push(text.into_bytes());
            }
            texts.len() < full
        };
        let mut random = Random(0x9E37_79B9_7F4A_7C15);
        let cased = |word: &str| {
            let mut letters = word.chars();
            letters
                .next()
                .map_or(String::new(), |first| first.to_uppercase().chain(letters).collect::<String>())
        };
        if size > 257 {
            FRAGMENTS.iter().for_each(|text| {
                add(text.to_string());
            });
            for spaces in 2..=16 {
                add(" ".repeat(spaces));
                add(format!("\n{}", " ".repeat(spaces)));
            }
            for number in 0..1000 {
                add(number.to_string());
                add(format!("{number:02}"));
            }
            for word in WORDS.split_whitespace() {
                add(word.into());
                add(format!(" {word}"));
                add(cased(word));
                add(format!(" {}", cased(word)));
            }
        }
        let mut ideograph = 0x4E00;
        loop {
            let kind = random.below(100);
            let more = if kind < 80 {
                let word: String =
                    (0..1 + random.below(4)).map(|_| SYLLABLES[random.below(SYLLABLES.len())]).collect();
                match random.below(10) {
                    0..5 => add(format!(" {word}")),
                    5..8 => add(word),
                    8 => add(format!(" {}", cased(&word))),
                    _ => add(cased(&word)),
                }
            } else if kind < 87 {
                let letters =
                    (0..1 + random.below(5)).filter_map(|_| char::from_u32(0x430 + random.below(32) as u32));
                let word: String = letters.collect();
                add(if random.below(2) == 0 { format!(" {word}") } else { word })
            } else if kind < 95 {
                ideograph = if ideograph < 0x9F00 { ideograph + 1 } else { 0x4E00 };
                let other = 0x4E00 + random.below(0x5000) as u32;
                let both = [ideograph, other].into_iter().filter_map(char::from_u32);
                add(both.take(1 + random.below(2)).collect())
            } else {
                let signs = "_-./:;=+*&#@$%!?<>()[]{}'\"\\|~^`,";
                let signs: Vec<char> = signs.chars().collect();
                add((0..2 + random.below(4)).map(|_| signs[random.below(signs.len())]).collect())
            };
            if !more {
                break;
            }
        }
        texts.push(b"<|end|>".to_vec());
        let eos = texts.len() as u32 - 1;
        Vocabulary::from_texts(texts, &[eos], eos)
    }

    /// A vocabulary of these tokens, of which some are special; one of them ends a text.
    pub fn from_texts(texts: Vec<Vec<u8>>, special: &[u32], eos: u32) -> Vocabulary {
        let token = |(id, bytes)| Token { bytes, special: special.contains(&(id as u32)) };
        let tokens: Vec<Token> = texts.into_iter().enumerate().map(token).collect();
        let mut ids = HashMap::new();
        for (id, token) in tokens.iter().enumerate().filter(|(_, token)| !token.special) {
            ids.entry(token.bytes.clone()).or_insert(id as u32);
        }
        let longest = ids.keys().map(Vec::len).max().unwrap_or(1);
        Vocabulary { tokens, eos, ids, longest }
    }

    /// The longest token at every place.
    pub fn tokenize(&self, text: &[u8]) -> Vec<u32> {
        let mut found = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let most = self.longest.min(rest.len());
            let length = (1..=most)
                .rev()
                .find(|&length| self.ids.contains_key(&rest[..length]))
                .expect("every byte is a token");
            found.push(self.ids[&rest[..length]]);
            rest = &rest[length..];
        }
        found
    }
}
