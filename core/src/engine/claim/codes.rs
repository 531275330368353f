//! Counts codes, and assigns codes to claims that were granted before their codes were added.

use std::time::Duration;

use claimgate_shared::admin::codes::CodeCounts;
use claimgate_shared::{CampaignId, Timestamp};
use tokio::time::sleep;

use super::Claims;
use crate::domain::campaign::Campaign;
use crate::domain::codes::{CODES_AT_ONCE, CodeStock, CodesOfClaim};
use crate::domain::parts::parts;
use crate::engine::campaign::handle::CampaignHandle;
use crate::engine::error::EngineError;
use crate::store::redis::scripts::calls::RulesReply;
use crate::{metrics, step};

/// Maximum number of attempts to store assigned codes.
const GIVE_TRIES: u32 = 20;
/// Pause between attempts. The relay acknowledges entries within milliseconds of its commit.
const GIVE_AGAIN: Duration = Duration::from_millis(10);

impl Claims {
    /// Counts the codes of a campaign, and the claims without codes; all 0 for a campaign without codes.
    pub async fn count_codes(&self, id: &CampaignId) -> Result<CodeCounts, EngineError> {
        let campaign = self.campaigns.stored(id).await?;
        let CodeStock { added, assigned, pending_from } = campaign.codes.unwrap_or_default();
        let claims_pending = match pending_from {
            Some(from) => self.campaigns.stores.sql.claims_without_codes(id, from).await?,
            None => 0,
        };
        Ok(CodeCounts { added, assigned, claims_pending })
    }

    /// Records in the audit that the caller `who` reads codes of a campaign, or of all campaigns.
    pub async fn audit_codes_read(
        &self,
        id: Option<&CampaignId>,
        who: &str,
        at: Timestamp,
    ) -> Result<(), EngineError> {
        Ok(self.campaigns.stores.sql.audit_codes_read(id, who, at).await?)
    }

    /// Assigns codes to claims that were granted before their codes were added, in all campaigns. Counts the
    /// claims that are still without codes, for the alarm.
    pub async fn give_pending_codes(&self) -> Result<(), EngineError> {
        let sql = &self.campaigns.stores.sql;
        for campaign in sql.campaigns_with_pending_codes().await? {
            if let Err(error) = self.give_pending_codes_of(&campaign).await {
                // Another campaign's Redis may be available. The next round tries again.
                tracing::debug!(%error, campaign = %campaign.id, "assigning codes to claims failed; will retry");
            }
        }
        metrics::claims_without_codes(sql.all_claims_without_codes().await?.values().sum());
        Ok(())
    }

    async fn give_pending_codes_of(&self, campaign: &Campaign) -> Result<(), EngineError> {
        let Some(stock) = campaign.codes else { return Ok(()) };
        let sql = &self.campaigns.stores.sql;
        let handle = self.campaigns.registry.update(campaign.clone());
        let (mut next, mut left_from) = (stock.pending_from, None);
        while let Some(from) = next {
            let page = sql.granted_codes_page(&campaign.id, from).await?;
            for claims in parts(&page.complete, CODES_AT_ONCE, |claim| claim.codes.len() as u64) {
                // The codes of an evicted campaign are read from SQL.
                if campaign.evicted.is_none() && !self.give(&handle, campaign, claims).await? {
                    return Ok(());
                }
            }
            left_from = page.incomplete_from;
            next = page.next.filter(|_| left_from.is_none());
        }
        if left_from != stock.pending_from {
            sql.set_pending_from(campaign, left_from).await?;
        }
        Ok(())
    }

    /// Stores the codes of `claims`, read after `campaign`, in Redis once the claims have left the outbox.
    /// Returns `false` if that takes too long.
    async fn give(
        &self,
        handle: &CampaignHandle,
        campaign: &Campaign,
        claims: &[CodesOfClaim],
    ) -> Result<bool, EngineError> {
        let stores = &self.campaigns.stores;
        // If SQL loses the codes after they were shown, Redis must have a version that SQL has lost as well.
        if stores.set_rules(handle, campaign, None).await? != RulesReply::Applied {
            handle.suspect_sql_loss();
            return Ok(false);
        }
        let Some(now) = stores.sql.campaign(&campaign.id).await? else { return Ok(false) };
        // A later version may have added the codes. If SQL has lost this version, another may have its number.
        if (now.version, now.changed_at) != (campaign.version, campaign.changed_at) {
            return Ok(false);
        }
        let events = now.high_water_mark.events;
        // In tests, a schedule may pause the relay for as long as this task waits.
        let tries = if step::is_scheduled() { 1 } else { GIVE_TRIES };
        for _ in 0..tries {
            if stores.give_codes(handle, campaign, events, claims).await? {
                return Ok(true);
            }
            sleep(GIVE_AGAIN).await;
        }
        Ok(false)
    }
}
