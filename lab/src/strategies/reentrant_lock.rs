//! Re-entrant lock with watchdog: claimgate's own lock (`core/src/store/redis/lease.rs`), a hash of owner and
//! depth. A watchdog renews it until it is released; it is deleted at depth 0.
//!
//! Exact. The work may outlast the lease while its process runs, and a function that locks may call another
//! function that locks. A watchdog does not help if the whole process stalls, because the watchdog stalls
//! too. After a crash, callers wait for the rest of the lease. Cost: 6 round trips per grant here, where the
//! read locks once more, plus one per try of the lock.

use std::time::Duration;

use claimgate_core::store::redis::lease::{Lease, LeaseError, LeaseHolder};
use tokio::time::{Instant, sleep};

use crate::addresses::Addresses;
use crate::app::App;
use crate::error::{Result, StockError};
use crate::locking::Locking;
use crate::manager::{Attempt, Expectation, ReduceResult, Strategy};
use crate::stock_key::StockKey;
use crate::store::Store as _;

pub const STRATEGY: Strategy = Strategy::of::<ReentrantLock>(
    19,
    "re-entrant lock with watchdog",
    Expectation::Exact,
    "claimgate's lock: owner and depth, renewed until released",
)
.with_findings(|addresses| Box::pin(findings(addresses)));

/// The lease; the watchdog renews it three times in this period.
const LEASE: Duration = Duration::from_secs(1);

pub struct ReentrantLock;

impl Locking for ReentrantLock {
    type Store = StockKey;
    type Holder = (LeaseHolder, Lease);

    async fn acquire(stock: &StockKey, attempt: &Attempt) -> Result<Self::Holder> {
        let owner = stock.app.owner().await?;
        let lease = lock(stock, &owner, attempt.deadline).await?;
        Ok((owner, lease))
    }

    async fn work(stock: &StockKey, (owner, _): &Self::Holder, attempt: &Attempt) -> Result<ReduceResult> {
        let left = read(stock, owner, attempt.deadline).await? - i64::from(attempt.quantity);
        if left < 0 {
            return Ok(ReduceResult::SoldOut);
        }
        stock.set(left).await?;
        Ok(ReduceResult::Taken)
    }

    async fn release(_: &StockKey, (_, lease): Self::Holder, _: &Attempt) -> Result<()> {
        lease.release().await?;
        Ok(())
    }
}

pub async fn lock(stock: &StockKey, owner: &LeaseHolder, deadline: Instant) -> Result<Lease> {
    stock.app.lock(owner, &format!("lab-{}", stock.key), LEASE, deadline).await
}

/// Reads under the lock, which this owner may already hold.
async fn read(stock: &StockKey, owner: &LeaseHolder, deadline: Instant) -> Result<i64> {
    let lease = lock(stock, owner, deadline).await?;
    let units = stock.get().await;
    lease.release().await?;
    units
}

/// Shows work that takes three times as long as its lease.
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
