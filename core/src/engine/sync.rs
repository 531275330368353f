//! Calls on a campaign in Redis that keep what this core holds of it in step with both stores.
//!
//! Behind a new connection may be a Redis that has lost claims, or has old rules. So each campaign is synchronised once per
//! connection before the first call: its high-water mark is read from SQL, and its rules are applied. What a reply tells of
//! the campaign is recorded in its handle.

use std::sync::Arc;

use claimgate_shared::ClaimId;

use super::handle::CampaignHandle;
use crate::clock;
use crate::domain::campaign::Campaign;
use crate::domain::claim_record::ClaimRecord;
use crate::domain::claim_transition::ClaimTransition;
use crate::domain::high_water_mark::HighWaterMark;
use crate::domain::not_ready::NotReadyReason;
use crate::store::redis::calls::{CampaignCall, Claim, Read, SetRules, SoldOut, Transition};
use crate::store::redis::scripts::{Counters, Decided, Ready, SoldOutReply};
use crate::store::redis::{RedisStore, RedisStoreError, Session};
use crate::store::sql::{SqlError, SqlStore};

/// Why a call on a campaign gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// Redis gave no answer that counts.
    #[error(transparent)]
    Redis(#[from] RedisStoreError),
    /// The campaign was not synchronised with this connection yet, and SQL does not answer.
    #[error(transparent)]
    Sql(#[from] SqlError),
}

impl SyncError {
    /// The campaign is not ready, for this reason.
    pub fn not_ready(reason: NotReadyReason) -> Self {
        Self::Redis(RedisStoreError::NotReady(reason))
    }

    /// Why the campaign is not ready, where that is the error.
    pub fn not_ready_reason(&self) -> Option<NotReadyReason> {
        match self {
            Self::Redis(RedisStoreError::NotReady(reason)) => Some(*reason),
            _ => None,
        }
    }
}

/// Both stores, and what a call to Redis asks of SQL.
#[derive(Debug)]
pub struct CampaignSync {
    /// Redis, which decides claims.
    pub redis: Arc<RedisStore>,
    /// The database, which keeps claims and campaigns.
    pub sql: SqlStore,
}

impl CampaignSync {
    /// Expires all holds that are due. The script does so before each claim; this is for campaigns at rest.
    ///
    /// # Errors
    /// As [`Self::claim`].
    pub async fn sweep(&self, handle: &CampaignHandle) -> Result<(), SyncError> {
        while self.claim(handle, &[]).await?.more_due {}
        Ok(())
    }

    /// Expires holds that are due, then decides these claims and quantities, all of one campaign, in one call.
    ///
    /// # Errors
    /// When nothing was decided, or the reply was lost: the same claims may be sent again.
    pub async fn claim(
        &self,
        handle: &CampaignHandle,
        wanted: &[(&ClaimId, u32)],
    ) -> Result<Decided, SyncError> {
        let campaign = handle.campaign();
        let call = Claim { zone: &campaign.zone, wanted, outbox_max: self.redis.outbox_max() };
        let decided = self.call(handle, &call).await?;
        handle.observe(decided.high_water_mark());
        handle.record_decision();
        if let Some(left) = decided.hold_due_in() {
            handle.hold_due_in(left);
        }
        Ok(decided)
    }

    /// Confirms or returns the claim `id`. Returns the claim as it stands then; `None` when Redis has no such claim.
    ///
    /// # Errors
    /// As [`Self::claim`].
    pub async fn transition(
        &self,
        handle: &CampaignHandle,
        id: &ClaimId,
        transition: ClaimTransition,
    ) -> Result<Option<ClaimRecord>, SyncError> {
        let done = self.call(handle, &Transition { id, transition }).await?;
        Ok(done.map(|(record, events)| {
            handle.observe(HighWaterMark { sequence: record.sequence, events });
            record
        }))
    }

    /// The campaign's counters, and the claim `id` as it stands.
    ///
    /// # Errors
    /// When Redis does not answer, or the campaign is not ready.
    pub async fn read(
        &self,
        handle: &CampaignHandle,
        id: Option<&ClaimId>,
    ) -> Result<(Counters, Option<ClaimRecord>), SyncError> {
        self.call(handle, &Read { id }).await
    }

    /// Applies the rules of `campaign`, unless Redis holds newer ones.
    ///
    /// # Errors
    /// When the rules may not have been applied.
    pub async fn set_rules(&self, handle: &CampaignHandle, campaign: &Campaign) -> Result<(), SyncError> {
        self.call(handle, &SetRules { campaign, now: clock::now() }).await
    }

    /// Whether nothing is left of the campaign, and for how long that is certain; `None` when units are left, or when
    /// another rule refuses first.
    ///
    /// # Errors
    /// When Redis does not answer, or the campaign is not ready.
    pub async fn sold_out(&self, handle: &CampaignHandle) -> Result<Option<SoldOutReply>, SyncError> {
        self.call(handle, &SoldOut).await
    }

    /// Calls a script on a campaign. When another core has loaded the campaign since this one last asked SQL, it asks SQL
    /// and calls again.
    async fn call<C: CampaignCall>(&self, handle: &CampaignHandle, call: &C) -> Result<C::Reply, SyncError> {
        let mut reply = self.call_resent(handle, call).await?;
        if matches!(reply, Err(NotReadyReason::Epoch)) {
            let campaign = handle.campaign();
            if let Ok(Some(now)) = self.sql.campaign(&campaign.id).await
                && now.epoch > campaign.epoch
            {
                handle.update(now);
                reply = self.call_resent(handle, call).await?;
            }
        }
        reply.map_err(|reason| {
            handle.mark_not_ready(reason);
            SyncError::not_ready(reason)
        })
    }

    /// Calls a script on a campaign, and once more, on a new connection, where the first one broke.
    async fn call_resent<C: CampaignCall>(
        &self,
        handle: &CampaignHandle,
        call: &C,
    ) -> Result<Ready<C::Reply>, SyncError> {
        let first = self.try_call(handle, call).await;
        if let Err(SyncError::Redis(RedisStoreError::Unavailable(_))) = first {
            // It may have been done all the same.
            handle.has_events();
        }
        match first {
            Err(SyncError::Redis(error)) if error.is_worth_resending() => self.try_call(handle, call).await,
            first => first,
        }
    }

    async fn try_call<C: CampaignCall>(
        &self,
        handle: &CampaignHandle,
        call: &C,
    ) -> Result<Ready<C::Reply>, SyncError> {
        let mut session = self.redis.session().await?;
        if handle.synced_generation() != session.generation() {
            self.synchronise(handle, &mut session).await?;
        }
        let campaign = handle.campaign();
        Ok(self.redis.call(&mut session, &handle.target(&campaign), call).await?)
    }

    /// Reads the campaign's high-water mark from SQL, and applies its rules.
    async fn synchronise(&self, handle: &CampaignHandle, session: &mut Session) -> Result<(), SyncError> {
        if let Some(campaign) = self.sql.campaign(&handle.campaign().id).await? {
            handle.update(campaign);
        }
        let campaign = handle.campaign();
        let target = handle.target(&campaign);
        let rules = SetRules { campaign: &campaign, now: clock::now() };
        match self.redis.call(session, &target, &rules).await {
            // Without memory nothing is granted either, and the relay still has to reach its campaigns.
            Err(RedisStoreError::OutOfMemory(_)) => return Ok(()),
            Ok(Ok(())) => handle.mark_rules_applied(campaign.version),
            // The call that follows gets the same reply.
            Ok(Err(reason)) => handle.mark_not_ready(reason),
            Err(error) => return Err(error.into()),
        }
        handle.mark_synced(session.generation());
        Ok(())
    }
}
