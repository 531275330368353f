//! Read then write, in Redis: `GET` the stock, test it, `SET` it to the computed value.
//!
//! Fails as soon as two callers run it concurrently, like its SQL variant, and oversells more: Redis is
//! faster, so more callers are between the two steps. Redis' single thread does not help: it makes each
//! command atomic, but not two commands together. Cost: 2 round trips per grant, 1 per denial.

use crate::error::Result;
use crate::manager::{Attempt, Expectation, ReduceResult, StockManager, Strategy};
use crate::stock_key::StockKey;
use crate::store::Store as _;

pub const STRATEGY: Strategy = Strategy::of::<RedisReadThenWrite>(
    2,
    "read then write, Redis",
    Expectation::Oversells,
    "GET the stock, test, SET the computed value",
);

pub struct RedisReadThenWrite;

impl StockManager for RedisReadThenWrite {
    type Store = StockKey;

    async fn reduce(stock: &StockKey, attempt: &Attempt) -> Result<ReduceResult> {
        stock.read_then_write(attempt.quantity).await
    }
}
