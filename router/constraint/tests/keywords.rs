//! Tries every keyword of JSON schema and writes the table in `docs/structured-output.md` from what was seen.
//!
//! With `PENSTOCK_WRITE_DOCS` set the table is written; without, it is compared.

use std::fmt::Write;

use crate::patient;
use crate::synthetic::Vocabulary;
use penstock_constraint::{Cancel, Compiler, Source};
use serde_json::{Value, json};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/structured-output.md");
const BEGIN: &str = "<!-- keywords: written by router/constraint/tests/keywords.rs -->";
const END: &str = "<!-- end of keywords -->";

/// A schema with texts that are valid and texts that are not.
struct Trial {
    schema: Value,
    valid: Vec<Value>,
    invalid: Vec<Value>,
}

fn trial(schema: Value, valid: Value, invalid: Value) -> Trial {
    let list = |value: Value| value.as_array().cloned().unwrap_or_default();
    Trial { schema, valid: list(valid), invalid: list(invalid) }
}

struct Row {
    keywords: &'static str,
    /// What is tried; where some of it is refused, the keyword is supported in part.
    trials: Vec<Trial>,
    /// What to know about it.
    note: &'static str,
}

fn row(keywords: &'static str, note: &'static str, trials: Vec<Trial>) -> Row {
    Row { keywords, trials, note }
}

fn rows() -> Vec<Row> {
    let formats = |pairs: &[(&str, &str, &str)]| -> Vec<Trial> {
        let one = |(format, good, bad): &(&str, &str, &str)| {
            trial(json!({"type": "string", "format": format}), json!([good]), json!([bad]))
        };
        pairs.iter().map(one).collect()
    };
    vec![
        row(
            "`type`",
            "one or several",
            vec![
                trial(json!({"type": "integer"}), json!([1, -20]), json!([1.5, "1"])),
                trial(json!({"type": ["string", "null"]}), json!(["a", null]), json!([1])),
            ],
        ),
        row(
            "`enum`, `const`",
            "numbers up to 2^53",
            vec![
                trial(
                    json!({"enum": ["a", 1, null, [1], {"a": 2}]}),
                    json!(["a", 1, null, [1], {"a": 2}]),
                    json!(["b", 2, [2]]),
                ),
                trial(json!({"const": "x"}), json!(["x"]), json!(["y"])),
            ],
        ),
        row(
            "`minimum`, `maximum`, `exclusiveMinimum`, `exclusiveMaximum`",
            "of every draft",
            vec![
                trial(
                    json!({"type": "integer", "minimum": 3, "maximum": 11}),
                    json!([3, 11]),
                    json!([2, 12]),
                ),
                trial(
                    json!({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1.5}),
                    json!([0.01, 1.49]),
                    json!([0, 1.5]),
                ),
                trial(
                    json!({"type": "integer", "minimum": 3, "exclusiveMinimum": true}),
                    json!([4]),
                    json!([3]),
                ),
            ],
        ),
        row(
            "`multipleOf`",
            "up to 2^53; of a fraction, with as many decimals as it has: `0.50` of 0.25; not of those of which a float has more digits than are \
            written, such as 0.07",
            vec![
                trial(json!({"type": "integer", "multipleOf": 7}), json!([14, -7, 0]), json!([15])),
                trial(json!({"type": "number", "multipleOf": 0.25}), json!([0.25, 1.75]), json!([0.3])),
                trial(json!({"type": "number", "multipleOf": 0.07}), json!([]), json!([])),
            ],
        ),
        row(
            "`minLength`, `maxLength`",
            "in characters",
            vec![trial(
                json!({"type": "string", "minLength": 2, "maxLength": 3}),
                json!(["ab", "éàü"]),
                json!(["a", "abcd"]),
            )],
        ),
        row(
            "`pattern`",
            "ECMAScript's, without back-references, look-behind, word boundaries, and look-ahead but at the start, behind `^`; \
            a negative one is of plain texts or read by an automaton of 24 states, as in `^(?!\\.)(?!.*\\.\\.)`",
            vec![
                trial(
                    json!({"type": "string", "pattern": "^[a-z]+-\\d{2}$"}),
                    json!(["ab-12"]),
                    json!(["ab-1", "xab-12-"]),
                ),
                trial(
                    json!({"type": "string", "pattern": "^(?=.*\\d)[a-z\\d]{3}$"}),
                    json!(["ab1"]),
                    json!(["abc"]),
                ),
                trial(
                    json!({"type": "string", "pattern": "^(?!\\.)(?!.*\\.\\.)[a-z.]+$"}),
                    json!(["a.b."]),
                    json!([".a", "a..b"]),
                ),
                trial(json!({"type": "string", "pattern": "^(?!.*a.{9})b"}), json!([]), json!([])),
                trial(json!({"type": "string", "pattern": "(a|b)\\1"}), json!([]), json!([])),
                trial(json!({"type": "string", "pattern": "a(?!b)"}), json!([]), json!([])),
            ],
        ),
        row(
            "`format`: `date-time`, `date`, `time`, `duration`",
            "RFC 3339, without leap seconds",
            formats(&[
                ("date-time", "2024-02-29T12:00:00Z", "2023-02-29T12:00:00Z"),
                ("date", "2024-02-29", "2023-02-30"),
                ("time", "12:00:00+01:00", "25:00:00Z"),
                ("duration", "P1DT2H", "P"),
            ]),
        ),
        row(
            "`format`: `email`, `hostname`, `ipv4`, `ipv6`, `uuid`",
            "also `idn-email`, `idn-hostname`, in ASCII, without Punycode; hosts have up to eight labels of 30 characters, or six of which the first \
            two may have 63 (of `email` six, or four); before the `@` stand up to 64, with several dots 32 beside them; beside a `pattern` that is too complex \
            with these, hosts have up to 15 characters between hyphens and dots, and `email` 20 between dots before the `@`",
            formats(&[
                ("email", "a.b@example.org", "a@"),
                ("email", "no-reply-notifications@mail.berkshirehathaway.co.uk", "a@b-.com"),
                ("hostname", "a-b.example", "-a"),
                ("hostname", "ec2-52-14-199-87.us-east-2.compute.amazonaws.com", "a..b"),
                ("ipv4", "10.0.0.1", "10.0.0.256"),
                ("ipv6", "fe80::1", "1::2::3"),
                ("ipv6", "::ffff:192.168.0.1", "1.2.3.4"),
                ("uuid", "01234567-89ab-cdef-0123-456789abcdef", "0123"),
            ]),
        ),
        row(
            "`format`: `uri`, `uri-reference`, `uri-template`, `json-pointer`, `relative-json-pointer`, `regex`",
            "also `iri`, \
            `iri-reference`, in ASCII; ports up to 65535; of `regex` what every engine reads alike",
            formats(&[
                ("uri", "https://example.org/a?b#c", "/a"),
                ("uri", "http://localhost:11434/v1", "http://localhost:65536"),
                ("uri", "http://[::1]:8080/", "http://[::1"),
                ("uri-reference", "/a/b", "a b"),
                ("uri-template", "/a/{b}", "{"),
                ("uri-template", "/users/{userId}{?maxCount}", "/users/{userId"),
                ("json-pointer", "/a/~0b", "a"),
                ("relative-json-pointer", "1/a", "/a"),
                ("regex", "^[a-z]+$", "("),
            ]),
        ),
        row(
            "any other `format`",
            "asserts nothing, as JSON schema has it",
            vec![trial(json!({"type": "string", "format": "colour"}), json!(["anything"]), json!([1]))],
        ),
        row(
            "`items`, `prefixItems`, `additionalItems`",
            "of every draft",
            vec![
                trial(
                    json!({"type": "array", "items": {"type": "integer"}}),
                    json!([[], [1, 2]]),
                    json!([["a"]]),
                ),
                trial(
                    json!({"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "string"}}),
                    json!([[1, "a"]]),
                    json!([["a"], [1, 2]]),
                ),
                trial(
                    json!({"type": "array", "items": [{"type": "integer"}], "additionalItems": false}),
                    json!([[1]]),
                    json!([[1, 2]]),
                ),
            ],
        ),
        row(
            "`minItems`, `maxItems`",
            "",
            vec![trial(
                json!({"type": "array", "minItems": 1, "maxItems": 2}),
                json!([[1], [1, 2]]),
                json!([[], [1, 2, 3]]),
            )],
        ),
        row(
            "`uniqueItems`",
            "for items of up to four known values, and where there is at most one item",
            vec![
                trial(
                    json!({"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": true}),
                    json!([["b", "a"], []]),
                    json!([["a", "a"]]),
                ),
                trial(
                    json!({"type": "array", "items": {"$ref": "#/$defs/e"}, "uniqueItems": true, "$defs": {"e": {"enum": ["a", "b", "c"]}}}),
                    json!([["b", "a"], []]),
                    json!([["a", "a"]]),
                ),
                trial(
                    json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true}),
                    json!([]),
                    json!([]),
                ),
            ],
        ),
        row(
            "`contains`, `minContains`",
            "one or more, met among the first twelve items; `minContains` of 0 or 1",
            vec![
                trial(
                    json!({"type": "array", "contains": {"const": 5}}),
                    json!([[5], [1, 5, "a"]]),
                    json!([[], [1]]),
                ),
                trial(
                    json!({"type": "array", "contains": {"const": 5}, "minContains": 2}),
                    json!([]),
                    json!([]),
                ),
            ],
        ),
        row(
            "`maxContains`",
            "",
            vec![trial(
                json!({"type": "array", "contains": {"const": 5}, "maxContains": 2}),
                json!([]),
                json!([]),
            )],
        ),
        row(
            "`properties`, `required`, `additionalProperties`",
            "in the order of the schema, others last",
            vec![
                trial(
                    json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a"]}),
                    json!([{"a": 1}, {"a": 1, "b": 2, "c": 3}]),
                    json!([{}, {"a": "x"}]),
                ),
                trial(
                    json!({"type": "object", "properties": {"a": {}}, "additionalProperties": false}),
                    json!([{}, {"a": 1}]),
                    json!([{"b": 1}]),
                ),
                trial(
                    json!({"type": "object", "additionalProperties": {"type": "integer"}}),
                    json!([{"x": 1}]),
                    json!([{"x": "a"}]),
                ),
            ],
        ),
        row(
            "`patternProperties`",
            "patterns that no name matches two of, without look-ahead but `^(?!(a\\|b)$)`, alone and where other names are refused",
            vec![
                trial(
                    json!({"type": "object", "patternProperties": {"^a": {"type": "integer"}, "^b": {"type": "string"}}, "additionalProperties": false}),
                    json!([{"ab": 1, "b": "x"}]),
                    json!([{"a": "x"}, {"c": 1}]),
                ),
                trial(
                    json!({"type": "object", "patternProperties": {"^(?!(if|for)$)[a-z]+$": {"type": "integer"}}, "additionalProperties": false}),
                    json!([{}, {"i": 1, "iff": 2, "fo": 3}]),
                    json!([{"if": 1}, {"a": 1, "for": 1}, {"a": "x"}, {"A": 1}]),
                ),
                trial(
                    json!({"type": "object", "patternProperties": {"a": {"type": "integer"}, "b": {"minimum": 5}}}),
                    json!([]),
                    json!([]),
                ),
            ],
        ),
        row(
            "`propertyNames`",
            "one of `pattern`, `enum`, `const`, `format`, lengths, or one that implies the others, not beside `patternProperties`; `not` of `enum` and \
            `const`",
            vec![
                trial(
                    json!({"type": "object", "propertyNames": {"pattern": "^[a-z]$"}}),
                    json!([{"a": 1}]),
                    json!([{"ab": 1}]),
                ),
                trial(
                    json!({"type": "object", "properties": {"b": {}}, "propertyNames": {"not": {"enum": ["a", "b", 1]}}, "additionalProperties": {"type": "integer"}}),
                    json!([{}, {"c": 1, "aa": 2}]),
                    json!([{"a": 1}, {"b": 1}, {"c": 1, "a": 1}, {"c": "x"}]),
                ),
                trial(
                    json!({"type": "object", "propertyNames": {"pattern": "^[0-9]{4}-0[1-9]-0[1-9]$", "format": "date", "x-own": 1}}),
                    json!([{"2024-02-09": 1}]),
                    json!([{"2024-02-29": 1}]),
                ),
                trial(
                    json!({"type": "object", "propertyNames": {"not": {"pattern": "a"}}}),
                    json!([]),
                    json!([]),
                ),
            ],
        ),
        row(
            "`minProperties`, `maxProperties`",
            "beside optional properties: at least one, or any count of up to six; at most one property that is \
            not named is demanded",
            vec![
                trial(
                    json!({"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 1, "additionalProperties": false}),
                    json!([{"a": 1}, {"b": 1}]),
                    json!([{}]),
                ),
                trial(
                    json!({"type": "object", "maxProperties": 1}),
                    json!([{}, {"x": 1}]),
                    json!([{"x": 1, "y": 2}]),
                ),
                trial(json!({"type": "object", "minProperties": 2}), json!([]), json!([])),
            ],
        ),
        row(
            "`dependentRequired`, `dependentSchemas`, `dependencies`",
            "",
            vec![
                trial(
                    json!({"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}}),
                    json!([{"a": 1, "b": 1}, {"b": 1}]),
                    json!([{"a": 1}]),
                ),
                trial(
                    json!({"type": "object", "properties": {"a": {}, "b": {}}, "dependentSchemas": {"a": {"properties": {"b": {"type": "null"}}}}}),
                    json!([{"a": 1, "b": null}, {"b": 1}]),
                    json!([{"a": 1, "b": 1}]),
                ),
                trial(
                    json!({"type": "object", "properties": {"a": {}, "b": {}}, "dependencies": {"a": ["b"]}}),
                    json!([{"a": 1, "b": 1}]),
                    json!([{"a": 1}]),
                ),
            ],
        ),
        row(
            "`allOf`",
            "up to 16 patterns and formats for one string",
            vec![trial(
                json!({"allOf": [{"type": "integer"}, {"minimum": 3}, {"maximum": 5}]}),
                json!([4]),
                json!([2, 6, "a"]),
            )],
        ),
        row(
            "`anyOf`",
            "",
            vec![trial(
                json!({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]}),
                json!([4, "a"]),
                json!(["ab", null]),
            )],
        ),
        row(
            "`oneOf`",
            "where no value matches two options, or what matches two can be left out; of objects that one property of listed values tells apart, which \
            `discriminator` may name, those without it are",
            vec![
                trial(
                    json!({"oneOf": [{"type": "integer"}, {"type": "string"}]}),
                    json!([1, "a"]),
                    json!([null]),
                ),
                trial(
                    json!({"oneOf": [{"properties": {"k": {"const": 1}}, "required": ["k"], "type": "object"}, {"properties": {"k": {"const": 2}}, "required": ["k"], "type": "object"}]}),
                    json!([{"k": 1}, {"k": 2}]),
                    json!([{"k": 3}]),
                ),
                trial(
                    json!({"type": "object", "properties": {"a": {}, "b": {}}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}),
                    json!([{"a": 1}, {"b": 1}]),
                    json!([{"a": 1, "b": 1}, {}]),
                ),
                trial(
                    json!({"oneOf": [{"type": "object", "properties": {"$id": {}}, "required": ["$id"], "additionalProperties": false},
                        {"type": "object", "patternProperties": {"^[^$]": {"type": "integer"}}, "additionalProperties": false}]}),
                    json!([{"$id": 1}, {"a": 1}, {}]),
                    json!([{"$id": 1, "a": 1}, {"a": "x"}, 1]),
                ),
                trial(
                    json!({"oneOf": [{"type": "object", "properties": {"k": {"const": 1, "default": 1}, "a": {"items": {"type": "integer"}}}},
                        {"type": "object", "properties": {"k": {"const": 2, "default": 2}, "a": {"items": {"type": "string"}}}}]}),
                    json!([{"k": 1, "a": [1]}, {"k": 2, "a": ["x"]}, {"k": 2}]),
                    json!([{}, {"k": 1, "a": ["x"]}, {"k": 3}]),
                ),
                trial(json!({"oneOf": [{"multipleOf": 2}, {"multipleOf": 3}]}), json!([]), json!([])),
                trial(json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}), json!([]), json!([])),
            ],
        ),
        row(
            "`not`",
            "of types, values, bounds, lengths, `required`, `properties`, and of what is made of these",
            vec![
                trial(
                    json!({"type": "string", "not": {"enum": ["a", "b"]}}),
                    json!(["c", "ab"]),
                    json!(["a"]),
                ),
                trial(
                    json!({"type": "object", "properties": {"a": {}, "b": {}}, "not": {"required": ["a", "b"]}}),
                    json!([{"a": 1}, {}]),
                    json!([{"a": 1, "b": 1}]),
                ),
                trial(json!({"type": "integer", "not": {"multipleOf": 2}}), json!([]), json!([])),
            ],
        ),
        row(
            "`if`, `then`, `else`",
            "where the opposite of `if` can be written, as for `not`",
            vec![
                trial(
                    json!({"type": "object", "properties": {"k": {"enum": ["a", "b"]}, "x": {}}, "required": ["k"], "if": {"properties": {"k": {"const": "a"}}}, "then": {"required": ["x"]}}),
                    json!([{"k": "a", "x": 1}, {"k": "b"}]),
                    json!([{"k": "a"}]),
                ),
                trial(
                    json!({"type": "integer", "if": {"multipleOf": 2}, "then": {"minimum": 10}}),
                    json!([]),
                    json!([]),
                ),
            ],
        ),
        row(
            "`$ref`, `$defs`, `definitions`, `$anchor`, `$id`",
            "within the schema, recursive too; nothing is fetched",
            vec![
                trial(
                    json!({"$defs": {"a": {"type": "integer"}}, "type": "array", "items": {"$ref": "#/$defs/a"}}),
                    json!([[1]]),
                    json!([["a"]]),
                ),
                trial(
                    json!({"type": "object", "properties": {"a": {"$ref": "#"}}, "additionalProperties": false}),
                    json!([{"a": {"a": {}}}]),
                    json!([{"a": {"b": 1}}]),
                ),
                trial(
                    json!({"$defs": {"a": {"$anchor": "x", "type": "null"}}, "$ref": "#x"}),
                    json!([null]),
                    json!([1]),
                ),
            ],
        ),
        row(
            "`$ref` outside of the schema",
            "",
            vec![trial(json!({"$ref": "http://example.org/a.json"}), json!([]), json!([]))],
        ),
        row(
            "`$dynamicRef`, `$recursiveRef`",
            "where they can only mean one schema",
            vec![
                trial(
                    json!({"type": "object", "properties": {"a": {"$recursiveRef": "#"}}, "additionalProperties": false}),
                    json!([{"a": {}}]),
                    json!([{"a": 1}]),
                ),
                trial(json!({"$dynamicRef": "#x"}), json!([]), json!([])),
            ],
        ),
        row(
            "`unevaluatedProperties`, `unevaluatedItems`",
            "where the other properties are all named, in this schema, `allOf` or `$ref`",
            vec![
                trial(
                    json!({"type": "object", "allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": false}),
                    json!([{"a": 1}]),
                    json!([{"b": 1}]),
                ),
                trial(
                    json!({"type": "object", "anyOf": [{"properties": {"a": {}}}], "unevaluatedProperties": false}),
                    json!([]),
                    json!([]),
                ),
            ],
        ),
        row(
            "`title`, `description`, `default`, `examples`, `deprecated`, `$comment`, and what no draft knows",
            "assert nothing",
            vec![trial(
                json!({"type": "integer", "title": "a", "description": "b", "default": 1, "examples": [1], "deprecated": true, "x-own": {}}),
                json!([1]),
                json!(["a"]),
            )],
        ),
    ]
}

/// What became of a row, and the failures against what it claims.
fn status(row: &Row, compiler: &Compiler, vocabulary: &Vocabulary) -> &'static str {
    let (mut works, mut refused) = (0, 0);
    for trial in &row.trials {
        let grammar = compiler.compile(Source::JsonSchema(trial.schema.clone()), &Cancel::new());
        let claimed = trial.valid.len() + trial.invalid.len();
        let grammar = match (grammar, claimed) {
            (Ok(grammar), 1..) => grammar,
            (Ok(_), _) => panic!("{} compiles, and nothing is claimed of it", trial.schema),
            (Err(error), 1..) => panic!("{}: {error}", trial.schema),
            (Err(_), _) => {
                refused += 1;
                continue;
            }
        };
        let accepts = |value: &Value| {
            let mut matcher = grammar.matcher();
            let tokens = vocabulary.tokenize(value.to_string().as_bytes());
            tokens.into_iter().chain([vocabulary.eos]).all(|token| matcher.advance(token).is_ok())
        };
        for value in &trial.valid {
            assert!(accepts(value), "{} refuses {value}", trial.schema);
        }
        for value in &trial.invalid {
            assert!(!accepts(value), "{} accepts {value}", trial.schema);
        }
        works += 1;
    }
    match (works, refused) {
        (_, 0) => "yes",
        (0, _) => "refused",
        _ => "in part",
    }
}

#[test]
fn the_table_of_keywords_says_what_was_seen() {
    let vocabulary = Vocabulary::new(2000);
    let compiler = Compiler::new(vocabulary.tokens.clone(), 2000, &[vocabulary.eos], patient()).unwrap();
    let mut table = String::from("| keywords | supported | |\n|---|---|---|\n");
    for row in rows() {
        writeln!(table, "| {} | {} | {} |", row.keywords, status(&row, &compiler, &vocabulary), row.note)
            .unwrap();
    }
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the page has the marker of the table");
    let (written, after) = rest.split_once(END).expect("the page has the end of the table");
    if std::env::var_os("PENSTOCK_WRITE_DOCS").is_some() {
        std::fs::write(PAGE, format!("{before}{BEGIN}\n\n{table}\n{END}{after}")).unwrap();
    } else {
        assert_eq!(written.trim(), table.trim(), "write the table anew with PENSTOCK_WRITE_DOCS=1");
    }
}
