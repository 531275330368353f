//! The scheme of user ids that the database is pinned to.

use axum::http::StatusCode;
use claimgate_shared::admin::user_ids::UserIdsView;
use claimgate_shared::user_id::Scheme;
use serde::Deserialize;

use crate::clock;
use crate::http::authorization::{Admin, Viewer};
use crate::http::error::ApiResult;
use crate::http::extract::{ParseBody, WithBody, json};

/// `POST /admin/v1/user-ids`.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UserIdsChange {
    /// The form and the fingerprint of the edges' new user ids.
    user_ids: Scheme,
}

impl ParseBody for UserIdsChange {}

/// Shows the scheme of user ids that the database is pinned to.
#[utoipa::path(
    get, path = "/admin/v1/user-ids", tag = "admin", operation_id = "getUserIds",
    responses((status = 200, description = "The scheme, and the last rejection", body = UserIdsView)),
    security(("adminToken" = ["viewer"])),
)]
pub async fn show(Viewer(_, engine): Viewer) -> ApiResult {
    json(StatusCode::OK, &engine.user_ids.view().await?)
}

/// Changes the scheme of user ids that the database is pinned to, once all campaigns have ended.
#[utoipa::path(
    post, path = "/admin/v1/user-ids", tag = "admin", operation_id = "setUserIds",
    request_body = UserIdsChange,
    responses((status = 200, description = "Changed; other cores apply it within a second", body = UserIdsView)),
    security(("adminToken" = ["admin"])),
    extensions(("x-codes" = json!(["campaign_open"]))),
)]
pub async fn change(WithBody(Admin(caller, engine), change): WithBody<Admin, UserIdsChange>) -> ApiResult {
    engine.user_ids.set(change.user_ids, caller.name(), clock::now()).await?;
    json(StatusCode::OK, &engine.user_ids.view().await?)
}
