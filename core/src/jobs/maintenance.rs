//! Maintains campaigns. A campaign that is not ready gets its own task, with its own backoff; a few tasks run
//! concurrently. Idle campaigns are polled in surveys, each of which reads many campaigns in one pipeline.
//!
//! A survey finds pending work on idle campaigns: holds that fall due, entries that a dead core left in the
//! outbox, a pending eviction, and lost keys. This core's own decisions notify the maintenance job without
//! waiting for a survey.
//!
//! The number of campaigns read per second is fixed: a round through 10,000 campaigns takes five minutes. The
//! first round after a start or a new connection is quick. Urgent campaigns are read every second.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use claimgate_shared::{CampaignId, Timestamp};
use tokio::sync::watch;
use tokio::task::{self, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

use super::due_holds::DueHolds;
use super::{Backoff, ticks_every};
use crate::domain::counters::Generation;
use crate::domain::not_ready::NotReadyReason;
use crate::engine::campaign::handle::CampaignHandle;
use crate::engine::campaign::registry::CampaignRegistry;
use crate::engine::error::{RecoveryError, StoreError};
use crate::engine::lifecycle::recovery::{Recovered, Recovery};
use crate::engine::stores::Stores;
use crate::metrics;
use crate::store::redis::RedisStoreError;
use crate::store::redis::survey::CampaignSnapshot;

/// Interval between two surveys.
const TICK: Duration = Duration::from_millis(250);
/// Number of campaigns read in each tick of a regular round: 32 campaigns a second, which is 160 reads.
const PER_TICK: usize = 8;
/// Minimum number of campaigns read in each tick of a quick round. With many campaigns the number is higher,
/// so that the round ends within [`QUICK_TICKS_MAX`] ticks, which is 10 s.
const QUICK_PER_TICK_MIN: usize = 50;
const QUICK_TICKS_MAX: usize = 40;
/// Number of ticks between two reads of the urgent campaigns.
const TICKS_PER_SECOND: u64 = 4;
/// Maximum number of urgent campaigns in one survey.
const URGENT_MAX: usize = 1000;
/// Minimum age of a campaign's work in the relay that counts as stuck, because SQL is lagging.
const STUCK: Duration = Duration::from_secs(1);
/// Age from which an outbox's oldest entry may have been read by a core that died.
const ABANDONED_AGE: Duration = Duration::from_secs(5);
/// Maximum number of campaigns worked on concurrently. Most of this work waits for replicas and commits, which
/// several tasks share. Loads have a lower limit.
const WORK_MAX: usize = 16;
/// Maximum number of concurrent sweeps.
const SWEEPS_MAX: usize = 8;
/// The time limit of one try to make a campaign ready. Loading a million claims takes 15 s.
const WORK_TIME_MAX: Duration = Duration::from_secs(600);
/// The time limit of one sweep, which expires a campaign's due holds. The next sweep continues with the rest.
const SWEEP_TIME_MAX: Duration = Duration::from_secs(5);
/// The minimum time between two tries to evict the same campaign.
const EVICT_PAUSE: Duration = Duration::from_secs(5);
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// Maintains all campaigns of this core.
#[derive(Debug)]
pub struct Maintenance {
    recovery: Arc<Recovery>,
    /// Campaigns in maintenance: each campaign is being worked on, queued, or backing off.
    campaigns: HashMap<CampaignId, MaintainedCampaign>,
    queue: VecDeque<CampaignId>,
    backing_off: BTreeSet<(Instant, CampaignId)>,
    work: JoinSet<Result<Recovered, MaintenanceError>>,
    campaign_of_task: HashMap<task::Id, CampaignId>,
    holds: DueHolds,
    sweeps: JoinSet<(CampaignId, Result<(), MaintenanceError>)>,
    /// Campaigns still to be read in this round.
    round: Vec<Arc<CampaignHandle>>,
    per_tick: usize,
    /// Whether this round is quick, and whether the next round is.
    is_quick: bool,
    quick_next: bool,
    /// The newest run of a Redis server in any snapshot.
    newest: Generation,
    /// Urgent campaigns still to be read, ahead of the round.
    urgent: Vec<CampaignId>,
    /// The survey in progress, one at a time. A server that does not answer delays only the next survey.
    survey: JoinSet<Survey>,
    /// Whether the last survey failed.
    survey_failed: bool,
    /// Campaigns with outbox entries, and the time at which the oldest was written.
    lagging: HashMap<CampaignId, Timestamp>,
    /// Campaigns with an empty outbox although some of their events were never acknowledged.
    deleted: HashMap<CampaignId, DeletedEvents>,
    /// The earliest time of the next try to evict each campaign whose eviction was tried.
    eviction_retry_at: HashMap<CampaignId, Instant>,
}

/// The campaigns of a survey, and a snapshot of each in the same order.
type Survey = (Vec<Arc<CampaignHandle>>, Result<Vec<Option<CampaignSnapshot>>, RedisStoreError>);

/// A campaign in maintenance.
#[derive(Debug)]
struct MaintainedCampaign {
    backoff: Backoff,
    /// The reason of the last failure that was logged.
    last_logged: String,
}

impl Default for MaintainedCampaign {
    fn default() -> Self {
        Self { backoff: Backoff::new(BACKOFF_MIN, BACKOFF_MAX), last_logged: String::new() }
    }
}

impl MaintainedCampaign {
    /// Logs that work on the campaign failed. The log level is a warning only if the reason has changed.
    fn log_failed(&mut self, id: &CampaignId, error: &MaintenanceError) {
        let why = error.to_string();
        if why == self.last_logged {
            tracing::debug!(campaign = %id, why, "still not ready");
        } else {
            tracing::warn!(campaign = %id, why, "cannot be made ready yet; retrying");
            self.last_logged = why;
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum MaintenanceError {
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
    #[error("timed out")]
    Slow,
    #[error("its task failed: {0}")]
    TaskFailed(JoinError),
}

/// Events that were never acknowledged but are no longer in the outbox.
#[derive(Debug, Default)]
struct DeletedEvents {
    /// The backlog and the sum of revisions in the last snapshot with an empty outbox.
    last: (u64, u64),
    /// The number of events reported so far.
    reported: u64,
}

impl DeletedEvents {
    /// Returns true if the next snapshot may confirm events that are not reported yet.
    fn needs_confirmation(&self) -> bool {
        self.last.0 > self.reported
    }
}

impl Maintenance {
    /// Creates the maintenance job for all campaigns of `recovery`.
    pub fn new(recovery: Arc<Recovery>) -> Self {
        Self {
            recovery,
            campaigns: HashMap::new(),
            queue: VecDeque::new(),
            backing_off: BTreeSet::new(),
            work: JoinSet::new(),
            campaign_of_task: HashMap::new(),
            holds: DueHolds::default(),
            sweeps: JoinSet::new(),
            round: Vec::new(),
            per_tick: 0,
            is_quick: false,
            quick_next: true,
            newest: Generation::default(),
            urgent: Vec::new(),
            survey: JoinSet::new(),
            survey_failed: false,
            lagging: HashMap::new(),
            deleted: HashMap::new(),
            eviction_retry_at: HashMap::new(),
        }
    }

    /// Maintains all campaigns until `stop` turns true. Work in progress is then dropped, which is safe at
    /// any point.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        tokio::select! {
            () = self.maintain_all() => {}
            _ = stop.wait_for(|stop| *stop) => {}
        }
    }

    async fn maintain_all(&mut self) {
        let campaigns = Arc::clone(&self.recovery.registry);
        let notices = campaigns.notices();
        let redis = Arc::clone(&self.recovery.stores.redis);
        let mut ticks = ticks_every(TICK);
        let mut tick = 0;
        loop {
            for id in notices.maintenance.take() {
                self.admit(id);
            }
            for id in notices.requested.take() {
                self.prefer(id);
            }
            for id in notices.holds.take() {
                self.expect_hold(id);
            }
            self.begin_work();
            self.begin_sweeps();
            tokio::select! {
                _ = ticks.tick(), if self.survey.is_empty() => {
                    tick += 1;
                    self.begin_survey(tick);
                }
                Some(done) = self.survey.join_next() => self.finish_survey(done),
                () = notices.maintenance.arrived() => {}
                () = notices.requested.arrived() => {}
                () = redis.wait_until_usable() => self.wake_all(),
                () = notices.holds.arrived() => {}
                () = until(self.backing_off.first().map(|(at, _)| *at)) => {}
                () = until(self.holds.first()), if self.sweeps.len() < SWEEPS_MAX => {}
                Some(done) = self.work.join_next_with_id() => self.finish_work(done),
                Some(done) = self.sweeps.join_next() => self.finish_sweep(done.ok()),
            }
        }
    }

    fn registry(&self) -> &CampaignRegistry {
        &self.recovery.registry
    }

    /// Puts a campaign into maintenance, unless it is there already.
    fn admit(&mut self, id: CampaignId) {
        if !self.campaigns.contains_key(&id) {
            self.campaigns.insert(id.clone(), MaintainedCampaign::default());
            self.queue.push_back(id);
        }
    }

    /// Moves a campaign that a caller has requested to the front of the queue.
    fn prefer(&mut self, id: CampaignId) {
        self.admit(id.clone());
        if let Some(index) = self.queue.iter().position(|queued| *queued == id) {
            self.queue.remove(index);
            self.queue.push_front(id);
        }
    }

    /// Ends all backoffs: Redis is usable again, so failed work may succeed now.
    fn wake_all(&mut self) {
        for (_, id) in std::mem::take(&mut self.backing_off) {
            if let Some(state) = self.campaigns.get_mut(&id) {
                state.backoff = Backoff::new(BACKOFF_MIN, BACKOFF_MAX);
            }
            self.queue.push_back(id);
        }
    }

    /// Starts work on queued campaigns, up to the limit. Campaigns whose backoff is over join the queue
    /// first.
    fn begin_work(&mut self) {
        let now = Instant::now();
        while self.backing_off.first().is_some_and(|(at, _)| *at <= now) {
            self.queue.extend(self.backing_off.pop_first().map(|(_, id)| id));
        }
        while self.work.len() < WORK_MAX
            && let Some(id) = self.queue.pop_front()
        {
            let Some(handle) = self.registry().get(&id) else {
                self.campaigns.remove(&id);
                continue;
            };
            let recovery = Arc::clone(&self.recovery);
            let task = self.work.spawn(async move {
                let worked = timeout(WORK_TIME_MAX, recovery.maintain(&handle)).await;
                worked.map_or(Err(MaintenanceError::Slow), |result| result.map_err(MaintenanceError::from))
            });
            self.campaign_of_task.insert(task.id(), id);
        }
    }

    /// Handles the result of the work on a campaign. Failed work is retried after a backoff.
    fn finish_work(&mut self, done: Result<(task::Id, Result<Recovered, MaintenanceError>), JoinError>) {
        let (task, result) = match done {
            Ok(done) => done,
            Err(error) => (error.id(), Err(MaintenanceError::TaskFailed(error))),
        };
        let Some(id) = self.campaign_of_task.remove(&task) else { return };
        let Some(handle) = self.registry().get(&id) else {
            self.campaigns.remove(&id);
            return;
        };
        if let (Err(error), Some(state)) = (&result, self.campaigns.get_mut(&id)) {
            state.log_failed(&id, error);
        }
        if matches!(result, Ok(Recovered::Ready | Recovered::Loaded(_) | Recovered::Adopted)) {
            handle.maintenance_done();
            // A call that found the campaign not ready before `maintenance_done` did not send another notice.
            if handle.is_ready() || handle.campaign().evicted.is_some() {
                self.campaigns.remove(&id);
                return;
            }
        }
        if let Some(state) = self.campaigns.get_mut(&id) {
            self.backing_off.insert((Instant::now() + state.backoff.failed(), id));
        }
    }

    fn expect_hold(&mut self, id: CampaignId) {
        let left = self.registry().get(&id).and_then(|handle| handle.next_hold());
        if let Some(left) = left {
            self.holds.expect(id, Instant::now() + left);
        }
    }

    /// Starts to expire due holds. The claim script expires them before each claim, so sweeps are for idle
    /// campaigns.
    fn begin_sweeps(&mut self) {
        while self.sweeps.len() < SWEEPS_MAX
            && let Some(id) = self.holds.take_due(Instant::now())
        {
            let Some(handle) = self.registry().get(&id) else { continue };
            handle.begin_sweep();
            if !handle.is_in_redis() {
                continue;
            }
            let recovery = Arc::clone(&self.recovery);
            self.sweeps.spawn(async move {
                let swept = timeout(SWEEP_TIME_MAX, sweep(&recovery.stores, &handle)).await;
                (
                    id,
                    swept.map_or(Err(MaintenanceError::Slow), |result| {
                        result.map_err(|error| MaintenanceError::Recovery(error.into()))
                    }),
                )
            });
        }
    }

    /// Handles the result of a sweep, and schedules the next one if more holds will fall due.
    fn finish_sweep(&mut self, done: Option<(CampaignId, Result<(), MaintenanceError>)>) {
        match done {
            Some((id, Ok(()))) => self.expect_hold(id),
            Some((id, Err(error))) => tracing::debug!(%error, campaign = %id, "cannot expire due holds yet"),
            None => {}
        }
    }

    /// Starts a survey of the next campaigns of the round and, every second, of urgent ones.
    fn begin_survey(&mut self, tick: u64) {
        if self.round.is_empty() {
            self.begin_round();
        }
        let rest = self.round.len().saturating_sub(self.per_tick);
        let mut campaigns = self.round.split_off(rest);
        let is_second = tick.is_multiple_of(TICKS_PER_SECOND);
        let mut urgent = if is_second { self.next_urgent() } else { Vec::new() };
        let recovery = Arc::clone(&self.recovery);
        self.survey.spawn(async move {
            if is_second {
                urgent.extend(requested_checks(&recovery).await);
            }
            let mut included: HashSet<_> =
                campaigns.iter().map(|handle| handle.campaign().id.clone()).collect();
            urgent.retain(|id| included.insert(id.clone()));
            campaigns.extend(urgent.iter().filter_map(|id| recovery.registry.get(id)));
            campaigns.retain(|handle| handle.campaign().evicted.is_none());
            let rules: Vec<_> = campaigns.iter().map(|handle| handle.campaign()).collect();
            // The targets are read before the survey, so Redis can only be ahead of them.
            let targets: Vec<_> =
                campaigns.iter().zip(&rules).map(|(handle, campaign)| handle.target(campaign)).collect();
            let snapshots = recovery.stores.redis.survey(&targets).await;
            (campaigns, snapshots)
        });
    }

    fn begin_round(&mut self) {
        self.round = self.registry().all();
        self.round.retain(|handle| handle.campaign().evicted.is_none());
        self.is_quick = std::mem::take(&mut self.quick_next);
        self.per_tick = if self.is_quick {
            QUICK_PER_TICK_MIN.max(self.round.len().div_ceil(QUICK_TICKS_MAX))
        } else {
            PER_TICK
        };
    }

    /// Schedules a quick round. It begins now, or after the quick round in progress.
    fn schedule_quick_round(&mut self) {
        self.quick_next = true;
        if !self.is_quick {
            self.round.clear();
        }
    }

    /// Returns the next urgent campaigns, which have events that SQL lacks, or deleted outbox entries. Each
    /// call returns all urgent campaigns, up to [`URGENT_MAX`].
    fn next_urgent(&mut self) -> Vec<CampaignId> {
        if self.urgent.is_empty() {
            let registry = &self.recovery.registry;
            let handle = |id: &CampaignId| registry.get(id);
            // Entries may be pending even if their campaign is not ready.
            self.lagging.retain(|id, _| handle(id).is_some_and(|handle| handle.campaign().evicted.is_none()));
            self.deleted.retain(|id, _| handle(id).is_some_and(|handle| handle.is_in_redis()));
            let stuck = registry.notices().relays_in_progress.stuck(STUCK);
            let deleted = self.deleted.iter().filter(|(_, deleted)| deleted.needs_confirmation());
            let known = self.lagging.keys().chain(deleted.map(|(id, _)| id)).cloned();
            self.urgent = stuck.into_iter().chain(known).collect();
        }
        self.urgent.split_off(self.urgent.len().saturating_sub(URGENT_MAX))
    }

    /// Handles the result of a survey.
    fn finish_survey(&mut self, done: Result<Survey, JoinError>) {
        let (campaigns, snapshots) = match done {
            Ok(survey) => survey,
            Err(error) => return tracing::error!(%error, "a survey of idle campaigns failed"),
        };
        self.log_failed_survey(&snapshots);
        let snapshots = snapshots.unwrap_or_default();
        for (handle, snapshot) in campaigns.iter().zip(&snapshots) {
            if let Some(snapshot) = snapshot {
                self.handle_snapshot(handle, snapshot);
            }
        }
        if let Some(now) = snapshots.iter().flatten().map(|snapshot| snapshot.now).max() {
            self.record_lag(now);
        }
    }

    /// Logs that surveys fail, once until a survey succeeds.
    fn log_failed_survey<T>(&mut self, snapshots: &Result<T, RedisStoreError>) {
        if let Err(error) = snapshots
            && !self.survey_failed
        {
            tracing::warn!(%error, "cannot survey idle campaigns");
        }
        self.survey_failed = snapshots.is_err();
    }

    /// Handles one campaign's snapshot: records it, and notifies the jobs that have work to do.
    fn handle_snapshot(&mut self, handle: &Arc<CampaignHandle>, snapshot: &CampaignSnapshot) {
        let id = &handle.campaign().id;
        // The server was restarted or replaced, so it may have lost data. If one campaign is damaged, other
        // campaigns may be damaged as well.
        let is_other = snapshot.run > self.newest && self.newest != Generation::default();
        if is_other || !snapshot.ready && handle.is_ready() {
            self.schedule_quick_round();
        }
        self.newest = self.newest.max(snapshot.run);
        match snapshot.oldest {
            Some(oldest) => drop(self.lagging.insert(id.clone(), oldest)),
            None => drop(self.lagging.remove(id)),
        }
        if !snapshot.ready {
            handle.mark_not_ready(NotReadyReason::Damaged);
            return;
        }
        // Each campaign is synchronized once on each run of its server, even without callers.
        if handle.synced_run() != snapshot.run || !handle.is_ready() {
            handle.notify_maintenance();
        }
        handle.record_backlog(snapshot.backlog);
        self.report_deleted(handle, snapshot);
        match snapshot.oldest {
            Some(oldest) if age(oldest, snapshot.now) > ABANDONED_AGE => handle.notify_relay_of_abandoned(),
            Some(_) => handle.notify_relay(),
            None => {}
        }
        match snapshot.next_hold {
            Some(due) => handle.hold_due_in(age(snapshot.now, due)),
            None => self.try_evict(handle, snapshot, snapshot.now),
        }
    }

    /// Reports outbox entries that were deleted without being relayed, once. The evidence is an empty outbox
    /// with unacknowledged events in two snapshots, with no decision in between. In a single snapshot, the
    /// acknowledgement may be in progress.
    fn report_deleted(&mut self, handle: &CampaignHandle, snapshot: &CampaignSnapshot) {
        let campaign = handle.campaign();
        let id = &campaign.id;
        if snapshot.backlog == 0 {
            self.deleted.remove(id);
        } else if snapshot.oldest.is_none() {
            let counts = (snapshot.backlog, snapshot.revisions);
            let DeletedEvents { last, reported } = self.deleted.entry(id.clone()).or_default();
            if std::mem::replace(last, counts) == counts && snapshot.backlog > *reported {
                let events = snapshot.backlog - std::mem::replace(reported, snapshot.backlog);
                tracing::error!(campaign = %id, events,
                    "outbox entries were deleted before SQL had them: run `claimgate reconcile {id} --repair`");
                metrics::DELETED.add(handle.counted_losses.add_deleted(campaign.epoch, snapshot.backlog));
            }
        }
    }

    /// Requests the eviction of a campaign that ended long ago, has no holds, and is relayed completely.
    fn try_evict(&mut self, handle: &CampaignHandle, snapshot: &CampaignSnapshot, now: Timestamp) {
        let after_ms = i64::try_from(self.recovery.archive_after.as_millis()).unwrap_or(i64::MAX);
        let campaign = handle.campaign();
        let is_due = campaign.ended_at(now).is_some_and(|at| at.saturating_add_ms(after_ms) <= now);
        if !is_due || snapshot.backlog > 0 || snapshot.oldest.is_some() {
            return;
        }
        let at = Instant::now();
        self.eviction_retry_at.retain(|_, until| *until > at);
        if !self.eviction_retry_at.contains_key(&campaign.id) {
            self.eviction_retry_at.insert(campaign.id.clone(), at + EVICT_PAUSE);
            handle.notify_maintenance();
        }
    }

    /// Records the age of the oldest entry of all outboxes, by Redis' clock. It rises while no core relays.
    fn record_lag(&self, now: Timestamp) {
        let oldest = self.lagging.values().min();
        self.registry().notices().oldest_entry.record(oldest.map(|oldest| age(*oldest, now)));
    }
}

/// Returns the time from `before` to `after`; zero if `after` is earlier.
fn age(before: Timestamp, after: Timestamp) -> Duration {
    Duration::from_millis(u64::try_from(after.as_ms() - before.as_ms()).unwrap_or(0))
}

/// Returns the campaigns for which another process has requested a check.
async fn requested_checks(recovery: &Recovery) -> Vec<CampaignId> {
    let wanted = recovery.stores.redis.requested_checks().await.unwrap_or_else(|error| {
        tracing::debug!(%error, "cannot read the requested checks");
        Vec::new()
    });
    wanted.iter().filter_map(|id| id.parse().ok()).collect()
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Expires all due holds of a campaign, and records the due time of its next hold.
async fn sweep(stores: &Stores, handle: &CampaignHandle) -> Result<(), StoreError> {
    stores.sweep(handle).await?;
    let campaign = handle.campaign();
    let snapshots = stores.redis.survey(&[handle.target(&campaign)]).await?;
    if let Some(snapshot) = snapshots.into_iter().flatten().next()
        && let Some(due) = snapshot.next_hold
    {
        handle.hold_due_in(age(snapshot.now, due));
    }
    Ok(())
}
