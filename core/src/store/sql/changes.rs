//! Reads changed campaigns, and campaigns that belong in Redis. Each core runs these reads every second, so
//! their cost must not depend on the number of ended campaigns.

use sqlx::Row as _;

use super::campaigns::CampaignPage;
use super::numbers::{to_i64, unsigned};
use super::{SqlError, SqlStore, statements};
use crate::domain::counters::ChangeNumber;

/// Concurrent transactions on a database with more than one writer.
const WRITERS_MAX: usize = 4;

impl SqlStore {
    /// Returns the number of transactions that may write concurrently. SQLite has a single writer.
    pub fn writers_max(&self) -> usize {
        if self.is_sqlite() { 1 } else { WRITERS_MAX }
    }

    /// Returns the number of the last change of any campaign.
    pub(crate) async fn last_change(&self) -> Result<ChangeNumber, SqlError> {
        let query = sqlx::query("SELECT number FROM last_change");
        Ok(ChangeNumber::new(unsigned(self.pool.one("sql:last_change", query).await?.try_get(0)?)?))
    }

    /// Returns up to `limit` campaigns that changed after `after`, in the order of their last changes, and
    /// the highest change number on the page.
    pub(crate) async fn changed(
        &self,
        after: ChangeNumber,
        limit: u32,
    ) -> Result<(CampaignPage, ChangeNumber), SqlError> {
        let query = sqlx::query(statements::CHANGED).bind(to_i64(after)).bind(i64::from(limit));
        let rows = self.pool.all("sql:changed", query).await?;
        let last = match rows.last() {
            Some(row) => ChangeNumber::new(unsigned(row.try_get("change_number")?)?),
            None => after,
        };
        Ok((self.page(&rows, limit)?, last))
    }

    /// Returns up to `limit` campaigns that are not evicted, with ids after `after`, ordered by id.
    pub(crate) async fn campaigns_in_redis(&self, after: &str, limit: u32) -> Result<CampaignPage, SqlError> {
        let query = sqlx::query(statements::IN_REDIS).bind(after).bind(i64::from(limit));
        self.page(&self.pool.all("sql:campaigns_in_redis", query).await?, limit)
    }
}
