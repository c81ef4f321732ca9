//! The stream of an answer on OpenAI's routes: the events of all choices as they come, each written by the dialect.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::http::Response;
use penstock_core::generation::{Done, GenerationEvent, TokenEvent};

use crate::http::error::{ApiError, Cause, Family};
use crate::http::openai::choices::Choices;
use crate::http::request_context::RequestContext;
use crate::http::sse::{self, Encoder, EventSource};

/// How a dialect writes what its choices say. `index` is that of the choice in the order of `Choices::start`.
pub trait ChunkWriter: Send + Unpin + 'static {
    fn token(&mut self, index: usize, token: TokenEvent, encoder: &mut Encoder);

    /// Writes more of what was too much for one event; false: there is nothing of that.
    fn go_on(&mut self, _: &mut Encoder) -> bool {
        false
    }

    /// After every 15 s of silence: an event that says nothing. Not a comment: openai-go before 2026, KServe's proxy, Portkey and
    /// mistral-vibe read its line as data, and end the stream.
    fn break_silence(&mut self, encoder: &mut Encoder);

    /// The choice has ended well.
    fn done(&mut self, index: usize, done: Done, encoder: &mut Encoder);

    /// All have.
    fn end(&mut self, encoder: &mut Encoder);

    /// One has failed: nothing follows what this writes.
    fn failed(&mut self, error: &ApiError, encoder: &mut Encoder) {
        encoder.raw(&error.body(Family::OpenAi));
    }
}

/// The answer that streams `choices`, with its headers. What fails early is no stream.
pub async fn response(
    context: Arc<RequestContext>,
    mut choices: Choices,
    prompt_characters: usize,
    writer: impl ChunkWriter,
) -> Result<Response<Body>, ApiError> {
    let has_begun = sse::begun(choices.first()).await?;
    if has_begun {
        context.began();
    }
    let mut head = Response::default();
    context.head(&mut head, prompt_characters);
    let remaining = choices.count();
    let mut response = sse::answer(ChunkStream { choices, remaining, has_begun, context, writer });
    response.headers_mut().extend(head.into_parts().0.headers);
    Ok(response)
}

struct ChunkStream<W> {
    choices: Choices,
    /// Choices that have not ended.
    remaining: usize,
    /// The first token is there.
    has_begun: bool,
    context: Arc<RequestContext>,
    writer: W,
}

impl<W: ChunkWriter> EventSource for ChunkStream<W> {
    fn poll_encode(&mut self, context: &mut Context<'_>, encoder: &mut Encoder) -> Poll<ControlFlow<()>> {
        if self.writer.go_on(encoder) {
            return Poll::Ready(ControlFlow::Continue(()));
        }
        let next = ready!(self.choices.poll_next(context));
        if !self.has_begun && matches!(next, Some((_, GenerationEvent::Token(_) | GenerationEvent::Done(_))))
        {
            self.has_begun = true;
            self.context.began();
        }
        let goes_on = match next {
            Some((index, GenerationEvent::Token(token))) => {
                self.writer.token(index, token, encoder);
                true
            }
            Some((index, GenerationEvent::Done(done))) => {
                self.context.succeeded(&done);
                self.writer.done(index, done, encoder);
                self.remaining -= 1;
                if self.remaining == 0 {
                    self.writer.end(encoder);
                }
                self.remaining > 0
            }
            Some((_, GenerationEvent::Failed(failure))) => {
                self.fail(self.choices.names().error(failure), encoder)
            }
            None => self.fail(ApiError::new(Cause::IncompleteStream, "Incomplete generation"), encoder),
        };
        Poll::Ready(if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    }

    fn break_silence(&mut self, encoder: &mut Encoder) {
        self.writer.break_silence(encoder);
    }
}

impl<W: ChunkWriter> ChunkStream<W> {
    /// Says so once; nothing follows it.
    fn fail(&mut self, error: ApiError, encoder: &mut Encoder) -> bool {
        self.context.failed(&error);
        self.writer.failed(&error, encoder);
        false
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A stream whose choices say nothing more.
    pub struct Silent<W>(pub W);

    impl<W: ChunkWriter> EventSource for Silent<W> {
        fn poll_encode(&mut self, _: &mut Context<'_>, _: &mut Encoder) -> Poll<ControlFlow<()>> {
            Poll::Pending
        }

        fn break_silence(&mut self, encoder: &mut Encoder) {
            self.0.break_silence(encoder);
        }
    }
}
