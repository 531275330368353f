//! Redis: whether what it has acknowledged survives, and whose clock it has.

use std::time::Duration;

use redis::RedisError;
use redis::aio::MultiplexedConnection;

use super::report::{Finding, Report, Severity};
use super::setup::{Redis, WAIT};
use super::{clocks, system};
use crate::clock;
use crate::redis_address::RedisAddress;
use crate::store::redis::connections::primaries;
use crate::store::redis::primary::{NoPrimary, Primary};
use crate::store::redis::sentinel::Sentinels;

/// The longest one answer is waited for.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);
/// A replica that has not been heard of for longer than this does not follow.
const LAG_S_MAX: u64 = 10;

/// Settings that the guarantees rest on: what they must be, and what does not hold otherwise.
const SETTINGS: [(&str, &str, &str, &str); 5] = [
    (
        "redis.appendonly",
        "appendonly",
        "yes",
        "a restart of Redis loses every claim that is not relayed to SQL",
    ),
    (
        "redis.appendfsync",
        "appendfsync",
        "always",
        "a power cut loses claims that were acknowledged in the second before it",
    ),
    (
        "redis.no_appendfsync_on_rewrite",
        "no-appendfsync-on-rewrite",
        "no",
        "claims acknowledged during a rewrite of the file may be lost by a power cut",
    ),
    (
        "redis.aof_load_truncated",
        "aof-load-truncated",
        "no",
        "a Redis killed in the middle of a write may later bring back half of a script's writes (cut its file with \
         redis-check-aof --fix instead)",
    ),
    (
        "redis.maxmemory_policy",
        "maxmemory-policy",
        "noeviction",
        "Redis may drop counters and claims when memory runs out",
    ),
];

/// Settings of a cluster's nodes without which less of it stays available than could.
const CLUSTER_SETTINGS: [(&str, &str, &str, &str); 2] = [
    (
        "redis.cluster_coverage",
        "cluster-require-full-coverage",
        "no",
        "while the slots of one node are not served, the claims of all campaigns get 503",
    ),
    (
        "redis.cluster_migration",
        "cluster-allow-replica-migration",
        "no",
        "a replica may leave its primary, which then has the only copy",
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
    let asked = match address {
        Some(address) => tokio::time::timeout(WAIT, ask(address, given)).await,
        None => Ok(Ok(Vec::new())),
    };
    let why = match asked {
        Ok(Ok(findings)) => return report.findings.extend(findings),
        Ok(Err(error)) => match error.remedy() {
            Some(remedy) => {
                return report.findings.push(Finding::breaks("redis.role", error.to_string(), remedy));
            }
            None => error.to_string(),
        },
        Err(_) => format!("no answer within {} s", WAIT.as_secs()),
    };
    match redis {
        Redis::Own { .. } => report.notes.push(format!(
            "core's own Redis was not looked at: no core is running on this data directory ({why})"
        )),
        Redis::Given { .. } => {
            let problem = format!("the Redis of CLAIMGATE_REDIS_URL does not answer: {why}");
            report.findings.push(Finding::breaks(
                "redis.reachable",
                problem,
                "start it, or correct the address",
            ));
        }
    }
}

/// The sentinels that would be no help in a failover.
async fn silent_sentinels(sentinels: &Sentinels) -> Vec<Finding> {
    let silent = sentinels.examine().await.into_iter();
    let finding = |why| Finding::warning("redis.sentinel", why, "start it, or correct CLAIMGATE_REDIS_URL");
    silent.map(finding).collect()
}

/// What is found of the one Redis there is, or of each primary of a cluster, with its name before.
async fn ask(address: &RedisAddress, given: bool) -> Result<Vec<Finding>, NoPrimary> {
    let mut found = Vec::new();
    for (name, primary) in primaries(address, RESPONSE_TIMEOUT).await? {
        if name.is_empty() {
            found.extend(look_at(primary?, given).await?);
            continue;
        }
        let looked = match primary {
            Ok(primary) => look_at_node(primary, given).await.map_err(NoPrimary::from),
            Err(error) => Err(error),
        };
        let of_node = looked.unwrap_or_else(|error| {
            vec![Finding::breaks(
                "redis.reachable",
                format!("this primary does not answer: {error}"),
                "start it, or wait for its replica's promotion",
            )]
        });
        found.extend(of_node.into_iter().map(|finding| finding.of(&name)));
    }
    Ok(found)
}

async fn look_at_node(mut primary: Primary, given: bool) -> Result<Vec<Finding>, RedisError> {
    let mut found = settings(&mut primary.connection, &CLUSTER_SETTINGS, Severity::Warning).await?;
    found.extend(look_at(primary, given).await?);
    Ok(found)
}

async fn look_at(primary: Primary, given: bool) -> Result<Vec<Finding>, RedisError> {
    let mut connection = primary.connection;
    let mut found = settings(&mut connection, &SETTINGS, Severity::Breaks).await?;
    found.extend(time(&mut connection).await?);
    let replication = info(&mut connection, "replication").await?;
    if replication.is_none() {
        found.push(Finding::breaks(
            "redis.info",
            "INFO is not allowed: a replica's promotion is not noticed, and limits may be exceeded after it",
            "allow the user of CLAIMGATE_REDIS_URL the commands INFO and CONFIG GET",
        ));
    }
    // Core's own has no replicas, and its memory is looked at as it is configured.
    if given {
        found.extend(replicas(&replication.unwrap_or_default()));
        let memory = info(&mut connection, "memory").await?.unwrap_or_default();
        if let Some(limit) = number(&memory, "maxmemory:") {
            found.extend(system::memory("redis.maxmemory", limit, number(&memory, "total_system_memory:")));
        }
    }
    Ok(found)
}

/// The settings that are not as they must be.
async fn settings(
    connection: &mut MultiplexedConnection,
    settings: &[(&'static str, &str, &str, &str)],
    severity: Severity,
) -> Result<Vec<Finding>, RedisError> {
    let mut found = Vec::new();
    for (check, setting, wanted, otherwise) in settings.iter().copied() {
        let asked = redis::cmd("CONFIG").arg("GET").arg(setting).query_async(connection).await;
        let value: Option<Vec<(String, String)>> = allowed(asked)?;
        let value =
            value.map(|pairs| pairs.into_iter().next().map_or("unknown".to_owned(), |(_, value)| value));
        match value {
            Some(value) if value == wanted => {}
            Some(value) => {
                let problem = format!("Redis' {setting} is '{value}', not '{wanted}': {otherwise}");
                let remedy = format!("CONFIG SET {setting} {wanted}, and in its file");
                found.push(Finding { severity, check, problem, remedy });
            }
            None => {
                let problem = format!(
                    "Redis' {setting} cannot be told, CONFIG GET is not allowed: if not '{wanted}', {otherwise}"
                );
                found.push(Finding::warning(check, problem, "allow CONFIG GET, or look yourself"));
            }
        }
    }
    Ok(found)
}

async fn time(connection: &mut MultiplexedConnection) -> Result<Option<Finding>, RedisError> {
    let before_ms = clock::now().as_ms();
    let (seconds, micros): (i64, i64) = redis::cmd("TIME").query_async(connection).await?;
    let asked_ms = (before_ms, clock::now().as_ms());
    Ok(clocks::compare("redis.clock", "Redis'", seconds * 1000 + micros / 1000, asked_ms))
}

/// A section of INFO; `None` when it is not allowed.
async fn info(connection: &mut MultiplexedConnection, section: &str) -> Result<Option<String>, RedisError> {
    allowed(redis::cmd("INFO").arg(section).query_async(connection).await)
}

/// `None` when the server refuses to say.
fn allowed<T>(answer: Result<T, RedisError>) -> Result<Option<T>, RedisError> {
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

/// What INFO says of who follows the primary.
fn replicas(info: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    if number(info, "connected_slaves:") == Some(0) {
        let problem =
            "no replica follows this Redis: its disk has the only copy of what is not relayed to SQL yet";
        found.push(Finding::warning(
            "redis.replicas",
            problem,
            "add a replica, or keep the disk on what survives it",
        ));
    }
    for line in info.lines().filter(|line| line.starts_with("slave") && line.contains("state=")) {
        let part = |name: &str| line.trim().split([',', ':']).find_map(|part| part.strip_prefix(name));
        let lag_s = part("lag=").and_then(|lag| lag.parse::<u64>().ok()).unwrap_or(0);
        if part("state=") != Some("online") || lag_s > LAG_S_MAX {
            let who = format!("{}:{}", part("ip=").unwrap_or("?"), part("port=").unwrap_or("?"));
            let problem = format!("the replica {who} does not follow (last heard of {lag_s} s ago)");
            found.push(Finding::warning("redis.replicas", problem, "look at that replica's log"));
        }
    }
    found
}
