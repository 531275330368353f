//! Read then write, in PostgreSQL: `SELECT` the stock, test it, `UPDATE` it to the value worked out.
//!
//! Breaks as soon as two do it at once: both read 100, both write 99, two units are gone for one. A transaction around it
//! changes nothing, as long as the `SELECT` locks nothing and the isolation level is the usual one.
//! Costs 2 trips for a grant, 1 for a refusal.

use std::sync::Arc;

use crate::app::App;
use crate::manager::{Attempt, Expectation, Reduced, Result, StockError, StockManager, Strategy};
use crate::stock_row::StockRow;

/// The row.
pub const STRATEGY: Strategy = Strategy::of::<SqlReadThenWrite>(
    1,
    "sql_read_then_write",
    "read then write, SQL",
    Expectation::Oversells,
    "SELECT the stock, test, UPDATE to the value worked out",
);

/// See the module.
#[derive(Debug)]
pub struct SqlReadThenWrite(StockRow);

impl StockManager for SqlReadThenWrite {
    async fn open(app: &Arc<App>, key: &str) -> Result<Self> {
        Ok(Self(StockRow::new(app, key)))
    }

    async fn init(&self, stock: u32) -> Result<()> {
        self.0.init(stock).await
    }

    async fn reduce(&self, attempt: &Attempt) -> Result<Reduced> {
        let (sql, id) = (&self.0.app.sql, &self.0.id);
        let read = sql.row(attempt.deadline, "SELECT units FROM stock WHERE id = $1", &[id.into()]).await?;
        let left = read.ok_or(StockError::Missing)?[0] - i64::from(attempt.quantity);
        if left < 0 {
            return Ok(Reduced::SoldOut);
        }
        let write = "UPDATE stock SET units = $2 WHERE id = $1";
        sql.run(crate::stock_row::some_time(), write, &[id.into(), left.into()]).await?;
        Ok(Reduced::Taken)
    }

    async fn give_back(&self, attempt: &Attempt) -> Result<()> {
        self.0.add(attempt.quantity).await
    }

    async fn get(&self) -> Result<i64> {
        self.0.get().await
    }
}
