//! Lost, late and broken replies, with the connection to Redis cut at every position; and callers that
//! disconnect.

use std::time::{Duration, Instant};

use support::checker::{Checker, Expect};
use support::core_client::claim_body;
use support::fault_proxy::Cut;
use support::only_on;
use support::raw::{Raw, claim_request};
use support::storm::ClaimOutcome;
use support::topology::ONE_SERVER;
use support::wait::reaches;
use support::{SOON, eventually};

use crate::fixture::{Fixture, ROOMY};
use crate::tally::Row;

/// Cuts the calls of several users at the same position, `times` each, and retries until there is an outcome.
async fn cut_at(row: Row, cut: Cut, times: usize) {
    let fixture = Fixture::proxied().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    for at in 0..5 {
        let user = format!("victim-{at}");
        fixture.proxy().cut(cut, &user, times);
        checker.granted(&fixture.core, &user, "k").await;
        row.fault();
    }
    assert!(fixture.proxy().injected() >= 5, "only {} calls were cut", fixture.proxy().injected());
    fixture.proxy().mend();
    let rows = fixture.sql.claims("demo").await;
    assert!(rows.len() <= 5, "five users claimed, but SQL has {rows:?}");
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_counts_once_if_its_connection_breaks_early() {
    only_on!(ONE_SERVER, "the proxy supports only one server");
    cut_at(Row::begin("cut before the request"), Cut::BeforeRequest, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_counts_once_if_its_connection_breaks_late() {
    only_on!(ONE_SERVER, "the proxy supports only one server");
    cut_at(Row::begin("cut after the request"), Cut::AfterRequest, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_counts_once_if_the_reply_breaks_off() {
    only_on!(ONE_SERVER, "the proxy supports only one server");
    cut_at(Row::begin("cut in the middle of the reply"), Cut::MidReply(30), 3).await;
}

/// Redis may disappear between core's first successful call and the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_starts_even_if_redis_drops_early_connections() {
    only_on!(ONE_SERVER, "the proxy supports only one server");
    let row = Row::begin("connections to Redis drop while core starts");
    let mut fixture = Fixture::proxied().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..10).await;
    fixture.core.stop().await;
    fixture.proxy().cut(Cut::AfterRequest, "cg:store", 3);
    row.fault();
    fixture.core = fixture.core.restart().await;
    assert_eq!(fixture.proxy().injected(), 3);
    checker.win(&fixture.core, 10..20).await;
    fixture.judge(row, &checker, Expect::default()).await;
}

/// A partial reply must not be read as a different reply, regardless of where it ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partial_reply_is_never_read_as_a_denial() {
    only_on!(ONE_SERVER, "the proxy supports only one server");
    let row = Row::begin("cut at every byte of the reply");
    let fixture = Fixture::proxied().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    let mut found_again = 0;
    for bytes in 0..100 {
        let user = format!("victim-{bytes}-");
        fixture.proxy().cut(Cut::MidReply(bytes), &user, 1);
        let outcome = checker.claim(&fixture.core, &user, "k").await;
        assert!(!matches!(outcome, ClaimOutcome::Denied { .. }), "{bytes} bytes: {outcome:?}");
        found_again += usize::from(outcome != ClaimOutcome::Unknown);
        row.fault();
    }
    println!("core itself recovered {found_again} of 100");
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_reset_makes_one_claim() {
    only_on!(ONE_SERVER, "the proxy supports only one server");
    cut_at(Row::begin("connection reset"), Cut::Reset, 3).await;
}

/// Less than any timeout of core on its path to Redis: the shortest is 500 ms, for a connection. A core that
/// does not retry a lost reply answers far sooner.
const TIMEOUT_MIN: Duration = Duration::from_millis(400);

/// Cuts one call of a new user until one request is decided: core's retry may miss its deadline on a machine
/// that stalls. Returns the last outcome.
async fn outcome_of_one_cut(fixture: &Fixture, checker: &Checker, cut: Cut, name: &str) -> ClaimOutcome {
    for at in 0..5 {
        let user = format!("{name}-{at}");
        fixture.proxy().cut(cut, &user, 1);
        let began = Instant::now();
        let outcome = checker.claim(&fixture.core, &user, "k").await;
        if outcome != ClaimOutcome::Unknown {
            return outcome;
        }
        let took = began.elapsed();
        assert!(took >= TIMEOUT_MIN, "{cut:?}: core gave up after {took:?}, without a retry");
    }
    ClaimOutcome::Unknown
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_retries_a_single_lost_reply_itself() {
    only_on!(ONE_SERVER, "the proxy supports only one server");
    let row = Row::begin("one reply lost: core retries");
    let fixture = Fixture::proxied().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    for (at, cut) in
        [Cut::BeforeRequest, Cut::AfterRequest, Cut::MidReply(1), Cut::Reset].into_iter().enumerate()
    {
        let outcome = outcome_of_one_cut(&fixture, &checker, cut, &format!("victim-{at}")).await;
        assert!(matches!(outcome, ClaimOutcome::Claimed { .. }), "{cut:?}: {outcome:?}");
        row.fault();
    }
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_after_the_deadline_is_an_unknown_outcome() {
    only_on!(ONE_SERVER, "the proxy supports only one server");
    let row = Row::begin("replies later than the deadline");
    let fixture = Fixture::proxied().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    for at in 0..2 {
        let user = format!("victim-{at}");
        fixture.proxy().cut(Cut::Delay(Duration::from_secs(3)), &user, 1);
        assert_eq!(checker.claim(&fixture.core, &user, "k").await, ClaimOutcome::Unknown);
        row.fault();
    }
    fixture.proxy().mend();
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_request_has_an_unknown_outcome() {
    only_on!(ONE_SERVER, "the proxy supports only one server");
    let row = Row::begin("requests swallowed by the network");
    let fixture = Fixture::proxied().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    fixture.proxy().cut(Cut::Swallow, "victim", 2);
    assert_eq!(checker.claim(&fixture.core, "victim", "k").await, ClaimOutcome::Unknown);
    row.fault();
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_are_decided_after_their_client_is_gone() {
    only_on!(ONE_SERVER, "the proxy supports only one server");
    let row = Row::begin("client disconnected");
    let fixture = Fixture::proxied().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..1).await;
    for at in 0..20 {
        let user = format!("gone-{at}");
        // Redis answers late, so that the caller is gone before.
        fixture.proxy().cut(Cut::Delay(Duration::from_millis(100)), &user, 1);
        let mut raw = Raw::connect(fixture.core.listen()).await;
        assert!(raw.send(claim_request(&claim_body("demo", &user, "k", 1).to_string())).await);
        fixture.proxy().until_injected(at + 1).await;
        drop(raw);
        row.fault();
    }
    // The claims are decided automatically, before the retries below.
    eventually(SOON, || async {
        let rows = fixture.sql.claims("demo").await;
        reaches(rows.len(), 21, "claims in SQL")
    })
    .await;
    for at in 0..20 {
        let outcome = checker.decided(SOON, &fixture.core, &format!("gone-{at}"), "k").await;
        assert!(matches!(outcome, ClaimOutcome::Claimed { replayed: true, .. }), "{outcome:?}");
    }
    fixture.judge(row, &checker, Expect::default()).await;
}
