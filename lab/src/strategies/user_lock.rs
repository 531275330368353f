//! Per-user lock that fails at once, and a conditional update: a user's second try is refused while the first is in progress;
//! a row for each user keeps it to once for ever.
//!
//! Exact, once per user. The lock only saves the database the double click: what makes it once is the row's primary key, in
//! one transaction with the update. A crash keeps that one user out until the lock expires, and no other user.
//! Costs 2 trips to Redis and 4 to SQL for a grant.

use std::sync::Arc;
use std::time::Duration;

use ::redis::{Script, cmd};

use super::owned_lock::RELEASE;
use crate::app::App;
use crate::backoff::unique;
use crate::manager::{Attempt, Expectation, Held, PerUser, Reduced, Result, StockManager, Strategy};
use crate::stock_row::{StockRow, some_time};

/// The row.
pub const STRATEGY: Strategy = Strategy::of::<UserLock>(
    10,
    "user_lock",
    "per-user lock + conditional update",
    Expectation::Exact,
    "a user's second try fails at once; once per user by a row",
)
.per_user(PerUser::Once);

const LEASE: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug)]
pub struct UserLock(StockRow);

impl UserLock {
    fn lock_of(&self, user: &str) -> String {
        format!("lab:{{{}}}:user:{user}", self.0.id)
    }

    async fn try_lock(&self, user: &str, owner: &str) -> Result<bool> {
        let mut set = cmd("SET");
        set.arg(self.lock_of(user)).arg(owner).arg("NX").arg("PX").arg(LEASE.as_millis());
        Ok(self.0.app.redis.ask::<Option<String>>(&set).await?.is_some())
    }

    async fn take(&self, attempt: &Attempt) -> Result<Reduced> {
        let (id, quantity) = (&self.0.id, attempt.quantity);
        let mut transaction = self.0.app.sql.begin(attempt.deadline).await?;
        // The user's row first: the stock's row, which all want, is then held for one statement and the commit.
        let taker = "INSERT INTO taker (id, user_id, units) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
        if transaction.run(taker, &[id.into(), (&attempt.user).into(), quantity.into()]).await? == 0 {
            transaction.roll_back().await?;
            return Ok(Reduced::HadAlready);
        }
        let stock = "UPDATE stock SET units = units - $2 WHERE id = $1 AND units >= $2";
        if transaction.run(stock, &[id.into(), quantity.into()]).await? == 0 {
            transaction.roll_back().await?;
            return Ok(Reduced::SoldOut);
        }
        transaction.commit().await?;
        Ok(Reduced::Taken)
    }
}

impl StockManager for UserLock {
    async fn open(app: &Arc<App>, key: &str) -> Result<Self> {
        Ok(Self(StockRow::new(app, key)))
    }

    async fn init(&self, stock: u32) -> Result<()> {
        self.0.init(stock).await
    }

    async fn reduce(&self, attempt: &Attempt) -> Result<Reduced> {
        let owner = unique()?;
        if !self.try_lock(&attempt.user, &owner).await? {
            return Ok(Reduced::HadAlready);
        }
        let reduced = self.take(attempt).await;
        let script = Script::new(RELEASE);
        let mut release = script.key(self.lock_of(&attempt.user));
        self.0.app.redis.run::<i64>(release.arg(&owner)).await?;
        reduced
    }

    async fn give_back(&self, attempt: &Attempt) -> Result<()> {
        let mut transaction = self.0.app.sql.begin(some_time()).await?;
        let (id, user) = ((&self.0.id).into(), (&attempt.user).into());
        let gone = transaction.run("DELETE FROM taker WHERE id = $1 AND user_id = $2", &[id, user]).await?;
        // Given back twice, it comes back once.
        if gone == 1 {
            let stock = "UPDATE stock SET units = units + $2 WHERE id = $1";
            transaction.run(stock, &[id, attempt.quantity.into()]).await?;
        }
        transaction.commit().await
    }

    async fn get(&self) -> Result<i64> {
        self.0.get().await
    }

    async fn hold(&self, attempt: &Attempt) -> Result<Held> {
        Ok(Box::new(self.try_lock(&attempt.user, &unique()?).await?))
    }
}
