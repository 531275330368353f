//! Core's in-memory state of one campaign: rules, high-water mark, readiness, and pending work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use claimgate_shared::Version;
use parking_lot::{Mutex, RwLock};

use super::change_log::ChangeLog;
use super::counted_losses::CountedLosses;
use super::notices::Notices;
use crate::domain::campaign::Campaign;
use crate::domain::counters::Generation;
use crate::domain::high_water_mark::HighWaterMark;
use crate::domain::not_ready::NotReadyReason;
use crate::store::redis::CallTarget;
use crate::store::redis::scripts::keys::Keys;
use crate::store::redis::topology::slot::SLOTS;

/// A campaign in this core's memory.
#[derive(Debug)]
pub struct CampaignHandle {
    /// The campaign's keys in Redis.
    pub keys: Keys,
    /// The missing events that the metrics include already.
    pub counted_losses: CountedLosses,
    /// Taken while the campaign's user ids are checked, so that a crowd's first claims check them once. When the last
    /// check found ids of another scheme.
    pub user_ids_check: Arc<tokio::sync::Mutex<Option<Instant>>>,
    rules: RwLock<Arc<Campaign>>,
    sequence: AtomicU64,
    /// The sequence up to which [`Self::take_new_claims`] has counted; `u64::MAX` until [`Self::begin_count`].
    sampled_sequence: AtomicU64,
    events: AtomicU64,
    /// Claims that Redis has answered for this core.
    answered: AtomicU64,
    /// Number of events not yet in SQL, as last read.
    backlog: AtomicU64,
    began: Instant,
    /// The version of the rules that this core last applied in Redis, and when.
    applied: Mutex<Option<(Version, Instant)>>,
    /// The run of the Redis server on which the campaign was last synchronized with SQL, see `Session::run`.
    synced_run: AtomicU64,
    readiness: AtomicU8,
    readiness_log: Mutex<ChangeLog>,
    /// Whether the last claims were denied as sold out.
    sold_out: AtomicBool,
    sold_out_log: Mutex<ChangeLog>,
    /// Whether the maintenance job has been notified of the campaign and has not finished with it.
    in_maintenance: AtomicBool,
    /// Whether the maintenance job has been notified that a caller requested the campaign while it was not
    /// ready.
    requested: AtomicBool,
    /// Whether SQL may have lost data of the campaign.
    sql_suspected: AtomicBool,
    /// Whether the relay has been notified of outbox entries that it has not begun to read.
    outbox_notified: AtomicBool,
    /// Whether the relay should also take over abandoned entries: a stopped core has read them without
    /// acknowledging them.
    has_abandoned_entries: AtomicBool,
    /// When the next known hold falls due, in milliseconds since `began`; `u64::MAX` for none.
    hold_due_ms: AtomicU64,
    notices: Arc<Notices>,
}

/// Rules are reapplied at an age of one to two intervals, depending on the slot of the campaign. Reapplying
/// also renews the UTC offsets in Redis, which must reach far ahead.
const RULES_REAPPLY_INTERVAL: Duration = Duration::from_hours(24);

/// Maximum difference between two readings of the same hold's due time.
const DUE_TOLERANCE_MS: u64 = 20;

/// Whether claims on a campaign can be decided, according to the last call of this core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Readiness {
    /// No call has been made yet.
    Unchecked,
    /// The last call found the campaign ready.
    Ready,
    /// The last call found the campaign not ready; the maintenance job has been notified.
    NotReady,
}

impl CampaignHandle {
    pub(super) fn new(campaign: Campaign, notices: Arc<Notices>) -> Self {
        Self {
            keys: Keys::of(&campaign.id),
            counted_losses: CountedLosses::default(),
            user_ids_check: Arc::default(),
            sequence: AtomicU64::new(campaign.high_water_mark.sequence),
            sampled_sequence: AtomicU64::new(u64::MAX),
            events: AtomicU64::new(campaign.high_water_mark.events),
            answered: AtomicU64::new(0),
            backlog: AtomicU64::new(0),
            began: Instant::now(),
            rules: RwLock::new(Arc::new(campaign)),
            applied: Mutex::default(),
            synced_run: AtomicU64::new(0),
            readiness: AtomicU8::new(Readiness::Unchecked as u8),
            readiness_log: Mutex::default(),
            sold_out: AtomicBool::new(false),
            sold_out_log: Mutex::default(),
            in_maintenance: AtomicBool::new(false),
            requested: AtomicBool::new(false),
            sql_suspected: AtomicBool::new(false),
            outbox_notified: AtomicBool::new(false),
            has_abandoned_entries: AtomicBool::new(false),
            hold_due_ms: AtomicU64::new(u64::MAX),
            notices,
        }
    }

    /// Records that the campaign is not ready, and notifies the maintenance job, at most once until
    /// [`Self::maintenance_done`].
    pub fn mark_not_ready(&self, reason: NotReadyReason) {
        let before = self.readiness.swap(Readiness::NotReady as u8, Ordering::AcqRel);
        if before == Readiness::Ready as u8 {
            self.log_not_ready(reason);
        }
        self.notify_maintenance();
    }

    fn log_not_ready(&self, reason: NotReadyReason) {
        let Some(left_out) = self.readiness_log.lock().changed(Instant::now()) else { return };
        let campaign = &self.campaign().id;
        if reason == NotReadyReason::Suspended {
            tracing::info!(%campaign, left_out, "suspended until it is loaded or evicted");
        } else {
            tracing::warn!(%campaign, %reason, left_out, "not ready");
        }
    }

    /// Notifies the maintenance job of the campaign, at most once until [`Self::maintenance_done`].
    pub fn notify_maintenance(&self) {
        if !self.in_maintenance.swap(true, Ordering::AcqRel) {
            self.notices.maintenance.put(self.campaign().id.clone());
        }
    }

    /// Records that a caller has requested the campaign. If it is not ready, the maintenance job takes it
    /// before other campaigns.
    pub fn mark_requested(&self) {
        if !self.is_ready() && !self.requested.swap(true, Ordering::AcqRel) {
            self.notices.requested.put(self.campaign().id.clone());
        }
    }

    /// Makes the maintenance job check whether SQL has lost data of the campaign.
    pub fn suspect_sql_loss(&self) {
        self.sql_suspected.store(true, Ordering::Release);
        self.notify_maintenance();
    }

    /// Returns whether SQL may have lost data of the campaign.
    pub fn suspects_sql_loss(&self) -> bool {
        self.sql_suspected.load(Ordering::Acquire)
    }

    /// Records that SQL has lost no data of the campaign.
    pub fn clear_suspicion(&self) {
        self.sql_suspected.store(false, Ordering::Release);
    }

    /// Returns whether SQL's `row` of the campaign is missing, or older than the state that this core has
    /// read.
    pub fn is_ahead_of(&self, row: Option<&Campaign>) -> bool {
        let known = self.campaign();
        row.is_none_or(|row| row.epoch < known.epoch || row.version < known.version)
    }

    /// Requests a check of the campaign's rows in SQL. Called after the campaign was adopted without a
    /// reload.
    pub fn request_row_check(&self) {
        self.notices.adopted.put(self.campaign().id.clone());
    }

    /// Records that the maintenance job has finished with the campaign; the next notice wakes the job
    /// again.
    pub fn maintenance_done(&self) {
        self.requested.store(false, Ordering::Release);
        self.in_maintenance.store(false, Ordering::Release);
    }

    /// Records that the campaign is ready, and notifies the relay, which can now read the outbox.
    pub fn mark_ready(&self) {
        if self.set_ready() {
            tracing::info!(campaign = %self.campaign().id, "ready again");
        }
    }

    /// Works like [`Self::mark_ready`] for a campaign that was just loaded or adopted, without logging: the caller logs
    /// that.
    pub fn mark_loaded(&self) {
        self.begin_count(self.high_water_mark().sequence);
        self.set_ready();
    }

    /// Marks the campaign as ready. Returns whether the log has reported it as not ready.
    fn set_ready(&self) -> bool {
        if self.readiness.swap(Readiness::Ready as u8, Ordering::AcqRel) == Readiness::Ready as u8 {
            return false;
        }
        self.notify_relay();
        self.readiness_log.lock().changed_back()
    }

    /// Records whether a call denied claims as sold out, and logs a change. `has_granted` is called only for
    /// a campaign that was sold out.
    pub fn observe_stock(&self, is_sold_out: bool, has_granted: impl FnOnce() -> bool) {
        if is_sold_out {
            if !self.sold_out.swap(true, Ordering::Relaxed)
                && let Some(left_out) = self.sold_out_log.lock().changed(Instant::now())
            {
                tracing::info!(campaign = %self.campaign().id, left_out, "sold out");
            }
        } else if self.sold_out.load(Ordering::Relaxed)
            && has_granted()
            && self.sold_out.swap(false, Ordering::Relaxed)
            && self.sold_out_log.lock().changed_back()
        {
            tracing::info!(campaign = %self.campaign().id, "available again after it was sold out");
        }
    }

    /// Notifies the relay that the outbox may hold entries, at most once until [`Self::begin_relay`].
    pub fn notify_relay(&self) {
        if !self.outbox_notified.swap(true, Ordering::AcqRel) {
            self.notices.outbox.put(self.campaign().id.clone());
        }
    }

    /// Notifies the relay of outbox entries that another core may have read but not acknowledged.
    pub fn notify_relay_of_abandoned(&self) {
        self.has_abandoned_entries.store(true, Ordering::Release);
        self.notify_relay();
    }

    /// Records that the relay is about to read the outbox; later entries notify the relay again. Returns
    /// whether there may be abandoned entries of other cores.
    pub fn begin_relay(&self) -> bool {
        self.outbox_notified.store(false, Ordering::Release);
        self.has_abandoned_entries.swap(false, Ordering::AcqRel)
    }

    /// Records that a hold falls due after `left`, and notifies the maintenance job if no earlier hold is
    /// known.
    pub fn hold_due_in(&self, left: Duration) {
        let due_ms = self.age_ms().saturating_add(u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
        let earlier = |known_ms: u64| (due_ms.saturating_add(DUE_TOLERANCE_MS) < known_ms).then_some(due_ms);
        if self.hold_due_ms.fetch_update(Ordering::AcqRel, Ordering::Acquire, earlier).is_ok() {
            self.notices.holds.put(self.campaign().id.clone());
        }
    }

    /// Returns the time until the next known hold falls due; zero if one is due.
    pub fn next_hold(&self) -> Option<Duration> {
        match self.hold_due_ms.load(Ordering::Acquire) {
            u64::MAX => None,
            due_ms => Some(Duration::from_millis(due_ms.saturating_sub(self.age_ms()))),
        }
    }

    /// Records that due holds are about to be expired; later holds notify the maintenance job again.
    pub fn begin_sweep(&self) {
        self.hold_due_ms.store(u64::MAX, Ordering::Release);
    }

    /// Returns whether the last call on the campaign found it ready.
    pub fn is_ready(&self) -> bool {
        self.readiness.load(Ordering::Acquire) == Readiness::Ready as u8
    }

    /// Returns whether Redis had the campaign at the last call.
    pub fn is_in_redis(&self) -> bool {
        self.is_ready() && self.campaign().evicted.is_none()
    }

    /// Returns the run of the Redis server at the last synchronization with SQL; 0 for none.
    pub fn synced_run(&self) -> Generation {
        Generation::new(self.synced_run.load(Ordering::Acquire))
    }

    /// Records that the campaign was synchronized with SQL on `run` of the Redis server.
    pub fn mark_synced(&self, run: Generation) {
        self.synced_run.store(run.get(), Ordering::Release);
    }

    /// Returns the campaign as last read from the database.
    pub fn campaign(&self) -> Arc<Campaign> {
        Arc::clone(&self.rules.read())
    }

    /// Returns the campaign's high-water mark: the maximum of the progress that Redis has acknowledged to
    /// this core and the progress in SQL. A Redis server that is behind this mark has lost claims.
    pub fn high_water_mark(&self) -> HighWaterMark {
        HighWaterMark {
            sequence: self.sequence.load(Ordering::Acquire),
            events: self.events.load(Ordering::Acquire),
        }
    }

    /// Raises the high-water mark. If it rises, the outbox has new events, so the relay is notified.
    pub fn observe(&self, high_water_mark: HighWaterMark) {
        self.sequence.fetch_max(high_water_mark.sequence, Ordering::AcqRel);
        if self.events.fetch_max(high_water_mark.events, Ordering::AcqRel) < high_water_mark.events {
            self.notify_relay();
        }
    }

    /// Records that Redis has just decided claims for this core.
    pub fn record_decision(&self) {
        self.notices.decisions.record();
    }

    /// Records that Redis has answered `claims` more claims for this core.
    pub fn record_answered(&self, claims: usize) {
        self.answered.fetch_add(claims as u64, Ordering::Relaxed);
    }

    /// Returns the number of claims that Redis has answered for this core.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Begins the count of new claims after `sequence`, which this core's first call on the campaign in Redis has
    /// found. Until then, a rise may only mean that SQL lagged behind. Later calls change nothing.
    pub fn begin_count(&self, sequence: u64) {
        let sampled = &self.sampled_sequence;
        let _ = sampled.compare_exchange(u64::MAX, sequence, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Returns whether [`Self::begin_count`] was called.
    pub fn has_begun_count(&self) -> bool {
        self.sampled_sequence.load(Ordering::Acquire) != u64::MAX
    }

    /// Returns the number of claims granted or held since the last call, by all cores, as far as this core knows.
    pub fn take_new_claims(&self) -> u64 {
        let sequence = self.sequence.load(Ordering::Acquire);
        sequence.saturating_sub(self.sampled_sequence.fetch_max(sequence, Ordering::AcqRel))
    }

    /// Records how many events are not yet in SQL.
    pub fn record_backlog(&self, events: u64) {
        self.backlog.store(events, Ordering::Relaxed);
    }

    /// Returns the number of events not yet in SQL, as last read.
    pub fn backlog(&self) -> u64 {
        self.backlog.load(Ordering::Relaxed)
    }

    /// Returns the target of a script call on `campaign`, with this core's minimum event count.
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
        *self.applied.lock() = Some((version, Instant::now()));
    }

    /// Returns whether rules must be applied: newer rules exist, or the rules in force are due for renewal.
    pub fn rules_are_due(&self) -> bool {
        let campaign = self.campaign();
        if campaign.evicted.is_some() {
            return false;
        }
        let version = campaign.version;
        let applied = self.applied.lock();
        applied.is_none_or(|(last, at)| last < version || at.elapsed() > self.rules_age_max())
    }

    /// Returns the age at which the rules in force are reapplied. The age differs between campaigns, so that
    /// they do not all renew at the same time.
    fn rules_age_max(&self) -> Duration {
        RULES_REAPPLY_INTERVAL + RULES_REAPPLY_INTERVAL * u32::from(self.keys.slot.get()) / u32::from(SLOTS)
    }

    /// Replaces the stored campaign with `campaign`, read from the database, unless `campaign` is older.
    pub fn update(&self, campaign: Campaign) {
        if may_have_imported(&self.campaign(), &campaign) {
            // Imported claims are not new.
            self.sampled_sequence.fetch_max(campaign.high_water_mark.sequence, Ordering::AcqRel);
        }
        self.observe(campaign.high_water_mark);
        let mut rules = self.rules.write();
        let order = (campaign.epoch, campaign.version).cmp(&(rules.epoch, rules.version));
        // A return after the eviction raises neither version nor epoch.
        let units_returned = || match (campaign.evicted, rules.evicted) {
            (Some(now), Some(before)) => now.taken < before.taken,
            _ => false,
        };
        if order.is_gt() || (order.is_eq() && units_returned()) {
            *rules = Arc::new(campaign);
        } else if order.is_eq() && campaign.archived != rules.archived {
            // Nothing orders rows of one version, so only the mark is copied: the rest of this row may be older. If the
            // mark is older too, it lasts until the refresher reads the campaign again.
            *rules = Arc::new(Campaign { archived: campaign.archived, ..(**rules).clone() });
        }
    }
}

/// Returns whether claims may have been imported between the rows `before` and `after`. An import evicts the campaign,
/// and raises its epoch and version; a core may miss the eviction.
fn may_have_imported(before: &Campaign, after: &Campaign) -> bool {
    before.evicted.is_some() || (after.epoch > before.epoch && after.version > before.version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::campaign::Evicted;
    use crate::domain::campaign_change::NewCampaign;

    fn created() -> Campaign {
        let new = NewCampaign::parse(br#"{"id":"c","name":"x","starts_at":"2026-01-01T00:00:00Z"}"#).unwrap();
        new.created_at(crate::clock::now()).unwrap()
    }

    fn with_sequence(sequence: u64) -> Campaign {
        Campaign { high_water_mark: HighWaterMark { sequence, events: 0 }, ..created() }
    }

    #[test]
    fn claims_before_the_first_read_of_redis_are_not_new() {
        let handle = CampaignHandle::new(with_sequence(3), Arc::default());
        handle.update(with_sequence(5));
        assert_eq!(handle.take_new_claims(), 0, "SQL catches up");
        handle.begin_count(10);
        handle.update(with_sequence(8));
        assert_eq!(handle.take_new_claims(), 0, "Redis had these claims");
        handle.update(with_sequence(12));
        handle.begin_count(12);
        assert_eq!(handle.take_new_claims(), 2);
    }

    #[test]
    fn imported_claims_are_not_new() {
        let counting = || {
            let handle = CampaignHandle::new(with_sequence(10), Arc::default());
            handle.begin_count(10);
            handle
        };
        let (importer, other) = (counting(), counting());
        let evicted = Some(Evicted { taken: 10, sequence: 10 });
        let before = with_sequence(10);
        let (epoch, version) = (before.epoch.next(), before.version.next());
        importer.update(Campaign { version, epoch, evicted, ..before });
        for handle in [importer, other] {
            handle.update(Campaign { epoch: epoch.next(), version, ..with_sequence(1_000_010) });
            assert_eq!(handle.take_new_claims(), 0);
            handle.update(Campaign { epoch: epoch.next(), version, ..with_sequence(1_000_011) });
            assert_eq!(handle.take_new_claims(), 1);
        }
    }

    #[test]
    fn an_older_row_changes_at_most_the_archive_mark() {
        let row = |taken, archived| Campaign {
            evicted: Some(Evicted { taken, sequence: 10 }),
            archived,
            ..created()
        };
        let handle = CampaignHandle::new(row(10, false), Arc::default());
        let mark_and_taken = || (handle.campaign().archived, handle.campaign().evicted.unwrap().taken);
        handle.update(row(9, true));
        assert_eq!(mark_and_taken(), (true, 9));
        handle.update(row(10, false));
        assert_eq!(mark_and_taken(), (false, 9), "a returned unit stays returned");
    }
}
