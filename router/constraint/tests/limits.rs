//! What grammars may take: bombs end in time, each limit is told, a request that is gone ends its thread.

use std::time::{Duration, Instant};

use crate::behaviour::{accepts, compile, compiler_with, schema};
use crate::patient;
use penstock_constraint::{Cancel, Kind, Limits, MatchError, Part, Source};
use serde_json::{Value, json};

/// Sources that grow when they are compiled. Each must end, one way or the other, not much after the limit.
fn bombs() -> Vec<(&'static str, Source)> {
    let nested = |key: &str, depth: usize| {
        let mut inner = json!({"type": "integer", "minimum": 1});
        for level in 0..depth {
            inner = json!({key: [inner, {"type": "object", "properties": {"a": {"const": level}}}, {"multipleOf": 2}]});
        }
        inner
    };
    let chain: Value = (0..20_000)
        .map(|index| (format!("d{index}"), json!({"$ref": format!("#/$defs/d{}", index + 1)})))
        .chain([("d20000".to_owned(), json!({"type": "null"}))])
        .collect();
    let chain_of = |link: &dyn Fn(Value) -> Value| {
        let links = (0..13_000)
            .map(|index| (format!("d{index}"), link(json!({"$ref": format!("#/$defs/d{}", index + 1)}))));
        let all: Value = links.chain([("d13000".to_owned(), json!({"type": "array"}))]).collect();
        schema(json!({"$defs": all, "$ref": "#/$defs/d0"}))
    };
    let kinds = [vec!["integer"; 90_000], vec!["number"]].concat();
    let twice = vec![json!({"$ref": "#/$defs/a"}); 2];
    let texts = |name: &str| (0..40_000).map(|index| format!("{name}{index}")).collect::<Vec<_>>();
    let properties: Value = (0..1_990).map(|index| (format!("p{index}"), json!({}))).collect();
    let with_patterns = |kind: &str| {
        let patterns: Value = (0..4_000).map(|index| (format!("^q{index}$"), json!({}))).collect();
        let names: Vec<String> = (0..4_000).map(|index| format!("r{index}")).collect();
        json!({"required": names, "patternProperties": patterns, "additionalProperties": {"type": kind}})
    };
    let wide: Value = (0..1_990)
        .map(|index| (format!("p{index}"), json!({"type": "string", "maxLength": index})))
        .collect();
    let doubling: Value = (0..40)
        .map(|index| {
            let next = json!({"$ref": format!("#/$defs/d{}", index + 1)});
            (format!("d{index}"), json!({"allOf": [{"anyOf": [next, {"type": "null"}]}, {"anyOf": [next, {"type": "integer"}]}]}))
        })
        .chain([("d40".to_owned(), json!({"type": "object", "properties": {"a": {"type": "null"}}}))])
        .collect();
    vec![
        ("nested oneOf", schema(nested("oneOf", 30))),
        ("nested anyOf", schema(nested("anyOf", 30))),
        ("nested allOf", schema(nested("allOf", 30))),
        (
            "minItems",
            schema(
                json!({"type": "array", "minItems": 1_000_000, "items": {"type": "array", "minItems": 1_000_000}}),
            ),
        ),
        ("maxLength", schema(json!({"type": "string", "maxLength": 1_000_000, "pattern": "(a|b)*c(d|e)*"}))),
        ("chain of references", schema(json!({"$defs": chain, "$ref": "#/$defs/d0"}))),
        ("chain of items", chain_of(&|next| json!({"type": "array", "items": next}))),
        ("chain of any", chain_of(&|next| json!({"anyOf": [{"type": "null"}, next]}))),
        (
            "chain of all",
            chain_of(&|mut next| {
                next["type"] = "array".into();
                next["minItems"] = 1.into();
                next
            }),
        ),
        ("chain of properties", chain_of(&|next| json!({"properties": {"a": next}}))),
        ("chain of patterns", chain_of(&|next| json!({"type": "object", "patternProperties": {"^a": next}}))),
        ("many properties", schema(json!({"type": "object", "properties": wide}))),
        (
            "many properties twice",
            schema(
                json!({"allOf": [{"properties": wide}, {"properties": wide, "additionalProperties": false}]}),
            ),
        ),
        ("references that double", schema(json!({"$defs": doubling, "$ref": "#/$defs/d0"}))),
        (
            "enum",
            schema(json!({"enum": (0..60_000).map(|index| format!("text {index}")).collect::<Vec<_>>()})),
        ),
        ("choice", Source::Choice((0..60_000).map(|index| format!("text {index}")).collect())),
        (
            "many oneOf",
            schema(
                json!({"oneOf": (0..1_500).map(|index| json!({"properties": {"k": {"const": index}}, "required": ["k"]})).collect::<Vec<_>>()}),
            ),
        ),
        (
            "not of anyOf",
            schema(
                json!({"not": {"anyOf": (0..3_000).map(|index| json!({"const": format!("t{index}")})).collect::<Vec<_>>()}}),
            ),
        ),
        (
            "patterns",
            schema(
                json!({"allOf": (1..40).map(|index| json!({"pattern": format!("(a|b){{{index}}}.*(c|d)")})).collect::<Vec<_>>(), "type": "string"}),
            ),
        ),
        (
            "dependencies",
            schema(
                json!({"type": "object", "dependentRequired": (0..40).map(|index| (format!("a{index}"), json!([format!("b{index}")]))).collect::<Value>()}),
            ),
        ),
        ("repeated star", Source::Regex("(a|a)*{1000}".into())),
        ("repetitions in repetitions", Source::Regex("((((a{1,99}){1,99}){1,99}){1,99}){1,99}b".into())),
        ("states", Source::Regex("(?:a|b)*a(?:a|b){40}c".into())),
        ("classes", Source::Regex(r"(\p{L}|\d|\w){500}".into())),
        ("groups", Source::Regex(format!("{}a{}", "(".repeat(100_000), ")".repeat(100_000)))),
        ("bars", Source::Regex("a|".repeat(200_000))),
        ("deep lark", Source::Lark(format!("start: {}\"a\"{}", "(".repeat(50_000), ")".repeat(50_000)))),
        (
            "rules in rules",
            Source::Lark(
                (0..990)
                    .map(|index| {
                        format!(
                            "{}: x{} x{}\n",
                            if index == 0 { "start".to_owned() } else { format!("x{index}") },
                            index + 1,
                            index + 1
                        )
                    })
                    .chain(["x990: \"a\"\n".to_owned()])
                    .collect(),
            ),
        ),
        (
            "terminals in terminals",
            Source::Lark(
                (0..990)
                    .map(|index| format!("A{index}: A{} A{}\n", index + 1, index + 1))
                    .chain(["A990: \"a\"\nstart: A0\n".to_owned()])
                    .collect(),
            ),
        ),
        ("long lark", Source::Lark(format!("start: {}\n", "\"a\" ".repeat(200_000)))),
        ("types", schema(json!({"type": kinds}))),
        ("contains in contains", schema((0..30).fold(json!(true), |inner, _| json!({"contains": inner})))),
        (
            "references that fan out beside not",
            schema(json!({"not": {"type": "string"}, "allOf": twice, "$defs": {"a": {"allOf": twice}}})),
        ),
        ("names of many", schema(json!({"propertyNames": {"enum": texts("t")}, "properties": properties}))),
        ("demanded by many", schema(json!({"required": texts("a"), "dependentRequired": {"x": texts("b")}}))),
        ("enums apart", schema(json!({"oneOf": [{"enum": texts("a")}, {"enum": texts("b")}]}))),
        (
            "patterns apart",
            schema(
                json!({"oneOf": [with_patterns("string"), with_patterns("integer"), with_patterns("number")]}),
            ),
        ),
        (
            "unique values",
            schema(
                json!({"const": (0..100_000).collect::<Vec<_>>(), "uniqueItems": true, "not": {"const": 3}}),
            ),
        ),
        ("look-aheads", schema(json!({"pattern": format!("^{}b", "(?=a)".repeat(100_000))}))),
        ("negative look-aheads", {
            let pattern = |at| format!("^{}b", format!("(?!.*{at}.{{3}}|.*c.{{3}})").repeat(14));
            let properties: Value =
                (0..2_000).map(|at| (at.to_string(), json!({"pattern": pattern(at)}))).collect();
            schema(json!({"properties": properties}))
        }),
        ("braces", schema(json!({"pattern": "{".repeat(900_000)}))),
        ("sets", Source::Regex("\\w".repeat(400_000))),
        ("options", Source::Regex("a?".repeat(50_000))),
        ("rules to choose", Source::Lark(format!("start: \"a\" {}\n", "| \"a\" ".repeat(150_000)))),
        ("sets in lark", Source::Lark(format!("start: /{}/\n", "\\w".repeat(400_000)))),
        (
            "spaces in a grammar within JSON",
            Source::Parts(vec![Part::Quoted {
                lark: format!("start: \"a\"\n{}", " ".repeat(900_000)),
                at: "/0".into(),
            }]),
        ),
        ("repeated rule", Source::Lark("start: (((\"a\" | \"a\"){1,1000}){1,1000}){1,1000}\n".into())),
    ]
}

#[test]
fn bombs_end_in_time() {
    let compiler = compiler_with(Limits { threads: 64, ..Limits::default() });
    for (name, source) in bombs() {
        let start = Instant::now();
        let result = compiler.compile(source, &Cancel::new());
        let elapsed = start.elapsed();
        println!(
            "{name}: {:?} in {elapsed:?}",
            result.as_ref().map(|grammar| grammar.bytes()).map_err(ToString::to_string)
        );
        // Beside other tests on a busy machine; alone it is the limit and some milliseconds.
        assert!(elapsed < Duration::from_secs(30), "{name} took {elapsed:?}");
        let Ok(grammar) = result else { continue };
        // What compiled must also be walked within limits.
        let mut matcher = grammar.matcher();
        let mut mask = vec![0; grammar.mask_words()];
        for _ in 0..20 {
            let start = Instant::now();
            let computed = matcher.mask(&mut mask);
            assert!(start.elapsed() < Duration::from_secs(10), "a mask of {name} took {:?}", start.elapsed());
            let first =
                (0..256).rev().find(|&token: &u32| mask[token as usize / 32] >> (token % 32) & 1 == 1);
            match (computed, first) {
                (Ok(()), Some(token)) if matcher.advance(token).is_ok() => {}
                _ => break,
            }
        }
    }
}

#[test]
fn a_thousand_properties_of_one_object_may_be_optional() {
    let properties: Value =
        (0..1_000).map(|index| (format!("p{index}"), json!({"type": "integer"}))).collect();
    let closed = json!({"type": "object", "properties": properties, "additionalProperties": false});
    let compiler = compiler_with(patient());
    let grammar = compiler.compile(schema(closed), &Cancel::new()).unwrap();
    for text in ["{}", r#"{"p0": 1}"#, r#"{"p999": 1}"#, r#"{"p7": 1, "p70": 2, "p700": 3}"#] {
        assert!(accepts(&grammar, text), "{text}");
    }
    for text in [r#"{"p1000": 1}"#, r#"{"p7": "a"}"#, r#"{"p70": 2, "p7": 1}"#] {
        assert!(!accepts(&grammar, text), "{text}");
    }
}

#[test]
fn more_optional_properties_than_the_parser_holds_are_refused_by_name() {
    let object = |required: &[&str]| {
        let properties: Value =
            (0..1_500).map(|index| (format!("p{index}"), json!({"type": "integer"}))).collect();
        json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
    };
    let compiler = compiler_with(patient());
    let error = compiler.compile(schema(object(&[])), &Cancel::new()).unwrap_err();
    assert_eq!(error.kind, Kind::TooLarge);
    assert!(error.to_string().starts_with("/properties: more than 1000 optional properties"), "{error}");
    // One in the middle that has to be there ends what may follow.
    let grammar = compiler.compile(schema(object(&["p700"])), &Cancel::new()).unwrap();
    assert!(accepts(&grammar, r#"{"p1": 1, "p700": 2, "p1499": 3}"#));
}

#[test]
fn more_symbols_than_the_parser_can_number_are_refused() {
    let nested = (0..5).fold(json!({}), |inner, _| {
        let properties: Value = (0..7).map(|index| (format!("k{index}"), inner.clone())).collect();
        json!({"type": "object", "properties": properties})
    });
    let error = compiler_with(patient()).compile(schema(nested), &Cancel::new()).unwrap_err();
    assert_eq!((error.kind, error.to_string().contains("65525 symbols")), (Kind::TooLarge, true), "{error}");
}

#[test]
fn more_schemas_than_the_parser_reads_are_refused() {
    let dependent: Value = (0..40).map(|index| (format!("a{index}"), json!([format!("b{index}")]))).collect();
    let source = schema(json!({"type": "object", "dependentRequired": dependent}));
    let error = compiler_with(patient()).compile(source, &Cancel::new()).unwrap_err();
    assert_eq!(
        (error.kind, error.to_string().contains("too many schemas")),
        (Kind::TooLarge, true),
        "{error}"
    );
}

/// An automaton whose states are the last letters: each text finds states that no other one needs.
#[test]
fn what_a_matcher_holds_is_bounded() {
    let limits = Limits { matcher_bytes: 4 << 20, ..patient() };
    let source = Source::Regex("[ab]*a[ab]{60}c".into());
    let grammar = compiler_with(limits).compile(source, &Cancel::new()).unwrap();
    let (mut matcher, mut mask) = (grammar.matcher(), vec![0; grammar.mask_words()]);
    let mut random = 1u64;
    let error = (0..200_000).find_map(|_| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        matcher
            .advance(u32::from(b"ab"[(random >> 63) as usize]))
            .and_then(|()| matcher.mask(&mut mask))
            .err()
    });
    assert!(
        matches!(&error, Some(MatchError::TooComplex(why)) if why == "its lexer needs more than 4 MiB"),
        "{error:?}"
    );
    assert_eq!(matcher.advance(u32::from(b'a')), Err(error.unwrap()), "it stays so");
    let mut other = grammar.matcher();
    other.mask(&mut mask).unwrap();
}

/// With limits that small grammars meet. The same texts pass by those of a server.
#[test]
fn what_a_parser_and_its_lexer_may_take_is_bounded() {
    let mut random = 1u64;
    let mut letter = |_| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        b"ab"[(random >> 63) as usize]
    };
    let letters: Vec<u8> = (0..600).map(&mut letter).collect();
    let named: Value = (0..100).map(|at| (format!("p{at}"), json!({"type": "integer"}))).collect();
    let object = json!({"type": "object", "properties": named, "additionalProperties": false});
    let states = || Source::Regex("[ab]*a[ab]{60}c".into());
    let cases = [
        (
            Limits { lexer_states: 200, ..patient() },
            states(),
            &letters[..],
            "its lexer needs more than 200 states",
        ),
        (
            Limits { step_lexer_fuel: 250, ..patient() },
            states(),
            &letters[..],
            "its lexer takes too many steps for a mask",
        ),
        (
            Limits { step_items: 300, ..patient() },
            Source::Parts(vec![Part::Text("so: ".into()), Part::Json { schema: object, at: "at".into() }]),
            &br#"so: {"p7": 1, "p8": 2}"#[..],
            "it needs more than 300 parser items for a mask",
        ),
    ];
    for (limits, source, text, says) in cases {
        let walked = |limits: Limits| {
            let grammar = compiler_with(limits).compile(source.clone(), &Cancel::new()).unwrap();
            let (mut matcher, mut mask) = (grammar.matcher(), vec![0; grammar.mask_words()]);
            text.iter().try_for_each(|&byte| {
                matcher.mask(&mut mask)?;
                matcher.advance(u32::from(byte))
            })
        };
        assert_eq!(walked(limits), Err(MatchError::TooComplex(says.into())));
        assert_eq!(walked(patient()), Ok(()), "{says}");
    }
}

#[test]
fn steps_to_build_a_lexer_are_bounded() {
    let source = || Source::Regex("[a-m]*a[a-z]{20}c".into());
    let limits = Limits { lexer_fuel: 10, ..patient() };
    let error = compiler_with(limits).compile(source(), &Cancel::new()).unwrap_err();
    let says = "the grammar is too large once it is compiled";
    assert_eq!((error.kind, error.to_string().as_str()), (Kind::TooLarge, says));
    assert!(compile(source()).is_ok());
}

#[test]
fn cancelling_ends_a_long_compile() {
    let compiler = compiler_with(patient());
    let slow = bombs().into_iter().find(|(name, _)| *name == "long lark").unwrap().1;
    let cancel = Cancel::new();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| compiler.compile(slow, &cancel));
        let start = Instant::now();
        cancel.cancel();
        assert_eq!(waiting.join().unwrap().unwrap_err().kind, Kind::Cancelled);
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    });
}

#[test]
fn a_thread_whose_caller_left_ends_too() {
    let limits = Limits {
        threads: 1,
        timeout: Duration::from_millis(50),
        // The worst computes for some seconds; beside other work its thread gives way, and that becomes minutes.
        wait: Duration::from_secs(600),
        ..Limits::default()
    };
    let compiler = compiler_with(limits);
    for (name, source) in bombs() {
        let bytes = source.content(&Limits::default()).map_or(0, |content| content.bytes);
        if compiler.compile(source, &Cancel::new()).is_err_and(|error| error.kind == Kind::TimedOut) {
            let start = Instant::now();
            // Of its class of sizes: others have threads of their own.
            let of_its_size = Source::Choice(vec![name.into(), "x".repeat(bytes.min((128 << 10) + 1))]);
            let result = compiler.compile(of_its_size, &Cancel::new());
            println!("{name}: its thread ended after {:?}", start.elapsed());
            // It may be slow itself beside other tests; but it had its thread.
            let busy = result.is_err_and(|error| error.kind == Kind::Busy);
            assert!(!busy, "{name} still runs after {:?}", start.elapsed());
        }
    }
}
