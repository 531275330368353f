//! Redis pipeline: all reads in one trip, decide, all writes in a second.
//!
//! Oversells. A pipeline saves trips, and that is all it does: between the two of one caller come those of others, and what
//! it decided by has changed. The writes are relative, so the stock goes below 0 and at least shows it.
//! Costs 2 trips for a grant, however many commands.

use std::sync::Arc;

use ::redis::pipe;

use crate::app::App;
use crate::manager::{Attempt, Expectation, Reduced, Result, StockError, StockManager, Strategy};
use crate::stock_key::StockKey;

/// The row.
pub const STRATEGY: Strategy = Strategy::of::<Pipelined>(
    12,
    "pipeline",
    "Redis pipeline",
    Expectation::Oversells,
    "reads in one pipeline, decide, writes in a second",
);

/// See the module.
#[derive(Debug)]
pub struct Pipelined {
    stock: StockKey,
    sold: String,
}

impl StockManager for Pipelined {
    async fn open(app: &Arc<App>, key: &str) -> Result<Self> {
        Ok(Self { stock: StockKey::new(app, key), sold: format!("lab:{{{key}}}:sold") })
    }

    async fn init(&self, stock: u32) -> Result<()> {
        let mut write = pipe();
        write.set(&self.stock.name, stock).ignore().set(&self.sold, 0).ignore();
        self.stock.app.redis.ask_all(&write).await
    }

    async fn reduce(&self, attempt: &Attempt) -> Result<Reduced> {
        let redis = &self.stock.app.redis;
        let mut read = pipe();
        read.get(&self.stock.name).get(&self.sold);
        let (units, _sold): (Option<i64>, Option<i64>) = redis.ask_all(&read).await?;
        if units.ok_or(StockError::Missing)? < i64::from(attempt.quantity) {
            return Ok(Reduced::SoldOut);
        }
        let mut write = pipe();
        write.decr(&self.stock.name, attempt.quantity).ignore().incr(&self.sold, attempt.quantity).ignore();
        redis.ask_all::<()>(&write).await?;
        Ok(Reduced::Taken)
    }

    async fn give_back(&self, attempt: &Attempt) -> Result<()> {
        let mut write = pipe();
        write.incr(&self.stock.name, attempt.quantity).ignore().decr(&self.sold, attempt.quantity).ignore();
        self.stock.app.redis.ask_all(&write).await
    }

    async fn get(&self) -> Result<i64> {
        self.stock.get().await
    }
}
