//! Checks that Redis and the database belong together.

use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands as _, AsyncIter};

use super::report::{Finding, Report};
use super::setup::{Database, Setup, WAIT};
use crate::config::sqlite_url_to_read;
use crate::redis_address::RedisAddress;
use crate::store::redis::scripts::keys;
use crate::store::redis::topology::connections::primaries;
use crate::store::sql::examined::{ExaminedDatabase, SetSize};

/// Maximum number of campaigns in Redis that are compared with the database.
const CAMPAIGNS_MAX: usize = 1000;
/// Maximum number of names listed in a finding.
const NAMES_MAX: usize = 5;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Runs the checks. If Redis or the database is unavailable, other checks report the failure.
pub(super) async fn examine(setup: &Setup, report: &mut Report) {
    let Some(redis) = setup.redis_address() else { return };
    let compared = tokio::time::timeout(WAIT, compare(redis, setup)).await;
    let Ok(Ok((redis_answers, findings))) = compared else { return };
    report.findings.extend(findings);
    if redis_answers {
        report.examined.push("whether Redis and the database belong together".to_owned());
    }
}

/// Compares Redis and the database; returns whether any Redis server answers, and the findings.
async fn compare(redis: &RedisAddress, setup: &Setup) -> Result<(bool, Vec<Finding>), Failure> {
    let sql = match &setup.database {
        Database::Sqlite(file) => sqlite_url_to_read(file),
        Database::Postgres(url) => url.clone(),
    };
    let servers = primaries(redis, WAIT).await?.into_iter();
    let mut servers: Vec<_> =
        servers.filter_map(|(_, server)| server.ok().map(|server| server.connection)).collect();
    let mut sql = ExaminedDatabase::connect(&sql).await?;
    let mut found = Vec::new();
    found.extend(served_with_another_redis(&mut servers, &mut sql).await?);
    found.extend(campaigns_of_another_database(&mut servers, &mut sql).await?);
    found.extend(missing_replicas(&mut sql).await?);
    sql.close().await?;
    Ok((!servers.is_empty(), found))
}

/// Finds primaries with fewer up-to-date replicas than required.
async fn missing_replicas(sql: &mut ExaminedDatabase) -> Result<Vec<Finding>, Failure> {
    let Some((replicas_min, sets)) = sql.replication().await? else { return Ok(vec![]) };
    let mut found = Vec::new();
    for SetSize { primary, members } in sets {
        if i64::try_from(members)? < replicas_min {
            found.push(Finding::breaks(
                "belonging.replicas",
                format!(
                    "{members} replicas of {primary} have every acknowledged claim, {replicas_min} are required: claims get 503"
                ),
                "bring its replicas back; `claimgate replication` shows them",
            ));
        }
    }
    Ok(found)
}

/// Detects that the database was last served with a different Redis: two cores do not share one Redis, or
/// Redis was replaced.
async fn served_with_another_redis(
    servers: &mut [MultiplexedConnection],
    sql: &mut ExaminedDatabase,
) -> Result<Option<Finding>, Failure> {
    let mut here: Option<Option<String>> = None;
    for redis in servers {
        // In a cluster only one node has the key.
        here = here.or(redis.get(keys::STORE).await.ok());
    }
    let Some(here) = here else { return Ok(None) };
    let there = sql.store_id().await?;
    Ok(there.filter(|there| here.as_ref() != Some(there)).map(|_| {
        Finding::breaks(
            "belonging.redis",
            "this database is served with another Redis, not with this one",
            "give every core the same CLAIMGATE_REDIS_URL; if the other Redis is permanently gone, start core: it takes over \
             once no core has served with the other Redis for 30 s, or immediately with --take-over",
        )
    }))
}

/// Finds campaigns in Redis that are not in the database, or whose id the database uses for another campaign.
async fn campaigns_of_another_database(
    servers: &mut [MultiplexedConnection],
    sql: &mut ExaminedDatabase,
) -> Result<Option<Finding>, Failure> {
    let mut others = Vec::new();
    for redis in servers {
        others.extend(foreign_campaigns(redis, sql).await?);
    }
    Ok((!others.is_empty()).then(|| {
        let first = others.iter().take(NAMES_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
        Finding::warning(
            "belonging.register",
            format!("campaigns in Redis that belong to another database: {} ({first})", others.len()),
            "use another Redis, or other ids: a new campaign with such an id is rejected (409 campaign_exists); \
             `claimgate drop-foreign ID --export FILE` removes a campaign that no core serves",
        )
    }))
}

/// Returns the foreign campaigns on one server.
async fn foreign_campaigns(
    redis: &mut MultiplexedConnection,
    sql: &mut ExaminedDatabase,
) -> Result<Vec<String>, Failure> {
    let mut names = Vec::new();
    let mut scan: AsyncIter<'_, String> = redis.scan_match("cg:{*}:campaign").await?;
    while let Some(key) = scan.next_item().await {
        names.extend(
            key?.strip_prefix("cg:{").and_then(|rest| rest.strip_suffix("}:campaign")).map(str::to_owned),
        );
        if names.len() >= CAMPAIGNS_MAX {
            break;
        }
    }
    drop(scan);
    let mut others = Vec::new();
    for name in names {
        let there: Option<String> = redis.hget(format!("cg:{{{name}}}:campaign"), "register_id").await?;
        let here = sql.register_id(&name).await?;
        if there.is_some() && here != there {
            others.push(name);
        }
    }
    Ok(others)
}
