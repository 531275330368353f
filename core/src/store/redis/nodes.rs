//! Health of the primaries.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::{RedisError, Value};

use super::scripts::{is_denied, keys, script_commands};
use super::topology::cluster::is_redirect;
use super::topology::primary::{NoPrimary, field};
use super::{RedisStore, RedisStoreError, Session};
use crate::domain::store_fault::StoreFault;

/// A primary and its health.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeState {
    /// The primary's host and port, or the path of its socket.
    pub address: String,
    /// The primary's health; `None` while it does not answer.
    pub health: Option<PrimaryHealth>,
    /// The reason why the primary is unusable: it does not answer, or accepts no writes.
    pub fault: Option<StoreFault>,
}

impl NodeState {
    /// Returns whether the primary is usable.
    pub fn is_up(&self) -> bool {
        self.fault.is_none()
    }
}

/// The result of probing all primaries.
#[derive(Debug)]
pub struct ProbeResult {
    /// Each primary; empty if no server can be reached.
    pub nodes: Vec<NodeState>,
    /// `Ok` if any primary is usable, otherwise the first primary's error.
    pub outcome: Result<(), RedisStoreError>,
}

/// The health of a primary that answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrimaryHealth {
    /// The round-trip time.
    pub ping: Duration,
    /// The primary's memory; `None` if core's Redis user may not run `INFO`.
    pub memory: Option<Memory>,
    /// Whether the last rewrite of the append-only file failed; `None` if core's Redis user may not run `INFO`.
    pub rewrite_failed: Option<bool>,
    /// Time since replicas last confirmed a write; zero while no caller waits for replicas.
    pub barrier_age: Duration,
}

/// A primary's memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Memory that counts towards the maximum; excludes the buffers of replicas and of the append-only file.
    pub used: u64,
    /// The maximum; `None` if unlimited.
    pub max: Option<u64>,
}

impl Memory {
    /// Parses the output of `INFO memory`; `None` if the fields are missing.
    fn parse(info: &str) -> Option<Self> {
        let number = |name| field(info, name).parse::<u64>().ok();
        let used = number("used_memory:")?.saturating_sub(number("mem_not_counted_for_evict:").unwrap_or(0));
        Some(Self { used, max: number("maxmemory:").filter(|max| *max > 0) })
    }
}

/// Returns whether the last rewrite of the append-only file failed, by the output of `INFO persistence`.
pub fn rewrite_failed(info: &str) -> bool {
    field(info, "aof_last_bgrewrite_status:") == "err"
}

impl RedisStore {
    /// Checks that each primary answers and accepts writes; and that it runs scripts, if a script was denied since the
    /// last check or still was at that check. The write fails if the server is out of memory,
    /// has been demoted to a replica, or has fewer replicas than it is configured to require.
    pub async fn probe(&self) -> ProbeResult {
        let sessions = match self.connections.all().await {
            Ok(sessions) => sessions,
            Err(error) => return ProbeResult { nodes: Vec::new(), outcome: Err(error.into()) },
        };
        // The answers to these commands count as errors in Redis' statistics, so they are sent only if in doubt.
        let checks_scripts = self.scripts_denied.swap(false, Ordering::Relaxed);
        let probes = sessions.into_iter().map(|(address, session)| async move {
            match self.probe_one(session, checks_scripts).await {
                Ok((health, written)) => (address, Some(health), written),
                Err(error) => (address, None, Err(error)),
            }
        });
        let none = NoPrimary::NotNamed("no node of the cluster has a slot".into());
        let mut result = ProbeResult { nodes: Vec::new(), outcome: Err(none.into()) };
        for (index, (address, health, written)) in join_all(probes).await.into_iter().enumerate() {
            let fault = written.as_ref().err().map(RedisStoreError::fault);
            result.nodes.push(NodeState { address, health, fault });
            result.outcome = if index == 0 { written } else { result.outcome.or(written) };
        }
        if checks_scripts && !result.nodes.iter().all(NodeState::is_up) {
            self.scripts_denied.store(true, Ordering::Relaxed);
        }
        result
    }

    /// Reads a primary's health and checks that it accepts writes, in one round trip. If `checks_scripts` is true, also
    /// checks that it runs scripts for core.
    async fn probe_one(
        &self,
        session: Result<Session, NoPrimary>,
        checks_scripts: bool,
    ) -> Result<(PrimaryHealth, Result<(), RedisStoreError>), RedisStoreError> {
        let mut session = session?;
        let key = keys::probe(&self.connections.tag_of(&session));
        let mut pipe = redis::pipe();
        // Appends to a list that does not exist: Redis treats this as a write, but it changes nothing.
        pipe.ignore_errors().cmd("LPUSHX").arg(key).arg("");
        pipe.cmd("INFO").arg("memory").arg("persistence");
        if checks_scripts {
            for command in script_commands() {
                pipe.add_command(command);
            }
        }
        let sent_at = Instant::now();
        let replies =
            session.query("redis:probe", async |connection| pipe.query_async(connection).await).await;
        let ping = sent_at.elapsed();
        let replies: Vec<Result<Value, RedisError>> = self.record_error(replies, &session).await?;
        let mut replies = replies.into_iter();
        let (written, info) =
            (replies.next().unwrap_or(Ok(Value::Nil)), replies.next().unwrap_or(Ok(Value::Nil)));
        let denied = replies.find_map(|reply| reply.err().filter(is_denied));
        let written = match denied.map_or(written, Err) {
            // The probed slot is being migrated to another node.
            Err(error) if is_redirect(&error) => Ok(()),
            written => self.record_error(written, &session).await.map(drop),
        };
        let info = info.ok().and_then(|info| redis::from_redis_value::<String>(info).ok());
        let memory = info.as_deref().and_then(Memory::parse);
        let rewrite_failed = info.as_deref().map(rewrite_failed);
        Ok((PrimaryHealth { ping, memory, rewrite_failed, barrier_age: session.barrier().age() }, written))
    }
}
