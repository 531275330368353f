//! One application server and its own connections.

use std::sync::Arc;
use std::time::Duration;

use claimgate_core::store::redis::RedisStore;
use claimgate_core::store::redis::lease::{Lease, LeaseHolder};
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout_at};

use crate::addresses::Addresses;
use crate::error::{Result, StockError};
use crate::meter::Meter;
use crate::product::{OUTBOX_MAX, Product};
use crate::redis::Redis;
use crate::sql::Sql;

/// Number of calls for an uncontended lock: one to acquire it, one to release it.
const LEASE_CALLS: u64 = 2;

/// An application server.
#[derive(Debug)]
pub struct App {
    /// Connection to Redis.
    pub redis: Redis,
    /// Connections to PostgreSQL.
    pub sql: Sql,
    /// Counters, shared with the other servers of the strategy.
    pub meter: Arc<Meter>,
    /// Addresses of Redis and PostgreSQL.
    pub addresses: Addresses,
    /// Number of this server.
    pub number: usize,
    lease_store: OnceCell<Arc<RedisStore>>,
    /// claimgate's engine, if that is the strategy.
    pub product: OnceCell<Product>,
}

impl App {
    /// Creates a server that connects on first use.
    pub fn start(addresses: &Addresses, number: usize, meter: &Arc<Meter>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            redis: Redis::new(&addresses.redis, Arc::clone(meter))?,
            sql: Sql::new(&addresses.sql, Arc::clone(meter))?,
            meter: Arc::clone(meter),
            addresses: addresses.clone(),
            number,
            lease_store: OnceCell::new(),
            product: OnceCell::new(),
        }))
    }

    /// Creates `count` servers that share their counters.
    pub fn start_all(addresses: &Addresses, count: usize) -> Result<Vec<Arc<Self>>> {
        let meter = Arc::default();
        (0..count).map(|number| Self::start(addresses, number, &meter)).collect()
    }

    /// Returns a new, unique holder of claimgate's leases.
    pub async fn owner(&self) -> Result<LeaseHolder> {
        let store = self.lease_store.get_or_try_init(|| async { self.open_lease_store() }).await?;
        LeaseHolder::new(Arc::clone(store)).map_err(StockError::set_up)
    }

    /// Acquires claimgate's lock `name` for `owner`, waiting until `deadline`.
    pub async fn lock(
        &self,
        owner: &LeaseHolder,
        name: &str,
        lease: Duration,
        deadline: Instant,
    ) -> Result<Lease> {
        let timeout = deadline.saturating_duration_since(Instant::now());
        // `acquire` checks its timeout only between pauses, so the deadline is enforced here.
        let held = timeout_at(deadline, owner.acquire(name, lease, timeout)).await;
        let lease = held.map_err(|_| StockError::TimedOut)??;
        self.meter.lease_calls.add(LEASE_CALLS);
        Ok(lease)
    }

    fn open_lease_store(&self) -> Result<Arc<RedisStore>> {
        let client = ::redis::Client::open(self.addresses.redis.as_str())?;
        Ok(Arc::new(RedisStore::new(client, OUTBOX_MAX)))
    }

    /// Closes connections that do not close on drop.
    pub async fn stop(&self) {
        if let Some(product) = self.product.get() {
            product.stop().await;
        }
        self.sql.close().await;
    }
}
