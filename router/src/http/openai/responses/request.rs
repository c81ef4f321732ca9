//! A request to `/v1/responses`, as the chat that asks for the same: everything after it is one code. Fields of the same
//! name go over as they are, and are checked there.

use serde_json::{Map, Value, json};

use crate::http::error::ApiError;
use crate::http::fields::{Fields, shortened};
use crate::http::request_fields::{self, Field};
use crate::http::warnings::Warnings;

const INPUT: &str = request_fields::INPUT.name;
const TOOLS: &str = request_fields::TOOLS.name;
const CHOICE: &str = request_fields::TOOL_CHOICE.name;

/// What goes over as it is.
const SAME: [&Field; 16] = [
    &request_fields::MODEL,
    &request_fields::STREAM,
    &request_fields::OPENAI_TEMPERATURE,
    &request_fields::TOP_P,
    &request_fields::OPENAI_TOP_K,
    &request_fields::MIN_P,
    &request_fields::SEED,
    &request_fields::STOP,
    &request_fields::FREQUENCY_PENALTY,
    &request_fields::PRESENCE_PENALTY,
    &request_fields::PARALLEL_TOOL_CALLS,
    &request_fields::USER,
    &request_fields::PROMPT_CACHE_KEY,
    &request_fields::PRIORITY,
    &request_fields::SERVICE_TIER,
    &request_fields::CHAT_TEMPLATE_KWARGS,
];

/// What the chat calls them, and this dialect.
pub const NAMES: [(&str, &str); 3] =
    [("max_completion_tokens", "max_output_tokens"), ("messages", "input"), ("response_format", "text")];

/// What asks for something that a server without memory of answers has not.
const REFUSED: [(&str, &str); 4] = [
    ("previous_response_id", "no answer is kept: send the whole conversation as `input`"),
    ("conversation", "no conversation is kept: send it whole as `input`"),
    ("background", "answers are not kept, so they cannot be fetched later"),
    ("prompt", "there are no prompt templates here: send `input`"),
];

/// What is told back as it was given.
pub const ECHOED: [&str; 9] = [
    "instructions",
    "max_output_tokens",
    "metadata",
    "parallel_tool_calls",
    "temperature",
    "tool_choice",
    "tools",
    "top_p",
    "user",
];

/// What a request to this route is.
pub struct Translated {
    /// A body of `/v1/chat/completions`.
    pub chat: Value,
    /// Members of the answer that say what was asked.
    pub echo: Map<String, Value>,
    /// Tools that take a text instead of JSON.
    pub custom: Vec<String>,
    pub wants_logprobs: bool,
    pub warnings: Warnings,
}

pub fn translated(fields: &Fields) -> Result<Translated, ApiError> {
    let mut warnings = Warnings::default();
    for (name, why) in REFUSED {
        if fields.value(name).is_some_and(|value| value != false) {
            return Err(ApiError::invalid(name, format!("`{name}` is not supported: {why}")));
        }
    }
    let known = request_fields::responses_fields().into_iter().map(|field| field.name);
    let known: Vec<&str> = known.chain(REFUSED.map(|(name, _)| name)).collect();
    warnings.unknown(fields, "", known.iter().copied());
    let mut chat = Map::new();
    let mut put = |name: &str, value: Value| chat.insert(name.to_owned(), value);
    for field in SAME {
        if let Some(value) = fields.tree(field)? {
            put(field.name, value);
        }
    }
    if fields.boolean(&request_fields::STORE)? == Some(true) {
        warnings.no_effect("store", "here: no answer is kept");
    }
    if let Some(most) = fields.tree(&request_fields::MAX_OUTPUT_TOKENS)? {
        put(request_fields::MAX_COMPLETION_TOKENS.name, most);
    }
    let mut messages = Vec::new();
    if let Some(instructions) = fields.text(&request_fields::INSTRUCTIONS)? {
        messages.push(json!({"role": "system", "content": instructions}));
    }
    match fields.required(&request_fields::INPUT, fields.tree(&request_fields::INPUT)?)? {
        Value::String(text) => messages.push(json!({"role": "user", "content": text})),
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                item_of(index, item, &mut messages)?;
            }
        }
        other => {
            let error = ApiError::invalid(INPUT, format!("`{INPUT}` must be a string or a list of items"));
            return Err(error.given(shortened(&other.to_string())));
        }
    }
    put(request_fields::MESSAGES.name, Value::Array(messages));
    let mut custom = Vec::new();
    if let Some(Value::Array(tools)) = fields.tree(&request_fields::TOOLS)? {
        let tools = tools.iter().enumerate().map(|(index, tool)| tool_of(index, tool, &mut custom));
        put(TOOLS, Value::Array(tools.collect::<Result<_, _>>()?));
    }
    if let Some(mut choice) = fields.tree(&request_fields::TOOL_CHOICE)? {
        if choice["type"] == "custom" {
            choice["type"] = json!("function");
        }
        put(CHOICE, choice);
    }
    let text = fields.tree(&request_fields::TEXT)?;
    if let Some(format) = text.as_ref().and_then(|text| text.get("format")).filter(|format| !format.is_null())
    {
        let format = match format["type"].as_str() {
            Some("json_schema") => json!({"type": "json_schema", "json_schema": format}),
            _ => format.clone(),
        };
        put(request_fields::RESPONSE_FORMAT.name, format);
    }
    let reasoning = fields.tree(&request_fields::REASONING)?;
    if let Some(effort) = reasoning.as_ref().and_then(|reasoning| reasoning["effort"].as_str()) {
        put(request_fields::REASONING_EFFORT.name, json!(effort));
    }
    let include = fields.tree(&request_fields::INCLUDE)?.unwrap_or_default();
    let includes = |name: &str| include.as_array().is_some_and(|list| list.iter().any(|entry| entry == name));
    let wants_logprobs = includes("message.output_text.logprobs");
    if wants_logprobs {
        put(request_fields::LOGPROBS.name, json!(true));
        if let Some(top) = fields.tree(&request_fields::TOP_LOGPROBS)? {
            put(request_fields::TOP_LOGPROBS.name, top);
        }
    }
    let mut echo = Map::new();
    for name in ECHOED {
        let given = fields.value(name);
        echo.insert(name.to_owned(), given.unwrap_or_else(|| default_of(name)));
    }
    let raises = fields.limits().highest_priority < 0;
    if let Some(tier) = fields.value(request_fields::SERVICE_TIER.name)
        && (tier == "flex" || (tier == "priority" && raises))
    {
        echo.insert("service_tier".to_owned(), tier);
    }
    echo.insert("text".to_owned(), text.unwrap_or_else(|| json!({"format": {"type": "text"}})));
    echo.insert(
        "reasoning".to_owned(),
        reasoning.unwrap_or_else(|| json!({"effort": null, "summary": null})),
    );
    Ok(Translated { chat: Value::Object(chat), echo, custom, wants_logprobs, warnings })
}

fn default_of(name: &str) -> Value {
    match name {
        "metadata" => json!({}),
        "tools" => json!([]),
        "tool_choice" => json!("auto"),
        "parallel_tool_calls" => json!(true),
        "temperature" | "top_p" => json!(1.0),
        _ => Value::Null,
    }
}

fn wrong(field: &'static str, text: String) -> ApiError {
    ApiError::invalid(field, text)
}

/// The text of a message's content, or of a tool's output.
fn text_of(path: &str, content: &Value) -> Result<String, ApiError> {
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => {
            let mut all = String::new();
            for (index, part) in parts.iter().enumerate() {
                let text = match part["type"].as_str() {
                    Some("input_text" | "output_text" | "text" | "summary_text" | "reasoning_text") => {
                        &part["text"]
                    }
                    Some("refusal") => &part["refusal"],
                    Some(kind) => {
                        let kind = shortened(kind);
                        let text =
                            format!("`{path}[{index}]` of type {kind:?} is not supported yet: only text is");
                        return Err(wrong(INPUT, text));
                    }
                    None => return Err(wrong(INPUT, format!("`{path}[{index}].type` must be a string"))),
                };
                let text = text.as_str();
                all.push_str(
                    text.ok_or_else(|| wrong(INPUT, format!("`{path}[{index}].text` must be a string")))?,
                );
            }
            Ok(all)
        }
        _ => Err(wrong(INPUT, format!("`{path}` must be a string or a list of parts"))),
    }
}

/// Items that an answer had become one message again: its reasoning, its text, its calls.
fn item_of(index: usize, item: &Value, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    let path = format!("{INPUT}[{index}]");
    let text = |name: &str| {
        let text = item[name].as_str();
        text.ok_or_else(|| wrong(INPUT, format!("`{path}.{name}` must be a string")))
    };
    let kind = match item["type"].as_str() {
        None if item["role"].is_string() => "message",
        None => return Err(wrong(INPUT, format!("`{path}.type` must be a string"))),
        Some(kind) => kind,
    };
    match kind {
        "message" => {
            let role = match text("role")? {
                "developer" => "system",
                role => role,
            };
            let content = text_of(&format!("{path}.content"), &item["content"])?;
            if role == "assistant" {
                let message = open_answer(messages);
                // Two texts in a row are two messages.
                if message["content"].is_string() || message["tool_calls"].is_array() {
                    messages.push(json!({"role": role, "content": content}));
                } else {
                    message["content"] = json!(content);
                }
            } else {
                messages.push(json!({"role": role, "content": content}));
            }
        }
        "reasoning" => {
            let content = if item["content"].is_array() { &item["content"] } else { &item["summary"] };
            let reasoning =
                if content.is_null() { String::new() } else { text_of(&format!("{path}.content"), content)? };
            messages.push(json!({"role": "assistant", "content": null, "reasoning_content": reasoning}));
        }
        "function_call" | "custom_tool_call" => {
            let arguments = match kind {
                "function_call" => json!(text("arguments")?),
                _ => json!({"input": text("input")?}),
            };
            let function = json!({"name": text("name")?, "arguments": arguments});
            let call = json!({"id": text("call_id")?, "type": "function", "function": function});
            let message = open_answer(messages);
            match message["tool_calls"].as_array_mut() {
                Some(calls) => calls.push(call),
                None => message["tool_calls"] = json!([call]),
            }
        }
        "function_call_output" | "custom_tool_call_output" => {
            let content = text_of(&format!("{path}.output"), &item["output"])?;
            messages.push(json!({"role": "tool", "tool_call_id": text("call_id")?, "content": content}));
        }
        kind => {
            let kind = shortened(kind);
            return Err(wrong(INPUT, format!("`{path}` of type {kind:?} is not supported")));
        }
    }
    Ok(())
}

/// The assistant's message that further items of an answer belong to.
fn open_answer(messages: &mut Vec<Value>) -> &mut Value {
    if messages.last().is_none_or(|message| message["role"] != "assistant") {
        messages.push(json!({"role": "assistant", "content": null}));
    }
    let last = messages.len() - 1;
    &mut messages[last]
}

fn tool_of(index: usize, tool: &Value, custom: &mut Vec<String>) -> Result<Value, ApiError> {
    let mut function = json!({"name": tool["name"]});
    for name in ["description", "strict"] {
        if !tool[name].is_null() {
            function[name] = tool[name].clone();
        }
    }
    match tool["type"].as_str() {
        Some("function") => function["parameters"] = tool["parameters"].clone(),
        Some("custom") => {
            let mut input = json!({"type": "string"});
            let format = &tool["format"];
            match (format["type"].as_str(), format["syntax"].as_str()) {
                (None | Some("text"), _) => {}
                (Some("grammar"), Some("regex")) => {
                    input["pattern"] =
                        json!(format!("^({})$", format["definition"].as_str().unwrap_or_default()));
                }
                _ => {
                    let text = format!(
                        "`{TOOLS}[{index}].format` must be of text, or a grammar with the syntax `regex`"
                    );
                    return Err(ApiError::invalid(TOOLS, text).given(shortened(&format.to_string())));
                }
            }
            function["parameters"] = json!({
                "type": "object",
                "properties": {"input": input},
                "required": ["input"],
                "additionalProperties": false,
            });
            custom.extend(tool["name"].as_str().map(str::to_owned));
        }
        _ => {
            let text = format!(
                "`{TOOLS}[{index}].type` must be function or custom: this server runs no tools of its own"
            );
            return Err(ApiError::invalid(TOOLS, text).given(shortened(&tool["type"].to_string())));
        }
    }
    Ok(json!({"type": "function", "function": function}))
}
