//! Split rows: the stock is split into 10 rows; a router picks one by user, and tries the others if it is
//! empty.
//!
//! Exact, and callers of different rows do not wait for each other. The price comes at the end: the last
//! units are spread over several rows. A caller who wants three units must lock all rows, in a fixed order,
//! and take parts; a denial must have checked all rows. Cost: 1 round trip while the rows are full, up to a
//! dozen near the end.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use tokio::time::Instant;

use crate::error::Result;
use crate::manager::{Attempt, Expectation, ReduceResult, StockManager, Strategy};
use crate::stock_row::{StockRow, default_deadline};

pub const STRATEGY: Strategy = Strategy::of::<SplitRows>(
    8,
    "split rows",
    Expectation::Exact,
    "the stock in 10 rows; a router picks one, then tries the others",
);

/// Number of rows of one stock.
const PARTS: i64 = 10;

pub struct SplitRows;

impl StockManager for SplitRows {
    type Store = StockRow;

    async fn init(stock: &StockRow, units: u32) -> Result<()> {
        let text = "INSERT INTO stock_part (id, part, units) SELECT $1, part, $2 / $3 + CASE WHEN part < $2 % $3 THEN 1 \
                    ELSE 0 END FROM generate_series(0, $3 - 1) AS part \
                    ON CONFLICT (id, part) DO UPDATE SET units = EXCLUDED.units";
        let values = [(&stock.id).into(), units.into(), PARTS.into()];
        stock.app.sql.run(default_deadline(), text, &values).await.map(drop)
    }

    async fn reduce(stock: &StockRow, attempt: &Attempt) -> Result<ReduceResult> {
        let first = part_of(&attempt.user);
        if take_from(stock, first, attempt).await? {
            return Ok(ReduceResult::Taken);
        }
        // One statement sees a snapshot of all rows: if their sum is too small, "sold out" is correct for it.
        if total(stock, attempt.deadline).await? < i64::from(attempt.quantity) {
            return Ok(ReduceResult::SoldOut);
        }
        for step in 1..PARTS {
            stock.app.meter.retries.add(1);
            if take_from(stock, (first + step) % PARTS, attempt).await? {
                return Ok(ReduceResult::Taken);
            }
        }
        take_parts(stock, attempt).await
    }

    async fn return_units(stock: &StockRow, attempt: &Attempt) -> Result<()> {
        let text = "UPDATE stock_part SET units = units + $3 WHERE id = $1 AND part = $2";
        let values = [(&stock.id).into(), part_of(&attempt.user).into(), attempt.quantity.into()];
        stock.app.sql.run(default_deadline(), text, &values).await.map(drop)
    }

    async fn get(stock: &StockRow) -> Result<i64> {
        total(stock, default_deadline()).await
    }
}

/// Picks the user's row.
fn part_of(user: &str) -> i64 {
    let mut hasher = DefaultHasher::new();
    user.hash(&mut hasher);
    (hasher.finish() % PARTS.unsigned_abs()).cast_signed()
}

async fn take_from(stock: &StockRow, part: i64, attempt: &Attempt) -> Result<bool> {
    let text = "UPDATE stock_part SET units = units - $3 WHERE id = $1 AND part = $2 AND units >= $3";
    let values = [(&stock.id).into(), part.into(), attempt.quantity.into()];
    Ok(stock.app.sql.run(attempt.deadline, text, &values).await? == 1)
}

/// Takes parts from several rows if no row has enough units. Locks all rows, in a fixed order to avoid
/// deadlocks.
async fn take_parts(stock: &StockRow, attempt: &Attempt) -> Result<ReduceResult> {
    let mut transaction = stock.app.sql.begin(attempt.deadline).await?;
    let lock = "SELECT part, units FROM stock_part WHERE id = $1 ORDER BY part FOR UPDATE";
    let rows = transaction.rows(lock, &[(&stock.id).into()]).await?;
    let mut wanted = i64::from(attempt.quantity);
    if rows.iter().map(|row| row[1]).sum::<i64>() < wanted {
        transaction.roll_back().await?;
        return Ok(ReduceResult::SoldOut);
    }
    for row in rows {
        let taken = wanted.min(row[1]);
        if taken > 0 {
            let write = "UPDATE stock_part SET units = units - $3 WHERE id = $1 AND part = $2";
            transaction.run(write, &[(&stock.id).into(), row[0].into(), taken.into()]).await?;
        }
        wanted -= taken;
    }
    transaction.commit().await?;
    Ok(ReduceResult::Taken)
}

async fn total(stock: &StockRow, deadline: Instant) -> Result<i64> {
    let text = "SELECT COALESCE(SUM(units), 0)::BIGINT FROM stock_part WHERE id = $1";
    let row = stock.app.sql.row(deadline, text, &[(&stock.id).into()]).await?;
    Ok(row.map_or(0, |row| row[0]))
}
