//! Schemas of all shapes, written for these tests, and a generator of more. What is drawn from a seed is always the same.
#![allow(dead_code, reason = "every test and example uses a part of it")]

use serde_json::{Map, Value, json};

use crate::synthetic::Random;

/// Written by hand, one a line; comments name the shape.
const WRITTEN: &str = r##"
{}
true
{"type": "null"}
{"type": "boolean"}
{"type": "integer"}
{"type": "number"}
{"type": "string"}
{"type": "array"}
{"type": "object"}
{"type": ["string", "null"]}
{"type": ["integer", "boolean", "null"]}
{"type": ["object", "array"]}
{"const": "fixed"}
{"const": 7}
{"const": -2.5}
{"const": null}
{"const": {"a": [1, true], "b": {}}}
{"const": [1, "two", [3]]}
{"enum": ["red", "green", "blue"]}
{"enum": [1, "one", true, null, 1.5]}
{"enum": ["a\"b", "tab\there", "é", "日本", "new\nline", "back\\slash"]}
{"type": "integer", "enum": [1, 2, 3, "four"]}
{"type": "integer", "minimum": 3}
{"type": "integer", "maximum": -3}
{"type": "integer", "minimum": -5, "maximum": 120}
{"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 3}
{"type": "integer", "minimum": 17, "maximum": 17}
{"type": "number", "minimum": 0, "maximum": 1}
{"type": "number", "exclusiveMinimum": -1.5, "exclusiveMaximum": 2.25}
{"type": "number", "minimum": 0.001, "maximum": 0.01}
{"type": "integer", "multipleOf": 7}
{"type": "integer", "multipleOf": 3, "minimum": 10, "maximum": 40}
{"type": "number", "multipleOf": 0.25}
{"type": "number", "multipleOf": 0.5, "minimum": -2, "maximum": 2}
{"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer", "minimum": 1, "exclusiveMinimum": true, "maximum": 5, "exclusiveMaximum": false}
{"type": "string", "minLength": 3}
{"type": "string", "maxLength": 5}
{"type": "string", "minLength": 2, "maxLength": 4}
{"type": "string", "pattern": "^[a-z]+$"}
{"type": "string", "pattern": "^\\d{3}-\\d{4}$"}
{"type": "string", "pattern": "abc"}
{"type": "string", "pattern": "^(?:cat|dog)s?$"}
{"type": "string", "pattern": "^[A-Z]{2}[0-9]{2,4}$", "maxLength": 5}
{"type": "string", "pattern": "^(?=.*[0-9])(?=.*[a-z])[0-9a-z]{4,8}$"}
{"type": "string", "pattern": "^[^\\s\"]+$", "minLength": 1, "maxLength": 10}
{"type": "string", "pattern": "^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$"}
{"type": "string", "pattern": "^(?!.*(?:ab|\\s))(?!e$).{1,6}$"}
{"type": "string", "format": "email", "pattern": "^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$"}
{"type": "string", "pattern": "^.{2}$"}
{"type": "string", "pattern": "^\\w+@\\w+\\.\\w{2,3}$"}
{"type": "string", "format": "date"}
{"type": "string", "format": "date-time"}
{"type": "string", "format": "time"}
{"type": "string", "format": "duration"}
{"type": "string", "format": "email"}
{"type": "string", "format": "hostname"}
{"type": "string", "format": "ipv4"}
{"type": "string", "format": "ipv6"}
{"type": "string", "format": "uuid"}
{"type": "string", "format": "uri"}
{"type": "string", "format": "uri-reference"}
{"type": "string", "format": "json-pointer"}
{"type": "string", "format": "regex"}
{"type": "string", "format": "uri-template"}
{"type": "string", "format": "colour-of-the-week"}
{"type": "array", "items": {"type": "integer"}}
{"type": "array", "items": {"type": "string", "maxLength": 3}, "minItems": 1, "maxItems": 3}
{"type": "array", "items": {"type": "boolean"}, "minItems": 4}
{"type": "array", "maxItems": 0}
{"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": false}
{"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": {"type": "null"}, "minItems": 2, "maxItems": 4}
{"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "items": [{"type": "integer"}, {"enum": ["x"]}], "additionalItems": {"type": "boolean"}}
{"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": true}
{"type": "array", "items": {"type": "boolean"}, "uniqueItems": true, "minItems": 1}
{"type": "array", "uniqueItems": true, "maxItems": 1}
{"type": "array", "uniqueItems": false, "items": {"type": "integer"}}
{"type": "array", "contains": {"const": 5}, "items": {"type": "integer"}, "maxItems": 5}
{"type": "array", "contains": {"type": "string"}}
{"type": "array", "contains": {"const": 5}, "minContains": 0, "items": {"type": "integer"}}
{"type": "array", "items": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}}
{"type": "array", "items": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": false}}
{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["b"]}
{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a", "b"], "additionalProperties": false}
{"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "boolean"}}
{"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1}
{"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 2}
{"type": "object", "required": ["not listed"], "additionalProperties": {"type": "integer"}}
{"type": "object", "properties": {"a\"b": {"type": "null"}, "c\\d": {"type": "null"}, "é": {"type": "null"}, "line\nend": {"type": "null"}}, "additionalProperties": false}
{"type": "object", "properties": {"never": false, "always": true}, "additionalProperties": {"type": "integer"}}
{"type": "object", "patternProperties": {"^x_": {"type": "integer"}, "^y_": {"type": "string"}}, "additionalProperties": false}
{"type": "object", "properties": {"x_a": {"minimum": 5}}, "patternProperties": {"^x_": {"type": "integer"}}, "additionalProperties": {"type": "null"}}
{"type": "object", "propertyNames": {"pattern": "^[a-z]{1,3}$"}, "additionalProperties": {"type": "integer"}}
{"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "integer"}}
{"type": "object", "propertyNames": {"maxLength": 2}}
{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}, "c": {"type": "integer"}}, "minProperties": 1, "additionalProperties": false}
{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}, "c": {"type": "integer"}}, "minProperties": 2, "maxProperties": 2, "additionalProperties": false}
{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "minProperties": 1, "additionalProperties": {"type": "string"}}
{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}, "c": {"type": "integer"}}, "required": ["a"], "maxProperties": 2, "additionalProperties": false}
{"type": "object", "properties": {"card": {"type": "integer"}, "address": {"type": "string"}}, "dependentRequired": {"card": ["address"]}, "additionalProperties": false}
{"type": "object", "properties": {"card": {"type": "integer"}}, "dependentSchemas": {"card": {"properties": {"address": {"type": "string"}}, "required": ["address"]}}}
{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "dependencies": {"a": ["b"], "b": {"properties": {"a": {"minimum": 3}}}}, "additionalProperties": false}
{"type": "object", "properties": {"a": {"type": "integer"}}, "unevaluatedProperties": false}
{"allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"properties": {"b": {"type": "string"}}}], "type": "object", "unevaluatedProperties": false}
{"anyOf": [{"type": "integer", "minimum": 10}, {"type": "string", "maxLength": 2}]}
{"anyOf": [{"type": "integer", "minimum": 10}, {"type": "integer", "maximum": 3}]}
{"anyOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"properties": {"b": {"type": "string"}}, "required": ["b"]}], "type": "object"}
{"allOf": [{"type": "integer"}, {"minimum": 5}, {"maximum": 9}]}
{"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"type": "object", "properties": {"b": {"type": "string"}}, "required": ["b"]}]}
{"allOf": [{"properties": {"a": {"type": "number"}}}, {"properties": {"a": {"minimum": 3}}}], "type": "object", "required": ["a"]}
{"allOf": [{"pattern": "^a"}, {"pattern": "z$"}], "type": "string", "maxLength": 6}
{"oneOf": [{"type": "integer"}, {"type": "string"}]}
{"oneOf": [{"type": "integer", "maximum": 3}, {"type": "integer", "minimum": 7}]}
{"oneOf": [{"type": "integer", "maximum": 7}, {"type": "integer", "minimum": 3}]}
{"oneOf": [{"properties": {"kind": {"const": "a"}, "x": {"type": "integer"}}, "required": ["kind", "x"]}, {"properties": {"kind": {"const": "b"}, "y": {"type": "string"}}, "required": ["kind", "y"]}]}
{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}], "additionalProperties": false}
{"type": "object", "oneOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false}, {"properties": {"b": {"type": "integer"}}, "required": ["b"], "additionalProperties": false}]}
{"type": "object", "properties": {"kind": {"enum": ["a", "b"]}}, "required": ["kind"], "oneOf": [{"properties": {"kind": {"const": "a"}, "x": {"type": "integer"}}}, {"properties": {"kind": {"const": "b"}, "y": {"type": "string"}}}]}
{"oneOf": [{"enum": [1, 2, 3]}, {"enum": [3, 4, 5]}]}
{"oneOf": [{"type": "string", "maxLength": 4}, {"type": "string", "minLength": 3}]}
{"oneOf": [{"const": "a"}, {"type": "string", "maxLength": 1}]}
{"type": ["integer", "string"], "not": {"type": "string"}}
{"type": "string", "not": {"enum": ["no", "nope", ""]}, "maxLength": 5}
{"type": "integer", "not": {"const": 5}, "minimum": 4, "maximum": 6}
{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "not": {"required": ["a", "b"]}, "additionalProperties": false}
{"type": "integer", "minimum": 0, "maximum": 20, "not": {"minimum": 5, "maximum": 15}}
{"not": {"type": ["object", "array", "string"]}}
{"enum": ["a", "b", "c"], "not": {"const": "b"}}
{"type": "string", "not": {"pattern": "^(?:bad|worse)$"}, "maxLength": 6}
{"type": "object", "properties": {"kind": {"enum": ["a", "b"]}, "x": {"type": "integer"}}, "required": ["kind"], "if": {"properties": {"kind": {"const": "a"}}}, "then": {"required": ["x"]}, "additionalProperties": false}
{"type": "object", "properties": {"country": {"enum": ["US", "NL"]}, "code": {"type": "string"}}, "required": ["country", "code"], "if": {"properties": {"country": {"const": "US"}}}, "then": {"properties": {"code": {"pattern": "^[0-9]{5}$"}}}, "else": {"properties": {"code": {"pattern": "^[0-9]{4} [A-Z]{2}$"}}}, "additionalProperties": false}
{"type": "integer", "if": {"minimum": 10}, "then": {"multipleOf": 10}, "else": {"maximum": 3}}
{"$defs": {"name": {"type": "string", "maxLength": 4}}, "type": "object", "properties": {"first": {"$ref": "#/$defs/name"}, "last": {"$ref": "#/$defs/name"}}, "required": ["first"], "additionalProperties": false}
{"$defs": {"node": {"type": "object", "properties": {"value": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}}, "required": ["value"], "additionalProperties": false}}, "$ref": "#/$defs/node"}
{"$defs": {"tree": {"type": "object", "properties": {"leaf": {"type": "boolean"}, "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2}}, "additionalProperties": false}}, "$ref": "#/$defs/tree"}
{"type": "object", "properties": {"again": {"$ref": "#"}}, "additionalProperties": false}
{"$defs": {"a/b": {"type": "integer"}, "c~d": {"type": "null"}, "e f": {"type": "boolean"}}, "anyOf": [{"$ref": "#/$defs/a~1b"}, {"$ref": "#/$defs/c~0d"}, {"$ref": "#/$defs/e%20f"}]}
{"$defs": {"x": {"$anchor": "here", "type": "integer"}}, "type": "array", "items": {"$ref": "#here"}}
{"$id": "http://example.org/root.json", "$defs": {"x": {"$id": "x.json", "type": "boolean"}}, "type": "array", "items": {"$ref": "x.json"}}
{"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"int": {"type": "integer"}}, "type": "object", "properties": {"a": {"$ref": "#/definitions/int", "type": "string"}}, "required": ["a"]}
{"$defs": {"positive": {"minimum": 1}}, "$ref": "#/$defs/positive", "type": "integer"}
{"$defs": {"expr": {"anyOf": [{"type": "integer"}, {"type": "object", "properties": {"op": {"enum": ["+", "-"]}, "args": {"type": "array", "items": {"$ref": "#/$defs/expr"}, "minItems": 2, "maxItems": 2}}, "required": ["op", "args"], "additionalProperties": false}]}}, "$ref": "#/$defs/expr"}
{"title": "annotated", "description": "x", "default": 1, "examples": [1], "deprecated": true, "readOnly": true, "$comment": "c", "x-vendor": {"not": "a schema"}, "type": "integer"}
{"type": "object", "properties": {"type": {"type": "string", "enum": ["object"]}, "properties": {"type": "object"}, "enum": {"type": "array"}, "$ref": {"type": "integer"}}, "required": ["type"]}
{"type": "object", "properties": {"user": {"type": "object", "properties": {"name": {"type": "string", "minLength": 1}, "age": {"type": "integer", "minimum": 0, "maximum": 150}, "email": {"type": "string", "format": "email"}, "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3}}, "required": ["name", "age"], "additionalProperties": false}}, "required": ["user"], "additionalProperties": false}
{"type": "integer", "minimum": 9007199254740993}
{"type": "integer", "maximum": 9223372036854775807, "minimum": 9223372036854774000}
{"minimum": 5, "maxLength": 2, "maxItems": 1, "required": ["a"]}
"##;

pub fn written() -> Vec<Value> {
    WRITTEN
        .lines()
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_str(line).expect(line))
        .collect()
}

/// A schema of random shape: satisfiable, and made of what the crate supports.
pub fn generated(seed: u64) -> Value {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut schema = any(&mut random, 3);
    if random.below(4) == 0 {
        schema =
            json!({"$defs": {"it": schema}, "type": "array", "items": {"$ref": "#/$defs/it"}, "maxItems": 3});
    }
    schema
}

fn any(random: &mut Random, depth: usize) -> Value {
    let kinds = if depth == 0 { 5 } else { 11 };
    match random.below(kinds) {
        0 => json!({"type": "boolean"}),
        1 => integer(random),
        2 => string(random),
        3 => json!({"enum": values(random)}),
        4 => number(random),
        5 | 6 => object(random, depth),
        7 => {
            let least = random.below(3);
            let most = least + random.below(3);
            json!({"type": "array", "items": any(random, depth - 1), "minItems": least, "maxItems": most})
        }
        8 => json!({"anyOf": [any(random, depth - 1), any(random, depth - 1)]}),
        9 => {
            let tagged = |tag: &str, inner: Value| json!({"type": "object", "properties": {"tag": {"const": tag}, "it": inner}, "required": ["tag", "it"], "additionalProperties": false});
            json!({"oneOf": [tagged("a", any(random, depth - 1)), tagged("b", any(random, depth - 1))]})
        }
        _ => {
            let (low, high) = (random.below(20), 20 + random.below(20));
            json!({"allOf": [{"type": ["integer", "null"]}, {"minimum": low}, {"maximum": high}], "not": {"const": low}})
        }
    }
}

fn integer(random: &mut Random) -> Value {
    let low = random.below(2000) as i64 - 1000;
    let mut schema = json!({"type": "integer"});
    if random.below(2) == 0 {
        schema["minimum"] = low.into();
    }
    if random.below(2) == 0 {
        schema["maximum"] = (low + random.below(1500) as i64).into();
    }
    schema
}

fn number(random: &mut Random) -> Value {
    let low = (random.below(4000) as f64 - 2000.0) / 16.0;
    let lower = ["minimum", "exclusiveMinimum"][random.below(2)];
    let upper = ["maximum", "exclusiveMaximum"][random.below(2)];
    json!({"type": "number", lower: low, upper: low + 0.5 + random.below(100) as f64 / 8.0})
}

fn string(random: &mut Random) -> Value {
    match random.below(4) {
        0 => json!({"type": "string"}),
        1 => json!({"type": "string", "minLength": random.below(4), "maxLength": 4 + random.below(8)}),
        2 => {
            let patterns = ["^[a-f0-9]{4}$", "^(?:on|off)$", "[0-9]", "^\\s*\\w+\\s*$", "^[^a]*a$", "x+y?"];
            json!({"type": "string", "pattern": patterns[random.below(patterns.len())]})
        }
        _ => {
            let format = ["date", "ipv4", "uuid", "time"][random.below(4)];
            json!({"type": "string", "format": format})
        }
    }
}

fn values(random: &mut Random) -> Value {
    let all = [
        json!("a"),
        json!("b c"),
        json!(1),
        json!(2.5),
        json!(null),
        json!(true),
        json!([1]),
        json!({"k": "v"}),
    ];
    let first = random.below(all.len());
    let count = 1 + random.below(4);
    (0..count).map(|index| all[(first + index) % all.len()].clone()).collect()
}

fn object(random: &mut Random, depth: usize) -> Value {
    let names = ["id", "name", "value", "a b", "é", "q\"q"];
    let count = random.below(names.len());
    let mut properties = Map::new();
    let mut required = Vec::new();
    for name in &names[..count] {
        properties.insert(name.to_string(), any(random, depth - 1));
        if random.below(2) == 0 {
            required.push(*name);
        }
    }
    let mut schema = json!({"type": "object", "properties": properties, "required": required});
    match random.below(4) {
        0 => schema["additionalProperties"] = any(random, 0),
        1 | 2 => schema["additionalProperties"] = false.into(),
        _ => {}
    }
    if count > 1 && random.below(3) == 0 {
        schema["dependentRequired"] = json!({names[0]: [names[1]]});
    }
    schema
}

/// A schema of keywords thrown together, `oneOf`, `not` and `if` among them; it may be refused, or accept nothing.
pub fn wild(seed: u64) -> Value {
    let mut random = Random(seed.wrapping_mul(0xD134_2543_DE82_EF95) | 1);
    let mut schema = thrown(&mut random, 3);
    schema["$defs"] = json!({"d": thrown(&mut random, 1), "e": thrown(&mut random, 0)});
    schema
}

fn thrown(random: &mut Random, depth: usize) -> Value {
    let mut schema = Map::new();
    let kinds = ["integer", "string", "object", "array", "number", "boolean", "null"];
    if random.below(3) > 0 {
        schema.insert("type".into(), kinds[random.below(4)].into());
    }
    let names = ["a", "b", "c"];
    for _ in 0..1 + random.below(3) {
        let small = random.below(5);
        let (key, value) = match random.below(if depth == 0 { 12 } else { 25 }) {
            0 => ("minimum", json!(small)),
            1 => ("maximum", json!(small + 3)),
            2 => ("exclusiveMinimum", json!(small)),
            3 => ("multipleOf", json!([2, 3, 5][random.below(3)])),
            4 => ("minLength", json!(random.below(3))),
            5 => ("maxLength", json!(small + 1)),
            6 => ("pattern", ["^a", "b$", "^(?:x|yy)$", "[0-9]"][random.below(4)].into()),
            7 => ("enum", values(random)),
            8 => ("const", values(random)[0].clone()),
            9 => ("required", json!([names[random.below(3)]])),
            10 => ("minProperties", json!(random.below(3))),
            11 => ("maxItems", json!(small)),
            12 => ("minItems", json!(random.below(3))),
            13 => ("maxProperties", json!(random.below(3))),
            14 | 15 => {
                let some = names
                    .iter()
                    .filter(|_| !random.0.is_multiple_of(3))
                    .map(|name| name.to_string())
                    .collect::<Vec<_>>();
                let some = some.into_iter().map(|name| (name, thrown(random, depth - 1)));
                ("properties", Value::Object(some.collect()))
            }
            16 => ("additionalProperties", [json!(false), thrown(random, 0)][random.below(2)].clone()),
            17 => ("items", thrown(random, depth - 1)),
            18 => ("prefixItems", json!([thrown(random, 0), thrown(random, 0)])),
            19 => ("not", thrown(random, depth - 1)),
            20 => ("anyOf", json!([thrown(random, depth - 1), thrown(random, depth - 1)])),
            21 => ("oneOf", json!([thrown(random, depth - 1), thrown(random, depth - 1)])),
            22 => ("allOf", json!([thrown(random, depth - 1), thrown(random, depth - 1)])),
            23 => ("dependentRequired", json!({names[random.below(3)]: [names[random.below(3)]]})),
            _ => {
                schema.insert("then".into(), thrown(random, depth - 1));
                schema.insert("else".into(), thrown(random, depth - 1));
                ("if", thrown(random, depth - 1))
            }
        };
        schema.insert(key.into(), value);
        if depth > 0 && random.below(8) == 0 {
            schema.insert("$ref".into(), ["#/$defs/d", "#/$defs/e"][random.below(2)].into());
        }
    }
    Value::Object(schema)
}
