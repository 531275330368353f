//! Traces: edge and core send spans to a collector, from the browser's request to the claim's row.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use futures_util::future::join_all;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use prost::Message as _;
use reqwest::Method;
use serde_json::{Value, json};
use support::core_client::API_TOKEN;
use support::edge::{Runtime, World};
use support::process::{Signal, free_address, signal_pid};
use support::wait::holds;
use support::{Core, CoreOptions, Reply, SOON, claim_body, eventually};
use tokio::net::TcpListener;

use crate::edge::{run, run_alone};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const BROWSER: &str = "00f067aa0ba902b7";

/// A span received by the collector.
#[derive(Debug, Clone)]
pub struct Span {
    pub service: String,
    name: String,
    trace: String,
    id: String,
    parent: String,
    /// Ids of the linked spans.
    links: Vec<String>,
    attributes: Value,
}

/// A collector of OTLP over HTTP, as JSON and as protobuf.
#[derive(Debug, Clone, Default)]
pub struct Collector(Arc<Mutex<Vec<Span>>>);

impl Collector {
    pub async fn start() -> (Self, String) {
        let collector = Self::default();
        let listener = TcpListener::bind(free_address()).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let routes = Router::new().route("/v1/traces", post(take)).with_state(collector.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        (collector, url)
    }

    pub fn spans(&self) -> Vec<Span> {
        self.0.lock().unwrap().clone()
    }

    /// Waits for the span of `service` with this name in the trace.
    async fn span(&self, trace: &str, service: &str, name: &str) -> Span {
        eventually(SOON, || async {
            let spans = self.spans();
            let found = |span: &&Span| span.trace == trace && span.service == service && span.name == name;
            spans.iter().find(found).cloned().ok_or_else(|| format!("no {name} of {service} in {spans:#?}"))
        })
        .await
    }
}

async fn take(State(collector): State<Collector>, headers: HeaderMap, body: Bytes) -> StatusCode {
    // Both formats have the same structure, except that ids are hexadecimal in JSON.
    let request: ExportTraceServiceRequest = if headers["content-type"] == "application/json" {
        serde_json::from_slice(&body).expect("OTLP's JSON")
    } else {
        ExportTraceServiceRequest::decode(body).expect("OTLP's protobuf")
    };
    let mut spans = collector.0.lock().unwrap();
    for resource in request.resource_spans {
        let service = attributes(&resource.resource.expect("a resource").attributes)["service.name"].clone();
        for span in resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            assert!(span.start_time_unix_nano <= span.end_time_unix_nano, "{span:?}");
            spans.push(Span {
                service: service.as_str().expect("a name").to_owned(),
                name: span.name,
                trace: hex(&span.trace_id),
                id: hex(&span.span_id),
                parent: hex(&span.parent_span_id),
                links: span.links.iter().map(|link| hex(&link.span_id)).collect(),
                attributes: attributes(&span.attributes),
            });
        }
    }
    StatusCode::OK
}

fn attributes(list: &[opentelemetry_proto::tonic::common::v1::KeyValue]) -> Value {
    use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
    let value = |any: &Any| match any {
        Any::StringValue(text) => json!(text),
        Any::IntValue(number) => json!(number),
        other => json!(format!("{other:?}")),
    };
    let of = |entry: &opentelemetry_proto::tonic::common::v1::KeyValue| {
        Some((entry.key.clone(), value(entry.value.as_ref()?.value.as_ref()?)))
    };
    list.iter().filter_map(of).collect::<serde_json::Map<_, _>>().into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

pub fn traced(url: &str, ratio: &str) -> CoreOptions {
    let options = CoreOptions::default().with("CLAIMGATE_OTLP_URL", url).with("CLAIMGATE_TRACE_RATIO", ratio);
    // Send spans soon, because the tests wait for them.
    options.with("OTEL_BSP_SCHEDULE_DELAY", "50")
}

/// Makes a claim at core with the browser's span in `trace` as its parent; `flags` says whether it is sampled.
async fn claim(core: &Core, user: &str, trace: &str, flags: &str) -> Reply {
    let body = claim_body("demo", user, "k", 1);
    let request = core.client().request(Method::POST, &core.url("/internal/v1/claims"));
    let request = request.bearer_auth(API_TOKEN).json(&body);
    let request = request.header("traceparent", format!("00-{trace}-{BROWSER}-{flags}"));
    core.client().send(request).await.expect("an answer")
}

fn trace_id(number: usize) -> String {
    format!("{number:032x}")
}

#[test]
fn a_claim_is_traced_from_the_browser_to_its_row() {
    run(async {
        let (collector, url) = Collector::start().await;
        let core = traced(&url, "0").start().await;
        let variables = [("OTLP_URL", url.as_str()), ("TRACE_RATIO", "0")];
        let world = World::before(core, Runtime::from_env(), "traces", "test", &variables).await;
        world.core.create("demo", json!({"total": 100})).await;
        // If a claim was retried, its trace has the spans of each try. Then another user claims in another trace.
        let mut traces = 0;
        let (trace, reply) = eventually(SOON, || {
            traces += 1;
            let (world, trace, user) = (&world, trace_id(traces), format!("alice{traces}"));
            async move {
                let request = world.keyed_request("demo", &user, "k");
                let request = request.header("traceparent", format!("00-{trace}-{BROWSER}-01"));
                let reply = world.send(request).await.expect(201);
                holds(reply.repeats == 0, || format!("retried: {reply:?}")).map(|()| (trace, reply))
            }
        })
        .await;
        let edge = collector.span(&trace, "claimgate-edge", "POST /v1/campaigns/{id}/claims").await;
        let request = collector.span(&trace, "claimgate-core", "POST /internal/v1/claims").await;
        let decided = collector.span(&trace, "claimgate-core", "decide claims").await;
        let stored = collector.span(&trace, "claimgate-core", "store claims").await;
        assert_eq!(edge.parent, BROWSER);
        assert_eq!((&request.parent, &decided.parent, &stored.parent), (&edge.id, &request.id, &decided.id));
        for span in [&edge, &request] {
            assert_eq!(span.attributes["claimgate.request_id"], reply.header("x-request-id"), "{span:?}");
            assert_eq!(span.attributes["http.response.status_code"], 201, "{span:?}");
        }
        for span in [&decided, &stored] {
            let about = json!({"claimgate.campaign": "demo", "claimgate.claims": 1});
            assert_eq!(span.attributes, about, "{span:?}");
        }
        // With a sampling ratio of 0, a claim without a trace context is traced neither at the edge nor at
        // core.
        world.claim("demo", "bob", "k").await.expect(201);
        traces += 1;
        let request = world.keyed_request("demo", "carol", "k");
        let request = request.header("traceparent", format!("00-{}-{BROWSER}-01", trace_id(traces)));
        world.send(request).await.expect(201);
        collector.span(&trace_id(traces), "claimgate-core", "store claims").await;
        let spans = collector.spans();
        let traces: Vec<_> = (1..=traces).map(trace_id).collect();
        assert!(spans.iter().all(|span| traces.contains(&span.trace)), "{spans:#?}");
        let spans_text = format!("{spans:?}");
        assert!(
            !spans_text.contains("alice") && !spans_text.contains("carol"),
            "spans must not name users: {spans_text}"
        );
    });
}

#[test]
fn unauthenticated_callers_can_force_only_a_few_spans() {
    run_alone(async {
        let (collector, url) = Collector::start().await;
        let core = traced(&url, "0").start().await;
        let variables = [("OTLP_URL", url.as_str()), ("TRACE_RATIO", "0")];
        let world = World::before(core, Runtime::from_env(), "traces-refused", "test", &variables).await;
        world.core.create("demo", json!({"total": 10})).await;
        let began = Instant::now();
        // Unauthenticated calls to the edge and to core.
        // Concurrently, because the edge may sample 10 calls in each second that the calls take.
        let calls = (0..100).map(|number| {
            let (world, parent) = (&world, format!("00-{}-{BROWSER}-01", trace_id(number + 1)));
            async move {
                let request = world.request("POST", "/v1/campaigns/demo/claims");
                let request =
                    request.header("Idempotency-Key", "k").header("traceparent", &parent).json(&json!({}));
                world.send(request).await.refused(401, "unauthenticated");
                let request =
                    world.core.client().request(Method::POST, &world.core.url("/internal/v1/claims"));
                let request =
                    request.header("traceparent", &parent).json(&claim_body("demo", "mallory", "k", 1));
                world.core.client().send(request).await.unwrap().refused(401, "unauthenticated");
            }
        });
        join_all(calls).await;
        let seconds = began.elapsed().as_secs() + 2;
        // Spans are sent in order, so once this span has been received, so have the earlier ones.
        claim(&world.core, "alice", TRACE, "01").await.expect(201);
        collector.span(TRACE, "claimgate-core", "store claims").await;
        let spans = collector.spans();
        let of = |service: &str| {
            spans.iter().filter(|span| span.service == service && span.trace != TRACE).count()
        };
        assert_eq!(of("claimgate-core"), 0, "spans of unauthenticated callers");
        let forced = u64::try_from(of("claimgate-edge")).unwrap();
        assert!(forced <= 10 * seconds && forced < 100, "{forced} spans in {seconds} s");
    });
}

#[tokio::test]
async fn claims_in_one_redis_call_are_linked() {
    let (collector, url) = Collector::start().await;
    let core = traced(&url, "0").start().await;
    core.create("demo", json!({"total": 10_000})).await;
    let redis = core.redis().await.node_of("demo").await.pid().await;
    let mut round = 0;
    let batch = eventually(SOON, || {
        round += 1;
        let (core, collector) = (&core, &collector);
        async move {
            // While Redis is stopped, claims accumulate into a batch.
            signal_pid(redis, Signal::STOP);
            let claims = (0..16).map(|n| async move {
                claim(core, &format!("u{round}-{n}"), &trace_id(round * 100 + n + 1), "01").await
            });
            let go_on = async {
                // This call gives Redis time to continue. If no two claims were batched, the loop runs
                // another round.
                core.admin_get("/metrics").await;
                signal_pid(redis, Signal::CONT);
            };
            let (replies, ()) = tokio::join!(join_all(claims), go_on);
            assert!(replies.iter().all(|reply| reply.is_created() || reply.status == 503), "{replies:?}");
            let spans = collector.spans();
            let linked = spans.iter().find(|span| span.name == "decide claims" && !span.links.is_empty());
            linked.cloned().ok_or_else(|| format!("no two claims were batched: {} spans", spans.len()))
        }
    })
    .await;
    assert!(batch.attributes["claimgate.claims"].as_u64().unwrap() > batch.links.len() as u64);
    eventually(SOON, || async {
        let spans = collector.spans();
        let back = |id: &String| spans.iter().any(|span| span.id == *id && span.links.contains(&batch.id));
        holds(batch.links.iter().all(back), || format!("{batch:?} is not linked from {spans:#?}"))
    })
    .await;
    let first = collector
        .spans()
        .into_iter()
        .find(|span| span.id == batch.parent)
        .expect("the span of the first claim");
    assert_eq!((first.trace, first.name.as_str()), (batch.trace, "POST /internal/v1/claims"));
}

#[tokio::test]
async fn a_confirmation_is_traced_and_unsampled_calls_are_not() {
    let (collector, url) = Collector::start().await;
    let core = traced(&url, "1").start().await;
    core.create("demo", json!({"total": 10})).await;
    core.patch("demo", json!({"hold_seconds": 600})).await.expect(200);
    let held = claim(&core, "alice", TRACE, "00").await.expect(201).json();
    let id = held["claim"]["id"].as_str().expect("an id");
    let request =
        core.client().request(Method::POST, &core.url(&format!("/internal/v1/claims/{id}/confirm")));
    let request =
        request.bearer_auth(API_TOKEN).header("traceparent", format!("00-{}-{BROWSER}-01", trace_id(7)));
    core.client().send(request).await.expect("an answer").expect(200);
    let confirmed =
        collector.span(&trace_id(7), "claimgate-core", "POST /internal/v1/claims/{claim_id}/confirm").await;
    let stored = collector.span(&trace_id(7), "claimgate-core", "store claims").await;
    assert_eq!(stored.parent, confirmed.id);
    // With a ratio of 1, calls without a context are traced, but not the claim that opted out.
    collector
        .span(
            &trace_starting_with(&collector, "POST /admin/v1/campaigns").await,
            "claimgate-core",
            "POST /admin/v1/campaigns",
        )
        .await;
    assert!(collector.spans().iter().all(|span| span.trace != TRACE), "{:#?}", collector.spans());
}

/// Waits for a root span with this name, and returns its trace id.
async fn trace_starting_with(collector: &Collector, name: &str) -> String {
    eventually(SOON, || async {
        let spans = collector.spans();
        let found = spans.iter().find(|span| span.name == name && span.parent.trim_matches('0').is_empty());
        found.map(|span| span.trace.clone()).ok_or_else(|| format!("{spans:#?}"))
    })
    .await
}

#[tokio::test]
async fn claims_and_shutdown_do_not_wait_for_a_trace_collector() {
    // This listener accepts connections but never answers.
    let hangs = TcpListener::bind(free_address()).await.unwrap();
    for collector in [free_address(), hangs.local_addr().unwrap()] {
        let mut core = traced(&format!("http://{collector}"), "1").start().await;
        core.create("demo", json!({"total": 10})).await;
        for user in ["alice", "bob"] {
            claim(&core, user, TRACE, "01").await.expect(201);
        }
        core.process().signal(Signal::TERM);
        assert!(core.process().wait(SOON).await.success());
    }
}
