//! Units added to a campaign's total, once for each idempotency key.

use claimgate_shared::{CampaignId, IdempotencyKey, Problem, Version};
use sqlx::Row as _;

use super::campaigns::{self, Change, number_change};
use super::numbers::big;
use super::pool::Transaction;
use super::{SqlError, SqlStore};
use crate::domain::addition::Addition;
use crate::domain::campaign::Campaign;
use crate::step;

/// The result of an addition.
#[derive(Debug)]
pub enum Added {
    /// Written; this is the campaign now.
    Done(Campaign),
    /// The same key has added the same units before; this is the campaign now.
    Replayed(Campaign),
    /// Not written, for this reason.
    Refused(Problem),
    /// Not written: the database has lost the version that the addition was to follow.
    Forgotten,
}

impl SqlStore {
    /// Adds units to the total of the campaign `id`, at version `least` or a later one, once for each key: whatever changes it
    /// meanwhile comes before or after. `None` when there is no such campaign.
    ///
    /// # Errors
    /// [`SqlError::Unreadable`] for a row that this version cannot read, [`SqlError::Sql`] when the database does not
    /// answer. The units may have been added all the same: the same key tells.
    pub async fn add(
        &self,
        id: &CampaignId,
        least: Version,
        addition: &Addition,
        change: Change<'_>,
    ) -> Result<Option<Added>, SqlError> {
        step::before("sql:add").await;
        let mut transaction = self.pool.begin().await?;
        let Some(before) = campaigns::lock(&mut transaction, id).await? else {
            return Ok(None);
        };
        if before.version < least {
            return Ok(Some(Added::Forgotten));
        }
        if let Some(units) = units_of(&mut transaction, id, &addition.idempotency_key).await? {
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
        .bind(big(after.version))
        .execute(&mut *transaction)
        .await?;
        number_change(&mut transaction, id).await?;
        step::after(transaction.commit().await)?;
        Ok(Some(Added::Done(after)))
    }
}

/// The units that a key has added before.
async fn units_of(
    transaction: &mut Transaction,
    id: &CampaignId,
    key: &IdempotencyKey,
) -> Result<Option<i64>, SqlError> {
    let row = sqlx::query("SELECT units FROM additions WHERE campaign_id = $1 AND idempotency_key = $2")
        .bind(id.as_str())
        .bind(key.as_str())
        .fetch_optional(&mut **transaction)
        .await?;
    Ok(row.map(|row| row.try_get(0)).transpose()?)
}
