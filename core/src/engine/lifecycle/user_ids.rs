//! Checks the user ids of a campaign's claims after the first scheme was pinned.
//!
//! Problem: a user whose claim has another id would get a second allowance under the pinned scheme. SQL may lack
//! the latest claims, and a core that has not polled SQL since the pin accepts other ids.
//!
//! Idea: load the campaign again. The load suspends it, so SQL gets all of its claims, and raises the epoch,
//! with which SQL records whether all claims have ids of the pinned scheme. Redis rejects calls under the former
//! epoch. A core that has read the new epoch has read this record with it, and sends no claim under another id. An
//! import that has read its file before the pin cannot begin after it. So a checked campaign stays checked.

use std::sync::Arc;
use std::time::Duration;

use super::recovery::{READY_WAIT, Recovered, Recovery};
use crate::domain::campaign::Campaign;
use crate::domain::not_ready::NotReadyReason;
use crate::domain::user_ids::PinnedScheme;
use crate::engine::campaign::handle::CampaignHandle;
use crate::engine::error::{EngineError, RecoveryError, StoreError};
use crate::step;

impl Recovery {
    /// Ensures that all claims of a campaign, present and future, have ids of the `pinned` scheme. Returns the
    /// campaign, which is checked, or evicted; `None` if a claim has another id.
    ///
    /// # Errors
    /// [`EngineError::LoadingElsewhere`] if another task has the campaign's lease, or a store's error.
    pub(in crate::engine) async fn check_user_ids(
        &self,
        handle: &CampaignHandle,
        pinned: PinnedScheme,
    ) -> Result<Option<Arc<Campaign>>, EngineError> {
        // In tests, a schedule may pause the other task for as long as this task waits.
        let wait = if step::is_scheduled() { Duration::ZERO } else { READY_WAIT };
        let checked = self.leased(handle, wait, || self.check_user_ids_leased(handle, pinned)).await?;
        checked.unwrap_or(Err(EngineError::LoadingElsewhere))
    }

    async fn check_user_ids_leased(
        &self,
        handle: &CampaignHandle,
        pinned: PinnedScheme,
    ) -> Result<Option<Arc<Campaign>>, EngineError> {
        let id = &handle.campaign().id;
        for is_loaded in [false, true] {
            let Some(row) = self.stores.sql.campaign(id).await? else {
                handle.suspect_sql_loss();
                return Err(StoreError::not_ready(NotReadyReason::Forgotten).into());
            };
            // Another core may have checked the campaign.
            let campaign = self.registry.update(row).campaign();
            if !pinned.requires_check_of(&campaign) {
                return Ok(Some(campaign));
            }
            // Also before the load, so that a campaign with other ids is not suspended for each check.
            if self.stores.sql.has_other_user_ids(id, pinned.scheme).await? {
                return Ok(None);
            }
            if !is_loaded {
                match self.recover_leased(handle, true).await {
                    Ok(Recovered::Elsewhere) | Err(RecoveryError::Superseded) => break,
                    loaded => loaded?,
                };
            }
        }
        Err(EngineError::LoadingElsewhere)
    }
}
