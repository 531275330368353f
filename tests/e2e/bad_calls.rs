//! Malformed HTTP and forged credentials are rejected before Redis or SQL is called.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;
use support::core_client::API_TOKEN;
use support::raw::{Raw, claim_head, claim_request, status};
use support::signing::{Signed, claim_id};
use support::times::now_ms;
use support::wait::holds;
use support::watched::LoggedRedis;
use support::{Core, SOON, Snapshot, claim_body, eventually, promised};

#[tokio::test]
async fn malformed_http_is_rejected_without_side_effects() {
    let (core, watched) = LoggedRedis::start().await;
    let core = &core;
    let sql = core.sql();
    let before = Snapshot::take(&watched.redis, &sql, "demo").await;
    let writes = watched.writes().await;
    let good = claim_body("demo", "mallory", "bad", 1).to_string();
    let request = claim_request(&good);
    let many = "X-Filler: 1\r\n".repeat(200);
    for (what, bytes) in [
        ("unknown method", request.replacen("POST", "BREW", 1)),
        ("no method", request.replacen("POST ", "", 1)),
        ("one huge header", request.replacen("Host", &format!("X-Huge: {}\r\nHost", "h".repeat(100_000)), 1)),
        ("many headers", request.replacen("Host", &format!("{many}Host"), 1)),
        ("a header without a name", request.replacen("Host: core", ": core", 1)),
        ("a space in a header's name", request.replacen("Host: core", "Ho st: core", 1)),
        ("a huge path", request.replacen("/claims", &format!("/claims?{}", "q".repeat(100_000)), 1)),
        ("garbage", "\u{16}\u{3}\u{1}\r\n\r\n".to_owned()),
        ("an HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned()),
        ("two authorizations", request.replacen("Host", "Authorization: Bearer other\r\nHost", 1)),
    ] {
        let mut raw = Raw::connect(core.listen()).await;
        raw.send(&bytes).await;
        raw.finish().await;
        let answer = raw.read_to_end().await;
        let got = status(&answer);
        assert!(
            got.is_none_or(|got| (400..500).contains(&got)),
            "{what}: {}",
            String::from_utf8_lossy(&answer)
        );
    }
    assert!(!watched.received_script_naming("mallory").await, "a malformed request reached Redis");
    assert_eq!(watched.writes().await, writes, "number of writes reported by Redis");
    assert_eq!(Snapshot::take(&watched.redis, &sql, "demo").await, before);
    core.claim("demo", "bob", "after").await.expect(201);
}

#[tokio::test]
async fn a_hundred_headers_are_accepted_and_one_more_is_rejected() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 10})).await;
    let request = claim_request(&claim_body("demo", "alice", "k", 1).to_string());
    let known = request.split("\r\n\r\n").next().unwrap().lines().count() - 1;
    for (headers, expected) in [(101, 431), (100, 201)] {
        let fillers = "X-Filler: 1\r\n".repeat(headers - known);
        let mut raw = Raw::connect(core.listen()).await;
        raw.send(request.replacen("Host", &format!("{fillers}Host"), 1)).await;
        assert_eq!(status(&raw.read_to_end().await), Some(expected), "{headers} headers");
    }
}

#[tokio::test]
async fn a_slow_request_head_times_out_while_others_are_served() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 10})).await;
    let started = Instant::now();
    let mut slow = Vec::new();
    for _ in 0..20 {
        let mut raw = Raw::connect(core.listen()).await;
        assert!(raw.send("POST /internal/v1/claims HTTP/1.1\r\nHost: core\r\nX-").await);
        slow.push(raw);
    }
    core.claim("demo", "bob", "meanwhile").await.expect(201);
    for raw in &mut slow {
        let answer = raw.read_to_end().await;
        assert!(
            status(&answer).is_none_or(|code| (400..500).contains(&code)),
            "{}",
            String::from_utf8_lossy(&answer)
        );
    }
    let waited = started.elapsed();
    assert!(waited.as_secs() >= 4 && waited < Duration::from_secs(60), "timed out after {waited:?}, not 5 s");
    assert_eq!(core.campaign("demo").await["remaining"], 9);
}

#[tokio::test]
async fn a_dripping_body_times_out_while_others_are_served() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 10})).await;
    let started = Instant::now();
    let mut raw = Raw::connect(core.listen()).await;
    assert!(raw.send(format!("{}Content-Length: 4000\r\n\r\n", claim_head())).await);
    let dripping = async {
        loop {
            // Each byte counts as progress, so an idle timeout would never close the connection.
            if !raw.send(" ").await {
                break;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
            assert!(
                started.elapsed() < promised(Duration::from_secs(15)),
                "a dripping body is never rejected"
            );
        }
    };
    let meanwhile = core.claim("demo", "bob", "meanwhile");
    let ((), meanwhile) = tokio::join!(dripping, meanwhile);
    meanwhile.expect(201);
    assert!(started.elapsed() > Duration::from_secs(8), "timed out after {:?}, not 10 s", started.elapsed());
    assert_eq!(core.campaign("demo").await["remaining"], 9);
}

#[tokio::test]
async fn claims_by_unknown_callers_do_not_reach_redis_or_sql() {
    let (core, watched) = LoggedRedis::start().await;
    let core = &core;
    let sql = core.sql();
    let before = Snapshot::take(&watched.redis, &sql, "demo").await;
    let writes = watched.writes().await;
    let token = core.admin_token();
    for authorization in [
        String::new(),
        "Bearer".to_owned(),
        "Bearer ".to_owned(),
        format!("Basic {API_TOKEN}"),
        format!("bearer{API_TOKEN}"),
        format!("Bearer {API_TOKEN}x"),
        format!("Bearer {}", &API_TOKEN[1..]),
        format!("Bearer {}", API_TOKEN.to_uppercase()),
        format!("Bearer {token} {token}"),
        "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSJ9.".to_owned(),
        format!("Bearer {}", "x".repeat(8000)),
    ] {
        let body = claim_body("demo", "stranger", "k", 1);
        let request = core.client().request(Method::POST, &core.url("/internal/v1/claims")).json(&body);
        let request =
            if authorization.is_empty() { request } else { request.header("Authorization", &authorization) };
        let answer = core.client().send(request).await.unwrap();
        assert_eq!((answer.status, answer.code().as_str()), (401, "unauthenticated"), "{authorization}");
        let path = core.url(&format!("/internal/v1/claims/{}", claim_id("demo", "stranger", "k")));
        let request = core.client().request(Method::GET, &path).header("Authorization", &authorization);
        assert_eq!(core.client().send(request).await.unwrap().status, 401, "{authorization}");
        let request = core.client().request(Method::GET, &core.admin_url("/admin/v1/campaigns"));
        let request = request.header("Authorization", &authorization);
        assert_eq!(core.client().send(request).await.unwrap().status, 401, "{authorization}");
    }
    assert!(!watched.received_script_naming("stranger").await, "an unknown caller's claim reached Redis");
    assert_eq!(watched.writes().await, writes, "number of writes reported by Redis");
    assert_eq!(Snapshot::take(&watched.redis, &sql, "demo").await, before);
    core.claim("demo", "customer", "k").await.expect(201);
    assert!(watched.received_script_naming("customer").await, "the test does not observe calls to Redis");
}

/// Returns a signed claim of `stranger`, altered by `alter`.
fn altered(core: &Core, alter: impl FnOnce(&mut Signed)) -> Signed {
    let mut signed = Signed::claim(core, "demo", "stranger", "k");
    alter(&mut signed);
    signed
}

#[tokio::test]
async fn claims_with_invalid_signatures_do_not_reach_redis_or_sql() {
    let (core, watched) = LoggedRedis::start().await;
    let core = &core;
    let sql = core.sql();
    let before = Snapshot::take(&watched.redis, &sql, "demo").await;
    let writes = watched.writes().await;
    let at_offset = |by_ms: i64| (now_ms() + by_ms).to_string();
    for (what, signed) in [
        ("unknown kid", altered(core, |it| it.kid = "k2".to_owned())),
        ("no kid", altered(core, |it| it.kid = String::new())),
        ("a different key", altered(core, |it| it.key = vec![7; 32])),
        ("31 s old", altered(core, |it| it.timestamp = at_offset(-31_000))),
        // The offsets into the future and of the valid claims have room for a slow machine.
        ("45 s ahead", altered(core, |it| it.timestamp = at_offset(45_000))),
        ("no timestamp", altered(core, |it| it.timestamp = String::new())),
        ("a timestamp in seconds", altered(core, |it| it.timestamp = (now_ms() / 1000).to_string())),
        ("text instead of a timestamp", altered(core, |it| it.timestamp = "now".to_owned())),
        ("a different key in the body", altered(core, |it| it.idempotency_key = "other".to_owned())),
        ("an invalid user id", altered(core, |it| it.user = "no body".to_owned())),
    ] {
        let answer = signed.send(core).await;
        assert_eq!((answer.status, answer.code().as_str()), (401, "unauthenticated"), "{what}");
    }
    for (what, change) in changes_after_signing() {
        let mut signed = Signed::claim(core, "demo", "stranger", "k");
        let signature = signed.signature();
        change(&mut signed);
        let answer = signed.send_signed(core, &signature).await;
        assert_eq!((answer.status, answer.code().as_str()), (401, "unauthenticated"), "{what}");
    }
    let good = Signed::claim(core, "demo", "stranger", "k");
    for signature in
        ["", "AAAA", &format!("{}=", good.signature()), &good.signature().to_uppercase(), &"A".repeat(43)]
    {
        assert_eq!(good.send_signed(core, signature).await.status, 401, "signature {signature:?}");
    }
    assert!(
        !watched.received_script_naming("stranger").await,
        "a claim with an invalid signature reached Redis"
    );
    assert_eq!(watched.writes().await, writes, "number of writes reported by Redis");
    assert_eq!(Snapshot::take(&watched.redis, &sql, "demo").await, before);
    for (key, by_ms) in [("k1", -15_000), ("k2", 29_000)] {
        let mut signed = Signed::claim(core, "demo", "customer", key);
        signed.timestamp = at_offset(by_ms);
        signed.send(core).await.expect(201);
    }
    assert!(watched.received_script_naming("customer").await, "the test does not observe calls to Redis");
}

type Change = fn(&mut Signed);

/// Changes that an attacker between edge and core might make.
fn changes_after_signing() -> [(&'static str, Change); 7] {
    [
        ("body", |it| {
            it.body = claim_body("demo", "stranger", "k", 2).to_string();
        }),
        ("a space in the body", |it| it.body.push(' ')),
        ("query", |it| it.path.push_str("?a=1")),
        ("content type", |it| it.content_type.push_str("; charset=utf-8")),
        ("user", |it| it.user.push('x')),
        ("client address", |it| it.client_ip.push('8')),
        ("time", |it| {
            it.timestamp = (it.timestamp.parse::<i64>().unwrap() + 1).to_string();
        }),
    ]
}

#[tokio::test]
async fn a_signature_allows_one_user_and_each_header_once() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 10})).await;
    let mut signed = Signed::claim(&core, "demo", "alice", "k");
    signed.user = "mallory".to_owned();
    signed.send(&core).await.refused(403, "forbidden");
    signed.user = String::new();
    signed.send(&core).await.refused(403, "forbidden");
    let signed = Signed::claim(&core, "demo", "alice", "k");
    let request = core
        .client()
        .request(Method::POST, &core.url(&signed.path))
        .header("Content-Type", "application/json");
    let request =
        request.header("X-Claimgate-Key", &signed.kid).header("X-Claimgate-Timestamp", &signed.timestamp);
    let request = request.header("X-Claimgate-User", "alice").header("X-Claimgate-User", "mallory");
    let request = request.header("X-Claimgate-Client-Ip", &signed.client_ip);
    let request = request.header("X-Claimgate-Signature", signed.signature()).body(signed.body.clone());
    assert_eq!(core.client().send(request).await.unwrap().refused(401, "unauthenticated").status, 401);
    let request = core.client().request(Method::POST, &core.url(&signed.path)).bearer_auth(API_TOKEN);
    let request = request.header("X-Claimgate-Signature", "AAAA").json(&claim_body("demo", "alice", "k", 1));
    assert_eq!(
        core.client().send(request).await.unwrap().status,
        401,
        "an invalid signature next to a valid token"
    );
    assert_eq!(core.campaign("demo").await["remaining"], 10);
}

#[tokio::test]
async fn a_resent_signed_claim_returns_the_same_claim() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 10})).await;
    let signed = Signed::claim(&core, "demo", "alice", "k");
    let first = signed.send(&core).await.expect(201).json();
    for _ in 0..3 {
        assert_eq!(signed.send(&core).await.expect(200).json()["claim"], first["claim"]);
    }
    eventually(SOON, || async {
        let remaining = core.campaign("demo").await["remaining"].clone();
        holds(remaining == 9, || remaining.to_string())
    })
    .await;
}
