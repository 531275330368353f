//! Both HTTP APIs: routes by resource, and the server that holds every connection to its limits.

mod admin;
pub mod auth;
mod dashboard;
mod deadlines;
mod error;
mod extract;
pub mod fast_path;
mod internal;
pub mod listeners;
mod middleware;
mod openapi;
mod paging;
mod peer;
mod routes;
pub mod state;
pub mod threads;

use std::sync::Arc;
use std::time::Duration;

use axum::{BoxError, Router};
use hyper::Request;
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::{HttpService, Service as _, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use self::deadlines::Deadlines;
use self::peer::Peer;

/// How long a request's head may take to come in.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(5);
/// The largest request head, in bytes. Its headers are as many as hyper takes, 100.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// How long connections may take to finish when core stops.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
/// After the kernel has no descriptor left for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves on the runtime of the caller until `stop` turns true, then lets requests in progress finish, for
/// [`SHUTDOWN_GRACE`] at most. Each request comes with its [`Peer`].
pub async fn serve(listener: TcpListener, router: Router, stop: watch::Receiver<bool>) {
    let server = server(Deadlines::default());
    accept(listener, stop, |stream, watcher| {
        let (peer, axum) = (Peer::of(&stream), TowerToHyperService::new(router.clone()));
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer.clone());
            axum.call(request)
        });
        tokio::spawn(connection(Arc::clone(&server), stream, service, watcher));
    })
    .await;
}

/// Hands each new connection to `serve` until `stop` turns true, then waits until all have ended, for
/// [`SHUTDOWN_GRACE`] at most.
async fn accept(
    listener: TcpListener,
    mut stop: watch::Receiver<bool>,
    mut serve: impl FnMut(TcpStream, Watcher),
) {
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        match accepted {
            Ok((stream, _)) => {
                let _ = stream.set_nodelay(true);
                serve(stream, graceful.watcher());
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    let _ = tokio::time::timeout(SHUTDOWN_GRACE, graceful.shutdown()).await;
}

/// What holds every connection to its limits; `deadlines` are those of the thread, or runtime, that they are on.
fn server(deadlines: Deadlines) -> Arc<http1::Builder> {
    let mut server = http1::Builder::new();
    server
        // A client that has closed its side after sending still has its claim decided.
        .half_close(true)
        .timer(deadlines)
        .header_read_timeout(HEADER_READ_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX);
    Arc::new(server)
}

/// Serves one connection to its end.
async fn connection<S>(server: Arc<http1::Builder>, stream: TcpStream, service: S, watcher: Watcher)
where
    S: HttpService<Incoming>,
    S::Error: Into<BoxError>,
    S::ResBody: 'static,
    <S::ResBody as Body>::Error: Into<BoxError>,
{
    let connection = server.serve_connection(TokioIo::new(stream), service);
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%error, "connection ended early");
    }
}
