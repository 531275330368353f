//! Counters of one strategy's instances.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters shared by the instances of one strategy.
#[derive(Debug, Default)]
pub struct Meter {
    /// Round trips to a server, without script calls: Redis counts those, so that claimgate's calls are
    /// included.
    pub trips: Count,
    /// Retries for any reason.
    pub retries: Count,
    /// Released locks that belonged to other callers.
    pub wrong_releases: Count,
    /// Calls that claimgate's lock would have needed if every lock had been free: further calls are retries.
    pub lease_calls: Count,
    /// Loads of a stock.
    pub loads: Count,
}
