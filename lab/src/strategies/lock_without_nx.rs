//! Lock without `NX`: checks whether the lock exists, and sets it if not.
//!
//! Oversells: two callers check concurrently, both find it free, and both hold it. Check and set are two steps,
//! like the read and write that the lock should protect. `SET NX` combines them. Cost: 5 round trips per
//! grant, plus one per try of the lock.

use std::time::Duration;

use ::redis::cmd;

use crate::backoff::Backoff;
use crate::error::Result;
use crate::locking::Locking;
use crate::manager::{Attempt, Expectation, Strategy};
use crate::stock_key::StockKey;

pub const STRATEGY: Strategy = Strategy::of::<LockWithoutNx>(
    27,
    "lock checked, then set (no NX)",
    Expectation::Oversells,
    "EXISTS, SET PX, GET, test, SET, DEL",
);

const LEASE: Duration = Duration::from_secs(1);

pub struct LockWithoutNx;

impl Locking for LockWithoutNx {
    type Store = StockKey;
    type Holder = ();

    async fn acquire(stock: &StockKey, attempt: &Attempt) -> Result<()> {
        let redis = &stock.app.redis;
        let lock = stock.redis_key("lock");
        let mut backoff = Backoff::for_lock();
        while redis.query::<bool>(cmd("EXISTS").arg(&lock)).await? {
            backoff.pause(attempt.deadline, &stock.app.meter).await?;
        }
        redis.query(cmd("SET").arg(&lock).arg(1).arg("PX").arg(LEASE.as_millis())).await
    }

    async fn release(stock: &StockKey, (): (), _: &Attempt) -> Result<()> {
        stock.delete_lock().await.map(drop)
    }
}
