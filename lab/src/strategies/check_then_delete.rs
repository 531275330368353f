//! Owner checked, then `DEL`: the lock contains a random owner, and a caller checks the owner before
//! releasing it.
//!
//! Fails in the gap: the check and the delete are two steps, and the lease may end between them. Then the
//! `DEL` releases the next holder's lock, and a third caller enters at the same time as that holder. This is
//! rarer than without an owner, so the mistake is found later. Cost: 5 round trips per grant, plus one per
//! try of the lock.

use std::time::Duration;

use ::redis::cmd;
use tokio::time::{Instant, sleep};

use crate::backoff::unique;
use crate::error::Result;
use crate::locking::Locking;
use crate::manager::{Attempt, Expectation, Strategy};
use crate::stock_key::StockKey;

pub const STRATEGY: Strategy = Strategy::of::<CheckThenDelete>(
    17,
    "owner checked, then DEL",
    Expectation::WrongRelease,
    "SET NX PX owner, …, GET owner, DEL; some pause in the gap",
)
.with_slow_holders();

const LEASE: Duration = Duration::from_millis(100);
/// Duration of a slow holder, between its check and its delete.
const SLOW: Duration = Duration::from_millis(160);

pub struct CheckThenDelete;

pub struct Holder {
    owner: String,
    /// A time at which the lock was certainly held.
    since: Instant,
}

impl Locking for CheckThenDelete {
    type Store = StockKey;
    type Holder = Holder;

    async fn acquire(stock: &StockKey, attempt: &Attempt) -> Result<Holder> {
        let owner = unique()?;
        let since = stock.lock(&owner, LEASE, attempt).await?;
        Ok(Holder { owner, since })
    }

    async fn release(stock: &StockKey, holder: Holder, attempt: &Attempt) -> Result<()> {
        let is_slow = attempt.is_slow_holder();
        let now: Option<String> = stock.app.redis.query(cmd("GET").arg(stock.redis_key("lock"))).await?;
        if now != Some(holder.owner) {
            return Ok(());
        }
        if is_slow {
            sleep(SLOW).await;
        }
        let expired = holder.since.elapsed() > LEASE;
        // The lock of this holder had expired, so the deleted one was another caller's.
        if stock.delete_lock().await? && expired {
            stock.app.meter.wrong_releases.add(1);
        }
        Ok(())
    }
}
