//! Anthropic's requests, as the chat of OpenAI's dialect that asks for the same: everything after it is one code. Fields of
//! the same name go over as they are, and are checked there.

use serde_json::{Map, Value, json};

use crate::http::error::ApiError;
use crate::http::fields::{Fields, shortened};
use crate::http::request_fields::{self, Field};
use crate::http::warnings::Warnings;

const MESSAGES: &str = request_fields::MESSAGES.name;
const TOOLS: &str = request_fields::TOOLS.name;
const CHOICE: &str = request_fields::TOOL_CHOICE.name;
const THINKING: &str = request_fields::THINKING.name;
const SYSTEM: &str = request_fields::SYSTEM.name;

/// What goes over as it is.
const SAME: [&Field; 7] = [
    &request_fields::MODEL,
    &request_fields::STREAM,
    &request_fields::OPENAI_TEMPERATURE,
    &request_fields::TOP_P,
    &request_fields::OPENAI_TOP_K,
    &request_fields::MAX_TOKENS,
    &request_fields::PRIORITY,
];

/// What the chat calls them, and this dialect.
pub const NAMES: [(&str, &str); 2] = [("response_format", "output_config"), ("stop", "stop_sequences")];

/// Accepted, and named in no warning: they ask for nothing of the text.
const WITHOUT_EFFECT: [&str; 3] = ["service_tier", "betas", "cache_control"];

/// A body of `/v1/chat/completions`, and what has no effect. `needs_limit`: `max_tokens` is required.
pub fn translated(fields: &Fields, needs_limit: bool) -> Result<(Value, Warnings), ApiError> {
    let mut body = Map::new();
    let mut put = |name: &str, value: Value| body.insert(name.to_owned(), value);
    for field in SAME {
        if let Some(value) = fields.tree(field)? {
            put(field.name, value);
        }
    }
    if needs_limit {
        fields.required(&request_fields::MAX_TOKENS, fields.raw(&request_fields::MAX_TOKENS))?;
    }
    let mut messages = Vec::new();
    if let Some(system) = fields.tree(&request_fields::SYSTEM)? {
        messages.push(json!({"role": "system", "content": text_of(SYSTEM, SYSTEM, &system)?}));
    }
    let given = fields.required(&request_fields::MESSAGES, fields.tree(&request_fields::MESSAGES)?)?;
    for (index, message) in given.as_array().into_iter().flatten().enumerate() {
        message_of(index, message, &mut messages)?;
    }
    put(MESSAGES, Value::Array(messages));
    if let Some(stop) = fields.tree(&request_fields::STOP_SEQUENCES)? {
        put(request_fields::STOP.name, stop);
    }
    if let Some(user) =
        fields.tree(&request_fields::ANTHROPIC_METADATA)?.and_then(|it| it.get("user_id").cloned())
        && !user.is_null()
    {
        put(request_fields::USER.name, user);
    }
    if let Some(Value::Array(tools)) = fields.tree(&request_fields::TOOLS)? {
        let tools = tools.iter().enumerate().map(|(index, tool)| tool_of(index, tool));
        put(TOOLS, Value::Array(tools.collect::<Result<_, _>>()?));
    }
    if let Some(choice) = fields.tree(&request_fields::TOOL_CHOICE)? {
        put(CHOICE, choice_of(&choice)?);
        if choice["disable_parallel_tool_use"] == true {
            put(request_fields::PARALLEL_TOOL_CALLS.name, json!(false));
        }
    }
    if let Some(thinking) = fields.tree(&request_fields::THINKING)? {
        let thinks = match thinking["type"].as_str() {
            Some("enabled" | "adaptive") => true,
            Some("disabled") => false,
            _ => {
                let text = format!("`{THINKING}.type` must be one of enabled, adaptive, disabled");
                return Err(ApiError::invalid(THINKING, text).given(shortened(&thinking["type"].to_string())));
            }
        };
        // As the templates of models that can do both call it.
        let variables = json!({"enable_thinking": thinks, "thinking": thinks});
        put(request_fields::CHAT_TEMPLATE_KWARGS.name, variables);
    }
    let format = match fields.tree(&request_fields::OUTPUT_CONFIG)? {
        Some(config) => config.get("format").cloned(),
        None => fields.tree(&request_fields::OUTPUT_FORMAT)?,
    };
    if let Some(format) = format.filter(|format| !format.is_null()) {
        if format["type"] != "json_schema" || !format["schema"].is_object() {
            let text = "`output_config.format` must be {\"type\": \"json_schema\", \"schema\": ...}";
            return Err(ApiError::invalid("output_config", text));
        }
        let schema = json!({"name": "output", "schema": format["schema"]});
        put(request_fields::RESPONSE_FORMAT.name, json!({"type": "json_schema", "json_schema": schema}));
    }
    let mut warnings = Warnings::default();
    let known = request_fields::anthropic_fields().into_iter().map(|field| field.name);
    let known: Vec<&str> = known.chain(WITHOUT_EFFECT).collect();
    warnings.unknown(fields, "", known.iter().copied());
    Ok((Value::Object(body), warnings))
}

fn wrong(field: &'static str, text: String) -> ApiError {
    ApiError::invalid(field, text)
}

/// A string, or blocks of text.
fn text_of(field: &'static str, path: &str, content: &Value) -> Result<String, ApiError> {
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(blocks) => {
            let text = |(index, block): (usize, &Value)| match block["text"].as_str() {
                Some(text) if block["type"] == "text" => Ok(text.to_owned()),
                _ => Err(wrong(field, format!("`{path}[{index}]` must be a block of text"))),
            };
            let texts: Vec<String> = blocks.iter().enumerate().map(text).collect::<Result<_, _>>()?;
            Ok(texts.join("\n"))
        }
        _ => Err(wrong(field, format!("`{path}` must be a string or a list of blocks"))),
    }
}

/// A message may become several: each result of a tool is one of its own.
fn message_of(index: usize, message: &Value, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    let path = format!("{MESSAGES}[{index}]");
    let Some(role @ ("user" | "assistant" | "system")) = message["role"].as_str() else {
        return Err(wrong(MESSAGES, format!("`{path}.role` must be user, assistant or system")));
    };
    let blocks = match &message["content"] {
        Value::String(text) => {
            messages.push(json!({"role": role, "content": text}));
            return Ok(());
        }
        Value::Array(blocks) => blocks,
        _ => return Err(wrong(MESSAGES, format!("`{path}.content` must be a string or a list of blocks"))),
    };
    let (mut texts, mut reasoning, mut calls) = (Vec::new(), String::new(), Vec::new());
    for (at, block) in blocks.iter().enumerate() {
        let path = format!("{path}.content[{at}]");
        let text = |name: &str| {
            let text = block[name].as_str();
            text.ok_or_else(|| wrong(MESSAGES, format!("`{path}.{name}` must be a string")))
        };
        match (block["type"].as_str(), role) {
            (Some("text"), _) => texts.push(text("text")?),
            (Some("thinking"), "assistant") => reasoning.push_str(text("thinking")?),
            (Some("redacted_thinking"), "assistant") => {}
            (Some("tool_use"), "assistant") => {
                let call = json!({"name": text("name")?, "arguments": block["input"]});
                calls.push(json!({"id": text("id")?, "type": "function", "function": call}));
            }
            (Some("tool_result"), "user") => {
                let content = match &block["content"] {
                    Value::Null => String::new(),
                    content => text_of(MESSAGES, &format!("{path}.content"), content)?,
                };
                messages
                    .push(json!({"role": "tool", "tool_call_id": text("tool_use_id")?, "content": content}));
            }
            (Some(kind), _) => {
                let kind = shortened(kind);
                let text = format!("`{path}` of type {kind:?} is not supported in a message of the {role}");
                return Err(wrong(MESSAGES, text));
            }
            (None, _) => return Err(wrong(MESSAGES, format!("`{path}.type` must be a string"))),
        }
    }
    if texts.is_empty() && calls.is_empty() && reasoning.is_empty() {
        // Results of tools alone, which are there already.
        if role == "user" && !blocks.is_empty() {
            return Ok(());
        }
        return Err(wrong(MESSAGES, format!("`{path}.content` must not be empty")));
    }
    let mut said = json!({"role": role, "content": texts.join("\n")});
    if !reasoning.is_empty() {
        said["reasoning_content"] = json!(reasoning);
    }
    if !calls.is_empty() {
        said["tool_calls"] = Value::Array(calls);
    }
    messages.push(said);
    Ok(())
}

fn tool_of(index: usize, tool: &Value) -> Result<Value, ApiError> {
    if !(tool["type"].is_null() || tool["type"] == "custom") {
        let text =
            format!("`{TOOLS}[{index}].type` must be \"custom\": this server runs no tools of its own");
        return Err(ApiError::invalid(TOOLS, text).given(shortened(&tool["type"].to_string())));
    }
    if !tool["input_schema"].is_object() {
        return Err(wrong(
            TOOLS,
            format!("`{TOOLS}[{index}].input_schema` must be an object, a JSON schema"),
        ));
    }
    let mut function = json!({"name": tool["name"], "parameters": tool["input_schema"]});
    for name in ["description", "strict"] {
        if !tool[name].is_null() {
            function[name] = tool[name].clone();
        }
    }
    Ok(json!({"type": "function", "function": function}))
}

fn choice_of(choice: &Value) -> Result<Value, ApiError> {
    Ok(match choice["type"].as_str() {
        Some("auto") => json!("auto"),
        Some("any") => json!("required"),
        Some("none") => json!("none"),
        Some("tool") => json!({"type": "function", "function": {"name": choice["name"]}}),
        _ => {
            let text = format!("`{CHOICE}.type` must be one of auto, any, tool, none");
            return Err(ApiError::invalid(CHOICE, text).given(shortened(&choice["type"].to_string())));
        }
    })
}
