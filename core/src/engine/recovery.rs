//! Loads campaigns into Redis whose counters there are missing, behind, or of another epoch.
//!
//! The order matters: draw a token from the campaign's row in SQL, suspend in Redis under it, relay what is left to SQL,
//! raise the epoch in SQL, load from SQL, open. Loading beside a live outbox would count twice; raising the epoch late would
//! let an old relay exceed a limit. A suspension makes every older loader late, whatever step it has reached: leases only
//! save work. A campaign that was just created is loaded into Redis in the same way.

use std::sync::Arc;
use std::time::Duration;

use claimgate_shared::{ClaimStatus, UserId};
use futures_util::future::try_join;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use super::handle::CampaignHandle;
use super::registry::CampaignRegistry;
use super::sync::{CampaignSync, SyncError};
use crate::clock::{self, Clocks};
use crate::domain::campaign::Campaign;
use crate::domain::claim_record::ClaimRecord;
use crate::domain::counters::Epoch;
use crate::domain::event::{ClaimEvent, OutboxEntry};
use crate::domain::high_water_mark::HighWaterMark;
use crate::domain::not_ready::NotReadyReason;
use crate::metrics;
use crate::step;
use crate::store::redis::RedisStoreError;
use crate::store::redis::lease::{LeaseError, LeaseHolder};
use crate::store::redis::loader::{LoadError, Loader};
use crate::store::redis::replies::{SuspendReply, Suspended};
use crate::store::sql::{EntryOrder, History, LoadCursor, OutboxWriteError, SqlError};

/// Lease TTL; a crashed loader blocks others this long.
pub(super) const LEASE: Duration = Duration::from_secs(5);
/// Campaigns loaded at once: fewer than there are connections to SQL, which callers need too.
const LOADS_MAX: usize = 4;
/// The most missing claims that one transaction writes to SQL.
const RESCUE_PAGE: usize = 1000;
/// How long a caller waits for a campaign that another core is loading, and how often it looks.
const READY_WAIT: Duration = Duration::from_secs(1);
const READY_LOOK: Duration = Duration::from_millis(10);

/// Loads campaigns into Redis that are not ready.
#[derive(Debug)]
pub struct Recovery {
    /// Both stores.
    pub sync: Arc<CampaignSync>,
    /// The campaigns of this core.
    pub registry: Arc<CampaignRegistry>,
    /// How long a campaign stays in Redis after it is over.
    pub archive_after: Duration,
    pub(super) clocks: Clocks,
    /// Places for loads, each of which reads all of a campaign's claims.
    loads: Semaphore,
}

/// The result for a campaign that was not ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovered {
    /// It was ready already.
    Ready,
    /// It was loaded from SQL, with this number of claims.
    Loaded(u64),
    /// Redis and SQL had the same of it: it goes on as it was, on a promoted server as a rule.
    Adopted,
    /// Another core is loading it.
    Elsewhere,
}

/// Why a campaign could not be loaded yet.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// A call on the campaign failed.
    #[error(transparent)]
    Sync(#[from] SyncError),
    /// A call to Redis failed.
    #[error(transparent)]
    Redis(#[from] RedisStoreError),
    /// Loading into Redis failed.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A call to SQL failed.
    #[error(transparent)]
    Sql(#[from] SqlError),
    /// The system has no randomness for a lease's holder.
    #[error("no randomness: {0}")]
    Random(#[from] getrandom::Error),
    /// The outbox could not be written to SQL.
    #[error(transparent)]
    OutboxWrite(#[from] OutboxWriteError),
    /// The keys have a layout that this version does not know.
    #[error("its keys are of another layout: another version of claimgate is at work on them")]
    Layout,
    /// The keys belong to another register's campaign.
    #[error("its keys in Redis belong to another register's campaign of the same name")]
    OtherRegister,
}

impl RecoveryError {
    /// Why a campaign's keys may not even be suspended.
    fn not_ours(reason: NotReadyReason) -> Self {
        if reason == NotReadyReason::Layout { Self::Layout } else { Self::OtherRegister }
    }
}

impl Recovery {
    /// A recovery of the campaigns of both stores behind `sync`, whose registry is empty.
    pub fn new(sync: Arc<CampaignSync>, archive_after: Duration) -> Self {
        let (registry, clocks, loads) = (Arc::default(), Clocks::default(), Semaphore::new(LOADS_MAX));
        Self { sync, registry, archive_after, clocks, loads }
    }

    /// Loads one campaign into Redis if it is not ready, or waits until another core has; 1 s at most.
    ///
    /// # Errors
    /// [`NotReadyReason::LoadingElsewhere`] when it is still not ready then.
    pub async fn ensure_ready(&self, handle: &CampaignHandle) -> Result<(), RecoveryError> {
        // A schedule may hold the other core up for as long as this task waits.
        let wait = if step::is_scheduled() { Duration::ZERO } else { READY_WAIT };
        let deadline = Instant::now() + wait;
        while self.recover(handle, false).await? == Recovered::Elsewhere {
            if Instant::now() > deadline {
                return Err(SyncError::not_ready(NotReadyReason::LoadingElsewhere).into());
            }
            sleep(READY_LOOK).await;
        }
        Ok(())
    }

    /// Loads one campaign into Redis if it is not ready, and evicts it if it is long over. Gives back holds that are due.
    ///
    /// # Errors
    /// When a store does not answer, and when the keys are of another layout or register: these it leaves as they are.
    pub async fn maintain(&self, handle: &CampaignHandle) -> Result<Recovered, RecoveryError> {
        let forgotten = if handle.suspects_sql() { self.recover_forgotten(handle).await? } else { None };
        let recovered = match forgotten {
            Some(recovered) => recovered,
            None if handle.campaign().evicted.is_some() => return Ok(Recovered::Ready),
            None => match self.attend(handle).await {
                // It may have been whole at the first call, and damaged at the next.
                Err(RecoveryError::Sync(error)) if error.not_ready_reason().is_some() => {
                    self.recover(handle, false).await?
                }
                attended => return attended.map(|()| Recovered::Ready),
            },
        };
        // Holds may be due whether the campaign still makes any or not.
        if recovered != Recovered::Elsewhere && handle.is_in_redis() {
            self.sync.sweep(handle).await?;
        }
        Ok(recovered)
    }

    /// Does what a campaign needs that is ready: evicts it if it is long over, else gives back holds that are due.
    async fn attend(&self, handle: &CampaignHandle) -> Result<(), RecoveryError> {
        let (counters, _) = self.sync.read(handle, None).await?;
        handle.mark_ready();
        handle.record_backlog(counters.backlog);
        if counters.backlog == 0 && self.is_long_over(&handle.campaign(), counters.now) {
            self.evict_leased(handle).await
        } else {
            Ok(self.sync.sweep(handle).await?)
        }
    }

    /// A lease holder for one piece of work: two tasks of this core must not take each other's lease for their own.
    pub(super) fn lease_holder(&self) -> Result<LeaseHolder, getrandom::Error> {
        LeaseHolder::new(Arc::clone(&self.sync.redis))
    }

    /// Loads a campaign from SQL under a lease, if it is still not ready then; with `anyway`, even if it is ready.
    pub(crate) async fn recover(
        &self,
        handle: &CampaignHandle,
        anyway: bool,
    ) -> Result<Recovered, RecoveryError> {
        let id = handle.campaign().id.clone();
        let lease = match self.lease_holder()?.try_acquire(id.as_str(), LEASE).await {
            Ok(lease) => lease,
            Err(LeaseError::Taken) => return Ok(Recovered::Elsewhere),
            Err(LeaseError::Redis(error)) => return Err(error.into()),
        };
        let result = match self.recover_leased(handle, anyway).await {
            // The lease saves work; what keeps two loaders apart is the token.
            Err(RecoveryError::Load(LoadError::Late)) => Ok(Recovered::Elsewhere),
            result => result,
        };
        // A lease that is not released expires.
        let _ = lease.release().await;
        result
    }

    async fn recover_leased(
        &self,
        handle: &CampaignHandle,
        anyway: bool,
    ) -> Result<Recovered, RecoveryError> {
        let mut campaign = self.campaign_or_restored(handle).await?;
        let known = handle.campaign();
        if campaign.evicted.is_some() && known.evicted.is_none() && handle.is_ahead_of(Some(&campaign)) {
            // SQL has lost that it was reopened.
            let Some(reopened) = self.sync.sql.restore(&campaign, &known, &[], clock::now()).await? else {
                return Ok(Recovered::Elsewhere);
            };
            campaign = reopened;
        }
        self.registry.update(campaign.clone());
        if campaign.evicted.is_some() {
            return Ok(Recovered::Ready);
        }
        let may_be_whole = match self.sync.read(handle, None).await {
            Ok(_) if !anyway => {
                handle.mark_ready();
                return Ok(Recovered::Ready);
            }
            Ok(_) => false,
            Err(error) => match error.not_ready_reason() {
                // Its server was promoted, or a core that has suspended it got no further.
                Some(NotReadyReason::Replication | NotReadyReason::Suspended) => !anyway,
                Some(_) => false,
                None => return Err(error.into()),
            },
        };
        let started = Instant::now();
        let Some((drawn, suspended)) = self.suspend(handle).await? else {
            // Evicted meanwhile, or lost.
            if self.sync.sql.campaign(&campaign.id).await?.is_some() {
                return Ok(Recovered::Ready);
            }
            handle.suspect_sql();
            return Err(SyncError::not_ready(NotReadyReason::Forgotten).into());
        };
        let Some(drawn) = self.restore_rules(handle, drawn, &suspended).await? else {
            return Ok(Recovered::Elsewhere);
        };
        let relayed = self.relay_suspended(handle, suspended.epoch).await?;
        if may_be_whole && let Some(adopted) = self.adopt(handle, &drawn, &suspended, relayed).await? {
            let (epoch, seconds) = (adopted.epoch.get(), started.elapsed().as_secs_f64());
            tracing::info!(campaign = %adopted.id, epoch, relayed, seconds, "goes on as it is in Redis");
            metrics::adopted();
            self.goes_on(handle, adopted);
            handle.adopted();
            return Ok(Recovered::Adopted);
        }
        let _turn = self.loads.acquire().await;
        let rescued = self.rescue_lost(handle, &drawn, &suspended).await?;
        // A core may know an epoch that SQL has lost.
        let epoch = suspended.epoch.max(drawn.epoch).max(handle.campaign().epoch).next();
        let mut high_water_mark = handle.high_water_mark();
        // The counters of an older epoch say nothing about this one.
        if suspended.epoch >= drawn.epoch {
            high_water_mark = high_water_mark.max(suspended.high_water_mark);
        }
        let Some(campaign) = self.sync.sql.raise_epoch(&drawn, epoch, high_water_mark).await? else {
            return Ok(Recovered::Elsewhere);
        };
        let claims = self.load(handle, &campaign).await?;
        let (epoch, seconds) = (campaign.epoch.get(), started.elapsed().as_secs_f64());
        tracing::info!(campaign = %campaign.id, epoch, claims, rescued, seconds, "loaded from SQL");
        metrics::loaded();
        self.goes_on(handle, campaign);
        Ok(Recovered::Loaded(claims))
    }

    /// Records that Redis decides on `campaign` again.
    fn goes_on(&self, handle: &CampaignHandle, campaign: Campaign) {
        let version = campaign.version;
        self.registry.update(campaign);
        handle.mark_rules_applied(version);
        handle.mark_loaded();
    }

    /// Lets a suspended campaign go on as it is, under a new epoch, if SQL has exactly what its keys hold once `relayed` events
    /// of its outbox were written there; `None` if not, and then nothing was changed.
    ///
    /// Events are counted, no rows summed up: all of one epoch are a single row of events, numbered without a gap. SQL has
    /// all of them if it had those that the outbox has no more, and the outbox lacked none; and the keys have all of SQL's
    /// if SQL has heard of no later one.
    async fn adopt(
        &self,
        handle: &CampaignHandle,
        drawn: &Campaign,
        suspended: &Suspended,
        relayed: u64,
    ) -> Result<Option<Campaign>, RecoveryError> {
        let (has, backlog) = (suspended.high_water_mark, suspended.backlog);
        let is_whole = suspended.revisions.is_some() && suspended.epoch == drawn.epoch;
        let sql_has_all = drawn.high_water_mark.events + backlog >= has.events && relayed == backlog;
        if !is_whole || !sql_has_all || !has.covers(handle.high_water_mark()) {
            return Ok(None);
        }
        let Some(campaign) = self.sync.sql.adopt_epoch(drawn, has).await? else { return Ok(None) };
        Loader::adopt(&self.sync.redis, &handle.keys, &campaign, clock::now()).await?;
        Ok(Some(campaign))
    }

    /// Stops every decision on a campaign until it has been loaded again, and makes every loader late that began before.
    /// Returns the campaign with the token drawn for this, and what Redis holds of it; `None` when SQL has no such
    /// campaign, or it has been evicted.
    pub(crate) async fn suspend(
        &self,
        handle: &CampaignHandle,
    ) -> Result<Option<(Campaign, Suspended)>, RecoveryError> {
        let id = &handle.campaign().id;
        let Some(mut drawn) = self.sync.sql.draw_token(id).await? else { return Ok(None) };
        handle.mark_not_ready(NotReadyReason::Suspended);
        metrics::suspended();
        loop {
            let token = drawn.token.to_string();
            let reply = self.sync.redis.suspend(&handle.keys, drawn.register_id.as_str(), &token).await;
            let again = match reply {
                // SQL has lost that this token was drawn before: a loader may be at work under it.
                Ok(SuspendReply::Done(suspended)) if suspended.previous_token == drawn.token => {
                    self.sync.sql.draw_token(id).await?
                }
                Ok(SuspendReply::Done(suspended)) => return Ok(Some((drawn, suspended))),
                // Either a loader that has begun later, or SQL has lost higher tokens.
                Ok(SuspendReply::Late(redis)) => {
                    Some(self.sync.sql.raise_token(id, redis).await?.ok_or(LoadError::Late)?)
                }
                Err(RedisStoreError::NotReady(reason)) => return Err(RecoveryError::not_ours(reason)),
                Err(error) => return Err(error.into()),
            };
            let Some(again) = again else { return Ok(None) };
            drawn = again;
        }
    }

    /// Makes sure that SQL holds all that a suspended campaign's keys do: the outbox, whichever core has read from it, and,
    /// where the sums show that SQL has lost rows, those rows.
    pub(super) async fn secure(
        &self,
        handle: &CampaignHandle,
        drawn: &Campaign,
        suspended: &Suspended,
    ) -> Result<(), RecoveryError> {
        self.relay_suspended(handle, suspended.epoch).await?;
        self.rescue_lost(handle, drawn, suspended).await?;
        Ok(())
    }

    /// Writes rows again that SQL has lost of a suspended campaign that was relayed, where the sums show that it has lost any.
    /// Returns their number.
    async fn rescue_lost(
        &self,
        handle: &CampaignHandle,
        drawn: &Campaign,
        suspended: &Suspended,
    ) -> Result<u64, RecoveryError> {
        // Keys of an older epoch were relayed before SQL raised the epoch.
        let Some(revisions) = suspended.revisions.filter(|_| suspended.epoch >= drawn.epoch) else {
            return Ok(0);
        };
        let totals = self.sync.sql.totals(&drawn.id).await?;
        if (totals.taken, totals.revisions) == (suspended.taken, revisions) {
            return Ok(0);
        }
        let mut lacking = Vec::new();
        let mut at = Some(self.sync.redis.scan_claims(&handle.keys).await?);
        while let Some(from) = at {
            let (claims, next) = self.sync.redis.claims_page(&handle.keys, from).await?;
            lacking.extend(self.sync.sql.lacking(&drawn.id, claims).await?);
            at = next;
        }
        let rescued = self.rescue(drawn, suspended, lacking).await?;
        if rescued > 0 {
            tracing::error!(campaign = %drawn.id, rescued, "SQL had lost claims that Redis holds: they were written again");
        }
        Ok(rescued)
    }

    /// Writes the claims to SQL that it lacks; returns their number.
    async fn rescue(
        &self,
        drawn: &Campaign,
        suspended: &Suspended,
        mut lacking: Vec<(UserId, ClaimRecord)>,
    ) -> Result<u64, RecoveryError> {
        // Of claims that a scan has shown twice, one is enough. What was given back comes before what was granted in its
        // place, so that SQL never sees more taken than there was.
        let stands = |claim: &ClaimRecord| matches!(claim.status, ClaimStatus::Granted | ClaimStatus::Held);
        lacking.sort_by_key(|(_, claim)| (stands(claim), claim.sequence));
        lacking.dedup_by_key(|(_, claim)| claim.sequence);
        // The total that they were decided by is unknown; all of them are within what Redis counts.
        let limit_at_decision = drawn.limits.total.map(|total| u64::from(total).max(suspended.taken));
        let (epoch, count) = (suspended.epoch, suspended.high_water_mark.events);
        let mut rescued = 0;
        for page in lacking.chunks(RESCUE_PAGE) {
            let event = |(user, claim): &(UserId, ClaimRecord)| ClaimEvent {
                user: user.clone(),
                claim: *claim,
                updated_at: claim.claimed_at,
                limit_at_decision,
                cumulative_taken: None,
            };
            let events: Vec<_> = page.iter().map(event).collect();
            rescued += events.len() as u64;
            let entry = OutboxEntry { id: String::new(), epoch, count, events, by: None, trace: None };
            rescued -= self.sync.sql.salvage(&drawn.id, &[entry], History::Same).await?;
        }
        Ok(rescued)
    }

    /// Relays everything in a suspended campaign's outbox to SQL, whichever core has read it before. Returns how many events
    /// of `epoch` that were.
    async fn relay_suspended(&self, handle: &CampaignHandle, epoch: Epoch) -> Result<u64, RecoveryError> {
        let campaign = &handle.campaign().id;
        let mut relayed = 0;
        let mut after = "0-0".to_owned();
        // Once a history was found to have lost others, nothing that follows is taken at its word.
        let mut honest = true;
        while let Some((read, last)) = self.sync.redis.outbox_page(&handle.keys, &after).await? {
            for id in &read.malformed {
                let mut session = self.sync.redis.session(handle.keys.slot).await?;
                self.sync.redis.dead_letter(&mut session, &handle.keys, id).await?;
                metrics::dead_letter();
            }
            if honest {
                match self.sync.sql.write_entries(&[(campaign, &read.entries)], EntryOrder::Any).await {
                    Err(OutboxWriteError::Constraint(error)) => {
                        tracing::error!(%campaign, %error, "the database refuses claims; writing them one by one");
                        honest = false;
                    }
                    other => other?,
                }
            }
            if !honest {
                let revoked = self.sync.sql.salvage(campaign, &read.entries, History::Another).await?;
                tracing::error!(%campaign, revoked, "claims stored as revoked");
            }
            let of_epoch = read.entries.iter().filter(|entry| entry.epoch == epoch);
            relayed += of_epoch.map(|entry| entry.events.len() as u64).sum::<u64>();
            after = last;
        }
        Ok(relayed)
    }

    /// The page at `place`; nothing where there is none.
    async fn page(
        &self,
        campaign: &Campaign,
        place: Option<LoadCursor>,
    ) -> Result<(Vec<(UserId, ClaimRecord)>, Option<LoadCursor>), RecoveryError> {
        match place {
            Some(place) => Ok(self.sync.sql.by_user(&campaign.id, &place).await?),
            None => Ok((vec![], None)),
        }
    }

    /// Loads the campaign from SQL; returns the number of its claims.
    async fn load(&self, handle: &CampaignHandle, campaign: &Campaign) -> Result<u64, RecoveryError> {
        let totals = self.sync.sql.totals(&campaign.id).await?;
        let mut loader = Loader::begin(&self.sync.redis, &handle.keys, campaign).await?;
        let mut next = Some(LoadCursor::default());
        let mut page = vec![];
        // While one page is loaded, the next is read.
        while next.is_some() || !page.is_empty() {
            let (read, ()) =
                try_join(self.page(campaign, next), async { Ok(loader.claims(page).await?) }).await?;
            (page, next) = read;
        }
        let sequence = campaign.high_water_mark.sequence.max(totals.sequence);
        loader
            .open(HighWaterMark { sequence, ..campaign.high_water_mark }, totals.taken, clock::now())
            .await?;
        Ok(totals.claims - totals.revoked)
    }
}
