//! Publishes live snapshots: at most one per second, shared by all subscribers. Keeps the last hour for the charts.

pub mod campaigns;
pub mod cores;
pub mod snapshot;
pub mod trends;

use std::sync::Arc;

use tokio::sync::{Notify, watch};

use self::trends::Trends;

/// Publishes snapshots to subscribers.
#[derive(Debug, Default)]
pub struct Live {
    /// The last hour.
    pub trends: Trends,
    published: watch::Sender<Published>,
    wanted: Notify,
}

#[derive(Debug, Default)]
struct Published {
    snapshot: Option<Arc<str>>,
    /// Whether core is stopping; no more snapshots follow.
    ended: bool,
}

/// The snapshots published from now on.
#[derive(Debug)]
pub struct Snapshots(watch::Receiver<Published>);

impl Live {
    /// Subscribes to the snapshots published from now on.
    pub fn subscribe(&self) -> Snapshots {
        let snapshots = Snapshots(self.published.subscribe());
        self.wanted.notify_one();
        snapshots
    }

    /// Ends all current and future subscriptions, because core is stopping.
    pub fn end(&self) {
        self.published.send_modify(|published| published.ended = true);
    }

    /// Waits until there is a subscriber.
    pub async fn wait_for_subscriber(&self) {
        while self.published.receiver_count() == 0 {
            self.wanted.notified().await;
        }
    }

    /// Publishes a snapshot, as JSON, to all subscribers.
    pub fn publish(&self, snapshot: String) {
        self.published.send_modify(|published| published.snapshot = Some(snapshot.into()));
    }
}

impl Snapshots {
    /// Returns the next snapshot, as JSON: the latest since the last call. Returns `None` once core stops.
    pub async fn next(&mut self) -> Option<Arc<str>> {
        // The last published snapshot may be old, since there may have been no subscriber for a while.
        if !self.0.borrow().ended {
            self.0.changed().await.ok()?;
        }
        let published = self.0.borrow_and_update();
        published.snapshot.as_ref().filter(|_| !published.ended).map(Arc::clone)
    }
}
