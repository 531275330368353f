//! Follows the register for changes that other cores made, asks Redis and SQL how they are, and puts away what nobody uses
//! any more.
//!
//! Each goes by itself, so that a database that hangs freezes no other: health turns within 3 s.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use claimgate_shared::CampaignId;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, timeout};

use super::lost_rows;
use crate::engine::Engine;
use crate::engine::handle::CampaignHandle;
use crate::metrics::PrometheusHandle;
use crate::store::sql::{SqlError, SqlStore, Stamp, State};

/// How often the register is asked for changes, and Redis and SQL how they are.
const REFRESH: Duration = Duration::from_secs(1);
/// The longest that either may take to say that it is there.
const PING_MAX: Duration = Duration::from_secs(2);
/// A ping that has not come back is waited for, rather than that others pile up behind it, for so long.
const PING_STUCK_MAX: Duration = Duration::from_secs(10);
/// The longest that the register may take to answer.
const REGISTER_MAX: Duration = Duration::from_secs(5);
/// The longest that one campaign's rules may take to be put into force.
const APPLY_MAX: Duration = Duration::from_secs(3);
/// So long at a time rules are put into force that have been for long: the calendar is laid out anew.
const RENEWAL_MAX: Duration = Duration::from_millis(500);
/// Up to so many changed campaigns are read one by one; more of them by pages.
const SINGLY_MAX: usize = 100;
const REGISTER_PAGE: u32 = 1000;
/// How often keys are dropped that an eviction has left.
const DROP: Duration = Duration::from_secs(10);
/// A lane that was not used for between one and two of these goes.
const QUEUE_IDLE: Duration = Duration::from_secs(300);

/// Keeps what this core knows of the register up to date.
#[derive(Debug)]
pub struct Refresher {
    engine: Arc<Engine>,
    metrics: PrometheusHandle,
    /// The register as it was when all of it had been read.
    stamp: Option<Stamp>,
    states: HashMap<CampaignId, State>,
}

impl Refresher {
    /// For the campaigns of `engine`, of which nothing is known yet; `metrics` needs upkeep now and then.
    pub fn new(engine: Arc<Engine>, metrics: PrometheusHandle) -> Self {
        Self { engine, metrics, stamp: None, states: HashMap::new() }
    }

    /// Refreshes, and asks Redis and SQL how they are, until `stop` turns true.
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
                drop_evicted(&engine)
            );
        };
        tokio::select! {
            () = all => {}
            _ = stop.wait_for(|stop| *stop) => {}
        }
    }

    /// Takes in every campaign that has changed since this was last done, and puts what has changed into force in Redis.
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
        // Only now: had anything failed before, all of it would be done again.
        self.stamp = Some(stamp);
        for handle in ids.iter().filter_map(|id| self.engine.registry.get(id)) {
            self.put_into_force(&handle).await;
        }
        Ok(())
    }

    /// Reads the rows of `ids`. One that cannot be read is said once and left as it was known; the others are read.
    async fn read(&self, sql: &SqlStore, ids: &[CampaignId]) -> Result<(), SqlError> {
        if ids.len() > SINGLY_MAX {
            return self.read_pages(sql).await;
        }
        for id in ids {
            match within(sql.campaign(id)).await {
                Ok(Some(campaign)) => drop(self.engine.registry.update(campaign)),
                Ok(None) => {}
                Err(SqlError::Unreadable(why)) => {
                    tracing::error!(campaign = %id, why, "its row in the register cannot be read; it stays as it was");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn read_pages(&self, sql: &SqlStore) -> Result<(), SqlError> {
        let mut after = String::new();
        loop {
            let page = within(sql.campaigns(&after, REGISTER_PAGE)).await?;
            let Some(last) = page.last else { return Ok(()) };
            after = last;
            for campaign in page.campaigns {
                self.engine.registry.update(campaign);
            }
        }
    }

    /// Puts a campaign's rules into force, if they are not and the campaign is ready; one that is not gets them when it is.
    async fn put_into_force(&self, handle: &CampaignHandle) {
        if !handle.is_in_redis() || !handle.rules_are_due() {
            return;
        }
        let why = match timeout(APPLY_MAX, self.engine.put_into_force(handle)).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer in time".to_owned(),
        };
        tracing::warn!(why, campaign = %handle.campaign().id, "rules not in force yet");
    }

    /// Rules that could not be put into force when they changed, and those that have been in force for long.
    async fn renew(&self) {
        let until = Instant::now() + RENEWAL_MAX;
        for handle in self.engine.registry.all() {
            self.put_into_force(&handle).await;
            if Instant::now() > until {
                return;
            }
        }
    }
}

async fn follow(refresher: &mut Refresher) {
    let mut ticks = each(REFRESH);
    let mut failed = false;
    loop {
        ticks.tick().await;
        match refresher.refresh().await {
            Ok(()) => failed = false,
            Err(error) if failed => tracing::debug!(%error, "the register is not followed"),
            Err(error) => {
                tracing::warn!(%error, "the register is not followed");
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
        engine.health.redis.record("redis", answer);
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
        // Away for a moment, it may have been replaced by a copy that lacks what was committed last.
        let answered = answer.as_ref().ok().copied();
        if answered.is_some() && answered != run {
            returns.send_modify(|returns| *returns += 1);
        }
        run = answered;
        engine.health.sql.record("sql", answer.map(drop));
    }
}

/// What campaigns that were evicted by a core that died then have left in Redis.
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

/// Lanes that nobody uses, with what they know by heart.
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

/// An answer of the register, in time.
async fn within<T>(answer: impl Future<Output = Result<T, SqlError>>) -> Result<T, SqlError> {
    timeout(REGISTER_MAX, answer).await.unwrap_or(Err(SqlError::Sql(sqlx::Error::PoolTimedOut)))
}
