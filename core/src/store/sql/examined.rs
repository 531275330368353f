//! Reads the database for `doctor`, on a separate connection and without changing anything.

use sqlx::{AnyConnection, Connection as _, Row as _};

use super::connection_limits::{self, LowConnectionLimit};
use super::server::{self, Writable};
use super::{SqlError, collation, encoding, pooler, statements};

/// A connection for checks, which works even if no core serves the database.
#[derive(Debug)]
pub(crate) struct ExaminedDatabase(AnyConnection);

/// The size of a primary's replica set.
#[derive(Debug)]
pub(crate) struct SetSize {
    /// The address of the primary.
    pub(crate) primary: String,
    /// The number of replicas that have all acknowledged writes.
    pub(crate) members: usize,
}

impl ExaminedDatabase {
    /// Connects to the database at `url`: to a server that accepts writes, if any of its addresses leads to one.
    pub(crate) async fn connect(url: &str) -> Result<Self, SqlError> {
        sqlx::any::install_default_drivers();
        Ok(Self(server::open(url).await?))
    }

    /// Closes the connection.
    pub(crate) async fn close(self) -> Result<(), SqlError> {
        Ok(self.0.close().await?)
    }

    /// Reads from a SQLite file, to check that the file is a database: opening a file does not read it.
    pub(crate) async fn read_sqlite(&mut self) -> Result<(), SqlError> {
        sqlx::query("SELECT count(*) FROM sqlite_master").fetch_one(&mut self.0).await?;
        Ok(())
    }

    /// Returns true if a pooler at `url` may run each transaction in another PostgreSQL session.
    pub(crate) async fn shares_sessions(&mut self, url: &str) -> Result<bool, SqlError> {
        Ok(pooler::session_changes(&mut self.0, url).await?)
    }

    /// Checks whether PostgreSQL accepts writes.
    pub(crate) async fn writable(&mut self) -> Result<Writable, SqlError> {
        Ok(server::writable(&mut self.0).await?)
    }

    /// Returns the lowest limit on connections to PostgreSQL, if a single core may reach it.
    pub(crate) async fn low_connection_limit(&mut self) -> Result<Option<LowConnectionLimit>, SqlError> {
        Ok(connection_limits::low_connection_limit(&mut self.0).await?)
    }

    /// Returns the encoding and the collation of a PostgreSQL database, as text for people.
    pub(crate) async fn encoding_and_collation(&mut self) -> Result<String, SqlError> {
        Ok(collation::with_encoding(&mut self.0).await?)
    }

    /// Returns what is wrong with the encoding of a PostgreSQL database.
    pub(crate) async fn encoding_problem(&mut self) -> Result<Option<String>, SqlError> {
        Ok(encoding::problem(&mut self.0).await?)
    }

    /// Returns what is wrong with the collation of a PostgreSQL database.
    pub(crate) async fn collation_problem(&mut self) -> Result<Option<String>, SqlError> {
        Ok(collation::problem(&mut self.0).await?)
    }

    /// Returns a setting of PostgreSQL.
    pub(crate) async fn setting(&mut self, name: &str) -> Result<String, SqlError> {
        Ok(sqlx::query_scalar("SELECT current_setting($1)").bind(name).fetch_one(&mut self.0).await?)
    }

    /// Returns the time of PostgreSQL's clock, in milliseconds since 1970.
    pub(crate) async fn clock_ms(&mut self) -> Result<i64, SqlError> {
        let now = "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)";
        Ok(sqlx::query_scalar(now).fetch_one(&mut self.0).await?)
    }

    /// Returns the number of granted claims without codes, of each campaign that has such claims.
    pub(crate) async fn claims_without_codes(&mut self) -> Result<Vec<(String, i64)>, SqlError> {
        let campaigns =
            "SELECT id, codes_pending_from FROM campaigns WHERE codes_pending_from IS NOT NULL ORDER BY id";
        let mut waiting = Vec::new();
        for row in sqlx::query(campaigns).fetch_all(&mut self.0).await? {
            let (campaign, from): (String, i64) = (row.try_get(0)?, row.try_get(1)?);
            let count = sqlx::query_scalar(statements::PENDING_CODES).bind(campaign.as_str()).bind(from);
            let claims = count.fetch_one(&mut self.0).await?;
            if claims > 0 {
                waiting.push((campaign, claims));
            }
        }
        Ok(waiting)
    }

    /// Returns the minimum number of replicas, and the size of each replica set; `None` before a core has
    /// served.
    pub(crate) async fn replication(&mut self) -> Result<Option<(i64, Vec<SetSize>)>, SqlError> {
        let row = sqlx::query("SELECT replicas_min FROM replication").fetch_optional(&mut self.0).await?;
        let Some(row) = row else { return Ok(None) };
        let sets = sqlx::query("SELECT primary_at, members FROM replica_sets ORDER BY id");
        let sets = sets.fetch_all(&mut self.0).await?;
        let sets = sets.iter().map(|row| {
            let (primary, members): (String, &str) = (row.try_get(0)?, row.try_get(1)?);
            Ok(SetSize { primary, members: members.split_whitespace().count() })
        });
        Ok(Some((row.try_get(0)?, sets.collect::<Result<_, SqlError>>()?)))
    }

    /// Returns the id of the Redis that last served the database.
    pub(crate) async fn store_id(&mut self) -> Result<Option<String>, SqlError> {
        let row = sqlx::query("SELECT store_id FROM serving").fetch_optional(&mut self.0).await?;
        Ok(row.map(|row| row.try_get(0)).transpose()?)
    }

    /// Returns the id of the register to which the campaign belongs.
    pub(crate) async fn register_id(&mut self, campaign: &str) -> Result<Option<String>, SqlError> {
        let row = sqlx::query("SELECT register_id FROM campaigns WHERE id = $1").bind(campaign);
        Ok(row.fetch_optional(&mut self.0).await?.map(|row| row.try_get(0)).transpose()?)
    }
}
