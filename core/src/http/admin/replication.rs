//! What is asked of replicas.

use axum::extract::State;
use axum::http::StatusCode;
use claimgate_shared::Problem;
use claimgate_shared::problem::{ProblemFields, parse_json};
use serde::Deserialize;

use crate::clock;
use crate::engine::replication::ReplicationView;
use crate::http::error::ApiResult;
use crate::http::extract::{Admin, ParseBody, Viewer, WithBody, json};
use crate::http::state::AppState;

/// `POST /admin/v1/replication`.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicationChange {
    /// The least number of replicas that must have a claim before it is acknowledged; with 0 none is waited for.
    replicas_min: u32,
}

impl ParseBody for ReplicationChange {
    fn parse_body(body: &[u8]) -> Result<Self, Problem> {
        parse_json(body)
    }
}

/// Tells what is asked of replicas, and how they are.
#[utoipa::path(
    get, path = "/admin/v1/replication", tag = "admin",
    responses(
        (status = 200, description = "Each primary, its set and its replicas", body = ReplicationView),
        (status = "default", description = "A problem", body = ProblemFields),
    ),
)]
pub async fn show(State(state): State<AppState>, Viewer(caller): Viewer) -> ApiResult {
    json(StatusCode::OK, &state.engine(&caller).replication().await?)
}

/// Changes how many replicas must have a claim before it is acknowledged.
#[utoipa::path(
    post, path = "/admin/v1/replication", tag = "admin", request_body = ReplicationChange,
    responses(
        (status = 200, description = "Changed; other cores follow within a second", body = ReplicationView),
        (status = "default", description = "A problem", body = ProblemFields),
    ),
)]
pub async fn change(
    State(state): State<AppState>,
    WithBody(Admin(caller), change): WithBody<Admin, ReplicationChange>,
) -> ApiResult {
    let engine = state.engine(&caller);
    engine.set_replicas_min(change.replicas_min, caller.name(), clock::now()).await?;
    json(StatusCode::OK, &engine.replication().await?)
}

/// Believes whichever servers are the primaries now, though they may lack acknowledged claims.
#[utoipa::path(
    post, path = "/admin/v1/replication/accept-loss", tag = "admin",
    responses(
        (status = 200, description = "The sets as they are made again", body = ReplicationView),
        (status = "default", description = "A problem", body = ProblemFields),
    ),
)]
pub async fn accept_loss(State(state): State<AppState>, Admin(caller): Admin) -> ApiResult {
    let engine = state.engine(&caller);
    engine.accept_loss(caller.name(), clock::now()).await?;
    json(StatusCode::OK, &engine.replication().await?)
}
