//! Polls the database for changes made by other cores, checks the health of Redis and SQL, and frees unused
//! resources.
//!
//! Each job is a separate task, so that a store that hangs delays only its own jobs. Health changes within 5
//! s.

use std::collections::{HashSet, VecDeque};
use std::iter;
use std::sync::Arc;
use std::time::Duration;

use claimgate_shared::CampaignId;
use futures_util::{StreamExt as _, stream};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::{heartbeats, replicas, sql_loss, ticks_every};
use crate::domain::campaign::Campaign;
use crate::domain::counters::ChangeNumber;
use crate::domain::store_fault::StoreFault;
use crate::engine::Engine;
use crate::engine::campaign::handle::CampaignHandle;
use crate::engine::live::cores::ThisCore;
use crate::metrics::PrometheusHandle;
use crate::store::sql::SqlError;

/// The interval at which the database is polled for changes, and the health of Redis and SQL is checked.
const REFRESH: Duration = Duration::from_secs(1);
/// The time limit of a probe of Redis.
const PROBE_MAX: Duration = Duration::from_secs(2);
/// The time limit of a call to the database.
const SQL_MAX: Duration = Duration::from_secs(5);
/// The time limit for applying one campaign's rules.
const APPLY_MAX: Duration = Duration::from_secs(3);
/// Number of campaigns whose rules are applied concurrently: in a cluster, one node may not respond.
const APPLIES_MAX: usize = 8;
/// Time limit of a refresh, after which it applies no further rules.
const APPLIES_TIME_MAX: Duration = Duration::from_millis(500);
const PAGE: u32 = 1000;
/// Number of campaigns read in each refresh regardless of change numbers, because older versions, and
/// operators who edit the database by hand, do not set change numbers. Of 10,000 campaigns, each is read
/// every 100 s.
const ROUND_PAGE: u32 = 100;
/// The interval at which keys left behind by evictions are dropped.
const DROP: Duration = Duration::from_secs(10);
/// The interval at which idle queues are dropped. A queue is dropped after one to two intervals without use.
const IDLE: Duration = Duration::from_secs(300);

/// Keeps this core's campaigns up to date with the database.
#[derive(Debug)]
pub struct Refresher {
    engine: Arc<Engine>,
    metrics: PrometheusHandle,
    this: ThisCore,
    /// The last change that was read; `None` before the first complete read of all campaigns.
    read_up_to: Option<ChangeNumber>,
    /// The id after which the round through all campaigns continues.
    round: String,
    due_rules: DueRules,
}

/// A queue of campaigns whose rules may have to be applied in Redis. Each campaign is in the queue at most
/// once.
#[derive(Debug, Default)]
struct DueRules {
    ids: HashSet<CampaignId>,
    queue: VecDeque<Arc<CampaignHandle>>,
}

impl DueRules {
    fn push(&mut self, handle: Arc<CampaignHandle>) {
        if handle.rules_are_due() && self.ids.insert(handle.campaign().id.clone()) {
            self.queue.push_back(handle);
        }
    }

    fn pop(&mut self) -> Option<Arc<CampaignHandle>> {
        let handle = self.queue.pop_front()?;
        self.ids.remove(&handle.campaign().id);
        Some(handle)
    }
}

impl Refresher {
    /// Creates a refresher of the campaigns of `engine`. It also runs the periodic upkeep of `metrics`, and
    /// lists the core `this` in SQL.
    pub fn new(engine: Arc<Engine>, metrics: PrometheusHandle, this: ThisCore) -> Self {
        Self { engine, metrics, this, read_up_to: None, round: String::new(), due_rules: DueRules::default() }
    }

    /// Refreshes, and checks the health of Redis and SQL, until `stop` turns true.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let (engine, metrics, this) = (Arc::clone(&self.engine), self.metrics.clone(), self.this.clone());
        let (sql_returns, sql_returned) = watch::channel(0);
        let listed = heartbeats::send(&engine, &this, &sql_returns, stop.clone());
        let all = async {
            tokio::join!(
                watch_redis(&engine, &metrics),
                sql_loss::detect(&engine, sql_returned),
                follow_database(&mut self),
                drop_idle(&engine),
                drop_evicted(&engine),
                give_pending_codes(&engine),
                replicas::poll(&engine),
                engine.stores.redis.follow_failovers()
            );
        };
        let all = async {
            tokio::select! {
                () = all => {}
                _ = stop.wait_for(|stop| *stop) => {}
            }
        };
        tokio::join!(all, listed);
    }

    /// Reads every campaign that has changed since the last refresh, and some other campaigns. Then applies
    /// rules that are not in force in Redis. The first call reads all campaigns that are not evicted.
    ///
    /// # Errors
    /// If SQL is unavailable. The next call retries the same changes.
    pub async fn refresh(&mut self) -> Result<(), SqlError> {
        let read = self.read().await;
        // Rules are applied even if SQL is unavailable, because Redis may be available again.
        self.put_into_force().await;
        read
    }

    async fn read(&mut self) -> Result<(), SqlError> {
        let sql = self.engine.stores.sql.clone();
        let now = within(sql.last_change()).await?;
        match self.read_up_to {
            Some(last) if now == last => {}
            Some(last) if now > last => self.read_changes(last).await?,
            // Either no campaigns have been read yet, or the database is an older copy.
            _ => self.read_all(now).await?,
        }
        let page = within(sql.campaigns_in_redis(&self.round, ROUND_PAGE)).await?;
        self.round = page.last.filter(|_| page.is_full).unwrap_or_default();
        self.update(page.campaigns).await
    }

    /// Reads all campaigns that belong in Redis, and all campaigns in memory. `last` is the change number
    /// before the read, so changes made in the meantime are reread. The maintenance job finds these campaigns
    /// in its first round.
    async fn read_all(&mut self, last: ChangeNumber) -> Result<(), SqlError> {
        let sql = self.engine.stores.sql.clone();
        let mut known = self.engine.registry.all();
        let (mut after, mut read) = (String::new(), HashSet::new());
        loop {
            let page = within(sql.campaigns_in_redis(&after, PAGE)).await?;
            within(self.engine.user_ids.refresh()).await?;
            for campaign in page.campaigns {
                read.insert(campaign.id.clone());
                self.update_one(&campaign);
            }
            match page.last {
                Some(id) if page.is_full => after = id,
                _ => break,
            }
        }
        // The other known campaigns were evicted, or are missing from the database.
        known.retain(|handle| !read.contains(&handle.campaign().id));
        for handle in known {
            let id = &handle.campaign().id;
            match within(sql.campaign(id)).await {
                // At the first read no campaign is known. Later, a missing row means an older copy of the
                // database.
                Ok(None) => handle.suspect_sql_loss(),
                Ok(Some(campaign)) => self.update(vec![campaign]).await?,
                Err(SqlError::Unreadable(why)) => {
                    tracing::error!(campaign = %id, why, "cannot read the campaign's row; keeping its last known rules");
                }
                Err(error) => return Err(error),
            }
        }
        self.read_up_to = Some(last);
        Ok(())
    }

    async fn read_changes(&mut self, mut after: ChangeNumber) -> Result<(), SqlError> {
        let sql = self.engine.stores.sql.clone();
        loop {
            let (page, last) = within(sql.changed(after, PAGE)).await?;
            self.update(page.campaigns).await?;
            after = last;
            self.read_up_to = Some(last);
            if !page.is_full {
                return Ok(());
            }
        }
    }

    /// Updates campaigns from the database. Evicted campaigns that are not in memory are skipped, and read on
    /// demand. The user ids are read after the campaigns: they may have changed just before one was created.
    async fn update(&mut self, campaigns: Vec<Campaign>) -> Result<(), SqlError> {
        within(self.engine.user_ids.refresh()).await?;
        for campaign in campaigns {
            if campaign.evicted.is_some() && self.engine.registry.get(&campaign.id).is_none() {
                continue;
            }
            let handle = self.update_one(&campaign);
            if !handle.is_ready() && handle.campaign().evicted.is_none() {
                // Another core has created or reopened the campaign.
                handle.notify_maintenance();
            }
        }
        Ok(())
    }

    /// Updates a campaign from the database. If this core has a newer state, the campaign is checked, because
    /// the database may be an older copy.
    fn update_one(&mut self, campaign: &Campaign) -> Arc<CampaignHandle> {
        let handle = self.engine.registry.update(campaign.clone());
        if handle.is_ahead_of(Some(campaign)) {
            handle.suspect_sql_loss();
        }
        self.due_rules.push(Arc::clone(&handle));
        handle
    }

    /// Applies the rules that are due, once for each campaign. Starts no further campaign after
    /// [`APPLIES_TIME_MAX`].
    async fn put_into_force(&mut self) {
        let until = Instant::now() + APPLIES_TIME_MAX;
        let (engine, due_rules) = (&self.engine, &mut self.due_rules);
        let mut left = due_rules.queue.len();
        let in_time = iter::from_fn(|| {
            left = left.checked_sub(1).filter(|_| Instant::now() <= until)?;
            due_rules.pop()
        });
        let applied = |handle: Arc<CampaignHandle>| async move {
            put_into_force(engine, &handle).await;
            handle
        };
        let tried: Vec<_> = stream::iter(in_time).map(applied).buffer_unordered(APPLIES_MAX).collect().await;
        for handle in tried {
            due_rules.push(handle);
        }
    }
}

/// Applies a campaign's rules if they are due and the campaign is in Redis. Other campaigns get their rules
/// when they are loaded.
async fn put_into_force(engine: &Engine, handle: &CampaignHandle) {
    if !handle.is_in_redis() || !handle.rules_are_due() {
        return;
    }
    let why = match timeout(APPLY_MAX, engine.changes.put_into_force(handle, None)).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "timed out".to_owned(),
    };
    tracing::warn!(why, campaign = %handle.campaign().id, "cannot apply the rules yet");
}

async fn follow_database(refresher: &mut Refresher) {
    let mut ticks = ticks_every(REFRESH);
    let mut failed = false;
    loop {
        ticks.tick().await;
        match refresher.refresh().await {
            Ok(()) => failed = false,
            Err(error) if failed => tracing::debug!(%error, "cannot read changes from the database"),
            Err(error) => {
                tracing::warn!(%error, "cannot read changes from the database");
                failed = true;
            }
        }
    }
}

async fn watch_redis(engine: &Engine, metrics: &PrometheusHandle) {
    let mut ticks = ticks_every(REFRESH);
    loop {
        ticks.tick().await;
        metrics.run_upkeep();
        let probed = timeout(PROBE_MAX, engine.stores.redis.probe()).await;
        engine.health.record_redis(probed.map_err(|_| StoreFault::silent(PROBE_MAX.as_secs())));
    }
}

/// Drops the keys of evicted campaigns that an unfinished eviction left in Redis.
async fn drop_evicted(engine: &Engine) {
    let mut ticks = ticks_every(DROP);
    loop {
        ticks.tick().await;
        match timeout(DROP, engine.recovery.drop_evicted()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(%error, "dropping the keys of evicted campaigns failed; will retry");
            }
            Err(_) => tracing::debug!("dropping the keys of evicted campaigns timed out; will retry"),
        }
    }
}

/// Assigns codes to claims that were granted before their codes were added.
async fn give_pending_codes(engine: &Engine) {
    let mut ticks = ticks_every(REFRESH);
    loop {
        ticks.tick().await;
        if let Err(error) = engine.claims.give_pending_codes().await {
            tracing::debug!(%error, "assigning codes to claims failed; will retry");
        }
    }
}

/// Drops idle queues with their sold-out caches, and unused handles of evicted campaigns.
async fn drop_idle(engine: &Engine) {
    let mut ticks = ticks_every(IDLE);
    loop {
        ticks.tick().await;
        let dropped = engine.claims.batcher.drop_idle_queues();
        if dropped > 0 {
            tracing::debug!(dropped, "dropped idle queues");
        }
        engine.registry.forget_evicted();
    }
}

/// Awaits a call to SQL for at most [`SQL_MAX`].
async fn within<T>(answer: impl Future<Output = Result<T, SqlError>>) -> Result<T, SqlError> {
    timeout(SQL_MAX, answer).await.unwrap_or_else(|_| Err(SqlError::timed_out()))
}
