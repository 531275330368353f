//! Sentinel under load: whichever server it names, decisions go on there, and SQL stays within every limit. A claim that
//! was acknowledged and had reached neither SQL nor the promoted replica is lost, as with every failover.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;
use support::checker::{Checker, Expect, Limits, Promise};
use support::core_client::API_TOKEN;
use support::only_on;
use support::process::{Signal, signal_pid};
use support::promotion::promotion;
use support::redis_server::Kind;
use support::sentinel::{SERVICE, SentinelSet, StaleSentinel};
use support::sql::Sql;
use support::storm::Seen;
use support::topology::OWN;
use support::wait::holds;
use support::{Core, CoreOptions, Reply, SOON, claim_body, eventually, heavy};
use tokio::task::JoinSet;

use crate::load::under_load;
use crate::tally::{Row, say};

const PERSISTED: Expect<'_> = Expect { promise: Promise::Persisted, differences: &[] };
/// More than is asked for: a probe must not meet "sold out".
const ROOMY: Limits = Limits { total: Some(200_000), per_user: Some(2_000), per_user_per_day: Some(2_000) };
const TIGHT: Limits = Limits { total: Some(200), per_user: Some(1), per_user_per_day: Some(1) };
/// How long claims are made on each primary.
const WHILE: Duration = Duration::from_millis(300);

/// A core on a set of servers, and the judge.
struct Watched {
    set: SentinelSet,
    core: Core,
    sql: Sql,
    checker: Checker,
}

impl Watched {
    async fn start(kind: Kind) -> Self {
        let set = SentinelSet::start(kind).await;
        let url = set.url();
        Self::on(set, url).await
    }

    /// With a core that comes as a user of its own.
    async fn start_as(kind: Kind, user: &str, password: &str) -> Self {
        let set = SentinelSet::start(kind).await;
        for server in &set.servers {
            let view = server.view().await;
            let words = ["ACL", "SETUSER", user, "on", &format!(">{password}"), "~*", "&*", "+@all"];
            view.query::<()>(&words).await;
        }
        let url = set.url_with(&format!("{user}:{password}@"), SERVICE);
        Self::on(set, url).await
    }

    async fn on(set: SentinelSet, url: String) -> Self {
        let core = CoreOptions::default().with("CLAIMGATE_REDIS_URL", url).start().await;
        let sql = Sql::in_directory(&core.data_dir());
        let checker = Checker::create(&core, "demo", ROOMY).await;
        Self { set, core, sql, checker }
    }

    /// Claims go on while `fault` lasts.
    async fn under_load<T>(&self, keys: &str, fault: impl Future<Output = T>) -> T {
        under_load(&self.core, &[&self.checker], keys, fault).await
    }

    /// Waits until claims are decided, and are by the server at this place; returns how long that took.
    async fn decides_on(&self, server: usize, key: &str) -> Duration {
        let began = Instant::now();
        let redis = self.set.view(server).await;
        eventually(SOON, || async {
            let before = redis.script_calls().await;
            let seen = self.checker.claim(&self.core, &format!("probe-{key}"), key).await;
            let after = redis.script_calls().await;
            holds(seen != Seen::Unknown && after > before, || {
                format!("{seen:?}; {before} calls, then {after}")
            })
        })
        .await;
        began.elapsed()
    }

    /// Once the first server was replaced, decisions go on at the promoted one. Returns its place.
    async fn goes_on_elsewhere(&self, key: &str) -> usize {
        let promoted = self.set.promoted_after(0).await;
        let took = self.decides_on(promoted, key).await;
        say(&format!("  {key}: decisions {took:.1?} after all sentinels name the new primary"));
        tokio::time::sleep(WHILE).await;
        promoted
    }

    /// Waits until SQL has all that this server's outbox had.
    async fn relays_from(&self, server: usize) {
        let redis = self.set.view(server).await;
        eventually(SOON, || async {
            let entries = redis.outbox_entries("demo").await;
            holds(entries == 1, || format!("{entries} entries in the outbox"))
        })
        .await;
    }

    async fn judge(&self, row: Row, primary: usize) {
        let redis = self.set.view(primary).await;
        let verdict = self.checker.judge(&[&self.core], &self.sql, &redis, PERSISTED).await;
        say(&format!(
            "  of {} claims acknowledged {} lost, {} revoked",
            verdict.acknowledged, verdict.lost, verdict.revoked
        ));
        row.survived(self.checker.asked(), verdict);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn manual_failovers_under_load() {
    only_on!(OWN, "it brings its own servers");
    let kind = Kind::asked();
    let row = Row::begin_on(kind, "Sentinel: failovers by hand under load");
    let _turn = heavy().await;
    let watched = Watched::start(kind).await;
    let mut primary = 0;
    for round in 1..=2 {
        let keys = format!("k{round}");
        primary = watched
            .under_load(&keys, async {
                tokio::time::sleep(WHILE).await;
                row.fault();
                let promoted = watched.set.fail_over().await;
                let took = watched.decides_on(promoted, &keys).await;
                say(&format!("  failover {round}: decisions {took:.1?} after all name the new primary"));
                tokio::time::sleep(WHILE).await;
                promoted
            })
            .await;
        watched.set.settled().await;
    }
    watched.judge(row, primary).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_primary_is_killed_under_load() {
    only_on!(OWN, "it brings its own servers");
    let kind = Kind::asked();
    let row = Row::begin_on(kind, "Sentinel: the primary killed under load, and back as a replica");
    let _turn = heavy().await;
    let mut watched = Watched::start(kind).await;
    let tight = Checker::create(&watched.core, "tight", TIGHT).await;
    tight.win(&watched.core, 0..150).await;
    let pid = watched.set.view(0).await.pid().await;
    let promoted = watched
        .under_load("killed", async {
            tokio::time::sleep(WHILE).await;
            row.kill();
            signal_pid(pid, Signal::KILL);
            watched.goes_on_elsewhere("killed").await
        })
        .await;
    // It takes itself for the primary until Sentinel tells it otherwise.
    watched.set.servers[0].kill_and_restart().await;
    watched.under_load("back", watched.set.settled()).await;
    for user in 150..300 {
        tight.claim(&watched.core, &format!("u{user}"), "k").await;
    }
    let redis = watched.set.view(promoted).await;
    tight.judge(&[&watched.core], &watched.sql, &redis, PERSISTED).await;
    watched.judge(row, promoted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_primary_stands_still_under_load() {
    only_on!(OWN, "it brings its own servers");
    let kind = Kind::asked();
    let row = Row::begin_on(kind, "Sentinel: the primary stopped under load, and going on as a replica");
    let _turn = heavy().await;
    let watched = Watched::start(kind).await;
    let pid = watched.set.view(0).await.pid().await;
    let promoted = watched
        .under_load("stopped", async {
            tokio::time::sleep(WHILE).await;
            row.fault();
            signal_pid(pid, Signal::STOP);
            let promoted = watched.goes_on_elsewhere("stopped").await;
            signal_pid(pid, Signal::CONT);
            watched.set.settled().await;
            promoted
        })
        .await;
    watched.judge(row, promoted).await;
}

/// The primary is cut off from its replicas and the sentinels, but not from core, whose connections stay whole: nothing but
/// Sentinel's word tells core that it has to go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_primary_is_cut_off_with_core() {
    only_on!(OWN, "it brings its own servers");
    let kind = Kind::asked();
    let row = Row::begin_on(kind, "Sentinel: the primary cut off from all but core");
    let _turn = heavy().await;
    let watched = Watched::start_as(kind, "core", "cores-own-password").await;
    let old = watched.set.view(0).await;
    let promoted = watched
        .under_load("cut", async {
            tokio::time::sleep(WHILE).await;
            row.fault();
            // Sentinels and replicas come as the default user.
            old.query::<()>(&["ACL", "SETUSER", "default", "off"]).await;
            old.query::<()>(&["CLIENT", "KILL", "USER", "default", "SKIPME", "yes"]).await;
            watched.goes_on_elsewhere("cut").await
        })
        .await;
    let info: String = old.query(&["INFO", "replication"]).await;
    assert!(info.contains("role:master"), "it is a primary still, and core has left it: {info}");
    assert!(watched.core.log().contains("Sentinel names another primary"), "{}", watched.core.log());
    watched.relays_from(promoted).await;
    old.query::<()>(&["ACL", "SETUSER", "default", "on"]).await;
    watched.set.settled().await;
    watched.judge(row, promoted).await;
}

/// A sentinel that has missed a failover names a server that was demoted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_sentinel_is_not_believed() {
    only_on!(OWN, "it brings its own servers");
    let kind = Kind::asked();
    let row = Row::begin_on(kind, "Sentinel: one that names a replica");
    let _turn = heavy().await;
    let set = SentinelSet::start(kind).await;
    let stale = StaleSentinel::start(set.address(1)).await;
    let url = set.url().replace("://", &format!("://{},", stale.address()));
    let core = CoreOptions::default().with("CLAIMGATE_REDIS_URL", url).start().await;
    let (sql, checker) = (Sql::in_directory(&core.data_dir()), Checker::create(&core, "demo", ROOMY).await);
    let watched = Watched { set, core, sql, checker };
    watched.checker.win(&watched.core, 0..10).await;
    row.fault();
    let promoted = watched.set.fail_over().await;
    stale.names(watched.set.address(0));
    watched.decides_on(promoted, "after").await;
    // Until they have demoted it, the old primary says that it is one.
    watched.set.settled().await;
    // With that one alone, core waits for another to answer.
    for sentinel in &watched.set.sentinels {
        sentinel.signal(Signal::STOP);
    }
    row.fault();
    let redis = watched.set.view(promoted).await;
    redis.query::<()>(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    eventually(SOON, || async {
        let ready = watched.core.get("/readyz").await;
        holds(ready.status == 503, || ready.text())
    })
    .await;
    assert_eq!(watched.checker.claim(&watched.core, "early", "k").await, Seen::Unknown);
    for sentinel in &watched.set.sentinels {
        sentinel.signal(Signal::CONT);
    }
    watched.set.settled().await;
    let primary = watched.set.named_by(&watched.set.sentinels[0]).await;
    watched.decides_on(primary, "again").await;
    watched.judge(row, primary).await;
}

/// Its writes are paused, but its connections are whole: nothing ends a call to the old primary but Sentinel's word that
/// another one has its place, or core's own patience of a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_on_their_way_to_a_replaced_primary_are_asked_of_its_successor() {
    only_on!(OWN, "it brings its own servers");
    let kind = Kind::asked();
    let row = Row::begin_on(kind, "Sentinel: claims on their way to the primary that is replaced");
    let _turn = heavy().await;
    let watched = Watched::start(kind).await;
    for campaign in WAITING {
        watched.core.create(campaign, json!({"total": 100})).await;
        watched.core.claim(campaign, "early", "k").await.expect(201);
    }
    let (mut primary, mut answers) = (0, vec![]);
    // Sentinel may need longer than core has patience.
    for round in 1..=5 {
        row.fault();
        watched.set.pause_writes(primary).await;
        let (replies, promoted) =
            tokio::join!(claims_until_promoted(&watched, primary, round), watched.set.fail_over());
        watched.decides_on(promoted, &format!("after{round}")).await;
        watched.set.settled().await;
        primary = promoted;
        // What was decided before has to be compared with SQL first.
        if replies.iter().any(|reply| reply.status == 201 || reply.json()["code"] == "campaign_not_ready") {
            return watched.judge(row, primary).await;
        }
        answers.extend(replies.iter().map(Reply::text));
    }
    panic!("core went on asking the replaced primary: {answers:#?}");
}

/// Campaigns that are claimed from one after the other: the second claim of the same one would wait in core for the first.
const WAITING: [&str; 10] = ["w0", "w1", "w2", "w3", "w4", "w5", "w6", "w7", "w8", "w9"];

/// What claims get that are sent until another server than the one at `primary` is the primary, one every 50 ms.
async fn claims_until_promoted(watched: &Watched, primary: usize, round: usize) -> Vec<Reply> {
    let mut claims = JoinSet::new();
    let send = async {
        for campaign in WAITING {
            let (client, url) = (watched.core.client().clone(), watched.core.url("/internal/v1/claims"));
            let body = claim_body(campaign, &format!("late{round}"), "k", 1);
            claims.spawn(async move { client.call(Method::POST, &url, API_TOKEN, &body).await });
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        () = send => {}
        _ = promotion(&watched.set, primary) => {}
    }
    claims.join_all().await
}
