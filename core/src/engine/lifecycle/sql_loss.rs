//! Detects that SQL has lost its latest transactions on a campaign, for example after a failover to a lagging
//! standby. The recovery then restores the data that Redis and this core still have, before it loads the
//! campaign.

use super::recovery::{Recovered, Recovery};
use crate::clock;
use crate::domain::campaign::{Campaign, ShownProgress};
use crate::domain::codes::CODES_AT_ONCE;
use crate::domain::event::OutboxEntry;
use crate::domain::parts::parts;
use crate::engine::campaign::handle::CampaignHandle;
use crate::engine::error::RecoveryError;
use crate::metrics;
use crate::store::redis::outbox::OutboxLayout;
use crate::store::redis::scripts::replies::Suspended;

impl Recovery {
    /// Reloads the campaign if SQL has lost data of it, which restores the data that Redis and this core
    /// have. Returns `None` if SQL has lost nothing.
    pub(super) async fn recover_sql_loss(
        &self,
        handle: &CampaignHandle,
    ) -> Result<Option<Recovered>, RecoveryError> {
        let id = &handle.campaign().id;
        if self.sql_has_lost_data(handle).await? {
            tracing::error!(campaign = %id, "SQL has lost its latest changes; restoring them");
        } else {
            let events = self.deleted_events(handle).await?;
            if events == 0 {
                handle.clear_suspicion();
                return Ok(None);
            }
            // A failed recovery is retried, and the maintenance job may have found the same events.
            let uncounted = handle.counted_losses.add_deleted(handle.campaign().epoch, events);
            if uncounted > 0 {
                tracing::error!(campaign = %id, events,
                    "outbox entries were deleted before SQL had them; restoring them");
                metrics::DELETED.add(uncounted);
            }
        }
        let recovered = self.recover(handle, true).await?;
        if recovered != Recovered::Elsewhere {
            handle.clear_suspicion();
        }
        Ok(Some(recovered))
    }

    /// Returns the number of events that are missing between SQL's last event and the first event left in the
    /// outbox. Their entries were deleted by something other than the relay, which would wait for them
    /// forever.
    async fn deleted_events(&self, handle: &CampaignHandle) -> Result<u64, RecoveryError> {
        let id = &handle.campaign().id;
        let read = self.stores.redis.outbox_page(&handle.keys, OutboxLayout::Current, "0-0").await?;
        let Some((page, _)) = read else { return Ok(0) };
        // SQL is read after Redis, so it can only have advanced.
        let Some(row) = self.stores.sql.campaign(id).await? else { return Ok(0) };
        let first = page.entries.first().filter(|entry| entry.epoch == row.epoch);
        let before = first.map_or(0, OutboxEntry::count_before);
        Ok(before.saturating_sub(row.high_water_mark.events))
    }

    /// Returns whether SQL has lost data of the campaign: its row, an epoch, a version of the rules, or
    /// events that have left the outbox. Rows deleted by hand are not detected.
    ///
    /// # Errors
    /// A store's error. Redis must report the version of a campaign with codes: if SQL has lost an upload, and
    /// another change takes the version's number, the rules may be equal, and nothing shows the loss any more.
    pub async fn sql_has_lost_data(&self, handle: &CampaignHandle) -> Result<bool, RecoveryError> {
        let known = handle.campaign();
        let (counters, state) = if known.evicted.is_some() {
            (None, None)
        } else {
            let counters = self.stores.read(handle, None).await.ok().map(|(counters, _)| counters);
            (counters, Some(self.stores.redis.campaign_state(&handle.keys).await))
        };
        // SQL is read after Redis, so it must have all versions and relayed events that Redis shows.
        let row = self.stores.sql.campaign(&known.id).await?;
        if handle.is_ahead_of(row.as_ref()) {
            return Ok(true);
        }
        let Some(row) = row else { return Ok(false) };
        let state = match state {
            Some(Err(error)) if row.codes.is_some() => return Err(error.into()),
            state => state.and_then(Result::ok).flatten(),
        };
        // A suspended campaign shows no counters, but its version: a change must not take the number of a version that
        // another task is restoring.
        if state.as_ref().is_some_and(|state| state.version > row.version) {
            return Ok(true);
        }
        let Some(counters) = counters else { return Ok(false) };
        let shown = ShownProgress {
            version: counters.version,
            epoch: known.epoch,
            relayed: counters.events.saturating_sub(counters.backlog),
        };
        if row.lacks(shown) {
            return Ok(true);
        }
        // The number of a lost version may have been assigned again.
        let rules = state.and_then(|state| state.rules).filter(|rules| rules.version == row.version);
        Ok(rules.is_some_and(|rules| rules.applied_to(&row) != row))
    }

    /// Ensures that SQL has all data of a suspended campaign's keys. Relays the outbox, including entries
    /// that another core has read, and restores rows that SQL has lost according to the totals.
    pub(super) async fn secure(
        &self,
        handle: &CampaignHandle,
        row: &Campaign,
        suspended: &Suspended,
    ) -> Result<(), RecoveryError> {
        self.skip_lost_feed_numbers(handle, row, suspended).await?;
        self.relay_suspended(handle, suspended.epoch).await?;
        self.rescue_lost(handle, row, suspended).await?;
        Ok(())
    }

    /// Skips numbers of the feed if SQL lacks an epoch, or events that have left the outbox. Call it before these
    /// events are written again: a row with the number of a lost row may list the claim of a reader's cursor after
    /// claims that this reader has not read. If the relay has just committed, numbers may be skipped needlessly,
    /// which does no harm.
    pub(super) async fn skip_lost_feed_numbers(
        &self,
        handle: &CampaignHandle,
        row: &Campaign,
        suspended: &Suspended,
    ) -> Result<(), RecoveryError> {
        let relayed = suspended.high_water_mark.events.saturating_sub(suspended.backlog);
        let lacks_events = suspended.epoch == row.epoch && relayed > row.high_water_mark.events;
        // Until the campaign is loaded, Redis knows nothing of an import, but this core has read its epoch.
        let lacks_epoch = suspended.epoch.max(handle.campaign().epoch) > row.epoch;
        if lacks_epoch || lacks_events {
            self.stores.sql.skip_feed_numbers().await?;
        }
        Ok(())
    }

    /// Restores the codes that SQL has lost, of claims whose codes Redis shows. The campaign must be suspended.
    pub(super) async fn restore_codes(&self, handle: &CampaignHandle) -> Result<(), RecoveryError> {
        let campaign = handle.campaign();
        if campaign.codes.is_none() {
            return Ok(());
        }
        let mut session = self.stores.redis.session(handle.keys.slot).await?;
        let (mut cursor, mut restored) = (0, 0);
        loop {
            let (next, page) = self.stores.redis.codes_page(&mut session, &handle.keys, cursor).await?;
            for claims in parts(&page, CODES_AT_ONCE, |claim| claim.codes.len() as u64) {
                restored += self.stores.sql.restore_codes(&campaign.id, claims).await?;
            }
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        if restored > 0 {
            tracing::error!(campaign = %campaign.id, restored, "SQL had lost codes that Redis shows: they have been restored");
        }
        Ok(())
    }

    /// Reads the campaign from SQL. If SQL has lost the row, restores it from this core's memory.
    pub(super) async fn campaign_or_restored(
        &self,
        handle: &CampaignHandle,
    ) -> Result<Campaign, RecoveryError> {
        let known = handle.campaign();
        let found = self.stores.sql.campaign(&known.id).await?;
        if let Some(found) = found {
            return Ok(found);
        }
        tracing::error!(campaign = %known.id, "SQL has lost the campaign; restoring its row");
        // The restored row has this core's epoch, so nothing shows later that claims were lost with the row.
        self.stores.sql.skip_feed_numbers().await?;
        self.stores.sql.restore_row(&known, clock::now()).await?;
        metrics::LOST.add(1);
        Ok(self.stores.sql.campaign(&known.id).await?.unwrap_or_else(|| (*known).clone()))
    }

    /// Restores rules that SQL has lost: from Redis, where they were in force until the suspension, or from
    /// this core's memory. Returns the updated campaign; `None` if a newer token has been issued.
    pub(super) async fn restore_rules(
        &self,
        handle: &CampaignHandle,
        row: Campaign,
        suspended: &Suspended,
    ) -> Result<Option<Campaign>, RecoveryError> {
        let known = handle.campaign();
        let mut latest = row.clone();
        if known.version > latest.version {
            latest = Campaign { evicted: None, unfinished_import: None, ..(*known).clone() };
        }
        if let Some(rules) = suspended.rules.filter(|rules| rules.version > latest.version) {
            latest = rules.applied_to(&latest);
        }
        if latest.version == row.version {
            return Ok(Some(row));
        }
        tracing::error!(campaign = %row.id, version = %latest.version, "SQL has lost the campaign's rules; restoring them");
        let restored = self.stores.sql.restore(&row, &latest, &suspended.additions, clock::now()).await?;
        metrics::LOST.add(restored.is_some().into());
        Ok(restored)
    }
}
