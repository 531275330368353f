//! The Redis and the PostgreSQL of a run: started for it, gone with it, and asked what they see of it.

use ::redis::FromRedisValue;
use anyhow::{Context as _, bail};
use sqlx::postgres::PgPool;
use support::postgres::Postgres;
use support::{RedisServer, RedisView};

use crate::app::{Addresses, App};

/// How often a question is asked before Redis is said not to answer.
const TRIES: u32 = 5;

/// Redis keeps every write before it answers; so does PostgreSQL, whose default that is.
const REDIS: &[(&str, &str)] = &[("appendfsync", "always"), ("auto-aof-rewrite-min-size", "256mb")];
/// Waits are bounded here too: a strategy that hangs must not hang the run.
const POSTGRES: &[(&str, &str)] = &[
    ("max_connections", "300"),
    ("shared_buffers", "128MB"),
    ("fsync", "on"),
    ("synchronous_commit", "on"),
    ("lock_timeout", "10s"),
    ("statement_timeout", "20s"),
    ("idle_in_transaction_session_timeout", "20s"),
];

/// As the report says it.
pub const DURABILITY: &str = "Redis: appendonly yes, appendfsync always; PostgreSQL: fsync on, synchronous_commit on, read committed: \
                              no caller is told of a grant that a crash could take back";

/// Both servers, for all strategies alike.
#[derive(Debug)]
pub struct Servers {
    /// Where they are.
    pub addresses: Addresses,
    redis: RedisView,
    sql: PgPool,
    postgres_version: String,
    _redis: RedisServer,
    _postgres: Postgres,
}

/// What Redis has done so far.
#[derive(Debug, Clone, Copy)]
pub struct RedisWork {
    /// Processor time, in seconds.
    pub cpu_s: f64,
    /// Calls that the lab's own connections do not count: scripts, and the reading of the outbox.
    pub calls: u64,
}

impl Servers {
    /// Starts both, on unix sockets in directories of their own.
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

    /// The versions of both.
    pub async fn versions(&self) -> anyhow::Result<(String, String)> {
        let info = self.info("server").await?;
        let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
        Ok((version.unwrap_or("unknown").trim().to_owned(), self.postgres_version.clone()))
    }

    /// What Redis has done so far.
    pub async fn redis_work(&self) -> anyhow::Result<RedisWork> {
        let cpu = self.info("cpu").await?;
        let cpu_s = field(&cpu, "used_cpu_user")? + field(&cpu, "used_cpu_sys")?;
        let stats = self.info("commandstats").await?;
        let calls = ["evalsha", "eval", "xreadgroup"].iter().map(|name| calls_of(&stats, name)).sum();
        Ok(RedisWork { cpu_s, calls })
    }

    /// Connections that others than this watcher hold, to Redis and to PostgreSQL.
    pub async fn connections(&self) -> anyhow::Result<(u64, u64)> {
        let list: String = self.ask(&["CLIENT", "LIST"]).await?;
        let count = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = 'lab' \
                     AND pid <> pg_backend_pid() AND backend_type = 'client backend'";
        let sql: i64 = sqlx::query_scalar(count).fetch_one(&self.sql).await?;
        Ok((list.lines().count() as u64 - 1, sql.unsigned_abs()))
    }

    /// Whether there is such a key.
    pub async fn has_key(&self, key: &str) -> anyhow::Result<bool> {
        self.ask(&["EXISTS", key]).await
    }

    /// Asks Redis; again where it took too long, which a machine that is busy brings about.
    async fn ask<T: FromRedisValue>(&self, words: &[&str]) -> anyhow::Result<T> {
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
        self.ask(&["INFO", section]).await
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
