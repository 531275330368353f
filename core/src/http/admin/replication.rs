//! The replicas that must have a claim before it is acknowledged.

use axum::http::StatusCode;
use claimgate_shared::admin::replication::ReplicationView;
use serde::Deserialize;

use crate::clock;
use crate::http::authorization::{Admin, Viewer};
use crate::http::error::ApiResult;
use crate::http::extract::{ParseBody, WithBody, json};

/// `POST /admin/v1/replication`.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicationChange {
    /// The minimum number of replicas that must have a claim before it is acknowledged; 0 waits for none.
    replicas_min: u32,
}

impl ParseBody for ReplicationChange {}

/// Shows how many replicas are required, and the state of each.
#[utoipa::path(
    get, path = "/admin/v1/replication", tag = "admin", operation_id = "getReplication",
    responses((status = 200, description = "Each primary, its set and its replicas", body = ReplicationView)),
    security(("adminToken" = ["viewer"])),
)]
pub async fn show(Viewer(_, engine): Viewer) -> ApiResult {
    json(StatusCode::OK, &engine.replicas.view().await?)
}

/// Changes how many replicas must have a claim before it is acknowledged.
#[utoipa::path(
    post, path = "/admin/v1/replication", tag = "admin", operation_id = "setReplication",
    request_body = ReplicationChange,
    responses(
        (status = 200, description = "Changed; other cores apply it within a second", body = ReplicationView),
    ),
    security(("adminToken" = ["admin"])),
)]
pub async fn change(
    WithBody(Admin(caller, engine), change): WithBody<Admin, ReplicationChange>,
) -> ApiResult {
    engine.replicas.set_min(change.replicas_min, caller.name(), clock::now()).await?;
    json(StatusCode::OK, &engine.replicas.view().await?)
}

/// Accepts the current primaries, although they may lack acknowledged claims.
#[utoipa::path(
    post, path = "/admin/v1/replication/accept-loss", tag = "admin", operation_id = "acceptLoss",
    responses((status = 200, description = "The replica sets, which are being rebuilt", body = ReplicationView)),
    security(("adminToken" = ["admin"])),
)]
pub async fn accept_loss(Admin(caller, engine): Admin) -> ApiResult {
    engine.replicas.accept_loss(caller.name(), clock::now()).await?;
    json(StatusCode::OK, &engine.replicas.view().await?)
}
