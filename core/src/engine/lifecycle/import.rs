//! Imports of past claims into a campaign that is not open.
//!
//! Campaigns are loaded from SQL, so an import writes the claims to SQL while Redis does not hold the
//! campaign. The order of the steps matters. Suspend the campaign in Redis under a token, relay the remaining
//! outbox to SQL, and compare the file with SQL. Evict the campaign in the transaction that marks its row
//! with the file. Write the claims. Remove mark and eviction in one transaction, and load the campaign. While
//! the row is marked, no core loads the campaign or decides claims on it, so an interrupted import cannot
//! cause wrong grants. Importing the same file again continues the import; no other file can be imported in
//! between.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use claimgate_shared::admin::reconciliation::Imported;
use claimgate_shared::campaign::AdminState;
use claimgate_shared::user_id::Scheme;
use claimgate_shared::{CampaignId, CampaignState, Code, Problem, Timestamp};
use sha2::{Digest as _, Sha256};
use tokio::task::spawn_blocking;

use super::recovery::{LEASE, Recovery};
use crate::clock;
use crate::domain::campaign::{Campaign, Evicted};
use crate::domain::counters::Epoch;
use crate::domain::event::OutboxEntry;
use crate::domain::import::{Import, MissingClaims};
use crate::engine::campaign::handle::CampaignHandle;
use crate::engine::error::EngineError;
use crate::store::sql::{Change, LoadCursor, OutboxWriteError};

/// Number of claims per transaction. SQLite takes about 100 ms for 10,000 claims, and the relay of other
/// campaigns waits for that time.
const BATCH: usize = 10_000;
/// Maximum wait for the campaign's lease: an import that was killed holds the lease for [`LEASE`].
const LEASE_WAIT: Duration = Duration::from_secs(LEASE.as_secs() + 1);

impl Recovery {
    pub(in crate::engine) async fn import(
        &self,
        handle: &CampaignHandle,
        file: Bytes,
        user_ids: Option<Scheme>,
        change: Change<'_>,
    ) -> Result<Imported, EngineError> {
        let import = || self.import_leased(handle, file, user_ids, change);
        let imported = self.leased(handle, LEASE_WAIT, import).await?;
        let imported = imported.ok_or(EngineError::LoadingElsewhere)?;
        // Load the campaign regardless of the result. If the load fails, the maintenance job retries.
        handle.notify_maintenance();
        if let Err(error) = self.recover(handle, false).await {
            tracing::debug!(%error, campaign = %handle.campaign().id, "not loaded yet after an import");
        }
        imported
    }

    async fn import_leased(
        &self,
        handle: &CampaignHandle,
        file: Bytes,
        user_ids: Option<Scheme>,
        change: Change<'_>,
    ) -> Result<Imported, EngineError> {
        let id = handle.campaign().id.clone();
        let campaign = self.stores.sql.campaign(&id).await?.ok_or(EngineError::CampaignNotFound)?;
        let (digest, import) = parsed(file, &campaign, user_ids, change.at).await?;
        may_import(&campaign, &digest, change.at)?;
        let (found, epoch, last) = match campaign.evicted {
            Some(_) => (campaign.clone(), campaign.epoch, campaign.high_water_mark.sequence),
            None => self.suspend_and_relay(handle).await?,
        };
        // The window may have opened while the file was read.
        may_import(&found, &digest, clock::now())?;
        let totals = self.stores.sql.totals(&id).await?;
        let (claims, already) = self.missing_from_sql(import, &found).await?;
        let imported = claims.count() as u64;
        if imported == 0 && found.unfinished_import.is_none() {
            return Ok(Imported { imported, already });
        }
        let evicted = Evicted { taken: totals.taken, sequence: totals.sequence.max(last) };
        let begun =
            self.stores.sql.begin_import(&found, epoch.next(), evicted, &digest, user_ids, change).await?;
        let begun = begun.ok_or(EngineError::LoadingElsewhere)?;
        self.registry.update(begun.clone());
        if let Err(error) = self.drop_keys(handle, &begun).await {
            tracing::debug!(%error, campaign = %id, "dropping the campaign's keys failed; will retry");
        }
        self.write(&begun, evicted, &claims).await?;
        let Some(complete) = self.stores.sql.end_import(&begun).await? else {
            return Err(self.overtaken_error(&id).await?);
        };
        self.registry.update(complete);
        tracing::info!(campaign = %id, who = change.who, imported, already, "past claims imported");
        Ok(Imported { imported, already })
    }

    /// Suspends a campaign in Redis and relays its remaining outbox to SQL. Returns the campaign as SQL has
    /// it afterwards, and the highest epoch and sequence number of both stores.
    async fn suspend_and_relay(
        &self,
        handle: &CampaignHandle,
    ) -> Result<(Campaign, Epoch, u64), EngineError> {
        let Some((row, suspended)) = self.suspend(handle).await? else {
            return Err(EngineError::LoadingElsewhere);
        };
        let row = self.restore_rules(handle, row, &suspended).await?.ok_or(EngineError::LoadingElsewhere)?;
        self.secure(handle, &row, &suspended).await?;
        let found = self.stores.sql.campaign(&row.id).await?;
        // If the token differs, another core has loaded the campaign in the meantime.
        let found = found.filter(|found| found.token == row.token && found.evicted.is_none());
        let found = found.ok_or(EngineError::LoadingElsewhere)?;
        let mut known = found.high_water_mark.max(handle.high_water_mark());
        // Counters of an older epoch are not comparable.
        if suspended.epoch >= found.epoch {
            known = known.max(suspended.high_water_mark);
        }
        let epoch = suspended.epoch.max(found.epoch).max(handle.campaign().epoch);
        Ok((found, epoch, known.sequence))
    }

    /// Returns the claims of the file that SQL lacks, in file order, and the number of claims that SQL has
    /// already.
    async fn missing_from_sql(
        &self,
        mut import: Import,
        found: &Campaign,
    ) -> Result<(MissingClaims, u64), EngineError> {
        let mut cursor = Some(LoadCursor::default());
        while let Some(after) = cursor {
            let (claims, next) = self.stores.sql.by_user(&found.id, &after).await?;
            for (user, claim) in &claims {
                import.mark_existing(user, claim);
            }
            cursor = next;
        }
        let limits = found.limits;
        in_background(move || import.missing(limits)).await
    }

    /// Writes the claims of an import that has begun. Their numbers continue the counters `evicted`.
    async fn write(
        &self,
        begun: &Campaign,
        evicted: Evicted,
        claims: &MissingClaims,
    ) -> Result<(), EngineError> {
        let total = begun.limits.total.map(u64::from);
        for events in claims.granted(BATCH, evicted, total) {
            let sequence = events.last().map_or(evicted.sequence, |event| event.claim.sequence);
            let units = events.iter().map(|event| u64::from(event.claim.quantity)).sum();
            let entry = OutboxEntry::new(String::new(), begun.epoch, 0, events);
            let written = self.stores.sql.import_claims(begun, &entry, sequence, units).await;
            let written = written.map_err(|error| match error {
                OutboxWriteError::Sql(error) => error.into(),
                error => EngineError::ImportRefused(error),
            })?;
            if !written {
                return Err(self.overtaken_error(&begun.id).await?);
            }
        }
        Ok(())
    }

    /// Returns why an import cannot continue.
    async fn overtaken_error(&self, id: &CampaignId) -> Result<EngineError, EngineError> {
        let now = self.stores.sql.campaign(id).await?.ok_or(EngineError::CampaignNotFound)?;
        let has_ended = now.admin_state == AdminState::Ended;
        self.registry.update(now);
        Ok(if has_ended { EngineError::CampaignEnded } else { EngineError::LoadingElsewhere })
    }
}

/// Parses a file, whose user ids must be of the scheme `user_ids`, and returns its digest and claims.
async fn parsed(
    file: Bytes,
    campaign: &Campaign,
    user_ids: Option<Scheme>,
    now: Timestamp,
) -> Result<(String, Import), EngineError> {
    let campaign = Arc::new(campaign.clone());
    in_background(move || {
        let digest = URL_SAFE_NO_PAD.encode(Sha256::digest(&file));
        let import = Import::parse(&file, &campaign, now)?;
        user_ids.map_or(Ok(()), |scheme| import.check_user_ids(&scheme))?;
        Ok((digest, import))
    })
    .await
}

/// Runs `work`, which takes seconds for a million claims, on a separate thread.
async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, EngineError> {
    let worked = spawn_blocking(work).await;
    let worked = worked.unwrap_or_else(|error| {
        tracing::error!(%error, "an import failed");
        Err(Problem::new(Code::Unavailable, "the import failed; send the same file again"))
    });
    worked.map_err(EngineError::Invalid)
}

/// Checks whether the file `digest` may be imported into a campaign at `now`.
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
