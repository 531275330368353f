//! Redis `DECRBY`: takes units first, and adds them again if the number fell below 0.
//!
//! Never oversells, because `DECRBY` is atomic and returns the new number. But until the units are added
//! again, the number is too low. While one caller fails to take three units, another may be denied one of the
//! last two. A crash in between loses those units permanently. Cost: 1 round trip per grant, 2 per denial.

use crate::error::Result;
use crate::manager::{Attempt, Expectation, Held, ReduceResult, StockManager, Strategy};
use crate::stock_key::StockKey;

pub const STRATEGY: Strategy =
    Strategy::of::<Decrement>(11, "Redis DECR", Expectation::NeverOver, "DECRBY, then INCRBY if below 0");

pub struct Decrement;

impl StockManager for Decrement {
    type Store = StockKey;

    async fn reduce(stock: &StockKey, attempt: &Attempt) -> Result<ReduceResult> {
        let quantity = i64::from(attempt.quantity);
        if stock.add(-quantity).await? >= 0 {
            return Ok(ReduceResult::Taken);
        }
        stock.add(quantity).await?;
        Ok(ReduceResult::SoldOut)
    }

    async fn hold(stock: &StockKey, attempt: &Attempt) -> Result<Held> {
        Ok(Box::new(stock.add(-i64::from(attempt.quantity)).await?))
    }
}
