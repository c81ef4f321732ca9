//! What a grammar forces, in the tokens of the model's own tokenizer.

use std::sync::Arc;

use crate::patient;
use crate::synthetic::Vocabulary;
use penstock_constraint::{Cancel, Compiler, Grammar, Source, Token, Tokenize};
use serde_json::{Value, json};

/// A vocabulary of single bytes, the end, a special token and these words.
const EOS: u32 = 256;
const WORDS: [&str; 8] = ["name", "the_", "\": ", "city", "cities", "{\"", "\", \"", "true"];
const CALL: &str = "<|call|>";

fn spelled(tokens: &[u32]) -> String {
    let bytes = tokens.iter().flat_map(|&token| match token {
        word @ 258.. => WORDS[word as usize - 258].into(),
        257 => CALL.into(),
        byte => vec![byte as u8],
    });
    String::from_utf8(bytes.collect()).unwrap()
}

/// The longest word first, and special tokens by name, as tokenizers do it.
fn tokenize(text: &str) -> Vec<u32> {
    let mut tokens = Vec::new();
    let mut text = text.as_bytes();
    while let Some(&byte) = text.first() {
        let words = (0..).zip(WORDS).filter(|(_, word)| text.starts_with(word.as_bytes()));
        let word = words.max_by_key(|(_, word)| word.len());
        let (token, length) = match word {
            _ if text.starts_with(CALL.as_bytes()) => (257, CALL.len()),
            Some((at, word)) => (258 + at, word.len()),
            None => (u32::from(byte), 1),
        };
        tokens.push(token);
        text = &text[length..];
    }
    tokens
}

fn compile(source: Source, tokenize: Option<Tokenize>) -> Arc<Grammar> {
    let mut tokens = Vocabulary::new(257).tokens;
    tokens.push(Token { bytes: CALL.into(), special: true });
    tokens.extend(WORDS.map(|word| Token { bytes: word.into(), special: false }));
    let size = tokens.len();
    let compiler = Compiler::with_tokenizer(tokens, size, &[EOS], patient(), tokenize).unwrap();
    compiler.compile(source, &Cancel::new()).unwrap()
}

fn own() -> Option<Tokenize> {
    Some(Arc::new(tokenize))
}

/// Takes the lowest token that may follow until the grammar is complete; forced tokens at once, if asked for. How many
/// tokens were chosen, and all.
fn walk(grammar: &Grammar, most_forced: usize) -> (usize, Vec<u32>) {
    let (mut matcher, mut chosen, mut all) = (grammar.matcher(), 0, Vec::new());
    let mut mask = vec![0; grammar.mask_words()];
    loop {
        let forced = matcher.take_forced(most_forced).unwrap();
        assert!(forced.len() <= most_forced);
        all.extend(forced);
        if matcher.is_complete() {
            return (chosen, all);
        }
        matcher.mask(&mut mask).unwrap();
        let allowed = (0u32..).find(|token| mask[*token as usize / 32] >> (token % 32) & 1 == 1).unwrap();
        if allowed == EOS {
            return (chosen, all);
        }
        matcher.advance(allowed).unwrap();
        all.push(allowed);
        chosen += 1;
    }
}

fn place() -> Value {
    json!({
        "type": "object", "additionalProperties": false, "required": ["the_name", "city"],
        "properties": {"the_name": {"enum": [true]}, "city": {"enum": ["the_city", "the_cities"]}}
    })
}

#[test]
fn forced_text_is_spelled_as_the_tokenizer_spells_it() {
    let grammar = compile(Source::JsonSchema(place()), own());
    let mut matcher = grammar.matcher();
    let forced = matcher.take_forced(64).unwrap();
    // Behind the colon there may be space, which could belong to its token.
    assert_eq!(spelled(&forced), "");
    "{\"".bytes().for_each(|byte| matcher.advance(u32::from(byte)).unwrap());
    let forced = matcher.take_forced(64).unwrap();
    assert_eq!(forced, tokenize("the_name"));
    assert_eq!(forced.len(), 2, "words, not letters");
}

#[test]
fn a_text_is_the_same_with_fewer_choices() {
    for source in [
        Source::JsonSchema(place()),
        Source::Choice(vec!["the_city is name".into(), "the_cities are true".into()]),
        Source::Regex("the_name: (city|cities), [0-9]{3} true true true".into()),
        Source::Regex("name".into()),
        Source::Lark("start: \"the_\" (\"name\" | \"city\") \"true\"".into()),
    ] {
        let grammar = compile(source.clone(), own());
        let (one_by_one, expected) = walk(&grammar, 0);
        for most in [1, 2, 64] {
            let (chosen, found) = walk(&grammar, most);
            assert_eq!(spelled(&found), spelled(&expected), "{source:?}");
            assert!(chosen < one_by_one, "{source:?}: {chosen} of {one_by_one}");
        }
        let (_, without) = walk(&compile(source, None), 64);
        assert!(!without.is_empty());
    }
}

#[test]
fn the_name_of_a_special_token_is_text() {
    let grammar = compile(Source::Regex("name<\\|call\\|>name[ab]".into()), own());
    let (_, tokens) = walk(&grammar, 64);
    assert!(!tokens.contains(&257) && spelled(&tokens).starts_with("name<|call|>name"), "{tokens:?}");
}

#[test]
fn a_tokenizer_that_changes_parts_of_a_text_tells_nothing() {
    for changing in [
        (|text| tokenize(&format!(" {text}"))) as fn(&str) -> Vec<u32>,
        |text| tokenize(&text.to_uppercase()),
        |_| Vec::new(),
        |text| [tokenize(text), vec![9999]].concat(),
    ] {
        let grammar = compile(Source::Regex("the_name of a city".into()), Some(Arc::new(changing)));
        assert!(grammar.matcher().take_forced(64).unwrap().is_empty());
        let (chosen, tokens) = walk(&grammar, 64);
        assert_eq!((chosen, spelled(&tokens).as_str()), (tokens.len(), "the_name of a city"));
    }
}

/// A look ahead to the end of what is forced held 100 MB a text, and as much in the grammar that is kept.
#[test]
fn a_look_ahead_has_an_end() {
    for source in [
        Source::Regex("a{1000}{1000}".into()),
        Source::Regex(format!("{}b", "a".repeat(100_000))),
        Source::JsonSchema(json!({"const": "a".repeat(200_000)})),
    ] {
        let grammar = compile(source, own());
        let mut mask = vec![0; grammar.mask_words()];
        let mut matcher = grammar.matcher();
        let first = matcher.take_forced(64).unwrap();
        assert_eq!(first.len(), 64);
        matcher.mask(&mut mask).unwrap();
        assert!(grammar.bytes() < 20 << 20, "{} bytes", grammar.bytes());
        assert_eq!(matcher.take_forced(1000).unwrap().len(), 1000);
    }
}

/// The tokenizer's word for the end of a text that was cut in the middle of a letter is none.
#[test]
fn letters_of_several_bytes_are_forced_whole() {
    for text in ["é".repeat(200), format!("a{}", "é".repeat(200)), "日本".repeat(100)] {
        let grammar = compile(Source::Choice(vec![text.clone()]), own());
        let (chosen, tokens) = walk(&grammar, 1000);
        assert_eq!((chosen, spelled(&tokens)), (0, text.clone()));
        // A run of 63 may end within a letter.
        let (chosen, tokens) = walk(&grammar, 63);
        assert!(chosen < text.len() / 20, "{chosen}");
        assert_eq!(spelled(&tokens), text);
    }
}

#[test]
fn what_may_end_is_not_forced_further() {
    let grammar = compile(Source::Regex("name(name)?".into()), own());
    let mut matcher = grammar.matcher();
    assert_eq!(spelled(&matcher.take_forced(64).unwrap()), "name");
    assert!(matcher.take_forced(64).unwrap().is_empty());
    matcher.advance(u32::from(b'n')).unwrap();
    assert_eq!(spelled(&matcher.take_forced(64).unwrap()), "ame");
}
