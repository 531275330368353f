//! Evicts campaigns that are long over from Redis; from then on they are answered from SQL (`evicted_answers`).

use std::time::Duration;

use claimgate_shared::Timestamp;
use futures_util::{StreamExt as _, stream};

use super::handle::CampaignHandle;
use super::recovery::{LEASE, Recovery, RecoveryError};
use crate::clock;
use crate::domain::campaign::{Campaign, Evicted};
use crate::store::redis::lease::LeaseError;
use crate::store::redis::loader::LoadError;

/// How long the clocks must have been steady before a campaign is evicted for being over, unless `archive_after` is shorter.
const STEADY_MIN: Duration = Duration::from_secs(3600);
/// Campaigns whose keys are removed in one go.
const DROPS_MAX: u32 = 100;
/// How many of them at once: of a cluster, one node's may be silent.
const DROPS_AT_ONCE: usize = 8;

impl Recovery {
    /// Whether `campaign` has been over for long enough by core's clock and by Redis' (`redis_now`), and both are steady.
    pub(super) fn is_long_over(&self, campaign: &Campaign, redis_now: Timestamp) -> bool {
        let core_now = clock::now();
        let now = core_now.min(redis_now);
        let after_ms = i64::try_from(self.archive_after.as_millis()).unwrap_or(i64::MAX);
        campaign.over_since(now).is_some_and(|since| since.saturating_add_ms(after_ms) <= now)
            && self.clocks.steady_for(core_now, redis_now) >= self.archive_after.min(STEADY_MIN)
    }

    /// Evicts a campaign that is long over and relayed from Redis; from then on it is answered from SQL.
    pub(super) async fn evict_leased(&self, handle: &CampaignHandle) -> Result<(), RecoveryError> {
        let id = handle.campaign().id.clone();
        let lease = match self.lease_holder()?.try_acquire(id.as_str(), LEASE).await {
            Ok(lease) => lease,
            Err(LeaseError::Taken) => return Ok(()),
            Err(LeaseError::Redis(error)) => return Err(error.into()),
        };
        let result = match self.evict(handle).await {
            Err(RecoveryError::Load(LoadError::Late)) => Ok(()),
            result => result,
        };
        let _ = lease.release().await;
        result
    }

    async fn evict(&self, handle: &CampaignHandle) -> Result<(), RecoveryError> {
        let (counters, _) = self.sync.read(handle, None).await?;
        let holds = self.sync.redis.hold_state(&handle.keys, counters.now).await?;
        // A hold can still be confirmed; it expires by itself, and then it is this campaign's turn.
        if holds.held > 0 {
            return Ok(());
        }
        // From here on it is not ready: if this stops halfway, the recovery finds the campaign and loads it.
        let Some((drawn, suspended)) = self.suspend(handle).await? else { return Ok(()) };
        let Some(drawn) = self.restore_rules(handle, drawn, &suspended).await? else { return Ok(()) };
        if !self.is_long_over(&drawn, counters.now) {
            return Ok(());
        }
        self.secure(handle, &drawn, &suspended).await?;
        let totals = self.sync.sql.totals(&drawn.id).await?;
        let evicted = Evicted { taken: totals.taken, sequence: totals.sequence.max(counters.sequence) };
        let epoch = suspended.epoch.max(drawn.epoch).max(handle.campaign().epoch).next();
        // If its rules were changed since the token was drawn, it may be claimed from again.
        let Some(campaign) = self.sync.sql.evict(&drawn, epoch, evicted, clock::now()).await? else {
            return Ok(());
        };
        self.registry.update(campaign.clone());
        tracing::info!(campaign = %campaign.id, taken = evicted.taken, "evicted: answered from SQL from now on");
        self.drop_keys(handle, &campaign).await
    }

    /// Removes an evicted campaign's keys, unless it has been loaded again meanwhile.
    pub(super) async fn drop_keys(
        &self,
        handle: &CampaignHandle,
        evicted: &Campaign,
    ) -> Result<(), RecoveryError> {
        if self.sync.redis.drop_keys(&handle.keys, &evicted.token.to_string()).await? {
            self.sync.sql.keys_dropped(evicted).await?;
        }
        Ok(())
    }

    /// Removes the keys of campaigns that were evicted by a core that ended before it could remove them.
    ///
    /// # Errors
    /// When Redis or SQL does not answer, for one of them at least: what is left is for the next call.
    pub async fn drop_evicted(&self) -> Result<(), RecoveryError> {
        let drops = self.sync.sql.keys_to_drop(DROPS_MAX).await?.into_iter().map(|campaign| async move {
            let handle = self.registry.update(campaign.clone());
            self.drop_keys(&handle, &campaign).await
        });
        let dropped: Vec<_> = stream::iter(drops).buffer_unordered(DROPS_AT_ONCE).collect().await;
        dropped.into_iter().collect()
    }
}
