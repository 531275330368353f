//! Which Redis serves a database: recorded in both, so that two cores with a Redis of their own never share one database.
//! Each would raise the other's epochs, and revoke the other's winners.
//!
//! Redis has a random id of its own (`cg:store`); the database records that id and when a core last served with it. A core
//! that finds another id in the database waits until it is certain that no core serves with that Redis any more, as after a
//! restore or a replaced host. If one does, the core stops.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::store::redis::primary::NoPrimary;
use crate::store::redis::scripts::LAYOUT;
use crate::store::redis::{RedisStore, RedisStoreError};
use crate::store::sql::{ServedBy, SqlError, SqlStore};

/// How long no core must have served with another Redis before that is replaced, by the database's clock.
const SILENCE: Duration = Duration::from_secs(30);
/// How long no core must have renewed its record meanwhile, by this core's clock: the database itself may just be back.
const LISTEN: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(250);

/// Why core may not serve this database with this Redis.
#[derive(Debug, thiserror::Error)]
pub enum ServingError {
    /// A core serves with another Redis.
    #[error(
        "CLAIMGATE_REDIS_URL: another core serves this database with another Redis; give both cores the same one. If \
         that core is gone for good, wait 30 s or start with --take-over"
    )]
    AnotherRedis,
    /// The keys in Redis have this layout, which is not that of this version.
    #[error(
        "CLAIMGATE_REDIS_URL: the keys there have layout {0}, and this version of claimgate has layout {LAYOUT}: start the \
         version that serves with that Redis"
    )]
    AnotherLayout(String),
    /// The address of Redis leads to no primary; and the address to give.
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
    /// Whether the right to serve is lost, so that the core has to stop.
    pub fn is_loss(&self) -> bool {
        matches!(self, Self::AnotherRedis | Self::AnotherLayout(_))
    }
}

/// This core's right to serve the database with its Redis.
#[derive(Debug)]
pub struct Serving {
    redis: Arc<RedisStore>,
    sql: SqlStore,
    store_id: String,
}

impl Serving {
    /// Claims the database `sql` for `redis`. Where another Redis is recorded, this happens at once with `take_over`, by
    /// which the caller states that no core serves with the other one; else once no core has served with it for 30 s.
    ///
    /// # Errors
    /// [`ServingError::AnotherRedis`] when a core still serves with another Redis, [`ServingError::AnotherLayout`] when a version
    /// with another layout has served with this one.
    pub async fn claim(redis: Arc<RedisStore>, sql: SqlStore, take_over: bool) -> Result<Self, ServingError> {
        keep_layout(&redis).await?;
        let store_id = redis.store_id().await?;
        let listening = Instant::now();
        let mut first: Option<ServedBy> = None;
        loop {
            let Some(there) = sql.served_by().await? else {
                sql.serve_first(&store_id).await?;
                continue;
            };
            if there.store_id == store_id {
                break;
            }
            let first = first.get_or_insert_with(|| {
                tracing::warn!("this database was served with another Redis; waiting until no core does");
                there.clone()
            });
            if there.served_at_ms != first.served_at_ms && !take_over {
                return Err(ServingError::AnotherRedis);
            }
            let silent = there.silent_for >= SILENCE && listening.elapsed() >= LISTEN;
            if (silent || take_over) && sql.serve_instead(&there, &store_id).await? {
                tracing::warn!("this database is served with another Redis from now on");
                break;
            }
            sleep(LOOK).await;
        }
        let serving = Self { redis, sql, store_id };
        serving.renew().await?;
        Ok(serving)
    }

    /// Records again in both that this core serves.
    ///
    /// # Errors
    /// [`ServingError::AnotherRedis`] when the database was claimed for another Redis meanwhile, and those of
    /// [`renew_in_redis`](Self::renew_in_redis).
    pub async fn renew(&self) -> Result<(), ServingError> {
        if !self.sql.serve_on(&self.store_id).await? {
            return Err(ServingError::AnotherRedis);
        }
        self.renew_in_redis().await
    }

    /// Records again in Redis whose it is and which layout it has: it may have lost both with everything else.
    ///
    /// # Errors
    /// [`ServingError::AnotherLayout`] when a version with another layout has begun to serve with it since.
    pub async fn renew_in_redis(&self) -> Result<(), ServingError> {
        self.redis.keep_store_id(&self.store_id).await?;
        keep_layout(&self.redis).await
    }
}

/// Records the layout of this version's keys, where none is.
async fn keep_layout(redis: &RedisStore) -> Result<(), ServingError> {
    let layout = redis.layout().await?;
    if layout == LAYOUT.to_string() { Ok(()) } else { Err(ServingError::AnotherLayout(layout)) }
}
