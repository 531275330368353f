//! Additions: units added to a campaign's total, once for each idempotency key.

use claimgate_shared::{CampaignId, IdempotencyKey, Problem, Version};
use sqlx::Row as _;

use super::campaigns::{self, Change, number_change};
use super::lost_codes::may_have_lost_codes;
use super::numbers::to_i64;
use super::pool::Transaction;
use super::{SqlError, SqlStore};
use crate::domain::addition::Addition;
use crate::domain::campaign::{Campaign, ShownProgress};

/// The result of an addition.
#[derive(Debug)]
pub enum Added {
    /// The addition was written. Contains the updated campaign.
    Done(Campaign),
    /// An earlier call with the same key added the same units. Contains the current campaign.
    Replayed(Campaign),
    /// Nothing was written, for this reason.
    Refused(Problem),
    /// Nothing was written: the database has lost the version that the addition is based on, or may have lost
    /// later data.
    Forgotten,
}

impl SqlStore {
    /// Adds units to the total of the campaign `id`, once for each key. The campaign must be at version
    /// `least` or later; concurrent changes are serialized. Returns `None` if there is no such campaign. `shown` as for
    /// [`Self::change`].
    ///
    /// # Errors
    /// The units may have been added. The call is safe to retry with the same key.
    pub async fn add(
        &self,
        id: &CampaignId,
        least: Version,
        addition: &Addition,
        change: Change<'_>,
        shown: impl Future<Output = Option<ShownProgress>>,
    ) -> Result<Option<Added>, SqlError> {
        let mut transaction = self.pool.begin_at("sql:add").await?;
        let Some(before) = campaigns::lock(&mut transaction, id).await? else {
            return Ok(None);
        };
        if before.version < least || may_have_lost_codes(&before, shown).await {
            return Ok(Some(Added::Forgotten));
        }
        if let Some(units) = added_units(&mut transaction, id, &addition.idempotency_key).await? {
            let is_same = units == addition.units;
            return Ok(Some(if is_same {
                Added::Replayed(before)
            } else {
                Added::Refused(Addition::key_reused())
            }));
        }
        let after = match addition.apply(&before) {
            Ok(after) => after,
            Err(why) => return Ok(Some(Added::Refused(why))),
        };
        let after = campaigns::write_rules(&mut transaction, &before, &after, change).await?;
        sqlx::query(
            "INSERT INTO additions (campaign_id, idempotency_key, units, version) VALUES ($1, $2, $3, $4)",
        )
        .bind(id.as_str())
        .bind(addition.idempotency_key.as_str())
        .bind(addition.units)
        .bind(to_i64(after.version))
        .execute(&mut transaction.lease)
        .await?;
        number_change(&mut transaction, id).await?;
        transaction.commit().await?;
        Ok(Some(Added::Done(after)))
    }
}

/// Returns the units that an earlier call added with this key.
async fn added_units(
    transaction: &mut Transaction,
    id: &CampaignId,
    key: &IdempotencyKey,
) -> Result<Option<i64>, SqlError> {
    let row = sqlx::query("SELECT units FROM additions WHERE campaign_id = $1 AND idempotency_key = $2")
        .bind(id.as_str())
        .bind(key.as_str())
        .fetch_optional(&mut transaction.lease)
        .await?;
    Ok(row.map(|row| row.try_get(0)).transpose()?)
}
