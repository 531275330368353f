//! One application server's connections to PostgreSQL, with counted round trips.

use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgArguments, PgConnectOptions, PgPool, PgPoolOptions, PgRow};
use sqlx::query::Query;
use sqlx::{Postgres, Row as _};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::error::{Result, StockError};
use crate::meter::Meter;

/// Maximum number of connections of one application server.
pub const CONNECTIONS_MAX: u32 = 32;
/// Timeout for opening a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Tables of the strategies.
const TABLES: &[&str] = &[
    "CREATE TABLE IF NOT EXISTS stock (id TEXT PRIMARY KEY, units BIGINT NOT NULL, version BIGINT NOT NULL DEFAULT 0) \
     WITH (fillfactor = 50)",
    "CREATE TABLE IF NOT EXISTS stock_part (id TEXT NOT NULL, part BIGINT NOT NULL, units BIGINT NOT NULL, \
     PRIMARY KEY (id, part)) WITH (fillfactor = 50)",
    "CREATE TABLE IF NOT EXISTS taker (id TEXT NOT NULL, user_id TEXT NOT NULL, units BIGINT NOT NULL, \
     PRIMARY KEY (id, user_id))",
    "CREATE TABLE IF NOT EXISTS purchase (id TEXT NOT NULL, user_id TEXT NOT NULL, units BIGINT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS purchase_by_user ON purchase (id, user_id)",
    "CREATE TABLE IF NOT EXISTS catalogue (id TEXT PRIMARY KEY, units BIGINT NOT NULL)",
];

/// A bound value of a statement.
#[derive(Debug, Clone, Copy)]
pub enum Value<'a> {
    Text(&'a str),
    Number(i64),
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a String> for Value<'a> {
    fn from(text: &'a String) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for Value<'_> {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<u32> for Value<'_> {
    fn from(number: u32) -> Self {
        Self::Number(i64::from(number))
    }
}

/// A bounded connection pool.
#[derive(Debug)]
pub struct Sql {
    pool: PgPool,
    /// Bounds the pool. A caller that gives up waiting here leaves no half-open connection.
    permits: Arc<Semaphore>,
    meter: Arc<Meter>,
}

/// A transaction, which is rolled back on drop.
#[derive(Debug)]
pub struct Transaction {
    inner: sqlx::Transaction<'static, Postgres>,
    meter: Arc<Meter>,
    _permit: OwnedSemaphorePermit,
}

impl Sql {
    /// Creates a pool that connects on first use.
    pub fn new(url: &str, meter: Arc<Meter>) -> Result<Self> {
        let options = PgConnectOptions::from_str(url)?;
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS_MAX)
            .acquire_timeout(CONNECT_TIMEOUT)
            // A test of each connection would cost one more round trip per claim.
            .test_before_acquire(false)
            .connect_lazy_with(options);
        Ok(Self { pool, permits: Arc::new(Semaphore::new(CONNECTIONS_MAX as usize)), meter })
    }

    /// Creates the tables that the strategies share.
    pub async fn create_tables(&self) -> Result<()> {
        for table in TABLES {
            sqlx::query(*table).execute(&self.pool).await?;
        }
        Ok(())
    }

    /// Begins a transaction, one round trip.
    pub async fn begin(&self, deadline: Instant) -> Result<Transaction> {
        let permit = self.permit(deadline).await?;
        self.meter.trips.add(1);
        Ok(Transaction { inner: self.pool.begin().await?, meter: Arc::clone(&self.meter), _permit: permit })
    }

    /// Runs a single statement; returns the number of changed rows.
    pub async fn run(&self, deadline: Instant, text: &'static str, values: &[Value<'_>]) -> Result<u64> {
        let _permit = self.permit(deadline).await?;
        self.meter.trips.add(1);
        Ok(bound(text, values).execute(&self.pool).await?.rows_affected())
    }

    /// Runs a single query; returns its first row of integers.
    pub async fn row(
        &self,
        deadline: Instant,
        text: &'static str,
        values: &[Value<'_>],
    ) -> Result<Option<Vec<i64>>> {
        let _permit = self.permit(deadline).await?;
        self.meter.trips.add(1);
        bound(text, values).fetch_optional(&self.pool).await?.as_ref().map(numbers).transpose()
    }

    pub async fn close(&self) {
        self.pool.close().await;
    }

    async fn permit(&self, deadline: Instant) -> Result<OwnedSemaphorePermit> {
        let permit = timeout_at(deadline, Arc::clone(&self.permits).acquire_owned()).await;
        permit.map_err(|_| StockError::TimedOut)?.map_err(|_| StockError::Stopped)
    }
}

impl Transaction {
    /// Runs a statement, one round trip; returns the number of changed rows.
    pub async fn run(&mut self, text: &'static str, values: &[Value<'_>]) -> Result<u64> {
        self.meter.trips.add(1);
        Ok(bound(text, values).execute(&mut *self.inner).await?.rows_affected())
    }

    /// Runs a query, one round trip; returns its first row of integers.
    pub async fn row(&mut self, text: &'static str, values: &[Value<'_>]) -> Result<Option<Vec<i64>>> {
        Ok(self.rows(text, values).await?.into_iter().next())
    }

    /// Runs a query, one round trip; returns all rows of integers.
    pub async fn rows(&mut self, text: &'static str, values: &[Value<'_>]) -> Result<Vec<Vec<i64>>> {
        self.meter.trips.add(1);
        bound(text, values).fetch_all(&mut *self.inner).await?.iter().map(numbers).collect()
    }

    /// Commits the transaction, one round trip.
    pub async fn commit(self) -> Result<()> {
        self.meter.trips.add(1);
        Ok(self.inner.commit().await?)
    }

    /// Rolls the transaction back, one round trip.
    pub async fn roll_back(self) -> Result<()> {
        self.meter.trips.add(1);
        Ok(self.inner.rollback().await?)
    }
}

fn bound<'a>(text: &'static str, values: &[Value<'a>]) -> Query<'a, Postgres, PgArguments> {
    values.iter().fold(sqlx::query(text), |query, value| match *value {
        Value::Text(text) => query.bind(text),
        Value::Number(number) => query.bind(number),
    })
}

fn numbers(row: &PgRow) -> Result<Vec<i64>> {
    (0..row.len()).map(|at| row.try_get::<i64, _>(at).map_err(StockError::from)).collect()
}
