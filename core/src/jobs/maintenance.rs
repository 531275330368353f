//! Maintains campaigns: one task for each that is not ready, a few at once, each with a back-off of its own; and for
//! those at rest a periodic look, many in one pipeline of reads.
//!
//! The look finds what a campaign at rest may need: holds that fall due, entries that a dead core has left in the outbox,
//! the end of its time in Redis, keys that are gone. This core's own decisions notify the maintenance sooner.
//!
//! Looks are few each second, however many campaigns there are: a round through 10,000 takes five minutes. The first round
//! after a start, or after a new connection, is quick; and campaigns of which something is known that may not wait are looked
//! at each second.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use claimgate_shared::{CampaignId, Timestamp};
use tokio::sync::watch;
use tokio::task::{self, JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use super::Backoff;
use super::due_holds::DueHolds;
use crate::domain::counters::Generation;
use crate::domain::not_ready::NotReadyReason;
use crate::engine::handle::CampaignHandle;
use crate::engine::recovery::{Recovered, Recovery, RecoveryError};
use crate::engine::registry::CampaignRegistry;
use crate::engine::sync::{CampaignSync, SyncError};
use crate::metrics;
use crate::store::redis::RedisStoreError;
use crate::store::redis::survey::Look;

/// How often some campaigns are looked at.
const TICK: Duration = Duration::from_millis(250);
/// Campaigns looked at in each tick: 32 a second, which is 160 reads.
const LOOKS: usize = 8;
/// The same in a quick round: at least so many, and more when it would otherwise take more than [`TICKS_MAX`] ticks, 10 s.
const QUICK_LOOKS: usize = 50;
const TICKS_MAX: usize = 40;
/// Campaigns that may not wait for their turn are looked at once in this number of ticks, each second.
const TICKS_A_SECOND: u64 = 4;
/// The most of these at once.
const URGENT_MAX: usize = 1000;
/// From then on the relay is not just at work on a campaign: SQL lags behind.
const STUCK: Duration = Duration::from_secs(1);
/// The age from which on the oldest entry of an outbox may have been read by a core that went away.
const LEFTOVER_AGE: Duration = Duration::from_secs(5);
/// Campaigns worked on at once: what they wait for is mostly replicas and commits, which many can share. Loads are fewer.
const WORK_MAX: usize = 16;
/// Campaigns swept at once.
const SWEEPS_MAX: usize = 8;
/// The longest that one campaign may be worked on before it is left to the next try: a load takes 15 s for a million claims.
const WORK_TIME_MAX: Duration = Duration::from_secs(600);
/// The longest that giving back one campaign's due holds may take; the next sweep goes on with it.
const SWEEP_TIME_MAX: Duration = Duration::from_secs(5);
/// How often the eviction of a campaign that is over is tried.
const LEAVE_PAUSE: Duration = Duration::from_secs(5);
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Maintains all campaigns of this core.
#[derive(Debug)]
pub struct Maintenance {
    recovery: Arc<Recovery>,
    /// Campaigns in maintenance: those being worked on, waiting for a place, or in their back-off.
    patients: HashMap<CampaignId, Patient>,
    waiting: VecDeque<CampaignId>,
    resting: BTreeSet<(Instant, CampaignId)>,
    work: JoinSet<Result<Recovered, WorkError>>,
    at_work: HashMap<task::Id, CampaignId>,
    holds: DueHolds,
    sweeps: JoinSet<(CampaignId, Result<(), WorkError>)>,
    /// Campaigns yet to be looked at in this round.
    round: Vec<Arc<CampaignHandle>>,
    looks_a_tick: usize,
    /// Whether this round is a quick one, and the next.
    is_quick: bool,
    quick_next: bool,
    /// The newest connection seen.
    newest: Generation,
    /// Campaigns yet to be looked at out of turn.
    urgent: Vec<CampaignId>,
    /// The look in progress, one at a time: a server that is silent holds up the next one, but nothing else.
    looks: JoinSet<Looked>,
    /// Whether the last look failed.
    blind: bool,
    /// Campaigns whose outbox has entries, and when the oldest was written.
    lagging: HashMap<CampaignId, Timestamp>,
    /// Campaigns with an empty outbox though some of their events were never acknowledged.
    deleted: HashMap<CampaignId, Deleted>,
    /// Campaigns whose eviction was tried, and until when it is not tried again.
    leaving: HashMap<CampaignId, Instant>,
}

/// Campaigns, and what a look at them showed, in their order.
type Looked = (Vec<Arc<CampaignHandle>>, Result<Vec<Option<Look>>, RedisStoreError>);

/// A campaign in maintenance.
#[derive(Debug)]
struct Patient {
    backoff: Backoff,
    /// What was last logged: why work on it failed.
    told: String,
}

impl Default for Patient {
    fn default() -> Self {
        Self { backoff: Backoff::new(PAUSE_MIN, PAUSE_MAX), told: String::new() }
    }
}

impl Patient {
    /// Logs that work on the campaign has failed: once as long as the reason stays the same.
    fn log_failed(&mut self, id: &CampaignId, error: &WorkError) {
        let why = error.to_string();
        if why == self.told {
            tracing::debug!(campaign = %id, why, "still not ready");
        } else {
            tracing::warn!(campaign = %id, why, "cannot be made ready yet; trying again");
            self.told = why;
        }
    }
}

/// Why work on a campaign failed.
#[derive(Debug, thiserror::Error)]
enum WorkError {
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
    #[error(transparent)]
    Sync(#[from] SyncError),
    #[error("not done in time")]
    Slow,
    #[error("its task broke off: {0}")]
    Broken(JoinError),
}

/// Events that are in no outbox and were never acknowledged.
#[derive(Debug, Default)]
struct Deleted {
    /// The backlog and the sum of revisions when the outbox was last seen empty.
    last: (u64, u64),
    /// How many were told.
    told: u64,
}

impl Deleted {
    /// Whether the next look may show that there are more than were told.
    fn is_untold(&self) -> bool {
        self.last.0 > self.told
    }
}

impl Maintenance {
    /// The maintenance of the campaigns of `recovery`.
    pub fn new(recovery: Arc<Recovery>) -> Self {
        Self {
            recovery,
            patients: HashMap::new(),
            waiting: VecDeque::new(),
            resting: BTreeSet::new(),
            work: JoinSet::new(),
            at_work: HashMap::new(),
            holds: DueHolds::default(),
            sweeps: JoinSet::new(),
            round: Vec::new(),
            looks_a_tick: 0,
            is_quick: false,
            quick_next: true,
            newest: Generation::default(),
            urgent: Vec::new(),
            looks: JoinSet::new(),
            blind: false,
            lagging: HashMap::new(),
            deleted: HashMap::new(),
            leaving: HashMap::new(),
        }
    }

    /// Maintains all campaigns until `stop` turns true. Work in progress is then abandoned: it may stop anywhere.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        tokio::select! {
            () = self.maintain_all() => {}
            _ = stop.wait_for(|stop| *stop) => {}
        }
    }

    async fn maintain_all(&mut self) {
        let campaigns = Arc::clone(&self.recovery.registry);
        let notices = campaigns.notices();
        let redis = Arc::clone(&self.recovery.sync.redis);
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut tick = 0;
        loop {
            for id in notices.maintenance.take() {
                self.admit(id);
            }
            for id in notices.asked_for.take() {
                self.prefer(id);
            }
            for id in notices.holds.take() {
                self.expect_hold(id);
            }
            self.begin_work();
            self.begin_sweeps();
            tokio::select! {
                _ = ticks.tick(), if self.looks.is_empty() => {
                    tick += 1;
                    self.begin_look(tick);
                }
                Some(looked) = self.looks.join_next() => self.looked(looked),
                () = notices.maintenance.arrived() => {}
                () = notices.asked_for.arrived() => {}
                () = redis.usable() => self.wake_all(),
                () = notices.holds.arrived() => {}
                () = until(self.resting.first().map(|(at, _)| *at)) => {}
                () = until(self.holds.first()), if self.sweeps.len() < SWEEPS_MAX => {}
                Some(done) = self.work.join_next_with_id() => self.discharge(done),
                Some(done) = self.sweeps.join_next() => self.swept(done.ok()),
            }
        }
    }

    fn registry(&self) -> &CampaignRegistry {
        &self.recovery.registry
    }

    /// Adds a campaign to those in maintenance, unless it is one already.
    fn admit(&mut self, id: CampaignId) {
        if !self.patients.contains_key(&id) {
            self.patients.insert(id.clone(), Patient::default());
            self.waiting.push_back(id);
        }
    }

    /// Lets a campaign that a caller has asked for go before others that wait.
    fn prefer(&mut self, id: CampaignId) {
        self.admit(id.clone());
        if let Some(place) = self.waiting.iter().position(|waiting| *waiting == id) {
            self.waiting.remove(place);
            self.waiting.push_front(id);
        }
    }

    /// Ends all back-offs: what was tried in vain may succeed now.
    fn wake_all(&mut self) {
        for (_, id) in std::mem::take(&mut self.resting) {
            if let Some(patient) = self.patients.get_mut(&id) {
                patient.backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
            }
            self.waiting.push_back(id);
        }
    }

    /// Gives free places to campaigns that wait, and to those whose back-off is over.
    fn begin_work(&mut self) {
        let now = Instant::now();
        while self.resting.first().is_some_and(|(at, _)| *at <= now) {
            self.waiting.extend(self.resting.pop_first().map(|(_, id)| id));
        }
        while self.work.len() < WORK_MAX
            && let Some(id) = self.waiting.pop_front()
        {
            let Some(handle) = self.registry().get(&id) else {
                self.patients.remove(&id);
                continue;
            };
            let recovery = Arc::clone(&self.recovery);
            let task = self.work.spawn(async move {
                let worked = timeout(WORK_TIME_MAX, recovery.maintain(&handle)).await;
                worked.map_or(Err(WorkError::Slow), |result| result.map_err(WorkError::from))
            });
            self.at_work.insert(task.id(), id);
        }
    }

    /// Handles the end of the work on a campaign: it is done, or tried again after a back-off.
    fn discharge(&mut self, done: Result<(task::Id, Result<Recovered, WorkError>), JoinError>) {
        let (task, result) = match done {
            Ok(done) => done,
            Err(error) => (error.id(), Err(WorkError::Broken(error))),
        };
        let Some(id) = self.at_work.remove(&task) else { return };
        let Some(handle) = self.registry().get(&id) else {
            self.patients.remove(&id);
            return;
        };
        if let (Err(error), Some(patient)) = (&result, self.patients.get_mut(&id)) {
            patient.log_failed(&id, error);
        }
        if matches!(result, Ok(Recovered::Ready | Recovered::Loaded(_) | Recovered::Adopted)) {
            handle.maintained();
            // A call that found it not ready before `maintained` has sent no notice.
            if handle.is_ready() || handle.campaign().evicted.is_some() {
                self.patients.remove(&id);
                return;
            }
        }
        if let Some(patient) = self.patients.get_mut(&id) {
            self.resting.insert((Instant::now() + patient.backoff.failed(), id));
        }
    }

    fn expect_hold(&mut self, id: CampaignId) {
        let left = self.registry().get(&id).and_then(|handle| handle.next_hold());
        if let Some(left) = left {
            self.holds.expect(id, Instant::now() + left);
        }
    }

    /// Gives back the holds that are due. The script does so before each claim; this is for campaigns at rest.
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
                let swept = timeout(SWEEP_TIME_MAX, sweep(&recovery.sync, &handle)).await;
                (id, swept.map_or(Err(WorkError::Slow), |result| result.map_err(WorkError::from)))
            });
        }
    }

    /// Handles the end of a sweep: the next look shows whether more is due.
    fn swept(&mut self, done: Option<(CampaignId, Result<(), WorkError>)>) {
        match done {
            Some((id, Ok(()))) => self.expect_hold(id),
            Some((id, Err(error))) => tracing::debug!(%error, campaign = %id, "holds are not given back yet"),
            None => {}
        }
    }

    /// Begins to look at the next campaigns of the round, and each second at those that may not wait for their turn.
    fn begin_look(&mut self, tick: u64) {
        if self.round.is_empty() {
            self.begin_round();
        }
        let rest = self.round.len().saturating_sub(self.looks_a_tick);
        let mut campaigns = self.round.split_off(rest);
        let is_second = tick.is_multiple_of(TICKS_A_SECOND);
        let mut urgent = if is_second { self.next_urgent() } else { Vec::new() };
        let recovery = Arc::clone(&self.recovery);
        self.looks.spawn(async move {
            if is_second {
                urgent.extend(looks_wanted(&recovery).await);
            }
            let mut looked_at: HashSet<_> =
                campaigns.iter().map(|handle| handle.campaign().id.clone()).collect();
            urgent.retain(|id| looked_at.insert(id.clone()));
            campaigns.extend(urgent.iter().filter_map(|id| recovery.registry.get(id)));
            campaigns.retain(|handle| handle.campaign().evicted.is_none());
            let rules: Vec<_> = campaigns.iter().map(|handle| handle.campaign()).collect();
            // Read before Redis is asked: Redis may have come further by then, never less far.
            let targets: Vec<_> =
                campaigns.iter().zip(&rules).map(|(handle, campaign)| handle.target(campaign)).collect();
            let looks = recovery.sync.redis.survey(&targets).await;
            (campaigns, looks)
        });
    }

    fn begin_round(&mut self) {
        self.round = self.registry().all();
        self.round.retain(|handle| handle.campaign().evicted.is_none());
        self.is_quick = std::mem::take(&mut self.quick_next);
        self.looks_a_tick =
            if self.is_quick { QUICK_LOOKS.max(self.round.len().div_ceil(TICKS_MAX)) } else { LOOKS };
    }

    /// Looks at all campaigns soon: in a quick round that begins now, or after the one in progress.
    fn hurry(&mut self) {
        self.quick_next = true;
        if !self.is_quick {
            self.round.clear();
        }
    }

    /// The next campaigns that may not wait for their turn: SQL lacks something of them, or their outbox lacks entries. All of
    /// them each second, unless they are many.
    fn next_urgent(&mut self) -> Vec<CampaignId> {
        if self.urgent.is_empty() {
            let registry = &self.recovery.registry;
            let handle = |id: &CampaignId| registry.get(id);
            // What waits for SQL does so whether its campaign is ready or not.
            self.lagging.retain(|id, _| handle(id).is_some_and(|handle| handle.campaign().evicted.is_none()));
            self.deleted.retain(|id, _| handle(id).is_some_and(|handle| handle.is_in_redis()));
            let stuck = registry.notices().at_relay.stuck(STUCK);
            let deleted = self.deleted.iter().filter(|(_, deleted)| deleted.is_untold());
            let known = self.lagging.keys().chain(deleted.map(|(id, _)| id)).cloned();
            self.urgent = stuck.into_iter().chain(known).collect();
        }
        self.urgent.split_off(self.urgent.len().saturating_sub(URGENT_MAX))
    }

    /// Handles the end of a look.
    fn looked(&mut self, looked: Result<Looked, JoinError>) {
        let (campaigns, looks) = match looked {
            Ok(looked) => looked,
            Err(error) => return tracing::error!(%error, "a look at campaigns at rest broke off"),
        };
        self.log_failed_look(&looks);
        let looks = looks.unwrap_or_default();
        for (handle, look) in campaigns.iter().zip(&looks) {
            if let Some(look) = look {
                self.see(handle, look);
            }
        }
        if let Some(now) = looks.iter().flatten().map(|look| look.now).max() {
            self.tell_lag(now);
        }
    }

    /// Logs once that campaigns at rest cannot be looked at, until they can be again.
    fn log_failed_look<T>(&mut self, looks: &Result<T, RedisStoreError>) {
        if let Err(error) = looks
            && !self.blind
        {
            tracing::warn!(%error, "campaigns at rest are not looked at");
        }
        self.blind = looks.is_err();
    }

    /// Handles the look at one campaign: records what it found, and admits the campaign if it needs work.
    fn see(&mut self, handle: &Arc<CampaignHandle>, look: &Look) {
        let id = &handle.campaign().id;
        // Behind a new connection may be another Redis, and what has befallen one campaign may have befallen others.
        let is_other = look.generation > self.newest && self.newest != Generation::default();
        if is_other || !look.ready && handle.is_ready() {
            self.hurry();
        }
        self.newest = self.newest.max(look.generation);
        match look.oldest {
            Some(oldest) => drop(self.lagging.insert(id.clone(), oldest)),
            None => drop(self.lagging.remove(id)),
        }
        if !look.ready {
            handle.mark_not_ready(NotReadyReason::Damaged);
            return;
        }
        // Each campaign is synchronised once on each connection, even if no caller asks for it.
        if handle.synced_generation() != look.generation || !handle.is_ready() {
            handle.needs_maintenance();
        }
        handle.record_backlog(look.backlog);
        self.tell_deleted(id, look);
        match look.oldest {
            Some(oldest) if age(oldest, look.now) > LEFTOVER_AGE => handle.has_leftovers(),
            Some(_) => handle.has_events(),
            None => {}
        }
        match look.next_hold {
            Some(due) => handle.hold_due_in(age(look.now, due)),
            None => self.try_evict(handle, look, look.now),
        }
    }

    /// Tells once of entries that something else has deleted from an outbox: it is empty in two looks between which nothing
    /// was decided, and some events were never acknowledged. In a single look, some may have been acknowledged meanwhile.
    fn tell_deleted(&mut self, id: &CampaignId, look: &Look) {
        if look.backlog == 0 {
            self.deleted.remove(id);
        } else if look.oldest.is_none() {
            let counts = (look.backlog, look.revisions);
            let Deleted { last, told } = self.deleted.entry(id.clone()).or_default();
            if std::mem::replace(last, counts) == counts && look.backlog > *told {
                let events = look.backlog - std::mem::replace(told, look.backlog);
                tracing::error!(campaign = %id, events,
                    "outbox entries were deleted before SQL had them: run `claimgate reconcile {id} --repair`");
                metrics::deleted_events(events);
            }
        }
    }

    /// Has a campaign evicted that is long over and relayed, and has no hold.
    fn try_evict(&mut self, handle: &CampaignHandle, look: &Look, now: Timestamp) {
        let after_ms = i64::try_from(self.recovery.archive_after.as_millis()).unwrap_or(i64::MAX);
        let campaign = handle.campaign();
        let over = campaign.over_since(now).is_some_and(|since| since.saturating_add_ms(after_ms) <= now);
        if !over || look.backlog > 0 || look.oldest.is_some() {
            return;
        }
        let at = Instant::now();
        self.leaving.retain(|_, until| *until > at);
        if !self.leaving.contains_key(&campaign.id) {
            self.leaving.insert(campaign.id.clone(), at + LEAVE_PAUSE);
            handle.needs_maintenance();
        }
    }

    /// Records the age of the oldest entry of all outboxes, by Redis' clock: it rises while no core relays.
    fn tell_lag(&self, now: Timestamp) {
        let oldest = self.lagging.values().min();
        self.registry().notices().oldest_entry.record(oldest.map(|oldest| age(*oldest, now)));
    }
}

/// From `before` to `after`; zero when that is the other way round.
fn age(before: Timestamp, after: Timestamp) -> Duration {
    Duration::from_millis(u64::try_from(after.as_ms() - before.as_ms()).unwrap_or(0))
}

/// The campaigns that something else asks this core to look at.
async fn looks_wanted(recovery: &Recovery) -> Vec<CampaignId> {
    let wanted = recovery.sync.redis.looks_wanted().await.unwrap_or_else(|error| {
        tracing::debug!(%error, "which campaigns are to be looked at is unknown");
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

/// Expires all holds of a campaign that are due, and finds out when the next one is.
async fn sweep(sync: &CampaignSync, handle: &CampaignHandle) -> Result<(), SyncError> {
    sync.sweep(handle).await?;
    let campaign = handle.campaign();
    let looks = sync.redis.survey(&[handle.target(&campaign)]).await?;
    if let Some(look) = looks.into_iter().flatten().next()
        && let Some(due) = look.next_hold
    {
        handle.hold_due_in(age(look.now, due));
    }
    Ok(())
}
