//! Lua, one stock: a script tests and takes in one step; the stock is loaded on first use.
//!
//! Exact: no other command runs during a script. If the stock is missing, one instance loads it from SQL with
//! a callback, under a lock, after checking again; the others wait. Fails if the key is lost: after an expiry
//! or eviction, the next instance loads the full stock and sells it again. For the same reason, adding to a
//! missing stock needs an expiry: a partial number must not pass for the whole stock. Cost: 1 round trip.

use std::sync::LazyLock;
use std::time::Duration;

use ::redis::{Script, cmd};
use claimgate_core::store::redis::lease::LeaseError;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::addresses::Addresses;
use crate::app::App;
use crate::backoff::{Backoff, unique};
use crate::error::{Result, StockError};
use crate::manager::{Attempt, Expectation, Held, ReduceResult, StockManager, Strategy};
use crate::stock_key::StockKey;
use crate::stock_row::default_deadline;
use crate::store::Store as _;

pub const STRATEGY: Strategy = Strategy::of::<ScriptStock>(
    21,
    "Lua, one stock, loaded when needed",
    Expectation::Exact,
    "one script checks and decrements the stock; one instance loads it while the others wait",
)
.with_findings(|addresses| Box::pin(findings(addresses)));

/// Time limit of a load.
const LEASE: Duration = Duration::from_secs(1);

const UNLIMITED: i64 = -1;
const NOT_ENOUGH: i64 = -2;
const NOT_INITIALIZED: i64 = -3;

/// Number of instances that start together.
const INSTANCES: usize = 50;

static TAKE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("script_stock_take.lua")));
static ADD: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("script_stock_add.lua")));

pub struct ScriptStock;

impl StockManager for ScriptStock {
    type Store = StockKey;

    /// Writes only the catalogue: the first caller loads the stock.
    async fn init(stock: &StockKey, units: u32) -> Result<()> {
        let text =
            "INSERT INTO catalogue (id, units) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET units = $2";
        stock.app.sql.run(default_deadline(), text, &[(&stock.key).into(), units.into()]).await.map(drop)
    }

    async fn reduce(stock: &StockKey, attempt: &Attempt) -> Result<ReduceResult> {
        loop {
            match stock.app.redis.run(TAKE.key(&stock.name).arg(attempt.quantity)).await? {
                NOT_ENOUGH => return Ok(ReduceResult::SoldOut),
                NOT_INITIALIZED => load(stock, attempt.deadline).await?,
                left if left >= UNLIMITED => return Ok(ReduceResult::Taken),
                reply => {
                    return Err(StockError::Inconsistent(format!("unexpected reply of the script: {reply}")));
                }
            }
        }
    }

    async fn return_units(stock: &StockKey, attempt: &Attempt) -> Result<()> {
        while add(stock, attempt.quantity, Duration::ZERO).await? == NOT_INITIALIZED {
            load(stock, attempt.deadline).await?;
        }
        Ok(())
    }

    async fn get(stock: &StockKey) -> Result<i64> {
        match stock.get().await {
            Err(StockError::Missing) => {
                load(stock, default_deadline()).await?;
                stock.get().await
            }
            got => got,
        }
    }

    /// Acquires the lock for loading the stock, because other callers wait for the holder of this lock.
    async fn hold(stock: &StockKey, attempt: &Attempt) -> Result<Held> {
        let owner = stock.app.owner().await?;
        Ok(Box::new(stock.app.lock(&owner, &load_lock(stock), LEASE, attempt.deadline).await?))
    }
}

/// Adds to the stock; returns the units left. Adds to a missing stock only if the expiry is above 0,
/// otherwise returns -3.
async fn add(stock: &StockKey, quantity: u32, expiry: Duration) -> Result<i64> {
    stock.app.redis.run(ADD.key(&stock.name).arg(quantity).arg(expiry.as_millis().to_string())).await
}

fn load_lock(stock: &StockKey) -> String {
    format!("lab-load-{}", stock.key)
}

/// Ensures that the stock exists: loads it, or waits until another caller has loaded it.
async fn load(stock: &StockKey, deadline: Instant) -> Result<()> {
    let app = &stock.app;
    let mut backoff = Backoff::for_lock();
    loop {
        match app.owner().await?.try_acquire(&load_lock(stock), LEASE).await {
            Ok(lease) => {
                // Another caller may have loaded it in the meantime.
                let loaded =
                    if is_loaded(stock).await? { Ok(()) } else { load_from_catalogue(stock, deadline).await };
                lease.release().await?;
                return loaded;
            }
            Err(LeaseError::Taken) => backoff.pause(deadline, &app.meter).await?,
            Err(error) => return Err(error.into()),
        }
        if is_loaded(stock).await? {
            return Ok(());
        }
    }
}

async fn is_loaded(stock: &StockKey) -> Result<bool> {
    stock.app.redis.query(cmd("EXISTS").arg(&stock.name)).await
}

/// Reads the catalogue and loads the stock; this is the callback of a missing stock.
async fn load_from_catalogue(stock: &StockKey, deadline: Instant) -> Result<()> {
    let app = &stock.app;
    let text = "SELECT units FROM catalogue WHERE id = $1";
    let row = app.sql.row(deadline, text, &[(&stock.key).into()]).await?;
    let units = row.ok_or(StockError::Missing)?[0];
    app.meter.loads.add(1);
    // `NX`, because a loader slower than its lease must not restore units that have been sold since.
    app.redis.query::<Option<String>>(cmd("SET").arg(&stock.name).arg(units).arg("NX")).await.map(drop)
}

async fn findings(addresses: Addresses) -> Result<Vec<String>> {
    let loads = start_together(&addresses).await?;
    let resold = sell_with_expiry(&addresses).await?;
    let add = add_to_missing(&addresses).await?;
    Ok(vec![loads, resold, add])
}

/// Starts many instances concurrently; each takes a unit of a stock that is not loaded.
async fn start_together(addresses: &Addresses) -> Result<String> {
    let (apps, key) = (App::start_all(addresses, INSTANCES)?, unique()?);
    let first = StockKey::new(&apps[0], &key);
    ScriptStock::init(&first, 40).await?;
    let mut tasks = JoinSet::new();
    for (number, app) in apps.iter().enumerate() {
        let stock = StockKey::new(app, &key);
        let attempt = Attempt::new(&format!("u{number}"), 1, LEASE * 10);
        tasks.spawn(async move { ScriptStock::reduce(&stock, &attempt).await });
    }
    let answers: Vec<ReduceResult> = tasks.join_all().await.into_iter().collect::<Result<_>>()?;
    let (granted, loads) =
        (answers.iter().filter(|one| **one == ReduceResult::Taken).count(), apps[0].meter.loads.get());
    if (granted, loads, first.get().await?) != (40, 1, 0) {
        let found =
            format!("{INSTANCES} instances loaded the stock {loads} times and granted {granted} of 40");
        return Err(StockError::Inconsistent(found));
    }
    for app in &apps {
        app.stop().await;
    }
    Ok(format!(
        "{INSTANCES} instances started together: one loaded the stock, {granted} of 40 units were granted"
    ))
}

/// Shows the effect of an expiry on the stock.
async fn sell_with_expiry(addresses: &Addresses) -> Result<String> {
    let app = &App::start_all(addresses, 1)?[0];
    let stock = StockKey::new(app, &unique()?);
    ScriptStock::init(&stock, 10).await?;
    let mut granted = 0;
    for number in 0..40 {
        let attempt = Attempt::new(&format!("u{number}"), 1, LEASE * 10);
        granted += u32::from(ScriptStock::reduce(&stock, &attempt).await? == ReduceResult::Taken);
        if number == 20 {
            app.redis.query::<()>(cmd("PEXPIRE").arg(&stock.name).arg(20)).await?;
            sleep(Duration::from_millis(60)).await;
        }
    }
    if granted != 20 {
        let found = format!("a stock of 10 that expired once was sold {granted} times, not 20");
        return Err(StockError::Inconsistent(found));
    }
    Ok("an expiry on the stock loses it: 10 units, expired once, were loaded again and sold as 20".to_owned())
}

/// Adds to a missing stock.
async fn add_to_missing(addresses: &Addresses) -> Result<String> {
    let app = &App::start_all(addresses, 1)?[0];
    let stock = StockKey::new(app, &unique()?);
    let refused = add(&stock, 5, Duration::ZERO).await? == NOT_INITIALIZED;
    let added = add(&stock, 5, LEASE).await? == 5;
    let left: i64 = app.redis.query(cmd("PTTL").arg(&stock.name)).await?;
    if !refused || !added || left <= 0 {
        return Err(StockError::Inconsistent(
            "units were added to a missing stock without an expiry".to_owned(),
        ));
    }
    Ok("adding to a missing stock without an expiry was rejected".to_owned())
}
