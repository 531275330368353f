//! What each of the two listeners serves: its calls (`routes`), metrics, health checks, and the limits that both keep.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::get;
use claimgate_shared::problem::ProblemFields;
use claimgate_shared::{Code, Problem};
use serde::Serialize;
use tokio::sync::Semaphore;
use utoipa::ToSchema;

use super::dashboard;
use super::error::{ApiError, ApiResult};
use super::extract::json;
use super::middleware::{finish, limited, not_found};
use super::openapi;
use super::routes::{admin_routes, internal_routes, waiting_routes};
use super::state::AppState;

/// The most calls to the feed at once, which may wait for long.
const FOLLOWERS_MAX: usize = 64;

/// For the edge and for back ends.
pub fn internal_router(state: AppState) -> Router {
    let permits = Arc::clone(state.permits());
    common(limited_to(permits, Router::from(internal_routes()), &state), state)
}

/// For admins and monitoring, on a private listener.
pub fn admin_router(state: AppState) -> Router {
    let routes = Router::from(admin_routes())
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(openapi::document));
    let permits = Arc::new(Semaphore::new(state.concurrency_max()));
    let places = Arc::new(Semaphore::new(state.sql_callers_max().min(FOLLOWERS_MAX)));
    let waiting = limited_to(places, Router::from(waiting_routes()), &state);
    common(limited_to(permits, routes, &state).merge(waiting).merge(dashboard::routes()), state)
}

/// As many of these calls at once as there are `permits`.
fn limited_to(permits: Arc<Semaphore>, routes: Router<AppState>, state: &AppState) -> Router<AppState> {
    routes.layer(from_fn_with_state((state.clone(), permits), limited))
}

/// What both listeners share. The health checks stand outside the limit on concurrency: a busy core is alive.
fn common(routes: Router<AppState>, state: AppState) -> Router {
    routes
        .route("/livez", get(|| async { concat!("alive ", env!("CARGO_PKG_VERSION"), "\n") }))
        .route("/readyz", get(ready))
        .fallback(not_found)
        .layer(from_fn(finish))
        .with_state(state)
}

async fn metrics(State(state): State<AppState>) -> impl axum::response::IntoResponse {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], state.metrics())
}

/// How core is.
#[derive(Debug, Serialize, ToSchema)]
struct Readiness {
    /// `up` while any primary of Redis answers.
    redis: &'static str,
    /// `up` or `down`.
    sql: &'static str,
    /// Each primary of Redis.
    redis_nodes: Vec<RedisNode>,
}

/// A primary of Redis.
#[derive(Debug, Serialize, ToSchema)]
struct RedisNode {
    /// Its host and port, or the path of its socket.
    address: String,
    /// `up`, or `down`: claims on its campaigns get 503.
    state: &'static str,
}

/// Tells whether core is to be sent calls: while any primary of Redis answers.
#[utoipa::path(
    get, path = "/readyz", tag = "health",
    responses(
        (status = 200, description = "Ready", body = Readiness),
        (status = 503, description = "It starts or stops, or no Redis answers", body = ProblemFields),
    ),
)]
pub(super) async fn ready(State(state): State<AppState>) -> ApiResult {
    let health = state.health();
    let not_ready = |why| Err(ApiError::because("readyz", Problem::new(Code::Unavailable, why)));
    if !state.is_serving() {
        return not_ready("core is starting: Redis does not answer yet, or another one serves its database");
    }
    if state.is_leaving() {
        return not_ready("core is about to stop; it answers what comes in until then");
    }
    if !health.redis.is_up() {
        return not_ready("Redis does not answer");
    }
    // SQL may be away for a while: the outbox keeps what it has yet to hear.
    let told = |is_up| if is_up { "up" } else { "down" };
    let redis_nodes = health.redis_nodes().into_iter();
    let redis_nodes =
        redis_nodes.map(|node| RedisNode { state: told(node.is_up()), address: node.address }).collect();
    json(StatusCode::OK, &Readiness { redis: "up", sql: told(health.sql.is_up()), redis_nodes })
}
