//! SQL's lag behind Redis: samples the outbox during a load.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::bail;
use support::RedisView;
use tokio::task::JoinHandle;

use crate::checks::backlog;

const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
const EMPTY_POLL: Duration = Duration::from_millis(10);
const EMPTY_TIMEOUT: Duration = Duration::from_secs(90);

/// SQL's lag behind Redis.
#[derive(Debug, Clone, Copy)]
pub struct Lag {
    /// The largest sampled backlog.
    pub largest: u64,
    /// Seconds from the load's end until the outbox was empty.
    pub seconds: f64,
}

/// A task that samples a campaign's outbox until [`Self::finish`] is called.
#[derive(Debug)]
pub struct Watcher {
    view: RedisView,
    campaign: String,
    largest: Arc<AtomicU64>,
    sampler: JoinHandle<()>,
}

impl Watcher {
    /// Starts sampling.
    pub fn start(view: &RedisView, campaign: &str) -> Self {
        let largest = Arc::new(AtomicU64::new(0));
        let sampler = tokio::spawn(sample(view.clone(), campaign.to_owned(), Arc::clone(&largest)));
        Self { view: view.clone(), campaign: campaign.to_owned(), largest, sampler }
    }

    /// Waits until the outbox is empty; call this after the load.
    pub async fn finish(self) -> anyhow::Result<Lag> {
        self.sampler.abort();
        let started = Instant::now();
        loop {
            let events = backlog(&self.view, &self.campaign).await?;
            let largest = self.largest.fetch_max(events, Ordering::Relaxed).max(events);
            if events == 0 {
                return Ok(Lag { largest, seconds: started.elapsed().as_secs_f64() });
            }
            if started.elapsed() > EMPTY_TIMEOUT {
                bail!("{}: {events} events are still not in SQL after {EMPTY_TIMEOUT:?}", self.campaign);
            }
            tokio::time::sleep(EMPTY_POLL).await;
        }
    }
}

async fn sample(view: RedisView, campaign: String, largest: Arc<AtomicU64>) {
    loop {
        if let Ok(events) = backlog(&view, &campaign).await {
            largest.fetch_max(events, Ordering::Relaxed);
        }
        tokio::time::sleep(SAMPLE_INTERVAL).await;
    }
}
