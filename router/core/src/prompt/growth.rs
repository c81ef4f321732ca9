//! How much longer a tokenizer.json may make a text. Its normalizer, pre-tokenizer and decoder replace texts by others of
//! any length, one replacement after the other, and its post-processor adds tokens: a small file could make gigabytes
//! of one request. Asked by `files` before the tokenizer is built, since building one normalizes its added tokens.
//!
//! What is counted is an upper bound: each replacement is taken to match all of a text.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;

/// Times that a text may grow. Published tokenizers: a space becomes `▁` (3 bytes), after one at the beginning.
const MAX_GROWTH: u64 = 64;
/// Tokens that may be added around a text. Published tokenizers: one to four.
const MAX_ADDED: usize = 1024;

/// The parts that make something longer. Unknown kinds are left to the tokenizer's own loader.
#[derive(Deserialize)]
struct Parts {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    decoder: Value,
    #[serde(default)]
    post_processor: Value,
}

/// `Err` says which part of the file makes texts too long. What is no tokenizer at all is not looked at.
pub fn check(file: &[u8]) -> Result<(), String> {
    let Ok(parts) = serde_json::from_slice::<Parts>(file) else { return Ok(()) };
    for (name, part) in [
        ("normalizer", &parts.normalizer),
        ("pre_tokenizer", &parts.pre_tokenizer),
        ("decoder", &parts.decoder),
    ] {
        let times = growth(part, &mut false);
        if times > MAX_GROWTH {
            return Err(format!(
                "its {name} may make a text {times} times as long; {MAX_GROWTH} times are allowed"
            ));
        }
    }
    let added = added_tokens(&parts.post_processor);
    if added > MAX_ADDED {
        return Err(format!("its post_processor adds {added} tokens to a text; {MAX_ADDED} are allowed"));
    }
    Ok(())
}

fn length(text: &Value) -> u64 {
    text.as_str().map_or(0, str::len) as u64
}

fn list<'v>(part: &'v Value, name: &str) -> impl Iterator<Item = &'v Value> {
    part.get(name).and_then(Value::as_array).into_iter().flatten()
}

/// Of a normalizer, a pre-tokenizer or a decoder: bytes that one byte may become. `has_table`: after a table of
/// characters.
fn growth(part: &Value, has_table: &mut bool) -> u64 {
    match part.get("type").and_then(Value::as_str) {
        Some("Sequence") => ["normalizers", "pretokenizers", "decoders"]
            .into_iter()
            .flat_map(|name| list(part, name))
            .map(|part| growth(part, has_table))
            .fold(1, u64::saturating_mul),
        // Two bytes for a space, and for each beyond ASCII; a decoder does the opposite.
        Some("ByteLevel") => 2,
        // Spaces around each Chinese character.
        Some("BertNormalizer") => 2,
        Some("Metaspace") => 1 + length(&part["replacement"]),
        // Put before each piece between special tokens, which may be one character.
        Some("Prepend") => 1 + length(&part["prepend"]),
        Some("Replace") => {
            let content = length(&part["content"]);
            match length(&part["pattern"]["String"]) {
                // A regular expression may match the empty text before each character.
                0 => 1 + content,
                pattern => content.div_ceil(pattern).max(1),
            }
        }
        // SentencePiece's table of characters and what becomes of them.
        Some("Precompiled") => {
            let table = part["precompiled_charsmap"].as_str().unwrap_or_default();
            // Published tables have 33 bytes for a character of three, and are otherwise Unicode's own forms. One table
            // makes a text little longer; several, one after the other, as often as they say.
            match longest_entry(table) {
                entry if entry <= MAX_GROWTH && !std::mem::replace(has_table, true) => 1,
                entry => entry.max(1),
            }
        }
        _ => 1,
    }
}

/// The table is a trie after its length, then texts that end with a zero byte.
fn longest_entry(table: &str) -> u64 {
    let Ok(bytes) = STANDARD.decode(table) else { return 0 };
    let Some((length, rest)) = bytes.split_first_chunk() else { return 0 };
    let texts = rest.get(u32::from_le_bytes(*length) as usize..).unwrap_or_default();
    texts.split(|byte| *byte == 0).map(<[u8]>::len).max().unwrap_or(0) as u64
}

fn added_tokens(part: &Value) -> usize {
    match part.get("type").and_then(Value::as_str) {
        Some("Sequence") => list(part, "processors").map(added_tokens).fold(0, usize::saturating_add),
        Some("TemplateProcessing") => list(part, "single")
            .filter_map(|piece| piece.get("SpecialToken")?.get("id")?.as_str())
            .map(|name| list(&part["special_tokens"][name], "ids").count())
            .fold(0, usize::saturating_add),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::samples;
    use serde_json::json;

    fn refusal(part: &str, value: Value) -> Option<String> {
        check(json!({"version": "1.0", part: value, "model": {}}).to_string().as_bytes()).err()
    }

    fn replace(pattern: Value, content: &str) -> Value {
        json!({"type": "Replace", "pattern": pattern, "content": content})
    }

    #[test]
    fn what_published_tokenizers_do_is_allowed() {
        for tokenizer in [samples::byte_level(), samples::sentencepiece(), samples::wordpiece()] {
            assert_eq!(check(tokenizer.to_string(false).unwrap().as_bytes()), Ok(()));
        }
        let llama = json!([{"type": "Prepend", "prepend": "▁"}, replace(json!({"String": " "}), "▁")]);
        assert_eq!(refusal("normalizer", json!({"type": "Sequence", "normalizers": llama})), None);
        let t5 = replace(json!({"Regex": " {2,}"}), "▁");
        assert_eq!(refusal("normalizer", t5), None);
        let albert = json!([
            replace(json!({"String": "``"}), "\""), replace(json!({"String": "''"}), "\""), {"type": "NFKD"},
            {"type": "StripAccents"}, {"type": "Lowercase"}
        ]);
        assert_eq!(refusal("normalizer", json!({"type": "Sequence", "normalizers": albert})), None);
        assert_eq!(check(b"no tokenizer"), Ok(()));
    }

    #[test]
    fn texts_that_would_blow_up_are_refused() {
        let long = "x".repeat(1000);
        let twice: Vec<Value> = (0..30).map(|_| replace(json!({"String": "a"}), "aa")).collect();
        let nested = json!({"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": twice}]});
        for normalizer in [
            json!({"type": "Prepend", "prepend": long}),
            replace(json!({"String": "a"}), &long),
            replace(json!({"String": ""}), &long),
            replace(json!({"Regex": "."}), &long),
            nested,
        ] {
            let refused = refusal("normalizer", normalizer).unwrap();
            assert!(refused.contains("its normalizer may make a text"), "{refused}");
        }
        let twice: Vec<Value> = (0..30).map(|_| replace(json!({"String": "a"}), "aa")).collect();
        let refused = refusal("decoder", json!({"type": "Sequence", "decoders": twice})).unwrap();
        assert!(refused.contains("its decoder may make a text 1073741824 times as long"), "{refused}");
    }

    #[test]
    fn letters_for_bytes_are_written_once() {
        let letters = json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false});
        for (part, list) in [("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers")] {
            assert_eq!(refusal(part, json!({"type": "Sequence", list: [letters, letters]})), None);
            let often = json!({"type": "Sequence", list: vec![letters.clone(); 30]});
            let refused = refusal(part, often).unwrap();
            assert!(refused.contains(&format!("its {part} may make a text 1073741824 times")), "{refused}");
        }
    }

    #[test]
    fn a_table_of_characters_with_long_texts_is_refused() {
        let table = |longest: usize| {
            let bytes = [&4_u32.to_le_bytes()[..], &[0; 4], b"a\0", &b"b".repeat(longest), b"\0"].concat();
            json!({"type": "Precompiled", "precompiled_charsmap": STANDARD.encode(bytes)})
        };
        assert_eq!(refusal("normalizer", table(33)), None);
        let twice = json!({"type": "Sequence", "normalizers": [table(33), table(33)]});
        assert_eq!(refusal("normalizer", twice), None);
        let thrice = json!({"type": "Sequence", "normalizers": [table(33), table(33), table(33)]});
        assert!(refusal("normalizer", thrice).unwrap().contains("1089 times"));
        assert!(refusal("normalizer", table(100_000)).unwrap().contains("100000 times"));
    }

    #[test]
    fn tokens_are_not_added_by_the_thousands() {
        let template = |times: usize, ids: usize| {
            let piece = json!({"SpecialToken": {"id": "<s>", "type_id": 0}});
            let special = json!({"<s>": {"id": "<s>", "ids": vec![1; ids], "tokens": vec!["<s>"; ids]}});
            json!({"type": "TemplateProcessing", "single": vec![piece; times], "special_tokens": special})
        };
        assert_eq!(refusal("post_processor", template(2, 1)), None);
        let refused = refusal("post_processor", template(1000, 1000)).unwrap();
        assert!(refused.contains("adds 1000000 tokens"), "{refused}");
    }
}
