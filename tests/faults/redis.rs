//! Faults of Redis itself: killed, stalled, busy, out of memory, its scripts or the end of its file gone.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use support::checker::{Checker, Expect, Promise};
use support::core_process::DECISION;
use support::inspect::key;
use support::only_on;
use support::process::{Signal, signal_pid};
use support::storm::{Seen, wishes};
use support::topology::{ONE_SERVER, OWN};
use support::wait::holds;
use support::{Core, CoreOptions, RedisView, SOON, Snapshot, eventually};
use tokio::time::sleep;

use crate::fixture::{Fixture, ROOMY};
use crate::tally::Row;

/// More than callers of one test send at once.
const AT_ONCE: usize = 100;

/// Claims by `users` users while `fault` goes on.
async fn under_load<T>(checker: &Checker, core: &Core, users: usize, fault: impl Future<Output = T>) -> T {
    let wishes = wishes(users, 3);
    let url = core.url("/internal/v1/claims");
    let storm = checker.storm(core.client(), || url.clone(), &wishes, AT_ONCE);
    let (fault, ()) = tokio::join!(fault, storm);
    fault
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_killed_under_load() {
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
    under_load(&checker, &fixture.core, 1000, kills).await;
    fixture.judge(row, &checker, Expect::default()).await;
}

/// What is refused while `fault` lasts is a 503 in time, and a retry with the same key finds the one claim.
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
    let asked = futures_util::future::join_all((20..60).map(|user| {
        let (checker, core) = (&checker, &fixture.core);
        async move { checker.claim(core, &format!("u{user}"), "k").await }
    }));
    let asked = asked.await;
    assert!(asked.iter().all(|seen| *seen == Seen::Unknown), "{asked:?}");
    assert!(started.elapsed() < DECISION, "503 only after {:?}", started.elapsed());
    go_on(&fixture).await;
    eventually(SOON, || async {
        let seen = checker.claim(&fixture.core, "u20", "k").await;
        holds(seen != Seen::Unknown, || "still no decision".to_owned())
    })
    .await;
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stall_by_sigstop() {
    let fixture = Fixture::managed().await;
    let pids = fixture.redis_pids().await;
    let stop = async |_: &Fixture| pids.iter().for_each(|pid| signal_pid(*pid, Signal::STOP));
    let go_on = async |_: &Fixture| pids.iter().for_each(|pid| signal_pid(*pid, Signal::CONT));
    stalled(Row::begin("stall: SIGSTOP"), fixture, stop, go_on).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stall_by_client_pause() {
    let fixture = Fixture::external().await;
    let say = async |fixture: &Fixture, words: &[&str]| {
        fixture.redis().await.query_all::<()>(words).await;
    };
    let pause = async |fixture: &Fixture| say(fixture, &["CLIENT", "PAUSE", "60000", "WRITE"]).await;
    let go_on = async |fixture: &Fixture| say(fixture, &["CLIENT", "UNPAUSE"]).await;
    stalled(Row::begin("stall: CLIENT PAUSE WRITE"), fixture, pause, go_on).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runaway_script() {
    only_on!(ONE_SERVER, "the script runs on one server");
    let fixture = Fixture::external().await;
    let redis = fixture.redis().await;
    redis.query::<()>(&["CONFIG", "SET", "busy-reply-threshold", "200"]).await;
    let loops = async |_: &Fixture| {
        let redis = redis.clone();
        tokio::spawn(async move {
            let _ = redis.try_query::<redis::Value>(&["EVAL", "while true do end", "0"]).await;
        });
        sleep(Duration::from_millis(400)).await;
    };
    let other = fixture.redis().await;
    let killed = async |_: &Fixture| other.query(&["SCRIPT", "KILL"]).await;
    stalled(Row::begin("runaway script"), fixture, loops, killed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_lost() {
    let row = Row::begin("scripts lost");
    let fixture = Fixture::external().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    let redis = fixture.redis().await;
    let flush = async {
        for _ in 0..20 {
            row.fault();
            redis.query_all::<()>(&["SCRIPT", "FLUSH"]).await;
            redis.query_all::<()>(&["FUNCTION", "FLUSH"]).await;
            sleep(Duration::from_millis(20)).await;
        }
    };
    under_load(&checker, &fixture.core, 300, flush).await;
    for (wish, seen) in checker.seen() {
        assert!(matches!(seen, Seen::Claimed { .. }), "{wish:?} has noticed: {seen:?}");
    }
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_limit() {
    let row = Row::begin("memory limit");
    let fixture = Fixture::external().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..20).await;
    let (redis, sql) = (fixture.redis().await, fixture.core.sql());
    let before = Snapshot::take(&redis, &sql, "demo").await;
    row.fault();
    limit_memory(&redis, 1).await;
    for user in 20..40 {
        // As when a core of another version comes, which cannot bring its library then.
        if user == 30 {
            redis.query_all::<()>(&["FUNCTION", "FLUSH"]).await;
        }
        let reply = fixture.core.once().claim("demo", &format!("u{user}"), "k").await;
        reply.refused(503, "overloaded");
    }
    assert_eq!(Snapshot::take(&redis, &sql, "demo").await, before, "refused, and yet written");
    limit_memory(&redis, 0).await;
    checker.win(&fixture.core, 20..25).await;
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_relay_works_without_memory() {
    let row = Row::begin("memory limit: the relay frees what it can");
    let fixture = Fixture::external().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    let redis = fixture.redis().await;
    checker.win(&fixture.core, 0..5).await;
    let held = fixture.sql.hold().await;
    checker.win(&fixture.core, 5..40).await;
    // A malformed entry too has to get out of the way.
    let outbox = support::inspect::key("demo", "outbox");
    redis.query::<String>(&["XADD", &outbox, "*", "no", "entry"]).await;
    row.fault();
    limit_memory(&redis, 1).await;
    held.release().await;
    fixture.relayed("demo").await;
    assert_eq!(fixture.sql.claims("demo").await.len(), 40, "relayed while Redis was out of memory");
    limit_memory(&redis, 0).await;
    fixture.judge(row, &checker, Expect { differences: &["dead_letters"], ..Expect::default() }).await;
}

/// To be evicted is what frees memory: it must not wait for any.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_campaign_that_is_over_is_evicted_without_memory() {
    let row = Row::begin("memory limit: a campaign that is over leaves Redis");
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
    row.passed(checker.asked(), "20 claims answered from SQL, and no key left");
}

async fn limit_memory(redis: &RedisView, bytes: u64) {
    redis.query_all::<()>(&["CONFIG", "SET", "maxmemory", &bytes.to_string()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn torn_append_only_file() {
    let row = Row::begin("torn append-only file");
    let mut fixture = Fixture::external_on_fast_disk().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..30).await;
    fixture.relayed("demo").await;
    // What SQL has not heard of when the file is torn is lost, and only that.
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
    assert!(lost <= 1, "the last script was dropped, and {lost} claims with it");
}

/// The file that Redis appends to.
pub async fn newest_incremental_file(redis: &RedisView) -> PathBuf {
    let directory = setting(redis, "dir").await;
    let directory = Path::new(&directory).join(setting(redis, "appenddirname").await);
    let files = std::fs::read_dir(directory).unwrap().flatten().map(|entry| entry.path());
    let incremental = files.filter(|file| file.to_string_lossy().ends_with(".incr.aof"));
    incremental.max_by_key(|file| file.metadata().unwrap().modified().unwrap()).expect("an append-only file")
}

/// A setting of Redis.
pub async fn setting(redis: &RedisView, name: &str) -> String {
    let pair: Vec<(String, String)> = redis.query(&["CONFIG", "GET", name]).await;
    pair.into_iter().next().expect("a setting").1
}
