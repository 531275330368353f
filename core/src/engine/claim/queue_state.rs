//! State that all queues of a campaign share: the limits on the campaign's claims, and the sold-out cache.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use claimgate_shared::CampaignId;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::sold_out_cache::SoldOutCache;
use crate::config::BATCH_MAX;

/// Maximum number of claims of one campaign in flight: while Redis works on one full batch, the next batch is
/// already sent. A claim on a different campaign waits for at most these two batches.
const IN_FLIGHT_MAX: usize = 2 * BATCH_MAX;
/// Maximum number of queued claims of one campaign; further claims are rejected without processing.
const PENDING_MAX: usize = 8192;

/// State that the queues of one campaign share, on all threads.
#[derive(Debug)]
pub(super) struct QueueState {
    pub sold_out: Arc<SoldOutCache>,
    pending: AtomicUsize,
    /// A permit for each call that may be in flight.
    calls: Arc<Semaphore>,
    calls_max: u32,
}

impl QueueState {
    /// Creates the state for calls of at most `batch_max` claims.
    fn new(batch_max: usize) -> Self {
        let calls_max = u32::try_from(IN_FLIGHT_MAX / batch_max.max(1)).unwrap_or(u32::MAX).max(1);
        let calls = Arc::new(Semaphore::new(calls_max as usize));
        Self { sold_out: Arc::default(), pending: AtomicUsize::new(0), calls, calls_max }
    }

    /// Waits until a call may be made; a `partial` call waits until no call is in flight. The call counts as
    /// in flight until the permit is dropped. Returns `None` only if the semaphore is closed, which never
    /// happens.
    pub async fn begin_call(&self, partial: bool) -> Option<OwnedSemaphorePermit> {
        // Acquire all permits in one call: two threads that each held one permit and waited for the second would
        // deadlock.
        let permits = if partial { self.calls_max } else { 1 };
        let mut all = Arc::clone(&self.calls).acquire_many_owned(permits).await.ok()?;
        all.split(1)
    }

    /// Begins a call if no call is in flight and no claim is queued; otherwise returns `None`.
    pub fn begin_call_if_idle(&self) -> Option<OwnedSemaphorePermit> {
        if self.pending.load(Ordering::Relaxed) > 0 {
            return None;
        }
        Arc::clone(&self.calls).try_acquire_many_owned(self.calls_max).ok()?.split(1)
    }

    /// Counts a claim that is about to be queued. Returns `false` if too many claims are queued already.
    pub fn enter(&self) -> bool {
        let enter = |pending| (pending < PENDING_MAX).then_some(pending + 1);
        self.pending.fetch_update(Ordering::Relaxed, Ordering::Relaxed, enter).is_ok()
    }

    /// Records that `claims` claims are no longer queued.
    pub fn leave(&self, claims: usize) {
        self.pending.fetch_sub(claims, Ordering::Relaxed);
    }

    /// Returns the number of queued claims.
    #[cfg(test)]
    pub fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }
}

/// The states of campaigns that have queues. A state is dropped with the campaign's last queue.
#[derive(Debug, Default)]
pub(super) struct QueueStates(Mutex<HashMap<CampaignId, Weak<QueueState>>>);

impl QueueStates {
    /// Returns the state of `campaign`, if the campaign has a queue.
    pub fn get(&self, campaign: &CampaignId) -> Option<Arc<QueueState>> {
        self.0.lock().get(campaign).and_then(Weak::upgrade)
    }

    /// Returns the state of `campaign`, for a new queue that makes calls of at most `batch_max` claims.
    pub fn get_or_create(&self, campaign: &CampaignId, batch_max: usize) -> Arc<QueueState> {
        let mut states = self.0.lock();
        if let Some(state) = states.get(campaign).and_then(Weak::upgrade) {
            return state;
        }
        let state = Arc::new(QueueState::new(batch_max));
        states.insert(campaign.clone(), Arc::downgrade(&state));
        state
    }

    /// Removes the entries of dropped states.
    pub fn drop_unused(&self) {
        let mut states = self.0.lock();
        states.retain(|_, state| state.strong_count() > 0);
    }
}
