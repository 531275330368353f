//! The feed of changed claims.

pub mod watch;

use std::sync::Arc;
use std::time::Duration;

use claimgate_shared::CampaignId;
use tokio::time::timeout;

use self::watch::FeedWatch;
use super::campaigns::Campaigns;
use super::error::EngineError;
use crate::store::sql::{FeedCursor, FeedPage};

/// Reads changed claims, in the order in which SQL committed them.
#[derive(Debug)]
pub struct Feed {
    pub(super) campaigns: Campaigns,
    /// Waits for new entries of the feed.
    pub watch: Arc<FeedWatch>,
}

impl Feed {
    /// Returns up to `limit` changed claims of one campaign or of all campaigns. Starts after the cursor
    /// `after`, or at the beginning of the feed.
    pub async fn read(
        &self,
        campaign: Option<&CampaignId>,
        after: Option<&FeedCursor>,
        limit: u32,
    ) -> Result<FeedPage, EngineError> {
        let page = self.campaigns.stores.sql.feed(campaign, after, limit).await?;
        let page = page.ok_or(EngineError::CursorInvalid)?;
        if let Some(id) = campaign.filter(|_| page.items.is_empty()) {
            self.campaigns.stored(id).await?;
        }
        Ok(page)
    }

    /// Waits up to `limit` for entries after `page`. Returns `false` on timeout or shutdown.
    pub async fn wait_for_more(&self, page: &FeedPage, limit: Duration) -> Result<bool, EngineError> {
        let relayed = &self.campaigns.registry.notices().relayed;
        Ok(timeout(limit, self.watch.wait_for_number_above(page.last, relayed)).await.unwrap_or(Ok(false))?)
    }
}
