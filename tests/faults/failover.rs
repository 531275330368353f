//! A replicated Redis that fails over under load, and what is promised then: claims that had reached SQL stay, and never
//! pass a limit; what was acknowledged and had not is lost, or stored as revoked.

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
use support::storm::{Seen, Wish};
use support::topology::ONE_SERVER;
use support::wait::holds;
use support::{Core, CoreOptions, RedisServer, RedisView, SOON, eventually, heavy};

use crate::cores;
use crate::fixture::{Fixture, socket};
use crate::tally::{Row, say};

const FAILOVERS: usize = 3;
const PERSISTED: Expect<'_> = Expect { promise: Promise::Persisted, differences: &[] };
/// What is acknowledged by the primary alone before it fails.
const WINDOW: Duration = Duration::from_millis(150);
const USERS: u64 = 400;
const LIMITS: Limits = Limits { total: Some(9000), per_user: Some(36), per_user_per_day: Some(36) };

/// A primary and its replica, behind a proxy that leads to whichever is the primary.
struct Pair {
    proxy: FaultProxy,
    /// By which the replica follows the primary.
    link: FaultProxy,
    primary: RedisServer,
    replica: RedisServer,
}

impl Pair {
    async fn start() -> Self {
        // A resync begins at once, not after five seconds.
        let settings = [("repl-diskless-sync-delay", "0")];
        let primary = RedisServer::start_with(&settings, &[]).await;
        let replica = RedisServer::start_with(&settings, &[]).await;
        let (proxy, link) =
            (FaultProxy::start(socket(&primary)).await, FaultProxy::start(socket(&primary)).await);
        let pair = Self { proxy, link, primary, replica };
        pair.follow().await;
        pair
    }

    /// The replica follows the primary, and has caught up.
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

    /// From now on the primary goes on alone.
    fn cut_replica_off(&self) {
        self.link.point_at(PathBuf::new());
    }

    /// The primary is gone; the replica takes its place.
    async fn fail_over(&mut self) {
        self.primary.process().kill();
        let replica = self.replica.view().await;
        replica.query::<()>(&["REPLICAOF", "NO", "ONE"]).await;
        self.proxy.point_at(socket(&self.replica));
        std::mem::swap(&mut self.primary, &mut self.replica);
    }

    /// The old primary comes back, as the new one's replica: what only it had is dropped.
    async fn rejoin(&mut self) {
        self.replica.kill_and_restart().await;
        self.follow().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_under_load() {
    only_on!(ONE_SERVER, "its proxy stands before one server");
    let row = Row::begin("failover of a replicated Redis under load");
    let _turn = heavy().await;
    let mut pair = Pair::start().await;
    let core = CoreOptions::default().with("CLAIMGATE_REDIS_URL", pair.proxy.url()).start().await;
    let sql = Sql::in_directory(&core.data_dir());
    let checker = Checker::create(&core, "demo", LIMITS).await;
    let mut rng = Rng::seeded("failover");
    for round in 1..=FAILOVERS {
        let over = AtomicBool::new(false);
        let first = rng.draw() % USERS;
        let claims = claim_until(&checker, &core, first, round, &over);
        let fail_over = async {
            tokio::time::sleep(Duration::from_millis(400)).await;
            row.kill();
            let persisted = sql.claims("demo").await;
            pair.cut_replica_off();
            tokio::time::sleep(WINDOW).await;
            pair.fail_over().await;
            let down = Instant::now();
            // The campaign becomes not ready, is loaded from SQL, and is ready again automatically.
            let probe = format!("probe-{round}");
            eventually(SOON, || async {
                let seen = checker.claim(&core, &probe, "k").await;
                holds(seen != Seen::Unknown, || "no decision".to_owned())
            })
            .await;
            let down = down.elapsed();
            tokio::time::sleep(Duration::from_millis(300)).await;
            over.store(true, Ordering::Relaxed);
            (persisted, down)
        };
        let ((persisted, down), ()) = tokio::join!(fail_over, claims);
        quiet(&core, &pair.primary.view().await).await;
        let rows = sql.claims("demo").await;
        for before in persisted {
            let now = rows.iter().find(|row| row.id == before.id).expect("it had reached SQL");
            assert_eq!((now.status.as_str(), now.sequence), ("granted", before.sequence), "{before:?}");
        }
        let revoked = rows.iter().filter(|row| row.status == "revoked").count();
        let there: BTreeSet<_> = rows.iter().map(|row| row.id.as_str()).collect();
        let lost = checker.acknowledged().iter().filter(|id| !there.contains(id.as_str())).count();
        say(&format!(
            "  failover {round}: decisions again after {down:.1?}; of {} claims acknowledged {lost} lost, {revoked} revoked",
            checker.acknowledged().len()
        ));
        pair.rejoin().await;
    }
    let verdict = checker.judge(&[&core], &sql, &pair.primary.view().await, PERSISTED).await;
    row.survived(checker.asked(), verdict);
}

/// Claims of random users by new keys, until it is over.
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
                let wish = Wish { user, key: format!("k{round}-{caller}-{key}"), units: 1 };
                if checker.ask(core.client(), url, &wish).await == Seen::Unknown {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    });
    futures_util::future::join_all(callers).await;
}

async fn quiet(core: &Core, redis: &RedisView) {
    eventually(SOON, || async {
        let view = core.get("/internal/v1/campaigns/demo").await;
        let entries = redis.outbox_entries("demo").await;
        holds(view.status == 200 && entries == 1, || format!("{entries} entries; {}", view.text()))
    })
    .await;
}

/// One user takes all that is allowed from a primary whose replica never hears of it, and then all again from the
/// promoted replica. The core that knows of the first is frozen with those claims in hand, and writes them late: the other
/// one has nothing to go by but that the server was promoted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_that_forgets_a_user() {
    only_on!(ONE_SERVER, "its proxy stands before one server");
    let row = Row::begin("failover of a replicated Redis that forgets what a user took");
    let postgres = match Postgres::start().await {
        Ok(postgres) => postgres,
        Err(why) => return row.skip(&why),
    };
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
    quiet(&first, &pair.primary.view().await).await;
    let epoch = pair.primary.view().await.counter("demo", "epoch").await;
    pair.cut_replica_off();
    let held = sql.hold().await;
    takes_all(&checker, &first, "before").await;
    until_in_hand(&pair.primary.view().await, 1).await;
    first.process().signal(Signal::STOP);
    row.kill();
    pair.fail_over().await;
    held.release().await;
    eventually(SOON, || async {
        let seen = checker.claim(&second, "alice", "after").await;
        holds(seen != Seen::Unknown, || "no decision".to_owned())
    })
    .await;
    let redis = pair.primary.view().await;
    assert!(redis.counter("demo", "epoch").await > epoch, "decided before it was loaded again");
    takes_all(&checker, &second, "after").await;
    first.process().signal(Signal::CONT);
    let verdict = checker.judge(&[&first, &second], &sql, &redis, PERSISTED).await;
    row.survived(checker.asked(), verdict);
}

/// Alice asks for ten claims, one after the other.
async fn takes_all(checker: &Checker, core: &Core, keys: &str) {
    for key in 0..10 {
        checker.claim(core, "alice", &format!("{keys}-{key}")).await;
    }
}

/// Waits until cores have read this many entries that are not in SQL yet.
async fn until_in_hand(redis: &RedisView, least: usize) {
    eventually(SOON, || async {
        let pending = cores::in_hand(redis, "demo").await.len();
        holds(pending >= least, || format!("{pending} entries in hand"))
    })
    .await;
}

const KEYS: [&str; 5] = ["campaign", "users", "claims", "holds", "outbox"];

/// A campaign's keys as they were: what a replica holds that was promoted before it had caught up.
struct Behind {
    dumps: Vec<(String, Vec<u8>)>,
    redis: redis::aio::MultiplexedConnection,
}

impl Behind {
    async fn remember(server: &RedisServer) -> Self {
        let mut redis = support::inspect::patient_connection(&server.url()).await.unwrap();
        let mut dumps = Vec::new();
        for key in KEYS.map(|what| support::inspect::key("demo", what)) {
            dumps.push((key.clone(), redis::cmd("DUMP").arg(&key).query_async(&mut redis).await.unwrap()));
        }
        Self { dumps, redis }
    }

    /// In one transaction, so that no reader sees half of it.
    async fn take_over(mut self) {
        let mut all = redis::pipe();
        all.atomic();
        for (key, dump) in &self.dumps {
            all.cmd("RESTORE").arg(key).arg(0).arg(dump.as_slice()).arg("REPLACE").ignore();
        }
        all.query_async::<()>(&mut self.redis).await.unwrap();
    }
}

/// With two cores the one that has seen more suspends the campaign for both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_under_two_cores() {
    only_on!(ONE_SERVER, "its proxy stands before one server");
    let row = Row::begin("failover of a replicated Redis under two cores");
    let mut fixture = match Fixture::two_cores().await {
        Ok(fixture) => fixture,
        Err(why) => return row.skip(&why),
    };
    let checker = Checker::create(&fixture.core, "demo", Limits { total: Some(40), ..LIMITS }).await;
    checker.win(fixture.other(), 0..10).await;
    fixture.relayed("demo").await;
    let behind = Behind::remember(fixture.server().one()).await;
    let held = fixture.sql.hold().await;
    checker.win(&fixture.core, 10..20).await;
    row.kill();
    behind.take_over().await;
    held.release().await;
    // The second core has seen none of what is gone, and may go on granting until the first one has a say.
    for user in 20..60 {
        checker.claim(fixture.other(), &format!("u{user}"), "k").await;
    }
    checker.claim(&fixture.core, "u60", "k").await;
    fixture.judge(row, &checker, PERSISTED).await;
}

/// The worst of both: cores hold claims in hand that the new primary has never heard of, and the units of those claims
/// are granted again, in smaller pieces. Whatever reaches SQL first, SQL stays within the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_with_claims_in_hand() {
    only_on!(ONE_SERVER, "its proxy stands before one server");
    let row = Row::begin("failover of a replicated Redis with claims in hand");
    let mut fixture = match Fixture::two_cores().await {
        Ok(fixture) => fixture,
        Err(why) => return row.skip(&why),
    };
    let limits = Limits { total: Some(70), per_user: None, per_user_per_day: None };
    let checker = Checker::create(&fixture.core, "demo", limits).await;
    checker.win(fixture.other(), 0..10).await;
    fixture.relayed("demo").await;
    let behind = Behind::remember(fixture.server().one()).await;
    let held = fixture.sql.hold().await;
    many(&checker, &fixture.core, "large", 10, 5).await;
    until_in_hand(&fixture.redis().await, 2).await;
    row.kill();
    behind.take_over().await;
    many(&checker, fixture.other(), "small", 60, 1).await;
    held.release().await;
    fixture.judge(row, &checker, PERSISTED).await;
}

/// `count` users at once, `units` each.
async fn many(checker: &Checker, core: &Core, name: &str, count: usize, units: u32) {
    let url = core.url("/internal/v1/claims");
    let asked = (0..count).map(|at| {
        let wish = Wish { user: format!("{name}-{at}"), key: "k".to_owned(), units };
        let url = &url;
        async move { checker.ask(core.client(), url, &wish).await }
    });
    let asked = futures_util::future::join_all(asked).await;
    let won = asked.iter().filter(|seen| matches!(seen, Seen::Claimed { .. })).count();
    say(&format!("  {won} of {count} {name} claims acknowledged"));
}
