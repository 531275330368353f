//! Claims, lookups and campaign views through the edge, and requests that the edge rejects itself.

use std::time::Duration;

use reqwest::Method;
use serde_json::json;
use support::times::from_now;
use support::wait::{holds, until_status};
use support::{SOON, eventually, promised};

use super::{claims_sent_to_core, open_world, run, until_rejected_early};

/// Time limit until a first try is no longer rejected by a state from the edge's cache, which is at most 2 s old.
const NOT_OPEN_AGE_MAX: Duration = Duration::from_millis(2_500);
/// The same for "sold out", which is at most 1 s old.
const SOLD_OUT_AGE_MAX: Duration = Duration::from_millis(1_500);

#[test]
fn a_claim_is_granted_once_and_shown_to_its_user_only() {
    run(async {
        let world = open_world().await;
        world.core.create("flow", json!({"total": 5, "per_claim": 2})).await;
        let granted = world.claim("flow", "alice", "k1").await.expect(201);
        let claim = &granted.json()["claim"];
        assert_eq!((&claim["status"], &claim["sequence"]), (&json!("granted"), &json!(1)));
        assert_eq!(granted.json()["remaining"], 4);
        assert_eq!(granted.header("cache-control"), "no-store");
        let id = claim["id"].as_str().unwrap();

        let again = world.claim("flow", "alice", "k1").await.expect(200);
        assert_eq!(again.header("idempotent-replayed"), "true");
        assert_eq!(again.json()["claim"], *claim);
        let two = world.claim_request("flow", "alice").json(&json!({"quantity": 2}));
        let reused = world.send(two.header("Idempotency-Key", "k1")).await;
        let _ = reused.refused(422, "idempotency_key_reused");

        let own = world.look_up(id, "alice").await.expect(200);
        assert_eq!(own.json()["claim"]["id"], *id);
        let others = world.look_up(id, "bob").await.refused(404, "claim_not_found");
        let missing =
            world.look_up("flow.bob.AAAAAAAAAAAAAAAAAAAAAA", "bob").await.refused(404, "claim_not_found");
        assert_eq!(others.json()["title"], missing.json()["title"]);
        assert_eq!(world.core.sql().until("flow", 1).await[0].id, *id);
    });
}

#[test]
fn a_total_of_zero_is_sold_out_until_units_are_added() {
    run(async {
        let world = open_world().await;
        world.core.create("nothing", json!({"total": 0})).await;
        let refused = until_rejected_early(world, "nothing", "sold_out").await;
        assert_eq!(refused.json()["remaining"], 0);
        let body = json!({"units": 1, "idempotency_key": "a"});
        world.core.admin(Method::POST, "/admin/v1/campaigns/nothing/add", &body).await.expect(200);
        until_status(SOON, &[200, 201], async || world.first_try("nothing", "alice", "k").await).await;
    });
}

#[test]
fn two_users_with_the_same_key_get_separate_claims() {
    run(async {
        let world = open_world().await;
        world.core.create("keys", json!({"total": 5})).await;
        let alices = world.claim("keys", "alice", "same").await.expect(201).json();
        let bobs = world.claim("keys", "bob", "same").await.expect(201).json();
        assert_ne!(alices["claim"]["id"], bobs["claim"]["id"]);
        // Without a key, each request is a separate claim.
        for _ in 0..2 {
            until_status(SOON, &[201], async || world.send(world.claim_request("keys", "carol")).await).await;
        }
    });
}

#[test]
fn a_winners_retry_returns_the_claim_in_any_state() {
    run(async {
        let world = open_world().await;
        for (id, verb, state, code) in [
            ("late-sold-out", "", "sold_out", "sold_out"),
            ("late-paused", "pause", "paused", "paused"),
            ("late-ended", "end", "ended", "ended"),
        ] {
            world.core.create(id, json!({"total": 1})).await;
            let won = world.claim(id, "winner", "k").await.expect(201).json();
            if !verb.is_empty() {
                let _ = world.core.set_admin_state(id, verb).await.expect(200);
            }
            world.until_edge_shows(id, state).await;
            let _ = until_rejected_early(world, id, code).await;
            let retried = world.claim(id, "winner", "k").await.expect(200);
            assert_eq!(retried.json()["claim"], won["claim"], "{id}");
            let loser = world.claim(id, "loser", "k").await;
            assert_eq!(loser.code(), code, "a keyed request may be a retry");
            assert_eq!(claims_sent_to_core(world, &loser).len(), 1);
        }
    });
}

#[test]
fn a_first_try_that_cannot_win_does_not_reach_core() {
    run(async {
        let world = open_world().await;
        let (starts_at, ended_at) = (from_now(3600), from_now(-5));
        for (id, starts, ends, code, status) in [
            ("early-not-started", &starts_at, None, "not_started", 403),
            ("early-ended", &from_now(-60), Some(&ended_at), "ended", 403),
        ] {
            let rules = json!({"id": id, "name": id, "starts_at": starts, "ends_at": ends, "limits": {}});
            world.core.create_with(rules).await;
            let refused = until_rejected_early(world, id, code).await.expect(status);
            let retry_after = refused.header("retry-after").parse::<u64>().ok();
            assert_eq!(
                retry_after.is_some_and(|s| (3_500..=3_600).contains(&s)),
                ends.is_none(),
                "{retry_after:?}"
            );
            let refused = refused.json();
            let (member, instant) =
                if ends.is_some() { ("ends_at", &ended_at) } else { ("starts_at", &starts_at) };
            assert_eq!(support::times::ms(refused[member].as_str().unwrap()), support::times::ms(instant));
            assert_eq!(refused["version"], 1);
        }
        let _ = until_rejected_early(world, "early-unknown", "campaign_not_found").await.expect(404);
        world.core.create("early-sold-out", json!({"total": 1})).await;
        let _ = world.claim("early-sold-out", "winner", "k").await.expect(201);
        world.until_edge_shows("early-sold-out", "sold_out").await;
        let refused = until_rejected_early(world, "early-sold-out", "sold_out").await.expect(409).json();
        assert_eq!((&refused["limit"], &refused["remaining"]), (&json!("total"), &json!(0)));
    });
}

#[test]
fn a_first_try_is_decided_soon_after_a_campaign_reopens() {
    run(async {
        let world = open_world().await;
        world.core.create("reopened", json!({"total": 1})).await;
        world.core.set_admin_state("reopened", "pause").await.expect(200);
        let _ = until_rejected_early(world, "reopened", "paused").await;
        world.core.set_admin_state("reopened", "resume").await.expect(200);
        until_status(promised(NOT_OPEN_AGE_MAX), &[200, 201], async || {
            world.first_try("reopened", "alice", "k").await
        })
        .await;
        world.until_edge_shows("reopened", "sold_out").await;
        let _ = until_rejected_early(world, "reopened", "sold_out").await;
        world.core.patch("reopened", json!({"limits": {"total": 2}})).await.expect(200);
        until_status(promised(SOLD_OUT_AGE_MAX), &[200, 201], async || {
            world.first_try("reopened", "bob", "k").await
        })
        .await;
    });
}

#[test]
fn denials_by_core_are_passed_through_unchanged() {
    run(async {
        let world = open_world().await;
        let limits = json!({"total": 9, "per_user": 2, "per_user_per_day": 1, "per_claim": 2});
        world.core.create("denials", limits).await;
        let _ = world.claim("denials", "alice", "k1").await.expect(201);
        let daily =
            world.claim("denials", "alice", "k2").await.refused(409, "user_daily_limit_reached").json();
        assert_eq!((&daily["limit"], &daily["remaining"]), (&json!("per_user_per_day"), &json!(0)));
        assert!(support::times::ms(daily["resets_at"].as_str().unwrap()) > support::times::now_ms());
        let _ = world
            .core
            .patch("denials", json!({"limits": {"per_user_per_day": null, "per_user": 1}}))
            .await
            .expect(200);
        let _ = world.claim("denials", "alice", "k2").await.refused(409, "user_limit_reached");
        let three = world.keyed_request("denials", "bob", "k").json(&json!({"quantity": 3}));
        let _ = world.send(three).await.refused(422, "quantity_out_of_range");
    });
}

#[test]
fn the_campaign_view_is_cached_by_etag() {
    run(async {
        let world = open_world().await;
        world.core.create("views", json!({"total": 3})).await;
        let first = world.view("views").await.expect(200);
        let view = first.json();
        assert_eq!(
            (&view["state"], &view["remaining"], &view["version"]),
            (&json!("open"), &json!(3), &json!(1))
        );
        assert_eq!(first.header("cache-control"), "public, max-age=1");
        let etag = first.header("etag").to_owned();
        let same = world.request("GET", "/v1/campaigns/views").header("If-None-Match", &etag);
        let same = world.send(same).await.expect(304);
        assert_eq!((same.header("etag"), same.body.len()), (etag.as_str(), 0));
        let head = world.send(world.request("HEAD", "/v1/campaigns/views")).await.expect(200);
        assert_eq!(head.header("etag"), etag);

        let _ = world.claim("views", "alice", "k1").await.expect(201);
        eventually(promised(Duration::from_secs(3)), || async {
            let request = world.request("GET", "/v1/campaigns/views").header("If-None-Match", &etag);
            let reply = world.send(request).await;
            holds(reply.status == 200, || format!("still {}", reply.status))
        })
        .await;
        for id in ["views-none", "a.b", "a%00b", "..", "%7B%7D", "*", &"c".repeat(65)] {
            let _ = world.view(id).await.expect(404);
        }
    });
}

#[test]
fn liveness_and_unknown_paths_do_not_reach_core() {
    run(async {
        let world = open_world().await;
        let live = world.send(world.request("GET", "/livez")).await.expect(200);
        assert!(world.forwarded(&live).is_empty());
        for path in ["/v1/claims", "/v1/other", "/internal/v1/claims", "/admin/v1/campaigns", "/metrics"] {
            let missing = world.send(world.request("GET", path)).await.expect(404);
            assert!(world.forwarded(&missing).is_empty(), "{path}");
        }
        for (method, path, allow) in [
            ("PUT", "/v1/campaigns/flow/claims", "GET, HEAD, POST"),
            ("DELETE", "/v1/campaigns/flow", "GET, HEAD"),
            ("PUT", "/v1/claims/a.b.c", "GET, HEAD"),
            ("PATCH", "/livez", "GET, HEAD"),
        ] {
            let refused = world.send(world.request(method, path)).await.refused(405, "method_not_allowed");
            assert_eq!(refused.header("allow"), allow, "{method} {path}");
        }
    });
}
