//! Evicts campaigns that ended long ago from Redis; afterwards calls on them use SQL (`claim::evicted`).

use std::time::Duration;

use claimgate_shared::Timestamp;
use futures_util::{StreamExt as _, stream};

use super::recovery::Recovery;
use crate::clock;
use crate::domain::campaign::{Campaign, Evicted};
use crate::engine::campaign::handle::CampaignHandle;
use crate::engine::error::RecoveryError;

/// Minimum period of steady clocks before an eviction, unless `archive_after` is shorter.
const STEADY_MIN: Duration = Duration::from_secs(3600);
/// Maximum number of campaigns whose keys are removed in one call.
const DROPS_MAX: u32 = 100;
/// Number of campaigns whose keys are removed concurrently: a node of a cluster may be silent.
const CONCURRENT_DROPS: usize = 8;

impl Recovery {
    /// Returns whether `campaign` ended long enough ago by core's clock and by Redis' clock (`redis_now`),
    /// and both clocks are steady.
    pub(super) fn ended_long_ago(&self, campaign: &Campaign, redis_now: Timestamp) -> bool {
        let core_now = clock::now();
        let now = core_now.min(redis_now);
        let after_ms = i64::try_from(self.archive_after.as_millis()).unwrap_or(i64::MAX);
        campaign.ended_at(now).is_some_and(|ended_at| ended_at.saturating_add_ms(after_ms) <= now)
            && is_steady(self.clocks.steady_for(core_now, redis_now), self.archive_after)
    }

    /// Evicts a campaign that ended long ago and is fully relayed; afterwards calls on it use SQL.
    pub(super) async fn evict_leased(&self, handle: &CampaignHandle) -> Result<(), RecoveryError> {
        match self.leased(handle, Duration::ZERO, || self.evict(handle)).await? {
            None | Some(Err(RecoveryError::Superseded)) => Ok(()),
            Some(result) => result,
        }
    }

    async fn evict(&self, handle: &CampaignHandle) -> Result<(), RecoveryError> {
        let (counters, _) = self.stores.read(handle, None).await?;
        let holds = self.stores.redis.hold_state(&handle.keys, counters.now).await?;
        // A hold can still be confirmed. The campaign is evicted after all holds have expired.
        if holds.held > 0 {
            return Ok(());
        }
        // From here on the campaign is not ready: if the eviction stops halfway, the recovery reloads the
        // campaign.
        let Some((row, suspended)) = self.suspend(handle).await? else { return Ok(()) };
        let Some(row) = self.restore_rules(handle, row, &suspended).await? else { return Ok(()) };
        if !self.ended_long_ago(&row, counters.now) {
            return Ok(());
        }
        self.secure(handle, &row, &suspended).await?;
        let totals = self.stores.sql.totals(&row.id).await?;
        let evicted = Evicted { taken: totals.taken, sequence: totals.sequence.max(counters.sequence) };
        let epoch = suspended.epoch.max(row.epoch).max(handle.campaign().epoch).next();
        // If the rules have changed since the token was issued, the campaign may accept claims again.
        let Some(campaign) = self.stores.sql.evict(&row, epoch, evicted, clock::now()).await? else {
            return Ok(());
        };
        self.registry.update(campaign.clone());
        tracing::info!(campaign = %campaign.id, taken = evicted.taken, "evicted: answered from SQL from now on");
        self.drop_keys(handle, &campaign).await
    }

    /// Removes an evicted campaign's keys, unless the campaign has been reloaded in the meantime.
    pub(super) async fn drop_keys(
        &self,
        handle: &CampaignHandle,
        evicted: &Campaign,
    ) -> Result<(), RecoveryError> {
        if self.stores.redis.drop_keys(&handle.keys, &evicted.token.to_string()).await? {
            self.stores.sql.keys_dropped(evicted).await?;
        }
        Ok(())
    }

    /// Removes the keys of campaigns that were evicted by a core that stopped before it could remove them.
    ///
    /// # Errors
    /// If a store fails for at least one campaign. The next call removes the remaining keys.
    pub async fn drop_evicted(&self) -> Result<(), RecoveryError> {
        let drops = self.stores.sql.keys_to_drop(DROPS_MAX).await?.into_iter().map(|campaign| async move {
            let handle = self.registry.update(campaign.clone());
            self.drop_keys(&handle, &campaign).await
        });
        let dropped: Vec<_> = stream::iter(drops).buffer_unordered(CONCURRENT_DROPS).collect().await;
        dropped.into_iter().collect()
    }
}

/// Returns whether clocks that have been steady for `steady_for` permit an eviction.
fn is_steady(steady_for: Duration, archive_after: Duration) -> bool {
    steady_for >= archive_after.min(STEADY_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ARCHIVE_AFTER_DEFAULT;

    #[test]
    fn clocks_are_steady_an_hour_after_a_step() {
        let after = Duration::from_secs;
        for (steady_s, archive_after, expected) in [
            (3_599, ARCHIVE_AFTER_DEFAULT, false),
            (3_600, ARCHIVE_AFTER_DEFAULT, true),
            (59, after(60), false),
            (60, after(60), true),
        ] {
            assert_eq!(
                is_steady(after(steady_s), archive_after),
                expected,
                "{steady_s} s, {archive_after:?}"
            );
        }
    }
}
