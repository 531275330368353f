//! Which campaigns have changed, and which Redis has to hold. What a core asks each second costs the same however many
//! campaigns are over.

use sqlx::Row as _;

use super::campaigns::CampaignPage;
use super::numbers::{big, unsigned};
use super::{SqlError, SqlStore, statements};
use crate::domain::counters::ChangeNumber;
use crate::step;

/// Concurrent commits for a database with more than one writer.
const WRITERS_MAX: usize = 4;

impl SqlStore {
    /// How many transactions may write at once without blocking each other: SQLite has one writer.
    pub fn writers_max(&self) -> usize {
        if self.is_sqlite() { 1 } else { WRITERS_MAX }
    }

    /// The number of the last change of any campaign.
    pub(crate) async fn last_change(&self) -> Result<ChangeNumber, SqlError> {
        step::before("sql:last_change").await;
        let row = sqlx::query("SELECT number FROM last_change").fetch_one(&self.pool).await;
        Ok(ChangeNumber::new(unsigned(step::after(row)?.try_get(0)?)?))
    }

    /// Up to `limit` campaigns that have changed after `after`, in the order of their last changes, and the number of the
    /// last of these.
    pub(crate) async fn changed(
        &self,
        after: ChangeNumber,
        limit: u32,
    ) -> Result<(CampaignPage, ChangeNumber), SqlError> {
        step::before("sql:changed").await;
        let rows = sqlx::query(statements::CHANGED)
            .bind(big(after))
            .bind(i64::from(limit))
            .fetch_all(&self.pool)
            .await;
        let rows = step::after(rows)?;
        let last = match rows.last() {
            Some(row) => ChangeNumber::new(unsigned(row.try_get("change_number")?)?),
            None => after,
        };
        Ok((self.page(&rows, limit)?, last))
    }

    /// Up to `limit` campaigns that are not evicted, with ids after `after`, in the order of their ids.
    pub(crate) async fn campaigns_in_redis(&self, after: &str, limit: u32) -> Result<CampaignPage, SqlError> {
        step::before("sql:campaigns_in_redis").await;
        let rows =
            sqlx::query(statements::IN_REDIS).bind(after).bind(i64::from(limit)).fetch_all(&self.pool).await;
        self.page(&step::after(rows)?, limit)
    }
}
