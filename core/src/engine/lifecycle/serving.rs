//! Ensures that a database is served with only one Redis installation. Both stores record this. Two cores
//! with different Redis installations would raise each other's epochs and revoke each other's winners.
//!
//! Redis has a random id (`cg:store`). The database records that id, and when a core last served with it. A
//! core may find a different id in the database, for example after a restore or on a new host. The core then
//! waits until it is certain that no core still serves with the other Redis. If another core still does, this
//! core stops.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::store::redis::scripts::layout_number::{EARLIER_LAYOUT, LAYOUT};
use crate::store::redis::topology::primary::NoPrimary;
use crate::store::redis::{RedisStore, RedisStoreError};
use crate::store::sql::{ServingRedis, SqlError, SqlStore};

/// Time, by the database's clock, after which a recorded Redis is replaced if no core has served with it.
const TAKE_OVER_AFTER: Duration = Duration::from_secs(30);
/// Minimum time, by this core's clock, during which no core may renew the record. The database may have been
/// down, so that no core could renew it.
const OBSERVED_MIN: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(250);

/// The reason why core may not serve this database with this Redis.
#[derive(Debug, thiserror::Error)]
pub enum ServingError {
    /// Another core serves the database with a different Redis.
    #[error(
        "CLAIMGATE_REDIS_URL: another core serves this database with another Redis; give both cores the same one. If \
         that core is permanently gone, wait 30 s or start with --take-over"
    )]
    AnotherRedis,
    /// The keys in Redis have this layout, which this version can neither use nor convert.
    #[error(
        "CLAIMGATE_REDIS_URL: the keys there have layout {0}, and this version of claimgate has layout {LAYOUT}: start the \
         version that serves with that Redis"
    )]
    AnotherLayout(String),
    /// The address of Redis does not lead to a primary. The second value is a hint on the right address.
    #[error("CLAIMGATE_REDIS_URL: {0}; {1}")]
    NoPrimary(NoPrimary, &'static str),
    /// A call to Redis failed.
    #[error(transparent)]
    Redis(#[from] RedisStoreError),
    /// A call to SQL failed.
    #[error(transparent)]
    Sql(#[from] SqlError),
}

impl ServingError {
    /// Returns whether the right to serve is lost, so that core has to stop.
    pub fn is_loss(&self) -> bool {
        matches!(self, Self::AnotherRedis | Self::AnotherLayout(_))
    }
}

/// This core's right to serve the database with its Redis.
#[derive(Debug)]
pub struct ServingRight {
    redis: Arc<RedisStore>,
    sql: SqlStore,
    store_id: String,
}

impl ServingRight {
    /// Records that the database `sql` is served with `redis`. If a different Redis is recorded, waits until
    /// no core has served with that one for 30 s. With `take_over` it does not wait: the operator has stated
    /// that no core serves with the other Redis.
    pub async fn claim(redis: Arc<RedisStore>, sql: SqlStore, take_over: bool) -> Result<Self, ServingError> {
        check_layout(&redis).await?;
        let store_id = redis.store_id().await?;
        let listening = Instant::now();
        let mut first: Option<ServingRedis> = None;
        loop {
            let Some(there) = sql.served_by().await? else {
                sql.record_first_store(&store_id).await?;
                continue;
            };
            if there.store_id == store_id {
                break;
            }
            let first = first.get_or_insert_with(|| {
                tracing::warn!(
                    "this database was served with a different Redis; waiting until no core uses it"
                );
                there.clone()
            });
            if there.served_at_ms != first.served_at_ms && !take_over {
                return Err(ServingError::AnotherRedis);
            }
            let silent = there.silent_for >= TAKE_OVER_AFTER && listening.elapsed() >= OBSERVED_MIN;
            if (silent || take_over) && sql.replace_served_store(&there, &store_id).await? {
                tracing::warn!("took over the database: core now uses it with this Redis");
                break;
            }
            sleep(POLL).await;
        }
        let serving = Self { redis, sql, store_id };
        serving.renew().await?;
        Ok(serving)
    }

    /// Renews the record, in both stores, that this core serves.
    ///
    /// # Errors
    /// [`ServingError::AnotherRedis`] if the database has been claimed for a different Redis in the meantime.
    pub async fn renew(&self) -> Result<(), ServingError> {
        if !self.sql.renew_serving(&self.store_id).await? {
            return Err(ServingError::AnotherRedis);
        }
        self.renew_in_redis().await
    }

    /// Records the id and the layout in Redis again, in case Redis has lost its data.
    pub async fn renew_in_redis(&self) -> Result<(), ServingError> {
        self.redis.set_store_id_if_missing(&self.store_id).await?;
        keep_layout(&self.redis).await
    }
}

/// Fails if the recorded layout is neither this version's layout nor one that this version converts. Changes
/// nothing: cores that serve with this Redis must not stop because of a core that may not serve.
async fn check_layout(redis: &RedisStore) -> Result<(), ServingError> {
    match redis.layout().await? {
        None => {}
        Some(layout) if layout == LAYOUT.to_string() => {}
        Some(layout) if layout == EARLIER_LAYOUT.to_string() => {
            tracing::warn!(
                "the keys in Redis have layout {layout}: each campaign is converted to layout {LAYOUT}, and cores of \
                 layout {layout} stop"
            );
        }
        Some(layout) => return Err(ServingError::AnotherLayout(layout)),
    }
    Ok(())
}

/// Records the layout of this version's keys if none is recorded or this version converts the recorded one.
/// Fails if a different layout is recorded.
async fn keep_layout(redis: &RedisStore) -> Result<(), ServingError> {
    let own = LAYOUT.to_string();
    // Cores call this once a second, so the script runs only if there is something to record.
    if redis.layout().await?.as_ref() == Some(&own) {
        return Ok(());
    }
    let layout = redis.keep_layout().await?;
    if layout == own { Ok(()) } else { Err(ServingError::AnotherLayout(layout)) }
}
