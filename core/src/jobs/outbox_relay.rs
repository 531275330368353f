//! The outbox relay: reads what the scripts wrote, commits it to SQL, and only then takes it off the outbox.
//!
//! It may stop anywhere. What was read and not taken off is read again; what was committed and not taken off is
//! written again, which changes nothing, since a row gives way only to a newer revision of its claim.
//!
//! An outbox is read when this core has decided something, or when the maintenance has found entries in it. Each campaign
//! is relayed by itself: one whose outbox or row is broken fails alone, and is tried again after a growing back-off.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use std::{io, thread};

use claimgate_shared::CampaignId;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::Backoff;
use super::group_commit::{CommitError, GroupCommit, Turn};
use crate::clock;
use crate::domain::counters::Generation;
use crate::domain::not_ready::NotReadyReason;
use crate::engine::Engine;
use crate::engine::handle::CampaignHandle;
use crate::engine::recovery::{Recovery, RecoveryError};
use crate::engine::registry::CampaignRegistry;
use crate::metrics;
use crate::step;
use crate::store::redis::outbox::{ENTRIES_MAX, OutboxBatch, OutboxReader, Progress};
use crate::store::redis::{RedisStore, RedisStoreError};
use crate::store::sql::{OutboxWriteError, SqlStore};
use crate::traces::Trace;

/// Entries that were read this long ago and are still in the outbox are taken over: another core has died, or is stuck.
const IDLE: Duration = Duration::from_secs(5);
/// The `nice` value of the relay's thread: at 5 it gets a third of the time that a deciding thread gets.
const NICENESS: i32 = 5;
/// While claims are being decided, the relay rests this many times as long as it works, until the outbox is half full:
/// they get the processors and the disk, and a commit has more rows, which makes each of them cheaper.
const REST: u32 = 4;
/// What reading and emptying one campaign's outbox takes besides: with many campaigns of few claims each, most of the work,
/// and the longer the rest, the more entries are read at once.
const OUTBOX: Duration = Duration::from_micros(100);
/// The longest that it rests after a commit, however long that took.
const REST_MAX: Duration = Duration::from_secs(1);
/// A batch of at least this many events is of a stampede. After a smaller one the relay rests only while SQL is less than
/// [`LAG_MAX`] behind: many campaigns with few claims each wait for one another.
const MANY: usize = 2048;
const LAG_MAX: Duration = Duration::from_secs(5);
/// How often a resting relay checks whether claims are still being decided.
const LOOK_UP: Duration = Duration::from_millis(5);
/// How long a batch waits for another core to commit those before it.
const IN_ORDER_MAX: Duration = Duration::from_secs(1);
/// The longest that closing the connections to SQL may take.
const CLOSE_MAX: Duration = Duration::from_secs(1);
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Moves events into SQL until core stops.
#[derive(Debug)]
pub struct OutboxRelay {
    /// The Redis whose outboxes are relayed.
    redis: Arc<RedisStore>,
    /// The database that events are written to.
    sql: SqlStore,
    /// The campaigns whose outboxes are relayed.
    registry: Arc<CampaignRegistry>,
    /// Suspends a campaign whose claims SQL refuses.
    recovery: Arc<Recovery>,
    /// This core's consumer name, which tells operators who reads.
    consumer: String,
}

/// Why a campaign's outbox was not relayed.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// A call to Redis failed.
    #[error(transparent)]
    Redis(#[from] RedisStoreError),
    /// SQL did not commit.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// Suspending a campaign failed.
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
}

impl RelayError {
    /// The error code that Redis has answered with, if any.
    fn code(&self) -> Option<&str> {
        match self {
            Self::Redis(RedisStoreError::Unavailable(error)) => error.code(),
            _ => None,
        }
    }
}

impl OutboxRelay {
    /// A relay for the campaigns of `engine`, under the consumer name `consumer`.
    pub fn new(engine: &Engine, consumer: String) -> Self {
        Self {
            redis: Arc::clone(&engine.sync.redis),
            sql: engine.sync.sql.clone(),
            registry: Arc::clone(&engine.registry),
            recovery: Arc::clone(&engine.recovery),
            consumer,
        }
    }

    /// Runs on a thread of its own until `stop` turns true. That thread and SQLite's have a lower priority than the
    /// deciding ones: a stampede is short, and SQL catches up after it. The bound on the outbox holds meanwhile.
    ///
    /// # Errors
    /// When the system gives it no thread or no event loop.
    pub fn spawn(self, stop: watch::Receiver<bool>) -> io::Result<thread::JoinHandle<()>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new().name("relay".to_owned()).spawn(move || {
            if let Err(error) = rustix::process::nice(NICENESS) {
                tracing::warn!(%error, "the relay's thread keeps its priority");
            }
            runtime.block_on(async move {
                // Over connections made on this thread.
                match self.sql.reopen() {
                    Ok(sql) => {
                        Self { sql: sql.clone(), ..self }.run(stop).await;
                        let _ = timeout(CLOSE_MAX, sql.close()).await;
                    }
                    Err(error) => tracing::error!(%error, "the relay has no database"),
                }
            });
            // A look-up that hangs must not keep the thread.
            runtime.shutdown_background();
        })
    }

    /// Runs until `stop` turns true.
    pub async fn run(self, mut stop: watch::Receiver<bool>) {
        let relay = Relay::new(&self, IDLE, true);
        tokio::select! {
            () = relay.work() => {}
            _ = stop.wait_for(|stop| *stop) => {}
        }
    }

    /// Relays every campaign once, as after a start: the entries that this core had read and not acknowledged, those that
    /// another had read at least `idle` ago, and new ones.
    ///
    /// # Errors
    /// The first error of any campaign; the others are relayed all the same.
    pub async fn round(&self, idle: Duration) -> Result<(), RelayError> {
        let relay = Relay::new(self, idle, false);
        let mut outcome = Ok(());
        for handle in self.registry.all() {
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
    parts: &'a OutboxRelay,
    /// Entries that were read this long ago and are still in the outbox are taken over.
    idle: Duration,
    commits: GroupCommit,
    /// The connections for reading, one to each server, once made; dropped when one breaks.
    readers: Mutex<Vec<OutboxReader>>,
    /// Whether it leaves the processors to claims.
    rests: bool,
    /// The most events that an outbox had left after a commit, since the last rest.
    fullest: AtomicU64,
    /// Of campaigns that may have leftovers, the last entry that had been read, and when that was seen.
    seen: Mutex<HashMap<CampaignId, (Instant, String)>>,
    /// The last entry of each batch that this relay has read and not acknowledged yet.
    in_hand: Mutex<HashMap<CampaignId, String>>,
}

/// The relay's state of one campaign.
#[derive(Debug)]
struct Place {
    backoff: Backoff,
    /// Whether the entries that were read and not acknowledged before are relayed, as far as they are for this core to
    /// relay: false after a start or a failure.
    caught_up: bool,
    at_work: bool,
    /// Whether the campaign was noticed again while it was being relayed.
    again: bool,
}

impl Default for Place {
    fn default() -> Self {
        let backoff = Backoff::new(RETRY_MIN, RETRY_MAX);
        Self { backoff, caught_up: false, at_work: false, again: false }
    }
}

impl<'a> Relay<'a> {
    fn new(parts: &'a OutboxRelay, idle: Duration, rests: bool) -> Self {
        let commits = GroupCommit::new(parts.sql.clone());
        let (readers, seen, in_hand) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { parts, idle, commits, readers, rests, fullest: AtomicU64::new(0), seen, in_hand }
    }

    /// Relays each campaign that is noticed.
    async fn work(&self) {
        let campaigns = &self.parts.registry;
        let mut places: HashMap<CampaignId, Place> = HashMap::new();
        let mut at_work = FuturesUnordered::new();
        // Entries that are in the outboxes already were noticed before this relay began, or not at all.
        let mut told: Vec<_> = campaigns.all().iter().map(|handle| handle.campaign().id.clone()).collect();
        loop {
            for id in told.drain(..) {
                let Some(handle) = campaigns.get(&id) else { continue };
                let place = places.entry(id.clone()).or_default();
                place.again = place.at_work;
                if !std::mem::replace(&mut place.at_work, true) {
                    campaigns.notices().at_relay.begin(id);
                    at_work.push(self.relay(handle, place.caught_up, Duration::ZERO));
                }
            }
            tokio::select! {
                Some((handle, result)) = at_work.next() => {
                    let place = places.entry(handle.campaign().id.clone()).or_default();
                    if let Some(wait) = self.judge(&handle, place, result).await {
                        at_work.push(self.relay(handle, place.caught_up, wait));
                    } else {
                        place.at_work = false;
                        campaigns.notices().at_relay.end(&handle.campaign().id);
                        self.forget_evicted(&handle, &mut places);
                    }
                }
                () = campaigns.notices().outbox.arrived() => {}
            }
            told = campaigns.notices().outbox.take();
        }
    }

    /// Forgets a campaign that has left Redis.
    fn forget_evicted(&self, handle: &CampaignHandle, places: &mut HashMap<CampaignId, Place>) {
        let campaign = handle.campaign();
        if campaign.evicted.is_some() {
            places.remove(&campaign.id);
            locked(&self.seen).remove(&campaign.id);
        }
    }

    /// After how long a campaign whose relaying has ended is relayed again; `None` for not before the next notice.
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

    /// Repairs what an error shows to be broken, before the next try.
    async fn repair(&self, handle: &CampaignHandle, error: &RelayError) {
        match error.code() {
            Some("NOGROUP") => self.restore_group(handle).await,
            // Whether the connection still works is unknown, so another one is made.
            Some(_) => {
                self.give_up_readers();
                handle.mark_not_ready(NotReadyReason::Damaged);
            }
            None if matches!(error, RelayError::Redis(_)) => self.give_up_readers(),
            None => {}
        }
    }

    /// Makes an outbox's lost consumer group again; an outbox that is gone altogether is for the recovery.
    async fn restore_group(&self, handle: &CampaignHandle) {
        let campaign = handle.campaign();
        match self.parts.redis.restore_group(&handle.keys, campaign.epoch).await {
            Ok(()) => {
                tracing::error!(campaign = %campaign.id, "the outbox had lost its consumer group; made again");
            }
            Err(_) => handle.mark_not_ready(NotReadyReason::Damaged),
        }
    }

    /// After `wait`, relays all entries of one campaign's outbox to SQL; `false` when Redis does not hold the campaign.
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
        // It is noticed again once it is ready.
        if !handle.is_in_redis() {
            return Ok(false);
        }
        let mut reader = self.reader(handle).await?;
        let (keys, from) = (&handle.keys, reader.generation());
        let id = &handle.campaign().id;
        let failed = locked(&self.in_hand).get(id).cloned();
        let left_behind =
            if caught_up && !leftovers { None } else { self.left_behind(id, reader.progress(keys).await?) };
        for last in failed.iter().chain(&left_behind) {
            while self.commit(handle, from, reader.read_delivered(keys, last).await?).await? > 0 {}
        }
        loop {
            locked(&self.in_hand).remove(id);
            let batch = reader.read_new(keys).await?;
            if let Some(last) = batch.entries.last() {
                locked(&self.in_hand).insert(id.clone(), last.id.clone());
            }
            if self.commit(handle, from, batch).await? < ENTRIES_MAX {
                locked(&self.in_hand).remove(id);
                return Ok(true);
            }
            handle.begin_relay();
        }
    }

    /// The last of the entries of a campaign that were read by a core that is not at work on them any more: no other core
    /// has been seen for a while, or they were read as long ago.
    fn left_behind(&self, id: &CampaignId, progress: Progress) -> Option<String> {
        if progress.other_cores.is_none_or(|seen| seen >= self.idle) {
            return Some(progress.last);
        }
        let mut seen = locked(&self.seen);
        let now = Instant::now();
        let (at, before) = seen.entry(id.clone()).or_insert_with(|| (now, progress.last.clone()));
        (now - *at >= self.idle).then(|| {
            *at = now;
            std::mem::replace(before, progress.last)
        })
    }

    /// The connection for reading a campaign's outbox.
    async fn reader(&self, handle: &CampaignHandle) -> Result<OutboxReader, RedisStoreError> {
        let generation = self.parts.redis.session(handle.keys.slot).await?.generation();
        if let Some(reader) = self.readers().iter().find(|reader| reader.generation() == generation) {
            return Ok(reader.clone());
        }
        let made = self.parts.redis.outbox_reader(handle.keys.slot, &self.parts.consumer).await?;
        let mut readers = self.readers();
        readers.retain(OutboxReader::is_current);
        // Another campaign of the same server may have made one meanwhile.
        if let Some(reader) = readers.iter().find(|reader| reader.generation() == made.generation()) {
            return Ok(reader.clone());
        }
        readers.push(made.clone());
        Ok(made)
    }

    fn readers(&self) -> MutexGuard<'_, Vec<OutboxReader>> {
        locked(&self.readers)
    }

    fn give_up_readers(&self) {
        self.readers().clear();
    }

    /// Commits a batch that was read on a connection of the generation `from` to SQL, and only then takes it off the outbox
    /// there; returns the number of its entries.
    async fn commit(
        &self,
        handle: &CampaignHandle,
        from: Generation,
        batch: OutboxBatch,
    ) -> Result<usize, RelayError> {
        for id in &batch.malformed {
            self.dead_letter(handle, from, id).await?;
        }
        let entries = batch.len();
        if !batch.entries.is_empty() {
            let batch = Arc::new(batch);
            let campaign = handle.campaign();
            let began = SystemTime::now();
            let turn = match self.commit_in_order(handle, &batch).await {
                Err(CommitError::Write(OutboxWriteError::Constraint(error))) => {
                    return self.suspend_campaign(handle, &error).await;
                }
                committed => committed?,
            };
            for entry in &batch.entries {
                if let Some(trace) = &entry.trace {
                    Trace::stored(trace, campaign.id.as_str(), entry.events.len(), began);
                }
            }
            self.parts.registry.notices().relayed.notify_one();
            let mut session = self.parts.redis.session_of(handle.keys.slot, from).await?;
            let left = self.parts.redis.acknowledge(&mut session, &handle.keys, &batch.entries).await?;
            metrics::relayed(batch.events() as u64);
            handle.record_backlog(left);
            self.fullest.fetch_max(left, Ordering::Relaxed);
            if let Some(turn) = turn.filter(|_| self.rests) {
                self.yield_to_claims(turn).await;
            }
        }
        Ok(entries)
    }

    /// Commits a batch to SQL once SQL has what comes before it, which another core may have in hand. Where that takes long,
    /// SQL may have lost it: the maintenance looks.
    async fn commit_in_order(
        &self,
        handle: &CampaignHandle,
        batch: &Arc<OutboxBatch>,
    ) -> Result<Option<Turn<'_>>, CommitError> {
        let id = &handle.campaign().id;
        // A schedule may hold the other core up for as long as this task waits.
        let wait = if step::is_scheduled() { Duration::ZERO } else { IN_ORDER_MAX };
        let until = Instant::now() + wait;
        loop {
            match self.commits.commit(id, Arc::clone(batch)).await {
                Err(CommitError::Write(OutboxWriteError::OutOfOrder)) if Instant::now() < until => {
                    sleep(LOOK_UP).await;
                }
                Err(CommitError::Write(
                    error @ (OutboxWriteError::OutOfOrder | OutboxWriteError::NoCampaign),
                )) => {
                    handle.suspect_sql();
                    return Err(error.into());
                }
                committed => return committed,
            }
        }
    }

    /// Keeps the writer's place while claims are being decided; SQL catches up after a stampede.
    async fn yield_to_claims(&self, turn: Turn<'_>) {
        let now = Instant::now();
        let worked = now - turn.began + OUTBOX * turn.batches;
        let until = now + worked.saturating_mul(REST).min(REST_MAX);
        let may_rest = turn.events >= MANY || turn.age(clock::now()) < LAG_MAX;
        while may_rest
            && self.fullest.load(Ordering::Relaxed) < self.parts.redis.outbox_max() / 2
            && self.parts.registry.notices().decisions.is_recent()
            && Instant::now() < until
        {
            sleep(LOOK_UP).await;
        }
        self.fullest.store(0, Ordering::Relaxed);
    }

    /// Moves an entry that cannot be relayed out of the outbox.
    async fn dead_letter(
        &self,
        handle: &CampaignHandle,
        from: Generation,
        id: &str,
    ) -> Result<(), RelayError> {
        let campaign = &handle.campaign().id;
        let mut session = self.parts.redis.session_of(handle.keys.slot, from).await?;
        if self.parts.redis.dead_letter(&mut session, &handle.keys, id).await? {
            tracing::error!(entry = id, %campaign, "a malformed outbox entry became a dead letter");
            metrics::dead_letter();
        }
        Ok(())
    }

    /// Claims that SQL refuses were granted by a Redis that had lost others: the campaign is suspended and loaded again.
    async fn suspend_campaign(
        &self,
        handle: &CampaignHandle,
        error: &sqlx::Error,
    ) -> Result<usize, RelayError> {
        tracing::error!(campaign = %handle.campaign().id, %error, "the database refuses claims; suspending the campaign");
        self.parts.recovery.suspend(handle).await?;
        Ok(0)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
