//! Stock above zero: reads and tests, then `UPDATE … SET stock = stock - n WHERE stock >= 0`.
//!
//! Oversells at the end: the condition checks whether anything was left, not whether enough is, so the row
//! falls below zero once. The first test hides this from anyone who tests it alone. It is one character away
//! from the conditional update (7), and a `CHECK (stock >= 0)` on the column would have caught it. Cost: 2
//! round trips.

use crate::error::Result;
use crate::manager::{Attempt, Expectation, ReduceResult, StockManager, Strategy};
use crate::stock_row::StockRow;
use crate::store::Store as _;

pub const STRATEGY: Strategy = Strategy::of::<StockAboveZero>(
    26,
    "update WHERE stock >= 0",
    Expectation::Oversells,
    "select, test, UPDATE … SET stock = stock - n WHERE stock >= 0",
);

pub struct StockAboveZero;

impl StockManager for StockAboveZero {
    type Store = StockRow;

    async fn reduce(stock: &StockRow, attempt: &Attempt) -> Result<ReduceResult> {
        if stock.get().await? < attempt.quantity.into() {
            return Ok(ReduceResult::SoldOut);
        }
        let text = "UPDATE stock SET units = units - $2 WHERE id = $1 AND units >= 0";
        let values = [(&stock.id).into(), attempt.quantity.into()];
        let changed = stock.app.sql.run(attempt.deadline, text, &values).await?;
        Ok(if changed == 1 { ReduceResult::Taken } else { ReduceResult::SoldOut })
    }
}
