//! One application server's connections to Redis, with counted round trips.

use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue, Pipeline, ScriptInvocation};
use tokio::sync::{Mutex, OnceCell, Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

use crate::error::{Result, StockError};
use crate::meter::Meter;

/// Timeout of a response, longer than any response of a loaded machine.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of connections for exclusive use: `WATCH` applies to a connection.
const EXCLUSIVE_MAX: usize = 32;

/// One connection shared by all callers, and some for exclusive use.
#[derive(Debug)]
pub struct Redis {
    client: Client,
    shared: OnceCell<MultiplexedConnection>,
    exclusive: Mutex<Vec<MultiplexedConnection>>,
    permits: Semaphore,
    meter: Arc<Meter>,
}

/// A connection for exclusive use.
#[derive(Debug)]
pub struct ExclusiveConnection<'a> {
    connection: MultiplexedConnection,
    meter: &'a Meter,
    _permit: SemaphorePermit<'a>,
}

impl Redis {
    /// Creates the connections, which open on first use.
    pub fn new(url: &str, meter: Arc<Meter>) -> Result<Self> {
        let (client, shared) = (Client::open(url)?, OnceCell::new());
        Ok(Self {
            client,
            shared,
            exclusive: Mutex::default(),
            permits: Semaphore::new(EXCLUSIVE_MAX),
            meter,
        })
    }

    async fn shared(&self) -> Result<MultiplexedConnection> {
        Ok(self.shared.get_or_try_init(|| connect(&self.client)).await?.clone())
    }

    /// Sends one command, one round trip.
    pub async fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T> {
        self.meter.trips.add(1);
        Ok(command.query_async(&mut self.shared().await?).await?)
    }

    /// Sends several commands, one round trip.
    pub async fn query_all<T: FromRedisValue>(&self, pipeline: &Pipeline) -> Result<T> {
        self.meter.trips.add(1);
        Ok(pipeline.query_async(&mut self.shared().await?).await?)
    }

    /// Runs a script, one round trip, which Redis counts.
    pub async fn run<T: FromRedisValue>(&self, call: &ScriptInvocation<'_>) -> Result<T> {
        Ok(call.invoke_async(&mut self.shared().await?).await?)
    }

    /// Returns a connection for exclusive use until it is [put back](Self::put_back).
    pub async fn exclusive(&self, deadline: Instant) -> Result<ExclusiveConnection<'_>> {
        let permit = timeout_at(deadline, self.permits.acquire()).await.map_err(|_| StockError::TimedOut)?;
        let permit = permit.map_err(|_| StockError::Stopped)?;
        let idle = self.exclusive.lock().await.pop();
        let connection = match idle {
            Some(connection) => connection,
            None => connect(&self.client).await?,
        };
        Ok(ExclusiveConnection { connection, meter: &self.meter, _permit: permit })
    }

    /// Puts an exclusive connection back into the pool. Nothing may be watched on it.
    pub async fn put_back(&self, exclusive: ExclusiveConnection<'_>) {
        self.exclusive.lock().await.push(exclusive.connection);
    }
}

impl ExclusiveConnection<'_> {
    /// Sends one command, one round trip.
    pub async fn query<T: FromRedisValue>(&mut self, command: &Cmd) -> Result<T> {
        self.meter.trips.add(1);
        Ok(command.query_async(&mut self.connection).await?)
    }

    /// Sends several commands, one round trip.
    pub async fn query_all<T: FromRedisValue>(&mut self, pipeline: &Pipeline) -> Result<T> {
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
