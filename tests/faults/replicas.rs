//! Replicas that count: with `CLAIMGATE_REDIS_REPLICAS=1` nothing is acknowledged that a failover could lose.

use std::time::Duration;

use serde_json::{Value, json};
use support::checker::{Checker, Expect, Limits, Verdict};
use support::cluster::ClusterSet;
use support::core_client::campaign;
use support::inspect::key;
use support::only_on;
use support::process::{Signal, signal_pid};
use support::promotion::has_members;
use support::redis_server::Kind;
use support::sentinel::SentinelSet;
use support::sql::Sql;
use support::storm::Seen;
use support::times::from_now;
use support::topology::OWN;
use support::wait::holds;
use support::{Core, CoreOptions, SOON, eventually, heavy, undisturbed};

use crate::load::under_load;
use crate::tally::{Row, say};

const ROOMY: Limits = Limits { total: Some(200_000), per_user: Some(2_000), per_user_per_day: Some(2_000) };
const WHILE: Duration = Duration::from_millis(300);

/// A core before the servers at `url` that waits for one replica.
pub fn waiting_for_one(url: String) -> CoreOptions {
    CoreOptions::default().with("CLAIMGATE_REDIS_URL", url).with("CLAIMGATE_REDIS_REPLICAS", "1")
}

/// A core that waits for a replica, on a primary with two.
struct Watched {
    set: SentinelSet,
    core: Core,
    checker: Checker,
}

impl Watched {
    async fn start(kind: Kind) -> Self {
        let set = SentinelSet::start(kind).await;
        let core = waiting_for_one(set.url()).start().await;
        has_members(&core, 2).await;
        let checker = Checker::create(&core, "demo", ROOMY).await;
        Self { set, core, checker }
    }

    async fn judge(&self, row: Row, primary: usize) {
        let (sql, redis) = (Sql::in_directory(&self.core.data_dir()), self.set.view(primary).await);
        let verdict = self.checker.judge(&[&self.core], &sql, &redis, Expect::default()).await;
        say(&format!("  of {} claims acknowledged {} lost", verdict.acknowledged, verdict.lost));
        row.survived(self.checker.asked(), verdict);
    }
}

async fn replication(core: &Core) -> Value {
    core.admin_get("/admin/v1/replication").await.expect(200).json()
}

/// Waits until a claim of `user` is decided.
async fn decides(core: &Core, checker: &Checker, user: &str) {
    eventually(2 * SOON, || async {
        let seen = checker.claim(core, user, "k").await;
        holds(seen != Seen::Unknown, || core.log())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_leaves_before_a_replica_has_it() {
    only_on!(OWN, "it brings its own servers");
    let kind = Kind::asked();
    let row = Row::begin_on(kind, "replicas: all of them stopped, then one");
    let _turn = heavy().await;
    let watched = Watched::start(kind).await;
    watched.checker.win(&watched.core, 0..20).await;
    let pids = [watched.set.view(1).await.pid().await, watched.set.view(2).await.pid().await];
    row.fault();
    for pid in pids {
        signal_pid(pid, Signal::STOP);
    }
    assert_eq!(watched.checker.claim(&watched.core, "early", "k").await, Seen::Unknown);
    // Nor is what the primary alone knows told by another call.
    let again = watched.core.once().claim("demo", "early", "k").await;
    assert_eq!(again.status, 503, "{}", again.text());
    signal_pid(pids[0], Signal::CONT);
    // The one that is gone is waited for no longer: one is enough.
    decides(&watched.core, &watched.checker, "early").await;
    has_members(&watched.core, 1).await;
    signal_pid(pids[1], Signal::CONT);
    has_members(&watched.core, 2).await;
    watched.judge(row, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_primary_takes_nothing_acknowledged_with_it() {
    only_on!(OWN, "it brings its own servers");
    let kind = Kind::asked();
    let row = Row::begin_on(kind, "replicas: the primary killed under load");
    let _turn = heavy().await;
    let mut watched = Watched::start(kind).await;
    let pid = watched.set.view(0).await.pid().await;
    let killed = async {
        tokio::time::sleep(WHILE).await;
        row.kill();
        signal_pid(pid, Signal::KILL);
        let promoted = watched.set.promoted_after(0).await;
        decides(&watched.core, &watched.checker, "probe").await;
        tokio::time::sleep(WHILE).await;
        promoted
    };
    let promoted = under_load(&watched.core, &[&watched.checker], "killed", killed).await;
    watched.set.servers[0].kill_and_restart().await;
    watched.set.settled().await;
    has_members(&watched.core, 2).await;
    watched.judge(row, promoted).await;
}

/// A replica that was left out of the set is promoted, since no other is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_outside_the_set_stays_closed() {
    only_on!(OWN, "it brings its own servers");
    let kind = Kind::asked();
    let row = Row::begin_on(kind, "replicas: one outside the set promoted");
    let _turn = heavy().await;
    let mut watched = Watched::start(kind).await;
    let behind = watched.set.view(2).await.pid().await;
    signal_pid(behind, Signal::STOP);
    has_members(&watched.core, 1).await;
    watched.checker.win(&watched.core, 0..20).await;
    // What SQL does not have is lost with the two that have it, and is accepted as lost below.
    watched.checker.settle(&[&watched.core], &watched.set.view(0).await).await;
    row.kill();
    for at in [0, 1] {
        let pid = watched.set.view(at).await.pid().await;
        signal_pid(pid, Signal::KILL);
    }
    signal_pid(behind, Signal::CONT);
    assert_eq!(watched.set.promoted_after(0).await, 2);
    eventually(2 * SOON, || async {
        let log = watched.core.log();
        holds(log.contains("nothing that this server says is acknowledged"), || log.clone())
    })
    .await;
    for at in [0, 1] {
        watched.set.servers[at].kill_and_restart().await;
    }
    watched.set.settled().await;
    // Nor does it help that the others follow it by now.
    assert_eq!(watched.checker.claim(&watched.core, "outside", "k").await, Seen::Unknown);
    let told = replication(&watched.core).await;
    let refused = told["primaries"][0]["refused"].as_str().unwrap_or_default();
    assert!(refused.contains("claimgate replication"), "{told:#}");
    watched.core.admin_post("/admin/v1/replication/accept-loss").await.expect(200);
    has_members(&watched.core, 2).await;
    decides(&watched.core, &watched.checker, "outside").await;
    watched.judge(row, 2).await;
}

/// What an evictor that died has left in Redis, and a failover could bring back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_eviction_is_over_once_a_replica_has_it() {
    only_on!(OWN, "it brings its own servers");
    let kind = Kind::asked();
    let row = Row::begin_on(kind, "replicas: stopped while an evicted campaign's keys are removed");
    let _turn = undisturbed().await;
    let set = SentinelSet::start(kind).await;
    let options = waiting_for_one(set.url()).with("CLAIMGATE_ARCHIVE_AFTER_S", "1");
    let core = options.with("RUST_LOG", "info,claimgate_core::jobs=debug").start().await;
    has_members(&core, 2).await;
    let mut body = campaign("demo", json!({"total": 20}));
    body["ends_at"] = json!(from_now(2));
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
    eventually(2 * SOON, || async {
        holds(core.log().contains("keys of evicted campaigns are not dropped"), || core.log())
    })
    .await;
    assert_eq!(redis.query::<u64>(&["EXISTS", &key]).await, 0, "the primary has removed it");
    assert_eq!(row_of().await.expect("evicted")[0], Some(0), "no replica has");
    for pid in pids {
        signal_pid(pid, Signal::CONT);
    }
    eventually(2 * SOON, || async {
        let row = row_of().await.expect("evicted");
        holds(row[0] == Some(1), || core.log())
    })
    .await;
    row.survived(0, Verdict::default());
}

/// The slot of the barrier's own key moves to another node, and no campaign is in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_barriers_slot_moves() {
    only_on!(OWN, "it brings its own servers");
    let kind = Kind::asked();
    let row = Row::begin_on(kind, "replicas: the slot of the barrier's own key moved");
    let _turn = heavy().await;
    let set = ClusterSet::start(kind).await;
    let core = waiting_for_one(set.url()).start().await;
    has_members(&core, 1).await;
    let checker = Checker::create(&core, "demo", ROOMY).await;
    decides(&core, &checker, "before").await;
    let from = set.primary_of("demo", 0).await;
    let keys: Vec<String> = set.view(from).await.query(&["KEYS", "cg:{*}:barrier"]).await;
    let tag = keys[0].trim_start_matches("cg:{").trim_end_matches("}:barrier").to_owned();
    row.fault();
    set.move_slot(&tag, from, (from + 1) % 3).await;
    decides(&core, &checker, "after").await;
    let sql = Sql::in_directory(&core.data_dir());
    let verdict = checker.judge(&[&core], &sql, &set.view(from).await, Expect::default()).await;
    row.survived(checker.asked(), verdict);
}
