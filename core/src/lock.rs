//! Leases in Redis: who does a piece of work, so that others save themselves the trouble.
//!
//! Never for correctness: a holder may be slower than its lease. What is written under one carries its fencing token,
//! and what must not happen twice is guarded where it is written.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::ledger::scripts::Lease as Reply;
use crate::ledger::{Ledger, LedgerError, keys};

const RETRY_MIN: Duration = Duration::from_millis(10);
const RETRY_MAX: Duration = Duration::from_millis(500);

/// Why a lock was not acquired.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another owner holds it.
    #[error("another owner holds the lock")]
    Taken,
    /// Redis.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// Who may hold locks, again and again: one for each task that works on its own.
#[derive(Debug, Clone)]
pub struct Owner {
    ledger: Arc<Ledger>,
    id: String,
}

impl Owner {
    /// An owner that nobody else is.
    pub fn new(ledger: Arc<Ledger>) -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes)?;
        Ok(Self { ledger, id: format!("{:032x}", u128::from_be_bytes(bytes)) })
    }

    /// Acquires the lock `name` if it is free, or this owner's already. Prolonged until released, as long as this
    /// process lives; after that it is free once `length` has passed.
    pub async fn try_lock(&self, name: &str, length: Duration) -> Result<Lease, LockError> {
        let keys = keys::lock(name);
        match self.ledger.lease(&keys, "acquire", &self.id, length).await? {
            Reply::Held(token) => Ok(Lease::start(self.clone(), keys, token, length)),
            _ => Err(LockError::Taken),
        }
    }

    /// Acquires the lock `name`, trying for as long as `patience`, with exponential back-off and jitter.
    pub async fn lock(&self, name: &str, length: Duration, patience: Duration) -> Result<Lease, LockError> {
        let deadline = Instant::now() + patience;
        let mut backoff = RETRY_MIN;
        loop {
            match self.try_lock(name, length).await {
                Err(LockError::Taken) if Instant::now() < deadline => {}
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

/// A lock held. Its watchdog prolongs it three times in its length until it is released.
#[derive(Debug)]
pub struct Lease {
    owner: Owner,
    keys: [String; 2],
    token: u64,
    lost: Arc<AtomicBool>,
    watchdog: JoinHandle<()>,
}

impl Lease {
    fn start(owner: Owner, keys: [String; 2], token: u64, length: Duration) -> Self {
        let lost = Arc::new(AtomicBool::new(false));
        let watchdog = tokio::spawn(watch(owner.clone(), keys.clone(), length, Arc::clone(&lost)));
        Self { owner, keys, token, lost, watchdog }
    }

    /// Higher than the token of every earlier holder: what is written under the lock carries it.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Whether the watchdog has found the lock to be another's. `false` proves nothing: that is what tokens are for.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Gives the lock up; `false` when it was not held any more, and then nothing was changed.
    pub async fn release(self) -> Result<bool, LedgerError> {
        let reply = self.owner.ledger.lease(&self.keys, "release", &self.owner.id, Duration::ZERO).await?;
        Ok(reply == Reply::Done)
    }
}

impl Drop for Lease {
    /// Not released, the lock becomes free by itself once its length has passed.
    fn drop(&mut self) {
        self.watchdog.abort();
    }
}

async fn watch(owner: Owner, keys: [String; 2], length: Duration, lost: Arc<AtomicBool>) {
    loop {
        sleep(length / 3).await;
        // An error says nothing: Redis may be back before the lease is over.
        if let Ok(Reply::Lost) = owner.ledger.lease(&keys, "renew", &owner.id, length).await {
            lost.store(true, Ordering::Release);
            return;
        }
    }
}
