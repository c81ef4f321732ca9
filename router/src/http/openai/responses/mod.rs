//! `/v1/responses`, without memory: what is asked comes whole, nothing of the answer is kept. `request` makes a chat of
//! it; here are the answers, whole and as events.

mod request;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use bytes::Bytes;
use penstock_core::generation::{Done, FinishReason, TokenEvent};
use penstock_core::prompt::Prompt;
use serde_json::{Map, Value, json};

use crate::http::chats::blocks::{Block, BlockEvent, Blocks};
use crate::http::error::{ApiError, Family, FieldNames};
use crate::http::fields::Fields;
use crate::http::openai::chat::{self, Prepared, logprob_entry};
use crate::http::openai::choices::Choices;
use crate::http::openai::stream::{self, ChunkWriter};
use crate::http::openai::usage::Usage;
use crate::http::request_context::{RequestContext, totals};
use crate::http::response::json as json_response;
use crate::http::sse::Encoder;
use crate::http::warnings::Warnings;
use crate::http::{Server, body};

const NAMES: FieldNames =
    FieldNames { prompt: "input", max_new_tokens: "max_output_tokens", grammar: "text" };

pub async fn responses(State(server): State<Arc<Server>>, request: Request) -> Response<Body> {
    RequestContext::answer(server, request, Family::OpenAi, answer).await
}

async fn answer(context: Arc<RequestContext>, body: Bytes) -> Result<Response<Body>, ApiError> {
    let prompt = context.loaded()?.serving.prompt.clone();
    let read = body::parse_apart(context.server(), body, |fields, server, client| {
        let mut asked = request::translated(fields)?;
        let bytes = asked.chat.to_string();
        let translated = Fields::parse(bytes.as_bytes(), fields.limits())?;
        let prepared = chat::prepared(&translated, server, client);
        let mut prepared = prepared.map_err(|error| error.renamed(&request::NAMES))?;
        asked.warnings.take_over("", std::mem::take(&mut prepared.params.warnings));
        asked.warnings = asked.warnings.settle(fields.limits())?;
        Ok((asked, prepared))
    });
    let (asked, Prepared { mut params, request, reading, prompt_characters, .. }) = read.await?;
    params.max_tokens_name = NAMES.max_new_tokens;
    let mut choices = Choices::start(&context, vec![request], &params, 1, NAMES).await?;
    choices.first().await?;
    context.began();
    let writer = Events {
        head: Head {
            id: format!("resp_{:032x}", rand::random::<u128>()),
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            model: params.model,
            echo: asked.echo,
            warnings: asked.warnings,
        },
        custom: asked.custom,
        logprobs: asked.wants_logprobs.then_some(prompt),
        blocks: Blocks::new(&reading),
        waiting: Vec::new(),
        number: 0,
        output: Vec::new(),
        open: None,
        ended: None,
        has_begun: false,
    };
    if params.stream {
        return Ok(stream::response(context, choices, prompt_characters, writer));
    }
    let mut writer = writer;
    let answers = choices.collect().await?;
    let [(tokens, done)] = &answers[..] else { return Err(ApiError::internal()) };
    context.succeeded(done);
    // The whole answer is the collected stream: the last event has it.
    let mut nowhere = Encoder::default();
    for token in tokens {
        writer.token(0, token, &mut nowhere);
        nowhere.take();
    }
    writer.done(0, done.clone(), &mut nowhere);
    let mut response = json_response(&writer.response());
    context.head(&mut response, prompt_characters);
    totals(response.headers_mut(), [done]);
    Ok(response)
}

/// What an answer says of itself and of what was asked.
struct Head {
    id: String,
    created: u64,
    model: String,
    echo: Map<String, Value>,
    warnings: Warnings,
}

/// Writes the events of a stream, and keeps what the answer is.
struct Events {
    head: Head,
    /// Tools whose calls are told as text.
    custom: Vec<String>,
    /// What spells tokens, when log probabilities are wanted.
    logprobs: Option<Arc<Prompt>>,
    blocks: Blocks,
    /// Log probabilities of tokens whose text is held back.
    waiting: Vec<Value>,
    /// Of the next event.
    number: u64,
    /// Items that have ended.
    output: Vec<Value>,
    open: Option<Open>,
    ended: Option<Done>,
    has_begun: bool,
}

/// The item that is being written.
struct Open {
    id: String,
    block: Block,
    text: String,
    logprobs: Vec<Value>,
}

impl Events {
    fn say(&mut self, kind: &'static str, members: Value, encoder: &mut Encoder) {
        let mut event = json!({"type": kind, "sequence_number": self.number});
        if let (Value::Object(event), Value::Object(members)) = (&mut event, members) {
            event.extend(members);
        }
        self.number += 1;
        encoder.named(kind, &event);
    }

    fn begin(&mut self, encoder: &mut Encoder) {
        if !std::mem::replace(&mut self.has_begun, true) {
            for kind in ["response.created", "response.in_progress"] {
                let response = self.response();
                self.say(kind, json!({"response": response}), encoder);
            }
        }
    }

    /// The answer as it is now.
    fn response(&self) -> Value {
        let reason = self.ended.as_ref().map(|done| done.finish_reason);
        let status = match reason {
            None => "in_progress",
            Some(FinishReason::Length) => "incomplete",
            Some(FinishReason::EosToken | FinishReason::StopSequence) => "completed",
        };
        let incomplete = (status == "incomplete").then(|| json!({"reason": "max_output_tokens"}));
        let usage = self.ended.as_ref().map(|done| {
            let usage = Usage::of([done]);
            json!({
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": {"cached_tokens": usage.prompt_tokens_details.cached_tokens},
                "output_tokens": usage.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": self.blocks.reasoning_tokens()},
                "total_tokens": usage.total_tokens,
            })
        });
        let mut response = json!({
            "id": self.head.id,
            "object": "response",
            "created_at": self.head.created,
            "status": status,
            "background": false,
            "error": null,
            "incomplete_details": incomplete,
            "model": self.head.model,
            "output": self.output,
            "previous_response_id": null,
            "service_tier": "default",
            "store": false,
            "truncation": "disabled",
            "usage": usage,
        });
        if let Value::Object(members) = &mut response {
            members.extend(self.head.echo.clone());
            if !self.head.warnings.is_empty() {
                members.insert("warnings".to_owned(), json!(self.head.warnings.lines()));
            }
        }
        response
    }

    /// The open item with all of its text, or empty as when it began.
    fn item(&self, open: &Open, status: &str, is_whole: bool) -> Value {
        let text = if is_whole { open.text.as_str() } else { "" };
        match &open.block {
            Block::Text => {
                let content = if is_whole { vec![self.part(open, text)] } else { Vec::new() };
                json!({"id": open.id, "type": "message", "status": status, "role": "assistant", "content": content})
            }
            Block::Reasoning => {
                let content = if is_whole { vec![self.part(open, text)] } else { Vec::new() };
                json!({"id": open.id, "type": "reasoning", "status": status, "summary": [], "content": content})
            }
            Block::Call { id, name } if self.custom.contains(name) => json!({
                "id": open.id, "type": "custom_tool_call", "status": status, "call_id": id, "name": name,
                "input": if is_whole { input(text) } else { String::new() },
            }),
            Block::Call { id, name } => json!({
                "id": open.id, "type": "function_call", "status": status, "call_id": id, "name": name,
                "arguments": text,
            }),
        }
    }

    fn part(&self, open: &Open, text: &str) -> Value {
        match open.block {
            Block::Reasoning => json!({"type": "reasoning_text", "text": text}),
            _ => {
                let logprobs = if text.is_empty() { &[][..] } else { &open.logprobs };
                json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs})
            }
        }
    }

    fn tell(&mut self, events: Vec<BlockEvent>, encoder: &mut Encoder) {
        for event in events {
            let index = self.output.len();
            match event {
                BlockEvent::Begins(block) => {
                    let kind = match &block {
                        Block::Text => "msg",
                        Block::Reasoning => "rs",
                        Block::Call { .. } => "fc",
                    };
                    let id = format!("{kind}_{:032x}", rand::random::<u128>());
                    let open = Open { id, block, text: String::new(), logprobs: Vec::new() };
                    let item = self.item(&open, "in_progress", false);
                    self.say(
                        "response.output_item.added",
                        json!({"output_index": index, "item": item}),
                        encoder,
                    );
                    if !matches!(open.block, Block::Call { .. }) {
                        let part = self.part(&open, "");
                        let members = json!({"item_id": open.id, "output_index": index, "content_index": 0, "part": part});
                        self.say("response.content_part.added", members, encoder);
                    }
                    self.open = Some(open);
                }
                BlockEvent::Adds(block, text) => {
                    let Some(open) = &mut self.open else { continue };
                    open.text.push_str(&text);
                    let mut members = json!({"item_id": open.id, "output_index": index, "delta": text});
                    let kind = match &block {
                        Block::Text => {
                            let logprobs = std::mem::take(&mut self.waiting);
                            open.logprobs.extend_from_slice(&logprobs);
                            members["content_index"] = json!(0);
                            members["logprobs"] = json!(logprobs);
                            "response.output_text.delta"
                        }
                        Block::Reasoning => {
                            members["content_index"] = json!(0);
                            "response.reasoning_text.delta"
                        }
                        // Its text is inside of JSON: told when it has ended.
                        Block::Call { name, .. } if self.custom.contains(name) => continue,
                        Block::Call { .. } => "response.function_call_arguments.delta",
                    };
                    self.say(kind, members, encoder);
                }
                BlockEvent::Ends(_) => self.close("completed", encoder),
            }
        }
    }

    fn close(&mut self, status: &str, encoder: &mut Encoder) {
        let Some(open) = self.open.take() else { return };
        let index = self.output.len();
        let at = |more: Value| {
            let mut members = json!({"item_id": open.id, "output_index": index});
            if let (Value::Object(members), Value::Object(more)) = (&mut members, more) {
                members.extend(more);
            }
            members
        };
        match &open.block {
            Block::Call { name, .. } if self.custom.contains(name) => {
                let input = input(&open.text);
                self.say("response.custom_tool_call_input.delta", at(json!({"delta": input})), encoder);
                self.say("response.custom_tool_call_input.done", at(json!({"input": input})), encoder);
            }
            Block::Call { name, .. } => {
                let members = at(json!({"name": name, "arguments": open.text}));
                self.say("response.function_call_arguments.done", members, encoder);
            }
            block => {
                let part = self.part(&open, &open.text);
                let (kind, members) = match block {
                    Block::Reasoning => {
                        ("response.reasoning_text.done", json!({"content_index": 0, "text": open.text}))
                    }
                    _ => (
                        "response.output_text.done",
                        json!({"content_index": 0, "text": open.text, "logprobs": open.logprobs}),
                    ),
                };
                self.say(kind, at(members), encoder);
                self.say(
                    "response.content_part.done",
                    at(json!({"content_index": 0, "part": part})),
                    encoder,
                );
            }
        }
        let item = self.item(&open, status, true);
        self.say("response.output_item.done", json!({"output_index": index, "item": item}), encoder);
        self.output.push(item);
    }
}

/// The text that a call of a custom tool has, out of its arguments.
fn input(arguments: &str) -> String {
    let parsed: Option<Value> = serde_json::from_str(arguments).ok();
    let text = parsed.and_then(|parsed| parsed["input"].as_str().map(str::to_owned));
    text.unwrap_or_else(|| arguments.to_owned())
}

impl ChunkWriter for Events {
    fn token(&mut self, _: usize, token: &TokenEvent, encoder: &mut Encoder) {
        self.begin(encoder);
        if let Some(prompt) = &self.logprobs {
            self.waiting.push(logprob_entry(prompt, token));
        }
        let events = self.blocks.push(token);
        self.tell(events, encoder);
    }

    fn done(&mut self, _: usize, done: Done, encoder: &mut Encoder) {
        self.begin(encoder);
        let mut events = self.blocks.finish();
        // What is open at the end may have been cut off.
        let last = events.pop();
        self.tell(events, encoder);
        let status = if done.finish_reason == FinishReason::Length { "incomplete" } else { "completed" };
        match last {
            Some(BlockEvent::Ends(_)) => self.close(status, encoder),
            last => self.tell(last.into_iter().collect(), encoder),
        }
        self.ended = Some(done);
        let kind = if status == "incomplete" { "response.incomplete" } else { "response.completed" };
        let response = self.response();
        self.say(kind, json!({"response": response}), encoder);
    }

    fn end(&mut self, _: &mut Encoder) {}

    fn failed(&mut self, error: &ApiError, encoder: &mut Encoder) {
        let body: Value = serde_json::from_slice(&error.body(Family::OpenAi)).unwrap_or_default();
        let detail = &body["error"];
        let members = json!({"code": detail["code"], "message": detail["message"], "param": detail["param"]});
        self.say("error", members, encoder);
    }
}
