//! What Llama's and Gemma's tokenizer classes put around a text. In transformers 4, and so in TGI, they do not ask
//! tokenizer.json but `add_bos_token` and `add_eos_token` of tokenizer_config.json, and DeepSeek's tokenizer.json adds
//! nothing. Called by `files`, for each model that it reads; knows nothing of chats, which get no tokens added.

use serde_json::{Map, Value, json};
use tokenizers::{PostProcessorWrapper, Tokenizer};

use super::special_tokens::token_text;

/// The classes whose flags count, without `Fast`, each with the tokens that it has where the file names none. Of other
/// classes' files many have the flags as well, and nobody reads them.
const CLASSES: [(&str, &str, &str); 4] = [
    ("LlamaTokenizer", "<s>", "</s>"),
    ("CodeLlamaTokenizer", "<s>", "</s>"),
    ("GemmaTokenizer", "<bos>", "<eos>"),
    ("CohereTokenizer", "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"),
];

/// In place of tokenizer.json's post-processor the one that the class makes of its flags. `field` is a field of
/// tokenizer_config.json. A token that the tokenizer does not have leaves all as it is.
pub fn follow_class<'v>(tokenizer: &mut Tokenizer, field: impl Fn(&str) -> Option<&'v Value>) {
    let class = field("tokenizer_class").and_then(Value::as_str).unwrap_or_default();
    let class = class.strip_suffix("Fast").unwrap_or(class);
    let Some((_, bos, eos)) = CLASSES.into_iter().find(|(name, ..)| *name == class) else { return };

    let mut special_tokens = Map::new();
    let mut token = |flag: &str, default: bool, name: &str, otherwise: &str| {
        if !field(flag).and_then(Value::as_bool).unwrap_or(default) {
            return Some(None);
        }
        let text = match field(name) {
            Some(value) => token_text(value)?,
            None => otherwise,
        };
        let id = tokenizer.token_to_id(text)?;
        special_tokens.insert(text.to_owned(), json!({"id": text, "ids": [id], "tokens": [text]}));
        Some(Some(json!({"SpecialToken": {"id": text, "type_id": 0}})))
    };
    let (Some(before), Some(after)) =
        (token("add_bos_token", true, "bos_token", bos), token("add_eos_token", false, "eos_token", eos))
    else {
        tracing::warn!(
            "a {class} begins a text with `bos_token` and ends it with `eos_token` as `add_bos_token` and \
             `add_eos_token` of tokenizer_config.json say, but this model's has no such token: texts get what \
             tokenizer.json adds"
        );
        return;
    };

    let text = |name: &str| json!({"Sequence": {"id": name, "type_id": 0}});
    let single: Vec<Value> = before.into_iter().chain([text("A")]).chain(after).collect();
    // Two texts at once are never tokenized.
    let template = json!({
        "type": "TemplateProcessing", "single": single, "pair": [text("A"), text("B")], "special_tokens": special_tokens
    });
    match serde_json::from_value::<PostProcessorWrapper>(template) {
        Ok(template) => {
            tokenizer.with_post_processor(Some(template));
        }
        Err(error) => tracing::warn!("what a {class} adds to a text is not added: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::samples;

    /// The names of the tokens of `lo`.
    fn tokens(mut tokenizer: Tokenizer, config: Value) -> Vec<String> {
        follow_class(&mut tokenizer, |name| config.get(name));
        tokenizer.encode("lo", true).unwrap().get_tokens().to_vec()
    }

    #[test]
    fn a_llama_class_adds_what_its_flags_say() {
        let end = "<|end|>";
        let named = |class: &str, flags: Value| {
            let mut config =
                json!({"tokenizer_class": class, "bos_token": end, "eos_token": end, "pad_token": null});
            config.as_object_mut().unwrap().extend(flags.as_object().unwrap().clone());
            tokens(samples::byte_level(), config)
        };
        for class in ["LlamaTokenizer", "LlamaTokenizerFast", "GemmaTokenizerFast", "CohereTokenizer"] {
            assert_eq!(named(class, json!({})), [end, "l", "o"], "{class}");
            assert_eq!(named(class, json!({"add_bos_token": true})), [end, "l", "o"], "{class}");
            assert_eq!(named(class, json!({"add_bos_token": null})), [end, "l", "o"], "{class}");
            assert_eq!(named(class, json!({"add_bos_token": false})), ["l", "o"], "{class}");
            assert_eq!(named(class, json!({"add_eos_token": true})), [end, "l", "o", end], "{class}");
        }
        for class in ["PreTrainedTokenizerFast", "GPT2Tokenizer", "Qwen2Tokenizer"] {
            assert_eq!(named(class, json!({"add_bos_token": true, "add_eos_token": true})), ["l", "o"]);
        }
        assert_eq!(
            tokens(samples::byte_level(), json!({"add_bos_token": true, "bos_token": end})),
            ["l", "o"]
        );
    }

    #[test]
    fn the_flags_go_before_the_template_of_tokenizer_json() {
        let plain = json!({"tokenizer_class": "LlamaTokenizer"});
        assert_eq!(tokens(samples::sentencepiece(), plain), ["<s>", "▁", "lo"]);
        let none = json!({"tokenizer_class": "LlamaTokenizer", "add_bos_token": false});
        assert_eq!(tokens(samples::sentencepiece(), none), ["▁", "lo"]);
        let both = json!({"tokenizer_class": "LlamaTokenizerFast", "add_eos_token": true});
        assert_eq!(tokens(samples::sentencepiece(), both), ["<s>", "▁", "lo", "</s>"]);
    }

    #[test]
    fn a_token_that_is_not_there_changes_nothing() {
        for bos in [Value::Null, json!("<absent>")] {
            let config =
                json!({"tokenizer_class": "LlamaTokenizer", "add_bos_token": true, "bos_token": bos});
            assert_eq!(tokens(samples::sentencepiece(), config.clone()), ["<s>", "▁", "lo"]);
            assert_eq!(tokens(samples::byte_level(), config), ["l", "o"]);
        }
        // Nor does one that is not asked for.
        let config = json!({"tokenizer_class": "LlamaTokenizer", "eos_token": null});
        assert_eq!(tokens(samples::sentencepiece(), config), ["<s>", "▁", "lo"]);
    }
}
