//! Lua, grab with sync queue. One script checks once per user and the stock, records the winner, deducts the
//! unit and queues the winner for SQL. A relay moves the queue into SQL.
//!
//! Exact, once per user. The winner is queued in the same step, so nothing is lost between Redis and SQL. The
//! relay commits first, then removes the entries; entries committed twice have the same primary key. Fails
//! with two relays on one list, because the second removes what the first has not committed, and if any key
//! expires or is evicted. The script reports such inconsistencies if it can detect them. Cost: 1 round trip;
//! SQL follows in batches.

use std::sync::LazyLock;
use std::time::Duration;

use ::redis::{Script, cmd, pipe};

use crate::addresses::Addresses;
use crate::app::App;
use crate::backoff::unique;
use crate::error::{Result, StockError};
use crate::manager::{Attempt, Expectation, PerUser, ReduceResult, StockManager, Strategy};
use crate::stock_key::StockKey;
use crate::stock_row::default_deadline;

pub const STRATEGY: Strategy = Strategy::of::<ScriptQueue>(
    22,
    "Lua, grab with sync queue",
    Expectation::Exact,
    "winner recorded, deducted and queued for SQL in one script",
)
.per_user(PerUser::Once)
.with_findings(|addresses| Box::pin(findings(addresses)));

/// Number of winners written to SQL together.
const BATCH: usize = 500;

static GRAB: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("script_queue_grab.lua")));
static UNDO: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("script_queue_undo.lua")));

pub struct ScriptQueue;

impl StockManager for ScriptQueue {
    type Store = StockKey;

    async fn init(stock: &StockKey, units: u32) -> Result<()> {
        let mut write = pipe();
        write.atomic().set(&stock.name, units).ignore();
        write.del(stock.redis_key("winners")).ignore().del(stock.redis_key("queue")).ignore();
        stock.app.redis.query_all(&write).await
    }

    async fn reduce(stock: &StockKey, attempt: &Attempt) -> Result<ReduceResult> {
        let mut call = GRAB.key(&stock.name);
        call.key(stock.redis_key("winners")).key(stock.redis_key("queue"));
        call.arg(&attempt.user).arg(attempt.quantity);
        match stock.app.redis.run::<i64>(&call).await? {
            -1 => Ok(ReduceResult::AlreadyTaken),
            -2 => Ok(ReduceResult::SoldOut),
            -3 => Err(StockError::Missing),
            -4 => Err(StockError::Inconsistent("the stock is not a non-negative integer".to_owned())),
            -5 => Err(StockError::Inconsistent("winners or queue have the wrong type".to_owned())),
            _ => Ok(ReduceResult::Taken),
        }
    }

    /// Removes the winner from Redis and SQL, and adds the units to the stock.
    async fn return_units(stock: &StockKey, attempt: &Attempt) -> Result<()> {
        // Relays queued winners first, otherwise they would reach SQL after the removal.
        while relay(stock).await? > 0 {}
        let mut call = UNDO.key(&stock.name);
        call.key(stock.redis_key("winners")).arg(&attempt.user);
        if stock.app.redis.run::<i64>(&call).await? > 0 {
            let text = "DELETE FROM taker WHERE id = $1 AND user_id = $2";
            stock
                .app
                .sql
                .run(default_deadline(), text, &[(&stock.key).into(), (&attempt.user).into()])
                .await?;
        }
        Ok(())
    }

    async fn finish(stock: &StockKey) -> Result<Option<i64>> {
        while relay(stock).await? > 0 {}
        let text = "SELECT COALESCE(SUM(units), 0)::BIGINT FROM taker WHERE id = $1";
        let row = stock.app.sql.row(default_deadline(), text, &[(&stock.key).into()]).await?;
        Ok(row.map(|row| row[0]))
    }
}

/// Moves one batch from the queue's head into SQL; returns its size.
async fn relay(stock: &StockKey) -> Result<usize> {
    let queue = stock.redis_key("queue");
    let entries: Vec<String> = stock.app.redis.query(cmd("LRANGE").arg(&queue).arg(0).arg(BATCH - 1)).await?;
    if entries.is_empty() {
        return Ok(0);
    }
    // One "user units" per line.
    let text = "INSERT INTO taker (id, user_id, units) \
                SELECT $1, split_part(line, ' ', 1), split_part(line, ' ', 2)::BIGINT \
                FROM unnest(string_to_array($2, E'\\n')) AS line ON CONFLICT DO NOTHING";
    let winners = entries.join("\n");
    stock.app.sql.run(default_deadline(), text, &[(&stock.key).into(), (&winners).into()]).await?;
    // A crash before this line commits the same winners again, which changes nothing.
    stock.app.redis.query::<()>(cmd("LTRIM").arg(&queue).arg(entries.len()).arg(-1)).await?;
    Ok(entries.len())
}

/// Relays the whole queue after a relay died between its commit and the removal from the queue.
async fn findings(addresses: Addresses) -> Result<Vec<String>> {
    const STOCK: u32 = 700;
    let (app, key) = (&App::start_all(&addresses, 1)?[0], unique()?);
    let stock = StockKey::new(app, &key);
    let queue = stock.redis_key("queue");
    let copy = stock.redis_key("copy");
    ScriptQueue::init(&stock, STOCK).await?;
    for number in 0..STOCK + 10 {
        let attempt = Attempt::new(&format!("u{number}"), 1, Duration::from_secs(10));
        ScriptQueue::reduce(&stock, &attempt).await?;
    }
    app.redis.query::<()>(cmd("COPY").arg(&queue).arg(&copy)).await?;
    relay(&stock).await?;
    // Simulates a batch that was committed but not removed.
    app.redis.query::<()>(cmd("COPY").arg(&copy).arg(&queue).arg("REPLACE")).await?;
    ScriptQueue::finish(&stock).await?;
    let text = "SELECT COUNT(*), COUNT(DISTINCT user_id) FROM taker WHERE id = $1";
    let rows = app.sql.row(default_deadline(), text, &[(&key).into()]).await?.unwrap_or_default();
    let queued: i64 = app.redis.query(cmd("LLEN").arg(&queue)).await?;
    if rows != [i64::from(STOCK), i64::from(STOCK)] || queued != 0 {
        let found = format!("{STOCK} winners, rows and users in SQL {rows:?}, {queued} still queued");
        return Err(StockError::Inconsistent(found));
    }
    app.stop().await;
    Ok(vec![format!(
        "{STOCK} winners relayed into SQL, 500 of them committed twice: {STOCK} rows, none missing or duplicate"
    )])
}
