//! The sequences of one request on OpenAI's routes: one for each prompt and each of its `n` answers,
//! running side by side. When one fails, the request fails.

use futures::future::{select_all, try_join_all};
use futures::stream::{self, SelectAll, StreamExt};

use crate::generation::{Done, Generation, GenerationEvent, GenerationRequest, Input, TokenEvent, collect};
use crate::http::error::ApiError;
use crate::http::openai::Manner;
use crate::http::visit::Visit;
use futures::stream::BoxStream;

pub struct Choices(Vec<Generation>);

impl Choices {
    /// Starts `count` answers to each of `requests`, in the order of the requests.
    pub async fn start(
        visit: &Visit,
        requests: Vec<GenerationRequest>,
        manner: &Manner,
        count: u32,
    ) -> Result<Self, ApiError> {
        let mut all = Vec::with_capacity(requests.len() * count as usize);
        for mut request in requests {
            if count > 1 {
                // Tokenized once for all of its answers.
                let tokens = visit.loaded()?.serving.encode(request.input, request.truncate).await?;
                request.input = Input::Tokens(tokens);
            }
            for answer in 0..count {
                let request = GenerationRequest { sampling: manner.sampling_of(answer), ..request.clone() };
                all.push(async move {
                    if answer == 0 { visit.start(request).await } else { visit.start_further(request).await }
                });
            }
        }
        let started = try_join_all(all).await;
        // By the name that the client gave it.
        started.map(Self).map_err(|error| error.renamed("max_new_tokens", manner.max_tokens_name))
    }

    /// Waits until one of them has something to say; a failure before that is the request's answer.
    pub async fn first(&mut self) -> Result<(), ApiError> {
        let (result, _, _) = select_all(self.0.iter_mut().map(|one| Box::pin(one.first()))).await;
        Ok(result?)
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    pub async fn collect(self) -> Result<Vec<(Vec<TokenEvent>, Done)>, ApiError> {
        Ok(try_join_all(self.0.into_iter().map(collect)).await?)
    }

    /// What they say as they say it, each with its place in the order of `start`.
    pub fn events(self) -> SelectAll<BoxStream<'static, (usize, GenerationEvent)>> {
        stream::select_all(self.0.into_iter().enumerate().map(|(place, generation)| {
            stream::unfold(generation, move |mut generation| async move {
                let event = generation.next().await?;
                Some(((place, event), generation))
            })
            .boxed()
        }))
    }
}

/// For `best_of`: by the mean log probability of a token.
pub fn most_likely_first(candidates: &mut [(Vec<TokenEvent>, Done)]) {
    let likelihood = |(tokens, _): &(Vec<TokenEvent>, Done)| {
        tokens.iter().map(|token| token.logprob).sum::<f32>() / tokens.len().max(1) as f32
    };
    candidates.sort_by(|one, other| likelihood(other).total_cmp(&likelihood(one)));
}
