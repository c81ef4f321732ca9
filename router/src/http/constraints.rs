//! The fields that constrain a text: grammars, response formats, tools. They are read and checked as if they
//! were served; what is in order is then refused as "not supported yet".

use std::collections::HashSet;

use serde_json::Value;

use crate::http::error::ApiError;
use crate::http::fields::{Fields, checked_name, shortened};
use crate::http::request_fields::{self, Field};

/// `grammar` of TGI's routes.
pub fn refuse_grammar(fields: &Fields) -> Result<(), ApiError> {
    match fields.tree(&request_fields::GRAMMAR)? {
        None => Ok(()),
        Some(grammar) => {
            check_format(request_fields::GRAMMAR.name, &grammar, &TGI_TYPES)?;
            Err(ApiError::not_supported_yet(request_fields::GRAMMAR.name))
        }
    }
}

/// `response_format`, `tools` and `tool_choice` of OpenAI's routes.
pub fn refuse_openai(fields: &Fields) -> Result<(), ApiError> {
    const FORMAT: &str = request_fields::RESPONSE_FORMAT.name;
    if let Some(format) = fields.tree(&request_fields::RESPONSE_FORMAT)? {
        check_format(FORMAT, &format, &ALL_TYPES)?;
        if format["type"] != "text" {
            let message = "`response_format` other than {\"type\": \"text\"} is not supported yet";
            return Err(ApiError::invalid(FORMAT, message));
        }
    }
    let names = tools(fields)?;
    let choice = tool_choice(fields)?;
    if let Choice::Function(wanted) = &choice
        && !names.contains(wanted.as_str())
    {
        let message = format!("`tool_choice` names a tool that is not in `tools`: {}", shortened(wanted));
        return Err(ApiError::invalid(request_fields::TOOL_CHOICE.name, message));
    }
    match choice {
        Choice::None => Ok(()),
        Choice::Auto if names.is_empty() => Ok(()),
        Choice::Required if names.is_empty() => Err(ApiError::invalid(
            request_fields::TOOL_CHOICE.name,
            "`tool_choice` \"required\" needs `tools`",
        )),
        _ => Err(ApiError::not_supported_yet(request_fields::TOOLS.name)),
    }
}

const TGI_TYPES: [&str; 4] = ["json", "json_object", "json_schema", "regex"];
const ALL_TYPES: [&str; 5] = ["text", "json", "json_object", "json_schema", "regex"];

/// OpenAI's shapes and TGI's `{"type", "value"}`.
fn check_format(name: &'static str, format: &Value, types: &[&str]) -> Result<(), ApiError> {
    let wrong = |text: String| Err(ApiError::invalid(name, text));
    if !format.is_object() {
        let error = ApiError::invalid(name, format!("`{name}` must be an object"));
        return Err(error.given(shortened(&format.to_string())));
    }
    let kind = format["type"].as_str().filter(|kind| types.contains(kind));
    let value = format.get("value").filter(|value| !value.is_null());
    match (kind, value) {
        (None, _) => {
            let text = format!("`{name}.type` must be one of {}", types.join(", "));
            Err(ApiError::invalid(name, text).given(shortened(&format["type"].to_string())))
        }
        (Some("regex"), Some(value)) if value.is_string() => Ok(()),
        (Some("regex"), _) => wrong(format!("`{name}.value` must be a string, the regular expression")),
        (Some("json" | "json_object"), Some(value)) => match value {
            Value::Object(_) => Ok(()),
            Value::String(text)
                if serde_json::from_str::<Value>(text).is_ok_and(|schema| schema.is_object()) =>
            {
                Ok(())
            }
            _ => wrong(format!("`{name}.value` must be a JSON schema, an object or a string that holds one")),
        },
        // TGI knows `json` only with a schema; OpenAI's `json_object` is any object.
        (Some("json"), None) => wrong(format!("`{name}.value` is required: the JSON schema")),
        (Some("json_schema"), _) => {
            let schema = value.or_else(|| format.get("json_schema"));
            match schema.and_then(|schema| schema.get("schema")) {
                Some(Value::Object(_) | Value::Bool(_)) => Ok(()),
                _ => wrong(format!("`{name}.json_schema.schema` must be an object, the JSON schema")),
            }
        }
        _ => Ok(()),
    }
}

/// The names of the functions in `tools`.
fn tools(fields: &Fields) -> Result<HashSet<String>, ApiError> {
    let Some(Value::Array(tools)) = fields.tree(&request_fields::TOOLS)? else { return Ok(HashSet::new()) };
    let mut names = HashSet::with_capacity(tools.len());
    for (index, tool) in tools.iter().enumerate() {
        let wrong = |text: String| Err(ApiError::invalid(request_fields::TOOLS.name, text));
        if tool["type"] != "function" {
            let text = format!("`tools[{index}].type` must be \"function\"");
            let given = tool["type"].to_string();
            return Err(ApiError::invalid(request_fields::TOOLS.name, text).given(shortened(&given)));
        }
        let function = &tool["function"];
        let Some(name) = function["name"].as_str().filter(|name| !name.is_empty()) else {
            return wrong(format!("`tools[{index}].function.name` must be a string that is not empty"));
        };
        checked_name(request_fields::TOOLS.name, &format!("tools[{index}].function.name"), name)?;
        if !names.insert(name.to_string()) {
            return wrong(format!("`tools[{index}].function.name` is the same as another tool's"));
        }
        if !(function["description"].is_null() || function["description"].is_string()) {
            return wrong(format!("`tools[{index}].function.description` must be a string"));
        }
        // TGI's own clients say `arguments`. OpenAI allows for functions that take nothing.
        for schema in ["parameters", "arguments"] {
            if !(function[schema].is_null() || function[schema].is_object()) {
                return wrong(format!("`tools[{index}].function.{schema}` must be an object, a JSON schema"));
            }
        }
    }
    Ok(names)
}

enum Choice {
    Auto,
    None,
    Required,
    Function(String),
}

fn tool_choice(fields: &Fields) -> Result<Choice, ApiError> {
    const FIELD: &Field = &request_fields::TOOL_CHOICE;
    let named = |name: &str| checked_name(FIELD.name, FIELD.name, name);
    Ok(match fields.tree(FIELD)? {
        None => Choice::Auto,
        Some(Value::String(word)) => match word.as_str() {
            "auto" => Choice::Auto,
            "none" => Choice::None,
            "required" => Choice::Required,
            // TGI's way to name a function.
            _ => {
                named(&word)?;
                Choice::Function(word)
            }
        },
        Some(choice) => match choice["function"]["name"].as_str() {
            Some(name) if choice["type"] == "function" => {
                named(name)?;
                Choice::Function(name.to_string())
            }
            _ => {
                let given = choice.to_string();
                let text = "`tool_choice` must be \"auto\", \"none\", \"required\", the name of a function, or \
                            {\"type\": \"function\", \"function\": {\"name\": ...}}";
                return Err(ApiError::invalid(FIELD.name, text).given(shortened(&given)));
            }
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::fields::tests::limits;

    fn refusal(body: &str) -> String {
        let limits = limits();
        let fields = Fields::parse(body.as_bytes(), &limits).expect("JSON");
        refuse_openai(&fields)
            .and_then(|()| refuse_grammar(&fields))
            .err()
            .unwrap_or_else(|| panic!("{body} was taken"))
            .to_string()
    }

    #[test]
    fn what_is_in_order_is_not_supported_yet() {
        let schema = r#"{"type": "object", "properties": {}}"#;
        for format in [
            r#"{"type": "json_object"}"#.to_string(),
            format!(r#"{{"type": "json_object", "value": {schema}}}"#),
            format!(r#"{{"type": "json", "value": {schema}}}"#),
            r#"{"type": "json", "value": "{\"type\": \"string\"}"}"#.into(),
            format!(r#"{{"type": "json_schema", "json_schema": {{"name": "x", "schema": {schema}}}}}"#),
            format!(r#"{{"type": "json_schema", "value": {{"schema": {schema}}}}}"#),
            r#"{"type": "regex", "value": "[a-z]+"}"#.into(),
        ] {
            let refused = refusal(&format!("{{\"response_format\": {format}}}"));
            assert!(refused.contains("not supported yet"), "{format}: {refused}");
            let refused = refusal(&format!("{{\"grammar\": {format}}}"));
            assert_eq!(refused, "`grammar` is not supported yet", "{format}");
        }
        for tools in [
            r#""tools": [{"type": "function", "function": {"name": "f"}}]"#,
            r#""tools": [{"type": "function", "function": {"name": "f", "arguments": {}}}], "tool_choice": "f""#,
            r#""tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
                "tool_choice": {"type": "function", "function": {"name": "f"}}"#,
        ] {
            assert_eq!(refusal(&format!("{{{tools}}}")), "`tools` is not supported yet");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let long = "f".repeat(257);
        for (body, text) in [
            (r#"{"response_format": {"type": "yaml"}}"#, "`response_format.type` must be one of text, json,"),
            (r#"{"response_format": {}}"#, "`response_format.type`"),
            (r#"{"response_format": {"type": "json"}}"#, "`response_format.value` is required"),
            (
                r#"{"response_format": {"type": "json", "value": "{"}}"#,
                "`response_format.value` must be a JSON",
            ),
            (r#"{"response_format": {"type": "regex"}}"#, "`response_format.value` must be a string"),
            (r#"{"response_format": {"type": "json_schema"}}"#, "`response_format.json_schema.schema`"),
            (r#"{"response_format": 5}"#, "`response_format` must be an object. Given: 5"),
            (r#"{"grammar": {"type": "text"}}"#, "`grammar.type` must be one of json, json_object"),
            (r#"{"grammar": "x"}"#, "`grammar` must be an object"),
            (r#"{"tools": 5}"#, "`tools` must be a list. Given: 5"),
            (r#"{"tools": [5]}"#, "`tools[0].type` must be"),
            (r#"{"tools": [{"type": "function"}]}"#, "`tools[0].function.name` must be a string"),
            (
                r#"{"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}"#,
                "`tools[0].function.parameters` must be an object",
            ),
            (r#"{"tool_choice": "f"}"#, "`tool_choice` names a tool that is not in `tools`: f"),
            (r#"{"tool_choice": "required"}"#, "`tool_choice` \"required\" needs `tools`"),
            (r#"{"tool_choice": 5}"#, "`tool_choice` must be"),
            (
                r#"{"tools": [{"type": "function", "function": {"name": "f"}},
                              {"type": "function", "function": {"name": "f"}}]}"#,
                "`tools[1].function.name` is the same as another tool's",
            ),
            (
                format!(r#"{{"tools": [{{"type": "function", "function": {{"name": "{long}"}}}}]}}"#)
                    .as_str(),
                "`tools[0].function.name` must have at most 256 characters. Given: 257 characters",
            ),
            (
                format!(r#"{{"tool_choice": "{long}"}}"#).as_str(),
                "`tool_choice` must have at most 256 characters. Given: 257 characters",
            ),
        ] {
            let refused = refusal(body);
            assert!(refused.contains(text), "{body}: {refused}");
        }
    }

    #[test]
    fn what_asks_for_nothing_is_taken() {
        let limits = limits();
        for body in [
            "{}",
            r#"{"tools": [], "tool_choice": "auto", "response_format": {"type": "text"}}"#,
            r#"{"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"}"#,
        ] {
            let fields = Fields::parse(body.as_bytes(), &limits).expect("JSON");
            assert_eq!(refuse_openai(&fields), Ok(()), "{body}");
        }
    }
}
