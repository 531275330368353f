//! Redis and SQL compared, and repaired.

use axum::extract::State;
use axum::http::StatusCode;
use claimgate_shared::CampaignId;
use claimgate_shared::problem::ProblemFields;

use crate::engine::reconcile::Reconciliation;
use crate::http::error::ApiResult;
use crate::http::extract::{Admin, PathCampaign, Viewer, json};
use crate::http::state::AppState;

/// Compares Redis and SQL; changes nothing.
#[utoipa::path(
    get, path = "/admin/v1/campaigns/{id}/reconciliation", tag = "admin", params(("id" = CampaignId, Path)),
    responses(
        (status = 200, description = "Both sides, and what differs", body = Reconciliation),
        (status = "default", description = "A problem", body = ProblemFields),
    ),
)]
pub async fn compare(
    State(state): State<AppState>,
    Viewer(caller): Viewer,
    PathCampaign(id): PathCampaign,
) -> ApiResult {
    json(StatusCode::OK, &state.engine(&caller).compare(&id).await?)
}

/// Repairs what is safe to repair, and lists what was done.
#[utoipa::path(
    post, path = "/admin/v1/campaigns/{id}/reconciliation", tag = "admin", params(("id" = CampaignId, Path)),
    responses(
        (status = 200, description = "Both sides after the repair, and what was done", body = Reconciliation),
        (status = "default", description = "A problem", body = ProblemFields),
    ),
)]
pub async fn repair(
    State(state): State<AppState>,
    Admin(caller): Admin,
    PathCampaign(id): PathCampaign,
) -> ApiResult {
    json(StatusCode::OK, &state.engine(&caller).repair(&id).await?)
}
