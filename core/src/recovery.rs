//! Brings campaigns back whose counters in Redis are missing, behind, or of another epoch.
//!
//! The order matters: draw a token from the campaign's row in SQL, suspend in Redis under it, drain what is left to SQL,
//! raise the epoch in SQL, load from SQL, open. Loading beside a live outbox would count twice; raising the epoch late would
//! let an old drain exceed a limit. Whoever suspends makes every older loader late, wherever it stands: leases only save
//! work. A campaign that was just created comes into Redis in the same way.

use std::sync::Arc;
use std::time::Duration;

use claimgate_shared::{ClaimStatus, Timestamp, UserId};
use futures_util::StreamExt as _;
use tokio::time::{Instant, sleep};

use crate::archive::{Archive, ArchiveError, DrainError, History};
use crate::campaign::{Archived, Campaign, Reached};
use crate::campaigns::{Campaigns, Known};
use crate::clock::{self, Clocks};
use crate::ledger::events::{Entry, Event};
use crate::ledger::loading::{LoadError, Loader};
use crate::ledger::record::Record;
use crate::ledger::scripts::Suspended;
use crate::ledger::{ClaimScan, Ledger, LedgerError};
use crate::lock::{LockError, Owner};
use crate::metrics;

/// A crashed loader keeps others waiting for so long.
const LEASE: Duration = Duration::from_secs(5);
/// For so long the clocks must not have stepped before a campaign is evicted for being over, unless it is to be sooner.
const STEADY_MIN: Duration = Duration::from_secs(3600);
/// Claims that SQL lacks, written in one transaction.
const RESCUE_PAGE: usize = 1000;
/// Campaigns whose keys are removed in one go.
const DROPS_MAX: u32 = 100;
/// How long a caller waits for a campaign that another core is loading, and how often it looks. A schedule that holds that
/// core up would be waited for in vain.
const READY_WAIT: Duration = if cfg!(feature = "steps") { Duration::ZERO } else { Duration::from_secs(1) };
const READY_LOOK: Duration = Duration::from_millis(10);

/// Brings campaigns back.
#[derive(Debug)]
pub struct Recovery {
    /// To Redis.
    pub ledger: Arc<Ledger>,
    /// To SQL.
    pub archive: Archive,
    /// Whose campaigns.
    pub campaigns: Arc<Campaigns>,
    /// How long a campaign stays in Redis after it is over.
    pub archive_after: Duration,
    clocks: Clocks,
}

/// What became of a campaign that was not ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovered {
    /// It was ready after all.
    Ready,
    /// Loaded from SQL, with so many claims.
    Loaded(u64),
    /// Another core is at it.
    Elsewhere,
}

/// Why a campaign could not be brought back yet.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// Redis.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// Redis, while loading.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// SQL.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// No randomness for a lock's owner.
    #[error("no randomness: {0}")]
    Random(#[from] getrandom::Error),
    /// SQL, while draining.
    #[error(transparent)]
    Drain(#[from] DrainError),
    /// The keys are of a layout that this version does not know.
    #[error("its keys are of another layout: another version of claimgate is at work on them")]
    Layout,
    /// The keys are another register's.
    #[error("its keys in Redis belong to another register's campaign of the same name")]
    OtherRegister,
}

impl RecoveryError {
    /// Why a campaign's keys may not even be suspended.
    fn not_ours(why: &str) -> Self {
        if why == "layout" { Self::Layout } else { Self::OtherRegister }
    }
}

impl Recovery {
    /// For campaigns of `archive` in the Redis behind `ledger`; knows none yet.
    pub fn new(ledger: Arc<Ledger>, archive: Archive, archive_after: Duration) -> Self {
        Self { ledger, archive, campaigns: Arc::default(), archive_after, clocks: Clocks::default() }
    }

    /// Brings one campaign into Redis if it is not ready, or waits until another core has; 1 s at most.
    ///
    /// # Errors
    /// [`LedgerError::NotReady`] when it is still not ready then.
    pub async fn ensure_ready(&self, known: &Known) -> Result<(), RecoveryError> {
        let deadline = Instant::now() + READY_WAIT;
        while self.recover(known, false).await? == Recovered::Elsewhere {
            if Instant::now() > deadline {
                return Err(LedgerError::NotReady("another core is loading it".to_owned()).into());
            }
            sleep(READY_LOOK).await;
        }
        Ok(())
    }

    /// Brings one campaign back if it is not ready; gives back holds that are due.
    pub async fn look_after(&self, known: &Known) -> Result<Recovered, RecoveryError> {
        if known.campaign().archived.is_some() {
            return Ok(Recovered::Ready);
        }
        let recovered = match self.ledger.find(known, None).await {
            Ok((counters, _)) => {
                known.trust();
                metrics::outbox_events(known.campaign().id.as_str(), counters.backlog);
                if counters.backlog == 0 && self.is_long_over(&known.campaign(), counters.now) {
                    self.archive_leased(known).await?;
                    return Ok(Recovered::Ready);
                }
                Recovered::Ready
            }
            Err(LedgerError::NotReady(_)) => self.recover(known, false).await?,
            Err(error) => return Err(error.into()),
        };
        if recovered != Recovered::Elsewhere && known.campaign().hold_seconds.is_some() {
            self.ledger.sweep(known).await?;
        }
        Ok(recovered)
    }

    /// An owner for one piece of work: two at once in this core must not take each other's lease for their own.
    fn owner(&self) -> Result<Owner, getrandom::Error> {
        Owner::new(Arc::clone(&self.ledger))
    }

    /// Loads a campaign from SQL under a lease, if it is still not ready then; with `anyway`, also if it is.
    pub async fn recover(&self, known: &Known, anyway: bool) -> Result<Recovered, RecoveryError> {
        let id = known.campaign().id.clone();
        let lease = match self.owner()?.try_lock(&format!("load-{id}"), LEASE).await {
            Ok(lease) => lease,
            Err(LockError::Taken) => return Ok(Recovered::Elsewhere),
            Err(LockError::Ledger(error)) => return Err(error.into()),
        };
        let result = match self.recover_leased(known, anyway).await {
            // The lease saves work; what keeps two loaders apart is the token.
            Err(RecoveryError::Load(LoadError::Late)) => Ok(Recovered::Elsewhere),
            result => result,
        };
        // Not released, it frees itself.
        let _ = lease.release().await;
        result
    }

    async fn recover_leased(&self, known: &Known, anyway: bool) -> Result<Recovered, RecoveryError> {
        let Some(campaign) = self.archive.campaign(&known.campaign().id).await? else {
            return Ok(Recovered::Ready);
        };
        self.campaigns.learn(campaign.clone());
        if campaign.archived.is_some() {
            return Ok(Recovered::Ready);
        }
        match self.ledger.find(known, None).await {
            Ok(_) if !anyway => {
                known.trust();
                return Ok(Recovered::Ready);
            }
            Ok(_) | Err(LedgerError::NotReady(_)) => {}
            Err(error) => return Err(error.into()),
        }
        let started = Instant::now();
        let Some((drawn, suspended)) = self.suspend(known).await? else { return Ok(Recovered::Ready) };
        let rescued = self.secure(known, &drawn, suspended).await?;
        let epoch = suspended.epoch.max(drawn.epoch) + 1;
        let mut reached = known.reached();
        // What an older epoch has counted says nothing about this one.
        if suspended.epoch >= drawn.epoch {
            reached = reached.max(suspended.reached);
        }
        let Some(campaign) = self.archive.raise_epoch(&drawn, epoch, reached).await? else {
            return Ok(Recovered::Elsewhere);
        };
        let claims = self.load(known, &campaign).await?;
        self.campaigns.learn(campaign.clone());
        known.applied(campaign.version);
        known.trust();
        let seconds = started.elapsed().as_secs_f64();
        tracing::info!(campaign = %campaign.id, epoch = campaign.epoch, claims, rescued, seconds, "loaded from SQL");
        metrics::loaded();
        Ok(Recovered::Loaded(claims))
    }

    /// Stops every decision on a campaign until it has been loaded again, and makes every loader late that began before.
    /// The campaign as its row was then, and what Redis holds of it; `None` when SQL has no such campaign, or it has been
    /// evicted.
    pub async fn suspend(&self, known: &Known) -> Result<Option<(Campaign, Suspended)>, RecoveryError> {
        let Some(drawn) = self.archive.draw_token(&known.campaign().id).await? else { return Ok(None) };
        known.distrust();
        match self.ledger.suspend(&known.keys, drawn.register_id.as_str(), &drawn.token.to_string()).await {
            Ok(suspended) => Ok(Some((drawn, suspended))),
            Err(LoadError::Ledger(LedgerError::NotReady(why))) => Err(RecoveryError::not_ours(&why)),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes sure that SQL holds all that a suspended campaign's keys do: what waits in the outbox, whoever has read it
    /// before, and, where the sums tell that SQL has lost rows it once had, those. Returns how many these were.
    async fn secure(
        &self,
        known: &Known,
        drawn: &Campaign,
        suspended: Suspended,
    ) -> Result<u64, RecoveryError> {
        self.drain_all(known).await?;
        // Of an older epoch SQL has taken what there was before it went on without it.
        let Some(revisions) = suspended.revisions.filter(|_| suspended.epoch >= drawn.epoch) else {
            return Ok(0);
        };
        let totals = self.archive.totals(&drawn.id).await?;
        if (totals.taken, totals.revisions) == (suspended.taken, revisions) {
            return Ok(0);
        }
        let mut lacking = Vec::new();
        let mut at = Some(ClaimScan::START);
        while let Some(from) = at {
            let (claims, next) = self.ledger.claims_page(&known.keys, from).await?;
            lacking.extend(self.archive.lacking(&drawn.id, claims).await?);
            at = next;
        }
        let rescued = self.rescue(drawn, suspended, lacking).await?;
        if rescued > 0 {
            tracing::error!(campaign = %drawn.id, rescued, "SQL had lost claims that Redis holds: they were written again");
        }
        Ok(rescued)
    }

    /// Writes claims to SQL that it lacks; how many.
    async fn rescue(
        &self,
        drawn: &Campaign,
        suspended: Suspended,
        mut lacking: Vec<(UserId, Record)>,
    ) -> Result<u64, RecoveryError> {
        // Of claims that a scan has shown twice, one is enough. What was given back comes before what was granted in its
        // place, so that SQL never sees more taken than there was.
        let stands = |claim: &Record| matches!(claim.status, ClaimStatus::Granted | ClaimStatus::Held);
        lacking.sort_by_key(|(_, claim)| (stands(claim), claim.sequence));
        lacking.dedup_by_key(|(_, claim)| claim.sequence);
        // The total that they were decided by is not known; all of them were within what Redis counts.
        let total_then = drawn.limits.total.map(|total| u64::from(total.get()).max(suspended.taken));
        let (epoch, count) = (suspended.epoch, suspended.reached.events);
        let mut rescued = 0;
        for page in lacking.chunks(RESCUE_PAGE) {
            let event = |(user, claim): &(UserId, Record)| Event {
                user: user.clone(),
                claim: *claim,
                updated_at: claim.claimed_at,
                total_then,
                taken_after: None,
            };
            let events: Vec<_> = page.iter().map(event).collect();
            rescued += events.len() as u64;
            let entry = Entry { id: String::new(), epoch, count, events };
            rescued -= self.archive.salvage(&drawn.id, &[entry], History::Same).await?;
        }
        Ok(rescued)
    }

    /// Whether `campaign` is over for long enough, by core's clock and by Redis' at `redis_now`, and both have been steady.
    fn is_long_over(&self, campaign: &Campaign, redis_now: Timestamp) -> bool {
        let core_now = clock::now();
        let now = core_now.min(redis_now);
        let after_ms = i64::try_from(self.archive_after.as_millis()).unwrap_or(i64::MAX);
        campaign.over_since(now).is_some_and(|since| since.saturating_add_ms(after_ms) <= now)
            && self.clocks.steady_for(core_now, redis_now) >= self.archive_after.min(STEADY_MIN)
    }

    /// Takes a campaign that is long over and drained out of Redis; SQL answers for it from then on.
    async fn archive_leased(&self, known: &Known) -> Result<(), RecoveryError> {
        let id = known.campaign().id.clone();
        let lease = match self.owner()?.try_lock(&format!("load-{id}"), LEASE).await {
            Ok(lease) => lease,
            Err(LockError::Taken) => return Ok(()),
            Err(LockError::Ledger(error)) => return Err(error.into()),
        };
        let result = match self.archive_campaign(known).await {
            Err(RecoveryError::Load(LoadError::Late)) => Ok(()),
            result => result,
        };
        let _ = lease.release().await;
        result
    }

    async fn archive_campaign(&self, known: &Known) -> Result<(), RecoveryError> {
        let (counters, _) = self.ledger.find(known, None).await?;
        let holds = self.ledger.hold_state(&known.keys, counters.now).await?;
        // A hold can still be confirmed; it expires by itself, and then it is this campaign's turn.
        if holds.held > 0 {
            return Ok(());
        }
        // From here on it is not ready: whatever stops this half way, the recovery finds it and loads it.
        let Some((drawn, suspended)) = self.suspend(known).await? else { return Ok(()) };
        if !self.is_long_over(&drawn, counters.now) {
            return Ok(());
        }
        self.secure(known, &drawn, suspended).await?;
        let totals = self.archive.totals(&drawn.id).await?;
        let archived = Archived { taken: totals.taken, sequence: totals.sequence.max(counters.sequence) };
        let epoch = suspended.epoch.max(drawn.epoch) + 1;
        // Changed since the token was drawn, it may have a future again.
        let Some(campaign) = self.archive.archive_campaign(&drawn, epoch, archived, clock::now()).await?
        else {
            return Ok(());
        };
        self.campaigns.learn(campaign.clone());
        tracing::info!(campaign = %campaign.id, taken = archived.taken, "evicted: SQL answers for it now");
        self.drop_keys(known, &campaign).await
    }

    /// Removes an evicted campaign's keys, unless it has come back meanwhile.
    async fn drop_keys(&self, known: &Known, evicted: &Campaign) -> Result<(), RecoveryError> {
        if self.ledger.drop_keys(&known.keys, &evicted.token.to_string()).await? {
            self.archive.keys_dropped(evicted).await?;
        }
        Ok(())
    }

    /// Removes the keys of campaigns that were evicted by a core that ended before it could remove them.
    pub async fn drop_evicted(&self) -> Result<(), RecoveryError> {
        for campaign in self.archive.keys_to_drop(DROPS_MAX).await? {
            let known = self.campaigns.learn(campaign.clone());
            self.drop_keys(&known, &campaign).await?;
        }
        Ok(())
    }

    /// Moves everything in a closed campaign's outbox to SQL, whoever has read it before.
    async fn drain_all(&self, known: &Known) -> Result<(), RecoveryError> {
        let campaign = &known.campaign().id;
        let mut after = "0-0".to_owned();
        // Once a history was found to have lost others, nothing that follows is taken at its word.
        let mut honest = true;
        while let Some((read, last)) = self.ledger.outbox_page(&known.keys, &after).await? {
            for id in &read.poison {
                self.ledger.park(&known.keys, id).await?;
                metrics::poison(1);
            }
            if honest {
                match self.archive.drain(campaign, &read.entries).await {
                    Err(DrainError::Constraint(error)) => {
                        tracing::error!(%campaign, %error, "the register refuses claims; taking them one by one");
                        honest = false;
                    }
                    other => other?,
                }
            }
            if !honest {
                let revoked = self.archive.salvage(campaign, &read.entries, History::Another).await?;
                tracing::error!(%campaign, revoked, "claims stored as revoked");
            }
            after = last;
        }
        Ok(())
    }

    /// Loads the campaign from SQL; the number of its claims.
    async fn load(&self, known: &Known, campaign: &Campaign) -> Result<u64, RecoveryError> {
        let totals = self.archive.totals(&campaign.id).await?;
        let mut loader = Loader::begin(&self.ledger, &known.keys, campaign).await?;
        let mut rows = std::pin::pin!(self.archive.by_user(&campaign.id));
        let mut of_one_user: Option<(_, Vec<Record>)> = None;
        while let Some(row) = rows.next().await {
            let (user, record) = row?;
            match &mut of_one_user {
                Some((same, records)) if *same == user => records.push(record),
                other => {
                    if let Some((user, records)) = other.replace((user, vec![record])) {
                        loader.user(&user, &records).await?;
                    }
                }
            }
        }
        if let Some((user, records)) = of_one_user {
            loader.user(&user, &records).await?;
        }
        let sequence = campaign.reached.sequence.max(totals.sequence);
        loader.open(Reached { sequence, ..campaign.reached }, totals.taken).await?;
        Ok(totals.claims - totals.revoked)
    }
}
