//! Notices that the database has lost its last transactions, and restores campaigns from Redis or a core's memory.

use claimgate_shared::{CampaignId, Timestamp};

use super::campaigns::{Change, lock, number_change, read, write_rules};
use super::numbers::to_i64;
use super::statements::campaign_columns;
use super::{SqlError, SqlStore};
use crate::domain::addition::AppliedAddition;
use crate::domain::campaign::Campaign;
use crate::domain::counters::FencingToken;

impl SqlStore {
    /// Raises the campaign's fencing token above `redis`, the token in Redis. Returns `None` if the token in
    /// SQL is not lower, so that SQL has lost no token.
    pub async fn raise_token(
        &self,
        id: &CampaignId,
        redis: FencingToken,
    ) -> Result<Option<Campaign>, SqlError> {
        let query = sqlx::query(concat!(
            "UPDATE campaigns SET token = $2 + 1 WHERE id = $1 AND token < $2 AND evicted_at IS NULL RETURNING ",
            campaign_columns!()
        ))
        .bind(id.as_str())
        .bind(to_i64(redis));
        self.pool.optional("sql:raise_token", query).await?.as_ref().map(read).transpose()
    }

    /// Replaces the rules of `row` by newer rules that the database has lost, but Redis or a core still has.
    /// Also writes the lost `additions`. Returns `None` if another token has been issued, or the rules have
    /// been changed, since `row` was read.
    pub(crate) async fn restore(
        &self,
        row: &Campaign,
        after: &Campaign,
        additions: &[AppliedAddition],
        at: Timestamp,
    ) -> Result<Option<Campaign>, SqlError> {
        let mut transaction = self.pool.begin_at("sql:restore").await?;
        let before = lock(&mut transaction, &row.id).await?;
        // An admin's change in the meantime must not be overwritten.
        let is_unchanged = |before: &Campaign| (before.token, before.version) == (row.token, row.version);
        let Some(before) = before.filter(is_unchanged) else { return Ok(None) };
        let after = write_rules(&mut transaction, &before, after, restored(at)).await?;
        for AppliedAddition { idempotency_key, units, version } in additions {
            let written = sqlx::query(
                "INSERT INTO additions (campaign_id, idempotency_key, units, version) VALUES ($1, $2, $3, $4) \
                 ON CONFLICT DO NOTHING",
            );
            let written =
                written.bind(after.id.as_str()).bind(idempotency_key).bind(units).bind(to_i64(*version));
            written.execute(&mut transaction.lease).await?;
        }
        number_change(&mut transaction, &after.id).await?;
        transaction.commit().await?;
        Ok(Some(after))
    }

    /// Writes the row of `campaign`, which the database has lost. An existing row stays unchanged.
    pub(crate) async fn restore_row(&self, campaign: &Campaign, at: Timestamp) -> Result<(), SqlError> {
        self.create(campaign, restored(at)).await.map(drop)
    }
}

/// Returns the audit's description of a restore by claimgate.
fn restored(at: Timestamp) -> Change<'static> {
    Change { who: "claimgate", what: "restore", at }
}
