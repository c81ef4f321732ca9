//! Requests that are answered with texts alone, several at once: those of Vertex AI and of KServe.

use futures::future::{select_all, try_join_all};
use penstock_core::generation::{GenerationRequest, collect};

use crate::http::error::{ApiError, FieldNames};
use crate::http::request_context::RequestContext;
use crate::http::warnings::Warnings;

pub struct TextRequest {
    pub request: GenerationRequest,
    /// Goes before the generated text.
    pub prefix: String,
    pub warnings: Warnings,
}

/// Answers requests side by side, each with a text; when one fails, all do. `list` is the field that holds them.
pub async fn generate_texts(
    context: &RequestContext,
    requests: Vec<TextRequest>,
    mut warnings: Warnings,
    list: &str,
) -> Result<(Vec<String>, Warnings), ApiError> {
    let names = FieldNames::TGI;
    let mut prefixes = Vec::with_capacity(requests.len());
    let mut started = Vec::with_capacity(requests.len());
    for (index, TextRequest { request, prefix, warnings: own }) in requests.into_iter().enumerate() {
        warnings.take_over(&format!("{list}[{index}]"), own);
        prefixes.push(prefix);
        started.push(context.start(request, &names));
    }
    let mut started = try_join_all(started).await?;
    let (first, ..) = select_all(started.iter_mut().map(|one| Box::pin(one.first()))).await;
    first.map_err(|failure| names.error(failure))?;
    context.began();
    let answers = try_join_all(started.into_iter().map(collect)).await;
    let answers = answers.map_err(|failure| names.error(failure))?;
    for (_, done) in &answers {
        context.succeeded(done);
    }
    let texts = prefixes.into_iter().zip(&answers).map(|(prefix, (_, done))| prefix + &done.text);
    Ok((texts.collect(), warnings))
}
