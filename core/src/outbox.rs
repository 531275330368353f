//! From the outbox to SQL: reads what the scripts wrote, commits it, and only then takes it off.
//!
//! It may stop anywhere. What was read and not taken off is read again; what was committed and not taken off is
//! written again, which changes nothing, since a row gives way only to a newer revision of its claim.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use std::{io, slice, thread};

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::archive::{Archive, DrainError};
use crate::campaigns::{Campaigns, Known};
use crate::clock;
use crate::ledger::events::{OutboxReader, Read};
use crate::ledger::{Ledger, LedgerError};
use crate::metrics;

/// How long one look waits for something new; also how soon a campaign just made is listened to.
const WAIT: Duration = Duration::from_millis(200);
/// What another core has read and left lying for so long is taken over.
const IDLE: Duration = Duration::from_secs(5);
/// How often to look for that.
const TAKE_OVER: Duration = Duration::from_secs(2);
/// How far the drain's thread gives way, as `nice` has it: at 5 it gets a third of what a thread that decides gets.
const NICENESS: i32 = 5;
/// With so many events at once there is a stampede: then the drain rests so many times as long as it works, until the
/// outbox is half full.
const MANY: usize = 2048;
const REST: u32 = 4;
/// How often a resting drain looks whether the stampede is over.
const LOOK_UP: Duration = Duration::from_millis(5);
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

/// Why a round of the drain broke off.
#[derive(Debug, thiserror::Error)]
pub enum RoundError {
    /// Redis.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// SQL.
    #[error(transparent)]
    Drain(#[from] DrainError),
}

impl Drain {
    /// Runs on a thread of its own until `stop` turns true. That thread, and SQLite's beside it, give way to those that
    /// decide: a stampede is short, and SQL catches up after it. The bound on the outbox holds meanwhile.
    pub fn spawn(self, stop: watch::Receiver<bool>) -> io::Result<thread::JoinHandle<()>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new().name("drain".to_owned()).spawn(move || {
            if let Err(error) = rustix::process::nice(NICENESS) {
                tracing::warn!(%error, "the drain does not give way to decisions");
            }
            runtime.block_on(async move {
                let mut told = stop.clone();
                let archive = tokio::select! {
                    archive = self.reopen() => archive,
                    _ = told.wait_for(|stop| *stop) => return,
                };
                Self { archive: archive.clone(), ..self }.run(stop).await;
                archive.close().await;
            });
        })
    }

    /// The archive over connections made on this thread.
    async fn reopen(&self) -> Archive {
        loop {
            match self.archive.reopen().await {
                Ok(archive) => return archive,
                Err(error) => tracing::warn!(%error, "the drain cannot open the register; trying again"),
            }
            sleep(RETRY_MAX).await;
        }
    }

    /// Runs until `stop` turns true.
    pub async fn run(self, mut stop: watch::Receiver<bool>) {
        let mut retry = RETRY_MIN;
        loop {
            let started = Instant::now();
            let drained = tokio::select! {
                drained = self.drain_until_it_fails() => drained,
                _ = stop.wait_for(|stop| *stop) => return,
            };
            if let Err(error) = drained {
                tracing::warn!(%error, "drain interrupted; trying again");
                self.distrust_all();
            }
            if started.elapsed() > RETRY_MAX {
                retry = RETRY_MIN;
            }
            tokio::select! {
                () = sleep(retry) => retry = (retry * 2).min(RETRY_MAX),
                _ = stop.wait_for(|stop| *stop) => return,
            }
        }
    }

    /// One outbox that is gone makes the look into all of them fail: the recovery finds out whose it was.
    fn distrust_all(&self) {
        for known in self.campaigns.all() {
            known.distrust();
        }
    }

    async fn drain_until_it_fails(&self) -> Result<(), RoundError> {
        let mut reader = self.ledger.outbox_reader(&self.consumer, WAIT).await?;
        let mut taken_over_at = Instant::now();
        // What was read before a connection broke, or before a restart, is still ours to commit.
        let mut caught_up: HashSet<String> = HashSet::new();
        loop {
            let known = self.in_redis();
            self.catch_up(&mut reader, &known, &mut caught_up).await?;
            if taken_over_at.elapsed() > TAKE_OVER {
                taken_over_at = Instant::now();
                self.take_over(&mut reader, &known, IDLE).await?;
            }
            if known.is_empty() {
                sleep(WAIT).await;
                continue;
            }
            self.move_new(&mut reader, &known, WAIT).await?;
        }
    }

    /// One round of the drain, as after a start: what this core had read, what others have left lying for `idle`, and what
    /// is new, at most 64 entries a campaign.
    pub async fn round(&self, idle: Duration) -> Result<(), RoundError> {
        let round = async {
            let mut reader = self.ledger.outbox_reader(&self.consumer, WAIT).await?;
            let known = self.in_redis();
            self.catch_up(&mut reader, &known, &mut HashSet::new()).await?;
            self.take_over(&mut reader, &known, idle).await?;
            if !known.is_empty() {
                self.move_new(&mut reader, &known, Duration::ZERO).await?;
            }
            Ok(())
        };
        round.await.inspect_err(|_| self.distrust_all())
    }

    fn in_redis(&self) -> Vec<Arc<Known>> {
        self.campaigns.all().into_iter().filter(|known| known.is_in_redis()).collect()
    }

    /// Commits what was read of each campaign and not taken off, once for each that is not in `caught_up` yet.
    async fn catch_up(
        &self,
        reader: &mut OutboxReader,
        known: &[Arc<Known>],
        caught_up: &mut HashSet<String>,
    ) -> Result<(), RoundError> {
        for known in known {
            if caught_up.contains(&known.keys.outbox) {
                continue;
            }
            let (one, keys) = (slice::from_ref(known), slice::from_ref(&known.keys));
            while self.commit_all(one, reader.read_again(keys).await?).await? > 0 {}
            caught_up.insert(known.keys.outbox.clone());
        }
        Ok(())
    }

    async fn move_new(
        &self,
        reader: &mut OutboxReader,
        known: &[Arc<Known>],
        wait: Duration,
    ) -> Result<(), RoundError> {
        let keys: Vec<_> = known.iter().map(|known| known.keys.clone()).collect();
        let read = reader.read_new(&keys, wait).await?;
        self.commit_all(known, read).await?;
        Ok(())
    }

    /// Finishes what cores that are gone have begun.
    async fn take_over(
        &self,
        reader: &mut OutboxReader,
        known: &[Arc<Known>],
        idle: Duration,
    ) -> Result<(), RoundError> {
        for known in known {
            let read = reader.take_over(&known.keys, idle).await?;
            self.commit(known, read).await?;
        }
        Ok(())
    }

    async fn commit_all(
        &self,
        known: &[Arc<Known>],
        mut read: HashMap<String, Read>,
    ) -> Result<usize, RoundError> {
        let mut moved = 0;
        for known in known {
            if let Some(read) = read.remove(&known.keys.outbox) {
                moved += self.commit(known, read).await?;
            }
        }
        Ok(moved)
    }

    /// Commits what was read, and only then takes it off; the number of entries.
    async fn commit(&self, known: &Known, read: Read) -> Result<usize, RoundError> {
        for id in &read.poison {
            tracing::error!(entry = id, campaign = %known.campaign().id, "an outbox entry that no core has written is parked");
            self.ledger.park(&known.keys, id).await?;
            metrics::poison(1);
        }
        if !read.entries.is_empty() {
            let started = Instant::now();
            match self.archive.drain(&known.campaign().id, &read.entries).await {
                Err(DrainError::Constraint(error)) => return self.close(known, &error).await,
                other => other?,
            }
            let left = self.ledger.acknowledge(&known.keys, &read.entries).await?;
            metrics::drained(read.events() as u64, oldest(&read));
            if read.events() >= MANY && left < self.ledger.backlog_max() / 2 {
                stand_back(known, started.elapsed() * REST).await;
            }
        }
        Ok(read.entries.len() + read.poison.len())
    }

    /// Claims that SQL refuses were granted by a Redis that had lost others: the campaign is closed and loaded anew.
    async fn close(&self, known: &Known, error: &sqlx::Error) -> Result<usize, RoundError> {
        tracing::error!(campaign = %known.campaign().id, %error, "the register refuses claims; closing the campaign");
        self.ledger.close(&known.keys).await?;
        known.distrust();
        Ok(0)
    }
}

/// Leaves the processors to decisions for a while, as long as there are any: SQL catches up after a stampede.
async fn stand_back(known: &Known, rest: Duration) {
    let until = Instant::now() + rest;
    while known.is_busy() && Instant::now() < until {
        sleep(LOOK_UP).await;
    }
}

fn oldest(read: &Read) -> Duration {
    let events = read.entries.iter().flat_map(|entry| &entry.events);
    let first = events.map(|event| event.updated_at.as_ms()).min().unwrap_or(0);
    Duration::from_millis(u64::try_from(clock::now().as_ms() - first).unwrap_or(0))
}
