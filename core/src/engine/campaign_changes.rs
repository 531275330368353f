//! Changes campaigns for admins. A change is written to SQL first, then to Redis, where the newer version
//! wins.

use std::sync::Arc;

use bytes::Bytes;
use claimgate_shared::admin::codes::AddedCodes;
use claimgate_shared::admin::reconciliation::{Imported, Reconciliation};
use claimgate_shared::campaign::AdminState;
use claimgate_shared::{CampaignId, Code, Problem, Timestamp};

use super::campaign::handle::CampaignHandle;
use super::campaigns::Campaigns;
use super::claim::batcher::ClaimBatcher;
use super::error::{EngineError, StoreError};
use super::lifecycle::reconcile::Reconciler;
use super::lifecycle::recovery::{Recovered, Recovery};
use crate::domain::addition::Addition;
use crate::domain::campaign::Campaign;
use crate::domain::campaign_change::{CampaignPatch, NewCampaign};
use crate::domain::codes::{CodesFile, no_codes};
use crate::domain::not_ready::NotReadyReason;
use crate::domain::user_ids::PinnedScheme;
use crate::store::redis::scripts::calls::RulesReply;
use crate::store::redis::scripts::keys::Keys;
use crate::store::sql::{Added, AddedChunk, Change, Changed, Upload};

/// Number of codes per transaction. The relay of other campaigns waits on SQLite for about 100 ms.
const CODES_CHUNK: usize = 5_000;

/// The result of creating a campaign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// The campaign was created.
    New,
    /// An identical campaign exists.
    Identical,
}

/// Whether this call or an earlier one added the units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddedUnits {
    /// The units were added by this call.
    Now,
    /// The units were added by an earlier call with the same key.
    Before,
}

/// Changes campaigns, and applies the changes in Redis.
#[derive(Debug)]
pub struct CampaignChanges {
    pub(super) campaigns: Campaigns,
    pub(super) recovery: Arc<Recovery>,
    /// The claim queues, whose cached answers a change invalidates.
    pub(super) batcher: Arc<ClaimBatcher>,
}

impl CampaignChanges {
    /// Creates a campaign at `now` and loads it into Redis; `who` is the caller's name for the audit.
    ///
    /// # Errors
    /// [`EngineError::CampaignExists`], [`EngineError::OtherDatabase`], [`EngineError::Invalid`], or a
    /// store's error. After a store's error, the campaign may already have been created.
    pub async fn create(&self, new: NewCampaign, who: &str, now: Timestamp) -> Result<Created, EngineError> {
        if self.belongs_to_another_database(new.id()).await? {
            return Err(EngineError::OtherDatabase);
        }
        let change = Change { who, what: "create", at: now };
        let found = match new.clone().created_at(now) {
            Ok(campaign) => match self.campaigns.stores.sql.create(&campaign, change).await? {
                None => {
                    log_change(&campaign, change);
                    let handle = self.campaigns.register(async { Ok(campaign) }).await?;
                    self.recovery.ensure_ready(&handle).await?;
                    return Ok(Created::New);
                }
                Some(found) => found,
            },
            // The campaign is no longer valid at `now`, but an earlier call may have created it in time.
            Err(problem) => {
                let found = self.campaigns.stores.sql.campaign(new.id()).await?;
                found.ok_or(EngineError::Invalid(problem))?
            }
        };
        match new.differences(&found) {
            differs if differs.is_empty() => Ok(Created::Identical),
            differs => Err(EngineError::CampaignExists(differs)),
        }
    }

    /// Returns whether Redis holds keys of a campaign that SQL does not have.
    async fn belongs_to_another_database(&self, id: &CampaignId) -> Result<bool, EngineError> {
        // SQL is read last: another core may be creating the campaign at this moment.
        Ok(self.campaigns.stores.redis.has_keys(&Keys::of(id)).await?
            && self.campaigns.stores.sql.campaign(id).await?.is_none())
    }

    /// Changes a campaign's rules at `now`. The change applies from the next decision on. `who` is the
    /// caller's name for the audit.
    ///
    /// # Errors
    /// [`EngineError::VersionConflict`], [`EngineError::Invalid`], [`EngineError::ImportUnfinished`], or a
    /// store's error. After a store's error, the change may already have been made.
    pub async fn update(
        &self,
        id: &CampaignId,
        patch: CampaignPatch,
        who: &str,
        now: Timestamp,
    ) -> Result<(), EngineError> {
        let (handle, before) = self.campaign_to_change(id).await?;
        if before.version != patch.version {
            return Err(EngineError::VersionConflict(before.version));
        }
        let after = patch.apply(&before).map_err(EngineError::Invalid)?;
        if after.window != before.window {
            // Restores the pinned user-id scheme if the database has lost it: the change is checked against
            // it.
            self.campaigns.user_ids.refresh().await?;
        }
        // A patch that changes nothing creates no version.
        let changed = if after.version == before.version {
            after
        } else {
            let change = Change { who, what: "update", at: now };
            let stores = &self.campaigns.stores;
            let shown = stores.shown_progress(&handle);
            written(stores.sql.change(before.version, &after, change, shown).await?, change)?
        };
        self.apply(changed, None).await
    }

    /// Pauses, resumes or ends a campaign. Succeeds if the campaign is in that state already.
    ///
    /// # Errors
    /// [`EngineError::CampaignEnded`], [`EngineError::ImportUnfinished`] for a resume, or an error of
    /// [`Self::update`].
    pub async fn set_admin_state(
        &self,
        id: &CampaignId,
        admin_state: AdminState,
        change: Change<'_>,
    ) -> Result<(), EngineError> {
        let (handle, found) = self.campaign_to_change(id).await?;
        let stores = &self.campaigns.stores;
        let shown = stores.shown_progress(&handle);
        let changed = stores.sql.set_admin_state(id, found.version, admin_state, change, shown).await?;
        self.apply(written(changed, change)?, None).await
    }

    /// Archives an ended campaign, or lists it again. Succeeds if nothing changes.
    ///
    /// # Errors
    /// [`EngineError::CampaignNotEndedYet`], or a store's error. After a store's error, the change may already
    /// have been made.
    pub async fn set_archived(
        &self,
        id: &CampaignId,
        archived: bool,
        change: Change<'_>,
    ) -> Result<(), EngineError> {
        let changed = self.campaigns.stores.sql.set_archived(id, archived, change).await?;
        self.campaigns.registry.update(written(changed, change)?);
        Ok(())
    }

    /// Adds units to a campaign's total, once per idempotency key. The new total applies from the next
    /// decision on.
    ///
    /// # Errors
    /// [`EngineError::Invalid`], or a store's error. After a store's error, the units may already have been
    /// added: retry with the same key.
    pub async fn add(
        &self,
        id: &CampaignId,
        addition: &Addition,
        change: Change<'_>,
    ) -> Result<AddedUnits, EngineError> {
        let (handle, found) = self.campaign_to_change(id).await?;
        let stores = &self.campaigns.stores;
        let shown = stores.shown_progress(&handle);
        let added = stores.sql.add(id, found.version, addition, change, shown).await?;
        let (campaign, units) = match added.ok_or(EngineError::CampaignNotFound)? {
            Added::Done(campaign) => {
                log_change(&campaign, change);
                (campaign, AddedUnits::Now)
            }
            Added::Replayed(campaign) => (campaign, AddedUnits::Before),
            Added::Refused(problem) => return Err(EngineError::Invalid(problem)),
            Added::Forgotten => return Err(StoreError::not_ready(NotReadyReason::Forgotten).into()),
        };
        // Apply the total even for a repeated key: the core that added the units may have failed before this
        // step.
        self.apply(campaign, Some(addition)).await?;
        Ok(units)
    }

    /// Adds the codes of `file` that the campaign lacks. The change is written to the audit, with the number of codes.
    ///
    /// # Errors
    /// [`EngineError::Invalid`] if the campaign has no codes, [`EngineError::ImportUnfinished`], or a store's
    /// error. After a store's error, some codes may already have been added. Adding the same file again continues.
    pub async fn add_codes(
        &self,
        id: &CampaignId,
        file: &CodesFile,
        change: Change<'_>,
    ) -> Result<AddedCodes, EngineError> {
        let (handle, campaign) = self.campaign_to_change(id).await?;
        if campaign.codes.is_none() {
            return Err(EngineError::Invalid(no_codes()));
        }
        if campaign.unfinished_import.is_some() {
            return Err(EngineError::ImportUnfinished);
        }
        let mut upload = Upload::begin(campaign.version);
        let mut chunks = file.chunks(CODES_CHUNK).peekable();
        while let Some(chunk) = chunks.next() {
            let is_last = chunks.peek().is_none();
            let stores = &self.campaigns.stores;
            let shown = stores.shown_progress(&handle);
            match stores.sql.add_codes(id, &mut upload, (&chunk, is_last), change, shown).await? {
                AddedChunk::Added => {}
                AddedChunk::Recorded(changed) => {
                    log_change(&changed, change);
                    if is_last {
                        self.apply(*changed, None).await?;
                    } else {
                        self.campaigns.registry.update(*changed);
                    }
                }
                AddedChunk::ImportUnfinished => return Err(EngineError::ImportUnfinished),
                AddedChunk::Forgotten => return Err(StoreError::not_ready(NotReadyReason::Forgotten).into()),
            }
        }
        Ok(upload.counts)
    }

    /// Reads the campaign from SQL for a change. If SQL has lost versions that Redis or this core still has,
    /// restores them first: otherwise the change would reuse a version. While Redis is unavailable, returns
    /// the campaign as SQL has it. SQL may lose data after this check: if the campaign has codes, the change checks its
    /// row again, once the row is locked.
    ///
    /// # Errors
    /// A store's error; Redis' error only for a campaign with codes. Nothing was changed.
    async fn campaign_to_change(
        &self,
        id: &CampaignId,
    ) -> Result<(Arc<CampaignHandle>, Campaign), EngineError> {
        let handle = self.campaigns.find(id).await?;
        if self.recovery.sql_has_lost_data(&handle).await? {
            handle.suspect_sql_loss();
            self.recovery.maintain(&handle).await?;
            // Another core may be restoring the campaign's row.
            if self.recovery.sql_has_lost_data(&handle).await? {
                return Err(StoreError::not_ready(NotReadyReason::Forgotten).into());
            }
        }
        let found = self.campaigns.stored(id).await?;
        Ok((handle, found))
    }

    /// Applies the rules of `changed`, as read from SQL, in Redis. `addition` is the addition that created
    /// these rules, if any.
    ///
    /// # Errors
    /// [`EngineError::NotInForce`] if the rules may not be in force yet. They will be applied as soon as
    /// Redis is usable.
    async fn apply(&self, changed: Campaign, addition: Option<&Addition>) -> Result<(), EngineError> {
        let handle = self.campaigns.registry.update(changed.clone());
        let known = handle.campaign();
        // This core has different rules of the same version: SQL has lost the version and assigned its number
        // again.
        let applied = if known.version == changed.version && !known.has_same_rules_as(&changed) {
            Err(Self::forgotten(&handle).into())
        } else {
            self.bring_into_force(&handle, addition).await
        };
        applied.map_err(|error| EngineError::NotInForce(Box::new(error)))
    }

    /// Applies the campaign's rules in Redis, after loading the campaign if necessary.
    async fn bring_into_force(
        &self,
        handle: &CampaignHandle,
        addition: Option<&Addition>,
    ) -> Result<(), EngineError> {
        // An ended campaign that was evicted stays evicted: Redis has no rules to update.
        if handle.campaign().evicted.is_some() {
            return Ok(());
        }
        match self.put_into_force(handle, addition).await {
            // An evicted campaign that accepts claims again is loaded first.
            Err(error) if error.not_ready_reason().is_some_and(|why| why != NotReadyReason::Forgotten) => {
                if let Err(reason) = self.recovery.ensure_ready(handle).await {
                    // The maintenance job logs the reason and retries.
                    tracing::debug!(error = %reason, campaign = %handle.campaign().id, "not in force yet");
                    return Err(error.into());
                }
                Ok(self.put_into_force(handle, addition).await?)
            }
            result => Ok(result?),
        }
    }

    /// Applies the campaign's rules in Redis and invalidates its cached answers. `addition` is the addition
    /// that created the rules, if any.
    ///
    /// # Errors
    /// If the rules may not have been applied. [`NotReadyReason::Forgotten`] if Redis has rules that SQL has
    /// lost.
    pub async fn put_into_force(
        &self,
        handle: &CampaignHandle,
        addition: Option<&Addition>,
    ) -> Result<(), StoreError> {
        let mut campaign = handle.campaign();
        let mut reply = self.campaigns.stores.set_rules(handle, &campaign, addition).await?;
        if reply != RulesReply::Applied
            && let Some(now) = self.campaigns.stores.sql.campaign(&campaign.id).await?
        {
            // Another core may have changed the rules in the meantime. Each version is in SQL before it is in
            // Redis.
            campaign = self.campaigns.registry.update(now.clone()).campaign();
            if campaign.version > now.version {
                return Err(Self::forgotten(handle));
            }
            reply = self.campaigns.stores.set_rules(handle, &campaign, addition).await?;
        }
        if reply != RulesReply::Applied {
            return Err(Self::forgotten(handle));
        }
        self.batcher.invalidate(&campaign.id);
        handle.mark_rules_applied(campaign.version);
        Ok(())
    }

    fn forgotten(handle: &CampaignHandle) -> StoreError {
        handle.suspect_sql_loss();
        StoreError::not_ready(NotReadyReason::Forgotten)
    }

    fn reconciler(&self) -> Reconciler<'_> {
        Reconciler { stores: &self.campaigns.stores, recovery: &self.recovery }
    }

    /// Imports the past claims of the CSV `file` into the campaign `id`. Imported claims count like any other
    /// claims. `change` is written to the audit. The campaign is reloaded into Redis when this function
    /// returns, or soon after.
    ///
    /// # Errors
    /// [`EngineError::CampaignOpen`], [`EngineError::CampaignEnded`]; [`EngineError::Invalid`] for a line
    /// that is malformed, has a known key or a user id that is not of the pinned scheme, or exceeds a limit:
    /// the import changed nothing. [`EngineError::ImportUnfinished`] while the import of a different file is
    /// unfinished. After a store's error, some claims may have been written; importing the same file again
    /// continues the import.
    pub async fn import(
        &self,
        id: &CampaignId,
        file: Bytes,
        change: Change<'_>,
    ) -> Result<Imported, EngineError> {
        let handle = self.campaigns.find(id).await?;
        self.campaigns.user_ids.refresh().await?;
        let user_ids = self.campaigns.user_ids.pinned().map(|pinned| pinned.scheme);
        let imported = self.recovery.import(&handle, file, user_ids, change).await;
        self.batcher.invalidate(id);
        imported
    }

    /// Compares Redis and SQL without changing them.
    pub async fn compare(&self, id: &CampaignId) -> Result<Reconciliation, EngineError> {
        Ok(self.reconciler().compare(&*self.campaigns.find(id).await?).await?)
    }

    /// Repairs the differences that are safe to repair. Returns the comparison after the repair, with a list
    /// of the repairs.
    pub async fn repair(&self, id: &CampaignId) -> Result<Reconciliation, EngineError> {
        Ok(self.reconciler().repair(&*self.campaigns.find(id).await?).await?)
    }

    /// Loads a campaign from SQL if it is not ready.
    ///
    /// # Errors
    /// [`EngineError::LoadingElsewhere`], [`EngineError::ImportUnfinished`], or a store's error.
    pub async fn warm_up(&self, id: &CampaignId) -> Result<(), EngineError> {
        let handle = self.campaigns.find(id).await?;
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

/// Logs one line for a change, with the values of its audit entry.
fn log_change(campaign: &Campaign, change: Change<'_>) {
    let Change { who, what, .. } = change;
    tracing::info!(campaign = %campaign.id, who, what, version = %campaign.version, "campaign changed");
}

/// Returns the campaign after `change`.
fn written(changed: Option<Changed>, change: Change<'_>) -> Result<Campaign, EngineError> {
    match changed {
        Some(Changed::Done(campaign)) => {
            log_change(&campaign, change);
            Ok(campaign)
        }
        Some(Changed::Unchanged(campaign)) => Ok(campaign),
        Some(Changed::Conflict(now)) => Err(EngineError::VersionConflict(now.version)),
        Some(Changed::ImportUnfinished) => Err(EngineError::ImportUnfinished),
        Some(Changed::Ended) => Err(EngineError::CampaignEnded),
        Some(Changed::NotEnded) => Err(EngineError::CampaignNotEndedYet),
        Some(Changed::Forgotten) => Err(StoreError::not_ready(NotReadyReason::Forgotten).into()),
        Some(Changed::UserIdsChanged(pinned)) => Err(EngineError::Invalid(over_for_good(pinned))),
        None => Err(EngineError::CampaignNotFound),
    }
}

/// Returns the problem of a change that would open a campaign whose claims may be under former user ids.
fn over_for_good(pinned: PinnedScheme) -> Problem {
    let why = format!(
        "the user ids were set at {}, when the campaign had ended, so its users would count as new users; create a new \
         campaign",
        pinned.since
    );
    Problem::new(Code::CampaignEnded, why)
}
