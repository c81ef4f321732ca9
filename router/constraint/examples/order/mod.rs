//! The order of properties: a grammar has them as its schema does, an instance has them in any. For the benchmark and the
//! test over MaskBench's cases.

use serde_json::{Value, json};

/// The instance with its properties in the order in which the schema names them, others last.
pub fn of_schema(schema: &Value, instance: &Value) -> Value {
    in_order_of(schema, schema, instance, 0)
}

fn in_order_of(root: &Value, schema: &Value, value: &Value, depth: usize) -> Value {
    if depth > 60 {
        return value.clone();
    }
    match value {
        Value::Array(items) => {
            let schemas = |key: &str| {
                parts(root, schema, 0).iter().filter_map(|part| part.get(key)).cloned().collect::<Vec<_>>()
            };
            let all =
                json!({"allOf": schemas("items").into_iter().filter(Value::is_object).collect::<Vec<_>>()});
            items.iter().map(|item| in_order_of(root, &all, item, depth + 1)).collect()
        }
        Value::Object(own) => {
            let parts = parts(root, schema, 0);
            let mut names: Vec<&String> = Vec::new();
            for part in &parts {
                let properties = part.get("properties").and_then(Value::as_object);
                let named = properties.into_iter().flat_map(|properties| properties.keys());
                names.extend(named.filter(|name| own.contains_key(*name)));
            }
            names.extend(own.keys());
            let mut ordered = serde_json::Map::new();
            for name in names {
                let mut within = Vec::new();
                for part in &parts {
                    match part.get("properties").and_then(|properties| properties.get(name)) {
                        Some(property) => within.push(property),
                        None => {
                            within.extend(part.get("additionalProperties"));
                            let patterns = part.get("patternProperties").and_then(Value::as_object);
                            within.extend(patterns.into_iter().flat_map(|patterns| patterns.values()));
                        }
                    }
                }
                within.retain(|part| part.is_object());
                if !ordered.contains_key(name) {
                    ordered.insert(
                        name.clone(),
                        in_order_of(root, &json!({"allOf": within}), &own[name], depth + 1),
                    );
                }
            }
            Value::Object(ordered)
        }
        other => other.clone(),
    }
}

/// The schemas that say something of the same value, in their order.
fn parts<'v>(root: &'v Value, schema: &'v Value, depth: usize) -> Vec<&'v Value> {
    let mut found = Vec::new();
    let Some(members) = schema.as_object().filter(|_| depth < 12) else { return found };
    for (key, value) in members {
        match key.as_str() {
            "properties" => found.push(schema),
            "$ref" => {
                let pointer = value.as_str().and_then(|text| text.strip_prefix('#'));
                if let Some(target) = pointer.and_then(|pointer| root.pointer(pointer)) {
                    found.extend(parts(root, target, depth + 1));
                }
            }
            "allOf" | "anyOf" | "oneOf" => {
                for part in value.as_array().into_iter().flatten() {
                    found.extend(parts(root, part, depth + 1));
                }
            }
            "then" | "else" | "if" => found.extend(parts(root, value, depth + 1)),
            _ => {}
        }
    }
    if !members.contains_key("properties") {
        found.push(schema);
    }
    found
}
