//! Redis Cluster under load: campaigns on the nodes that are whole go on, those of a node that is lost go on once its replica
//! is promoted, and a slot that moves takes its campaigns along with nothing lost.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use support::checker::{Checker, Expect, Limits, Promise};
use support::cluster::ClusterSet;
use support::only_on;
use support::process::{Signal, signal_pid};
use support::redis_server::Kind;
use support::sql::Sql;
use support::storm::Seen;
use support::topology::OWN;
use support::wait::holds;
use support::{Core, CoreOptions, SOON, eventually, heavy};

use crate::load::under_load;
use crate::tally::{Row, say};

const PERSISTED: Expect<'_> = Expect { promise: Promise::Persisted, differences: &[] };
const ROOMY: Limits = Limits { total: Some(200_000), per_user: Some(2_000), per_user_per_day: Some(2_000) };
/// On all three primaries.
const CAMPAIGNS: [&str; 6] = ["c0", "c1", "c2", "c3", "c4", "c5"];
/// How long claims are made before and after a fault.
const WHILE: Duration = Duration::from_millis(300);

/// A core on a cluster, and a judge of each campaign.
struct Clustered {
    set: ClusterSet,
    core: Core,
    sql: Sql,
    checkers: Vec<Checker>,
}

impl Clustered {
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
        assert_eq!(primaries.len(), 3, "the campaigns are on all primaries");
        Self { set, core, sql, checkers }
    }

    async fn under_load<T>(&self, keys: &str, fault: impl Future<Output = T>) -> T {
        let checkers: Vec<_> = self.checkers.iter().collect();
        under_load(&self.core, &checkers, keys, fault).await
    }

    /// Waits until a claim on each campaign is decided; returns how long that took.
    async fn all_decide(&self, key: &str) -> Duration {
        let began = Instant::now();
        for checker in &self.checkers {
            eventually(SOON, || async {
                let seen = checker.claim(&self.core, &format!("probe-{key}"), key).await;
                holds(matches!(seen, Seen::Claimed { .. }), || format!("{}: {seen:?}", checker.campaign()))
            })
            .await;
        }
        began.elapsed()
    }

    /// Under load the primary at `lost` gets `signal`. Until its replica is promoted, campaigns of the other nodes are decided
    /// as ever; then all are.
    async fn loses(&self, lost: usize, signal: Signal) {
        let asked = (lost + 1) % 3;
        let pid = self.set.view(lost).await.pid().await;
        self.under_load("lost", async {
            tokio::time::sleep(WHILE).await;
            signal_pid(pid, signal);
            let mut longest = Duration::ZERO;
            for checker in &self.checkers {
                if self.set.primary_of(checker.campaign(), asked).await != lost {
                    let began = Instant::now();
                    let seen = checker.claim(&self.core, "meanwhile", "k").await;
                    assert!(matches!(seen, Seen::Claimed { .. }), "{}: {seen:?}", checker.campaign());
                    longest = longest.max(began.elapsed());
                }
            }
            assert_eq!(self.core.get("/readyz").await.status, 200, "one lost node does not fail core");
            self.set.promoted_after("c0", lost, asked).await;
            let took = self.all_decide("lost").await;
            say(&format!(
                "  all decided {took:.1?} after the others knew the new primary; meanwhile elsewhere in {longest:.0?} at most"
            ));
            tokio::time::sleep(WHILE).await;
        })
        .await;
    }

    /// Before the judge, each campaign, as the node at `asked` knows where it is.
    async fn judge(&self, row: Row, asked: usize, expect: Expect<'_>) {
        let (mut sum, mut asked_for) = (support::checker::Verdict::default(), 0);
        for checker in &self.checkers {
            let primary = self.set.primary_of(checker.campaign(), asked).await;
            let redis = self.set.view(primary).await;
            let verdict = checker.judge(&[&self.core], &self.sql, &redis, expect).await;
            sum.acknowledged += verdict.acknowledged;
            sum.denied += verdict.denied;
            sum.unknown += verdict.unknown;
            sum.lost += verdict.lost;
            sum.revoked += verdict.revoked;
            asked_for += checker.asked();
        }
        row.survived(asked_for, sum);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_is_killed_under_load() {
    only_on!(OWN, "it brings its own servers");
    let kind = Kind::asked();
    let row = Row::begin_on(kind, "Cluster: a primary killed under load, and back as a replica");
    let _turn = heavy().await;
    let mut clustered = Clustered::start(kind).await;
    let lost = clustered.set.primary_of("c0", 0).await;
    row.kill();
    clustered.loses(lost, Signal::KILL).await;
    clustered.set.nodes[lost].kill_and_restart().await;
    clustered.under_load("back", clustered.set.settled()).await;
    clustered.judge(row, (lost + 1) % 3, PERSISTED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_stands_still_under_load() {
    only_on!(OWN, "it brings its own servers");
    let kind = Kind::asked();
    let row = Row::begin_on(kind, "Cluster: a primary stopped under load, and going on as a replica");
    let _turn = heavy().await;
    let clustered = Clustered::start(kind).await;
    let lost = clustered.set.primary_of("c0", 0).await;
    let pid = clustered.set.view(lost).await.pid().await;
    row.fault();
    clustered.loses(lost, Signal::STOP).await;
    signal_pid(pid, Signal::CONT);
    clustered.under_load("back", clustered.set.settled()).await;
    clustered.judge(row, (lost + 1) % 3, PERSISTED).await;
}

/// There and back again: the node that is promoted the second time was the primary before, and no connection to it broke.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_failovers_by_hand_under_load() {
    only_on!(OWN, "it brings its own servers");
    let kind = Kind::asked();
    let row = Row::begin_on(kind, "Cluster: a failover by hand under load, and one back");
    let _turn = heavy().await;
    let clustered = Clustered::start(kind).await;
    let first = clustered.set.primary_of("c0", 0).await;
    let asked = (first + 1) % 3;
    for (round, (before, after)) in [(first, first + 3), (first + 3, first)].into_iter().enumerate() {
        let keys = format!("hand-{round}");
        clustered
            .under_load(&keys, async {
                tokio::time::sleep(WHILE).await;
                row.fault();
                clustered.set.view(after).await.query::<()>(&["CLUSTER", "FAILOVER"]).await;
                clustered.set.promoted_after("c0", before, asked).await;
                let took = clustered.all_decide(&keys).await;
                say(&format!("  all decided {took:.1?} after the others knew the new primary"));
                tokio::time::sleep(WHILE).await;
            })
            .await;
        clustered.set.settled().await;
    }
    clustered.judge(row, asked, PERSISTED).await;
}

/// How a slot is moved.
#[derive(Clone, Copy)]
enum Move {
    /// As `redis-cli --cluster reshard` does.
    KeyByKey,
    /// As Valkey does from version 9 on.
    AtOnce,
}

/// How often a slot moves: `MOVES`, or there and back.
fn moves() -> usize {
    std::env::var("MOVES").map_or(2, |moves| moves.parse().expect("MOVES is a number"))
}

/// To another primary and back again, one campaign's slot after the other's: nothing that was acknowledged is lost, and every
/// campaign is decided after each move.
async fn a_slot_moves(row: Row, kind: Kind, how: Move) {
    let _turn = heavy().await;
    let clustered = Clustered::start(kind).await;
    let mut homes = Vec::new();
    for campaign in CAMPAIGNS {
        homes.push(clustered.set.primary_of(campaign, 0).await);
    }
    let (moves, mut longest) = (moves(), Duration::ZERO);
    clustered
        .under_load("moved", async {
            for round in 0..moves {
                tokio::time::sleep(WHILE).await;
                row.fault();
                let at = round / 2 % CAMPAIGNS.len();
                let (campaign, home, other) = (CAMPAIGNS[at], homes[at], (homes[at] + 1) % 3);
                let (from, to) = if round % 2 == 0 { (home, other) } else { (other, home) };
                match how {
                    Move::KeyByKey => clustered.set.move_slot(campaign, from, to).await,
                    Move::AtOnce => clustered.set.migrate_slot(campaign, from, to).await,
                }
                longest = longest.max(clustered.all_decide(&format!("moved-{round}")).await);
            }
            tokio::time::sleep(WHILE).await;
        })
        .await;
    say(&format!("  {moves} moves; all decided {longest:.1?} at most after one"));
    clustered.set.settled().await;
    clustered.judge(row, 0, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_moves_under_load() {
    only_on!(OWN, "it brings its own servers");
    let kind = Kind::asked();
    let row = Row::begin_on(kind, "Cluster: a slot moved under load");
    a_slot_moves(row, kind, Move::KeyByKey).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_moves_at_once_under_load() {
    only_on!(OWN, "it brings its own servers");
    let row = Row::begin_on(Kind::Valkey, "Cluster: a slot moved at once under load");
    a_slot_moves(row, Kind::Valkey, Move::AtOnce).await;
}

/// Each node's outboxes are read on a connection to it; no other node is asked for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_outbox_is_read_where_it_is() {
    only_on!(OWN, "it brings its own servers");
    let kind = Kind::asked();
    let row = Row::begin_on(kind, "Cluster: outboxes on all nodes");
    let clustered = Clustered::start(kind).await;
    // Connections are made in the first round.
    for round in 1..=3 {
        clustered.all_decide(&format!("{round}")).await;
        for campaign in CAMPAIGNS {
            eventually(SOON, || async {
                let rows = clustered.sql.claims(campaign).await.len();
                holds(rows == round, || format!("{rows} claims of {campaign} are in SQL"))
            })
            .await;
        }
    }
    // A node may be silent where its disk is slow. One that is asked for another node's outbox answers.
    let log = clustered.core.log();
    let is_silent = |line: &str| line.contains("timed out") || line.contains("replaced meanwhile");
    let mut failed = log.lines().filter(|line| line.contains("not relayed to SQL") && !is_silent(line));
    assert_eq!(failed.next(), None, "{log}");
    row.passed(3 * CAMPAIGNS.len(), "each read at its node");
}

/// A script that a node has lost is sent to that node again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_forgets_the_scripts() {
    only_on!(OWN, "it brings its own servers");
    let kind = Kind::asked();
    let row = Row::begin_on(kind, "Cluster: a node that has lost its scripts");
    let clustered = Clustered::start(kind).await;
    clustered.all_decide("before").await;
    let node = clustered.set.primary_of("c0", 0).await;
    row.fault();
    for kind in ["SCRIPT", "FUNCTION"] {
        clustered.set.view(node).await.query::<()>(&[kind, "FLUSH"]).await;
    }
    for checker in &clustered.checkers {
        checker.win(&clustered.core, 0..3).await;
    }
    clustered.judge(row, 0, Expect::default()).await;
}
