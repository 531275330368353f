//! Every alarm fires: a real Prometheus server with the shipped rules watches a real core during a real
//! fault. Only the waiting times of the rules are shortened.

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
use support::signing::Signed;
use support::topology::OWN;
use support::wait::{holds, refused_in_time, until_status};
use support::{Core, CoreOptions, RedisView, SOON, binary, eventually, only_on, undisturbed};
use tempfile::TempDir;
use tokio::time::sleep;

use crate::replicas::waiting_for_one;
use crate::tally::Row;

/// Maximum number of events pending for SQL.
const OUTBOX_MAX: usize = 10;
/// Duration of Redis' stop: a decision is slow, but still made.
const SLOW: Duration = Duration::from_millis(700);
const RULES: &str = include_str!("../../ops/prometheus/claimgate.rules.yml");

/// A Prometheus that scrapes the cores every half second.
struct Prometheus {
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

/// Sets the cores that the Prometheus in `directory` scrapes.
fn set_targets(directory: &Path, cores: &[&Core]) {
    let targets: Vec<_> = cores.iter().map(|core| core.admin_listen().to_string()).collect();
    // Rename the file into place, because Prometheus must not read half of it.
    let (new, file) = (directory.join("cores.json.new"), directory.join("cores.json"));
    fs::write(&new, json!([{"targets": targets}]).to_string()).unwrap();
    fs::rename(new, file).unwrap();
}

/// Returns the rules with shortened waiting times.
fn shortened_rules() -> String {
    let lines = RULES
        .lines()
        .map(|line| if line.trim_start().starts_with("for: ") { "        for: 1s" } else { line });
    let text = lines.collect::<Vec<_>>().join("\n");
    // A minute is too long for a test; promtool tests the real threshold.
    text.replace("claimgate_outbox_lag_seconds > 60", "claimgate_outbox_lag_seconds > 2")
}

impl Prometheus {
    async fn on(core: &Core) -> Result<Self, String> {
        let prometheus = program("prometheus").ok_or("no prometheus")?;
        let directory = tempfile::Builder::new().prefix("cgp-").tempdir().unwrap();
        let file = |name: &str| directory.path().join(name);
        fs::write(file("rules.yml"), shortened_rules()).unwrap();
        fs::write(file("prometheus.yml"), CONFIG).unwrap();
        set_targets(directory.path(), &[core]);
        let process = start(&prometheus, directory.path());
        let (process, address) = process;
        let prometheus_server = Self {
            url: format!("http://{address}/api/v1/alerts"),
            client: client(),
            _process: process,
            directory,
        };
        // Wait for the first scrape, so that a counter's increase is visible.
        eventually(SOON, || async {
            let up = format!("http://{address}/api/v1/query?query=claimgate_build_info");
            let reply = prometheus_server.client.try_get(&up, "").await.map_err(|error| error.to_string())?;
            let seen = reply.status == 200
                && reply.json()["data"]["result"].as_array().is_some_and(|result| !result.is_empty());
            holds(seen, || reply.text())
        })
        .await;
        Ok(prometheus_server)
    }

    /// Returns the names of the firing alarms.
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

    async fn falls_silent(&self, alarm: &str) {
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

/// Creates a copy of the program that reports a different version and differs in nothing else.
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

/// Deletes the pending entries of a campaign's outbox, but not its epoch marker.
async fn delete_outbox(redis: &RedisView, campaign: &str) {
    let outbox = key(campaign, "outbox");
    let entries: Vec<(String, Vec<Vec<u8>>)> = redis.query(&["XRANGE", &outbox, "1", "+"]).await;
    assert!(!entries.is_empty(), "no entry is pending");
    for (id, _) in entries {
        redis.query::<u64>(&["XDEL", &outbox, &id]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alarms_fire_for_redis_sql_outbox_webhooks_and_core() {
    only_on!(OWN, "it stops its own servers");
    let row = Row::begin("alarms: Redis, SQL, outbox, webhooks, core");
    let _turn = undisturbed().await;
    let Some(postgres) = row.needs(Postgres::start().await) else { return };
    let nowhere = free_address();
    let options = CoreOptions::default()
        .with("CLAIMGATE_DATABASE_URL", postgres.database("claimgate").await)
        .with("CLAIMGATE_OUTBOX_MAX", OUTBOX_MAX.to_string())
        .with("CLAIMGATE_WEBHOOK_HOSTS", format!("http://{nowhere}"))
        .with("CLAIMGATE_WEBHOOK_RETRY_S", "1");
    let mut core = options.start().await;
    let Some(prometheus_server) = row.needs(Prometheus::on(&core).await) else { return };
    for campaign in ["demo", "full", "damaged", "lost"] {
        core.create(campaign, json!({"total": 1000})).await;
    }
    assert_eq!(prometheus_server.firing().await, [""; 0], "no alarm may fire yet");

    row.fault();
    let other = tempfile::tempdir().unwrap();
    let other = CoreOptions::default().program(another_version(other.path())).start().await;
    set_targets(prometheus_server.directory.path(), &[&core, &other]);
    prometheus_server.fires("ClaimgateVersionsDiffer").await;
    set_targets(prometheus_server.directory.path(), &[&core]);
    prometheus_server.falls_silent("ClaimgateVersionsDiffer").await;
    drop(other);

    let body = json!({"url": format!("http://{nowhere}/")});
    core.admin(Method::POST, "/admin/v1/webhooks", &body).await.expect(201);
    for user in ["a", "b", "c", "d", "e"] {
        core.claim("demo", user, "k").await.expect(201);
    }
    prometheus_server.fires("ClaimgateWebhookEventsParked").await;
    prometheus_server.fires("ClaimgateWebhookDisabled").await;
    is_called_with_other_user_ids(&core, &prometheus_server).await;
    runs_out_of_codes(&core, &prometheus_server).await;

    row.fault();
    let redis = core.redis().await;
    redis.query::<String>(&["XADD", &key("demo", "outbox"), "*", "head", "none"]).await;
    core.claim("demo", "f", "k").await.expect(201);
    prometheus_server.fires("ClaimgateDeadLetters").await;

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
    prometheus_server.fires("ClaimgateRedisRestarts").await;

    row.fault();
    let server = core.redis_pid().await;
    signal_pid(server, Signal::STOP);
    prometheus_server.fires("ClaimgateRedisDown").await;
    signal_pid(server, Signal::CONT);
    prometheus_server.falls_silent("ClaimgateRedisDown").await;

    row.fault();
    decides_slowly(&core, server).await;
    prometheus_server.fires("ClaimgateSlowDecisions").await;

    without_sql(&row, &postgres, &core, &prometheus_server).await;

    row.fault();
    core.kill();
    prometheus_server.fires("ClaimgateCoreDown").await;
    row.passed(27, "each fired, and fell silent once its fault ended");
}

/// Claims as an edge with other user ids than the database's.
async fn is_called_with_other_user_ids(core: &Core, prometheus_server: &Prometheus) {
    let signed = Signed::claim(core, "demo", &format!("AAAAAA_{}", "b".repeat(43)), "k");
    let signed = Signed { user_ids: "hmac:AAAAAA".to_owned(), ..signed };
    signed.send(core).await.refused(503, "user_ids_differ");
    prometheus_server.fires("ClaimgateUserIdsDiffer").await;
}

/// Grants a claim for which there is no code, then adds one.
async fn runs_out_of_codes(core: &Core, prometheus_server: &Prometheus) {
    core.run_out_of_codes("coded").await;
    prometheus_server.fires("ClaimgateCodesMissing").await;
    core.add_codes("coded", "B\n").await.expect(200);
    prometheus_server.falls_silent("ClaimgateCodesMissing").await;
}

/// Causes a slow decision by stopping core's Redis, the process `server`, for a while.
async fn decides_slowly(core: &Core, server: u32) {
    eventually(SOON, || async {
        let prompt = core.claim("demo", "prompt", "k").await;
        holds(prompt.status < 300, || prompt.text())?;
        signal_pid(server, Signal::STOP);
        let resumes = async {
            sleep(SLOW).await;
            signal_pid(server, Signal::CONT);
        };
        let (slow, ()) = tokio::join!(core.claim("demo", "slow", "k"), resumes);
        // On a busy machine the response may be too late.
        holds(slow.status < 300, || slow.text())
    })
    .await;
}

/// Causes the faults that happen while SQL is down, and those found once SQL is back.
async fn without_sql(row: &Row, postgres: &Postgres, core: &Core, prometheus_server: &Prometheus) {
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
    prometheus_server.fires("ClaimgateSqlDown").await;
    prometheus_server.fires("ClaimgateOutboxLags").await;
    core.once().admin_get("/admin/v1/campaigns/demo/claims").await.refused(503, "unavailable");
    prometheus_server.fires("ClaimgateUnavailable").await;

    row.fault();
    for user in 0..OUTBOX_MAX {
        core.claim("full", &format!("u{user}"), "k").await.expect(201);
    }
    refused_in_time(503, "overloaded", async || core.once().claim("full", "late", "k").await).await;
    prometheus_server.fires("ClaimgateOverloaded").await;

    row.fault();
    delete_outbox(&redis, "demo").await;
    prometheus_server.fires("ClaimgateDeletedEvents").await;

    // The campaign cannot be loaded without SQL. The loading core holds its lease until the test deletes it.
    row.fault();
    redis.query::<u64>(&["DEL", &key("damaged", "users")]).await;
    let call = async || core.once().claim("damaged", "a", "k").await;
    refused_in_time(503, "campaign_not_ready", call).await;
    prometheus_server.fires("ClaimgateCampaignsNotReady").await;
    eventually(3 * SOON, || async {
        redis.query::<u64>(&["DEL", "cg:lease:{damaged}"]).await;
        let firing = prometheus_server.firing().await;
        holds(firing.iter().any(|name| name == "ClaimgateLeasesLost"), || format!("{firing:?}"))
    })
    .await;

    postgres.thaw();
    prometheus_server.falls_silent("ClaimgateSqlDown").await;
    prometheus_server.falls_silent("ClaimgateOutboxLags").await;
    prometheus_server.fires("ClaimgateLostEvents").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alarms_fire_for_missing_replicas_and_full_memory() {
    only_on!(OWN, "it starts its own servers");
    let row = Row::begin("alarms: replicas, memory, an untrusted server");
    let _turn = undisturbed().await;
    let set = SentinelSet::start(Kind::from_env()).await;
    let core = waiting_for_one(set.url()).start().await;
    has_members(&core, 2).await;
    let Some(prometheus_server) = row.needs(Prometheus::on(&core).await) else { return };
    core.create("demo", json!({"total": 1000})).await;
    assert_eq!(prometheus_server.firing().await, [""; 0], "no alarm may fire yet");
    row.fault();
    for replica in [1, 2] {
        signal_pid(set.servers[replica].pid(), Signal::STOP);
    }
    // Claims that the replicas do not get are not acknowledged.
    core.once().claim("demo", "a", "k").await.expect(503);
    prometheus_server.fires("ClaimgateReplicasMissing").await;
    prometheus_server.fires("ClaimgateBarrierStuck").await;
    for replica in [1, 2] {
        signal_pid(set.servers[replica].pid(), Signal::CONT);
    }
    prometheus_server.falls_silent("ClaimgateReplicasMissing").await;
    prometheus_server.falls_silent("ClaimgateBarrierStuck").await;

    row.fault();
    let primary = set.view(0).await;
    cannot_rewrite(&primary, &prometheus_server).await;

    row.fault();
    let info: String = primary.query(&["INFO", "memory"]).await;
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
    let max = (used.parse::<u64>().unwrap() * 21 / 20).to_string();
    primary.query::<String>(&["CONFIG", "SET", "maxmemory", &max]).await;
    prometheus_server.fires("ClaimgateMemoryLow").await;

    row.fault();
    primary.query::<String>(&["CONFIG", "SET", "maxmemory", "1mb"]).await;
    until_status(SOON, &[503], async || core.once().claim("demo", "b", "k").await).await;
    prometheus_server.fires("ClaimgateOutOfMemory").await;
    primary.query::<String>(&["CONFIG", "SET", "maxmemory", "0"]).await;

    // The only remaining server has left the set because it was stopped.
    row.kill();
    signal_pid(set.servers[2].pid(), Signal::STOP);
    has_members(&core, 1).await;
    for server in [0, 1] {
        signal_pid(set.servers[server].pid(), Signal::KILL);
    }
    signal_pid(set.servers[2].pid(), Signal::CONT);
    prometheus_server.fires("ClaimgatePrimaryRefused").await;
    row.passed(6, "all fired, and the first three fell silent again");
}

/// Makes a rewrite of the append-only file fail, and the next one succeed.
async fn cannot_rewrite(primary: &RedisView, prometheus_server: &Prometheus) {
    let blocked = primary.block_rewrites().await;
    primary.rewrite("err").await;
    prometheus_server.fires("ClaimgateRewriteFails").await;
    fs::remove_dir(blocked).unwrap();
    primary.rewrite("ok").await;
    prometheus_server.falls_silent("ClaimgateRewriteFails").await;
}

#[test]
fn every_alarm_has_a_test_that_fires_it() {
    let alarms = RULES.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let left: Vec<_> =
        alarms.filter(|alarm| !include_str!("alarms.rs").contains(&format!("\"{alarm}\""))).collect();
    assert_eq!(left, [""; 0], "alarms that no test fires");
}
