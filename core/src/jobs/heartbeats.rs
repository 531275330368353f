//! Lists this core in SQL, and checks the health of SQL with the same write: one heartbeat per second.

use std::pin::pin;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::ticks_every;
use crate::domain::store_fault::StoreFault;
use crate::engine::Engine;
use crate::engine::live::cores::ThisCore;
use crate::store::sql::SqlError;

/// The interval between heartbeats.
const PERIOD: Duration = Duration::from_secs(1);
/// Timeout after which an unanswered heartbeat is reported as a silent SQL. Longer than the limit of the store
/// (`HEARTBEAT_MAX`), which returns the cause; only a hanging disk of SQLite keeps the store from returning in time.
const SILENT_AFTER: Duration = Duration::from_secs(3);
/// Additional time for a heartbeat that was reported, until the next heartbeat is sent, so that heartbeats do not
/// pile up.
const STUCK_MAX: Duration = Duration::from_secs(10);
/// The time limit for removing the rows of earlier runs when core starts.
const FORGET_MAX: Duration = Duration::from_secs(1);
/// The pause before the removal is tried again.
const FORGET_PAUSE: Duration = Duration::from_millis(50);
/// The time limit for the last heartbeat and the removal of this core's rows when core stops. Less than the
/// time limit of all jobs.
const STOP_MAX: Duration = Duration::from_millis(1500);

/// Sends heartbeats of the core `this` until `stop` turns true, and then removes its row. Also removes the
/// rows of its earlier runs: runs that were killed would be listed as silent for an hour.
///
/// Increments `returns` each time SQL works again after a failure, or its server has restarted.
pub async fn send(
    engine: &Engine,
    this: &ThisCore,
    returns: &watch::Sender<u64>,
    stop: watch::Receiver<bool>,
) {
    let mut stopping = stop.clone();
    let too_late = async {
        let _ = stopping.wait_for(|stop| *stop).await;
        sleep(STOP_MAX).await;
    };
    let mut heartbeats = Heartbeats { engine, this, returns, server: None };
    let listed = async {
        heartbeats.send_until(stop).await;
        while heartbeats.forget_runs(None).await.is_err() {
            sleep(FORGET_PAUSE).await;
        }
    };
    tokio::select! {
        () = listed => {}
        () = too_late => tracing::warn!("SQL does not answer: this core remains listed as silent for an hour"),
    }
}

/// The heartbeats of one core.
struct Heartbeats<'a> {
    engine: &'a Engine,
    this: &'a ThisCore,
    returns: &'a watch::Sender<u64>,
    /// The run of the SQL server that answered the last heartbeat in time.
    server: Option<i64>,
}

impl Heartbeats<'_> {
    /// Ends between two heartbeats: SQL may carry out a heartbeat whose answer is not awaited after the row was
    /// removed, and the row would come back. That remains possible for a heartbeat that has timed out.
    async fn send_until(&mut self, mut stop: watch::Receiver<bool>) {
        let mut ticks = ticks_every(PERIOD);
        let mut earlier_runs_removed = false;
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
            self.send_one().await;
            if !earlier_runs_removed {
                let forget = self.forget_runs(Some(self.this.run.id()));
                earlier_runs_removed = matches!(timeout(FORGET_MAX, forget).await, Ok(Ok(())));
            }
        }
    }

    /// Sends one heartbeat and records the health of SQL.
    async fn send_one(&mut self) {
        let (health, row) = (&self.engine.health.sql, self.this.row());
        let mut heartbeat = pin!(self.engine.stores.sql.heartbeat(&row));
        let silent = StoreFault::silent(SILENT_AFTER.as_secs());
        let mut answer = timeout(SILENT_AFTER, &mut heartbeat).await;
        if answer.is_err() {
            health.record("sql", Err(silent.clone()));
            self.server = None;
            answer = timeout(STUCK_MAX, heartbeat).await;
        }
        let answer = answer.unwrap_or(Err(silent));
        // In the meantime, the server may have been replaced by a copy that lacks the last commits.
        let answered = answer.as_ref().ok().copied();
        if answered.is_some() && answered != self.server {
            self.returns.send_modify(|returns| *returns += 1);
        }
        self.server = answered;
        health.record("sql", answer.map(drop));
    }

    /// Removes the rows of this core's runs other than `kept`.
    async fn forget_runs(&self, kept: Option<&str>) -> Result<(), SqlError> {
        self.engine.stores.sql.forget_runs(self.this.run.core(), kept).await
    }
}
