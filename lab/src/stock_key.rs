//! A stock that is a number in Redis.

use std::sync::Arc;
use std::time::Duration;

use ::redis::cmd;
use tokio::time::Instant;

use crate::app::App;
use crate::attempt::Attempt;
use crate::backoff::Backoff;
use crate::error::{Result, StockError};
use crate::store::Store;

#[derive(Debug, Clone)]
pub struct StockKey {
    pub app: Arc<App>,
    pub key: String,
    /// The Redis key of the number.
    pub name: String,
}

/// Returns the Redis key `what` of the stock `key`; the hash tag keeps all of a stock's keys in one slot.
pub fn redis_key(key: &str, what: &str) -> String {
    format!("lab:{{{key}}}:{what}")
}

impl StockKey {
    pub fn new(app: &Arc<App>, key: &str) -> Self {
        Self { app: Arc::clone(app), key: key.to_owned(), name: redis_key(key, "stock") }
    }

    /// Returns the Redis key `what` of this stock.
    pub fn redis_key(&self, what: &str) -> String {
        redis_key(&self.key, what)
    }

    /// Adds units (or takes them if negative); returns the units left.
    pub async fn add(&self, units: i64) -> Result<i64> {
        self.app.redis.query(cmd("INCRBY").arg(&self.name).arg(units)).await
    }

    /// Acquires the key `lock` by `SET NX PX`; returns a time at which it was certainly held.
    pub async fn lock(&self, owner: &str, lease: Duration, attempt: &Attempt) -> Result<Instant> {
        let mut set = cmd("SET");
        set.arg(self.redis_key("lock")).arg(owner).arg("NX").arg("PX").arg(lease.as_millis());
        let mut backoff = Backoff::for_lock();
        while self.app.redis.query::<Option<String>>(&set).await?.is_none() {
            backoff.pause(attempt.deadline, &self.app.meter).await?;
        }
        Ok(Instant::now())
    }

    /// Deletes the key `lock`; returns whether it existed.
    pub async fn delete_lock(&self) -> Result<bool> {
        self.app.redis.query(cmd("DEL").arg(self.redis_key("lock"))).await
    }
}

impl Store for StockKey {
    fn open(app: &Arc<App>, key: &str) -> Result<Self> {
        Ok(Self::new(app, key))
    }

    async fn set(&self, units: i64) -> Result<()> {
        self.app.redis.query(cmd("SET").arg(&self.name).arg(units)).await
    }

    async fn get(&self) -> Result<i64> {
        let units: Option<i64> = self.app.redis.query(cmd("GET").arg(&self.name)).await?;
        units.ok_or(StockError::Missing)
    }

    async fn return_units(&self, attempt: &Attempt) -> Result<()> {
        self.add(attempt.quantity.into()).await.map(drop)
    }
}
