//! `SETNX` lock with expiry and no owner: a crash is survived, a slow holder is not.
//!
//! Breaks when the work takes longer than the lease. The slow holder wakes up, writes what it worked out from a stock that
//! has moved on (this oversells), and deletes a lock that is another caller's by now, so that a third comes in beside the
//! second. Any lease has work that is longer: a pause of the garbage collector will do.
//! Costs 4 trips for a grant, and one for each look at the lock.

use std::sync::Arc;
use std::time::Duration;

use ::redis::cmd;
use tokio::time::{Instant, sleep};

use crate::app::App;
use crate::backoff::Backoff;
use crate::manager::{Attempt, Expectation, Held, Reduced, Result, StockManager, Strategy};
use crate::stock_key::StockKey;

/// The row.
pub const STRATEGY: Strategy = Strategy::of::<LockWithoutOwner>(
    16,
    "lock_without_owner",
    "SETNX lock with expiry, no owner",
    Expectation::WrongReleaseOversells,
    "SET NX PX, GET, test, SET, DEL; some holders are slow",
)
.with_slow_holders();

const LEASE: Duration = Duration::from_millis(100);
/// What a slow holder takes, between its read and its write.
const SLOW: Duration = Duration::from_millis(160);

/// See the module.
#[derive(Debug)]
pub struct LockWithoutOwner {
    stock: StockKey,
    lock: String,
}

impl LockWithoutOwner {
    /// When it was surely held.
    async fn acquire(&self, attempt: &Attempt) -> Result<Instant> {
        let app = &self.stock.app;
        let mut set = cmd("SET");
        set.arg(&self.lock).arg(1).arg("NX").arg("PX").arg(LEASE.as_millis());
        let mut backoff = Backoff::for_lock();
        while app.redis.ask::<Option<String>>(&set).await?.is_none() {
            backoff.pause(attempt.deadline, &app.meter).await?;
        }
        Ok(Instant::now())
    }

    async fn release(&self, since: Instant) -> Result<()> {
        let expired = since.elapsed() > LEASE;
        let deleted: u64 = self.stock.app.redis.ask(cmd("DEL").arg(&self.lock)).await?;
        // Its own had expired, and there was one: it was another caller's.
        if expired && deleted == 1 {
            self.stock.app.meter.wrong_releases.add(1);
        }
        Ok(())
    }

    async fn work(&self, attempt: &Attempt) -> Result<Reduced> {
        let left = self.stock.get().await? - i64::from(attempt.quantity);
        if left < 0 {
            return Ok(Reduced::SoldOut);
        }
        if attempt.is_slow_holder() {
            sleep(SLOW).await;
        }
        self.stock.set(left).await?;
        Ok(Reduced::Taken)
    }
}

impl StockManager for LockWithoutOwner {
    async fn open(app: &Arc<App>, key: &str) -> Result<Self> {
        Ok(Self { stock: StockKey::new(app, key), lock: format!("lab:{{{key}}}:lock") })
    }

    async fn init(&self, stock: u32) -> Result<()> {
        self.stock.set(stock.into()).await
    }

    async fn reduce(&self, attempt: &Attempt) -> Result<Reduced> {
        let since = self.acquire(attempt).await?;
        let reduced = self.work(attempt).await;
        self.release(since).await?;
        reduced
    }

    async fn give_back(&self, attempt: &Attempt) -> Result<()> {
        let since = self.acquire(attempt).await?;
        let given = self.stock.add(attempt.quantity.into()).await;
        self.release(since).await?;
        given.map(drop)
    }

    async fn get(&self) -> Result<i64> {
        self.stock.get().await
    }

    async fn hold(&self, attempt: &Attempt) -> Result<Held> {
        Ok(Box::new(self.acquire(attempt).await?))
    }
}
