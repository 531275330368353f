//! What the queues of a campaign share on all threads: the bounds on its claims, and its sold-out cache.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use claimgate_shared::CampaignId;
use tokio::sync::Semaphore;

use super::sold_out_cache::SoldOutCache;
use crate::config::BATCH_MAX;

/// Claims of one campaign in flight at once: while Redis works on one full batch the next is already sent. Another
/// campaign's claim waits behind these two batches, and no more.
pub(super) const IN_FLIGHT_MAX: usize = 2 * BATCH_MAX;
/// The most claims that may wait for one campaign; further ones are refused untried.
const PENDING_MAX: usize = 8192;

/// What the queues of one campaign share, whatever thread they are of.
#[derive(Debug)]
pub(super) struct CampaignLoad {
    pub sold_out: Arc<SoldOutCache>,
    /// The number of claims that wait.
    pending: AtomicUsize,
    /// A permit for each claim that may be in flight.
    pub in_flight: Arc<Semaphore>,
}

impl Default for CampaignLoad {
    fn default() -> Self {
        let in_flight = Arc::new(Semaphore::new(IN_FLIGHT_MAX));
        Self { sold_out: Arc::default(), pending: AtomicUsize::new(0), in_flight }
    }
}

impl CampaignLoad {
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

/// The loads of the campaigns that have queues: each goes with its last queue.
#[derive(Debug, Default)]
pub(super) struct CampaignLoads(Mutex<HashMap<CampaignId, Weak<CampaignLoad>>>);

impl CampaignLoads {
    /// The load of `campaign`, if it has a queue.
    pub fn get(&self, campaign: &CampaignId) -> Option<Arc<CampaignLoad>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(campaign).and_then(Weak::upgrade)
    }

    /// The load of `campaign`, for a new queue.
    pub fn get_or_make(&self, campaign: &CampaignId) -> Arc<CampaignLoad> {
        let mut loads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(load) = loads.get(campaign).and_then(Weak::upgrade) {
            return load;
        }
        let load = Arc::new(CampaignLoad::default());
        loads.insert(campaign.clone(), Arc::downgrade(&load));
        load
    }

    /// Forgets the loads that have gone.
    pub fn drop_unused(&self) {
        let mut loads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        loads.retain(|_, load| load.strong_count() > 0);
    }
}
