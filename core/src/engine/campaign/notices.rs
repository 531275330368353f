//! Notices of pending work on campaigns. The call that finds the work notifies the job that does it. Each
//! list contains a campaign at most once: many denied callers only set a flag, and cause no further calls.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use claimgate_shared::CampaignId;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// A list of campaigns with work for one job.
#[derive(Debug, Default)]
pub struct PendingCampaigns {
    ids: Mutex<Vec<CampaignId>>,
    arrived: Notify,
}

impl PendingCampaigns {
    /// Adds a campaign and wakes the job. The caller ensures that the campaign is not in the list already.
    pub fn put(&self, id: CampaignId) {
        self.ids.lock().push(id);
        self.arrived.notify_one();
    }

    /// Takes all campaigns out of the list.
    pub fn take(&self) -> Vec<CampaignId> {
        std::mem::take(&mut self.ids.lock())
    }

    /// Waits until a campaign has been added since the last wait. Call [`Self::take`] first.
    pub async fn arrived(&self) {
        self.arrived.notified().await;
    }
}

/// Period after a decision in which Redis still counts as busy.
const BUSY_MS: u64 = 20;

/// The time of the last decision of Redis for this core, on any campaign.
#[derive(Debug)]
pub struct LastDecision {
    began: Instant,
    /// Time of the last decision, in milliseconds since `began`; 0 if there was none.
    decided_ms: AtomicU64,
}

impl Default for LastDecision {
    fn default() -> Self {
        Self { began: Instant::now(), decided_ms: AtomicU64::new(0) }
    }
}

impl LastDecision {
    /// Records a decision.
    pub fn record(&self) {
        self.decided_ms.store(self.age_ms(), Ordering::Relaxed);
    }

    /// Returns whether a decision was recorded within the last 20 ms.
    pub fn is_recent(&self) -> bool {
        let decided_ms = self.decided_ms.load(Ordering::Relaxed);
        decided_ms > 0 && self.age_ms() < decided_ms + BUSY_MS
    }

    fn age_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Campaigns whose outboxes are being relayed, with the time at which each relay began.
#[derive(Debug, Default)]
pub struct RelaysInProgress(Mutex<HashMap<CampaignId, Instant>>);

impl RelaysInProgress {
    /// Records that the relay has begun to work on a campaign.
    pub fn begin(&self, id: CampaignId) {
        self.0.lock().insert(id, Instant::now());
    }

    /// Records that the relay has finished with a campaign.
    pub fn end(&self, id: &CampaignId) {
        self.0.lock().remove(id);
    }

    /// Returns the campaigns whose relay has been in progress for longer than `least`: SQL accepts no writes,
    /// or too few.
    pub fn stuck(&self, least: Duration) -> Vec<CampaignId> {
        let campaigns = self.0.lock();
        campaigns.iter().filter(|(_, since)| since.elapsed() > least).map(|(id, _)| id.clone()).collect()
    }
}

/// The age of the oldest entry of all outboxes.
#[derive(Debug, Default)]
pub struct OldestEntry(Mutex<Option<Instant>>);

impl OldestEntry {
    /// Records the age of the oldest entry, by Redis' clock; `None` when there is no entry.
    pub fn record(&self, age: Option<Duration>) {
        *self.0.lock() = age.and_then(|age| Instant::now().checked_sub(age));
    }

    /// Returns the current age of the oldest entry, which grows until the next record; zero if there is no
    /// entry.
    pub fn age(&self) -> Duration {
        self.0.lock().map_or(Duration::ZERO, |at| at.elapsed())
    }
}

/// One list for each kind of work, and whether claims are being decided.
#[derive(Debug, Default)]
pub struct Notices {
    /// The time of the last decision. While claims are being decided, the relay pauses, to leave the CPUs to
    /// the decisions.
    pub decisions: LastDecision,
    /// Campaigns found not ready, for the maintenance job.
    pub maintenance: PendingCampaigns,
    /// Campaigns that a caller requested while they were not ready; the maintenance job takes them first.
    pub requested: PendingCampaigns,
    /// Campaigns adopted without a reload, whose rows in SQL are to be checked.
    pub adopted: PendingCampaigns,
    /// Campaigns with a new earliest hold, for the maintenance job.
    pub holds: PendingCampaigns,
    /// Campaigns whose outbox may have entries, for the relay.
    pub outbox: PendingCampaigns,
    /// Wakes callers waiting for the feed: the relay has written to it.
    pub relayed: Notify,
    /// The oldest entry not yet in SQL, for metrics.
    pub oldest_entry: OldestEntry,
    /// Campaigns that the relay is working on. The maintenance job uses them to report how far SQL is behind.
    pub relays_in_progress: RelaysInProgress,
}
