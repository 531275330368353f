//! SQL down, locked or slow: claims go on until the outbox is full, then 503; and the outbox is relayed later.

use std::time::Duration;

use support::CoreOptions;
use support::checker::{Checker, Expect};
use support::storm::Seen;
use tokio::time::sleep;

use crate::fixture::{Fixture, ROOMY};
use crate::tally::Row;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_locked() {
    let row = Row::begin("SQL locked: SQLite, BEGIN EXCLUSIVE");
    let fixture = Fixture::managed_with(CoreOptions::default().on_fast_disk()).await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..10).await;
    fixture.relayed("demo").await;
    let held = fixture.sql.hold().await;
    row.fault();
    checker.win(&fixture.core, 10..100).await;
    // Longer than SQLite's own timeout.
    sleep(Duration::from_secs(6)).await;
    checker.win(&fixture.core, 100..200).await;
    assert_eq!(fixture.sql.claims("demo").await.len(), 10, "SQL was to be locked");
    held.release().await;
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_locked() {
    let row = Row::begin("SQL locked: PostgreSQL, its campaigns' rows");
    let fixture = match Fixture::on_postgres(true).await {
        Ok(fixture) => fixture,
        Err(why) => return row.skip(&why),
    };
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    let held = fixture.sql.hold().await;
    row.fault();
    checker.win(&fixture.core, 0..100).await;
    sleep(Duration::from_secs(3)).await;
    checker.win(&fixture.core, 100..200).await;
    assert_eq!(fixture.sql.claims("demo").await.len(), 0, "SQL was to be locked");
    held.release().await;
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_frozen() {
    let row = Row::begin("SQL down: PostgreSQL, SIGSTOP");
    let mut fixture = match Fixture::on_postgres(true).await {
        Ok(fixture) => fixture,
        Err(why) => return row.skip(&why),
    };
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..10).await;
    row.fault();
    fixture.postgres().freeze();
    checker.win(&fixture.core, 10..100).await;
    sleep(Duration::from_secs(7)).await;
    checker.win(&fixture.core, 100..200).await;
    fixture.postgres().thaw();
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_slow() {
    let row = Row::begin("SQL slow: PostgreSQL frozen again and again");
    let mut fixture = match Fixture::on_postgres(true).await {
        Ok(fixture) => fixture,
        Err(why) => return row.skip(&why),
    };
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    for round in 0..8 {
        row.fault();
        fixture.postgres().freeze();
        checker.win(&fixture.core, round * 20..round * 20 + 20).await;
        sleep(Duration::from_millis(300)).await;
        fixture.postgres().thaw();
        sleep(Duration::from_millis(50)).await;
    }
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_stopped() {
    let row = Row::begin("SQL down: PostgreSQL, immediate stop");
    let mut fixture = match Fixture::on_postgres(true).await {
        Ok(fixture) => fixture,
        Err(why) => return row.skip(&why),
    };
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..10).await;
    for round in 1..=2 {
        row.kill();
        fixture.postgres().stop_immediately().await;
        checker.win(&fixture.core, round * 50..round * 50 + 50).await;
        fixture.postgres().start_again().await;
        checker.win(&fixture.core, round * 50..round * 50 + 50).await;
    }
    fixture.judge(row, &checker, Expect::default()).await;
}

/// The outbox holds its maximum of events, and no more; a caller that asks again is answered all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_outbox_is_bounded() {
    let row = Row::begin("SQL locked until the outbox is full");
    let options = CoreOptions::default().with("CLAIMGATE_OUTBOX_MAX", "50").on_fast_disk();
    let fixture = Fixture::managed_with(options).await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    let held = fixture.sql.hold().await;
    row.fault();
    checker.win(&fixture.core, 0..50).await;
    for user in 50..60 {
        let reply =
            fixture.core.once().claim("demo", &format!("u{user}"), "k").await.refused(503, "overloaded");
        assert!(!reply.header("retry-after").is_empty(), "{reply:?}");
    }
    for user in 0..50 {
        let seen = checker.claim(&fixture.core, &format!("u{user}"), "k").await;
        assert!(matches!(seen, Seen::Claimed { replayed: true, .. }), "a replay, the outbox full: {seen:?}");
    }
    assert_eq!(fixture.redis().await.counter("demo", "backlog").await, 50);
    held.release().await;
    fixture.judge(row, &checker, Expect::default()).await;
}
