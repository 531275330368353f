//! What the replicas that count are for: the same failovers go wrong without them.

use futures_util::future::join_all;
use support::checker::{Checker, Expect, Limits};
use support::only_on;
use support::redis_server::Kind as Server;
use support::sentinel::SentinelSet;
use support::storm::{Seen, Wish};
use support::topology::OWN;
use support::wait::holds;
use support::{Core, SOON, eventually};

use crate::tally::Row;

use super::crowd::claim_id;
use super::installation::{Installation, Shape, Topology};

const ROOMY: Limits = Limits { total: Some(1000), per_user: Some(10), per_user_per_day: None };
/// Claims made while nothing is replicated.
const CLAIMS: usize = 20;

/// A primary is asked for claims while its replicas hear nothing of it and SQL cannot be written; then the primary and both
/// cores are killed. Returns what was acknowledged in that time, and how many of those claims there are once a replica was
/// promoted and the cores are back.
async fn primary_dies_alone(site: &mut Installation, checker: &Checker) -> (usize, usize) {
    checker.win(&site.cores[0], 0..10).await;
    checker.settle(&site.cores.each_ref(), &site.redis("demo").await).await;
    let held = site.sql.hold().await;
    let primary = site.topology.primary_of("demo").await;
    for replica in site.topology.replicas_of(primary) {
        site.network.hold_replication(replica);
    }
    let (core, users) = (&site.cores[1], (10..10 + CLAIMS).map(|user| format!("u{user}")));
    let asked = users.map(|user| async move { checker.claim(core, &user, "k").await });
    let told = join_all(asked).await;
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
    for id in acknowledged(&told) {
        let found = eventually(SOON, || async {
            let reply = site.cores[0].look_up(id).await;
            holds(reply.status != 503, || reply.text()).map(|()| reply)
        });
        there += usize::from(found.await.status == 200);
    }
    (acknowledged(&told).count(), there)
}

fn acknowledged(told: &[Seen]) -> impl Iterator<Item = &String> {
    told.iter().filter_map(|seen| match seen {
        Seen::Claimed { id, .. } => Some(id),
        _ => None,
    })
}

/// The control: with no replica that counts all of it is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_replicas_that_count_acknowledged_claims_are_lost() {
    only_on!(OWN, "it brings its own servers");
    let server = Server::asked();
    let row = Row::begin_on(server, "Sentinel: the primary dies alone, no replica counting");
    let mut site = match Installation::start(Shape::Sentinel, server, 0).await {
        Ok(site) => site,
        Err(why) => return row.skip(&why),
    };
    let checker = Checker::create(&site.cores[0], "demo", ROOMY).await;
    row.kill();
    let (acknowledged, there) = primary_dies_alone(&mut site, &checker).await;
    assert_eq!((acknowledged, there), (CLAIMS, 0), "acknowledged, and there afterwards");
    row.passed(checker.asked(), &format!("{acknowledged} claims acknowledged, all lost, as expected"));
}

/// With one that counts nothing is acknowledged that a replica does not have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_replica_that_counts_a_primary_alone_acknowledges_nothing() {
    only_on!(OWN, "it brings its own servers");
    let server = Server::asked();
    let row = Row::begin_on(server, "Sentinel: the primary dies alone, one replica counting");
    let mut site = match Installation::start(Shape::Sentinel, server, 1).await {
        Ok(site) => site,
        Err(why) => return row.skip(&why),
    };
    let checker = Checker::create(&site.cores[0], "demo", ROOMY).await;
    row.kill();
    let (acknowledged, _) = primary_dies_alone(&mut site, &checker).await;
    assert_eq!(acknowledged, 0, "acknowledged by the primary alone");
    let redis = site.redis("demo").await;
    let verdict = checker.judge(&site.cores.each_ref(), &site.sql, &redis, Expect::default()).await;
    row.survived(checker.asked(), verdict);
}

/// What one core has had decided, and no replica has, is told by no other core: neither as a replay nor by a look-up. On Valkey
/// a connection that only reads has nothing of its own to wait for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_only_the_primary_has_is_told_by_no_core() {
    only_on!(OWN, "it brings its own servers");
    let server = Server::asked();
    let row = Row::begin_on(server, "Sentinel: replays of a claim that only the primary has, then its death");
    let mut site = match Installation::start(Shape::Sentinel, server, 1).await {
        Ok(site) => site,
        Err(why) => return row.skip(&why),
    };
    let checker = Checker::create(&site.cores[0], "demo", ROOMY).await;
    for core in &site.cores {
        checker.win(core, 0..10).await;
    }
    let primary = site.topology.primary_of("demo").await;
    for replica in site.topology.replicas_of(primary) {
        site.network.hold_replication(replica);
    }
    row.fault();
    assert_eq!(checker.claim(&site.cores[0], "alice", "k").await, Seen::Unknown);
    assert_eq!(site.redis("demo").await.counter("demo", "taken").await, 11, "the primary has it");
    assert_eq!(checker.claim(&site.cores[1], "alice", "k").await, Seen::Unknown, "a replay");
    let id = claim_id("demo", "alice", "k");
    assert_eq!(site.cores[1].once().look_up(&id).await.status, 503, "a look-up");
    row.kill();
    site.topology.server(primary).process().kill();
    site.topology.promoted_after("demo", primary).await;
    site.network.mend();
    site.topology.server(primary).kill_and_restart().await;
    site.topology.settled().await;
    let redis = site.redis("demo").await;
    let verdict = checker.judge(&site.cores.each_ref(), &site.sql, &redis, Expect::default()).await;
    row.survived(checker.asked(), verdict);
}

/// Between a decision and its barrier the primary becomes the replica of one that lacks what was decided, and the primary
/// again, sooner than a sentinel minds; no connection breaks. Only its replication id tells that it has forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_was_a_replica_in_between_is_not_believed() {
    only_on!(OWN, "it brings its own servers");
    let server = Server::asked();
    let row = Row::begin_on(server, "Sentinel: demoted and promoted between a decision and its barrier");
    let site = match Installation::start(Shape::Sentinel, server, 1).await {
        Ok(site) => site,
        Err(why) => return row.skip(&why),
    };
    let Topology::Sentinel(set) = &site.topology else { unreachable!("it is Sentinel") };
    let few = Limits { total: Some(10), per_user: Some(10), per_user_per_day: None };
    let checker = Checker::create(&site.cores[0], "demo", few).await;
    // The first call after a start asks SQL; then nothing is in the way.
    let _ = site.cores[0].campaign("demo").await;
    let primary = site.topology.primary_of("demo").await;
    let replicas = site.topology.replicas_of(primary);
    for replica in &replicas {
        site.network.hold_replication(*replica);
    }
    site.network.withhold(b"WAIT");
    row.fault();
    let early = Wish { user: "early".to_owned(), key: "k".to_owned(), units: 10 };
    let url = site.cores[0].url("/internal/v1/claims");
    let takes_all = checker.ask(site.cores[0].client(), &url, &early);
    let forgets = async {
        let redis = set.view(primary).await;
        eventually(SOON, || async {
            let taken = redis.counter("demo", "taken").await;
            holds(taken == 10, || format!("{taken} units taken"))
        })
        .await;
        site.network.out_of_reach(primary);
        replicas_replica(set, primary, replicas[0]).await;
        assert_eq!(redis.counter("demo", "taken").await, 0, "forgotten");
        site.network.mend();
    };
    tokio::join!(takes_all, forgets);
    site.topology.settled().await;
    for user in 0..10 {
        decides(&checker, &site.cores[1], &format!("late-{user}")).await;
    }
    let redis = site.redis("demo").await;
    let verdict = checker.judge(&site.cores.each_ref(), &site.sql, &redis, Expect::default()).await;
    row.survived(checker.asked(), verdict);
}

/// The primary becomes a replica of `other` until it has what that has and no more, and then the primary again.
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

async fn decides(checker: &Checker, core: &Core, user: &str) {
    eventually(2 * SOON, || async {
        let seen = checker.claim(core, user, "k").await;
        holds(seen != Seen::Unknown, || core.log())
    })
    .await;
}
