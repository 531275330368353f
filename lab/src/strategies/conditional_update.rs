//! Conditional update: `UPDATE … SET stock = stock - n WHERE id = ? AND stock >= n`; the number of rows changed decides.
//!
//! Exact: the database tests and takes in one statement, under the row's lock, and tests again when it had to wait. All
//! still queue for one row, but each holds it for one statement. The first thing to reach for as long as SQL bears the
//! load. Costs 1 trip and one sync; breaks only when other code writes the row in another way.

use std::sync::Arc;

use crate::app::App;
use crate::manager::{Attempt, Expectation, Reduced, Result, StockManager, Strategy};
use crate::stock_row::StockRow;

/// The row.
pub const STRATEGY: Strategy = Strategy::of::<ConditionalUpdate>(
    7,
    "conditional_update",
    "conditional update",
    Expectation::Exact,
    "UPDATE … SET stock = stock - n WHERE stock >= n",
);

/// See the module.
#[derive(Debug)]
pub struct ConditionalUpdate(StockRow);

impl StockManager for ConditionalUpdate {
    async fn open(app: &Arc<App>, key: &str) -> Result<Self> {
        Ok(Self(StockRow::new(app, key)))
    }

    async fn init(&self, stock: u32) -> Result<()> {
        self.0.init(stock).await
    }

    async fn reduce(&self, attempt: &Attempt) -> Result<Reduced> {
        let text = "UPDATE stock SET units = units - $2 WHERE id = $1 AND units >= $2";
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
