//! Decides, reads, confirms, returns and extends claims: in Redis or, for an evicted campaign, in SQL.

pub mod batcher;
mod codes;
mod evicted;
pub mod of_user;
mod queue_state;
pub mod sold_out_cache;
mod user_ids;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use claimgate_shared::user_id::Scheme;
use claimgate_shared::{
    Attempt, CampaignId, Claim, ClaimId, ClaimRequest, ClaimStatus, Quantity, ShownPass, Timestamp,
};

use self::batcher::{ClaimBatcher, Decision};
use super::campaign::handle::CampaignHandle;
use super::campaigns::{self, Campaigns};
use super::error::{EngineError, StoreError};
use super::lifecycle::recovery::Recovery;
use crate::domain::claim_record::ClaimRecord;
use crate::domain::claim_transition::{ClaimTransition, Requester};
use crate::domain::codes::CODES_AT_ONCE;
use crate::domain::not_ready::NotReadyReason;
use crate::domain::parts::parts;
use crate::store::redis::RedisStoreError;
use crate::store::redis::scripts::replies::{Malformed, RejectedExtension, TransitionReply};
use crate::store::sql::{ClaimCursor, ClaimFilter, ClaimPage, ClaimRow, Transitioned};

/// Decides, reads, confirms, returns and extends claims.
#[derive(Debug)]
pub struct Claims {
    pub(super) campaigns: Campaigns,
    pub(super) recovery: Arc<Recovery>,
    /// Maximum time from a claim to the end of its extended hold.
    pub(super) hold_extension_max: Duration,
    /// Collects concurrent claims into one script call.
    pub batcher: Arc<ClaimBatcher>,
}

impl Claims {
    /// Decides a claim: in Redis, or in SQL for an evicted campaign. `pass` is the pass sent with the claim.
    /// `edge` is the user-id scheme of the edge that sent it.
    ///
    /// # Errors
    /// If the claim was not decided, or its outcome is unknown. It is safe to resend the same claim.
    pub async fn claim(
        &self,
        request: &ClaimRequest,
        attempt: Attempt,
        pass: Option<ShownPass>,
        edge: Option<Scheme>,
    ) -> Result<Decision, EngineError> {
        let mut handle = self.campaigns.find(&request.campaign_id).await?;
        let pinned = self.campaigns.user_ids.check_claim(edge, &request.user_id).await?;
        if handle.campaign().evicted.is_some() {
            handle = Box::pin(self.campaigns.find_in_sql(&request.campaign_id)).await?;
        }
        let mut campaign = handle.campaign();
        if let Some(pinned) = pinned.filter(|pinned| pinned.requires_check_of(&campaign)) {
            // Boxed, because it would make every claim's future larger.
            campaign = Box::pin(self.check_user_ids(&handle, pinned)).await?;
        }
        match campaigns::evicted(&campaign)? {
            None => self.batcher.claim(&handle, request, attempt, pass).await,
            // Boxed, because the statements would make every claim's future larger.
            Some(evicted) => {
                let decided =
                    Box::pin(evicted::decide(&self.campaigns.stores.sql, &campaign, evicted, request)).await;
                Ok(decided?)
            }
        }
    }

    /// Returns the current state of the claim `id`, and whether SQL has it in this state.
    pub async fn look_up(&self, id: ClaimId) -> Result<Claim, EngineError> {
        let mut handle = self.handle_of_claim(&id).await?;
        if handle.campaign().evicted.is_some() {
            handle = self.campaigns.find_in_sql(&id.campaign).await?;
        }
        let (_, record) = self.campaigns.read(&handle, Some(&id)).await?;
        let mut claim = match (record, self.campaigns.stores.sql.claim(&id).await?) {
            (Some(record), row) => {
                let persisted = row.is_some_and(|row| {
                    // Compare sequence numbers: a revoked claim with the same id has a different one.
                    row.claim.sequence == record.sequence && row.revision >= u64::from(record.revision)
                });
                claim_from_record(id, &record, Some(persisted))?
            }
            (None, Some(row)) => Claim { persisted: Some(true), ..row.claim },
            (None, None) => return Err(EngineError::ClaimNotFound),
        };
        self.add_codes(&handle, vec![&mut claim]).await?;
        Ok(claim)
    }

    /// Adds the codes to the granted claims among `claims`, if their campaign has codes.
    pub async fn add_codes(
        &self,
        handle: &CampaignHandle,
        claims: Vec<&mut Claim>,
    ) -> Result<(), EngineError> {
        if handle.campaign().codes.is_none() {
            return Ok(());
        }
        let granted: Vec<_> =
            claims.into_iter().filter(|claim| claim.status == ClaimStatus::Granted).collect();
        let mut found = HashMap::new();
        for claims in parts(&granted, CODES_AT_ONCE, |claim| claim.quantity.get().into()) {
            let ids: Vec<_> = claims.iter().map(|claim| (claim.user_id.clone(), claim.id.digest)).collect();
            let codes = self.campaigns.stores.codes(handle, &ids).await?;
            found.extend(codes.into_iter().map(|of| (of.digest, of.codes)));
        }
        for claim in granted {
            claim.codes = Some(found.remove(&claim.id.digest).unwrap_or_default());
        }
        Ok(())
    }

    /// Adds the codes to the granted claims among `rows` of the campaign `id`, if it has codes.
    pub async fn add_codes_to_rows(
        &self,
        id: &CampaignId,
        rows: Vec<&mut ClaimRow>,
    ) -> Result<(), EngineError> {
        let mut handle = self.campaigns.find(id).await?;
        if handle.campaign().evicted.is_some() {
            handle = self.campaigns.find_in_sql(id).await?;
        }
        self.add_codes(&handle, rows.into_iter().map(|row| &mut row.claim).collect()).await
    }

    /// Returns up to `limit` claims of a campaign that match `filter`, after the cursor `after`, from SQL.
    pub async fn list(
        &self,
        campaign: &CampaignId,
        filter: &ClaimFilter,
        after: &ClaimCursor,
        limit: u32,
    ) -> Result<ClaimPage, EngineError> {
        Ok(self.campaigns.stores.sql.claims(campaign, filter, after, limit).await?)
    }

    /// Confirms a held claim at `now` for the caller named `by`, whom the audit records.
    ///
    /// # Errors
    /// [`EngineError::ClaimStands`] if the claim has expired, or has been returned or revoked.
    pub async fn confirm(&self, id: ClaimId, by: &str, now: Timestamp) -> Result<Claim, EngineError> {
        taking_units(self.transition(id, ClaimTransition::Confirm, by.into(), now).await?)
    }

    /// Extends a claim's hold at `now` for the caller named `by`, whom the audit records. A granted claim stays
    /// granted.
    ///
    /// # Errors
    /// [`EngineError::ClaimStands`] if the claim has expired, or has been returned or revoked;
    /// [`EngineError::ExtendedTooOften`].
    pub async fn extend(&self, id: ClaimId, by: &str, now: Timestamp) -> Result<Claim, EngineError> {
        let extend = ClaimTransition::Extend { max: self.hold_extension_max };
        taking_units(self.transition(id, extend, by.into(), now).await?)
    }

    /// Returns a claim's units at `now` for the caller `by`, whom the audit records with the reason. An expired
    /// claim stays expired, which is not an error.
    ///
    /// # Errors
    /// [`EngineError::ClaimStands`] if the claim has been revoked.
    pub async fn return_units(
        &self,
        id: ClaimId,
        by: Requester<'_>,
        now: Timestamp,
    ) -> Result<Claim, EngineError> {
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
        by: Requester<'_>,
        now: Timestamp,
    ) -> Result<Claim, EngineError> {
        let handle = self.handle_of_claim(&id).await?;
        if campaigns::evicted(&handle.campaign())?.is_some() {
            match self.campaigns.stores.sql.transition(&id, transition, by, now).await? {
                Transitioned::Stands(claim) => return Ok(claim),
                Transitioned::Changed(claim, campaign) => {
                    self.campaigns.registry.update(*campaign);
                    return Ok(claim);
                }
                Transitioned::ExtendedTooOften(claim) => {
                    return Err(EngineError::ExtendedTooOften(Box::new(claim)));
                }
                Transitioned::Unknown => return Err(EngineError::ClaimNotFound),
                // Another core has loaded the campaign into Redis since this core last read it.
                Transitioned::NotEvicted => {
                    drop(self.campaigns.find_in_sql(&id.campaign).await?);
                }
            }
        }
        let reply = self.campaigns.stores.transition(&handle, &id, transition, by).await?;
        if let Some(TransitionReply { record, rejected, .. }) = reply {
            if !takes_units(record.status) {
                self.batcher.invalidate(&id.campaign);
            }
            let claim = claim_from_record(id, &record, None)?;
            return match rejected {
                None => Ok(claim),
                Some(RejectedExtension::TooOften) => Err(EngineError::ExtendedTooOften(Box::new(claim))),
                Some(RejectedExtension::OutboxFull) => Err(EngineError::OutboxFull),
            };
        }
        // The claim is not in Redis: it was revoked, or Redis has lost it. SQL shows which.
        match self.campaigns.stores.sql.claim(&id).await? {
            None => Err(EngineError::ClaimNotFound),
            Some(row) if row.claim.status == ClaimStatus::Revoked => Ok(row.claim),
            Some(_) => {
                handle.mark_not_ready(NotReadyReason::ClaimMissing);
                Err(StoreError::not_ready(NotReadyReason::ClaimMissing).into())
            }
        }
    }

    /// Returns the handle of a claim's campaign. If the campaign does not exist, neither does the claim.
    async fn handle_of_claim(&self, id: &ClaimId) -> Result<Arc<CampaignHandle>, EngineError> {
        self.campaigns.find(&id.campaign).await.map_err(|error| match error {
            EngineError::CampaignNotFound => EngineError::ClaimNotFound,
            error => error,
        })
    }
}

fn takes_units(status: ClaimStatus) -> bool {
    matches!(status, ClaimStatus::Granted | ClaimStatus::Held)
}

/// Returns `claim` if it takes units.
fn taking_units(claim: Claim) -> Result<Claim, EngineError> {
    if takes_units(claim.status) { Ok(claim) } else { Err(EngineError::ClaimStands(Box::new(claim))) }
}

/// Converts a `record` from Redis to the claim `id`.
pub(super) fn claim_from_record(
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
        codes: None,
    })
}
