//! What a vocabulary cannot spell. Most can spell every character; those without a token for each byte have the characters of the
//! texts that they were made of. Used by `grammar` and `parts`, before llguidance sees a value or a name that no text can have.

use std::collections::HashSet;

use serde_json::{Map, Value};

/// The characters that tokens give.
#[derive(Default)]
pub(crate) struct Spelling {
    whole: HashSet<char>,
    /// Bytes of which tokens give no whole character: a row of such tokens may be any that is made of them.
    pieces: HashSet<u8>,
}

impl Spelling {
    pub(crate) fn add(&mut self, token: &[u8]) {
        for chunk in token.utf8_chunks() {
            self.whole.extend(chunk.valid().chars().filter(|character| !character.is_ascii()));
            self.pieces.extend(chunk.invalid());
        }
    }

    /// Of a vocabulary that spells everything nothing need be known.
    pub(crate) fn settled(self) -> Option<Spelling> {
        let is_whole = (0x80..=0xbf).chain(0xc2..=0xf4).all(|byte| self.pieces.contains(&byte));
        (!is_whole).then_some(self)
    }

    /// The first character of a text that cannot be spelled.
    pub(crate) fn missing(&self, text: &str) -> Option<char> {
        let is_spelled = |character: &char| {
            character.is_ascii()
                || self.whole.contains(character)
                || character.encode_utf8(&mut [0; 4]).bytes().all(|byte| self.pieces.contains(&byte))
        };
        text.chars().find(|character| !is_spelled(character))
    }

    fn missing_in(&self, value: &Value) -> Option<char> {
        match value {
            Value::String(text) => self.missing(text),
            Value::Array(items) => items.iter().find_map(|item| self.missing_in(item)),
            Value::Object(members) => {
                members.iter().find_map(|(name, value)| self.missing(name).or_else(|| self.missing_in(value)))
            }
            _ => None,
        }
    }

    /// Takes values and names out of a core schema that cannot be spelled. Returns a character that is missing.
    pub(crate) fn restrict(&self, core: &mut Value) -> Option<char> {
        let Value::Object(members) = core else { return None };
        let mut missing = members.get("const").and_then(|value| self.missing_in(value));
        let mut is_impossible = missing.is_some();
        if let Some(Value::Array(options)) = members.get_mut("enum") {
            missing = missing.or_else(|| options.iter().find_map(|option| self.missing_in(option)));
            options.retain(|option| self.missing_in(option).is_none());
            is_impossible |= options.is_empty();
        }
        if is_impossible {
            *core = Value::Bool(false);
            return missing;
        }
        let required = members.get("required").and_then(Value::as_array).into_iter().flatten();
        let unspelled: Vec<String> = required
            .filter_map(Value::as_str)
            .filter(|name| self.missing(name).is_some())
            .map(str::to_owned)
            .collect();
        if !unspelled.is_empty()
            && let Value::Object(named) = members.entry("properties").or_insert_with(|| Map::new().into())
        {
            named.extend(unspelled.into_iter().map(|name| (name, Value::Bool(false))));
        }
        for (key, value) in members.iter_mut() {
            match (key.as_str(), value) {
                ("properties", Value::Object(named)) => {
                    for (name, schema) in named {
                        let within = self.restrict(schema);
                        if let Some(of_name) = self.missing(name) {
                            *schema = Value::Bool(false);
                            missing = Some(of_name);
                        }
                        missing = missing.or(within);
                    }
                }
                ("patternProperties" | "$defs", Value::Object(named)) => {
                    named.values_mut().for_each(|schema| missing = self.restrict(schema).or(missing));
                }
                ("prefixItems" | "allOf" | "anyOf", Value::Array(all)) => {
                    all.iter_mut().for_each(|schema| missing = self.restrict(schema).or(missing));
                }
                ("items" | "additionalProperties", schema) => missing = self.restrict(schema).or(missing),
                _ => {}
            }
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spelling(tokens: &[&[u8]]) -> Option<Spelling> {
        let mut spelling = Spelling::default();
        tokens.iter().for_each(|token| spelling.add(token));
        spelling.settled()
    }

    #[test]
    fn characters_are_whole_in_a_token_or_made_of_pieces() {
        let spelling = spelling(&[b"a", "né".as_bytes(), b"\xe6", b"\x97", b"\xa5x"]).expect("it lacks some");
        for (text, missing) in
            [("plain\n", None), ("éa", None), ("日", None), ("ü", Some('ü')), ("a日本", Some('本'))]
        {
            assert_eq!(spelling.missing(text), missing, "{text}");
        }
    }

    #[test]
    fn of_a_token_for_each_byte_nothing_is_kept() {
        let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
        let all: Vec<&[u8]> = bytes.iter().map(|byte| &byte[..]).collect();
        assert!(spelling(&all).is_none());
        assert!(spelling(&all[..0x80]).is_some());
    }

    #[test]
    fn a_core_keeps_what_can_be_spelled() {
        let spelling = spelling(&[b"a"]).expect("it lacks some");
        for (core, kept) in [
            (json!({"const": ["a", {"é": 1}]}), json!(false)),
            (json!({"enum": ["a", "é", 1]}), json!({"enum": ["a", 1]})),
            (json!({"enum": ["é"]}), json!(false)),
            (
                json!({"properties": {"é": {}, "a": {"items": {"const": "é"}}}}),
                json!({"properties": {"é": false, "a": {"items": false}}}),
            ),
            (json!({"required": ["a", "é"]}), json!({"required": ["a", "é"], "properties": {"é": false}})),
            (
                json!({"anyOf": [{"const": "é"}, {"$ref": "#/$defs/0"}], "$defs": {"0": {"enum": ["é", "a"]}}}),
                json!({"anyOf": [false, {"$ref": "#/$defs/0"}], "$defs": {"0": {"enum": ["a"]}}}),
            ),
        ] {
            let mut less = core.clone();
            assert_eq!((spelling.restrict(&mut less), less), (Some('é'), kept), "{core}");
        }
        let mut plain = json!({"properties": {"a": {"const": "a"}}});
        assert_eq!(spelling.restrict(&mut plain), None);
    }
}
