//! What is in the outbox and was never written by any core.

use redis::Value;
use support::RedisView;
use support::checker::{Checker, Expect};
use support::inspect::key;
use support::{SOON, eventually, wait::holds};

use crate::stage::{ROOMY, Stage};
use crate::tally::Row;

/// Entries as no core writes them: (field, value) pairs.
const POISON: [&[&str]; 6] = [
    &["garbage", "1"],
    &["epoch", "1"],
    &["events", "\u{5}alice"],
    &["epoch", "one", "events", ""],
    &["epoch", "1", "events", "cut short"],
    &["epoch", "-1", "events", ""],
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poison_entry() {
    let row = Row::begin("poison outbox entries");
    let stage = Stage::external().await;
    let checker = Checker::create(&stage.core, "demo", ROOMY).await;
    let redis = stage.redis().await;
    let held = stage.sql.hold().await;
    for (at, fields) in POISON.into_iter().enumerate() {
        checker.win(&stage.core, at * 5..at * 5 + 5).await;
        row.fault();
        add(&redis, fields).await;
    }
    held.release().await;
    stage.drained("demo").await;
    assert_eq!(dead_letters(&redis).await, 6, "all are kept where people can look at them");
    checker.win(&stage.core, 30..40).await;
    eventually(SOON, || async {
        let metrics =
            stage.core.client().try_get(&stage.core.admin_url("/metrics"), "").await.unwrap().text();
        let line = metrics.lines().find(|line| line.starts_with("claimgate_dead_letters_total"));
        holds(line.is_some_and(|line| line.ends_with(" 6")), || format!("{line:?}"))
    })
    .await;
    stage.judge(row, &checker, Expect { differences: &["dead_letters"], ..Expect::default() }).await;
}

/// The rebuild too meets poison, and parks it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poison_entry_met_by_a_rebuild() {
    let row = Row::begin("poison outbox entries, met by a rebuild");
    let stage = Stage::external().await;
    let checker = Checker::create(&stage.core, "demo", ROOMY).await;
    let redis = stage.redis().await;
    let held = stage.sql.hold().await;
    checker.win(&stage.core, 0..20).await;
    for fields in POISON {
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
    stage.judge(row, &checker, Expect { differences: &["dead_letters"], ..Expect::default() }).await;
}

async fn add(redis: &RedisView, fields: &[&str]) {
    let outbox = key("demo", "outbox");
    let command: Vec<&str> = ["XADD", &outbox, "*"].into_iter().chain(fields.iter().copied()).collect();
    redis.query::<Value>(&command).await;
}

async fn dead_letters(redis: &RedisView) -> u64 {
    redis.query(&["XLEN", &key("demo", "dead_letters")]).await
}
