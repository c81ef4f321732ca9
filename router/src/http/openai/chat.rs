//! OpenAI's dialect for chats: `/v1/chat/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use bytes::Bytes;
use penstock_core::generation::{Done, FinishReason, GenerationRequest, Input, TextToken, TokenEvent};
use penstock_core::prompt::{Chat, Prompt};
use penstock_output::Start;
use penstock_proto::ids::TokenId;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::http::chats::reader::{Reader, Reading};
use crate::http::chats::tools::{Bound, Tools};
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
use crate::http::{Loaded, Server, body};

const NAMES: FieldNames = FieldNames::CHAT;

pub async fn chat_completions(State(server): State<Arc<Server>>, request: Request) -> Response<Body> {
    RequestContext::answer(server, request, Family::OpenAi, answer).await
}

/// The prompt of a chat and how to go on from it, for routes that answer with texts alone.
pub fn text_request(
    fields: &Fields,
    served: &str,
    loaded: &Loaded,
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
    let prepared = asked.prepare(loaded, client)?;
    let warnings = prepared.params.warnings.settle(fields.limits())?;
    Ok(TextRequest { request: prepared.request, prefix: String::new(), warnings })
}

/// A chat with its prompt, for dialects that make chats of their own requests. Its warnings are not settled yet.
pub fn prepared(fields: &Fields, server: &Server, client: &CancellationToken) -> Result<Prepared, ApiError> {
    ChatRequest::parse(fields, &server.config.model_id)?.prepare(server.loaded()?, client)
}

/// What `/chat_tokenize` needs of a chat: its prompt, of which nothing else is asked.
pub fn rendered(
    fields: &Fields,
    served: &str,
    loaded: &Loaded,
    client: &CancellationToken,
) -> Result<(String, Warnings), ApiError> {
    let mut asked = ChatRequest::parse(fields, served)?;
    let text = asked.render(loaded, client)?;
    Ok((text, asked.params.warnings.settle(fields.limits())?))
}

/// A request of this dialect, but for its prompt.
struct ChatRequest {
    params: GenerationParams,
    chat: Chat,
    tools: Option<Tools>,
    max_tokens: Option<u32>,
    logprobs: bool,
    top_logprobs: u32,
}

/// A request with its prompt.
pub struct Prepared {
    pub params: GenerationParams,
    pub request: GenerationRequest,
    pub logprobs: bool,
    /// How its answers are read.
    pub reading: Reading,
    pub prompt_characters: usize,
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
        let mut variables = variables;
        if let Some(effort) = fields.text(&request_fields::REASONING_EFFORT)? {
            // As templates call them; one that a request gives itself goes before.
            if effort == "none" {
                variables.entry("enable_thinking").or_insert(Value::Bool(false));
            }
            variables.entry("reasoning_effort").or_insert(effort.into_owned().into());
        }
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
        let tools = Tools::parse(fields)?;
        Ok(Self {
            params,
            tools,
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
    fn render(&mut self, loaded: &Loaded, client: &CancellationToken) -> Result<String, ApiError> {
        if let Some(tools) = &self.tools {
            tools.show(&mut self.chat, &loaded.chats);
        }
        loaded.serving.prompt.render(&self.chat, client).map_err(|error| NAMES.error(error))
    }

    /// The warnings are not settled yet.
    fn prepare(mut self, loaded: &Loaded, client: &CancellationToken) -> Result<Prepared, ApiError> {
        let rendered = self.render(loaded, client)?;
        let formats = &loaded.chats;
        let prompt_characters = rendered.chars().count();
        let start = formats.reasoning.map_or(Start::Content, |format| format.start_after(&rendered));
        let bound = match &self.tools {
            Some(tools) => {
                let calls = |message: &Value| message["tool_calls"].as_array().map_or(0, Vec::len);
                let before = self.chat.messages.iter().map(calls).sum();
                let asked = self.params.grammar.take();
                tools.bind(formats, start, before, asked, &mut self.params.warnings)?
            }
            None => Bound {
                reading: Reading { reasoning: formats.reasoning, start, ..Reading::plain() },
                grammar: self.params.grammar.take(),
                grammar_is_optional: false,
            },
        };
        self.params.grammar = bound.grammar;
        let request = self.params.request(Input::Rendered(rendered), self.max_tokens);
        let grammar_is_optional = bound.grammar_is_optional;
        let request = GenerationRequest { top_tokens: self.top_logprobs, grammar_is_optional, ..request };
        let (params, logprobs, reading) = (self.params, self.logprobs, bound.reading);
        Ok(Prepared { params, request, logprobs, reading, prompt_characters })
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
        check_calls(index, message.get("tool_calls"))?;
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

/// Earlier calls, as templates read them.
fn check_calls(message: usize, calls: Option<&Value>) -> Result<(), ApiError> {
    let Some(calls) = calls.filter(|calls| !calls.is_null()) else { return Ok(()) };
    let name = format!("messages[{message}].tool_calls");
    let wrong = |text: String| Err(ApiError::invalid("messages", text));
    let Some(calls) = calls.as_array() else { return wrong(format!("`{name}` must be a list")) };
    for (index, call) in calls.iter().enumerate() {
        let function = &call["function"];
        if !function["name"].is_string() {
            return wrong(format!("`{name}[{index}].function.name` must be a string"));
        }
        let arguments = &function["arguments"];
        if !(arguments.is_string() || arguments.is_object() || arguments.is_null()) {
            return wrong(format!("`{name}[{index}].function.arguments` must be a string or an object"));
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
    // Parsed, rendered and let go of in one go: the messages take many times the memory of the body.
    let prepared = body::parse_apart(context.server(), body, move |fields, server, client| {
        let mut prepared = prepared(fields, server, client)?;
        prepared.params.warnings = prepared.params.warnings.settle(fields.limits())?;
        Ok(prepared)
    });
    let Prepared { params, request, logprobs, reading, prompt_characters } = prepared.await?;
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
            choices: (0..params.n).map(|_| ChoiceStream::new(&reading)).collect(),
            done: Vec::new(),
        };
        return Ok(stream::response(context, choices, prompt_characters, writer));
    }
    let answers = choices.collect().await?;
    let all = || answers.iter().map(|(_, done)| done);
    for done in all() {
        context.succeeded(done);
    }
    let read: Vec<Read> = answers.iter().map(|(tokens, _)| Read::of(&reading, tokens)).collect();
    let choices = answers.iter().zip(&read).enumerate().map(|(index, ((tokens, done), read))| Choice {
        index,
        message: read.message(),
        logprobs: logprobs
            .as_ref()
            .map(|prompt| Logprobs { content: tokens.iter().map(|token| entry(prompt, token)).collect() }),
        finish_reason: reason(done, !read.calls.is_empty()),
    });
    let choices: Vec<_> = choices.collect();
    let mut response = json(&head.answer(Whole::Whole, &choices, Usage::of(all()), &params.warnings));
    context.head(&mut response, prompt_characters);
    totals(response.headers_mut(), all());
    Ok(response)
}

/// A call that was cut off ends for want of tokens.
fn reason(done: &Done, has_calls: bool) -> Reason {
    match done.finish_reason {
        FinishReason::EosToken | FinishReason::StopSequence if has_calls => Reason::ToolCalls,
        reason => reason.into(),
    }
}

/// A whole answer as it is read.
struct Read {
    answer: penstock_output::Answer,
    calls: Vec<String>,
}

impl Read {
    fn of(reading: &Reading, tokens: &[TokenEvent]) -> Self {
        let mut reader = reading.reader();
        let mut answer = penstock_output::Answer::default();
        for token in tokens {
            reader.push(token).iter().for_each(|delta| answer.add(delta));
        }
        reader.finish().iter().for_each(|delta| answer.add(delta));
        let ids = answer.calls.iter().enumerate().map(|(index, call)| reader.id(index, &call.name));
        Self { calls: ids.collect(), answer }
    }

    fn message(&self) -> Message<'_> {
        let penstock_output::Answer { content, reasoning, calls } = &self.answer;
        let call = |(index, (id, call)): (usize, (&'_ String, &'_ penstock_output::Call))| Call {
            index,
            id: Some(id.clone()),
            kind: CallKind::Function,
            function: FunctionCall { name: Some(call.name.clone()), arguments: call.arguments.clone() },
        };
        let reasoning = (!reasoning.is_empty()).then_some(&**reasoning);
        Message {
            role: Role::Assistant,
            content: (calls.is_empty() || !content.is_empty()).then_some(content),
            reasoning_content: reasoning,
            reasoning,
            tool_calls: self.calls.iter().zip(calls).enumerate().map(call).collect(),
        }
    }
}

/// Writes the chunks of a stream.
struct ChatChunks {
    head: AnswerHead,
    /// Said once, in the first chunk.
    warnings: Warnings,
    include_usage: bool,
    /// What spells tokens, when log probabilities are wanted.
    logprobs: Option<Arc<Prompt>>,
    choices: Vec<ChoiceStream>,
    done: Vec<Done>,
}

/// What a stream knows of one of its choices.
struct ChoiceStream {
    has_begun: bool,
    reader: Reader,
    /// Every token has a chunk: nothing is held back.
    is_plain: bool,
    /// Of tokens whose text is held back.
    logprobs: Vec<LogprobEntry>,
}

impl ChoiceStream {
    fn new(reading: &Reading) -> Self {
        Self {
            has_begun: false,
            reader: reading.reader(),
            is_plain: reading.is_plain(),
            logprobs: Vec::new(),
        }
    }
}

impl ChunkWriter for ChatChunks {
    fn token(&mut self, index: usize, token: &TokenEvent, encoder: &mut Encoder) {
        self.begin(index, encoder);
        let choice = &mut self.choices[index];
        if let Some(prompt) = &self.logprobs {
            choice.logprobs.push(entry(prompt, token));
        }
        let deltas = choice.reader.push(token);
        // An end-of-sequence token is no text, and its chunk says nothing but how likely it was.
        if deltas.is_empty() && choice.is_plain && self.logprobs.is_some() {
            self.chunk(index, Delta::default(), None, encoder);
        }
        self.tell(index, deltas, encoder);
    }

    fn done(&mut self, index: usize, done: Done, encoder: &mut Encoder) {
        self.begin(index, encoder);
        let choice = &mut self.choices[index];
        let deltas = choice.reader.finish();
        let has_calls = choice.reader.has_calls();
        self.tell(index, deltas, encoder);
        self.chunk(index, Delta::default(), Some(reason(&done, has_calls)), encoder);
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
        if !std::mem::replace(&mut self.choices[index].has_begun, true) {
            self.chunk(index, Delta { role: Some(Role::Assistant), ..Delta::default() }, None, encoder);
            self.warnings = Warnings::default();
        }
    }

    fn tell(&mut self, index: usize, deltas: Vec<penstock_output::Delta>, encoder: &mut Encoder) {
        use penstock_output::Delta as Read;
        for delta in deltas {
            let call = |index, id, name, arguments| Delta {
                content: None,
                tool_calls: Some([Call {
                    index,
                    id,
                    kind: CallKind::Function,
                    function: FunctionCall { name, arguments },
                }]),
                ..Delta::default()
            };
            let delta = match &delta {
                Read::Content(text) => Delta { content: Some(text), ..Delta::default() },
                Read::Reasoning(text) => Delta {
                    content: None,
                    reasoning_content: Some(text),
                    reasoning: Some(text),
                    ..Delta::default()
                },
                Read::CallBegins { index: nth, name } => {
                    let id = self.choices[index].reader.id(*nth, name);
                    call(*nth, Some(id), Some(name.clone()), String::new())
                }
                Read::Arguments { index: nth, json } => call(*nth, None, None, json.clone()),
                Read::CallEnds { .. } => continue,
            };
            self.chunk(index, delta, None, encoder);
        }
    }

    /// With the log probabilities that wait for a chunk.
    fn chunk(&mut self, index: usize, delta: Delta, finish_reason: Option<Reason>, encoder: &mut Encoder) {
        let waiting = &mut self.choices[index].logprobs;
        let logprobs = (!waiting.is_empty()).then(|| Logprobs { content: std::mem::take(waiting) });
        let choices = [ChunkChoice { index, delta, logprobs, finish_reason }];
        encoder.event(&self.head.answer(Chunk::Chunk, &choices, None::<Usage>, &self.warnings));
    }
}

/// The same for dialects that have no type of their own.
pub fn logprob_entry(prompt: &Prompt, event: &TokenEvent) -> Value {
    serde_json::to_value(entry(prompt, event)).unwrap_or_default()
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
    /// Null beside calls, where there is none.
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    /// The same, as some clients call it.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call>,
}

#[derive(JsonSchema, Serialize)]
#[schemars(inline)]
struct Call {
    index: usize,
    /// Once for each call.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(rename = "type")]
    kind: CallKind,
    function: FunctionCall,
}

#[derive(JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum CallKind {
    Function,
}

#[derive(JsonSchema, Serialize)]
#[schemars(inline)]
struct FunctionCall {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// JSON; in a stream, a part of it.
    arguments: String,
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
    /// Null where the chunk is of reasoning or of a call.
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[Call; 1]>,
}

impl Default for Delta<'_> {
    fn default() -> Self {
        Self { role: None, content: Some(""), reasoning_content: None, reasoning: None, tool_calls: None }
    }
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
