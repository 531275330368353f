//! The dedicated connection for heartbeats.

use std::sync::Arc;
use std::time::Duration;

use sqlx::{AnyConnection, Connection as _, Error, Executor as _};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::server::Server;

/// The time limit of a heartbeat. In SQLite, it may wait for a relayed batch. A missing heartbeat is detected
/// within 5 s.
pub(super) const HEARTBEAT_MAX: Duration = Duration::from_millis(2500);
/// The maximum age of the connection. Opening a new connection detects a server that no longer accepts
/// connections.
const MAX_AGE: Duration = Duration::from_secs(3);
/// Time limit for a server with no free connection to release a connection that was just closed.
const RELEASE_DELAY: Duration = Duration::from_millis(200);

/// The connection for heartbeats, opened on first use.
#[derive(Debug)]
pub(super) struct HeartbeatConnection {
    server: Arc<Server>,
    /// Empty while a heartbeat uses the connection.
    slot: Mutex<Option<OpenConnection>>,
}

#[derive(Debug)]
pub(super) struct OpenConnection {
    pub(super) connection: AnyConnection,
    generation: u64,
    opened_at: Instant,
}

impl HeartbeatConnection {
    pub(super) fn of(server: &Arc<Server>) -> Self {
        Self { server: Arc::clone(server), slot: Mutex::default() }
    }

    /// Locks the slot from which a heartbeat takes the connection. After success, the heartbeat puts the
    /// connection back.
    pub(super) async fn slot(&self) -> MutexGuard<'_, Option<OpenConnection>> {
        self.slot.lock().await
    }

    /// Returns the `last` connection, or a new connection if `last` is missing, too old, or of an earlier
    /// server generation.
    pub(super) async fn renewed(&self, last: Option<OpenConnection>) -> Result<OpenConnection, Error> {
        let is_due = |last: &OpenConnection| {
            let is_old = !self.server.is_file() && last.opened_at.elapsed() > MAX_AGE;
            is_old || last.generation != self.server.generation()
        };
        match last {
            Some(last) if !is_due(&last) => return Ok(last),
            Some(last) => {
                let _ = last.connection.close().await;
            }
            None => {}
        }
        let deadline = Instant::now() + HEARTBEAT_MAX;
        let made = match self.server.connect(deadline).await {
            Err(error) if self.server.lacks_connections(&error) => {
                // The server may not have released the previous connection yet.
                tokio::time::sleep(RELEASE_DELAY).await;
                self.server.connect(deadline).await
            }
            made => made,
        };
        let (mut connection, generation) = made?;
        if self.server.is_file() {
            // Heartbeats may be lost in a power failure, so they do not wait for the disk.
            connection.execute("PRAGMA synchronous = NORMAL").await?;
        }
        Ok(OpenConnection { connection, generation, opened_at: Instant::now() })
    }

    pub(super) async fn stop(&self) {
        let last = self.slot.lock().await.take();
        if let Some(last) = last {
            let _ = last.connection.close().await;
        }
    }
}
