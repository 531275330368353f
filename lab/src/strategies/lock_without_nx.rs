//! Lock without `NX`: looks whether the lock is there, and sets it when it is not.
//!
//! Oversells: two look at once, both find it free, and both have it. The look and the set are two steps, as in the read then
//! write that the lock was to prevent. `SET NX` is both in one. Costs 5 trips for a grant, and one for each look at the lock.

use std::sync::Arc;
use std::time::Duration;

use ::redis::cmd;

use crate::app::App;
use crate::backoff::Backoff;
use crate::manager::{Attempt, Expectation, Held, Reduced, Result, StockManager, Strategy};
use crate::stock_key::StockKey;

/// The row.
pub const STRATEGY: Strategy = Strategy::of::<LockWithoutNx>(
    27,
    "lock_without_nx",
    "lock looked for, then set (no NX)",
    Expectation::Oversells,
    "EXISTS, SET PX, GET, test, SET, DEL",
);

const LEASE: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub struct LockWithoutNx {
    stock: StockKey,
    lock: String,
}

impl LockWithoutNx {
    async fn acquire(&self, attempt: &Attempt) -> Result<()> {
        let app = &self.stock.app;
        let mut backoff = Backoff::for_lock();
        while app.redis.ask::<bool>(cmd("EXISTS").arg(&self.lock)).await? {
            backoff.pause(attempt.deadline, &app.meter).await?;
        }
        app.redis.ask(cmd("SET").arg(&self.lock).arg(1).arg("PX").arg(LEASE.as_millis())).await
    }

    async fn release(&self) -> Result<()> {
        self.stock.app.redis.ask(cmd("DEL").arg(&self.lock)).await
    }
}

impl StockManager for LockWithoutNx {
    async fn open(app: &Arc<App>, key: &str) -> Result<Self> {
        Ok(Self { stock: StockKey::new(app, key), lock: format!("lab:{{{key}}}:lock") })
    }

    async fn init(&self, stock: u32) -> Result<()> {
        self.stock.set(stock.into()).await
    }

    async fn reduce(&self, attempt: &Attempt) -> Result<Reduced> {
        self.acquire(attempt).await?;
        let reduced = self.stock.read_then_write(attempt.quantity).await;
        self.release().await?;
        reduced
    }

    async fn give_back(&self, attempt: &Attempt) -> Result<()> {
        self.acquire(attempt).await?;
        let given = self.stock.add(attempt.quantity.into()).await;
        self.release().await?;
        given.map(drop)
    }

    async fn get(&self) -> Result<i64> {
        self.stock.get().await
    }

    async fn hold(&self, attempt: &Attempt) -> Result<Held> {
        Ok(Box::new(self.acquire(attempt).await?))
    }
}
