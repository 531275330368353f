//! Reconciliation of Redis and SQL.

use axum::http::StatusCode;
use claimgate_shared::CampaignId;
use claimgate_shared::admin::reconciliation::Reconciliation;

use crate::http::authorization::{Admin, Viewer};
use crate::http::error::ApiResult;
use crate::http::extract::{PathCampaign, json};

/// Compares Redis and SQL without changing anything.
#[utoipa::path(
    get, path = "/admin/v1/campaigns/{id}/reconciliation", tag = "admin", operation_id = "compareCampaign",
    params(("id" = CampaignId, Path)),
    responses((status = 200, description = "The states of Redis and SQL, and their differences", body = Reconciliation)),
    security(("adminToken" = ["viewer"])),
    extensions(("x-codes" = json!(["campaign_not_found", "campaign_not_ready"]))),
)]
pub async fn compare(Viewer(_, engine): Viewer, PathCampaign(id): PathCampaign) -> ApiResult {
    json(StatusCode::OK, &engine.changes.compare(&id).await?)
}

/// Makes the repairs that are safe, and lists them.
#[utoipa::path(
    post, path = "/admin/v1/campaigns/{id}/reconciliation", tag = "admin", operation_id = "repairCampaign",
    params(("id" = CampaignId, Path)),
    responses(
        (status = 200, description = "The states of Redis and SQL after the repair, and the repairs made", body = Reconciliation),
    ),
    security(("adminToken" = ["admin"])),
    extensions(("x-codes" = json!(["campaign_not_found", "campaign_not_ready"]))),
)]
pub async fn repair(Admin(_, engine): Admin, PathCampaign(id): PathCampaign) -> ApiResult {
    json(StatusCode::OK, &engine.changes.repair(&id).await?)
}
