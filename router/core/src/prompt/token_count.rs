//! A lower bound of the number of tokens of a text, so that a prompt that is certainly too long is refused before it is
//! tokenized. Called by `Vocabulary`; knows for which tokenizers there is such a bound.

use serde_json::Value;
use tokenizers::Tokenizer;
use tokenizers::models::ModelWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use super::byte_level::bytes_of_name;

/// SentencePiece's sign for a space.
const META: char = '▁';

/// Unicode's normalization form C makes a text at most 3.5 times shorter: U+1FBE U+0308 U+0301 (7 bytes) is U+0390 (2).
const COMPOSED: usize = 4;

/// And at most 3 times longer (Unicode Standard Annex #15), which concerns the texts of added tokens.
const DECOMPOSED: usize = 3;

/// How byte fallback names the token of a byte.
const BYTE_NAME: &str = "<0x00>";

/// How much of a token each byte of a text is at least: one of the longest token that has this byte. No token's bytes
/// add up to more than one, so a text has at least the sum of its bytes. Whitespace is not counted: added tokens may
/// take any amount of it along, and its longest tokens are much longer than words.
#[derive(Clone, Debug)]
pub struct TokenCountLowerBound {
    shares: Box<[f64; 256]>,
    /// No token stands for more visible bytes of a text, as it is before it is normalized.
    bytes_per_token: usize,
    /// The normalizer composes characters: the shares are of bytes that a text may not have yet, unless it is ASCII.
    composes: bool,
}

impl TokenCountLowerBound {
    /// `None` for a tokenizer that may drop or shorten parts of a text, or make one token of any number of unknown
    /// characters (Unigram, WordPiece, most normalizers): there a text of any length may have few tokens.
    pub fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let ModelWrapper::BPE(model) = tokenizer.get_model() else { return None };
        let decorates = |affix: &Option<String>| affix.as_ref().is_some_and(|affix| !affix.is_empty());
        if decorates(&model.continuing_subword_prefix) || decorates(&model.end_of_word_suffix) {
            return None;
        }
        let byte_level = is_byte_level(&serde_json::to_value(tokenizer.get_pre_tokenizer()).ok()?)?;
        let composed = shortens(&serde_json::to_value(tokenizer.get_normalizer()).ok()?)?;
        let vocabulary = model.get_vocab();
        // Or the model would drop what it does not know, or make one token of any number of such characters.
        let knows_all = match byte_level {
            true => ByteLevel::alphabet().iter().all(|c| vocabulary.contains_key(&c.to_string())),
            false => {
                let byte = |byte: u8| vocabulary.contains_key(&format!("<0x{byte:02X}>"));
                model.byte_fallback && (0..=255).all(byte)
            }
        };
        if !knows_all {
            return None;
        }
        let mut longest_with = [1; 256];
        for name in vocabulary.keys() {
            let bytes = if byte_level { bytes_of_name(name) } else { name.as_bytes().to_vec() };
            let length = visible(&bytes);
            // Bytes of byte fallback merged into one token: the text has the bytes that the name spells, not its letters.
            match !byte_level && name.len() > BYTE_NAME.len() && name.contains(&BYTE_NAME[..3]) {
                true => longest_with.iter_mut().for_each(|longest| *longest = length.max(*longest)),
                false => raise(&mut longest_with, &bytes, length),
            }
        }
        for token in tokenizer.get_added_tokens_decoder().values() {
            let times = if token.normalized && composed > 1 { DECOMPOSED } else { 1 };
            raise(&mut longest_with, token.content.as_bytes(), token.content.len() * times);
        }
        let longest = longest_with.into_iter().max().unwrap_or(1);
        Some(Self {
            shares: Box::new(longest_with.map(|longest| 1.0 / longest as f64)),
            bytes_per_token: longest * composed,
            composes: composed > 1,
        })
    }

    /// A text has at least so many tokens.
    pub fn of_text(&self, text: &str) -> usize {
        let counted = text.chars().filter(|c| !c.is_whitespace() && *c != META);
        if self.composes && !text.is_ascii() {
            return counted.map(char::len_utf8).sum::<usize>().div_ceil(self.bytes_per_token);
        }
        let mut counts = [0_u64; 256];
        let mut buffer = [0; 4];
        for c in counted {
            for byte in c.encode_utf8(&mut buffer).bytes() {
                counts[usize::from(byte)] += 1;
            }
        }
        let shares: f64 =
            counts.iter().zip(self.shares.iter()).map(|(&count, share)| count as f64 * share).sum();
        // Less what the additions may have rounded up.
        (shares * (1.0 - 1e-9) - 1e-9).ceil() as usize
    }
}

fn visible(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| !byte.is_ascii_whitespace()).count()
}

fn raise(longest_with: &mut [usize; 256], bytes: &[u8], length: usize) {
    for byte in bytes {
        let longest = &mut longest_with[usize::from(*byte)];
        *longest = length.max(*longest);
    }
}

/// Whether texts are written as one character for each byte; `None` for a pre-tokenizer that does more than to cut a
/// text, to write it so, and to write and add spaces.
fn is_byte_level(pre_tokenizer: &Value) -> Option<bool> {
    let mut byte_level = false;
    for part in parts(pre_tokenizer, "pretokenizers") {
        match part["type"].as_str()? {
            "ByteLevel" => byte_level = true,
            "Metaspace" if part["replacement"] == META.to_string() => {}
            "Split" | "Punctuation" if part["behavior"] != "Removed" => {}
            "Digits" => {}
            _ => return None,
        }
    }
    Some(byte_level)
}

/// How many times shorter the normalizer may make a text; `None` for one that does more than to compose characters, and
/// than SentencePiece's, which writes spaces as it does and puts one before the text.
fn shortens(normalizer: &Value) -> Option<usize> {
    let mut times = 1;
    for part in parts(normalizer, "normalizers") {
        match part["type"].as_str()? {
            "NFC" => times = COMPOSED,
            "Prepend" if part["prepend"] == META.to_string() => {}
            "Replace" if part["pattern"]["String"] == " " && part["content"] == META.to_string() => {}
            _ => return None,
        }
    }
    Some(times)
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
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../server/penstock/tiny/model/tokenizer.json");
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
            token("\u{1d160}").normalized(true),
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
    fn the_bound_of_a_long_text_grows_with_its_length() {
        let text = "hello lo, hello hello le  llo\n".repeat(200);
        for (name, tokenizer) in known() {
            let bound = TokenCountLowerBound::of(&tokenizer).expect(name).of_text(&text);
            assert!(bound <= count(&tokenizer, &text), "{name}");
            assert!(bound > text.len() / 200, "{name}: {bound}");
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
        let bound = TokenCountLowerBound::of(&tokenizer).unwrap().of_text(&text);
        assert!((30..=100).contains(&bound), "{bound}");
    }

    #[test]
    fn characters_that_compose_to_shorter_ones_are_allowed_for() {
        let tokenizer = normalizer(samples::byte_level(), json!({"type": "NFC"}));
        let bound = TokenCountLowerBound::of(&tokenizer).unwrap();
        let text = "\u{1fbe}\u{308}\u{301}".repeat(1000);
        assert_eq!(count(&tokenizer, &text), 2000);
        assert!((100..=2000).contains(&bound.of_text(&text)));
        assert_eq!(bound.of_text(&" \n\u{3000}".repeat(1000)), 0);
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
        assert!(TokenCountLowerBound::of(&cut("Isolated")).is_some());
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
            assert!(TokenCountLowerBound::of(&tokenizer).is_none(), "{what}");
        }
        // Without byte fallback, or with some bytes only, unknown characters are one token, or none.
        for change in [
            |model: &mut Value| model["byte_fallback"] = json!(false),
            |model: &mut Value| {
                model["vocab"].as_object_mut().unwrap().remove("<0x41>");
            },
            |model: &mut Value| model["end_of_word_suffix"] = json!("</w>"),
        ] {
            let mut tokenizer = serde_json::to_value(samples::sentencepiece()).unwrap();
            change(&mut tokenizer["model"]);
            assert!(TokenCountLowerBound::of(&tokenizer.to_string().parse().unwrap()).is_none());
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
            "\u{1fbe}\u{308}\u{301}",
            "\u{1d160}",
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
        let known: Vec<(&str, Tokenizer, TokenCountLowerBound)> = known()
            .into_iter()
            .map(|(name, tokenizer)| {
                let bound = TokenCountLowerBound::of(&tokenizer).expect(name);
                (name, tokenizer, bound)
            })
            .collect();
        proptest!(ProptestConfig::with_cases(600), |(text in any_text(), times in 1..4_usize)| {
            let text = text.repeat(times);
            for (name, tokenizer, bound) in &known {
                let (tokens, bound) = (count(tokenizer, &text), bound.of_text(&text));
                prop_assert!(bound <= tokens, "{name}: {tokens} tokens, and the bound is {bound}");
            }
        });
    }
}
