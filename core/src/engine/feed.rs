//! The feed of changed claims.

use std::time::Duration;

use claimgate_shared::CampaignId;
use tokio::time::timeout;

use super::{Engine, EngineError};
use crate::store::sql::{FeedCursor, FeedPage};

impl Engine {
    /// Up to `limit` claims of one campaign or of all that have changed after the place `after`, or ever.
    ///
    /// # Errors
    /// [`EngineError::CursorInvalid`] when `after` is no place of this feed, [`EngineError::CampaignNotFound`], or
    /// [`EngineError::Sql`].
    pub async fn feed(
        &self,
        campaign: Option<&CampaignId>,
        after: Option<&FeedCursor>,
        limit: u32,
    ) -> Result<FeedPage, EngineError> {
        let page = self.sync.sql.feed(campaign, after, limit).await?.ok_or(EngineError::CursorInvalid)?;
        if let Some(id) = campaign.filter(|_| page.items.is_empty()) {
            self.campaign(id).await?;
        }
        Ok(page)
    }

    /// Waits until there may be something behind `page`, at most for `limit`; `false` when there is not.
    ///
    /// # Errors
    /// [`EngineError::Sql`] when SQL does not answer.
    pub async fn feed_goes_on(&self, page: &FeedPage, limit: Duration) -> Result<bool, EngineError> {
        let relayed = &self.registry.notices().relayed;
        Ok(timeout(limit, self.feed_watch.beyond(page.last, relayed)).await.unwrap_or(Ok(false))?)
    }
}
