//! Control experiments: without required replicas, the same failovers lose claims.

use futures_util::future::join_all;
use support::checker::{Checker, Expect, Limits};
use support::only_on;
use support::redis_server::Kind as Server;
use support::sentinel::SentinelSet;
use support::storm::{ClaimAttempt, ClaimOutcome};
use support::topology::OWN;
use support::wait::holds;
use support::{SOON, eventually};

use crate::tally::Row;

use super::crowd::claim_id;
use super::installation::{Installation, Shape, Topology};

const ROOMY: Limits = Limits { total: Some(1000), per_user: Some(10), per_user_per_day: None };
/// Number of claims made while nothing is replicated.
const CLAIMS: usize = 20;

/// Sends claims to a primary that cannot replicate while SQL is blocked, then kills the primary and both
/// cores. Returns how many claims were acknowledged, and how many acknowledged claims exist after a replica
/// is promoted and the cores restart.
async fn primary_dies_alone(site: &mut Installation, checker: &Checker) -> (usize, usize) {
    checker.win(&site.cores[0], 0..10).await;
    checker.settle(&site.cores.each_ref(), &site.redis("demo").await).await;
    let held = site.sql.hold().await;
    let primary = site.topology.primary_of("demo").await;
    for replica in site.topology.replicas_of(primary) {
        site.network.hold_replication(replica);
    }
    let (core, users) = (&site.cores[1], (10..10 + CLAIMS).map(|user| format!("u{user}")));
    let calls = users.map(|user| async move { checker.claim(core, &user, "k").await });
    let outcomes = join_all(calls).await;
    for core in &mut site.cores {
        core.kill();
    }
    site.topology.server(primary).process().kill();
    held.release().await;
    site.topology.promoted_after("demo", primary).await;
    site.network.mend();
    for core in &mut site.cores {
        *core = core.restart().await;
    }
    let mut there = 0;
    for id in acknowledged(&outcomes) {
        let found = eventually(SOON, || async {
            let reply = site.cores[0].look_up(id).await;
            holds(reply.status != 503, || reply.text()).map(|()| reply)
        });
        there += usize::from(found.await.status == 200);
    }
    (acknowledged(&outcomes).count(), there)
}

fn acknowledged(outcomes: &[ClaimOutcome]) -> impl Iterator<Item = &String> {
    outcomes.iter().filter_map(|outcome| match outcome {
        ClaimOutcome::Claimed { id, .. } => Some(id),
        _ => None,
    })
}

/// The control: without a required replica, all of these claims are lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_claims_are_lost_without_required_replicas() {
    only_on!(OWN, "it starts its own servers");
    let server = Server::from_env();
    let row = Row::begin_on(server, "Sentinel: an isolated primary dies, no replica required");
    let Some(mut site) = row.needs(Installation::start(Shape::Sentinel, server, 0).await) else { return };
    let checker = Checker::create(&site.cores[0], "demo", ROOMY).await;
    row.kill();
    let (acknowledged, there) = primary_dies_alone(&mut site, &checker).await;
    // A machine that stalls leaves some of the claims undecided.
    assert!(acknowledged > CLAIMS / 2, "only {acknowledged} claims were acknowledged");
    assert_eq!(there, 0, "acknowledged, and present afterwards");
    row.passed(checker.call_count(), &format!("{acknowledged} claims acknowledged, all lost as expected"));
}

/// With one required replica, core acknowledges only claims that a replica has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_without_its_required_replica_acknowledges_nothing() {
    only_on!(OWN, "it starts its own servers");
    let server = Server::from_env();
    let row = Row::begin_on(server, "Sentinel: an isolated primary dies, one replica required");
    let Some(mut site) = row.needs(Installation::start(Shape::Sentinel, server, 1).await) else { return };
    let checker = Checker::create(&site.cores[0], "demo", ROOMY).await;
    row.kill();
    let (acknowledged, _) = primary_dies_alone(&mut site, &checker).await;
    assert_eq!(acknowledged, 0, "claims acknowledged without a replica");
    let redis = site.redis("demo").await;
    let verdict = checker.judge(&site.cores.each_ref(), &site.sql, &redis, Expect::default()).await;
    row.survived(checker.call_count(), verdict);
}

/// Another core must not report a claim that no replica has, neither as a replay nor in a lookup. On Valkey a
/// read-only connection has no writes that it could wait for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_core_reports_a_claim_that_only_the_primary_has() {
    only_on!(OWN, "it starts its own servers");
    let server = Server::from_env();
    let row = Row::begin_on(server, "Sentinel: replays of an unreplicated claim, then the primary dies");
    let Some(mut site) = row.needs(Installation::start(Shape::Sentinel, server, 1).await) else { return };
    let checker = Checker::create(&site.cores[0], "demo", ROOMY).await;
    for core in &site.cores {
        checker.win(core, 0..10).await;
    }
    let primary = site.topology.primary_of("demo").await;
    for replica in site.topology.replicas_of(primary) {
        site.network.hold_replication(replica);
    }
    row.fault();
    // The first call may time out before the primary runs it.
    eventually(SOON, || async {
        assert_eq!(checker.claim(&site.cores[0], "alice", "k").await, ClaimOutcome::Unknown);
        let taken = site.redis("demo").await.counter("demo", "taken").await;
        holds(taken == 11, || format!("the primary has {taken} units taken"))
    })
    .await;
    assert_eq!(checker.claim(&site.cores[1], "alice", "k").await, ClaimOutcome::Unknown, "a replay");
    let id = claim_id("demo", "alice", "k");
    assert_eq!(site.cores[1].once().look_up(&id).await.status, 503, "a lookup");
    row.kill();
    site.topology.server(primary).process().kill();
    site.topology.promoted_after("demo", primary).await;
    site.network.mend();
    site.topology.server(primary).kill_and_restart().await;
    site.topology.settled().await;
    let redis = site.redis("demo").await;
    let verdict = checker.judge(&site.cores.each_ref(), &site.sql, &redis, Expect::default()).await;
    row.survived(checker.call_count(), verdict);
}

/// Between a decision and its barrier the primary follows a server that lacks the decision, and becomes the
/// primary again before Sentinel notices. No connection breaks; only the replication id reveals the loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_demoted_before_the_barrier_is_not_trusted() {
    only_on!(OWN, "it starts its own servers");
    let server = Server::from_env();
    let row = Row::begin_on(server, "Sentinel: demoted and promoted between a decision and its barrier");
    let Some(site) = row.needs(Installation::start(Shape::Sentinel, server, 1).await) else { return };
    let Topology::Sentinel(set) = &site.topology else { unreachable!("it is Sentinel") };
    let few = Limits { total: Some(10), per_user: Some(10), per_user_per_day: None };
    let checker = Checker::create(&site.cores[0], "demo", few).await;
    // The first call after a start queries SQL; later calls do not.
    let _ = site.cores[0].campaign("demo").await;
    let primary = site.topology.primary_of("demo").await;
    let replicas = site.topology.replicas_of(primary);
    for replica in &replicas {
        site.network.hold_replication(*replica);
    }
    site.network.withhold(b"WAIT");
    row.fault();
    let early = ClaimAttempt { user: "early".to_owned(), key: "k".to_owned(), units: 10 };
    let url = site.cores[0].url("/internal/v1/claims");
    let takes_all = checker.send(site.cores[0].client(), &url, &early);
    let forgets = async {
        let redis = set.view(primary).await;
        eventually(SOON, || async {
            let taken = redis.counter("demo", "taken").await;
            holds(taken == 10, || format!("{taken} units taken"))
        })
        .await;
        site.network.out_of_reach(primary);
        replicas_replica(set, primary, replicas[0]).await;
        assert_eq!(redis.counter("demo", "taken").await, 0, "the primary must have lost the claim");
        site.network.mend();
    };
    tokio::join!(takes_all, forgets);
    site.topology.settled().await;
    for user in 0..10 {
        checker.decided(SOON, &site.cores[1], &format!("late-{user}"), "k").await;
    }
    let redis = site.redis("demo").await;
    let verdict = checker.judge(&site.cores.each_ref(), &site.sql, &redis, Expect::default()).await;
    row.survived(checker.call_count(), verdict);
}

/// Makes the primary a replica of `other` until both have the same data, and then the primary again.
async fn replicas_replica(set: &SentinelSet, primary: usize, other: usize) {
    let (server, promoted) = (set.view(primary).await, set.view(other).await);
    let follow = |place: usize| [set.address(place).ip().to_string(), set.address(place).port().to_string()];
    let ([ip, port], [promoted_ip, promoted_port]) = (follow(primary), follow(other));
    promoted.query::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    server.query::<()>(&["REPLICAOF", &promoted_ip, &promoted_port]).await;
    eventually(SOON, || async {
        let info: String = server.query(&["INFO", "replication"]).await;
        holds(info.contains("master_link_status:up"), || info.clone())
    })
    .await;
    server.query::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    promoted.query::<()>(&["REPLICAOF", &ip, &port]).await;
}
