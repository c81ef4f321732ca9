//! OpenAI's dialect for plain prompts: `/v1/completions`.

use std::borrow::Cow;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use bytes::Bytes;
use futures::stream::{self, BoxStream, SelectAll, StreamExt};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::generation::{
    Done, GenerationEvent, GenerationRequest, Input, PromptToken, StopText, TextToken, TokenEvent,
};
use crate::http::Server;
use crate::http::choices::{Choices, most_likely_first};
use crate::http::error::{ApiError, Cause, Family};
use crate::http::fields::{Fields, shortened, text_of};
use crate::http::openai::{
    FINGERPRINT, Manner, Usage, finish_reason, in_openai_words, max_tokens, new_id, unix_seconds,
};
use crate::http::sse::{self, Encoder};
use crate::http::tgi::json;
use crate::http::visit::{Visit, totals};
use crate::http::warnings::Warnings;
use crate::ids::TokenId;
use crate::limits::{self, Limits};
use crate::prompt::Prompt;

pub async fn completions(State(server): State<Arc<Server>>, request: Request) -> Response<Body> {
    Visit::answer(server, request, Family::OpenAi, async |visit, body| {
        answer(visit, &body).await.map_err(|error| in_openai_words(error, "prompt"))
    })
    .await
}

/// A request of this dialect.
struct Asked {
    manner: Manner,
    /// How many to generate and choose the `n` most likely of.
    best_of: u32,
    prompts: Vec<Input>,
    max_tokens: Option<u32>,
    echo: bool,
    /// How many alternatives; `None` for no log probabilities.
    logprobs: Option<u32>,
}

impl Asked {
    fn parse(fields: &Fields, served: &str) -> Result<Self, ApiError> {
        let raw = fields.required(&limits::PROMPT, fields.raw(&limits::PROMPT))?;
        let prompts = prompts(raw, fields)?;
        let manner = Manner::parse(fields, served, &limits::completion_fields())?;
        let best_of = fields.small(&limits::OPENAI_BEST_OF)?.unwrap_or(manner.n);
        if best_of < manner.n {
            let message = format!("`best_of` must be >= `n`. Given: {best_of} and {}", manner.n);
            return Err(ApiError::invalid("best_of", message));
        }
        if best_of > manner.n && manner.stream {
            let message = "`best_of` > `n` is not supported when the answer is streamed";
            return Err(ApiError::invalid("best_of", message));
        }
        let echo = fields.boolean(&limits::ECHO)?.unwrap_or(false);
        let max_tokens = max_tokens(fields, &limits::COMPLETION_MAX_TOKENS)?;
        if max_tokens == Some(0) && !echo {
            let message = "`max_tokens` must be >= 1 unless `echo` is true. Given: 0";
            return Err(ApiError::invalid("max_tokens", message));
        }
        let logprobs = fields.small(&limits::COMPLETION_LOGPROBS)?;
        if echo && manner.stream && max_tokens == Some(0) {
            let message = "`max_tokens` must be >= 1 when the answer is streamed. Given: 0";
            return Err(ApiError::invalid("max_tokens", message));
        }
        let warnings = manner.warnings.settle(fields.limits())?;
        Ok(Self { manner: Manner { warnings, ..manner }, best_of, prompts, max_tokens, echo, logprobs })
    }
}

/// A string, a list of strings, a list of token ids, or a list of such lists.
fn prompts(raw: &RawValue, fields: &Fields) -> Result<Vec<Input>, ApiError> {
    let limits = fields.limits();
    let wrong = || {
        let given = shortened(raw.get());
        ApiError::invalid(
            "prompt",
            format!(
                "`prompt` must be {}. Given: {given}",
                "a string, a list of strings, \
            a list of token ids, or a list of lists of token ids"
            ),
        )
    };
    let text = |raw: &RawValue| match text_of(raw) {
        Some(text) if text.is_empty() => Err(ApiError::invalid("prompt", "`prompt` cannot be empty")),
        Some(text) => Ok(Input::Text(text.into_owned())),
        None => Err(wrong()),
    };
    if raw.get().starts_with('"') {
        return Ok(vec![text(raw)?]);
    }
    let list: Vec<&RawValue> = serde_json::from_str(raw.get()).map_err(|_| wrong())?;
    let Some(first) = list.first() else {
        return Err(ApiError::invalid("prompt", "`prompt` cannot be empty"));
    };
    if first.get().starts_with(|first: char| first == '-' || first.is_ascii_digit()) {
        return Ok(vec![Input::Tokens(tokens(&list, limits, wrong)?)]);
    }
    if list.len() as u64 > limits.most(limits::PROMPTS) {
        return Err(fields.too_many("prompt", limits::PROMPTS, list.len()));
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
        return Err(ApiError::invalid("prompt", "`prompt` cannot be empty"));
    }
    let vocabulary = limits.vocab_size;
    ids.iter()
        .map(|raw| {
            let id: i128 = raw.get().parse().map_err(|_| wrong())?;
            u32::try_from(id).ok().filter(|id| *id < vocabulary).map(TokenId).ok_or_else(|| {
                let message = format!("`prompt` must have token ids >= 0 and < {vocabulary}. Given: {id}");
                ApiError::invalid("prompt", message)
            })
        })
        .collect()
}

async fn answer(visit: &mut Option<Visit>, body: &Bytes) -> Result<Response<Body>, ApiError> {
    let staying = visit.as_mut().expect("taken only by the stream at the end");
    let (asked, prompt) = {
        let loaded = staying.loaded()?;
        let fields = Fields::parse(body, &loaded.limits)?;
        (Asked::parse(&fields, &staying.server().config.model_id)?, loaded.serving.prompt.clone())
    };
    let Asked { manner, best_of, prompts, max_tokens, echo, logprobs } = asked;
    let mut prompt_characters = 0;
    let mut echoes = Vec::with_capacity(prompts.len());
    for input in &prompts {
        let text: Cow<str> = match input {
            Input::Text(text) | Input::Rendered(text) => text.into(),
            Input::Tokens(ids) => prompt.decode(ids).into(),
        };
        prompt_characters += text.chars().count();
        if echo {
            echoes.push(text.into_owned());
        }
    }
    let requests = prompts.into_iter().map(|input| GenerationRequest {
        input,
        sampling: manner.sampling.clone(),
        reported_seed: manner.reported_seed,
        // At least one is generated, and left out of the answer when none was asked for.
        max_new_tokens: max_tokens.map(|most| most.max(1)),
        min_new_tokens: manner.min_tokens,
        watermark: manner.watermark,
        truncate: None,
        stop: manner.stop.clone(),
        stop_text: StopText::Omit,
        ignore_eos: manner.ignore_eos,
        stop_token_ids: manner.stop_token_ids.clone(),
        top_tokens: logprobs.unwrap_or(0),
        prompt_logprobs: echo && logprobs.is_some(),
        user: manner.user.clone(),
        max_time: None,
    });
    let mut choices = Choices::start(staying, requests.collect(), &manner, best_of).await?;
    choices.first().await?;
    staying.began();
    let head = Head { id: new_id("cmpl"), created: unix_seconds(), model: manner.model };
    let answers_each = manner.n as usize;
    if manner.stream {
        let places = echoes_per_choice(&echoes, answers_each);
        let visit = visit.take().expect("it was there above");
        let mut response_head = Response::default();
        visit.head(&mut response_head, prompt_characters);
        let state = ChunkStream {
            remaining: choices.count(),
            events: choices.events(),
            visit,
            encoder: Encoder::default(),
            head,
            warnings: manner.warnings,
            include_usage: manner.include_usage,
            spelling: logprobs.map(|_| prompt),
            echoes: places,
            offsets: Vec::new(),
            done: Vec::new(),
            answers_each,
        };
        let mut response = sse::response(stream::unfold(Some(Box::new(state)), async |state| {
            let mut state = state?;
            let (bytes, goes_on) = state.next().await;
            Some((bytes, goes_on.then_some(state)))
        }));
        response.headers_mut().extend(response_head.into_parts().0.headers);
        return Ok(response);
    }
    let mut answers = choices.collect().await?;
    for (_, done) in &answers {
        staying.succeeded(done);
    }
    let only_echo = max_tokens == Some(0);
    if only_echo {
        for (_, done) in &mut answers {
            done.text.clear();
            done.generated_tokens = 0;
            done.finish_reason = crate::generation::FinishReason::Length;
        }
    }
    let mut usage = Usage::default();
    for of_one_prompt in answers.chunks_mut(best_of as usize) {
        usage.add(Usage::of(of_one_prompt.iter().map(|(_, done)| done)));
        if of_one_prompt.len() > answers_each {
            most_likely_first(of_one_prompt);
        }
    }
    let answers: Vec<_> =
        answers.chunks(best_of as usize).flat_map(|candidates| &candidates[..answers_each]).collect();
    let choices = answers.iter().enumerate().map(|(index, (tokens, done))| {
        let before = echoes.get(index / answers_each).map_or("", String::as_str);
        Choice {
            index,
            text: [before, &done.text].concat(),
            logprobs: logprobs.map(|_| Logprobs::of(&prompt, tokens, only_echo)),
            finish_reason: Some(finish_reason(done.finish_reason)),
        }
    });
    let completion = Completion {
        choices: &choices.collect::<Vec<_>>(),
        ..Completion::new(&head, Some(usage), &manner.warnings)
    };
    let mut response = json(&completion);
    staying.head(&mut response, prompt_characters);
    totals(response.headers_mut(), answers.iter().map(|(_, done)| done));
    // TGI does not say it on this route.
    response.headers_mut().remove("x-compute-time");
    Ok(response)
}

fn echoes_per_choice(echoes: &[String], answers_each: usize) -> Vec<Option<String>> {
    echoes.iter().flat_map(|echo| std::iter::repeat_n(Some(echo.clone()), answers_each)).collect()
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
    spelling: Option<Arc<Prompt>>,
    /// What goes before a choice's first token; empty without `echo`.
    echoes: Vec<Option<String>>,
    /// How many characters of each choice were sent.
    offsets: Vec<usize>,
    done: Vec<(usize, Done)>,
    remaining: usize,
    answers_each: usize,
}

impl ChunkStream {
    /// The next write, and whether another follows.
    async fn next(&mut self) -> (Bytes, bool) {
        loop {
            let goes_on = match self.events.next().await {
                Some((place, GenerationEvent::Token(token))) => {
                    self.token(place, &token);
                    true
                }
                Some((place, GenerationEvent::Done(done))) => {
                    self.visit.succeeded(&done);
                    // Without `include_usage` the last chunk of a choice has its own, as in TGI.
                    let usage = (!self.include_usage).then(|| Usage::of([&done]));
                    self.chunk(place, String::new(), None, Some(finish_reason(done.finish_reason)), usage);
                    self.done.push((place, done));
                    self.remaining -= 1;
                    if self.remaining == 0 {
                        self.end();
                    }
                    self.remaining > 0
                }
                Some((_, GenerationEvent::Failed(failure))) => {
                    self.fail(in_openai_words(failure.into(), "prompt"))
                }
                None => self.fail(ApiError::new(Cause::IncompleteStream, "Incomplete generation")),
            };
            let bytes = self.encoder.take();
            if !(goes_on && bytes.is_empty()) {
                return (bytes, goes_on);
            }
        }
    }

    fn token(&mut self, place: usize, token: &TokenEvent) {
        let mut text = self.echoes.get_mut(place).and_then(Option::take).unwrap_or_default();
        if self.offsets.len() <= place {
            self.offsets.resize(place + 1, 0);
        }
        let offset = self.offsets[place] + text.chars().count();
        let logprobs = self.spelling.as_ref().map(|prompt| {
            let mut logprobs = Logprobs::default();
            logprobs.echo(prompt, &token.prefill);
            logprobs.push(prompt, token, offset);
            logprobs
        });
        if !token.special {
            text.push_str(&token.text);
        }
        if !text.is_empty() || !token.special || logprobs.is_some() {
            self.offsets[place] += text.chars().count();
            self.chunk(place, text, logprobs, None, None);
        }
    }

    fn chunk(
        &mut self,
        index: usize,
        text: String,
        logprobs: Option<Logprobs>,
        finish_reason: Option<&'static str>,
        usage: Option<Usage>,
    ) {
        let warnings = std::mem::take(&mut self.warnings);
        let choices = [Choice { index, text, logprobs, finish_reason }];
        self.encoder
            .event(&Completion { choices: &choices, ..Completion::new(&self.head, usage, &warnings) });
    }

    fn end(&mut self) {
        if self.include_usage {
            self.done.sort_by_key(|(place, _)| *place);
            let mut usage = Usage::default();
            for of_one_prompt in self.done.chunks(self.answers_each) {
                usage.add(Usage::of(of_one_prompt.iter().map(|(_, done)| done)));
            }
            self.encoder.event(&Completion::new(&self.head, Some(usage), &Warnings::default()));
        }
        self.encoder.done();
    }

    fn fail(&mut self, error: ApiError) -> bool {
        self.visit.failed(&error);
        self.encoder.raw(&error.body(Family::OpenAi));
        false
    }
}

#[derive(Serialize)]
struct Completion<'a> {
    object: &'static str,
    id: &'a str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'static str,
    choices: &'a [Choice],
    usage: Option<Usage>,
    #[serde(skip_serializing_if = "Warnings::is_empty")]
    warnings: &'a Warnings,
}

impl<'a> Completion<'a> {
    fn new(head: &'a Head, usage: Option<Usage>, warnings: &'a Warnings) -> Self {
        Self {
            object: "text_completion",
            id: &head.id,
            created: head.created,
            model: &head.model,
            system_fingerprint: FINGERPRINT,
            choices: &[],
            usage,
            warnings,
        }
    }
}

#[derive(Serialize)]
struct Choice {
    index: usize,
    text: String,
    logprobs: Option<Logprobs>,
    finish_reason: Option<&'static str>,
}

/// OpenAI's shape of this route: lists side by side, one entry per token.
#[derive(Default, Serialize)]
struct Logprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    top_logprobs: Vec<Option<Alternatives>>,
    /// Where each token begins in the choice's text, in characters.
    text_offset: Vec<usize>,
}

impl Logprobs {
    /// Of a whole answer, or only of the prompt that is echoed before it.
    fn of(prompt: &Prompt, tokens: &[TokenEvent], only_echo: bool) -> Self {
        let mut logprobs = Self::default();
        let mut offset = logprobs.echo(prompt, tokens.first().map_or(&[], |first| &first.prefill));
        for token in tokens.iter().filter(|_| !only_echo) {
            logprobs.push(prompt, token, offset);
            offset += if token.special { 0 } else { token.text.chars().count() };
        }
        logprobs
    }

    /// An echoed prompt. Says how many characters it has.
    fn echo(&mut self, prompt: &Prompt, prefill: &[PromptToken]) -> usize {
        let mut offset = 0;
        for PromptToken { token, top } in prefill {
            self.entry(prompt, (token.id, token.logprob), top, offset);
            offset += if token.special { 0 } else { token.text.chars().count() };
        }
        offset
    }

    fn push(&mut self, prompt: &Prompt, token: &TokenEvent, offset: usize) {
        self.entry(prompt, (token.id, Some(token.logprob)), &token.top, offset);
    }

    fn entry(
        &mut self,
        prompt: &Prompt,
        (id, logprob): (TokenId, Option<f32>),
        top: &[TextToken],
        offset: usize,
    ) {
        self.tokens.push(spelled(prompt, id));
        self.token_logprobs.push(logprob.map(finite));
        // The token itself is among its alternatives, which are then one more than asked for.
        let own = logprob.filter(|_| top.iter().all(|other| other.id != id)).map(|own| (id, Some(own)));
        let all = top.iter().map(|other| (other.id, other.logprob)).chain(own);
        let all =
            all.map(|(id, logprob)| (spelled(prompt, id), finite(logprob.unwrap_or(f32::NEG_INFINITY))));
        self.top_logprobs.push((!top.is_empty()).then(|| Alternatives(all.collect())));
        self.text_offset.push(offset);
    }
}

/// An object whose names are tokens.
struct Alternatives(Vec<(String, f32)>);

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
