//! Exponential backoff with jitter.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::error::{Result, StockError};
use crate::meter::Meter;

/// State of one caller's backoff.
#[derive(Debug)]
pub struct Backoff {
    next: Duration,
    max: Duration,
}

impl Backoff {
    /// Creates a backoff for contended locks: short at first. A thousand waiting callers make at most about
    /// 20,000 attempts a second.
    pub fn for_lock() -> Self {
        Self { next: Duration::from_millis(2), max: Duration::from_millis(64) }
    }

    /// Creates a backoff for a lock that only callers with a connection compete for.
    pub fn for_few() -> Self {
        Self { next: Duration::from_millis(1), max: Duration::from_millis(8) }
    }

    /// Creates a backoff for retries of an optimistic write.
    pub fn for_conflict() -> Self {
        Self { next: Duration::from_millis(1), max: Duration::from_millis(16) }
    }

    /// Waits; returns [`StockError::TimedOut`] if `deadline` has passed.
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

/// Returns a random duration between half of `length` and `length`.
fn jittered(length: Duration) -> Duration {
    let mut byte = [0; 1];
    // Without random numbers all callers wake up together, and one caller still succeeds.
    let _ = getrandom::fill(&mut byte);
    length / 2 + length / 2 * u32::from(byte[0]) / 255
}

/// Returns a unique name.
pub fn unique() -> Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(StockError::set_up)?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}
