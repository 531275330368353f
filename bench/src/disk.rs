//! Syncs a few bytes on the disk of the measured servers, for as long as a measurement lasts: what of a slow response
//! is the disk's, and what is the server's.

use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// Pause between two syncs: few enough not to slow the servers down.
const PAUSE: Duration = Duration::from_millis(10);
const BYTES: &[u8; 64] = &[b'x'; 64];
/// Upper bound of the histogram.
const SYNC_NS_MAX: u64 = 60_000_000_000;

/// Syncs until it is stopped.
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
    pub async fn end(self) -> anyhow::Result<Histogram<u64>> {
        self.stop.store(true, Ordering::Relaxed);
        self.runs.await?
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
