//! Leases in Redis: one holder does a piece of work, so that other cores do not repeat that work.
//!
//! Correctness never depends on a lease, since a holder may outlive it. Writes carry the lease's fencing
//! token, and the store that receives them guards against duplicates.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::scripts::keys;
use super::scripts::replies::LeaseReply;
use super::{RedisStore, RedisStoreError};
use crate::metrics;

const RETRY_MIN: Duration = Duration::from_millis(10);
const RETRY_MAX: Duration = Duration::from_millis(500);

/// The reason why a lease was not acquired.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// Another holder has the lease.
    #[error("another holder has the lease")]
    Taken,
    /// A call to Redis failed.
    #[error(transparent)]
    Redis(#[from] RedisStoreError),
}

/// A holder, which may acquire several leases in sequence. Each independent task has its own holder.
#[derive(Debug, Clone)]
pub struct LeaseHolder {
    redis: Arc<RedisStore>,
    id: String,
}

impl LeaseHolder {
    /// Creates a holder with a random, unique id.
    pub fn new(redis: Arc<RedisStore>) -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes)?;
        Ok(Self { redis, id: format!("{:032x}", u128::from_be_bytes(bytes)) })
    }

    /// Acquires the lease `name` if it is free, or if this holder has it already. The lease is renewed until
    /// it is released; if this process dies, the lease expires after `ttl`.
    pub async fn try_acquire(&self, name: &str, ttl: Duration) -> Result<Lease, LeaseError> {
        let keys = keys::lease(name);
        match self.redis.lease(&keys, "acquire", &self.id, ttl).await? {
            LeaseReply::Held(token) => Ok(Lease::start(self.clone(), keys, token, ttl)),
            _ => Err(LeaseError::Taken),
        }
    }

    /// Acquires the lease `name`, retrying for up to `timeout` with exponential backoff and jitter.
    pub async fn acquire(&self, name: &str, ttl: Duration, timeout: Duration) -> Result<Lease, LeaseError> {
        let deadline = Instant::now() + timeout;
        let mut backoff = RETRY_MIN;
        loop {
            match self.try_acquire(name, ttl).await {
                Err(LeaseError::Taken) if Instant::now() < deadline => {}
                result => return result,
            }
            sleep(jittered(backoff)).await;
            backoff = (backoff * 2).min(RETRY_MAX);
        }
    }
}

/// Returns a random duration between half of `backoff` and `backoff`, so that waiting tasks do not wake
/// together.
fn jittered(backoff: Duration) -> Duration {
    let mut byte = [0; 1];
    // Without randomness the tasks wake together, and one of them still wins.
    let _ = getrandom::fill(&mut byte);
    backoff / 2 + backoff / 2 * u32::from(byte[0]) / 255
}

/// A lease held by this process. Its watchdog renews it three times per TTL until it is released.
#[derive(Debug)]
pub struct Lease {
    holder: LeaseHolder,
    keys: [String; 2],
    token: u64,
    lost: Arc<AtomicBool>,
    watchdog: JoinHandle<()>,
}

impl Lease {
    fn start(holder: LeaseHolder, keys: [String; 2], token: u64, ttl: Duration) -> Self {
        let lost = Arc::new(AtomicBool::new(false));
        let watchdog = tokio::spawn(watch(holder.clone(), keys.clone(), ttl, Arc::clone(&lost)));
        Self { holder, keys, token, lost, watchdog }
    }

    /// Returns the fencing token, which is higher than the tokens of all earlier holders. Writes under the
    /// lease carry this token.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Returns whether the watchdog has detected that the lease was lost. `false` proves nothing; only the
    /// fencing token protects a write.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Releases the lease. Returns `false`, without changing anything, if the lease was no longer held.
    ///
    /// # Errors
    /// The lease then expires after its TTL.
    pub async fn release(self) -> Result<bool, RedisStoreError> {
        let reply = self.holder.redis.lease(&self.keys, "release", &self.holder.id, Duration::ZERO).await?;
        let was_held = reply == LeaseReply::Done;
        if !was_held && !self.is_lost() {
            log_loss(&self.keys);
        }
        Ok(was_held)
    }
}

impl Drop for Lease {
    /// Stops the renewal: a lease that is not released expires after its TTL.
    fn drop(&mut self) {
        self.watchdog.abort();
    }
}

async fn watch(holder: LeaseHolder, keys: [String; 2], ttl: Duration, lost: Arc<AtomicBool>) {
    loop {
        sleep(ttl / 3).await;
        // An error does not prove a loss: Redis may be back before the lease expires.
        if let Ok(LeaseReply::Lost) = holder.redis.lease(&keys, "renew", &holder.id, ttl).await {
            lost.store(true, Ordering::Release);
            return log_loss(&keys);
        }
    }
}

/// Logs a loss. Called once per loss, by the watchdog or by the release.
fn log_loss(keys: &[String; 2]) {
    metrics::LEASE_LOSSES.add(1);
    tracing::warn!(lease = keys[0], "a lease was lost while its work was in progress");
}
