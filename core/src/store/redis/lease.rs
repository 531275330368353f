//! Leases in Redis: one holder does a piece of work, so that other cores need not repeat it.
//!
//! Never for correctness: a holder may be slower than its lease. What is written under one carries its fencing token,
//! and what must not happen twice is guarded where it is written.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::replies::LeaseReply;
use super::{RedisStore, RedisStoreError, keys};
use crate::metrics;

const RETRY_MIN: Duration = Duration::from_millis(10);
const RETRY_MAX: Duration = Duration::from_millis(500);

/// Why a lease was not acquired.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// Another holder has the lease.
    #[error("another holder has the lease")]
    Taken,
    /// A call to Redis failed.
    #[error(transparent)]
    Redis(#[from] RedisStoreError),
}

/// A holder of any number of leases, one after another: each task that works on its own has one.
#[derive(Debug, Clone)]
pub struct LeaseHolder {
    redis: Arc<RedisStore>,
    id: String,
}

impl LeaseHolder {
    /// A holder with a random id that no other holder has.
    ///
    /// # Errors
    /// When the system has no randomness for the holder's id.
    pub fn new(redis: Arc<RedisStore>) -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes)?;
        Ok(Self { redis, id: format!("{:032x}", u128::from_be_bytes(bytes)) })
    }

    /// Acquires the lease `name` if it is free, or this holder's already. It is renewed until released, as long as this
    /// process lives; after that it expires after `ttl`.
    ///
    /// # Errors
    /// [`LeaseError::Taken`] when another holder has it.
    pub async fn try_acquire(&self, name: &str, ttl: Duration) -> Result<Lease, LeaseError> {
        let keys = keys::lease(name);
        match self.redis.lease(&keys, "acquire", &self.id, ttl).await? {
            LeaseReply::Held(token) => Ok(Lease::start(self.clone(), keys, token, ttl)),
            _ => Err(LeaseError::Taken),
        }
    }

    /// Acquires the lease `name`, trying for up to `timeout` with exponential back-off and jitter.
    ///
    /// # Errors
    /// [`LeaseError::Taken`] when another holder still has it after `timeout`.
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

/// Between half of `backoff` and all of it, so that those who wait do not wake together.
fn jittered(backoff: Duration) -> Duration {
    let mut byte = [0; 1];
    // Without randomness they wake together, and one of them wins all the same.
    let _ = getrandom::fill(&mut byte);
    backoff / 2 + backoff / 2 * u32::from(byte[0]) / 255
}

/// A lease that is held. Its watchdog renews it three times per TTL until it is released.
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

    /// The fencing token, higher than every earlier holder's: what is written under the lease carries it.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Whether the watchdog has found the lease to be lost. `false` proves nothing: that is what tokens are for.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Releases the lease; `false` when it was not held any more: nothing was changed then.
    ///
    /// # Errors
    /// [`RedisStoreError::Unavailable`] when Redis does not answer: the lease then ends with its `ttl`.
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
    /// A lease that is not released expires after its TTL.
    fn drop(&mut self) {
        self.watchdog.abort();
    }
}

async fn watch(holder: LeaseHolder, keys: [String; 2], ttl: Duration, lost: Arc<AtomicBool>) {
    loop {
        sleep(ttl / 3).await;
        // An error says nothing: Redis may be back before the lease is over.
        if let Ok(LeaseReply::Lost) = holder.redis.lease(&keys, "renew", &holder.id, ttl).await {
            lost.store(true, Ordering::Release);
            return log_loss(&keys);
        }
    }
}

/// Tells of each loss once: the watchdog or the release finds it.
fn log_loss(keys: &[String; 2]) {
    metrics::lease_lost();
    tracing::warn!(lease = keys[0], "a lease was lost while its work went on");
}
