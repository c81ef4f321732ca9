//! What a caller sees: each kind of grammar, ends, errors with their places, the cache.

use std::sync::Arc;

use crate::patient;
use crate::synthetic::Vocabulary;
use penstock_constraint::{
    Cancel, CompileError, Compiler, Grammar, Kind, Limits, MatchError, Part, Source, Token, Words,
};
use serde_json::{Value, json};

/// A vocabulary of single bytes: a text's tokens are its bytes.
const EOS: u32 = 256;

fn bytes() -> Vec<Token> {
    Vocabulary::new(257).tokens
}

pub fn compiler_with(limits: Limits) -> Compiler {
    Compiler::new(bytes(), 257, &[EOS], limits).unwrap()
}

pub fn compile(source: Source) -> Result<Arc<Grammar>, CompileError> {
    compiler_with(patient()).compile(source, &Cancel::new())
}

pub fn schema(schema: Value) -> Source {
    Source::JsonSchema(schema)
}

pub fn accepts(grammar: &Grammar, text: &str) -> bool {
    let mut matcher = grammar.matcher();
    let mut mask = vec![0; grammar.mask_words()];
    text.bytes().all(|byte| matcher.advance(u32::from(byte)).is_ok())
        && matcher.mask(&mut mask).is_ok()
        && mask[EOS as usize / 32] & 1 == 1
        && matcher.advance(EOS).is_ok()
}

/// The bytes that may follow, and whether the text may end.
pub fn next(grammar: &Grammar, text: &str) -> (String, bool) {
    let mut matcher = grammar.matcher();
    text.bytes().for_each(|byte| matcher.advance(u32::from(byte)).unwrap());
    let mut mask = vec![0; grammar.mask_words()];
    matcher.mask(&mut mask).unwrap();
    let bit = |token: u32| mask[token as usize / 32] >> (token % 32) & 1 == 1;
    ((0..128).filter(|&byte| bit(byte)).map(|byte| char::from(byte as u8)).collect(), bit(EOS))
}

#[test]
fn any_json_object() {
    let grammar = compile(Source::JsonObject).unwrap();
    for text in ["{}", r#"{"a": [1, {"b": null}]}"#, "{\"a\":\n  \"b\"}"] {
        assert!(accepts(&grammar, text), "{text}");
    }
    for text in ["[]", "1", r#"{"a" "b"}"#, "{,}", " {}"] {
        assert!(!accepts(&grammar, text), "{text}");
    }
}

#[test]
fn a_regular_expression_is_the_whole_text() {
    let grammar = compile(Source::Regex(r"\d{3}-(?:a|b/c)+".into())).unwrap();
    assert!(accepts(&grammar, "123-ab/ca"));
    assert!(!accepts(&grammar, "x123-a") && !accepts(&grammar, "123-") && !accepts(&grammar, "123-ax"));
    assert_eq!(next(&grammar, "123"), ("-".into(), false));
    assert!(accepts(&compile(Source::Regex("^ab?$".into())).unwrap(), "ab"));
    assert!(accepts(&compile(Source::Regex(String::new())).unwrap(), ""));
    // As outlines writes "at most three".
    let at_most = "([0-9]){,3}";
    let part = Part::Regex(at_most.into());
    for source in [Source::Regex(at_most.into()), Source::Parts(vec![part])] {
        let grammar = compile(source).unwrap();
        assert!(accepts(&grammar, "") && accepts(&grammar, "123") && !accepts(&grammar, "1234"));
    }
}

#[test]
fn a_choice_is_one_of_its_texts() {
    let texts = ["yes", "no", "no way", "q\"uote", "back\\slash", "é\n", "\u{7f}"];
    let grammar = compile(Source::Choice(texts.map(String::from).into())).unwrap();
    for text in texts {
        assert!(accepts(&grammar, text), "{text:?}");
    }
    assert!(!accepts(&grammar, "ye") && !accepts(&grammar, "yesno") && !accepts(&grammar, ""));
    assert_eq!(next(&grammar, "no"), (" ".into(), true));
}

#[test]
fn a_choice_that_is_none_is_refused() {
    assert_eq!(compile(Source::Choice(vec![])).unwrap_err().kind, Kind::Invalid);
    let twice = compile(Source::Choice(vec!["a".into(), "b".into(), "a".into()])).unwrap_err();
    assert_eq!((twice.kind, twice.path.as_str()), (Kind::Invalid, "/2"));
}

#[test]
fn a_lark_grammar() {
    let grammar =
        compile(Source::Lark("start: \"if \" NAME (\" else \" NAME)?\nNAME: /[a-z]{1,3}/\n".into())).unwrap();
    assert!(accepts(&grammar, "if ab else c") && accepts(&grammar, "if x") && !accepts(&grammar, "if "));
    let error = compile(Source::Lark("start: a\na: \"x\" (\n".into())).unwrap_err();
    assert_eq!(error.kind, Kind::Invalid);
    assert!(error.path.starts_with(['2', '3']), "{error:?}");
}

#[test]
fn special_tokens_are_never_allowed() {
    let mut tokens = bytes();
    tokens.insert(256, Token { bytes: b"a".to_vec(), special: true });
    // More logits than tokens, and two ends.
    let compiler = Compiler::new(tokens, 300, &[257, 290], patient()).unwrap();
    let grammar = compiler.compile(Source::Regex("a+".into()), &Cancel::new()).unwrap();
    let mut mask = vec![u32::MAX; grammar.mask_words()];
    assert_eq!(mask.len(), 10);
    let mut matcher = grammar.matcher();
    matcher.mask(&mut mask).unwrap();
    let set = |mask: &[u32]| (0..320).filter(|id| mask[id / 32] >> (id % 32) & 1 == 1).collect::<Vec<_>>();
    assert_eq!(set(&mask), [97]);
    matcher.advance(97).unwrap();
    matcher.mask(&mut mask).unwrap();
    assert_eq!(set(&mask), [97, 257, 290]);
    assert_eq!(grammar.matcher().advance(256), Err(MatchError::NotAllowed(256)));
    assert_eq!(grammar.matcher().advance(999), Err(MatchError::NotAllowed(999)));
}

#[test]
fn logits_may_be_fewer_than_tokens() {
    let mut tokens = bytes();
    tokens.push(Token { bytes: b"aa".to_vec(), special: false });
    let compiler = Compiler::new(tokens, 257, &[EOS], patient()).unwrap();
    let grammar = compiler.compile(Source::Regex("aa".into()), &Cancel::new()).unwrap();
    assert_eq!(grammar.mask_words(), 9);
    assert_eq!(grammar.matcher().advance(257), Err(MatchError::NotAllowed(257)));
}

#[test]
fn two_tokens_of_the_same_bytes_are_both_allowed() {
    let mut tokens = bytes();
    tokens.push(Token { bytes: b"a".to_vec(), special: false });
    let compiler = Compiler::new(tokens, 258, &[EOS], patient()).unwrap();
    let grammar = compiler.compile(Source::Regex("ab".into()), &Cancel::new()).unwrap();
    let mut mask = vec![0; grammar.mask_words()];
    grammar.matcher().mask(&mut mask).unwrap();
    assert!(mask[3] >> 1 & 1 == 1 && mask[8] >> 1 & 1 == 1);
    grammar.matcher().advance(257).unwrap();
}

#[test]
fn what_a_vocabulary_lacks_is_said_at_start() {
    let start = |tokens, size, eos: &[u32]| Compiler::new(tokens, size, eos, patient()).err().unwrap();
    assert!(start(bytes(), 257, &[]).contains("end-of-sequence"));
    assert!(start(bytes(), 257, &[257]).contains("outside"));
    let mut lacking = bytes();
    lacking[b'{' as usize].bytes.clear();
    assert!(start(lacking, 257, &[EOS]).contains('{'));
    assert!(start(vec![], 0, &[0]).contains("0 tokens"));
}

#[test]
fn the_end_is_allowed_only_where_the_text_is_whole() {
    let grammar =
        compile(schema(json!({"type": "array", "items": {"type": "integer"}, "maxItems": 2}))).unwrap();
    assert!(!next(&grammar, "").1 && !next(&grammar, "[1").1 && !next(&grammar, "[1,").1);
    assert!(next(&grammar, "[1]").1);
    assert_eq!(grammar.matcher().advance(EOS), Err(MatchError::NotAllowed(EOS)));
}

#[test]
fn a_matcher_is_complete_when_only_the_end_can_follow() {
    let grammar = compile(schema(json!({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": false}))).unwrap();
    let mut matcher = grammar.matcher();
    for byte in "{\"a\":1}".bytes() {
        assert!(!matcher.is_complete());
        matcher.advance(u32::from(byte)).unwrap();
    }
    assert!(matcher.is_complete());
    let mut mask = vec![u32::MAX; grammar.mask_words()];
    matcher.mask(&mut mask).unwrap();
    assert_eq!(mask.iter().map(|word| word.count_ones()).sum::<u32>(), 1);
    matcher.advance(EOS).unwrap();
    assert!(matches!(matcher.advance(EOS), Err(MatchError::Ended(_))));
}

#[test]
fn matchers_of_one_grammar_do_not_disturb_each_other() {
    let grammar = compile(Source::Choice(vec!["ab".into(), "cd".into()])).unwrap();
    let (mut one, mut other) = (grammar.matcher(), grammar.matcher());
    one.advance(u32::from(b'a')).unwrap();
    assert!(one.advance(u32::from(b'd')).is_err());
    other.advance(u32::from(b'c')).unwrap();
    other.advance(u32::from(b'd')).unwrap();
    assert!(other.is_complete());
}

#[test]
fn a_mask_of_the_wrong_size_is_an_error_and_no_more() {
    let grammar = compile(Source::JsonObject).unwrap();
    let mut matcher = grammar.matcher();
    assert_eq!(matcher.mask(&mut [0; 3]), Err(MatchError::MaskSize { got: 3, needed: 9 }));
    matcher.mask(&mut [0; 9]).unwrap();
}

#[test]
fn space_within_json_is_bounded() {
    let grammar = compile(schema(json!({"type": "array", "items": {"type": "null"}}))).unwrap();
    assert!(accepts(&grammar, "[null, null]") && accepts(&grammar, "[\n    null,\n    null\n]"));
    assert!(!accepts(&grammar, "[  null]") && !accepts(&grammar, "[\n\nnull]"));
    assert!(!accepts(&grammar, &format!("[\n{}null]", " ".repeat(33))));
}

#[test]
fn a_name_cannot_be_spelled_past_its_schema() {
    let grammar =
        compile(schema(json!({"properties": {"abc": {"type": "integer"}}, "type": "object"}))).unwrap();
    assert!(accepts(&grammar, r#"{"abc": 1, "abd": "x"}"#));
    assert!(!accepts(&grammar, r#"{"abc": "x"}"#) && !accepts(&grammar, r#"{"\u0061bc": "x"}"#));
}

#[test]
fn what_cannot_be_compiled_is_refused_with_its_place() {
    let cases = [
        (
            json!({"properties": {"a": {"items": {"uniqueItems": true, "items": {"type": "string"}}}}}),
            "/properties/a/items/uniqueItems",
            Kind::Unsupported,
        ),
        (
            json!({"properties": {"a/b": {"$ref": "http://example.org/other.json"}}}),
            "/properties/a~1b/$ref",
            Kind::Unsupported,
        ),
        (json!({"items": {"$ref": "#/$defs/missing"}}), "/items/$ref", Kind::Invalid),
        (
            json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
            "/$defs/a",
            Kind::Unsupported,
        ),
        (
            json!({"$defs": {"a": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"]}}, "$ref": "#/$defs/a"}),
            "/$defs/a",
            Kind::Unsatisfiable,
        ),
        (json!({"anyOf": [{"type": "string"}, {"type": "text"}]}), "/anyOf/1/type", Kind::Invalid),
        (json!({"type": "string", "pattern": "(a)\\1"}), "/pattern", Kind::Unsupported),
        (json!({"type": "string", "pattern": "("}), "/pattern", Kind::Unsupported),
        (json!({"properties": {"a": 5}}), "/properties/a", Kind::Invalid),
        (json!({"type": "array", "minItems": -1}), "/minItems", Kind::Invalid),
        (json!({"enum": []}), "/enum", Kind::Unsatisfiable),
        (json!({"enum": ["a\u{1}b", "\u{7f}"]}), "/enum", Kind::Unsatisfiable),
        (json!({"const": {"a": ["\u{1b}[0m"]}}), "/const", Kind::Unsatisfiable),
        (json!({"type": "string", "minLength": 1_u64 << 31}), "/minLength", Kind::Unsatisfiable),
        (json!({"type": "array", "contains": {}, "minContains": 1e12}), "/minContains", Kind::Unsatisfiable),
        (
            json!({"propertyNames": {"$ref": "#/$defs/n", "maxLength": 3}, "$defs": {"n": {"pattern": "^[a-z]+$"}}}),
            "/propertyNames",
            Kind::Unsupported,
        ),
        (json!({"oneOf": [{"multipleOf": 3}, {"multipleOf": 5}]}), "/oneOf/0", Kind::Unsupported),
        (json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}), "/oneOf/1", Kind::Unsupported),
        (
            json!({"oneOf": [{"type": "number"}, {"type": "string"}, {"type": "integer"}], "minimum": 0}),
            "/oneOf/0",
            Kind::Unsupported,
        ),
        (json!({"not": {"multipleOf": 3}}), "/not", Kind::Unsupported),
        (json!({"$dynamicRef": "#node"}), "/$dynamicRef", Kind::Unsupported),
        (json!([]), "", Kind::Invalid),
        (json!(false), "", Kind::Unsatisfiable),
        (json!({"type": "integer", "minimum": 3, "maximum": 2}), "", Kind::Unsatisfiable),
    ];
    for (source, path, kind) in cases {
        let error = compile(schema(source.clone())).err().unwrap_or_else(|| panic!("{source} compiled"));
        assert_eq!((error.path.as_str(), error.kind), (path, kind), "{source}: {error}");
        assert!(error.to_string().len() <= 500);
    }
}

/// What only llguidance finds, which does not say where; around it stands what is as it should be.
#[test]
fn what_the_compiler_refuses_has_its_place_at_any_depth() {
    let node = |child: Value| json!({"type": "object", "properties": {"plain": {"$ref": "#/$defs/node"}, "child": child}});
    let object = |name: &str, value: Value| json!({"type": "object", "properties": {"other": {"type": "string"}, (name): value}, "required": [name]});
    let twice = json!({"patternProperties": {"^a": {"type": "integer"}, "a$": {"type": "string"}}, "additionalProperties": false});
    let counted = json!({"maxProperties": 2, "allOf": [{"properties": {"a": {}, "b": {}, "c": {}}}]});
    let impossible = json!({"type": "integer", "minimum": 3, "maximum": 2});
    let patterns: Vec<Value> = (0..17).map(|at| json!({"pattern": format!("x{at}")})).collect();
    let cases = [
        (
            json!({"anyOf": [{"type": "null"}, object("n", json!({"$ref": "#/$defs/node"}))], "$defs": {
                "node": node(json!({"$ref": "#/$defs/node", "required": ["plain"]})),
            }}),
            "/$defs/node/properties/child",
            Kind::Unsupported,
        ),
        (object("a", json!({"items": twice})), "/properties/a/items", Kind::Unsupported),
        (
            json!({"allOf": [object("a/b", json!({"prefixItems": [{}, {"anyOf": [{"type": "string"}, counted]}]}))]}),
            "/allOf/0/properties/a~1b/prefixItems/1/anyOf/1",
            Kind::Unsupported,
        ),
        // One that no text needs is left out.
        (
            object(
                "a",
                json!({"allOf": [object("b", impossible.clone())], "properties": {"c": impossible.clone()}}),
            ),
            "/properties/a/allOf/0/properties/b",
            Kind::Unsatisfiable,
        ),
        (object("a", json!({"$ref": "#/$defs/no", "title": "A"})), "/$defs/no", Kind::Unsatisfiable),
        (object("a", json!({"anyOf": [impossible, false]})), "/properties/a", Kind::Unsatisfiable),
        (object("a", json!({"items": {"allOf": patterns}})), "/properties/a/items", Kind::TooLarge),
    ];
    for (mut source, path, kind) in cases {
        if path == "/$defs/no" {
            source["$defs"] = json!({"no": {"type": "string", "enum": [1]}});
        }
        let error = compile(schema(source.clone())).err().unwrap_or_else(|| panic!("{source} compiled"));
        assert_eq!((error.path.as_str(), error.kind), (path, kind), "{source}: {error}");
        let arguments = Source::Parts(vec![
            Part::Text("<".into()),
            Part::Json { schema: json!({"type": "string"}), at: "first".into() },
            Part::Json { schema: source.clone(), at: "second".into() },
        ]);
        let error = compile(arguments).err().unwrap_or_else(|| panic!("{source} compiled"));
        assert_eq!((error.path, error.kind), (format!("second{path}"), kind), "{source}");
    }
}

/// Schemas with texts of JSON that are valid, and texts that are not.
fn check(cases: impl IntoIterator<Item = (Value, Vec<&'static str>, Vec<&'static str>)>) {
    for (source, valid, invalid) in cases {
        let grammar = compile(schema(source.clone())).unwrap_or_else(|error| panic!("{source}: {error}"));
        for text in valid {
            assert!(accepts(&grammar, text), "{source} refuses {text}");
        }
        for text in invalid {
            assert!(!accepts(&grammar, text), "{source} accepts {text}");
        }
    }
}

/// Most control characters have no escape that could be written.
#[test]
fn a_control_character_is_not_left_out_of_a_text() {
    let pattern = |text: &str| json!({"type": "string", "pattern": text});
    check([
        (
            json!({"enum": ["a\u{1}b", "c", "d\u{7f}", ["\u{0}"], {"\u{1}": 1}, "e\n"]}),
            vec![r#""c""#, r#"{"\u0001":1}"#, r#""e\n""#],
            vec![r#""ab""#, r#""d""#, r#"[""]"#, r#"{"":1}"#],
        ),
        (json!({"enum": ["a\u{1}", "b"], "not": {"const": "c"}}), vec![r#""b""#], vec![r#""a""#]),
        (
            json!({"type": "array", "items": {"enum": ["a\u{1}", "b"]}, "uniqueItems": true}),
            vec!["[]", r#"["b"]"#],
            vec![r#"["a"]"#],
        ),
        (json!({"not": {"const": "a\u{1}"}}), vec![r#""a""#, r#""ab""#], vec![]),
        (pattern(r"^(?:\x1b\[0m|ok)$"), vec![r#""ok""#], vec![r#""[0m""#]),
        (
            pattern(r"^(?:\x00a|a\x7fb|\cAa|\0b|\vc|ok)$"),
            vec![r#""ok""#],
            vec![r#""a""#, r#""ab""#, r#""b""#, r#""c""#],
        ),
        (pattern("^(?:a\u{1}|\u{7f}b|ok)$"), vec![r#""ok""#], vec![r#""a""#, r#""b""#]),
        (
            pattern(r"^(?:[\x01]a|[\x7f]b|[\x01-\x01]c|ok)$"),
            vec![r#""ok""#],
            vec![r#""a""#, r#""b""#, r#""c""#],
        ),
        (
            pattern(r"^(?:[^\0\x02-\u{10FFFF}]a|[^\S\t\n\f\r ]b|ok)$"),
            vec![r#""ok""#],
            vec![r#""a""#, r#""b""#],
        ),
        (pattern(r"^a\x01*[\x00-\x1f]?[^\x00-\x1f]$"), vec![r#""ab""#, r#""a\nb""#], vec![r#""a""#]),
        (
            json!({"type": "object", "patternProperties": {r"^\x01a$": {}}, "additionalProperties": false}),
            vec!["{}"],
            vec![r#"{"a":1}"#],
        ),
        (
            json!({"type": "object", "propertyNames": {"enum": ["a\u{1}", "b"]}}),
            vec!["{}", r#"{"b":1}"#],
            vec![r#"{"a":1}"#],
        ),
    ]);
}

#[test]
fn every_engine_calls_no_white_space_what_is_said_to_be_none() {
    check([(
        json!({"type": "string", "pattern": r"^[^\s@]+@[^\s@]+$"}),
        vec![r#""a@b""#],
        vec!["\"a\u{3000}b@c\"", "\"a\u{a0}b@c\"", "\"a b@c\""],
    )]);
}

/// zod's `email()` and pydantic's `Decimal` write them. Each text is judged by a validator too.
#[test]
fn a_negative_look_ahead_at_the_start_leaves_out_what_it_matches() {
    let email =
        r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$";
    let decimal = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$";
    let of_places = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d{0,2}0*$";
    let cases = [
        (
            json!({"type": "string", "format": "email", "pattern": email}),
            vec!["a@b.co", "a.b+c'd@e-f.g.org", "_@a.bc"],
            vec![".a@b.co", "a..b@c.de", "a.@b.co", "a@b..co", "a@b", "@b.co", ""],
        ),
        (
            json!({"type": "string", "pattern": email}),
            vec!["a@b.co", "'.-@b.co"],
            vec!["'..-@b.co", ".@b.co"],
        ),
        (
            json!({"type": "string", "pattern": decimal}),
            vec!["0", "-1.5", "+.5", "1.", "00012"],
            vec!["", "-", "+.", ".", "1.5.2", "a", "-+1"],
        ),
        (
            json!({"anyOf": [{"type": "number"}, {"type": "string", "pattern": of_places}]}),
            vec!["1.25", "1.2500", "-0"],
            vec!["", ".", "1.2345"],
        ),
        (
            json!({"type": "string", "pattern": r"^(?!\s)(?!.*\s$)[\S\s]{1,8}$"}),
            vec!["a b", "a\nb", "é\"\\"],
            vec![" a", "a ", "a\n", "\t", ""],
        ),
        (
            json!({"type": "string", "minLength": 2, "pattern": r"^(?!.*(?:--|__))(?![\d-])[\w-]+$"}),
            vec!["a-b_c", "_1"],
            vec!["a", "1a", "-a", "a--b", "a__b"],
        ),
        (
            json!({"type": "string", "pattern": r"^(?!(?:con|nul)(?:\..*)?$).+"}),
            vec!["con1", "a.nul"],
            vec!["con", "nul.txt"],
        ),
        (json!({"type": "string", "pattern": r#"^(?!.*["\\]).{2}$"#}), vec!["ab", "''"], vec!["a\"", "\\a"]),
        (json!({"type": "string", "pattern": r"^(?!a)"}), vec!["", "ba"], vec!["a", "ab"]),
    ];
    for (source, valid, invalid) in cases {
        let validator = jsonschema::options().should_validate_formats(true).build(&source).unwrap();
        let part = Part::Json { schema: source.clone(), at: String::new() };
        for grammar in [schema(source.clone()), Source::Parts(vec![part])] {
            let grammar = compile(grammar).unwrap_or_else(|error| panic!("{source}: {error}"));
            for text in &valid {
                let value = json!(text);
                assert!(
                    validator.is_valid(&value) && accepts(&grammar, &value.to_string()),
                    "{source} and {text:?}"
                );
            }
            for text in &invalid {
                let value = json!(text);
                assert!(
                    !validator.is_valid(&value) && !accepts(&grammar, &value.to_string()),
                    "{source} and {text:?}"
                );
            }
        }
        // As some formats of calls have them, without quotes.
        let (Some(text), None) = (source.get("pattern"), source.get("format")) else { continue };
        let words = Words::String {
            schema: json!({"pattern": text}).as_object().unwrap().clone(),
            at: String::new(),
        };
        let part =
            Part::Words { words: vec![words], without: vec![], not_first: String::new(), close: "<".into() };
        let grammar = compile(Source::Parts(vec![part])).unwrap_or_else(|error| panic!("{source}: {error}"));
        let is_long = source.get("minLength").is_some();
        for text in valid {
            assert!(accepts(&grammar, &format!("{text}<")), "{source} as words refuses {text:?}");
        }
        for text in invalid.into_iter().filter(|text| !is_long || text.len() > 1) {
            assert!(!accepts(&grammar, &format!("{text}<")), "{source} as words accepts {text:?}");
        }
    }
}

#[test]
fn a_look_ahead_that_is_not_read_is_refused_with_its_reason() {
    for (pattern, reason) in [
        ("^(?!.*a.{9})b", "the opposite of a look-ahead would be too large an expression"),
        ("^a(?!b)", "a look-ahead other than at the start"),
        ("(?!a)b", "a look-ahead other than at the start"),
        ("^(?!a(?=b))c", "a look-ahead other than at the start"),
        ("^(?!a)b|c", "a look-ahead other than at the start"),
        (r"^(?!\ba)b", "a word boundary is not supported"),
    ] {
        let source = json!({"properties": {"a": {"type": "string", "pattern": pattern}}});
        let error = compile(schema(source)).unwrap_err();
        assert_eq!(
            (error.kind, error.path.as_str()),
            (Kind::Unsupported, "/properties/a/pattern"),
            "{pattern}"
        );
        assert!(error.reason.starts_with(reason), "{pattern}: {error}");
    }
}

#[test]
fn drafts_differ_in_what_they_know() {
    let draft = |uri: &str, mut schema: Value| {
        schema["$schema"] = uri.into();
        schema
    };
    let old = "http://json-schema.org/draft-07/schema#";
    let of_2019 = "https://json-schema.org/draft/2019-09/schema";
    let prefixed =
        json!({"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "integer"}});
    let contains = json!({"type": "array", "contains": {"const": 5}, "minContains": 0, "maxContains": 1});
    let apart = json!({"oneOf": [{"$ref": "#/definitions/a", "minimum": 5}, {"type": "integer", "maximum": 4}],
        "definitions": {"a": {"type": "integer"}}});
    let opposite = json!({"not": {"$ref": "#/definitions/a", "type": "string"},
        "definitions": {"a": {"type": ["integer", "string"]}}});
    let listed = json!({"enum": [1, 2, "a"], "allOf": [{"$ref": "#/definitions/a", "type": "string"}],
        "not": {"$ref": "#/definitions/b", "type": "string"},
        "definitions": {"a": {"type": "integer"}, "b": {"const": 2}}});
    check([
        (draft(old, apart), vec!["7"], vec!["3", "true"]),
        (draft(old, opposite), vec!["true"], vec!["3", r#""a""#]),
        (draft(old, listed), vec!["1"], vec!["2", r#""a""#]),
        (draft(old, contains), vec!["[5]", "[5,5]"], vec!["[1]"]),
        (
            draft(of_2019, json!({"type": "array", "contains": {"const": 5}, "minContains": 0})),
            vec!["[1]"],
            vec!["1"],
        ),
        (draft(old, prefixed.clone()), vec!["[1]"], vec![r#"["a"]"#]),
        (draft(of_2019, prefixed.clone()), vec!["[1]"], vec![r#"["a"]"#]),
        (prefixed, vec![r#"["a",1]"#], vec!["[1]"]),
    ]);
}

#[test]
fn a_count_may_be_written_with_a_point() {
    check([(
        json!({"enum": ["a", "abc"], "minLength": 2.0, "not": {"const": "zzz"}}),
        vec![r#""abc""#],
        vec![r#""a""#],
    )]);
}

#[test]
fn options_of_the_compiler_are_not_for_clients() {
    let lenient = json!({"type": "object", "x-guidance": {"lenient": true, "coerce_one_of": true}, "oneOf": [{"multipleOf": 3}, {"multipleOf": 5}], "properties": {"a": {"uniqueItems": true}}});
    assert_eq!(compile(schema(lenient)).unwrap_err().kind, Kind::Unsupported);
    let nested = Source::Lark("start: %json {\"x-guidance\": {\"lenient\": true}}".into());
    assert_eq!(compile(nested).unwrap_err().kind, Kind::Unsupported);
}

#[test]
fn the_same_content_is_compiled_once() {
    let compiler = compiler_with(patient());
    let source = || schema(json!({"type": "object", "properties": {"a": {"type": "integer"}}}));
    let one = compiler.compile(source(), &Cancel::new()).unwrap();
    let other = compiler.compile(source(), &Cancel::new()).unwrap();
    assert!(Arc::ptr_eq(&one, &other));
    assert_eq!(compiler.cache_counts().hits, 1);
    assert_eq!(compiler.cache_counts().grammars, 1);
}

#[test]
fn the_cache_is_bounded_and_forgets_the_oldest() {
    let compiler = compiler_with(Limits { cache_bytes: 1 << 20, ..patient() });
    let source = |index: usize| Source::Choice(vec![format!("{index}")]);
    let first = compiler.compile(source(0), &Cancel::new()).unwrap();
    for index in 1..200 {
        compiler.compile(source(index), &Cancel::new()).unwrap();
        // Used all the time, so it stays.
        assert!(Arc::ptr_eq(&first, &compiler.compile(source(0), &Cancel::new()).unwrap()));
        assert!(compiler.cache_counts().bytes <= 1 << 20);
    }
    let counts = compiler.cache_counts();
    assert!(counts.grammars < 200 && counts.grammars > 2, "{counts:?}");
}

#[test]
fn a_request_that_is_gone_compiles_nothing() {
    let cancel = Cancel::new();
    cancel.cancel();
    let error = compiler_with(patient()).compile(Source::JsonObject, &cancel).unwrap_err();
    assert_eq!(error.kind, Kind::Cancelled);
}

/// Of a vocabulary without a token for each byte: it has those of `é` only.
#[test]
fn what_the_vocabulary_cannot_spell_is_refused_or_left_out() {
    let end = 128;
    let token = |bytes: &[u8]| Token { bytes: bytes.to_vec(), special: bytes.is_empty() };
    let mut tokens: Vec<Token> = (0..128).map(|byte| token(&[byte])).collect();
    tokens.extend([&b""[..], b"\xc3", b"\xa9"].map(token));
    let compiler = Compiler::new(tokens, 131, &[end], patient()).unwrap();
    let compile = |source: Source| compiler.compile(source, &Cancel::new());
    let texts = |all: &[&str]| Source::Choice(all.iter().map(|&text| text.to_owned()).collect());
    let required =
        |name: &str, value: Value| json!({"type": "object", "properties": {name: value}, "required": [name]});
    for (source, path) in [
        (schema(json!({"const": "aü"})), ""),
        (schema(json!({"type": ["string", "null"], "enum": ["ü", "日本"]})), ""),
        (
            schema(required("a", json!({"items": {"const": {"b": "ü"}}, "type": "array", "minItems": 1}))),
            "/properties/a/items",
        ),
        (schema(required("ü", json!({"type": "string"}))), ""),
        (
            Source::Parts(vec![Part::Json {
                schema: required("a", json!({"enum": ["ü"]})),
                at: "at".into(),
            }]),
            "at/properties/a",
        ),
        (texts(&["ü", "日"]), ""),
    ] {
        let error = compile(source.clone()).err().unwrap_or_else(|| panic!("{source:?} compiled"));
        assert_eq!((error.path.as_str(), error.kind), (path, Kind::Unsatisfiable), "{error}");
        assert!(error.reason.contains("this model has no tokens for 'ü'"), "{error}");
    }
    let complete = |source: Source| {
        let grammar = compile(source).unwrap();
        let (mut matcher, mut mask) = (grammar.matcher(), vec![0; grammar.mask_words()]);
        let mut text = Vec::new();
        loop {
            matcher.mask(&mut mask)?;
            let has = |id: &u32| mask[*id as usize / 32] >> (id % 32) & 1 == 1;
            let Some(next) = (0x21..131).chain([0x20]).find(has) else { panic!("{text:?}") };
            if next == end {
                return Ok(String::from_utf8(text).unwrap());
            }
            text.push(match next {
                129 => 0xc3,
                130 => 0xa9,
                byte => byte as u8,
            });
            matcher.advance(next)?;
        }
    };
    for (source, text) in [
        (schema(json!({"enum": ["aü", "aé"]})), "\"aé\""),
        (
            schema(
                json!({"type": "object", "properties": {"aü": {}, "ab": {"const": 1}}, "additionalProperties": false, "minProperties": 1}),
            ),
            "{\"ab\":1}",
        ),
        (texts(&["aü", "aé", "ab日"]), "aé"),
    ] {
        assert_eq!(complete(source), Ok(text.to_owned()));
    }
    // What an expression needs is met on the way.
    assert_eq!(complete(Source::Regex("aü".into())), Err(MatchError::Stuck));
}
