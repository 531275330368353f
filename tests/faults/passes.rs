//! A campaign that requires a pass, at two cores: without one nothing is won, and a winner's retry needs none.

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use support::core_client::campaign;
use support::signing::Signed;
use support::times::from_now;
use support::wait::{holds, until_status};
use support::{Core, CoreOptions, RedisView, Reply, SOON, claim_body, eventually};

use crate::fixture::Fixture;
use crate::tally::Row;

const SHOWN: &str = "shown";
/// Number of claims without a pass, half of them marked as first tries.
const WITHOUT_A_PASS: usize = 20_000;
const CONCURRENCY: usize = 256;

fn always(id: &str, limits: Value) -> Value {
    let mut body = campaign(id, limits);
    body["pass"] = json!({"required": "always"});
    body
}

/// Sends a claim as the edge does, until it is decided; an empty `pass` is none.
async fn claim(core: &Core, campaign: &str, user: &str, key: &str, pass: &str) -> Reply {
    eventually(SOON, || async {
        let reply = Signed::claim(core, campaign, user, key).with_pass(pass).send(core).await;
        holds(reply.status != 503, || reply.text()).map(|()| reply)
    })
    .await
}

/// Checks that Alice finds her claim and that Bob, who has none, gets `denial`, both without a pass.
async fn alice_has_won(cores: &[&Core], id: &str, denial: &str) {
    for core in cores {
        let again = claim(core, "demo", "alice", "k", "").await.expect(200);
        assert_eq!(again.json()["claim"]["id"], id);
        claim(core, "demo", "bob", "k", "").await.refused(403, denial);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_winner_finds_the_claim_without_a_pass() {
    let row = Row::begin("a winner's retries without a pass");
    let options = CoreOptions::default().with("CLAIMGATE_ARCHIVE_AFTER_S", "1");
    let Some(fixture) = row.needs(Fixture::two_cores_with(options).await) else { return };
    let cores = [&fixture.core, fixture.other()];
    fixture.core.create_with(always("demo", json!({"total": 10}))).await;
    let id = claim(cores[0], "demo", "alice", "k", SHOWN).await.expect(201).json()["claim"]["id"].clone();
    let id = id.as_str().expect("an id");
    alice_has_won(&cores, id, "pass_required").await;
    fixture.core.end_by_time("demo").await;
    fixture.redis().await.evicted("demo").await;
    alice_has_won(&cores, id, "ended").await;
    until_status(SOON, &[200], async || fixture.core.patch("demo", json!({"ends_at": null})).await).await;
    alice_has_won(&cores, id, "pass_required").await;
    fixture.relayed("demo").await;
    assert_eq!(fixture.sql.claims("demo").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rule_is_in_force_at_every_core_with_its_answer() {
    let row = Row::begin("the pass rule, changed through one core");
    let Some(fixture) = row.needs(Fixture::two_cores().await) else { return };
    let cores = [&fixture.core, fixture.other()];
    fixture.core.create("demo", json!({"total": 1000})).await;
    for round in 0..20 {
        let (changes, claims) = (cores[round % 2], cores[(round + 1) % 2]);
        let user = |rule: &str| format!("{rule}{round}");
        let required = json!({"pass": {"required": "always"}});
        until_status(SOON, &[200], async || changes.patch("demo", required.clone()).await).await;
        claim(claims, "demo", &user("always"), "k", "").await.refused(403, "pass_required");
        let presale = json!({"pass": {"required": "until", "until": from_now(3600)}});
        until_status(SOON, &[200], async || changes.patch("demo", presale.clone()).await).await;
        let denied = claim(claims, "demo", &user("until"), "k", "").await.refused(403, "pass_required");
        assert!(denied.json()["until"].is_string(), "{}", denied.text());
        until_status(SOON, &[200], async || changes.patch("demo", json!({"pass": null})).await).await;
        claim(claims, "demo", &user("none"), "k", "").await.expect(201);
    }
}

/// Returns the number of script calls, their processor time in microseconds, and the number of writes to hashes, on all
/// primaries.
async fn script_cost(redis: &RedisView) -> [u64; 3] {
    let infos: Vec<String> = redis.query_all(&["INFO", "commandstats"]).await;
    let sum = |command: &str, name: &str| -> u64 {
        let lines = infos.iter().flat_map(|info| info.lines());
        let fields = lines.filter_map(|line| line.strip_prefix(command)).map(|line| {
            let value = line.split(',').find_map(|field| field.strip_prefix(name)).expect("a field");
            value.parse::<u64>().expect("a number")
        });
        fields.sum()
    };
    [sum("cmdstat_fcall:", "calls="), sum("cmdstat_fcall:", "usec="), sum("cmdstat_hset:", "calls=")]
}

/// Sends [`WITHOUT_A_PASS`] claims without a pass, and checks that each gets `denial`.
async fn deny_all(cores: [&Core; 2], campaign: &str, denial: &str) {
    for from in (0..WITHOUT_A_PASS).step_by(CONCURRENCY) {
        let calls = (from..WITHOUT_A_PASS.min(from + CONCURRENCY)).map(|at| async move {
            let (core, user) = (cores[at / 2 % 2], format!("u{}", at / 2));
            if at % 2 == 0 {
                eventually(SOON, || async {
                    let reply = Signed::first_try(core, campaign, &user, "k").send(core).await;
                    holds(reply.status != 503, || reply.text()).map(|()| reply)
                })
                .await
            } else {
                claim(core, campaign, &user, "k", "").await
            }
        });
        for reply in join_all(calls).await {
            reply.refused(403, denial);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_without_a_pass_win_nothing() {
    let row = Row::begin("20,000 claims without a pass");
    let Some(fixture) = row.needs(Fixture::two_cores().await) else { return };
    fixture.core.create_with(always("demo", json!({"total": 10, "per_user": 1}))).await;
    let cores = [&fixture.core, fixture.other()];
    fixture.core.create_with(always("paused", json!({"total": 10, "per_user": 1}))).await;
    fixture.core.set_admin_state("paused", "pause").await.expect(200);
    let redis = fixture.redis().await;
    let mut costs: Vec<[u64; 3]> = Vec::new();
    for (campaign, denial) in [("paused", "paused"), ("demo", "pass_required")] {
        let before = script_cost(&redis).await;
        deny_all(cores, campaign, denial).await;
        let after = script_cost(&redis).await;
        costs.push(std::array::from_fn(|at| after[at] - before[at]));
    }
    let [[paused_calls, paused_us, _], [calls, us, writes]] = costs[..] else { panic!("{costs:?}") };
    #[allow(clippy::cast_precision_loss)] // microseconds
    let ratio = us as f64 / paused_us as f64;
    println!("{calls} calls without a pass, {paused_calls} while paused; processor time {ratio:.2} times");
    // Cores decide several claims with one call; how many depends on the load.
    assert!(calls <= WITHOUT_A_PASS as u64 / 2, "{calls} calls: claims without a pass are not batched");
    // Core itself may write to Redis in the meantime.
    assert!(10 * writes <= calls, "{writes} writes in {calls} calls: a denial must change nothing");
    assert_eq!((redis.counter("demo", "taken").await, redis.counter("demo", "events").await), (0, 0));
    for user in 0..10 {
        claim(cores[user % 2], "demo", &format!("u{user}"), "k", SHOWN).await.expect(201);
    }
    claim(cores[0], "demo", "u10", "k", SHOWN).await.refused(409, "sold_out");
    claim(cores[1], "demo", "u11", "k", "").await.refused(403, "pass_required");
}

/// A database that goes back to before the rule must not open the campaign to visitors without a pass.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_required_pass_outlives_its_loss_in_sql() {
    for mut fixture in Fixture::on_both_databases().await {
        fixture.core.create("demo", json!({"total": 100})).await;
        fixture.sql.copy_tables().await;
        fixture.core.patch("demo", json!({"pass": {"required": "always"}})).await.expect(200);
        fixture.sql.restore_tables().await;
        fixture.replace_core().await;
        let core = &fixture.core;
        until_status(SOON, &[200], async || core.patch("demo", json!({"name": "Demo"})).await).await;
        claim(core, "demo", "ann", "k", "").await.refused(403, "pass_required");
        assert_eq!(core.campaign("demo").await["pass"], json!({"required": "always"}));
        let stored = "SELECT COUNT(*) FROM campaigns WHERE id = $1 AND pass_required = 'always'";
        assert_eq!(fixture.sql.number(stored, "demo").await, 1);
    }
}

#[tokio::test]
async fn the_pass_is_judged_between_the_window_and_the_limits() {
    let core = Core::start().await;
    let limits = json!({"total": 5, "per_user": 3, "per_claim": 2});
    core.create_with(always("demo", limits.clone())).await;
    let of_three = |user: &str| {
        let mut claim = Signed::claim(&core, "demo", user, "k");
        claim.body = claim_body("demo", user, "k", 3).to_string();
        claim
    };
    of_three("a").send(&core).await.refused(403, "pass_required");
    of_three("a").with_pass(SHOWN).send(&core).await.refused(422, "quantity_out_of_range");
    core.set_admin_state("demo", "pause").await.expect(200);
    claim(&core, "demo", "a", "k", "").await.refused(403, "paused");
    core.set_admin_state("demo", "resume").await.expect(200);
    let mut later = always("later", limits);
    later["starts_at"] = json!(from_now(3600));
    core.create_with(later).await;
    claim(&core, "later", "a", "k", "").await.refused(403, "not_started");
    // The units of a pass lower the limit per user, and the pass does not replace the limit.
    claim(&core, "demo", "a", "k1", "shown:1").await.expect(201);
    let denied = claim(&core, "demo", "a", "k2", "shown:1").await.refused(409, "user_limit_reached");
    assert_eq!(denied.json()["remaining"], 0);
    claim(&core, "demo", "a", "k3", "shown:2").await.expect(201);
    claim(&core, "demo", "a", "k4", "shown:9").await.expect(201);
    claim(&core, "demo", "a", "k5", "shown:9").await.refused(409, "user_limit_reached");
    // A back end's token serves as a pass.
    core.claim("demo", "b", "k").await.expect(201);
    let batch = core.claim_batch(&[claim_body("demo", "c", "k", 1)]).await.expect(200).json();
    assert_eq!(batch["results"][0]["status"], 201, "{batch}");
    // Sold out, but a claim without a pass still gets `pass_required`.
    claim(&core, "demo", "d", "k", SHOWN).await.refused(409, "sold_out");
    claim(&core, "demo", "e", "k", "").await.refused(403, "pass_required");
}

#[tokio::test]
async fn a_pass_is_part_of_the_signature() {
    let core = Core::start().await;
    core.create_with(always("demo", json!({"total": 5}))).await;
    let without = Signed::claim(&core, "demo", "a", "k");
    let with = without.clone().with_pass(SHOWN);
    let of_one = without.clone().with_pass("shown:1");
    for (sent, signed) in [(&with, &without), (&without, &with), (&with, &of_one), (&of_one, &with)] {
        sent.send_signed(&core, &signed.signature()).await.refused(401, "unauthenticated");
    }
    for malformed in ["shown:", "shown:0", "1", "shown:4294967296", "SHOWN"] {
        without.clone().with_pass(malformed).send(&core).await.refused(401, "unauthenticated");
    }
    with.send(&core).await.expect(201);
}

#[tokio::test]
async fn wrong_rules_are_refused() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 5})).await;
    for (rule, field) in [
        (json!({"required": "never"}), "pass.required"),
        (json!({"required": "until"}), "pass.until"),
        (json!({"required": "until", "until": "tomorrow"}), "pass.until"),
        (json!({"required": "always", "until": from_now(3600)}), "pass"),
        (json!({"required": "always", "units": 3}), "pass.units"),
        (json!(["always"]), "pass"),
        (json!("always"), "pass"),
        (json!(true), "pass"),
    ] {
        let reply = core.patch("demo", json!({"pass": rule})).await.refused(400, "invalid_request");
        assert_eq!(reply.json()["field"], field, "{rule}");
        let mut body = campaign("other", json!({"total": 5}));
        body["pass"] = rule.clone();
        let reply =
            core.admin(Method::POST, "/admin/v1/campaigns", &body).await.refused(400, "invalid_request");
        assert_eq!(reply.json()["field"], field, "{rule}");
    }
    assert_eq!(core.campaign("demo").await["pass"], Value::Null);
}
