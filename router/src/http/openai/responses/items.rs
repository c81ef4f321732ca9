//! What each item of `input` of `/v1/responses` says, as clients write it, and what of it is left out. What items that follow each
//! other mean is `input`'s.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value};

use crate::http::chats::object::{Object, objects};
use crate::http::chats::unseen::{Kind, Unseen};
use crate::http::error::{ApiError, Place};
use crate::http::openai::chat::no_text;
use crate::http::openai::responses::{encrypted_content, search};
use crate::http::shortened::shortened;

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
    pub fn left_out(&self, item: &Object) -> Option<(Place, &'static str)> {
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
    pub fn texts(parts: &[Self]) -> Option<String> {
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

    pub fn joined(self) -> String {
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

    pub fn text(&self) -> &'a str {
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

    pub fn joined(self) -> String {
        match self {
            Self::Text(text) => text.to_owned(),
            Self::Parts(parts) => parts.iter().map(PartParam::text).collect(),
        }
    }
}

impl<'a> InputItem<'a> {
    pub fn read(item: &Object<'a>, unseen: &mut Unseen) -> Result<Self, ApiError> {
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
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::http::openai::responses::input::tests::conversation;
    use crate::http::openai::responses::request::tests::{parsed, refusal};
    use crate::http::schemas::kinds;

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
