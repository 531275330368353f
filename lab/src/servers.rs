//! The Redis and PostgreSQL servers of a run, and their statistics.

use ::redis::FromRedisValue;
use anyhow::{Context as _, bail};
use sqlx::postgres::PgPool;
use support::postgres::Postgres;
use support::{RedisServer, RedisView};

use crate::addresses::Addresses;
use crate::app::App;

/// Maximum number of tries of a query.
const TRIES: u32 = 5;

/// Redis syncs every write before it replies. PostgreSQL does so by default.
const REDIS: &[(&str, &str)] = &[("appendfsync", "always"), ("auto-aof-rewrite-min-size", "256mb")];
/// PostgreSQL has timeouts too: a strategy that hangs must not block the run.
const POSTGRES: &[(&str, &str)] = &[
    ("max_connections", "300"),
    ("shared_buffers", "128MB"),
    ("fsync", "on"),
    ("synchronous_commit", "on"),
    ("lock_timeout", "10s"),
    ("statement_timeout", "20s"),
    ("idle_in_transaction_session_timeout", "20s"),
];

/// Description for the report.
pub const DURABILITY: &str = "Redis: appendonly yes, appendfsync always; PostgreSQL: fsync on, synchronous_commit on, read committed: \
                              no caller gets a grant that a crash could undo";

/// Both servers, shared by all strategies.
#[derive(Debug)]
pub struct Servers {
    /// Addresses of the servers.
    pub addresses: Addresses,
    redis: RedisView,
    sql: PgPool,
    postgres_version: String,
    _redis: RedisServer,
    _postgres: Postgres,
}

/// Statistics of Redis so far.
#[derive(Debug, Clone, Copy)]
pub struct RedisWork {
    /// CPU time in seconds.
    pub cpu_s: f64,
    /// Calls that the lab's own connections do not count: scripts and reads of the outbox.
    pub calls: u64,
}

impl Servers {
    /// Starts both on unix sockets in separate directories.
    pub async fn start() -> anyhow::Result<Self> {
        let postgres =
            Postgres::start_with(POSTGRES).await.map_err(|why| anyhow::anyhow!("PostgreSQL: {why}"))?;
        let redis = RedisServer::start_with(REDIS, &[]).await;
        let addresses = Addresses { redis: redis.url(), sql: postgres.database("lab").await };
        let app = App::start_all(&addresses, 1)?.remove(0);
        app.sql.create_tables().await?;
        app.stop().await;
        let sql = postgres.pool("lab");
        let postgres_version = sqlx::query_scalar("SHOW server_version").fetch_one(&sql).await?;
        let view = redis.view().await;
        Ok(Self { addresses, redis: view, sql, postgres_version, _redis: redis, _postgres: postgres })
    }

    /// Returns the versions of both servers.
    pub async fn versions(&self) -> anyhow::Result<(String, String)> {
        let info = self.info("server").await?;
        let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
        Ok((version.unwrap_or("unknown").trim().to_owned(), self.postgres_version.clone()))
    }

    /// Returns Redis' statistics so far.
    pub async fn redis_work(&self) -> anyhow::Result<RedisWork> {
        let cpu = self.info("cpu").await?;
        let cpu_s = field(&cpu, "used_cpu_user")? + field(&cpu, "used_cpu_sys")?;
        let stats = self.info("commandstats").await?;
        let calls = ["evalsha", "eval", "xreadgroup"].iter().map(|name| calls_of(&stats, name)).sum();
        Ok(RedisWork { cpu_s, calls })
    }

    /// Returns the numbers of connections to Redis and PostgreSQL, except this object's own.
    pub async fn connections(&self) -> anyhow::Result<(u64, u64)> {
        let list: String = self.query(&["CLIENT", "LIST"]).await?;
        let count = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = 'lab' \
                     AND pid <> pg_backend_pid() AND backend_type = 'client backend'";
        let sql: i64 = sqlx::query_scalar(count).fetch_one(&self.sql).await?;
        Ok((list.lines().count() as u64 - 1, sql.unsigned_abs()))
    }

    /// Returns whether the key exists.
    pub async fn has_key(&self, key: &str) -> anyhow::Result<bool> {
        self.query(&["EXISTS", key]).await
    }

    /// Queries Redis, and retries if it times out on a busy machine.
    async fn query<T: FromRedisValue>(&self, words: &[&str]) -> anyhow::Result<T> {
        let mut tries = TRIES;
        loop {
            tries -= 1;
            match self.redis.try_query(words).await {
                Ok(reply) => return Ok(reply),
                Err(error) if tries == 0 => bail!("{words:?}: {error}"),
                Err(_) => {}
            }
        }
    }

    async fn info(&self, section: &str) -> anyhow::Result<String> {
        self.query(&["INFO", section]).await
    }
}

fn field(info: &str, name: &str) -> anyhow::Result<f64> {
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let number = line.with_context(|| format!("INFO has no {name}"))?;
    number.trim().parse().with_context(|| format!("INFO's {name}: {number}"))
}

fn calls_of(stats: &str, name: &str) -> u64 {
    let line = stats
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_")?.strip_prefix(name)?.strip_prefix(":calls="));
    line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
}
