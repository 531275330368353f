//! Two cores on one campaign together grant exactly the total, and each finishes the other's work.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use redis::Value;
use serde_json::json;
use support::checker::{Checker, Expect, Limits};
use support::inspect::key;
use support::process::{Signal, signal_pid};
use support::sql::WriteLock;
use support::storm::{ClaimAttempt, ClaimOutcome, claim_attempts};
use support::wait::holds;
use support::{Core, CoreOptions, RedisView, SOON, eventually, heavy};

use crate::fixture::{Fixture, ROOMY};
use crate::tally::Row;

/// Sends claims of `users`, each with `keys` keys, to both cores alternately.
async fn over_both(checker: &Checker, fixture: &Fixture, users: usize, keys: usize, concurrency: usize) {
    let urls = [&fixture.core, fixture.other()].map(|core| core.url("/internal/v1/claims"));
    let turn = std::sync::atomic::AtomicUsize::new(0);
    let url = || urls[turn.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 2].clone();
    checker.storm(fixture.core.client(), url, &claim_attempts(users, keys), concurrency).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_cores_together_grant_exactly_the_total() {
    let row = Row::begin("2,000 concurrent claims over two cores");
    let _turn = heavy().await;
    let Some(fixture) = row.needs(Fixture::two_cores().await) else { return };
    let limits = Limits { total: Some(100), per_user: Some(3), per_user_per_day: Some(1) };
    let checker = Checker::create(&fixture.core, "demo", limits).await;
    over_both(&checker, &fixture, 1000, 2, 2000).await;
    checker.resolve_unknown(&fixture.core).await;
    assert_eq!(checker.acknowledged().len(), 100, "exactly the total");
    fixture.judge(row, &checker, Expect::default()).await;
}

/// Returns the id of the last entry that a core has read.
pub async fn last_read(redis: &RedisView, campaign: &str) -> String {
    let mut groups: Vec<HashMap<String, Value>> =
        redis.query(&["XINFO", "GROUPS", &key(campaign, "outbox")]).await;
    let last = groups.pop().expect("the group").remove("last-delivered-id").expect("its last id");
    redis::from_redis_value(last).unwrap()
}

/// Returns the ids of entries that cores have read but not acknowledged.
pub async fn entries_in_flight(redis: &RedisView, campaign: &str) -> Vec<String> {
    let last = last_read(redis, campaign).await;
    let entries: Vec<(String, Value)> = redis.query(&["XRANGE", &key(campaign, "outbox"), "1", &last]).await;
    entries.into_iter().map(|(id, _)| id).collect()
}

/// Blocks SQL and claims as users `first`, `first + 1`, … until both cores have read entries and wait for SQL.
/// Returns the lock and the next user.
async fn both_wait_for_sql(fixture: &Fixture, checker: &Checker, first: usize) -> (WriteLock, usize) {
    let (mut user, began) = (first, Instant::now());
    while began.elapsed() < SOON {
        let held = fixture.sql.hold().await;
        if both_read(fixture, checker, &mut user).await {
            return (held, user);
        }
        // A core that was retrying a commit when SQL was blocked reads nothing: both cores had read the same
        // entries.
        held.release().await;
        fixture.relayed("demo").await;
    }
    panic!("a core has read no entries");
}

/// Sends claims of the users `user`, `user + 1`, … until the first core has read entries while the second
/// core was stopped, and then the second core. Returns false if one reads nothing for 5 s.
async fn both_read(fixture: &Fixture, checker: &Checker, user: &mut usize) -> bool {
    let redis = fixture.redis().await;
    let second = fixture.other().pid();
    signal_pid(second, Signal::STOP);
    for core in [&fixture.core, fixture.other()] {
        let (last, began) = (last_read(&redis, "demo").await, Instant::now());
        let mut has_read = false;
        // Not a limit: the caller repeats this.
        while !has_read && began.elapsed() < Duration::from_secs(5) {
            checker.win(core, *user..*user + 1).await;
            *user += 1;
            has_read = last_read(&redis, "demo").await != last;
        }
        signal_pid(second, Signal::CONT);
        if !has_read {
            return false;
        }
    }
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_core_relays_what_a_killed_core_had_read() {
    let row = Row::begin("two cores, one campaign: one killed with entries in flight");
    let Some(mut fixture) = row.needs(Fixture::two_cores().await) else { return };
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(fixture.other(), 0..10).await;
    fixture.relayed("demo").await;
    // Both cores read from the outbox and wait for SQL.
    let (held, user) = both_wait_for_sql(&fixture, &checker, 10).await;
    row.kill();
    fixture.core.kill();
    held.release().await;
    checker.win(fixture.other(), user..user + 50).await;
    // The first core is not restarted: the second core takes over the entries that the first had read.
    fixture.relayed("demo").await;
    fixture.core = fixture.others.remove(0);
    fixture.judge(row, &checker, Expect::default()).await;
}

/// The work of a slow core is taken over, but the slow core finishes it too: both commit it, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_of_a_frozen_core_is_committed_once() {
    let row = Row::begin("two cores, one campaign: one frozen, then resumed");
    let Some(mut fixture) = row.needs(Fixture::two_cores().await) else { return };
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..20).await;
    fixture.relayed("demo").await;
    let (held, user) = both_wait_for_sql(&fixture, &checker, 20).await;
    row.fault();
    fixture.core.process().signal(Signal::STOP);
    held.release().await;
    checker.win(fixture.other(), user..user + 50).await;
    // The frozen core may be in the middle of a transaction; the other core must not wait for that
    // transaction forever.
    fixture.relayed("demo").await;
    fixture.core.process().signal(Signal::CONT);
    fixture.judge(row, &checker, Expect::default()).await;
}

/// Two cores that drain one outbox read parts of it in turns. Each commits a part as soon as SQL has the parts
/// before it: neither waits for a later part of the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_cores_drain_one_outbox_without_blocking_each_other() {
    let row = Row::begin("two cores drain an outbox of 3,000 entries");
    let _turn = heavy().await;
    // One entry for each claim.
    let options = CoreOptions::default().with("CLAIMGATE_BATCH_MAX", "1");
    let Some(fixture) = row.needs(Fixture::two_cores_with(options).await) else { return };
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    let held = fixture.sql.hold().await;
    row.fault();
    over_both(&checker, &fixture, 3000, 1, 32).await;
    held.release().await;
    fixture.relayed("demo").await;
    for core in [&fixture.core, fixture.other()] {
        let relayed: u64 = core.metric("claimgate_relayed_events_total").await.unwrap_or(0);
        assert!(relayed > 500, "both relay: {relayed}");
        let log = core.log();
        let waited: Vec<_> = log.lines().filter(|line| line.contains("lacks earlier events")).collect();
        assert!(waited.is_empty(), "{waited:#?}");
    }
    fixture.judge(row, &checker, Expect::default()).await;
}

/// Neither core grants claims by old rules, regardless of which core changed the rules.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_change_applies_to_the_next_decision_on_any_core() {
    let row = Row::begin("rules changed on one core apply on the other");
    let Some(fixture) = row.needs(Fixture::two_cores().await) else { return };
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    for (at, (changes, decides)) in
        [(&fixture.core, fixture.other()), (fixture.other(), &fixture.core)].into_iter().enumerate()
    {
        row.fault();
        has_newest_version(changes, "demo").await;
        changes.set_admin_state("demo", "pause").await.expect(200);
        for user in 0..10 {
            let outcome = checker.decided(SOON, decides, &format!("paused-{at}-{user}"), "k").await;
            assert!(matches!(&outcome, ClaimOutcome::Denied { code, .. } if code == "paused"), "{outcome:?}");
        }
        changes.set_admin_state("demo", "resume").await.expect(200);
        checker.win(decides, at * 10..at * 10 + 10).await;
        // A total below the taken units closes the campaign and revokes nothing.
        changes.patch("demo", json!({"limits": {"total": 5}})).await.expect(200);
        let outcome = checker.decided(SOON, decides, &format!("lowered-{at}"), "k").await;
        assert!(
            matches!(&outcome, ClaimOutcome::Denied { code, remaining: Some(0) } if code == "sold_out"),
            "{outcome:?}"
        );
        changes.patch("demo", json!({"limits": {"total": ROOMY.total}})).await.expect(200);
    }
    fixture.judge(row, &checker, Expect::default()).await;
}

/// Waits until the core has read the changes made through the other core, so that its own changes use the
/// newest version.
async fn has_newest_version(core: &Core, campaign: &str) {
    let path = format!("/admin/v1/campaigns/{campaign}");
    let internal = format!("/internal/v1/campaigns/{campaign}");
    eventually(SOON, || async {
        let (admin, internal) = (core.admin_get(&path).await.json(), core.get(&internal).await.json());
        holds(admin["version"] == internal["version"], || format!("{admin} {internal}"))
    })
    .await;
}

/// A core that does not know yet of a reload by another core gets its calls refused, and reads the campaign again. With
/// many calls in flight, most find that another call has already done so: they are resent all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_after_another_core_has_reloaded_are_decided() {
    const KEYS: [&str; 5] = ["campaign", "users", "claims", "holds", "outbox"];
    let row = Row::begin("a campaign reloaded by one core, concurrent claims on the other");
    // One claim for each call.
    let options = CoreOptions::default().with("CLAIMGATE_BATCH_MAX", "1");
    let Some(fixture) = row.needs(Fixture::two_cores_with(options).await) else { return };
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    let (second, url) = (fixture.other(), fixture.other().url("/internal/v1/claims"));
    checker.win(second, 0..10).await;
    let mut undecided = Vec::new();
    for round in 0..4 {
        fixture.relayed("demo").await;
        row.fault();
        signal_pid(second.pid(), Signal::STOP);
        let mut unlink = redis::cmd("UNLINK");
        unlink.arg(KEYS.map(|what| key("demo", what)).as_slice());
        fixture.redis().await.run::<u64>(&unlink).await;
        checker.win(&fixture.core, 10 + round..11 + round).await;
        signal_pid(second.pid(), Signal::CONT);
        let attempt =
            |user| ClaimAttempt { user: format!("late-{round}-{user}"), key: "k".to_owned(), units: 1 };
        let attempts: Vec<_> = (0..32).map(attempt).collect();
        checker.storm(second.client(), || url.clone(), &attempts, attempts.len()).await;
        undecided.push(checker.undecided(&attempts).len());
        checker.resolve_unknown(second).await;
    }
    // A core that refuses these claims does so in most rounds; a stall of Redis affects one round.
    let clean = undecided.iter().filter(|count| **count == 0).count();
    assert!(clean >= 3, "undecided claims in each round: {undecided:?}");
    fixture.judge(row, &checker, Expect::default()).await;
}
