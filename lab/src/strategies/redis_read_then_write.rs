//! Read then write, in Redis: `GET` the stock, test it, `SET` it to the value worked out.
//!
//! Breaks as soon as two do it at once, like its sister in SQL, and by more: Redis is quicker, so more are between the two
//! steps. That Redis has one thread does not help: it makes each command atomic, not two of them.
//! Costs 2 trips for a grant, 1 for a refusal.

use std::sync::Arc;

use crate::app::App;
use crate::manager::{Attempt, Expectation, Reduced, Result, StockManager, Strategy};
use crate::stock_key::StockKey;

/// The row.
pub const STRATEGY: Strategy = Strategy::of::<RedisReadThenWrite>(
    2,
    "redis_read_then_write",
    "read then write, Redis",
    Expectation::Oversells,
    "GET the stock, test, SET the value worked out",
);

/// See the module.
#[derive(Debug)]
pub struct RedisReadThenWrite(StockKey);

impl StockManager for RedisReadThenWrite {
    async fn open(app: &Arc<App>, key: &str) -> Result<Self> {
        Ok(Self(StockKey::new(app, key)))
    }

    async fn init(&self, stock: u32) -> Result<()> {
        self.0.set(stock.into()).await
    }

    async fn reduce(&self, attempt: &Attempt) -> Result<Reduced> {
        self.0.read_then_write(attempt.quantity).await
    }

    async fn give_back(&self, attempt: &Attempt) -> Result<()> {
        self.0.add(attempt.quantity.into()).await.map(drop)
    }

    async fn get(&self) -> Result<i64> {
        self.0.get().await
    }
}
