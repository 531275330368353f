//! The audit table, read: who changed which campaign, when, and how.

use claimgate_shared::{CampaignId, Timestamp, Version};
use serde_json::Value;
use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::campaigns::{big, unreadable, unsigned};
use super::{SqlError, SqlStore};
use crate::step;

/// One change of a campaign.
#[derive(Debug)]
pub struct AuditEntry {
    /// Its place among all entries, from 1.
    pub number: u64,
    /// The campaign that was changed.
    pub campaign_id: CampaignId,
    /// The version that the change made.
    pub version: Version,
    /// When.
    pub at: Timestamp,
    /// The caller's name.
    pub who: String,
    /// `create`, `update`, `add`, `pause`, `resume` or `end`.
    pub what: String,
    /// The rules before it; `None` when the campaign was created.
    pub before: Option<Value>,
    /// The rules after it.
    pub after: Value,
}

/// Entries that are numbered in one transaction, within the time of a call.
const NUMBERED_MAX: u32 = 5_000;

/// Numbers entries without a number, the oldest first.
const NUMBER: &str = "UPDATE audit SET number = met.place FROM (SELECT campaign_id AS campaign, version AS made, \
    (SELECT COALESCE(MAX(number), 0) FROM audit) + ROW_NUMBER() OVER (ORDER BY at, campaign_id, version) AS place \
    FROM audit WHERE number IS NULL ORDER BY at, campaign_id, version LIMIT $1) AS met \
    WHERE audit.campaign_id = met.campaign AND audit.version = met.made";

impl SqlStore {
    /// Up to `limit` entries with numbers above `after`, of one campaign or of all, in the order of their numbers.
    ///
    /// # Errors
    /// [`SqlError::Unreadable`] for an entry that this version cannot read, [`SqlError::Sql`] when the database does not
    /// answer in time.
    pub(crate) async fn audit(
        &self,
        campaign: Option<&CampaignId>,
        after: u64,
        limit: u32,
    ) -> Result<Vec<AuditEntry>, SqlError> {
        self.number_audit().await?;
        let query = match campaign {
            Some(id) => sqlx::query(
                "SELECT * FROM audit WHERE campaign_id = $3 AND number > $1 ORDER BY number LIMIT $2",
            )
            .bind(big(after))
            .bind(i64::from(limit))
            .bind(id.as_str()),
            None => sqlx::query("SELECT * FROM audit WHERE number > $1 ORDER BY number LIMIT $2")
                .bind(big(after))
                .bind(i64::from(limit)),
        };
        step::before("sql:audit").await;
        step::after(query.fetch_all(&self.pool).await)?.iter().map(read).collect()
    }

    /// Numbers all entries that have no number yet.
    async fn number_audit(&self) -> Result<(), SqlError> {
        let unmet = "SELECT version FROM audit WHERE number IS NULL LIMIT 1";
        while sqlx::query(unmet).fetch_optional(&self.pool).await?.is_some() {
            let mut transaction = self.pool.begin().await?;
            // Begins with a write that changes nothing, so that one reader numbers at a time: see the module's head.
            sqlx::query("UPDATE last_change SET number = number").execute(&mut *transaction).await?;
            sqlx::query(NUMBER).bind(i64::from(NUMBERED_MAX)).execute(&mut *transaction).await?;
            transaction.commit().await?;
        }
        Ok(())
    }
}

fn read(row: &AnyRow) -> Result<AuditEntry, SqlError> {
    let rules = |text: String| serde_json::from_str(&text).map_err(unreadable);
    Ok(AuditEntry {
        number: unsigned(row.try_get("number")?)?,
        campaign_id: row.try_get::<String, _>("campaign_id")?.try_into().map_err(unreadable)?,
        version: Version::new(unsigned(row.try_get("version")?)?),
        at: Timestamp::from_ms(row.try_get("at")?).map_err(unreadable)?,
        who: row.try_get("who")?,
        what: row.try_get("what")?,
        before: row.try_get::<Option<String>, _>("before")?.map(rules).transpose()?,
        after: rules(row.try_get("after")?)?,
    })
}
