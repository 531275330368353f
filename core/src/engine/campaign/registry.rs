//! All campaigns in this core's memory, by id: campaigns that are not evicted, and evicted campaigns that
//! were requested recently.

use std::collections::HashMap;
use std::sync::Arc;

use claimgate_shared::CampaignId;
use parking_lot::RwLock;

use super::handle::CampaignHandle;
use super::notices::Notices;
use crate::domain::campaign::Campaign;

/// Every campaign in this core's memory.
#[derive(Debug, Default)]
pub struct CampaignRegistry {
    by_id: RwLock<HashMap<CampaignId, Arc<CampaignHandle>>>,
    notices: Arc<Notices>,
}

impl CampaignRegistry {
    /// Returns the handle of the campaign `id`, if it is in memory.
    pub fn get(&self, id: &CampaignId) -> Option<Arc<CampaignHandle>> {
        self.by_id.read().get(id).map(Arc::clone)
    }

    /// Returns the notices that all handles share.
    pub fn notices(&self) -> &Notices {
        &self.notices
    }

    /// Returns the handles of all campaigns.
    pub fn all(&self) -> Vec<Arc<CampaignHandle>> {
        self.by_id.read().values().map(Arc::clone).collect()
    }

    /// Removes evicted campaigns that no task uses; the next request reads them from SQL. Over time a core
    /// may see a million campaigns.
    pub fn forget_evicted(&self) {
        let mut by_id = self.by_id.write();
        // Under this lock no other thread can obtain a handle, so a campaign never has two handles.
        by_id.retain(|_, handle| handle.campaign().evicted.is_none() || Arc::strong_count(handle) > 1);
    }

    /// Adds a campaign read from the database, or updates the campaign's handle if the handle is older.
    /// Returns the handle.
    pub fn update(&self, campaign: Campaign) -> Arc<CampaignHandle> {
        let mut by_id = self.by_id.write();
        if let Some(handle) = by_id.get(&campaign.id) {
            handle.update(campaign);
            return Arc::clone(handle);
        }
        let handle = Arc::new(CampaignHandle::new(campaign.clone(), Arc::clone(&self.notices)));
        by_id.insert(campaign.id, Arc::clone(&handle));
        handle
    }
}
