//! The threads of one core, each with an engine of its own: what they share, and what becomes of their connections.

use std::sync::Arc;
use std::time::Duration;

use claimgate_core::clock;
use claimgate_core::config::sqlite_url;
use claimgate_core::domain::campaign_change::{CampaignPatch, NewCampaign};
use claimgate_core::domain::counters::Generation;
use claimgate_core::engine::Engine;
use claimgate_core::engine::handle::CampaignHandle;
use claimgate_core::redis_address::RedisAddress;
use claimgate_core::store::redis::slot::Slot;
use claimgate_core::store::sql::SqlStore;
use claimgate_shared::{Attempt, ClaimRequest, Outcome};
use serde_json::json;
use support::only_on;
use support::times::from_now;
use support::topology::ONE_SERVER;
use support::wait::holds;
use support::{SOON, Servers, claim_body, eventually};
use tempfile::TempDir;

/// Servers that wait for no disk: an engine in this process has no caller that would ask again.
async fn redis() -> Servers {
    Servers::start_with(&[("appendfsync", "no")], &[]).await
}

/// A core of two threads, in process.
struct Threads {
    first: Engine,
    second: Engine,
    redis: Servers,
    _directory: TempDir,
}

impl Threads {
    /// Connected by the URL of `redis` with `query` added, such as `?user=name&pass=word`.
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
        let campaign = NewCampaign::parse(body.to_string().as_bytes(), clock::now()).unwrap();
        let id = campaign.id.clone();
        self.first.create(campaign, "test", clock::now()).await.unwrap();
        self.first.handle(&id).await.unwrap()
    }

    async fn generations(&self) -> [Generation; 2] {
        let slot = Slot::of("cg:{c}");
        let generation = async |engine: &Engine| engine.sync.redis.session(slot).await.unwrap().generation();
        [generation(&self.first).await, generation(&self.second).await]
    }
}

async fn claim(engine: &Engine, user: &str) -> Result<Outcome, String> {
    let body = claim_body("c", user, "k", 1).to_string();
    let request = ClaimRequest::parse(body.as_bytes()).unwrap();
    let decided = engine.claim(&request, Attempt::First).await;
    decided.map(|decision| decision.outcome).map_err(|error| error.to_string())
}

async fn wins(engine: &Engine, user: &str) {
    let outcome = claim(engine, user).await;
    assert!(matches!(outcome, Ok(Outcome::Granted(_))), "{user}: {outcome:?}");
}

#[tokio::test]
async fn threads_connected_to_the_same_redis_need_no_sql_for_a_campaign_that_one_of_them_knows() {
    let threads = Threads::start(redis().await, "").await;
    threads.campaign(10).await;
    wins(&threads.first, "a").await;
    threads.first.sync.sql.close().await;
    wins(&threads.second, "b").await;
    let [first, second] = threads.generations().await;
    assert_eq!(first, second);
}

#[tokio::test]
async fn a_redis_that_was_restarted_ends_the_connections_of_every_thread() {
    let mut threads = Threads::start(redis().await, "").await;
    let handle = threads.campaign(10).await;
    wins(&threads.first, "a").await;
    wins(&threads.second, "b").await;
    let [before, _] = threads.generations().await;
    threads.redis.kill_and_restart().await;
    // One thread finds it out; the other one, which has not called since, does not go on with its old connection.
    eventually(SOON, || async {
        let outcome = claim(&threads.first, "c").await;
        holds(outcome.is_ok(), || format!("{outcome:?}"))
    })
    .await;
    let [first, second] = threads.generations().await;
    assert!(first > before && second == first, "{before:?}, then {first:?} and {second:?}");
    assert_eq!(handle.synced_generation(), first);
    wins(&threads.second, "d").await;
}

#[tokio::test]
async fn without_info_the_threads_share_one_connection() {
    only_on!(ONE_SERVER, "an ACL user of one server");
    let redis = redis().await;
    let view = redis.view().await;
    view.query::<()>(&["ACL", "SETUSER", "core", "on", ">secret", "~*", "+@all", "-info"]).await;
    let threads = Threads::start(redis, "?user=core&pass=secret").await;
    threads.campaign(10).await;
    wins(&threads.first, "a").await;
    wins(&threads.second, "b").await;
    let [first, second] = threads.generations().await;
    assert_eq!(first, second);
    let clients: String = view.query(&["CLIENT", "LIST"]).await;
    assert_eq!(clients.matches(" user=core ").count(), 1, "{clients}");
}

#[tokio::test]
async fn a_change_of_the_rules_on_one_thread_invalidates_what_all_have_cached() {
    let threads = Threads::start(redis().await, "").await;
    let handle = threads.campaign(1).await;
    wins(&threads.first, "a").await;
    // Once the cache refuses, no refusal adds to the commands that Redis has run for claims.
    eventually(SOON, || async {
        let before = handle.high_water_mark();
        let outcome = claim(&threads.second, "late").await;
        assert!(matches!(outcome, Ok(Outcome::Denied(_))), "{outcome:?}");
        assert_eq!(handle.high_water_mark(), before);
        let cached = !threads.first.registry.notices().decisions.is_recent();
        holds(cached, || "Redis is still asked".to_owned())
    })
    .await;
    let id = handle.campaign().id.clone();
    let patch = br#"{"version":1,"limits":{"total":2}}"#;
    let patch = CampaignPatch::parse(patch).unwrap();
    threads.first.update(&id, patch, "test", clock::now()).await.unwrap();
    wins(&threads.second, "b").await;
}
