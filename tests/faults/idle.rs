//! Many idle campaigns and many more ended ones: the cost of an idle core, which must still find every
//! change. The environment variables `LIVE`, `ENDED` and `REST_S` set the numbers of campaigns and the
//! measurement time in seconds.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use claimgate_core::config::sqlite_url;
use claimgate_core::store::sql::SqlStore;
use support::inspect::key;
use support::process::cpu_ms;
use support::sql::{Campaigns, Sql};
use support::wait::{holds, until_status};
use support::{Core, CoreOptions, RedisServer, RedisView, SOON, eventually, promised, undisturbed};
use tempfile::TempDir;
use tokio::time::sleep;

use crate::jobs::in_force;
use crate::registers::drop_foreign;
use crate::tally::Row;

const LIVE: u64 = 500;
const ENDED: u64 = 20_000;
const REST_S: u64 = 5;
/// Maximum number of Redis commands per second for an idle core, including those of scripts.
const CALLS_MAX: f64 = 200.0;
const RESIDENT_KIB_MAX: u64 = 200 * 1024;
/// Time limit from the check of a campaign without its keys until core has loaded the campaign.
const FOUND_MAX: Duration = Duration::from_secs(3);

/// Returns the value of the environment variable `name`, or `usual`.
pub fn size(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Creates an empty database in a new data directory.
pub async fn database() -> (TempDir, String) {
    let directory = tempfile::Builder::new().prefix("cg-").tempdir().expect("a temporary directory");
    let data = directory.path().join("data");
    DirBuilder::new().mode(0o700).create(&data).expect("the data directory");
    let url = sqlite_url(&data.join("claimgate.sqlite"));
    SqlStore::open(&url).await.expect("the schema").close().await;
    (directory, url)
}

/// Waits until `count` campaigns of [`Campaigns`] are in Redis. Core's load counter cannot be used, because
/// it misses a load whose last reply was lost.
pub async fn loaded(core: &Core, count: u64) {
    eventually(SOON + Duration::from_millis(100) * u32::try_from(count).unwrap(), || async {
        sleep(Duration::from_millis(200)).await;
        let ready = ready(core).await;
        holds(ready >= count, || format!("{ready} of {count} campaigns are loaded"))
    })
    .await;
}

/// Returns the number of live campaigns known to be ready. They are listed before the others; a core that is
/// still busy loading may not answer in time for a page.
async fn ready(core: &Core) -> u64 {
    let (mut ready, mut cursor) = (0, String::new());
    loop {
        let path = format!("/admin/v1/campaigns?limit=100{cursor}");
        let page = core.admin_get(&path).await;
        if page.status == 503 {
            return ready;
        }
        let page = page.expect(200).json();
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

/// Returns the number of Redis commands per second, measured over `time`.
async fn calls_a_second(redis: &RedisView, time: Duration) -> f64 {
    let (before, started) = (redis.calls(&[]).await, Instant::now());
    sleep(time).await;
    // The query itself is one of the commands.
    let calls = redis.calls(&[]).await - before - 1;
    f64::from(u32::try_from(calls).unwrap()) / started.elapsed().as_secs_f64()
}

/// Waits until a core that has just started has checked every campaign.
async fn until_idle(redis: &RedisView, live: u64) {
    let within = SOON + Duration::from_millis(20) * u32::try_from(live).unwrap();
    eventually(within, || async {
        let calls = calls_a_second(redis, Duration::from_secs(1)).await;
        holds(calls <= CALLS_MAX, || format!("Redis still runs {calls:.0} commands per second"))
    })
    .await;
}

/// Costs over `time`: commands per second, and the processor time of core and Redis in percent.
async fn idle_cost(core: &Core, redis: &RedisView, time: Duration) -> (f64, [f64; 2]) {
    let pids = [core.pid(), redis.pid().await];
    let (before, started) = (pids.map(cpu_ms), Instant::now());
    let calls = calls_a_second(redis, time).await;
    let after = pids.map(cpu_ms);
    let used = |at: usize| Duration::from_millis(after[at] - before[at]).as_secs_f64();
    (calls, [0, 1].map(|at| 100.0 * used(at) / started.elapsed().as_secs_f64()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_campaigns_cost_little_and_their_faults_are_found() {
    let (live, ended) = (size("LIVE", LIVE), size("ENDED", ENDED));
    let row = Row::begin(format!("{live} idle campaigns, {ended} ended"));
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
    until_idle(&redis, live).await;
    let quiet = started.elapsed();
    let (calls, [of_core, of_redis]) =
        idle_cost(&core, &redis, Duration::from_secs(size("REST_S", REST_S))).await;
    let resident_kib = core.resident_kib();
    assert!(calls <= CALLS_MAX, "{calls:.0} commands per second while idle");
    assert!(resident_kib <= RESIDENT_KIB_MAX, "{resident_kib} KiB of resident memory");

    core.claim("over1", "alice", "k").await.refused(403, "ended");
    for total in 2..7 {
        row.fault();
        in_force(&sql, &redis, &format!("live{}", live / total), u32::try_from(total).unwrap()).await;
    }
    row.fault();
    // Simulate an older copy of the database, in which change numbers continue from an earlier value.
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
            "{calls:.0} commands per second, core {of_core:.2} % and Redis {of_redis:.2} % of a processor, \
             {} MB resident; ready {ready:.2?} after the start, idle after {quiet:.1?}; loaded in {loading:.1?}",
            resident_kib / 1024
        ),
    );
}

/// Deletes keys between claims: core finds the campaign and reloads it from SQL.
async fn deleted_keys_are_found(redis: &RedisView, live: u64) {
    redis.query::<()>(&["DEL", &key("live2", "users")]).await;
    // Core checks 32 campaigns per second, round-robin.
    let round = Duration::from_secs(live / 32);
    eventually(round + promised(FOUND_MAX), || async {
        sleep(Duration::from_millis(200)).await;
        let is_there = redis.state("live2").await.is_some();
        holds(is_there, || "the campaign was not loaded again".to_owned())
    })
    .await;
}

/// Checks that core reopens a campaign that the operator of a different database tried to remove.
async fn a_suspended_campaign_is_brought_back(core: &Core, redis_url: &str) {
    let (directory, _) = database().await;
    let data = directory.path().join("data");
    let file = directory.path().join("claims.csv");
    let (status, output) = drop_foreign("live3", &data, redis_url, Path::new(&file)).await;
    assert_eq!(status, Some(1), "{output}");
    assert!(output.contains("a core serves"), "{output}");
    until_status(SOON, &[200, 201], async || core.claim("live3", "alice", "k").await).await;
}
