//! One claim from its first request to its row in SQL, and each rule that may deny it.

use reqwest::Method;
use serde_json::{Value, json};
use support::clock::FrozenClock;
use support::core_client::campaign;
use support::raw::{Raw, claim_request};
use support::signing::{Signed, claim_id};
use support::times::{from_now, ms, now_ms};
use support::wait::holds;
use support::{Core, CoreOptions, Reply, SOON, Servers, claim_body, eventually};

/// Returns the claim in a response, without the members that differ between a grant and its replays.
fn claim(reply: &Reply) -> Value {
    reply.json()["claim"].clone()
}

#[tokio::test]
async fn a_replay_returns_the_same_claim_as_the_grant() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 10, "per_user": 3})).await;
    let before = now_ms();
    let granted = core.claim_units("demo", "alice", "k1", 2).await.expect(201);
    let body = granted.json();
    assert_eq!((&body["remaining"], &body["version"]), (&json!(8), &json!(1)));
    let at = body["claim"]["claimed_at"].as_str().unwrap().to_owned();
    assert!(
        (before - 1000..=now_ms() + 1000).contains(&ms(&at)) && at.ends_with('Z') && at.len() == 24,
        "{at}"
    );
    let expected = json!({
        "id": claim_id("demo", "alice", "k1"), "campaign_id": "demo", "user_id": "alice", "quantity": 2,
        "status": "granted", "sequence": 1, "claimed_at": at, "expires_at": null,
    });
    assert_eq!(claim(&granted), expected);
    assert_eq!((granted.header("idempotent-replayed"), granted.header("cache-control")), ("", "no-store"));
    let again = core.claim_units("demo", "alice", "k1", 2).await.expect(200);
    assert_eq!((claim(&again), again.header("idempotent-replayed")), (expected, "true"));
    assert_eq!(again.json()["remaining"], 8);
}

#[tokio::test]
async fn claim_ids_are_derived_as_documented() {
    // printf '\0\0\0\4demo\0\0\0\5alice\0\0\0\2k1' | sha256sum
    assert_eq!(claim_id("demo", "alice", "k1"), "demo.alice.7qS1suZRPTSNsAtig2V7tg");
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    for (user, key) in [("alice", "k1"), ("a", "b-_c"), (&*"u".repeat(64), &*"K".repeat(64))] {
        let granted = core.claim("demo", user, key).await.expect(201);
        assert_eq!(claim(&granted)["id"], claim_id("demo", user, key));
    }
}

#[tokio::test]
async fn quantity_defaults_to_one_and_limits_to_unlimited() {
    let core = Core::start().await;
    core.create("free", json!({})).await;
    let body = json!({"campaign_id": "free", "user_id": "a", "idempotency_key": "k"});
    let granted = core.post_claim(&body).await.expect(201).json();
    assert_eq!((&granted["claim"]["quantity"], &granted["remaining"]), (&json!(1), &json!(null)));
    for at in 0..3 {
        core.claim_units("free", "a", &format!("big{at}"), u32::MAX).await.expect(201);
    }
    let view = core.campaign("free").await;
    assert_eq!((&view["remaining"], &view["state"]), (&json!(null), &json!("open")));
    let limits = json!({"total": null, "per_user": null, "per_user_per_day": null, "per_claim": null});
    assert_eq!(view["limits"], limits);
    let taken = core.admin_get("/admin/v1/campaigns/free").await.json()["taken"].clone();
    assert_eq!(taken, json!(3 * u64::from(u32::MAX) + 1));
}

#[tokio::test]
async fn a_reused_key_is_rejected_only_if_the_quantity_differs() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 10})).await;
    let alice = core.claim("demo", "alice", "k").await.expect(201);
    let reused = core.claim_units("demo", "alice", "k", 2).await.refused(422, "idempotency_key_reused");
    assert_eq!(reused.json()["version"], 1);
    let bob = core.claim("demo", "bob", "k").await.expect(201);
    assert_ne!(claim(&alice)["id"], claim(&bob)["id"]);
    assert_eq!(core.campaign("demo").await["remaining"], 8);
}

#[tokio::test]
async fn a_lookup_reports_whether_sql_has_the_claim() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 10})).await;
    let granted = claim(&core.claim("demo", "alice", "k").await.expect(201));
    let id = granted["id"].as_str().unwrap();
    let mut expected = granted.clone();
    expected["persisted"] = json!(true);
    eventually(SOON, || async {
        let found = claim(&core.look_up(id).await.expect(200));
        holds(found == expected, || format!("{found}"))
    })
    .await;
    let row = core.sql().claims("demo").await.remove(0);
    assert_eq!((row.id.as_str(), row.sequence, row.quantity, row.status.as_str()), (id, 1, 1, "granted"));
    assert_eq!(row.claimed_at, ms(granted["claimed_at"].as_str().unwrap()));
    assert_eq!(row.day.cast_signed(), row.claimed_at.div_euclid(86_400_000));
    core.look_up(&claim_id("demo", "alice", "other")).await.refused(404, "claim_not_found");
}

#[tokio::test]
async fn a_winners_retry_succeeds_in_any_state_of_the_campaign() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 1})).await;
    let won = claim(&core.claim("demo", "alice", "k").await.expect(201));
    core.claim("demo", "bob", "k").await.refused(409, "sold_out");
    let replay = async |what: &str| {
        let again = core.claim("demo", "alice", "k").await;
        assert_eq!((again.status, claim(&again)), (200, won.clone()), "{what}");
    };
    replay("sold out").await;
    core.set_admin_state("demo", "pause").await.expect(200);
    core.claim("demo", "bob", "k").await.refused(403, "paused");
    replay("paused").await;
    core.set_admin_state("demo", "resume").await.expect(200);
    core.patch("demo", json!({"ends_at": from_now(-1)})).await.expect(200);
    core.claim("demo", "bob", "k").await.refused(403, "ended");
    replay("after the window").await;
    core.patch("demo", json!({"starts_at": from_now(3600), "ends_at": null})).await.expect(200);
    core.claim("demo", "bob", "k").await.refused(403, "not_started");
    replay("before the window").await;
    core.set_admin_state("demo", "end").await.expect(200);
    core.claim("demo", "bob", "k").await.refused(403, "ended");
    replay("ended by an admin").await;
    assert_eq!(core.sql().until("demo", 1).await.len(), 1);
}

#[tokio::test]
async fn a_denied_key_is_decided_again() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 1})).await;
    core.claim("demo", "alice", "k").await.expect(201);
    core.claim("demo", "bob", "k").await.refused(409, "sold_out");
    core.patch("demo", json!({"limits": {"total": 2}})).await.expect(200);
    let granted = core.claim("demo", "bob", "k").await.expect(201).json();
    assert_eq!((&granted["claim"]["sequence"], &granted["version"]), (&json!(2), &json!(2)));
    core.set_admin_state("demo", "pause").await.expect(200);
    core.claim("demo", "carol", "k").await.refused(403, "paused");
    core.patch("demo", json!({"limits": {"total": null}})).await.expect(200);
    core.set_admin_state("demo", "resume").await.expect(200);
    core.claim_units("demo", "carol", "k", 3).await.expect(201);
}

#[tokio::test]
async fn quantity_is_all_or_nothing() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 5})).await;
    core.claim_units("demo", "alice", "k", 3).await.expect(201);
    let refused = core.claim_units("demo", "bob", "k", 3).await.refused(409, "sold_out").json();
    assert_eq!((&refused["remaining"], &refused["limit"]), (&json!(2), &json!("total")));
    assert_eq!(core.campaign("demo").await["remaining"], 2);
    core.claim_units("demo", "bob", "k2", 2).await.expect(201);
    let refused = core.claim("demo", "carol", "k").await.refused(409, "sold_out").json();
    assert_eq!(refused["remaining"], 0);
    assert_eq!(core.campaign("demo").await["state"], "sold_out");
}

#[tokio::test]
async fn each_limit_allows_exactly_its_number_of_units() {
    let core = Core::start().await;
    for (limit, code) in [
        ("total", "sold_out"),
        ("per_user", "user_limit_reached"),
        ("per_user_per_day", "user_daily_limit_reached"),
    ] {
        let id = format!("only-{limit}");
        core.create(&id, json!({limit: 3})).await;
        core.claim_units(&id, "alice", "a", 4).await.refused(409, code);
        core.claim_units(&id, "alice", "b", 2).await.expect(201);
        let refused = core.claim_units(&id, "alice", "c", 2).await.refused(409, code).json();
        assert_eq!((&refused["remaining"], &refused["limit"]), (&json!(1), &json!(limit)));
        core.claim(&id, "alice", "d").await.expect(201);
        let refused = core.claim(&id, "alice", "e").await.refused(409, code).json();
        assert_eq!(refused["remaining"], 0);
        let other = core.claim(&id, "bob", "a").await;
        if limit == "total" {
            other.refused(409, code);
        } else {
            other.expect(201);
        }
    }
}

#[tokio::test]
async fn the_per_claim_limit_does_not_limit_the_number_of_claims() {
    let core = Core::start().await;
    core.create("demo", json!({"per_claim": 2})).await;
    core.claim_units("demo", "alice", "a", 3).await.refused(422, "quantity_out_of_range");
    for key in ["b", "c", "d"] {
        core.claim_units("demo", "alice", key, 2).await.expect(201);
    }
    let taken = core.admin_get("/admin/v1/campaigns/demo").await.json()["taken"].clone();
    assert_eq!(taken, 6);
}

#[tokio::test]
async fn a_denial_names_the_first_rule_that_denies() {
    let core = Core::start().await;
    let all = json!({"total": 4, "per_user": 3, "per_user_per_day": 2, "per_claim": 2});
    core.create("demo", all).await;
    let assert_rejected = async |user: &str, key: &str, units, status, code: &str| {
        assert_eq!(core.claim_units("demo", user, key, units).await.refused(status, code).status, status);
    };
    core.claim_units("demo", "alice", "1", 2).await.expect(201);
    assert_rejected("alice", "2", 3, 422, "quantity_out_of_range").await;
    assert_rejected("alice", "2", 2, 409, "user_daily_limit_reached").await;
    core.patch("demo", json!({"limits": {"per_user_per_day": 5}})).await.expect(200);
    assert_rejected("alice", "2", 2, 409, "user_limit_reached").await;
    core.claim("demo", "bob", "1").await.expect(201);
    core.claim("demo", "bob", "2").await.expect(201);
    assert_rejected("alice", "2", 2, 409, "user_limit_reached").await;
    assert_rejected("alice", "2", 1, 409, "sold_out").await;
    core.patch("demo", json!({"ends_at": from_now(-1)})).await.expect(200);
    assert_rejected("alice", "2", 3, 403, "ended").await;
    core.set_admin_state("demo", "pause").await.expect(200);
    assert_rejected("alice", "2", 3, 403, "paused").await;
    assert_rejected("alice", "1", 1, 422, "idempotency_key_reused").await;
    assert_eq!(core.admin_get("/admin/v1/campaigns/demo").await.json()["taken"], 4);
}

#[tokio::test]
async fn a_claim_denied_by_one_limit_does_not_count_in_the_others() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 10, "per_user": 3, "per_user_per_day": 2})).await;
    core.claim_units("demo", "alice", "1", 2).await.expect(201);
    for key in 0..5 {
        core.claim("demo", "alice", &format!("no{key}")).await.refused(409, "user_daily_limit_reached");
    }
    core.patch("demo", json!({"limits": {"per_user_per_day": null}})).await.expect(200);
    let refused = core.claim_units("demo", "alice", "2", 2).await.refused(409, "user_limit_reached").json();
    assert_eq!(refused["remaining"], 1);
    core.claim("demo", "alice", "3").await.expect(201);
    assert_eq!(core.campaign("demo").await["remaining"], 7);
}

#[tokio::test]
async fn all_of_a_users_many_claims_can_be_replayed() {
    const CLAIMS: u64 = 30;
    let core = Core::start().await;
    core.create("demo", json!({"per_user": CLAIMS})).await;
    let mut won = Vec::new();
    for at in 0..CLAIMS {
        won.push(claim(&core.claim("demo", "alice", &format!("k{at}")).await.expect(201)));
    }
    core.claim("demo", "alice", "more").await.refused(409, "user_limit_reached");
    let redis = core.redis().await;
    assert_eq!(redis.moved_claims("demo").await, CLAIMS - 8, "eight claims stay in the user's record");
    for (at, won) in won.iter().enumerate() {
        let again = core.claim("demo", "alice", &format!("k{at}")).await.expect(200);
        assert_eq!(claim(&again), *won);
        let found = core.look_up(won["id"].as_str().unwrap()).await.expect(200);
        assert_eq!(claim(&found)["sequence"], won["sequence"]);
        core.claim_units("demo", "alice", &format!("k{at}"), 2).await.refused(422, "idempotency_key_reused");
    }
    assert_eq!(core.sql().until("demo", 30).await.len(), 30);
}

/// Claims in the last millisecond before each edge of the window, and in the first one after it.
#[tokio::test]
async fn the_window_opens_and_closes_on_time() {
    let mut clock = FrozenClock::at(now_ms());
    let redis = Servers::start_frozen(&clock).await;
    let core = CoreOptions::default().with("CLAIMGATE_REDIS_URL", redis.url()).start().await;
    let mut body = campaign("demo", json!({}));
    body["starts_at"] = json!(from_now(3600));
    body["ends_at"] = json!(from_now(7200));
    core.create_with(body.clone()).await;
    let [opens, closes] = ["starts_at", "ends_at"].map(|edge| ms(body[edge].as_str().unwrap()));
    for (at_ms, denial) in [
        (opens - 1, Some(("not_started", "starts_at", opens))),
        (opens, None),
        (closes - 1, None),
        (closes, Some(("ended", "ends_at", closes))),
    ] {
        redis.set_frozen_clock(&mut clock, at_ms).await;
        let reply = core.claim("demo", &format!("at-{at_ms}"), "k").await;
        if let Some((code, edge, edge_ms)) = denial {
            assert_eq!(ms(reply.refused(403, code).json()[edge].as_str().unwrap()), edge_ms);
        } else {
            let claimed_at = claim(&reply.expect(201))["claimed_at"].clone();
            assert_eq!(ms(claimed_at.as_str().unwrap()), at_ms);
        }
    }
}

#[tokio::test]
async fn a_claim_completes_even_if_its_client_hangs_up() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 100})).await;
    for at in 0..20 {
        let body = claim_body("demo", "alice", &format!("k{at}"), 1).to_string();
        let mut raw = Raw::connect(core.listen()).await;
        assert!(raw.send(claim_request(&body)).await);
        drop(raw);
    }
    let rows = core.sql().until("demo", 20).await;
    for at in 0..20 {
        let again = claim(&core.claim("demo", "alice", &format!("k{at}")).await.expect(200));
        assert!(rows.iter().any(|row| again["id"] == row.id.as_str()), "{again}");
    }
    assert_eq!(core.campaign("demo").await["remaining"], 80);
}

#[tokio::test]
async fn the_edge_may_claim_and_read_only_for_its_user() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 5})).await;
    let granted = Signed::claim(&core, "demo", "alice", "k").send(&core).await.expect(201);
    let path = format!("/internal/v1/claims/{}", claim(&granted)["id"].as_str().unwrap());
    let found = Signed::get(&core, &path, "alice").send(&core).await.expect(200);
    assert_eq!(claim(&found)["user_id"], "alice");
    let other = Signed::get(&core, &path, "bob").send(&core).await.refused(404, "claim_not_found");
    let missing_path = format!("/internal/v1/claims/{}", claim_id("demo", "bob", "none"));
    let missing = Signed::get(&core, &missing_path, "bob").send(&core).await.refused(404, "claim_not_found");
    assert_eq!(
        other.json()["detail"],
        missing.json()["detail"],
        "a missing claim and a different user's claim get the same answer"
    );
    let view = Signed::get(&core, "/internal/v1/campaigns/demo", "").send(&core).await.expect(200).json();
    assert_eq!(view["remaining"], 4);
    let mut signed = Signed::claim(&core, "demo", "alice", "k2");
    signed.body = claim_body("demo", "bob", "k2", 1).to_string();
    signed.send(&core).await.refused(403, "forbidden");
    let admin = core.client().request(Method::GET, &core.admin_url("/admin/v1/campaigns"));
    let signed = Signed::get(&core, "/admin/v1/campaigns", "alice");
    let admin =
        admin.header("X-Claimgate-Key", &signed.kid).header("X-Claimgate-Signature", signed.signature());
    assert_eq!(core.client().send(admin).await.unwrap().status, 401, "the edge has no admin role");
}
