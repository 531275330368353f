//! The wait for what comes next in the feed.

use std::time::Duration;

use tokio::sync::{Mutex, Notify, watch};
use tokio::time::timeout;

use crate::store::sql::{SqlError, SqlStore};

/// How often the database is asked how far the feed goes, while anyone waits: another core may have written. This core's own
/// relay says so itself.
const LOOK: Duration = Duration::from_millis(200);

/// Waits for the feed to go on: of all that wait, one asks the database.
#[derive(Debug)]
pub struct FeedWatch {
    sql: SqlStore,
    /// Whose turn it is to ask.
    turn: Mutex<()>,
    seen: watch::Sender<Seen>,
}

/// What is known of the feed.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    last: u64,
    /// Whether core stops: there is no waiting any more.
    ended: bool,
}

impl FeedWatch {
    /// Watches the feed in `sql`.
    pub(super) fn new(sql: SqlStore) -> Self {
        Self { sql, turn: Mutex::default(), seen: watch::Sender::default() }
    }

    /// Ends all waits, and those to come.
    pub fn end(&self) {
        self.seen.send_modify(|seen| seen.ended = true);
    }

    /// Waits until the feed has a number above `last`; `false` when core stops before that. `relayed` says that it is time to
    /// ask.
    pub(super) async fn beyond(&self, last: u64, relayed: &Notify) -> Result<bool, SqlError> {
        // A database that was replaced by an older copy goes less far than was seen.
        if self.seen.borrow().last > last {
            self.ask().await?;
        }
        let mut seen = self.seen.subscribe();
        tokio::select! {
            seen = seen.wait_for(|seen| seen.ended || seen.last > last) => Ok(seen.is_ok_and(|seen| !seen.ended)),
            error = self.look(relayed) => Err(error),
        }
    }

    /// Asks the database again and again, once it is the caller's turn, until it does not answer.
    async fn look(&self, relayed: &Notify) -> SqlError {
        let _turn = self.turn.lock().await;
        loop {
            if let Err(error) = self.ask().await {
                return error;
            }
            // Either way it is time to ask again.
            let _ = timeout(LOOK, relayed.notified()).await;
        }
    }

    /// Asks the database how far the feed goes.
    async fn ask(&self) -> Result<(), SqlError> {
        let last = self.sql.feed_end().await?;
        self.seen.send_if_modified(|seen| std::mem::replace(&mut seen.last, last) != last);
        Ok(())
    }
}
