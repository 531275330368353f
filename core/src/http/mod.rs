//! Both HTTP APIs: routes by resource, and the server that holds every connection to its limits.

mod admin;
pub mod auth;
mod error;
mod extract;
mod internal;
pub mod listeners;
mod middleware;
mod openapi;
mod routes;
pub mod state;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// How long a request's head may take to come in.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(5);
/// The largest request head, in bytes, and the most headers in it.
const HEAD_BYTES_MAX: usize = 16 * 1024;
const HEADERS_MAX: usize = 64;
/// How long connections may take to finish when core stops.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
/// After the kernel has no descriptor left for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `stop` turns true, then lets requests in progress finish, for [`SHUTDOWN_GRACE`] at most.
pub async fn serve(listener: TcpListener, router: Router, mut stop: watch::Receiver<bool>) {
    let server = Arc::new({
        let mut server = hyper::server::conn::http1::Builder::new();
        server
            // A client that has closed its side after sending still has its claim decided.
            .half_close(true)
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_READ_TIMEOUT)
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
    let _ = tokio::time::timeout(SHUTDOWN_GRACE, graceful.shutdown()).await;
}
