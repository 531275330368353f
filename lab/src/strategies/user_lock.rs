//! Per-user lock that fails immediately, and a conditional update. A user's second try is denied while the first
//! is in progress; a row per user limits each user to one grant permanently.
//!
//! Exact, once per user. The lock only protects the database from double clicks. The guarantee comes from the
//! row's primary key, in one transaction with the update. A crash blocks only that user, until the lock
//! expires. Cost: 2 round trips to Redis and 4 to SQL per grant.

use std::time::Duration;

use ::redis::cmd;

use super::owned_lock::RELEASE;
use crate::backoff::unique;
use crate::error::Result;
use crate::manager::{Attempt, Expectation, Held, PerUser, ReduceResult, StockManager, Strategy};
use crate::stock_key::redis_key;
use crate::stock_row::{StockRow, default_deadline};

pub const STRATEGY: Strategy = Strategy::of::<UserLock>(
    10,
    "per-user lock + conditional update",
    Expectation::Exact,
    "a user's second try fails immediately; a row limits to one per user",
)
.per_user(PerUser::Once);

const LEASE: Duration = Duration::from_secs(5);

pub struct UserLock;

impl StockManager for UserLock {
    type Store = StockRow;

    async fn reduce(stock: &StockRow, attempt: &Attempt) -> Result<ReduceResult> {
        let owner = unique()?;
        if !try_lock(stock, attempt, &owner).await? {
            return Ok(ReduceResult::AlreadyTaken);
        }
        let reduced = take(stock, attempt).await;
        stock.app.redis.run::<i64>(RELEASE.key(lock_key(stock, attempt)).arg(&owner)).await?;
        reduced
    }

    async fn return_units(stock: &StockRow, attempt: &Attempt) -> Result<()> {
        let mut transaction = stock.app.sql.begin(default_deadline()).await?;
        let (id, user) = ((&stock.id).into(), (&attempt.user).into());
        let deleted =
            transaction.run("DELETE FROM taker WHERE id = $1 AND user_id = $2", &[id, user]).await?;
        // Returning twice adds the units only once.
        if deleted == 1 {
            let add = "UPDATE stock SET units = units + $2 WHERE id = $1";
            transaction.run(add, &[id, attempt.quantity.into()]).await?;
        }
        transaction.commit().await
    }

    async fn hold(stock: &StockRow, attempt: &Attempt) -> Result<Held> {
        Ok(Box::new(try_lock(stock, attempt, &unique()?).await?))
    }
}

fn lock_key(stock: &StockRow, attempt: &Attempt) -> String {
    redis_key(&stock.id, &format!("user:{}", attempt.user))
}

async fn try_lock(stock: &StockRow, attempt: &Attempt, owner: &str) -> Result<bool> {
    let mut set = cmd("SET");
    set.arg(lock_key(stock, attempt)).arg(owner).arg("NX").arg("PX").arg(LEASE.as_millis());
    Ok(stock.app.redis.query::<Option<String>>(&set).await?.is_some())
}

async fn take(stock: &StockRow, attempt: &Attempt) -> Result<ReduceResult> {
    let (id, user, quantity) = ((&stock.id).into(), (&attempt.user).into(), attempt.quantity.into());
    let mut transaction = stock.app.sql.begin(attempt.deadline).await?;
    // Writes the user's row first, so that the stock's contended row is held for only one statement and the
    // commit.
    let taker = "INSERT INTO taker (id, user_id, units) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
    if transaction.run(taker, &[id, user, quantity]).await? == 0 {
        transaction.roll_back().await?;
        return Ok(ReduceResult::AlreadyTaken);
    }
    let take = "UPDATE stock SET units = units - $2 WHERE id = $1 AND units >= $2";
    if transaction.run(take, &[id, quantity]).await? == 0 {
        transaction.roll_back().await?;
        return Ok(ReduceResult::SoldOut);
    }
    transaction.commit().await?;
    Ok(ReduceResult::Taken)
}
