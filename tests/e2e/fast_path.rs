//! The fast path, which bypasses the router, gives the same responses as the router, byte for byte.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use claimgate_core::config::sqlite_url;
use claimgate_core::credentials::{Caller, Credentials, Tokens};
use claimgate_core::domain::campaign_change::NewCampaign;
use claimgate_core::engine::Engine;
use claimgate_core::http::authentication::Authenticator;
use claimgate_core::http::listeners::internal_router;
use claimgate_core::http::serve;
use claimgate_core::http::state::AppState;
use claimgate_core::http::threads::Threads;
use claimgate_core::redis_address::RedisAddress;
use claimgate_core::store::sql::SqlStore;
use claimgate_core::{clock, metrics};
use claimgate_shared::http::BODY_BYTES_MAX;
use serde_json::{Value, json};
use support::core_client::API_TOKEN;
use support::raw::{Raw, claim_request, status};
use support::times::{from_now, zone_far_from_midnight};
use support::{Servers, claim_body};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Prefixes of the campaigns used through the router and the fast path. The prefixes have equal length, so
/// that the responses do too.
const PREFIXES: [&str; 2] = ["slow-", "fast-"];

/// One engine behind two listeners: one with only the router, and one with threads that use the fast path.
struct BothPaths {
    state: AppState,
    listen: [SocketAddr; 2],
    _running: (watch::Sender<bool>, Servers, TempDir),
}

impl BothPaths {
    async fn start(concurrency_max: usize) -> Self {
        static METRICS: OnceLock<metrics::PrometheusHandle> = OnceLock::new();
        let metrics = METRICS.get_or_init(|| metrics::install().unwrap()).clone();
        // The comparison does not need durable writes.
        let redis = Servers::start_with(&[("appendfsync", "no")], &[]).await;
        let directory = tempfile::tempdir().unwrap();
        let sql = SqlStore::open(&sqlite_url(&directory.path().join("claimgate.sqlite"))).await.unwrap();
        let engine =
            Engine::builder(sql)
                .archive_after(Duration::MAX)
                .on(RedisAddress::parse(&redis.url(), None).unwrap());
        let mut tokens = Tokens::default();
        tokens.add(Caller::BackEnd("shop".to_owned()), API_TOKEN);
        let authenticator = Authenticator::new(Credentials { tokens, edge_keys: Vec::new() });
        for (name, rules) in campaigns() {
            for prefix in PREFIXES {
                let mut body =
                    json!({"id": format!("{prefix}{name}"), "name": name, "starts_at": from_now(-60)});
                body.as_object_mut().unwrap().extend(rules.as_object().unwrap().clone());
                let campaign = NewCampaign::parse(body.to_string().as_bytes()).unwrap();
                engine.changes.create(campaign, "test", clock::now()).await.unwrap();
            }
        }
        let state = AppState::new(&engine, authenticator, metrics, concurrency_max);
        state.set_serving(true);
        let (stop, stopped) = watch::channel(false);
        let (router, fast) = (listener().await, listener().await);
        let listen = [router.local_addr().unwrap(), fast.local_addr().unwrap()];
        tokio::spawn(serve(router, internal_router(state.clone()), stopped.clone()));
        tokio::spawn(Arc::new(Threads::start(&state, 2).unwrap()).serve(fast, stopped));
        Self { state, listen, _running: (stop, redis, directory) }
    }

    /// Sends the same bytes on both paths, with the prefix replaced, and compares the responses.
    async fn compare(&self, what: &str, expected: u16, request: &str) {
        let mut answers = Vec::new();
        for (address, prefix) in self.listen.iter().zip(PREFIXES) {
            let mut raw = Raw::connect(*address).await;
            raw.send(request.replace(PREFIXES[0], prefix)).await;
            let answer = raw.read_to_end().await;
            assert_eq!(status(&answer), Some(expected), "{what}: {}", String::from_utf8_lossy(&answer));
            answers.push(String::from_utf8(answer).unwrap().replace(prefix, PREFIXES[0]));
        }
        let [router, fast] = [&answers[0], &answers[1]].map(|answer| without_variable_parts(answer));
        assert_eq!(router, fast, "{what}");
    }
}

async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

fn campaigns() -> [(&'static str, Value); 6] {
    let zone = zone_far_from_midnight();
    let limits = json!({"total": 100, "per_claim": 2, "per_user_per_day": 3});
    [
        ("open", json!({"time_zone": zone, "limits": limits})),
        ("user", json!({"limits": {"per_user": 1}})),
        ("few", json!({"limits": {"total": 1}})),
        ("held", json!({"limits": {"total": 5}, "hold_seconds": 600})),
        ("later", json!({"starts_at": from_now(3600)})),
        ("over", json!({"ends_at": from_now(-1)})),
    ]
}

/// Masks the parts of a response that differ between calls: times and ids.
fn without_variable_parts(answer: &str) -> String {
    let mut text = answer.to_owned();
    for (start, end) in [
        ("\ndate: ", "\r"),
        ("\nx-request-id: ", "\r"),
        ("\nretry-after: ", "\r"),
        ("\"instance\":\"", "\""),
        ("\"id\":\"", "\""),
        ("\"claimed_at\":\"", "\""),
        ("\"expires_at\":\"", "\""),
        ("\"starts_at\":\"", "\""),
    ] {
        let mut parts = text.split(start);
        let mut covered = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (_, rest) = part.split_once(end).unwrap();
            covered.extend([start, "*", end, rest]);
        }
        text = covered;
    }
    text
}

fn claim(campaign: &str, user: &str, key: &str, quantity: u32) -> String {
    claim_request(&claim_body(&format!("slow-{campaign}"), user, key, quantity).to_string())
}

#[tokio::test]
async fn both_paths_make_the_same_decisions() {
    let paths = BothPaths::start(100).await;
    let good = claim("open", "bob", "k1", 2);
    let marked = |request: String| request.replacen("Host", "Claimgate-Attempt: 1\r\nHost", 1);
    let kept = good.replacen("Connection: close\r\n", "", 1);
    for (what, expected, request) in [
        ("granted", 201, good.clone()),
        ("replayed", 200, good.clone()),
        ("granted with a request id", 201, {
            claim("open", "eve", "k", 1).replacen("Host", "X-Request-Id: given\r\nHost", 1)
        }),
        ("granted on a first try", 201, marked(claim("open", "dan", "k", 1))),
        ("two on one connection", 200, kept.clone() + &claim("open", "fay", "k", 1)),
        ("held", 201, claim("held", "bob", "k", 1)),
        ("per claim", 422, claim("open", "amy", "k", 3)),
        ("per user and day", 409, claim("open", "bob", "k2", 2)),
        ("a user's only claim", 201, claim("user", "bob", "k", 1)),
        ("per user", 409, claim("user", "bob", "k2", 1)),
        ("the last unit", 201, claim("few", "bob", "k", 1)),
        ("sold out", 409, claim("few", "amy", "k", 1)),
        ("sold out on a first try", 409, marked(claim("few", "cat", "k", 1))),
        ("not open yet", 403, claim("later", "bob", "k", 1)),
        ("over", 403, claim("over", "bob", "k", 1)),
        ("no such campaign", 404, claim("none", "bob", "k", 1)),
    ] {
        paths.compare(what, expected, &request).await;
    }
}

#[tokio::test]
async fn both_paths_reject_the_same_requests() {
    let paths = BothPaths::start(100).await;
    let good = claim("open", "bob", "k", 1);
    let (head, body) = good.split_once("\r\n\r\n").unwrap();
    let with = |from: &str, to: &str| good.replacen(from, to, 1);
    let of_body = |body: &str| claim_request(body);
    let length = format!("Content-Length: {}", body.len());
    let chunked = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let signed = "X-Claimgate-Key: k1\r\nX-Claimgate-Timestamp: 1\r\nX-Claimgate-User: bob\r\n\
                  X-Claimgate-Signature: x\r\n";
    for (what, expected, request) in [
        ("invalid JSON", 400, of_body("{")),
        ("wrong type", 400, of_body(r#"{"campaign_id": 7}"#)),
        ("quantity 0", 422, with("\"quantity\":1", "\"quantity\":0")),
        ("an empty body", 400, of_body("")),
        ("too large", 413, of_body(&"x".repeat(BODY_BYTES_MAX + 1))),
        ("a different content type", 415, with("application/json", "text/plain")),
        ("compressed", 415, with("Host", "Content-Encoding: gzip\r\nHost")),
        ("chunked", 400, format!("{}\r\n\r\n{chunked}", head.replace(&length, "Transfer-Encoding: chunked"))),
        ("no token", 401, with("Authorization", "X-Authorization")),
        ("a different token", 401, with("Bearer ", "Bearer x")),
        ("a bad signature", 401, with("Host", &format!("{signed}Host"))),
        ("a query", 201, with("/claims", "/claims?a=b")),
        ("an absolute path", 200, with(" /internal", " http://core/internal")),
        ("a trailing slash", 404, with("/claims", "/claims/")),
        ("two slashes", 404, with("/internal", "//internal")),
        ("an encoded letter", 404, with("/claims", "/%63laims")),
        ("GET", 405, with("POST", "GET")),
        ("PUT", 405, with("POST", "PUT")),
        ("HEAD", 405, with("POST", "HEAD")),
        ("OPTIONS", 405, with("POST", "OPTIONS")),
        ("a different path", 404, with("/claims", "/claim")),
        (
            "a lookup of an unknown claim",
            404,
            with("POST /internal/v1/claims", "GET /internal/v1/claims/none"),
        ),
        ("liveness", 200, with("POST /internal/v1/claims", "GET /livez")),
    ] {
        paths.compare(what, expected, &request).await;
    }
    paths.state.set_serving(false);
    paths.compare("while core is not serving", 503, &good).await;
}

#[tokio::test]
async fn both_paths_reject_an_overload_alike() {
    let paths = BothPaths::start(0).await;
    paths.compare("overload", 503, &claim("open", "bob", "k", 1)).await;
    paths
        .compare(
            "overload of another call",
            503,
            &claim("open", "bob", "k", 1).replacen("/claims", "/claims/x", 1),
        )
        .await;
}
