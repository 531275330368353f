//! `WATCH`, read, test, `MULTI`/`EXEC`: the transaction is discarded if the stock changed since `WATCH`.
//!
//! Never oversells. It is optimistic like the version in SQL: in a rush most tries fail, and callers give up
//! after their last try although units are left. `WATCH` applies to a connection, so each caller needs its
//! own. Cost: 2 round trips per try (`WATCH` and `GET` together), and a connection.

use ::redis::{cmd, pipe};

use crate::backoff::Backoff;
use crate::error::{Result, StockError};
use crate::manager::{Attempt, Expectation, ReduceResult, StockManager, Strategy};
use crate::redis::ExclusiveConnection;
use crate::stock_key::StockKey;

pub const STRATEGY: Strategy = Strategy::of::<Watch>(
    14,
    "WATCH + MULTI/EXEC",
    Expectation::NeverOver,
    "optimistic transaction; at most 10 tries",
);

/// Maximum tries of a caller.
const TRIES_MAX: u32 = 10;

pub struct Watch;

impl StockManager for Watch {
    type Store = StockKey;

    async fn reduce(stock: &StockKey, attempt: &Attempt) -> Result<ReduceResult> {
        let mut backoff = Backoff::for_conflict();
        for tried in 1..=TRIES_MAX {
            let mut exclusive = stock.app.redis.exclusive(attempt.deadline).await?;
            let reduced = one_try(&stock.name, &mut exclusive, attempt.quantity).await?;
            stock.app.redis.put_back(exclusive).await;
            if let Some(reduced) = reduced {
                return Ok(reduced);
            }
            if tried < TRIES_MAX {
                backoff.pause(attempt.deadline, &stock.app.meter).await?;
            }
        }
        Err(StockError::GaveUp)
    }
}

/// Tries once; returns `None` on a conflict.
async fn one_try(
    name: &str,
    exclusive: &mut ExclusiveConnection<'_>,
    quantity: u32,
) -> Result<Option<ReduceResult>> {
    let mut read = pipe();
    read.cmd("WATCH").arg(name).ignore().get(name);
    let (units,): (Option<i64>,) = exclusive.query_all(&read).await?;
    let left = units.ok_or(StockError::Missing)? - i64::from(quantity);
    if left < 0 {
        exclusive.query::<()>(&cmd("UNWATCH")).await?;
        return Ok(Some(ReduceResult::SoldOut));
    }
    let mut write = pipe();
    write.atomic().set(name, left);
    let written: Option<(String,)> = exclusive.query_all(&write).await?;
    Ok(written.map(|_| ReduceResult::Taken))
}
