//! Optimistic version: reads units and version, then `UPDATE … WHERE version = ` that version. Retries if no
//! row matched.
//!
//! Never oversells, because the write verifies what it is based on. In a rush nearly every try fails, and
//! callers give up after their last try although units are left: it may undersell. Good if conflicts are
//! rare. Cost: 2 round trips per try.

use crate::backoff::Backoff;
use crate::error::{Result, StockError};
use crate::manager::{Attempt, Expectation, ReduceResult, StockManager, Strategy};
use crate::stock_row::{StockRow, default_deadline};

pub const STRATEGY: Strategy = Strategy::of::<OptimisticVersion>(
    6,
    "optimistic version",
    Expectation::NeverOver,
    "UPDATE … WHERE version = the one read; at most 10 tries",
);

/// Maximum tries of a caller.
const TRIES_MAX: u32 = 10;

pub struct OptimisticVersion;

impl StockManager for OptimisticVersion {
    type Store = StockRow;

    async fn reduce(stock: &StockRow, attempt: &Attempt) -> Result<ReduceResult> {
        let mut backoff = Backoff::for_conflict();
        for _ in 1..TRIES_MAX {
            if let Some(reduced) = one_try(stock, attempt).await? {
                return Ok(reduced);
            }
            backoff.pause(attempt.deadline, &stock.app.meter).await?;
        }
        one_try(stock, attempt).await?.ok_or(StockError::GaveUp)
    }
}

/// Tries once; returns `None` on a conflict.
async fn one_try(stock: &StockRow, attempt: &Attempt) -> Result<Option<ReduceResult>> {
    let sql = &stock.app.sql;
    let id = (&stock.id).into();
    let read = "SELECT units, version FROM stock WHERE id = $1";
    let row = sql.row(attempt.deadline, read, &[id]).await?.ok_or(StockError::Missing)?;
    let (left, version) = (row[0] - i64::from(attempt.quantity), row[1]);
    if left < 0 {
        return Ok(Some(ReduceResult::SoldOut));
    }
    let write = "UPDATE stock SET units = $2, version = version + 1 WHERE id = $1 AND version = $3";
    let changed = sql.run(default_deadline(), write, &[id, left.into(), version.into()]).await?;
    Ok((changed == 1).then_some(ReduceResult::Taken))
}
