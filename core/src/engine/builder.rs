//! The engine, and its wiring.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::{Client, RedisError};

use super::campaign::registry::CampaignRegistry;
use super::campaign_changes::CampaignChanges;
use super::campaigns::Campaigns;
use super::claim::Claims;
use super::claim::batcher::ClaimBatcher;
use super::demand::Refusals;
use super::demand::report::Reports;
use super::feed::Feed;
use super::feed::watch::FeedWatch;
use super::health::Health;
use super::lifecycle::recovery::Recovery;
use super::live::Live;
use super::measures::Measures;
use super::replication::Replicas;
use super::stores::Stores;
use super::user_ids::{UserIds, UserIdsState};
use super::webhooks::Webhooks;
use super::webhooks::sender::WebhookSender;
use crate::config::{ARCHIVE_AFTER_DEFAULT, BATCH_MAX, HOLD_EXTENSION_MAX_DEFAULT, OUTBOX_MAX_DEFAULT};
use crate::redis_address::RedisAddress;
use crate::store::redis::RedisStore;
use crate::store::sql::SqlStore;

/// Decides claims and manages campaigns on one Redis installation and one database. Each field covers one
/// subject.
#[derive(Debug)]
pub struct Engine {
    /// Both stores.
    pub stores: Arc<Stores>,
    /// The campaigns in this core's memory.
    pub registry: Arc<CampaignRegistry>,
    /// Whether both stores work.
    pub health: Arc<Health>,
    /// Loads campaigns into Redis.
    pub recovery: Arc<Recovery>,
    /// Finds campaigns, and reads their counters and audit.
    pub campaigns: Campaigns,
    /// Changes campaigns.
    pub changes: CampaignChanges,
    /// Decides, reads, confirms, returns and extends claims.
    pub claims: Claims,
    /// Reads the feed of changed claims.
    pub feed: Feed,
    /// Creates and changes webhooks.
    pub webhooks: Webhooks,
    /// Keeps the primaries' replica sets up to date.
    pub replicas: Replicas,
    /// Restricts all callers to one scheme of user ids.
    pub user_ids: UserIds,
    /// Counts refused claims, and receives the reports of edges.
    pub refusals: Refusals,
    /// Reports on campaigns' demand.
    pub reports: Reports,
    /// Publishes live snapshots.
    pub live: Arc<Live>,
    /// Metrics of campaigns and primaries.
    pub measures: Arc<Measures>,
}

/// Builds an engine. `serve`, benchmarks, the lab and tests all use this wiring.
#[derive(Debug)]
#[must_use]
pub struct Builder {
    sql: SqlStore,
    outbox_max: u64,
    archive_after: Duration,
    hold_extension_max: Duration,
    batch_max: usize,
    webhook_sender: WebhookSender,
    redis_is_own: bool,
}

impl Engine {
    /// Starts building an engine on the database `sql`.
    pub fn builder(sql: SqlStore) -> Builder {
        Builder {
            sql,
            outbox_max: OUTBOX_MAX_DEFAULT,
            archive_after: ARCHIVE_AFTER_DEFAULT,
            hold_extension_max: HOLD_EXTENSION_MAX_DEFAULT,
            batch_max: BATCH_MAX,
            webhook_sender: WebhookSender::default(),
            redis_is_own: false,
        }
    }

    /// Returns the same engine for requests. At most `sql_callers_max` requests wait for SQL at a time. Core's
    /// own jobs use `self`, so that requests never block their access to SQL.
    #[must_use]
    pub fn for_callers(&self, sql_callers_max: usize) -> Self {
        self.with_stores(Arc::clone(&self.stores.redis), self.stores.sql.for_callers(sql_callers_max))
    }

    /// Returns the same engine for one thread, with its own Redis connection and claim queues. The thread's
    /// tasks then wait only for work on the same thread.
    #[must_use]
    pub fn for_thread(&self) -> Self {
        self.with_stores(Arc::new(self.stores.redis.for_thread()), self.stores.sql.clone())
    }

    fn with_stores(&self, redis: Arc<RedisStore>, sql: SqlStore) -> Self {
        let stores = Arc::new(Stores { redis, sql });
        Parts {
            batcher: self.claims.batcher.for_thread(Arc::clone(&stores)),
            hold_extension_max: self.claims.hold_extension_max,
            stores,
            registry: Arc::clone(&self.registry),
            health: Arc::clone(&self.health),
            recovery: Arc::clone(&self.recovery),
            feed_watch: Arc::clone(&self.feed.watch),
            webhook_sender: self.webhooks.sender.clone(),
            redis_is_own: self.replicas.redis_is_own,
            user_ids: Arc::clone(&self.user_ids.state),
            refusals: self.refusals.for_thread(),
            live: Arc::clone(&self.live),
            measures: Arc::clone(&self.measures),
        }
        .assemble()
    }
}

struct Parts {
    stores: Arc<Stores>,
    registry: Arc<CampaignRegistry>,
    health: Arc<Health>,
    recovery: Arc<Recovery>,
    batcher: ClaimBatcher,
    hold_extension_max: Duration,
    feed_watch: Arc<FeedWatch>,
    webhook_sender: WebhookSender,
    redis_is_own: bool,
    user_ids: Arc<UserIdsState>,
    refusals: Refusals,
    live: Arc<Live>,
    measures: Arc<Measures>,
}

impl Parts {
    fn assemble(self) -> Engine {
        let batcher = Arc::new(self.batcher);
        let user_ids = UserIds { sql: self.stores.sql.clone(), state: self.user_ids };
        let campaigns = Campaigns {
            stores: Arc::clone(&self.stores),
            registry: Arc::clone(&self.registry),
            user_ids: user_ids.clone(),
        };
        Engine {
            changes: CampaignChanges {
                campaigns: campaigns.clone(),
                recovery: Arc::clone(&self.recovery),
                batcher: Arc::clone(&batcher),
            },
            claims: Claims {
                campaigns: campaigns.clone(),
                recovery: Arc::clone(&self.recovery),
                hold_extension_max: self.hold_extension_max,
                batcher,
            },
            feed: Feed { campaigns: campaigns.clone(), watch: self.feed_watch },
            webhooks: Webhooks { campaigns: campaigns.clone(), sender: self.webhook_sender },
            replicas: Replicas { stores: Arc::clone(&self.stores), redis_is_own: self.redis_is_own },
            reports: Reports { sql: self.stores.sql.clone() },
            campaigns,
            user_ids,
            stores: self.stores,
            registry: self.registry,
            health: self.health,
            recovery: self.recovery,
            refusals: self.refusals,
            live: self.live,
            measures: self.measures,
        }
    }
}

impl Builder {
    /// Sets the maximum number of events in an outbox, beyond which new claims are rejected; 1,000,000 by
    /// default.
    pub fn outbox_max(self, outbox_max: u64) -> Self {
        Self { outbox_max, ..self }
    }

    /// Sets how long a campaign stays in Redis after its end until it is evicted; a day by default.
    pub fn archive_after(self, archive_after: Duration) -> Self {
        Self { archive_after, ..self }
    }

    /// Sets for how long after the claim a hold can be extended; a day by default.
    pub fn hold_extension_max(self, hold_extension_max: Duration) -> Self {
        Self { hold_extension_max, ..self }
    }

    /// Sets the maximum number of claims that one script call decides: 1 to [`BATCH_MAX`], which is the
    /// default.
    pub fn batch_max(self, batch_max: usize) -> Self {
        Self { batch_max, ..self }
    }

    /// Sets the sender of webhook events. Without a sender, webhooks are off.
    pub fn webhook_sender(self, webhook_sender: WebhookSender) -> Self {
        Self { webhook_sender, ..self }
    }

    /// Sets whether core starts its own Redis server. That server has no replicas, so none can be required.
    pub fn redis_is_own(self, redis_is_own: bool) -> Self {
        Self { redis_is_own, ..self }
    }

    /// Builds the engine on the Redis server at `redis_url`. The connection is opened by the first call.
    ///
    /// # Errors
    /// If `redis_url` is not a valid Redis address.
    pub fn build(self, redis_url: &str) -> Result<Engine, RedisError> {
        Ok(self.on(Client::open(redis_url)?))
    }

    /// Builds the engine on the Redis server at `address`. The connection is opened by the first call.
    pub fn on(self, address: impl Into<RedisAddress>) -> Engine {
        let redis = Arc::new(RedisStore::new(address, self.outbox_max));
        let stores = Arc::new(Stores { redis, sql: self.sql });
        let recovery = Arc::new(Recovery::new(Arc::clone(&stores), self.archive_after));
        let (registry, health) = (Arc::clone(&recovery.registry), Arc::<Health>::default());
        let refusals = Refusals::default();
        let measures = Measures {
            registry: Arc::clone(&registry),
            health: Arc::clone(&health),
            refusals: refusals.clone(),
            busiest: Mutex::default(),
        };
        Parts {
            registry,
            batcher: ClaimBatcher::new(Arc::clone(&stores), self.batch_max),
            hold_extension_max: self.hold_extension_max,
            feed_watch: Arc::new(FeedWatch::new(stores.sql.clone())),
            recovery,
            stores,
            health,
            live: Arc::default(),
            measures: Arc::new(measures),
            webhook_sender: self.webhook_sender,
            redis_is_own: self.redis_is_own,
            user_ids: Arc::default(),
            refusals,
        }
        .assemble()
    }
}
