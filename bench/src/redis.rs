//! A Redis server for one measurement, and its statistics.

use std::fmt;
use std::net::SocketAddr;

use anyhow::{Context as _, bail};
use support::process::free_address;
use support::wait::holds;
use support::{RedisServer, RedisView, SOON, eventually};

/// Maximum number of tries of a query.
const TRIES: u32 = 10;

/// Redis' setting `appendfsync`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fsync {
    /// Syncs once a second, in the background.
    EverySecond,
    /// Syncs before each reply.
    Always,
}

impl Fsync {
    /// Returns the value in Redis' configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::EverySecond => "everysec",
            Self::Always => "always",
        }
    }
}

impl fmt::Display for Fsync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Starts an empty Redis server on a unix socket.
pub async fn start(fsync: Fsync) -> RedisServer {
    // Core's own Redis has the second setting too.
    let settings = [("appendfsync", fsync.as_str()), ("auto-aof-rewrite-min-size", "256mb")];
    RedisServer::start_with(&settings, &[]).await
}

/// Starts an empty Redis server with a connected replica. Returns both and the primary's URL.
pub async fn start_with_replica(fsync: Fsync) -> ([RedisServer; 2], String) {
    let addresses = [free_address(), free_address()];
    let of_primary = format!("{} {}", addresses[0].ip(), addresses[0].port());
    let start = async |address: SocketAddr, replica_of: Option<&str>| {
        let (ip, port) = (address.ip().to_string(), address.port().to_string());
        let mut settings = vec![
            ("bind", ip.as_str()),
            ("port", &port),
            ("replica-announce-ip", &ip),
            ("repl-diskless-sync-delay", "0"),
            ("appendfsync", fsync.as_str()),
            ("auto-aof-rewrite-min-size", "256mb"),
        ];
        settings.extend(replica_of.map(|primary| ("replicaof", primary)));
        RedisServer::start_with(&settings, &[]).await
    };
    let primary = start(addresses[0], None).await;
    let replica = start(addresses[1], Some(&of_primary)).await;
    let view = replica.view().await;
    eventually(SOON, || async {
        let info: String = view.query(&["INFO", "replication"]).await;
        holds(info.contains("master_link_status:up"), || info.clone())
    })
    .await;
    ([primary, replica], format!("redis://{}", addresses[0]))
}

/// Returns seconds of Redis' CPU time, user and system, without its child processes.
pub async fn cpu_seconds(view: &RedisView) -> anyhow::Result<f64> {
    let info = info(view, "cpu").await?;
    Ok(field(&info, "used_cpu_user")? + field(&info, "used_cpu_sys")?)
}

/// Returns the bytes that Redis has allocated.
pub async fn used_memory_bytes(view: &RedisView) -> anyhow::Result<f64> {
    field(&info(view, "memory").await?, "used_memory")
}

/// Returns whether a child of Redis is rewriting the append-only file, which copies shared memory pages.
pub async fn is_rewriting(view: &RedisView) -> anyhow::Result<bool> {
    Ok(field(&info(view, "persistence").await?, "aof_rewrite_in_progress")? > 0.0)
}

/// Queries Redis, and retries if it times out because of a busy disk.
pub async fn query<T: ::redis::FromRedisValue>(view: &RedisView, words: &[&str]) -> anyhow::Result<T> {
    let mut tries = TRIES;
    loop {
        tries -= 1;
        match view.try_query(words).await {
            Ok(reply) => return Ok(reply),
            Err(error) if tries == 0 => bail!("{words:?}: {error}"),
            Err(_) => {}
        }
    }
}

async fn info(view: &RedisView, section: &str) -> anyhow::Result<String> {
    query(view, &["INFO", section]).await
}

fn field(info: &str, name: &str) -> anyhow::Result<f64> {
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let number = line.with_context(|| format!("INFO has no {name}"))?;
    number.trim().parse().with_context(|| format!("INFO's {name}: {number}"))
}
