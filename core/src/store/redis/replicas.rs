//! The barrier: waits until every required replica has all data of the server's earlier replies.
//!
//! `WAIT` after each call is not enough, because `WAIT` counts replicas without naming them. `WAIT` also
//! covers only the writes of the same connection, not other writes that a call has read. So a separate
//! connection writes, reads the replication offset of that write, waits, and reads the offset of each
//! replica. All callers that had their reply before the write are released together; later callers wait for
//! the next round.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::RedisError;
use redis::aio::MultiplexedConnection;
use tokio::time::{Instant, sleep, timeout};

use super::barrier::{NotReplicated, RequiredReplicas, RoundConnection};
use super::scripts::keys;
use super::scripts::{self, BARRIER};
use super::topology::cluster::is_redirect;
use super::topology::primary::{connect, field};
use super::topology::server::Session;
use crate::domain::replica_set::{ReplicaSet, ServerName};

/// Timeout of a caller's wait for replicas; the edge's timeout for core is 2 s.
const WAIT_MAX: Duration = Duration::from_millis(900);
/// Timeout of one round, after which the replica sets are checked again.
const ROUND_TIMEOUT: Duration = Duration::from_millis(100);
/// Pause between a failed round and the next one.
const RETRY_PAUSE: Duration = Duration::from_millis(10);
/// Timeout of a check of the replicas; a slower replica counts as lagging.
const CHECK_TIMEOUT: Duration = Duration::from_millis(500);
/// Timeout for reading the role of a disconnected member.
const ROLE_TIMEOUT: Duration = Duration::from_millis(300);

/// Waits until every required replica has all writes that the server of `session` has acknowledged so far.
pub(super) async fn wait_for_replicas(
    session: &Session,
    required: &RequiredReplicas,
) -> Result<(), NotReplicated> {
    // Any round that starts from here on is later than the reply to be confirmed.
    let mut after = session.barrier().started();
    let deadline = Instant::now() + WAIT_MAX;
    let server = (&*session.name, session.generation);
    let waiter = session.barrier().enter();
    let outcome = loop {
        let round = async |connection: &mut RoundConnection, set: &ReplicaSet| {
            let outcome = round(session, connection, set).await;
            if outcome.is_ok() && !session.barrier().passed(session.generation) {
                session.notify_usable();
            }
            outcome
        };
        match session.barrier().join_round(server, required, &mut after, round).await {
            Err(error) if error.is_retryable() && Instant::now() < deadline => {
                required.request_refresh();
                sleep(RETRY_PAUSE).await;
            }
            outcome if session.is_current() => break outcome,
            _ => break Err(NotReplicated::ServerReplaced),
        }
    };
    waiter.finish(outcome.is_ok());
    outcome
}

/// Runs one round: succeeds once every replica of `set` has the round's write.
async fn round(
    session: &Session,
    connection: &mut RoundConnection,
    set: &ReplicaSet,
) -> Result<(), NotReplicated> {
    let connection = match connection {
        Some((generation, connection)) if *generation == session.generation => connection,
        _ => {
            let joined = session.open_another().await.map_err(|error| failed(&error))?;
            if joined.generation != session.generation {
                return Err(NotReplicated::ServerReplaced);
            }
            &mut connection.insert((session.generation, joined.connection)).1
        }
    };
    let replicas = set.required().count();
    let query = ReplicaQuery { tag: &set.tag, version: set.version, replicas, wait: ROUND_TIMEOUT };
    let status = query.run(connection, session).await?;
    if status.version > set.version {
        return Err(NotReplicated::OutdatedSet);
    }
    match set.required().find(|name| status.replicas.get(*name) != Some(&true)) {
        Some(behind) => Err(NotReplicated::Behind(behind.clone())),
        None => Ok(()),
    }
}

/// A write to a server, followed by a query for the offsets of its replicas.
#[derive(Debug, Clone, Copy)]
struct ReplicaQuery<'a> {
    tag: &'a str,
    version: u64,
    /// Number of replicas to wait for.
    replicas: usize,
    wait: Duration,
}

/// Lists the replicas without waiting for their confirmation.
pub(super) async fn list(session: &Session, tag: &str, version: u64) -> Result<ReplicaStatus, NotReplicated> {
    let mut connection = session.open_another().await.map_err(|error| failed(&error))?.connection;
    let query = ReplicaQuery { tag, version, replicas: 0, wait: Duration::from_millis(1) };
    query.run(&mut connection, session).await
}

/// Checks whether each replica keeps up. `version` may be older than the version in force on the server.
pub(super) async fn check(
    session: &Session,
    tag: &str,
    version: u64,
) -> Result<ReplicaStatus, NotReplicated> {
    let mut connection = session.open_another().await.map_err(|error| failed(&error))?.connection;
    let first = ReplicaQuery { tag, version, replicas: 0, wait: Duration::from_millis(1) };
    let known = first.run(&mut connection, session).await?;
    let (version, replicas) = (version.max(known.version), known.replicas.len());
    let query = ReplicaQuery { version, replicas, wait: CHECK_TIMEOUT, ..first };
    query.run(&mut connection, session).await
}

/// Returns whether the server `name` reports that it is a primary; `false` if it does not answer.
pub(super) async fn is_primary(session: &Session, name: &str) -> bool {
    let Some(client) = session.client_of(name) else { return false };
    let role = async {
        let mut connection = connect(&client, ROLE_TIMEOUT).await?;
        redis::cmd("INFO").arg("replication").query_async::<String>(&mut connection).await
    };
    matches!(timeout(ROLE_TIMEOUT, role).await, Ok(Ok(info)) if field(&info, "role:") == "master")
}

impl ReplicaQuery<'_> {
    async fn send(
        &self,
        connection: &mut MultiplexedConnection,
        session: &Session,
    ) -> Result<QueryReply, RedisError> {
        let mut pipe = redis::pipe();
        pipe.cmd("EVALSHA").arg(BARRIER.name()).arg(1).arg(keys::barrier(self.tag)).arg(self.version);
        pipe.cmd("INFO").arg("replication");
        pipe.cmd("WAIT").arg(self.replicas).arg(self.wait.as_millis().to_string());
        pipe.cmd("INFO").arg("replication");
        session.server.unless_replaced(session.generation, pipe.query_async(connection)).await
    }

    async fn run(
        &self,
        connection: &mut MultiplexedConnection,
        session: &Session,
    ) -> Result<ReplicaStatus, NotReplicated> {
        let reply = match self.send(connection, session).await {
            Err(error) if scripts::is_missing(&error) => {
                BARRIER.load(connection).await.map_err(|error| failed(&error))?;
                self.send(connection, session).await
            }
            reply => reply,
        };
        let (version, before, _, after) = match reply {
            Ok(reply) => reply,
            Err(error) => {
                session.note_error(&error);
                return Err(if is_redirect(&error) { NotReplicated::SlotMoved } else { failed(&error) });
            }
        };
        let is_same_primary = |info: &str| {
            field(info, "role:") == "master" && field(info, "master_replid2:") == &*session.replication_id
        };
        if !is_same_primary(&before) || !is_same_primary(&after) {
            session.end();
            return Err(NotReplicated::ServerReplaced);
        }
        let written = field(&before, "master_repl_offset:").parse().unwrap_or(u64::MAX);
        Ok(ReplicaStatus { version, replicas: replicas(&after, written) })
    }
}

/// The set's version in force, `INFO` before the wait, the count from `WAIT`, `INFO` after the wait.
type QueryReply = (u64, String, u64, String);

/// A server's own report of its replicas.
#[derive(Debug)]
pub(super) struct ReplicaStatus {
    /// Version of the replica set in force on the server.
    pub version: u64,
    /// Each replica, and whether it has all data written before the query.
    pub replicas: BTreeMap<ServerName, bool>,
}

/// Parses the replicas from `INFO replication`. A replica keeps up if it is online and has reached `offset`.
fn replicas(info: &str, offset: u64) -> BTreeMap<ServerName, bool> {
    let lines = info.lines().filter_map(|line| {
        let (number, fields) = line.strip_prefix("slave")?.split_once(':')?;
        number.parse::<u32>().ok()?;
        let value = |name: &str| fields.split(',').find_map(|field| field.strip_prefix(name));
        let name = format!("{}:{}", value("ip=")?, value("port=")?);
        let reached: u64 = value("offset=")?.parse().ok()?;
        Some((name, value("state=")? == "online" && reached >= offset))
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
    fn a_replica_counts_if_online_and_at_the_offset() {
        let info = "role:master\r\nconnected_slaves:3\r\nslave0:ip=10.0.0.2,port=7000,state=online,offset=70,lag=0\r\n\
            slave1:ip=::1,port=7001,state=online,offset=69,lag=1\r\n\
            slave2:ip=h,port=7002,state=wait_bgsave,offset=0,lag=0\r\nmaster_replid:0\r\n";
        let found: Vec<_> = replicas(info, 70).into_iter().collect();
        let expected = [("10.0.0.2:7000", true), ("::1:7001", false), ("h:7002", false)];
        assert_eq!(found, expected.map(|(name, has)| (name.to_owned(), has)));
    }
}
