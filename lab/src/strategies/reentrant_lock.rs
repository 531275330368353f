//! Re-entrant lock with watchdog: claimgate's own lock (`core/src/store/redis/lease.rs`), a hash of owner and depth, renewed by a
//! watchdog until it is released, deleted at depth 0.
//!
//! Exact, and survives work that is longer than the lease, as long as its process lives; a function that locks may call
//! another that locks. What no watchdog cures: a process that stands still, its watchdog with it. A crash costs the rest of
//! the lease. Costs 6 trips for a grant here, where the reading function locks once more, and one for each look at the lock.

use std::sync::Arc;
use std::time::Duration;

use claimgate_core::store::redis::lease::{Lease, LeaseError, LeaseHolder};
use tokio::time::{Instant, sleep};

use crate::app::{Addresses, App};
use crate::manager::{Attempt, Expectation, Held, Reduced, Result, StockError, StockManager, Strategy};
use crate::stock_key::StockKey;

/// The row.
pub const STRATEGY: Strategy = Strategy::of::<ReentrantLock>(
    19,
    "reentrant_lock",
    "re-entrant lock with watchdog",
    Expectation::Exact,
    "claimgate's lock: owner and depth, renewed until released",
)
.with_findings(|addresses| Box::pin(findings(addresses)));

/// The lease; the watchdog renews it three times in its length.
pub const LEASE: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub struct ReentrantLock {
    stock: StockKey,
    lock: String,
}

impl ReentrantLock {
    async fn lock(&self, owner: &LeaseHolder, deadline: Instant) -> Result<Lease> {
        self.stock.app.lock(owner, &self.lock, LEASE, deadline).await
    }

    /// Reads under the lock, which this owner may hold already.
    async fn read(&self, owner: &LeaseHolder, deadline: Instant) -> Result<i64> {
        let lease = self.lock(owner, deadline).await?;
        let units = self.stock.get().await;
        lease.release().await?;
        units
    }

    async fn work(&self, owner: &LeaseHolder, attempt: &Attempt) -> Result<Reduced> {
        let left = self.read(owner, attempt.deadline).await? - i64::from(attempt.quantity);
        if left < 0 {
            return Ok(Reduced::SoldOut);
        }
        self.stock.set(left).await?;
        Ok(Reduced::Taken)
    }
}

impl StockManager for ReentrantLock {
    async fn open(app: &Arc<App>, key: &str) -> Result<Self> {
        Ok(Self { stock: StockKey::new(app, key), lock: format!("lab-{key}") })
    }

    async fn init(&self, stock: u32) -> Result<()> {
        self.stock.set(stock.into()).await
    }

    async fn reduce(&self, attempt: &Attempt) -> Result<Reduced> {
        let owner = self.stock.app.owner().await?;
        let lease = self.lock(&owner, attempt.deadline).await?;
        let reduced = self.work(&owner, attempt).await;
        lease.release().await?;
        reduced
    }

    async fn give_back(&self, attempt: &Attempt) -> Result<()> {
        let owner = self.stock.app.owner().await?;
        let lease = self.lock(&owner, attempt.deadline).await?;
        let given = self.stock.add(attempt.quantity.into()).await;
        lease.release().await?;
        given.map(drop)
    }

    async fn get(&self) -> Result<i64> {
        self.stock.get().await
    }

    async fn hold(&self, attempt: &Attempt) -> Result<Held> {
        let owner = self.stock.app.owner().await?;
        Ok(Box::new(self.lock(&owner, attempt.deadline).await?))
    }
}

/// Work three times as long as its lease.
async fn findings(addresses: Addresses) -> Result<Vec<String>> {
    const SHORT: Duration = Duration::from_millis(300);
    let apps = App::start_all(&addresses, 2)?;
    let name = format!("lab-{}", crate::backoff::unique()?);
    let (worker, other) = (apps[0].owner().await?, apps[1].owner().await?);
    let lease = worker.try_acquire(&name, SHORT).await?;
    for _ in 0..9 {
        sleep(SHORT / 3).await;
        if !matches!(other.try_acquire(&name, SHORT).await, Err(LeaseError::Taken)) {
            return Err(StockError::Inconsistent("work longer than its lease lost the lock".to_owned()));
        }
    }
    lease.release().await?;
    Ok(vec!["work three times as long as its lease kept the lock".to_owned()])
}
