//! OpenAI's dialect for chats: `/v1/chat/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use bytes::Bytes;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::generation::{Done, GenerationRequest, Input, TextToken, TokenEvent};
use crate::http::error::{ApiError, Family, FieldNames};
use crate::http::fields::{Fields, shortened};
use crate::http::openai::choices::Choices;
use crate::http::openai::params::{GenerationParams, max_tokens};
use crate::http::openai::stream::{self, ChunkWriter};
use crate::http::openai::usage::Usage;
use crate::http::openai::{Answer, AnswerHead, Reason};
use crate::http::request_context::{RequestContext, totals};
use crate::http::request_fields;
use crate::http::response::json;
use crate::http::sse::Encoder;
use crate::http::text_request::TextRequest;
use crate::http::warnings::Warnings;
use crate::http::{Server, body};
use crate::ids::TokenId;
use crate::prompt::{Chat, Prompt};

const NAMES: FieldNames = FieldNames::CHAT;

pub async fn chat_completions(State(server): State<Arc<Server>>, request: Request) -> Response<Body> {
    RequestContext::answer(server, request, Family::OpenAi, answer).await
}

/// The prompt of a chat and how to go on from it, for routes that answer with texts alone.
pub fn text_request(
    fields: &Fields,
    served: &str,
    prompt: &Prompt,
    client: &CancellationToken,
) -> Result<TextRequest, ApiError> {
    let mut asked = ChatRequest::parse(fields, served)?;
    if asked.params.n > 1 {
        return Err(ApiError::invalid("n", "`n` must be 1 on this route"));
    }
    for (name, given) in [("stream", asked.params.stream), ("logprobs", asked.logprobs)] {
        if given {
            asked.params.warnings.no_effect(name, "here: the answer is the text alone");
        }
    }
    asked.top_logprobs = 0;
    let rendered = asked.render(prompt, client)?;
    let warnings = std::mem::take(&mut asked.params.warnings).settle(fields.limits())?;
    Ok(TextRequest { request: asked.request(rendered), prefix: String::new(), warnings })
}

/// What `/chat_tokenize` needs of a chat: its prompt, of which nothing else is asked.
pub fn rendered(
    fields: &Fields,
    served: &str,
    prompt: &Prompt,
    client: &CancellationToken,
) -> Result<(String, Warnings), ApiError> {
    let asked = ChatRequest::parse(fields, served)?;
    Ok((asked.render(prompt, client)?, asked.params.warnings))
}

/// A request of this dialect, but for its prompt.
struct ChatRequest {
    params: GenerationParams,
    chat: Chat,
    max_tokens: Option<u32>,
    logprobs: bool,
    top_logprobs: u32,
}

impl ChatRequest {
    fn parse(fields: &Fields, served: &str) -> Result<Self, ApiError> {
        let messages = fields.required(&request_fields::MESSAGES, fields.tree(&request_fields::MESSAGES)?)?;
        let Value::Array(messages) = messages else { unreachable!("the table says that it is a list") };
        check(&messages)?;
        let variables = match fields.tree(&request_fields::CHAT_TEMPLATE_KWARGS)? {
            Some(Value::Object(variables)) => variables,
            _ => Default::default(),
        };
        let mut params = GenerationParams::parse(fields, served, &request_fields::chat_fields())?;
        if fields.small(&request_fields::OPENAI_BEST_OF)?.is_some_and(|n| n > 1) {
            return Err(ApiError::invalid("best_of", "`best_of` is not supported for chats; `n` is"));
        }
        let logprobs = fields.boolean(&request_fields::LOGPROBS)?.unwrap_or(false);
        let mut top_logprobs = fields.small(&request_fields::TOP_LOGPROBS)?.unwrap_or(0);
        if top_logprobs > 0 && !logprobs {
            params.warnings.no_effect("top_logprobs", "without `logprobs`");
            top_logprobs = 0;
        }
        let warnings = params.warnings.settle(fields.limits())?;
        Ok(Self {
            params: GenerationParams { warnings, ..params },
            chat: Chat {
                messages,
                continue_final_message: fields.boolean(&request_fields::CONTINUE_FINAL_MESSAGE)?,
                add_generation_prompt: fields.boolean(&request_fields::ADD_GENERATION_PROMPT)?,
                tools: None,
                variables,
            },
            max_tokens: max_tokens(fields, &request_fields::MAX_TOKENS)?,
            logprobs,
            top_logprobs,
        })
    }
}

impl ChatRequest {
    fn render(&self, prompt: &Prompt, client: &CancellationToken) -> Result<String, ApiError> {
        prompt.render(&self.chat, client).map_err(|error| NAMES.error(error))
    }

    fn request(&self, rendered: String) -> GenerationRequest {
        let request = self.params.request(Input::Rendered(rendered), self.max_tokens);
        GenerationRequest { top_tokens: self.top_logprobs, ..request }
    }
}

/// Every message is an object with a role, and content that a template can read.
fn check(messages: &[Value]) -> Result<(), ApiError> {
    let wrong = |text: String| Err(ApiError::invalid("messages", text));
    if messages.is_empty() {
        return wrong("`messages` must have at least one message".into());
    }
    for (index, message) in messages.iter().enumerate() {
        let Some(message) = message.as_object() else {
            return wrong(format!("`messages[{index}]` must be an object"));
        };
        if !message.get("role").is_some_and(Value::is_string) {
            return wrong(format!("`messages[{index}].role` must be a string"));
        }
        match message.get("content") {
            Some(Value::String(_)) => {}
            Some(Value::Array(parts)) => check_parts(index, parts)?,
            None | Some(Value::Null) => {
                let calls = message.get("tool_calls").is_some_and(|calls| !calls.is_null());
                if !calls {
                    return wrong(format!("`messages[{index}].content` is required"));
                }
            }
            Some(_) => {
                return wrong(format!("`messages[{index}].content` must be a string or a list of parts"));
            }
        }
    }
    Ok(())
}

fn check_parts(message: usize, parts: &[Value]) -> Result<(), ApiError> {
    for (index, part) in parts.iter().enumerate() {
        let name = format!("messages[{message}].content[{index}]");
        let wrong = |text: String| Err(ApiError::invalid("messages", text));
        match part.get("type").and_then(Value::as_str) {
            Some("text") if part.get("text").is_some_and(Value::is_string) => {}
            Some("text") => return wrong(format!("`{name}.text` must be a string")),
            Some(other) => {
                let other = shortened(other);
                return wrong(format!("`{name}` of type {other:?} is not supported yet: only text is"));
            }
            None => return wrong(format!("`{name}.type` must be a string")),
        }
    }
    Ok(())
}

async fn answer(context: Arc<RequestContext>, body: Bytes) -> Result<Response<Body>, ApiError> {
    let prompt = context.loaded()?.serving.prompt.clone();
    let templates = prompt.clone();
    // Parsed, rendered and let go of in one go: the messages take many times the memory of the body.
    let (params, logprobs, request, prompt_characters) =
        body::parse_apart(context.server(), body, move |fields, server, client| {
            let asked = ChatRequest::parse(fields, &server.config.model_id)?;
            let rendered = asked.render(&templates, client)?;
            let characters = rendered.chars().count();
            let request = asked.request(rendered);
            Ok((asked.params, asked.logprobs, request, characters))
        })
        .await?;
    let mut choices = Choices::start(&context, vec![request], &params, params.n, NAMES).await?;
    choices.first().await?;
    context.began();
    let head = AnswerHead::new("chatcmpl", params.model);
    let logprobs = logprobs.then_some(prompt);
    if params.stream {
        let writer = ChatChunks {
            head,
            warnings: params.warnings,
            include_usage: params.include_usage,
            logprobs,
            begun: vec![false; params.n as usize],
            done: Vec::new(),
        };
        return Ok(stream::response(context, choices, prompt_characters, writer));
    }
    let answers = choices.collect().await?;
    let all = || answers.iter().map(|(_, done)| done);
    for done in all() {
        context.succeeded(done);
    }
    let choices = answers.iter().enumerate().map(|(index, (tokens, done))| Choice {
        index,
        message: Message { role: Role::Assistant, content: &done.text },
        logprobs: logprobs
            .as_ref()
            .map(|prompt| Logprobs { content: tokens.iter().map(|token| entry(prompt, token)).collect() }),
        finish_reason: done.finish_reason.into(),
    });
    let choices: Vec<_> = choices.collect();
    let mut response = json(&head.answer(Whole::Whole, &choices, Usage::of(all()), &params.warnings));
    context.head(&mut response, prompt_characters);
    totals(response.headers_mut(), all());
    Ok(response)
}

/// Writes the chunks of a stream.
struct ChatChunks {
    head: AnswerHead,
    /// Said once, in the first chunk.
    warnings: Warnings,
    include_usage: bool,
    /// What spells tokens, when log probabilities are wanted.
    logprobs: Option<Arc<Prompt>>,
    begun: Vec<bool>,
    done: Vec<Done>,
}

impl ChunkWriter for ChatChunks {
    fn token(&mut self, index: usize, token: &TokenEvent, encoder: &mut Encoder) {
        self.begin(index, encoder);
        let logprobs = self.logprobs.as_ref().map(|prompt| Logprobs { content: vec![entry(prompt, token)] });
        // An end-of-sequence token is no text: its chunk would say nothing.
        if !token.special || logprobs.is_some() {
            let text = if token.special { "" } else { &token.text };
            self.chunk(index, Delta { role: None, content: text }, logprobs, None, encoder);
        }
    }

    fn done(&mut self, index: usize, done: Done, encoder: &mut Encoder) {
        self.begin(index, encoder);
        let reason = done.finish_reason.into();
        self.chunk(index, Delta { role: None, content: "" }, None, Some(reason), encoder);
        self.done.push(done);
    }

    fn end(&mut self, encoder: &mut Encoder) {
        if self.include_usage {
            let usage = Some(Usage::of(&self.done));
            encoder.event(&self.head.answer::<_, ChunkChoice, _>(
                Chunk::Chunk,
                &[],
                usage,
                &Warnings::default(),
            ));
        }
        encoder.done();
    }
}

impl ChatChunks {
    /// The first chunk of a choice has the role.
    fn begin(&mut self, index: usize, encoder: &mut Encoder) {
        if !std::mem::replace(&mut self.begun[index], true) {
            let delta = Delta { role: Some(Role::Assistant), content: "" };
            self.chunk(index, delta, None, None, encoder);
            self.warnings = Warnings::default();
        }
    }

    fn chunk(
        &self,
        index: usize,
        delta: Delta,
        logprobs: Option<Logprobs>,
        finish_reason: Option<Reason>,
        encoder: &mut Encoder,
    ) {
        let choices = [ChunkChoice { index, delta, logprobs, finish_reason }];
        encoder.event(&self.head.answer(Chunk::Chunk, &choices, None::<Usage>, &self.warnings));
    }
}

fn entry(prompt: &Prompt, event: &TokenEvent) -> LogprobEntry {
    let one = spelled(prompt, event.id, event.logprob);
    let alternative =
        |token: &TextToken| spelled(prompt, token.id, token.logprob.unwrap_or(f32::NEG_INFINITY));
    LogprobEntry { one, top_logprobs: event.top.iter().map(alternative).collect() }
}

fn spelled(prompt: &Prompt, id: TokenId, logprob: f32) -> TokenLogprob {
    let bytes = prompt.token_bytes(id);
    TokenLogprob {
        token: String::from_utf8_lossy(&bytes).into_owned(),
        // JSON has no infinity; this is how OpenAI writes "as good as impossible".
        logprob: if logprob.is_finite() { logprob } else { -9999.0 },
        bytes,
    }
}

pub type ChatCompletion<'a> = Answer<'a, Whole, Choice<'a>, Usage>;
pub type ChatChunk<'a> = Answer<'a, Chunk, ChunkChoice<'a>, Option<Usage>>;

#[derive(JsonSchema, Serialize)]
#[schemars(inline)]
pub enum Whole {
    #[serde(rename = "chat.completion")]
    Whole,
}

#[derive(JsonSchema, Serialize)]
#[schemars(inline)]
pub enum Chunk {
    #[serde(rename = "chat.completion.chunk")]
    Chunk,
}

#[derive(JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum Role {
    Assistant,
}

#[derive(JsonSchema, Serialize)]
#[schemars(inline)]
pub struct Choice<'a> {
    index: usize,
    message: Message<'a>,
    logprobs: Option<Logprobs>,
    finish_reason: Reason,
}

#[derive(JsonSchema, Serialize)]
#[schemars(inline)]
struct Message<'a> {
    role: Role,
    content: &'a str,
}

#[derive(JsonSchema, Serialize)]
#[schemars(inline)]
pub struct ChunkChoice<'a> {
    index: usize,
    delta: Delta<'a>,
    logprobs: Option<Logprobs>,
    finish_reason: Option<Reason>,
}

#[derive(JsonSchema, Serialize)]
#[schemars(inline)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<Role>,
    content: &'a str,
}

#[derive(JsonSchema, Serialize)]
#[schemars(rename = "ChatLogprobs")]
struct Logprobs {
    content: Vec<LogprobEntry>,
}

#[derive(JsonSchema, Serialize)]
#[schemars(inline)]
struct LogprobEntry {
    #[serde(flatten)]
    one: TokenLogprob,
    top_logprobs: Vec<TokenLogprob>,
}

#[derive(JsonSchema, Serialize)]
struct TokenLogprob {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}
