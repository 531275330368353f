//! `SETNX` lock without expiry: the caller that sets the key holds the lock, and deletes the key at the end.
//!
//! Exact until a holder crashes. Then nothing deletes the key, and all others wait forever, until an operator
//! notices and deletes it manually, which invites the next mistake. Cost: 4 round trips per grant, plus one
//! per try of the lock.

use ::redis::cmd;

use crate::backoff::Backoff;
use crate::error::Result;
use crate::locking::Locking;
use crate::manager::{Attempt, Expectation, Strategy};
use crate::stock_key::StockKey;

pub const STRATEGY: Strategy = Strategy::of::<LockWithoutExpiry>(
    15,
    "SETNX lock without expiry",
    Expectation::Exact,
    "SETNX, GET, test, SET, DEL; a crash blocks all others",
)
.stuck_after_crash();

pub struct LockWithoutExpiry;

impl Locking for LockWithoutExpiry {
    type Store = StockKey;
    type Holder = ();

    async fn acquire(stock: &StockKey, attempt: &Attempt) -> Result<()> {
        let redis = &stock.app.redis;
        let mut backoff = Backoff::for_lock();
        while !redis.query::<bool>(cmd("SETNX").arg(stock.redis_key("lock")).arg(1)).await? {
            backoff.pause(attempt.deadline, &stock.app.meter).await?;
        }
        Ok(())
    }

    async fn release(stock: &StockKey, (): (), _: &Attempt) -> Result<()> {
        stock.delete_lock().await.map(drop)
    }
}
