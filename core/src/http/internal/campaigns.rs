//! Campaigns, for the edge and for back ends.

use axum::http::StatusCode;
use claimgate_shared::CampaignView;

use crate::http::authorization::ApiCaller;
use crate::http::error::ApiResult;
use crate::http::extract::{PathCampaign, json};

/// Shows a campaign.
#[utoipa::path(
    get, path = "/internal/v1/campaigns/{id}", tag = "internal", operation_id = "getCampaignView",
    params(("id" = claimgate_shared::CampaignId, Path)),
    responses((status = 200, description = "The campaign", body = CampaignView)),
    security(("apiToken" = []), ("adminToken" = ["viewer"]), ("edgeSignature" = [])),
    extensions(("x-codes" = json!(["campaign_not_found", "campaign_not_ready"]))),
)]
pub async fn show(ApiCaller(_, engine): ApiCaller, PathCampaign(id): PathCampaign) -> ApiResult {
    json(StatusCode::OK, &engine.campaigns.view(&id).await?)
}
