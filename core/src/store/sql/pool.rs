//! Connections on which no statement waits without a limit.
//!
//! Each call on a [`Pool`], and each [`Transaction`], has the pool's limit in all, the wait for a connection included. A
//! connection that has not answered by then, or has broken, is dropped: put back, it would keep the next caller waiting.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt as _, TryStreamExt as _};
use sqlx::any::{AnyQueryResult, AnyRow, AnyStatement, AnyTypeInfo};
use sqlx::pool::PoolConnection;
use sqlx::{Any, AnyPool, Either, Error, Execute, Executor, SqlStr};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout, timeout_at};

/// How long a rollback and the last look at a connection may take, before it is put back.
const GIVE_BACK: Duration = Duration::from_secs(1);

/// Connections, and the time limit of a call on one of them.
#[derive(Clone)]
pub struct Pool {
    connections: AnyPool,
    limit: Duration,
    places: Option<Arc<Semaphore>>,
    writer: Option<Writer>,
}

/// SQLite's one place for a writer. SQLite gives it to the transaction that polls at the right moment, which the relay
/// nearly always does; here this process' transactions get it in turn.
pub(super) type Writer = Arc<Mutex<()>>;

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl Pool {
    /// Each call has `limit` in all.
    pub(super) fn new(connections: AnyPool, limit: Duration, writer: Option<Writer>) -> Self {
        Self { connections, limit, places: None, writer }
    }

    /// The same connections with another limit, for what is bounded by its kind: an export is not broken off because callers
    /// have taken all places meanwhile.
    pub(super) fn within(&self, limit: Duration) -> Self {
        Self { limit, places: None, ..self.clone() }
    }

    /// The same connections for at most `callers_max` callers at once, waiting or served. A further caller is refused at
    /// once: while SQL does not answer, callers that need it must not take up all of core's places.
    pub(super) fn for_callers(&self, callers_max: usize) -> Self {
        Self { places: Some(Arc::new(Semaphore::new(callers_max))), ..self.clone() }
    }

    /// Waits until all connections are back, at most for `limit`, and closes them.
    pub(super) async fn close(&self, limit: Duration) {
        // When the limit is over, they end with the process.
        let _ = timeout(limit, self.connections.close()).await;
    }

    /// Begins a transaction. What it has not committed when it is dropped is rolled back.
    pub(super) async fn begin(&self) -> Result<Transaction, Error> {
        let deadline = Instant::now() + self.limit;
        let turn = match &self.writer {
            Some(writer) => {
                let turn = timeout_at(deadline, Arc::clone(writer).lock_owned()).await;
                Some(turn.map_err(|_| Error::PoolTimedOut)?)
            }
            None => None,
        };
        let mut lease = self.lease_until(deadline).await?;
        sqlx::raw_sql("BEGIN").execute(&mut lease).await?;
        lease.in_transaction = true;
        Ok(Transaction { lease, _turn: turn })
    }

    async fn lease(&self) -> Result<Lease, Error> {
        self.lease_until(Instant::now() + self.limit).await
    }

    async fn lease_until(&self, deadline: Instant) -> Result<Lease, Error> {
        let place = match &self.places {
            Some(places) => Some(Arc::clone(places).try_acquire_owned().map_err(|_| Error::PoolTimedOut)?),
            None => None,
        };
        let connection = timeout_at(deadline, self.connections.acquire()).await;
        let connection = connection.map_err(|_| Error::PoolTimedOut)??;
        Ok(Lease {
            connection: Some(connection),
            deadline,
            whole: true,
            in_transaction: false,
            _place: place,
        })
    }
}

/// A connection in use.
pub struct Lease {
    /// `Some` until dropped.
    connection: Option<PoolConnection<Any>>,
    deadline: Instant,
    /// Whether every statement so far has been answered: only then can the connection be used again.
    whole: bool,
    in_transaction: bool,
    _place: Option<OwnedSemaphorePermit>,
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("whole", &self.whole).finish_non_exhaustive()
    }
}

impl Lease {
    /// The connection for one statement. If the future is dropped before the answer, the connection cannot be used again.
    fn statement(&mut self) -> Result<(&mut sqlx::AnyConnection, Instant), Error> {
        let was_whole = std::mem::replace(&mut self.whole, false);
        match &mut self.connection {
            Some(connection) if was_whole => Ok((connection, self.deadline)),
            _ => Err(Error::WorkerCrashed),
        }
    }

    fn answered<T>(&mut self, answer: Result<Result<T, Error>, Elapsed>) -> Result<T, Error> {
        let answer = answer.map_err(|_| late())?;
        self.whole = !matches!(
            answer,
            Err(Error::Io(_)
                | Error::Tls(_)
                | Error::Protocol(_)
                | Error::WorkerCrashed
                | Error::PoolTimedOut)
        );
        answer
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(mut connection) = self.connection.take() else { return };
        let (true, Ok(runtime)) = (self.whole, Handle::try_current()) else {
            drop(connection.detach());
            return;
        };
        let in_transaction = self.in_transaction;
        // When the limit is over, the connection is dropped, and with it what it has not committed.
        runtime.spawn(timeout(GIVE_BACK, async move {
            if in_transaction && sqlx::raw_sql("ROLLBACK").execute(&mut *connection).await.is_err() {
                drop(connection.detach());
                return;
            }
            connection.return_to_pool().await;
        }));
    }
}

fn late() -> Error {
    Error::Io(io::Error::new(io::ErrorKind::TimedOut, "no answer within the time limit"))
}

impl<'c> Executor<'c> for &'c mut Lease {
    type Database = Any;

    /// All rows are collected before the stream yields the first: a slow consumer must not prolong the statement.
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
            self.answered(answer)
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
            self.answered(answer)
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
            self.answered(answer)
        })
    }
}

impl<'p> Executor<'p> for &'p Pool {
    type Database = Any;

    fn fetch_many<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxStream<'e, Result<Either<AnyQueryResult, AnyRow>, Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Any>,
    {
        let all = async move { self.lease().await?.fetch_many(query).try_collect::<Vec<_>>().await };
        stream::once(all).map_ok(|all| stream::iter(all.into_iter().map(Ok))).try_flatten().boxed()
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<AnyRow>, Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Any>,
    {
        Box::pin(async move { self.lease().await?.fetch_optional(query).await })
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [AnyTypeInfo],
    ) -> BoxFuture<'e, Result<AnyStatement, Error>>
    where
        'p: 'e,
    {
        Box::pin(async move { self.lease().await?.prepare_with(sql, parameters).await })
    }
}

/// Statements that count together or not at all. All of them have the pool's limit together.
#[derive(Debug)]
pub struct Transaction {
    lease: Lease,
    _turn: Option<OwnedMutexGuard<()>>,
}

impl Transaction {
    /// Commits. After an error it is unknown whether the commit has happened.
    pub(super) async fn commit(mut self) -> Result<(), Error> {
        sqlx::raw_sql("COMMIT").execute(&mut self.lease).await?;
        self.lease.in_transaction = false;
        Ok(())
    }
}

impl Deref for Transaction {
    type Target = Lease;
    fn deref(&self) -> &Lease {
        &self.lease
    }
}

impl DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut Lease {
        &mut self.lease
    }
}

#[cfg(test)]
mod tests {
    use super::super::SqlStore;

    #[tokio::test]
    async fn callers_that_wait_for_sql_never_keep_core_from_it() {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}?mode=rwc", directory.path().join("claims.db").display());
        let core = SqlStore::open(&url).await.unwrap();
        let callers = core.for_callers(1);
        let held = callers.pool.lease().await.unwrap();
        callers.campaigns("", 1).await.expect_err("the one place is taken");
        core.last_change().await.unwrap();
        drop(held);
        core.close().await;
    }
}
