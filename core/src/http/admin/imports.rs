//! Past claims, imported from a file.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use claimgate_shared::problem::ProblemFields;
use claimgate_shared::{CampaignId, Code, Problem};
use tokio::time::timeout;

use crate::clock;
use crate::engine::Imported;
use crate::http::error::{ApiError, ApiResult};
use crate::http::extract::{AdminFile, PathCampaign, json};
use crate::http::state::AppState;
use crate::store::sql::Change;

/// The longest that an import takes, its file's way to core and the wait for another one included.
const IMPORT_TIMEOUT: Duration = Duration::from_mins(10);

/// Imports past claims into a campaign that is scheduled or paused. They count as if they had been made.
///
/// The header is `user_id,quantity`, then `claimed_at`, `idempotency_key`, both or neither. All lines are checked before the
/// first is written. If it breaks off then, the campaign cannot be resumed, nor does it open, until the same file again has
/// completed the import.
#[utoipa::path(
    post, path = "/admin/v1/campaigns/{id}/import", tag = "admin", params(("id" = CampaignId, Path)),
    request_body(content = String, content_type = "text/csv", description = "At most 256 MiB, with a Content-Length"),
    responses(
        (status = 200, description = "All of the file's claims are there", body = Imported),
        (status = "default", description = "409 campaign_open, import_unfinished or the limit that would be exceeded, \
            and other problems; `field` names the line", body = ProblemFields),
    ),
)]
pub async fn import(
    State(state): State<AppState>,
    PathCampaign(id): PathCampaign,
    file: AdminFile,
) -> ApiResult {
    let imported = timeout(IMPORT_TIMEOUT, async {
        // One after another: each file is held in memory.
        let _turn = state.import_turn().await;
        let (caller, csv) = file.read().await?;
        let change = Change { who: caller.name(), what: "import", at: clock::now() };
        json(StatusCode::OK, &state.engine(&caller).import(&id, csv, change).await?)
    });
    imported.await.unwrap_or_else(|_| {
        let minutes = IMPORT_TIMEOUT.as_secs() / 60;
        let why = format!("not complete after {minutes} minutes: the same file again goes on with it");
        Err(ApiError::because("timeout", Problem::new(Code::Unavailable, why)))
    })
}
