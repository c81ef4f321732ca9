//! Valid instances drawn from the schemas of `schemas::generated`, with what JSON Schema says of their keywords and nothing
//! else: no grammar has a part in it. What is drawn from a seed is always the same.

use serde_json::{Map, Value, json};

use crate::synthetic::Random;

/// An instance of `schema`, which may refer to the definitions of `root`.
pub fn instance(root: &Value, schema: &Value, random: &mut Random) -> Value {
    let of = |schema: &Value, random: &mut Random| instance(root, schema, random);
    if let Some(pointer) = schema["$ref"].as_str() {
        return of(root.pointer(&pointer[1..]).unwrap(), random);
    }
    if let Some(choices) = schema["anyOf"].as_array().or(schema["oneOf"].as_array()) {
        return of(&choices[random.below(choices.len())], random);
    }
    let only = schema.get("const").map(|only| vec![only.clone()]);
    if let Some(values) = schema["enum"].as_array().or(only.as_ref()) {
        return values[random.below(values.len())].clone();
    }
    if let Some(all) = schema["allOf"].as_array() {
        let merged: Map<_, _> = all.iter().flat_map(|part| part.as_object().unwrap().clone()).collect();
        let mut drawn = std::iter::repeat_with(|| of(&merged.clone().into(), random));
        return drawn.find(|drawn| *drawn != schema["not"]["const"]).unwrap();
    }
    let kind = &schema["type"];
    match kind.as_str().or_else(|| kind[random.below(kind.as_array()?.len())].as_str()).unwrap() {
        "null" => Value::Null,
        "boolean" => (random.below(2) == 0).into(),
        "integer" => integer(schema, random),
        "number" => number(schema, random),
        "string" => string(schema, random).into(),
        "array" => (0..between(&schema["minItems"], &schema["maxItems"], random))
            .map(|_| of(&schema["items"], random))
            .collect(),
        "object" => object(root, schema, random),
        other => panic!("{other}"),
    }
}

fn between(least: &Value, most: &Value, random: &mut Random) -> usize {
    let least = least.as_u64().unwrap_or(0) as usize;
    least + random.below(most.as_u64().unwrap_or(20) as usize - least + 1)
}

fn integer(schema: &Value, random: &mut Random) -> Value {
    let reach = 10_i64.pow(random.below(16) as u32);
    let (minimum, maximum) = (schema["minimum"].as_i64(), schema["maximum"].as_i64());
    let least = minimum.unwrap_or(maximum.unwrap_or(0) - reach);
    let most = maximum.unwrap_or(minimum.unwrap_or(0) + reach);
    (least + random.next().cast_signed().rem_euclid(most - least + 1)).into()
}

/// Of the numbers with six binary places; whole ones are also written as integers.
fn number(schema: &Value, random: &mut Random) -> Value {
    let bound = |inclusive: &str, exclusive: &str, step: f64| {
        schema[inclusive].as_f64().unwrap_or_else(|| schema[exclusive].as_f64().unwrap() + step)
    };
    let least = bound("minimum", "exclusiveMinimum", 1.0 / 64.0);
    let most = bound("maximum", "exclusiveMaximum", -1.0 / 64.0);
    let drawn = least + random.below(((most - least) * 64.0) as usize + 1) as f64 / 64.0;
    if drawn.fract() == 0.0 && random.below(2) == 0 { json!(drawn as i64) } else { json!(drawn) }
}

/// Letters, and what JSON escapes with a letter or writes in several bytes. Masks do without control characters that have no
/// such escape, DEL among them.
fn text(length: usize, random: &mut Random) -> String {
    let letters: Vec<char> = "bcdez09 _-.,:{}[]'/é日😀\"\\\n\t\r\u{8}\u{2028}".chars().collect();
    (0..length).map(|_| letters[random.below(letters.len())]).collect()
}

fn string(schema: &Value, random: &mut Random) -> String {
    let mut below = |end| random.below(end);
    match schema["format"].as_str().or(schema["pattern"].as_str()) {
        Some("date") => format!("{:04}-{:02}-{:02}", below(10_000), 1 + below(12), 1 + below(28)),
        Some("ipv4") => [(); 4].map(|()| below(256).to_string()).join("."),
        Some("uuid") => [2, 1, 1, 1, 3]
            .map(|parts| (0..parts).map(|_| format!("{:04x}", below(0x10000))).collect::<String>())
            .join("-"),
        Some("time") => {
            let end = ["Z", "z", ".5+01:30", ".123456-23:59"][below(4)];
            format!("{:02}:{:02}:{:02}{end}", below(24), below(60), below(60))
        }
        Some("^[a-f0-9]{4}$") => format!("{:04x}", below(0x10000)),
        Some("^(?:on|off)$") => ["on", "off"][below(2)].into(),
        Some(r"^\s*\w+\s*$") => {
            format!("{}w_{:x}{}", " \t\n".repeat(below(3)), below(99), "\r".repeat(below(3)))
        }
        Some("[0-9]") => format!("{}7{}", text(random.below(20), random), text(3, random)),
        Some("^[^a]*a$") => text(random.below(20), random) + "a",
        Some("x+y?") => format!("{}x{}", text(random.below(20), random), text(3, random)),
        None => text(between(&schema["minLength"], &schema["maxLength"], random), random),
        Some(other) => panic!("{other}"),
    }
}

/// Properties in the schema's order, and others behind them.
fn object(root: &Value, schema: &Value, random: &mut Random) -> Value {
    let properties = schema["properties"].as_object().unwrap();
    let named = |names: &Value, name: &str| names.as_array().is_some_and(|all| all.contains(&name.into()));
    let mut drawn = Map::new();
    for (name, property) in properties {
        // A name that another one wants comes behind it.
        let wanted = drawn.keys().any(|other: &String| named(&schema["dependentRequired"][other], name));
        if wanted || named(&schema["required"], name) || random.below(2) == 0 {
            drawn.insert(name.clone(), instance(root, property, random));
        }
    }
    let any = json!({"enum": [0, "", [], {"id": [null, -1.5e-7]}, 1e300]});
    let others = match &schema["additionalProperties"] {
        Value::Bool(false) => return drawn.into(),
        Value::Null => &any,
        others => others,
    };
    for _ in 0..random.below(3) {
        let name = format!("{}{}", ["id", "nam", "", "q\""][random.below(4)], text(4, random));
        drawn.insert(name, instance(root, others, random));
    }
    drawn.into()
}
