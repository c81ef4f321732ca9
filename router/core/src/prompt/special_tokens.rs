//! Which tokens the fields of tokenizer_config.json, and of special_tokens_map.json, name or call special. Called by `files`, which
//! reads them; `post_processor` asks for the text of a token.

use serde_json::{Map, Value};

/// `bos_token`, `eos_token` and alike with their texts.
pub fn named(config: &Map<String, Value>) -> Map<String, Value> {
    config
        .iter()
        .filter(|(name, _)| name.ends_with("_token"))
        .filter_map(|(name, value)| Some((name.clone(), Value::from(token_text(value)?))))
        .collect()
}

/// The named ones, and those that are called special without a name.
pub fn all(config: &Map<String, Value>, named: &Map<String, Value>) -> Vec<String> {
    let mut special: Vec<String> = named.values().filter_map(Value::as_str).map(str::to_owned).collect();
    for list in ["additional_special_tokens", "extra_special_tokens"] {
        match config.get(list) {
            Some(Value::Array(tokens)) => {
                special.extend(tokens.iter().filter_map(token_text).map(str::to_owned))
            }
            Some(Value::Object(tokens)) => {
                special.extend(tokens.values().filter_map(token_text).map(str::to_owned))
            }
            _ => {}
        }
    }
    for token in
        config.get("added_tokens_decoder").and_then(Value::as_object).into_iter().flat_map(Map::values)
    {
        if token.get("special").and_then(Value::as_bool) == Some(true) {
            special.extend(token_text(token).map(str::to_owned));
        }
    }
    special
}

/// A token is a string, or an object that holds it.
pub fn token_text(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token.get("content")?.as_str())
}
