//! Redis Cluster under load. Campaigns on healthy nodes continue, those of a lost node continue once its
//! replica is promoted, and a moving slot loses nothing.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use support::checker::{Checker, Expect, Promise};
use support::cluster::ClusterSet;
use support::only_on;
use support::process::{Signal, signal_pid};
use support::redis_server::Kind;
use support::sql::Sql;
use support::storm::ClaimOutcome;
use support::topology::OWN;
use support::wait::holds;
use support::{Core, CoreOptions, SOON, eventually, heavy};

use crate::fixture::ROOMY;
use crate::load::under_load;
use crate::tally::{Row, say};

const PERSISTED: Expect<'_> = Expect { promise: Promise::Persisted, differences: &[] };
/// Campaigns on all three primaries.
const CAMPAIGNS: [&str; 6] = ["c0", "c1", "c2", "c3", "c4", "c5"];
/// Duration of the claims before and after a fault.
const LOAD_TIME: Duration = Duration::from_millis(300);

/// A core on a cluster, with a checker for each campaign.
struct ClusterFixture {
    set: ClusterSet,
    core: Core,
    sql: Sql,
    checkers: Vec<Checker>,
}

impl ClusterFixture {
    async fn start(kind: Kind) -> Self {
        let set = ClusterSet::start(kind).await;
        let core = CoreOptions::default().with("CLAIMGATE_REDIS_URL", set.url()).start().await;
        let sql = Sql::in_directory(&core.data_dir());
        let mut checkers = Vec::new();
        let mut primaries = BTreeSet::new();
        for campaign in CAMPAIGNS {
            checkers.push(Checker::create(&core, campaign, ROOMY).await);
            primaries.insert(set.primary_of(campaign, 0).await);
        }
        assert_eq!(primaries.len(), 3, "the campaigns must be on all primaries");
        Self { set, core, sql, checkers }
    }

    async fn under_load<T>(&self, keys: &str, fault: impl Future<Output = T>) -> T {
        let checkers: Vec<_> = self.checkers.iter().collect();
        under_load(&self.core, &checkers, keys, fault).await
    }

    /// Waits until a claim on each campaign has been decided; returns the time taken.
    async fn all_decide(&self, key: &str) -> Duration {
        let began = Instant::now();
        for checker in &self.checkers {
            checker.granted(&self.core, &format!("probe-{key}"), key).await;
        }
        began.elapsed()
    }

    /// Sends `signal` to the primary `lost` under load. Until its replica is promoted, campaigns of the other
    /// nodes must be decided without delay; then all must be decided.
    async fn lose_primary(&self, lost: usize, signal: Signal) {
        let observer = (lost + 1) % 3;
        let pid = self.set.view(lost).await.pid().await;
        self.under_load("lost", async {
            tokio::time::sleep(LOAD_TIME).await;
            signal_pid(pid, signal);
            let mut longest = Duration::ZERO;
            for checker in &self.checkers {
                if self.set.primary_of(checker.campaign(), observer).await != lost {
                    let began = Instant::now();
                    let outcome = checker.claim(&self.core, "meanwhile", "k").await;
                    assert!(matches!(outcome, ClaimOutcome::Claimed { .. }), "{}: {outcome:?}", checker.campaign());
                    longest = longest.max(began.elapsed());
                }
            }
            assert_eq!(self.core.get("/readyz").await.status, 200, "core stays ready without one node");
            self.set.promoted_after("c0", lost, observer).await;
            let took = self.all_decide("lost").await;
            say(&format!(
                "  all decided {took:.1?} after the other nodes reported the new primary; other campaigns took at most {longest:.0?} meanwhile"
            ));
            tokio::time::sleep(LOAD_TIME).await;
        })
        .await;
    }

    /// Runs the final check on each campaign, at its primary according to node `observer`.
    async fn judge(&self, row: Row, observer: usize, expect: Expect<'_>) {
        let (mut sum, mut call_count) = (support::checker::Verdict::default(), 0);
        for checker in &self.checkers {
            let primary = self.set.primary_of(checker.campaign(), observer).await;
            let redis = self.set.view(primary).await;
            let verdict = checker.judge(&[&self.core], &self.sql, &redis, expect).await;
            sum.acknowledged += verdict.acknowledged;
            sum.denied += verdict.denied;
            sum.unknown += verdict.unknown;
            sum.lost += verdict.lost;
            sum.revoked += verdict.revoked;
            call_count += checker.call_count();
        }
        row.survived(call_count, sum);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn persisted_claims_survive_a_killed_primary() {
    only_on!(OWN, "it starts its own servers");
    let kind = Kind::from_env();
    let row = Row::begin_on(kind, "Cluster: a primary killed under load, then restarted as a replica");
    let _turn = heavy().await;
    let mut fixture = ClusterFixture::start(kind).await;
    let lost = fixture.set.primary_of("c0", 0).await;
    row.kill();
    fixture.lose_primary(lost, Signal::KILL).await;
    fixture.set.nodes[lost].kill_and_restart().await;
    fixture.under_load("back", fixture.set.settled()).await;
    fixture.judge(row, (lost + 1) % 3, PERSISTED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn persisted_claims_survive_a_stalled_primary() {
    only_on!(OWN, "it starts its own servers");
    let kind = Kind::from_env();
    let row = Row::begin_on(kind, "Cluster: a primary stopped under load, then resumed as a replica");
    let _turn = heavy().await;
    let fixture = ClusterFixture::start(kind).await;
    let lost = fixture.set.primary_of("c0", 0).await;
    let pid = fixture.set.view(lost).await.pid().await;
    row.fault();
    fixture.lose_primary(lost, Signal::STOP).await;
    signal_pid(pid, Signal::CONT);
    fixture.under_load("back", fixture.set.settled()).await;
    fixture.judge(row, (lost + 1) % 3, PERSISTED).await;
}

/// Fails over and back. The second promoted node is the original primary, whose connections never broke.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn persisted_claims_survive_two_manual_failovers() {
    only_on!(OWN, "it starts its own servers");
    let kind = Kind::from_env();
    let row = Row::begin_on(kind, "Cluster: a manual failover under load, and back");
    let _turn = heavy().await;
    let fixture = ClusterFixture::start(kind).await;
    let first = fixture.set.primary_of("c0", 0).await;
    let observer = (first + 1) % 3;
    for (round, (before, after)) in [(first, first + 3), (first + 3, first)].into_iter().enumerate() {
        let keys = format!("hand-{round}");
        fixture
            .under_load(&keys, async {
                tokio::time::sleep(LOAD_TIME).await;
                row.fault();
                fixture.set.view(after).await.query::<()>(&["CLUSTER", "FAILOVER"]).await;
                fixture.set.promoted_after("c0", before, observer).await;
                let took = fixture.all_decide(&keys).await;
                say(&format!("  all decided {took:.1?} after the other nodes reported the new primary"));
                tokio::time::sleep(LOAD_TIME).await;
            })
            .await;
        fixture.set.settled().await;
    }
    fixture.judge(row, observer, PERSISTED).await;
}

/// The way in which a slot is moved.
#[derive(Clone, Copy)]
enum Move {
    /// Moves the keys one by one, as `redis-cli --cluster reshard` does.
    KeyByKey,
    /// Moves the slot in one step, which Valkey supports since version 9.
    InOneStep,
}

/// Returns how often a slot moves: `MOVES`; by default twice, away and back.
fn moves() -> usize {
    std::env::var("MOVES").map_or(2, |moves| moves.parse().expect("MOVES is a number"))
}

/// Moves the slots of all campaigns to another primary and back. No acknowledged claim is lost, and claims on
/// every campaign are decided after each move.
async fn a_slot_moves(row: Row, kind: Kind, how: Move) {
    let _turn = heavy().await;
    let fixture = ClusterFixture::start(kind).await;
    let mut homes = Vec::new();
    for campaign in CAMPAIGNS {
        homes.push(fixture.set.primary_of(campaign, 0).await);
    }
    let (moves, mut longest) = (moves(), Duration::ZERO);
    fixture
        .under_load("moved", async {
            for round in 0..moves {
                tokio::time::sleep(LOAD_TIME).await;
                row.fault();
                let at = round / 2 % CAMPAIGNS.len();
                let (campaign, home, other) = (CAMPAIGNS[at], homes[at], (homes[at] + 1) % 3);
                let (from, to) = if round % 2 == 0 { (home, other) } else { (other, home) };
                match how {
                    Move::KeyByKey => fixture.set.move_slot(campaign, from, to).await,
                    Move::InOneStep => fixture.set.migrate_slot(campaign, from, to).await,
                }
                longest = longest.max(fixture.all_decide(&format!("moved-{round}")).await);
            }
            tokio::time::sleep(LOAD_TIME).await;
        })
        .await;
    say(&format!("  {moves} moves; all campaigns decided within {longest:.1?} after each"));
    fixture.set.settled().await;
    fixture.judge(row, 0, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_claim_is_lost_when_a_slot_moves_key_by_key() {
    only_on!(OWN, "it starts its own servers");
    let kind = Kind::from_env();
    let row = Row::begin_on(kind, "Cluster: a slot moved key by key under load");
    a_slot_moves(row, kind, Move::KeyByKey).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_claim_is_lost_when_a_slot_moves_in_one_step() {
    only_on!(OWN, "it starts its own servers");
    let row = Row::begin_on(Kind::Valkey, "Cluster: a slot moved in one step under load");
    a_slot_moves(row, Kind::Valkey, Move::InOneStep).await;
}

/// Each outbox is read on a connection to its own node, and never from a different node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_outbox_is_read_only_from_its_own_node() {
    only_on!(OWN, "it starts its own servers");
    let kind = Kind::from_env();
    let row = Row::begin_on(kind, "Cluster: outboxes on all nodes");
    let fixture = ClusterFixture::start(kind).await;
    // Connections are opened in the first round.
    for round in 1..=3 {
        fixture.all_decide(&format!("{round}")).await;
        for campaign in CAMPAIGNS {
            eventually(SOON, || async {
                let rows = fixture.sql.claims(campaign).await.len();
                holds(rows == round, || format!("{rows} claims of {campaign} are in SQL"))
            })
            .await;
        }
    }
    // A node on a slow disk may time out; a wrong node would answer with an error.
    let log = fixture.core.log();
    let is_silent = |line: &str| line.contains("timed out") || line.contains("replaced in the meantime");
    let mut failed = log.lines().filter(|line| line.contains("not relayed to SQL") && !is_silent(line));
    assert_eq!(failed.next(), None, "{log}");
    row.passed(3 * CAMPAIGNS.len(), "each outbox was read from its own node");
}

/// A script that a node has lost is reloaded into that node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_lost_by_a_node_are_reloaded() {
    only_on!(OWN, "it starts its own servers");
    let kind = Kind::from_env();
    let row = Row::begin_on(kind, "Cluster: a node loses its scripts");
    let fixture = ClusterFixture::start(kind).await;
    fixture.all_decide("before").await;
    let node = fixture.set.primary_of("c0", 0).await;
    row.fault();
    for kind in ["SCRIPT", "FUNCTION"] {
        fixture.set.view(node).await.query::<()>(&[kind, "FLUSH"]).await;
    }
    for checker in &fixture.checkers {
        checker.win(&fixture.core, 0..3).await;
    }
    fixture.judge(row, 0, Expect::default()).await;
}
