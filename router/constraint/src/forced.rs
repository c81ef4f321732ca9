//! What a grammar leaves no choice of: the bytes that alone may follow, spelled by the model's own tokenizer.
//!
//! llguidance can look ahead by itself, but to the end of what is forced. Of an expression of a million letters that takes
//! every lexer state that it may have, some 100 MB, at the start of each text and again in the grammar that is kept. So
//! it is told that the tokenizer is not canonical, which it never looks ahead for, and the look ahead is here, with an end.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use llguidance::{
    TokenParser,
    derivre::NextByte,
    earley::{Parser, ParserRecognizer},
    toktrie::{Recognizer, TokTrie},
};

/// Text to the ids that the model's tokenizer makes of it, without any that it adds by itself.
pub type Tokenize = Arc<dyn Fn(&str) -> Vec<u32> + Send + Sync>;

/// How far a look ahead goes, in bytes of text. Enough for the names and the punctuation between two values.
const MOST_BYTES: usize = 256;
/// Texts whose tokens are kept, of about so many bytes each. A grammar forces the same few again and again, and a tokenizer takes
/// longer for one than its mask does.
const MOST_SPELLED: usize = 1024;

/// Texts as they stand in the middle of constrained ones. A tokenizer that changes one of them (that puts a space in front,
/// or makes letters small) cannot say how the part of a text is spelled.
const PROBES: [&str; 5] = ["name", " a", "\": \"", "\n  ", "0.5}"];

/// The model's tokenizer, for text that a grammar forces.
pub(crate) struct Speller {
    tokenize: Tokenize,
    spelled: Mutex<HashMap<Vec<u8>, Option<Vec<u32>>>>,
}

impl Speller {
    /// None for a tokenizer that changes what it is given.
    pub(crate) fn new(tokenize: Tokenize, trie: &TokTrie) -> Option<Speller> {
        let speller = Speller { tokenize, spelled: Mutex::default() };
        PROBES.iter().all(|text| speller.spell(text.as_bytes(), trie).is_some()).then_some(speller)
    }

    /// The tokens, unless they spell something else: a text may name a special token.
    fn spell(&self, text: &[u8], trie: &TokTrie) -> Option<Vec<u32>> {
        let spelled = || self.spelled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = spelled().get(text) {
            return known.clone();
        }
        let tokens = (self.tokenize)(std::str::from_utf8(text).ok()?);
        let known = tokens.iter().all(|&token| (token as usize) < trie.vocab_size());
        let tokens = (known && trie.decode_raw(&tokens) == text).then_some(tokens);
        let mut spelled = spelled();
        if spelled.len() == MOST_SPELLED {
            spelled.clear();
        }
        spelled.insert(text.to_vec(), tokens.clone());
        tokens
    }

    /// The tokens that follow `last`, as far as their text is forced and no choice behind it could be part of one of them. `None`: no
    /// byte is forced.
    pub(crate) fn forced(&self, parser: &mut TokenParser, last: Option<u32>) -> Option<Vec<u32>> {
        if parser.is_accepting() || parser.parser.with_recognizer(only_byte).is_none() {
            return None;
        }
        Some(self.tokens(parser, last))
    }

    fn tokens(&self, parser: &TokenParser, last: Option<u32>) -> Vec<u32> {
        let trie = parser.token_env.tok_trie();
        // Shares the lexer's states with the parser that it was made of, and has rows of its own.
        let mut ahead = parser.parser.clone();
        let text = forced_bytes(&mut ahead, trie.eos_token());
        let before = last.map(|last| trie.decode_raw(&[last])).unwrap_or_default();
        let joined = [&before[..], &text].concat();
        // It ends with a whole letter; it may begin with the rest of one.
        let kept = match letters(&joined).saturating_sub(before.len()) {
            0 => letters(&text),
            kept => kept,
        };
        if kept == 0 || ahead.rollback(text.len() - kept).is_err() {
            return Vec::new();
        }
        let behind_last = last.and_then(|last| {
            let mut tokens = self.spell(&joined[..before.len() + kept], trie)?;
            (tokens.first() == Some(&last)).then(|| tokens.split_off(1))
        });
        let Some(mut tokens) = behind_last.or_else(|| self.spell(&text[..kept], trie)) else {
            return Vec::new();
        };
        let (open, _) = ahead.with_recognizer(|recognizer| trie.chop_tokens(recognizer, &tokens));
        tokens.truncate(tokens.len() - open);
        tokens
    }
}

/// How many bytes from the start on are whole letters.
fn letters(bytes: &[u8]) -> usize {
    std::str::from_utf8(bytes).map_or_else(|error| error.valid_up_to(), str::len)
}

/// Takes the bytes that alone may follow. `apart` is any token that is not one of them.
fn forced_bytes(ahead: &mut Parser, apart: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < MOST_BYTES && !ahead.is_accepting() {
        let Some(byte) = ahead.with_recognizer(only_byte) else { break };
        if byte == TokTrie::SPECIAL_TOKEN_MARKER || ahead.apply_token(&[byte], apart).is_err() {
            break;
        }
        bytes.push(byte);
    }
    bytes
}

/// The byte that may follow, if it is only one. Most often the lexer's state tells of one byte that none but it may follow, or of two
/// that may; else what is common is tried first, of which two are found at once where there is a choice.
fn only_byte(recognizer: &mut ParserRecognizer) -> Option<u8> {
    const COMMON: &[u8] = b"ea10,\"]} ";
    let state = recognizer.lexer_state();
    let told = match state.is_dead() || state.has_lowest_match() {
        true => NextByte::SomeBytes0,
        false => recognizer.lexer_mut().next_byte(state),
    };
    recognizer.trie_started("only_byte");
    if let NextByte::ForcedByte(byte) = told {
        let may_follow = recognizer.try_push_byte(byte);
        recognizer.pop_bytes(usize::from(may_follow));
        recognizer.trie_finished();
        return may_follow.then_some(byte);
    }
    let mut found = None;
    let mut several = false;
    let rest = (0..=u8::MAX).rev().filter(|byte| !COMMON.contains(byte));
    for byte in COMMON.iter().copied().chain(rest) {
        if recognizer.try_push_byte(byte) {
            recognizer.pop_bytes(1);
            several = found.replace(byte).is_some();
            if several {
                break;
            }
        }
    }
    recognizer.trie_finished();
    found.filter(|_| !several)
}
