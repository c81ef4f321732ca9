//! One request's stay on a generating route: counted on arrival, counted once as failed or dropped, and
//! known to be under way until its answer is complete.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response};
use bytes::Bytes;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::generation::{self, Done, Generation, GenerationRequest};
use crate::http::error::{ApiError, Family};
use crate::http::{Loaded, Server, body};
use crate::telemetry::metrics;

pub struct Visit {
    server: Arc<Server>,
    arrival: Instant,
    /// Whether its end was counted; when not, the client left before it.
    settled: bool,
    _under_way: TaskTrackerToken,
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
        let limit = server.config.args.payload_limit;
        let mut visit = Some(Visit { server, arrival, settled: false, _under_way: under_way });
        let result = async {
            visit.as_ref().expect("just made").server.ready()?;
            let body = body::read(request, limit).await?;
            handle(&mut visit, body).await
        }
        .await;
        match result {
            Ok(response) => {
                // A stream took the visit along, and settles it at its end.
                if let Some(mut visit) = visit {
                    visit.settled = true;
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
        Ok(generation::start(&self.loaded()?.serving, request, self.arrival).await?)
    }

    /// The first token is there.
    pub fn began(&self) {
        metrics::first_token(self.arrival.elapsed());
    }

    pub fn succeeded(&mut self, done: &Done) {
        self.settled = true;
        metrics::generation_succeeded(done);
    }

    pub fn failed(&mut self, error: &ApiError) {
        self.settled = true;
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
        if !self.settled {
            metrics::request_failed("dropped");
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
