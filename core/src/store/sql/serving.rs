//! Which Redis serves the database, and when a core last did; see [`crate::engine::serving`].

use std::time::Duration;

use sqlx::{AssertSqlSafe, Row as _};

use super::{SqlError, SqlStore};

/// Which Redis serves a database, and how long ago a core last recorded that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedBy {
    /// The Redis' own id.
    pub store_id: String,
    /// When a core last recorded that it serves with it, in ms since 1970 by the database's clock.
    pub served_at_ms: i64,
    /// How long ago that was, by the same clock.
    pub silent_for: Duration,
}

impl SqlStore {
    /// Which Redis the database was last served with.
    pub(crate) async fn served_by(&self) -> Result<Option<ServedBy>, SqlError> {
        let statement = self.with_now("SELECT store_id, served_at, {now} FROM serving WHERE one = 1");
        let Some(row) = sqlx::query(statement).fetch_optional(&self.pool).await? else { return Ok(None) };
        let (served_at_ms, now_ms): (i64, i64) = (row.try_get(1)?, row.try_get(2)?);
        let silent_for = Duration::from_millis(u64::try_from(now_ms - served_at_ms).unwrap_or(0));
        Ok(Some(ServedBy { store_id: row.try_get(0)?, served_at_ms, silent_for }))
    }

    /// Records the first Redis; one that is recorded already stays.
    pub(crate) async fn serve_first(&self, store_id: &str) -> Result<(), SqlError> {
        let statement = self.with_now(
            "INSERT INTO serving (one, store_id, served_at) VALUES (1, $1, {now}) ON CONFLICT (one) DO NOTHING",
        );
        sqlx::query(statement).bind(store_id).execute(&self.pool).await?;
        Ok(())
    }

    /// Records that a core serves with `store_id`; `false` when another Redis is recorded.
    pub(crate) async fn serve_on(&self, store_id: &str) -> Result<bool, SqlError> {
        let statement = self.with_now("UPDATE serving SET served_at = {now} WHERE store_id = $1");
        let done = sqlx::query(statement).bind(store_id).execute(&self.pool).await?;
        Ok(done.rows_affected() == 1)
    }

    /// Records `store_id` instead of `there`, unless a core has served with that meanwhile; whether it was recorded.
    pub(crate) async fn serve_instead(&self, there: &ServedBy, store_id: &str) -> Result<bool, SqlError> {
        let statement = self.with_now(
            "UPDATE serving SET store_id = $1, served_at = {now} WHERE store_id = $2 AND served_at = $3",
        );
        let done = sqlx::query(statement)
            .bind(store_id)
            .bind(there.store_id.as_str())
            .bind(there.served_at_ms)
            .execute(&self.pool)
            .await?;
        Ok(done.rows_affected() == 1)
    }

    /// `text` with this database's own clock in ms since 1970 for `{now}`.
    pub(super) fn with_now(&self, text: &str) -> AssertSqlSafe<String> {
        let now = if self.is_sqlite() {
            "CAST((julianday('now') - 2440587.5) * 86400000 AS BIGINT)"
        } else {
            "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)"
        };
        AssertSqlSafe(text.replace("{now}", now))
    }
}
