//! `MULTI`/`EXEC` without `WATCH`: the writes are one transaction, but they depend on an earlier read.
//!
//! Oversells. Inside `MULTI` a `GET` returns only `QUEUED`, so nothing in the transaction can decide on the
//! value. The test must come before `MULTI`, and other callers write in between. The writes are all executed
//! or none, which does not help here. Cost: 2 round trips per grant.

use ::redis::{Pipeline, pipe};

use crate::error::Result;
use crate::manager::{Attempt, Expectation, ReduceResult, StockManager, Strategy};
use crate::stock_key::StockKey;
use crate::store::Store as _;

pub const STRATEGY: Strategy = Strategy::of::<MultiExec>(
    13,
    "MULTI/EXEC without WATCH",
    Expectation::Oversells,
    "GET, test, then MULTI, DECRBY, INCRBY, EXEC",
);

pub struct MultiExec;

impl StockManager for MultiExec {
    type Store = StockKey;

    async fn init(stock: &StockKey, units: u32) -> Result<()> {
        let mut write = pipe();
        write.atomic().set(&stock.name, units).ignore().set(stock.redis_key("sold"), 0).ignore();
        stock.app.redis.query_all(&write).await
    }

    async fn reduce(stock: &StockKey, attempt: &Attempt) -> Result<ReduceResult> {
        if stock.get().await? < i64::from(attempt.quantity) {
            return Ok(ReduceResult::SoldOut);
        }
        stock.app.redis.query_all::<()>(&sale(stock, attempt.quantity.into())).await?;
        Ok(ReduceResult::Taken)
    }

    async fn return_units(stock: &StockKey, attempt: &Attempt) -> Result<()> {
        stock.app.redis.query_all(&sale(stock, -i64::from(attempt.quantity))).await
    }
}

/// Moves units from the stock to the sold units, in one transaction.
fn sale(stock: &StockKey, units: i64) -> Pipeline {
    let mut write = pipe();
    write.atomic().decr(&stock.name, units).ignore().incr(stock.redis_key("sold"), units).ignore();
    write
}
