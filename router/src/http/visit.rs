//! One request's stay on a generating route: counted on arrival, counted once as failed or dropped, and
//! known to be under way until its answer is complete.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response};
use bytes::Bytes;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::generation::{self, Caller, Done, Generation, GenerationRequest};
use crate::http::error::{ApiError, Family};
use crate::http::fields::{shortened, whole_number};
use crate::http::gate::{KeyIndex, RequestId};
use crate::http::{Loaded, Server, body};
use crate::limits::{self, Kind};
use crate::telemetry::metrics;

pub struct Visit {
    server: Arc<Server>,
    caller: Caller,
    account: Account,
    _under_way: TaskTrackerToken,
}

/// What the log says of a request at its end.
struct Account {
    request_id: RequestId,
    route: String,
    /// How it ended; None until then, and for ever when the client left before.
    outcome: Option<&'static str>,
    error: Option<String>,
    first_token: Option<Duration>,
    prompt_tokens: u64,
    cached_tokens: u64,
    generated_tokens: u64,
}

impl Visit {
    /// Runs `handle` for a request that generates, and gives its errors their shape.
    pub async fn answer<H>(server: Arc<Server>, request: Request, family: Family, handle: H) -> Response<Body>
    where
        H: AsyncFnOnce(&mut Option<Visit>, Bytes) -> Result<Response<Body>, ApiError>,
    {
        let arrival = Instant::now();
        metrics::request_arrived();
        let under_way = server.under_way.token();
        let limits = server.body_limits();
        let account = Account::of(&request);
        let key = request.extensions().get().map(|&KeyIndex(index)| index);
        let caller = Caller { key, ..Caller::anonymous(arrival) };
        let mut visit = Some(Visit { server, caller, account, _under_way: under_way });
        let result = async {
            let staying = visit.as_mut().expect("just made");
            staying.server.ready()?;
            staying.caller.deadline = deadline(request.headers())?.map(|time| arrival + time);
            let body = body::read(request, limits).await?;
            handle(&mut visit, body).await
        }
        .await;
        match result {
            Ok(response) => {
                // A stream took the visit along, and settles it at its end.
                if let Some(mut visit) = visit {
                    visit.account.outcome = Some("success");
                }
                response
            }
            Err(error) => {
                match visit {
                    Some(mut visit) => visit.failed(&error),
                    None => metrics::request_failed(error.cause.label()),
                }
                error.response(family)
            }
        }
    }

    pub fn server(&self) -> &Server {
        &self.server
    }

    pub fn loaded(&self) -> Result<&Loaded, ApiError> {
        self.server.loaded()
    }

    pub async fn start(&self, request: GenerationRequest) -> Result<Generation, ApiError> {
        Ok(generation::start(&self.loaded()?.serving, request, &self.caller).await?)
    }

    /// The first token is there.
    pub fn began(&mut self) {
        let after = self.caller.arrival.elapsed();
        self.account.first_token = Some(after);
        metrics::first_token(after);
    }

    pub fn succeeded(&mut self, done: &Done) {
        let account = &mut self.account;
        account.outcome = Some("success");
        account.prompt_tokens += u64::from(done.prompt_tokens);
        account.cached_tokens += u64::from(done.cached_tokens);
        account.generated_tokens += u64::from(done.generated_tokens);
        metrics::generation_succeeded(done);
    }

    pub fn failed(&mut self, error: &ApiError) {
        self.account.outcome = Some(error.cause.label());
        self.account.error = Some(error.to_string());
        metrics::request_failed(error.cause.label());
    }

    /// The headers that every answer of a generation has.
    pub fn head(&self, response: &mut Response<Body>, prompt_characters: usize) {
        if let Ok(loaded) = self.loaded() {
            response.headers_mut().insert("x-compute-type", loaded.compute_type.clone());
        }
        response.headers_mut().insert("x-compute-characters", HeaderValue::from(prompt_characters));
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let outcome = self.account.outcome.unwrap_or_else(|| {
            metrics::request_failed("dropped");
            "dropped"
        });
        let Account { request_id, route, error, first_token, .. } = &self.account;
        tracing::info!(
            request_id = &*request_id.0,
            route,
            outcome,
            error,
            prompt_tokens = self.account.prompt_tokens,
            cached_tokens = self.account.cached_tokens,
            generated_tokens = self.account.generated_tokens,
            first_token_s = first_token.map(|time| time.as_secs_f64()),
            total_s = self.caller.arrival.elapsed().as_secs_f64(),
            "answered"
        );
    }
}

impl Account {
    fn of(request: &Request) -> Self {
        let request_id = request.extensions().get().cloned();
        Self {
            request_id: request_id.unwrap_or_else(|| RequestId("none".into())),
            route: request.uri().path().into(),
            outcome: None,
            error: None,
            first_token: None,
            prompt_tokens: 0,
            cached_tokens: 0,
            generated_tokens: 0,
        }
    }
}

/// After what time the client will not want the answer any more, by its header.
fn deadline(headers: &HeaderMap) -> Result<Option<Duration>, ApiError> {
    let name = limits::DEADLINE.name;
    let Some(value) = headers.get(name) else { return Ok(None) };
    let Kind::Integer { least, most: limits::Most::Is(most) } = limits::DEADLINE.kind else {
        unreachable!("the table says that it is a whole number with a fixed bound")
    };
    let given = String::from_utf8_lossy(value.as_bytes());
    match whole_number(&given).and_then(|number| u64::try_from(number).ok()) {
        Some(number) if number >= least.unsigned_abs() && number <= most => {
            Ok(Some(Duration::from_millis(number)))
        }
        _ => {
            let given = shortened(&given);
            let message = format!("`{name}` must be a whole number >= {least} and <= {most}. Given: {given}");
            Err(ApiError::invalid(name, message))
        }
    }
}

/// The headers of an answer that is sent at its end: where the time went, summed over its sequences.
pub fn totals<'a>(headers: &mut HeaderMap, all: impl IntoIterator<Item = &'a Done>) {
    let (mut compute, mut total, mut validation, mut queue, mut inference) = (0.0, 0, 0, 0, 0);
    let (mut per_token, mut prompt, mut generated) = (0, 0, 0);
    for done in all {
        let timings = &done.timings;
        compute += timings.total.as_secs_f64();
        total += timings.total.as_millis() as u64;
        validation += timings.validation.as_millis() as u64;
        queue += timings.queue.as_millis() as u64;
        inference += timings.inference.as_millis() as u64;
        per_token += (timings.inference / done.generated_tokens.max(1)).as_millis() as u64;
        prompt += u64::from(done.prompt_tokens);
        generated += u64::from(done.generated_tokens);
    }
    let seconds = HeaderValue::from_str(&format!("{compute}")).expect("digits and a point");
    headers.insert("x-compute-time", seconds);
    let numbers: [(&'static str, u64); 7] = [
        ("x-total-time", total),
        ("x-validation-time", validation),
        ("x-queue-time", queue),
        ("x-inference-time", inference),
        ("x-time-per-token", per_token),
        ("x-prompt-tokens", prompt),
        ("x-generated-tokens", generated),
    ];
    for (name, value) in numbers {
        headers.insert(HeaderName::from_static(name), HeaderValue::from(value));
    }
}
