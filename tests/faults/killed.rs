//! Core killed at the critical points: before the SQL write, after the SQL commit, and after the
//! acknowledgement to the outbox.

use claimgate_core::store::redis::scripts;
use support::SOON;
use support::checker::{Checker, Expect};
use support::fault_proxy::Cut;
use support::only_on;
use support::storm::ClaimOutcome;
use support::topology::ONE_SERVER;

use crate::fixture::{Fixture, ROOMY};
use crate::tally::Row;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_claim_is_lost_if_core_dies_before_the_sql_write() {
    let row = Row::begin("core killed before the SQL write");
    let mut fixture = Fixture::managed().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..10).await;
    fixture.relayed("demo").await;
    let held = fixture.sql.hold().await;
    checker.win(&fixture.core, 10..40).await;
    assert_eq!(fixture.sql.claims("demo").await.len(), 10, "SQL must be blocked");
    row.kill();
    fixture.core.kill();
    held.release().await;
    fixture.core = fixture.core.restart().await;
    fixture.judge(row, &checker, Expect::default()).await;
}

/// Returns the hash by which core calls `ack.lua`; the proxy recognizes the call by it.
pub fn ack_hash() -> String {
    scripts::ACK.name().to_owned()
}

/// Cuts the call by which core removes committed entries from the outbox, and kills core at that moment.
async fn killed_at_the_acknowledgement(row: Row, cut: Cut, left_in_the_outbox: bool) {
    let mut fixture = Fixture::proxied().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..10).await;
    fixture.relayed("demo").await;
    fixture.proxy().cut(cut, &ack_hash(), usize::MAX);
    let claims = checker.win(&fixture.core, 10..40);
    let ((), ()) = tokio::join!(fixture.proxy().until_injected(1), claims);
    let committed = fixture.sql.claims("demo").await.len();
    assert!(committed > 10, "the cut must come after SQL's commit: {committed}");
    row.kill();
    fixture.core.kill();
    let entries = fixture.redis().await.outbox_entries("demo").await;
    assert!(entries > 1 || !left_in_the_outbox, "committed entries must remain: {entries} entries");
    fixture.proxy().mend();
    fixture.core = fixture.core.restart().await;
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_claim_is_lost_if_core_dies_after_the_sql_commit() {
    only_on!(ONE_SERVER, "the proxy supports only one server");
    let row = Row::begin("core killed after the SQL commit");
    killed_at_the_acknowledgement(row, Cut::BeforeRequest, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_claim_is_lost_if_core_dies_after_acknowledging() {
    only_on!(ONE_SERVER, "the proxy supports only one server");
    let row = Row::begin("core killed after acknowledging, before the reply");
    killed_at_the_acknowledgement(row, Cut::AfterRequest, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_claim_is_lost_if_core_dies_repeatedly() {
    let row = Row::begin("core killed repeatedly");
    let mut fixture = Fixture::external().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    for round in 0..5 {
        // Core is killed right after its responses, when SQL may lack most of these claims.
        let claims = (round * 50..round * 50 + 50).map(|user| {
            let (checker, core) = (&checker, &fixture.core);
            async move { checker.claim(core, &format!("u{user}"), "k").await }
        });
        futures_util::future::join_all(claims).await;
        let first = checker.decided(SOON, &fixture.core, &format!("u{}", round * 50), "k").await;
        assert!(matches!(first, ClaimOutcome::Claimed { .. }), "{first:?}");
        row.kill();
        fixture.replace_core().await;
    }
    fixture.judge(row, &checker, Expect::default()).await;
}
