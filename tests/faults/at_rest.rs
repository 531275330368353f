//! Many campaigns at rest, beside many more that are over: what a core costs that has nothing to do, and that it finds all the
//! same what it has to. `LIVE`, `ENDED` and `REST_S` of the environment say how many, and for how many seconds it is watched.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use claimgate_core::config::sqlite_url;
use claimgate_core::store::sql::SqlStore;
use support::inspect::key;
use support::process::cpu_ms;
use support::sql::{Campaigns, Sql};
use support::wait::holds;
use support::{Core, CoreOptions, RedisServer, RedisView, SOON, eventually, undisturbed};
use tempfile::TempDir;
use tokio::time::sleep;

use crate::jobs::in_force;
use crate::registers::drop_foreign;
use crate::tally::Row;

const LIVE: u64 = 500;
const ENDED: u64 = 20_000;
const REST_S: u64 = 5;
/// Commands that Redis may run each second for a core at rest, those of scripts included.
const CALLS_MAX: f64 = 200.0;
const RESIDENT_KIB_MAX: u64 = 200 * 1024;

/// What `name` of the environment says, or what is usual.
pub fn size(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// An empty database in a data directory of its own.
pub async fn database() -> (TempDir, String) {
    let directory = tempfile::Builder::new().prefix("cg-").tempdir().expect("a temporary directory");
    let data = directory.path().join("data");
    DirBuilder::new().mode(0o700).create(&data).expect("the data directory");
    let url = sqlite_url(&data.join("claimgate.sqlite"));
    SqlStore::open(&url).await.expect("the schema").close().await;
    (directory, url)
}

/// Waits until `count` campaigns of [`Campaigns`] are in Redis. Core counts no load whose last answer was lost, though it is
/// one.
pub async fn loaded(core: &Core, count: u64) {
    eventually(SOON + Duration::from_millis(100) * u32::try_from(count).unwrap(), || async {
        sleep(Duration::from_millis(200)).await;
        let ready = ready(core).await;
        holds(ready >= count, || format!("{ready} campaigns of {count} are loaded"))
    })
    .await;
}

/// How many of the live campaigns, which are listed before the others, are ready.
async fn ready(core: &Core) -> u64 {
    let (mut ready, mut cursor) = (0, String::new());
    loop {
        let path = format!("/admin/v1/campaigns?limit=100{cursor}");
        let page = core.admin_get(&path).await.expect(200).json();
        for item in page["items"].as_array().expect("items") {
            if !item["id"].as_str().expect("an id").starts_with("live") {
                return ready;
            }
            ready += u64::from(item["ready"] == true);
        }
        let Some(next) = page["next_cursor"].as_str() else { return ready };
        cursor = format!("&cursor={next}");
    }
}

/// Commands that Redis runs each second, over `time`.
async fn calls_a_second(redis: &RedisView, time: Duration) -> f64 {
    let (before, started) = (redis.calls(&[]).await, Instant::now());
    sleep(time).await;
    // One of them asks for the number.
    let calls = redis.calls(&[]).await - before - 1;
    f64::from(u32::try_from(calls).unwrap()) / started.elapsed().as_secs_f64()
}

/// Waits until a core that has just started is done with looking at every campaign.
async fn at_rest(redis: &RedisView, live: u64) {
    let within = SOON + Duration::from_millis(20) * u32::try_from(live).unwrap();
    eventually(within, || async {
        let calls = calls_a_second(redis, Duration::from_secs(1)).await;
        holds(calls <= CALLS_MAX, || format!("Redis still runs {calls:.0} commands a second"))
    })
    .await;
}

/// What the processes cost over `time`: commands a second, and the processor time of core and Redis, in percent.
async fn cost(core: &Core, redis: &RedisView, time: Duration) -> (f64, [f64; 2]) {
    let pids = [core.pid(), redis.pid().await];
    let (before, started) = (pids.map(cpu_ms), Instant::now());
    let calls = calls_a_second(redis, time).await;
    let after = pids.map(cpu_ms);
    let used = |at: usize| Duration::from_millis(after[at] - before[at]).as_secs_f64();
    (calls, [0, 1].map(|at| 100.0 * used(at) / started.elapsed().as_secs_f64()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn campaigns_at_rest_cost_little_however_many_they_are_and_whatever_befalls_one_is_found() {
    let (live, ended) = (size("LIVE", LIVE), size("ENDED", ENDED));
    let row = Row::begin(format!("{live} campaigns at rest, {ended} over"));
    let _turn = undisturbed().await;
    let (directory, url) = database().await;
    let sql = Sql::open(&url);
    assert_eq!(sql.run(Campaigns { live, ended }.insert()).await, live + ended);
    let server = RedisServer::start().await;
    let redis = server.view().await;
    let options = CoreOptions::default().with("CLAIMGATE_REDIS_URL", server.url());
    let mut core = options.start_in(directory).await;
    let started = Instant::now();
    loaded(&core, live).await;
    let loading = started.elapsed();

    core.stop().await;
    let started = Instant::now();
    core = core.restart().await;
    let ready = started.elapsed();
    at_rest(&redis, live).await;
    let quiet = started.elapsed();
    let (calls, [of_core, of_redis]) = cost(&core, &redis, Duration::from_secs(size("REST_S", REST_S))).await;
    let resident_kib = core.resident_kib();
    assert!(calls <= CALLS_MAX, "{calls:.0} commands a second at rest");
    assert!(resident_kib <= RESIDENT_KIB_MAX, "{resident_kib} KiB are resident");

    core.claim("over1", "alice", "k").await.refused(403, "ended");
    for total in 2..7 {
        row.fault();
        in_force(&sql, &redis, &format!("live{}", live / total), u32::try_from(total).unwrap()).await;
    }
    row.fault();
    // Of an older copy of the database, which counts its changes from where it was.
    sql.run("UPDATE campaigns SET change_number = 0".to_owned()).await;
    sql.run("UPDATE last_change SET number = 0".to_owned()).await;
    in_force(&sql, &redis, &format!("live{}", live - 1), 9).await;
    row.fault();
    deleted_keys_are_found(&redis, live).await;
    row.fault();
    a_suspended_campaign_is_brought_back(&core, &server.url()).await;
    row.passed(
        usize::try_from(live).unwrap(),
        &format!(
            "{calls:.0} commands a second, core {of_core:.2} % and Redis {of_redis:.2} % of a processor, \
             {} MB resident; ready {ready:.2?} after the start, at rest after {quiet:.1?}; loaded in {loading:.1?}",
            resident_kib / 1024
        ),
    );
}

/// A campaign whose keys go between claims is found and loaded again.
async fn deleted_keys_are_found(redis: &RedisView, live: u64) {
    redis.query::<()>(&["DEL", &key("live2", "users")]).await;
    // A round of looks, 32 a second.
    eventually(SOON + Duration::from_secs(live / 32), || async {
        sleep(Duration::from_millis(200)).await;
        let is_there = redis.state("live2").await.is_some();
        holds(is_there, || "the campaign was not found".to_owned())
    })
    .await;
}

/// Another database's operator wants a campaign removed that this core serves: it is looked at out of turn.
async fn a_suspended_campaign_is_brought_back(core: &Core, redis_url: &str) {
    let (directory, _) = database().await;
    let data = directory.path().join("data");
    let file = directory.path().join("claims.csv");
    let (status, said) = drop_foreign("live3", &data, redis_url, Path::new(&file)).await;
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("a core serves"), "{said}");
    eventually(SOON, || async {
        let reply = core.claim("live3", "alice", "k").await;
        holds(reply.status < 300, || reply.text())
    })
    .await;
}
