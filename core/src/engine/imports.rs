//! Imports of past claims into a campaign that is not open.
//!
//! SQL is what campaigns are loaded from, so the claims are written there while Redis does not hold the campaign. The order
//! matters: suspend in Redis under a token, relay what is left to SQL, hold the file against what SQL has, and evict the
//! campaign in the transaction that marks its row with the file; then write the claims, unmark and un-evict the campaign in
//! one transaction, and load it. While it is marked no core loads it or decides anything on it: an import that breaks off
//! grants nothing wrong, the same file goes on where it stopped, and no other file can come in between.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use claimgate_shared::campaign::AdminState;
use claimgate_shared::{CampaignId, CampaignState, Code, Problem, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::task::spawn_blocking;

use super::handle::CampaignHandle;
use super::recovery::{LEASE, Recovery, RecoveryError};
use super::{Engine, EngineError};
use crate::clock;
use crate::domain::campaign::{Campaign, Evicted};
use crate::domain::counters::Epoch;
use crate::domain::event::OutboxEntry;
use crate::domain::import::{Import, PastClaim};
use crate::store::redis::lease::LeaseError;
use crate::store::sql::{Change, LoadCursor, OutboxWriteError};

/// Claims that one transaction writes: 10,000 take SQLite some 100 ms, which other campaigns' relay waits for.
const BATCH: usize = 10_000;
/// How long the campaign's lease is waited for: an import that was killed holds it for [`LEASE`].
const LEASE_WAIT: Duration = Duration::from_secs(LEASE.as_secs() + 1);

/// What came of an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Imported {
    /// Claims that this call has written.
    pub imported: u64,
    /// Claims that the campaign had already.
    pub already: u64,
}

impl Engine {
    /// Imports the past claims of the CSV `file` into the campaign `id`, which counts them as if they had been made; `change`
    /// goes to the audit table. The campaign is loaded into Redis again when this returns, or soon after.
    ///
    /// # Errors
    /// [`EngineError::CampaignOpen`], [`EngineError::CampaignEnded`]; [`EngineError::Invalid`] for a line that is wrong, has a
    /// known key or exceeds a limit: nothing was changed then. [`EngineError::ImportUnfinished`] when another file's import
    /// is. When a store does not answer, claims may have been written: the same file again goes on with it.
    pub async fn import(
        &self,
        id: &CampaignId,
        file: Bytes,
        change: Change<'_>,
    ) -> Result<Imported, EngineError> {
        let handle = self.handle(id).await?;
        let imported = self.recovery.import(&handle, file, change).await;
        self.batcher.invalidate(id);
        imported
    }
}

impl Recovery {
    async fn import(
        &self,
        handle: &CampaignHandle,
        file: Bytes,
        change: Change<'_>,
    ) -> Result<Imported, EngineError> {
        let id = handle.campaign().id.clone();
        let holder = self.lease_holder().map_err(RecoveryError::from)?;
        let lease = match holder.acquire(id.as_str(), LEASE, LEASE_WAIT).await {
            Ok(lease) => lease,
            Err(LeaseError::Taken) => return Err(EngineError::LoadingElsewhere),
            Err(LeaseError::Redis(error)) => return Err(error.into()),
        };
        let imported = self.import_leased(handle, file, change).await;
        let _ = lease.release().await;
        // Whatever came of it. If this fails, the maintenance goes on with it.
        handle.needs_maintenance();
        if let Err(error) = self.recover(handle, false).await {
            tracing::debug!(%error, campaign = %id, "not loaded yet after an import");
        }
        imported
    }

    async fn import_leased(
        &self,
        handle: &CampaignHandle,
        file: Bytes,
        change: Change<'_>,
    ) -> Result<Imported, EngineError> {
        let id = handle.campaign().id.clone();
        let campaign = self.sync.sql.campaign(&id).await?.ok_or(EngineError::CampaignNotFound)?;
        let (digest, import) = parsed(file, &campaign, change.at).await?;
        may_import(&campaign, &digest, change.at)?;
        let (found, epoch, last) = match campaign.evicted {
            Some(_) => (campaign.clone(), campaign.epoch, campaign.high_water_mark.sequence),
            None => self.take_out(handle).await?,
        };
        // Its start may have come while the file was read.
        may_import(&found, &digest, clock::now())?;
        let totals = self.sync.sql.totals(&id).await?;
        let (claims, already) = self.held_against(import, &found).await?;
        let imported = claims.len() as u64;
        if imported == 0 && found.unfinished_import.is_none() {
            return Ok(Imported { imported, already });
        }
        let evicted = Evicted { taken: totals.taken, sequence: totals.sequence.max(last) };
        let begun = self.sync.sql.begin_import(&found, epoch.next(), evicted, &digest, change).await?;
        let begun = begun.ok_or(EngineError::LoadingElsewhere)?;
        self.registry.update(begun.clone());
        if let Err(error) = self.drop_keys(handle, &begun).await {
            tracing::debug!(%error, campaign = %id, "its keys are not dropped yet");
        }
        self.write(&begun, evicted, &claims).await?;
        let Some(complete) = self.sync.sql.end_import(&begun).await? else {
            return Err(self.overtaken(&id).await?);
        };
        self.registry.update(complete);
        tracing::info!(campaign = %id, who = change.who, imported, already, "past claims imported");
        Ok(Imported { imported, already })
    }

    /// Suspends a campaign in Redis and relays what is left to SQL. Returns the campaign as SQL has it then, and the highest
    /// epoch and the last sequence that either side has known.
    async fn take_out(&self, handle: &CampaignHandle) -> Result<(Campaign, Epoch, u64), EngineError> {
        let Some((drawn, suspended)) = self.suspend(handle).await? else {
            return Err(EngineError::LoadingElsewhere);
        };
        let drawn =
            self.restore_rules(handle, drawn, &suspended).await?.ok_or(EngineError::LoadingElsewhere)?;
        self.secure(handle, &drawn, &suspended).await?;
        let found = self.sync.sql.campaign(&drawn.id).await?;
        // Under another token another core has loaded it since.
        let found = found.filter(|found| found.token == drawn.token && found.evicted.is_none());
        let found = found.ok_or(EngineError::LoadingElsewhere)?;
        let mut known = found.high_water_mark.max(handle.high_water_mark());
        // The counters of an older epoch say nothing about this one.
        if suspended.epoch >= found.epoch {
            known = known.max(suspended.high_water_mark);
        }
        let epoch = suspended.epoch.max(found.epoch).max(handle.campaign().epoch);
        Ok((found, epoch, known.sequence))
    }

    /// The claims of the file that SQL lacks, in its order, and how many it has already.
    async fn held_against(
        &self,
        mut import: Import,
        found: &Campaign,
    ) -> Result<(Vec<PastClaim>, u64), EngineError> {
        let mut place = Some(LoadCursor::default());
        while let Some(after) = place {
            let (claims, next) = self.sync.sql.by_user(&found.id, &after).await?;
            for (user, claim) in &claims {
                import.has(user, claim);
            }
            place = next;
        }
        let limits = found.limits;
        in_background(move || import.lacking(limits)).await
    }

    /// Writes the claims of an import that has begun, which continue the counters `evicted`.
    async fn write(
        &self,
        begun: &Campaign,
        evicted: Evicted,
        claims: &[PastClaim],
    ) -> Result<(), EngineError> {
        let Evicted { mut taken, mut sequence } = evicted;
        let total = begun.limits.total.map(u64::from);
        for batch in claims.chunks(BATCH) {
            let before = taken;
            let events = batch.iter().map(|claim| {
                sequence += 1;
                taken += u64::from(claim.quantity.get());
                claim.granted(sequence, total, taken)
            });
            let events = events.collect();
            let entry = OutboxEntry {
                id: String::new(),
                epoch: begun.epoch,
                count: 0,
                events,
                by: None,
                trace: None,
            };
            let written = self.sync.sql.import_claims(begun, &entry, sequence, taken - before).await;
            let written = written.map_err(|error| match error {
                OutboxWriteError::Sql(error) => EngineError::Sql(error),
                error => EngineError::ImportRefused(error),
            })?;
            if !written {
                return Err(self.overtaken(&begun.id).await?);
            }
        }
        Ok(())
    }

    /// Why an import is no more.
    async fn overtaken(&self, id: &CampaignId) -> Result<EngineError, EngineError> {
        let now = self.sync.sql.campaign(id).await?.ok_or(EngineError::CampaignNotFound)?;
        let has_ended = now.admin_state == AdminState::Ended;
        self.registry.update(now);
        Ok(if has_ended { EngineError::CampaignEnded } else { EngineError::LoadingElsewhere })
    }
}

/// The digest of a file, and its claims.
async fn parsed(file: Bytes, campaign: &Campaign, now: Timestamp) -> Result<(String, Import), EngineError> {
    let campaign = Arc::new(campaign.clone());
    in_background(move || {
        let digest = URL_SAFE_NO_PAD.encode(Sha256::digest(&file));
        Ok((digest, Import::parse(&file, &campaign, now)?))
    })
    .await
}

/// What takes seconds for a million claims, on a thread where no other task waits for it.
async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, EngineError> {
    let worked = spawn_blocking(work).await;
    let worked = worked.unwrap_or_else(|error| {
        tracing::error!(%error, "an import broke off");
        Err(Problem::new(Code::Unavailable, "the import broke off; send the same file again"))
    });
    worked.map_err(EngineError::Invalid)
}

/// Whether the file `digest` may be imported into a campaign at `now`.
fn may_import(campaign: &Campaign, digest: &str, now: Timestamp) -> Result<(), EngineError> {
    match &campaign.unfinished_import {
        Some(unfinished) if unfinished == digest => return Ok(()),
        Some(_) => return Err(EngineError::ImportUnfinished),
        None => {}
    }
    match CampaignState::at(now, campaign.admin_state, campaign.window, None) {
        CampaignState::Scheduled | CampaignState::Paused => Ok(()),
        CampaignState::Open | CampaignState::SoldOut => Err(EngineError::CampaignOpen),
        CampaignState::Ended => Err(EngineError::CampaignEnded),
    }
}
