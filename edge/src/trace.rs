//! Traces: a span for each browser's request that is traced, sent to an OpenTelemetry collector, and its context for core
//! (W3C Trace Context). Off unless `OTLP_URL` is set: then nothing of this is looked at.

use claimgate_shared::Timestamp;
use wasm_bindgen::{JsCast as _, JsValue};
use web_sys::{AbortSignal, Headers, RequestInit, WorkerGlobalScope};
use worker::js_sys::futures::JsFuture;
use worker::js_sys::{self, Math};
use worker::{Context, Env, Fetcher};

use crate::clock;
use crate::config::{Config, TraceConfig};
use crate::request::Request;
use crate::router::Route;

/// The service binding that leads to the collector; over the network where there is none.
const BINDING: &str = "OTLP";
/// The longest that sending a span may take, in milliseconds. No response waits for it.
const SEND_MS_MAX: u32 = 2_000;

/// The place of a request in a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// The id of the whole trace.
    id: String,
    /// The browser's span; empty when the trace begins here.
    parent_id: String,
    span_id: String,
    /// Whether its spans are recorded, here and by core.
    pub is_sampled: bool,
    began_at: Timestamp,
}

/// What a span tells of its request: no user, no claim.
#[derive(Debug, Clone, Copy)]
pub struct Answered<'a> {
    /// Its method, one that the route has.
    pub method: &'a str,
    /// Its route's path, such as `/v1/campaigns/{id}/claims`.
    pub route: &'a str,
    /// The id that logs and the response carry.
    pub request_id: &'a str,
    /// The response's status.
    pub status: u16,
    /// When the response was there.
    pub at: Timestamp,
}

impl Trace {
    /// The place of a request that began at `began_at` and brought `traceparent`. Without one `may_begin` says
    /// whether it is traced. `random` makes the ids.
    pub fn begin(traceparent: Option<&str>, began_at: Timestamp, may_begin: bool, random: [u8; 24]) -> Self {
        let (own_id, span_id) = (hex(&random[..16]), hex(&random[16..]));
        let (id, parent_id, is_sampled) =
            traceparent.and_then(parse).unwrap_or_else(|| (own_id, String::new(), may_begin));
        Self { id, parent_id, span_id, is_sampled, began_at }
    }

    /// Its context, for core.
    pub fn traceparent(&self) -> String {
        let flags = if self.is_sampled { "01" } else { "00" };
        ["00", &self.id, &self.span_id, flags].join("-")
    }

    /// The span as OTLP's JSON. Written by hand: none of its values has characters that JSON escapes, and a document of
    /// serde's would cost the Worker more than the rest of this file.
    pub fn span(&self, of: Answered<'_>) -> String {
        let Self { id, parent_id, span_id, began_at, .. } = self;
        let Answered { method, route, request_id, status, at } = of;
        let (began_ms, ended_ms) = (began_at.as_ms(), at.as_ms());
        // Error, as OpenTelemetry has it for a server: where it is to blame itself.
        let code = if status >= 500 { 2 } else { 0 };
        let attribute = |key: &str, kind: &str, value: &str| {
            format!(r#"{{"key":"{key}","value":{{"{kind}":"{value}"}}}}"#)
        };
        let service = attribute("service.name", "stringValue", "claimgate-edge");
        let request = attribute("claimgate.request_id", "stringValue", request_id);
        let answer = attribute("http.response.status_code", "intValue", &status.to_string());
        let place = format!(r#""traceId":"{id}","spanId":"{span_id}","parentSpanId":"{parent_id}""#);
        let what = format!(r#""name":"{method} {route}","kind":2,"status":{{"code":{code}}}"#);
        let times = format!(r#""startTimeUnixNano":"{began_ms}000000","endTimeUnixNano":"{ended_ms}000000""#);
        let span = format!(r#"{{{place},{what},{times},"attributes":[{request},{answer}]}}"#);
        let spans = format!(r#"[{{"scope":{{"name":"claimgate"}},"spans":[{span}]}}]"#);
        format!(r#"{{"resourceSpans":[{{"resource":{{"attributes":[{service}]}},"scopeSpans":{spans}}}]}}"#)
    }
}

/// The trace, the span and whether it is sampled, of a `traceparent` of version 00, or of a later one that begins alike.
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

/// The trace of a request that is being answered.
#[derive(Debug)]
pub struct RequestTrace {
    trace: Trace,
    config: TraceConfig,
}

impl RequestTrace {
    /// Begins it, where traces go anywhere.
    #[inline(never)] // most edges never trace
    pub fn begin(request: &Request, config: &Config) -> Option<Self> {
        let config = config.traces.clone()?;
        let mut random = [0; 24];
        // A trace without an id of its own would be mixed up with others.
        getrandom::fill(&mut random).ok()?;
        let (given, began_at) = (request.header("traceparent"), clock::now().ok()?);
        let may_begin = Math::random() * 1e6 < f64::from(config.of_a_million);
        let trace = Trace::begin(given.as_deref(), began_at, may_begin, random);
        Some(Self { trace, config })
    }

    /// Its context, for core.
    pub fn traceparent(&self) -> String {
        self.trace.traceparent()
    }

    /// Has its span sent, when it is recorded and the request has a route; the response does not wait for that.
    #[inline(never)]
    pub fn end(self, request: &Request, request_id: &str, status: u16, env: &Env, context: &Context) {
        let method = &request.method;
        let route = Route::of(&request.path).filter(|route| route.allows(method));
        let (true, Some(route), Ok(at)) = (self.trace.is_sampled, route, clock::now()) else { return };
        let answered = Answered { method, route: route.template(), request_id, status, at };
        let (span, env) = (self.trace.span(answered), env.clone());
        context.wait_until(async move {
            // Nothing else depends on it.
            if let Err(error) = post(&env, &self.config, &span).await {
                worker::console_warn!("a span was not sent: {error:?}");
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
        Trace::begin(traceparent, Timestamp::from_ms(1_700_000_000_123).unwrap(), may_begin, [0xab; 24])
    }

    #[test]
    fn a_browsers_trace_goes_on_and_its_word_counts() {
        for (flags, is_sampled) in [("01", true), ("00", false), ("03", true)] {
            for may_begin in [true, false] {
                let trace = begin(Some(&format!("00-{TRACE}-{SPAN}-{flags}")), may_begin);
                assert_eq!((trace.parent_id.as_str(), trace.is_sampled), (SPAN, is_sampled));
                let flag = u8::from(is_sampled);
                assert_eq!(trace.traceparent(), format!("00-{TRACE}-abababababababab-0{flag}"));
            }
        }
        assert!(begin(Some(&format!("01-{TRACE}-{SPAN}-01-more")), false).is_sampled, "a later version");
    }

    #[test]
    fn without_a_context_that_can_be_read_a_trace_begins_if_it_may() {
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
    fn a_span_tells_of_its_request() {
        let trace = begin(Some(&format!("00-{TRACE}-{SPAN}-01")), false);
        let at = Timestamp::from_ms(1_700_000_000_456).unwrap();
        let of = Answered { method: "GET", route: "/livez", request_id: "r-1", status: 503, at };
        let span: Value = serde_json::from_str(&trace.span(of)).unwrap();
        let span = &span["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
        assert_eq!((&span["traceId"], &span["parentSpanId"]), (&json!(TRACE), &json!(SPAN)));
        assert_eq!(span["startTimeUnixNano"], "1700000000123000000");
        assert_eq!(span["endTimeUnixNano"], "1700000000456000000");
        assert_eq!((&span["name"], &span["status"]["code"]), (&json!("GET /livez"), &json!(2)));
        assert_eq!(span["attributes"][0]["value"]["stringValue"], "r-1");
    }
}
