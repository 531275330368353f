//! The engine, and the one way to put it together.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{Client, RedisError};

use super::batcher::ClaimBatcher;
use super::busiest::Busiest;
use super::feed_watch::FeedWatch;
use super::health::Health;
use super::live::Live;
use super::recovery::Recovery;
use super::registry::CampaignRegistry;
use super::sync::CampaignSync;
use super::webhook_sender::WebhookSender;
use crate::config::{ARCHIVE_AFTER_DEFAULT, BATCH_MAX, OUTBOX_MAX_DEFAULT};
use crate::redis_address::RedisAddress;
use crate::store::redis::RedisStore;
use crate::store::sql::SqlStore;

/// Decides claims and keeps campaigns, on one Redis and one database.
#[derive(Debug)]
pub struct Engine {
    /// Both stores.
    pub sync: Arc<CampaignSync>,
    /// The campaigns of this core.
    pub registry: Arc<CampaignRegistry>,
    /// Brings campaigns back into Redis.
    pub recovery: Arc<Recovery>,
    /// Collects concurrent claims into one script call.
    pub batcher: ClaimBatcher,
    /// Whether both stores answer.
    pub health: Arc<Health>,
    /// Which campaigns metrics name.
    pub(super) busiest: Arc<Mutex<Busiest>>,
    /// Waits for the feed to go on.
    pub feed_watch: Arc<FeedWatch>,
    /// Snapshots for those who watch.
    pub live: Arc<Live>,
    /// Sends events to webhooks.
    pub webhook_sender: WebhookSender,
    /// Whether core starts its Redis itself, which then has no replicas.
    pub(super) redis_is_own: bool,
}

/// How an engine is put together: the one wiring, for `serve`, benchmarks, the lab and tests.
#[derive(Debug)]
#[must_use]
pub struct Builder {
    sql: SqlStore,
    outbox_max: u64,
    archive_after: Duration,
    batch_max: usize,
    webhook_sender: WebhookSender,
    redis_is_own: bool,
}

impl Engine {
    /// An engine on the database `sql`.
    pub fn builder(sql: SqlStore) -> Builder {
        Builder {
            sql,
            outbox_max: OUTBOX_MAX_DEFAULT,
            archive_after: ARCHIVE_AFTER_DEFAULT,
            batch_max: BATCH_MAX,
            webhook_sender: WebhookSender::default(),
            redis_is_own: false,
        }
    }

    /// The same engine for callers, of whom at most `sql_callers_max` wait for SQL at once. Core's own work goes on with this
    /// one: callers never keep it from SQL.
    #[must_use]
    pub fn for_callers(&self, sql_callers_max: usize) -> Self {
        self.with_stores(Arc::clone(&self.sync.redis), self.sync.sql.for_callers(sql_callers_max))
    }

    /// The same engine for one thread, with a connection to Redis and queues of claims of its own: what the thread's tasks
    /// wait for then happens on the same thread.
    #[must_use]
    pub fn for_thread(&self) -> Self {
        self.with_stores(Arc::new(self.sync.redis.for_thread()), self.sync.sql.clone())
    }

    fn with_stores(&self, redis: Arc<RedisStore>, sql: SqlStore) -> Self {
        let sync = Arc::new(CampaignSync { redis, sql });
        Self {
            registry: Arc::clone(&self.registry),
            batcher: self.batcher.for_thread(Arc::clone(&sync)),
            recovery: Arc::clone(&self.recovery),
            sync,
            health: Arc::clone(&self.health),
            busiest: Arc::clone(&self.busiest),
            feed_watch: Arc::clone(&self.feed_watch),
            live: Arc::clone(&self.live),
            webhook_sender: self.webhook_sender.clone(),
            redis_is_own: self.redis_is_own,
        }
    }
}

impl Builder {
    /// The most events that an outbox may hold before new claims are refused; 1,000,000 if not given.
    pub fn outbox_max(self, outbox_max: u64) -> Self {
        Self { outbox_max, ..self }
    }

    /// How long a campaign stays in Redis after it is over before it is evicted; a day if not given.
    pub fn archive_after(self, archive_after: Duration) -> Self {
        Self { archive_after, ..self }
    }

    /// The most claims that one script call decides, 1 to [`BATCH_MAX`], which it is if not given.
    pub fn batch_max(self, batch_max: usize) -> Self {
        Self { batch_max, ..self }
    }

    /// Sends events to webhooks; without it there are none.
    pub fn webhook_sender(self, webhook_sender: WebhookSender) -> Self {
        Self { webhook_sender, ..self }
    }

    /// Whether core starts the Redis itself: no replica can be required of it then.
    pub fn redis_is_own(self, redis_is_own: bool) -> Self {
        Self { redis_is_own, ..self }
    }

    /// The engine on the Redis at `redis_url`. Connects with the first call, not here.
    ///
    /// # Errors
    /// When `redis_url` is not an address of a Redis.
    pub fn build(self, redis_url: &str) -> Result<Engine, RedisError> {
        Ok(self.on(Client::open(redis_url)?))
    }

    /// The engine on the Redis at `address`. Connects with the first call, not here.
    pub fn on(self, address: impl Into<RedisAddress>) -> Engine {
        let redis = Arc::new(RedisStore::new(address, self.outbox_max));
        let sync = Arc::new(CampaignSync { redis, sql: self.sql });
        let feed_watch = Arc::new(FeedWatch::new(sync.sql.clone()));
        let recovery = Arc::new(Recovery::new(Arc::clone(&sync), self.archive_after));
        Engine {
            registry: Arc::clone(&recovery.registry),
            batcher: ClaimBatcher::new(Arc::clone(&sync), self.batch_max),
            recovery,
            sync,
            health: Arc::default(),
            busiest: Arc::default(),
            feed_watch,
            live: Arc::default(),
            webhook_sender: self.webhook_sender,
            redis_is_own: self.redis_is_own,
        }
    }
}
