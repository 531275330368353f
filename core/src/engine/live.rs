//! Hands snapshots of what is going on to all who watch: at most one a second, shared by all of them.

use std::sync::Arc;

use tokio::sync::{Notify, watch};

/// Hands snapshots to those who watch.
#[derive(Debug, Default)]
pub struct Live {
    told: watch::Sender<Told>,
    wanted: Notify,
}

/// What was told last.
#[derive(Debug, Default)]
struct Told {
    snapshot: Option<Arc<str>>,
    /// Whether core stops: there are no more.
    ended: bool,
}

/// The snapshots from now on.
#[derive(Debug)]
pub struct Snapshots(watch::Receiver<Told>);

impl Live {
    /// Watches from now on.
    pub fn subscribe(&self) -> Snapshots {
        let snapshots = Snapshots(self.told.subscribe());
        self.wanted.notify_one();
        snapshots
    }

    /// Ends all watching, and that to come: core stops.
    pub fn end(&self) {
        self.told.send_modify(|told| told.ended = true);
    }

    /// Waits until there is a watcher.
    pub async fn is_watched(&self) {
        while self.told.receiver_count() == 0 {
            self.wanted.notified().await;
        }
    }

    /// Hands a snapshot, as JSON, to all who watch.
    pub fn tell(&self, snapshot: String) {
        self.told.send_modify(|told| told.snapshot = Some(snapshot.into()));
    }
}

impl Snapshots {
    /// The next snapshot, as JSON; those that have come since the last call are left out but for the latest. `None` once core
    /// stops.
    pub async fn next(&mut self) -> Option<Arc<str>> {
        // One that is there from the beginning may be old: there was no watcher for a while.
        if !self.0.borrow().ended {
            self.0.changed().await.ok()?;
        }
        let told = self.0.borrow_and_update();
        told.snapshot.as_ref().filter(|_| !told.ended).map(Arc::clone)
    }
}
