//! Two cores on one campaign: exact together, and one finishes what the other had begun.

use std::collections::HashMap;

use redis::Value;
use serde_json::json;
use support::checker::{Checker, Expect, Limits};
use support::inspect::key;
use support::process::{Signal, signal_pid};
use support::storm::{Seen, wishes};
use support::wait::holds;
use support::{Core, RedisView, SOON, eventually, heavy};

use crate::fixture::{Fixture, ROOMY};
use crate::tally::Row;

/// All of `wishes` over both cores, each by turns.
async fn over_both(checker: &Checker, fixture: &Fixture, users: usize, keys: usize, at_once: usize) {
    let urls = [&fixture.core, fixture.other()].map(|core| core.url("/internal/v1/claims"));
    let turn = std::sync::atomic::AtomicUsize::new(0);
    let url = || urls[turn.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 2].clone();
    checker.storm(fixture.core.client(), url, &wishes(users, keys), at_once).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_at_once_over_two_cores() {
    let row = Row::begin("2,000 at once over two cores");
    let _turn = heavy().await;
    let fixture = match Fixture::two_cores().await {
        Ok(fixture) => fixture,
        Err(why) => return row.skip(&why),
    };
    let limits = Limits { total: Some(100), per_user: Some(3), per_user_per_day: Some(1) };
    let checker = Checker::create(&fixture.core, "demo", limits).await;
    over_both(&checker, &fixture, 1000, 2, 2000).await;
    let seen = checker.seen();
    let won = seen.values().filter(|seen| matches!(seen, Seen::Claimed { .. })).count();
    let unknown = seen.values().filter(|seen| **seen == Seen::Unknown).count();
    assert_eq!((won, unknown), (100, 0), "exactly what there is");
    fixture.judge(row, &checker, Expect::default()).await;
}

/// The id of the last entry that a core has read.
pub async fn last_read(redis: &RedisView, campaign: &str) -> String {
    let mut groups: Vec<HashMap<String, Value>> =
        redis.query(&["XINFO", "GROUPS", &key(campaign, "outbox")]).await;
    let last = groups.pop().expect("the group").remove("last-delivered-id").expect("its last id");
    redis::from_redis_value(last).unwrap()
}

/// The ids of the entries that cores have read and not acknowledged.
pub async fn in_hand(redis: &RedisView, campaign: &str) -> Vec<String> {
    let last = last_read(redis, campaign).await;
    let entries: Vec<(String, Value)> = redis.query(&["XRANGE", &key(campaign, "outbox"), "1", &last]).await;
    entries.into_iter().map(|(id, _)| id).collect()
}

/// Users from `first` on win until both cores have read entries and wait for SQL, which is held: the first core, while the second
/// stands still, and then the second. Returns the next user.
async fn until_both_wait(fixture: &Fixture, checker: &Checker, first: usize) -> usize {
    let redis = fixture.redis().await;
    let second = fixture.other().pid();
    signal_pid(second, Signal::STOP);
    let mut user = first;
    for core in [&fixture.core, fixture.other()] {
        let last = last_read(&redis, "demo").await;
        while last_read(&redis, "demo").await == last {
            checker.win(core, user..user + 1).await;
            user += 1;
            assert!(user < 2000, "a core reads nothing");
        }
        signal_pid(second, Signal::CONT);
    }
    user
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_cores_killed() {
    let row = Row::begin("two cores, one campaign: one killed with entries in hand");
    let mut fixture = match Fixture::two_cores().await {
        Ok(fixture) => fixture,
        Err(why) => return row.skip(&why),
    };
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    let redis = fixture.redis().await;
    checker.win(fixture.other(), 0..10).await;
    fixture.relayed("demo").await;
    // Both read from the outbox, and wait for SQL.
    let held = fixture.sql.hold().await;
    let user = until_both_wait(&fixture, &checker, 10).await;
    row.kill();
    fixture.core.kill();
    held.release().await;
    checker.win(fixture.other(), user..user + 50).await;
    // The first core is not started again: the second takes over what it had read.
    eventually(SOON, || async {
        let (left, entries) = (in_hand(&redis, "demo").await, redis.outbox_entries("demo").await);
        holds(entries == 1, || format!("{entries} entries, in hand {left:?}"))
    })
    .await;
    fixture.core = fixture.others.remove(0);
    fixture.judge(row, &checker, Expect::default()).await;
}

/// A core that is only slow has its work taken over, and finishes it all the same: both commit it, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_cores_frozen() {
    let row = Row::begin("two cores, one campaign: one frozen, then alive again");
    let mut fixture = match Fixture::two_cores().await {
        Ok(fixture) => fixture,
        Err(why) => return row.skip(&why),
    };
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..20).await;
    fixture.relayed("demo").await;
    let redis = fixture.redis().await;
    let held = fixture.sql.hold().await;
    let user = until_both_wait(&fixture, &checker, 20).await;
    row.fault();
    fixture.core.process().signal(Signal::STOP);
    held.release().await;
    checker.win(fixture.other(), user..user + 50).await;
    // It may have stopped in the middle of a transaction: the other core does not wait for it for ever.
    eventually(SOON, || async {
        let (left, entries) = (in_hand(&redis, "demo").await, redis.outbox_entries("demo").await);
        holds(entries == 1, || format!("{entries} entries, in hand {left:?}"))
    })
    .await;
    fixture.core.process().signal(Signal::CONT);
    fixture.judge(row, &checker, Expect::default()).await;
}

/// No grant is made by old rules on either core, whichever core changed them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_counts_from_the_next_decision_on_every_core() {
    let row = Row::begin("rules changed on one core count on the other");
    let fixture = match Fixture::two_cores().await {
        Ok(fixture) => fixture,
        Err(why) => return row.skip(&why),
    };
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    for (at, (changes, decides)) in
        [(&fixture.core, fixture.other()), (fixture.other(), &fixture.core)].into_iter().enumerate()
    {
        row.fault();
        has_newest_version(changes, "demo").await;
        changes.set_admin_state("demo", "pause").await.expect(200);
        for user in 0..10 {
            let seen = checker.claim(decides, &format!("paused-{at}-{user}"), "k").await;
            assert!(matches!(&seen, Seen::Denied { code, .. } if code == "paused"), "{seen:?}");
        }
        changes.set_admin_state("demo", "resume").await.expect(200);
        checker.win(decides, at * 10..at * 10 + 10).await;
        // Below what is taken: closed, nothing revoked.
        changes.patch("demo", json!({"limits": {"total": 5}})).await.expect(200);
        let seen = checker.claim(decides, &format!("lowered-{at}"), "k").await;
        assert!(matches!(&seen, Seen::Denied { code, remaining: Some(0) } if code == "sold_out"), "{seen:?}");
        changes.patch("demo", json!({"limits": {"total": ROOMY.total}})).await.expect(200);
    }
    fixture.judge(row, &checker, Expect::default()).await;
}

/// Waits until the core has heard of changes made on another one, so that its own are made against the newest version.
async fn has_newest_version(core: &Core, campaign: &str) {
    let path = format!("/admin/v1/campaigns/{campaign}");
    let internal = format!("/internal/v1/campaigns/{campaign}");
    eventually(SOON, || async {
        let (admin, internal) = (core.admin_get(&path).await.json(), core.get(&internal).await.json());
        holds(admin["version"] == internal["version"], || format!("{admin} {internal}"))
    })
    .await;
}
