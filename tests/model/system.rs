//! Core's modules except HTTP, with a real Redis server on a frozen clock and a real SQLite file.

use std::cell::Cell;
use std::future::ready;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use claimgate_core::config::sqlite_url;
use claimgate_core::domain::campaign::{Campaign, ShownProgress};
use claimgate_core::domain::campaign_change::NewCampaign;
use claimgate_core::domain::claim_record::ClaimRecord;
use claimgate_core::domain::claim_transition::ClaimTransition;
use claimgate_core::engine::Engine;
use claimgate_core::engine::campaign::handle::CampaignHandle;
use claimgate_core::engine::claim::batcher::Decision;
use claimgate_core::engine::error::{EngineError, NoDecision};
use claimgate_core::engine::lifecycle::recovery::Recovered;
use claimgate_core::jobs::outbox_relay::OutboxRelay;
use claimgate_core::redis_address::RedisAddress;
use claimgate_core::store::redis::scripts::replies::Counters;
use claimgate_core::store::sql::{Change, Changed, ClaimCursor, ClaimFilter, ClaimRow, SqlStore};
use claimgate_shared::campaign;
use claimgate_shared::{
    Attempt, ClaimId, ClaimRequest, Limits as CoreLimits, PassRule, ShownPass, Timestamp, Version, Window,
};
use futures_util::future::{join, join_all};
use rustix::process::Signal;
use serde_json::json;
use support::clock::FrozenClock;
use support::process::signal_pids;
use support::wait::eventually;
use support::{RedisView, SOON, Servers, Sql};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::Instant;

use super::failure::Failure;
use super::operations::{CAMPAIGN, ClaimAttempt};
use super::reference::{AdminState, Answer, HELD_MS_MAX, Pass, Rules, Transition, Transitioned, View};
use super::words;

const HELD_MAX: Duration = Duration::from_millis(HELD_MS_MAX.unsigned_abs());

/// The Redis, SQL and core of one campaign.
#[derive(Debug)]
pub struct System {
    pub clock: FrozenClock,
    redis: Servers,
    sql: SqlStore,
    core: Core,
    copied: Vec<(String, Vec<u8>)>,
    /// Direct access to the database.
    tables: Sql,
    /// Whether Redis is stopped until the next call has got no answer.
    is_redis_stopped: Cell<bool>,
    /// Number of calls that got no answer in time.
    unanswered: Cell<u64>,
    _directory: TempDir,
}

/// The state that core loses when it is killed.
#[derive(Debug)]
struct Core {
    engine: Engine,
    handle: Arc<CampaignHandle>,
}

impl Core {
    fn start(redis: &Servers, sql: &SqlStore, campaign: Campaign) -> Self {
        let address = RedisAddress::parse(&redis.url(), None).expect("a Redis address");
        let engine = Engine::builder(sql.clone()).archive_after(Duration::MAX).hold_extension_max(HELD_MAX);
        let engine = engine.on(address);
        let handle = engine.registry.update(campaign);
        Self { engine, handle }
    }

    /// Sends any claim as a first try, so that the cache denies it where possible and must also be right for
    /// retries.
    async fn claim(&self, request: &ClaimRequest, pass: Option<ShownPass>) -> Result<Decision, EngineError> {
        self.engine.claims.batcher.claim(&self.handle, request, Attempt::First, pass).await
    }
}

impl System {
    /// Creates a new campaign, loaded into Redis and open to calls.
    pub async fn start(rules: &Rules, begins_at: i64) -> Self {
        let clock = FrozenClock::at(begins_at);
        let redis = Servers::start_frozen(&clock).await;
        let directory = tempfile::Builder::new().prefix("cgm-").tempdir().expect("a temporary directory");
        let sql = SqlStore::open(&sqlite_url(&directory.path().join("claimgate.sqlite"))).await;
        let sql = sql.expect("SQL opens");
        let tables = Sql::in_directory(directory.path());
        let campaign = new_campaign(rules);
        sql.create(&campaign, change_at(begins_at)).await.expect("SQL answers");
        let core = Core::start(&redis, &sql, campaign);
        core.engine.recovery.ensure_ready(&core.handle).await.expect("loaded");
        Self {
            clock,
            redis,
            sql,
            core,
            copied: Vec::new(),
            tables,
            is_redis_stopped: Cell::new(false),
            unanswered: Cell::new(0),
            _directory: directory,
        }
    }

    /// Suspends Redis, without killing it, until the next call has got no answer.
    pub fn stop_redis(&self) {
        signal_pids(&self.redis.pids(), Signal::STOP);
        self.is_redis_stopped.set(true);
    }

    /// Returns the number of calls that got no answer in time.
    pub fn unanswered(&self) -> u64 {
        self.unanswered.get()
    }

    /// Counts a call without an answer, and resumes Redis (SIGCONT) if it is stopped.
    fn record<T>(&self, result: Result<T, Failure>) -> Result<T, Failure> {
        if result.as_ref().is_err_and(Failure::is_unavailable) {
            self.unanswered.update(|count| count + 1);
            if self.is_redis_stopped.take() {
                signal_pids(&self.redis.pids(), Signal::CONT);
            }
        }
        result
    }

    /// Retries an idempotent call as long as its answer comes too late.
    async fn answered<T, E: Into<Failure>>(
        &self,
        call: impl AsyncFn() -> Result<T, E>,
    ) -> Result<T, Failure> {
        let first = self.record(call().await.map_err(Into::into));
        if !first.as_ref().is_err_and(Failure::is_unavailable) {
            return first;
        }
        eventually(SOON, || async {
            match call().await.map_err(Into::into) {
                Err(failure) if failure.is_unavailable() => Err(failure.to_string()),
                result => Ok(result),
            }
        })
        .await
    }

    /// Sends claims concurrently; `Err` if any has no decision.
    pub async fn claims(&self, attempts: &[ClaimAttempt]) -> Result<Vec<Answer>, Failure> {
        let requests: Vec<_> =
            attempts.iter().map(|attempt| (attempt.request(), shown_pass(attempt.pass))).collect();
        let decisions = requests.iter().map(|(request, pass)| self.core.claim(request, *pass));
        self.record(answers(join_all(decisions).await))
    }

    /// Sends the same claims until all have a decision.
    pub async fn claims_until_decided(&self, attempts: &[ClaimAttempt]) -> Vec<Answer> {
        let requests: Vec<_> =
            attempts.iter().map(|attempt| (attempt.request(), shown_pass(attempt.pass))).collect();
        eventually(SOON, || async {
            self.is_connected().await;
            let decisions = requests.iter().map(|(request, pass)| self.core.claim(request, *pass));
            Ok(answers(join_all(decisions).await)?)
        })
        .await
    }

    /// Sends claims that must get no decision; returns the reason.
    pub async fn refusal(&self, attempts: &[ClaimAttempt]) -> Result<NoDecision, String> {
        match self.answered(async || self.claims(attempts).await).await {
            Err(Failure { no_decision: Some(reason), .. }) => Ok(reason),
            other => Err(format!("{other:?}")),
        }
    }

    /// Sends claims concurrently and kills Redis after `yields`; restarts it afterwards.
    pub async fn claims_in_crash(
        &mut self,
        attempts: &[ClaimAttempt],
        yields: u32,
    ) -> Result<Vec<Answer>, Failure> {
        let requests: Vec<_> =
            attempts.iter().map(|attempt| (attempt.request(), shown_pass(attempt.pass))).collect();
        let decisions = requests.iter().map(|(request, pass)| self.core.claim(request, *pass));
        let redis = &mut self.redis;
        let killed = async {
            for _ in 0..yields {
                yield_now().await;
            }
            redis.kill();
        };
        let (decisions, ()) = join(join_all(decisions), killed).await;
        self.restart_redis().await;
        answers(decisions)
    }

    /// Moves Redis' clock.
    pub async fn set_clock(&mut self, to_ms: i64) {
        self.redis.set_frozen_clock(&mut self.clock, to_ms).await;
        self.changed();
    }

    /// Drops the batcher's cached "sold out" state, as core does after its own changes. Otherwise the state
    /// expires within 100 ms.
    fn changed(&self) {
        self.core.engine.claims.batcher.invalidate(&self.core.handle.campaign().id);
    }

    /// Confirms, returns or extends a claim.
    pub async fn transition(
        &self,
        attempt: &ClaimAttempt,
        transition: Transition,
    ) -> Result<Option<Transitioned>, Failure> {
        let transition = match transition {
            Transition::Confirm => ClaimTransition::Confirm,
            Transition::Return => ClaimTransition::Return,
            Transition::Extend => ClaimTransition::Extend { max: HELD_MAX },
        };
        let (core, id) = (&self.core, attempt.claim_id());
        let stores = &core.engine.stores;
        let changed = self
            .answered(async || stores.transition(&core.handle, &id, transition, "model".into()).await)
            .await;
        self.changed();
        Ok(changed?.as_ref().map(words::transitioned))
    }

    /// Reads the claim and the counters from Redis.
    pub async fn look_up(&self, attempt: &ClaimAttempt) -> Result<(Counters, Option<View>), Failure> {
        let (counters, record) = self.read(Some(&attempt.claim_id())).await?;
        Ok((counters, record.as_ref().map(words::record_view)))
    }

    async fn read(&self, id: Option<&ClaimId>) -> Result<(Counters, Option<ClaimRecord>), Failure> {
        self.answered(async || self.core.engine.stores.read(&self.core.handle, id).await).await
    }

    /// Applies new rules: to SQL first, then to Redis.
    pub async fn change(&self, rules: &Rules) -> Result<(), Failure> {
        let before = self.core.handle.campaign();
        let after = with_rules(&before, rules);
        let (change, shown) = (change_at(self.clock.now_ms()), ready(Some(ShownProgress::default())));
        let changed = self.sql.change(before.version, &after, change, shown).await;
        let Ok(Some(Changed::Done(campaign) | Changed::Unchanged(campaign))) = changed else {
            return Err(format!("{changed:?}").into());
        };
        self.core.engine.registry.update(campaign);
        let Core { engine, handle } = &self.core;
        let changed = self.answered(async || engine.changes.put_into_force(handle, None).await).await;
        self.changed();
        changed
    }

    /// Pauses the campaign as an admin does; returns the version that SQL has afterwards.
    pub async fn pause(&self) -> Result<u64, Failure> {
        let (id, now) = (self.core.handle.campaign().id.clone(), self.clock.now_ms());
        let (changes, paused) = (&self.core.engine.changes, campaign::AdminState::Paused);
        let result = self.answered(async || changes.set_admin_state(&id, paused, change_at(now)).await).await;
        self.changed();
        result?;
        let row = self.sql.campaign(&id).await.expect("SQL answers").expect("the campaign");
        Ok(row.version.get())
    }

    /// Runs the recovery on the campaign, which also expires holds.
    pub async fn maintain(&self) -> Result<Recovered, Failure> {
        let Core { engine, handle } = &self.core;
        let recovered = self.answered(async || engine.recovery.maintain(handle).await).await;
        self.changed();
        recovered
    }

    /// Relays until the outbox is empty.
    pub async fn relay(&self) -> Result<(), Failure> {
        let (stop, relay) = self.start_relay();
        let started = Instant::now();
        loop {
            let (counters, _) = self.read(None).await?;
            if counters.backlog == 0 {
                break;
            }
            if started.elapsed() > SOON {
                return Err(format!("{} events are still in the outbox", counters.backlog).into());
            }
        }
        stop.send_replace(true);
        relay.await.map_err(|error| error.to_string().into())
    }

    /// Relays during `reads` reads of the campaign, then aborts the relay at an arbitrary point.
    pub async fn relay_cut(&self, reads: u32) -> Result<(), Failure> {
        let (_stop, relay) = self.start_relay();
        for _ in 0..reads {
            self.read(None).await?;
        }
        relay.abort();
        let _ = relay.await;
        Ok(())
    }

    fn start_relay(&self) -> (watch::Sender<bool>, JoinHandle<()>) {
        let (stop, stopped) = watch::channel(false);
        let relay = OutboxRelay::new(&self.core.engine, "model".to_owned());
        (stop, tokio::spawn(relay.run(stopped)))
    }

    /// Kills Redis with SIGKILL and restarts it.
    pub async fn restart_redis(&mut self) {
        self.redis.kill_and_restart_frozen(&self.clock).await;
        self.is_connected().await;
        self.changed();
    }

    /// Waits until core is connected to Redis. If core tried to connect too early, it waits before it
    /// retries, and until then each of several claims is sent separately.
    async fn is_connected(&self) {
        eventually(SOON, || async {
            self.core.engine.stores.redis.probe().await.outcome.map_err(|error| error.to_string())
        })
        .await;
    }

    /// Demotes Redis to a replica and promotes it, which changes the replication id. A new core connects
    /// afterwards.
    pub async fn promote_redis(&mut self) {
        let redis = self.redis.view().await;
        redis.query::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
        redis.query::<()>(&["REPLICAOF", "NO", "ONE"]).await;
        self.restart_core().await;
    }

    /// Starts a core that has only the data in SQL and Redis.
    pub async fn restart_core(&mut self) {
        let id = CAMPAIGN.parse().expect("an id");
        let campaign = self.sql.campaign(&id).await.expect("SQL answers").expect("the campaign");
        self.core = Core::start(&self.redis, &self.sql, campaign);
    }

    /// Deletes the keys of `mask` from Redis; returns whether data is lost that SQL does not have.
    pub async fn lose_keys(&self, mask: u8) -> bool {
        let keys = self.core.handle.keys.all();
        let lost = keys.iter().enumerate().filter(|(at, _)| mask >> at & 1 == 1).map(|(_, key)| *key);
        let words: Vec<_> = std::iter::once("UNLINK").chain(lost).collect();
        self.redis.view().await.query::<u64>(&words).await;
        self.changed();
        // With state, users and claims all present, SQL can recover the outbox's events from them.
        words.contains(&keys[4]) && keys[..3].iter().any(|key| words.contains(key))
    }

    /// Removes Redis' free memory, or restores it.
    pub async fn starve(&self, starve: bool) {
        let bytes = if starve { "1" } else { "0" };
        self.redis.view().await.query_all::<()>(&["CONFIG", "SET", "maxmemory", bytes]).await;
        self.changed();
    }

    /// Relays until the outbox is empty, reading Redis directly.
    pub async fn relay_starved(&self) -> Result<(), String> {
        let (stop, relay) = self.start_relay();
        let (redis, started) = (self.redis.view().await, Instant::now());
        while redis.outbox_entries(CAMPAIGN).await > 1 {
            if started.elapsed() > SOON {
                return Err("the outbox is not relayed while Redis is out of memory".to_owned());
            }
        }
        stop.send_replace(true);
        relay.await.map_err(|error| error.to_string())
    }

    /// Copies the campaign's keys.
    pub async fn copy(&mut self) {
        let redis = self.redis.view().await;
        self.copied.clear();
        for key in self.core.handle.keys.all() {
            self.copied.push((key.to_owned(), redis.run(redis::cmd("DUMP").arg(key)).await));
        }
    }

    /// Kills Redis and restarts it with the copy in place of the campaign's keys.
    pub async fn restart_redis_on_copy(&mut self) {
        let redis = self.redis.view().await;
        for (key, dump) in &self.copied {
            redis.run::<()>(redis::cmd("RESTORE").arg(key).arg(0).arg(dump).arg("REPLACE")).await;
        }
        self.restart_redis().await;
    }

    /// Copies the database.
    pub async fn copy_sql(&self) {
        self.tables.copy_tables().await;
    }

    /// Replaces the database by the copy. Core notices that within a second; with `restarts`, a new core
    /// notices it.
    pub async fn forget_sql(&mut self, restarts: bool) {
        self.tables.restore_tables().await;
        if restarts {
            self.restart_core().await;
        }
        self.core.handle.suspect_sql_loss();
        self.changed();
    }

    /// Opens a direct connection to Redis.
    pub async fn redis(&self) -> RedisView {
        self.redis.view().await
    }

    /// Returns all rows of SQL, and the sum of their units.
    pub async fn rows(&self) -> (Vec<ClaimRow>, u64) {
        let id = CAMPAIGN.parse().expect("an id");
        let (filter, start) = (ClaimFilter::default(), ClaimCursor::default());
        let page = self.sql.claims(&id, &filter, &start, u32::MAX).await.expect("SQL answers");
        let totals = self.sql.totals(&id).await.expect("SQL answers");
        (page.rows, totals.taken)
    }
}

fn answers(decisions: Vec<Result<Decision, EngineError>>) -> Result<Vec<Answer>, Failure> {
    decisions.into_iter().map(|decision| Ok(words::answer(&decision?))).collect()
}

fn shown_pass(pass: Pass) -> Option<ShownPass> {
    match pass {
        Pass::Missing => None,
        Pass::Shown => Some(ShownPass::UNLIMITED),
        Pass::Units(units) => Some(ShownPass { units: NonZeroU32::new(units) }),
    }
}

fn change_at(ms: i64) -> Change<'static> {
    Change { who: "model", what: "update", at: timestamp(ms) }
}

fn timestamp(ms: i64) -> Timestamp {
    Timestamp::from_ms(ms).expect("an instant")
}

fn new_campaign(rules: &Rules) -> Campaign {
    let body = json!({
        "id": CAMPAIGN, "name": "model", "starts_at": timestamp(rules.starts_at),
        "time_zone": rules.zone.iana_name(), "hold_seconds": rules.hold_ms.map(|ms| ms / 1000),
    });
    let new = NewCampaign::parse(body.to_string().as_bytes()).expect("a campaign");
    with_rules(&new.created_at(timestamp(rules.starts_at)).expect("a campaign"), rules)
}

fn with_rules(campaign: &Campaign, rules: &Rules) -> Campaign {
    let limit = |limit: Option<u32>| limit.and_then(NonZeroU32::new);
    let window = Window::new(timestamp(rules.starts_at), rules.ends_at.map(timestamp));
    Campaign {
        window: window.expect("a window"),
        limits: CoreLimits {
            total: rules.limits.total,
            per_user: limit(rules.limits.per_user),
            per_user_per_day: limit(rules.limits.per_user_per_day),
            per_claim: limit(rules.limits.per_claim),
        },
        admin_state: match rules.admin_state {
            AdminState::On => campaign::AdminState::On,
            AdminState::Paused => campaign::AdminState::Paused,
            AdminState::Ended => campaign::AdminState::Ended,
        },
        pass: rules.pass_until.map(|until| match until {
            i64::MAX => PassRule::Always,
            until => PassRule::Until { until: timestamp(until) },
        }),
        version: Version::new(rules.version),
        ..campaign.clone()
    }
}
