//! Checks the user ids of a campaign before its first claim under the pinned scheme.
//!
//! The check itself is in `lifecycle::user_ids`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::OwnedMutexGuard;

use super::Claims;
use crate::domain::campaign::Campaign;
use crate::domain::user_ids::{PinnedScheme, UserIdsDiffer};
use crate::engine::campaign::handle::CampaignHandle;
use crate::engine::error::EngineError;
use crate::engine::lifecycle::recovery::Recovery;
use crate::engine::user_ids::UserIds;
use crate::step;

/// TTL of the result of a check that has found other user ids.
const RECHECK_AFTER: Duration = Duration::from_secs(1);

impl Claims {
    /// Checks that all claims of a campaign, present and future, have ids of the `pinned` scheme. Returns the
    /// campaign, which is checked, or evicted.
    ///
    /// # Errors
    /// [`EngineError::UserIdsDiffer`] if a claim has another id; [`EngineError::LoadingElsewhere`], or a
    /// store's error.
    pub(super) async fn check_user_ids(
        &self,
        handle: &Arc<CampaignHandle>,
        pinned: PinnedScheme,
    ) -> Result<Arc<Campaign>, EngineError> {
        // Taken before the task begins, so that callers who have left do not stay in the queue.
        let turn = Arc::clone(&handle.user_ids_check).lock_owned().await;
        let campaign = handle.campaign();
        // Another claim may have had the turn before.
        if !pinned.requires_check_of(&campaign) {
            return Ok(campaign);
        }
        let (user_ids, recovery) = (self.campaigns.user_ids.clone(), Arc::clone(&self.recovery));
        let check = check_once(user_ids, recovery, Arc::clone(handle), pinned, turn);
        if step::is_scheduled() {
            return check.await;
        }
        // On a task: a claim has less time than a large campaign takes to be loaded.
        tokio::spawn(check).await.map_err(|_| EngineError::Stopping)?
    }
}

async fn check_once(
    user_ids: UserIds,
    recovery: Arc<Recovery>,
    handle: Arc<CampaignHandle>,
    pinned: PinnedScheme,
    mut differed_at: OwnedMutexGuard<Option<Instant>>,
) -> Result<Arc<Campaign>, EngineError> {
    if differed_at.is_none_or(|at| at.elapsed() >= RECHECK_AFTER) {
        // The load reads the scheme from SQL, which may have lost it.
        user_ids.refresh().await?;
        if let Some(campaign) = recovery.check_user_ids(&handle, pinned).await? {
            return Ok(campaign);
        }
        *differed_at = Some(Instant::now());
    }
    let campaign = handle.campaign().id.clone();
    Err(user_ids.rejected(UserIdsDiffer::Claims { pinned: pinned.scheme, campaign }))
}
