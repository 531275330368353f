//! The admin API: creating, reading, listing, changing and ending campaigns.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use support::core_client::API_TOKEN;
use support::core_client::campaign;
use support::signing::claim_id;
use support::times::{from_now, ms};
use support::wait::until_status;
use support::{Core, Reply, SOON};

const CAMPAIGNS: &str = "/admin/v1/campaigns";

async fn create(core: &Core, body: &Value) -> Reply {
    core.admin(Method::POST, CAMPAIGNS, body).await
}

#[tokio::test]
async fn a_campaign_is_created_once() {
    let core = Core::start().await;
    let body = json!({
        "id": "demo", "name": "Démo 活动", "starts_at": "2026-01-01T08:00:00+08:00", "ends_at": "2099-01-01T00:00:00Z",
        "limits": {"total": 100, "per_user": 3, "per_user_per_day": 1, "per_claim": null}, // on any day
        "time_zone": "Asia/Shanghai", "hold_seconds": null,
    });
    let made = create(&core, &body).await.expect(201).json();
    assert_eq!(
        (&made["name"], &made["time_zone"], &made["version"]),
        (&body["name"], &body["time_zone"], &json!(1))
    );
    assert_eq!(
        (&made["starts_at"], &made["ends_at"]),
        (&json!("2026-01-01T00:00:00.000Z"), &json!("2099-01-01T00:00:00.000Z"))
    );
    assert_eq!(
        (&made["limits"], &made["remaining"], &made["state"]),
        (&body["limits"], &json!(100), &json!("open"))
    );
    assert_eq!((&made["taken"], &made["sequence"], &made["ready"]), (&json!(0), &json!(0), &json!(true)));
    let again = create(&core, &body).await.expect(200).json();
    assert_eq!((&again["version"], &again["limits"]), (&json!(1), &made["limits"]));
    for change in [
        json!({"name": "Other"}),
        json!({"time_zone": "UTC"}),
        json!({"limits": {}}),
        json!({"ends_at": null}),
    ] {
        let mut other = body.clone();
        other.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        create(&core, &other).await.refused(409, "campaign_exists");
    }
    let view = core.campaign("demo").await;
    let members: BTreeSet<_> = view.as_object().unwrap().keys().map(String::as_str).collect();
    let expected =
        "id name state starts_at ends_at time_zone limits pass codes remaining version server_time";
    assert_eq!(members, expected.split(' ').collect());
    assert_eq!(core.sql().audit("demo").await.len(), 1, "only the creation is audited");
}

#[tokio::test]
async fn ten_concurrent_creations_make_one_campaign() {
    let core = Core::start().await;
    let body = campaign("demo", json!({"total": 5}));
    let made = join_all((0..10).map(|_| create(&core, &body))).await;
    let created = made.iter().filter(|reply| reply.status == 201).count();
    // The 201 may be among the lost responses.
    let is_repeated = made.iter().any(|reply| reply.repeats > 0);
    assert!(created == 1 || (created == 0 && is_repeated), "{made:?}");
    assert!(made.iter().all(|reply| reply.status < 300), "{made:?}");
    core.claim("demo", "a", "k").await.expect(201);
}

#[tokio::test]
async fn the_defaults_are_utc_no_end_and_no_limits() {
    let core = Core::start().await;
    let made = create(&core, &json!({"id": "demo", "name": "d", "starts_at": from_now(-1)}))
        .await
        .expect(201)
        .json();
    assert_eq!(
        (&made["time_zone"], &made["ends_at"], &made["remaining"]),
        (&json!("UTC"), &json!(null), &json!(null))
    );
    assert_eq!(made["hold_seconds"], json!(null));
}

#[tokio::test]
async fn campaigns_are_listed_in_pages() {
    let core = Core::start().await;
    for at in 0..5 {
        core.create(&format!("c{at}"), json!({})).await;
    }
    let mut seen = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = core.admin_get(&format!("{CAMPAIGNS}?limit=2{cursor}")).await.expect(200).json();
        let items = page["items"].as_array().unwrap();
        assert!(items.len() <= 2);
        seen.extend(items.iter().map(|item| item["id"].as_str().unwrap().to_owned()));
        let Some(next) = page["next_cursor"].as_str() else {
            break;
        };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(seen, ["c0", "c1", "c2", "c3", "c4"]);
    for query in ["limit=0", "limit=1001", "limit=x", "limit=-1", "page=2", "limit=1&limit=2"] {
        core.admin_get(&format!("{CAMPAIGNS}?{query}")).await.refused(400, "invalid_request");
    }
}

#[tokio::test]
async fn a_patch_changes_only_the_fields_it_names() {
    let core = Core::start().await;
    let mut body = campaign("demo", json!({"total": 10, "per_user": 2, "per_claim": 1}));
    body["ends_at"] = json!("2099-01-01T00:00:00Z");
    core.create_with(body).await;
    let path = format!("{CAMPAIGNS}/demo");
    let changed = core
        .patch("demo", json!({"name": "New", "limits": {"total": 20, "per_user": null}}))
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&changed["name"], &changed["version"], &changed["remaining"]),
        (&json!("New"), &json!(2), &json!(20))
    );
    assert_eq!(
        changed["limits"],
        json!({"total": 20, "per_user": null, "per_user_per_day": null, "per_claim": 1})
    );
    assert_eq!(changed["ends_at"], "2099-01-01T00:00:00.000Z");
    let changed = core.patch("demo", json!({"ends_at": null})).await.expect(200).json();
    assert_eq!((&changed["ends_at"], &changed["name"]), (&json!(null), &json!("New")));
    let stale = json!({"version": 2, "name": "Stale"});
    core.admin(Method::PATCH, &path, &stale).await.refused(409, "version_conflict");
    core.admin(Method::PATCH, &path, &json!({"name": "None"})).await.refused(400, "invalid_request");
    let zone =
        core.patch("demo", json!({"time_zone": "Asia/Shanghai"})).await.refused(400, "invalid_request");
    assert_eq!(zone.json()["field"], "time_zone");
    core.patch("demo", json!({"ends_at": "2001-01-01T00:00:00Z"})).await.refused(400, "invalid_request");
    let shown = core.admin_get(&path).await.json();
    assert_eq!(
        (&shown["name"], &shown["version"]),
        (&json!("New"), &json!(3)),
        "rejected changes have no effect"
    );
}

#[tokio::test]
async fn a_patch_without_effect_creates_no_version() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 10})).await;
    for patch in [json!({}), json!({"name": "demo", "ends_at": null, "limits": {"total": 10}})] {
        assert_eq!(core.patch("demo", patch.clone()).await.expect(200).json()["version"], 1, "{patch}");
    }
    assert_eq!(core.patch("demo", json!({"name": "New"})).await.expect(200).json()["version"], 2);
    let audit = core.admin_get("/admin/v1/audit").await.expect(200).json()["items"].take();
    let changes: Vec<_> = audit.as_array().unwrap().iter().map(|item| &item["what"]).collect();
    assert_eq!(changes, ["create", "update"]);
}

/// Sends a change, and retries it at the same version after a 503. Returns the status, and whether the change was
/// retried.
async fn change(core: &Core, path: &str, body: &Value) -> (u16, bool) {
    let first = core.admin(Method::PATCH, path, body).await;
    if first.status != 503 {
        return (first.status, false);
    }
    let again = until_status(SOON, &[200, 409], async || core.admin(Method::PATCH, path, body).await).await;
    (again.status, true)
}

#[tokio::test]
async fn only_one_of_several_changes_to_a_version_succeeds() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    let path = format!("{CAMPAIGNS}/demo");
    let bodies: Vec<_> = (0..10).map(|at| json!({"version": 1, "name": format!("n{at}")})).collect();
    let made = join_all(bodies.iter().map(|body| change(&core, &path, body))).await;
    let changed = made.iter().filter(|(status, _)| *status == 200).count();
    // The 200 may be among the lost responses.
    let is_repeated = made.iter().any(|(_, is_repeated)| *is_repeated);
    assert!(changed == 1 || (changed == 0 && is_repeated), "{made:?}");
    assert_eq!(made.iter().filter(|(status, _)| *status == 409).count(), 10 - changed, "{made:?}");
    assert_eq!(core.campaign("demo").await["version"], 2);
}

#[tokio::test]
async fn pause_resume_and_end_are_idempotent_and_the_end_is_final() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    for (verb, state, version) in [
        ("resume", "open", 1),
        ("pause", "paused", 2),
        ("pause", "paused", 2),
        ("resume", "open", 3),
        ("resume", "open", 3),
        ("end", "ended", 4),
        ("end", "ended", 4),
    ] {
        let shown = core.set_admin_state("demo", verb).await.expect(200).json();
        assert_eq!((&shown["state"], &shown["version"]), (&json!(state), &json!(version)), "{verb}");
    }
    core.set_admin_state("demo", "resume").await.refused(409, "campaign_ended");
    core.set_admin_state("demo", "pause").await.refused(409, "campaign_ended");
    core.claim("demo", "a", "k").await.refused(403, "ended");
}

#[tokio::test]
async fn a_change_applies_to_the_next_decision() {
    let core = Core::start().await;
    core.create("demo", json!({"per_claim": 1})).await;
    for round in 0..10 {
        core.set_admin_state("demo", "pause").await.expect(200);
        core.claim("demo", "a", &format!("p{round}")).await.refused(403, "paused");
        core.set_admin_state("demo", "resume").await.expect(200);
        let version = core.campaign("demo").await["version"].clone();
        let granted = core.claim("demo", "a", &format!("r{round}")).await.expect(201).json();
        assert_eq!(granted["version"], version);
        core.patch("demo", json!({"limits": {"per_claim": round + 2}})).await.expect(200);
        core.claim_units("demo", "a", &format!("q{round}"), round + 2).await.expect(201);
        core.claim_units("demo", "a", &format!("x{round}"), round + 3)
            .await
            .refused(422, "quantity_out_of_range");
    }
}

#[tokio::test]
async fn a_total_below_the_units_taken_sells_out_and_revokes_nothing() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 5, "per_user": 3})).await;
    for at in 0..3 {
        core.claim("demo", "alice", &format!("k{at}")).await.expect(201);
    }
    let changed = core.patch("demo", json!({"limits": {"total": 2, "per_user": 1}})).await.expect(200).json();
    assert_eq!(
        (&changed["taken"], &changed["remaining"], &changed["state"]),
        (&json!(3), &json!(0), &json!("sold_out"))
    );
    let refused = core.claim("demo", "bob", "k").await.refused(409, "sold_out").json();
    assert_eq!(refused["remaining"], 0);
    let refused = core.claim("demo", "alice", "k9").await.refused(409, "user_limit_reached").json();
    assert_eq!(refused["remaining"], 0);
    for at in 0..3 {
        core.claim("demo", "alice", &format!("k{at}")).await.expect(200);
    }
    let rows = core.sql().until("demo", 3).await;
    assert!(rows.iter().all(|row| row.status == "granted"), "{rows:?}");
    core.patch("demo", json!({"limits": {"total": 4, "per_user": null}})).await.expect(200);
    core.claim("demo", "bob", "k").await.expect(201);
    core.sql().until("demo", 4).await;
}

#[tokio::test]
async fn claims_are_listed_in_pages_and_as_csv() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    for at in 0..7 {
        core.claim_units("demo", &format!("u{at}"), "k", at + 1).await.expect(201);
    }
    let rows = core.sql().until("demo", 7).await;
    let path = format!("{CAMPAIGNS}/demo/claims");
    let (mut items, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = core.admin_get(&format!("{path}?limit=3{cursor}")).await.expect(200).json();
        items.extend(page["items"].as_array().unwrap().clone());
        let Some(next) = page["next_cursor"].as_str() else {
            break;
        };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(items.len(), 7);
    for (at, (item, row)) in items.iter().zip(&rows).enumerate() {
        assert_eq!(item["id"], claim_id("demo", &format!("u{at}"), "k"));
        assert_eq!((&item["quantity"], &item["sequence"]), (&json!(at + 1), &json!(at + 1)));
        assert_eq!(ms(item["claimed_at"].as_str().unwrap()), row.claimed_at);
        assert_eq!(
            item["claimed_at"].as_str().unwrap()[..10],
            *item["day"].as_str().unwrap(),
            "the day is in UTC"
        );
    }
    let csv = csv(&core, "demo").await;
    let lines: Vec<_> = csv.lines().collect();
    assert_eq!(lines[0], "id,user_id,quantity,status,sequence,day,claimed_at,updated_at");
    assert_eq!(lines.len(), 8);
    for (line, item) in lines[1..].iter().zip(&items) {
        let cell = |name: &str| item[name].as_str().map_or_else(|| item[name].to_string(), str::to_owned);
        let cells: Vec<_> = lines[0].split(',').map(cell).collect();
        assert_eq!(*line, cells.join(","));
    }
    core.admin_get(&format!("{path}?cursor=x")).await.refused(400, "invalid_request");
}

async fn csv(core: &Core, campaign: &str) -> String {
    let url = core.admin_url(&format!("{CAMPAIGNS}/{campaign}/claims"));
    let request =
        core.client().request(Method::GET, &url).bearer_auth(core.admin_token()).header("Accept", "text/csv");
    let reply = core.client().send(request).await.unwrap().expect(200);
    assert!(reply.header("content-type").starts_with("text/csv"), "{reply:?}");
    reply.text()
}

/// A generated client accepts every media type that openapi.json lists for a call.
#[tokio::test]
async fn csv_is_returned_only_if_json_is_not_accepted() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    let url = core.admin_url(&format!("{CAMPAIGNS}/demo/claims"));
    for (accept, kind) in [
        ("text/csv", "text/csv"),
        ("text/csv, */*;q=0.1", "text/csv"),
        ("application/json, text/csv, application/problem+json", "application/json"),
        ("*/*", "application/json"),
    ] {
        let request = core.client().request(Method::GET, &url).bearer_auth(core.admin_token());
        let reply = core.client().send(request.header("Accept", accept)).await.unwrap().expect(200);
        assert!(reply.header("content-type").starts_with(kind), "{accept}: {}", reply.header("content-type"));
    }
}

#[tokio::test]
async fn csv_is_complete_with_zero_or_many_claims() {
    let core = Core::start().await;
    core.create("none", json!({})).await;
    assert_eq!(csv(&core, "none").await, "id,user_id,quantity,status,sequence,day,claimed_at,updated_at\n");
    core.create("many", json!({})).await;
    let claims = (0..2500).map(|at| {
        let core = &core;
        async move { core.claim("many", &format!("u{at}"), "k").await }
    });
    assert!(join_all(claims).await.iter().all(Reply::is_created));
    core.sql().until("many", 2500).await;
    let text = csv(&core, "many").await;
    let sequences: Vec<u64> =
        text.lines().skip(1).map(|line| line.split(',').nth(4).unwrap().parse().unwrap()).collect();
    assert_eq!(sequences, (1..=2500).collect::<Vec<_>>());
}

#[tokio::test]
async fn the_admin_api_requires_an_admin_token() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    let body = campaign("other", json!({}));
    for (method, path, body) in [
        (Method::POST, CAMPAIGNS.to_owned(), body),
        (Method::GET, CAMPAIGNS.to_owned(), Value::Null),
        (Method::GET, format!("{CAMPAIGNS}/demo"), Value::Null),
        (Method::PATCH, format!("{CAMPAIGNS}/demo"), json!({"version": 1})),
        (Method::POST, format!("{CAMPAIGNS}/demo/pause"), Value::Null),
        (Method::POST, format!("{CAMPAIGNS}/demo/resume"), Value::Null),
        (Method::POST, format!("{CAMPAIGNS}/demo/end"), Value::Null),
        (Method::GET, format!("{CAMPAIGNS}/demo/claims"), Value::Null),
    ] {
        for (token, status) in [("", 401), ("wrong", 401), (API_TOKEN, 403)] {
            let reply = core.client().call(method.clone(), &core.admin_url(&path), token, &body).await;
            assert_eq!(reply.status, status, "{method} {path} with {token:?}: {}", reply.text());
        }
    }
    assert_eq!(core.campaign("demo").await["version"], 1);
    core.admin_get(&format!("{CAMPAIGNS}/other")).await.refused(404, "campaign_not_found");
    let url = core.url("/internal/v1/campaigns/demo");
    let admin = core.client().call(Method::GET, &url, &core.admin_token(), &Value::Null).await;
    assert_eq!(admin.status, 200, "the admin token is also valid for the internal API");
}

#[tokio::test]
async fn every_change_of_a_campaign_is_audited() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 1})).await;
    core.patch("demo", json!({"limits": {"total": 2}})).await.expect(200);
    for verb in ["pause", "pause", "resume", "end", "end"] {
        core.set_admin_state("demo", verb).await.expect(200);
    }
    let audit = core.sql().audit("demo").await;
    let changes: Vec<_> = audit.iter().map(|row| (row.0, row.1.as_str(), row.2.as_str())).collect();
    let expected = [(1, "create"), (2, "update"), (3, "pause"), (4, "resume"), (5, "end")];
    assert_eq!(changes, expected.map(|(version, what)| (version, "admin", what)));
    let total = |text: &Option<String>| {
        serde_json::from_str::<Value>(text.as_ref().unwrap()).unwrap()["limits"]["total"].clone()
    };
    assert!(audit[0].3.is_none(), "a creation has no previous state");
    assert_eq!((total(&audit[1].3), total(&Some(audit[1].4.clone()))), (json!(1), json!(2)));
}
