//! The only way to SQL: campaigns, claims, and who changed what. SQLite or PostgreSQL, by the address's scheme.
//!
//! Both understand the same statements but for one word, so there is one text of each. Every transaction that writes begins with a
//! write: in SQLite that takes the one writer's place at once, in PostgreSQL it locks the campaign's row.

mod campaigns;
mod claims;
mod register;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sqlx::any::AnyPoolOptions;
use sqlx::{AnyConnection, AnyPool};

pub use campaigns::{Change, Changed};
pub use claims::{ClaimCursor, ClaimPage, ClaimRow, DrainError, Totals};
pub use register::Stamp;

/// Connections kept; the drain, the admin calls and look-ups share them.
const CONNECTIONS_MAX: u32 = 8;
/// The longest a call waits for a connection, or SQLite for its lock.
const WAIT: Duration = Duration::from_secs(5);

static MIGRATIONS: sqlx::migrate::Migrator = sqlx::migrate!("./migrations");

/// Where the register is kept.
#[derive(Clone)]
pub struct Archive {
    pool: AnyPool,
    url: Arc<str>,
    /// How this database makes rows of `$1`, a JSON array: the one thing the two say differently.
    rows_of_json: &'static str,
}

impl std::fmt::Debug for Archive {
    /// Without the address: it may hold a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Archive").field("pool", &self.pool).finish_non_exhaustive()
    }
}

/// Why SQL did not answer.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The database cannot be reached, or refused.
    #[error("SQL is unavailable: {0}")]
    Sql(#[from] sqlx::Error),
    /// The schema could not be brought up to date.
    #[error("migrating the register: {0}")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    /// A row that this core cannot read.
    #[error("the register holds what this version cannot read: {0}")]
    Unreadable(String),
}

/// The address of a SQLite file.
pub fn sqlite_url(file: &Path) -> String {
    format!("sqlite://{}?mode=rwc", file.display())
}

impl Archive {
    /// Connects and brings the schema up to date.
    pub async fn open(url: &str) -> Result<Self, ArchiveError> {
        sqlx::any::install_default_drivers();
        let pool = AnyPoolOptions::new()
            .max_connections(CONNECTIONS_MAX)
            .acquire_timeout(WAIT)
            .after_connect(|connection, _| Box::pin(prepare(connection)))
            .connect(url)
            .await?;
        MIGRATIONS.run(&pool).await?;
        let sqlite = url.starts_with("sqlite:");
        let rows_of_json = if sqlite { "json_each($1)" } else { "jsonb_array_elements(CAST($1 AS JSONB))" };
        Ok(Self { pool, url: url.into(), rows_of_json })
    }

    /// The same register over connections of its own. SQLite works on the thread that makes them, or on one like it.
    pub async fn reopen(&self) -> Result<Self, ArchiveError> {
        Self::open(&self.url).await
    }

    /// Waits for what is under way and closes.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}

/// SQLite: readers beside the one writer, and a commit that survives the power going out.
async fn prepare(connection: &mut AnyConnection) -> Result<(), sqlx::Error> {
    if connection.backend_name() != "SQLite" {
        // A core that stops in the middle of a transaction must not keep the campaign's row from the others.
        sqlx::query("SET idle_in_transaction_session_timeout = '5s'").execute(&mut *connection).await?;
        return Ok(());
    }
    for pragma in ["journal_mode = WAL", "synchronous = FULL", "busy_timeout = 5000", "foreign_keys = ON"] {
        let statement = sqlx::AssertSqlSafe(format!("PRAGMA {pragma}"));
        sqlx::query(statement).execute(&mut *connection).await?;
    }
    Ok(())
}
