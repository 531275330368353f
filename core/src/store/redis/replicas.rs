//! The barrier: whatever a server has said before it is held by every replica that must have it.
//!
//! `WAIT` behind each call would not do: it counts replicas and does not name them, and a connection that has only read what
//! another one wrote may be told that it is replicated when it is not. So a connection of its own writes, asks which offset
//! that has reached, waits, and asks how far each replica is. All callers that had their answer before the write are let go
//! together; those that come meanwhile wait for the next round.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::RedisError;
use redis::aio::MultiplexedConnection;
use tokio::time::{Instant, sleep, timeout};

use super::barrier::{NotReplicated, Required, RoundConnection};
use super::cluster::is_redirect;
use super::keys;
use super::primary::{connect, field};
use super::scripts::{self, BARRIER};
use super::server::Session;
use crate::domain::replica_set::{ReplicaSet, ServerName};

/// The longest that a caller waits for replicas; the edge gives core 2 s in all.
const WAIT_MAX: Duration = Duration::from_millis(900);
/// How long one round waits for them, before it is looked up whether they still count.
const ROUND: Duration = Duration::from_millis(100);
/// How soon after a round that did not pass the next one follows.
const PAUSE: Duration = Duration::from_millis(10);
/// How long a look waits for them: one that is slower does not keep up.
const LOOK: Duration = Duration::from_millis(500);
/// The longest that a member that follows no longer is asked what it is.
const ASK_MAX: Duration = Duration::from_millis(300);

/// Waits until every replica that must have what was said in `session` has it.
pub(super) async fn confirmed(session: &Session, required: &Required) -> Result<(), NotReplicated> {
    // A round that begins from here on begins after the answer that it is to confirm.
    let mut after = session.barrier().begun();
    let deadline = Instant::now() + WAIT_MAX;
    let asked = (&*session.name, session.generation);
    let waiting = session.barrier().wait();
    let outcome = loop {
        let round = async |connection: &mut RoundConnection, set: &ReplicaSet| {
            let outcome = round(session, connection, set).await;
            if outcome.is_ok() && !session.barrier().passes(session.generation) {
                session.is_usable();
            }
            outcome
        };
        match session.barrier().join_round(asked, required, &mut after, round).await {
            Err(error) if error.may_pass_soon() && Instant::now() < deadline => {
                required.is_outdated();
                sleep(PAUSE).await;
            }
            outcome if session.is_current() => break outcome,
            _ => break Err(NotReplicated::ServerReplaced),
        }
    };
    waiting.ends(outcome.is_ok());
    outcome
}

async fn round(
    session: &Session,
    connection: &mut RoundConnection,
    set: &ReplicaSet,
) -> Result<(), NotReplicated> {
    let connection = match connection {
        Some((generation, connection)) if *generation == session.generation => connection,
        _ => {
            let joined = session.join().await.map_err(|error| failed(&error))?;
            if joined.generation != session.generation {
                return Err(NotReplicated::ServerReplaced);
            }
            &mut connection.insert((session.generation, joined.connection)).1
        }
    };
    let asked = Asked { tag: &set.tag, version: set.version, replicas: set.required().count(), wait: ROUND };
    let confirmed = asked.confirmed(connection, session).await?;
    if confirmed.version > set.version {
        return Err(NotReplicated::OldSet);
    }
    match set.required().find(|name| confirmed.replicas.get(*name) != Some(&true)) {
        Some(behind) => Err(NotReplicated::Behind(behind.clone())),
        None => Ok(()),
    }
}

/// What a server is asked of its replicas.
#[derive(Debug, Clone, Copy)]
struct Asked<'a> {
    tag: &'a str,
    version: u64,
    /// How many are waited for.
    replicas: usize,
    wait: Duration,
}

/// Which replicas there are; none of them is waited for.
pub(super) async fn glance(session: &Session, tag: &str, version: u64) -> Result<Confirmed, NotReplicated> {
    let mut connection = session.join().await.map_err(|error| failed(&error))?.connection;
    let asked = Asked { tag, version, replicas: 0, wait: Duration::from_millis(1) };
    asked.confirmed(&mut connection, session).await
}

/// A look at all replicas, whose set may be of an earlier version than the server knows.
pub(super) async fn look(session: &Session, tag: &str, version: u64) -> Result<Confirmed, NotReplicated> {
    let mut connection = session.join().await.map_err(|error| failed(&error))?.connection;
    let first = Asked { tag, version, replicas: 0, wait: Duration::from_millis(1) };
    let known = first.confirmed(&mut connection, session).await?;
    let (version, replicas) = (version.max(known.version), known.replicas.len());
    let asked = Asked { version, replicas, wait: LOOK, ..first };
    asked.confirmed(&mut connection, session).await
}

/// Whether the server `name` says that it is a primary; not if it does not answer.
pub(super) async fn is_primary(session: &Session, name: &str) -> bool {
    let Some(client) = session.client_of(name) else { return false };
    let asked = async {
        let mut connection = connect(&client, ASK_MAX).await?;
        redis::cmd("INFO").arg("replication").query_async::<String>(&mut connection).await
    };
    matches!(timeout(ASK_MAX, asked).await, Ok(Ok(info)) if field(&info, "role:") == "master")
}

impl Asked<'_> {
    async fn ask(
        &self,
        connection: &mut MultiplexedConnection,
        session: &Session,
    ) -> Result<Answer, RedisError> {
        let mut pipe = redis::pipe();
        pipe.cmd("EVALSHA").arg(BARRIER.name()).arg(1).arg(keys::barrier(self.tag)).arg(self.version);
        pipe.cmd("INFO").arg("replication");
        pipe.cmd("WAIT").arg(self.replicas).arg(self.wait.as_millis().to_string());
        pipe.cmd("INFO").arg("replication");
        session.server.unless_replaced(session.generation, pipe.query_async(connection)).await
    }

    async fn confirmed(
        &self,
        connection: &mut MultiplexedConnection,
        session: &Session,
    ) -> Result<Confirmed, NotReplicated> {
        let reply = match self.ask(connection, session).await {
            Err(error) if scripts::is_missing(&error) => {
                BARRIER.load(connection).await.map_err(|error| failed(&error))?;
                self.ask(connection, session).await
            }
            reply => reply,
        };
        let (version, before, _, after) = match reply {
            Ok(reply) => reply,
            Err(error) => {
                session.note(&error);
                return Err(if is_redirect(&error) { NotReplicated::Moved } else { failed(&error) });
            }
        };
        let is_same = |info: &str| {
            field(info, "role:") == "master" && field(info, "master_replid2:") == &*session.replication_id
        };
        if !is_same(&before) || !is_same(&after) {
            session.end();
            return Err(NotReplicated::ServerReplaced);
        }
        let written = field(&before, "master_repl_offset:").parse().unwrap_or(u64::MAX);
        Ok(Confirmed { version, replicas: replicas(&after, written) })
    }
}

/// The version of the set in force, what the server was before the wait, how many replicas came up, what it was after it.
type Answer = (u64, String, u64, String);

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
