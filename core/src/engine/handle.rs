//! What this core holds of one campaign: its rules, its high-water mark, its readiness, and the work that it needs.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use claimgate_shared::Version;

use super::change_log::ChangeLog;
use super::notices::Notices;
use crate::domain::campaign::Campaign;
use crate::domain::counters::Generation;
use crate::domain::high_water_mark::HighWaterMark;
use crate::domain::not_ready::NotReadyReason;
use crate::store::redis::CallTarget;
use crate::store::redis::keys::Keys;
use crate::store::redis::slot::SLOTS;

/// A campaign that this core holds.
#[derive(Debug)]
pub struct CampaignHandle {
    /// Its keys in Redis.
    pub keys: Keys,
    rules: RwLock<Arc<Campaign>>,
    sequence: AtomicU64,
    events: AtomicU64,
    /// Claims that Redis has answered for this core.
    answered: AtomicU64,
    /// Events that wait for SQL, as last seen.
    backlog: AtomicU64,
    began: Instant,
    /// The version last applied in Redis by this core, and when.
    applied: Mutex<Option<(Version, Instant)>>,
    /// The generation of the connection to Redis on which the campaign was last synchronised with SQL.
    synced_generation: AtomicU64,
    readiness: AtomicU8,
    /// What the log says of it.
    readiness_log: Mutex<ChangeLog>,
    /// Whether the last claims were told that nothing is left.
    sold_out: AtomicBool,
    sold_out_log: Mutex<ChangeLog>,
    /// Whether the maintenance has been notified of the campaign, and is not done with it yet.
    in_maintenance: AtomicBool,
    /// Whether the maintenance has been told that a caller has asked for the campaign while it was not ready.
    asked_for: AtomicBool,
    /// Whether SQL seems to have lost what it once had of the campaign.
    sql_suspected: AtomicBool,
    /// Whether the relay has been notified of outbox entries that it has not begun to read yet.
    outbox_told: AtomicBool,
    /// Whether the relay should also take over entries that a core has read and not acknowledged before it went away.
    leftovers: AtomicBool,
    /// When the next known hold falls due, in milliseconds since `began`; `u64::MAX` for none.
    hold_due_ms: AtomicU64,
    notices: Arc<Notices>,
}

/// Rules are applied again after this long, and up to twice that, so that the UTC offsets in Redis reach far ahead.
const RULES_AGE_MAX: Duration = Duration::from_hours(24);

/// Two readings of when one and the same hold falls due differ by less.
const EARLIER_MS: u64 = 20;

/// Whether a campaign can be decided on, as far as this core knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Readiness {
    /// No call has been made yet.
    Unchecked,
    /// The last call found it ready.
    Ready,
    /// The last call found it not ready; the maintenance has been notified.
    NotReady,
}

impl CampaignHandle {
    pub(super) fn new(campaign: Campaign, notices: Arc<Notices>) -> Self {
        Self {
            keys: Keys::of(&campaign.id),
            sequence: AtomicU64::new(campaign.high_water_mark.sequence),
            events: AtomicU64::new(campaign.high_water_mark.events),
            answered: AtomicU64::new(0),
            backlog: AtomicU64::new(0),
            began: Instant::now(),
            rules: RwLock::new(Arc::new(campaign)),
            applied: Mutex::default(),
            synced_generation: AtomicU64::new(0),
            readiness: AtomicU8::new(Readiness::Unchecked as u8),
            readiness_log: Mutex::default(),
            sold_out: AtomicBool::new(false),
            sold_out_log: Mutex::default(),
            in_maintenance: AtomicBool::new(false),
            asked_for: AtomicBool::new(false),
            sql_suspected: AtomicBool::new(false),
            outbox_told: AtomicBool::new(false),
            leftovers: AtomicBool::new(false),
            hold_due_ms: AtomicU64::new(u64::MAX),
            notices,
        }
    }

    /// Records that nothing can be decided on the campaign, and notifies the maintenance, once until [`Self::maintained`].
    pub fn mark_not_ready(&self, reason: NotReadyReason) {
        let before = self.readiness.swap(Readiness::NotReady as u8, Ordering::AcqRel);
        if before == Readiness::Ready as u8 {
            self.log_not_ready(reason);
        }
        self.needs_maintenance();
    }

    fn log_not_ready(&self, reason: NotReadyReason) {
        let Some(left_out) = locked(&self.readiness_log).changed(Instant::now()) else { return };
        let campaign = &self.campaign().id;
        if reason == NotReadyReason::Suspended {
            tracing::info!(%campaign, left_out, "suspended, to be loaded or evicted");
        } else {
            tracing::warn!(%campaign, %reason, left_out, "not ready");
        }
    }

    /// Notifies the maintenance of the campaign, once until [`Self::maintained`].
    pub fn needs_maintenance(&self) {
        if !self.in_maintenance.swap(true, Ordering::AcqRel) {
            self.notices.maintenance.put(self.campaign().id.clone());
        }
    }

    /// Has the maintenance take the campaign before others, if it is not ready: a caller has asked for it.
    pub fn asked_for(&self) {
        if !self.is_ready() && !self.asked_for.swap(true, Ordering::AcqRel) {
            self.notices.asked_for.put(self.campaign().id.clone());
        }
    }

    /// Has the maintenance check whether SQL has lost what it once had of the campaign.
    pub fn suspect_sql(&self) {
        self.sql_suspected.store(true, Ordering::Release);
        self.needs_maintenance();
    }

    /// Whether SQL seems to have lost what it once had of the campaign.
    pub fn suspects_sql(&self) -> bool {
        self.sql_suspected.load(Ordering::Acquire)
    }

    /// Records that SQL has all of it.
    pub fn clear_suspicion(&self) {
        self.sql_suspected.store(false, Ordering::Release);
    }

    /// Whether SQL, which has `row` of the campaign, or none, has lost what this core has read there before.
    pub fn is_ahead_of(&self, row: Option<&Campaign>) -> bool {
        let known = self.campaign();
        row.is_none_or(|row| row.epoch < known.epoch || row.version < known.version)
    }

    /// Has what SQL holds of the campaign compared, which goes on as it was in Redis.
    pub fn adopted(&self) {
        self.notices.adopted.put(self.campaign().id.clone());
    }

    /// Records that the maintenance is done with the campaign: it is notified again from now on.
    pub fn maintained(&self) {
        self.asked_for.store(false, Ordering::Release);
        self.in_maintenance.store(false, Ordering::Release);
    }

    /// Records that the campaign is ready, and notifies the relay, which could not read its outbox before.
    pub fn mark_ready(&self) {
        if self.becomes_ready() {
            tracing::info!(campaign = %self.campaign().id, "ready again");
        }
    }

    /// The same for one that this core has loaded or adopted, which its caller logs.
    pub fn mark_loaded(&self) {
        self.becomes_ready();
    }

    /// Whether the log has said that it is not ready.
    fn becomes_ready(&self) -> bool {
        if self.readiness.swap(Readiness::Ready as u8, Ordering::AcqRel) == Readiness::Ready as u8 {
            return false;
        }
        self.has_events();
        locked(&self.readiness_log).changed_back()
    }

    /// Records what a call has told of what is left: `none`, or `some`, which is only asked for when there was none. Logs when
    /// that has changed.
    pub fn observe_stock(&self, none: bool, some: impl FnOnce() -> bool) {
        if none {
            if !self.sold_out.swap(true, Ordering::Relaxed)
                && let Some(left_out) = locked(&self.sold_out_log).changed(Instant::now())
            {
                tracing::info!(campaign = %self.campaign().id, left_out, "sold out");
            }
        } else if self.sold_out.load(Ordering::Relaxed)
            && some()
            && self.sold_out.swap(false, Ordering::Relaxed)
            && locked(&self.sold_out_log).changed_back()
        {
            tracing::info!(campaign = %self.campaign().id, "granted from again after it was sold out");
        }
    }

    /// Notifies the relay that the outbox may hold entries, once until [`Self::begin_relay`].
    pub fn has_events(&self) {
        if !self.outbox_told.swap(true, Ordering::AcqRel) {
            self.notices.outbox.put(self.campaign().id.clone());
        }
    }

    /// Notifies the relay of outbox entries that another core may have read before it went away.
    pub fn has_leftovers(&self) {
        self.leftovers.store(true, Ordering::Release);
        self.has_events();
    }

    /// Records that the outbox is about to be read: the relay is notified again of what is written from now on. Returns
    /// whether there may be leftovers of other cores.
    pub fn begin_relay(&self) -> bool {
        self.outbox_told.store(false, Ordering::Release);
        self.leftovers.swap(false, Ordering::AcqRel)
    }

    /// Records that a hold falls due after `left`, and notifies the maintenance if that is earlier than any known one.
    pub fn hold_due_in(&self, left: Duration) {
        let due_ms = self.age_ms().saturating_add(u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
        let earlier = |known_ms: u64| (due_ms.saturating_add(EARLIER_MS) < known_ms).then_some(due_ms);
        if self.hold_due_ms.fetch_update(Ordering::AcqRel, Ordering::Acquire, earlier).is_ok() {
            self.notices.holds.put(self.campaign().id.clone());
        }
    }

    /// How long until the next known hold falls due; zero when one is due.
    pub fn next_hold(&self) -> Option<Duration> {
        match self.hold_due_ms.load(Ordering::Acquire) {
            u64::MAX => None,
            due_ms => Some(Duration::from_millis(due_ms.saturating_sub(self.age_ms()))),
        }
    }

    /// Records that due holds are about to be given back: the maintenance is notified again of holds from now on.
    pub fn begin_sweep(&self) {
        self.hold_due_ms.store(u64::MAX, Ordering::Release);
    }

    /// Whether the last call on the campaign found it ready.
    pub fn is_ready(&self) -> bool {
        self.readiness.load(Ordering::Acquire) == Readiness::Ready as u8
    }

    /// Whether Redis is known to hold the campaign.
    pub fn is_in_redis(&self) -> bool {
        self.is_ready() && self.campaign().evicted.is_none()
    }

    /// The generation of the connection to Redis on which the campaign was last synchronised with SQL; 0 for none.
    pub fn synced_generation(&self) -> Generation {
        Generation::new(self.synced_generation.load(Ordering::Acquire))
    }

    /// Records that the campaign was synchronised with SQL on the connection `generation`.
    pub fn mark_synced(&self, generation: Generation) {
        self.synced_generation.store(generation.get(), Ordering::Release);
    }

    /// The campaign as last read from the database.
    pub fn campaign(&self) -> Arc<Campaign> {
        Arc::clone(&self.rules.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The campaign's high-water mark, from what Redis has acknowledged to this core and from what SQL has: a Redis that
    /// is behind it has lost claims.
    pub fn high_water_mark(&self) -> HighWaterMark {
        HighWaterMark {
            sequence: self.sequence.load(Ordering::Acquire),
            events: self.events.load(Ordering::Acquire),
        }
    }

    /// Raises the campaign's high-water mark, and notifies the relay of events not heard of before: they are in the outbox.
    pub fn observe(&self, high_water_mark: HighWaterMark) {
        self.sequence.fetch_max(high_water_mark.sequence, Ordering::AcqRel);
        if self.events.fetch_max(high_water_mark.events, Ordering::AcqRel) < high_water_mark.events {
            self.has_events();
        }
    }

    /// Records that Redis has decided claims for this core.
    pub fn record_decision(&self) {
        self.notices.decisions.record();
    }

    /// Records that Redis has answered so many claims for this core.
    pub fn record_answered(&self, claims: usize) {
        self.answered.fetch_add(claims as u64, Ordering::Relaxed);
    }

    /// The claims that Redis has answered for this core.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Records how many events wait for SQL.
    pub fn record_backlog(&self, events: u64) {
        self.backlog.store(events, Ordering::Relaxed);
    }

    /// The events that wait for SQL, as last seen.
    pub fn backlog(&self) -> u64 {
        self.backlog.load(Ordering::Relaxed)
    }

    /// The target of a script call on `campaign`, with the minimum event count that this core knows.
    pub fn target<'a>(&'a self, campaign: &'a Campaign) -> CallTarget<'a> {
        CallTarget {
            keys: &self.keys,
            epoch: campaign.epoch,
            minimum_events: self.high_water_mark().events,
            register_id: &campaign.register_id,
        }
    }

    fn age_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Records that the rules of `version` are applied in Redis.
    pub fn mark_rules_applied(&self, version: Version) {
        *locked(&self.applied) = Some((version, Instant::now()));
    }

    /// Whether the rules have to be applied: they are newer than those applied last, or these are due for renewal.
    pub fn rules_are_due(&self) -> bool {
        let campaign = self.campaign();
        if campaign.evicted.is_some() {
            return false;
        }
        let version = campaign.version;
        let applied = locked(&self.applied);
        applied.is_none_or(|(last, at)| last < version || at.elapsed() > self.rules_age_max())
    }

    /// When rules that are in force are applied again: not all campaigns' at once.
    fn rules_age_max(&self) -> Duration {
        RULES_AGE_MAX + RULES_AGE_MAX * u32::from(self.keys.slot.get()) / u32::from(SLOTS)
    }

    /// Replaces the campaign by what was read from the database, unless that is older.
    pub(super) fn update(&self, campaign: Campaign) {
        self.observe(campaign.high_water_mark);
        let mut rules = self.rules.write().unwrap_or_else(PoisonError::into_inner);
        let order = (campaign.epoch, campaign.version).cmp(&(rules.epoch, rules.version));
        // A return after the eviction raises neither version nor epoch.
        let given_back = || match (campaign.evicted, rules.evicted) {
            (Some(now), Some(before)) => now.taken < before.taken,
            _ => false,
        };
        if order.is_gt() || (order.is_eq() && given_back()) {
            *rules = Arc::new(campaign);
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
