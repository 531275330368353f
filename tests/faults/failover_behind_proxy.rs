//! Failovers under load of a Redis without required replicas, behind a proxy that is the only address core knows.
//! Claims that had reached SQL survive and never exceed a limit; other acknowledged claims are lost or stored as
//! revoked. Sentinel, Cluster and required replicas: `failovers`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use support::checker::{Checker, Expect, Limits, Promise};
use support::fault_proxy::FaultProxy;
use support::only_on;
use support::postgres::Postgres;
use support::process::Signal;
use support::rng::Rng;
use support::sql::Sql;
use support::storm::{ClaimAttempt, ClaimOutcome};
use support::topology::ONE_SERVER;
use support::wait::holds;
use support::{Core, CoreOptions, RedisServer, RedisView, SOON, eventually, heavy};

use crate::cores;
use crate::fixture::{Fixture, socket};
use crate::tally::{Row, say};

const FAILOVERS: usize = 3;
const PERSISTED: Expect<'_> = Expect { promise: Promise::Persisted, differences: &[] };
/// Period in which the primary acknowledges claims without its replica before it fails.
const WINDOW: Duration = Duration::from_millis(150);
const USERS: u64 = 400;
const LIMITS: Limits = Limits { total: Some(9000), per_user: Some(36), per_user_per_day: Some(36) };

/// A primary and its replica, behind a proxy that connects to the current primary.
struct Pair {
    proxy: FaultProxy,
    /// The proxy through which the replica follows the primary.
    link: FaultProxy,
    primary: RedisServer,
    replica: RedisServer,
}

impl Pair {
    async fn start() -> Self {
        // A resync starts immediately instead of after five seconds.
        let settings = [("repl-diskless-sync-delay", "0")];
        let primary = RedisServer::start_with(&settings, &[]).await;
        let replica = RedisServer::start_with(&settings, &[]).await;
        let (proxy, link) =
            (FaultProxy::start(socket(&primary)).await, FaultProxy::start(socket(&primary)).await);
        let pair = Self { proxy, link, primary, replica };
        pair.follow().await;
        pair
    }

    /// Makes the replica follow the primary, and waits until it has caught up.
    async fn follow(&self) {
        self.link.point_at(socket(&self.primary));
        let replica = self.replica.view().await;
        let (host, port) = (self.link.address().ip().to_string(), self.link.address().port().to_string());
        replica.query::<()>(&["REPLICAOF", &host, &port]).await;
        eventually(SOON, || async {
            let info: String = replica.query(&["INFO", "replication"]).await;
            holds(info.contains("master_link_status:up"), || info.clone())
        })
        .await;
    }

    /// Disconnects the replica from the primary.
    fn cut_replica_off(&self) {
        self.link.point_at(PathBuf::new());
    }

    /// Kills the primary and promotes the replica.
    async fn fail_over(&mut self) {
        self.primary.process().kill();
        let replica = self.replica.view().await;
        replica.query::<()>(&["REPLICAOF", "NO", "ONE"]).await;
        self.proxy.point_at(socket(&self.replica));
        std::mem::swap(&mut self.primary, &mut self.replica);
    }

    /// Restarts the old primary as the new primary's replica, which drops all writes that were not
    /// replicated.
    async fn rejoin(&mut self) {
        self.replica.kill_and_restart().await;
        self.follow().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn persisted_claims_survive_a_failover_under_load() {
    only_on!(ONE_SERVER, "the proxy supports only one server");
    let row = Row::begin("failover of a replicated Redis under load");
    let _turn = heavy().await;
    let mut pair = Pair::start().await;
    let core = CoreOptions::default().with("CLAIMGATE_REDIS_URL", pair.proxy.url()).start().await;
    let sql = Sql::in_directory(&core.data_dir());
    let checker = Checker::create(&core, "demo", LIMITS).await;
    let mut rng = Rng::seeded("failover");
    for round in 1..=FAILOVERS {
        let over = AtomicBool::new(false);
        let first = rng.next_number() % USERS;
        let claims = claim_until(&checker, &core, first, round, &over);
        let fail_over = async {
            tokio::time::sleep(Duration::from_millis(400)).await;
            row.kill();
            let persisted = sql.claims("demo").await;
            pair.cut_replica_off();
            tokio::time::sleep(WINDOW).await;
            pair.fail_over().await;
            let down = Instant::now();
            // The campaign stops being ready, is loaded from SQL, and becomes ready automatically.
            let probe = format!("probe-{round}");
            checker.decided(SOON, &core, &probe, "k").await;
            let down = down.elapsed();
            tokio::time::sleep(Duration::from_millis(300)).await;
            over.store(true, Ordering::Relaxed);
            (persisted, down)
        };
        let ((persisted, down), ()) = tokio::join!(fail_over, claims);
        until_quiet(&core, &pair.primary.view().await).await;
        let rows = sql.claims("demo").await;
        for before in persisted {
            let now = rows.iter().find(|row| row.id == before.id).expect("a claim that had reached SQL");
            assert_eq!((now.status.as_str(), now.sequence), ("granted", before.sequence), "{before:?}");
        }
        let revoked = rows.iter().filter(|row| row.status == "revoked").count();
        let there: BTreeSet<_> = rows.iter().map(|row| row.id.as_str()).collect();
        let lost = checker.acknowledged().iter().filter(|id| !there.contains(id.as_str())).count();
        say(&format!(
            "  failover {round}: decisions again after {down:.1?}; {} claims acknowledged, {lost} lost, {revoked} revoked",
            checker.acknowledged().len()
        ));
        pair.rejoin().await;
    }
    let verdict = checker.judge(&[&core], &sql, &pair.primary.view().await, PERSISTED).await;
    row.survived(checker.call_count(), verdict);
}

/// Sends claims of various users with new keys until `over` is set.
async fn claim_until(checker: &Checker, core: &Core, first: u64, round: usize, over: &AtomicBool) {
    let url = core.url("/internal/v1/claims");
    let callers = (0..32).map(|caller| {
        let url = &url;
        async move {
            for key in 0.. {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let user = format!("u{}", (first + caller * 7 + key) % USERS);
                let attempt = ClaimAttempt { user, key: format!("k{round}-{caller}-{key}"), units: 1 };
                if checker.send(core.client(), url, &attempt).await == ClaimOutcome::Unknown {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    });
    futures_util::future::join_all(callers).await;
}

async fn until_quiet(core: &Core, redis: &RedisView) {
    eventually(SOON, || async {
        let view = core.get("/internal/v1/campaigns/demo").await;
        let entries = redis.outbox_entries("demo").await;
        holds(view.status == 200 && entries == 1, || format!("{entries} entries; {}", view.text()))
    })
    .await;
}

/// One user takes the full limit from a primary that is not replicated, and again from the promoted replica.
/// The core with the first claims in flight is frozen and writes them late. The other core can detect the
/// loss only by the promotion.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_limit_is_exceeded_after_a_failover_loses_a_user() {
    only_on!(ONE_SERVER, "the proxy supports only one server");
    let row = Row::begin("failover of a replicated Redis that loses a user's claims");
    let Some(postgres) = row.needs(Postgres::start().await) else { return };
    let url = postgres.database("claimgate").await;
    let sql = Sql::open(&url);
    let mut pair = Pair::start().await;
    let start = || {
        let options = CoreOptions::default().with("CLAIMGATE_DATABASE_URL", &url);
        options.with("CLAIMGATE_REDIS_URL", pair.proxy.url()).start()
    };
    let (mut first, second) = (start().await, start().await);
    let limits = Limits { total: Some(1000), per_user: Some(10), per_user_per_day: None };
    let checker = Checker::create(&first, "demo", limits).await;
    checker.win(&second, 0..10).await;
    until_quiet(&first, &pair.primary.view().await).await;
    let epoch = pair.primary.view().await.counter("demo", "epoch").await;
    pair.cut_replica_off();
    let held = sql.hold().await;
    claim_all(&checker, &first, "before").await;
    until_in_flight(&pair.primary.view().await, 1).await;
    first.process().signal(Signal::STOP);
    row.kill();
    pair.fail_over().await;
    held.release().await;
    checker.decided(SOON, &second, "alice", "after").await;
    let redis = pair.primary.view().await;
    assert!(
        redis.counter("demo", "epoch").await > epoch,
        "claims were decided before the campaign was loaded again"
    );
    claim_all(&checker, &second, "after").await;
    first.process().signal(Signal::CONT);
    let verdict = checker.judge(&[&first, &second], &sql, &redis, PERSISTED).await;
    row.survived(checker.call_count(), verdict);
}

/// Sends ten claims of alice, one after another.
async fn claim_all(checker: &Checker, core: &Core, keys: &str) {
    for key in 0..10 {
        checker.claim(core, "alice", &format!("{keys}-{key}")).await;
    }
}

/// Waits until cores have read at least this number of entries that SQL does not have yet.
async fn until_in_flight(redis: &RedisView, least: usize) {
    eventually(SOON, || async {
        let pending = cores::entries_in_flight(redis, "demo").await.len();
        holds(pending >= least, || format!("{pending} entries in flight"))
    })
    .await;
}

const KEYS: [&str; 5] = ["campaign", "users", "claims", "holds", "outbox"];

/// A copy of a campaign's keys at an earlier time, like those of a replica promoted before it has caught up.
struct StaleCopy {
    dumps: Vec<(String, Vec<u8>)>,
    redis: redis::aio::MultiplexedConnection,
}

impl StaleCopy {
    async fn take(server: &RedisServer) -> Self {
        let mut redis = support::inspect::patient_connection(&server.url()).await.unwrap();
        let mut dumps = Vec::new();
        for key in KEYS.map(|what| support::inspect::key("demo", what)) {
            dumps.push((key.clone(), redis::cmd("DUMP").arg(&key).query_async(&mut redis).await.unwrap()));
        }
        Self { dumps, redis }
    }

    /// Restores the keys in one transaction, so that no reader sees only some of the keys.
    async fn restore(mut self) {
        let mut all = redis::pipe();
        all.atomic();
        for (key, dump) in &self.dumps {
            all.cmd("RESTORE").arg(key).arg(0).arg(dump.as_slice()).arg("REPLACE").ignore();
        }
        all.query_async::<()>(&mut self.redis).await.unwrap();
    }
}

/// The core with the newer state suspends the campaign for both cores.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_core_with_newer_state_suspends_a_stale_campaign() {
    only_on!(ONE_SERVER, "the proxy supports only one server");
    let row = Row::begin("failover of a replicated Redis under two cores");
    let Some(mut fixture) = row.needs(Fixture::two_cores().await) else { return };
    let checker = Checker::create(&fixture.core, "demo", Limits { total: Some(40), ..LIMITS }).await;
    checker.win(fixture.other(), 0..10).await;
    fixture.relayed("demo").await;
    let stale_copy = StaleCopy::take(fixture.server().one()).await;
    let held = fixture.sql.hold().await;
    checker.win(&fixture.core, 10..20).await;
    row.kill();
    stale_copy.restore().await;
    held.release().await;
    // The second core has seen none of the lost claims, and may continue to grant claims until the first core
    // suspends the campaign.
    for user in 20..60 {
        checker.claim(fixture.other(), &format!("u{user}"), "k").await;
    }
    checker.claim(&fixture.core, "u60", "k").await;
    fixture.judge(row, &checker, PERSISTED).await;
}

/// The worst case: cores have claims in flight that the new primary lacks, and the units of these claims are
/// granted again in smaller claims. SQL stays within the limit, regardless of which claims reach it first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_in_flight_at_a_failover_do_not_exceed_limits() {
    only_on!(ONE_SERVER, "the proxy supports only one server");
    let row = Row::begin("failover of a replicated Redis with claims in flight");
    let Some(mut fixture) = row.needs(Fixture::two_cores().await) else { return };
    let limits = Limits { total: Some(70), per_user: None, per_user_per_day: None };
    let checker = Checker::create(&fixture.core, "demo", limits).await;
    checker.win(fixture.other(), 0..10).await;
    fixture.relayed("demo").await;
    let stale_copy = StaleCopy::take(fixture.server().one()).await;
    let held = fixture.sql.hold().await;
    many(&checker, &fixture.core, "large", 10, 5).await;
    until_in_flight(&fixture.redis().await, 2).await;
    row.kill();
    stale_copy.restore().await;
    many(&checker, fixture.other(), "small", 60, 1).await;
    held.release().await;
    fixture.judge(row, &checker, PERSISTED).await;
}

/// Sends claims of `count` users concurrently, `units` each.
async fn many(checker: &Checker, core: &Core, name: &str, count: usize, units: u32) {
    let url = core.url("/internal/v1/claims");
    let claims = (0..count).map(|at| {
        let attempt = ClaimAttempt { user: format!("{name}-{at}"), key: "k".to_owned(), units };
        let url = &url;
        async move { checker.send(core.client(), url, &attempt).await }
    });
    let claims = futures_util::future::join_all(claims).await;
    let won = claims.iter().filter(|outcome| matches!(outcome, ClaimOutcome::Claimed { .. })).count();
    say(&format!("  {won} of {count} {name} claims acknowledged"));
}
