//! The only way to SQL: campaigns, claims, and who changed what. SQLite or PostgreSQL, by the address's scheme.
//!
//! Both understand the same statements but for one word, so there is one text of each. Every transaction that writes begins with a
//! write: in SQLite that takes the one writer's place at once, in PostgreSQL it locks the campaign's row.
//!
//! Every wait has a limit, whatever has become of the database's host ([`pool`]); the wait for a connection counts:
//!
//! | what waits | limit |
//! |---|---|
//! | what a caller waits for: a campaign, a page of them, a change, a claim, a page of them, a claim transition | [`INTERACTIVE`] |
//! | a batch relayed or imported; a page of a load or of an export | [`BULK`] |
//! | the sums and the gaps of a whole campaign; a salvage | [`WHOLE`] |
//! | a look whether SQL answers, on a connection of its own | [`PING`] |
//! | a new connection; an idle one looked at before it is used; rollback and return of a used one | [`CONNECT`], [`IDLE_PING`], 1 s |
//! | the end: connections that are still in use | [`CLOSE`] |
//! | at start: the first connection; the migrations | [`START`], [`MIGRATE`] |
//!
//! A statement whose limit is over is given up together with its connection. The server gives up by itself, see [`prepare`].

mod additions;
mod audit;
mod campaigns;
mod changes;
mod claims;
mod cores;
mod feed;
mod feed_writer;
mod imports;
mod migrations;
mod numbers;
mod outbox_writer;
mod pool;
mod replication;
mod restore;
mod serving;
pub mod statements;
mod transition;
mod unreadable;
mod user_claims;
mod webhooks;

use std::sync::Arc;
use std::time::Duration;

use sqlx::any::AnyPoolOptions;
use sqlx::migrate::MigrateError;
use sqlx::{AnyConnection, Connection as _, Row as _};
use tokio::time::timeout;

use self::pool::{Pool, Writer};
use self::statements::Dialect;
use self::unreadable::Unreadable;
pub use additions::Added;
pub use audit::AuditEntry;
pub use campaigns::{CampaignPage, Change, Changed};
pub use claims::{ClaimCursor, ClaimFilter, ClaimPage, ClaimRow, LoadCursor, Totals};
pub use cores::CoreRow;
pub use feed::{FeedCursor, FeedItem, FeedPage};
pub use outbox_writer::{Batch, EntryOrder, History, OutboxWriteError};
pub use replication::By;
pub use serving::ServedBy;
pub use transition::Transitioned;
pub use user_claims::{UserClaimCursor, place};
pub use webhooks::Progress;

/// Connections kept; the admin calls, look-ups and loads share them. The relay has as many of its own.
const CONNECTIONS_MAX: u32 = 8;

/// The limit of calls that a caller waits for. The edge gives core 2 s.
const INTERACTIVE: Duration = Duration::from_millis(1500);
/// Thousands of rows: a batch relayed, a page of a load or an export. They take some 300 ms.
const BULK: Duration = Duration::from_secs(15);
/// All rows of a campaign in one statement, or a salvage. A million take about a second.
const WHOLE: Duration = Duration::from_secs(60);
/// A ping.
const PING: Duration = Duration::from_secs(1);
/// A new connection, or the wait for one that is free; a caller's own limit ends it before.
const CONNECT: Duration = Duration::from_secs(5);
/// A connection that has lain idle for longer than [`IDLE_TRUSTED`] may lead to a host that is gone: it is asked first.
const IDLE_PING: Duration = Duration::from_millis(500);
const IDLE_TRUSTED: Duration = Duration::from_secs(1);
const CLOSE: Duration = Duration::from_secs(5);
const START: Duration = Duration::from_secs(5);
/// A large database may get a new index.
const MIGRATE: Duration = Duration::from_mins(30);

/// The database, SQLite or PostgreSQL.
#[derive(Clone)]
pub struct SqlStore {
    pool: Pool,
    /// One connection for [`SqlStore::ping`], made when it is first needed.
    pings: Pool,
    url: Arc<str>,
    /// `Some` for SQLite.
    writer: Option<Writer>,
    unreadable: Arc<Unreadable>,
    dialect: Dialect,
}

impl std::fmt::Debug for SqlStore {
    /// Without the address: it may hold a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqlStore").field("pool", &self.pool).finish_non_exhaustive()
    }
}

/// Why SQL did not answer.
#[derive(Debug, thiserror::Error)]
pub enum SqlError {
    /// The database cannot be reached, or refused.
    #[error("SQL is unavailable: {0}")]
    Sql(#[from] sqlx::Error),
    /// The schema could not be brought up to date.
    #[error("migrating the database: {0}")]
    Migrate(#[source] MigrateError),
    /// The schema is that of a later version, by this migration.
    #[error(
        "a later version of claimgate has changed the database (migration {0}): start that version. Older cores that run go on"
    )]
    Later(i64),
    /// The schema is not up to date in time.
    #[error("migrating the database took more than {} minutes", MIGRATE.as_secs() / 60)]
    MigrateLate,
    /// A row that this core cannot read.
    #[error("the database holds what this version cannot read: {0}")]
    Unreadable(String),
}

impl From<MigrateError> for SqlError {
    fn from(error: MigrateError) -> Self {
        match error {
            MigrateError::VersionMissing(version) => Self::Later(version),
            error => Self::Migrate(error),
        }
    }
}

impl SqlStore {
    /// The database as it is, without bringing its schema up to date; connects with the first call.
    ///
    /// # Errors
    /// When the address is none.
    pub fn as_it_is(url: &str) -> Result<Self, SqlError> {
        sqlx::any::install_default_drivers();
        Self::connect(url, url.starts_with("sqlite:").then(Writer::default))
    }

    /// Connects and brings the schema up to date.
    ///
    /// # Errors
    /// When the database does not answer within 5 s, refuses, or cannot be brought up to date.
    pub async fn open(url: &str) -> Result<Self, SqlError> {
        sqlx::any::install_default_drivers();
        // Without the limits that a server keeps by itself: an index of a large table takes its time.
        let migrating = AnyPoolOptions::new().max_connections(1).acquire_timeout(START).connect(url).await?;
        timeout(MIGRATE, migrations::migrator().run(&migrating))
            .await
            .map_err(|_| SqlError::MigrateLate)??;
        migrating.close().await;
        let sql = Self::connect(url, url.starts_with("sqlite:").then(Writer::default))?;
        // The first connection is made here, so that the first caller does not wait for it.
        sqlx::query("SELECT 1").execute(&sql.pool.within(START)).await?;
        Ok(sql)
    }

    /// Whether this is a SQLite file: then only this core can use it, since it has locked the data directory.
    pub fn is_sqlite(&self) -> bool {
        self.url.starts_with("sqlite:")
    }

    /// The same database over connections of its own, made when they are needed. SQLite works on the thread that makes
    /// them, or on one like it.
    ///
    /// # Errors
    /// When the address is none.
    pub fn reopen(&self) -> Result<Self, SqlError> {
        Self::connect(&self.url, self.writer.clone())
    }

    fn connect(url: &str, writer: Option<Writer>) -> Result<Self, SqlError> {
        let connections = |max, wait| {
            let options = AnyPoolOptions::new().max_connections(max).acquire_timeout(wait);
            options
                .test_before_acquire(false)
                .before_acquire(|connection, met| {
                    Box::pin(async move {
                        if met.idle_for > IDLE_TRUSTED {
                            let answer = timeout(IDLE_PING, connection.ping()).await;
                            answer.map_err(|_| sqlx::Error::PoolTimedOut)??;
                        }
                        Ok(true)
                    })
                })
                .after_connect(|connection, _| Box::pin(prepare(connection)))
                .connect_lazy(url)
        };
        let is_sqlite = writer.is_some();
        Ok(Self {
            pool: Pool::new(connections(CONNECTIONS_MAX, CONNECT)?, INTERACTIVE, writer.clone()),
            pings: Pool::new(connections(1, PING)?, PING, None),
            url: url.into(),
            unreadable: Arc::default(),
            dialect: if is_sqlite { Dialect::SQLITE } else { Dialect::POSTGRES },
            writer,
        })
    }

    /// The same store for callers, of whom at most `callers_max` wait for SQL at once; further ones are refused at once.
    /// Core's own work is bounded by its kind and goes past them: it is never refused.
    #[must_use]
    pub fn for_callers(&self, callers_max: usize) -> Self {
        Self { pool: self.pool.for_callers(callers_max), ..self.clone() }
    }

    /// Whether SQL answers, within 1 s, and which run of its server: another number tells that it was restarted, or that
    /// another server stands in its place. It has a connection of its own: however much the others have to do, and however
    /// long they wait, it shows the database's state.
    ///
    /// # Errors
    /// When SQL does not answer.
    pub async fn ping(&self) -> Result<i64, SqlError> {
        let statement = if self.is_sqlite() { "SELECT 0" } else { SERVER_RUN };
        Ok(sqlx::query(statement).fetch_one(&self.pings).await?.try_get(0)?)
    }

    /// Waits up to 5 s for statements in flight, and closes all connections.
    pub async fn close(&self) {
        tokio::join!(self.pool.close(CLOSE), self.pings.close(CLOSE));
    }
}

/// When PostgreSQL's server was started, in ms since 1970.
const SERVER_RUN: &str = "SELECT CAST(EXTRACT(EPOCH FROM pg_postmaster_start_time()) * 1000 AS BIGINT)";

/// Limits that PostgreSQL enforces when core, or the network to it, is gone: an abandoned transaction must not keep a
/// campaign's row locked. And no sorting where an index has the order: without it, while a database that has just been
/// restored has no statistics, each page of a load would collect and sort all claims that are left. Those that a server does
/// not know are left out.
const SERVER_SETTINGS: &str = "SELECT set_config(name, wanted.value, false) FROM (VALUES \
    ('statement_timeout', '60s'), ('lock_timeout', '10s'), ('idle_in_transaction_session_timeout', '5s'), \
    ('client_connection_check_interval', '1s'), ('tcp_user_timeout', '10s'), ('tcp_keepalives_idle', '5'), \
    ('tcp_keepalives_interval', '2'), ('tcp_keepalives_count', '3'), ('enable_sort', 'off'), \
    ('default_transaction_isolation', 'read committed')) AS wanted (parameter, value) \
    JOIN pg_settings ON name = parameter";

/// A statement that may undo itself keeps the pages it changes in a temporary file, unless told to keep them in memory. And
/// the more is written before the log is brought into the database (16,384 pages are 64 MiB), the fewer pages are brought
/// twice: the relay's claims come in the order of random users. Both together save an eighth of its time. A page that is not
/// among the 16 MiB in memory takes a call to the system.
const PRAGMAS: [&str; 7] = [
    "journal_mode = WAL",
    "synchronous = FULL",
    "busy_timeout = 1200",
    "foreign_keys = ON",
    "temp_store = MEMORY",
    "wal_autocheckpoint = 16384",
    "cache_size = -16384",
];

/// Prepares a new connection. PostgreSQL: the limits that it keeps, and how it plans. SQLite: readers beside the one writer,
/// a commit that survives the power going out, and a wait for the writer's place that ends before any caller's.
///
/// # Errors
/// When the database does not answer.
pub async fn prepare(connection: &mut AnyConnection) -> Result<(), sqlx::Error> {
    if connection.backend_name() != "SQLite" {
        sqlx::raw_sql(SERVER_SETTINGS).execute(&mut *connection).await?;
        return Ok(());
    }
    for pragma in PRAGMAS {
        let statement = sqlx::AssertSqlSafe(format!("PRAGMA {pragma}"));
        sqlx::query(statement).execute(&mut *connection).await?;
    }
    Ok(())
}
