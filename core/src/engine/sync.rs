//! Calls on a campaign in Redis. What a call tells is recorded in the campaign's handle; what precedes it on a new connection
//! is in `reconnect`.

use std::sync::Arc;

use claimgate_shared::{ClaimId, UserId};

use super::handle::CampaignHandle;
use crate::clock;
use crate::domain::addition::Addition;
use crate::domain::campaign::Campaign;
use crate::domain::claim_record::ClaimRecord;
use crate::domain::claim_transition::ClaimTransition;
use crate::domain::high_water_mark::HighWaterMark;
use crate::domain::not_ready::NotReadyReason;
use crate::store::redis::calls::{Claim, Read, ReadUser, RulesReply, SetRules, SoldOut, Transition};
use crate::store::redis::replies::{Counters, Decided, SoldOutReply, UserReply};
use crate::store::redis::{RedisStore, RedisStoreError};
use crate::store::sql::{SqlError, SqlStore};
use crate::traces::Trace;

/// Looks at an outbox for one user's events, each of 100 entries and some 1 ms of Redis: 5,000 entries in all.
const OUTBOX_LOOKS_MAX: usize = 50;

/// Why a call on a campaign gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// Redis gave none.
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
    /// Where claims are decided.
    pub redis: Arc<RedisStore>,
    /// Where they are registered.
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
        let trace = Trace::current().map(|trace| trace.traceparent());
        let outbox_max = self.redis.outbox_max();
        let call = Claim { zone: &campaign.zone, wanted, outbox_max, trace: trace.as_deref() };
        let decided = self.call(handle, &call).await?;
        handle.observe(decided.high_water_mark());
        handle.record_decision();
        if let Some(left) = decided.hold_due_in() {
            handle.hold_due_in(left);
        }
        Ok(decided)
    }

    /// Confirms or returns the claim `id` for the caller of the name `by`; `None` when there is none.
    ///
    /// # Errors
    /// As [`Self::claim`].
    pub async fn transition(
        &self,
        handle: &CampaignHandle,
        id: &ClaimId,
        transition: ClaimTransition,
        by: &str,
    ) -> Result<Option<ClaimRecord>, SyncError> {
        let trace = Trace::current().map(|trace| trace.traceparent());
        let done = self.call(handle, &Transition { id, transition, by, trace: trace.as_deref() }).await?;
        Ok(done.map(|(record, events)| {
            handle.observe(HighWaterMark { sequence: record.sequence, events });
            record
        }))
    }

    /// The campaign's counters, and the claim `id` as it stands.
    ///
    /// # Errors
    /// When they cannot be had, or do not count.
    pub async fn read(
        &self,
        handle: &CampaignHandle,
        id: Option<&ClaimId>,
    ) -> Result<(Counters, Option<ClaimRecord>), SyncError> {
        self.call(handle, &Read { id }).await
    }

    /// What Redis has of `user`: the record, and all of the user's events in the outbox where claims have moved out of the
    /// record; with a `next` when there are more entries than [`OUTBOX_LOOKS_MAX`] looks take.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub async fn user(&self, handle: &CampaignHandle, user: &UserId) -> Result<UserReply, SyncError> {
        let mut reply = self.call(handle, &ReadUser { user, after: None }).await?;
        for _ in 1..OUTBOX_LOOKS_MAX {
            let Some(after) = reply.next.take() else { break };
            let more = self.call(handle, &ReadUser { user, after: Some(&after) }).await?;
            reply.events.extend(more.events);
            reply.next = more.next;
        }
        Ok(reply)
    }

    /// Puts the rules of `campaign` into force, which `addition` made if it is given, unless Redis holds others of this
    /// version or newer ones.
    ///
    /// # Errors
    /// When they may not be in force.
    pub async fn set_rules(
        &self,
        handle: &CampaignHandle,
        campaign: &Campaign,
        addition: Option<&Addition>,
    ) -> Result<RulesReply, SyncError> {
        self.call(handle, &SetRules { campaign, addition, now: clock::now() }).await
    }

    /// That nothing is left of the campaign, and for how long that is certain; `None` when there is, or when another rule
    /// refuses first.
    ///
    /// # Errors
    /// When Redis does not say.
    pub async fn sold_out(&self, handle: &CampaignHandle) -> Result<Option<SoldOutReply>, SyncError> {
        self.call(handle, &SoldOut).await
    }
}
