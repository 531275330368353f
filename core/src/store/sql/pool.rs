//! A connection pool in which every statement has a time limit.
//!
//! Each call on a [`Pool`], and each [`Transaction`], has the pool's limit in total, including the wait for a
//! connection. A connection is dropped instead of being put back if it timed out or broke, or if its server
//! no longer accepts writes.
//!
//! sqlx's pool is not used, for two reasons. If a server refuses connections, sqlx's pool retries until the
//! limit, and then reports only a timeout. It also cannot drop idle connections on request.

use std::fmt;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt as _, TryStreamExt as _};
use parking_lot::Mutex;
use sqlx::any::{AnyArguments, AnyQueryResult, AnyRow, AnyStatement, AnyTypeInfo};
use sqlx::query::Query;
use sqlx::{Any, AnyConnection, Connection as _, Either, Error, Execute, Executor, SqlStr};
use tokio::runtime::Handle;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout, timeout_at};

use super::server::{CONNECT_MAX, IdleConnections, Server, no_connection};
use crate::step;

/// A statement with its bound arguments.
pub(super) type Statement<'q> = Query<'q, Any, AnyArguments>;

/// The time limit of the ping of a connection that was idle for longer than [`IDLE_TRUSTED`]: the host may be
/// unreachable.
const IDLE_PING: Duration = Duration::from_millis(500);
const IDLE_TRUSTED: Duration = Duration::from_secs(1);
/// Idle time after which a connection is dropped, when another connection is put back.
const IDLE_MAX: Duration = Duration::from_mins(10);
/// The maximum age of a connection, because the memory of a session on the server grows.
const LIFETIME: Duration = Duration::from_mins(30);
/// The time limit of the rollback before a connection is put back.
const ROLLBACK_MAX: Duration = Duration::from_secs(1);

/// A set of connections with the time limit of a call.
#[derive(Clone)]
pub struct Pool {
    connections: Arc<Connections>,
    limit: Duration,
    caller_permits: Option<Arc<Semaphore>>,
    writer: Option<Writer>,
}

/// The queue for SQLite's single writer. SQLite itself has no queue: a waiting transaction polls, and the
/// relay would nearly always win. This mutex makes the transactions of this process take turns.
pub(super) type Writer = Arc<AsyncMutex<()>>;

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("limit", &self.limit).finish_non_exhaustive()
    }
}

/// A bounded set of connections to one server.
pub(super) struct Connections {
    server: Arc<Server>,
    max: u32,
    permits: Arc<Semaphore>,
    /// Idle connections; the most recently used one is the last.
    idle: Mutex<Vec<Idle>>,
    /// Each open connection holds a clone of this value: the reference count shows the number of open
    /// connections.
    open: Arc<()>,
}

struct Idle {
    connection: Open,
    since: Instant,
}

/// An open connection and the server's generation when it was opened.
struct Open {
    connection: AnyConnection,
    generation: u64,
    opened_at: Instant,
    _counted: Arc<()>,
}

impl Connections {
    /// Creates a set of connections to `server`, which are opened on demand.
    pub(super) fn to(server: &Arc<Server>, max: u32) -> Arc<Self> {
        let connections = Arc::new(Self {
            server: Arc::clone(server),
            max,
            permits: Arc::new(Semaphore::new(max as usize)),
            idle: Mutex::default(),
            open: Arc::default(),
        });
        let weak: Weak<Self> = Arc::downgrade(&connections);
        server.add(weak);
        connections
    }

    /// Returns an idle connection that answers, or a new connection.
    async fn take(
        self: &Arc<Self>,
        permit: OwnedSemaphorePermit,
        deadline: Instant,
    ) -> Result<(Open, OwnedSemaphorePermit), Error> {
        let idle = self.idle.lock().pop();
        if let Some(Idle { mut connection, since }) = idle
            && self.is_usable(&connection)
            && (since.elapsed() <= IDLE_TRUSTED || answers(&mut connection.connection).await)
        {
            return Ok((connection, permit));
        }
        let opened = self.connect(permit, deadline).await;
        if let Err(error) = &opened
            && !matches!(error, Error::PoolTimedOut)
            && Arc::strong_count(&self.open) == 1
        {
            self.server.make_room_for_pool(error);
        }
        opened
    }

    /// Opens a connection. If that takes longer than the caller may wait, the connection is kept for later calls:
    /// otherwise each call to a slow server would open a connection, and none would be used.
    async fn connect(
        self: &Arc<Self>,
        permit: OwnedSemaphorePermit,
        deadline: Instant,
    ) -> Result<(Open, OwnedSemaphorePermit), Error> {
        self.server.may_connect(deadline)?;
        let (sender, receiver) = oneshot::channel();
        let connections = Arc::clone(self);
        tokio::spawn(async move {
            let opened = connections.server.connect(Instant::now() + CONNECT_MAX).await;
            let opened = opened.map(|(connection, generation)| {
                let counted = Arc::clone(&connections.open);
                (Open { connection, generation, opened_at: Instant::now(), _counted: counted }, permit)
            });
            if let Err(Ok((open, permit))) = sender.send(opened) {
                connections.put_back(open);
                drop(permit);
            }
        });
        let opened = timeout_at(deadline, receiver).await.map_err(|_| no_connection())?;
        opened.unwrap_or_else(|_| Err(no_connection()))
    }

    fn is_usable(&self, connection: &Open) -> bool {
        connection.generation == self.server.generation() && connection.opened_at.elapsed() < LIFETIME
    }

    fn put_back(&self, connection: Open) {
        let mut idle = self.idle.lock();
        idle.retain(|idle| idle.since.elapsed() < IDLE_MAX);
        if self.is_usable(&connection) {
            idle.push(Idle { connection, since: Instant::now() });
        }
    }
}

impl IdleConnections for Connections {
    fn drop_idle(&self) {
        self.idle.lock().clear();
    }

    fn drop_one_idle(&self) -> bool {
        let mut idle = self.idle.lock();
        if idle.is_empty() {
            return false;
        }
        idle.remove(0);
        true
    }
}

/// Returns true if the server of an idle connection still answers.
async fn answers(connection: &mut AnyConnection) -> bool {
    matches!(timeout(IDLE_PING, connection.ping()).await, Ok(Ok(())))
}

impl Pool {
    /// Creates a pool in which each call has `limit` in total.
    pub(super) fn new(connections: Arc<Connections>, limit: Duration, writer: Option<Writer>) -> Self {
        Self { connections, limit, caller_permits: None, writer }
    }

    /// Returns a pool of the same connections with a different time limit, and without the limit on callers.
    /// The pool is for work that is bounded elsewhere: an export must not fail because callers use all
    /// permits.
    pub(super) fn within(&self, limit: Duration) -> Self {
        Self { limit, caller_permits: None, ..self.clone() }
    }

    /// Returns a pool of the same connections for at most `callers_max` callers at a time, waiting or served.
    /// Further calls fail immediately, so that an unavailable SQL cannot tie up all of core's request
    /// permits.
    pub(super) fn for_callers(&self, callers_max: usize) -> Self {
        Self { caller_permits: Some(Arc::new(Semaphore::new(callers_max))), ..self.clone() }
    }

    /// Waits up to `limit` until all connections are put back, then closes them.
    pub(super) async fn close(&self, limit: Duration) {
        let closed = timeout(limit, async {
            let _all = self.connections.permits.acquire_many(self.connections.max).await;
            self.connections.permits.close();
            let idle: Vec<_> = self.connections.idle.lock().drain(..).collect();
            for Idle { connection, .. } in idle {
                let _ = connection.connection.close().await;
            }
        });
        // After a timeout, the connections are closed when the process exits.
        let _ = closed.await;
    }

    /// Returns all rows of `query`, which runs at the step point `step`.
    pub(super) async fn all(&self, step: &'static str, query: Statement<'_>) -> Result<Vec<AnyRow>, Error> {
        let mut lease = self.lease_at(step).await?;
        step::after(query.fetch_all(&mut lease).await)
    }

    /// Returns the single row of `query`.
    pub(super) async fn one(&self, step: &'static str, query: Statement<'_>) -> Result<AnyRow, Error> {
        let mut lease = self.lease_at(step).await?;
        step::after(query.fetch_one(&mut lease).await)
    }

    /// Returns the first row of `query`, if any.
    pub(super) async fn optional(
        &self,
        step: &'static str,
        query: Statement<'_>,
    ) -> Result<Option<AnyRow>, Error> {
        let mut lease = self.lease_at(step).await?;
        step::after(query.fetch_optional(&mut lease).await)
    }

    /// Runs `query`, which returns no rows.
    pub(super) async fn run(
        &self,
        step: &'static str,
        query: Statement<'_>,
    ) -> Result<AnyQueryResult, Error> {
        let mut lease = self.lease_at(step).await?;
        step::after(query.execute(&mut lease).await)
    }

    /// Calls [`Self::begin`] at the step point `step`.
    pub(super) async fn begin_at(&self, step: &'static str) -> Result<Transaction, Error> {
        step::before(step).await;
        self.begin().await
    }

    /// Begins a transaction, which is rolled back when it is dropped without a commit.
    pub(super) async fn begin(&self) -> Result<Transaction, Error> {
        let deadline = Instant::now() + self.limit;
        let writer_turn = match &self.writer {
            Some(writer) => {
                let writer_turn = timeout_at(deadline, Arc::clone(writer).lock_owned()).await;
                Some(writer_turn.map_err(|_| Error::PoolTimedOut)?)
            }
            None => None,
        };
        let mut lease = self.lease_until(deadline).await?;
        sqlx::raw_sql("BEGIN").execute(&mut lease).await?;
        lease.in_transaction = true;
        Ok(Transaction { lease, _writer_turn: writer_turn })
    }

    async fn lease_at(&self, step: &'static str) -> Result<Lease, Error> {
        step::before(step).await;
        self.lease().await
    }

    /// Returns a connection for one statement without a step point.
    pub(super) async fn lease(&self) -> Result<Lease, Error> {
        self.lease_until(Instant::now() + self.limit).await
    }

    async fn lease_until(&self, deadline: Instant) -> Result<Lease, Error> {
        let caller_permit = match &self.caller_permits {
            Some(permits) => Some(Arc::clone(permits).try_acquire_owned().map_err(|_| Error::PoolTimedOut)?),
            None => None,
        };
        let permit = timeout_at(deadline, Arc::clone(&self.connections.permits).acquire_owned()).await;
        let permit = permit.map_err(|_| Error::PoolTimedOut)?.map_err(|_| Error::PoolClosed)?;
        let (connection, permit) = self.connections.take(permit, deadline).await?;
        Ok(Lease {
            connection: Some(connection),
            permit: Some(permit),
            connections: Arc::clone(&self.connections),
            deadline,
            reusable: true,
            in_transaction: false,
            _caller_permit: caller_permit,
        })
    }
}

/// A connection in use.
pub struct Lease {
    /// `None` only while the lease is dropped.
    connection: Option<Open>,
    permit: Option<OwnedSemaphorePermit>,
    connections: Arc<Connections>,
    deadline: Instant,
    /// Whether every statement so far was answered by a working server. Only then can the connection be used
    /// again.
    reusable: bool,
    in_transaction: bool,
    _caller_permit: Option<OwnedSemaphorePermit>,
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("reusable", &self.reusable).finish_non_exhaustive()
    }
}

impl Lease {
    /// Returns the connection for one statement. It cannot be used again if the statement is cancelled.
    fn statement(&mut self) -> Result<(&mut sqlx::AnyConnection, Instant), Error> {
        let was_reusable = std::mem::replace(&mut self.reusable, false);
        match &mut self.connection {
            Some(open) if was_reusable => Ok((&mut open.connection, self.deadline)),
            _ => Err(Error::WorkerCrashed),
        }
    }

    fn record_answer<T>(&mut self, answer: Result<Result<T, Error>, Elapsed>) -> Result<T, Error> {
        let answer = answer.map_err(|_| timed_out())?;
        self.reusable = answer.as_ref().err().is_none_or(|error| self.connections.server.record_error(error));
        answer
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let (Some(mut open), permit) = (self.connection.take(), self.permit.take()) else { return };
        if !self.reusable {
            return;
        }
        if !self.in_transaction {
            return self.connections.put_back(open);
        }
        let Ok(runtime) = Handle::try_current() else { return };
        let connections = Arc::clone(&self.connections);
        runtime.spawn(async move {
            let rollback = sqlx::raw_sql("ROLLBACK").execute(&mut open.connection);
            // If the rollback fails, the connection is dropped, and the server rolls back.
            if matches!(timeout(ROLLBACK_MAX, rollback).await, Ok(Ok(_))) {
                connections.put_back(open);
            }
            drop(permit);
        });
    }
}

/// Creates the error for a statement or a wait that timed out.
pub(super) fn timed_out() -> Error {
    Error::Io(io::Error::new(io::ErrorKind::TimedOut, "no answer within the time limit"))
}

impl<'c> Executor<'c> for &'c mut Lease {
    type Database = Any;

    /// Collects all rows before the stream yields the first one, so that a slow consumer cannot prolong the
    /// statement.
    fn fetch_many<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxStream<'e, Result<Either<AnyQueryResult, AnyRow>, Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Any>,
    {
        let all = async move {
            let (connection, deadline) = self.statement()?;
            let answer = timeout_at(deadline, connection.fetch_many(query).try_collect::<Vec<_>>()).await;
            self.record_answer(answer)
        };
        stream::once(all).map_ok(|all| stream::iter(all.into_iter().map(Ok))).try_flatten().boxed()
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<AnyRow>, Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Any>,
    {
        Box::pin(async move {
            let (connection, deadline) = self.statement()?;
            let answer = timeout_at(deadline, connection.fetch_optional(query)).await;
            self.record_answer(answer)
        })
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [AnyTypeInfo],
    ) -> BoxFuture<'e, Result<AnyStatement, Error>>
    where
        'c: 'e,
    {
        Box::pin(async move {
            let (connection, deadline) = self.statement()?;
            let answer = timeout_at(deadline, connection.prepare_with(sql, parameters)).await;
            self.record_answer(answer)
        })
    }
}

/// A transaction. All of its statements together have the pool's time limit.
pub struct Transaction {
    /// The connection on which the statements run.
    pub(super) lease: Lease,
    _writer_turn: Option<OwnedMutexGuard<()>>,
}

impl Transaction {
    /// Commits the transaction. After an error, the outcome is unknown.
    pub(super) async fn commit(mut self) -> Result<(), Error> {
        let committed = sqlx::raw_sql("COMMIT").execute(&mut self.lease).await;
        self.lease.in_transaction = committed.is_err();
        step::after(committed.map(drop))
    }
}

#[cfg(test)]
mod tests {
    use super::super::SqlStore;
    use super::*;

    #[tokio::test]
    async fn waiting_callers_never_block_cores_own_work() {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}?mode=rwc", directory.path().join("claims.db").display());
        let core = SqlStore::open(&url).await.unwrap();
        let callers = core.for_callers(1);
        let held = callers.pool.lease().await.unwrap();
        callers.campaigns("", 1).await.expect_err("the only permit is taken");
        core.last_change().await.unwrap();
        drop(held);
        core.close().await;
    }

    #[tokio::test]
    async fn a_caller_that_timed_out_does_not_block_new_connections() {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}?mode=rwc", directory.path().join("claims.db").display());
        let store = SqlStore::open(&url).await.unwrap();
        store.pool.connections.drop_idle();
        let over = store.pool.lease_until(Instant::now()).await;
        assert!(matches!(over, Err(Error::PoolTimedOut)));
        assert!(store.pool.connections.server.recent_fault().is_none());
        store.last_change().await.unwrap();
        store.close().await;
    }
}
