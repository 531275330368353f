//! Claims: decided, looked up, confirmed and returned, in Redis or, for an evicted campaign, in SQL.

use std::sync::Arc;

use claimgate_shared::{Attempt, CampaignId, Claim, ClaimId, ClaimRequest, ClaimStatus, Quantity, Timestamp};

use super::batcher::{BatcherError, Decision};
use super::handle::CampaignHandle;
use super::sync::SyncError;
use super::{Engine, EngineError, evicted_answers};
use crate::domain::claim_record::ClaimRecord;
use crate::domain::claim_transition::ClaimTransition;
use crate::domain::not_ready::NotReadyReason;
use crate::store::redis::RedisStoreError;
use crate::store::redis::replies::{Counters, Malformed};
use crate::store::sql::{ClaimCursor, ClaimFilter, ClaimPage, Transitioned};

impl Engine {
    /// Decides a claim: in Redis, or, for an evicted campaign, in SQL.
    ///
    /// # Errors
    /// When it was not decided, or when that is unknown: the same claim may be sent again.
    pub async fn claim(&self, request: &ClaimRequest, attempt: Attempt) -> Result<Decision, EngineError> {
        let mut handle = self.handle(&request.campaign_id).await?;
        if handle.campaign().evicted.is_some() {
            handle = Box::pin(self.as_sql_has_it(&request.campaign_id)).await?;
        }
        let campaign = handle.campaign();
        match evicted_answers::evicted(&campaign)? {
            None => Ok(self.batcher.claim(&handle, request, attempt).await?),
            // In a box: the statements would make every claim's future larger.
            Some(evicted) => {
                let decided =
                    Box::pin(evicted_answers::decide(&self.sync.sql, &campaign, evicted, request)).await;
                Ok(decided.map_err(BatcherError::from)?)
            }
        }
    }

    /// The claim `id` as it stands, and whether SQL holds it so.
    ///
    /// # Errors
    /// [`EngineError::ClaimNotFound`], or when a store does not answer.
    pub async fn look_up(&self, id: ClaimId) -> Result<Claim, EngineError> {
        let mut handle = self.handle_of_claim(&id).await?;
        if handle.campaign().evicted.is_some() {
            handle = self.as_sql_has_it(&id.campaign).await?;
        }
        let (_, record) = self.read(&handle, Some(&id)).await?;
        match (record, self.sync.sql.claim(&id).await?) {
            (Some(record), row) => {
                let persisted = row.is_some_and(|row| {
                    // The same claim: a revoked one has another place.
                    row.claim.sequence == record.sequence && row.revision >= u64::from(record.revision)
                });
                standing(id, &record, Some(persisted))
            }
            (None, Some(row)) => Ok(Claim { persisted: Some(true), ..row.claim }),
            (None, None) => Err(EngineError::ClaimNotFound),
        }
    }

    /// Up to `limit` of a campaign's claims that `filter` names after the place `after`, as SQL has them.
    ///
    /// # Errors
    /// When SQL does not answer.
    pub async fn claims(
        &self,
        campaign: &CampaignId,
        filter: &ClaimFilter,
        after: &ClaimCursor,
        limit: u32,
    ) -> Result<ClaimPage, EngineError> {
        Ok(self.sync.sql.claims(campaign, filter, after, limit).await?)
    }

    /// Confirms a held claim at `now` for the caller of the name `by`, which the audit shows.
    ///
    /// # Errors
    /// [`EngineError::ClaimStands`] when it has expired, or was returned or revoked.
    pub async fn confirm(&self, id: ClaimId, by: &str, now: Timestamp) -> Result<Claim, EngineError> {
        let claim = self.transition(id, ClaimTransition::Confirm, by, now).await?;
        match claim.status {
            ClaimStatus::Granted | ClaimStatus::Held => Ok(claim),
            _ => Err(EngineError::ClaimStands(Box::new(claim))),
        }
    }

    /// Returns a claim's units at `now` for the caller of the name `by`, which the audit shows. An expired claim stays expired,
    /// which is no error.
    ///
    /// # Errors
    /// [`EngineError::ClaimStands`] when it was revoked.
    pub async fn return_units(&self, id: ClaimId, by: &str, now: Timestamp) -> Result<Claim, EngineError> {
        let claim = self.transition(id, ClaimTransition::Return, by, now).await?;
        match claim.status {
            ClaimStatus::Revoked => Err(EngineError::ClaimStands(Box::new(claim))),
            _ => Ok(claim),
        }
    }

    async fn transition(
        &self,
        id: ClaimId,
        transition: ClaimTransition,
        by: &str,
        now: Timestamp,
    ) -> Result<Claim, EngineError> {
        let handle = self.handle_of_claim(&id).await?;
        if evicted_answers::evicted(&handle.campaign())?.is_some() {
            match self.sync.sql.transition(&id, transition, by, now).await? {
                Transitioned::Stands(claim) => return Ok(claim),
                Transitioned::Changed(claim, campaign) => {
                    self.registry.update(*campaign);
                    return Ok(claim);
                }
                Transitioned::Unknown => return Err(EngineError::ClaimNotFound),
                // It has been loaded into Redis since this core last read it.
                Transitioned::NotEvicted => drop(self.registry.update(self.campaign(&id.campaign).await?)),
            }
        }
        let record = self.sync.transition(&handle, &id, transition, by).await?;
        self.batcher.invalidate(&id.campaign);
        if let Some(record) = record {
            return standing(id, &record, None);
        }
        // Not in Redis: revoked, or Redis has lost it. Only SQL can tell.
        match self.sync.sql.claim(&id).await? {
            None => Err(EngineError::ClaimNotFound),
            Some(row) if row.claim.status == ClaimStatus::Revoked => Ok(row.claim),
            Some(_) => {
                handle.mark_not_ready(NotReadyReason::ClaimMissing);
                Err(SyncError::not_ready(NotReadyReason::ClaimMissing).into())
            }
        }
    }

    /// The handle of a campaign, as SQL has it now. One that was evicted when this core last read it may have been loaded again by
    /// another core, which has granted claims since.
    pub(super) async fn as_sql_has_it(&self, id: &CampaignId) -> Result<Arc<CampaignHandle>, EngineError> {
        Ok(self.registry.update(self.campaign(id).await?))
    }

    /// The campaign's counters, and the claim `id` where Redis has it.
    pub(super) async fn read(
        &self,
        handle: &CampaignHandle,
        id: Option<&ClaimId>,
    ) -> Result<(Counters, Option<ClaimRecord>), SyncError> {
        let campaign = handle.campaign();
        match evicted_answers::evicted(&campaign)? {
            None => self.sync.read(handle, id).await,
            Some(evicted) => Ok((evicted_answers::counters(&campaign, evicted), None)),
        }
    }

    /// The campaign of a claim. Without the campaign there is no claim either.
    async fn handle_of_claim(&self, id: &ClaimId) -> Result<Arc<CampaignHandle>, EngineError> {
        self.handle(&id.campaign).await.map_err(|error| match error {
            EngineError::CampaignNotFound => EngineError::ClaimNotFound,
            error => error,
        })
    }
}

/// The claim `id` as Redis has it.
pub(super) fn standing(
    id: ClaimId,
    record: &ClaimRecord,
    persisted: Option<bool>,
) -> Result<Claim, EngineError> {
    let malformed = |_| RedisStoreError::from(Malformed::new(format!("quantity {}", record.quantity)));
    let quantity = Quantity::try_from(record.quantity).map_err(malformed)?;
    Ok(Claim {
        campaign_id: id.campaign.clone(),
        user_id: id.user.clone(),
        id,
        quantity,
        status: record.status,
        sequence: record.sequence,
        claimed_at: record.claimed_at,
        expires_at: record.expires_at,
        persisted,
    })
}
