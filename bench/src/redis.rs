//! A Redis of one measurement's own, and what it says of itself.

use std::fmt;
use std::net::SocketAddr;

use anyhow::{Context as _, bail};
use support::process::free_address;
use support::wait::holds;
use support::{RedisServer, RedisView, SOON, eventually};

/// How often a question is asked before Redis is said not to answer.
const TRIES: u32 = 10;

/// When Redis syncs its append-only file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fsync {
    /// Once a second, beside the calls.
    EverySecond,
    /// Before each answer.
    Always,
}

impl Fsync {
    /// As in Redis' configuration.
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

/// An empty Redis on a unix socket.
pub async fn start(fsync: Fsync) -> RedisServer {
    // The second as in the Redis that core starts itself.
    let settings = [("appendfsync", fsync.as_str()), ("auto-aof-rewrite-min-size", "256mb")];
    RedisServer::start_with(&settings, &[]).await
}

/// An empty Redis and its replica, which follows it, and the address of the first.
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

/// Seconds of processor time that Redis has used, of its own and in the kernel, without its child processes.
pub async fn cpu_seconds(view: &RedisView) -> anyhow::Result<f64> {
    let info = info(view, "cpu").await?;
    Ok(field(&info, "used_cpu_user")? + field(&info, "used_cpu_sys")?)
}

/// Bytes that Redis has allocated.
pub async fn used_memory_bytes(view: &RedisView) -> anyhow::Result<f64> {
    field(&info(view, "memory").await?, "used_memory")
}

/// Whether a child of Redis is rewriting the append-only file: pages it shares are copied meanwhile.
pub async fn is_rewriting(view: &RedisView) -> anyhow::Result<bool> {
    Ok(field(&info(view, "persistence").await?, "aof_rewrite_in_progress")? > 0.0)
}

/// Asks Redis; again where it took too long, which a disk that is busy brings about.
pub async fn ask<T: ::redis::FromRedisValue>(view: &RedisView, words: &[&str]) -> anyhow::Result<T> {
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
    ask(view, &["INFO", section]).await
}

fn field(info: &str, name: &str) -> anyhow::Result<f64> {
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let number = line.with_context(|| format!("INFO has no {name}"))?;
    number.trim().parse().with_context(|| format!("INFO's {name}: {number}"))
}
