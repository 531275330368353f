//! The traps of the design, each sprung on purpose.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use support::ask::campaign;
use support::checker::{Checker, Expect, Limits, Promise};
use support::core_process::API_TOKEN;
use support::inspect::key;
use support::redis_server::Clock;
use support::storm::Seen;
use support::wait::holds;
use support::{Core, CoreOptions, RedisServer, SOON, eventually};

use crate::stage::{ROOMY, Stage};
use crate::tally::Row;

const PERSISTED: Expect<'_> = Expect { promise: Promise::Persisted, differences: &[] };

async fn settle(core: &Core, id: &str, verb: &str) -> support::Reply {
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

/// What a core was about to commit when Redis was lost and loaded anew: its reply hangs in the network meanwhile.
async fn late_drain(row: Row, late: impl AsyncFn(&Stage, &Checker) -> String, and_then: Late) {
    let stage = match Stage::two_cores().await {
        Ok(stage) => stage,
        Err(why) => return row.skip(&why),
    };
    let limits = Limits { total: Some(10), per_user: Some(1), per_user_per_day: None };
    let checker = Checker::create(&stage.core, "demo", limits).await;
    let redis = stage.redis().await;
    checker.win(stage.other(), 0..8).await;
    stage.drained("demo").await;
    // The first core decides, so it is the first to read the outbox; if the second was quicker, once more.
    let mut id;
    let mut tries = 0;
    loop {
        let before = stage.proxy().sprung();
        stage.proxy().delay_reply("late-", Duration::from_millis(900));
        id = late(&stage, &checker).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        if stage.proxy().sprung() > before {
            break;
        }
        tries += 1;
        assert!(tries < 20, "the second core reads it all");
        stage.drained("demo").await;
        settle(stage.other(), &id, "return").await.expect(200);
        checker.ended(&id);
    }
    row.fault();
    redis.query::<()>(&["FLUSHALL"]).await;
    and_then.run(&stage, &checker, &id).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    stage.judge(row, &checker, PERSISTED).await;
}

enum Late {
    Grant,
    Return,
}

impl Late {
    async fn run(self, stage: &Stage, checker: &Checker, id: &str) {
        match self {
            // The lost unit is granted anew, to the last; then the late one comes in.
            Self::Grant => {
                let others = 0..3;
                for at in others {
                    eventually(SOON, || async {
                        let seen = checker.claim(stage.other(), &format!("anew-{at}"), "k").await;
                        holds(seen != Seen::Unknown, || format!("{seen:?}"))
                    })
                    .await;
                }
                eventually(SOON, || async {
                    let rows = stage.sql.claims("demo").await;
                    let row = rows.iter().find(|row| row.id == id);
                    holds(row.is_some_and(|row| row.status == "revoked"), || format!("{row:?}"))
                })
                .await;
                let told = settle(&stage.core, id, "confirm").await.refused(409, "claim_revoked");
                assert_eq!(told.json()["claim"]["id"], id, "{}", told.text());
            }
            // The return was acknowledged and is lost; the claim itself had reached SQL, and must not go with it.
            Self::Return => {
                eventually(SOON, || async {
                    let view = stage.other().get("/internal/v1/campaigns/demo").await;
                    holds(view.status == 200, || view.text())
                })
                .await;
                tokio::time::sleep(Duration::from_millis(1500)).await;
                let rows = stage.sql.claims("demo").await;
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
async fn a_core_that_drains_late() {
    let row = Row::begin("a core that drains late: its grants are revoked");
    let number = std::cell::Cell::new(0);
    let grant = async |stage: &Stage, checker: &Checker| {
        number.set(number.get() + 1);
        wins(checker, &stage.core, &format!("late-{}", number.get())).await
    };
    late_drain(row, grant, Late::Grant).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_return_that_is_drained_late() {
    let row = Row::begin("a core that drains late: a return revokes nothing");
    let number = std::cell::Cell::new(0);
    let give_back = async |stage: &Stage, checker: &Checker| {
        number.set(number.get() + 1);
        // Drained first, unnoticed by the trap.
        stage.proxy().mend();
        let id = wins(checker, stage.other(), &format!("late-{}", number.get())).await;
        stage.drained("demo").await;
        stage.proxy().delay_reply("late-", Duration::from_millis(900));
        settle(&stage.core, &id, "return").await.expect(200);
        id
    };
    late_drain(row, give_back, Late::Return).await;
}

/// Claims lost before SQL had heard of them leave a gap that is named; no sequence is given twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_is_a_named_gap() {
    let row = Row::begin("a loss is a named gap");
    let stage = Stage::external().await;
    let checker = Checker::create(&stage.core, "demo", ROOMY).await;
    checker.win(&stage.core, 0..10).await;
    stage.drained("demo").await;
    let redis = stage.redis().await;
    let held = stage.sql.hold().await;
    checker.win(&stage.core, 10..20).await;
    // The whole outbox goes, also what the drain has in hand: it is another Redis from here on.
    row.fault();
    redis.query::<()>(&["FLUSHALL"]).await;
    redis.query::<()>(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    held.release().await;
    wins(&checker, &stage.core, "after").await;
    stage.drained("demo").await;
    let told = stage.reconciliation("demo").await;
    let rows = stage.sql.claims("demo").await;
    let after = rows.iter().find(|row| row.user_id == "after").expect("a row");
    assert_eq!(after.sequence, 21, "sequences go on above what was acknowledged: {rows:?}");
    let gaps = told["sql"]["sequence_gaps"].as_array().unwrap();
    assert_eq!(gaps.len(), 1, "{told}");
    assert_eq!(gaps[0]["to"], 20, "{told}");
    stage.judge(row, &checker, PERSISTED).await;
}

/// The register's own guard lets honest histories pass: a grant drained beside the return that made room, a limit
/// lowered after the grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn honest_histories_pass_the_guard() {
    let row = Row::begin("honest histories pass SQL's own guard");
    let stage = Stage::embedded().await;
    let limits = Limits { total: Some(3), per_user: None, per_user_per_day: None };
    let checker = Checker::create(&stage.core, "demo", limits).await;
    for round in 0..4 {
        let held = stage.sql.hold().await;
        row.fault();
        let mut ids = Vec::new();
        for user in 0..3 {
            ids.push(wins(&checker, &stage.core, &format!("a{round}-{user}")).await);
        }
        for id in &ids {
            settle(&stage.core, id, "return").await.expect(200);
            checker.ended(id);
        }
        let mut ids = Vec::new();
        for user in 0..3 {
            ids.push(wins(&checker, &stage.core, &format!("b{round}-{user}")).await);
        }
        held.release().await;
        stage.core.patch("demo", json!({"limits": {"total": 1}})).await.expect(200);
        let held = stage.sql.hold().await;
        for id in &ids {
            settle(&stage.core, id, "return").await.expect(200);
            checker.ended(id);
        }
        let last = wins(&checker, &stage.core, &format!("c{round}")).await;
        settle(&stage.core, &last, "return").await.expect(200);
        checker.ended(&last);
        held.release().await;
        stage.core.patch("demo", json!({"limits": {"total": 3}})).await.expect(200);
    }
    let epoch = stage.core.admin_get("/admin/v1/campaigns/demo").await.json()["epoch"].clone();
    assert_eq!(epoch, 1, "the register has refused honest claims");
    stage.judge(row, &checker, Expect::default()).await;
}

/// A campaign that holds, on a Redis whose clock the test moves.
async fn holding(total: u64) -> (Clock, Stage, Checker) {
    let clock = Clock::new();
    let stage = Stage::on(RedisServer::start_on(&clock).await, CoreOptions::default()).await;
    let limits = Limits { total: Some(total), per_user: Some(1), per_user_per_day: None };
    let mut body = campaign("demo", limits.json());
    body["hold_seconds"] = json!(3600);
    stage.core.create_with(body).await;
    (clock, stage, Checker::new("demo", limits))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_holds_due_at_once_deny_nobody() {
    let row = Row::begin("1,000 holds due at once deny nobody");
    let (clock, stage, checker) = holding(1000).await;
    checker.win(&stage.core, 0..1000).await;
    checker.acknowledged().iter().for_each(|id| checker.ended(id));
    row.fault();
    clock.move_by_ms(2 * 3_600_000);
    // The very first to come, alone: no sweep has been there yet, or it has; whoever comes is granted.
    let asked = (1000..2000).map(|user| {
        let (checker, core) = (&checker, &stage.core);
        async move { checker.claim(core, &format!("u{user}"), "k").await }
    });
    let asked = futures_util::future::join_all(asked).await;
    let won = asked.iter().filter(|seen| matches!(seen, Seen::Claimed { .. })).count();
    let denied = asked.iter().find(|seen| matches!(seen, Seen::Denied { .. }));
    assert_eq!((won, denied), (1000, None), "there was room for all");
    stage.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confirm_at_the_last_moment() {
    let row = Row::begin("confirm before, at and past the expiry");
    let (clock, stage, checker) = holding(100).await;
    let early = wins(&checker, &stage.core, "early").await;
    settle(&stage.core, &early, "confirm").await.expect(200);
    for (at, past_ms) in [0, 1, 3_600_000].into_iter().enumerate() {
        row.fault();
        clock.move_by_ms(0);
        let id = wins(&checker, &stage.core, &format!("late-{at}")).await;
        let claim = stage.core.look_up(&id).await.expect(200).json()["claim"].clone();
        let expires_ms = support::times::ms(claim["expires_at"].as_str().unwrap());
        clock.set_ms(expires_ms + past_ms);
        let refused = settle(&stage.core, &id, "confirm").await.refused(409, "claim_expired");
        assert_eq!(refused.json()["claim"]["status"], "expired");
        settle(&stage.core, &id, "return").await.expect(200);
        checker.ended(&id);
    }
    settle(&stage.core, &early, "confirm").await.expect(200);
    clock.move_by_ms(0);
    stage.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_user_with_thousands_of_claims_stays_quick() {
    let row = Row::begin("one user with thousands of claims stays quick");
    let stage = Stage::embedded().await;
    let checker = Checker::create(&stage.core, "demo", ROOMY).await;
    let mut times = Vec::new();
    for round in 0..8 {
        let started = Instant::now();
        let asked = (0..500).map(|key| {
            let (checker, core) = (&checker, &stage.core);
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
    stage.redis().await.query::<()>(&["DEL", &key("demo", "claims")]).await;
    stage.judge(row, &checker, Expect::default()).await;
}
