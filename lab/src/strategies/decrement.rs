//! Redis `DECRBY`: take first, and give back when that went below 0.
//!
//! Never over: `DECRBY` is atomic and its answer tells. But between a take that went too far and its give-back the number
//! is lower than the stock: who asks for one of the last two units then, while another asks for three, is refused units
//! that are there. And who crashes in between leaves the stock too low for good.
//! Costs 1 trip for a grant, 2 for a refusal.

use std::sync::Arc;

use crate::app::App;
use crate::manager::{Attempt, Expectation, Held, Reduced, Result, StockManager, Strategy};
use crate::stock_key::StockKey;

/// The row.
pub const STRATEGY: Strategy = Strategy::of::<Decrement>(
    11,
    "decrement",
    "Redis DECR",
    Expectation::NeverOver,
    "DECRBY, give back when below 0",
);

/// See the module.
#[derive(Debug)]
pub struct Decrement(StockKey);

impl StockManager for Decrement {
    async fn open(app: &Arc<App>, key: &str) -> Result<Self> {
        Ok(Self(StockKey::new(app, key)))
    }

    async fn init(&self, stock: u32) -> Result<()> {
        self.0.set(stock.into()).await
    }

    async fn reduce(&self, attempt: &Attempt) -> Result<Reduced> {
        let quantity = i64::from(attempt.quantity);
        if self.0.add(-quantity).await? >= 0 {
            return Ok(Reduced::Taken);
        }
        self.0.add(quantity).await?;
        Ok(Reduced::SoldOut)
    }

    async fn give_back(&self, attempt: &Attempt) -> Result<()> {
        self.0.add(attempt.quantity.into()).await.map(drop)
    }

    async fn get(&self) -> Result<i64> {
        self.0.get().await
    }

    async fn hold(&self, attempt: &Attempt) -> Result<Held> {
        Ok(Box::new(self.0.add(-i64::from(attempt.quantity)).await?))
    }
}
