//! Stock above zero: reads and tests, then `UPDATE … SET stock = stock - n WHERE stock >= 0`.
//!
//! Oversells by the last ones: the condition asks whether there was something before, not whether there is enough for this
//! one, so the row goes once below zero. The test before the update hides it from everyone who tries alone. One character away
//! from the conditional update (7), and a `CHECK (stock >= 0)` on the column would have caught it. Costs 2 trips.

use std::sync::Arc;

use crate::app::App;
use crate::manager::{Attempt, Expectation, Reduced, Result, StockManager, Strategy};
use crate::stock_row::StockRow;

/// The row.
pub const STRATEGY: Strategy = Strategy::of::<StockAboveZero>(
    26,
    "stock_above_zero",
    "update WHERE stock >= 0",
    Expectation::Oversells,
    "select, test, UPDATE … SET stock = stock - n WHERE stock >= 0",
);

/// See the module.
#[derive(Debug)]
pub struct StockAboveZero(StockRow);

impl StockManager for StockAboveZero {
    async fn open(app: &Arc<App>, key: &str) -> Result<Self> {
        Ok(Self(StockRow::new(app, key)))
    }

    async fn init(&self, stock: u32) -> Result<()> {
        self.0.init(stock).await
    }

    async fn reduce(&self, attempt: &Attempt) -> Result<Reduced> {
        if self.0.get().await? < attempt.quantity.into() {
            return Ok(Reduced::SoldOut);
        }
        let text = "UPDATE stock SET units = units - $2 WHERE id = $1 AND units >= 0";
        let values = [(&self.0.id).into(), attempt.quantity.into()];
        let changed = self.0.app.sql.run(attempt.deadline, text, &values).await?;
        Ok(if changed == 1 { Reduced::Taken } else { Reduced::SoldOut })
    }

    async fn give_back(&self, attempt: &Attempt) -> Result<()> {
        self.0.add(attempt.quantity).await
    }

    async fn get(&self) -> Result<i64> {
        self.0.get().await
    }
}
