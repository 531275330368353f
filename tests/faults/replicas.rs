//! Required replicas: with `CLAIMGATE_REDIS_REPLICAS=1` only claims that survive a failover are acknowledged.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use support::checker::{Checker, Expect, Verdict};
use support::cluster::ClusterSet;
use support::core_client::campaign;
use support::inspect::key;
use support::only_on;
use support::process::{Signal, signal_pid};
use support::promotion::has_members;
use support::redis_server::Kind;
use support::sentinel::SentinelSet;
use support::sql::Sql;
use support::storm::ClaimOutcome;
use support::times::from_now;
use support::topology::{ONE_SERVER, OWN};
use support::wait::holds;
use support::{Core, CoreOptions, SOON, eventually, heavy, promised, undisturbed};

use crate::fixture::{Fixture, ROOMY};
use crate::load::under_load;
use crate::registers::counter;
use crate::tally::{Row, say};

const LOAD_TIME: Duration = Duration::from_millis(300);
/// Time limit until claims are acknowledged without a stopped replica: one call that waits for it, and the next call.
const REMOVED_MAX: Duration = Duration::from_secs(2);
/// Time limit until another core follows a new number of replicas: core reads the number every half second.
const FOLLOWED_MAX: Duration = Duration::from_secs(3);

/// Returns the options of a core on the servers at `url` that requires one replica.
pub fn waiting_for_one(url: String) -> CoreOptions {
    CoreOptions::default().with("CLAIMGATE_REDIS_URL", url).with("CLAIMGATE_REDIS_REPLICAS", "1")
}

/// A core that requires one replica, on a primary with two. No server fails over unless the test requests it.
struct SentinelFixture {
    set: SentinelSet,
    core: Core,
    checker: Checker,
}

impl SentinelFixture {
    async fn start(kind: Kind) -> Self {
        let set = SentinelSet::start(kind).await;
        set.never_fail_over().await;
        let core = waiting_for_one(set.url()).start().await;
        has_members(&core, 2).await;
        let checker = Checker::create(&core, "demo", ROOMY).await;
        Self { set, core, checker }
    }

    async fn judge(&self, row: Row, primary: usize) {
        let (sql, redis) = (Sql::in_directory(&self.core.data_dir()), self.set.view(primary).await);
        let verdict = self.checker.judge(&[&self.core], &sql, &redis, Expect::default()).await;
        say(&format!("  {} claims acknowledged, {} lost", verdict.acknowledged, verdict.lost));
        row.survived(self.checker.call_count(), verdict);
    }
}

async fn replication(core: &Core) -> Value {
    core.admin_get("/admin/v1/replication").await.expect(200).json()
}

async fn set_version(core: &Core) -> u64 {
    replication(core).await["primaries"][0]["set"]["version"].as_u64().expect("a version")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_acknowledged_before_a_replica_has_it() {
    only_on!(OWN, "it starts its own servers");
    let kind = Kind::from_env();
    let row = Row::begin_on(kind, "replicas: all stopped, then one");
    let _turn = undisturbed().await;
    let fixture = SentinelFixture::start(kind).await;
    fixture.checker.win(&fixture.core, 0..20).await;
    let pids = [fixture.set.view(1).await.pid().await, fixture.set.view(2).await.pid().await];
    row.fault();
    for pid in pids {
        signal_pid(pid, Signal::STOP);
    }
    assert_eq!(fixture.checker.claim(&fixture.core, "early", "k").await, ClaimOutcome::Unknown);
    // No other call may report a claim that only the primary has.
    let again = fixture.core.once().claim("demo", "early", "k").await;
    assert_eq!(again.status, 503, "{}", again.text());
    signal_pid(pids[0], Signal::CONT);
    // The core no longer waits for the stopped replica: one is enough.
    fixture.checker.decided(SOON, &fixture.core, "early", "k").await;
    has_members(&fixture.core, 1).await;
    signal_pid(pids[1], Signal::CONT);
    has_members(&fixture.core, 2).await;
    // Core removes a stopped replica from the set, and the other replica is enough.
    row.fault();
    signal_pid(pids[0], Signal::STOP);
    let began = Instant::now();
    fixture.checker.decided(SOON, &fixture.core, "late", "k").await;
    assert!(began.elapsed() < promised(REMOVED_MAX), "decided only after {:?}", began.elapsed());
    signal_pid(pids[0], Signal::CONT);
    has_members(&fixture.core, 2).await;
    fixture.judge(row, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_acknowledged_claim_is_lost_when_the_primary_is_killed() {
    only_on!(OWN, "it starts its own servers");
    let kind = Kind::from_env();
    let row = Row::begin_on(kind, "replicas: the primary killed under load");
    let _turn = heavy().await;
    let mut fixture = SentinelFixture::start(kind).await;
    let pid = fixture.set.view(0).await.pid().await;
    let killed = async {
        tokio::time::sleep(LOAD_TIME).await;
        row.kill();
        signal_pid(pid, Signal::KILL);
        let promoted = fixture.set.fail_over().await;
        fixture.checker.decided(SOON, &fixture.core, "probe", "k").await;
        tokio::time::sleep(LOAD_TIME).await;
        promoted
    };
    let promoted = under_load(&fixture.core, &[&fixture.checker], "killed", killed).await;
    fixture.set.servers[0].kill_and_restart().await;
    fixture.set.settled().await;
    has_members(&fixture.core, 2).await;
    fixture.judge(row, promoted).await;
}

/// A replica outside the set is promoted, since no other server runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_server_outside_the_set_stays_closed() {
    only_on!(OWN, "it starts its own servers");
    let kind = Kind::from_env();
    let row = Row::begin_on(kind, "replicas: a server outside the set promoted");
    let _turn = undisturbed().await;
    let mut fixture = SentinelFixture::start(kind).await;
    let behind = fixture.set.view(2).await.pid().await;
    signal_pid(behind, Signal::STOP);
    has_members(&fixture.core, 1).await;
    fixture.checker.win(&fixture.core, 0..20).await;
    // Settle first: claims that SQL lacks are lost with the two servers, and that loss is accepted below.
    fixture.checker.settle(&[&fixture.core], &fixture.set.view(0).await).await;
    row.kill();
    for at in [0, 1] {
        let pid = fixture.set.view(at).await.pid().await;
        signal_pid(pid, Signal::KILL);
    }
    signal_pid(behind, Signal::CONT);
    assert_eq!(fixture.set.fail_over().await, 2);
    fixture.core.until_logged(SOON, &["writes to this primary are not acknowledged"]).await;
    for at in [0, 1] {
        fixture.set.servers[at].kill_and_restart().await;
    }
    fixture.set.settled().await;
    // The promoted server stays closed, although the other servers follow it by now.
    assert_eq!(fixture.checker.claim(&fixture.core, "outside", "k").await, ClaimOutcome::Unknown);
    let report = replication(&fixture.core).await;
    let refused = report["primaries"][0]["refused"].as_str().unwrap_or_default();
    assert!(refused.contains("claimgate replication"), "{report:#}");
    fixture.core.admin_post("/admin/v1/replication/accept-loss").await.expect(200);
    has_members(&fixture.core, 2).await;
    fixture.checker.decided(SOON, &fixture.core, "outside", "k").await;
    fixture.judge(row, 2).await;
}

/// SQL forgets that a replica has left the set. That replica lacks acknowledged claims, so it must not be a member.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_set_lost_by_sql_is_written_again() {
    only_on!(OWN, "it starts its own servers");
    let kind = Kind::from_env();
    let row = Row::begin_on(kind, "replicas: SQL forgets that one has left the set");
    let _turn = undisturbed().await;
    let fixture = SentinelFixture::start(kind).await;
    let sql = Sql::in_directory(&fixture.core.data_dir());
    sql.copy_tables().await;
    let behind = fixture.set.view(2).await.pid().await;
    row.fault();
    signal_pid(behind, Signal::STOP);
    has_members(&fixture.core, 1).await;
    fixture.checker.decided(SOON, &fixture.core, "ann", "k").await;
    let before = set_version(&fixture.core).await;
    row.fault();
    sql.restore_tables().await;
    eventually(SOON, || async {
        let version = set_version(&fixture.core).await;
        holds(version > before, || format!("SQL has version {version}, and had {before}"))
    })
    .await;
    has_members(&fixture.core, 1).await;
    fixture.checker.decided(SOON, &fixture.core, "bob", "k").await;
    fixture.core.claim("demo", "ann", "k").await.expect(200);
    signal_pid(behind, Signal::CONT);
    has_members(&fixture.core, 2).await;
    row.passed(2, "the set was written again, and no claim was lost");
}

/// A dead evictor leaves keys in Redis, which a failover could bring back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_eviction_completes_when_a_replica_has_it() {
    only_on!(OWN, "it starts its own servers");
    let kind = Kind::from_env();
    let row = Row::begin_on(kind, "replicas: stopped during the removal of an evicted campaign's keys");
    let _turn = undisturbed().await;
    let set = SentinelSet::start(kind).await;
    set.never_fail_over().await;
    let options = waiting_for_one(set.url()).with("CLAIMGATE_ARCHIVE_AFTER_S", "1");
    let core = options.with("RUST_LOG", "info,claimgate_core::jobs=debug").start().await;
    has_members(&core, 2).await;
    let mut body = campaign("demo", json!({"total": 20}));
    body["ends_at"] = json!(from_now(-1));
    core.create_with(body).await;
    let (sql, redis) = (Sql::in_directory(&core.data_dir()), set.view(0).await);
    let dropped = "SELECT keys_dropped, token FROM campaigns WHERE id = $1 AND evicted_at IS NOT NULL";
    let row_of = || async { sql.numbers(dropped, "demo").await };
    let token = eventually(SOON, || async {
        row_of().await.and_then(|row| row[1].filter(|_| row[0] == Some(1))).ok_or_else(|| core.log())
    })
    .await;
    let pids = [set.view(1).await.pid().await, set.view(2).await.pid().await];
    row.fault();
    for pid in pids {
        signal_pid(pid, Signal::STOP);
    }
    let key = key("demo", "campaign");
    let left = ["HSET", &key, "token", &token.to_string(), "phase", "suspended"];
    assert_eq!(redis.query::<u64>(&left).await, 2);
    sql.run("UPDATE campaigns SET keys_dropped = 0".to_owned()).await;
    core.until_logged(SOON, &["dropping the keys of evicted campaigns"]).await;
    eventually(SOON, || async {
        let left: u64 = redis.query(&["EXISTS", &key]).await;
        holds(left == 0, || "the primary must have removed it".to_owned())
    })
    .await;
    assert_eq!(row_of().await.expect("evicted")[0], Some(0), "no replica has removed it");
    for pid in pids {
        signal_pid(pid, Signal::CONT);
    }
    eventually(SOON, || async {
        let row = row_of().await.expect("evicted");
        holds(row[0] == Some(1), || core.log())
    })
    .await;
    row.survived(0, Verdict::default());
}

const NOT_REPLICATED: &str = r#"claimgate_unavailable_total{code="unavailable",reason="not_replicated"}"#;

/// The server has no replica, so no claim is acknowledged while one is required.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_cores_follow_a_new_number_of_required_replicas() {
    only_on!(ONE_SERVER, "the server must have no replica");
    let row = Row::begin("replicas: their number changed through another core");
    let Some(fixture) = row.needs(Fixture::two_cores().await) else { return };
    fixture.core.create("demo", json!({"total": 100_000})).await;
    let users = AtomicUsize::new(0);
    for (replicas_min, status) in [(1, 503), (0, 201), (1, 503), (0, 201)] {
        row.fault();
        let before = counter(fixture.other(), NOT_REPLICATED).await;
        let change = json!({"replicas_min": replicas_min});
        fixture.core.admin(Method::POST, "/admin/v1/replication", &change).await.expect(200);
        eventually(promised(FOLLOWED_MAX), || async {
            let user = format!("u{}", users.fetch_add(1, Ordering::Relaxed));
            let reply = fixture.other().once().claim("demo", &user, "k").await;
            let refused = counter(fixture.other(), NOT_REPLICATED).await - before;
            // A 503 may have another reason, such as a Redis that stalls.
            let is_followed = reply.status == status && (status == 201 || refused > 0);
            holds(is_followed, || format!("{refused} claims without a replica, at last {}", reply.text()))
        })
        .await;
    }
    row.passed(users.into_inner(), "each number was followed");
}

/// The slot of the barrier's own key moves to another node; no campaign uses it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_continue_when_the_barriers_slot_moves() {
    only_on!(OWN, "it starts its own servers");
    let kind = Kind::from_env();
    let row = Row::begin_on(kind, "replicas: the slot of the barrier's own key moved");
    let _turn = undisturbed().await;
    let set = ClusterSet::start_without_failovers(kind).await;
    let core = waiting_for_one(set.url()).start().await;
    has_members(&core, 1).await;
    let checker = Checker::create(&core, "demo", ROOMY).await;
    checker.decided(SOON, &core, "before", "k").await;
    let from = set.primary_of("demo", 0).await;
    let keys: Vec<String> = set.view(from).await.query(&["KEYS", "cg:{*}:barrier"]).await;
    let tag = keys[0].trim_start_matches("cg:{").trim_end_matches("}:barrier").to_owned();
    row.fault();
    set.move_slot(&tag, from, (from + 1) % 3).await;
    checker.decided(SOON, &core, "after", "k").await;
    let sql = Sql::in_directory(&core.data_dir());
    let verdict = checker.judge(&[&core], &sql, &set.view(from).await, Expect::default()).await;
    row.survived(checker.call_count(), verdict);
}
