//! OpenTelemetry traces, off unless a collector is configured. A trace follows a claim from its request,
//! through the call to Redis that decides it, to the commit that stores it in SQL. Contexts are passed as
//! `traceparent` (W3C Trace Context).
//!
//! While tracing is off, each function only reads an empty static. Names and attributes contain campaigns and
//! numbers, never users or claims: more people can read a collector than the database.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use axum::http::{HeaderMap, StatusCode};
use futures_util::future::Either;
use opentelemetry::context::FutureExt as _;
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{SpanKind, Status, TraceContextExt as _, Tracer as _, TracerProvider as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};
use reqwest::blocking::Client;
use tokio_rustls::rustls::crypto::ring;

/// The tracer, set once tracing has started.
static TRACER: OnceLock<SdkTracer> = OnceLock::new();

/// Timeout of one call to the collector.
const EXPORT_MAX: Duration = Duration::from_secs(5);
/// Timeout of connecting to the collector, divided evenly among the addresses of its name: the first one may swallow
/// packets.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// Timeout of [`TraceExport::stop`].
const STOP_MAX: Duration = Duration::from_secs(1);

/// Name of the header, and of the field of an outbox entry, that carries a context.
pub const TRACEPARENT: &str = "traceparent";

/// Sends spans to a collector.
#[derive(Debug)]
pub struct TraceExport(SdkTracerProvider);

impl TraceExport {
    /// Starts sending this process' traces by OTLP over HTTP to the collector at `url`. A request with a
    /// context is traced if that context is sampled. Of all other requests, the share `ratio`, 0 to 1, is
    /// traced. `instance` distinguishes this core from other cores. Blocks: do not call it on a thread of the
    /// runtime.
    ///
    /// # Errors
    /// If the exporter cannot be created. An unavailable collector is not an error: traces are lost until it
    /// answers.
    pub fn start(url: &str, ratio: f64, instance: &str) -> anyhow::Result<Self> {
        // The exporter's HTTP client requires a crypto provider, though it never uses one.
        let _ = ring::default_provider().install_default();
        let client = Client::builder().no_proxy().connect_timeout(CONNECT_MAX).timeout(EXPORT_MAX).build()?;
        let exporter = SpanExporter::builder().with_http().with_http_client(client).with_endpoint(url);
        let exporter = exporter.with_timeout(EXPORT_MAX).build()?;
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

    /// Sends the remaining spans. Blocks for up to 1 s: do not call it on a thread that other tasks wait for.
    pub fn stop(self) {
        if let Err(error) = self.0.shutdown_with_timeout(STOP_MAX) {
            tracing::warn!(%error, "the last traces were not sent");
        }
    }
}

/// A span that is being recorded. Clones share the span.
#[derive(Debug, Clone)]
pub struct Trace(Context);

impl Trace {
    /// Starts the span of a request to `route`, such as `POST /internal/v1/claims`; `None` if it is not
    /// traced. `caller` holds the headers of an authenticated caller, whose context the span continues.
    pub fn of_request(route: impl FnOnce() -> String, caller: Option<&HeaderMap>) -> Option<Self> {
        let tracer = TRACER.get()?;
        let extract = |headers| {
            TraceContextPropagator::new().extract_with_context(&Context::new(), &HeaderExtractor(headers))
        };
        let caller = caller.map_or_else(Context::new, extract);
        Self::begin(tracer, &caller, route(), SpanKind::Server, vec![])
    }

    /// Starts the span of one call to Redis that decides `claims` claims on `campaign`. It joins the trace of
    /// the first span in `traced`, and is linked to and from the other spans. Returns `None` if `traced` is
    /// empty.
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

    /// Records that `events` claims on `campaign` were stored in SQL by a commit that began at `began`.
    /// `parent` is the context of the call to Redis that decided them.
    pub fn stored(parent: &str, campaign: &str, events: usize, began: SystemTime) {
        let Some(tracer) = TRACER.get() else { return };
        let carrier = std::collections::HashMap::from([(TRACEPARENT.to_owned(), parent.to_owned())]);
        let parent = TraceContextPropagator::new().extract_with_context(&Context::new(), &carrier);
        // An unreadable context would start a separate trace that belongs to no claim.
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

    /// Returns the current task's span.
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

    /// Returns the span's context, to be passed on.
    pub fn traceparent(&self) -> String {
        let mut carrier = std::collections::HashMap::new();
        TraceContextPropagator::new().inject_context(&self.0, &mut carrier);
        carrier.remove(TRACEPARENT).unwrap_or_default()
    }

    /// Ends the span of a request, with the request id and the response's status.
    pub fn answered(&self, request_id: &str, status: StatusCode) {
        let span = self.0.span();
        span.set_attribute(KeyValue::new("claimgate.request_id", request_id.to_owned()));
        span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status.as_u16())));
        if status.is_server_error() {
            span.set_status(Status::error(""));
        }
        span.end();
    }

    /// Ends the span of a call, with the error if it failed.
    pub fn ended(&self, error: Option<&str>) {
        if let Some(error) = error {
            self.0.span().set_status(Status::error(error.to_owned()));
        }
        self.0.span().end();
    }
}

/// Runs `work` as a part of `trace`. Not an `async fn`, which would store the future twice.
pub fn within<F: Future>(trace: Option<&Trace>, work: F) -> impl Future<Output = F::Output> {
    match trace {
        None => Either::Left(work),
        Some(Trace(context)) => Either::Right(work.with_context(context.clone())),
    }
}
