//! Lost, late and broken replies, at every place where a connection to Redis can be cut; and callers who hang up.

use std::time::Duration;

use support::checker::{Checker, Expect};
use support::core_client::claim_body;
use support::fault_proxy::Cut;
use support::only_on;
use support::process::{Signal, signal_pid};
use support::raw::{Raw, claim_request};
use support::storm::Seen;
use support::topology::ONE_SERVER;
use support::wait::holds;
use support::{SOON, eventually};
use tokio::time::sleep;

use crate::fixture::{Fixture, ROOMY};
use crate::tally::Row;

/// Cuts the calls of one user after another at one place, `times` each, and asks until there is an outcome.
async fn cut_at(row: Row, cut: Cut, times: usize) {
    let fixture = Fixture::proxied().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    for at in 0..5 {
        let user = format!("victim-{at}");
        fixture.proxy().cut(cut, &user, times);
        eventually(SOON, || async {
            let seen = checker.claim(&fixture.core, &user, "k").await;
            holds(matches!(seen, Seen::Claimed { .. }), || format!("{user}: {seen:?}"))
        })
        .await;
        row.fault();
    }
    assert!(fixture.proxy().injected() >= 5, "only {} calls were cut", fixture.proxy().injected());
    fixture.proxy().mend();
    let rows = fixture.sql.claims("demo").await;
    assert!(rows.len() <= 5, "five asked, and there are {rows:?}");
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_before_the_request() {
    only_on!(ONE_SERVER, "its proxy stands before one server");
    cut_at(Row::begin("cut before the request"), Cut::BeforeRequest, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_after_the_request() {
    only_on!(ONE_SERVER, "its proxy stands before one server");
    cut_at(Row::begin("cut after the request"), Cut::AfterRequest, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_mid_reply() {
    only_on!(ONE_SERVER, "its proxy stands before one server");
    cut_at(Row::begin("cut in the middle of the reply"), Cut::MidReply(30), 3).await;
}

/// Between core's finding that Redis answers and the next thing it asks, Redis may go again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_starts_though_redis_goes_again_just_after_its_first_answer() {
    only_on!(ONE_SERVER, "its proxy stands before one server");
    let row = Row::begin("Redis goes again while core starts");
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

/// Half a reply must not be read as another one, wherever it ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_at_every_byte_of_the_reply() {
    only_on!(ONE_SERVER, "its proxy stands before one server");
    let row = Row::begin("cut at every byte of the reply");
    let fixture = Fixture::proxied().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    let mut found_again = 0;
    for bytes in 0..100 {
        let user = format!("victim-{bytes}-");
        fixture.proxy().cut(Cut::MidReply(bytes), &user, 1);
        let seen = checker.claim(&fixture.core, &user, "k").await;
        assert!(!matches!(seen, Seen::Denied { .. }), "{bytes} bytes: {seen:?}");
        found_again += usize::from(seen != Seen::Unknown);
        row.fault();
    }
    println!("{found_again} of 100 were found again by core itself");
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reset() {
    only_on!(ONE_SERVER, "its proxy stands before one server");
    cut_at(Row::begin("connection reset"), Cut::Reset, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_lost_reply_is_found_again_by_core_itself() {
    only_on!(ONE_SERVER, "its proxy stands before one server");
    let row = Row::begin("one reply lost: core asks again");
    let fixture = Fixture::proxied().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    for (at, cut) in
        [Cut::BeforeRequest, Cut::AfterRequest, Cut::MidReply(1), Cut::Reset].into_iter().enumerate()
    {
        let user = format!("victim-{at}");
        fixture.proxy().cut(cut, &user, 1);
        let seen = checker.claim(&fixture.core, &user, "k").await;
        assert!(matches!(seen, Seen::Claimed { .. }), "{cut:?}: {seen:?}");
        row.fault();
    }
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delay_beyond_the_deadline() {
    only_on!(ONE_SERVER, "its proxy stands before one server");
    let row = Row::begin("replies later than the deadline");
    let fixture = Fixture::proxied().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    for at in 0..2 {
        let user = format!("victim-{at}");
        fixture.proxy().cut(Cut::Delay(Duration::from_secs(3)), &user, 1);
        assert_eq!(checker.claim(&fixture.core, &user, "k").await, Seen::Unknown);
        row.fault();
    }
    fixture.proxy().mend();
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_swallowed() {
    only_on!(ONE_SERVER, "its proxy stands before one server");
    let row = Row::begin("requests swallowed by the network");
    let fixture = Fixture::proxied().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    fixture.proxy().cut(Cut::Swallow, "victim", 2);
    assert_eq!(checker.claim(&fixture.core, "victim", "k").await, Seen::Unknown);
    row.fault();
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_gone() {
    only_on!(ONE_SERVER, "its proxy stands before one server");
    let row = Row::begin("client gone");
    let fixture = Fixture::managed().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..1).await;
    let pid = fixture.redis().await.pid().await;
    // Redis is stopped so that no caller is answered before it has gone.
    signal_pid(pid, Signal::STOP);
    for at in 0..20 {
        let mut raw = Raw::connect(fixture.core.listen()).await;
        let body = claim_body("demo", &format!("gone-{at}"), "k", 1).to_string();
        assert!(raw.send(claim_request(&body)).await);
        row.fault();
        sleep(Duration::from_millis(10)).await;
    }
    sleep(Duration::from_millis(100)).await;
    signal_pid(pid, Signal::CONT);
    // Automatically: the retry comes only after that.
    eventually(SOON, || async {
        let rows = fixture.sql.claims("demo").await;
        holds(rows.len() == 21, || format!("{} claims in SQL", rows.len()))
    })
    .await;
    for at in 0..20 {
        let seen = checker.claim(&fixture.core, &format!("gone-{at}"), "k").await;
        assert!(matches!(seen, Seen::Claimed { replayed: true, .. }), "{seen:?}");
    }
    fixture.judge(row, &checker, Expect::default()).await;
}
