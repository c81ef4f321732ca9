//! The fewest tokens that a text can have: what is certainly too long is refused before all of it is tokenized.
//! Called by `Vocabulary`; knows of which tokenizers anything is certain, and is silent about all others.
//!
//! A tokenizer cuts a text into pieces that are in its vocabulary. Here the cut with the fewest pieces is found,
//! from left to right, whatever the tokenizer's own reasons for a cut (merges, words): it never has more of them
//! than the tokenizer's. Reading stops where the limit is passed, however long the text is.

use std::borrow::Cow;

use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::Value;
use tokenizers::models::ModelWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{NormalizedString, Normalizer, Tokenizer};
use unicode_normalization_alignments::{IsNormalized, is_nfc_quick};

use super::vocabulary::bytes_of_byte_level;

/// SentencePiece's sign for a space.
const META: &str = "▁";

pub struct Fewest {
    /// What tokens stand for in a text; and every byte, because a text may be cut anywhere.
    pieces: AhoCorasick,
    /// The first so many pieces cost nothing: spaces, where added tokens take those beside them along.
    free: usize,
    /// Of a piece, in bytes.
    longest: usize,
    alphabet: Alphabet,
    /// Texts are brought into Unicode's normalization form C before they are cut.
    composes: bool,
}

/// How a vocabulary writes texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Alphabet {
    /// Each byte as a character of its own.
    ByteLevel,
    /// As they are, but for spaces; characters that are not in the vocabulary as bytes (`<0xE2>`).
    SentencePiece,
}

impl Fewest {
    /// `None` for a tokenizer that may drop or shorten parts of a text, or make one token of any number of
    /// unknown characters (Unigram, WordPiece, most normalizers): there a text of any length may have few.
    pub fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let ModelWrapper::BPE(model) = tokenizer.get_model() else { return None };
        let decorates = |affix: &Option<String>| affix.as_ref().is_some_and(|affix| !affix.is_empty());
        if decorates(&model.continuing_subword_prefix) || decorates(&model.end_of_word_suffix) {
            return None;
        }
        let alphabet = Alphabet::of(&serde_json::to_value(tokenizer.get_pre_tokenizer()).ok()?)?;
        let composes = composes(&serde_json::to_value(tokenizer.get_normalizer()).ok()?, alphabet)?;
        let vocabulary = model.get_vocab();
        // Or the model would drop what it does not know, or make one token of any number of such characters.
        let knows_all = match alphabet {
            Alphabet::ByteLevel => {
                ByteLevel::alphabet().iter().all(|c| vocabulary.contains_key(&c.to_string()))
            }
            Alphabet::SentencePiece => {
                model.byte_fallback && (0..=255).all(|byte| vocabulary.contains_key(&byte_name(byte)))
            }
        };
        // A token that was merged from such bytes stands for another text than its name.
        let merges_bytes =
            |name: &String| name.contains("<0x") && !(0..=255).any(|byte| *name == byte_name(byte));
        if !knows_all || (alphabet == Alphabet::SentencePiece && vocabulary.keys().any(merges_bytes)) {
            return None;
        }

        let mut pieces = Vec::with_capacity(vocabulary.len() * 2);
        let added = tokenizer.get_added_tokens_decoder();
        if added.values().any(|token| token.lstrip || token.rstrip) {
            let spaces = ('\0'..='\u{3000}').filter(|c| c.is_whitespace());
            pieces.extend(spaces.map(|space| space.to_string().into_bytes()));
        }
        let free = pieces.len();
        pieces.extend((0..=255).map(|byte| vec![byte]));
        for name in vocabulary.keys() {
            match alphabet {
                Alphabet::ByteLevel => push(&mut pieces, bytes_of_byte_level(name)),
                Alphabet::SentencePiece => push(&mut pieces, alphabet.plain(name).into_owned()),
            }
        }
        for token in added.values() {
            push(&mut pieces, alphabet.plain(&token.content).into_owned());
            if let Some(normalizer) = tokenizer.get_normalizer() {
                let mut content = NormalizedString::from(token.content.as_str());
                normalizer.normalize(&mut content).ok()?;
                push(&mut pieces, alphabet.plain(content.get()).into_owned());
            }
        }
        let longest = pieces.iter().map(Vec::len).max()?;
        let pieces = AhoCorasick::builder().match_kind(MatchKind::Standard).build(&pieces).ok()?;
        Some(Self { pieces, free, longest, alphabet, composes })
    }

    /// Whether the text certainly has more than `most` tokens. False says nothing.
    pub fn is_above(&self, most: usize, text: &str) -> bool {
        // If so, it is its own composition, and so is each part of it.
        if self.composes && is_nfc_quick(text.chars()) != IsNormalized::Yes {
            return false;
        }
        let text = self.alphabet.plain(text);
        // The fewest pieces up to each of the last bytes, in a ring. Every byte is a piece: a match ends at each
        // byte, and they come in the order of their ends.
        let ring = (self.longest + 1).next_power_of_two();
        let mut fewest = vec![0_usize; ring];
        let mut end = 0;
        let mut above = 0;
        for piece in self.pieces.find_overlapping_iter(text.as_ref()) {
            if piece.end() > end {
                above = if fewest[end % ring] > most { above + 1 } else { 0 };
                // No piece is long enough to reach over all of them, so that every cut goes through one.
                if above == self.longest {
                    return true;
                }
                end = piece.end();
                fewest[end % ring] = usize::MAX;
            }
            let cost = usize::from(piece.pattern().as_usize() >= self.free);
            let count = fewest[piece.start() % ring] + cost;
            fewest[end % ring] = fewest[end % ring].min(count);
        }
        fewest[end % ring] > most
    }
}

/// Adds a piece, and the same without its first space: some tokenizers put one before a text.
fn push(pieces: &mut Vec<Vec<u8>>, piece: Vec<u8>) {
    match piece.strip_prefix(b" ") {
        Some([]) | None => {}
        Some(rest) => pieces.push(rest.to_vec()),
    }
    if !piece.is_empty() {
        pieces.push(piece);
    }
}

fn byte_name(byte: u8) -> String {
    format!("<0x{byte:02X}>")
}

impl Alphabet {
    /// `None` for a pre-tokenizer that does more than to cut a text, to write it so, and to put a space before.
    fn of(pre_tokenizer: &Value) -> Option<Self> {
        let (mut byte_levels, mut metaspaces) = (0, 0);
        for part in parts(pre_tokenizer, "pretokenizers") {
            match part["type"].as_str()? {
                "ByteLevel" => byte_levels += 1,
                "Metaspace" if part["replacement"] == META => metaspaces += 1,
                "Split" | "Punctuation" if part["behavior"] != "Removed" => {}
                "Digits" => {}
                _ => return None,
            }
        }
        match (byte_levels, metaspaces) {
            (1, 0) => Some(Self::ByteLevel),
            (0, _) => Some(Self::SentencePiece),
            _ => None,
        }
    }

    /// A text as pieces are looked for in it: SentencePiece does not tell a space from its sign for one.
    fn plain(self, text: &str) -> Cow<'_, [u8]> {
        match self {
            Self::SentencePiece if text.contains(META) => text.replace(META, " ").into_bytes().into(),
            _ => text.as_bytes().into(),
        }
    }
}

/// Whether the normalizer composes characters; `None` for one that does more than that, or than SentencePiece's,
/// which writes spaces as it does and puts one before the text.
fn composes(normalizer: &Value, alphabet: Alphabet) -> Option<bool> {
    let mut composes = false;
    for part in parts(normalizer, "normalizers") {
        match (alphabet, part["type"].as_str()?) {
            (Alphabet::ByteLevel, "NFC") => composes = true,
            (Alphabet::SentencePiece, "Prepend") if part["prepend"] == META => {}
            (Alphabet::SentencePiece, "Replace")
                if part["pattern"]["String"] == " " && part["content"] == META => {}
            _ => return None,
        }
    }
    Some(composes)
}

/// What it is made of, whatever the nesting; nothing for null.
fn parts<'a>(value: &'a Value, list: &str) -> Vec<&'a Value> {
    match value.get(list).and_then(Value::as_array) {
        Some(members) => members.iter().flat_map(|part| parts(part, list)).collect(),
        None if value.is_null() => Vec::new(),
        None => vec![value],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::samples;
    use proptest::prelude::*;
    use serde_json::json;
    use tokenizers::{AddedToken, NormalizerWrapper, PreTokenizerWrapper};

    fn shipped() -> Tokenizer {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../server/penstock/tiny/model/tokenizer.json");
        Tokenizer::from_file(file).unwrap()
    }

    fn normalizer(mut tokenizer: Tokenizer, normalizer: Value) -> Tokenizer {
        let normalizer: NormalizerWrapper = serde_json::from_value(normalizer).unwrap();
        tokenizer.with_normalizer(Some(normalizer)).unwrap();
        tokenizer
    }

    fn pre_tokenizer(mut tokenizer: Tokenizer, part: Value) -> Tokenizer {
        tokenizer.with_pre_tokenizer(Some(serde_json::from_value::<PreTokenizerWrapper>(part).unwrap()));
        tokenizer
    }

    fn added(mut tokenizer: Tokenizer) -> Tokenizer {
        let token = |name| AddedToken::from(name, false);
        let tokens = [
            token("<left>").lstrip(true),
            token("<right>").rstrip(true).normalized(false),
            token("hello lo").normalized(true),
            token("hel").single_word(true),
            token("e\u{301}l").normalized(true),
            token("   ").normalized(false),
        ];
        tokenizer.add_tokens(tokens).unwrap();
        tokenizer
    }

    /// Every kind of which something is known.
    fn known() -> Vec<(&'static str, Tokenizer)> {
        let metaspace = |scheme| json!({"type": "Metaspace", "replacement": META, "prepend_scheme": scheme});
        let mut bare = samples::sentencepiece();
        bare.with_normalizer(None::<NormalizerWrapper>).unwrap();
        let prefix =
            json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
        vec![
            ("shipped", shipped()),
            ("byte level", samples::byte_level()),
            ("byte level, a space before", pre_tokenizer(samples::byte_level(), prefix)),
            ("byte level, composed", normalizer(samples::byte_level(), json!({"type": "NFC"}))),
            ("byte level, added", added(normalizer(samples::byte_level(), json!({"type": "NFC"})))),
            ("sentencepiece", samples::sentencepiece()),
            ("sentencepiece, added", added(samples::sentencepiece())),
            ("metaspace", pre_tokenizer(bare.clone(), metaspace("always"))),
            ("metaspace, first", added(pre_tokenizer(bare, metaspace("first")))),
        ]
    }

    fn count(tokenizer: &Tokenizer, text: &str) -> usize {
        tokenizer.encode_fast(text, false).unwrap().len()
    }

    #[test]
    fn a_long_text_is_above_a_limit_not_far_below_its_tokens() {
        let text = "hello lo, hello hello le  llo\n".repeat(200);
        for (name, tokenizer) in known() {
            let fewest = Fewest::of(&tokenizer).expect(name);
            let tokens = count(&tokenizer, &text);
            assert!(!fewest.is_above(tokens, &text), "{name}");
            // Its spaces may all belong to added tokens, or to the next word.
            assert!(fewest.is_above(tokens / 2, &text), "{name}");
        }
    }

    #[test]
    fn the_space_before_a_text_may_be_in_its_first_token() {
        let mut parts = serde_json::to_value(samples::sentencepiece()).unwrap();
        let model = &mut parts["model"];
        // No `ab` without the space.
        model["vocab"]["▁a"] = json!(600);
        model["vocab"]["▁ab"] = json!(601);
        model["merges"].as_array_mut().unwrap().extend([json!(["▁", "a"]), json!(["▁a", "b"])]);
        let tokenizer: Tokenizer = parts.to_string().parse().unwrap();
        let text = "ab</s>".repeat(50);
        assert_eq!(count(&tokenizer, &text), 100);
        let fewest = Fewest::of(&tokenizer).unwrap();
        assert!(fewest.is_above(99, &text) && !fewest.is_above(100, &text));
    }

    #[test]
    fn characters_that_compose_are_left_to_the_tokenizer() {
        let tokenizer = normalizer(samples::byte_level(), json!({"type": "NFC"}));
        let fewest = Fewest::of(&tokenizer).unwrap();
        assert!(fewest.is_above(10, &"é".repeat(100)));
        assert!(!fewest.is_above(10, &"e\u{301}".repeat(100)));
    }

    #[test]
    fn nothing_is_said_of_tokenizers_that_may_drop_or_join_what_they_do_not_know() {
        let split = |behavior| json!({"type": "Split", "pattern": {"String": " "}, "behavior": behavior, "invert": false});
        let sequence = |parts: Vec<Value>| json!({"type": "Sequence", "pretokenizers": parts});
        let byte_level =
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
        let cut = |behavior| {
            pre_tokenizer(samples::byte_level(), sequence(vec![split(behavior), byte_level.clone()]))
        };
        assert!(Fewest::of(&cut("Isolated")).is_some());
        for (what, tokenizer) in [
            ("unigram", samples::unigram()),
            ("wordpiece", samples::wordpiece()),
            ("parts are removed", cut("Removed")),
            ("spaces are lost", pre_tokenizer(samples::sentencepiece(), json!({"type": "WhitespaceSplit"}))),
            ("accents are lost", normalizer(samples::byte_level(), json!({"type": "StripAccents"}))),
            (
                "ends are lost",
                normalizer(
                    samples::byte_level(),
                    json!({"type": "Strip", "strip_left": true, "strip_right": true}),
                ),
            ),
            (
                "letters are replaced",
                normalizer(
                    samples::sentencepiece(),
                    json!({"type": "Replace", "pattern": {"String": "aaaa"}, "content": ""}),
                ),
            ),
        ] {
            assert!(Fewest::of(&tokenizer).is_none(), "{what}");
        }
        // Without byte fallback, or with some bytes only, unknown characters are one token, or none.
        for change in [
            |model: &mut Value| model["byte_fallback"] = json!(false),
            |model: &mut Value| {
                model["vocab"].as_object_mut().unwrap().remove("<0x41>");
            },
            |model: &mut Value| model["vocab"]["<0xE2><0x82>"] = json!(999),
            |model: &mut Value| model["end_of_word_suffix"] = json!("</w>"),
        ] {
            let mut tokenizer = serde_json::to_value(samples::sentencepiece()).unwrap();
            change(&mut tokenizer["model"]);
            assert!(Fewest::of(&tokenizer.to_string().parse().unwrap()).is_none());
        }
    }

    fn any_text() -> impl Strategy<Value = String> {
        let parts = [
            "hello",
            " hello",
            "lo",
            "▁",
            "▁hello",
            "<left>",
            "<right>",
            "   ",
            " \u{3000}",
            "hel",
            "<|end|>",
            "</s>",
            "e\u{301}",
            "él",
            "👩‍👩‍👧‍👦",
            "\u{338}",
            "<0x41>",
            "the server ",
        ];
        prop::collection::vec(
            prop_oneof![4 => prop::sample::select(parts.to_vec()).prop_map(str::to_owned), 1 => "[ a-z€é\n]{1,9}", 1 => "\\PC{1,3}"],
            0..40,
        )
        .prop_map(|parts| parts.concat())
    }

    #[test]
    fn no_text_is_said_to_have_more_tokens_than_it_has() {
        let known: Vec<(&str, Tokenizer, Fewest)> = known()
            .into_iter()
            .map(|(name, tokenizer)| {
                let fewest = Fewest::of(&tokenizer).expect(name);
                (name, tokenizer, fewest)
            })
            .collect();
        proptest!(ProptestConfig::with_cases(600), |(text in any_text(), times in 1..4_usize)| {
            let text = text.repeat(times);
            for (name, tokenizer, fewest) in &known {
                let tokens = count(tokenizer, &text);
                prop_assert!(!fewest.is_above(tokens, &text), "{name}: {tokens} tokens");
            }
        });
    }
}
