//! The Prometheus metrics: TGI's names and buckets for what exists here, and what TGI lacks. The request
//! metrics are recorded here, called by `http`; those of tokens, steps and blocks by `penstock-core`.

use std::sync::{Arc, LazyLock, Mutex, OnceLock};
use std::time::Duration;

use axum::http::StatusCode;
use bytes::Bytes;
use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::sync::OnceCell;

use penstock_core::generation::FinishReason;
use penstock_core::health::{Health, HealthReceiver};

/// The process has one recorder, as the `metrics` crate has it.
static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();

/// How often histograms are folded into their buckets when nobody scrapes.
const UPKEEP: Duration = Duration::from_secs(5);

/// Records from now on; what came before is not counted. The counters of requests stand at 0 from the first
/// scrape, so that a rate over them has a beginning. The lengths bound the buckets of the histograms of tokens.
pub fn install(max_input_tokens: u32, max_total_tokens: u32, max_concurrent_requests: u32, workers: u32) {
    RECORDER.get_or_init(|| {
        let recorder = recorder(max_input_tokens, max_total_tokens);
        let handle = recorder.handle();
        if metrics::set_global_recorder(recorder).is_err() {
            tracing::warn!("another metrics recorder is installed: /metrics stays empty");
        }
        describe();
        begin();
        gauge!("penstock_requests_limit").set(max_concurrent_requests);
        gauge!("penstock_workers").set(workers);
        handle
    });
}

/// The text of /metrics; empty until `install`. Takes milliseconds, on a thread of its own; one at a time, which all share that
/// were asked for before it was begun.
pub async fn render() -> Bytes {
    static RENDERINGS: LazyLock<Joined> = LazyLock::new(Joined::default);
    RENDERINGS.next(|| RECORDER.get().map(PrometheusHandle::render).unwrap_or_default().into()).await
}

/// Work whose result is for all who asked before it began.
#[derive(Default)]
struct Joined {
    /// Work that has not begun.
    next: Mutex<Option<Arc<OnceCell<Bytes>>>>,
    /// Held by the one that goes on.
    turn: tokio::sync::Mutex<()>,
}

impl Joined {
    async fn next(&self, work: impl FnOnce() -> Bytes + Send + 'static) -> Bytes {
        let next = || self.next.lock().expect("nothing panics while it holds this lock");
        let own = next().get_or_insert_default().clone();
        // One of those who wait does it; where its client leaves, another does.
        let done = own.get_or_init(|| async {
            let _turn = self.turn.lock().await;
            // Who comes from now on has to hear of what happens meanwhile.
            next().take();
            // The panic hook has logged where it was.
            tokio::task::spawn_blocking(work).await.unwrap_or_default()
        });
        done.await.clone()
    }
}

/// Whether anything is recorded yet.
pub fn installed() -> bool {
    RECORDER.get().is_some()
}

/// Tells whether the server is ready, for as long as it runs.
pub async fn follow(mut health: HealthReceiver) {
    loop {
        let ready = *health.borrow_and_update() == Health::Ready;
        gauge!("penstock_ready").set(f64::from(u8::from(ready)));
        if health.changed().await.is_err() {
            return;
        }
    }
}

/// Keeps memory bounded while nobody scrapes.
pub async fn upkeep() {
    let mut tick = tokio::time::interval(UPKEEP);
    loop {
        tick.tick().await;
        if let Some(handle) = RECORDER.get() {
            handle.run_upkeep();
        }
    }
}

fn recorder(max_input_tokens: u32, max_total_tokens: u32) -> metrics_exporter_prometheus::PrometheusRecorder {
    let durations: Vec<f64> = (1..=35).map(|k| 0.0001 * 1.5f64.powi(k)).collect();
    let up_to =
        |most: u32| -> Vec<f64> { (1..=100).map(|k| f64::from(most) * f64::from(k) / 100.0).collect() };
    let powers_of_two = |most: u32| -> Vec<f64> { (0..=most).map(|k| f64::from(1u32 << k)).collect() };
    let full = |name: &str| Matcher::Full(name.to_string());
    let buckets = [
        (Matcher::Suffix("duration".into()), durations),
        (full("tgi_request_input_length"), up_to(max_input_tokens)),
        (full("tgi_request_generated_tokens"), up_to(max_total_tokens)),
        (full("tgi_request_max_new_tokens"), up_to(max_total_tokens)),
        (full("tgi_batch_next_size"), (1..=1024).map(f64::from).collect()),
        (full("penstock_batch_rows"), powers_of_two(10)),
        (full("penstock_batch_tokens"), powers_of_two(16)),
    ];
    let mut builder = PrometheusBuilder::new();
    for (name, buckets) in buckets {
        builder = builder.set_buckets_for_metric(name, &buckets).expect("every list of buckets has entries");
    }
    builder.build_recorder()
}

/// Every cause that a request can fail by, as `tgi_request_failure` names it.
pub const FAILURES: [&str; 9] = [
    "validation",
    "template",
    "generation",
    "overloaded",
    "unavailable",
    "deadline",
    "incomplete",
    "internal",
    DROPPED,
];

/// The client left.
pub const DROPPED: &str = "dropped";

/// The counters of requests stand at 0 from the first scrape.
fn begin() {
    counter!("tgi_request_count").increment(0);
    counter!("tgi_request_success").increment(0);
    for why in FAILURES {
        counter!("tgi_request_failure", "err" => why).increment(0);
    }
    for reason in [FinishReason::Length, FinishReason::EosToken, FinishReason::StopSequence] {
        counter!("penstock_finish_reason", "reason" => reason.name()).increment(0);
    }
    for outcome in ["complete", "incomplete"] {
        counter!("penstock_tool_calls", "outcome" => outcome).increment(0);
    }
    counter!("penstock_prompt_tokens").increment(0);
    counter!("penstock_cached_prompt_tokens").increment(0);
    counter!("penstock_generated_tokens").increment(0);
    for limit in ["total", "address"] {
        counter!("penstock_refused_connections", "limit" => limit).increment(0);
    }
    counter!("penstock_log_lines_lost").increment(0);
    gauge!("penstock_requests_in_flight").set(0);
    gauge!("penstock_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1);
}

/// A request has reached a route that generates. It ends by `request_ended`.
pub fn request_arrived() {
    counter!("tgi_request_count").increment(1);
    gauge!("penstock_requests_in_flight").increment(1);
}

/// How a request ended, and what it came to: over all of its sequences.
#[derive(Debug)]
pub struct Ended<'a> {
    pub key: &'a Arc<str>,
    /// Names of those that its sequences were computed with.
    pub adapters: &'a [&'a str],
    pub outcome: Outcome,
    /// A prompt counts once, however many answers it has.
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub generated_tokens: u64,
    /// That might have been generated; `None` when nothing was accepted.
    pub max_new_tokens: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    Success(Times),
    /// A label of a fixed set.
    Failure(&'static str),
}

/// Where a request's time went: of each phase the longest of its sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    pub validation: Duration,
    pub queue: Duration,
    pub inference: Duration,
    pub total: Duration,
    /// The mean over its sequences.
    pub per_token: Duration,
}

pub fn request_ended(ended: &Ended) {
    let outcome = match ended.outcome {
        Outcome::Success(times) => {
            counter!("tgi_request_success").increment(1);
            histogram!("tgi_request_duration").record(times.total);
            histogram!("tgi_request_validation_duration").record(times.validation);
            histogram!("tgi_request_queue_duration").record(times.queue);
            histogram!("tgi_request_inference_duration").record(times.inference);
            histogram!("tgi_request_mean_time_per_token_duration").record(times.per_token);
            histogram!("tgi_request_generated_tokens").record(ended.generated_tokens as f64);
            "success"
        }
        Outcome::Failure(why) => {
            counter!("tgi_request_failure", "err" => why).increment(1);
            if why == DROPPED { DROPPED } else { "failure" }
        }
    };
    gauge!("penstock_requests_in_flight").decrement(1);
    if let Some(max_new_tokens) = ended.max_new_tokens {
        histogram!("tgi_request_input_length").record(ended.prompt_tokens as f64);
        histogram!("tgi_request_max_new_tokens").record(max_new_tokens as f64);
    }
    counter!("penstock_prompt_tokens").increment(ended.prompt_tokens);
    counter!("penstock_cached_prompt_tokens").increment(ended.cached_tokens);
    let key = || metrics::SharedString::from(ended.key.clone());
    counter!("penstock_key_requests", "key" => key(), "outcome" => outcome).increment(1);
    let adapters = if ended.adapters.is_empty() { &["none"] } else { ended.adapters };
    for adapter in adapters {
        let adapter = metrics::SharedString::from((*adapter).to_owned());
        counter!("penstock_adapter_requests", "adapter" => adapter, "outcome" => outcome).increment(1);
    }
    counter!("penstock_key_tokens", "key" => key(), "kind" => "prompt").increment(ended.prompt_tokens);
    counter!("penstock_key_tokens", "key" => key(), "kind" => "generated").increment(ended.generated_tokens);
}

/// An answer is complete, one of those that its request asked for.
pub fn finished(reason: FinishReason) {
    counter!("penstock_finish_reason", "reason" => reason.name()).increment(1);
}

/// The first token of a request was there so long after its arrival.
pub fn first_token(after: Duration) {
    histogram!("penstock_time_to_first_token_duration").record(after);
}

/// A call of a tool was read in an answer. Not complete: cut off, or its arguments are no JSON.
pub fn tool_call(is_complete: bool) {
    let outcome = if is_complete { "complete" } else { "incomplete" };
    counter!("penstock_tool_calls", "outcome" => outcome).increment(1);
}

/// An error went to a client, on whatever route; `kind` is what its body calls it.
pub fn error(kind: &'static str) {
    counter!("penstock_errors", "type" => kind).increment(1);
}

/// The head of an answer is on its way. `route` is one of the router's, or `unknown`.
pub fn answered(route: &str, status: StatusCode) {
    let status = metrics::SharedString::from_owned(status.as_str().to_owned());
    counter!("penstock_http_requests", "route" => route.to_owned(), "status" => status).increment(1);
}

/// A connection was closed, since as many are open as this limit (`total`, `address`) allows.
pub fn connection_refused(limit: &'static str) {
    counter!("penstock_refused_connections", "limit" => limit).increment(1);
}

/// So many lines of the log were not taken.
pub fn log_lines_lost(count: u64) {
    counter!("penstock_log_lines_lost").increment(count);
}

fn describe() {
    const S: Unit = Unit::Seconds;
    describe_counter!("tgi_request_count", "Requests that reached a generating route");
    describe_counter!("tgi_request_success", "Requests that were answered");
    describe_counter!("tgi_request_failure", "Requests that failed, by cause; dropped: the client left");
    describe_histogram!("tgi_request_duration", S, "Arrival to last token");
    describe_histogram!(
        "tgi_request_validation_duration",
        S,
        "Arrival to queued: parsing, template, tokenizer"
    );
    describe_histogram!("tgi_request_queue_duration", S, "Queued to first scheduled");
    describe_histogram!("tgi_request_inference_duration", S, "First scheduled to last token");
    describe_histogram!(
        "tgi_request_mean_time_per_token_duration",
        S,
        "Inference time over generated tokens"
    );
    describe_histogram!("tgi_request_generated_tokens", "Tokens generated per request");
    describe_histogram!("tgi_request_input_length", "Tokens of a prompt");
    describe_histogram!("tgi_request_max_new_tokens", "Most tokens that a request may generate");
    describe_histogram!("tgi_request_skipped_tokens", "Speculated tokens that a step accepted");
    describe_gauge!("penstock_requests_in_flight", "Requests that arrived and have not ended");
    describe_gauge!("penstock_requests_limit", "Sequences that may wait and run at once");
    describe_histogram!("penstock_time_to_first_token_duration", S, "Arrival to first token");
    describe_histogram!("penstock_inter_token_duration", S, "From one token of a sequence to the next");
    describe_histogram!(
        "penstock_grammar_compile_duration",
        S,
        "Time a request waited for its grammar, by outcome"
    );
    describe_counter!("penstock_tool_calls", "Calls of tools in answers, by whether they are whole");
    describe_counter!("penstock_finish_reason", "Answers, by why they ended");
    describe_counter!("penstock_prompt_tokens", "Prompt tokens of requests that have ended");
    describe_counter!("penstock_cached_prompt_tokens", "Those of them found in the prefix cache");
    describe_counter!("penstock_generated_tokens", "Tokens generated for requests");
    describe_counter!("penstock_key_requests", "Requests that have ended, by the name of their key");
    describe_counter!("penstock_adapter_requests", "Requests that have ended, by the name of their adapter");
    describe_counter!("penstock_key_tokens", "Tokens of requests that have ended, by the name of their key");
    describe_counter!("penstock_errors", "Errors sent to clients, on all routes, by type");
    describe_counter!("penstock_http_requests", "Answers on all routes, by route and status");
    describe_counter!("penstock_refused_connections", "Connections closed at once, for a limit on them");
    describe_counter!("penstock_log_lines_lost", "Lines of the log that nobody took");
    describe_counter!("penstock_trace_spans", "Spans of traces, sent to the collector or lost");
    describe_gauge!("penstock_ready", "1 while new requests are served, else 0");
    describe_gauge!("penstock_workers", "Worker processes that hold the model together");
    describe_gauge!("penstock_build_info", "Always 1; the label is Penstock's version");
    describe_gauge!("tgi_queue_size", "Sequences that wait to be scheduled");
    describe_histogram!("tgi_batch_next_size", "Sequences admitted together");
    describe_gauge!("tgi_batch_current_size", "Sequences that run");
    describe_gauge!("tgi_batch_current_max_tokens", "Tokens that the running sequences may come to");
    describe_gauge!("tgi_batch_max_total_tokens", "Tokens that the KV cache holds");
    describe_gauge!("tgi_batch_total_tokens", "Tokens' worth of KV cache held by running sequences");
    describe_counter!("tgi_batch_concat", "Times that new sequences joined running ones");
    describe_histogram!("tgi_batch_concat_duration", S, "Time a worker took to take in joining sequences");
    describe_histogram!("tgi_batch_decode_duration", S, "Time a step spent choosing tokens");
    describe_histogram!("tgi_batch_filter_duration", S, "Time the router took to hand out a step's tokens");
    describe_counter!("tgi_batch_inference_count", "Steps sent to the workers");
    describe_counter!("tgi_batch_inference_success", "Steps that came back");
    describe_counter!("tgi_batch_inference_failure", "Steps lost with their workers");
    describe_histogram!("tgi_batch_inference_duration", S, "Step sent to result received");
    describe_histogram!("tgi_batch_forward_duration", S, "Time a step spent in the model");
    describe_counter!("penstock_steps", "Steps that came back");
    describe_histogram!("penstock_step_duration", S, "Step sent to result received");
    describe_histogram!("penstock_batch_rows", "Sequences in a step");
    describe_histogram!("penstock_batch_tokens", "Tokens fed in a step");
    describe_counter!("penstock_row_errors", "Sequences that the model failed");
    describe_gauge!("penstock_kv_blocks_used", "KV blocks held by running sequences");
    describe_gauge!("penstock_kv_blocks_cached", "KV blocks kept for the prefix cache, taken when needed");
    describe_gauge!("penstock_kv_blocks_free", "KV blocks that hold nothing");
    describe_gauge!("penstock_kv_cache_usage", "KV blocks held by running sequences, of all: 0 to 1");
    describe_gauge!("penstock_kv_pages", "KV pages held or kept, by what their layers attend to");
    describe_gauge!("penstock_states", "Recurrent states held, by what holds them");
    describe_gauge!("penstock_state_places", "Places for recurrent states, by what holds them");
    describe_gauge!("penstock_state_snapshots", "Places for copies of recurrent states");
    describe_gauge!("penstock_state_snapshots_used", "Those of them that hold one");
    describe_counter!("penstock_state_saves", "Copies of recurrent states that were kept");
    describe_counter!("penstock_preemptions", "Sequences set back to make room for others");
    describe_counter!(
        "penstock_priority_preemptions",
        "Those of them that made room for a higher priority in the queue"
    );
    describe_counter!("penstock_prefix_hit_tokens", "Prompt tokens found in the prefix cache");
    describe_counter!(
        "penstock_copied_tokens",
        "Prompt tokens that came with a copied page of a request that ran, such as another choice of the same one"
    );
    describe_counter!(
        "penstock_prefix_recomputed_tokens",
        "Prompt tokens known to the prefix cache and computed again, for want of a recurrent state"
    );
    describe_counter!("penstock_computed_prompt_tokens", "Prompt tokens fed");
    describe_counter!("penstock_computed_decode_tokens", "Generated tokens fed");
    describe_counter!("penstock_wasted_rows", "Rows computed for sequences that had ended");
    describe_counter!(
        "penstock_late_masks",
        "Constrained rows that sampled nothing, since their mask was late"
    );
    describe_counter!("penstock_drafts", "Guessed tokens that were verified");
    describe_counter!("penstock_branch_drafts", "Of those, tokens beside a likelier guess");
    describe_counter!("penstock_model_drafts", "Of those, tokens that the draft model had guessed");
    describe_counter!(
        "penstock_accepted_model_drafts",
        "Tokens that the draft model had guessed and that went to clients"
    );
    describe_counter!("penstock_accepted_drafts", "Those of them that were right and went to clients");
    describe_counter!(
        "penstock_corpus_drafts",
        "Guessed tokens that were verified, from what tenants were answered lately"
    );
    describe_counter!("penstock_accepted_corpus_drafts", "Those of them that were right and went to clients");
    describe_counter!("penstock_forced_tokens", "Tokens of which a grammar left no choice");
    describe_counter!(
        "penstock_refused_tokens",
        "Tokens that were sampled without a mask where a grammar left everything open, and dropped: they are sampled again"
    );
    describe_counter!("penstock_cancelled_requests", "Sequences whose client left");
    describe_counter!("penstock_tokens_after_disconnect", "Tokens computed for clients that had left");
    describe_counter!("penstock_worker_restarts", "Times the workers were replaced");
    describe_histogram!("penstock_recovery_duration", S, "A loss of workers to the next token, by phase");
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::join_all;

    use super::*;

    #[tokio::test]
    async fn who_asks_while_one_rendering_goes_on_shares_the_next_one() {
        let (joined, begun) = (Joined::default(), Arc::new(AtomicUsize::new(0)));
        let number = || {
            let begun = begun.clone();
            move || Bytes::from((begun.fetch_add(1, Ordering::SeqCst) + 1).to_string())
        };
        assert_eq!(joined.next(number()).await, "1");
        assert_eq!(joined.next(number()).await, "2", "of one that comes alone nothing is old");
        let (hold, held) = std::sync::mpsc::channel::<()>();
        let last = number();
        let first = joined.next(move || {
            let text = last();
            let _ = held.recv();
            text
        });
        tokio::pin!(first);
        while begun.load(Ordering::SeqCst) < 3 {
            assert!(futures::FutureExt::now_or_never(first.as_mut()).is_none());
            tokio::task::yield_now().await;
        }
        let mut others: Vec<_> = (0..100).map(|_| Box::pin(joined.next(number()))).collect();
        for other in &mut others {
            assert!(futures::FutureExt::now_or_never(other.as_mut()).is_none());
        }
        drop(hold);
        // The one that would do it for all leaves.
        drop(others.remove(0));
        let (first, others) = tokio::join!(first, join_all(others));
        assert_eq!(first, "3");
        assert!(others.iter().all(|text| text == "4"), "{others:?}");
        assert_eq!(begun.load(Ordering::SeqCst), 4);
    }

    #[test]
    fn a_request_that_ended_fills_tgis_metrics_in_tgis_buckets() {
        let recorder = recorder(100, 200);
        let handle = recorder.handle();
        metrics::with_local_recorder(&recorder, || {
            describe();
            begin();
            request_arrived();
            request_arrived();
            request_arrived();
            let times = Times {
                inference: Duration::from_millis(400),
                total: Duration::from_millis(500),
                per_token: Duration::from_millis(100),
                ..Times::default()
            };
            let well = Ended {
                key: &"team-a".into(),
                adapters: &["org/a"],
                outcome: Outcome::Success(times),
                prompt_tokens: 25,
                cached_tokens: 16,
                generated_tokens: 4,
                max_new_tokens: Some(4),
            };
            request_ended(&well);
            let refused = Ended {
                outcome: Outcome::Failure("validation"),
                prompt_tokens: 0,
                cached_tokens: 0,
                generated_tokens: 0,
                max_new_tokens: None,
                ..well
            };
            request_ended(&refused);
        });
        let text = handle.render();
        for line in [
            "# HELP tgi_request_count Requests that reached a generating route",
            "# TYPE tgi_request_count counter",
            "tgi_request_count 3",
            "tgi_request_success 1",
            "tgi_request_failure{err=\"validation\"} 1",
            "tgi_request_failure{err=\"dropped\"} 0",
            "penstock_requests_in_flight 1",
            "# TYPE tgi_request_duration histogram",
            "tgi_request_duration_bucket{le=\"0.00015000000000000001\"} 0",
            "tgi_request_duration_sum 0.5",
            "tgi_request_mean_time_per_token_duration_sum 0.1",
            "tgi_request_input_length_bucket{le=\"24\"} 0",
            "tgi_request_input_length_bucket{le=\"25\"} 1",
            "tgi_request_input_length_count 1",
            "tgi_request_generated_tokens_bucket{le=\"2\"} 0",
            "tgi_request_generated_tokens_bucket{le=\"4\"} 1",
            "penstock_prompt_tokens 25",
            "penstock_key_requests{key=\"team-a\",outcome=\"success\"} 1",
            "penstock_key_requests{key=\"team-a\",outcome=\"failure\"} 1",
            "penstock_key_tokens{key=\"team-a\",kind=\"generated\"} 4",
            "penstock_adapter_requests{adapter=\"org/a\",outcome=\"success\"} 1",
            "penstock_adapter_requests{adapter=\"org/a\",outcome=\"failure\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
    }
}
