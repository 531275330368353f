//! The threads of one core, each with its own engine: what they share, and their connections.

use std::sync::Arc;
use std::time::Duration;

use claimgate_core::clock;
use claimgate_core::config::sqlite_url;
use claimgate_core::domain::campaign_change::{CampaignPatch, NewCampaign};
use claimgate_core::domain::counters::Generation;
use claimgate_core::engine::Engine;
use claimgate_core::engine::campaign::handle::CampaignHandle;
use claimgate_core::redis_address::RedisAddress;
use claimgate_core::store::redis::topology::slot::Slot;
use claimgate_core::store::sql::SqlStore;
use claimgate_shared::{Attempt, ClaimRequest, Outcome};
use serde_json::json;
use support::only_on;
use support::times::from_now;
use support::topology::ONE_SERVER;
use support::wait::holds;
use support::{SOON, Servers, claim_body, eventually};
use tempfile::TempDir;

/// Starts servers without disk syncs, because an engine in this process has no caller that retries.
async fn redis() -> Servers {
    Servers::start_with(&[("appendfsync", "no")], &[]).await
}

/// Two threads of one core, in this process.
struct Threads {
    first: Engine,
    second: Engine,
    redis: Servers,
    _directory: TempDir,
}

impl Threads {
    /// Connects to the URL of `redis` with `query` appended, such as `?user=name&pass=word`.
    async fn start(redis: Servers, query: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let sql = SqlStore::open(&sqlite_url(&directory.path().join("claimgate.sqlite"))).await.unwrap();
        let url = redis.url() + query;
        let first =
            Engine::builder(sql).archive_after(Duration::MAX).on(RedisAddress::parse(&url, None).unwrap());
        Self { second: first.for_thread(), first, redis, _directory: directory }
    }

    async fn campaign(&self, total: u32) -> Arc<CampaignHandle> {
        let body = json!({"id": "c", "name": "c", "starts_at": from_now(-60), "limits": {"total": total}});
        let campaign = NewCampaign::parse(body.to_string().as_bytes()).unwrap();
        let id = campaign.id().clone();
        self.first.changes.create(campaign, "test", clock::now()).await.unwrap();
        self.first.campaigns.find(&id).await.unwrap()
    }

    async fn generations(&self) -> [Generation; 2] {
        let slot = Slot::of("cg:{c}");
        let generation =
            async |engine: &Engine| engine.stores.redis.session(slot).await.unwrap().generation();
        [generation(&self.first).await, generation(&self.second).await]
    }
}

async fn claim(engine: &Engine, user: &str) -> Result<Outcome, String> {
    let body = claim_body("c", user, "k", 1).to_string();
    let request = ClaimRequest::parse(body.as_bytes()).unwrap();
    let decided = engine.claims.claim(&request, Attempt::First, None, None).await;
    decided.map(|decision| decision.outcome).map_err(|error| error.to_string())
}

async fn claim_and_win(engine: &Engine, user: &str) {
    let outcome = claim(engine, user).await;
    assert!(matches!(outcome, Ok(Outcome::Granted(_))), "{user}: {outcome:?}");
}

#[tokio::test]
async fn a_campaign_loaded_by_one_thread_needs_no_sql_on_another() {
    let threads = Threads::start(redis().await, "").await;
    threads.campaign(10).await;
    claim_and_win(&threads.first, "a").await;
    threads.first.stores.sql.close().await;
    claim_and_win(&threads.second, "b").await;
    let [first, second] = threads.generations().await;
    assert_eq!(first, second);
}

#[tokio::test]
async fn a_redis_restart_ends_the_connections_of_every_thread() {
    let mut threads = Threads::start(redis().await, "").await;
    let handle = threads.campaign(10).await;
    claim_and_win(&threads.first, "a").await;
    claim_and_win(&threads.second, "b").await;
    let [before, _] = threads.generations().await;
    threads.redis.kill_and_restart().await;
    // One thread notices the restart. The other thread, which has not called Redis since, must not reuse its
    // old connection.
    eventually(SOON, || async {
        let outcome = claim(&threads.first, "c").await;
        holds(outcome.is_ok(), || format!("{outcome:?}"))
    })
    .await;
    let [first, second] = threads.generations().await;
    assert!(first > before && second == first, "{before:?}, then {first:?} and {second:?}");
    assert_eq!(handle.synced_run(), first);
    claim_and_win(&threads.second, "d").await;
}

#[tokio::test]
async fn a_campaign_is_synchronized_once_per_run_of_redis() {
    only_on!(ONE_SERVER, "the server becomes a replica");
    let threads = Threads::start(redis().await, "").await;
    let handle = threads.campaign(10).await;
    claim_and_win(&threads.first, "a").await;
    let [begin, _] = threads.generations().await;
    let view = threads.redis.view().await;
    let cut = async || view.query::<u64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
    cut().await;
    claim_and_win(&threads.first, "b").await;
    let [reconnected, _] = threads.generations().await;
    assert!(reconnected > begin && handle.synced_run() == begin);
    // To core, this looks like the promotion of a replica.
    view.query::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
    view.query::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    cut().await;
    let outcome = claim(&threads.first, "c").await;
    assert!(outcome.is_err() && handle.synced_run() > reconnected, "{outcome:?}");
}

#[tokio::test]
async fn without_the_info_command_threads_share_one_connection() {
    only_on!(ONE_SERVER, "an ACL user of one server");
    let redis = redis().await;
    let view = redis.view().await;
    view.query::<()>(&["ACL", "SETUSER", "core", "on", ">secret", "~*", "+@all", "-info"]).await;
    let threads = Threads::start(redis, "?user=core&pass=secret").await;
    threads.campaign(10).await;
    claim_and_win(&threads.first, "a").await;
    claim_and_win(&threads.second, "b").await;
    let [first, second] = threads.generations().await;
    assert_eq!(first, second);
    let clients: String = view.query(&["CLIENT", "LIST"]).await;
    assert_eq!(clients.matches(" user=core ").count(), 1, "{clients}");
}

#[tokio::test]
async fn a_rule_change_on_one_thread_invalidates_all_caches() {
    let threads = Threads::start(redis().await, "").await;
    let handle = threads.campaign(1).await;
    claim_and_win(&threads.first, "a").await;
    // Once the cache denies claims, Redis runs no more commands for them.
    eventually(SOON, || async {
        let before = handle.high_water_mark();
        let outcome = claim(&threads.second, "late").await;
        assert!(matches!(outcome, Ok(Outcome::Denied(_))), "{outcome:?}");
        assert_eq!(handle.high_water_mark(), before);
        let cached = !threads.first.registry.notices().decisions.is_recent();
        holds(cached, || "Redis is still called".to_owned())
    })
    .await;
    let id = handle.campaign().id.clone();
    let patch = br#"{"version":1,"limits":{"total":2}}"#;
    let patch = CampaignPatch::parse(patch).unwrap();
    threads.first.changes.update(&id, patch, "test", clock::now()).await.unwrap();
    claim_and_win(&threads.second, "b").await;
}
