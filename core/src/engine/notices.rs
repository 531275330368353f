//! What campaigns want done, from whoever notices it to the job that does it. A campaign stands in a list once, however
//! often it is told: crowds that are refused cost a flag, not a look.

use std::sync::{Mutex, PoisonError};

use claimgate_shared::CampaignId;
use tokio::sync::Notify;

/// Campaigns that one job has to look at.
#[derive(Debug, Default)]
pub struct Inbox {
    ids: Mutex<Vec<CampaignId>>,
    arrived: Notify,
}

impl Inbox {
    /// Puts a campaign in and wakes the job. That it is not in already is for the caller to see to.
    pub fn put(&self, id: CampaignId) {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).push(id);
        self.arrived.notify_one();
    }

    /// Takes all that is in it.
    pub fn take(&self) -> Vec<CampaignId> {
        std::mem::take(&mut self.ids.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until something has been put in since this was last waited for; look into it first.
    pub async fn arrived(&self) {
        self.arrived.notified().await;
    }
}

/// One list a kind of work.
#[derive(Debug, Default)]
pub struct Notices {
    /// Campaigns that were found not to be ready, for the maintenance.
    pub maintenance: Inbox,
    /// Campaigns whose next hold falls due earlier than was known, for the maintenance.
    pub holds: Inbox,
    /// Campaigns that may have something in their outbox, for the relay.
    pub outbox: Inbox,
}
