//! The Prometheus metrics: TGI's names and buckets for what exists here, and what TGI lacks. The request
//! metrics are recorded here, called by `http`; those of steps and blocks by the scheduler.

use std::sync::OnceLock;
use std::time::Duration;

use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use crate::generation::Done;

/// The process has one recorder, as the `metrics` crate has it.
static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();

/// How often histograms are folded into their buckets when nobody scrapes.
const UPKEEP: Duration = Duration::from_secs(5);

/// Records from now on; what came before is not counted. The counters of requests stand at 0 from the first
/// scrape, so that a rate over them has a beginning. The lengths bound the buckets of the histograms of tokens.
pub fn install(max_input_tokens: u32, max_total_tokens: u32) -> PrometheusHandle {
    RECORDER
        .get_or_init(|| {
            let recorder = recorder(max_input_tokens, max_total_tokens);
            let handle = recorder.handle();
            if metrics::set_global_recorder(recorder).is_err() {
                tracing::warn!("another metrics recorder is installed: /metrics stays empty");
            }
            describe();
            counter!("tgi_request_count").increment(0);
            counter!("tgi_request_success").increment(0);
            handle
        })
        .clone()
}

/// The text of /metrics; empty until `install`.
pub fn render() -> String {
    RECORDER.get().map(PrometheusHandle::render).unwrap_or_default()
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

/// A request has reached a route that generates.
pub fn request_arrived() {
    counter!("tgi_request_count").increment(1);
}

/// A sequence has ended well.
pub fn generation_succeeded(done: &Done) {
    counter!("tgi_request_success").increment(1);
    let timings = &done.timings;
    histogram!("tgi_request_duration").record(timings.total);
    histogram!("tgi_request_validation_duration").record(timings.validation);
    histogram!("tgi_request_queue_duration").record(timings.queue);
    histogram!("tgi_request_inference_duration").record(timings.inference);
    let per_token = timings.inference / done.generated_tokens.max(1);
    histogram!("tgi_request_mean_time_per_token_duration").record(per_token);
    histogram!("tgi_request_generated_tokens").record(f64::from(done.generated_tokens));
    histogram!("tgi_request_input_length").record(f64::from(done.prompt_tokens));
}

/// The first token of a request was there so long after its arrival.
pub fn first_token(after: Duration) {
    histogram!("penstock_time_to_first_token_duration").record(after);
}

/// A request failed; `why` is a label of a fixed set.
pub fn request_failed(why: &'static str) {
    counter!("tgi_request_failure", "err" => why).increment(1);
}

fn describe() {
    const S: Unit = Unit::Seconds;
    describe_counter!("tgi_request_count", "Requests that reached a generating route");
    describe_counter!("tgi_request_success", "Generations that ended well");
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
    describe_histogram!("penstock_time_to_first_token_duration", S, "Arrival to first token");
    describe_gauge!("tgi_queue_size", "Sequences that wait to be scheduled");
    describe_histogram!("tgi_batch_next_size", "Sequences admitted together");
    describe_gauge!("tgi_batch_current_size", "Sequences that run");
    describe_gauge!("tgi_batch_current_max_tokens", "Tokens that the running sequences may come to");
    describe_gauge!("tgi_batch_max_total_tokens", "Tokens that the KV cache holds");
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
    describe_counter!("penstock_preemptions", "Sequences set back to make room for older ones");
    describe_counter!("penstock_prefix_hit_tokens", "Prompt tokens found in the prefix cache");
    describe_counter!("penstock_computed_prompt_tokens", "Prompt tokens fed");
    describe_counter!("penstock_computed_decode_tokens", "Generated tokens fed");
    describe_counter!("penstock_wasted_rows", "Rows computed for sequences that had ended");
    describe_counter!("penstock_cancelled_requests", "Sequences whose client left");
    describe_counter!("penstock_tokens_after_disconnect", "Tokens computed for clients that had left");
    describe_counter!("penstock_worker_restarts", "Times the workers were replaced");
    describe_histogram!("penstock_recovery_duration", S, "A loss of workers to the next token, by phase");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generation::{FinishReason, Timings};

    fn done() -> Done {
        Done {
            text: String::new(),
            finish_reason: FinishReason::Length,
            generated_tokens: 4,
            seed: None,
            prompt_tokens: 25,
            cached_tokens: 0,
            prefill: Vec::new(),
            timings: Timings {
                inference: Duration::from_millis(400),
                total: Duration::from_millis(500),
                ..Timings::default()
            },
        }
    }

    #[test]
    fn a_finished_request_fills_tgis_metrics_in_tgis_buckets() {
        let recorder = recorder(100, 200);
        let handle = recorder.handle();
        metrics::with_local_recorder(&recorder, || {
            describe();
            request_arrived();
            generation_succeeded(&done());
            request_failed("validation");
        });
        let text = handle.render();
        for line in [
            "# HELP tgi_request_count Requests that reached a generating route",
            "# TYPE tgi_request_count counter",
            "tgi_request_count 1",
            "tgi_request_success 1",
            "tgi_request_failure{err=\"validation\"} 1",
            "# TYPE tgi_request_duration histogram",
            "tgi_request_duration_bucket{le=\"0.00015000000000000001\"} 0",
            "tgi_request_duration_sum 0.5",
            "tgi_request_mean_time_per_token_duration_sum 0.1",
            "tgi_request_input_length_bucket{le=\"24\"} 0",
            "tgi_request_input_length_bucket{le=\"25\"} 1",
            "tgi_request_generated_tokens_bucket{le=\"2\"} 0",
            "tgi_request_generated_tokens_bucket{le=\"4\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
    }
}
