//! The outbox relay: reads the entries that the scripts wrote, commits them to SQL, and only then removes
//! them.
//!
//! The relay may stop at any point. Entries that were read but not removed are reread. Entries that were
//! committed but not removed are rewritten, which changes nothing: only a newer revision of a claim replaces
//! its row.
//!
//! An outbox is read after this core has decided claims, or when the maintenance job has found entries in the
//! outbox. Campaigns are relayed independently: a damaged outbox or row affects only its own campaign, which
//! is retried with a growing backoff.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use std::{fmt, io, thread};

use claimgate_shared::CampaignId;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::Backoff;
use super::group_commit::{CommitError, Committed, GroupCommit, WriterTurn};
use crate::clock;
use crate::domain::counters::Generation;
use crate::domain::not_ready::NotReadyReason;
use crate::engine::Engine;
use crate::engine::campaign::handle::CampaignHandle;
use crate::engine::campaign::registry::CampaignRegistry;
use crate::engine::error::RecoveryError;
use crate::engine::lifecycle::recovery::Recovery;
use crate::metrics;
use crate::runtime;
use crate::step;
use crate::store::redis::outbox::{ENTRIES_MAX, OutboxBatch, OutboxLayout, OutboxReader, Progress};
use crate::store::redis::{RedisStore, RedisStoreError};
use crate::store::sql::{OutboxWriteError, SqlStore};
use crate::traces::Trace;

/// Age of a read from which the relay takes over entries that are still in the outbox: another core has died,
/// or is stuck.
const IDLE: Duration = Duration::from_secs(5);
/// The `nice` value of the relay's thread. At 5, the thread gets a third of the CPU time of a thread that
/// decides claims.
const NICENESS: i32 = 5;
/// While claims are being decided, the relay pauses for this many times its working time, until the outbox is
/// half full. Claims get the CPUs and the disk, and larger commits make each row cheaper.
const PAUSE_FACTOR: u32 = 4;
/// Fixed cost of draining one campaign's outbox, which dominates with many small campaigns. This cost
/// lengthens the pause, so that more entries are read in one call.
const OUTBOX_COST: Duration = Duration::from_micros(100);
/// The longest pause after a commit, however long the commit took.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// A batch of at least this many events is part of a stampede. After smaller batches the relay pauses only
/// while SQL is less than [`LAG_MAX`] behind, because many small campaigns take turns.
const STAMPEDE_EVENTS: usize = 2048;
const LAG_MAX: Duration = Duration::from_secs(5);
/// The same after commits with codes, which winners can read only then.
const CODES_LAG_MAX: Duration = Duration::from_millis(250);
/// The interval at which a waiting relay checks its condition again.
const RECHECK: Duration = Duration::from_millis(5);
/// Timeout of entries that wait for another core to commit earlier entries.
const IN_ORDER_MAX: Duration = Duration::from_secs(1);
/// The time limit for closing the connections to SQL.
const CLOSE_MAX: Duration = Duration::from_secs(1);
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Moves events from the outboxes to SQL until core stops.
#[derive(Debug)]
pub struct OutboxRelay {
    redis: Arc<RedisStore>,
    sql: SqlStore,
    registry: Arc<CampaignRegistry>,
    /// Suspends campaigns whose claims SQL refuses.
    recovery: Arc<Recovery>,
    /// This core's consumer name, which shows operators which core reads. Cores with a copied data directory
    /// share the name; if both relay an event, it is written twice and counts once.
    consumer: String,
}

/// The reason why a campaign's outbox was not relayed.
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
    /// Returns the error code of Redis' reply, if any.
    fn code(&self) -> Option<&str> {
        match self {
            Self::Redis(RedisStoreError::Unavailable(error)) => error.code(),
            _ => None,
        }
    }
}

impl OutboxRelay {
    /// Creates a relay for the campaigns of `engine` with the consumer name `consumer`.
    pub fn new(engine: &Engine, consumer: String) -> Self {
        Self {
            redis: Arc::clone(&engine.stores.redis),
            sql: engine.stores.sql.clone(),
            registry: Arc::clone(&engine.registry),
            recovery: Arc::clone(&engine.recovery),
            consumer,
        }
    }

    /// Runs on a separate thread until `stop` turns true. This thread and SQLite's have a lower priority than
    /// the threads that decide claims: SQL catches up after a stampede, and the outbox is bounded in the
    /// meantime.
    pub fn spawn(self, stop: watch::Receiver<bool>) -> io::Result<thread::JoinHandle<()>> {
        let runtime = runtime::build(&mut Builder::new_current_thread())?;
        thread::Builder::new().name("relay".to_owned()).spawn(move || {
            if let Err(error) = rustix::process::nice(NICENESS) {
                tracing::warn!(%error, "cannot lower the priority of the relay's thread");
            }
            runtime.block_on(async move {
                // The store opens new connections on this thread.
                let sql = self.sql.reopen();
                Self { sql: sql.clone(), ..self }.run(stop).await;
                let _ = timeout(CLOSE_MAX, sql.close()).await;
            });
            // A DNS lookup that hangs must not keep the thread alive.
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

    /// Relays every campaign once, as after a start: entries that this core read and did not acknowledge,
    /// entries that another core read at least `idle` ago, and new ones.
    ///
    /// # Errors
    /// The first error of any campaign, after all campaigns have been processed.
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

#[derive(Debug)]
struct Relay<'a> {
    parts: &'a OutboxRelay,
    /// Age of a read from which entries that are still in the outbox are taken over.
    idle: Duration,
    commits: GroupCommit,
    /// The open read connections, one to each server. When a connection breaks, all are dropped.
    readers: Mutex<Vec<OutboxReader>>,
    /// Whether the relay pauses while claims are being decided.
    pauses: bool,
    /// The largest backlog of an outbox after a commit since the last pause.
    largest_backlog: AtomicU64,
    /// For campaigns that may have abandoned entries: the last delivered entry, and when this relay observed it.
    observed: Mutex<HashMap<CampaignId, (Instant, String)>>,
    /// The last entry of each batch that this relay has read but not acknowledged.
    in_flight: Mutex<HashMap<CampaignId, String>>,
}

/// The relay's state of one campaign.
#[derive(Debug)]
struct RelayState {
    backoff: Backoff,
    /// Whether all entries that were read have been relayed, except the entries of other live cores. False
    /// after a start or a failure.
    caught_up: bool,
    in_progress: bool,
    /// Whether another notice arrived while the campaign was being relayed.
    notified_again: bool,
}

impl Default for RelayState {
    fn default() -> Self {
        let backoff = Backoff::new(RETRY_MIN, RETRY_MAX);
        Self { backoff, caught_up: false, in_progress: false, notified_again: false }
    }
}

impl<'a> Relay<'a> {
    fn new(parts: &'a OutboxRelay, idle: Duration, pauses: bool) -> Self {
        let commits = GroupCommit::new(parts.sql.clone());
        let (readers, observed, in_flight) = (Mutex::default(), Mutex::default(), Mutex::default());
        let largest_backlog = AtomicU64::new(0);
        Self { parts, idle, commits, readers, pauses, largest_backlog, observed, in_flight }
    }

    /// Relays the outbox of each campaign for which a notice arrives.
    async fn work(&self) {
        let campaigns = &self.parts.registry;
        let mut states: HashMap<CampaignId, RelayState> = HashMap::new();
        let mut relaying = FuturesUnordered::new();
        // No notice arrives for entries that are already in the outboxes, so every campaign is relayed once
        // at the start.
        let mut notified: Vec<_> =
            campaigns.all().iter().map(|handle| handle.campaign().id.clone()).collect();
        loop {
            for id in notified.drain(..) {
                let Some(handle) = campaigns.get(&id) else { continue };
                let state = states.entry(id.clone()).or_default();
                state.notified_again = state.in_progress;
                if !std::mem::replace(&mut state.in_progress, true) {
                    campaigns.notices().relays_in_progress.begin(id);
                    relaying.push(self.relay(handle, state.caught_up, Duration::ZERO));
                }
            }
            tokio::select! {
                Some((handle, result)) = relaying.next() => {
                    let state = states.entry(handle.campaign().id.clone()).or_default();
                    if let Some(wait) = self.handle_result(&handle, state, result).await {
                        relaying.push(self.relay(handle, state.caught_up, wait));
                    } else {
                        state.in_progress = false;
                        campaigns.notices().relays_in_progress.end(&handle.campaign().id);
                        self.forget_evicted(&handle, &mut states);
                    }
                }
                () = campaigns.notices().outbox.arrived() => {}
            }
            notified = campaigns.notices().outbox.take();
        }
    }

    /// Drops the relay's state of a campaign that was evicted.
    fn forget_evicted(&self, handle: &CampaignHandle, states: &mut HashMap<CampaignId, RelayState>) {
        let campaign = handle.campaign();
        if campaign.evicted.is_some() {
            states.remove(&campaign.id);
            self.observed.lock().remove(&campaign.id);
        }
    }

    /// Handles the result of relaying a campaign. Returns the delay before the next try; `None` to wait for a
    /// notice.
    async fn handle_result(
        &self,
        handle: &CampaignHandle,
        state: &mut RelayState,
        result: Result<bool, RelayError>,
    ) -> Option<Duration> {
        let notified_again = std::mem::take(&mut state.notified_again);
        let error = match result {
            Ok(relayed) => {
                let caught_up = relayed || state.caught_up;
                *state = RelayState { caught_up, in_progress: true, ..RelayState::default() };
                return notified_again.then_some(Duration::ZERO);
            }
            Err(error) => error,
        };
        state.caught_up = false;
        let campaign = &handle.campaign().id;
        if state.backoff.is_fresh() {
            tracing::warn!(%error, %campaign, "not relayed to SQL; retrying");
        } else {
            tracing::debug!(%error, %campaign, "not relayed to SQL; retrying");
        }
        self.repair(handle, &error).await;
        Some(state.backoff.failed())
    }

    /// Repairs the cause of an error before the next try, if the error shows the cause.
    async fn repair(&self, handle: &CampaignHandle, error: &RelayError) {
        match error.code() {
            Some("NOGROUP") => self.restore_group(handle).await,
            // The connection may be broken, so the next try opens a new one.
            Some(_) => {
                self.drop_readers();
                handle.mark_not_ready(NotReadyReason::Damaged);
            }
            None if matches!(error, RelayError::Redis(_)) => self.drop_readers(),
            None => {}
        }
    }

    /// Recreates the lost consumer group of an outbox. If the outbox itself is lost, the campaign is marked
    /// as damaged.
    async fn restore_group(&self, handle: &CampaignHandle) {
        let campaign = handle.campaign();
        match self.parts.redis.restore_group(&handle.keys, campaign.epoch).await {
            Ok(()) => {
                tracing::error!(campaign = %campaign.id, "recreated the outbox's lost consumer group");
            }
            Err(_) => handle.mark_not_ready(NotReadyReason::Damaged),
        }
    }

    /// Waits for `wait`, then relays all entries of one campaign's outbox to SQL. Returns `false` if the
    /// campaign is not in Redis.
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
        let has_abandoned_entries = handle.begin_relay();
        // Another notice arrives once the campaign is ready.
        if !handle.is_in_redis() {
            return Ok(false);
        }
        let mut reader = self.reader(handle).await?;
        let (keys, from) = (&handle.keys, reader.generation());
        let id = &handle.campaign().id;
        let failed = self.in_flight.lock().get(id).cloned();
        let abandoned = if caught_up && !has_abandoned_entries {
            None
        } else {
            self.abandoned(id, reader.progress(keys).await?)
        };
        for last in failed.iter().chain(&abandoned) {
            while self.commit(handle, from, reader.read_delivered(keys, last).await?).await? > 0 {}
        }
        loop {
            self.in_flight.lock().remove(id);
            let batch = reader.read_new(keys).await?;
            if let Some(last) = batch.entries.last() {
                self.in_flight.lock().insert(id.clone(), last.id.clone());
            }
            if self.commit(handle, from, batch).await? < ENTRIES_MAX {
                self.in_flight.lock().remove(id);
                return Ok(true);
            }
            handle.begin_relay();
        }
    }

    /// Returns the last entry that a core has read and abandoned: no other core has been active for
    /// [`Self::idle`], or the entry was read at least [`Self::idle`] ago. `None` if there is no such entry.
    fn abandoned(&self, id: &CampaignId, progress: Progress) -> Option<String> {
        if progress.other_cores.is_none_or(|idle| idle >= self.idle) {
            return Some(progress.last);
        }
        let mut observed = self.observed.lock();
        let now = Instant::now();
        let (at, before) = observed.entry(id.clone()).or_insert_with(|| (now, progress.last.clone()));
        (now - *at >= self.idle).then(|| {
            *at = now;
            std::mem::replace(before, progress.last)
        })
    }

    /// Returns the read connection for a campaign's outbox, and opens one if necessary.
    async fn reader(&self, handle: &CampaignHandle) -> Result<OutboxReader, RedisStoreError> {
        let generation = self.parts.redis.session(handle.keys.slot).await?.generation();
        if let Some(reader) = self.readers.lock().iter().find(|reader| reader.generation() == generation) {
            return Ok(reader.clone());
        }
        let made = self.parts.redis.outbox_reader(handle.keys.slot, &self.parts.consumer).await?;
        let mut readers = self.readers.lock();
        readers.retain(OutboxReader::is_current);
        // The task of another campaign on the same server may have opened a connection in the meantime.
        if let Some(reader) = readers.iter().find(|reader| reader.generation() == made.generation()) {
            return Ok(reader.clone());
        }
        readers.push(made.clone());
        Ok(made)
    }

    fn drop_readers(&self) {
        self.readers.lock().clear();
    }

    /// Commits a batch to SQL and only then removes it from the outbox. The batch was read on a connection of
    /// the generation `from`, and is removed from the same server. Returns the number of entries.
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
        let mut turn = None;
        for run in batch.into_runs(handle.campaign().codes.is_some()) {
            drop(turn.take());
            turn = match self.commit_run(handle, from, Arc::new(run)).await {
                Err(RelayError::Commit(CommitError::Write(OutboxWriteError::Constraint(error)))) => {
                    return self.suspend_campaign(handle, &error).await;
                }
                committed => committed?,
            };
        }
        // Not between two runs: another core may wait for the second.
        if let Some(turn) = turn.filter(|_| self.pauses) {
            self.yield_to_claims(turn).await;
        }
        Ok(entries)
    }

    /// Commits entries without a gap, and removes them. Returns the writer's turn, if this call committed.
    async fn commit_run(
        &self,
        handle: &CampaignHandle,
        from: Generation,
        run: Arc<OutboxBatch>,
    ) -> Result<Option<WriterTurn<'_>>, RelayError> {
        let campaign = handle.campaign();
        let began = SystemTime::now();
        let Committed { turn, codes } = self.commit_in_order(handle, &run).await?;
        for entry in &run.entries {
            if let Some(trace) = &entry.trace {
                Trace::stored(trace, campaign.id.as_str(), entry.events.len(), began);
            }
        }
        self.parts.registry.notices().relayed.notify_one();
        let mut session = self.parts.redis.session_of(handle.keys.slot, from).await?;
        let left = self.parts.redis.acknowledge(&mut session, &handle.keys, &run.entries, &codes).await?;
        metrics::RELAYED.add(run.events() as u64);
        handle.record_backlog(left);
        self.largest_backlog.fetch_max(left, Ordering::Relaxed);
        Ok(turn)
    }

    /// Commits entries to SQL once SQL has all earlier events, which another core may be relaying. If those
    /// events do not arrive in time, SQL may have lost them, and the maintenance job checks this.
    async fn commit_in_order(
        &self,
        handle: &CampaignHandle,
        run: &Arc<OutboxBatch>,
    ) -> Result<Committed<'_>, CommitError> {
        let campaign = handle.campaign();
        // In tests, a schedule may block the other core for as long as this task waits.
        let wait = if step::is_scheduled() { Duration::ZERO } else { IN_ORDER_MAX };
        let until = Instant::now() + wait;
        loop {
            match self.commits.commit(&campaign.id, Arc::clone(run), campaign.codes.is_some()).await {
                Err(CommitError::Write(OutboxWriteError::OutOfOrder)) if Instant::now() < until => {
                    sleep(RECHECK).await;
                }
                Err(CommitError::Write(
                    error @ (OutboxWriteError::OutOfOrder | OutboxWriteError::NoCampaign),
                )) => {
                    handle.suspect_sql_loss();
                    return Err(error.into());
                }
                committed => return committed,
            }
        }
    }

    /// Pauses while claims are being decided, and keeps the writer's turn during the pause. SQL catches up after a
    /// stampede.
    async fn yield_to_claims(&self, turn: WriterTurn<'_>) {
        let lag_max = if turn.has_codes { CODES_LAG_MAX } else { LAG_MAX };
        let now = Instant::now();
        let worked = now - turn.began + OUTBOX_COST * turn.batches;
        let until = now + worked.saturating_mul(PAUSE_FACTOR).min(PAUSE_MAX);
        let may_pause = turn.events >= STAMPEDE_EVENTS || turn.age(clock::now()) < lag_max;
        while may_pause
            && self.largest_backlog.load(Ordering::Relaxed) < self.parts.redis.outbox_max() / 2
            && self.parts.registry.notices().decisions.is_recent()
            && Instant::now() < until
        {
            sleep(RECHECK).await;
        }
        self.largest_backlog.store(0, Ordering::Relaxed);
    }

    /// Moves a malformed entry from the outbox to the dead letters.
    async fn dead_letter(
        &self,
        handle: &CampaignHandle,
        from: Generation,
        id: &str,
    ) -> Result<(), RelayError> {
        let campaign = &handle.campaign().id;
        let mut session = self.parts.redis.session_of(handle.keys.slot, from).await?;
        let layout = OutboxLayout::Current;
        if self.parts.redis.dead_letter(&mut session, &handle.keys, layout, id).await? {
            tracing::error!(entry = id, %campaign, "a malformed outbox entry became a dead letter");
            metrics::DEAD_LETTERS.add(1);
        }
        Ok(())
    }

    /// Suspends a campaign, so that it is reloaded: if SQL refuses claims, they were granted by a Redis
    /// server that had lost data.
    async fn suspend_campaign(
        &self,
        handle: &CampaignHandle,
        error: &impl fmt::Display,
    ) -> Result<usize, RelayError> {
        tracing::error!(campaign = %handle.campaign().id, %error, "the database refuses claims; suspending the campaign");
        self.parts.recovery.suspend(handle).await?;
        Ok(0)
    }
}
