//! Campaigns, for the edge and for back ends.

use axum::extract::State;
use axum::http::StatusCode;
use claimgate_shared::CampaignView;
use claimgate_shared::problem::ProblemFields;

use crate::http::error::ApiResult;
use crate::http::extract::{ApiCaller, PathCampaign, json};
use crate::http::state::AppState;

/// Shows a campaign.
#[utoipa::path(
    get, path = "/internal/v1/campaigns/{id}", tag = "internal",
    params(("id" = claimgate_shared::CampaignId, Path)),
    responses(
        (status = 200, description = "The campaign", body = CampaignView),
        (status = "default", description = "404 and other problems", body = ProblemFields),
    ),
)]
pub async fn show(
    State(state): State<AppState>,
    ApiCaller(caller): ApiCaller,
    PathCampaign(id): PathCampaign,
) -> ApiResult {
    json(StatusCode::OK, &state.engine(&caller).view(&id).await?)
}
