//! `SETNX` lock with expiry but no owner: survives a crash, but not a slow holder.
//!
//! Fails if the work takes longer than the lease. The slow holder wakes up, writes a value computed from an
//! outdated stock (this oversells), and deletes a lock that now belongs to another caller. Then a third
//! caller enters at the same time as the second. No lease is safe: a pause of the garbage collector is
//! enough. Cost: 4 round trips per grant, plus one per try of the lock.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::error::Result;
use crate::locking::Locking;
use crate::manager::{Attempt, Expectation, ReduceResult, Strategy};
use crate::stock_key::StockKey;
use crate::store::Store as _;

pub const STRATEGY: Strategy = Strategy::of::<LockWithoutOwner>(
    16,
    "SETNX lock with expiry, no owner",
    Expectation::WrongReleaseOversells,
    "SET NX PX, GET, test, SET, DEL; some holders are slow",
)
.with_slow_holders();

const LEASE: Duration = Duration::from_millis(100);
/// Duration of a slow holder, between its read and its write.
const SLOW: Duration = Duration::from_millis(160);

pub struct LockWithoutOwner;

impl Locking for LockWithoutOwner {
    type Store = StockKey;
    /// A time at which the lock was certainly held.
    type Holder = Instant;

    async fn acquire(stock: &StockKey, attempt: &Attempt) -> Result<Instant> {
        stock.lock("1", LEASE, attempt).await
    }

    async fn work(stock: &StockKey, _: &Instant, attempt: &Attempt) -> Result<ReduceResult> {
        let left = stock.get().await? - i64::from(attempt.quantity);
        if left < 0 {
            return Ok(ReduceResult::SoldOut);
        }
        if attempt.is_slow_holder() {
            sleep(SLOW).await;
        }
        stock.set(left).await?;
        Ok(ReduceResult::Taken)
    }

    async fn release(stock: &StockKey, since: Instant, _: &Attempt) -> Result<()> {
        let expired = since.elapsed() > LEASE;
        // The lock of this holder had expired, so the deleted one was another caller's.
        if stock.delete_lock().await? && expired {
            stock.app.meter.wrong_releases.add(1);
        }
        Ok(())
    }
}
