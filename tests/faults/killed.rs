//! Core killed at the places that matter: before SQL has heard, after SQL has committed, after the outbox was told.

use claimgate_core::store::redis::scripts;
use support::checker::{Checker, Expect};
use support::fault_proxy::Cut;
use support::only_on;
use support::storm::Seen;
use support::topology::ONE_SERVER;

use crate::fixture::{Fixture, ROOMY};
use crate::tally::Row;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_killed_before_sql() {
    let row = Row::begin("core killed before SQL");
    let mut fixture = Fixture::managed().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..10).await;
    fixture.relayed("demo").await;
    let held = fixture.sql.hold().await;
    checker.win(&fixture.core, 10..40).await;
    assert_eq!(fixture.sql.claims("demo").await.len(), 10, "SQL was to be held up");
    row.kill();
    fixture.core.kill();
    held.release().await;
    fixture.core = fixture.core.restart().await;
    fixture.judge(row, &checker, Expect::default()).await;
}

/// The hash by which core calls `ack.lua`: how the proxy tells that call from others.
pub fn ack_hash() -> String {
    scripts::ACK.name().to_owned()
}

/// Cuts the call by which core takes committed entries off the outbox, and kills core there.
async fn killed_at_the_acknowledgement(row: Row, cut: Cut, left_in_the_outbox: bool) {
    let mut fixture = Fixture::proxied().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..10).await;
    fixture.relayed("demo").await;
    fixture.proxy().cut(cut, &ack_hash(), usize::MAX);
    let claims = checker.win(&fixture.core, 10..40);
    let ((), ()) = tokio::join!(fixture.proxy().until_injected(1), claims);
    let committed = fixture.sql.claims("demo").await.len();
    assert!(committed > 10, "the cut comes after SQL's commit, not before: {committed}");
    row.kill();
    fixture.core.kill();
    let entries = fixture.redis().await.outbox_entries("demo").await;
    assert!(entries > 1 || !left_in_the_outbox, "committed, not taken off: {entries} entries");
    fixture.proxy().mend();
    fixture.core = fixture.core.restart().await;
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_killed_after_commit() {
    only_on!(ONE_SERVER, "its proxy stands before one server");
    let row = Row::begin("core killed after SQL's commit, before it is acknowledged");
    killed_at_the_acknowledgement(row, Cut::BeforeRequest, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_killed_after_acknowledging() {
    only_on!(ONE_SERVER, "its proxy stands before one server");
    let row = Row::begin("core killed after it is acknowledged, before it knows");
    killed_at_the_acknowledgement(row, Cut::AfterRequest, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_killed_over_and_over() {
    let row = Row::begin("core killed over and over");
    let mut fixture = Fixture::external().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    for round in 0..5 {
        // Asked all at once, so that the kill comes in between.
        let asked = (round * 50..round * 50 + 50).map(|user| {
            let (checker, core) = (&checker, &fixture.core);
            async move { checker.claim(core, &format!("u{user}"), "k").await }
        });
        let asked = futures_util::future::join_all(asked).await;
        assert!(asked.iter().any(|seen| matches!(seen, Seen::Claimed { .. })), "{asked:?}");
        row.kill();
        fixture.replace_core().await;
    }
    fixture.judge(row, &checker, Expect::default()).await;
}
