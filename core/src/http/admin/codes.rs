//! A campaign's codes.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use claimgate_shared::admin::codes::{AddedCodes, CodeCounts};
use claimgate_shared::{CampaignId, Code, Problem};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::clock;
use crate::domain::codes::CodesFile;
use crate::http::authorization::Viewer;
use crate::http::error::{ApiError, ApiResult};
use crate::http::extract::{AdminFile, PathCampaign, json};
use crate::http::state::AppState;
use crate::store::sql::Change;

/// Time limit of a call that adds codes, including the upload and the wait for another file.
const ADD_TIMEOUT: Duration = Duration::from_mins(10);

/// Adds codes to a campaign, one per line. A code that the campaign has already is not added again.
///
/// All lines are checked before the first code is added. If the call is interrupted after that, send the same file
/// again.
#[utoipa::path(
    post, path = "/admin/v1/campaigns/{id}/codes", tag = "admin", operation_id = "addCodes",
    params(("id" = CampaignId, Path)),
    request_body(content = String, content_type = "text/csv",
        description = "At most 5,000,000 codes and 256 MiB, with a Content-Length; a first line `code` is optional"),
    responses((status = 200, description = "The campaign has all codes of the file", body = AddedCodes)),
    security(("adminToken" = ["admin"])),
    extensions(("x-codes" = json!(["campaign_not_found", "import_unfinished", "campaign_not_ready"]))),
)]
pub async fn add(
    State(state): State<AppState>,
    PathCampaign(id): PathCampaign,
    file: AdminFile,
) -> ApiResult {
    let added = timeout(ADD_TIMEOUT, async {
        // One file at a time, because each is held in memory.
        let _turn = state.import_turn().await;
        let (caller, csv) = file.read().await?;
        let parsed = spawn_blocking(|| CodesFile::parse(csv)).await;
        let codes = parsed.unwrap_or_else(|_| {
            Err(Problem::new(Code::Unavailable, "the file could not be read; send it again"))
        })?;
        let change = Change { who: caller.name(), what: "codes", at: clock::now() };
        json(StatusCode::OK, &state.engine(&caller).changes.add_codes(&id, &codes, change).await?)
    });
    added.await.unwrap_or_else(|_| {
        let minutes = ADD_TIMEOUT.as_secs() / 60;
        let why = format!("not complete after {minutes} minutes; send the same file again to continue");
        Err(ApiError::because("timeout", Problem::new(Code::Unavailable, why)))
    })
}

/// Counts a campaign's codes.
#[utoipa::path(
    get, path = "/admin/v1/campaigns/{id}/codes", tag = "admin", operation_id = "countCodes",
    params(("id" = CampaignId, Path)),
    responses((status = 200, description = "The counts", body = CodeCounts)),
    security(("adminToken" = ["viewer"])),
    extensions(("x-codes" = json!(["campaign_not_found"]))),
)]
pub async fn count(Viewer(_, engine): Viewer, PathCampaign(id): PathCampaign) -> ApiResult {
    json(StatusCode::OK, &engine.claims.count_codes(&id).await?)
}
