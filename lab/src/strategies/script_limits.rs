//! Lua, three limits: user and day, user, total, in one script; 0 is granted, 1, 2 and 3 name the limit that refuses.
//!
//! Exact. The obvious script, and the baseline of claimgate's benchmark. What it lacks is what makes the difference in
//! service: a lost answer cannot be asked for again without a second grant, SQL never hears of anything, and the caller's
//! clock decides which day it is. Costs 1 trip.

use std::sync::Arc;

use ::redis::{Script, cmd, pipe};

use crate::app::App;
use crate::manager::{Attempt, Expectation, PerUser, Reduced, Result, StockError, StockManager, Strategy};

/// The row.
pub const STRATEGY: Strategy = Strategy::of::<ScriptLimits>(
    23,
    "script_limits",
    "Lua, three limits",
    Expectation::Exact,
    "user per day, user, total in one script",
)
.per_user(PerUser::Units(USER_MAX));

const USER_DAY_MAX: u32 = 3;
const USER_MAX: u32 = 3;

/// See the module.
#[derive(Debug)]
pub struct ScriptLimits {
    app: Arc<App>,
    today: String,
    ever: String,
    campaign: String,
    take: Script,
}

impl StockManager for ScriptLimits {
    async fn open(app: &Arc<App>, key: &str) -> Result<Self> {
        let name = |what: &str| format!("lab:{{{key}}}:{what}");
        let day = claimgate_core::clock::now().as_ms() / 86_400_000;
        Ok(Self {
            app: Arc::clone(app),
            today: name(&format!("users:{day}")),
            ever: name("users"),
            campaign: name("campaign"),
            take: Script::new(include_str!("script_limits.lua")),
        })
    }

    async fn init(&self, stock: u32) -> Result<()> {
        let mut write = pipe();
        write.atomic().del(&self.today).ignore().del(&self.ever).ignore();
        write.hset(&self.campaign, "total", stock).ignore().hset(&self.campaign, "taken", 0).ignore();
        self.app.redis.ask_all(&write).await
    }

    async fn reduce(&self, attempt: &Attempt) -> Result<Reduced> {
        let mut call = self.take.prepare_invoke();
        call.key(&self.today).key(&self.ever).key(&self.campaign);
        call.arg(&attempt.user).arg(attempt.quantity).arg(USER_DAY_MAX).arg(USER_MAX);
        match self.app.redis.run::<i64>(&call).await? {
            0 => Ok(Reduced::Taken),
            1 => Ok(Reduced::Limited("user per day")),
            2 => Ok(Reduced::Limited("user")),
            3 => Ok(Reduced::SoldOut),
            reply => Err(StockError::Inconsistent(format!("the script answered {reply}"))),
        }
    }

    async fn give_back(&self, attempt: &Attempt) -> Result<()> {
        let less = -i64::from(attempt.quantity);
        let mut write = pipe();
        write.atomic().hincr(&self.today, &attempt.user, less).ignore();
        write.hincr(&self.ever, &attempt.user, less).ignore().hincr(&self.campaign, "taken", less).ignore();
        self.app.redis.ask_all(&write).await
    }

    async fn get(&self) -> Result<i64> {
        let mut read = cmd("HMGET");
        read.arg(&self.campaign).arg("total").arg("taken");
        let (total, taken): (Option<i64>, Option<i64>) = self.app.redis.ask(&read).await?;
        Ok(total.ok_or(StockError::Missing)? - taken.unwrap_or(0))
    }
}
