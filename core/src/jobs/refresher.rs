//! Follows the database for changes that other cores made, checks the health of Redis and SQL, and frees what is not used
//! any more.
//!
//! Each of these is a task of its own, so that a store that hangs holds up no other: health changes within 3 s.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use claimgate_shared::CampaignId;
use futures_util::{StreamExt as _, stream};
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, timeout};

use super::{lost_rows, replicas};
use crate::engine::Engine;
use crate::engine::handle::CampaignHandle;
use crate::metrics::PrometheusHandle;
use crate::store::sql::{SqlError, SqlStore, Stamp, State};

/// How often the database is asked for changes, and Redis and SQL for their health.
const REFRESH: Duration = Duration::from_secs(1);
/// The longest that a ping of either may take.
const PING_MAX: Duration = Duration::from_secs(2);
/// How long an unanswered ping is waited for before another one is sent: pings must not pile up.
const PING_STUCK_MAX: Duration = Duration::from_secs(10);
/// The longest that the database may take to answer.
const SQL_MAX: Duration = Duration::from_secs(5);
/// The longest that applying one campaign's rules may take.
const APPLY_MAX: Duration = Duration::from_secs(3);
/// Campaigns whose rules are applied at once: of a cluster, one node's may be silent.
const APPLIES_MAX: usize = 8;
/// The longest that one round may spend on renewing applied rules, so that their UTC offsets reach far ahead.
const RENEWAL_MAX: Duration = Duration::from_millis(500);
/// The most changed campaigns that are read one by one; more than this are read by pages.
const SINGLY_MAX: usize = 100;
const CAMPAIGNS_PAGE: u32 = 1000;
/// How often the keys that an eviction has left behind are dropped.
const DROP: Duration = Duration::from_secs(10);
/// A queue that was not used for between one and two of these is dropped.
const QUEUE_IDLE: Duration = Duration::from_secs(300);

/// Keeps this core's campaigns up to date with the database.
#[derive(Debug)]
pub struct Refresher {
    engine: Arc<Engine>,
    metrics: PrometheusHandle,
    /// The state of the database when it was last read in full.
    stamp: Option<Stamp>,
    states: HashMap<CampaignId, State>,
}

impl Refresher {
    /// A refresher of the campaigns of `engine`, which has read none yet; runs the periodic upkeep of `metrics`.
    pub fn new(engine: Arc<Engine>, metrics: PrometheusHandle) -> Self {
        Self { engine, metrics, stamp: None, states: HashMap::new() }
    }

    /// Refreshes, and checks the health of Redis and SQL, until `stop` turns true.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let (engine, metrics) = (Arc::clone(&self.engine), self.metrics.clone());
        let (sql_returns, sql_returned) = watch::channel(0);
        let all = async {
            tokio::join!(
                watch_redis(&engine, &metrics),
                watch_sql(&engine, &sql_returns),
                lost_rows::look_for(&engine, sql_returned),
                follow(&mut self),
                drop_idle_queues(&engine),
                drop_evicted(&engine),
                replicas::keep(&engine),
                engine.sync.redis.follow_switches()
            );
        };
        tokio::select! {
            () = all => {}
            _ = stop.wait_for(|stop| *stop) => {}
        }
    }

    /// Reads every campaign that has changed since the last refresh, and applies its rules in Redis.
    ///
    /// # Errors
    /// When SQL does not answer: the next call reads the same changes.
    pub async fn refresh(&mut self) -> Result<(), SqlError> {
        let sql = self.engine.sync.sql.clone();
        let stamp = within(sql.stamp()).await?;
        if self.stamp == Some(stamp) {
            return Ok(());
        }
        let states = within(sql.states()).await?;
        let changed: Vec<_> =
            states.iter().filter(|(id, state)| self.states.get(id) != Some(state)).cloned().collect();
        let ids: Vec<_> = changed.iter().map(|(id, _)| id.clone()).collect();
        self.read(&sql, &ids).await?;
        self.states.extend(changed);
        // Only now: after a failure all of it has to be done again.
        self.stamp = Some(stamp);
        let changed = ids.iter().filter_map(|id| self.engine.registry.get(id));
        self.put_all_into_force(changed.collect(), None).await;
        Ok(())
    }

    /// Reads the rows of `ids`. One that cannot be read is logged once and stays as it was; the others are read.
    async fn read(&self, sql: &SqlStore, ids: &[CampaignId]) -> Result<(), SqlError> {
        if ids.len() > SINGLY_MAX {
            return self.read_pages(sql).await;
        }
        for id in ids {
            match within(sql.campaign(id)).await {
                Ok(Some(campaign)) => drop(self.engine.registry.update(campaign)),
                Ok(None) => {}
                Err(SqlError::Unreadable(why)) => {
                    tracing::error!(campaign = %id, why, "its row in the database cannot be read; it stays as it was");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn read_pages(&self, sql: &SqlStore) -> Result<(), SqlError> {
        let mut after = String::new();
        loop {
            let page = within(sql.campaigns(&after, CAMPAIGNS_PAGE)).await?;
            let Some(last) = page.last else { return Ok(()) };
            after = last;
            for campaign in page.campaigns {
                self.engine.registry.update(campaign);
            }
        }
    }

    /// Applies the rules of `campaigns` where that is needed, beginning with none after `until`.
    async fn put_all_into_force(&self, campaigns: Vec<Arc<CampaignHandle>>, until: Option<Instant>) {
        let in_time = campaigns.into_iter().take_while(|_| until.is_none_or(|until| Instant::now() <= until));
        let applied = |handle: Arc<CampaignHandle>| async move { self.put_into_force(&handle).await };
        stream::iter(in_time).for_each_concurrent(APPLIES_MAX, applied).await;
    }

    /// Applies a campaign's rules if that is needed and the campaign is ready; one that is not gets them by being loaded.
    async fn put_into_force(&self, handle: &CampaignHandle) {
        if !handle.is_in_redis() || !handle.rules_are_due() {
            return;
        }
        let why = match timeout(APPLY_MAX, self.engine.put_into_force(handle)).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer in time".to_owned(),
        };
        tracing::warn!(why, campaign = %handle.campaign().id, "rules not applied yet");
    }

    /// Applies rules that could not be applied when they changed, and those that are due for renewal.
    async fn renew(&self) {
        self.put_all_into_force(self.engine.registry.all(), Some(Instant::now() + RENEWAL_MAX)).await;
    }
}

async fn follow(refresher: &mut Refresher) {
    let mut ticks = each(REFRESH);
    let mut failed = false;
    loop {
        ticks.tick().await;
        match refresher.refresh().await {
            Ok(()) => failed = false,
            Err(error) if failed => tracing::debug!(%error, "the database is not followed"),
            Err(error) => {
                tracing::warn!(%error, "the database is not followed");
                failed = true;
            }
        }
        refresher.renew().await;
    }
}

async fn watch_redis(engine: &Engine, metrics: &PrometheusHandle) {
    let mut ticks = each(REFRESH);
    loop {
        ticks.tick().await;
        metrics.run_upkeep();
        let answer = match timeout(PING_MAX, engine.sync.redis.ping()).await {
            Ok(answer) => answer.map_err(|error| error.to_string()),
            Err(_) => Err(silent()),
        };
        engine.health.record_redis(answer);
    }
}

/// Counts in `returns` how often SQL has come back: after it did not answer, or as another run of its server.
async fn watch_sql(engine: &Engine, returns: &watch::Sender<u64>) {
    let mut ticks = each(REFRESH);
    let mut run = None;
    loop {
        ticks.tick().await;
        let mut ping = pin!(engine.sync.sql.ping());
        let mut answer = timeout(PING_MAX, &mut ping).await;
        if answer.is_err() {
            engine.health.sql.record("sql", Err(silent()));
            run = None;
            answer = timeout(PING_STUCK_MAX, ping).await;
        }
        let answer =
            answer.map_err(|_| silent()).and_then(|answer| answer.map_err(|error| error.to_string()));
        // While it was away, it may have been replaced by a copy that lacks the last commits.
        let answered = answer.as_ref().ok().copied();
        if answered.is_some() && answered != run {
            returns.send_modify(|returns| *returns += 1);
        }
        run = answered;
        engine.health.sql.record("sql", answer.map(drop));
    }
}

/// Drops the keys of campaigns whose eviction a core has not finished.
async fn drop_evicted(engine: &Engine) {
    let mut ticks = each(DROP);
    loop {
        ticks.tick().await;
        match timeout(DROP, engine.recovery.drop_evicted()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "keys of evicted campaigns are not dropped yet"),
            Err(_) => tracing::debug!("keys of evicted campaigns are not dropped in time"),
        }
    }
}

/// Drops the queues that no claim uses, with their sold-out caches.
async fn drop_idle_queues(engine: &Engine) {
    let mut ticks = each(QUEUE_IDLE);
    loop {
        ticks.tick().await;
        let dropped = engine.batcher.drop_idle_queues();
        if dropped > 0 {
            tracing::debug!(dropped, "idle queues are dropped");
        }
    }
}

fn each(period: Duration) -> Interval {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

fn silent() -> String {
    format!("no answer within {} s", PING_MAX.as_secs())
}

/// The answer of SQL within [`SQL_MAX`].
async fn within<T>(answer: impl Future<Output = Result<T, SqlError>>) -> Result<T, SqlError> {
    timeout(SQL_MAX, answer).await.unwrap_or(Err(SqlError::Sql(sqlx::Error::PoolTimedOut)))
}
