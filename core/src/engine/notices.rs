//! Notices of work on campaigns, from the call that finds it to the job that does it. A campaign is in a list once, however
//! often it is noticed: a refused crowd costs a flag, not a call.

use std::sync::{Mutex, PoisonError};

use claimgate_shared::CampaignId;
use tokio::sync::Notify;

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

/// One list per kind of work.
#[derive(Debug, Default)]
pub struct Notices {
    /// Campaigns that were found not to be ready, for the maintenance.
    pub maintenance: Inbox,
    /// Campaigns whose next hold falls due earlier than was known, for the maintenance.
    pub holds: Inbox,
    /// Campaigns that may have something in their outbox, for the relay.
    pub outbox: Inbox,
}
