//! An attempt to take units, and its result.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// An attempt to take units.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// User who takes the units.
    pub user: String,
    /// Number of units, at least 1.
    pub quantity: u32,
    /// Deadline for waiting; then a strategy returns `StockError::TimedOut` and has changed nothing.
    pub deadline: Instant,
    /// Selects slow holders; `None` for strategies whose fault needs none.
    pub slow: Option<Arc<SlowHolders>>,
}

/// Selects the lock holders that are slower than their lease: the first two, then two of every 32.
/// Two slow holders follow each other, so that the second still holds the lock when the first wakes up. They
/// are selected by order, not by name, so that each contest has slow holders while units are left.
#[derive(Debug, Default)]
pub struct SlowHolders(AtomicUsize);

impl SlowHolders {
    /// Returns whether the current holder is slow; call once per holder.
    pub fn next_is_slow(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed) % 32 < 2
    }
}

/// Result of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReduceResult {
    /// The caller got the units.
    Taken,
    /// Fewer units are left than requested.
    SoldOut,
    /// This user already has units, or another attempt of this user is in progress.
    AlreadyTaken,
    /// A limit of this user, by name.
    Limited(&'static str),
}

impl Attempt {
    /// Creates an attempt of `user` that may wait for `timeout`.
    pub fn new(user: &str, quantity: u32, timeout: Duration) -> Self {
        Self { user: user.to_owned(), quantity, deadline: Instant::now() + timeout, slow: None }
    }

    /// Returns whether this is a slow holder; call once, while the lock is held.
    pub fn is_slow_holder(&self) -> bool {
        self.slow.as_ref().is_some_and(|slow| slow.next_is_slow())
    }
}
