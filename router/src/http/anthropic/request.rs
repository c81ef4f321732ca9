//! Anthropic's requests: their own fields, messages of blocks and tools, read as the chat that asks for the same.

use std::borrow::Cow;

use penstock_core::prompt::Chat;
use schemars::JsonSchema;
use serde_json::{Value, json};

use crate::http::anthropic::client_tools::{self, ClientTool};
use crate::http::chats::effort::{Effort, Thinking};
use crate::http::chats::functions::{self, Choice, Function, Shape};
use crate::http::chats::object::{Object, objects};
use crate::http::chats::request::ChatRequest;
use crate::http::chats::tools::Tools;
use crate::http::chats::unseen::{Kind, Unseen};
use crate::http::constraints::{self, Asked};
use crate::http::error::{ApiError, FieldNames, Place};
use crate::http::fields::{Fields, checked_name};
use crate::http::openai::params::GenerationParams;
use crate::http::request_fields;
use crate::http::shortened::shortened;
use crate::http::warnings::Warnings;

pub const NAMES: FieldNames = FieldNames::MESSAGES;

/// Accepted, and named in no warning: they ask for nothing of the text.
const WITHOUT_EFFECT: [&str; 3] = ["service_tier", "betas", "cache_control"];

/// What asks for something that is nowhere here.
const REFUSED: [(&str, &str); 2] = [
    ("container", "there are no containers here, and no tools that run in them"),
    ("mcp_servers", "this server calls no other ones: send their tools as `tools`"),
];

/// What asks for nothing that could be missed in the text, and why.
const NAMED: [(&str, &str); 6] = [
    ("speed", "here: every answer comes as fast as it can"),
    ("inference_geo", "here: this server is in one place"),
    ("diagnostics", "here"),
    ("context_management", "here: a conversation is never shortened"),
    ("user_profile_id", "here: `metadata.user_id` says who asks"),
    ("workspace_id", "here"),
];

/// What a route asks of `max_tokens`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum MaxTokens {
    Required,
    Optional,
}

/// Reads a request to `/v1/messages`, or one that counts its tokens.
pub fn parse(fields: &Fields, served: &str, needs: MaxTokens) -> Result<ChatRequest, ApiError> {
    let mut warnings = Warnings::default();
    let mut table = request_fields::anthropic_fields();
    let known = table.iter().map(|field| field.name);
    let known = known.chain(WITHOUT_EFFECT).chain(NAMED.map(|(name, _)| name));
    let known: Vec<&str> = known.collect();
    for (name, why) in REFUSED {
        if fields.value(name).is_some() {
            return Err(ApiError::invalid(name, format!("is not supported: {why}")));
        }
    }
    warnings.unknown(fields, "", known.iter().copied());
    for (name, why) in NAMED {
        if fields.value(name).is_some() {
            warnings.no_effect(name, why);
        }
    }
    // How LangChain.js spells "off" where nothing is set, as of `top_k`.
    if fields.value(request_fields::TOP_P.name).is_some_and(|top_p| top_p.as_f64() == Some(-1.0)) {
        table.retain(|field| field.name != request_fields::TOP_P.name);
    }
    let fields = fields.only(&table);
    let max_tokens = fields.small(&request_fields::MAX_TOKENS)?;
    if needs == MaxTokens::Required {
        fields.required(&request_fields::MAX_TOKENS, max_tokens)?;
    }
    let messages = messages(&fields, &mut warnings)?;
    let effort = effort(&fields)?;
    let thinking = thinking(&fields, &mut warnings)?;
    let params = GenerationParams {
        stop: fields.texts(&request_fields::STOP_SEQUENCES)?,
        user: user(&fields)?,
        grammar: output(&fields)?,
        ..GenerationParams::read(&fields, served, warnings)?
    };
    let (choice, is_single) = choice(&fields)?;
    let functions = functions::functions(&fields, &[], tool)?;
    if functions.is_empty() && matches!(choice, Choice::Required) {
        return Err(ApiError::invalid(request_fields::TOOL_CHOICE.name, "of type \"any\" needs `tools`"));
    }
    let tools = Tools::of(functions, choice, is_single)?;
    let chat = Chat { messages, ..Chat::default() };
    Ok(ChatRequest {
        params,
        chat,
        effort,
        thinking,
        tools,
        max_tokens,
        logprobs: false,
        top_logprobs: 0,
        names: NAMES,
    })
}

/// `metadata.user_id`.
fn user(fields: &Fields) -> Result<Option<String>, ApiError> {
    let metadata = fields.tree(&request_fields::ANTHROPIC_METADATA)?.unwrap_or_default();
    let user = &metadata["user_id"];
    if user.is_null() {
        return Ok(None);
    }
    let place = Place::from(request_fields::ANTHROPIC_METADATA.name).member("user_id");
    let name = user.as_str().ok_or_else(|| ApiError::invalid(&place, "must be a string"))?;
    checked_name(&place, name)?;
    Ok(Some(name.to_owned()))
}

/// `output_config.effort`.
fn effort(fields: &Fields) -> Result<Option<Effort>, ApiError> {
    const EFFORT: &str = "output_config.effort";
    let effort = fields.tree(&request_fields::OUTPUT_CONFIG)?.unwrap_or_default()["effort"].take();
    if effort.is_null() {
        return Ok(None);
    }
    let place = Place::path(EFFORT);
    let given = effort.as_str().ok_or_else(|| ApiError::invalid(&place, "must be a string"))?;
    checked_name(&place, given)?;
    Ok(Some(Effort { field: EFFORT, given: given.to_owned() }))
}

/// Of `thinking`.
fn thinking(fields: &Fields, warnings: &mut Warnings) -> Result<Option<Thinking>, ApiError> {
    const THINKING: &str = request_fields::THINKING.name;
    let Some(thinking) = fields.tree(&request_fields::THINKING)? else { return Ok(None) };
    let asked = match thinking["type"].as_str() {
        Some("enabled") => Thinking::Enabled,
        Some("adaptive") => Thinking::Adaptive,
        Some("disabled") => Thinking::Disabled,
        _ => {
            let error = ApiError::invalid(
                Place::from(THINKING).member("type"),
                "must be one of enabled, adaptive, disabled",
            );
            return Err(error.given(shortened(&thinking["type"].to_string())));
        }
    };
    if thinking["display"].as_str().is_some_and(|display| display != "summarized") {
        warnings.no_effect("thinking.display", "here: reasoning is told as it is");
    }
    Ok(Some(asked))
}

/// `output_config.format`, or `output_format`, its older name.
fn output(fields: &Fields) -> Result<Option<Asked>, ApiError> {
    const CONFIG: &str = "output_config.format";
    const FORMAT: &str = request_fields::OUTPUT_FORMAT.name;
    let in_config = fields.tree(&request_fields::OUTPUT_CONFIG)?.unwrap_or_default()["format"].take();
    let (field, format) = match (in_config, fields.tree(&request_fields::OUTPUT_FORMAT)?) {
        (Value::Null, None) => return Ok(None),
        (Value::Null, Some(format)) => (FORMAT, format),
        (format, None) => (CONFIG, format),
        (_, Some(_)) => {
            return Err(ApiError::invalid(FORMAT, format!("and `{CONFIG}` must not both be given")));
        }
    };
    let source = constraints::message_output(&Place::path(field), format)?;
    Ok(source.map(|source| Asked { field, source }))
}

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

/// A part of a message. Thinking and calls are the assistant's, results the user's. Behind a result stands, too, what the tool
/// returned beside it, as Claude Code's `Read` does with a PDF: a block of a result, which is read as one.
#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum BlockParam<'a> {
    Text {
        text: Cow<'a, str>,
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
    Document {
        title: Option<&'a str>,
        context: Option<&'a str>,
        source: DocumentSource<'a>,
    },
    SearchResult {
        title: &'a str,
        source: &'a str,
        content: Texts<'a>,
    },
    /// A tool that a search for tools has found. All of them are shown to the model anyway.
    ToolReference {
        tool_name: &'a str,
    },
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
        let optional = |name: &'static str| block.get(name).map(|_| block.text(name)).transpose();
        Ok(match block.kind()? {
            "text" => Self::Text { text: block.text("text")? },
            "image" => {
                unseen.add(&block.place, Kind::Image);
                Self::Image {}
            }
            "document" => Self::Document {
                title: optional("title")?,
                context: optional("context")?,
                source: DocumentSource::read(block, unseen)?,
            },
            "search_result" => Self::SearchResult {
                title: block.text("title")?,
                source: block.text("source")?,
                content: Texts::read(&block.at("content"), block.value("content"))?,
            },
            "tool_reference" => Self::ToolReference { tool_name: block.text("tool_name")? },
            kind => {
                let text = format!("of type {:?} is not supported in a tool's result", shortened(kind));
                return Err(ApiError::invalid(&block.place, text));
            }
        })
    }

    /// With what names it, which Anthropic's models read, too.
    fn text(self) -> Cow<'a, str> {
        match self {
            Self::Text { text } => text.into(),
            Self::Image {} => Kind::Image.text().into(),
            Self::Document { title, context, source } => {
                let named = [title, context].into_iter().flatten().map(Cow::from);
                named.chain([source.text()]).collect::<Vec<_>>().join("\n").into()
            }
            Self::SearchResult { title, source, content } => {
                [title, source, content.joined().as_str()].join("\n").into()
            }
            Self::ToolReference { tool_name } => tool_name.into(),
        }
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
            ("text", _) => Self::Text { text: block.text("text")?.into() },
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
            ("image" | "document" | "search_result", Role::User) if is_behind_result => {
                Self::Text { text: ResultBlockParam::read(block, unseen)?.text() }
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
        let (mut texts, mut reasoning, mut calls) = (Vec::new(), String::new(), Vec::new());
        for block in blocks {
            match block {
                BlockParam::Text { text } => texts.push(text),
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
fn messages(fields: &Fields, warnings: &mut Warnings) -> Result<Vec<Value>, ApiError> {
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
    for message in objects(&place, given) {
        MessageParam::read(&message?, &mut unseen)?.add_to(&mut messages);
    }
    unseen.warn(warnings);
    Ok(messages)
}

fn tool(tool: &Object) -> Result<Vec<Function>, ApiError> {
    let function = match tool.value("type") {
        Value::Null => custom(tool),
        Value::String(kind) if kind == "custom" => custom(tool),
        kind => match kind.as_str().and_then(ClientTool::of) {
            Some(own) => client_tool(tool, own),
            None => {
                let why = match kind.as_str().is_some_and(client_tools::shows_images) {
                    true => "the client runs this one, but images, which its results are, are not supported",
                    false => "this server runs no tools of its own",
                };
                let text = format!("must be \"custom\", or of a bash, text editor or memory tool: {why}");
                let error = ApiError::invalid(tool.at("type"), text);
                Err(error.given(shortened(&kind.to_string())))
            }
        },
    };
    function.map(|function| vec![function])
}

fn custom(tool: &Object) -> Result<Function, ApiError> {
    if tool.get("input_schema").is_none() {
        return Err(tool.wrong("input_schema", "must be an object, a JSON schema"));
    }
    Function::of(tool, &Shape::MESSAGES)
}

/// One that has its description and its schema by its type.
fn client_tool(tool: &Object, own: ClientTool) -> Result<Function, ApiError> {
    let name = tool.value("name");
    if name != own.name {
        let error = ApiError::invalid(tool.at("name"), format!("must be {:?} for this type", own.name));
        return Err(error.given(shortened(&name.to_string())));
    }
    let ClientTool { name, description, input_schema } = own;
    let whole = json!({"name": name, "description": description, "input_schema": input_schema,
                       "strict": tool.value("strict")});
    Function::of(&Object::of(tool.place.clone(), &whole)?, &Shape::MESSAGES)
}

/// `tool_choice`, and whether an answer may have one call at most.
fn choice(fields: &Fields) -> Result<(Choice, bool), ApiError> {
    const SINGLE: &str = "disable_parallel_tool_use";
    let Some(choice) = fields.tree(&request_fields::TOOL_CHOICE)? else { return Ok((Choice::Auto, false)) };
    let place = Place::from(request_fields::TOOL_CHOICE.name);
    let is_single = match &choice[SINGLE] {
        Value::Null => false,
        Value::Bool(is_single) => *is_single,
        other => {
            let error = ApiError::invalid(place.member(SINGLE), "must be true or false");
            return Err(error.given(shortened(&other.to_string())));
        }
    };
    let choice = match choice["type"].as_str() {
        Some("auto") => Choice::Auto,
        Some("any") => Choice::Required,
        Some("none") => Choice::None,
        Some("tool") => match choice["name"].as_str() {
            Some(name) => functions::chosen(name)?,
            None => return Err(ApiError::invalid(place.member("name"), "must be a string")),
        },
        _ => {
            let error = ApiError::invalid(place.member("type"), "must be one of auto, any, tool, none");
            return Err(error.given(shortened(&choice["type"].to_string())));
        }
    };
    Ok((choice, is_single))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::fields::tests::limits;
    use crate::http::schemas::kinds;

    fn parsed(more: Value) -> Result<ChatRequest, ApiError> {
        let mut body = json!({"max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]});
        if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
            body.extend(more);
        }
        let (body, limits) = (body.to_string(), limits());
        parse(&Fields::parse(body.as_bytes(), &limits).expect("JSON"), "served", MaxTokens::Required)
    }

    fn refusal(more: Value) -> String {
        let text = more.to_string();
        parsed(more).err().unwrap_or_else(|| panic!("{text} was taken")).to_string()
    }

    fn assistant(blocks: Value) -> Value {
        json!({"role": "assistant", "content": blocks})
    }

    #[test]
    fn what_langchain_js_sends_where_nothing_is_set_is_off() {
        for (top_p, top_k) in [(json!(-1), json!(-1)), (json!(-1.0), json!(0))] {
            let asked = parsed(json!({"temperature": 1, "top_p": top_p, "top_k": top_k})).expect("valid");
            let sampling = &asked.params.sampling;
            assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k), (1.0, 1.0, 0));
            assert!(asked.params.warnings.is_empty());
        }
        for top_p in [json!(-0.5), json!(-2)] {
            assert!(refusal(json!({"top_p": top_p})).starts_with("`top_p` must be a number >= 0"));
        }
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
        let system = json!({"system": [{"type": "text", "text": "a"}, {"type": "image"}]});
        assert_eq!(refusal(system), "`system[1]` must be a block of text");
    }

    #[test]
    fn every_kind_of_the_schema_is_read() {
        let blocks = kinds("BlockParam");
        assert_eq!(blocks.len(), 5);
        for kind in blocks {
            let role = if kind == "tool_result" { "user" } else { "assistant" };
            let message = json!({"messages": [{"role": role, "content": [{"type": kind}]}]});
            let refused = parsed(message).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(!refused.contains("not supported"), "{kind}: {refused}");
            assert!(
                refused.ends_with(" must be a string") || kind == "redacted_thinking",
                "{kind}: {refused}"
            );
        }
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
    fn fields_have_the_names_that_the_client_knows() {
        let tool = json!({"name": "f", "input_schema": {"type": "object"}});
        for (more, says) in [
            (json!({"max_tokens": null}), "`max_tokens` is required"),
            (json!({"max_tokens": 0}), "`max_tokens` must be a whole number >= 1"),
            (json!({"stop_sequences": [""]}), "`stop_sequences` must not contain an empty string"),
            (json!({"stop_sequences": 5}), "`stop_sequences` must be a string or a list"),
            (json!({"tools": [{"name": "f"}]}), "`tools[0].input_schema` must be an object, a JSON schema"),
            (json!({"tools": [tool, tool]}), "`tools[1].name` is the same as another tool's"),
            (
                json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
                "`tools[0].type` must be \"custom\", or of a bash, text editor or memory tool: this server runs no tools of its own. \
                 Given: \"web_search_20250305\"",
            ),
            (
                json!({"tools": [{"type": "computer_20250124", "name": "computer"}]}),
                "`tools[0].type` must be \"custom\", or of a bash, text editor or memory tool: the client runs this one, but images",
            ),
            (json!({"tools": [{"type": 5}]}), "`tools[0].type` must be \"custom\""),
            (
                json!({"tools": [{"type": "bash_20250124", "name": "shell"}]}),
                "`tools[0].name` must be \"bash\" for this type. Given: \"shell\"",
            ),
            (
                json!({"tools": [{"type": "bash_20250124", "name": "bash", "strict": 5}]}),
                "`tools[0].strict` must be a boolean",
            ),
            (json!({"tools": [{"name": "a b", "input_schema": {}}]}), "`tools[0].name` must be of letters"),
            (
                json!({"tools": [tool], "tool_choice": {"type": "tool"}}),
                "`tool_choice.name` must be a string",
            ),
            (
                json!({"tools": [tool], "tool_choice": {"type": "tool", "name": "g"}}),
                "`tool_choice` names a tool",
            ),
            (
                json!({"tool_choice": {"type": "required"}}),
                "`tool_choice.type` must be one of auto, any, tool, none",
            ),
            (json!({"tool_choice": {"type": "any"}}), "`tool_choice` of type \"any\" needs `tools`"),
            (
                json!({"tools": [tool], "tool_choice": {"type": "auto", "disable_parallel_tool_use": "x"}}),
                "`tool_choice.disable_parallel_tool_use` must be true or false. Given: \"x\"",
            ),
            (json!({"thinking": {"type": "much"}}), "`thinking.type` must be one of"),
            (
                json!({"output_config": {"format": {"type": "regex"}}}),
                "`output_config.format.type` must be one of json_schema",
            ),
            (
                json!({"output_config": {"format": {"type": "json_schema"}}}),
                "`output_config.format.schema` must be an object",
            ),
            (
                json!({"output_format": {"type": "json_schema", "schema": 5}}),
                "`output_format.schema` must be an object",
            ),
            (
                json!({"output_config": {"format": {"type": "json_schema", "schema": {}}},
                       "output_format": {"type": "json_schema", "schema": {}}}),
                "`output_format` and `output_config.format` must not both be given",
            ),
            (json!({"metadata": {"user_id": 5}}), "`metadata.user_id` must be a string"),
            (json!({"output_config": {"effort": 5}}), "`output_config.effort` must be a string"),
            (json!({"container": "c"}), "`container` is not supported: there are no containers here"),
            (json!({"mcp_servers": []}), "`mcp_servers` is not supported"),
        ] {
            let refused = refusal(more);
            assert!(refused.starts_with(says), "{refused}");
        }
    }

    /// With the members that each command takes, all of which the schema names.
    #[test]
    fn tools_that_anthropic_defines_take_what_its_models_know() {
        let edits = ["path", "view_range", "file_text", "old_str", "new_str", "insert_line"];
        let with = |more: &[&'static str]| [edits.as_slice(), more].concat();
        for (kind, name, commands, takes) in [
            ("bash_20241022", "bash", "", vec!["restart"]),
            ("bash_20250124", "bash", "", vec!["restart"]),
            (
                "text_editor_20241022",
                "str_replace_editor",
                "view create str_replace insert undo_edit",
                with(&[]),
            ),
            (
                "text_editor_20250124",
                "str_replace_editor",
                "view create str_replace insert undo_edit",
                with(&[]),
            ),
            (
                "text_editor_20250429",
                "str_replace_based_edit_tool",
                "view create str_replace insert",
                with(&[]),
            ),
            (
                "text_editor_20250728",
                "str_replace_based_edit_tool",
                "view create str_replace insert",
                with(&["insert_text"]),
            ),
            (
                "memory_20250818",
                "memory",
                "view create str_replace insert delete rename",
                with(&["insert_text", "old_path", "new_path"]),
            ),
        ] {
            let given = json!({"type": kind, "name": name, "cache_control": {"type": "ephemeral"}, "max_characters": 9});
            let body = json!({"tools": [given]});
            let limits = limits();
            let fields = Fields::parse(body.to_string().as_bytes(), &limits)
                .map(|fields| functions::functions(&fields, &[], tool));
            let functions = fields.expect("JSON").expect("valid");
            let [function] = &functions[..] else { panic!("{kind} is one function") };
            assert_eq!(function.callable.name, name);
            let schema = &function.callable.schema;
            assert_eq!(function.shown["function"]["parameters"], *schema);
            assert!(function.shown["function"]["description"].is_string());
            let named: Vec<&String> = schema["properties"].as_object().expect("an object").keys().collect();
            assert_eq!(named[0], "command", "{kind}");
            assert_eq!(named[1..], takes, "{kind}");
            let told = schema["properties"]["command"]["enum"].as_array().cloned().unwrap_or_default();
            let told: Vec<&str> = told.iter().filter_map(Value::as_str).collect();
            assert_eq!(told.join(" "), commands, "{kind}");
        }
    }

    #[test]
    fn a_system_text_that_says_nothing_is_no_message() {
        for system in [json!(""), json!([]), json!([{"type": "text", "text": ""}]), json!(null)] {
            let chat = parsed(json!({"system": system})).expect("valid").chat;
            assert_eq!(chat.messages, [json!({"role": "user", "content": "Hi"})]);
        }
    }

    #[test]
    fn fields_of_other_dialects_have_no_effect() {
        let asked = parsed(json!({"stop": "x", "n": 7, "response_format": {"type": "regex"}, "betas": []}));
        let params = asked.expect("valid").params;
        assert_eq!((params.n, params.stop.len(), params.grammar), (1, 0, None));
        assert_eq!(params.warnings.lines().len(), 3);
    }

    #[test]
    fn the_format_of_the_output_has_two_names() {
        let format = json!({"type": "json_schema", "schema": {}});
        for (more, field) in [
            (json!({"output_config": {"format": format}, "output_format": null}), "output_config.format"),
            (json!({"output_config": null, "output_format": format}), "output_format"),
            (json!({"output_config": {"effort": "low"}, "output_format": format}), "output_format"),
            (json!({"output_config": {"format": null}, "output_format": format}), "output_format"),
        ] {
            let asked = parsed(more).expect("valid").params.grammar.expect("a grammar");
            assert_eq!(asked.field, field);
        }
    }

    #[test]
    fn what_a_server_of_one_place_has_not_is_named() {
        let asked = parsed(json!({
            "speed": "fast", "inference_geo": "us", "thinking": {"type": "adaptive", "display": "omitted"},
            "output_config": {"effort": "low"}, "cache_control": {"type": "ephemeral"},
        }));
        let asked = asked.expect("valid");
        let lines = asked.params.warnings.lines();
        let named: Vec<&str> = lines.iter().filter_map(|line| line.split('`').nth(1)).collect();
        assert_eq!(named, ["speed", "inference_geo", "thinking.display"]);
        assert_eq!(asked.effort, Some(Effort { field: "output_config.effort", given: "low".to_owned() }));
        assert_eq!(asked.thinking, Some(Thinking::Adaptive));
        for (kind, thinking) in [("enabled", Thinking::Enabled), ("disabled", Thinking::Disabled)] {
            let asked = parsed(json!({"thinking": {"type": kind, "budget_tokens": 1024}})).expect("valid");
            assert_eq!(asked.thinking, Some(thinking));
        }
        assert_eq!(parsed(json!({})).expect("valid").thinking, None);
    }
}
