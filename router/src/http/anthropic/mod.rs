//! Anthropic's dialect: `/v1/messages` and `/v1/messages/count_tokens`. `request` makes a chat of what is asked, with what
//! `messages` reads; here are the answers, whole and as events.

mod client_tools;
pub mod messages;
pub mod request;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use bytes::Bytes;
use penstock_core::generation::{Done, FinishReason, TokenEvent};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::http::chats::blocks::{Block, BlockEvent, Blocks, Whole, whole};
use crate::http::chats::request::Prepared;
use crate::http::error::{ApiError, Family};
use crate::http::openai::choices::Choices;
use crate::http::openai::stream::{self, ChunkWriter};
use crate::http::request_context::{RequestContext, totals};
use crate::http::response::json;
use crate::http::sse::Encoder;
use crate::http::state::Server;
use crate::http::warnings::Warnings;
use crate::http::{body, tokenize};
use request::{MaxTokens, NAMES};

pub async fn messages(State(server): State<Arc<Server>>, request: Request) -> Response<Body> {
    RequestContext::answer(server, request, Family::Anthropic, answer).await
}

/// How many tokens the prompt of a request has.
pub async fn count_tokens(State(server): State<Arc<Server>>, request: Request) -> Response<Body> {
    let result = async {
        let (body, held) = tokenize::begin(&server, request, &NAMES).await?;
        let rendered = body::parse_apart(&server, held.tenant, body, |fields, server, client| {
            let mut asked = request::parse(fields, &server.config.model_id, MaxTokens::Optional)?;
            let text = asked.render(server.loaded()?, client)?;
            Ok((text, asked.params.warnings.settle(fields.limits())?))
        });
        let (text, warnings) = rendered.await?;
        let loaded = server.loaded()?;
        let listed =
            loaded.serving.prompt.tokenize(held.tenant, text, false, loaded.limits.most_told()).await;
        let tokens = listed.map_err(|error| NAMES.error(error))?.tokens;
        Ok(json(&TokenCount { input_tokens: tokens.len() as u32, warnings }))
    };
    result.await.unwrap_or_else(|error: ApiError| error.response(Family::Anthropic))
}

async fn answer(context: Arc<RequestContext>, body: Bytes) -> Result<Response<Body>, ApiError> {
    let prepared = body::parse_apart(context.server(), context.origin(), body, |fields, server, client| {
        let limits = fields.limits();
        let asked = request::parse(fields, &server.config.model_id, MaxTokens::Required)?;
        let mut prepared = asked.prepare(server.loaded()?, client)?;
        prepared.params.warnings = prepared.params.warnings.settle(limits)?;
        Ok(prepared)
    });
    let Prepared { mut params, request, reading, prompt_characters, .. } = prepared.await?;
    let mut choices = Choices::start(&context, vec![request], &params, 1, NAMES).await?;
    choices.tell_unbound(&mut params.warnings);
    let prompt_tokens = choices.prompt_tokens();
    let id = format!("msg_{:032x}", rand::random::<u128>());
    if params.stream {
        let writer = Events {
            id,
            model: params.model,
            warnings: params.warnings,
            prompt_tokens,
            blocks: Blocks::new(&reading),
            has_begun: false,
            index: 0,
        };
        return stream::response(context, choices, prompt_characters, writer).await;
    }
    choices.first().await?;
    context.began();
    let answers = choices.collect().await?;
    let [(tokens, done)] = &answers[..] else { return Err(ApiError::internal()) };
    context.succeeded(done);
    let (content, blocks) = whole(&reading, tokens);
    let message = Message {
        id: &id,
        kind: "message",
        role: "assistant",
        model: &params.model,
        content: content.iter().map(Content::of).collect(),
        stop_reason: Some(StopReason::of(done, &blocks)),
        stop_sequence: done.stop.as_deref(),
        usage: Usage::of(done, blocks.reasoning_tokens()),
        warnings: &params.warnings,
    };
    let mut response = json(&message);
    context.head(&mut response, prompt_characters);
    totals(response.headers_mut(), [[done]]);
    Ok(response)
}

#[derive(JsonSchema, Serialize)]
pub struct TokenCount {
    input_tokens: u32,
    #[serde(skip_serializing_if = "Warnings::is_empty")]
    warnings: Warnings,
}

#[derive(JsonSchema, Serialize)]
pub struct Message<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    model: &'a str,
    content: Vec<Content<'a>>,
    stop_reason: Option<StopReason>,
    stop_sequence: Option<&'a str>,
    usage: Usage,
    #[serde(skip_serializing_if = "Warnings::is_empty")]
    warnings: &'a Warnings,
}

#[derive(JsonSchema, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(inline)]
pub enum Content<'a> {
    Text {
        text: &'a str,
    },
    /// No other server can check what this one thought: the signature is empty.
    Thinking {
        thinking: &'a str,
        signature: &'static str,
    },
    ToolUse {
        id: &'a str,
        name: &'a str,
        #[schemars(with = "serde_json::Map<String, serde_json::Value>")]
        input: Box<RawValue>,
    },
}

impl<'a> Content<'a> {
    fn of(whole: &'a Whole) -> Self {
        match &whole.block {
            Block::Text => Self::Text { text: &whole.text },
            Block::Reasoning => Self::Thinking { thinking: &whole.text, signature: "" },
            Block::Call { id, name } => Self::ToolUse { id, name, input: input(&whole.text) },
        }
    }
}

/// The arguments of a call, which are an object here; an empty one where they were cut off.
fn input(arguments: &str) -> Box<RawValue> {
    let whole = serde_json::from_str::<Box<RawValue>>(arguments.trim()).ok();
    whole
        .filter(|json| json.get().starts_with('{'))
        .unwrap_or_else(|| RawValue::from_string("{}".to_owned()).unwrap_or_default())
}

#[derive(Clone, Copy, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum StopReason {
    EndTurn,
    MaxTokens,
    StopSequence,
    ToolUse,
}

impl StopReason {
    fn of(done: &Done, blocks: &Blocks) -> Self {
        match done.finish_reason {
            FinishReason::Length => Self::MaxTokens,
            reason if blocks.calls(reason) => Self::ToolUse,
            FinishReason::EosToken => Self::EndTurn,
            FinishReason::StopSequence => Self::StopSequence,
        }
    }
}

#[derive(Clone, Copy, Default, JsonSchema, Serialize)]
#[schemars(inline)]
pub struct Usage {
    /// Of the prompt, those that were not found in the cache.
    input_tokens: u32,
    cache_creation_input_tokens: u32,
    cache_read_input_tokens: u32,
    output_tokens: u32,
    output_tokens_details: OutputTokensDetails,
}

#[derive(Clone, Copy, Default, JsonSchema, Serialize)]
#[schemars(inline)]
pub struct OutputTokensDetails {
    thinking_tokens: u32,
}

impl Usage {
    fn of(done: &Done, thinking_tokens: u32) -> Self {
        Self {
            input_tokens: done.prompt_tokens - done.cached_tokens.min(done.prompt_tokens),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: done.cached_tokens,
            output_tokens: done.generated_tokens,
            output_tokens_details: OutputTokensDetails { thinking_tokens },
        }
    }
}

/// Writes the events of a stream.
struct Events {
    id: String,
    model: String,
    /// Said once, in the first event.
    warnings: Warnings,
    prompt_tokens: u32,
    blocks: Blocks,
    has_begun: bool,
    /// Of the open block, or the next.
    index: usize,
}

#[derive(JsonSchema, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event<'a> {
    MessageStart { message: Message<'a> },
    ContentBlockStart { index: usize, content_block: Content<'a> },
    ContentBlockDelta { index: usize, delta: Delta<'a> },
    ContentBlockStop { index: usize },
    MessageDelta { delta: Ended<'a>, usage: Usage },
    MessageStop,
    Ping,
}

impl Event<'_> {
    fn name(&self) -> &'static str {
        match self {
            Self::MessageStart { .. } => "message_start",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop => "message_stop",
            Self::Ping => "ping",
        }
    }
}

#[derive(JsonSchema, Serialize)]
#[serde(tag = "type")]
#[schemars(inline)]
pub enum Delta<'a> {
    #[serde(rename = "text_delta")]
    Text { text: &'a str },
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: &'a str },
    #[serde(rename = "signature_delta")]
    Signature { signature: &'static str },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: &'a str },
}

#[derive(JsonSchema, Serialize)]
#[schemars(inline)]
pub struct Ended<'a> {
    stop_reason: StopReason,
    stop_sequence: Option<&'a str>,
}

impl ChunkWriter for Events {
    fn token(&mut self, _: usize, token: TokenEvent, encoder: &mut Encoder) {
        self.begin(encoder);
        let events = self.blocks.push(&token);
        self.tell(events, encoder);
    }

    fn done(&mut self, _: usize, done: Done, encoder: &mut Encoder) {
        self.begin(encoder);
        let events = self.blocks.finish();
        self.tell(events, encoder);
        let stop_reason = StopReason::of(&done, &self.blocks);
        let delta = Ended { stop_reason, stop_sequence: done.stop.as_deref() };
        let usage = Usage::of(&done, self.blocks.reasoning_tokens());
        say(encoder, &Event::MessageDelta { delta, usage });
    }

    fn end(&mut self, encoder: &mut Encoder) {
        say(encoder, &Event::MessageStop);
    }

    /// Clients take nothing before `message_start`.
    fn break_silence(&mut self, encoder: &mut Encoder) {
        if !self.begin(encoder) {
            say(encoder, &Event::Ping);
        }
    }

    fn failed(&mut self, error: &ApiError, encoder: &mut Encoder) {
        encoder.named_raw("error", &error.body(Family::Anthropic));
    }
}

fn say(encoder: &mut Encoder, event: &Event) {
    encoder.named(event.name(), event);
}

impl Events {
    /// False: the message has begun before.
    fn begin(&mut self, encoder: &mut Encoder) -> bool {
        if std::mem::replace(&mut self.has_begun, true) {
            return false;
        }
        let message = Message {
            id: &self.id,
            kind: "message",
            role: "assistant",
            model: &self.model,
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage: Usage { input_tokens: self.prompt_tokens, ..Usage::default() },
            warnings: &self.warnings,
        };
        say(encoder, &Event::MessageStart { message });
        true
    }

    fn tell(&mut self, events: Vec<BlockEvent>, encoder: &mut Encoder) {
        for event in events {
            match event {
                BlockEvent::Begins(block) => {
                    let content_block = match &block {
                        Block::Text => Content::Text { text: "" },
                        Block::Reasoning => Content::Thinking { thinking: "", signature: "" },
                        Block::Call { id, name } => Content::ToolUse { id, name, input: input("") },
                    };
                    say(encoder, &Event::ContentBlockStart { index: self.index, content_block });
                }
                BlockEvent::Adds(block, text) => {
                    let delta = match block {
                        Block::Text => Delta::Text { text: &text },
                        Block::Reasoning => Delta::Thinking { thinking: &text },
                        Block::Call { .. } => Delta::InputJson { partial_json: &text },
                    };
                    say(encoder, &Event::ContentBlockDelta { index: self.index, delta });
                }
                BlockEvent::Ends(block) => {
                    if block == Block::Reasoning {
                        let delta = Delta::Signature { signature: "" };
                        say(encoder, &Event::ContentBlockDelta { index: self.index, delta });
                    }
                    say(encoder, &Event::ContentBlockStop { index: self.index });
                    self.index += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::http::chats::reader::Reading;
    use crate::http::openai::stream::tests::Silent;
    use crate::http::sse::tests::told_in_silence;

    /// What is no JSON, or was cut off, is told as it is in a stream alone.
    #[test]
    fn the_input_of_a_call_is_an_object() {
        for (arguments, told) in [
            ("{\"a\": b}", "{}"),
            ("{\"a\": ", "{}"),
            ("[1]", "{}"),
            ("", "{}"),
            (" {\"a\": 1}\n", "{\"a\": 1}"),
        ] {
            assert_eq!(input(arguments).get(), told, "{arguments}");
        }
    }

    /// A comment would be data to some clients, and the end of the stream.
    #[tokio::test(start_paused = true)]
    async fn silence_is_broken_by_pings() {
        let writer = Events {
            id: "msg_1".into(),
            model: "m".into(),
            warnings: Warnings::default(),
            prompt_tokens: 7,
            blocks: Blocks::new(&Reading::plain()),
            has_begun: false,
            index: 0,
        };
        let told = told_in_silence(Silent(writer), 46).await;
        let events: Vec<&str> = told.split("\n\n").filter(|event| !event.is_empty()).collect();
        let read = |event: &&str| {
            let (name, data) = event.split_once("\ndata: ").expect("a name and data");
            let data: Value = serde_json::from_str(data).expect("JSON");
            let name = name.strip_prefix("event: ").expect("a name");
            assert_eq!(data["type"], name);
            (name.to_owned(), data["message"]["usage"]["input_tokens"].clone())
        };
        let ping = ("ping".to_owned(), Value::Null);
        let begins = ("message_start".to_owned(), 7.into());
        assert_eq!(events.iter().map(read).collect::<Vec<_>>(), [begins, ping.clone(), ping]);
    }
}
