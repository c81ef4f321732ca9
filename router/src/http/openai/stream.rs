//! The stream of an answer on OpenAI's routes: the events of all choices as they come, each written by the dialect.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use bytes::Bytes;
use futures::stream::{self, BoxStream, SelectAll, StreamExt};
use penstock_core::generation::{Done, GenerationEvent, TokenEvent};

use crate::http::error::{ApiError, Cause, Family, FieldNames};
use crate::http::openai::choices::Choices;
use crate::http::request_context::RequestContext;
use crate::http::sse::{self, Encoder};

/// How a dialect writes what its choices say. `index` is that of the choice in the order of `Choices::start`.
pub trait ChunkWriter: Send + 'static {
    fn token(&mut self, index: usize, token: &TokenEvent, encoder: &mut Encoder);

    /// The choice has ended well.
    fn done(&mut self, index: usize, done: Done, encoder: &mut Encoder);

    /// All have.
    fn end(&mut self, encoder: &mut Encoder);

    /// One has failed: the last event.
    fn failed(&mut self, error: &ApiError, encoder: &mut Encoder) {
        encoder.raw(&error.body(Family::OpenAi));
    }
}

/// The answer that streams `choices`, with its headers.
pub fn response(
    context: Arc<RequestContext>,
    choices: Choices,
    prompt_characters: usize,
    writer: impl ChunkWriter,
) -> Response<Body> {
    let mut head = Response::default();
    context.head(&mut head, prompt_characters);
    let stream = ChunkStream {
        remaining: choices.count(),
        names: choices.names(),
        events: choices.events(),
        context,
        encoder: Encoder::default(),
        writer,
    };
    let mut response = sse::response(stream::unfold(Some(Box::new(stream)), async |stream| {
        let mut stream = stream?;
        let (bytes, goes_on) = stream.next().await;
        Some((bytes, goes_on.then_some(stream)))
    }));
    response.headers_mut().extend(head.into_parts().0.headers);
    response
}

struct ChunkStream<W> {
    events: SelectAll<BoxStream<'static, (usize, GenerationEvent)>>,
    /// Choices that have not ended.
    remaining: usize,
    names: FieldNames,
    context: Arc<RequestContext>,
    encoder: Encoder,
    writer: W,
}

impl<W: ChunkWriter> ChunkStream<W> {
    /// The next write, and whether another follows.
    async fn next(&mut self) -> (Bytes, bool) {
        loop {
            let goes_on = match self.events.next().await {
                Some((index, GenerationEvent::Token(token))) => {
                    self.writer.token(index, &token, &mut self.encoder);
                    true
                }
                Some((index, GenerationEvent::Done(done))) => {
                    self.context.succeeded(&done);
                    self.writer.done(index, done, &mut self.encoder);
                    self.remaining -= 1;
                    if self.remaining == 0 {
                        self.writer.end(&mut self.encoder);
                    }
                    self.remaining > 0
                }
                Some((_, GenerationEvent::Failed(failure))) => self.fail(self.names.error(failure)),
                None => self.fail(ApiError::new(Cause::IncompleteStream, "Incomplete generation")),
            };
            let bytes = self.encoder.take();
            if !(goes_on && bytes.is_empty()) {
                return (bytes, goes_on);
            }
        }
    }

    /// The one error event; nothing follows it.
    fn fail(&mut self, error: ApiError) -> bool {
        self.context.failed(&error);
        self.writer.failed(&error, &mut self.encoder);
        false
    }
}
