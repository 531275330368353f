//! One application server's connection to Redis, its trips counted.

use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue, Pipeline, ScriptInvocation};
use tokio::sync::{Mutex, OnceCell, Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

use crate::manager::{Result, StockError};
use crate::meter::Meter;

/// A loaded machine is slow, but no answer is slower than that.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections for callers that need one of their own, since `WATCH` belongs to a connection.
const OWN_MAX: usize = 32;

/// One connection shared by all callers, and some for exclusive use.
#[derive(Debug)]
pub struct Redis {
    client: Client,
    shared: OnceCell<MultiplexedConnection>,
    own: Mutex<Vec<MultiplexedConnection>>,
    permits: Semaphore,
    meter: Arc<Meter>,
}

/// A connection for exclusive use.
#[derive(Debug)]
pub struct OwnConnection<'a> {
    connection: MultiplexedConnection,
    meter: &'a Meter,
    _permit: SemaphorePermit<'a>,
}

impl Redis {
    /// Connects when first asked.
    pub fn new(url: &str, meter: Arc<Meter>) -> Result<Self> {
        let (client, shared) = (Client::open(url)?, OnceCell::new());
        Ok(Self { client, shared, own: Mutex::default(), permits: Semaphore::new(OWN_MAX), meter })
    }

    async fn shared(&self) -> Result<MultiplexedConnection> {
        Ok(self.shared.get_or_try_init(|| connect(&self.client)).await?.clone())
    }

    /// One command, one trip.
    pub async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T> {
        self.meter.trips.add(1);
        Ok(command.query_async(&mut self.shared().await?).await?)
    }

    /// Many commands, one trip.
    pub async fn ask_all<T: FromRedisValue>(&self, pipeline: &Pipeline) -> Result<T> {
        self.meter.trips.add(1);
        Ok(pipeline.query_async(&mut self.shared().await?).await?)
    }

    /// A script, one trip: Redis counts it.
    pub async fn run<T: FromRedisValue>(&self, call: &ScriptInvocation<'_>) -> Result<T> {
        Ok(call.invoke_async(&mut self.shared().await?).await?)
    }

    /// A connection for exclusive use until it is [handed back](Self::hand_back).
    pub async fn own(&self, deadline: Instant) -> Result<OwnConnection<'_>> {
        let permit = timeout_at(deadline, self.permits.acquire()).await.map_err(|_| StockError::TimedOut)?;
        let permit = permit.map_err(|_| StockError::Stopped)?;
        let idle = self.own.lock().await.pop();
        let connection = match idle {
            Some(connection) => connection,
            None => connect(&self.client).await?,
        };
        Ok(OwnConnection { connection, meter: &self.meter, _permit: permit })
    }

    /// Gives an own connection to the next one; what was watched on it must be forgotten by then.
    pub async fn hand_back(&self, own: OwnConnection<'_>) {
        self.own.lock().await.push(own.connection);
    }
}

impl OwnConnection<'_> {
    /// One command, one trip.
    pub async fn ask<T: FromRedisValue>(&mut self, command: &Cmd) -> Result<T> {
        self.meter.trips.add(1);
        Ok(command.query_async(&mut self.connection).await?)
    }

    /// Many commands, one trip.
    pub async fn ask_all<T: FromRedisValue>(&mut self, pipeline: &Pipeline) -> Result<T> {
        self.meter.trips.add(1);
        Ok(pipeline.query_async(&mut self.connection).await?)
    }
}

async fn connect(client: &Client) -> Result<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(RESPONSE_TIMEOUT))
        .set_response_timeout(Some(RESPONSE_TIMEOUT));
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
}
