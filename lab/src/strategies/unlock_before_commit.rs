//! Lock released before the commit: a distributed lock inside a transaction, as when a framework wraps a
//! locking method in a transaction.
//!
//! Oversells although the lock is correct: between its release and the commit, the next holder reads the old
//! row, and writes a value computed from it. Take the lock outside, the transaction inside. Cost: 4 round
//! trips to SQL and at least 2 to Redis.

use super::owned_lock::Lock;
use crate::backoff::Backoff;
use crate::error::{Result, StockError};
use crate::manager::{Attempt, Expectation, Held, ReduceResult, StockManager, Strategy};
use crate::stock_row::StockRow;

pub const STRATEGY: Strategy = Strategy::of::<UnlockBeforeCommit>(
    9,
    "lock released before the commit",
    Expectation::Oversells,
    "BEGIN, lock, SELECT, test, UPDATE, unlock, COMMIT",
);

pub struct UnlockBeforeCommit;

impl StockManager for UnlockBeforeCommit {
    type Store = StockRow;

    async fn reduce(stock: &StockRow, attempt: &Attempt) -> Result<ReduceResult> {
        let lock = Lock::new(&stock.app, &stock.id);
        let id = (&stock.id).into();
        let mut transaction = stock.app.sql.begin(attempt.deadline).await?;
        let held = lock.acquire(Backoff::for_few(), attempt.deadline).await?;
        let row = transaction.row("SELECT units FROM stock WHERE id = $1", &[id]).await?;
        let left = row.ok_or(StockError::Missing)?[0] - i64::from(attempt.quantity);
        if left >= 0 {
            transaction.run("UPDATE stock SET units = $2 WHERE id = $1", &[id, left.into()]).await?;
        }
        lock.release(&held).await?;
        transaction.commit().await?;
        Ok(if left < 0 { ReduceResult::SoldOut } else { ReduceResult::Taken })
    }

    async fn hold(stock: &StockRow, attempt: &Attempt) -> Result<Held> {
        let transaction = stock.app.sql.begin(attempt.deadline).await?;
        let lock = Lock::new(&stock.app, &stock.id);
        Ok(Box::new((transaction, lock.acquire(Backoff::for_lock(), attempt.deadline).await?)))
    }
}
