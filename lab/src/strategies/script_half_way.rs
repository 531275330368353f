//! A script that fails half-way: it takes the stock, then writes down what the caller paid, and an amount that is no number ends
//! it there.
//!
//! Never over, and units are lost. A script runs alone, but nothing rolls back: what it wrote before the error stays written.
//! "Atomic" is often read as "all or nothing"; it only means that no other command comes in between. Here a caller in every 16
//! writes the amount with a comma. All that may be refused has to be tested before the first write, as claimgate's script does.
//! Costs 1 trip.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ::redis::{ErrorKind, Script, cmd};

use crate::app::App;
use crate::manager::{Attempt, Expectation, Reduced, Result, StockError, StockManager, Strategy};
use crate::stock_key::StockKey;

/// The row.
pub const STRATEGY: Strategy = Strategy::of::<ScriptHalfWay>(
    24,
    "script_half_way",
    "Lua, fails after its first write",
    Expectation::LosesUnits,
    "takes the stock, then fails on another argument: nothing rolls back",
);

/// Of so many callers one writes the amount with a comma.
const COMMA_EVERY: usize = 16;

/// See the module.
#[derive(Debug)]
pub struct ScriptHalfWay {
    stock: StockKey,
    paid: String,
    take: Script,
    callers: AtomicUsize,
}

impl StockManager for ScriptHalfWay {
    async fn open(app: &Arc<App>, key: &str) -> Result<Self> {
        Ok(Self {
            stock: StockKey::new(app, key),
            paid: format!("lab:{{{key}}}:paid"),
            take: Script::new(include_str!("script_half_way.lua")),
            callers: AtomicUsize::new(0),
        })
    }

    async fn init(&self, stock: u32) -> Result<()> {
        self.stock.set(stock.into()).await
    }

    async fn reduce(&self, attempt: &Attempt) -> Result<Reduced> {
        let caller = self.callers.fetch_add(1, Ordering::Relaxed) + 1;
        let amount = if caller.is_multiple_of(COMMA_EVERY) { "9,90" } else { "9.90" };
        let mut call = self.take.prepare_invoke();
        call.key(&self.stock.name).key(&self.paid).arg(attempt.quantity).arg(amount);
        match self.stock.app.redis.run::<i64>(&call).await {
            Ok(1) => Ok(Reduced::Taken),
            Ok(_) => Ok(Reduced::SoldOut),
            // "Something went wrong, nothing was taken."
            Err(StockError::Redis(error)) if is_of_the_script(&error) => Err(StockError::GaveUp),
            Err(error) => Err(error),
        }
    }

    async fn give_back(&self, attempt: &Attempt) -> Result<()> {
        self.stock.app.redis.ask::<()>(cmd("INCRBYFLOAT").arg(&self.paid).arg("-9.90")).await?;
        self.stock.add(attempt.quantity.into()).await.map(drop)
    }

    async fn get(&self) -> Result<i64> {
        self.stock.get().await
    }
}

/// Whether Redis answered that the script has failed.
fn is_of_the_script(error: &::redis::RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension)
}
