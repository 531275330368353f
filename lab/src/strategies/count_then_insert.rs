//! Per-user count, then insert: counts the user's purchases. If there are none, takes the stock with a
//! conditional update and inserts a purchase.
//!
//! Keeps the total but not the limit per user. Two tries of one user both count zero purchases, wait one
//! after the other for the stock's row, and both insert. Counting within the transaction only makes this
//! rarer: neither sees the other's row before its commit. A unique key (10) or a lock solves this. Cost: 5
//! round trips per grant.

use crate::error::Result;
use crate::manager::{Attempt, Expectation, PerUser, ReduceResult, StockManager, Strategy};
use crate::stock_row::{StockRow, default_deadline};

pub const STRATEGY: Strategy = Strategy::of::<CountThenInsert>(
    25,
    "per-user count, then insert",
    Expectation::ExceedsUserLimit,
    "SELECT COUNT of the user's rows, take, INSERT; no unique key",
)
.per_user(PerUser::Once);

pub struct CountThenInsert;

impl StockManager for CountThenInsert {
    type Store = StockRow;

    async fn reduce(stock: &StockRow, attempt: &Attempt) -> Result<ReduceResult> {
        let (id, user, quantity) = ((&stock.id).into(), (&attempt.user).into(), attempt.quantity.into());
        let count = "SELECT COUNT(*) FROM purchase WHERE id = $1 AND user_id = $2";
        if stock.app.sql.row(attempt.deadline, count, &[id, user]).await?.is_some_and(|row| row[0] > 0) {
            return Ok(ReduceResult::AlreadyTaken);
        }
        let mut transaction = stock.app.sql.begin(attempt.deadline).await?;
        let take = "UPDATE stock SET units = units - $2 WHERE id = $1 AND units >= $2";
        if transaction.run(take, &[id, quantity]).await? == 0 {
            transaction.roll_back().await?;
            return Ok(ReduceResult::SoldOut);
        }
        let purchase = "INSERT INTO purchase (id, user_id, units) VALUES ($1, $2, $3)";
        transaction.run(purchase, &[id, user, quantity]).await?;
        transaction.commit().await?;
        Ok(ReduceResult::Taken)
    }

    async fn return_units(stock: &StockRow, attempt: &Attempt) -> Result<()> {
        let mut transaction = stock.app.sql.begin(default_deadline()).await?;
        let (id, user) = ((&stock.id).into(), (&attempt.user).into());
        transaction.run("DELETE FROM purchase WHERE id = $1 AND user_id = $2", &[id, user]).await?;
        let add = "UPDATE stock SET units = units + $2 WHERE id = $1";
        transaction.run(add, &[id, attempt.quantity.into()]).await?;
        transaction.commit().await
    }
}
