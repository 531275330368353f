//! Units added to a campaign's total.

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode};
use claimgate_shared::admin::AdminView;
use claimgate_shared::problem::ProblemFields;
use claimgate_shared::{CampaignId, http};

use super::campaigns::answer;
use crate::clock;
use crate::domain::addition::Addition;
use crate::engine::AddedUnits;
use crate::http::error::ApiResult;
use crate::http::extract::{Operator, PathCampaign, REPLAYED, WithBody};
use crate::http::middleware::in_time;
use crate::http::state::AppState;
use crate::store::sql::Change;

/// Adds units to the total, or takes some off it; once for each idempotency key.
#[utoipa::path(
    post, path = "/admin/v1/campaigns/{id}/add", tag = "admin", params(("id" = CampaignId, Path)),
    request_body = Addition,
    responses(
        (status = 200, description = "Added; counts from the next decision on. With `Idempotent-Replayed` it was added before",
            body = AdminView),
        (status = "default", description = "400 without a total, 409 campaign_ended, 422 quantity_out_of_range, \
            idempotency_key_reused and other problems", body = ProblemFields),
    ),
)]
pub async fn add(
    State(state): State<AppState>,
    PathCampaign(id): PathCampaign,
    WithBody(Operator(caller), addition): WithBody<Operator, Addition>,
) -> ApiResult {
    in_time(async {
        let change = Change { who: caller.name(), what: "add", at: clock::now() };
        let added = state.engine(&caller).add(&id, &addition, change).await?;
        let mut response = answer(&state, &caller, StatusCode::OK, &id).await?;
        if added == AddedUnits::Before {
            response.headers_mut().insert(REPLAYED, HeaderValue::from_static(http::REPLAYED));
        }
        Ok(response)
    })
    .await
}
