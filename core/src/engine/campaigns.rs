//! Campaigns: read, created, changed. A change goes to SQL first, then to Redis, where the newer version counts.

use std::sync::Arc;

use claimgate_shared::campaign::AdminState;
use claimgate_shared::{CampaignId, CampaignView, Timestamp, Version};

use super::handle::CampaignHandle;
use super::reconcile::{Reconciler, Reconciliation};
use super::recovery::Recovered;
use super::sync::SyncError;
use super::{Engine, EngineError, evicted_answers};
use crate::domain::addition::Addition;
use crate::domain::campaign::Campaign;
use crate::domain::campaign_change::CampaignPatch;
use crate::domain::not_ready::NotReadyReason;
use crate::store::redis::calls::RulesReply;
use crate::store::redis::keys::Keys;
use crate::store::redis::replies::Counters;
use crate::store::sql::{Added, AuditEntry, Change, Changed};

/// A campaign with its live counters.
#[derive(Debug)]
pub struct CampaignStatus {
    /// Its rules.
    pub campaign: Arc<Campaign>,
    /// Its counters; `None` while Redis cannot give them.
    pub counters: Option<Counters>,
}

/// A page of campaigns.
#[derive(Debug)]
pub struct CampaignList {
    /// The campaigns, in the order of their ids.
    pub items: Vec<CampaignStatus>,
    /// The id after which the next page begins; `None` on the last.
    pub next_cursor: Option<String>,
}

/// The result of creating a campaign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// It was created.
    New,
    /// An identical one exists.
    Identical,
}

/// When units were added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddedUnits {
    /// By this call.
    Now,
    /// By an earlier call with the same key.
    Before,
}

impl Engine {
    /// The handle of the campaign `id`. One that this core does not hold yet is read from SQL and added to the registry.
    ///
    /// # Errors
    /// [`EngineError::CampaignNotFound`], or when SQL does not answer.
    pub async fn handle(&self, id: &CampaignId) -> Result<Arc<CampaignHandle>, EngineError> {
        match self.registry.get(id) {
            Some(handle) => Ok(handle),
            // In a box: it would make every claim's future larger.
            None => Ok(self.registry.update(Box::pin(self.campaign(id)).await?)),
        }
    }

    /// The campaign as SQL has it now.
    ///
    /// # Errors
    /// As [`Self::handle`].
    pub async fn campaign(&self, id: &CampaignId) -> Result<Campaign, EngineError> {
        self.sync.sql.campaign(id).await?.ok_or(EngineError::CampaignNotFound)
    }

    /// The campaign as callers see it.
    ///
    /// # Errors
    /// When there is none, or a store does not answer.
    pub async fn view(&self, id: &CampaignId) -> Result<CampaignView, EngineError> {
        let handle = self.handle(id).await?;
        let (counters, _) = self.read(&handle, None).await?;
        let campaign = self.campaign_at(&handle, counters.version).await?;
        Ok(campaign.view(counters.taken, counters.now))
    }

    /// The campaign with its live counters, or without them while Redis cannot give them.
    ///
    /// # Errors
    /// When there is none, or SQL does not answer.
    pub async fn status(&self, id: &CampaignId) -> Result<CampaignStatus, EngineError> {
        let handle = self.handle(id).await?;
        let counters = match self.read(&handle, None).await {
            Ok((counters, _)) => Some(counters),
            Err(error) => {
                // One line for each campaign and look would fill the log.
                tracing::debug!(%error, campaign = %id, "no live counters");
                None
            }
        };
        let campaign =
            self.campaign_at(&handle, counters.map(|counters| counters.version).unwrap_or_default()).await?;
        Ok(CampaignStatus { campaign, counters })
    }

    /// Up to `limit` campaigns whose ids come after `after`, in the order of their ids.
    ///
    /// # Errors
    /// When SQL does not answer.
    pub async fn list(&self, after: &str, limit: u32) -> Result<CampaignList, EngineError> {
        let page = self.sync.sql.campaigns(after, limit).await?;
        let mut items = Vec::with_capacity(page.campaigns.len());
        for campaign in page.campaigns {
            items.push(match campaign.evicted {
                // Without a handle: there may be millions of them.
                Some(evicted) => {
                    let is_whole = campaign.unfinished_import.is_none();
                    let counters = is_whole.then(|| evicted_answers::counters(&campaign, evicted));
                    CampaignStatus { campaign: Arc::new(campaign), counters }
                }
                None => self.status(&campaign.id).await?,
            });
        }
        Ok(CampaignList { items, next_cursor: page.last.filter(|_| page.is_full) })
    }

    /// Up to `limit` changes of one campaign or of all, with numbers above `after`, in the order in which they were made.
    ///
    /// # Errors
    /// When SQL does not answer.
    pub async fn audit(
        &self,
        campaign: Option<&CampaignId>,
        after: u64,
        limit: u32,
    ) -> Result<Vec<AuditEntry>, EngineError> {
        Ok(self.sync.sql.audit(campaign, after, limit).await?)
    }

    /// Compares Redis and SQL; changes nothing.
    ///
    /// # Errors
    /// When there is no such campaign, or a store does not answer.
    pub async fn compare(&self, id: &CampaignId) -> Result<Reconciliation, EngineError> {
        Ok(self.reconciler().compare(&*self.handle(id).await?).await?)
    }

    /// Repairs what is safe to repair. The result is the comparison after it, and lists what was done.
    ///
    /// # Errors
    /// As [`Self::compare`].
    pub async fn repair(&self, id: &CampaignId) -> Result<Reconciliation, EngineError> {
        Ok(self.reconciler().repair(&*self.handle(id).await?).await?)
    }

    /// The campaign's rules at `version` or newer: Redis may already decide by rules that another core has set.
    pub(super) async fn campaign_at(
        &self,
        handle: &Arc<CampaignHandle>,
        version: Version,
    ) -> Result<Arc<Campaign>, EngineError> {
        let campaign = handle.campaign();
        if campaign.version >= version {
            return Ok(campaign);
        }
        Ok(self.registry.update(self.campaign(&campaign.id).await?).campaign())
    }

    /// Creates a campaign at `now` and loads it into Redis; `who` is the caller's name in the audit table.
    ///
    /// # Errors
    /// [`EngineError::CampaignExists`], [`EngineError::OfAnotherRegister`], or when a store does not answer: the campaign
    /// may have been created then.
    pub async fn create(
        &self,
        campaign: Campaign,
        who: &str,
        now: Timestamp,
    ) -> Result<Created, EngineError> {
        if self.is_of_another_register(&campaign.id).await? {
            return Err(EngineError::OfAnotherRegister);
        }
        let change = Change { who, what: "create", at: now };
        match self.sync.sql.create(&campaign, change).await? {
            None => {
                log_change(&campaign, change);
                let handle = self.registry.update(campaign);
                self.recovery.ensure_ready(&handle).await?;
                Ok(Created::New)
            }
            Some(found) if found.same_rules(&campaign) => Ok(Created::Identical),
            Some(_) => Err(EngineError::CampaignExists),
        }
    }

    /// Whether Redis holds keys of a campaign that SQL does not know.
    async fn is_of_another_register(&self, id: &CampaignId) -> Result<bool, EngineError> {
        // SQL is asked last: another core may be creating the campaign at this moment.
        Ok(self.sync.redis.holds_any(&Keys::of(id)).await? && self.sync.sql.campaign(id).await?.is_none())
    }

    /// Changes a campaign's rules at `now`, from the next decision on; `who` is the caller's name in the audit table.
    ///
    /// # Errors
    /// [`EngineError::VersionConflict`], [`EngineError::Invalid`], [`EngineError::ImportUnfinished`], or when a store does not answer: the change may have
    /// been made then.
    pub async fn update(
        &self,
        id: &CampaignId,
        patch: CampaignPatch,
        who: &str,
        now: Timestamp,
    ) -> Result<(), EngineError> {
        let before = self.campaign_to_change(id).await?;
        if before.version != patch.version {
            return Err(EngineError::VersionConflict(before.version));
        }
        let after = patch.apply(&before).map_err(EngineError::Invalid)?;
        // A patch that leaves all as it is makes no version.
        let changed = if after.version == before.version {
            after
        } else {
            let change = Change { who, what: "update", at: now };
            written(self.sync.sql.change(before.version, &after, change).await?, change)?
        };
        self.apply(changed, None).await
    }

    /// Pauses, resumes or ends a campaign. A campaign that is in that state already is no error.
    ///
    /// # Errors
    /// [`EngineError::CampaignEnded`], [`EngineError::ImportUnfinished`] on a resume, or as [`Self::update`].
    pub async fn set_admin_state(
        &self,
        id: &CampaignId,
        admin_state: AdminState,
        change: Change<'_>,
    ) -> Result<(), EngineError> {
        let least = self.campaign_to_change(id).await?.version;
        let changed = self.sync.sql.set_admin_state(id, least, admin_state, change).await?;
        self.apply(written(changed, change)?, None).await
    }

    /// Adds units to a campaign's total, from the next decision on, once for each key; a key of before finds it added.
    ///
    /// # Errors
    /// [`EngineError::Invalid`], or when a store does not answer: the units may have been added then, and the same key
    /// tells.
    pub async fn add(
        &self,
        id: &CampaignId,
        addition: &Addition,
        change: Change<'_>,
    ) -> Result<AddedUnits, EngineError> {
        let least = self.campaign_to_change(id).await?.version;
        let added =
            self.sync.sql.add(id, least, addition, change).await?.ok_or(EngineError::CampaignNotFound)?;
        let (campaign, units) = match added {
            Added::Done(campaign) => {
                log_change(&campaign, change);
                (campaign, AddedUnits::Now)
            }
            Added::Replayed(campaign) => (campaign, AddedUnits::Before),
            Added::Refused(problem) => return Err(EngineError::Invalid(problem)),
            Added::Forgotten => return Err(SyncError::not_ready(NotReadyReason::Forgotten).into()),
        };
        // Also for a key of before: the core that added the units may not have come as far.
        self.apply(campaign, Some(addition)).await?;
        Ok(units)
    }

    /// The campaign as SQL has it, once SQL has all that Redis and this core know of it: a change that is made on top of less
    /// would get a version that was given before.
    ///
    /// # Errors
    /// When there is none, or a store does not answer. While Redis does not, it is what SQL has.
    async fn campaign_to_change(&self, id: &CampaignId) -> Result<Campaign, EngineError> {
        let handle = self.handle(id).await?;
        if self.recovery.sql_has_forgotten(&handle).await? {
            handle.suspect_sql();
            self.recovery.maintain(&handle).await?;
            // Another core may be at it.
            if self.recovery.sql_has_forgotten(&handle).await? {
                return Err(SyncError::not_ready(NotReadyReason::Forgotten).into());
            }
        }
        self.campaign(id).await
    }

    /// Puts the rules of `changed`, as SQL has them, into force in Redis; `addition` has made them, if it is given.
    ///
    /// # Errors
    /// [`EngineError::NotInForce`] when they may not be in force yet: they will be, as soon as Redis can take them.
    async fn apply(&self, changed: Campaign, addition: Option<&Addition>) -> Result<(), EngineError> {
        let handle = self.registry.update(changed.clone());
        let known = handle.campaign();
        // A version that SQL has lost and given again: this core knows the earlier rules by it.
        let applied = if known.version == changed.version && !known.decides_as(&changed) {
            Err(Self::forgotten(&handle).into())
        } else {
            self.bring_into_force(&handle, addition).await
        };
        applied.map_err(|error| EngineError::NotInForce(Box::new(error)))
    }

    /// Applies the campaign's rules in Redis, once it is loaded there.
    async fn bring_into_force(
        &self,
        handle: &CampaignHandle,
        addition: Option<&Addition>,
    ) -> Result<(), EngineError> {
        // An ended campaign that was evicted stays so: there are no rules to apply.
        if handle.campaign().evicted.is_some() {
            return Ok(());
        }
        match self.put_into_force(handle, addition).await {
            // One that was evicted and can be claimed from again is loaded first.
            Err(error) if error.not_ready_reason().is_some_and(|why| why != NotReadyReason::Forgotten) => {
                if let Err(reason) = self.recovery.ensure_ready(handle).await {
                    // The maintenance logs it, and goes on with it.
                    tracing::debug!(error = %reason, campaign = %handle.campaign().id, "not in force yet");
                    return Err(error.into());
                }
                Ok(self.put_into_force(handle, addition).await?)
            }
            result => Ok(result?),
        }
    }

    /// Applies the campaign's rules in Redis, which `addition` has made if it is given, and invalidates what is cached of it.
    ///
    /// # Errors
    /// When the rules may not have been applied. [`NotReadyReason::Forgotten`] when Redis holds others that SQL has lost.
    pub async fn put_into_force(
        &self,
        handle: &CampaignHandle,
        addition: Option<&Addition>,
    ) -> Result<(), SyncError> {
        let mut campaign = handle.campaign();
        let mut reply = self.sync.set_rules(handle, &campaign, addition).await?;
        if reply != RulesReply::Applied
            && let Some(now) = self.sync.sql.campaign(&campaign.id).await?
        {
            // Another core may have changed them since; whatever Redis has, SQL had before.
            campaign = self.registry.update(now.clone()).campaign();
            if campaign.version > now.version {
                return Err(Self::forgotten(handle));
            }
            reply = self.sync.set_rules(handle, &campaign, addition).await?;
        }
        if reply != RulesReply::Applied {
            return Err(Self::forgotten(handle));
        }
        self.batcher.invalidate(&campaign.id);
        handle.mark_rules_applied(campaign.version);
        Ok(())
    }

    fn forgotten(handle: &CampaignHandle) -> SyncError {
        handle.suspect_sql();
        SyncError::not_ready(NotReadyReason::Forgotten)
    }

    fn reconciler(&self) -> Reconciler<'_> {
        Reconciler { sync: &self.sync, recovery: &self.recovery }
    }

    /// Makes sure that a campaign is ready: loads it from SQL if it is not.
    ///
    /// # Errors
    /// [`EngineError::LoadingElsewhere`], [`EngineError::ImportUnfinished`], or when a store does not answer.
    pub async fn warm_up(&self, id: &CampaignId) -> Result<(), EngineError> {
        let handle = self.handle(id).await?;
        if handle.campaign().unfinished_import.is_some() {
            return Err(EngineError::ImportUnfinished);
        }
        let recovered = self.recovery.maintain(&handle).await;
        self.batcher.invalidate(id);
        match recovered? {
            Recovered::Ready | Recovered::Loaded(_) | Recovered::Adopted => Ok(()),
            Recovered::Elsewhere => Err(EngineError::LoadingElsewhere),
        }
    }
}

/// One line for each change, by the words of the audit.
fn log_change(campaign: &Campaign, change: Change<'_>) {
    let Change { who, what, .. } = change;
    tracing::info!(campaign = %campaign.id, who, what, version = %campaign.version, "campaign changed");
}

/// The campaign as `change` has left it.
fn written(changed: Option<Changed>, change: Change<'_>) -> Result<Campaign, EngineError> {
    match changed {
        Some(Changed::Done(campaign)) => {
            log_change(&campaign, change);
            Ok(campaign)
        }
        Some(Changed::AsBefore(campaign)) => Ok(campaign),
        Some(Changed::Conflict(now)) => Err(EngineError::VersionConflict(now.version)),
        Some(Changed::ImportUnfinished) => Err(EngineError::ImportUnfinished),
        Some(Changed::Ended) => Err(EngineError::CampaignEnded),
        Some(Changed::Forgotten) => Err(SyncError::not_ready(NotReadyReason::Forgotten).into()),
        None => Err(EngineError::CampaignNotFound),
    }
}
