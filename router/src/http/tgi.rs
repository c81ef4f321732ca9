//! TGI's dialect: `/generate`, `/generate_stream`, `POST /` and `/tokenize`.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Response, header};
use bytes::Bytes;
use futures::future::try_join_all;
use futures::stream;
use serde::Serialize;

use crate::generation::{
    Done, FinishReason, Generation, GenerationEvent, GenerationRequest, Input, StopText, TextToken,
    TokenEvent, collect,
};
use crate::http::choices::most_likely_first;
use crate::http::constraints;
use crate::http::error::{ApiError, Cause, Family};
use crate::http::fields::{Fields, shortened};
use crate::http::sse::{self, Encoder};
use crate::http::visit::{Visit, totals};
use crate::http::warnings::{Warnings, names};
use crate::http::{Server, body};
use crate::limits::{self, Limits};
use crate::prompt::TokenSpan;
use crate::scheduler::Sampling;

pub async fn generate(State(server): State<Arc<Server>>, request: Request) -> Response<Body> {
    Visit::answer(server, request, Family::Tgi, async |visit, body| {
        let asked = Asked::parse(&Fields::parse(&body, &limits_of(visit)?)?, Route::Generate)?;
        whole(visit, asked, Shape::Object).await
    })
    .await
}

pub async fn generate_stream(State(server): State<Arc<Server>>, request: Request) -> Response<Body> {
    Visit::answer(server, request, Family::Tgi, async |visit, body| {
        let asked = Asked::parse(&Fields::parse(&body, &limits_of(visit)?)?, Route::Stream)?;
        streamed(visit, asked).await
    })
    .await
}

/// `POST /`: what `stream` says, with the prompt in the text unless asked otherwise.
pub async fn compat(State(server): State<Arc<Server>>, request: Request) -> Response<Body> {
    Visit::answer(server, request, Family::Tgi, async |visit, body| {
        let limits = limits_of(visit)?;
        let fields = Fields::parse(&body, &limits)?;
        let stream = fields.boolean(&limits::STREAM)?.unwrap_or(false);
        let route = if stream { Route::CompatStream } else { Route::Compat };
        let asked = Asked::parse(&fields, route)?;
        if stream { streamed(visit, asked).await } else { whole(visit, asked, Shape::List).await }
    })
    .await
}

/// The tokens of `inputs`, special tokens added. Counts as no request.
pub async fn tokenize(State(server): State<Arc<Server>>, request: Request) -> Response<Body> {
    let result = async {
        let loaded = server.loaded()?;
        let body = body::read(request, server.body_limits()).await?;
        let fields = Fields::parse(&body, &loaded.limits)?;
        let inputs = inputs(&fields)?;
        // A request to generate is taken as it is: its parameters say nothing here, but wrong ones are as
        // wrong as anywhere.
        let asked = Asked::parse(&fields, Route::Generate)?;
        let tokens = loaded.serving.prompt.tokenize(inputs, true).await?;
        let mut response = json(&spans(&tokens));
        // The answer is a bare list.
        for line in asked.warnings.lines() {
            if let Ok(value) = HeaderValue::from_bytes(line.as_bytes()) {
                response.headers_mut().append("x-warning", value);
            }
        }
        Ok(response)
    };
    result.await.unwrap_or_else(|error: ApiError| error.response(Family::Tgi))
}

/// As `/tokenize` and `/chat_tokenize` tell them.
pub fn spans(tokens: &[TokenSpan]) -> Vec<Span<'_>> {
    tokens
        .iter()
        .map(|token| Span { id: token.id.0, text: &token.text, start: token.start, stop: token.stop })
        .collect()
}

fn limits_of(visit: &Option<Visit>) -> Result<Limits, ApiError> {
    let visit = visit.as_ref().expect("taken only by the stream at the end");
    Ok(visit.loaded()?.limits.clone())
}

pub fn json(body: &impl Serialize) -> Response<Body> {
    let body = serde_json::to_vec(body).expect("the answers are structs of strings and numbers");
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Route {
    Generate,
    Stream,
    Compat,
    CompatStream,
    /// Of others, whose answer is the text alone.
    Text,
}

impl Route {
    fn streams(self) -> bool {
        matches!(self, Route::Stream | Route::CompatStream)
    }

    /// TGI does so where the model's pipeline is text generation, or not known.
    fn returns_full_text(self) -> bool {
        matches!(self, Route::Compat | Route::CompatStream)
    }
}

/// A request of this dialect.
struct Asked {
    request: GenerationRequest,
    /// How many to generate and choose the most likely of.
    best_of: u32,
    details: bool,
    prompt_characters: usize,
    /// Goes before the generated text.
    prefix: String,
    warnings: Warnings,
}

fn inputs(fields: &Fields) -> Result<String, ApiError> {
    let inputs = fields.required(&limits::INPUTS, fields.text(&limits::INPUTS)?)?;
    if inputs.is_empty() {
        return Err(ApiError::invalid("inputs", "`inputs` cannot be empty"));
    }
    Ok(inputs.into_owned())
}

impl Asked {
    fn parse(fields: &Fields, route: Route) -> Result<Self, ApiError> {
        let inputs = inputs(fields)?;
        let empty;
        let parameters = match fields.object(&limits::PARAMETERS)? {
            Some(given) => given,
            None => {
                empty = Fields::parse(b"{}", fields.limits())?;
                empty
            }
        };
        let p = &parameters;
        let mut warnings = Warnings::default();
        if fields.boolean(&limits::STREAM)?.is_some_and(|stream| stream != route.streams()) {
            warnings.no_effect("stream", "here: the route decides");
        }
        warnings.unknown(fields, "", names(limits::TGI));
        warnings.unknown(p, "parameters.", names(limits::TGI_PARAMETERS));
        let best_of = p.small(&limits::BEST_OF)?.unwrap_or(1);
        if best_of > 1 && route.streams() {
            let message = "`best_of` must be 1 when the answer is streamed";
            return Err(ApiError::invalid("best_of", message));
        }
        let prompt_logprobs = p.boolean(&limits::DECODER_INPUT_DETAILS)?.unwrap_or(false);
        if prompt_logprobs && route.streams() {
            let message = "`decoder_input_details` is not supported when the answer is streamed";
            return Err(ApiError::invalid("decoder_input_details", message));
        }
        let (sampling, reported_seed) = sampling(p)?;
        if best_of > 1 && reported_seed.is_none() {
            let message =
                "`best_of` > 1 needs sampling: `do_sample`, `temperature`, `top_k`, `top_p` or `typical_p`";
            return Err(ApiError::invalid("best_of", message));
        }
        if best_of > 1 && p.unsigned(&limits::SEED)?.is_some() {
            return Err(ApiError::invalid("seed", "`seed` must not be set when `best_of` > 1"));
        }
        let request = GenerationRequest {
            input: Input::Text(String::new()),
            sampling,
            reported_seed,
            max_new_tokens: p.small(&limits::MAX_NEW_TOKENS)?,
            min_new_tokens: 0,
            watermark: p.boolean(&limits::WATERMARK)?.unwrap_or(false),
            truncate: p.small(&limits::TRUNCATE)?,
            stop: p.texts(&limits::STOP)?,
            stop_text: StopText::Keep,
            ignore_eos: false,
            stop_token_ids: Vec::new(),
            top_tokens: p.small(&limits::TOP_N_TOKENS)?.unwrap_or(0),
            prompt_logprobs,
            user: None,
            max_time: p.number(&limits::MAX_TIME)?.map(Duration::from_secs_f64),
        };
        constraints::refuse_grammar(p)?;
        if let Some(adapter) = p.text(&limits::ADAPTER_ID)? {
            return Err(ApiError::unknown_adapter(&shortened(&adapter)));
        }
        let details = p.boolean(&limits::DETAILS)?.unwrap_or(false) || prompt_logprobs;
        if route == Route::Text {
            for (field, asked) in [
                (&limits::DECODER_INPUT_DETAILS, request.prompt_logprobs),
                (&limits::DETAILS, details && !prompt_logprobs),
                (&limits::TOP_N_TOKENS, request.top_tokens > 0),
            ] {
                if asked {
                    warnings.no_effect(field.name, "here: the answer is the text alone");
                }
            }
        } else if request.top_tokens > 0 && !details && !route.streams() {
            warnings.no_effect(limits::TOP_N_TOKENS.name, "without `details`");
        }
        let full_text = p.boolean(&limits::RETURN_FULL_TEXT)?.unwrap_or(route.returns_full_text());
        Ok(Self {
            best_of,
            details,
            prompt_characters: inputs.chars().count(),
            prefix: if full_text { inputs.clone() } else { String::new() },
            warnings: warnings.settle(fields.limits())?,
            request: GenerationRequest { input: Input::Text(inputs), ..request },
        })
    }
}

/// What a body of `/generate` asks for, for routes that answer with texts alone.
pub struct TextRequest {
    pub request: GenerationRequest,
    /// Goes before the generated text.
    pub prefix: String,
    pub warnings: Warnings,
}

impl TextRequest {
    pub fn parse(fields: &Fields) -> Result<Self, ApiError> {
        let Asked { request, best_of, prefix, warnings, .. } = Asked::parse(fields, Route::Text)?;
        if best_of > 1 {
            return Err(ApiError::invalid("best_of", "`best_of` must be 1 on this route"));
        }
        let request = GenerationRequest { top_tokens: 0, prompt_logprobs: false, ..request };
        Ok(Self { request, prefix, warnings })
    }
}

/// Below this a temperature is as good as greedy, and the quotients would leave 32 bits.
pub const COLDEST: f64 = 1e-5;

/// How tokens are chosen, and the seed to report when they are sampled. As in TGI, a parameter that
/// only means something to sampling switches it on.
fn sampling(p: &Fields) -> Result<(Sampling, Option<u64>), ApiError> {
    let temperature = p.number(&limits::TEMPERATURE)?;
    let repetition_penalty = p.number(&limits::REPETITION_PENALTY)?.unwrap_or(1.0);
    let frequency_penalty = p.number(&limits::FREQUENCY_PENALTY)?.unwrap_or(0.0);
    let top_k = p.small(&limits::TOP_K)?.unwrap_or(0);
    let top_p = p.number(&limits::TOP_P)?.unwrap_or(1.0);
    let typical_p = p.number(&limits::TYPICAL_P)?.unwrap_or(1.0);
    let do_sample = p.boolean(&limits::DO_SAMPLE)?.unwrap_or(false);
    let seed = p.unsigned(&limits::SEED)?.unwrap_or_else(rand::random);
    let temperature = temperature.unwrap_or(1.0);
    let samples = do_sample || temperature != 1.0 || top_k != 0 || top_p < 1.0 || typical_p < 1.0;
    let sampling = Sampling {
        temperature: if samples && temperature >= COLDEST { temperature as f32 } else { 0.0 },
        top_k,
        top_p: top_p as f32,
        typical_p: typical_p as f32,
        repetition_penalty: repetition_penalty as f32,
        frequency_penalty: frequency_penalty as f32,
        seed,
        ..Sampling::default()
    };
    Ok((sampling, samples.then_some(seed)))
}

/// What the answer's JSON is.
enum Shape {
    Object,
    List,
}

async fn whole(visit: &mut Option<Visit>, asked: Asked, shape: Shape) -> Result<Response<Body>, ApiError> {
    let visit = visit.as_mut().expect("not taken when the answer is whole");
    let mut request = asked.request;
    if asked.best_of > 1 {
        // Tokenized once for all.
        let tokens = visit.loaded()?.serving.encode(request.input, request.truncate).await?;
        request.input = Input::Tokens(tokens);
    }
    let requests =
        (0..asked.best_of).map(|candidate| {
            let mut request = request.clone();
            if candidate > 0 {
                let seed = rand::random();
                request.sampling.seed = seed;
                request.reported_seed = Some(seed);
            }
            let visit = &*visit;
            async move {
                if candidate == 0 { visit.start(request).await } else { visit.start_further(request).await }
            }
        });
    let mut candidates = try_join_all(requests).await?;
    for candidate in &mut candidates {
        candidate.first().await?;
    }
    visit.began();
    let mut candidates = try_join_all(candidates.into_iter().map(collect)).await?;
    for (_, done) in &candidates {
        visit.succeeded(done);
    }
    most_likely_first(&mut candidates);
    let texts: Vec<_> = candidates.iter().map(|(_, done)| format!("{}{}", asked.prefix, done.text)).collect();
    let told = |place: usize| {
        let (tokens, done) = &candidates[place];
        Details {
            generated_text: (place > 0).then_some(texts[place].as_str()),
            finish_reason: reason(done.finish_reason),
            generated_tokens: done.generated_tokens,
            seed: done.seed,
            prefill: tokens
                .iter()
                .flat_map(|token| &token.prefill)
                .map(|entry| prefill(&entry.token))
                .collect(),
            tokens: tokens.iter().map(token).collect(),
            top_tokens: tops(tokens),
            best_of_sequences: Vec::new(),
        }
    };
    let details = asked
        .details
        .then(|| Details { best_of_sequences: (1..candidates.len()).map(told).collect(), ..told(0) });
    let answer = Answer { generated_text: &texts[0], details, warnings: asked.warnings };
    let done = &candidates[0].1;
    let mut response = match shape {
        Shape::Object => json(&answer),
        Shape::List => json(&[answer]),
    };
    visit.head(&mut response, asked.prompt_characters);
    totals(response.headers_mut(), [done]);
    Ok(response)
}

async fn streamed(visit: &mut Option<Visit>, asked: Asked) -> Result<Response<Body>, ApiError> {
    let staying = visit.as_mut().expect("not taken before the stream begins");
    let mut generation = staying.start(asked.request).await?;
    generation.first().await?;
    staying.began();
    let visit = visit.take().expect("it was there above");
    let mut head = Response::default();
    visit.head(&mut head, asked.prompt_characters);
    let stream = TokenStream {
        prompt_tokens: generation.prompt_tokens(),
        generation,
        visit,
        prefix: asked.prefix,
        details: asked.details,
        warnings: asked.warnings,
        encoder: Encoder::default(),
    };
    let mut response = sse::response(stream::unfold(Some(Box::new(stream)), async |stream| {
        let mut stream = stream?;
        let (bytes, goes_on) = stream.next().await;
        Some((bytes, goes_on.then_some(stream)))
    }));
    response.headers_mut().extend(head.into_parts().0.headers);
    Ok(response)
}

struct TokenStream {
    generation: Generation,
    visit: Visit,
    prefix: String,
    details: bool,
    /// Said once, in the first event.
    warnings: Warnings,
    prompt_tokens: u32,
    encoder: Encoder,
}

impl TokenStream {
    /// The next write, and whether another follows.
    async fn next(&mut self) -> (Bytes, bool) {
        let goes_on = match self.generation.next().await {
            Some(GenerationEvent::Token(event)) if !event.last => {
                self.encode(&event, None);
                true
            }
            // The last token's event holds the whole text, which follows at once.
            Some(GenerationEvent::Token(event)) => match self.generation.next().await {
                Some(GenerationEvent::Done(done)) => {
                    self.visit.succeeded(&done);
                    self.encode(&event, Some(done));
                    false
                }
                other => {
                    self.encode(&event, None);
                    self.fail(other)
                }
            },
            other => self.fail(other),
        };
        (self.encoder.take(), goes_on)
    }

    /// The one error event; nothing follows it.
    fn fail(&mut self, event: Option<GenerationEvent>) -> bool {
        let error = match event {
            Some(GenerationEvent::Failed(failure)) => ApiError::from(failure),
            _ => ApiError::new(Cause::IncompleteStream, "Incomplete generation"),
        };
        self.visit.failed(&error);
        self.encoder.raw(&error.body(Family::Tgi));
        false
    }

    fn encode(&mut self, event: &TokenEvent, done: Option<Done>) {
        let top_tokens: Vec<_> = event.top.iter().map(top).collect();
        let text = done.as_ref().map(|done| std::mem::take(&mut self.prefix) + &done.text);
        let details = done.filter(|_| self.details).map(|done| StreamDetails {
            finish_reason: reason(done.finish_reason),
            generated_tokens: done.generated_tokens,
            seed: done.seed,
            input_length: self.prompt_tokens,
        });
        self.encoder.event(&StreamEvent {
            index: event.index,
            token: token(event),
            top_tokens,
            generated_text: text.as_deref(),
            details,
            warnings: std::mem::take(&mut self.warnings),
        });
    }
}

fn reason(reason: FinishReason) -> &'static str {
    reason.name()
}

fn token(event: &TokenEvent) -> Token<'_> {
    Token { id: event.id.0, text: &event.text, logprob: Some(event.logprob), special: event.special }
}

fn top(token: &TextToken) -> Token<'_> {
    Token { id: token.id.0, text: &token.text, logprob: token.logprob, special: token.special }
}

fn prefill(token: &TextToken) -> PrefillToken<'_> {
    PrefillToken { id: token.id.0, text: &token.text, logprob: token.logprob }
}

fn tops(tokens: &[TokenEvent]) -> Vec<Vec<Token<'_>>> {
    if tokens.iter().all(|token| token.top.is_empty()) {
        return Vec::new();
    }
    tokens.iter().map(|token| token.top.iter().map(top).collect()).collect()
}

#[derive(Serialize)]
struct Answer<'a> {
    generated_text: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Details<'a>>,
    #[serde(skip_serializing_if = "Warnings::is_empty")]
    warnings: Warnings,
}

#[derive(Serialize)]
struct Details<'a> {
    /// Of the other candidates of `best_of`; the best one's stands above its details.
    #[serde(skip_serializing_if = "Option::is_none")]
    generated_text: Option<&'a str>,
    finish_reason: &'static str,
    generated_tokens: u32,
    seed: Option<u64>,
    prefill: Vec<PrefillToken<'a>>,
    tokens: Vec<Token<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    top_tokens: Vec<Vec<Token<'a>>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    best_of_sequences: Vec<Details<'a>>,
}

#[derive(Serialize)]
struct Token<'a> {
    id: u32,
    text: &'a str,
    logprob: Option<f32>,
    special: bool,
}

#[derive(Serialize)]
struct PrefillToken<'a> {
    id: u32,
    text: &'a str,
    logprob: Option<f32>,
}

#[derive(Serialize)]
struct StreamEvent<'a> {
    index: u32,
    token: Token<'a>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    top_tokens: Vec<Token<'a>>,
    generated_text: Option<&'a str>,
    details: Option<StreamDetails>,
    #[serde(skip_serializing_if = "Warnings::is_empty")]
    warnings: Warnings,
}

#[derive(Serialize)]
struct StreamDetails {
    finish_reason: &'static str,
    generated_tokens: u32,
    seed: Option<u64>,
    input_length: u32,
}

#[derive(Serialize)]
pub struct Span<'a> {
    id: u32,
    text: &'a str,
    start: usize,
    stop: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::fields::tests::limits;

    fn parsed(body: &str, route: Route) -> Result<Asked, String> {
        let limits = limits();
        Fields::parse(body.as_bytes(), &limits)
            .and_then(|fields| Asked::parse(&fields, route))
            .map_err(|error| String::from_utf8(error.body(Family::Tgi)).expect("UTF-8"))
    }

    fn generate(parameters: &str) -> Result<Asked, String> {
        parsed(&format!("{{\"inputs\": \"héllo\", \"parameters\": {parameters}}}"), Route::Generate)
    }

    #[test]
    fn without_parameters_the_answer_is_greedy() {
        for body in [
            r#"{"inputs": "x"}"#,
            r#"{"inputs": "x", "parameters": {}}"#,
            r#"{"inputs": "x", "parameters": null}"#,
        ] {
            let asked = parsed(body, Route::Generate).unwrap_or_else(|error| panic!("{body}: {error}"));
            assert_eq!(asked.request.sampling.temperature, 0.0);
            assert_eq!(asked.request.reported_seed, None);
            assert_eq!(asked.request.max_new_tokens, None);
            assert_eq!(asked.prefix, "");
            assert!(!asked.details);
        }
    }

    #[test]
    fn a_parameter_of_sampling_switches_it_on() {
        for parameters in [
            r#"{"do_sample": true}"#,
            r#"{"temperature": 0.7}"#,
            r#"{"top_k": 3}"#,
            r#"{"top_p": 0.9}"#,
            r#"{"typical_p": 0.9}"#,
        ] {
            let asked = generate(parameters).expect(parameters);
            assert!(asked.request.sampling.temperature > 0.0, "{parameters}");
            assert_eq!(asked.request.reported_seed, Some(asked.request.sampling.seed));
        }
        for parameters in [r#"{"temperature": 1.0}"#, r#"{"top_p": 1}"#, r#"{"seed": 5}"#] {
            let asked = generate(parameters).expect(parameters);
            assert_eq!(asked.request.sampling.temperature, 0.0, "{parameters}");
            assert_eq!(asked.request.reported_seed, None);
        }
    }

    #[test]
    fn every_parameter_reaches_the_request() {
        let asked = generate(
            r#"{"best_of": 1, "temperature": 0.5, "repetition_penalty": 1.2, "frequency_penalty": -0.5,
                "top_k": 7, "top_p": 0.8, "typical_p": 0.7, "do_sample": true, "max_new_tokens": 9,
                "return_full_text": true, "stop": ["a", "b"], "truncate": 11, "watermark": true,
                "details": true, "decoder_input_details": true, "seed": 18446744073709551615,
                "top_n_tokens": 5, "grammar": null, "adapter_id": null, "max_time": 1.5, "unknown": 1}"#,
        )
        .expect("valid");
        let sampling = Sampling {
            temperature: 0.5,
            top_k: 7,
            top_p: 0.8,
            typical_p: 0.7,
            repetition_penalty: 1.2,
            frequency_penalty: -0.5,
            seed: u64::MAX,
            ..Sampling::default()
        };
        let request = asked.request;
        assert_eq!(request.sampling, sampling);
        assert_eq!(request.reported_seed, Some(u64::MAX));
        assert_eq!((request.max_new_tokens, request.truncate), (Some(9), Some(11)));
        assert_eq!(request.stop, ["a", "b"]);
        assert_eq!(request.stop_text, StopText::Keep);
        assert_eq!(request.top_tokens, 5);
        assert_eq!(request.max_time, Some(Duration::from_millis(1500)));
        assert!(request.prompt_logprobs && request.watermark && asked.details);
        assert_eq!((asked.prefix.as_str(), asked.prompt_characters), ("héllo", 5));
        let unknown = ["`parameters.unknown` is not a field of this route and has no effect"];
        assert_eq!(asked.warnings.lines(), unknown);
    }

    #[test]
    fn what_has_no_effect_is_named() {
        let warnings = |body: &str, route| {
            let asked = parsed(body, route).unwrap_or_else(|error| panic!("{body}: {error}"));
            asked.warnings.lines().join("; ")
        };
        let plain = r#"{"inputs": "x", "parameters": {"details": true, "top_n_tokens": 2}, "stream": null}"#;
        assert_eq!(warnings(plain, Route::Generate), "");
        for (body, route, text) in [
            (r#"{"inputs": "x", "model": "y"}"#, Route::Generate, "`model` is not a field of this route"),
            (r#"{"inputs": "x", "stream": true}"#, Route::Generate, "`stream` has no effect here"),
            (r#"{"inputs": "x", "stream": false}"#, Route::Stream, "`stream` has no effect here"),
            (
                r#"{"inputs": "x", "parameters": {"top_n_tokens": 2}}"#,
                Route::Generate,
                "`top_n_tokens` has no effect without `details`",
            ),
            (
                plain,
                Route::Text,
                "`details` has no effect here: the answer is the text alone; `top_n_tokens`",
            ),
            (
                r#"{"inputs": "x", "parameters": {"decoder_input_details": true}}"#,
                Route::Text,
                "`decoder_input_details` has no effect here",
            ),
        ] {
            let lines = warnings(body, route);
            assert!(lines.starts_with(text), "{body}: {lines}");
        }
        let streams = r#"{"inputs": "x", "stream": true, "parameters": {"top_n_tokens": 2}}"#;
        assert_eq!(warnings(streams, Route::Stream), "");
    }

    #[test]
    fn a_refusal_names_the_field_and_the_limit() {
        for (parameters, text) in [
            (r#"{"best_of": 0}"#, "`best_of` must be a whole number >= 1 and <= 2 (--max-best-of). Given: 0"),
            (
                r#"{"best_of": 2}"#,
                "`best_of` > 1 needs sampling: `do_sample`, `temperature`, `top_k`, `top_p` or `typical_p`",
            ),
            (r#"{"best_of": 2, "top_k": 5, "seed": 1}"#, "`seed` must not be set when `best_of` > 1"),
            (r#"{"temperature": 0}"#, "`temperature` must be a finite number > 0. Given: 0"),
            (r#"{"repetition_penalty": -1}"#, "`repetition_penalty` must be a finite number > 0. Given: -1"),
            (
                r#"{"frequency_penalty": 2.1}"#,
                "`frequency_penalty` must be a number >= -2 and <= 2. Given: 2.1",
            ),
            (r#"{"top_k": 0}"#, "`top_k` must be a whole number >= 1 and <= 2147483647. Given: 0"),
            (r#"{"typical_p": 2}"#, "`typical_p` must be a number > 0 and <= 1. Given: 2"),
            (
                r#"{"truncate": 1024}"#,
                "`truncate` must be a whole number >= 1 and <= 1023 (--max-input-tokens). Given: 1024",
            ),
            (
                r#"{"top_n_tokens": 6}"#,
                "`top_n_tokens` must be a whole number >= 0 and <= 5 (--max-top-n-tokens). Given: 6",
            ),
            (r#"{"do_sample": "yes"}"#, "`do_sample` must be true or false. Given: \\\"yes\\\""),
            (r#"{"grammar": {"type": "regex", "value": "a"}}"#, "`grammar` is not supported yet"),
            (r#"{"adapter_id": "x"}"#, "`adapter_id` names no loaded adapter. Given: x"),
            (r#"{"adapter_id": 5}"#, "`adapter_id` must be a string. Given: 5"),
            (r#"[]"#, "`parameters` must be an object. Given: []"),
        ] {
            let body = generate(parameters).err().unwrap_or_else(|| panic!("{parameters} was taken"));
            let expected =
                format!("{{\"error\":\"Input validation error: {text}\",\"error_type\":\"validation\"}}");
            assert_eq!(body, expected);
        }
    }

    #[test]
    fn a_prompt_is_required_and_not_empty() {
        for (body, text) in [
            ("{}", "`inputs` is required"),
            (r#"{"inputs": null}"#, "`inputs` is required"),
            (r#"{"inputs": ""}"#, "`inputs` cannot be empty"),
            (r#"{"inputs": 7}"#, "`inputs` must be a string. Given: 7"),
        ] {
            let error = parsed(body, Route::Generate).err().unwrap_or_else(|| panic!("{body} was taken"));
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn what_cannot_be_streamed_is_refused_when_streaming() {
        let with = |parameters: &str| format!("{{\"inputs\": \"x\", \"parameters\": {parameters}}}");
        for route in [Route::Stream, Route::CompatStream] {
            let error = parsed(&with(r#"{"decoder_input_details": true}"#), route).err();
            assert!(error.is_some_and(|error| error.contains("`decoder_input_details`")));
            let error = parsed(&with(r#"{"best_of": 2}"#), route).err();
            assert!(error.is_some_and(|error| error.contains("`best_of` must be 1")));
        }
    }

    #[test]
    fn the_root_route_returns_the_prompt_unless_told_otherwise() {
        let body = r#"{"inputs": "x"}"#;
        assert_eq!(parsed(body, Route::Compat).expect("valid").prefix, "x");
        assert_eq!(parsed(body, Route::CompatStream).expect("valid").prefix, "x");
        let body = r#"{"inputs": "x", "parameters": {"return_full_text": false}}"#;
        assert_eq!(parsed(body, Route::Compat).expect("valid").prefix, "");
    }
}
