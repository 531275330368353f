//! Notices of work on campaigns, from the call that finds it to the job that does it. A campaign is in a list once, however
//! often it is noticed: a refused crowd costs a flag, not a call.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use claimgate_shared::CampaignId;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Campaigns that one job has to work on.
#[derive(Debug, Default)]
pub struct Inbox {
    ids: Mutex<Vec<CampaignId>>,
    arrived: Notify,
}

impl Inbox {
    /// Adds a campaign and wakes the job. The caller ensures that it is not in the list already.
    pub fn put(&self, id: CampaignId) {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).push(id);
        self.arrived.notify_one();
    }

    /// Takes all campaigns out of the list.
    pub fn take(&self) -> Vec<CampaignId> {
        std::mem::take(&mut self.ids.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until a campaign has been added since the last wait. Call [`Self::take`] before.
    pub async fn arrived(&self) {
        self.arrived.notified().await;
    }
}

/// The next decision is expected within this time of the last.
const BUSY_MS: u64 = 20;

/// When Redis last decided something for this core, of whatever campaign.
#[derive(Debug)]
pub struct LastDecision {
    began: Instant,
    /// In milliseconds since `began`; 0 for never.
    decided_ms: AtomicU64,
}

impl Default for LastDecision {
    fn default() -> Self {
        Self { began: Instant::now(), decided_ms: AtomicU64::new(0) }
    }
}

impl LastDecision {
    /// Records that it has just decided something.
    pub fn record(&self) {
        self.decided_ms.store(self.age_ms(), Ordering::Relaxed);
    }

    /// Whether it has decided something within the last 20 ms.
    pub fn is_recent(&self) -> bool {
        let decided_ms = self.decided_ms.load(Ordering::Relaxed);
        decided_ms > 0 && self.age_ms() < decided_ms + BUSY_MS
    }

    fn age_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Campaigns whose outboxes are being relayed, and since when.
#[derive(Debug, Default)]
pub struct AtRelay(Mutex<HashMap<CampaignId, Instant>>);

impl AtRelay {
    /// Records that the relay is at work on a campaign.
    pub fn begin(&self, id: CampaignId) {
        self.campaigns().insert(id, Instant::now());
    }

    /// Records that it has nothing left to do for it.
    pub fn end(&self, id: &CampaignId) {
        self.campaigns().remove(id);
    }

    /// Those that it has been at work on for longer than `least`: SQL takes nothing, or not enough.
    pub fn stuck(&self, least: Duration) -> Vec<CampaignId> {
        let campaigns = self.campaigns();
        campaigns.iter().filter(|(_, since)| since.elapsed() > least).map(|(id, _)| id.clone()).collect()
    }

    fn campaigns(&self) -> MutexGuard<'_, HashMap<CampaignId, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When the oldest entry of all outboxes was written.
#[derive(Debug, Default)]
pub struct OldestEntry(Mutex<Option<Instant>>);

impl OldestEntry {
    /// Records the age of the oldest entry, by Redis' clock; `None` when there is no entry.
    pub fn record(&self, age: Option<Duration>) {
        *self.at() = age.and_then(|age| Instant::now().checked_sub(age));
    }

    /// Its age now, also while nothing looks; zero when there is none.
    pub fn age(&self) -> Duration {
        self.at().map_or(Duration::ZERO, |at| at.elapsed())
    }

    fn at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One list per kind of work, and whether claims are being decided.
#[derive(Debug, Default)]
pub struct Notices {
    /// When claims were last decided, for the relay, which leaves them the processors.
    pub decisions: LastDecision,
    /// Campaigns that were found not to be ready, for the maintenance.
    pub maintenance: Inbox,
    /// Campaigns that a caller has asked for while they were not ready, for the maintenance: they come before others.
    pub asked_for: Inbox,
    /// Campaigns that go on as they were in Redis, for the look at what SQL has of them.
    pub adopted: Inbox,
    /// Campaigns whose next hold falls due earlier than was known, for the maintenance.
    pub holds: Inbox,
    /// Campaigns that may have something in their outbox, for the relay.
    pub outbox: Inbox,
    /// Wakes who waits for the feed: the relay has written to it.
    pub relayed: Notify,
    /// The oldest entry that SQL does not have, for metrics.
    pub oldest_entry: OldestEntry,
    /// Campaigns that the relay is at work on, for the maintenance, which tells how far SQL is behind.
    pub at_relay: AtRelay,
}
