//! The threads of the internal listener. A connection stays on one thread, with everything that its claims need.
//!
//! Each thread has its own runtime, engine, queues, connection to Redis and routes. A claim is read, sent to
//! Redis together with other claims of its thread, and answered without waking a second thread.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;
use tokio::time::sleep;

use super::connections::Connections;
use super::deadlines::Deadlines;
use super::fast_path::InternalRoutes;
use super::lingering::Lingering;
use super::state::AppState;
use super::{INTERNAL_CONNECTIONS_MAX, accept, connection, descriptors, server};
use crate::runtime;

/// Interval at which [`Threads::stop`] checks whether the threads have ended.
const JOIN_POLL: Duration = Duration::from_millis(5);

/// Threads that serve connections, until they are stopped.
#[derive(Debug)]
pub struct Threads {
    all: Vec<Thread>,
    connections: Arc<Connections>,
    stop: watch::Sender<bool>,
}

#[derive(Debug)]
struct Thread {
    runtime: Handle,
    server: http1::Builder,
    deadlines: Deadlines,
    routes: Arc<InternalRoutes>,
    open: OpenConnections,
    ends: thread::JoinHandle<()>,
}

impl Threads {
    /// Starts `count` threads, but at least one, for the internal listener's routes. Each thread has its own state.
    pub fn start(state: &AppState, count: usize) -> io::Result<Self> {
        let (stop, stopped) = watch::channel(false);
        let start = |number| {
            let (ends, runtime) = spawn(format!("http-{number}"), stopped.clone())?;
            let state = state.for_thread();
            let (server, deadlines) = (server(), state.deadlines().clone());
            let routes = Arc::new(InternalRoutes::new(state));
            Ok(Thread { runtime, server, deadlines, routes, open: OpenConnections::default(), ends })
        };
        let all = (0..count.max(1)).map(start).collect::<io::Result<_>>()?;
        let connections_max = INTERNAL_CONNECTIONS_MAX.max(2 * state.concurrency_max());
        Ok(Self { all, connections: Connections::new(connections_max.min(descriptors() / 8 * 5)), stop })
    }

    /// Serves until `stop` turns true, then lets requests in progress finish, as [`super::serve`] does. Each
    /// new connection goes to the thread with the fewest.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, stop: watch::Receiver<bool>) {
        accept(listener, Arc::clone(&self.connections), stop, |stream, open, watcher| {
            let Some(thread) = fewest(&self.all, |thread| thread.open.count()) else { return };
            let Ok(stream) = stream.into_std() else { return };
            let (server, deadlines) = (thread.server.clone(), thread.deadlines.clone());
            let (routes, on_thread) = (Arc::clone(&thread.routes), thread.open.one_more());
            let activity = Arc::clone(open.activity());
            let service = service_fn(move |request: Request<Incoming>| {
                let (routes, activity) = (Arc::clone(&routes), Arc::clone(&activity));
                async move {
                    let _call = activity.call();
                    Ok::<_, Infallible>(routes.answer(request.map(Lingering::from)).await)
                }
            });
            thread.runtime.spawn(async move {
                match TcpStream::from_std(stream) {
                    Ok(stream) => connection(server, deadlines, stream, open, service, watcher).await,
                    Err(error) => tracing::warn!(%error, "cannot serve a connection"),
                }
                drop(on_thread);
            });
        })
        .await;
    }

    /// Stops the threads and all tasks on them, and waits until they have ended.
    pub async fn stop(&self) {
        self.stop.send_replace(true);
        while !self.all.iter().all(|thread| thread.ends.is_finished()) {
            sleep(JOIN_POLL).await;
        }
    }
}

/// Starts a thread with a runtime that runs until `stop` turns true.
fn spawn(name: String, mut stop: watch::Receiver<bool>) -> io::Result<(thread::JoinHandle<()>, Handle)> {
    let (made, runtime) = mpsc::channel();
    let thread = thread::Builder::new().name(name).spawn(move || {
        let runtime = match runtime::build(&mut Builder::new_current_thread()) {
            Ok(runtime) => runtime,
            Err(error) => return drop(made.send(Err(error))),
        };
        let _ = made.send(Ok(runtime.handle().clone()));
        let _ = runtime.block_on(stop.wait_for(|stop| *stop));
        // A DNS lookup that hangs must not keep the thread alive.
        runtime.shutdown_background();
    })?;
    Ok((thread, runtime.recv().map_err(io::Error::other)??))
}

/// Counts a thread's open connections as references to the inner `Arc`.
#[derive(Debug, Default)]
struct OpenConnections(Arc<()>);

impl OpenConnections {
    fn count(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }

    /// Counts one more connection until the returned reference is dropped.
    fn one_more(&self) -> Arc<()> {
        Arc::clone(&self.0)
    }
}

/// Returns the first of `threads` with the fewest open connections.
fn fewest<T>(threads: &[T], open: impl Fn(&T) -> usize) -> Option<&T> {
    threads.iter().min_by_key(|thread| open(thread))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(threads: &[OpenConnections]) -> &OpenConnections {
        fewest(threads, OpenConnections::count).unwrap()
    }

    fn counts(threads: &[OpenConnections]) -> Vec<usize> {
        threads.iter().map(OpenConnections::count).collect()
    }

    #[test]
    fn a_new_connection_goes_to_the_thread_with_the_fewest() {
        let threads: [OpenConnections; 3] = Default::default();
        let mut open: Vec<_> = (0..10).map(|_| next(&threads).one_more()).collect();
        assert_eq!(counts(&threads), [4, 3, 3]);
        // The connections of the second thread end.
        open = open.into_iter().enumerate().filter(|(at, _)| at % 3 != 1).map(|(_, open)| open).collect();
        assert_eq!(counts(&threads), [4, 0, 3]);
        open.extend((0..5).map(|_| next(&threads).one_more()));
        assert_eq!(counts(&threads), [4, 4, 4]);
        drop(open);
        assert_eq!(counts(&threads), [0, 0, 0]);
    }
}
