//! Redis forgets: all keys, one of them, or everything since an older copy of its files.

use std::path::{Path, PathBuf};
use std::process::Command;

use reqwest::Method;
use serde_json::{Value, json};
use support::ask::campaign;
use support::checker::{Checker, Expect, Limits, Promise};
use support::core_process::API_TOKEN;
use support::inspect::key;
use support::storm::Seen;
use support::{Core, SOON, eventually, wait::holds};
use tempfile::TempDir;

use crate::redis::setting;
use crate::stage::{ROOMY, Stage};
use crate::tally::Row;

const PERSISTED: Expect<'_> = Expect { promise: Promise::Persisted, differences: &[] };

/// Taken whole before a fault: whoever comes new afterwards may win nothing.
const TIGHT: Limits = Limits { total: Some(40), per_user: Some(1), per_user_per_day: Some(1) };

/// Asks as someone new until there is a decision: "not ready" meanwhile, then sold out; never a fresh start.
async fn nobody_new_wins(checker: &Checker, core: &Core) {
    for at in 0..5 {
        eventually(SOON, || async {
            let seen = checker.claim(core, &format!("late-{at}"), "k").await;
            match &seen {
                Seen::Unknown => Err("no decision yet".to_owned()),
                Seen::Denied { code, remaining: Some(0) } if code == "sold_out" => Ok(()),
                other => panic!("all is taken, and late-{at} is told {other:?}"),
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushall() {
    let row = Row::begin("keys lost: FLUSHALL");
    let stage = Stage::external().await;
    let checker = Checker::create(&stage.core, "demo", TIGHT).await;
    let redis = stage.redis().await;
    checker.win(&stage.core, 0..40).await;
    for _ in 0..3 {
        stage.drained("demo").await;
        row.fault();
        redis.query::<()>(&["FLUSHALL"]).await;
        nobody_new_wins(&checker, &stage.core).await;
    }
    stage.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushall_before_sql_has_heard() {
    let row = Row::begin("keys lost: FLUSHALL, with claims that SQL has not heard of");
    let stage = Stage::external().await;
    let checker = Checker::create(&stage.core, "demo", TIGHT).await;
    let redis = stage.redis().await;
    checker.win(&stage.core, 0..20).await;
    stage.drained("demo").await;
    let held = stage.sql.hold().await;
    checker.win(&stage.core, 20..30).await;
    row.fault();
    redis.query::<()>(&["FLUSHALL"]).await;
    held.release().await;
    // What a drain had in hand when the keys went may have reached SQL; what is gone is decided afresh.
    for user in 20..60 {
        eventually(SOON, || async {
            let seen = checker.claim(&stage.core, &format!("u{user}"), "k").await;
            holds(seen != Seen::Unknown, || "no decision".to_owned())
        })
        .await;
    }
    stage.judge(row, &checker, PERSISTED).await;
    let gaps = stage.reconciliation("demo").await["sql"]["sequence_gaps"].clone();
    let rows = stage.sql.claims("demo").await;
    let again = rows.iter().filter(|row| row.sequence > 30).count();
    assert!(again > 0 || gaps == json!([]), "sequences go on above what was acknowledged: {gaps}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_one_key_deleted() {
    let row = Row::begin("keys lost: any one of them");
    let stage = Stage::external().await;
    let checker = Checker::create(&stage.core, "demo", TIGHT).await;
    let redis = stage.redis().await;
    checker.win(&stage.core, 0..40).await;
    for what in ["campaign", "users", "claims", "holds", "outbox"] {
        stage.drained("demo").await;
        row.fault();
        redis.query::<()>(&["DEL", &key("demo", what)]).await;
        nobody_new_wins(&checker, &stage.core).await;
    }
    stage.judge(row, &checker, Expect::default()).await;
}

/// All but the outbox can go while claims wait in it: they are drained before the counters are summed up anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_deleted_beside_a_live_outbox() {
    let row = Row::begin("keys lost: one of them, beside a live outbox");
    let stage = Stage::external().await;
    let checker = Checker::create(&stage.core, "demo", ROOMY).await;
    let redis = stage.redis().await;
    for (at, what) in ["campaign", "users", "claims", "holds"].into_iter().enumerate() {
        eventually(SOON, || async {
            let seen = checker.claim(&stage.core, &format!("first-{at}"), "k").await;
            holds(matches!(seen, Seen::Claimed { .. }), || format!("{seen:?}"))
        })
        .await;
        let held = stage.sql.hold().await;
        checker.win(&stage.core, at * 20..at * 20 + 20).await;
        row.fault();
        redis.query::<()>(&["DEL", &key("demo", what)]).await;
        held.release().await;
    }
    stage.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_outbox_deleted_before_sql_has_heard() {
    let row = Row::begin("keys lost: only the outbox, with claims that SQL has not heard of");
    let stage = Stage::external().await;
    let checker = Checker::create(&stage.core, "demo", TIGHT).await;
    let redis = stage.redis().await;
    checker.win(&stage.core, 0..20).await;
    stage.drained("demo").await;
    let held = stage.sql.hold().await;
    checker.win(&stage.core, 20..40).await;
    row.fault();
    redis.query::<()>(&["DEL", &key("demo", "outbox")]).await;
    held.release().await;
    stage.judge(row, &checker, PERSISTED).await;
}

/// Redis' folder of append-only files, and a copy of it.
struct Copy {
    folder: PathBuf,
    kept: TempDir,
}

impl Copy {
    async fn take(stage: &Stage) -> Self {
        let redis = stage.redis().await;
        let folder = Path::new(&setting(&redis, "dir").await).join(setting(&redis, "appenddirname").await);
        let kept = tempfile::Builder::new().prefix("cgcopy-").tempdir().unwrap();
        copy(&folder, &kept.path().join("files"));
        Self { folder, kept }
    }

    async fn put_back(&self, stage: &mut Stage) {
        stage.server().process().kill();
        std::fs::remove_dir_all(&self.folder).unwrap();
        copy(&self.kept.path().join("files"), &self.folder);
        stage.server().kill_and_restart().await;
    }
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(copied.success());
}

async fn older_copy(row: Row, core_restarts: bool) {
    let mut stage = Stage::external().await;
    let checker = Checker::create(&stage.core, "demo", TIGHT).await;
    checker.win(&stage.core, 0..20).await;
    let copy = Copy::take(&stage).await;
    checker.win(&stage.core, 20..40).await;
    stage.drained("demo").await;
    row.kill();
    if core_restarts {
        stage.core.kill();
    }
    copy.put_back(&mut stage).await;
    if core_restarts {
        stage.core = stage.core.restart().await;
    }
    nobody_new_wins(&checker, &stage.core).await;
    stage.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_copy_under_a_running_core() {
    older_copy(Row::begin("keys lost: an older copy of Redis' files, core running"), false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_copy_under_a_new_core() {
    older_copy(Row::begin("keys lost: an older copy of Redis' files, core started anew"), true).await;
}

/// A confirm or a return raises no sequence: a copy that is older by them alone must be told all the same.
async fn older_by_a_settlement(row: Row, verb: &str, hold_seconds: Option<u32>) {
    let mut stage = Stage::external().await;
    let limits = Limits { total: Some(10), per_user: Some(1), per_user_per_day: None };
    let mut body = campaign("demo", limits.json());
    body["hold_seconds"] = json!(hold_seconds);
    stage.core.create_with(body).await;
    let checker = Checker::new("demo", limits);
    checker.win(&stage.core, 0..10).await;
    stage.drained("demo").await;
    let copy = Copy::take(&stage).await;
    for id in checker.acknowledged() {
        settle(&stage.core, &id, verb).await;
        if verb == "return" {
            checker.ended(&id);
        }
    }
    stage.drained("demo").await;
    row.kill();
    copy.put_back(&mut stage).await;
    if hold_seconds.is_some() {
        // By the copy's book the holds are due by now.
        tokio::time::sleep(std::time::Duration::from_secs(4)).await;
        nobody_new_wins(&checker, &stage.core).await;
    }
    stage.judge(row, &checker, Expect::default()).await;
}

async fn settle(core: &Core, id: &str, verb: &str) {
    let url = core.url(&format!("/internal/v1/claims/{id}/{verb}"));
    core.client().call(Method::POST, &url, API_TOKEN, &Value::Null).await.expect(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_older_by_confirms_alone() {
    older_by_a_settlement(Row::begin("keys lost: a copy older by confirms alone"), "confirm", Some(4)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_older_by_returns_alone() {
    older_by_a_settlement(Row::begin("keys lost: a copy older by returns alone"), "return", None).await;
}
