//! Tracing: sends a span for each traced request to an OpenTelemetry collector and passes the context to core
//! (W3C Trace Context). Off unless `OTLP_URL` is set.

use std::cell::RefCell;

use claimgate_shared::Timestamp;
use wasm_bindgen::{JsCast as _, JsValue};
use web_sys::{AbortSignal, Headers, RequestInit, WorkerGlobalScope};
use worker::js_sys::futures::JsFuture;
use worker::js_sys::{self, Math};
use worker::{Context, Env, Fetcher};

use crate::background;
use crate::clock;
use crate::config::{Config, TraceConfig};
use crate::request::Request;
use crate::router::Route;

/// The collector's service binding. Without it, spans are sent over the network.
const BINDING: &str = "OTLP";
/// Time limit for sending a span, in milliseconds. No response waits for it.
const SEND_MS_MAX: u32 = 2_000;

/// Maximum number of requests per second and isolate that are traced only because the browser asks for it.
/// Any client can ask, even in rejected requests, and each span costs a call to the collector.
const REQUESTED_TRACES_MAX: u32 = 10;

thread_local! {
    static REQUESTED: RefCell<RequestedTraces> = const { RefCell::new(RequestedTraces::NONE) };
}

/// The number of requests traced in one second because the browser asked for it.
#[derive(Debug, Clone, Copy)]
struct RequestedTraces {
    /// Seconds since 1970.
    second: i64,
    count: u32,
}

impl RequestedTraces {
    const NONE: Self = Self { second: 0, count: 0 };

    /// Counts one more trace at `now` and returns true, unless that second already has [`REQUESTED_TRACES_MAX`].
    fn take(&mut self, now: Timestamp) -> bool {
        let second = now.as_ms() / 1000;
        if second != self.second {
            *self = Self { second, count: 0 };
        }
        let has_room = self.count < REQUESTED_TRACES_MAX;
        self.count += u32::from(has_room);
        has_room
    }
}

/// A request's trace context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// The trace id.
    id: String,
    /// The browser's span id; empty if the trace starts here.
    parent_id: String,
    span_id: String,
    /// Whether edge and core record spans of this request.
    pub is_sampled: bool,
    began_at: Timestamp,
}

/// The attributes of a span. They contain no user and no claim.
#[derive(Debug, Clone, Copy)]
pub struct SpanDetails<'a> {
    /// The method, one of the route's.
    pub method: &'a str,
    /// The route's path template, such as `/v1/campaigns/{id}/claims`.
    pub route: &'a str,
    /// The request id, as in the logs and the response.
    pub request_id: &'a str,
    /// The response's status.
    pub status: u16,
    /// When the response was ready.
    pub ended_at: Timestamp,
}

impl Trace {
    /// Starts the trace of a request that began at `began_at`. Without `traceparent`, the trace is sampled if
    /// `may_begin`; with a `traceparent` that requests sampling, if `may_begin` or `may_follow`. `random`
    /// provides the ids.
    pub fn begin(
        traceparent: Option<&str>,
        began_at: Timestamp,
        may_begin: bool,
        may_follow: impl FnOnce() -> bool,
        random: [u8; 24],
    ) -> Self {
        let (own_id, span_id) = (hex(&random[..16]), hex(&random[16..]));
        let (id, parent_id, is_sampled) = match traceparent.and_then(parse) {
            Some((id, parent_id, is_requested)) => {
                (id, parent_id, is_requested && (may_begin || may_follow()))
            }
            None => (own_id, String::new(), may_begin),
        };
        Self { id, parent_id, span_id, is_sampled, began_at }
    }

    /// Returns the `traceparent` for core.
    pub fn traceparent(&self) -> String {
        let flags = if self.is_sampled { "01" } else { "00" };
        ["00", &self.id, &self.span_id, flags].join("-")
    }

    /// Returns the span as OTLP JSON. The JSON is formatted by hand: no value needs JSON escapes, and a serde
    /// document would add more to the Worker's size than the rest of this file.
    pub fn span(&self, details: SpanDetails<'_>) -> String {
        let Self { id, parent_id, span_id, began_at, .. } = self;
        let SpanDetails { method, route, request_id, status, ended_at } = details;
        let (began_ms, ended_ms) = (began_at.as_ms(), ended_at.as_ms());
        // OpenTelemetry: a server's span is an error only if the server is at fault.
        let code = if status >= 500 { 2 } else { 0 };
        let attribute = |key: &str, kind: &str, value: &str| {
            format!(r#"{{"key":"{key}","value":{{"{kind}":"{value}"}}}}"#)
        };
        let service = attribute("service.name", "stringValue", "claimgate-edge");
        let request = attribute("claimgate.request_id", "stringValue", request_id);
        let response = attribute("http.response.status_code", "intValue", &status.to_string());
        let ids = format!(r#""traceId":"{id}","spanId":"{span_id}","parentSpanId":"{parent_id}""#);
        let name = format!(r#""name":"{method} {route}","kind":2,"status":{{"code":{code}}}"#);
        let times = format!(r#""startTimeUnixNano":"{began_ms}000000","endTimeUnixNano":"{ended_ms}000000""#);
        let span = format!(r#"{{{ids},{name},{times},"attributes":[{request},{response}]}}"#);
        let spans = format!(r#"[{{"scope":{{"name":"claimgate"}},"spans":[{span}]}}]"#);
        format!(r#"{{"resourceSpans":[{{"resource":{{"attributes":[{service}]}},"scopeSpans":{spans}}}]}}"#)
    }
}

/// Parses a `traceparent` of version 00, or of a newer version with the same prefix. Returns trace id,
/// span id and whether sampling is requested.
fn parse(traceparent: &str) -> Option<(String, String, bool)> {
    let mut parts = traceparent.split('-');
    let [version, trace_id, span_id, flags] = [parts.next()?, parts.next()?, parts.next()?, parts.next()?];
    let is_hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_id =
        |text: &str, length| text.len() == length && is_hex(text) && text.bytes().any(|byte| byte != b'0');
    let is_known = version.len() == 2 && is_hex(version) && version != "ff";
    if !is_known || version == "00" && parts.next().is_some() || flags.len() != 2 || !is_hex(flags) {
        return None;
    }
    let sampled = matches!(flags.as_bytes()[1], b'1' | b'3' | b'5' | b'7' | b'9' | b'b' | b'd' | b'f');
    (is_id(trace_id, 32) && is_id(span_id, 16)).then(|| (trace_id.to_owned(), span_id.to_owned(), sampled))
}

fn hex(bytes: &[u8]) -> String {
    let digit = |four: u8| char::from(b"0123456789abcdef"[usize::from(four)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// The trace of the request being handled.
#[derive(Debug)]
pub struct RequestTrace {
    trace: Trace,
    config: TraceConfig,
}

impl RequestTrace {
    /// Starts the trace, if tracing is configured.
    #[inline(never)] // most edges never trace
    pub fn begin(request: &Request, config: &Config) -> Option<Self> {
        let config = config.traces.clone()?;
        let mut random = [0; 24];
        // Without a random id the trace would be mixed up with other traces.
        getrandom::fill(&mut random).ok()?;
        let (given, began_at) = (request.header("traceparent"), clock::now().ok()?);
        let may_begin = Math::random() * 1e6 < f64::from(config.per_million);
        let may_follow = || REQUESTED.with_borrow_mut(|requested| requested.take(began_at));
        let trace = Trace::begin(given.as_deref(), began_at, may_begin, may_follow, random);
        Some(Self { trace, config })
    }

    /// Returns the `traceparent` for core.
    pub fn traceparent(&self) -> String {
        self.trace.traceparent()
    }

    /// Sends the span in the background, if the request is sampled and has a route.
    #[inline(never)]
    pub fn end(self, request: &Request, request_id: &str, status: u16, env: &Env, context: &Context) {
        let method = &request.method;
        let route = Route::of(&request.path).filter(|route| route.allows(method));
        let (true, Some(route), Ok(ended_at)) = (self.trace.is_sampled, route, clock::now()) else { return };
        let details = SpanDetails { method, route: route.template(), request_id, status, ended_at };
        let (span, env) = (self.trace.span(details), env.clone());
        background::run(context, async move {
            // A lost span is only logged.
            if let Err(error) = post(&env, &self.config, &span).await {
                worker::console_warn!("a span could not be sent: {error:?}");
            }
        });
    }
}

async fn post(env: &Env, config: &TraceConfig, span: &str) -> Result<(), JsValue> {
    let collector: WorkerGlobalScope =
        env.service(BINDING).ok().map_or_else(|| js_sys::global().unchecked_into(), Fetcher::into_rpc);
    let headers = Headers::new()?;
    headers.set("content-type", "application/json")?;
    let init = RequestInit::new();
    init.set_method("POST");
    init.set_headers(headers.as_ref());
    init.set_body(&span.into());
    init.set_signal(Some(&AbortSignal::timeout_with_u32(SEND_MS_MAX)));
    let request = web_sys::Request::new_with_str_and_init(&config.url, &init)?;
    let response: web_sys::Response =
        JsFuture::from(collector.fetch_with_request(&request)).await?.dyn_into()?;
    if response.ok() { Ok(()) } else { Err(format!("status {}", response.status()).into()) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    fn begin(traceparent: Option<&str>, may_begin: bool) -> Trace {
        let began_at = Timestamp::from_ms(1_700_000_000_123).unwrap();
        Trace::begin(traceparent, began_at, may_begin, || true, [0xab; 24])
    }

    #[test]
    fn a_browsers_trace_continues_with_its_sampling_decision() {
        for (flags, is_sampled) in [("01", true), ("00", false), ("03", true)] {
            for may_begin in [true, false] {
                let trace = begin(Some(&format!("00-{TRACE}-{SPAN}-{flags}")), may_begin);
                assert_eq!((trace.parent_id.as_str(), trace.is_sampled), (SPAN, is_sampled));
                let flag = u8::from(is_sampled);
                assert_eq!(trace.traceparent(), format!("00-{TRACE}-abababababababab-0{flag}"));
            }
        }
        assert!(begin(Some(&format!("01-{TRACE}-{SPAN}-01-more")), false).is_sampled, "a newer version");
    }

    #[test]
    fn traces_requested_by_browsers_are_limited_per_second() {
        let traceparent = format!("00-{TRACE}-{SPAN}-01");
        let mut requested = RequestedTraces::NONE;
        let mut traced = |at_ms, may_begin| {
            let at = Timestamp::from_ms(at_ms).unwrap();
            Trace::begin(Some(&traceparent), at, may_begin, || requested.take(at), [0xab; 24]).is_sampled
        };
        let mut in_second = |from_ms: i64| (0..1000_i64).filter(|ms| traced(from_ms + ms, false)).count();
        assert_eq!([7_000, 8_000, 8_000, 7_000].map(&mut in_second), [10, 10, 0, 10]);
        assert!(traced(7_999, true), "sampled anyway");
    }

    #[test]
    fn a_malformed_traceparent_is_ignored() {
        let zeros = "0".repeat(32);
        for bad in [
            None,
            Some(String::new()),
            Some(format!("00-{TRACE}-{SPAN}")),
            Some(format!("00-{TRACE}-{SPAN}-01-more")),
            Some(format!("ff-{TRACE}-{SPAN}-01")),
            Some(format!("00-{zeros}-{SPAN}-01")),
            Some(format!("00-{TRACE}-{}-01", &zeros[..16])),
            Some(format!("00-{}-{SPAN}-01", TRACE.to_uppercase())),
            Some(format!("00-{TRACE}-{SPAN}-+1")),
        ] {
            for may_begin in [true, false] {
                let trace = begin(bad.as_deref(), may_begin);
                assert_eq!((trace.parent_id.as_str(), trace.is_sampled), ("", may_begin), "{bad:?}");
                assert_eq!(trace.id, "ab".repeat(16));
            }
        }
    }

    #[test]
    fn a_span_describes_its_request() {
        let trace = begin(Some(&format!("00-{TRACE}-{SPAN}-01")), false);
        let ended_at = Timestamp::from_ms(1_700_000_000_456).unwrap();
        let details =
            SpanDetails { method: "GET", route: "/livez", request_id: "r-1", status: 503, ended_at };
        let span: Value = serde_json::from_str(&trace.span(details)).unwrap();
        let span = &span["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
        assert_eq!((&span["traceId"], &span["parentSpanId"]), (&json!(TRACE), &json!(SPAN)));
        assert_eq!(span["startTimeUnixNano"], "1700000000123000000");
        assert_eq!(span["endTimeUnixNano"], "1700000000456000000");
        assert_eq!((&span["name"], &span["status"]["code"]), (&json!("GET /livez"), &json!(2)));
        assert_eq!(span["attributes"][0]["value"]["stringValue"], "r-1");
    }
}
