//! Faults of Redis itself: killed, stalled, busy, out of memory, or without its scripts or the end of its
//! file.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use support::checker::{Checker, Expect, Promise};
use support::core_process::DECISION;
use support::inspect::key;
use support::only_on;
use support::process::{Signal, signal_pid};
use support::storm::{ClaimAttempt, ClaimOutcome, claim_attempts};
use support::topology::{ONE_SERVER, OWN};
use support::wait::{holds, refused_in_time};
use support::{Core, CoreOptions, RedisView, SOON, Snapshot, eventually, promised};
use tokio::time::sleep;

use crate::fixture::{Fixture, ROOMY};
use crate::tally::Row;

/// More than the concurrent claims of any test.
const CONCURRENT_CLAIMS: usize = 100;

/// Sends `claim_attempts` while `fault` runs.
async fn under_load<T>(
    checker: &Checker,
    core: &Core,
    claim_attempts: &[ClaimAttempt],
    fault: impl Future<Output = T>,
) -> T {
    let url = core.url("/internal/v1/claims");
    let storm = checker.storm(core.client(), || url.clone(), claim_attempts, CONCURRENT_CLAIMS);
    let (fault, ()) = tokio::join!(fault, storm);
    fault
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_claim_is_lost_when_redis_is_killed() {
    only_on!(OWN, "core starts its own Redis again");
    let row = Row::begin("Redis killed under load");
    let fixture = Fixture::managed().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    let kills = async {
        for _ in 0..3 {
            sleep(Duration::from_millis(400)).await;
            let pid = fixture.core.redis_pid().await;
            row.kill();
            signal_pid(pid, Signal::KILL);
        }
    };
    under_load(&checker, &fixture.core, &claim_attempts(1000, 3), kills).await;
    fixture.judge(row, &checker, Expect::default()).await;
}

/// Claims during the stall get 503 in time, and a retry with the same key finds the only claim.
async fn stalled(
    row: Row,
    fixture: Fixture,
    stall: impl AsyncFnOnce(&Fixture),
    go_on: impl AsyncFnOnce(&Fixture),
) {
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..20).await;
    row.fault();
    stall(&fixture).await;
    let started = Instant::now();
    let claims = futures_util::future::join_all((20..60).map(|user| {
        let (checker, core) = (&checker, &fixture.core);
        async move { checker.claim(core, &format!("u{user}"), "k").await }
    }));
    let claims = claims.await;
    assert!(claims.iter().all(|outcome| *outcome == ClaimOutcome::Unknown), "{claims:?}");
    assert!(started.elapsed() < promised(DECISION), "503 only after {:?}", started.elapsed());
    go_on(&fixture).await;
    checker.decided(SOON, &fixture.core, "u20", "k").await;
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_return_503_in_time_while_redis_is_stopped() {
    let fixture = Fixture::managed().await;
    let pids = fixture.redis_pids().await;
    let stop = async |_: &Fixture| pids.iter().for_each(|pid| signal_pid(*pid, Signal::STOP));
    let go_on = async |_: &Fixture| pids.iter().for_each(|pid| signal_pid(*pid, Signal::CONT));
    stalled(Row::begin("stall: SIGSTOP"), fixture, stop, go_on).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_return_503_in_time_while_writes_are_paused() {
    let fixture = Fixture::external().await;
    let say = async |fixture: &Fixture, words: &[&str]| {
        fixture.redis().await.query_all::<()>(words).await;
    };
    let pause = async |fixture: &Fixture| say(fixture, &["CLIENT", "PAUSE", "60000", "WRITE"]).await;
    let go_on = async |fixture: &Fixture| say(fixture, &["CLIENT", "UNPAUSE"]).await;
    stalled(Row::begin("stall: CLIENT PAUSE WRITE"), fixture, pause, go_on).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_return_503_in_time_during_a_runaway_script() {
    only_on!(ONE_SERVER, "the script runs on one server");
    let fixture = Fixture::external().await;
    let redis = fixture.redis().await;
    redis.query::<()>(&["CONFIG", "SET", "busy-reply-threshold", "200"]).await;
    let other = fixture.redis().await;
    let loops = async |_: &Fixture| {
        let redis = redis.clone();
        tokio::spawn(async move {
            let _ = redis.try_query::<redis::Value>(&["EVAL", "while true do end", "0"]).await;
        });
        eventually(SOON, || async {
            let reply = other.try_query::<String>(&["PING"]).await;
            let is_busy = reply.as_ref().is_err_and(|error| error.to_lowercase().contains("busy"));
            holds(is_busy, || format!("{reply:?}"))
        })
        .await;
    };
    let killed = async |_: &Fixture| other.query(&["SCRIPT", "KILL"]).await;
    stalled(Row::begin("runaway script"), fixture, loops, killed).await;
}

/// Removes the scripts repeatedly while new users claim; returns the number of claims that were not decided.
async fn undecided_without_scripts(row: &Row, fixture: &Fixture, checker: &Checker, round: usize) -> usize {
    let redis = fixture.redis().await;
    let flush = async {
        for _ in 0..20 {
            row.fault();
            redis.query_all::<()>(&["SCRIPT", "FLUSH"]).await;
            redis.query_all::<()>(&["FUNCTION", "FLUSH"]).await;
            sleep(Duration::from_millis(20)).await;
        }
    };
    let mut attempts = claim_attempts(300, 3);
    for attempt in &mut attempts {
        attempt.user = format!("{}-{round}", attempt.user);
    }
    under_load(checker, &fixture.core, &attempts, flush).await;
    checker.undecided(&attempts).len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_do_not_notice_lost_scripts() {
    let row = Row::begin("scripts lost");
    let fixture = Fixture::external().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    // A core that passes the loss on to its callers does so in most rounds; a stall affects one round.
    let mut undecided = Vec::new();
    for round in 0..3 {
        undecided.push(undecided_without_scripts(&row, &fixture, &checker, round).await);
    }
    let clean = undecided.iter().filter(|count| **count == 0).count();
    assert!(clean >= 2, "undecided claims in each round: {undecided:?}");
    for (attempt, outcome) in checker.outcomes() {
        assert!(!matches!(outcome, ClaimOutcome::Denied { .. }), "{attempt:?} failed: {outcome:?}");
    }
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_write_nothing_when_redis_is_out_of_memory() {
    let row = Row::begin("Redis out of memory: claims write nothing");
    let fixture = Fixture::external().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..20).await;
    let (redis, sql) = (fixture.redis().await, fixture.core.sql());
    let before = Snapshot::take(&redis, &sql, "demo").await;
    row.fault();
    limit_memory(&redis, 1).await;
    for user in 20..40 {
        // Simulate a new core of a different version, which cannot load its script library without memory.
        if user == 30 {
            redis.query_all::<()>(&["FUNCTION", "FLUSH"]).await;
        }
        let claim = async || fixture.core.once().claim("demo", &format!("u{user}"), "k").await;
        refused_in_time(503, "overloaded", claim).await;
    }
    assert_eq!(Snapshot::take(&redis, &sql, "demo").await, before, "rejected claims must write nothing");
    limit_memory(&redis, 0).await;
    checker.win(&fixture.core, 20..25).await;
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_relay_runs_without_free_memory() {
    let row = Row::begin("Redis out of memory: the relay runs");
    let fixture = Fixture::external().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    let redis = fixture.redis().await;
    checker.win(&fixture.core, 0..5).await;
    let held = fixture.sql.hold().await;
    checker.win(&fixture.core, 5..40).await;
    // The relay must also move a malformed entry away.
    let outbox = support::inspect::key("demo", "outbox");
    redis.query::<String>(&["XADD", &outbox, "*", "no", "entry"]).await;
    row.fault();
    limit_memory(&redis, 1).await;
    held.release().await;
    fixture.relayed("demo").await;
    assert_eq!(
        fixture.sql.claims("demo").await.len(),
        40,
        "all must be relayed while Redis is out of memory"
    );
    limit_memory(&redis, 0).await;
    fixture.judge(row, &checker, Expect { differences: &["dead_letters"], ..Expect::default() }).await;
}

/// An eviction frees memory, so it must also work without free memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ended_campaign_is_evicted_without_free_memory() {
    let row = Row::begin("Redis out of memory: an ended campaign is evicted");
    let options = CoreOptions::default().with("CLAIMGATE_ARCHIVE_AFTER_S", "1");
    let fixture = Fixture::external_with(options).await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    let redis = fixture.redis().await;
    checker.win(&fixture.core, 0..20).await;
    row.fault();
    limit_memory(&redis, 1).await;
    fixture.core.set_admin_state("demo", "end").await;
    eventually(SOON, || async {
        let left: u64 = redis.query(&["EXISTS", &key("demo", "campaign"), &key("demo", "users")]).await;
        holds(left == 0, || format!("{left} keys are still there\n{}", fixture.core.log()))
    })
    .await;
    for id in checker.acknowledged() {
        fixture.core.look_up(&id).await.expect(200);
    }
    row.passed(checker.call_count(), "20 claims answered from SQL, no keys left");
}

async fn limit_memory(redis: &RedisView, bytes: u64) {
    redis.query_all::<()>(&["CONFIG", "SET", "maxmemory", &bytes.to_string()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_torn_append_only_file_loses_only_its_last_script() {
    let row = Row::begin("torn append-only file");
    let mut fixture = Fixture::external_on_fast_disk().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..30).await;
    fixture.relayed("demo").await;
    // Only claims that SQL does not have when the file is torn may be lost.
    let held = fixture.sql.hold().await;
    checker.win(&fixture.core, 30..40).await;
    let file = newest_incremental_file(&fixture.redis().await.node_of("demo").await).await;
    row.kill();
    fixture.server().kill();
    let bytes = file.metadata().unwrap().len();
    OpenOptions::new().write(true).open(&file).unwrap().set_len(bytes - 60).unwrap();
    held.release().await;
    fixture.server().kill_and_restart().await;
    fixture.judge(row, &checker, Expect { promise: Promise::Persisted, ..Expect::default() }).await;
    let lost = checker.acknowledged().len() - fixture.sql.claims("demo").await.len();
    assert!(lost <= 1, "only the last script may be lost, but {lost} claims are");
}

/// Returns the file that Redis appends to.
pub async fn newest_incremental_file(redis: &RedisView) -> PathBuf {
    let directory = setting(redis, "dir").await;
    let directory = Path::new(&directory).join(setting(redis, "appenddirname").await);
    let files = std::fs::read_dir(directory).unwrap().flatten().map(|entry| entry.path());
    let incremental = files.filter(|file| file.to_string_lossy().ends_with(".incr.aof"));
    incremental.max_by_key(|file| file.metadata().unwrap().modified().unwrap()).expect("an append-only file")
}

/// Returns a setting of Redis.
pub async fn setting(redis: &RedisView, name: &str) -> String {
    let pair: Vec<(String, String)> = redis.query(&["CONFIG", "GET", name]).await;
    pair.into_iter().next().expect("a setting").1
}
