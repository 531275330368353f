//! Sentinel under load: decisions continue on the server that it names, and SQL stays within every limit.
//! Acknowledged claims that reached neither SQL nor the promoted replica are lost, as in every failover.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;
use support::checker::{Checker, Expect, Limits, Promise};
use support::core_client::API_TOKEN;
use support::core_process::DECISION;
use support::only_on;
use support::process::{Signal, signal_pid};
use support::promotion::promotion;
use support::redis_server::Kind;
use support::sentinel::{SERVICE, SentinelSet, StaleSentinel};
use support::sql::Sql;
use support::storm::ClaimOutcome;
use support::topology::OWN;
use support::wait::{holds, until_status};
use support::{Core, CoreOptions, Reply, SOON, claim_body, eventually, heavy, promised};
use tokio::task::JoinSet;

use crate::fixture::ROOMY;
use crate::load::under_load;
use crate::tally::{Row, say};

const PERSISTED: Expect<'_> = Expect { promise: Promise::Persisted, differences: &[] };
const TIGHT: Limits = Limits { total: Some(200), per_user: Some(1), per_user_per_day: Some(1) };
/// Duration of the claims on each primary.
const LOAD_TIME: Duration = Duration::from_millis(300);

/// A core on a set of servers, and a checker.
struct SentinelFixture {
    set: SentinelSet,
    core: Core,
    sql: Sql,
    checker: Checker,
}

impl SentinelFixture {
    async fn start(kind: Kind) -> Self {
        let set = SentinelSet::start(kind).await;
        let url = set.url();
        Self::on(set, url).await
    }

    /// Starts a core that connects as a separate user and hears only the second sentinel.
    async fn start_as(kind: Kind, user: &str, password: &str) -> Self {
        let set = SentinelSet::start(kind).await;
        for server in &set.servers {
            let view = server.view().await;
            let words = ["ACL", "SETUSER", user, "on", &format!(">{password}"), "~*", "&*", "+@all"];
            view.query::<()>(&words).await;
        }
        let url = format!("redis+sentinel://{user}:{password}@{}/{SERVICE}", set.sentinels[1].address());
        Self::on(set, url).await
    }

    async fn on(set: SentinelSet, url: String) -> Self {
        let core = CoreOptions::default().with("CLAIMGATE_REDIS_URL", url).start().await;
        let sql = Sql::in_directory(&core.data_dir());
        let checker = Checker::create(&core, "demo", ROOMY).await;
        Self { set, core, sql, checker }
    }

    /// Sends claims while `fault` runs.
    async fn under_load<T>(&self, keys: &str, fault: impl Future<Output = T>) -> T {
        under_load(&self.core, &[&self.checker], keys, fault).await
    }

    /// Waits until claims are decided on the server `server`; returns the time taken.
    async fn decides_on(&self, server: usize, key: &str) -> Duration {
        let began = Instant::now();
        let redis = self.set.view(server).await;
        eventually(SOON, || async {
            let before = redis.script_calls().await;
            let outcome = self.checker.claim(&self.core, &format!("probe-{key}"), key).await;
            let after = redis.script_calls().await;
            holds(outcome != ClaimOutcome::Unknown && after > before, || {
                format!("{outcome:?}; {before} calls, then {after}")
            })
        })
        .await;
        began.elapsed()
    }

    /// Waits until decisions continue on the promoted server after the first one was replaced; returns its
    /// index.
    async fn continues_on_promoted(&self, key: &str) -> usize {
        let promoted = self.set.promoted_after(0).await;
        let took = self.decides_on(promoted, key).await;
        say(&format!("  {key}: decisions {took:.1?} after all sentinels name the new primary"));
        tokio::time::sleep(LOAD_TIME).await;
        promoted
    }

    /// Waits until SQL has everything from this server's outbox.
    async fn relays_from(&self, server: usize) {
        self.set.view(server).await.relayed("demo", SOON).await;
    }

    async fn judge(&self, row: Row, primary: usize) {
        let redis = self.set.view(primary).await;
        let verdict = self.checker.judge(&[&self.core], &self.sql, &redis, PERSISTED).await;
        say(&format!(
            "  {} claims acknowledged, {} lost, {} revoked",
            verdict.acknowledged, verdict.lost, verdict.revoked
        ));
        row.survived(self.checker.call_count(), verdict);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn persisted_claims_survive_manual_failovers() {
    only_on!(OWN, "it starts its own servers");
    let kind = Kind::from_env();
    let row = Row::begin_on(kind, "Sentinel: manual failovers under load");
    let _turn = heavy().await;
    let fixture = SentinelFixture::start(kind).await;
    fixture.set.never_fail_over().await;
    let mut primary = 0;
    for round in 1..=2 {
        let keys = format!("k{round}");
        primary = fixture
            .under_load(&keys, async {
                tokio::time::sleep(LOAD_TIME).await;
                row.fault();
                let promoted = fixture.set.fail_over().await;
                let took = fixture.decides_on(promoted, &keys).await;
                say(&format!("  failover {round}: decisions {took:.1?} after all name the new primary"));
                tokio::time::sleep(LOAD_TIME).await;
                promoted
            })
            .await;
        fixture.set.settled().await;
    }
    fixture.judge(row, primary).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_continue_after_the_primary_is_killed() {
    only_on!(OWN, "it starts its own servers");
    let kind = Kind::from_env();
    let row = Row::begin_on(kind, "Sentinel: the primary killed under load, then restarted as a replica");
    let _turn = heavy().await;
    let mut fixture = SentinelFixture::start(kind).await;
    let tight = Checker::create(&fixture.core, "tight", TIGHT).await;
    tight.win(&fixture.core, 0..150).await;
    let pid = fixture.set.view(0).await.pid().await;
    let promoted = fixture
        .under_load("killed", async {
            tokio::time::sleep(LOAD_TIME).await;
            row.kill();
            signal_pid(pid, Signal::KILL);
            fixture.continues_on_promoted("killed").await
        })
        .await;
    // The restarted server considers itself the primary until Sentinel demotes it.
    fixture.set.servers[0].kill_and_restart().await;
    fixture.under_load("back", fixture.set.settled()).await;
    for user in 150..300 {
        tight.claim(&fixture.core, &format!("u{user}"), "k").await;
    }
    let redis = fixture.set.view(promoted).await;
    tight.judge(&[&fixture.core], &fixture.sql, &redis, PERSISTED).await;
    fixture.judge(row, promoted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_continue_after_the_primary_stalls() {
    only_on!(OWN, "it starts its own servers");
    let kind = Kind::from_env();
    let row = Row::begin_on(kind, "Sentinel: the primary stopped under load, then resumed as a replica");
    let _turn = heavy().await;
    let fixture = SentinelFixture::start(kind).await;
    let pid = fixture.set.view(0).await.pid().await;
    let promoted = fixture
        .under_load("stopped", async {
            tokio::time::sleep(LOAD_TIME).await;
            row.fault();
            signal_pid(pid, Signal::STOP);
            let promoted = fixture.continues_on_promoted("stopped").await;
            signal_pid(pid, Signal::CONT);
            fixture.set.settled().await;
            promoted
        })
        .await;
    fixture.judge(row, promoted).await;
}

/// The primary is partitioned from its replicas and the sentinels, but not from core, whose connections stay
/// intact. Core does not hear the sentinel that leads the failover, only another one: that it must switch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_leaves_a_primary_that_only_core_can_reach() {
    only_on!(OWN, "it starts its own servers");
    let kind = Kind::from_env();
    let row = Row::begin_on(kind, "Sentinel: the primary partitioned from all but core");
    let _turn = heavy().await;
    let fixture = SentinelFixture::start_as(kind, "core", "cores-own-password").await;
    fixture.set.never_fail_over().await;
    let old = fixture.set.view(0).await;
    let promoted = fixture
        .under_load("cut", async {
            tokio::time::sleep(LOAD_TIME).await;
            row.fault();
            // Sentinels and replicas connect as the default user.
            old.query::<()>(&["ACL", "SETUSER", "default", "off"]).await;
            old.query::<()>(&["CLIENT", "KILL", "USER", "default", "SKIPME", "yes"]).await;
            fixture.set.fail_over().await;
            fixture.continues_on_promoted("cut").await
        })
        .await;
    let info: String = old.query(&["INFO", "replication"]).await;
    assert!(info.contains("role:master"), "it must still be a primary: {info}");
    assert!(fixture.core.log().contains("Sentinel names another primary"), "{}", fixture.core.log());
    fixture.relays_from(promoted).await;
    old.query::<()>(&["ACL", "SETUSER", "default", "on"]).await;
    fixture.set.settled().await;
    fixture.judge(row, promoted).await;
}

/// A sentinel that missed a failover still names the demoted server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_sentinel_is_not_trusted() {
    only_on!(OWN, "it starts its own servers");
    let kind = Kind::from_env();
    let row = Row::begin_on(kind, "Sentinel: a sentinel that names a replica");
    let _turn = heavy().await;
    let set = SentinelSet::start(kind).await;
    let stale = StaleSentinel::start(set.address(1)).await;
    let url = set.url().replace("://", &format!("://{},", stale.address()));
    let core = CoreOptions::default().with("CLAIMGATE_REDIS_URL", url).start().await;
    let (sql, checker) = (Sql::in_directory(&core.data_dir()), Checker::create(&core, "demo", ROOMY).await);
    let fixture = SentinelFixture { set, core, sql, checker };
    fixture.checker.win(&fixture.core, 0..10).await;
    row.fault();
    let promoted = fixture.set.fail_over().await;
    stale.names(fixture.set.address(0));
    fixture.decides_on(promoted, "after").await;
    // The old primary reports the role of a primary until it is demoted.
    fixture.set.settled().await;
    // With only the stale sentinel left, core waits until a different sentinel answers.
    for sentinel in &fixture.set.sentinels {
        sentinel.signal(Signal::STOP);
    }
    row.fault();
    let redis = fixture.set.view(promoted).await;
    redis.query::<()>(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    until_status(SOON, &[503], async || fixture.core.get("/readyz").await).await;
    assert_eq!(fixture.checker.claim(&fixture.core, "early", "k").await, ClaimOutcome::Unknown);
    // Two sentinels are no majority of four: core first tries the server of the stale one, which claims the latest
    // failover.
    fixture.set.sentinels[0].signal(Signal::CONT);
    fixture.decides_on(promoted, "disagreed").await;
    for sentinel in &fixture.set.sentinels[1..] {
        sentinel.signal(Signal::CONT);
    }
    fixture.set.settled().await;
    let primary = fixture.set.named_by(&fixture.set.sentinels[0]).await;
    fixture.decides_on(primary, "again").await;
    fixture.judge(row, primary).await;
}

/// The replicas may not obey Sentinel.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_returns_to_a_primary_after_a_failed_promotion() {
    only_on!(OWN, "it starts its own servers");
    let kind = Kind::from_env();
    let row = Row::begin_on(kind, "Sentinel: a promotion that fails");
    let _turn = heavy().await;
    let fixture = SentinelFixture::start(kind).await;
    fixture.set.never_fail_over().await;
    for replica in 1..3 {
        let forbid = ["ACL", "SETUSER", "default", "-replicaof", "-slaveof"];
        fixture.set.view(replica).await.query::<()>(&forbid).await;
    }
    fixture.checker.win(&fixture.core, 0..10).await;
    row.fault();
    // A lost announcement is made again by the next attempt.
    eventually(SOON, || async {
        fixture.set.request_fail_over(0).await?;
        holds(fixture.core.log().contains("Sentinel is replacing the primary"), || fixture.core.log())
    })
    .await;
    // It may be over: a unit test of `topology::sentinel` checks that core does not connect meanwhile.
    fixture.decides_on(0, "failed").await;
    let paused: String = fixture.set.view(0).await.query(&["INFO", "commandstats"]).await;
    assert!(paused.contains("cmdstat_client|pause:"), "{paused}");
    fixture.judge(row, 0).await;
}

/// The old primary's writes are paused, but its connections stay intact. A call to the old primary ends only when
/// Sentinel announces that it is replacing it, or at core's deadline of one second. The test's client retries in the
/// second case; a unit test of `topology::server` checks the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_in_flight_to_a_replaced_primary_are_retried() {
    only_on!(OWN, "it starts its own servers");
    let kind = Kind::from_env();
    let row = Row::begin_on(kind, "Sentinel: claims in flight to a replaced primary");
    let _turn = heavy().await;
    let fixture = SentinelFixture::start(kind).await;
    fixture.set.never_fail_over().await;
    for campaign in WAITING {
        fixture.core.create(campaign, json!({"total": 100})).await;
        fixture.core.claim(campaign, "early", "k").await.expect(201);
    }
    let (mut primary, mut answers) = (0, vec![]);
    // Sentinel may take longer than core's deadline.
    for round in 1..=5 {
        row.fault();
        fixture.set.pause_writes(primary).await;
        let (replies, promoted) =
            tokio::join!(claims_until_promoted(&fixture, primary, round), fixture.set.fail_over());
        fixture.decides_on(promoted, &format!("after{round}")).await;
        fixture.set.settled().await;
        primary = promoted;
        // Earlier decisions must be compared with SQL first.
        if replies.iter().any(|reply| reply.status == 201 || reply.json()["code"] == "campaign_not_ready") {
            return fixture.judge(row, primary).await;
        }
        answers.extend(replies.iter().map(Reply::text));
    }
    panic!("core kept calling the replaced primary: {answers:#?}");
}

/// Campaigns for one claim at a time: a second claim on the same campaign would wait in core for the first.
const WAITING: [&str; 10] = ["w0", "w1", "w2", "w3", "w4", "w5", "w6", "w7", "w8", "w9"];

/// Sends claims every 50 ms until the primary is no longer `primary`; returns the responses.
async fn claims_until_promoted(fixture: &SentinelFixture, primary: usize, round: usize) -> Vec<Reply> {
    let mut claims = JoinSet::new();
    let send = async {
        for campaign in WAITING {
            let (client, url) = (fixture.core.client().clone(), fixture.core.url("/internal/v1/claims"));
            let body = claim_body(campaign, &format!("late{round}"), "k", 1);
            claims.spawn(async move {
                let began = Instant::now();
                let reply = client.call(Method::POST, &url, API_TOKEN, &body).await;
                assert!(began.elapsed() < promised(DECISION), "answered only after {:?}", began.elapsed());
                reply
            });
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        () = send => {}
        _ = promotion(&fixture.set, primary) => {}
    }
    claims.join_all().await
}
