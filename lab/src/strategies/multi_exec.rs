//! `MULTI`/`EXEC` without `WATCH`: the writes are one transaction, what they rest on was read before it.
//!
//! Oversells. Inside of `MULTI` a `GET` answers only `QUEUED`: nothing in the transaction can decide on what it reads, so the
//! test comes before, and others come in between. The writes themselves are all done or none, which was not the question.
//! Costs 2 trips for a grant.

use std::sync::Arc;

use ::redis::pipe;

use crate::app::App;
use crate::manager::{Attempt, Expectation, Reduced, Result, StockManager, Strategy};
use crate::stock_key::StockKey;

/// The row.
pub const STRATEGY: Strategy = Strategy::of::<MultiExec>(
    13,
    "multi_exec",
    "MULTI/EXEC without WATCH",
    Expectation::Oversells,
    "GET, test, then MULTI, DECRBY, INCRBY, EXEC",
);

/// See the module.
#[derive(Debug)]
pub struct MultiExec {
    stock: StockKey,
    sold: String,
}

impl StockManager for MultiExec {
    async fn open(app: &Arc<App>, key: &str) -> Result<Self> {
        Ok(Self { stock: StockKey::new(app, key), sold: format!("lab:{{{key}}}:sold") })
    }

    async fn init(&self, stock: u32) -> Result<()> {
        let mut write = pipe();
        write.atomic().set(&self.stock.name, stock).ignore().set(&self.sold, 0).ignore();
        self.stock.app.redis.ask_all(&write).await
    }

    async fn reduce(&self, attempt: &Attempt) -> Result<Reduced> {
        if self.stock.get().await? < i64::from(attempt.quantity) {
            return Ok(Reduced::SoldOut);
        }
        let mut write = pipe();
        write.atomic();
        write.decr(&self.stock.name, attempt.quantity).ignore().incr(&self.sold, attempt.quantity).ignore();
        self.stock.app.redis.ask_all::<()>(&write).await?;
        Ok(Reduced::Taken)
    }

    async fn give_back(&self, attempt: &Attempt) -> Result<()> {
        let mut write = pipe();
        write.atomic();
        write.incr(&self.stock.name, attempt.quantity).ignore().decr(&self.sold, attempt.quantity).ignore();
        self.stock.app.redis.ask_all(&write).await
    }

    async fn get(&self) -> Result<i64> {
        self.stock.get().await
    }
}
