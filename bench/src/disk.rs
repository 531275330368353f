//! Measures syncs of the measured servers' disk during a load, to separate the disk's share of slow responses.

use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// Pause between two syncs: long enough not to slow the servers.
const PAUSE: Duration = Duration::from_millis(10);
const BYTES: &[u8; 64] = &[b'x'; 64];
/// Upper bound of the histogram.
const SYNC_NS_MAX: u64 = 60_000_000_000;

/// Syncs until it is dropped.
#[derive(Debug)]
pub struct SyncWatcher {
    stop: Arc<AtomicBool>,
    runs: tokio::task::JoinHandle<anyhow::Result<Histogram<u64>>>,
}

impl SyncWatcher {
    /// Begins, with a temporary file: the servers' data are in the same directory.
    pub fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        Self { stop, runs: tokio::task::spawn_blocking(move || watch(&stopped)) }
    }

    /// Returns the times of all syncs, in nanoseconds.
    pub async fn end(mut self) -> anyhow::Result<Histogram<u64>> {
        self.stop.store(true, Ordering::Relaxed);
        (&mut self.runs).await?
    }
}

impl Drop for SyncWatcher {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn watch(stopped: &AtomicBool) -> anyhow::Result<Histogram<u64>> {
    let mut times = Histogram::new_with_max(SYNC_NS_MAX, 3)?;
    let mut file: File = tempfile::tempfile()?;
    while !stopped.load(Ordering::Relaxed) {
        file.write_all(BYTES)?;
        let began = Instant::now();
        file.sync_data()?;
        times.saturating_record(u64::try_from(began.elapsed().as_nanos())?);
        sleep(PAUSE);
    }
    Ok(times)
}
