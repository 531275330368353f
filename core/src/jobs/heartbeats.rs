//! Lists this core in SQL, and checks the health of SQL by that: a heartbeat a second writes its row.

use std::pin::pin;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::ticks_every;
use crate::domain::store_fault::StoreFault;
use crate::engine::Engine;
use crate::engine::live::cores::ThisCore;

/// The interval between heartbeats.
const PERIOD: Duration = Duration::from_secs(1);
/// The time limit of a heartbeat. A heartbeat normally ends earlier by its own limit, unless SQLite's disk
/// hangs.
const HEARTBEAT_MAX: Duration = Duration::from_secs(3);
/// Additional time for an unanswered heartbeat until the next heartbeat is sent, so that heartbeats do not
/// pile up.
const HEARTBEAT_STUCK_MAX: Duration = Duration::from_secs(10);
/// The time limit for removing the rows of earlier runs when core starts.
const FORGET_MAX: Duration = Duration::from_secs(1);
/// The pause before the removal is tried again.
const FORGET_PAUSE: Duration = Duration::from_millis(50);
/// The time limit for the last heartbeat and the removal of this core's rows when core stops. Less than the
/// time limit of all jobs.
const STOP_MAX: Duration = Duration::from_millis(1500);

/// Sends heartbeats of the core `this` until `stop` turns true, and then removes its row. Also removes the rows of
/// its earlier runs: those that were killed would be listed as silent for an hour.
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
    let listed = async {
        send_until_stopped(engine, this, returns, stop).await;
        while engine.stores.sql.forget_runs(this.run.core(), "").await.is_err() {
            sleep(FORGET_PAUSE).await;
        }
    };
    tokio::select! {
        () = listed => {}
        () = too_late => tracing::warn!("SQL does not answer: this core remains listed as silent for an hour"),
    }
}

/// Ends between two heartbeats: SQL may carry out a heartbeat whose answer is not awaited after the row was
/// removed, and the row would come back. That remains possible for a heartbeat that has timed out.
async fn send_until_stopped(
    engine: &Engine,
    this: &ThisCore,
    returns: &watch::Sender<u64>,
    mut stop: watch::Receiver<bool>,
) {
    let mut ticks = ticks_every(PERIOD);
    let mut earlier_runs_removed = false;
    let mut server = None;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
        send_one(engine, this, &mut server, returns).await;
        if !earlier_runs_removed {
            let forget = engine.stores.sql.forget_runs(this.run.core(), this.run.id());
            earlier_runs_removed = matches!(timeout(FORGET_MAX, forget).await, Ok(Ok(())));
        }
    }
}

/// Sends one heartbeat and records the health of SQL. `server` is the run of the SQL server that answered the
/// last heartbeat in time.
async fn send_one(engine: &Engine, this: &ThisCore, server: &mut Option<i64>, returns: &watch::Sender<u64>) {
    let row = this.row();
    let mut heartbeat = pin!(engine.stores.sql.heartbeat(&row));
    let silent = StoreFault::silent(HEARTBEAT_MAX.as_secs());
    let mut answer = timeout(HEARTBEAT_MAX, &mut heartbeat).await;
    if answer.is_err() {
        engine.health.sql.record("sql", Err(silent.clone()));
        *server = None;
        answer = timeout(HEARTBEAT_STUCK_MAX, heartbeat).await;
    }
    let answer = answer.unwrap_or(Err(silent));
    // In the meantime, the server may have been replaced by a copy that lacks the last commits.
    let answered = answer.as_ref().ok().copied();
    if answered.is_some() && answered != *server {
        returns.send_modify(|returns| *returns += 1);
    }
    *server = answered;
    engine.health.sql.record("sql", answer.map(drop));
}
