//! Turns token ids into text, one at a time. Called by `output_processor` for every token that is not
//! special; stop strings are not its business.
//!
//! Its text is what the tokenizer's decoder makes of prompt and generation together, less the prompt's
//! part, so that the space between two words is there or not as if nothing had been cut. A character is
//! emitted when its last byte is there. Each token costs the same, however long the text is: the decoder
//! sees the token and a few before it.

use std::sync::Arc;

use penstock_proto::ids::TokenId;

use crate::prompt::{DecoderKind, Vocabulary};

/// Tokens that the decoder sees before a new one: what it does to the first token of a text must not
/// happen to a later one. One would do, but for decoders that strip more than one space.
const CONTEXT: usize = 2;

/// In bytes.
const LONGEST_CHARACTER: usize = 4;

pub struct Detokenizer {
    vocabulary: Arc<Vocabulary>,
    /// The last tokens, special ones left out, and after them those that wait for the rest of a character
    /// (only where the decoder itself joins bytes).
    tokens: Vec<TokenId>,
    waiting: usize,
    /// Bytes of a character that is not complete, where tokens are bytes.
    utf8: Utf8,
}

impl Detokenizer {
    pub fn new(vocabulary: Arc<Vocabulary>, prompt: &[TokenId]) -> Self {
        let mut tokens: Vec<TokenId> = prompt
            .iter()
            .rev()
            .filter(|token| !vocabulary.is_special(**token))
            .take(CONTEXT.max(LONGEST_CHARACTER))
            .copied()
            .collect();
        tokens.reverse();

        // A prompt of token ids, or one that was cut, may end inside a character.
        let mut utf8 = Utf8::default();
        for &token in &tokens {
            match (vocabulary.decoder_kind(), vocabulary.byte(token)) {
                (DecoderKind::Bytes, _) => drop(utf8.push(vocabulary.spelling(token))),
                (_, Some(byte)) => drop(utf8.push(&[byte])),
                (_, None) => drop(utf8.flush()),
            }
        }
        utf8.of_prompt = utf8.partial.len();
        tokens.drain(..tokens.len().saturating_sub(CONTEXT));
        Self { vocabulary, tokens, waiting: 0, utf8 }
    }

    /// The text that this token completes. Not for special tokens.
    pub fn push(&mut self, token: TokenId) -> String {
        match self.vocabulary.decoder_kind() {
            DecoderKind::Bytes => self.utf8.push(self.vocabulary.spelling(token)),
            DecoderKind::Pieces { may_split, .. } => {
                if let Some(byte) = self.vocabulary.byte(token) {
                    self.remember(token);
                    return self.utf8.push(&[byte]);
                }
                let mut text = self.utf8.flush();
                text.push_str(&self.push_piece(token, may_split));
                text
            }
        }
    }

    /// Whether a character waits for its last bytes.
    pub fn holds(&self) -> bool {
        self.waiting > 0 || self.utf8.holds()
    }

    /// No token follows: what is left of an incomplete character, as U+FFFD.
    pub fn finish(&mut self) -> String {
        if self.waiting > 0 {
            let before = self.vocabulary.decode(&self.tokens[..self.tokens.len() - self.waiting]);
            self.waiting = 0;
            return added(&before, &self.vocabulary.decode(&self.tokens));
        }
        self.utf8.flush()
    }

    fn push_piece(&mut self, token: TokenId, may_split: bool) -> String {
        let before = self.vocabulary.decode(&self.tokens[..self.tokens.len() - self.waiting]);
        self.tokens.push(token);
        let after = self.vocabulary.decode(&self.tokens);
        // A character takes no more tokens than bytes; one more means that its bytes are none.
        if may_split && after.ends_with(char::REPLACEMENT_CHARACTER) && self.waiting < LONGEST_CHARACTER {
            self.waiting += 1;
            return String::new();
        }
        self.waiting = 0;
        self.forget();
        added(&before, &after)
    }

    fn remember(&mut self, token: TokenId) {
        self.tokens.push(token);
        self.forget();
    }

    fn forget(&mut self) {
        self.tokens.drain(..self.tokens.len().saturating_sub(CONTEXT));
    }
}

/// What `after` has beyond `before`, which it begins with unless the decoder rewrites what it wrote.
fn added(before: &str, after: &str) -> String {
    let same: usize =
        before.chars().zip(after.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
    after[same..].to_owned()
}

/// Text from bytes that arrive in any portions. Bytes that are no UTF-8 become U+FFFD as in the Unicode
/// Standard (3.9, "U+FFFD Substitution of Maximal Subparts").
#[derive(Default)]
struct Utf8 {
    /// The beginning of a character.
    partial: Vec<u8>,
    /// So many bytes of it are the prompt's, whose text already shows them as U+FFFD.
    of_prompt: usize,
}

impl Utf8 {
    fn push(&mut self, bytes: &[u8]) -> String {
        if bytes.is_empty() {
            return String::new();
        }
        if self.partial.is_empty()
            && let Ok(whole) = std::str::from_utf8(bytes)
        {
            return whole.to_owned();
        }
        let mut of_prompt = std::mem::take(&mut self.of_prompt);
        self.partial.extend_from_slice(bytes);
        let mut rest = &self.partial[..];
        let mut text = String::with_capacity(rest.len());
        loop {
            let error = match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => error,
            };
            let (valid, invalid) = rest.split_at(error.valid_up_to());
            text.push_str(&String::from_utf8_lossy(valid));
            let Some(length) = error.error_len() else {
                rest = invalid;
                break;
            };
            // Only at the very beginning can the invalid bytes be the prompt's own.
            if !(valid.is_empty() && length <= of_prompt) {
                text.push(char::REPLACEMENT_CHARACTER);
            }
            of_prompt = 0;
            rest = &invalid[length..];
        }
        self.partial = rest.to_vec();
        text
    }

    fn holds(&self) -> bool {
        self.partial.len() > self.of_prompt
    }

    fn flush(&mut self) -> String {
        let text = if self.holds() { String::from(char::REPLACEMENT_CHARACTER) } else { String::new() };
        *self = Self::default();
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::samples;
    use proptest::prelude::*;
    use tokenizers::Tokenizer;

    fn vocabulary(tokenizer: Tokenizer) -> Arc<Vocabulary> {
        Arc::new(Vocabulary::new(tokenizer, &[]))
    }

    fn ids(vocabulary: &Vocabulary, text: &str) -> Vec<TokenId> {
        vocabulary
            .tokenizer()
            .encode_fast(text, false)
            .unwrap()
            .get_ids()
            .iter()
            .copied()
            .map(TokenId)
            .collect()
    }

    /// The pieces that are emitted for `tokens` after `prompt`, the flush at the end being the last.
    fn pieces(vocabulary: &Arc<Vocabulary>, prompt: &[TokenId], tokens: &[TokenId]) -> Vec<String> {
        let mut detokenizer = Detokenizer::new(vocabulary.clone(), prompt);
        let mut pieces: Vec<String> = tokens.iter().map(|&token| detokenizer.push(token)).collect();
        pieces.push(detokenizer.finish());
        pieces
    }

    fn bytes(vocabulary: &Vocabulary, bytes: &[u8]) -> Vec<TokenId> {
        let name = |byte: &u8| {
            (0..600).map(TokenId).find(|&id| vocabulary.bytes(id) == [*byte]).expect("every byte is a token")
        };
        bytes.iter().map(name).collect()
    }

    #[test]
    fn a_character_comes_out_whole_with_its_last_byte() {
        for tokenizer in [samples::byte_level(), samples::sentencepiece()] {
            let vocabulary = vocabulary(tokenizer);
            let euro = bytes(&vocabulary, "€😀".as_bytes());
            assert_eq!(pieces(&vocabulary, &[], &euro), ["", "", "€", "", "", "", "😀", ""]);
        }
    }

    #[test]
    fn bytes_left_incomplete_become_one_replacement_character() {
        for tokenizer in [samples::byte_level(), samples::sentencepiece()] {
            let vocabulary = vocabulary(tokenizer);
            let cut = bytes(&vocabulary, &"😀".as_bytes()[..3]);
            assert_eq!(pieces(&vocabulary, &[], &cut), ["", "", "", "\u{FFFD}"]);
            let mut broken = bytes(&vocabulary, &"€".as_bytes()[..2]);
            broken.extend(ids(&vocabulary, "a").last());
            assert_eq!(pieces(&vocabulary, &[], &broken).concat(), "\u{FFFD}a");
        }
    }

    #[test]
    fn a_genuine_replacement_character_is_text() {
        for tokenizer in [samples::byte_level(), samples::sentencepiece()] {
            let vocabulary = vocabulary(tokenizer);
            let tokens = bytes(&vocabulary, "\u{FFFD}".as_bytes());
            assert_eq!(pieces(&vocabulary, &[], &tokens), ["", "", "\u{FFFD}", ""]);
        }
    }

    #[test]
    fn the_space_between_prompt_and_generation_is_kept() {
        let vocabulary = vocabulary(samples::sentencepiece());
        let hello = TokenId(vocabulary.tokenizer().token_to_id("▁hello").unwrap());
        assert_eq!(pieces(&vocabulary, &ids(&vocabulary, "lo"), &[hello, hello]).concat(), " hello hello");
        // At the beginning of a text the first space is the tokenizer's, not the text's.
        let bos = TokenId(1);
        assert_eq!(pieces(&vocabulary, &[bos], &[hello, hello]).concat(), "hello hello");
        // A special token between two words does not make the second one the first of a text.
        let eos = TokenId(2);
        assert_eq!(pieces(&vocabulary, &[bos, hello, eos], &[hello]).concat(), " hello");
    }

    #[test]
    fn spaces_of_any_number_are_kept() {
        let vocabulary = vocabulary(samples::sentencepiece());
        for text in ["lo  hello   lo", "  hello", "      ", "he\n\n  lo"] {
            assert_eq!(pieces(&vocabulary, &[], &ids(&vocabulary, text)).concat(), text);
        }
    }

    #[test]
    fn wordpiece_joins_as_its_decoder_does() {
        let vocabulary = vocabulary(samples::wordpiece());
        let tokens = ids(&vocabulary, "hello testing! hello.");
        for split in 0..tokens.len() {
            let (prompt, generated) = tokens.split_at(split);
            assert_eq!(
                vocabulary.decode(prompt) + &pieces(&vocabulary, prompt, generated).concat(),
                "hello testing! hello."
            );
        }
    }

    #[test]
    fn a_prompt_that_ends_inside_a_character_does_not_spoil_the_next() {
        for tokenizer in [samples::byte_level(), samples::sentencepiece()] {
            let vocabulary = vocabulary(tokenizer);
            let euro = bytes(&vocabulary, "€".as_bytes());
            assert_eq!(pieces(&vocabulary, &euro[..2], &euro[2..]).concat(), "€");
            // The prompt's own text already shows that its bytes were none.
            let letter: Vec<TokenId> = ids(&vocabulary, "a").last().copied().into_iter().collect();
            assert_eq!(pieces(&vocabulary, &euro[..2], &letter).concat(), "a");
            assert_eq!(pieces(&vocabulary, &euro[..2], &[]).concat(), "");
            assert_eq!(pieces(&vocabulary, &euro[..2], &euro[..1]).concat(), "\u{FFFD}");
        }
    }

    #[test]
    fn a_decoder_that_joins_bytes_among_other_things_is_not_cut_either() {
        let mut tokenizer = samples::byte_level();
        let decoder: tokenizers::DecoderWrapper = serde_json::from_value(serde_json::json!({
            "type": "Sequence", "decoders": [{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
            "use_regex": false}, {"type": "Replace", "pattern": {"String": "_"}, "content": " "}]
        }))
        .unwrap();
        tokenizer.with_decoder(Some(decoder));
        let vocabulary = vocabulary(tokenizer);
        assert_eq!(vocabulary.decoder_kind(), DecoderKind::Pieces { byte_fallback: false, may_split: true });
        let tokens = ids(&vocabulary, "é_😀_\u{FFFD}x");
        assert_eq!(pieces(&vocabulary, &[], &tokens).concat(), "é 😀 \u{FFFD}x");
    }

    #[test]
    fn a_long_text_costs_no_more_per_token_than_a_short_one() {
        let vocabulary = vocabulary(samples::sentencepiece());
        let mut detokenizer = Detokenizer::new(vocabulary.clone(), &[]);
        for token in ids(&vocabulary, &"hello lo € ".repeat(500)) {
            detokenizer.push(token);
            assert!(detokenizer.tokens.len() <= CONTEXT && detokenizer.utf8.partial.len() < 4);
        }
        let mut detokenizer = Detokenizer::new(vocabulary.clone(), &[]);
        for token in bytes(&vocabulary, &[0x82; 500]) {
            assert_eq!(detokenizer.push(token), "\u{FFFD}");
        }
        assert!(detokenizer.utf8.partial.is_empty());
    }

    fn any_text() -> impl Strategy<Value = String> {
        prop::collection::vec(
            prop_oneof![
                Just("hello".to_owned()),
                Just(" hello".to_owned()),
                Just("👩‍👩‍👧‍👦".to_owned()),
                Just("🏳️‍🌈".to_owned()),
                Just("e\u{301}".to_owned()),
                "[ a-z€é\n]{1,4}",
                "\\PC{1,3}",
            ],
            0..12,
        )
        .prop_map(|parts| parts.concat().replace(char::REPLACEMENT_CHARACTER, "?"))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(150))]

        #[test]
        fn any_text_survives_any_split_of_prompt_and_generation(text in any_text()) {
            for (name, tokenizer) in
                [("bytes", samples::byte_level()), ("sentencepiece", samples::sentencepiece()), ("unigram", samples::unigram())]
            {
                let vocabulary = vocabulary(tokenizer);
                let tokens = ids(&vocabulary, &text);
                let whole = vocabulary.decode(&tokens);
                if name != "unigram" {
                    prop_assert_eq!(&whole, &text);
                }
                for split in 0..=tokens.len() {
                    let (prompt, generated) = tokens.split_at(split);
                    // A character that the prompt began and did not end is the generation's.
                    let head = (0..=split).rev().map(|end| vocabulary.decode(&tokens[..end]));
                    let head = head.into_iter().find(|head| whole.starts_with(head)).unwrap_or_default();
                    let pieces = pieces(&vocabulary, prompt, generated);
                    prop_assert_eq!(format!("{head}{}", pieces.concat()), &whole[..], "{} {}", name, split);
                    // Whole characters only.
                    let broken = |text: &str| text.contains(char::REPLACEMENT_CHARACTER);
                    prop_assert!(broken(&whole) || !pieces.iter().any(|piece| broken(piece)));
                }
            }
        }

        #[test]
        fn any_bytes_become_what_unicode_says(bytes_in in prop::collection::vec(prop_oneof![any::<u8>(), Just(0xE2), Just(0x82), Just(0xF0)], 0..24)) {
            let vocabulary = vocabulary(samples::byte_level());
            let tokens = bytes(&vocabulary, &bytes_in);
            prop_assert_eq!(pieces(&vocabulary, &[], &tokens).concat(), String::from_utf8_lossy(&bytes_in));
            prop_assert_eq!(vocabulary.decode(&tokens), String::from_utf8_lossy(&bytes_in));
        }
    }
}
