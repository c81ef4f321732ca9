//! Schemas as the libraries of clients write them, with texts that are to be written and texts that are not. Each is judged by a
//! validator too.

use crate::behaviour::{accepts, compile, next, schema};
use penstock_constraint::{Grammar, Kind};
use serde_json::{Value, json};

/// A grammar that accepts these texts, which are valid, and refuses those, which are not.
fn check(source: &Value, valid: &[&str], invalid: &[&str]) -> std::sync::Arc<Grammar> {
    let grammar = compile(schema(source.clone())).unwrap_or_else(|error| panic!("{source}: {error}"));
    let validator = jsonschema::options().should_validate_formats(true).build(source).unwrap();
    for (texts, is_valid) in [(valid, true), (invalid, false)] {
        for text in texts {
            let value = serde_json::from_str(text).unwrap();
            assert_eq!(validator.is_valid(&value), is_valid, "{source} and {text}, by the validator");
            assert_eq!(accepts(&grammar, text), is_valid, "{source} and {text}");
        }
    }
    grammar
}

fn refused(source: &Value) -> (Kind, String, String) {
    let error = compile(schema(source.clone())).err().unwrap_or_else(|| panic!("{source} compiled"));
    (error.kind, error.path.clone(), error.reason.to_string())
}

/// A model of pydantic whose tag has a default, so that it is not required.
fn tagged(tag: &str, properties: Value, required: &[&str]) -> Value {
    let mut all = json!({"type": {"const": tag, "default": tag, "title": "Type", "type": "string"}});
    all.as_object_mut().unwrap().extend(properties.as_object().unwrap().clone());
    json!({"type": "object", "title": tag, "properties": all, "required": required})
}

fn union(key: &str, options: &[&str]) -> Value {
    let references: Vec<Value> =
        options.iter().map(|name| json!({"$ref": format!("#/$defs/{name}")})).collect();
    let mapping: Value =
        options.iter().map(|name| (name.to_string(), json!(format!("#/$defs/{name}")))).collect();
    json!({"oneOf": references, "discriminator": {"propertyName": key, "mapping": mapping}})
}

#[test]
fn options_whose_tag_has_a_default_are_told_apart_by_it() {
    let definitions = json!({
        "a": tagged("a", json!({"tags": {"type": "array", "items": {"type": "string"}}}), &["tags"]),
        "b": tagged("b", json!({"url": {"type": "string"}}), &["url"]),
    });
    let mut source = json!({
        "type": "object", "properties": {"step": union("type", &["a", "b"])}, "required": ["step"], "$defs": definitions,
    });
    let valid = [r#"{"step":{"type":"a","tags":[]}}"#, r#"{"step":{"type":"b","url":"u"}}"#];
    let invalid = [
        r#"{"step":{"type":"a","url":"u"}}"#,
        r#"{"step":{"type":"c","url":"u"}}"#,
        r#"{"step":{"tags":[],"url":"u"}}"#,
        r#"{"step":null}"#,
    ];
    check(&source, &valid, &invalid);
    // As TypeScript's writers have it, without a name for what tells them apart.
    source["properties"]["step"].as_object_mut().unwrap().remove("discriminator");
    check(&source, &valid, &invalid);
    // Models that take nothing else, and fields of a format.
    for name in ["a", "b"] {
        source["$defs"][name]["additionalProperties"] = false.into();
        source["$defs"][name]["properties"]["at"] =
            json!({"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}], "default": null});
    }
    let with_date = r#"{"step":{"type":"b","url":"u","at":"2024-02-29T12:00:00Z"}}"#;
    check(
        &source,
        &[&valid[..], &[with_date]].concat(),
        &[&invalid[..], &[r#"{"step":{"type":"a","tags":[],"b":1}}"#]].concat(),
    );
}

#[test]
fn tagged_options_may_have_themselves_within() {
    let filter = || union("type", &["and", "not", "leaf"]);
    let source = json!({"$ref": "#/$defs/query", "$defs": {
        "query": {"type": "object", "properties": {"filter": filter()}, "required": ["filter"]},
        "and": tagged("and", json!({"all": {"type": "array", "items": filter()}}), &["all"]),
        "not": tagged("not", json!({"inner": filter()}), &["inner"]),
        "leaf": tagged("leaf", json!({"value": {"type": "integer"}}), &[]),
    }});
    check(
        &source,
        &[
            r#"{"filter":{"type":"leaf"}}"#,
            r#"{"filter":{"type":"not","inner":{"type":"and","all":[{"type":"leaf","value":1},{"type":"and","all":[]}]}}}"#,
        ],
        &[
            r#"{"filter":{"type":"not","inner":{"type":"or"}}}"#,
            r#"{"filter":{"type":"and","all":[{"type":"leaf","value":"x"}]}}"#,
        ],
    );
}

/// Their opposites could be written, but not multiplied out.
#[test]
fn many_tagged_options_are_told_apart() {
    let names: Vec<String> = (0..12).map(|at| format!("n{at}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let definitions: Value = names
        .iter()
        .map(|name| {
            let fields =
                json!({(*name): {"type": "integer"}, "x": {"type": "string"}, "y": {"type": "boolean"}});
            (name.to_string(), tagged(name, fields, &[name]))
        })
        .collect();
    for key in ["type", "of another name"] {
        let mut source = union(key, &names);
        source["$defs"] = definitions.clone();
        check(
            &source,
            &[r#"{"type":"n7","n7":1,"y":true}"#, r#"{"type":"n11","n11":2}"#],
            &[r#"{"type":"n7","n6":1}"#, r#"{"type":"n12","n12":1}"#],
        );
    }
}

#[test]
fn options_may_be_tagged_options_themselves() {
    let colour = |name: &str| {
        let mut cat = tagged("cat", json!({"colour": {"const": name, "default": name}}), &[]);
        cat["properties"]["lives"] = json!({"type": "array", "items": {"type": "integer"}});
        cat
    };
    let cat = union("colour", &["black", "white"]);
    let source = json!({
        "oneOf": [cat, {"$ref": "#/$defs/dog"}], "discriminator": {"propertyName": "type"},
        "$defs": {"black": colour("black"), "white": colour("white"), "dog": tagged("dog", json!({"colour": {"type": "string"}}), &[])},
    });
    check(
        &source,
        &[
            r#"{"type":"cat","colour":"white","lives":[9]}"#,
            r#"{"type":"dog","colour":"black"}"#,
            r#"{"type":"dog"}"#,
        ],
        &[
            r#"{"type":"cat","colour":"grey"}"#,
            r#"{"type":"cat","colour":"black","lives":["x"]}"#,
            r#"{"type":"bird"}"#,
        ],
    );
}

/// What has no tag, or has it and is in one option only, is left as it was where it can be written.
#[test]
fn options_that_can_be_told_apart_without_a_tag_need_none() {
    let option = |kind: &str, name: &str| json!({"type": "object", "properties": {"kind": {"const": kind}, (name): {"type": "integer"}}, "required": [name]});
    let source = json!({"oneOf": [option("a", "x"), option("b", "y")]});
    check(&source, &[r#"{"x":1}"#, r#"{"kind":"b","y":1}"#], &[r#"{"kind":"a","y":1}"#, r#"{"x":1,"y":1}"#]);
}

#[test]
fn divisors_are_multiplied_where_they_meet() {
    let number = |divisor: Value| json!({"type": "number", "multipleOf": divisor});
    for divisors in [[json!(0.01), json!(1000), json!(3600)], [json!(0.0001), json!(100), json!(60)]] {
        let [a, b, c] = divisors.map(number);
        let source = json!({"type": "object", "properties": {"a": a, "b": b, "c": c}});
        check(&source, &[r#"{"a":1024,"b":4096000,"c":0}"#], &[r#"{"b":1}"#, r#"{"c":1}"#]);
    }
    let together = |one: Value, other: Value| json!({"allOf": [number(one), number(other)]});
    check(&together(json!(4), json!(6)), &["12", "-24"], &["4", "6"]);
    check(&together(json!(0.5), json!(0.75)), &["1.5", "-4.5"], &["0.5", "0.75"]);
    let options = json!({"anyOf": [number(json!(100_000)), number(json!(99_999))], "type": "integer"});
    check(&options, &["200000", "99999"], &["1"]);
    // Each twice, through a reference, and of one property in two parts.
    let beside = json!({"$ref": "#/$defs/a", "multipleOf": 99_999, "$defs": {"a": number(json!(100_000))}});
    let properties = |divisor: Value| json!({"properties": {"a": number(divisor)}, "required": ["a"]});
    let parts = json!({"type": "object", "allOf": [properties(json!(100_000)), properties(json!(99_999))]});
    for source in
        [together(json!(100_000), json!(100_000)), together(json!(1e-5), json!(99_999)), beside, parts]
    {
        let (kind, _, reason) = refused(&source);
        assert_eq!(kind, Kind::Unsupported, "{source}: {reason}");
        assert!(reason.ends_with("for one number are too large to be combined"), "{source}: {reason}");
    }
}

#[test]
fn divisors_have_up_to_nine_decimals_that_a_float_has_too() {
    let number = |divisor: Value| json!({"type": "number", "multipleOf": divisor});
    for (divisor, text, other) in [
        (json!(1e-8), "0.00000003", "0.000000001"),
        (json!(0.000_001), "1.500000", "0.0000001"),
        (json!(2.5e-5), "0.000050", "0.000030"),
        (json!(0.01), "3.45", "3.456"),
    ] {
        let grammar =
            compile(schema(number(divisor.clone()))).unwrap_or_else(|error| panic!("{divisor}: {error}"));
        assert!(accepts(&grammar, text) && accepts(&grammar, "0") && !accepts(&grammar, other), "{divisor}");
    }
    for (divisor, why) in [
        (json!(0.07), "multiples of 0.07 are not supported: as a float it has more digits"),
        (json!(0.453), "multiples of 0.453 are not supported: as a float it has more digits"),
        (json!(1e-10), "`multipleOf` has too many digits"),
        (json!(1e10), "`multipleOf` has too many digits"),
        (json!(1e300), "`multipleOf` has too many digits"),
    ] {
        let source = json!({"items": number(divisor)});
        assert_eq!(refused(&source), (Kind::Unsupported, "/items/multipleOf".into(), why.into()));
    }
}

#[test]
fn what_asserts_nothing_of_a_name_is_no_condition_of_it() {
    let record = |names: Value| json!({"type": "object", "propertyNames": names, "additionalProperties": {"type": "integer"}});
    let names = json!({
        "type": ["string"], "enum": ["a", "c"], "x-enumNames": ["A", "C"], "default": "a", "deprecated": true, "readOnly": true,
        "$anchor": "names", "minimum": 3, "properties": {"a": {}}, "then": false,
    });
    check(&record(names.clone()), &[r#"{"a":1}"#, "{}"], &[r#"{"b":1}"#, r#"{"a":"x"}"#]);
    let mut behind = record(json!({"$ref": "#/$defs/names", "x-own": true}));
    behind["$defs"] = json!({"names": names});
    check(&behind, &[r#"{"c":1}"#], &[r#"{"b":1}"#]);
    check(&record(json!({"type": ["integer", "null"]})), &["{}"], &[r#"{"b":1}"#]);
    for names in [
        json!({"allOf": [{"enum": ["a"]}]}),
        json!({"anyOf": [{"enum": ["a"]}]}),
        json!({"if": {"const": "a"}, "then": false}),
        json!({"pattern": 5}),
        json!({"const": 5}),
        json!({"type": "text"}),
    ] {
        let (_, path, reason) = refused(&record(names.clone()));
        assert!(path.starts_with("/propertyNames"), "{names}: {path} {reason}");
    }
}

/// As zod writes records whose keys are of a format.
#[test]
fn a_name_may_have_a_pattern_beside_the_format_that_it_is_of() {
    let record = |names: Value| json!({"type": "object", "propertyNames": names, "additionalProperties": {"type": "integer"}});
    let uuid = r"^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}|00000000-0000-0000-0000-000000000000|ffffffff-ffff-ffff-ffff-ffffffffffff)$";
    check(
        &record(json!({"type": "string", "format": "uuid", "pattern": uuid})),
        &[r#"{"01234567-89ab-4def-8123-456789abcdef":1}"#, r#"{"00000000-0000-0000-0000-000000000000":1}"#],
        &[r#"{"01234567-89ab-9def-8123-456789abcdef":1}"#, r#"{"a":1}"#],
    );
    let date = r"^(?:(?:\d\d[2468][048]|\d\d[13579][26]|\d\d0[48]|[02468][048]00|[13579][26]00)-02-29|\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|(?:02)-(?:0[1-9]|1\d|2[0-8])))$";
    check(
        &record(json!({"type": "string", "format": "date", "pattern": date})),
        &[r#"{"2024-02-29":1}"#],
        &[r#"{"2023-02-29":1}"#],
    );
    let short = json!({"type": "string", "pattern": "^[a-z]{1,3}$", "minLength": 1, "maxLength": 8});
    check(&record(short), &[r#"{"abc":1}"#], &[r#"{"abcd":1}"#, r#"{"":1}"#]);
    // Neither implies the other.
    let (kind, path, reason) = refused(&record(json!({"pattern": "^[a-z]+$", "maxLength": 3})));
    assert_eq!((kind, path.as_str()), (Kind::Unsupported, "/propertyNames"));
    assert!(reason.contains("more than one condition"), "{reason}");
}

#[test]
fn what_no_text_can_complete_is_not_begun() {
    let endless = json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"]});
    let source = json!({"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}], "$defs": {"a": endless}});
    let grammar = check(&source, &["null"], &[r#"{"a":null}"#]);
    assert_eq!(next(&grammar, ""), ("n".into(), false));
    // A parent that was meant to be optional, of a property that is.
    let category = json!({"type": "object", "properties": {"name": {"type": "string"}, "parent": {"$ref": "#/$defs/category"}},
        "required": ["name", "parent"]});
    let product = json!({"type": "object", "properties": {
        "name": {"type": "string"}, "category": {"anyOf": [{"$ref": "#/$defs/category"}, {"type": "null"}]},
        "others": {"type": "array", "items": {"$ref": "#/$defs/category"}},
    }, "required": ["name"], "$defs": {"category": category}});
    let grammar = check(&product, &[r#"{"name":"n","category":null,"others":[]}"#, r#"{"name":"n"}"#], &[]);
    assert_eq!(next(&grammar, r#"{"name":"n","category":"#).0.trim(), "n");
    assert_eq!(next(&grammar, r#"{"name":"n","others":["#).0.trim(), "]");
    // What is demanded may stand beside what describes it.
    let split = json!({"allOf": [{"type": "object", "required": ["a"]}, {"properties": {"a": {"$ref": "#/$defs/a"}}}]});
    let source = json!({"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}], "$defs": {"a": split}});
    assert_eq!(next(&check(&source, &["null"], &[]), ""), ("n".into(), false));
}

#[test]
fn a_definition_of_nothing_is_left_out_where_it_may_be() {
    for nothing in
        [json!({"not": {}}), json!({"type": "string", "enum": [1]}), json!({"type": "integer", "const": 1.5})]
    {
        let source = json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}, "b": {}}, "$defs": {"n": nothing}});
        check(&source, &[r#"{"b":1}"#, "{}"], &[r#"{"a":1}"#, r#"{"a":"x"}"#]);
        let options = json!({"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}], "$defs": {"n": nothing}});
        check(&options, &["null"], &["1"]);
        // It is named where it is needed, and not what needs it.
        let needed = json!({"$ref": "#/$defs/m", "$defs": {"n": nothing, "other": {"not": {}},
            "m": {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}, "b": {"$ref": "#/$defs/other"}}, "required": ["a"]}}});
        let told = (Kind::Unsatisfiable, "/$defs/n".to_owned(), "no value matches the schema".to_owned());
        assert_eq!(refused(&needed), told);
    }
    // A text that is no schema stays.
    let source = json!({"enum": [{"$ref": "#/$defs/0"}], "properties": {"x": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"not": {}}}});
    check(&source, &[r##"{"$ref":"#/$defs/0"}"##], &["null"]);
}

#[test]
fn unique_items_may_be_of_values_that_are_listed_elsewhere() {
    let set = |items: Value| {
        json!({"type": "array", "uniqueItems": true, "items": items, "$defs": {
            "colour": {"enum": ["red", "green", "blue"], "title": "Colour", "type": "string"},
            "many": {"enum": [1, 2, 3, 4, 5]},
        }})
    };
    let reference = || json!({"$ref": "#/$defs/colour"});
    for items in [
        reference(),
        json!({"allOf": [reference()], "default": "red"}),
        json!({"anyOf": [{"const": "red"}, {"const": "green"}, {"const": "blue"}]}),
        json!({"oneOf": [reference(), {"type": "null"}]}),
    ] {
        check(
            &set(items),
            &[r#"["red","blue"]"#, "[]", r#"["blue","green","red"]"#],
            &[r#"["red","red"]"#, r#"["grey"]"#],
        );
    }
    check(
        &set(json!({"anyOf": [{"type": "boolean"}, {"type": "null"}]})),
        &["[null,true]"],
        &["[null,null]", "[1]"],
    );
    check(&set(json!({"$ref": "#/$defs/many", "maximum": 2})), &["[2,1]"], &["[1,1]", "[3]"]);
    check(&set(json!({"enum": [1, 1.0, 2]})), &["[2,1]"], &["[1,1.0]"]);
    for items in
        [json!({"$ref": "#/$defs/many"}), json!({"anyOf": [reference(), {"type": "string"}]}), json!({})]
    {
        let why = "`uniqueItems` is only supported for items of up to 4 known values";
        assert_eq!(refused(&set(items)), (Kind::Unsupported, "/uniqueItems".into(), why.into()));
    }
}

#[test]
fn patterns_are_counted_for_each_property_by_itself() {
    let part = |name: &str, at: usize| json!({"type": "object", "properties": {(name): {"pattern": format!("x{at}")}}});
    let apart: Vec<Value> = (0..40).map(|at| part(&format!("p{at}"), at)).collect();
    let source = json!({"allOf": apart});
    check(&source, &[r#"{"p0":"x0","p39":"x39"}"#, "{}"], &[r#"{"p0":"x0","p39":"x0"}"#]);
    let options = json!({"allOf": [source, {"anyOf": [part("p1", 1), part("p2", 2)]}]});
    check(&options, &["{}"], &[r#"{"p5":""}"#]);
    let too_many = |parts: Vec<Value>| {
        let (kind, _, reason) = refused(&json!({"allOf": parts}));
        assert_eq!(kind, Kind::TooLarge, "{reason}");
        assert!(reason.ends_with("more than 16 patterns and formats for one string"), "{reason}");
    };
    too_many((0..17).map(|at| part("a", at)).collect());
    // Every other name, too, and names beyond those that are weighed by themselves.
    let mut others: Vec<Value> =
        (0..16).map(|at| json!({"additionalProperties": {"pattern": format!("y{at}")}})).collect();
    others.push(part("a", 0));
    too_many(others);
    let many = |at: usize| {
        let all: Value =
            (0..200).map(|name| (format!("p{name}"), json!({"pattern": format!("z{at}")}))).collect();
        json!({"properties": all})
    };
    too_many((0..17).map(many).collect());
}

#[test]
fn values_of_a_format_are_found_among_those_of_a_list() {
    let source = json!({"type": "string", "format": "uri", "enum": ["http://localhost:11434", "no uri", "http://a.b"]});
    check(&source, &[r#""http://localhost:11434""#, r#""http://a.b""#], &[r#""no uri""#]);
    check(
        &json!({"const": "http://localhost:11434", "format": "uri"}),
        &[r#""http://localhost:11434""#],
        &["1"],
    );
    // Beside lengths.
    for format in ["email", "hostname", "uri", "uri-reference", "ipv6", "uri-template"] {
        check(&json!({"type": "string", "format": format, "minLength": 3, "maxLength": 100}), &[], &["1"]);
    }
}

/// The mail patterns that are copied most. Beside the first ones the format's own expression has too many states.
#[test]
fn a_format_stands_beside_the_patterns_that_clients_write_for_it() {
    let copied = r"^\w+([\.-]?\w+)*@\w+([\.-]?\w+)*(\.\w{2,3})+$";
    let (short, long) = (r#""john.smith@mail.company.com""#, r#""jan@berkshirehathaway.co.uk""#);
    for (source, valid) in [
        (json!({"pattern": copied}), vec![short]),
        (json!({"pattern": copied, "maxLength": 50}), vec![short]),
        (json!({"pattern": r"^[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\.[a-zA-Z]{2,}$"}), vec![short, long]),
        (json!({"pattern": r"^[^\s@]+@[^\s@]+\.[^\s@]+$"}), vec![short, long]),
        (json!({"pattern": "@"}), vec![short, long]),
    ] {
        let mut all = json!({"type": "string", "format": "email"});
        all.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        check(&all, &valid, &[r#""a..b@company.com""#, r#""a@-b.com""#, r#""a b@c.de""#]);
    }
    for (format, pattern, valid, invalid) in [
        ("uri", "^https?://", r#""https://a.b/c?d""#, r#""ftp://a.b""#),
        ("hostname", r"\.example\.com$", r#""api.eu-west-1.example.com""#, r#""-a.example.com""#),
        ("date-time", "Z$", r#""2024-02-29T12:00:00Z""#, r#""2023-02-29T12:00:00Z""#),
    ] {
        check(&json!({"type": "string", "format": format, "pattern": pattern}), &[valid], &[invalid]);
    }
}
