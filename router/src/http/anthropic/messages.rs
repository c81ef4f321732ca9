//! Messages of blocks and the system text of Anthropic's requests, read as messages of a chat.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde_json::{Value, json};

use crate::http::chats::object::{Object, objects};
use crate::http::chats::unseen::{Kind, Unseen};
use crate::http::error::{ApiError, Place};
use crate::http::fields::Fields;
use crate::http::request_fields;
use crate::http::shortened::shortened;
use crate::http::warnings::Warnings;

/// A message of a request.
#[derive(JsonSchema)]
pub struct MessageParam<'a> {
    role: Role,
    content: Content<'a>,
}

#[derive(Clone, Copy, JsonSchema, PartialEq, Eq)]
#[schemars(inline, rename_all = "snake_case")]
enum Role {
    User,
    Assistant,
    System,
}

/// A text, or blocks.
#[derive(JsonSchema)]
#[schemars(inline, untagged)]
enum Content<'a> {
    Text(&'a str),
    Blocks(Vec<BlockParam<'a>>),
}

/// A part of a message. Thinking and calls are the assistant's, results the user's. Behind a result of its message stands, too, what
/// the tool returned beside it, as Claude Code's `Read` does with a PDF: a block of a result, which is read as one.
#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum BlockParam<'a> {
    Text {
        text: &'a str,
    },
    Thinking {
        thinking: &'a str,
    },
    /// Is left out.
    RedactedThinking {},
    ToolUse {
        id: &'a str,
        name: &'a str,
        input: &'a Value,
    },
    ToolResult {
        tool_use_id: &'a str,
        content: Option<Returned<'a>>,
    },
    /// Behind a `tool_result` only. The model is told that there was one.
    Image {},
    /// Behind a `tool_result` only.
    Document(DocumentParam<'a>),
    /// Behind a `tool_result` only.
    SearchResult(SearchResultParam<'a>),
}

/// A text, or blocks of text, which are paragraphs.
#[derive(JsonSchema)]
#[schemars(inline, untagged)]
pub enum Texts<'a> {
    Text(&'a str),
    Blocks(Vec<TextParam<'a>>),
}

#[derive(JsonSchema)]
#[schemars(inline, tag = "type", rename_all = "snake_case")]
pub enum TextParam<'a> {
    Text { text: &'a str },
}

/// What a tool returned: a text, or blocks, which are paragraphs.
#[derive(JsonSchema)]
#[schemars(inline, untagged)]
pub enum Returned<'a> {
    Text(&'a str),
    Blocks(Vec<ResultBlockParam<'a>>),
}

/// A block of what a tool returned.
#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum ResultBlockParam<'a> {
    Text {
        text: &'a str,
    },
    /// The model is told that there was one.
    Image {},
    Document(DocumentParam<'a>),
    SearchResult(SearchResultParam<'a>),
    /// A tool that a search for tools has found. All of them are shown to the model anyway.
    ToolReference {
        tool_name: &'a str,
    },
}

#[derive(JsonSchema)]
#[schemars(inline)]
pub struct DocumentParam<'a> {
    title: Option<&'a str>,
    context: Option<&'a str>,
    source: DocumentSource<'a>,
}

#[derive(JsonSchema)]
#[schemars(inline)]
pub struct SearchResultParam<'a> {
    title: &'a str,
    source: &'a str,
    content: Texts<'a>,
}

/// Where a document is. Of one that is no text the model is told that there was one.
#[derive(JsonSchema)]
#[schemars(inline, tag = "type", rename_all = "snake_case")]
pub enum DocumentSource<'a> {
    Text { data: &'a str },
    Content { content: Returned<'a> },
    Base64 {},
    Url {},
    File {},
}

impl TextParam<'_> {
    /// What Claude Code begins its `system` with, for Anthropic's accounts and not for the model. It differs from one session to
    /// the next, in older versions from one request to the next: with it no prompt would share a prefix with another.
    fn is_attribution(&self) -> bool {
        let Self::Text { text } = self;
        text.starts_with("x-anthropic-billing-header:") && text.lines().nth(1).is_none()
    }
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::System => "system",
        }
    }
}

impl<'a> Texts<'a> {
    fn read(place: &Place, value: &'a Value) -> Result<Self, ApiError> {
        match value {
            Value::String(text) => Ok(Self::Text(text)),
            Value::Array(blocks) => {
                let text = |block: Result<Object<'a>, ApiError>| {
                    let block = block?;
                    if block.kind()? != "text" {
                        return Err(ApiError::invalid(block.place, "must be a block of text"));
                    }
                    Ok(TextParam::Text { text: block.text("text")? })
                };
                objects(place, blocks).map(text).collect::<Result<_, _>>().map(Self::Blocks)
            }
            _ => Err(ApiError::invalid(place, "must be a string or a list of blocks")),
        }
    }

    fn joined(self) -> String {
        match self {
            Self::Text(text) => text.to_owned(),
            Self::Blocks(blocks) => {
                let texts: Vec<&str> = blocks.into_iter().map(|TextParam::Text { text }| text).collect();
                texts.join("\n")
            }
        }
    }
}

impl<'a> Returned<'a> {
    fn read(place: &Place, value: &'a Value, unseen: &mut Unseen) -> Result<Self, ApiError> {
        match value {
            Value::String(text) => Ok(Self::Text(text)),
            Value::Array(blocks) => {
                let blocks = objects(place, blocks);
                let blocks = blocks.map(|block| ResultBlockParam::read(&block?, unseen));
                blocks.collect::<Result<_, _>>().map(Self::Blocks)
            }
            _ => Err(ApiError::invalid(place, "must be a string or a list of blocks")),
        }
    }

    fn joined(self) -> Cow<'a, str> {
        match self {
            Self::Text(text) => text.into(),
            Self::Blocks(blocks) => {
                let texts: Vec<_> = blocks.into_iter().map(ResultBlockParam::text).collect();
                texts.join("\n").into()
            }
        }
    }
}

impl<'a> ResultBlockParam<'a> {
    fn read(block: &Object<'a>, unseen: &mut Unseen) -> Result<Self, ApiError> {
        Ok(match block.kind()? {
            "text" => Self::Text { text: block.text("text")? },
            "image" => {
                unseen.add(&block.place, Kind::Image);
                Self::Image {}
            }
            "document" => Self::Document(DocumentParam::read(block, unseen)?),
            "search_result" => Self::SearchResult(SearchResultParam::read(block)?),
            "tool_reference" => Self::ToolReference { tool_name: block.text("tool_name")? },
            kind => {
                let text = format!("of type {:?} is not supported in a tool's result", shortened(kind));
                return Err(ApiError::invalid(&block.place, text));
            }
        })
    }

    fn text(self) -> Cow<'a, str> {
        match self {
            Self::Text { text } => text.into(),
            Self::Image {} => Kind::Image.text().into(),
            Self::Document(document) => document.text().into(),
            Self::SearchResult(result) => result.text().into(),
            Self::ToolReference { tool_name } => tool_name.into(),
        }
    }
}

impl<'a> DocumentParam<'a> {
    fn read(block: &Object<'a>, unseen: &mut Unseen) -> Result<Self, ApiError> {
        let optional = |name: &'static str| block.get(name).map(|_| block.text(name)).transpose();
        Ok(Self {
            title: optional("title")?,
            context: optional("context")?,
            source: DocumentSource::read(block, unseen)?,
        })
    }

    /// With what names it, which Anthropic's models read, too.
    fn text(self) -> String {
        let named = [self.title, self.context].into_iter().flatten().map(Cow::from);
        named.chain([self.source.text()]).collect::<Vec<_>>().join("\n")
    }
}

impl<'a> SearchResultParam<'a> {
    fn read(block: &Object<'a>) -> Result<Self, ApiError> {
        Ok(Self {
            title: block.text("title")?,
            source: block.text("source")?,
            content: Texts::read(&block.at("content"), block.value("content"))?,
        })
    }

    /// As of a document.
    fn text(self) -> String {
        [self.title, self.source, self.content.joined().as_str()].join("\n")
    }
}

impl<'a> DocumentSource<'a> {
    fn read(document: &Object<'a>, unseen: &mut Unseen) -> Result<Self, ApiError> {
        let source = Object::of(document.at("source"), document.value("source"))?;
        let read = match source.kind()? {
            "text" => return Ok(Self::Text { data: source.text("data")? }),
            "content" => {
                let content = Returned::read(&source.at("content"), source.value("content"), unseen)?;
                return Ok(Self::Content { content });
            }
            "base64" => Self::Base64 {},
            "url" => Self::Url {},
            "file" => Self::File {},
            _ => return Err(source.wrong("type", "must be one of text, content, base64, url, file")),
        };
        unseen.add(&document.place, Kind::Document);
        Ok(read)
    }

    fn text(self) -> Cow<'a, str> {
        match self {
            Self::Text { data } => data.into(),
            Self::Content { content } => content.joined(),
            Self::Base64 {} | Self::Url {} | Self::File {} => Kind::Document.text().into(),
        }
    }
}

impl<'a> BlockParam<'a> {
    fn read(
        block: &Object<'a>,
        role: Role,
        is_behind_result: bool,
        unseen: &mut Unseen,
    ) -> Result<Self, ApiError> {
        Ok(match (block.kind()?, role) {
            ("text", _) => Self::Text { text: block.text("text")? },
            ("thinking", Role::Assistant) => Self::Thinking { thinking: block.text("thinking")? },
            ("redacted_thinking", Role::Assistant) => Self::RedactedThinking {},
            ("tool_use", Role::Assistant) => Self::ToolUse {
                id: block.text("id")?,
                name: block.text("name")?,
                input: match block.value("input") {
                    input @ (Value::Object(_) | Value::String(_) | Value::Null) => input,
                    _ => return Err(block.wrong("input", "must be an object")),
                },
            },
            ("tool_result", Role::User) => Self::ToolResult {
                tool_use_id: block.text("tool_use_id")?,
                content: block
                    .get("content")
                    .map(|content| Returned::read(&block.at("content"), content, unseen))
                    .transpose()?,
            },
            ("image", Role::User) if is_behind_result => {
                unseen.add(&block.place, Kind::Image);
                Self::Image {}
            }
            ("document", Role::User) if is_behind_result => {
                Self::Document(DocumentParam::read(block, unseen)?)
            }
            ("search_result", Role::User) if is_behind_result => {
                Self::SearchResult(SearchResultParam::read(block)?)
            }
            (kind, _) => {
                let (kind, role) = (shortened(kind), role.name());
                let text = format!("of type {kind:?} is not supported in a message of the {role}");
                return Err(ApiError::invalid(&block.place, text));
            }
        })
    }
}

impl<'a> MessageParam<'a> {
    fn read(message: &Object<'a>, unseen: &mut Unseen) -> Result<Self, ApiError> {
        let role = match message.value("role").as_str() {
            Some("user") => Role::User,
            Some("assistant") => Role::Assistant,
            Some("system") => Role::System,
            _ => return Err(message.wrong("role", "must be user, assistant or system")),
        };
        let content = match message.value("content") {
            Value::String(text) => Content::Text(text),
            Value::Array(blocks) if blocks.is_empty() => {
                return Err(message.wrong("content", "must not be empty"));
            }
            Value::Array(blocks) => {
                let mut is_behind_result = false;
                let blocks = objects(&message.at("content"), blocks).map(|block| {
                    let read = BlockParam::read(&block?, role, is_behind_result, unseen)?;
                    is_behind_result |= matches!(read, BlockParam::ToolResult { .. });
                    Ok(read)
                });
                Content::Blocks(blocks.collect::<Result<_, _>>()?)
            }
            _ => return Err(message.wrong("content", "must be a string or a list of blocks")),
        };
        Ok(Self { role, content })
    }

    /// As templates know messages. It may become several: each result of a tool is one of its own.
    fn add_to(self, messages: &mut Vec<Value>) {
        let role = self.role.name();
        let blocks = match self.content {
            Content::Text(text) => {
                messages.push(json!({"role": role, "content": text}));
                return;
            }
            Content::Blocks(blocks) => blocks,
        };
        let (mut texts, mut reasoning, mut calls) = (Vec::<Cow<str>>::new(), String::new(), Vec::new());
        for block in blocks {
            match block {
                BlockParam::Text { text } => texts.push(text.into()),
                BlockParam::Image {} => texts.push(Kind::Image.text().into()),
                BlockParam::Document(document) => texts.push(document.text().into()),
                BlockParam::SearchResult(result) => texts.push(result.text().into()),
                BlockParam::Thinking { thinking } => reasoning.push_str(thinking),
                BlockParam::RedactedThinking {} => {}
                BlockParam::ToolUse { id, name, input } => {
                    let call = json!({"name": name, "arguments": input});
                    calls.push(json!({"id": id, "type": "function", "function": call}));
                }
                BlockParam::ToolResult { tool_use_id, content } => {
                    let content = content.map(Returned::joined).unwrap_or_default();
                    messages.push(json!({"role": "tool", "tool_call_id": tool_use_id, "content": content}));
                }
            }
        }
        // Results of tools are there already.
        if texts.is_empty() && calls.is_empty() && reasoning.is_empty() {
            return;
        }
        let mut said = json!({"role": role, "content": texts.join("\n")});
        if !reasoning.is_empty() {
            said["reasoning_content"] = json!(reasoning);
        }
        if !calls.is_empty() {
            said["tool_calls"] = Value::Array(calls);
        }
        messages.push(said);
    }
}

/// The system's text, and the messages.
pub fn read(fields: &Fields, warnings: &mut Warnings) -> Result<Vec<Value>, ApiError> {
    let mut messages = Vec::new();
    if let Some(system) = fields.tree(&request_fields::SYSTEM)? {
        let mut system = Texts::read(&request_fields::SYSTEM.name.into(), &system)?;
        if let Texts::Blocks(blocks) = &mut system
            && blocks.first().is_some_and(TextParam::is_attribution)
        {
            blocks.remove(0);
        }
        let system = system.joined();
        // Templates refuse or replace a system message that says nothing.
        if !system.is_empty() {
            messages.push(json!({"role": "system", "content": system}));
        }
    }
    let given = fields.required(&request_fields::MESSAGES, fields.tree(&request_fields::MESSAGES)?)?;
    let place = Place::from(request_fields::MESSAGES.name);
    let given = given.as_array().map_or(&[][..], Vec::as_slice);
    if given.is_empty() {
        return Err(ApiError::invalid(place, "must have at least one message"));
    }
    let mut unseen = Unseen::default();
    let before = messages.len();
    for message in objects(&place, given) {
        MessageParam::read(&message?, &mut unseen)?.add_to(&mut messages);
    }
    if messages.len() == before {
        return Err(ApiError::invalid(place, "must have a message that is more than `redacted_thinking`"));
    }
    unseen.warn(warnings);
    Ok(messages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::anthropic::request::tests::{parsed, refusal};
    use crate::http::schemas::kinds;

    fn assistant(blocks: Value) -> Value {
        json!({"role": "assistant", "content": blocks})
    }

    #[test]
    fn what_claude_code_says_of_its_session_is_not_for_the_model() {
        let system = |texts: &[&str]| {
            let blocks: Vec<Value> = texts.iter().map(|text| json!({"type": "text", "text": text})).collect();
            let chat = parsed(json!({"system": blocks})).expect("valid").chat;
            chat.messages
                .iter()
                .find(|message| message["role"] == "system")
                .map(|message| message["content"].clone())
        };
        let session =
            |id: &str| format!("x-anthropic-billing-header: cc_version=2.1.90; cc_entrypoint=cli; cch={id};");
        let (one, other) = (session("ab12c"), session("00000"));
        for session in [&one, &other] {
            assert_eq!(system(&[session, "You are", "an agent."]), Some(json!("You are\nan agent.")));
            assert_eq!(system(&[session]), None);
        }
        // Only there, only so, and only alone.
        let within = format!("{one}\nYou are an agent.");
        assert_eq!(system(&[&within]), Some(json!(within)));
        assert_eq!(system(&["You are", &one]), Some(json!(format!("You are\n{one}"))));
        assert_eq!(
            system(&["An x-anthropic-billing-header: is"]),
            Some(json!("An x-anthropic-billing-header: is"))
        );
        assert_eq!(parsed(json!({"system": one})).expect("valid").chat.messages[0]["content"], json!(one));
        let wrong = json!({"system": [{"type": "text", "text": one}, {"type": "image"}]});
        assert_eq!(refusal(wrong), "`system[1]` must be a block of text");
    }

    fn user(blocks: Value) -> Value {
        json!({"role": "user", "content": blocks})
    }

    /// The system's text comes before all messages, a message with results becomes several, one with calls stays one.
    fn conversation(last: Value) -> Value {
        json!({
            "system": "Be short.",
            "messages": [
                user(json!("What is the weather in Paris and Rome?")),
                assistant(json!([
                    {"type": "thinking", "thinking": "Two calls."},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "1", "name": "f", "input": {"city": "Paris"}},
                    {"type": "tool_use", "id": "2", "name": "f", "input": {"city": "Rome"}},
                ])),
                user(json!([
                    {"type": "tool_result", "tool_use_id": "1", "content": "21"},
                    {"type": "tool_result", "tool_use_id": "2", "content": [{"type": "text", "text": "25"}]},
                    {"type": "text", "text": "And?"},
                ])),
                last,
            ],
        })
    }

    #[test]
    fn blocks_become_messages_that_templates_know() {
        let chat = parsed(conversation(user(json!([{"type": "tool_result", "tool_use_id": "1"}]))))
            .expect("valid")
            .chat;
        let told: Vec<(&str, &Value)> = chat
            .messages
            .iter()
            .map(|message| (message["role"].as_str().expect("a role"), &message["content"]))
            .collect();
        assert_eq!(
            told,
            [
                ("system", &json!("Be short.")),
                ("user", &json!("What is the weather in Paris and Rome?")),
                ("assistant", &json!("I look.")),
                ("tool", &json!("21")),
                ("tool", &json!("25")),
                ("user", &json!("And?")),
                ("tool", &json!("")),
            ]
        );
        assert_eq!(chat.messages[2]["tool_calls"][1]["function"]["arguments"], json!({"city": "Rome"}));
        assert_eq!(chat.messages[2]["reasoning_content"], "Two calls.");
    }

    /// Claude Code's `Read` of a picture returns one so, and its browser's tools return pictures beside text.
    #[test]
    fn what_a_tool_returned_that_is_no_text_is_told_in_its_place() {
        let returned = |content: Value| {
            let result = json!({"type": "tool_result", "tool_use_id": "1", "content": content});
            let asked = parsed(conversation(user(json!([result])))).expect("valid");
            let last = asked.chat.messages.last().expect("a message");
            assert_eq!(last["role"], "tool");
            (last["content"].clone(), asked.params.warnings.lines().join("; "))
        };
        let text = |text: &str| json!({"type": "text", "text": text});
        let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}});
        let seen = "[The tool returned an image here, which cannot be shown to you: you read only text.]";
        let warned = "`messages[3].content[0].content[0]` has no effect here: only text is supported, and the model is told that a \
                      tool returned an image";
        assert_eq!(returned(json!([image])), (json!(seen), warned.to_owned()));
        let beside =
            returned(json!([image, text("A"), {"type": "image", "source": {"type": "url", "url": "x"}}]));
        assert_eq!(beside, (json!(format!("{seen}\nA\n{seen}")), format!("{warned}; so it is with 1 more")));
        for source in [
            json!({"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}),
            json!({"type": "url", "url": "https://example.com/a.pdf"}),
            json!({"type": "file", "file_id": "f"}),
        ] {
            let (content, warned) = returned(json!([{"type": "document", "title": "T", "source": source}]));
            let document =
                "T\n[The tool returned a document here, which cannot be shown to you: you read only text.]";
            assert_eq!(content, document);
            assert!(warned.ends_with("told that a tool returned a document"), "{warned}");
        }
        // What has a text says it.
        for (block, told) in [
            (
                json!({"type": "document", "title": "T", "context": "C",
                       "source": {"type": "text", "media_type": "text/plain", "data": "D"}}),
                "T\nC\nD",
            ),
            (json!({"type": "document", "source": {"type": "content", "content": "D"}}), "D"),
            (
                json!({"type": "document", "title": null,
                       "source": {"type": "content", "content": [text("D"), text("E")]}}),
                "D\nE",
            ),
            (
                json!({"type": "search_result", "source": "https://example.com", "title": "T",
                       "content": [text("D"), text("E")], "citations": {"enabled": true}}),
                "T\nhttps://example.com\nD\nE",
            ),
            (json!({"type": "tool_reference", "tool_name": "search"}), "search"),
        ] {
            assert_eq!(returned(json!([block])), (json!(told), String::new()));
        }
        let within =
            json!({"type": "document", "source": {"type": "content", "content": [text("D"), image]}});
        let (content, warned) = returned(json!([within]));
        assert_eq!(content, format!("D\n{seen}"));
        assert!(
            warned.starts_with("`messages[3].content[0].content[0].source.content[1]` has no effect"),
            "{warned}"
        );
    }

    /// `Read` of a PDF returns a text, and puts the pages behind it.
    #[test]
    fn what_stands_behind_a_result_is_read_as_a_part_of_it() {
        let result =
            json!({"type": "tool_result", "tool_use_id": "1", "content": "PDF file read: a.pdf (1KB)"});
        let pages = json!({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}});
        let thanks = json!({"type": "text", "text": "Go on."});
        let asked = parsed(conversation(user(json!([result, pages, thanks])))).expect("valid");
        let [.., tool, last] = &asked.chat.messages[..] else { panic!("two messages") };
        assert_eq!(tool["content"], "PDF file read: a.pdf (1KB)");
        let seen = "[The tool returned a document here, which cannot be shown to you: you read only text.]";
        assert_eq!(*last, json!({"role": "user", "content": format!("{seen}\nGo on.")}));
        let warned = asked.params.warnings.lines().join("; ");
        assert!(warned.starts_with("`messages[3].content[1]` has no effect here"), "{warned}");
    }

    /// Not at the place that it would have once the conversation is brought into another shape.
    #[test]
    fn what_is_wrong_is_where_the_client_has_it() {
        for (last, says) in [
            (json!("Hi"), "`messages[3]` must be an object"),
            (json!({"role": "tool", "content": ""}), "`messages[3].role` must be user, assistant or system"),
            (user(json!(5)), "`messages[3].content` must be a string or a list of blocks"),
            (user(json!([])), "`messages[3].content` must not be empty"),
            (user(json!(["Hi"])), "`messages[3].content[0]` must be an object"),
            (user(json!([{"type": "text"}])), "`messages[3].content[0].text` must be a string"),
            (user(json!([{}])), "`messages[3].content[0].type` must be a string"),
            (
                user(json!([{"type": "text", "text": "See"}, {"type": "image", "source": {}}])),
                "`messages[3].content[1]` of type \"image\" is not supported in a message of the user",
            ),
            (
                user(
                    json!([{"type": "image"}, {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image"}]}]),
                ),
                "`messages[3].content[0]` of type \"image\" is not supported in a message of the user",
            ),
            (
                user(json!([{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "audio"}]}])),
                "`messages[3].content[0].content[0]` of type \"audio\" is not supported in a tool's result",
            ),
            (
                user(json!([{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "document"}]}])),
                "`messages[3].content[0].content[0].source` must be an object",
            ),
            (
                user(
                    json!([{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "document", "source": {"type": "s3"}}]}]),
                ),
                "`messages[3].content[0].content[0].source.type` must be one of text, content, base64, url, file",
            ),
            (
                user(
                    json!([{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "search_result", "title": "a"}]}]),
                ),
                "`messages[3].content[0].content[0].source` must be a string",
            ),
            (
                user(json!([{"type": "text", "text": "a"}, {"type": "tool_result", "content": "21"}])),
                "`messages[3].content[1].tool_use_id` must be a string",
            ),
            (
                assistant(json!([{"type": "tool_use", "id": "3", "name": "f", "input": [1]}])),
                "`messages[3].content[0].input` must be an object",
            ),
        ] {
            assert_eq!(refusal(conversation(last)), says);
        }
        assert_eq!(refusal(json!({"messages": []})), "`messages` must have at least one message");
        let redacted = assistant(json!([{"type": "redacted_thinking", "data": "x"}]));
        assert_eq!(
            refusal(json!({"system": "Be short.", "messages": [redacted]})),
            "`messages` must have a message that is more than `redacted_thinking`"
        );
        let system = json!({"system": [{"type": "text", "text": "a"}, {"type": "image"}]});
        assert_eq!(refusal(system), "`system[1]` must be a block of text");
    }

    #[test]
    fn every_kind_of_the_schema_is_read() {
        let (blocks, mut behind) = (kinds("BlockParam"), Vec::new());
        assert_eq!(blocks.len(), 8);
        for kind in blocks {
            let refused = |message: Value| {
                let read = parsed(json!({"messages": [message, user(json!("x"))]}));
                read.err().map(|error| error.to_string()).unwrap_or_default()
            };
            let block = json!({"type": kind});
            let (by_assistant, by_user) = (refused(assistant(json!([block]))), refused(user(json!([block]))));
            let says = [by_assistant, by_user].into_iter().find(|says| !says.contains("not supported"));
            let says = says.unwrap_or_else(|| {
                behind.push(kind.clone());
                refused(user(json!([{"type": "tool_result", "tool_use_id": "1"}, block])))
            });
            let needs_nothing = ["redacted_thinking", "image"].contains(&kind.as_str());
            let is_told = says.ends_with(" must be a string") || says.ends_with(".source` must be an object");
            assert!(if needs_nothing { says.is_empty() } else { is_told }, "{kind}: {says}");
        }
        assert_eq!(behind, ["image", "document", "search_result"]);
        let blocks = kinds("ResultBlockParam");
        assert_eq!(blocks.len(), 5);
        for kind in blocks {
            let result = json!({"type": "tool_result", "tool_use_id": "1", "content": [{"type": kind}]});
            let read =
                parsed(json!({"messages": [user(json!([result]))]})).err().map(|error| error.to_string());
            assert!(read.is_none_or(|refused| !refused.contains("not supported")), "{kind}");
        }
    }

    #[test]
    fn a_system_text_that_says_nothing_is_no_message() {
        for system in [json!(""), json!([]), json!([{"type": "text", "text": ""}]), json!(null)] {
            let chat = parsed(json!({"system": system})).expect("valid").chat;
            assert_eq!(chat.messages, [json!({"role": "user", "content": "Hi"})]);
        }
    }
}
