//! Reports of edges about the claims that they refused.

use axum::extract::State;
use axum::http::StatusCode;
use claimgate_shared::refusals::RefusalReport;
use serde_json::json;

use crate::http::error::ApiResult;
use crate::http::extract::{EdgeCall, json};
use crate::http::middleware::in_time;
use crate::http::state::AppState;

/// Adds the claims that an edge refused without core to the campaigns' demand. A report that is sent again counts once,
/// also through another core.
#[utoipa::path(
    post, path = "/internal/v1/refusals", tag = "internal", operation_id = "reportRefusals",
    request_body = RefusalReport,
    responses((status = 200, description = "Counted, now or earlier", body = Object)),
    security(("edgeSignature" = [])),
)]
pub async fn report(
    State(state): State<AppState>,
    EdgeCall(engine, report): EdgeCall<RefusalReport>,
) -> ApiResult {
    in_time(async {
        engine.refusals.record(report, state.sql_callers_max()).await?;
        json(StatusCode::OK, &json!({}))
    })
    .await
}
