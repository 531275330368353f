//! Checks Redis: that it runs scripts and accepts writes, that acknowledged writes survive, and that its clock agrees.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value};

use super::report::{Finding, Report, Severity};
use super::setup::{Redis, WAIT};
use super::{clocks, system};
use crate::clock;
use crate::redis_address::RedisAddress;
use crate::store::redis::nodes::rewrite_failed;
use crate::store::redis::scripts::{is_denied, script_commands};
use crate::store::redis::topology::connections::primaries;
use crate::store::redis::topology::primary::{NoPrimary, Primary};
use crate::store::redis::topology::sentinel::Sentinels;

/// Time limit of one answer.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);
/// A replica that has been silent for longer than this has fallen behind.
const LAG_S_MAX: u64 = 10;

/// Error codes of a Redis that accepts no writes at present.
const NO_WRITES: [&str; 4] = ["OOM", "NOREPLICAS", "MISCONF", "READONLY"];

/// Settings that the guarantees need: the required value, and the consequence of any other.
const SETTINGS: [(&str, &str, &str, &str); 5] = [
    ("redis.appendonly", "appendonly", "yes", "a restart of Redis loses every claim that is not in SQL yet"),
    (
        "redis.appendfsync",
        "appendfsync",
        "always",
        "a power failure loses claims that were acknowledged in the last second",
    ),
    (
        "redis.no_appendfsync_on_rewrite",
        "no-appendfsync-on-rewrite",
        "no",
        "a power failure may lose claims that were acknowledged while Redis rewrites its file",
    ),
    (
        "redis.aof_load_truncated",
        "aof-load-truncated",
        "no",
        "a Redis that is killed in the middle of a write may later load half of a script's writes (repair its file \
         with redis-check-aof --fix instead)",
    ),
    (
        "redis.maxmemory_policy",
        "maxmemory-policy",
        "noeviction",
        "Redis may drop counters and claims when memory runs out",
    ),
];

/// Settings of cluster nodes that improve availability.
const CLUSTER_SETTINGS: [(&str, &str, &str, &str); 2] = [
    (
        "redis.cluster_coverage",
        "cluster-require-full-coverage",
        "no",
        "while the slots of one node are unavailable, claims on all campaigns get 503",
    ),
    (
        "redis.cluster_migration",
        "cluster-allow-replica-migration",
        "no",
        "a replica may move to another primary and leave its own with the only copy",
    ),
];

pub(super) async fn examine(redis: &Redis, report: &mut Report) {
    let (address, given) = match redis {
        Redis::Own { address, .. } => (address.as_ref(), false),
        Redis::Given { address } => (Some(address), true),
    };
    if let Some(RedisAddress::Sentinel(sentinels)) = address {
        report.findings.extend(silent_sentinels(&Sentinels::new(sentinels.clone())).await);
    }
    let checked = match address {
        Some(address) => tokio::time::timeout(WAIT, examine_primaries(address, given)).await,
        None => Ok(Ok(Vec::new())),
    };
    let part = if given {
        "the Redis of CLAIMGATE_REDIS_URL: settings, clock, role, replicas, memory"
    } else {
        "core's own Redis: settings, clock"
    };
    let why = match checked {
        Ok(Ok(_)) if address.is_none() => "its socket does not exist".to_owned(),
        Ok(Ok(findings)) => return report.add(part, findings),
        Ok(Err(error)) => match error.remedy() {
            Some(remedy) => {
                return report.findings.push(Finding::breaks("redis.role", error.to_string(), remedy));
            }
            None => error.to_string(),
        },
        Err(_) => format!("no answer within {} s", WAIT.as_secs()),
    };
    match redis {
        Redis::Own { .. } => report.findings.push(Finding::unknown(
            "redis.running",
            format!("core's own Redis was not checked: no core is running on this data directory ({why})"),
            "start core, or set CLAIMGATE_DATA_DIR to its directory",
        )),
        Redis::Given { .. } => {
            let problem = format!("the Redis of CLAIMGATE_REDIS_URL is unavailable: {why}");
            report.findings.push(Finding::breaks(
                "redis.reachable",
                problem,
                "start it, or correct the address",
            ));
        }
    }
}

/// Finds sentinels that could not help in a failover.
async fn silent_sentinels(sentinels: &Sentinels) -> Vec<Finding> {
    let silent = sentinels.examine().await.into_iter();
    let finding = |why| Finding::warning("redis.sentinel", why, "start it, or correct CLAIMGATE_REDIS_URL");
    silent.map(finding).collect()
}

/// Checks the single Redis server, or each primary of a cluster. A cluster primary's findings begin with its name.
async fn examine_primaries(address: &RedisAddress, given: bool) -> Result<Vec<Finding>, NoPrimary> {
    let mut found = Vec::new();
    for (name, primary) in primaries(address, RESPONSE_TIMEOUT).await? {
        if name.is_empty() {
            found.extend(examine_primary(primary?, given).await?);
            continue;
        }
        let examined = match primary {
            Ok(primary) => examine_node(primary, given).await.map_err(NoPrimary::from),
            Err(error) => Err(error),
        };
        let of_node = examined.unwrap_or_else(|error| {
            vec![Finding::breaks(
                "redis.reachable",
                format!("this primary is unavailable: {error}"),
                "start it, or wait until its replica is promoted",
            )]
        });
        found.extend(of_node.into_iter().map(|finding| finding.of_server(&name)));
    }
    Ok(found)
}

async fn examine_node(mut primary: Primary, given: bool) -> Result<Vec<Finding>, RedisError> {
    let mut found = settings(&mut primary.connection, &CLUSTER_SETTINGS, Severity::Warning).await?;
    found.extend(examine_primary(primary, given).await?);
    Ok(found)
}

async fn examine_primary(primary: Primary, given: bool) -> Result<Vec<Finding>, RedisError> {
    let mut connection = primary.connection;
    let mut found = settings(&mut connection, &SETTINGS, Severity::Breaks).await?;
    found.extend(writes(&mut connection).await?);
    found.extend(time(&mut connection).await?);
    let replication = info(&mut connection, "replication").await?;
    if replication.is_none() {
        found.push(Finding::breaks(
            "redis.info",
            "INFO is not allowed: core cannot detect a replica's promotion, and limits may be exceeded after it",
            "allow the user of CLAIMGATE_REDIS_URL the commands INFO and CONFIG GET",
        ));
    }
    if info(&mut connection, "persistence").await?.is_some_and(|info| rewrite_failed(&info)) {
        found.push(Finding::warning(
            "redis.rewrite",
            "Redis could not rewrite its append-only file at the last attempt: the file grows until the disk is full, and \
             then all claims get 503",
            "fix the cause shown in Redis' log: memory for a fork, disk space, inodes",
        ));
    }
    // Core's own Redis has no replicas, and its memory limit is checked from the configuration.
    if given {
        found.extend(replicas(&replication.unwrap_or_default()));
        let memory = info(&mut connection, "memory").await?.unwrap_or_default();
        let total = number(&memory, "total_system_memory:");
        if let Some((limit, total)) = number(&memory, "maxmemory:").zip(total) {
            found.extend(system::memory("redis.maxmemory", limit, total, "of its machine"));
        }
    }
    Ok(found)
}

/// Finds settings that do not have the required value.
async fn settings(
    connection: &mut MultiplexedConnection,
    settings: &[(&'static str, &str, &str, &str)],
    severity: Severity,
) -> Result<Vec<Finding>, RedisError> {
    let mut found = Vec::new();
    for (check, setting, wanted, otherwise) in settings.iter().copied() {
        let reply = redis::cmd("CONFIG").arg("GET").arg(setting).query_async(connection).await;
        let value: Option<Vec<(String, String)>> = none_if_rejected(reply)?;
        let value =
            value.map(|pairs| pairs.into_iter().next().map_or("unknown".to_owned(), |(_, value)| value));
        match value {
            Some(value) if value == wanted => {}
            Some(value) => {
                let problem = format!("Redis' {setting} is '{value}', not '{wanted}': {otherwise}");
                let remedy =
                    format!("run CONFIG SET {setting} {wanted}, and set it in Redis' configuration file");
                found.push(Finding { severity, check, problem, remedy });
            }
            None => {
                let problem = format!(
                    "Redis' {setting} is unknown, because CONFIG GET is not allowed: if it is not '{wanted}', {otherwise}"
                );
                found.push(Finding::warning(
                    check,
                    problem,
                    "allow CONFIG GET, or check the setting yourself",
                ));
            }
        }
    }
    Ok(found)
}

/// Checks that the server runs core's scripts and their commands, and accepts writes, without one: a script that may
/// write is rejected for the same reasons.
async fn writes(connection: &mut MultiplexedConnection) -> Result<Option<Finding>, RedisError> {
    for command in script_commands() {
        let reply = command.query_async::<Value>(connection).await;
        if let Some(error) = reply.err().filter(is_denied) {
            return Ok(Some(Finding::breaks(
                "redis.scripts",
                format!("Redis does not run core's scripts, so all claims get 503: {error}"),
                "use Redis 7.0 or later, and allow core's user the commands that docs/deployment.md names",
            )));
        }
    }
    let script = redis::cmd("EVAL").arg("#!lua\nreturn 0").arg(0).query_async::<i64>(connection).await;
    match script {
        Err(error) if error.code().is_some_and(|code| NO_WRITES.contains(&code)) => {
            Ok(Some(Finding::breaks(
                "redis.writes",
                format!("Redis accepts no writes, so all claims get 503: {error}"),
                "fix the cause shown in Redis' error: memory, replicas, or its disk",
            )))
        }
        reply => none_if_rejected(reply).map(|_| None),
    }
}

async fn time(connection: &mut MultiplexedConnection) -> Result<Option<Finding>, RedisError> {
    let before_ms = clock::now().as_ms();
    let (seconds, micros): (i64, i64) = redis::cmd("TIME").query_async(connection).await?;
    let asked_ms = (before_ms, clock::now().as_ms());
    Ok(clocks::compare("redis.clock", "Redis'", seconds * 1000 + micros / 1000, asked_ms))
}

/// Reads a section of INFO; `None` if the command is not allowed.
async fn info(connection: &mut MultiplexedConnection, section: &str) -> Result<Option<String>, RedisError> {
    none_if_rejected(redis::cmd("INFO").arg(section).query_async(connection).await)
}

/// Returns `None` if the server rejected the command.
fn none_if_rejected<T>(answer: Result<T, RedisError>) -> Result<Option<T>, RedisError> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.code().is_some() => Ok(None),
        Err(error) => Err(error),
    }
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

fn number(info: &str, name: &str) -> Option<u64> {
    field(info, name)?.parse().ok()
}

/// Checks the primary's replicas as listed by INFO.
fn replicas(info: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    if number(info, "connected_slaves:") == Some(0) {
        let problem =
            "this Redis has no replica: its disk has the only copy of claims that are not in SQL yet";
        found.push(Finding::warning(
            "redis.replicas",
            problem,
            "add a replica, or use storage that survives a disk failure",
        ));
    }
    for line in info.lines().filter(|line| line.starts_with("slave") && line.contains("state=")) {
        let part = |name: &str| line.trim().split([',', ':']).find_map(|part| part.strip_prefix(name));
        let lag_s = part("lag=").and_then(|lag| lag.parse::<u64>().ok()).unwrap_or(0);
        if part("state=") != Some("online") || lag_s > LAG_S_MAX {
            let who = format!("{}:{}", part("ip=").unwrap_or("?"), part("port=").unwrap_or("?"));
            let problem = format!("the replica {who} has fallen behind (last contact {lag_s} s ago)");
            found.push(Finding::warning("redis.replicas", problem, "check that replica's log"));
        }
    }
    found
}
