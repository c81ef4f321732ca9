//! The items of `input` of `/v1/responses`, read as messages of a chat and as tools.

use std::borrow::Cow;
use std::collections::HashSet;

use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

use crate::http::chats::functions::{Namespaced, TOOL_SEARCH, ToolList};
use crate::http::chats::messages::append;
use crate::http::chats::object::{Object, objects};
use crate::http::chats::unseen::{Kind, Unseen};
use crate::http::error::{ApiError, Place};
use crate::http::fields::Fields;
use crate::http::openai::chat::no_text;
use crate::http::openai::responses::{encrypted_content, search};
use crate::http::request_fields::{self, Most};
use crate::http::shortened::shortened;
use crate::http::warnings::Warnings;

const INPUT: &str = request_fields::INPUT.name;

/// An item of `input`.
#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum InputItem<'a> {
    /// Its `type` may be left out.
    #[schemars(transform = leave_out_type)]
    Message {
        role: Role,
        content: Texts<'a>,
    },
    /// As an answer had it.
    Reasoning {
        summary: Option<Vec<PartParam<'a>>>,
        content: Option<Vec<PartParam<'a>>>,
        /// Read where `content` is not there, and where this server has written it. Of another it is left out, and named in `warnings`.
        encrypted_content: Option<&'a str>,
    },
    FunctionCall {
        call_id: &'a str,
        /// Of a function that stands in one.
        namespace: Option<&'a str>,
        name: &'a str,
        /// JSON.
        arguments: &'a str,
    },
    CustomToolCall {
        call_id: &'a str,
        /// Of a tool that stands in one.
        namespace: Option<&'a str>,
        name: &'a str,
        input: &'a str,
    },
    FunctionCallOutput {
        call_id: &'a str,
        output: Output<'a>,
    },
    CustomToolCallOutput {
        call_id: &'a str,
        output: Output<'a>,
    },
    /// Beside those of `tools`. Of two with one name the later one counts.
    AdditionalTools {
        tools: &'a [Value],
    },
    /// A call of Codex' older shell: to the model a function `local_shell`.
    LocalShellCall {
        call_id: &'a str,
        #[schemars(with = "serde_json::Map<String, Value>")]
        action: &'a Value,
    },
    /// What one of Codex' agents says to another: a message of the user. Left out, and named in `warnings`, where it is encrypted.
    AgentMessage {
        author: &'a str,
        recipient: &'a str,
        content: Vec<AgentPartParam<'a>>,
    },
    /// Beside those of `tools`, as `additional_tools`. Of a search that the client made it is the result as well.
    ToolSearchOutput {
        execution: Option<&'a str>,
        call_id: Option<&'a str>,
        tools: &'a [Value],
    },
    /// A search for tools that the client made (`execution`: `client`): to the model a call of `tool_search`. Left out, and named in `warnings`, where a server made it.
    ToolSearchCall {
        execution: Option<&'a str>,
        call_id: Option<&'a str>,
        #[schemars(with = "Option<Map<String, Value>>")]
        arguments: &'a Value,
    },
    /// Left out, and named in `warnings`.
    Compaction {},
    /// Left out, and named in `warnings`.
    CompactionSummary {},
    /// Left out, and named in `warnings`.
    ContextCompaction {},
    /// Left out, and named in `warnings`.
    WebSearchCall {},
    /// Left out, and named in `warnings`.
    ImageGenerationCall {},
    /// Left out, and named in `warnings`.
    ConfigurationUpdate {},
}

impl InputItem<'_> {
    /// What is left out of it and why, where something is. OpenAI's servers write such items, or Codex for them, and a session that
    /// goes on here has them in each of its requests.
    fn left_out(&self, item: &Object) -> Option<(Place, &'static str)> {
        let whole = |why| Some((item.place.clone(), why));
        match self {
            Self::Reasoning { encrypted_content: Some(given), .. }
                if encrypted_content::read(given).is_none() =>
            {
                let why = "only the server that wrote it can read it, and the model is told what `content` or `summary` says";
                Some((item.at("encrypted_content"), why))
            }
            Self::Compaction {} | Self::CompactionSummary {} | Self::ContextCompaction {} => whole(
                "only the server that wrote it can read it, and the model is not told what it stands for",
            ),
            Self::AgentMessage { content, .. } if AgentPartParam::texts(content).is_none() => whole(
                "only the server that wrote it can read it, and the model is not told what an agent said",
            ),
            Self::WebSearchCall {} => {
                whole("what was found is not in it, and the model is not told of the search")
            }
            Self::ToolSearchCall { execution, call_id, .. }
                if search::of_client(*execution, *call_id).is_none() =>
            {
                whole("the model is not told of the search, only of the tools that were found")
            }
            Self::ImageGenerationCall {} => {
                whole("only text is supported, and the model is not told of the image")
            }
            Self::ConfigurationUpdate {} => whole("`reasoning` says how to reason"),
            _ => None,
        }
    }
}

fn leave_out_type(schema: &mut Schema) {
    if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|name| name != "type");
    }
}

#[derive(Clone, Copy, JsonSchema, PartialEq, Eq)]
#[schemars(inline, rename_all = "snake_case")]
pub enum Role {
    User,
    Assistant,
    System,
    Developer,
}

/// A text, or its parts.
#[derive(JsonSchema)]
#[schemars(inline, untagged)]
pub enum Texts<'a> {
    Text(&'a str),
    Parts(Vec<PartParam<'a>>),
}

/// A part of a text.
#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum PartParam<'a> {
    InputText { text: &'a str },
    OutputText { text: &'a str },
    Text { text: &'a str },
    SummaryText { text: &'a str },
    ReasoningText { text: &'a str },
    Refusal { refusal: &'a str },
}

/// A part of what an agent says.
#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum AgentPartParam<'a> {
    InputText { text: &'a str },
    EncryptedContent {},
}

impl<'a> AgentPartParam<'a> {
    fn read(part: Object<'a>) -> Result<Self, ApiError> {
        Ok(match part.kind()? {
            "input_text" => Self::InputText { text: part.text("text")? },
            "encrypted_content" => Self::EncryptedContent {},
            kind => return Err(no_text(part.place.clone(), kind)),
        })
    }

    /// All of them, where none is encrypted.
    fn texts(parts: &[Self]) -> Option<String> {
        let text = |part: &Self| match part {
            Self::InputText { text } => Some(*text),
            Self::EncryptedContent {} => None,
        };
        parts.iter().map(text).collect()
    }
}

/// What a tool returned: a text, or its parts.
#[derive(JsonSchema)]
#[schemars(inline, untagged)]
pub enum Output<'a> {
    Text(&'a str),
    Parts(Vec<OutputPartParam<'a>>),
}

#[derive(JsonSchema)]
#[schemars(inline, untagged)]
pub enum OutputPartParam<'a> {
    Text(PartParam<'a>),
    Unseen(UnseenParam),
}

/// A part of what a tool returned, of which the model is only told that there was one.
#[derive(Clone, Copy, JsonSchema)]
#[schemars(tag = "type")]
pub enum UnseenParam {
    #[schemars(rename = "input_image")]
    Image {},
    #[schemars(rename = "input_file")]
    File {},
    #[schemars(rename = "input_audio")]
    Audio {},
}

impl UnseenParam {
    fn of(kind: &str) -> Option<Self> {
        match kind {
            "input_image" => Some(Self::Image {}),
            "input_file" => Some(Self::File {}),
            "input_audio" => Some(Self::Audio {}),
            _ => None,
        }
    }

    fn kind(self) -> Kind {
        match self {
            Self::Image {} => Kind::Image,
            Self::File {} => Kind::File,
            Self::Audio {} => Kind::Audio,
        }
    }
}

impl<'a> Output<'a> {
    fn read(item: &Object<'a>, unseen: &mut Unseen) -> Result<Self, ApiError> {
        const OUTPUT: &str = "output";
        match item.value(OUTPUT) {
            Value::String(text) => Ok(Self::Text(text)),
            Value::Array(parts) => {
                let parts = objects(&item.at(OUTPUT), parts);
                let parts = parts.map(|part| OutputPartParam::read(part?, unseen));
                parts.collect::<Result<_, _>>().map(Self::Parts)
            }
            _ => Err(item.wrong(OUTPUT, "must be a string or a list of parts")),
        }
    }

    fn joined(self) -> String {
        match self {
            Self::Text(text) => text.to_owned(),
            Self::Parts(parts) => parts.iter().map(OutputPartParam::text).collect(),
        }
    }
}

impl<'a> OutputPartParam<'a> {
    fn read(part: Object<'a>, unseen: &mut Unseen) -> Result<Self, ApiError> {
        Ok(match UnseenParam::of(part.kind()?) {
            Some(param) => {
                unseen.add(&part.place, param.kind());
                Self::Unseen(param)
            }
            None => Self::Text(PartParam::read(part)?),
        })
    }

    fn text(&self) -> Cow<'a, str> {
        match self {
            Self::Text(part) => part.text().into(),
            Self::Unseen(param) => param.kind().text().into(),
        }
    }
}

impl<'a> PartParam<'a> {
    fn read(part: Object<'a>) -> Result<Self, ApiError> {
        let text = || part.text("text");
        Ok(match part.kind()? {
            "input_text" => Self::InputText { text: text()? },
            "output_text" => Self::OutputText { text: text()? },
            "text" => Self::Text { text: text()? },
            "summary_text" => Self::SummaryText { text: text()? },
            "reasoning_text" => Self::ReasoningText { text: text()? },
            "refusal" => Self::Refusal { refusal: part.text("refusal")? },
            kind => return Err(no_text(part.place.clone(), kind)),
        })
    }

    fn list(place: &Place, parts: &'a [Value]) -> Result<Vec<Self>, ApiError> {
        objects(place, parts).map(|part| Self::read(part?)).collect()
    }

    fn text(&self) -> &'a str {
        match self {
            Self::InputText { text }
            | Self::OutputText { text }
            | Self::Text { text }
            | Self::SummaryText { text }
            | Self::ReasoningText { text }
            | Self::Refusal { refusal: text } => text,
        }
    }
}

impl<'a> Texts<'a> {
    fn read(of: &Object<'a>, name: &'static str) -> Result<Self, ApiError> {
        match of.value(name) {
            Value::String(text) => Ok(Self::Text(text)),
            Value::Array(parts) => PartParam::list(&of.at(name), parts).map(Self::Parts),
            _ => Err(of.wrong(name, "must be a string or a list of parts")),
        }
    }

    fn joined(self) -> String {
        match self {
            Self::Text(text) => text.to_owned(),
            Self::Parts(parts) => parts.iter().map(PartParam::text).collect(),
        }
    }
}

impl<'a> InputItem<'a> {
    fn read(item: &Object<'a>, unseen: &mut Unseen) -> Result<Self, ApiError> {
        let parts = |name: &'static str| match item.get(name) {
            None => Ok(None),
            Some(Value::Array(parts)) => PartParam::list(&item.at(name), parts).map(Some),
            Some(_) => Err(item.wrong(name, "must be a list of parts")),
        };
        let optional = |name: &'static str| item.get(name).map(|_| item.text(name)).transpose();
        let namespace = || optional("namespace");
        let tools = || match item.value("tools") {
            Value::Array(tools) => Ok(&tools[..]),
            _ => Err(item.wrong("tools", "must be a list of tools")),
        };
        let kind = match item.get("type") {
            None if item.get("role").is_some() => "message",
            _ => item.kind()?,
        };
        Ok(match kind {
            "message" => Self::Message {
                role: match item.text("role")? {
                    "user" => Role::User,
                    "assistant" => Role::Assistant,
                    "system" => Role::System,
                    "developer" => Role::Developer,
                    _ => return Err(item.wrong("role", "must be user, assistant, system or developer")),
                },
                content: Texts::read(item, "content")?,
            },
            "reasoning" => Self::Reasoning {
                summary: parts("summary")?,
                content: parts("content")?,
                encrypted_content: optional("encrypted_content")?.filter(|given| !given.is_empty()),
            },
            "function_call" => Self::FunctionCall {
                call_id: item.text("call_id")?,
                namespace: namespace()?,
                name: item.text("name")?,
                arguments: item.text("arguments")?,
            },
            "custom_tool_call" => Self::CustomToolCall {
                call_id: item.text("call_id")?,
                namespace: namespace()?,
                name: item.text("name")?,
                input: item.text("input")?,
            },
            "function_call_output" => Self::FunctionCallOutput {
                call_id: item.text("call_id")?,
                output: Output::read(item, unseen)?,
            },
            "custom_tool_call_output" => Self::CustomToolCallOutput {
                call_id: item.text("call_id")?,
                output: Output::read(item, unseen)?,
            },
            "additional_tools" => Self::AdditionalTools { tools: tools()? },
            "tool_search_output" => Self::ToolSearchOutput {
                execution: optional("execution")?,
                call_id: optional("call_id")?,
                tools: tools()?,
            },
            "local_shell_call" => match item.value("action") {
                action @ Value::Object(_) => Self::LocalShellCall { call_id: item.text("call_id")?, action },
                _ => return Err(item.wrong("action", "must be an object")),
            },
            "agent_message" => Self::AgentMessage {
                author: item.text("author")?,
                recipient: item.text("recipient")?,
                content: match item.value("content") {
                    Value::Array(parts) => objects(&item.at("content"), parts)
                        .map(|part| AgentPartParam::read(part?))
                        .collect::<Result<_, _>>()?,
                    _ => return Err(item.wrong("content", "must be a list of parts")),
                },
            },
            "tool_search_call" => {
                let (execution, call_id) = (optional("execution")?, optional("call_id")?);
                let arguments = item.value("arguments");
                if search::of_client(execution, call_id).is_some() && !arguments.is_object() {
                    return Err(item.wrong("arguments", "must be an object"));
                }
                Self::ToolSearchCall { execution, call_id, arguments }
            }
            "compaction" => Self::Compaction {},
            "compaction_summary" => Self::CompactionSummary {},
            "context_compaction" => Self::ContextCompaction {},
            "web_search_call" => Self::WebSearchCall {},
            "image_generation_call" => Self::ImageGenerationCall {},
            "configuration_update" => Self::ConfigurationUpdate {},
            "item_reference" => {
                let text = "of type \"item_reference\" is not supported: no answer is kept, so the item itself has to be \
                            sent, as clients do that are told `store: false`";
                return Err(ApiError::invalid(&item.place, text));
            }
            kind => {
                let text = format!("of type {:?} is not supported", shortened(kind));
                return Err(ApiError::invalid(&item.place, text));
            }
        })
    }

    /// The id of the call that it is.
    fn call(&self) -> Option<&'a str> {
        match self {
            Self::FunctionCall { call_id, .. }
            | Self::CustomToolCall { call_id, .. }
            | Self::LocalShellCall { call_id, .. } => Some(*call_id),
            Self::ToolSearchCall { execution, call_id, .. } => search::of_client(*execution, *call_id),
            _ => None,
        }
    }

    /// The id of the call whose result it is.
    fn result_of(&self) -> Option<&'a str> {
        match self {
            Self::FunctionCallOutput { call_id, .. } | Self::CustomToolCallOutput { call_id, .. } => {
                Some(*call_id)
            }
            Self::ToolSearchOutput { execution, call_id, .. } => search::of_client(*execution, *call_id),
            _ => None,
        }
    }

    /// Items that an answer had become one message again: its reasoning, its text, its calls.
    fn add_to(self, messages: &mut Vec<Value>) {
        match self {
            Self::Message { role: Role::Assistant, content } => {
                let content = content.joined();
                let message = open_answer(messages);
                let has_calls = message["tool_calls"].is_array();
                match message["content"].as_str().filter(|said| !has_calls || !said.is_empty()) {
                    None => message["content"] = json!(content),
                    // Templates take no message between a call and its result, and words behind a call stand before it, as in chats.
                    Some(_) if has_calls && content.is_empty() => {}
                    Some(_) if has_calls => append(&mut message["content"], "\n\n", &content),
                    // Two texts in a row are two messages.
                    Some(_) => messages.push(json!({"role": "assistant", "content": content})),
                }
            }
            Self::Message { role, content } => {
                let role = if role == Role::User { "user" } else { "system" };
                messages.push(json!({"role": role, "content": content.joined()}));
            }
            Self::Reasoning { summary, content, encrypted_content } => {
                let content = content.filter(|parts| !parts.is_empty());
                let own = encrypted_content.filter(|_| content.is_none()).and_then(encrypted_content::read);
                let parts = content.or(summary).unwrap_or_default();
                let reasoning = match own {
                    Some(reasoning) => reasoning.to_owned(),
                    None => parts.iter().map(PartParam::text).collect(),
                };
                // Of OpenAI's servers most have no text, and a turn that nothing was said in would be shown to the model as one.
                if !reasoning.is_empty() {
                    let message =
                        json!({"role": "assistant", "content": null, "reasoning_content": reasoning});
                    messages.push(message);
                }
            }
            Self::FunctionCall { call_id, namespace, name, arguments } => {
                add_call(messages, call_id, namespace, name, json!(arguments));
            }
            Self::CustomToolCall { call_id, namespace, name, input } => {
                add_call(messages, call_id, namespace, name, json!({"input": input}));
            }
            Self::FunctionCallOutput { call_id, output } | Self::CustomToolCallOutput { call_id, output } => {
                add_result(messages, call_id, output.joined());
            }
            Self::LocalShellCall { call_id, action } => {
                add_call(messages, call_id, None, "local_shell", action.clone());
            }
            Self::AgentMessage { author, recipient, content } => {
                if let Some(text) = AgentPartParam::texts(&content) {
                    let content = format!("[{author} to {recipient}]\n{text}");
                    messages.push(json!({"role": "user", "content": content}));
                }
            }
            Self::ToolSearchCall { execution, call_id, arguments } => {
                if let Some(id) = search::of_client(execution, call_id) {
                    add_call(messages, id, None, TOOL_SEARCH, arguments.clone());
                }
            }
            Self::ToolSearchOutput { execution, call_id, tools } => {
                if let Some(id) = search::of_client(execution, call_id) {
                    add_result(messages, id, search::result(tools));
                }
            }
            Self::AdditionalTools { .. }
            | Self::Compaction {}
            | Self::CompactionSummary {}
            | Self::ContextCompaction {}
            | Self::WebSearchCall {}
            | Self::ImageGenerationCall {}
            | Self::ConfigurationUpdate {} => {}
        }
    }
}

/// A call, of the name that the model knows.
fn add_call(messages: &mut Vec<Value>, id: &str, namespace: Option<&str>, name: &str, arguments: Value) {
    let name = match namespace {
        Some(namespace) => Namespaced::new(namespace, name).shown,
        None => name.to_owned(),
    };
    let function = json!({"name": name, "arguments": arguments});
    let call = json!({"id": id, "type": "function", "function": function});
    let message = open_answer(messages);
    match message["tool_calls"].as_array_mut() {
        Some(calls) => calls.push(call),
        None => message["tool_calls"] = json!([call]),
    }
}

fn add_result(messages: &mut Vec<Value>, id: &str, content: String) {
    join_thought(messages);
    messages.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
}

/// A thought behind calls is of the message with these: templates take no message between a call and its result.
fn join_thought(messages: &mut Vec<Value>) {
    let [.., calls, thought] = &messages[..] else { return };
    let is_answer = |message: &Value| message["role"] == "assistant";
    let is_alone = is_answer(thought) && thought["content"].is_null() && thought["tool_calls"].is_null();
    if !(is_alone && is_answer(calls) && calls["tool_calls"].is_array()) {
        return;
    }
    let thought = messages.pop().map(|mut thought| thought["reasoning_content"].take());
    let (Some(Value::String(text)), Some(Value::Object(calls))) = (thought, messages.last_mut()) else {
        return;
    };
    if !text.is_empty() {
        let before = calls.entry("reasoning_content").or_insert_with(|| "".into());
        let between = if before.as_str() == Some("") { "" } else { "\n\n" };
        append(before, between, &text);
    }
}

/// The assistant's message that further items of an answer belong to.
fn open_answer(messages: &mut Vec<Value>) -> &mut Value {
    join_thought(messages);
    if messages.last().is_none_or(|message| message["role"] != "assistant") {
        messages.push(json!({"role": "assistant", "content": null}));
    }
    let last = messages.len() - 1;
    &mut messages[last]
}

/// What agents say while calls have no result yet: templates take no message between these, so it comes behind the last result.
#[derive(Default)]
struct Late<'a> {
    calls: HashSet<&'a str>,
    said: Vec<Value>,
}

impl<'a> Late<'a> {
    fn add(&mut self, item: InputItem<'a>, messages: &mut Vec<Value>) {
        let mut is_late = false;
        match &item {
            InputItem::AgentMessage { .. } => is_late = !self.calls.is_empty(),
            // What has no result by now has none.
            InputItem::Message { role, .. } if *role != Role::Assistant => {
                self.calls.clear();
                messages.append(&mut self.said);
            }
            item => {
                self.calls.extend(item.call());
                if let Some(call) = item.result_of() {
                    self.calls.remove(call);
                }
            }
        }
        item.add_to(if is_late { &mut self.said } else { messages });
        if self.calls.is_empty() {
            messages.append(&mut self.said);
        }
    }
}

/// What is left out, by why it is: the first place, and how many more.
#[derive(Default)]
struct LeftOut(Vec<(&'static str, Place, usize)>);

impl LeftOut {
    fn add(&mut self, why: &'static str, place: Place) {
        match self.0.iter_mut().find(|(known, ..)| *known == why) {
            Some((_, _, others)) => *others += 1,
            None => self.0.push((why, place, 0)),
        }
    }

    /// One line for each why, as of `Unseen`.
    fn warn(self, warnings: &mut Warnings) {
        for (why, first, others) in self.0 {
            let others = match others {
                0 => String::new(),
                others => format!("; so it is with {others} more"),
            };
            warnings.no_effect(&first.to_string(), &format!("here: {why}{others}"));
        }
    }
}

/// `instructions` and `input`, and the tools that stand among its items.
pub fn messages(fields: &Fields, warnings: &mut Warnings) -> Result<(Vec<Value>, Vec<ToolList>), ApiError> {
    let (mut messages, mut additional) = (Vec::new(), Vec::new());
    // Templates refuse or replace a system message that says nothing.
    if let Some(instructions) = fields.text(&request_fields::INSTRUCTIONS)?.filter(|text| !text.is_empty()) {
        messages.push(json!({"role": "system", "content": instructions}));
    }
    match fields.required(&request_fields::INPUT, fields.tree(&request_fields::INPUT)?)? {
        Value::String(text) => messages.push(json!({"role": "user", "content": text})),
        Value::Array(items) => {
            if items.len() as u64 > request_fields::MESSAGES_MOST {
                return Err(fields.too_many(INPUT, Most::Is(request_fields::MESSAGES_MOST), items.len()));
            }
            let mut unseen = Unseen::default();
            let mut left_out = LeftOut::default();
            let mut late = Late::default();
            for item in objects(&INPUT.into(), &items) {
                let item = item?;
                let read = InputItem::read(&item, &mut unseen)?;
                if let InputItem::AdditionalTools { tools } | InputItem::ToolSearchOutput { tools, .. } = read
                {
                    let are_found = matches!(read, InputItem::ToolSearchOutput { .. });
                    additional.push(ToolList { place: item.at("tools"), tools: tools.to_vec(), are_found });
                }
                if let Some((place, why)) = read.left_out(&item) {
                    left_out.add(why, place);
                }
                late.add(read, &mut messages);
            }
            messages.append(&mut late.said);
            unseen.warn(warnings);
            left_out.warn(warnings);
            if messages.is_empty() && !items.is_empty() {
                let text = "must have an item that is a message, a call or a result";
                return Err(ApiError::invalid(INPUT, text));
            }
        }
        other => {
            let error = ApiError::invalid(INPUT, "must be a string or a list of items");
            return Err(error.given(shortened(&other.to_string())));
        }
    }
    if messages.is_empty() {
        return Err(ApiError::invalid(INPUT, "must have at least one item"));
    }
    Ok((messages, additional))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::http::openai::responses::request::tests::{parsed, refusal};
    use crate::http::schemas::kinds;

    /// Instructions come before all items; reasoning, text and calls of an answer become one message.
    fn conversation(last: Value) -> Value {
        json!({
            "instructions": "Be short.",
            "input": [
                {"role": "user", "content": "What is the weather?"},
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Look."}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
                {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
                {"type": "custom_tool_call", "call_id": "2", "name": "g", "input": "x = 1"},
                {"type": "function_call_output", "call_id": "1", "output": "21"},
                last,
            ],
        })
    }

    #[test]
    fn items_become_messages_that_templates_know() {
        let last = json!({"type": "custom_tool_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "1"}]});
        let chat = parsed(conversation(last)).expect("valid").chat.chat;
        let told: Vec<_> =
            chat.messages.iter().map(|message| (&message["role"], &message["content"])).collect();
        let expected = [
            ("system", "Be short."),
            ("user", "What is the weather?"),
            ("assistant", "I look."),
            ("tool", "21"),
            ("tool", "1"),
        ];
        assert_eq!(told.len(), expected.len());
        for ((role, content), (expected_role, text)) in told.into_iter().zip(expected) {
            assert_eq!((role, content), (&json!(expected_role), &json!(text)));
        }
        let without = parsed(json!({"instructions": ""})).expect("valid").chat.chat;
        assert_eq!(without.messages.len(), 1);
        let answer = &chat.messages[2];
        assert_eq!(answer["reasoning_content"], "Look.");
        assert_eq!(answer["tool_calls"][0]["function"], json!({"name": "f", "arguments": "{}"}));
        assert_eq!(answer["tool_calls"][1]["function"]["arguments"], json!({"input": "x = 1"}));
    }

    /// Haystack sends an answer's calls before its text, and what a model writes behind a call we tell as an item behind it.
    #[test]
    fn text_behind_a_call_is_of_the_message_with_the_call() {
        let said = |text: &str| json!({"role": "assistant", "content": text});
        let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"});
        let reasoning = json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]});
        let user = json!({"role": "user", "content": "Look."});
        let result = json!({"type": "function_call_output", "call_id": "1", "output": "21"});
        for (answer, content, ids) in [
            (vec![reasoning.clone(), call("1"), said("I look.")], json!("I look."), vec!["1"]),
            (
                vec![reasoning.clone(), said("I look."), call("1"), said("Now.")],
                json!("I look.\n\nNow."),
                vec!["1"],
            ),
            (
                vec![reasoning.clone(), call("1"), said("I look."), call("2")],
                json!("I look."),
                vec!["1", "2"],
            ),
            (vec![reasoning.clone(), said(""), call("1"), said("I look.")], json!("I look."), vec!["1"]),
            (vec![reasoning.clone(), said("I look."), call("1"), said("")], json!("I look."), vec!["1"]),
        ] {
            let mut input = vec![user.clone()];
            input.extend(answer);
            input.extend([result.clone(), said("It is 21."), said("Degrees.")]);
            let messages = parsed(json!({"input": input})).expect("valid").chat.chat.messages;
            let roles: Vec<_> = messages.iter().map(|message| message["role"].as_str()).collect();
            let expected = ["user", "assistant", "tool", "assistant", "assistant"].map(Some);
            assert_eq!(roles, expected, "{messages:?}");
            assert_eq!(
                (&messages[1]["content"], &messages[1]["reasoning_content"]),
                (&content, &json!("Hm."))
            );
            let calls = messages[1]["tool_calls"].as_array().expect("calls").iter();
            assert_eq!(calls.filter_map(|call| call["id"].as_str()).collect::<Vec<_>>(), ids);
        }
    }

    /// As models answer that think between their calls.
    #[test]
    fn a_thought_behind_a_call_is_of_the_message_with_the_call() {
        let thought =
            |text: &str| json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]});
        let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"});
        let result = |id: &str| json!({"type": "function_call_output", "call_id": id, "output": "21"});
        let said = json!({"role": "assistant", "content": "I look."});
        for (answer, reasoning, content, ids) in [
            (vec![thought("A"), call("1"), thought("B"), call("2")], "A\n\nB", json!(null), vec!["1", "2"]),
            (vec![call("1"), thought("B"), said], "B", json!("I look."), vec!["1"]),
            (vec![thought("A"), call("1"), thought("")], "A", json!(null), vec!["1"]),
            (vec![thought("A"), call("1"), thought("B")], "A\n\nB", json!(null), vec!["1"]),
        ] {
            let results = ids.iter().map(|id| result(id));
            let next = [thought("C"), call("3"), result("3")];
            let input: Vec<_> = answer.iter().cloned().chain(results).chain(next).collect();
            let messages = parsed(json!({"input": input})).expect("valid").chat.chat.messages;
            let roles: Vec<_> = messages.iter().filter_map(|message| message["role"].as_str()).collect();
            let mut expected = vec!["assistant"];
            expected.extend(ids.iter().map(|_| "tool"));
            expected.extend(["assistant", "tool"]);
            assert_eq!(roles, expected, "{answer:?}");
            let said = &messages[0];
            assert_eq!((&said["reasoning_content"], &said["content"]), (&json!(reasoning), &content));
            let calls = said["tool_calls"].as_array().expect("calls").iter();
            assert_eq!(calls.filter_map(|call| call["id"].as_str()).collect::<Vec<_>>(), ids);
            assert_eq!(messages[1 + ids.len()]["reasoning_content"], "C");
        }
    }

    /// What stands before them is not copied for each: here 64 GB.
    #[test]
    fn many_texts_behind_a_call_take_linear_time() {
        let long = "x".repeat(16 << 20);
        let said = |text: &str| json!({"role": "assistant", "content": text});
        let mut input = vec![said(&long)];
        input.push(json!({"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}));
        input.extend((0..4000).map(|_| said("y")));
        let begin = Instant::now();
        let messages = parsed(json!({"input": input})).expect("valid").chat.chat.messages;
        assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
        let content = messages[0]["content"].as_str().expect("a text");
        assert_eq!((messages.len(), content.len()), (1, long.len() + 4000 * "\n\ny".len()));
    }

    /// Codex' `view_image` returns an image alone, and tools of MCP servers return some beside text.
    #[test]
    fn what_a_tool_returned_that_is_no_text_is_told_in_its_place() {
        let image = json!({"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo=", "detail": "high"});
        let told = |noun: &str| {
            format!("[The tool returned {noun} here, which cannot be shown to you: you read only text.]")
        };
        let warned = |noun: &str| {
            format!("here: only text is supported, and the model is told that a tool returned {noun}")
        };
        for (output, content, warning) in [
            (
                json!([image]),
                told("an image"),
                format!("`input[6].output[0]` has no effect {}", warned("an image")),
            ),
            (
                json!([{"type": "input_text", "text": "A"}, {"type": "input_file", "file_id": "f"}, {"type": "input_audio"}]),
                format!("A{}{}", told("a file"), told("a sound recording")),
                format!("`input[6].output[1]` has no effect {}; so it is with 1 more", warned("a file")),
            ),
        ] {
            for kind in ["function_call_output", "custom_tool_call_output"] {
                let last = json!({"type": kind, "call_id": "2", "output": output});
                let asked = parsed(conversation(last)).expect("valid").chat;
                assert_eq!(asked.params.warnings.lines(), [warning.as_str()]);
                let last = json!({"role": "tool", "tool_call_id": "2", "content": content});
                assert_eq!(asked.chat.messages.last(), Some(&last));
            }
        }
    }

    /// To the model a call of a namespace has the name under which it was shown the function.
    #[test]
    fn a_call_within_a_namespace_has_one_name() {
        for (namespace, shown) in
            [(json!("mcp__docs"), "mcp__docs__f"), (json!("mcp__docs__"), "mcp__docs__f"), (json!(null), "f")]
        {
            let call = json!({"type": "function_call", "call_id": "1", "namespace": namespace, "name": "f", "arguments": "{}"});
            let custom = json!({"type": "custom_tool_call", "call_id": "2", "namespace": namespace, "name": "f", "input": "x"});
            let chat = parsed(json!({"input": [call, custom]})).expect("valid").chat.chat;
            let calls = chat.messages[0]["tool_calls"].as_array().expect("calls");
            assert!(calls.iter().all(|call| call["function"]["name"] == shown), "{calls:?}");
        }
    }

    /// As Codex sends them to models that it knows to be OpenAI's: `tools` is not there.
    fn additional(tools: Value) -> Value {
        json!({"type": "additional_tools", "role": "developer", "id": "at_1", "tools": tools})
    }

    #[test]
    fn additional_tools_are_tools_and_no_message() {
        let exec = |description: &str| json!({"type": "custom", "name": "exec", "description": description});
        let namespace = |tools: Value| json!({"type": "namespace", "name": "functions", "tools": tools});
        let user = json!({"role": "user", "content": "Hi"});
        let asked = |more: Value| parsed(more).expect("valid").chat;
        let chat = asked(json!({"input": [additional(json!([namespace(json!([exec("Runs")]))])), user]}));
        assert_eq!(chat.chat.messages, [json!({"role": "user", "content": "Hi"})]);
        assert!(chat.params.warnings.is_empty());
        let tools = format!("{:?}", chat.tools.expect("a tool"));
        for part in ["\"functions__exec\"", "is_custom: true", "namespace: \"functions\", name: \"exec\""] {
            assert!(tools.contains(part), "{part}: {tools}");
        }
        // A history has the list more than once, and `tools` may have what is in it.
        let function = json!({"type": "function", "name": "f"});
        let lists = [
            additional(json!([namespace(json!([exec("Early")])), {"type": "web_search"}])),
            user,
            additional(
                json!([{"type": "function", "name": "g"}, namespace(json!([exec("Late")])), function]),
            ),
        ];
        let chat = asked(json!({"input": lists, "tools": [function]}));
        let line = "`input[0].tools[1]` has no effect here: this server runs no web_search";
        assert_eq!(chat.params.warnings.lines(), [line]);
        let tools = format!("{:?}", chat.tools.expect("tools"));
        let at = |part: &str| tools.find(part).unwrap_or_else(|| panic!("{part}: {tools}"));
        assert!(
            at("\"f\"") < at("\"functions__exec\"") && at("\"functions__exec\"") < at("\"g\""),
            "{tools}"
        );
        assert!(tools.contains("Late") && !tools.contains("Early"), "{tools}");
    }

    #[test]
    fn what_is_wrong_with_additional_tools_is_told_with_their_place() {
        let user = json!({"role": "user", "content": "Hi"});
        let twice = json!({"type": "function", "name": "f"});
        for (tools, says) in [
            (json!(5), "`input[1].tools` must be a list of tools"),
            (json!([5]), "`input[1].tools[0]` must be an object"),
            (
                json!([{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}]),
                "`input[1].tools[0].tools[0].name` must",
            ),
            (json!([twice, twice]), "`input[1].tools[1].name` is the same as another tool's"),
        ] {
            let refused = refusal(json!({"input": [user, additional(tools)]}));
            assert!(refused.starts_with(says), "{refused}");
        }
        let many: Vec<_> =
            (0..600).map(|index| json!({"type": "function", "name": format!("f{index}")})).collect();
        let others: Vec<_> =
            (0..600).map(|index| json!({"type": "function", "name": format!("g{index}")})).collect();
        let refused = refusal(json!({"input": [user, additional(json!(others))], "tools": many}));
        assert_eq!(refused, "`tools` must have at most 1024 entries. Given: 1200");
        let alone = refusal(json!({"input": [additional(json!([twice]))]}));
        assert_eq!(alone, "`input` must have an item that is a message, a call or a result");
    }

    /// Codex sends the whole of a session that it resumes, whoever answered until then.
    #[test]
    fn items_that_only_openais_servers_can_use_are_left_out_by_name() {
        let search = json!({"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}});
        let input = json!([
            {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAAAB"},
            {"role": "user", "content": "Hi"}, search, search, search,
        ]);
        let asked = parsed(json!({"input": input})).expect("valid").chat;
        assert_eq!(asked.chat.messages, [json!({"role": "user", "content": "Hi"})]);
        let lines = asked.params.warnings.lines();
        assert!(
            lines[0].starts_with("`input[0]` has no effect here: only the server that wrote it"),
            "{lines:?}"
        );
        assert!(
            lines[1].starts_with("`input[2]` has no effect here: what was found is not in it"),
            "{lines:?}"
        );
        assert!(lines.len() == 2 && lines[1].ends_with("; so it is with 2 more"), "{lines:?}");
        let input = json!([
            {"type": "context_compaction", "id": "cmp_1", "encrypted_content": "gAAAAAB"},
            {"type": "compaction_summary", "encrypted_content": "gAAAAAB"},
            {"role": "user", "content": "Hi"},
            {"type": "tool_search_call", "call_id": null, "execution": "server", "arguments": {}},
            {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "iVBORw0KGgo="},
            {"type": "configuration_update", "reasoning": {"effort": "low"}},
            {"type": "agent_message", "author": "/root", "recipient": "/root/a", "content": [
                {"type": "input_text", "text": "See "}, {"type": "encrypted_content", "encrypted_content": "gAAAAAB"},
            ]},
        ]);
        let asked = parsed(json!({"input": input})).expect("valid").chat;
        assert_eq!(asked.chat.messages, [json!({"role": "user", "content": "Hi"})]);
        let lines = asked.params.warnings.lines();
        let begins = ["`input[0]`", "`input[3]`", "`input[4]`", "`input[5]`", "`input[6]`"];
        assert_eq!(lines.len(), begins.len(), "{lines:?}");
        assert!(lines.iter().zip(begins).all(|(line, begin)| line.starts_with(begin)), "{lines:?}");
        assert!(lines[0].ends_with("; so it is with 1 more"), "{lines:?}");
    }

    /// What Codex' own history has beside, with a model of OpenAI's.
    #[test]
    fn a_session_of_codex_goes_on_with_its_calls_agents_and_tools() {
        let found = json!([
            {"type": "namespace", "name": "mcp__docs", "tools": [{"type": "function", "name": "f", "defer_loading": true}]},
        ]);
        let action = json!({"type": "exec", "command": ["ls"], "timeout_ms": null});
        let input = json!([
            {"type": "agent_message", "author": "/root", "recipient": "/root/a", "content": [
                {"type": "input_text", "text": "See "}, {"type": "input_text", "text": "to it."},
            ]},
            {"type": "tool_search_call", "call_id": null, "execution": "server", "arguments": {"paths": ["docs"]}},
            {"type": "tool_search_output", "call_id": null, "status": "completed", "execution": "server", "tools": found},
            {"type": "local_shell_call", "call_id": "2", "status": "completed", "action": action},
            {"type": "function_call_output", "call_id": "2", "output": "a"},
        ]);
        let asked = parsed(json!({"input": input})).expect("valid").chat;
        let function = json!({"name": "local_shell", "arguments": action});
        let calls = json!([{"id": "2", "type": "function", "function": function}]);
        assert_eq!(
            asked.chat.messages,
            [
                json!({"role": "user", "content": "[/root to /root/a]\nSee to it."}),
                json!({"role": "assistant", "content": null, "tool_calls": calls}),
                json!({"role": "tool", "tool_call_id": "2", "content": "a"}),
            ]
        );
        assert!(format!("{:?}", asked.tools.expect("a tool")).contains("\"mcp__docs__f\""));
        let line = "`input[1]` has no effect here: the model is not told of the search, only of the tools that were found";
        assert_eq!(asked.params.warnings.lines(), [line]);
    }

    /// Another agent's words come when they come.
    #[test]
    fn what_an_agent_says_parts_no_call_from_its_result() {
        let call =
            |id: &str| json!({"type": "function_call", "call_id": id, "name": "wait", "arguments": "{}"});
        let result = |id: &str| json!({"type": "function_call_output", "call_id": id, "output": "21"});
        let agent = |text: &str| {
            let content = json!([{"type": "input_text", "text": text}]);
            json!({"type": "agent_message", "author": "/root/a", "recipient": "/root", "content": content})
        };
        let user = json!({"role": "user", "content": "Go on."});
        let said = json!({"role": "assistant", "content": "I wait."});
        for (input, told) in [
            (vec![call("1"), agent("A"), result("1")], vec!["call 1", "result 1", "A"]),
            (
                vec![
                    call("1"),
                    agent("A"),
                    call("2"),
                    result("2"),
                    agent("B"),
                    result("1"),
                    agent("C"),
                    call("3"),
                ],
                vec!["call 1 2", "result 2", "result 1", "A", "B", "C", "call 3"],
            ),
            (
                vec![call("1"), result("1"), agent("A"), call("2"), result("2")],
                vec!["call 1", "result 1", "A", "call 2", "result 2"],
            ),
            // One that was broken off.
            (vec![call("1"), agent("A"), user, agent("B")], vec!["call 1", "A", "Go on.", "B"]),
            (vec![call("1"), agent("A"), said, result("1")], vec!["call 1", "result 1", "A"]),
            (vec![call("1"), agent("A")], vec!["call 1", "A"]),
        ] {
            let messages = parsed(json!({"input": input})).expect("valid").chat.chat.messages;
            let ids = |message: &Value| -> Vec<String> {
                let calls = message["tool_calls"].as_array().into_iter().flatten();
                calls.filter_map(|call| call["id"].as_str().map(str::to_owned)).collect()
            };
            let of = |message: &Value| match message["role"].as_str() {
                Some("assistant") => format!("call {}", ids(message).join(" ")),
                Some("tool") => format!("result {}", message["tool_call_id"].as_str().expect("an id")),
                _ => {
                    let text = message["content"].as_str().expect("a text");
                    text.strip_prefix("[/root/a to /root]\n").unwrap_or(text).to_owned()
                }
            };
            assert_eq!(messages.iter().map(of).collect::<Vec<_>>(), told, "{messages:?}");
        }
    }

    /// As Codex sends it where it keeps the tools of MCP servers back.
    fn search() -> Value {
        let query =
            json!({"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]});
        json!({"type": "tool_search", "execution": "client", "description": "Finds", "parameters": query})
    }

    #[test]
    fn a_search_for_tools_is_a_tool_where_the_client_makes_it() {
        let function = json!({"type": "function", "name": "f"});
        let user = json!({"role": "user", "content": "Hi"});
        for more in [
            json!({"tools": [search(), function]}),
            json!({"input": [additional(json!([search(), function])), user]}),
            json!({"tools": [{"type": "tool_search", "execution": "client"}], "tool_choice": "required"}),
        ] {
            let asked = parsed(more.clone()).expect("valid").chat;
            assert!(asked.params.warnings.is_empty(), "{more}");
            let tools = format!("{:?}", asked.tools.expect("a tool"));
            assert!(tools.contains("name: \"tool_search\"") && tools.contains("is_search: true"), "{tools}");
        }
        for (more, says) in [
            (json!({"tools": [search(), search()]}), "`tools[1].type` is the same as another tool's"),
            (
                json!({"tools": [{"type": "tool_search", "execution": "client", "parameters": 5}]}),
                "`tools[0].parameters` must be an object, a JSON schema",
            ),
            (
                json!({"tools": [{"type": "tool_search", "execution": "client", "description": 5}]}),
                "`tools[0].description` must be a string",
            ),
            (
                json!({"tools": [{"type": "namespace", "name": "n", "tools": [search()]}]}),
                "`tools[0].tools[0].type` must be \"function\"",
            ),
            (
                json!({"input": [{"type": "tool_search_call", "call_id": "1", "execution": "client", "arguments": "{}"}]}),
                "`input[0].arguments` must be an object",
            ),
        ] {
            let refused = refusal(more);
            assert!(refused.starts_with(says), "{refused}");
        }
    }

    /// OpenAI's servers refuse the choice by its type.
    #[test]
    fn a_search_for_tools_is_chosen_as_a_function_is() {
        let tools = json!([search(), {"type": "function", "name": "f"}]);
        let chosen = json!({"tools": tools, "tool_choice": {"type": "function", "name": "tool_search"}});
        let tools_of =
            |asked: Value| format!("{:?}", parsed(asked).expect("valid").chat.tools.expect("a tool"));
        let found = tools_of(chosen);
        assert!(found.contains("is_required: true") && found.contains("is_search: true"), "{found}");
        assert!(!found.contains("is_search: false"), "{found}");
        let refused = refusal(json!({"tools": tools, "tool_choice": {"type": "tool_search"}}));
        assert_eq!(
            refused,
            "`tool_choice` of type \"tool_search\" is not supported, as at OpenAI: to have the model search first, name the search \
             as a function, {\"type\": \"function\", \"name\": \"tool_search\"}"
        );
    }

    #[test]
    fn a_search_for_tools_is_left_out_by_name_where_a_server_makes_it() {
        let function = json!({"type": "function", "name": "f", "defer_loading": true});
        let line = |place: &str| {
            format!(
                "`{place}` has no effect here: this server searches for no tools, and the model knows those that are in the request"
            )
        };
        let user = json!({"role": "user", "content": "Hi"});
        for search in [json!({"type": "tool_search"}), json!({"type": "tool_search", "execution": "server"})]
        {
            let input = json!([additional(json!([function, search])), user]);
            let asked = parsed(json!({"input": input})).expect("valid").chat;
            assert_eq!(asked.params.warnings.lines(), [line("input[0].tools[1]")]);
            let asked = parsed(json!({"tools": [search, function]})).expect("valid").chat;
            assert_eq!(asked.params.warnings.lines(), [line("tools[0]")]);
            assert!(format!("{:?}", asked.tools.expect("a tool")).contains("name: \"f\""));
            let refused = refusal(json!({"tools": [search], "tool_choice": "required"}));
            assert!(
                refused.starts_with("`tools[0].type` must be ")
                    && refused.contains("runs no tools of its own"),
                "{refused}"
            );
        }
    }

    /// A template refuses or garbles a call without its result, and a model that is told of none searches again.
    #[test]
    fn what_a_client_searched_for_is_a_call_and_its_result() {
        let tools = json!([{"type": "namespace", "name": "mcp__docs", "tools": [{"type": "function", "name": "f", "defer_loading": true}]}]);
        for (found, says) in [
            (tools, "These tools were found, and can be called from now on:\nmcp__docs__f"),
            (json!([]), "No tool was found."),
        ] {
            let arguments = json!({"query": "docs", "limit": 1});
            let input = json!([
                {"role": "user", "content": "Look."},
                {"type": "tool_search_call", "call_id": "1", "execution": "client", "status": "completed", "arguments": arguments},
                {"type": "tool_search_output", "call_id": "1", "status": "completed", "execution": "client", "tools": found},
            ]);
            let asked = parsed(json!({"input": input, "tools": [search()]})).expect("valid").chat;
            let function = json!({"name": "tool_search", "arguments": arguments});
            let calls = json!([{"id": "1", "type": "function", "function": function}]);
            assert_eq!(
                asked.chat.messages[1..],
                [
                    json!({"role": "assistant", "content": null, "tool_calls": calls}),
                    json!({"role": "tool", "tool_call_id": "1", "content": says}),
                ]
            );
            assert!(asked.params.warnings.is_empty());
            let tools = format!("{:?}", asked.tools.expect("tools"));
            assert_eq!(tools.contains("name: \"mcp__docs__f\""), found != json!([]), "{tools}");
        }
    }

    #[test]
    fn tools_that_a_client_keeps_back_are_shown_once_they_are_found() {
        let function =
            |name: &str, deferred: bool| json!({"type": "function", "name": name, "defer_loading": deferred});
        let kept = json!([{"type": "namespace", "name": "n", "tools": [function("a", true), function("b", false)]}, function("c", true)]);
        let output = json!({"type": "tool_search_output", "call_id": "1", "execution": "client", "tools": [function("c", true)]});
        let user = json!({"role": "user", "content": "Hi"});
        let names = |tools: Value, input: Value| {
            let asked = parsed(json!({"tools": tools, "input": input})).expect("valid").chat;
            let tools = format!("{:?}", asked.tools.expect("tools"));
            ["n__a", "n__b", "c"].map(|name| tools.contains(&format!("name: \"{name}\"")))
        };
        let mut with_search = kept.as_array().expect("tools").clone();
        with_search.push(search());
        assert_eq!(names(json!(with_search), json!([user])), [false, true, false]);
        assert_eq!(names(json!(with_search), json!([user, output])), [false, true, true]);
        // The model was told that it can call it, whatever comes behind.
        let again = additional(json!([function("c", true)]));
        assert_eq!(names(json!(with_search), json!([user, output, again])), [false, true, true]);
        // Nobody could find them.
        assert_eq!(names(kept, json!([user])), [true, true, true]);
    }

    /// OpenAI's reference allows tools of its servers so, and a client that keeps tools back allows these before they are found.
    #[test]
    fn of_allowed_tools_those_are_left_out_that_are_elsewhere() {
        let function =
            |name: &str, deferred: bool| json!({"type": "function", "name": name, "defer_loading": deferred});
        let mcp = json!({"type": "mcp", "server_label": "docs"});
        let web = json!({"type": "web_search"});
        let named = |name: &str| json!({"type": "function", "name": name});
        let tools =
            json!([function("a", false), function("b", true), function("c", false), search(), web, mcp]);
        let allowed =
            |mode: &str, tools: Value| json!({"type": "allowed_tools", "mode": mode, "tools": tools});
        let all = json!([named("a"), named("b"), mcp, web, {"type": "tool_search"}]);
        let user = json!({"role": "user", "content": "Hi"});
        let found = json!({"type": "tool_search_output", "call_id": "1", "execution": "client", "tools": [function("b", true)]});
        for (choice, place) in [
            (allowed("auto", all.clone()), "tool_choice.tools"),
            (
                json!({"type": "allowed_tools", "allowed_tools": allowed("required", all)}),
                "tool_choice.allowed_tools.tools",
            ),
        ] {
            for (input, is_found) in [(json!([user]), false), (json!([user, found]), true)] {
                let more = json!({"input": input, "tools": tools, "tool_choice": choice});
                let asked = parsed(more).expect("valid").chat;
                let left_out = |place: &str, kind: &str| {
                    format!("`{place}` has no effect here: this server runs no {kind}")
                };
                assert_eq!(
                    asked.params.warnings.lines(),
                    [
                        left_out("tools[4]", "web_search"),
                        left_out("tools[5]", "mcp"),
                        left_out(&format!("{place}[2]"), "mcp"),
                        left_out(&format!("{place}[3]"), "web_search"),
                    ]
                );
                let tools = format!("{:?}", asked.tools.expect("tools"));
                let may_be_called = |name: &str| tools.contains(&format!("name: \"{name}\""));
                assert_eq!(
                    ["a", "b", "c", "tool_search"].map(may_be_called),
                    [true, is_found, false, true],
                    "{tools}"
                );
            }
        }
        for (choice, says) in [
            (
                allowed("required", json!([mcp])),
                "`tool_choice` asks for a call, and allows no tool that can be called",
            ),
            (
                allowed("required", json!([named("b")])),
                "`tool_choice` asks for a call, and allows no tool that can be called",
            ),
            (allowed("auto", json!([named("d")])), "`tool_choice` names a tool that is not in `tools`: d"),
            (named("b"), "`tool_choice` names a tool that `defer_loading` keeps back until it is found: b"),
            (allowed("auto", json!([{"type": "shell"}])), "`tool_choice` must be \"auto\""),
            (allowed("auto", json!(["a"])), "`tool_choice.tools[0]` must be an object"),
        ] {
            let refused = refusal(json!({"tools": tools, "tool_choice": choice}));
            assert!(refused.starts_with(says), "{refused}");
        }
    }

    /// Not at the place that it would have once items have become messages.
    #[test]
    fn what_is_wrong_is_where_the_client_has_it() {
        let user = |content: Value| json!({"role": "user", "content": content});
        for (last, says) in [
            (json!("Hi"), "`input[6]` must be an object"),
            (json!({}), "`input[6].type` must be a string"),
            (
                json!({"role": "tool", "content": ""}),
                "`input[6].role` must be user, assistant, system or developer",
            ),
            (user(json!(5)), "`input[6].content` must be a string or a list of parts"),
            (user(json!([{"type": "input_text"}])), "`input[6].content[0].text` must be a string"),
            (
                user(
                    json!([{"type": "input_text", "text": "See"}, {"type": "input_image", "image_url": "x"}]),
                ),
                "`input[6].content[1]` of type \"input_image\" is not supported yet: only text is",
            ),
            (json!({"type": "reasoning", "summary": [5]}), "`input[6].summary[0]` must be an object"),
            (
                json!({"type": "reasoning", "summary": [], "encrypted_content": 5}),
                "`input[6].encrypted_content` must be a string",
            ),
            (
                json!({"type": "function_call", "name": "f", "arguments": "{}"}),
                "`input[6].call_id` must be a string",
            ),
            (
                json!({"type": "function_call", "call_id": "1", "name": "f", "arguments": {}}),
                "`input[6].arguments` must be a string",
            ),
            (
                json!({"type": "function_call_output", "call_id": "1", "output": [{"type": "encrypted_content"}]}),
                "`input[6].output[0]` of type \"encrypted_content\" is not supported yet: only text is",
            ),
            (
                json!({"type": "custom_tool_call_output", "call_id": "1", "output": 5}),
                "`input[6].output` must be a string or a list of parts",
            ),
            (
                json!({"type": "item_reference", "id": "x"}),
                "`input[6]` of type \"item_reference\" is not supported: no answer is kept, so the item itself has to be \
                 sent, as clients do that are told `store: false`",
            ),
        ] {
            assert_eq!(refusal(conversation(last)), says);
        }
        assert_eq!(refusal(json!({"input": []})), "`input` must have at least one item");
    }

    #[test]
    fn every_kind_of_the_schema_is_read_and_no_other() {
        let items = kinds("InputItem");
        assert!(items.len() == 17 && kinds("PartParam").len() == 6, "{items:?}");
        let mut left_out = 0;
        for kind in items {
            let user = json!({"role": "user", "content": "Hi"});
            if let Ok(asked) = parsed(json!({"input": [user, {"type": kind}]})) {
                left_out += asked.chat.params.warnings.lines().len();
                continue;
            }
            let refused = refusal(json!({"input": [{"type": kind, "summary": 5}]}));
            assert!(refused.contains(" must be "), "{kind}: {refused}");
        }
        assert_eq!(left_out, 7);
        let agents = kinds("AgentPartParam");
        assert_eq!(agents, ["input_text", "encrypted_content"]);
        for kind in kinds("PartParam") {
            let refused = refusal(json!({"input": [{"role": "user", "content": [{"type": kind}]}]}));
            assert!(refused.ends_with(" must be a string"), "{kind}: {refused}");
        }
        let unseen = kinds("UnseenParam");
        assert_eq!(unseen.len(), 3);
        for kind in unseen {
            let part = json!([{"type": kind}]);
            let item = json!({"type": "function_call_output", "call_id": "1", "output": part});
            assert!(parsed(json!({"input": [item]})).is_ok(), "{kind}");
            let refused = refusal(json!({"input": [{"role": "user", "content": part}]}));
            assert!(refused.ends_with(" is not supported yet: only text is"), "{kind}: {refused}");
        }
    }

    /// It has a text of its own in place of one that says nothing, and what this server has written in place of a summary.
    #[test]
    fn reasoning_is_its_content_or_what_was_encrypted_or_else_its_summary() {
        let summary = json!([{"type": "summary_text", "text": "S"}]);
        let content = json!([{"type": "reasoning_text", "text": "C"}]);
        let own = json!("penstock:E");
        for (summary, content, encrypted, text) in [
            (&summary, &json!(null), &json!(null), "S"),
            (&summary, &json!([]), &json!(null), "S"),
            (&summary, &content, &json!(null), "C"),
            (&summary, &content, &own, "C"),
            (&summary, &json!([]), &own, "E"),
            (&json!([]), &json!(null), &own, "E"),
        ] {
            let item = json!({"type": "reasoning", "summary": summary, "content": content, "encrypted_content": encrypted});
            let asked = parsed(json!({"input": [item]})).expect("valid").chat;
            assert_eq!(asked.chat.messages[0]["reasoning_content"], text, "{item}");
            assert!(asked.params.warnings.is_empty(), "{item}");
        }
    }

    /// As of a session that OpenAI's servers, or vLLM's, began.
    #[test]
    fn reasoning_that_another_server_has_encrypted_is_left_out_by_name() {
        let reasoning = |summary: Value, encrypted: &str| json!({"type": "reasoning", "summary": summary, "encrypted_content": encrypted});
        let said = |text: &str| json!({"role": "assistant", "content": text});
        let user = json!({"role": "user", "content": "Hi"});
        let summary = json!([{"type": "summary_text", "text": "S"}]);
        let input = json!([
            user,
            reasoning(json!([]), "gAAAAAB"),
            said("One."),
            user,
            reasoning(summary, "vllm-reasoning-v1.eJzzSM3JyQcABiwCFQ=="),
            said("Two."),
            user,
            reasoning(json!([]), ""),
        ]);
        let asked = parsed(json!({"input": input})).expect("valid").chat;
        let two = json!({"role": "assistant", "content": "Two.", "reasoning_content": "S"});
        assert_eq!(asked.chat.messages, [user.clone(), said("One."), user.clone(), two, user]);
        let line = "`input[1].encrypted_content` has no effect here: only the server that wrote it can read it, and the model is \
                    told what `content` or `summary` says; so it is with 1 more";
        assert_eq!(asked.params.warnings.lines(), [line]);
    }
}
