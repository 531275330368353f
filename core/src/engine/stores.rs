//! Both stores. Every call on a campaign in Redis passes through this module.
//!
//! The campaign's handle records each reply. A new connection may lead to a server that has lost claims or
//! has old rules. Each campaign is therefore synchronized once per connection, before the first call: the
//! high-water mark is read from SQL, and the rules are applied. If the connection breaks, the call is resent
//! once.

use std::sync::Arc;

use claimgate_shared::{ClaimDigest, ClaimId, UserId};

use super::campaign::handle::CampaignHandle;
use super::error::StoreError;
use crate::clock;
use crate::domain::addition::Addition;
use crate::domain::campaign::{Campaign, ShownProgress};
use crate::domain::claim_record::ClaimRecord;
use crate::domain::claim_transition::{ClaimTransition, Requester};
use crate::domain::codes::CodesOfClaim;
use crate::domain::counters::Epoch;
use crate::domain::high_water_mark::HighWaterMark;
use crate::domain::not_ready::NotReadyReason;
use crate::store::redis::scripts::calls::{
    CampaignCall, Claim, GiveCodes, Read, ReadCodes, ReadUser, RulesReply, SetRules, SoldOut, Transition,
    WantedClaim,
};
use crate::store::redis::scripts::replies::{
    Counters, Decided, Ready, SoldOutReply, TransitionReply, UserReply, Verdict,
};
use crate::store::redis::{RedisStore, RedisStoreError, Session};
use crate::store::sql::SqlStore;
use crate::traces::Trace;

/// Maximum number of outbox reads for one user's events. Each covers 100 entries and takes Redis about 1 ms.
const OUTBOX_READS_MAX: usize = 50;

/// Maximum number of claims in a call that reads codes.
const CODES_PER_CALL: usize = 1000;

/// Both stores, and the calls that need both.
#[derive(Debug)]
pub struct Stores {
    /// Redis, which decides claims.
    pub redis: Arc<RedisStore>,
    /// SQL, which stores claims permanently.
    pub sql: SqlStore,
}

impl Stores {
    /// Expires all due holds. The claim script does this before each claim, so this call is for idle
    /// campaigns.
    pub async fn sweep(&self, handle: &CampaignHandle) -> Result<(), StoreError> {
        while self.claim(handle, &[]).await?.more_due {}
        Ok(())
    }

    /// Expires due holds, then decides the claims `wanted` of one campaign, in one call.
    ///
    /// # Errors
    /// If no claim was decided, or the reply was lost. It is safe to resend the same claims.
    pub async fn claim(
        &self,
        handle: &CampaignHandle,
        wanted: &[WantedClaim<'_>],
    ) -> Result<Decided, StoreError> {
        let campaign = handle.campaign();
        let trace = Trace::current().map(|trace| trace.traceparent());
        let outbox_max = self.redis.outbox_max();
        let call = Claim { zone: &campaign.zone, wanted, outbox_max, trace: trace.as_deref() };
        let decided = self.call(handle, &call).await?;
        if !handle.has_begun_count()
            && let Some(first) = first_sequence(&decided)
        {
            handle.begin_count(first.saturating_sub(1));
        }
        handle.observe(decided.high_water_mark());
        handle.record_decision();
        if let Some(left) = decided.hold_due_in() {
            handle.hold_due_in(left);
        }
        Ok(decided)
    }

    /// Confirms, returns or extends the claim `id` for the caller `by`; `None` if there is no such claim.
    pub async fn transition(
        &self,
        handle: &CampaignHandle,
        id: &ClaimId,
        transition: ClaimTransition,
        by: Requester<'_>,
    ) -> Result<Option<TransitionReply>, StoreError> {
        let trace = Trace::current().map(|trace| trace.traceparent());
        let outbox_max = self.redis.outbox_max();
        let call = Transition { id, transition, by, outbox_max, trace: trace.as_deref() };
        let reply = self.call(handle, &call).await?;
        if let Some(TransitionReply { record, events, .. }) = reply {
            handle.observe(HighWaterMark { sequence: record.sequence, events });
        }
        Ok(reply)
    }

    /// Returns the campaign's counters, and the current state of the claim `id`.
    pub async fn read(
        &self,
        handle: &CampaignHandle,
        id: Option<&ClaimId>,
    ) -> Result<(Counters, Option<ClaimRecord>), StoreError> {
        let (counters, claim) = self.call(handle, &Read { id }).await?;
        handle.begin_count(counters.sequence);
        Ok((counters, claim))
    }

    /// Returns the campaign's counters if all of its keys are complete, the codes as well.
    pub async fn check(&self, handle: &CampaignHandle) -> Result<Counters, StoreError> {
        let (counters, _) = self.read(handle, None).await?;
        if handle.campaign().codes.is_some() {
            self.call(handle, &ReadCodes { claims: &[] }).await?;
        }
        Ok(counters)
    }

    /// Returns the record of `user` and, if claims have moved out of the record, all of the user's events in
    /// the outbox. `next` is set if the outbox has more entries than [`OUTBOX_READS_MAX`] reads cover.
    pub async fn user(&self, handle: &CampaignHandle, user: &UserId) -> Result<UserReply, StoreError> {
        let mut reply = self.call(handle, &ReadUser { user, after: None }).await?;
        for _ in 1..OUTBOX_READS_MAX {
            let Some(after) = reply.next.take() else { break };
            let more = self.call(handle, &ReadUser { user, after: Some(&after) }).await?;
            reply.events.extend(more.events);
            reply.next = more.next;
        }
        Ok(reply)
    }

    /// Returns the codes of those `claims` that have all of them in both stores. For a campaign without codes, none.
    pub async fn codes(
        &self,
        handle: &CampaignHandle,
        claims: &[(UserId, ClaimDigest)],
    ) -> Result<Vec<CodesOfClaim>, StoreError> {
        let campaign = handle.campaign();
        if campaign.codes.is_none() {
            return Ok(Vec::new());
        }
        if campaign.evicted.is_some() {
            return Ok(self.sql.codes_of(&campaign.id, claims).await?);
        }
        let digests: Vec<_> = claims.iter().map(|(_, digest)| *digest).collect();
        let mut codes = Vec::new();
        for claims in digests.chunks(CODES_PER_CALL) {
            codes.extend(self.call(handle, &ReadCodes { claims }).await?);
        }
        Ok(codes)
    }

    /// Stores the codes of `claims`, so that they may be shown: claims that were relayed to SQL before their
    /// codes were added. `campaign` was read before the claims, and SQL had `events` after them. Returns
    /// `false` if nothing was stored: some of the claims may still be in the outbox, or the claims may no
    /// longer be current.
    pub async fn give_codes(
        &self,
        handle: &CampaignHandle,
        campaign: &Campaign,
        events: u64,
        claims: &[CodesOfClaim],
    ) -> Result<bool, StoreError> {
        let mut session = self.synchronized_session(handle).await?;
        // Under a later epoch, SQL may have lost these codes and given others.
        let target = handle.target(campaign);
        match self.redis.call(&mut session, &target, &GiveCodes { events, claims }).await? {
            Ok(is_given) => Ok(is_given),
            Err(NotReadyReason::Epoch) => Ok(false),
            Err(reason) => Err(StoreError::not_ready(reason)),
        }
    }

    /// Applies the rules of `campaign`, unless Redis has newer rules, or different rules of the same version.
    /// `addition` is the addition that created these rules, if any.
    pub async fn set_rules(
        &self,
        handle: &CampaignHandle,
        campaign: &Campaign,
        addition: Option<&Addition>,
    ) -> Result<RulesReply, StoreError> {
        self.call(handle, &SetRules { campaign, addition, now: clock::now() }).await
    }

    /// Reads the campaign's progress in Redis; `None` if Redis does not answer. SQL awaits this call under a lock: the
    /// call is a separate task, because a test's schedule must not stop it then.
    pub(super) async fn shown_progress(&self, handle: &Arc<CampaignHandle>) -> Option<ShownProgress> {
        let (redis, handle) = (Arc::clone(&self.redis), Arc::clone(handle));
        let state = tokio::spawn(async move { redis.campaign_state(&handle.keys).await });
        Some(state.await.ok()?.ok()?.map(|state| state.progress()).unwrap_or_default())
    }

    /// Returns how long the campaign certainly stays sold out; `None` if units are left, or if another rule
    /// denies first.
    pub async fn sold_out(&self, handle: &CampaignHandle) -> Result<Option<SoldOutReply>, StoreError> {
        self.call(handle, &SoldOut).await
    }

    /// Calls a script on a campaign. If another core has loaded the campaign since this core last read it
    /// from SQL, rereads the campaign and retries the call.
    pub(super) async fn call<C: CampaignCall>(
        &self,
        handle: &CampaignHandle,
        call: &C,
    ) -> Result<C::Reply, StoreError> {
        let sent = handle.campaign().epoch;
        let mut reply = self.call_resent(handle, call).await?;
        if matches!(reply, Err(NotReadyReason::Epoch)) && self.has_epoch_after(handle, sent).await {
            reply = self.call_resent(handle, call).await?;
        }
        reply.map_err(|reason| {
            handle.mark_not_ready(reason);
            StoreError::not_ready(reason)
        })
    }

    /// Rereads the campaign from SQL. Returns whether another core has loaded it under a later epoch than
    /// `sent`, which a concurrent call may have found out before.
    async fn has_epoch_after(&self, handle: &CampaignHandle, sent: Epoch) -> bool {
        if let Ok(Some(now)) = self.sql.campaign(&handle.campaign().id).await {
            handle.update(now);
        }
        handle.campaign().epoch > sent
    }

    /// Calls a script on a campaign. If the connection breaks, resends the call once on a new connection.
    async fn call_resent<C: CampaignCall>(
        &self,
        handle: &CampaignHandle,
        call: &C,
    ) -> Result<Ready<C::Reply>, StoreError> {
        let first = self.try_call(handle, call).await;
        if let Err(StoreError::Redis(RedisStoreError::Unavailable(_) | RedisStoreError::NotReplicated(_))) =
            first
        {
            // The call may still have taken effect.
            handle.notify_relay();
        }
        match first {
            Err(StoreError::Redis(error)) if error.is_worth_resending() => {
                match self.try_call(handle, call).await {
                    // Only the second call certainly changed nothing.
                    Err(StoreError::Redis(RedisStoreError::OutOfMemory(_))) => Err(StoreError::Redis(error)),
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
    ) -> Result<Ready<C::Reply>, StoreError> {
        let mut session = self.synchronized_session(handle).await?;
        let campaign = handle.campaign();
        // Redis rejects the call if this core has missed an epoch, and with it a check of the user ids.
        let is_admitted = campaign.checked_user_ids.is_none_or(|scheme| call.is_admitted_by(scheme));
        // An ended campaign may have the ids of a former scheme.
        if !is_admitted && campaign.ended_at(clock::now()).is_none() {
            return Err(StoreError::not_ready(NotReadyReason::UserIds));
        }
        Ok(self.redis.call(&mut session, &handle.target(&campaign), call).await?)
    }

    async fn synchronized_session(&self, handle: &CampaignHandle) -> Result<Session, StoreError> {
        let mut session = self.redis.session(handle.keys.slot).await?;
        if handle.synced_run() != session.run() {
            self.synchronize(handle, &mut session).await?;
        }
        Ok(session)
    }

    /// Reads the campaign's high-water mark from SQL, and applies the campaign's rules in Redis.
    async fn synchronize(&self, handle: &CampaignHandle, session: &mut Session) -> Result<(), StoreError> {
        if let Some(campaign) = self.sql.campaign(&handle.campaign().id).await? {
            handle.update(campaign);
        }
        let campaign = handle.campaign();
        let target = handle.target(&campaign);
        let rules = SetRules { campaign: &campaign, addition: None, now: clock::now() };
        match self.redis.call(session, &target, &rules).await {
            // While Redis is out of memory, it grants no claims, so old rules do no harm. The relay must
            // still be able to read the outbox.
            Err(RedisStoreError::OutOfMemory(_)) => return Ok(()),
            Ok(Ok(RulesReply::Applied)) => handle.mark_rules_applied(campaign.version),
            // Another core has changed the rules since SQL was read, or SQL has lost these rules.
            Ok(Ok(RulesReply::Newer | RulesReply::Differs)) => handle.suspect_sql_loss(),
            // The call that follows gets the same reply.
            Ok(Err(reason)) => handle.mark_not_ready(reason),
            Err(error) => return Err(error.into()),
        }
        handle.mark_synced(session.run());
        Ok(())
    }
}

/// Returns the sequence number of the first new claim in a batch.
fn first_sequence(decided: &Decided) -> Option<u64> {
    decided.verdicts.iter().find_map(|verdict| match verdict {
        Verdict::Granted { sequence, .. } => Some(*sequence),
        _ => None,
    })
}
