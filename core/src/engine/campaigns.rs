//! Finds campaigns, and reads their live counters.

use std::sync::Arc;
use std::time::Duration;

use claimgate_shared::{CampaignId, CampaignView, ClaimId, Timestamp, Version};
use tokio::time::timeout;

use super::campaign::handle::CampaignHandle;
use super::campaign::registry::CampaignRegistry;
use super::error::{EngineError, StoreError};
use super::stores::Stores;
use super::user_ids::UserIds;
use crate::clock;
use crate::domain::audit::AuditItem;
use crate::domain::campaign::{Campaign, Evicted};
use crate::domain::claim_record::ClaimRecord;
use crate::domain::not_ready::NotReadyReason;
use crate::store::redis::scripts::replies::Counters;
use crate::store::sql::{AuditFilter, SqlError};

/// The time limit of reading an archive mark from SQL. Before, a change or a slow Redis may have used most of the
/// request's time limit, and without a response the caller does not learn whether the change was made.
const ARCHIVE_MARK_MAX: Duration = Duration::from_millis(300);

/// A campaign with its live counters.
#[derive(Debug)]
pub struct CampaignStatus {
    /// The campaign's rules.
    pub campaign: Arc<Campaign>,
    /// The counters; `None` while Redis is unavailable or the campaign is not ready.
    pub counters: Option<Counters>,
    /// Whether an admin has archived the campaign, as SQL has it. The mark counts only while `campaign` is ended.
    pub archive_mark: bool,
}

/// A page of campaigns.
#[derive(Debug)]
pub struct CampaignList {
    /// The campaigns, in the order of their ids.
    pub items: Vec<CampaignStatus>,
    /// The id after which the next page begins; `None` on the last page.
    pub next_cursor: Option<String>,
}

/// Finds campaigns, and reads their counters and their audit.
#[derive(Debug, Clone)]
pub struct Campaigns {
    pub(super) stores: Arc<Stores>,
    pub(super) registry: Arc<CampaignRegistry>,
    pub(super) user_ids: UserIds,
}

impl Campaigns {
    /// Returns the handle of the campaign `id`. A campaign that is not in memory yet is read from SQL and
    /// registered.
    pub async fn find(&self, id: &CampaignId) -> Result<Arc<CampaignHandle>, EngineError> {
        match self.registry.get(id) {
            Some(handle) => Ok(handle),
            // Boxed, because it would make every claim's future larger.
            None => Ok(Box::pin(self.register(self.stored(id))).await?),
        }
    }

    /// Registers a campaign that this core does not have yet, once `reading` it is done.
    pub(super) async fn register(
        &self,
        reading: impl Future<Output = Result<Campaign, EngineError>>,
    ) -> Result<Arc<CampaignHandle>, EngineError> {
        let campaign = reading.await?;
        // After the campaign was read: the user ids may have changed just before it was created.
        self.user_ids.refresh().await?;
        Ok(self.registry.update(campaign))
    }

    /// Reads the campaign from SQL.
    pub async fn stored(&self, id: &CampaignId) -> Result<Campaign, EngineError> {
        self.stores.sql.campaign(id).await?.ok_or(EngineError::CampaignNotFound)
    }

    /// Returns the campaign as callers see it.
    pub async fn view(&self, id: &CampaignId) -> Result<CampaignView, EngineError> {
        let handle = self.find(id).await?;
        let (counters, _) = self.read(&handle, None).await?;
        let campaign = self.rules_at(&handle, counters.version).await?;
        Ok(campaign.view(counters.taken, counters.now))
    }

    /// Returns the campaign with its live counters, or without counters while Redis cannot return them.
    pub async fn status(&self, id: &CampaignId) -> Result<CampaignStatus, EngineError> {
        let (campaign, counters) = self.with_counters(id).await?;
        let now = counters.map_or_else(clock::now, |counters| counters.now);
        let archive_mark = self.archive_mark(&campaign, now).await;
        Ok(CampaignStatus { campaign, counters, archive_mark })
    }

    /// Returns the archive mark of `known`. If the campaign has ended at `now`, the mark is read from SQL, since no
    /// version shows whether the mark in memory is older than SQL's, or was lost by SQL. If SQL is slow or unavailable,
    /// the mark in memory counts.
    async fn archive_mark(&self, known: &Campaign, now: Timestamp) -> bool {
        if known.ended_at(now).is_none() {
            return known.archived;
        }
        let read = timeout(ARCHIVE_MARK_MAX, self.stored(&known.id)).await;
        let stored = read.unwrap_or_else(|_| Err(SqlError::timed_out().into())).inspect_err(|error| {
            tracing::debug!(%error, campaign = %known.id, "the archive mark was not read from SQL");
        });
        stored.map_or(known.archived, |stored| stored.archived)
    }

    async fn with_counters(&self, id: &CampaignId) -> Result<(Arc<Campaign>, Option<Counters>), EngineError> {
        let handle = self.find(id).await?;
        let counters = match self.read(&handle, None).await {
            Ok((counters, _)) => Some(counters),
            Err(error) => {
                // Only at debug level: one line per campaign and request would fill the log.
                tracing::debug!(%error, campaign = %id, "no live counters");
                None
            }
        };
        let campaign =
            self.rules_at(&handle, counters.map(|counters| counters.version).unwrap_or_default()).await?;
        Ok((campaign, counters))
    }

    /// Returns up to `limit` campaigns with ids after `after`, in the order of their ids.
    pub async fn list(&self, after: &str, limit: u32) -> Result<CampaignList, EngineError> {
        let page = self.stores.sql.campaigns(after, limit).await?;
        let mut items = Vec::with_capacity(page.campaigns.len());
        for stored in page.campaigns {
            let archive_mark = stored.archived;
            let (campaign, counters) = match stored.evicted {
                // Create no handle: there may be millions of evicted campaigns.
                Some(evicted) => {
                    let is_whole = stored.unfinished_import.is_none();
                    let counters = is_whole.then(|| counters(&stored, evicted));
                    (Arc::new(stored), counters)
                }
                None => self.with_counters(&stored.id).await?,
            };
            items.push(CampaignStatus { campaign, counters, archive_mark });
        }
        Ok(CampaignList { items, next_cursor: page.last.filter(|_| page.is_full) })
    }

    /// Returns up to `limit` audit entries that match `filter`, with numbers above `after`, oldest first.
    pub async fn audit(
        &self,
        filter: AuditFilter<'_>,
        after: u64,
        limit: u32,
    ) -> Result<Vec<AuditItem>, EngineError> {
        Ok(self.stores.sql.audit(filter, after, limit).await?)
    }

    /// Returns the campaign's rules at `version` or newer: Redis may already decide by rules that another
    /// core has set.
    pub(super) async fn rules_at(
        &self,
        handle: &Arc<CampaignHandle>,
        version: Version,
    ) -> Result<Arc<Campaign>, EngineError> {
        let campaign = handle.campaign();
        if campaign.version >= version {
            return Ok(campaign);
        }
        Ok(self.registry.update(self.stored(&campaign.id).await?).campaign())
    }

    /// Rereads the campaign `id` from SQL and returns its handle. Another core may have reloaded an evicted
    /// campaign and granted claims on it.
    pub(super) async fn find_in_sql(&self, id: &CampaignId) -> Result<Arc<CampaignHandle>, EngineError> {
        Ok(self.registry.update(self.stored(id).await?))
    }

    /// Returns the campaign's counters, and the claim `id` if Redis has that claim.
    pub(super) async fn read(
        &self,
        handle: &CampaignHandle,
        id: Option<&ClaimId>,
    ) -> Result<(Counters, Option<ClaimRecord>), StoreError> {
        let campaign = handle.campaign();
        match evicted(&campaign)? {
            None => self.stores.read(handle, id).await,
            Some(evicted) => Ok((counters(&campaign, evicted), None)),
        }
    }
}

/// Returns the final counters of an evicted campaign; `None` while Redis has the campaign.
///
/// # Errors
/// [`NotReadyReason::Importing`] while the campaign's import is unfinished.
pub(super) fn evicted(campaign: &Campaign) -> Result<Option<Evicted>, StoreError> {
    match campaign.unfinished_import {
        Some(_) => Err(StoreError::not_ready(NotReadyReason::Importing)),
        None => Ok(campaign.evicted),
    }
}

/// Returns the campaign's final counters in the form of Redis' reply.
fn counters(campaign: &Campaign, evicted: Evicted) -> Counters {
    Counters {
        now: clock::now(),
        version: campaign.version,
        taken: evicted.taken,
        sequence: evicted.sequence,
        backlog: 0,
        events: 0,
    }
}
