//! Fairness between campaigns: many callers on one campaign do not delay other campaigns.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use claimgate_core::clock;
use claimgate_core::config::{BATCH_MAX, sqlite_url};
use claimgate_core::domain::campaign_change::NewCampaign;
use claimgate_core::engine::Engine;
use claimgate_core::engine::campaign::handle::CampaignHandle;
use claimgate_core::redis_address::RedisAddress;
use claimgate_core::store::sql::SqlStore;
use claimgate_shared::{Attempt, ClaimRequest, Outcome};
use serde_json::json;
use support::times::from_now;
use support::wait::holds;
use support::{SOON, Servers, claim_body, eventually};
use tokio::task::JoinSet;

const CROWD: usize = 6000;

struct World {
    engine: Engine,
    /// The engine of a second HTTP thread.
    thread_engine: Engine,
    _redis: Servers,
}

impl World {
    async fn start(directory: &std::path::Path) -> Self {
        let redis = Servers::start().await;
        let sql = SqlStore::open(&sqlite_url(&directory.join("claimgate.sqlite"))).await.unwrap();
        let engine =
            Engine::builder(sql)
                .archive_after(Duration::MAX)
                .on(RedisAddress::parse(&redis.url(), None).unwrap());
        Self { thread_engine: engine.for_thread(), engine, _redis: redis }
    }

    async fn campaign(&self, id: &str) -> Arc<CampaignHandle> {
        let body = json!({"id": id, "name": id, "starts_at": from_now(-60), "limits": {"total": 1_000_000}});
        let campaign = NewCampaign::parse(body.to_string().as_bytes()).unwrap();
        let id = campaign.id().clone();
        self.engine.changes.create(campaign, "test", clock::now()).await.unwrap();
        self.engine.campaigns.find(&id).await.unwrap()
    }

    async fn claim_and_win(&self, engine: &Engine, handle: &Arc<CampaignHandle>, user: &str) {
        let body = claim_body(handle.campaign().id.as_str(), user, "k", 1).to_string();
        let request = ClaimRequest::parse(body.as_bytes()).unwrap();
        let decision = engine.claims.batcher.claim(handle, &request, Attempt::First, None).await.unwrap();
        assert!(matches!(decision.outcome, Outcome::Granted(_)), "{user}: {decision:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quiet_campaign_does_not_wait_for_a_busy_one() {
    let directory = tempfile::tempdir().unwrap();
    let world = Arc::new(World::start(directory.path()).await);
    let (hot, cold) = (world.campaign("hot").await, world.campaign("cold").await);
    // The first call on a campaign reads its high-water mark from SQL.
    world.claim_and_win(&world.engine, &cold, "first").await;
    // The crowd has its own thread: the test is about the queue for Redis, not about scheduling.
    let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let answered = Arc::new(AtomicUsize::new(0));
    let mut crowd = JoinSet::new();
    for user in 0..CROWD {
        let (world, hot, answered) = (Arc::clone(&world), Arc::clone(&hot), Arc::clone(&answered));
        let waits = async move {
            let engine = if user % 2 == 0 { &world.engine } else { &world.thread_engine };
            world.claim_and_win(engine, &hot, &format!("u{user}")).await;
            answered.fetch_add(1, Ordering::SeqCst);
        };
        crowd.spawn_on(waits, threads.handle());
    }
    eventually(SOON, || async {
        let answered = answered.load(Ordering::SeqCst);
        holds(answered > 0, || "no claim of the crowd was answered".to_owned())
    })
    .await;
    // Other load on this machine only raises the number, so the minimum of several tries shows the batcher's
    // share.
    let mut least = u64::MAX;
    for round in 0..5 {
        let before = hot.high_water_mark().sequence;
        world.claim_and_win(&world.engine, &cold, &format!("alone-{round}")).await;
        let after = hot.high_water_mark().sequence;
        if after < CROWD as u64 {
            least = least.min(after - before);
        }
    }
    // The batch in progress, the next batch, and a batch that was being answered.
    assert!(least <= 3 * BATCH_MAX as u64, "{least} claims of the crowd were decided first");
    crowd.join_all().await;
    assert_eq!(answered.load(Ordering::SeqCst), CROWD);
    threads.shutdown_background();
}
