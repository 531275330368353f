//! Core's own parts against a real Redis on a clock that stands still, and a real SQLite file: everything but HTTP.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use claimgate_core::config::sqlite_url;
use claimgate_core::domain::campaign::Campaign;
use claimgate_core::domain::campaign_change::NewCampaign;
use claimgate_core::domain::claim_transition::ClaimTransition;
use claimgate_core::engine::Engine;
use claimgate_core::engine::batcher::{BatcherError, Decision};
use claimgate_core::engine::handle::CampaignHandle;
use claimgate_core::engine::recovery::Recovered;
use claimgate_core::jobs::outbox_relay::OutboxRelay;
use claimgate_core::redis_address::RedisAddress;
use claimgate_core::store::redis::replies::Counters;
use claimgate_core::store::sql::{Change, Changed, ClaimCursor, ClaimFilter, ClaimRow, SqlStore};
use claimgate_shared::campaign;
use claimgate_shared::{Attempt, ClaimId, ClaimRequest, Limits as CoreLimits, Timestamp, Version, Window};
use futures_util::future::{join, join_all};
use serde_json::json;
use support::clock::FrozenClock;
use support::wait::{SOON, eventually};
use support::{RedisView, Servers, Sql};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::Instant;

use super::operations::Ask;
use super::reference::{AdminState, Answer, Id, Rules, Transition, View};
use super::words;

/// The campaign that is played with.
pub const CAMPAIGN: &str = "model";

/// One campaign's Redis, SQL and core.
#[derive(Debug)]
pub struct System {
    pub clock: FrozenClock,
    redis: Servers,
    sql: SqlStore,
    core: Core,
    copied: Vec<(String, Vec<u8>)>,
    /// The database, past core.
    tables: Sql,
    _directory: TempDir,
}

/// What core forgets when it is killed.
#[derive(Debug)]
struct Core {
    engine: Engine,
    handle: Arc<CampaignHandle>,
}

impl Core {
    fn start(redis: &Servers, sql: &SqlStore, campaign: Campaign) -> Self {
        let address = RedisAddress::parse(&redis.url(), None).expect("a Redis address");
        let engine = Engine::builder(sql.clone()).archive_after(Duration::MAX).on(address);
        let handle = engine.registry.update(campaign);
        Self { engine, handle }
    }

    /// Claims. All as first tries, whatever they are: so they are refused from memory wherever that is possible, and what one
    /// core alone remembers is to be right for retries, too.
    async fn claim(&self, request: &ClaimRequest) -> Result<Decision, BatcherError> {
        self.engine.batcher.claim(&self.handle, request, Attempt::First).await
    }
}

impl System {
    /// A new campaign, loaded into Redis and open to calls.
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
        Self { clock, redis, sql, core, copied: Vec::new(), tables, _directory: directory }
    }

    /// Claims together; `Err` when any was not decided.
    pub async fn claims(&self, asks: &[Ask]) -> Result<Vec<Answer>, String> {
        let requests: Vec<_> = asks.iter().map(request).collect();
        let decisions = requests.iter().map(|request| self.core.claim(request));
        let decisions = join_all(decisions).await.into_iter();
        decisions.map(|decision| decision.as_ref().map(words::answer).map_err(ToString::to_string)).collect()
    }

    /// Claims together, with Redis killed after `yields`; it is back afterwards.
    pub async fn claims_in_crash(&mut self, asks: &[Ask], yields: u32) -> Result<Vec<Answer>, String> {
        let requests: Vec<_> = asks.iter().map(request).collect();
        let decisions = requests.iter().map(|request| self.core.claim(request));
        let redis = &mut self.redis;
        let killed = async {
            for _ in 0..yields {
                yield_now().await;
            }
            redis.kill();
        };
        let (decisions, ()) = join(join_all(decisions), killed).await;
        self.restart_redis().await;
        let decisions = decisions.into_iter();
        decisions.map(|decision| decision.as_ref().map(words::answer).map_err(ToString::to_string)).collect()
    }

    /// Moves Redis' clock.
    pub async fn set_clock(&mut self, to_ms: i64) {
        self.redis.set_frozen_clock(&mut self.clock, to_ms).await;
        self.changed();
    }

    /// Drops what the batcher has cached of being sold out, which may be 100 ms old: as core does after its own
    /// changes, and as time does with the rest.
    fn changed(&self) {
        self.core.engine.batcher.invalidate(&self.core.handle.campaign().id);
    }

    /// Confirms or returns.
    pub async fn transition(&self, ask: &Ask, transition: Transition) -> Result<Option<View>, String> {
        let transition = match transition {
            Transition::Confirm => ClaimTransition::Confirm,
            Transition::Return => ClaimTransition::Return,
        };
        let (core, id) = (&self.core, claim_id(ask));
        let changed = core.engine.sync.transition(&core.handle, &id, transition, "model").await;
        self.changed();
        Ok(changed.map_err(|error| error.to_string())?.as_ref().map(words::record_view))
    }

    /// The claim as Redis has it, and the counters.
    pub async fn look_up(&self, ask: &Ask) -> Result<(Counters, Option<View>), String> {
        let found = self.core.engine.sync.read(&self.core.handle, Some(&claim_id(ask))).await;
        let (counters, record) = found.map_err(|error| error.to_string())?;
        Ok((counters, record.as_ref().map(words::record_view)))
    }

    /// Puts new rules into force: SQL first, then Redis.
    pub async fn change(&self, rules: &Rules) -> Result<(), String> {
        let before = self.core.handle.campaign();
        let after = with_rules(&before, rules);
        let changed = self.sql.change(before.version, &after, change_at(self.clock.now_ms())).await;
        let Ok(Some(Changed::Done(campaign) | Changed::AsBefore(campaign))) = changed else {
            return Err(format!("{changed:?}"));
        };
        self.core.engine.registry.update(campaign);
        let changed = self.core.engine.put_into_force(&self.core.handle, None).await;
        self.changed();
        changed.map_err(|error| error.to_string())
    }

    /// Runs the recovery on the campaign, which sweeps holds too.
    pub async fn maintain(&self) -> Result<Recovered, String> {
        let recovered = self.core.engine.recovery.maintain(&self.core.handle).await;
        self.changed();
        recovered.map_err(|error| error.to_string())
    }

    /// Relays until the outbox is empty.
    pub async fn relay(&self) -> Result<(), String> {
        let (stop, relay) = self.start_relay();
        let started = Instant::now();
        loop {
            let (counters, _) = self
                .core
                .engine
                .sync
                .read(&self.core.handle, None)
                .await
                .map_err(|error| error.to_string())?;
            if counters.backlog == 0 {
                break;
            }
            if started.elapsed() > SOON {
                return Err(format!("{} events are still in the outbox", counters.backlog));
            }
        }
        stop.send_replace(true);
        relay.await.map_err(|error| error.to_string())
    }

    /// Relays for as long as `looks` at the campaign take, and is cut off wherever it is then.
    pub async fn relay_cut(&self, looks: u32) -> Result<(), String> {
        let (_stop, relay) = self.start_relay();
        for _ in 0..looks {
            self.core.engine.sync.read(&self.core.handle, None).await.map_err(|error| error.to_string())?;
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

    /// `kill -9` of Redis, and back.
    pub async fn restart_redis(&mut self) {
        self.redis.kill_and_restart_frozen(&self.clock).await;
        // Core may have tried to connect a moment too soon, and then lets a little time pass.
        eventually(SOON, || async {
            self.core.engine.sync.redis.ping().await.map_err(|error| error.to_string())
        })
        .await;
        self.changed();
    }

    /// A core that knows only what SQL and Redis know.
    pub async fn restart_core(&mut self) {
        let id = CAMPAIGN.parse().expect("an id");
        let campaign = self.sql.campaign(&id).await.expect("SQL answers").expect("the campaign");
        self.core = Core::start(&self.redis, &self.sql, campaign);
    }

    /// Takes the keys of `mask` out of Redis; whether what SQL has not heard of is lost with them.
    pub async fn lose_keys(&self, mask: u8) -> bool {
        let keys = self.core.handle.keys.all();
        let lost = keys.iter().enumerate().filter(|(at, _)| mask >> at & 1 == 1).map(|(_, key)| *key);
        let words: Vec<_> = std::iter::once("UNLINK").chain(lost).collect();
        self.redis.view().await.query::<u64>(&words).await;
        self.changed();
        // With the counters, the users and the claims all there, SQL gets from them what the outbox would have told.
        words.contains(&keys[4]) && keys[..3].iter().any(|key| words.contains(key))
    }

    /// Takes all memory from Redis, or gives it back.
    pub async fn starve(&self, starve: bool) {
        let bytes = if starve { "1" } else { "0" };
        self.redis.view().await.query_all::<()>(&["CONFIG", "SET", "maxmemory", bytes]).await;
        self.changed();
    }

    /// Relays until the outbox is empty, asking Redis past core.
    pub async fn relay_starved(&self) -> Result<(), String> {
        let (stop, relay) = self.start_relay();
        let (redis, started) = (self.redis.view().await, Instant::now());
        while redis.outbox_entries(CAMPAIGN).await > 1 {
            if started.elapsed() > SOON {
                return Err("without memory, the outbox is not relayed".to_owned());
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

    /// Redis dies, and comes back with the copy in place of the campaign's keys.
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

    /// The copy takes the database's place, and core notices, as it does within a second; with `restarts`, another core does.
    pub async fn forget_sql(&mut self, restarts: bool) {
        self.tables.bring_tables_back().await;
        if restarts {
            self.restart_core().await;
        }
        self.core.handle.suspect_sql();
        self.changed();
    }

    /// Redis as it is.
    pub async fn redis(&self) -> RedisView {
        self.redis.view().await
    }

    /// Every row of SQL, and the units it sums them up to.
    pub async fn rows(&self) -> (Vec<ClaimRow>, u64) {
        let id = CAMPAIGN.parse().expect("an id");
        let (filter, start) = (ClaimFilter::default(), ClaimCursor::default());
        let page = self.sql.claims(&id, &filter, &start, u32::MAX).await.expect("SQL answers");
        let totals = self.sql.totals(&id).await.expect("SQL answers");
        (page.rows, totals.taken)
    }
}

/// The id that the model knows a claim by.
pub fn model_id(ask: &Ask) -> Id {
    (ask.user.clone(), claim_id(ask).digest)
}

/// The claim's id.
pub fn claim_id(ask: &Ask) -> ClaimId {
    request(ask).claim_id()
}

fn request(ask: &Ask) -> ClaimRequest {
    ClaimRequest {
        campaign_id: CAMPAIGN.parse().expect("an id"),
        user_id: ask.user.parse().expect("an id"),
        quantity: ask.quantity.try_into().expect("a quantity"),
        idempotency_key: ask.key.parse().expect("a key"),
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
    let campaign =
        NewCampaign::parse(body.to_string().as_bytes(), timestamp(rules.starts_at)).expect("a campaign");
    with_rules(&campaign, rules)
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
        version: Version::new(rules.version),
        ..campaign.clone()
    }
}
