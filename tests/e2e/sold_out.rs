//! The sold-out cache: late claims cost Redis nothing, and no caller gets a different response because of the
//! cache.

use std::pin::Pin;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use support::available::available;
use support::clock::Clock;
use support::core_client::API_TOKEN;
use support::postgres::Postgres;
use support::signing::Signed;
use support::times::from_now;
use support::wait::{holds, until_status};
use support::{Core, CoreOptions, Reply, SOON, Servers, eventually};

/// Maximum age of a denial from core's cache.
const STALE_MAX: Duration = Duration::from_millis(100);

/// Maximum units that a campaign can count: 2^40 - 1.
const UNITS_MAX: u64 = (1 << 40) - 1;

#[tokio::test]
async fn an_unlimited_campaign_sells_out_at_the_counters_maximum() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    core.set_admin_state("demo", "pause").await.expect(200);
    // Import claims for all but 255 units.
    let csv = "user_id,quantity\n".to_owned() + &"ann,4294967295\n".repeat(256);
    let url = core.admin_url("/admin/v1/campaigns/demo/import");
    let import = core.client().request(Method::POST, &url).bearer_auth(core.admin_token());
    core.client().send(import.header("Content-Type", "text/csv").body(csv)).await.unwrap().expect(200);
    core.set_admin_state("demo", "resume").await.expect(200);
    let view = async || core.get("/internal/v1/campaigns/demo").await.expect(200).json();
    eventually(SOON, || async {
        let found = core.admin_get("/admin/v1/campaigns/demo").await.expect(200).json();
        holds(found["taken"] == UNITS_MAX - 255, || found.to_string())
    })
    .await;
    let before = view().await;
    assert_eq!((&before["state"], &before["remaining"]), (&json!("open"), &json!(255)), "{before}");
    for user in ["bob", "ann"] {
        let refused = core.claim_units("demo", user, "k", 256).await.refused(409, "sold_out").json();
        assert_eq!((&refused["limit"], &refused["remaining"]), (&json!("total"), &json!(255)), "{refused}");
    }
    let allowance = core.get("/internal/v1/campaigns/demo/users/ann").await.expect(200).json();
    let allowance = &allowance["allowance"];
    assert_eq!((&allowance["total"], &allowance["per_user"]), (&json!(255), &Value::Null), "{allowance}");
    let last = core.claim_units("demo", "bob", "k", 255).await.expect(201).json();
    assert_eq!(last["remaining"], 0, "{last}");
    core.claim("demo", "cid", "k").await.refused(409, "sold_out");
    let after = view().await;
    assert_eq!((&after["state"], &after["remaining"]), (&json!("sold_out"), &json!(0)), "{after}");
}

/// Two cores that share Redis and SQL.
struct Pair {
    granting: Core,
    refusing: Core,
    redis: Servers,
    _postgres: Postgres,
}

impl Pair {
    async fn start() -> Option<Self> {
        Self::on(Servers::start().await).await
    }

    async fn on(redis: Servers) -> Option<Self> {
        let postgres = available("sold out, cached by two cores", Postgres::start().await)?;
        let url = postgres.database("claimgate").await;
        let start = || {
            let options = CoreOptions::default().with("CLAIMGATE_DATABASE_URL", &url);
            options.with("CLAIMGATE_REDIS_URL", redis.url()).start()
        };
        let (granting, refusing) = (start().await, start().await);
        Some(Self { granting, refusing, redis, _postgres: postgres })
    }

    /// Sends first tries to the second core until it denies them from its cache.
    async fn until_cached(&self, campaign: &str, crowd: &str) {
        until_cached(&self.refusing, campaign, crowd).await;
    }
}

/// Sends first tries to `core` until it denies them from its cache.
async fn until_cached(core: &Core, campaign: &str, crowd: &str) {
    let before = denied_from_cache(core).await;
    eventually(SOON, || async {
        for user in 0..20 {
            let refused = core.first_try(campaign, &format!("{crowd}-{user}"), "k").await;
            refused.refused(409, "sold_out");
        }
        let now = denied_from_cache(core).await;
        holds(now >= before + 20, || format!("{now} denied from the cache, {before} before"))
    })
    .await;
}

/// Returns the number of claims that `core` has denied without calling Redis.
async fn denied_from_cache(core: &Core) -> u64 {
    core.metric("claimgate_sold_out_cached_total").await.unwrap_or(0)
}

async fn until_stale() {
    tokio::time::sleep(STALE_MAX).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_returned_at_another_core_can_be_claimed() {
    let Some(mut pair) = Pair::start().await else { return };
    let limits = json!({"total": 20, "per_user": 2, "per_user_per_day": 1, "per_claim": 2});
    pair.granting.create("demo", limits).await;
    let mut winners = Vec::new();
    for user in 0..20 {
        let won = pair.granting.claim("demo", &format!("winner-{user}"), "k").await.expect(201);
        winners.push(won.json()["claim"]["id"].as_str().unwrap().to_owned());
    }
    pair.until_cached("demo", "first").await;

    // The core that granted nothing gives winners the same responses.
    let again = pair.refusing.claim("demo", "winner-3", "k").await.expect(200);
    assert_eq!(again.json()["claim"]["id"].as_str(), Some(winners[3].as_str()));
    pair.refusing.claim("demo", "winner-3", "another").await.refused(409, "user_daily_limit_reached");
    pair.refusing.claim_units("demo", "late", "k", 3).await.refused(422, "quantity_out_of_range");
    pair.refusing.claim_units("demo", "late", "k", 2).await.refused(409, "user_daily_limit_reached");

    pair.granting.transition(&winners[7], "return").await.expect(200);
    until_stale().await;
    pair.refusing.first_try("demo", "patient", "k").await.expect(201);
    pair.until_cached("demo", "second").await;
    pair.refusing.claim("demo", "patient", "k").await.expect(200);

    pair.granting.patch("demo", json!({"limits": {"total": 21}})).await.expect(200);
    until_stale().await;
    pair.refusing.first_try("demo", "raised", "k").await.expect(201);
    pair.until_cached("demo", "third").await;

    pair.granting.set_admin_state("demo", "pause").await.expect(200);
    until_stale().await;
    pair.refusing.first_try("demo", "late", "k").await.refused(403, "paused");
    pair.granting.set_admin_state("demo", "resume").await.expect(200);
    pair.until_cached("demo", "fourth").await;

    pair.redis.kill();
    until_stale().await;
    pair.refusing.once().claim("demo", "late", "k").await.refused(503, "unavailable");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_of_an_expired_hold_can_be_claimed() {
    let clock = Clock::new();
    let Some(pair) = Pair::on(Servers::start_on(&clock).await).await else { return };
    let body = json!({
        "id": "held", "name": "Held", "starts_at": from_now(-60), "limits": {"total": 5}, "hold_seconds": 3600,
    });
    pair.granting.create_with(body).await;
    for user in 0..5 {
        pair.granting.claim("held", &format!("holder-{user}"), "k").await.expect(201);
    }
    pair.until_cached("held", "crowd").await;
    pair.redis.move_clock(&clock, 3_600_000).await;
    until_status(SOON, &[200, 201], async || pair.refusing.claim("held", "patient", "k").await).await;
    let first = pair.refusing.look_up(&first_held_claim(&pair).await).await.expect(200);
    assert_eq!(first.json()["claim"]["status"], "expired");
}

/// The cache may be slightly stale: a caller whose claim was granted at the other core may retry here. Only a
/// claim marked as a first try may be denied from the cache.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_is_never_rejected_from_the_cache() {
    let Some(pair) = Pair::start().await else { return };
    pair.granting.create("retried", json!({"total": 5})).await;
    let mut last = String::new();
    for user in 0..5 {
        let won = pair.granting.claim("retried", &format!("winner-{user}"), "k").await.expect(201);
        won.json()["claim"]["id"].as_str().unwrap().clone_into(&mut last);
    }
    // In a single round the second core's cache may be refreshed first, so many rounds are needed.
    for round in 0..20 {
        pair.until_cached("retried", &format!("crowd-{round}")).await;
        pair.granting.transition(&last, "return").await.expect(200);
        let user = format!("late-{round}");
        let won = pair.granting.claim("retried", &user, "k").await.expect(201).json();
        let again = pair.refusing.claim("retried", &user, "k").await.expect(200);
        assert_eq!(again.header("idempotent-replayed"), "true");
        assert_eq!(again.json()["claim"], won["claim"], "round {round}");
        won["claim"]["id"].as_str().unwrap().clone_into(&mut last);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_an_authenticated_first_try_is_answered_from_cache() {
    let core = Core::start().await;
    core.create("marks", json!({"total": 1})).await;
    core.claim("marks", "winner", "k").await.expect(201);
    let unmarked = Signed::claim(&core, "marks", "edge", "k");
    let marked = Signed::first_try(&core, "marks", "edge", "k");
    let mark_added = Signed { attempt: "1".to_owned(), ..unmarked.clone() };
    let mark_changed = Signed { attempt: "2".to_owned(), ..unmarked.clone() };
    let by_token = |marks: &'static [&'static str]| {
        let url = core.url("/internal/v1/claims");
        let request = core.client().request(Method::POST, &url).bearer_auth(API_TOKEN);
        let request = request.json(&support::claim_body("marks", "back-end", "k", 1));
        let request = marks.iter().fold(request, |request, mark| request.header("Claimgate-Attempt", *mark));
        async { core.client().send(request).await.unwrap() }
    };
    // Returns whether core denied the claim from its cache.
    let is_from_cache = async |asking: Pin<Box<dyn Future<Output = Reply> + '_>>| {
        until_cached(&core, "marks", "crowd").await;
        let before = denied_from_cache(&core).await;
        asking.await.refused(409, "sold_out");
        denied_from_cache(&core).await > before
    };
    // The cached state may expire if Redis is slow to confirm it.
    eventually(SOON, || async {
        let by_edge = is_from_cache(Box::pin(marked.send(&core))).await;
        let by_back_end = is_from_cache(Box::pin(by_token(&["1"]))).await;
        holds(by_edge && by_back_end, || format!("the edge's: {by_edge}, the back end's: {by_back_end}"))
    })
    .await;
    let unsigned_mark = unmarked.signature();
    for (what, asking) in [
        ("the edge's, unmarked", Box::pin(unmarked.send(&core)) as Pin<Box<dyn Future<Output = Reply>>>),
        // These claims are valid, but must be decided by Redis.
        ("a mark that is not signed", Box::pin(mark_added.send_signed(&core, &unsigned_mark))),
        ("an invalid mark", Box::pin(mark_changed.send_signed(&core, &unsigned_mark))),
        ("a back end's, unmarked", Box::pin(by_token(&[]))),
        ("a back end's retry", Box::pin(by_token(&["2"]))),
        ("two marks", Box::pin(by_token(&["1", "1"]))),
    ] {
        assert!(!is_from_cache(asking).await, "{what}");
    }
    unmarked.send_signed(&core, &marked.signature()).await.refused(401, "unauthenticated");
    // A winner's claim is replayed even with the mark.
    core.first_try("marks", "winner", "k").await.expect(200);
}

/// Returns the id of the first claim that was held.
async fn first_held_claim(pair: &Pair) -> String {
    let held = pair.granting.claim("held", "holder-0", "k").await.expect(200);
    held.json()["claim"]["id"].as_str().unwrap().to_owned()
}
