//! Loads campaigns into Redis if their counters in Redis are missing, behind, or of another epoch.
//!
//! The order of the steps matters. SQL issues a token from the campaign's row, under which the campaign is
//! suspended in Redis. The remaining outbox is relayed to SQL, the epoch is raised in SQL, the campaign is
//! loaded from SQL, and it is opened. Events of a live outbox would be counted twice. If the epoch were
//! raised later, an old relay could exceed a limit. A suspension stops every older loader, at any step:
//! leases only save work. New campaigns are loaded in the same way.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use claimgate_shared::{ClaimStatus, UserId};
use futures_util::future::try_join;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use crate::clock::{self, Clocks};
use crate::domain::campaign::Campaign;
use crate::domain::claim_record::ClaimRecord;
use crate::domain::codes::CODES_AT_ONCE;
use crate::domain::counters::Epoch;
use crate::domain::event::{ClaimEvent, OutboxEntry};
use crate::domain::high_water_mark::HighWaterMark;
use crate::domain::not_ready::NotReadyReason;
use crate::domain::parts::parts;
use crate::engine::campaign::handle::CampaignHandle;
use crate::engine::campaign::registry::CampaignRegistry;
use crate::engine::error::{RecoveryError, StoreError};
use crate::engine::stores::Stores;
use crate::metrics;
use crate::step;
use crate::store::redis::RedisStoreError;
use crate::store::redis::lease::{LeaseError, LeaseHolder};
use crate::store::redis::loader::{LoadError, Loader};
use crate::store::redis::outbox::OutboxLayout;
use crate::store::redis::scripts::layout_number::LAYOUT;
use crate::store::redis::scripts::replies::{SuspendReply, Suspended};
use crate::store::sql::{EntryOrder, History, LoadCursor, OutboxWriteError};

/// Lease TTL; a crashed loader blocks others for this long.
pub(super) const LEASE: Duration = Duration::from_secs(5);
/// Number of campaigns loaded concurrently: fewer than the connections to SQL, some of which callers need.
const LOADS_MAX: usize = 4;
/// Maximum number of missing claims that one transaction writes to SQL.
const RESCUE_PAGE: usize = 1000;
/// Timeout of a caller that waits for another core to load a campaign.
pub(super) const READY_WAIT: Duration = Duration::from_secs(1);
const READY_POLL: Duration = Duration::from_millis(10);

/// Loads campaigns that are not ready into Redis.
#[derive(Debug)]
pub struct Recovery {
    /// Both stores.
    pub stores: Arc<Stores>,
    /// The campaigns in this core's memory.
    pub registry: Arc<CampaignRegistry>,
    /// Retention of a campaign in Redis after its end.
    pub archive_after: Duration,
    pub(super) clocks: Clocks,
    /// Permits for loads, each of which reads all of a campaign's claims.
    loads: Semaphore,
}

/// The result of a recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovered {
    /// The campaign was ready already.
    Ready,
    /// The campaign was loaded from SQL, with this number of claims.
    Loaded(u64),
    /// Redis and SQL had the same data, usually after a promotion: the campaign continues with its keys in Redis.
    Adopted,
    /// Another core is loading the campaign.
    Elsewhere,
}

impl Recovery {
    /// Returns a recovery for both `stores`, with an empty registry.
    pub fn new(stores: Arc<Stores>, archive_after: Duration) -> Self {
        let (registry, clocks, loads) = (Arc::default(), Clocks::default(), Semaphore::new(LOADS_MAX));
        Self { stores, registry, archive_after, clocks, loads }
    }

    /// Loads a campaign into Redis if it is not ready, or waits up to 1 s for another core to load it.
    ///
    /// # Errors
    /// [`NotReadyReason::LoadingElsewhere`] if the campaign is still not ready after that time.
    pub async fn ensure_ready(&self, handle: &CampaignHandle) -> Result<(), RecoveryError> {
        // In tests, a schedule may pause the other core for as long as this task waits.
        let wait = if step::is_scheduled() { Duration::ZERO } else { READY_WAIT };
        let deadline = Instant::now() + wait;
        while self.recover(handle, false).await? == Recovered::Elsewhere {
            if Instant::now() > deadline {
                return Err(StoreError::not_ready(NotReadyReason::LoadingElsewhere).into());
            }
            sleep(READY_POLL).await;
        }
        Ok(())
    }

    /// Loads a campaign into Redis if it is not ready. Otherwise evicts the campaign if it ended long ago, and
    /// expires due holds.
    ///
    /// # Errors
    /// [`RecoveryError::Layout`] or [`RecoveryError::OtherDatabase`]: the keys are left unchanged.
    pub async fn maintain(&self, handle: &CampaignHandle) -> Result<Recovered, RecoveryError> {
        let lost = if handle.suspects_sql_loss() { self.recover_sql_loss(handle).await? } else { None };
        let recovered = match lost {
            Some(recovered) => recovered,
            None if handle.campaign().evicted.is_some() => return Ok(Recovered::Ready),
            None => match self.maintain_ready(handle).await {
                // The campaign may have been complete at the first call and damaged by the next.
                Err(RecoveryError::Store(error)) if error.not_ready_reason().is_some() => {
                    self.recover(handle, false).await?
                }
                attended => return attended.map(|()| Recovered::Ready),
            },
        };
        // Holds may be due even if the campaign no longer creates any.
        if recovered != Recovered::Elsewhere && handle.is_in_redis() {
            self.stores.sweep(handle).await?;
        }
        Ok(recovered)
    }

    /// Maintains a ready campaign: evicts it if it ended long ago, otherwise expires due holds.
    async fn maintain_ready(&self, handle: &CampaignHandle) -> Result<(), RecoveryError> {
        let counters = self.stores.check(handle).await?;
        handle.mark_ready();
        handle.record_backlog(counters.backlog);
        if counters.backlog == 0 && self.ended_long_ago(&handle.campaign(), counters.now) {
            self.evict_leased(handle).await
        } else {
            Ok(self.stores.sweep(handle).await?)
        }
    }

    /// Runs `work` under the campaign's lease. Waits up to `wait` for it; returns `None` if another task still has it.
    pub(super) async fn leased<T, W: Future<Output = T>>(
        &self,
        handle: &CampaignHandle,
        wait: Duration,
        work: impl FnOnce() -> W,
    ) -> Result<Option<T>, RecoveryError> {
        // Each piece of work has its own holder: two tasks of this core must not mistake each other's lease
        // for their own.
        let holder = LeaseHolder::new(Arc::clone(&self.stores.redis))?;
        let lease = match holder.acquire(handle.campaign().id.as_str(), LEASE, wait).await {
            Ok(lease) => lease,
            Err(LeaseError::Taken) => return Ok(None),
            Err(LeaseError::Redis(error)) => return Err(error.into()),
        };
        let done = work().await;
        // A lease that is not released expires.
        let _ = lease.release().await;
        Ok(Some(done))
    }

    /// Loads a campaign from SQL under a lease, if it is still not ready once the lease is held. With
    /// `force`, reloads the campaign even if it is ready.
    pub(crate) async fn recover(
        &self,
        handle: &CampaignHandle,
        force: bool,
    ) -> Result<Recovered, RecoveryError> {
        match self.leased(handle, Duration::ZERO, || self.recover_leased(handle, force)).await? {
            // The lease only saves work; the token keeps two loaders apart.
            None | Some(Err(RecoveryError::Superseded)) => Ok(Recovered::Elsewhere),
            Some(result) => result,
        }
    }

    pub(super) async fn recover_leased(
        &self,
        handle: &CampaignHandle,
        force: bool,
    ) -> Result<Recovered, RecoveryError> {
        let mut campaign = self.campaign_or_restored(handle).await?;
        let known = handle.campaign();
        if campaign.evicted.is_some() && known.evicted.is_none() && handle.is_ahead_of(Some(&campaign)) {
            // SQL has lost the change that reopened the campaign.
            let Some(reopened) = self.stores.sql.restore(&campaign, &known, &[], clock::now()).await? else {
                return Ok(Recovered::Elsewhere);
            };
            campaign = reopened;
        }
        self.registry.update(campaign.clone());
        if campaign.evicted.is_some() {
            return Ok(Recovered::Ready);
        }
        let may_be_whole = match self.stores.check(handle).await {
            Ok(_) if !force => {
                handle.mark_ready();
                return Ok(Recovered::Ready);
            }
            Ok(_) => false,
            Err(error) => match error.not_ready_reason() {
                // The server was promoted, or a core suspended the campaign and then stopped.
                Some(NotReadyReason::Replication | NotReadyReason::Suspended) => !force,
                Some(_) => false,
                None => return Err(error.into()),
            },
        };
        let started = Instant::now();
        let Some((row, suspended)) = self.suspend(handle).await? else {
            // The campaign was evicted in the meantime, or SQL has lost its row.
            if self.stores.sql.campaign(&campaign.id).await?.is_some() {
                return Ok(Recovered::Ready);
            }
            handle.suspect_sql_loss();
            return Err(StoreError::not_ready(NotReadyReason::Forgotten).into());
        };
        let Some(row) = self.restore_rules(handle, row, &suspended).await? else {
            return Ok(Recovered::Elsewhere);
        };
        self.skip_lost_feed_numbers(handle, &row, &suspended).await?;
        let relayed = self.relay_suspended(handle, suspended.epoch).await?;
        if may_be_whole && let Some(adopted) = self.adopt(handle, &row, &suspended, relayed).await? {
            let (epoch, seconds) = (adopted.epoch.get(), started.elapsed().as_secs_f64());
            tracing::info!(campaign = %adopted.id, epoch, relayed, seconds, "adopted unchanged from Redis");
            metrics::ADOPTIONS.add(1);
            handle.counted_losses.keep(row.epoch, adopted.epoch);
            self.record_recovered(handle, adopted);
            handle.request_row_check();
            return Ok(Recovered::Adopted);
        }
        let _turn = self.loads.acquire().await;
        let rescued = self.rescue_lost(handle, &row, &suspended).await?;
        // SQL may have lost an epoch that this core has seen.
        let epoch = suspended.epoch.max(row.epoch).max(handle.campaign().epoch).next();
        let mut high_water_mark = handle.high_water_mark();
        // Counters of an older epoch are not comparable.
        if suspended.epoch >= row.epoch {
            high_water_mark = high_water_mark.max(suspended.high_water_mark);
        }
        let Some(campaign) = self.stores.sql.raise_epoch(&row, epoch, high_water_mark).await? else {
            return Ok(Recovered::Elsewhere);
        };
        let claims = self.load(handle, &campaign).await?;
        let (epoch, seconds) = (campaign.epoch.get(), started.elapsed().as_secs_f64());
        let from_layout = suspended.layout;
        tracing::info!(campaign = %campaign.id, epoch, claims, rescued, from_layout, seconds, "loaded from SQL");
        metrics::LOADS.add(1);
        self.record_recovered(handle, campaign);
        Ok(Recovered::Loaded(claims))
    }

    /// Records that Redis decides claims on `campaign` again.
    fn record_recovered(&self, handle: &CampaignHandle, campaign: Campaign) {
        let version = campaign.version;
        self.registry.update(campaign);
        handle.mark_rules_applied(version);
        handle.mark_loaded();
    }

    /// Reopens a suspended campaign unchanged, under a new epoch, if its keys and SQL have the same data. Otherwise
    /// changes nothing and returns `None`. `relayed` is the number of outbox events that were just written to SQL.
    ///
    /// The check compares event counts instead of summing rows, since the events of an epoch are numbered
    /// without gaps. SQL is complete if it already had every event that left the outbox, and all remaining
    /// events were relayed. The keys are complete if SQL has no later event.
    async fn adopt(
        &self,
        handle: &CampaignHandle,
        row: &Campaign,
        suspended: &Suspended,
        relayed: u64,
    ) -> Result<Option<Campaign>, RecoveryError> {
        let (has, backlog) = (suspended.high_water_mark, suspended.backlog);
        // The codes of a promoted server may be older than its events.
        let is_whole = row.codes.is_none()
            && suspended.layout == LAYOUT
            && suspended.revisions.is_some()
            && suspended.epoch == row.epoch;
        let sql_has_all = row.high_water_mark.events + backlog >= has.events && relayed == backlog;
        if !is_whole || !sql_has_all || !has.covers(handle.high_water_mark()) {
            return Ok(None);
        }
        let Some(campaign) = self.stores.sql.raise_epoch_to_adopt(row, has).await? else { return Ok(None) };
        Loader::adopt(&self.stores.redis, &handle.keys, &campaign, clock::now()).await?;
        Ok(Some(campaign))
    }

    /// Stops all decisions on a campaign until it is reloaded, and stops every loader that began earlier.
    /// Returns the campaign's row with the token of this suspension, and the campaign's state in Redis.
    /// Returns `None` if SQL has no such campaign, or it has been evicted.
    pub(crate) async fn suspend(
        &self,
        handle: &CampaignHandle,
    ) -> Result<Option<(Campaign, Suspended)>, RecoveryError> {
        let id = &handle.campaign().id;
        let Some(mut row) = self.stores.sql.issue_token(id).await? else { return Ok(None) };
        handle.mark_not_ready(NotReadyReason::Suspended);
        metrics::SUSPENSIONS.add(1);
        loop {
            let token = row.token.to_string();
            let reply = self.stores.redis.suspend(&handle.keys, row.register_id.as_str(), &token).await;
            let again = match reply {
                // SQL has lost a record of issuing this token, and has issued it again: another loader may be
                // using the token.
                Ok(SuspendReply::Done(suspended)) if suspended.previous_token == row.token => {
                    self.stores.sql.issue_token(id).await?
                }
                Ok(SuspendReply::Done(suspended)) => return Ok(Some((row, suspended))),
                // A newer loader has begun, or SQL has lost higher tokens.
                Ok(SuspendReply::Superseded(redis)) => {
                    Some(self.stores.sql.raise_token(id, redis).await?.ok_or(LoadError::Superseded)?)
                }
                Err(RedisStoreError::NotReady(reason)) => {
                    return Err(RecoveryError::suspension_refused(reason));
                }
                Err(error) => return Err(error.into()),
            };
            let Some(again) = again else { return Ok(None) };
            row = again;
        }
    }

    /// Restores a suspended campaign's lost rows in SQL, if the totals show that any are missing. The outbox
    /// must have been relayed. Returns the number of restored rows.
    pub(super) async fn rescue_lost(
        &self,
        handle: &CampaignHandle,
        row: &Campaign,
        suspended: &Suspended,
    ) -> Result<u64, RecoveryError> {
        // Keys of an older epoch were relayed before SQL raised the epoch.
        let Some(revisions) = suspended.revisions.filter(|_| suspended.epoch >= row.epoch) else {
            return Ok(0);
        };
        let totals = self.stores.sql.totals(&row.id).await?;
        if (totals.taken, totals.revisions) == (suspended.taken, revisions) {
            return Ok(0);
        }
        let mut lacking = Vec::new();
        let mut at = Some(self.stores.redis.scan_claims(&handle.keys, suspended.layout).await?);
        while let Some(from) = at {
            let (claims, next) = self.stores.redis.claims_page(&handle.keys, from).await?;
            lacking.extend(self.stores.sql.lacking(&row.id, claims).await?);
            at = next;
        }
        let rescued = self.rescue(handle, row, suspended, lacking).await?;
        if rescued > 0 {
            // A loss that only an operator repairs has been counted when it was found.
            if handle.suspects_sql_loss() {
                metrics::LOST.add(handle.counted_losses.uncounted(handle.campaign().epoch, rescued));
            }
            tracing::error!(campaign = %row.id, rescued, "SQL had lost claims that Redis holds: they have been restored");
        }
        Ok(rescued)
    }

    /// Writes the claims that SQL lacks, and returns the number of claims written.
    async fn rescue(
        &self,
        handle: &CampaignHandle,
        row: &Campaign,
        suspended: &Suspended,
        mut lacking: Vec<(UserId, ClaimRecord)>,
    ) -> Result<u64, RecoveryError> {
        // A scan may return a claim twice. Returned claims are written before the claims that were granted
        // with their units, so that SQL never counts more units than were taken.
        let is_active =
            |claim: &ClaimRecord| matches!(claim.status, ClaimStatus::Granted | ClaimStatus::Held);
        lacking.sort_by_key(|(_, claim)| (is_active(claim), claim.sequence));
        lacking.dedup_by_key(|(_, claim)| claim.sequence);
        // The total at the time of the decision is unknown, but Redis' count never exceeds it.
        let limit_at_decision = row.limits.total.map(|total| u64::from(total).max(suspended.taken));
        let (epoch, count) = (suspended.epoch, suspended.high_water_mark.events);
        let mut rescued = 0;
        let units_max = units_per_commit(row);
        let units = |(_, claim): &(UserId, ClaimRecord)| claim.quantity.into();
        for page in lacking.chunks(RESCUE_PAGE).flat_map(|page| parts(page, units_max, units)) {
            let event = |(user, claim): &(UserId, ClaimRecord)| ClaimEvent {
                user: user.clone(),
                claim: *claim,
                updated_at: claim.claimed_at,
                limit_at_decision,
                cumulative_taken: None,
            };
            let events: Vec<_> = page.iter().map(event).collect();
            rescued += events.len() as u64;
            let digests: Vec<_> = page.iter().map(|(_, claim)| claim.digest).collect();
            let numbers = self.stores.redis.first_codes(&handle.keys, &digests).await?;
            let entry = OutboxEntry::new(String::new(), epoch, count, events);
            rescued -= self.stores.sql.salvage(&row.id, &[entry], History::Same, &numbers).await?;
        }
        Ok(rescued)
    }

    /// Relays all entries of a suspended campaign's outboxes to SQL, including entries that another core has
    /// read. Returns the number of events of `epoch` in these entries.
    pub(super) async fn relay_suspended(
        &self,
        handle: &CampaignHandle,
        epoch: Epoch,
    ) -> Result<u64, RecoveryError> {
        // Before claims of the outbox get code numbers: SQL may have lost the numbers of other claims.
        self.restore_codes(handle).await?;
        let mut relayed = 0;
        for layout in OutboxLayout::ALL {
            relayed += self.relay_suspended_outbox(handle, layout, epoch).await?;
        }
        Ok(relayed)
    }

    /// Relays all entries of a suspended campaign's outbox of one layout, like [`Self::relay_suspended`].
    async fn relay_suspended_outbox(
        &self,
        handle: &CampaignHandle,
        layout: OutboxLayout,
        epoch: Epoch,
    ) -> Result<u64, RecoveryError> {
        let known = handle.campaign();
        let (campaign, units_max) = (&known.id, units_per_commit(&known));
        let mut relayed = 0;
        let mut after = "0-0".to_owned();
        // False once the database has refused an entry: Redis has lost history, so later entries may be wrong as well.
        let mut all_accepted = true;
        while let Some((read, last)) = self.stores.redis.outbox_page(&handle.keys, layout, &after).await? {
            for id in &read.malformed {
                let mut session = self.stores.redis.session(handle.keys.slot).await?;
                self.stores.redis.dead_letter(&mut session, &handle.keys, layout, id).await?;
                metrics::DEAD_LETTERS.add(1);
            }
            for entries in parts(&read.entries, units_max, OutboxEntry::units) {
                if all_accepted {
                    match self.stores.sql.write_entries(&[(campaign, entries)], EntryOrder::Any).await {
                        Err(OutboxWriteError::Constraint(error)) => {
                            tracing::error!(%campaign, %error, "the database refuses claims; writing them one by one");
                            all_accepted = false;
                        }
                        other => drop(other?),
                    }
                }
                if !all_accepted {
                    let none = HashMap::new();
                    let revoked = self.stores.sql.salvage(campaign, entries, History::Another, &none).await?;
                    tracing::error!(%campaign, revoked, "claims stored as revoked");
                }
            }
            let of_epoch = read.entries.iter().filter(|entry| entry.epoch == epoch);
            relayed += of_epoch.map(|entry| entry.events.len() as u64).sum::<u64>();
            after = last;
        }
        Ok(relayed)
    }

    /// Reads the page at `cursor`; an empty page for `None`.
    async fn page(
        &self,
        campaign: &Campaign,
        cursor: Option<LoadCursor>,
    ) -> Result<(Vec<(UserId, ClaimRecord)>, Option<LoadCursor>), RecoveryError> {
        match cursor {
            Some(cursor) => Ok(self.stores.sql.by_user(&campaign.id, &cursor).await?),
            None => Ok((vec![], None)),
        }
    }

    /// Loads the campaign from SQL, and returns the number of claims that are not revoked.
    async fn load(&self, handle: &CampaignHandle, campaign: &Campaign) -> Result<u64, RecoveryError> {
        let totals = self.stores.sql.totals(&campaign.id).await?;
        let mut loader = Loader::begin(&self.stores.redis, &handle.keys, campaign).await?;
        let mut next = Some(LoadCursor::default());
        let mut page = vec![];
        // The next page is read while the current one is loaded.
        while next.is_some() || !page.is_empty() {
            let (read, ()) =
                try_join(self.page(campaign, next), async { Ok(loader.claims(page).await?) }).await?;
            (page, next) = read;
        }
        if campaign.codes.is_some() {
            self.load_codes(&mut loader, campaign).await?;
        }
        let sequence = campaign.high_water_mark.sequence.max(totals.sequence);
        loader
            .open(HighWaterMark { sequence, ..campaign.high_water_mark }, totals.taken, clock::now())
            .await?;
        Ok(totals.claims - totals.revoked)
    }

    /// Loads the codes of all claims that have code numbers, whatever their status: a code that was shown is never
    /// added again.
    async fn load_codes(&self, loader: &mut Loader<'_>, campaign: &Campaign) -> Result<(), RecoveryError> {
        let mut next = Some(0);
        while let Some(from) = next {
            let page = self.stores.sql.codes_page(&campaign.id, from).await?;
            loader.codes(&page.complete).await?;
            next = page.next;
        }
        Ok(())
    }
}

/// Returns the maximum number of units of the claims that one transaction writes: each unit may have a code.
fn units_per_commit(campaign: &Campaign) -> u64 {
    if campaign.codes.is_some() { CODES_AT_ONCE } else { u64::MAX }
}
