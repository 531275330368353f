//! From the outbox to SQL: reads what the scripts wrote, commits it, and only then takes it off.
//!
//! It may stop anywhere. What was read and not taken off is read again; what was committed and not taken off is
//! written again, which changes nothing, since a row gives way only to a newer revision of its claim.
//!
//! An outbox is read when this core has decided something, or when the maintenance has seen something in it. Each campaign
//! is relayed by itself: one whose outbox or row is broken fails alone, and is tried again later each time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{io, thread};

use claimgate_shared::CampaignId;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep, timeout};

use super::Backoff;
use crate::archive::{Archive, DrainError};
use crate::campaigns::{Campaigns, Known};
use crate::ledger::events::{ENTRIES_MAX, OutboxReader, Read};
use crate::ledger::{Ledger, LedgerError};
use crate::metrics;
use crate::recovery::{Recovery, RecoveryError};

/// What another core has read and left lying for so long is taken over.
const IDLE: Duration = Duration::from_secs(5);
/// How far the relay's thread gives way, as `nice` has it: at 5 it gets a third of what a thread that decides gets.
const NICENESS: i32 = 5;
/// With so many events at once there is a stampede: then the relay rests so many times as long as it works, until the
/// outbox is half full.
const MANY: usize = 2048;
const REST: u32 = 4;
/// How often a resting relay looks whether the stampede is over.
const LOOK_UP: Duration = Duration::from_millis(5);
/// The longest a commit may take; an entry has 256 claims at most.
const COMMIT_MAX: Duration = Duration::from_secs(10);
/// The longest that closing the connections to SQL may take.
const CLOSE_MAX: Duration = Duration::from_secs(1);
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Moves events into SQL until core stops.
#[derive(Debug)]
pub struct Drain {
    /// Where events come from.
    pub ledger: Arc<Ledger>,
    /// Where they go.
    pub archive: Archive,
    /// Whose outboxes.
    pub campaigns: Arc<Campaigns>,
    /// Suspends a campaign whose claims SQL refuses.
    pub recovery: Arc<Recovery>,
    /// This core's name among the relays; the same after a restart, so that it finds what it had read.
    pub consumer: String,
}

/// Why a campaign's outbox was not relayed.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// Redis.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// SQL.
    #[error(transparent)]
    Drain(#[from] DrainError),
    /// Suspending a campaign.
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
    /// SQL, not in time.
    #[error("SQL did not commit within {} s", COMMIT_MAX.as_secs())]
    Slow,
}

impl RelayError {
    /// The server's answer, where Redis has given one.
    fn code(&self) -> Option<&str> {
        match self {
            Self::Ledger(LedgerError::Unavailable(error)) => error.code(),
            _ => None,
        }
    }
}

impl Drain {
    /// Runs on a thread of its own until `stop` turns true. That thread, and SQLite's beside it, give way to those that
    /// decide: a stampede is short, and SQL catches up after it. The bound on the outbox holds meanwhile.
    pub fn spawn(self, stop: watch::Receiver<bool>) -> io::Result<thread::JoinHandle<()>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new().name("drain".to_owned()).spawn(move || {
            if let Err(error) = rustix::process::nice(NICENESS) {
                tracing::warn!(%error, "the relay does not give way to decisions");
            }
            runtime.block_on(async move {
                // Over connections made on this thread.
                match self.archive.reopen() {
                    Ok(archive) => {
                        Self { archive: archive.clone(), ..self }.run(stop).await;
                        let _ = timeout(CLOSE_MAX, archive.close()).await;
                    }
                    Err(error) => tracing::error!(%error, "the relay has no register"),
                }
            });
            // A look-up that hangs must not keep the thread.
            runtime.shutdown_background();
        })
    }

    /// Runs until `stop` turns true.
    pub async fn run(self, mut stop: watch::Receiver<bool>) {
        let relay = Relay::new(&self, IDLE);
        tokio::select! {
            () = relay.work() => {}
            _ = stop.wait_for(|stop| *stop) => {}
        }
    }

    /// Relays every campaign once, as after a start: what this core had read, what others have left lying for `idle`, and
    /// what is new.
    ///
    /// # Errors
    /// The first that any campaign met with; the others are relayed all the same.
    pub async fn round(&self, idle: Duration) -> Result<(), RelayError> {
        let relay = Relay::new(self, idle);
        let mut outcome = Ok(());
        for known in self.campaigns.all() {
            known.has_leftovers();
            if let Err(error) = relay.relay_all(&known, false).await {
                relay.repair(&known, &error).await;
                outcome = outcome.and(Err(error));
            }
        }
        outcome
    }
}

/// The relay at work.
#[derive(Debug)]
struct Relay<'a> {
    drain: &'a Drain,
    /// What another core has read and left lying for so long is taken over.
    idle: Duration,
    /// As many commits at once as SQL can take: one that hangs must not keep the others.
    commits: Semaphore,
    /// The connection for reading, once made; given up when it breaks.
    reader: Mutex<Option<OutboxReader>>,
}

/// What the relay knows of one campaign.
#[derive(Debug)]
struct Place {
    backoff: Backoff,
    /// Whether what this core had read and not taken off has been relayed: not after a start, nor after a failure.
    caught_up: bool,
    at_work: bool,
    /// Whether something was told of while it was at work.
    again: bool,
}

impl Default for Place {
    fn default() -> Self {
        let backoff = Backoff::new(RETRY_MIN, RETRY_MAX);
        Self { backoff, caught_up: false, at_work: false, again: false }
    }
}

impl<'a> Relay<'a> {
    fn new(drain: &'a Drain, idle: Duration) -> Self {
        let commits = Semaphore::new(drain.archive.writers_max());
        Self { drain, idle, commits, reader: Mutex::default() }
    }

    /// Relays each campaign that something is told of.
    async fn work(&self) {
        let campaigns = &self.drain.campaigns;
        let mut places: HashMap<CampaignId, Place> = HashMap::new();
        let mut at_work = FuturesUnordered::new();
        // What is in the outboxes already was told to somebody else, or to nobody.
        let mut told: Vec<_> = campaigns.all().iter().map(|known| known.campaign().id.clone()).collect();
        loop {
            for id in told.drain(..) {
                let Some(known) = campaigns.get(&id) else { continue };
                let place = places.entry(id).or_default();
                place.again = place.at_work;
                if !std::mem::replace(&mut place.at_work, true) {
                    at_work.push(self.relay(known, place.caught_up, Duration::ZERO));
                }
            }
            tokio::select! {
                Some((known, result)) = at_work.next() => {
                    let place = places.entry(known.campaign().id.clone()).or_default();
                    let wait = self.judge(&known, place, result).await;
                    match wait {
                        Some(wait) => at_work.push(self.relay(known, place.caught_up, wait)),
                        None => place.at_work = false,
                    }
                }
                () = campaigns.notices().outbox.arrived() => {}
            }
            told = campaigns.notices().outbox.take();
        }
    }

    /// What follows from one relay's end: after how long it is to be done again, `None` for not before something is told.
    async fn judge(
        &self,
        known: &Known,
        place: &mut Place,
        result: Result<bool, RelayError>,
    ) -> Option<Duration> {
        let again = std::mem::take(&mut place.again);
        let error = match result {
            Ok(relayed) => {
                let caught_up = relayed || place.caught_up;
                *place = Place { caught_up, at_work: true, ..Place::default() };
                return again.then_some(Duration::ZERO);
            }
            Err(error) => error,
        };
        place.caught_up = false;
        let campaign = &known.campaign().id;
        if place.backoff.is_fresh() {
            tracing::warn!(%error, %campaign, "not relayed to SQL; trying again");
        } else {
            tracing::debug!(%error, %campaign, "not relayed to SQL; trying again");
        }
        self.repair(known, &error).await;
        Some(place.backoff.failed())
    }

    /// What can be done about an error before the next try.
    async fn repair(&self, known: &Known, error: &RelayError) {
        match error.code() {
            Some("NOGROUP") => self.restore_group(known).await,
            // The connection is fine, or gone; in doubt another one is made.
            Some(_) => {
                self.give_up_reader();
                known.distrust();
            }
            None if matches!(error, RelayError::Ledger(_)) => self.give_up_reader(),
            None => {}
        }
    }

    /// An outbox without its consumer group gets it back; one that is gone altogether is for the recovery.
    async fn restore_group(&self, known: &Known) {
        let campaign = known.campaign();
        match self.drain.ledger.restore_group(&known.keys, campaign.epoch).await {
            Ok(()) => {
                tracing::error!(campaign = %campaign.id, "the outbox had lost its consumer group; made again");
            }
            Err(_) => known.distrust(),
        }
    }

    /// After `wait`, moves all that is in one campaign's outbox to SQL; `false` when the campaign is not ready for that.
    async fn relay(
        &self,
        known: Arc<Known>,
        caught_up: bool,
        wait: Duration,
    ) -> (Arc<Known>, Result<bool, RelayError>) {
        if !wait.is_zero() {
            sleep(wait).await;
        }
        let relayed = self.relay_all(&known, caught_up).await;
        (known, relayed)
    }

    async fn relay_all(&self, known: &Known, caught_up: bool) -> Result<bool, RelayError> {
        let leftovers = known.relaying();
        // Until it is: being trusted tells of the outbox anew.
        if !known.is_in_redis() {
            return Ok(false);
        }
        let mut reader = self.reader().await?;
        while !caught_up && self.commit(known, reader.read_again(&known.keys).await?).await? > 0 {}
        while leftovers && self.commit(known, reader.take_over(&known.keys, self.idle).await?).await? > 0 {}
        while self.commit(known, reader.read_new(&known.keys).await?).await? >= ENTRIES_MAX {
            known.relaying();
        }
        Ok(true)
    }

    async fn reader(&self) -> Result<OutboxReader, LedgerError> {
        if let Some(reader) = &*self.reader.lock().unwrap_or_else(PoisonError::into_inner) {
            return Ok(reader.clone());
        }
        let made = self.drain.ledger.outbox_reader(&self.drain.consumer).await?;
        *self.reader.lock().unwrap_or_else(PoisonError::into_inner) = Some(made.clone());
        Ok(made)
    }

    fn give_up_reader(&self) {
        *self.reader.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Commits what was read, and only then takes it off; the number of entries.
    async fn commit(&self, known: &Known, read: Read) -> Result<usize, RelayError> {
        for id in &read.poison {
            self.park(known, id).await?;
        }
        if !read.entries.is_empty() {
            // Never closed: without a permit there is nobody to wait for one.
            let _permit = self.commits.acquire().await;
            let started = Instant::now();
            let campaign = known.campaign();
            let committed = self.drain.archive.drain(&campaign.id, &read.entries);
            match timeout(COMMIT_MAX, committed).await.map_err(|_| RelayError::Slow)? {
                Err(DrainError::Constraint(error)) => return self.suspend(known, &error).await,
                other => other?,
            }
            let left = self.drain.ledger.acknowledge(&known.keys, &read.entries).await?;
            metrics::drained(read.events() as u64);
            if read.events() >= MANY && left < self.drain.ledger.backlog_max() / 2 {
                stand_back(known, started.elapsed() * REST).await;
            }
        }
        Ok(read.len())
    }

    /// Gets an entry out of the way that cannot be relayed.
    async fn park(&self, known: &Known, id: &str) -> Result<(), RelayError> {
        let campaign = &known.campaign().id;
        if self.drain.ledger.park(&known.keys, id).await? {
            tracing::error!(entry = id, %campaign, "an outbox entry that no core has written is parked");
            metrics::poison(1);
        } else {
            tracing::error!(entry = id, %campaign, "an outbox entry was deleted before SQL had heard of it");
            metrics::deleted_entries(1);
        }
        Ok(())
    }

    /// Claims that SQL refuses were granted by a Redis that had lost others: the campaign is suspended and loaded again.
    async fn suspend(&self, known: &Known, error: &sqlx::Error) -> Result<usize, RelayError> {
        tracing::error!(campaign = %known.campaign().id, %error, "the register refuses claims; suspending the campaign");
        self.drain.recovery.suspend(known).await?;
        Ok(0)
    }
}

/// Leaves the processors to decisions for a while, as long as there are any: SQL catches up after a stampede.
async fn stand_back(known: &Known, rest: Duration) {
    let until = Instant::now() + rest;
    while known.is_busy() && Instant::now() < until {
        sleep(LOOK_UP).await;
    }
}
