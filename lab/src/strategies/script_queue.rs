//! Lua, grab with sync queue: once per user, the stock tested, the winner recorded, the unit deducted and the winner queued
//! for SQL, all in one script; a relay moves the queue into SQL.
//!
//! Exact, once per user. A winner is in the queue in the same step, so nothing is lost between Redis and SQL: the relay
//! commits first and takes off the queue then, and what it commits twice has the same primary key. Breaks with two relays on
//! one list (the second takes off what the first has not committed), and with an expiry or eviction on any of the keys, which
//! the script reports as inconsistent as far as it can see it. Costs 1 trip; SQL's work comes later, in portions.

use std::sync::Arc;
use std::time::Duration;

use ::redis::{Script, cmd, pipe};

use crate::app::{Addresses, App};
use crate::backoff::unique;
use crate::manager::{Attempt, Expectation, PerUser, Reduced, Result, StockError, StockManager, Strategy};
use crate::stock_row::some_time;

/// The row.
pub const STRATEGY: Strategy = Strategy::of::<ScriptQueue>(
    22,
    "script_queue",
    "Lua, grab with sync queue",
    Expectation::Exact,
    "winner recorded, deducted and queued for SQL in one script",
)
.per_user(PerUser::Once)
.with_findings(|addresses| Box::pin(findings(addresses)));

/// Winners that go into SQL together.
const PORTION: usize = 500;

/// See the module.
#[derive(Debug)]
pub struct ScriptQueue {
    app: Arc<App>,
    id: String,
    stock: String,
    winners: String,
    queue: String,
    grab: Script,
    undo: Script,
}

impl ScriptQueue {
    /// One portion from the queue's head into SQL; how many.
    async fn relay(&self) -> Result<usize> {
        let mut head = cmd("LRANGE");
        head.arg(&self.queue).arg(0).arg(PORTION - 1);
        let entries: Vec<String> = self.app.redis.ask(&head).await?;
        if entries.is_empty() {
            return Ok(0);
        }
        // "user units", one a line.
        let text = "INSERT INTO taker (id, user_id, units) \
                    SELECT $1, split_part(line, ' ', 1), split_part(line, ' ', 2)::BIGINT \
                    FROM unnest(string_to_array($2, E'\\n')) AS line ON CONFLICT DO NOTHING";
        self.app.sql.run(some_time(), text, &[(&self.id).into(), (&entries.join("\n")).into()]).await?;
        // Only now: a crash before this line commits the same winners again, which changes nothing.
        let mut taken_off = cmd("LTRIM");
        self.app.redis.ask::<()>(taken_off.arg(&self.queue).arg(entries.len()).arg(-1)).await?;
        Ok(entries.len())
    }
}

impl StockManager for ScriptQueue {
    async fn open(app: &Arc<App>, key: &str) -> Result<Self> {
        let name = |what: &str| format!("lab:{{{key}}}:{what}");
        Ok(Self {
            app: Arc::clone(app),
            id: key.to_owned(),
            stock: name("stock"),
            winners: name("winners"),
            queue: name("queue"),
            grab: Script::new(include_str!("script_queue_grab.lua")),
            undo: Script::new(include_str!("script_queue_undo.lua")),
        })
    }

    async fn init(&self, stock: u32) -> Result<()> {
        let mut write = pipe();
        write.atomic().set(&self.stock, stock).ignore().del(&self.winners).ignore().del(&self.queue).ignore();
        self.app.redis.ask_all(&write).await
    }

    async fn reduce(&self, attempt: &Attempt) -> Result<Reduced> {
        let mut call = self.grab.prepare_invoke();
        call.key(&self.stock).key(&self.winners).key(&self.queue);
        call.arg(&attempt.user).arg(attempt.quantity);
        match self.app.redis.run::<i64>(&call).await? {
            -1 => Ok(Reduced::HadAlready),
            -2 => Ok(Reduced::SoldOut),
            -3 => Err(StockError::Missing),
            -4 => Err(StockError::Inconsistent("the stock is not a whole number from 0 on".to_owned())),
            -5 => Err(StockError::Inconsistent("winners or queue are not what they should be".to_owned())),
            _ => Ok(Reduced::Taken),
        }
    }

    /// Off the winners, back to the stock, and out of SQL.
    async fn give_back(&self, attempt: &Attempt) -> Result<()> {
        // What is still queued goes first, or it would come into SQL after it was taken out.
        while self.relay().await? > 0 {}
        let mut call = self.undo.prepare_invoke();
        call.key(&self.stock).key(&self.winners).arg(&attempt.user);
        if self.app.redis.run::<i64>(&call).await? > 0 {
            let text = "DELETE FROM taker WHERE id = $1 AND user_id = $2";
            self.app.sql.run(some_time(), text, &[(&self.id).into(), (&attempt.user).into()]).await?;
        }
        Ok(())
    }

    async fn get(&self) -> Result<i64> {
        let units: Option<i64> = self.app.redis.ask(cmd("GET").arg(&self.stock)).await?;
        units.ok_or(StockError::Missing)
    }

    async fn finish(&self) -> Result<Option<i64>> {
        while self.relay().await? > 0 {}
        let text = "SELECT COALESCE(SUM(units), 0)::BIGINT FROM taker WHERE id = $1";
        let row = self.app.sql.row(some_time(), text, &[(&self.id).into()]).await?;
        Ok(row.map(|row| row[0]))
    }
}

/// The queue relayed to its end, after a relay died between its commit and its removal from the queue.
async fn findings(addresses: Addresses) -> Result<Vec<String>> {
    const STOCK: u32 = 700;
    let (app, key) = (&App::start_all(&addresses, 1)?[0], unique()?);
    let grab = ScriptQueue::open(app, &key).await?;
    grab.init(STOCK).await?;
    for number in 0..STOCK + 10 {
        grab.reduce(&Attempt::new(&format!("u{number}"), 1, Duration::from_secs(10))).await?;
    }
    let copy = format!("lab:{{{key}}}:copy");
    app.redis.ask::<()>(cmd("COPY").arg(&grab.queue).arg(&copy)).await?;
    grab.relay().await?;
    // As if that portion had been committed and never taken off.
    app.redis.ask::<()>(cmd("COPY").arg(&copy).arg(&grab.queue).arg("REPLACE")).await?;
    grab.finish().await?;
    let text = "SELECT COUNT(*), COUNT(DISTINCT user_id) FROM taker WHERE id = $1";
    let rows = app.sql.row(some_time(), text, &[(&key).into()]).await?.unwrap_or_default();
    let waiting: i64 = app.redis.ask(cmd("LLEN").arg(&grab.queue)).await?;
    if rows != [i64::from(STOCK), i64::from(STOCK)] || waiting != 0 {
        let found = format!("{STOCK} winners, rows and users in SQL {rows:?}, {waiting} still queued");
        return Err(StockError::Inconsistent(found));
    }
    app.stop().await;
    Ok(vec![format!(
        "{STOCK} winners relayed into SQL, 500 of them committed twice: {STOCK} rows, none missing, none double"
    )])
}
