//! A user's claims from a campaign, for the edge and for back ends.

use axum::http::{StatusCode, Uri};
use claimgate_shared::user_claims::UserClaims;
use claimgate_shared::{CampaignId, UserId};

use super::claims::show_codes_to;
use crate::engine::claim::of_user::UserPage;
use crate::http::authorization::ApiCaller;
use crate::http::error::ApiResult;
use crate::http::extract::{PathCampaign, PathUser, json};
use crate::http::paging::{PageQuery, page_begin, page_size, parse_query};

/// Lists a user's claims from a campaign, newest first, with the user's allowance.
#[utoipa::path(
    get, path = "/internal/v1/campaigns/{id}/users/{user_id}", tag = "internal", operation_id = "listUserClaims",
    params(
        ("id" = CampaignId, Path),
        ("user_id" = UserId, Path),
        ("limit" = Option<u32>, Query, description = "The maximum number of items on a page.", minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, description = "The `next_cursor` of the previous page.",
            pattern = r"^[0-9]{1,19}\.[A-Za-z0-9_-]{21}[AQgw]$"),
    ),
    responses((status = 200, description = "A page of claims, and the allowance", body = UserClaims)),
    security(("apiToken" = []), ("adminToken" = ["viewer"]), ("edgeSignature" = [])),
    extensions(("x-codes" = json!(["invalid_request", "campaign_not_found", "campaign_not_ready", "user_ids_differ"]))),
)]
pub async fn show(
    ApiCaller(caller, engine): ApiCaller,
    PathCampaign(id): PathCampaign,
    PathUser(user): PathUser,
    uri: Uri,
) -> ApiResult {
    caller.may_act_for(&user)?;
    engine.user_ids.check_read(caller.user_ids())?;
    let query: PageQuery = parse_query(&uri)?;
    let limit = page_size(query.limit)?;
    let after = page_begin(query.cursor.as_deref())?;
    let mut claims = engine.claims.of_user(&id, &user, UserPage { after: &after, limit }).await?;
    show_codes_to(&caller, &mut claims.items);
    json(StatusCode::OK, &claims)
}
