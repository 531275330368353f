//! Conditional update: `UPDATE … SET stock = stock - n WHERE id = ? AND stock >= n`; the number of changed
//! rows decides.
//!
//! Exact: the database tests and takes in one statement, under the row's lock, and repeats the test after
//! waiting for the lock. All callers still queue for one row, but each holds it for only one statement. The
//! first choice while SQL can bear the load. Cost: 1 round trip and one sync. Fails only if other code writes
//! the row differently.

use crate::error::Result;
use crate::manager::{Attempt, Expectation, ReduceResult, StockManager, Strategy};
use crate::stock_row::StockRow;

pub const STRATEGY: Strategy = Strategy::of::<ConditionalUpdate>(
    7,
    "conditional update",
    Expectation::Exact,
    "UPDATE … SET stock = stock - n WHERE stock >= n",
);

pub struct ConditionalUpdate;

impl StockManager for ConditionalUpdate {
    type Store = StockRow;

    async fn reduce(stock: &StockRow, attempt: &Attempt) -> Result<ReduceResult> {
        let text = "UPDATE stock SET units = units - $2 WHERE id = $1 AND units >= $2";
        let values = [(&stock.id).into(), attempt.quantity.into()];
        let changed = stock.app.sql.run(attempt.deadline, text, &values).await?;
        Ok(if changed == 1 { ReduceResult::Taken } else { ReduceResult::SoldOut })
    }
}
