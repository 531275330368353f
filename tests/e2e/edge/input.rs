//! Authentication and invalid input at the edge: rejected requests change no counter and do not reach core.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::edge::{Runtime, World, payload};
use support::inspect::Bytes;
use support::raw::{Raw, status};
use support::times::now_ms;
use support::wait::holds;
use support::watched::LoggedRedis;
use support::{Reply, SOON, SqlClaim, eventually, promised};

use super::{open_world, run};

/// Time limit until workerd closes a connection without a complete head, which takes 15 s.
const HEAD_MAX: Duration = Duration::from_secs(17);

/// A campaign's counters, users and rows.
#[derive(Debug, PartialEq, Eq)]
struct Counters {
    taken: u64,
    sequence: u64,
    users: BTreeMap<Bytes, Bytes>,
    rows: Vec<SqlClaim>,
}

async fn counters(world: &World, id: &str) -> Counters {
    let redis = world.core.redis().await;
    // Wait until the relay has removed its entry.
    eventually(SOON, || async {
        let backlog = redis.counter(id, "backlog").await;
        holds(backlog == 0, || format!("{backlog} events are pending"))
    })
    .await;
    Counters {
        taken: redis.counter(id, "taken").await,
        sequence: redis.counter(id, "sequence").await,
        users: redis.users(id).await,
        rows: world.core.sql().until(id, 1).await,
    }
}

/// Runs `attempts` and checks that the campaign's counters are unchanged.
async fn changing_nothing(id: &str, attempts: impl AsyncFnOnce(&World)) {
    let world = open_world().await;
    world.core.create(id, json!({"total": 5, "per_claim": 2})).await;
    let _ = world.claim(id, "before", "k").await.expect(201);
    let before = counters(world, id).await;
    attempts(world).await;
    assert_eq!(counters(world, id).await, before);
}

fn assert_kept_from_core(world: &World, reply: &Reply, what: &str) {
    let forwarded = world.forwarded(reply);
    assert!(
        forwarded.iter().all(|text| text.starts_with("GET /internal/v1/campaigns/")),
        "{what}: {forwarded:?}"
    );
}

/// Returns tokens that must be rejected.
fn bad_tokens(world: &World) -> Vec<(&'static str, String)> {
    let (hs256, good) = (json!({"alg": "HS256", "typ": "JWT"}), payload("alice"));
    let now_s = now_ms() / 1000;
    let with = |name: &str, value: Value| {
        let mut changed = good.clone();
        changed[name] = value;
        world.token_of(&hs256, &changed)
    };
    let without = |name: &str| {
        let mut changed = good.clone();
        changed.as_object_mut().unwrap().remove(name);
        world.token_of(&hs256, &changed)
    };
    let good_token = world.token_of(&hs256, &good);
    let parts: Vec<&str> = good_token.split('.').collect();
    let other = world.token("mallory");
    let none = world.token_of(&json!({"alg": "none"}), &good);
    let (unsigned, _) = none.rsplit_once('.').unwrap();
    let tampered = if parts[2].starts_with('A') {
        format!("B{}", &parts[2][1..])
    } else {
        format!("A{}", &parts[2][1..])
    };
    vec![
        ("empty", String::new()),
        ("no token", "nonsense".to_owned()),
        ("alg none", format!("{unsigned}.")),
        ("alg none, signed", none.clone()),
        ("alg HS512", world.token_of(&json!({"alg": "HS512"}), &good)),
        ("alg RS256", world.token_of(&json!({"alg": "RS256"}), &good)),
        ("alg in lower case", world.token_of(&json!({"alg": "hs256"}), &good)),
        ("critical extension", world.token_of(&json!({"alg": "HS256", "crit": ["exp"]}), &good)),
        (
            "a different token's payload",
            format!("{}.{}.{}", parts[0], other.split('.').nth(1).unwrap(), parts[2]),
        ),
        ("tampered signature", format!("{}.{}.{tampered}", parts[0], parts[1])),
        ("cut signature", format!("{}.{}.{}", parts[0], parts[1], &parts[2][..20])),
        ("missing exp", without("exp")),
        ("exp is a string", with("exp", json!("9999999999"))),
        ("expired", with("exp", json!(now_s - 6))),
        ("nbf ahead", with("nbf", json!(now_s + 60))),
        ("missing aud", without("aud")),
        ("wrong aud", with("aud", json!("others"))),
        ("missing iss", without("iss")),
        ("wrong iss", with("iss", json!("others"))),
        ("missing sub", without("sub")),
        ("sub is an invalid id", with("sub", json!("a b"))),
        ("too long", with("more", json!("x".repeat(8_000)))),
    ]
}

#[test]
fn no_caller_gets_in_without_a_valid_token() {
    run(changing_nothing("who", async |world| {
        let claim = || world.request("POST", "/v1/campaigns/who/claims").json(&json!({}));
        let look_up = || world.request("GET", "/v1/claims/who.alice.AAAAAAAAAAAAAAAAAAAAAA");
        let mut attempts = vec![("none", claim()), ("none", look_up())];
        for (what, token) in bad_tokens(world) {
            attempts.push((what, claim().bearer_auth(&token)));
            attempts.push((what, look_up().bearer_auth(&token)));
        }
        let token = world.token("alice");
        attempts.push(("a different scheme", claim().header("Authorization", format!("Basic {token}"))));
        attempts.push(("no scheme", claim().header("Authorization", &token)));
        attempts.push(("two tokens", claim().bearer_auth(&token).bearer_auth(&token)));
        attempts.push(("a cookie", claim().header("Cookie", format!("token={token}"))));
        for (what, request) in attempts {
            let refused = world.send(request).await;
            assert_eq!((refused.status, refused.code().as_str()), (401, "unauthenticated"), "{what}");
            assert_eq!(refused.header("www-authenticate"), "Bearer", "{what}");
            assert_kept_from_core(world, &refused, what);
        }
    }));
}

#[test]
fn a_client_cannot_forge_its_user_or_address() {
    run(async {
        let world = open_world().await;
        world.core.create("identity", json!({"total": 5})).await;
        let mut request =
            world.keyed_request("identity", "alice", "k").header("CF-Connecting-IP", "192.0.2.9");
        for (name, value) in [
            ("X-Claimgate-User", "mallory"),
            ("X-Claimgate-Key", "mallorys-key"),
            ("X-Claimgate-Timestamp", "1234567890123"),
            ("X-Claimgate-Signature", "mallorys-signature"),
            ("X-Claimgate-Client-Ip", "203.0.113.66"),
            ("X-Claimgate-Other", "mallory"),
            ("X-Forwarded-For", "203.0.113.67"),
            ("X-Real-IP", "203.0.113.68"),
            ("X-Request-Id", "mallorys-request-id"),
            ("Cookie", "of=mallory"),
        ] {
            request = request.header(name, value);
        }
        let granted = world.send(request).await.expect(201);
        assert_eq!(granted.json()["claim"]["user_id"], "alice");
        let forwarded = world.forwarded(&granted).join("\n").to_lowercase();
        assert!(forwarded.contains("x-claimgate-user: alice\r\n"), "{forwarded}");
        assert!(forwarded.contains("x-claimgate-client-ip: 192.0.2.9\r\n"), "{forwarded}");
        for foreign in [
            "mallory",
            "1234567890123",
            "203.0.113",
            "x-forwarded-for",
            "x-real-ip",
            "authorization",
            "cookie",
        ] {
            assert!(!forwarded.contains(foreign), "{foreign} was forwarded to core: {forwarded}");
        }
    });
}

#[test]
fn an_invalid_body_is_rejected() {
    run(changing_nothing("bodies", async |world| {
        let claim = || world.request("POST", "/v1/campaigns/bodies/claims").bearer_auth(world.token("alice"));
        let typed = |kind: &str, body: &str| claim().header("Content-Type", kind).body(body.to_owned());
        let json = "application/json";
        // Not with wrangler: if the Worker answers before the whole body has arrived, its proxy sometimes
        // returns 500 or closes the connection.
        let mebibyte = || ("huge", typed(json, &" ".repeat(1 << 20)), 413, "payload_too_large");
        let huge = (Runtime::from_env() != Runtime::Wrangler).then(mebibyte);
        let small = [
            ("no body", claim(), 415, "unsupported_media_type"),
            ("empty", typed(json, ""), 400, "invalid_request"),
            ("no type", claim().body("{}"), 415, "unsupported_media_type"),
            ("text", typed("text/plain", "{}"), 415, "unsupported_media_type"),
            ("form", typed("application/x-www-form-urlencoded", "quantity=1"), 415, "unsupported_media_type"),
            ("gzip", typed(json, "{}").header("Content-Encoding", "gzip"), 415, "unsupported_media_type"),
            ("long", typed(json, &format!("{{}}{}", " ".repeat(4095))), 413, "payload_too_large"),
        ];
        for (what, request, code, problem) in small.into_iter().chain(huge) {
            let refused = world.send(request).await;
            assert_eq!((refused.status, refused.code().as_str()), (code, problem), "{what}");
            assert_kept_from_core(world, &refused, what);
        }
    }));
}

#[test]
fn json_is_parsed_strictly() {
    run(changing_nothing("json", async |world| {
        let deep = format!("{{\"quantity\":{}1{}}}", "[".repeat(1000), "]".repeat(1000));
        let nested = "[".repeat(1000);
        let invalid = [
            "{",
            "{\"quantity\":1",
            "[]",
            "[1]",
            "null",
            "1",
            "\"\"",
            "{}{}",
            "{},",
            &deep,
            &nested,
            r#"{"quantity":1,"quantity":1}"#,
            r#"{"user_id":"mallory"}"#,
            r#"{"quantity":1,"user_id":"alice"}"#,
            r#"{"idempotency_key":"k"}"#,
            r#"{"Quantity":1}"#,
            r#"{"\ud800":1}"#,
            r#"{"quantity":"\ud800"}"#,
            r#"{"quantity":NaN}"#,
            r#"{"quantity":Infinity}"#,
            r#"{"quantity":1e400}"#,
            r#"{"quantity":-0}"#,
            r#"{"quantity":9007199254740993}"#,
            r#"{"quantity":18446744073709551616}"#,
            r#"{"quantity":"1"}"#,
            r#"{"quantity":1.5}"#,
            r#"{"quantity":1e-1}"#,
            r#"{"quantity":01}"#,
            r#"{"quantity":null}"#,
            r#"{"quantity":[1]}"#,
            r#"{"quantity":true}"#,
            "{'quantity':1}",
            "{\"quantity\":1 /* one */}",
        ];
        let out_of_range =
            ["0", "-1", "3", "4294967296", "9007199254740991"].map(|n| format!("{{\"quantity\":{n}}}"));
        let of_range = out_of_range.iter().map(|body| (body.as_str(), 422, "quantity_out_of_range"));
        for (body, code, problem) in
            invalid.into_iter().map(|body| (body, 400, "invalid_request")).chain(of_range)
        {
            let refused = world.send(world.claim_request("json", "alice").body(body.to_owned())).await;
            let body: String = body.chars().take(40).collect();
            assert_eq!((refused.status, refused.code().as_str()), (code, problem), "{body}");
            // Only core checks per_claim.
            if !body.contains(":3}") {
                assert_kept_from_core(world, &refused, &body);
            }
        }
        let named = world.send(world.claim_request("json", "alice").body(r#"{"quantity":"1"}"#)).await;
        assert_eq!(named.json()["field"], "quantity");
    }));
}

#[test]
fn whole_numbers_and_a_byte_order_mark_are_accepted() {
    run(async {
        let world = open_world().await;
        world.core.create("whole", json!({"total": 5})).await;
        for (user, body) in [("ann", r#"{"quantity":2.0}"#), ("bob", "\u{feff}{\"quantity\":2e0}")] {
            let claim = world.keyed_request("whole", user, "k").body(body);
            let claimed = world.send(claim).await.expect(201).json();
            assert_eq!(claimed["claim"]["quantity"], 2, "{body}");
        }
    });
}

#[test]
fn invalid_ids_and_keys_are_rejected() {
    run(changing_nothing("ids", async |world| {
        let long = "i".repeat(65);
        for key in ["", "a b", "a,b", "a{}", "a:b", "a*", "../a", "%00", "a.b", &long] {
            let refused = world.claim("ids", "alice", key).await.refused(400, "invalid_request");
            assert_eq!(refused.json()["field"], "Idempotency-Key", "{key}");
        }
        let cyrillic = world.claim_request("ids", "alice").header("Idempotency-Key", "ключ".as_bytes());
        let _ = world.send(cyrillic).await.refused(400, "invalid_request");
        let two = world
            .claim_request("ids", "alice")
            .header("Idempotency-Key", "k1")
            .header("Idempotency-Key", "k2");
        let _ = world.send(two).await.refused(400, "invalid_request");
        for id in ["a.b", "a%00b", "a%2Fb", "a%0D%0Ab", "%7B%7D", "a:b", "*", "%D0%BA", "..%2Fids", &long] {
            let refused = world.claim(id, "alice", "k").await;
            assert!(matches!(refused.status, 400 | 404), "{id}: {}", refused.status);
            assert_kept_from_core(world, &refused, id);
        }
        for id in [
            "x",
            "ids.alice",
            "ids.alice.short",
            "ids.alice.%00",
            "ids.alice.AAAAAAAAAAAAAAAAAAAAAA.x",
            &long,
        ] {
            let refused = world.look_up(id, "alice").await.refused(404, "claim_not_found");
            assert_kept_from_core(world, &refused, id);
        }
    }));
}

/// Returns the raw head of a claim request followed by the lines in `rest`.
fn head(world: &World, method: &str, rest: &str) -> String {
    let (host, token) = (world.edge.listen, world.token("alice"));
    format!(
        "{method} /v1/campaigns/raw/claims HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\
         Authorization: Bearer {token}\r\nContent-Type: application/json\r\n{rest}"
    )
}

/// Returns malformed HTTP requests.
fn malformed_http(world: &World) -> Vec<(&'static str, String)> {
    let many = "X-Many: h\r\n".repeat(2000);
    vec![
        ("unknown method", head(world, "BREW", "Content-Length: 2\r\n\r\n{}")),
        ("two lengths", head(world, "POST", "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}")),
        ("a negative length", head(world, "POST", "Content-Length: -2\r\n\r\n{}")),
        (
            "a huge header",
            head(world, "POST", &format!("X-Huge: {}\r\nContent-Length: 2\r\n\r\n{{}}", "h".repeat(1 << 20))),
        ),
        ("many headers", head(world, "POST", &format!("{many}X-Size: {}\r\n\r\n", "h".repeat(1 << 20)))),
        ("a NUL in a header", head(world, "POST", "Idempotency-Key: a\0b\r\nContent-Length: 2\r\n\r\n{}")),
        (
            "a bare CR in a header",
            head(world, "POST", "Idempotency-Key: a\rb\r\nContent-Length: 2\r\n\r\n{}"),
        ),
        ("no HTTP", "\x16\x03\x01\0\0".to_owned()),
    ]
}

/// Checks that the request is rejected or its connection closed, and that another caller is served.
async fn assert_rejected_or_cut(world: &World, (what, bytes): (&str, String)) {
    let mut raw = Raw::connect(world.edge.listen).await;
    raw.send(bytes).await;
    raw.finish().await;
    let answer = raw.read_to_end().await;
    let code = status(&answer);
    // The runtime answers 501 to an unknown method; that request never reaches the Worker.
    let is_refused = |code| (400..500).contains(&code) || (code == 501 && what == "unknown method");
    assert!(code.is_none_or(is_refused), "{what}: {code:?}");
    let _ = world.send(world.request("GET", "/livez")).await.expect(200);
}

#[test]
fn malformed_http_is_rejected_while_others_are_served() {
    run(changing_nothing("raw", async |world| {
        for row in malformed_http(world) {
            assert_rejected_or_cut(world, row).await;
        }
    }));
}

/// Redis' log shows that invalid tokens, forged identities and malformed HTTP cause no call.
#[test]
fn rejected_requests_never_reach_redis() {
    run(async {
        let (core, watched) = LoggedRedis::start().await;
        let world = World::before(core, Runtime::from_env(), "edge-watched", "test", &[]).await;
        let writes = watched.writes().await;
        let claim = || world.request("POST", "/v1/campaigns/demo/claims");
        let mut refused = 0;
        for (what, token) in bad_tokens(&world).into_iter().chain([("none", String::new())]) {
            let reply = world.send(claim().json(&json!({})).bearer_auth(token)).await;
            assert_eq!(reply.status, 401, "{what}");
            refused += 1;
        }
        let forged = claim().header("X-Claimgate-User", "alice").header("X-Claimgate-Key", "k1");
        let forged = forged.header("X-Claimgate-Signature", "AAAA").header("X-Forwarded-For", "192.0.2.1");
        let _ = world.send(forged.json(&json!({}))).await.refused(401, "unauthenticated");
        for body in [json!({"user_id": "mallory"}), json!({"quantity": 1, "user_id": "alice"})] {
            let _ = world
                .send(world.claim_request("demo", "alice").json(&body))
                .await
                .refused(400, "invalid_request");
        }
        let rows = malformed_http(&world);
        refused += 3 + rows.len();
        for (what, bytes) in rows {
            assert_rejected_or_cut(&world, (what, bytes.replace("/raw/", "/demo/"))).await;
        }
        assert!(
            !watched.received_script_naming("alice").await
                && !watched.received_script_naming("mallory").await
        );
        assert_eq!(
            watched.writes().await,
            writes,
            "number of writes reported by Redis after {refused} rejections"
        );
        let _ = world.claim("demo", "alice", "k").await.expect(201);
        assert!(watched.received_script_naming("alice").await, "the test does not observe calls to Redis");
        assert!(watched.writes().await > writes, "the test does not observe writes");
    });
}

/// workerd prefers `Transfer-Encoding`, as RFC 9112 (6.3) requires, and the Worker reads no body of unknown
/// length. There must be exactly one response: no second request may be hidden in the bytes after
/// `Content-Length`.
#[test]
fn ambiguous_lengths_do_not_smuggle_a_second_request() {
    run(changing_nothing("lengths", async |world| {
        let hidden = head(world, "POST", "Content-Length: 2\r\n\r\n{}");
        let body = format!("2\r\n{{}}\r\n0\r\n\r\n{hidden}");
        let both = format!("Content-Length: {}\r\nTransfer-Encoding: chunked\r\n\r\n{body}", body.len());
        let mut raw = Raw::connect(world.edge.listen).await;
        raw.send(head(world, "POST", &both).replace("/raw/", "/lengths/")).await;
        raw.finish().await;
        let answer = String::from_utf8_lossy(&raw.read_to_end().await).into_owned();
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
        assert_eq!(status(answer.as_bytes()), Some(400), "{answer}");
    }));
}

#[test]
fn an_endless_body_is_not_read_to_its_end() {
    run(changing_nothing("endless", async |world| {
        let mut raw = Raw::connect(world.edge.listen).await;
        raw.send(head(world, "POST", "Transfer-Encoding: chunked\r\n\r\n").replace("/raw/", "/endless/"))
            .await;
        let chunk = format!("400\r\n{}\r\n", " ".repeat(0x400));
        let mut sent = 0;
        while sent < 64 && raw.send(&chunk).await {
            sent += 1;
        }
        let answer = raw.read_some().await;
        assert_eq!(status(&answer), Some(400), "{}", String::from_utf8_lossy(&answer));
    }));
}

#[test]
fn a_slow_body_times_out() {
    run(changing_nothing("slow", async |world| {
        let began = Instant::now();
        let mut raw = Raw::connect(world.edge.listen).await;
        raw.send(head(world, "POST", "Content-Length: 2\r\n\r\n{").replace("/raw/", "/slow/")).await;
        // A caller that sends an endless head does not delay other callers.
        let mut dawdler = Raw::connect(world.edge.listen).await;
        dawdler.send("GET /livez HTTP/1.1\r\nHost: ").await;
        let _ = world.send(world.request("GET", "/livez")).await.expect(200);
        let answer = raw.read_some().await;
        assert_eq!(status(&answer), Some(408), "{}", String::from_utf8_lossy(&answer));
        assert!(began.elapsed() < promised(Duration::from_secs(8)), "{:?}", began.elapsed());
    }));
}

/// Only the runtime can time out a head; workerd allows 15 s.
#[test]
fn an_endless_head_times_out_while_others_are_served() {
    run(async {
        let world = open_world().await;
        let began = Instant::now();
        let mut dawdlers = vec![Raw::connect(world.edge.listen).await];
        for _ in 0..20 {
            let mut raw = Raw::connect(world.edge.listen).await;
            raw.send("GET /livez HTTP/1.1\r\nHost: edge\r\nX-Slow: ").await;
            dawdlers.push(raw);
        }
        for raw in &mut dawdlers {
            let _ = world.send(world.request("GET", "/livez")).await.expect(200);
            let answer = raw.read_to_end().await;
            let code = status(&answer);
            assert!(code.is_none_or(|code| (400..500).contains(&code)), "{code:?}");
        }
        let took = began.elapsed();
        assert!(took.as_secs() >= 14 && took < promised(HEAD_MAX), "closed after {took:?}, not 15 s");
    });
}
