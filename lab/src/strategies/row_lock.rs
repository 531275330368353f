//! Pessimistic row lock: `SELECT … FOR UPDATE`, test, `UPDATE`, `COMMIT`.
//!
//! Exact. Each caller waits for all before it, each with a connection and an open transaction, so the pool
//! runs out first. The database detects a crashed holder when its connection breaks. A holder that hangs, or
//! whose machine vanishes, keeps the row until a timeout. Cost: 4 round trips per grant, 3 per denial, and
//! one sync each.

use crate::error::{Result, StockError};
use crate::manager::{Attempt, Expectation, Held, ReduceResult, StockManager, Strategy};
use crate::sql::Transaction;
use crate::stock_row::StockRow;

pub const STRATEGY: Strategy = Strategy::of::<RowLock>(
    5,
    "pessimistic row lock",
    Expectation::Exact,
    "SELECT … FOR UPDATE, test, UPDATE, COMMIT",
);

pub struct RowLock;

impl StockManager for RowLock {
    type Store = StockRow;

    async fn reduce(stock: &StockRow, attempt: &Attempt) -> Result<ReduceResult> {
        let (mut transaction, units) = lock(stock, attempt).await?;
        let left = units - i64::from(attempt.quantity);
        if left < 0 {
            transaction.roll_back().await?;
            return Ok(ReduceResult::SoldOut);
        }
        let write = "UPDATE stock SET units = $2 WHERE id = $1";
        transaction.run(write, &[(&stock.id).into(), left.into()]).await?;
        transaction.commit().await?;
        Ok(ReduceResult::Taken)
    }

    async fn hold(stock: &StockRow, attempt: &Attempt) -> Result<Held> {
        Ok(Box::new(lock(stock, attempt).await?))
    }
}

/// Locks the row; returns its units.
async fn lock(stock: &StockRow, attempt: &Attempt) -> Result<(Transaction, i64)> {
    let mut transaction = stock.app.sql.begin(attempt.deadline).await?;
    let lock = "SELECT units FROM stock WHERE id = $1 FOR UPDATE";
    let row = transaction.row(lock, &[(&stock.id).into()]).await?;
    Ok((transaction, row.ok_or(StockError::Missing)?[0]))
}
