//! Effect of a holder's crash on the next caller: a process takes the lock or the transaction and is killed.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use support::process::{Process, command};
use tokio::time::sleep;

use crate::addresses::Addresses;
use crate::app::App;
use crate::error::StockError;
use crate::manager::{Attempt, ReduceResult, Strategy};
use crate::servers::Servers;
use crate::stock_key::redis_key;

/// Timeout of the next caller, after which the lock counts as stuck.
pub const WAIT_MAX: Duration = Duration::from_secs(3);
/// Timeout for the holder to acquire its lock.
const HOLD_TIMEOUT: Duration = Duration::from_secs(20);
const STOCK: u32 = 10;

/// Time until the next caller could continue after the holder's crash.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum AfterCrash {
    /// Milliseconds until it continued.
    Ms(f64),
    /// It did not continue within [`WAIT_MAX`].
    Never,
}

/// Runs `program`, the lab itself, as a holder, kills it, and measures the next caller's wait.
pub async fn run(
    servers: &Servers,
    strategy: &Strategy,
    program: &Path,
    key: &str,
) -> anyhow::Result<AfterCrash> {
    let app = App::start_all(&servers.addresses, 1)?.remove(0);
    let manager = strategy.managers(std::slice::from_ref(&app), key)?.remove(0);
    manager.init(STOCK).await?;
    let mut holder = command(program);
    let Addresses { redis, sql } = &servers.addresses;
    holder.args(["hold", strategy.name, key, "--redis", redis, "--postgres", sql]);
    let mut holder = Process::start(holder);
    let started = Instant::now();
    while !servers.has_key(&held_key(key)).await? {
        ensure!(
            holder.ended().is_none() && started.elapsed() < HOLD_TIMEOUT,
            "the holder did not acquire its lock"
        );
        sleep(Duration::from_millis(2)).await;
    }
    holder.kill();
    let killed = Instant::now();
    let next = manager.reduce(&Attempt::new("next", 1, WAIT_MAX)).await;
    let waited = killed.elapsed().as_secs_f64() * 1000.0;
    app.stop().await;
    match next {
        Ok(ReduceResult::Taken) => Ok(AfterCrash::Ms(waited)),
        Err(StockError::TimedOut) => Ok(AfterCrash::Never),
        next => anyhow::bail!("unexpected result after the crash: {next:?}"),
    }
}

/// Runs in the holder's process: acquires the lock, reports that, and waits to be killed.
pub async fn hold(strategy: &Strategy, addresses: &Addresses, key: &str) -> anyhow::Result<()> {
    let app = App::start_all(addresses, 1)?.remove(0);
    let manager = strategy.managers(std::slice::from_ref(&app), key)?.remove(0);
    let held = manager.hold(&Attempt::new("holder", 1, HOLD_TIMEOUT)).await?;
    app.redis
        .query::<()>(::redis::cmd("SET").arg(held_key(key)).arg(1))
        .await
        .context("reporting the lock")?;
    std::future::pending::<()>().await;
    drop(held);
    Ok(())
}

/// Returns the key with which the holder reports its lock.
fn held_key(key: &str) -> String {
    redis_key(key, "stock:held")
}
