//! All campaigns that this core holds, by id: those that are not evicted, and evicted ones that were asked for lately.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use claimgate_shared::CampaignId;

use super::handle::CampaignHandle;
use super::notices::Notices;
use crate::domain::campaign::Campaign;

/// Every campaign that this core holds.
#[derive(Debug, Default)]
pub struct CampaignRegistry {
    by_id: RwLock<HashMap<CampaignId, Arc<CampaignHandle>>>,
    notices: Arc<Notices>,
}

impl CampaignRegistry {
    /// The handle of the campaign `id`, if this core holds it.
    pub fn get(&self, id: &CampaignId) -> Option<Arc<CampaignHandle>> {
        self.by_id.read().unwrap_or_else(PoisonError::into_inner).get(id).map(Arc::clone)
    }

    /// The notices that all handles share.
    pub fn notices(&self) -> &Notices {
        &self.notices
    }

    /// The handles of all campaigns.
    pub fn all(&self) -> Vec<Arc<CampaignHandle>> {
        self.by_id.read().unwrap_or_else(PoisonError::into_inner).values().map(Arc::clone).collect()
    }

    /// Forgets the evicted campaigns that nothing is at work on: SQL has them, for the next one that asks. A core may run for
    /// longer than a million campaigns.
    pub fn forget_evicted(&self) {
        let mut by_id = self.by_id.write().unwrap_or_else(PoisonError::into_inner);
        // No other thread gets at a handle meanwhile: no campaign ever has two.
        by_id.retain(|_, handle| handle.campaign().evicted.is_none() || Arc::strong_count(handle) > 1);
    }

    /// Adds a campaign as read from the database, or updates its handle if that holds an older one. Returns the handle.
    pub fn update(&self, campaign: Campaign) -> Arc<CampaignHandle> {
        let mut by_id = self.by_id.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = by_id.get(&campaign.id) {
            handle.update(campaign);
            return Arc::clone(handle);
        }
        let handle = Arc::new(CampaignHandle::new(campaign.clone(), Arc::clone(&self.notices)));
        by_id.insert(campaign.id, Arc::clone(&handle));
        handle
    }
}
