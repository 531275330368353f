//! Waiting before the next try: twice as long each time, and never all at the same moment.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::manager::{Result, StockError};
use crate::meter::Meter;

/// Exponential back-off with jitter.
#[derive(Debug)]
pub struct Backoff {
    next: Duration,
    max: Duration,
}

impl Backoff {
    /// Between tries for a lock: soon at first, and a thousand who wait make some 20,000 tries a second at most.
    pub fn for_lock() -> Self {
        Self { next: Duration::from_millis(2), max: Duration::from_millis(64) }
    }

    /// Between tries for a lock that only those ask for who have a connection already.
    pub fn for_few() -> Self {
        Self { next: Duration::from_millis(1), max: Duration::from_millis(8) }
    }

    /// Between tries of an optimistic write.
    pub fn for_conflict() -> Self {
        Self { next: Duration::from_millis(1), max: Duration::from_millis(16) }
    }

    /// Waits; [`StockError::TimedOut`] when `deadline` has come.
    pub async fn pause(&mut self, deadline: Instant, meter: &Meter) -> Result<()> {
        if Instant::now() >= deadline {
            return Err(StockError::TimedOut);
        }
        sleep(jittered(self.next)).await;
        self.next = (self.next * 2).min(self.max);
        meter.retries.add(1);
        Ok(())
    }
}

/// Between half of `length` and all of it.
fn jittered(length: Duration) -> Duration {
    let mut byte = [0; 1];
    // Without randomness they wake together, and one of them wins all the same.
    let _ = getrandom::fill(&mut byte);
    length / 2 + length / 2 * u32::from(byte[0]) / 255
}

/// A unique name.
pub fn unique() -> Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(StockError::set_up)?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}
