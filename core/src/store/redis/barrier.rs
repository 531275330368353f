//! The barrier: whatever a server has said before it is held by every replica that must have it.
//!
//! `WAIT` behind each call would not do: it counts replicas and does not name them, and a connection that has only read what
//! another one wrote may be told that it is replicated when it is not. So a connection of its own writes, asks which offset
//! that has reached, waits, and asks how far each replica is. All callers that had their answer before the write are let go
//! together; those that come meanwhile wait for the next round.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use redis::RedisError;
use redis::aio::MultiplexedConnection;
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, sleep};

use super::keys;
use super::primary::field;
use super::server::Session;
use crate::domain::counters::Generation;
use crate::domain::replica_set::{NotInSet, ReplicaSet, Replication, ServerName};

/// The longest that a caller waits for replicas; the edge gives core 2 s in all.
const WAIT_MAX: Duration = Duration::from_millis(900);
/// How long one round waits for them, before it is looked up whether they still count.
const ROUND: Duration = Duration::from_millis(100);
/// How soon after a round that did not pass the next one follows.
const PAUSE: Duration = Duration::from_millis(10);
/// How long a look waits for them: one that is slower does not keep up.
const LOOK: Duration = Duration::from_millis(500);
const SCRIPT: &str = include_str!("../../../../lua/barrier.lua");

/// Why what a server said may not be acknowledged.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NotReplicated {
    /// The server is not to be believed.
    #[error(transparent)]
    NotInSet(#[from] NotInSet),
    /// A replica that must have it did not confirm it in time.
    #[error("the replica {0} did not confirm it in time")]
    Behind(ServerName),
    /// Another core has changed the set of replicas.
    #[error("other replicas have to confirm it by now")]
    OldSet,
    /// The connection on which it was said is not in use any more: the server may have lost it since.
    #[error("the server was replaced or has restarted meanwhile")]
    ServerReplaced,
    /// The server gave no answer that counts.
    #[error("the barrier failed: {0}")]
    Failed(Arc<str>),
}

impl NotReplicated {
    /// Whether it may be otherwise once the sets were looked at again.
    fn may_pass_soon(&self) -> bool {
        match self {
            Self::Behind(_) | Self::OldSet => true,
            Self::NotInSet(why) => matches!(why, NotInSet::NotAdopted | NotInSet::Unknown),
            Self::ServerReplaced | Self::Failed(_) => false,
        }
    }
}

/// What is asked of replicas, as last read from SQL; shared by all threads.
#[derive(Debug, Default)]
pub struct Required {
    now: RwLock<Arc<Replication>>,
    /// The same as in `now`: without replicas to wait for, nothing else is looked at.
    replicas_min: AtomicU32,
    outdated: Notify,
}

impl Required {
    /// What is asked of replicas.
    pub fn now(&self) -> Arc<Replication> {
        Arc::clone(&self.now.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces it by what was read from SQL.
    pub fn set(&self, now: Replication) {
        self.replicas_min.store(now.replicas_min, Ordering::Release);
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(now);
    }

    /// Whether any replica is waited for.
    pub fn any(&self) -> bool {
        self.replicas_min.load(Ordering::Acquire) > 0
    }

    /// Waits until a server has refused it as outdated, or a primary has no set.
    pub async fn outdated(&self) {
        self.outdated.notified().await;
    }
}

/// The rounds of one server.
#[derive(Debug, Default)]
pub(super) struct Barrier {
    /// How many rounds have begun.
    begun: AtomicU64,
    rounds: Mutex<Rounds>,
}

#[derive(Debug, Default)]
struct Rounds {
    /// A connection of its own, since `WAIT` blocks it.
    connection: Option<(Generation, MultiplexedConnection)>,
    last: Option<Round>,
}

/// A round that has ended.
#[derive(Debug)]
struct Round {
    number: u64,
    generation: Generation,
    outcome: Result<(), NotReplicated>,
}

impl Barrier {
    /// Waits until every replica that must have what was said in `session` has it.
    pub(super) async fn pass(&self, session: &Session, required: &Required) -> Result<(), NotReplicated> {
        let mut after = self.begun.load(Ordering::Acquire);
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            match self.join_round(session, required, &mut after).await {
                Err(error) if error.may_pass_soon() && Instant::now() < deadline => {
                    required.outdated.notify_one();
                    sleep(PAUSE).await;
                }
                outcome if session.is_current() => return outcome,
                _ => return Err(NotReplicated::ServerReplaced),
            }
        }
    }

    /// The outcome of a round that began after the round `after`, which is replaced by its number.
    async fn join_round(
        &self,
        session: &Session,
        required: &Required,
        after: &mut u64,
    ) -> Result<(), NotReplicated> {
        let mut rounds = self.rounds.lock().await;
        // It began after this caller had its answer. Older sets than the one in force pass no round, so whichever it waited
        // for was right.
        if let Some(last) = &rounds.last
            && last.number > *after
            && last.generation == session.generation
        {
            *after = last.number;
            return last.outcome.clone();
        }
        let replication = required.now();
        let set = replication.set_of(&session.name)?;
        let (number, generation) = (self.begun.fetch_add(1, Ordering::AcqRel) + 1, session.generation);
        *after = number;
        let outcome = rounds.round(session, set).await;
        rounds.last = Some(Round { number, generation, outcome: outcome.clone() });
        outcome
    }
}

impl Rounds {
    async fn round(&mut self, session: &Session, set: &ReplicaSet) -> Result<(), NotReplicated> {
        let connection = match &mut self.connection {
            Some((generation, connection)) if *generation == session.generation => connection,
            _ => {
                let joined = session.join().await.map_err(|error| failed(&error))?;
                if joined.generation != session.generation {
                    return Err(NotReplicated::ServerReplaced);
                }
                &mut self.connection.insert((session.generation, joined.connection)).1
            }
        };
        let asked =
            Asked { tag: &set.tag, version: set.version, replicas: set.required().count(), wait: ROUND };
        let confirmed = asked.confirmed(connection, session).await?;
        if confirmed.version > set.version {
            return Err(NotReplicated::OldSet);
        }
        match set.required().find(|name| confirmed.replicas.get(*name) != Some(&true)) {
            Some(behind) => Err(NotReplicated::Behind(behind.clone())),
            None => Ok(()),
        }
    }
}

/// What a server is asked of its replicas.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    pub tag: &'a str,
    pub version: u64,
    /// How many are waited for.
    pub replicas: usize,
    pub wait: Duration,
}

impl Asked<'_> {
    /// A look at all replicas, whose set may be of an earlier version than the server knows.
    pub(super) async fn look(tag: &str, version: u64, session: &Session) -> Result<Confirmed, NotReplicated> {
        let mut connection = session.join().await.map_err(|error| failed(&error))?.connection;
        let first = Asked { tag, version, replicas: 0, wait: Duration::from_millis(1) };
        let known = first.confirmed(&mut connection, session).await?;
        let (version, replicas) = (version.max(known.version), known.replicas.len());
        Asked { version, replicas, wait: LOOK, ..first }.confirmed(&mut connection, session).await
    }

    async fn confirmed(
        &self,
        connection: &mut MultiplexedConnection,
        session: &Session,
    ) -> Result<Confirmed, NotReplicated> {
        let mut pipe = redis::pipe();
        pipe.cmd("EVAL").arg(SCRIPT).arg(1).arg(keys::barrier(self.tag)).arg(self.version);
        pipe.cmd("INFO").arg("replication");
        pipe.cmd("WAIT").arg(self.replicas).arg(self.wait.as_millis().to_string());
        pipe.cmd("INFO").arg("replication");
        let reply: Result<(u64, String, u64, String), RedisError> = pipe.query_async(connection).await;
        let (version, before, _, after) = match reply {
            Ok(reply) => reply,
            Err(error) => {
                session.note(&error).await;
                return Err(failed(&error));
            }
        };
        let is_same = |info: &str| {
            field(info, "role:") == "master" && field(info, "master_replid2:") == &*session.replication_id
        };
        if !is_same(&before) || !is_same(&after) {
            session.end().await;
            return Err(NotReplicated::ServerReplaced);
        }
        let written = field(&before, "master_repl_offset:").parse().unwrap_or(u64::MAX);
        Ok(Confirmed { version, replicas: replicas(&after, written) })
    }
}

/// What a server said of its replicas.
#[derive(Debug)]
pub(super) struct Confirmed {
    /// The version of the set that is in force there.
    pub version: u64,
    /// Each, and whether it has all that was written before.
    pub replicas: BTreeMap<ServerName, bool>,
}

/// The replicas in what `INFO replication` says, and whether each has what was written up to `offset`.
fn replicas(info: &str, offset: u64) -> BTreeMap<ServerName, bool> {
    let lines = info.lines().filter_map(|line| {
        let (number, fields) = line.strip_prefix("slave")?.split_once(':')?;
        number.parse::<u32>().ok()?;
        let of = |name: &str| fields.split(',').find_map(|field| field.strip_prefix(name));
        let name = format!("{}:{}", of("ip=")?, of("port=")?);
        let at: u64 = of("offset=")?.parse().ok()?;
        Some((name, of("state=")? == "online" && at >= offset))
    });
    lines.collect()
}

fn failed(error: &impl ToString) -> NotReplicated {
    NotReplicated::Failed(error.to_string().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_has_what_was_written_once_it_is_online_and_its_offset_tells_so() {
        let info = "role:master\r\nconnected_slaves:3\r\nslave0:ip=10.0.0.2,port=7000,state=online,offset=70,lag=0\r\n\
            slave1:ip=::1,port=7001,state=online,offset=69,lag=1\r\n\
            slave2:ip=h,port=7002,state=wait_bgsave,offset=0,lag=0\r\nmaster_replid:0\r\n";
        let found: Vec<_> = replicas(info, 70).into_iter().collect();
        let expected = [("10.0.0.2:7000", true), ("::1:7001", false), ("h:7002", false)];
        assert_eq!(found, expected.map(|(name, has)| (name.to_owned(), has)));
    }
}
