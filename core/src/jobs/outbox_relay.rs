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
use crate::domain::not_ready::NotReadyReason;
use crate::engine::Engine;
use crate::engine::handle::CampaignHandle;
use crate::engine::recovery::{Recovery, RecoveryError};
use crate::engine::registry::CampaignRegistry;
use crate::metrics;
use crate::store::redis::outbox::{ENTRIES_MAX, OutboxBatch, OutboxReader};
use crate::store::redis::{RedisStore, RedisStoreError};
use crate::store::sql::{OutboxWriteError, SqlStore};

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
pub struct OutboxRelay {
    /// Where events come from.
    redis: Arc<RedisStore>,
    /// Where they go.
    sql: SqlStore,
    /// Whose outboxes.
    registry: Arc<CampaignRegistry>,
    /// Suspends a campaign whose claims SQL refuses.
    recovery: Arc<Recovery>,
    /// This core's name among the relays; the same after a restart, so that it finds what it had read.
    consumer: String,
}

/// Why a campaign's outbox was not relayed.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// Redis.
    #[error(transparent)]
    Redis(#[from] RedisStoreError),
    /// SQL.
    #[error(transparent)]
    Write(#[from] OutboxWriteError),
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
            Self::Redis(RedisStoreError::Unavailable(error)) => error.code(),
            _ => None,
        }
    }
}

impl OutboxRelay {
    /// For the campaigns of `engine`, under the consumer's name `consumer`.
    pub fn new(engine: &Engine, consumer: String) -> Self {
        Self {
            redis: Arc::clone(&engine.sync.redis),
            sql: engine.sync.sql.clone(),
            registry: Arc::clone(&engine.registry),
            recovery: Arc::clone(&engine.recovery),
            consumer,
        }
    }

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
                match self.sql.reopen() {
                    Ok(sql) => {
                        Self { sql: sql.clone(), ..self }.run(stop).await;
                        let _ = timeout(CLOSE_MAX, sql.close()).await;
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
        for handle in self.registry.all() {
            handle.has_leftovers();
            if let Err(error) = relay.relay_all(&handle, false).await {
                relay.repair(&handle, &error).await;
                outcome = outcome.and(Err(error));
            }
        }
        outcome
    }
}

/// The relay at work.
#[derive(Debug)]
struct Relay<'a> {
    relay: &'a OutboxRelay,
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
    fn new(relay: &'a OutboxRelay, idle: Duration) -> Self {
        let commits = Semaphore::new(relay.sql.writers_max());
        Self { relay, idle, commits, reader: Mutex::default() }
    }

    /// Relays each campaign that something is told of.
    async fn work(&self) {
        let campaigns = &self.relay.registry;
        let mut places: HashMap<CampaignId, Place> = HashMap::new();
        let mut at_work = FuturesUnordered::new();
        // What is in the outboxes already was told to somebody else, or to nobody.
        let mut told: Vec<_> = campaigns.all().iter().map(|handle| handle.campaign().id.clone()).collect();
        loop {
            for id in told.drain(..) {
                let Some(handle) = campaigns.get(&id) else { continue };
                let place = places.entry(id).or_default();
                place.again = place.at_work;
                if !std::mem::replace(&mut place.at_work, true) {
                    at_work.push(self.relay(handle, place.caught_up, Duration::ZERO));
                }
            }
            tokio::select! {
                Some((handle, result)) = at_work.next() => {
                    let place = places.entry(handle.campaign().id.clone()).or_default();
                    let wait = self.judge(&handle, place, result).await;
                    match wait {
                        Some(wait) => at_work.push(self.relay(handle, place.caught_up, wait)),
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
        handle: &CampaignHandle,
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
        let campaign = &handle.campaign().id;
        if place.backoff.is_fresh() {
            tracing::warn!(%error, %campaign, "not relayed to SQL; trying again");
        } else {
            tracing::debug!(%error, %campaign, "not relayed to SQL; trying again");
        }
        self.repair(handle, &error).await;
        Some(place.backoff.failed())
    }

    /// What can be done about an error before the next try.
    async fn repair(&self, handle: &CampaignHandle, error: &RelayError) {
        match error.code() {
            Some("NOGROUP") => self.restore_group(handle).await,
            // The connection is fine, or gone; in doubt another one is made.
            Some(_) => {
                self.give_up_reader();
                handle.mark_not_ready(NotReadyReason::Damaged);
            }
            None if matches!(error, RelayError::Redis(_)) => self.give_up_reader(),
            None => {}
        }
    }

    /// An outbox without its consumer group gets it back; one that is gone altogether is for the recovery.
    async fn restore_group(&self, handle: &CampaignHandle) {
        let campaign = handle.campaign();
        match self.relay.redis.restore_group(&handle.keys, campaign.epoch).await {
            Ok(()) => {
                tracing::error!(campaign = %campaign.id, "the outbox had lost its consumer group; made again");
            }
            Err(_) => handle.mark_not_ready(NotReadyReason::Damaged),
        }
    }

    /// After `wait`, moves all that is in one campaign's outbox to SQL; `false` when the campaign is not ready for that.
    async fn relay(
        &self,
        handle: Arc<CampaignHandle>,
        caught_up: bool,
        wait: Duration,
    ) -> (Arc<CampaignHandle>, Result<bool, RelayError>) {
        if !wait.is_zero() {
            sleep(wait).await;
        }
        let relayed = self.relay_all(&handle, caught_up).await;
        (handle, relayed)
    }

    async fn relay_all(&self, handle: &CampaignHandle, caught_up: bool) -> Result<bool, RelayError> {
        let leftovers = handle.begin_relay();
        // Until it is: being trusted tells of the outbox anew.
        if !handle.is_in_redis() {
            return Ok(false);
        }
        let mut reader = self.reader().await?;
        while !caught_up && self.commit(handle, reader.read_pending(&handle.keys).await?).await? > 0 {}
        while leftovers && self.commit(handle, reader.auto_claim(&handle.keys, self.idle).await?).await? > 0 {
        }
        while self.commit(handle, reader.read_new(&handle.keys).await?).await? >= ENTRIES_MAX {
            handle.begin_relay();
        }
        Ok(true)
    }

    async fn reader(&self) -> Result<OutboxReader, RedisStoreError> {
        if let Some(reader) = &*self.reader.lock().unwrap_or_else(PoisonError::into_inner) {
            return Ok(reader.clone());
        }
        let made = self.relay.redis.outbox_reader(&self.relay.consumer).await?;
        *self.reader.lock().unwrap_or_else(PoisonError::into_inner) = Some(made.clone());
        Ok(made)
    }

    fn give_up_reader(&self) {
        *self.reader.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Commits what was read, and only then takes it off; the number of entries.
    async fn commit(&self, handle: &CampaignHandle, batch: OutboxBatch) -> Result<usize, RelayError> {
        for id in &batch.malformed {
            self.dead_letter(handle, id).await?;
        }
        if !batch.entries.is_empty() {
            // Never closed: without a permit there is nobody to wait for one.
            let _permit = self.commits.acquire().await;
            let started = Instant::now();
            let campaign = handle.campaign();
            let committed = self.relay.sql.write_entries(&campaign.id, &batch.entries);
            match timeout(COMMIT_MAX, committed).await.map_err(|_| RelayError::Slow)? {
                Err(OutboxWriteError::Constraint(error)) => {
                    return self.suspend_campaign(handle, &error).await;
                }
                other => other?,
            }
            let left = self.relay.redis.acknowledge(&handle.keys, &batch.entries).await?;
            metrics::relayed(batch.events() as u64);
            if batch.events() >= MANY && left < self.relay.redis.outbox_max() / 2 {
                yield_to_claims(handle, started.elapsed() * REST).await;
            }
        }
        Ok(batch.len())
    }

    /// Gets an entry out of the way that cannot be relayed.
    async fn dead_letter(&self, handle: &CampaignHandle, id: &str) -> Result<(), RelayError> {
        let campaign = &handle.campaign().id;
        if self.relay.redis.dead_letter(&handle.keys, id).await? {
            tracing::error!(entry = id, %campaign, "an outbox entry that no core has written is parked");
            metrics::dead_letter();
        } else {
            tracing::error!(entry = id, %campaign, "an outbox entry was deleted before SQL had heard of it");
            metrics::deleted_entries(1);
        }
        Ok(())
    }

    /// Claims that SQL refuses were granted by a Redis that had lost others: the campaign is suspended and loaded again.
    async fn suspend_campaign(
        &self,
        handle: &CampaignHandle,
        error: &sqlx::Error,
    ) -> Result<usize, RelayError> {
        tracing::error!(campaign = %handle.campaign().id, %error, "the register refuses claims; suspending the campaign");
        self.relay.recovery.suspend(handle).await?;
        Ok(0)
    }
}

/// Leaves the processors to decisions for a while, as long as there are any: SQL catches up after a stampede.
async fn yield_to_claims(handle: &CampaignHandle, rest: Duration) {
    let until = Instant::now() + rest;
    while handle.is_busy() && Instant::now() < until {
        sleep(LOOK_UP).await;
    }
}
