//! What the next one finds when a holder has crashed: a process takes the lock or the transaction and is killed.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use support::process::{Process, command};
use tokio::time::sleep;

use crate::app::{Addresses, App};
use crate::manager::{Attempt, Reduced, StockError, Strategy};
use crate::servers::Servers;
use crate::stock_key::StockKey;

/// How long the next one waits before it is said to wait for ever.
pub const WAIT_MAX: Duration = Duration::from_secs(3);
/// How long the holder may take to get as far as it shall.
const HOLDS_WITHIN: Duration = Duration::from_secs(20);
const STOCK: u32 = 10;

/// When the next one could go on after the holder's crash.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum AfterCrash {
    /// After this many milliseconds.
    Ms(f64),
    /// Not within [`WAIT_MAX`].
    Never,
}

/// Has a process of `program`, which is the lab's own, take what a holder holds, kills it, and waits for the next one.
pub async fn run(
    servers: &Servers,
    strategy: &Strategy,
    program: &Path,
    key: &str,
) -> anyhow::Result<AfterCrash> {
    let app = App::start_all(&servers.addresses, 1)?.remove(0);
    let manager = strategy.managers(std::slice::from_ref(&app), key).await?.remove(0);
    manager.init(STOCK).await?;
    let mut holder = command(program);
    let Addresses { redis, sql } = &servers.addresses;
    holder.args(["hold", strategy.name, key, "--redis", redis, "--postgres", sql]);
    let mut holder = Process::start(holder);
    let started = Instant::now();
    while !servers.has_key(&mark(&app, key)).await? {
        ensure!(
            holder.ended().is_none() && started.elapsed() < HOLDS_WITHIN,
            "the holder never came to hold"
        );
        sleep(Duration::from_millis(2)).await;
    }
    holder.kill();
    let killed = Instant::now();
    let next = manager.reduce(&Attempt::new("next", 1, WAIT_MAX)).await;
    let waited = killed.elapsed().as_secs_f64() * 1000.0;
    app.stop().await;
    match next {
        Ok(Reduced::Taken) => Ok(AfterCrash::Ms(waited)),
        Err(StockError::TimedOut) => Ok(AfterCrash::Never),
        next => anyhow::bail!("after the crash: {next:?}"),
    }
}

/// The holder's part: holds, says so, and waits to be killed.
pub async fn hold(strategy: &Strategy, addresses: &Addresses, key: &str) -> anyhow::Result<()> {
    let app = App::start_all(addresses, 1)?.remove(0);
    let manager = strategy.managers(std::slice::from_ref(&app), key).await?.remove(0);
    let held = manager.hold(&Attempt::new("holder", 1, HOLDS_WITHIN)).await?;
    app.redis.ask::<()>(::redis::cmd("SET").arg(mark(&app, key)).arg(1)).await.context("saying so")?;
    std::future::pending::<()>().await;
    drop(held);
    Ok(())
}

/// The key by which the holder says that it holds.
fn mark(app: &std::sync::Arc<App>, key: &str) -> String {
    format!("{}:held", StockKey::new(app, key).name)
}
