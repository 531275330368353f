//! Two resources under two locks, such as a ticket and a seat in two slots of a Redis Cluster, where no
//! script may touch both. Every caller takes both locks in the same order, and releases them in reverse.
//!
//! Exact on both while no holder crashes between the two writes: a lock keeps others out, but undoes nothing.
//! In any other order, two callers wait for each other until their leases end. Cost: 8 round trips per grant,
//! plus one per try of a lock. Use a script with one hash tag wherever both can be in one slot.

use std::sync::Arc;

use claimgate_core::store::redis::lease::Lease;

use super::reentrant_lock::lock;
use crate::app::App;
use crate::error::{Result, StockError};
use crate::locking::Locking;
use crate::manager::{Attempt, Expectation, Strategy};
use crate::stock_key::StockKey;
use crate::store::Store;

pub const STRATEGY: Strategy = Strategy::of::<TwoLocks>(
    20,
    "two resources under two locks",
    Expectation::Exact,
    "ordered acquisition, released in reverse",
);

/// Both resources, in the order of locking, which is that of their names.
pub struct TwoLocks([StockKey; 2]);

impl Store for TwoLocks {
    fn open(app: &Arc<App>, key: &str) -> Result<Self> {
        Ok(Self(["seat", "ticket"].map(|what| StockKey::new(app, &format!("{key}-{what}")))))
    }

    async fn set(&self, units: i64) -> Result<()> {
        for stock in &self.0 {
            stock.set(units).await?;
        }
        Ok(())
    }

    async fn get(&self) -> Result<i64> {
        let (seats, tickets) = (self.0[0].get().await?, self.0[1].get().await?);
        if seats != tickets {
            return Err(StockError::Inconsistent(format!("{seats} seats and {tickets} tickets are left")));
        }
        Ok(seats)
    }

    async fn return_units(&self, attempt: &Attempt) -> Result<()> {
        for stock in &self.0 {
            stock.return_units(attempt).await?;
        }
        Ok(())
    }
}

impl Locking for TwoLocks {
    type Store = Self;
    type Holder = [Lease; 2];

    async fn acquire(Self([first, second]): &Self, attempt: &Attempt) -> Result<[Lease; 2]> {
        let owner = first.app.owner().await?;
        let held = lock(first, &owner, attempt.deadline).await?;
        match lock(second, &owner, attempt.deadline).await {
            Ok(both) => Ok([held, both]),
            Err(error) => {
                held.release().await?;
                Err(error)
            }
        }
    }

    async fn release(_: &Self, [first, second]: [Lease; 2], _: &Attempt) -> Result<()> {
        second.release().await?;
        first.release().await?;
        Ok(())
    }
}
