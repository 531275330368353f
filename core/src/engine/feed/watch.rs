//! Waits for new entries of the feed.

use std::time::Duration;

use tokio::sync::{Mutex, Notify, watch};
use tokio::time::timeout;

use crate::store::sql::{SqlError, SqlStore};

/// Interval at which the database is polled while callers wait: another core may have written to the feed.
/// This core's own relay notifies immediately.
const POLL: Duration = Duration::from_millis(200);

/// Waits for new entries of the feed. Only one of the callers waiting polls the database.
#[derive(Debug)]
pub struct FeedWatch {
    sql: SqlStore,
    /// Held by the caller that polls.
    turn: Mutex<()>,
    state: watch::Sender<FeedState>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct FeedState {
    last: u64,
    /// Whether core is stopping; calls then no longer wait.
    ended: bool,
}

impl FeedWatch {
    /// Returns a watch on the feed in `sql`.
    pub fn new(sql: SqlStore) -> Self {
        Self { sql, turn: Mutex::default(), state: watch::Sender::default() }
    }

    /// Ends all waits, current and future.
    pub fn end(&self) {
        self.state.send_modify(|state| state.ended = true);
    }

    /// Waits until the feed has a number above `last`; returns `false` if core stops first. `relayed` is
    /// notified when the relay has written to the feed.
    pub(super) async fn wait_for_number_above(&self, last: u64, relayed: &Notify) -> Result<bool, SqlError> {
        // A database that was replaced by an older copy ends before the last known number.
        if self.state.borrow().last > last {
            self.read_end().await?;
        }
        let mut state = self.state.subscribe();
        tokio::select! {
            state = state.wait_for(|state| state.ended || state.last > last) => Ok(state.is_ok_and(|state| !state.ended)),
            error = self.poll(relayed) => Err(error),
        }
    }

    /// Polls the database until a poll fails. Only one caller polls at a time.
    async fn poll(&self, relayed: &Notify) -> SqlError {
        let _turn = self.turn.lock().await;
        loop {
            if let Err(error) = self.read_end().await {
                return error;
            }
            // Poll after a notice and after a timeout.
            let _ = timeout(POLL, relayed.notified()).await;
        }
    }

    /// Reads the feed's last number from the database.
    async fn read_end(&self) -> Result<(), SqlError> {
        let last = self.sql.feed_end().await?;
        self.state.send_if_modified(|state| std::mem::replace(&mut state.last, last) != last);
        Ok(())
    }
}
