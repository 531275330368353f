//! Invalid input is rejected and changes no counter.

use std::time::{Duration, Instant};

use serde_json::json;
use support::core_client::API_TOKEN;
use support::raw::{Raw, claim_head, claim_request, status};
use support::{Core, RedisView, Reply, Snapshot, Sql, claim_body, promised};

/// A core with one campaign and one claim, and a snapshot of the counters before the test.
struct CounterGuard {
    core: Core,
    redis: RedisView,
    sql: Sql,
    before: Snapshot,
}

impl CounterGuard {
    async fn start() -> Self {
        let core = Core::start().await;
        core.create("demo", json!({"total": 100, "per_user": 50, "per_user_per_day": 40, "per_claim": 10}))
            .await;
        core.claim("demo", "alice", "won").await.expect(201);
        let (redis, sql) = (core.redis().await, core.sql());
        sql.until("demo", 1).await;
        let before = Snapshot::take(&redis, &sql, "demo").await;
        Self { core, redis, sql, before }
    }

    /// Posts `body` as a claim.
    async fn claim(&self, body: impl Into<reqwest::Body>) -> Reply {
        self.post("/internal/v1/claims", "application/json", body).await
    }

    async fn post(&self, path: &str, content_type: &str, body: impl Into<reqwest::Body>) -> Reply {
        let client = self.core.client();
        let request = client.request(reqwest::Method::POST, &self.core.url(path)).bearer_auth(API_TOKEN);
        client.send(request.header("Content-Type", content_type).body(body)).await.expect("an answer")
    }

    /// Sends raw bytes, closes the sending side, and returns the status of the response, if any.
    async fn raw(&self, bytes: impl AsRef<[u8]>) -> Option<u16> {
        let mut raw = Raw::connect(self.core.listen()).await;
        raw.send(bytes).await;
        raw.finish().await;
        status(&raw.read_to_end().await)
    }

    /// Checks that no counter has changed and that other callers are served.
    async fn assert_unchanged(&self) {
        let after = Snapshot::take(&self.redis, &self.sql, "demo").await;
        assert_eq!(after, self.before);
        self.core.claim("demo", "alice", "won").await.expect(200);
        self.core.claim("demo", "bob", "after").await.expect(201);
    }
}

/// Returns a claim's body in which `member` has the JSON value `value`.
fn body_with(member: &str, value: &str) -> String {
    let mut parts = vec![
        ("campaign_id", "\"demo\"".to_owned()),
        ("user_id", "\"mallory\"".to_owned()),
        ("idempotency_key", "\"bad\"".to_owned()),
        ("quantity", "1".to_owned()),
    ];
    for part in &mut parts {
        if part.0 == member {
            value.clone_into(&mut part.1);
        }
    }
    let members: Vec<_> = parts.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    format!("{{{}}}", members.join(","))
}

#[tokio::test]
async fn malformed_bodies_are_rejected() {
    let guard = CounterGuard::start().await;
    let good = body_with("", "");
    for length in 0..good.len() {
        guard.claim(good[..length].to_owned()).await.refused(400, "invalid_request");
    }
    for padding in [4096, 5000] {
        let long = format!("{good}{}", " ".repeat(padding));
        guard.claim(long).await.refused(413, "payload_too_large");
    }
    // Core stops reading, so a client that keeps writing may see a reset connection instead of the response.
    let answer = guard.raw(claim_request(&" ".repeat(1_000_000))).await;
    assert!(answer.is_none_or(|status| status == 413), "{answer:?}");
    let path = "/internal/v1/claims";
    for content_type in ["text/plain", "application/x-www-form-urlencoded", "application/jsonx", ""] {
        guard.post(path, content_type, good.clone()).await.refused(415, "unsupported_media_type");
    }
    let compressed = guard.core.client().request(reqwest::Method::POST, &guard.core.url(path));
    let compressed = compressed.bearer_auth(API_TOKEN).header("Content-Type", "application/json");
    let compressed = compressed.header("Content-Encoding", "gzip").body(good.clone());
    guard.core.client().send(compressed).await.unwrap().refused(415, "unsupported_media_type");
    guard.assert_unchanged().await;
}

#[tokio::test]
async fn a_body_of_4_kib_is_accepted_but_not_one_byte_more() {
    let guard = CounterGuard::start().await;
    let good = body_with("", "");
    guard.claim(format!("{good}{}", " ".repeat(4096 - good.len()))).await.expect(201);
    guard.claim(format!("{good}{}", " ".repeat(4097 - good.len()))).await.refused(413, "payload_too_large");
}

#[tokio::test]
async fn wrong_content_lengths_are_rejected() {
    let guard = CounterGuard::start().await;
    let (head, good) = (claim_head(), body_with("", ""));
    let length = good.len();
    for (what, request) in [
        ("too short", format!("{head}Content-Length: {}\r\n\r\n{good}", length - 5)),
        ("too long, then the end", format!("{head}Content-Length: {}\r\n\r\n{good}", length + 5)),
        ("negative", format!("{head}Content-Length: -1\r\n\r\n{good}")),
        ("not a number", format!("{head}Content-Length: ten\r\n\r\n{good}")),
        (
            "two different values",
            format!("{head}Content-Length: 3\r\nContent-Length: {length}\r\n\r\n{good}"),
        ),
        ("none", format!("{head}\r\n{good}")),
        ("huge", format!("{head}Content-Length: 99999999999\r\n\r\n{good}")),
    ] {
        let answer = guard.raw(request).await;
        assert!(answer.is_none_or(|status| (400..500).contains(&status)), "{what}: {answer:?}");
    }
    guard.assert_unchanged().await;
}

#[tokio::test]
async fn ambiguous_body_lengths_are_rejected() {
    let guard = CounterGuard::start().await;
    let (head, good) = (claim_head(), body_with("", ""));
    let hidden = claim_request(&body_with("idempotency_key", "\"hidden\""));
    let chunk = format!("{:x}\r\n{good}\r\n0\r\n\r\n", good.len());
    for (what, request) in [
        (
            "length, then chunked",
            format!("{head}Content-Length: {}\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}", good.len()),
        ),
        (
            "chunked, then length",
            format!("{head}Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n{chunk}"),
        ),
        (
            "an embedded request",
            format!("{head}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"),
        ),
        ("only chunked", format!("{head}Transfer-Encoding: chunked\r\n\r\n{chunk}")),
        ("unknown coding", format!("{head}Transfer-Encoding: zip\r\n\r\n{good}")),
        ("chunked not last", format!("{head}Transfer-Encoding: chunked, gzip\r\n\r\n{chunk}")),
        ("an invalid chunk", format!("{head}Transfer-Encoding: chunked\r\n\r\nzz\r\n{good}")),
    ] {
        let answer = guard.raw(request).await;
        assert!(answer.is_none_or(|status| (400..500).contains(&status)), "{what}: {answer:?}");
    }
    guard.assert_unchanged().await;
}

#[tokio::test]
async fn endless_chunks_are_rejected() {
    let guard = CounterGuard::start().await;
    let mut raw = Raw::connect(guard.core.listen()).await;
    raw.send(format!("{}Transfer-Encoding: chunked\r\n\r\n", claim_head())).await;
    let started = Instant::now();
    let chunk = format!("{:x}\r\n{}\r\n", 1000, " ".repeat(1000));
    while raw.send(&chunk).await {
        assert!(started.elapsed() < promised(Duration::from_secs(15)), "endless chunks are never rejected");
        tokio::task::yield_now().await;
    }
    guard.assert_unchanged().await;
}

#[tokio::test]
async fn invalid_json_is_rejected() {
    let guard = CounterGuard::start().await;
    let deep = format!("{}1{}", "[".repeat(1000), "]".repeat(1000));
    let good = body_with("", "");
    for body in [
        body_with("quantity", "1,\"quantity\":2"),
        body_with("user_id", "\"a\",\"user_id\":\"b\""),
        body_with("quantity", "1,\"extra\":true"),
        body_with("quantity", &deep),
        body_with("user_id", r#""\ud800""#),
        body_with("quantity", "NaN"),
        body_with("quantity", "Infinity"),
        body_with("quantity", "1e400"),
        body_with("quantity", "1e-1"),
        body_with("quantity", "-0"),
        body_with("quantity", "9007199254740993"),
        body_with("quantity", "18446744073709551616"),
        body_with("quantity", "\"1\""),
        body_with("quantity", "1.5"),
        body_with("quantity", "01"),
        body_with("quantity", "+1"),
        body_with("quantity", "null"),
        body_with("quantity", "[]"),
        body_with("quantity", "{}"),
        body_with("quantity", "true"),
        body_with("campaign_id", "null"),
        body_with("user_id", "7"),
        body_with("idempotency_key", "[\"k\"]"),
        format!("{good}{good}"),
        format!("[{good}]"),
        r#"["demo","mallory",1,"bad"]"#.to_owned(),
        "null".to_owned(),
        "[]".to_owned(),
        "{}".to_owned(),
        "\"{}\"".to_owned(),
        deep,
        "{'campaign_id':'demo'}".to_owned(),
    ] {
        let answer = guard.claim(body.clone()).await;
        assert_eq!((answer.status, answer.code().as_str()), (400, "invalid_request"), "{body}");
    }
    let latin = [&b"{\"campaign_id\":\"demo\",\"user_id\":\"\xff\",\"idempotency_key\":\"k\"}"[..]].concat();
    guard.claim(latin).await.refused(400, "invalid_request");
    guard.assert_unchanged().await;
}

#[tokio::test]
async fn numbers_like_1_0_and_a_byte_order_mark_are_accepted() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 10.0, "per_user": 1e1})).await;
    let claim = |quantity: &str| {
        let body = body_with("quantity", quantity);
        let client = core.client();
        let request = client.request(reqwest::Method::POST, &core.url("/internal/v1/claims"));
        let request = request.bearer_auth(API_TOKEN).header("Content-Type", "application/json");
        async move { client.send(request.body(format!("\u{feff}{body}"))).await.expect("an answer") }
    };
    assert_eq!(claim("2.0").await.expect(201).json()["claim"]["quantity"], 2);
    for same in ["2", "2e0"] {
        claim(same).await.expect(200);
    }
    assert_eq!(core.campaign("demo").await["remaining"], 8);
}

#[tokio::test]
async fn quantities_out_of_range_are_rejected() {
    let guard = CounterGuard::start().await;
    for quantity in ["0", "-1", "-9007199254740991", "11", "4294967295", "4294967296", "9007199254740991"] {
        let answer = guard.claim(body_with("quantity", quantity)).await.refused(422, "quantity_out_of_range");
        assert_eq!(answer.json()["field"], "quantity", "{quantity}");
    }
    guard.assert_unchanged().await;
}

/// Returns invalid ids as JSON strings.
fn bad_ids() -> Vec<String> {
    let mut ids: Vec<String> = [
        "",
        "a b",
        "{}",
        "{demo}",
        ":",
        "*",
        "a.b",
        "é",
        "日本",
        "../",
        "..%2f",
        "%00",
        "a\u{0}b",
        "a\r\nb",
        "a\tb",
        "\u{200b}a",
        "a'--",
    ]
    .map(|id| json!(id).to_string())
    .to_vec();
    ids.push(json!("a".repeat(65)).to_string());
    ids.push(json!("a".repeat(4000 / 2)).to_string());
    ids
}

#[tokio::test]
async fn invalid_ids_in_a_body_are_rejected() {
    let guard = CounterGuard::start().await;
    for member in ["campaign_id", "user_id", "idempotency_key"] {
        for id in bad_ids() {
            let answer = guard.claim(body_with(member, &id)).await.refused(400, "invalid_request");
            assert_eq!(answer.json()["field"], member, "{id}");
        }
    }
    guard.assert_unchanged().await;
}

#[tokio::test]
async fn invalid_ids_in_a_path_are_rejected() {
    let guard = CounterGuard::start().await;
    let token = guard.core.admin_token();
    for id in [
        "%20",
        "a%20b",
        "%7B%7D",
        "{}",
        ":",
        "*",
        "%C3%A9",
        "..",
        "../",
        "..%2F",
        "%2e%2e%2f",
        "%00",
        "a%00b",
        "%0d%0a",
        "demo%",
        "demo;x",
        &"a".repeat(65),
        &"a".repeat(5000),
        "demo.alice.x",
        "demo.alice.",
        "....",
    ] {
        for (address, path) in [
            (guard.core.listen(), format!("/internal/v1/claims/{id}")),
            (guard.core.listen(), format!("/internal/v1/campaigns/{id}")),
            (guard.core.admin_listen(), format!("/admin/v1/campaigns/{id}")),
            (guard.core.admin_listen(), format!("/admin/v1/campaigns/{id}/claims")),
        ] {
            let mut raw = Raw::connect(address).await;
            let head = format!(
                "GET {path} HTTP/1.1\r\nHost: core\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\r\n"
            );
            raw.send(head).await;
            let answer = raw.read_to_end().await;
            let code = status(&answer);
            assert!(matches!(code, Some(400 | 404)), "{path}: {}", String::from_utf8_lossy(&answer));
        }
    }
    guard.assert_unchanged().await;
}

#[tokio::test]
async fn missing_overlong_and_reused_keys_are_rejected() {
    let guard = CounterGuard::start().await;
    guard
        .claim(body_with("idempotency_key", &json!("k".repeat(65)).to_string()))
        .await
        .refused(400, "invalid_request");
    let missing = json!({"campaign_id": "demo", "user_id": "mallory"}).to_string();
    let missing = guard.claim(missing).await.refused(400, "invalid_request").json();
    assert!(missing["detail"].as_str().unwrap().contains("idempotency_key"), "{missing}");
    guard
        .claim(claim_body("demo", "alice", "won", 2).to_string())
        .await
        .refused(422, "idempotency_key_reused");
    let after = Snapshot::take(&guard.redis, &guard.sql, "demo").await;
    assert_eq!(after, guard.before);
    let other = guard.core.claim("demo", "mallory", "won").await.expect(201);
    assert_eq!(
        other.json()["claim"]["user_id"],
        "mallory",
        "the same key of a different user makes a separate claim"
    );
}
