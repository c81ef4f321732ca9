//! One request on a route that generates: counted on arrival, counted once at its end, however many sequences it has,
//! and in flight until its answer was written. The handler and the stream of its answer share it; when the last of them
//! lets go of it, the request has ended.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response};
use bytes::Bytes;
use futures::future::try_join_all;
use opentelemetry::{Array, KeyValue, Value};
use penstock_core::adapter::Adapter;
use penstock_core::generation::{
    self, Caller, Done, FinishReason, Generation, GenerationRequest, Input, Progress, Timeline, Timings,
};
use penstock_core::scheduler::Permit;
use penstock_core::tenant::Tenant;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::address;
use crate::http::access_log;
use crate::http::body;
use crate::http::connection::ClientAddress;
use crate::http::connection::backpressure;
use crate::http::error::{ApiError, Cause, Family, FieldNames, Refusal};
use crate::http::json::whole_number;
use crate::http::keys::{KeyFacts, KeyIndex, KeyName};
use crate::http::request_fields::{self, Kind};
use crate::http::shortened::shortened;
use crate::http::state::{Loaded, Server};
use crate::http::unplaced::{self, Unplaced};
use crate::http::warnings::Warnings;
use crate::telemetry::metrics::{self, Ended, Outcome, Times};
use crate::telemetry::traces::RequestSpan;

/// Says which trace an answer belongs to.
pub const TRACE_RESPONSE: &str = "traceresponse";

const NO_PANIC: &str = "nothing panics while it holds this lock";

pub struct RequestContext {
    server: Arc<Server>,
    caller: Caller,
    /// Its locks are never waited for: handler and stream do not run at once.
    account: Mutex<Account>,
    /// What was started for it.
    started: Mutex<Started>,
    span: Option<RequestSpan>,
    /// Until it has a place.
    unplaced: Option<Unplaced>,
    hold: Arc<Hold>,
}

/// What a request keeps until its client has the answer, or is given up.
struct Hold {
    permits: Mutex<Vec<Arc<Permit>>>,
    _in_flight: TaskTrackerToken,
}

/// What the log and the metrics say of a request at its end.
struct Account {
    request_id: String,
    key: KeyName,
    route: String,
    /// The metrics have it: they begin when the model is loaded.
    counted: bool,
    status: u16,
    /// The label of what went wrong, and what the client was told.
    failure: Option<(&'static str, String)>,
    first_token: Option<Duration>,
    /// Of the sequences that ended well.
    done: Vec<(FinishReason, Timings, u32)>,
}

#[derive(Default)]
struct Started {
    sequences: Vec<Sequence>,
    /// What its sequences are computed with, each once.
    adapters: Vec<Adapter>,
    /// Kept for `--log-prompts`, in the order of the request; `None` for one that was refused.
    prompts: Vec<Option<String>>,
}

struct Sequence {
    progress: Arc<Progress>,
    /// One more answer to the prompt of another sequence.
    further: bool,
}

impl RequestContext {
    /// Runs `handle` for a request that generates, and gives its errors their shape.
    pub async fn answer<H>(server: Arc<Server>, request: Request, family: Family, handle: H) -> Response<Body>
    where
        H: AsyncFnOnce(Arc<Self>, Bytes) -> Result<Response<Body>, ApiError>,
    {
        Self::answer_in_its_dialect(server, request, family, async |context, body| {
            handle(context, body).await.map_err(|error| (error, family))
        })
        .await
    }

    /// The same on a route of several dialects, where `handle` says in whose shape its error is; one of before is in `family`'s.
    pub async fn answer_in_its_dialect<H>(
        server: Arc<Server>,
        request: Request,
        family: Family,
        handle: H,
    ) -> Response<Body>
    where
        H: AsyncFnOnce(Arc<Self>, Bytes) -> Result<Response<Body>, (ApiError, Family)>,
    {
        let limits = body::BodyLimits::of(&server.config.args);
        let mut context = Self::begin(server, &request);
        let trace = context.span.as_ref().map(RequestSpan::header);
        let admitted = context.admit(request.headers());
        let context = Arc::new(context);
        let result = async {
            let of_family = |error| (error, family);
            admitted.map_err(of_family)?;
            let body = body::read(request, limits).await.map_err(of_family)?;
            handle(context.clone(), body).await
        };
        let mut response = match result.await {
            Ok(response) => response,
            Err((error, family)) => context.refused(&error, family),
        };
        if let Some(trace) = trace {
            response.headers_mut().insert(TRACE_RESPONSE, trace);
        }
        let hold = context.hold.clone();
        response.map(|body| backpressure::hold_until_written(body, hold))
    }

    /// The answer that is an error, counted and logged here and not by the layer around all routes.
    fn refused(&self, error: &ApiError, family: Family) -> Response<Body> {
        let mut response = error.response(family);
        self.account().status = response.status().as_u16();
        self.failed(error);
        response.extensions_mut().remove::<Refusal>();
        response
    }

    /// Whether requests are served now; and until when this one has time.
    fn admit(&mut self, headers: &HeaderMap) -> Result<(), ApiError> {
        self.server.ready()?;
        self.caller.deadline = deadline(headers)?.map(|time| self.caller.arrival + time);
        Ok(())
    }

    fn begin(server: Arc<Server>, request: &Request) -> Self {
        let counted = metrics::installed();
        if counted {
            metrics::request_arrived();
        }
        let span = server.tracing.as_ref().map(|tracing| tracing.arrived(request));
        let trace = span.as_ref().and_then(RequestSpan::reference);
        let caller = Caller { trace, ..caller_of(request, Instant::now()) };
        Self {
            caller,
            account: Mutex::new(Account {
                request_id: access_log::id_of(request),
                key: request.extensions().get().cloned().unwrap_or_default(),
                route: shortened(request.uri().path()).into(),
                counted,
                status: 200,
                failure: None,
                first_token: None,
                done: Vec::new(),
            }),
            started: Mutex::default(),
            span,
            unplaced: unplaced::of(request.extensions()).cloned(),
            hold: Arc::new(Hold { permits: Mutex::default(), _in_flight: server.in_flight.token() }),
            server,
        }
    }

    pub fn server(&self) -> &Arc<Server> {
        &self.server
    }

    pub fn loaded(&self) -> Result<&Loaded, ApiError> {
        self.server.loaded()
    }

    /// Whose it is, as far as is known before its body is read.
    pub fn origin(&self) -> Tenant {
        self.caller.origin()
    }

    /// Refuses a request of more sequences than this server ever has at once. `blames` is the field that asks for them.
    pub fn check_sequences(&self, sequences: usize, blames: &'static str) -> Result<(), ApiError> {
        let most = self.server.config.args.max_concurrent_requests;
        if sequences <= most as usize {
            return Ok(());
        }
        let text = format!("must ask for <= {most} sequences (--max-concurrent-requests)");
        Err(ApiError::invalid(blames, text).given(sequences.to_string()))
    }

    /// A sequence with a prompt of its own. Its failure has the dialect's names of the fields.
    pub fn start(
        &self,
        request: GenerationRequest,
        names: &FieldNames,
    ) -> impl Future<Output = Result<Generation, ApiError>> {
        let prompt = self.next_prompt();
        async move {
            let permit = self.reserve(&request, names)?;
            self.launch(permit, request, names, Some(prompt)).await
        }
    }

    /// `count` answers to one prompt, which is tokenized and counts once. `vary` makes the request of each.
    pub fn start_answers(
        &self,
        mut request: GenerationRequest,
        count: u32,
        vary: impl Fn(u32, &mut GenerationRequest),
        names: &FieldNames,
    ) -> impl Future<Output = Result<Vec<Generation>, ApiError>> {
        let prompt = self.next_prompt();
        async move {
            let first = self.reserve(&request, names)?;
            if count > 1 {
                let tokens =
                    self.loaded()?.serving.encode(self.origin(), request.input, request.truncate).await;
                request.input = Input::Tokens(tokens.map_err(|error| names.error(error))?);
            }
            let answers = (0..count).map(|answer| {
                let mut request = request.clone();
                vary(answer, &mut request);
                let first = first.clone();
                async move {
                    let permit = if answer == 0 { first } else { self.reserve(&request, names)? };
                    self.launch(permit, request, names, (answer == 0).then_some(prompt)).await
                }
            });
            try_join_all(answers).await
        }
    }

    /// The index of the prompt that is started now.
    fn next_prompt(&self) -> usize {
        let prompts = &mut self.started().prompts;
        prompts.push(None);
        prompts.len() - 1
    }

    fn reserve(&self, request: &GenerationRequest, names: &FieldNames) -> Result<Arc<Permit>, ApiError> {
        if let Some(adapter) = request.adapter {
            let known = &mut self.started().adapters;
            if !known.contains(&adapter) {
                known.push(adapter);
            }
        }
        let permit = self.loaded()?.serving.reserve(&self.caller, request.user.as_deref());
        let permit = permit.map_err(|failure| names.error(failure))?;
        if let Some(unplaced) = &self.unplaced {
            unplaced.has_place();
        }
        Ok(permit)
    }

    /// `index`: of the prompt that the request is the first answer to.
    async fn launch(
        &self,
        permit: Arc<Permit>,
        request: GenerationRequest,
        names: &FieldNames,
        index: Option<usize>,
    ) -> Result<Generation, ApiError> {
        let serving = &self.loaded()?.serving;
        let prompt = match &request.input {
            _ if index.is_none() || !self.server.config.args.log_prompts => None,
            Input::Text(text) | Input::Rendered(text) => Some(text.clone()),
            Input::Tokens(ids) => {
                let decoded = serving.prompt.decode_apart(self.origin(), ids.clone()).await;
                Some(decoded.map_err(|error| names.error(error))?)
            }
        };
        let generation = generation::start(serving, permit, request, &self.caller).await;
        let mut started = self.started();
        if let Some(index) = index {
            started.prompts[index] = prompt;
        }
        let generation = generation.map_err(|failure| names.error(failure))?;
        let mut warnings = Warnings::default();
        warnings.unbound(names.grammar, generation.unbound());
        warnings.settle(&self.loaded()?.limits)?;
        self.hold.permits.lock().expect(NO_PANIC).push(generation.permit().clone());
        started
            .sequences
            .push(Sequence { progress: generation.progress().clone(), further: index.is_none() });
        Ok(generation)
    }

    /// The first token is there.
    pub fn began(&self) {
        let after = self.caller.arrival.elapsed();
        self.account().first_token = Some(after);
        metrics::first_token(after);
    }

    /// One of its sequences has ended well; with the last one, the request has.
    pub fn succeeded(&self, done: &Done) {
        self.account().done.push((done.finish_reason, done.timings, done.generated_tokens));
        metrics::finished(done.finish_reason);
    }

    /// The request has failed, before or after its first token.
    pub fn failed(&self, error: &ApiError) {
        metrics::error(error.cause.code());
        self.account().failure = Some((error.cause.label(), error.for_log()));
    }

    /// The headers that every answer of a generation has.
    pub fn head(&self, response: &mut Response<Body>, prompt_characters: usize) {
        let headers = response.headers_mut();
        if let Ok(loaded) = self.loaded() {
            headers.insert("x-compute-type", loaded.compute_type.clone());
        }
        headers.insert("x-compute-characters", HeaderValue::from(prompt_characters));
        let timelines: Vec<_> =
            self.started().sequences.iter().map(|sequence| sequence.progress.so_far()).collect();
        headers.insert("server-timing", server_timing(self.caller.arrival, &timelines));
    }

    fn started(&self) -> MutexGuard<'_, Started> {
        self.started.lock().expect(NO_PANIC)
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().expect(NO_PANIC)
    }
}

impl Account {
    fn outcome(&self, sequences: usize) -> Outcome {
        match &self.failure {
            Some((why, _)) => Outcome::Failure(why),
            None if sequences > 0 && self.done.len() == sequences => Outcome::Success(times(&self.done)),
            // The client left before the end.
            None => Outcome::Failure(metrics::DROPPED),
        }
    }
}

/// Who asks, as the layers around the routes found out.
pub fn caller_of(request: &Request, arrival: Instant) -> Caller {
    let of = request.extensions();
    let address = of.get().map(|&ClientAddress(address)| address::holder(address));
    let KeyFacts { priority, digest } = of.get().copied().unwrap_or_default();
    let key = of.get().map(|&KeyIndex(index)| index);
    Caller { key, key_digest: digest, address, priority, ..Caller::anonymous(arrival) }
}

fn times(done: &[(FinishReason, Timings, u32)]) -> Times {
    let longest = |part: fn(&Timings) -> Duration| {
        done.iter().map(|(_, timings, _)| part(timings)).max().unwrap_or_default()
    };
    let per_token: Duration =
        done.iter().map(|(_, timings, generated)| timings.inference / (*generated).max(1)).sum();
    Times {
        validation: longest(|timings| timings.validation),
        queue: longest(|timings| timings.queue),
        inference: longest(|timings| timings.inference),
        total: longest(|timings| timings.total),
        per_token: per_token / done.len().max(1) as u32,
    }
}

impl Drop for RequestContext {
    fn drop(&mut self) {
        let span = self.span.take();
        let Started { sequences, adapters, prompts } = std::mem::take(&mut *self.started());
        let server = self.server.clone();
        let loaded = server.loaded().ok();
        let name = |adapter: &Adapter| loaded.and_then(|loaded| loaded.limits.adapters.name(*adapter));
        let adapters: Vec<&str> = adapters.iter().filter_map(name).collect();
        let prompts: Vec<String> = prompts.into_iter().flatten().collect();
        let timelines: Vec<(Timeline, bool)> =
            sequences.iter().map(|sequence| (sequence.progress.reckon(), sequence.further)).collect();
        let account = self.account.get_mut().expect(NO_PANIC);
        let outcome = account.outcome(sequences.len());
        let of_prompts = |part: fn(&Timeline) -> u32| -> u64 {
            timelines
                .iter()
                .filter(|(_, further)| !further)
                .map(|(timeline, _)| u64::from(part(timeline)))
                .sum()
        };
        let of_all = |part: fn(&Timeline) -> u32| -> u64 {
            timelines.iter().map(|(timeline, _)| u64::from(part(timeline))).sum()
        };
        let ended = Ended {
            key: &account.key.0,
            adapters: &adapters,
            outcome,
            prompt_tokens: of_prompts(|timeline| timeline.prompt_tokens),
            cached_tokens: of_prompts(|timeline| timeline.cached_tokens),
            generated_tokens: of_all(|timeline| timeline.generated_tokens),
            max_new_tokens: (!timelines.is_empty()).then(|| of_all(|timeline| timeline.max_new_tokens)),
        };
        if account.counted {
            metrics::request_ended(&ended);
        }
        let Account { request_id, key, route, status, failure, first_token, done, .. } = &*account;
        let reasons: Vec<_> = done.iter().map(|(reason, ..)| reason.name()).collect();
        let queue_s = match outcome {
            Outcome::Success(times) => Some(times.queue.as_secs_f64()),
            Outcome::Failure(_) => None,
        };
        tracing::info!(
            request_id = &**request_id,
            trace_id = span.as_ref().map(RequestSpan::trace_id),
            route,
            key = &*key.0,
            // Their names have no commas.
            adapter = (!adapters.is_empty()).then(|| adapters.join(",")),
            status,
            outcome = match outcome {
                Outcome::Success(_) => "success",
                Outcome::Failure(why) => why,
            },
            error = failure.as_ref().map(|(_, message)| message),
            sequences = timelines.len(),
            finish_reason = (!reasons.is_empty()).then(|| reasons.join(",")),
            prompt_tokens = ended.prompt_tokens,
            cached_tokens = ended.cached_tokens,
            generated_tokens = ended.generated_tokens,
            skipped_tokens = of_all(|timeline| timeline.skipped_tokens),
            queue_s,
            first_token_s = first_token.map(|time| time.as_secs_f64()),
            total_s = self.caller.arrival.elapsed().as_secs_f64(),
            // A list as JSON.
            prompts = (!prompts.is_empty()).then(|| serde_json::Value::from(prompts).to_string()),
            "answered"
        );
        if let Some(span) = span {
            let error = match outcome {
                Outcome::Success(_) => None,
                Outcome::Failure(why) => {
                    let message = failure.as_ref().map(|(_, message)| message.clone());
                    let message = message.unwrap_or_else(|| "the client left".into());
                    // OpenTelemetry's conventions for HTTP: a 4xx is no error of a server's span. TGI's 424 is the server's.
                    let is_ours = !(400..500).contains(status) || why == Cause::Generation.label();
                    Some((why, is_ours.then_some(message)))
                }
            };
            let timelines: Vec<_> = timelines.into_iter().map(|(timeline, _)| timeline).collect();
            let mut attributes = vec![
                KeyValue::new("http.response.status_code", i64::from(*status)),
                KeyValue::new("gen_ai.usage.input_tokens", ended.prompt_tokens as i64),
                KeyValue::new("gen_ai.usage.output_tokens", ended.generated_tokens as i64),
                KeyValue::new("penstock.request_id", request_id.clone()),
                KeyValue::new("penstock.key", key.0.to_string()),
            ];
            if !reasons.is_empty() {
                let reasons = Array::String(reasons.into_iter().map(Into::into).collect());
                attributes.push(KeyValue::new("gen_ai.response.finish_reasons", Value::Array(reasons)));
            }
            span.end(&timelines, error, attributes);
        }
    }
}

/// Where the time went until now, in milliseconds, as browsers' tools show it (W3C Server Timing). Of each
/// phase the longest of the sequences; what has not ended yet is left out.
fn server_timing(arrival: Instant, timelines: &[Timeline]) -> HeaderValue {
    let longest = |phase: &dyn Fn(&Timeline) -> Option<Duration>| timelines.iter().filter_map(phase).max();
    let phases = [
        ("validation", longest(&|timeline| Some(timeline.queued - arrival))),
        ("queue", longest(&|timeline| Some(timeline.admitted? - timeline.queued))),
        ("prefill", longest(&|timeline| Some(timeline.first_token? - timeline.admitted?))),
        ("decode", longest(&|timeline| Some(timeline.ended? - timeline.first_token?))),
        ("total", Some(arrival.elapsed())),
    ];
    let entries = phases.iter().filter_map(|(name, time)| {
        let time = time.as_ref()?;
        Some(format!("{name};dur={:.3}", time.as_secs_f64() * 1000.0))
    });
    HeaderValue::from_str(&entries.collect::<Vec<_>>().join(", ")).expect("letters, digits and signs")
}

/// After what time the client will not want the answer any more, by its header.
fn deadline(headers: &HeaderMap) -> Result<Option<Duration>, ApiError> {
    let name = request_fields::DEADLINE.name;
    let Some(value) = headers.get(name) else { return Ok(None) };
    let Kind::Integer { least, most: request_fields::Most::Is(most) } = request_fields::DEADLINE.kind else {
        unreachable!("the table says that it is a whole number with a fixed bound")
    };
    let given = String::from_utf8_lossy(value.as_bytes());
    match whole_number(&given).and_then(|number| u64::try_from(number).ok()) {
        Some(number) if number >= least.unsigned_abs() && number <= most => {
            Ok(Some(Duration::from_millis(number)))
        }
        _ => {
            let text = format!("must be a whole number >= {least} and <= {most}");
            Err(ApiError::invalid(name, text).given(shortened(&given)))
        }
    }
}

/// The headers of an answer that is sent at its end: where the time went, summed over its sequences. `prompts` are the
/// answers to each prompt, whose own tokens count once.
pub fn totals<'a, A>(headers: &mut HeaderMap, prompts: impl IntoIterator<Item = A>)
where
    A: IntoIterator<Item = &'a Done>,
{
    let (mut compute, mut total, mut validation, mut queue, mut inference) = (0.0, 0, 0, 0, 0);
    let (mut per_token, mut prompt, mut generated) = (0, 0, 0);
    for answers in prompts {
        let mut own = 0;
        for done in answers {
            let timings = &done.timings;
            compute += timings.total.as_secs_f64();
            total += timings.total.as_millis() as u64;
            validation += timings.validation.as_millis() as u64;
            queue += timings.queue.as_millis() as u64;
            inference += timings.inference.as_millis() as u64;
            per_token += (timings.inference / done.generated_tokens.max(1)).as_millis() as u64;
            own = u64::from(done.prompt_tokens);
            generated += u64::from(done.generated_tokens);
        }
        prompt += own;
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
