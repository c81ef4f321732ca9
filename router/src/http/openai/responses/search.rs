//! Searches for tools that the client makes, as Codex and Vercel's AI SDK have them: what the model is told of earlier ones, and
//! what an answer's item has of one. The tool is one of `chats::functions`, and those that were found are read there.

use serde_json::{Value, json};

use crate::http::chats::functions::Namespaced;

/// The id of a search that the client made. What OpenAI's servers have searched for has none.
pub fn of_client<'a>(execution: Option<&str>, call_id: Option<&'a str>) -> Option<&'a str> {
    call_id.filter(|_| execution == Some("client"))
}

/// What the model reads as the result: the tools themselves stand among the others.
pub fn result(found: &[Value]) -> String {
    let names: Vec<String> = found.iter().flat_map(names).collect();
    match names.is_empty() {
        true => "No tool was found.".to_owned(),
        false => format!("These tools were found, and can be called from now on:\n{}", names.join("\n")),
    }
}

/// By which the model knows a tool, or all of a namespace.
fn names(tool: &Value) -> Vec<String> {
    let name = |tool: &Value| tool["name"].as_str().map(str::to_owned);
    match tool["tools"].as_array() {
        Some(tools) => {
            let namespace = tool["name"].as_str().unwrap_or_default();
            let shown = |tool: &Value| name(tool).map(|name| Namespaced::new(namespace, &name).shown);
            tools.iter().filter_map(shown).collect()
        }
        None => name(tool).into_iter().collect(),
    }
}

/// The arguments that a call's item has: an object, which is empty where the text breaks off. Codex takes whole numbers only as such,
/// and models write `8.0` where a schema says `number`.
pub fn arguments(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(mut arguments @ Value::Object(_)) => {
            to_whole_numbers(&mut arguments);
            arguments
        }
        _ => json!({}),
    }
}

fn to_whole_numbers(value: &mut Value) {
    /// Below it every whole number is a float.
    const MOST: f64 = (1_u64 << 53) as f64;
    match value {
        Value::Number(number) if number.is_f64() => {
            let is_whole = |float: &f64| float.fract() == 0.0 && float.abs() < MOST;
            if let Some(whole) = number.as_f64().filter(is_whole) {
                *number = (whole as i64).into();
            }
        }
        Value::Array(values) => values.iter_mut().for_each(to_whole_numbers),
        Value::Object(members) => members.values_mut().for_each(to_whole_numbers),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_an_object_with_whole_numbers_as_such() {
        for (text, expected) in [
            (r#"{"query": "sea", "limit": 8.0}"#, json!({"query": "sea", "limit": 8})),
            (r#"{"a": [1.5, {"b": -2e1}], "c": 1e300}"#, json!({"a": [1.5, {"b": -20}], "c": 1e300})),
            (r#"{"query": "se"#, json!({})),
            ("[8.0]", json!({})),
            ("", json!({})),
        ] {
            assert_eq!(arguments(text), expected, "{text}");
        }
    }

    #[test]
    fn what_was_found_has_the_names_by_which_it_is_called() {
        let found = json!([
            {"type": "namespace", "name": "mcp__docs", "tools": [{"type": "function", "name": "f"}, {"type": "function", "name": "g"}]},
            {"type": "function", "name": "h"},
        ]);
        let says = "These tools were found, and can be called from now on:\nmcp__docs__f\nmcp__docs__g\nh";
        assert_eq!(result(found.as_array().expect("tools")), says);
        assert_eq!(result(&[]), "No tool was found.");
    }
}
