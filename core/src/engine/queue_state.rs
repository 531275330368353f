//! What the queues of a campaign share on all threads: the bounds on its claims, and its sold-out cache.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use claimgate_shared::CampaignId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::sold_out_cache::SoldOutCache;
use crate::config::BATCH_MAX;

/// Claims of one campaign in flight at once: while Redis works on one full batch the next is already sent. Another
/// campaign's claim waits behind these two batches, and no more.
const IN_FLIGHT_MAX: usize = 2 * BATCH_MAX;
/// The most claims that may wait for one campaign; further ones are refused untried.
const PENDING_MAX: usize = 8192;

/// What the queues of one campaign share, whatever thread they are of.
#[derive(Debug)]
pub(super) struct QueueState {
    pub sold_out: Arc<SoldOutCache>,
    /// The number of claims that wait.
    pending: AtomicUsize,
    /// A permit for each call that may be in flight.
    calls: Arc<Semaphore>,
    calls_max: u32,
}

impl QueueState {
    /// For calls of at most `batch_max` claims.
    fn new(batch_max: usize) -> Self {
        let calls_max = u32::try_from(IN_FLIGHT_MAX / batch_max.max(1)).unwrap_or(u32::MAX).max(1);
        let calls = Arc::new(Semaphore::new(calls_max as usize));
        Self { sold_out: Arc::default(), pending: AtomicUsize::new(0), calls, calls_max }
    }

    /// Waits until a call may be made, a `partial` one until none is in flight. The call is in flight until the permit is
    /// dropped. `None` for a closed semaphore, which this one never is.
    pub async fn begin_call(&self, partial: bool) -> Option<OwnedSemaphorePermit> {
        // All at once: two threads that held one each and waited for the other's would wait for ever.
        let permits = if partial { self.calls_max } else { 1 };
        let mut all = Arc::clone(&self.calls).acquire_many_owned(permits).await.ok()?;
        all.split(1)
    }

    /// Begins a call beside no other one; `None` while one is in flight, or while claims wait.
    pub fn begin_lone_call(&self) -> Option<OwnedSemaphorePermit> {
        if self.pending.load(Ordering::Relaxed) > 0 {
            return None;
        }
        Arc::clone(&self.calls).try_acquire_many_owned(self.calls_max).ok()?.split(1)
    }

    /// Counts a claim that is about to wait; false when too many do.
    pub fn enter(&self) -> bool {
        let enter = |pending| (pending < PENDING_MAX).then_some(pending + 1);
        self.pending.fetch_update(Ordering::Relaxed, Ordering::Relaxed, enter).is_ok()
    }

    /// Counts `claims` that wait no more.
    pub fn leave(&self, claims: usize) {
        self.pending.fetch_sub(claims, Ordering::Relaxed);
    }

    /// The number of claims that wait.
    #[cfg(test)]
    pub fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }
}

/// The states of the campaigns that have queues: each goes with its last queue.
#[derive(Debug, Default)]
pub(super) struct QueueStates(Mutex<HashMap<CampaignId, Weak<QueueState>>>);

impl QueueStates {
    /// The state of `campaign`, if it has a queue.
    pub fn get(&self, campaign: &CampaignId) -> Option<Arc<QueueState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(campaign).and_then(Weak::upgrade)
    }

    /// The state of `campaign`, for a new queue that makes calls of at most `batch_max` claims.
    pub fn get_or_make(&self, campaign: &CampaignId, batch_max: usize) -> Arc<QueueState> {
        let mut states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(state) = states.get(campaign).and_then(Weak::upgrade) {
            return state;
        }
        let state = Arc::new(QueueState::new(batch_max));
        states.insert(campaign.clone(), Arc::downgrade(&state));
        state
    }

    /// Forgets the states that have gone.
    pub fn drop_unused(&self) {
        let mut states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        states.retain(|_, state| state.strong_count() > 0);
    }
}
