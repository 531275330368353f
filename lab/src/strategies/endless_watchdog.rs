//! Lock with a watchdog that never stops: renewed while the process lives, even if its holder no longer
//! works.
//!
//! Exact, but stuck after the first failure. If the work ends with an error, the release is skipped and the
//! watchdog continues to renew. All other callers wait until the process restarts. This is worse than no
//! expiry (15), because it needs no crash. A watchdog must end with the work that it guards (19), even if the
//! work fails, and should only renew for a limited time. Cost: 4 round trips per grant, plus one per try of
//! the lock.

use std::sync::{Arc, Weak};
use std::time::Duration;

use ::redis::cmd;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::owned_lock::RELEASE;
use crate::addresses::Addresses;
use crate::app::App;
use crate::backoff::unique;
use crate::error::{Result, StockError};
use crate::manager::{Attempt, Expectation, Held, ReduceResult, StockManager, Strategy};
use crate::stock_key::StockKey;
use crate::store::Store as _;

pub const STRATEGY: Strategy = Strategy::of::<EndlessWatchdog>(
    28,
    "lock, watchdog never stops",
    Expectation::Exact,
    "SET NX PX, renewed forever; failed work never releases it",
)
.stuck_after_failure()
.with_findings(|addresses| Box::pin(findings(addresses)));

const LEASE: Duration = Duration::from_secs(1);

pub struct EndlessWatchdog;

/// A held lock.
struct Lock {
    owner: String,
    watchdog: AbortHandle,
}

async fn acquire(stock: &StockKey, attempt: &Attempt) -> Result<Lock> {
    let owner = unique()?;
    stock.lock(&owner, LEASE, attempt).await?;
    // Renews as long as the server runs; the lab's servers run until their strategy ends.
    let watchdog = tokio::spawn(renew(Arc::downgrade(&stock.app), stock.redis_key("lock"))).abort_handle();
    Ok(Lock { owner, watchdog })
}

async fn release(stock: &StockKey, lock: Lock) -> Result<()> {
    lock.watchdog.abort();
    stock.app.redis.run::<i64>(RELEASE.key(stock.redis_key("lock")).arg(&lock.owner)).await.map(drop)
}

async fn renew(app: Weak<App>, lock: String) {
    while let Some(app) = app.upgrade() {
        // The next round retries a failed renewal.
        let _ = app.redis.query::<i64>(cmd("PEXPIRE").arg(&lock).arg(LEASE.as_millis())).await;
        drop(app);
        sleep(LEASE / 3).await;
    }
}

impl StockManager for EndlessWatchdog {
    type Store = StockKey;

    async fn reduce(stock: &StockKey, attempt: &Attempt) -> Result<ReduceResult> {
        let lock = acquire(stock, attempt).await?;
        // The mistake: `?` returns early on an error, and the lock stays.
        let reduced = stock.read_then_write(attempt.quantity).await?;
        release(stock, lock).await?;
        Ok(reduced)
    }

    async fn return_units(stock: &StockKey, attempt: &Attempt) -> Result<()> {
        let lock = acquire(stock, attempt).await?;
        stock.return_units(attempt).await?;
        release(stock, lock).await
    }

    async fn hold(stock: &StockKey, attempt: &Attempt) -> Result<Held> {
        Ok(Box::new(acquire(stock, attempt).await?))
    }
}

/// Shows the effect of failing work on the next caller.
async fn findings(addresses: Addresses) -> Result<Vec<String>> {
    const TIMEOUT: Duration = Duration::from_secs(3);
    let apps = App::start_all(&addresses, 2)?;
    let key = unique()?;
    let first = StockKey::new(&apps[0], &key);
    let next = StockKey::new(&apps[1], &key);
    let failed = EndlessWatchdog::reduce(&first, &Attempt::new("first", 1, TIMEOUT)).await;
    if !matches!(failed, Err(StockError::Missing)) {
        return Err(StockError::Inconsistent(format!("the first attempt should fail: {failed:?}")));
    }
    next.set(5).await?;
    match EndlessWatchdog::reduce(&next, &Attempt::new("next", 1, TIMEOUT)).await {
        Err(StockError::TimedOut) => Ok(vec![format!(
            "after failed work the next caller waited {TIMEOUT:?} in vain for a lease of {LEASE:?}"
        )]),
        next => Err(StockError::Inconsistent(format!("the lock was released: {next:?}"))),
    }
}
