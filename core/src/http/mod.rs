//! Both HTTP APIs: routes by resource, and the server that enforces the limits of every connection.

mod admin;
pub mod authentication;
mod authorization;
mod connections;
mod dashboard;
mod deadlines;
mod error;
mod extract;
pub mod fast_path;
mod health;
mod internal;
mod lingering;
pub mod listener;
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
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use rustix::process::{Resource, getrlimit};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub use self::admin::live::PageUrl;
use self::connections::{Connections, HEAD_TIMEOUT, HeadTimer, OpenConnection, TrackedStream};
use self::deadlines::Deadlines;
use self::lingering::Lingering;
use self::peer::Peer;

/// The largest request head, in bytes. hyper limits the number of headers to 100.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Time limit for connections to finish when core stops.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
/// Pause after a failed `accept`, for example when no descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Maximum number of connections of the internal listener: enough for 10,000 callers, and about 300 MB of
/// memory if each sends the largest head.
const INTERNAL_CONNECTIONS_MAX: usize = 16_384;
/// Maximum number of connections of any other listener.
const CONNECTIONS_MAX: usize = 4_096;

/// Serves on the caller's runtime until `stop` turns true, then gives requests in progress [`SHUTDOWN_GRACE`]
/// to finish. Each request carries its [`Peer`] as an extension.
pub async fn serve(listener: TcpListener, router: Router, stop: watch::Receiver<bool>) {
    let (server, deadlines) = (server(), Deadlines::default());
    // Each connection takes two descriptors, one of them for its `Peer`. All connections together may take a
    // quarter of the descriptors.
    let connections = Connections::new(CONNECTIONS_MAX.min(descriptors() / 8));
    accept(listener, connections, stop, |stream, open, watcher| {
        let (peer, axum) = (Peer::of(&stream), TowerToHyperService::new(router.clone()));
        let activity = Arc::clone(open.activity());
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer.clone());
            let (answer, activity) = (axum.call(request.map(Lingering::from)), Arc::clone(&activity));
            async move {
                let _call = activity.call();
                answer.await
            }
        });
        tokio::spawn(connection(server.clone(), deadlines.clone(), stream, open, service, watcher));
    })
    .await;
}

/// Returns the maximum number of files and connections that this process may have open.
fn descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.and_then(|limit| limit.try_into().ok()).unwrap_or(usize::MAX)
}

/// Passes each new connection to `serve` until `stop` turns true, then waits up to [`SHUTDOWN_GRACE`] until
/// all have ended.
async fn accept(
    listener: TcpListener,
    connections: Arc<Connections>,
    mut stop: watch::Receiver<bool>,
    mut serve: impl FnMut(TcpStream, OpenConnection, Watcher),
) {
    if let Err(error) = Connections::close_dead_peers(&listener) {
        tracing::warn!(%error, "cannot set TCP keepalive: connections of vanished callers stay open");
    }
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        match accepted {
            Ok((stream, _)) => {
                let open = tokio::select! {
                    open = connections.open() => open,
                    _ = stop.wait_for(|stop| *stop) => break,
                };
                let _ = stream.set_nodelay(true);
                serve(stream, open, graceful.watcher());
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    let _ = tokio::time::timeout(SHUTDOWN_GRACE, graceful.shutdown()).await;
}

/// Returns the settings of hyper's server for every connection.
fn server() -> http1::Builder {
    let mut server = http1::Builder::new();
    server
        // A claim is still decided if its client closes its side after sending.
        .half_close(true)
        .max_buf_size(HEAD_BYTES_MAX);
    server
}

/// Serves one connection to its end; `deadlines` belong to its thread or runtime.
async fn connection<S>(
    mut server: http1::Builder,
    deadlines: Deadlines,
    stream: TcpStream,
    open: OpenConnection,
    service: S,
    watcher: Watcher,
) where
    S: HttpService<Incoming>,
    S::Error: Into<BoxError>,
    S::ResBody: 'static,
    <S::ResBody as Body>::Error: Into<BoxError>,
{
    let activity = open.activity();
    server.timer(HeadTimer::new(deadlines, Arc::clone(activity))).header_read_timeout(HEAD_TIMEOUT);
    let stream = TrackedStream::new(stream, Arc::clone(activity));
    let connection = server.serve_connection(stream, service);
    tokio::select! {
        biased;
        ended = watcher.watch(connection) => {
            if let Err(error) = ended {
                tracing::debug!(%error, "connection ended early");
            }
        }
        () = activity.closed() => {}
    }
}
