//! Lock with an owner, released by a script: random owner, expiry, compare-and-delete in one script,
//! exponential backoff with jitter, and a fencing token.
//!
//! Exact. The lock would not be enough: a holder slower than its lease continues to write. So each holder gets
//! a fencing token above all earlier tokens and sends it with reads and writes. The stock rejects a token
//! below the highest token so far. Reads also carry the token, because otherwise a late write could come
//! between a later holder's read and write. With a store that can compare tokens, the lock only saves work.
//! After a crash, callers wait for the rest of the lease. Cost: 4 round trips per grant, plus one per try of
//! the lock.

use std::sync::LazyLock;
use std::time::Duration;

use ::redis::{Script, cmd};
use tokio::time::Instant;

use crate::addresses::Addresses;
use crate::app::App;
use crate::backoff::{Backoff, unique};
use crate::error::{Result, StockError};
use crate::manager::{Attempt, Expectation, Held, ReduceResult, StockManager, Strategy};
use crate::stock_key::{StockKey, redis_key};

pub const STRATEGY: Strategy = Strategy::of::<OwnedLock>(
    18,
    "owned lock, release by script",
    Expectation::Exact,
    "owner, lease, compare-and-delete, backoff, fencing token",
)
.with_findings(|addresses| Box::pin(findings(addresses)));

/// TTL of a lock.
const LEASE: Duration = Duration::from_secs(1);

static ACQUIRE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("owned_lock_acquire.lua")));
/// Deletes a lock if it belongs to the caller.
pub static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("owned_lock_release.lua")));
static READ: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("owned_lock_read.lua")));
static WRITE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("owned_lock_write.lua")));

/// The lock without the stock.
pub struct Lock<'a> {
    app: &'a App,
    name: String,
    last_token: String,
}

pub struct Holder {
    owner: String,
    /// Fencing token, above those of all earlier holders.
    token: u64,
}

impl<'a> Lock<'a> {
    pub fn new(app: &'a App, key: &str) -> Self {
        Self { app, name: redis_key(key, "lock"), last_token: redis_key(key, "lock:token") }
    }

    /// Polls until it acquires the lock or `deadline` passes.
    pub async fn acquire(&self, mut backoff: Backoff, deadline: Instant) -> Result<Holder> {
        let owner = unique()?;
        let mut call = ACQUIRE.key(&self.name);
        call.key(&self.last_token).arg(&owner).arg(LEASE.as_millis().to_string());
        loop {
            match self.app.redis.run(&call).await? {
                0 => backoff.pause(deadline, &self.app.meter).await?,
                token => return Ok(Holder { owner, token }),
            }
        }
    }

    /// Releases the lock if the holder still has it.
    pub async fn release(&self, holder: &Holder) -> Result<()> {
        self.app.redis.run::<i64>(RELEASE.key(&self.name).arg(&holder.owner)).await.map(drop)
    }
}

/// A stock stored as a hash: the units, and the highest token that has read or written.
pub struct OwnedLock;

impl StockManager for OwnedLock {
    type Store = StockKey;

    async fn init(stock: &StockKey, units: u32) -> Result<()> {
        let mut set = cmd("HSET");
        stock.app.redis.query(set.arg(&stock.name).arg("units").arg(units).arg("token").arg(0)).await
    }

    async fn reduce(stock: &StockKey, attempt: &Attempt) -> Result<ReduceResult> {
        let lock = Lock::new(&stock.app, &stock.key);
        loop {
            let holder = lock.acquire(Backoff::for_lock(), attempt.deadline).await?;
            let reduced = work(stock, &holder, attempt).await;
            lock.release(&holder).await?;
            // The lease ended first: nothing was written, so the caller may start over.
            if !matches!(reduced, Err(StockError::LockLost)) {
                return reduced;
            }
        }
    }

    async fn return_units(stock: &StockKey, attempt: &Attempt) -> Result<()> {
        let lock = Lock::new(&stock.app, &stock.key);
        let holder = lock.acquire(Backoff::for_lock(), attempt.deadline).await?;
        let returned = async {
            let units = read(stock, &holder).await? + i64::from(attempt.quantity);
            write(stock, &holder, units).await
        };
        let returned = returned.await;
        lock.release(&holder).await?;
        returned
    }

    async fn get(stock: &StockKey) -> Result<i64> {
        let units: Option<i64> = stock.app.redis.query(cmd("HGET").arg(&stock.name).arg("units")).await?;
        units.ok_or(StockError::Missing)
    }

    async fn hold(stock: &StockKey, attempt: &Attempt) -> Result<Held> {
        let lock = Lock::new(&stock.app, &stock.key);
        Ok(Box::new(lock.acquire(Backoff::for_lock(), attempt.deadline).await?))
    }
}

async fn work(stock: &StockKey, holder: &Holder, attempt: &Attempt) -> Result<ReduceResult> {
    let left = read(stock, holder).await? - i64::from(attempt.quantity);
    if left < 0 {
        return Ok(ReduceResult::SoldOut);
    }
    write(stock, holder, left).await?;
    Ok(ReduceResult::Taken)
}

async fn read(stock: &StockKey, holder: &Holder) -> Result<i64> {
    match stock.app.redis.run::<Option<i64>>(READ.key(&stock.name).arg(holder.token)).await? {
        Some(-1) => Err(StockError::LockLost),
        units => units.ok_or(StockError::Missing),
    }
}

async fn write(stock: &StockKey, holder: &Holder, units: i64) -> Result<()> {
    match stock.app.redis.run::<i64>(WRITE.key(&stock.name).arg(holder.token).arg(units)).await? {
        0 => Err(StockError::LockLost),
        _ => Ok(()),
    }
}

/// Shows the write and release of a holder that sleeps past its lease.
async fn findings(addresses: Addresses) -> Result<Vec<String>> {
    let apps = App::start_all(&addresses, 2)?;
    let key = unique()?;
    let deadline = Instant::now() + LEASE * 5;
    let slow = &StockKey::new(&apps[0], &key);
    let slow_lock = Lock::new(&apps[0], &key);
    let quick = &StockKey::new(&apps[1], &key);
    let quick_lock = Lock::new(&apps[1], &key);
    OwnedLock::init(slow, 10).await?;
    let late = slow_lock.acquire(Backoff::for_lock(), deadline).await?;
    let left = read(slow, &late).await?;
    // Simulates a lease that ended while the holder slept.
    slow.delete_lock().await?;
    let next = quick_lock.acquire(Backoff::for_lock(), deadline).await?;
    let left_then = read(quick, &next).await?;
    let written = write(slow, &late, left - 1).await;
    slow_lock.release(&late).await?;
    let holds: Option<String> = apps[0].redis.query(cmd("GET").arg(&slow_lock.name)).await?;
    write(quick, &next, left_then - 1).await?;
    quick_lock.release(&next).await?;
    if !matches!(written, Err(StockError::LockLost)) || OwnedLock::get(slow).await? != 9 {
        return Err(StockError::Inconsistent("a late holder's write was accepted".to_owned()));
    }
    if holds.as_ref() != Some(&next.owner) {
        return Err(StockError::Inconsistent(
            "a late holder's release deleted another holder's lock".to_owned(),
        ));
    }
    Ok(vec![
        "a holder slower than its lease: the token rejected its write, and its release did not affect the next holder's lock"
            .to_owned(),
    ])
}
