//! How far SQL stays behind: the outbox looked at while a load runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::bail;
use support::RedisView;
use tokio::task::JoinHandle;

use crate::checks::backlog;

const LOOK: Duration = Duration::from_millis(100);
const EMPTY_POLL: Duration = Duration::from_millis(10);
const EMPTY_WAIT: Duration = Duration::from_secs(90);

/// How far SQL was behind.
#[derive(Debug, Clone, Copy)]
pub struct Lag {
    /// The most events that were seen waiting.
    pub largest: u64,
    /// How long it took from the load's end until none waited, in seconds.
    pub seconds: f64,
}

/// Looks at a campaign's outbox until told to finish.
#[derive(Debug)]
pub struct Watcher {
    view: RedisView,
    campaign: String,
    largest: Arc<AtomicU64>,
    looking: JoinHandle<()>,
}

impl Watcher {
    /// Begins to look.
    pub fn start(view: &RedisView, campaign: &str) -> Self {
        let largest = Arc::new(AtomicU64::new(0));
        let looking = tokio::spawn(look(view.clone(), campaign.to_owned(), Arc::clone(&largest)));
        Self { view: view.clone(), campaign: campaign.to_owned(), largest, looking }
    }

    /// The load has ended: waits until nothing waits for SQL.
    pub async fn finish(self) -> anyhow::Result<Lag> {
        self.looking.abort();
        let started = Instant::now();
        loop {
            let waiting = backlog(&self.view, &self.campaign).await?;
            let largest = self.largest.fetch_max(waiting, Ordering::Relaxed).max(waiting);
            if waiting == 0 {
                return Ok(Lag { largest, seconds: started.elapsed().as_secs_f64() });
            }
            if started.elapsed() > EMPTY_WAIT {
                bail!("{}: {waiting} events still wait for SQL after {EMPTY_WAIT:?}", self.campaign);
            }
            tokio::time::sleep(EMPTY_POLL).await;
        }
    }
}

async fn look(view: RedisView, campaign: String, largest: Arc<AtomicU64>) {
    loop {
        if let Ok(waiting) = backlog(&view, &campaign).await {
            largest.fetch_max(waiting, Ordering::Relaxed);
        }
        tokio::time::sleep(LOOK).await;
    }
}
