//! Texts that go where others have been ask their parser nothing (`automaton.rs`). What they are told is what a text is told that knows of
//! no other: the same masks, the same forced tokens, the same ends.

use std::{collections::BTreeMap, sync::Arc};

use crate::patient;
use crate::schemas;
use crate::synthetic::{Random, Vocabulary};
use penstock_constraint::{Cancel, Compiler, Limits, Matcher, Part, Source, Token, Tokenize};
use serde_json::json;

/// One that keeps what texts find out, and one that has no memory for it.
fn compilers(vocabulary: &Arc<Vocabulary>) -> [Compiler; 2] {
    let forgetful = Limits { cache_bytes: 0, ..patient() };
    [patient(), forgetful].map(|limits| {
        let spelling = vocabulary.clone();
        // Of an even number of bytes each is a token of its own: how a text is spelled depends on the token before it.
        let tokenize: Tokenize = Arc::new(move |text: &str| match text.len() % 2 {
            0 => text.bytes().map(u32::from).collect(),
            _ => spelling.tokenize(text.as_bytes()),
        });
        let size = vocabulary.tokens.len();
        let tokens = vocabulary.tokens.clone();
        Compiler::with_tokenizer(tokens, size, &[vocabulary.eos], limits, Some(tokenize)).unwrap()
    })
}

struct Pair {
    learning: Matcher,
    plain: Matcher,
    tokens: Vec<u32>,
}

/// Walks texts through both, some at the same time, most the same ways. How many masks each computed.
fn compare(source: &Source, compilers: &[Compiler; 2], vocabulary: &Vocabulary, seed: u64) -> [u64; 2] {
    let [learning, plain] =
        compilers.each_ref().map(|one| one.compile(source.clone(), &Cancel::new()).unwrap());
    let begin = || Pair { learning: learning.matcher(), plain: plain.matcher(), tokens: Vec::new() };
    let mut masks = [vec![0; learning.mask_words()], vec![0; learning.mask_words()]];
    let mut random = Random(2 * seed + 1);
    let mut computed = [0, 0];
    for _ in 0..5 {
        let mut texts: BTreeMap<usize, Pair> = (0..3).map(|text| (text, begin())).collect();
        for step in 0..150 {
            let text = random.below(3);
            if step % 40 == 39 {
                texts.insert(text, begin());
            }
            let Some(pair) = texts.get_mut(&text) else { continue };
            let told = |pair: &Pair| {
                let bytes = pair.tokens.iter().flat_map(|token| &vocabulary.tokens[*token as usize].bytes);
                let bytes: Vec<u8> = bytes.copied().collect();
                format!("after {:?} ({:?}) of {source:?}", String::from_utf8_lossy(&bytes), pair.tokens)
            };
            if random.below(4) > 0 {
                let forced = pair.learning.take_forced(8).unwrap();
                assert_eq!(forced, pair.plain.take_forced(8).unwrap(), "{}", told(pair));
                pair.tokens.extend(forced);
            }
            assert_eq!(pair.learning.is_complete(), pair.plain.is_complete(), "{}", told(pair));
            pair.learning.mask(&mut masks[0]).unwrap();
            pair.plain.mask(&mut masks[1]).unwrap();
            assert!(masks[0] == masks[1], "{}", told(pair));
            let has = |token: &u32| masks[0][*token as usize / 32] >> (token % 32) & 1 == 1;
            let allowed: Vec<u32> = (0..vocabulary.tokens.len() as u32)
                .filter(|token| *token != vocabulary.eos && has(token))
                .collect();
            let other = random.below(vocabulary.tokens.len()) as u32;
            if !has(&other) && other != vocabulary.eos {
                assert_eq!(pair.learning.try_advance(other), pair.plain.try_advance(other), "{}", told(pair));
            }
            if allowed.is_empty() || (has(&vocabulary.eos) && random.below(8) == 0) {
                assert!(pair.learning.try_advance(vocabulary.eos).unwrap());
                for one in [&pair.learning, &pair.plain] {
                    assert!(one.is_complete() || std::ptr::eq(one, &pair.plain));
                }
                computed[0] += pair.learning.masks_computed();
                computed[1] += pair.plain.masks_computed();
                texts.remove(&text);
                continue;
            }
            // The same after the same number of tokens, but for every eighth.
            let at = match random.below(8) {
                0 => random.below(allowed.len()),
                _ => Random(seed + 977 * (pair.tokens.len() as u64 + 1)).below(allowed.len()),
            };
            let token = allowed[at];
            if random.below(16) == 0 {
                // A copy goes its own way.
                let (mut copy, mut other) = (pair.learning.fork(), pair.plain.fork());
                copy.advance(allowed[allowed.len() - 1 - at]).unwrap();
                other.advance(allowed[allowed.len() - 1 - at]).unwrap();
                copy.mask(&mut masks[0]).unwrap();
                other.mask(&mut masks[1]).unwrap();
                assert!(masks[0] == masks[1], "a copy {}", told(pair));
            }
            pair.learning.advance(token).unwrap();
            pair.plain.advance(token).unwrap();
            pair.tokens.push(token);
        }
        for pair in texts.values() {
            computed[0] += pair.learning.masks_computed();
            computed[1] += pair.plain.masks_computed();
        }
    }
    computed
}

fn check(sources: impl IntoIterator<Item = Source>, vocabulary: Vocabulary) {
    let vocabulary = Arc::new(vocabulary);
    let compilers = compilers(&vocabulary);
    let mut computed = [0, 0];
    for (seed, source) in sources.into_iter().enumerate() {
        let masks = compare(&source, &compilers, &vocabulary, seed as u64);
        computed = [computed[0] + masks[0], computed[1] + masks[1]];
    }
    println!("{computed:?} masks");
    assert!(computed[0] * 3 < computed[1] * 2, "{computed:?} masks were computed");
}

#[test]
fn texts_of_schemas_are_told_what_they_would_find() {
    let all = schemas::written().into_iter().chain((0..60).map(schemas::generated));
    check(all.map(Source::JsonSchema), Vocabulary::new(800));
}

#[test]
fn texts_of_expressions_and_rules_are_told_what_they_would_find() {
    let sources = [
        Source::JsonObject,
        Source::Regex("([a-z]{2,9} ){40}".into()),
        Source::Regex("[a-z]*( [a-z]*)*".into()),
        Source::Choice(["abcab", "abcity", "true", "truth", "12345", "the"].map(String::from).into()),
        Source::Lark("start: (A | B)+\nA: /[a-f]{2,7}/\nB: /[0-9]+;/\n".into()),
        // Lexemes of one byte, one the beginning of another, several at once, and none.
        Source::Lark("start: (A SEP)* A?\nA: /[a-z]+/\nSEP: \",\" | \" \"\n".into()),
        Source::Lark("start: (A B? | B C)* C\nA: \"a\"\nB: /a[bc]*/\nC: /[a-c]+;/\n".into()),
        Source::Lark(
            "start: item{3,9} \".\"\nitem: \"(\" item* \")\" | /[0-9]+/ \",\" | /0[0-9]/ \";\"\n".into(),
        ),
    ];
    check(sources, Vocabulary::new(600));
}

#[test]
fn texts_of_calls_are_told_what_they_would_find() {
    let mut vocabulary = Vocabulary::new(600);
    for name in ["<|call|>", "<|end|>", "<|note|>"] {
        vocabulary.tokens.push(Token { bytes: name.into(), special: true });
    }
    let schema = json!({"type": "object", "properties": {"city": {"type": "string", "maxLength": 20},
        "days": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 31}}, "deep": {}},
        "required": ["city"], "additionalProperties": false});
    let call = |opening: &str| {
        vec![
            Part::Text(format!("{opening}{{\"name\": \"weather\", \"arguments\": ")),
            Part::Json { schema: schema.clone(), at: String::new() },
            Part::Text("}".into()),
        ]
    };
    let repeated = |opening: &str| Part::Repeat {
        part: call(opening),
        between: vec![Part::Space],
        least: 2,
        most: None,
    };
    let quoted =
        Part::Quoted { lark: "start: (A B)+\nA: /[a-f]+/\nB: \" \" | \";\"\n".into(), at: String::new() };
    let kinds = Part::OneOf(vec![
        vec![Part::Text("<|note|>".into()), Part::Number, Part::Text("a".into())],
        vec![Part::Text("<|call|>".into()), Part::Number, Part::Text("b".into())],
        vec![Part::Text("<|end|>".into()), Part::Text("three".into())],
    ]);
    let kinds = Part::Repeat { part: vec![kinds], between: vec![], least: 4, most: Some(9) };
    let sources = [
        vec![repeated("<|call|>")],
        vec![repeated("call:")],
        vec![Part::Text("{\"code\": \"".into()), quoted, Part::Text("\"}".into())],
        vec![kinds],
    ];
    check(sources.map(Source::Parts), vocabulary);
}
