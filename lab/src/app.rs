//! One application server: its connections, which it shares with no other.

use std::sync::Arc;
use std::time::Duration;

use claimgate_core::store::redis::RedisStore;
use claimgate_core::store::redis::lease::{Lease, LeaseHolder};
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout_at};

use crate::manager::{Result, StockError};
use crate::meter::Meter;
use crate::redis::Redis;
use crate::sql::Sql;
use crate::strategies::claimgate::Product;

/// Events that may wait for SQL: more than any measurement makes.
pub const OUTBOX_MAX: u64 = 10_000_000;

/// What a lock costs that is free: one call to acquire it, one to release it.
const LEASE_CALLS: u64 = 2;

/// Where the servers are.
#[derive(Debug, Clone)]
pub struct Addresses {
    /// Redis.
    pub redis: String,
    /// PostgreSQL.
    pub sql: String,
}

/// An application server.
#[derive(Debug)]
pub struct App {
    /// Its way to Redis.
    pub redis: Redis,
    /// Its way to PostgreSQL.
    pub sql: Sql,
    /// What it counts, together with the others.
    pub meter: Arc<Meter>,
    /// Where it connects to.
    pub addresses: Addresses,
    /// Which of the servers it is.
    pub number: usize,
    lease_store: OnceCell<Arc<RedisStore>>,
    /// claimgate, where that is the strategy.
    pub product: OnceCell<Product>,
}

impl App {
    /// Connects when first asked.
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

    /// `count` of them, and what they count together.
    pub fn start_all(addresses: &Addresses, count: usize) -> Result<Vec<Arc<Self>>> {
        let meter = Arc::default();
        (0..count).map(|number| Self::start(addresses, number, &meter)).collect()
    }

    /// A new, unique holder of claimgate's leases.
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
        // `acquire` checks its own timeout only between pauses; the caller must leave at the deadline.
        let held = timeout_at(deadline, owner.acquire(name, lease, timeout)).await;
        let lease = held.map_err(|_| StockError::TimedOut)??;
        self.meter.lease_calls.add(LEASE_CALLS);
        Ok(lease)
    }

    fn open_lease_store(&self) -> Result<Arc<RedisStore>> {
        let client = ::redis::Client::open(self.addresses.redis.as_str())?;
        Ok(Arc::new(RedisStore::new(client, OUTBOX_MAX)))
    }

    /// Closes what does not close by itself.
    pub async fn stop(&self) {
        if let Some(product) = self.product.get() {
            product.stop().await;
        }
        self.sql.close().await;
    }
}
