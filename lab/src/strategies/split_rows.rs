//! Split rows: the stock lies in 10 rows, a router picks one by the user, and falls through to the others when it is empty.
//!
//! Exact, and callers of different rows do not wait for each other. The price comes at the end: the last units lie about in
//! several rows, and who wants three of them must lock all rows, in one order, and take parts; a refusal must have looked at
//! all. Costs 1 trip while the rows are full, up to a dozen near the end.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use crate::app::App;
use crate::manager::{Attempt, Expectation, Reduced, Result, StockManager, Strategy};
use crate::stock_row::some_time;

/// The row.
pub const STRATEGY: Strategy = Strategy::of::<SplitRows>(
    8,
    "split_rows",
    "split rows",
    Expectation::Exact,
    "the stock in 10 rows, a router picks one, falls through",
);

/// Rows of one stock.
const PARTS: i64 = 10;

/// See the module.
#[derive(Debug)]
pub struct SplitRows {
    app: Arc<App>,
    id: String,
}

impl SplitRows {
    async fn take_from(&self, part: i64, attempt: &Attempt) -> Result<bool> {
        let text = "UPDATE stock_part SET units = units - $3 WHERE id = $1 AND part = $2 AND units >= $3";
        let values = [(&self.id).into(), part.into(), attempt.quantity.into()];
        Ok(self.app.sql.run(attempt.deadline, text, &values).await? == 1)
    }

    /// No row alone has enough: all of them, locked in one order, so that callers never deadlock.
    async fn take_parts(&self, attempt: &Attempt) -> Result<Reduced> {
        let mut transaction = self.app.sql.begin(attempt.deadline).await?;
        let lock = "SELECT part, units FROM stock_part WHERE id = $1 ORDER BY part FOR UPDATE";
        let rows = transaction.rows(lock, &[(&self.id).into()]).await?;
        let mut wanted = i64::from(attempt.quantity);
        if rows.iter().map(|row| row[1]).sum::<i64>() < wanted {
            transaction.roll_back().await?;
            return Ok(Reduced::SoldOut);
        }
        for row in rows {
            let taken = wanted.min(row[1]);
            if taken > 0 {
                let write = "UPDATE stock_part SET units = units - $3 WHERE id = $1 AND part = $2";
                transaction.run(write, &[(&self.id).into(), row[0].into(), taken.into()]).await?;
            }
            wanted -= taken;
        }
        transaction.commit().await?;
        Ok(Reduced::Taken)
    }

    async fn total(&self, attempt: Option<&Attempt>) -> Result<i64> {
        let deadline = attempt.map_or_else(some_time, |attempt| attempt.deadline);
        let text = "SELECT COALESCE(SUM(units), 0)::BIGINT FROM stock_part WHERE id = $1";
        let row = self.app.sql.row(deadline, text, &[(&self.id).into()]).await?;
        Ok(row.map_or(0, |row| row[0]))
    }
}

impl StockManager for SplitRows {
    async fn open(app: &Arc<App>, key: &str) -> Result<Self> {
        Ok(Self { app: Arc::clone(app), id: key.to_owned() })
    }

    async fn init(&self, stock: u32) -> Result<()> {
        let text = "INSERT INTO stock_part (id, part, units) SELECT $1, part, $2 / $3 + CASE WHEN part < $2 % $3 THEN 1 \
                    ELSE 0 END FROM generate_series(0, $3 - 1) AS part \
                    ON CONFLICT (id, part) DO UPDATE SET units = EXCLUDED.units";
        self.app.sql.run(some_time(), text, &[(&self.id).into(), stock.into(), PARTS.into()]).await.map(drop)
    }

    async fn reduce(&self, attempt: &Attempt) -> Result<Reduced> {
        let first = part_of(&attempt.user);
        if self.take_from(first, attempt).await? {
            return Ok(Reduced::Taken);
        }
        // One statement sees all rows at one moment: if they come to too little, that was the answer then.
        if self.total(Some(attempt)).await? < i64::from(attempt.quantity) {
            return Ok(Reduced::SoldOut);
        }
        for step in 1..PARTS {
            self.app.meter.retries.add(1);
            if self.take_from((first + step) % PARTS, attempt).await? {
                return Ok(Reduced::Taken);
            }
        }
        self.take_parts(attempt).await
    }

    async fn give_back(&self, attempt: &Attempt) -> Result<()> {
        let text = "UPDATE stock_part SET units = units + $3 WHERE id = $1 AND part = $2";
        let values = [(&self.id).into(), part_of(&attempt.user).into(), attempt.quantity.into()];
        self.app.sql.run(some_time(), text, &values).await.map(drop)
    }

    async fn get(&self) -> Result<i64> {
        self.total(None).await
    }
}

/// The router.
fn part_of(user: &str) -> i64 {
    let mut hasher = DefaultHasher::new();
    user.hash(&mut hasher);
    (hasher.finish() % PARTS.unsigned_abs()).cast_signed()
}
