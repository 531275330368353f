//! SQL down, locked or slow: claims continue until the outbox is full, then get 503; the outbox is relayed
//! later.

use std::time::Duration;

use support::checker::{Checker, Expect};
use support::storm::ClaimOutcome;
use support::wait::refused_in_time;
use support::{CoreOptions, SOON};
use tokio::time::sleep;

use crate::fixture::{Fixture, ROOMY};
use crate::tally::Row;

/// Checks that claims are granted while SQL is locked for `lasts`, and relayed afterwards.
async fn locked(row: Row, fixture: Fixture, lasts: Duration) {
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..10).await;
    fixture.relayed("demo").await;
    let held = fixture.sql.hold().await;
    row.fault();
    checker.win(&fixture.core, 10..100).await;
    sleep(lasts).await;
    checker.win(&fixture.core, 100..200).await;
    assert_eq!(fixture.sql.claims("demo").await.len(), 10, "SQL must be locked");
    held.release().await;
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_continue_while_sqlite_is_locked() {
    let row = Row::begin("SQL locked: SQLite, BEGIN EXCLUSIVE");
    let fixture = Fixture::managed_with(CoreOptions::default().on_fast_disk()).await;
    // Longer than SQLite's own timeout.
    locked(row, fixture, Duration::from_secs(6)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_continue_while_postgres_is_locked() {
    let row = Row::begin("SQL locked: PostgreSQL, rows of campaigns");
    let Some(fixture) = row.needs(Fixture::on_postgres(true).await) else { return };
    locked(row, fixture, Duration::from_secs(3)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_continue_while_postgres_is_frozen() {
    let row = Row::begin("SQL down: PostgreSQL, SIGSTOP");
    let Some(mut fixture) = row.needs(Fixture::on_postgres(true).await) else { return };
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
async fn claims_continue_while_postgres_is_slow() {
    let row = Row::begin("SQL slow: PostgreSQL frozen repeatedly");
    let Some(mut fixture) = row.needs(Fixture::on_postgres(true).await) else { return };
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
async fn claims_continue_while_postgres_is_down() {
    let row = Row::begin("SQL down: PostgreSQL, immediate stop");
    let Some(mut fixture) = row.needs(Fixture::on_postgres(true).await) else { return };
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

/// Managed Redis services close idle connections. A new connection to the same run of the same server does
/// not need SQL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_continue_on_new_redis_connections_while_sql_is_down() {
    let row = Row::begin("SQL down: connections to Redis cut");
    let Some(mut fixture) = row.needs(Fixture::on_postgres(false).await) else { return };
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..10).await;
    fixture.relayed("demo").await;
    fixture.postgres().stop_immediately().await;
    let redis = fixture.redis().await;
    for round in 1..=2 {
        row.fault();
        redis.query_all::<u64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
        checker.win(&fixture.core, round * 50..round * 50 + 50).await;
    }
    fixture.postgres().start_again().await;
    fixture.judge(row, &checker, Expect::default()).await;
}

/// The outbox never exceeds its maximum number of events. Replays are still answered when it is full.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_outbox_never_exceeds_its_maximum() {
    let row = Row::begin("SQL locked until the outbox is full");
    let options = CoreOptions::default().with("CLAIMGATE_OUTBOX_MAX", "50").on_fast_disk();
    let fixture = Fixture::managed_with(options).await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    let held = fixture.sql.hold().await;
    row.fault();
    checker.win(&fixture.core, 0..50).await;
    for user in 50..60 {
        let claim = async || fixture.core.once().claim("demo", &format!("u{user}"), "k").await;
        let reply = refused_in_time(503, "overloaded", claim).await;
        assert!(!reply.header("retry-after").is_empty(), "{reply:?}");
    }
    for user in 0..50 {
        let outcome = checker.decided(SOON, &fixture.core, &format!("u{user}"), "k").await;
        assert!(
            matches!(outcome, ClaimOutcome::Claimed { replayed: true, .. }),
            "a replay with a full outbox: {outcome:?}"
        );
    }
    assert_eq!(fixture.redis().await.counter("demo", "backlog").await, 50);
    held.release().await;
    fixture.judge(row, &checker, Expect::default()).await;
}

/// Simulates a slow disk, or a backup that locks the file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn startup_waits_for_a_locked_sqlite() {
    let row = Row::begin("SQL locked while core starts: SQLite");
    let mut fixture = Fixture::managed_with(CoreOptions::default().on_fast_disk()).await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..10).await;
    fixture.relayed("demo").await;
    fixture.core.kill();
    let held = fixture.sql.hold().await;
    row.kill();
    fixture.core = fixture.core.launch_again();
    fixture.core.until_logged(SOON, &["still waiting for the database"]).await;
    held.release().await;
    fixture.core.ready().await;
    checker.win(&fixture.core, 10..20).await;
    fixture.judge(row, &checker, Expect::default()).await;
}
