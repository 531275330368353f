//! Lock with owner, released by script: a random owner, an expiry, compare-and-delete in one script, exponential back-off
//! with jitter, and a fencing token.
//!
//! Exact. The lock alone would not be: a holder slower than its lease goes on writing. So each holder gets a number higher
//! than all before, and read and write carry it: the stock refuses a lower one than it has seen. The read, too, or a late
//! write could come between another's read and write. That needs a store that can compare, and then the lock only saves
//! work. A crash costs the rest of the lease.
//! Costs 4 trips for a grant, and one for each look at the lock.

use std::sync::Arc;
use std::time::Duration;

use ::redis::{Script, cmd};
use tokio::time::Instant;

use crate::app::{Addresses, App};
use crate::backoff::{Backoff, unique};
use crate::manager::{Attempt, Expectation, Held, Reduced, Result, StockError, StockManager, Strategy};

/// The row.
pub const STRATEGY: Strategy = Strategy::of::<OwnedLock>(
    18,
    "owned_lock",
    "owned lock, release by script",
    Expectation::Exact,
    "owner, lease, compare-and-delete, back-off, fencing token",
)
.with_findings(|addresses| Box::pin(findings(addresses)));

/// A lock's length.
pub const LEASE: Duration = Duration::from_secs(1);

const ACQUIRE: &str = include_str!("owned_lock_acquire.lua");
/// Deletes a lock if it is the caller's.
pub const RELEASE: &str = include_str!("owned_lock_release.lua");
const READ: &str = include_str!("owned_lock_read.lua");
const WRITE: &str = include_str!("owned_lock_write.lua");

/// The lock by itself.
#[derive(Debug)]
pub struct Lock {
    app: Arc<App>,
    name: String,
    last_token: String,
    acquire: Script,
    release: Script,
}

/// Who holds it.
#[derive(Debug)]
pub struct Holder {
    owner: String,
    /// Higher than those of all holders before.
    pub token: u64,
}

impl Lock {
    /// The lock of the stock `key`.
    pub fn new(app: &Arc<App>, key: &str) -> Self {
        Self {
            app: Arc::clone(app),
            name: format!("lab:{{{key}}}:lock"),
            last_token: format!("lab:{{{key}}}:lock:token"),
            acquire: Script::new(ACQUIRE),
            release: Script::new(RELEASE),
        }
    }

    /// Waits for it until `deadline`.
    pub async fn acquire(&self, deadline: Instant) -> Result<Holder> {
        self.acquire_by(Backoff::for_lock(), deadline).await
    }

    /// The same, asking as often as `backoff` says.
    pub async fn acquire_by(&self, mut backoff: Backoff, deadline: Instant) -> Result<Holder> {
        let owner = unique()?;
        let mut call = self.acquire.prepare_invoke();
        call.key(&self.name).key(&self.last_token).arg(&owner).arg(LEASE.as_millis().to_string());
        loop {
            match self.app.redis.run(&call).await? {
                0 => backoff.pause(deadline, &self.app.meter).await?,
                token => return Ok(Holder { owner, token }),
            }
        }
    }

    /// Gives it up, if it is still the holder's.
    pub async fn release(&self, holder: &Holder) -> Result<()> {
        let mut call = self.release.prepare_invoke();
        call.key(&self.name).arg(&holder.owner);
        self.app.redis.run::<i64>(&call).await.map(drop)
    }
}

/// See the module.
#[derive(Debug)]
pub struct OwnedLock {
    lock: Lock,
    /// Hash: units, and the highest token that has read or written.
    stock: String,
    read: Script,
    write: Script,
}

impl OwnedLock {
    async fn work(&self, holder: &Holder, attempt: &Attempt) -> Result<Reduced> {
        let left = self.read(holder).await? - i64::from(attempt.quantity);
        if left < 0 {
            return Ok(Reduced::SoldOut);
        }
        self.write(holder, left).await?;
        Ok(Reduced::Taken)
    }

    async fn read(&self, holder: &Holder) -> Result<i64> {
        let mut call = self.read.prepare_invoke();
        call.key(&self.stock).arg(holder.token);
        match self.lock.app.redis.run::<Option<i64>>(&call).await? {
            Some(-1) => Err(StockError::LockLost),
            units => units.ok_or(StockError::Missing),
        }
    }

    async fn write(&self, holder: &Holder, units: i64) -> Result<()> {
        let mut call = self.write.prepare_invoke();
        call.key(&self.stock).arg(holder.token).arg(units);
        if self.lock.app.redis.run::<i64>(&call).await? == 0 {
            return Err(StockError::LockLost);
        }
        Ok(())
    }
}

impl StockManager for OwnedLock {
    async fn open(app: &Arc<App>, key: &str) -> Result<Self> {
        let stock = format!("lab:{{{key}}}:stock");
        Ok(Self { lock: Lock::new(app, key), stock, read: Script::new(READ), write: Script::new(WRITE) })
    }

    async fn init(&self, stock: u32) -> Result<()> {
        let mut set = cmd("HSET");
        self.lock.app.redis.ask(set.arg(&self.stock).arg("units").arg(stock).arg("token").arg(0)).await
    }

    async fn reduce(&self, attempt: &Attempt) -> Result<Reduced> {
        loop {
            let holder = self.lock.acquire(attempt.deadline).await?;
            let reduced = self.work(&holder, attempt).await;
            self.lock.release(&holder).await?;
            // Slower than its lease: nothing was written, so it may start over.
            if !matches!(reduced, Err(StockError::LockLost)) {
                return reduced;
            }
        }
    }

    async fn give_back(&self, attempt: &Attempt) -> Result<()> {
        let holder = self.lock.acquire(attempt.deadline).await?;
        let given = async {
            let units = self.read(&holder).await? + i64::from(attempt.quantity);
            self.write(&holder, units).await
        };
        let given = given.await;
        self.lock.release(&holder).await?;
        given
    }

    async fn get(&self) -> Result<i64> {
        let units: Option<i64> = self.lock.app.redis.ask(cmd("HGET").arg(&self.stock).arg("units")).await?;
        units.ok_or(StockError::Missing)
    }

    async fn hold(&self, attempt: &Attempt) -> Result<Held> {
        Ok(Box::new(self.lock.acquire(attempt.deadline).await?))
    }
}

/// A holder that sleeps past its lease, and what becomes of its write and its release.
async fn findings(addresses: Addresses) -> Result<Vec<String>> {
    let apps = App::start_all(&addresses, 2)?;
    let key = unique()?;
    let (slow, quick) = (OwnedLock::open(&apps[0], &key).await?, OwnedLock::open(&apps[1], &key).await?);
    slow.init(10).await?;
    let attempt = Attempt::new("quick", 1, LEASE * 5);
    let late = slow.lock.acquire(attempt.deadline).await?;
    let left = slow.read(&late).await?;
    // As if the lease had run out while the holder slept.
    slow.lock.app.redis.ask::<()>(cmd("DEL").arg(&slow.lock.name)).await?;
    let next = quick.lock.acquire(attempt.deadline).await?;
    let left_then = quick.read(&next).await?;
    let written = slow.write(&late, left - 1).await;
    slow.lock.release(&late).await?;
    let holds: Option<String> = slow.lock.app.redis.ask(cmd("GET").arg(&slow.lock.name)).await?;
    quick.write(&next, left_then - 1).await?;
    quick.lock.release(&next).await?;
    if !matches!(written, Err(StockError::LockLost)) || slow.get().await? != 9 {
        return Err(StockError::Inconsistent("a late holder's write came through".to_owned()));
    }
    if holds.as_ref() != Some(&next.owner) {
        return Err(StockError::Inconsistent("a late holder's release freed another's lock".to_owned()));
    }
    Ok(vec![
        "a holder slower than its lease: its write was refused by the token, its release freed no other lock"
            .to_owned(),
    ])
}
