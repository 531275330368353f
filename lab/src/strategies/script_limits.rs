//! Lua, three limits: user and day, user, total, in one script. It returns 0 for a grant; 1, 2 and 3 name the
//! denying limit.
//!
//! Exact. The simplest script, and the baseline of claimgate's benchmark. Its gaps matter in production:
//! after a lost response, a retry may cause a second grant; SQL gets no claims; and the caller's clock
//! determines the day. Cost: 1 round trip.

use std::sync::LazyLock;

use ::redis::{Script, cmd, pipe};

use crate::error::{Result, StockError};
use crate::manager::{Attempt, Expectation, PerUser, ReduceResult, StockManager, Strategy};
use crate::stock_key::StockKey;

pub const STRATEGY: Strategy = Strategy::of::<ScriptLimits>(
    23,
    "Lua, three limits",
    Expectation::Exact,
    "user per day, user, total in one script",
)
.per_user(PerUser::Units(USER_MAX));

const USER_DAY_MAX: u32 = 3;
const USER_MAX: u32 = 3;

static TAKE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("script_limits.lua")));

pub struct ScriptLimits;

impl StockManager for ScriptLimits {
    type Store = StockKey;

    async fn init(stock: &StockKey, units: u32) -> Result<()> {
        let [today, ever, campaign] = keys(stock);
        let mut write = pipe();
        write.atomic().del(today).ignore().del(ever).ignore();
        write.hset(&campaign, "total", units).ignore().hset(&campaign, "taken", 0).ignore();
        stock.app.redis.query_all(&write).await
    }

    async fn reduce(stock: &StockKey, attempt: &Attempt) -> Result<ReduceResult> {
        let mut call = TAKE.key(&keys(stock));
        call.arg(&attempt.user).arg(attempt.quantity).arg(USER_DAY_MAX).arg(USER_MAX);
        match stock.app.redis.run::<i64>(&call).await? {
            0 => Ok(ReduceResult::Taken),
            1 => Ok(ReduceResult::Limited("user per day")),
            2 => Ok(ReduceResult::Limited("user")),
            3 => Ok(ReduceResult::SoldOut),
            reply => Err(StockError::Inconsistent(format!("unexpected reply of the script: {reply}"))),
        }
    }

    async fn return_units(stock: &StockKey, attempt: &Attempt) -> Result<()> {
        let [today, ever, campaign] = keys(stock);
        let less = -i64::from(attempt.quantity);
        let mut write = pipe();
        write.atomic().hincr(today, &attempt.user, less).ignore();
        write.hincr(ever, &attempt.user, less).ignore().hincr(campaign, "taken", less).ignore();
        stock.app.redis.query_all(&write).await
    }

    async fn get(stock: &StockKey) -> Result<i64> {
        let [_, _, campaign] = keys(stock);
        let mut read = cmd("HMGET");
        read.arg(campaign).arg("total").arg("taken");
        let (total, taken): (Option<i64>, Option<i64>) = stock.app.redis.query(&read).await?;
        Ok(total.ok_or(StockError::Missing)? - taken.unwrap_or(0))
    }
}

/// Returns the keys of units by user today, units by user, and the campaign.
fn keys(stock: &StockKey) -> [String; 3] {
    let day = claimgate_core::clock::now().as_ms() / 86_400_000;
    [format!("users:{day}"), "users".to_owned(), "campaign".to_owned()].map(|what| stock.redis_key(&what))
}
