//! Follows the database for changes that other cores made, checks the health of Redis and SQL, and frees what is not used
//! any more.
//!
//! Each of these is a task of its own, so that a store that hangs holds up no other: health changes within 3 s.

use std::collections::{HashSet, VecDeque};
use std::iter;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use claimgate_shared::CampaignId;
use futures_util::{StreamExt as _, stream};
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, timeout};

use super::{lost_rows, replicas};
use crate::domain::campaign::Campaign;
use crate::domain::counters::ChangeNumber;
use crate::engine::Engine;
use crate::engine::handle::CampaignHandle;
use crate::metrics::PrometheusHandle;
use crate::store::sql::SqlError;

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
/// How long one refresh may begin to apply rules.
const APPLIES_TIME_MAX: Duration = Duration::from_millis(500);
const PAGE: u32 = 1000;
/// Campaigns read in each refresh though no number says that they have changed: an older version gives none, nor does
/// an operator who writes to the database by hand. Of 10,000 each is read in 100 s.
const ROUND_PAGE: u32 = 100;
/// How often the keys that an eviction has left behind are dropped.
const DROP: Duration = Duration::from_secs(10);
/// A queue that was not used for between one and two of these is dropped.
const IDLE: Duration = Duration::from_secs(300);

/// Keeps this core's campaigns up to date with the database.
#[derive(Debug)]
pub struct Refresher {
    engine: Arc<Engine>,
    metrics: PrometheusHandle,
    /// The last change that was read; `None` before the campaigns were read at all.
    read_up_to: Option<ChangeNumber>,
    /// The id after which the round through all campaigns goes on.
    round: String,
    due: DueRules,
}

/// Campaigns whose rules may have to be applied in Redis, each once, those first that have waited longest.
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
    /// A refresher of the campaigns of `engine`, which has read none yet; runs the periodic upkeep of `metrics`.
    pub fn new(engine: Arc<Engine>, metrics: PrometheusHandle) -> Self {
        Self { engine, metrics, read_up_to: None, round: String::new(), due: DueRules::default() }
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
                drop_idle(&engine),
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

    /// Reads every campaign that has changed since the last refresh and some of all others, and applies rules in Redis
    /// that are not in force there; the first time it reads all campaigns that are not evicted.
    ///
    /// # Errors
    /// When SQL does not answer: the next call reads the same changes.
    pub async fn refresh(&mut self) -> Result<(), SqlError> {
        let read = self.read().await;
        // Also while SQL is away: Redis may be back.
        self.put_into_force().await;
        read
    }

    async fn read(&mut self) -> Result<(), SqlError> {
        let sql = self.engine.sync.sql.clone();
        let now = within(sql.last_change()).await?;
        match self.read_up_to {
            Some(last) if now == last => {}
            Some(last) if now > last => self.read_changes(last).await?,
            // The first time, or an older copy of the database has come back.
            _ => self.read_all(now).await?,
        }
        let page = within(sql.campaigns_in_redis(&self.round, ROUND_PAGE)).await?;
        self.round = page.last.filter(|_| page.is_full).unwrap_or_default();
        self.take(page.campaigns);
        Ok(())
    }

    /// Reads all campaigns that Redis has to hold, and all that this core knows, after the change `last`: what changes while
    /// they are read is read again. The maintenance looks at them by itself, in its first round.
    async fn read_all(&mut self, last: ChangeNumber) -> Result<(), SqlError> {
        let sql = self.engine.sync.sql.clone();
        let mut known = self.engine.registry.all();
        let (mut after, mut read) = (String::new(), HashSet::new());
        loop {
            let page = within(sql.campaigns_in_redis(&after, PAGE)).await?;
            for campaign in page.campaigns {
                read.insert(campaign.id.clone());
                self.take_one(&campaign);
            }
            match page.last {
                Some(id) if page.is_full => after = id,
                _ => break,
            }
        }
        // Those that were asked for and are evicted, or have been since.
        known.retain(|handle| !read.contains(&handle.campaign().id));
        for handle in known {
            let id = &handle.campaign().id;
            match within(sql.campaign(id)).await {
                // The first time, nothing is known yet; later, an older copy of the database has come back.
                Ok(None) => handle.suspect_sql(),
                Ok(Some(campaign)) => self.take(vec![campaign]),
                Err(SqlError::Unreadable(why)) => {
                    tracing::error!(campaign = %id, why, "its row in the database cannot be read; it stays as it was");
                }
                Err(error) => return Err(error),
            }
        }
        self.read_up_to = Some(last);
        Ok(())
    }

    async fn read_changes(&mut self, mut after: ChangeNumber) -> Result<(), SqlError> {
        let sql = self.engine.sync.sql.clone();
        loop {
            let (page, last) = within(sql.changed(after, PAGE)).await?;
            self.take(page.campaigns);
            after = last;
            self.read_up_to = Some(last);
            if !page.is_full {
                return Ok(());
            }
        }
    }

    /// Takes over campaigns as the database has them. Those that are evicted are read when they are asked for.
    fn take(&mut self, campaigns: Vec<Campaign>) {
        for campaign in campaigns {
            if campaign.evicted.is_some() && self.engine.registry.get(&campaign.id).is_none() {
                continue;
            }
            let handle = self.take_one(&campaign);
            if !handle.is_ready() && handle.campaign().evicted.is_none() {
                // Another core has created it, or brought it back.
                handle.needs_maintenance();
            }
        }
    }

    /// Takes over a campaign as the database has it. One that is further than that is checked: an older copy of the database
    /// may have come back.
    fn take_one(&mut self, campaign: &Campaign) -> Arc<CampaignHandle> {
        let handle = self.engine.registry.update(campaign.clone());
        if handle.is_ahead_of(Some(campaign)) {
            handle.suspect_sql();
        }
        self.due.push(Arc::clone(&handle));
        handle
    }

    /// Applies rules where that is due, each campaign's once, beginning with none after [`APPLIES_TIME_MAX`].
    async fn put_into_force(&mut self) {
        let until = Instant::now() + APPLIES_TIME_MAX;
        let (engine, due) = (&self.engine, &mut self.due);
        let mut left = due.queue.len();
        let in_time = iter::from_fn(|| {
            left = left.checked_sub(1).filter(|_| Instant::now() <= until)?;
            due.pop()
        });
        let applied = |handle: Arc<CampaignHandle>| async move {
            put_into_force(engine, &handle).await;
            handle
        };
        let tried: Vec<_> = stream::iter(in_time).map(applied).buffer_unordered(APPLIES_MAX).collect().await;
        for handle in tried {
            due.push(handle);
        }
    }
}

/// Applies a campaign's rules if that is needed and the campaign is ready; one that is not gets them by being loaded.
async fn put_into_force(engine: &Engine, handle: &CampaignHandle) {
    if !handle.is_in_redis() || !handle.rules_are_due() {
        return;
    }
    let why = match timeout(APPLY_MAX, engine.put_into_force(handle, None)).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no answer in time".to_owned(),
    };
    tracing::warn!(why, campaign = %handle.campaign().id, "rules not applied yet");
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

/// Drops the queues that no claim uses, with their sold-out caches, and evicted campaigns that nothing is at work on.
async fn drop_idle(engine: &Engine) {
    let mut ticks = each(IDLE);
    loop {
        ticks.tick().await;
        let dropped = engine.batcher.drop_idle_queues();
        if dropped > 0 {
            tracing::debug!(dropped, "idle queues are dropped");
        }
        engine.registry.forget_evicted();
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
