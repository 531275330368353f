//! What is in the outbox and was never written by any core.

use redis::Value;
use support::RedisView;
use support::checker::{Checker, Expect};
use support::inspect::key;
use support::{SOON, eventually, wait::holds};

use crate::fixture::{Fixture, ROOMY};
use crate::tally::Row;

/// Entries as no core writes them: (field, value) pairs.
const MALFORMED: [&[&str]; 6] = [
    &["garbage", "1"],
    &["epoch", "1"],
    &["events", "\u{5}alice"],
    &["epoch", "one", "events", ""],
    &["epoch", "1", "events", "cut short"],
    &["epoch", "-1", "events", ""],
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_malformed_entry() {
    let row = Row::begin("malformed outbox entries");
    let fixture = Fixture::external().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    let redis = fixture.redis().await;
    let held = fixture.sql.hold().await;
    for (at, fields) in MALFORMED.into_iter().enumerate() {
        checker.win(&fixture.core, at * 5..at * 5 + 5).await;
        row.fault();
        add(&redis, fields).await;
    }
    held.release().await;
    fixture.relayed("demo").await;
    assert_eq!(dead_letters(&redis).await, 6, "all are kept where people can look at them");
    checker.win(&fixture.core, 30..40).await;
    eventually(SOON, || async {
        let metrics =
            fixture.core.client().try_get(&fixture.core.admin_url("/metrics"), "").await.unwrap().text();
        let line = metrics.lines().find(|line| line.starts_with("claimgate_dead_letters_total"));
        holds(line.is_some_and(|line| line.ends_with(" 6")), || format!("{line:?}"))
    })
    .await;
    fixture.judge(row, &checker, Expect { differences: &["dead_letters"], ..Expect::default() }).await;
}

/// A rebuild too meets malformed entries, and moves them to the dead letters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_malformed_entry_met_by_a_rebuild() {
    let row = Row::begin("malformed outbox entries, met by a rebuild");
    let fixture = Fixture::external().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    let redis = fixture.redis().await;
    let held = fixture.sql.hold().await;
    checker.win(&fixture.core, 0..20).await;
    for fields in MALFORMED {
        row.fault();
        add(&redis, fields).await;
    }
    redis.query::<()>(&["DEL", &key("demo", "users")]).await;
    held.release().await;
    eventually(SOON, || async {
        let dead_letters = dead_letters(&redis).await;
        holds(dead_letters == 6, || format!("{dead_letters} dead_letters"))
    })
    .await;
    fixture.judge(row, &checker, Expect { differences: &["dead_letters"], ..Expect::default() }).await;
}

async fn add(redis: &RedisView, fields: &[&str]) {
    let outbox = key("demo", "outbox");
    let command: Vec<&str> = ["XADD", &outbox, "*"].into_iter().chain(fields.iter().copied()).collect();
    redis.query::<Value>(&command).await;
}

async fn dead_letters(redis: &RedisView) -> u64 {
    redis.query(&["XLEN", &key("demo", "dead_letters")]).await
}
