//! Lock with a watchdog that never stops: renewed while the process lives, whether the holder still works or not.
//!
//! Exact, and stuck after the first failure: where the work ends with an error the release is passed by, the watchdog goes on
//! renewing, and all others wait until the process is restarted. Worse than no expiry (15), since it happens without a crash.
//! A watchdog has to end with the work it guards, however that ends (19), and should renew for a bounded time only.
//! Costs 4 trips for a grant, and one for each look at the lock.

use std::sync::{Arc, Weak};
use std::time::Duration;

use ::redis::{Script, cmd};
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::owned_lock::RELEASE;
use crate::app::{Addresses, App};
use crate::backoff::{Backoff, unique};
use crate::manager::{Attempt, Expectation, Held, Reduced, Result, StockError, StockManager, Strategy};
use crate::stock_key::StockKey;

/// The row.
pub const STRATEGY: Strategy = Strategy::of::<EndlessWatchdog>(
    28,
    "endless_watchdog",
    "lock, watchdog never stops",
    Expectation::Exact,
    "SET NX PX, renewed for ever; work that fails never releases it",
)
.stuck_after_failure()
.with_findings(|addresses| Box::pin(findings(addresses)));

const LEASE: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub struct EndlessWatchdog {
    stock: StockKey,
    lock: String,
}

/// The lock as its holder has it.
#[derive(Debug)]
struct Lock {
    owner: String,
    watchdog: AbortHandle,
}

impl EndlessWatchdog {
    async fn acquire(&self, attempt: &Attempt) -> Result<Lock> {
        let (app, owner) = (&self.stock.app, unique()?);
        let mut set = cmd("SET");
        set.arg(&self.lock).arg(&owner).arg("NX").arg("PX").arg(LEASE.as_millis());
        let mut backoff = Backoff::for_lock();
        while app.redis.ask::<Option<String>>(&set).await?.is_none() {
            backoff.pause(attempt.deadline, &app.meter).await?;
        }
        // As long as the server runs, which the lab's do until their strategy is over.
        let watchdog = tokio::spawn(renew(Arc::downgrade(app), self.lock.clone())).abort_handle();
        Ok(Lock { owner, watchdog })
    }

    async fn release(&self, lock: Lock) -> Result<()> {
        lock.watchdog.abort();
        let script = Script::new(RELEASE);
        let mut release = script.key(&self.lock);
        self.stock.app.redis.run::<i64>(release.arg(&lock.owner)).await.map(drop)
    }
}

async fn renew(app: Weak<App>, lock: String) {
    while let Some(app) = app.upgrade() {
        // A renewal that fails is tried again.
        let _ = app.redis.ask::<i64>(cmd("PEXPIRE").arg(&lock).arg(LEASE.as_millis())).await;
        drop(app);
        sleep(LEASE / 3).await;
    }
}

impl StockManager for EndlessWatchdog {
    async fn open(app: &Arc<App>, key: &str) -> Result<Self> {
        Ok(Self { stock: StockKey::new(app, key), lock: format!("lab:{{{key}}}:lock") })
    }

    async fn init(&self, stock: u32) -> Result<()> {
        self.stock.set(stock.into()).await
    }

    async fn reduce(&self, attempt: &Attempt) -> Result<Reduced> {
        let lock = self.acquire(attempt).await?;
        // The mistake: an error leaves by the question mark, and the lock stays.
        let reduced = self.stock.read_then_write(attempt.quantity).await?;
        self.release(lock).await?;
        Ok(reduced)
    }

    async fn give_back(&self, attempt: &Attempt) -> Result<()> {
        let lock = self.acquire(attempt).await?;
        self.stock.add(attempt.quantity.into()).await?;
        self.release(lock).await
    }

    async fn get(&self) -> Result<i64> {
        self.stock.get().await
    }

    async fn hold(&self, attempt: &Attempt) -> Result<Held> {
        Ok(Box::new(self.acquire(attempt).await?))
    }
}

/// Work that fails, and who comes next.
async fn findings(addresses: Addresses) -> Result<Vec<String>> {
    const PATIENCE: Duration = Duration::from_secs(3);
    let apps = App::start_all(&addresses, 2)?;
    let key = unique()?;
    let (first, next) =
        (EndlessWatchdog::open(&apps[0], &key).await?, EndlessWatchdog::open(&apps[1], &key).await?);
    let failed = StockManager::reduce(&first, &Attempt::new("first", 1, PATIENCE)).await;
    if !matches!(failed, Err(StockError::Missing)) {
        return Err(StockError::Inconsistent(format!("there was a stock: {failed:?}")));
    }
    StockManager::init(&next, 5).await?;
    match StockManager::reduce(&next, &Attempt::new("next", 1, PATIENCE)).await {
        Err(StockError::TimedOut) => Ok(vec![format!(
            "after work that failed the next one waited {PATIENCE:?} in vain, for a lease of {LEASE:?}"
        )]),
        next => Err(StockError::Inconsistent(format!("the lock came free: {next:?}"))),
    }
}
