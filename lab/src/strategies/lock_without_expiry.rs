//! `SETNX` lock without expiry: who sets the key has the lock, and deletes it in the end.
//!
//! Exact, until a holder crashes: then the key is never deleted, and all others wait for ever. An operator has to find
//! out and delete it by hand, which is when the next mistake is made. Costs 4 trips for a grant, and one for each look at
//! the lock.

use std::sync::Arc;

use ::redis::cmd;

use crate::app::App;
use crate::backoff::Backoff;
use crate::manager::{Attempt, Expectation, Held, Reduced, Result, StockManager, Strategy};
use crate::stock_key::StockKey;

/// The row.
pub const STRATEGY: Strategy = Strategy::of::<LockWithoutExpiry>(
    15,
    "lock_without_expiry",
    "SETNX lock without expiry",
    Expectation::Exact,
    "SETNX, GET, test, SET, DEL; a crash blocks all others",
)
.stuck_after_crash();

/// See the module.
#[derive(Debug)]
pub struct LockWithoutExpiry {
    stock: StockKey,
    lock: String,
}

impl LockWithoutExpiry {
    async fn acquire(&self, attempt: &Attempt) -> Result<()> {
        let app = &self.stock.app;
        let mut backoff = Backoff::for_lock();
        while !app.redis.ask::<bool>(cmd("SETNX").arg(&self.lock).arg(1)).await? {
            backoff.pause(attempt.deadline, &app.meter).await?;
        }
        Ok(())
    }
}

impl StockManager for LockWithoutExpiry {
    async fn open(app: &Arc<App>, key: &str) -> Result<Self> {
        Ok(Self { stock: StockKey::new(app, key), lock: format!("lab:{{{key}}}:lock") })
    }

    async fn init(&self, stock: u32) -> Result<()> {
        self.stock.set(stock.into()).await
    }

    async fn reduce(&self, attempt: &Attempt) -> Result<Reduced> {
        self.acquire(attempt).await?;
        let reduced = self.stock.read_then_write(attempt.quantity).await;
        self.stock.app.redis.ask::<()>(cmd("DEL").arg(&self.lock)).await?;
        reduced
    }

    async fn give_back(&self, attempt: &Attempt) -> Result<()> {
        self.acquire(attempt).await?;
        let given = self.stock.add(attempt.quantity.into()).await;
        self.stock.app.redis.ask::<()>(cmd("DEL").arg(&self.lock)).await?;
        given.map(drop)
    }

    async fn get(&self) -> Result<i64> {
        self.stock.get().await
    }

    async fn hold(&self, attempt: &Attempt) -> Result<Held> {
        Ok(Box::new(self.acquire(attempt).await?))
    }
}
