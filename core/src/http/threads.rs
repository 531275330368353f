//! The threads of the internal listener: a connection stays on one thread, with all that its claims wait for.
//!
//! Each thread has a runtime, an engine with queues and a connection to Redis of its own, and the routes on it. A claim is
//! read, sent to Redis with others of its thread, and answered without waking another thread.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;
use tokio::time::sleep;

use super::fast_path::InternalRoutes;
use super::state::AppState;
use super::{accept, connection, server};

/// How often it is looked at whether the threads have ended.
const JOIN_POLL: Duration = Duration::from_millis(5);

/// Threads that serve connections, until they are stopped.
#[derive(Debug)]
pub struct Threads {
    threads: Vec<Thread>,
    stop: watch::Sender<bool>,
}

#[derive(Debug)]
struct Thread {
    runtime: Handle,
    server: Arc<http1::Builder>,
    routes: Arc<InternalRoutes>,
    open: OpenConnections,
    ends: thread::JoinHandle<()>,
}

impl Threads {
    /// Starts `count` threads for the internal listener's routes, each with a state for it alone; at least one.
    ///
    /// # Errors
    /// When a thread or its runtime cannot be made.
    pub fn start(state: &AppState, count: usize) -> io::Result<Self> {
        let (stop, stopped) = watch::channel(false);
        let start = |number| {
            let (ends, runtime) = spawn(format!("http-{number}"), stopped.clone())?;
            let state = state.for_thread();
            let server = server(state.deadlines().clone());
            let routes = Arc::new(InternalRoutes::new(state));
            Ok(Thread { runtime, server, routes, open: OpenConnections::default(), ends })
        };
        let threads = (0..count.max(1)).map(start).collect::<io::Result<_>>()?;
        Ok(Self { threads, stop })
    }

    /// Serves until `stop` turns true, then lets requests in progress finish, as [`super::serve`] does. Each connection
    /// goes to the thread that has the fewest.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, stop: watch::Receiver<bool>) {
        accept(listener, stop, |stream, watcher| {
            let Some(thread) = fewest(&self.threads, |thread| thread.open.count()) else { return };
            let Ok(stream) = stream.into_std() else { return };
            let (server, open) = (Arc::clone(&thread.server), thread.open.one_more());
            let routes = Arc::clone(&thread.routes);
            let service = service_fn(move |request| {
                let routes = Arc::clone(&routes);
                async move { Ok::<_, Infallible>(routes.answer(request).await) }
            });
            thread.runtime.spawn(async move {
                match TcpStream::from_std(stream) {
                    Ok(stream) => connection(server, stream, service, watcher).await,
                    Err(error) => tracing::warn!(%error, "cannot serve a connection"),
                }
                drop(open);
            });
        })
        .await;
    }

    /// Stops the threads with all that still runs on them, and waits for their end.
    pub async fn stop(&self) {
        self.stop.send_replace(true);
        while !self.threads.iter().all(|thread| thread.ends.is_finished()) {
            sleep(JOIN_POLL).await;
        }
    }
}

/// A thread with a runtime that runs until `stop` turns true.
fn spawn(name: String, mut stop: watch::Receiver<bool>) -> io::Result<(thread::JoinHandle<()>, Handle)> {
    let (made, runtime) = mpsc::channel();
    let thread = thread::Builder::new().name(name).spawn(move || {
        let runtime = match Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return drop(made.send(Err(error))),
        };
        let _ = made.send(Ok(runtime.handle().clone()));
        let _ = runtime.block_on(stop.wait_for(|stop| *stop));
        // A look-up that hangs must not keep the thread.
        runtime.shutdown_background();
    })?;
    Ok((thread, runtime.recv().map_err(io::Error::other)??))
}

/// The number of a thread's open connections.
#[derive(Debug, Default)]
struct OpenConnections(Arc<AtomicUsize>);

impl OpenConnections {
    fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts one more, until what is returned is dropped.
    fn one_more(&self) -> OpenConnection {
        self.0.fetch_add(1, Ordering::Relaxed);
        OpenConnection(Arc::clone(&self.0))
    }
}

/// A connection that counts as open.
#[derive(Debug)]
struct OpenConnection(Arc<AtomicUsize>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Of `threads` the first with the fewest open connections.
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
    fn connections_are_spread_evenly_and_a_thread_that_has_lost_some_gets_the_next() {
        let threads: [OpenConnections; 3] = Default::default();
        let mut open: Vec<_> = (0..10).map(|_| next(&threads).one_more()).collect();
        assert_eq!(counts(&threads), [4, 3, 3]);
        // The ones that went to the second thread end.
        open = open.into_iter().enumerate().filter(|(at, _)| at % 3 != 1).map(|(_, open)| open).collect();
        assert_eq!(counts(&threads), [4, 0, 3]);
        open.extend((0..5).map(|_| next(&threads).one_more()));
        assert_eq!(counts(&threads), [4, 4, 4]);
        drop(open);
        assert_eq!(counts(&threads), [0, 0, 0]);
    }
}
