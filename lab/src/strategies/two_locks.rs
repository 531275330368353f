//! Two resources under two locks: a ticket and a seat, say, in keys of two slots of a Redis Cluster, where no script
//! may touch both. Both locks are taken in one order by every caller, and released in reverse.
//!
//! Exact on both, as long as no holder crashes between the two writes: a lock keeps others out, it does not undo. In
//! any other order two callers wait for each other until their leases end. Costs 8 trips for a grant, and one for each
//! look at a lock: use a script with one hash tag wherever both can lie together.

use std::sync::Arc;

use claimgate_core::store::redis::lease::Lease;
use tokio::time::Instant;

use super::reentrant_lock::LEASE;
use crate::app::App;
use crate::manager::{Attempt, Expectation, Held, Reduced, Result, StockError, StockManager, Strategy};
use crate::stock_key::StockKey;

/// The row.
pub const STRATEGY: Strategy = Strategy::of::<TwoLocks>(
    20,
    "two_locks",
    "two resources under two locks",
    Expectation::Exact,
    "ordered acquisition, released in reverse",
);

/// See the module.
#[derive(Debug)]
pub struct TwoLocks {
    /// In the order in which they are locked: that of their names.
    stocks: [StockKey; 2],
    locks: [String; 2],
}

impl TwoLocks {
    async fn lock(&self, deadline: Instant) -> Result<[Lease; 2]> {
        let app = &self.stocks[0].app;
        let owner = app.owner().await?;
        let first = app.lock(&owner, &self.locks[0], LEASE, deadline).await?;
        match app.lock(&owner, &self.locks[1], LEASE, deadline).await {
            Ok(second) => Ok([first, second]),
            Err(error) => {
                first.release().await?;
                Err(error)
            }
        }
    }

    async fn work(&self, attempt: &Attempt) -> Result<Reduced> {
        let quantity = i64::from(attempt.quantity);
        let left = [self.stocks[0].get().await? - quantity, self.stocks[1].get().await? - quantity];
        if left.iter().any(|left| *left < 0) {
            return Ok(Reduced::SoldOut);
        }
        for (stock, left) in self.stocks.iter().zip(left) {
            stock.set(left).await?;
        }
        Ok(Reduced::Taken)
    }
}

async fn unlock([first, second]: [Lease; 2]) -> Result<()> {
    second.release().await?;
    first.release().await?;
    Ok(())
}

impl StockManager for TwoLocks {
    async fn open(app: &Arc<App>, key: &str) -> Result<Self> {
        let names = [format!("{key}-seat"), format!("{key}-ticket")];
        let stocks = [StockKey::new(app, &names[0]), StockKey::new(app, &names[1])];
        Ok(Self { stocks, locks: names.map(|name| format!("lab-{name}")) })
    }

    async fn init(&self, stock: u32) -> Result<()> {
        for one in &self.stocks {
            one.set(stock.into()).await?;
        }
        Ok(())
    }

    async fn reduce(&self, attempt: &Attempt) -> Result<Reduced> {
        let leases = self.lock(attempt.deadline).await?;
        let reduced = self.work(attempt).await;
        unlock(leases).await?;
        reduced
    }

    async fn give_back(&self, attempt: &Attempt) -> Result<()> {
        let leases = self.lock(attempt.deadline).await?;
        for stock in &self.stocks {
            stock.add(attempt.quantity.into()).await?;
        }
        unlock(leases).await
    }

    async fn get(&self) -> Result<i64> {
        let (seats, tickets) = (self.stocks[0].get().await?, self.stocks[1].get().await?);
        if seats != tickets {
            return Err(StockError::Inconsistent(format!("{seats} seats and {tickets} tickets are left")));
        }
        Ok(seats)
    }

    async fn hold(&self, attempt: &Attempt) -> Result<Held> {
        Ok(Box::new(self.lock(attempt.deadline).await?))
    }
}
