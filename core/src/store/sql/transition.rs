//! Claim transitions of evicted campaigns. Only SQL has their claims, so they are confirmed and returned
//! here, under the lock of the campaign's row and by the rules of `lua/transition.lua`.

use claimgate_shared::ids::digest_text;
use claimgate_shared::{Claim, ClaimId, ClaimStatus, Timestamp};
use sqlx::Row as _;

use super::audit::ClaimChange;
use super::campaigns::{self, number_change};
use super::claims::{self, ClaimRow, bind_id};
use super::codes::Numbered;
use super::feed_writer::feed_rows;
use super::numbers::{to_i64, unsigned};
use super::pool::Transaction;
use super::statements::campaign_columns;
use super::{SqlError, SqlStore, statements};
use crate::domain::campaign::Campaign;
use crate::domain::claim_transition::ClaimTransition;

/// The result of a claim transition.
#[derive(Debug)]
pub enum Transitioned {
    /// The claim was not changed by this call. Contains the claim's current state.
    Stands(Claim),
    /// The claim was changed. Contains the claim's new state, and the campaign with new counters.
    Changed(Claim, Box<Campaign>),
    /// There is no such claim.
    Unknown,
    /// The campaign does not exist, or is in Redis, which must decide the transition.
    NotEvicted,
}

impl SqlStore {
    /// Confirms or returns the claim `id` at `now` for the caller named `by`. The call is idempotent, even if
    /// concurrent. A hold that is due expires instead. Changes nothing unless the campaign is evicted. A core
    /// that loads the campaign waits for this transaction; if the load came first, this transaction changes
    /// nothing.
    pub async fn transition(
        &self,
        id: &ClaimId,
        transition: ClaimTransition,
        by: &str,
        now: Timestamp,
    ) -> Result<Transitioned, SqlError> {
        let mut transaction = self.pool.begin_at("sql:transition").await?;
        // The first statement is a write that changes nothing, to lock the row; see the documentation of
        // `sql`.
        let held =
            sqlx::query("UPDATE campaigns SET version = version WHERE id = $1 AND evicted_at IS NOT NULL")
                .bind(id.campaign.as_str())
                .execute(&mut transaction.lease)
                .await?;
        if held.rows_affected() == 0 {
            return Ok(Transitioned::NotEvicted);
        }
        let found = bind_id(sqlx::query(statements::ONE), id).fetch_optional(&mut transaction.lease).await?;
        let Some(ClaimRow { claim, .. }) = found.map(|row| claims::read(&id.campaign, &row)).transpose()?
        else {
            return Ok(Transitioned::Unknown);
        };
        let Some(status) = next_status(&claim, transition, now) else {
            return Ok(Transitioned::Stands(claim));
        };
        let changed = bind_id(sqlx::query(statements::TRANSITION), id)
            .bind(status.as_str())
            .bind(now.as_ms())
            .fetch_one(&mut transaction.lease)
            .await?;
        if status == ClaimStatus::Granted {
            self.give_numbers(&mut transaction, id, claim.quantity.get()).await?;
        }
        let returned_units = if status == ClaimStatus::Granted { 0 } else { u64::from(claim.quantity.get()) };
        // As in Redis, each revision of a claim is an event of its campaign.
        let campaign = sqlx::query(concat!(
            "UPDATE campaigns SET events = events + 1, \
             evicted_taken = CASE WHEN evicted_taken > $1 THEN evicted_taken - $1 ELSE 0 END \
             WHERE id = $2 RETURNING ",
            campaign_columns!()
        ))
        .bind(to_i64(returned_units))
        .bind(id.campaign.as_str())
        .fetch_one(&mut transaction.lease)
        .await?;
        let campaign = campaigns::read(&campaign)?;
        // An expiry is not an action of the caller.
        if status != ClaimStatus::Expired {
            let change = ClaimChange {
                campaign: &id.campaign,
                user: id.user.as_str(),
                digest: digest_text(&id.digest),
                epoch: unsigned(changed.try_get("epoch")?)?,
                revision: unsigned(changed.try_get("revision")?)?,
                at: now,
                who: by,
                before: claim.status,
                after: status,
            };
            self.audit_claims(&mut transaction, &[change]).await?;
        }
        if returned_units > 0 {
            number_change(&mut transaction, &campaign.id).await?;
        }
        let (user, digest) = (id.user.as_str(), digest_text(&id.digest));
        let feed = feed_rows(&[(id.campaign.as_str(), user, &digest)]);
        self.commit_with_feed(transaction, &feed).await?;
        let expires_at = claim.expires_at.filter(|_| status != ClaimStatus::Granted);
        Ok(Transitioned::Changed(Claim { status, expires_at, ..claim }, Box::new(campaign)))
    }
}

impl SqlStore {
    /// Assigns code numbers to a granted claim of `quantity` units, if its campaign has codes. The campaign's row must
    /// be locked.
    async fn give_numbers(
        &self,
        transaction: &mut Transaction,
        id: &ClaimId,
        quantity: u32,
    ) -> Result<(), SqlError> {
        let found = campaigns::select(transaction, &id.campaign).await?;
        let Some(mut stock) = found.and_then(|campaign| campaign.codes) else { return Ok(()) };
        let first = stock.assign(quantity);
        let numbered = bind_id(sqlx::query(statements::GIVE_NUMBERS), id)
            .bind(to_i64(first))
            .execute(&mut transaction.lease)
            .await?;
        if numbered.rows_affected() == 1 {
            let claim = Numbered { user: id.user.clone(), digest: id.digest, first, quantity, is_new: true };
            self.keep_numbers(transaction, &id.campaign, stock, &[claim]).await?;
        }
        Ok(())
    }
}

/// Returns the claim's new status; `None` if the status stays unchanged.
fn next_status(claim: &Claim, transition: ClaimTransition, now: Timestamp) -> Option<ClaimStatus> {
    match (claim.status, transition) {
        (ClaimStatus::Held, _) if claim.expires_at.is_some_and(|due| now >= due) => {
            Some(ClaimStatus::Expired)
        }
        (ClaimStatus::Held, ClaimTransition::Confirm) => Some(ClaimStatus::Granted),
        (ClaimStatus::Held | ClaimStatus::Granted, ClaimTransition::Return) => Some(ClaimStatus::Returned),
        _ => None,
    }
}
