//! Redis pipeline: sends all reads in one round trip, decides, and sends all writes in a second one.
//!
//! Oversells. A pipeline only saves round trips: other callers write between one caller's two, so its
//! decision is based on old values. The writes are relative, so the stock falls below 0, which at least shows
//! the mistake. Cost: 2 round trips per grant, regardless of the number of commands.

use ::redis::{Pipeline, pipe};

use crate::error::{Result, StockError};
use crate::manager::{Attempt, Expectation, ReduceResult, StockManager, Strategy};
use crate::stock_key::StockKey;

pub const STRATEGY: Strategy = Strategy::of::<Pipelined>(
    12,
    "Redis pipeline",
    Expectation::Oversells,
    "reads in one pipeline, decide, writes in a second",
);

pub struct Pipelined;

impl StockManager for Pipelined {
    type Store = StockKey;

    async fn init(stock: &StockKey, units: u32) -> Result<()> {
        let mut write = pipe();
        write.set(&stock.name, units).ignore().set(stock.redis_key("sold"), 0).ignore();
        stock.app.redis.query_all(&write).await
    }

    async fn reduce(stock: &StockKey, attempt: &Attempt) -> Result<ReduceResult> {
        let mut read = pipe();
        read.get(&stock.name).get(stock.redis_key("sold"));
        let (units, _sold): (Option<i64>, Option<i64>) = stock.app.redis.query_all(&read).await?;
        if units.ok_or(StockError::Missing)? < i64::from(attempt.quantity) {
            return Ok(ReduceResult::SoldOut);
        }
        stock.app.redis.query_all::<()>(&sale(stock, attempt.quantity.into())).await?;
        Ok(ReduceResult::Taken)
    }

    async fn return_units(stock: &StockKey, attempt: &Attempt) -> Result<()> {
        stock.app.redis.query_all(&sale(stock, -i64::from(attempt.quantity))).await
    }
}

/// Moves units from the stock to the sold units, in one pipeline.
fn sale(stock: &StockKey, units: i64) -> Pipeline {
    let mut write = pipe();
    write.decr(&stock.name, units).ignore().incr(stock.redis_key("sold"), units).ignore();
    write
}
