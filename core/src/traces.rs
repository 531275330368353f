//! Traces by OpenTelemetry, off unless a collector is named: a claim's way from its request, through the call to Redis
//! that decided it, to the commit that stored it. Contexts come and go as `traceparent` (W3C Trace Context).
//!
//! While they are off, all that asks for one reads a static that is empty. Names and attributes tell of campaigns and of
//! numbers, never of a user or a claim: a collector is read by more people than a register.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use axum::http::{HeaderMap, StatusCode};
use futures_util::future::Either;
use opentelemetry::context::FutureExt as _;
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{SpanKind, Status, TraceContextExt as _, Tracer as _, TracerProvider as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};
use tokio_rustls::rustls::crypto::ring;

/// There once traces are sent.
static TRACER: OnceLock<SdkTracer> = OnceLock::new();

/// The longest that one call to the collector may take.
const EXPORT_MAX: Duration = Duration::from_secs(5);
/// The longest that stopping waits for the collector.
const STOP_MAX: Duration = Duration::from_secs(1);

/// The name of the header, and of the field of an outbox entry, that carries a context.
pub const TRACEPARENT: &str = "traceparent";

/// Sends what is traced to a collector.
#[derive(Debug)]
pub struct TraceExport(SdkTracerProvider);

impl TraceExport {
    /// Sends traces by OTLP over HTTP to the collector whose address for traces is `url`, from now on and from all of this
    /// process: of requests that bring a context those that it wants traced, of the others the share `ratio`, 0 to 1.
    /// `instance` tells this core from others.
    ///
    /// # Errors
    /// When the exporter cannot be made. A collector that does not answer is none: traces are lost until it does.
    pub fn start(url: &str, ratio: f64, instance: &str) -> Result<Self, ExporterBuildError> {
        // The exporter's client wants one, though it never needs it.
        let _ = ring::default_provider().install_default();
        let exporter =
            SpanExporter::builder().with_http().with_endpoint(url).with_timeout(EXPORT_MAX).build()?;
        let who = Resource::builder().with_service_name("claimgate-core").with_attributes([
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", instance.to_owned()),
        ]);
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(ratio))))
            .with_resource(who.build())
            .build();
        let _ = TRACER.set(provider.tracer("claimgate"));
        Ok(Self(provider))
    }

    /// Sends what is left. Waits for it, 1 s at most: not for a thread that others wait for.
    pub fn stop(self) {
        if let Err(error) = self.0.shutdown_with_timeout(STOP_MAX) {
            tracing::warn!(%error, "the last traces were not sent");
        }
    }
}

/// A span that is being recorded. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Trace(Context);

impl Trace {
    /// A request to `route`, such as `POST /internal/v1/claims`; `None` when it is not traced.
    pub fn of_request(route: impl FnOnce() -> String, headers: &HeaderMap) -> Option<Self> {
        let tracer = TRACER.get()?;
        let caller =
            TraceContextPropagator::new().extract_with_context(&Context::new(), &HeaderExtractor(headers));
        Self::begin(tracer, &caller, route(), SpanKind::Server, vec![])
    }

    /// One call to Redis that decides `claims` claims on `campaign`, of which those of `traced` were traced so far: a part
    /// of the first one's trace, with links to and from the others. `None` without any.
    pub fn of_batch(campaign: &str, claims: usize, traced: &[&Self]) -> Option<Self> {
        let (first, others) = traced.split_first()?;
        let about = vec![
            KeyValue::new("claimgate.campaign", campaign.to_owned()),
            KeyValue::new("claimgate.claims", i64::try_from(claims).unwrap_or(i64::MAX)),
        ];
        let batch =
            Self::begin(TRACER.get()?, &first.0, "decide claims".to_owned(), SpanKind::Client, about)?;
        for other in others {
            batch.0.span().add_link(other.0.span().span_context().clone(), vec![]);
            other.0.span().add_link(batch.0.span().span_context().clone(), vec![]);
        }
        Some(batch)
    }

    /// Records that what the call of the context `parent` had decided on `campaign`, `events` claims, was stored in SQL by
    /// a commit that began at `began`.
    pub fn stored(parent: &str, campaign: &str, events: usize, began: SystemTime) {
        let Some(tracer) = TRACER.get() else { return };
        let carrier = std::collections::HashMap::from([(TRACEPARENT.to_owned(), parent.to_owned())]);
        let parent = TraceContextPropagator::new().extract_with_context(&Context::new(), &carrier);
        // A context that cannot be read would begin a trace of its own, of nothing.
        if !parent.span().span_context().is_sampled() {
            return;
        }
        let about = [
            KeyValue::new("claimgate.campaign", campaign.to_owned()),
            KeyValue::new("claimgate.claims", i64::try_from(events).unwrap_or(i64::MAX)),
        ];
        let span = tracer.span_builder("store claims").with_kind(SpanKind::Consumer).with_start_time(began);
        drop(tracer.build_with_context(span.with_attributes(about), &parent));
    }

    /// What the task that asks is part of.
    pub fn current() -> Option<Self> {
        TRACER.get()?;
        Context::map_current(|context| {
            context.span().span_context().is_sampled().then(|| Self(context.clone()))
        })
    }

    fn begin(
        tracer: &SdkTracer,
        parent: &Context,
        name: String,
        kind: SpanKind,
        about: Vec<KeyValue>,
    ) -> Option<Self> {
        let span = tracer.span_builder(name).with_kind(kind).with_attributes(about);
        let context = parent.with_span(tracer.build_with_context(span, parent));
        context.span().span_context().is_sampled().then_some(Self(context))
    }

    /// Its context, for those that it calls.
    pub fn traceparent(&self) -> String {
        let mut carrier = std::collections::HashMap::new();
        TraceContextPropagator::new().inject_context(&self.0, &mut carrier);
        carrier.remove(TRACEPARENT).unwrap_or_default()
    }

    /// Ends the span of a request, with its id and its answer.
    pub fn answered(&self, request_id: &str, status: StatusCode) {
        let span = self.0.span();
        span.set_attribute(KeyValue::new("claimgate.request_id", request_id.to_owned()));
        span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status.as_u16())));
        if status.is_server_error() {
            span.set_status(Status::error(""));
        }
        span.end();
    }

    /// Ends the span of a call, with what went wrong if anything did.
    pub fn ended(&self, error: Option<&str>) {
        if let Some(error) = error {
            self.0.span().set_status(Status::error(error.to_owned()));
        }
        self.0.span().end();
    }
}

/// Runs `work` as a part of `trace`. No `async fn`: it would hold the work twice.
pub fn within<F: Future>(trace: Option<&Trace>, work: F) -> impl Future<Output = F::Output> {
    match trace {
        None => Either::Left(work),
        Some(Trace(context)) => Either::Right(work.with_context(context.clone())),
    }
}
