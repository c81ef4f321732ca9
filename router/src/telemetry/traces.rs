//! Traces: one for each request that generates, sent to an OpenTelemetry collector (OTLP over gRPC) when
//! `--otlp-endpoint` names one. Called by `http`; without the flag nothing of this runs.
//!
//! A request's span begins at its arrival, under the span that `traceparent` names, if any. At its end it gets
//! a child for each phase of each of its sequences: `queue`, `prefill`, `decode`. The workers' spans of steps
//! name it; see `ids::SpanRef`.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderMap, HeaderValue};
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{
    Span, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt, Tracer, TracerProvider,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{RetryPolicy, SpanExporter as OtlpExporter, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider, SpanData, SpanExporter,
    SpanProcessor,
};
use penstock_core::generation::Timeline;
use penstock_proto::ids::SpanRef;

use crate::config::RouterArgs;
use crate::limits::FlagError;

/// Spans are sent this often, and one sending may take this long: it holds up nothing but the next one.
const EVERY: Duration = Duration::from_secs(1);
const SENDING: Duration = Duration::from_secs(5);
/// Spans kept for sending; more are thrown away.
const KEPT: usize = 8192;
/// For the last spans to be sent.
const FLUSH: Duration = Duration::from_secs(2);

/// The way to the collector.
pub struct Tracing {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    propagator: TraceContextPropagator,
}

impl Tracing {
    /// `None` without `--otlp-endpoint`. Must be called within a tokio runtime. That nobody answers there is
    /// no error.
    pub fn start(args: &RouterArgs) -> Result<Option<Self>, FlagError> {
        let Some(endpoint) = &args.otlp_endpoint else { return Ok(None) };
        let exporter = OtlpExporter::builder().with_tonic().with_endpoint(endpoint).with_timeout(SENDING);
        let exporter = exporter.with_retry_policy(retries(SystemTime::now()));
        let exporter = exporter.build().map_err(|error| FlagError(format!("--otlp-endpoint: {error}")))?;
        // With OTEL_RESOURCE_ATTRIBUTES, which says whose process this is (pod, namespace).
        let resource = Resource::builder()
            .with_attributes([
                KeyValue::new("service.name", args.otlp_service_name.clone()),
                KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
                KeyValue::new("penstock.component", "router"),
            ])
            .build();
        let provider = SdkTracerProvider::builder()
            .with_span_processor(Batches::new(exporter, endpoint))
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(args.otlp_sample_ratio))))
            .with_resource(resource)
            .build();
        let tracer = provider.tracer("penstock.router");
        Ok(Some(Self { provider, tracer, propagator: TraceContextPropagator::new() }))
    }

    /// The span of a request that has just arrived.
    pub fn arrived(&self, request: &Request) -> RequestSpan {
        let parent = self.propagator.extract_with_context(&Context::new(), &Headers(request.headers()));
        let path = request.extensions().get::<MatchedPath>();
        let route = path.map_or("unknown", MatchedPath::as_str).to_owned();
        let method = request.method().to_string();
        let span = self
            .tracer
            .span_builder(format!("{method} {route}"))
            .with_kind(SpanKind::Server)
            .with_attributes([
                KeyValue::new("http.request.method", method),
                KeyValue::new("http.route", route),
            ])
            .start_with_context(&self.tracer, &parent);
        RequestSpan { tracer: self.tracer.clone(), context: span.span_context().clone(), span }
    }

    /// Sends what is left, within a moment.
    pub async fn stop(&self) {
        let provider = self.provider.clone();
        let flushed = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(FLUSH));
        let _ = tokio::time::timeout(FLUSH, flushed).await;
    }
}

/// The library draws the time between two tries from the clock, and panics at one before 1970 (its `generate_jitter`): a
/// board without a battery. There nothing is tried twice.
fn retries(now: SystemTime) -> RetryPolicy {
    if now < SystemTime::UNIX_EPOCH { RetryPolicy::disabled() } else { RetryPolicy::recommended() }
}

/// A request's span, from its arrival to its end.
pub struct RequestSpan {
    tracer: SdkTracer,
    context: SpanContext,
    span: opentelemetry_sdk::trace::Span,
}

impl RequestSpan {
    pub fn trace_id(&self) -> String {
        self.context.trace_id().to_string()
    }

    /// For the workers' spans; `None` when this one is not recorded.
    pub fn reference(&self) -> Option<SpanRef> {
        self.context.is_sampled().then(|| SpanRef {
            trace: self.context.trace_id().to_bytes(),
            span: self.context.span_id().to_bytes(),
        })
    }

    /// The header `traceresponse` of W3C's Trace Context, level 2.
    pub fn header(&self) -> HeaderValue {
        let (context, flags) = (&self.context, u8::from(self.context.is_sampled()));
        let value = format!("00-{}-{}-{flags:02x}", context.trace_id(), context.span_id());
        HeaderValue::from_str(&value).expect("hexadecimal digits and dashes")
    }

    /// Ends it, with a span for each phase of each sequence. `error`: its type, and what happened where that is an error
    /// of the server.
    pub fn end(
        mut self,
        timelines: &[Timeline],
        error: Option<(&'static str, Option<String>)>,
        more: Vec<KeyValue>,
    ) {
        if self.context.is_sampled() {
            let clock = Clock::now();
            for timeline in timelines {
                self.phases(timeline, &clock);
            }
            self.span.set_attributes(more);
            if let Some((kind, message)) = error {
                self.span.set_attribute(KeyValue::new("error.type", kind));
                if let Some(message) = message {
                    self.span.set_status(Status::error(message));
                }
            }
        }
        self.span.end();
    }

    fn phases(&self, timeline: &Timeline, clock: &Clock) {
        let end = timeline.ended.unwrap_or(clock.instant);
        let phases = [
            ("queue", Some(timeline.queued), timeline.admitted.unwrap_or(end)),
            ("prefill", timeline.admitted, timeline.first_token.unwrap_or(end)),
            ("decode", timeline.first_token, end),
        ];
        let parent = Context::new().with_remote_span_context(self.context.clone());
        for (name, begin, end) in phases {
            let Some(begin) = begin else { continue };
            let attributes = match name {
                "prefill" => vec![
                    KeyValue::new("penstock.prompt_tokens", i64::from(timeline.prompt_tokens)),
                    KeyValue::new("penstock.cached_tokens", i64::from(timeline.cached_tokens)),
                ],
                "decode" => {
                    vec![KeyValue::new("penstock.generated_tokens", i64::from(timeline.generated_tokens))]
                }
                _ => Vec::new(),
            };
            let span = SpanBuilder::from_name(name)
                .with_kind(SpanKind::Internal)
                .with_start_time(clock.at(begin))
                .with_attributes(attributes);
            span.start_with_context(&self.tracer, &parent).end_with_timestamp(clock.at(end));
        }
    }
}

/// What time of day an instant was.
struct Clock {
    instant: Instant,
    time: SystemTime,
}

impl Clock {
    fn now() -> Self {
        Self { instant: Instant::now(), time: SystemTime::now() }
    }

    fn at(&self, instant: Instant) -> SystemTime {
        self.time - self.instant.saturating_duration_since(instant)
    }
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(|name| name.as_str()).collect()
    }
}

/// The queue of spans that are to be sent. The library throws away without a word what finds no room in it: nothing
/// comes as far here.
#[derive(Debug)]
struct Batches {
    queue: BatchSpanProcessor,
    delivery: Arc<Delivery>,
}

impl Batches {
    /// Sends by way of `exporter`, on the runtime within which it is called.
    fn new(exporter: impl SpanExporter + 'static, endpoint: &str) -> Self {
        let delivery = Arc::new(Delivery {
            endpoint: endpoint.to_owned(),
            waiting: AtomicUsize::new(0),
            losing: AtomicBool::new(false),
        });
        let exporter = Patient {
            exporter: Arc::new(exporter),
            runtime: tokio::runtime::Handle::current(),
            delivery: delivery.clone(),
        };
        let config =
            BatchConfigBuilder::default().with_scheduled_delay(EVERY).with_max_queue_size(KEPT).build();
        Self { queue: BatchSpanProcessor::builder(exporter).with_batch_config(config).build(), delivery }
    }
}

impl SpanProcessor for Batches {
    fn on_start(&self, span: &mut opentelemetry_sdk::trace::Span, context: &Context) {
        self.queue.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if self.delivery.has_room() {
            self.queue.on_end(span);
        } else {
            self.delivery.lost(1, "takes them more slowly than they come");
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.queue.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.queue.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.queue.set_resource(resource);
    }
}

/// What becomes of spans. It is counted, and told once when they begin to be lost and once when they are taken again.
#[derive(Debug)]
struct Delivery {
    endpoint: String,
    /// In the queue, or about to be; never fewer than there are.
    waiting: AtomicUsize,
    losing: AtomicBool,
}

impl Delivery {
    /// Whether one more fits into the queue, which then is for it.
    fn has_room(&self) -> bool {
        let one_more = |waiting: usize| (waiting < KEPT).then_some(waiting + 1);
        self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    fn sent(&self, spans: usize) {
        metrics::counter!("penstock_trace_spans", "result" => "sent").increment(spans as u64);
        // A queue that is still long is soon full again: it would be told at each sending.
        let is_short = self.waiting.load(Ordering::Relaxed) < KEPT / 2;
        if is_short && self.losing.swap(false, Ordering::Relaxed) {
            tracing::info!("traces are taken again at {}", self.endpoint);
        }
    }

    /// `why`: what the collector does.
    fn lost(&self, spans: usize, why: impl Display) {
        metrics::counter!("penstock_trace_spans", "result" => "lost").increment(spans as u64);
        if !self.losing.swap(true, Ordering::Relaxed) {
            tracing::warn!("traces are lost: {} {why}", self.endpoint);
        }
    }
}

/// Sends on the runtime, where timers are.
#[derive(Debug)]
struct Patient<E> {
    exporter: Arc<E>,
    runtime: tokio::runtime::Handle,
    delivery: Arc<Delivery>,
}

impl<E: SpanExporter + 'static> SpanExporter for Patient<E> {
    fn export(&self, batch: Vec<SpanData>) -> impl Future<Output = OTelSdkResult> + Send {
        let (exporter, spans) = (self.exporter.clone(), batch.len());
        self.delivery.waiting.fetch_sub(spans, Ordering::Relaxed);
        let sending = self.runtime.spawn(async move {
            match tokio::time::timeout(SENDING, exporter.export(batch)).await {
                Ok(result) => result,
                Err(_) => Err(OTelSdkError::Timeout(SENDING)),
            }
        });
        async move {
            let result = match sending.await {
                Ok(result) => result,
                Err(error) => Err(OTelSdkError::InternalFailure(error.to_string())),
            };
            match &result {
                Ok(()) => self.delivery.sent(spans),
                Err(error) => self.delivery.lost(spans, format_args!("does not take them: {error}")),
            }
            result
        }
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        // Comes first, before anything is being sent.
        if let Some(exporter) = Arc::get_mut(&mut self.exporter) {
            exporter.set_resource(resource);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_before_1970_is_no_reason_to_panic() {
        let before = SystemTime::UNIX_EPOCH - Duration::from_secs(1);
        assert!(format!("{:?}", retries(before)).contains("max_retries: 0"));
        assert!(!format!("{:?}", retries(SystemTime::now())).contains("max_retries: 0"));
        let clock = Clock { instant: Instant::now(), time: before };
        assert!(clock.at(Instant::now()) <= SystemTime::UNIX_EPOCH);
    }

    /// Takes everything, and counts it.
    #[derive(Clone, Debug, Default)]
    struct Taking(Arc<AtomicUsize>);

    impl SpanExporter for Taking {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            self.0.fetch_add(batch.len(), Ordering::Relaxed);
            Ok(())
        }
    }

    #[tokio::test]
    async fn what_a_slow_collector_leaves_no_room_for_is_counted() {
        let taking = Taking::default();
        let batches = Batches::new(taking.clone(), "http://collector");
        let delivery = batches.delivery.clone();
        let provider = SdkTracerProvider::builder().with_span_processor(batches).build();
        let tracer = provider.tracer("tests");
        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        // Nothing of the runtime runs meanwhile: one batch of 512 at most is on its way, and stays there.
        metrics::with_local_recorder(&recorder, || {
            for _ in 0..KEPT + 600 {
                tracer.start("one").end();
            }
        });
        let text = recorder.handle().render();
        let line = "penstock_trace_spans{result=\"lost\"} ";
        let lost = text.lines().find_map(|found| found.strip_prefix(line)?.parse::<usize>().ok());
        let lost = lost.unwrap_or_else(|| panic!("nothing is lost: {text}"));
        assert!((600 - 512..=600).contains(&lost), "{lost}");
        assert!(delivery.losing.load(Ordering::Relaxed), "one warning, until they are taken again");
        let all_taken = async {
            while taking.0.load(Ordering::Relaxed) < KEPT + 600 - lost
                || delivery.losing.load(Ordering::Relaxed)
            {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), all_taken).await.expect("what waited is sent");
        assert_eq!(taking.0.load(Ordering::Relaxed) + lost, KEPT + 600);
        assert_eq!(delivery.waiting.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_queue_that_stays_long_is_told_of_once() {
        let delivery = Delivery {
            endpoint: "http://collector".into(),
            waiting: AtomicUsize::new(KEPT - 1),
            losing: AtomicBool::new(false),
        };
        let losing = || delivery.losing.load(Ordering::Relaxed);
        assert!(delivery.has_room() && !delivery.has_room());
        delivery.lost(1, "is slow");
        delivery.waiting.fetch_sub(512, Ordering::Relaxed);
        delivery.sent(512);
        assert!(losing(), "it is full again in a moment");
        delivery.waiting.store(KEPT / 2 - 1, Ordering::Relaxed);
        delivery.sent(512);
        assert!(!losing());
    }
}
