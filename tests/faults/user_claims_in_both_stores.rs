//! One user's claims in a campaign, while Redis and SQL have different parts of these claims: the list has
//! every acknowledged claim once, in its current state.

use serde_json::json;
use support::core_client::CoreClient;
use support::inspect::key;
use support::only_on;
use support::process::{Signal, signal_pid};
use support::promotion::has_members;
use support::redis_server::Kind;
use support::sentinel::SentinelSet;
use support::signing::claim_id;
use support::times::from_now;
use support::topology::OWN;
use support::wait::{holds, refused_in_time, until_status};
use support::{Core, CoreOptions, Reply, SOON, eventually, undisturbed};

use crate::fixture::Fixture;
use crate::replicas::waiting_for_one;
use crate::tally::Row;

/// More than the outbox entries of one read, and more than the claims that a record holds.
const CLAIMS: usize = 130;

async fn list_claims(core: &CoreClient, query: &str) -> Reply {
    core.get(&format!("/internal/v1/campaigns/demo/users/alice?{query}")).await
}

/// Returns Alice's claims by sequence number and status, newest first, read in pages of `limit`.
async fn listed(core: &Core, limit: usize) -> Vec<(u64, String)> {
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = list_claims(core, &format!("limit={limit}{cursor}")).await.expect(200).json();
        for item in page["items"].as_array().expect("items") {
            let status = item["status"].as_str().expect("a status").to_owned();
            seen.push((item["sequence"].as_u64().expect("a sequence"), status));
        }
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return seen,
        }
    }
}

/// Returns the claims with sequence numbers 1 to `count`, newest first; all granted except those `returned`.
fn granted_except(count: usize, returned: &[u64]) -> Vec<(u64, String)> {
    let status = |sequence| if returned.contains(&sequence) { "returned" } else { "granted" };
    (1..=count as u64).rev().map(|sequence| (sequence, status(sequence).to_owned())).collect()
}

/// Makes claims of alice with the keys of this range.
async fn claim_keys(core: &Core, keys: std::ops::RangeInclusive<usize>) {
    for at in keys {
        core.claim("demo", "alice", &format!("k{at}")).await.expect(201);
    }
}

async fn return_claim(core: &Core, at: u64) {
    core.transition(&claim_id("demo", "alice", &format!("k{at}")), "return").await.expect(200);
}

/// Checks the list while SQL has none, some and all of the claims that no longer fit in the user's record.
async fn while_the_relay_is_behind(row: Row, mut fixture: Fixture) {
    fixture.core.create("demo", json!({"total": 1000, "per_user": 500})).await;
    claim_keys(&fixture.core, 1..=20).await;
    fixture.relayed("demo").await;
    let held = fixture.sql.hold().await;
    row.fault();
    claim_keys(&fixture.core, 21..=CLAIMS).await;
    return_claim(&fixture.core, 3).await;
    return_claim(&fixture.core, 40).await;
    assert!(fixture.sql.claims("demo").await.len() <= 20, "SQL must be blocked");
    let expected = granted_except(CLAIMS, &[3, 40]);
    for limit in [7, 100, 1000] {
        assert_eq!(listed(&fixture.core, limit).await, expected, "pages of {limit}");
    }
    let left = list_claims(&fixture.core, "limit=1").await.json()["allowance"].clone();
    assert_eq!((&left["per_user"], &left["total"]), (&json!(500 - 128), &json!(1000 - 128)));
    // After a kill, the next core lists the same claims.
    row.kill();
    fixture.core.kill();
    held.release().await;
    fixture.core = fixture.core.restart().await;
    assert_eq!(listed(&fixture.core, 100).await, expected);
    fixture.relayed("demo").await;
    assert_eq!(listed(&fixture.core, 9).await, expected, "listed from SQL");
    // Make core reload the campaign only from SQL.
    fixture.redis().await.query::<()>(&["DEL", &key("demo", "users")]).await;
    let again = until_status(SOON, &[200], async || list_claims(&fixture.core, "").await).await;
    assert_eq!(again.json()["allowance"], left);
    assert_eq!(listed(&fixture.core, 11).await, expected, "listed after a load");
    row.passed(CLAIMS, "each claim listed once, regardless of the rows in SQL");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_missing_from_sql_are_listed_once_on_sqlite() {
    let row = Row::begin("a user's claims while the relay is behind: SQLite");
    while_the_relay_is_behind(row, Fixture::managed().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_missing_from_sql_are_listed_once_on_postgres() {
    let row = Row::begin("a user's claims while the relay is behind: PostgreSQL");
    let Some(fixture) = row.needs(Fixture::on_postgres(true).await) else { return };
    while_the_relay_is_behind(row, fixture).await;
}

/// Core does not read a long outbox completely for one user with many claims.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_is_rejected_while_too_many_claims_await_sql() {
    let row = Row::begin("a user's claims with a very long outbox");
    let fixture = Fixture::managed().await;
    fixture.core.create("demo", json!({})).await;
    claim_keys(&fixture.core, 1..=8).await;
    let held = fixture.sql.hold().await;
    claim_keys(&fixture.core, 9..=9).await;
    row.fault();
    // Adds copies of the same entry; each copy takes one SQL query.
    let often = "local entry = redis.call('XRANGE', KEYS[1], '1', '+')[1] \
                 for _ = 1, 5000 do redis.call('XADD', KEYS[1], '*', unpack(entry[2])) end return 1";
    fixture.redis().await.query::<u64>(&["EVAL", often, "1", &key("demo", "outbox")]).await;
    fixture.redis().await.set_counter("demo", "backlog", 5_001).await;
    let list = async || list_claims(&fixture.core.once(), "").await;
    let refused = refused_in_time(503, "overloaded", list).await;
    assert!(!refused.header("retry-after").is_empty());
    held.release().await;
    until_status(SOON, &[200], async || list_claims(&fixture.core, "").await).await;
    assert_eq!(listed(&fixture.core, 100).await, granted_except(9, &[]));
    row.passed(9, "listed once SQL has them");
}

/// A user whose record has all claims gets them without SQL; a user with more claims gets 503.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_sql_only_complete_lists_are_returned() {
    let row = Row::begin("a user's claims while SQL is down");
    let Some(mut fixture) = row.needs(Fixture::on_postgres(true).await) else { return };
    fixture.core.create("demo", json!({})).await;
    claim_keys(&fixture.core, 1..=8).await;
    row.fault();
    fixture.postgres().freeze();
    assert_eq!(listed(&fixture.core, 100).await, granted_except(8, &[]));
    claim_keys(&fixture.core, 9..=9).await;
    list_claims(&fixture.core.once(), "").await.refused(503, "unavailable");
    fixture.postgres().thaw();
    until_status(SOON, &[200], async || list_claims(&fixture.core, "").await).await;
    assert_eq!(listed(&fixture.core, 100).await, granted_except(9, &[]));
    row.passed(9, "listed by the store that has them");
}

/// The campaign is evicted, changed in SQL, and reloaded by another core; this core may not have read that
/// yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn evicted_claims_come_from_sql_and_reopened_ones_from_redis() {
    let row = Row::begin("a user's claims after an eviction and a load by another core");
    let evicting = CoreOptions::default().with("CLAIMGATE_ARCHIVE_AFTER_S", "1");
    let Some(fixture) = row.needs(Fixture::two_cores_with(evicting).await) else { return };
    fixture.core.create("demo", json!({"total": 100, "per_user": 50, "per_user_per_day": 20})).await;
    claim_keys(&fixture.core, 1..=12).await;
    fixture.core.end_by_time("demo").await;
    row.fault();
    for core in [&fixture.core, fixture.other()] {
        eventually(SOON, || async {
            let gone: u64 = fixture.redis().await.query(&["EXISTS", &key("demo", "campaign")]).await;
            let view = core.admin_get("/admin/v1/campaigns/demo").await.expect(200).json();
            holds(gone == 0 && view["epoch"].as_u64() > Some(1), || view.to_string())
        })
        .await;
    }
    return_claim(&fixture.core, 2).await;
    let revoke = "UPDATE claims SET status = 'revoked' WHERE sequence = 5".to_owned();
    assert_eq!(fixture.sql.run(revoke).await, 1);
    let mut expected = granted_except(12, &[2]);
    expected[12 - 5].1 = "revoked".to_owned();
    for core in [&fixture.core, fixture.other()] {
        assert_eq!(listed(core, 5).await, expected);
        let left = list_claims(core, "").await.json()["allowance"].clone();
        assert_eq!((&left["per_user"], &left["per_user_per_day"]), (&json!(40), &json!(10)));
    }
    until_status(SOON, &[200], async || fixture.core.patch("demo", json!({"ends_at": from_now(3600)})).await)
        .await;
    for at in 13..=15 {
        let granted = until_status(SOON, &[200, 201], async || {
            fixture.core.claim("demo", "alice", &format!("k{at}")).await
        })
        .await
        .json();
        let newest = (granted["claim"]["sequence"].as_u64().unwrap(), "granted".to_owned());
        expected.insert(0, newest);
        for core in [fixture.other(), &fixture.core] {
            assert_eq!(listed(core, 6).await, expected);
        }
    }
    row.passed(expected.len(), "both cores listed all claims, including the revoked one");
}

/// Claims that only the primary has are not listed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_claim_is_listed_before_a_replica_has_it() {
    only_on!(OWN, "it starts its own servers");
    let kind = Kind::from_env();
    let row = Row::begin_on(kind, "a user's claims while no replica has them");
    let _turn = undisturbed().await;
    let set = SentinelSet::start(kind).await;
    set.never_fail_over().await;
    let core = waiting_for_one(set.url()).start().await;
    has_members(&core, 2).await;
    core.create("demo", json!({})).await;
    claim_keys(&core, 1..=3).await;
    let pids = [set.view(1).await.pid().await, set.view(2).await.pid().await];
    row.fault();
    for pid in pids {
        signal_pid(pid, Signal::STOP);
    }
    assert_eq!(core.once().claim("demo", "alice", "k4").await.status, 503);
    list_claims(&core.once(), "").await.refused(503, "unavailable");
    for pid in pids {
        signal_pid(pid, Signal::CONT);
    }
    until_status(SOON, &[200], async || list_claims(&core, "").await).await;
    assert_eq!(listed(&core, 100).await, granted_except(4, &[]));
    row.passed(4, "claims listed once a replica had them");
}
