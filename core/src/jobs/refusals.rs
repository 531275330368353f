//! Writes refused claims to SQL: edges' reports as they arrive, and once a second this core's own counts.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::ticks_every;
use crate::engine::Engine;
use crate::engine::demand::RefusalWriter;
use crate::engine::live::cores::CoreRun;

/// Interval between two reports of this core.
const PERIOD: Duration = Duration::from_secs(1);
/// Interval between two removals of old rows.
const REMOVE_PERIOD: Duration = Duration::from_mins(10);
/// The time limit of the last report when core stops.
const LAST_MAX: Duration = Duration::from_secs(1);

/// Writes the refusals of `engine` as the core's run `run` until `stop` turns true, then writes the last
/// counts. Must run in only one task.
pub async fn write(engine: Arc<Engine>, run: CoreRun, mut stop: watch::Receiver<bool>) {
    let writer = RefusalWriter::new(&engine.refusals, &engine.registry, &engine.stores.sql, run.id());
    let Some(mut writer) = writer else { return };
    let mut ticks = ticks_every(PERIOD);
    let mut removals = ticks_every(REMOVE_PERIOD);
    loop {
        let event = tokio::select! {
            () = writer.wait() => Event::Received,
            _ = ticks.tick() => Event::OwnIsDue,
            _ = removals.tick() => Event::RemovalIsDue,
            _ = stop.wait_for(|stop| *stop) => Event::Stopped,
        };
        // A failed write is retried at the next tick. The health checks log that SQL is unavailable.
        let done = match event {
            Event::Received => {
                writer.write_received().await;
                Ok(())
            }
            Event::OwnIsDue => writer.write_own().await,
            Event::RemovalIsDue => writer.remove_old().await,
            Event::Stopped => break,
        };
        if let Err(error) = done {
            tracing::debug!(%error, ?event, "writing refusals failed; will retry");
        }
    }
    let _ = timeout(LAST_MAX, writer.write_own()).await;
}

/// An event for which the task waits.
#[derive(Debug, Clone, Copy)]
enum Event {
    Received,
    OwnIsDue,
    RemovalIsDue,
    Stopped,
}
