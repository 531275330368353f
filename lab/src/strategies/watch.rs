//! `WATCH`, read, test, `MULTI`/`EXEC`: the transaction is dropped when the stock was written since it was watched.
//!
//! Never over. Like the version in SQL it is optimistic: under a rush most tries fail, and who has tried often enough
//! is sent away although units are left. `WATCH` belongs to a connection, so each caller needs one of its own.
//! Costs 2 trips a try (`WATCH` and `GET` together), and a connection.

use std::sync::Arc;

use ::redis::{cmd, pipe};

use crate::app::App;
use crate::backoff::Backoff;
use crate::manager::{Attempt, Expectation, Reduced, Result, StockError, StockManager, Strategy};
use crate::redis::OwnConnection;
use crate::stock_key::StockKey;

/// The row.
pub const STRATEGY: Strategy = Strategy::of::<Watch>(
    14,
    "watch",
    "WATCH + MULTI/EXEC",
    Expectation::NeverOver,
    "optimistic transaction; at most 10 tries",
);

/// How often a caller tries.
const TRIES_MAX: u32 = 10;

/// See the module.
#[derive(Debug)]
pub struct Watch(StockKey);

impl Watch {
    /// One try; `None` when another caller was quicker.
    async fn attempt(&self, own: &mut OwnConnection<'_>, quantity: u32) -> Result<Option<Reduced>> {
        let mut read = pipe();
        read.cmd("WATCH").arg(&self.0.name).ignore().get(&self.0.name);
        let (units,): (Option<i64>,) = own.ask_all(&read).await?;
        let left = units.ok_or(StockError::Missing)? - i64::from(quantity);
        if left < 0 {
            own.ask::<()>(&cmd("UNWATCH")).await?;
            return Ok(Some(Reduced::SoldOut));
        }
        let mut write = pipe();
        write.atomic().set(&self.0.name, left);
        let written: Option<(String,)> = own.ask_all(&write).await?;
        Ok(written.map(|_| Reduced::Taken))
    }
}

impl StockManager for Watch {
    async fn open(app: &Arc<App>, key: &str) -> Result<Self> {
        Ok(Self(StockKey::new(app, key)))
    }

    async fn init(&self, stock: u32) -> Result<()> {
        self.0.set(stock.into()).await
    }

    async fn reduce(&self, attempt: &Attempt) -> Result<Reduced> {
        let mut backoff = Backoff::for_conflict();
        for tried in 1..=TRIES_MAX {
            let mut own = self.0.app.redis.own(attempt.deadline).await?;
            let reduced = self.attempt(&mut own, attempt.quantity).await?;
            self.0.app.redis.hand_back(own).await;
            if let Some(reduced) = reduced {
                return Ok(reduced);
            }
            if tried < TRIES_MAX {
                backoff.pause(attempt.deadline, &self.0.app.meter).await?;
            }
        }
        Err(StockError::GaveUp)
    }

    async fn give_back(&self, attempt: &Attempt) -> Result<()> {
        self.0.add(attempt.quantity.into()).await.map(drop)
    }

    async fn get(&self) -> Result<i64> {
        self.0.get().await
    }
}
