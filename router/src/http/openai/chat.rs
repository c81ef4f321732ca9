//! OpenAI's dialect for chats: `/v1/chat/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use bytes::Bytes;
use penstock_core::generation::{Done, TextToken, TokenEvent};
use penstock_core::prompt::{Chat, Prompt};
use penstock_proto::ids::TokenId;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::config::ReasoningField;
use crate::http::body;
use crate::http::chats::effort::Effort;
use crate::http::chats::functions::Shape;
use crate::http::chats::messages::take_reasoning;
use crate::http::chats::object::{Object, objects};
use crate::http::chats::reader::{Reader, Reading, custom_input};
use crate::http::chats::request::{ChatRequest, Prepared};
use crate::http::chats::tools::Tools;
use crate::http::chats::unseen::{Kind, Unseen};
use crate::http::error::{ApiError, Family, FieldNames, Place};
use crate::http::fields::Fields;
use crate::http::markdown_images::MarkdownImages;
use crate::http::openai::choices::Choices;
use crate::http::openai::params::{GenerationParams, max_tokens, max_tokens_name};
use crate::http::openai::responses::request::parse_as_chat;
use crate::http::openai::stream::{self, ChunkWriter};
use crate::http::openai::usage::{CompletionTokensDetails, Usage};
use crate::http::openai::{Answer, AnswerHead, Reason};
use crate::http::request_context::{RequestContext, totals};
use crate::http::request_fields;
use crate::http::response::{List, entries, json_in_pieces};
use crate::http::shortened::shortened;
use crate::http::sse::{Encoder, Frame};
use crate::http::state::{Loaded, Server};
use crate::http::text_request::TextRequest;
use crate::http::warnings::Warnings;

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
    let mut asked = parse(fields, served)?;
    if asked.params.n > 1 {
        return Err(ApiError::invalid("n", "must be 1 on this route"));
    }
    for (name, given) in [("stream", asked.params.stream), ("logprobs", asked.logprobs)] {
        if given {
            asked.params.warnings.no_effect(name, "here: the answer is the text alone");
        }
    }
    asked.top_logprobs = 0;
    let prepared = asked.prepare(loaded, client)?;
    let warnings = prepared.params.warnings.settle(fields.limits())?;
    let grammar = prepared.params.grammar_field.unwrap_or(prepared.names.grammar);
    let names = FieldNames { grammar, ..prepared.names };
    Ok(TextRequest { request: prepared.request, prefix: String::new(), warnings, names })
}

/// What `/chat_tokenize` needs of a chat: its prompt, of which nothing else is asked.
pub fn rendered(
    fields: &Fields,
    served: &str,
    loaded: &Loaded,
    client: &CancellationToken,
) -> Result<(String, Warnings), ApiError> {
    let mut asked = parse(fields, served)?;
    let text = asked.render(loaded, client)?;
    Ok((text, asked.params.warnings.settle(fields.limits())?))
}

fn parse(fields: &Fields, served: &str) -> Result<ChatRequest, ApiError> {
    if is_response_request(fields) {
        return parse_as_chat(fields, served);
    }
    let (messages, unseen, images) = messages(fields)?;
    let variables = match fields.tree(&request_fields::CHAT_TEMPLATE_KWARGS)? {
        Some(Value::Object(variables)) => variables,
        _ => Map::new(),
    };
    let effort = fields
        .text(&request_fields::REASONING_EFFORT)?
        .map(|given| Effort { field: request_fields::REASONING_EFFORT.name, given: given.into_owned() });
    let mut params = GenerationParams::parse(fields, served, &request_fields::chat_fields())?;
    unseen.warn(&mut params.warnings);
    images.warn(&mut params.warnings);
    fields
        .small(&request_fields::CHAT_BEST_OF)
        .map_err(|_| ApiError::invalid("best_of", "is not supported for chats; `n` is"))?;
    let logprobs = fields.boolean(&request_fields::LOGPROBS)?.unwrap_or(false);
    let mut top_logprobs = fields.small(&request_fields::TOP_LOGPROBS)?.unwrap_or(0);
    if top_logprobs > 0 && !logprobs {
        params.warnings.no_effect("top_logprobs", "without `logprobs`");
        top_logprobs = 0;
    }
    let tools = Tools::parse(fields, &Shape::CHAT, &[], &mut params.warnings)?;
    Ok(ChatRequest {
        params,
        effort,
        thinking: None,
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
        names: FieldNames { max_new_tokens: max_tokens_name(fields), ..FieldNames::CHAT },
    })
}

/// Whether it is the body of a request to `/v1/responses`: Cursor's agent sends those here, and reads the answers of this route.
fn is_response_request(fields: &Fields) -> bool {
    let has_messages = fields
        .raw(&request_fields::MESSAGES)
        .is_some_and(|list| serde_json::from_str::<[Value; 0]>(list.get()).is_err());
    !has_messages && fields.raw(&request_fields::INPUT).is_some()
}

/// The conversation. Every message is an object with a role, and content that a template can read.
fn messages(fields: &Fields) -> Result<(Vec<Value>, Unseen, MarkdownImages), ApiError> {
    let messages = fields.required(&request_fields::MESSAGES, fields.tree(&request_fields::MESSAGES)?)?;
    let Value::Array(mut messages) = messages else { unreachable!("the table says that it is a list") };
    let place = Place::from(request_fields::MESSAGES.name);
    // OpenAI's results are texts alone: Goose, Agno and others have the picture that a tool returned in a message of the user behind it.
    let mut was_result = false;
    if messages.is_empty() {
        return Err(ApiError::invalid(place, "must have at least one message"));
    }
    let (mut unseen, mut images) = (Unseen::default(), MarkdownImages::of(fields.limits()));
    for message in objects(&place, &messages) {
        let message = message?;
        let role = message.text("role")?;
        let is_result = role == TOOL;
        // Of what the model and its tools said nobody has sent an image.
        let may_send = SENDERS.contains(&role);
        check_calls(&message)?;
        check_thoughts(&message)?;
        let is_result = is_result || (was_result && message.value("role") == "user");
        was_result = is_result;
        let has_said = message.value("role") == "assistant"
            && SAID.into_iter().any(|name| message.value(name).is_string());
        match message.get("content") {
            Some(Value::String(text)) if may_send => images.look(&message.at("content"), text)?,
            Some(Value::String(_)) => {}
            Some(Value::Array(parts)) => {
                let place = message.at("content");
                check_parts(&place, parts, is_result.then_some(&mut unseen))?;
                for (index, part) in parts.iter().enumerate().filter(|_| may_send) {
                    let text = part["text"].as_str().unwrap_or_default();
                    images.look(&place.entry(index).member("text"), text)?;
                }
            }
            None if message.get("tool_calls").is_some() || has_said => {}
            None => return Err(message.wrong("content", "is required")),
            Some(_) => return Err(message.wrong("content", "must be a string or a list of parts")),
        }
    }
    for message in &mut messages {
        let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
        calls.into_iter().flatten().for_each(as_function);
        thoughts_as_reasoning(message);
        refusals_as_text(message);
        unseen_as_text(message);
    }
    Ok((messages, unseen, images))
}

/// Members in place of which the content of an assistant's message may be missing.
const SAID: [&str; 4] = ["refusal", "reasoning_content", "reasoning", "thinking"];

/// What an assistant has refused with becomes its text: templates know no refusals.
fn refusals_as_text(message: &mut Value) {
    for part in message.get_mut("content").and_then(Value::as_array_mut).into_iter().flatten() {
        if part["type"] == "refusal" {
            *part = json!({"type": "text", "text": part["refusal"].take()});
        }
    }
    if message["content"].is_null()
        && let refusal @ Value::String(_) = message["refusal"].take()
    {
        message["content"] = refusal;
    }
}

/// Whose messages are the client's own.
const SENDERS: [&str; 3] = ["user", "system", "developer"];

/// Whose messages are results.
const TOOL: &str = "tool";

/// What a part of a result is that is no text.
fn unseen_kind(part: &str) -> Option<Kind> {
    match part {
        "image_url" => Some(Kind::Image),
        "file" => Some(Kind::File),
        "input_audio" => Some(Kind::Audio),
        _ => None,
    }
}

/// In a result, or behind it, the model is told what was there. Elsewhere there is none: it was refused.
fn unseen_as_text(message: &mut Value) {
    for part in message.get_mut("content").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(kind) = part["type"].as_str().and_then(unseen_kind) {
            *part = json!({"type": "text", "text": kind.text()});
        }
    }
}

/// Parts of an assistant's message that it has thought: Anthropic's, as LiteLLM's `hosted_vllm` and Envoy's AI gateway send them back, and
/// Mistral's.
const THINKING: &str = "thinking";
/// Anthropic's, of which nobody else can read what is in it.
const REDACTED_THINKING: &str = "redacted_thinking";

/// The text of a part of thinking: with Mistral it has parts of its own, with Envoy it is called as that of a text.
fn thought(part: &Value) -> Option<String> {
    match &part["thinking"] {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            let texts = parts.iter().map(|part| part["text"].as_str().filter(|_| part["type"] == "text"));
            texts.collect()
        }
        Value::Null => part["text"].as_str().map(str::to_owned),
        _ => None,
    }
}

/// What somebody else is said to have thought is refused.
fn check_thoughts(message: &Object) -> Result<(), ApiError> {
    let is_assistants = message.value("role") == "assistant";
    for (index, part) in message.value("content").as_array().into_iter().flatten().enumerate() {
        let place = message.at("content").entry(index);
        match part["type"].as_str() {
            Some(kind @ (THINKING | REDACTED_THINKING)) if !is_assistants => {
                return Err(no_text(place, kind));
            }
            Some(THINKING) if thought(part).is_none() => {
                return Err(ApiError::invalid(
                    place.member("thinking"),
                    "must be a string or a list of texts",
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

/// It becomes the message's reasoning, unless it has some.
fn thoughts_as_reasoning(message: &mut Value) {
    let Some(parts) = message.get_mut("content").and_then(Value::as_array_mut) else { return };
    let is_thought = |part: &mut Value| part["type"] == THINKING || part["type"] == REDACTED_THINKING;
    let thoughts: Vec<Value> = parts.extract_if(.., is_thought).collect();
    if thoughts.is_empty() {
        return;
    }
    if parts.is_empty() {
        message["content"] = Value::Null;
    }
    let own = take_reasoning(message);
    let reasoning = own.unwrap_or_else(|| thoughts.iter().filter_map(thought).collect());
    if !reasoning.is_empty() {
        message["reasoning_content"] = reasoning.into();
    }
}

/// Earlier calls, as templates read them.
fn check_calls(message: &Object) -> Result<(), ApiError> {
    let Some(calls) = message.get("tool_calls") else { return Ok(()) };
    let calls = calls.as_array().ok_or_else(|| message.wrong("tool_calls", "must be a list"))?;
    for call in objects(&message.at("tool_calls"), calls) {
        let call = call?;
        if call.value("type") == "custom" {
            let custom = Object::of(call.at("custom"), call.value("custom"))?;
            custom.text("name")?;
            custom.text("input")?;
            continue;
        }
        let function = call.value("function");
        let at = call.at("function");
        if !function["name"].is_string() {
            return Err(ApiError::invalid(at.member("name"), "must be a string"));
        }
        let name = if function["arguments"].is_null() { TGI_ARGUMENTS } else { "arguments" };
        let arguments = &function[name];
        if !(arguments.is_string() || arguments.is_object() || arguments.is_null()) {
            return Err(ApiError::invalid(at.member(name), "must be a string or an object"));
        }
    }
    Ok(())
}

/// TGI's other name for the arguments of a call.
const TGI_ARGUMENTS: &str = "parameters";

/// An earlier call as that of a function with `arguments`, as templates know it.
fn as_function(call: &mut Value) {
    if let Some(function) = call.get_mut("function").and_then(Value::as_object_mut)
        && function.get("arguments").is_none_or(Value::is_null)
        && let Some(arguments) = function.remove(TGI_ARGUMENTS)
    {
        function.insert("arguments".to_owned(), arguments);
    }
    if call["type"] == "custom" {
        let Value::Object(custom) = call["custom"].take() else { return };
        let arguments = json!({"input": custom.get("input")});
        *call = json!({"id": call["id"].take(), "type": "function",
                       "function": {"name": custom.get("name"), "arguments": arguments}});
    }
}

/// `unseen` is there for the parts of a result, and behind one, which may be others than texts.
fn check_parts(place: &Place, parts: &[Value], mut unseen: Option<&mut Unseen>) -> Result<(), ApiError> {
    for (index, part) in parts.iter().enumerate() {
        let place = place.entry(index);
        match part.get("type").and_then(Value::as_str) {
            Some("text") if part.get("text").is_some_and(Value::is_string) => {}
            Some("text") => return Err(ApiError::invalid(place.member("text"), "must be a string")),
            Some("refusal") if part.get("refusal").is_some_and(Value::is_string) => {}
            Some("refusal") => return Err(ApiError::invalid(place.member("refusal"), "must be a string")),
            // `check_thoughts` has looked at it.
            Some(THINKING | REDACTED_THINKING) => {}
            Some(other) => match (&mut unseen, unseen_kind(other)) {
                (Some(unseen), Some(kind)) => unseen.add(&place, kind),
                _ => return Err(no_text(place, other)),
            },
            None => return Err(ApiError::invalid(place.member("type"), "must be a string")),
        }
    }
    Ok(())
}

/// A part of a message that is no text.
pub fn no_text(place: Place, kind: &str) -> ApiError {
    ApiError::invalid(place, format!("of type {:?} is not supported yet: only text is", shortened(kind)))
}

pub async fn answer(context: Arc<RequestContext>, body: Bytes) -> Result<Response<Body>, ApiError> {
    let prompt = context.loaded()?.serving.prompt.clone();
    // Parsed, rendered and let go of in one go: the messages take many times the memory of the body.
    let prepared =
        body::parse_apart(context.server(), context.origin(), body, move |fields, server, client| {
            let asked = parse(fields, &server.config.model_id)?;
            let mut prepared = asked.prepare(server.loaded()?, client)?;
            prepared.params.warnings = prepared.params.warnings.settle(fields.limits())?;
            Ok(prepared)
        });
    let Prepared { mut params, request, logprobs, reading, prompt_characters, names } = prepared.await?;
    let mut choices = Choices::start(&context, vec![request], &params, params.n, names).await?;
    choices.tell_unbound(&mut params.warnings);
    let head = AnswerHead::new("chatcmpl", params.model);
    let logprobs = logprobs.then_some(prompt);
    let reasoning_field = context.server().config.args.reasoning_field;
    if params.stream {
        let writer = ChatChunks {
            frame: head.frame(Chunk::Chunk),
            head,
            warnings: params.warnings,
            include_usage: params.include_usage,
            reasoning_field,
            logprobs,
            choices: (0..params.n as usize).map(|choice| ChoiceStream::new(&reading, choice)).collect(),
            done: Vec::new(),
        };
        return stream::response(context, choices, prompt_characters, writer).await;
    }
    choices.first().await?;
    context.began();
    let (tokens, done): (Vec<_>, Vec<_>) = choices.collect().await?.into_iter().unzip();
    for done in &done {
        context.succeeded(done);
    }
    let read: Vec<Read> =
        tokens.iter().enumerate().map(|(choice, tokens)| Read::of(&reading, choice, tokens)).collect();
    let choices = done.iter().zip(&read).enumerate().map(|(index, (done, read))| Choice {
        index,
        message: read.message(reasoning_field),
        logprobs: logprobs.is_some().then_some(Logprobs { content: List::LATER }),
        finish_reason: reason(done, &read.reader),
    });
    let choices: Vec<_> = choices.collect();
    let usage = usage(&done, read.iter().map(|read| &read.reader));
    let later = tokens.into_iter().filter_map(|tokens| {
        let prompt = logprobs.clone()?;
        Some(entries(tokens.into_iter().map(move |token| entry(&prompt, &token))))
    });
    let whole = head.answer(Whole::Whole, &choices, usage, &params.warnings);
    let mut response = json_in_pieces(&whole, later);
    context.head(&mut response, prompt_characters);
    totals(response.headers_mut(), [&done]);
    Ok(response)
}

fn usage<'a>(
    answers: impl IntoIterator<Item = &'a Done>,
    readers: impl Iterator<Item = &'a Reader>,
) -> Usage {
    let mut usage = Usage::of(answers);
    let reasoning: Option<u32> = readers.map(Reader::reasoning_tokens).sum();
    usage.completion_tokens_details =
        reasoning.map(|reasoning_tokens| CompletionTokensDetails { reasoning_tokens });
    usage
}

fn reason(done: &Done, reader: &Reader) -> Reason {
    if reader.calls(done.finish_reason) { Reason::ToolCalls } else { done.finish_reason.into() }
}

/// A whole answer as it is read.
struct Read {
    answer: penstock_output::Answer,
    /// Their ids.
    calls: Vec<String>,
    reader: Reader,
}

impl Read {
    fn of(reading: &Reading, choice: usize, tokens: &[TokenEvent]) -> Self {
        let mut reader = reading.reader(choice);
        let mut answer = penstock_output::Answer::default();
        for token in tokens {
            reader.push(token).iter().for_each(|delta| answer.add(delta));
        }
        reader.finish().iter().for_each(|delta| answer.add(delta));
        let ids = answer.calls.iter().enumerate().map(|(index, call)| reader.id(index, &call.name));
        Self { calls: ids.collect(), answer, reader }
    }

    fn message(&self, reasoning_field: ReasoningField) -> Message<'_> {
        let penstock_output::Answer { content, reasoning, calls } = &self.answer;
        let call = |(index, (id, call)): (usize, (&'_ String, &'_ penstock_output::Call))| {
            let (id, name) = (Some(id.clone()), call.name.clone());
            if self.reader.is_custom(&call.name) {
                return Call::custom(index, id, name, &call.arguments);
            }
            Call::function(index, id, Some(name), call.arguments.clone())
        };
        let reasoning = (!reasoning.is_empty()).then_some(&**reasoning);
        let (reasoning_content, reasoning) = named(reasoning, reasoning_field);
        Message {
            role: Role::Assistant,
            content: (calls.is_empty() || !content.is_empty()).then_some(content),
            reasoning_content,
            reasoning,
            tool_calls: self.calls.iter().zip(calls).enumerate().map(call).collect(),
        }
    }
}

/// Writes the chunks of a stream.
struct ChatChunks {
    head: AnswerHead,
    frame: Frame,
    /// Said once, in the first chunk.
    warnings: Warnings,
    include_usage: bool,
    reasoning_field: ReasoningField,
    /// What spells tokens, when log probabilities are wanted.
    logprobs: Option<Arc<Prompt>>,
    choices: Vec<ChoiceStream>,
    done: Vec<Done>,
}

/// What a stream knows of one of its choices.
struct ChoiceStream {
    has_begun: bool,
    has_ended: bool,
    reader: Reader,
    /// The open call of a custom tool: its name, and its arguments until now.
    custom: Option<(String, String)>,
    /// Every token has a chunk: nothing is held back.
    is_plain: bool,
    /// Of tokens whose text is held back.
    logprobs: Vec<LogprobEntry>,
}

impl ChoiceStream {
    fn new(reading: &Reading, choice: usize) -> Self {
        Self {
            has_begun: false,
            has_ended: false,
            reader: reading.reader(choice),
            custom: None,
            is_plain: reading.is_plain(),
            logprobs: Vec::new(),
        }
    }
}

impl ChunkWriter for ChatChunks {
    fn token(&mut self, index: usize, token: TokenEvent, encoder: &mut Encoder) {
        self.begin(index, encoder);
        let choice = &mut self.choices[index];
        if let Some(prompt) = &self.logprobs {
            choice.logprobs.push(entry(prompt, &token));
        }
        let deltas = choice.reader.push(&token);
        // An end-of-sequence token is no text, and its chunk says nothing but how likely it was.
        if deltas.is_empty() && choice.is_plain && self.logprobs.is_some() {
            self.chunk(index, Delta::default(), None, encoder);
        }
        self.tell(index, deltas, encoder);
    }

    fn done(&mut self, index: usize, done: Done, encoder: &mut Encoder) {
        self.begin(index, encoder);
        let choice = &mut self.choices[index];
        choice.has_ended = true;
        let deltas = choice.reader.finish();
        let reason = reason(&done, &choice.reader);
        self.tell(index, deltas, encoder);
        self.chunk(index, Delta::default(), Some(reason), encoder);
        self.done.push(done);
    }

    fn end(&mut self, encoder: &mut Encoder) {
        if self.include_usage {
            let usage = Some(usage(&self.done, self.choices.iter().map(|choice| &choice.reader)));
            encoder.event(&self.head.answer::<_, ChunkChoice, _>(
                Chunk::Chunk,
                &[],
                usage,
                &Warnings::default(),
            ));
        }
        encoder.done();
    }

    /// Agents give up on a stream without chunks for some minutes, however many comments it has.
    fn break_silence(&mut self, encoder: &mut Encoder) {
        let Some(index) = self.choices.iter().position(|choice| !choice.has_ended) else { return };
        if !self.begin(index, encoder) {
            self.chunk(index, Delta::default(), None, encoder);
        }
    }
}

impl ChatChunks {
    /// The first chunk of a choice has the role. False: it was sent before.
    fn begin(&mut self, index: usize, encoder: &mut Encoder) -> bool {
        if std::mem::replace(&mut self.choices[index].has_begun, true) {
            return false;
        }
        self.chunk(index, Delta { role: Some(Role::Assistant), ..Delta::default() }, None, encoder);
        self.warnings = Warnings::default();
        true
    }

    fn tell(&mut self, index: usize, deltas: Vec<penstock_output::Delta>, encoder: &mut Encoder) {
        use penstock_output::Delta as Read;
        for delta in deltas {
            let told = |call| Delta { content: None, tool_calls: Some([call]), ..Delta::default() };
            let choice = &mut self.choices[index];
            let delta = match &delta {
                // The text of a custom tool is inside of JSON: told when it has ended.
                Read::CallBegins { name, .. } if choice.reader.is_custom(name) => {
                    choice.custom = Some((name.clone(), String::new()));
                    continue;
                }
                Read::Arguments { json, .. } if choice.custom.is_some() => {
                    choice.custom.iter_mut().for_each(|(_, arguments)| arguments.push_str(json));
                    continue;
                }
                Read::CallEnds { index: nth, .. } if choice.custom.is_some() => {
                    let Some((name, arguments)) = choice.custom.take() else { continue };
                    let id = choice.reader.id(*nth, &name);
                    told(Call::custom(*nth, Some(id), name, &arguments))
                }
                Read::Content(text) => Delta { content: Some(text), ..Delta::default() },
                Read::Reasoning(text) => {
                    let (reasoning_content, reasoning) = named(Some(text), self.reasoning_field);
                    Delta { content: None, reasoning_content, reasoning, ..Delta::default() }
                }
                Read::CallBegins { index: nth, name } => {
                    let id = choice.reader.id(*nth, name);
                    told(Call::function(*nth, Some(id), Some(name.clone()), String::new()))
                }
                Read::Arguments { index: nth, json } => told(Call::function(*nth, None, None, json.clone())),
                Read::CallEnds { .. } => continue,
            };
            self.chunk(index, delta, None, encoder);
        }
    }

    /// With the log probabilities that wait for a chunk.
    fn chunk(&mut self, index: usize, delta: Delta, finish_reason: Option<Reason>, encoder: &mut Encoder) {
        let waiting = std::mem::take(&mut self.choices[index].logprobs);
        let all = List { begins_later: false, here: &waiting[..] };
        let logprobs = (!waiting.is_empty()).then_some(Logprobs { content: all });
        let choice = ChunkChoice { index, delta, logprobs, finish_reason };
        match self.warnings.is_empty() {
            true => encoder.framed(&self.frame, &choice),
            false => encoder.event(&self.head.answer(Chunk::Chunk, &[choice], None::<Usage>, &self.warnings)),
        }
    }
}

/// Reasoning as `reasoning_content` and as `reasoning`.
fn named(text: Option<&str>, field: ReasoningField) -> (Option<&str>, Option<&str>) {
    let by = |name| text.filter(|_| field == name || field == ReasoningField::Both);
    (by(ReasoningField::ReasoningContent), by(ReasoningField::Reasoning))
}

/// How likely a token was.
pub fn entry(prompt: &Prompt, event: &TokenEvent) -> LogprobEntry {
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
    logprobs: Option<Logprobs<'a>>,
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
    /// The same, as some clients call it. `--reasoning-field` leaves one of them.
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
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<FunctionCall>,
    #[serde(skip_serializing_if = "Option::is_none")]
    custom: Option<CustomCall>,
}

impl Call {
    fn function(index: usize, id: Option<String>, name: Option<String>, arguments: String) -> Self {
        let function = Some(FunctionCall { name, arguments });
        Self { index, id, kind: CallKind::Function, function, custom: None }
    }

    fn custom(index: usize, id: Option<String>, name: String, arguments: &str) -> Self {
        let custom = Some(CustomCall { name, input: custom_input(arguments) });
        Self { index, id, kind: CallKind::Custom, function: None, custom }
    }
}

#[derive(JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum CallKind {
    Function,
    Custom,
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
struct CustomCall {
    name: String,
    /// A text, in streams too whole.
    input: String,
}

#[derive(JsonSchema, Serialize)]
#[schemars(inline)]
pub struct ChunkChoice<'a> {
    index: usize,
    delta: Delta<'a>,
    logprobs: Option<Logprobs<'a>>,
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
struct Logprobs<'a> {
    #[schemars(with = "Vec<LogprobEntry>")]
    content: List<'a, LogprobEntry>,
}

#[derive(Clone, JsonSchema, Serialize)]
#[schemars(inline)]
pub struct LogprobEntry {
    #[serde(flatten)]
    one: TokenLogprob,
    top_logprobs: Vec<TokenLogprob>,
}

#[derive(Clone, JsonSchema, Serialize)]
struct TokenLogprob {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::openai::stream::tests::Silent;
    use crate::http::sse::tests::told_in_silence;

    /// Agents count their patience in chunks, and take no comment for one.
    #[tokio::test(start_paused = true)]
    async fn silence_is_broken_by_chunks() {
        let writer = || {
            let head = AnswerHead::new("chatcmpl", "m".into());
            let mut warnings = Warnings::default();
            warnings.no_effect("store", "here");
            ChatChunks {
                frame: head.frame(Chunk::Chunk),
                head,
                warnings,
                include_usage: false,
                reasoning_field: ReasoningField::Both,
                logprobs: None,
                choices: (0..2).map(|choice| ChoiceStream::new(&Reading::plain(), choice)).collect(),
                done: Vec::new(),
            }
        };
        let chunks = |told: &str| -> Vec<Value> {
            assert!(told.lines().all(|line| line.is_empty() || line.starts_with("data: ")), "{told}");
            let data = told.lines().filter_map(|line| line.strip_prefix("data: "));
            data.map(|data| serde_json::from_str(data).expect("JSON")).collect()
        };
        let told = chunks(&told_in_silence(Silent(writer()), 46).await);
        assert_eq!(told.len(), 3);
        for (nth, chunk) in told.iter().enumerate() {
            let mut delta = json!({"content": ""});
            if nth == 0 {
                delta["role"] = json!("assistant");
            }
            let choice = json!({"index": 0, "delta": delta, "logprobs": null, "finish_reason": null});
            assert_eq!(chunk["choices"], json!([choice]));
            assert_eq!(chunk.get("warnings").is_some(), nth == 0, "{chunk}");
        }

        let mut ended = writer();
        ended.choices[0].has_ended = true;
        let told = chunks(&told_in_silence(Silent(ended), 16).await);
        assert_eq!(told[0]["choices"][0]["index"], 1);
    }
}
