//! The primaries, and how each is.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::{RedisError, Value};

use super::primary::{NoPrimary, field};
use super::{RedisStore, RedisStoreError, Session};

/// A primary, and how it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeState {
    /// Its host and port, or the path of its socket.
    pub address: String,
    /// How it is; `None` while it does not answer.
    pub vitals: Option<Vitals>,
}

impl NodeState {
    /// Whether it answers.
    pub fn is_up(&self) -> bool {
        self.vitals.is_some()
    }
}

/// How a primary that answers is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vitals {
    /// How long it took to answer.
    pub ping: Duration,
    /// Its memory; `None` where core's user may not ask for it.
    pub memory: Option<Memory>,
    /// How long replicas have confirmed nothing of it though something waits for them; zero while nothing does.
    pub barrier_age: Duration,
}

/// Memory of a primary, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// What it uses of its maximum: what replicas and the append-only file have yet to take does not count.
    pub used: u64,
    /// Its maximum; `None` when it has none.
    pub max: Option<u64>,
}

impl Memory {
    /// What `INFO memory` says; `None` if it does not.
    fn of(info: &str) -> Option<Self> {
        let number = |name| field(info, name).parse::<u64>().ok();
        let used = number("used_memory:")?.saturating_sub(number("mem_not_counted_for_evict:").unwrap_or(0));
        Some(Self { used, max: number("maxmemory:").filter(|max| *max > 0) })
    }
}

impl RedisStore {
    /// Which primaries answer; at least one does.
    ///
    /// # Errors
    /// [`RedisStoreError::Unavailable`] when none answers.
    pub async fn ping(&self) -> Result<Vec<NodeState>, RedisStoreError> {
        let pings = self.connections.all().await?.into_iter().map(|(address, session)| async move {
            let vitals = self.vitals(session).await;
            (address, vitals)
        });
        let (mut nodes, mut answer) =
            (Vec::new(), Err(NoPrimary::NotNamed("no node of the cluster has a slot".into()).into()));
        for (address, vitals) in join_all(pings).await {
            nodes.push(NodeState { address, vitals: vitals.as_ref().ok().copied() });
            answer = answer.or(vitals.map(drop));
        }
        answer.map(|()| nodes)
    }

    /// How a primary is, asked in one round trip.
    async fn vitals(&self, session: Result<Session, NoPrimary>) -> Result<Vitals, RedisStoreError> {
        let mut session = session?;
        let mut pipe = redis::pipe();
        pipe.ignore_errors().cmd("PING").cmd("INFO").arg("memory");
        let asked_at = Instant::now();
        let replies = session.ask("redis:ping", async |connection| pipe.query_async(connection).await).await;
        let ping = asked_at.elapsed();
        let [answer, info]: [Result<Value, RedisError>; 2] = self.noted(replies, &session).await?;
        self.noted(answer, &session).await?;
        let info = info.ok().and_then(|info| redis::from_redis_value::<String>(info).ok());
        let memory = info.and_then(|info| Memory::of(&info));
        Ok(Vitals { ping, memory, barrier_age: session.barrier().age() })
    }
}
