//! Schemas of functions, written in formats whose arguments are not JSON: within what they may take, however short they are
//! themselves.

use penstock_output::{
    Answer, Callable, Calls, Parser, Part, Start, Tool, ToolFormat, Unbound, tool_format, tool_formats,
    written_calls,
};
use serde_json::{Map, Value, json};

/// Bytes of what is written for the most that functions may take; a call is there up to three times.
const MOST_WRITTEN: usize = 20_000_000;

fn function(name: &str, schema: Value) -> Callable {
    Callable { name: name.to_owned(), schema, at: format!("/{name}/parameters"), lark: None, is_strict: true }
}

fn calls(format: &'static ToolFormat, functions: &[Callable]) -> (Result<Vec<Part>, Unbound>, &'static str) {
    let calls = Calls {
        format,
        template: "",
        reasoning: None,
        start: Start::Content,
        functions,
        may_be_several: true,
    };
    (calls.possible().map(|possible| possible.parts), calls.required().1.name)
}

fn possible(format: &str, schema: Value) -> Result<Vec<Part>, Unbound> {
    calls(tool_format(format).expect("a format"), &[function("f", schema)]).0
}

fn object(properties: impl IntoIterator<Item = (String, Value)>) -> Value {
    json!({"type": "object", "properties": Map::from_iter(properties)})
}

/// So many properties of one schema.
fn of_one(count: usize, schema: &Value) -> Vec<(String, Value)> {
    (0..count).map(|index| (format!("p{index}"), schema.clone())).collect()
}

/// Objects of `count` properties within each other, by references.
fn nested(count: usize, levels: usize) -> Value {
    let mut schema = object([("p".to_owned(), json!({"$ref": "#/$defs/0"}))]);
    for level in 0..levels {
        let inner = match level + 1 == levels {
            true => json!({"type": "string"}),
            false => json!({"$ref": format!("#/$defs/{}", level + 1)}),
        };
        schema["$defs"][level.to_string()] = object(of_one(count, &inner));
    }
    schema
}

#[test]
fn a_short_schema_is_not_written_at_any_length() {
    let again = |reference: &str| vec![json!({"$ref": reference}); 30];
    let definitions = of_one(2_000, &json!({"type": "object", "description": "One of many."}));
    let mut beside_definitions = object(of_one(300, &json!({"$ref": "#/$defs/p7"})));
    beside_definitions["$defs"] = Value::Object(Map::from_iter(definitions));
    let mut all_definitions = object(of_one(300, &json!({"$ref": "#/$defs/all"})));
    all_definitions["$defs"] =
        json!({"all": {"type": "object", "anyOf": again("#/$defs/all"), "description": "x".repeat(50_000)}});
    let mut fan = object([("p".to_owned(), json!({"$ref": "#/$defs/0"}))]);
    for level in 0..14 {
        fan["$defs"][level.to_string()] = json!({"anyOf": again(&format!("#/$defs/{}", level + 1))});
    }
    fan["$defs"]["14"] = json!({"type": ["string", "null"]});
    let mut values = object(of_one(5_000, &json!({"$ref": "#/$defs/e"})));
    values["$defs"] = json!({"e": {"enum": (0..10_000).map(|value| value.to_string()).collect::<Vec<_>>()}});
    let mut types = object(of_one(5_000, &json!({"$ref": "#/$defs/t"})));
    types["$defs"] = json!({"t": {"type": vec!["boolean"; 50_000]}});
    let mut required = object([]);
    required["required"] = json!((0..20_000).map(|key| key.to_string()).collect::<Vec<_>>());
    required["additionalProperties"] = json!({"type": "string", "pattern": "x".repeat(100_000)});
    let schemas = [
        object([("p".to_owned(), json!({"anyOf": again("#/properties/p")}))]),
        object(of_one(500, &json!({"anyOf": again("#/properties/p1")}))),
        nested(10, 3),
        nested(14, 3),
        nested(60, 7),
        beside_definitions,
        all_definitions,
        fan,
        values,
        types,
        required,
        object(of_one(30_000, &json!({}))),
        object([("x".repeat(50_000), object(of_one(5_000, &json!({"type": "integer"}))))]),
    ];
    // One for each way of writing.
    for name in ["hermes", "qwen3_coder", "glm45", "deepseek_v32", "minimax_m3", "pythonic", "gemma4"] {
        let format = tool_format(name).expect("a format");
        for (index, schema) in schemas.iter().enumerate() {
            let (possible, required_in) = calls(format, &[function("f", schema.clone())]);
            match possible {
                // JSON is written as it is.
                Ok(_) if name == "hermes" => {}
                Ok(parts) => {
                    let written = format!("{parts:?}").len();
                    assert!(written < MOST_WRITTEN, "{name}: schema {index} is {written} bytes");
                }
                Err(unbound) => {
                    assert!(unbound.at.starts_with("/f/parameters"), "{name}: {unbound:?}");
                    assert_eq!(required_in, "json", "{name}: {unbound:?}");
                }
            }
        }
    }
}

#[test]
fn what_is_over_the_limit_is_told_with_its_place() {
    for (format, schema) in [("gemma4", nested(60, 7)), ("qwen3_coder", object(of_one(30_000, &json!({}))))] {
        let unbound = possible(format, schema).expect_err("it is too long");
        assert!(unbound.at.starts_with("/f/parameters"), "{unbound:?}");
        assert_eq!(unbound.why, "with it the functions take more than 2 MiB as they are written in it");
    }
}

#[test]
fn functions_have_one_budget() {
    let functions: Vec<Callable> =
        (0..100).map(|index| function(&format!("f{index}"), nested(12, 3))).collect();
    let format = tool_format("gemma4").expect("a format");
    assert!(calls(format, &functions[..1]).0.is_ok());
    let unbound = calls(format, &functions).0.expect_err("they are too long");
    assert!(unbound.at.starts_with("/f") && !unbound.at.starts_with("/f0/"), "{unbound:?}");
    assert!(unbound.why.contains("2 MiB"), "{unbound:?}");
}

#[test]
fn schemas_of_clients_are_written() {
    let kinds = [
        json!({"type": "string", "description": "Some text that says what it is for, and for whom."}),
        json!({"type": "integer", "minimum": 0}),
        json!({"anyOf": [{"type": "string"}, {"type": "null"}], "default": null, "title": "Maybe"}),
        json!({"$ref": "#/$defs/level"}),
        json!({"anyOf": [{"$ref": "#/$defs/level"}, {"type": "null"}]}),
    ];
    let nested =
        [json!({"$ref": "#/$defs/node"}), json!({"type": "array", "items": {"$ref": "#/$defs/node"}})];
    let definitions = json!({
        "level": {"type": "string", "enum": ["low", "middle", "high"]},
        "node": {"type": "object", "properties": {
            "name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
        }, "required": ["name"]},
    });
    for format in tool_formats() {
        // Recursive schemas cannot be written with bare keys.
        let has_bare_keys = ["gemma4", "functiongemma"].contains(&format.name);
        let kinds: Vec<&Value> = kinds.iter().chain(nested.iter().filter(|_| !has_bare_keys)).collect();
        let properties =
            (0..300).map(|index| (format!("property_{index}"), kinds[index % kinds.len()].clone()));
        let mut schema = object(properties);
        schema["required"] = json!(["property_0"]);
        schema["$defs"] = definitions.clone();
        let (possible, required_in) = calls(format, &[function("f", schema.clone())]);
        assert!(possible.is_ok(), "{}: {possible:?}", format.name);
        assert_eq!(required_in, format.name);

        let few: Vec<(String, Value)> =
            kinds.iter().enumerate().map(|(index, kind)| (format!("p{index}"), (*kind).clone())).collect();
        let mut schema = object(few);
        schema["$defs"] = definitions.clone();
        let functions: Vec<Callable> =
            (0..100).map(|index| function(&format!("f{index}"), schema.clone())).collect();
        let (possible, required_in) = calls(format, &functions);
        assert!(possible.is_ok(), "{}: {:?}", format.name, possible.err());
        assert_eq!(required_in, format.name);
    }
}

#[test]
fn arguments_have_names_as_long_as_are_read() {
    for format in tool_formats() {
        let read = |name: &str| {
            let schema = object([(name.to_owned(), json!({"type": "integer"}))]);
            let written = written_calls(format, "", &[("f", format!("{{\"{name}\": 5}}"))]);
            let tools = [Tool { name: "f".to_owned(), parameters: schema.clone() }];
            let mut parser = Parser::new(Some(format), None, tools.into(), Start::Content);
            let mut deltas = Vec::new();
            parser.push(&written, &mut deltas);
            parser.finish(&mut deltas);
            let call = Answer::of(&deltas).calls.remove(0);
            let is_read = serde_json::from_str(&call.arguments).ok() == Some(json!({name: 5}));
            (is_read, possible(format.name, schema))
        };
        let (is_read, written) = read(&"n".repeat(400));
        assert!(is_read && written.is_ok(), "{}: {written:?}", format.name);
        let (is_read, written) = read(&"n".repeat(600));
        assert_eq!(is_read, written.is_ok(), "{}: {written:?}", format.name);
        if let Err(unbound) = written {
            let place = format!("/f/parameters/properties/{}", "n".repeat(600));
            assert_eq!(
                (unbound.at, unbound.why.as_str()),
                (place, "its name is too long to be read in this format"),
                "{}",
                format.name
            );
        }
    }
}

#[test]
fn only_definitions_that_are_referred_to_are_written() {
    let schema = json!({
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"$ref": "#/$defs/b~1c/properties/x"}}},
        "$defs": {
            "b/c": {"properties": {"x": {"$ref": "#/definitions/d"}}},
            "other": {"$ref": "https://elsewhere.example/"},
        },
        "definitions": {"d": {"type": "object", "properties": {"e": {"$ref": "#/$defs/b~1c"}}}, "f": {}},
    });
    for format in ["qwen3_coder", "glm45", "pythonic"] {
        let written = format!("{:?}", possible(format, schema.clone()).expect("it can be written"));
        for (name, is_there) in
            [("\"b/c\"", true), ("\"d\"", true), ("\"other\"", false), ("\"f\": Object", false)]
        {
            assert_eq!(written.contains(name), is_there, "{format}: {name} in {written}");
        }
    }
}

#[test]
fn a_function_may_be_a_reference() {
    let own = json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]});
    for (at, place) in [("$defs", "#/$defs/A"), ("definitions", "#/definitions/A")] {
        let draft = "http://json-schema.org/draft-07/schema#";
        let lone = json!({"$ref": place, "$schema": draft, at: {"A": own}});
        let twice = json!({"allOf": [{"$ref": "#/B"}], "description": "What it does.", "B": {"$ref": place}, at: {"A": own}});
        for format in ["glm45", "deepseek_v32", "minimax_m3", "pythonic", "gemma4"] {
            let written = possible(format, own.clone()).expect("it can be written");
            assert_eq!(possible(format, lone.clone()).as_ref(), Ok(&written), "{format}");
            assert_eq!(possible(format, twice.clone()).as_ref(), Ok(&written), "{format}");
        }
        let written = format!("{:?}", possible("qwen3_coder", lone).expect("it can be written"));
        assert!(written.contains("<parameter=a") && !written.contains("[A-Za-z_]"), "{written}");
    }
    for format in ["glm45", "qwen3_coder", "minimax_m3", "pythonic", "gemma4"] {
        for (schema, why) in [
            (
                json!({"$ref": "#/$defs/A", "properties": {"c": {}}, "$defs": {"A": own}}),
                "`$ref` is about the object as a whole",
            ),
            (
                json!({"$ref": "#/$defs/A", "dependentRequired": {"b": ["a"]}, "$defs": {"A": own}}),
                "`$ref` is about the object as a whole",
            ),
            (
                json!({"$ref": "#/$defs/A", "$defs": {"A": {"type": "string"}}}),
                "it is not the schema of an object",
            ),
            (json!({"$ref": "#"}), "its references are endless, or too many"),
        ] {
            let unbound = possible(format, schema).expect_err("it cannot be written");
            assert_eq!((unbound.at.as_str(), unbound.why.as_str()), ("/f/parameters", why), "{format}");
        }
    }
}

#[test]
fn bare_keys_are_held_to_each_keyword_of_a_list_of_types() {
    let written = |property: Value| possible("gemma4", object([("a".to_owned(), property)]));
    for (property, keyword) in [
        (
            json!({"type": ["array"], "items": {"enum": [1, 2]}, "minItems": 3, "uniqueItems": true}),
            "uniqueItems",
        ),
        (json!({"type": ["array", "null"], "contains": {"const": 1}}), "contains"),
        (json!({"type": ["array", "null"], "unevaluatedItems": false}), "unevaluatedItems"),
        (
            json!({"type": ["object", "null"], "patternProperties": {"^x": {"type": "null"}}}),
            "patternProperties",
        ),
        (json!({"type": ["object", "null"], "properties": {"b": {}}, "minProperties": 1}), "minProperties"),
        (json!({"type": ["string", "null"], "allOf": [{"minLength": 1}, {"maxLength": 3}]}), "allOf"),
        (json!({"type": ["string", "integer"], "if": {"minLength": 1}, "then": {"maxLength": 3}}), "if"),
        (json!({"type": ["string", "integer"], "not": {"const": 1}}), "not"),
        (json!({"type": ["string", "integer"], "$ref": "#/properties/b"}), "$ref"),
        (json!({"type": ["integer", "null"], "maxLength": 3}), "maxLength"),
        (json!({"type": "array", "uniqueItems": true}), "uniqueItems"),
    ] {
        let unbound = written(property).expect_err(keyword);
        assert_eq!(unbound.why, format!("`{keyword}` cannot be held to in this format"));
    }
    for property in [
        json!({"type": ["array", "null"], "items": {"type": "integer"}, "maxItems": 2}),
        json!({"type": ["string", "integer"], "maxLength": 3, "minimum": 1, "description": "Both."}),
        json!({"type": ["object", "array"], "properties": {"b": {"type": "null"}}, "items": {"type": "null"}}),
    ] {
        assert!(written(property.clone()).is_ok(), "{property}");
    }
    for (property, why) in [
        (json!({"type": "array", "items": [{"type": "integer"}, {"type": "boolean"}]}), "`items` is a list"),
        (json!({"type": "array", "minItems": -1}), "`minItems` is no count"),
        (json!({"type": "array", "maxItems": 1.5}), "`maxItems` is no count"),
        (json!({"type": "array", "minItems": 3, "maxItems": 2}), "no value of it can be written"),
        (json!({"type": "array", "minItems": 1e10}), "no value of it can be written"),
        (json!({"enum": []}), "no value of it can be written"),
        (json!({"type": "string", "enum": [1, null]}), "no value of it can be written"),
        (json!({"anyOf": []}), "no value of it can be written"),
        (json!({"type": []}), "no value of it can be written"),
        (json!({"type": "array", "items": 5}), "it is no schema"),
    ] {
        assert_eq!(written(property).expect_err(why).why, why);
    }
    let unbound =
        written(json!({"type": "integer", "enum": [1, 2, 3], "minimum": 2})).expect_err("it is not held to");
    assert_eq!(unbound.why, "`minimum` stands beside a list of values");
}
