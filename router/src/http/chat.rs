//! OpenAI's dialect for chats: `/v1/chat/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use bytes::Bytes;
use futures::stream::{self, BoxStream, SelectAll, StreamExt};
use serde::Serialize;
use serde_json::Value;

use crate::generation::{Done, GenerationEvent, GenerationRequest, Input, StopText, TextToken, TokenEvent};
use crate::http::choices::Choices;
use crate::http::error::{ApiError, Cause, Family};
use crate::http::fields::Fields;
use crate::http::openai::{
    FINGERPRINT, Manner, Usage, finish_reason, in_openai_words, max_tokens, new_id, unix_seconds,
};
use crate::http::sse::{self, Encoder};
use crate::http::tgi::{Span, TextRequest, json, spans};
use crate::http::visit::{Visit, totals};
use crate::http::warnings::Warnings;
use crate::http::{Server, body};
use crate::ids::TokenId;
use crate::limits;
use crate::prompt::{Chat, Prompt};

pub async fn chat_completions(State(server): State<Arc<Server>>, request: Request) -> Response<Body> {
    Visit::answer(server, request, Family::OpenAi, async |visit, body| {
        answer(visit, &body).await.map_err(|error| in_openai_words(error, "messages"))
    })
    .await
}

/// The prompt text of a chat and its tokens.
pub async fn chat_tokenize(State(server): State<Arc<Server>>, request: Request) -> Response<Body> {
    let result = async {
        let loaded = server.loaded()?;
        let body = body::read(request, server.body_limits()).await?;
        let asked = Asked::parse(&Fields::parse(&body, &loaded.limits)?, &server.config.model_id)?;
        let text = loaded.serving.prompt.render(asked.chat.clone()).await?;
        let tokens = loaded.serving.prompt.tokenize(text.clone(), false).await?;
        Ok(json(&Tokenized {
            tokenize_response: spans(&tokens),
            templated_text: &text,
            warnings: &asked.manner.warnings,
        }))
    };
    result.await.unwrap_or_else(|error: ApiError| in_openai_words(error, "messages").response(Family::Tgi))
}

/// The prompt of a chat and how to go on from it, for routes that answer with texts alone.
pub async fn text_request(
    fields: &Fields<'_>,
    served: &str,
    prompt: &Prompt,
) -> Result<TextRequest, ApiError> {
    let mut asked = Asked::parse(fields, served)?;
    if asked.manner.n > 1 {
        return Err(ApiError::invalid("n", "`n` must be 1 on this route"));
    }
    for (name, given) in [("stream", asked.manner.stream), ("logprobs", asked.logprobs)] {
        if given {
            asked.manner.warnings.no_effect(name, "here: the answer is the text alone");
        }
    }
    asked.top_logprobs = 0;
    let rendered = prompt.render(asked.chat.clone()).await?;
    let warnings = std::mem::take(&mut asked.manner.warnings).settle(fields.limits())?;
    Ok(TextRequest { request: asked.request(rendered), prefix: String::new(), warnings })
}

/// A request of this dialect, but for its prompt.
struct Asked {
    manner: Manner,
    chat: Chat,
    max_tokens: Option<u32>,
    logprobs: bool,
    top_logprobs: u32,
}

impl Asked {
    fn parse(fields: &Fields, served: &str) -> Result<Self, ApiError> {
        let messages = fields.required(&limits::MESSAGES, fields.tree(&limits::MESSAGES)?)?;
        let Value::Array(messages) = messages else { unreachable!("the table says that it is a list") };
        check(&messages)?;
        let variables = match fields.tree(&limits::CHAT_TEMPLATE_KWARGS)? {
            Some(Value::Object(variables)) => variables,
            _ => Default::default(),
        };
        let mut manner = Manner::parse(fields, served, &limits::chat_fields())?;
        if fields.small(&limits::OPENAI_BEST_OF)?.is_some_and(|n| n > 1) {
            return Err(ApiError::invalid("best_of", "`best_of` is not supported for chats; `n` is"));
        }
        let logprobs = fields.boolean(&limits::LOGPROBS)?.unwrap_or(false);
        let mut top_logprobs = fields.small(&limits::TOP_LOGPROBS)?.unwrap_or(0);
        if top_logprobs > 0 && !logprobs {
            manner.warnings.no_effect("top_logprobs", "without `logprobs`");
            top_logprobs = 0;
        }
        let warnings = manner.warnings.settle(fields.limits())?;
        Ok(Self {
            manner: Manner { warnings, ..manner },
            chat: Chat {
                messages,
                continue_final_message: fields.boolean(&limits::CONTINUE_FINAL_MESSAGE)?,
                add_generation_prompt: fields.boolean(&limits::ADD_GENERATION_PROMPT)?,
                tools: None,
                variables,
            },
            max_tokens: max_tokens(fields, &limits::MAX_TOKENS)?,
            logprobs,
            top_logprobs,
        })
    }
}

impl Asked {
    fn request(&self, rendered: String) -> GenerationRequest {
        let manner = &self.manner;
        GenerationRequest {
            input: Input::Rendered(rendered),
            sampling: manner.sampling.clone(),
            reported_seed: manner.reported_seed,
            max_new_tokens: self.max_tokens,
            min_new_tokens: manner.min_tokens,
            watermark: manner.watermark,
            truncate: None,
            stop: manner.stop.clone(),
            stop_text: StopText::Omit,
            ignore_eos: manner.ignore_eos,
            stop_token_ids: manner.stop_token_ids.clone(),
            top_tokens: self.top_logprobs,
            prompt_logprobs: false,
            user: manner.user.clone(),
            max_time: None,
        }
    }
}

/// Every message is an object with a role, and content that a template can read.
fn check(messages: &[Value]) -> Result<(), ApiError> {
    let wrong = |text: String| Err(ApiError::invalid("messages", text));
    if messages.is_empty() {
        return wrong("`messages` must have at least one message".into());
    }
    if messages.len() > limits::MESSAGES_MOST {
        let (most, given) = (limits::MESSAGES_MOST, messages.len());
        return wrong(format!("`messages` must have at most {most} messages. Given: {given}"));
    }
    for (place, message) in messages.iter().enumerate() {
        let Some(message) = message.as_object() else {
            return wrong(format!("`messages[{place}]` must be an object"));
        };
        if !message.get("role").is_some_and(Value::is_string) {
            return wrong(format!("`messages[{place}].role` must be a string"));
        }
        match message.get("content") {
            Some(Value::String(_)) => {}
            Some(Value::Array(parts)) => check_parts(place, parts)?,
            None | Some(Value::Null) => {
                let calls = message.get("tool_calls").is_some_and(|calls| !calls.is_null());
                if !calls {
                    return wrong(format!("`messages[{place}].content` is required"));
                }
            }
            Some(_) => {
                return wrong(format!("`messages[{place}].content` must be a string or a list of parts"));
            }
        }
    }
    Ok(())
}

fn check_parts(message: usize, parts: &[Value]) -> Result<(), ApiError> {
    for (place, part) in parts.iter().enumerate() {
        let name = format!("messages[{message}].content[{place}]");
        let wrong = |text: String| Err(ApiError::invalid("messages", text));
        match part.get("type").and_then(Value::as_str) {
            Some("text") if part.get("text").is_some_and(Value::is_string) => {}
            Some("text") => return wrong(format!("`{name}.text` must be a string")),
            Some(other) => {
                let other = crate::http::fields::shortened(other);
                return wrong(format!("`{name}` of type {other:?} is not supported yet: only text is"));
            }
            None => return wrong(format!("`{name}.type` must be a string")),
        }
    }
    Ok(())
}

async fn answer(visit: &mut Option<Visit>, body: &Bytes) -> Result<Response<Body>, ApiError> {
    let staying = visit.as_mut().expect("taken only by the stream at the end");
    let (asked, prompt) = {
        let loaded = staying.loaded()?;
        let fields = Fields::parse(body, &loaded.limits)?;
        (Asked::parse(&fields, &staying.server().config.model_id)?, loaded.serving.prompt.clone())
    };
    let rendered = prompt.render(asked.chat.clone()).await?;
    let prompt_characters = rendered.chars().count();
    let request = asked.request(rendered);
    let manner = asked.manner;
    let mut choices = Choices::start(staying, vec![request], &manner, manner.n).await?;
    choices.first().await?;
    staying.began();
    let head = Head { id: new_id("chatcmpl"), created: unix_seconds(), model: manner.model };
    let logprobs = asked.logprobs.then_some(prompt);
    if manner.stream {
        let visit = visit.take().expect("it was there above");
        let mut response_head = Response::default();
        visit.head(&mut response_head, prompt_characters);
        let state = ChunkStream {
            events: choices.events(),
            visit,
            encoder: Encoder::default(),
            head,
            warnings: manner.warnings,
            include_usage: manner.include_usage,
            logprobs,
            begun: vec![false; manner.n as usize],
            done: Vec::new(),
        };
        let mut response = sse::response(stream::unfold(Some(Box::new(state)), async |state| {
            let mut state = state?;
            let (bytes, goes_on) = state.next().await;
            Some((bytes, goes_on.then_some(state)))
        }));
        response.headers_mut().extend(response_head.into_parts().0.headers);
        return Ok(response);
    }
    let answers = choices.collect().await?;
    let all = || answers.iter().map(|(_, done)| done);
    for done in all() {
        staying.succeeded(done);
    }
    let choices = answers.iter().enumerate().map(|(index, (tokens, done))| Choice {
        index,
        message: Message { role: "assistant", content: &done.text },
        logprobs: logprobs
            .as_ref()
            .map(|prompt| Logprobs { content: tokens.iter().map(|token| entry(prompt, token)).collect() }),
        finish_reason: finish_reason(done.finish_reason),
    });
    let completion = Completion {
        object: "chat.completion",
        id: &head.id,
        created: head.created,
        model: &head.model,
        system_fingerprint: FINGERPRINT,
        choices: choices.collect(),
        usage: Usage::of(all()),
        warnings: &manner.warnings,
    };
    let mut response = json(&completion);
    staying.head(&mut response, prompt_characters);
    totals(response.headers_mut(), all());
    Ok(response)
}

#[derive(Serialize)]
struct Tokenized<'a> {
    tokenize_response: Vec<Span<'a>>,
    templated_text: &'a str,
    #[serde(skip_serializing_if = "Warnings::is_empty")]
    warnings: &'a Warnings,
}

/// What all chunks of an answer say.
struct Head {
    id: String,
    created: u64,
    model: String,
}

struct ChunkStream {
    events: SelectAll<BoxStream<'static, (usize, GenerationEvent)>>,
    visit: Visit,
    encoder: Encoder,
    head: Head,
    /// Said once, in the first chunk.
    warnings: Warnings,
    include_usage: bool,
    /// What spells tokens, when log probabilities are wanted.
    logprobs: Option<Arc<Prompt>>,
    begun: Vec<bool>,
    done: Vec<Done>,
}

impl ChunkStream {
    /// The next write, and whether another follows.
    async fn next(&mut self) -> (Bytes, bool) {
        loop {
            let goes_on = match self.events.next().await {
                Some((place, GenerationEvent::Token(token))) => {
                    self.begin(place);
                    let logprobs = self
                        .logprobs
                        .as_ref()
                        .map(|prompt| Logprobs { content: vec![entry(prompt, &token)] });
                    // An end-of-sequence token is no text: its chunk would say nothing.
                    if !token.special || logprobs.is_some() {
                        let text = if token.special { "" } else { &token.text };
                        self.chunk(place, Delta { role: None, content: text }, logprobs, None);
                    }
                    true
                }
                Some((place, GenerationEvent::Done(done))) => {
                    self.visit.succeeded(&done);
                    self.begin(place);
                    let reason = finish_reason(done.finish_reason);
                    self.chunk(place, Delta { role: None, content: "" }, None, Some(reason));
                    self.done.push(done);
                    let all = self.done.len() == self.begun.len();
                    if all {
                        self.end();
                    }
                    !all
                }
                Some((_, GenerationEvent::Failed(failure))) => {
                    self.fail(in_openai_words(failure.into(), "messages"))
                }
                None => self.fail(ApiError::new(Cause::IncompleteStream, "Incomplete generation")),
            };
            let bytes = self.encoder.take();
            if !(goes_on && bytes.is_empty()) {
                return (bytes, goes_on);
            }
        }
    }

    /// The first chunk of a choice has the role.
    fn begin(&mut self, place: usize) {
        if !std::mem::replace(&mut self.begun[place], true) {
            self.chunk(place, Delta { role: Some("assistant"), content: "" }, None, None);
            self.warnings = Warnings::default();
        }
    }

    fn chunk(
        &mut self,
        index: usize,
        delta: Delta,
        logprobs: Option<Logprobs>,
        finish_reason: Option<&'static str>,
    ) {
        let choices = [ChunkChoice { index, delta, logprobs, finish_reason }];
        self.encoder.event(&Chunk::new(&self.head, &choices, None, &self.warnings));
    }

    fn end(&mut self) {
        if self.include_usage {
            let usage = Usage::of(&self.done);
            self.encoder.event(&Chunk::new(&self.head, &[], Some(usage), &Warnings::default()));
        }
        self.encoder.done();
    }

    fn fail(&mut self, error: ApiError) -> bool {
        self.visit.failed(&error);
        self.encoder.raw(&error.body(Family::OpenAi));
        false
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

#[derive(Serialize)]
struct Completion<'a> {
    object: &'static str,
    id: &'a str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'static str,
    choices: Vec<Choice<'a>>,
    usage: Usage,
    #[serde(skip_serializing_if = "Warnings::is_empty")]
    warnings: &'a Warnings,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: usize,
    message: Message<'a>,
    logprobs: Option<Logprobs>,
    finish_reason: &'static str,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: &'a str,
}

#[derive(Serialize)]
struct Chunk<'a> {
    object: &'static str,
    id: &'a str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'static str,
    choices: &'a [ChunkChoice<'a>],
    usage: Option<Usage>,
    #[serde(skip_serializing_if = "Warnings::is_empty")]
    warnings: &'a Warnings,
}

impl<'a> Chunk<'a> {
    fn new(
        head: &'a Head,
        choices: &'a [ChunkChoice<'a>],
        usage: Option<Usage>,
        warnings: &'a Warnings,
    ) -> Self {
        Self {
            object: "chat.completion.chunk",
            id: &head.id,
            created: head.created,
            model: &head.model,
            system_fingerprint: FINGERPRINT,
            choices,
            usage,
            warnings,
        }
    }
}

#[derive(Serialize)]
struct ChunkChoice<'a> {
    index: usize,
    delta: Delta<'a>,
    logprobs: Option<Logprobs>,
    finish_reason: Option<&'static str>,
}

#[derive(Serialize)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    content: &'a str,
}

#[derive(Serialize)]
struct Logprobs {
    content: Vec<LogprobEntry>,
}

#[derive(Serialize)]
struct LogprobEntry {
    #[serde(flatten)]
    one: TokenLogprob,
    top_logprobs: Vec<TokenLogprob>,
}

#[derive(Serialize)]
struct TokenLogprob {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}
