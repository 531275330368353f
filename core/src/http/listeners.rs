//! What each of the two listeners serves: its calls (`routes`), metrics, health checks, and the limits that both keep.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::get;
use claimgate_shared::{Code, Problem};
use tokio::sync::Semaphore;

use super::error::{ApiError, ApiResult};
use super::extract::json;
use super::middleware::{finish, limited, not_found};
use super::openapi;
use super::routes::{admin_routes, internal_routes};
use super::state::AppState;

/// For the edge and for back ends.
pub fn internal_router(state: AppState) -> Router {
    let permits = Arc::clone(state.permits());
    with_limits(Router::from(internal_routes()), state, permits)
}

/// For admins and monitoring, on a private listener.
pub fn admin_router(state: AppState) -> Router {
    let routes = Router::from(admin_routes())
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(openapi::document));
    let permits = Arc::new(Semaphore::new(state.concurrency_max()));
    with_limits(routes, state, permits)
}

/// What both listeners share. The health checks stand outside the limit on concurrency: a busy core is alive.
fn with_limits(routes: Router<AppState>, state: AppState, permits: Arc<Semaphore>) -> Router {
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
    json(StatusCode::OK, &serde_json::json!({"redis": "up", "sql": sql}))
}
