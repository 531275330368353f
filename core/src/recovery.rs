//! Brings campaigns back whose counters in Redis are missing, behind, or of another epoch.
//!
//! The order matters: close in Redis, drain what is left to SQL, raise the epoch in SQL, load from SQL, open. Loading
//! beside a live outbox would count twice; raising the epoch late would let an old drain write past a limit.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::time::Instant;

use crate::archive::{Archive, ArchiveError, DrainError};
use crate::campaign::{Archived, Campaign, Reached};
use crate::campaigns::{Campaigns, Known};
use crate::clock;
use crate::ledger::loading::{LoadError, Loader};
use crate::ledger::record::Record;
use crate::ledger::scripts::Counters;
use crate::ledger::{Ledger, LedgerError};
use crate::lock::{LockError, Owner};
use crate::metrics;

/// A crashed loader keeps others waiting for so long.
const LEASE: Duration = Duration::from_secs(5);

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
}

impl Recovery {
    /// Brings one campaign back if it is not ready; gives back holds that are due.
    pub async fn look_after(&self, known: &Known) -> Result<Recovered, RecoveryError> {
        if known.campaign().archived.is_some() {
            return Ok(Recovered::Ready);
        }
        let recovered = match self.ledger.find(known, None).await {
            Ok((counters, _)) => {
                known.trust();
                metrics::outbox_events(known.campaign().id.as_str(), counters.backlog);
                if self.is_long_over(known, &counters) {
                    self.archive_leased(known).await?;
                    return Ok(Recovered::Ready);
                }
                Recovered::Ready
            }
            Err(LedgerError::NotReady(_)) => self.recover(known, false).await?,
            Err(error) => return Err(error.into()),
        };
        if recovered != Recovered::Elsewhere && known.campaign().hold_seconds.is_some() {
            self.sweep(known).await?;
        }
        Ok(recovered)
    }

    /// An owner for one piece of work: two at once in this core must not take each other's lease for their own.
    fn owner(&self) -> Result<Owner, getrandom::Error> {
        Owner::new(Arc::clone(&self.ledger))
    }

    /// Gives back the holds that are due. The script does so before each claim; this is for campaigns at rest.
    async fn sweep(&self, known: &Known) -> Result<(), RecoveryError> {
        let Ok(lease) = self.owner()?.try_lock(&format!("sweep-{}", known.campaign().id), LEASE).await else {
            return Ok(());
        };
        while self.ledger.sweep(known).await? && !lease.is_lost() {}
        lease.release().await?;
        Ok(())
    }

    /// Loads a campaign from SQL under a lease, if it is still not ready then; with `anyway`, also if it is.
    pub async fn recover(&self, known: &Known, anyway: bool) -> Result<Recovered, RecoveryError> {
        let id = known.campaign().id.clone();
        let lease = match self.owner()?.try_lock(&format!("load-{id}"), LEASE).await {
            Ok(lease) => lease,
            Err(LockError::Taken) => return Ok(Recovered::Elsewhere),
            Err(LockError::Ledger(error)) => return Err(error.into()),
        };
        let result = self.recover_leased(known, anyway, lease.token()).await;
        // Not released, it frees itself.
        let _ = lease.release().await;
        result
    }

    async fn recover_leased(
        &self,
        known: &Known,
        anyway: bool,
        token: u64,
    ) -> Result<Recovered, RecoveryError> {
        let Some(campaign) = self.archive.campaign(&known.campaign().id).await? else {
            return Ok(Recovered::Ready);
        };
        self.campaigns.learn(campaign.clone());
        if campaign.archived.is_some() && !anyway {
            return Ok(Recovered::Ready);
        }
        match self.ledger.find(known, None).await {
            Ok(_) if !anyway => {
                known.trust();
                return Ok(Recovered::Ready);
            }
            Err(LedgerError::NotReady(why)) if why == "layout" => return Err(RecoveryError::Layout),
            Ok(_) | Err(LedgerError::NotReady(_)) => {}
            Err(error) => return Err(error.into()),
        }
        let started = Instant::now();
        known.distrust();
        // Redis may hold a newer epoch than SQL, when SQL was restored from an older copy.
        let epoch = self.ledger.close(&known.keys).await?.max(campaign.epoch) + 1;
        self.drain_all(known).await?;
        let Some(campaign) =
            self.archive.raise_epoch(&campaign.id, (campaign.epoch, epoch), known.reached()).await?
        else {
            return Ok(Recovered::Elsewhere);
        };
        let claims = self.load(known, &campaign, token).await?;
        self.campaigns.learn(campaign.clone());
        known.applied(campaign.version);
        known.trust();
        let seconds = started.elapsed().as_secs_f64();
        tracing::warn!(campaign = %campaign.id, epoch = campaign.epoch, claims, seconds, "loaded from SQL");
        metrics::loaded();
        Ok(Recovered::Loaded(claims))
    }

    fn is_long_over(&self, known: &Known, counters: &Counters) -> bool {
        let after_ms = i64::try_from(self.archive_after.as_millis()).unwrap_or(i64::MAX);
        let over = known.campaign().over_since(counters.now);
        counters.backlog == 0 && over.is_some_and(|since| since.saturating_add_ms(after_ms) <= counters.now)
    }

    /// Takes a campaign that is long over and drained out of Redis; SQL answers for it from then on.
    async fn archive_leased(&self, known: &Known) -> Result<(), RecoveryError> {
        let id = known.campaign().id.clone();
        let Ok(lease) = self.owner()?.try_lock(&format!("load-{id}"), LEASE).await else {
            return Ok(());
        };
        let result = self.archive_campaign(known).await;
        let _ = lease.release().await;
        result
    }

    async fn archive_campaign(&self, known: &Known) -> Result<(), RecoveryError> {
        let campaign = known.campaign();
        let (counters, _) = self.ledger.find(known, None).await?;
        let holds = self.ledger.hold_state(&known.keys, counters.now).await?;
        // A hold can still be confirmed; it expires by itself, and then it is this campaign's turn.
        if holds.held > 0 {
            return Ok(());
        }
        let epoch = self.ledger.close(&known.keys).await?.max(campaign.epoch) + 1;
        self.drain_all(known).await?;
        let totals = self.archive.totals(&campaign.id).await?;
        let archived = Archived { taken: totals.taken, sequence: totals.sequence.max(counters.sequence) };
        let epochs = (campaign.epoch, epoch);
        if let Some(campaign) =
            self.archive.archive_campaign(&campaign.id, epochs, archived, clock::now()).await?
        {
            self.ledger.drop_keys(&known.keys).await?;
            tracing::info!(campaign = %campaign.id, taken = archived.taken, "archived: SQL answers for it now");
            self.campaigns.learn(campaign);
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
                let revoked = self.archive.salvage(campaign, &read.entries).await?;
                tracing::error!(%campaign, revoked, "claims stored as revoked");
            }
            after = last;
        }
        Ok(())
    }

    /// Lays the campaign down from SQL; the number of its claims.
    async fn load(&self, known: &Known, campaign: &Campaign, token: u64) -> Result<u64, RecoveryError> {
        let totals = self.archive.totals(&campaign.id).await?;
        let mut loader = Loader::begin(&self.ledger, &known.keys, campaign, token).await?;
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

/// Lays down a campaign that SQL has just been given: it has no claims yet.
pub async fn lay_down(ledger: &Ledger, known: &Known) -> Result<(), LedgerError> {
    let campaign = known.campaign();
    let laid =
        async { Loader::begin(ledger, &known.keys, &campaign, 0).await?.open(campaign.reached, 0).await };
    match laid.await {
        Ok(()) => {
            known.applied(campaign.version);
            known.trust();
            Ok(())
        }
        // A recovery has seen it missing and was quicker.
        Err(LoadError::Late) => Ok(()),
        Err(LoadError::Ledger(error)) => Err(error),
    }
}
