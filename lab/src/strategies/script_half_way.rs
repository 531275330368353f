//! A script that fails half-way: it takes the stock, then adds the caller's payment, and fails if the amount
//! is not a number.
//!
//! Never oversells, but loses units. No other command runs during a script, but nothing rolls back: writes
//! before an error stay. "Atomic" is often understood as "all or nothing", but here it only means "without
//! interleaving". One in 16 callers writes the amount with a comma. Check everything that can fail before the
//! first write, as claimgate's script does. Cost: 1 round trip.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use ::redis::{ErrorKind, Script, cmd};

use crate::error::{Result, StockError};
use crate::manager::{Attempt, Expectation, ReduceResult, StockManager, Strategy};
use crate::stock_key::StockKey;
use crate::store::Store as _;

pub const STRATEGY: Strategy = Strategy::of::<ScriptHalfWay>(
    24,
    "Lua, fails after its first write",
    Expectation::LosesUnits,
    "takes the stock, then fails on another argument: nothing rolls back",
);

/// One in this number of callers writes the amount with a comma.
const COMMA_EVERY: usize = 16;

static TAKE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("script_half_way.lua")));

pub struct ScriptHalfWay;

impl StockManager for ScriptHalfWay {
    /// The stock, and the number of callers so far.
    type Store = (StockKey, AtomicUsize);

    async fn reduce((stock, callers): &Self::Store, attempt: &Attempt) -> Result<ReduceResult> {
        let caller = callers.fetch_add(1, Ordering::Relaxed) + 1;
        let amount = if caller.is_multiple_of(COMMA_EVERY) { "9,90" } else { "9.90" };
        let mut call = TAKE.key(&stock.name);
        call.key(stock.redis_key("paid")).arg(attempt.quantity).arg(amount);
        match stock.app.redis.run::<i64>(&call).await {
            Ok(1) => Ok(ReduceResult::Taken),
            Ok(_) => Ok(ReduceResult::SoldOut),
            // Typical error handling: "Something went wrong, nothing was taken."
            Err(StockError::Redis(error)) if is_script_error(&error) => Err(StockError::GaveUp),
            Err(error) => Err(error),
        }
    }

    async fn return_units((stock, _): &Self::Store, attempt: &Attempt) -> Result<()> {
        let mut less = cmd("INCRBYFLOAT");
        stock.app.redis.query::<()>(less.arg(stock.redis_key("paid")).arg("-9.90")).await?;
        stock.return_units(attempt).await
    }
}

/// Returns whether Redis reported an error in the script.
fn is_script_error(error: &::redis::RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension)
}
