//! From the outbox to SQL: reads what the scripts wrote, commits it, and only then takes it off.
//!
//! It may stop anywhere. What was read and not taken off is read again; what was committed and not taken off is
//! written again, which changes nothing, since a row gives way only to a newer revision of its claim.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use crate::archive::{Archive, DrainError};
use crate::campaigns::{Campaigns, Known};
use crate::clock;
use crate::ledger::events::{OutboxReader, Read};
use crate::ledger::{Ledger, LedgerError};
use crate::metrics;

/// How long one look waits for something new; also how soon a campaign just made is listened to.
const WAIT: Duration = Duration::from_millis(200);
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Moves events into SQL until core stops.
#[derive(Debug)]
pub struct Drain {
    /// Where events come from.
    pub ledger: Arc<Ledger>,
    /// Where they go.
    pub archive: Archive,
    /// Whose outboxes.
    pub campaigns: Arc<Campaigns>,
    /// This core's name among the drains; the same after a restart, so that it finds what it had read.
    pub consumer: String,
}

#[derive(Debug, thiserror::Error)]
enum RoundError {
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Drain(#[from] DrainError),
}

impl Drain {
    /// Runs until `stop` turns true.
    pub async fn run(self, mut stop: watch::Receiver<bool>) {
        let mut retry = RETRY_MIN;
        loop {
            let drained = tokio::select! {
                drained = self.drain_until_it_fails() => drained,
                _ = stop.wait_for(|stop| *stop) => return,
            };
            if let Err(error) = drained {
                tracing::warn!(%error, "drain interrupted; trying again");
            }
            tokio::select! {
                () = sleep(retry) => retry = (retry * 2).min(RETRY_MAX),
                _ = stop.wait_for(|stop| *stop) => return,
            }
        }
    }

    async fn drain_until_it_fails(&self) -> Result<(), RoundError> {
        let mut reader = self.ledger.outbox_reader(&self.consumer, WAIT).await?;
        while self.round(&mut reader, true).await? > 0 {}
        loop {
            self.round(&mut reader, false).await?;
        }
    }

    /// One look into every outbox; the number of entries it moved.
    async fn round(&self, reader: &mut OutboxReader, again: bool) -> Result<usize, RoundError> {
        let known: Vec<_> = self.campaigns.all();
        let keys: Vec<_> = known.iter().map(|known| known.keys.clone()).collect();
        if keys.is_empty() {
            sleep(WAIT).await;
            return Ok(0);
        }
        let mut read = if again {
            reader.read_again(&keys).await?
        } else {
            reader.read_new(&keys, WAIT).await?
        };
        let mut moved = 0;
        for known in &known {
            moved += self.commit(known, &mut read).await?;
        }
        Ok(moved)
    }

    async fn commit(&self, known: &Known, read: &mut HashMap<String, Read>) -> Result<usize, RoundError> {
        let Some(read) = read.remove(&known.keys.outbox) else {
            return Ok(0);
        };
        if !read.poison.is_empty() {
            metrics::poison(read.poison.len() as u64);
            tracing::error!(entries = ?read.poison, "an outbox holds what no core has written");
        }
        if read.entries.is_empty() {
            return Ok(0);
        }
        self.archive.drain(&known.campaign().id, &read.entries).await?;
        self.ledger.acknowledge(&known.keys, &read.entries).await?;
        if let Some(last) = read
            .entries
            .iter()
            .flat_map(|entry| &entry.events)
            .map(|event| event.claim.sequence)
            .max()
        {
            known.raise_floor(last);
        }
        metrics::drained(read.events() as u64, oldest(&read));
        Ok(read.entries.len())
    }
}

fn oldest(read: &Read) -> Duration {
    let events = read.entries.iter().flat_map(|entry| &entry.events);
    let first = events.map(|event| event.updated_at.as_ms()).min().unwrap_or(0);
    Duration::from_millis(u64::try_from(clock::now().as_ms() - first).unwrap_or(0))
}
