//! Histories that a simpler design would handle wrongly, each provoked on purpose.

use std::time::{Duration, Instant};

use serde_json::json;
use support::checker::{Checker, Expect, Limits, Promise};
use support::clock::Clock;
use support::core_client::campaign;
use support::inspect::key;
use support::only_on;
use support::process::cpu_ms;
use support::storm::ClaimOutcome;
use support::times::{ms, now_ms};
use support::topology::ONE_SERVER;
use support::wait::{holds, until_status};
use support::{CoreOptions, SOON, Servers, eventually};

use crate::cores::last_read;
use crate::fixture::{Fixture, ROOMY};
use crate::tally::Row;

const PERSISTED: Expect<'_> = Expect { promise: Promise::Persisted, differences: &[] };

/// Redis is lost and reloaded from SQL while a reply to a relaying core is delayed in the network. That core
/// then commits late. A stall may spoil the order of these events, which are then provoked again.
async fn late_relay(row: Row, late: impl AsyncFn(&Fixture, &Checker) -> String, and_then: Late) {
    let limits = Limits { total: Some(10), per_user: Some(1), per_user_per_day: None };
    let mut last = String::new();
    for _ in 0..5 {
        let Some(fixture) = row.needs(Fixture::two_cores().await) else { return };
        let checker = Checker::create(&fixture.core, "demo", limits).await;
        let id = late_relayed(&row, &fixture, &checker, &late).await;
        match and_then.run(&fixture, &checker, &id).await {
            Ok(()) => {
                tokio::time::sleep(Duration::from_millis(1500)).await;
                return fixture.judge(row, &checker, PERSISTED).await;
            }
            Err(state) => {
                // Neither harmless cause exceeds a limit or repeats a sequence number.
                let (cores, redis) = ([&fixture.core, fixture.other()], fixture.redis().await);
                checker.judge(&cores, &fixture.sql, &redis, PERSISTED).await;
                last = state;
            }
        }
    }
    panic!("not revoked in any of five attempts, at last {last}");
}

/// Makes a change whose relay is delayed, and empties Redis; returns the id of the changed claim.
async fn late_relayed(
    row: &Row,
    fixture: &Fixture,
    checker: &Checker,
    late: &impl AsyncFn(&Fixture, &Checker) -> String,
) -> String {
    let redis = fixture.redis().await;
    checker.win(fixture.other(), 0..8).await;
    fixture.relayed("demo").await;
    // The first core decides and usually reads the outbox first; if the second was faster, the test retries.
    let mut id;
    let mut tries = 0;
    loop {
        let before = fixture.proxy().injected();
        delay_relay_reads(fixture);
        id = late(fixture, checker).await;
        tokio::select! {
            () = fixture.proxy().until_injected(before + 1) => break,
            () = fixture.relayed("demo") => {}
        }
        tries += 1;
        assert!(tries < 20, "the second core reads everything");
        fixture.other().transition(&id, "return").await.expect(200);
        checker.ended(&id);
    }
    row.fault();
    redis.query_all::<()>(&["FLUSHALL"]).await;
    id
}

/// Delays the relay's reads by less than core's timeout. Only such a read contains the outbox's key; core's
/// reads of the newest entry do not.
fn delay_relay_reads(fixture: &Fixture) {
    fixture.proxy().delay_reply(&[&key("demo", "outbox"), "late-"], Duration::from_millis(900));
}

#[derive(Clone, Copy)]
enum Late {
    Grant,
    Return,
}

/// A late grant is revoked far sooner. If the delayed read failed, or was committed before Redis was emptied,
/// the grant is never revoked.
const REVOKED_MAX: Duration = Duration::from_secs(20);

/// Waits until the claim `id` is revoked; otherwise returns its row.
async fn until_revoked(fixture: &Fixture, id: &str) -> Result<(), String> {
    let started = Instant::now();
    loop {
        let rows = fixture.sql.claims("demo").await;
        let row = rows.iter().find(|row| row.id == id);
        let is_revoked = row.is_some_and(|row| row.status == "revoked");
        if is_revoked || started.elapsed() > REVOKED_MAX {
            return holds(is_revoked, || format!("{row:?}"));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

impl Late {
    /// Checks the late change's effect; `Err` if a grant was not revoked.
    async fn run(self, fixture: &Fixture, checker: &Checker, id: &str) -> Result<(), String> {
        match self {
            // The lost unit is granted again and the campaign is sold out before the late grant arrives.
            Self::Grant => {
                let others = 0..3;
                for at in others {
                    checker.decided(SOON, fixture.other(), &format!("again-{at}"), "k").await;
                }
                until_revoked(fixture, id).await?;
                let report = fixture.core.transition(id, "confirm").await.refused(409, "claim_revoked");
                assert_eq!(report.json()["claim"]["id"], id, "{}", report.text());
            }
            // The acknowledged return is lost. The claim itself had reached SQL and must not be revoked.
            Self::Return => {
                until_status(SOON, &[200], async || fixture.other().get("/internal/v1/campaigns/demo").await)
                    .await;
                tokio::time::sleep(Duration::from_millis(1500)).await;
                let rows = fixture.sql.claims("demo").await;
                let row = rows.iter().find(|row| row.id == id).expect("a claim that had reached SQL");
                assert!(row.status != "revoked", "a claim that had reached SQL was revoked: {row:?}");
                if row.status == "returned" {
                    checker.ended(id);
                }
            }
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_relayed_grants_of_an_old_epoch_are_revoked() {
    only_on!(ONE_SERVER, "the proxy supports only one server");
    let row = Row::begin("late relay: grants of an old epoch are revoked");
    let number = std::cell::Cell::new(0);
    let grant = async |fixture: &Fixture, checker: &Checker| {
        number.set(number.get() + 1);
        checker.granted(&fixture.core, &format!("late-{}", number.get()), "k").await
    };
    late_relay(row, grant, Late::Grant).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_relayed_return_revokes_nothing() {
    only_on!(ONE_SERVER, "the proxy supports only one server");
    let row = Row::begin("late relay: a return revokes nothing");
    let number = std::cell::Cell::new(0);
    let return_claim = async |fixture: &Fixture, checker: &Checker| {
        number.set(number.get() + 1);
        // Relay the grant first, without the proxy's delay.
        fixture.proxy().mend();
        let id = checker.granted(fixture.other(), &format!("late-{}", number.get()), "k").await;
        fixture.relayed("demo").await;
        delay_relay_reads(fixture);
        fixture.core.transition(&id, "return").await.expect(200);
        id
    };
    late_relay(row, return_claim, Late::Return).await;
}

/// Claims lost before they reached SQL leave a reported gap; no sequence number is assigned twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_claims_leave_a_reported_sequence_gap() {
    let row = Row::begin("lost claims leave a reported sequence gap");
    let fixture = Fixture::external().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..10).await;
    fixture.relayed("demo").await;
    let redis = fixture.redis().await;
    let (held, read) = (fixture.sql.hold().await, last_read(&redis, "demo").await);
    checker.win(&fixture.core, 10..11).await;
    // The relay waits for SQL with the first claim, and reads none of the others.
    eventually(SOON, || async {
        let last = last_read(&redis, "demo").await;
        holds(last != read, || format!("the relay has read nothing after {last}"))
    })
    .await;
    checker.win(&fixture.core, 11..20).await;
    // Simulates a switch to an empty Redis server: the whole outbox is lost, including entries in flight.
    row.fault();
    redis.query_all::<()>(&["FLUSHALL"]).await;
    redis.query_all::<()>(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    held.release().await;
    checker.granted(&fixture.core, "after", "k").await;
    fixture.relayed("demo").await;
    let report = fixture.reconciliation("demo").await;
    let rows = fixture.sql.claims("demo").await;
    let after = rows.iter().find(|row| row.user_id == "after").expect("a row");
    assert_eq!(after.sequence, 21, "sequence numbers must continue above the acknowledged ones: {rows:?}");
    let gaps = report["sql"]["sequence_gaps"].as_array().unwrap();
    assert_eq!(gaps.len(), 1, "{report}");
    assert_eq!(gaps[0]["to"], 20, "{report}");
    fixture.judge(row, &checker, PERSISTED).await;
}

/// SQL's own guard accepts valid histories: a grant relayed together with the return that made room, and a
/// limit lowered after the grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn valid_histories_pass_the_sql_guard() {
    let row = Row::begin("valid histories pass SQL's own guard");
    let fixture = Fixture::managed().await;
    let limits = Limits { total: Some(3), per_user: None, per_user_per_day: None };
    let checker = Checker::create(&fixture.core, "demo", limits).await;
    for round in 0..4 {
        let held = fixture.sql.hold().await;
        row.fault();
        let mut ids = Vec::new();
        for user in 0..3 {
            ids.push(checker.granted(&fixture.core, &format!("a{round}-{user}"), "k").await);
        }
        for id in &ids {
            fixture.core.transition(id, "return").await.expect(200);
            checker.ended(id);
        }
        let mut ids = Vec::new();
        for user in 0..3 {
            ids.push(checker.granted(&fixture.core, &format!("b{round}-{user}"), "k").await);
        }
        held.release().await;
        fixture.core.patch("demo", json!({"limits": {"total": 1}})).await.expect(200);
        let held = fixture.sql.hold().await;
        for id in &ids {
            fixture.core.transition(id, "return").await.expect(200);
            checker.ended(id);
        }
        let last = checker.granted(&fixture.core, &format!("c{round}"), "k").await;
        fixture.core.transition(&last, "return").await.expect(200);
        checker.ended(&last);
        held.release().await;
        fixture.core.patch("demo", json!({"limits": {"total": 3}})).await.expect(200);
    }
    let epoch = fixture.core.admin_get("/admin/v1/campaigns/demo").await.json()["epoch"].clone();
    assert_eq!(epoch, 1, "SQL rejected valid claims");
    fixture.judge(row, &checker, Expect::default()).await;
}

/// Creates a campaign with holds, on a Redis server whose clock the test moves.
async fn holding(total: u64) -> (Clock, Fixture, Checker) {
    let clock = Clock::new();
    let fixture = Fixture::on(Servers::start_on(&clock).await, CoreOptions::default()).await;
    let limits = Limits { total: Some(total), per_user: Some(1), per_user_per_day: None };
    let mut body = campaign("demo", limits.json());
    body["hold_seconds"] = json!(3600);
    fixture.core.create_with(body).await;
    (clock, fixture, Checker::new("demo", limits))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_holds_due_together_cause_no_denial() {
    let row = Row::begin("1,000 holds due at the same time cause no denial");
    let (clock, fixture, checker) = holding(1000).await;
    checker.win(&fixture.core, 0..1000).await;
    checker.acknowledged().iter().for_each(|id| checker.ended(id));
    row.fault();
    fixture.move_clock(&clock, 2 * 3_600_000).await;
    // All units were held by expired claims, swept or not: every new claim must be granted.
    let claims = (1000..2000).map(|user| {
        let (checker, core) = (&checker, &fixture.core);
        async move { checker.decided(SOON, core, &format!("u{user}"), "k").await }
    });
    let claims = futures_util::future::join_all(claims).await;
    let won = claims.iter().filter(|outcome| matches!(outcome, ClaimOutcome::Claimed { .. })).count();
    let denied = claims.iter().find(|outcome| matches!(outcome, ClaimOutcome::Denied { .. }));
    assert_eq!((won, denied), (1000, None), "all had room");
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_confirm_at_or_after_expiry_is_rejected() {
    let row = Row::begin("confirms before, at and after the expiry");
    let (clock, fixture, checker) = holding(100).await;
    let early = checker.granted(&fixture.core, "early", "k").await;
    fixture.core.transition(&early, "confirm").await.expect(200);
    for (at, past_ms) in [0, 1, 3_600_000].into_iter().enumerate() {
        row.fault();
        fixture.move_clock(&clock, 0).await;
        let id = checker.granted(&fixture.core, &format!("late-{at}"), "k").await;
        let claim = fixture.core.look_up(&id).await.expect(200).json()["claim"].clone();
        let expires_ms = ms(claim["expires_at"].as_str().unwrap());
        fixture.move_clock(&clock, expires_ms + past_ms - now_ms()).await;
        let refused = fixture.core.transition(&id, "confirm").await.refused(409, "claim_expired");
        assert_eq!(refused.json()["claim"]["status"], "expired");
        fixture.core.transition(&id, "return").await.expect(200);
        checker.ended(&id);
    }
    fixture.core.transition(&early, "confirm").await.expect(200);
    clock.move_by_ms(0);
    fixture.judge(row, &checker, Expect::default()).await;
}

/// Returns the processor time that Redis and core have used, in milliseconds. Other processes do not prolong
/// it.
async fn used_ms(fixture: &Fixture) -> [u64; 2] {
    let redis: u64 = fixture.redis_pids().await.into_iter().map(cpu_ms).sum();
    [redis, cpu_ms(fixture.core.pid())]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_of_a_heavy_user_stay_fast() {
    let row = Row::begin("one user with thousands of claims");
    let fixture = Fixture::managed().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    let mut times = Vec::new();
    for round in 0..8 {
        let before = used_ms(&fixture).await;
        let claims = (0..500).map(|key| {
            let (checker, core) = (&checker, &fixture.core);
            async move { checker.decided(SOON, core, "alice", &format!("k{round}-{key}")).await }
        });
        for outcome in futures_util::future::join_all(claims).await {
            assert!(matches!(outcome, ClaimOutcome::Claimed { .. }), "{outcome:?}");
        }
        let after = used_ms(&fixture).await;
        times.push([after[0] - before[0], after[1] - before[1]]);
    }
    // With quadratic cost, the last 500 claims would take fifteen times as long as the first 500. The kernel
    // counts in steps of 10 ms.
    for (at, name) in ["Redis", "core"].into_iter().enumerate() {
        let (first, last) = (times[0][at].min(times[1][at]), times[6][at].min(times[7][at]));
        println!(
            "{name}: the first 500 claims of one user took {first} ms, the last 500 of 4,000 took {last} ms"
        );
        assert!(last < 5 * first.max(10), "milliseconds of Redis and core: {times:?}");
    }
    row.fault();
    fixture.redis().await.query::<()>(&["DEL", &key("demo", "claims")]).await;
    fixture.judge(row, &checker, Expect::default()).await;
}
