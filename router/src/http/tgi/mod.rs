//! TGI's dialect: `/generate`, `/generate_stream` and `POST /`.

pub mod request;
mod response;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use bytes::Bytes;
use futures::future::{select_all, try_join_all};
use penstock_core::generation::{Done, Generation, GenerationEvent, GenerationRequest, TokenEvent, collect};

use crate::http::error::{ApiError, Cause, Family, FieldNames};
use crate::http::request_context::{RequestContext, totals};
use crate::http::request_fields;
use crate::http::response::json_in_pieces;
use crate::http::sampling::{drawn_seed, most_likely_first};
use crate::http::sse::{self, Encoder, EventSource};
use crate::http::state::Server;
use crate::http::warnings::Warnings;
use crate::http::{body, vertex};
use request::{GenerateRequest, Route};
use response::{Candidate, Details, StreamDetails, Told, token, top_token};
pub use response::{Generated, StreamEvent};

const NAMES: FieldNames = FieldNames::TGI;

pub async fn generate(State(server): State<Arc<Server>>, request: Request) -> Response<Body> {
    RequestContext::answer(server, request, Family::Tgi, async |context, body| {
        if vertex::has_instances(&context, "/generate", &body).await {
            return vertex::predictions(context, body).await;
        }
        let request = body::parse(context.server(), context.origin(), body, |fields, _| {
            GenerateRequest::parse(fields, Route::Generate)
        })
        .await?;
        whole(&context, request, Shape::Object).await
    })
    .await
}

pub async fn generate_stream(State(server): State<Arc<Server>>, request: Request) -> Response<Body> {
    RequestContext::answer(server, request, Family::Tgi, async |context, body| {
        let request = body::parse(context.server(), context.origin(), body, |fields, _| {
            GenerateRequest::parse(fields, Route::Stream)
        })
        .await?;
        streamed(context, request).await
    })
    .await
}

/// `POST /`: what `stream` says, with the prompt in the text unless asked otherwise, or the model is for something else.
pub async fn compat(State(server): State<Arc<Server>>, request: Request) -> Response<Body> {
    RequestContext::answer(server, request, Family::Tgi, async |context, body| {
        if vertex::has_instances(&context, "/", &body).await {
            return vertex::predictions(context, body).await;
        }
        compat_answer(context, body).await
    })
    .await
}

pub async fn compat_answer(context: Arc<RequestContext>, body: Bytes) -> Result<Response<Body>, ApiError> {
    let (stream, request) = body::parse(context.server(), context.origin(), body, |fields, server| {
        let stream = fields.boolean(&request_fields::STREAM)?.unwrap_or(false);
        let full_text = server.loaded()?.returns_full_text();
        let route = if stream { Route::CompatStream { full_text } } else { Route::Compat { full_text } };
        Ok((stream, GenerateRequest::parse(fields, route)?))
    })
    .await?;
    if stream { streamed(context, request).await } else { whole(&context, request, Shape::List).await }
}

/// What the answer's JSON is.
enum Shape {
    Object,
    List,
}

async fn whole(
    context: &RequestContext,
    asked: GenerateRequest,
    shape: Shape,
) -> Result<Response<Body>, ApiError> {
    let vary = |candidate, request: &mut GenerationRequest| {
        if candidate > 0 {
            let seed = drawn_seed();
            request.sampling.seed = seed;
            request.reported_seed = Some(seed);
        }
    };
    context.check_sequences(asked.best_of as usize, request_fields::BEST_OF.name)?;
    let mut candidates = context.start_answers(asked.request, asked.best_of, vary, &NAMES).await?;
    // Of any: where places are few, the last begins when another has ended.
    let (first, ..) = select_all(candidates.iter_mut().map(|one| Box::pin(one.first()))).await;
    first.map_err(|failure| NAMES.error(failure))?;
    context.began();
    let candidates = try_join_all(candidates.into_iter().map(collect)).await;
    let mut candidates = candidates.map_err(|failure| NAMES.error(failure))?;
    for (_, done) in &candidates {
        context.succeeded(done);
    }
    most_likely_first(&mut candidates);
    let vocabulary = context.loaded()?.serving.prompt.vocabulary();
    let (tokens, done): (Vec<_>, Vec<_>) = candidates.into_iter().unzip();
    let texts: Vec<_> = done.iter().map(|done| format!("{}{}", asked.prefix, done.text)).collect();
    // In the order in which the answer has them.
    let mut later = Vec::new();
    let details = asked.details.then(|| {
        let told =
            done.iter().zip(tokens).map(|(done, tokens)| Told::of(done, tokens, vocabulary, &mut later));
        let mut told = texts.iter().zip(told).map(|(text, told)| Candidate { generated_text: text, told });
        let best = told.next().expect("at least one was asked for").told;
        Details { best, best_of_sequences: told.collect() }
    });
    let answer = Generated { generated_text: &texts[0], details, warnings: asked.warnings };
    let mut response = match shape {
        Shape::Object => json_in_pieces(&answer, later),
        Shape::List => json_in_pieces(&[answer], later),
    };
    context.head(&mut response, asked.prompt_characters);
    totals(response.headers_mut(), [[&done[0]]]);
    Ok(response)
}

async fn streamed(context: Arc<RequestContext>, asked: GenerateRequest) -> Result<Response<Body>, ApiError> {
    let mut generation = context.start(asked.request, &NAMES).await?;
    let has_begun = sse::begun(generation.first()).await.map_err(|failure| NAMES.error(failure))?;
    if has_begun {
        context.began();
    }
    let mut head = Response::default();
    context.head(&mut head, asked.prompt_characters);
    let stream = TokenStream {
        prompt_tokens: generation.prompt_tokens(),
        generation,
        has_begun,
        context,
        prefix: asked.prefix,
        details: asked.details,
        warnings: asked.warnings,
        last: None,
    };
    let mut response = sse::answer(stream);
    response.headers_mut().extend(head.into_parts().0.headers);
    Ok(response)
}

struct TokenStream {
    generation: Generation,
    /// The first token is there.
    has_begun: bool,
    context: Arc<RequestContext>,
    prefix: String,
    details: bool,
    /// Said once, in the first event.
    warnings: Warnings,
    prompt_tokens: u32,
    /// The last token, whose event has the whole text, which follows at once.
    last: Option<TokenEvent>,
}

impl EventSource for TokenStream {
    fn poll_encode(&mut self, context: &mut Context<'_>, encoder: &mut Encoder) -> Poll<ControlFlow<()>> {
        let next = ready!(self.generation.poll_next(context));
        if !self.has_begun && matches!(next, Some(GenerationEvent::Token(_) | GenerationEvent::Done(_))) {
            self.has_begun = true;
            self.context.began();
        }
        match (next, self.last.take()) {
            (Some(GenerationEvent::Token(event)), None) => {
                if event.last {
                    self.last = Some(event);
                } else {
                    self.encode(&event, None, encoder);
                }
                return Poll::Ready(ControlFlow::Continue(()));
            }
            (Some(GenerationEvent::Done(done)), Some(last)) => {
                self.context.succeeded(&done);
                self.encode(&last, Some(done), encoder);
            }
            (other, last) => {
                if let Some(last) = last {
                    self.encode(&last, None, encoder);
                }
                self.fail(other, encoder);
            }
        }
        Poll::Ready(ControlFlow::Break(()))
    }
}

impl TokenStream {
    /// The one error event; nothing follows it.
    fn fail(&mut self, event: Option<GenerationEvent>, encoder: &mut Encoder) {
        let error = match event {
            Some(GenerationEvent::Failed(failure)) => NAMES.error(failure),
            _ => ApiError::new(Cause::IncompleteStream, "Incomplete generation"),
        };
        self.context.failed(&error);
        encoder.raw(&error.body(Family::Tgi));
    }

    fn encode(&mut self, event: &TokenEvent, done: Option<Done>, encoder: &mut Encoder) {
        let top_tokens: Vec<_> = event.top.iter().map(top_token).collect();
        let text = done.as_ref().map(|done| std::mem::take(&mut self.prefix) + &done.text);
        let details = done.filter(|_| self.details).map(|done| StreamDetails {
            finish_reason: done.finish_reason.into(),
            generated_tokens: done.generated_tokens,
            seed: done.seed,
            input_length: self.prompt_tokens,
        });
        encoder.event(&StreamEvent {
            index: event.index,
            token: token(event),
            top_tokens,
            generated_text: text.as_deref(),
            details,
            warnings: std::mem::take(&mut self.warnings),
        });
    }
}
