//! Redis forgets: all keys, one of them, or everything since an older copy of its files.

use std::path::{Path, PathBuf};
use std::process::Command;

use reqwest::Method;
use serde_json::{Value, json};
use support::checker::{Checker, Expect, Limits, Promise};
use support::core_client::API_TOKEN;
use support::core_client::campaign;
use support::inspect::key;
use support::storm::Seen;
use support::{Core, SOON, eventually, wait::holds};
use tempfile::TempDir;

use crate::fixture::{Fixture, ROOMY};
use crate::redis::setting;
use crate::tally::Row;

const PERSISTED: Expect<'_> = Expect { promise: Promise::Persisted, differences: &[] };

/// Taken whole before a fault: no user who is new afterwards may win anything.
const TIGHT: Limits = Limits { total: Some(40), per_user: Some(1), per_user_per_day: Some(1) };

/// Asks as a new user until there is a decision: "not ready" meanwhile, then sold out; never a fresh start.
async fn no_new_user_wins(checker: &Checker, core: &Core) {
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
    let fixture = Fixture::external().await;
    let checker = Checker::create(&fixture.core, "demo", TIGHT).await;
    let redis = fixture.redis().await;
    checker.win(&fixture.core, 0..40).await;
    for _ in 0..3 {
        fixture.relayed("demo").await;
        row.fault();
        redis.query_all::<()>(&["FLUSHALL"]).await;
        no_new_user_wins(&checker, &fixture.core).await;
    }
    fixture.judge(row, &checker, Expect::default()).await;
}

/// What says whose Redis it is, and of which layout, comes back beside a core that serves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_serving_core_has_recorded_in_redis() {
    let row = Row::begin("keys lost: those that say whose Redis it is");
    let on_postgres = match Fixture::on_postgres(false).await {
        Ok(fixture) => fixture,
        Err(why) => return row.skip(&why),
    };
    for fixture in [Fixture::external().await, on_postgres] {
        let redis = fixture.redis().await;
        let recorded = async || {
            let mut found = Vec::new();
            for key in ["cg:store", "cg:layout"] {
                found.push(redis.query::<Option<String>>(&["GET", key]).await);
            }
            found
        };
        let before = recorded().await;
        assert!(before.iter().all(Option::is_some), "{before:?}");
        row.fault();
        redis.query_all::<()>(&["FLUSHALL"]).await;
        eventually(SOON, || async {
            let now = recorded().await;
            holds(now == before, || format!("{now:?} instead of {before:?}"))
        })
        .await;
    }
    row.passed(2, "recorded again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushall_before_sql_has_heard() {
    let row = Row::begin("keys lost: FLUSHALL, with claims that SQL has not heard of");
    let fixture = Fixture::external().await;
    let checker = Checker::create(&fixture.core, "demo", TIGHT).await;
    let redis = fixture.redis().await;
    checker.win(&fixture.core, 0..20).await;
    fixture.relayed("demo").await;
    let held = fixture.sql.hold().await;
    checker.win(&fixture.core, 20..30).await;
    row.fault();
    redis.query_all::<()>(&["FLUSHALL"]).await;
    held.release().await;
    // What a relay had in hand when the keys went may have reached SQL; what is gone is decided afresh.
    for user in 20..60 {
        eventually(SOON, || async {
            let seen = checker.claim(&fixture.core, &format!("u{user}"), "k").await;
            holds(seen != Seen::Unknown, || "no decision".to_owned())
        })
        .await;
    }
    fixture.judge(row, &checker, PERSISTED).await;
    let gaps = fixture.reconciliation("demo").await["sql"]["sequence_gaps"].clone();
    let rows = fixture.sql.claims("demo").await;
    let again = rows.iter().filter(|row| row.sequence > 30).count();
    assert!(again > 0 || gaps == json!([]), "sequences go on above what was acknowledged: {gaps}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_one_key_deleted() {
    let row = Row::begin("keys lost: any one of them");
    let fixture = Fixture::external().await;
    let checker = Checker::create(&fixture.core, "demo", TIGHT).await;
    let redis = fixture.redis().await;
    checker.win(&fixture.core, 0..40).await;
    for what in ["campaign", "users", "claims", "holds", "outbox"] {
        fixture.relayed("demo").await;
        row.fault();
        redis.query::<()>(&["DEL", &key("demo", what)]).await;
        no_new_user_wins(&checker, &fixture.core).await;
    }
    fixture.judge(row, &checker, Expect::default()).await;
}

/// All but the outbox can go while claims wait in it: they are relayed before the counters are computed again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_deleted_beside_a_live_outbox() {
    let row = Row::begin("keys lost: one of them, beside a live outbox");
    let fixture = Fixture::external().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    let redis = fixture.redis().await;
    for (at, what) in ["campaign", "users", "claims", "holds"].into_iter().enumerate() {
        eventually(SOON, || async {
            let seen = checker.claim(&fixture.core, &format!("first-{at}"), "k").await;
            holds(matches!(seen, Seen::Claimed { .. }), || format!("{seen:?}"))
        })
        .await;
        let held = fixture.sql.hold().await;
        checker.win(&fixture.core, at * 20..at * 20 + 20).await;
        row.fault();
        redis.query::<()>(&["DEL", &key("demo", what)]).await;
        held.release().await;
    }
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_outbox_deleted_before_sql_has_heard() {
    let row = Row::begin("keys lost: only the outbox, with claims that SQL has not heard of");
    let fixture = Fixture::external().await;
    let checker = Checker::create(&fixture.core, "demo", TIGHT).await;
    let redis = fixture.redis().await;
    checker.win(&fixture.core, 0..20).await;
    fixture.relayed("demo").await;
    let held = fixture.sql.hold().await;
    checker.win(&fixture.core, 20..40).await;
    row.fault();
    redis.query::<()>(&["DEL", &key("demo", "outbox")]).await;
    held.release().await;
    fixture.judge(row, &checker, PERSISTED).await;
}

/// Redis' directory of append-only files, and a copy of it.
struct Copy {
    directory: PathBuf,
    kept: TempDir,
}

impl Copy {
    async fn take(fixture: &Fixture) -> Self {
        let redis = fixture.redis().await.node_of("demo").await;
        let directory = Path::new(&setting(&redis, "dir").await).join(setting(&redis, "appenddirname").await);
        let kept = tempfile::Builder::new().prefix("cgcopy-").tempdir().unwrap();
        copy(&directory, &kept.path().join("files"));
        Self { directory, kept }
    }

    async fn put_back(&self, fixture: &mut Fixture) {
        fixture.server().kill();
        std::fs::remove_dir_all(&self.directory).unwrap();
        copy(&self.kept.path().join("files"), &self.directory);
        fixture.server().kill_and_restart().await;
    }
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(copied.success());
}

async fn older_copy(row: Row, core_restarts: bool) {
    let mut fixture = Fixture::external().await;
    let checker = Checker::create(&fixture.core, "demo", TIGHT).await;
    checker.win(&fixture.core, 0..20).await;
    let copy = Copy::take(&fixture).await;
    checker.win(&fixture.core, 20..40).await;
    fixture.relayed("demo").await;
    row.kill();
    if core_restarts {
        fixture.core.kill();
    }
    copy.put_back(&mut fixture).await;
    if core_restarts {
        fixture.core = fixture.core.restart().await;
    }
    no_new_user_wins(&checker, &fixture.core).await;
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_copy_under_a_running_core() {
    older_copy(Row::begin("keys lost: an older copy of Redis' files, core running"), false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_copy_under_a_new_core() {
    older_copy(Row::begin("keys lost: an older copy of Redis' files, core restarted"), true).await;
}

/// A confirm or a return raises no sequence: a copy that is older by them alone must be told all the same.
async fn older_by_a_transition(row: Row, verb: &str, hold_seconds: Option<u32>) {
    let mut fixture = Fixture::external().await;
    let limits = Limits { total: Some(10), per_user: Some(1), per_user_per_day: None };
    let mut body = campaign("demo", limits.json());
    body["hold_seconds"] = json!(hold_seconds);
    fixture.core.create_with(body).await;
    let checker = Checker::new("demo", limits);
    checker.win(&fixture.core, 0..10).await;
    fixture.relayed("demo").await;
    let copy = Copy::take(&fixture).await;
    for id in checker.acknowledged() {
        transition(&fixture.core, &id, verb).await;
        if verb == "return" {
            checker.ended(&id);
        }
    }
    fixture.relayed("demo").await;
    row.kill();
    copy.put_back(&mut fixture).await;
    if hold_seconds.is_some() {
        // By the copy's book the holds are due by now.
        tokio::time::sleep(std::time::Duration::from_secs(4)).await;
        no_new_user_wins(&checker, &fixture.core).await;
    }
    fixture.judge(row, &checker, Expect::default()).await;
}

async fn transition(core: &Core, id: &str, verb: &str) {
    let url = core.url(&format!("/internal/v1/claims/{id}/{verb}"));
    core.client().call(Method::POST, &url, API_TOKEN, &Value::Null).await.expect(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_older_by_confirms_alone() {
    older_by_a_transition(Row::begin("keys lost: a copy older by confirms alone"), "confirm", Some(4)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_older_by_returns_alone() {
    older_by_a_transition(Row::begin("keys lost: a copy older by returns alone"), "return", None).await;
}
