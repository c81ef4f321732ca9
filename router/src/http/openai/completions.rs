//! OpenAI's dialect for plain prompts: `/v1/completions`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use bytes::Bytes;
use penstock_core::constraint::GrammarRequest;
use penstock_core::generation::{Done, FinishReason, GenerationRequest, Input, PromptToken, TokenEvent};
use penstock_core::prompt::Prompt;
use penstock_proto::ids::TokenId;
use schemars::JsonSchema;
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::http::body;
use crate::http::error::{ApiError, Family, FieldNames, Place};
use crate::http::fields::Fields;
use crate::http::json::text_of;
use crate::http::markdown_images::MarkdownImages;
use crate::http::openai::choices::Choices;
use crate::http::openai::params::{GenerationParams, max_tokens, max_tokens_name};
use crate::http::openai::stream::{self, ChunkWriter};
use crate::http::openai::usage::Usage;
use crate::http::openai::{Answer, AnswerHead, Reason};
use crate::http::request_context::{RequestContext, totals};
use crate::http::request_fields::{self, Most};
use crate::http::response::{Entries, List, entries, json_in_pieces};
use crate::http::sampling::most_likely_first;
use crate::http::shortened::shortened;
use crate::http::sse::{Encoder, Frame};
use crate::http::state::Server;
use crate::http::warnings::Warnings;
use crate::limits::Limits;

pub async fn completions(State(server): State<Arc<Server>>, request: Request) -> Response<Body> {
    RequestContext::answer(server, request, Family::OpenAi, answer).await
}

/// A request of this dialect.
struct CompletionRequest {
    params: GenerationParams,
    /// How many to generate and choose the `n` most likely of.
    best_of: u32,
    prompts: Vec<Input>,
    grammar: Option<GrammarRequest>,
    max_tokens: Option<u32>,
    echo: bool,
    /// How many alternatives; `None` for no log probabilities.
    logprobs: Option<u32>,
    names: FieldNames,
}

impl CompletionRequest {
    fn parse(fields: &Fields, served: &str) -> Result<Self, ApiError> {
        let raw = fields.required(&request_fields::PROMPT, fields.raw(&request_fields::PROMPT))?;
        let prompts = prompts(raw, fields)?;
        let mut params = GenerationParams::parse(fields, served, &request_fields::completion_fields())?;
        let mut images = MarkdownImages::of(fields.limits());
        for (index, input) in prompts.iter().enumerate() {
            if let Input::Text(text) = input {
                let place = Place::from(request_fields::PROMPT.name);
                images.look(&if prompts.len() > 1 { place.entry(index) } else { place }, text)?;
            }
        }
        images.warn(&mut params.warnings);
        let best_of = fields.small(&request_fields::COMPLETION_BEST_OF)?.unwrap_or(params.n);
        if best_of < params.n {
            let given = format!("{best_of} and {}", params.n);
            return Err(ApiError::invalid("best_of", "must be >= `n`").given(given));
        }
        // What is thrown away has a limit of its own.
        if best_of > params.n && best_of > fields.limits().max_best_of {
            let most = fields.limits().describe(Most::BestOf);
            let text = format!("must be <= {most} where it is more than `n`");
            return Err(ApiError::invalid("best_of", text).given(best_of.to_string()));
        }
        if best_of > params.n && params.stream {
            let message = "> `n` is not supported when the answer is streamed";
            return Err(ApiError::invalid("best_of", message));
        }
        let echo = fields.boolean(&request_fields::ECHO)?.unwrap_or(false);
        let max_tokens = max_tokens(fields, &request_fields::COMPLETION_MAX_TOKENS)?;
        if max_tokens == Some(0) && !echo {
            let text = "must be >= 1 unless `echo` is true";
            return Err(ApiError::invalid("max_tokens", text).given("0"));
        }
        let logprobs = fields.small(&request_fields::COMPLETION_LOGPROBS)?;
        if echo && params.stream && max_tokens == Some(0) {
            let text = "must be >= 1 when the answer is streamed";
            return Err(ApiError::invalid("max_tokens", text).given("0"));
        }
        let grammar = params.take_grammar(false)?;
        let warnings = params.warnings.settle(fields.limits())?;
        Ok(Self {
            params: GenerationParams { warnings, ..params },
            best_of,
            prompts,
            grammar,
            max_tokens,
            echo,
            logprobs,
            names: FieldNames { max_new_tokens: max_tokens_name(fields), ..FieldNames::COMPLETION },
        })
    }
}

/// A string, a list of strings, a list of token ids, or a list of such lists.
fn prompts(raw: &RawValue, fields: &Fields) -> Result<Vec<Input>, ApiError> {
    let limits = fields.limits();
    let wrong = || {
        let text =
            "must be a string, a list of strings, a list of token ids, or a list of lists of token ids";
        ApiError::invalid("prompt", text).given(shortened(raw.get()))
    };
    let text = |raw: &RawValue| match text_of(raw) {
        Some(text) if text.is_empty() => Err(ApiError::invalid("prompt", "cannot be empty")),
        Some(text) => Ok(Input::Text(text.into_owned())),
        None => Err(wrong()),
    };
    if raw.get().starts_with('"') {
        return Ok(vec![text(raw)?]);
    }
    let list: Vec<&RawValue> = serde_json::from_str(raw.get()).map_err(|_| wrong())?;
    let Some(first) = list.first() else {
        return Err(ApiError::invalid("prompt", "cannot be empty"));
    };
    if first.get().starts_with(|first: char| first == '-' || first.is_ascii_digit()) {
        return Ok(vec![Input::Tokens(tokens(&list, limits, wrong)?)]);
    }
    if list.len() as u64 > limits.most(request_fields::PROMPTS) {
        return Err(fields.too_many("prompt", request_fields::PROMPTS, list.len()));
    }
    list.iter()
        .map(|raw| {
            if !raw.get().starts_with('[') {
                return text(raw);
            }
            let ids: Vec<&RawValue> = serde_json::from_str(raw.get()).map_err(|_| wrong())?;
            Ok(Input::Tokens(tokens(&ids, limits, wrong)?))
        })
        .collect()
}

fn tokens(
    ids: &[&RawValue],
    limits: &Limits,
    wrong: impl Fn() -> ApiError,
) -> Result<Vec<TokenId>, ApiError> {
    if ids.is_empty() {
        return Err(ApiError::invalid("prompt", "cannot be empty"));
    }
    let vocabulary = limits.vocab_size;
    ids.iter()
        .map(|raw| {
            let id: i128 = raw.get().parse().map_err(|_| wrong())?;
            u32::try_from(id).ok().filter(|id| *id < vocabulary).map(TokenId).ok_or_else(|| {
                let text = format!("must have token ids >= 0 and < {vocabulary}");
                ApiError::invalid("prompt", text).given(id.to_string())
            })
        })
        .collect()
}

pub async fn answer(context: Arc<RequestContext>, body: Bytes) -> Result<Response<Body>, ApiError> {
    let prompt = context.loaded()?.serving.prompt.clone();
    let spelling = prompt.clone();
    let (asked, echoes, prompt_characters) =
        body::parse(context.server(), context.origin(), body, move |fields, server| {
            let asked = CompletionRequest::parse(fields, &server.config.model_id)?;
            let (echoes, characters) = echoed(&asked, &spelling);
            Ok((asked, echoes, characters))
        })
        .await?;
    let CompletionRequest { params, best_of, prompts, grammar, max_tokens, echo, logprobs, names } = asked;
    let requests = prompts.into_iter().map(|input| GenerationRequest {
        top_tokens: logprobs.unwrap_or(0),
        prompt_logprobs: echo && logprobs.is_some(),
        grammar: grammar.clone(),
        // At least one is generated, and left out of the answer when none was asked for.
        ..params.request(input, max_tokens.map(|most| most.max(1)))
    });
    let requests = requests.collect();
    let mut choices = Choices::start(&context, requests, &params, best_of, names).await?;
    let head = AnswerHead::new("cmpl", params.model);
    let answers_each = params.n as usize;
    if params.stream {
        let writer = CompletionChunks {
            frame: head.frame(Kind::TextCompletion),
            head,
            warnings: params.warnings,
            include_usage: params.include_usage,
            spelling: logprobs.map(|_| prompt),
            echoes: echoes_per_choice(&echoes, answers_each),
            offsets: Vec::new(),
            echoing: None,
            done: Vec::new(),
            answers_each,
        };
        return stream::response(context, choices, prompt_characters, writer).await;
    }
    choices.first().await?;
    context.began();
    let mut answers = choices.collect().await?;
    for (_, done) in &answers {
        context.succeeded(done);
    }
    let only_echo = max_tokens == Some(0);
    if only_echo {
        for (_, done) in &mut answers {
            done.text.clear();
            (done.generated_tokens, done.skipped_tokens) = (0, 0);
            done.finish_reason = FinishReason::Length;
        }
    }
    let mut usage = Usage::default();
    for of_one_prompt in answers.chunks_mut(best_of as usize) {
        usage.add(Usage::of(of_one_prompt.iter().map(|(_, done)| done)));
        if of_one_prompt.len() > answers_each {
            most_likely_first(of_one_prompt);
        }
    }
    let mut later = Vec::new();
    let best = answers.chunks_mut(best_of as usize).flat_map(|candidates| &mut candidates[..answers_each]);
    let choices = best.enumerate().map(|(index, (tokens, done))| {
        let before = echoes.get(index / answers_each).map_or("", String::as_str);
        if logprobs.is_some() {
            let mut generated = std::mem::take(tokens);
            let echoed = generated.first_mut().map(|first| std::mem::take(&mut first.prefill));
            let echoed = echoed.unwrap_or_default();
            if only_echo {
                generated.clear();
            }
            let lists = TokenLists { prompt: prompt.clone(), echo: before.to_owned(), echoed, generated };
            later.extend(lists.entries());
        }
        Choice {
            index,
            text: [before, &done.text].concat(),
            logprobs: logprobs.map(|_| Logprobs::later()),
            finish_reason: Reason::from(done.finish_reason),
        }
    });
    let choices: Vec<_> = choices.collect();
    let whole = head.answer(Kind::TextCompletion, &choices, usage, &params.warnings);
    let mut response = json_in_pieces(&whole, later);
    context.head(&mut response, prompt_characters);
    let prompts = answers.chunks(best_of as usize);
    totals(response.headers_mut(), prompts.map(|of_one| of_one.iter().map(|(_, done)| done)));
    // TGI does not say it on this route.
    response.headers_mut().remove("x-compute-time");
    Ok(response)
}

/// The prompts as texts, where they are to be echoed, and their characters.
fn echoed(asked: &CompletionRequest, prompt: &Prompt) -> (Vec<String>, usize) {
    let (mut echoes, mut characters) = (Vec::new(), 0);
    for input in &asked.prompts {
        let text: Cow<str> = match input {
            Input::Text(text) | Input::Rendered(text) => text.into(),
            Input::Tokens(ids) => prompt.decode(ids).into(),
        };
        characters += text.chars().count();
        if asked.echo {
            echoes.push(text.into_owned());
        }
    }
    (echoes, characters)
}

fn echoes_per_choice(echoes: &[String], answers_each: usize) -> Vec<Option<String>> {
    echoes.iter().flat_map(|echo| std::iter::repeat_n(Some(echo.clone()), answers_each)).collect()
}

/// Writes the chunks of a stream.
struct CompletionChunks {
    head: AnswerHead,
    frame: Frame,
    /// Said once, in the first chunk.
    warnings: Warnings,
    include_usage: bool,
    /// What spells tokens, when log probabilities are wanted.
    spelling: Option<Arc<Prompt>>,
    /// What goes before a choice's first token; empty without `echo`.
    echoes: Vec<Option<String>>,
    /// How many characters of each choice were sent.
    offsets: Vec<usize>,
    /// What is still to be told of an echoed prompt, before anything else.
    echoing: Option<Echoing>,
    done: Vec<(usize, Done)>,
    answers_each: usize,
}

impl ChunkWriter for CompletionChunks {
    fn token(&mut self, index: usize, mut token: TokenEvent, encoder: &mut Encoder) {
        let text = self.echoes.get_mut(index).and_then(Option::take).unwrap_or_default();
        if self.offsets.len() <= index {
            self.offsets.resize(index + 1, 0);
        }
        let prefill = std::mem::take(&mut token.prefill);
        let tokens = prefill.into_iter();
        self.tell(Echoing { index, text, said: 0, place: EchoPlace::default(), tokens, token }, encoder);
    }

    fn go_on(&mut self, encoder: &mut Encoder) -> bool {
        let echoing = self.echoing.take();
        echoing.is_some_and(|echoing| {
            self.tell(echoing, encoder);
            true
        })
    }

    fn break_silence(&mut self, encoder: &mut Encoder) {
        let has_ended = |index: &usize| self.done.iter().any(|(ended, _)| ended == index);
        // There is one: the stream ends with the last.
        let index = (0..).find(|index| !has_ended(index)).unwrap_or_default();
        let choice = Choice { index, text: String::new(), logprobs: None, finish_reason: None };
        self.chunk(choice, None, encoder);
    }

    fn done(&mut self, index: usize, done: Done, encoder: &mut Encoder) {
        // Without `include_usage` the last chunk of a choice has its own, as in TGI.
        let usage = (!self.include_usage).then(|| Usage::of([&done]));
        let finish_reason = Some(done.finish_reason.into());
        let choice = Choice { index, text: String::new(), logprobs: None, finish_reason };
        self.chunk(choice, usage, encoder);
        self.done.push((index, done));
    }

    fn end(&mut self, encoder: &mut Encoder) {
        if self.include_usage {
            self.done.sort_by_key(|(index, _)| *index);
            let mut usage = Usage::default();
            for of_one_prompt in self.done.chunks(self.answers_each) {
                usage.add(Usage::of(of_one_prompt.iter().map(|(_, done)| done)));
            }
            encoder.event(&self.head.answer::<_, Choice<Option<Reason>>, _>(
                Kind::TextCompletion,
                &[],
                Some(usage),
                &Warnings::default(),
            ));
        }
        encoder.done();
    }
}

impl CompletionChunks {
    /// A chunk with tokens of an echoed prompt, and with the first generated token where no more are left.
    fn tell(&mut self, mut echoing: Echoing, encoder: &mut Encoder) {
        let index = echoing.index;
        let is_last = echoing.tokens.len() <= ECHOED_AT_ONCE || self.spelling.is_none();
        let mut logprobs = self.spelling.as_ref().map(|_| Logprobs::default());
        if let (Some(logprobs), Some(prompt)) = (&mut logprobs, &self.spelling) {
            for entry in echoing.tokens.by_ref().take(ECHOED_AT_ONCE) {
                logprobs.echoed(prompt, &entry, echoing.place.characters);
                echoing.place.pass(&echoing.text, prompt, entry.id);
            }
        }
        if !is_last {
            let text = echoing.next_text();
            self.offsets[index] += text.chars().count();
            self.chunk(Choice { index, text, logprobs, finish_reason: None }, None, encoder);
            self.echoing = Some(echoing);
            return;
        }
        let Echoing { text, said, token, .. } = echoing;
        let mut text = if said == 0 { text } else { text[said..].to_owned() };
        let offset = self.offsets[index] + text.chars().count();
        if let (Some(logprobs), Some(prompt)) = (&mut logprobs, &self.spelling) {
            logprobs.push(prompt, &token, offset);
        }
        if !token.special {
            text.push_str(&token.text);
        }
        if !text.is_empty() || !token.special || logprobs.is_some() {
            self.offsets[index] += text.chars().count();
            self.chunk(Choice { index, text, logprobs, finish_reason: None }, None, encoder);
        }
    }

    fn chunk(&mut self, choice: Choice<Option<Reason>>, usage: Option<Usage>, encoder: &mut Encoder) {
        if usage.is_none() && self.warnings.is_empty() {
            return encoder.framed(&self.frame, &choice);
        }
        let warnings = std::mem::take(&mut self.warnings);
        encoder.event(&self.head.answer(Kind::TextCompletion, &[choice], usage, &warnings));
    }
}

pub type Completion<'a> = Answer<'a, Kind, Choice<Reason>, Usage>;
pub type CompletionChunk<'a> = Answer<'a, Kind, Choice<Option<Reason>>, Option<Usage>>;

// Of whole answers and of chunks.
#[derive(JsonSchema, Serialize)]
#[schemars(inline)]
pub enum Kind {
    #[serde(rename = "text_completion")]
    TextCompletion,
}

// `R` is a reason, or in a chunk maybe none.
#[derive(JsonSchema, Serialize)]
#[schemars(inline)]
pub struct Choice<R> {
    index: usize,
    text: String,
    logprobs: Option<Logprobs>,
    finish_reason: R,
}

/// So many tokens of an echoed prompt are told in one chunk.
const ECHOED_AT_ONCE: usize = 128;

/// A prompt that is echoed before the first token of a choice, as far as it was not told.
struct Echoing {
    index: usize,
    text: String,
    /// Bytes of it that were sent.
    said: usize,
    place: EchoPlace,
    tokens: std::vec::IntoIter<PromptToken>,
    token: TokenEvent,
}

impl Echoing {
    /// The characters that its tokens have completed since the last time.
    fn next_text(&mut self) -> String {
        let is_whole = |at: &usize| self.text.is_char_boundary(*at);
        let end = (self.said..=self.place.bytes).rev().find(is_whole).unwrap_or(self.said);
        self.text[std::mem::replace(&mut self.said, end)..end].to_owned()
    }
}

/// The tokens of a whole answer, of which the lists are made when they are written.
struct TokenLists {
    prompt: Arc<Prompt>,
    /// What stands before the generated text.
    echo: String,
    echoed: Vec<PromptToken>,
    generated: Vec<TokenEvent>,
}

impl TokenLists {
    /// In the order of `Logprobs`.
    fn entries(self) -> [Entries; 4] {
        let mut offset = self.echo.chars().count();
        let lists = Arc::new(self);
        let echoed = || {
            let lists = lists.clone();
            (0..lists.echoed.len()).map(move |at| (lists.clone(), at))
        };
        let generated = || {
            let lists = lists.clone();
            (0..lists.generated.len()).map(move |at| (lists.clone(), at))
        };
        let mut place = EchoPlace::default();
        let echo_begins = echoed().map(move |(lists, at)| {
            let begins = place.characters;
            place.pass(&lists.echo, &lists.prompt, lists.echoed[at].id);
            begins
        });
        let begins = generated().map(move |(lists, at)| {
            let TokenEvent { special, text, .. } = &lists.generated[at];
            let begins = offset;
            offset += if *special { 0 } else { text.chars().count() };
            begins
        });
        [
            entries(
                echoed()
                    .map(|(lists, at)| spelled(&lists.prompt, lists.echoed[at].id))
                    .chain(generated().map(|(lists, at)| spelled(&lists.prompt, lists.generated[at].id))),
            ),
            entries(
                echoed()
                    .map(|(lists, at)| lists.echoed[at].logprob)
                    .chain(generated().map(|(lists, at)| Some(lists.generated[at].logprob)))
                    .map(|logprob| logprob.map(finite)),
            ),
            entries(
                echoed()
                    .map(|(lists, at)| {
                        let PromptToken { id, logprob, top } = &lists.echoed[at];
                        Alternatives::of(&lists.prompt, (*id, *logprob), top)
                    })
                    .chain(
                        generated()
                            .map(|(lists, at)| Alternatives::beside(&lists.prompt, &lists.generated[at])),
                    ),
            ),
            entries(echo_begins.chain(begins)),
        ]
    }
}

/// OpenAI's shape of this route: lists side by side, one entry per token.
#[derive(Default, JsonSchema)]
#[schemars(rename = "CompletionLogprobs")]
struct Logprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    #[schemars(with = "Vec<Option<HashMap<String, f32>>>")]
    top_logprobs: Vec<Option<Alternatives>>,
    /// Where each token begins in the choice's text, in characters.
    text_offset: Vec<usize>,
    /// The lists are those of `TokenLists`.
    #[schemars(skip)]
    is_later: bool,
}

impl Serialize for Logprobs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let begins_later = self.is_later;
        let mut lists = serializer.serialize_struct("Logprobs", 4)?;
        lists.serialize_field("tokens", &List { begins_later, here: &self.tokens })?;
        lists.serialize_field("token_logprobs", &List { begins_later, here: &self.token_logprobs })?;
        lists.serialize_field("top_logprobs", &List { begins_later, here: &self.top_logprobs })?;
        lists.serialize_field("text_offset", &List { begins_later, here: &self.text_offset })?;
        lists.end()
    }
}

impl Logprobs {
    /// Of a whole answer.
    fn later() -> Self {
        Self { is_later: true, ..Self::default() }
    }

    /// Of an echoed token.
    fn echoed(&mut self, prompt: &Prompt, token: &PromptToken, offset: usize) {
        let PromptToken { id, logprob, top } = token;
        self.entry(prompt, (*id, *logprob), Alternatives::of(prompt, (*id, *logprob), top), offset);
    }

    fn push(&mut self, prompt: &Prompt, token: &TokenEvent, offset: usize) {
        self.entry(prompt, (token.id, Some(token.logprob)), Alternatives::beside(prompt, token), offset);
    }

    fn entry(
        &mut self,
        prompt: &Prompt,
        (id, logprob): (TokenId, Option<f32>),
        top: Option<Alternatives>,
        offset: usize,
    ) {
        self.tokens.push(spelled(prompt, id));
        self.token_logprobs.push(logprob.map(finite));
        self.top_logprobs.push(top);
        self.text_offset.push(offset);
    }
}

/// Bytes of space that a tokenizer may have dropped at one place of an echoed prompt.
const LONGEST_GAP: usize = 64;

/// Where in an echoed prompt its tokens have come to.
#[derive(Default)]
struct EchoPlace {
    bytes: usize,
    /// That are complete before it.
    characters: usize,
}

impl EchoPlace {
    /// Passes a token of `text`. One that the tokenizer put around it does not stand in it.
    fn pass(&mut self, text: &str, prompt: &Prompt, id: TokenId) {
        let spelled = &prompt.token_bytes(id)[..];
        let rest = &text.as_bytes()[self.bytes..];
        // Tokenizers put a space before a text, or drop those around words and special tokens.
        let bare = spelled.trim_ascii_start();
        let space = rest.iter().take(LONGEST_GAP).take_while(|byte| byte.is_ascii_whitespace()).count();
        let length = if rest.starts_with(spelled) {
            spelled.len()
        } else if !bare.is_empty() && rest[space..].starts_with(bare) {
            space + bare.len()
        } else if bare.is_empty() || prompt.vocabulary().is_special(id) {
            0
        } else {
            // The tokenizer has other letters for it, such as small ones for capitals: one for one.
            let boundary = |place: &usize| text.is_char_boundary(*place);
            let after = (self.bytes + space..).find(boundary).unwrap_or(text.len());
            let own = prompt.vocabulary().text(id);
            let letters = text[after..].chars().take(own.trim_start().chars().count());
            after - self.bytes + letters.map(char::len_utf8).sum::<usize>()
        };
        let end = self.bytes + length;
        // A character is complete where the next one begins.
        let begins = |place: &usize| text.is_char_boundary(*place);
        self.characters += (self.bytes + 1..=end).filter(begins).count();
        self.bytes = end;
    }
}

/// An object whose names are tokens.
struct Alternatives(Vec<(String, f32)>);

impl Alternatives {
    /// Of a generated token.
    fn beside(prompt: &Prompt, token: &TokenEvent) -> Option<Self> {
        let top = token.top.iter().map(|other| (other.id, other.logprob.unwrap_or(f32::NEG_INFINITY)));
        Self::of(prompt, (token.id, Some(token.logprob)), &top.collect::<Vec<_>>())
    }

    /// `None` where the token has no log probability, as the first of an echo. The token itself is among them, which are then one more
    /// than were asked for: it alone where that is 0.
    fn of(prompt: &Prompt, (id, logprob): (TokenId, Option<f32>), top: &[(TokenId, f32)]) -> Option<Self> {
        let own = logprob.filter(|_| top.iter().all(|other| other.0 != id)).map(|own| (id, own));
        let all = top.iter().copied().chain(own);
        let all: Vec<_> = all.map(|(id, logprob)| (spelled(prompt, id), finite(logprob))).collect();
        (!all.is_empty()).then_some(Self(all))
    }
}

impl Serialize for Alternatives {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(token, logprob)| (token, logprob)))
    }
}

/// The token's text, or its bytes as OpenAI writes them when it is a part of a character: two such tokens
/// must not look the same.
fn spelled(prompt: &Prompt, id: TokenId) -> String {
    String::from_utf8(prompt.token_bytes(id)).unwrap_or_else(|error| {
        error.as_bytes().iter().fold("bytes:".to_string(), |text, byte| text + &format!("\\x{byte:02x}"))
    })
}

/// JSON has no infinity; this is how OpenAI writes "as good as impossible".
fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { -9999.0 }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::http::openai::stream::tests::Silent;
    use crate::http::sse::tests::told_in_silence;

    /// A comment would be data to some clients, and the end of the stream.
    #[tokio::test(start_paused = true)]
    async fn silence_is_broken_by_chunks() {
        let head = AnswerHead::new("cmpl", "m".into());
        let mut warnings = Warnings::default();
        warnings.no_effect("store", "here");
        let mut writer = CompletionChunks {
            frame: head.frame(Kind::TextCompletion),
            head,
            warnings,
            include_usage: true,
            spelling: None,
            echoes: Vec::new(),
            offsets: Vec::new(),
            echoing: None,
            done: Vec::new(),
            answers_each: 3,
        };
        let ended = Done {
            text: String::new(),
            finish_reason: FinishReason::Length,
            stop: None,
            generated_tokens: 1,
            skipped_tokens: 0,
            seed: None,
            prompt_tokens: 1,
            cached_tokens: 0,
            timings: Default::default(),
        };
        // In any order.
        writer.done = vec![(2, ended.clone()), (0, ended)];
        let told = told_in_silence(Silent(writer), 31).await;
        assert!(told.lines().all(|line| line.is_empty() || line.starts_with("data: ")), "{told}");
        let data = told.lines().filter_map(|line| line.strip_prefix("data: "));
        let chunks: Vec<Value> = data.map(|data| serde_json::from_str(data).expect("JSON")).collect();
        assert_eq!(chunks.len(), 2);
        for (nth, chunk) in chunks.iter().enumerate() {
            let choice = json!({"index": 1, "text": "", "logprobs": null, "finish_reason": null});
            assert_eq!(chunk["choices"], json!([choice]));
            assert_eq!(chunk["usage"], Value::Null);
            assert_eq!(chunk.get("warnings").is_some(), nth == 0, "{chunk}");
        }
    }
}
