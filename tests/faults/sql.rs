//! SQL down, locked or slow: claims go on until the outbox is full, then 503; and it drains later.

use std::time::Duration;

use support::CoreOptions;
use support::checker::{Checker, Expect};
use support::storm::Seen;
use tokio::time::sleep;

use crate::stage::{ROOMY, Stage};
use crate::tally::Row;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_locked() {
    let row = Row::begin("SQL locked: SQLite, BEGIN EXCLUSIVE");
    let stage = Stage::embedded().await;
    let checker = Checker::create(&stage.core, "demo", ROOMY).await;
    checker.win(&stage.core, 0..10).await;
    stage.drained("demo").await;
    let held = stage.sql.hold().await;
    row.fault();
    checker.win(&stage.core, 10..100).await;
    // Longer than SQLite's own patience.
    sleep(Duration::from_secs(6)).await;
    checker.win(&stage.core, 100..200).await;
    assert_eq!(stage.sql.claims("demo").await.len(), 10, "SQL was to be locked");
    held.release().await;
    stage.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_locked() {
    let row = Row::begin("SQL locked: PostgreSQL, its campaigns' rows");
    let stage = match Stage::on_postgres(true).await {
        Ok(stage) => stage,
        Err(why) => return row.skip(&why),
    };
    let checker = Checker::create(&stage.core, "demo", ROOMY).await;
    let held = stage.sql.hold().await;
    row.fault();
    checker.win(&stage.core, 0..100).await;
    sleep(Duration::from_secs(3)).await;
    checker.win(&stage.core, 100..200).await;
    assert_eq!(stage.sql.claims("demo").await.len(), 0, "SQL was to be locked");
    held.release().await;
    stage.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_frozen() {
    let row = Row::begin("SQL down: PostgreSQL, SIGSTOP");
    let mut stage = match Stage::on_postgres(true).await {
        Ok(stage) => stage,
        Err(why) => return row.skip(&why),
    };
    let checker = Checker::create(&stage.core, "demo", ROOMY).await;
    checker.win(&stage.core, 0..10).await;
    row.fault();
    stage.postgres().freeze();
    checker.win(&stage.core, 10..100).await;
    sleep(Duration::from_secs(7)).await;
    checker.win(&stage.core, 100..200).await;
    stage.postgres().thaw();
    stage.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_slow() {
    let row = Row::begin("SQL slow: PostgreSQL frozen again and again");
    let mut stage = match Stage::on_postgres(true).await {
        Ok(stage) => stage,
        Err(why) => return row.skip(&why),
    };
    let checker = Checker::create(&stage.core, "demo", ROOMY).await;
    for round in 0..8 {
        row.fault();
        stage.postgres().freeze();
        checker.win(&stage.core, round * 20..round * 20 + 20).await;
        sleep(Duration::from_millis(300)).await;
        stage.postgres().thaw();
        sleep(Duration::from_millis(50)).await;
    }
    stage.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_stopped() {
    let row = Row::begin("SQL down: PostgreSQL, immediate stop");
    let mut stage = match Stage::on_postgres(true).await {
        Ok(stage) => stage,
        Err(why) => return row.skip(&why),
    };
    let checker = Checker::create(&stage.core, "demo", ROOMY).await;
    checker.win(&stage.core, 0..10).await;
    for round in 1..=2 {
        row.kill();
        stage.postgres().stop_immediately().await;
        checker.win(&stage.core, round * 50..round * 50 + 50).await;
        stage.postgres().start_again().await;
        checker.win(&stage.core, round * 50..round * 50 + 50).await;
    }
    stage.judge(row, &checker, Expect::default()).await;
}

/// The outbox holds so many events, and no more; who asks again is answered all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_outbox_is_bounded() {
    let row = Row::begin("SQL locked until the outbox is full");
    let options = CoreOptions::default().with("CLAIMGATE_OUTBOX_MAX", "50");
    let stage = Stage::embedded_with(options).await;
    let checker = Checker::create(&stage.core, "demo", ROOMY).await;
    let held = stage.sql.hold().await;
    row.fault();
    checker.win(&stage.core, 0..50).await;
    for user in 50..60 {
        let reply = stage.core.claim("demo", &format!("u{user}"), "k").await.refused(503, "overloaded");
        assert!(!reply.header("retry-after").is_empty(), "{reply:?}");
    }
    for user in 0..50 {
        let seen = checker.claim(&stage.core, &format!("u{user}"), "k").await;
        assert!(matches!(seen, Seen::Claimed { replayed: true, .. }), "a replay, the outbox full: {seen:?}");
    }
    assert_eq!(stage.redis().await.counter("demo", "backlog").await, 50);
    held.release().await;
    stage.judge(row, &checker, Expect::default()).await;
}
