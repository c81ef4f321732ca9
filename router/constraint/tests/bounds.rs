//! Numbers between bounds, checked against exact arithmetic: every text that a schema of bounds accepts lies between them, and
//! every number that does, but for the last ones next to an exclusive bound, can be written without needless zeros.

use std::collections::BTreeMap;

use crate::patient;
use crate::synthetic::{Random, Vocabulary};
use penstock_constraint::{Cancel, Compiler, Grammar, Kind, Limits, Part, Source};
use serde_json::{Map, Value, json};

const EOS: u32 = 256;
/// Decimals of an exact number: those of every text here, with its exponent.
const PLACES: i32 = 30;
/// Of every sign and size, whole and not, near to each other and far apart.
const BOUNDS: [&str; 17] = [
    "-100", "-3.5", "-3", "-2.999", "-1", "-0.5", "-0.25", "-1e-3", "-0", "0", "2e-4", "0.5", "1", "3",
    "3.0625", "3.5", "1.2e2",
];

/// A number's text, times 10^PLACES.
fn exact(text: &str) -> i128 {
    let (text, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits: i128 = format!("{whole}{fraction}").parse().unwrap();
    let places = PLACES + exponent.parse::<i32>().unwrap() - fraction.len() as i32;
    digits.checked_mul(10_i128.checked_pow(places.try_into().unwrap()).unwrap()).unwrap()
}

/// Every number of up to three decimals around the bounds, by its value; and the ways to write it, the shortest first.
fn numbers() -> BTreeMap<i128, Vec<String>> {
    let wholes = ["0", "1", "2", "3", "4", "9", "10", "99", "100", "119", "120", "121", "1000"];
    let fractions = [
        "",
        "0",
        "00",
        "000000",
        "1",
        "10",
        "2",
        "25",
        "3",
        "4",
        "49",
        "499",
        "5",
        "50",
        "500",
        "501",
        "51",
        "6",
        "062",
        "0625",
        "063",
        "9",
        "99",
        "999",
        "001",
        "0010",
        "0001",
        "0002",
        "0003",
        "00019",
        "05",
        "000000001",
        "999999999",
        "0000000000000000000000001",
        "4999999999999999999999999",
        "5000000000000000000000001",
        "9999999999999999999999999",
    ];
    let mut numbers: BTreeMap<i128, Vec<String>> = BTreeMap::new();
    for sign in ["", "-"] {
        for whole in wholes {
            for fraction in fractions {
                let point = if fraction.is_empty() { "" } else { "." };
                let text = format!("{sign}{whole}{point}{fraction}");
                numbers.entry(exact(&text)).or_default().push(text);
            }
        }
        for text in ["0e0", "3e0", "30e-1", "3.5E0", "35e-1", "1e-3", "1E2", "1e+2", "2e-4", "0.0e5"] {
            let text = format!("{sign}{text}");
            numbers.entry(exact(&text)).or_default().push(text);
        }
    }
    numbers
}

/// As a serializer of JSON writes it.
fn is_shortest(text: &str) -> bool {
    !text.contains(['e', 'E']) && text != "-0" && !(text.contains('.') && text.ends_with('0'))
}

/// What a bound's digits begin with, and the same with another last digit or one more.
fn around(bound: &str) -> Vec<String> {
    let point = bound.find('.').unwrap_or(bound.len());
    if bound.contains('e') || bound == "-0" {
        return Vec::new();
    }
    let mut texts = Vec::new();
    for end in point..=bound.len() {
        let text = bound[..end].trim_end_matches('.');
        texts.push(text.to_owned());
        let mark = if text.contains('.') { "" } else { "." };
        texts.extend((0..10).map(|digit| format!("{text}{mark}{digit}")));
        texts.push(format!("{text}{mark}0003"));
    }
    texts
}

fn accepts(grammar: &Grammar, text: &str) -> bool {
    let mut matcher = grammar.matcher();
    text.bytes().all(|byte| matcher.advance(u32::from(byte)).is_ok()) && matcher.advance(EOS).is_ok()
}

/// A bound's text, and that the number itself lies outside.
type Bound<'a> = Option<(&'a str, bool)>;

struct Checker {
    compiler: Compiler,
    numbers: BTreeMap<i128, Vec<String>>,
    accepted: usize,
}

impl Checker {
    fn new() -> Checker {
        let limits = Limits { cache_bytes: 0, ..patient() };
        let compiler = Compiler::new(Vocabulary::new(257).tokens, 257, &[EOS], limits).unwrap();
        Checker { compiler, numbers: numbers(), accepted: 0 }
    }

    /// Both bounds as one schema has them, or, `apart`, as two that must hold together.
    fn check(&mut self, low: Bound<'_>, high: Bound<'_>, apart: bool) {
        let named = |inclusive: &str, exclusive: &str, bound: Bound<'_>| -> Map<String, Value> {
            let written = bound.map(|(text, is_exclusive)| {
                let name = if is_exclusive { exclusive } else { inclusive };
                (name.to_owned(), serde_json::from_str(text).unwrap())
            });
            written.into_iter().collect()
        };
        let mut lower = named("minimum", "exclusiveMinimum", low);
        let mut upper = named("maximum", "exclusiveMaximum", high);
        let schema = if apart {
            json!({"type": "number", "allOf": [lower, upper]})
        } else {
            lower.append(&mut upper);
            lower.insert("type".into(), "number".into());
            Value::Object(lower)
        };
        let holds = |number: i128| {
            low.is_none_or(|(text, out)| number > exact(text) || !out && number == exact(text))
                && high.is_none_or(|(text, out)| number < exact(text) || !out && number == exact(text))
        };
        // So near to an exclusive bound a number need not be taken.
        let near = 10_i128.pow(PLACES as u32 - 12);
        let is_near = |number: i128, bound: Bound<'_>| {
            bound.is_some_and(|(text, out)| out && (number - exact(text)).abs() < near)
        };
        let grammar = match self.compiler.compile(Source::JsonSchema(schema.clone()), &Cancel::new()) {
            Ok(grammar) => grammar,
            Err(error) => {
                assert_eq!(error.kind, Kind::Unsatisfiable, "{schema}: {error}");
                let found = self.numbers.keys().find(|number| holds(**number));
                assert_eq!(found, None, "{schema} is refused");
                return;
            }
        };
        let beside = low.iter().chain(&high).flat_map(|(text, _)| around(text));
        let beside = beside.map(|text| (exact(&text), vec![text]));
        for (number, texts) in self.numbers.clone().into_iter().chain(beside) {
            let taken: Vec<&String> = texts.iter().filter(|text| accepts(&grammar, text)).collect();
            if !holds(number) {
                assert!(taken.is_empty(), "{schema} accepts {taken:?}");
            } else if !is_near(number, low) && !is_near(number, high) {
                let refused = texts.iter().find(|text| is_shortest(text) && !taken.contains(text));
                assert_eq!(refused, None, "{schema}");
            }
            self.accepted += taken.len();
        }
    }
}

#[test]
fn every_number_that_is_accepted_lies_between_its_bounds() {
    let mut checker = Checker::new();
    for (at, text) in BOUNDS.iter().enumerate() {
        for out in [false, true] {
            checker.check(Some((*text, out)), None, false);
            checker.check(None, Some((*text, out)), false);
            for (other, other_out) in BOUNDS[at..].iter().flat_map(|other| [(other, false), (other, true)]) {
                checker.check(
                    Some((*text, out)),
                    Some((*other, other_out)),
                    (at + usize::from(out)) % 3 == 0,
                );
            }
        }
    }
    assert!(checker.accepted > 50_000, "{}", checker.accepted);
}

#[test]
fn numbers_lie_between_bounds_that_are_drawn() {
    let mut random = Random(29);
    let mut checker = Checker::new();
    for _ in 0..60 {
        let near = [-3, -1, 0, 0, 1, 3, 100][random.below(7)];
        let mut draw = || {
            let places = random.below(6) as u32;
            let step = 10_i64.pow(places);
            let number = near * step + random.below(4 * step as usize + 1) as i64 - 2 * step;
            let sign = if number < 0 { "-" } else { "" };
            let (whole, fraction) = (number.abs() / step, number.abs() % step);
            match places {
                0 => format!("{sign}{whole}"),
                _ => format!("{sign}{whole}.{fraction:0places$}", places = places as usize),
            }
        };
        let (mut low, mut high) = (draw(), draw());
        if exact(&low) > exact(&high) {
            std::mem::swap(&mut low, &mut high);
        }
        let outs = [(false, false), (false, true), (true, false), (true, true)][random.below(4)];
        let (low, high) = (Some((low.as_str(), outs.0)), Some((high.as_str(), outs.1)));
        match random.below(6) {
            0 => checker.check(low, None, false),
            1 => checker.check(None, high, false),
            2 => checker.check(low, high, true),
            _ => checker.check(low, high, false),
        }
    }
}

/// Bounds beside what else a schema says of them, in every draft.
#[test]
fn an_exclusive_bound_holds_wherever_it_stands() {
    let cases = [
        (json!({"type": "number", "exclusiveMinimum": 3, "maximum": 3.5}), "3", "3.2"),
        (json!({"type": "number", "minimum": 3, "exclusiveMinimum": 3, "maximum": 3.5}), "3", "3.2"),
        (json!({"type": "number", "exclusiveMinimum": 3, "minimum": 2, "maximum": 3.5}), "3", "3.2"),
        (json!({"type": "number", "minimum": 3.2, "exclusiveMinimum": 3, "maximum": 3.5}), "3.1", "3.2"),
        (json!({"type": "number", "minimum": 3, "exclusiveMinimum": true, "maximum": 3.5}), "3", "3.5"),
        (json!({"type": "number", "exclusiveMaximum": true, "maximum": -3, "minimum": -3.5}), "-3", "-3.5"),
        (json!({"allOf": [{"exclusiveMinimum": 3}, {"maximum": 3.5}], "type": "number"}), "3.0", "3.5"),
        (
            json!({"anyOf": [{"type": "number", "exclusiveMinimum": -0.5, "exclusiveMaximum": 0}]}),
            "-0",
            "-0.1",
        ),
        (json!({"type": "number", "minimum": 3, "maximum": 3.5, "not": {"const": 3}}), "3", "3.5"),
        (json!({"type": "number", "minimum": 3, "maximum": 3.5, "not": {"maximum": 3.25}}), "3.25", "3.3"),
        (json!({"type": "number", "exclusiveMinimum": 0, "maximum": 0.9, "multipleOf": 0.3}), "0", "0.9"),
        (
            json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1e-25}),
            "0",
            "0.00000000000000000000000001",
        ),
        (json!({"type": "integer", "exclusiveMinimum": 3, "maximum": 3.5e3}), "3", "4"),
        (json!({"type": "integer", "exclusiveMinimum": -0.5, "exclusiveMaximum": 1}), "1", "0"),
        (
            json!({"type": "integer", "exclusiveMinimum": 4503599627370496_i64}),
            "4503599627370496",
            "4503599627370497",
        ),
        (
            json!({"type": "integer", "exclusiveMinimum": 9007199254740992_i64}),
            "9007199254740992",
            "9007199254740994",
        ),
        (json!({"type": "number", "minimum": -0.0, "maximum": 0.0}), "-1", "0"),
        (json!({"type": "number", "exclusiveMinimum": 0}), "0.00", "0.50"),
        (json!({"type": "number", "maximum": 3.45}), "3.5", "3.4"),
        (json!({"type": ["number", "null"], "minimum": -3.456}), "-3.46", "-3.45"),
        (json!({"maximum": 3.45}), "3.5", "3.4"),
        (json!({"maximum": 3.45}), "3.46", "[3.5]"),
        (json!({"$ref": "#/$defs/a", "$defs": {"a": {"maximum": 3.456}}, "minimum": 3.4}), "3.3", "3.45"),
        (json!({"type": "number", "minimum": 0, "maximum": 3.456, "multipleOf": 0.05}), "3.44", "3.45"),
        (json!({"type": "number", "maximum": 3.45, "not": {"const": 3.4}}), "3.4", "3.3"),
    ];
    let compiler = Checker::new().compiler;
    for (schema, out, within) in cases {
        let grammar = compiler.compile(Source::JsonSchema(schema.clone()), &Cancel::new()).unwrap();
        assert!(!accepts(&grammar, out), "{schema} accepts {out}");
        assert!(accepts(&grammar, within), "{schema} refuses {within}");
    }
}

/// As a whole schema and within a call's text, where another parser reads the bounds.
fn both_ways(schema: &Value) -> [Source; 2] {
    let part = Part::Json { schema: schema.clone(), at: String::new() };
    [Source::JsonSchema(schema.clone()), Source::Parts(vec![part])]
}

/// llguidance has bounds in 64 bits.
#[test]
fn bounds_may_lie_beyond_what_an_integer_holds() {
    let (least, most) = (i64::MIN, i64::MAX);
    let number = |low: Value, high: Value| json!({"type": "number", "minimum": low, "maximum": high});
    let integer = |low: Value, high: Value| json!({"type": "integer", "minimum": low, "maximum": high});
    let float32 = 3.402_823_466_385_288_6e38;
    let cases = [
        (integer(json!(least), json!(most)), vec!["-9223372036854774784", "9223372036854774784", "0"]),
        (integer(json!(0), json!(u64::MAX)), vec!["0", "9223372036854774784"]),
        (integer(json!(-3.4e38), json!(3.4e38)), vec!["-7", "9007199254740993"]),
        (integer(json!(9_007_199_254_740_993_u64), json!(1e19)), vec!["9007199254740994"]),
        (integer(json!(0), json!(9_007_199_254_740_993_u64)), vec!["9007199254740992"]),
        (
            number(json!(0), json!(1e19)),
            vec!["0", "0.5", "9e0", "9223372036854774784", "1000000000000000000.5"],
        ),
        (number(json!(0), json!(18_446_744_073_709_551_615_u64)), vec!["12.75"]),
        (number(json!(-float32), json!(float32)), vec!["-12.75", "9000000000000000000"]),
        (number(json!(-f64::MAX), json!(f64::MAX)), vec!["-12.75", "12.75"]),
        (number(json!(1e18), json!(2e18)), vec!["1000000000000000000", "1999999999999999999.5"]),
        (json!({"type": "number", "exclusiveMinimum": -1e19, "exclusiveMaximum": 1e19}), vec!["-12.75"]),
        (
            json!({"$schema": "http://json-schema.org/draft-04/schema#", "type": "number", "minimum": -1e19, "exclusiveMinimum": true, "maximum": 1e19}),
            vec!["-12.75"],
        ),
        (json!({"type": "integer", "minimum": 1e18}), vec!["1000000000000000000", "9223372036854774784"]),
        (json!({"type": "number", "maximum": -1e18}), vec!["-1000000000000000000", "-9223372036854774784.0"]),
        (
            json!({"allOf": [{"type": "integer", "minimum": 2e18}, {"maximum": 3e18}]}),
            vec!["2500000000000000000"],
        ),
        (json!({"type": "integer", "exclusiveMaximum": 18_014_398_509_481_984.0}), vec!["18014398509481982"]),
        (
            json!({"type": "integer", "exclusiveMinimum": -18_014_398_509_481_984.0}),
            vec!["-18014398509481982"],
        ),
    ];
    let around = [
        "-18014398509481984",
        "-18014398509481985",
        "-1000000000000000001",
        "-9223372036854775808",
        "-9223372036854775809",
        "-9223372036854777856",
        "-10000000000000000001",
        "-1",
        "-0.5",
        "0",
        "9007199254740991",
        "9007199254740992",
        "9007199254740993",
        "9007199254740994",
        "18014398509481983",
        "18014398509481984",
        "18014398509481985",
        "999999999999999999",
        "1000000000000000000",
        "2000000000000000000.5",
        "3000000000000000001",
        "9223372036854775807",
        "9223372036854775808",
        "10000000000000000001",
        "18446744073709551616",
        "1e20",
        "-1e20",
    ];
    let compiler = Checker::new().compiler;
    for (schema, within) in cases {
        let validator = jsonschema::validator_for(&schema).unwrap();
        let is_valid = |text: &str| validator.is_valid(&serde_json::from_str(text).unwrap());
        for source in both_ways(&schema) {
            let grammar =
                compiler.compile(source, &Cancel::new()).unwrap_or_else(|error| panic!("{schema}: {error}"));
            for text in &within {
                assert!(accepts(&grammar, text) || text.contains('e'), "{schema} refuses {text}");
            }
            for text in around.iter().filter(|text| !is_valid(text)) {
                assert!(!accepts(&grammar, text), "{schema} accepts {text}");
            }
        }
    }
}

#[test]
fn a_bound_that_no_written_number_reaches_is_refused_with_its_place() {
    for (key, bound) in [
        ("minimum", json!(1e19)),
        ("exclusiveMinimum", json!(u64::MAX)),
        ("minimum", json!(i64::MAX)),
        ("maximum", json!(-1e300)),
        ("exclusiveMaximum", json!(i64::MIN)),
    ] {
        let schema = json!({"type": "object", "properties": {"a": {"type": "number", key: bound}}});
        for source in both_ways(&schema) {
            let error = Checker::new().compiler.compile(source, &Cancel::new()).unwrap_err();
            assert_eq!(
                (error.kind, error.path),
                (Kind::Unsupported, format!("/properties/a/{key}")),
                "{schema}"
            );
        }
    }
}
