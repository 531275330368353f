//! Alarms fire, each of them: a real Prometheus with the rules as they are shipped watches a real core while a real fault
//! happens. Only the times that a rule waits for are shortened.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use reqwest::Method;
use serde_json::json;
use support::client::{Client, client};
use support::inspect::key;
use support::postgres::Postgres;
use support::process::{Process, Signal, command, free_address, signal_pid};
use support::promotion::has_members;
use support::redis_server::Kind;
use support::sentinel::SentinelSet;
use support::topology::OWN;
use support::wait::holds;
use support::{Core, CoreOptions, RedisView, SOON, binary, eventually, only_on, undisturbed};
use tempfile::TempDir;
use tokio::time::sleep;

use crate::replicas::waiting_for_one;
use crate::tally::Row;

/// Events that may wait for SQL.
const OUTBOX_MAX: usize = 10;
/// How long Redis is silent, so that a decision is slow and made all the same.
const SLOW: Duration = Duration::from_millis(700);
const RULES: &str = include_str!("../../ops/prometheus/claimgate.rules.yml");

/// A Prometheus that looks at cores each half second.
struct Watch {
    url: String,
    client: Client,
    _process: Process,
    directory: TempDir,
}

fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|file| file.is_file())
}

const CONFIG: &str = "\
global: { scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms }
rule_files: [rules.yml]
scrape_configs:
  - job_name: claimgate
    file_sd_configs: [{ files: [cores.json], refresh_interval: 1s }]
";

/// Tells the Prometheus in `directory` which cores to look at.
fn watch_over(directory: &Path, cores: &[&Core]) {
    let targets: Vec<_> = cores.iter().map(|core| core.admin_listen().to_string()).collect();
    // It must not be read half-written.
    let (new, file) = (directory.join("cores.json.new"), directory.join("cores.json"));
    fs::write(&new, json!([{"targets": targets}]).to_string()).unwrap();
    fs::rename(new, file).unwrap();
}

/// The rules with their waits shortened.
fn impatient() -> String {
    let lines = RULES
        .lines()
        .map(|line| if line.trim_start().starts_with("for: ") { "        for: 1s" } else { line });
    let text = lines.collect::<Vec<_>>().join("\n");
    // A minute is long for a test; what the age is compared with is tested by promtool.
    text.replace("claimgate_outbox_lag_seconds > 60", "claimgate_outbox_lag_seconds > 2")
}

impl Watch {
    async fn on(core: &Core) -> Result<Self, String> {
        let prometheus = program("prometheus").ok_or("there is no prometheus")?;
        let directory = tempfile::Builder::new().prefix("cgp-").tempdir().unwrap();
        let file = |name: &str| directory.path().join(name);
        fs::write(file("rules.yml"), impatient()).unwrap();
        fs::write(file("prometheus.yml"), CONFIG).unwrap();
        watch_over(directory.path(), &[core]);
        let process = start(&prometheus, directory.path());
        let (process, address) = process;
        let watch = Self {
            url: format!("http://{address}/api/v1/alerts"),
            client: client(),
            _process: process,
            directory,
        };
        // Once it has seen the core, a counter's rise is one.
        eventually(SOON, || async {
            let up = format!("http://{address}/api/v1/query?query=claimgate_build_info");
            let reply = watch.client.try_get(&up, "").await.map_err(|error| error.to_string())?;
            let seen = reply.status == 200
                && reply.json()["data"]["result"].as_array().is_some_and(|result| !result.is_empty());
            holds(seen, || reply.text())
        })
        .await;
        Ok(watch)
    }

    /// The names of the alarms that fire.
    async fn firing(&self) -> Vec<String> {
        let reply = self.client.try_get(&self.url, "").await.expect("prometheus answers").json();
        let alerts = reply["data"]["alerts"].as_array().cloned().unwrap_or_default();
        let firing = alerts.iter().filter(|alert| alert["state"] == "firing");
        firing.map(|alert| alert["labels"]["alertname"].as_str().unwrap().to_owned()).collect()
    }

    async fn fires(&self, alarm: &str) {
        eventually(3 * SOON, || async {
            let firing = self.firing().await;
            holds(firing.iter().any(|name| name == alarm), || format!("{alarm} is not among {firing:?}"))
        })
        .await;
    }

    async fn is_silent(&self, alarm: &str) {
        eventually(3 * SOON, || async {
            let firing = self.firing().await;
            holds(!firing.iter().any(|name| name == alarm), || format!("{alarm} still fires"))
        })
        .await;
    }
}

fn start(prometheus: &Path, directory: &Path) -> (Process, std::net::SocketAddr) {
    let address = free_address();
    let log = fs::File::create(directory.join("log")).unwrap();
    let mut command = command(prometheus);
    command
        .arg(format!("--config.file={}", directory.join("prometheus.yml").display()))
        .arg(format!("--storage.tsdb.path={}", directory.join("data").display()))
        .arg(format!("--web.listen-address={address}"))
        .stdout(Stdio::from(log.try_clone().unwrap()))
        .stderr(Stdio::from(log));
    (Process::start(command), address)
}

/// A program that says that it is another version: the version is all that it does not share with the one that is tested.
fn another_version(directory: &Path) -> PathBuf {
    let program = directory.join("claimgate");
    fs::copy(binary::claimgate(), &program).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    let other = version.replace(|digit: char| digit.is_ascii_digit(), "9");
    assert_ne!(version, other);
    let mut sed = command(Path::new("sed"));
    sed.env("LC_ALL", "C").arg("-i").arg(format!("s/{}/{other}/g", version.replace('.', "\\.")));
    assert!(sed.arg(&program).status().unwrap().success());
    program
}

/// Deletes what waits in a campaign's outbox, and not what marks its beginning.
async fn delete_outbox(redis: &RedisView, campaign: &str) {
    let outbox = key(campaign, "outbox");
    let entries: Vec<(String, Vec<Vec<u8>>)> = redis.query(&["XRANGE", &outbox, "1", "+"]).await;
    assert!(!entries.is_empty(), "nothing waits");
    for (id, _) in entries {
        redis.query::<u64>(&["XDEL", &outbox, &id]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_core_with_a_database_of_its_own() {
    only_on!(OWN, "it stops servers of its own");
    let row = Row::begin("alarms: Redis, SQL, the outbox, webhooks, the core itself");
    let _turn = undisturbed().await;
    let postgres = match Postgres::start().await {
        Ok(postgres) => postgres,
        Err(why) => return row.skip(&why),
    };
    let nowhere = free_address();
    let options = CoreOptions::default()
        .with("CLAIMGATE_DATABASE_URL", postgres.database("claimgate").await)
        .with("CLAIMGATE_OUTBOX_MAX", OUTBOX_MAX.to_string())
        .with("CLAIMGATE_WEBHOOK_HOSTS", format!("http://{nowhere}"))
        .with("CLAIMGATE_WEBHOOK_RETRY_S", "1");
    let mut core = options.start().await;
    let watch = match Watch::on(&core).await {
        Ok(watch) => watch,
        Err(why) => return row.skip(&why),
    };
    for campaign in ["demo", "full", "damaged", "lost"] {
        core.create(campaign, json!({"total": 1000})).await;
    }
    assert_eq!(watch.firing().await, [""; 0], "nothing is wrong yet");

    row.fault();
    let other = tempfile::tempdir().unwrap();
    let other = CoreOptions::default().program(another_version(other.path())).start().await;
    watch_over(watch.directory.path(), &[&core, &other]);
    watch.fires("ClaimgateVersionsDiffer").await;
    watch_over(watch.directory.path(), &[&core]);
    watch.is_silent("ClaimgateVersionsDiffer").await;
    drop(other);

    let body = json!({"url": format!("http://{nowhere}/")});
    core.admin(Method::POST, "/admin/v1/webhooks", &body).await.expect(201);
    for user in ["a", "b", "c", "d", "e"] {
        core.claim("demo", user, "k").await.expect(201);
    }
    watch.fires("ClaimgateWebhookEventsParked").await;
    watch.fires("ClaimgateWebhookDisabled").await;

    row.fault();
    let redis = core.redis().await;
    redis.query::<String>(&["XADD", &key("demo", "outbox"), "*", "head", "none"]).await;
    core.claim("demo", "f", "k").await.expect(201);
    watch.fires("ClaimgateDeadLetters").await;

    for _ in 0..2 {
        row.fault();
        let before = core.redis_pid().await;
        signal_pid(before, Signal::KILL);
        eventually(SOON, || async {
            let now = core.redis().await.try_query::<String>(&["PING"]).await;
            holds(now.is_ok() && core.redis_pid().await != before, || format!("{now:?}"))
        })
        .await;
    }
    watch.fires("ClaimgateRedisRestarts").await;

    row.fault();
    let server = core.redis_pid().await;
    signal_pid(server, Signal::STOP);
    watch.fires("ClaimgateRedisDown").await;
    signal_pid(server, Signal::CONT);
    watch.is_silent("ClaimgateRedisDown").await;

    row.fault();
    decides_slowly(&core, server).await;
    watch.fires("ClaimgateSlowDecisions").await;

    without_sql(&row, &postgres, &core, &watch).await;

    row.fault();
    core.kill();
    watch.fires("ClaimgateCoreDown").await;
    row.passed(25, "each fired, and those whose fault went away fell silent");
}

/// Has a claim that is decided, and slowly: `server`, core's Redis, is silent for a while.
async fn decides_slowly(core: &Core, server: u32) {
    eventually(SOON, || async {
        let prompt = core.claim("demo", "prompt", "k").await;
        holds(prompt.status < 300, || prompt.text())?;
        signal_pid(server, Signal::STOP);
        let goes_on = async {
            sleep(SLOW).await;
            signal_pid(server, Signal::CONT);
        };
        let (slow, ()) = tokio::join!(core.claim("demo", "slow", "k"), goes_on);
        // On a busy machine it may be too late for an answer.
        holds(slow.status < 300, || slow.text())
    })
    .await;
}

/// What goes wrong while SQL is away, and what is found when it is back.
async fn without_sql(row: &Row, postgres: &Postgres, core: &Core, watch: &Watch) {
    let redis = core.redis().await;
    for user in ["a", "b"] {
        core.claim("lost", user, "k").await.expect(201);
    }
    let sql = postgres.pool("claimgate");
    eventually(SOON, || async {
        let rows = sqlx::query("DELETE FROM claims WHERE campaign_id = 'lost'").execute(&sql).await.unwrap();
        holds(rows.rows_affected() > 0, || "not relayed yet".to_owned())
    })
    .await;
    row.fault();
    postgres.freeze();
    core.claim("demo", "g", "k").await.expect(201);
    watch.fires("ClaimgateSqlDown").await;
    watch.fires("ClaimgateOutboxLags").await;

    row.fault();
    for user in 0..OUTBOX_MAX {
        core.claim("full", &format!("u{user}"), "k").await.expect(201);
    }
    core.once().claim("full", "late", "k").await.refused(503, "overloaded");
    watch.fires("ClaimgateOverloaded").await;

    row.fault();
    delete_outbox(&redis, "demo").await;
    watch.fires("ClaimgateDeletedEvents").await;

    // It cannot be loaded without SQL; who tries has its lease, until that is taken away.
    row.fault();
    redis.query::<u64>(&["DEL", &key("damaged", "users")]).await;
    core.once().claim("damaged", "a", "k").await.refused(503, "campaign_not_ready");
    watch.fires("ClaimgateCampaignsNotReady").await;
    eventually(3 * SOON, || async {
        redis.query::<u64>(&["DEL", "cg:lease:{damaged}"]).await;
        let firing = watch.firing().await;
        holds(firing.iter().any(|name| name == "ClaimgateLeasesLost"), || format!("{firing:?}"))
    })
    .await;

    postgres.thaw();
    watch.is_silent("ClaimgateSqlDown").await;
    watch.is_silent("ClaimgateOutboxLags").await;
    watch.fires("ClaimgateLostEvents").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_replicas_that_are_missing_and_memory_that_is_full() {
    only_on!(OWN, "it brings its own servers");
    let row = Row::begin("alarms: replicas, memory, and a server that may not be believed");
    let _turn = undisturbed().await;
    let set = SentinelSet::start(Kind::asked()).await;
    let core = waiting_for_one(set.url()).start().await;
    has_members(&core, 2).await;
    let watch = match Watch::on(&core).await {
        Ok(watch) => watch,
        Err(why) => return row.skip(&why),
    };
    core.create("demo", json!({"total": 1000})).await;
    assert_eq!(watch.firing().await, [""; 0], "nothing is wrong yet");
    row.fault();
    for replica in [1, 2] {
        signal_pid(set.servers[replica].pid(), Signal::STOP);
    }
    // What they do not get is not acknowledged.
    core.once().claim("demo", "a", "k").await.expect(503);
    watch.fires("ClaimgateReplicasMissing").await;
    watch.fires("ClaimgateBarrierStuck").await;
    for replica in [1, 2] {
        signal_pid(set.servers[replica].pid(), Signal::CONT);
    }
    watch.is_silent("ClaimgateReplicasMissing").await;
    watch.is_silent("ClaimgateBarrierStuck").await;

    row.fault();
    let primary = set.view(0).await;
    let info: String = primary.query(&["INFO", "memory"]).await;
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
    let max = (used.parse::<u64>().unwrap() * 21 / 20).to_string();
    primary.query::<String>(&["CONFIG", "SET", "maxmemory", &max]).await;
    watch.fires("ClaimgateMemoryLow").await;

    row.fault();
    primary.query::<String>(&["CONFIG", "SET", "maxmemory", "1mb"]).await;
    eventually(SOON, || async {
        let reply = core.once().claim("demo", "b", "k").await;
        holds(reply.status == 503, || reply.text())
    })
    .await;
    watch.fires("ClaimgateOutOfMemory").await;
    primary.query::<String>(&["CONFIG", "SET", "maxmemory", "0"]).await;

    // One that was left out of the set, since it stood still, is the only one left.
    row.kill();
    signal_pid(set.servers[2].pid(), Signal::STOP);
    has_members(&core, 1).await;
    for server in [0, 1] {
        signal_pid(set.servers[server].pid(), Signal::KILL);
    }
    signal_pid(set.servers[2].pid(), Signal::CONT);
    watch.fires("ClaimgatePrimaryRefused").await;
    row.passed(5, "all fired, and the first two fell silent");
}

#[test]
fn every_alarm_is_fired_here() {
    let alarms = RULES.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let left: Vec<_> =
        alarms.filter(|alarm| !include_str!("alarms.rs").contains(&format!("\"{alarm}\""))).collect();
    assert_eq!(left, [""; 0], "no fault fires them");
}
