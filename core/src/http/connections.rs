//! The open connections of a listener, and how they end when it closes.
//!
//! hyper-util's own watcher asks a channel each time a connection is polled. Here that is a look at a flag.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use hyper_util::server::graceful::GracefulConnection;
use slab::Slab;
use tokio::sync::watch;

/// All connections of one listener.
#[derive(Debug, Clone)]
pub struct Connections(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    is_closing: AtomicBool,
    /// Of the tasks that serve connections.
    wakers: Mutex<Slab<Waker>>,
    /// Has a receiver for each of them.
    open: watch::Sender<()>,
}

/// The place of one connection.
#[derive(Debug)]
pub struct Place {
    all: Connections,
    waker: Option<usize>,
    /// Dropped with the place.
    _open: watch::Receiver<()>,
}

impl Connections {
    /// None yet.
    pub fn new() -> Self {
        let (open, _) = watch::channel(());
        Self(Arc::new(Shared { is_closing: AtomicBool::new(false), wakers: Mutex::default(), open }))
    }

    /// A place for one more.
    pub fn place(&self) -> Place {
        Place { all: self.clone(), waker: None, _open: self.0.open.subscribe() }
    }

    /// Has each finish the request that it is at, and waits until all have ended.
    pub async fn close(&self) {
        self.0.is_closing.store(true, Ordering::Release);
        for (_, waker) in &*self.wakers() {
            waker.wake_by_ref();
        }
        self.0.open.closed().await;
    }

    fn is_closing(&self) -> bool {
        self.0.is_closing.load(Ordering::Acquire)
    }

    fn wakers(&self) -> MutexGuard<'_, Slab<Waker>> {
        self.0.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Serves `connection` to its end. To be awaited by a task of its own, whose waker stays the same.
    ///
    /// # Errors
    /// When it does not end well.
    pub async fn serve<C: GracefulConnection>(mut self, connection: C) -> Result<(), C::Error> {
        let (mut connection, mut is_told) = (pin!(connection), false);
        poll_fn(|context| {
            // First the waker, then the flag: who closes goes the other way round.
            if self.waker.is_none() {
                self.waker = Some(self.all.wakers().insert(context.waker().clone()));
            }
            if !is_told && self.all.is_closing() {
                is_told = true;
                connection.as_mut().graceful_shutdown();
            }
            connection.as_mut().poll(context)
        })
        .await
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(waker) = self.waker {
            self.all.wakers().remove(waker);
        }
    }
}
