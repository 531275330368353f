//! Imports of past claims from a file.

use claimgate_shared::admin::reconciliation::Imported;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use claimgate_shared::{CampaignId, Code, Problem};
use tokio::time::timeout;

use crate::clock;
use crate::http::error::{ApiError, ApiResult};
use crate::http::extract::{AdminFile, PathCampaign, json};
use crate::http::state::AppState;
use crate::store::sql::Change;

/// Time limit of an import, including the upload and the wait for a running import.
const IMPORT_TIMEOUT: Duration = Duration::from_mins(10);

/// Imports past claims into a campaign that is scheduled or paused. Imported claims count like all others.
///
/// The header is `user_id,quantity`, optionally followed by `claimed_at`, `idempotency_key` or both. All
/// lines are checked before the first is written. If the import is interrupted after that, the campaign can
/// neither be resumed nor open until the import of the same file has been completed.
#[utoipa::path(
    post, path = "/admin/v1/campaigns/{id}/import", tag = "admin", operation_id = "importClaims",
    params(("id" = CampaignId, Path)),
    request_body(content = String, content_type = "text/csv", description = "At most 256 MiB, with a Content-Length"),
    responses((status = 200, description = "All of the file's claims are stored", body = Imported)),
    security(("adminToken" = ["admin"])),
    extensions(("x-codes" = json!([
        "campaign_not_found", "campaign_open", "campaign_ended", "import_unfinished", "sold_out",
        "user_limit_reached", "user_daily_limit_reached", "quantity_out_of_range",
        "idempotency_key_reused", "campaign_not_ready", "user_ids_differ",
    ]))),
)]
pub async fn import(
    State(state): State<AppState>,
    PathCampaign(id): PathCampaign,
    file: AdminFile,
) -> ApiResult {
    let imported = timeout(IMPORT_TIMEOUT, async {
        // One import at a time, because each file is held in memory.
        let _turn = state.import_turn().await;
        let (caller, csv) = file.read().await?;
        let change = Change { who: caller.name(), what: "import", at: clock::now() };
        json(StatusCode::OK, &state.engine(&caller).changes.import(&id, csv, change).await?)
    });
    imported.await.unwrap_or_else(|_| {
        let minutes = IMPORT_TIMEOUT.as_secs() / 60;
        let why = format!(
            "the import is not complete after {minutes} minutes; send the same file again to continue it"
        );
        Err(ApiError::because("timeout", Problem::new(Code::Unavailable, why)))
    })
}
