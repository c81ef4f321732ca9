//! Random walks through masks: whatever they let through parses and is valid, for our own schemas and two vocabularies. And
//! valid instances that were drawn without masks are let through.

use crate::instances::instance;
use crate::patient;
use crate::schemas;
use crate::synthetic::{Random, Vocabulary};
use penstock_constraint::{Cancel, Compiler, Grammar, MatchError, Source};
use serde_json::{Value, json};

fn compiler(vocabulary: &Vocabulary) -> Compiler {
    let size = vocabulary.tokens.len();
    Compiler::new(vocabulary.tokens.clone(), size, &[vocabulary.eos], patient()).unwrap()
}

fn bit(mask: &[u32], token: u32) -> bool {
    mask[token as usize / 32] >> (token % 32) & 1 == 1
}

/// A text drawn from the masks; None where it did not end within `most` tokens. After a while the walk hurries to
/// what closes.
fn walk(grammar: &Grammar, vocabulary: &Vocabulary, random: &mut Random, most: usize) -> Option<Vec<u8>> {
    let mut matcher = grammar.matcher();
    let mut mask = vec![0; grammar.mask_words()];
    let mut text = Vec::new();
    for step in 0..most {
        matcher
            .mask(&mut mask)
            .unwrap_or_else(|error| panic!("{error} after {:?}", String::from_utf8_lossy(&text)));
        let may_end = bit(&mask, vocabulary.eos);
        if may_end && (matcher.is_complete() || step > 20 || random.below(4) == 0) {
            matcher.advance(vocabulary.eos).unwrap();
            assert!(matcher.is_complete());
            return Some(text);
        }
        assert!(!matcher.is_complete());
        let allowed: Vec<u32> = (0..vocabulary.tokens.len() as u32)
            .filter(|&token| token != vocabulary.eos && bit(&mask, token))
            .collect();
        let closing = |&&token: &&u32| {
            matches!(&vocabulary.tokens[token as usize].bytes[..], b"\"" | b"}" | b"]" | b"0")
        };
        let hurried = allowed.iter().find(closing).filter(|_| step > 30 + random.below(30));
        let token = *hurried.unwrap_or(&allowed[random.below(allowed.len())]);
        text.extend(&vocabulary.tokens[token as usize].bytes);
        matcher
            .advance(token)
            .unwrap_or_else(|error| panic!("{error} after {:?}", String::from_utf8_lossy(&text)));
    }
    None
}

fn is_valid(schema: &Value, value: &Value) -> bool {
    let template = json!({"format": "uri-template"});
    let template = jsonschema::options().should_validate_formats(true).build(&template).unwrap();
    jsonschema::options()
        .should_validate_formats(true)
        // Of names in a template this validator knows small letters only, of which RFC 6570 (section 2.3) has both.
        .with_format("uri-template", move |text| template.is_valid(&text.to_ascii_lowercase().into()))
        .build(schema)
        .unwrap()
        .is_valid(value)
}

/// Walks and returns how many texts ended.
fn check(schema: &Value, compiler: &Compiler, vocabulary: &Vocabulary, walks: usize, seed: u64) -> usize {
    let grammar = compiler
        .compile(Source::JsonSchema(schema.clone()), &Cancel::new())
        .unwrap_or_else(|error| panic!("{schema}: {error}"));
    let mut random = Random(seed * 2 + 1);
    let mut ended = 0;
    for _ in 0..walks {
        let Some(text) = walk(&grammar, vocabulary, &mut random, 300) else { continue };
        let value: Value = match serde_json::from_slice(&text) {
            Ok(value) => value,
            // JSON, but no number of Rust's.
            Err(error) if error.to_string().contains("out of range") => continue,
            Err(error) => panic!("{schema}: {error}: {}", String::from_utf8_lossy(&text)),
        };
        assert!(is_valid(schema, &value), "{schema}\nlets through\n{}", String::from_utf8_lossy(&text));
        ended += 1;
    }
    ended
}

#[test]
fn what_masks_let_through_is_valid_for_written_schemas() {
    for (vocabulary, walks) in [(Vocabulary::new(257), 6), (Vocabulary::new(2000), 12)] {
        let compiler = compiler(&vocabulary);
        let mut ended = 0;
        for (seed, schema) in schemas::written().iter().enumerate() {
            ended += check(schema, &compiler, &vocabulary, walks, seed as u64);
        }
        assert!(ended > schemas::written().len() * walks / 2, "only {ended} walks ended");
    }
}

#[test]
fn what_masks_let_through_is_valid_for_generated_schemas() {
    let vocabulary = Vocabulary::new(2000);
    let compiler = compiler(&vocabulary);
    let mut ended = 0;
    for seed in 0..150 {
        ended += check(&schemas::generated(seed), &compiler, &vocabulary, 5, seed);
    }
    assert!(ended > 300, "only {ended} walks ended");
}

#[test]
fn what_masks_let_through_is_valid_for_whatever_compiles() {
    let vocabulary = Vocabulary::new(600);
    let compiler = compiler(&vocabulary);
    let (mut compiled, mut ended) = (0, 0);
    let seeds = std::env::var("PENSTOCK_SEEDS").map_or(1_000, |seeds| seeds.parse().unwrap());
    for seed in 0..seeds {
        let schema = schemas::wild(seed);
        if compiler.compile(Source::JsonSchema(schema.clone()), &Cancel::new()).is_ok() {
            compiled += 1;
            ended += check(&schema, &compiler, &vocabulary, 6, seed);
        }
    }
    println!("{compiled} of {seeds} compiled, {ended} texts");
    assert!(compiled * 3 > seeds, "only {compiled} of {seeds} compiled");
    assert!(ended as u64 > compiled, "only {ended} walks ended");
}

/// The byte-level vocabulary of the model in the wheel: each character of a token stands for a byte, as in GPT-2.
fn shipped() -> Vocabulary {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../server/penstock/tiny/model/tokenizer.json");
    let tokenizer: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let is_own = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let others =
        (0..256).filter(|byte| !is_own(*byte)).enumerate().map(|(index, byte)| (256 + index as u32, byte));
    let byte_of: std::collections::HashMap<char, u8> = (0..256)
        .filter(|byte| is_own(*byte))
        .map(|byte| (byte, byte))
        .chain(others)
        .map(|(character, byte)| (char::from_u32(character).unwrap(), byte as u8))
        .collect();
    let words = tokenizer["model"]["vocab"].as_object().unwrap();
    let mut texts = vec![Vec::new(); words.len()];
    for (word, id) in words {
        texts[id.as_u64().unwrap() as usize] =
            word.chars().filter_map(|character| byte_of.get(&character).copied()).collect();
    }
    let added = tokenizer["added_tokens"].as_array().unwrap();
    let special: Vec<u32> = added.iter().map(|token| token["id"].as_u64().unwrap() as u32).collect();
    Vocabulary::from_texts(texts, &special, 2)
}

#[test]
fn what_masks_let_through_is_valid_with_the_shipped_tokenizer() {
    let vocabulary = shipped();
    let compiler = compiler(&vocabulary);
    for (seed, schema) in schemas::written().iter().enumerate().step_by(3) {
        check(schema, &compiler, &vocabulary, 4, seed as u64);
    }
}

#[test]
fn masks_let_every_valid_instance_through() {
    let vocabulary = shipped();
    let compiler = compiler(&vocabulary);
    for seed in 0..150 {
        let schema = schemas::generated(seed);
        let grammar = compiler.compile(Source::JsonSchema(schema.clone()), &Cancel::new()).unwrap();
        let mut mask = vec![0; grammar.mask_words()];
        let mut random = Random(seed * 2 + 1);
        for _ in 0..20 {
            let value = instance(&schema, &schema, &mut random);
            assert!(is_valid(&schema, &value), "{value} was drawn for {schema}");
            let text = value.to_string();
            let mut matcher = grammar.matcher();
            let mut read = Vec::new();
            for token in vocabulary.tokenize(text.as_bytes()).into_iter().chain([vocabulary.eos]) {
                matcher.mask(&mut mask).unwrap();
                let told = || String::from_utf8_lossy(&read);
                assert!(bit(&mask, token), "{schema}\nrefuses\n{text}\nbehind\n{}", told());
                read.extend(&vocabulary.tokens[token as usize].bytes);
                matcher.advance(token).unwrap();
            }
        }
    }
}

#[test]
fn instances_that_were_let_through_are_let_through_again_in_other_tokens() {
    let (one, other) = (Vocabulary::new(2000), Vocabulary::new(257));
    let (drawing, checking) = (compiler(&one), compiler(&other));
    let mut random = Random(11);
    let (mut walks, mut ended) = (0, 0);
    for schema in schemas::written() {
        let source = Source::JsonSchema(schema.clone());
        let grammar = drawing.compile(source.clone(), &Cancel::new()).unwrap();
        let again = checking.compile(source, &Cancel::new()).unwrap();
        for _ in 0..3 {
            walks += 1;
            let Some(text) = walk(&grammar, &one, &mut random, 200) else { continue };
            ended += 1;
            let mut matcher = again.matcher();
            for byte in &text {
                let result = matcher.advance(u32::from(*byte));
                assert!(result.is_ok(), "{schema} refuses {}", String::from_utf8_lossy(&text));
            }
            matcher.advance(other.eos).unwrap();
        }
    }
    assert!(ended * 2 > walks, "only {ended} of {walks} walks ended");
}

#[test]
fn there_are_two_hundred_schemas() {
    assert!(schemas::written().len() >= 120, "{}", schemas::written().len());
    let generated: std::collections::HashSet<String> =
        (0..150).map(|seed| schemas::generated(seed).to_string()).collect();
    assert!(generated.len() + schemas::written().len() >= 200);
}

#[test]
fn a_token_outside_of_the_mask_is_an_error() {
    let vocabulary = Vocabulary::new(2000);
    let compiler = compiler(&vocabulary);
    let mut random = Random(7);
    for schema in schemas::written().iter().step_by(7) {
        let grammar = compiler.compile(Source::JsonSchema(schema.clone()), &Cancel::new()).unwrap();
        let mut mask = vec![0; grammar.mask_words()];
        let mut on_the_way = grammar.matcher();
        for _ in 0..6 {
            on_the_way.mask(&mut mask).unwrap();
            let allowed: Vec<u32> = (0..2000).filter(|&token| bit(&mask, token)).collect();
            let next = allowed[random.below(allowed.len())];
            if next == vocabulary.eos {
                break;
            }
            on_the_way.advance(next).unwrap();
        }
        on_the_way.mask(&mut mask).unwrap();
        let refused = (0..2000).filter(|&token| !bit(&mask, token)).nth(random.below(500));
        if let Some(refused) = refused {
            assert_eq!(on_the_way.advance(refused), Err(MatchError::NotAllowed(refused)), "{schema}");
            assert!(on_the_way.mask(&mut mask).is_err(), "a matcher is unusable after an error");
        }
    }
}
