//! Health checks and metrics, for supervisors and monitoring.

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Extensions, StatusCode};
use claimgate_shared::{Code, Problem};
use serde::Serialize;
use utoipa::ToSchema;

use super::authentication::Head;
use super::authorization::head;
use super::error::{ApiError, ApiResult};
use super::extract::json;
use super::state::AppState;
use crate::domain::store_fault::{FaultKind, StoreFault};

/// Reports that the process is alive, without checking anything else.
#[utoipa::path(
    get, path = "/livez", tag = "health", operation_id = "getLiveness",
    responses((status = 200, description = "Alive", body = String)),
)]
pub(super) async fn alive() -> &'static str {
    concat!("alive ", env!("CARGO_PKG_VERSION"), "\n")
}

/// Returns all metrics in Prometheus' text format.
#[utoipa::path(
    get, path = "/metrics", tag = "admin", operation_id = "getMetrics",
    responses((status = 200, description = "The metrics", body = String)),
    extensions(("x-codes" = json!(["unavailable", "overloaded"]))),
)]
pub(super) async fn metrics(State(state): State<AppState>) -> impl axum::response::IntoResponse {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], state.metrics())
}

/// The state of core.
#[derive(Debug, Serialize, ToSchema)]
struct Readiness {
    /// `up` while any primary of Redis works.
    redis: &'static str,
    /// `up`, or `down` if it is unavailable or refuses writes.
    sql: &'static str,
    /// Why SQL is down; absent while it is up.
    #[serde(skip_serializing_if = "Option::is_none")]
    sql_reason: Option<&'static str>,
    /// Why this core rejected user ids within the last minute; absent if it rejected none.
    #[serde(skip_serializing_if = "Option::is_none")]
    user_ids_differ: Option<String>,
    /// Each primary of Redis. The internal listener shows them only to authenticated callers.
    #[serde(skip_serializing_if = "Option::is_none")]
    redis_nodes: Option<Vec<RedisNode>>,
}

/// A primary of Redis.
#[derive(Debug, Serialize, ToSchema)]
struct RedisNode {
    /// The primary's host and port, or the path of its socket.
    address: String,
    /// `up`, or `down`: claims on its campaigns get 503.
    state: &'static str,
    /// Why the primary is down; absent while it is up.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

/// Reports whether core can take calls: at least one primary of Redis works.
#[utoipa::path(
    get, path = "/readyz", tag = "health", operation_id = "getReadiness",
    responses((status = 200, description = "Ready", body = Readiness)),
    extensions(("x-codes" = json!(["unavailable"]))),
)]
pub(super) async fn ready(State(state): State<AppState>) -> ApiResult {
    readiness(&state, true)
}

/// Reports readiness on the internal listener, which anyone may reach: only authenticated callers see addresses.
pub(super) async fn ready_for_anyone(State(state): State<AppState>, extensions: Extensions) -> ApiResult {
    readiness(&state, matches!(head(&extensions), Ok(Head::Authenticated(_))))
}

fn readiness(state: &AppState, shows_nodes: bool) -> ApiResult {
    let health = state.health();
    let not_ready = |why: &str| Err(ApiError::because("readyz", Problem::new(Code::Unavailable, why)));
    if !state.is_serving() {
        return not_ready(
            "core is starting: Redis is not available yet, or its database is served with a different Redis",
        );
    }
    if state.is_draining() {
        return not_ready("core is about to stop; it still answers requests until then");
    }
    if !health.redis.is_up() {
        return match health.redis.fault() {
            Some(fault) if fault.kind != FaultKind::NoAnswer => {
                not_ready(&format!("Redis refuses writes: {}", fault.kind.as_str()))
            }
            _ => not_ready("Redis is unavailable"),
        };
    }
    // SQL may be down for a while: the outbox keeps the events until it is back.
    let state_name = |is_up| if is_up { "up" } else { "down" };
    let redis_nodes = health.redis_nodes().into_iter().map(|node| RedisNode {
        state: state_name(node.is_up()),
        address: node.address,
        reason: reason(node.fault),
    });
    let readiness = Readiness {
        redis: "up",
        sql: state_name(health.sql.is_up()),
        sql_reason: reason(health.sql.fault()),
        user_ids_differ: state.user_ids_refused(),
        redis_nodes: shows_nodes.then(|| redis_nodes.collect()),
    };
    json(StatusCode::OK, &readiness)
}

/// Returns the kind of a fault. The server's own message only goes to the log, because anyone may call `/readyz`.
fn reason(fault: Option<StoreFault>) -> Option<&'static str> {
    fault.map(|fault| fault.kind.as_str())
}
