//! Every row of the contract's table of problems that core answers, provoked over HTTP.

use std::time::Duration;

use claimgate_shared::Code;
use reqwest::Method;
use serde_json::{Value, json};
use support::core_client::API_TOKEN;
use support::core_client::campaign;
use support::core_process::DECISION;
use support::inspect::key;
use support::process::{Signal, signal_pids};
use support::raw::{Raw, claim_head, status};
use support::signing::{Signed, claim_id};
use support::times::{from_now, ms, now_ms};
use support::wait::holds;
use support::{Core, CoreOptions, Reply, SOON, eventually};

/// What each code's answer must look like: status, title, whether it says when to come back, and which members it
/// has beside the common ones.
const TABLE: &[(&str, u16, &str, bool, &[&str])] = &[
    ("not_started", 403, "Not started", true, &["starts_at", "version"]),
    ("ended", 403, "Ended", false, &["ends_at", "version"]),
    ("paused", 403, "Paused", true, &["version"]),
    ("sold_out", 409, "Sold out", true, &["limit", "remaining", "version"]),
    ("user_limit_reached", 409, "User limit reached", false, &["limit", "remaining", "version"]),
    (
        "user_daily_limit_reached",
        409,
        "Daily limit reached",
        true,
        &["limit", "remaining", "resets_at", "version"],
    ),
    ("claim_expired", 409, "Claim expired", false, &["claim"]),
    ("claim_returned", 409, "Claim returned", false, &["claim"]),
    ("claim_revoked", 409, "Claim revoked", false, &["claim"]),
    ("campaign_exists", 409, "Campaign exists", false, &[]),
    ("version_conflict", 409, "Version conflict", false, &["version"]),
    ("campaign_ended", 409, "Campaign ended", false, &[]),
    ("campaign_open", 409, "Campaign open", false, &[]),
    ("import_unfinished", 409, "Import unfinished", false, &[]),
    ("webhook_not_found", 404, "No such webhook", false, &[]),
    ("cursor_invalid", 410, "Cursor invalid", false, &[]),
    ("unauthenticated", 401, "Not authenticated", false, &[]),
    ("forbidden", 403, "Not allowed", false, &[]),
    ("campaign_not_found", 404, "No such campaign", false, &[]),
    ("claim_not_found", 404, "No such claim", false, &[]),
    ("not_found", 404, "Not found", false, &[]),
    ("method_not_allowed", 405, "Method not allowed", false, &[]),
    ("request_timeout", 408, "Request took too long", false, &[]),
    ("invalid_request", 400, "Invalid request", false, &["field"]),
    ("quantity_out_of_range", 422, "Quantity out of range", false, &["field", "version"]),
    ("idempotency_key_reused", 422, "Idempotency key reused", false, &["version"]),
    ("payload_too_large", 413, "Payload too large", false, &[]),
    ("unsupported_media_type", 415, "Unsupported media type", false, &[]),
    ("campaign_not_ready", 503, "Campaign not ready", true, &[]),
    ("overloaded", 503, "Overloaded", true, &[]),
    ("unavailable", 503, "Unavailable", true, &[]),
];

/// Codes that the edge alone answers; its own tests do.
const OF_THE_EDGE: [Code; 1] = [Code::RateLimited];

#[test]
fn every_code_has_its_row() {
    let has_row = |code: &Code| TABLE.iter().any(|row| row.0 == code.as_str());
    let without: Vec<_> = Code::ALL.iter().filter(|code| !has_row(code)).collect();
    assert_eq!(without, OF_THE_EDGE.iter().collect::<Vec<_>>());
    assert_eq!(TABLE.len() + OF_THE_EDGE.len(), Code::ALL.len(), "a row too many");
}

/// Checks an answer against its row, member by member; returns its body.
fn problem(reply: &Reply, code: &str) -> Value {
    let body = reply.json();
    let (_, status, title, retry, extra) =
        TABLE.iter().find(|row| row.0 == code).expect("a row of the table");
    assert_eq!((reply.status, reply.code().as_str()), (*status, code), "{body}");
    assert_eq!(reply.header("content-type"), "application/problem+json");
    assert_eq!(
        (reply.header("cache-control"), reply.header("x-content-type-options")),
        ("no-store", "nosniff")
    );
    let request_id = reply.header("x-request-id");
    assert!(!request_id.is_empty(), "no X-Request-Id");
    assert_eq!(body["type"], format!("/problems/{}", code.replace('_', "-")));
    assert_eq!((&body["title"], &body["status"]), (&json!(title), &json!(status)));
    assert_eq!(body["instance"], request_id);
    assert!(!body["detail"].as_str().unwrap_or_default().is_empty(), "{body}");
    assert_eq!(reply.header("retry-after").parse::<u32>().is_ok(), *retry, "Retry-After of {code}");
    let common = ["type", "title", "status", "detail", "code", "instance"];
    let mut members: Vec<_> = body.as_object().unwrap().keys().map(String::as_str).collect();
    members.retain(|member| !common.contains(member));
    members.sort_unstable();
    assert_eq!(members, *extra, "members of {code}: {body}");
    body
}

#[tokio::test]
async fn the_window() {
    let core = Core::start().await;
    let starts_at = from_now(3600);
    let mut body = campaign("early", json!({}));
    body["starts_at"] = json!(starts_at);
    core.create_with(body).await;
    let refused = problem(&core.claim("early", "a", "k").await, "not_started");
    assert_eq!(ms(refused["starts_at"].as_str().unwrap()), ms(&starts_at));
    let ends_at = from_now(-10);
    let mut body = campaign("late", json!({}));
    body["ends_at"] = json!(ends_at);
    core.create_with(body).await;
    let refused = problem(&core.claim("late", "a", "k").await, "ended");
    assert_eq!(ms(refused["ends_at"].as_str().unwrap()), ms(&ends_at));
}

#[tokio::test]
async fn the_hand_of_an_admin() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    core.set_admin_state("demo", "pause").await.expect(200);
    let refused = problem(&core.claim("demo", "a", "k").await, "paused");
    assert_eq!(refused["version"], 2);
    core.set_admin_state("demo", "end").await.expect(200);
    let refused = core.claim("demo", "a", "k").await.refused(403, "ended").json();
    assert_eq!((&refused["version"], &refused["type"]), (&json!(3), &json!("/problems/ended")));
    problem(&core.set_admin_state("demo", "resume").await, "campaign_ended");
    problem(&core.set_admin_state("demo", "pause").await, "campaign_ended");
}

#[tokio::test]
async fn the_limits() {
    let core = Core::start().await;
    for (limit, code) in [
        ("total", "sold_out"),
        ("per_user", "user_limit_reached"),
        ("per_user_per_day", "user_daily_limit_reached"),
    ] {
        core.create(code, json!({limit: 2})).await;
        core.claim(code, "a", "k").await.expect(201);
        let refused = problem(&core.claim_units(code, "a", "k2", 2).await, code);
        assert_eq!((&refused["limit"], &refused["remaining"]), (&json!(limit), &json!(1)));
        if limit == "per_user_per_day" {
            let resets_at = ms(refused["resets_at"].as_str().unwrap());
            assert_eq!(resets_at.rem_euclid(86_400_000), 0, "midnight in UTC");
            assert!((1..=86_400_000).contains(&(resets_at - now_ms())), "within a day");
        }
    }
    core.create("claim", json!({"per_claim": 1})).await;
    let refused = problem(&core.claim_units("claim", "a", "k", 2).await, "quantity_out_of_range");
    assert_eq!(refused["field"], "quantity");
    core.claim("claim", "a", "k").await.expect(201);
    problem(&core.claim_units("claim", "a", "k", 2).await, "idempotency_key_reused");
}

#[tokio::test]
async fn campaigns_and_their_versions() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 1})).await;
    let other = campaign("demo", json!({"total": 2}));
    problem(&core.admin(Method::POST, "/admin/v1/campaigns", &other).await, "campaign_exists");
    let stale = json!({"version": 7, "name": "New"});
    let refused =
        problem(&core.admin(Method::PATCH, "/admin/v1/campaigns/demo", &stale).await, "version_conflict");
    assert_eq!(refused["version"], 1, "the version it is at");
}

#[tokio::test]
async fn claims_that_stand_as_they_are() {
    let core = Core::start().await;
    let mut body = campaign("demo", json!({}));
    body["hold_seconds"] = json!(1);
    core.create_with(body).await;
    let confirm = async |user: &str| {
        let url = core.url(&format!("/internal/v1/claims/{}/confirm", claim_id("demo", user, "k")));
        core.client().call(Method::POST, &url, API_TOKEN, &Value::Null).await
    };
    core.claim("demo", "ann", "k").await.expect(201);
    eventually(SOON, || async {
        let claim = core.look_up(&claim_id("demo", "ann", "k")).await.json();
        holds(claim["claim"]["status"] == "expired", || claim.to_string())
    })
    .await;
    assert_eq!(problem(&confirm("ann").await, "claim_expired")["claim"]["status"], "expired");

    core.patch("demo", json!({"hold_seconds": 3600})).await.expect(200);
    core.claim("demo", "bob", "k").await.expect(201);
    let url = core.url(&format!("/internal/v1/claims/{}/return", claim_id("demo", "bob", "k")));
    core.client().call(Method::POST, &url, API_TOKEN, &Value::Null).await.expect(200);
    assert_eq!(problem(&confirm("bob").await, "claim_returned")["claim"]["status"], "returned");

    // As a load leaves a claim of a history that is no more.
    let id = claim_id("demo", "cy", "k");
    let digest = id.rsplit('.').next().unwrap();
    let statement = format!(
        "INSERT INTO claims (campaign_id, user_id, digest, quantity, status, epoch, revision, sequence, day, claimed_at, \
         updated_at) VALUES ('demo', 'cy', '{digest}', 1, 'revoked', 0, 1, 9, 20000, 1750000000000, 1750000000000)"
    );
    core.sql().run(statement).await;
    assert_eq!(problem(&confirm("cy").await, "claim_revoked")["claim"]["status"], "revoked");
}

#[tokio::test]
async fn a_cursor_of_no_feed() {
    let core = Core::start().await;
    problem(&core.admin_get("/admin/v1/changes?after=1.2.3").await, "cursor_invalid");
    problem(&core.admin_get("/admin/v1/webhooks/none").await, "webhook_not_found");
}

#[tokio::test]
async fn imports_at_the_wrong_time() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    let url = core.admin_url("/admin/v1/campaigns/demo/import");
    let import = async || {
        let request = core.client().request(Method::POST, &url).bearer_auth(core.admin_token());
        let request = request.header("Content-Type", "text/csv").body("user_id,quantity\nann,1\n");
        core.client().send(request).await.unwrap()
    };
    problem(&import().await, "campaign_open");
    // As a core leaves it that dies after its first transaction.
    let broken_off = "import_digest = 'of a file', evicted_at = 1, evicted_taken = 0, evicted_sequence = 0, epoch = epoch + 1";
    core.sql().change_campaign("demo", broken_off).await;
    problem(&import().await, "import_unfinished");
    problem(&core.set_admin_state("demo", "pause").await, "import_unfinished");
}

#[tokio::test]
async fn who_calls() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    let body = support::claim_body("demo", "a", "k", 1);
    let anonymous = core.client().call(Method::POST, &core.url("/internal/v1/claims"), "", &body).await;
    problem(&anonymous, "unauthenticated");
    assert_eq!(anonymous.header("www-authenticate"), "Bearer");
    let url = core.admin_url("/admin/v1/campaigns");
    problem(&core.client().call(Method::GET, &url, API_TOKEN, &Value::Null).await, "forbidden");
    let mut signed = Signed::claim(&core, "demo", "alice", "k");
    signed.user = "mallory".to_owned();
    problem(&signed.send(&core).await, "forbidden");
}

#[tokio::test]
async fn what_is_not_there() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    problem(&core.claim("none", "a", "k").await, "campaign_not_found");
    problem(&core.get("/internal/v1/campaigns/none").await, "campaign_not_found");
    problem(&core.admin_get("/admin/v1/campaigns/none").await, "campaign_not_found");
    problem(&core.admin_get("/admin/v1/campaigns/none/claims").await, "campaign_not_found");
    problem(&core.set_admin_state("none", "pause").await, "campaign_not_found");
    let patch = json!({"version": 1});
    problem(&core.admin(Method::PATCH, "/admin/v1/campaigns/none", &patch).await, "campaign_not_found");
    problem(&core.look_up(&claim_id("demo", "a", "k")).await, "claim_not_found");
    problem(&core.look_up(&claim_id("none", "a", "k")).await, "claim_not_found");
    problem(&core.get("/internal/v2").await, "not_found");
    problem(&core.get("/admin/v1/campaigns").await, "not_found");
    let wrong = core.client().call(Method::PUT, &core.url("/internal/v1/claims"), API_TOKEN, &patch).await;
    problem(&wrong, "method_not_allowed");
    assert_eq!(wrong.header("allow"), "POST");
}

#[tokio::test]
async fn the_request_itself() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    let body = json!({"campaign_id": "demo", "user_id": "a b", "idempotency_key": "k"});
    assert_eq!(problem(&core.post_claim(&body).await, "invalid_request")["field"], "user_id");
    let big = json!({"campaign_id": "demo", "user_id": "a".repeat(5000), "idempotency_key": "k"});
    problem(&core.post_claim(&big).await, "payload_too_large");
    let text = core.client().request(Method::POST, &core.url("/internal/v1/claims")).bearer_auth(API_TOKEN);
    problem(&core.client().send(text.body("{}")).await.unwrap(), "unsupported_media_type");
}

#[tokio::test]
async fn a_request_id_is_taken_over_when_it_is_one() {
    let core = Core::start().await;
    let ask = async |id: &str| {
        let request = core.client().request(Method::GET, &core.url("/none")).header("X-Request-Id", id);
        problem(&core.client().send(request).await.unwrap(), "not_found")["instance"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(ask("from-the-edge_1").await, "from-the-edge_1");
    assert_ne!(ask("<script>").await, "<script>");
    assert_ne!(ask("").await, ask("").await);
}

#[tokio::test]
async fn a_body_that_does_not_come() {
    let core = Core::start().await;
    let mut raw = Raw::connect(core.listen()).await;
    assert!(raw.send(format!("{}Content-Length: 100\r\n\r\n{{", claim_head())).await);
    let answer = String::from_utf8(raw.read_to_end().await).unwrap();
    assert_eq!(status(answer.as_bytes()), Some(408), "{answer}");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.to_ascii_lowercase().contains("content-type: application/problem+json"), "{head}");
    let body: Value = serde_json::from_str(body).unwrap();
    assert_eq!((&body["code"], &body["title"]), (&json!("request_timeout"), &json!("Request took too long")));
}

#[tokio::test]
async fn counters_that_are_gone_are_not_sold_out() {
    for what in ["campaign", "users", "claims", "holds", "outbox"] {
        let core = Core::start().await;
        core.create("demo", json!({"total": 1})).await;
        let won = core.claim("demo", "a", "k").await.expect(201).json();
        core.sql().until("demo", 1).await;
        let redis = core.redis().await;
        assert_eq!(redis.query::<u64>(&["DEL", &key("demo", what)]).await, 1, "{what}");
        problem(&core.once().claim("demo", "b", "k").await, "campaign_not_ready");
        // However long the rebuild takes: until it is done no caller is told "sold out", and no user wins again.
        let again = eventually(SOON, || async {
            let again = core.once().claim("demo", "a", "k").await;
            if again.status == 503 {
                assert_eq!(again.code(), "campaign_not_ready", "without {what}");
            }
            holds(again.status != 503, || again.text()).map(|()| again)
        })
        .await;
        assert_eq!((again.status, &again.json()["claim"]), (200, &won["claim"]), "without {what}");
        core.claim("demo", "b", "k").await.refused(409, "sold_out");
    }
}

#[tokio::test]
async fn more_at_once_than_core_takes() {
    let core = CoreOptions::default().with("CLAIMGATE_CONCURRENCY_MAX", "1").start().await;
    core.create("demo", json!({})).await;
    let (slow, refused) = eventually(SOON, || async {
        // Which of the two core sees first is not ours to say: when it is the claim, try again.
        let mut slow = Raw::connect(core.listen()).await;
        slow.send(format!("{}Content-Length: 100\r\n\r\n{{", claim_head())).await;
        let reply = core.once().claim("demo", "a", "k").await;
        holds(reply.status >= 300, || reply.text()).map(|()| (slow, reply))
    })
    .await;
    problem(&refused, "overloaded");
    core.get("/livez").await.expect(200);
    drop(slow);
    eventually(SOON, || async {
        let reply = core.claim("demo", "a", "after").await;
        holds(reply.status < 300, || reply.text())
    })
    .await;
}

#[tokio::test]
async fn a_full_outbox_refuses_claims_and_answers_replays() {
    let core = CoreOptions::default().with("CLAIMGATE_OUTBOX_MAX", "1").start().await;
    core.create("demo", json!({})).await;
    core.claim("demo", "a", "first").await.expect(201);
    let redis = core.redis().await;
    // As if the relay had fallen behind.
    redis.set_counter("demo", "backlog", 5).await;
    problem(&core.once().claim("demo", "a", "k").await, "overloaded");
    core.claim("demo", "a", "first").await.expect(200);
}

#[tokio::test]
async fn a_redis_that_does_not_answer_leaves_the_outcome_open() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 5})).await;
    core.claim("demo", "a", "before").await.expect(201);
    let pids = core.redis().await.pids().await;
    signal_pids(&pids, Signal::STOP);
    let asked = tokio::time::Instant::now();
    let refused = core.once().claim("demo", "a", "k").await;
    let waited = asked.elapsed();
    let view = core.once().get("/internal/v1/campaigns/demo").await;
    let not_ready = eventually(SOON, || async {
        let reply = core.get("/readyz").await;
        holds(reply.status == 503, || reply.text()).map(|()| reply)
    });
    let not_ready = not_ready.await;
    signal_pids(&pids, Signal::CONT);
    problem(&refused, "unavailable");
    problem(&view, "unavailable");
    problem(&not_ready, "unavailable");
    assert!(waited < DECISION, "an answer after {waited:?}");
    let won = eventually(SOON, || async {
        let reply = core.claim("demo", "a", "k").await;
        holds(reply.status < 300, || reply.text()).map(|()| reply)
    })
    .await;
    assert_eq!(won.json()["claim"]["sequence"], 2, "one claim, by whichever try");
    assert_eq!(core.sql().until("demo", 2).await.len(), 2);
    core.ready().await;
    assert!(waited > Duration::from_millis(100), "Redis was stopped, yet core answered after {waited:?}");
}
