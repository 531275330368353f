//! Histories that a simpler design would get wrong, each provoked on purpose.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use support::checker::{Checker, Expect, Limits, Promise};
use support::clock::Clock;
use support::core_client::API_TOKEN;
use support::core_client::campaign;
use support::inspect::key;
use support::only_on;
use support::storm::Seen;
use support::times::{ms, now_ms};
use support::topology::ONE_SERVER;
use support::wait::holds;
use support::{Core, CoreOptions, SOON, Servers, eventually};

use crate::fixture::{Fixture, ROOMY};
use crate::tally::Row;

const PERSISTED: Expect<'_> = Expect { promise: Promise::Persisted, differences: &[] };

async fn transition(core: &Core, id: &str, verb: &str) -> support::Reply {
    let url = core.url(&format!("/internal/v1/claims/{id}/{verb}"));
    core.client().call(Method::POST, &url, API_TOKEN, &Value::Null).await
}

/// Wins for `user`, once there is a decision.
async fn wins(checker: &Checker, core: &Core, user: &str) -> String {
    eventually(SOON, || async {
        match checker.claim(core, user, "k").await {
            Seen::Claimed { id, .. } => Ok(id),
            other => Err(format!("{user}: {other:?}")),
        }
    })
    .await
}

/// What a core was about to commit when Redis was lost and loaded again: its reply hangs in the network meanwhile.
async fn late_relay(row: Row, late: impl AsyncFn(&Fixture, &Checker) -> String, and_then: Late) {
    let fixture = match Fixture::two_cores().await {
        Ok(fixture) => fixture,
        Err(why) => return row.skip(&why),
    };
    let limits = Limits { total: Some(10), per_user: Some(1), per_user_per_day: None };
    let checker = Checker::create(&fixture.core, "demo", limits).await;
    let redis = fixture.redis().await;
    checker.win(fixture.other(), 0..8).await;
    fixture.relayed("demo").await;
    // The first core decides, so it is the first to read the outbox; if the second was quicker, once more.
    let mut id;
    let mut tries = 0;
    loop {
        let before = fixture.proxy().injected();
        delay_what_the_relay_reads(&fixture);
        id = late(&fixture, &checker).await;
        tokio::select! {
            () = fixture.proxy().until_injected(before + 1) => break,
            () = fixture.relayed("demo") => {}
        }
        tries += 1;
        assert!(tries < 20, "the second core reads it all");
        transition(fixture.other(), &id, "return").await.expect(200);
        checker.ended(&id);
    }
    row.fault();
    redis.query_all::<()>(&["FLUSHALL"]).await;
    and_then.run(&fixture, &checker, &id).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    fixture.judge(row, &checker, PERSISTED).await;
}

/// For less than core waits for a reply. Only what is read of the outbox names its key: the newest entry, which core
/// looks at for other reasons too, comes without.
fn delay_what_the_relay_reads(fixture: &Fixture) {
    fixture.proxy().delay_reply(&[&key("demo", "outbox"), "late-"], Duration::from_millis(900));
}

enum Late {
    Grant,
    Return,
}

impl Late {
    async fn run(self, fixture: &Fixture, checker: &Checker, id: &str) {
        match self {
            // The lost unit is granted again, to the last; then the late one comes in.
            Self::Grant => {
                let others = 0..3;
                for at in others {
                    eventually(SOON, || async {
                        let seen = checker.claim(fixture.other(), &format!("again-{at}"), "k").await;
                        holds(seen != Seen::Unknown, || format!("{seen:?}"))
                    })
                    .await;
                }
                eventually(SOON, || async {
                    let rows = fixture.sql.claims("demo").await;
                    let row = rows.iter().find(|row| row.id == id);
                    holds(row.is_some_and(|row| row.status == "revoked"), || format!("{row:?}"))
                })
                .await;
                let told = transition(&fixture.core, id, "confirm").await.refused(409, "claim_revoked");
                assert_eq!(told.json()["claim"]["id"], id, "{}", told.text());
            }
            // The return was acknowledged and is lost; the claim itself had reached SQL, and must not go with it.
            Self::Return => {
                eventually(SOON, || async {
                    let view = fixture.other().get("/internal/v1/campaigns/demo").await;
                    holds(view.status == 200, || view.text())
                })
                .await;
                tokio::time::sleep(Duration::from_millis(1500)).await;
                let rows = fixture.sql.claims("demo").await;
                let row = rows.iter().find(|row| row.id == id).expect("it had reached SQL");
                assert!(row.status != "revoked", "a claim that had reached SQL was revoked: {row:?}");
                if row.status == "returned" {
                    checker.ended(id);
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_core_that_relays_late() {
    only_on!(ONE_SERVER, "its proxy stands before one server");
    let row = Row::begin("a core that relays late: its grants are revoked");
    let number = std::cell::Cell::new(0);
    let grant = async |fixture: &Fixture, checker: &Checker| {
        number.set(number.get() + 1);
        wins(checker, &fixture.core, &format!("late-{}", number.get())).await
    };
    late_relay(row, grant, Late::Grant).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_return_that_is_relayed_late() {
    only_on!(ONE_SERVER, "its proxy stands before one server");
    let row = Row::begin("a core that relays late: a return revokes nothing");
    let number = std::cell::Cell::new(0);
    let give_back = async |fixture: &Fixture, checker: &Checker| {
        number.set(number.get() + 1);
        // Relayed first, unnoticed by the fault proxy.
        fixture.proxy().mend();
        let id = wins(checker, fixture.other(), &format!("late-{}", number.get())).await;
        fixture.relayed("demo").await;
        delay_what_the_relay_reads(fixture);
        transition(&fixture.core, &id, "return").await.expect(200);
        id
    };
    late_relay(row, give_back, Late::Return).await;
}

/// Claims lost before SQL had heard of them leave a gap that is named; no sequence is given twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_is_a_named_gap() {
    let row = Row::begin("a loss is a named gap");
    let fixture = Fixture::external().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..10).await;
    fixture.relayed("demo").await;
    let redis = fixture.redis().await;
    let held = fixture.sql.hold().await;
    checker.win(&fixture.core, 10..20).await;
    // The whole outbox goes, also what the relay has in hand: it is another Redis from here on.
    row.fault();
    redis.query_all::<()>(&["FLUSHALL"]).await;
    redis.query_all::<()>(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    held.release().await;
    wins(&checker, &fixture.core, "after").await;
    fixture.relayed("demo").await;
    let told = fixture.reconciliation("demo").await;
    let rows = fixture.sql.claims("demo").await;
    let after = rows.iter().find(|row| row.user_id == "after").expect("a row");
    assert_eq!(after.sequence, 21, "sequences go on above what was acknowledged: {rows:?}");
    let gaps = told["sql"]["sequence_gaps"].as_array().unwrap();
    assert_eq!(gaps.len(), 1, "{told}");
    assert_eq!(gaps[0]["to"], 20, "{told}");
    fixture.judge(row, &checker, PERSISTED).await;
}

/// SQL's own guard lets honest histories pass: a grant relayed beside the return that made room, a limit
/// lowered after the grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn honest_histories_pass_the_guard() {
    let row = Row::begin("honest histories pass SQL's own guard");
    let fixture = Fixture::managed().await;
    let limits = Limits { total: Some(3), per_user: None, per_user_per_day: None };
    let checker = Checker::create(&fixture.core, "demo", limits).await;
    for round in 0..4 {
        let held = fixture.sql.hold().await;
        row.fault();
        let mut ids = Vec::new();
        for user in 0..3 {
            ids.push(wins(&checker, &fixture.core, &format!("a{round}-{user}")).await);
        }
        for id in &ids {
            transition(&fixture.core, id, "return").await.expect(200);
            checker.ended(id);
        }
        let mut ids = Vec::new();
        for user in 0..3 {
            ids.push(wins(&checker, &fixture.core, &format!("b{round}-{user}")).await);
        }
        held.release().await;
        fixture.core.patch("demo", json!({"limits": {"total": 1}})).await.expect(200);
        let held = fixture.sql.hold().await;
        for id in &ids {
            transition(&fixture.core, id, "return").await.expect(200);
            checker.ended(id);
        }
        let last = wins(&checker, &fixture.core, &format!("c{round}")).await;
        transition(&fixture.core, &last, "return").await.expect(200);
        checker.ended(&last);
        held.release().await;
        fixture.core.patch("demo", json!({"limits": {"total": 3}})).await.expect(200);
    }
    let epoch = fixture.core.admin_get("/admin/v1/campaigns/demo").await.json()["epoch"].clone();
    assert_eq!(epoch, 1, "SQL has refused honest claims");
    fixture.judge(row, &checker, Expect::default()).await;
}

/// A campaign that holds, on a Redis whose clock the test moves.
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
async fn many_holds_due_at_once_deny_no_user() {
    let row = Row::begin("1,000 holds due at once deny no user");
    let (clock, fixture, checker) = holding(1000).await;
    checker.win(&fixture.core, 0..1000).await;
    checker.acknowledged().iter().for_each(|id| checker.ended(id));
    row.fault();
    fixture.move_clock(&clock, 2 * 3_600_000).await;
    // The very first to come, alone: no sweep has been there yet, or it has; every one of them is granted.
    let asked = (1000..2000).map(|user| {
        let (checker, core) = (&checker, &fixture.core);
        async move { checker.claim(core, &format!("u{user}"), "k").await }
    });
    let asked = futures_util::future::join_all(asked).await;
    let won = asked.iter().filter(|seen| matches!(seen, Seen::Claimed { .. })).count();
    let denied = asked.iter().find(|seen| matches!(seen, Seen::Denied { .. }));
    assert_eq!((won, denied), (1000, None), "there was room for all");
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confirm_at_the_last_moment() {
    let row = Row::begin("confirm before, at and past the expiry");
    let (clock, fixture, checker) = holding(100).await;
    let early = wins(&checker, &fixture.core, "early").await;
    transition(&fixture.core, &early, "confirm").await.expect(200);
    for (at, past_ms) in [0, 1, 3_600_000].into_iter().enumerate() {
        row.fault();
        fixture.move_clock(&clock, 0).await;
        let id = wins(&checker, &fixture.core, &format!("late-{at}")).await;
        let claim = fixture.core.look_up(&id).await.expect(200).json()["claim"].clone();
        let expires_ms = ms(claim["expires_at"].as_str().unwrap());
        fixture.move_clock(&clock, expires_ms + past_ms - now_ms()).await;
        let refused = transition(&fixture.core, &id, "confirm").await.refused(409, "claim_expired");
        assert_eq!(refused.json()["claim"]["status"], "expired");
        transition(&fixture.core, &id, "return").await.expect(200);
        checker.ended(&id);
    }
    transition(&fixture.core, &early, "confirm").await.expect(200);
    clock.move_by_ms(0);
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_user_with_thousands_of_claims_stays_quick() {
    let row = Row::begin("one user with thousands of claims stays quick");
    let fixture = Fixture::managed().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    let mut times = Vec::new();
    for round in 0..8 {
        let started = Instant::now();
        let asked = (0..500).map(|key| {
            let (checker, core) = (&checker, &fixture.core);
            async move { checker.claim(core, "alice", &format!("k{round}-{key}")).await }
        });
        for seen in futures_util::future::join_all(asked).await {
            assert!(matches!(seen, Seen::Claimed { .. }), "{seen:?}");
        }
        times.push(started.elapsed());
    }
    // Quadratic, the last 500 would take fifteen times as long as the first.
    let (first, last) = (times[0].min(times[1]), times[6].min(times[7]));
    println!("the first 500 claims of one user in {first:?}, the last of 4,000 in {last:?}");
    assert!(last < first * 5, "{times:?}");
    row.fault();
    fixture.redis().await.query::<()>(&["DEL", &key("demo", "claims")]).await;
    fixture.judge(row, &checker, Expect::default()).await;
}
