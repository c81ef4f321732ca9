//! `/v1/responses`, without memory: what is asked comes whole, nothing of the answer is kept. `items` reads the items of `input`, of
//! which `input` makes messages, and `request` a chat; `answer` has the types of what is answered; here they are made, whole and as events.

pub mod answer;
mod encrypted_content;
mod input;
pub mod items;
pub mod request;
mod search;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use bytes::Bytes;
use penstock_core::generation::{Done, FinishReason, TokenEvent};
use penstock_core::prompt::Prompt;

use crate::http::body;
use crate::http::chats::blocks::{Block, BlockEvent, Blocks};
use crate::http::chats::reader::{Reading, custom_input};
use crate::http::chats::request::Prepared;
use crate::http::error::{ApiError, Family};
use crate::http::openai::chat::{LogprobEntry, entry};
use crate::http::openai::choices::Choices;
use crate::http::openai::stream::{self, ChunkWriter};
use crate::http::openai::usage::Usage;
use crate::http::request_context::{RequestContext, totals};
use crate::http::response::json as json_response;
use crate::http::sse::Encoder;
use crate::http::state::Server;
use crate::http::warnings::Warnings;
use answer::{
    Echo, ErrorDetail, Event, Failure, IncompleteDetails, InputTokensDetails, Item, OutputTokensDetails,
    Part, ResponseUsage, Role, Status,
};
use request::{ReasoningOutput, ResponseRequest};

pub async fn responses(State(server): State<Arc<Server>>, request: Request) -> Response<Body> {
    RequestContext::answer(server, request, Family::OpenAi, answered).await
}

async fn answered(context: Arc<RequestContext>, body: Bytes) -> Result<Response<Body>, ApiError> {
    let prompt = context.loaded()?.serving.prompt.clone();
    let read = body::parse_apart(context.server(), context.origin(), body, |fields, server, client| {
        let limits = fields.limits();
        let ResponseRequest { chat, echo, service_tier, reasoning_output } =
            request::parse(fields, &server.config.model_id)?;
        let mut prepared = chat.prepare(server.loaded()?, client)?;
        prepared.params.warnings = prepared.params.warnings.settle(limits)?;
        Ok((prepared, echo, service_tier, reasoning_output))
    });
    let (prepared, echo, service_tier, reasoning_output) = read.await?;
    let Prepared { mut params, request, logprobs, reading, prompt_characters, names } = prepared;
    let mut choices = Choices::start(&context, vec![request], &params, 1, names).await?;
    choices.tell_unbound(&mut params.warnings);
    let head = Head {
        id: format!("resp_{:032x}", rand::random::<u128>()),
        created: seconds(),
        model: params.model,
        echo,
        service_tier,
        reasoning_output,
        warnings: params.warnings,
    };
    let writer = Events::new(head, logprobs.then_some(prompt), reading);
    if params.stream {
        return stream::response(context, choices, prompt_characters, writer).await;
    }
    choices.first().await?;
    context.began();
    let Ok([(tokens, done)]) = <[_; 1]>::try_from(choices.collect().await?) else {
        return Err(ApiError::internal());
    };
    context.succeeded(&done);
    let told = done.clone();
    let told_of = |token: &TokenEvent| 1 + token.top.len();
    let is_long = writer.logprobs.is_some() && tokens.iter().map(told_of).sum::<usize>() > FEW_LOGPROBS;
    let whole = move || whole(writer, tokens, told);
    // That of many tokens takes long, and is no work for an async thread.
    let made = if is_long { tokio::task::spawn_blocking(whole).await } else { Ok(whole()) };
    let mut response = made.map_err(|_| ApiError::internal())?;
    context.head(&mut response, prompt_characters);
    totals(response.headers_mut(), [[&done]]);
    Ok(response)
}

/// Log probabilities, of tokens and alternatives together, that are told in a millisecond or so.
const FEW_LOGPROBS: usize = 1000;

/// The collected stream: its last event has the whole answer.
fn whole(mut writer: Events, tokens: Vec<TokenEvent>, done: Done) -> Response<Body> {
    let mut nowhere = Encoder::default();
    for token in tokens {
        writer.token(0, token, &mut nowhere);
        nowhere.take();
    }
    writer.done(0, done, &mut nowhere);
    json_response(&writer.response(None))
}

/// What an answer says of itself and of what was asked.
struct Head {
    id: String,
    created: u64,
    model: String,
    echo: Echo,
    service_tier: &'static str,
    reasoning_output: ReasoningOutput,
    warnings: Warnings,
}

/// Writes the events of a stream, and keeps what the answer is.
struct Events {
    head: Head,
    reading: Reading,
    /// What spells tokens, when log probabilities are wanted.
    logprobs: Option<Arc<Prompt>>,
    blocks: Blocks,
    /// Of tokens whose text is held back, or is none.
    waiting: Vec<Waiting>,
    /// Of the next event.
    number: u64,
    /// Items that have ended.
    output: Vec<Item>,
    open: Option<Open>,
    ended: Option<Done>,
    /// When it was complete.
    completed: Option<u64>,
    has_begun: bool,
}

/// The log probabilities of a token that may be told with text.
struct Waiting {
    entry: LogprobEntry,
    /// Bytes of the answer's text that it brought: 0 where a character is not complete, `None` of a special token.
    length: Option<usize>,
}

/// The item that is being written.
struct Open {
    id: String,
    block: Block,
    text: String,
    logprobs: Vec<LogprobEntry>,
}

impl Events {
    fn new(head: Head, logprobs: Option<Arc<Prompt>>, reading: Reading) -> Self {
        Self {
            head,
            logprobs,
            blocks: Blocks::new(&reading),
            reading,
            waiting: Vec::new(),
            number: 0,
            output: Vec::new(),
            open: None,
            ended: None,
            completed: None,
            has_begun: false,
        }
    }

    /// The number of an event.
    fn next(&mut self) -> u64 {
        let number = self.number;
        self.number += 1;
        number
    }

    fn begin(&mut self, encoder: &mut Encoder) {
        if !std::mem::replace(&mut self.has_begun, true) {
            let sequence_number = self.next();
            say(encoder, &Event::Created { sequence_number, response: self.response(None) });
            self.in_progress(encoder);
        }
    }

    /// `openai` for Node takes the answer of this event for all that there is until now, and adds to its items what comes behind it.
    fn in_progress(&mut self, encoder: &mut Encoder) {
        let sequence_number = self.next();
        let open = self.open_item(Status::InProgress);
        say(encoder, &Event::InProgress { sequence_number, response: self.response(open.as_ref()) });
    }

    /// The open item as far as it was told.
    fn open_item(&self, status: Status) -> Option<Item> {
        let open = self.open.as_ref()?;
        Some(self.item(open, status, !self.is_told_at_its_end(&open.block)))
    }

    /// A custom tool's text is inside of JSON, and a search has no event for its arguments.
    fn is_told_at_its_end(&self, block: &Block) -> bool {
        let Block::Call { name, .. } = block else { return false };
        self.reading.is_custom(name) || self.reading.is_search(name)
    }

    /// The answer as it is now, with the item that is `open`.
    fn response<'a>(&'a self, open: Option<&'a Item>) -> answer::Response<'a> {
        let reason = self.ended.as_ref().map(|done| done.finish_reason);
        let status = match reason {
            None => Status::InProgress,
            Some(FinishReason::Length) => Status::Incomplete,
            Some(FinishReason::EosToken | FinishReason::StopSequence) => Status::Completed,
        };
        let is_cut = reason == Some(FinishReason::Length);
        let usage = self.ended.as_ref().map(|done| {
            let usage = Usage::of([done]);
            ResponseUsage {
                input_tokens: usage.prompt_tokens,
                input_tokens_details: InputTokensDetails {
                    cached_tokens: usage.prompt_tokens_details.cached_tokens,
                    cache_write_tokens: 0,
                },
                output_tokens: usage.completion_tokens,
                output_tokens_details: OutputTokensDetails {
                    reasoning_tokens: self.blocks.reasoning_tokens(),
                },
                total_tokens: usage.total_tokens,
            }
        });
        answer::Response {
            id: &self.head.id,
            object: "response",
            created_at: self.head.created,
            completed_at: self.completed,
            status,
            background: false,
            error: None,
            incomplete_details: is_cut.then_some(IncompleteDetails { reason: "max_output_tokens" }),
            model: &self.head.model,
            output: self.output.iter().chain(open).collect(),
            previous_response_id: None,
            service_tier: self.head.service_tier,
            store: false,
            truncation: "disabled",
            usage,
            echo: &self.head.echo,
            warnings: self.head.warnings.clone(),
        }
    }

    /// The open item with all of its text until now, or empty as when it began.
    fn item(&self, open: &Open, status: Status, is_whole: bool) -> Item {
        let text = if is_whole { open.text.as_str() } else { "" };
        let id = open.id.clone();
        let content = || if is_whole { vec![self.part(open, text)] } else { Vec::new() };
        match &open.block {
            Block::Text => Item::Message { id, status, role: Role::Assistant, content: content() },
            Block::Reasoning => {
                let (summary, content) = match self.head.reasoning_output.is_summary {
                    true => (content(), None),
                    false => (Vec::new(), Some(content())),
                };
                let has_ended = is_whole && !matches!(status, Status::InProgress);
                let has_copy = has_ended && self.head.reasoning_output.has_encrypted_content;
                let encrypted_content = has_copy.then(|| encrypted_content::written(text));
                Item::Reasoning { id, status, summary, content, encrypted_content }
            }
            Block::Call { id: call_id, name } if self.reading.is_search(name) => {
                let arguments = search::arguments(text);
                Item::ToolSearchCall { id, status, call_id: call_id.clone(), execution: "client", arguments }
            }
            Block::Call { id: call_id, name } => {
                let (namespace, told) = self.reading.told(name);
                let (namespace, told) = (namespace.map(str::to_owned), told.to_owned());
                let (call_id, is_custom) = (call_id.clone(), self.reading.is_custom(name));
                if is_custom {
                    let input = if is_whole { custom_input(text) } else { String::new() };
                    Item::CustomToolCall { id, status, call_id, namespace, name: told, input }
                } else {
                    let arguments = text.to_owned();
                    Item::FunctionCall { id, status, call_id, namespace, name: told, arguments }
                }
            }
        }
    }

    fn part(&self, open: &Open, text: &str) -> Part {
        let text = text.to_owned();
        match open.block {
            Block::Reasoning if self.head.reasoning_output.is_summary => Part::Summary { text },
            Block::Reasoning => Part::Reasoning { text },
            _ => {
                let logprobs = if text.is_empty() { Vec::new() } else { open.logprobs.clone() };
                Part::Output { text, annotations: Vec::new(), logprobs }
            }
        }
    }

    fn tell(&mut self, events: Vec<BlockEvent>, encoder: &mut Encoder) {
        for event in events {
            match event {
                BlockEvent::Begins(block) => self.open(block, encoder),
                BlockEvent::Adds(_, text) => self.add(&text, encoder),
                BlockEvent::Ends(_) => self.close(Status::Completed, encoder),
            }
        }
    }

    fn open(&mut self, block: Block, encoder: &mut Encoder) {
        let output_index = self.output.len();
        let kind = match &block {
            Block::Text => "msg",
            Block::Reasoning => "rs",
            Block::Call { name, .. } if self.reading.is_custom(name) => "ctc",
            Block::Call { name, .. } if self.reading.is_search(name) => "tsc",
            Block::Call { .. } => "fc",
        };
        let id = format!("{kind}_{:032x}", rand::random::<u128>());
        let open = Open { id, block, text: String::new(), logprobs: Vec::new() };
        let item = self.item(&open, Status::InProgress, false);
        let sequence_number = self.next();
        say(encoder, &Event::ItemAdded { sequence_number, output_index, item: &item });
        if !matches!(open.block, Block::Call { .. }) {
            let (item_id, part) = (&open.id, self.part(&open, ""));
            let sequence_number = self.next();
            let event = match part {
                Part::Summary { .. } => {
                    Event::SummaryAdded { sequence_number, item_id, output_index, summary_index: 0, part }
                }
                part => Event::PartAdded { sequence_number, item_id, output_index, content_index: 0, part },
            };
            say(encoder, &event);
        }
        self.open = Some(open);
    }

    fn add(&mut self, delta: &str, encoder: &mut Encoder) {
        let Some(mut open) = self.open.take() else { return };
        open.text.push_str(delta);
        let (item_id, output_index, content_index) = (&open.id, self.output.len(), 0);
        match &open.block {
            Block::Text => {
                let waiting = std::mem::take(&mut self.waiting);
                // Before an item's first text there may be reasoning, calls and their markers.
                let others = if open.text.len() == delta.len() { before(&waiting, delta) } else { 0 };
                let own = waiting.into_iter().skip(others).filter(|one| one.length.is_some());
                let logprobs: Vec<_> = own.map(|one| one.entry).collect();
                let sequence_number = self.next();
                say(
                    encoder,
                    &Event::TextDelta {
                        sequence_number,
                        item_id,
                        output_index,
                        content_index,
                        delta,
                        logprobs: &logprobs,
                    },
                );
                open.logprobs.extend(logprobs);
            }
            Block::Reasoning => {
                self.forget_all_but_the_last();
                let sequence_number = self.next();
                let event = match self.head.reasoning_output.is_summary {
                    true => Event::SummaryDelta {
                        sequence_number,
                        item_id,
                        output_index,
                        summary_index: 0,
                        delta,
                    },
                    false => {
                        Event::ReasoningDelta { sequence_number, item_id, output_index, content_index, delta }
                    }
                };
                say(encoder, &event);
            }
            block if self.is_told_at_its_end(block) => self.forget_all_but_the_last(),
            Block::Call { .. } => {
                self.forget_all_but_the_last();
                let sequence_number = self.next();
                say(encoder, &Event::ArgumentsDelta { sequence_number, item_id, output_index, delta });
            }
        }
        self.open = Some(open);
    }

    /// What waited was of reasoning or of a call; the last token may have begun a text as well.
    fn forget_all_but_the_last(&mut self) {
        self.waiting.drain(..self.waiting.len().saturating_sub(1));
    }

    fn close(&mut self, status: Status, encoder: &mut Encoder) {
        let Some(open) = self.open.take() else { return };
        let (item_id, output_index, content_index) = (&*open.id, self.output.len(), 0);
        let text = open.text.as_str();
        match &open.block {
            // The item has it all.
            Block::Call { name, .. } if self.reading.is_search(name) => {}
            Block::Call { name, .. } if self.reading.is_custom(name) => {
                let sequence_number = self.next();
                let input = &custom_input(text);
                say(encoder, &Event::InputDelta { sequence_number, item_id, output_index, delta: input });
                let sequence_number = self.next();
                say(encoder, &Event::InputDone { sequence_number, item_id, output_index, input });
            }
            Block::Call { name, .. } => {
                let sequence_number = self.next();
                let (arguments, (_, name)) = (text, self.reading.told(name));
                say(
                    encoder,
                    &Event::ArgumentsDone { sequence_number, item_id, output_index, name, arguments },
                );
            }
            Block::Reasoning if self.head.reasoning_output.is_summary => {
                let (summary_index, sequence_number) = (0, self.next());
                say(
                    encoder,
                    &Event::SummaryDone { sequence_number, item_id, output_index, summary_index, text },
                );
                let part = self.part(&open, text);
                let sequence_number = self.next();
                say(
                    encoder,
                    &Event::SummaryPartDone { sequence_number, item_id, output_index, summary_index, part },
                );
            }
            block => {
                let (logprobs, sequence_number) = (&open.logprobs, self.next());
                say(
                    encoder,
                    &match block {
                        Block::Reasoning => Event::ReasoningDone {
                            sequence_number,
                            item_id,
                            output_index,
                            content_index,
                            text,
                        },
                        _ => Event::TextDone {
                            sequence_number,
                            item_id,
                            output_index,
                            content_index,
                            text,
                            logprobs,
                        },
                    },
                );
                let part = self.part(&open, text);
                let sequence_number = self.next();
                say(
                    encoder,
                    &Event::PartDone { sequence_number, item_id, output_index, content_index, part },
                );
            }
        }
        let item = self.item(&open, status, true);
        let sequence_number = self.next();
        say(encoder, &Event::ItemDone { sequence_number, output_index, item: &item });
        self.output.push(item);
    }
}

/// How many tokens come before those that the last text is of.
fn before(waiting: &[Waiting], text: &str) -> usize {
    let (mut first, mut left) = (waiting.len(), text.len());
    while first > 0 && left > 0 {
        first -= 1;
        left = left.saturating_sub(waiting[first].length.unwrap_or(0));
    }
    // The parts of its first character.
    while first > 0 && waiting[first - 1].length == Some(0) {
        first -= 1;
    }
    first
}

/// Since 1970.
fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn say(encoder: &mut Encoder, event: &Event) {
    encoder.named(event.name(), event);
}

impl ChunkWriter for Events {
    fn token(&mut self, _: usize, token: TokenEvent, encoder: &mut Encoder) {
        self.begin(encoder);
        if let Some(prompt) = &self.logprobs {
            let length = (!token.special).then_some(token.text.len());
            self.waiting.push(Waiting { entry: entry(prompt, &token), length });
        }
        let events = self.blocks.push(&token);
        self.tell(events, encoder);
    }

    fn done(&mut self, _: usize, done: Done, encoder: &mut Encoder) {
        self.begin(encoder);
        let mut events = self.blocks.finish();
        // What is open at the end may have been cut off: the last block, or the call before it, which words among its arguments follow.
        let last = events.pop();
        let ends_call = |event: &BlockEvent| matches!(event, BlockEvent::Ends(Block::Call { .. }));
        let is_last = last.as_ref().is_some_and(ends_call);
        let cut_off = events.iter().rposition(ends_call).filter(|_| self.blocks.is_cut() && !is_last);
        for (nth, event) in events.into_iter().enumerate() {
            match cut_off == Some(nth) {
                true => self.close(Status::Incomplete, encoder),
                false => self.tell(vec![event], encoder),
            }
        }
        let is_cut = done.finish_reason == FinishReason::Length;
        match last {
            Some(BlockEvent::Ends(block)) => {
                let is_whole = match block {
                    Block::Call { .. } => self.blocks.calls(done.finish_reason),
                    Block::Text | Block::Reasoning => !is_cut,
                };
                self.close(if is_whole { Status::Completed } else { Status::Incomplete }, encoder);
            }
            last => self.tell(last.into_iter().collect(), encoder),
        }
        self.ended = Some(done);
        self.completed = (!is_cut).then(seconds);
        let sequence_number = self.next();
        let response = self.response(None);
        say(
            encoder,
            &if is_cut {
                Event::Incomplete { sequence_number, response }
            } else {
                Event::Completed { sequence_number, response }
            },
        );
    }

    fn end(&mut self, _: &mut Encoder) {}

    /// Codex gives up on a stream without events for some minutes, which a long prompt takes, or a call whose input is told at its end.
    fn break_silence(&mut self, encoder: &mut Encoder) {
        match self.has_begun {
            true => self.in_progress(encoder),
            false => self.begin(encoder),
        }
    }

    /// Codex reads only `response.failed`, others only the event before it.
    fn failed(&mut self, error: &ApiError, encoder: &mut Encoder) {
        self.begin(encoder);
        let (code, param, kind) = (error.cause.code(), error.param(), error.cause.entry().openai_type);
        let message = &*error.message(Family::OpenAi);
        let detail = ErrorDetail { kind, code, message, param };
        let sequence_number = self.next();
        say(encoder, &Event::Error { sequence_number, code, message, param, error: detail });
        let failure = Some(Failure { code, message });
        let sequence_number = self.next();
        let open = self.open_item(Status::Incomplete);
        let response =
            answer::Response { status: Status::Failed, error: failure, ..self.response(open.as_ref()) };
        say(encoder, &Event::Failed { sequence_number, response });
    }
}

#[cfg(test)]
mod tests {
    use penstock_output::{Tool, reasoning_format, tool_format};
    use serde_json::{Value, json};

    use super::*;
    use crate::http::chats::blocks::tests::token;
    use crate::http::fields::Fields;
    use crate::http::fields::tests::limits;
    use crate::http::openai::stream::tests::Silent;
    use crate::http::sse::tests::told_in_silence;

    fn events(reading: Reading) -> Events {
        asked(json!({"input": "Hi"}), reading)
    }

    fn asked(body: Value, reading: Reading) -> Events {
        let (body, limits) = (body.to_string(), limits());
        let fields = Fields::parse(body.as_bytes(), &limits).expect("JSON");
        let ResponseRequest { echo, service_tier, reasoning_output, .. } =
            request::parse(&fields, "served").expect("valid");
        let warnings = Warnings::default();
        let head = Head {
            id: "resp_1".into(),
            created: 0,
            model: "m".into(),
            echo,
            service_tier,
            reasoning_output,
            warnings,
        };
        Events::new(head, None, reading)
    }

    /// What a stream of these tokens says, to its end.
    fn streamed(mut writer: Events, tokens: &[(&str, bool)], finish_reason: FinishReason) -> Vec<Value> {
        let mut encoder = Encoder::default();
        for (text, special) in tokens {
            writer.token(0, token(text, *special), &mut encoder);
        }
        let done = Done {
            text: String::new(),
            finish_reason,
            stop: None,
            generated_tokens: tokens.len() as u32,
            skipped_tokens: 0,
            seed: None,
            prompt_tokens: 1,
            cached_tokens: 0,
            timings: Default::default(),
        };
        writer.done(0, done, &mut encoder);
        let text = String::from_utf8(encoder.take().to_vec()).expect("UTF-8");
        let all = data(&text);
        assert!(told(&text).iter().map(|(_, number)| *number).eq(0..all.len() as u64), "{text}");
        all
    }

    fn data(text: &str) -> Vec<Value> {
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        data.map(|data| serde_json::from_str(data).expect("JSON")).collect()
    }

    /// What each event is, and its number.
    fn told(text: &str) -> Vec<(String, u64)> {
        assert!(!text.contains(":\n\n"), "a comment: {text}");
        let kind = |event: &Value| event["type"].as_str().expect("a type").to_owned();
        let number = |event: &Value| event["sequence_number"].as_u64().expect("a number");
        data(text).iter().map(|event| (kind(event), number(event))).collect()
    }

    /// Codex counts its patience in events, and takes no comment for one.
    #[tokio::test(start_paused = true)]
    async fn silence_is_broken_by_events() {
        let in_silence = told(&told_in_silence(Silent(events(Reading::plain())), 46).await);
        let expected =
            ["response.created", "response.in_progress", "response.in_progress", "response.in_progress"];
        let expected: Vec<_> = expected.map(str::to_owned).into_iter().zip(0_u64..).collect();
        assert_eq!(in_silence, expected);

        // Within the call of a custom tool, whose input is told at its end.
        let tools = [Tool { name: "patch".to_owned(), parameters: Value::Null }];
        let custom = ["patch".to_owned()].into();
        let reading =
            Reading { calls: tool_format("hermes"), tools: tools.into(), custom, ..Reading::plain() };
        let (mut writer, mut encoder) = (events(reading), Encoder::default());
        for (text, special) in [
            ("<tool_call>", true),
            ("{\"name\": \"patch\", \"arguments\": {\"input\": \"a", false),
            ("b", false),
        ] {
            writer.token(0, token(text, special), &mut encoder);
        }
        let before = told(std::str::from_utf8(&encoder.take()).expect("UTF-8"));
        assert_eq!(before.last().map(|(kind, _)| &**kind), Some("response.output_item.added"));
        let next = before.len() as u64;
        let in_silence = told(&told_in_silence(Silent(writer), 31).await);
        let in_progress = |number| ("response.in_progress".to_owned(), number);
        assert_eq!(in_silence, [in_progress(next), in_progress(next + 1)]);
    }

    /// `openai` for Node ends with an error where what comes behind this event is of an item that is not in its answer.
    #[tokio::test(start_paused = true)]
    async fn what_is_told_in_silence_has_the_open_item_as_far_as_it_was_told() {
        let tools = ["f", "patch"].map(|name| Tool { name: name.to_owned(), parameters: Value::Null });
        let custom = ["patch".to_owned()].into();
        let (calls, reasoning) = (tool_format("hermes"), reasoning_format("think"));
        let reading = Reading { calls, reasoning, tools: tools.into(), custom, ..Reading::plain() };
        let thought = [("<think>", true), ("Hm", false)];
        for (tokens, member, is_told) in [
            (
                &[("Hi", false)][..],
                "content",
                json!([{"type": "output_text", "text": "Hi", "annotations": [], "logprobs": []}]),
            ),
            (&thought[..], "content", json!([{"type": "reasoning_text", "text": "Hm"}])),
            (
                &[thought[0], thought[1], ("</think>", true), ("Yes", false)][..],
                "content",
                json!([{"type": "output_text", "text": "Yes", "annotations": [], "logprobs": []}]),
            ),
            (
                &[("<tool_call>", true), ("{\"name\": \"f\", \"arguments\": {\"a\": 1", false)][..],
                "arguments",
                json!("{\"a\": 1"),
            ),
            (
                &[("<tool_call>", true), ("{\"name\": \"patch\", \"arguments\": {\"input\": \"a", false)][..],
                "input",
                json!(""),
            ),
        ] {
            let body = json!({"input": "Hi", "include": ["reasoning.encrypted_content"]});
            let (mut writer, mut encoder) = (asked(body, reading.clone()), Encoder::default());
            for (text, special) in tokens {
                writer.token(0, token(text, *special), &mut encoder);
            }
            let before = data(std::str::from_utf8(&encoder.take()).expect("UTF-8"));
            let items = |kind: &str| -> Vec<Value> {
                let of_kind = before.iter().filter(|event| event["type"] == kind);
                of_kind.map(|event| event["item"].clone()).collect()
            };
            let mut expected = items("response.output_item.done");
            let mut open = items("response.output_item.added").pop().expect("an item");
            open[member] = is_told;
            expected.push(open);
            let in_silence = data(&told_in_silence(Silent(writer), 16).await);
            assert_eq!(in_silence.len(), 1);
            assert_eq!(in_silence[0]["response"]["output"], json!(expected), "{tokens:?}");
        }
    }

    /// Clients read a failure in three places: Codex in the last event, LiteLLM and `openai` within `error`, LangChain beside it.
    #[test]
    fn what_fails_in_a_stream_is_told_as_all_clients_read_it() {
        let error = ApiError::unavailable("The workers are gone.");
        for has_text in [false, true] {
            let (mut writer, mut encoder) = (events(Reading::plain()), Encoder::default());
            if has_text {
                writer.token(0, token("Hi", false), &mut encoder);
            }
            writer.failed(&error, &mut encoder);
            let text = String::from_utf8(encoder.take().to_vec()).expect("UTF-8");
            let all = data(&text);
            assert!(told(&text).iter().map(|(_, number)| *number).eq(0..all.len() as u64), "{text}");
            assert_eq!(all[0]["type"], "response.created");
            let [.., event, failed] = &all[..] else { panic!("{text}") };
            assert_eq!((&event["type"], &failed["type"]), (&json!("error"), &json!("response.failed")));
            let nested = &event["error"];
            for name in ["code", "message", "param"] {
                assert_eq!(nested[name], event[name], "{name}");
            }
            assert_eq!(
                (&nested["message"], &nested["param"]),
                (&json!("The workers are gone."), &Value::Null)
            );
            assert_eq!(nested["type"], error.cause.entry().openai_type);
            let response = &failed["response"];
            assert_eq!((&response["status"], &response["usage"]), (&json!("failed"), &Value::Null));
            let told: Vec<_> = response["output"].as_array().expect("items").iter().collect();
            let has_told =
                |item: &&Value| item["status"] == "incomplete" && item["content"][0]["text"] == "Hi";
            assert!(told.len() == usize::from(has_text) && told.iter().all(has_told), "{response}");
            assert_eq!(response["error"], json!({"code": nested["code"], "message": nested["message"]}));
            assert!(text.ends_with("\n\n") && text.contains("event: response.failed\n"), "{text}");
        }
    }

    /// Vercel's AI SDK, LangChain, LiteLLM, Zed and Codex show a summary, and nothing else of reasoning.
    #[test]
    fn reasoning_is_a_summary_where_one_is_asked_for() {
        let tokens =
            [("<think>", true), ("Hm", false), (", well.", false), ("</think>", true), ("Yes.", false)];
        let include = json!(["reasoning.encrypted_content"]);
        for (more, summary, content, copy) in [
            (json!({}), json!([]), true, Value::Null),
            (json!({"reasoning": {"summary": null}}), json!([]), true, Value::Null),
            (json!({"reasoning": {"summary": "none"}}), json!([]), true, Value::Null),
            (json!({"include": include}), json!([]), true, json!("penstock:Hm, well.")),
            (json!({"reasoning": {"summary": "auto"}}), json!(["Hm, well."]), false, Value::Null),
            (json!({"reasoning": {"generate_summary": "concise"}}), json!(["Hm, well."]), false, Value::Null),
            (
                json!({"reasoning": {"summary": "detailed"}, "include": include}),
                json!(["Hm, well."]),
                false,
                json!("penstock:Hm, well."),
            ),
        ] {
            let mut body = more.clone();
            body["input"] = json!("Hi");
            let reading = Reading { reasoning: reasoning_format("think"), ..Reading::plain() };
            let all = streamed(asked(body, reading), &tokens, FinishReason::EosToken);
            let kinds: Vec<_> = all.iter().filter_map(|event| event["type"].as_str()).collect();
            let expected = match content {
                true => [
                    "response.content_part.added",
                    "response.reasoning_text.delta",
                    "response.reasoning_text.delta",
                    "response.reasoning_text.done",
                    "response.content_part.done",
                ],
                false => [
                    "response.reasoning_summary_part.added",
                    "response.reasoning_summary_text.delta",
                    "response.reasoning_summary_text.delta",
                    "response.reasoning_summary_text.done",
                    "response.reasoning_summary_part.done",
                ],
            };
            assert_eq!(kinds[2], "response.output_item.added", "{more}");
            assert_eq!(kinds[3..8], expected, "{more}");
            assert_eq!(kinds[8], "response.output_item.done", "{more}");
            let (index, other) = match content {
                true => ("content_index", "summary_index"),
                false => ("summary_index", "content_index"),
            };
            assert!(all[3..8].iter().all(|event| event[index] == 0 && event.get(other).is_none()), "{more}");
            assert_eq!((&all[4]["delta"], &all[6]["text"]), (&json!("Hm"), &json!("Hm, well.")), "{more}");
            assert_eq!(all[7]["part"]["text"], "Hm, well.", "{more}");
            let begun = &all[2]["item"];
            assert!(begun["summary"] == json!([]) && begun.get("encrypted_content").is_none(), "{begun}");
            let item = &all[8]["item"];
            let texts: Vec<_> =
                item["summary"].as_array().expect("parts").iter().map(|part| part["text"].clone()).collect();
            assert_eq!((json!(texts), &item["encrypted_content"]), (summary, &copy), "{more}: {item}");
            assert_eq!(item.get("content").is_some(), content, "{more}: {item}");
            // Some clients send nothing else of it back.
            if copy != Value::Null {
                let sent = json!({"type": "reasoning", "summary": [], "encrypted_content": copy});
                let asked = request::tests::parsed(json!({"input": [sent]})).expect("valid").chat;
                assert_eq!(asked.chat.messages[0]["reasoning_content"], "Hm, well.");
            }
            let part = if content { &item["content"][0] } else { &item["summary"][0] };
            let kind = if content { "reasoning_text" } else { "summary_text" };
            assert_eq!((&part["type"], &part["text"]), (&json!(kind), &json!("Hm, well.")), "{more}");
            let last = all.last().expect("events");
            assert_eq!((&last["type"], &last["response"]["output"][0]), (&json!("response.completed"), item));
        }
    }

    #[test]
    fn a_call_that_is_cut_off_behind_words_is_incomplete() {
        let tools = [Tool { name: "f".to_owned(), parameters: Value::Null }];
        let reading = Reading { calls: tool_format("qwen3_coder"), tools: tools.into(), ..Reading::plain() };
        let call = "\n<function=f>\n<parameter=a>1</parameter>\nWords";
        for (call, reason, statuses) in [
            (call.to_owned(), FinishReason::Length, ["incomplete", "incomplete"]),
            (call.to_owned(), FinishReason::StopSequence, ["incomplete", "completed"]),
            (format!("{call}</function>"), FinishReason::EosToken, ["completed", "completed"]),
        ] {
            let all =
                streamed(events(reading.clone()), &[("<tool_call>", true), (call.as_str(), false)], reason);
            let items = &all.last().expect("events")["response"]["output"];
            let told = |item: &Value| json!([item["type"], item["status"]]);
            let told: Vec<_> = items.as_array().expect("items").iter().map(told).collect();
            let expected = [json!(["function_call", statuses[0]]), json!(["message", statuses[1]])];
            assert_eq!(told, expected, "{call} {reason:?}");
        }
    }

    /// Codex and the AI SDK read the arguments of the last event, as an object, and take none in parts.
    #[test]
    fn a_search_for_tools_is_an_item_that_comes_whole() {
        let tools = [Tool { name: "tool_search".to_owned(), parameters: Value::Null }];
        let calls = tool_format("hermes");
        let reading = Reading { calls, tools: tools.into(), has_search: true, ..Reading::plain() };
        let call = [
            ("<tool_call>", true),
            ("{\"name\": \"tool_search\", \"arguments\": {\"query\": \"sea", false),
            ("\", \"limit\": 8.0}}\n", false),
            ("</tool_call>", true),
        ];
        for (tokens, reason, status, arguments, last) in [
            (
                &call[..],
                FinishReason::EosToken,
                "completed",
                json!({"query": "sea", "limit": 8}),
                "response.completed",
            ),
            (&call[..2], FinishReason::Length, "incomplete", json!({}), "response.incomplete"),
        ] {
            let all = streamed(events(reading.clone()), tokens, reason);
            let kinds: Vec<_> = all.iter().filter_map(|event| event["type"].as_str()).collect();
            let expected = [
                "response.created",
                "response.in_progress",
                "response.output_item.added",
                "response.output_item.done",
                last,
            ];
            assert_eq!(kinds, expected);
            let [added, done] = [2, 3].map(|nth| all[nth]["item"].clone());
            let is_named = |name: &str, prefix: &str| {
                added[name] == done[name] && done[name].as_str().is_some_and(|id| id.starts_with(prefix))
            };
            assert!(is_named("id", "tsc_") && is_named("call_id", "call_"), "{added} {done}");
            for (item, status, arguments) in [(&added, "in_progress", json!({})), (&done, status, arguments)]
            {
                let (id, call_id) = (&item["id"], &item["call_id"]);
                let expected = json!({"type": "tool_search_call", "id": id, "status": status, "call_id": call_id, "execution": "client", "arguments": arguments});
                assert_eq!(item, &expected);
            }
            assert_eq!(all[4]["response"]["output"], json!([done]));
        }
    }
}
