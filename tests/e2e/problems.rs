//! Causes each documented problem of core over HTTP.

use std::collections::BTreeMap;
use std::time::Duration;

use claimgate_shared::Code;
use reqwest::Method;
use serde_json::{Value, json};
use support::clocked::ClockedCore;
use support::core_client::API_TOKEN;
use support::core_client::campaign;
use support::core_process::DECISION;
use support::inspect::key;
use support::process::{Signal, signal_pids};
use support::raw::{Raw, claim_head, status};
use support::signing::{Signed, claim_id};
use support::times::{from_now, ms, now_ms};
use support::wait::{holds, until_status};
use support::{Core, CoreOptions, Reply, SOON, eventually, promised};

/// The expected response for each code: status, title, whether it has `Retry-After`, and its members besides
/// the common ones.
const TABLE: &[(&str, u16, &str, bool, &[&str])] = &[
    ("not_started", 403, "Not started", true, &["starts_at", "version"]),
    ("ended", 403, "Ended", false, &["ends_at", "version"]),
    ("paused", 403, "Paused", true, &["version"]),
    ("pass_required", 403, "Pass required", true, &["until", "version"]),
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
    ("hold_extended_too_often", 409, "Hold extended too often", false, &["claim"]),
    ("campaign_exists", 409, "Campaign exists", false, &[]),
    ("version_conflict", 409, "Version conflict", false, &["version"]),
    ("campaign_ended", 409, "Campaign ended", false, &[]),
    ("campaign_open", 409, "Campaign open", false, &[]),
    ("import_unfinished", 409, "Import unfinished", false, &[]),
    ("codes_missing", 409, "Codes missing", false, &[]),
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
    ("user_ids_differ", 503, "User ids differ", false, &[]),
];

/// Codes that only the edge returns; the edge's tests cover them.
const EDGE_ONLY: [Code; 3] = [Code::ChallengeFailed, Code::RateLimited, Code::NotConfigured];

#[test]
fn every_code_has_a_row() {
    let has_row = |code: &Code| TABLE.iter().any(|row| row.0 == code.as_str());
    let without: Vec<_> = Code::ALL.iter().filter(|code| !has_row(code)).collect();
    assert_eq!(without, EDGE_ONLY.iter().collect::<Vec<_>>());
    assert_eq!(TABLE.len() + EDGE_ONLY.len(), Code::ALL.len(), "the table has an extra row");
}

/// Checks a response against its row, member by member, and returns its body.
fn expect_problem(reply: &Reply, code: &str) -> Value {
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
async fn claims_outside_the_window_are_denied() {
    let core = Core::start().await;
    let starts_at = from_now(3600);
    let mut body = campaign("early", json!({}));
    body["starts_at"] = json!(starts_at);
    core.create_with(body).await;
    let refused = expect_problem(&core.claim("early", "a", "k").await, "not_started");
    assert_eq!(ms(refused["starts_at"].as_str().unwrap()), ms(&starts_at));
    let ends_at = from_now(-10);
    let mut body = campaign("late", json!({}));
    body["ends_at"] = json!(ends_at);
    core.create_with(body).await;
    let refused = expect_problem(&core.claim("late", "a", "k").await, "ended");
    assert_eq!(ms(refused["ends_at"].as_str().unwrap()), ms(&ends_at));
}

#[tokio::test]
async fn claims_without_a_pass_are_denied() {
    let core = Core::start().await;
    let until = from_now(3600);
    let mut body = campaign("presale", json!({}));
    body["pass"] = json!({"required": "until", "until": until});
    core.create_with(body).await;
    let without = Signed::claim(&core, "presale", "a", "k");
    let refused = expect_problem(&without.send(&core).await, "pass_required");
    assert_eq!(ms(refused["until"].as_str().unwrap()), ms(&until));
    core.patch("presale", json!({"pass": {"required": "always"}})).await.expect(200);
    let refused = without.send(&core).await.refused(403, "pass_required");
    assert_eq!((refused.header("retry-after"), &refused.json()["until"]), ("", &Value::Null));
}

#[tokio::test]
async fn claims_on_a_paused_or_ended_campaign_are_denied() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    core.set_admin_state("demo", "pause").await.expect(200);
    let refused = expect_problem(&core.claim("demo", "a", "k").await, "paused");
    assert_eq!(refused["version"], 2);
    core.set_admin_state("demo", "end").await.expect(200);
    let refused = core.claim("demo", "a", "k").await.refused(403, "ended").json();
    assert_eq!((&refused["version"], &refused["type"]), (&json!(3), &json!("/problems/ended")));
    expect_problem(&core.set_admin_state("demo", "resume").await, "campaign_ended");
    expect_problem(&core.set_admin_state("demo", "pause").await, "campaign_ended");
}

#[tokio::test]
async fn claims_over_a_limit_are_denied() {
    let core = Core::start().await;
    for (limit, code) in [
        ("total", "sold_out"),
        ("per_user", "user_limit_reached"),
        ("per_user_per_day", "user_daily_limit_reached"),
    ] {
        core.create(code, json!({limit: 2})).await;
        core.claim(code, "a", "k").await.expect(201);
        let refused = expect_problem(&core.claim_units(code, "a", "k2", 2).await, code);
        assert_eq!((&refused["limit"], &refused["remaining"]), (&json!(limit), &json!(1)));
        if limit == "per_user_per_day" {
            let resets_at = ms(refused["resets_at"].as_str().unwrap());
            assert_eq!(resets_at % (12 * 3_600_000), 0, "midnight in UTC, or 12 hours ahead of it");
            assert!((1..=86_400_000).contains(&(resets_at - now_ms())), "within a day");
        }
    }
    core.create("claim", json!({"per_claim": 1})).await;
    let refused = expect_problem(&core.claim_units("claim", "a", "k", 2).await, "quantity_out_of_range");
    assert_eq!(refused["field"], "quantity");
    core.claim("claim", "a", "k").await.expect(201);
    expect_problem(&core.claim_units("claim", "a", "k", 2).await, "idempotency_key_reused");
}

#[tokio::test]
async fn existing_campaigns_and_stale_versions_are_conflicts() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 1})).await;
    let other = campaign("demo", json!({"total": 2}));
    expect_problem(&core.admin(Method::POST, "/admin/v1/campaigns", &other).await, "campaign_exists");
    let stale = json!({"version": 7, "name": "New"});
    let refused = expect_problem(
        &core.admin(Method::PATCH, "/admin/v1/campaigns/demo", &stale).await,
        "version_conflict",
    );
    assert_eq!(refused["version"], 1, "the current version");
}

#[tokio::test]
async fn finished_claims_cannot_be_confirmed() {
    let clocked = ClockedCore::start(CoreOptions::default()).await;
    let core = &clocked.core;
    let mut body = campaign("demo", json!({}));
    body["hold_seconds"] = json!(3600);
    core.create_with(body).await;
    let confirm = async |user: &str| core.transition(&claim_id("demo", user, "k"), "confirm").await;
    core.claim("demo", "ann", "k").await.expect(201);
    clocked.move_by_hours(2).await;
    eventually(SOON, || async {
        let claim = core.look_up(&claim_id("demo", "ann", "k")).await.json();
        holds(claim["claim"]["status"] == "expired", || claim.to_string())
    })
    .await;
    assert_eq!(expect_problem(&confirm("ann").await, "claim_expired")["claim"]["status"], "expired");

    core.claim("demo", "bob", "k").await.expect(201);
    core.transition(&claim_id("demo", "bob", "k"), "return").await.expect(200);
    assert_eq!(expect_problem(&confirm("bob").await, "claim_returned")["claim"]["status"], "returned");

    // A revoked claim, as a load leaves it if Redis had lost it.
    let id = claim_id("demo", "cy", "k");
    let digest = id.rsplit('.').next().unwrap();
    let statement = format!(
        "INSERT INTO claims (campaign_id, user_id, digest, quantity, status, epoch, revision, sequence, day, claimed_at, \
         updated_at) VALUES ('demo', 'cy', '{digest}', 1, 'revoked', 0, 1, 9, 20000, 1750000000000, 1750000000000)"
    );
    core.sql().run(statement).await;
    assert_eq!(expect_problem(&confirm("cy").await, "claim_revoked")["claim"]["status"], "revoked");
}

#[tokio::test]
async fn a_hold_is_not_extended_for_ever() {
    let clocked = ClockedCore::start(CoreOptions::default()).await;
    let core = &clocked.core;
    let mut body = campaign("demo", json!({}));
    body["hold_seconds"] = json!(36_000);
    core.create_with(body).await;
    core.claim("demo", "ann", "k").await.expect(201);
    // A claim that was extended 64 times has this revision.
    let redis = clocked.redis.view().await;
    redis.relayed("demo", SOON).await;
    core.sql().run("UPDATE claims SET revision = 65".to_owned()).await;
    let keys = ["campaign", "users", "claims", "holds", "outbox"].map(|what| key("demo", what));
    let unlink: Vec<_> = std::iter::once("UNLINK").chain(keys.iter().map(String::as_str)).collect();
    redis.query::<u64>(&unlink).await;
    clocked.move_by_hours(1).await;
    let extend = async || core.transition(&claim_id("demo", "ann", "k"), "extend").await;
    let refused = until_status(SOON, &[409], extend).await;
    assert_eq!(expect_problem(&refused, "hold_extended_too_often")["claim"]["status"], "held");
}

#[tokio::test]
async fn unknown_cursors_and_webhooks_are_reported() {
    let core = Core::start().await;
    expect_problem(&core.admin_get("/admin/v1/changes?after=1.2.3").await, "cursor_invalid");
    expect_problem(&core.admin_get("/admin/v1/webhooks/none").await, "webhook_not_found");
}

#[tokio::test]
async fn imports_are_rejected_while_open_or_unfinished() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    let url = core.admin_url("/admin/v1/campaigns/demo/import");
    let import = async || {
        let request = core.client().request(Method::POST, &url).bearer_auth(core.admin_token());
        let request = request.header("Content-Type", "text/csv").body("user_id,quantity\nann,1\n");
        core.client().send(request).await.unwrap()
    };
    expect_problem(&import().await, "campaign_open");
    // Set the state that a core leaves if it dies after the first transaction of an import.
    let broken_off = "import_digest = 'of a file', evicted_at = 1, evicted_taken = 0, evicted_sequence = 0, epoch = epoch + 1";
    core.sql().change_campaign("demo", broken_off).await;
    expect_problem(&import().await, "import_unfinished");
    expect_problem(&core.set_admin_state("demo", "pause").await, "import_unfinished");
}

#[tokio::test]
async fn a_total_beyond_the_codes_is_rejected() {
    let core = Core::start().await;
    let mut body = campaign("demo", json!({"total": 1}));
    body["codes"] = json!(true);
    expect_problem(&core.admin(Method::POST, "/admin/v1/campaigns", &body).await, "codes_missing");
}

#[tokio::test]
async fn unauthenticated_and_forbidden_callers_are_rejected() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    let body = support::claim_body("demo", "a", "k", 1);
    let anonymous = core.client().call(Method::POST, &core.url("/internal/v1/claims"), "", &body).await;
    expect_problem(&anonymous, "unauthenticated");
    assert_eq!(anonymous.header("www-authenticate"), "Bearer");
    let url = core.admin_url("/admin/v1/campaigns");
    expect_problem(&core.client().call(Method::GET, &url, API_TOKEN, &Value::Null).await, "forbidden");
    let mut signed = Signed::claim(&core, "demo", "alice", "k");
    signed.user = "mallory".to_owned();
    expect_problem(&signed.send(&core).await, "forbidden");
}

#[tokio::test]
async fn user_ids_of_another_scheme_are_refused() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    let id = format!("AAAAAA_{}", "b".repeat(43));
    let claim = Signed::claim(&core, "demo", &id, "k");
    let edge = |user_ids: &str| Signed { user_ids: user_ids.to_owned(), ..claim.clone() };
    edge("hmac:AAAAAA").send(&core).await.expect(201);
    expect_problem(&edge("hmac:BBBBBB").send(&core).await, "user_ids_differ");
    expect_problem(&core.claim("demo", "a", "k").await, "user_ids_differ");
}

#[tokio::test]
async fn unknown_ids_paths_and_methods_are_rejected() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    expect_problem(&core.claim("none", "a", "k").await, "campaign_not_found");
    expect_problem(&core.get("/internal/v1/campaigns/none").await, "campaign_not_found");
    expect_problem(&core.admin_get("/admin/v1/campaigns/none").await, "campaign_not_found");
    expect_problem(&core.admin_get("/admin/v1/campaigns/none/claims").await, "campaign_not_found");
    expect_problem(&core.set_admin_state("none", "pause").await, "campaign_not_found");
    let patch = json!({"version": 1});
    expect_problem(
        &core.admin(Method::PATCH, "/admin/v1/campaigns/none", &patch).await,
        "campaign_not_found",
    );
    expect_problem(&core.look_up(&claim_id("demo", "a", "k")).await, "claim_not_found");
    expect_problem(&core.look_up(&claim_id("none", "a", "k")).await, "claim_not_found");
    expect_problem(&core.get("/internal/v2").await, "not_found");
    expect_problem(&core.get("/admin/v1/campaigns").await, "not_found");
    let wrong = core.client().call(Method::PUT, &core.url("/internal/v1/claims"), API_TOKEN, &patch).await;
    expect_problem(&wrong, "method_not_allowed");
    assert_eq!(wrong.header("allow"), "POST");
}

#[tokio::test]
async fn malformed_requests_are_rejected() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    let body = json!({"campaign_id": "demo", "user_id": "a b", "idempotency_key": "k"});
    assert_eq!(expect_problem(&core.post_claim(&body).await, "invalid_request")["field"], "user_id");
    let big = json!({"campaign_id": "demo", "user_id": "a".repeat(5000), "idempotency_key": "k"});
    expect_problem(&core.post_claim(&big).await, "payload_too_large");
    let text = core.client().request(Method::POST, &core.url("/internal/v1/claims")).bearer_auth(API_TOKEN);
    expect_problem(&core.client().send(text.body("{}")).await.unwrap(), "unsupported_media_type");
}

#[tokio::test]
async fn a_valid_request_id_is_kept() {
    let core = Core::start().await;
    let returned_id = async |id: &str| {
        let request = core.client().request(Method::GET, &core.url("/none")).header("X-Request-Id", id);
        expect_problem(&core.client().send(request).await.unwrap(), "not_found")["instance"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(returned_id("from-the-edge_1").await, "from-the-edge_1");
    assert_ne!(returned_id("<script>").await, "<script>");
    assert_ne!(returned_id("").await, returned_id("").await);
}

#[tokio::test]
async fn a_missing_body_times_out_with_408() {
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
async fn lost_counters_are_never_reported_as_sold_out() {
    let mut rejected = 0;
    for what in ["campaign", "users", "claims", "holds", "outbox"] {
        let core = Core::start().await;
        core.create("demo", json!({"total": 2})).await;
        let won = core.claim("demo", "a", "k").await.expect(201).json();
        core.sql().until("demo", 1).await;
        let redis = core.redis().await;
        assert_eq!(redis.query::<u64>(&["DEL", &key("demo", what)]).await, 1, "{what}");
        // One unit is left: until the rebuild is complete, no caller gets "sold out", and no user a second claim.
        let mut answers = BTreeMap::new();
        while answers.len() < 2 {
            for user in ["b", "a"] {
                let reply = core.claim_once_available("demo", user, "k").await;
                if reply.status == 503 {
                    expect_problem(&reply, "campaign_not_ready");
                    rejected += 1;
                } else {
                    answers.entry(user).or_insert(reply);
                }
            }
        }
        let again = &answers["a"];
        assert_eq!((again.status, &again.json()["claim"]), (200, &won["claim"]), "without {what}");
        answers["b"].clone().expect(201);
        core.claim("demo", "c", "k").await.refused(409, "sold_out");
    }
    assert!(rejected > 0, "each rebuild was complete before a claim");
}

#[tokio::test]
async fn requests_above_the_concurrency_limit_are_rejected() {
    let core = CoreOptions::default().with("CLAIMGATE_CONCURRENCY_MAX", "1").start().await;
    core.create("demo", json!({})).await;
    let (slow, refused) = eventually(SOON, || async {
        // Retry if core reads the claim before the slow request, or does not decide the claim in time.
        let mut slow = Raw::connect(core.listen()).await;
        slow.send(format!("{}Content-Length: 100\r\n\r\n{{", claim_head())).await;
        let reply = core.once().claim("demo", "a", "k").await;
        let is_refused = reply.status >= 300 && reply.code() != "unavailable";
        holds(is_refused, || reply.text()).map(|()| (slow, reply))
    })
    .await;
    expect_problem(&refused, "overloaded");
    core.get("/livez").await.expect(200);
    drop(slow);
    until_status(SOON, &[200, 201], async || core.claim("demo", "a", "after").await).await;
}

#[tokio::test]
async fn a_full_outbox_rejects_claims_but_answers_replays() {
    let core = CoreOptions::default().with("CLAIMGATE_OUTBOX_MAX", "1").start().await;
    core.create("demo", json!({})).await;
    core.claim("demo", "a", "first").await.expect(201);
    let redis = core.redis().await;
    // Simulate a relay that has fallen behind.
    redis.set_counter("demo", "backlog", 5).await;
    expect_problem(&core.claim_once_available("demo", "a", "k").await, "overloaded");
    core.claim("demo", "a", "first").await.expect(200);
}

#[tokio::test]
async fn an_unresponsive_redis_leaves_the_outcome_unknown() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 5})).await;
    core.claim("demo", "a", "before").await.expect(201);
    let pids = core.redis().await.pids().await;
    signal_pids(&pids, Signal::STOP);
    let started = tokio::time::Instant::now();
    let refused = core.once().claim("demo", "a", "k").await;
    let waited = started.elapsed();
    let view = core.once().get("/internal/v1/campaigns/demo").await;
    let not_ready = until_status(SOON, &[503], async || core.get("/readyz").await);
    let not_ready = not_ready.await;
    signal_pids(&pids, Signal::CONT);
    expect_problem(&refused, "unavailable");
    expect_problem(&view, "unavailable");
    expect_problem(&not_ready, "unavailable");
    assert!(waited < promised(DECISION), "answered only after {waited:?}");
    let won = until_status(SOON, &[200, 201], async || core.claim("demo", "a", "k").await).await;
    assert_eq!(won.json()["claim"]["sequence"], 2, "both tries made one claim");
    assert_eq!(core.sql().until("demo", 2).await.len(), 2);
    core.ready().await;
    assert!(waited > Duration::from_millis(100), "Redis was stopped, yet core answered after {waited:?}");
}
