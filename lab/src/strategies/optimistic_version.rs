//! Optimistic version: read units and version, `UPDATE … WHERE version = ` the one read, try again when no row matched.
//!
//! Never over: the write says what it rests on. Under a rush nearly every try fails, and who has tried often enough is
//! sent away although units are left: it may undersell within its retry bound. Good where two rarely meet.
//! Costs 2 trips a try.

use std::sync::Arc;

use crate::app::App;
use crate::backoff::Backoff;
use crate::manager::{Attempt, Expectation, Reduced, Result, StockError, StockManager, Strategy};
use crate::stock_row::StockRow;

/// The row.
pub const STRATEGY: Strategy = Strategy::of::<OptimisticVersion>(
    6,
    "optimistic_version",
    "optimistic version",
    Expectation::NeverOver,
    "UPDATE … WHERE version = the one read; at most 10 tries",
);

/// How often a caller tries.
const TRIES_MAX: u32 = 10;

/// See the module.
#[derive(Debug)]
pub struct OptimisticVersion(StockRow);

impl OptimisticVersion {
    /// One try; `None` when another caller was quicker.
    async fn attempt(&self, attempt: &Attempt) -> Result<Option<Reduced>> {
        let (sql, id) = (&self.0.app.sql, &self.0.id);
        let read = "SELECT units, version FROM stock WHERE id = $1";
        let row = sql.row(attempt.deadline, read, &[id.into()]).await?.ok_or(StockError::Missing)?;
        let (left, version) = (row[0] - i64::from(attempt.quantity), row[1]);
        if left < 0 {
            return Ok(Some(Reduced::SoldOut));
        }
        let write = "UPDATE stock SET units = $2, version = version + 1 WHERE id = $1 AND version = $3";
        let changed =
            sql.run(crate::stock_row::some_time(), write, &[id.into(), left.into(), version.into()]).await?;
        Ok((changed == 1).then_some(Reduced::Taken))
    }
}

impl StockManager for OptimisticVersion {
    async fn open(app: &Arc<App>, key: &str) -> Result<Self> {
        Ok(Self(StockRow::new(app, key)))
    }

    async fn init(&self, stock: u32) -> Result<()> {
        self.0.init(stock).await
    }

    async fn reduce(&self, attempt: &Attempt) -> Result<Reduced> {
        let mut backoff = Backoff::for_conflict();
        for _ in 1..TRIES_MAX {
            if let Some(reduced) = self.attempt(attempt).await? {
                return Ok(reduced);
            }
            backoff.pause(attempt.deadline, &self.0.app.meter).await?;
        }
        self.attempt(attempt).await?.ok_or(StockError::GaveUp)
    }

    async fn give_back(&self, attempt: &Attempt) -> Result<()> {
        self.0.add(attempt.quantity).await
    }

    async fn get(&self) -> Result<i64> {
        self.0.get().await
    }
}
