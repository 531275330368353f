//! claimgate's engine and relay in this process.

use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use claimgate_core::engine::Engine;
use claimgate_core::jobs::outbox_relay::OutboxRelay;
use claimgate_core::store::sql::SqlStore;
use tokio::sync::watch;

use crate::addresses::Addresses;
use crate::error::{Result, StockError};

/// Limit of the outbox, above what any measurement produces.
pub const OUTBOX_MAX: u64 = 10_000_000;

/// The parts of a core, without HTTP.
#[derive(Debug)]
pub struct Product {
    pub engine: Engine,
    relay: Mutex<Option<(watch::Sender<bool>, JoinHandle<()>)>>,
}

impl Product {
    /// Starts core `number` on the servers at `addresses`.
    pub async fn start(addresses: &Addresses, number: usize) -> Result<Self> {
        let sql = SqlStore::open(&addresses.sql).await.map_err(StockError::set_up)?;
        let engine = Engine::builder(sql).outbox_max(OUTBOX_MAX).archive_after(Duration::MAX);
        let engine = engine.build(&addresses.redis)?;
        let (stop, stopped) = watch::channel(false);
        let relay = OutboxRelay::new(&engine, format!("lab-{}-{}", std::process::id(), number));
        let relay = relay.spawn(stopped).map_err(StockError::set_up)?;
        Ok(Self { engine, relay: Mutex::new(Some((stop, relay))) })
    }

    /// Stops the relay and closes the database.
    pub async fn stop(&self) {
        let relay = self.relay.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((stop, relay)) = relay {
            stop.send_replace(true);
            // A panic of the relay was already printed.
            let _ = tokio::task::spawn_blocking(|| relay.join()).await;
        }
        self.engine.stores.sql.close().await;
    }
}
