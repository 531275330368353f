//! Read then write, in PostgreSQL: `SELECT` the stock, test it, `UPDATE` it to the computed value.
//!
//! Fails as soon as two callers run it concurrently: both read 100 and both write 99, so two grants deduct
//! only one unit. A transaction changes nothing while the `SELECT` locks nothing and the isolation level is
//! the default. Cost: 2 round trips per grant, 1 per denial.

use crate::error::{Result, StockError};
use crate::manager::{Attempt, Expectation, ReduceResult, StockManager, Strategy};
use crate::stock_row::{StockRow, default_deadline};

pub const STRATEGY: Strategy = Strategy::of::<SqlReadThenWrite>(
    1,
    "read then write, SQL",
    Expectation::Oversells,
    "SELECT the stock, test, UPDATE to the computed value",
);

pub struct SqlReadThenWrite;

impl StockManager for SqlReadThenWrite {
    type Store = StockRow;

    async fn reduce(stock: &StockRow, attempt: &Attempt) -> Result<ReduceResult> {
        let sql = &stock.app.sql;
        let id = (&stock.id).into();
        let read = sql.row(attempt.deadline, "SELECT units FROM stock WHERE id = $1", &[id]).await?;
        let left = read.ok_or(StockError::Missing)?[0] - i64::from(attempt.quantity);
        if left < 0 {
            return Ok(ReduceResult::SoldOut);
        }
        sql.run(default_deadline(), "UPDATE stock SET units = $2 WHERE id = $1", &[id, left.into()]).await?;
        Ok(ReduceResult::Taken)
    }
}
