//! What the instances of one strategy count while they work.

use std::sync::atomic::{AtomicU64, Ordering};

/// One count.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// One more.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// So far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Shared by the instances of one strategy.
#[derive(Debug, Default)]
pub struct Meter {
    /// Round trips to a server. Scripts are counted by Redis itself, so that claimgate's own are among them.
    pub trips: Count,
    /// Tries after the first, for whatever reason.
    pub retries: Count,
    /// Locks freed that were another's.
    pub wrong_releases: Count,
    /// Calls that claimgate's lock would have made had every lock been free: more calls are tries again.
    pub lease_calls: Count,
    /// Times a stock was loaded.
    pub loads: Count,
}
