//! Texts that the server composes: calls of tools with free text around them, with and without special tokens.

use std::sync::Arc;

use crate::patient;
use crate::synthetic::Vocabulary;
use penstock_constraint::{Cancel, CompileError, Compiler, Grammar, Kind, Part, Source, Token};
use serde_json::json;

/// A vocabulary of single bytes, the end, and special tokens.
const EOS: u32 = 256;
const SPECIAL: [&str; 4] = ["<|call|>", "<|/call|>", "<|think|>", "<|/think|>"];

fn compile(parts: Vec<Part>) -> Result<Arc<Grammar>, CompileError> {
    let mut tokens = Vocabulary::new(257).tokens;
    tokens.extend(SPECIAL.map(|name| Token { bytes: name.into(), special: true }));
    let size = tokens.len();
    let compiler = Compiler::new(tokens, size, &[EOS], patient()).unwrap();
    compiler.compile(Source::Parts(parts), &Cancel::new())
}

/// The tokens of a text; the names of special tokens are these tokens.
fn tokens(mut text: &str) -> Vec<u32> {
    let mut tokens = Vec::new();
    while let Some(byte) = text.bytes().next() {
        let special = SPECIAL.iter().position(|name| text.starts_with(name));
        let (token, length) = special.map_or((u32::from(byte), 1), |at| (257 + at as u32, SPECIAL[at].len()));
        tokens.push(token);
        let mut end = length;
        while !text.is_char_boundary(end) {
            tokens.push(u32::from(text.as_bytes()[end]));
            end += 1;
        }
        text = &text[end..];
    }
    tokens
}

/// How many tokens of the text are taken, each being in its mask too, and whether it may end there.
fn walk(grammar: &Grammar, text: &str) -> (usize, bool) {
    let mut matcher = grammar.matcher();
    let mut mask = vec![0; grammar.mask_words()];
    let mut taken = 0;
    let allows = |mask: &[u32], token: u32| mask[token as usize / 32] >> (token % 32) & 1 == 1;
    for token in tokens(text) {
        if matcher.is_complete() || matcher.mask(&mut mask).is_err() || !allows(&mask, token) {
            return (taken, false);
        }
        matcher.advance(token).unwrap();
        taken += 1;
    }
    let ends = matcher.mask(&mut mask).is_ok() && allows(&mask, EOS);
    (taken, ends)
}

fn accepts(grammar: &Grammar, text: &str) -> bool {
    walk(grammar, text) == (tokens(text).len(), true)
}

/// The argument of a custom tool: what its grammar accepts, as JSON escapes it, and nothing else.
#[test]
fn a_lark_grammar_is_followed_within_json() {
    let input = |lark: &str| {
        let quoted = Part::Quoted { lark: lark.into(), at: "/0/format/definition".into() };
        compile(vec![text("{\"input\": \""), quoted, text("\"}")])
    };
    let json = |text: &str| format!("{{\"input\": {}}}", serde_json::Value::from(text));
    let arithmetic = "start: expr\nexpr: term (SP OP SP term)*\nterm: INT | \"(\" expr \")\"\nOP: \"+\" | \"*\"\nSP: \" \"\n%import common.INT\n";
    let lines = "start: (line NL)+\nline: \"say \" QUOTED | /[a-z]+ = [^\\n\"]*/\nQUOTED: /\"[^\"\\n]*\"/\nNL: \"\\n\"\n";
    for (lark, good, bad) in [
        (arithmetic, vec!["1", "1 + (2 * 30)"], vec!["", "1 +", "(1", "1+1", "x"]),
        (
            lines,
            vec!["say \"hi\"\n", "x = a\\b\ty = é\n", "a = \nsay \"\"\n"],
            vec!["say hi\n", "x = 1", "x = \"\n"],
        ),
        ("start: WORD (WS WORD)*\n%import common.WORD\n%import common.WS", vec!["a b", "a\n\tb"], vec!["a1"]),
        ("start: \"a\" \"b\"\n%ignore /[ \\n]+/", vec!["ab", "a \n b"], vec!["a\tb"]),
    ] {
        let grammar = input(lark).unwrap_or_else(|error| panic!("{lark}: {error}"));
        for text in good {
            assert!(accepts(&grammar, &json(text)), "{lark}: {text:?}");
        }
        for text in bad {
            assert!(!accepts(&grammar, &json(text)), "{lark}: {text:?}");
        }
        // As it stands, without escapes, or with others.
        assert!(
            !accepts(&grammar, "{\"input\": \"x = \n\"}") && !accepts(&grammar, "{\"input\": \"\\u0061b\"}")
        );
    }
    for (lark, path) in [
        ("start: nothing", "/0/format/definition 1:8"),
        ("start: \"a", "/0/format/definition 1:10"),
        ("start: \"a\"\nb: %json {}", "/0/format/definition 2:4"),
        ("start: %regex { \"substring_chars\": \"abc\" }", "/0/format/definition 1:8"),
    ] {
        let error = input(lark).err().unwrap_or_else(|| panic!("{lark} was taken"));
        assert_eq!(error.path, path, "{error}");
    }
}

fn text(text: &str) -> Part {
    Part::Text(text.into())
}

/// A call of `f`, which takes a number, or of `g`, which takes nothing.
fn call(open: &str, close: &str) -> Vec<Part> {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
                        "additionalProperties": false});
    let one = |name: &str, arguments: Part| {
        vec![
            text(&format!("{open}{{\"name\": \"{name}\", \"arguments\": ")),
            arguments,
            text(&format!("}}{close}")),
        ]
    };
    let none = json!({"type": "object", "properties": {}, "additionalProperties": false});
    vec![Part::OneOf(vec![
        one("f", Part::Json { schema, at: String::new() }),
        one("g", Part::Json { schema: none, at: String::new() }),
    ])]
}

fn calls(open: &str, close: &str, least: u32, most: Option<u32>) -> Part {
    Part::Repeat { part: call(open, close), between: vec![text("\n")], least, most }
}

const F: &str = r#"{"name": "f", "arguments": {"a": 5}}"#;
const G: &str = r#"{"name": "g", "arguments": {}}"#;
const WRONG: &str = r#"{"name": "f", "arguments": {"a": "x"}}"#;

#[test]
fn calls_and_nothing_else() {
    for (open, close) in
        [("<tool_call>", "</tool_call>"), ("<|call|>", "<|/call|>"), ("<|call|>[", "]<|/call|>")]
    {
        let grammar = compile(vec![calls(open, close, 1, None)]).unwrap();
        let one = |call: &str| format!("{open}{call}{close}");
        for good in [one(F), one(G), format!("{}\n{}", one(F), one(G)), [one(F), one(F), one(G)].join("\n")] {
            assert!(accepts(&grammar, &good), "{good}");
        }
        for bad in ["", "Hello", &one(WRONG), &format!("{} and", one(F)), &one("{}"), &format!("{open}{F}")] {
            assert!(!accepts(&grammar, bad), "{bad}");
        }
        let single = compile(vec![calls(open, close, 1, Some(1))]).unwrap();
        assert!(accepts(&single, &one(F)));
        assert!(!accepts(&single, &format!("{}\n{}", one(F), one(G))));
    }
}

/// Free text until a call begins; from there the schemas bind.
fn auto(open: &str, close: &str) -> Vec<Part> {
    let mut one = vec![Part::Until { marker: open.into(), without: vec![], not_first: None }];
    one.extend(call("", close));
    let free = Part::Free { without: vec![open.into()], not_first: None };
    vec![Part::Repeat { part: one, between: vec![], least: 0, most: None }, free]
}

#[test]
fn a_call_in_free_text_binds_from_its_marker_on() {
    for (open, close) in [("<tool_call>", "</tool_call>"), ("<|call|>", "<|/call|>")] {
        let grammar = compile(auto(open, close)).unwrap();
        let one = |call: &str| format!("{open}{call}{close}");
        for good in [
            String::new(),
            "Hello, wörld.\n\n{}".to_owned(),
            "a <tool_ b <tool_callx".to_owned(),
            one(F),
            format!("Let me see.\n{}", one(F)),
            format!("First {} then {}\n{} so.", one(F), one(G), one(F)),
        ] {
            assert!(accepts(&grammar, &good), "{good}");
        }
        for bad in [one(WRONG), format!("x {open}y"), format!("{}{open}", one(F)), format!("{open}{F}")] {
            assert!(!accepts(&grammar, &bad), "{bad}");
        }
    }
}

/// Reasoning is free, calls in it too; what follows it is bound.
fn reasoned(open: &str, close: &str) -> Vec<Part> {
    let mut thought = vec![
        Part::Opening(open.into()),
        Part::Until { marker: close.into(), without: vec![], not_first: None },
    ];
    thought.extend(auto("<tool_call>", "</tool_call>"));
    let mut one =
        vec![Part::Until { marker: "<tool_call>".into(), without: vec![], not_first: Some(open.into()) }];
    one.extend(call("", "</tool_call>"));
    let mut plain = vec![Part::Repeat { part: one, between: vec![], least: 1, most: Some(1) }];
    plain.extend(auto("<tool_call>", "</tool_call>"));
    let free = vec![Part::Free { without: vec!["<tool_call>".into()], not_first: Some(open.into()) }];
    let cut = vec![Part::Opening(open.into()), Part::Free { without: vec![close.into()], not_first: None }];
    vec![Part::OneOf(vec![thought, plain, free, cut])]
}

#[test]
fn reasoning_before_it_is_free() {
    for (open, close) in [("<think>", "</think>"), ("<|think|>", "<|/think|>")] {
        let grammar = compile(reasoned(open, close)).unwrap();
        let call = |call: &str| format!("<tool_call>{call}</tool_call>");
        for good in [
            format!("{open}I could <tool_call> it.{close}\n\nNo."),
            format!("{open}Hm.{close}{}", call(F)),
            format!("{open}Hm."),
            format!("No thought. {} and {}", call(F), call(G)),
            "No call.".to_owned(),
        ] {
            assert!(accepts(&grammar, &good), "{good}");
        }
        for bad in [format!("{open}Hm.{close}{}", call(WRONG)), call(WRONG)] {
            assert!(!accepts(&grammar, &bad), "{bad}");
        }
    }
}

#[test]
fn numbers_objects_expressions_and_choices() {
    let grammar = compile(vec![
        text("functions.f:"),
        Part::Number,
        Part::Space,
        Part::OneOf(vec![vec![Part::JsonObject], vec![Part::Regex("[ab]+".into())]]),
    ])
    .unwrap();
    for good in ["functions.f:0 {\"x\": [1]}", "functions.f:12\nabba", "functions.f:123a"] {
        assert!(accepts(&grammar, good), "{good}");
    }
    for bad in ["functions.f:", "functions.f:1", "functions.f:1234a", "functions.f:1 c"] {
        assert!(!accepts(&grammar, bad), "{bad}");
    }
}

#[test]
fn what_a_schema_cannot_be_is_told_with_its_place() {
    let schema = json!({"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}});
    let error = compile(vec![Part::Json { schema, at: "/tools/3/function/parameters".into() }]).unwrap_err();
    assert!(error.path.starts_with("/tools/3/function/parameters/properties/a"), "{error}");
    let deep = (0..1000).fold(json!({}), |inner, _| json!({"properties": {"x": inner}}));
    let error = compile(vec![Part::Json { schema: deep, at: "/tools/0".into() }]).unwrap_err();
    assert_eq!((error.kind, error.path.as_str()), (Kind::TooDeep, "/tools/0"));
}

/// A model that may emit space without end sometimes does.
#[test]
fn space_before_a_marker_and_between_parts_has_an_end() {
    let call = |space: usize| format!("{}<call>{}x", " ".repeat(space), "\n".repeat(space));
    let grammar = compile(vec![Part::Opening("<call>".into()), Part::Space, text("x")]).unwrap();
    assert!(accepts(&grammar, &call(0)) && accepts(&grammar, &call(8)));
    assert!(!accepts(&grammar, &call(9)));
    // What must not be first is not there behind more of it either.
    let free = compile(vec![Part::Free { without: vec![], not_first: Some("<call>".into()) }]).unwrap();
    assert!(accepts(&free, &format!("{}<cal", " ".repeat(20))));
    assert!(!accepts(&free, &format!("{}<call>", " ".repeat(20))));
}
