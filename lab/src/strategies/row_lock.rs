//! Pessimistic row lock: `SELECT … FOR UPDATE`, test, `UPDATE`, `COMMIT`.
//!
//! Exact. Each caller that wants the row waits for all before it, each with a connection and an open transaction: the
//! pool empties first. A holder that crashes is noticed when its connection breaks; one that hangs, or whose machine is
//! gone without a word, keeps the row until a timeout. Costs 4 trips for a grant, 3 for a refusal, and one sync each.

use std::sync::Arc;

use crate::app::App;
use crate::manager::{Attempt, Expectation, Held, Reduced, Result, StockError, StockManager, Strategy};
use crate::sql::Transaction;
use crate::stock_row::StockRow;

/// The row.
pub const STRATEGY: Strategy = Strategy::of::<RowLock>(
    5,
    "row_lock",
    "pessimistic row lock",
    Expectation::Exact,
    "SELECT … FOR UPDATE, test, UPDATE, COMMIT",
);

/// See the module.
#[derive(Debug)]
pub struct RowLock(StockRow);

impl RowLock {
    /// The row locked, and its units.
    async fn lock(&self, attempt: &Attempt) -> Result<(Transaction, i64)> {
        let mut transaction = self.0.app.sql.begin(attempt.deadline).await?;
        let lock = "SELECT units FROM stock WHERE id = $1 FOR UPDATE";
        let row = transaction.row(lock, &[(&self.0.id).into()]).await?;
        Ok((transaction, row.ok_or(StockError::Missing)?[0]))
    }
}

impl StockManager for RowLock {
    async fn open(app: &Arc<App>, key: &str) -> Result<Self> {
        Ok(Self(StockRow::new(app, key)))
    }

    async fn init(&self, stock: u32) -> Result<()> {
        self.0.init(stock).await
    }

    async fn reduce(&self, attempt: &Attempt) -> Result<Reduced> {
        let (mut transaction, units) = self.lock(attempt).await?;
        let left = units - i64::from(attempt.quantity);
        if left < 0 {
            transaction.roll_back().await?;
            return Ok(Reduced::SoldOut);
        }
        let write = "UPDATE stock SET units = $2 WHERE id = $1";
        transaction.run(write, &[(&self.0.id).into(), left.into()]).await?;
        transaction.commit().await?;
        Ok(Reduced::Taken)
    }

    async fn give_back(&self, attempt: &Attempt) -> Result<()> {
        self.0.add(attempt.quantity).await
    }

    async fn get(&self) -> Result<i64> {
        self.0.get().await
    }

    async fn hold(&self, attempt: &Attempt) -> Result<Held> {
        Ok(Box::new(self.lock(attempt).await?))
    }
}
