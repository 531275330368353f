//! The routers of the two listeners: their calls (`routes`), metrics, health checks, and the limits that both apply.

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::http::Uri;
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use tokio::sync::Semaphore;

use super::dashboard;
use super::health::{alive, metrics, ready, ready_for_anyone};
use super::listener::Listener;
use super::middleware::{finish, limit_concurrency};
use super::openapi;
use super::routes::{admin_routes, internal_routes, long_poll_routes};
use super::state::AppState;

/// Maximum number of concurrent calls to the feed; each may wait long.
const FOLLOWERS_MAX: usize = 64;

// Built once, because building a router also builds its part of the OpenAPI document; each thread clones it.
static INTERNAL: LazyLock<Router<AppState>> = LazyLock::new(|| internal_routes().into());
static ADMIN: LazyLock<Router<AppState>> = LazyLock::new(|| admin_routes().into());
static LONG_POLL: LazyLock<Router<AppState>> = LazyLock::new(|| long_poll_routes().into());

/// Returns the router for the edge and back ends.
pub fn internal_router(state: AppState) -> Router {
    let permits = Arc::clone(state.permits());
    let routes = limited_to(permits, INTERNAL.clone(), &state);
    common(routes.route("/readyz", get(ready_for_anyone)), state, Listener::Internal)
}

/// Returns the router for admins and monitoring, on a private listener.
pub fn admin_router(state: AppState) -> Router {
    let open = Router::new()
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(openapi::show))
        .route("/readyz", get(ready));
    let permits = Arc::new(Semaphore::new(state.concurrency_max()));
    let feed_permits = Arc::new(Semaphore::new(state.sql_callers_max().min(FOLLOWERS_MAX)));
    let long_poll = limited_to(feed_permits, LONG_POLL.clone(), &state);
    let routes = limited_to(permits, ADMIN.clone(), &state).merge(long_poll);
    common(routes.merge(open).merge(dashboard::routes()), state, Listener::Admin)
}

/// Limits the concurrency of `routes` to the number of `permits`.
fn limited_to(permits: Arc<Semaphore>, routes: Router<AppState>, state: &AppState) -> Router<AppState> {
    routes.layer(from_fn_with_state((state.clone(), permits), limit_concurrency))
}

/// Adds the routes and layers that both listeners share. Health checks and other routes without credentials
/// are outside the concurrency limit: a busy core is alive, and no stranger takes a permit.
fn common(routes: Router<AppState>, state: AppState, listener: Listener) -> Router {
    routes
        .route("/livez", get(alive))
        .fallback(move |path: Uri| async move { listener.not_found(path.path()) })
        .layer(from_fn_with_state((state.clone(), listener), finish))
        .with_state(state)
}
