//! Whether SQL has lost its last transactions of a campaign, as after a failover to a standby that lagged, and what Redis and
//! this core still know of them. The recovery writes that to SQL again before it loads the campaign.

use super::handle::CampaignHandle;
use super::recovery::{Recovered, Recovery, RecoveryError};
use crate::clock;
use crate::domain::campaign::Campaign;
use crate::metrics;
use crate::store::redis::replies::Suspended;

impl Recovery {
    /// Where SQL has lost what it once had of the campaign, loads the campaign again, which restores what Redis and this core know;
    /// `None` when it has lost nothing.
    pub(super) async fn recover_forgotten(
        &self,
        handle: &CampaignHandle,
    ) -> Result<Option<Recovered>, RecoveryError> {
        let id = &handle.campaign().id;
        if self.sql_has_forgotten(handle).await? {
            tracing::error!(campaign = %id, "SQL has lost its last changes: they are written again");
        } else {
            let events = self.deleted_events(handle).await?;
            if events == 0 {
                handle.clear_suspicion();
                return Ok(None);
            }
            tracing::error!(campaign = %id, events, "outbox entries were deleted before SQL had them: they are written again");
            metrics::deleted_events(events);
        }
        let recovered = self.recover(handle, true).await?;
        if recovered != Recovered::Elsewhere {
            handle.clear_suspicion();
        }
        Ok(Some(recovered))
    }

    /// How many events lie between those that SQL has and the first that is left in the outbox: something else has deleted
    /// their entries, and those behind them would wait for them in vain.
    async fn deleted_events(&self, handle: &CampaignHandle) -> Result<u64, RecoveryError> {
        let id = &handle.campaign().id;
        let Some((page, _)) = self.sync.redis.outbox_page(&handle.keys, "0-0").await? else { return Ok(0) };
        // Asked after Redis: SQL can only have come further.
        let Some(row) = self.sync.sql.campaign(id).await? else { return Ok(0) };
        let first = page.entries.first().filter(|entry| entry.epoch == row.epoch);
        let before = first.map_or(0, |entry| entry.count.saturating_sub(entry.events.len() as u64));
        Ok(before.saturating_sub(row.high_water_mark.events))
    }

    /// Whether SQL has lost what it once had of the campaign: its row, an epoch, a version of the rules, or events that were
    /// taken off the outbox since SQL had them. Rows that were deleted by hand show in none of these.
    pub(super) async fn sql_has_forgotten(&self, handle: &CampaignHandle) -> Result<bool, RecoveryError> {
        let known = handle.campaign();
        let counters = match known.evicted {
            Some(_) => None,
            None => self.sync.read(handle, None).await.ok().map(|(counters, _)| counters),
        };
        // Asked after Redis: whatever Redis has, SQL had by then.
        let row = self.sync.sql.campaign(&known.id).await?;
        if handle.is_ahead_of(row.as_ref()) {
            return Ok(true);
        }
        let (Some(counters), Some(row)) = (counters, row) else { return Ok(false) };
        let relayed = counters.events.saturating_sub(counters.backlog);
        if counters.version > row.version || row.epoch == known.epoch && relayed > row.high_water_mark.events
        {
            return Ok(true);
        }
        // A version that was lost may have been given again.
        let state = self.sync.redis.campaign_state(&handle.keys).await?;
        let rules = state.and_then(|state| state.rules).filter(|rules| rules.version == row.version);
        Ok(rules.is_some_and(|rules| rules.of(&row) != row))
    }

    /// The campaign as SQL has it; where SQL has lost its row, that is written again as this core knows it.
    pub(super) async fn campaign_or_restored(
        &self,
        handle: &CampaignHandle,
    ) -> Result<Campaign, RecoveryError> {
        let known = handle.campaign();
        let found = self.sync.sql.campaign(&known.id).await?;
        if let Some(found) = found {
            return Ok(found);
        }
        tracing::error!(campaign = %known.id, "SQL has lost the campaign: its row is written again");
        self.sync.sql.restore_row(&known, clock::now()).await?;
        Ok(self.sync.sql.campaign(&known.id).await?.unwrap_or_else(|| (*known).clone()))
    }

    /// Writes rules to SQL that it has lost, as Redis decided by them before it was suspended, or as this core knows them.
    /// Returns the campaign as SQL has it then; `None` when another token has been drawn since.
    pub(super) async fn restore_rules(
        &self,
        handle: &CampaignHandle,
        drawn: Campaign,
        suspended: &Suspended,
    ) -> Result<Option<Campaign>, RecoveryError> {
        let known = handle.campaign();
        let mut latest = drawn.clone();
        if known.version > latest.version {
            latest = Campaign { evicted: None, unfinished_import: None, ..(*known).clone() };
        }
        if let Some(rules) = suspended.rules.filter(|rules| rules.version > latest.version) {
            latest = rules.of(&latest);
        }
        if latest.version == drawn.version {
            return Ok(Some(drawn));
        }
        tracing::error!(campaign = %drawn.id, version = %latest.version, "SQL had lost the campaign's rules: they were written again");
        Ok(self.sync.sql.restore(&drawn, &latest, &suspended.additions, clock::now()).await?)
    }
}
