//! Tells whether the database has lost codes that winners may have seen.

use tokio::time::timeout;

use super::SHOWN_MAX;
use crate::domain::campaign::{Campaign, ShownProgress};

/// Returns whether the database may have lost data of a campaign with codes. `locked` is its row, which is locked, and
/// `shown` reads the campaign's progress in Redis: no later version can be stored between this read and the commit. A
/// change must not take the number of a lost version. If the rules were equal, nothing would show the loss any more,
/// and codes that winners have seen would be given again.
pub(super) async fn may_have_lost_codes(
    locked: &Campaign,
    shown: impl Future<Output = Option<ShownProgress>>,
) -> bool {
    // Redis does not have an evicted campaign.
    if locked.codes.is_none() || locked.evicted.is_some() {
        return false;
    }
    let shown = timeout(SHOWN_MAX, shown).await;
    shown.ok().flatten().is_none_or(|shown| locked.lacks(shown))
}
