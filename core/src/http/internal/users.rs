//! What a user has of a campaign, for the edge and for back ends.

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use claimgate_shared::problem::ProblemFields;
use claimgate_shared::user_claims::UserClaims;
use claimgate_shared::{CampaignId, UserId};

use crate::engine::user_claims::UserPage;
use crate::http::error::ApiResult;
use crate::http::extract::{ApiCaller, PathCampaign, PathUser, json};
use crate::http::paging::PageQuery;
use crate::http::state::AppState;

/// Lists a user's claims of a campaign, newest first, and tells what is left to the user.
#[utoipa::path(
    get, path = "/internal/v1/campaigns/{id}/users/{user_id}", tag = "internal",
    params(("id" = CampaignId, Path), ("user_id" = UserId, Path), PageQuery),
    responses(
        (status = 200, description = "A page of claims, and what is left", body = UserClaims),
        (status = "default", description = "404 and other problems", body = ProblemFields),
    ),
)]
pub async fn show(
    State(state): State<AppState>,
    ApiCaller(caller): ApiCaller,
    PathCampaign(id): PathCampaign,
    PathUser(user): PathUser,
    uri: Uri,
) -> ApiResult {
    caller.may_act_for(&user)?;
    let query = PageQuery::parse(&uri)?;
    let limit = query.limit()?;
    let after = query.after()?;
    let claims = state.engine(&caller).user_claims(&id, &user, UserPage { after: &after, limit }).await?;
    json(StatusCode::OK, &claims)
}
