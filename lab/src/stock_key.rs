//! A stock that is a number in Redis: what all strategies do with it in the same way.

use std::sync::Arc;

use ::redis::cmd;

use crate::app::App;
use crate::manager::{Reduced, Result, StockError};

/// One key.
#[derive(Debug)]
pub struct StockKey {
    /// The server whose connection is used.
    pub app: Arc<App>,
    /// Its name.
    pub name: String,
}

impl StockKey {
    /// The stock `key`; the hash tag keeps all of a stock's keys in one slot.
    pub fn new(app: &Arc<App>, key: &str) -> Self {
        Self { app: Arc::clone(app), name: format!("lab:{{{key}}}:stock") }
    }

    /// Sets its units.
    pub async fn set(&self, units: i64) -> Result<()> {
        self.app.redis.ask(cmd("SET").arg(&self.name).arg(units)).await
    }

    /// Its units.
    pub async fn get(&self) -> Result<i64> {
        let units: Option<i64> = self.app.redis.ask(cmd("GET").arg(&self.name)).await?;
        units.ok_or(StockError::Missing)
    }

    /// More of them, or fewer; what is left.
    pub async fn add(&self, units: i64) -> Result<i64> {
        self.app.redis.ask(cmd("INCRBY").arg(&self.name).arg(units)).await
    }

    /// Reads, tests, and writes what it has worked out: right only as long as no other caller does the same at once.
    pub async fn read_then_write(&self, quantity: u32) -> Result<Reduced> {
        let left = self.get().await? - i64::from(quantity);
        if left < 0 {
            return Ok(Reduced::SoldOut);
        }
        self.set(left).await?;
        Ok(Reduced::Taken)
    }
}
