//! Records which Redis serves the database, and when a core last confirmed this; see
//! [`crate::engine::lifecycle::serving`].

use std::time::Duration;

use sqlx::{AssertSqlSafe, Row as _};

use super::{SqlError, SqlStore};

/// The Redis that serves a database, and when a core last recorded this.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServingRedis {
    /// The id of the Redis.
    pub store_id: String,
    /// When a core last recorded that it serves with this Redis, in ms since 1970 by the database's clock.
    pub served_at_ms: i64,
    /// The time since that record, by the database's clock.
    pub silent_for: Duration,
}

impl SqlStore {
    /// Returns the Redis that last served the database.
    pub(crate) async fn served_by(&self) -> Result<Option<ServingRedis>, SqlError> {
        let statement =
            self.with_database_clock("SELECT store_id, served_at, {now} FROM serving WHERE one = 1");
        let Some(row) = sqlx::query(statement).fetch_optional(&mut self.pool.lease().await?).await? else {
            return Ok(None);
        };
        let (served_at_ms, now_ms): (i64, i64) = (row.try_get(1)?, row.try_get(2)?);
        let silent_for = Duration::from_millis(u64::try_from(now_ms - served_at_ms).unwrap_or(0));
        Ok(Some(ServingRedis { store_id: row.try_get(0)?, served_at_ms, silent_for }))
    }

    /// Records the first Redis, unless a Redis is recorded already.
    pub(crate) async fn record_first_store(&self, store_id: &str) -> Result<(), SqlError> {
        let statement = self.with_database_clock(
            "INSERT INTO serving (one, store_id, served_at) VALUES (1, $1, {now}) ON CONFLICT (one) DO NOTHING",
        );
        sqlx::query(statement).bind(store_id).execute(&mut self.pool.lease().await?).await?;
        Ok(())
    }

    /// Records that a core still serves with `store_id`. Returns `false` if a different Redis is recorded.
    pub(crate) async fn renew_serving(&self, store_id: &str) -> Result<bool, SqlError> {
        let statement = self.with_database_clock("UPDATE serving SET served_at = {now} WHERE store_id = $1");
        let done = sqlx::query(statement).bind(store_id).execute(&mut self.pool.lease().await?).await?;
        Ok(done.rows_affected() == 1)
    }

    /// Records `store_id` instead of `current`. Returns `false` if a core has served with `current` in the
    /// meantime.
    pub(crate) async fn replace_served_store(
        &self,
        current: &ServingRedis,
        store_id: &str,
    ) -> Result<bool, SqlError> {
        let statement = self.with_database_clock(
            "UPDATE serving SET store_id = $1, served_at = {now} WHERE store_id = $2 AND served_at = $3",
        );
        let done = sqlx::query(statement)
            .bind(store_id)
            .bind(current.store_id.as_str())
            .bind(current.served_at_ms)
            .execute(&mut self.pool.lease().await?)
            .await?;
        Ok(done.rows_affected() == 1)
    }

    /// Replaces `{now}` in `text` by the database's clock, in ms since 1970.
    pub(super) fn with_database_clock(&self, text: &str) -> AssertSqlSafe<String> {
        let now = if self.is_sqlite() {
            "CAST((julianday('now') - 2440587.5) * 86400000 AS BIGINT)"
        } else {
            "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)"
        };
        AssertSqlSafe(text.replace("{now}", now))
    }
}
