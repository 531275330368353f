//! Claims confirmed and returned after their campaign was evicted from Redis: each transition is made once,
//! in SQL, and the campaign stays evicted.

use futures_util::future::join_all;
use serde_json::{Value, json};
use support::follower::Follower;
use support::inspect::key;
use support::signing::claim_id;
use support::sql::SqlClaim;
use support::times::from_now;
use support::wait::{holds, until_status};
use support::{Core, CoreOptions, Reply, SOON, eventually};

use crate::fixture::Fixture;
use crate::tally::Row;

const USERS: [&str; 6] = ["alice", "bob", "carol", "dora", "eve", "frank"];

fn options() -> CoreOptions {
    CoreOptions::default().with("CLAIMGATE_ARCHIVE_AFTER_S", "1")
}

/// Retries until there is a response, like a caller with an unknown outcome.
async fn transition(core: &Core, user: &str, verb: &str) -> Reply {
    let id = claim_id("demo", user, "k");
    eventually(SOON, || async {
        let reply = core.transition(&id, verb).await;
        if reply.code() == "unavailable" { Err(reply.text()) } else { Ok(reply) }
    })
    .await
}

async fn in_redis(fixture: &Fixture) -> u64 {
    fixture.redis().await.query(&["EXISTS", &key("demo", "campaign")]).await
}

async fn row_of(fixture: &Fixture, user: &str) -> SqlClaim {
    let rows = fixture.sql.claims("demo").await;
    rows.into_iter().find(|row| row.user_id == user).expect("a claim")
}

/// Makes a claim held until `seconds` from now. Core itself never evicts a campaign with such a claim.
pub async fn held(fixture: &Fixture, user: &str, seconds: i64) {
    let statement = format!(
        "UPDATE claims SET status = 'held', expires_at = {} WHERE user_id = '{user}'",
        support::times::now_ms() + seconds * 1000
    );
    assert_eq!(fixture.sql.run(statement).await, 1);
}

/// Creates a campaign in which each user claims two units, and waits until it has ended and left Redis;
/// returns its epoch.
async fn evicted(fixture: &Fixture) -> Value {
    fixture.core.create("demo", json!({"total": 20, "per_user": 4})).await;
    for user in USERS {
        fixture.core.claim_units("demo", user, "k", 2).await.expect(201);
    }
    fixture.core.end_by_time("demo").await;
    for core in std::iter::once(&fixture.core).chain(&fixture.others) {
        eventually(SOON, || async {
            let view = core.admin_get("/admin/v1/campaigns/demo").await.expect(200).json();
            let gone = in_redis(fixture).await == 0 && view["epoch"].as_u64() > Some(1);
            holds(gone && view["taken"] == 12, || view.to_string())
        })
        .await;
    }
    fixture.core.admin_get("/admin/v1/campaigns/demo").await.json()["epoch"].clone()
}

async fn transitions_in_sql(row: Row, fixture: Fixture) {
    let epoch = evicted(&fixture).await;
    let cores: Vec<&Core> = std::iter::once(&fixture.core).chain(&fixture.others).collect();
    let one = cores[0];
    let mut follower = Follower::default();
    follower.read_all(one, 100).await;

    // Of many concurrent returns and one later return, only one takes effect.
    row.fault();
    let replies = join_all((0..16).map(|at| transition(cores[at % cores.len()], "alice", "return"))).await;
    for reply in replies {
        assert_eq!(reply.expect(200).json()["claim"]["status"], "returned");
    }
    assert_eq!(in_redis(&fixture).await, 0, "the return must not load the campaign");
    let again = transition(one, "alice", "return").await.expect(200).json();
    assert_eq!((&again["claim"]["status"], &again["claim"]["quantity"]), (&json!("returned"), &json!(2)));
    assert_eq!(row_of(&fixture, "alice").await.revision, 2);
    transition(one, "alice", "confirm").await.refused(409, "claim_returned");

    // A granted claim stays granted, even if it is confirmed repeatedly.
    let granted = transition(one, "bob", "confirm").await.expect(200).json();
    assert_eq!(granted["claim"]["status"], "granted");
    assert_eq!(row_of(&fixture, "bob").await.revision, 1);

    // A held claim: extended, and confirmed in time or too late.
    held(&fixture, "carol", 3600).await;
    is_extended_once(&fixture).await;
    let confirmed = transition(one, "carol", "confirm").await.expect(200).json();
    assert_eq!(confirmed["claim"]["status"], "granted");
    assert_eq!(confirmed["claim"]["expires_at"], Value::Null);
    assert_eq!(row_of(&fixture, "carol").await.revision, 3);
    held(&fixture, "dora", -1).await;
    let late = transition(one, "dora", "confirm").await.refused(409, "claim_expired").json();
    assert_eq!(late["claim"]["status"], "expired");
    held(&fixture, "eve", -1).await;
    for _ in 0..2 {
        let expired = transition(one, "eve", "return").await.expect(200).json();
        assert_eq!(expired["claim"]["status"], "expired", "an expired claim stays expired");
    }
    assert_eq!(row_of(&fixture, "eve").await.revision, 2);

    let before = follower.items;
    follower.read_all(one, 100).await;
    follower.matches_sql(&fixture.sql.claims("demo").await);
    assert_eq!(follower.items - before, 4, "each of the four changed claims, once");

    // A revoked claim, and one that never existed.
    fixture.sql.run("UPDATE claims SET status = 'revoked' WHERE user_id = 'frank'".to_owned()).await;
    for verb in ["confirm", "return"] {
        transition(one, "frank", verb).await.refused(409, "claim_revoked");
        transition(one, "stranger", verb).await.refused(404, "claim_not_found");
    }

    // Three claims of two units were returned. Every core reports that, and no core loaded the campaign.
    for core in &cores {
        eventually(SOON, || async {
            let view = core.admin_get("/admin/v1/campaigns/demo").await.expect(200).json();
            holds((&view["taken"], &view["remaining"]) == (&json!(6), &json!(14)), || view.to_string())
        })
        .await;
        let view = core.admin_get("/admin/v1/campaigns/demo").await.json();
        assert_eq!(view["epoch"], epoch, "the campaign must not have been loaded");
        assert_eq!(
            core.claim_units("demo", "alice", "k", 2).await.expect(200).json()["claim"]["status"],
            "returned"
        );
    }
    assert_eq!(in_redis(&fixture).await, 0);
    comes_back(&fixture).await;
    row.passed(40, "each transition made once, in SQL");
}

/// Extends Carol's hold as far as possible, twice.
async fn is_extended_once(fixture: &Fixture) {
    let set_hold = |seconds: &str| fixture.sql.run(format!("UPDATE campaigns SET hold_seconds = {seconds}"));
    let unchanged = row_of(fixture, "carol").await;
    transition(&fixture.core, "carol", "extend").await.expect(200);
    assert_eq!(row_of(fixture, "carol").await, unchanged, "the campaign holds no claims");
    set_hold("200000").await;
    for _ in 0..2 {
        let extended = transition(&fixture.core, "carol", "extend").await.expect(200).json();
        assert_eq!(extended["claim"]["status"], "held");
        let SqlClaim { revision, claimed_at, expires_at, .. } = row_of(fixture, "carol").await;
        assert_eq!((revision, expires_at), (2, Some(claimed_at + 86_400_000)));
    }
    set_hold("NULL").await;
}

/// Reopens the campaign, which must count the transitions made while it was evicted.
async fn comes_back(fixture: &Fixture) {
    until_status(SOON, &[200], async || fixture.core.patch("demo", json!({"ends_at": from_now(3600)})).await)
        .await;
    until_status(SOON, &[200, 201], async || fixture.core.claim_units("demo", "alice", "k2", 4).await).await;
    // Bob's and Carol's claims count; Frank's claim was revoked manually.
    eventually(SOON, || async {
        let campaign = fixture.core.campaign("demo").await;
        holds(campaign["remaining"] == 20 - 4 - 4, || campaign.to_string())
    })
    .await;
    transition(&fixture.core, "bob", "return").await.expect(200);
    fixture.relayed("demo").await;
    let report = fixture.reconciliation("demo").await;
    assert_eq!((&report["agrees"], &report["redis"]["taken"]), (&json!(true), &json!(6)), "{report}");
    // Each change by a caller is audited once, whether made in SQL or in Redis; an expiry is not a caller's
    // change.
    let audit = fixture.sql.claim_audit("demo").await;
    let (extensions, audit): (Vec<_>, Vec<_>) = audit.iter().partition(|(_, _, what, ..)| what == "extend");
    let [(user, who, ..)] = extensions[..] else { panic!("{extensions:?}") };
    assert_eq!((user.as_str(), who.as_str()), ("carol", "shop"));
    let audit: Vec<_> =
        audit.iter().map(|(user, who, what, before, after)| [user, who, what, before, after]).collect();
    assert_eq!(
        audit,
        [
            ["alice", "shop", "return", "granted", "returned"],
            ["carol", "shop", "confirm", "held", "granted"],
            ["bob", "shop", "return", "granted", "returned"],
        ]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transitions_do_not_reload_an_evicted_campaign_on_sqlite() {
    let row = Row::begin("transitions after an eviction: SQLite");
    transitions_in_sql(row, Fixture::managed_with(options()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transitions_do_not_reload_an_evicted_campaign_on_postgres() {
    let row = Row::begin("transitions after an eviction: PostgreSQL, two cores");
    let Some(fixture) = row.needs(Fixture::two_cores_with(options()).await) else { return };
    transitions_in_sql(row, fixture).await;
}
