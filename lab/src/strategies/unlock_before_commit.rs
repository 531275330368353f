//! Lock released before the commit: a distributed lock inside a transaction, as when the method that locks is wrapped in a
//! transaction by a framework.
//!
//! Oversells, with a lock that is in itself right: between its release and the commit the next holder reads the row as it
//! was before, and writes what it worked out from that. Take the lock outside, the transaction inside.
//! Costs 4 trips to SQL and at least 2 to Redis.

use std::sync::Arc;

use super::owned_lock::Lock;
use crate::app::App;
use crate::backoff::Backoff;
use crate::manager::{Attempt, Expectation, Held, Reduced, Result, StockError, StockManager, Strategy};
use crate::stock_row::StockRow;

/// The row.
pub const STRATEGY: Strategy = Strategy::of::<UnlockBeforeCommit>(
    9,
    "unlock_before_commit",
    "lock released before the commit",
    Expectation::Oversells,
    "BEGIN, lock, SELECT, test, UPDATE, unlock, COMMIT",
);

/// See the module.
#[derive(Debug)]
pub struct UnlockBeforeCommit {
    stock: StockRow,
    lock: Lock,
}

impl StockManager for UnlockBeforeCommit {
    async fn open(app: &Arc<App>, key: &str) -> Result<Self> {
        Ok(Self { stock: StockRow::new(app, key), lock: Lock::new(app, key) })
    }

    async fn init(&self, stock: u32) -> Result<()> {
        self.stock.init(stock).await
    }

    async fn reduce(&self, attempt: &Attempt) -> Result<Reduced> {
        let mut transaction = self.stock.app.sql.begin(attempt.deadline).await?;
        let held = self.lock.acquire_by(Backoff::for_few(), attempt.deadline).await?;
        let read = "SELECT units FROM stock WHERE id = $1";
        let row = transaction.row(read, &[(&self.stock.id).into()]).await?;
        let left = row.ok_or(StockError::Missing)?[0] - i64::from(attempt.quantity);
        if left >= 0 {
            let write = "UPDATE stock SET units = $2 WHERE id = $1";
            transaction.run(write, &[(&self.stock.id).into(), left.into()]).await?;
        }
        self.lock.release(&held).await?;
        transaction.commit().await?;
        Ok(if left < 0 { Reduced::SoldOut } else { Reduced::Taken })
    }

    async fn give_back(&self, attempt: &Attempt) -> Result<()> {
        self.stock.add(attempt.quantity).await
    }

    async fn get(&self) -> Result<i64> {
        self.stock.get().await
    }

    async fn hold(&self, attempt: &Attempt) -> Result<Held> {
        let transaction = self.stock.app.sql.begin(attempt.deadline).await?;
        Ok(Box::new((transaction, self.lock.acquire(attempt.deadline).await?)))
    }
}
