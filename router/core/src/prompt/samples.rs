//! Small tokenizers of every kind, for tests.

use serde_json::{Value, json};
use tokenizers::Tokenizer;

fn build(json: Value) -> Tokenizer {
    json.to_string().parse().expect("the sample is a tokenizer")
}

fn special(id: usize, name: &str) -> Value {
    json!({"id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false,
           "normalized": false, "special": true})
}

/// Byte-level BPE, as in GPT-2, Llama 3 or Qwen: all bytes, a few merges, `<|end|>` special.
pub fn byte_level() -> Tokenizer {
    let mut alphabet: Vec<char> =
        tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet().into_iter().collect();
    alphabet.sort_unstable();
    let mut names: Vec<String> = alphabet.into_iter().map(String::from).collect();
    // The last two cut characters in odd places: e2+82 begins the euro sign, and a9+Ġ ends an é.
    let merges =
        [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "hello"), ("â", "Ĥ"), ("©", "Ġ")];
    names.extend(merges.iter().map(|(a, b)| format!("{a}{b}")));
    let end = names.len();
    names.push("<|end|>".into());
    let vocab: Value = names.iter().enumerate().map(|(id, name)| (name.clone(), json!(id))).collect();
    build(json!({
        "version": "1.0",
        "added_tokens": [special(end, "<|end|>")],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges}
    }))
}

/// SentencePiece BPE with byte fallback, as in Llama 2 and Mistral: `<s>` is put before every text.
pub fn sentencepiece() -> Tokenizer {
    let mut names: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    names.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    names.push("▁".into());
    names.extend(('a'..='z').map(String::from));
    names.extend(["é", "!"].map(String::from));
    let merges = [("l", "o"), ("h", "e"), ("he", "l"), ("hel", "lo"), ("▁", "hello"), ("▁", "▁")];
    names.extend(merges.iter().map(|(a, b)| format!("{a}{b}")));
    let vocab: Value = names.iter().enumerate().map(|(id, name)| (name.clone(), json!(id))).collect();
    build(json!({
        "version": "1.0",
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges, "unk_token": "<unk>",
                  "fuse_unk": true, "byte_fallback": true}
    }))
}

/// WordPiece, as in BERT.
pub fn wordpiece() -> Tokenizer {
    let mut names: Vec<String> = ["[UNK]", "[SEP]", "hello", "##ing", ".", "!"].map(String::from).to_vec();
    names.extend(('a'..='z').map(String::from));
    names.extend(('a'..='z').map(|c| format!("##{c}")));
    let vocab: Value = names.iter().enumerate().map(|(id, name)| (name.clone(), json!(id))).collect();
    build(json!({
        "version": "1.0",
        "added_tokens": [special(0, "[UNK]"), special(1, "[SEP]")],
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "vocab": vocab, "unk_token": "[UNK]",
                  "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    }))
}

/// Unigram with a Metaspace decoder, as in T5 and XLNet.
pub fn unigram() -> Tokenizer {
    let mut vocab = vec![json!(["<unk>", 0.0]), json!(["</s>", 0.0])];
    vocab.extend(["▁hello", "▁", "lo", "▁▁"].map(|piece| json!([piece, -2.0])));
    vocab.extend(('a'..='z').map(|c| json!([c.to_string(), -5.0])));
    vocab.extend(["é", "😀"].map(|c| json!([c, -6.0])));
    build(json!({
        "version": "1.0",
        "added_tokens": [special(1, "</s>")],
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": false}
    }))
}
