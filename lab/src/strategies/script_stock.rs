//! Lua, one stock: a script tests and takes in one step; the stock is loaded when first asked for.
//!
//! Exact: nothing comes between a script's commands. When the stock is not there, one instance loads it from SQL through a
//! callback, under a lock, after a second look; the others wait. Breaks when the key is lost: an expiry on the stock, or an
//! eviction, and the next one loads the full stock again and sells it a second time. Adding to a missing stock needs
//! an expiry for that very reason: a number that only looks like the stock must not stay.
//! Costs 1 trip.

use std::sync::Arc;
use std::time::Duration;

use ::redis::{Script, cmd};
use claimgate_core::store::redis::lease::LeaseError;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::app::{Addresses, App};
use crate::backoff::{Backoff, unique};
use crate::manager::{Attempt, Expectation, Held, Reduced, Result, StockError, StockManager, Strategy};
use crate::stock_key::StockKey;
use crate::stock_row::some_time;

/// The row.
pub const STRATEGY: Strategy = Strategy::of::<ScriptStock>(
    21,
    "script_stock",
    "Lua, one stock, loaded when needed",
    Expectation::Exact,
    "one script tests and takes; one instance loads, others wait",
)
.with_findings(|addresses| Box::pin(findings(addresses)));

/// For how long the one that loads may take.
const LEASE: Duration = Duration::from_secs(1);

const UNLIMITED: i64 = -1;
const NOT_ENOUGH: i64 = -2;
const NOT_INITIALISED: i64 = -3;

/// Instances that start together.
pub const INSTANCES: usize = 50;

/// See the module.
#[derive(Debug)]
pub struct ScriptStock {
    stock: StockKey,
    id: String,
    take: Script,
    add: Script,
}

impl ScriptStock {
    async fn take(&self, quantity: u32) -> Result<i64> {
        let mut call = self.take.prepare_invoke();
        call.key(&self.stock.name).arg(quantity);
        self.stock.app.redis.run(&call).await
    }

    /// Adds to the stock; to one that is not there only with an expiry. What is left, or -3 when it is not there.
    pub async fn add(&self, quantity: u32, expiry: Option<Duration>) -> Result<i64> {
        let mut call = self.add.prepare_invoke();
        call.key(&self.stock.name)
            .arg(quantity)
            .arg(expiry.map_or(0, |expiry| expiry.as_millis()).to_string());
        self.stock.app.redis.run(&call).await
    }

    fn lock(&self) -> String {
        format!("lab-load-{}", self.id)
    }

    /// Sees to it that the stock is there: loads it, or waits until another caller has.
    async fn load(&self, deadline: Instant) -> Result<()> {
        let app = &self.stock.app;
        let mut backoff = Backoff::for_lock();
        loop {
            match app.owner().await?.try_acquire(&self.lock(), LEASE).await {
                Ok(lease) => {
                    // Another caller may have loaded it since this caller looked.
                    let loaded = if self.is_there().await? { Ok(()) } else { self.call_back(deadline).await };
                    lease.release().await?;
                    return loaded;
                }
                Err(LeaseError::Taken) => backoff.pause(deadline, &app.meter).await?,
                Err(error) => return Err(error.into()),
            }
            if self.is_there().await? {
                return Ok(());
            }
        }
    }

    async fn is_there(&self) -> Result<bool> {
        self.stock.app.redis.ask(cmd("EXISTS").arg(&self.stock.name)).await
    }

    /// The callback: what the catalogue says.
    async fn call_back(&self, deadline: Instant) -> Result<()> {
        let app = &self.stock.app;
        let text = "SELECT units FROM catalogue WHERE id = $1";
        let row = app.sql.row(deadline, text, &[(&self.id).into()]).await?;
        let units = row.ok_or(StockError::Missing)?[0];
        app.meter.loads.add(1);
        // A loader slower than its lease must not put back what has been sold since.
        app.redis.ask::<Option<String>>(cmd("SET").arg(&self.stock.name).arg(units).arg("NX")).await.map(drop)
    }
}

impl StockManager for ScriptStock {
    async fn open(app: &Arc<App>, key: &str) -> Result<Self> {
        Ok(Self {
            stock: StockKey::new(app, key),
            id: key.to_owned(),
            take: Script::new(include_str!("script_stock_take.lua")),
            add: Script::new(include_str!("script_stock_add.lua")),
        })
    }

    /// Into the catalogue only: the first caller to take loads it.
    async fn init(&self, stock: u32) -> Result<()> {
        let text =
            "INSERT INTO catalogue (id, units) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET units = $2";
        self.stock.app.sql.run(some_time(), text, &[(&self.id).into(), stock.into()]).await.map(drop)
    }

    async fn reduce(&self, attempt: &Attempt) -> Result<Reduced> {
        loop {
            match self.take(attempt.quantity).await? {
                NOT_ENOUGH => return Ok(Reduced::SoldOut),
                NOT_INITIALISED => self.load(attempt.deadline).await?,
                left if left >= UNLIMITED => return Ok(Reduced::Taken),
                reply => return Err(StockError::Inconsistent(format!("the script answered {reply}"))),
            }
        }
    }

    async fn give_back(&self, attempt: &Attempt) -> Result<()> {
        while self.add(attempt.quantity, None).await? == NOT_INITIALISED {
            self.load(attempt.deadline).await?;
        }
        Ok(())
    }

    async fn get(&self) -> Result<i64> {
        match self.stock.get().await {
            Err(StockError::Missing) => {
                self.load(some_time()).await?;
                self.stock.get().await
            }
            got => got,
        }
    }

    /// The holder that matters is the one that loads: others wait for it.
    async fn hold(&self, attempt: &Attempt) -> Result<Held> {
        let owner = self.stock.app.owner().await?;
        Ok(Box::new(self.stock.app.lock(&owner, &self.lock(), LEASE, attempt.deadline).await?))
    }
}

async fn findings(addresses: Addresses) -> Result<Vec<String>> {
    let loads = start_together(&addresses).await?;
    let again = sell_with_expiry(&addresses).await?;
    let add = add_to_missing(&addresses).await?;
    Ok(vec![loads, again, add])
}

/// Many instances start at once and take a unit each of a stock that is not loaded yet.
async fn start_together(addresses: &Addresses) -> Result<String> {
    let (apps, key) = (App::start_all(addresses, INSTANCES)?, unique()?);
    let first = ScriptStock::open(&apps[0], &key).await?;
    first.init(40).await?;
    let mut tasks = JoinSet::new();
    for (number, app) in apps.iter().cloned().enumerate() {
        let (key, attempt) = (key.clone(), Attempt::new(&format!("u{number}"), 1, LEASE * 10));
        tasks.spawn(async move { ScriptStock::open(&app, &key).await?.reduce(&attempt).await });
    }
    let answers: Vec<Reduced> = tasks.join_all().await.into_iter().collect::<Result<_>>()?;
    let (granted, loads) =
        (answers.iter().filter(|one| **one == Reduced::Taken).count(), apps[0].meter.loads.get());
    if (granted, loads, first.get().await?) != (40, 1, 0) {
        let found =
            format!("{INSTANCES} instances loaded the stock {loads} times and granted {granted} of 40");
        return Err(StockError::Inconsistent(found));
    }
    for app in &apps {
        app.stop().await;
    }
    Ok(format!(
        "{INSTANCES} instances started together: one loaded the stock, {granted} of 40 units went out"
    ))
}

/// What an expiry on the stock does.
async fn sell_with_expiry(addresses: &Addresses) -> Result<String> {
    let (app, key) = (&App::start_all(addresses, 1)?[0], unique()?);
    let stock = ScriptStock::open(app, &key).await?;
    stock.init(10).await?;
    let mut granted = 0;
    for number in 0..40 {
        let attempt = Attempt::new(&format!("u{number}"), 1, LEASE * 10);
        granted += u32::from(stock.reduce(&attempt).await? == Reduced::Taken);
        if number == 20 {
            app.redis.ask::<()>(cmd("PEXPIRE").arg(&stock.stock.name).arg(20)).await?;
            sleep(Duration::from_millis(60)).await;
        }
    }
    if granted != 20 {
        let found = format!("a stock of 10 that expired once was sold {granted} times, not 20");
        return Err(StockError::Inconsistent(found));
    }
    Ok("an expiry on the stock loses it: 10 units, expired once, were loaded again and sold as 20".to_owned())
}

/// Adding to a stock that is not there.
async fn add_to_missing(addresses: &Addresses) -> Result<String> {
    let (app, key) = (&App::start_all(addresses, 1)?[0], unique()?);
    let stock = ScriptStock::open(app, &key).await?;
    let refused = stock.add(5, None).await? == NOT_INITIALISED;
    let added = stock.add(5, Some(LEASE)).await? == 5;
    let left: i64 = app.redis.ask(cmd("PTTL").arg(&stock.stock.name)).await?;
    if !refused || !added || left <= 0 {
        return Err(StockError::Inconsistent("units were added to a missing stock for good".to_owned()));
    }
    Ok("adding to a missing stock was refused without an expiry".to_owned())
}
