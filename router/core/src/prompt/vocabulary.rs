//! The tokenizer, and how its tokens are spelled: which are special, what bytes a token stands for, and
//! what it adds to a text. `Prompt` encodes with it, the detokenizer and the token events spell with it.

use std::collections::HashSet;
use std::sync::OnceLock;

use penstock_proto::ids::TokenId;
use serde_json::Value;
use tokenizers::{AddedToken, Tokenizer};

use super::byte_level::bytes_of_name;
use super::token_count::TokenCountLowerBound;

pub struct Vocabulary {
    tokenizer: Tokenizer,
    /// In order.
    special: Vec<TokenId>,
    decoder_kind: DecoderKind,
    /// Of tokens that are bytes.
    spellings: Spellings,
    /// An ordinary word, put before a token to see what the token adds to a text.
    word: Option<(TokenId, String)>,
    /// Made for the first long prompt; `None` in it where there is no bound.
    token_count: OnceLock<Option<TokenCountLowerBound>>,
}

/// How tokens become text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecoderKind {
    /// Every token is a string of bytes, and a text is its tokens' bytes: byte-level BPE.
    Bytes,
    /// Tokens are pieces of text that the tokenizer's decoder joins.
    Pieces {
        /// Tokens like `<0xE2>` are single bytes.
        byte_fallback: bool,
        /// A decoder that joins bytes among other things: a piece may be a part of a character.
        may_split: bool,
    },
}

impl Vocabulary {
    /// `special` are the tokens that the model's configuration names as special beside those that the
    /// tokenizer knows of; the ones that are not in the vocabulary are ignored.
    pub fn new(mut tokenizer: Tokenizer, special: &[String]) -> Self {
        // Both are set in some published files, from training; they would cut or fill prompts.
        tokenizer.with_padding(None);
        let _ = tokenizer.with_truncation(None);

        let added = tokenizer.get_added_tokens_decoder();
        let known: HashSet<&str> =
            added.values().filter(|token| token.special).map(|token| token.content.as_str()).collect();
        let missing: Vec<AddedToken> = special
            .iter()
            .filter(|name| !known.contains(name.as_str()) && tokenizer.token_to_id(name).is_some())
            .map(|name| AddedToken::from(name.as_str(), true))
            .collect();
        if let Err(error) = tokenizer.add_special_tokens(missing.iter().cloned()) {
            tracing::warn!("tokens that the configuration calls special are ordinary text: {error}");
        }

        let mut special: Vec<_> = tokenizer
            .get_added_tokens_decoder()
            .iter()
            .filter(|(_, token)| token.special)
            .map(|(&id, _)| TokenId(id))
            .chain(missing.iter().filter_map(|token| tokenizer.token_to_id(&token.content)).map(TokenId))
            .collect();
        special.sort_unstable();

        let decoder_kind = DecoderKind::of(&tokenizer);
        let spellings = match decoder_kind {
            DecoderKind::Bytes => Spellings::of(&tokenizer, &special),
            DecoderKind::Pieces { .. } => Spellings::default(),
        };
        let token_count = OnceLock::new();
        let mut vocabulary = Self { tokenizer, special, decoder_kind, spellings, word: None, token_count };
        vocabulary.word = vocabulary.find_word();
        vocabulary
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    pub fn decoder_kind(&self) -> DecoderKind {
        self.decoder_kind
    }

    pub fn is_special(&self, token: TokenId) -> bool {
        self.special.binary_search(&token).is_ok()
    }

    /// The token as the vocabulary writes it; empty for an id that the tokenizer does not know (models
    /// pad their vocabulary).
    pub fn name(&self, token: TokenId) -> String {
        self.tokenizer.id_to_token(token.0).unwrap_or_default()
    }

    /// The bytes that a token adds to a text that has begun; the name of a special token. They may be a
    /// part of a character.
    pub fn bytes(&self, token: TokenId) -> Vec<u8> {
        if self.decoder_kind == DecoderKind::Bytes {
            return self.spelling(token).to_vec();
        }
        if self.is_special(token) {
            return self.name(token).into_bytes();
        }
        if let Some(byte) = self.byte(token) {
            return vec![byte];
        }
        match &self.word {
            Some((word, text)) => {
                let both = self.decode(&[*word, token]);
                both.strip_prefix(text.as_str()).map_or_else(|| self.decode(&[token]), str::to_owned)
            }
            None => self.decode(&[token]),
        }
        .into_bytes()
    }

    /// The same, where every token is a string of bytes; elsewhere nothing.
    pub fn spelling(&self, token: TokenId) -> &[u8] {
        self.spellings.get(token)
    }

    /// The text that a token alone adds to a text that has begun; the name of a special token. A part of a
    /// character is U+FFFD.
    pub fn text(&self, token: TokenId) -> String {
        String::from_utf8(self.bytes(token))
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    /// The byte that a token like `<0xE2>` stands for.
    pub fn byte(&self, token: TokenId) -> Option<u8> {
        if !matches!(self.decoder_kind, DecoderKind::Pieces { byte_fallback: true, .. }) {
            return None;
        }
        let name = self.tokenizer.id_to_token(token.0)?;
        let digits = name.strip_prefix("<0x")?.strip_suffix('>')?;
        if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
    }

    /// The text of tokens as the tokenizer's own decoder joins them, special ones left out.
    pub fn decode(&self, tokens: &[TokenId]) -> String {
        let ids: Vec<u32> = tokens
            .iter()
            .filter(|token| !self.is_special(**token) && self.tokenizer.id_to_token(token.0).is_some())
            .map(|token| token.0)
            .collect();
        // Some decoders do not take an empty list.
        if ids.is_empty() {
            return String::new();
        }
        self.tokenizer.decode(&ids, true).unwrap_or_default()
    }

    /// Whether the text certainly has more than `most` tokens, as far as its length tells. For some kinds of
    /// tokenizers it does not.
    pub fn is_above(&self, most: usize, text: &str) -> bool {
        let bound = self.token_count.get_or_init(|| TokenCountLowerBound::of(&self.tokenizer));
        bound.as_ref().is_some_and(|bound| bound.of_text(text) > most)
    }

    fn find_word(&self) -> Option<(TokenId, String)> {
        if self.decoder_kind == DecoderKind::Bytes {
            return None;
        }
        (0..self.tokenizer.get_vocab_size(true) as u32).map(TokenId).find_map(|token| {
            if self.is_special(token) || self.byte(token).is_some() {
                return None;
            }
            let text = self.decode(&[token]);
            let is_word = !text.is_empty() && text.chars().all(char::is_alphabetic);
            is_word.then_some((token, text))
        })
    }
}

/// The bytes of all tokens, one after the other in the order of their ids.
#[derive(Default)]
struct Spellings {
    bytes: Box<[u8]>,
    ends: Box<[u32]>,
}

impl Spellings {
    /// `special` are in order, and spelled by their names.
    fn of(tokenizer: &Tokenizer, special: &[TokenId]) -> Self {
        let size = tokenizer.get_vocab(true).into_values().max().map_or(0, |last| last + 1);
        let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(size as usize));
        for id in 0..size {
            // Of two names of a token, which an added one may have, the one that the tokenizer gives.
            let name = tokenizer.id_to_token(id).unwrap_or_default();
            match special.binary_search(&TokenId(id)) {
                Ok(_) => bytes.extend(name.into_bytes()),
                Err(_) => bytes.extend(bytes_of_name(&name)),
            }
            ends.push(bytes.len() as u32);
        }
        Self { bytes: bytes.into(), ends: ends.into() }
    }

    /// Empty for an id that the tokenizer does not know.
    fn get(&self, token: TokenId) -> &[u8] {
        let at = token.0 as usize;
        let Some(&end) = self.ends.get(at) else { return &[] };
        let begin = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.bytes[begin as usize..end as usize]
    }
}

impl DecoderKind {
    fn of(tokenizer: &Tokenizer) -> Self {
        // The decoder's own description says what it is made of, whatever the nesting.
        let decoder = serde_json::to_value(tokenizer.get_decoder()).unwrap_or(Value::Null);
        let mut parts = Vec::new();
        collect_types(&decoder, &mut parts);
        parts.retain(|part| part != "Sequence" && part != "Fuse");
        if parts == ["ByteLevel"] {
            return Self::Bytes;
        }
        Self::Pieces {
            byte_fallback: parts.iter().any(|part| part == "ByteFallback"),
            may_split: parts.iter().any(|part| part == "ByteLevel"),
        }
    }
}

fn collect_types(decoder: &Value, types: &mut Vec<String>) {
    if let Some(name) = decoder.get("type").and_then(Value::as_str) {
        types.push(name.to_owned());
    }
    for part in decoder.get("decoders").and_then(Value::as_array).into_iter().flatten() {
        collect_types(part, types);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::samples;

    #[test]
    fn the_decoder_tells_how_tokens_are_spelled() {
        let kind = |tokenizer| Vocabulary::new(tokenizer, &[]).decoder_kind();
        assert_eq!(kind(samples::byte_level()), DecoderKind::Bytes);
        assert_eq!(
            kind(samples::sentencepiece()),
            DecoderKind::Pieces { byte_fallback: true, may_split: false }
        );
        assert_eq!(
            kind(samples::wordpiece()),
            DecoderKind::Pieces { byte_fallback: false, may_split: false }
        );
    }

    #[test]
    fn a_token_alone_keeps_its_leading_space() {
        let vocabulary = Vocabulary::new(samples::sentencepiece(), &[]);
        let id = |name: &str| TokenId(vocabulary.tokenizer().token_to_id(name).unwrap());
        assert_eq!(vocabulary.text(id("▁hello")), " hello");
        assert_eq!(vocabulary.text(id("lo")), "lo");
        assert_eq!(vocabulary.text(id("</s>")), "</s>");
        assert_eq!(vocabulary.bytes(id("<0xE2>")), [0xE2]);
        assert_eq!(vocabulary.text(id("<0xE2>")), "\u{FFFD}");

        let vocabulary = Vocabulary::new(samples::wordpiece(), &[]);
        let id = |name: &str| TokenId(vocabulary.tokenizer().token_to_id(name).unwrap());
        assert_eq!(vocabulary.text(id("hello")), " hello");
        assert_eq!(vocabulary.text(id("##ing")), "ing");
    }

    #[test]
    fn a_token_that_only_the_configuration_calls_special_is_special() {
        let named = ["<|im_end|>".to_owned(), "not in the vocabulary".to_owned()];
        let mut tokenizer = samples::byte_level();
        tokenizer.add_tokens([AddedToken::from("<|im_end|>", false)]).unwrap();
        let id = TokenId(tokenizer.token_to_id("<|im_end|>").unwrap());
        assert!(!Vocabulary::new(tokenizer.clone(), &[]).is_special(id));
        let vocabulary = Vocabulary::new(tokenizer, &named);
        assert!(vocabulary.is_special(id));
        assert_eq!(vocabulary.name(id), "<|im_end|>");
        assert_eq!(vocabulary.decode(&[id]), "");
        assert_eq!(vocabulary.tokenizer().token_to_id("not in the vocabulary"), None);
    }

    #[test]
    fn every_token_is_spelled_as_its_name_says() {
        let mut tokenizer = samples::byte_level();
        tokenizer.add_tokens([AddedToken::from("plain é", false)]).unwrap();
        let vocabulary = Vocabulary::new(tokenizer, &[]);
        let size = vocabulary.tokenizer().get_vocab_size(true) as u32;
        for id in (0..size).map(TokenId) {
            let name = vocabulary.name(id);
            let expected = match vocabulary.is_special(id) {
                true => name.into_bytes(),
                false => bytes_of_name(&name),
            };
            assert_eq!(vocabulary.spelling(id), expected, "{id:?}");
        }
        assert_eq!(vocabulary.spelling(TokenId(size)), b"");
    }

    #[test]
    fn an_id_beyond_the_tokenizer_adds_nothing() {
        let vocabulary = Vocabulary::new(samples::byte_level(), &[]);
        assert_eq!(vocabulary.text(TokenId(1_000_000)), "");
        assert_eq!(vocabulary.decode(&[TokenId(1_000_000)]), "");
    }
}
