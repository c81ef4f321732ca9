//! The sequences of one request on OpenAI's routes: one for each prompt and each of its `n` answers,
//! running side by side. When one fails, the request fails.

use std::task::{Context, Poll};

use futures::future::{select_all, try_join_all};
use penstock_core::generation::{Done, Generation, GenerationEvent, GenerationRequest, TokenEvent, collect};

use crate::http::error::{ApiError, FieldNames};
use crate::http::openai::params::GenerationParams;
use crate::http::request_context::RequestContext;
use crate::http::request_fields;
use crate::http::warnings::Warnings;

pub struct Choices {
    generations: Vec<Generation>,
    /// What failures call the fields.
    names: FieldNames,
    /// Asked first, so that none is heard before the others for ever.
    next: usize,
}

impl Choices {
    /// Starts `count` answers to each of `requests`, in the order of the requests. `names` are the dialect's.
    pub async fn start(
        context: &RequestContext,
        requests: Vec<GenerationRequest>,
        params: &GenerationParams,
        count: u32,
        names: FieldNames,
    ) -> Result<Self, ApiError> {
        let blames = if requests.len() > 1 {
            names.prompt
        } else if count > params.n {
            request_fields::COMPLETION_BEST_OF.name
        } else {
            request_fields::N.name
        };
        context.check_sequences(requests.len() * count as usize, blames)?;
        let grammar = params.grammar_field.unwrap_or(names.grammar);
        let names = FieldNames { grammar, ..names };
        let vary = |answer, request: &mut GenerationRequest| request.sampling = params.sampling_of(answer);
        let all = requests.into_iter().map(|request| context.start_answers(request, count, vary, &names));
        let generations = try_join_all(all).await?.into_iter().flatten().collect();
        Ok(Self { generations, names, next: 0 })
    }

    /// Waits until one of them has something to say; a failure before that is the request's answer.
    pub async fn first(&mut self) -> Result<(), ApiError> {
        let waiting = self.generations.iter_mut().map(|one| Box::pin(one.first()));
        let (first, ..) = select_all(waiting).await;
        first.map_err(|failure| self.names.error(failure))
    }

    pub fn count(&self) -> usize {
        self.generations.len()
    }

    /// Of the first prompt.
    pub fn prompt_tokens(&self) -> u32 {
        self.generations.first().map_or(0, Generation::prompt_tokens)
    }

    /// Names in `warnings` what their grammar does not hold them to.
    pub fn tell_unbound(&self, warnings: &mut Warnings) {
        let first = self.generations.first();
        warnings.unbound(self.names.grammar, first.map_or(&[], Generation::unbound));
    }

    pub fn names(&self) -> FieldNames {
        self.names
    }

    pub async fn collect(self) -> Result<Vec<(Vec<TokenEvent>, Done)>, ApiError> {
        let all = try_join_all(self.generations.into_iter().map(collect)).await;
        all.map_err(|failure| self.names.error(failure))
    }

    /// What one of them says, with its index in the order of `start`; `None` when all have ended.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, GenerationEvent)>> {
        let mut waits = false;
        for _ in 0..self.generations.len() {
            let index = self.next;
            self.next = (index + 1) % self.generations.len();
            match self.generations[index].poll_next(context) {
                Poll::Ready(Some(event)) => return Poll::Ready(Some((index, event))),
                Poll::Ready(None) => {}
                Poll::Pending => waits = true,
            }
        }
        if waits { Poll::Pending } else { Poll::Ready(None) }
    }
}
