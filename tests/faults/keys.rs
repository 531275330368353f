//! Redis loses data: all keys, one key, or everything since an older copy of its files.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::json;
use support::checker::{Checker, Expect, Limits, Promise};
use support::clock::Clock;
use support::core_client::campaign;
use support::inspect::key;
use support::storm::ClaimOutcome;
use support::{Core, CoreOptions, SOON, Servers, eventually, promised, wait::holds};
use tempfile::TempDir;

use crate::fixture::{Fixture, ROOMY};
use crate::redis::setting;
use crate::tally::Row;

const PERSISTED: Expect<'_> = Expect { promise: Promise::Persisted, differences: &[] };

/// Limits that are used up before a fault, so that no new user may get anything afterwards.
const TIGHT: Limits = Limits { total: Some(40), per_user: Some(1), per_user_per_day: Some(1) };

/// Time limit until core has restored Redis' lost identity: core checks it once a second.
const RESTORED_MAX: Duration = Duration::from_secs(2);
/// Time limit until core has loaded an idle campaign that lost a key: core checks 32 campaigns a second.
const LOADED_MAX: Duration = Duration::from_secs(3);

/// Sends claims of new users until there is a decision: first "not ready", then "sold out", but never a
/// grant.
async fn no_new_user_wins(checker: &Checker, core: &Core) {
    for at in 0..5 {
        let outcome = checker.decided(SOON, core, &format!("late-{at}"), "k").await;
        let is_sold_out =
            matches!(&outcome, ClaimOutcome::Denied { code, remaining: Some(0) } if code == "sold_out");
        assert!(is_sold_out, "all units are taken, but late-{at} got {outcome:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushall_never_reopens_a_sold_out_campaign() {
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

/// No claim reports the loss to core.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_key_of_an_idle_campaign_is_noticed_in_time() {
    let row = Row::begin("keys lost: one of an idle campaign");
    let fixture = Fixture::external().await;
    let checker = Checker::create(&fixture.core, "demo", TIGHT).await;
    let redis = fixture.redis().await;
    checker.win(&fixture.core, 0..40).await;
    fixture.relayed("demo").await;
    for _ in 0..4 {
        row.fault();
        redis.query::<u64>(&["DEL", &key("demo", "users")]).await;
        eventually(promised(LOADED_MAX), || async {
            holds(redis.state("demo").await.is_some(), || fixture.core.log())
        })
        .await;
    }
    fixture.judge(row, &checker, Expect::default()).await;
}

/// A running core restores the Redis keys that identify the database and the layout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_serving_core_restores_its_redis_ownership_keys() {
    let row = Row::begin("keys lost: Redis' identity");
    let Some(on_postgres) = row.needs(Fixture::on_postgres(false).await) else { return };
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
        eventually(promised(RESTORED_MAX), || async {
            let now = recorded().await;
            holds(now == before, || format!("{now:?} instead of {before:?}"))
        })
        .await;
    }
    row.passed(2, "recorded again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_limit_is_exceeded_after_a_flushall_before_the_relay() {
    let row = Row::begin("keys lost: FLUSHALL with claims not yet in SQL");
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
    // Entries in flight may still have reached SQL; the decisions of lost claims are made again.
    for user in 20..60 {
        checker.decided(SOON, &fixture.core, &format!("u{user}"), "k").await;
    }
    fixture.judge(row, &checker, PERSISTED).await;
    let gaps = fixture.reconciliation("demo").await["sql"]["sequence_gaps"].clone();
    let rows = fixture.sql.claims("demo").await;
    let again = rows.iter().filter(|row| row.sequence > 30).count();
    assert!(
        again > 0 || gaps == json!([]),
        "sequence numbers must continue above the acknowledged ones: {gaps}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_single_deleted_key_reopens_a_sold_out_campaign() {
    let row = Row::begin("keys lost: one key after the other");
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

/// Any key but the outbox may be deleted while claims are pending in the outbox: they are relayed before the
/// counters are recomputed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pending_claims_survive_the_loss_of_one_key() {
    let row = Row::begin("keys lost: any key except a pending outbox");
    let fixture = Fixture::external().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    let redis = fixture.redis().await;
    for (at, what) in ["campaign", "users", "claims", "holds"].into_iter().enumerate() {
        checker.granted(&fixture.core, &format!("first-{at}"), "k").await;
        let held = fixture.sql.hold().await;
        checker.win(&fixture.core, at * 20..at * 20 + 20).await;
        row.fault();
        redis.query::<()>(&["DEL", &key("demo", what)]).await;
        held.release().await;
    }
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn persisted_claims_survive_a_deleted_outbox() {
    let row = Row::begin("keys lost: only the outbox, with claims not yet in SQL");
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

/// Redis' append-only directory and a copy of it.
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

    async fn restore(&self, fixture: &mut Fixture) {
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
    copy.restore(&mut fixture).await;
    if core_restarts {
        fixture.core = fixture.core.restart().await;
    }
    no_new_user_wins(&checker, &fixture.core).await;
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_redis_copy_grants_nothing_while_core_runs() {
    older_copy(Row::begin("keys lost: an older copy of Redis' files, core running"), false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_redis_copy_grants_nothing_after_a_restart() {
    older_copy(Row::begin("keys lost: an older copy of Redis' files, core restarted"), true).await;
}

/// Confirms and returns do not raise the sequence number. A copy that lacks only them must also be detected.
async fn older_by_a_transition(row: Row, verb: &str, hold_seconds: Option<u32>) {
    let clock = Clock::new();
    let mut fixture = Fixture::on(Servers::start_on(&clock).await, CoreOptions::default()).await;
    let limits = Limits { total: Some(10), per_user: Some(1), per_user_per_day: None };
    let mut body = campaign("demo", limits.json());
    body["hold_seconds"] = json!(hold_seconds);
    fixture.core.create_with(body).await;
    let checker = Checker::new("demo", limits);
    checker.win(&fixture.core, 0..10).await;
    fixture.relayed("demo").await;
    let copy = Copy::take(&fixture).await;
    for id in checker.acknowledged() {
        fixture.core.transition(&id, verb).await.expect(200);
        if verb == "return" {
            checker.ended(&id);
        }
    }
    fixture.relayed("demo").await;
    row.kill();
    copy.restore(&mut fixture).await;
    if hold_seconds.is_some() {
        // The holds in the copy are due.
        fixture.move_clock(&clock, 2 * 3_600_000).await;
        no_new_user_wins(&checker, &fixture.core).await;
    }
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_copy_that_lacks_only_confirms_is_detected() {
    older_by_a_transition(Row::begin("keys lost: a copy that lacks only confirms"), "confirm", Some(3600))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_copy_that_lacks_only_returns_is_detected() {
    older_by_a_transition(Row::begin("keys lost: a copy that lacks only returns"), "return", None).await;
}
