//! The SQL store: campaigns, claims, the feed and the audit. Only this module talks to SQL. The scheme of the
//! address selects SQLite or PostgreSQL.
//!
//! Both databases share the text of each statement; only the placeholders of [`Dialect`] differ. Every
//! transaction that writes begins with a write. In SQLite, this takes the write lock immediately;
//! in PostgreSQL, it locks the campaign's row.
//!
//! Every wait has a limit, even if the database's host is unreachable ([`pool`]). The limit includes the wait
//! for a connection:
//!
//! | wait | limit |
//! |---|---|
//! | calls with a waiting caller: campaigns, changes, claims, lists, claim transitions | [`INTERACTIVE_MAX`] |
//! | a relayed or imported batch; a page of a load or of an export | [`BULK_MAX`] |
//! | sums and gaps of a whole campaign; a salvage | [`WHOLE_CAMPAIGN_MAX`] |
//! | Redis, while the row of a campaign with codes is locked | [`SHOWN_MAX`] |
//! | a heartbeat, on its dedicated connection | 2.5 s |
//! | a new connection; the check of an idle one; the rollback of a used one | 5 s, 0.5 s, 1 s |
//! | on shutdown: connections in use | [`CLOSE_MAX`] |
//! | at start: the first connection; the migrations | [`START_MAX`], [`MIGRATE_MAX`] |
//!
//! After a timeout, the statement is abandoned together with its connection. The server has its own limits,
//! see [`prepare`].

mod additions;
mod address;
mod archive;
mod audit;
mod campaigns;
mod changes;
mod claims;
mod codes;
mod collation;
pub(crate) mod connection_limits;
mod cores;
pub(crate) mod encoding;
pub(crate) mod examined;
mod feed;
mod feed_writer;
mod heartbeat;
mod heartbeat_connection;
mod imports;
mod lost_codes;
mod migrations;
mod numbers;
mod outbox_writer;
mod pool;
pub(crate) mod pooler;
mod refusals;
mod replication;
mod report;
mod restore;
mod restored_codes;
pub(crate) mod server;
mod serving;
pub mod statements;
mod transition;
mod unreadable;
mod user_claims;
mod user_ids;
mod webhooks;

use std::sync::Arc;
use std::time::Duration;

use sqlx::migrate::MigrateError;
use sqlx::{AnyConnection, Connection as _, Error};
use tokio::time::{Instant, sleep, timeout};

use self::heartbeat_connection::HeartbeatConnection;
use self::pool::{Connections, Pool, Writer};
use self::server::Server;
use self::statements::Dialect;
use self::unreadable::Unreadable;
pub use additions::Added;
pub use audit::AuditFilter;
pub use campaigns::{CampaignPage, Change, Changed};
pub use claims::{ClaimCursor, ClaimFilter, ClaimPage, ClaimRow, LoadCursor, Totals};
pub(crate) use codes::{AddedChunk, Upload};
pub use cores::CoreRow;
pub use feed::{FeedCursor, FeedItem, FeedPage};
pub use outbox_writer::{Batch, EntryOrder, History, OutboxWriteError};
pub use replication::ChangedBy;
pub use report::{ClaimTotals, RefusalTotals, Step};
pub use server::prepare;
pub use serving::ServingRedis;
pub use transition::Transitioned;
pub use user_claims::{UserClaimCursor, order_key};
pub use user_ids::{SchemePinned, SchemeSet};
pub use webhooks::Progress;

/// Maximum number of connections in a pool. Callers and loads share one pool, and the relay has another.
const CONNECTIONS_MAX: u32 = 8;

/// Timeout of calls with a waiting caller. The edge gives core 2 s.
const INTERACTIVE_MAX: Duration = Duration::from_millis(1500);
/// Timeout for thousands of rows: a relayed batch, or a page of a load or an export. Such a statement takes
/// about 300 ms.
const BULK_MAX: Duration = Duration::from_secs(15);
/// Timeout of a statement that touches every row of a campaign, and of a salvage ([`SqlStore::salvage`]). A
/// million rows take about a second.
const WHOLE_CAMPAIGN_MAX: Duration = Duration::from_secs(60);
/// Timeout of Redis while a campaign's row is locked. On SQLite, nothing else can be written in the meantime, so the
/// timeout must be shorter than [`INTERACTIVE_MAX`] and the limit of a heartbeat.
const SHOWN_MAX: Duration = Duration::from_secs(1);
/// The error for a string that is not a cursor of a list.
const NO_CURSOR: &str = "must be the next_cursor of a page of this list";
const CLOSE_MAX: Duration = Duration::from_secs(5);
/// Timeout for a server that starts at the same time as core.
const START_MAX: Duration = Duration::from_secs(5);
/// Timeout for a SQLite file, which may be on a slow disk.
const SQLITE_START_MAX: Duration = Duration::from_mins(1);
/// The pause between two attempts to open the first connection.
const CONNECT_RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Timeout of all migrations, which may build an index in a large database.
const MIGRATE_MAX: Duration = Duration::from_mins(30);

/// The SQL store, on SQLite or PostgreSQL.
#[derive(Clone)]
pub struct SqlStore {
    pool: Pool,
    heartbeats: Arc<HeartbeatConnection>,
    server: Arc<Server>,
    /// `Some` for SQLite.
    writer: Option<Writer>,
    unreadable: Arc<Unreadable>,
    dialect: Dialect,
}

impl std::fmt::Debug for SqlStore {
    /// Leaves out the address, which may contain a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqlStore").field("pool", &self.pool).finish_non_exhaustive()
    }
}

/// The reason why a call to SQL failed.
#[derive(Debug, thiserror::Error)]
pub enum SqlError {
    /// The database is unreachable, timed out, or refused the call. A commit without an answer may have taken
    /// effect.
    #[error("SQL is unavailable: {0}")]
    Sql(#[from] sqlx::Error),
    /// A migration failed.
    #[error("migrating the database: {0}")]
    Migrate(#[source] MigrateError),
    /// A newer version of claimgate has migrated the schema. The value is the number of its migration.
    #[error(
        "a newer version of claimgate has migrated the database (migration {0}): start that version. Running cores of older \
         versions continue to work"
    )]
    NewerSchema(i64),
    /// The migrations timed out.
    #[error("migrating the database took more than {} minutes", MIGRATE_MAX.as_secs() / 60)]
    MigrateTimeout,
    /// The database cannot serve core: a pooler shares sessions, or the server allows too few connections.
    #[error("{0}")]
    UnsuitableDatabase(String),
    /// This version cannot read a row.
    #[error("the database contains data that this version cannot read: {0}")]
    Unreadable(String),
}

impl SqlError {
    /// Creates the error of a call that timed out.
    pub fn timed_out() -> Self {
        Self::Sql(Error::PoolTimedOut)
    }

    /// Returns true if the same call may succeed later, see [`is_transient`].
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Sql(error)
            | Self::Migrate(MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _)) => {
                is_transient(error)
            }
            _ => false,
        }
    }
}

/// Returns true if the same call may succeed later: the database timed out, is starting or stopping, or has
/// no free connection.
pub fn is_transient(error: &Error) -> bool {
    match error {
        Error::Io(_) | Error::PoolTimedOut | Error::WorkerCrashed => true,
        Error::Database(error) => error.code().is_some_and(|code| {
            ["53300", "57P01", "57P02", "57P03"].contains(&&*code) || server::is_busy(&code)
        }),
        _ => false,
    }
}

impl From<MigrateError> for SqlError {
    fn from(error: MigrateError) -> Self {
        match error {
            MigrateError::VersionMissing(version) => Self::NewerSchema(version),
            error => Self::Migrate(error),
        }
    }
}

impl SqlStore {
    /// Creates a store that does not migrate the database. It connects on the first call.
    pub fn without_migrating(url: &str) -> Self {
        sqlx::any::install_default_drivers();
        Self::on(Arc::new(Server::at(url)), server::is_file(url).then(Writer::default))
    }

    /// Connects and runs the migrations. Waits up to 5 s for a server that is starting or restarting, and up
    /// to a minute for a SQLite file on a slow disk.
    pub async fn open(url: &str) -> Result<Self, SqlError> {
        let sql = Self::without_migrating(url);
        let limit = if sql.is_sqlite() { SQLITE_START_MAX } else { START_MAX };
        let until = Instant::now() + limit;
        loop {
            match sql.try_open(url, limit).await {
                Err(error) if error.is_transient() && Instant::now() < until => {
                    sleep(CONNECT_RETRY_PAUSE).await;
                }
                Err(error) => return Err(pooler::explain_pooler_error(error)),
                Ok(()) => return Ok(sql),
            }
        }
    }

    async fn try_open(&self, url: &str, limit: Duration) -> Result<(), SqlError> {
        // No limits are set for this connection on the server, because building an index on a large table
        // takes long.
        let connecting = timeout(limit, server::open_writable(url));
        let mut migrating = connecting.await.unwrap_or_else(|_| Err(pool::timed_out()))?;
        if !self.is_sqlite() {
            check_suitable(&mut migrating, url).await?;
        }
        timeout(MIGRATE_MAX, migrations::migrator().run_direct(None, &mut migrating, false))
            .await
            .map_err(|_| SqlError::MigrateTimeout)??;
        if !self.is_sqlite() {
            compare_by_bytes(&mut migrating).await?;
        }
        migrating.close().await?;
        // Open the first connection here, so that the first caller does not have to wait.
        sqlx::query("SELECT 1").execute(&mut self.pool.within(limit).lease().await?).await?;
        Ok(())
    }

    /// Returns true for SQLite. Only this core uses the file, because it has locked the data directory.
    pub fn is_sqlite(&self) -> bool {
        self.writer.is_some()
    }

    /// Returns a store for the same database with a separate pool. SQLite works on threads that inherit the
    /// priority of the thread that opens its connections.
    #[must_use]
    pub fn reopen(&self) -> Self {
        let connections = Connections::to(&self.server, CONNECTIONS_MAX);
        Self { pool: Pool::new(connections, INTERACTIVE_MAX, self.writer.clone()), ..self.clone() }
    }

    fn on(server: Arc<Server>, writer: Option<Writer>) -> Self {
        let connections = Connections::to(&server, CONNECTIONS_MAX);
        Self {
            pool: Pool::new(connections, INTERACTIVE_MAX, writer.clone()),
            heartbeats: Arc::new(HeartbeatConnection::of(&server)),
            server,
            unreadable: Arc::default(),
            dialect: if writer.is_some() { Dialect::SQLITE } else { Dialect::POSTGRES },
            writer,
        }
    }

    /// Returns a store for calls with a waiting caller. At most `callers_max` calls use SQL at a time, and
    /// further calls fail immediately. Core's own work is bounded elsewhere, and uses stores without this
    /// limit.
    #[must_use]
    pub fn for_callers(&self, callers_max: usize) -> Self {
        Self { pool: self.pool.for_callers(callers_max), ..self.clone() }
    }

    /// Waits up to 5 s for statements in flight, then closes all connections.
    pub async fn close(&self) {
        tokio::join!(self.pool.close(CLOSE_MAX), self.heartbeats.stop());
    }
}

/// Gives all ids the collation C. Core serves even if that fails: its role does not own the tables, rows are
/// stored twice, or a long transaction is open.
async fn compare_by_bytes(connection: &mut AnyConnection) -> Result<(), SqlError> {
    let converted = timeout(MIGRATE_MAX, collation::compare_by_bytes(connection)).await;
    match converted.map_err(|_| SqlError::MigrateTimeout)? {
        Err(error) if !is_transient(&error) => {
            tracing::error!(
                %error,
                "cannot change the id columns to collation \"C\"; a libc or ICU upgrade may reorder ids"
            );
            Ok(())
        }
        converted => Ok(converted?),
    }
}

/// Rejects a database that can never serve core. Warns about a database that sometimes cannot.
async fn check_suitable(connection: &mut AnyConnection, url: &str) -> Result<(), SqlError> {
    let few = connection_limits::low_connection_limit(connection).await?;
    if let Some(few) = few {
        if few.connections < connection_limits::CONNECTIONS_MIN {
            let min = connection_limits::CONNECTIONS_MIN;
            return Err(SqlError::UnsuitableDatabase(format!(
                "{few}; core does not start with fewer than {min}"
            )));
        }
        tracing::warn!("{few}; raise {}", few.set_by);
    }
    encoding::require_unicode(connection).await?;
    pooler::reject_shared_sessions(connection, url).await
}
