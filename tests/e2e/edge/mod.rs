//! The edge Worker in a real Worker runtime, in front of a real core and Redis.

pub mod challenges;
mod claims;
mod core;
mod demand;
mod drilled;
mod faults;
mod future;
mod headers;
mod input;
pub mod key_server;
mod key_sets;
mod key_sources;
mod own_claims;
mod passes;
mod providers;
mod rates;
mod readiness;
mod secrets;
mod setup;
mod several_cores;
mod stampede;
mod tokens;
mod user_ids;
mod wrong_keys;
mod wrong_passes;
mod wrong_tokens;

use std::future::Future;

use support::edge::{EDGE_LOCK, EXECUTOR, Runtime, World};
use support::wait::holds;
use support::{Reply, SOON, eventually, heavy};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

/// Returns the shared edge of the `test` environment, which has no rate limits.
pub async fn open_world() -> &'static World {
    static WORLD: OnceCell<World> = OnceCell::const_new();
    WORLD.get_or_init(|| async { World::start(Runtime::from_env(), "edge-open", "test", &[]).await }).await
}

/// Returns the shared edge of the `production` environment: with rate limits, and one allowed origin. Only
/// one test at a time has it, so that a test may break things.
pub async fn strict_world() -> MutexGuard<'static, World> {
    static WORLD: OnceCell<Mutex<World>> = OnceCell::const_new();
    let start = || async {
        let variables = [("CORS_ORIGINS", "https://shop.example")];
        Mutex::new(World::start(Runtime::from_env(), "edge-strict", "production", &variables).await)
    };
    let mut world = WORLD.get_or_init(start).await.lock().await;
    world.heal().await;
    world
}

/// Runs `test` concurrently with other tests.
pub fn run(test: impl Future<Output = ()>) {
    EXECUTOR.block_on(async {
        let _turn = EDGE_LOCK.read().await;
        test.await;
    });
}

/// Runs `test` exclusively, because its load would make the calls of other tests time out.
pub fn run_alone(test: impl Future<Output = ()>) {
    EXECUTOR.block_on(async {
        let _turn = EDGE_LOCK.write().await;
        let _machine = heavy().await;
        test.await;
    });
}

/// Returns the claim requests that the edge sent to core for this reply.
pub fn claims_sent_to_core(world: &World, reply: &Reply) -> Vec<String> {
    let mut forwarded = world.forwarded(reply);
    forwarded.retain(|text| text.starts_with("POST /internal/v1/claims "));
    forwarded
}

/// Waits until the edge rejects a first try with `code` without calling core.
pub async fn until_rejected_early(world: &World, campaign: &str, code: &str) -> Reply {
    eventually(SOON, || async {
        let _ = world.view(campaign).await;
        let keyless = world.send(world.claim_request(campaign, "early")).await;
        if keyless.status == 503 {
            // No claim without a key is repeated, and core may be slow.
            return Err(keyless.text());
        }
        let marked = world.first_try(campaign, "early", "k").await;
        assert_eq!((keyless.code().as_str(), marked.code().as_str()), (code, code));
        let reached = claims_sent_to_core(world, &keyless).len() + claims_sent_to_core(world, &marked).len();
        holds(reached == 0, || format!("{reached} of 2 claims reached core")).map(|()| marked)
    })
    .await
}
