//! The scheduler's Prometheus metrics: TGI's names for what TGI has, `penstock_` for the rest. The handles
//! are looked up once; a step costs atomic stores only.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use penstock_proto::{CacheGroup, CacheKind};

use super::core::Counters;
use super::handle::{States, Stats};
use super::in_flight::InFlight;
use super::results::Stepped;
use crate::worker::group::StartupTimings;

/// TGI tells prefill batches from decode batches; a step with any prompt token counts as the former.
struct PerMethod {
    inference_count: Counter,
    inference_success: Counter,
    inference_failure: Counter,
    inference_duration: Histogram,
    forward_duration: Histogram,
    decode_duration: Histogram,
    filter_duration: Histogram,
    steps: Counter,
    step_duration: Histogram,
}

impl PerMethod {
    fn new(method: &'static str) -> Self {
        Self {
            inference_count: counter!("tgi_batch_inference_count", "method" => method),
            inference_success: counter!("tgi_batch_inference_success", "method" => method),
            inference_failure: counter!("tgi_batch_inference_failure", "method" => method),
            inference_duration: histogram!("tgi_batch_inference_duration", "method" => method),
            forward_duration: histogram!("tgi_batch_forward_duration", "method" => method),
            decode_duration: histogram!("tgi_batch_decode_duration", "method" => method),
            filter_duration: histogram!("tgi_batch_filter_duration", "method" => method),
            steps: counter!("penstock_steps", "method" => method),
            step_duration: histogram!("penstock_step_duration", "method" => method),
        }
    }
}

pub(super) struct Metrics {
    prefill: PerMethod,
    decode: PerMethod,
    queue_size: Gauge,
    next_size: Histogram,
    current_size: Gauge,
    current_max_tokens: Gauge,
    max_total_tokens: Gauge,
    total_tokens: Gauge,
    concat: Counter,
    concat_duration: Histogram,
    skipped_tokens: Histogram,

    batch_rows: Histogram,
    batch_tokens: Histogram,
    row_errors: Counter,
    blocks_used: Gauge,
    blocks_cached: Gauge,
    blocks_free: Gauge,
    cache_usage: Gauge,
    /// In the order of `Taken`.
    pages: Vec<Gauge>,
    states: StateGauges,
    snapshots: Gauge,
    snapshots_used: Gauge,
    state_saves: Counter,
    preemptions: Counter,
    priority_preemptions: Counter,
    prefix_hit_tokens: Counter,
    copied_tokens: Counter,
    recomputed_tokens: Counter,
    prompt_tokens: Counter,
    decode_tokens: Counter,
    wasted_rows: Counter,
    late_masks: Counter,
    drafts: Counter,
    accepted_drafts: Counter,
    branch_drafts: Counter,
    corpus_drafts: Counter,
    accepted_corpus_drafts: Counter,
    model_drafts: Counter,
    accepted_model_drafts: Counter,
    forced_tokens: Counter,
    refused_tokens: Counter,
    cancelled: Counter,
    tokens_after_cancel: Counter,
    worker_restarts: Counter,
    recovery: Recovery,
}

/// Of the group that keeps states, by what holds them. 0 for a model without such.
struct StateGauges {
    slots: [Gauge; 2],
    drafts: [Gauge; 2],
    snapshots: [Gauge; 2],
}

impl StateGauges {
    fn new(groups: &[CacheGroup]) -> Self {
        let group = groups.iter().find(|group| group.kind() == CacheKind::State);
        let name = group.map_or("state".into(), CacheGroup::name);
        let held = |holder: &'static str| {
            [
                gauge!("penstock_state_places", "group" => name.clone(), "holder" => holder),
                gauge!("penstock_states", "group" => name.clone(), "holder" => holder),
            ]
        };
        Self { slots: held("slots"), drafts: held("drafts"), snapshots: held("snapshots") }
    }

    fn set(&self, states: &States) {
        let held =
            [(&self.slots, states.slots), (&self.drafts, states.drafts), (&self.snapshots, states.snapshots)];
        for ([total, used], places) in held {
            total.set(places.total);
            used.set(places.used);
        }
    }
}

struct Recovery {
    detection: Histogram,
    process: Histogram,
    load: Histogram,
    prepare: Histogram,
    refill: Histogram,
}

/// Of the groups that have tables; one that nobody reads where no layer attends to everything.
fn pages_by_group(groups: &[CacheGroup]) -> Vec<Gauge> {
    let gauge = |group: &CacheGroup| gauge!("penstock_kv_pages", "group" => group.name());
    let has_full = groups.first().is_some_and(|group| group.kind() == CacheKind::Full);
    let absent = (!has_full).then(Gauge::noop);
    absent.into_iter().chain(groups.iter().filter(|group| group.tables > 0).map(gauge)).collect()
}

impl Metrics {
    pub fn new(groups: &[CacheGroup]) -> Self {
        let recovery = |phase: &'static str| histogram!("penstock_recovery_duration", "phase" => phase);
        Self {
            prefill: PerMethod::new("prefill"),
            decode: PerMethod::new("decode"),
            queue_size: gauge!("tgi_queue_size"),
            next_size: histogram!("tgi_batch_next_size"),
            current_size: gauge!("tgi_batch_current_size"),
            current_max_tokens: gauge!("tgi_batch_current_max_tokens"),
            max_total_tokens: gauge!("tgi_batch_max_total_tokens"),
            total_tokens: gauge!("tgi_batch_total_tokens"),
            // Prompts are computed beside running sequences, in chunks: TGI's other reasons do not arise.
            concat: counter!("tgi_batch_concat", "reason" => "chunking"),
            // TGI gives it this label whatever the step.
            concat_duration: histogram!("tgi_batch_concat_duration", "method" => "decode"),
            skipped_tokens: histogram!("tgi_request_skipped_tokens"),
            batch_rows: histogram!("penstock_batch_rows"),
            batch_tokens: histogram!("penstock_batch_tokens"),
            row_errors: counter!("penstock_row_errors"),
            blocks_used: gauge!("penstock_kv_blocks_used"),
            blocks_cached: gauge!("penstock_kv_blocks_cached"),
            blocks_free: gauge!("penstock_kv_blocks_free"),
            cache_usage: gauge!("penstock_kv_cache_usage"),
            pages: pages_by_group(groups),
            states: StateGauges::new(groups),
            snapshots: gauge!("penstock_state_snapshots"),
            snapshots_used: gauge!("penstock_state_snapshots_used"),
            state_saves: counter!("penstock_state_saves"),
            preemptions: counter!("penstock_preemptions"),
            priority_preemptions: counter!("penstock_priority_preemptions"),
            prefix_hit_tokens: counter!("penstock_prefix_hit_tokens"),
            copied_tokens: counter!("penstock_copied_tokens"),
            recomputed_tokens: counter!("penstock_prefix_recomputed_tokens"),
            prompt_tokens: counter!("penstock_computed_prompt_tokens"),
            decode_tokens: counter!("penstock_computed_decode_tokens"),
            wasted_rows: counter!("penstock_wasted_rows"),
            late_masks: counter!("penstock_late_masks"),
            drafts: counter!("penstock_drafts"),
            accepted_drafts: counter!("penstock_accepted_drafts"),
            branch_drafts: counter!("penstock_branch_drafts"),
            corpus_drafts: counter!("penstock_corpus_drafts"),
            accepted_corpus_drafts: counter!("penstock_accepted_corpus_drafts"),
            model_drafts: counter!("penstock_model_drafts"),
            accepted_model_drafts: counter!("penstock_accepted_model_drafts"),
            forced_tokens: counter!("penstock_forced_tokens"),
            refused_tokens: counter!("penstock_refused_tokens"),
            cancelled: counter!("penstock_cancelled_requests"),
            tokens_after_cancel: counter!("penstock_tokens_after_disconnect"),
            worker_restarts: counter!("penstock_worker_restarts"),
            recovery: Recovery {
                detection: recovery("detection"),
                process: recovery("process"),
                load: recovery("load"),
                prepare: recovery("prepare"),
                refill: recovery("refill"),
            },
        }
    }

    pub fn planned(&self, step: &InFlight) {
        self.method(step.prompt_rows > 0).inference_count.increment(1);
        if step.admitted > 0 {
            self.next_size.record(step.admitted);
        }
        if step.joins() {
            self.concat.increment(1);
        }
    }

    /// `handed_out` is how long it took to give every sequence its token.
    pub fn stepped(&self, step: &Stepped, handed_out: Duration) {
        let method = self.method(step.prompts);
        method.inference_success.increment(1);
        method.inference_duration.record(step.took);
        method.forward_duration.record(step.forward);
        method.decode_duration.record(step.sample);
        method.filter_duration.record(handed_out);
        if step.joined {
            self.concat_duration.record(step.prepare);
        }
        self.skipped_tokens.record(step.accepted);
        method.steps.increment(1);
        method.step_duration.record(step.took);
        self.batch_rows.record(step.rows);
        self.batch_tokens.record(step.tokens);
        self.row_errors.increment(u64::from(step.errors));
    }

    /// A plan that will get no result.
    pub fn lost(&self, prompts: bool) {
        self.method(prompts).inference_failure.increment(1);
    }

    pub fn snapshot(&self, stats: &Stats, counters: &Counters, max_tokens: u64) {
        self.queue_size.set(stats.waiting);
        self.current_size.set(stats.running);
        self.current_max_tokens.set(max_tokens as f64);
        self.max_total_tokens.set(f64::from(stats.blocks) * f64::from(stats.block_size));
        self.total_tokens.set(f64::from(stats.blocks_used) * f64::from(stats.block_size));
        self.blocks_used.set(stats.blocks_used);
        self.blocks_cached.set(stats.blocks_cached);
        self.blocks_free.set(stats.blocks_free);
        let blocks = stats.blocks_used + stats.blocks_cached + stats.blocks_free;
        self.cache_usage.set(f64::from(stats.blocks_used) / f64::from(blocks.max(1)));
        let pages = std::iter::once(stats.pages.full).chain(stats.pages.windows);
        self.pages.iter().zip(pages).for_each(|(gauge, pages)| gauge.set(pages));
        self.states.set(&stats.states);
        self.snapshots.set(stats.states.snapshots.total);
        self.snapshots_used.set(stats.states.snapshots.used);
        self.state_saves.absolute(counters.state_saves);
        self.preemptions.absolute(counters.preemptions);
        self.priority_preemptions.absolute(counters.priority_preemptions);
        self.prefix_hit_tokens.absolute(counters.prefix_hit_tokens);
        self.copied_tokens.absolute(counters.copied_tokens);
        self.recomputed_tokens.absolute(counters.recomputed_tokens);
        self.prompt_tokens.absolute(counters.prompt_tokens);
        self.decode_tokens.absolute(counters.decode_tokens);
        self.wasted_rows.absolute(counters.wasted_rows);
        self.late_masks.absolute(counters.late_masks);
        self.drafts.absolute(counters.drafts);
        self.accepted_drafts.absolute(counters.accepted_drafts);
        self.branch_drafts.absolute(counters.branch_drafts);
        self.corpus_drafts.absolute(counters.corpus_drafts);
        self.accepted_corpus_drafts.absolute(counters.accepted_corpus_drafts);
        self.model_drafts.absolute(counters.model_drafts);
        self.accepted_model_drafts.absolute(counters.accepted_model_drafts);
        self.forced_tokens.absolute(counters.forced_tokens);
        self.refused_tokens.absolute(counters.refused_tokens);
        self.cancelled.absolute(counters.cancelled);
        self.tokens_after_cancel.absolute(counters.tokens_after_cancel);
        self.worker_restarts.absolute(stats.worker_restarts);
    }

    pub fn recovered(&self, detection: Duration, startup_timings: StartupTimings, refill: Duration) {
        self.recovery.detection.record(detection);
        self.recovery.process.record(startup_timings.process);
        self.recovery.load.record(startup_timings.load);
        self.recovery.prepare.record(startup_timings.prepare);
        self.recovery.refill.record(refill);
    }

    fn method(&self, prompts: bool) -> &PerMethod {
        if prompts { &self.prefill } else { &self.decode }
    }
}
