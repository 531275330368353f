//! Owner checked, then `DEL`: the lock holds a random owner, and a caller that releases it checks the owner first.
//!
//! Breaks in the gap: the check and the delete are two steps, and the lease may end between them. Then the `DEL` frees the
//! next holder's lock, and a third comes in beside it. Rarer than without an owner, and so found later.
//! Costs 5 trips for a grant, and one for each look at the lock.

use std::sync::Arc;
use std::time::Duration;

use ::redis::cmd;
use tokio::time::{Instant, sleep};

use crate::app::App;
use crate::backoff::{Backoff, unique};
use crate::manager::{Attempt, Expectation, Held, Reduced, Result, StockManager, Strategy};
use crate::stock_key::StockKey;

/// The row.
pub const STRATEGY: Strategy = Strategy::of::<CheckThenDelete>(
    17,
    "check_then_delete",
    "owner checked, then DEL",
    Expectation::WrongRelease,
    "SET NX PX owner, …, GET owner, DEL; some pause in the gap",
)
.with_slow_holders();

const LEASE: Duration = Duration::from_millis(100);
/// What a slow holder takes, between its check and its delete.
const SLOW: Duration = Duration::from_millis(160);

/// See the module.
#[derive(Debug)]
pub struct CheckThenDelete {
    stock: StockKey,
    lock: String,
}

#[derive(Debug)]
struct Holder {
    owner: String,
    /// When it was surely held.
    since: Instant,
}

impl CheckThenDelete {
    async fn acquire(&self, attempt: &Attempt) -> Result<Holder> {
        let app = &self.stock.app;
        let owner = unique()?;
        let mut set = cmd("SET");
        set.arg(&self.lock).arg(&owner).arg("NX").arg("PX").arg(LEASE.as_millis());
        let mut backoff = Backoff::for_lock();
        while app.redis.ask::<Option<String>>(&set).await?.is_none() {
            backoff.pause(attempt.deadline, &app.meter).await?;
        }
        Ok(Holder { owner, since: Instant::now() })
    }

    async fn release(&self, holder: &Holder, slow: bool) -> Result<()> {
        let app = &self.stock.app;
        let now: Option<String> = app.redis.ask(cmd("GET").arg(&self.lock)).await?;
        if now.as_ref() != Some(&holder.owner) {
            return Ok(());
        }
        if slow {
            sleep(SLOW).await;
        }
        let expired = holder.since.elapsed() > LEASE;
        let deleted: u64 = app.redis.ask(cmd("DEL").arg(&self.lock)).await?;
        // Its own had expired, and there was one: it was another caller's.
        if expired && deleted == 1 {
            app.meter.wrong_releases.add(1);
        }
        Ok(())
    }
}

impl StockManager for CheckThenDelete {
    async fn open(app: &Arc<App>, key: &str) -> Result<Self> {
        Ok(Self { stock: StockKey::new(app, key), lock: format!("lab:{{{key}}}:lock") })
    }

    async fn init(&self, stock: u32) -> Result<()> {
        self.stock.set(stock.into()).await
    }

    async fn reduce(&self, attempt: &Attempt) -> Result<Reduced> {
        let holder = self.acquire(attempt).await?;
        let reduced = self.stock.read_then_write(attempt.quantity).await;
        self.release(&holder, attempt.is_slow_holder()).await?;
        reduced
    }

    async fn give_back(&self, attempt: &Attempt) -> Result<()> {
        let holder = self.acquire(attempt).await?;
        let given = self.stock.add(attempt.quantity.into()).await;
        self.release(&holder, false).await?;
        given.map(drop)
    }

    async fn get(&self) -> Result<i64> {
        self.stock.get().await
    }

    async fn hold(&self, attempt: &Attempt) -> Result<Held> {
        Ok(Box::new(self.acquire(attempt).await?))
    }
}
