//! Every route, by who calls it; and the server that holds every connection to its limits.

pub mod admin;
pub mod auth;
pub mod claims;
pub mod exchange;
mod export;
mod openapi;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::IntoResponse as _;
use axum::routing::{get, patch, post};
use claimgate_shared::{Code, Problem};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use self::exchange::{Answer, Refused, answered_in_time, finish, json, limited, not_found};
use crate::app::App;

/// How long a request's head may take to come in.
const HEAD_WAIT: Duration = Duration::from_secs(5);
/// The largest request head, in bytes, and the most headers in it.
const HEAD_BYTES_MAX: usize = 16 * 1024;
const HEADERS_MAX: usize = 64;
/// How long connections may take to finish when core stops.
const STOP_WAIT: Duration = Duration::from_secs(5);
/// After the kernel has no descriptor left for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// For the edge and for back ends.
pub fn internal(app: App) -> Router {
    let routes = Router::new()
        .route("/internal/v1/claims/{claim_id}", get(claims::look_up))
        .route("/internal/v1/claims/{claim_id}/confirm", post(claims::confirm))
        .route("/internal/v1/claims/{claim_id}/return", post(claims::give_back))
        .route("/internal/v1/campaigns/{id}", get(claims::campaign))
        .layer(from_fn(answered_in_time))
        .route("/internal/v1/claims", post(claims::claim));
    with_limits(routes, app)
}

/// For admins and for whoever watches over core: a private listener.
pub fn admin(app: App) -> Router {
    let routes = Router::new()
        .route("/admin/v1/campaigns", get(admin::list))
        .route("/admin/v1/campaigns/{id}", get(admin::get))
        .route("/admin/v1/campaigns/{id}/pause", post(admin::pause))
        .route("/admin/v1/campaigns/{id}/resume", post(admin::resume))
        .route("/admin/v1/campaigns/{id}/end", post(admin::end))
        .route("/admin/v1/campaigns/{id}/claims", get(admin::claims))
        .layer(from_fn(answered_in_time))
        // These have a body to wait for first.
        .route("/admin/v1/campaigns", post(admin::create))
        .route("/admin/v1/campaigns/{id}", patch(admin::update))
        // These may go through a whole campaign.
        .route("/admin/v1/campaigns/{id}/warm-up", post(admin::warm_up))
        .route("/admin/v1/campaigns/{id}/reconciliation", get(admin::compare).post(admin::repair))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(openapi::document));
    with_limits(routes, app)
}

/// What both listeners share. The health checks stand outside the limit on concurrency: a busy core is alive.
fn with_limits(routes: Router<App>, app: App) -> Router {
    let permits = Arc::new(Semaphore::new(app.concurrency_max));
    routes
        .layer(from_fn_with_state((app.clone(), permits), limited))
        .route("/livez", get(|| async { "alive\n" }))
        .route("/readyz", get(ready))
        .fallback(not_found)
        .layer(from_fn(finish))
        .with_state(app)
}

async fn metrics(State(app): State<App>) -> impl axum::response::IntoResponse {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], app.metrics.render())
}

/// Ready while Redis answers; SQL may be away for a while, since the outbox keeps what it has yet to hear.
async fn ready(State(app): State<App>) -> Answer {
    let health = app.health();
    if !app.is_serving() {
        let why = "core is starting: Redis does not answer yet, or another one serves its database";
        return Err(Refused::from(Problem::new(Code::Unavailable, why)));
    }
    if !health.redis {
        return Err(Refused::from(Problem::new(Code::Unavailable, "Redis does not answer")));
    }
    let sql = if health.sql { "up" } else { "down" };
    Ok(json(StatusCode::OK, &serde_json::json!({"redis": "up", "sql": sql}))?.into_response())
}

/// Serves until `stop` turns true, then lets what is under way finish.
pub async fn serve(listener: TcpListener, router: Router, mut stop: watch::Receiver<bool>) {
    let server = Arc::new({
        let mut server = hyper::server::conn::http1::Builder::new();
        server
            // A client that has closed its side after sending still has its claim decided.
            .half_close(true)
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_WAIT)
            .max_buf_size(HEAD_BYTES_MAX)
            .max_headers(HEADERS_MAX);
        server
    });
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(router.clone());
        let connection = graceful.watch(server.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection ended early");
            }
        });
    }
    let _ = tokio::time::timeout(STOP_WAIT, graceful.shutdown()).await;
}
