//! Per-user count, then insert: counts the user's purchases, and where there are none takes the stock by a conditional update and
//! inserts one.
//!
//! The total is kept, the limit per user is not: two tries of one user both count none, wait for the stock's row one after the
//! other, and both insert. To count within the transaction makes that rarer, no more: neither sees the other's row before its
//! commit. What helps is a unique key (10), or a lock. Costs 5 trips for a grant.

use std::sync::Arc;

use crate::app::App;
use crate::manager::{Attempt, Expectation, PerUser, Reduced, Result, StockManager, Strategy};
use crate::stock_row::{StockRow, some_time};

/// The row.
pub const STRATEGY: Strategy = Strategy::of::<CountThenInsert>(
    25,
    "count_then_insert",
    "per-user count, then insert",
    Expectation::UsersOver,
    "SELECT COUNT of the user's rows, take, INSERT; no unique key",
)
.per_user(PerUser::Once);

/// See the module.
#[derive(Debug)]
pub struct CountThenInsert(StockRow);

impl StockManager for CountThenInsert {
    async fn open(app: &Arc<App>, key: &str) -> Result<Self> {
        Ok(Self(StockRow::new(app, key)))
    }

    async fn init(&self, stock: u32) -> Result<()> {
        self.0.init(stock).await
    }

    async fn reduce(&self, attempt: &Attempt) -> Result<Reduced> {
        let (id, user, quantity) = ((&self.0.id).into(), (&attempt.user).into(), attempt.quantity.into());
        let count = "SELECT COUNT(*) FROM purchase WHERE id = $1 AND user_id = $2";
        if self.0.app.sql.row(attempt.deadline, count, &[id, user]).await?.is_some_and(|row| row[0] > 0) {
            return Ok(Reduced::HadAlready);
        }
        let mut transaction = self.0.app.sql.begin(attempt.deadline).await?;
        let stock = "UPDATE stock SET units = units - $2 WHERE id = $1 AND units >= $2";
        if transaction.run(stock, &[id, quantity]).await? == 0 {
            transaction.roll_back().await?;
            return Ok(Reduced::SoldOut);
        }
        let purchase = "INSERT INTO purchase (id, user_id, units) VALUES ($1, $2, $3)";
        transaction.run(purchase, &[id, user, quantity]).await?;
        transaction.commit().await?;
        Ok(Reduced::Taken)
    }

    async fn give_back(&self, attempt: &Attempt) -> Result<()> {
        let mut transaction = self.0.app.sql.begin(some_time()).await?;
        let (id, user) = ((&self.0.id).into(), (&attempt.user).into());
        transaction.run("DELETE FROM purchase WHERE id = $1 AND user_id = $2", &[id, user]).await?;
        let stock = "UPDATE stock SET units = units + $2 WHERE id = $1";
        transaction.run(stock, &[id, attempt.quantity.into()]).await?;
        transaction.commit().await
    }

    async fn get(&self) -> Result<i64> {
        self.0.get().await
    }
}
