//! Requests that are answered with texts alone, several at once: those of Vertex AI and of KServe.

use futures::TryFutureExt;
use futures::future::{select_all, try_join_all};
use penstock_core::generation::{GenerationFailure, GenerationRequest, collect};

use crate::http::error::{ApiError, Cause, FieldNames, Place};
use crate::http::request_context::RequestContext;
use crate::http::warnings::Warnings;

pub struct TextRequest {
    pub request: GenerationRequest,
    /// Goes before the generated text.
    pub prefix: String,
    pub warnings: Warnings,
    /// What its client calls the fields.
    pub names: FieldNames,
}

/// Answers requests side by side, each with a text; when one fails, all do. `list` is the field that holds them.
pub async fn generate_texts(
    context: &RequestContext,
    requests: Vec<TextRequest>,
    mut warnings: Warnings,
    list: &'static str,
) -> Result<(Vec<String>, Warnings), ApiError> {
    context.check_sequences(requests.len(), list)?;
    let names: Vec<FieldNames> = requests.iter().map(|request| request.names).collect();
    // What is wrong with one request is told of it; a full server is full for all.
    let within = |index: usize, error: ApiError| match error.cause {
        Cause::Validation | Cause::ContextLength => error.within(Place::from(list).entry(index)),
        _ => error,
    };
    let failed = |index: usize, failure: GenerationFailure| within(index, names[index].error(failure));
    let mut prefixes = Vec::with_capacity(requests.len());
    let mut started = Vec::with_capacity(requests.len());
    for (index, TextRequest { request, prefix, warnings: own, .. }) in requests.into_iter().enumerate() {
        warnings.take_over(&format!("{list}[{index}]"), own);
        prefixes.push(prefix);
        let starting = context.start(request, &names[index]);
        started.push(starting.map_err(move |error| within(index, error)));
    }
    let mut started = try_join_all(started).await?;
    for (index, one) in started.iter().enumerate() {
        let mut own = Warnings::default();
        own.unbound(names[index].grammar, one.unbound());
        warnings.take_over(&format!("{list}[{index}]"), own);
    }
    let (first, index, _) = select_all(started.iter_mut().map(|one| Box::pin(one.first()))).await;
    first.map_err(|failure| failed(index, failure))?;
    context.began();
    let answers = started.into_iter().enumerate();
    let answers = answers.map(|(index, one)| collect(one).map_err(move |failure| failed(index, failure)));
    let answers = try_join_all(answers).await?;
    for (_, done) in &answers {
        context.succeeded(done);
    }
    let texts = prefixes.into_iter().zip(&answers).map(|(prefix, (_, done))| prefix + &done.text);
    Ok((texts.collect(), warnings))
}
