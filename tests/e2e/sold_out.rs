//! Sold out, and cached: a crowd that comes too late costs Redis nothing, and no caller gets a different
//! answer for it.

use std::pin::Pin;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use support::core_client::API_TOKEN;
use support::postgres::Postgres;
use support::signing::Signed;
use support::times::from_now;
use support::wait::holds;
use support::{Core, CoreOptions, Reply, SOON, Servers, eventually};

/// As old as a refusal of core's may be.
const HEARD_MAX: Duration = Duration::from_millis(100);

/// Two cores on one Redis and one SQL.
struct Pair {
    granting: Core,
    refusing: Core,
    redis: Servers,
    _postgres: Postgres,
}

impl Pair {
    async fn start() -> Option<Self> {
        let postgres = match Postgres::start().await {
            Ok(postgres) => postgres,
            Err(why) => {
                eprintln!("SKIPPED sold out, cached by two cores: {why}");
                assert!(std::env::var_os("CI").is_none(), "skipped: {why}");
                return None;
            }
        };
        let url = postgres.database("claimgate").await;
        let redis = Servers::start().await;
        let start = || {
            let options = CoreOptions::default().with("CLAIMGATE_DATABASE_URL", &url);
            options.with("CLAIMGATE_REDIS_URL", redis.url()).start()
        };
        let (granting, refusing) = (start().await, start().await);
        Some(Self { granting, refusing, redis, _postgres: postgres })
    }

    /// A crowd is refused by the second core until it no longer asks Redis.
    async fn until_known_from_memory(&self, campaign: &str, crowd: &str) {
        until_known_from_memory(&self.refusing, campaign, crowd).await;
    }
}

/// First tries of a crowd are refused by `core` until it no longer asks Redis.
async fn until_known_from_memory(core: &Core, campaign: &str, crowd: &str) {
    let before = from_memory(core).await;
    eventually(SOON, || async {
        for user in 0..20 {
            let refused = core.first_try(campaign, &format!("{crowd}-{user}"), "k").await;
            refused.refused(409, "sold_out");
        }
        let now = from_memory(core).await;
        holds(now >= before + 20, || format!("{now} refused from memory, {before} before"))
    })
    .await;
}

/// Claims that `core` has refused without asking Redis.
async fn from_memory(core: &Core) -> u64 {
    let metrics = core.client().try_get(&core.admin_url("/metrics"), "").await.unwrap().text();
    let line = metrics.lines().find_map(|line| line.strip_prefix("claimgate_sold_out_cached_total "));
    line.map_or(0, |count| count.parse().unwrap())
}

async fn a_moment_later() {
    tokio::time::sleep(HEARD_MAX).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_core_gives_back_is_there_for_the_taking() {
    let Some(mut pair) = Pair::start().await else { return };
    let limits = json!({"total": 20, "per_user": 2, "per_user_per_day": 1, "per_claim": 2});
    pair.granting.create("demo", limits).await;
    let mut winners = Vec::new();
    for user in 0..20 {
        let won = pair.granting.claim("demo", &format!("winner-{user}"), "k").await.expect(201);
        winners.push(won.json()["claim"]["id"].as_str().unwrap().to_owned());
    }
    pair.until_known_from_memory("demo", "first").await;

    // A core that has granted nothing answers winners as the one that has.
    let again = pair.refusing.claim("demo", "winner-3", "k").await.expect(200);
    assert_eq!(again.json()["claim"]["id"].as_str(), Some(winners[3].as_str()));
    pair.refusing.claim("demo", "winner-3", "another").await.refused(409, "user_daily_limit_reached");
    pair.refusing.claim_units("demo", "late", "k", 3).await.refused(422, "quantity_out_of_range");
    pair.refusing.claim_units("demo", "late", "k", 2).await.refused(409, "user_daily_limit_reached");

    returned(&pair.granting, &winners[7]).await;
    a_moment_later().await;
    pair.refusing.claim("demo", "patient", "k").await.expect(201);
    pair.until_known_from_memory("demo", "second").await;
    pair.refusing.claim("demo", "patient", "k").await.expect(200);

    pair.granting.patch("demo", json!({"limits": {"total": 21}})).await.expect(200);
    a_moment_later().await;
    pair.refusing.claim("demo", "raised", "k").await.expect(201);
    pair.until_known_from_memory("demo", "third").await;

    pair.granting.set_admin_state("demo", "pause").await.expect(200);
    a_moment_later().await;
    pair.refusing.claim("demo", "late", "k").await.refused(403, "paused");
    pair.granting.set_admin_state("demo", "resume").await.expect(200);
    pair.until_known_from_memory("demo", "fourth").await;

    pair.redis.kill();
    a_moment_later().await;
    pair.refusing.once().claim("demo", "late", "k").await.refused(503, "unavailable");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_expires_is_there_for_the_taking() {
    let Some(pair) = Pair::start().await else { return };
    let body = json!({
        "id": "held", "name": "Held", "starts_at": from_now(-60), "limits": {"total": 5}, "hold_seconds": 4,
    });
    pair.granting.create_with(body).await;
    for user in 0..5 {
        pair.granting.claim("held", &format!("holder-{user}"), "k").await.expect(201);
    }
    pair.until_known_from_memory("held", "crowd").await;
    // Refused until the very millisecond at which a hold falls due.
    eventually(SOON, || async {
        let reply = pair.refusing.claim("held", "patient", "k").await;
        holds(reply.status < 300, || reply.text())
    })
    .await;
    let first = pair.refusing.look_up(&first_claim(&pair).await).await.expect(200);
    assert_eq!(first.json()["claim"]["status"], "expired");
}

/// What a core has cached is a moment old: a caller who has won at another core meanwhile, and asks again here, must not be
/// told it. Only a first try is certainly no retry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_be_a_winner_of_another_core_is_not_refused_from_memory() {
    let Some(pair) = Pair::start().await else { return };
    pair.granting.create("retried", json!({"total": 5})).await;
    let mut last = String::new();
    for user in 0..5 {
        let won = pair.granting.claim("retried", &format!("winner-{user}"), "k").await.expect(201);
        won.json()["claim"]["id"].as_str().unwrap().clone_into(&mut last);
    }
    // Each round is over long before the second core asks Redis again; should one not be, the next one is.
    for round in 0..20 {
        pair.until_known_from_memory("retried", &format!("crowd-{round}")).await;
        returned(&pair.granting, &last).await;
        let user = format!("late-{round}");
        let won = pair.granting.claim("retried", &user, "k").await.expect(201).json();
        let again = pair.refusing.claim("retried", &user, "k").await.expect(200);
        assert_eq!(again.header("idempotent-replayed"), "true");
        assert_eq!(again.json()["claim"], won["claim"], "round {round}");
        won["claim"]["id"].as_str().unwrap().clone_into(&mut last);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_mark_that_its_caller_vouches_for_is_answered_from_memory() {
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
    // Whether core has answered from memory, while it had cached that nothing is left.
    let is_from_memory = async |asking: Pin<Box<dyn Future<Output = Reply> + '_>>| {
        until_known_from_memory(&core, "marks", "crowd").await;
        let before = from_memory(&core).await;
        asking.await.refused(409, "sold_out");
        from_memory(&core).await > before
    };
    // What it knows lapses where Redis is slow to say it again.
    eventually(SOON, || async {
        let by_edge = is_from_memory(Box::pin(marked.send(&core))).await;
        let by_back_end = is_from_memory(Box::pin(by_token(&["1"]))).await;
        holds(by_edge && by_back_end, || format!("the edge's: {by_edge}, the back end's: {by_back_end}"))
    })
    .await;
    let unsigned_mark = unmarked.signature();
    for (what, asking) in [
        ("the edge's, unmarked", Box::pin(unmarked.send(&core)) as Pin<Box<dyn Future<Output = Reply>>>),
        // Let in all the same: to ask Redis is never wrong.
        ("a mark that is not signed", Box::pin(mark_added.send_signed(&core, &unsigned_mark))),
        ("a mark that is none", Box::pin(mark_changed.send_signed(&core, &unsigned_mark))),
        ("a back end's, unmarked", Box::pin(by_token(&[]))),
        ("a back end's retry", Box::pin(by_token(&["2"]))),
        ("two marks", Box::pin(by_token(&["1", "1"]))),
    ] {
        assert!(!is_from_memory(asking).await, "{what}");
    }
    unmarked.send_signed(&core, &marked.signature()).await.refused(401, "unauthenticated");
    // A winner is one, marked or not.
    core.first_try("marks", "winner", "k").await.expect(200);
}

/// The claim that was held first.
async fn first_claim(pair: &Pair) -> String {
    let held = pair.granting.claim("held", "holder-0", "k").await.expect(200);
    held.json()["claim"]["id"].as_str().unwrap().to_owned()
}

async fn returned(core: &Core, claim_id: &str) {
    let url = core.url(&format!("/internal/v1/claims/{claim_id}/return"));
    core.client().call(Method::POST, &url, API_TOKEN, &Value::Null).await.expect(200);
}
