//! Every route, by who calls it.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::IntoResponse as _;
use axum::routing::{get, patch, post};
use claimgate_shared::{Code, Problem};
use tokio::sync::Semaphore;

use super::error::{ApiError, ApiResult};
use super::extract::json;
use super::middleware::{answered_in_time, finish, limited, not_found};
use super::state::AppState;
use super::{admin, internal, openapi};

/// For the edge and for back ends.
pub fn internal_router(state: AppState) -> Router {
    let routes = Router::new()
        .route("/internal/v1/claims/{claim_id}", get(internal::claims::look_up))
        .route("/internal/v1/claims/{claim_id}/confirm", post(internal::claims::confirm))
        .route("/internal/v1/claims/{claim_id}/return", post(internal::claims::return_units))
        .route("/internal/v1/campaigns/{id}", get(internal::campaigns::show))
        .layer(from_fn(answered_in_time))
        .route("/internal/v1/claims", post(internal::claims::claim));
    with_limits(routes, state)
}

/// For admins and monitoring, on a private listener.
pub fn admin_router(state: AppState) -> Router {
    let routes = Router::new()
        .route("/admin/v1/campaigns", get(admin::campaigns::list))
        .route("/admin/v1/campaigns/{id}", get(admin::campaigns::show))
        .route("/admin/v1/campaigns/{id}/pause", post(admin::campaigns::pause))
        .route("/admin/v1/campaigns/{id}/resume", post(admin::campaigns::resume))
        .route("/admin/v1/campaigns/{id}/end", post(admin::campaigns::end))
        .route("/admin/v1/campaigns/{id}/claims", get(admin::claims::list))
        .layer(from_fn(answered_in_time))
        // These have a body to wait for first.
        .route("/admin/v1/campaigns", post(admin::campaigns::create))
        .route("/admin/v1/campaigns/{id}", patch(admin::campaigns::update))
        // These may go through a whole campaign.
        .route("/admin/v1/campaigns/{id}/warm-up", post(admin::campaigns::warm_up))
        .route("/admin/v1/campaigns/{id}/reconciliation", get(admin::reconciliation::compare).post(admin::reconciliation::repair))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(openapi::document));
    with_limits(routes, state)
}

/// What both listeners share. The health checks stand outside the limit on concurrency: a busy core is alive.
fn with_limits(routes: Router<AppState>, state: AppState) -> Router {
    let permits = Arc::new(Semaphore::new(state.concurrency_max()));
    routes
        .layer(from_fn_with_state((state.clone(), permits), limited))
        .route("/livez", get(|| async { "alive\n" }))
        .route("/readyz", get(ready))
        .fallback(not_found)
        .layer(from_fn(finish))
        .with_state(state)
}

async fn metrics(State(state): State<AppState>) -> impl axum::response::IntoResponse {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], state.metrics().render())
}

/// Ready while Redis answers; SQL may be away for a while, since the outbox keeps what it has yet to hear.
async fn ready(State(state): State<AppState>) -> ApiResult {
    let health = state.health();
    if !state.is_serving() {
        let why = "core is starting: Redis does not answer yet, or another one serves its database";
        return Err(ApiError::from(Problem::new(Code::Unavailable, why)));
    }
    if !health.redis.is_up() {
        return Err(ApiError::from(Problem::new(Code::Unavailable, "Redis does not answer")));
    }
    let sql = if health.sql.is_up() { "up" } else { "down" };
    Ok(json(StatusCode::OK, &serde_json::json!({"redis": "up", "sql": sql}))?.into_response())
}
