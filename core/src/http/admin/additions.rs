//! Additions of units to a campaign's total.

use axum::http::{HeaderValue, StatusCode};
use claimgate_shared::admin::AdminView;
use claimgate_shared::{CampaignId, http};

use super::campaigns::answer;
use crate::clock;
use crate::domain::addition::Addition;
use crate::engine::campaign_changes::AddedUnits;
use crate::http::authorization::Operator;
use crate::http::error::ApiResult;
use crate::http::extract::{PathCampaign, REPLAYED, WithBody};
use crate::http::middleware::in_time;
use crate::store::sql::Change;

/// Adds units to the total, or removes some, once for each idempotency key.
#[utoipa::path(
    post, path = "/admin/v1/campaigns/{id}/add", tag = "admin", operation_id = "addUnits",
    params(("id" = CampaignId, Path)),
    request_body = Addition,
    responses(
        (status = 200, description = "Added, in force from the next decision on; with `Idempotent-Replayed` if an earlier call added the units",
            body = AdminView, headers(("Idempotent-Replayed" = String, description = "`true`, or absent"))),
    ),
    security(("adminToken" = ["operator"])),
    extensions(("x-codes" = json!([
        "campaign_not_found", "campaign_ended", "import_unfinished", "codes_missing", "quantity_out_of_range",
        "idempotency_key_reused", "campaign_not_ready",
    ]))),
)]
pub async fn add(
    PathCampaign(id): PathCampaign,
    WithBody(Operator(caller, engine), addition): WithBody<Operator, Addition>,
) -> ApiResult {
    in_time(async {
        let change = Change { who: caller.name(), what: "add", at: clock::now() };
        let added = engine.changes.add(&id, &addition, change).await?;
        let mut response = answer(&engine, StatusCode::OK, &id).await?;
        if added == AddedUnits::Before {
            response.headers_mut().insert(REPLAYED, HeaderValue::from_static(http::REPLAYED));
        }
        Ok(response)
    })
    .await
}
