//! Whether Redis and the database belong together.

use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands as _, AsyncIter};
use sqlx::{AnyConnection, Connection as _, Row as _};

use super::database;
use super::report::Finding;
use super::setup::{Database, Setup, WAIT};
use crate::store::redis::connections::primaries;
use crate::store::redis::keys;

/// Campaigns of Redis that are compared with the database.
const CAMPAIGNS_MAX: usize = 1000;
/// Names in a finding.
const NAMES_MAX: usize = 5;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Finds what does not belong together. That one of the two does not answer is found elsewhere.
pub(super) async fn examine(setup: &Setup) -> Vec<Finding> {
    let compared = tokio::time::timeout(WAIT, compare(setup)).await;
    compared.ok().and_then(Result::ok).unwrap_or_default()
}

async fn compare(setup: &Setup) -> Result<Vec<Finding>, Failure> {
    let Some(redis) = setup.redis_address() else { return Ok(Vec::new()) };
    let sql = match &setup.database {
        Database::Sqlite(file) => format!("sqlite://{}?mode=ro", file.display()),
        Database::Postgres(url) => url.clone(),
    };
    let servers = primaries(redis, WAIT).await?.into_iter();
    let mut servers: Vec<_> =
        servers.filter_map(|(_, server)| server.ok().map(|server| server.connection)).collect();
    let mut sql = database::connect(&sql).await?;
    let mut found = Vec::new();
    found.extend(served_by_another(&mut servers, &mut sql).await?);
    found.extend(of_another_register(&mut servers, &mut sql).await?);
    found.extend(lacking_replicas(&mut sql).await?);
    sql.close().await?;
    Ok(found)
}

/// Primaries of which too few replicas have what is acknowledged.
async fn lacking_replicas(sql: &mut AnyConnection) -> Result<Vec<Finding>, Failure> {
    let row = sqlx::query("SELECT replicas_min FROM replication").fetch_optional(&mut *sql).await?;
    let Some(replicas_min) = row.map(|row| row.try_get::<i64, _>(0)).transpose()? else { return Ok(vec![]) };
    let mut found = Vec::new();
    for row in sqlx::query("SELECT primary_at, members FROM replica_sets ORDER BY id").fetch_all(sql).await? {
        let (primary, members): (&str, &str) = (row.try_get(0)?, row.try_get(1)?);
        let members = members.split_whitespace().count();
        if i64::try_from(members)? < replicas_min {
            found.push(Finding::breaks(
                "belonging.replicas",
                format!("{members} replicas of {primary} have what is acknowledged, {replicas_min} must: claims get 503"),
                "bring its replicas back; `claimgate replication` shows them",
            ));
        }
    }
    Ok(found)
}

/// The database was last served with a Redis that is not this one: a second core without a shared Redis, or a replaced one.
async fn served_by_another(
    servers: &mut [MultiplexedConnection],
    sql: &mut AnyConnection,
) -> Result<Option<Finding>, Failure> {
    let mut here: Option<Option<String>> = None;
    for redis in servers {
        // Of a cluster one node has it.
        here = here.or(redis.get(keys::STORE).await.ok());
    }
    let Some(here) = here else { return Ok(None) };
    let row = sqlx::query("SELECT store_id FROM serving").fetch_optional(sql).await?;
    let there: Option<String> = row.map(|row| row.try_get(0)).transpose()?;
    Ok(there.filter(|there| here.as_ref() != Some(there)).map(|_| {
        Finding::breaks(
            "belonging.redis",
            "this database is served with another Redis than this one",
            "give every core the same CLAIMGATE_REDIS_URL; if the other Redis is gone for good, start core: it takes over \
             once no core has served with that one for 30 s, at once with --take-over",
        )
    }))
}

/// Campaigns in Redis that the database does not know, or knows as others of the same name.
async fn of_another_register(
    servers: &mut [MultiplexedConnection],
    sql: &mut AnyConnection,
) -> Result<Option<Finding>, Failure> {
    let mut others = Vec::new();
    for redis in servers {
        others.extend(others_of(redis, sql).await?);
    }
    Ok((!others.is_empty()).then(|| {
        let first = others.iter().take(NAMES_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
        Finding::warning(
            "belonging.register",
            format!("Redis holds {} campaigns of another register: {first}", others.len()),
            "use another Redis, or other names: a campaign of such a name is refused (409 campaign_exists); \
             `claimgate drop-foreign ID --export FILE` removes one that no core serves",
        )
    }))
}

/// Those of one server.
async fn others_of(
    redis: &mut MultiplexedConnection,
    sql: &mut AnyConnection,
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
        let row = sqlx::query("SELECT register_id FROM campaigns WHERE id = $1");
        let row = row.bind(name.as_str()).fetch_optional(&mut *sql).await?;
        let here: Option<String> = row.map(|row| row.try_get(0)).transpose()?;
        if there.is_some() && here != there {
            others.push(name);
        }
    }
    Ok(others)
}
