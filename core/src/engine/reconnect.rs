//! What happens after a reconnect to Redis.
//!
//! Behind a new connection may be a Redis that has lost claims, or has old rules. So each campaign is synchronised once per
//! connection before it is called upon: SQL says how far it had come, and its rules are put into force.

use super::handle::CampaignHandle;
use super::sync::{CampaignSync, SyncError};
use crate::clock;
use crate::domain::not_ready::NotReadyReason;
use crate::store::redis::calls::{CampaignCall, RulesReply, SetRules};
use crate::store::redis::replies::Ready;
use crate::store::redis::{RedisStoreError, Session};

impl CampaignSync {
    /// Calls a script on a campaign. When another core has loaded the campaign since this one last asked SQL, it asks SQL
    /// and calls again.
    pub(super) async fn call<C: CampaignCall>(
        &self,
        handle: &CampaignHandle,
        call: &C,
    ) -> Result<C::Reply, SyncError> {
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

    /// Calls a script on a campaign; once more, on a new connection, where the first one broke.
    async fn call_resent<C: CampaignCall>(
        &self,
        handle: &CampaignHandle,
        call: &C,
    ) -> Result<Ready<C::Reply>, SyncError> {
        let first = self.try_call(handle, call).await;
        if let Err(SyncError::Redis(RedisStoreError::Unavailable(_) | RedisStoreError::NotReplicated(_))) =
            first
        {
            // It may have been done all the same.
            handle.has_events();
        }
        match first {
            Err(SyncError::Redis(error)) if error.is_worth_resending() => {
                match self.try_call(handle, call).await {
                    // That nothing was done is true of this call alone.
                    Err(SyncError::Redis(RedisStoreError::OutOfMemory(_))) => Err(SyncError::Redis(error)),
                    second => second,
                }
            }
            first => first,
        }
    }

    async fn try_call<C: CampaignCall>(
        &self,
        handle: &CampaignHandle,
        call: &C,
    ) -> Result<Ready<C::Reply>, SyncError> {
        let mut session = self.redis.session(handle.keys.slot).await?;
        if handle.synced_generation() != session.generation() {
            self.synchronise(handle, &mut session).await?;
        }
        let campaign = handle.campaign();
        Ok(self.redis.call(&mut session, &handle.target(&campaign), call).await?)
    }

    /// Asks SQL how far the campaign had come, and puts its rules into force.
    async fn synchronise(&self, handle: &CampaignHandle, session: &mut Session) -> Result<(), SyncError> {
        if let Some(campaign) = self.sql.campaign(&handle.campaign().id).await? {
            handle.update(campaign);
        }
        let campaign = handle.campaign();
        let target = handle.target(&campaign);
        let rules = SetRules { campaign: &campaign, addition: None, now: clock::now() };
        match self.redis.call(session, &target, &rules).await {
            // Without memory nothing is granted either; the relay still has to find its campaigns.
            Err(RedisStoreError::OutOfMemory(_)) => return Ok(()),
            Ok(Ok(RulesReply::Applied)) => handle.mark_rules_applied(campaign.version),
            // Another core has changed them since SQL was asked, or SQL has lost them.
            Ok(Ok(RulesReply::Newer | RulesReply::Differs)) => handle.suspect_sql(),
            // The call that follows is told so, too.
            Ok(Err(reason)) => handle.mark_not_ready(reason),
            Err(error) => return Err(error.into()),
        }
        handle.mark_synced(session.generation());
        Ok(())
    }
}
